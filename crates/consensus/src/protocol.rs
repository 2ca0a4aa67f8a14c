//! The contract between an ordering protocol and the code that runs it.

use std::{sync::Arc, time::Duration};

use synod_wire::{Ballot, Ballots, Batch, Delivered, Lsn, ReplicaId, Slot, Time};

use crate::{Bug, Message, Options, Record, VoterSets, election};

/// An ordering protocol: a pure state machine that is given [`Input`]s and answers with [`Effect`]s.
///
/// It never touches a socket, a file, a clock, a thread or an unseeded random number. So the threads of a
/// server and the simulator run the same code, and the same inputs give the same effects everywhere.
///
/// # Contract
///
/// - Messages may be lost, duplicated, delayed and reordered; they are not forged.
/// - **Nothing is promised before it is durable**: a promise, a vote or an acceptance is sent with `after` set to the
///   record that holds it.
/// - **What a replica says in ballot b is true of ballot b.** A replica knows things that its ballot did not decide: a
///   peer, a learner or a snapshot told it ([`Control::Learn`], [`Control::Installed`]), or an earlier life was told.
///   Such knowledge must never turn into a statement of the ballot. So a replica that is told what was decided in a
///   ballot c first promises c, in writing, and stops leading, standing or following in a lower ballot.
///   [`Protocol::step`] and [`crate::Options::start`] see to that for every protocol; see "Outside knowledge".
/// - [`Effect::Deliver`] comes once per slot, in slot order, without gaps.
/// - A batch given to [`Input::Propose`] may be lost (the leader changes) or decided twice (it was proposed again): the
///   replica that proposed it proposes it again until it is delivered, and the session table executes it once.
///
/// # Outside knowledge
///
/// All statements of a ballot rest on one invariant: *if a value is chosen for a slot in ballot c, every
/// proposal for that slot in a ballot higher than c is that value.* It says nothing about ballots **below**
/// c: there a leader that has not heard of c may have proposed something else. Take a leader of b < c that
/// learned the value chosen in c. It may deliver that value. But its announcement "slot s is decided" means
/// to its followers "what b proposed in s is decided", and that is false. A follower of b that learned from c
/// makes a false statement as well: by its promise to a candidate of b', with b < b' < c, it says that its
/// prefix was decided in ballots below b'.
///
/// Therefore: a replica that acts in ballot b knows only of decisions in b and in lower ballots. Then by the
/// invariant its knowledge and b's proposals cannot disagree, and whatever it says of decisions is true of b,
/// even in a message that waits for the disk while the replica learns more (it was true of b when it was
/// made, and names b). The rule preserves this: the decision's ballot travels with the decision
/// ([`Ballots::decided`]), through pages, learners and snapshots (there it is the highest of the whole
/// prefix), and the promise comes before the knowledge, in the log too. A crash between the two forgets the
/// knowledge, or keeps both; if the snapshot was durable before the promise was, the next life promises
/// before it says anything ([`crate::Options::start`]; a protocol that speaks in its start promises there itself).
///
/// Where a ballot is a term, several replicas may be candidates in it. A candidate that learns what the
/// term's leader decided has lost, and gives up: the voters that it asks from then on may be others than
/// those that elected that leader.
///
/// Promising is always safe. It costs a leader its place only if another leader decided something in a higher
/// ballot, which has cost it that place already. A replica that must not vote promises too: its next life may vote.
pub trait Protocol: CloneProtocol + std::fmt::Debug + Send {
    /// Takes one input and appends its effects. `now` never decreases from one call to the next.
    ///
    /// Callers run a protocol by this method; an implementation provides [`Protocol::handle`] and does not
    /// override this one.
    ///
    /// # Panics
    /// If the protocol does not promise what it is told to.
    fn step(&mut self, now: Time, input: Input, effects: &mut Effects) {
        let leads_on = self.options().has(Bug::LeaderLearnsWithoutPromise)
            && matches!(input, Input::Control(Control::Learn { .. }))
            && self.status().role == Role::Leader;
        if let Some(ballots) = input.outside_knowledge()
            && !leads_on
        {
            self.heed(now, ballots.decided, effects);
        }
        self.handle(now, input, effects);
    }

    /// Tells that something was decided in this ballot: the replica acts in no lower one from here on.
    fn heed(&mut self, now: Time, ballot: Ballot, effects: &mut Effects) {
        if ballot > self.promised() && !self.options().has(Bug::LearnWithoutPromise) {
            self.promise(now, ballot, effects);
            assert!(self.promised() >= ballot, "a replica promises the ballot of what it learns");
        }
    }

    /// Takes one input that the contract allows as it is.
    fn handle(&mut self, now: Time, input: Input, effects: &mut Effects);

    /// The highest ballot that is promised: this replica acts in no lower one. Where a promise is a term, it
    /// is the highest ballot of that term.
    fn promised(&self) -> Ballot;

    /// Promises a ballot that is higher than [`Protocol::promised`]: writes that, and ends whatever the
    /// replica does in a lower one.
    fn promise(&mut self, now: Time, ballot: Ballot, effects: &mut Effects);

    /// The options that it was started with.
    fn options(&self) -> &Options;

    /// Sends what was held back so that a burst of inputs makes few messages and records, and asks for the
    /// next deadline. The code that runs a protocol calls it before the effects of one or more steps leave;
    /// nothing is ever held back longer, except by a protocol that sends at intervals and asks for a deadline.
    fn flush(&mut self, now: Time, effects: &mut Effects);

    /// How many batches this replica may propose now: zero unless commands go here ([`Protocol::route`]) and
    /// its window has room.
    fn room(&self) -> usize;

    /// Where the commands of this replica's clients go: to the leader, or anywhere in a protocol in which every replica
    /// takes commands. A protocol without a leader says [`Effect::Leader`] again when this has changed.
    fn route(&self) -> Route {
        let Status { role, view, .. } = self.status();
        match view.leader {
            _ if role == Role::Leader => Route::Here,
            Some(leader) => Route::To(leader),
            None => Route::Nowhere,
        }
    }

    /// The replica that sees to it that the replicated clock advances, that learners are told of decisions,
    /// and that they are promoted: the leader, if there is one.
    fn caretaker(&self) -> Option<ReplicaId> {
        self.status().view.leader
    }

    /// Shows every batch that this replica, which leads, has in its log, or took in this burst, and has not delivered.
    /// A wrapper does not propose these again; a batch that is not shown may be proposed twice, and counts once
    /// ([`Delivered`]).
    fn for_each_proposal(&self, see: &mut dyn FnMut(&Batch));

    /// Whether the executor or the disk lags so far that nothing more should be taken in. A protocol may drop what it
    /// is sent meanwhile, and need not remember that it did: the replica around it asks the leader to send it again.
    fn is_congested(&self) -> bool;

    /// What this replica knows, for routing, reads, catch-up and metrics.
    fn status(&self) -> Status;

    /// Whether another voter answered this replica, which leads, within an election time-out: if so, it is there,
    /// and remembers what it said. A voter that does not know what an earlier life said answers no leader.
    fn answers(&self, now: Time, voter: ReplicaId) -> bool;

    /// What the election of the next epoch should know of this one ([`crate::Restart::memory`]).
    fn election_memory(&self) -> election::Memory {
        election::Memory::default()
    }

    /// The shortest time in which each other voter answered this replica lately, where the election measures that; a
    /// voter that does not answer is left out.
    fn round_trips(&self) -> Vec<(ReplicaId, Duration)> {
        Vec::new()
    }

    /// Tells that commands of another replica's clients, or of this one's, were ordered, where the election weighs that
    /// (`Options::latency`).
    fn ordered(&mut self, _origin: ReplicaId, _commands: u64) {}

    /// Thousandths of the commands that came from each voter lately, where the election weighs that.
    fn origins(&self) -> Vec<(ReplicaId, u64)> {
        Vec::new()
    }
}

/// Copies a protocol behind its trait: code that explores what can happen next tries one input on each copy, and a
/// server makes none. Every protocol that is [`Clone`] has it, and has nothing to write for it.
pub trait CloneProtocol {
    /// Another instance in the same state, which is independent from here on.
    fn clone_protocol(&self) -> Box<dyn Protocol>;
}

impl<P: Protocol + Clone + 'static> CloneProtocol for P {
    fn clone_protocol(&self) -> Box<dyn Protocol> {
        Box::new(self.clone())
    }
}

impl Clone for Box<dyn Protocol> {
    fn clone(&self) -> Box<dyn Protocol> {
        (**self).clone_protocol()
    }
}

/// An event for a protocol.
#[derive(Clone, Debug)]
pub enum Input {
    /// A message of this protocol arrived.
    Receive {
        /// The sender.
        from: ReplicaId,
        /// The message.
        message: Message,
    },
    /// This batch has to be ordered. Given only while [`Protocol::room`] is positive; ignored otherwise.
    Propose {
        /// The batch.
        batch: Batch,
        /// Whether another replica waits for its decision. If not, the decision may reach the others with a
        /// later message.
        awaited: bool,
    },
    /// Every record up to this one is on stable storage.
    Durable(Lsn),
    /// The session to a peer changed. A suffix of the messages of an ended session may be lost, so when a
    /// session begins a protocol sends again what the peer may still need.
    Link {
        /// The peer.
        peer: ReplicaId,
        /// What happened to the session.
        link: Link,
    },
    /// The deadline that was asked for last has passed.
    Timer,
    /// A request of the replica around the protocol.
    Control(Control),
}

/// Where commands go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// This replica proposes them.
    Here,
    /// They go to this replica, which proposes them.
    To(ReplicaId),
    /// No replica takes them at the moment.
    Nowhere,
}

/// What happened to the session to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// A session began.
    Up,
    /// What the peer was sent before may be lost, as if a session had begun; there may or may not be a session.
    Renewed,
    /// The session ended, which says nothing about the peer.
    Down,
    /// There is no session, and no process listens at the peer's address: its process has ended.
    Refused,
}

impl Link {
    /// Whether the peer may still need what it was sent before.
    #[must_use]
    pub fn begins_again(self) -> bool {
        matches!(self, Link::Up | Link::Renewed)
    }
}

impl Input {
    /// The ballots of what another replica knew to be decided.
    fn outside_knowledge(&self) -> Option<Ballots> {
        match self {
            Input::Control(Control::Learn { ballots, .. } | Control::Installed { ballots, .. }) => {
                Some(*ballots)
            }
            _ => None,
        }
    }
}

/// Requests of the replica around the protocol.
#[derive(Clone, Debug)]
pub enum Control {
    /// Find the slot from which on a read that starts now is linearizable; answered by [`Effect::ReadIndex`].
    ReadIndex(ReadToken),
    /// This slot was decided with this batch; a peer that has it delivered said so.
    Learn {
        /// The slot.
        slot: Slot,
        /// The ballots with which that peer's protocol delivered it.
        ballots: Ballots,
        /// What was decided there.
        batch: Batch,
        /// The voters from this slot on, if the protocol changes them itself and the batch is one that comes
        /// with voters: the same as its leader proposed it with.
        voters: Option<VoterSets>,
    },
    /// A snapshot was installed: everything through `slot` is decided and executed.
    Installed {
        /// The slot.
        slot: Slot,
        /// The highest ballots of the prefix through the slot, as it was delivered where the snapshot was taken.
        ballots: Ballots,
        /// The voters as of this slot.
        voters: VoterSets,
        /// The batches that were delivered through the slot.
        delivered: Arc<Delivered>,
    },
    /// A snapshot through this slot is on stable storage; the log may forget slots through it once what the
    /// protocol appends now is durable.
    Trim(Slot),
    /// The executor lags (`true`) or has caught up: while it lags, accept no new proposals.
    Backlogged(bool),
    /// Let this member lead instead. Ignored unless this replica leads.
    Transfer(ReplicaId),
    /// Order this batch, and let these replicas vote from its slot on, within this epoch. Given only while
    /// [`Protocol::room`] is positive, to a protocol that changes voters itself (see
    /// [`crate::ProtocolKind::changes_voters_itself`]). The protocol refuses ([`Effect::ChangeRefused`]) until
    /// everything that came with voters before is delivered; so a replica that concludes, from what is
    /// delivered, which replicas have to vote after this batch, is right about it wherever the batch is decided.
    ChangeVoters {
        /// The future voters; each new one must have caught up. They are the present ones if the batch
        /// changes something else. If they are two groups at once, the leader itself leaves that state, with
        /// [`Batch::settling`], once the change is certain.
        voters: VoterSets,
        /// The batch by which the replica layer knows the change.
        batch: Batch,
    },
}

/// Why a change of voters was not begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeRefused {
    /// This replica does not lead.
    NotLeading,
    /// An earlier change is not complete, or leadership is being handed over: offer it again in a moment.
    Pending,
    /// The leader has not committed anything in its own term yet: offer it again in a moment.
    TooEarly,
    /// This replica, which has to vote, has not caught up.
    Lagging(ReplicaId),
}

/// Names a read that waits for its slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReadToken(pub u64);

/// Something that a protocol wants done.
#[derive(Clone, Debug)]
pub enum Effect {
    /// Add a record to the write-ahead log. Records are numbered without gaps.
    Append {
        /// The record's number.
        lsn: Lsn,
        /// The record.
        record: Record,
    },
    /// Send a message once the record `after` is durable (`Lsn::ZERO`: at once).
    Send {
        /// The receivers; never the replica itself.
        to: To,
        /// The message.
        message: Message,
        /// The record that has to be durable first.
        after: Lsn,
    },
    /// A slot is decided. Slots come in order, without gaps, each once.
    Deliver {
        /// The slot.
        slot: Slot,
        /// The ballots in which it was proposed and decided, which go with it to replicas that missed it.
        ballots: Ballots,
        /// What is decided.
        batch: Batch,
    },
    /// This replica's view of the leader has changed, or where it routes commands while there is none.
    Leader(LeaderView),
    /// Answers [`Control::ReadIndex`]: a state that includes `slot` is recent enough. `None` means that this
    /// replica does not lead, or lost its leadership before a quorum confirmed it; ask again elsewhere.
    ReadIndex {
        /// The read.
        token: ReadToken,
        /// The slot, if leadership was confirmed.
        slot: Option<Slot>,
    },
    /// Two batches were proposed for a slot in one ballot, which breaks a rule that everything rests on. This replica
    /// stays with the one that it accepted. It says so once a ballot.
    TwoProposals {
        /// The ballot; its owner proposed both, or somebody else did so in its name.
        ballot: Ballot,
        /// The slot.
        slot: Slot,
    },
    /// A peer asked for a slot that was delivered here, so that this protocol has forgotten it: the replica around the
    /// protocol sends the peer what was decided there, if it keeps that.
    Lacks {
        /// The peer.
        peer: ReplicaId,
        /// The slot.
        slot: Slot,
    },
    /// Answers [`Control::ChangeVoters`] if the batch was not taken.
    ChangeRefused(ChangeRefused),
    /// Call with [`Input::Timer`] at this time; replaces the previous deadline.
    Deadline(Time),
}

/// The receivers of a message. What goes to several replicas is encoded once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum To {
    /// To one replica.
    One(ReplicaId),
    /// To each of these, which are distinct.
    Each(Arc<[ReplicaId]>),
}

impl To {
    /// The replicas that it goes to.
    #[must_use]
    pub fn ids(&self) -> &[ReplicaId] {
        match self {
            To::One(id) => std::slice::from_ref(id),
            To::Each(ids) => ids,
        }
    }

    /// Whether it goes to this replica, perhaps among others.
    #[must_use]
    pub fn includes(&self, id: ReplicaId) -> bool {
        self.ids().contains(&id)
    }
}

impl From<ReplicaId> for To {
    fn from(id: ReplicaId) -> To {
        To::One(id)
    }
}

/// Which replica leads, as far as a replica knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaderView {
    /// The highest ballot known.
    pub ballot: Ballot,
    /// Its owner, once it is known to lead in that ballot.
    pub leader: Option<ReplicaId>,
}

/// What a replica does in its group at the moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Role {
    /// It votes, and follows a leader if there is one.
    Follower,
    /// It tries to become leader.
    Candidate,
    /// It leads.
    Leader,
    /// It lost (part of) its log: it learns, and does not vote until that is safe.
    Recovering,
    /// It learns what is decided, and has no vote.
    Learner,
}

impl Role {
    /// The word for logs and tables.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Role::Follower => "follower",
            Role::Candidate => "candidate",
            Role::Leader => "leader",
            Role::Recovering => "recovering",
            Role::Learner => "learner",
        }
    }
}

/// A protocol's answers to questions about itself.
#[derive(Clone, Copy, Debug)]
pub struct Status {
    /// What the replica does.
    pub role: Role,
    /// Which replica leads.
    pub view: LeaderView,
    /// The last delivered slot.
    pub decided: Slot,
    /// Slots through this one are known to be decided by some replica; more than `decided` means that catch-up is due.
    pub decided_elsewhere: Slot,
    /// Slots after the decided prefix, through the last one that this leader gave to a batch, that are not known here
    /// to be decided.
    pub in_flight: usize,
    /// Whether [`Input::Durable`] should come at once; otherwise it may come with the next input.
    pub waits_for_disk: bool,
}

/// The effects of one or more steps, and the numbers of log records.
#[derive(Debug)]
pub struct Effects {
    list: Vec<Effect>,
    last_lsn: Lsn,
}

impl Effects {
    /// No effects; the next record will be numbered `last_lsn + 1`.
    #[must_use]
    pub fn new(last_lsn: Lsn) -> Effects {
        Effects { list: Vec::new(), last_lsn }
    }

    /// The number of the last record appended.
    #[must_use]
    pub fn last_lsn(&self) -> Lsn {
        self.last_lsn
    }

    /// Appends a record to the log and returns its number.
    pub fn append(&mut self, record: Record) -> Lsn {
        self.last_lsn = self.last_lsn.next();
        self.list.push(Effect::Append { lsn: self.last_lsn, record });
        self.last_lsn
    }

    /// Numbers a record that the replica around the protocol writes. No effect may be pending: records are
    /// written in the order of their numbers.
    ///
    /// # Panics
    /// If an effect is pending.
    pub fn number(&mut self) -> Lsn {
        assert!(self.list.is_empty(), "the effects before are carried out first");
        self.last_lsn = self.last_lsn.next();
        self.last_lsn
    }

    /// Sends a message once record `after` is durable. If there is no receiver, nothing is sent.
    pub fn send(&mut self, to: impl Into<To>, message: impl Into<Message>, after: Lsn) {
        let to = to.into();
        if !to.ids().is_empty() {
            self.list.push(Effect::Send { to, message: message.into(), after });
        }
    }

    /// Sends a message to each of these, once record `after` is durable.
    pub fn send_each(
        &mut self,
        to: impl IntoIterator<Item = ReplicaId>,
        message: impl Into<Message>,
        after: Lsn,
    ) {
        self.send(To::Each(to.into_iter().collect()), message, after);
    }

    /// How many effects there are.
    pub(crate) fn mark(&self) -> usize {
        self.list.len()
    }

    /// Takes out the effects that came since `mark`, in order: a wrapper edits what the protocol in it added.
    pub(crate) fn split_off(&mut self, mark: usize) -> Vec<Effect> {
        self.list.split_off(mark)
    }

    /// Adds any other effect.
    pub fn push(&mut self, effect: Effect) {
        self.list.push(effect);
    }

    /// Gives the effects for an empty list, without moving each of them.
    ///
    /// # Panics
    /// In debug builds, if the list is not empty.
    pub fn swap(&mut self, empty: &mut Vec<Effect>) {
        debug_assert!(empty.is_empty(), "what it holds would come again");
        std::mem::swap(&mut self.list, empty);
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Takes the effects out, in order.
    pub fn drain(&mut self) -> std::vec::Drain<'_, Effect> {
        self.list.drain(..)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// They are moved several times for every batch, so what is large and rare is behind a pointer.
    #[test]
    fn effects_and_inputs_are_small() {
        assert!(size_of::<Effect>() <= 128, "{}", size_of::<Effect>());
        assert!(size_of::<Input>() <= 112, "{}", size_of::<Input>());
    }
}

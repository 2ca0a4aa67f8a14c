//! What a protocol from outside need not write itself if it decides slot by slot in ballots: its records, and what a
//! replica knows of slots. The log in rounds stands on it, too.

use std::collections::BTreeMap;

use synod_wire::{Ballot, Ballots, Batch, Keep, Lsn, ReplicaId, Slot, Time};

use crate::{
    Control, Effect, Effects, Fact, LeaderView, Members, Options, Outside, Proofs, Prove, Record, Restart,
    Role, Status,
    acceptor::{Accepted, AcceptedValue, Acceptor},
    codec::records,
    describe::amnesia as lost_text,
    leadership::Reported,
    planted,
    replay::{Replay, Replayed},
    rules::Rules,
};

records! {
    /// What a replica of such a protocol remembers.
    pub enum SlotRecord, "kind of record" {
        /// The replica acts in no lower ballot.
        1, keep Keep::State(1), fact Fact::Promised(*ballot), text "promised {ballot}":
        Promised(ballot: Ballot),
        /// The replica accepted this proposal.
        2, keep Keep::Slot(*slot),
        fact Fact::Accepted { ballot: *ballot, first: *slot, batches: [batch.clone()].into() },
        text ("accepted {ballot} slot {slot}, decided {decided}: {}", write_batch(batch)):
        Accepted {
            /// The ballot of the proposal.
            ballot: Ballot,
            /// The slot of the proposal.
            slot: Slot,
            /// Slots through this one were decided then, with the values that the log holds.
            decided: Slot,
            /// The proposed batch.
            batch: Batch,
        },
        /// Another replica said that this was decided.
        3, keep Keep::Slot(*slot), fact Fact::Learned { slot: *slot, batch: batch.clone() },
        text ("learned {ballot} slot {slot}: {}", write_batch(batch)):
        Learned {
            /// The ballot in which it was proposed.
            ballot: Ballot,
            /// The decided slot.
            slot: Slot,
            /// The decided batch.
            batch: Batch,
        },
        /// Whether the log before this record is lost.
        4, keep Keep::State(2), text { lost_text(*lost) }:
        Amnesia(lost: bool),
    }
    described with write_batch;
    logged {
        fn for_each_batch(&self, see: &mut dyn FnMut(Slot, &Batch)) {
            if let SlotRecord::Accepted { slot, batch, .. } | SlotRecord::Learned { slot, batch, .. } = self {
                see(*slot, batch);
            }
        }

        fn is_decision(&self) -> bool {
            matches!(self, SlotRecord::Learned { .. })
        }

        fn amnesia(&self) -> Option<bool> {
            if let SlotRecord::Amnesia(lost) = self { Some(*lost) } else { None }
        }
    }
}

/// One replica of a protocol that decides slot by slot, apart from the protocol: its role, what it promised and
/// accepted, which replicas are known to have accepted the same, and what is decided. It writes the records, delivers
/// what is decided, and reports the leader.
///
/// The protocol says in which ballot the replica leads or obeys, which proposals it takes, and what others said; and it
/// sends nothing that speaks of a record before that record is durable. [`crate::BySlot`] makes a [`crate::Protocol`]
/// of both.
#[derive(Clone, Debug)]
pub struct SlotAcceptor {
    of: RecordsOf,
    options: Options,
    members: Members,
    /// A leader leads in the promised ballot. A replica that recovers may have forgotten what it said in this epoch.
    role: Role,
    acceptor: Acceptor,
    promised: Ballot,
    promised_lsn: Lsn,
    /// When each peer last answered this leader.
    heard: BTreeMap<ReplicaId, Time>,
    /// Slots through this one are known to be decided by some replica.
    decided_elsewhere: Slot,
    /// The executor lags, so that nothing is accepted.
    backlogged: bool,
    reported: Reported,
}

/// The protocol whose records they are.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RecordsOf {
    Outside(&'static Outside),
    Rounds,
}

impl RecordsOf {
    fn record(self, record: SlotRecord) -> Record {
        match self {
            RecordsOf::Outside(outside) => outside.record(record),
            RecordsOf::Rounds => Record::Rounds(record),
        }
    }
}

/// A record of such a protocol.
fn slot_record(record: &Record) -> Option<&SlotRecord> {
    if let Record::Rounds(record) = record { Some(record) } else { record.outside() }
}

impl SlotAcceptor {
    /// The replica as it is after a start of this protocol. What an earlier life knew to be decided is delivered.
    pub fn start(
        of: &'static Outside,
        options: Options,
        members: Members,
        restart: &Restart,
        effects: &mut Effects,
    ) -> SlotAcceptor {
        SlotAcceptor::start_of(RecordsOf::Outside(of), options, members, restart, effects)
    }

    /// The same with records of any protocol.
    pub(crate) fn start_of(
        of: RecordsOf,
        options: Options,
        members: Members,
        restart: &Restart,
        effects: &mut Effects,
    ) -> SlotAcceptor {
        let mut replica = SlotAcceptor {
            of,
            options,
            members,
            role: Role::Follower,
            acceptor: Acceptor::new(restart.base),
            promised: Ballot::ZERO,
            promised_lsn: Lsn::ZERO,
            heard: BTreeMap::new(),
            decided_elsewhere: restart.base,
            backlogged: false,
            reported: Reported::default(),
        };
        let mut replay = Replay::new(&replica.options, &mut replica.acceptor, restart.amnesia);
        for record in restart.records.iter().filter_map(slot_record) {
            match record.clone() {
                SlotRecord::Promised(ballot) => replay.promised(ballot),
                SlotRecord::Accepted { ballot, slot, decided, batch } => {
                    replay.accepted(ballot, slot, decided, &[batch].into());
                }
                SlotRecord::Learned { ballot, slot, batch } => {
                    replay.learned(AcceptedValue { slot, ballot, batch });
                }
                SlotRecord::Amnesia(forgot) => replay.amnesia(forgot),
            }
        }
        let Replayed { promised, decided, lost } = replay.end(restart.decided);
        (replica.promised, replica.decided_elsewhere) = (promised, decided);
        if !replica.rules().may_vote(lost) {
            replica.role = Role::Recovering;
        }
        if restart.records.is_empty() || lost {
            effects.append(of.record(SlotRecord::Amnesia(lost)));
        }
        replica.deliver(effects);
        replica
    }

    /// The rules that it shares with the Paxos family.
    fn rules(&self) -> Rules {
        planted::rules(&self.options)
    }

    // Questions.

    /// The options that the replica was started with.
    #[must_use]
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// The members of the group.
    #[must_use]
    pub fn members(&self) -> &Members {
        &self.members
    }

    /// What the replica does: it follows, or leads in the promised ballot, or recovers. It recovers if its log does not
    /// hold all that it ever said in this epoch; then it does not vote any more in this epoch.
    #[must_use]
    pub fn role(&self) -> Role {
        self.role
    }

    /// The highest ballot that is promised, and the record that has to be durable before the replica speaks of it.
    #[must_use]
    pub fn promised(&self) -> (Ballot, Lsn) {
        (self.promised, self.promised_lsn)
    }

    /// The last slot of the delivered prefix.
    #[must_use]
    pub fn decided(&self) -> Slot {
        self.acceptor.decided()
    }

    /// The last slot of which anything is known.
    #[must_use]
    pub fn last(&self) -> Slot {
        self.acceptor.last()
    }

    /// The last slot in which something was accepted here, or that of the delivered prefix. Others may have accepted in
    /// later ones.
    #[must_use]
    pub fn last_accepted(&self) -> Slot {
        let decided = self.decided();
        let undelivered = (decided.0 + 1..=self.last().0).rev().map(Slot);
        { undelivered }.find(|slot| self.accepted(*slot).is_some()).unwrap_or(decided)
    }

    /// What was accepted from a slot on, and is not delivered: each slot with the ballot, the batch, and the record
    /// that holds them.
    pub fn accepted_from(&self, first: Slot) -> impl Iterator<Item = (Slot, Ballot, &Batch, Lsn)> {
        let accepted = self.acceptor.accepted_from(first);
        accepted.map(|(slot, accepted)| (slot, accepted.ballot, &accepted.batch, accepted.lsn))
    }

    /// What was accepted in a slot, unless it is delivered.
    #[must_use]
    pub fn accepted(&self, slot: Slot) -> Option<&Batch> {
        self.acceptor.accepted(slot).map(|accepted| &accepted.batch)
    }

    /// Whether a slot is known to be decided.
    #[must_use]
    pub fn is_decided(&self, slot: Slot) -> bool {
        self.acceptor.is_decided(slot)
    }

    /// The peers that are not known to have accepted the proposal of the promised ballot for a slot.
    pub fn lacking(&self, slot: Slot) -> impl Iterator<Item = ReplicaId> {
        let voters = self.acceptor.voters(slot, self.promised);
        self.members.peers().filter(move |&peer| !self.members.contains(voters, peer))
    }

    /// Whether the executor lags so far that nothing is accepted ([`crate::Protocol::is_congested`]).
    #[must_use]
    pub fn is_congested(&self) -> bool {
        self.backlogged
    }

    /// How many batches may be proposed now ([`crate::Protocol::room`]).
    #[must_use]
    pub fn room(&self) -> usize {
        let leads = self.role == Role::Leader && !self.backlogged;
        if leads { self.options.window_max.saturating_sub(self.status().in_flight) } else { 0 }
    }

    /// Whether a voter answered this leader within an election time-out ([`crate::Protocol::answers`]).
    #[must_use]
    pub fn answers(&self, now: Time, voter: ReplicaId) -> bool {
        self.heard.get(&voter).is_some_and(|&heard| now.since(heard) <= self.options.election_timeout)
    }

    /// The answers of the protocol to questions about itself.
    #[must_use]
    pub fn status(&self) -> Status {
        let (decided, leads) = (self.decided(), self.role == Role::Leader);
        let in_flight = usize::try_from(self.last().0 - decided.0).unwrap_or(usize::MAX);
        Status {
            role: self.role,
            view: self.reported.view,
            decided,
            decided_elsewhere: self.decided_elsewhere.max(decided),
            in_flight: if leads { in_flight } else { 0 },
            waits_for_disk: leads,
        }
    }

    // Ballots.

    /// Begins to lead in a ballot of this replica's own, which is higher than the promised one. What is accepted and
    /// not delivered is accepted in this ballot too.
    ///
    /// # Panics
    /// If this replica recovers, or the ballot is not such a one.
    pub fn lead(&mut self, ballot: Ballot, effects: &mut Effects) {
        assert_ne!(self.role, Role::Recovering, "it may have forgotten what it accepted");
        assert!(
            ballot.replica == self.members.me() && ballot > self.promised,
            "{ballot} is no ballot to lead in"
        );
        self.promise(ballot, effects);
        self.role = Role::Leader;
        self.report(ballot, effects);
        let held: Vec<_> =
            self.accepted_from(Slot::ZERO).map(|(slot, _, batch, _)| (slot, batch.clone())).collect();
        for (slot, batch) in held {
            self.propose(slot, &batch, effects);
        }
    }

    /// Whether an answer that came in a ballot is to this leader, which records that the sender is there.
    pub fn hears(&mut self, now: Time, from: ReplicaId, ballot: Ballot) -> bool {
        let mine = self.role == Role::Leader && ballot == self.promised;
        if mine {
            self.heard.insert(from, now);
        }
        mine
    }

    /// Whether this replica obeys the sender as the leader of a ballot. If so, it promises the ballot, and reports the
    /// leader; if it led in a lower ballot, it leads no longer.
    pub fn obeys(&mut self, from: ReplicaId, ballot: Ballot, effects: &mut Effects) -> bool {
        let is_own = from == self.members.me();
        let obeys = self.rules().may_obey(self.promised, ballot);
        if ballot.replica != from || is_own || !obeys || self.role == Role::Recovering {
            return false;
        }
        if ballot > self.promised {
            self.promise(ballot, effects);
        }
        self.report(ballot, effects);
        true
    }

    /// Promises a ballot that is higher than the promised one. A leader leads no longer then.
    pub fn promise(&mut self, ballot: Ballot, effects: &mut Effects) {
        self.promised = ballot;
        self.promised_lsn = effects.append(self.of.record(SlotRecord::Promised(ballot)));
        if self.role == Role::Leader {
            self.role = Role::Follower;
            self.heard.clear();
            self.reported.leader(LeaderView { ballot, leader: None }, effects);
        }
    }

    /// Reports that the owner of a ballot leads, if that is news.
    fn report(&mut self, ballot: Ballot, effects: &mut Effects) {
        self.reported.leader(LeaderView { ballot, leader: Some(ballot.replica) }, effects);
    }

    /// Accepts the own proposal for a slot in the promised ballot, and returns the record that holds it. What is
    /// accepted in this ballot already, or known to be decided, is not written again.
    pub fn propose(&mut self, slot: Slot, batch: &Batch, effects: &mut Effects) -> Lsn {
        let (ballot, decided) = (self.promised, self.decided());
        match self.acceptor.accepted(slot) {
            _ if slot <= decided => return self.promised_lsn,
            Some(held) if held.ballot == ballot => return held.lsn,
            _ => {}
        }
        let record = SlotRecord::Accepted { ballot, slot, decided, batch: batch.clone() };
        let lsn = effects.append(self.of.record(record));
        self.acceptor.accept(ballot, slot, &[batch.clone()].into(), lsn);
        lsn
    }

    /// Accepts another replica's proposal of the promised ballot, and returns the record that has to be durable before
    /// this replica says so; `None` if it has no room for the proposal.
    pub fn accept(&mut self, slot: Slot, batch: &Batch, effects: &mut Effects) -> Option<Lsn> {
        let through = self.rules().takes_through(self.decided(), self.options.accept_ahead_max());
        let has_room = !self.backlogged && slot <= through;
        has_room.then(|| self.propose(slot, batch, effects)).map(|lsn| self.rules().leaves_after(lsn))
    }

    /// Records that a replica accepted the proposal of a ballot for a slot, and delivers what that decides.
    pub fn vote(&mut self, slot: Slot, ballot: Ballot, voter: ReplicaId, effects: &mut Effects) {
        let (members, rules) = (&self.members, self.rules());
        let is_quorum = |votes| rules.is_chosen(members, votes);
        self.acceptor.vote(slot, slot, ballot, members.only(voter), is_quorum);
        self.deliver(effects);
    }

    /// Marks records through this one as durable: the votes of this replica that they hold count.
    pub fn durable(&mut self, lsn: Lsn, effects: &mut Effects) {
        while let Some(votes) = self.acceptor.became_durable(lsn) {
            self.vote(votes.first, votes.ballot, self.members.me(), effects);
        }
    }

    /// Records that slots through this one are decided, as the leader of a ballot said: where this replica holds
    /// the proposal of that ballot, it holds what was decided.
    pub fn decide_through(&mut self, through: Slot, ballot: Ballot, effects: &mut Effects) {
        self.decided_elsewhere = self.decided_elsewhere.max(through);
        let rules = self.rules();
        self.acceptor.decide_through(through, |accepted| rules.holds_decision(accepted.ballot, ballot));
        self.deliver(effects);
    }

    /// Records that a slot was decided with this batch, which a ballot proposed. If this replica accepted something
    /// else there, or nothing, the decision is written.
    pub(crate) fn decide(&mut self, slot: Slot, ballot: Ballot, batch: &Batch, effects: &mut Effects) {
        if self.is_decided(slot) {
            return;
        }
        if self.accepted(slot) == Some(batch) {
            self.acceptor.decide_run(slot, slot, |_| true);
            self.deliver(effects);
        } else {
            let (ballots, batch) = (Ballots::both(ballot), batch.clone());
            self.control(Control::Learn { slot, ballots, batch, voters: None }, effects);
        }
    }

    /// Carries out the requests that concern what is decided: [`Control::Learn`], [`Control::Installed`] and
    /// [`Control::Backlogged`].
    pub fn control(&mut self, control: Control, effects: &mut Effects) {
        match control {
            Control::Learn { slot, ballots, batch, .. } if !self.acceptor.is_decided(slot) => {
                let ballot = ballots.proposed;
                let record = SlotRecord::Learned { ballot, slot, batch: batch.clone() };
                let lsn = effects.append(self.of.record(record));
                self.acceptor.learn(slot, Accepted { ballot, batch, lsn });
            }
            Control::Installed { slot, .. } if slot > self.decided() => self.acceptor.installed(slot),
            Control::Backlogged(backlogged) => self.backlogged = backlogged,
            _ => {}
        }
        self.deliver(effects);
    }

    fn deliver(&mut self, effects: &mut Effects) {
        while let Some((slot, ballots, batch)) = self.acceptor.deliver() {
            effects.push(Effect::Deliver { slot, ballots, batch });
        }
    }
}

impl Prove for SlotRecord {
    /// The values of slots are independent.
    fn prove(&self, proofs: &mut Proofs) {
        match self {
            SlotRecord::Accepted { ballot, slot, decided, batch } => {
                proofs.decide(*decided, Ballots::both);
                proofs.hold(*slot, [(*ballot, batch)]);
            }
            SlotRecord::Learned { ballot, slot, batch } => proofs.learn(*slot, Ballots::both(*ballot), batch),
            SlotRecord::Promised(_) | SlotRecord::Amnesia(_) => {}
        }
    }
}

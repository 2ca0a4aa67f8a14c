//! The same choice above an election that a protocol has itself. Raft finds a leader by its own rules, and hands over
//! by its own transfer. This says to which member, and that member makes sure first that it can take over.
//!
//! ```text
//! leader                                 member
//! chooses it          -- AskReady -->    writes a record, pings all, catches up (`Preparation`)
//! transfers to it     <--   Ready --
//! ```
//!
//! A leader of Raft proposes nothing while it transfers, so it does not begin before the member is ready. Elsewhere the
//! member stands by itself once it is.

use std::collections::BTreeMap;

use synod_wire::{Ballot, Lsn, ReplicaId, Slot, Time};

use super::{LatencyAware, survey::Survey};
use crate::{
    Effects, Link, Members, Options, Record,
    election::{Election, Memory, Message},
};

/// What a replica sees of the protocol below at the end of a step.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    /// Some replica knows slots through this one to be decided.
    pub(crate) known: Slot,
    /// This replica does.
    pub(crate) here: Slot,
    /// Whether it lags so far that it could not lead before it has caught up.
    pub(crate) lags: bool,
    /// Whether it follows a leader, and does not try to lead itself.
    pub(crate) follows: bool,
}

/// What a replica that votes knows of where the leader should be.
#[derive(Clone, Debug)]
pub(crate) struct Mover {
    election: LatencyAware,
    /// The ballot of the leader that this replica follows, or in which it leads or tries to.
    followed: Ballot,
    /// The members that this leader asked whether they are ready.
    expected: BTreeMap<ReplicaId, Question>,
    /// The leader that asks this replica, and the number of its last question.
    asker: Option<(ReplicaId, u64)>,
}

/// What a leader asked a member.
#[derive(Clone, Copy, Debug)]
struct Question {
    number: u64,
    /// An operator wants the member to lead, or this leader stops: not a choice of its own.
    wished: bool,
}

impl Mover {
    /// A replica that starts, or begins to vote, in a group of these voters.
    pub(crate) fn new(options: &Options, members: Members, memory: &Memory, now: Time) -> Mover {
        let election = LatencyAware::new(options, members, now).remembering(memory, now);
        Mover { election, followed: Ballot::ZERO, expected: BTreeMap::new(), asker: None }
    }

    /// The voters.
    pub(crate) fn members(&self) -> &Members {
        &self.election.members
    }

    /// The voters are others from now on.
    pub(crate) fn change_members(&mut self, members: Members, now: Time) {
        self.election.change_members(members, now);
        self.expected.clear();
        self.asker = None;
    }

    /// What this counts for longer than the epoch.
    pub(crate) fn memory(&self) -> Memory {
        self.election.memory()
    }

    /// Commands of a replica's clients were ordered.
    pub(crate) fn ordered(&mut self, origin: ReplicaId, commands: u64) {
        self.election.ordered(origin, commands);
    }

    /// From where commands come; see [`Election::origins`].
    pub(crate) fn origins(&self) -> Vec<(ReplicaId, u64)> {
        self.election.origins()
    }

    /// How long it takes to a voter and back.
    pub(crate) fn round_trip(&self, voter: ReplicaId) -> Option<std::time::Duration> {
        self.election.round_trip(voter)
    }

    /// When [`Mover::on_timer`] has something to do.
    pub(crate) fn tick_at(&self) -> Time {
        let preparation = self.election.preparation.as_ref();
        self.election.tick_at().min(preparation.map_or(Time::NEVER, |preparation| preparation.ends_at()))
    }

    /// Pings, and asks for times, if that is due. `fit` says that the disk answers. Returns the member to which
    /// this replica should hand over now.
    pub(crate) fn on_timer(&mut self, now: Time, fit: bool, effects: &mut Effects) -> Option<ReplicaId> {
        self.election.on_timer(now, fit, effects);
        let heir = self.election.heir(now).filter(|&heir| heir != self.members().me())?;
        if self.election.rules().transfers_at_once(heir) {
            return Some(heir);
        }
        // One that was chosen before is overtaken; what is wished stays.
        self.expected.retain(|_, question| question.wished);
        self.ask(heir, false, effects);
        None
    }

    /// Asks a member whether it could take over.
    fn ask(&mut self, heir: ReplicaId, wished: bool, effects: &mut Effects) {
        let number = self.election.asked;
        self.expected.insert(heir, Question { number, wished });
        effects.send(heir, Message::AskReady { number }, Lsn::ZERO);
    }

    /// Takes a message. Returns the member to which this replica, which leads, should hand over now, and whether that
    /// was wished. `term` is the record of its present term and vote, which a member that is asked writes once more.
    pub(crate) fn receive(
        &mut self,
        now: Time,
        from: ReplicaId,
        message: &Message,
        term: Record,
        effects: &mut Effects,
    ) -> Option<(ReplicaId, bool)> {
        match *message {
            Message::Ping { .. }
            | Message::Pong { .. }
            | Message::AskTimes { .. }
            | Message::Times { .. } => {
                self.election.receive(now, from, message, effects);
            }
            Message::AskReady { number } if self.followed.replica == from => {
                self.asker = Some((from, number));
                let known = self.election.known;
                self.election.asked_to_lead(now, term, known, effects);
            }
            Message::Ready { number } => {
                let question = self.expected.get(&from).copied().filter(|asked| asked.number == number)?;
                self.expected.remove(&from);
                let may = question.wished || self.election.may_choose(now);
                return may.then_some((from, question.wished));
            }
            _ => {}
        }
        None
    }

    /// Records what happened to the session to a peer.
    pub(crate) fn link(&mut self, now: Time, peer: ReplicaId, link: Link, effects: &mut Effects) {
        self.election.link(now, peer, link, effects);
    }

    /// Records through this one are durable.
    pub(crate) fn durable(&mut self, through: Lsn) {
        self.election.durable(through);
    }

    /// Looks at what a step did, and tells a leader that asked that this replica is ready, if it has become so.
    pub(crate) fn end_of_step(&mut self, now: Time, seen: Seen, effects: &mut Effects) {
        self.election.decided(seen.known, seen.here, seen.lags);
        if seen.follows
            && self.asker.is_some()
            && self.election.is_prepared(now)
            && let Some((leader, number)) = self.asker.take()
        {
            effects.send(leader, Message::Ready { number }, Lsn::ZERO);
        }
    }

    // What the protocol's own election does.

    /// The leader of a ballot, another replica, gives a sign of life; `works` says that it decides what it has to.
    pub(crate) fn follows(&mut self, now: Time, ballot: Ballot, works: bool) {
        self.enters(now, ballot);
        if works {
            self.election.heard_leader(now);
        }
    }

    /// This replica tries to lead in this ballot, or another one leads in it.
    fn enters(&mut self, now: Time, ballot: Ballot) {
        if ballot != self.followed {
            self.followed = ballot;
            self.expected.clear();
            self.asker = None;
            self.election.promised(ballot, now);
        }
    }

    /// This replica begins to lead in a ballot.
    pub(crate) fn leads(&mut self, now: Time, ballot: Ballot) {
        self.enters(now, ballot);
        self.election.leads(now);
    }

    /// This replica leads no more: another one tries to.
    pub(crate) fn steps_down(&mut self) {
        self.election.ends_survey();
        self.expected.clear();
    }

    /// This replica gives up leading.
    pub(crate) fn gives_up(&mut self, now: Time) {
        self.election.gave_up(now);
        self.expected.clear();
    }

    /// Another replica asks who would vote for it in a ballot, since it misses the leader.
    pub(crate) fn hears_rehearsal(&mut self, now: Time, ballot: Ballot) {
        self.election.rehearsed = Some((ballot, now));
    }

    /// An operator wants a member to lead in place of this replica, which leads.
    pub(crate) fn wishes(&mut self, now: Time, to: ReplicaId, effects: &mut Effects) {
        if self.members().peers().any(|peer| peer == to) {
            self.election.wishes(to, now);
            self.ask(to, true, effects);
        }
    }

    /// This replica tries to lead in this ballot: since a leader handed over to it, or since it misses one.
    pub(crate) fn tries(&mut self, now: Time, ballot: Ballot, handed_over_by: Option<ReplicaId>) {
        self.enters(now, ballot);
        self.election.asked_by = handed_over_by.filter(|&leader| leader != ballot.replica);
    }
}

impl LatencyAware {
    /// The voters are others from now on. What is known of those that stay counts on; a question on its way ends.
    fn change_members(&mut self, members: Members, now: Time) {
        let before = std::mem::replace(&mut self.members, members);
        let place_before: Vec<Option<usize>> =
            self.members.ids().iter().map(|&id| before.index(id)).collect();
        let new = super::Abstention::new(self.timeout * super::ABSTAINS_TIMEOUTS);
        self.doubts =
            place_before.iter().map(|place| place.map_or(new, |place| self.doubts[place])).collect();
        self.detector.change_members(&place_before, self.members.my_index());
        if let Some(origins) = &mut self.origins {
            origins.change_members(&place_before);
        }
        self.preparation = None;
        if let Some(survey) = self.survey.take() {
            let moved = survey.moved_by_wish().and_then(|place| self.members.index(before.ids()[place]));
            self.ends_survey();
            self.asked += 1;
            self.survey = Some(Survey::new(self.asked, now, self.members.count(), moved));
        }
    }
}

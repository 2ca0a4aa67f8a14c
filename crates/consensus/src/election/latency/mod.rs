//! Latency-aware election: the leader moves to the replica that exchanges messages with a majority soonest (Santos
//! 2012, chapter 6, Algorithms 6.1 and 6.2).
//!
//! Three parts stand apart. [`Rotating`] detects that a leader is gone, and lets no replica depose one that works: in
//! the source a replica that hears nothing for 3Δ starts the next round by itself, which a cut link is enough for. A
//! `Detector` times the links to all members, at its own pace. The `Survey` of a leader collects these times, and
//! names the member that should lead.
//!
//! ```text
//! Δ := election time-out / 3
//! every 2Δ a member pings all others                             (source: every η)
//! every 2Δ a leader asks all members for the times they measured (source: ALIVE, answered by REPORT)
//! after two such questions it hands over to a member whose majority time was lower by more than 4ε in both
//! ```
//!
//! The matrix of times is built from nothing each cycle, so a member that does not report counts as unreachable. A
//! member that could not lead, since its disk hangs or it lags, says so and is not chosen. `START` of the source is
//! Phase 1 of the protocol: the chosen member is asked to take over, and the old leader goes on until it has.
//!
//! The source lets the chosen process lead at once and as often as it is chosen. Here it makes sure first that it can
//! (`Preparation`), a member that failed is left out for a while (`Abstention`), and nobody is chosen while an
//! operator's wish counts (`Wish`).

mod abstention;
mod detector;
mod memory;
mod mover;
mod origins;
mod planted;
mod preparation;
mod rules;
mod survey;
#[cfg(test)]
mod tests;

pub use memory::Memory;
pub(crate) use mover::{Mover, Seen};
pub use planted::Bug;
pub use rules::majority_time;

use std::time::Duration;

use synod_wire::{Ballot, Lsn, ReplicaId, Slot, Time};

use self::{
    abstention::Abstention,
    detector::Detector,
    origins::Origins,
    preparation::Preparation,
    rules::Rules,
    survey::{Report, Survey},
};
use super::{Advice, Election, Message, Rotating};
use crate::{Effects, Link, Members, Options, Record};

/// For this many election time-outs a replica that failed to lead, or has just started, is not chosen; longer each
/// time.
const ABSTAINS_TIMEOUTS: u32 = 2;
/// For this many election time-outs nobody is chosen after an operator moved leadership.
const WISH_TIMEOUTS: u32 = 64;
/// The highest bit of a number of a ping says that it tests whether a replica could take over.
pub(super) const TEST: u64 = 1 << 63;

/// What only a latency-aware election has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tuning {
    /// How far the delay of a link may be from its usual one, in either direction (`ε`): leadership moves for a
    /// majority time that is lower by more than four times as much, and ends within twelve times as much of the
    /// best.
    pub tolerance: Duration,
    /// Pings in a row that a member may leave unanswered before it counts as unreachable; at least 1. The source
    /// begins with 1 and measures that 2 spares changes of the leader where messages are lost.
    pub misses: u32,
    /// Whether the choice weighs from where commands come, which is beyond the source: the leader is chosen for the
    /// mean of what commands wait, the way to it from the replicas that took them included.
    pub origins: bool,
}

impl Default for Tuning {
    fn default() -> Tuning {
        Tuning { tolerance: Duration::from_millis(5), misses: 2, origins: false }
    }
}

/// An operator wants a member to lead, and that counts until then.
#[derive(Clone, Copy, Debug)]
struct Wish {
    heir: ReplicaId,
    ends_at: Time,
}

/// The election of one replica.
#[derive(Clone, Debug)]
pub struct LatencyAware {
    /// Which replica takes over from a leader that is gone, and with whose consent.
    failures: Rotating,
    members: Members,
    timeout: Duration,
    /// Leaders ask, and members ping, every `2Δ`.
    period: Duration,
    tolerance: Duration,
    planted: Option<crate::Bug>,
    detector: Detector,
    /// From where commands come, if the choice weighs that.
    origins: Option<Origins>,
    /// When the next pings leave.
    ping_at: Time,
    /// What this replica asks while it leads.
    survey: Option<Survey>,
    /// The number of the last question, so that no answer counts for a later one.
    asked: u64,
    /// Whether this replica could lead: its disk answers, and it does not lag.
    fit: bool,
    lags: bool,
    /// Slots through this one are known to be decided by some replica.
    known: Slot,
    /// Whether a member was better than this replica, which leads, in the last cycle.
    was_better: bool,
    /// The member that should lead instead, while the protocol asks for advice.
    heir: Option<ReplicaId>,
    /// Whether this replica leads or tries to.
    is_active: bool,
    /// What an operator wants of this replica, which leads.
    wished: Option<Wish>,
    /// The same after it was followed, while the member leads that the operator wanted.
    kept: Option<Wish>,
    /// For how long this replica is not chosen since it failed.
    abstains: Abstention,
    /// The same of other members: each that fell silent while it led, and was replaced. It may have forgotten that with
    /// its process.
    doubts: Vec<Abstention>,
    /// What this replica makes sure of, having been asked to take over.
    preparation: Option<Preparation>,
    /// The leader that asked this replica, which stood for that reason.
    asked_by: Option<ReplicaId>,
    /// The ballot of the last rehearsal that was heard, and when.
    rehearsed: Option<(Ballot, Time)>,
    /// How often it was asked.
    prepared: u64,
}

impl LatencyAware {
    /// An election that acts as if a leader had just been heard, since there may be one.
    #[must_use]
    pub fn new(options: &Options, members: Members, now: Time) -> LatencyAware {
        let timeout = options.election_timeout;
        let mut election = LatencyAware {
            failures: Rotating::new(options, members.clone(), now),
            timeout,
            period: timeout * 2 / 3,
            tolerance: options.latency.tolerance,
            planted: options.planted_bug(),
            detector: Detector::new(members.count(), members.my_index(), options.latency.misses),
            origins: options.latency.origins.then(|| Origins::new(members.count())),
            ping_at: now,
            survey: None,
            asked: 0,
            fit: true,
            lags: false,
            known: Slot::ZERO,
            was_better: false,
            heir: None,
            is_active: false,
            wished: None,
            kept: None,
            abstains: Abstention::new(timeout * ABSTAINS_TIMEOUTS),
            doubts: vec![Abstention::new(timeout * ABSTAINS_TIMEOUTS); members.count()],
            preparation: None,
            asked_by: None,
            rehearsed: None,
            prepared: 0,
            members,
        };
        election.abstain(now);
        election
    }

    /// This election with what that of the epoch before knew: in an epoch that begins in a process that ran the one
    /// before, nobody has started.
    pub(super) fn remembering(mut self, memory: &super::Memory, now: Time) -> LatencyAware {
        let rules = self.rules();
        if let Some(memory) = memory.latency.as_ref().filter(|memory| rules.counts_in_next_epoch(memory)) {
            memory.restore(&mut self, now);
        }
        self
    }

    fn rules(&self) -> Rules {
        planted::rules(self.planted)
    }

    /// This replica has just started, or failed to lead or to take over: it is not chosen for a while.
    fn abstain(&mut self, now: Time) {
        self.abstains.begins(now, &self.rules());
    }

    /// What this replica says of itself to a leader that asks.
    fn report(&self, now: Time) -> Report<'_> {
        let by_wish = self.kept.is_some_and(|wish| now < wish.ends_at);
        let able = self.fit && !self.lags && !by_wish && !self.abstains.is_on(now);
        Report { able, by_wish, times: self.detector.times() }
    }

    /// Sends the pings that are due, to all members.
    fn ping(&mut self, now: Time, effects: &mut Effects) {
        if now < self.ping_at {
            return;
        }
        self.ping_at = now + self.period;
        if let Some(origins) = &mut self.origins {
            origins.forget();
        }
        let number = self.detector.ping(now);
        self.tell_all(Message::Ping { number }, effects);
    }

    /// Ends a cycle of questions if it is over, and begins the next one.
    fn ask(&mut self, now: Time, effects: &mut Effects) {
        let Some(survey) = self.survey.take() else { return };
        if now < survey.ends_at() {
            self.survey = Some(survey);
            return;
        }
        let (rules, me) = (self.rules(), self.members.me());
        let best = survey.best(&self.members, self.tolerance, self.origins.as_ref(), &rules);
        self.heir = best.filter(|_| rules.moves(self.was_better)).map(|best| rules.heir(best, me));
        self.was_better = best.is_some();
        self.asked += 1;
        let mine = self.detector.times();
        self.survey = Some(survey.next(self.asked, now + self.period, self.members.my_index(), mine, &rules));
        self.tell_all(Message::AskTimes { number: self.asked }, effects);
    }

    /// Ends a preparation that takes too long.
    fn end_preparation(&mut self, now: Time) {
        if self.preparation.as_ref().is_some_and(|preparation| now >= preparation.ends_at()) {
            self.preparation = None;
            // An operator's program asks again and again; that is one failure.
            if !self.rules().spares(self.abstains.is_on(now)) {
                self.abstain(now);
            }
        }
    }

    /// Whether this replica was asked to take over, and made sure in time that it can.
    fn is_prepared(&self, now: Time) -> bool {
        let rules = self.rules();
        let in_time = |preparation: &&Preparation| rules.is_in_time(now, preparation.ends_at());
        let preparation = self.preparation.as_ref().filter(in_time);
        preparation.is_some_and(|preparation| preparation.is_complete(&self.members, &rules))
    }

    fn tell_all(&self, message: Message, effects: &mut Effects) {
        effects.send_each(self.members.peers(), message, Lsn::ZERO);
    }

    /// A member leads, or tries to, in place of another. Whether that one failed counts for longer than its process.
    fn remember_failure(&mut self, ballot: Ballot, now: Time) {
        let (me, successor, rules) = (self.members.me(), ballot.replica, self.rules());
        let replaced = self.failures.owner().filter(|&owner| owner != me && owner != successor);
        let Some(index) = replaced.and_then(|owner| self.members.index(owner)) else { return };
        let lately = |&(asked, at): &(Ballot, Time)| asked == ballot && now.since(at) <= self.timeout;
        let rehearsed = self.rehearsed.as_ref().is_some_and(lately);
        if rules.remembers_failure(self.failures.owner_is_silent(now), rehearsed, successor == me) {
            self.doubts[index].begins(now, &rules);
        }
    }

    /// A member leads, or tries to, in place of this replica, which did.
    fn is_replaced(&mut self, successor: ReplicaId, now: Time) {
        match self.wished.filter(|wish| wish.heir == successor && now < wish.ends_at) {
            Some(Wish { heir, .. }) => {
                self.kept = Some(Wish { heir, ends_at: now + self.timeout * WISH_TIMEOUTS });
            }
            // Also if it handed over by choice: two leaders that look far whenever they have much to do would hand over
            // to each other all the time.
            None => self.abstain(now),
        }
    }

    /// Whether this leader may ask a member that it chose: while an operator's wish waits, nobody else is asked.
    fn may_choose(&self, now: Time) -> bool {
        self.wished.is_none_or(|wish| now >= wish.ends_at)
    }

    /// The member that should lead in place of this replica, as long as the protocol asks for advice.
    fn heir(&self, now: Time) -> Option<ReplicaId> {
        self.heir.filter(|_| self.may_choose(now))
    }

    /// Stops asking: this replica does not lead, or no longer.
    fn ends_survey(&mut self) {
        (self.survey, self.was_better, self.heir) = (None, false, None);
    }
}

impl Election for LatencyAware {
    fn restarted(&mut self, promised: Ballot) {
        self.failures.restarted(promised);
    }

    fn expect_no_leader(&mut self) {
        self.failures.expect_no_leader();
    }

    fn receive(&mut self, now: Time, from: ReplicaId, message: &Message, effects: &mut Effects) {
        let Some(index) = self.members.index(from).filter(|&index| index != self.members.my_index()) else {
            return;
        };
        let rules = self.rules();
        match message {
            // A member whose disk hangs could not promise anything to the asker.
            Message::Ping { number } if number & TEST != 0 && !self.fit => {}
            Message::Ping { number } => effects.send(from, Message::Pong { number: *number }, Lsn::ZERO),
            Message::Pong { number } if number & TEST != 0 => {
                if let Some(preparation) = &mut self.preparation {
                    preparation.answers(index, *number);
                }
            }
            Message::Pong { number } => self.detector.answers(index, *number, now, &rules),
            Message::AskTimes { number } => {
                if rules.answers_question(self.failures.owner() == Some(from)) {
                    let Report { able, by_wish, times } = self.report(now);
                    let times = times.to_vec();
                    effects.send(from, Message::Times { number: *number, able, by_wish, times }, Lsn::ZERO);
                }
            }
            Message::Times { number, able, by_wish, times } => {
                let able = *able && !self.doubts[index].is_on(now);
                if let Some(survey) = &mut self.survey {
                    survey.reports(index, *number, Report { able, by_wish: *by_wish, times });
                }
            }
            // A protocol that hands over by a transfer of its own handles these (`Mover`).
            Message::AskReady { .. } | Message::Ready { .. } => {}
            Message::HeartbeatRequest { .. }
            | Message::HeartbeatReply { .. }
            | Message::Rehearse { .. }
            | Message::RehearseReply { .. } => {
                if let Message::Rehearse { ballot } = message {
                    self.rehearsed = Some((*ballot, now));
                }
                self.failures.receive(now, from, message, effects);
            }
        }
    }

    fn link(&mut self, now: Time, peer: ReplicaId, link: Link, effects: &mut Effects) {
        self.failures.link(now, peer, link, effects);
    }

    fn on_timer(&mut self, now: Time, fit: bool, effects: &mut Effects) {
        self.fit = fit;
        self.failures.on_timer(now, fit, effects);
        // The protocol has followed the advice by now, if it could; it is given once a cycle.
        self.heir = None;
        self.end_preparation(now);
        self.ping(now, effects);
        self.ask(now, effects);
    }

    fn tick_at(&self) -> Time {
        let ask_at = self.survey.as_ref().map_or(Time::NEVER, Survey::ends_at);
        self.failures.tick_at().min(self.ping_at).min(ask_at)
    }

    fn heard_leader(&mut self, now: Time) {
        self.failures.heard_leader(now);
    }

    fn promised(&mut self, ballot: Ballot, now: Time) {
        self.remember_failure(ballot, now);
        self.failures.promised(ballot, now);
        self.ends_survey();
        self.preparation = None;
        let (is_mine, rules) = (ballot.replica == self.members.me(), self.rules());
        self.kept = self.kept.filter(|wish| rules.keeps_wish(wish.heir, ballot.replica));
        if self.is_active && !is_mine {
            self.is_replaced(ballot.replica, now);
        }
        self.is_active = is_mine;
        self.wished = None;
    }

    fn gave_up(&mut self, now: Time) {
        self.failures.gave_up(now);
        self.ends_survey();
        self.abstain(now);
        (self.is_active, self.wished) = (false, None);
    }

    fn decided(&mut self, known: Slot, here: Slot, lags: bool) {
        self.failures.decided(known, here, lags);
        (self.known, self.lags) = (known, lags);
        let rules = self.rules();
        if let Some(preparation) = &mut self.preparation {
            preparation.decided(known, here, &rules);
        }
    }

    fn durable(&mut self, through: Lsn) {
        if let Some(preparation) = &mut self.preparation {
            preparation.durable(through);
        }
    }

    fn asked_to_lead(&mut self, now: Time, promise: Record, known: Slot, effects: &mut Effects) -> bool {
        // It may be asked each cycle while it prepares.
        if self.preparation.is_none() {
            self.prepared += 1;
            let (number, ends_at) = (TEST | self.prepared, now + self.timeout);
            let record = effects.append(promise);
            self.preparation = Some(Preparation::new(number, ends_at, record, known, self.members.count()));
            self.tell_all(Message::Ping { number }, effects);
        }
        false
    }

    fn wishes(&mut self, to: ReplicaId, now: Time) {
        self.wished = Some(Wish { heir: to, ends_at: now + self.rules().wish_waits(self.timeout) });
    }

    fn stalls(&mut self, stalls: bool) {
        self.failures.stalls(stalls);
    }

    fn tried(&mut self) {
        self.failures.tried();
    }

    fn leads(&mut self, now: Time) {
        self.failures.leads(now);
        // The first cycle asks nobody, and so chooses nobody. Answers to an earlier leadership's last question are
        // late.
        self.asked += 1;
        let handed_over = self.asked_by.take().and_then(|leader| self.members.index(leader));
        self.survey = Some(Survey::new(self.asked, now, self.members.count(), handed_over));
    }

    fn answered(&mut self, from: ReplicaId, now: Time) {
        self.failures.answered(from, now);
    }

    fn answers(&self, now: Time, member: ReplicaId) -> bool {
        self.failures.answers(now, member)
    }

    fn reaches_quorum(&self, now: Time) -> bool {
        self.failures.reaches_quorum(now)
    }

    fn round_trip(&self, member: ReplicaId) -> Option<Duration> {
        let nanos = self.members.index(member).map(|index| self.detector.times()[index])?;
        (nanos != rules::UNREACHABLE).then(|| Duration::from_nanos(nanos))
    }

    fn ordered(&mut self, origin: ReplicaId, commands: u64) {
        if let Some((origins, index)) = self.origins.as_mut().zip(self.members.index(origin)) {
            origins.add(index, commands);
        }
    }

    fn origins(&self) -> Vec<(ReplicaId, u64)> {
        let Some(origins) = &self.origins else { return Vec::new() };
        self.members.ids().iter().copied().zip(origins.thousandths()).collect()
    }

    fn memory(&self) -> super::Memory {
        super::Memory { latency: Some(Memory::of(self)) }
    }

    fn next_ballot(&self, above: Ballot) -> Ballot {
        self.failures.next_ballot(above)
    }

    fn candidacy(&mut self, now: Time, current: Ballot, effects: &mut Effects) -> Option<Ballot> {
        if self.is_prepared(now) {
            self.preparation = None;
            self.asked_by = self.failures.owner();
            return Some(self.next_ballot(current)).filter(|ballot| ballot.is_in_reach());
        }
        let ballot = self.failures.candidacy(now, current, effects)?;
        self.asked_by = None;
        Some(ballot)
    }

    fn advice(&self, now: Time) -> Advice {
        match (self.failures.advice(now), self.heir(now)) {
            (Advice::Stay, Some(heir)) => Advice::HandTo(heir),
            (advice, _) => advice,
        }
    }

    fn deadline(&self, current: Ballot) -> Time {
        let prepared_at = match &self.preparation {
            Some(preparation) if preparation.is_complete(&self.members, &self.rules()) => Time::ZERO,
            Some(preparation) => preparation.ends_at(),
            None => Time::NEVER,
        };
        self.failures.deadline(current).min(self.ping_at).min(prepared_at)
    }
}

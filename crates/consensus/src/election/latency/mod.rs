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
//! at the end of these 2Δ it hands over to a member whose majority time is lower by more than 4ε
//! ```
//!
//! The matrix of times is built from nothing each cycle, so a member that does not report counts as unreachable. A
//! member that could not lead, since its disk hangs or it lags, says so and is not chosen. `START` of the source is
//! Phase 1 of the protocol: the chosen member is asked to take over, and the old leader goes on until it has.

mod detector;
mod rules;
mod survey;
#[cfg(test)]
mod tests;

pub use rules::majority_time;

use std::time::Duration;

use synod_wire::{Ballot, Lsn, ReplicaId, Slot, Time};

use self::{detector::Detector, survey::Survey};
use super::{Advice, Election, Message, Rotating};
use crate::{Effects, Link, Members, Options};

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
}

impl Default for Tuning {
    fn default() -> Tuning {
        Tuning { tolerance: Duration::from_millis(5), misses: 2 }
    }
}

/// The election of one replica.
#[derive(Clone, Debug)]
pub struct LatencyAware {
    /// Which replica takes over from a leader that is gone, and with whose consent.
    failures: Rotating,
    members: Members,
    /// Leaders ask, and members ping, every `2Δ`.
    period: Duration,
    tolerance: Duration,
    detector: Detector,
    /// When the next pings leave.
    ping_at: Time,
    /// What this replica asks while it leads.
    survey: Option<Survey>,
    /// The number of the last question, so that no answer counts for a later one.
    asked: u64,
    /// Whether this replica could lead: its disk answers, and it does not lag.
    fit: bool,
    lags: bool,
    /// The member that should lead instead, while the protocol asks for advice.
    heir: Option<ReplicaId>,
}

impl LatencyAware {
    /// An election that acts as if a leader had just been heard, since there may be one.
    #[must_use]
    pub fn new(options: &Options, members: Members, now: Time) -> LatencyAware {
        LatencyAware {
            failures: Rotating::new(options, members.clone(), now),
            period: options.election_timeout * 2 / 3,
            tolerance: options.latency.tolerance,
            detector: Detector::new(members.count(), members.my_index(), options.latency.misses),
            ping_at: now,
            survey: None,
            asked: 0,
            fit: true,
            lags: false,
            heir: None,
            members,
        }
    }

    /// Sends the pings that are due, to all members.
    fn ping(&mut self, now: Time, effects: &mut Effects) {
        if now < self.ping_at {
            return;
        }
        self.ping_at = now + self.period;
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
        self.heir = survey.best(&self.members, self.detector.times(), self.tolerance);
        self.asked += 1;
        self.survey = Some(Survey::new(self.asked, now + self.period, self.members.count()));
        self.tell_all(Message::AskTimes { number: self.asked }, effects);
    }

    fn tell_all(&self, message: Message, effects: &mut Effects) {
        effects.send_each(self.members.peers(), message, Lsn::ZERO);
    }

    /// Stops asking: this replica does not lead, or no longer.
    fn ends_survey(&mut self) {
        (self.survey, self.heir) = (None, None);
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
        match message {
            Message::Ping { number } => effects.send(from, Message::Pong { number: *number }, Lsn::ZERO),
            Message::Pong { number } => self.detector.answers(index, *number, now),
            Message::AskTimes { number } => {
                let able = self.fit && !self.lags;
                let times = self.detector.times().to_vec();
                effects.send(from, Message::Times { number: *number, able, times }, Lsn::ZERO);
            }
            Message::Times { number, able, times } => {
                if let Some(survey) = &mut self.survey {
                    survey.reports(index, *number, *able, times);
                }
            }
            Message::HeartbeatRequest { .. }
            | Message::HeartbeatReply { .. }
            | Message::Rehearse { .. }
            | Message::RehearseReply { .. } => self.failures.receive(now, from, message, effects),
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
        self.failures.promised(ballot, now);
        self.ends_survey();
    }

    fn gave_up(&mut self, now: Time) {
        self.failures.gave_up(now);
        self.ends_survey();
    }

    fn decided(&mut self, through: Slot, lags: bool) {
        self.failures.decided(through, lags);
        self.lags = lags;
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
        self.survey = Some(Survey::new(self.asked, now, self.members.count()));
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

    fn next_ballot(&self, above: Ballot) -> Ballot {
        self.failures.next_ballot(above)
    }

    fn candidacy(&mut self, now: Time, current: Ballot, effects: &mut Effects) -> Option<Ballot> {
        self.failures.candidacy(now, current, effects)
    }

    fn advice(&self, now: Time) -> Advice {
        match (self.failures.advice(now), self.heir) {
            (Advice::Stay, Some(heir)) => Advice::HandTo(heir),
            (advice, _) => advice,
        }
    }

    fn deadline(&self, current: Ballot) -> Time {
        self.failures.deadline(current).min(self.ping_at)
    }
}

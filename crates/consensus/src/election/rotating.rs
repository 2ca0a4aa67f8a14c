//! Rotating leadership: round v belongs to member (v - 1) mod n, and the next in line takes over from a
//! leader that falls silent (Santos 2012, sections 7.4 and 9.5; there, "view v is led by v mod n").
//!
//! The thesis leaves open what happens when the next in line is gone too. Here a member that comes d places
//! after the silent leader waits d - 1 **staggers** longer than the first, so that exactly one replica tries
//! first and every live one tries in the end. Tries that fail make the time-out longer, up to four times,
//! until a leader is heard again: so a time-out that is too short for the network corrects itself.
//!
//! Before a member tries, it **rehearses**: it asks the others whether they would let it try (PreVote; Ongaro
//! 2014, section 9.6). Only with a quorum of willing members, itself included, does it try. A member is
//! **willing** unless
//!
//! - it has heard a leader, or promised a round to another replica, within the last time-out, and that one is not gone
//!   ([`Departures`]), or
//! - it leads, a quorum answered it within the last time-out, and it decides what it has to decide, or
//! - it has promised a higher round; then the answer names that round, and the asker asks again above it.
//!
//! `docs/elections.md` has the argument that a working leader stays, and that another one is replaced.

use std::time::Duration;

use synod_wire::{Ballot, Lsn, ReplicaId, Time};

use super::{
    Advice, Election, Message, planted,
    rules::{DOUBLINGS_MAX, Rules},
};
use crate::{Bug, Effects, Link, Members, Options, departures::Departures};

/// How often per time-out the others are asked again while they are not willing. Where the leader is gone,
/// they are asked again sooner at first, since not all notice that at the same time.
const REHEARSALS_PER_TIMEOUT: u32 = 4;
/// The short pauses double this often; the last one is longer than the usual pause.
const PAUSE_DOUBLINGS_MAX: u32 = 4;

/// The state of the failure detector of one replica.
#[derive(Clone, Debug)]
pub struct Rotating {
    members: Members,
    timeout: Duration,
    planted: Option<Bug>,
    /// When the current round gave its last sign of life, or began, or this replica gave up: from then on
    /// this replica waits.
    since: Time,
    /// When a leader last gave a sign of life, or a replica was promised a round; `None` if no replica is
    /// known to lead.
    sign: Option<Time>,
    /// Tries of this replica since it last heard a leader.
    failures: u32,
    /// Whether this replica tries to lead, in the highest ballot that it has promised.
    tries: bool,
    /// Whether this replica leads.
    leads: bool,
    /// When it began to lead or, if it does not lead, when it started.
    led_since: Time,
    /// For each member, when it last answered this replica.
    answered: Vec<Option<Time>>,
    /// Whether this replica leads, and decides nothing although it should.
    stalls: bool,
    /// Whether this replica could lead, because its disk answers.
    fit: bool,
    /// The highest ballot that any replica is known to have promised.
    highest: Ballot,
    rehearsal: Option<Rehearsal>,
    /// The earliest time at which the others are asked again.
    ask_at: Time,
    /// How often they were asked since the owner of the current round was there, up to
    /// [`PAUSE_DOUBLINGS_MAX`].
    asked: u32,
    /// The owner of the round that was promised last.
    owner: Option<ReplicaId>,
    departures: Departures,
}

/// The questions of this replica whether the others would let it try.
#[derive(Clone, Debug)]
struct Rehearsal {
    ballot: Ballot,
    /// For each member, when it last said that it is willing.
    willing: Vec<Option<Time>>,
}

impl Rotating {
    /// A detector that acts as if it had just heard a leader, since there may be one.
    #[must_use]
    pub fn new(options: &Options, members: Members, now: Time) -> Rotating {
        Rotating {
            timeout: options.election_timeout,
            planted: options.planted.filter(|&bug| options.has(bug)),
            since: now,
            sign: Some(now),
            failures: 0,
            tries: false,
            leads: false,
            led_since: now,
            answered: vec![None; members.count()],
            stalls: false,
            fit: true,
            highest: Ballot::ZERO,
            rehearsal: None,
            ask_at: Time::ZERO,
            asked: 0,
            owner: None,
            departures: Departures::new(options.election_timeout),
            members,
        }
    }

    fn rules(&self) -> Rules {
        planted::rules(self.planted)
    }

    /// The owner of the round that was promised last.
    pub(super) fn owner(&self) -> Option<ReplicaId> {
        self.owner
    }

    /// Whether the owner of the round that was promised last has been silent for half of the time-out, or its machine
    /// refuses this replica. A leader that hands over is heard until another takes its place: heartbeats are at most a
    /// third of the time-out apart.
    pub(super) fn owner_is_silent(&self, now: Time) -> bool {
        let refuses = self.owner.is_some_and(|owner| self.departures.refuses(owner));
        refuses || self.sign.is_none_or(|sign| now.since(sign) >= self.timeout / 2)
    }

    /// Whether the owner of the current round is taken for gone.
    fn owner_is_gone(&self, now: Time) -> bool {
        self.owner.is_some_and(|owner| self.departures.is_gone(now, owner))
    }

    /// When this replica should try to lead, unless it hears of a leader before.
    fn try_at(&self, current: Ballot) -> Time {
        let timeout = self.timeout * 2u32.pow(self.failures.min(DOUBLINGS_MAX));
        let distance = self.next_ballot(current).round - current.round;
        let places = u32::try_from(distance - 1).expect("at most the number of members");
        let silent = self.since + timeout + self.timeout / 2 * places;
        match self.owner.and_then(|owner| self.departures.gone_at(owner)) {
            // A replica whose tries fail waits for the whole time-out again.
            Some(gone_at) if self.failures == 0 => silent.min(gone_at + self.departures.grace() * places),
            _ => silent,
        }
    }

    /// Whether there is a leader, or a replica that tries to lead, that should be left alone.
    fn has_leader(&self, now: Time) -> bool {
        if self.leads {
            return self.reaches_quorum(now) && !self.stalls;
        }
        self.sign.is_some_and(|sign| now.since(sign) < self.timeout) && !self.owner_is_gone(now)
    }
}

impl Election for Rotating {
    /// Called when the replica starts again, or begins to vote, and has promised this ballot before.
    fn restarted(&mut self, promised: Ballot) {
        self.highest = self.highest.max(promised);
        self.owner = Some(promised.replica);
    }

    /// At the first start of a group no replica can have led before, so this one does not wait for a whole time-out.
    fn expect_no_leader(&mut self) {
        self.since = self.since - self.timeout * 3 / 4;
        self.sign = None;
    }

    /// Called when a message of a rehearsal arrives from a member.
    fn receive(&mut self, now: Time, from: ReplicaId, message: &Message, effects: &mut Effects) {
        let Some(index) = self.members.index(from).filter(|&index| index != self.members.my_index()) else {
            return;
        };
        match *message {
            Message::Rehearse { ballot } => {
                let highest = self.highest;
                let willing = self.rules().is_willing(ballot, highest, self.has_leader(now));
                effects.send(from, Message::RehearseReply { ballot, willing, highest }, Lsn::ZERO);
            }
            Message::RehearseReply { ballot, willing, highest } => {
                self.highest = self.highest.max(highest);
                // A leader counts answers to it alone.
                if !self.leads {
                    self.answered[index] = Some(now);
                }
                if let Some(rehearsal) =
                    self.rehearsal.as_mut().filter(|rehearsal| rehearsal.ballot == ballot)
                {
                    rehearsal.willing[index] = willing.then_some(now);
                }
            }
            // These messages are of another election.
            Message::HeartbeatRequest { .. }
            | Message::HeartbeatReply { .. }
            | Message::Ping { .. }
            | Message::Pong { .. }
            | Message::AskTimes { .. }
            | Message::Times { .. }
            | Message::AskReady { .. }
            | Message::Ready { .. } => {}
        }
    }

    fn link(&mut self, now: Time, peer: ReplicaId, link: Link, _: &mut Effects) {
        self.departures.link(now, peer, link);
        if link == Link::Up && self.owner == Some(peer) {
            self.asked = 0;
        }
    }

    fn on_timer(&mut self, _: Time, fit: bool, _: &mut Effects) {
        self.fit = fit;
    }

    /// Called when the leader of the current round gives a sign of life.
    fn heard_leader(&mut self, now: Time) {
        self.since = now;
        self.sign = Some(now);
        self.failures = 0;
        self.rehearsal = None;
    }

    /// Called when this replica promises a ballot, which may be its own: the owner gets a whole time-out to
    /// show that it leads.
    fn promised(&mut self, ballot: Ballot, now: Time) {
        self.since = now;
        self.sign = Some(now);
        self.highest = self.highest.max(ballot);
        self.owner = Some(ballot.replica);
        self.asked = 0;
        self.tries = ballot.replica == self.members.me();
        self.leads = false;
        self.rehearsal = None;
    }

    /// Called when this replica gives up leading, or trying to: it comes last in line, and lets others try at once.
    fn gave_up(&mut self, now: Time) {
        self.since = now;
        self.sign = None;
        self.tries = false;
        self.leads = false;
        self.rehearsal = None;
    }

    /// Called with whether this replica, which leads, decides nothing although it should.
    fn stalls(&mut self, stalls: bool) {
        self.stalls = stalls;
    }

    /// Called when this replica tries to lead.
    fn tried(&mut self) {
        self.failures += 1;
    }

    /// Called when this replica begins to lead: the time to hear from a quorum starts now.
    fn leads(&mut self, now: Time) {
        (self.tries, self.leads) = (false, true);
        self.led_since = now;
        self.stalls = false;
        self.failures = 0;
        self.rehearsal = None;
    }

    /// Called when a member answers this replica. If this replica tries to lead, that is a sign of life of
    /// its round: what a quorum has to tell may be longer than what can be told in a time-out.
    fn answered(&mut self, from: ReplicaId, now: Time) {
        if let Some(index) = self.members.index(from) {
            self.answered[index] = Some(now);
        }
        if self.tries {
            self.since = now;
            self.sign = Some(now);
        }
    }

    fn answers(&self, now: Time, member: ReplicaId) -> bool {
        let answered = self.members.index(member).and_then(|index| self.answered[index]);
        answered.is_some_and(|answered| now.since(answered) <= self.timeout)
    }

    fn reaches_quorum(&self, now: Time) -> bool {
        let recent = |answered: Option<Time>| {
            now.since(answered.unwrap_or_default().max(self.led_since)) <= self.timeout
        };
        let answers = |id| {
            id == self.members.me()
                || self.members.index(id).is_some_and(|index| recent(self.answered[index]))
        };
        self.members.voters().is_quorum(answers)
    }

    /// The lowest ballot of this replica above another.
    fn next_ballot(&self, above: Ballot) -> Ballot {
        let (place, count) = (self.members.my_index() as u64 + 1, self.members.count() as u64);
        Ballot { round: self.rules().next_round(above.round, place, count), replica: self.members.me() }
    }

    /// The ballot in which this replica should try to lead now, if it should: it has waited long enough, and
    /// a quorum is willing. Asks the members that have not said so.
    fn candidacy(&mut self, now: Time, current: Ballot, effects: &mut Effects) -> Option<Ballot> {
        let current = current.max(self.highest);
        if now < self.try_at(current) {
            return None;
        }
        let asks = now >= self.ask_at;
        if asks {
            let pause = self.timeout / REHEARSALS_PER_TIMEOUT;
            let is_gone = self.owner_is_gone(now);
            let short = self.departures.grace() * 2u32.pow(self.asked);
            self.ask_at = now + if is_gone { pause.min(short) } else { pause };
            self.asked = (self.asked + 1).min(PAUSE_DOUBLINGS_MAX);
            if is_gone && let Some(rehearsal) = &mut self.rehearsal {
                // Members that took the leader for gone may have reached it again.
                rehearsal.willing.fill(None);
            }
        }
        if !self.fit {
            self.rehearsal = None;
            return None;
        }
        let ballot = self.next_ballot(current);
        if !ballot.is_in_reach() {
            return None;
        }
        let rehearsal = self.rehearsal.take().filter(|rehearsal| rehearsal.ballot == ballot);
        let rehearsal =
            rehearsal.unwrap_or_else(|| Rehearsal { ballot, willing: vec![None; self.members.count()] });
        let timeout = self.timeout;
        let is_willing =
            |index: usize| rehearsal.willing[index].is_some_and(|said: Time| now.since(said) <= timeout);
        let me = self.members.me();
        let would = |id| id == me || self.members.index(id).is_some_and(is_willing);
        if self.rules().may_try(self.members.voters(), &would) {
            return Some(ballot);
        }
        if asks {
            let unwilling =
                |&peer: &ReplicaId| self.members.index(peer).is_some_and(|index| !is_willing(index));
            let peers = self.members.peers().filter(unwilling);
            effects.send_each(peers, Message::Rehearse { ballot }, Lsn::ZERO);
        }
        self.rehearsal = Some(rehearsal);
        None
    }

    fn advice(&self, now: Time) -> Advice {
        if self.reaches_quorum(now) { Advice::Stay } else { Advice::Yield }
    }

    /// When [`Rotating::candidacy`] should be asked.
    fn deadline(&self, current: Ballot) -> Time {
        self.try_at(current.max(self.highest)).max(self.ask_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Effect, ElectionKind};

    fn election_of(members: u64, me: u64) -> Rotating {
        let members = Members::new((1..=members).map(ReplicaId), ReplicaId(me));
        let options = Options { election: ElectionKind::Rotating, election_timeout: T, ..Options::default() };
        Rotating::new(&options, members, Time::ZERO)
    }

    fn election(me: u64) -> Rotating {
        election_of(3, me)
    }

    const T: Duration = Duration::from_millis(1000);
    const R1_LED: Ballot = Ballot { round: 1, replica: ReplicaId(1) };

    /// The questions and answers in these effects.
    fn said(effects: &mut Effects) -> Vec<(u64, Message)> {
        let messages = |effect| match effect {
            Effect::Send { to, message: crate::Message::Election(message), .. } => {
                to.ids().iter().map(|to| (to.0, message.clone())).collect::<Vec<_>>()
            }
            other => panic!("an election only sends messages of its own: {other:?}"),
        };
        effects.drain().flat_map(messages).collect()
    }

    /// Whether a member is willing to let another try now.
    fn is_willing(election: &mut Rotating, now: Time, asker: u64, round: u64) -> bool {
        let mut effects = Effects::new(Lsn::ZERO);
        let ballot = Ballot { round, replica: ReplicaId(asker) };
        election.receive(now, ReplicaId(asker), &Message::Rehearse { ballot }, &mut effects);
        match said(&mut effects)[..] {
            [(to, Message::RehearseReply { ballot: about, willing, .. })] => {
                assert_eq!((to, about), (asker, ballot));
                willing
            }
            ref other => panic!("{other:?}"),
        }
    }

    fn reply(election: &mut Rotating, now: Time, from: u64, ballot: Ballot, willing: bool, highest: Ballot) {
        let reply = Message::RehearseReply { ballot, willing, highest };
        election.receive(now, ReplicaId(from), &reply, &mut Effects::new(Lsn::ZERO));
    }

    #[test]
    fn every_round_has_one_owner() {
        for round in 0..20 {
            let above = Ballot { round, replica: ReplicaId(1) };
            let mut next: Vec<u64> = (1..=3).map(|me| election(me).next_ballot(above).round).collect();
            next.sort_unstable();
            assert_eq!(next, [round + 1, round + 2, round + 3]);
        }
    }

    #[test]
    fn the_next_in_line_tries_first() {
        let at = |me| election(me).try_at(R1_LED);
        assert_eq!(at(2), Time::ZERO + T);
        assert_eq!(at(3), Time::ZERO + T * 3 / 2);
        assert_eq!(at(1), Time::ZERO + T * 2, "the silent leader itself comes last");
    }

    #[test]
    fn failed_tries_make_time_outs_grow_up_to_a_bound_until_a_leader_is_heard() {
        let mut election = election(2);
        election.tried();
        assert_eq!(election.try_at(R1_LED), Time::ZERO + T * 2);
        for _ in 0..10 {
            election.tried();
        }
        assert_eq!(election.try_at(R1_LED), Time::ZERO + T * 4);
        election.heard_leader(Time::ZERO);
        assert_eq!(election.try_at(R1_LED), Time::ZERO + T);
    }

    #[test]
    fn a_replica_that_tries_gets_time_with_each_answer() {
        let t = |percent: u32| Time::ZERO + T * percent / 100;
        let mut two = election(2);
        let ballot = Ballot { round: 2, replica: ReplicaId(2) };
        two.tried();
        two.promised(ballot, t(100));
        assert_eq!(two.try_at(ballot), t(400), "twice its time-out, and two places after itself");
        two.answered(ReplicaId(1), t(390));
        assert_eq!(two.try_at(ballot), t(690));
        assert!(!is_willing(&mut two, t(489), 3, 3) && is_willing(&mut two, t(490), 3, 3), "it tries itself");
        // This does not concern a replica that leads, or that promised another.
        for round in [3, 6] {
            let other = Ballot { round, replica: ReplicaId(3) };
            two.promised(other, t(500));
            two.answered(ReplicaId(1), t(590));
            assert!(is_willing(&mut two, t(600), 1, 7));
        }
    }

    #[test]
    fn a_leader_notices_that_it_is_alone() {
        let mut election = election(1);
        election.leads(Time::ZERO);
        let later = Time::ZERO + T + Duration::from_millis(1);
        assert!(!election.reaches_quorum(later));
        election.answered(ReplicaId(3), later);
        assert!(election.reaches_quorum(later));
    }

    #[test]
    fn it_tries_only_when_a_quorum_is_willing_and_asks_the_others_again() {
        let mut five = election_of(5, 2);
        let mut effects = Effects::new(Lsn::ZERO);
        let early = Time::ZERO + T / 2;
        assert_eq!(five.candidacy(early, R1_LED, &mut effects), None);
        assert_eq!(said(&mut effects), [], "its time-out is not over");

        let due = five.deadline(R1_LED);
        assert_eq!(due, Time::ZERO + T);
        assert_eq!(five.candidacy(due, R1_LED, &mut effects), None);
        let ballot = Ballot { round: 2, replica: ReplicaId(2) };
        let asked =
            |whom: &[u64]| whom.iter().map(|&to| (to, Message::Rehearse { ballot })).collect::<Vec<_>>();
        assert_eq!(said(&mut effects), asked(&[1, 3, 4, 5]));
        reply(&mut five, due, 3, ballot, true, Ballot::ZERO);
        reply(&mut five, due, 4, ballot, false, R1_LED);
        assert_eq!(five.candidacy(due, R1_LED, &mut effects), None, "two of five, with itself");
        assert_eq!(said(&mut effects), [], "it asked a moment ago");

        let again = five.deadline(R1_LED);
        assert_eq!(again, due + T / 4);
        assert_eq!(five.candidacy(again, R1_LED, &mut effects), None);
        assert_eq!(said(&mut effects), asked(&[1, 4, 5]));
        reply(&mut five, again, 5, ballot, true, Ballot::ZERO);
        assert_eq!(five.candidacy(again, R1_LED, &mut effects), Some(ballot));
    }

    #[test]
    fn where_no_round_is_left_nobody_tries() {
        let mut effects = Effects::new(Lsn::ZERO);
        let mut two = election(2);
        let due = two.deadline(R1_LED);
        reply(
            &mut two,
            due,
            3,
            Ballot { round: 2, replica: ReplicaId(2) },
            false,
            Ballot { round: Ballot::ROUND_MAX, ..R1_LED },
        );
        for wait in 0..20 {
            assert_eq!(two.candidacy(due + T * wait, R1_LED, &mut effects), None);
        }
        assert!(said(&mut effects).is_empty(), "it asks in no ballot that others would not read");
    }

    #[test]
    fn what_was_said_of_another_ballot_or_long_ago_or_before_a_leader_was_heard_does_not_count() {
        let mut effects = Effects::new(Lsn::ZERO);
        let mut two = election(2);
        let due = two.deadline(R1_LED);
        let ballot = Ballot { round: 2, replica: ReplicaId(2) };
        assert_eq!(two.candidacy(due, R1_LED, &mut effects), None);
        reply(&mut two, due, 3, Ballot { round: 5, ..ballot }, true, Ballot::ZERO);
        assert_eq!(two.candidacy(due, R1_LED, &mut effects), None, "of another ballot");
        reply(&mut two, due, 3, ballot, true, Ballot::ZERO);
        let late = due + T + Duration::from_millis(1);
        assert_eq!(two.clone().candidacy(late, R1_LED, &mut effects), None, "long ago");
        two.heard_leader(due);
        assert_eq!(two.candidacy(due, R1_LED, &mut effects), None, "there is a leader");
        assert_eq!(two.candidacy(due + T, R1_LED, &mut effects), None, "it was asked before that");
    }

    #[test]
    fn a_member_is_willing_unless_it_knows_of_a_leader() {
        let t = |percent: u32| Time::ZERO + T * percent / 100;
        let mut follower = election(3);
        assert!(!is_willing(&mut follower, t(99), 2, 2), "a leader may have been heard before the start");
        assert!(is_willing(&mut follower, t(100), 2, 2));
        follower.heard_leader(t(100));
        assert!(!is_willing(&mut follower, t(199), 2, 2));
        assert!(is_willing(&mut follower, t(200), 2, 2));
        follower.promised(Ballot { round: 5, replica: ReplicaId(2) }, t(200));
        assert!(!is_willing(&mut follower, t(299), 1, 7), "somebody tries");
        assert!(is_willing(&mut follower, t(300), 1, 7));
        assert!(!is_willing(&mut follower, t(300), 1, 4), "it has promised more");

        let mut leader = election(1);
        leader.promised(Ballot { round: 4, replica: ReplicaId(1) }, t(100));
        leader.leads(t(100));
        leader.answered(ReplicaId(3), t(300));
        assert!(!is_willing(&mut leader, t(400), 2, 5), "it leads");
        assert!(is_willing(&mut leader, t(401), 2, 5), "nobody answers it");
        leader.answered(ReplicaId(3), t(401));
        assert!(!is_willing(&mut leader, t(401), 2, 5));
        leader.stalls(true);
        assert!(is_willing(&mut leader, t(401), 2, 5), "it decides nothing");
        leader.stalls(false);
        leader.gave_up(t(401));
        assert!(is_willing(&mut leader, t(401), 2, 5));

        let mut first = election(3);
        first.expect_no_leader();
        assert!(is_willing(&mut first, t(0), 1, 1), "nobody can have led");
    }

    #[test]
    fn a_leader_whose_process_has_ended_is_replaced_without_waiting_for_its_silence() {
        let t = |ms| Time::ZERO + Duration::from_millis(ms);
        let mut effects = Effects::new(Lsn::ZERO);
        let [mut two, mut three] = [2, 3].map(|me| {
            let mut follower = election(me);
            follower.promised(R1_LED, t(100));
            follower.heard_leader(t(200));
            follower.link(t(210), ReplicaId(1), Link::Refused, &mut Effects::new(Lsn::ZERO));
            // The leader had said that before.
            follower.heard_leader(t(211));
            follower
        });
        assert_eq!((two.deadline(R1_LED), three.deadline(R1_LED)), (t(235), t(260)));
        assert!(!is_willing(&mut three, t(234), 2, 2) && is_willing(&mut three, t(235), 2, 2));

        assert_eq!(two.candidacy(t(235), R1_LED, &mut effects), None);
        assert_eq!(said(&mut effects).len(), 2);
        let mut asked_at = vec![235];
        for _ in 0..5 {
            let again = two.deadline(R1_LED);
            assert_eq!(two.candidacy(again, R1_LED, &mut effects), None);
            asked_at.push(again.as_nanos() / 1_000_000);
        }
        assert_eq!(asked_at, [235, 260, 310, 410, 610, 860], "less and less often");
        let ballot = Ballot { round: 2, replica: ReplicaId(2) };
        reply(&mut two, t(861), 3, ballot, true, Ballot::ZERO);
        assert_eq!(two.candidacy(t(861), R1_LED, &mut effects), Some(ballot));

        three.link(t(236), ReplicaId(1), Link::Up, &mut Effects::new(Lsn::ZERO));
        assert!(!is_willing(&mut three, t(300), 2, 2), "it is back");
        assert_eq!(three.deadline(R1_LED), t(211) + T * 3 / 2);
    }

    #[test]
    fn only_the_departure_of_the_one_that_leads_counts() {
        let mut three = election(3);
        three.promised(R1_LED, Time::ZERO);
        three.link(Time::ZERO, ReplicaId(2), Link::Refused, &mut Effects::new(Lsn::ZERO));
        assert_eq!(three.deadline(R1_LED), Time::ZERO + T * 3 / 2);
        assert!(!is_willing(&mut three, Time::ZERO + T / 2, 2, 2));
    }

    #[test]
    fn a_replica_that_comes_back_learns_how_high_ballots_are() {
        let mut effects = Effects::new(Lsn::ZERO);
        let mut two = election(2);
        let due = two.deadline(R1_LED);
        assert_eq!(two.candidacy(due, R1_LED, &mut effects), None);
        reply(
            &mut two,
            due,
            3,
            Ballot { round: 2, replica: ReplicaId(2) },
            false,
            Ballot { round: 7, replica: ReplicaId(1) },
        );
        effects.drain();
        let again = two.deadline(R1_LED);
        assert_eq!(two.candidacy(again, R1_LED, &mut effects), None);
        let ballot = Ballot { round: 8, replica: ReplicaId(2) };
        assert_eq!(
            said(&mut effects),
            [(1, Message::Rehearse { ballot }), (3, Message::Rehearse { ballot })]
        );
    }

    #[test]
    fn a_member_whose_disk_does_not_answer_does_not_try() {
        let mut effects = Effects::new(Lsn::ZERO);
        let mut two = election(2);
        let due = two.deadline(R1_LED);
        two.on_timer(Time::ZERO, false, &mut Effects::new(Lsn::ZERO));
        assert_eq!(two.candidacy(due, R1_LED, &mut effects), None);
        assert_eq!(said(&mut effects), []);
        assert!(two.deadline(R1_LED) > due, "it is not asked again at the same instant");
        two.on_timer(Time::ZERO, true, &mut Effects::new(Lsn::ZERO));
        assert_eq!(two.candidacy(two.deadline(R1_LED), R1_LED, &mut effects), None);
        assert_eq!(said(&mut effects).len(), 2);
    }
}

//! How Raft finds a leader: randomized time-outs, rehearsed and real votes, and handing leadership over.
//!
//! A replica that hears no leader for a time drawn from [T, 2T) first **rehearses** an election (PreVote,
//! Ongaro 2014, section 9.6): it asks which voters would vote for it. That changes nothing. A voter gives its
//! vote, rehearsed or real, only if it has not heard a leader for T itself, so a replica that was cut off or
//! removed disturbs no other; and a leader that does not hear from a quorum within T steps down
//! (`leader.rs`), so that such votes can always be had once the leader is gone. The exception is an election
//! that the leader asked for ([`Message::TimeoutNow`]).
//!
//! If the leader's process has ended ([`Departures`]), the voters do not wait for the rest of T: they
//! rehearse one after the other, the next after the leader first, T / 4 apart, so that votes are not split.
//! That happens once. If no leader comes of it, the voters wait as if nothing were known.

use std::time::Duration;

use synod_wire::{Ballot, Lsn, ReplicaId, Slot, Time};

use super::{Message, Raft, State, log::Position};
use crate::{Effects, Link, departures::Departures, resend::Resend};

/// When a replica that hears no leader tries to lead.
#[derive(Clone, Debug)]
pub(super) struct ElectionTimer {
    timeout: Duration,
    /// The state of a generator of pseudo-random numbers (splitmix64).
    random: u64,
    ends_at: Time,
    /// When a leader of the current term gave its last sign of life.
    heard: Option<Time>,
    /// The leader that gave it.
    leader: Option<ReplicaId>,
    /// The highest priority of a voter, as the last leader said.
    priority_max: u8,
    /// Failed campaigns of this replica since it last heard a leader.
    failures: u32,
    departures: Departures,
    /// The time-out ends at this time already, since the leader's process has ended.
    hastened_to: Option<Time>,
    /// The leader whose departure made a time-out end sooner, until the leader is back.
    missed: Option<ReplicaId>,
}

/// If the leader is gone, each voter leaves this part of the time-out to the voter before it.
const TURNS_PER_TIMEOUT: u32 = 4;
/// After this many failed campaigns the span that time-outs are drawn from grows no more: it is then 2^2
/// times the usual one.
const DOUBLINGS_MAX: u32 = 2;

impl ElectionTimer {
    pub(super) fn new(timeout: Duration, seed: u64) -> ElectionTimer {
        ElectionTimer {
            timeout,
            random: seed,
            ends_at: Time::NEVER,
            heard: None,
            leader: None,
            priority_max: 0,
            failures: 0,
            departures: Departures::new(timeout),
            hastened_to: None,
            missed: None,
        }
    }

    /// Records what happened to the session to a peer. If that peer leads, `rank` voters come before
    /// this replica.
    pub(super) fn link(&mut self, now: Time, peer: ReplicaId, link: Link, priority: u8, rank: u32) {
        self.departures.link(now, peer, link);
        if link == Link::Up && self.missed == Some(peer) {
            self.missed = None;
        }
        if self.leader == Some(peer) {
            self.hasten(priority, rank);
        }
    }

    /// Whether a peer refuses connections.
    pub(super) fn is_refused_by(&self, peer: ReplicaId) -> bool {
        self.departures.refuses(peer)
    }

    /// Makes the time-out end soon if the leader is gone, or will be once the grace period is over; only once.
    fn hasten(&mut self, priority: u8, rank: u32) {
        let leader = self.leader.filter(|_| self.missed != self.leader);
        let gone_at = leader.and_then(|leader| self.departures.gone_at(leader));
        self.hastened_to = gone_at.map(|gone_at| {
            let (base, _) = self.span(priority);
            let turn = self.timeout / TURNS_PER_TIMEOUT * rank;
            gone_at + (base - self.timeout) + turn
        });
    }

    pub(super) fn ends_at(&self) -> Time {
        self.hastened_to.map_or(self.ends_at, |soon| soon.min(self.ends_at))
    }

    pub(super) fn priority_max(&self) -> u8 {
        self.priority_max
    }

    pub(super) fn set_priority_max(&mut self, priority: u8) {
        self.priority_max = priority;
    }

    /// Begins a new time-out. Where priorities are set, the replicas of the highest priority draw from the
    /// first half of [T, 2T), the others from a span of the same length that begins later, the later the
    /// lower their priority. After failed campaigns the span is longer: where messages take long, candidates
    /// that begin within half a round trip of each other split the votes.
    pub(super) fn begin(&mut self, now: Time, priority: u8) {
        let (base, span) = self.span(priority);
        let span = span * 2u32.pow(self.failures.min(DOUBLINGS_MAX));
        self.ends_at = now + base + self.drawn_from(span);
    }

    /// The shortest length of a time-out, and how far its end is spread from there.
    fn span(&self, priority: u8) -> (Duration, Duration) {
        let missing = u32::from(self.priority_max.saturating_sub(priority));
        match self.priority_max {
            0 => (self.timeout, self.timeout),
            max => (self.timeout + self.timeout / 2 * missing / u32::from(max), self.timeout / 2),
        }
    }

    /// Records that a campaign failed.
    pub(super) fn failed(&mut self) {
        self.failures += 1;
    }

    /// Shortens the first time-out of a new group, in which no replica can have led before. Where priorities
    /// are set, the replicas of the highest priority draw from the second quarter of it, and the others end
    /// theirs no sooner than the sixth eighth.
    pub(super) fn begin_early(&mut self, now: Time, priority: u8) {
        let (quarter, eighth) = (self.timeout / 4, self.timeout / 8);
        let missing = u32::from(self.priority_max.saturating_sub(priority));
        let (base, span) = match self.priority_max {
            0 => (quarter, 2 * quarter),
            _ if missing == 0 => (quarter, quarter),
            max => (5 * eighth + eighth * missing / u32::from(max), quarter),
        };
        self.ends_at = now + base + self.drawn_from(span);
    }

    fn drawn_from(&mut self, span: Duration) -> Duration {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        let span = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX).max(1);
        Duration::from_nanos(z % span)
    }

    /// Records that the leader of the term gave a sign of life.
    pub(super) fn heard_leader(&mut self, now: Time, leader: ReplicaId, priority: u8, rank: u32) {
        // Drawing for each message would be a waste: the end is drawn again once it has come nearer.
        if self.heard != Some(now) {
            (self.heard, self.leader) = (Some(now), Some(leader));
            self.failures = 0;
            self.begin(now, priority);
            // The leader may have said that before its process ended.
            self.hasten(priority, rank);
        }
    }

    /// Records that the time-out has ended. If it did so early, the leader may still turn out to live.
    fn has_ended(&mut self, now: Time) {
        if now < self.ends_at {
            (self.missed, self.hastened_to) = (self.leader, None);
        } else {
            self.leader_is_gone();
        }
    }

    pub(super) fn leader_is_gone(&mut self) {
        (self.heard, self.leader, self.hastened_to) = (None, None, None);
    }

    /// Whether a leader is known to live.
    pub(super) fn has_leader(&self, now: Time) -> bool {
        let is_gone = self.leader.is_some_and(|leader| self.departures.is_gone(now, leader));
        self.heard.is_some_and(|heard| now.since(heard) < self.timeout) && !is_gone
    }
}

/// A replica that asks for votes.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    /// The term in which it wants to lead.
    pub(super) term: u64,
    pub(super) rehearsal: bool,
    /// Whether the leader asked for this election.
    pub(super) transfer: bool,
    pub(super) granted: Vec<ReplicaId>,
    resend: Resend,
    /// The number of the question that it asked last by gossip.
    pub(super) attempt: u64,
}

impl Candidate {
    pub(super) fn resend_at(&self) -> Time {
        self.resend.at()
    }
}

impl Raft {
    /// Prepares for the first election of a group, or of an epoch. A replica that is the only voter has no
    /// other to wait for, however often it was elected before.
    pub(super) fn expect_no_leader(&mut self, now: Time, effects: &mut Effects) {
        let me = self.members.me();
        if self.voters().is_quorum(|id| id == me) {
            return self.campaign(now, false, false, effects);
        }
        if self.term == 0 {
            if self.may_stand() {
                self.election_timer.set_priority_max(self.options.priority);
            }
            self.election_timer.begin_early(now, self.options.priority);
            self.tell_priority(&self.acquaintances(), effects);
        } else {
            self.election_timer.begin(now, self.options.priority);
        }
    }

    /// Tells the peers this replica's priority, if it has one, before there is a leader that tells all
    /// replicas the highest.
    pub(super) fn tell_priority(&self, peers: &[ReplicaId], effects: &mut Effects) {
        let priority = self.options.priority;
        if self.term == 0 && priority > 0 && self.may_stand() && !matches!(self.state, State::Recovering) {
            effects.send_each(peers.iter().copied(), Message::Priority { priority }, Lsn::ZERO);
        }
    }

    /// Handles the message of a replica that says, before there is a leader, that it should come first.
    pub(super) fn handle_priority(&mut self, now: Time, from: ReplicaId, priority: u8) {
        if self.term == 0 && self.voters().contains(from) && priority > self.election_timer.priority_max() {
            self.election_timer.set_priority_max(priority);
            // A rehearsal ends here, too: it has had no effect yet.
            self.state = State::Follower;
            self.election_timer.begin_early(now, self.options.priority);
        }
    }

    /// Acts when the time-out has passed without a leader, or without enough votes.
    pub(super) fn time_out(&mut self, now: Time, effects: &mut Effects) {
        self.election_timer.has_ended(now);
        if !self.may_stand() {
            // The leader may not know that this replica listens.
            self.state = State::Follower;
            self.election_timer.begin(now, self.options.priority);
            return self.send_to(self.acquaintances(), Message::Follow, Lsn::ZERO, effects);
        }
        if !self.disk.answers(now, self.options.election_timeout) {
            // This replica could tell no other of a vote that does not become durable.
            return self.election_timer.begin(now, self.options.priority);
        }
        if matches!(self.state, State::Candidate(_)) {
            self.election_timer.failed();
            // The last campaign failed: the voters may have changed, so that this replica is not among them any more.
            self.send_to(self.acquaintances(), Message::Follow, Lsn::ZERO, effects);
        }
        self.campaign(now, true, false, effects);
    }

    /// Records what happened to the session to a peer.
    pub(super) fn link(&mut self, now: Time, peer: ReplicaId, link: Link, effects: &mut Effects) {
        if let Some(mover) = &mut self.mover {
            mover.link(now, peer, link, effects);
        }
        let priority = self.options.priority;
        self.election_timer.link(now, peer, link, priority, self.rank_after(peer));
        if link == Link::Up && self.rehearses() && self.election_timer.has_leader(now) {
            self.state = State::Follower;
            self.election_timer.begin(now, priority);
        }
    }

    /// How many voters come between a leader and this replica, in the order of their numbers, where the first
    /// follows the last.
    pub(super) fn rank_after(&self, leader: ReplicaId) -> u32 {
        let me = self.members.me();
        let in_front = |&id: &ReplicaId| match me > leader {
            true => id > leader && id < me,
            false => id > leader || id < me,
        };
        let between = self.voters().all().into_iter().filter(in_front).count();
        u32::try_from(between).expect("a group is small")
    }

    /// Asks for votes, in a rehearsal or in a real election.
    pub(super) fn campaign(&mut self, now: Time, rehearsal: bool, transfer: bool, effects: &mut Effects) {
        if !self.may_stand() {
            self.state = State::Follower;
            return self.election_timer.begin(now, self.options.priority);
        }
        let term = self.term + 1;
        if !rehearsal {
            self.enter_term(now, term, Some(self.members.me()), effects);
            if let Some(mover) = &mut self.mover {
                let leader = self.reported.view.leader.filter(|_| transfer);
                mover.tries(now, Ballot { round: term, replica: self.members.me() }, leader);
            }
        }
        self.election_timer.begin(now, self.options.priority);
        let resend = Resend::first(now, self.options.retransmit_after);
        let granted = vec![self.members.me()];
        self.state = State::Candidate(Candidate { term, rehearsal, transfer, granted, resend, attempt: 0 });
        self.ask_for_votes(effects);
        self.count_votes(now, effects);
    }

    /// Whether this replica asks which voters would vote for it, which changes nothing yet.
    pub(super) fn rehearses(&self) -> bool {
        matches!(&self.state, State::Candidate(candidate) if candidate.rehearsal)
    }

    fn vote_question(&self) -> Option<Message> {
        let State::Candidate(candidate) = &self.state else { return None };
        Some(Message::Vote {
            term: candidate.term,
            rehearsal: candidate.rehearsal,
            transfer: candidate.transfer,
            last: self.log.last(),
            last_ballot: self.log.last_ballot(),
        })
    }

    /// Asks the voters that have not granted their vote. The question contains this replica's term, vote and log.
    fn ask_for_votes(&mut self, effects: &mut Effects) {
        let State::Candidate(candidate) = &self.state else { return };
        let Some(question) = self.vote_question() else { return };
        let mut missing = self.voters().all();
        missing.retain(|id| !candidate.granted.contains(id));
        self.send_to(missing, question, self.vote_lsn(), effects);
        if self.options.raft.vote_gossip {
            self.ask_by_gossip(effects);
        }
    }

    /// The record that has to be durable before a message about a vote leaves: the one of the term, with the vote.
    pub(super) fn vote_lsn(&self) -> Lsn {
        self.rules().vote_rests_on(self.term_lsn)
    }

    pub(super) fn resend_votes(&mut self, now: Time, effects: &mut Effects) {
        let wait_max = self.options.election_timeout;
        let me = self.members.me();
        let State::Candidate(candidate) = &mut self.state else { return };
        if candidate.resend.is_due(now, wait_max) {
            if candidate.rehearsal {
                // The voters that had no leader for a moment may have one again.
                candidate.granted = vec![me];
            }
            self.ask_for_votes(effects);
        }
    }

    /// Asks a voter again when a session to it begins, since the question may be lost.
    pub(super) fn resend_vote_to(&self, peer: ReplicaId, effects: &mut Effects) {
        if let Some(question) = self.vote_question()
            && self.voters().contains(peer)
        {
            effects.send(peer, question, self.vote_lsn());
        }
    }

    pub(super) fn handle_vote(
        &mut self,
        now: Time,
        from: ReplicaId,
        question: &Message,
        effects: &mut Effects,
    ) {
        let &Message::Vote { term, rehearsal, .. } = question else { return };
        let Some(granted) = self.decide_vote(now, from, question, effects) else { return };
        let after = self.vote_lsn();
        let term = if rehearsal && !granted { self.term } else { term };
        effects.send(from, Message::VoteReply { term, rehearsal, granted }, after);
    }

    /// Whether this replica votes for a candidate, or would; `None` if it does not answer, or has told that its term is
    /// higher.
    pub(super) fn decide_vote(
        &mut self,
        now: Time,
        from: ReplicaId,
        question: &Message,
        effects: &mut Effects,
    ) -> Option<bool> {
        self.hears_of_rehearsal(now, question, from);
        let &Message::Vote { term, rehearsal, transfer, last, last_ballot } = question else { return None };
        let leads = matches!(&self.state, State::Leader(leader) if !leader.stalls);
        if !transfer && term > self.term && (leads || self.election_timer.has_leader(now)) {
            // The leader is well. The missing answer makes the asker wait.
            return None;
        }
        let own = Position { slot: self.log.last(), ballot: self.log.last_ballot() };
        let up_to_date = self.rules().is_up_to_date(Position { slot: last, ballot: last_ballot }, own);
        if rehearsal {
            // This replica could tell no other of a vote that does not become durable.
            let answers = self.disk.answers(now, self.options.election_timeout);
            return Some(term > self.term && up_to_date && answers);
        }
        if term < self.term {
            effects.send(from, Message::Stale { term: self.term }, self.term_lsn);
            return None;
        }
        let mut granted = up_to_date;
        if term > self.term {
            let vote = Some(from).filter(|_| granted);
            self.enter_term(now, term, vote, effects);
        } else {
            let leads = matches!(self.state, State::Leader(_));
            granted &= self.rules().may_vote(self.voted_for, from, leads);
            if granted && self.voted_for != Some(from) {
                self.set_term(term, Some(from), effects);
            }
        }
        if granted {
            self.election_timer.begin(now, self.options.priority);
        }
        Some(granted)
    }

    pub(super) fn handle_vote_reply(
        &mut self,
        now: Time,
        from: ReplicaId,
        term: u64,
        rehearsal: bool,
        granted: bool,
        effects: &mut Effects,
    ) {
        if !granted && term > self.term {
            return self.enter_term(now, term, None, effects);
        }
        let rules = self.rules();
        let State::Candidate(candidate) = &mut self.state else { return };
        if term != candidate.term || rehearsal != candidate.rehearsal || !granted {
            return;
        }
        if rules.counts_vote(&candidate.granted, from) {
            candidate.granted.push(from);
            self.count_votes(now, effects);
        }
    }

    /// Goes on from the rehearsal to the election, and from there to leadership, if there are enough votes.
    pub(super) fn count_votes(&mut self, now: Time, effects: &mut Effects) {
        let State::Candidate(candidate) = &self.state else { return };
        if !candidate.rehearsal && self.durable < self.term_lsn {
            // The vote for itself counts like any other, once it is durable.
            return;
        }
        if !self.rules().elects(self.voters(), &candidate.granted) {
            return;
        }
        if candidate.rehearsal {
            self.campaign(now, false, false, effects);
        } else {
            self.lead(now, effects);
        }
    }

    /// Ends a campaign when this replica has learned from a peer what the leader of a term decided: if it is
    /// a candidate in that term, it has lost. Its votes must not count any longer: that leader may have
    /// changed the voters, and voters that are new since then have not voted in this term.
    pub(super) fn heed_winner(&mut self, now: Time, decided_in: Ballot, effects: &mut Effects) {
        let lost = match &self.state {
            State::Candidate(candidate) => !candidate.rehearsal && candidate.term == decided_in.round,
            _ => false,
        };
        if lost {
            self.step_down(now, effects);
        }
    }

    /// Handles the message of a leader that is well and wants this replica to lead.
    pub(super) fn handle_timeout_now(
        &mut self,
        now: Time,
        from: ReplicaId,
        ballot: Ballot,
        effects: &mut Effects,
    ) {
        let current = ballot.replica == from && ballot.round == self.term;
        if current && matches!(self.state, State::Follower | State::Candidate(_)) {
            self.campaign(now, false, true, effects);
        }
    }

    /// Handles the message of a replica that does not vote, or no longer, and wants to be told what is decided.
    pub(super) fn handle_follow(&mut self, now: Time, from: ReplicaId, effects: &mut Effects) {
        let last: Slot = self.log.last();
        let State::Leader(leader) = &mut self.state else { return };
        if leader.track_learner(from, last, now) {
            self.resend_to(from, effects);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: Duration = Duration::from_millis(1000);

    fn drawn_by(
        begin: fn(&mut ElectionTimer, Time, u8),
        priority_max: u8,
        priority: u8,
    ) -> impl Iterator<Item = Duration> {
        let mut timer = ElectionTimer::new(T, 7);
        timer.set_priority_max(priority_max);
        (0..1000).map(move |_| {
            begin(&mut timer, Time::ZERO, priority);
            timer.ends_at().since(Time::ZERO)
        })
    }

    fn drawn(priority_max: u8, priority: u8) -> Vec<Duration> {
        drawn_by(ElectionTimer::begin, priority_max, priority).collect()
    }

    #[test]
    fn after_failures_time_outs_are_spread_further_up_to_a_bound_until_a_leader_is_heard() {
        let mut timer = ElectionTimer::new(T, 7);
        (0..10).for_each(|_| timer.failed());
        let drawn = |timer: &mut ElectionTimer| {
            (0..1000)
                .map(|_| {
                    timer.begin(Time::ZERO, 0);
                    timer.ends_at().since(Time::ZERO)
                })
                .max()
        };
        let longest = drawn(&mut timer).expect("a thousand");
        assert!((T * 48 / 10..T * 5).contains(&longest), "{longest:?}");
        timer.heard_leader(Time::ZERO, ReplicaId(1), 0, 0);
        assert!(drawn(&mut timer).expect("a thousand") < T * 2);
    }

    #[test]
    fn a_leader_whose_process_has_ended_is_replaced_without_waiting_for_its_silence() {
        let leader = ReplicaId(1);
        let t = |ms| Time::ZERO + Duration::from_millis(ms);
        for (rank, turn) in [(0, 0), (1, 250), (2, 500)] {
            let mut timer = ElectionTimer::new(T, 7);
            timer.heard_leader(t(100), leader, 0, rank);
            let silent = timer.ends_at();
            timer.link(t(120), ReplicaId(2), Link::Refused, 0, 9);
            assert_eq!(timer.ends_at(), silent, "another one");
            timer.link(t(120), leader, Link::Refused, 0, rank);
            assert!(timer.has_leader(t(144)) && !timer.has_leader(t(145)));
            timer.link(t(150), leader, Link::Up, 0, rank);
            assert!(timer.has_leader(t(151)) && timer.ends_at() == silent, "it is back");
            timer.link(t(200), leader, Link::Refused, 0, rank);
            // The leader had said that before.
            timer.heard_leader(t(201), leader, 0, rank);
            let end = t(225 + turn);
            assert_eq!(timer.ends_at(), end);
            timer.has_ended(end);
            timer.begin(end, 0);
            assert!(!timer.has_leader(end) && timer.ends_at() >= end + T, "once");
            timer.link(end, leader, Link::Up, 0, rank);
            assert!(timer.has_leader(end), "it lives, and was heard not long ago");
        }
    }

    #[test]
    fn time_outs_are_spread_over_t_to_2t() {
        let drawn = drawn(0, 0);
        assert!(drawn.iter().all(|wait| (T..T * 2).contains(wait)));
        assert!(drawn.iter().any(|wait| *wait < T * 11 / 10) && drawn.iter().any(|wait| *wait > T * 19 / 10));
    }

    #[test]
    fn the_highest_priority_tries_first() {
        let first = drawn(9, 9).into_iter().max().unwrap();
        let last = drawn(9, 0).into_iter().min().unwrap();
        assert!(first < last, "{first:?} {last:?}");
        assert!(drawn(9, 0).iter().chain(&drawn(9, 5)).all(|wait| (T..T * 2).contains(wait)));
    }

    #[test]
    fn in_the_first_election_no_other_comes_near_the_highest_priority() {
        let early = |max, own| drawn_by(ElectionTimer::begin_early, max, own);
        for max in [1, 2, 255] {
            let last = early(max, max).max().unwrap();
            let others = early(max, max - 1).chain(early(max, 0));
            assert!(others.min().unwrap() >= last + T / 8);
            assert!(early(max, 0).all(|wait| wait <= T));
        }
        // Of two replicas that draw the same, the one with the lower priority waits longer.
        assert!(early(3, 0).zip(early(3, 1)).all(|(lower, higher)| lower > higher));
        assert!(early(3, 1).zip(early(3, 2)).all(|(lower, higher)| lower > higher));
        assert!(early(0, 0).all(|wait| (T / 4..T * 3 / 4).contains(&wait)));
    }
}

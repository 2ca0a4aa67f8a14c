//! Ballot leader election: replicas ask each other in rounds of heartbeats which leader they follow, and
//! elect only a replica that is connected to a quorum (Ng 2020, section 2.4.1 and Algorithm 3, with the
//! corrections E3 to E9 of its errata).
//!
//! A replica is *happy* with a leader that it hears and that has a quorum; one that is connected to a quorum, is not
//! happy and has no happy neighbour *bids*, and the highest bid leads. The lowest eight bits of a ballot's round are
//! the priority of its owner, the rest is the counter.
//!
//! `docs/elections.md` has the rules, what differs from the source, and the argument that some replica leads and stays.

use synod_wire::{Ballot, Incarnation, Lsn, ReplicaId, Slot, Time};

use super::{
    Advice, Election, Message, planted,
    round_trips::RoundTrips,
    rules::{Rules, Said},
};
use crate::{Bug, Effects, Link, Members, Options, ReplicaSet, departures::Departures};

use std::time::Duration;

/// A bid must be this many rounds old. Replicas that miss the same leader bid within one round of each other,
/// since they asked it within one round; the request that is sent at the end of that round sees all their bids.
const BID_ROUNDS: u64 = 2;
/// After this many rounds without a happy replica, the bids that were made at once are seen.
const SEEN_ROUNDS: u64 = BID_ROUNDS + 2;
/// This many rounds are short once the leader is gone: enough for bids that are made, seen and tried, twice.
const SHORT_ROUNDS: u64 = 2 * SEEN_ROUNDS;
/// After this many rounds without a late reply, rounds get shorter again.
const CALM_ROUNDS: u64 = 16;
/// The bits of a ballot's round that hold its owner's priority.
const PRIORITY_BITS: u32 = 8;

/// The ballot leader election of one replica.
#[derive(Clone, Debug)]
pub struct BallotLeaderElection {
    members: Members,
    priority: u8,
    heartbeat_interval: Duration,
    election_timeout: Duration,
    planted: Option<Bug>,
    /// The number of the latest request. It also grows from one life to the next, so that a reply to an
    /// earlier life is not taken for one to this life.
    round: u64,
    /// When this round ends.
    ends: Time,
    /// How long a round lasts, between [`BallotLeaderElection::shortest`] and
    /// [`BallotLeaderElection::longest`].
    delay: Duration,
    /// Whether a reply came late in this round, and the number of rounds since that happened last.
    late: bool,
    calm: u64,
    /// The latest reply of each member.
    heard: Vec<Option<Heard>>,
    /// The last ballot in which this replica tried to lead.
    own: Ballot,
    /// What this replica claims in `own`, if it still leads or tries to lead in it.
    claim: Option<Claim>,
    /// The highest ballot that is promised or followed here.
    leader: Ballot,
    /// The highest ballot that any replica is known to have promised or to follow; bids do not count.
    highest: Ballot,
    bid: Option<Bid>,
    /// The bid that may be tried now.
    suggestion: Option<Ballot>,
    /// Whether this replica could lead, because its disk answers.
    fit: bool,
    /// Slots through this one are known to be decided by some replica.
    decided: Slot,
    /// Whether this replica lags too far to lead.
    lags: bool,
    /// How often this replica gave up, or was replaced as a leader that decided nothing, since `decided` last grew.
    failures: u32,
    /// This replica makes no bids before this round.
    abstains_until: u64,
    /// The last round at whose end this replica or a neighbour was happy.
    content_at: u64,
    /// For each member, the highest ballot in which it is known to have tried to lead.
    tried: Vec<Ballot>,
    departures: Departures,
    /// The ballot whose owner was found to be gone, until the owner comes back, and the round in which that was found.
    missed: Option<(Ballot, u64)>,
    /// How many of the next rounds are short because of that.
    short_rounds: u64,
    /// How long a short round lasts.
    short: Duration,
    /// How long members take to answer, if the protocol wants to know.
    round_trips: Option<RoundTrips>,
}

/// A member's reply.
#[derive(Clone, Copy, Debug)]
struct Heard {
    /// The round of the request.
    round: u64,
    /// The round in which the reply came.
    came: u64,
    ballot: Ballot,
    leader: Ballot,
    happy: bool,
}

/// This replica leads in `own`, or tries to lead in it.
#[derive(Clone, Copy, Debug)]
struct Claim {
    leads: bool,
    /// Whether it decides nothing although it should.
    stalls: bool,
    /// The round of its last progress.
    since: u64,
}

#[derive(Clone, Copy, Debug)]
struct Bid {
    ballot: Ballot,
    /// The round at whose end the bid was made.
    since: u64,
}

impl BallotLeaderElection {
    /// An election that has heard nothing yet; its first round begins at the first timer.
    #[must_use]
    pub fn new(
        options: &Options,
        members: Members,
        incarnation: Incarnation,
        now: Time,
    ) -> BallotLeaderElection {
        let round = incarnation.0 << 32;
        let mut election = BallotLeaderElection {
            priority: options.priority,
            heartbeat_interval: options.heartbeat_interval,
            election_timeout: options.election_timeout,
            planted: options.planted.filter(|&bug| options.has(bug)),
            round,
            ends: now,
            delay: Duration::ZERO,
            late: false,
            calm: 0,
            heard: vec![None; members.count()],
            own: Ballot { round: options.priority.into(), replica: members.me() },
            claim: None,
            leader: Ballot::ZERO,
            highest: Ballot::ZERO,
            bid: None,
            suggestion: None,
            fit: true,
            decided: Slot::ZERO,
            lags: false,
            failures: 0,
            abstains_until: round,
            content_at: round,
            tried: vec![Ballot::ZERO; members.count()],
            departures: Departures::new(options.election_timeout),
            missed: None,
            short_rounds: 0,
            short: Duration::ZERO,
            round_trips: options.times_answers().then(|| RoundTrips::new(members.count())),
            members,
        };
        election.delay = election.shortest();
        election
    }

    fn rules(&self) -> Rules {
        planted::rules(self.planted)
    }

    /// Records that the owner of this ballot tried to lead in it.
    fn note_try(&mut self, ballot: Ballot) {
        if let Some(index) = self.members.index(ballot.replica) {
            self.tried[index] = self.tried[index].max(ballot);
        }
    }

    fn reply(&self, round: u64) -> Message {
        // A leader that has just refused a connection may be gone. To say so early changes nothing by itself:
        // a bid takes rounds in which no replica is happy.
        let happy = self.is_happy() && !self.departures.refuses(self.leader.replica);
        // A happy replica shows no bid, though it may have made one in this round: the bid would be taken for
        // a leader's ballot.
        let ballot = self.rules().shown(self.own, self.bid.map(|bid| bid.ballot), happy, self.leader);
        Message::HeartbeatReply { round, ballot, leader: self.leader, happy }
    }

    fn request(&self) -> Message {
        Message::HeartbeatRequest { round: self.round, highest: self.highest }
    }

    /// When the owner of the ballot that is followed will be missed, if nothing changes.
    fn misses_leader_at(&self) -> Option<Time> {
        let is_missed = self.missed.is_some_and(|(missed, _)| missed == self.leader);
        self.departures.gone_at(self.leader.replica).filter(|_| !is_missed)
    }

    /// The round in which the owner of a ballot was missed, if it is not back.
    fn missed_in(&self) -> u64 {
        self.missed.map_or(0, |(_, round)| round)
    }

    /// Records that the owner of the ballot that is followed is gone.
    fn miss_leader(&mut self) {
        self.missed = Some((self.leader, self.round));
        self.late = false;
        if let Some(index) = self.members.index(self.leader.replica) {
            self.heard[index] = None;
        }
        self.short_rounds = SHORT_ROUNDS;
        self.short = (self.delay / 4).max(self.departures.grace());
    }

    /// Makes rounds longer if replies come too late for them.
    fn adapt(&mut self) {
        let step = self.shortest() / 4;
        self.calm += 1;
        if std::mem::take(&mut self.late) {
            self.calm = 0;
            self.delay = (self.delay + step).min(self.longest());
        } else if self.calm.is_multiple_of(CALM_ROUNDS) {
            self.delay = self.delay.saturating_sub(step).max(self.shortest());
        }
    }

    /// The length of a round in a network that answers at once: the interval of heartbeats, within bounds
    /// that make some rounds fit into an election time-out, and not too many.
    fn shortest(&self) -> Duration {
        let timeout = self.election_timeout;
        let shortest = self.heartbeat_interval.clamp(timeout / 20, timeout / 5);
        shortest.max(Duration::from_nanos(1))
    }

    /// The longest length of a round; [`BallotLeaderElection::shortest`] is the shortest.
    fn longest(&self) -> Duration {
        (self.election_timeout / 4).max(self.shortest())
    }

    /// For how many rounds a reply counts. At the end of that time, about an election time-out has passed
    /// since the request.
    fn timeout_rounds(&self) -> u64 {
        let rounds = self.election_timeout.as_nanos().div_ceil(self.delay.as_nanos());
        (u64::try_from(rounds).expect("at most 20").saturating_sub(1)).max(2)
    }

    /// The replies that still count.
    fn fresh(&self) -> impl Iterator<Item = (ReplicaId, Heard)> + '_ {
        let rounds_max = self.timeout_rounds();
        let ids = self.members.ids().iter().copied();
        let heard = ids.zip(&self.heard).filter_map(|(id, heard)| heard.map(|heard| (id, heard)));
        heard.filter(move |(_, heard)| self.round - heard.came < rounds_max)
    }

    /// Whether these peers and this replica are a quorum (E3).
    fn is_quorum(&self, peers: impl Iterator<Item = ReplicaId>) -> bool {
        let peers = peers.fold(ReplicaSet::default(), |set, id| set.union(self.members.only(id)));
        self.rules().is_connected(&self.members, peers)
    }

    /// Whether this replica owns the ballot that it follows.
    fn claims(&self) -> Option<Claim> {
        self.claim.filter(|_| self.own == self.leader)
    }

    /// Whether this replica is happy, as the head of this file defines it.
    fn is_happy(&self) -> bool {
        if let Some(claim) = self.claims() {
            return self.works(claim) && !claim.stalls;
        }
        let rules = self.rules();
        self.fresh().any(|(by, Heard { ballot, happy, .. })| {
            rules.is_word_of_leader(Said { by, ballot, happy }, self.leader)
        })
    }

    /// Whether a leader has followers, or it is too early to judge, as it is of a replica in Phase 1.
    fn works(&self, claim: Claim) -> bool {
        self.is_young(claim) || (claim.leads && self.has_followers())
    }

    /// Whether it is too early to judge a leader by its followers, or a replica in Phase 1 by its progress.
    fn is_young(&self, claim: Claim) -> bool {
        let rounds = if claim.leads { self.timeout_rounds() } else { self.phase_1_rounds() };
        self.round - claim.since < rounds && (claim.leads || self.fit)
    }

    /// For how many rounds a replica in Phase 1 may make no progress.
    fn phase_1_rounds(&self) -> u64 {
        self.rules().phase_1_rounds(self.timeout_rounds())
    }

    /// Whether this replica, which gave up and has seen no decision since, lets another go first whose last
    /// try is older.
    fn gives_way(&self) -> bool {
        let goes_first = |(id, heard): (ReplicaId, Heard)| {
            let bids = !heard.happy && heard.ballot > heard.leader.max(self.leader);
            bids && self.members.index(id).is_some_and(|index| self.tried[index] < self.own)
        };
        self.failures > 0 && (self.round < self.content_at + SEEN_ROUNDS || self.fresh().any(goes_first))
    }

    /// Whether this replica could not lead, and the leader that it follows, or followed, is there.
    fn leaves_it_to_its_leader(&self) -> bool {
        let is_there = |(id, heard): (ReplicaId, Heard)| {
            id == self.leader.replica && heard.ballot == self.leader && heard.leader == self.leader
        };
        self.lags && self.fresh().any(is_there)
    }

    /// Whether a quorum follows this replica, or would follow it.
    fn has_followers(&self) -> bool {
        self.is_quorum(self.fresh().filter(|(_, heard)| heard.leader <= self.own).map(|(id, _)| id))
    }

    /// Bids at the end of a round, suggests the bid, or takes it back.
    fn consider(&mut self, now: Time) {
        self.suggestion = None;
        // What a neighbour said before the leader was missed here may rest on that leader.
        let is_there = |id| !self.departures.is_gone(now, id);
        let is_happy =
            |(id, heard): (ReplicaId, Heard)| heard.happy && heard.round > self.missed_in() && is_there(id);
        let content = self.rules().is_content(self.is_happy(), self.fresh().any(is_happy));
        if content {
            self.content_at = self.round;
        }
        let leads = self.claims().is_some_and(|claim| claim.leads);
        let waits =
            leads || self.round < self.abstains_until || self.gives_way() || self.leaves_it_to_its_leader();
        // In a group of one there is no reply to wait for.
        let alone = self.members.count() == 1;
        if content || waits || !self.fit || !self.is_quorum(self.fresh().map(|(id, _)| id)) {
            self.bid = None;
            return;
        }
        let bid = self.bid.filter(|bid| bid.ballot > self.highest);
        let bid = bid.unwrap_or_else(|| Bid { ballot: self.next_ballot(self.highest), since: self.round });
        self.bid = Some(bid).filter(|bid| bid.ballot.is_in_reach());
        let Some(bid) = self.bid else { return };
        let answers = self.fresh().filter(|(_, heard)| heard.round > bid.since);
        let (mut answered, mut outbid) = (Vec::new(), false);
        for (id, heard) in answers {
            answered.push(id);
            outbid |= heard.ballot > bid.ballot && !self.departures.is_gone(now, id);
        }
        let ripe = self.round >= bid.since + BID_ROUNDS || alone;
        if ripe && self.is_quorum(answered.into_iter()) && !outbid {
            self.suggestion = Some(bid.ballot);
        }
    }

    /// Follows a higher ballot than before.
    fn follow(&mut self, ballot: Ballot) {
        debug_assert!(ballot > self.leader, "the ballots that are followed only grow");
        self.leader = ballot;
        self.highest = self.highest.max(ballot);
        self.note_try(ballot);
        if ballot != self.own {
            // What this replica led or tried is over, which counts as a failure only if it decided nothing.
            let stalled = self.claim.take().is_some_and(|claim| claim.stalls);
            self.failures += u32::from(stalled);
        }
        self.bid = None;
        self.suggestion = None;
        self.short_rounds = 0;
    }
}

impl Election for BallotLeaderElection {
    // The replica's own ballot starts low. If the leader lives, it is heard, and nothing changes; otherwise
    // the next bid is above what was promised (E8).
    fn restarted(&mut self, promised: Ballot) {
        let rules = self.rules();
        self.leader = rules.begins_with(self.leader, promised);
        self.highest = rules.begins_with(self.highest, promised);
    }

    fn receive(&mut self, now: Time, from: ReplicaId, message: &Message, effects: &mut Effects) {
        let Some(index) = self.members.index(from).filter(|&index| index != self.members.my_index()) else {
            return;
        };
        match *message {
            Message::HeartbeatRequest { round, highest } => {
                self.highest = self.highest.max(highest);
                effects.send(from, self.reply(round), Lsn::ZERO);
            }
            Message::HeartbeatReply { round, ballot, leader, happy } => {
                let known = self.heard[index].map_or(0, |heard| heard.round);
                if round > self.round || round < known || self.round - round > self.timeout_rounds() + 1 {
                    return;
                }
                // A reply is not late because a round was cut short.
                self.late |= round < self.round && round > self.missed_in();
                if let Some(trips) = &mut self.round_trips {
                    trips.answers(index, self.round - round, now);
                }
                self.highest = self.highest.max(leader);
                self.note_try(leader);
                // A ballot above the followed one is a bid.
                if ballot <= leader {
                    self.note_try(ballot);
                }
                self.heard[index] = Some(Heard { round, came: self.round, ballot, leader, happy });
                // A replica that follows its own ballot leads, or tries to. A bid is not to be followed; it
                // may still show when another leader has made its bidder happy.
                if happy && ballot == leader && ballot.replica == from && ballot > self.leader {
                    self.follow(ballot);
                }
            }
            // These messages are of another election.
            Message::Rehearse { .. }
            | Message::RehearseReply { .. }
            | Message::Ping { .. }
            | Message::Pong { .. }
            | Message::AskTimes { .. }
            | Message::Times { .. }
            | Message::AskReady { .. }
            | Message::Ready { .. } => {}
        }
    }

    fn link(&mut self, now: Time, peer: ReplicaId, link: Link, effects: &mut Effects) {
        self.departures.link(now, peer, link);
        if link == Link::Up {
            self.missed = self.missed.filter(|(missed, _)| missed.replica != peer);
        }
        if link.begins_again() {
            effects.send(peer, self.request(), Lsn::ZERO);
        }
    }

    // Ends a round, and begins the next.
    fn on_timer(&mut self, now: Time, fit: bool, effects: &mut Effects) {
        self.fit = self.rules().is_fit(fit);
        let misses_leader = self.misses_leader_at().is_some_and(|misses_at| now >= misses_at);
        if misses_leader {
            self.miss_leader();
        } else if now < self.ends {
            return;
        }
        if self.short_rounds == 0 {
            self.adapt();
        } else if std::mem::take(&mut self.late) {
            self.short *= 2;
        }
        if self.claim.is_some_and(|claim| !claim.leads && !self.is_young(claim)) {
            // Whatever prevents Phase 1 here, it may not be in the way of another replica.
            self.gave_up(now);
        }
        self.consider(now);
        self.round += 1;
        let delay = if self.short_rounds > 0 { self.short.min(self.delay) } else { self.delay };
        self.short_rounds = self.short_rounds.saturating_sub(1);
        self.ends = now + delay;
        if let Some(trips) = &mut self.round_trips {
            trips.begins(self.round, now);
        }
        effects.send(self.members.to_peers(), self.request(), Lsn::ZERO);
    }

    fn tick_at(&self) -> Time {
        self.misses_leader_at().map_or(self.ends, |misses_at| misses_at.min(self.ends))
    }

    // A replica promises its own ballot when it begins to try.
    fn promised(&mut self, ballot: Ballot, _: Time) {
        if ballot.replica == self.members.me() {
            debug_assert!(ballot > self.own, "own ballots only grow");
            self.own = ballot;
            self.claim = Some(Claim { leads: false, stalls: false, since: self.round });
        }
        if ballot > self.leader {
            self.follow(ballot);
        }
    }

    fn gave_up(&mut self, _: Time) {
        self.claim = None;
        self.bid = None;
        self.suggestion = None;
        let rounds;
        (rounds, self.failures) = self.rules().abstains(self.timeout_rounds(), SEEN_ROUNDS, self.failures);
        self.abstains_until = self.round + rounds;
    }

    fn decided(&mut self, through: Slot, _: Slot, lags: bool) {
        self.lags = lags;
        if through > self.decided {
            self.decided = through;
            self.failures = 0;
        }
    }

    fn stalls(&mut self, stalls: bool) {
        if let Some(claim) = &mut self.claim {
            claim.stalls = stalls;
        }
    }

    fn leads(&mut self, _: Time) {
        self.claim = Some(Claim { leads: true, stalls: false, since: self.round });
    }

    // Called when Phase 1 makes progress.
    fn answered(&mut self, _: ReplicaId, _: Time) {
        let round = self.round;
        if let Some(claim) = self.claim.as_mut().filter(|claim| !claim.leads) {
            claim.since = round;
        }
    }

    fn reaches_quorum(&self, _: Time) -> bool {
        self.is_quorum(self.fresh().map(|(id, _)| id))
    }

    fn answers(&self, _: Time, member: ReplicaId) -> bool {
        self.fresh().any(|(id, _)| id == member)
    }

    fn round_trip(&self, member: ReplicaId) -> Option<Duration> {
        self.round_trips.as_ref()?.of(self.members.index(member)?)
    }

    fn next_ballot(&self, above: Ballot) -> Ballot {
        let counter = (above.round >> PRIORITY_BITS) + 1;
        let round = counter << PRIORITY_BITS | u64::from(self.priority);
        Ballot { round, replica: self.members.me() }
    }

    fn candidacy(&mut self, _: Time, current: Ballot, _: &mut Effects) -> Option<Ballot> {
        self.suggestion.filter(|&ballot| ballot > current)
    }

    fn advice(&self, _: Time) -> Advice {
        let works = self.claims().is_some_and(|claim| self.works(claim));
        if works { Advice::Stay } else { Advice::Yield }
    }

    fn deadline(&self, _: Ballot) -> Time {
        self.tick_at()
    }
}

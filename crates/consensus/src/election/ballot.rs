//! Ballot leader election: replicas ask each other in rounds of heartbeats whom they hear and follow, and elect only
//! who is connected to a quorum (Ng 2020, section 2.4.1 and Algorithm 3, with the corrections E3 to E9 of its errata).
//!
//! # What is kept of the source, and what is not
//!
//! Kept: rounds of requests and replies; ballots that are unique and only grow; a reply that carries the replier's own
//! ballot (E4); nothing without answers of a majority, `n / 2 + 1` with this replica (E3); requests at the start (E6);
//! a round that grows with late replies, once a round, up to a bound, and shrinks slowly (E7); after a restart, and
//! whenever the protocol promises, every ballot that is promised is known (E8, E9).
//!
//! Not kept: in the source a replica that misses the leader's ballot in one round raises its own, and whoever has the
//! highest is elected. With partial connectivity that does not end: in the chain A-B-C, leader A does not hear C, C
//! does not hear A, and each would raise its ballot above the other's for ever. The thesis' successor, the library
//! OmniPaxos, adds to each reply whom the replier follows and whether it is content with that. The idea is taken
//! from there; the rules are ours:
//!
//! - A reply counts until `patience` rounds after it came, about one election timeout: a lost message changes nothing.
//!   One that took longer than about an election timeout does not count at all.
//! - A **leader** is *happy* while replies of a quorum, its own included, follow its ballot or a lower one. So is one
//!   that has just begun, for `patience` rounds; or that tries to in Phase 1, for twice as many after the last progress,
//!   since a message and its answer may take one election timeout.
//!   Neither is one happy that leads and decides nothing although it should; it goes on leading until somebody else is
//!   promised a higher ballot, and makes no bid itself.
//! - A **follower** is *happy* while it hears its leader, directly, and that leader is happy. A leader that is gone
//!   ([`Departures`]) is not heard any more, at once; and the next rounds are short, as far as replies do not come late.
//! - A replica that is connected to a quorum, is not happy, and has *no happy neighbour*, **bids**: it shows a ballot
//!   above all that it knows to be promised. If after [`BID_ROUNDS`] rounds a quorum has answered requests that were
//!   sent since, still nobody is happy, and no neighbour shows a higher bid, it suggests its bid to the protocol.
//!   Bids that are made at about the same time have equal counters, so that **priority** decides among them, then the
//!   replica's number: leadership goes to the same place whoever noticed first.
//! - Whose **disk does not answer** does not bid, and gives up a Phase 1. Nor does a replica bid that is **so far behind**
//!   that it could not lead before it has caught up, while the owner of the ballot that it follows is there: that one may
//!   decide nothing, and serves reads all the same.
//! - A replica that **gave up** does not bid while it abstains: for so long that the others notice (`patience`), bid, and
//!   are seen (`BID_ROUNDS` and two rounds), and twice as long, then four times, if it gives up again before anything is
//!   decided in between.
//! - Until something is decided, a replica that gave up also **takes turns**: it does not bid while it sees the bid of a
//!   replica whose last try is older than its own, and not before such a bid would have been seen. It would win by its
//!   priority or its number, and fail again.
//!
//! The lowest eight bits of a ballot's round are the priority of its owner, the rest is the counter.
//!
//! # Why somebody leads, and stays
//!
//! Links are taken in both directions: a reply shows that both work. "Stable" is said of what follows while
//! connectivity stays as it is.
//!
//! **Somebody leads, if somebody is connected to a quorum.** Suppose that nobody leads. After `patience` rounds no
//! owner of a ballot is happy, hence no follower, since a follower's happiness comes from its leader directly and not
//! from hearsay that could go round in circles. Then all that are connected to a quorum bid. The highest bid sees no
//! higher one. It is above everything that its quorum has promised, since a reply tells that (`leader`), so Phase 1
//! succeeds. If the protocol finds that it cannot lead after all (too far behind, or its disk hangs), it gives up and
//! abstains, and the next highest bid sees no higher one.
//!
//! **Everybody that bids gets a turn, as long as nothing is decided.** Of all that bid, the one whose last try is the
//! oldest gives way to nobody. What is known of tries only grows, and a replica that does not bid shows its own last try;
//! so two that give way to each other, since each knows too little of the other, stop bidding and learn better. That
//! somebody tries to lead and seems to get on with it is no reason to forget who failed: only a decision is.
//!
//! **It stays.** Let L lead, happy, and let X be connected to a quorum without hearing L. X's quorum and the quorum
//! that follows L have a member Z in common. Z hears L and follows it, hence is happy; X hears Z. So X does not bid.
//! X may have bid at the same time as L: then either X sees Z happy, or Z's promise to L, before its own bid is old
//! enough, or its Phase 1 is refused where its ballot is lower, or it wins once where it is higher. Bids that overlap
//! are at most as many as replicas.
//!
//! The cases in which elections by time-out alone fail:
//!
//! - *Quorum-loss* (the leader keeps a link to a hub, everybody else hears only the hub): the leader has no quorum of
//!   replies, so it stops being happy and leading, although it is heard. The hub, which follows it, stops being happy
//!   with it; the others hear no leader. Only the hub is connected to a quorum, so only it bids.
//! - *Constrained election* (only a replica that lags is connected to a quorum): nothing here depends on the length of
//!   a log. The hub is elected, and Phase 1 brings it what it misses.
//! - *Chained* (A-B-C, A leads): C does not hear A, but B is happy; nothing happens. In a longer chain some replica that
//!   is connected to a quorum is elected, and every other one has a happy neighbour, as above.
//! - *Driftwood 2023, section 2.3.5* (five replicas; R1-R3, R1-R4 and R2-R5 cut; R1 leads): R1 has a quorum in R2 and
//!   R5. R3 and R4 miss R1, are connected to a quorum, and hear that R2 or R5 is happy. Nothing happens.
//! - *Flapping links*: a replica that is cut off can not bid, having no quorum, so it does not come back with a higher
//!   ballot. A link that flaps faster than `patience` goes unnoticed, one that does so more slowly makes a follower
//!   unhappy, whose neighbours are happy.

use synod_wire::{Ballot, Incarnation, Lsn, ReplicaId, Slot, Time};

use super::{Advice, Election, Message};
use crate::{Bug, Effects, Link, Members, Options, ReplicaSet, departures::Departures};

use std::time::Duration;

/// A bid must be so many rounds old. Replicas that miss the same leader bid within one round of each other, since they
/// asked it within one round; the request that is sent at the end of that round sees all their bids.
const BID_ROUNDS: u64 = 2;
/// After so many rounds without anybody happy, the bids that were made at once are seen.
const SEEN_ROUNDS: u64 = BID_ROUNDS + 2;
/// So many rounds are short once the leader is gone: enough for bids that are made, seen and tried, twice.
const SHORT_ROUNDS: u64 = 2 * SEEN_ROUNDS;
/// After so many rounds without a late reply, rounds get shorter again.
const CALM_ROUNDS: u64 = 16;
/// Who gives up again and again abstains at most 2^2 times as long as at first.
const DOUBLINGS_MAX: u32 = 2;
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
    /// Numbers requests; grows also from one life to the next, so that no reply is taken for one of this life.
    round: u64,
    /// When this round ends.
    ends: Time,
    /// How long a round lasts, in [`BallotLeaderElection::shortest`] and [`BallotLeaderElection::longest`].
    delay: Duration,
    /// Whether a reply came late in this round, and rounds since that happened last.
    late: bool,
    calm: u64,
    /// For each member, its latest reply.
    heard: Vec<Option<Heard>>,
    /// The ballot in which this replica tried to lead last.
    own: Ballot,
    /// Whether it still does.
    claim: Option<Claim>,
    /// The highest ballot that is promised or followed here.
    leader: Ballot,
    /// The highest ballot known to be promised or followed anywhere; bids do not count.
    highest: Ballot,
    bid: Option<Bid>,
    /// The bid that may be tried now.
    suggestion: Option<Ballot>,
    /// Whether this replica could lead: its disk answers.
    fit: bool,
    /// Slots through this one are known to be decided somewhere.
    decided: Slot,
    /// Whether this replica is too far behind to lead.
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
    /// The ballot whose owner was found to be gone, until it comes back, and in which round...
    missed: Option<(Ballot, u64)>,
    /// ...and how many rounds are short because of that,
    short_rounds: u64,
    /// how short.
    short: Duration,
}

/// A member's reply.
#[derive(Clone, Copy, Debug)]
struct Heard {
    /// The round of the request...
    round: u64,
    /// ...and the one in which the reply came.
    came: u64,
    ballot: Ballot,
    leader: Ballot,
    happy: bool,
}

/// This replica leads in `own`, or tries to.
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
    /// The round at whose end it was made.
    since: u64,
}

impl BallotLeaderElection {
    /// An election that knows nothing yet; its first round begins at the first timer.
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
            members,
        };
        election.delay = election.shortest();
        election
    }

    fn has(&self, bug: Bug) -> bool {
        self.planted == Some(bug)
    }

    /// The owner of this ballot tried to lead in it.
    fn note_try(&mut self, ballot: Ballot) {
        if let Some(index) = self.members.index(ballot.replica) {
            self.tried[index] = self.tried[index].max(ballot);
        }
    }

    fn reply(&self, round: u64) -> Message {
        // A leader that has just refused a connection may be gone. To say so early changes nothing by itself: a bid
        // takes rounds in which nobody is happy.
        let happy = self.is_happy() && !self.departures.refuses(self.leader.replica);
        // Who is happy shows no bid, though it may have made one in this round: it would be taken for a leader.
        let ballot = match self.bid {
            _ if self.has(Bug::ElectionEchoesHighest) => self.leader,
            Some(bid) if !happy => bid.ballot,
            _ => self.own,
        };
        Message::HeartbeatReply { round, ballot, leader: self.leader, happy }
    }

    fn request(&self) -> Message {
        Message::HeartbeatRequest { round: self.round, highest: self.highest }
    }

    /// When the owner of the ballot that is followed will be missed, as things stand.
    fn misses_leader_at(&self) -> Option<Time> {
        let is_missed = self.missed.is_some_and(|(missed, _)| missed == self.leader);
        self.departures.gone_at(self.leader.replica).filter(|_| !is_missed)
    }

    /// The round in which the owner of a ballot was missed that is not back.
    fn missed_in(&self) -> u64 {
        self.missed.map_or(0, |(_, round)| round)
    }

    /// The owner of the ballot that is followed is gone.
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

    /// The length of a round in a network that answers at once: the interval of heartbeats, but some rounds fit into
    /// an election timeout, and not too many.
    fn shortest(&self) -> Duration {
        let timeout = self.election_timeout;
        let shortest = self.heartbeat_interval.clamp(timeout / 20, timeout / 5);
        shortest.max(Duration::from_nanos(1))
    }

    /// The longest round; [`BallotLeaderElection::shortest`] is shorter.
    fn longest(&self) -> Duration {
        (self.election_timeout / 4).max(self.shortest())
    }

    /// For how many rounds a reply counts. At the end of that time, about an election timeout has passed since the
    /// request.
    fn patience(&self) -> u64 {
        let rounds = self.election_timeout.as_nanos().div_ceil(self.delay.as_nanos());
        (u64::try_from(rounds).expect("at most 20").saturating_sub(1)).max(2)
    }

    /// The replies that still count.
    fn fresh(&self) -> impl Iterator<Item = (ReplicaId, Heard)> + '_ {
        let patience = self.patience();
        let ids = self.members.ids().iter().copied();
        let heard = ids.zip(&self.heard).filter_map(|(id, heard)| heard.map(|heard| (id, heard)));
        heard.filter(move |(_, heard)| self.round - heard.came < patience)
    }

    /// Whether these peers and this replica are a quorum (E3).
    fn is_quorum(&self, peers: impl Iterator<Item = ReplicaId>) -> bool {
        let peers = peers.fold(ReplicaSet::default(), |set, id| set.union(self.members.only(id)));
        let needs_peers_alone = self.has(Bug::ElectionMajorityOffByOne);
        let me = self.members.only(self.members.me());
        self.members.is_quorum(if needs_peers_alone { peers } else { peers.union(me) })
    }

    /// Whether this replica owns the ballot that it follows.
    fn claims(&self) -> Option<Claim> {
        self.claim.filter(|_| self.own == self.leader)
    }

    /// See [`BallotLeaderElection`]'s file.
    fn is_happy(&self) -> bool {
        if let Some(claim) = self.claims() {
            return self.works(claim) && !claim.stalls;
        }
        let echoed = self.has(Bug::ElectionEchoesHighest);
        self.fresh().any(|(id, heard)| {
            heard.happy && heard.ballot == self.leader && (id == self.leader.replica || echoed)
        })
    }

    /// Whether a leader has followers, or it is too early to judge, as it is of somebody in Phase 1.
    fn works(&self, claim: Claim) -> bool {
        self.is_young(claim) || (claim.leads && self.has_followers())
    }

    /// Whether it is too early to judge a leader by its followers, or somebody in Phase 1 by its progress.
    fn is_young(&self, claim: Claim) -> bool {
        let rounds = if claim.leads { self.patience() } else { self.phase_1_rounds() };
        self.round - claim.since < rounds && (claim.leads || self.fit)
    }

    /// For how many rounds somebody in Phase 1 may make no progress.
    fn phase_1_rounds(&self) -> u64 {
        // The disk that hangs is not noticed, either.
        if self.has(Bug::ElectionOfHungDisk) { self.patience() } else { 2 * self.patience() }
    }

    /// Whether this replica, which gave up and has seen no decision since, leaves it to somebody whose last try is older.
    fn gives_way(&self) -> bool {
        let goes_first = |(id, heard): (ReplicaId, Heard)| {
            let bids = !heard.happy && heard.ballot > heard.leader.max(self.leader);
            bids && self.members.index(id).is_some_and(|index| self.tried[index] < self.own)
        };
        self.failures > 0 && (self.round < self.content_at + SEEN_ROUNDS || self.fresh().any(goes_first))
    }

    /// Whether this replica could not lead, and one is there that it follows, or did.
    fn leaves_it_to_its_leader(&self) -> bool {
        let is_there = |(id, heard): (ReplicaId, Heard)| {
            id == self.leader.replica && heard.ballot == self.leader && heard.leader == self.leader
        };
        self.lags && self.fresh().any(is_there)
    }

    /// Whether a quorum follows this replica, or would.
    fn has_followers(&self) -> bool {
        self.is_quorum(self.fresh().filter(|(_, heard)| heard.leader <= self.own).map(|(id, _)| id))
    }

    /// At the end of a round: bids, suggests the bid, or takes it back.
    fn consider(&mut self, now: Time) {
        self.suggestion = None;
        let ignores = self.has(Bug::ElectionIgnoresHappiness);
        // What a neighbour said before the leader was missed here may rest on that leader.
        let is_there = |id| !self.departures.is_gone(now, id);
        let is_happy =
            |(id, heard): (ReplicaId, Heard)| heard.happy && heard.round > self.missed_in() && is_there(id);
        let content = self.is_happy() || (!ignores && self.fresh().any(is_happy));
        if content {
            self.content_at = self.round;
        }
        let leads = self.claims().is_some_and(|claim| claim.leads);
        let waits =
            leads || self.round < self.abstains_until || self.gives_way() || self.leaves_it_to_its_leader();
        // A group of one has nobody to wait for.
        let alone = self.members.count() == 1;
        if content || waits || !self.fit || !self.is_quorum(self.fresh().map(|(id, _)| id)) {
            self.bid = None;
            return;
        }
        let bid = self.bid.filter(|bid| bid.ballot > self.highest);
        let bid = bid.unwrap_or_else(|| Bid { ballot: self.next_ballot(self.highest), since: self.round });
        self.bid = Some(bid);
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
            // Whatever this replica led or tried is over, and nobody's failure, unless it came to nothing.
            let stalled = self.claim.take().is_some_and(|claim| claim.stalls);
            self.failures += u32::from(stalled);
        }
        self.bid = None;
        self.suggestion = None;
        self.short_rounds = 0;
    }
}

impl Election for BallotLeaderElection {
    fn fork(&self) -> Box<dyn Election> {
        Box::new(self.clone())
    }

    // The own ballot starts low: if the leader lives it is heard, and nothing changes; otherwise the next bid is above what
    // was promised (E8).
    fn restarted(&mut self, promised: Ballot) {
        if !self.has(Bug::ElectionForgetsPromise) {
            self.leader = self.leader.max(promised);
            self.highest = self.highest.max(promised);
        }
    }

    fn receive(&mut self, _: Time, from: ReplicaId, message: &Message, effects: &mut Effects) {
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
                if round > self.round || round < known || self.round - round > self.patience() + 1 {
                    return;
                }
                // A round that was cut short makes no reply late.
                self.late |= round < self.round && round > self.missed_in();
                self.highest = self.highest.max(leader);
                self.note_try(leader);
                // Anything higher is a bid.
                if ballot <= leader {
                    self.note_try(ballot);
                }
                self.heard[index] = Some(Heard { round, came: self.round, ballot, leader, happy });
                // Whoever follows its own ballot leads, or tries to; a bid, which may still show when another leader
                // has made its bidder happy, is not to be followed.
                if happy && ballot == leader && ballot.replica == from && ballot > self.leader {
                    self.follow(ballot);
                }
            }
            // Of another election.
            Message::Rehearse { .. } | Message::RehearseReply { .. } => {}
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
        self.fit = fit || self.has(Bug::ElectionOfHungDisk);
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
            // Whatever is in the way of Phase 1, somebody else may have it easier.
            self.gave_up(now);
        }
        self.consider(now);
        self.round += 1;
        let delay = if self.short_rounds > 0 { self.short.min(self.delay) } else { self.delay };
        self.short_rounds = self.short_rounds.saturating_sub(1);
        self.ends = now + delay;
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
        if self.has(Bug::ElectionOfHungDisk) {
            self.abstains_until = self.round + self.patience();
            return;
        }
        let rounds = (self.patience() + SEEN_ROUNDS) << self.failures.min(DOUBLINGS_MAX);
        self.failures += 1;
        self.abstains_until = self.round + rounds;
    }

    fn decided(&mut self, through: Slot, lags: bool) {
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

    // Phase 1 makes progress.
    fn answered(&mut self, _: ReplicaId, _: Time) {
        let round = self.round;
        if let Some(claim) = self.claim.as_mut().filter(|claim| !claim.leads) {
            claim.since = round;
        }
    }

    fn answers(&self, _: Time, member: ReplicaId) -> bool {
        self.fresh().any(|(id, _)| id == member)
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

//! Groups of elections that hear each other over chosen links, without a protocol: a try succeeds at once if
//! a quorum of neighbours has promised nothing higher.

use std::time::Duration;

use synod_wire::{Ballot, Incarnation, Lsn, ReplicaId, Slot, Time};

use super::{Advice, BallotLeaderElection, Election, Message};
use crate::{Effect, Effects, ElectionKind, Link, Members, Options};

const TIMEOUT: Duration = Duration::from_millis(1000);
/// Time advances in steps of a tenth of a round.
const STEP: Duration = Duration::from_millis(10);

struct Group {
    now: Time,
    /// The elections of the replicas; `None` for a crashed one.
    elections: Vec<Option<BallotLeaderElection>>,
    leads: Vec<bool>,
    /// The pairs of replicas that hear each other.
    links: Vec<(usize, usize)>,
    /// The replicas whose Phase 1 gets promises and never ends.
    hopeless: Vec<usize>,
    /// The ballot that each replica was last told to try; it only grows (B1).
    tried: Vec<Ballot>,
    /// How often a replica began to lead.
    changes: usize,
}

fn members(count: usize, me: usize) -> Members {
    Members::new((1..=count as u64).map(ReplicaId), ReplicaId(me as u64 + 1))
}

fn election(count: usize, me: usize, priority: u8, life: u64) -> BallotLeaderElection {
    let options = Options { election: ElectionKind::Ballot, priority, ..Options::default() };
    BallotLeaderElection::new(&options, members(count, me), Incarnation(life), Time::ZERO)
}

fn all_links(count: usize) -> Vec<(usize, usize)> {
    (0..count).flat_map(|a| (a + 1..count).map(move |b| (a, b))).collect()
}

impl Group {
    fn new(priorities: &[u8]) -> Group {
        let count = priorities.len();
        Group {
            now: Time::ZERO,
            elections: (0..count).map(|me| Some(election(count, me, priorities[me], 1))).collect(),
            leads: vec![false; count],
            links: all_links(count),
            hopeless: Vec::new(),
            tried: vec![Ballot::ZERO; count],
            changes: 0,
        }
    }

    fn crash(&mut self, of: usize) {
        self.elections[of] = None;
        self.leads[of] = false;
    }

    /// Tells a replica what happened to its session to another.
    fn session(&mut self, of: usize, to: usize, link: Link) {
        let mut effects = Effects::new(Lsn::ZERO);
        if let Some(election) = &mut self.elections[of] {
            election.link(self.now, ReplicaId(to as u64 + 1), link, &mut effects);
        }
        self.transmit(of, &mut effects);
    }

    fn hears(&self, a: usize, b: usize) -> bool {
        self.links.contains(&(a.min(b), a.max(b)))
    }

    fn neighbours(&self, of: usize) -> Vec<usize> {
        let others =
            (0..self.elections.len()).filter(|&to| self.elections[to].is_some() && self.hears(of, to));
        others.collect()
    }

    /// Makes one step for all replicas; those with a higher number a little later.
    fn step(&mut self) {
        self.now += STEP;
        for of in 0..self.elections.len() {
            let now = self.now;
            let Some(election) = &mut self.elections[of] else { continue };
            let mut effects = Effects::new(Lsn::ZERO);
            election.on_timer(now, true, &mut effects);
            self.transmit(of, &mut effects);
            let election = self.elections[of].as_mut().expect("it is up");
            if self.leads[of] && election.advice(now) == Advice::Yield {
                election.gave_up(Time::ZERO);
                self.leads[of] = false;
            }
            let election = self.elections[of].as_mut();
            let suggested = election
                .and_then(|election| election.candidacy(now, Ballot::ZERO, &mut Effects::new(Lsn::ZERO)));
            if let Some(ballot) = suggested {
                self.try_to_lead(of, ballot);
            }
        }
    }

    fn transmit(&mut self, from: usize, effects: &mut Effects) {
        for effect in effects.drain().collect::<Vec<_>>() {
            let Effect::Send { to, message: crate::Message::Election(message), .. } = effect else {
                panic!("an election only sends messages of its own: {effect:?}");
            };
            for to in to.ids() {
                let to = usize::try_from(to.0 - 1).expect("small");
                if let Some(election) =
                    self.elections[to].as_mut().filter(|_| self.links.contains(&(from.min(to), from.max(to))))
                {
                    let mut effects = Effects::new(Lsn::ZERO);
                    election.receive(Time::ZERO, ReplicaId(from as u64 + 1), &message, &mut effects);
                    self.transmit(to, &mut effects);
                }
            }
        }
    }

    fn try_to_lead(&mut self, of: usize, ballot: Ballot) {
        let quorum = self.elections.len() / 2 + 1;
        let neighbours = self.neighbours(of);
        assert_eq!(ballot.replica, ReplicaId(of as u64 + 1), "B2: a ballot is its owner's");
        assert!(ballot > self.tried[of], "B1: ballots grow");
        assert!(neighbours.len() + 1 >= quorum, "B4: only with a quorum");
        self.tried[of] = ballot;
        self.elections[of].as_mut().expect("it is up").promised(ballot, Time::ZERO);
        let mut promised = 1;
        for to in neighbours {
            let election = self.elections[to].as_mut().expect("it is up");
            // B3, as far as the neighbours know: the ballot is above all that they promised.
            if ballot > self.tried[to] {
                election.promised(ballot, Time::ZERO);
                self.tried[to] = ballot;
                self.leads[to] = false;
                promised += 1;
            }
        }
        if promised >= quorum && !self.hopeless.contains(&of) {
            self.elections[of].as_mut().expect("it is up").leads(Time::ZERO);
            self.leads[of] = true;
            self.changes += 1;
            let decided = Slot(self.changes as u64);
            self.elections
                .iter_mut()
                .flatten()
                .for_each(|election| election.decided(decided, decided, false));
        }
    }

    fn run(&mut self, timeouts: u32) {
        let end = self.now + TIMEOUT * timeouts;
        while self.now < end {
            self.step();
        }
    }

    fn leaders(&self) -> Vec<usize> {
        (0..self.leads.len()).filter(|&of| self.leads[of]).collect()
    }
}

#[test]
fn every_minority_may_be_down() {
    // TV10 is the case of three replicas with one down.
    for count in 1..=7 {
        let mut group = Group::new(&vec![0; count]);
        for of in 0..(count - 1) / 2 {
            group.crash(of);
        }
        group.run(3);
        assert_eq!(group.leaders(), [count - 1], "of {count}");
        if count > 1 {
            group.crash(count - 1);
            let left = count - (count - 1) / 2 - 1;
            group.run(3);
            let expected: Vec<usize> = if left > count / 2 { vec![count - 2] } else { Vec::new() };
            assert_eq!(group.leaders(), expected, "of {count}, the leader having crashed");
        }
    }
}

#[test]
fn a_leader_is_missed_after_about_an_election_timeout() {
    let mut group = Group::new(&[0; 3]);
    group.run(2);
    group.crash(2);
    let crashed = group.now;
    while group.leaders().is_empty() {
        group.step();
    }
    let took = group.now.since(crashed);
    assert!(took > TIMEOUT * 8 / 10 && took < TIMEOUT * 3 / 2, "{took:?}");
}

#[test]
fn a_leader_that_closes_its_connections_is_missed_at_once() {
    for count in [3, 5] {
        let mut group = Group::new(&vec![0; count]);
        group.run(2);
        let (leader, next) = (count - 1, count - 2);
        assert_eq!(group.leaders(), [leader]);
        group.crash(leader);
        let crashed = group.now;
        for of in 0..leader {
            // The replicas do not notice it at the same time.
            group.session(of, leader, Link::Refused);
            group.step();
        }
        while group.leaders().is_empty() {
            group.step();
        }
        let took = group.now.since(crashed);
        assert!(took <= TIMEOUT * 12 / 100, "of {count}: {took:?}");
        assert_eq!(group.leaders(), [next], "of those that bid at once the highest");
    }
}

#[test]
fn sessions_that_end_and_begin_again_depose_no_leader_that_others_hear() {
    for away in [1, 2, 3, 30, 300] {
        let mut group = Group::new(&[0; 3]);
        group.run(2);
        for _ in 0..20 {
            group.session(0, 2, Link::Refused);
            // The leader's requests do not arrive, either.
            group.links = vec![(0, 1), (1, 2)];
            (0..away).for_each(|_| group.step());
            group.links = all_links(3);
            group.session(0, 2, Link::Up);
            (0..7).for_each(|_| group.step());
        }
        assert_eq!((group.changes, group.leaders()), (1, vec![2]), "away for {away} steps");
    }
}

#[test]
fn priority_decides_among_those_that_could_lead() {
    let mut group = Group::new(&[1, 7, 3, 7, 0]);
    group.run(2);
    assert_eq!(group.leaders(), [3], "the highest priority, and of two the higher number");
    for next in [1, 2] {
        let leader = group.leaders()[0];
        group.crash(leader);
        group.run(3);
        assert_eq!(group.leaders(), [next]);
    }
}

#[test]
fn a_ballot_is_ordered_by_counter_then_priority_then_replica() {
    let (low, high) = (election(3, 2, 1, 1), election(3, 0, 2, 1));
    assert!(high.next_ballot(Ballot::ZERO) > low.next_ballot(Ballot::ZERO));
    assert!(low.next_ballot(high.next_ballot(Ballot::ZERO)) > high.next_ballot(Ballot::ZERO));
}

/// Checks every set of links that stays as it is: four time-outs later, some replica leads if any reaches a
/// quorum, and after that no other replica ever leads.
#[test]
fn whatever_links_are_left_the_leader_reaches_a_quorum_and_stays() {
    for count in [3, 4, 5] {
        let all = all_links(count);
        for kept in 0..1_u32 << all.len() {
            let mut group = Group::new(&vec![0; count]);
            group.run(2);
            group.links = (0..all.len()).filter(|bit| kept >> bit & 1 == 1).map(|bit| all[bit]).collect();
            let connected = |of: &usize| group.neighbours(*of).len() + 1 > count / 2;
            let connected: Vec<usize> = (0..count).filter(connected).collect();
            group.run(4);
            let leaders = group.leaders();
            assert!(leaders.iter().all(|of| connected.contains(of)), "{:?}: {leaders:?}", group.links);
            assert_eq!(leaders.is_empty(), connected.is_empty(), "{:?}: {leaders:?}", group.links);
            let changes = group.changes;
            group.run(12);
            assert_eq!((group.changes, group.leaders()), (changes, leaders), "{:?}", group.links);
        }
    }
}

#[test]
fn a_link_that_flaps_changes_no_leader() {
    for period in [3, 8, 11, 15, 27] {
        let mut group = Group::new(&[0; 3]);
        group.run(2);
        assert_eq!(group.leaders(), [2]);
        for _ in 0..20 {
            group.links = vec![(0, 1), (1, 2)];
            (0..period * 10).for_each(|_| group.step());
            group.links = all_links(3);
            (0..period * 10).for_each(|_| group.step());
        }
        assert_eq!((group.changes, group.leaders()), (1, vec![2]), "every {period} rounds");
    }
}

#[test]
fn a_replica_that_gives_up_lets_others_lead_and_leads_where_no_other_can() {
    let mut group = Group::new(&[0; 3]);
    group.run(2);
    group.elections[2].as_mut().expect("it is up").gave_up(Time::ZERO);
    group.leads[2] = false;
    group.run(1);
    assert_eq!(group.leaders(), [1]);
    group.links = vec![(0, 2), (1, 2)];
    group.run(4);
    assert_eq!(group.leaders(), [1], "it has r3");
    group.crash(1);
    group.run(3);
    assert_eq!(group.leaders(), [2]);
}

#[test]
fn a_leader_that_decides_nothing_stays_until_a_replica_leads_that_does_not_lag() {
    let mut group = Group::new(&[0; 3]);
    group.run(2);
    let lag = |group: &mut Group, of: usize, lags: bool| {
        group.elections[of].as_mut().expect("it is up").decided(Slot(9), Slot(9), lags);
    };
    (0..2).for_each(|of| lag(&mut group, of, true));
    group.elections[2].as_mut().expect("it is up").stalls(true);
    group.run(4);
    assert_eq!((group.changes, group.leaders()), (1, vec![2]));
    lag(&mut group, 0, false);
    group.run(1);
    assert_eq!((group.changes, group.leaders()), (2, vec![0]));
}

#[test]
fn after_a_restart_bids_are_above_what_was_promised() {
    let promised = Ballot { round: 77 << 8, replica: ReplicaId(2) };
    let mut group = Group::new(&[0; 3]);
    for of in 0..3 {
        let mut again = election(3, of, 0, 2);
        again.restarted(promised);
        group.elections[of] = Some(again);
        group.tried[of] = promised;
    }
    group.run(3);
    assert_eq!(group.leaders(), [2]);
    assert_eq!(group.tried[2].round, 78 << 8);
}

#[test]
fn one_promise_that_only_one_replica_knows_is_outbid() {
    // E9: a candidate crashed after one replica had promised its ballot.
    let mut group = Group::new(&[0; 3]);
    group.run(2);
    let stray = Ballot { round: 99 << 8, replica: ReplicaId(3) };
    group.elections[0].as_mut().expect("it is up").promised(stray, Time::ZERO);
    group.tried[0] = stray;
    group.crash(2);
    group.run(3);
    assert_eq!(group.leaders(), [1]);
    assert!(group.tried[1] > stray);
}

/// Nobody bids where no round is left that others would read, and the group goes on without an election.
#[test]
fn a_peer_that_names_the_last_round_stops_no_replica() {
    let mut group = Group::new(&[0; 3]);
    for (of, election) in group.elections.iter_mut().flatten().enumerate() {
        let highest = Ballot { round: Ballot::ROUND_MAX, replica: ReplicaId(2) };
        let request = Message::HeartbeatRequest { round: 1, highest };
        let from = if of == 0 { 2 } else { 1 };
        election.receive(Time::ZERO, ReplicaId(from), &request, &mut Effects::new(Lsn::ZERO));
    }
    group.run(20);
    assert_eq!(group.tried, [Ballot::ZERO; 3]);
}

fn reply(round: u64, ballot: Ballot, happy: bool) -> Message {
    Message::HeartbeatReply { round, ballot, leader: ballot, happy }
}

#[test]
fn replies_of_another_life_or_repeated_do_not_count() {
    let mut effects = Effects::new(Lsn::ZERO);
    let mut one = election(5, 0, 0, 3);
    let round = |election: &mut BallotLeaderElection, round: u64, replies: &[(u64, u64)]| {
        let mut effects = Effects::new(Lsn::ZERO);
        election.on_timer(Time::ZERO + TIMEOUT * u32::try_from(round).expect("small"), true, &mut effects);
        for &(from, of_round) in replies {
            election.receive(
                Time::ZERO,
                ReplicaId(from),
                &reply(of_round, Ballot::ZERO, false),
                &mut effects,
            );
        }
        election.candidacy(Time::ZERO, Ballot::ZERO, &mut Effects::new(Lsn::ZERO))
    };
    let first = 3 << 32;
    for number in 1..8 {
        // The same replier twice, a reply to an earlier life, one that was never asked for, and one from a
        // replica that is not a member.
        let replies =
            [(2, first + number), (2, first + number), (3, number), (4, first + 99), (9, first + number)];
        assert_eq!(round(&mut one, number, &replies), None);
    }
    for number in 8..11 {
        round(&mut one, number, &[(2, first + number), (3, first + number)]);
    }
    assert!(round(&mut one, 11, &[]).is_some(), "two others and itself");
    one.receive(Time::ZERO, ReplicaId(1), &reply(first, Ballot::ZERO, false), &mut effects);
    assert_eq!(effects.drain().count(), 0, "it does not talk to itself");
}

#[test]
fn every_replica_has_a_turn_however_many_fail() {
    for able in 0..4 {
        let mut group = Group::new(&[0, 0, 0, 3, 9]);
        group.hopeless = (0..5).filter(|&of| of != able).collect();
        group.run(16);
        assert_eq!(group.leaders(), [able]);
        // Once something was decided, the replica that failed before comes first again.
        group.hopeless.clear();
        group.crash(able);
        group.run(8);
        assert_eq!(group.leaders(), [4]);
    }
}

/// A replica that is asked round after round, and whose neighbours answer.
struct Asked {
    one: BallotLeaderElection,
    now: Time,
}

impl Asked {
    /// A replica with a high priority that leads late in its life, and gives up.
    fn that_gave_up() -> (Asked, Ballot) {
        let mut asked = Asked { one: election(3, 0, 9, 1), now: Time::ZERO };
        (0..1000).for_each(|_| _ = asked.round(Ballot::ZERO, Ballot::ZERO));
        let own = asked
            .one
            .candidacy(Time::ZERO, Ballot::ZERO, &mut Effects::new(Lsn::ZERO))
            .expect("nobody else bids");
        asked.one.promised(own, Time::ZERO);
        asked.one.leads(Time::ZERO);
        asked.one.gave_up(Time::ZERO);
        (asked, own)
    }

    /// Plays one round, in which r2 shows this ballot and both others follow that one; returns whether the
    /// replica would try to lead.
    fn round(&mut self, ballot: Ballot, leader: Ballot) -> bool {
        self.now += TIMEOUT;
        let mut effects = Effects::new(Lsn::ZERO);
        self.one.on_timer(self.now, true, &mut effects);
        let asked = effects.drain().find_map(|effect| match effect {
            Effect::Send {
                message: crate::Message::Election(Message::HeartbeatRequest { round, .. }),
                ..
            } => Some(round),
            _ => None,
        });
        let round = asked.expect("a round begins");
        for (from, ballot) in [(2, ballot), (3, Ballot::ZERO)] {
            let reply = Message::HeartbeatReply { round, ballot, leader, happy: false };
            self.one.receive(Time::ZERO, ReplicaId(from), &reply, &mut effects);
        }
        self.one.candidacy(Time::ZERO, Ballot::ZERO, &mut Effects::new(Lsn::ZERO)).is_some()
    }
}

#[test]
fn a_replica_that_gave_up_abstains_and_gives_way_to_bidders_that_did_not_try_since() {
    // A time-out is at most twenty rounds; a bid takes a few.
    let (mut asked, own) = Asked::that_gave_up();
    let alone = (1..100).find(|_| asked.round(Ballot::ZERO, own)).expect("it tries again");
    assert!((3..=30).contains(&alone), "{alone} rounds");

    let (mut asked, own) = Asked::that_gave_up();
    let bid_of_r2 = |counter: u64| Ballot { round: counter << 8, replica: ReplicaId(2) };
    let low_bid = bid_of_r2(2);
    assert!((0..100).all(|_| !asked.round(low_bid, own)), "r2 did not try yet");
    // r2 has tried; now it bids again.
    let next_bid = bid_of_r2(3);
    assert!(own < low_bid && low_bid < next_bid);
    assert!((0..10).any(|_| asked.round(next_bid, low_bid)), "now it is lower, and comes second");
}

#[test]
fn only_an_owner_that_is_happy_is_followed() {
    let mut effects = Effects::new(Lsn::ZERO);
    let mut one = election(3, 0, 0, 0);
    one.on_timer(Time::ZERO, true, &mut effects);
    let ballot = Ballot { round: 5 << 8, replica: ReplicaId(2) };
    let leader_of = |one: &mut BallotLeaderElection| {
        let mut effects = Effects::new(Lsn::ZERO);
        one.receive(
            Time::ZERO,
            ReplicaId(3),
            &Message::HeartbeatRequest { round: 1, highest: Ballot::ZERO },
            &mut effects,
        );
        match effects.drain().next() {
            Some(Effect::Send {
                message: crate::Message::Election(Message::HeartbeatReply { leader, happy, .. }),
                ..
            }) => (leader, happy),
            other => panic!("no reply: {other:?}"),
        }
    };
    one.receive(Time::ZERO, ReplicaId(3), &reply(1, ballot, true), &mut effects);
    assert_eq!(leader_of(&mut one), (Ballot::ZERO, false), "hearsay");
    one.receive(Time::ZERO, ReplicaId(2), &reply(1, ballot, false), &mut effects);
    assert_eq!(leader_of(&mut one), (Ballot::ZERO, false), "a bid, or a leader without a quorum");
    one.receive(Time::ZERO, ReplicaId(2), &reply(1, ballot, true), &mut effects);
    assert_eq!(leader_of(&mut one), (ballot, true));
}

#[test]
fn late_replies_make_rounds_longer_up_to_a_bound_and_calm_makes_them_short_again() {
    let mut one = election(3, 0, 0, 0);
    let mut now = Time::ZERO;
    let mut turn = |one: &mut BallotLeaderElection, late: bool| {
        let mut effects = Effects::new(Lsn::ZERO);
        now = one.tick_at().max(now);
        one.on_timer(now, true, &mut effects);
        let Some(Effect::Send {
            message: crate::Message::Election(Message::HeartbeatRequest { round, .. }),
            ..
        }) = effects.drain().next()
        else {
            panic!("a round begins with a request");
        };
        let answered = if late { round - 1 } else { round };
        for from in [2, 3] {
            one.receive(Time::ZERO, ReplicaId(from), &reply(answered, Ballot::ZERO, false), &mut effects);
        }
        one.tick_at().since(now)
    };
    assert_eq!(turn(&mut one, false), Duration::from_millis(100));
    turn(&mut one, true);
    assert_eq!(
        turn(&mut one, false),
        Duration::from_millis(125),
        "once a round, though two replies were late"
    );
    (0..20).for_each(|_| assert!(turn(&mut one, true) <= TIMEOUT / 4));
    assert_eq!(turn(&mut one, true), TIMEOUT / 4);
    (0..16 * 7).for_each(|_| assert!(turn(&mut one, false) <= TIMEOUT / 4));
    assert_eq!(turn(&mut one, false), Duration::from_millis(100));
}

#[test]
fn settings_at_the_edge_make_rounds_that_end() {
    let shortest = |heartbeat: u64, timeout: u64| {
        let options = Options {
            heartbeat_interval: Duration::from_nanos(heartbeat),
            election_timeout: Duration::from_nanos(timeout),
            ..Options::default()
        };
        let mut one = BallotLeaderElection::new(&options, members(3, 0), Incarnation(0), Time::ZERO);
        one.on_timer(Time::ZERO, true, &mut Effects::new(Lsn::ZERO));
        one.tick_at().since(Time::ZERO)
    };
    assert_eq!(shortest(0, 0), Duration::from_nanos(1));
    assert_eq!(shortest(1, 2_000), Duration::from_nanos(100), "no more than twenty a timeout");
    assert_eq!(shortest(5_000, 2_000), Duration::from_nanos(400), "no fewer than five");
}

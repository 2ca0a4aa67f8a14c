//! Latency-aware elections of several members over links with drawn delays, in a model of a protocol that leads, hands
//! over and promises, and no more.

mod network;
mod table_6_1;

use std::time::Duration;

use fastrand::Rng;
use synod_wire::{Ballot, Lsn, ReplicaId, Slot, Time};

use self::network::{Network, Sent, TIMEOUT, nanos, seconds};
use super::{rules::UNREACHABLE, *};
use crate::{Effect, ElectionKind, Members, Message as Any, multipaxos};

/// The links of Table 6.1: three members near each other, two that are far from everybody. The far ones come first.
fn green_and_red(red: u64) -> Vec<Vec<u64>> {
    let far = |member: usize| member < 2;
    (0..5)
        .map(|from| {
            (0..5)
                .map(|to| {
                    if from == to {
                        0
                    } else if far(from) || far(to) {
                        red
                    } else {
                        1
                    }
                })
                .collect()
        })
        .collect()
}

/// Proposition 6.2 and Corollary 6.1: after it has settled, the leader's majority time is within 12ε of the best, and
/// it stays.
#[test]
fn the_leader_ends_within_twelve_tolerances_of_the_best_and_changes_finitely_often() {
    for seed in 0..60 {
        let mut rng = Rng::with_seed(seed);
        let members = rng.usize(3..=7);
        let tolerance = Duration::from_millis(rng.u64(0..=4));
        let delays: Vec<Vec<u64>> = (0..members)
            .map(|from| (0..members).map(|to| if from == to { 0 } else { rng.u64(5..=150) }).collect())
            .collect();
        let mut network = Network::new(seed, &delays, tolerance, 1 + (seed % 2) as u32, 0);
        network.run_until(seconds(80));
        let slack = 12 * tolerance.as_nanos() as u64;
        let leader = network.leader().expect("somebody leads");
        assert!(network.usual(leader) <= network.best() + slack, "seed {seed}: {:?}", network.changes);
        // Each change after the first leaders is to a better one (Lemma 6.5), so there are fewer than members.
        let chosen = network.changes.iter().filter(|(at, _)| *at > seconds(10));
        let times: Vec<u64> = chosen.map(|(_, id)| network.usual(id.0 as usize - 1)).collect();
        assert!(times.is_sorted_by(|one, next| next < one), "seed {seed}: {:?}", network.changes);
    }
}

/// Crashes among drawn delays: a majority stays, and the best of those that are left leads.
#[test]
fn after_crashes_the_best_of_those_that_are_left_leads() {
    for seed in 0..40 {
        let mut rng = Rng::with_seed(seed ^ 0xdead);
        let tolerance = Duration::from_millis(1);
        let delays: Vec<Vec<u64>> = (0..5)
            .map(|from| (0..5).map(|to| if from == to { 0 } else { rng.u64(5..=100) }).collect())
            .collect();
        let mut network = Network::new(seed, &delays, tolerance, 2, 0);
        network.run_until(seconds(20));
        for _ in 0..2 {
            // The leader, or another one.
            let leader = network.leader().expect("somebody leads");
            let victim = if rng.bool() { leader } else { rng.usize(0..5) };
            network.members[victim].is_up = false;
            let end = network.now + Duration::from_secs(30);
            network.run_until(end);
        }
        let settled = network.changes.len();
        let end = network.now + Duration::from_secs(40);
        network.run_until(end);
        let leader = network.leader().expect("somebody leads");
        let slack = 12 * tolerance.as_nanos() as u64;
        assert!(network.usual(leader) <= network.best() + slack, "seed {seed}: {:?}", network.changes);
        assert_eq!(network.changes.len(), settled, "seed {seed}: {:?}", network.changes);
    }
}

/// Experiments 0a and 0b of Table 6.1: a far member leads first, and leadership moves to a near one.
#[test]
fn leadership_leaves_the_far_members() {
    for red in [30, 60] {
        let mut network = Network::new(7, &green_and_red(red), Duration::from_millis(1), 2, 0);
        network.try_to_lead(0, Ballot { round: 1, replica: ReplicaId(1) });
        network.run_until(seconds(10));
        assert_eq!(network.changes[0].1, ReplicaId(1));
        assert_eq!(network.changes.len(), 2, "{:?}", network.changes);
        assert_eq!(network.usual(network.leader().unwrap()), nanos(2));
    }
}

/// The two-miss variant of section 6.5: where messages are lost, a single lost answer moves nobody.
#[test]
fn two_misses_change_leaders_less_often_than_one_where_messages_are_lost() {
    let changes = |misses| -> usize {
        let runs = (0..10).map(|seed| {
            let mut network = Network::new(seed, &green_and_red(60), Duration::from_millis(1), misses, 3);
            network.run_until(seconds(300));
            network.changes.iter().filter(|(at, _)| *at > seconds(20)).count()
        });
        runs.sum()
    };
    let (basic, optimized) = (changes(1), changes(2));
    assert!(optimized < basic, "{optimized} changes with two misses, {basic} with one");
}

/// A cut in one direction costs a working leader nothing: in the source the member that hears nothing would begin a
/// round.
#[test]
fn a_member_that_hears_nothing_deposes_no_leader() {
    let mut network = Network::new(3, &green_and_red(30), Duration::from_millis(1), 2, 0);
    network.run_until(seconds(20));
    let (leader, before) = (network.leader().unwrap(), network.changes.len());
    let deaf = (0..5).find(|&at| at != leader).unwrap();
    for from in 0..5 {
        // Nothing arrives within the test.
        network.delays[from][deaf] = nanos(1_000_000);
    }
    network.run_until(seconds(60));
    assert_eq!((network.leader(), network.changes.len()), (Some(leader), before));
}

/// A replica of three, and what it sends.
fn one_of_three(me: u64, planted: Option<Bug>) -> LatencyAware {
    let planted = planted.map(crate::Bug::LatencyElection);
    let mut options = Options { election: ElectionKind::Latency, planted, ..Options::default() };
    options.election_timeout = TIMEOUT;
    LatencyAware::new(&options, Members::new([1, 2, 3].map(ReplicaId), ReplicaId(me)), Time::ZERO)
}

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

#[test]
fn a_member_that_could_not_lead_is_not_chosen() {
    let mut one = one_of_three(1, None);
    let mut effects = Effects::new(Lsn::ZERO);
    one.leads(Time::ZERO);
    one.on_timer(Time::ZERO, true, &mut effects);
    for (member, took) in [(2, 300), (3, 400)] {
        let pong = Message::Pong { number: 1 };
        one.receive(Time::ZERO + ms(took), ReplicaId(member), &pong, &mut effects);
    }
    let stay = Advice::Stay;
    for (able, by_wish, advice) in
        [(false, false, stay), (true, false, Advice::HandTo(ReplicaId(2))), (true, true, stay)]
    {
        // A member has to be better twice.
        for advice in [Advice::Stay, advice] {
            let number = one.asked;
            let now = one.survey.as_ref().unwrap().ends_at();
            one.answered(ReplicaId(2), now);
            // r3 was asked by an operator to hand over, or was not.
            let times = Message::Times { number, able: false, by_wish, times: vec![UNREACHABLE; 3] };
            one.receive(now, ReplicaId(3), &times, &mut effects);
            let times = Message::Times { number, able, by_wish: false, times: vec![nanos(300), 0, nanos(2)] };
            one.receive(now, ReplicaId(2), &times, &mut effects);
            one.on_timer(now, true, &mut effects);
            assert_eq!(one.advice(now), advice);
        }
        let now = one.survey.as_ref().unwrap().ends_at() - ms(1);
        one.answered(ReplicaId(2), now);
        one.on_timer(now, true, &mut effects);
        assert_eq!(one.advice(now), Advice::Stay, "once a cycle");
    }
    // What was said of an earlier question, or of other members than there are, does not count.
    let now = one.survey.as_ref().unwrap().ends_at();
    one.answered(ReplicaId(2), now);
    for (number, times) in [(one.asked - 1, vec![nanos(300), 0, nanos(2)]), (one.asked, vec![0])] {
        let times = Message::Times { number, able: true, by_wish: false, times };
        one.receive(now, ReplicaId(2), &times, &mut effects);
    }
    one.on_timer(now, true, &mut effects);
    assert_eq!(one.advice(now), Advice::Stay);
}

/// What a replica answers to a leader that asks: whether it could lead, and whether an operator moved it.
fn reports(election: &mut LatencyAware, now: Time, leader: u64) -> Option<(bool, bool)> {
    let mut effects = Effects::new(Lsn::ZERO);
    election.receive(now, ReplicaId(leader), &Message::AskTimes { number: 1 }, &mut effects);
    effects.drain().find_map(|effect| match effect {
        Effect::Send { message: Any::Election(Message::Times { able, by_wish, .. }), .. } => {
            Some((able, by_wish))
        }
        _ => None,
    })
}

#[test]
fn a_replica_that_failed_or_was_moved_says_so_for_a_while_that_doubles() {
    let seconds = |seconds: u64| Time::ZERO + ms(1000 * seconds);
    let ballot = |round, replica| Ballot { round, replica: ReplicaId(replica) };
    let mut two = one_of_three(2, None);
    assert_eq!(reports(&mut two, seconds(2), 1), Some((false, false)), "it has just started");
    assert_eq!(reports(&mut two, seconds(3), 1), Some((true, false)));
    two.gave_up(seconds(10));
    assert_eq!(reports(&mut two, seconds(15), 1), Some((false, false)));
    assert_eq!(reports(&mut two, seconds(16), 1), Some((true, false)));
    // It loses leadership to one that it did not ask, then to one that it was told to ask.
    two.promised(ballot(2, 2), seconds(20));
    two.leads(seconds(20));
    two.promised(ballot(3, 3), seconds(21));
    assert_eq!(reports(&mut two, seconds(32), 3), Some((false, false)));
    assert_eq!(reports(&mut two, seconds(33), 3), Some((true, false)));
    two.promised(ballot(5, 2), seconds(40));
    two.leads(seconds(40));
    two.wishes(ReplicaId(3), seconds(41));
    two.promised(ballot(6, 3), seconds(41));
    assert_eq!(reports(&mut two, seconds(41 + 95), 3), Some((false, true)));
    assert_eq!(reports(&mut two, seconds(41 + 96), 3), Some((true, false)));
}

/// Seconds for which r2 says that an operator moved it, each time that it is moved to r3 and leads again at once.
#[test]
fn moves_that_repeat_count_no_longer_than_one() {
    let mut two = one_of_three(2, None);
    let mut now = Time::ZERO + ms(100_000);
    for round in 1..12 {
        two.promised(Ballot { round: 2 * round, replica: ReplicaId(2) }, now);
        two.leads(now);
        two.wishes(ReplicaId(3), now);
        now += ms(500);
        two.promised(Ballot { round: 2 * round + 1, replica: ReplicaId(3) }, now);
        assert_eq!(reports(&mut two, now, 3), Some((false, true)));
        assert_eq!(reports(&mut two, now + ms(95_999), 3), Some((false, true)), "move {round}");
        assert_eq!(reports(&mut two, now + ms(96_000), 3), Some((true, false)), "move {round}");
    }
}

/// What r2 reports of a wish to r3, after it was moved or another leads.
fn by_wish_after(planted: Option<Bug>, followed: Duration, then: Option<u64>) -> bool {
    let mut two = one_of_three(2, planted);
    let now = Time::ZERO + ms(100_000);
    two.promised(Ballot { round: 2, replica: ReplicaId(2) }, now);
    two.leads(now);
    two.wishes(ReplicaId(3), now);
    two.promised(Ballot { round: 3, replica: ReplicaId(3) }, now + followed);
    if let Some(other) = then {
        two.promised(Ballot { round: 4, replica: ReplicaId(other) }, now + followed);
    }
    let (_, by_wish) = reports(&mut two, now + followed, then.unwrap_or(3)).expect("it is asked");
    by_wish
}

/// A wish that was not followed within two time-outs says nothing of a later move.
fn lets_a_wish_lapse(planted: Option<Bug>) -> bool {
    assert!(by_wish_after(planted, TIMEOUT * 2 - ms(1), None));
    !by_wish_after(planted, TIMEOUT * 2, None)
}

/// The member that an operator wanted is gone, and another leads.
fn drops_the_wish_with_its_leader(planted: Option<Bug>) -> bool {
    assert!(by_wish_after(planted, ms(10), Some(3)));
    !by_wish_after(planted, ms(10), Some(1))
}

#[test]
fn a_leader_asks_nobody_else_while_a_wish_waits() {
    let mut one = one_of_three(1, None);
    let now = Time::ZERO + ms(100_000);
    one.leads(now);
    one.answered(ReplicaId(2), now);
    one.heir = Some(ReplicaId(2));
    assert_eq!(one.advice(now), Advice::HandTo(ReplicaId(2)));
    one.wishes(ReplicaId(3), now);
    assert_eq!(one.advice(now), Advice::Stay);
    let later = now + TIMEOUT * 2;
    one.answered(ReplicaId(2), later);
    assert_eq!(one.advice(later), Advice::HandTo(ReplicaId(2)));
}

#[test]
fn a_leader_that_fell_silent_is_not_chosen_and_one_that_hands_over_may_be() {
    let doubts = |election: &LatencyAware, now| [0, 1, 2].map(|member| election.doubts[member].is_on(now));
    let mut two = one_of_three(2, None);
    let mut effects = Effects::new(Lsn::ZERO);
    let r1_led = Ballot { round: 1, replica: ReplicaId(1) };
    two.promised(r1_led, Time::ZERO);
    let due = Time::ZERO + TIMEOUT;
    assert_eq!(two.candidacy(due, r1_led, &mut effects), None);
    let ballot = Ballot { round: 2, replica: ReplicaId(2) };
    let willing = Message::RehearseReply { ballot, willing: true, highest: Ballot::ZERO };
    two.receive(due, ReplicaId(3), &willing, &mut effects);
    assert_eq!(two.candidacy(due, r1_led, &mut effects), Some(ballot));
    two.promised(ballot, due);
    assert_eq!(doubts(&two, due), [true, false, false]);
    // So does a member that neither led nor leads, unless it heard the old leader lately.
    for (heard, refused, expected) in [(400, false, true), (600, false, false), (600, true, true)] {
        let mut three = one_of_three(3, None);
        three.promised(r1_led, Time::ZERO);
        three.heard_leader(Time::ZERO + ms(heard));
        if refused {
            three.link(Time::ZERO, ReplicaId(1), Link::Refused, &mut effects);
        }
        let now = Time::ZERO + ms(600) + TIMEOUT / 2 - ms(100);
        three.promised(ballot, now);
        assert_eq!(doubts(&three, now), [expected, false, false]);
    }
}

/// Whether a replica that was asked to take over stands, where these things are so: its record is durable, this member
/// answered it, and it knows what was decided.
fn would_stand(planted: Option<Bug>, durable: bool, answers: Option<u64>, decided: u64) -> bool {
    let mut two = one_of_three(2, planted);
    let mut effects = Effects::new(Lsn(6));
    two.on_timer(Time::ZERO, true, &mut effects);
    effects.drain();
    let led = Ballot { round: 4, replica: ReplicaId(1) };
    two.promised(led, Time::ZERO);
    let promise = multipaxos::Record::Promised(led).into();
    assert!(!two.asked_to_lead(Time::ZERO, promise, Slot(5), &mut effects));
    let ping = Message::Ping { number: TEST | 1 };
    let sent: Vec<Effect> = effects.drain().collect();
    assert!(matches!(&sent[0], Effect::Append { lsn: Lsn(7), .. }), "{sent:?}");
    let to = vec![ReplicaId(1), ReplicaId(3)];
    assert!(
        matches!(&sent[1], Effect::Send { to: asked, message: Any::Election(message), .. }
            if *message == ping && asked.ids() == to),
        "{sent:?}"
    );
    two.durable(if durable { Lsn(7) } else { Lsn(6) });
    // Others decide meanwhile.
    two.decided(Slot(decided + 1), Slot(decided), false);
    if let Some(member) = answers {
        two.receive(Time::ZERO, ReplicaId(member), &Message::Pong { number: TEST }, &mut effects);
        let early = two.candidacy(Time::ZERO, led, &mut effects);
        assert!(early.is_none() || planted.is_some(), "that was an earlier question");
        two.receive(Time::ZERO, ReplicaId(member), &Message::Pong { number: TEST | 1 }, &mut effects);
    }
    let due_at_once = two.deadline(led) == Time::ZERO;
    let stands = two.candidacy(Time::ZERO, led, &mut effects).is_some();
    assert_eq!(due_at_once, stands);
    stands
}

#[test]
fn a_replica_that_is_asked_to_take_over_stands_once_its_disk_a_quorum_and_what_was_decided_are_there() {
    assert!(would_stand(None, true, Some(1), 5) && would_stand(None, true, Some(3), 6));
    assert!(!would_stand(None, false, Some(1), 5), "its record is not durable");
    assert!(!would_stand(None, true, None, 5), "nobody answers");
    assert!(!would_stand(None, true, Some(1), 4), "it lacks what was decided");
}

#[test]
fn a_replica_that_cannot_take_over_in_time_says_that_it_could_not_lead() {
    let mut two = one_of_three(2, None);
    let mut effects = Effects::new(Lsn::ZERO);
    let led = Ballot { round: 4, replica: ReplicaId(1) };
    let later = Time::ZERO + TIMEOUT * 10;
    two.promised(led, later);
    let promise = || multipaxos::Record::Promised(led).into();
    assert!(!two.asked_to_lead(later, promise(), Slot::ZERO, &mut effects));
    effects.drain();
    assert!(!two.asked_to_lead(later, promise(), Slot::ZERO, &mut effects));
    assert_eq!(effects.drain().count(), 0, "it prepares already");
    assert_eq!(two.deadline(led), Time::ZERO, "pings are due");
    two.on_timer(later, true, &mut effects);
    assert_eq!(reports(&mut two, later + TIMEOUT / 2, 1), Some((true, false)));
    two.heard_leader(later + TIMEOUT);
    two.on_timer(later + TIMEOUT, true, &mut effects);
    assert!(two.preparation.is_none());
    assert_eq!(reports(&mut two, later + TIMEOUT, 1), Some((false, false)));
    assert_eq!(two.candidacy(later + TIMEOUT, led, &mut effects), None);
}

#[test]
fn a_member_whose_disk_hangs_does_not_answer_one_that_would_need_its_promise() {
    let mut three = one_of_three(3, None);
    let mut effects = Effects::new(Lsn::ZERO);
    for (fit, test, answers) in [(true, TEST, true), (false, TEST, false), (false, 0, true)] {
        three.on_timer(Time::ZERO, fit, &mut effects);
        effects.drain();
        three.receive(Time::ZERO, ReplicaId(2), &Message::Ping { number: test | 1 }, &mut effects);
        assert_eq!(effects.drain().count() == 1, answers);
    }
}

/// Links of five members in a row: the second is near the first and the third, which are far from each other, and the
/// last two are down.
fn exactly_a_quorum(planted: Option<Bug>) -> Network {
    let far = |from: usize, to: usize| if from.abs_diff(to) == 1 { 10 } else { 100 };
    let delays: Vec<Vec<u64>> =
        (0..5).map(|from| (0..5).map(|to| if from == to { 0 } else { far(from, to) }).collect()).collect();
    let tuning = Tuning { tolerance: ms(1), ..Tuning::default() };
    let mut network = Network::with(planted, 5, &delays, tuning, 0);
    (network.members[3].is_up, network.members[4].is_up) = (false, false);
    network.try_to_lead(0, Ballot { round: 1, replica: ReplicaId(1) });
    network.run_until(Time::ZERO + ms(2000));
    assert_eq!(network.leader(), Some(0));
    network
}

/// The chosen member's disk hangs, and without it there is no quorum.
fn serves_while_the_disk_of_the_best_hangs(planted: Option<Bug>) -> bool {
    let mut network = exactly_a_quorum(planted);
    network.members[1].hangs = true;
    network.run_until(seconds(60));
    network.leader() == Some(0) && network.nobody_led == Duration::ZERO
}

/// The links of the chosen member to all but the leader are cut as it is asked to take over.
fn serves_while_the_best_is_cut_off(planted: Option<Bug>) -> bool {
    let tuning = Tuning { tolerance: ms(1), ..Tuning::default() };
    let mut network = Network::with(planted, 5, &green_and_red(30), tuning, 0);
    network.try_to_lead(0, Ballot { round: 1, replica: ReplicaId(1) });
    while !network.sent.values().any(|(_, _, sent)| matches!(sent, Sent::TakeOver)) {
        let soon = network.now + ms(5);
        network.run_until(soon);
    }
    let (_, heir, _) = *network.sent.values().find(|(_, _, sent)| matches!(sent, Sent::TakeOver)).unwrap();
    for other in (1..5).filter(|&other| other != heir) {
        (network.delays[heir][other], network.delays[other][heir]) = (nanos(1_000_000), nanos(1_000_000));
    }
    network.run_until(seconds(60));
    network.leader().is_some() && network.nobody_led < TIMEOUT / 2
}

/// The best member gives up soon after it begins to lead, each time.
fn leads_seldom_where_it_fails(planted: Option<Bug>) -> bool {
    let tuning = Tuning { tolerance: ms(1), ..Tuning::default() };
    let mut delays = green_and_red(60);
    // The fourth is nearest to a majority.
    for other in (0..5).filter(|&other| other != 3) {
        (delays[3][other], delays[other][3]) = (1, 1);
    }
    (delays[2][4], delays[4][2]) = (20, 20);
    let mut network = Network::with(planted, 9, &delays, tuning, 0);
    network.try_to_lead(0, Ballot { round: 1, replica: ReplicaId(1) });
    while network.now < seconds(300) {
        let soon = network.now + ms(1000);
        network.run_until(soon);
        let now = network.now;
        let best = &mut network.members[3];
        if best.leads {
            best.leads = false;
            best.election.gave_up(now);
        }
    }
    let often = network.changes.iter().filter(|(_, id)| *id == ReplicaId(4)).count();
    (2..10).contains(&often)
}

/// A far member leads first, and a near one takes over.
fn leaves_the_far(planted: Option<Bug>) -> bool {
    let tuning = Tuning { tolerance: ms(1), ..Tuning::default() };
    let mut network = Network::with(planted, 7, &green_and_red(30), tuning, 0);
    network.try_to_lead(0, Ballot { round: 1, replica: ReplicaId(1) });
    network.run_until(seconds(20));
    network.leader().is_some_and(|leader| network.usual(leader) == nanos(2))
}

/// A member that learns of a leader by its question answers it.
fn answers_an_unknown_leader(planted: Option<Bug>) -> bool {
    let mut three = one_of_three(3, planted);
    three.promised(Ballot { round: 1, replica: ReplicaId(1) }, Time::ZERO);
    assert!(reports(&mut three, Time::ZERO, 1).is_some());
    reports(&mut three, Time::ZERO, 2).is_some()
}

/// A member that crashed is not chosen, where the others would be worse if it lived.
fn leaves_out_the_crashed(planted: Option<Bug>) -> bool {
    let tuning = Tuning { tolerance: ms(1), ..Tuning::default() };
    let mut network = Network::with(planted, 7, &green_and_red(30), tuning, 0);
    network.try_to_lead(2, Ballot { round: 3, replica: ReplicaId(3) });
    network.run_until(seconds(20));
    assert_eq!(network.leader(), Some(2));
    network.members[3].is_up = false;
    // Now the leader is far from all others, and the fifth is the best of those that are left.
    for other in (0..5).filter(|&other| other != 2) {
        (network.delays[2][other], network.delays[other][2]) = (nanos(100), nanos(100));
    }
    network.run_until(seconds(60));
    network.leader().is_some_and(|leader| network.usual(leader) == network.best())
}

/// A leader with bursts of work, which three of four pings meet at most, stays.
fn stays_where_it_is_busy(planted: Option<Bug>) -> bool {
    let tuning = Tuning { tolerance: ms(1), ..Tuning::default() };
    let mut network = Network::with(planted, 7, &green_and_red(30), tuning, 0);
    network.try_to_lead(2, Ballot { round: 3, replica: ReplicaId(3) });
    network.run_until(seconds(20));
    network.busy = Some((2, ms(800), ms(550)));
    network.run_until(seconds(80));
    network.leader() == Some(2) && network.changes.len() == 1
}

/// An operator moves leadership to a far member, and the one that led before sleeps for a moment.
fn follows_a_wish_whose_member_sleeps(planted: Option<Bug>) -> bool {
    let tuning = Tuning { tolerance: ms(1), ..Tuning::default() };
    let mut network = Network::with(planted, 7, &green_and_red(30), tuning, 0);
    network.try_to_lead(2, Ballot { round: 3, replica: ReplicaId(3) });
    network.run_until(seconds(20));
    network.transfer(2, 0);
    network.run_until(seconds(25));
    assert_eq!(network.leader(), Some(0));
    for start in [25, 40, 60] {
        network.run_until(seconds(start));
        network.members[2].is_up = false;
        network.run_until(seconds(start) + ms(1800));
        network.members[2].is_up = true;
    }
    network.run_until(seconds(90));
    network.leader() == Some(0)
}

/// The best of five members crashes whenever it leads, and another near one exists. The member that replaces it is far
/// and hands over.
fn is_remembered_by_all(planted: Option<Bug>) -> bool {
    let (best, near) = (3, 1);
    let far = |from: usize, to: usize| match (from == to, [from, to]) {
        (true, _) => 0,
        (_, ends) if ends.contains(&best) => 1,
        (_, ends) if ends.contains(&near) => 5,
        _ => 60,
    };
    let delays: Vec<Vec<u64>> = (0..5).map(|from| (0..5).map(|to| far(from, to)).collect()).collect();
    let tuning = Tuning { tolerance: ms(1), ..Tuning::default() };
    let mut network = Network::with(planted, 9, &delays, tuning, 0);
    network.try_to_lead(0, Ballot { round: 1, replica: ReplicaId(1) });
    while network.now < seconds(300) {
        let soon = network.now + ms(500);
        network.run_until(soon);
        if network.members[best].leads && network.members[best].is_up {
            network.crash(best);
            let replaced = network.now + TIMEOUT * 4;
            network.run_until(replaced);
            network.restart(best);
        }
    }
    let led: Vec<Time> =
        network.changes.iter().filter(|(_, id)| *id == ReplicaId(4)).map(|(at, _)| *at).collect();
    assert!(led.len() > 3, "it leads again and again");
    // Each time it stays away for as long as the last time or longer, give or take a cycle.
    let pauses: Vec<Duration> = led.windows(2).map(|pair| pair[1].since(pair[0])).collect();
    pauses.windows(2).all(|pair| pair[1] + TIMEOUT * 2 / 3 > pair[0])
}

/// All links become longer at one time. Members notice it at different moments.
fn stays_where_all_links_change(planted: Option<Bug>) -> bool {
    let equal: Vec<Vec<u64>> =
        (0..5).map(|from| (0..5).map(|to| u64::from(from != to) * 10).collect()).collect();
    let stays = |start: u64| {
        let tuning = Tuning { tolerance: ms(1), ..Tuning::default() };
        let mut network = Network::with(planted, 11, &equal, tuning, 0);
        for member in 1..5 {
            network.run_until(Time::ZERO + ms(170 * member as u64));
            network.crash(member);
            network.restart(member);
        }
        network.try_to_lead(0, Ballot { round: 1, replica: ReplicaId(1) });
        network.run_until(Time::ZERO + ms(20_000 + start));
        assert_eq!(network.leader(), Some(0));
        for (from, row) in network.delays.iter_mut().enumerate() {
            (0..5).filter(|&to| to != from).for_each(|to| row[to] += nanos(200));
        }
        network.run_until(seconds(60));
        network.changes.len() == 1
    };
    [0, 130, 290, 470, 610, 850].into_iter().all(stays)
}

/// The election of the next epoch of the same replica, among these members.
fn in_the_next_epoch(election: &LatencyAware, members: &[u64], now: Time) -> LatencyAware {
    let mut options =
        Options { election: ElectionKind::Latency, planted: election.planted, ..Options::default() };
    options.election_timeout = TIMEOUT;
    let members = Members::new(members.iter().map(|&id| ReplicaId(id)), election.members.me());
    LatencyAware::new(&options, members, now).remembering(&election.memory(), now)
}

/// r2 was moved by an operator, and says so in the next epoch.
fn keeps_the_wish_in_the_next_epoch(planted: Option<Bug>) -> bool {
    let mut two = one_of_three(2, planted);
    let now = Time::ZERO + ms(100_000);
    two.promised(Ballot { round: 2, replica: ReplicaId(2) }, now);
    two.leads(now);
    two.wishes(ReplicaId(3), now);
    two.promised(Ballot { round: 3, replica: ReplicaId(3) }, now);
    let mut next = in_the_next_epoch(&two, &[2, 3, 4], now + ms(1000));
    reports(&mut next, now + ms(1000), 3) == Some((false, true))
}

#[test]
fn what_is_known_of_members_counts_in_the_next_epoch_whoever_they_are_then() {
    let mut two = one_of_three(2, None);
    let now = Time::ZERO + ms(100_000);
    two.doubts[2].begins(now, &Rules::SOUND);
    two.doubts[0].begins(now - TIMEOUT * 10, &Rules::SOUND);
    let mut next = in_the_next_epoch(&two, &[2, 3, 4], now);
    assert_eq!([1, 2].map(|member| next.doubts[member].is_on(now)), [true, false], "r3, and not r4");
    assert_eq!(reports(&mut next, now, 3), Some((true, false)), "it did not start now");
    // A second failure counts twice as long.
    next.doubts[1].begins(now, &Rules::SOUND);
    assert!(next.doubts[1].is_on(now + TIMEOUT * 4 - ms(1)));
    // The member that an operator wanted leads on, and expects that the one that led before says so.
    two.asked_by = Some(ReplicaId(3));
    two.leads(now);
    let mut next = in_the_next_epoch(&two, &[2, 3, 4], now);
    next.leads(now);
    assert_eq!(next.survey.as_ref().unwrap().moved_by_wish(), Some(1));
    // The member that an operator wanted has left the group.
    two.kept = Some(Wish { heir: ReplicaId(1), ends_at: now + TIMEOUT });
    assert!(in_the_next_epoch(&two, &[2, 3], now).kept.is_none());
    assert!(in_the_next_epoch(&two, &[1, 2], now).kept.is_some());
    assert!(in_the_next_epoch(&two, &[1, 2], now + TIMEOUT).kept.is_none(), "it counts no longer");
}

/// r3 hears r1 to the end, and whether it remembers that r1 failed after r2, which had rehearsed this ballot this long
/// ago, takes its place.
fn doubts_after_a_rehearsal(planted: Option<Bug>, round: u64, ago: Duration) -> bool {
    let mut three = one_of_three(3, planted);
    let mut effects = Effects::new(Lsn::ZERO);
    three.promised(Ballot { round: 1, replica: ReplicaId(1) }, Time::ZERO);
    let now = Time::ZERO + TIMEOUT * 4;
    let rehearse = Message::Rehearse { ballot: Ballot { round, replica: ReplicaId(2) } };
    three.receive(now - ago, ReplicaId(2), &rehearse, &mut effects);
    three.heard_leader(now);
    three.promised(Ballot { round: 2, replica: ReplicaId(2) }, now);
    three.doubts[0].is_on(now)
}

/// A bystander knows of a failure by the rehearsal before it, and takes no other for one.
fn learns_of_a_failure_by_the_rehearsal(planted: Option<Bug>) -> bool {
    assert!(!doubts_after_a_rehearsal(planted, 5, ms(10)), "of another ballot");
    assert!(!doubts_after_a_rehearsal(planted, 2, TIMEOUT + ms(1)), "long ago");
    doubts_after_a_rehearsal(planted, 2, ms(10))
}

/// Six requests in a row, of which none is followed in time, leave r2 out for two time-outs and then for four.
fn is_left_out_once_for_requests_in_a_row(planted: Option<Bug>) -> bool {
    let mut two = one_of_three(2, planted);
    let mut effects = Effects::new(Lsn::ZERO);
    let led = Ballot { round: 4, replica: ReplicaId(1) };
    let mut now = Time::ZERO + TIMEOUT * 100;
    two.promised(led, now);
    for _ in 0..6 {
        assert!(!two.asked_to_lead(now, multipaxos::Record::Promised(led).into(), Slot::ZERO, &mut effects));
        now += TIMEOUT;
        two.on_timer(now, true, &mut effects);
    }
    assert_eq!(reports(&mut two, now, 1), Some((false, false)));
    reports(&mut two, now + TIMEOUT, 1) == Some((true, false))
}

/// The answers that r2 lacks come when its time is over, in one burst, before its timer fires. It hears the leader.
fn leaves_a_leader_that_works_when_answers_are_late(planted: Option<Bug>) -> bool {
    let led = Ballot { round: 4, replica: ReplicaId(1) };
    let stands_after = |late: Duration| {
        let mut two = one_of_three(2, planted);
        let mut effects = Effects::new(Lsn(6));
        two.on_timer(Time::ZERO, true, &mut effects);
        two.promised(led, Time::ZERO);
        let promise = multipaxos::Record::Promised(led).into();
        assert!(!two.asked_to_lead(Time::ZERO, promise, Slot::ZERO, &mut effects));
        two.decided(Slot::ZERO, Slot::ZERO, false);
        let now = Time::ZERO + late;
        two.durable(Lsn(7));
        two.heard_leader(now);
        two.receive(now, ReplicaId(3), &Message::Pong { number: TEST | 1 }, &mut effects);
        two.candidacy(now, led, &mut effects).is_some()
    };
    assert!(stands_after(TIMEOUT - ms(1)));
    !stands_after(TIMEOUT)
}

/// Above an election that a protocol has itself: r1 leads far from the others, and asks r2 whether it is ready.
fn waits_until_the_best_is_ready(planted: Option<Bug>) -> bool {
    let planted = planted.map(crate::Bug::LatencyElection);
    let options = Options { election: ElectionKind::Latency, planted, ..Options::default() };
    let members = Members::new([1, 2, 3].map(ReplicaId), ReplicaId(1));
    let mut one = Mover::new(&options, members, &crate::election::Memory::default(), Time::ZERO);
    let (mut now, mut asked, mut waits) = (Time::ZERO + Duration::from_secs(100), None, true);
    one.leads(now, Ballot { round: 1, replica: ReplicaId(1) });
    for _ in 0..5 {
        let mut effects = Effects::new(Lsn::ZERO);
        waits &= one.on_timer(now, true, &mut effects).is_none();
        let said: Vec<Any> = effects
            .drain()
            .filter_map(|effect| match effect {
                Effect::Send { message, .. } => Some(message),
                _ => None,
            })
            .collect();
        for message in said {
            let answer = match message {
                Any::Election(Message::Ping { number }) => Message::Pong { number },
                Any::Election(Message::AskTimes { number }) => Message::Times {
                    number,
                    able: true,
                    by_wish: false,
                    times: vec![nanos(300), 0, nanos(2)],
                },
                Any::Election(Message::AskReady { number }) => {
                    asked = Some(number);
                    continue;
                }
                _ => continue,
            };
            let (term, late) = (multipaxos::Record::Promised(Ballot::ZERO).into(), now + ms(300));
            assert_eq!(one.receive(late, ReplicaId(2), &answer, term, &mut effects), None);
        }
        now += options.election_timeout;
    }
    let ready = Message::Ready { number: asked.unwrap_or_default() };
    let term = multipaxos::Record::Promised(Ballot::ZERO).into();
    waits
        && one.receive(now, ReplicaId(2), &ready, term, &mut Effects::new(Lsn::ZERO))
            == Some((ReplicaId(2), false))
}

/// r1 leads and is nearest to a majority, and all commands come from r3, which is far from r1.
fn follows_the_commands(planted: Option<Bug>) -> bool {
    let chosen = |origins: bool| {
        let planted = planted.map(crate::Bug::LatencyElection);
        let mut options = Options { election: ElectionKind::Latency, planted, ..Options::default() };
        options.latency.origins = origins;
        let mut one =
            LatencyAware::new(&options, Members::new([1, 2, 3].map(ReplicaId), ReplicaId(1)), Time::ZERO);
        one.ordered(ReplicaId(3), 10);
        let mut effects = Effects::new(Lsn::ZERO);
        let rows = [[0, 20, 200], [20, 0, 30], [200, 30, 0]].map(|row| row.map(nanos));
        let survey = Survey::new(1, Time::ZERO, 3, None);
        let mut survey = survey.next(2, Time::ZERO, 0, &rows[0], &Rules::SOUND);
        for (member, times) in rows.iter().enumerate().skip(1) {
            survey.reports(member, 2, Report { able: true, by_wish: false, times });
        }
        (one.survey, one.was_better) = (Some(survey), true);
        one.ask(Time::ZERO, &mut effects);
        one.heir
    };
    assert_eq!(chosen(false), None, "r1 is nearest to a majority, with r2");
    chosen(true) == Some(ReplicaId(3))
}

#[test]
fn a_follower_forgets_from_where_commands_came_too() {
    let mut options = Options { election: ElectionKind::Latency, ..Options::default() };
    options.latency.origins = true;
    let members = Members::new([1, 2, 3].map(ReplicaId), ReplicaId(2));
    let mut two = LatencyAware::new(&options, members, Time::ZERO);
    two.ordered(ReplicaId(1), 1000);
    two.ordered(ReplicaId(9), 1000);
    for round in 0..40 {
        two.on_timer(Time::ZERO + options.election_timeout * round, true, &mut Effects::new(Lsn::ZERO));
    }
    two.ordered(ReplicaId(3), 1000);
    assert!(matches!(two.origins()[..], [(ReplicaId(1), 0..10), (ReplicaId(2), 0), (ReplicaId(3), 990..)]));
    assert_eq!(one_of_three(2, None).origins(), [], "by default nothing is counted");
}

/// A bug, and a scene that goes well without it.
type Scene = (Bug, fn(Option<Bug>) -> bool);

const SCENES: [Scene; 20] = [
    (Bug::StandsBeforeRecord, serves_while_the_disk_of_the_best_hangs),
    (Bug::StandsWithoutQuorum, serves_while_the_best_is_cut_off),
    (Bug::NeverAbstains, leads_seldom_where_it_fails),
    (Bug::AbstainsForever, leads_seldom_where_it_fails),
    (Bug::HandsToItself, leaves_the_far),
    (Bug::FirstQuestionUnanswered, answers_an_unknown_leader),
    (Bug::KeepsMatrix, leaves_out_the_crashed),
    (Bug::LastAnswerCounts, stays_where_it_is_busy),
    (Bug::StandsWithoutLag, |planted| would_stand(planted, true, Some(1), 5)),
    (Bug::ForgetsWish, follows_a_wish_whose_member_sleeps),
    (Bug::WishStays, lets_a_wish_lapse),
    (Bug::KeepsWishOfGone, drops_the_wish_with_its_leader),
    (Bug::OnlyReplacerRemembers, is_remembered_by_all),
    (Bug::MovesAfterOneCycle, stays_where_all_links_change),
    (Bug::BystanderForgets, learns_of_a_failure_by_the_rehearsal),
    (Bug::ForgetsWithEpoch, keeps_the_wish_in_the_next_epoch),
    (Bug::CountsEachRequest, is_left_out_once_for_requests_in_a_row),
    (Bug::StandsLate, leaves_a_leader_that_works_when_answers_are_late),
    (Bug::TransfersAtOnce, waits_until_the_best_is_ready),
    (Bug::IgnoresOrigins, follows_the_commands),
];

#[test]
fn every_planted_bug_shows_in_a_scene_and_nothing_without_it() {
    assert_eq!(SCENES.map(|(bug, _)| bug), Bug::ALL);
    for (bug, goes_well) in SCENES {
        assert!(goes_well(None), "{bug:?} is not planted");
        assert!(!goes_well(Some(bug)), "{bug:?} does not show");
    }
}

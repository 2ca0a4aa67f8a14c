//! The log in rounds, which is a protocol of the laboratory: what the other files ask of all that serve is asked of it
//! here.

use std::time::Duration;

use synod_consensus::{
    Bug, ElectionKind, Options, ProtocolKind,
    rounds::{self, RoundsAlgorithm},
};
use synod_sim::{
    Coverage, Odds, Wire,
    check::Invariant,
    explore::{Bounds, Incomplete, Report, Walks, explore_with, options, walk_with},
    plan::{ChangePlan, Durability, Family, FaultWeights, Plan},
};

use super::explore::{CALM, everything_given, everything_of};

const ROUNDS: ProtocolKind = ProtocolKind::Rounds;

/// Seeds within which every bug must be found.
const SEEDS_MAX: u64 = 300;

/// Plays what these seeds draw, and says what they came to.
fn play(seeds: std::ops::Range<u64>, plan: impl Fn(u64) -> Plan) -> (Coverage, usize) {
    let (mut coverage, mut operations) = (Coverage::default(), 0);
    for seed in seeds {
        let outcome =
            synod_sim::run(&plan(seed)).unwrap_or_else(|failure| panic!("{}", failure.report(ROUNDS, None)));
        assert!(!outcome.undecided, "seed {seed}: the history was too hard to check");
        operations += outcome.operations;
        coverage.add(&outcome.coverage);
    }
    (coverage, operations)
}

/// What a seed draws of a family.
fn of(family: Family) -> impl Fn(u64) -> Plan {
    move |seed| Plan::draw_general(seed, ROUNDS, ElectionKind::None).of_family(family)
}

/// The same with an algorithm, where enough replicas begin that it survives the loss of one.
fn with(algorithm: RoundsAlgorithm, seed: u64, mut plan: Plan) -> Plan {
    for settings in std::iter::once(&mut plan.settings).chain(&mut plan.own) {
        settings.consensus.rounds.algorithm = algorithm;
    }
    if algorithm == RoundsAlgorithm::OneThirdRule {
        plan.replicas = [4, 5, 7][seed as usize % 3];
        plan.own.clear();
    }
    plan
}

#[test]
fn every_invariant_holds_for_some_hundred_seeds() {
    let (coverage, operations) = play(0..120, |seed| Plan::draw(seed, ROUNDS));
    assert!(operations > 25 * 120, "{operations}: {coverage}");
    let Coverage { crashes, logs_lost, changes_made, leases_ended, events_told, .. } = coverage;
    for (what, count) in [
        ("crashes", crashes),
        ("lost logs", logs_lost),
        ("changes", changes_made),
        ("leases", leases_ended),
        ("events", events_told),
    ] {
        assert!(count >= 40, "only {count} {what}: {coverage}");
    }
}

#[test]
fn every_invariant_holds_for_each_algorithm() {
    for algorithm in RoundsAlgorithm::ALL.iter().map(|(_, algorithm)| *algorithm) {
        let (coverage, operations) = play(200..224, |seed| with(algorithm, seed, of(Family::General)(seed)));
        assert!(operations > 25 * 24, "{algorithm}: {operations}: {coverage}");
        assert!(coverage.crashes > 40 && coverage.logs_lost > 0, "{algorithm}: {coverage}");
    }
}

#[test]
fn groups_change_and_change_to_other_protocols_and_back() {
    let (coverage, operations) = play(0..30, of(Family::Change));
    assert!(operations > 25 * 30, "{operations}: {coverage}");
    assert!(coverage.changes_made > 100 && coverage.promotions > 10, "{coverage}");
}

#[test]
fn every_invariant_holds_where_disks_fail() {
    let (coverage, _) = play(0..16, of(Family::Disk));
    assert!(coverage.logs_repaired > 40 && coverage.slots_kept > 400, "{coverage}");
    let (coverage, _) = play(0..16, of(Family::Files));
    assert!(coverage.copies_found + coverage.wiped > 5, "{coverage}");
}

#[test]
fn every_invariant_holds_for_nodes_with_several_groups() {
    let (coverage, _) = play(0..10, |seed| Plan::draw(seed, ROUNDS).of_groups(3));
    assert!(coverage.sets_followed > 5 && coverage.changes_made > 10, "{coverage}");
}

/// What a seed draws, with more of what brings a bug to light: coordinators that change while much is under way.
fn plan_of(seed: u64, bug: Bug) -> Plan {
    let mut plan = of(Family::General)(seed);
    let timeout = plan.settings.consensus.election_timeout;
    plan.own.clear();
    plan.replicas = if seed.is_multiple_of(2) { 3 } else { 5 };
    plan.settings.consensus.rounds = rounds::Tuning::default();
    plan.durability = Durability::Sync;
    plan.changes = ChangePlan::NONE;
    plan.clients.operations = 400;
    plan.clients.think = (Duration::ZERO, timeout / 50);
    plan.duration = timeout * 40;
    plan.faults.gap = (timeout / 8, timeout);
    plan.faults.any_step = Odds::per_million(500);
    let none = FaultWeights::default();
    plan.faults.weights = match bug {
        Bug::Rounds(rounds::Bug::SpeakWithoutMemory) => FaultWeights { lose_log: 4, split: 1, ..none },
        Bug::ForgetPromise | Bug::Rounds(rounds::Bug::ResumeInSamePhase) => {
            FaultWeights { crash: 4, crash_all: 2, split: 1, ..none }
        }
        _ => FaultWeights { crash: 3, split: 2, partial: 3, one_way: 2, ..none },
    };
    if let Bug::Rounds(
        rounds::Bug::DecideWithMajority
        | rounds::Bug::AdoptWithMajority
        | rounds::Bug::AdoptSmallest
        | rounds::Bug::CountDecided,
    ) = bug
    {
        // A majority is fewer than two thirds of them.
        plan.replicas = if seed.is_multiple_of(2) { 5 } else { 7 };
        plan.settings.consensus.rounds.algorithm = RoundsAlgorithm::OneThirdRule;
    }
    if matches!(bug, Bug::Rounds(_)) {
        plan.network.wire = Wire::Datagram;
        plan.network.loss = Odds::percent(15);
    }
    plan
}

/// A replica with the smallest value in place of what the others say is found before it says so.
#[test]
fn an_estimate_that_differs_from_what_a_quorum_said_is_found_where_it_is_adopted() {
    let bug = Bug::Rounds(rounds::Bug::AdoptSmallest);
    let finds = |seed| {
        let mut planted = plan_of(seed, bug);
        planted.settings.consensus.planted = Some(bug);
        synod_sim::run(&planted).err().map(|failure| failure.violation.invariant)
    };
    assert!((0..SEEDS_MAX).any(|seed| finds(seed) == Some(Invariant::EstimateFollows)));
}

/// A protocol of the laboratory names the bugs that seeds find in it, as the others do.
#[test]
fn every_planted_bug_is_found_and_nothing_without_it() {
    for &bug in Bug::of(ROUNDS) {
        let found = (0..SEEDS_MAX).find_map(|seed| {
            let mut planted = plan_of(seed, bug);
            planted.settings.consensus.planted = Some(bug);
            let violation = synod_sim::run(&planted).err()?.violation;
            println!("{bug:?}: found after {} seeds by {violation}", seed + 1);
            Some(seed)
        });
        let seed = found.unwrap_or_else(|| panic!("{bug:?}: not found"));
        play(seed..seed + 1, |seed| plan_of(seed, bug));
    }
}

/// The options with which this algorithm is explored.
fn exploring(algorithm: RoundsAlgorithm) -> Options {
    let mut options = options(ROUNDS);
    options.rounds.algorithm = algorithm;
    options
}

#[test]
fn rounds_hold_in_every_state() {
    use RoundsAlgorithm::{LastVoting3, LastVoting4, OneThirdRule};
    let two = Bounds { replicas: 2, timeouts: 0, ..CALM };
    everything_given(exploring(LastVoting3), Bounds { crashes: 1, catch_ups: 1, ..two }, 3_000);
    everything_given(exploring(LastVoting3), Bounds { timeouts: 1, ..two }, 1_500);
    everything_given(exploring(LastVoting4), Bounds { crashes: 1, ..two }, 3_000);
    everything_given(exploring(OneThirdRule), Bounds { replicas: 3, ..two }, 2_500);
}

/// Three replicas, and four with OneThirdRule, a crash and a catch-up: not to the end, which is too far away.
#[test]
fn rounds_hold_in_every_state_near_the_beginning() {
    let crash = Bounds { timeouts: 0, crashes: 1, catch_ups: 1, ..CALM };
    let three = Bounds { depth: Some(11), ..crash };
    everything_of(exploring(RoundsAlgorithm::LastVoting3), three, 70_000);
    let four = Bounds { replicas: 4, depth: Some(11), ..crash };
    everything_of(exploring(RoundsAlgorithm::OneThirdRule), four, 90_000);
}

#[test]
fn random_walks_find_nothing_and_planted_bugs_are_found() {
    let bounds =
        Bounds { replicas: 5, commands: 3, timeouts: 6, catch_ups: 2, crashes: 1, pages: true, ..CALM };
    for algorithm in [RoundsAlgorithm::LastVoting3, RoundsAlgorithm::OneThirdRule] {
        let walks = Walks { walks: 40, steps: 200, seed: 1 };
        let report = walk_with(exploring(algorithm), bounds, walks, &mut |_| ());
        assert!(report.found.is_none(), "{}", report.found.expect("it is there").story.join("\n"));
        assert_eq!(report.incomplete, Some(Incomplete::Random));
        println!("{algorithm:?}: {:?}", report.count);
        assert!(report.count.states > 2_000, "{:?}", report.count);
    }
    let two = Bounds { replicas: 2, ..CALM };
    for (bug, bounds, invariant) in [
        (Bug::VoteBeforeDurable, two, Invariant::DurableBeforePromise),
        (rounds::Bug::SpeakBeforeDurable.into(), two, Invariant::LetterPromised),
        (Bug::ForgetPromise, Bounds { crashes: 1, ..two }, Invariant::PromiseKept),
    ] {
        let mut planted = options(ROUNDS);
        planted.planted = Some(bug);
        let Report { count, found, .. } = explore_with(planted, bounds, &mut |_| ());
        let found = found.unwrap_or_else(|| panic!("{bug:?}: not found in {count:?}"));
        assert_eq!(found.violation.invariant, invariant, "{bug:?}: {}", found.violation);
    }
}

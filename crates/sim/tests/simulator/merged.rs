//! Merged groups: some seeds, as a smoke test (`synod sim merged` runs any number), and planted bugs.

use std::time::Duration;

use synod_replica::{MergeBug, Skips};
use synod_sim::{
    Coverage, Trace, World,
    plan::Plan,
    run,
    situations::{MergeCounts, MergeSituation},
};

/// Every seed passes, and what is dangerous about merging occurs in them.
#[test]
fn every_invariant_holds_for_some_seeds_of_merged_groups() {
    let (mut merges, mut coverage) = (MergeCounts::default(), Coverage::default());
    let (mut commands, mut operations) = (0, 0);
    // Among these each situation occurs.
    let seeds = 500..600;
    let runs = seeds.end - seeds.start;
    for seed in seeds {
        let outcome = run(&Plan::draw_merging(seed)).unwrap_or_else(|failure| panic!("{failure}"));
        assert!(!outcome.undecided, "seed {seed}: the history was too hard to check");
        commands += outcome.commands;
        operations += outcome.operations;
        merges.add_run(&outcome.merges);
        coverage.add(&outcome.coverage);
    }
    let runs = usize::try_from(runs).unwrap();
    assert!(commands > 40 * runs && operations > 25 * runs, "{commands} commands, {operations} operations");
    for &situation in MergeSituation::ALL {
        assert!(merges.of(situation) > 0, "in no run: {}\n{merges}", situation.name());
    }
    let Coverage { jumps, leases_ended_with_keys, leases_restarted, .. } = coverage;
    let Coverage { watches_after_crash, watches_from_history, watches_after_snapshot, .. } = coverage;
    for count in [
        jumps,
        leases_ended_with_keys,
        leases_restarted,
        watches_after_crash,
        watches_from_history,
        watches_after_snapshot,
        coverage.watches_compacted,
    ] {
        assert!(count > 0, "{coverage}");
    }
}

#[test]
fn a_run_of_merged_groups_is_repeatable() {
    let plan = Plan::draw_merging(7);
    assert_eq!(run(&plan).unwrap().fingerprint, run(&plan).unwrap().fingerprint);
}

#[test]
fn each_planted_bug_of_a_merge_is_found() {
    for &bug in MergeBug::ALL {
        let found = (0..300).find_map(|seed| run(&Plan::draw_merging(seed).with_merge_bug(bug)).err());
        let failure = found.unwrap_or_else(|| panic!("{bug:?} is not found"));
        println!("{bug:?}: seed {}: {}", failure.seed, failure.violation);
        assert!(run(&Plan::draw_merging(failure.seed)).is_ok(), "{bug:?}: the seed fails without it");
    }
}

/// What an idle group's leader missed to skip while it was stopped it makes up for within two periods (Benz 2013,
/// ERR-11).
#[test]
fn a_second_in_which_nobody_skips_is_caught_up() {
    for skips in [Skips::Follow, Skips::Demand, Skips::Lambda(6_000)] {
        let mut world = World::new(Plan::with_an_idle_group(skips), Trace::Off);
        let (before, after) = world.pause_of_the_idle_leader(Duration::from_millis(200)).unwrap();
        assert!(before >= 10 && after <= 5, "{skips}: {before} slots wait before, {after} after");
    }
}

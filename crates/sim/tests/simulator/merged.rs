//! Merged groups: some seeds, as a smoke test (`synod sim merged` runs as many as there is time for), and planted bugs.

use std::time::Duration;

use synod_replica::{MergeBug, Skips};
use synod_sim::{
    Trace,
    merged::{Counts, MergedPlan, MergedWorld, Situation, run},
};

/// Every seed passes, and what is dangerous about merging occurs in them.
#[test]
fn every_invariant_holds_for_some_seeds_of_merged_groups() {
    let (mut counts, mut order, mut operations) = (Counts::default(), 0, 0);
    // Among these each situation occurs.
    let seeds = 500..600;
    let runs = seeds.end - seeds.start;
    for seed in seeds.clone() {
        let outcome = run(&MergedPlan::draw(seed)).unwrap_or_else(|failure| panic!("{}", failure.report()));
        assert!(!outcome.undecided, "seed {seed}: the history was too hard to check");
        order += outcome.order;
        operations += outcome.operations;
        counts.add_run(&outcome.counts);
    }
    assert!(order > 40 * runs && operations > 25 * runs as usize, "{order} batches, {operations} operations");
    for &(situation, name) in Situation::ALL {
        assert!(counts.of(situation) > 0, "in no run: {name}\n{counts}");
    }
}

#[test]
fn a_run_of_merged_groups_is_repeatable() {
    let plan = MergedPlan::draw(7);
    assert_eq!(run(&plan).unwrap().fingerprint, run(&plan).unwrap().fingerprint);
}

#[test]
fn each_planted_bug_of_a_merge_is_found() {
    for &bug in MergeBug::ALL {
        let found = (0..300).find_map(|seed| run(&MergedPlan::draw(seed).with(bug)).err());
        let failure = found.unwrap_or_else(|| panic!("{bug:?} is not found"));
        println!("{bug:?}: seed {}: {}", failure.seed, failure.violation);
        assert!(run(&MergedPlan::draw(failure.seed)).is_ok(), "{bug:?}: the seed fails without it");
    }
}

/// What an idle group's leader missed to skip while it was stopped it makes up for within two periods (Benz 2013,
/// ERR-11).
#[test]
fn a_second_in_which_nobody_skips_is_caught_up() {
    for skips in [Skips::Follow, Skips::Demand, Skips::Lambda(6_000)] {
        let mut world = MergedWorld::new(MergedPlan::with_an_idle_group(skips), Trace::Off);
        let (before, after) = world.pause_of_the_idle_leader(Duration::from_millis(200)).unwrap();
        assert!(before >= 10 && after <= 5, "{skips}: {before} slots wait before, {after} after");
    }
}

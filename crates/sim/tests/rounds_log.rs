//! A log in rounds, without a leader: seeds with crashes, cuts, changes of the group and lost logs.

use synod_consensus::{ElectionKind, ProtocolKind, rounds::ROUNDS};
use synod_sim::{
    Coverage,
    plan::{Family, Plan},
};

fn registered() -> ProtocolKind {
    ROUNDS.register().expect("no other protocol has the name")
}

/// Plays these seeds of a family, and says what they came to.
fn play(family: Family, seeds: std::ops::Range<u64>) -> (Coverage, u64) {
    let kind = registered();
    let (mut coverage, mut operations) = (Coverage::default(), 0);
    for seed in seeds {
        let plan = Plan::draw_general(seed, kind, ElectionKind::None).of_family(family);
        let outcome =
            synod_sim::run(&plan).unwrap_or_else(|failure| panic!("{}", failure.report(kind, None)));
        operations += outcome.operations as u64;
        coverage.add(&outcome.coverage);
    }
    (coverage, operations)
}

#[test]
fn seeds_keep_every_invariant() {
    let (coverage, operations) = play(Family::General, 0..60);
    assert!(operations > 20 * 60, "{operations}: {coverage}");
}

#[test]
fn groups_change_under_load() {
    let (coverage, operations) = play(Family::Change, 0..30);
    assert!(operations > 20 * 30, "{operations}: {coverage}");
}

//! Bugs of the host: what may leave when, and what is written down first.

use synod_consensus::ProtocolKind;
use synod_host::{HostBug, plant};
use synod_sim::{Failure, check::Invariant, plan::Plan, run};

/// The first failure with a bug. The same plan passes without it.
fn found(bug: HostBug, mut plans: impl Iterator<Item = Plan>) -> Option<Box<Failure>> {
    plans.find_map(|plan| {
        plant(Some(bug));
        let failure = run(&plan).err();
        plant(None);
        let failure = failure?;
        assert!(run(&plan).is_ok(), "{bug:?}: seed {} fails without it", failure.seed);
        println!("{bug:?}: seed {}: {}", failure.seed, failure.violation);
        Some(failure)
    })
}

/// Each bug of the gate is found by the order in which messages leave, with every protocol.
#[test]
fn each_planted_bug_of_the_gate_is_found() {
    for &bug in HostBug::OF_GATE {
        for &(name, protocol) in ProtocolKind::ALL {
            let failure = found(bug, (0..20).map(|seed| Plan::draw(seed, protocol)));
            let failure = failure.unwrap_or_else(|| panic!("{bug:?} is not found with {name}"));
            assert_eq!(failure.violation.invariant, Invariant::GateOrder, "{bug:?}: {failure}");
        }
    }
}

#[test]
fn members_that_are_written_down_too_late_are_found() {
    let failure = found(HostBug::MembersLast, (0..40).map(|seed| Plan::draw(seed, ProtocolKind::MultiPaxos)));
    assert_eq!(failure.expect("it is found").violation.invariant, Invariant::MembersFirst);
}

/// A node that never looks at its deadlines elects nobody, and one without files gives slots up for good.
#[test]
fn deadlines_that_are_not_seen_and_files_that_are_not_kept_are_found() {
    let plans = || (0..40).map(|seed| Plan::draw(seed, ProtocolKind::MultiPaxos));
    let failure = found(HostBug::SkipDeadlines, plans()).expect("it is found");
    assert_eq!(failure.violation.invariant, Invariant::Liveness, "{failure}");
    let failure = found(HostBug::KeepNoFile, plans()).expect("it is found");
    assert_eq!(failure.violation.invariant, Invariant::Liveness, "{failure}");
}

/// A node that executes a part of a batch and does something else before the rest is stopped by the executor.
#[test]
fn the_rest_of_a_batch_that_comes_too_late_is_refused() {
    let plans = (0..40).map(|seed| Plan::draw(seed, ProtocolKind::MultiPaxos));
    let failure = found(HostBug::RestLast, plans).expect("it is found");
    let said = failure.violation.to_string();
    assert!(
        said.contains("a batch is executed whole before anything else is done with the state"),
        "{failure}"
    );
}

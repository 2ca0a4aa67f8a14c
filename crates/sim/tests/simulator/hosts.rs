//! Bugs of the host: what may leave when.

use synod_consensus::ProtocolKind;
use synod_host::{HostBug, plant};
use synod_sim::{check::Invariant, plan::Plan, run};

/// Each of them is found by the order in which messages leave, and no run fails without it.
#[test]
fn each_planted_bug_of_a_host_is_found() {
    for &bug in HostBug::ALL {
        for &(name, protocol) in ProtocolKind::ALL {
            let plans = || (0..20).map(|seed| Plan::draw(seed, protocol));
            plant(Some(bug));
            let found = plans().find_map(|plan| run(&plan).err());
            plant(None);
            let failure = found.unwrap_or_else(|| panic!("{bug:?} is not found with {name}"));
            assert_eq!(failure.violation.invariant, Invariant::GateOrder, "{bug:?}: {failure}");
            assert!(run(&Plan::draw(failure.seed, protocol)).is_ok(), "{bug:?}: the seed fails without it");
        }
    }
}

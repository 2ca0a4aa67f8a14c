//! Small configurations, explored completely; and planted bugs, found on a shortest way.

use synod_consensus::{Bug, ProtocolKind};

use super::*;

fn small() -> Bounds {
    Bounds { commands: 1, timeouts: 1, crashes: 1, losses: 0, ..Bounds::default() }
}

/// Explores everything; nothing may be wrong.
fn complete(protocol: ProtocolKind, bounds: Bounds, states_min: usize) {
    let report = explore(protocol, bounds, &mut |_| ());
    if let Some(found) = &report.found {
        panic!("{protocol}: {}\n{}", found.violation, found.story.join("\n"));
    }
    assert!(report.is_complete(), "{protocol}: {:?}", report.incomplete);
    println!("{protocol} {bounds:?}: {:?}", report.count);
    assert!(report.count.states >= states_min, "{protocol}: only {} states", report.count.states);
}

#[test]
fn small_configurations_are_explored_completely() {
    for &(_, protocol) in ProtocolKind::ALL {
        complete(protocol, small(), 1000);
    }
}

#[test]
fn planted() {
    for &(_, protocol) in ProtocolKind::ALL {
        for &bug in Bug::of(protocol) {
            let options = Options { planted: Some(bug), ..options(protocol) };
            let begun = std::time::Instant::now();
            let report = explore_with(options, Bounds { timeouts: 2, states_max: 1_000_000, ..small() }, &mut |_| ());
            println!("{protocol} {bug:?} {:?} {:?} {:?}", begun.elapsed(), report.count, report.found.map(|f| f.violation));
        }
    }
}

//! Watches under every fault that the simulator knows: known bugs of the hub that servers have are found. That nothing
//! is found without one, and that what is dangerous occurs, the tests of seeds show (`seeds.rs`, `merged.rs`).

use synod_consensus::ProtocolKind;
use synod_kv::{KvBug, plant};
use synod_sim::{check::Invariant, plan::Plan};

#[test]
fn each_planted_bug_of_watches_is_found() {
    for &bug in KvBug::WATCHES {
        plant(Some(bug));
        let found = (0..400).find_map(|seed| {
            let (_, protocol) = ProtocolKind::ALL[usize::try_from(seed).unwrap() % ProtocolKind::ALL.len()];
            let plan = Plan::draw(seed, protocol);
            if plan.watches.watchers > 0 { synod_sim::run(&plan).err() } else { None }
        });
        plant(None);
        let failure = found.unwrap_or_else(|| panic!("{bug:?} is not found"));
        println!("{bug:?}: seed {}: {}", failure.seed, failure.violation);
        // A watch that goes on over a compaction may be told, or miss what is gone, whichever comes first.
        let by: &[Invariant] = match bug {
            KvBug::WatchOverCompaction => &[Invariant::WatchCompacted, Invariant::WatchTold],
            _ => &[Invariant::WatchTold],
        };
        assert!(by.contains(&failure.violation.invariant), "{bug:?}: {}", failure.violation);
    }
}

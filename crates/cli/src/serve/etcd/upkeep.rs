//! What a replica does for its store without being asked, from etcd's flags.

use std::time::Duration;

use synod_server::{Compaction, UpkeepConfig};

use super::flags::{CompactionMode, EtcdArgs};
use crate::serve::units;

/// What the flags say, and whether the replica compares itself before it serves.
pub fn config(args: &EtcdArgs) -> Result<(UpkeepConfig, bool), String> {
    let features = &args.feature_gates;
    let compact = features.compact_hash_check.unwrap_or(args.compact_hash_check_enabled);
    let config = UpkeepConfig {
        compaction: compaction(args.auto_compaction_mode, &args.auto_compaction_retention)?,
        check_interval: Some(args.corrupt_check_time).filter(|interval| !interval.is_zero()),
        compact_check_interval: compact.then_some(args.compact_hash_check_time),
    };
    Ok((config, features.initial_corrupt_check.unwrap_or(args.initial_corrupt_check)))
}

/// Reads a retention as etcd does: a number is one of hours, or of revisions.
fn compaction(mode: CompactionMode, retention: &str) -> Result<Option<Compaction>, String> {
    let number = retention.parse::<u32>().ok();
    match (mode, number) {
        (_, Some(0)) => Ok(None),
        (CompactionMode::Periodic, Some(hours)) => {
            Ok(Some(Compaction::Periodic(Duration::from_secs(3600) * hours)))
        }
        (CompactionMode::Periodic, None) => {
            // Without a unit only a whole number of hours has a meaning.
            let has_unit = retention.parse::<f64>().is_err();
            let period = has_unit.then(|| units::duration(retention).ok()).flatten();
            let period = period.ok_or_else(|| "accepted: 1 or 1h (an hour), 30m, or 0 (never)".to_owned())?;
            Ok((!period.is_zero()).then_some(Compaction::Periodic(period)))
        }
        (CompactionMode::Revision, _) => match retention.parse() {
            Ok(kept) if kept > 0 => Ok(Some(Compaction::Revision(kept))),
            _ => Err("accepted with --auto-compaction-mode revision: a number of revisions".to_owned()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_retention_is_written_as_for_etcd() {
        use CompactionMode::{Periodic, Revision};
        let hours = |count: u64| Ok(Some(Compaction::Periodic(Duration::from_secs(3600 * count))));
        assert_eq!(compaction(Periodic, "1"), hours(1));
        assert_eq!(compaction(Periodic, "24h"), hours(24));
        assert_eq!(compaction(Periodic, "1h30m"), Ok(Some(Compaction::Periodic(Duration::from_secs(5400)))));
        assert_eq!(compaction(Revision, "1000"), Ok(Some(Compaction::Revision(1000))));
        assert_eq!(compaction(Revision, "10000000000"), Ok(Some(Compaction::Revision(10_000_000_000))));
        assert_eq!(
            [compaction(Periodic, "0"), compaction(Revision, "0"), compaction(Periodic, "0s")],
            [Ok(None), Ok(None), Ok(None)]
        );
        // Half an hour, or half a millisecond? etcd refuses it as well.
        assert!(compaction(Periodic, "0.5").is_err() && compaction(Periodic, "4294967296").is_err());
        assert!(compaction(Periodic, "soon").unwrap_err().contains("30m"));
        assert!(compaction(Revision, "1h").unwrap_err().contains("number of revisions"));
        assert!(compaction(Revision, "-1").is_err());
    }
}

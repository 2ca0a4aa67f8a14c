//! Compactions that caretakers make: none of a revision that is not old yet, or that is to be kept.

use std::time::Duration;

use synod_kv::upkeep::Compaction;

/// When revisions were made, and what was compacted.
#[derive(Clone, Debug)]
pub struct Compactions {
    /// When a store first had so high a revision, anywhere.
    made: Vec<(Duration, i64)>,
    /// The last revision at which a store was compacted, anywhere.
    compacted: i64,
}

impl Default for Compactions {
    fn default() -> Compactions {
        // Stores begin with revision 1.
        Compactions { made: vec![(Duration::ZERO, 1)], compacted: 0 }
    }
}

impl Compactions {
    /// A store has this revision now, and was compacted at that one. Times are those by which keepers count.
    ///
    /// # Errors
    /// It was compacted too early, or although nobody should compact.
    pub fn seen(
        &mut self,
        now: Duration,
        revision: i64,
        compacted: i64,
        mode: Option<Compaction>,
    ) -> Result<(), String> {
        if self.made.last().is_none_or(|(_, last)| *last < revision) {
            self.made.push((now, revision));
        }
        if compacted <= self.compacted {
            return Ok(());
        }
        self.compacted = compacted;
        let at = self.made.partition_point(|(_, made)| *made < compacted);
        let Some((made, _)) = self.made.get(at) else {
            return Err(format!("revision {compacted} is compacted, and nobody had it"));
        };
        let age = now.saturating_sub(*made);
        let may = match mode {
            Some(Compaction::Periodic(period)) => age >= period,
            Some(Compaction::Revision(kept)) => compacted <= revision - kept,
            None => false,
        };
        if may {
            Ok(())
        } else {
            Err(format!(
                "revision {compacted} of {revision} is compacted {age:?} after it was made; {mode:?}"
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_compaction_may_be_late_and_not_early() {
        let periodic = Some(Compaction::Periodic(10 * SECOND));
        let mut compactions = Compactions::default();
        let mut seen = |at, revision, compacted| compactions.seen(at * SECOND, revision, compacted, periodic);
        assert_eq!(seen(1, 5, -1), Ok(()));
        assert_eq!(seen(2, 9, -1), Ok(()));
        assert_eq!(seen(11, 9, 5), Ok(()));
        assert_eq!(seen(11, 7, 5), Ok(()), "another replica");
        // Revision 6 came with 9.
        assert!(seen(11, 9, 6).is_err_and(|error| error.contains("9s after")));
    }

    #[test]
    fn so_many_revisions_are_kept() {
        let mut compactions = Compactions::default();
        let mode = Some(Compaction::Revision(3));
        assert_eq!(compactions.seen(SECOND, 9, 6, mode), Ok(()));
        assert!(compactions.seen(SECOND, 10, 8, mode).is_err());
        assert!(Compactions::default().seen(SECOND, 9, 2, None).is_err());
        assert!(
            Compactions::default().seen(SECOND, 9, 12, mode).is_err_and(|error| error.contains("nobody"))
        );
    }
}

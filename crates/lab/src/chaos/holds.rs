//! Which contender held a lock when, and what was written under it.
//!
//! A holder counts as one from the moment at which its call returned until it begins to let go, or until its lease has
//! run out by its own clock: the time at which it sent the last renewal that was answered, plus the time to live. All
//! clients are in one process, so their clocks are one.

use std::{collections::BTreeMap, time::Duration};

/// Violations that are reported of each kind.
const KEPT: usize = 10;
/// How often each lock must go from one contender to another. With fewer changes, locks are not covered.
pub const CHANGES_MIN: usize = 10;

/// A time in which a contender could count on its lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hold {
    /// The lock.
    pub lock: u32,
    /// The contender.
    pub who: u32,
    /// The fencing token: the revision at which the lock's key was created.
    pub fence: i64,
    /// When the call for the lock returned, since the beginning of the run.
    pub from: Duration,
    /// When the contender began to let go, or its lease ran out.
    pub until: Duration,
}

/// A write that only the holder of a lock may make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fenced {
    /// The lock.
    pub lock: u32,
    /// The token of the holder that made it.
    pub fence: i64,
    /// The revision at which it was executed.
    pub revision: i64,
}

/// Checks who held the locks, and what was written under them.
pub fn check(holds: &[Hold], writes: &[Fenced]) -> Vec<String> {
    let mut violations = Vec::new();
    for holds in by_lock(holds, |hold| hold.lock).into_values() {
        violations.extend(at_once(holds).into_iter().take(KEPT));
    }
    for writes in by_lock(writes, |write| write.lock).into_values() {
        violations.extend(late(writes).into_iter().take(KEPT));
    }
    violations
}

/// How often each lock went from one contender to another.
pub fn changes(holds: &[Hold]) -> BTreeMap<u32, usize> {
    let count = |mut holds: Vec<Hold>| {
        holds.sort_by_key(|hold| hold.from);
        holds.windows(2).filter(|pair| pair[0].who != pair[1].who).count()
    };
    by_lock(holds, |hold| hold.lock).into_iter().map(|(lock, holds)| (lock, count(holds))).collect()
}

fn by_lock<T: Copy>(all: &[T], lock: impl Fn(&T) -> u32) -> BTreeMap<u32, Vec<T>> {
    let mut by_lock: BTreeMap<u32, Vec<T>> = BTreeMap::new();
    all.iter().for_each(|one| by_lock.entry(lock(one)).or_default().push(*one));
    by_lock
}

/// Holds of one lock that overlap, and later holders whose token is not higher.
fn at_once(mut holds: Vec<Hold>) -> Vec<String> {
    holds.sort_by_key(|hold| hold.from);
    let mut violations = Vec::new();
    let mut longest: Option<Hold> = None;
    for hold in holds {
        if let Some(before) = longest {
            if hold.from < before.until {
                violations.push(format!("a lock was held by two at once: {before:?} and {hold:?}"));
            }
            if hold.fence <= before.fence {
                violations.push(format!("a later holder has no higher token: {before:?} and {hold:?}"));
            }
        }
        longest = longest.filter(|before| before.until >= hold.until).or(Some(hold));
    }
    violations
}

/// Writes of a holder that were executed after one of a later holder.
fn late(mut writes: Vec<Fenced>) -> Vec<String> {
    writes.sort_by_key(|write| write.revision);
    let mut violations = Vec::new();
    let mut highest: Option<Fenced> = None;
    for write in writes {
        match highest {
            Some(newer) if write.fence < newer.fence => {
                violations.push(format!(
                    "a write of an older holder came after one of a newer: {write:?} after {newer:?}"
                ));
            }
            _ => highest = Some(write),
        }
    }
    violations
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hold(who: u32, fence: i64, from: u64, until: u64) -> Hold {
        let [from, until] = [from, until].map(Duration::from_millis);
        Hold { lock: 0, who, fence, from, until }
    }

    fn write(fence: i64, revision: i64) -> Fenced {
        Fenced { lock: 0, fence, revision }
    }

    fn only(violations: Vec<String>, what: &str) {
        assert!(violations.len() == 1 && violations[0].contains(what), "{violations:?}");
    }

    #[test]
    fn one_after_the_other_is_in_order() {
        let holds = [hold(1, 3, 10, 20), hold(0, 2, 0, 10), hold(1, 9, 20, 30)];
        let writes = [write(2, 5), write(2, 6), write(9, 11), write(3, 8)];
        assert_eq!(check(&holds, &writes), Vec::<String>::new());
        assert_eq!(changes(&holds), [(0, 1)].into());
        // Another lock has another history.
        let others = holds.map(|hold| Hold { lock: 1, fence: 1 + hold.fence, ..hold });
        assert_eq!(check(&[holds, others].concat(), &[]), Vec::<String>::new());
    }

    #[test]
    fn two_that_hold_at_once_are_found() {
        only(check(&[hold(0, 2, 0, 10), hold(1, 3, 9, 20)], &[]), "by two at once");
        // The first lasts longer than the second, and meets the third too.
        let found = check(&[hold(0, 2, 0, 50), hold(1, 3, 10, 20), hold(2, 4, 30, 40)], &[]);
        assert_eq!(found.len(), 2, "{found:?}");
        // A contender that gets the lock again while it counts on it.
        only(check(&[hold(0, 2, 0, 10), hold(0, 3, 9, 20)], &[]), "by two at once");
        // The lease of the first has run out.
        assert!(check(&[hold(0, 2, 0, 9), hold(1, 3, 9, 20)], &[]).is_empty());
        only(check(&[hold(0, 3, 0, 9), hold(1, 3, 10, 20)], &[]), "no higher token");
    }

    #[test]
    fn a_write_that_passes_the_fence_is_found() {
        only(
            check(&[], &[write(2, 5), write(3, 6), write(2, 7), write(3, 8)]),
            "Fenced { lock: 0, fence: 2, revision: 7 }",
        );
    }
}

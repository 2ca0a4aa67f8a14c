//! The requests and answers of the clients, and whether one store that does one thing after another explains them.
//!
//! There are two checks. **A register for each key**: the linearizability checker of the simulator searches for an
//! order of the operations on each key. Looking at each key alone is sound (Herlihy and Wing 1990: linearizability
//! is local), as long as answers speak of one key only. **Revisions**: one counter counts the writes to all keys,
//! so it must grow with every write, never fall below an earlier answer, and stand for one write only.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use synod_sim::check::linear::{self, Operation, Sequential, Verdict};

use super::events::Known;

/// Steps after which a search is given up. With the hints that revisions give, a history needs about as many
/// steps as it has operations.
const STEPS_MAX: usize = 5_000_000;

/// An operation on a key. 0 stands for "there is no such key"; every write writes a different number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Reads it.
    Get,
    /// Writes a number.
    Put(u64),
    /// Writes `new` if the key holds `expected`; reads it otherwise.
    Swap {
        /// The number that the key must hold.
        expected: u64,
        /// The number that the key then holds.
        new: u64,
    },
}

/// An answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The key was read and holds this number.
    Holds(u64),
    /// The key was written.
    Written,
    /// The key held the expected number, and was written.
    Swapped,
    /// The key held this number and not the expected one.
    NotSwapped(u64),
}

/// An answer, with the revisions that tell its place in the order.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    /// The answer.
    pub answer: Answer,
    /// The store's revision in the answer.
    pub revision: i64,
    /// The revision at which the value that was read was written; 0 if nothing was read, or there is no such key.
    pub written_at: i64,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    key: u32,
    op: Op,
    invoked: u64,
    returned: Option<(u64, Seen)>,
}

impl Entry {
    /// The number that it wrote, or may have written.
    fn written(&self) -> Option<u64> {
        match (self.op, self.returned.map(|(_, seen)| seen.answer)) {
            (Op::Put(value), _) => Some(value),
            (Op::Swap { new, .. }, None | Some(Answer::Swapped)) => Some(new),
            _ => None,
        }
    }

    /// The revision at which a number was written, and the number, as far as its answer tells that.
    fn known(&self) -> Option<(i64, u64)> {
        let (_, seen) = self.returned?;
        match (self.read(), self.written()) {
            (Some(value), _) if seen.written_at > 0 => Some((seen.written_at, value)),
            (None, Some(value)) => Some((seen.revision, value)),
            _ => None,
        }
    }

    /// The number that it read.
    fn read(&self) -> Option<u64> {
        match self.returned?.1.answer {
            Answer::Holds(value) | Answer::NotSwapped(value) => Some(value),
            Answer::Written | Answer::Swapped => None,
        }
    }
}

/// A history that many clients record.
#[derive(Debug, Default)]
pub struct History {
    /// One clock for all clients: it counts the beginnings and ends of operations.
    clock: AtomicU64,
    entries: Mutex<Vec<Entry>>,
}

impl History {
    /// Records that an operation begins, and returns its place in time.
    pub fn begin(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst)
    }

    /// Records that an operation has ended. Without an answer it may or may not have taken effect.
    pub fn end(&self, key: u32, op: Op, invoked: u64, seen: Option<Seen>) {
        let returned = seen.map(|seen| (self.clock.fetch_add(1, Ordering::SeqCst), seen));
        // A read without an answer tells nothing.
        if returned.is_some() || op != Op::Get {
            let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
            entries.push(Entry { key, op, invoked, returned });
        }
    }

    /// The writes of which clients know: from their answers, or since they read the value.
    #[must_use]
    pub(super) fn known(&self) -> Vec<Known> {
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let known = entries.iter().filter_map(|entry| {
            let (revision, value) = entry.known()?;
            Some(Known { revision, key: name_of(entry.key), value: value.to_string() })
        });
        known.collect()
    }

    /// Checks everything that has ended so far.
    #[must_use]
    pub fn check(&self) -> Findings {
        let entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        let mut findings = Findings::default();
        let mut by_key: BTreeMap<u32, Vec<Entry>> = BTreeMap::new();
        for entry in &*entries {
            by_key.entry(entry.key).or_default().push(*entry);
            match (entry.returned, entry.op) {
                (None, _) => findings.unanswered += 1,
                (Some(_), Op::Get) => findings.reads += 1,
                (Some(_), _) => findings.writes += 1,
            }
        }
        findings.violations.extend(revisions(&entries));
        for (key, entries) in by_key {
            findings.keys += 1;
            let verdict = linear::check(Register(0), &operations(&entries), STEPS_MAX);
            match verdict {
                Verdict::Linearizable => {}
                Verdict::Undecided => findings.undecided += 1,
                Verdict::NotLinearizable { stuck_at, .. } => {
                    findings.violations.push(format!("key {key}: {verdict:?}{}", around(&entries, stuck_at)));
                }
            }
        }
        findings
    }
}

/// The result of a check.
#[derive(Clone, Debug, Default)]
pub struct Findings {
    /// Reads that were answered.
    pub reads: u64,
    /// Writes and swaps that were answered.
    pub writes: u64,
    /// Writes and swaps without an answer.
    pub unanswered: u64,
    /// Keys, each of which was checked.
    pub keys: u64,
    /// Keys for which the search was given up.
    pub undecided: u64,
    /// Answers that no store explains, with the operations around them.
    pub violations: Vec<String>,
}

/// The name of a key in the store.
pub(super) fn name_of(key: u32) -> String {
    format!("chaos/{key:06}")
}

/// One key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Register(u64);

impl Sequential for Register {
    type Op = Op;
    type Answer = Answer;

    fn apply(&mut self, op: &Op) -> Answer {
        match *op {
            Op::Get => Answer::Holds(self.0),
            Op::Put(value) => {
                self.0 = value;
                Answer::Written
            }
            Op::Swap { expected, new } if self.0 == expected => {
                self.0 = new;
                Answer::Swapped
            }
            Op::Swap { .. } => Answer::NotSwapped(self.0),
        }
    }

    fn is_inert(_: &Op, answer: &Answer) -> bool {
        matches!(answer, Answer::Holds(_) | Answer::NotSwapped(_))
    }
}

fn operations(entries: &[Entry]) -> Vec<Operation<Op, Answer>> {
    // A write without an answer took effect if a read saw it.
    let seen = |entry: &Entry| Some((entry.read()?, entry.returned?.1.written_at));
    let seen_at: BTreeMap<u64, i64> = entries.iter().filter_map(seen).collect();
    let hint = |entry: &Entry| {
        // Writes at a revision come before operations that saw that revision.
        let (revision, later) = match (entry.returned, entry.written()) {
            (Some((_, seen)), _) => (Some(seen.revision), entry.read().is_some()),
            (None, written) => (written.and_then(|value| seen_at.get(&value).copied()), false),
        };
        revision.map_or(u64::MAX, |revision| 2 * revision.unsigned_abs() + u64::from(later))
    };
    let operation = |entry: &Entry| Operation {
        op: entry.op,
        invoked: entry.invoked,
        returned: entry.returned.map(|(at, seen)| (at, seen.answer)),
        hint: hint(entry),
    };
    entries.iter().map(operation).collect()
}

/// The first breach of what revisions promise.
fn revisions(entries: &[Entry]) -> Option<String> {
    let answered: Vec<_> = entries.iter().filter(|entry| entry.returned.is_some()).collect();
    // The write at each revision, as far as any client was told.
    let mut written: BTreeMap<i64, (u32, u64)> = BTreeMap::new();
    for entry in &answered {
        let Some(told) = entry.known() else { continue };
        let before = *written.entry(told.0).or_insert((entry.key, told.1));
        if before != (entry.key, told.1) {
            let ((key, value), revision) = (before, told.0);
            return Some(format!("revision {revision} wrote {value} to key {key}, and also {entry:?}"));
        }
    }
    // In the order of time: (when, what). An answer must not have a lower revision than any answer before its request.
    let ends = answered.iter().enumerate().flat_map(|(index, entry)| {
        let returned = entry.returned.map(|(at, _)| (at, index, false));
        [Some((entry.invoked, index, true)), returned].into_iter().flatten()
    });
    let mut ends: Vec<_> = ends.collect();
    ends.sort_unstable();
    let (mut latest, mut floors) = (0, vec![0; answered.len()]);
    for (_, index, begins) in ends {
        if begins {
            floors[index] = latest;
            continue;
        }
        let entry = answered[index];
        let (_, seen) = entry.returned?;
        let least = floors[index] + i64::from(entry.read().is_none());
        if seen.revision < least {
            return Some(format!("revision {} or later was due: {entry:?}", least));
        }
        latest = latest.max(seen.revision);
    }
    None
}

/// The operations around the one at which the search stopped.
fn around(entries: &[Entry], stuck_at: usize) -> String {
    let stuck = entries[stuck_at];
    let mut near: Vec<_> =
        entries.iter().filter(|entry| entry.invoked.abs_diff(stuck.invoked) < 200).copied().collect();
    near.sort_by_key(|entry| entry.invoked);
    let mut text = format!(", stuck at {stuck:?} among");
    for entry in near {
        let _ = write!(text, "\n    {entry:?}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(answer: Answer, revision: i64) -> Option<Seen> {
        let written_at =
            if matches!(answer, Answer::Holds(_) | Answer::NotSwapped(_)) { revision } else { 0 };
        Some(Seen { answer, revision, written_at })
    }

    /// Checks operations that happen one after another.
    fn check(entries: &[(u32, Op, Option<Seen>)]) -> Findings {
        let history = History::default();
        for &(key, op, seen) in entries {
            let invoked = history.begin();
            history.end(key, op, invoked, seen);
        }
        history.check()
    }

    #[test]
    fn a_lost_write_is_found() {
        let swap = Op::Swap { expected: 1, new: 2 };
        let found = check(&[
            (0, Op::Put(1), seen(Answer::Written, 2)),
            (0, swap, seen(Answer::Swapped, 3)),
            (0, Op::Get, Some(Seen { answer: Answer::Holds(1), revision: 3, written_at: 2 })),
        ]);
        assert!(found.violations.len() == 1 && found.violations[0].contains("stuck at"), "{found:?}");
        let found = check(&[
            (0, Op::Put(1), seen(Answer::Written, 2)),
            (0, swap, Some(Seen { answer: Answer::NotSwapped(0), revision: 2, written_at: 0 })),
        ]);
        assert_eq!(found.violations.len(), 1, "{found:?}");
    }

    #[test]
    fn a_write_without_an_answer_may_count_or_not() {
        let found = check(&[
            (0, Op::Put(1), None),
            (0, Op::Get, seen(Answer::Holds(1), 2)),
            (1, Op::Put(2), None),
            (1, Op::Get, Some(Seen { answer: Answer::Holds(0), revision: 2, written_at: 0 })),
        ]);
        assert_eq!((found.reads, found.writes, found.unanswered, found.keys), (2, 0, 2, 2));
        assert!(found.violations.is_empty() && found.undecided == 0, "{found:?}");
    }

    #[test]
    fn revisions_of_all_keys_are_one_order() {
        let put = |key, value, revision| (key, Op::Put(value), seen(Answer::Written, revision));
        assert!(check(&[put(0, 1, 2), put(1, 2, 3)]).violations.is_empty());
        // Each key alone is in order.
        let older = check(&[put(0, 1, 3), put(1, 2, 2)]).violations;
        assert!(older.len() == 1 && older[0].contains("revision 4 or later was due"), "{older:?}");
        let twice = check(&[put(0, 1, 2), put(1, 2, 2)]).violations;
        assert!(twice.len() == 1 && twice[0].contains("and also"), "{twice:?}");
        let stale = (1, Op::Get, Some(Seen { answer: Answer::Holds(0), revision: 1, written_at: 0 }));
        assert_eq!(check(&[put(0, 1, 2), stale]).violations.len(), 1);
    }
}

//! What clients asked of a few keys and what they were answered, and whether one register a key explains it.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use synod_sim::check::linear::{self, Operation, Sequential, Verdict};

/// Steps after which a search is given up. With the hints that revisions give, a history needs about as many steps as
/// it has operations.
const STEPS_MAX: usize = 5_000_000;

/// What is asked of a key. 0 stands for "there is no such key"; every write writes another number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    Get,
    Put(u64),
    /// Writes `new` if the key holds `expected`.
    Swap {
        expected: u64,
        new: u64,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    Holds(u64),
    Written,
    Swapped,
    NotSwapped,
}

/// What a client saw: the answer, and revisions of the store that tell where it belongs.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    pub answer: Answer,
    /// The store's revision in the answer.
    pub revision: i64,
    /// For a read: the revision at which the key was written.
    pub written_at: i64,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    key: u8,
    op: Op,
    invoked: u64,
    returned: Option<(u64, Seen)>,
}

/// A history that many clients write.
#[derive(Debug, Default)]
pub struct History {
    /// One clock for all clients: it counts the beginnings and ends of operations.
    clock: AtomicU64,
    entries: Mutex<Vec<Entry>>,
}

impl History {
    /// An operation begins; the result is its place in time.
    pub fn begin(&self) -> u64 {
        self.clock.fetch_add(1, Ordering::SeqCst)
    }

    /// An operation has ended; without an answer nobody knows whether it took effect.
    pub fn end(&self, key: u8, op: Op, invoked: u64, seen: Option<Seen>) {
        let returned = seen.map(|seen| (self.clock.fetch_add(1, Ordering::SeqCst), seen));
        // A read without an answer says nothing.
        if returned.is_some() || op != Op::Get {
            self.entries.lock().unwrap().push(Entry { key, op, invoked, returned });
        }
    }

    /// Checks every key for itself: linearizability is local, as long as answers speak of one key only.
    pub fn check(&self) -> Counts {
        let mut counts = Counts::default();
        let mut by_key: BTreeMap<u8, Vec<Entry>> = BTreeMap::new();
        for entry in self.entries.lock().unwrap().iter() {
            by_key.entry(entry.key).or_default().push(*entry);
            match (entry.returned, entry.op) {
                (None, _) => counts.unanswered += 1,
                (Some(_), Op::Get) => counts.reads += 1,
                (Some(_), _) => counts.writes += 1,
            }
        }
        for (key, entries) in by_key {
            let operations = operations(&entries);
            let verdict = linear::check(Register(0), &operations, STEPS_MAX);
            assert_eq!(verdict, Verdict::Linearizable, "key {key}: {}", around(&entries, verdict));
        }
        counts
    }
}

/// How many operations there were.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub reads: u64,
    pub writes: u64,
    pub unanswered: u64,
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
            Op::Swap { .. } => Answer::NotSwapped,
        }
    }

    fn is_inert(_: &Op, answer: &Answer) -> bool {
        matches!(answer, Answer::Holds(_) | Answer::NotSwapped)
    }
}

fn operations(entries: &[Entry]) -> Vec<Operation<Op, Answer>> {
    // A write without an answer took effect where a read saw it.
    let mut seen_at = BTreeMap::new();
    for (_, seen) in entries.iter().filter_map(|entry| entry.returned) {
        if let Answer::Holds(value) = seen.answer {
            seen_at.insert(value, seen.written_at);
        }
    }
    let hint = |entry: &Entry| {
        // Writes at a revision come before what saw that revision.
        let (revision, later) = match (entry.returned, entry.op) {
            (Some((_, seen)), _) => {
                (Some(seen.revision), !matches!(seen.answer, Answer::Written | Answer::Swapped))
            }
            (None, Op::Put(new) | Op::Swap { new, .. }) => (seen_at.get(&new).copied(), false),
            (None, Op::Get) => (None, false),
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

/// The operations around the one where the search stuck.
fn around(entries: &[Entry], verdict: Verdict) -> String {
    let Verdict::NotLinearizable { stuck_at, .. } = verdict else { return String::new() };
    let stuck = entries[stuck_at];
    let mut near: Vec<_> =
        entries.iter().filter(|entry| entry.invoked.abs_diff(stuck.invoked) < 40).copied().collect();
    near.sort_by_key(|entry| entry.invoked);
    format!("stuck at {stuck:?} among {near:#?}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(answer: Answer, revision: i64) -> Option<Seen> {
        Some(Seen { answer, revision, written_at: revision })
    }

    #[test]
    #[should_panic(expected = "NotLinearizable")]
    fn a_lost_write_is_found() {
        let history = History::default();
        for (op, seen) in [
            (Op::Put(1), seen(Answer::Written, 2)),
            (Op::Swap { expected: 1, new: 2 }, seen(Answer::Swapped, 3)),
            (Op::Get, seen(Answer::Holds(1), 3)),
        ] {
            let invoked = history.begin();
            history.end(0, op, invoked, seen);
        }
        history.check();
    }

    #[test]
    fn a_write_without_an_answer_may_count_or_not() {
        let history = History::default();
        for (key, op, seen) in [
            (0, Op::Put(1), None),
            (0, Op::Get, seen(Answer::Holds(1), 2)),
            (1, Op::Put(2), None),
            (1, Op::Get, seen(Answer::Holds(0), 2)),
        ] {
            let invoked = history.begin();
            history.end(key, op, invoked, seen);
        }
        let counts = history.check();
        assert_eq!((counts.reads, counts.writes, counts.unanswered), (2, 0, 2));
    }
}

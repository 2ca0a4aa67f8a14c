//! The history of all operations of clients, and whether it is linearizable.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::{
    Invariant, Model, Violation,
    linear::{self, Operation, Verdict},
};
use crate::ops::{Answer, Lease, Op};

/// States that the search for a linearization may visit.
const SEARCH_STEPS_MAX: usize = 2_000_000;

/// One operation of the history.
#[derive(Debug)]
pub(crate) struct Done {
    pub op: Op,
    pub payload: Bytes,
    pub invoked: u64,
    pub returned: Option<(u64, Answer)>,
    /// Whether the operation did not happen, or changes nothing and was not answered.
    pub void: bool,
}

/// A lease that the log has ended by its clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EndedLease {
    pub lease: Lease,
    /// When the first replica delivered that.
    pub delivered: u64,
    /// How many commands come before it.
    pub place: u64,
    /// The revision after it.
    pub revision: i64,
}

/// Looks for a linearization that begins with this store, in which leases may end from when that was first delivered.
/// `reply` says of a command that was executed which place it has among all commands, and its reply. Returns true if
/// the search was given up.
pub(crate) fn check_history<'a>(
    begins: Model,
    history: &[Done],
    ended: &[EndedLease],
    reply: impl Fn(&Bytes) -> Option<(u64, &'a Bytes)>,
) -> Result<bool, Violation> {
    let hint = hints(history, ended, reply);
    let happened = history.iter().filter(|done| !done.void);
    let asked = happened.map(|done| Operation {
        op: done.op.clone(),
        invoked: done.invoked,
        returned: done.returned.clone(),
        hint: hint(done),
    });
    let by_itself = ended.iter().map(|ended| Operation {
        op: Op::End { lease: ended.lease },
        invoked: ended.delivered,
        returned: None,
        hint: hint_of_end(ended.place),
    });
    let operations: Vec<Operation<Op, Answer>> = asked.chain(by_itself).collect();
    match linear::check(begins, &operations, SEARCH_STEPS_MAX) {
        Verdict::Linearizable => Ok(false),
        Verdict::Undecided => Ok(true),
        Verdict::NotLinearizable { longest, stuck_at } => {
            let stuck = &operations[stuck_at];
            let detail = format!(
                "of {} operations at most {longest} fit into an order; then {:?} does not follow, which was answered {:?}",
                operations.len(),
                stuck.op,
                stuck.returned.as_ref().map(|(_, answer)| answer)
            );
            Err(Violation { invariant: Invariant::Linearizable, detail })
        }
    }
}

/// The probable place of an operation: that of a command is its place among all commands; that of a read is after what
/// made the revision which it saw.
fn hints<'a>(
    history: &[Done],
    ended: &[EndedLease],
    reply: impl Fn(&Bytes) -> Option<(u64, &'a Bytes)>,
) -> impl Fn(&Done) -> u64 {
    let mut made = BTreeMap::new();
    for done in history.iter().filter(|done| !done.op.is_read()) {
        let Some((place, reply)) = reply(&done.payload) else { continue };
        if let Some(revision) = Answer::decode(&done.op, reply).and_then(|answer| answer.revision()) {
            let first = made.entry(revision).or_insert(u64::MAX);
            *first = hint_of_command(place).min(*first);
        }
    }
    for ended in ended {
        let first = made.entry(ended.revision).or_insert(u64::MAX);
        *first = hint_of_end(ended.place).min(*first);
    }
    move |done| {
        let seen = done.returned.as_ref().and_then(|(_, answer)| answer.revision());
        let place = reply(&done.payload).map(|(place, _)| hint_of_command(place));
        let after = || made.range(..=seen?).next_back().map(|(_, hint)| hint + 1);
        match (&done.returned, done.op.is_read()) {
            (_, true) => after().unwrap_or(0),
            // The command is not in the log: it probably never happened.
            (None, false) => place.unwrap_or(u64::MAX),
            (Some(_), false) => place.unwrap_or(0),
        }
    }
}

/// After each command there is room for the reads of its revision, the end of leases, and the reads after that.
fn hint_of_command(place: u64) -> u64 {
    place * 4
}

fn hint_of_end(commands_before: u64) -> u64 {
    commands_before * 4 + 2
}

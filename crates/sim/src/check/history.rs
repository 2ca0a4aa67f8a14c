//! The history of all operations of clients, and whether it is linearizable.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::{
    Invariant, Model, Violation,
    linear::{self, Operation, Verdict},
};
use crate::ops::{Answer, Op};

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

/// Looks for a linearization. `reply` says of a command that was executed which place it has among all commands, and
/// its reply. Returns true if the search was given up.
pub(crate) fn check_history<'a>(
    history: &[Done],
    reply: impl Fn(&Bytes) -> Option<(u64, &'a Bytes)>,
) -> Result<bool, Violation> {
    let hint = hints(history, reply);
    let happened = history.iter().filter(|done| !done.void);
    let operations: Vec<Operation<Op, Answer>> = happened
        .map(|done| Operation {
            op: done.op.clone(),
            invoked: done.invoked,
            returned: done.returned.clone(),
            hint: hint(done),
        })
        .collect();
    match linear::check(Model::default(), &operations, SEARCH_STEPS_MAX) {
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

/// The probable place of an operation: that of a command is its place among all commands; that of a read is after the
/// command that made the revision which it saw.
fn hints<'a>(history: &[Done], reply: impl Fn(&Bytes) -> Option<(u64, &'a Bytes)>) -> impl Fn(&Done) -> u64 {
    let mut made = BTreeMap::new();
    for done in history.iter().filter(|done| !done.op.is_read()) {
        let Some((place, reply)) = reply(&done.payload) else { continue };
        if let Some(revision) = Answer::decode(&done.op, reply).and_then(|answer| answer.revision()) {
            let first = made.entry(revision).or_insert(place);
            *first = place.min(*first);
        }
    }
    move |done| {
        let seen = done.returned.as_ref().and_then(|(_, answer)| answer.revision());
        let place = reply(&done.payload).map(|(place, _)| place * 2);
        let after = || made.range(..=seen?).next_back().map(|(_, place)| place * 2 + 1);
        match (&done.returned, done.op.is_read()) {
            (_, true) => after().unwrap_or(0),
            // The command is not in the log: it probably never happened.
            (None, false) => place.unwrap_or(u64::MAX),
            (Some(_), false) => place.unwrap_or(0),
        }
    }
}

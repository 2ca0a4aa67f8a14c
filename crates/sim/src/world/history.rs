//! The history of all operations, and whether it is linearizable.

use std::collections::BTreeMap;

use super::{World, clients::Done};
use crate::{
    check::{
        Invariant, Model, Violation,
        linear::{self, Operation, Verdict},
    },
    ops::{Answer, Op},
};

/// States that the search for a linearization may visit.
const SEARCH_STEPS_MAX: usize = 2_000_000;

impl World {
    /// Looks for a linearization. Returns true if the search was given up.
    pub(super) fn check_history(&mut self) -> Result<bool, Violation> {
        let history = &self.clients.history;
        let hint = self.hints();
        let operations: Vec<Operation<Op, Answer>> = history
            .iter()
            .filter(|done| !done.void)
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
                    "of {} operations at most {longest} fit into an order; then {:?} does not follow, which was \
                     answered {:?}",
                    operations.len(),
                    stuck.op,
                    stuck.returned.as_ref().map(|(_, answer)| answer)
                );
                Err(Violation { invariant: Invariant::Linearizable, detail })
            }
        }
    }

    /// The probable place of an operation: the place of a command is its place in the log; the place of a
    /// read is after the command that made the revision that it saw.
    fn hints(&self) -> impl Fn(&Done) -> u64 {
        let mut made = BTreeMap::new();
        for done in self.clients.history.iter().filter(|done| !done.op.is_read()) {
            let Some((place, reply)) = self.reference.reply(&done.payload) else { continue };
            if let Some(revision) = Answer::decode(&done.op, reply).and_then(|answer| answer.revision()) {
                let first = made.entry(revision).or_insert(place);
                *first = place.min(*first);
            }
        }
        move |done| {
            let seen = done.returned.as_ref().and_then(|(_, answer)| answer.revision());
            let place = self.reference.reply(&done.payload).map(|(place, _)| place * 2);
            let after = || made.range(..=seen?).next_back().map(|(_, place)| place * 2 + 1);
            match (&done.returned, done.op.is_read()) {
                (_, true) => after().unwrap_or(0),
                // The command is not in the log: it probably never happened.
                (None, false) => place.unwrap_or(u64::MAX),
                (Some(_), false) => place.unwrap_or(0),
            }
        }
    }
}

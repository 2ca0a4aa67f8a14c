//! What is demanded of a guest's machine: at each replica the whole state of the reference, and answers that the
//! reference gives too.
//!
//! The reference executes every slot once and restores nothing. Slots here are those of the only group, or the batches
//! of the common order of merged groups.

use std::{fmt, rc::Rc};

use bytes::Bytes;

use super::invariant::{Checked, Invariant, Violation, demand};
use crate::guest::{AnyGuest, AnyMachine, Hosting, Input, text_of};

/// Characters of a state that a violation shows, and how many of them come before the difference.
const SHOWN: usize = 120;
const SHOWN_BEFORE: usize = 40;
/// Answers of the reference that a violation shows.
const ANSWERS_SHOWN: usize = 4;

/// The guest's machine at the reference.
#[derive(Debug)]
pub(crate) struct GuestReference {
    guest: Rc<dyn AnyGuest>,
    /// The whole state at the beginning, and after each slot.
    states: Vec<Rc<str>>,
    /// Everything that the machine was given, in order.
    inputs: Vec<Input>,
    /// The last slot with a command.
    last_command: u64,
    /// The slot after which the group begins: it stands for a backup, if it is not 0.
    begins: u64,
    trail: Option<Trail>,
}

/// A machine that is given the same later, so that it can be asked what the reference would have answered. It follows
/// the reads: each later one has to reflect what an earlier one has seen.
#[derive(Debug)]
struct Trail {
    machine: Box<dyn AnyMachine>,
    /// This many inputs were given.
    given: usize,
    slot: u64,
}

impl Trail {
    /// Goes on to a slot.
    fn go_to(&mut self, slot: u64, inputs: &[Input]) {
        while let Some(input) = inputs.get(self.given).filter(|input| input.at() <= slot) {
            input.give(&mut *self.machine);
            self.given += 1;
        }
        self.slot = slot;
    }
}

/// A query that was answered.
#[derive(Debug)]
pub(crate) struct Answered<'a> {
    pub query: &'a Bytes,
    pub answer: &'a Bytes,
    /// What was executed, acknowledged or seen through this slot has to be reflected.
    pub from: u64,
    /// Nobody had delivered more than this slot.
    pub through: u64,
}

impl GuestReference {
    /// The machine of the reference in its initial state.
    pub fn new(guest: Rc<dyn AnyGuest>, reference: &Hosting) -> GuestReference {
        let (states, inputs) = (Vec::new(), Vec::new());
        let mut new = GuestReference { guest, states, inputs, last_command: 0, begins: 0, trail: None };
        new.executed(reference);
        new
    }

    /// The group begins with the state of a backup, which this slot stands for and the reference has.
    pub fn begins_with_backup(&mut self, slot: u64, reference: &Hosting) {
        self.executed(reference);
        self.begins = slot;
    }

    /// The reference has executed a slot.
    pub fn executed(&mut self, reference: &Hosting) {
        let machine = reference.guest().expect("every machine hosts the guest");
        let state = self.guest.state(machine);
        // Most slots change nothing.
        let same = self.states.last().filter(|last| ***last == *state).map(Rc::clone);
        self.states.push(same.unwrap_or_else(|| state.into()));
        for input in reference.take_inputs() {
            if let Input::Command(..) = input {
                self.last_command = input.at();
            }
            self.inputs.push(input);
        }
    }

    /// The last slot with a command.
    pub fn last_command(&self) -> u64 {
        self.last_command
    }

    /// A replica's machine has the state of the reference after this slot.
    pub fn has_state_of(&self, who: &dyn fmt::Display, slot: u64, replica: &Hosting) -> Checked {
        let index = usize::try_from(slot).expect("a short log");
        let (Some(machine), Some(known)) = (replica.guest(), self.states.get(index)) else { return Ok(()) };
        let state = self.guest.state(machine);
        demand(state == **known, Invariant::SameState, || {
            let [own, known] = around_difference(&state, known);
            format!(
                "after slot {slot} the machine of {who} has the state {own}, and that of the reference, which has restored \
                 nothing, {known}"
            )
        })
    }

    /// Finds the first slot after which the reference gives the same answer.
    pub fn answers(&mut self, who: &dyn fmt::Display, read: &Answered<'_>) -> Result<u64, Violation> {
        // An earlier read may have gone further than a concurrent one. No client finds less than a backup.
        let from = read.from.max(self.begins);
        let begins = || {
            let machine = if self.begins > 0 { self.guest.backup() } else { self.guest.machine() };
            Trail { machine, given: 0, slot: self.begins }
        };
        let mut trail = self.trail.take().filter(|trail| trail.slot <= from).unwrap_or_else(begins);
        trail.go_to(from, &self.inputs);
        let mut others: Vec<String> = Vec::new();
        loop {
            let answer = trail.machine.query(read.query);
            if answer == *read.answer {
                let slot = trail.slot;
                self.trail = Some(trail);
                return Ok(slot);
            }
            let other = text_of(&answer);
            if others.len() < ANSWERS_SHOWN && others.last() != Some(&other) {
                others.push(other);
            }
            let next = self.inputs.get(trail.given).map(Input::at).filter(|slot| *slot <= read.through);
            let Some(next) = next else { break };
            trail.go_to(next, &self.inputs);
        }
        let Answered { query, answer, through, .. } = read;
        let detail = format!(
            "{who} answers the query {} by {}; everything through slot {from} was acknowledged or seen before, and from there \
             to slot {through} the reference answers {}",
            text_of(query),
            text_of(answer),
            others.join(", then ")
        );
        Err(Violation { invariant: Invariant::Linearizable, detail })
    }
}

/// The parts of two texts around the first difference.
fn around_difference(one: &str, other: &str) -> [String; 2] {
    let differs = one.char_indices().zip(other.chars()).find(|((_, one), other)| one != other);
    let at = differs.map_or(one.len().min(other.len()), |((at, _), _)| at);
    let from = one[..at].char_indices().rev().take(SHOWN_BEFORE).last().map_or(0, |(from, _)| from);
    [one, other].map(|text| {
        let shown: String = text[from..].chars().take(SHOWN).collect();
        let before = if from > 0 { "... " } else { "" };
        let after = if from + shown.len() < text.len() { " ..." } else { "" };
        format!("{before}{shown}{after}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_two_states_the_difference_is_shown() {
        let [one, other] = around_difference("Bank { done: 3 }", "Bank { done: 17 }");
        assert_eq!((one.as_str(), other.as_str()), ("Bank { done: 3 }", "Bank { done: 17 }"));
        let long = |end: &str| format!("{}{end}{}", "ä".repeat(100), "z".repeat(200));
        let [one, other] = around_difference(&long("é"), &long(""));
        assert_eq!(one, format!("... {}é{} ...", "ä".repeat(40), "z".repeat(79)));
        assert_eq!(other, format!("... {}{} ...", "ä".repeat(40), "z".repeat(80)));
        assert_eq!(around_difference("same", "same and more")[1], "same and more");
    }
}

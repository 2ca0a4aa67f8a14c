//! The rule that decides when a message may leave: once the record that it rests on is durable.
//!
//! So a message passes those that wait for a later record: a replica whose disk hangs goes on saying what it has
//! written, and a leader whose followers' disks hang still serves reads. No protocol needs the order of two messages
//! that rest on records, as the simulator's network shows. Messages whose records become durable together leave in the
//! order in which they were sent.

use std::collections::VecDeque;

use synod_wire::Lsn;

use crate::planted::{HostBug, has};

/// The gate of one group, where one thread sends and learns what is durable.
#[derive(Clone, Debug)]
pub struct Gate<M> {
    entry: Entry,
    exit: Exit<M>,
}

impl<M> Gate<M> {
    /// The gate of a group whose log is durable through this record.
    #[must_use]
    pub fn new(durable: Lsn) -> Gate<M> {
        Gate { entry: Entry::new(durable), exit: Exit::default() }
    }

    /// Sends a message that rests on record `after`. Returns the message if it leaves at once; otherwise it waits.
    pub fn send(&mut self, after: Lsn, message: M) -> Option<M> {
        let is_held = has(HostBug::WaitForAll) && !self.exit.is_empty();
        if self.entry.admits(after) && !is_held {
            return Some(message);
        }
        self.exit.hold(after, message);
        None
    }

    /// The log is durable through this record. What waited for it leaves by [`Gate::leave`].
    pub fn durable(&mut self, durable: Lsn) {
        self.entry.durable(durable);
    }

    /// The next message that leaves, with the record that it rested on.
    pub fn leave(&mut self) -> Option<(Lsn, M)> {
        self.exit.leave(self.entry.durable)
    }

    /// The last durable record.
    #[must_use]
    pub fn through(&self) -> Lsn {
        self.entry.durable
    }

    /// The messages that wait, in their order, each with the record that it rests on.
    pub fn waiting(&self) -> impl ExactSizeIterator<Item = &(Lsn, M)> {
        self.exit.waiting.iter()
    }
}

/// The side of a gate where messages come in. It may be another thread's than the [`Exit`], to which it then hands the
/// messages that wait, in their order.
#[derive(Clone, Debug)]
pub struct Entry {
    durable: Lsn,
}

impl Entry {
    /// The entry of a group whose log is durable through this record.
    #[must_use]
    pub fn new(durable: Lsn) -> Entry {
        Entry { durable }
    }

    /// The log is durable through this record.
    pub fn durable(&mut self, durable: Lsn) {
        self.durable = self.durable.max(durable);
    }

    /// The last record that is known to be durable.
    #[must_use]
    pub fn through(&self) -> Lsn {
        self.durable
    }

    /// Whether a message that rests on record `after` leaves at once. If not, the exit is to hold it.
    #[inline]
    #[must_use]
    pub fn admits(&self, after: Lsn) -> bool {
        after <= self.durable || has(HostBug::WaitForNone)
    }
}

/// The side of a gate where messages wait and leave.
#[derive(Clone, Debug)]
pub struct Exit<M> {
    waiting: VecDeque<(Lsn, M)>,
}

impl<M> Default for Exit<M> {
    fn default() -> Exit<M> {
        Exit { waiting: VecDeque::new() }
    }
}

impl<M> Exit<M> {
    /// Takes a message that the entry did not admit, in the order in which it was sent.
    #[inline]
    pub fn hold(&mut self, after: Lsn, message: M) {
        self.waiting.push_back((after, message));
    }

    /// The next message that leaves while the log is durable through this record, with the record that it rested on.
    #[inline]
    pub fn leave(&mut self, durable: Lsn) -> Option<(Lsn, M)> {
        // Nearly always the first.
        let is_ready = |(after, _): &(Lsn, M)| *after <= durable;
        let mut at = self.waiting.iter().position(is_ready)?;
        if has(HostBug::LastOutFirst) {
            at = self.waiting.iter().rposition(is_ready)?;
        }
        self.waiting.remove(at)
    }

    /// Whether no message waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left(gate: &mut Gate<&'static str>) -> Vec<&'static str> {
        std::iter::from_fn(|| gate.leave()).map(|(_, message)| message).collect()
    }

    #[test]
    fn a_message_waits_for_its_record() {
        let mut gate = Gate::new(Lsn(3));
        assert_eq!(gate.send(Lsn(3), "durable"), Some("durable"));
        assert_eq!(gate.send(Lsn(4), "written"), None);
        assert!(left(&mut gate).is_empty());
        gate.durable(Lsn(4));
        assert_eq!(left(&mut gate), ["written"]);
        assert_eq!(gate.send(Lsn(4), "again"), Some("again"));
    }

    #[test]
    fn what_becomes_durable_together_leaves_in_the_order_in_which_it_was_sent() {
        let mut gate = Gate::new(Lsn(3));
        assert_eq!(gate.send(Lsn(5), "a"), None);
        assert_eq!(gate.send(Lsn(4), "b"), None);
        assert_eq!(gate.send(Lsn::ZERO, "heartbeat"), Some("heartbeat"));
        assert_eq!(gate.send(Lsn(6), "c"), None);
        gate.durable(Lsn(5));
        assert_eq!(left(&mut gate), ["a", "b"]);
        assert_eq!(gate.waiting().map(|(after, _)| after.0).collect::<Vec<_>>(), [6]);
        gate.durable(Lsn(6));
        assert_eq!(left(&mut gate), ["c"]);
    }

    #[test]
    fn what_is_written_is_said_while_the_disk_hangs() {
        let mut gate = Gate::new(Lsn(3));
        assert_eq!(gate.send(Lsn(6), "vote"), None);
        assert_eq!(gate.send(Lsn(4), "earlier vote"), None);
        assert_eq!(gate.send(Lsn(3), "follows"), Some("follows"));
        gate.durable(Lsn(4));
        assert_eq!(gate.send(Lsn(3), "follows"), Some("follows"));
        assert_eq!(left(&mut gate), ["earlier vote"]);
    }

    #[test]
    fn what_was_durable_stays_durable() {
        let mut gate = Gate::new(Lsn(3));
        gate.durable(Lsn(2));
        assert_eq!((gate.through(), gate.send(Lsn(3), "a")), (Lsn(3), Some("a")));
    }
}

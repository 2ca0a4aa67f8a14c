//! The rule that decides when a message may leave: not before the record that it rests on is durable, and, if it
//! rests on a record, not before an earlier message that does and still waits.
//!
//! A message that rests on no record waits for nothing. Messages of different groups do not wait for each other.

use std::collections::VecDeque;

use synod_wire::Lsn;

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
        if self.entry.admits(after, || self.exit.left()) {
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
    /// The messages that the exit was given so far.
    held: u64,
}

impl Entry {
    /// The entry of a group whose log is durable through this record.
    #[must_use]
    pub fn new(durable: Lsn) -> Entry {
        Entry { durable, held: 0 }
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

    /// Whether a message that rests on record `after` leaves at once. If not, the exit is to hold it. `left` says how
    /// many messages have left by the exit; a number that is too small is safe, and delays messages.
    #[inline]
    pub fn admits(&mut self, after: Lsn, left: impl FnOnce() -> u64) -> bool {
        let leaves = after <= self.durable && (after == Lsn::ZERO || self.held <= left());
        self.held += u64::from(!leaves);
        leaves
    }
}

/// The side of a gate where messages wait and leave.
#[derive(Clone, Debug)]
pub struct Exit<M> {
    waiting: VecDeque<(Lsn, M)>,
    left: u64,
}

impl<M> Default for Exit<M> {
    fn default() -> Exit<M> {
        Exit { waiting: VecDeque::new(), left: 0 }
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
        let (after, _) = self.waiting.front()?;
        if *after > durable {
            return None;
        }
        self.left += 1;
        self.waiting.pop_front()
    }

    /// How many messages have left so far.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.left
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
    fn what_rests_on_records_leaves_in_order_and_all_else_at_once() {
        let mut gate = Gate::new(Lsn(3));
        assert_eq!(gate.send(Lsn(5), "a"), None);
        assert_eq!(gate.send(Lsn::ZERO, "heartbeat"), Some("heartbeat"));
        assert_eq!(gate.send(Lsn(2), "b"), None, "it would overtake an earlier one");
        assert_eq!(gate.send(Lsn(6), "c"), None);
        gate.durable(Lsn(5));
        assert_eq!(gate.send(Lsn(5), "d"), None, "those before it have not left yet");
        assert_eq!(left(&mut gate), ["a", "b"]);
        assert_eq!(gate.waiting().map(|(after, _)| after.0).collect::<Vec<_>>(), [6, 5]);
        gate.durable(Lsn(6));
        assert_eq!(left(&mut gate), ["c", "d"]);
        assert_eq!(gate.send(Lsn(1), "e"), Some("e"));
    }

    #[test]
    fn what_was_durable_stays_durable() {
        let mut gate = Gate::new(Lsn(3));
        gate.durable(Lsn(2));
        assert_eq!((gate.through(), gate.send(Lsn(3), "a")), (Lsn(3), Some("a")));
    }

    /// Against the rule in its plainest form: all messages that wait are looked at each time. The two sides of the
    /// gate know of each other only now and then.
    #[test]
    fn the_two_sides_let_out_what_the_rule_allows_whenever_they_hear_of_each_other() {
        let mut rng = fastrand::Rng::with_seed(1);
        let mut waited = 0;
        for _ in 0..200 {
            let (mut entry, mut exit) = (Entry::new(Lsn::ZERO), Exit::default());
            let (mut written, mut durable, mut known_left) = (0, 0, 0);
            let (mut sent, mut out) = (Vec::new(), Vec::new());
            for number in 0..50_u64 {
                match rng.u8(0..4) {
                    0 => written += 1,
                    1 => durable = rng.u64(durable..=written),
                    2 => entry.durable(Lsn(durable)),
                    _ => known_left = exit.left(),
                }
                let after = if rng.bool() { Lsn::ZERO } else { Lsn(rng.u64(0..=written)) };
                sent.push(after);
                if entry.admits(after, || known_left) {
                    out.push(number);
                } else {
                    waited += 1;
                    exit.hold(after, number);
                }
                if rng.bool() {
                    out.extend(std::iter::from_fn(|| exit.leave(Lsn(durable))).map(|(_, number)| number));
                }
                for &number in &out {
                    assert!(
                        sent[number as usize].0 <= durable,
                        "{number} left before its record was durable"
                    );
                }
            }
            out.extend(std::iter::from_fn(|| exit.leave(Lsn(written))).map(|(_, number)| number));
            let gated: Vec<_> = out.iter().filter(|number| sent[**number as usize] > Lsn::ZERO).collect();
            assert!(gated.is_sorted(), "{gated:?}");
            assert!(exit.is_empty() && out.len() == 50, "all have left");
        }
        assert!(waited > 1000, "{waited}");
    }
}

//! What this replica has taken in and its threads have not dealt with yet: decided batches that are not executed,
//! records that are not on stable storage, and messages that wait for these records. Each is bounded in bytes.
//!
//! - **Batches and records.** Beyond their bounds the replica is backlogged: it proposes, accepts, learns and fetches
//!   nothing until half of the backlog is done. What it had accepted before may still be decided and be added to it. It
//!   drops the messages that its protocol is sent meanwhile; when there is room again, it tells its leader so
//!   ([`PeerMessage::Missed`](crate::PeerMessage::Missed)), which sends them again at once.
//!   One that the first of several merged groups has removed executes nothing more, since its merge waits for that
//!   group for good. What the other groups decide until they have let it go counts no more, or they might wait for it
//!   for good.
//! - **Messages.** While a disk does not answer, peers go on asking, and every answer waits: a promise may
//!   hold a page of
//!   a megabyte, and a candidate asks for it again with every retransmission. A message that does not fit the bound is
//!   not sent. That is a lost message, which every protocol survives: silence may not promise anything, and a replica
//!   that waits for an answer asks again. Dropping the newest message rather than the oldest costs nothing, since all
//!   of them wait for the same disk.

use std::collections::VecDeque;

use synod_consensus::{Bug, Control, Input};
use synod_wire::{Lsn, Slot, Time};

use crate::{Action, MergeBug, Replica, Settings, merge::has};

/// Sizes in the order in which they came, each with the mark at which its item is done.
#[derive(Debug)]
struct Amounts<M> {
    entries: VecDeque<(M, u64)>,
    bytes: u64,
}

impl<M> Default for Amounts<M> {
    fn default() -> Amounts<M> {
        Amounts { entries: VecDeque::new(), bytes: 0 }
    }
}

impl<M: Copy + Ord> Amounts<M> {
    fn add(&mut self, mark: M, bytes: u64) {
        self.bytes += bytes;
        match self.entries.back_mut() {
            Some((last, sum)) if *last == mark => *sum += bytes,
            _ => self.entries.push_back((mark, bytes)),
        }
    }

    /// Records that everything with a mark up to this one is done. An item that stands after one with a
    /// later mark is done with that one.
    fn done(&mut self, through: M) {
        while let Some(&(mark, bytes)) = self.entries.front()
            && mark <= through
        {
            self.entries.pop_front();
            self.bytes -= bytes;
        }
    }
}

/// What waits in a replica, in bytes, and whether that is too much.
#[derive(Debug)]
pub(crate) struct Backlog {
    /// Everything through this slot is executed.
    executed: Slot,
    unexecuted: Amounts<Slot>,
    undurable: Amounts<Lsn>,
    held: Amounts<Lsn>,
    /// Records through this one are on stable storage.
    durable: Lsn,
    /// How many messages were not sent because too many bytes were held.
    given_up: u64,
    /// Whether the replica takes in nothing more, because too much waits.
    too_much: bool,
    /// Batches that wait to be executed do not count: the node leaves, and will not execute them.
    leaves: bool,
}

impl Backlog {
    /// A backlog in which nothing waits, where everything through `executed` is executed, and records through
    /// `durable` are on stable storage.
    pub(crate) fn new(executed: Slot, durable: Lsn) -> Backlog {
        Backlog {
            executed,
            unexecuted: Amounts::default(),
            undurable: Amounts::default(),
            held: Amounts::default(),
            durable,
            given_up: 0,
            too_much: false,
            leaves: false,
        }
    }

    /// Records whether the node was removed, and executes nothing more.
    pub(crate) fn leaves(&mut self, leaves: bool) {
        self.leaves = leaves;
    }

    /// Records that a batch of this size is decided and has to be executed.
    pub(crate) fn delivered(&mut self, slot: Slot, bytes: u64) {
        self.unexecuted.add(slot, bytes);
    }

    /// Records that everything through this slot is executed.
    pub(crate) fn executed(&mut self, slot: Slot) {
        self.executed = self.executed.max(slot);
        self.unexecuted.done(slot);
    }

    /// The last slot that is executed.
    pub(crate) fn executed_through(&self) -> Slot {
        self.executed
    }

    /// Counts a record of this size, which has to be written.
    pub(crate) fn appended(&mut self, lsn: Lsn, bytes: u64) {
        self.undurable.add(lsn, bytes);
    }

    /// Marks records through this one as durable.
    pub(crate) fn durable(&mut self, lsn: Lsn) {
        self.durable = self.durable.max(lsn);
        self.undurable.done(lsn);
        self.held.done(lsn);
    }

    /// Whether a message of this size, which waits for record `after`, may be sent. If so, and if it has to
    /// wait, it counts as held from now on.
    pub(crate) fn may_hold(&mut self, after: Lsn, bytes: u64, settings: &Settings) -> bool {
        let waits = after > self.durable;
        // One message may always wait, however large it is: otherwise it would never be sent.
        let bounded = !settings.consensus.has(Bug::HoldWithoutBound);
        if waits && bounded && self.held.bytes > 0 && self.held.bytes + bytes > settings.held_bytes_max {
            self.given_up += 1;
            return false;
        }
        if waits {
            self.held.add(after, bytes);
        }
        true
    }

    /// Looks whether the backlog has become too large, or has shrunk to half of its bounds after that;
    /// returns whether this has changed.
    pub(crate) fn changes(&mut self, settings: &Settings) -> bool {
        let share = if self.too_much { 2 } else { 1 };
        let slots = self.unexecuted.entries.len() as u64;
        let lags = slots > settings.backlog_slots_max / share
            || self.unexecuted.bytes > settings.backlog_bytes_max / share
                && !settings.consensus.has(Bug::QueueForExecutorWithoutBound);
        let too_much = lags && (!self.leaves || has(MergeBug::HoldLeavingBack))
            || self.undurable.bytes > settings.undurable_bytes_max / share;
        std::mem::replace(&mut self.too_much, too_much) != too_much
    }

    /// Whether the replica should take in nothing more.
    pub(crate) fn is_too_much(&self) -> bool {
        self.too_much
    }

    /// Whether there is room once more records are durable.
    pub(crate) fn waits_for_disk(&self) -> bool {
        self.too_much || self.given_up > 0 && self.held.bytes > 0
    }

    /// Bytes of decided batches that are not executed.
    pub(crate) fn unexecuted_bytes(&self) -> u64 {
        self.unexecuted.bytes
    }

    /// Bytes of records that are not on stable storage.
    pub(crate) fn undurable_bytes(&self) -> u64 {
        self.undurable.bytes
    }

    /// Bytes of messages that wait for these records.
    pub(crate) fn held_bytes(&self) -> u64 {
        self.held.bytes
    }

    /// How many messages were not sent because too many bytes were held.
    pub(crate) fn given_up(&self) -> u64 {
        self.given_up
    }
}

impl Replica {
    /// Counts what these actions give to the disk, and takes out the messages for which there is no room until it
    /// answers.
    pub(crate) fn weigh(&mut self, now: Time, from: usize, actions: &mut Vec<Action>) {
        let (backlog, settings) = (&mut self.backlog, &self.settings);
        let given_up = actions.extract_if(from.., |action| match action {
            Action::Append { lsn, record } => {
                backlog.appended(*lsn, record.weight());
                false
            }
            Action::Send { message, after, .. } => !backlog.may_hold(*after, message.weight(), settings),
            _ => false,
        });
        given_up.for_each(drop);
        self.watch_backlog(now);
    }

    /// Whether executing, or the disk, is so far behind that nothing more should be taken in.
    pub(crate) fn is_backlogged(&self) -> bool {
        self.backlog.is_too_much()
    }

    pub(crate) fn watch_backlog(&mut self, now: Time) {
        if self.backlog.changes(&self.settings) {
            let backlogged = Control::Backlogged(self.backlog.is_too_much());
            self.instance.step(now, Input::Control(backlogged));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replica_whose_node_leaves_does_not_wait_for_its_executor() {
        let mut backlog = Backlog::new(Slot::ZERO, Lsn::ZERO);
        (1..20).for_each(|slot| backlog.delivered(Slot(slot), 1));
        assert!(backlog.changes(&settings()) && backlog.is_too_much());
        backlog.leaves(true);
        assert!(backlog.changes(&settings()) && !backlog.is_too_much());
        backlog.appended(Lsn(1), 2_000);
        assert!(backlog.changes(&settings()) && backlog.is_too_much(), "it still waits for its disk");
    }

    fn settings() -> Settings {
        Settings {
            backlog_slots_max: 10,
            backlog_bytes_max: 1_000,
            undurable_bytes_max: 1_000,
            held_bytes_max: 1_000,
            ..Settings::default()
        }
    }

    #[test]
    fn a_few_large_batches_are_as_much_as_many_small_ones() {
        let settings = settings();
        let mut backlog = Backlog::new(Slot::ZERO, Lsn(0));
        (1..=10).for_each(|slot| backlog.delivered(Slot(slot), 10));
        assert!(!backlog.changes(&settings));
        backlog.delivered(Slot(11), 10);
        assert!(backlog.changes(&settings) && backlog.is_too_much(), "eleven slots");
        assert_eq!(backlog.unexecuted_bytes(), 110);
        backlog.executed(Slot(5));
        assert!(!backlog.changes(&settings), "half of them must be done");
        backlog.executed(Slot(6));
        assert!(backlog.changes(&settings) && !backlog.is_too_much());

        backlog.executed(Slot(11));
        (12..=13).for_each(|slot| backlog.delivered(Slot(slot), 501));
        assert!(
            backlog.changes(&settings) && backlog.is_too_much(),
            "two slots of more bytes than there may be"
        );
        backlog.executed(Slot(12));
        assert!(!backlog.changes(&settings));
        backlog.executed(Slot(13));
        assert!(backlog.changes(&settings) && backlog.unexecuted_bytes() == 0);
    }

    #[test]
    fn records_that_the_disk_does_not_take_are_a_backlog_too() {
        let settings = settings();
        let mut backlog = Backlog::new(Slot::ZERO, Lsn(7));
        backlog.appended(Lsn(8), 600);
        assert!(!backlog.changes(&settings));
        backlog.appended(Lsn(9), 600);
        assert!(backlog.changes(&settings) && backlog.waits_for_disk());
        backlog.durable(Lsn(9));
        assert!(backlog.changes(&settings) && !backlog.waits_for_disk());
    }

    #[test]
    fn messages_that_wait_for_the_disk_are_bounded_and_others_are_not() {
        let settings = settings();
        let mut backlog = Backlog::new(Slot::ZERO, Lsn(7));
        assert!(backlog.may_hold(Lsn(8), 900, &settings));
        assert!(!backlog.may_hold(Lsn(8), 101, &settings), "it does not fit");
        assert!(backlog.may_hold(Lsn(9), 100, &settings));
        assert!(backlog.may_hold(Lsn(7), 5_000, &settings), "it waits for nothing");
        assert_eq!((backlog.held_bytes(), backlog.given_up()), (1_000, 1));
        backlog.durable(Lsn(8));
        assert_eq!(backlog.held_bytes(), 100);
        assert!(backlog.may_hold(Lsn(9), 101, &settings));
        backlog.durable(Lsn(9));
        assert!(backlog.may_hold(Lsn(10), 5_000, &settings), "it has to leave some time");
        assert!(!backlog.may_hold(Lsn(10), 1, &settings));
    }
}

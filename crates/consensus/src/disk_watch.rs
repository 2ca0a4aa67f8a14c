//! What is on its way to the disk: how many slots, and since when.
//!
//! A leader yields, and a replica does not try to lead, while one of its records has been on its way for
//! longer than an election time-out, whatever the protocol and the election. Only the protocol's own records
//! count, and the load is counted in slots: the distance between two positions in the log says nothing, since
//! others write to the log too.

use std::{collections::VecDeque, time::Duration};

use synod_wire::{Lsn, Time};

/// The records of a protocol that are not durable yet.
#[derive(Clone, Debug, Default)]
pub(crate) struct DiskWatch {
    /// The oldest record that is not durable, and since when it has been on its way.
    oldest: Option<(Lsn, Time)>,
    /// The newest record.
    newest: Lsn,
    /// Of the records that hold slots: how many slots each holds, in the order of the log.
    held: VecDeque<(Lsn, u64)>,
    /// How many slots they hold together.
    slots: u64,
    /// How long the oldest record took lately until it was durable. It rises at once, and falls slowly.
    commit: Duration,
}

impl DiskWatch {
    /// Learns that the records after `before` through `last`, if any, were appended.
    pub(crate) fn appended(&mut self, before: Lsn, last: Lsn, now: Time) {
        if last > before {
            self.oldest.get_or_insert((before.next(), now));
            self.newest = last;
        }
    }

    /// Counts an appended record, which holds this many slots.
    pub(crate) fn given(&mut self, lsn: Lsn, slots: u64) {
        if slots > 0 {
            self.held.push_back((lsn, slots));
            self.slots += slots;
        }
    }

    /// Marks records through this one as durable. If more came in while the oldest was written,
    /// their time counts from now on, which is too late by at most one write.
    pub(crate) fn durable(&mut self, lsn: Lsn, now: Time) {
        if let Some((_, since)) = self.oldest.filter(|(oldest, _)| *oldest <= lsn) {
            self.commit = now.since(since).max(self.commit - self.commit / 8);
            self.oldest = (self.newest > lsn).then_some((self.newest, now));
        }
        while let Some(&(_, slots)) = self.held.front().filter(|(held, _)| *held <= lsn) {
            self.held.pop_front();
            self.slots -= slots;
        }
    }

    /// How many slots are held by records that are not durable.
    pub(crate) fn slots(&self) -> u64 {
        self.slots
    }

    /// Whether the disk takes longer than `limit`: its commits did lately, or the present one does.
    pub(crate) fn is_slower_than(&self, limit: Duration, now: Time) -> bool {
        self.commit > limit || !self.answers(now, limit)
    }

    /// Whether no record has been waiting for longer than `timeout`. A disk that hangs is noticed only once
    /// something is written to it.
    pub(crate) fn answers(&self, now: Time, timeout: Duration) -> bool {
        self.oldest.is_none_or(|(_, since)| now.since(since) <= timeout)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn t(ms: u64) -> Time {
        Time::ZERO + Duration::from_millis(ms)
    }

    const TIMEOUT: Duration = Duration::from_millis(100);

    #[test]
    fn records_of_others_and_distances_in_the_log_do_not_count() {
        let mut disk = DiskWatch::default();
        disk.appended(Lsn(7), Lsn(7), t(0));
        assert!(disk.answers(t(1000), TIMEOUT), "nothing was appended");
        disk.given(Lsn(1_000_000), 3);
        disk.appended(Lsn(999_999), Lsn(1_000_000), t(1000));
        assert_eq!(disk.slots(), 3);
        disk.durable(Lsn(999_999), t(1050));
        assert_eq!(disk.slots(), 3, "the records before it are somebody else's");
        assert!(disk.answers(t(1100), TIMEOUT) && !disk.answers(t(1101), TIMEOUT));
        disk.durable(Lsn(1_000_000), t(1102));
        assert_eq!(disk.slots(), 0);
        assert!(disk.answers(t(9000), TIMEOUT));
    }

    #[test]
    fn a_slow_disk_is_noticed_during_its_first_commit_and_forgotten_after_several_fast_ones() {
        let mut disk = DiskWatch::default();
        let limit = Duration::from_millis(10);
        disk.appended(Lsn(0), Lsn(1), t(0));
        assert!(!disk.is_slower_than(limit, t(10)) && disk.is_slower_than(limit, t(11)));
        disk.durable(Lsn(1), t(100));
        let mut fast = 0;
        while disk.is_slower_than(limit, t(200)) {
            fast += 1;
            disk.appended(Lsn(fast), Lsn(fast + 1), t(200));
            disk.durable(Lsn(fast + 1), t(201));
        }
        assert_eq!(fast, 18);
    }

    #[test]
    fn what_came_in_while_the_oldest_was_written_counts_from_then() {
        let mut disk = DiskWatch::default();
        for (lsn, at) in [(1, 0), (2, 10), (3, 20)] {
            disk.given(Lsn(lsn), 2);
            disk.appended(Lsn(lsn - 1), Lsn(lsn), t(at));
        }
        disk.durable(Lsn(1), t(90));
        assert_eq!(disk.slots(), 4);
        assert!(disk.answers(t(190), TIMEOUT) && !disk.answers(t(191), TIMEOUT));
        disk.durable(Lsn(3), t(195));
        assert!(disk.answers(t(1000), TIMEOUT));
        assert_eq!(disk.slots(), 0);
    }
}

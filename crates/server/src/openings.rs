//! Bounds the sessions that clients of one address open, so that they close none of others.
//!
//! The table of sessions is replicated and bounded: when it is full, one more closes the session that was idle for
//! longest, whichever client it belongs to. So **an address may open a quarter as many sessions as are free**,
//! counted over the time for which an idle session is kept. The thresholds are those of
//! [`Admission`](synod_grpc::Admission): an address that opens all it can gets a fifth of the table and the next one a
//! fifth of the rest, and something is always left. An address that has opened none lately may always open one, also
//! if the table is full.
//!
//! Each server counts for itself. Many addresses together can fill the table.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use synod_grpc::Origin;

/// An address may open one part in this many of what is free.
const SHARE: u64 = 4;
/// How many addresses are told apart. Further ones are counted as one.
const ORIGINS_MAX: usize = 4096;

/// The sessions that were opened lately.
#[derive(Debug, Default)]
pub(crate) struct Openings(Mutex<BTreeMap<Opener, Count>>);

/// A group, and the address of a client that opens sessions there; `None` for those that are counted as one.
type Opener = (u32, Option<Origin>);

/// What an opener opened in the present interval and in the one before. An interval is as long as an idle session is
/// kept, so no session counts for less than that, nor for more than twice as long.
#[derive(Debug)]
struct Count {
    began: Instant,
    now: u64,
    before: u64,
}

/// The table of a group's sessions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Table {
    pub(crate) group: u32,
    /// How many more sessions it holds before it closes one.
    pub(crate) free: u64,
    pub(crate) idle_max: Duration,
}

/// A session that may be opened, and counts from now on.
#[derive(Debug)]
pub(crate) struct Opening<'a> {
    openings: &'a Openings,
    opener: Opener,
}

impl Count {
    fn advance(&mut self, now: Instant, interval: Duration) {
        let passed = now.saturating_duration_since(self.began);
        if passed >= 2 * interval {
            *self = Count { began: now, now: 0, before: 0 };
        } else if passed >= interval {
            *self = Count { began: self.began + interval, now: 0, before: self.now };
        }
    }

    fn opened(&self) -> u64 {
        self.before + self.now
    }
}

impl Openings {
    /// Counts one more session, if the address may open it; otherwise tells how many it may have opened at present.
    pub(crate) fn open(&self, table: Table, origin: Origin, now: Instant) -> Result<Opening<'_>, u64> {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut opener = (table.group, Some(origin));
        if counts.len() >= ORIGINS_MAX && !counts.contains_key(&opener) {
            counts.retain(|_, count| {
                count.advance(now, table.idle_max);
                count.opened() > 0
            });
            if counts.len() >= ORIGINS_MAX {
                opener = (table.group, None);
            }
        }
        let count = counts.entry(opener).or_insert(Count { began: now, now: 0, before: 0 });
        count.advance(now, table.idle_max);
        let share = (table.free / SHARE).max(1);
        if count.opened() >= share {
            return Err(share);
        }
        count.now += 1;
        Ok(Opening { openings: self, opener })
    }
}

impl Opening<'_> {
    /// No session was opened, so this one does not count.
    pub(crate) fn failed(self) {
        let mut counts = self.openings.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.opener) {
            count.now = count.now.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;

    const MAX: u64 = 1_000;
    const IDLE_MAX: Duration = Duration::from_secs(600);

    fn host(number: u32) -> Origin {
        Some(IpAddr::V4(Ipv4Addr::from_bits(number)))
    }

    /// How many sessions an address opens, of a table that has `used` already.
    fn fill(openings: &Openings, origin: Origin, used: &mut u64, now: Instant) -> u64 {
        let before = *used;
        let table = |free| Table { group: 0, free, idle_max: IDLE_MAX };
        while openings.open(table(MAX - *used), origin, now).is_ok() {
            *used = MAX.min(*used + 1);
        }
        *used - before
    }

    #[test]
    fn each_address_gets_a_part_of_what_is_free_and_something_is_always_left() {
        let (openings, now) = (Openings::default(), Instant::now());
        let mut used = 0;
        assert_eq!(fill(&openings, host(1), &mut used, now), MAX / 5);
        assert_eq!(fill(&openings, host(1), &mut used, now), 0);
        assert_eq!(fill(&openings, host(2), &mut used, now), MAX * 4 / 25);
        for number in 3..16 {
            assert!(fill(&openings, host(number), &mut used, now) > 0);
        }
        assert!(used < MAX, "{used}");
    }

    #[test]
    fn an_address_opens_one_in_a_full_table_and_another_when_the_first_would_be_gone() {
        let (openings, now) = (Openings::default(), Instant::now());
        let full = Table { group: 0, free: 0, idle_max: IDLE_MAX };
        let open = |table, origin, now| openings.open(table, origin, now).is_ok();
        assert!(open(full, None, now) && !open(full, None, now));
        assert!(open(Table { group: 1, ..full }, None, now), "each group has a table");
        assert!(open(full, host(1), now));
        assert_eq!(openings.open(Table { free: 4, ..full }, None, now + IDLE_MAX).unwrap_err(), 1);
        let later = now + 2 * IDLE_MAX;
        openings.open(full, None, later).unwrap().failed();
        assert!(open(full, None, later) && !open(full, None, later));
    }

    #[test]
    fn very_many_addresses_are_counted_as_one_until_the_others_are_forgotten() {
        let (openings, now) = (Openings::default(), Instant::now());
        let full = Table { group: 0, free: 0, idle_max: IDLE_MAX };
        for number in 0..=ORIGINS_MAX as u32 {
            assert!(openings.open(full, host(number), now).is_ok());
        }
        assert!(openings.open(full, host(u32::MAX), now).is_err());
        assert!(openings.open(full, host(u32::MAX), now + 2 * IDLE_MAX).is_ok());
        assert_eq!(openings.0.lock().unwrap().len(), 1);
    }
}

//! When the leader and the other replicas find out that a slot is decided (Driftwood 2023, section 5.7).

use std::collections::BTreeMap;

use synod_wire::{Slot, Time};

/// When each replica has executed how much.
#[derive(Debug, Default)]
pub(super) struct Discovery {
    /// The slots that the leader has executed, each with the time.
    leader: BTreeMap<Slot, Time>,
    /// The same of each other replica, by its place.
    followers: BTreeMap<usize, Vec<(Slot, Time)>>,
}

/// How long after the leader the others found out, in milliseconds; negative if they did so before it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Delays {
    /// A twentieth of all took less.
    pub least: f64,
    /// Half of all took less.
    pub median: f64,
    /// A twentieth of all took more.
    pub most: f64,
}

impl Discovery {
    /// A replica has executed the batch of a slot.
    pub(super) fn found(&mut self, slot: Slot, leads: bool, place: usize, at: Time) {
        if leads {
            self.leader.insert(slot, at);
        } else {
            self.followers.entry(place).or_default().push((slot, at));
        }
    }

    /// The delays of all other replicas and slots; `None` without any.
    pub(super) fn delays(&self) -> Option<Delays> {
        let mut delays = Vec::new();
        for found in self.followers.values() {
            let mut found = found.iter().peekable();
            for (slot, &led) in &self.leader {
                while found.next_if(|(through, _)| through < slot).is_some() {}
                let Some((_, at)) = found.peek() else { break };
                delays.push(at.since(led).as_secs_f64() * 1e3 - led.since(*at).as_secs_f64() * 1e3);
            }
        }
        delays.sort_unstable_by(f64::total_cmp);
        let at = |share: usize| delays.get(delays.len() * share / 100).copied();
        Some(Delays { least: at(5)?, median: at(50)?, most: at(95)? })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_replica_finds_a_slot_with_the_first_batch_that_reaches_it() {
        let at = |ms| Time::ZERO + Duration::from_millis(ms);
        let mut discovery = Discovery::default();
        assert_eq!(discovery.delays(), None);
        for (slot, ms) in [(2, 10), (4, 20)] {
            discovery.found(Slot(slot), true, 0, at(ms));
        }
        for (slot, ms) in [(1, 5), (3, 8), (4, 23)] {
            discovery.found(Slot(slot), false, 1, at(ms));
        }
        let delays = discovery.delays().expect("two slots");
        assert_eq!((delays.least, delays.most), (-2.0, 3.0));
    }
}

//! The failure detector ◇P as the document implements it: each replica sends heartbeats, and suspects a member that
//! it has not heard for too long (Santos 2012, section 5.6). For comparisons.

use std::{collections::BTreeMap, time::Duration};

use synod_wire::{ReplicaId, Time};

use crate::{Members, ReplicaSet};

/// A replica's detector. At the start nobody is suspected.
#[derive(Clone, Debug)]
pub struct Detector {
    members: Members,
    every: Duration,
    after: Duration,
    beat_at: Option<Time>,
    heard_at: BTreeMap<ReplicaId, Time>,
}

impl Detector {
    /// Sends a heartbeat `every` so long (`η`), and suspects a member `after` so long a silence (`τ`).
    #[must_use]
    pub fn new(members: Members, every: Duration, after: Duration, now: Time) -> Detector {
        let heard_at = members.peers().map(|id| (id, now)).collect();
        Detector { members, every, after, beat_at: None, heard_at }
    }

    /// Whether heartbeats are to be sent to all now. They count as sent.
    pub fn beats(&mut self, now: Time) -> bool {
        let is_due = self.beat_at.is_none_or(|at| now.since(at) >= self.every);
        if is_due {
            self.beat_at = Some(now);
        }
        is_due
    }

    /// A heartbeat came.
    pub fn hear(&mut self, from: ReplicaId, now: Time) {
        self.heard_at.entry(from).and_modify(|at| *at = now);
    }

    /// The members that are suspected.
    #[must_use]
    pub fn suspected(&self, now: Time) -> ReplicaSet {
        let is_silent = |id: ReplicaId| self.heard_at.get(&id).is_some_and(|&at| now.since(at) > self.after);
        self.members.those(is_silent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_member_is_suspected_until_it_is_heard() {
        let at = |millis: u64| Time::from_nanos(millis * 1_000_000);
        let ms = Duration::from_millis;
        let members = Members::new((1..=3).map(ReplicaId), ReplicaId(1));
        let mut detector = Detector::new(members.clone(), ms(10), ms(25), at(0));
        assert!(detector.beats(at(0)) && !detector.beats(at(9)) && detector.beats(at(10)));
        detector.hear(ReplicaId(2), at(20));
        assert!(detector.suspected(at(25)).is_empty());
        assert_eq!(detector.suspected(at(26)), members.only(ReplicaId(3)));
        detector.hear(ReplicaId(3), at(30));
        assert_eq!(detector.suspected(at(46)), members.only(ReplicaId(2)));
    }
}

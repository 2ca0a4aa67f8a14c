//! Groups of watchers that are told the past together, and how those that lack more than the latest commits read a
//! view: in slices, of which the groups have one after another.
//!
//! A slice may end inside a revision. What a group has found of that is told with the rest, since revisions are told
//! whole, so it is kept until then. Only one group at a time is **inside** a revision, and a watcher for whom it is
//! large already reads on only with a place: there is never more of such revisions than places are given for, and one.

use std::{collections::BTreeSet, mem};

use super::{Hub, Noted, Number, Sight, Told, Wanted, Watcher, Watchers, bytes_of, pend};
use crate::{KvBug, View, planted};

/// Watchers that are told the past together, each from its next revision on.
#[derive(Debug, Default)]
pub(super) struct Members {
    pub(super) numbers: BTreeSet<Number>,
    /// Those whose next revision has not been reached.
    ahead: BTreeSet<(i64, Number)>,
    /// All others.
    pub(super) index: Wanted,
}

impl Members {
    pub(super) fn add(&mut self, watcher: &Watcher, number: Number) {
        self.numbers.insert(number);
        self.ahead.insert((watcher.next, number));
    }

    pub(super) fn remove(&mut self, watcher: &Watcher, number: Number) {
        self.numbers.remove(&number);
        if !self.ahead.remove(&(watcher.next, number)) {
            self.index.remove(&watcher.range, watcher.wants, number);
        }
    }

    /// The first revision that one of them lacks, if this is known.
    pub(super) fn first(&self) -> Option<i64> {
        let (next, _) = self.ahead.first()?;
        (self.ahead.len() == self.numbers.len()).then_some(*next)
    }

    /// Comes to the events of a revision.
    pub(super) fn reach(&mut self, revision: i64, watchers: &Watchers) {
        while let Some((next, number)) = self.ahead.first().copied()
            && (next <= revision || planted::has(KvBug::WatchRepeats))
        {
            self.ahead.pop_first();
            let watcher = &watchers[&number];
            self.index.insert(&watcher.range, watcher.wants, number);
        }
    }
}

/// Watchers that read a view together.
#[derive(Debug)]
pub(super) struct Reading {
    pub(super) number: u64,
    pub(super) view: View,
    /// The revision that is read next, and the first of its changes that has not been read.
    pub(super) at: (i64, u32),
    pub(super) members: Members,
    pub(super) slice: Slice,
    /// It has to wait until the group that is inside a revision has left it.
    pub(super) waits: bool,
}

/// What was found in a view and has not been told.
#[derive(Debug, Default)]
pub(super) struct Slice {
    pub(super) noted: Noted,
    /// Changes that were looked at.
    looked: usize,
    bytes: usize,
}

impl Hub {
    /// The group whose turn it is. While one is inside a revision, every second turn is its own.
    fn next_group(&mut self) -> Option<Reading> {
        let is_inside = self.inside.is_some();
        self.is_turn_inside = is_inside && !self.is_turn_inside;
        match self.readings.iter().position(|reading| !is_inside || !reading.waits) {
            Some(at) if !self.is_turn_inside => self.readings.remove(at),
            _ => self.inside.take(),
        }
    }

    /// Reads a slice of a view for one group of watchers.
    pub fn work(&mut self) {
        let Some(mut reading) = self.next_group() else { return };
        reading.waits = false;
        let Reading { view, at, members, slice, .. } = &mut reading;
        // Those that lacked more may have left.
        *at = members.first().map_or(*at, |first| (*at).max((first, 0)));
        let (mut looked, mut later, mut is_inside) = (0, Vec::new(), false);
        let (mut next, mut pauses, from) = (None, false, at.0);
        for change in view.changes_starting_at(*at) {
            let place = change.place();
            if place.0 > at.0 {
                let is_much =
                    slice.looked >= self.bounds.slice_changes || slice.bytes >= self.bounds.slice_bytes;
                if is_much || slice.noted.events >= self.bounds.noted_max {
                    next = Some(place);
                    break;
                }
            } else if looked >= self.bounds.slice_changes {
                (next, pauses) = (Some(place), true);
                break;
            } else {
                for (number, bytes) in self.postponed(&mut slice.noted, at.0) {
                    members.remove(&self.watchers[&number], number);
                    self.put_off(number, at.0, bytes, &mut later);
                }
            }
            *at = place;
            looked += 1;
            slice.looked += 1;
            members.reach(place.0, &self.watchers);
            let mut told = None;
            let is_deletion = || change.event().is_deletion();
            members.index.watchers_of(change.key(), is_deletion, |number| {
                let told = told.get_or_insert_with(|| Told::new(change.event()));
                if pend(&mut self.watchers, number, told, &mut slice.noted) {
                    slice.bytes += told.bytes;
                }
            });
        }
        let read = view.revision();
        *at = next.unwrap_or((read + 1, 0));
        if !pauses {
            let Slice { noted, .. } = mem::take(slice);
            self.deliver_noted(noted, at.0 - 1, members);
        } else if self.inside.is_some() {
            self.leave_revision(&mut reading);
            // Otherwise the next slice may have the whole of it.
            reading.waits = reading.at.0 == from;
        } else {
            self.keep_places(&mut reading, &mut later);
            is_inside = true;
        }
        later.into_iter().for_each(|number| self.go_on_with(number));
        if next.is_some() && !reading.members.numbers.is_empty() {
            if is_inside {
                self.inside = Some(reading);
            } else {
                self.readings.push_back(reading);
            }
            return self.settle();
        }
        let known = if planted::has(KvBug::WatchLosesBetween) { self.head } else { read };
        for number in &reading.members.numbers {
            let watcher = self.watchers.get_mut(number).expect("a watcher that ends leaves its reading");
            watcher.next = watcher.next.max(known + 1);
        }
        if self.sight == Sight::Following && (read == self.head || self.recent.has(read + 1)) {
            self.follow_recent(read + 1, reading.members);
        } else {
            reading.members.numbers.into_iter().for_each(|number| self.wait(number));
        }
        self.settle();
    }

    /// A group that would have to pause inside a revision, while another one is inside one, begins that revision again
    /// later.
    fn leave_revision(&mut self, reading: &mut Reading) {
        let (revision, _) = reading.at;
        let Slice { mut noted, .. } = mem::take(&mut reading.slice);
        for number in mem::take(&mut noted.watchers) {
            if self.forget(number, &mut noted, revision).is_some() {
                noted.watchers.push(number);
            }
        }
        self.deliver_noted(noted, revision - 1, &mut reading.members);
        reading.at = (revision, 0);
    }

    /// While a group is inside a revision: a watcher for whom that is a large one already reads on only with a place.
    /// So there is never more of such revisions than places are given for, and one.
    fn keep_places(&mut self, reading: &mut Reading, later: &mut Vec<Number>) {
        let (revision, _) = reading.at;
        for number in mem::take(&mut reading.slice.noted.watchers) {
            let Some(watcher) = self.watchers.get(&number) else { continue };
            let stream = watcher.stream;
            let of_revision = watcher.pending.partition_point(|told| told.revision() < revision);
            let bytes = || bytes_of(&watcher.pending[of_revision..]);
            let goes_on = self.places.is_kept_for(stream, number)
                || !self.streams[&stream].out.is_large(bytes())
                || self.places.keep(stream, number, bytes());
            if goes_on {
                reading.slice.noted.watchers.push(number);
                continue;
            }
            reading.members.remove(&self.watchers[&number], number);
            let bytes = self.forget(number, &mut reading.slice.noted, revision);
            self.put_off(number, revision, bytes.unwrap_or(0), later);
        }
    }
}

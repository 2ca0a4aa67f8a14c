//! The places of large revisions that wait on streams: bounded in bytes for all streams together, one for each stream,
//! and given in the order of waiting.
//!
//! A watcher of whose next revision there is more than a stream has room for [takes](Places::take) a place if one is
//! free and nobody waits. Otherwise it [waits](Places::wait). When its [turn](Places::next_turn) comes, a place is kept
//! for it, since it has yet to read its revision once more. So those that fell behind have theirs as soon as those that
//! did not.

use std::collections::BTreeMap;

use super::{index::Number, message::StreamNumber};

#[derive(Debug)]
pub(super) struct Places {
    bytes_max: usize,
    /// Of the places that are taken or kept.
    bytes: usize,
    streams: BTreeMap<StreamNumber, Share>,
    /// Streams without a place that want one, by the time since when they do.
    queue: BTreeMap<u64, StreamNumber>,
    /// How often something began to wait.
    came: u64,
}

/// What a stream has and wants.
#[derive(Debug, Default)]
struct Share {
    /// Of its place; 0 if it has none.
    bytes: usize,
    /// The watcher for whom the place is kept, until it takes it.
    kept: Option<Number>,
    /// Watchers that wait, in their order, with the bytes of their revisions as far as these are known.
    waiting: BTreeMap<u64, (Number, usize)>,
    /// Its place in the queue.
    queued: Option<u64>,
}

impl Places {
    /// Places for this many bytes of revisions, unless the last of them has more than half of it.
    pub(super) fn new(bytes_max: usize) -> Places {
        let (bytes, streams, queue, came) = Default::default();
        Places { bytes_max, bytes, streams, queue, came }
    }

    /// While half is free anything may have a place: otherwise a very large one would never have its turn.
    fn admits(&self, bytes: usize) -> bool {
        self.bytes <= self.bytes_max / 2 || self.bytes + bytes <= self.bytes_max
    }

    /// Takes a place for a revision of a watcher, if it is this one's turn, or nobody waits.
    pub(super) fn take(&mut self, stream: StreamNumber, watcher: Number, bytes: usize) -> bool {
        let has_turn = self.forgo(stream, watcher);
        let has_none = self.streams.get(&stream).is_none_or(|share| share.bytes == 0);
        let takes = has_none && (has_turn || self.queue.is_empty()) && self.admits(bytes);
        if takes {
            self.bytes += bytes;
            self.change(stream, |share| share.bytes = bytes);
        }
        takes
    }

    /// The same for a watcher that has not read the whole of its revision: the place is kept for it.
    pub(super) fn keep(&mut self, stream: StreamNumber, watcher: Number, bytes: usize) -> bool {
        let keeps = self.take(stream, watcher, bytes);
        if keeps {
            self.change(stream, |share| share.kept = Some(watcher));
        }
        keeps
    }

    /// Whether a place is kept for this watcher.
    pub(super) fn is_kept_for(&self, stream: StreamNumber, watcher: Number) -> bool {
        self.streams.get(&stream).is_some_and(|share| share.kept == Some(watcher))
    }

    /// A watcher does not use its turn. Says whether it had one.
    pub(super) fn forgo(&mut self, stream: StreamNumber, watcher: Number) -> bool {
        let had = self.is_kept_for(stream, watcher);
        if had {
            self.left(stream);
        }
        had
    }

    /// A watcher waits for a place for this many bytes at least; returns what [`Places::leave`] takes.
    pub(super) fn wait(&mut self, stream: StreamNumber, watcher: Number, bytes: usize) -> u64 {
        self.came += 1;
        let came = self.came;
        self.change(stream, |share| _ = share.waiting.insert(came, (watcher, bytes)));
        came
    }

    /// A watcher waits no more.
    pub(super) fn leave(&mut self, stream: StreamNumber, came: u64) {
        self.change(stream, |share| _ = share.waiting.remove(&came));
    }

    /// The large revision of a stream has left.
    pub(super) fn left(&mut self, stream: StreamNumber) {
        let Some(share) = self.streams.get(&stream) else { return };
        self.bytes -= share.bytes;
        self.change(stream, |share| (share.bytes, share.kept) = (0, None));
    }

    /// A stream has ended, with everything on it.
    pub(super) fn close(&mut self, stream: StreamNumber) {
        self.left(stream);
        if self.streams.contains_key(&stream) {
            self.change(stream, |share| share.waiting.clear());
        }
    }

    /// The next watcher that is to read its revision again, since a place is kept for it now.
    pub(super) fn next_turn(&mut self) -> Option<Number> {
        let (_, &stream) = self.queue.first_key_value()?;
        let (&came, &(watcher, bytes)) = self.streams[&stream].waiting.first_key_value()?;
        if !self.admits(bytes) {
            return None;
        }
        self.bytes += bytes;
        self.change(stream, |share| {
            share.waiting.remove(&came);
            (share.bytes, share.kept) = (bytes, Some(watcher));
        });
        Some(watcher)
    }

    /// How many streams wait for a place.
    pub(super) fn wanting(&self) -> usize {
        self.queue.len()
    }

    /// Changes the share of a stream. One that has no place then and wants one is in the queue.
    fn change(&mut self, stream: StreamNumber, change: impl FnOnce(&mut Share)) {
        let share = self.streams.entry(stream).or_default();
        change(share);
        let waits = share.bytes == 0 && !share.waiting.is_empty();
        match share.queued {
            None if waits => {
                self.came += 1;
                share.queued = Some(self.came);
                self.queue.insert(self.came, stream);
            }
            Some(place) if !waits => {
                share.queued = None;
                self.queue.remove(&place);
            }
            _ => {}
        }
        if share.bytes == 0 && !waits {
            self.streams.remove(&stream);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_have_their_places_in_the_order_of_waiting() {
        let mut places = Places::new(100);
        assert!(places.take(1, 10, 60) && places.take(2, 20, 39));
        assert!(!places.take(3, 30, 5), "all is taken");
        places.wait(3, 30, 30);
        assert!(!places.take(4, 40, 1), "another one waits");
        places.wait(4, 40, 1);
        let third = places.wait(4, 41, 1);
        places.wait(4, 42, 1);
        assert_eq!(places.next_turn(), None);
        places.left(2);
        assert_eq!((places.next_turn(), places.next_turn()), (Some(30), Some(40)));
        assert_eq!(places.next_turn(), None, "a stream has one place at a time");
        assert!(places.is_kept_for(3, 30) && !places.is_kept_for(4, 41));
        assert!(!places.take(3, 30, 70), "it is more than was known");
        assert!(places.take(4, 40, 1) && !places.take(4, 41, 1));
        places.leave(4, third);
        places.left(4);
        assert_eq!(places.next_turn(), Some(42));
        assert!(places.forgo(4, 42) && !places.forgo(4, 42));
        places.left(1);
        assert!(places.bytes == 0 && places.queue.is_empty() && places.streams.is_empty());
    }

    #[test]
    fn one_may_have_more_than_there_is_if_half_is_free() {
        let mut places = Places::new(100);
        assert!(places.take(1, 10, 50) && places.take(2, 20, 1_000));
        assert!(!places.take(3, 30, 1));
        places.wait(3, 30, 1);
        places.left(1);
        assert_eq!(places.next_turn(), None);
        places.close(2);
        assert_eq!(places.next_turn(), Some(30));
        assert!(places.keep(3, 30, 7) && places.bytes == 7);
        places.wait(3, 31, 1);
        places.close(3);
        assert!(places.bytes == 0 && places.queue.is_empty() && places.streams.is_empty());
    }
}

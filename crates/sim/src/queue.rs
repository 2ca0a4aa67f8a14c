//! The events that are going to happen: one queue for the whole world.

use std::{cmp::Reverse, collections::BinaryHeap};

use crate::clock::Moment;

/// Events in the order of their instants, and those of one instant in the order in which they were added. So
/// the order is total, and a run is repeatable.
#[derive(Debug)]
pub struct EventQueue<E> {
    heap: BinaryHeap<Reverse<Entry<E>>>,
    added: u64,
}

#[derive(Debug)]
struct Entry<E> {
    key: (Moment, u64),
    event: E,
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl<E> Eq for Entry<E> {}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Entry<E> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key.cmp(&other.key)
    }
}

impl<E> Default for EventQueue<E> {
    fn default() -> Self {
        EventQueue { heap: BinaryHeap::new(), added: 0 }
    }
}

impl<E> EventQueue<E> {
    /// Adds an event.
    pub fn push(&mut self, at: Moment, event: E) {
        self.added += 1;
        self.heap.push(Reverse(Entry { key: (at, self.added), event }));
    }

    /// When the next event happens.
    #[must_use]
    pub fn next_at(&self) -> Option<Moment> {
        self.heap.peek().map(|Reverse(entry)| entry.key.0)
    }

    /// Takes the next event out.
    pub fn pop(&mut self) -> Option<(Moment, E)> {
        self.heap.pop().map(|Reverse(entry)| (entry.key.0, entry.event))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn events_of_one_instant_keep_their_order() {
        let mut queue = EventQueue::default();
        let at = |ms| Moment::after(Duration::from_millis(ms));
        for (ms, name) in [(5, 'd'), (1, 'a'), (5, 'e'), (3, 'b'), (5, 'f'), (3, 'c')] {
            queue.push(at(ms), name);
        }
        assert_eq!(queue.next_at(), Some(at(1)));
        let order: String = std::iter::from_fn(|| queue.pop()).map(|(_, name)| name).collect();
        assert_eq!(order, "abcdef");
        assert_eq!(queue.next_at(), None);
    }
}

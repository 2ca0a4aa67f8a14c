//! The states that were reached, and those among them that need not be explored because another covers them.
//!
//! One state **covers** another if the replicas are the same, as many commands were proposed, no less is left
//! to go wrong, and every message in flight in the other is in flight in it, as often. Everything that can
//! happen in the other can then happen in it, in the same number of steps: a message may always be late. So
//! the other is not explored, unless it is nearer to the beginning, since a violation must be found on a
//! shortest way. That is rare, since a message that is gone took a step to arrive.

use super::{
    fingerprint::{self, Table},
    search::Taken,
};

/// The end of a list.
const NONE: u32 = u32::MAX;

/// What may still happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Left {
    /// How many commands were proposed.
    pub(super) proposed: u8,
    pub(super) timeouts: u8,
    pub(super) waits: u8,
    pub(super) crashes: u8,
    pub(super) losses: u8,
    pub(super) duplicates: u8,
    pub(super) catch_ups: u8,
}

impl Left {
    fn covers(self, other: Left) -> bool {
        let luck = |left: Left| {
            [left.timeouts, left.waits, left.crashes, left.losses, left.duplicates, left.catch_ups]
        };
        self.proposed == other.proposed
            && luck(self).iter().zip(luck(other)).all(|(mine, others)| *mine >= others)
    }
}

/// One state.
#[derive(Clone, Copy, Debug)]
struct Entry {
    /// The index of its first word; its words end where those of the next state begin.
    begin: usize,
    /// A bit for each parcel, so that most states that do not cover each other are told apart quickly.
    signature: u64,
    left: Left,
    /// Another state with the same replicas.
    next: u32,
    /// The state before it, and the step from there.
    parent: u32,
    taken: Taken,
    covered: bool,
}

/// The states that were reached.
#[derive(Debug)]
pub(super) struct States {
    replicas: usize,
    /// For each state its replicas, and the parcels in ascending order.
    words: Vec<u32>,
    entries: Vec<Entry>,
    /// For the fingerprint of some replicas, the state with them that was found last.
    heads: Table<u128, u32>,
    /// The first state with the distance from the beginning of those that are added now.
    level: usize,
}

impl States {
    pub(super) fn new(replicas: usize) -> States {
        States { replicas, words: Vec::new(), entries: Vec::new(), heads: Table::default(), level: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// The states that are added from now on are one step further from the beginning.
    pub(super) fn next_level(&mut self) {
        self.level = self.len();
    }

    /// A state's replicas and parcels, and what may still happen.
    pub(super) fn get(&self, state: usize) -> (&[u32], &[u32], Left) {
        let (nodes, parcels) = self.words_of(state).split_at(self.replicas);
        (nodes, parcels, self.entries[state].left)
    }

    /// Whether another state that is no further from the beginning covers this one.
    pub(super) fn is_covered(&self, state: usize) -> bool {
        self.entries[state].covered
    }

    /// The state before this one, and the step from there.
    pub(super) fn parent(&self, state: usize) -> (usize, Taken) {
        let Entry { parent, taken, .. } = self.entries[state];
        (parent as usize, taken)
    }

    fn words_of(&self, state: usize) -> &[u32] {
        let end = self.entries.get(state + 1).map_or(self.words.len(), |next| next.begin);
        &self.words[self.entries[state].begin..end]
    }

    /// Adds a state, given by its replicas and its parcels in ascending order, unless another covers it.
    pub(super) fn add(&mut self, words: &[u32], left: Left, parent: usize, taken: Taken) {
        let (nodes, parcels) = words.split_at(self.replicas);
        let signature = parcels.iter().fold(0, |bits, parcel| bits | 1_u64 << (parcel % 64));
        let key = fingerprint::of_words(nodes);
        let head = self.heads.get(&key).copied().unwrap_or(NONE);
        let (mut before, mut at) = (NONE, head);
        let mut first = head;
        while at != NONE {
            let entry = self.entries[at as usize];
            let others = &self.words_of(at as usize)[self.replicas..];
            if entry.left.covers(left) && signature & !entry.signature == 0 && includes(others, parcels) {
                return;
            }
            if left.covers(entry.left) && entry.signature & !signature == 0 && includes(parcels, others) {
                self.entries[at as usize].covered = at as usize >= self.level;
                match before {
                    NONE => first = entry.next,
                    before => self.entries[before as usize].next = entry.next,
                }
            } else {
                before = at;
            }
            at = entry.next;
        }
        let number = u32::try_from(self.entries.len()).expect("bounded by `Bounds::states_max`");
        let parent = u32::try_from(parent).expect("the number of a state");
        let begin = self.words.len();
        self.words.extend_from_slice(words);
        self.entries.push(Entry { begin, signature, left, next: first, parent, taken, covered: false });
        self.heads.insert(key, number);
    }
}

/// Whether one multiset includes another; both are in ascending order.
fn includes(all: &[u32], some: &[u32]) -> bool {
    if some.len() > all.len() {
        return false;
    }
    let mut rest = all.iter();
    some.iter().all(|wanted| rest.find(|&have| have >= wanted) == Some(wanted))
}

#[cfg(test)]
mod tests {
    use super::{super::space::Move, *};

    #[test]
    fn multisets_include_each_other() {
        assert!(includes(&[1, 2, 2, 5], &[2, 2]));
        assert!(includes(&[1], &[]));
        assert!(!includes(&[1, 2, 5], &[2, 2]));
        assert!(!includes(&[1, 2, 5], &[3]));
        assert!(!includes(&[2], &[1, 2]));
    }

    #[test]
    fn a_state_that_another_covers_is_not_looked_at() {
        let left =
            Left { proposed: 1, timeouts: 1, waits: 0, crashes: 1, losses: 0, duplicates: 0, catch_ups: 0 };
        let taken = Taken { at: 0, doubled: false, made: Move::Timer };
        let mut states = States::new(2);
        let mut add = |words: &[u32], left| {
            states.add(words, left, 0, taken);
            states.len()
        };
        assert_eq!(add(&[7, 8, 1, 3], left), 1);
        assert_eq!(add(&[7, 8, 3], left), 1, "a message less");
        assert_eq!(add(&[7, 8, 1, 3], Left { crashes: 0, ..left }), 1, "a crash less");
        assert_eq!(add(&[7, 9, 3], left), 2, "another replica");
        assert_eq!(add(&[7, 8, 3, 3], left), 3, "a message more");
        assert_eq!(add(&[7, 8], Left { proposed: 0, ..left }), 4, "another command comes next");
        assert_eq!(add(&[7, 8, 1, 3, 3], left), 5);
        assert_eq!([0, 1, 2, 3, 4].map(|state| states.is_covered(state)), [true, false, true, false, false]);
        states.next_level();
        states.add(&[7, 8, 1, 3, 3, 4], left, 0, taken);
        assert!(!states.is_covered(4), "it is nearer to the beginning");
        states.add(&[7, 8, 3, 3], left, 0, taken);
        assert_eq!(states.len(), 6, "covered by one that is as far");
    }
}

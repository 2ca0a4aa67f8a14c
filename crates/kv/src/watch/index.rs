//! Which watchers watch a key, at a cost that depends on how many do and hardly on how many there are.
//!
//! Watchers of a single key are found by a hash of the key. Ranges are in a treap by their beginnings, each node of
//! which knows where the last range of its subtree ends, so that whole subtrees are passed over. Watchers of the same
//! range share a node.

// Impure: keys are looked up in the map, and never listed; priorities give the tree its shape, and no answer.
use std::{
    cmp::Ordering,
    collections::{BTreeSet, HashMap},
    hash::{BuildHasher, RandomState},
};

use bytes::Bytes;

use super::message::Wants;

/// What a watcher is called in an index.
pub(crate) type Number = u32;

/// The keys that a watcher watches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) start: Bytes,
    pub(crate) end: End,
}

/// Where a range ends.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum End {
    /// The range is its first key alone.
    Single,
    /// This is the first key that is no longer in the range.
    Before(Bytes),
    /// The range has all keys from its first one on.
    Unbounded,
}

impl Range {
    /// Reads a range as etcd encodes it; `None` if it is empty. The bytes are copied, since they are part of a larger
    /// buffer.
    pub(crate) fn of(key: &[u8], range_end: &[u8]) -> Option<Range> {
        // The smallest key there is stands for an empty one.
        let start = if key.is_empty() { &[0] } else { key };
        let end = match range_end {
            [] => End::Single,
            [0] => End::Unbounded,
            end if end <= start => return None,
            end => End::Before(Bytes::copy_from_slice(end)),
        };
        Some(Range { start: Bytes::copy_from_slice(start), end })
    }

    /// Bytes of its first key and its end.
    pub(crate) fn bytes(&self) -> u64 {
        let end = if let End::Before(end) = &self.end { end.len() } else { 0 };
        (self.start.len() + end) as u64
    }
}

impl End {
    fn is_after(&self, key: &[u8]) -> bool {
        match self {
            End::Single => false,
            End::Before(end) => key < &end[..],
            End::Unbounded => true,
        }
    }
}

/// Watchers by what they watch.
#[derive(Debug, Default)]
pub(crate) struct Index {
    keys: HashMap<Bytes, Numbers>,
    ranges: Option<Box<Node>>,
    /// Makes the priorities of nodes, which no client can foresee. They decide how deep nodes lie, and nothing else.
    priorities: RandomState,
    count: usize,
}

/// One watcher in nearly all cases.
#[derive(Debug)]
enum Numbers {
    One(Number),
    Several(BTreeSet<Number>),
}

impl Numbers {
    fn add(&mut self, number: Number) {
        match self {
            Numbers::One(first) => *self = Numbers::Several(BTreeSet::from([*first, number])),
            Numbers::Several(all) => _ = all.insert(number),
        }
    }

    /// Removes one; says whether none is left.
    fn remove(&mut self, number: Number) -> bool {
        match self {
            Numbers::One(_) => true,
            Numbers::Several(all) => {
                all.remove(&number);
                all.is_empty()
            }
        }
    }

    fn each(&self, found: &mut impl FnMut(Number)) {
        match self {
            Numbers::One(number) => found(*number),
            Numbers::Several(all) => all.iter().for_each(|number| found(*number)),
        }
    }
}

impl Index {
    #[cfg(test)]
    fn len(&self) -> usize {
        self.count
    }

    /// Adds a watcher.
    pub(crate) fn insert(&mut self, range: &Range, number: Number) {
        self.count += 1;
        let numbers = match range.end {
            End::Single => self.keys.get_mut(&range.start),
            _ => find(&mut self.ranges, range),
        };
        if let Some(numbers) = numbers {
            return numbers.add(number);
        }
        let numbers = Numbers::One(number);
        if range.end == End::Single {
            self.keys.insert(range.start.clone(), numbers);
            return;
        }
        let priority = self.priorities.hash_one((&range.start, number));
        let last = range.end.clone();
        let node = Node { range: range.clone(), numbers, last, priority, left: None, right: None };
        let (before, after) = split(self.ranges.take(), range);
        self.ranges = join(join(before, Some(Box::new(node))), after);
    }

    /// Removes a watcher, which must be there.
    pub(crate) fn remove(&mut self, range: &Range, number: Number) {
        self.count -= 1;
        if range.end == End::Single {
            let gone = self.keys.get_mut(&range.start).is_some_and(|numbers| numbers.remove(number));
            if gone {
                self.keys.remove(&range.start);
                if self.keys.capacity() > 4 * self.keys.len() + 64 {
                    self.keys.shrink_to_fit();
                }
            }
        } else if find(&mut self.ranges, range).is_some_and(|numbers| numbers.remove(number)) {
            self.ranges = without(self.ranges.take(), range);
        }
    }

    /// Calls `found` with each watcher of a key, once.
    pub(crate) fn watchers_of(&self, key: &[u8], mut found: impl FnMut(Number)) {
        if let Some(numbers) = self.keys.get(key) {
            numbers.each(&mut found);
        }
        stab(self.ranges.as_deref(), key, &mut found);
    }
}

/// Watchers by what they watch and which events of it they want. One that wants no event is nowhere.
#[derive(Debug, Default)]
pub(crate) struct Wanted {
    all: Index,
    puts: Index,
    deletions: Index,
}

impl Wanted {
    fn index_of(&mut self, wants: Wants) -> Option<&mut Index> {
        match (wants.takes_puts(), wants.takes_deletions()) {
            (true, true) => Some(&mut self.all),
            (true, false) => Some(&mut self.puts),
            (false, true) => Some(&mut self.deletions),
            (false, false) => None,
        }
    }

    /// Adds a watcher.
    pub(crate) fn insert(&mut self, range: &Range, wants: Wants, number: Number) {
        if let Some(index) = self.index_of(wants) {
            index.insert(range, number);
        }
    }

    /// Removes a watcher, which must be there if it wants any event.
    pub(crate) fn remove(&mut self, range: &Range, wants: Wants, number: Number) {
        if let Some(index) = self.index_of(wants) {
            index.remove(range, number);
        }
    }

    /// Calls `found` with each watcher of an event of this key, once. What kind of event it is is only asked if it
    /// matters.
    pub(crate) fn watchers_of(
        &self,
        key: &[u8],
        is_deletion: impl FnOnce() -> bool,
        mut found: impl FnMut(Number),
    ) {
        self.all.watchers_of(key, &mut found);
        if self.puts.count + self.deletions.count > 0 {
            let some = if is_deletion() { &self.deletions } else { &self.puts };
            some.watchers_of(key, found);
        }
    }
}

/// A range, and all in its subtree.
#[derive(Debug)]
struct Node {
    range: Range,
    numbers: Numbers,
    /// Where the last range of the subtree ends.
    last: End,
    /// No node has a higher priority than its parent.
    priority: u64,
    left: Option<Box<Node>>,
    right: Option<Box<Node>>,
}

type Tree = Option<Box<Node>>;

impl Range {
    fn order(&self, other: &Range) -> Ordering {
        (&self.start, &self.end).cmp(&(&other.start, &other.end))
    }
}

impl Node {
    /// To be called when the subtrees have changed.
    fn update(mut self: Box<Node>) -> Box<Node> {
        let subtrees = [&self.left, &self.right].into_iter().flatten();
        let last = subtrees.map(|subtree| &subtree.last).chain([&self.range.end]).max();
        let last = last.expect("the node itself has an end").clone();
        self.last = last;
        self
    }
}

fn find<'a>(tree: &'a mut Tree, range: &Range) -> Option<&'a mut Numbers> {
    let mut node = tree.as_deref_mut()?;
    loop {
        node = match range.order(&node.range) {
            Ordering::Equal => return Some(&mut node.numbers),
            Ordering::Less => node.left.as_deref_mut()?,
            Ordering::Greater => node.right.as_deref_mut()?,
        };
    }
}

/// The nodes before a range, and those after it.
fn split(tree: Tree, at: &Range) -> (Tree, Tree) {
    let Some(mut node) = tree else { return (None, None) };
    if at.order(&node.range).is_lt() {
        let (before, after) = split(node.left.take(), at);
        node.left = after;
        (before, Some(node.update()))
    } else {
        let (before, after) = split(node.right.take(), at);
        node.right = before;
        (Some(node.update()), after)
    }
}

/// Joins two trees, of which one is before the other.
fn join(before: Tree, after: Tree) -> Tree {
    match (before, after) {
        (None, tree) | (tree, None) => tree,
        (Some(mut before), Some(mut after)) => {
            if before.priority >= after.priority {
                before.right = join(before.right.take(), Some(after));
                Some(before.update())
            } else {
                after.left = join(Some(before), after.left.take());
                Some(after.update())
            }
        }
    }
}

fn without(tree: Tree, range: &Range) -> Tree {
    let mut node = tree?;
    match range.order(&node.range) {
        Ordering::Equal => return join(node.left.take(), node.right.take()),
        Ordering::Less => node.left = without(node.left.take(), range),
        Ordering::Greater => node.right = without(node.right.take(), range),
    }
    Some(node.update())
}

fn stab(tree: Option<&Node>, key: &[u8], found: &mut impl FnMut(Number)) {
    let Some(node) = tree.filter(|node| node.last.is_after(key)) else { return };
    stab(node.left.as_deref(), key, found);
    if node.range.start <= key {
        if node.range.end.is_after(key) {
            node.numbers.each(found);
        }
        stab(node.right.as_deref(), key, found);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn key(random: &mut fastrand::Rng) -> Bytes {
        (0..random.usize(1..4)).map(|_| random.u8(1..5)).collect()
    }

    fn contains(range: &Range, key: &[u8]) -> bool {
        match &range.end {
            End::Single => range.start == key,
            end => range.start <= key && end.is_after(key),
        }
    }

    #[test]
    fn the_watchers_of_a_key_are_found() {
        let mut random = fastrand::Rng::with_seed(5);
        let (mut index, mut all) = (Index::default(), BTreeMap::new());
        for number in 0..6_000 {
            let end = match random.u8(0..4) {
                0 => Bytes::new(),
                1 => Bytes::from_static(&[0]),
                _ => key(&mut random),
            };
            if let Some(range) = Range::of(&key(&mut random), &end) {
                index.insert(&range, number);
                all.insert(number, range);
            }
            // Three phases: the index grows, changes, and is emptied.
            let removed = if number < 2_000 { 0 } else { random.usize(0..3) };
            for _ in 0..removed {
                let at = random.usize(0..all.len().max(1));
                let Some((&number, _)) = all.iter().nth(at) else { break };
                index.remove(&all.remove(&number).unwrap(), number);
            }
            let key = key(&mut random);
            let mut found = Vec::new();
            index.watchers_of(&key, |number| found.push(number));
            found.sort_unstable();
            let expected: Vec<Number> =
                all.iter().filter(|(_, range)| contains(range, &key)).map(|(number, _)| *number).collect();
            assert_eq!(found, expected);
            assert_eq!(index.len(), all.len());
        }
        all.iter().for_each(|(number, range)| index.remove(range, *number));
        assert!(index.len() == 0 && index.ranges.is_none() && index.keys.is_empty());
    }

    /// How many nodes a look at a key visits.
    fn visited(tree: Option<&Node>, key: &[u8]) -> usize {
        let Some(node) = tree.filter(|node| node.last.is_after(key)) else { return 1 };
        let right = if node.range.start <= key { visited(node.right.as_deref(), key) } else { 0 };
        1 + visited(node.left.as_deref(), key) + right
    }

    #[test]
    fn a_key_costs_what_watches_it_however_many_ranges_there_are() {
        let mut index = Index::default();
        for number in 0..50_000_u32 {
            let start = format!("/{number:05}/");
            let end = format!("/{number:05}0");
            index.insert(&Range::of(start.as_bytes(), end.as_bytes()).unwrap(), number);
        }
        let most = (0..50_000).step_by(97).map(|number| {
            let key = format!("/{number:05}/key");
            let mut found = 0;
            index.watchers_of(key.as_bytes(), |_| found += 1);
            assert_eq!(found, 1);
            visited(index.ranges.as_deref(), key.as_bytes())
        });
        let most = most.max().unwrap();
        assert!(most < 200, "{most} of 50,000 nodes");
    }

    #[test]
    fn ranges_are_read_as_etcd_reads_them() {
        let range = |key: &str, end: &str| Range::of(key.as_bytes(), end.as_bytes());
        assert_eq!(range("a", "").unwrap().end, End::Single);
        assert_eq!(range("", "").unwrap().start, "\0");
        assert_eq!(range("", "\0").unwrap().end, End::Unbounded);
        assert_eq!(range("a", "b").unwrap().end, End::Before("b".into()));
        assert_eq!(range("b", "a"), None);
        assert_eq!(range("b", "b"), None);
    }
}

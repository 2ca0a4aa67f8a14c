//! Several groups in one order: the deterministic merge of Multi-Ring Paxos (Benz 2013, section 2.4).
//!
//! Each group orders its batches by itself. Everybody who learns all groups executes their batches in the same common
//! order, and nobody exchanges a message for it: the order follows from what each group has decided
//! (`docs/multi-ring.md`). Each batch has a **position** in its group; the common order is that of
//! `(position / take, group, position)`, so in every round `take` batches of each group, group after group. A group
//! that has nothing to order goes on to a later position with a **skip**, a command of its own, which names the
//! position and not a number of places: a skip that comes late, or twice, changes nothing.

mod executor;
mod files;
mod planted;
mod reads;
mod skips;
mod subscriber;

use std::{collections::VecDeque, num::NonZeroU32};

use synod_wire::{Batch, GroupId, Places};

pub use self::{
    executor::{MergedExecutor, Restored},
    files::{MergedFile, MergedFiles},
    planted::MergeBug,
    reads::MergedReads,
    skips::{PERIOD as SKIPS_PERIOD, Pace, Skips, UnknownSkips},
    subscriber::{Ordered, Point, Start, SubscribeError, Subscriber},
};

pub(crate) use self::planted::has;
#[cfg(feature = "planted-bugs")]
pub use self::planted::plant;

/// Where a group is in the common order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The position that the next batch of the group takes.
    pub position: u64,
    /// How many batches have taken one.
    pub batches: u64,
    /// The position of the last of them.
    pub last: Option<u64>,
}

impl Place {
    /// The place after a batch.
    #[must_use]
    pub fn after(self, batch: &Batch) -> Place {
        self.past(batch.places())
    }

    fn past(self, places: Places) -> Place {
        let mut place = self;
        if places.executes {
            place =
                Place { position: self.position + 1, batches: self.batches + 1, last: Some(self.position) };
        }
        if has(MergeBug::RelativeSkips) {
            place.position += places.skips_to.unwrap_or(0).saturating_sub(self.position).min(2);
            return place;
        }
        place.position = place.position.max(places.skips_to.filter(|to| *to <= SKIPS_TO_MAX).unwrap_or(0));
        place
    }
}

/// No skip goes beyond this position: what names a later one was not made by this program, and would leave the others
/// behind for good. This many positions last for centuries, and arithmetic with them does not overflow.
const SKIPS_TO_MAX: u64 = 1 << 62;

/// How many batches of a group come in a row; the same at all replicas of a cluster, forever (Benz 2013: M).
pub type Take = NonZeroU32;

/// Where a position is in the common order.
fn key(position: u64, group: GroupId, take: Take) -> (u64, GroupId) {
    (position / u64::from(take.get()), group)
}

/// The least position at which a group comes after the batch at `position` of the group `other`.
fn beyond(group: GroupId, other: GroupId, position: u64, take: Take) -> u64 {
    let (round, _) = key(position, other, take);
    (round + u64::from(group < other)) * u64::from(take.get())
}

/// The batches of several groups, until it is their turn. `T` is what else belongs to a batch.
#[derive(Debug)]
pub struct Merge<T> {
    take: Take,
    /// By the number of the group, ascending: all groups of a cluster at a replica, some of them at a subscriber.
    streams: Vec<Stream<T>>,
    /// What the last skip said, which only a planted bug wants.
    last_skip: Option<u64>,
}

/// The batches of one group that wait for their turn.
#[derive(Debug)]
struct Stream<T> {
    group: GroupId,
    /// Where the group is after the last batch that was taken out.
    place: Place,
    waiting: VecDeque<Waiting<T>>,
}

/// A batch that waits, and what it means for the order, which is found once.
#[derive(Debug)]
struct Waiting<T> {
    batch: Batch,
    places: Places,
    with: T,
}

impl<T> Merge<T> {
    /// A merge of groups that are at these places, by their number, ascending.
    #[must_use]
    pub fn new(take: Take, places: impl IntoIterator<Item = (GroupId, Place)>) -> Merge<T> {
        let mut merge = Merge { take, streams: Vec::new(), last_skip: None };
        places.into_iter().for_each(|(group, place)| merge.join(group, place));
        merge
    }

    /// A group that is at this place is merged too from now on.
    fn join(&mut self, group: GroupId, place: Place) {
        let at = self.streams.partition_point(|stream| stream.group < group);
        self.streams.insert(at, Stream { group, place, waiting: VecDeque::new() });
    }

    /// A group is not merged any more.
    fn leave(&mut self, group: GroupId) {
        self.streams.retain(|stream| stream.group != group);
    }

    fn stream(&self, group: GroupId) -> &Stream<T> {
        &self.streams[self.at(group)]
    }

    /// The round after that of the batch that has its turn next; the first one if there is no group.
    fn next_round(&self) -> u64 {
        let keys = self.streams.iter().map(|stream| key(stream.place.position, stream.group, self.take));
        keys.min().map_or(0, |(round, _)| round + 1)
    }

    fn at(&self, group: GroupId) -> usize {
        self.streams.binary_search_by_key(&group, |stream| stream.group).expect("the group is merged")
    }

    /// The next batch that a group has decided.
    pub fn push(&mut self, group: GroupId, batch: Batch, with: T) {
        let (places, at) = (batch.places(), self.at(group));
        self.streams[at].waiting.push_back(Waiting { batch, places, with });
    }

    /// The next batch of the common order. A batch without anything to execute does not wait for its turn once it is
    /// the first of its group: it moves nothing but its group's own position.
    pub fn pop(&mut self) -> Option<(GroupId, Batch, T)> {
        let silent = |stream: &Stream<T>| stream.waiting.front().is_some_and(|first| !first.places.executes);
        let mut of = self.streams.iter().position(silent).unwrap_or_else(|| self.at(self.turn()));
        if has(MergeBug::DoNotWait) && self.streams[of].waiting.is_empty() {
            of = self.streams.iter().position(|stream| !stream.waiting.is_empty()).unwrap_or(of);
        }
        let stream = &mut self.streams[of];
        let Waiting { batch, places, with } = stream.waiting.pop_front()?;
        let before = stream.place;
        stream.place = before.past(places);
        if has(MergeBug::SilentTakesPosition) && !places.executes {
            stream.place.position += 1;
        }
        if let Some(target) = places.skips_to {
            if has(MergeBug::ConflateSkips) && self.last_skip == Some(target) {
                stream.place = before;
            }
            self.last_skip = Some(target);
        }
        Some((stream.group, batch, with))
    }

    /// The group whose turn it is.
    #[must_use]
    pub fn turn(&self) -> GroupId {
        let keys = self.streams.iter().map(|stream| key(stream.place.position, stream.group, self.take));
        keys.min().expect("there is a group").1
    }

    /// The group that all others wait for, if a batch waits.
    #[must_use]
    pub fn waits_for(&self) -> Option<GroupId> {
        self.streams.iter().any(|stream| !stream.waiting.is_empty()).then(|| self.turn())
    }

    /// Goes on from a later point of the common order, at which the groups are at these places. Batches that have
    /// `passed` there do not wait any more; what came with them is returned.
    fn restart(
        &mut self,
        places: impl IntoIterator<Item = Place>,
        passed: impl Fn(GroupId, &T) -> bool,
    ) -> Vec<T> {
        let mut gone = Vec::new();
        for (stream, place) in self.streams.iter_mut().zip(places) {
            stream.place = place;
            while stream.waiting.front().is_some_and(|first| passed(stream.group, &first.with)) {
                gone.extend(stream.waiting.pop_front().map(|first| first.with));
            }
        }
        gone
    }
}

#[cfg(test)]
mod tests {
    use synod_wire::{BatchBuilder, CommandKind, SessionId};

    use super::*;

    const G1: GroupId = GroupId(0);
    const G2: GroupId = GroupId(1);

    fn take(take: u32) -> Take {
        Take::new(take).unwrap()
    }

    fn batch(content: &str) -> Batch {
        let mut builder = BatchBuilder::new();
        builder.push(SessionId(1), 1, 1, content.as_bytes());
        builder.finish()
    }

    fn skip(target: u64) -> Batch {
        let mut builder = BatchBuilder::new();
        builder.push_as(CommandKind::Skip, SessionId(1), 1, 1, &target.to_le_bytes());
        builder.finish()
    }

    fn content(batch: &Batch) -> String {
        let payload = batch.commands().next().unwrap().payload;
        String::from_utf8(payload.to_vec()).unwrap()
    }

    /// Takes out all that can be taken out, without skips.
    fn taken<T>(merge: &mut Merge<T>) -> Vec<String> {
        let all = std::iter::from_fn(|| merge.pop());
        all.filter(|(_, batch, _)| batch.places().executes).map(|(_, batch, _)| content(&batch)).collect()
    }

    /// The worked merge of Benz 2013, extract 5.5 (TV23), with absolute targets in place of numbers.
    #[test]
    fn two_groups_are_merged_as_in_the_worked_example() {
        let mut merge = Merge::new(take(2), [G1, G2].map(|group| (group, Place::default())));
        for batch in [batch("a"), batch("b"), skip(5), batch("c"), batch("d")] {
            merge.push(G1, batch, ());
        }
        for batch in [batch("x"), skip(2), batch("y"), batch("z"), batch("w")] {
            merge.push(G2, batch, ());
        }
        assert_eq!(taken(&mut merge), ["a", "b", "x", "y", "z", "c", "w"]);
        assert_eq!(
            (merge.waits_for(), merge.streams[0].waiting.len()),
            (Some(G2), 1),
            "d waits for the second group"
        );
        merge.push(G2, skip(6), ());
        assert_eq!(taken(&mut merge), ["d"]);
        assert_eq!(merge.waits_for(), None);
    }

    /// The further one of TV23: a group that skips two positions lets the other one go first in both.
    #[test]
    fn a_group_that_skips_gives_its_turns_to_the_other_one() {
        let mut merge = Merge::new(take(1), [G1, G2].map(|group| (group, Place::default())));
        for batch in [skip(2), batch("a")] {
            merge.push(G1, batch, ());
        }
        for batch in [batch("x"), batch("y"), batch("z")] {
            merge.push(G2, batch, ());
        }
        assert_eq!(taken(&mut merge), ["x", "y", "a", "z"]);
    }

    #[test]
    fn a_skip_that_comes_late_or_twice_changes_nothing() {
        let mut place = Place::default();
        for (batch, position) in
            [(batch("a"), 1), (skip(600), 600), (skip(600), 600), (skip(6_600), 6_600), (skip(600), 6_600)]
        {
            place = place.after(&batch);
            assert_eq!(place.position, position);
        }
        assert_eq!((place.batches, place.last), (1, Some(0)));
        assert_eq!(place.after(&Batch::noop()), place);
    }

    #[test]
    fn a_skip_to_the_end_of_all_positions_is_ignored() {
        let place = Place::default().after(&batch("a"));
        assert_eq!([u64::MAX, SKIPS_TO_MAX + 1].map(|target| place.after(&skip(target))), [place; 2]);
        let last = place.after(&skip(SKIPS_TO_MAX)).after(&batch("b"));
        assert_eq!((last.position, last.last), (SKIPS_TO_MAX + 1, Some(SKIPS_TO_MAX)));
        let beyond = beyond(G1, G2, SKIPS_TO_MAX, take(synod_wire::TAKE_MAX));
        assert!(beyond > SKIPS_TO_MAX);
    }

    #[test]
    fn a_group_that_is_beyond_a_batch_is_not_waited_for() {
        for m in 1..5 {
            for (position, other) in (0..40).flat_map(|position| [(position, G1), (position, G2)]) {
                let group = GroupId(1 - other.0);
                let least = beyond(group, other, position, take(m));
                let comes_later = |at| key(at, group, take(m)) > key(position, other, take(m));
                assert!(comes_later(least) && (least == 0 || !comes_later(least - 1)));
            }
        }
    }

    /// Replicas that hear of the groups' batches in other orders, and learn other groups, agree: the order of what two
    /// of them have in common is that of the keys (Benz 2013, extract 5.1).
    #[test]
    fn the_common_order_does_not_depend_on_when_batches_come_nor_on_other_groups() {
        let mut rng = fastrand::Rng::with_seed(23);
        for _ in 0..2_000 {
            let (groups, m) = (rng.usize(2..5), take(rng.u32(1..5)));
            let streams: Vec<Vec<Batch>> = (0..groups)
                .map(|group| {
                    let mut place = Place::default();
                    let batches = (0..rng.usize(0..30)).map(|number| {
                        let made = match rng.u32(0..4) {
                            0 => skip(place.position + rng.u64(0..6)),
                            1 if rng.bool() => Batch::noop(),
                            _ => batch(&format!("{group}.{number}")),
                        };
                        place = place.after(&made);
                        made
                    });
                    batches.collect()
                })
                .collect();
            let mut keyed = Vec::new();
            for (group, stream) in (0u16..).map(GroupId).zip(&streams) {
                let mut place = Place::default();
                for batch in stream {
                    if batch.places().executes {
                        let (round, _) = key(place.position, group, m);
                        keyed.push(((round, group, place.position), content(batch)));
                    }
                    place = place.after(batch);
                }
            }
            keyed.sort();
            let learned: Vec<usize> = (0..groups).filter(|_| rng.u32(0..4) > 0).collect();
            let mut merge =
                Merge::new(m, learned.iter().map(|&group| (GroupId(group as u16), Place::default())));
            let (mut next, mut got) = (vec![0; groups], Vec::new());
            while let Some(at) = {
                let left: Vec<_> =
                    (0..learned.len()).filter(|&at| next[learned[at]] < streams[learned[at]].len()).collect();
                rng.choice(left)
            } {
                let of = learned[at];
                merge.push(GroupId(of as u16), streams[of][next[of]].clone(), ());
                next[of] += 1;
                got.extend(taken(&mut merge));
            }
            let learns = |group: &GroupId| learned.contains(&usize::from(group.0));
            let wanted = keyed.iter().filter(|((_, group, _), _)| learns(group)).map(|(_, text)| text);
            assert!(got.iter().eq(wanted.take(got.len())), "{got:?}");
        }
    }
}

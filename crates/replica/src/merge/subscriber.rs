//! A subscriber: somebody who is no member and follows what some groups decide, in their common order.
//!
//! It reads the decided logs of its groups at any replica, and merges them as replicas do. It is pure: its owner reads
//! what it [wants](Subscriber::wanted) and takes out what has its [turn](Subscriber::pop). `docs/multi-ring.md` says
//! why all subscribers agree.

use std::{collections::BTreeMap, fmt};

use synod_wire::{Batch, GroupId, Slot};

use super::{Merge, MergeBug, Place, Take, has};
use crate::{LogBegin, LogFrom, LogPart};

/// Merges what it reads of the logs of some groups.
#[derive(Debug)]
pub struct Subscriber {
    order: Order,
    groups: BTreeMap<GroupId, Followed>,
}

/// How the batches of the groups are ordered.
#[derive(Debug)]
enum Order {
    /// In the common order of merged groups.
    Common(Merge<Slot>),
    /// Each group by itself: groups that are not merged have no common order.
    Apart(BTreeMap<GroupId, Merge<Slot>>),
}

/// A group that the subscriber follows.
#[derive(Debug)]
struct Followed {
    point: Point,
    /// What to read next. `None`: it joins at the next round, once the other groups are placed.
    wanted: Option<LogFrom>,
    /// Its place in the common order is known, since a first part of its log was read.
    placed: bool,
    /// It leaves at the next round, once it is known which one that is.
    leaves: bool,
}

/// Where a subscriber is in a group. A subscription goes on from it, at any replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Point {
    /// The group.
    pub group: GroupId,
    /// Everything through this slot was delivered, or is not to be.
    pub slot: Slot,
    /// Batches at lesser positions of the common order are not to be delivered: the group joined at this one, where a
    /// round begins. 0 if it did not join others.
    pub from: u64,
    /// Batches from this position on are not to be delivered: the group leaves at this one, where a round begins.
    pub until: Option<u64>,
}

impl Point {
    /// After a slot of a group.
    #[must_use]
    pub fn after(group: GroupId, slot: Slot) -> Point {
        Point { group, slot, from: 0, until: None }
    }

    /// The same in a group that joins the others, or leaves them, at these positions of the common order.
    #[must_use]
    pub fn within(self, from: u64, until: Option<u64>) -> Point {
        Point { from, until, ..self }
    }
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.group.0, self.slot.0)
    }
}

/// Where a subscription begins.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Start {
    /// With the first slots.
    Beginning,
    /// After what the replica that is asked has executed, which is a point of the common order of all groups.
    Now,
    /// With the first batch of this round of the common order.
    Round(u64),
    /// After these points. A group without a point joins the others at a round that none of them has begun.
    At(Vec<Point>),
}

/// A batch whose turn it is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ordered {
    /// Its group.
    pub group: GroupId,
    /// Its slot in the group.
    pub slot: Slot,
    /// Its position in the common order, if the groups are merged.
    pub position: Option<u64>,
    /// The batch.
    pub batch: Batch,
}

impl Ordered {
    /// A batch of a group that is not merged with others.
    #[must_use]
    pub fn of(group: GroupId, slot: Slot, batch: Batch) -> Ordered {
        Ordered { group, slot, position: None, batch }
    }
}

/// Why a replica serves no subscription, or ends it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SubscribeError {
    /// The replica does not keep what comes next any more: the subscriber wants to begin too early, or was too slow.
    #[error(
        "what comes next is not kept any more; the first that can be had is {}{}",
        first.iter().map(ToString::to_string).collect::<Vec<_>>().join(","),
        round.map_or_else(String::new, |round| format!(", and in whole rounds round:{round}"))
    )]
    Trimmed {
        /// The first points from which each of the groups can be had.
        first: Vec<Point>,
        /// Of merged groups: the first round of which every group is kept from its beginning on.
        round: Option<u64>,
    },
    /// There is no such group.
    #[error("there is no group {group}: there are {count}, counted from 0")]
    NoSuchGroup {
        /// The group that was asked for.
        group: GroupId,
        /// How many groups there are.
        count: usize,
    },
    /// A group is named twice, or a point is of a group that is not followed.
    #[error("group {0} is named twice, or has a point and is not followed")]
    Unclear(GroupId),
    /// Rounds are those of merged groups.
    #[error("the groups are not merged into one order, which alone has rounds")]
    NoRounds,
    /// The replica takes no part in a group that is followed ([`Others::StayAway`](crate::Others)); others do.
    #[error("this replica takes no part in group {0}")]
    TakesNoPart(GroupId),
    /// Every group has left the subscription.
    #[error("every group has left the subscription")]
    NoGroupLeft,
    /// The replica keeps no log: nothing orders its commands.
    #[error("this replica keeps no log")]
    NoLog,
    /// The replica is stopping.
    #[error("replica is stopping")]
    Stopping,
}

impl Subscriber {
    /// A subscriber of groups that are merged with `take` batches of each in a row, or of groups by themselves: those
    /// with a point go on after it, the others begin with this round, or join those with a point.
    #[must_use]
    pub fn new(
        take: Option<Take>,
        groups: impl IntoIterator<Item = (GroupId, Option<Point>)>,
        round: Option<u64>,
    ) -> Subscriber {
        let order =
            take.map_or_else(|| Order::Apart(BTreeMap::new()), |take| Order::Common(Merge::new(take, [])));
        let begin = take.zip(round).map(|(take, round)| round.saturating_mul(take.get().into()));
        let groups = groups.into_iter().map(|(group, point)| {
            let wanted = match (point, begin) {
                // A client may name any slot.
                (Some(point), _) => Some(LogFrom::Slot(Slot(point.slot.0.saturating_add(1)))),
                (None, None) if take.is_none() => Some(LogFrom::Slot(Slot(1))),
                (None, begin) => begin.map(LogFrom::Position),
            };
            let joins = Point { from: begin.unwrap_or(0), ..Point::after(group, Slot::ZERO) };
            (group, Followed { point: point.unwrap_or(joins), wanted, placed: false, leaves: false })
        });
        Subscriber { order, groups: groups.collect() }
    }

    /// The groups.
    pub fn groups(&self) -> impl Iterator<Item = GroupId> {
        self.groups.keys().copied()
    }

    /// Where it is in each group: what was delivered, and nothing else, is before these points. None of a group that
    /// begins at a round and of which nothing was read yet.
    pub fn points(&self) -> impl Iterator<Item = Point> {
        let has_slot =
            |followed: &&Followed| followed.placed || matches!(followed.wanted, Some(LogFrom::Slot(_)));
        self.groups.values().filter(has_slot).map(|followed| followed.point)
    }

    /// What to read now at a replica that has `decided` so much of each group: the logs of groups of which nothing
    /// waits for its turn. So it holds one part of each log.
    #[must_use]
    pub fn wanted(&mut self, decided: impl Fn(GroupId) -> Slot) -> Vec<(GroupId, LogFrom)> {
        self.settle_round();
        let is_empty = |group: GroupId| match &self.order {
            Order::Common(merge) => merge.stream(group).waiting.is_empty(),
            Order::Apart(merges) => merges[&group].stream(group).waiting.is_empty(),
        };
        // Where a group is can be read once the slot before is decided.
        let is_ready = |group: GroupId, followed: &Followed| match followed.wanted {
            None => false,
            Some(LogFrom::Position(_)) => true,
            Some(LogFrom::Slot(slot)) if followed.placed => slot <= decided(group) && is_empty(group),
            Some(LogFrom::Slot(slot)) => slot <= decided(group).next(),
        };
        let ready = self.groups.iter().filter(|&(&group, followed)| is_ready(group, followed));
        ready.filter_map(|(&group, followed)| Some((group, followed.wanted?))).collect()
    }

    /// Has the groups that join begin with the next round, once it is known where the others are. Without others that
    /// is the first one.
    fn settle_round(&mut self) {
        let Order::Common(merge) = &self.order else { return };
        if self.groups.values().any(|followed| !followed.placed && followed.wanted.is_some()) {
            return;
        }
        let position = merge.next_round() * u64::from(merge.take.get());
        for followed in self.groups.values_mut().filter(|followed| followed.wanted.is_none()) {
            followed.point.from = position;
            followed.wanted = Some(LogFrom::Position(position));
        }
    }

    /// Takes a part of a group's log that it wanted.
    pub fn take(&mut self, group: GroupId, part: LogPart) {
        let Some(followed) = self.groups.get_mut(&group) else { return };
        if !followed.placed {
            followed.placed = true;
            followed.point.slot = part.first.prev();
            let position = if has(MergeBug::SubscribeAnywhere) { followed.point.from } else { part.position };
            let place = Place { position, ..Place::default() };
            match &mut self.order {
                Order::Common(merge) => merge.join(group, place),
                Order::Apart(merges) => _ = merges.insert(group, Merge::new(Take::MIN, [(group, place)])),
            }
        }
        let merge = match &mut self.order {
            Order::Common(merge) => merge,
            Order::Apart(merges) => merges.get_mut(&group).expect("it was inserted"),
        };
        let next = Slot(part.first.0 + part.batches.len() as u64);
        for (slot, batch) in (part.first.0..).map(Slot).zip(part.batches) {
            merge.push(group, batch, slot);
        }
        followed.wanted = Some(LogFrom::Slot(next));
        self.settle_leaving();
        self.part(group);
    }

    /// A replica does not keep what was wanted of a group. A group that joins others does so at a later round then.
    ///
    /// # Errors
    /// It does not join.
    pub fn trimmed(&mut self, group: GroupId, begin: LogBegin) -> Result<(), LogBegin> {
        let joins = self.groups.values().any(|followed| followed.placed);
        // It may have left meanwhile.
        let Some(followed) = self.groups.get_mut(&group) else { return Ok(()) };
        let Order::Common(merge) = &self.order else { return Err(begin) };
        if followed.placed || !joins || !matches!(followed.wanted, Some(LogFrom::Position(_))) {
            return Err(begin);
        }
        let take = u64::from(merge.take.get());
        let position = begin.position.div_ceil(take) * take;
        followed.point.from = position;
        followed.wanted = Some(LogFrom::Position(position));
        Ok(())
    }

    /// The next batch of the order that executes something, if it is here. None comes once all groups have left.
    pub fn pop(&mut self) -> Option<Ordered> {
        let common = matches!(self.order, Order::Common(_));
        // Before that it is not known which group has the next one.
        if common && self.groups.values().any(|followed| !followed.placed) {
            return None;
        }
        while !self.groups.is_empty() {
            let popped = match &mut self.order {
                Order::Common(merge) => merge.pop(),
                Order::Apart(merges) => merges.values_mut().find_map(Merge::pop),
            };
            let (group, batch, slot) = popped?;
            let merge = match &self.order {
                Order::Common(merge) => merge,
                Order::Apart(merges) => &merges[&group],
            };
            let position = merge.stream(group).place.last;
            let followed = self.groups.get_mut(&group)?;
            followed.point.slot = slot;
            let Point { from, until, .. } = followed.point;
            let wanted =
                |position: u64| !common || position >= from && until.is_none_or(|until| position < until);
            let delivered = batch.places().executes && position.is_some_and(wanted);
            self.part(group);
            if delivered {
                return Some(Ordered { group, slot, position: position.filter(|_| common), batch });
            }
        }
        None
    }

    /// Follows another group too. Groups that are merged are joined at a round that none of them has begun.
    pub fn add(&mut self, group: GroupId) {
        let wanted = matches!(self.order, Order::Apart(_)).then_some(LogFrom::Slot(Slot(1)));
        let followed =
            Followed { point: Point::after(group, Slot::ZERO), wanted, placed: false, leaves: false };
        self.groups.entry(group).or_insert(followed);
    }

    /// Does not follow a group any more, from the next round on where groups are merged.
    pub fn remove(&mut self, group: GroupId) {
        match &mut self.order {
            Order::Common(_) => {
                let Some(followed) = self.groups.get_mut(&group) else { return };
                if !followed.placed && !matches!(followed.wanted, Some(LogFrom::Slot(_))) {
                    // It has not joined yet.
                    self.groups.remove(&group);
                } else {
                    followed.leaves = true;
                    self.settle_leaving();
                }
            }
            Order::Apart(merges) => {
                merges.remove(&group);
                self.groups.remove(&group);
            }
        }
    }

    /// Has the groups that leave do so at the next round, once it is known where all groups are: before that, as after
    /// a move to another replica, the present round is not known either.
    fn settle_leaving(&mut self) {
        let Order::Common(merge) = &self.order else { return };
        if self
            .groups
            .values()
            .any(|followed| !followed.placed && matches!(followed.wanted, Some(LogFrom::Slot(_))))
        {
            return;
        }
        let position = merge.next_round() * u64::from(merge.take.get());
        let mut leaving = Vec::new();
        for (&group, followed) in self.groups.iter_mut().filter(|(_, followed)| followed.leaves) {
            followed.point.until.get_or_insert(position);
            leaving.push(group);
        }
        leaving.into_iter().for_each(|group| self.part(group));
    }

    /// Forgets a group, whose place is known, if it has come to where it leaves.
    fn part(&mut self, group: GroupId) {
        let (Order::Common(merge), Some(followed)) = (&mut self.order, self.groups.get(&group)) else {
            return;
        };
        if followed.point.until.is_some_and(|until| merge.stream(group).place.position >= until) {
            merge.leave(group);
            self.groups.remove(&group);
        }
    }
}

#[cfg(test)]
mod tests {
    use synod_wire::{Ballots, BatchBuilder, CommandKind, SessionId};

    use super::*;
    use crate::decided::DecidedLog;

    fn batch(kind: CommandKind, payload: &[u8]) -> Batch {
        let mut builder = BatchBuilder::new();
        builder.push_as(kind, SessionId(1), 1, 1, payload);
        builder.finish()
    }

    /// The decided log of a group as some replica holds it, and where the group is at its end.
    struct Held {
        log: DecidedLog,
        place: Place,
    }

    impl Held {
        fn new() -> Held {
            Held { log: DecidedLog::new(Slot(1), Ballots::ZERO), place: Place::default() }
        }

        fn decide(&mut self, batch: Batch) {
            self.log.push(self.log.last().next(), self.place.position, Ballots::ZERO, batch.clone());
            self.place = self.place.after(&batch);
        }
    }

    /// Draws what the groups decide: batches, skips and no-ops.
    fn drawn(rng: &mut fastrand::Rng, groups: usize) -> Vec<Vec<Batch>> {
        let group = |_| {
            let mut place = Place::default();
            let batches = (0..rng.u8(0..40)).map(|number| {
                let made = match rng.u32(0..4) {
                    0 => batch(CommandKind::Skip, &(place.position + rng.u64(0..6)).to_le_bytes()),
                    1 if rng.bool() => Batch::noop(),
                    _ => batch(CommandKind::Apply, &[number]),
                };
                place = place.after(&made);
                made
            });
            batches.collect()
        };
        (0..groups).map(group).collect()
    }

    /// All batches that execute something, in the order of their keys: where each is, and its position.
    fn ordered(take: Take, streams: &[Vec<Batch>]) -> Vec<(GroupId, Slot, u64)> {
        let mut keyed = Vec::new();
        for (group, stream) in (0u16..).map(GroupId).zip(streams) {
            let mut place = Place::default();
            for (slot, batch) in (1..).map(Slot).zip(stream) {
                if batch.places().executes {
                    keyed.push((super::super::key(place.position, group, take), slot, place.position));
                }
                place = place.after(batch);
            }
        }
        keyed.sort_unstable();
        keyed.into_iter().map(|((_, group), slot, position)| (group, slot, position)).collect()
    }

    /// How far each group is at a replica of all groups, after each batch that it takes out.
    fn cuts(take: Take, streams: &[Vec<Batch>]) -> Vec<Vec<Slot>> {
        let groups = || (0..streams.len() as u16).map(GroupId);
        let mut merge = Merge::new(take, groups().map(|group| (group, Place::default())));
        for (group, stream) in groups().zip(streams) {
            (1..).zip(stream).for_each(|(slot, batch)| merge.push(group, batch.clone(), Slot(slot)));
        }
        let mut cuts = vec![vec![Slot::ZERO; streams.len()]];
        while let Some((group, _, slot)) = merge.pop() {
            let mut cut = cuts.last().cloned().unwrap_or_default();
            cut[usize::from(group.0)] = slot;
            cuts.push(cut);
        }
        cuts
    }

    /// Lets a subscriber read what it wants of these logs, a piece of a drawn length at a time, and takes out what
    /// comes.
    fn read_on(
        rng: &mut fastrand::Rng,
        subscriber: &mut Subscriber,
        held: &[Held],
        got: &mut Vec<(GroupId, Slot, Option<u64>)>,
    ) -> Result<(), LogBegin> {
        let wanted = subscriber.wanted(|group| held[usize::from(group.0)].log.last());
        let Some((group, from)) = rng.choice(wanted) else { return Ok(()) };
        let Held { log, place } = &held[usize::from(group.0)];
        match log.read(from, place.position, rng.usize(1..300)) {
            Ok(Some(part)) => subscriber.take(group, part),
            Ok(None) => {}
            Err(begin) => subscriber.trimmed(group, begin)?,
        }
        for _ in 0..rng.u32(0..4) {
            let Some(Ordered { group, slot, position, .. }) = subscriber.pop() else { break };
            got.push((group, slot, position));
        }
        Ok(())
    }

    /// Subscribers of drawn groups, that begin at a drawn cut, read drawn pieces of logs that grow and are trimmed, and
    /// go on from their points at other replicas, get what a replica executes after the cut, as far as it is of their
    /// groups.
    #[test]
    fn a_subscriber_gets_what_replicas_execute_of_its_groups_in_their_order() {
        let mut rng = fastrand::Rng::with_seed(57);
        let mut delivered = 0;
        for _ in 0..2_000 {
            let (groups, take) = (rng.usize(1..5), Take::new(rng.u32(1..4)).unwrap());
            let streams = drawn(&mut rng, groups);
            let cut = rng.choice(cuts(take, &streams)).unwrap();
            let followed: Vec<GroupId> =
                (0..groups as u16).map(GroupId).filter(|_| rng.u32(0..3) > 0).collect();
            let points = followed.iter().map(|&group| Point::after(group, cut[usize::from(group.0)]));
            let mut subscriber =
                Subscriber::new(Some(take), followed.iter().copied().zip(points.map(Some)), None);
            let mut held: Vec<Held> = (0..groups).map(|_| Held::new()).collect();
            let mut got = Vec::new();
            for _ in 0..600 {
                let of = rng.usize(..groups);
                let decided = held[of].log.last().0 as usize;
                match rng.u32(0..20) {
                    0 => {
                        // At another replica, which has decided less, or more.
                        let points: Vec<_> = subscriber.points().collect();
                        if points.len() == followed.len() {
                            let groups = points.into_iter().map(|point| (point.group, Some(point)));
                            subscriber = Subscriber::new(Some(take), groups, None);
                        }
                    }
                    1 => {
                        // Nobody needs these slots any more.
                        let points = subscriber.points().find(|point| point.group.0 as usize == of);
                        let needed = points.map_or(cut[of], |point| point.slot);
                        held[of].log.trim(needed, 0, 0);
                    }
                    2..8 => {
                        streams[of].get(decided).into_iter().for_each(|batch| held[of].decide(batch.clone()))
                    }
                    _ => read_on(&mut rng, &mut subscriber, &held, &mut got).unwrap(),
                }
            }
            let after_cut = |group: GroupId, slot: Slot| slot > cut[usize::from(group.0)];
            let wanted = ordered(take, &streams)
                .into_iter()
                .filter(|(group, slot, _)| followed.contains(group) && after_cut(*group, *slot))
                .map(|(group, slot, position)| (group, slot, Some(position)));
            assert!(got.iter().copied().eq(wanted.take(got.len())), "{got:?}");
            delivered += got.len();
        }
        assert!(delivered > 10_000, "{delivered}");
    }

    /// A group that joins a subscriber, or leaves it, does so where a round begins; until then, and from then on, the
    /// batches come in the common order, and none of a round is missing.
    #[test]
    fn groups_join_and_leave_a_subscriber_where_a_round_begins() {
        let mut rng = fastrand::Rng::with_seed(81);
        let (mut joined, mut left) = (0, 0);
        for _ in 0..2_000 {
            let take = Take::new(rng.u32(1..4)).unwrap();
            let streams = drawn(&mut rng, 3);
            let [first, other] = [GroupId(rng.u16(0..3)), GroupId(rng.u16(0..3))];
            let mut subscriber =
                Subscriber::new(Some(take), [(first, Some(Point::after(first, Slot::ZERO)))], None);
            let mut held: Vec<Held> = (0..3).map(|_| Held::new()).collect();
            for (held, stream) in held.iter_mut().zip(&streams) {
                stream.iter().for_each(|batch| held.decide(batch.clone()));
            }
            let (join_at, leave_at) = (rng.usize(1..40), rng.usize(20..80));
            let mut got: Vec<(GroupId, Slot, Option<u64>)> = Vec::new();
            let (mut from, mut until) = (u64::MAX, u64::MAX);
            let mut leaves = false;
            for step in 0..200 {
                if step == join_at && other != first {
                    // What the group has decided so far may be gone.
                    let held = &mut held[usize::from(other.0)];
                    held.log.trim(Slot(rng.u64(..=held.log.last().0)), 0, 0);
                    subscriber.add(other);
                }
                if step == leave_at && subscriber.groups().count() > 1 && subscriber.points().count() > 1 {
                    subscriber.remove(first);
                    leaves = true;
                }
                read_on(&mut rng, &mut subscriber, &held, &mut got).unwrap();
                if leaves && until == u64::MAX {
                    // It has left already if there was nothing more before that round.
                    let last = got.iter().rfind(|(group, ..)| *group == first);
                    let after_last = last.map_or(0, |(_, _, position)| position.unwrap() + 1);
                    let point = subscriber.points().find(|point| point.group == first);
                    until = point.map_or(after_last.next_multiple_of(take.get().into()), |point| {
                        point.until.unwrap_or(u64::MAX)
                    });
                }
                from =
                    subscriber.points().find(|point| point.group == other).map_or(from, |point| point.from);
                if rng.u32(0..10) == 0 && subscriber.points().count() == subscriber.groups().count() {
                    let groups: Vec<_> =
                        subscriber.points().map(|point| (point.group, Some(point))).collect();
                    subscriber = Subscriber::new(Some(take), groups, None);
                    if leaves && until == u64::MAX {
                        // Which round that is was not known yet.
                        subscriber.remove(first);
                    }
                }
            }
            let round = u64::from(take.get());
            assert!(
                from == u64::MAX
                    || from.is_multiple_of(round) && (until == u64::MAX || until.is_multiple_of(round))
            );
            let is_delivered = |group: GroupId, position: u64| match group {
                group if group == first => position < until,
                group if group == other => position >= from,
                _ => false,
            };
            let wanted = ordered(take, &streams)
                .into_iter()
                .filter(|(group, _, position)| is_delivered(*group, *position))
                .map(|(group, slot, position)| (group, slot, Some(position)));
            let wanted: Vec<_> = wanted.take(got.len()).collect();
            assert_eq!(got, wanted, "{first} until {until}, {other} from {from}");
            joined += usize::from(got.iter().any(|(group, ..)| *group != first));
            left += usize::from(
                until != u64::MAX && got.iter().filter(|(group, ..)| *group == first).count() > 0,
            );
        }
        assert!(joined > 300 && left > 300, "{joined} {left}");
    }

    #[test]
    fn a_round_that_is_not_kept_is_refused_and_one_that_is_begins_there() {
        let take = Take::new(2).unwrap();
        let mut held = Held::new();
        (0..10).for_each(|number| held.decide(batch(CommandKind::Apply, &[number])));
        held.log.trim(Slot(5), 0, 0);
        let from = |round| {
            let mut subscriber = Subscriber::new(Some(take), [(GroupId(0), None)], Some(round));
            let mut got = Vec::new();
            let mut rng = fastrand::Rng::with_seed(1);
            for _ in 0..30 {
                read_on(&mut rng, &mut subscriber, std::slice::from_ref(&held), &mut got)?;
            }
            Ok(got.first().map(|(_, slot, _)| slot.0))
        };
        assert_eq!(from(2), Err(LogBegin { first: Slot(6), position: 5 }));
        assert_eq!(from(3), Ok(Some(7)));
        assert_eq!(from(9), Ok(None));
    }

    #[test]
    fn groups_by_themselves_do_not_wait_for_each_other() {
        let mut subscriber = Subscriber::new(
            None,
            [0, 1].map(GroupId).map(|group| (group, Some(Point::after(group, Slot::ZERO)))),
            None,
        );
        let part = |batches| LogPart { first: Slot(1), position: 0, batches };
        subscriber.take(GroupId(0), part(vec![]));
        subscriber.take(GroupId(1), part(vec![batch(CommandKind::Apply, b"a"), Batch::noop()]));
        let next = subscriber.pop().unwrap();
        assert_eq!((next.group, next.slot, next.position), (GroupId(1), Slot(1), None));
        assert_eq!(subscriber.pop(), None);
        let points: Vec<_> = subscriber.points().map(|point| point.slot.0).collect();
        assert_eq!(points, [0, 2], "a no-op is passed");
        // The replica lags in one group, behind where the subscriber was at another replica.
        let points = [(0, 7), (1, 0)].map(|(group, slot)| Point::after(GroupId(group), Slot(slot)));
        let mut moved = Subscriber::new(None, points.map(|point| (point.group, Some(point))), None);
        moved.take(GroupId(1), part(vec![batch(CommandKind::Apply, b"a")]));
        assert_eq!(moved.pop().map(|next| next.group), Some(GroupId(1)));
    }

    /// What is left of the only group holds nothing to deliver: a no-op, a skip to where it leaves, and a batch after
    /// that.
    #[test]
    fn after_all_groups_have_left_nothing_comes() {
        let point = Point { until: Some(3), ..Point::after(GroupId(0), Slot::ZERO) };
        let mut subscriber = Subscriber::new(Some(Take::MIN), [(GroupId(0), Some(point))], None);
        let skip = batch(CommandKind::Skip, &3_u64.to_le_bytes());
        let batches = vec![Batch::noop(), skip, batch(CommandKind::Apply, b"later")];
        subscriber.take(GroupId(0), LogPart { first: Slot(1), position: 0, batches });
        assert_eq!((subscriber.pop(), subscriber.groups().count()), (None, 0));
        assert_eq!((subscriber.pop(), subscriber.wanted(|_| Slot(9))), (None, vec![]));
    }

    /// It was asked for what follows before it was known that it leaves.
    #[test]
    fn what_a_group_that_has_left_lacks_does_not_matter() {
        let groups = [0, 1].map(GroupId).map(|group| (group, Some(Point::after(group, Slot::ZERO))));
        let mut subscriber = Subscriber::new(Some(Take::MIN), groups, None);
        subscriber.remove(GroupId(1));
        let part = |position| LogPart { first: Slot(1), position, batches: Vec::new() };
        subscriber.take(GroupId(1), part(5));
        subscriber.take(GroupId(0), part(0));
        assert!(subscriber.groups().eq([GroupId(0)]), "it was in a later round");
        assert_eq!(subscriber.trimmed(GroupId(1), LogBegin { first: Slot(9), position: 9 }), Ok(()));
    }

    #[test]
    fn groups_that_join_nobody_begin_at_the_beginning() {
        for take in [None, Some(Take::MIN)] {
            let mut subscriber = Subscriber::new(take, [(GroupId(0), None)], None);
            let first = take.map_or(LogFrom::Slot(Slot(1)), |_| LogFrom::Position(0));
            assert_eq!(subscriber.wanted(|_| Slot(9)), [(GroupId(0), first)]);
        }
    }

    #[test]
    fn a_point_that_no_log_has_is_waited_for() {
        let point = Point::after(GroupId(0), Slot(u64::MAX));
        let mut subscriber = Subscriber::new(None, [(GroupId(0), Some(point))], None);
        assert_eq!((subscriber.wanted(|_| Slot(9)), subscriber.pop()), (vec![], None));
    }
}

//! Subscribers: they read the logs of some groups at a node, move to others, join and leave groups, and must be given
//! the common order as far as it is of their groups.

use std::collections::{BTreeMap, BTreeSet, btree_map::Entry};

use fastrand::Rng;
use synod_replica::{Ordered, Point, Subscriber};
use synod_wire::{GroupId, Slot};

use super::{Situation, World, check::Reached};
use crate::check::{Checked, Invariant, demand};

const SUBSCRIBERS: usize = 2;

/// Bytes that are read at a time: a few batches.
const READ_BYTES_MAX: usize = 200;

/// One event in so many has a subscriber read.
const READ_RARITY: u32 = 8;
/// One read in so many is the last one at its node.
const MOVE_RARITY: u32 = 40;
/// After one read in so many a group joins or leaves.
const CHANGE_RARITY: u32 = 60;

/// Everybody who follows what is decided.
#[derive(Debug)]
pub(super) struct Subscribers {
    all: Vec<Following>,
    /// Apart from that of the world, which goes on as it would without them.
    rng: Rng,
}

#[derive(Debug)]
struct Following {
    /// The node at which it reads.
    at: usize,
    subscriber: Subscriber,
    /// What it was given, by the reference.
    reached: BTreeMap<GroupId, Reached>,
    /// Groups that are to leave at a round that is not known yet.
    leaving: BTreeSet<GroupId>,
}

impl Subscribers {
    pub fn new(seed: u64, nodes: usize, groups: usize) -> Subscribers {
        let mut rng = Rng::with_seed(seed ^ 0x7461_696c);
        let following = |_| Following {
            at: rng.usize(..nodes),
            subscriber: Subscriber::new(None, [], None),
            reached: BTreeMap::new(),
            leaving: BTreeSet::new(),
        };
        let all = (0..SUBSCRIBERS.min(groups)).map(following).collect();
        Subscribers { all, rng }
    }
}

impl Following {
    /// The groups that are not to leave.
    fn stays(&self) -> impl Iterator<Item = GroupId> {
        let stays = |point: &Point| point.until.is_none() && !self.leaving.contains(&point.group);
        self.subscriber.points().filter(stays).map(|point| point.group)
    }

    /// Takes over where groups leave, as far as that is known now. One with nothing more before that is gone already.
    fn settle_leaving(&mut self) {
        let Following { subscriber, reached, leaving, .. } = self;
        leaving.retain(|group| {
            match subscriber.points().find(|point| point.group == *group) {
                Some(point) if point.until.is_none() => return true,
                Some(point) => _ = reached.entry(*group).and_modify(|reached| reached.leave(point)),
                None => _ = reached.remove(group),
            }
            false
        });
    }
}

impl World {
    /// Subscribers read now and then.
    pub(super) fn follow(&mut self) -> Checked {
        for number in 0..self.subscribers.all.len() {
            if self.subscribers.rng.u32(..READ_RARITY) == 0 {
                self.read_on(number)?;
            }
        }
        Ok(())
    }

    fn read_on(&mut self, number: usize) -> Checked {
        let (take, nodes) = (self.plan.take, self.machines.len());
        let rng = &mut self.subscribers.rng;
        let following = &mut self.subscribers.all[number];
        let machine = &self.machines[following.at];
        let served = machine.life.as_ref().filter(|_| machine.paused.is_none());
        let Some(life) = served.filter(|_| rng.u32(..MOVE_RARITY) > 0) else {
            following.at = rng.usize(..nodes);
            let points: Vec<_> = following.subscriber.points().collect();
            // One that joined, of which nothing was read, joins there.
            let joins = following
                .subscriber
                .groups()
                .filter(|group| !points.iter().any(|point| point.group == *group));
            let joins = joins.map(|group| (group, None)).collect::<Vec<_>>();
            let groups = points.into_iter().map(|point| (point.group, Some(point))).chain(joins);
            following.subscriber = Subscriber::new(Some(take), groups, None);
            // The next node is told again which groups are to leave.
            following.leaving.iter().for_each(|&group| following.subscriber.remove(group));
            self.counts.see(Situation::SubscriberMoves);
            return Ok(());
        };
        if following.reached.is_empty() {
            // Some of the groups, from what this node has executed on.
            let cut = life.merged.executor().cut().slots;
            let points = (0u16..).map(GroupId).zip(cut).filter(|_| rng.u32(..3) > 0);
            let points: Vec<_> = points.map(|(group, slot)| Point::after(group, slot)).collect();
            following.reached = points.iter().map(|point| (point.group, Reached::of(*point))).collect();
            let groups = points.into_iter().map(|point| (point.group, Some(point)));
            following.subscriber = Subscriber::new(Some(take), groups, None);
        }
        let decided = |group: GroupId| life.host.replica(group).status().delivered;
        for (group, from) in following.subscriber.wanted(decided) {
            match life.host.replica(group).read_log(from, READ_BYTES_MAX) {
                Ok(Some(part)) => following.subscriber.take(group, part),
                Ok(None) => {}
                Err(begin) if following.subscriber.trimmed(group, begin).is_ok() => {}
                Err(_) => {
                    // It begins again.
                    self.counts.see(Situation::SubscriberTooSlow);
                    following.reached.clear();
                    following.leaving.clear();
                    following.subscriber = Subscriber::new(None, [], None);
                    return Ok(());
                }
            }
        }
        // A group that has joined has a place now.
        for point in following.subscriber.points() {
            if let Entry::Vacant(joins) = following.reached.entry(point.group) {
                joins.insert(Reached::of(point));
                self.counts.see(Situation::SubscriberJoins);
            }
        }
        following.settle_leaving();
        while let Some(Ordered { group, slot, .. }) = following.subscriber.pop() {
            let wanted = self.order.next_of(&mut following.reached);
            demand(wanted == Some((group, slot)), Invariant::CommonOrder, || {
                let wanted = wanted
                    .map_or("nothing yet".to_owned(), |(group, slot)| format!("slot {slot} of {group}"));
                format!(
                    "a subscriber of r{} is given slot {slot} of {group}; it lacks {wanted}",
                    following.at + 1
                )
            })?;
        }
        if rng.u32(..CHANGE_RARITY) == 0 {
            let group = GroupId(rng.u16(..self.plan.groups.len() as u16));
            if !following.reached.contains_key(&group) {
                following.subscriber.add(group);
            } else if following.stays().filter(|stays| *stays != group).count() > 0 {
                following.subscriber.remove(group);
                following.leaving.insert(group);
                following.settle_leaving();
                self.counts.see(Situation::SubscriberLeaves);
            }
        }
        Ok(())
    }

    /// Once all faults are over, every subscriber is given all that the nodes have executed: groups that a subscriber
    /// does not follow hold it back no more than they hold back the nodes.
    pub(super) fn followed_to_the_end(&mut self, executed: &[Slot]) -> Checked {
        for number in 0..self.subscribers.all.len() {
            for _ in 0..10_000 {
                self.read_on(number)?;
                let following = &mut self.subscribers.all[number];
                if self.order.next_of(&mut following.reached.clone()).is_none() {
                    break;
                }
            }
            let following = &mut self.subscribers.all[number];
            let missing = self.order.next_of(&mut following.reached.clone());
            let missing = missing.filter(|(group, slot)| *slot <= executed[usize::from(group.0)]);
            demand(missing.is_none(), Invariant::Liveness, || {
                format!("a subscriber of r{} is not given {missing:?}", following.at + 1)
            })?;
        }
        Ok(())
    }
}

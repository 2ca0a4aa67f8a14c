//! Subscribers: they read the logs of some merged groups at a replica, move to others, join and leave groups, and must
//! be given the common order as far as it is of their groups.

use std::collections::{BTreeMap, BTreeSet, btree_map::Entry};

use fastrand::Rng;
use synod_replica::{Ordered, Point, Subscriber};
use synod_wire::{GroupId, Slot};

use super::World;
use crate::{
    check::{Checked, Followed, Invariant, demand},
    plan::Plan,
    situations::MergeSituation,
};

const SUBSCRIBERS: usize = 2;

/// Bytes that are read at a time: a few batches.
const READ_BYTES_MAX: usize = 200;

/// One event in this many has a subscriber read.
const READ_RARITY: u32 = 8;
/// One read in this many is the last one at its node.
const MOVE_RARITY: u32 = 40;
/// After one read in this many a group joins or leaves.
const CHANGE_RARITY: u32 = 60;
/// Reads at the end of a run, until a subscriber has everything.
const LAST_READS_MAX: usize = 10_000;

/// Everybody who follows what merged groups decide.
#[derive(Debug)]
pub(super) struct Subscribers {
    all: Vec<Following>,
    /// Apart from that of the world, which goes on as it would without them.
    rng: Rng,
}

#[derive(Debug)]
struct Following {
    /// The machine at which it reads.
    at: usize,
    subscriber: Subscriber,
    /// What it was given, by the reference.
    reached: BTreeMap<GroupId, Followed>,
    /// Groups that are to leave at a round that is not known yet.
    leaving: BTreeSet<GroupId>,
}

impl Subscribers {
    /// Those of a plan; nobody if groups are not merged.
    pub(super) fn new(plan: &Plan) -> Subscribers {
        let mut rng = Rng::with_seed(plan.seed ^ 0x7461_696c);
        let following = |_| Following {
            at: rng.usize(..plan.replicas),
            subscriber: Subscriber::new(None, [], None),
            reached: BTreeMap::new(),
            leaving: BTreeSet::new(),
        };
        let count = if plan.merging.is_some() { SUBSCRIBERS } else { 0 };
        let all = (0..count).map(following).collect();
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

    /// It begins again, with nothing.
    fn begin_again(&mut self) {
        self.reached.clear();
        self.leaving.clear();
        self.subscriber = Subscriber::new(None, [], None);
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
        let following = &self.subscribers.all[number];
        let machine = &self.machines[following.at];
        if machine.life.as_ref().is_some_and(|life| !life.host.touched().is_empty()) {
            return Ok(()); // What its burst has delivered so far is not known here.
        }
        let is_served = machine.is_running();
        if !is_served || self.subscribers.rng.u32(..MOVE_RARITY) == 0 {
            self.move_subscriber(number);
            return Ok(());
        }
        if following.reached.is_empty() {
            self.begin_following(number);
        }
        if !self.read_logs(number) {
            return Ok(());
        }
        self.check_subscriber(number)?;
        if self.subscribers.rng.u32(..CHANGE_RARITY) == 0 {
            self.change_subscription(number);
        }
        Ok(())
    }

    /// A subscriber goes on at another machine.
    fn move_subscriber(&mut self, number: usize) {
        let take = self.plan.merging.as_ref().map(|merging| merging.take);
        let following = &mut self.subscribers.all[number];
        following.at = self.subscribers.rng.usize(..self.machines.len());
        let points: Vec<_> = following.subscriber.points().collect();
        // One that joined, of which nothing was read, joins there.
        let is_new = |group: &GroupId| !points.iter().any(|point| point.group == *group);
        let joins: Vec<_> = following.subscriber.groups().filter(is_new).map(|group| (group, None)).collect();
        let groups = points.into_iter().map(|point| (point.group, Some(point))).chain(joins);
        following.subscriber = Subscriber::new(take, groups, None);
        // The next machine is told again which groups are to leave.
        following.leaving.iter().for_each(|&group| following.subscriber.remove(group));
        self.merges.see(MergeSituation::SubscriberMoves);
    }

    /// A subscriber follows some of the groups, from what its machine has executed on.
    fn begin_following(&mut self, number: usize) {
        let take = self.plan.merging.as_ref().map(|merging| merging.take);
        let following = &mut self.subscribers.all[number];
        let Some(life) = &self.machines[following.at].life else { return };
        let cut = life.executor(GroupId::FIRST).cut().slots;
        let rng = &mut self.subscribers.rng;
        let points = (0u16..).map(GroupId).zip(cut).filter(|_| rng.u32(..3) > 0);
        let points: Vec<_> = points.map(|(group, slot)| Point::after(group, slot)).collect();
        following.reached = points.iter().map(|point| (point.group, Followed::of(*point))).collect();
        let groups = points.into_iter().map(|point| (point.group, Some(point)));
        following.subscriber = Subscriber::new(take, groups, None);
    }

    /// A subscriber reads what it wants next. Returns whether it goes on: what it wants may not be kept any more.
    fn read_logs(&mut self, number: usize) -> bool {
        let following = &mut self.subscribers.all[number];
        let Some(life) = &self.machines[following.at].life else { return false };
        let decided = |group: GroupId| life.replica(group).status().delivered;
        for (group, from) in following.subscriber.wanted(decided) {
            match life.replica(group).read_log(from, READ_BYTES_MAX) {
                Ok(Some(part)) => following.subscriber.take(group, part),
                Ok(None) => {}
                Err(begin) if following.subscriber.trimmed(group, begin).is_ok() => {}
                Err(_) => {
                    following.begin_again();
                    self.merges.see(MergeSituation::SubscriberTooSlow);
                    return false;
                }
            }
        }
        // A group that has joined has a place now.
        for point in following.subscriber.points() {
            if let Entry::Vacant(joins) = following.reached.entry(point.group) {
                joins.insert(Followed::of(point));
                self.merges.see(MergeSituation::SubscriberJoins);
            }
        }
        following.settle_leaving();
        true
    }

    /// What a subscriber is given is what comes next in the common order of its groups.
    fn check_subscriber(&mut self, number: usize) -> Checked {
        let (following, Some(order)) = (&mut self.subscribers.all[number], &self.order) else {
            return Ok(());
        };
        while let Some(Ordered { group, slot, .. }) = following.subscriber.pop() {
            let wanted = order.next_of(&mut following.reached);
            demand(wanted == Some((group, slot)), Invariant::CommonOrder, || {
                let wanted = wanted
                    .map_or("nothing yet".to_owned(), |(group, slot)| format!("slot {slot} of {group}"));
                let at = following.at + 1;
                format!("a subscriber of r{at} is given slot {slot} of {group}; it lacks {wanted}")
            })?;
        }
        Ok(())
    }

    /// A group joins those that a subscriber follows, or leaves them.
    fn change_subscription(&mut self, number: usize) {
        let following = &mut self.subscribers.all[number];
        let group = GroupId(self.subscribers.rng.u16(..self.plan.groups as u16));
        if !following.reached.contains_key(&group) {
            following.subscriber.add(group);
        } else if following.stays().filter(|stays| *stays != group).count() > 0 {
            following.subscriber.remove(group);
            following.leaving.insert(group);
            following.settle_leaving();
            self.merges.see(MergeSituation::SubscriberLeaves);
        }
    }

    /// Once all faults are over, every subscriber is given all that the replicas have executed: groups that a
    /// subscriber does not follow hold it back no more than they hold back the replicas.
    pub(super) fn followed_to_the_end(&mut self) -> Checked {
        let executed: Vec<Slot> = self.checks.groups().map(|group| self.executed_everywhere(group)).collect();
        for number in 0..self.subscribers.all.len() {
            for _ in 0..LAST_READS_MAX {
                self.end_burst(self.subscribers.all[number].at)?;
                self.read_on(number)?;
                if self.lacks(number).is_none() {
                    break;
                }
            }
            let missing = self.lacks(number);
            let missing = missing.filter(|(group, slot)| *slot <= executed[usize::from(group.0)]);
            demand(missing.is_none(), Invariant::Liveness, || {
                let at = self.subscribers.all[number].at + 1;
                format!("a subscriber of r{at} is not given {missing:?}")
            })?;
        }
        Ok(())
    }

    /// What a subscriber was not given so far.
    fn lacks(&self, number: usize) -> Option<(GroupId, Slot)> {
        let mut reached = self.subscribers.all[number].reached.clone();
        self.order.as_ref()?.next_of(&mut reached)
    }

    /// The last slot of a group that all its members have executed.
    fn executed_everywhere(&self, group: GroupId) -> Slot {
        let members = self.members().into_iter().filter(|(of, at)| *of == group && !self.is_out(*at));
        let applied = members.filter_map(|(_, of)| Some(self.machines[of].life.as_ref()?.applied(group)));
        applied.min().unwrap_or_default()
    }
}

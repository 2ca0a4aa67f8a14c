//! Following what is decided: reads the logs of groups at this replica, and hands out what has its turn.

use std::sync::Arc;

use synod_replica::{LogFrom, Ordered, Point, Start, SubscribeError, Subscriber};
use synod_wire::{GroupId, Slot};
use tokio::sync::oneshot;

use crate::{
    Handle,
    executor::Job,
    handle::Inner,
    view::{Ended, any_change},
};

/// Most bytes that are read of a group at a time, and wait for their turn. A single batch may be larger.
const READ_BYTES_MAX: usize = 256 << 10;

/// What a replica and its peers decide, batch by batch, from one point on; see [`Handle::subscribe`].
///
/// Nothing is kept for a subscription but a part of each log, so one that is not read costs the replica nothing. If it
/// falls behind what the replica keeps for others ([`Settings::keep_slots`](synod_replica::Settings::keep_slots),
/// [`Settings::keep_bytes`](synod_replica::Settings::keep_bytes)), it ends with [`SubscribeError::Trimmed`].
#[derive(Debug)]
pub struct Subscription {
    inner: Arc<Inner>,
    subscriber: Subscriber,
}

impl Handle {
    /// Follows what some groups decide, or all groups if none is named: each batch that holds something to execute,
    /// once, in the order of its group. Batches of groups that are merged come in their common order: all subscribers
    /// of a set of groups, at whatever replicas, are handed the same sequence, and those of other sets the same order
    /// of what they have in common. Groups that are not merged have no common order, and do not wait for each other.
    ///
    /// A batch may come before this replica has executed it. A command that a client sent again may come twice, and is
    /// executed once. A replica that takes no part in a group ([`Others::StayAway`](synod_replica::Others)) knows
    /// nothing new of it, and others have to be asked.
    ///
    /// # Errors
    /// See [`SubscribeError`].
    pub async fn subscribe(
        &self,
        groups: impl IntoIterator<Item = GroupId>,
        start: Start,
    ) -> Result<Subscription, SubscribeError> {
        let inner = Arc::clone(&self.inner);
        let mut followed: Vec<GroupId> = groups.into_iter().collect();
        if followed.is_empty() {
            followed.extend((0u16..).map(GroupId).take(inner.all.len()));
        }
        followed.sort_unstable();
        if let Some(twice) = followed.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(SubscribeError::Unclear(twice[0]));
        }
        if let Some(&group) = followed.iter().find(|group| usize::from(group.0) >= inner.all.len()) {
            return Err(SubscribeError::NoSuchGroup { group, count: inner.all.len() });
        }
        if let Some(&group) = followed.iter().find(|&&group| !inner.takes_part(group)) {
            return Err(SubscribeError::TakesNoPart(group));
        }
        let (points, round) = match start {
            Start::Beginning => {
                (followed.iter().map(|&group| Point::after(group, Slot::ZERO)).collect(), None)
            }
            Start::Now => (inner.cut(&followed).await?, None),
            Start::Round(_) if inner.take.is_none() => return Err(SubscribeError::NoRounds),
            Start::Round(round) => (Vec::new(), Some(round)),
            Start::At(points) => (points, None),
            _ => unreachable!("all kinds are listed"),
        };
        let unclear = |(at, point): (usize, &Point)| {
            !followed.contains(&point.group) || points[..at].iter().any(|other| other.group == point.group)
        };
        if let Some(at) = points.iter().enumerate().position(unclear) {
            return Err(SubscribeError::Unclear(points[at].group));
        }
        let point = |group| points.iter().find(|point| point.group == group).copied();
        let subscriber =
            Subscriber::new(inner.take, followed.iter().map(|&group| (group, point(group))), round);
        let mut subscription = Subscription { inner, subscriber };
        // What cannot be had is told at once.
        while subscription.read_what_there_is().await? {}
        Ok(subscription)
    }
}

impl Subscription {
    /// Waits for the next batch. A call that is dropped loses none.
    ///
    /// # Errors
    /// The subscription is over: see [`SubscribeError`]. [`Subscription::points`] says where another one can go on, at
    /// any replica.
    pub async fn next(&mut self) -> Result<Ordered, SubscribeError> {
        loop {
            if let Some(next) = self.try_next() {
                return Ok(next);
            }
            if self.subscriber.groups().next().is_none() {
                return Err(SubscribeError::NoGroupLeft);
            }
            if !self.read_what_there_is().await? {
                self.change().await?;
            }
        }
    }

    /// The next batch, if it was read already.
    pub fn try_next(&mut self) -> Option<Ordered> {
        self.subscriber.pop()
    }

    /// Where the subscription is in each group: everything before was handed out, and nothing after it.
    #[must_use]
    pub fn points(&self) -> Vec<Point> {
        self.subscriber.points().collect()
    }

    /// Follows another group too. If the groups are merged, it joins at a round that none of the others has begun:
    /// [`Point::from`] says at which position. Otherwise it begins with the group's first slot, which must be kept. A
    /// group that is about to leave can be added once it has left.
    ///
    /// # Errors
    /// There is no such group, or this replica takes no part in it, or every group has left before.
    pub fn add(&mut self, group: GroupId) -> Result<(), SubscribeError> {
        let count = self.inner.all.len();
        if usize::from(group.0) >= count {
            return Err(SubscribeError::NoSuchGroup { group, count });
        }
        if !self.inner.takes_part(group) {
            return Err(SubscribeError::TakesNoPart(group));
        }
        if self.subscriber.groups().next().is_none() {
            return Err(SubscribeError::NoGroupLeft);
        }
        self.subscriber.add(group);
        Ok(())
    }

    /// Does not follow a group any more. If the groups are merged, what the group has in the present round still comes.
    pub fn remove(&mut self, group: GroupId) {
        self.subscriber.remove(group);
    }

    /// Whether this replica knows no leader of a group that is followed. Then it may be cut off, and another replica
    /// may have more.
    #[must_use]
    pub fn lacks_leader(&self) -> bool {
        self.subscriber.groups().any(|group| self.inner.all[usize::from(group.0)].leader().is_none())
    }

    /// Reads one part of each log that has something; whether there was any.
    async fn read_what_there_is(&mut self) -> Result<bool, SubscribeError> {
        let wanted = self.subscriber.wanted(|group| self.inner.decided(group));
        for &(group, from) in &wanted {
            match self.inner.read_log(group, from, READ_BYTES_MAX).await? {
                Ok(Some(part)) => self.subscriber.take(group, part),
                Ok(None) => {}
                Err(begin) => {
                    if self.subscriber.trimmed(group, begin).is_err() {
                        return Err(self.trimmed().await);
                    }
                }
            }
        }
        Ok(!wanted.is_empty())
    }

    /// Waits until something more can be read.
    async fn change(&mut self) -> Result<(), SubscribeError> {
        let (inner, subscriber) = (&self.inner, &mut self.subscriber);
        let groups: Vec<GroupId> = subscriber.groups().collect();
        let shared = groups.iter().map(|group| &*inner.all[usize::from(group.0)]);
        let away = || groups.iter().copied().find(|&group| !inner.takes_part(group));
        let mut has_more = || !subscriber.wanted(|group| inner.decided(group)).is_empty();
        any_change(shared, || has_more() || away().is_some())
            .await
            .map_err(|Ended| SubscribeError::Stopping)?;
        // What there still is comes first.
        match away() {
            Some(group) if !has_more() => Err(SubscribeError::TakesNoPart(group)),
            _ => Ok(()),
        }
    }

    /// From where on the groups can be had.
    async fn trimmed(&self) -> SubscribeError {
        let (mut first, mut position) = (Vec::new(), 0);
        for group in self.subscriber.groups() {
            let begin = match self.inner.read_log(group, LogFrom::Slot(Slot::ZERO), 0).await {
                Ok(Err(begin)) => begin,
                Ok(Ok(_)) => continue,
                Err(error) => return error,
            };
            first.push(Point::after(group, begin.first.prev()));
            position = begin.position.max(position);
        }
        let round = self.inner.take.map(|take| position.div_ceil(take.get().into()));
        SubscribeError::Trimmed { first, round }
    }
}

impl Inner {
    /// What can be read of a group here.
    fn decided(&self, group: GroupId) -> Slot {
        Slot(self.all[usize::from(group.0)].delivered.get())
    }

    /// What the replica has executed of these groups: at one point of the common order, if they have one.
    async fn cut(&self, groups: &[GroupId]) -> Result<Vec<Point>, SubscribeError> {
        let mut points = Vec::new();
        if self.take.is_some() {
            let slots = self.executed(GroupId::FIRST).await?;
            points.extend(groups.iter().map(|&group| Point::after(group, slots[usize::from(group.0)])));
        } else {
            for &group in groups {
                let slots = self.executed(group).await?;
                points.extend(slots.iter().map(|&slot| Point::after(group, slot)));
            }
        }
        Ok(points)
    }

    async fn executed(&self, group: GroupId) -> Result<Vec<Slot>, SubscribeError> {
        let (reply, answer) = oneshot::channel();
        if !self.executor.send(group, Job::Cut(reply)) {
            return Err(SubscribeError::Stopping);
        }
        answer.await.map_err(|_| SubscribeError::Stopping)
    }
}

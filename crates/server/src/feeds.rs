//! Streams of what is decided, for those who subscribe.
//!
//! A batch is read from the replica's log when its client has room for it, so nothing waits here for a client that is
//! slow: it is broken off if it takes next to nothing for a minute, or if the log no longer has what comes next.

use std::{
    future::pending,
    mem,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use synod_api::{
    shards::NOT_HERE,
    synod::v1::{CommandKind as Kind, DecidedBatch, DecidedCommand, GroupPoint, SubscribeResponse},
};
use synod_grpc::{GATHERED_BYTES, framed};
use synod_kv::{Shown, shown};
use synod_wire::{Command, CommandKind, GroupId, Slot};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    time::{sleep, timeout},
};
use tonic::Status;

use crate::{Ordered, Status as ReplicaStatus, SubscribeError, Subscription, auth::Judgement};

/// Subscriptions at the same time, over all connections. Each makes the protocol's thread read the log up to 200
/// times a second.
const FEEDS_MAX: usize = 64;

/// A message leaves at least so often, so that the client knows that its replica is there, and how far it is.
const POINTS_INTERVAL: Duration = Duration::from_secs(1);

/// The pause after a message with few bytes: what is decided meanwhile is read together.
const GATHER: Duration = Duration::from_millis(5);
const FEW_BYTES: usize = 16 << 10;

/// How long a replica may know no leader before its subscribers are sent to another one.
const LEADERLESS_MAX: Duration = Duration::from_secs(5);

/// The places for subscriptions. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Feeds {
    places: Arc<Semaphore>,
    /// The server ends.
    stopping: watch::Receiver<bool>,
}

impl Default for Feeds {
    fn default() -> Feeds {
        Feeds::new(watch::channel(false).1)
    }
}

impl Feeds {
    /// Subscriptions end when the server does.
    pub(crate) fn new(stopping: watch::Receiver<bool>) -> Feeds {
        Feeds { places: Arc::new(Semaphore::new(FEEDS_MAX)), stopping }
    }

    /// Waits until the server ends.
    pub(crate) async fn stopping(&self) {
        if self.stopping.clone().wait_for(|stopping| *stopping).await.is_err() {
            pending().await
        }
    }

    pub(crate) fn place(&self) -> Result<OwnedSemaphorePermit, Status> {
        Arc::clone(&self.places).try_acquire_owned().map_err(|_| {
            Status::resource_exhausted(format!(
                "synod: there are {FEEDS_MAX} subscriptions at this replica already; ask another one"
            ))
        })
    }

    /// A feed that these groups leave.
    pub(crate) fn feed(
        &self,
        mut subscription: Box<dyn Subscription>,
        leaving: Vec<GroupId>,
        place: OwnedSemaphorePermit,
        judgement: Option<Judgement>,
    ) -> Feed {
        leaving.iter().for_each(|&group| subscription.remove(group));
        let (stopping, begun, led_at) = (self.stopping.clone(), false, Instant::now());
        let few = false;
        Feed {
            subscription,
            leaving,
            _place: place,
            judgement,
            users_change: None,
            stopping,
            begun,
            few,
            led_at,
        }
    }
}

/// What is sent to one subscriber.
pub(crate) struct Feed {
    subscription: Box<dyn Subscription>,
    /// Groups of which the client has not been told where they leave.
    leaving: Vec<GroupId>,
    _place: OwnedSemaphorePermit,
    /// What permitted it. `None` if the store tells of no users: then its commands may be anything.
    judgement: Option<Judgement>,
    /// The last batch that was sent changes users or roles, and nothing has been sent since.
    users_change: Option<UsersChange>,
    stopping: watch::Receiver<bool>,
    begun: bool,
    /// The last message had few bytes.
    few: bool,
    /// When the replica was last seen to know a leader of each group.
    led_at: Instant,
}

/// Where users or roles change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UsersChange {
    slot: Slot,
    is_merged: bool,
}

impl UsersChange {
    /// Whether a replica with this status has certainly executed it.
    pub(crate) fn is_executed(&self, status: &ReplicaStatus) -> bool {
        !self.is_merged && self.slot <= status.node.executed
    }
}

impl Feed {
    /// Where users change, after which nothing was sent. What the log has later is shown to those only who may see it
    /// once that is executed.
    pub(crate) fn users_change(&mut self) -> Option<UsersChange> {
        self.users_change.take()
    }

    /// Whether somebody may have lost something since it was judged.
    pub(crate) fn is_marked(&self) -> bool {
        self.judgement.as_ref().is_some_and(Judgement::is_marked)
    }

    /// It is about to be judged again.
    pub(crate) fn judge_by(&mut self, judgement: Option<Judgement>) {
        self.judgement = judgement;
    }

    /// The next message.
    pub(crate) async fn next(&mut self) -> Result<Bytes, Status> {
        if !mem::replace(&mut self.begun, true) {
            return Ok(self.message(Vec::new()));
        }
        if mem::take(&mut self.few) {
            sleep(GATHER).await;
        }
        let mut stopping = self.stopping.clone();
        let next = tokio::select! {
            next = timeout(POINTS_INTERVAL, self.subscription.next()) => next,
            Ok(_) = stopping.wait_for(|stopping| *stopping) => return Err(broken_off(&SubscribeError::Stopping)),
        };
        let mut batches = Vec::new();
        if let Ok(first) = next {
            let mut next = Some(first.map_err(|error| broken_off(&error))?);
            let mut bytes = 0;
            while let Some(ordered) = next {
                bytes += ordered.batch.bytes().len();
                let (batch, changes_users) = decided(&ordered, self.judgement.is_some());
                batches.push(batch);
                self.users_change = changes_users
                    .then(|| UsersChange { slot: ordered.slot, is_merged: ordered.position.is_some() });
                // A client that stops in the middle of a message has to know where groups leave: what they have later
                // would come after batches of other groups that it precedes.
                let has_room = bytes < GATHERED_BYTES && self.leaving.is_empty() && !changes_users;
                next = if has_room { self.subscription.try_next() } else { None };
            }
            self.few = bytes < FEW_BYTES;
        }
        if !self.subscription.lacks_leader() {
            self.led_at = Instant::now();
        } else if batches.is_empty() && self.led_at.elapsed() > LEADERLESS_MAX {
            return Err(Status::unavailable("etcdserver: no leader"));
        }
        Ok(self.message(batches))
    }

    fn message(&mut self, batches: Vec<DecidedBatch>) -> Bytes {
        let points = self.subscription.points();
        let is_unknown =
            |group: &GroupId| points.iter().any(|point| point.group == *group && point.until.is_none());
        self.leaving.retain(is_unknown);
        let points = points.into_iter().map(|point| GroupPoint {
            group: point.group.0.into(),
            slot: point.slot.0,
            from_position: point.from,
            until_position: point.until,
        });
        framed(&SubscribeResponse { batches, points: points.collect() })
    }
}

/// A batch as it is sent, and whether it changes users or roles. Secrets are left out if the store has users.
fn decided(ordered: &Ordered, has_users: bool) -> (DecidedBatch, bool) {
    let mut changes_users = false;
    let mut payload = |command: &Command| match command.kind {
        CommandKind::Apply if has_users => match shown(&command.payload) {
            Shown::Plain => command.payload.clone(),
            Shown::OfUsers { command, changes } => {
                changes_users |= changes;
                command
            }
        },
        _ => command.payload.clone(),
    };
    let commands = ordered.batch.commands().map(|command| DecidedCommand {
        kind: kind(command.kind).into(),
        session: command.session.0,
        sequence: command.sequence,
        payload: payload(&command),
    });
    let batch = DecidedBatch {
        group: ordered.group.0.into(),
        slot: ordered.slot.0,
        position: ordered.position,
        commands: commands.collect(),
    };
    (batch, changes_users)
}

fn kind(kind: CommandKind) -> Kind {
    match kind {
        CommandKind::Apply => Kind::Apply,
        CommandKind::OpenSession => Kind::OpenSession,
        CommandKind::AdvanceClock => Kind::AdvanceClock,
        CommandKind::Reconfigure | CommandKind::ReconfigureNamed => Kind::Reconfigure,
        CommandKind::Settle => Kind::Settle,
        CommandKind::Skip => Kind::Skip,
        kind => unreachable!("{kind:?} is no command of a batch"),
    }
}

/// The status with which a subscription is refused, or ends.
pub(crate) fn broken_off(error: &SubscribeError) -> Status {
    let text = format!("synod: {error}");
    match error {
        SubscribeError::Trimmed { .. } => Status::out_of_range(text),
        SubscribeError::Stopping => Status::unavailable("etcdserver: server stopped"),
        SubscribeError::TakesNoPart(group) => Status::unavailable(format!("{NOT_HERE} {}", group.0)),
        SubscribeError::NoLog | SubscribeError::NoRounds | SubscribeError::NoGroupLeft => {
            Status::failed_precondition(text)
        }
        _ => Status::invalid_argument(text),
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::VecDeque, future::Future, pin::Pin};

    use prost::Message as _;
    use synod_replica::{LogPart, Point, Subscriber, Take};
    use synod_wire::{Batch, BatchBuilder, SessionId, Slot};

    use super::*;

    /// A subscription at a replica that has decided nothing at first, and these parts later.
    struct Lagging {
        subscriber: Subscriber,
        parts: VecDeque<(GroupId, LogPart)>,
    }

    impl Subscription for Lagging {
        fn next(&mut self) -> Pin<Box<dyn Future<Output = Result<Ordered, SubscribeError>> + Send + '_>> {
            self.parts.drain(..).for_each(|(group, part)| self.subscriber.take(group, part));
            let next = self.subscriber.pop();
            Box::pin(async { next.ok_or(SubscribeError::Stopping) })
        }

        fn try_next(&mut self) -> Option<Ordered> {
            self.subscriber.pop()
        }

        fn remove(&mut self, group: GroupId) {
            self.subscriber.remove(group);
        }

        fn points(&self) -> Vec<Point> {
            self.subscriber.points().collect()
        }

        fn lacks_leader(&self) -> bool {
            false
        }
    }

    fn batch(content: &str) -> Batch {
        let mut builder = BatchBuilder::new();
        builder.push(SessionId(1), 1, 1, content.as_bytes());
        builder.finish()
    }

    /// Group 1 leaves after its first batch. The client learns that with the first batch that it gets, so it may stop
    /// after any of the later ones.
    #[tokio::test]
    async fn a_client_is_told_where_a_group_leaves_before_it_gets_more_than_one_batch() {
        let groups = [0, 1].map(GroupId);
        let part = |contents: &[&str]| {
            let batches = contents.iter().map(|content| batch(content)).collect();
            LogPart { first: Slot(1), position: 0, batches }
        };
        let points = groups.map(|group| (group, Some(Point::after(group, Slot::ZERO))));
        let subscriber = Subscriber::new(Some(Take::MIN), points, None);
        let parts = groups.into_iter().zip([part(&["a", "b", "c"]), part(&["x", "y"])]).collect();
        let feeds = Feeds::default();
        let subscription = Box::new(Lagging { subscriber, parts });
        let mut feed = feeds.feed(subscription, vec![GroupId(1)], feeds.place().unwrap(), None);
        let mut told = Vec::new();
        for _ in 0..3 {
            // The frame of gRPC begins with five bytes.
            let message = SubscribeResponse::decode(feed.next().await.unwrap().slice(5..)).unwrap();
            let batches: Vec<_> = message.batches.iter().map(|batch| (batch.group, batch.slot)).collect();
            let until: Vec<_> = message.points.iter().map(|point| point.until_position).collect();
            told.push((batches, until));
        }
        let last = vec![(1, 1), (0, 2), (0, 3)];
        assert_eq!(
            told,
            [(vec![], vec![None, None]), (vec![(0, 1)], vec![None, Some(1)]), (last, vec![None])]
        );
    }
}

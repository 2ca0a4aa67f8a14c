//! Following what a cluster decides.

use std::{
    collections::{BTreeMap, VecDeque},
    mem,
    sync::Arc,
    time::Duration,
};

use synod_api::synod::v1::{
    DecidedBatch, GroupPoint, SubscribeRequest, SubscribeResponse, SubscribeStart,
    native_client::NativeClient,
};
use tokio::time::{Instant, sleep, timeout_at};
use tonic::{Code, Status, Streaming};
use tracing::debug;

use crate::{
    Client, Error,
    auth::RENEWALS_MAX,
    endpoints::{Endpoints, backoff, describe, refused},
    error::Failure,
};

/// Batches may be as large as a cluster allows.
const MESSAGE_BYTES_MAX: usize = i32::MAX as usize;

/// A server tells where it is once a second. One that is silent for so long is left.
const SILENCE_MAX: Duration = Duration::from_secs(4);

/// Where a subscription begins.
#[derive(Clone, Debug, PartialEq)]
pub enum Start {
    /// After what the replica that is asked has executed.
    Now,
    /// With the first slots.
    Beginning,
    /// With the first batch of this round of the common order of merged groups.
    Round(u64),
    /// After these points. A group without one joins the others at a round that none of them has begun.
    Points(Vec<GroupPoint>),
}

impl Client {
    /// Follows what some groups of a Synod cluster decide, or all if none is named: batch by batch, in their common
    /// order where the cluster has one (`--groups merge:N`), each group by itself otherwise. All subscribers of a set
    /// of groups get the same sequence.
    ///
    /// What is decided is not yet answered, nor executed everywhere. A command that a client sent again may come
    /// twice, with the same session and number, and is executed once.
    ///
    /// # Errors
    /// A server refuses it, or none answers within the configured [`request_timeout`](crate::Config::request_timeout).
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), synod_client::Error> {
    /// use synod_client::{Client, Config, Start};
    ///
    /// let client = Client::new(Config::new(["http://127.0.0.1:2379", "http://127.0.0.1:22379"]))?;
    /// let mut subscription = client.subscribe(&[0, 2], Start::Now).await?;
    /// loop {
    ///     let batch = subscription.next().await?;
    ///     println!("group {} slot {}: {} commands", batch.group, batch.slot, batch.commands.len());
    ///     // To go on after this batch in another process: Start::Points(subscription.points()).
    /// }
    /// # }
    /// ```
    pub async fn subscribe(&self, groups: &[u32], start: Start) -> Result<Subscription, Error> {
        self.endpoints.greeted().await;
        let (start, round, points) = match start {
            Start::Now => (SubscribeStart::Now, 0, Vec::new()),
            Start::Beginning => (SubscribeStart::Beginning, 0, Vec::new()),
            Start::Round(round) => (SubscribeStart::Round, round, Vec::new()),
            Start::Points(points) => (SubscribeStart::Points, 0, points),
        };
        let (groups, start) = (groups.to_vec(), start.into());
        let request = SubscribeRequest { groups, start, round, points, leave: Vec::new() };
        let mut subscription = Subscription {
            endpoints: Arc::clone(&self.endpoints),
            request,
            begun: false,
            points: BTreeMap::new(),
            came: VecDeque::new(),
            after: Vec::new(),
            stream: None,
        };
        // The first message says where it begins.
        subscription.receive().await?;
        Ok(subscription)
    }
}

/// What a cluster decides; see [`Client::subscribe`].
///
/// When its server fails or falls silent, it goes on at the next endpoint, where it was: no batch is lost, and none
/// comes twice. It fails with the code `OutOfRange` if no replica keeps what comes next, since it was read too
/// slowly.
#[derive(Debug)]
pub struct Subscription {
    endpoints: Arc<Endpoints>,
    /// What was asked for first; its groups are those that are followed now, and those that leave are named until it is
    /// known where.
    request: SubscribeRequest,
    /// A message has come.
    begun: bool,
    /// Where it is in each group.
    points: BTreeMap<u32, GroupPoint>,
    /// Batches that have come.
    came: VecDeque<DecidedBatch>,
    /// Where it is after these.
    after: Vec<GroupPoint>,
    stream: Option<Streaming<SubscribeResponse>>,
}

impl Subscription {
    /// Waits for the next batch. A call that is dropped loses none.
    ///
    /// # Errors
    /// No endpoint can go on with it.
    pub async fn next(&mut self) -> Result<DecidedBatch, Error> {
        loop {
            if let Some(batch) = self.came.pop_front() {
                let after = GroupPoint { group: batch.group, slot: batch.slot, ..GroupPoint::default() };
                let point = self.points.entry(batch.group).or_insert(after);
                point.slot = batch.slot;
                if self.came.is_empty() {
                    self.pass();
                }
                return Ok(batch);
            }
            self.receive().await?;
        }
    }

    /// Where it is in each group: everything before was returned, and nothing after it.
    #[must_use]
    pub fn points(&self) -> Vec<GroupPoint> {
        self.points.values().copied().collect()
    }

    /// Follows another group too. If the groups are merged, it joins at a round that none of the others has begun.
    /// Otherwise it begins with the group's first slot, which must be kept. A group that is about to leave can be added
    /// once it has left, and none once every group has.
    pub fn add(&mut self, group: u32) {
        self.request.leave.retain(|leaves| *leaves != group);
        if !self.request.groups.is_empty() && !self.request.groups.contains(&group) {
            self.request.groups.push(group);
        }
        self.ask_again();
    }

    /// Does not follow a group any more. If the groups are merged, what it has in the present round still comes.
    pub fn remove(&mut self, group: u32) {
        if !self.request.leave.contains(&group) {
            self.request.leave.push(group);
        }
        self.ask_again();
    }

    /// What has come and was not returned comes again.
    fn ask_again(&mut self) {
        self.came.clear();
        self.stream = None;
    }

    /// What has come is returned: goes on to where the server was after it.
    fn pass(&mut self) {
        let after = mem::take(&mut self.after).into_iter().map(|point| (point.group, point));
        let before = mem::replace(&mut self.points, after.collect());
        // A group has left if it was followed, or was to leave before it joined, and is not followed now.
        let (points, SubscribeRequest { groups, leave, .. }) = (&self.points, &mut self.request);
        let is_to_come = |group: &u32| !before.contains_key(group) && !leave.contains(group);
        groups.retain(|group| points.contains_key(group) || is_to_come(group));
        leave.retain(|group| points.get(group).is_some_and(|point| point.until_position.is_none()));
    }

    /// Waits for a message, of this server or the next one.
    async fn receive(&mut self) -> Result<(), Error> {
        let mut deadline = None;
        let mut pauses = backoff();
        let (mut attempts, mut reached, mut renewals) = (0, false, 0);
        // The endpoints that do not keep what comes next.
        let mut trimmed = BTreeMap::new();
        let mut silence_max = SILENCE_MAX;
        loop {
            let index = self.endpoints.current();
            let endpoint = self.endpoints.current_url();
            let cause = match timeout_at(Instant::now() + silence_max, self.message(index)).await {
                Ok(Ok(response)) => return self.took(endpoint, response),
                Ok(Err(status))
                    if renewals < RENEWALS_MAX && self.endpoints.needs_token(status.message()) =>
                {
                    // It is refused for its token, and asked for again with another.
                    renewals += 1;
                    self.stream = None;
                    continue;
                }
                Ok(Err(status)) => match Failure::of(&status) {
                    // Another replica may keep more.
                    Failure::Refused if status.code() == Code::OutOfRange => {
                        trimmed.insert(index, refused(endpoint.clone(), &status, false));
                        describe(&status)
                    }
                    Failure::Refused if status.code() != Code::ResourceExhausted => {
                        return Err(refused(endpoint, &status, false));
                    }
                    failure => {
                        reached |= failure != Failure::NotReached;
                        describe(&status)
                    }
                },
                Err(_) => {
                    // It may be large: without more time for each attempt it would never arrive.
                    silence_max *= 2;
                    "no message in time".to_owned()
                }
            };
            debug!(endpoint, cause, "a subscription moves on");
            self.stream = None;
            attempts += 1;
            self.endpoints.move_on(index);
            let round = (attempts as usize).is_multiple_of(self.endpoints.urls().count());
            let pause = if round { pauses.next().expect("it never ends") } else { Duration::ZERO };
            let deadline =
                *deadline.get_or_insert_with(|| Instant::now() + self.endpoints.config().request_timeout);
            let hopeless = self.endpoints.config().give_up_unreachable
                && !self.begun
                && !reached
                && attempts as usize >= self.endpoints.urls().count();
            let nobody_keeps_it = trimmed.len() >= self.endpoints.urls().count();
            if nobody_keeps_it || hopeless || Instant::now() + pause >= deadline {
                let unavailable = Error::Unavailable { attempts, endpoint, cause, reached };
                return Err(trimmed.pop_last().map_or(unavailable, |(_, refused)| refused));
            }
            sleep(pause).await;
        }
    }

    /// The next message of an endpoint.
    async fn message(&mut self, index: usize) -> Result<SubscribeResponse, Status> {
        if self.begun && self.request.groups.is_empty() {
            // To a server no group would stand for all.
            return Err(Status::failed_precondition("synod: every group has left the subscription"));
        }
        if self.stream.is_none() {
            let mut request = self.request.clone();
            if self.begun {
                request.start = SubscribeStart::Points.into();
                request.points = self.points();
            }
            let line = self.endpoints.line(index).await?;
            let mut client = NativeClient::new(line).max_decoding_message_size(MESSAGE_BYTES_MAX);
            self.stream = Some(client.subscribe(request).await?.into_inner());
        }
        let stream = self.stream.as_mut().expect("it was opened");
        stream.message().await?.ok_or_else(|| Status::unavailable("the stream has ended"))
    }

    fn took(&mut self, endpoint: String, response: SubscribeResponse) -> Result<(), Error> {
        let mut last: BTreeMap<u32, u64> =
            self.points.iter().map(|(&group, point)| (group, point.slot)).collect();
        for batch in &response.batches {
            if last.insert(batch.group, batch.slot).is_some_and(|last| last >= batch.slot) {
                let message = format!("synod: slot {} of group {} came again", batch.slot, batch.group);
                return Err(Error::Refused { endpoint, code: Code::Internal, message, in_doubt: false });
            }
        }
        if !mem::replace(&mut self.begun, true) && self.request.groups.is_empty() {
            self.request.groups = response.points.iter().map(|point| point.group).collect();
        }
        self.came = response.batches.into();
        self.after = response.points;
        if self.came.is_empty() {
            self.pass();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;

    fn subscription(groups: &[u32]) -> Subscription {
        Subscription {
            endpoints: Endpoints::new(Config::new(["http://127.0.0.1:1"])).unwrap(),
            request: SubscribeRequest { groups: groups.to_vec(), ..SubscribeRequest::default() },
            begun: false,
            points: BTreeMap::new(),
            came: VecDeque::new(),
            after: Vec::new(),
            stream: None,
        }
    }

    fn point(group: u32, slot: u64, until_position: Option<u64>) -> GroupPoint {
        GroupPoint { group, slot, until_position, ..GroupPoint::default() }
    }

    impl Subscription {
        fn told(&mut self, batches: &[(u32, u64)], points: Vec<GroupPoint>) {
            let batch = |&(group, slot): &(u32, u64)| DecidedBatch { group, slot, ..DecidedBatch::default() };
            let batches = batches.iter().map(batch).collect();
            self.took(String::new(), SubscribeResponse { batches, points }).unwrap();
        }

        fn asks(&self) -> (&[u32], &[u32]) {
            (&self.request.groups, &self.request.leave)
        }
    }

    #[tokio::test]
    async fn that_a_group_leaves_is_said_until_it_is_known_where() {
        let mut subscription = subscription(&[]);
        subscription.told(&[], vec![point(0, 5, None), point(1, 7, None)]);
        subscription.remove(1);
        // The server lags, so that it does not know the present round yet.
        subscription.told(&[], vec![point(0, 5, None), point(1, 7, None)]);
        assert_eq!(subscription.asks(), (&[0, 1][..], &[1][..]));
        // Now it does, and its message breaks off before all of it is returned.
        subscription.told(&[(0, 6), (1, 8)], vec![point(0, 6, None), point(1, 8, Some(4))]);
        subscription.next().await.unwrap();
        assert_eq!(subscription.asks(), (&[0, 1][..], &[1][..]));
        subscription.next().await.unwrap();
        assert_eq!(
            (subscription.asks(), subscription.points()[1].until_position),
            ((&[0, 1][..], &[][..]), Some(4))
        );
        subscription.told(&[], vec![point(0, 6, None)]);
        assert_eq!(subscription.asks(), (&[0][..], &[][..]));
    }

    #[tokio::test]
    async fn a_group_that_leaves_before_it_has_joined_is_not_asked_for_again() {
        let mut subscription = subscription(&[0]);
        subscription.told(&[], vec![point(0, 5, None)]);
        subscription.add(1);
        subscription.told(&[], vec![point(0, 5, None)]);
        assert_eq!(subscription.asks(), (&[0, 1][..], &[][..]), "it is to join");
        subscription.remove(1);
        subscription.told(&[], vec![point(0, 5, None)]);
        assert_eq!(subscription.asks(), (&[0][..], &[][..]));
        subscription.remove(0);
        subscription.told(&[], Vec::new());
        assert_eq!(subscription.next().await.unwrap_err().code(), Some(Code::FailedPrecondition));
        subscription.add(0);
        assert!(subscription.next().await.is_err(), "it would begin again with what came before");
    }
}

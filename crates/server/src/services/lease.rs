//! etcd's service Lease.
//!
//! Renewals that come within a short time are ordered as one command, and answered once that is executed: a thousand
//! clients that renew cost the log a few entries.

use std::{
    collections::BTreeMap,
    future::pending,
    hash::{BuildHasher, Hasher, RandomState},
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::{BufMut, BytesMut};
use futures_util::{FutureExt as _, StreamExt as _, stream::FuturesUnordered};
use prost::Message as _;
use synod_api::{
    etcdserverpb::{
        LeaseGrantRequest, LeaseGrantResponse, LeaseKeepAliveRequest, LeaseKeepAliveResponse,
        LeaseLeasesRequest, LeaseLeasesResponse, LeaseRevokeRequest, LeaseRevokeResponse,
        LeaseTimeToLiveRequest, LeaseTimeToLiveResponse, ResponseHeader,
    },
    synod::v1::{
        KvCommand, KvLeaseRenew, KvLeasesRenewed, kv_answer::Answer, kv_command::Command, kv_query::Query,
        kv_reply::Reply,
    },
};
use synod_grpc::{Charge, Incoming, Sender, framed};
use synod_kv::KvError;
use tokio::{sync::oneshot, time::sleep};
use tonic::Status;

use super::envelope::{Store, by, refusal, replied, unexpected};
use crate::{
    Consistency, Replica,
    auth::{Caller, Who},
    call::{self, too_many},
    fields::ClientMessages,
    methods::Handler,
    readers::{Lane, Place},
};

/// How long a renewal may wait for others.
const RENEWALS_INTERVAL: Duration = Duration::from_millis(10);
/// Renewals in one command. The executor works for some 2 µs for each, and other commands wait as long.
const RENEWALS_MAX: usize = 2_000;
/// Renewals of one stream that are under way. What its client has sent beyond them waits as it came.
const OUTSTANDING_MAX: usize = 1_024;
/// Renewals of all streams that are under way, also of streams that have ended since. More are refused.
const OUTSTANDING_ALL_MAX: usize = 1 << 17;
/// Bytes of answers that are sent together.
const ANSWERS_BYTES: usize = 16 << 10;
/// What a renewal costs its stream while it is under way.
const RENEWAL_BYTES: u64 = 256;

/// What becomes of a renewal: the revision, and for how many seconds the lease is renewed.
type Renewed = Result<(i64, i64), Status>;

/// A lease, who renews it, and who waits for that.
type Renewal = (i64, Who, oneshot::Sender<Renewed>);

/// Renewals that wait to be ordered together.
#[derive(Debug, Default)]
pub(super) struct Renewals {
    waiting: Vec<Renewal>,
    /// How many are being ordered.
    ordered: usize,
}

impl Renewals {
    /// Adds one; says whether it is the first that waits. More than this many of all streams are refused.
    fn add(&mut self, id: i64, who: Who, renewed: oneshot::Sender<Renewed>) -> Result<bool, Status> {
        if self.waiting.len() + self.ordered >= OUTSTANDING_ALL_MAX {
            return Err(too_many());
        }
        self.waiting.push((id, who, renewed));
        Ok(self.waiting.len() == 1)
    }

    /// Takes those that wait, to order them.
    fn take(&mut self) -> Vec<Renewal> {
        self.ordered += self.waiting.len();
        mem::take(&mut self.waiting)
    }
}

impl<R: Replica> Store<R> {
    pub(super) async fn lease_grant(
        &self,
        who: &Who,
        request: LeaseGrantRequest,
    ) -> Result<LeaseGrantResponse, Status> {
        let id = if request.id == 0 { self.fresh_lease_id() } else { request.id };
        let command = Command::LeaseGrant(LeaseGrantRequest { id, ..request });
        let granted = self.execute(who, command, |reply| match reply {
            Reply::LeaseGrant(done) => Ok(LeaseGrantResponse { header: self.header(done.header), ..done }),
            other => Err(unexpected(other)),
        });
        granted.await
    }

    /// An id that no lease has, but for a chance of one in 2^63 for each that there is, which the store would refuse.
    fn fresh_lease_id(&self) -> i64 {
        // Each such state has keys of its own.
        let random = RandomState::new().build_hasher().finish();
        i64::try_from(random >> 1).map_or(1, |id| id.max(1))
    }

    pub(super) async fn lease_revoke(
        &self,
        who: &Who,
        request: LeaseRevokeRequest,
    ) -> Result<LeaseRevokeResponse, Status> {
        let revoked = self.execute(who, Command::LeaseRevoke(request), |reply| match reply {
            Reply::LeaseRevoke(done) => Ok(LeaseRevokeResponse { header: self.header(done.header) }),
            other => Err(unexpected(other)),
        });
        revoked.await
    }

    pub(super) async fn lease_time_to_live(
        &self,
        who: &Who,
        request: LeaseTimeToLiveRequest,
        lane: &Lane,
    ) -> Result<(LeaseTimeToLiveResponse, Option<Place>), Status> {
        let query = Ok(Query::LeaseTimeToLive(request));
        let found = self.query(who, query, Consistency::Linearizable, lane, |answer| match answer {
            Answer::LeaseTimeToLive(found) => {
                Ok(LeaseTimeToLiveResponse { header: self.header(found.header), ..found })
            }
            other => Err(unexpected(other)),
        });
        found.await
    }

    pub(super) async fn lease_leases(
        &self,
        who: &Who,
        _: LeaseLeasesRequest,
        lane: &Lane,
    ) -> Result<(LeaseLeasesResponse, Option<Place>), Status> {
        let query = Ok(Query::LeaseLeases(LeaseLeasesRequest {}));
        let found = self.query(who, query, Consistency::Linearizable, lane, |answer| match answer {
            Answer::LeaseLeases(found) => {
                Ok(LeaseLeasesResponse { header: self.header(found.header), ..found })
            }
            other => Err(unexpected(other)),
        });
        found.await
    }

    /// Serves a stream of renewals until its client ends it.
    pub(crate) async fn keep_alive(
        &self,
        charge: &Charge,
        body: &mut Incoming,
        sender: &mut Sender,
        caller: &Caller,
    ) -> Result<(), Status> {
        self.check_single()?;
        let mut messages =
            ClientMessages::new(body, self.bounds().of(Handler::LeaseKeepAlive.method()), charge);
        let mut renewals = FuturesUnordered::new();
        let mut open = true;
        while open || !renewals.is_empty() {
            let mut frames = BytesMut::new();
            let has_room = renewals.len() < OUTSTANDING_MAX;
            let next =
                async { if has_room { messages.next().await } else { messages.meanwhile(pending()).await? } };
            tokio::select! {
                request = next, if open => match request? {
                    Some(LeaseKeepAliveRequest { id }) => {
                        charge.afford(RENEWAL_BYTES)?;
                        // The token must be valid with each renewal, as with etcd.
                        let who = messages.meanwhile(self.user_now(caller)).await??;
                        let renewed = self.renew(id, who)?;
                        renewals.push(async move { (id, renewed.await) });
                    }
                    None => open = false,
                },
                Some(first) = renewals.next(), if !renewals.is_empty() => {
                    let mut next = Some(first);
                    // What was ordered together is answered together: some clients end a connection with many small
                    // frames that they have not read.
                    while let Some((id, renewed)) = next {
                        charge.give_back(RENEWAL_BYTES);
                        // The batch was given up: the server ends.
                        let (revision, ttl) = renewed.unwrap_or_else(|_| Err(call::stopped()))?;
                        let header =
                            self.header(Some(ResponseHeader { revision, ..ResponseHeader::default() }));
                        frames.put(framed(&LeaseKeepAliveResponse { header, id, ttl }));
                        let has_room = frames.len() < ANSWERS_BYTES;
                        next = if has_room { renewals.next().now_or_never().flatten() } else { None };
                    }
                }
            }
            if !frames.is_empty() {
                messages.meanwhile(sender.send(frames.freeze())).await??;
            }
        }
        Ok(())
    }

    /// Renews a lease together with others.
    fn renew(&self, id: i64, who: Who) -> Result<oneshot::Receiver<Renewed>, Status> {
        let (renewed, answer) = oneshot::channel();
        if locked(self.renewals()).add(id, who, renewed)? {
            // A task of its own: the stream of the first renewal may end before the others are answered.
            tokio::spawn(order_renewals(self.replica().clone(), Arc::clone(self.renewals())));
        }
        Ok(answer)
    }
}

fn locked(renewals: &Mutex<Renewals>) -> MutexGuard<'_, Renewals> {
    renewals.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Orders the renewals that come within a short time.
async fn order_renewals<R: Replica>(replica: R, renewals: Arc<Mutex<Renewals>>) {
    sleep(RENEWALS_INTERVAL).await;
    // A command is of one user. Without users all renewals are of the same.
    let mut by_user: BTreeMap<Who, Vec<_>> = BTreeMap::new();
    for (id, who, renewed) in locked(&renewals).take() {
        by_user.entry(who).or_default().push((id, renewed));
    }
    let mut by_user = by_user.into_iter();
    let mut waiting = (None, Vec::new().into_iter());
    loop {
        let batch: Vec<_> = waiting.1.by_ref().take(RENEWALS_MAX).collect();
        if batch.is_empty() {
            let Some((who, next)) = by_user.next() else { return };
            waiting = (who, next.into_iter());
            continue;
        }
        let ids = batch.iter().map(|(id, _)| *id).collect();
        let command =
            KvCommand { command: Some(Command::LeaseRenew(KvLeaseRenew { ids })), ..KvCommand::default() };
        let command = by(&waiting.0, command);
        let reply = replied(replica.execute_upkeep(command.encode_to_vec().into()).await);
        let renewed = reply.and_then(|reply| match reply {
            Reply::LeaseRenew(renewed) if renewed.ttls.len() == batch.len() => Ok(renewed),
            other => Err(unexpected(other)),
        });
        locked(&renewals).ordered -= batch.len();
        answer(batch, renewed);
    }
}

fn answer(batch: Vec<(i64, oneshot::Sender<Renewed>)>, renewed: Result<KvLeasesRenewed, Status>) {
    for (place, (_, waits)) in batch.into_iter().enumerate() {
        let answer = match renewed.as_ref().map(|renewed| (renewed.revision, renewed.ttls[place])) {
            Ok((_, -1)) => Err(refusal(&KvError::PermissionDenied)),
            answer => answer.map_err(Status::clone),
        };
        // An error means that the client has gone.
        let _ = waits.send(answer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renewals_that_are_being_ordered_count_until_they_are_answered() {
        let mut renewals = Renewals::default();
        let add = |renewals: &mut Renewals, count: usize| {
            (0..count).map(|id| renewals.add(id as i64, None, oneshot::channel().0)).collect::<Vec<_>>()
        };
        let added = add(&mut renewals, OUTSTANDING_ALL_MAX - 1);
        assert!(
            added.iter().enumerate().all(|(at, first)| matches!(first, Ok(first) if *first == (at == 0)))
        );
        let batch = renewals.take();
        assert!(matches!(add(&mut renewals, 2)[..], [Ok(true), Err(_)]));
        renewals.ordered -= batch.len();
        assert!(matches!(add(&mut renewals, 1)[..], [Ok(false)]));
    }
}

//! What the services Lock and Election have in common: queues of keys. In a queue each lease has a key, and the key
//! that was created first is at the head; its lease holds the lock, or leads. Each of the others waits until all keys
//! that were created before its own are deleted, of which it watches one: so a key that goes wakes one client.
//!
//! These are the keys and transactions of etcd's client, so that clients that queue up by themselves stand in the same
//! queue. The server keeps nothing but the state of the calls that wait.

use bytes::Bytes;
use prost::Message as _;
use synod_api::{
    etcdserverpb::{
        Compare, DeleteRangeRequest, LeaseGrantRequest, PutRequest, RangeRequest, RangeResponse, RequestOp,
        TxnRequest, TxnResponse, WatchCreateRequest,
        compare::{CompareResult, CompareTarget, TargetUnion},
        range_request::{SortOrder, SortTarget},
        request_op::Request,
        response_op::Response,
    },
    mvccpb::KeyValue,
    synod::v1::{
        KvCommand, kv_answer::Answer as Found, kv_command::Command, kv_query::Query, kv_reply::Reply,
    },
};
use synod_grpc::Charge;
use synod_kv::validate;
use tokio::{runtime::Handle, sync::OwnedSemaphorePermit};
use tonic::Status;

use super::envelope::{Store, unexpected};
use crate::{
    Consistency, Replica,
    auth::{Caller, Who},
    call,
    readers::{Lane, Place},
    watch::{Followed, Follower},
};

/// The time to live of a lease that a client does not bring along, in seconds, as with etcd.
const TTL_SECONDS: i64 = 60;

/// Keys that may be taken out of their queues at the same time because their clients are gone. The others stay until
/// their leases end.
pub(super) const RELEASES_MAX: usize = 4_096;

/// What a call that waits holds beside what each request does, and what its watch is charged for: 4,000 such calls took
/// 69 KB of memory each, and were charged 25. Most of it is the state of their code.
const WAITING_BYTES: u64 = 40 << 10;

/// The keys of a queue: those that begin with its name and a slash.
pub(super) struct Queue {
    prefix: Vec<u8>,
}

impl Queue {
    pub(super) fn new(name: &[u8]) -> Queue {
        Queue { prefix: [name, b"/"].concat() }
    }

    /// The key of a lease.
    fn key(&self, lease: i64) -> Bytes {
        // Go writes a negative number with its sign.
        let sign = if lease < 0 { "-" } else { "" };
        [&self.prefix[..], format!("{sign}{:x}", lease.unsigned_abs()).as_bytes()].concat().into()
    }

    /// All keys of the queue.
    fn all(&self) -> RangeRequest {
        let mut range_end = self.prefix.clone();
        *range_end.last_mut().expect("it has the slash") += 1;
        RangeRequest {
            key: self.prefix.clone().into(),
            range_end: range_end.into(),
            ..RangeRequest::default()
        }
    }

    /// The key at the head.
    pub(super) fn head(&self) -> RangeRequest {
        let (sort_order, sort_target) = (SortOrder::Ascend.into(), SortTarget::Create.into());
        RangeRequest { sort_order, sort_target, limit: 1, ..self.all() }
    }

    /// The last key that was created before this revision.
    fn before(&self, created: i64) -> RangeRequest {
        let (sort_order, sort_target) = (SortOrder::Descend.into(), SortTarget::Create.into());
        // Revisions begin at 1, so this is never the 0 that stands for no bound.
        let max_create_revision = created - 1;
        RangeRequest { sort_order, sort_target, limit: 1, keys_only: true, max_create_revision, ..self.all() }
    }

    /// Watches all keys from a revision on.
    pub(super) fn watch(&self, start_revision: i64) -> WatchCreateRequest {
        let RangeRequest { key, range_end, .. } = self.all();
        WatchCreateRequest { key, range_end, start_revision, ..WatchCreateRequest::default() }
    }
}

/// A key of a lease in a queue.
#[derive(Clone, Debug)]
pub(super) struct Ticket {
    pub(super) key: Bytes,
    /// The revision at which it was created.
    pub(super) created: i64,
}

impl Ticket {
    fn stands(&self) -> Compare {
        created_at(self.key.clone(), self.created)
    }

    /// Changes the value if the key still stands.
    pub(super) fn put(&self, value: Bytes, lease: i64) -> TxnRequest {
        let put = PutRequest { key: self.key.clone(), value, lease, ..PutRequest::default() };
        let success = vec![RequestOp { request: Some(Request::RequestPut(put)) }];
        TxnRequest { compare: vec![self.stands()], success, failure: Vec::new() }
    }

    /// Deletes the key if it still stands.
    pub(super) fn release(&self) -> TxnRequest {
        let delete = DeleteRangeRequest { key: self.key.clone(), ..DeleteRangeRequest::default() };
        let success = vec![RequestOp { request: Some(Request::RequestDeleteRange(delete)) }];
        TxnRequest { compare: vec![self.stands()], success, failure: Vec::new() }
    }
}

/// A key that was just put into its queue, or found there.
pub(super) struct Queued {
    pub(super) ticket: Ticket,
    pub(super) response: TxnResponse,
    /// The value that the key had before; `None` if it is new.
    pub(super) found: Option<Bytes>,
}

/// A key whose client waits. If the client gives its call up, the key is deleted, as with etcd.
#[must_use]
pub(super) struct Waiting<R: Replica> {
    replica: R,
    /// The command that deletes it, unless there are too many of these already.
    release: Option<(Bytes, OwnedSemaphorePermit)>,
}

impl<R: Replica> Waiting<R> {
    /// The client has what it waited for, and the key stays.
    pub(super) fn stays(mut self) {
        self.release = None;
    }

    /// Deletes the key. If that fails, the key goes with its lease.
    async fn release(&mut self) {
        if let Some((release, _place)) = self.release.take() {
            let _ = self.replica.execute(release).await;
        }
    }
}

impl<R: Replica> Drop for Waiting<R> {
    fn drop(&mut self) {
        let Some((release, place)) = self.release.take() else { return };
        let replica = self.replica.clone();
        // Without a runtime, or with one that ends, the server has ended, and the key goes with its lease. The task
        // must not hold a `Waiting`: a runtime that ends drops it at once, and that would begin the next.
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(async move {
                let _place = place;
                let _ = replica.execute(release).await;
            });
        }
    }
}

impl<R: Replica> Store<R> {
    /// The lease of a request, or a new one.
    pub(super) async fn session(&self, who: &Who, lease: i64) -> Result<i64, Status> {
        if lease != 0 {
            return Ok(lease);
        }
        let granted = self.lease_grant(who, LeaseGrantRequest { ttl: TTL_SECONDS, id: 0 }).await;
        Ok(granted.map_err(relayed)?.id)
    }

    /// Puts the key of a lease into a queue, unless it is there. Unlike etcd's, the transaction does not look for the
    /// head: every replica would go through the whole queue, and the queue can only be looked at by one of them
    /// afterwards.
    pub(super) async fn enqueue(
        &self,
        who: &Who,
        queue: &Queue,
        lease: i64,
        value: Bytes,
    ) -> Result<Queued, Status> {
        let key = queue.key(lease);
        let put = PutRequest { key: key.clone(), value, lease, ..PutRequest::default() };
        let get = RangeRequest { key: key.clone(), ..RangeRequest::default() };
        let op = |request| RequestOp { request: Some(request) };
        let txn = TxnRequest {
            compare: vec![created_at(key.clone(), 0)],
            success: vec![op(Request::RequestPut(put))],
            failure: vec![op(Request::RequestRange(get))],
        };
        let mut response = self.transact(who, txn).await?;
        let found = pair(&mut response, 0);
        let revision = response.header.unwrap_or_default().revision;
        let created = found.as_ref().map_or(revision, |found| found.create_revision);
        let found = found.map(|found| found.value);
        Ok(Queued { ticket: Ticket { key, created }, response, found })
    }

    /// Waits until a key is at the head of its queue, and deletes it if that cannot be waited for, or the result is
    /// dropped. Says whether it had to wait.
    pub(super) async fn until_first(
        &self,
        caller: &Caller,
        queue: &Queue,
        ticket: &Ticket,
        lane: &Lane,
        charge: &Charge,
    ) -> Result<(Waiting<R>, bool), Status> {
        let mut waiting = self.waiting(ticket)?;
        let waited = tokio::select! {
            waited = self.until_none_before(caller, queue, ticket.created, lane, charge) => waited,
            () = self.feeds().stopping() => Err(call::stopped()),
        };
        match waited {
            Ok(waited) => Ok((waiting, waited)),
            Err(status) => {
                waiting.release().await;
                Err(status)
            }
        }
    }

    /// Takes a candidate out of its queue whose value could not be told, as etcd does.
    pub(super) async fn withdraw(&self, ticket: &Ticket) {
        if let Ok(mut waiting) = self.waiting(ticket) {
            waiting.release().await;
        }
    }

    fn waiting(&self, ticket: &Ticket) -> Result<Waiting<R>, Status> {
        let release = match self.releases().try_acquire_owned() {
            Ok(place) => Some((self.release_of(ticket)?, place)),
            Err(_) => None,
        };
        Ok(Waiting { replica: self.replica().clone(), release })
    }

    /// The command that deletes a key. It is the server's own: what its client may do can have changed while it waited.
    fn release_of(&self, ticket: &Ticket) -> Result<Bytes, Status> {
        let command = self.checked(&None, Command::Txn(ticket.release()), 0)?;
        let command = KvCommand::decode(command).map_err(|error| Status::internal(error.to_string()))?;
        Ok(KvCommand { of_member: true, ..command }.encode_to_vec().into())
    }

    /// Waits until no key is left that was created before; says whether there was one.
    async fn until_none_before(
        &self,
        caller: &Caller,
        queue: &Queue,
        created: i64,
        lane: &Lane,
        charge: &Charge,
    ) -> Result<bool, Status> {
        let mut waited = false;
        loop {
            let who = &self.user_now(caller).await?;
            // This replica has executed the command that put the key, and no key comes before it any more. So what this
            // replica knows is enough.
            let mut found =
                self.found_as(who, queue.before(created), Consistency::Serializable, lane).await?.0;
            let Some(KeyValue { key, .. }) = found.kvs.pop() else { return Ok(waited) };
            if !waited {
                charge.afford(WAITING_BYTES)?;
            }
            waited = true;
            let start_revision = found.header.unwrap_or_default().revision;
            let watch = WatchCreateRequest { key, start_revision, ..WatchCreateRequest::default() };
            let mut follower = self.follow(&watch, charge)?;
            // What is compacted is looked for again.
            while let Followed::Events { events, .. } = follower.next().await? {
                if events.iter().any(synod_kv::Event::is_deletion) {
                    break;
                }
            }
        }
    }

    /// Reads a range that is not sent on as a whole.
    pub(super) async fn found(
        &self,
        who: &Who,
        request: RangeRequest,
        lane: &Lane,
    ) -> Result<RangeResponse, Status> {
        Ok(self.found_in_place(who, request, lane).await?.0)
    }

    /// Reads a range. A large answer comes with a place, which must be kept until it is sent.
    pub(super) async fn found_in_place(
        &self,
        who: &Who,
        request: RangeRequest,
        lane: &Lane,
    ) -> Result<(RangeResponse, Option<Place>), Status> {
        self.found_as(who, request, Consistency::Linearizable, lane).await
    }

    async fn found_as(
        &self,
        who: &Who,
        request: RangeRequest,
        consistency: Consistency,
        lane: &Lane,
    ) -> Result<(RangeResponse, Option<Place>), Status> {
        let query = validate::range(&request).map(|()| Query::Range(request));
        let found = self.query(who, query, consistency, lane, |answer| match answer {
            Found::Range(found) => Ok(RangeResponse { header: self.header(found.header), ..found }),
            other => Err(unexpected(other)),
        });
        found.await.map_err(relayed)
    }

    pub(super) async fn transact(&self, who: &Who, txn: TxnRequest) -> Result<TxnResponse, Status> {
        let executed = self.execute(who, Command::Txn(txn), |reply| match reply {
            Reply::Txn(done) => Ok(TxnResponse { header: self.header(done.header), ..done }),
            other => Err(unexpected(other)),
        });
        executed.await.map_err(relayed)
    }

    pub(super) fn follow<'a>(
        &self,
        watch: &WatchCreateRequest,
        charge: &'a Charge,
    ) -> Result<Follower<'a>, Status> {
        self.watches()?.follow(watch, charge)
    }
}

fn created_at(key: Bytes, revision: i64) -> Compare {
    Compare {
        result: CompareResult::Equal.into(),
        target: CompareTarget::Create.into(),
        key,
        target_union: Some(TargetUnion::CreateRevision(revision)),
        ..Compare::default()
    }
}

/// The pair that an operation of a transaction found, if it was a read.
fn pair(response: &mut TxnResponse, place: usize) -> Option<KeyValue> {
    match response.responses.get_mut(place)?.response.as_mut()? {
        Response::ResponseRange(found) => found.kvs.pop(),
        _ => None,
    }
}

/// A failure as etcd's services tell it, which are clients of the store themselves: the text stays, and the code is
/// lost.
pub(super) fn relayed(failure: Status) -> Status {
    Status::unknown(failure.message())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_has_the_keys_of_etcds_clients() {
        let queue = Queue::new(b"name");
        assert_eq!(queue.key(0x1234_abcd), "name/1234abcd");
        assert_eq!([queue.key(-5), queue.key(i64::MIN)], ["name/-5", "name/-8000000000000000"]);
        assert_eq!((&queue.all().key[..], &queue.all().range_end[..]), (&b"name/"[..], &b"name0"[..]));
        assert_eq!(queue.before(7).max_create_revision, 6);
    }
}

//! Queues of keys, as locks and elections are made of them. In a queue each lease has a key, and the key that was
//! created first is at the head: its lease holds the lock, or leads. Each of the others waits until the key before its
//! own is deleted; so a key that goes wakes one client.
//!
//! These are the keys of etcd's clients and of the services Lock and Election, so that all of them stand in the same
//! queue. This client queues up by itself instead of calling these services. A server deletes the key of a caller that
//! it has lost, and that may happen after the caller has asked another server again and has been told that it holds the
//! lock.
//!
//! **A request that is sent again does no harm.** Each entry has a lease of its own, and its key is named after the
//! lease. A repeated put finds the key. One that is executed late, when the entry has left the queue, finds no lease
//! and fails.

use std::time::Duration;

use bytes::Bytes;
use synod_api::{
    etcdserverpb::{
        Compare, PutRequest, RangeRequest, RequestOp, TxnRequest, TxnResponse, WatchCreateRequest,
        compare::{CompareResult, CompareTarget, TargetUnion},
        range_request::{SortOrder, SortTarget},
        request_op::Request,
        response_op::Response,
        watch_create_request::FilterType,
    },
    mvccpb::{KeyValue, event::EventType},
};
use tokio::time::{Instant, sleep};
use tonic::Code;

use crate::{Client, Error, Lease, endpoints::Retry};

/// The pause after a failed request of an entry that waits.
const PAUSE: Duration = Duration::from_millis(100);

/// The keys of a queue: those that begin with its name and a slash.
#[derive(Clone, Debug)]
pub(crate) struct Queue {
    prefix: Bytes,
}

/// A key in a queue, and the lease to which it belongs: what a [`Lock`](crate::Lock) or a
/// [`Leadership`](crate::Leadership) rests on.
#[derive(Debug)]
pub struct Held {
    pub(crate) client: Client,
    pub(crate) lease: Lease,
    pub(crate) key: Bytes,
    /// The revision at which the key was created. It tells the entry from all others that ever had this key, and
    /// entries that reach the head later have a higher one.
    pub(crate) created: i64,
    queue: Queue,
}

impl Queue {
    pub(crate) fn new(name: &[u8]) -> Queue {
        Queue { prefix: [name, b"/"].concat().into() }
    }

    /// All keys of the queue.
    pub(crate) fn all(&self) -> RangeRequest {
        let mut range_end = self.prefix.to_vec();
        *range_end.last_mut().expect("it has the slash") += 1;
        RangeRequest { key: self.prefix.clone(), range_end: range_end.into(), ..RangeRequest::default() }
    }

    /// The key at the head.
    pub(crate) fn head(&self) -> RangeRequest {
        let (sort_order, sort_target) = (SortOrder::Ascend.into(), SortTarget::Create.into());
        RangeRequest { sort_order, sort_target, limit: 1, ..self.all() }
    }

    /// The last key that was created before this revision.
    fn before(&self, created: i64) -> RangeRequest {
        let (sort_order, sort_target) = (SortOrder::Descend.into(), SortTarget::Create.into());
        // The first revision is 1, so this is never the 0 that stands for no bound.
        let max_create_revision = created - 1;
        RangeRequest { sort_order, sort_target, limit: 1, keys_only: true, max_create_revision, ..self.all() }
    }

    /// Puts a key of a new lease into the queue. If the call fails or is dropped, the key is deleted in the background,
    /// or goes with its lease.
    pub(crate) async fn enter(&self, client: &Client, value: Bytes, ttl: Duration) -> Result<Held, Error> {
        let lease = client.lease(ttl).await?;
        let key: Bytes = [&self.prefix[..], format!("{:x}", lease.id()).as_bytes()].concat().into();
        let put = PutRequest { key: key.clone(), value, lease: lease.id(), ..PutRequest::default() };
        let get = RangeRequest { key: key.clone(), keys_only: true, ..RangeRequest::default() };
        let txn = TxnRequest {
            compare: vec![created_at(key.clone(), 0)],
            success: vec![op(Request::RequestPut(put))],
            failure: vec![op(Request::RequestRange(get))],
        };
        let mut answer = client.txn_as(Retry::Freely, txn).await.map_err(lease_lost)?;
        let created = match answer.succeeded {
            true => answer.header.map_or(0, |header| header.revision),
            false => found(&mut answer, 0).ok_or(Error::LeaseLost)?.create_revision,
        };
        Ok(Held { client: client.clone(), lease, key, created, queue: self.clone() })
    }
}

impl Held {
    /// The key. It exists as long as it is held.
    #[must_use]
    pub fn key(&self) -> &Bytes {
        &self.key
    }

    /// The fencing token: the revision at which the key was created. A later holder of the lock, or a later leader, has a
    /// higher one.
    #[must_use]
    pub fn revision(&self) -> i64 {
        self.created
    }

    /// A comparison for transactions. It holds as long as the key is there.
    #[must_use]
    pub fn fence(&self) -> Compare {
        created_at(self.key.clone(), self.created)
    }

    /// Whether it is held, by the clock of this machine and the renewals that were answered
    /// ([`Lease::is_alive`](crate::Lease::is_alive)). It does not ask the server, so it does not know of a key that
    /// somebody has deleted.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.lease.is_alive()
    }

    /// Until when it is held if no more renewal is answered.
    #[must_use]
    pub fn held_until(&self) -> Instant {
        self.lease.alive_until()
    }

    /// Waits until it is lost: the lease has ended or could not be renewed in time, or somebody has deleted the key, which
    /// it watches meanwhile. It can be called again, from several tasks too.
    pub async fn lost(&self) {
        let own = KeyValue { key: self.key.clone(), create_revision: self.created, ..KeyValue::default() };
        let deleted = async {
            // If the watch is refused, the lease alone tells.
            if self.until_deleted(&own).await.is_err() {
                std::future::pending().await
            }
        };
        tokio::select! {
            () = self.lease.lost() => {}
            () = deleted => {}
        }
    }

    /// Waits until the entry is at the head, for as long as its lease lives. Servers that fail or do not answer do not
    /// end it.
    pub(crate) async fn until_first(&self) -> Result<(), Error> {
        let first = async {
            loop {
                match self.key_before().await {
                    Ok(None) => return Ok(()),
                    Ok(Some(before)) => self.until_deleted(&before).await?,
                    Err(error @ (Error::Refused { .. } | Error::LeaseLost)) => return Err(error),
                    Err(_) => sleep(PAUSE).await,
                }
            }
        };
        tokio::select! {
            // The lease is looked at first: it can have ended when the answer came.
            biased;
            () = self.lease.lost() => Err(Error::LeaseLost),
            first = first => first,
        }
    }

    /// The key before this one; `None` if this one is at the head.
    pub(crate) async fn key_before(&self) -> Result<Option<KeyValue>, Error> {
        let own = RangeRequest { key: self.key.clone(), keys_only: true, ..RangeRequest::default() };
        // Both are read at one revision: what is at the head then still stands.
        let reads = [self.queue.before(self.created), own].map(|read| op(Request::RequestRange(read)));
        let mut answer =
            self.client.txn(TxnRequest { success: reads.into(), ..TxnRequest::default() }).await?;
        let (before, own) = (found(&mut answer, 0), found(&mut answer, 1));
        if own.is_some_and(|own| own.create_revision == self.created) {
            Ok(before)
        } else {
            Err(Error::LeaseLost)
        }
    }

    /// Waits until a key is deleted which was created when it says.
    async fn until_deleted(&self, key: &KeyValue) -> Result<(), Error> {
        loop {
            let get = RangeRequest { key: key.key.clone(), keys_only: true, ..RangeRequest::default() };
            let mut answer = match self.client.get(get).await {
                Ok(answer) => answer,
                Err(error @ Error::Refused { .. }) => return Err(error),
                Err(_) => {
                    sleep(PAUSE).await;
                    continue;
                }
            };
            if answer.kvs.pop().is_none_or(|now| now.create_revision != key.create_revision) {
                return Ok(());
            }
            let start_revision = answer.header.map_or(0, |header| header.revision) + 1;
            let (key, filters) = (key.key.clone(), vec![FilterType::Noput.into()]);
            let request = WatchCreateRequest { key, filters, start_revision, ..Default::default() };
            let mut watch = self.client.watch(request);
            loop {
                match watch.next().await {
                    Ok(Some(told)) if told.events.iter().any(|event| event.r#type() == EventType::Delete) => {
                        return Ok(());
                    }
                    Ok(Some(_)) => {}
                    // It was compacted away, so the key is looked for.
                    Ok(None) => break,
                    Err(error @ Error::Refused { .. }) => return Err(error),
                    // The watch goes on where it was.
                    Err(_) => sleep(PAUSE).await,
                }
            }
        }
    }
}

/// The error of a request that needed the lease.
pub(crate) fn lease_lost(error: Error) -> Error {
    if error.code() == Some(Code::NotFound) { Error::LeaseLost } else { error }
}

pub(crate) fn op(request: Request) -> RequestOp {
    RequestOp { request: Some(request) }
}

/// The first pair that a read of a transaction found.
pub(crate) fn found(answer: &mut TxnResponse, place: usize) -> Option<KeyValue> {
    match answer.responses.get_mut(place)?.response.as_mut()? {
        Response::ResponseRange(range) if !range.kvs.is_empty() => Some(range.kvs.swap_remove(0)),
        _ => None,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_has_the_keys_of_etcds_clients() {
        let queue = Queue::new(b"name");
        assert_eq!((&queue.all().key[..], &queue.all().range_end[..]), (&b"name/"[..], &b"name0"[..]));
        assert_eq!(queue.before(7).max_create_revision, 6);
        assert_eq!(queue.head().sort_target(), SortTarget::Create);
    }
}

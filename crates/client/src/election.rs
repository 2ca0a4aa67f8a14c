//! Elections.

use std::{
    collections::{BTreeMap, VecDeque},
    ops::Deref,
    time::Duration,
};

use bytes::Bytes;
use synod_api::{
    etcdserverpb::{
        Compare, PutRequest, RangeRequest, TxnRequest, WatchCreateRequest,
        compare::{CompareResult, CompareTarget, TargetUnion},
        request_op::Request,
    },
    mvccpb::{Event, KeyValue, event::EventType},
};
use tokio::sync::Mutex;

use crate::{
    Client, Error, Watch,
    endpoints::Retry,
    queue::{Held, Queue, found, lease_lost, op},
};

impl Client {
    /// The election of a name. Nothing is sent. The names and keys are those of etcd's clients, of `etcdctl elect`, and
    /// of the service Election.
    ///
    /// ```no_run
    /// # async fn example(client: synod_client::Client) -> Result<(), synod_client::Error> {
    /// use std::time::Duration;
    ///
    /// let election = client.election("scheduler");
    /// let leadership = election.campaign("10.0.0.7:80", Duration::from_secs(10)).await?;
    /// tokio::select! {
    ///     () = leadership.lost() => eprintln!("somebody else may lead now"),
    ///     () = schedule() => {}
    /// }
    /// leadership.resign().await?;
    /// # Ok(())
    /// # }
    /// # async fn schedule() {}
    /// ```
    #[must_use]
    pub fn election(&self, name: impl AsRef<[u8]>) -> Election {
        Election { client: self.clone(), queue: Queue::new(name.as_ref()) }
    }
}

/// An election; see [`Client::election`].
#[derive(Clone, Debug)]
pub struct Election {
    client: Client,
    queue: Queue,
}

impl Election {
    /// Waits until this candidate leads, and tells the others `value` then: usually its name or address. Candidates
    /// lead in the order in which they came. The leadership belongs to a lease of this time to live, as a lock does.
    /// What [`Client::lock`] says about time-outs, dropped calls and errors holds here too.
    ///
    /// # Errors
    /// As those of [`Client::lock`].
    ///
    /// # Panics
    /// Outside of a Tokio runtime.
    pub async fn campaign(&self, value: impl Into<Bytes>, ttl: Duration) -> Result<Leadership, Error> {
        let entry = self.queue.enter(&self.client, value.into(), ttl).await?;
        entry.until_first().await?;
        let modified = Mutex::new(entry.created);
        Ok(Leadership { entry, modified })
    }

    /// The leader's key and value; `None` if nobody leads. Linearizable.
    ///
    /// # Errors
    /// As those of [`Client::get`].
    pub async fn leader(&self) -> Result<Option<KeyValue>, Error> {
        Ok(self.client.get(self.queue.head()).await?.kvs.pop())
    }

    /// Follows who leads. Nothing is sent before [`Observation::next`] is first called.
    #[must_use]
    pub fn observe(&self) -> Observation {
        let (client, all) = (self.client.clone(), self.queue.all());
        let (candidates, to_tell) = (Candidates::default(), VecDeque::new());
        Observation { client, all, candidates, to_tell, watch: None }
    }
}

/// A leadership that is held; see [`Election::campaign`]. A leader can have lost it without noticing in time: what
/// must never be done by two leaders at once needs a fence, as described at [`Lock`](crate::Lock).
///
/// When it is dropped, a task resigns in the background. If that fails, or the runtime ends, the next candidate leads
/// when the lease has run out.
#[derive(Debug)]
pub struct Leadership {
    entry: Held,
    /// The revision at which the value was last changed, as far as this candidate knows.
    modified: Mutex<i64>,
}

impl Deref for Leadership {
    type Target = Held;

    fn deref(&self) -> &Held {
        &self.entry
    }
}

impl Leadership {
    /// Tells the others another value. Values are told in the order of the calls: one whose answer was lost may still
    /// be told later, but not after the value of a later call that succeeded.
    ///
    /// # Errors
    /// [`Error::LeaseLost`] if the candidate does not lead any more, else as those of [`Client::txn`].
    pub async fn proclaim(&self, value: impl Into<Bytes>) -> Result<(), Error> {
        let Held { client, key, created, lease, .. } = &self.entry;
        let value = value.into();
        let mut modified = self.modified.lock().await;
        loop {
            // An earlier attempt that is executed late finds another revision.
            let unchanged = Compare {
                result: CompareResult::Equal.into(),
                target: CompareTarget::Mod.into(),
                key: key.clone(),
                target_union: Some(TargetUnion::ModRevision(*modified)),
                ..Compare::default()
            };
            let (key, lease) = (key.clone(), lease.id());
            let get = RangeRequest { key: key.clone(), ..RangeRequest::default() };
            let put = PutRequest { key, value: value.clone(), lease, ..PutRequest::default() };
            let txn = TxnRequest {
                compare: vec![self.fence(), unchanged],
                success: vec![op(Request::RequestPut(put))],
                failure: vec![op(Request::RequestRange(get))],
            };
            let mut answer = client.txn_as(Retry::Freely, txn).await.map_err(lease_lost)?;
            if answer.succeeded {
                *modified = answer.header.map_or(0, |header| header.revision);
                return Ok(());
            }
            let now = found(&mut answer, 0).filter(|now| now.create_revision == *created);
            let now = now.ok_or(Error::LeaseLost)?;
            *modified = now.mod_revision;
            if now.value == value {
                return Ok(());
            }
        }
    }

    /// Gives the leadership up. It is no error if it was lost before.
    ///
    /// # Errors
    /// As those of [`Lock::unlock`](crate::Lock::unlock).
    pub async fn resign(self) -> Result<(), Error> {
        self.entry.lease.revoke().await
    }
}

/// Tells who leads: at first who leads now, then each leader and each value that a leader proclaims, in their order.
/// See [`Election::observe`].
///
/// It goes on at another server when one fails, and leaves nothing out unless what comes next is compacted; then it
/// goes on with who leads now.
#[derive(Debug)]
pub struct Observation {
    client: Client,
    all: RangeRequest,
    candidates: Candidates,
    to_tell: VecDeque<Option<KeyValue>>,
    watch: Option<Watch>,
}

impl Observation {
    /// Waits for the next leader or value; `None` says that nobody leads. A call that is dropped loses nothing.
    ///
    /// # Errors
    /// As those of [`Watch::next`] and [`Client::get`]. It can be called again then.
    pub async fn next(&mut self) -> Result<Option<KeyValue>, Error> {
        loop {
            if let Some(leader) = self.to_tell.pop_front() {
                return Ok(leader);
            }
            let Some(watch) = &mut self.watch else {
                let found = self.client.get(self.all.clone()).await?;
                let start_revision = found.header.map_or(0, |header| header.revision) + 1;
                self.to_tell.extend(self.candidates.replace(found.kvs));
                let RangeRequest { key, range_end, .. } = self.all.clone();
                let request =
                    WatchCreateRequest { key, range_end, start_revision, ..WatchCreateRequest::default() };
                self.watch = Some(self.client.watch(request));
                continue;
            };
            match watch.next().await? {
                Some(told) => self.to_tell.extend(self.candidates.follow(told.events)),
                None => self.watch = None,
            }
        }
    }
}

/// The candidates of an election, by their keys.
#[derive(Debug, Default)]
struct Candidates {
    all: BTreeMap<Bytes, KeyValue>,
    /// The leader that was told last: its key, and the revision of its value. `None`: nothing was told yet.
    told: Option<Option<(Bytes, i64)>>,
}

impl Candidates {
    /// Takes what was read for all that there are, and returns what is to be told.
    fn replace(&mut self, all: Vec<KeyValue>) -> Option<Option<KeyValue>> {
        self.all = all.into_iter().map(|candidate| (candidate.key.clone(), candidate)).collect();
        self.news()
    }

    /// Follows events, and returns what is to be told after each revision.
    fn follow(&mut self, events: Vec<Event>) -> Vec<Option<KeyValue>> {
        let mut to_tell = Vec::new();
        let mut events = events.into_iter().filter_map(|event| Some((event.r#type(), event.kv?))).peekable();
        while let Some((kind, candidate)) = events.next() {
            let revision = candidate.mod_revision;
            match kind {
                EventType::Put => _ = self.all.insert(candidate.key.clone(), candidate),
                EventType::Delete => _ = self.all.remove(&candidate.key),
            }
            if events.peek().is_none_or(|(_, next)| next.mod_revision != revision) {
                to_tell.extend(self.news());
            }
        }
        to_tell
    }

    /// The leader, if that was not told yet.
    fn news(&mut self) -> Option<Option<KeyValue>> {
        let leader = self.all.values().min_by_key(|candidate| candidate.create_revision);
        let told = Some(leader.map(|leader| (leader.key.clone(), leader.mod_revision)));
        if self.told == told {
            return None;
        }
        self.told = told;
        Some(leader.cloned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(key: &'static str, create_revision: i64, mod_revision: i64) -> KeyValue {
        KeyValue { key: key.into(), create_revision, mod_revision, ..KeyValue::default() }
    }

    #[test]
    fn each_leader_and_value_is_told_once() {
        let mut candidates = Candidates::default();
        let name = |leader: &Option<KeyValue>| {
            leader.as_ref().map(|leader| (leader.key.to_vec(), leader.mod_revision))
        };
        assert_eq!(candidates.replace(Vec::new()), Some(None));
        let event = |kind: EventType, kv| Event { r#type: kind.into(), kv: Some(kv), ..Event::default() };
        let put = |kv| event(EventType::Put, kv);
        let delete = |key, at| event(EventType::Delete, candidate(key, 0, at));
        // The first candidate leads; another candidate, and its value, change nothing.
        let told = candidates.follow(vec![
            put(candidate("b", 2, 2)),
            put(candidate("a", 3, 3)),
            put(candidate("a", 3, 4)),
            put(candidate("b", 2, 5)),
        ]);
        let leader = |key: &str, at| Some((key.as_bytes().to_vec(), at));
        assert_eq!(told.iter().map(name).collect::<Vec<_>>(), [leader("b", 2), leader("b", 5)]);
        // In one revision the leader goes and the next one too: nobody leads for a moment only if the revisions differ.
        let told = candidates.follow(vec![delete("b", 6), delete("a", 6), put(candidate("c", 7, 7))]);
        assert_eq!(told.iter().map(name).collect::<Vec<_>>(), [None, leader("c", 7)]);
        // What was told is not told again by a second look.
        assert_eq!(candidates.replace(vec![candidate("c", 7, 7)]), None);
    }
}

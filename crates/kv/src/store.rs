//! The store's state, and the changes that commands make to it.

use std::{collections::BTreeSet, fmt, sync::Arc};

use imbl::OrdMap;
use synod_api::{
    etcdserverpb::{
        AlarmType, CompactionRequest, CompactionResponse, DeleteRangeRequest, DeleteRangeResponse,
        ResponseHeader,
    },
    synod::v1::{
        KvCommand, KvHashCheck, KvHashChecked, KvQuery, KvStatus, kv_answer::Answer, kv_command::Command,
        kv_query::Query, kv_reply::Reply,
    },
};

use crate::{
    KvError,
    alarms::cost,
    auth::{Auth, AuthFeed, Caller, Holders},
    budget::{Budget, PAGE_BYTES},
    changes::{Change, ChangeLog},
    feed::{Commit, Event, Feed},
    history::{History, Seen, Version},
    key::Key,
    lease::Leases,
    put::Put,
    range::bounds,
    validate::{self, Limits},
};

/// What a version counts in [`KvStore::size_bytes`] besides key and value: its own record, and its share of
/// the map and of the list of changes. etcd also reckons this much for a put against the quota.
const VERSION_OVERHEAD_BYTES: u64 = 256;

/// How many revisions each command clears away while a compaction is in progress. It must be well above 1, the
/// most that a command adds, or a compaction would never end. Clearing a revision costs about as much as a put.
const PURGE_REVISIONS: i64 = 4;

/// How many changes a command clears away where somebody waits for the room, apart from the rest of a revision: some
/// milliseconds of work.
const PURGE_CHANGES: usize = 1024;

/// An etcd-compatible multi-version key-value store, as a deterministic state machine.
///
/// The revision counts the transactions that changed something, from 1. Every change keeps the version before
/// it, so reads can go back to any revision since the last compaction.
///
/// A compaction takes effect at once, but the commands that follow it clear the superfluous versions away, a few
/// each, in a way that depends on nothing but the commands. So a large compaction does not hold up the service.
#[derive(Debug)]
pub struct KvStore {
    pub(crate) keys: OrdMap<Key, History>,
    /// The revision of the last change.
    pub(crate) revision: i64,
    /// The revision of the last compaction; -1: none yet, as etcd has it.
    pub(crate) compacted: i64,
    /// Every change below this revision has been looked at for superfluous versions. At most `compacted`, if positive.
    pub(crate) purged: i64,
    pub(crate) alarms: BTreeSet<(u64, AlarmType)>,
    /// The changes from `purged` on.
    pub(crate) changes: ChangeLog,
    /// Totals of `keys`: keys not deleted, versions, and bytes with overhead.
    pub(crate) live_keys: u64,
    pub(crate) versions: u64,
    pub(crate) size_bytes: u64,
    pub(crate) leases: Leases,
    /// Users and roles. Views share them.
    pub(crate) auth: Arc<Auth>,
    /// Whose rights to the keys of leases are known. They are no part of the replicated state.
    pub(crate) holders: Holders,
    /// What the replicated clock showed at the last command.
    pub(crate) now_ms: u64,
    /// What was executed. It is no part of the replicated state.
    pub(crate) counted: Counted,
    /// It is told what is committed. It is no part of the replicated state.
    pub(crate) feed: Option<Arc<dyn Feed>>,
    /// It is told of users and tokens. It is no part of the replicated state.
    pub(crate) auth_feed: Option<Arc<dyn AuthFeed>>,
    /// It is told what members say of their hashes. It is no part of the replicated state.
    pub(crate) comparer: Option<Arc<dyn Comparer>>,
}

/// Operations that a store has executed since its program began.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counted {
    pub(crate) puts: u64,
    /// Of a key or a range.
    pub(crate) deletions: u64,
}

/// Compares this store with those of other members. Calls come from the thread that executes commands, in the order of
/// the log, also of what an earlier life has executed, and must return at once.
pub trait Comparer: fmt::Debug + Send + Sync {
    /// A member asks for hashes, or tells its own. The store is at `revision`.
    fn seen(&self, member: u64, check: &KvHashCheck, revision: i64);
}

/// The changes of one command while it executes. They share one revision, which becomes the store's only if
/// there are changes.
#[derive(Debug)]
pub(crate) struct Writes {
    /// The revision that the changes get.
    pub(crate) revision: i64,
    pub(crate) count: u32,
    /// The changes as events, if somebody wants them and they are not too many.
    pub(crate) events: Option<Vec<Event>>,
}

/// Most events that one command makes for a feed. A feed that gets none of a command finds them in a view.
pub(crate) const EVENTS_MAX: usize = 1 << 16;

impl Writes {
    /// Adds the event of the next change, which `make` makes, if it is wanted.
    pub(crate) fn event(&mut self, make: impl FnOnce() -> Event) {
        if self.count as usize >= EVENTS_MAX {
            self.events = None;
        } else if let Some(events) = &mut self.events {
            events.push(make());
        }
    }
}

impl Default for KvStore {
    fn default() -> KvStore {
        KvStore::new()
    }
}

impl KvStore {
    /// An empty store, at revision 1.
    #[must_use]
    pub fn new() -> KvStore {
        KvStore {
            keys: OrdMap::new(),
            revision: 1,
            compacted: -1,
            purged: 0,
            alarms: BTreeSet::new(),
            changes: ChangeLog::default(),
            live_keys: 0,
            versions: 0,
            size_bytes: 0,
            leases: Leases::default(),
            auth: Arc::default(),
            holders: Holders::default(),
            now_ms: 0,
            counted: Counted::default(),
            feed: None,
            comparer: None,
            auth_feed: None,
        }
    }

    /// The same store, which tells `feed` what it commits.
    #[must_use]
    pub fn feeding(self, feed: Arc<dyn Feed>) -> KvStore {
        KvStore { feed: Some(feed), ..self }
    }

    /// The same store, which tells `comparer` what members say of their hashes.
    #[must_use]
    pub fn compared_by(self, comparer: Arc<dyn Comparer>) -> KvStore {
        KvStore { comparer: Some(comparer), ..self }
    }

    /// The revision of the last change; 1 for an empty store.
    #[must_use]
    pub fn revision(&self) -> i64 {
        self.revision
    }

    /// The revision of the last compaction; -1 if there was none.
    #[must_use]
    pub fn compact_revision(&self) -> i64 {
        self.compacted
    }

    /// Bytes of all versions that are kept: keys, values and a fixed overhead a version. This is what counts against
    /// the quota.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Keys that exist at the present revision.
    #[must_use]
    pub fn key_count(&self) -> u64 {
        self.live_keys
    }

    /// Executes a command. It sets `header.revision` of the response; the server sets the header's other fields.
    ///
    /// # Errors
    /// The reason why etcd would refuse the request. Nothing is changed then, except that a write above the
    /// quota raises the alarm. The `Ok` is never [`Reply::Error`].
    pub fn execute(&mut self, command: &KvCommand) -> Result<Reply, KvError> {
        self.execute_for(command, true)
    }

    /// Executes a command. If no client wants the reply, contents of the store are left out of it.
    pub(crate) fn execute_for(&mut self, command: &KvCommand, wanted: bool) -> Result<Reply, KvError> {
        self.show_view();
        self.clear_some();
        validate::command(command, &Limits::NONE)?;
        let Some(request) = &command.command else {
            unreachable!("an empty command does not pass validation");
        };
        let mut budget = Budget::new(self.keys.len(), command.answer_bytes_max, wanted);
        match request {
            // Alarms and users can be managed while replicas are known to differ. No lease ends then, and renewals are
            // answered, as with etcd.
            Command::Alarm(_) | Command::Auth(_) | Command::LeaseRenew(_) => {}
            _ if self.has_alarm(AlarmType::Corrupt) => return Err(KvError::Corrupt),
            _ => {}
        }
        // It comes before the quota: a user who may not write raises no alarm either.
        self.check_command(command, &mut budget)?;
        self.claim_space(cost(request), command.quota_bytes, command.member_id)?;
        match request {
            Command::Put(request) => self.put(&Put::from(request), &mut budget).map(Reply::Put),
            Command::DeleteRange(request) => self.delete_range(request, budget).map(Reply::DeleteRange),
            Command::Txn(request) => self.txn(request, &mut budget).map(Reply::Txn),
            Command::Compact(request) => self.compact(request).map(Reply::Compact),
            Command::LeaseGrant(request) => self.lease_grant(request).map(Reply::LeaseGrant),
            Command::LeaseRevoke(request) => self.lease_revoke(request.id).map(Reply::LeaseRevoke),
            Command::LeaseRenew(request) => {
                self.lease_renew(request, &Caller::from(command), &mut budget).map(Reply::LeaseRenew)
            }
            Command::HashCheck(check) => {
                if let Some(comparer) = &self.comparer {
                    comparer.seen(command.member_id, check, self.revision);
                }
                Ok(Reply::HashCheck(KvHashChecked {}))
            }
            Command::Alarm(request) => self.alarm(request).map(Reply::Alarm),
            Command::Auth(change) => self.change_auth(change).map(Reply::Auth),
        }
    }

    /// Answers a query. It sets `header.revision` of the response.
    ///
    /// # Errors
    /// The reason why etcd would refuse the request, or [`KvError::QueryWrites`]. The `Ok` is never
    /// [`Answer::Error`].
    pub fn query(&self, query: &KvQuery) -> Result<Answer, KvError> {
        let budget = match &query.query {
            Some(Query::Txn(_) | Query::LeaseTimeToLive(_)) => Budget::new(self.keys.len(), 0, true),
            _ => Budget::unbounded(),
        };
        self.query_within(query, budget)
    }

    /// Answers a query if that costs no more than the budget.
    pub(crate) fn query_within(&self, query: &KvQuery, mut budget: Budget) -> Result<Answer, KvError> {
        self.check_query(query, &mut budget)?;
        match &query.query {
            Some(Query::Range(request)) => {
                validate::range(request)?;
                self.range_as_of(request, self.revision, &mut budget).map(Answer::Range)
            }
            Some(Query::Txn(request)) => {
                validate::txn(request, &Limits::NONE)?;
                self.read_txn(request, &mut budget).map(Answer::Txn)
            }
            Some(Query::HashKv(request)) => {
                budget.look_at(usize::try_from(self.versions).unwrap_or(usize::MAX))?;
                budget.go_through(usize::try_from(self.size_bytes).unwrap_or(usize::MAX))?;
                self.hash_kv(request.revision).map(Answer::HashKv)
            }
            Some(Query::Status(_)) => Ok(Answer::Status(self.status())),
            Some(Query::LeaseTimeToLive(request)) => {
                self.lease_time_to_live(request, &mut budget).map(Answer::LeaseTimeToLive)
            }
            Some(Query::LeaseLeases(_)) => {
                budget.look_at(self.leases.len())?;
                Ok(Answer::LeaseLeases(self.lease_leases()))
            }
            // It comes in pieces only.
            Some(Query::EtcdSnapshot(_)) => Err(KvError::AnswerTooLarge(PAGE_BYTES)),
            Some(Query::Auth(asked)) => self.ask_auth(asked, &Caller::from(query)).map(Answer::Auth),
            None => Err(KvError::Malformed("query")),
        }
    }

    /// Counts and alarms, as the status query returns them.
    #[must_use]
    pub fn status(&self) -> KvStatus {
        KvStatus {
            revision: self.revision,
            compact_revision: self.compacted.max(0),
            size_bytes: self.size_bytes,
            keys: self.live_keys,
            versions: self.versions,
            alarms: self.list_alarms(AlarmType::None),
            purged_revision: self.purged,
            puts: self.counted.puts,
            deletions: self.counted.deletions,
        }
    }

    fn delete_range(
        &mut self,
        request: &DeleteRangeRequest,
        mut budget: Budget,
    ) -> Result<DeleteRangeResponse, KvError> {
        let mut writes = self.begin();
        let response = self.write_delete_range(&mut writes, request, &mut budget)?;
        self.commit(writes);
        Ok(response)
    }

    pub(crate) fn begin(&self) -> Writes {
        let wanted = self.feed.as_ref().is_some_and(|feed| feed.wants_events());
        Writes { revision: self.revision + 1, count: 0, events: wanted.then(Vec::new) }
    }

    pub(crate) fn commit(&mut self, writes: Writes) {
        self.revision = self.revision_after(&writes);
        let Some(feed) = self.feed.as_ref().filter(|_| writes.count > 0) else { return };
        match writes.events {
            Some(events) => feed.committed(Commit { revision: writes.revision, events }),
            None => feed.missed(),
        }
    }

    /// Gives the feed a view of the store, if it wants one.
    pub(crate) fn show_view(&self) {
        if let Some(feed) = self.feed.as_ref().filter(|feed| feed.wants_view()) {
            feed.view(self.history_view());
        }
    }

    /// The revision that a read in the middle of a transaction sees.
    pub(crate) fn revision_after(&self, writes: &Writes) -> i64 {
        if writes.count > 0 { writes.revision } else { self.revision }
    }

    /// Deletes a range.
    ///
    /// # Errors
    /// The budget is exceeded. Nothing is changed then.
    pub(crate) fn write_delete_range(
        &mut self,
        writes: &mut Writes,
        request: &DeleteRangeRequest,
        budget: &mut Budget,
    ) -> Result<DeleteRangeResponse, KvError> {
        let mut prev_kvs = Vec::new();
        let mut doomed = Vec::new();
        if let Some(range) = bounds(&request.key, &request.range_end) {
            for (key, history) in self.keys.range::<_, [u8]>(range) {
                budget.look()?;
                let Some(version) = history.live() else { continue };
                if request.prev_kv {
                    budget.answer(key, &version.value)?;
                    if budget.wanted() {
                        prev_kvs.push(version.to_key_value(key));
                    }
                }
                doomed.push(key.clone());
            }
        }
        let deleted = doomed.len();
        self.counted.deletions += 1;
        for key in doomed {
            self.write_tombstone(writes, key);
        }
        Ok(DeleteRangeResponse {
            header: header(self.revision_after(writes)),
            deleted: i64::try_from(deleted).unwrap_or(i64::MAX),
            prev_kvs,
        })
    }

    /// Deletes a key that exists.
    pub(crate) fn write_tombstone(&mut self, writes: &mut Writes, key: Key) {
        let Some(history) = self.keys.get_mut(&key) else {
            unreachable!("only keys that exist are deleted");
        };
        let lease = history.latest().lease;
        let tombstone = Version::tombstone(writes.revision, writes.count);
        writes.event(|| Event::new(&key, Seen::from(&tombstone), Some(history)));
        history.push(tombstone);
        self.leases.attach(&key, lease, 0);
        self.live_keys -= 1;
        self.versions += 1;
        self.size_bytes += charge(&key, &[]);
        self.record(writes, key);
    }

    pub(crate) fn record(&mut self, writes: &mut Writes, key: Key) {
        self.changes.push(Change { revision: writes.revision, sub: writes.count, key });
        writes.count += 1;
    }

    fn compact(&mut self, request: &CompactionRequest) -> Result<CompactionResponse, KvError> {
        if request.revision <= self.compacted {
            // A client that waits until everything is cleared away asks again.
            if request.physical && request.revision == self.compacted {
                self.clear_much();
            }
            return Err(KvError::Compacted);
        }
        if request.revision > self.revision {
            return Err(KvError::FutureRevision);
        }
        if let Some(feed) = &self.feed {
            feed.compacting(request.revision, &|| self.history_view());
        }
        self.compacted = request.revision;
        if let Some(feed) = &self.feed {
            feed.compacted(self.compacted);
        }
        if request.physical || !self.alarms.is_empty() {
            self.clear_much();
        }
        Ok(CompactionResponse { header: header(self.revision) })
    }

    /// Clears away some of what the last compaction made superfluous, before a command is executed. While an alarm is
    /// raised, which may mean that the quota is used up, room is needed soon.
    pub(crate) fn clear_some(&mut self) {
        if self.alarms.is_empty() { self.purge(PURGE_REVISIONS) } else { self.clear_much() }
    }

    /// Whether nothing is left that compactions made superfluous.
    pub(crate) fn is_cleared(&self) -> bool {
        self.purged >= self.compacted
    }

    /// The same where somebody waits for the room.
    pub(crate) fn clear_much(&mut self) {
        let rest = self.changes.from(self.purged).nth(PURGE_CHANGES);
        let revisions = rest.map_or(i64::MAX, |change| change.revision - self.purged);
        self.purge(revisions.max(1));
    }

    /// Drops all that the last compaction made superfluous.
    pub(crate) fn clear_all(&mut self) {
        self.purge(i64::MAX);
    }

    /// Goes through the changes of the next `revisions` revisions that the last compaction covers, and drops
    /// the versions that they made superfluous.
    fn purge(&mut self, revisions: i64) {
        if self.is_cleared() {
            return;
        }
        self.purged = self.purged.saturating_add(revisions).min(self.compacted);
        let mut touched = self.changes.take_before(self.purged);
        if self.purged == self.compacted {
            // Changes at the very revision of a compaction stay in the list, because their versions are kept:
            // the next compaction must look at them again.
            let last =
                self.changes.from(self.compacted).take_while(|change| change.revision == self.compacted);
            touched.extend(last.cloned());
        }
        for Change { revision, sub, key } in touched {
            // A change whose version is gone is skipped: an earlier change of its key has dropped it. It must
            // not count, since a store restored from a snapshot does not know of it and must do the same.
            let Some(history) = self.keys.get_mut(&key).filter(|h| h.contains(revision, sub)) else {
                continue;
            };
            let (versions, size_bytes) = (&mut self.versions, &mut self.size_bytes);
            let remains = history.compact(self.compacted, |version| {
                *versions -= 1;
                *size_bytes -= charge(&key, &version.value);
            });
            if !remains {
                self.keys.remove(&key);
            }
        }
    }
}

/// The bytes that a version adds to the size of the store.
pub(crate) fn charge(key: &[u8], value: &[u8]) -> u64 {
    VERSION_OVERHEAD_BYTES + key.len() as u64 + value.len() as u64
}

/// The header of a response. The store knows only its revision.
pub(crate) fn header(revision: i64) -> Option<ResponseHeader> {
    Some(ResponseHeader { revision, ..ResponseHeader::default() })
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use synod_api::etcdserverpb::PutRequest;

    use super::*;
    use crate::testing::{self, Execute, keys, pairs};

    fn revision_of(header: &Option<ResponseHeader>) -> i64 {
        header.unwrap().revision
    }

    #[test]
    fn a_put_counts_revisions_and_versions() {
        let mut store = KvStore::new();
        assert_eq!(store.revision(), 1);
        assert_eq!(revision_of(&store.set("a", "1").header), 2);
        assert_eq!(revision_of(&store.set("b", "1").header), 3);
        // Putting the same value again is a change too.
        assert_eq!(revision_of(&store.set("a", "1").header), 4);
        let a = &store.read_at("a", "", 0).unwrap().kvs[0];
        assert_eq!((a.create_revision, a.mod_revision, a.version, a.lease), (2, 4, 2, 0));
        store.del("a", "");
        store.set("a", "2");
        let a = &store.read_at("a", "", 0).unwrap().kvs[0];
        assert_eq!((a.create_revision, a.mod_revision, a.version), (6, 6, 1));
        assert_eq!(store.key_count(), 2);
    }

    #[test]
    fn a_put_gives_the_previous_pair_if_asked() {
        let mut store = KvStore::new();
        let asking = |value| PutRequest { prev_kv: true, ..testing::put("a", value) };
        assert_eq!(store.set_with(asking("1")).unwrap().prev_kv, None);
        assert_eq!(store.set("a", "2").prev_kv, None);
        let previous = store.set_with(asking("3")).unwrap().prev_kv.unwrap();
        assert_eq!((&previous.key[..], &previous.value[..]), (&b"a"[..], &b"2"[..]));
        assert_eq!((previous.create_revision, previous.mod_revision, previous.version), (2, 3, 2));
        store.del("a", "");
        assert_eq!(store.set_with(asking("4")).unwrap().prev_kv, None);
    }

    #[test]
    fn a_put_can_keep_value_and_lease() {
        let mut store = KvStore::new();
        let keeping = || PutRequest { ignore_value: true, ..testing::put("a", "") };
        assert_eq!(store.set_with(keeping()), Err(KvError::KeyNotFound));
        store.set("a", "kept");
        assert_eq!(revision_of(&store.set_with(keeping()).unwrap().header), 3);
        let a = store.read_at("a", "", 0).unwrap().kvs.remove(0);
        assert_eq!((&a.value[..], a.mod_revision, a.version), (&b"kept"[..], 3, 2));
        store
            .set_with(PutRequest { ignore_lease: true, ..testing::put("a", "new") })
            .expect("the key exists");
        assert_eq!(pairs(&store.read_at("a", "", 0).unwrap()), [("a", "new")]);
        store.del("a", "");
        let without_key = PutRequest { ignore_lease: true, ..testing::put("a", "new") };
        assert_eq!(store.set_with(without_key), Err(KvError::KeyNotFound));
        assert_eq!(
            store.set_with(PutRequest { lease: 7, ..testing::put("b", "") }),
            Err(KvError::LeaseNotFound)
        );
        assert_eq!(store.revision(), 5);
    }

    #[test]
    fn what_is_stored_does_not_hold_on_to_the_command() {
        let batch = Bytes::from(vec![b'x'; 1 << 20]);
        let mut store = KvStore::new();
        for _ in 0..2 {
            store
                .set_with(PutRequest {
                    key: batch.slice(..3),
                    value: batch.slice(3..6),
                    ..PutRequest::default()
                })
                .unwrap();
        }
        assert!(batch.is_unique());
    }

    #[test]
    fn a_deletion_covers_its_range() {
        let mut store = KvStore::new();
        for key in ["a", "b", "c", "d"] {
            store.set(key, "1");
        }
        assert_eq!(store.del("b", "d"), 2);
        assert_eq!(store.revision(), 6);
        assert_eq!(keys(&store.read_at("a", "\0", 0).unwrap()), ["a", "d"]);
        // A deletion that finds no key is not a change.
        assert_eq!(store.del("b", "d"), 0);
        assert_eq!(store.del("b", ""), 0);
        assert_eq!(store.del("d", "a"), 0);
        assert_eq!(store.revision(), 6);
        let prev_kvs =
            store.del_with(DeleteRangeRequest { prev_kv: true, ..testing::delete("\0", "\0") }).prev_kvs;
        assert_eq!(
            prev_kvs.iter().map(|pair| (&pair.key[..], pair.mod_revision)).collect::<Vec<_>>(),
            [(&b"a"[..], 2), (&b"d"[..], 5)]
        );
        assert_eq!((store.revision(), store.key_count()), (7, 0));
        assert_eq!(keys(&store.read_at("a", "\0", 6).unwrap()), ["a", "d"]);
    }

    #[test]
    fn compaction_refuses_older_reads() {
        let mut store = KvStore::new();
        for value in ["1", "2", "3", "4"] {
            store.set("a", value);
        }
        assert_eq!(store.compact_at(6, false), Err(KvError::FutureRevision));
        assert!(store.compact_at(4, false).is_ok());
        assert_eq!(store.compact_at(4, false), Err(KvError::Compacted));
        assert_eq!(store.compact_at(3, false), Err(KvError::Compacted));
        assert_eq!(store.read_at("a", "", 3), Err(KvError::Compacted));
        assert_eq!(pairs(&store.read_at("a", "", 4).unwrap()), [("a", "3")]);
        assert_eq!(pairs(&store.read_at("a", "", 5).unwrap()), [("a", "4")]);
        assert_eq!(store.read_at("a", "", 6), Err(KvError::FutureRevision));
        assert_eq!((store.revision(), store.compact_revision()), (5, 4));
    }

    #[test]
    fn compaction_frees_what_no_client_can_read() {
        let mut store = KvStore::new();
        for round in 0..100 {
            for key in ["a", "b", "c"] {
                store.set(key, &"x".repeat(round));
            }
        }
        store.del("c", "");
        store.set("d", "y");
        let after = store.set("a", "z").header.unwrap().revision;
        assert_eq!(store.status().versions, 303);
        store.compact_at(after, true).unwrap();
        assert_eq!(keys(&store.read_at("a", "\0", 0).unwrap()), ["a", "b", "d"]);
        assert_eq!((store.status().versions, store.keys.len()), (3, 3));
        let expected = charge(b"a", b"z") + charge(b"b", &[b'x'; 99]) + charge(b"d", b"y");
        assert_eq!(store.size_bytes(), expected);
        assert_eq!(store.changes.from(0).count(), 1);
    }

    #[test]
    fn compaction_at_the_very_revision_of_a_change_gives_back_what_it_replaced() {
        let mut store = KvStore::new();
        store.set("a", "1");
        store.set("b", "1");
        store.compact_at(3, true).unwrap();
        store.set("a", "2");
        store.compact_at(4, true).unwrap();
        assert_eq!(store.status().versions, 2);
        // The change at the compacted revision stays until the next compaction, even if it is a deletion.
        store.del("a", "");
        store.compact_at(5, true).unwrap();
        assert_eq!((store.status().versions, store.keys.len()), (2, 2));
        store.set("b", "2");
        store.compact_at(6, true).unwrap();
        assert_eq!((store.status().versions, store.keys.len()), (1, 1));
    }

    #[test]
    fn a_large_compaction_is_spread_over_the_commands_after_it() {
        let mut store = KvStore::new();
        for n in 0..1000 {
            store.set(&format!("{}", n % 10), "x");
        }
        store.compact_at(1001, false).unwrap();
        assert_eq!(store.status().versions, 1000);
        let hash = store.hash_kv(0).unwrap();
        let mut steps = 0;
        while store.status().versions > 10 {
            // A command that changes nothing clears away as much.
            store.del("none", "");
            steps += 1;
            assert_eq!(store.hash_kv(0).unwrap(), hash);
        }
        // The key was changed in each of the revisions 2 to 11.
        assert_eq!(steps, (12 + PURGE_REVISIONS - 1) / PURGE_REVISIONS);
        for _ in 0..1000 / PURGE_REVISIONS + 1 {
            store.del("none", "");
        }
        assert_eq!(store.purged, 1001);
        assert_eq!(store.changes.from(0).count(), 1);
    }

    #[test]
    fn a_physical_compaction_is_done_in_portions_for_those_who_ask_again() {
        let mut store = KvStore::new();
        for n in 0..10_000 {
            store.set(&format!("{}", n % 5000), "x");
        }
        let compact = Command::Compact(CompactionRequest { revision: 10_001, physical: true });
        store.send(compact.clone()).unwrap();
        let mut most = 10_000 - store.status().versions;
        while !store.is_cleared() {
            let before = store.status().versions;
            assert!(matches!(store.send(compact.clone()), Err(KvError::Compacted)));
            most = most.max(before - store.status().versions);
        }
        assert_eq!(store.status().versions, 5000);
        assert!((1000..1100).contains(&most), "{most}");
    }

    #[test]
    fn a_revision_with_very_many_changes_is_cleared_away_as_a_whole() {
        let mut store = KvStore::new();
        for n in 0..2 * PURGE_CHANGES {
            store.set(&format!("{n}"), "x");
        }
        store.del("0", "\0");
        assert_eq!(store.status().keys, 0);
        store.set("0", "y");
        let last = store.revision();
        store.compact_at(last, true).unwrap();
        assert_eq!((store.status().versions, store.status().purged_revision), (1, last));
    }

    #[test]
    fn a_compaction_during_another_takes_over() {
        let mut store = KvStore::new();
        for n in 0..500 {
            store.set(&format!("{n}"), "1");
        }
        for n in 0..500 {
            store.set(&format!("{n}"), "2");
        }
        store.compact_at(800, false).unwrap();
        store.set("x", "");
        store.compact_at(1001, false).unwrap();
        for _ in 0..1000 {
            store.del("none", "");
        }
        assert_eq!(store.status().versions, 501);
        assert_eq!(
            store.size_bytes(),
            store.keys.iter().map(|(key, h)| charge(key, &h.latest().value)).sum::<u64>()
        );
    }
}

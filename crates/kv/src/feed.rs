//! What the store tells those who watch it: each commit with its events, and views of its history.
//!
//! The store itself knows no watchers. It has at most one [`Feed`], which takes what is committed by reference and must
//! not make the store wait. What a feed missed, it finds in a [`View`], which holds the history since the last
//! compaction.

use std::{fmt, mem, sync::Arc};

use bytes::Bytes;
use prost::{Message, encoding::encode_varint};
use synod_api::{
    etcdserverpb::HashKvResponse,
    mvccpb::{self, KeyValue, event::EventType},
};

use crate::{
    KvError, KvStore, changes,
    history::{History, Seen, Version},
    key::{Key, find},
};

/// Fields of messages, with their wire types: the pair of an event, the one before it, and the value of a pair.
const EVENT_KV: u8 = 2 << 3 | 2;
const EVENT_PREV_KV: u8 = 3 << 3 | 2;
const PAIR_VALUE: u8 = 5 << 3 | 2;

/// A receiver of what a store commits. All calls come from the thread that executes commands, in the order in which the
/// store changes, and must return at once.
pub trait Feed: fmt::Debug + Send + Sync {
    /// Whether commits are wanted. While they are not, the store makes no events.
    fn wants_events(&self) -> bool;

    /// Whether a view is wanted. The store is asked before each command and each query.
    fn wants_view(&self) -> bool;

    /// A command has changed something.
    fn committed(&self, commit: Commit);

    /// The store is about to be compacted at this revision. `before` makes a view of what there is until then, which
    /// takes no time, but what the store changes is held twice while the view is.
    fn compacting(&self, revision: i64, before: &dyn Fn() -> View) {
        let _ = (revision, before);
    }

    /// Events below this revision are gone from here on.
    fn compacted(&self, revision: i64);

    /// The view that was wanted. It holds every commit before this call, and none after it.
    fn view(&self, view: View);

    /// Something has changed that is not told: a snapshot has replaced the state, a command has changed more keys than
    /// it makes events for, or nobody wanted events.
    fn missed(&self);

    /// A snapshot has replaced the state, which may have had other contents at the same revisions.
    fn replaced(&self) {
        self.missed();
    }
}

/// A receiver of what there is before each compaction. It must return at once, too.
pub trait Compactions: fmt::Debug + Send + Sync {
    /// See [`Feed::compacting`].
    fn compacting(self: Arc<Self>, revision: i64, before: &dyn Fn() -> View);

    /// The store is replaced by another one, which may have had other contents at these revisions.
    fn replaced(&self);
}

/// The changes of one command.
#[derive(Debug)]
pub struct Commit {
    /// The revision that the changes made: one more than the store's before.
    pub revision: i64,
    /// The changes in order, at least one.
    pub events: Vec<Event>,
}

/// A change of one key. It shares its values with the store.
#[derive(Clone, PartialEq, Eq)]
pub struct Event {
    key: Key,
    version: Version,
    /// What a read at the revision before finds.
    previous: Option<Version>,
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.is_deletion() { "delete" } else { "put" };
        write!(f, "{what} {:?} at {}.{}", self.key, self.version.modified, self.version.sub)
    }
}

impl Event {
    /// The event of a version that comes after, or is part of, this history.
    pub(crate) fn new(key: &Key, version: Seen<'_>, history: Option<&History>) -> Event {
        let before = version.modified - 1;
        let previous = history.and_then(|history| history.at(before)).map(Seen::to_version);
        Event { key: key.clone(), version: version.to_version(), previous }
    }

    /// The key that changed.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// The revision that changed it.
    #[must_use]
    pub fn revision(&self) -> i64 {
        self.version.modified
    }

    /// Whether the key was deleted.
    #[must_use]
    pub fn is_deletion(&self) -> bool {
        Seen::from(&self.version).is_tombstone()
    }

    /// The event as a watch is told it that begins after a compaction at this revision: what the compaction made
    /// unreadable is no previous version, as in etcd.
    #[must_use]
    pub(crate) fn after_compaction(self, compacted: i64) -> Event {
        if self.is_changed_by_compaction(compacted) { Event { previous: None, ..self } } else { self }
    }

    /// Whether [`after_compaction`](Event::after_compaction) makes another event of it.
    pub(crate) fn is_changed_by_compaction(&self, compacted: i64) -> bool {
        self.previous.is_some() && self.revision() <= compacted
    }

    /// About how many bytes it takes as a message, the previous pair included.
    #[must_use]
    pub fn bytes(&self) -> usize {
        const NUMBERS_BYTES: usize = 64;
        let previous = self.previous.as_ref().map_or(0, |previous| previous.value.len() + self.key.len());
        NUMBERS_BYTES + self.key.len() + self.version.value.len() + previous
    }

    /// The event as etcd's clients get it.
    #[must_use]
    pub fn to_message(&self, prev_kv: bool) -> mvccpb::Event {
        let created = self.version.created == self.version.modified;
        let previous = self.previous.as_ref().filter(|_| prev_kv && !created);
        let pair = |version: &Version| Seen::from(version).to_key_value(&self.key);
        let (kind, kv) = if self.is_deletion() {
            let mod_revision = self.version.modified;
            let key = Bytes::copy_from_slice(&self.key);
            (EventType::Delete, KeyValue { key, mod_revision, ..KeyValue::default() })
        } else {
            (EventType::Put, pair(&self.version))
        };
        mvccpb::Event { r#type: kind.into(), kv: Some(kv), prev_kv: previous.map(pair) }
    }

    /// [`Event::to_message`], encoded.
    #[must_use]
    pub fn encoded(&self, prev_kv: bool) -> Bytes {
        self.to_message(prev_kv).encode_to_vec().into()
    }

    /// The same in parts, of which values are those of the store, not copies.
    #[must_use]
    pub fn parts(&self, prev_kv: bool) -> Vec<Bytes> {
        let message = self.to_message(prev_kv);
        let mut parts = Vec::new();
        let mut head = mvccpb::Event { kv: None, prev_kv: None, ..message }.encode_to_vec();
        for (tag, pair) in [(EVENT_KV, message.kv), (EVENT_PREV_KV, message.prev_kv)] {
            let Some(pair) = pair else { continue };
            head.push(tag);
            encode_varint(pair.encoded_len() as u64, &mut head);
            let KeyValue { value, lease, .. } = pair;
            KeyValue { value: Bytes::new(), lease: 0, ..pair }.encode(&mut head).expect("it grows");
            if !value.is_empty() {
                head.push(PAIR_VALUE);
                encode_varint(value.len() as u64, &mut head);
                parts.extend([mem::take(&mut head).into(), value]);
            }
            KeyValue { lease, ..KeyValue::default() }.encode(&mut head).expect("it grows");
        }
        parts.extend(Some(Bytes::from(head)).filter(|rest| !rest.is_empty()));
        parts
    }
}

/// A store as it was at one revision, with its history since the last compaction. It shares everything with the
/// living store until that changes it.
#[derive(Debug)]
pub struct View(KvStore);

impl KvStore {
    /// A view that knows the history.
    pub(crate) fn history_view(&self) -> View {
        View(self.view_with_changes())
    }
}

impl View {
    /// The revision of the store.
    #[must_use]
    pub fn revision(&self) -> i64 {
        self.0.revision
    }

    /// The revision of the last compaction: the first one whose events are known. It is -1 if there was none.
    #[must_use]
    pub fn compact_revision(&self) -> i64 {
        self.0.compacted
    }

    /// [`KvStore::hash_kv`]
    ///
    /// # Errors
    /// As those of [`KvStore::hash_kv`].
    pub fn hash_kv(&self, revision: i64) -> Result<HashKvResponse, KvError> {
        self.0.hash_kv(revision)
    }

    /// All changes at or above this revision, in order. It must not be below the last compaction.
    pub fn changes_from(&self, revision: i64) -> impl Iterator<Item = Change<'_>> {
        self.changes_starting_at((revision, 0))
    }

    /// All changes from this [place](Change::place) on.
    pub(crate) fn changes_starting_at(&self, place: (i64, u32)) -> impl Iterator<Item = Change<'_>> {
        debug_assert!(place.0 >= self.0.compacted, "events before a compaction are gone");
        self.0.changes.starting_at(place).map(|change| Change { store: &self.0, change })
    }
}

/// A change in a view.
#[derive(Clone, Copy, Debug)]
pub struct Change<'a> {
    store: &'a KvStore,
    change: &'a changes::Change,
}

impl Change<'_> {
    /// The key that changed.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        &self.change.key
    }

    /// The revision that changed it.
    #[must_use]
    pub fn revision(&self) -> i64 {
        self.change.revision
    }

    /// Its revision, and its number among the changes of that.
    pub(crate) fn place(&self) -> (i64, u32) {
        (self.change.revision, self.change.sub)
    }

    /// The event, which lives on by itself.
    ///
    /// # Panics
    /// If the change is below the last compaction.
    #[must_use]
    pub fn event(&self) -> Event {
        let changes::Change { revision, sub, ref key } = *self.change;
        let found = find(&self.store.keys, key);
        let made = found.and_then(|(_, history)| Some((history, history.made_by(revision, sub)?)));
        let (history, version) = made.expect("a version is kept until a compaction passes it");
        Event::new(key, version, Some(history)).after_compaction(self.store.compacted)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicI64, Ordering::Relaxed},
    };

    use synod_api::{
        etcdserverpb::{LeaseGrantRequest, PutRequest},
        synod::v1::kv_command::Command,
    };
    use synod_replica::StateMachine;

    use super::*;
    use crate::{
        store::EVENTS_MAX,
        testing::{self, Execute, all, op_delete, op_put, op_txn},
    };

    /// Keeps what it is told.
    #[derive(Debug, Default)]
    struct Told {
        wants_view: AtomicBool,
        commits: Mutex<Vec<Commit>>,
        views: Mutex<Vec<View>>,
        compacted: AtomicI64,
        missed: AtomicBool,
    }

    impl Feed for Told {
        fn wants_events(&self) -> bool {
            true
        }

        fn wants_view(&self) -> bool {
            self.wants_view.swap(false, Relaxed)
        }

        fn committed(&self, commit: Commit) {
            self.commits.lock().unwrap().push(commit);
        }

        fn compacted(&self, revision: i64) {
            self.compacted.store(revision, Relaxed);
        }

        fn view(&self, view: View) {
            self.views.lock().unwrap().push(view);
        }

        fn missed(&self) {
            self.missed.store(true, Relaxed);
        }
    }

    fn fed() -> (KvStore, Arc<Told>) {
        let told = Arc::new(Told::default());
        (KvStore::new().feeding(told.clone()), told)
    }

    fn view(store: &KvStore, told: &Told) -> View {
        told.wants_view.store(true, Relaxed);
        store.show_view();
        told.views.lock().unwrap().pop().expect("it was wanted")
    }

    #[test]
    fn an_event_in_parts_is_the_event_and_copies_no_value() {
        let (mut store, told) = fed();
        live(&mut store, 200);
        let grant = LeaseGrantRequest { id: 7, ttl: 100 };
        store.execute(&testing::command(Command::LeaseGrant(grant))).unwrap();
        for value in ["first", ""] {
            let (key, value) = ("0".into(), value.into());
            let put = PutRequest { key, value, lease: 7, ..PutRequest::default() };
            store.execute(&testing::command(Command::Put(put))).unwrap();
        }
        let view = view(&store, &told);
        let (mut with_lease, mut copied) = (0, 0);
        for event in view.changes_from(1).map(|change| change.event()) {
            for prev_kv in [false, true] {
                let parts = event.parts(prev_kv);
                assert_eq!(parts.concat(), event.encoded(prev_kv), "{event:?}");
                let value = &event.version.value;
                let is_it = |part: &Bytes| part.as_ptr() == value.as_ptr() && part.len() == value.len();
                copied += usize::from(!value.is_empty() && !parts.iter().any(is_it));
            }
            with_lease += usize::from(event.to_message(false).kv.unwrap().lease != 0);
        }
        assert!(with_lease > 0 && copied == 0, "{with_lease} {copied}");
    }

    /// A life with everything that makes a version.
    fn live(store: &mut KvStore, commands: u64) {
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..commands {
            let key = |random: &mut fastrand::Rng| format!("{}", random.u8(0..6));
            match random.u8(0..8) {
                0 => drop(store.del(&key(&mut random), "")),
                1 => drop(store.del("2", "5")),
                2 => {
                    let (a, b) = (key(&mut random), key(&mut random));
                    let twice = vec![
                        op_txn(all(vec![op_put(&a, "x")])),
                        op_txn(all(vec![op_delete(&a, ""), op_delete(&b, "")])),
                    ];
                    let _ = store.transact(all(twice));
                }
                // It is refused after its first change, and undone.
                3 => {
                    let before = store.revision();
                    let wide = vec![op_put("0", "undone"), op_delete("1", "9")];
                    let txn = testing::command(Command::Txn(all(wide)));
                    let narrow = synod_api::synod::v1::KvCommand { answer_bytes_max: 1, ..txn };
                    store.execute(&narrow).unwrap_err();
                    assert_eq!(store.revision(), before);
                }
                _ => drop(store.set(&key(&mut random), &"v".repeat(random.usize(0..20)))),
            }
        }
    }

    #[test]
    fn what_was_told_is_what_a_view_finds() {
        let (mut store, told) = fed();
        live(&mut store, 3_000);
        let commits = told.commits.lock().unwrap();
        let revisions: Vec<i64> = commits.iter().map(|commit| commit.revision).collect();
        assert_eq!(revisions, (2..=store.revision()).collect::<Vec<_>>(), "each revision once, in order");
        let events: Vec<&Event> = commits.iter().flat_map(|commit| &commit.events).collect();
        let view = view(&store, &told);
        assert_eq!((view.revision(), view.compact_revision()), (store.revision(), -1));
        let found: Vec<Event> = view.changes_from(0).map(|change| change.event()).collect();
        assert!(found.iter().eq(events.iter().copied()));
        assert!(found.iter().any(|event| event.previous.is_some() && event.is_deletion()));
        let deepest = found.iter().map(|event| event.version.sub).max();
        assert!(deepest >= Some(2), "{deepest:?}");
    }

    #[test]
    fn a_view_is_of_one_revision_whatever_follows() {
        let (mut store, told) = fed();
        live(&mut store, 2_500);
        let view = view(&store, &told);
        let before: Vec<Event> = view.changes_from(0).map(|change| change.event()).collect();
        live(&mut store, 500);
        store.compact_at(store.revision(), true).unwrap();
        live(&mut store, 500);
        let after: Vec<Event> = view.changes_from(0).map(|change| change.event()).collect();
        assert!(before == after && view.revision() < store.revision());
    }

    /// The events from a compaction on are those that were told, on the store that compacted and on one that was
    /// restored from its snapshot. Of the pairs before, those that no read finds any more are missing.
    #[test]
    fn a_compaction_leaves_the_events_from_its_revision_on() {
        let (mut store, told) = fed();
        live(&mut store, 2_000);
        let compacted = store.revision() / 2;
        for physical in [false, true] {
            store.compact_at(compacted + i64::from(physical), physical).unwrap();
            assert_eq!(told.compacted.load(Relaxed), store.compacted);
            let (mut restored, again) = fed();
            let mut snapshot = Vec::new();
            store.freeze().write_to(&mut snapshot).unwrap();
            restored.restore(&mut &snapshot[..]).unwrap();
            assert!(again.missed.load(Relaxed));
            let commits = told.commits.lock().unwrap();
            let told_from = commits.iter().filter(|commit| commit.revision >= store.compacted);
            let mut expected: Vec<Event> = told_from.flat_map(|commit| commit.events.clone()).collect();
            let unreadable = |event: &&mut Event| event.revision() == store.compacted;
            expected.iter_mut().filter(unreadable).for_each(|event| event.previous = None);
            for (store, told) in [(&store, &told), (&restored, &again)] {
                let view = view(store, told);
                let found: Vec<Event> =
                    view.changes_from(store.compacted).map(|change| change.event()).collect();
                assert!(found == expected, "{found:?}");
            }
        }
    }

    /// The events would take about as much memory as the keys.
    #[test]
    fn a_command_of_very_many_changes_makes_no_events() {
        let (mut store, told) = fed();
        let keys = EVENTS_MAX + 1;
        (0..keys).for_each(|key| drop(store.set(&format!("{key}"), "")));
        assert!(!told.missed.load(Relaxed));
        told.commits.lock().unwrap().clear();
        store.del("\0", "\0");
        assert!(told.missed.load(Relaxed) && told.commits.lock().unwrap().is_empty());
        let found = view(&store, &told).changes_from(store.revision()).count();
        assert_eq!(found, keys);
    }

    #[test]
    fn messages_are_those_of_etcd() {
        let (mut store, told) = fed();
        store.set("k", "1");
        store.set("k", "2");
        store.del("k", "");
        store.set("k", "3");
        let commits = told.commits.lock().unwrap();
        let messages: Vec<_> = commits.iter().map(|commit| commit.events[0].to_message(true)).collect();
        let numbers = |kv: &Option<KeyValue>| {
            kv.as_ref().map(|kv| (kv.create_revision, kv.mod_revision, kv.version, kv.value.clone()))
        };
        let shown: Vec<_> =
            messages.iter().map(|m| (m.r#type, numbers(&m.kv), numbers(&m.prev_kv))).collect();
        assert_eq!(shown[0], (0, Some((2, 2, 1, "1".into())), None));
        assert_eq!(shown[1], (0, Some((2, 3, 2, "2".into())), Some((2, 2, 1, "1".into()))));
        assert_eq!(shown[2], (1, Some((0, 4, 0, "".into())), Some((2, 3, 2, "2".into()))));
        assert_eq!(shown[3], (0, Some((5, 5, 1, "3".into())), None));
        assert_eq!(commits[1].events[0].to_message(false).prev_kv, None);
    }
}

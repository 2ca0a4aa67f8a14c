//! The hub with a store and clients, without threads.

mod large;
mod random;

use std::{
    collections::BTreeMap,
    sync::mpsc::{self, Receiver, Sender},
};

use synod_api::{
    etcdserverpb::{
        CompactionRequest, DeleteRangeRequest, PutRequest, TxnRequest, WatchCreateRequest,
        watch_create_request::FilterType,
    },
    synod::v1::{KvCommand, KvQuery, KvStatusRequest, kv_command::Command, kv_query::Query},
};
use synod_replica::StateMachine as _;

use super::{
    super::outgoing::{ALL_BYTES_MAX, All, ITEMS_MAX, STREAM_BYTES_MAX, STREAM_BYTES_MIN},
    *,
};
use crate::{KvStore, testing};

/// A revision, one of its keys, and the value that this has then.
type Happened = (i64, Vec<u8>, Option<Vec<u8>>);

/// A store, its hub and the clients of that, without threads.
struct World {
    store: KvStore,
    hand: Arc<Hand>,
    hub: Hub,
    messages: Sender<Message>,
    received: Receiver<Message>,
    all: Arc<All>,
    stream_bytes_max: usize,
    streams: Vec<Arc<Outgoing>>,
    /// Every event of the store, so that what watchers are told can be compared with it.
    history: Vec<Happened>,
}

impl World {
    fn new(handed_bytes_max: usize) -> World {
        let (messages, received) = mpsc::channel();
        let hand = Arc::new(Hand::bounded(messages.clone(), handed_bytes_max));
        let store = KvStore::new().feeding(hand.clone());
        let hub = Hub::new(Arc::clone(&hand));
        let (all, streams, history) = Default::default();
        let stream_bytes_max = STREAM_BYTES_MAX;
        World { store, hand, hub, messages, received, all, stream_bytes_max, streams, history }
    }

    fn open(&mut self) -> usize {
        let number = self.streams.len();
        let (all, hub) = (Arc::clone(&self.all), self.messages.clone());
        let out = Arc::new(Outgoing::bounded(number as u64, all, hub, self.stream_bytes_max));
        self.ask(number, Request::Open(Arc::clone(&out)));
        self.streams.push(out);
        number
    }

    fn ask(&self, stream: usize, request: Request) {
        if request.is_answered() {
            self.streams[stream].asks();
        }
        self.messages.send(Message::Request(stream as u64, request)).unwrap();
    }

    fn watch(&self, stream: usize, key: &str, range_end: &str, start_revision: i64) {
        let (key, range_end) = (key.to_owned().into(), range_end.to_owned().into());
        let request = WatchCreateRequest { key, range_end, start_revision, ..Default::default() };
        self.create(stream, &request);
    }

    fn create(&self, stream: usize, request: &WatchCreateRequest) {
        self.ask(stream, Request::Create(Box::new(Create::of(request))));
    }

    fn execute(&mut self, command: Command) {
        let command = KvCommand { command: Some(command), ..KvCommand::default() };
        self.store.execute(&command).unwrap();
    }

    fn put(&mut self, key: &str, value: &str) {
        let (owned, of) = (key.to_owned().into(), value.to_owned().into());
        self.execute(Command::Put(PutRequest { key: owned, value: of, ..Default::default() }));
        self.history.push((self.store.revision(), key.into(), Some(value.into())));
    }

    fn delete(&mut self, key: &str) {
        let before = self.store.revision();
        let owned = key.to_owned().into();
        self.execute(Command::DeleteRange(DeleteRangeRequest { key: owned, ..Default::default() }));
        if self.store.revision() > before {
            self.history.push((self.store.revision(), key.into(), None));
        }
    }

    /// Deletes all keys in one revision.
    fn delete_all(&mut self) {
        let mut values = BTreeMap::new();
        for (_, key, value) in &self.history {
            values.insert(key.clone(), value.is_some());
        }
        let all = DeleteRangeRequest { key: "\0".into(), range_end: "\0".into(), ..Default::default() };
        self.execute(Command::DeleteRange(all));
        let revision = self.store.revision();
        let deleted = values.into_iter().filter(|(_, exists)| *exists);
        self.history.extend(deleted.map(|(key, _)| (revision, key, None)));
    }

    fn compact(&mut self, revision: i64) {
        self.execute(Command::Compact(CompactionRequest { revision, physical: false }));
    }

    /// A snapshot replaces the state, which brings with it what another store did meanwhile.
    fn install(&mut self, puts: usize) {
        let mut snapshot = Vec::new();
        self.store.freeze().write_to(&mut snapshot).unwrap();
        let mut other = World::new(0);
        other.store.restore(&mut &snapshot[..]).unwrap();
        for n in 0..puts {
            other.put(["a", "b", "c/1"][n % 3], "elsewhere");
        }
        self.history.append(&mut other.history);
        let mut snapshot = Vec::new();
        other.store.freeze().write_to(&mut snapshot).unwrap();
        self.store.restore(&mut &snapshot[..]).unwrap();
    }

    /// The hub takes up to this many messages, and does its work.
    fn burst(&mut self, messages: usize) {
        for message in self.received.try_iter().take(messages) {
            self.hub.take(message);
        }
        self.hub.end_burst();
        self.hub.work();
        if self.hub.waits_for_view().is_some() {
            let query = KvQuery { query: Some(Query::Status(KvStatusRequest {})), ..KvQuery::default() };
            let _ = self.store.answer(&prost::Message::encode_to_vec(&query).into());
        }
    }

    fn run(&mut self) {
        for _ in 0..50 {
            self.burst(usize::MAX);
        }
        assert!(!self.hub.has_work() && self.hub.waits_for_view().is_none());
    }

    fn items(&self, stream: usize) -> Vec<Item> {
        let items = std::iter::from_fn(|| self.streams[stream].next()).collect();
        self.streams[stream].sent();
        items
    }

    /// What an item tells, in short.
    fn told(&self, stream: usize) -> Vec<String> {
        self.items(stream).iter().map(text).collect()
    }
}

fn text(item: &Item) -> String {
    match item {
        Item::Created { id, revision, .. } => format!("{id} created at {revision}"),
        Item::Refused { revision, reason, .. } => format!("refused at {revision}: {reason}"),
        Item::Events { id, revision, events, .. } => {
            let events: Vec<_> = events.iter().map(|told| format!("{:?}", told.event())).collect();
            format!("{id} at {revision}: {}", events.join(", "))
        }
        Item::Progress { id, revision } => format!("{id} has progress {revision}"),
        Item::Canceled { id, revision, .. } => format!("{id} canceled at {revision}"),
        Item::Compacted { id, compact_revision, .. } => format!("{id} compacted at {compact_revision}"),
    }
}

#[test]
fn watchers_are_told_what_they_watch_from_their_revision_on() {
    let mut world = World::new(1 << 20);
    world.put("a", "1");
    world.put("b", "1");
    world.put("a", "2");
    let stream = world.open();
    world.watch(stream, "a", "", 0);
    world.watch(stream, "a", "c", 2);
    world.watch(stream, "b", "\0", 7);
    world.run();
    assert_eq!(
        world.told(stream),
        [
            "0 created at 4",
            "1 created at 4",
            "2 created at 4",
            "1 at 4: put \"a\" at 2.0, put \"b\" at 3.0, put \"a\" at 4.0",
        ]
    );
    world.delete("a");
    world.put("b", "2");
    world.put("b", "3");
    world.run();
    let mut told = world.told(stream);
    told.sort();
    assert_eq!(
        told,
        [
            "0 at 7: delete \"a\" at 5.0",
            "1 at 7: delete \"a\" at 5.0, put \"b\" at 6.0, put \"b\" at 7.0",
            "2 at 7: put \"b\" at 7.0",
        ]
    );
    // Without watchers the store makes no events.
    world.ask(stream, Request::Close);
    world.run();
    assert!(!crate::Feed::wants_events(&*world.hand));
    world.put("a", "5");
    assert!(world.received.try_recv().is_err());
}

#[test]
fn ids_are_given_and_refused_as_etcd_does() {
    let mut world = World::new(1 << 20);
    let stream = world.open();
    let create = |world: &World, watch_id, end: &'static str| {
        let key = "k".into();
        let request = WatchCreateRequest { key, range_end: end.into(), watch_id, ..Default::default() };
        world.create(stream, &request);
    };
    for (id, end) in [(1, ""), (0, ""), (0, ""), (1, ""), (0, "a")] {
        create(&world, id, end);
    }
    world.ask(stream, Request::Cancel(1));
    world.ask(stream, Request::Cancel(1));
    create(&world, 1, "");
    world.create(stream, &WatchCreateRequest { start_revision: -1, ..Default::default() });
    world.run();
    assert_eq!(
        world.told(stream),
        [
            "1 created at 1",
            "0 created at 1",
            "2 created at 1",
            "refused at 1: mvcc: duplicate watch ID provided on the WatchStream",
            "refused at 1: mvcc: watcher range is empty",
            "1 canceled at 1",
            "1 created at 1",
            "refused at 1: etcdserver: mvcc: required revision has been compacted",
        ]
    );
}

#[test]
fn a_watch_of_what_is_compacted_ends() {
    let mut world = World::new(1 << 20);
    for _ in 0..5 {
        world.put("k", "v");
    }
    let stream = world.open();
    world.compact(4);
    world.watch(stream, "k", "", 3);
    world.watch(stream, "k", "", 4);
    world.run();
    assert_eq!(
        world.told(stream),
        [
            "0 created at 6",
            "0 compacted at 4",
            "1 created at 6",
            "1 at 6: put \"k\" at 4.0, put \"k\" at 5.0, put \"k\" at 6.0"
        ]
    );
    // The hub follows now, and hears of the next compaction by itself.
    world.put("k", "v");
    world.compact(6);
    world.watch(stream, "k", "", 5);
    world.run();
    assert_eq!(world.told(stream), ["1 at 7: put \"k\" at 7.0", "2 created at 7", "2 compacted at 6"]);
    // Its id is taken until the client cancels it.
    world.ask(stream, Request::Cancel(2));
    world.run();
    assert_eq!(world.told(stream), ["2 canceled at 7"]);
}

/// Whether it is told from the latest commits, which were made before the compaction, or from a view.
#[test]
fn the_version_before_a_compaction_is_no_previous_one() {
    for follows in [false, true] {
        let mut world = World::new(1 << 20);
        if follows {
            let other = world.open();
            world.watch(other, "other", "", 0);
            world.run();
        }
        ["1", "2", "3"].iter().for_each(|value| world.put("k", value));
        let stream = world.open();
        world.compact(3);
        world.watch(stream, "k", "", 3);
        world.run();
        let items = world.items(stream);
        let told = items.iter().flat_map(|item| match item {
            Item::Events { events, .. } => &events[..],
            _ => &[],
        });
        let previous: Vec<_> = told
            .map(|told| {
                (told.revision(), told.event().to_message(true).prev_kv.map(|pair| pair.mod_revision))
            })
            .collect();
        assert_eq!(previous, [(3, None), (4, Some(3))], "follows: {follows}");
    }
}

/// What is charged for a watch is given back, to the byte, however its range is written.
#[test]
fn a_watch_gives_back_what_it_cost() {
    let mut world = World::new(1 << 20);
    (0..4).for_each(|_| world.put("k", "v"));
    world.compact(4);
    let stream = world.open();
    let mut charged = 0;
    let ranges = [("", "\0"), ("k", ""), ("k", "l"), ("l", "k"), ("k", "\0"), ("", "")];
    for (key, range_end) in ranges {
        for start_revision in [0, 2, -1] {
            let (key, range_end) = (key.into(), range_end.into());
            let request = WatchCreateRequest { key, range_end, start_revision, ..Default::default() };
            charged += Create::of(&request).cost();
            world.create(stream, &request);
        }
    }
    world.run();
    let free = |items: Vec<Item>| {
        let of = |item: &Item| match item {
            Item::Refused { free, .. } | Item::Canceled { free, .. } | Item::Compacted { free, .. } => *free,
            _ => 0,
        };
        items.iter().map(of).sum::<u64>()
    };
    charged -= free(world.items(stream));
    let ids: Vec<_> = world.hub.streams[&(stream as u64)].ids.keys().copied().collect();
    assert_eq!((ids.len(), world.hub.counts().0), (10, 5));
    assert!(charged >= 5 * WATCH_BYTES + 5 * ID_BYTES, "a watch that a compaction ended keeps its id");
    ids.into_iter().for_each(|id| world.ask(stream, Request::Cancel(id)));
    world.run();
    assert_eq!(charged, free(world.items(stream)));
}

/// A client that asks faster than the hub answers is not read.
#[test]
fn requests_that_wait_for_the_hub_are_bounded() {
    let mut world = World::new(1 << 20);
    let stream = world.open();
    let mut asked = 0;
    while world.streams[stream].has_few() {
        // This one is answered by nothing, since there is no watch.
        world.ask(stream, Request::Progress(None));
        asked += 1;
    }
    assert_eq!(asked, ITEMS_MAX);
    world.run();
    assert!(world.streams[stream].has_few() && world.items(stream).is_empty());
}

/// What is noted for watchers of a burst of commits is bounded, also where they are told the past.
#[test]
fn many_watchers_of_many_commits_get_them_in_parts() {
    let mut world = World::new(1 << 30);
    let noted_max = 1 << 16;
    world.hub.bounds.noted_max = noted_max;
    let (watchers, commits) = (1 << 10, (noted_max >> 10) + 3);
    for _ in 0..watchers {
        let stream = world.open();
        world.watch(stream, "k", "l", 0);
    }
    world.run();
    (0..commits).for_each(|_| world.put("k", ""));
    for message in world.received.try_iter() {
        world.hub.take(message);
        assert!(world.hub.noted.events < noted_max);
    }
    world.run();
    let parts = |world: &World, stream: usize| {
        let lengths = |item| if let Item::Events { events, .. } = item { Some(events.len()) } else { None };
        world.items(stream).into_iter().filter_map(lengths).collect::<Vec<_>>()
    };
    for stream in 0..watchers {
        assert_eq!(parts(&world, stream), [commits - 3, 3]);
        world.watch(stream, "k", "l", 2);
    }
    world.burst(usize::MAX);
    assert_eq!(world.hub.places(), [("live", 2 * watchers)].into());
    (0..watchers).for_each(|stream| assert_eq!(parts(&world, stream), [commits - 3, 3]));
}

/// Otherwise a client could have any number of events noted, and all others wait, with one deletion.
#[test]
fn a_revision_with_much_for_many_watchers_reaches_some_later() {
    let (noted_max, watchers, keys) = (3_000, 1_000, 500);
    for start in [0, 1] {
        let mut world = World::new(1 << 30);
        world.hub.bounds.noted_max = noted_max;
        (0..keys).for_each(|n| world.put(&format!("k{n:03}"), ""));
        let of = |n| n % 10;
        (0..10).for_each(|_| _ = world.open());
        if start == 0 {
            (0..watchers).for_each(|n| world.watch(of(n), "k", "l", 0));
            world.run();
        }
        let other = world.open();
        world.watch(other, "x", "", 0);
        world.run();
        world.delete_all();
        world.put("x", "");
        if start == 1 {
            // These are told it from a view.
            let deleted = world.store.revision() - 1;
            (0..watchers).for_each(|n| world.watch(of(n), "k", "l", deleted));
        }
        let pending = |world: &World| world.hub.watchers.values().map(|one| one.pending.len()).sum::<usize>();
        for message in world.received.try_iter() {
            world.hub.take(message);
            assert!(pending(&world) <= noted_max + watchers, "{}", pending(&world));
        }
        world.burst(0);
        let to_other = world.told(other).into_iter().filter(|told| told.contains("put"));
        assert_eq!(to_other.count(), 1, "it does not wait for them");
        let mut told = [0; 10];
        let mut bursts = 0;
        while told.iter().sum::<usize>() < watchers {
            for (stream, told) in told.iter_mut().enumerate() {
                for item in world.items(stream) {
                    let Item::Events { events, .. } = item else { continue };
                    assert_eq!(events.len(), keys);
                    *told += 1;
                }
            }
            world.burst(usize::MAX);
            bursts += 1;
            assert!(bursts < 2_000 && pending(&world) <= noted_max + watchers);
        }
        world.run();
        assert_eq!(world.hub.places(), [("live", watchers + 1)].into());
    }
}

/// One that comes later and takes a turn may wait for what no room on its own stream brings.
#[test]
fn a_watcher_that_waits_for_room_has_its_turn_before_those_that_come_later() {
    let mut world = World::new(1 << 30);
    let fill = |world: &mut World, letter: &str| {
        (0..40).for_each(|n| world.put(&format!("{letter}{n:02}"), &"v".repeat(100_000)));
    };
    fill(&mut world, "k");
    fill(&mut world, "m");
    for _ in 0..30 {
        let holder = world.open();
        world.watch(holder, "k", "l", 0);
    }
    world.run();
    (0..30).for_each(|holder| drop(world.items(holder)));
    let delete = |world: &mut World, key: &'static str, range_end: &'static str| {
        let (key, range_end) = (key.into(), range_end.into());
        world.execute(Command::DeleteRange(DeleteRangeRequest { key, range_end, ..Default::default() }));
    };
    delete(&mut world, "k", "l");
    world.run();
    assert_eq!(world.hub.places().get("large"), Some(&14), "large revisions have no place any more");
    let stream = world.open();
    world.watch(stream, "a", "", 0);
    world.watch(stream, "m", "n", 0);
    let puts = |world: &World| {
        let events = |item: Item| if let Item::Events { events, .. } = item { events.len() } else { 0 };
        world.items(stream).into_iter().map(events).sum::<usize>()
    };
    let fill_stream = |world: &mut World| {
        (0..100).for_each(|_| world.put("a", &"v".repeat(10_000)));
        world.run();
        assert_eq!(world.hub.places().get("full"), Some(&1));
    };
    world.run();
    // It has had a turn already.
    fill_stream(&mut world);
    let mut told = 0;
    while told < 100 {
        told += puts(&world);
        world.burst(usize::MAX);
    }
    world.run();
    assert_eq!(world.hub.places().get("full"), None);
    fill_stream(&mut world);
    told = puts(&world);
    delete(&mut world, "m", "n");
    for _ in 0..100 {
        world.burst(usize::MAX);
        told += puts(&world);
    }
    assert_eq!(told, 100);
}

/// Also if its thread panics.
#[test]
fn streams_end_with_the_hub() {
    let mut world = World::new(1 << 20);
    let stream = world.open();
    world.run();
    let next =
        || world.streams[stream].poll_next(&mut std::task::Context::from_waker(std::task::Waker::noop()));
    assert!(next().is_pending());
    drop(world.hub);
    assert!(matches!(next(), std::task::Poll::Ready(None)));
}

#[test]
fn progress_is_told_of_watches_that_know_everything() {
    let mut world = World::new(1 << 20);
    let stream = world.open();
    world.ask(stream, Request::Progress(None));
    world.watch(stream, "k", "", 0);
    world.ask(stream, Request::Progress(None));
    world.run();
    assert_eq!(world.told(stream), ["0 created at 1", "-1 has progress 1"]);
    world.put("x", "");
    world.ask(stream, Request::Progress(Some(0)));
    world.watch(stream, "k", "", 9);
    world.ask(stream, Request::Progress(None));
    world.run();
    assert_eq!(world.told(stream), ["0 has progress 2", "1 created at 2"]);
}

#[test]
fn a_client_that_reads_nothing_costs_a_bound_and_the_others_nothing() {
    let mut world = World::new(64 << 20);
    let (slow, fast) = (world.open(), world.open());
    for stream in [slow, fast] {
        world.watch(stream, "a", "z", 0);
    }
    world.run();
    let value = "v".repeat(10_000);
    let mut seen = 0;
    for _ in 0..1_000 {
        world.put("k", &value);
        world.burst(usize::MAX);
        seen +=
            world.items(fast).iter().map(|item| matches!(item, Item::Events { .. }) as usize).sum::<usize>();
        assert!(world.all.bytes() <= STREAM_BYTES_MAX + ITEM_SLACK);
    }
    assert_eq!(seen, 1_000);
    assert_eq!(world.hub.places(), [("full", 1), ("live", 1)].into());
    let mut revisions = Vec::new();
    for _ in 0..200 {
        for item in world.items(slow) {
            if let Item::Events { events, .. } = item {
                revisions.extend(events.iter().map(|told| told.revision()));
            }
        }
        world.burst(usize::MAX);
    }
    assert_eq!(revisions, (2..=1_001).collect::<Vec<_>>());
    assert_eq!(world.hub.places(), [("live", 2)].into());
}

const ITEM_SLACK: usize = 1 << 10;

/// Otherwise a client could take what there is for all streams, and everybody else got one item at a time.
#[test]
fn streams_that_nobody_reads_leave_something_for_others() {
    let mut world = World::new(1 << 30);
    let unread: Vec<_> = (0..1_000).map(|_| world.open()).collect();
    unread.iter().for_each(|&stream| world.watch(stream, "k", "l", 0));
    let read = world.open();
    (0..500).for_each(|_| world.watch(read, "r", "", 0));
    world.run();
    assert_eq!(world.items(read).len(), 500);
    for _ in 0..400 {
        world.put("k", &"v".repeat(1_000));
        world.burst(usize::MAX);
    }
    let held = |world: &World, stream: usize| world.streams[stream].bytes();
    assert!(world.all.bytes() <= ALL_BYTES_MAX);
    assert!(
        unread.iter().all(|&stream| held(&world, stream) > STREAM_BYTES_MIN - 4_000),
        "each gets something"
    );
    let all: usize = unread.iter().map(|&stream| held(&world, stream)).sum();
    assert!(all <= ALL_BYTES_MAX + unread.len() * STREAM_BYTES_MIN, "{all}");
    // The other stream gets many items each time that it reads.
    world.put("r", "");
    let (mut told, mut reads) = (0, 0);
    while told < 500 {
        world.burst(usize::MAX);
        told += world.items(read).len();
        reads += 1;
    }
    assert!(reads < 10, "{reads}");
}

/// A client could ask for the progress of a great many watches over and over.
#[test]
fn the_progress_of_a_stream_is_known_without_a_look_at_its_watches() {
    let mut world = World::new(1 << 20);
    let stream = world.open();
    let ask = |world: &mut World| {
        world.ask(stream, Request::Progress(None));
        world.run();
        world.told(stream).iter().any(|told| told.contains("-1 has progress"))
    };
    assert!(!ask(&mut world), "there is no watch");
    (0..3).for_each(|_| world.watch(stream, "k", "", 0));
    world.watch(stream, "k", "", 4);
    assert!(!ask(&mut world), "one begins later");
    world.put("x", "");
    world.put("x", "");
    assert!(!ask(&mut world));
    world.put("x", "");
    assert!(ask(&mut world));
    world.watch(stream, "k", "", 9);
    assert!(!ask(&mut world));
    world.ask(stream, Request::Cancel(4));
    assert!(ask(&mut world));
    world.install(2);
    assert!(!ask(&mut world) && ask(&mut world), "it is known again after the view");
    world.compact(3);
    world.watch(stream, "k", "", 2);
    assert!(!ask(&mut world), "one has ended by a compaction");
    world.ask(stream, Request::Cancel(5));
    world.run();
    assert!(ask(&mut world));
}

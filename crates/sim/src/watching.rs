//! Those who watch the stores of replicas: each has the hub that a server has, and clients go from one to another.
//!
//! A watcher begins with the present, the past or the future, and goes on at another replica with the revision after
//! the last one that it was told: when its replica crashes, and when it likes. What it is told is compared with what
//! the log says ([`Journal`]).

use std::sync::{
    Arc,
    mpsc::{self, Receiver, Sender},
};

use bytes::Bytes;
use fastrand::Rng;
use prost::Message as _;
use synod_api::{
    etcdserverpb::{WatchCreateRequest, watch_create_request::FilterType},
    mvccpb::{Event, event::EventType},
    synod::v1::{KvQuery, KvStatusRequest, kv_query::Query},
};
use synod_kv::{
    Feed, KvStore,
    watch::{All, Bounds, Create, Hand, Hub, Item, Message, NO_WATCH, Outgoing, Request, StreamNumber},
};
use synod_replica::StateMachine;

pub(crate) use crate::watches::Remarks;
use crate::{
    check::{Checked, Invariant, Journal, Violation, demand},
    watches::WatchPlan,
};

/// One event in this many has a watcher or a hub do something.
const TURN_RARITY: u32 = 6;
/// One turn in this many has a watcher go away from its replica.
const MOVE_RARITY: u32 = 60;
/// Turns at the end of a run, until all watchers know everything.
const LAST_TURNS_MAX: usize = 20_000;

/// The hub of a replica's life, and the hand-over from its store.
#[derive(Debug)]
pub(crate) struct Service {
    hand: Arc<Hand>,
    hub: Hub,
    messages: Sender<Message>,
    received: Receiver<Message>,
    /// Bytes that wait on all streams.
    all: Arc<All>,
    stream_bytes_max: usize,
    streams: StreamNumber,
    /// How often a snapshot from another replica has replaced the state.
    pub(crate) installed: u64,
}

impl Service {
    /// A hub that nobody watches at yet; none if nobody will.
    pub(crate) fn new(plan: &WatchPlan) -> Option<Service> {
        if plan.watchers == 0 {
            return None;
        }
        let (messages, received) = mpsc::channel();
        let hand = Arc::new(Hand::bounded(messages.clone(), plan.handed_bytes_max));
        let bounds = Bounds {
            recent_bytes_max: plan.recent_bytes_max,
            response_bytes_max: plan.response_bytes_max,
            slice_changes: plan.slice_changes,
            // As small as a slice: a revision of several keys for several watchers is told some of them later.
            noted_max: plan.slice_changes,
            large_bytes_max: plan.large_bytes_max,
            ..Bounds::default()
        };
        let hub = Hub::bounded(Arc::clone(&hand), bounds);
        let (all, streams, stream_bytes_max) = (Arc::default(), 0, plan.stream_bytes_max);
        Some(Service { hand, hub, messages, received, all, stream_bytes_max, streams, installed: 0 })
    }

    /// The store's end.
    pub(crate) fn feed(&self) -> Arc<dyn Feed> {
        self.hand.clone()
    }

    /// The hub takes some of what it was told, or all, and does its work, as the server's thread does. If it waits for
    /// a view, the store is asked something in some of its turns.
    pub(crate) fn turn(&mut self, rng: &mut Rng, store: &KvStore) {
        let most = if rng.bool() { usize::MAX } else { rng.usize(1..8) };
        for message in self.received.try_iter().take(most) {
            self.hub.take(message);
        }
        self.hub.end_burst();
        self.hub.work();
        if self.hub.waits_for_view().is_some() && rng.bool() {
            let query = KvQuery { query: Some(Query::Status(KvStatusRequest {})), ..KvQuery::default() };
            drop(StateMachine::answer(store, &query.encode_to_vec().into()));
        }
    }

    fn open(&mut self) -> (StreamNumber, Arc<Outgoing>) {
        let number = self.streams;
        self.streams += 1;
        let (all, hub) = (Arc::clone(&self.all), self.messages.clone());
        let out = Arc::new(Outgoing::bounded(number, all, hub, self.stream_bytes_max));
        self.ask(number, Request::Open(Arc::clone(&out)));
        (number, out)
    }

    fn ask(&self, stream: StreamNumber, request: Request) {
        self.messages.send(Message::Request(stream, request)).expect("the hub lives as long");
    }
}

/// Everybody who watches, with random numbers apart from those of the world, which goes on as it would without them.
#[derive(Debug)]
pub(crate) struct Watchers {
    all: Vec<Watcher>,
    rng: Rng,
}

/// A replica that runs, as watchers find it.
#[derive(Debug)]
pub(crate) struct Site<'a> {
    /// The replica, by index, and its life.
    pub(crate) place: (usize, u64),
    /// What serves watchers; nothing while the process is stopped.
    pub(crate) service: Option<&'a mut Service>,
    pub(crate) store: &'a KvStore,
}

impl Watchers {
    /// Those whom a plan has, of some of this many keys.
    pub(crate) fn new(plan: &WatchPlan, seed: u64, keys: u8) -> Watchers {
        let mut rng = Rng::with_seed(seed ^ 0x5a_7c_48);
        let all = (0..plan.watchers).map(|_| Watcher::draw(&mut rng, keys)).collect();
        Watchers { all, rng }
    }

    /// After an event of the world: the watcher that has its turn, if one has.
    pub(crate) fn next(&mut self) -> Option<usize> {
        let has_turn = !self.all.is_empty() && self.rng.u32(..TURN_RARITY) == 0;
        has_turn.then(|| self.rng.usize(..self.all.len()))
    }

    /// At the end of a run, after this many turns: a watcher that does not know everything through a revision, and the
    /// replica, by index, that it turns to; nothing if all do.
    ///
    /// # Errors
    /// Nobody tells it.
    pub(crate) fn behind(
        &mut self,
        turn: usize,
        revision: i64,
        replicas: usize,
    ) -> Result<Option<(usize, usize)>, Violation> {
        let behind = (0..self.all.len()).filter(|index| !self.all[*index].is_told_through(revision));
        let behind: Vec<_> = behind.collect();
        if behind.is_empty() {
            return Ok(None);
        }
        // In turn: one may have what another one of the same replica waits for.
        let index = behind[turn % behind.len()];
        demand(turn < LAST_TURNS_MAX, Invariant::WatchTold, || {
            format!("nobody tells what happened through revision {revision}: {}", self.all[index].waits())
        })?;
        Ok(Some((index, self.turns_to(index, replicas))))
    }

    /// The replica, by index, that a watcher turns to, of this many.
    pub(crate) fn turns_to(&mut self, index: usize, replicas: usize) -> usize {
        self.all[index].stream.as_ref().map_or_else(|| self.rng.usize(..replicas), |stream| stream.of)
    }

    /// A watcher leaves its replica.
    pub(crate) fn leaves(&mut self, index: usize) {
        self.all[index].stream = None;
    }

    /// A watcher or the hub of its replica does something. Some go to another replica at times.
    ///
    /// # Errors
    /// A watcher is told something else than it should be.
    pub(crate) fn turn(
        &mut self,
        index: usize,
        site: Option<Site<'_>>,
        moves: bool,
        journal: &Journal,
    ) -> Result<Remarks, Violation> {
        let Watchers { all, rng } = self;
        let watcher = &mut all[index];
        let mut remarks = Remarks::default();
        let place = watcher.stream.as_ref().map(|stream| (stream.of, stream.life));
        let Some(Site { place: at, service, store }) =
            site.filter(|site| place.is_none_or(|place| place == site.place))
        else {
            // That life is over.
            watcher.crashed |= watcher.stream.take().is_some();
            return Ok(remarks);
        };
        if place.is_some() && moves && rng.u32(..MOVE_RARITY) == 0 {
            watcher.stream = None;
            return Ok(remarks);
        }
        let Some(service) = service else { return Ok(remarks) };
        match (&watcher.stream, rng.u8(0..8)) {
            (None, _) => {
                watcher.begin(rng, at, service, store);
                remarks.began = true;
            }
            (Some(_), 0..4) => service.turn(rng, store),
            (Some(stream), 4) => stream.ask(Request::Progress(None)),
            (Some(_), _) => watcher.read(rng.usize(1..4), service.installed, journal, &mut remarks)?,
        }
        Ok(remarks)
    }
}

/// A client that watches some keys.
#[derive(Debug)]
struct Watcher {
    /// What it asks for, but for the revision from which on.
    request: WatchCreateRequest,
    /// The first revision that it is still to be told; 0 while it asks for what comes from now on.
    next: i64,
    stream: Option<Stream>,
    /// The replica at which it watched last has crashed.
    crashed: bool,
}

/// A watcher's stream at a replica.
#[derive(Debug)]
struct Stream {
    /// The replica, by index, and its life.
    of: usize,
    life: u64,
    number: StreamNumber,
    out: Arc<Outgoing>,
    messages: Sender<Message>,
    /// The first revision that it asks for, and the store's when it did.
    start: i64,
    revision: i64,
    /// The store was compacted above the start already.
    is_compacted: bool,
    /// The id of the watch, once it has begun.
    id: Option<i64>,
    /// It was told something.
    is_told: bool,
    /// [`Service::installed`] when it was last told something.
    installed: u64,
}

impl Drop for Stream {
    fn drop(&mut self) {
        // The hub may have ended.
        let _ = self.messages.send(Message::Request(self.number, Request::Close));
    }
}

impl Watcher {
    /// One that watches some of these keys, which has not begun.
    fn draw(rng: &mut Rng, keys: u8) -> Watcher {
        let first = rng.u8(1..=keys);
        let (key, range_end) = match rng.u8(0..4) {
            0 => (vec![0], vec![0]),
            1 => (format!("k{first}").into_bytes(), vec![0]),
            2 => (format!("k{first}").into_bytes(), format!("k{}\0", rng.u8(first..=keys)).into_bytes()),
            _ => (format!("k{first}").into_bytes(), Vec::new()),
        };
        let filters = match rng.u8(0..8) {
            0 => vec![FilterType::Noput.into()],
            1 => vec![FilterType::Nodelete.into()],
            _ => Vec::new(),
        };
        let (key, range_end, prev_kv) = (key.into(), range_end.into(), rng.bool());
        let request =
            WatchCreateRequest { key, range_end, prev_kv, filters, ..WatchCreateRequest::default() };
        Watcher { request, next: 0, stream: None, crashed: false }
    }

    /// It begins to watch at a replica with this store.
    fn begin(&mut self, rng: &mut Rng, (of, life): (usize, u64), service: &mut Service, store: &KvStore) {
        let revision = store.revision();
        if self.next == 0 {
            self.next = match rng.u8(0..4) {
                0 => revision + rng.i64(1..6),
                1 | 2 => rng.i64(1..=revision),
                _ => 0,
            };
        }
        let (number, out) = service.open();
        let start = self.next;
        let is_compacted = start > 0 && start < store.compact_revision();
        let request = WatchCreateRequest { start_revision: start, ..self.request.clone() };
        let (messages, installed) = (service.messages.clone(), service.installed);
        let (id, is_told) = (None, false);
        let stream =
            Stream { of, life, number, out, messages, start, revision, is_compacted, id, is_told, installed };
        stream.ask(Request::Create(Box::new(Create::of(&request))));
        self.stream = Some(stream);
    }

    /// Whether it was told everything through a revision, or asks for what comes later.
    fn is_told_through(&self, revision: i64) -> bool {
        self.next > revision && self.stream.as_ref().is_some_and(|stream| stream.id.is_some())
    }

    /// What it waits for, for people.
    fn waits(&self) -> String {
        let keys = (&self.request.key, &self.request.range_end);
        match &self.stream {
            Some(stream) => {
                let Stream { of, start, id, .. } = stream;
                format!(
                    "a watch of {keys:?} at r{} waits for revision {} from {start}, {id:?}",
                    of + 1,
                    self.next
                )
            }
            None => format!("a watch of {keys:?} from revision {} finds no replica", self.next),
        }
    }

    /// It reads up to this many items of what its replica has for it.
    fn read(&mut self, most: usize, installed: u64, journal: &Journal, remarks: &mut Remarks) -> Checked {
        for _ in 0..most {
            let Some(item) = self.stream.as_ref().and_then(|stream| stream.out.next()) else { break };
            self.stream.iter().for_each(|stream| stream.out.sent());
            self.heard(item, installed, journal, remarks)?;
        }
        Ok(())
    }

    fn heard(&mut self, item: Item, installed: u64, journal: &Journal, remarks: &mut Remarks) -> Checked {
        let Some(stream) = &mut self.stream else { return Ok(()) };
        let who = stream.of + 1;
        match item {
            Item::Created { id, revision, .. } => {
                let is_first = stream.id.replace(id).is_none();
                let knows = revision >= stream.revision && revision <= journal.revision();
                demand(is_first && knows, Invariant::WatchTold, || {
                    let (asked, last) = (stream.revision, journal.revision());
                    format!(
                        "r{who} begins a watch at revision {revision}; it had {asked}, the log has {last}"
                    )
                })?;
                if stream.start == 0 {
                    self.next = revision + 1;
                }
                Ok(())
            }
            Item::Events { id, revision, wants, events } => {
                demand(stream.id == Some(id), Invariant::WatchTold, || {
                    format!("r{who} tells events of watch {id}, which is {:?}", stream.id)
                })?;
                demand(!stream.is_compacted, Invariant::WatchCompacted, || {
                    format!("r{who} tells events from revision {} on, which was compacted", stream.start)
                })?;
                let first = !std::mem::replace(&mut stream.is_told, true);
                remarks.events += events.len() as u64;
                remarks.after_crash |= first && std::mem::take(&mut self.crashed);
                let begins = events.first().map_or(0, |told| told.revision());
                remarks.from_history |= first && begins <= stream.revision;
                remarks.after_snapshot |= std::mem::replace(&mut stream.installed, installed) < installed;
                let told: Vec<Event> =
                    events.iter().map(|told| told.event().to_message(wants.prev_kv)).collect();
                demand(!told.is_empty(), Invariant::WatchTold, || format!("r{who} tells no events"))?;
                self.compare(who, &told, revision, journal)
            }
            Item::Progress { id, revision } => {
                demand(id == NO_WATCH || stream.id == Some(id), Invariant::WatchTold, || {
                    format!("r{who} tells the progress of watch {id}")
                })?;
                if revision < self.next { Ok(()) } else { self.compare(who, &[], revision, journal) }
            }
            Item::Compacted { compact_revision, .. } => {
                let may = self.next > 0 && self.next < compact_revision;
                demand(may && journal.is_compacted_at(compact_revision), Invariant::WatchCompacted, || {
                    format!(
                        "r{who} ends a watch from revision {} as compacted at {compact_revision}",
                        self.next
                    )
                })?;
                remarks.compacted = true;
                // As clients of etcd do, it goes on with what is left.
                (self.next, self.stream) = (compact_revision, None);
                Ok(())
            }
            Item::Refused { .. } | Item::Canceled { .. } => demand(false, Invariant::WatchTold, || {
                format!("r{who} does not watch what it should: {item:?}")
            }),
        }
    }

    /// What it was told through a revision must be what the log says of the revisions that it lacked.
    fn compare(&mut self, who: usize, told: &[Event], revision: i64, journal: &Journal) -> Checked {
        let next = self.next;
        let known = journal.revision();
        demand(next > 0 && revision >= next && revision <= known, Invariant::WatchTold, || {
            let told: Vec<_> = told.iter().map(revision_of).collect();
            format!(
                "r{who} tells revisions {told:?} through {revision} to a watch from {next} on; there are {known}"
            )
        })?;
        let wanted = journal.changes(next..=revision).filter(|event| self.wants(event));
        let wanted: Vec<Event> = wanted.map(|event| self.as_told(event)).collect();
        let same = |(told, wanted): (&Event, &Event)| {
            told == wanted
                // As with etcd, what a compaction made unreadable is no pair before.
                || journal.is_compacted_at(revision_of(wanted))
                    && told.prev_kv.is_none()
                    && (told.r#type, &told.kv) == (wanted.r#type, &wanted.kv)
        };
        let alike = told.len() == wanted.len() && told.iter().zip(&wanted).all(same);
        demand(alike, Invariant::WatchTold, || {
            let at =
                told.iter().zip(&wanted).position(|pair| !same(pair)).unwrap_or(told.len().min(wanted.len()));
            format!(
                "r{who} tells a watch from revision {next} on, through {revision}, {}; event {at} of {} is {}",
                told.get(at).map_or("nothing more".to_owned(), short),
                wanted.len(),
                wanted.get(at).map_or("not to be told".to_owned(), short),
            )
        })?;
        self.next = revision + 1;
        Ok(())
    }

    /// Whether an event is one of its keys, and of a kind that it wants.
    fn wants(&self, event: &Event) -> bool {
        let WatchCreateRequest { key, range_end, .. } = &self.request;
        let is_deletion = event.r#type == i32::from(EventType::Delete);
        let filtered = if is_deletion { FilterType::Nodelete } else { FilterType::Noput };
        let of = event.kv.as_ref().map(|pair| &pair.key).expect("events are of a key");
        let is_in = match &range_end[..] {
            [] => of == key,
            [0] => of >= key,
            end => of >= key && &of[..] < end,
        };
        is_in && !self.request.filters.contains(&filtered.into())
    }

    fn as_told(&self, event: &Event) -> Event {
        let prev_kv = event.prev_kv.clone().filter(|_| self.request.prev_kv);
        Event { prev_kv, ..event.clone() }
    }
}

impl Stream {
    fn ask(&self, request: Request) {
        self.out.asks();
        // The hub may have ended.
        let _ = self.messages.send(Message::Request(self.number, request));
    }
}

fn revision_of(event: &Event) -> i64 {
    event.kv.as_ref().map_or(0, |pair| pair.mod_revision)
}

/// An event, for people.
fn short(event: &Event) -> String {
    let kind = if event.r#type == i32::from(EventType::Delete) { "deletes" } else { "puts" };
    let Some(pair) = &event.kv else { return "an event without a key".to_owned() };
    let before = event.prev_kv.as_ref().map(|pair| pair.mod_revision);
    let key = String::from_utf8_lossy(&pair.key).into_owned();
    let (created, version) = (pair.create_revision, pair.version);
    format!(
        "{} {kind} {key} (created {created}, version {version}, before {before:?}, {} bytes)",
        pair.mod_revision,
        Bytes::len(&pair.value)
    )
}

#[cfg(test)]
mod tests {
    use synod_replica::Context;
    use synod_wire::Slot;

    use super::*;
    use crate::ops::{Op, Other};

    const PLAN: WatchPlan = WatchPlan {
        watchers: 1,
        handed_bytes_max: 1 << 20,
        stream_bytes_max: 1 << 20,
        recent_bytes_max: 0,
        response_bytes_max: 1,
        slice_changes: 1,
        large_bytes_max: 1,
    };

    /// A watcher of all keys, from this revision on, at a store that executes other operations than its log may have.
    fn watch(from: i64, of_store: &[Op], of_log: &[Op]) -> Result<(i64, Remarks), Invariant> {
        let mut service = Service::new(&PLAN).expect("somebody watches");
        let mut store = KvStore::new().feeding(service.feed());
        let (mut sound, mut journal) = (KvStore::new(), Journal::default());
        let context = |slot: usize| {
            let mut context = Context::new(Slot(slot as u64));
            context.reply_wanted = true;
            context
        };
        for (slot, op) in (1..).zip(of_log) {
            let command = op.encode(slot as u64, 0);
            let reply = sound.apply(&command, &context(slot));
            journal.executed(&sound, &command, &reply);
        }
        let (key, range_end) = (Bytes::from_static(&[0]), Bytes::from_static(&[0]));
        let request = WatchCreateRequest { key, range_end, prev_kv: true, ..WatchCreateRequest::default() };
        let watcher = Watcher { request, next: from, stream: None, crashed: false };
        let mut watchers = Watchers { all: vec![watcher], rng: Rng::with_seed(7) };
        let mut all = Remarks::default();
        for (slot, op) in (1..).zip(of_store) {
            store.apply(&op.encode(slot as u64, 0), &context(slot));
            // The first half is the past already.
            for _ in 0..if slot * 2 > of_store.len() { 100 } else { 0 } {
                let site = Site { place: (0, 1), service: Some(&mut service), store: &store };
                let remarks = watchers.turn(0, Some(site), false, &journal);
                let remarks = remarks.map_err(|violation| violation.invariant)?;
                all.events += remarks.events;
                all.from_history |= remarks.from_history;
                all.compacted |= remarks.compacted;
            }
        }
        Ok((watchers.all[0].next, all))
    }

    #[test]
    fn a_watcher_is_told_what_the_log_says_and_nothing_else() {
        let ops = [
            Op::Put { key: 1, value: 1 },
            Op::Swap { key: 1, expected: 2, value: 2, other: Other::Put(2) },
            Op::Delete { first: 1, last: 1 },
            Op::Put { key: 1, value: 4 },
        ];
        let (next, remarks) = watch(1, &ops, &ops).unwrap();
        assert_eq!((next, remarks.events, remarks.from_history), (6, 5, true));
        let but = |at: usize, op: Op| {
            let mut of_log = ops.clone();
            of_log[at] = op;
            watch(1, &ops, &of_log).unwrap_err()
        };
        // Another value, which is also the pair before a later event; another key; one event more, and one less.
        assert_eq!(but(3, Op::Put { key: 1, value: 5 }), Invariant::WatchTold);
        assert_eq!(but(0, Op::Put { key: 1, value: 9 }), Invariant::WatchTold);
        assert_eq!(but(3, Op::Put { key: 2, value: 4 }), Invariant::WatchTold);
        assert_eq!(but(2, Op::Delete { first: 1, last: 2 }), Invariant::WatchTold);
        let alone = Op::Swap { key: 1, expected: 2, value: 2, other: Other::Nothing };
        assert_eq!(but(1, alone), Invariant::WatchTold);
        assert_eq!(watch(1, &ops, &ops[..3]).unwrap_err(), Invariant::WatchTold, "more than there is");
    }

    #[test]
    fn only_a_watch_of_what_is_compacted_ends_as_compacted() {
        let put = |value| Op::Put { key: 1, value };
        let ops = [put(1), put(2), put(3), Op::Compact { revision: 4 }, put(5), put(6), put(7)];
        // It goes on with the first revision that is left.
        let (next, remarks) = watch(2, &ops, &ops).unwrap();
        assert_eq!((next, remarks.events, remarks.compacted), (8, 4, true));
        let (_, remarks) = watch(4, &ops, &ops).unwrap();
        assert_eq!((remarks.events, remarks.compacted), (4, false));
        let never = [put(1), put(2), put(3), Op::Disarm, put(5), put(6), put(7)];
        assert_eq!(watch(2, &ops, &never).unwrap_err(), Invariant::WatchCompacted);
    }
}

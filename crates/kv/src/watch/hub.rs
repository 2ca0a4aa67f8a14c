//! The hub: takes what the store commits and gives each watcher what it watches.
//!
//! A watcher is **live** while it has been told all that the store has committed: the index of live watchers finds
//! those of a commit. A watcher that asks for the past, or whose client does not take its events, is **behind**. It
//! waits until its stream has room, and is then told what it lacks: from the latest commits if these reach back far
//! enough, otherwise from a view of the store. Those that lack about the same read a view together, a slice at a time
//! between two looks at what is new, so that live watchers do not wait for them.
//!
//! For each watcher the hub keeps the first revision that was not sent yet. A watcher changes its place only together
//! with that number, so the hub sends it every revision whole, in order, and once.
//!
//! The hub **follows** the store from a view on, since it is told each commit after it. It begins again with another
//! view when something is lost: a snapshot has replaced the state, or the hub was so slow that the store stopped
//! telling it. What happened meanwhile is in the history that the view has, or is compacted, of which watchers are
//! told.

mod groups;
mod requests;

// Impure: the map has a hasher without a random state.
use std::{
    collections::{BTreeMap, BTreeSet, HashMap, VecDeque},
    hash::{BuildHasherDefault, DefaultHasher},
    iter, mem,
    sync::Arc,
};

use self::groups::{Members, Reading, Slice};
use super::{
    hand::Hand,
    index::{Number, Range, Wanted},
    message::{Create, ID_BYTES, Message, NO_WATCH, Request, StreamNumber, Told, WATCH_BYTES, Wants},
    outgoing::{ALL_BYTES_MAX, Item, Outgoing},
    places::Places,
};
use crate::{Commit, KvBug, KvError, View, planted};

/// Bounds of a hub. Those of servers are the default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Bytes of the latest commits that are kept for watchers that are a little behind.
    pub recent_bytes_max: usize,
    /// Most bytes of events in one response, unless a single revision has more.
    pub response_bytes_max: usize,
    /// After this many changes a slice of a view ends. What it found is told with the next whole revision.
    pub slice_changes: usize,
    /// After this many bytes of events that somebody watches it ends with the next whole revision. It is less than a
    /// stream has room for: so a watcher whose client reads stays with the view.
    pub slice_bytes: usize,
    /// Events that may be noted for watchers, each counted once for each of its watchers, until these get them. If one
    /// revision alone has more for its watchers, some of them get it later.
    pub noted_max: usize,
    /// Bytes of revisions that are larger than a stream has room for, on all streams together, unless the last of them
    /// has more than half of it.
    pub large_bytes_max: usize,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds {
            recent_bytes_max: RECENT_BYTES_MAX,
            response_bytes_max: 256 << 10,
            slice_changes: 1024,
            slice_bytes: 128 << 10,
            noted_max: 1 << 18,
            large_bytes_max: ALL_BYTES_MAX,
        }
    }
}

/// [`Bounds::recent_bytes_max`] of servers.
pub const RECENT_BYTES_MAX: usize = 4 << 20;
/// Groups of watchers that read views at a time. More wait.
const READINGS_MAX: usize = 4;
/// Watchers that are brought up to date from the latest commits at a time. More wait for the next burst.
const NEAR_MAX: usize = 1 << 12;
/// Watchers of a stream that has room that go on at a time: its room may be small.
const ROOM_MAX: usize = 1 << 8;

/// Watchers by their numbers, in an order that is the same in each run.
type Watchers = HashMap<Number, Watcher, BuildHasherDefault<DefaultHasher>>;

#[derive(Debug)]
struct Watcher {
    stream: StreamNumber,
    id: i64,
    range: Range,
    wants: Wants,
    /// The first revision that it asked for; 0 if it asked for what comes.
    start: i64,
    /// The revision of the last compaction when it began, of whose events it is told no previous versions.
    edge: i64,
    /// It has been told everything before this revision. That of a live watcher may lie behind the hub's head.
    next: i64,
    place: Place,
    /// What it is to be told with the next response.
    pending: Vec<Arc<Told>>,
}

impl Watcher {
    /// What its client gets back when it ends.
    fn cost(&self) -> u64 {
        WATCH_BYTES + self.range.bytes()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// It is in the index of live watchers.
    Live,
    /// It waits until its stream has room, with this number among those that do.
    Full(u64),
    /// It waits for a place for a large revision, with this number among those that do.
    Large(u64),
    /// It lacks only what is kept of the latest commits.
    Near,
    /// It waits for a view.
    Waiting,
    /// It is in the reading with this number.
    Reading(u64),
}

/// A stream of a client.
#[derive(Debug)]
struct Stream {
    out: Arc<Outgoing>,
    /// The watchers by their ids. A watch that was ended by a compaction keeps its id until its client cancels it.
    ids: BTreeMap<i64, Option<Number>>,
    next_id: i64,
    /// Watchers that wait for room, in the order in which they came, each with how many had come before.
    full: BTreeMap<u64, Number>,
    came: u64,
    /// How many of its watchers are live.
    live: usize,
    /// Watches that were to begin later when they were asked for: at which revision, and their ids.
    future: BTreeSet<(i64, i64)>,
}

/// What a watcher waits for that cannot be told more.
#[derive(Clone, Copy, Debug)]
enum Lack {
    /// Room on its stream.
    Room,
    /// A place for a large revision, of which this many bytes are known.
    Place(usize),
}

/// Whether the hub knows what the store commits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sight {
    /// Nobody watches, and the hub is told nothing.
    Idle,
    /// The hub waits for a view, from which on it follows.
    Lost,
    /// Each commit after the head is told.
    Following,
}

/// Gives the watchers of all streams what they watch. Its streams end with it.
#[derive(Debug)]
pub struct Hub {
    hand: Arc<Hand>,
    bounds: Bounds,
    sight: Sight,
    /// The last revision that the hub was told.
    head: i64,
    /// The revision of the last compaction.
    compacted: i64,
    streams: BTreeMap<StreamNumber, Stream>,
    watchers: Watchers,
    next_number: Number,
    live: Wanted,
    live_count: usize,
    places: Places,
    recent: Recent,
    /// Watchers that lack only what is kept of the latest commits, and the one that is next.
    near: BTreeSet<Number>,
    next_near: Number,
    /// Streams that have room, and how many of the watchers that wait for it have not had their turn since.
    roomy: BTreeMap<StreamNumber, usize>,
    /// Watchers that wait for a view.
    waiting: BTreeSet<Number>,
    readings: VecDeque<Reading>,
    /// The one that has read a part of a revision. It may hold a great deal of that, so there is only one.
    inside: Option<Reading>,
    /// Whether that one had the last turn.
    is_turn_inside: bool,
    next_reading: u64,
    /// The number of the view that was asked for.
    view: Option<u64>,
    views: u64,
    /// Requests that came before the hub followed, of each stream in their order.
    requests: BTreeMap<StreamNumber, VecDeque<Request>>,
    /// What live watchers are to be told with the next flush.
    noted: Noted,
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.streams.values().for_each(|stream| stream.out.end());
    }
}

/// Which watchers have something pending, and how much that is: events, each counted once for each of its watchers.
#[derive(Debug, Default)]
struct Noted {
    watchers: Vec<Number>,
    events: usize,
}

/// The latest commits.
#[derive(Debug, Default)]
struct Recent {
    commits: VecDeque<(i64, Vec<Arc<Told>>)>,
    bytes: usize,
}

impl Recent {
    fn push(&mut self, revision: i64, events: Vec<Arc<Told>>, bytes_max: usize) {
        self.bytes += bytes_of(&events);
        self.commits.push_back((revision, events));
        // The newest is kept however large it is: those that get it later share its events.
        while self.bytes > bytes_max && self.commits.len() > 1 {
            let Some((_, oldest)) = self.commits.pop_front() else { break };
            self.bytes -= bytes_of(&oldest);
        }
    }

    /// Whether they reach back to this revision.
    fn has(&self, revision: i64) -> bool {
        self.commits.front().is_some_and(|(first, _)| *first <= revision)
    }

    fn from(&self, revision: i64) -> impl Iterator<Item = &(i64, Vec<Arc<Told>>)> {
        let at = self.commits.partition_point(|(of, _)| *of < revision);
        self.commits.range(at..)
    }
}

fn bytes_of(events: &[Arc<Told>]) -> usize {
    events.iter().map(|told| told.bytes).sum()
}

impl Hub {
    /// The hub of the store whose end of the hand-over this is.
    #[must_use]
    pub fn new(hand: Arc<Hand>) -> Hub {
        Hub::bounded(hand, Bounds::default())
    }

    /// The same within other bounds.
    #[must_use]
    pub fn bounded(hand: Arc<Hand>, bounds: Bounds) -> Hub {
        Hub {
            hand,
            bounds,
            sight: Sight::Idle,
            head: 0,
            compacted: -1,
            streams: BTreeMap::new(),
            watchers: Watchers::default(),
            next_number: 0,
            live: Wanted::default(),
            live_count: 0,
            places: Places::new(bounds.large_bytes_max),
            recent: Recent::default(),
            near: BTreeSet::new(),
            next_near: 0,
            roomy: BTreeMap::new(),
            waiting: BTreeSet::new(),
            readings: VecDeque::new(),
            inside: None,
            is_turn_inside: false,
            next_reading: 0,
            view: None,
            views: 0,
            requests: BTreeMap::new(),
            noted: Noted::default(),
        }
    }

    /// The number of the view that was asked for and has not come.
    #[must_use]
    pub fn waits_for_view(&self) -> Option<u64> {
        self.view
    }

    /// Whether there is something to do that waits for no message.
    #[must_use]
    pub fn has_work(&self) -> bool {
        !self.readings.is_empty() || self.inside.is_some() || !self.near.is_empty() || !self.roomy.is_empty()
    }

    /// How many watchers there are, and how many of them are behind.
    #[must_use]
    pub fn counts(&self) -> (usize, usize) {
        (self.watchers.len(), self.watchers.len() - self.live_count)
    }

    /// Takes one message. What it gives to watchers may only leave with [`Hub::end_burst`].
    pub fn take(&mut self, message: Message) {
        match message {
            Message::Committed(commit, bytes) => {
                self.hand.taken(bytes);
                self.committed(commit);
            }
            Message::Compacted(revision) => self.compacted = self.compacted.max(revision),
            Message::View(number, view) => {
                self.flush();
                self.viewed(number, *view);
            }
            Message::Lost => {
                self.flush();
                self.lose_sight();
            }
            Message::Request(stream, request) => {
                self.flush();
                self.request(stream, request);
            }
            Message::Stop => return,
        }
        self.settle();
    }

    /// Ends a burst of messages: all watchers get what was committed, and those that lack little get that.
    pub fn end_burst(&mut self) {
        self.flush();
        if self.roomy.is_empty() && self.near.is_empty() {
            return;
        }
        for (number, turns) in mem::take(&mut self.roomy) {
            self.use_room(number, turns);
        }
        self.catch_up_on_recent();
        self.settle();
    }

    /// Gives all live watchers what was committed.
    fn flush(&mut self) {
        let noted = mem::take(&mut self.noted);
        debug_assert!(self.is_bounded(&noted));
        for number in noted.watchers {
            if let Err(lack) = self.deliver(number, self.head) {
                self.leave_live(number);
                self.wait_for(number, lack);
            }
        }
    }

    fn committed(&mut self, commit: Commit) {
        if self.sight != Sight::Following || commit.revision <= self.head {
            return;
        }
        if commit.revision != self.head + 1 {
            self.flush();
            self.lose_sight();
            return;
        }
        self.head = commit.revision;
        let events: Vec<_> = commit.events.into_iter().map(Told::new).collect();
        let (mut noted, mut later) = (mem::take(&mut self.noted), Vec::new());
        for (place, told) in events.iter().enumerate() {
            if place > 0 {
                for (number, bytes) in self.postponed(&mut noted, commit.revision) {
                    self.leave_live(number);
                    self.put_off(number, commit.revision, bytes, &mut later);
                }
            }
            note(&self.live, &mut self.watchers, told, &mut noted);
        }
        self.noted = noted;
        self.recent.push(commit.revision, events, self.bounds.recent_bytes_max);
        later.into_iter().for_each(|number| self.go_on_with(number));
        if self.noted.events >= self.bounds.noted_max {
            self.flush();
        }
    }

    /// Whether no more is noted than may be: what one watcher gets of one revision has no bound.
    fn is_bounded(&self, noted: &Noted) -> bool {
        let pending = |number| self.watchers.get(number).map_or(0, |watcher| watcher.pending.len());
        let first = noted.watchers.first().map_or(0, pending);
        noted.events.saturating_sub(first) < self.bounds.noted_max + self.watchers.len()
    }

    /// If more is noted than may be, and this revision has another event: the watchers that get the revision later,
    /// with the bytes of it that are known. These are all but a few. What was noted of it for them is forgotten.
    fn postponed(&mut self, noted: &mut Noted, revision: i64) -> Vec<(Number, usize)> {
        let mut postponed = Vec::new();
        while noted.events >= self.bounds.noted_max && noted.watchers.len() > 1 {
            noted.watchers.retain(|number| self.watchers.contains_key(number));
            // Those that have their turn would have to wait for it again.
            noted.watchers.sort_by_key(|number| !self.has_turn(*number));
            for number in noted.watchers.split_off(noted.watchers.len().div_ceil(2)) {
                postponed.extend(self.forget(number, noted, revision).map(|bytes| (number, bytes)));
            }
        }
        postponed
    }

    fn has_turn(&self, number: Number) -> bool {
        let watcher = self.watchers.get(&number);
        watcher.is_some_and(|watcher| self.places.is_kept_for(watcher.stream, number))
    }

    /// Forgets what was noted of a revision for a watcher, if it still exists; returns how many bytes that was.
    fn forget(&mut self, number: Number, noted: &mut Noted, revision: i64) -> Option<usize> {
        let pending = &mut self.watchers.get_mut(&number)?.pending;
        noted.events -= pending.len();
        let forgotten = pending.split_off(pending.partition_point(|told| told.revision() < revision));
        Some(bytes_of(&forgotten))
    }

    /// Gives a watcher what is pending from before this revision, of which it is known to get this many bytes. If
    /// nothing keeps it waiting, it is one of those that get more later.
    fn put_off(&mut self, number: Number, revision: i64, bytes: usize, later: &mut Vec<Number>) {
        match self.deliver(number, revision - 1) {
            Err(lack) => self.wait_for(number, lack),
            Ok(()) if self.is_large(number, bytes) => self.wait_for(number, Lack::Place(bytes)),
            Ok(()) => later.push(number),
        }
    }

    /// Whether this many bytes would have no room on the stream of a watcher.
    fn is_large(&self, number: Number, bytes: usize) -> bool {
        self.streams[&self.watchers[&number].stream].out.is_large(bytes)
    }

    /// From here on nothing is known of what the store commits.
    fn lose_sight(&mut self) {
        if self.sight == Sight::Idle {
            return;
        }
        self.sight = Sight::Lost;
        // A view that is on its way may have been made after the store had stopped telling commits.
        self.view = None;
        self.recent = Recent::default();
        (self.live, self.live_count) = Default::default();
        let head = self.head;
        for (number, watcher) in &mut self.watchers {
            if watcher.place == Place::Live {
                watcher.next = watcher.next.max(head + 1);
                watcher.place = Place::Waiting;
                self.waiting.insert(*number);
            }
        }
        self.streams.values_mut().for_each(|stream| stream.live = 0);
        self.want_view();
    }

    fn want_view(&mut self) {
        if self.view.is_none() {
            self.views += 1;
            self.view = Some(self.views);
            self.hand.want_view(self.views);
        }
    }

    fn viewed(&mut self, number: u64, view: View) {
        if self.view != Some(number) {
            return;
        }
        self.view = None;
        self.compacted = self.compacted.max(view.compact_revision());
        if self.sight == Sight::Lost {
            self.sight = Sight::Following;
            self.head = view.revision();
        }
        debug_assert_eq!(self.head, view.revision(), "a view comes in its place among the commits");
        let (number, mut members) = (self.next_reading, Members::default());
        self.next_reading += 1;
        for own in mem::take(&mut self.waiting) {
            let Some(watcher) = self.watchers.get_mut(&own) else { continue };
            if planted::has(KvBug::WatchOverCompaction) {
                watcher.next = watcher.next.max(self.compacted);
            }
            if watcher.next > self.head {
                self.go_live(own);
            } else if watcher.next < self.compacted {
                self.end_as_compacted(own);
            } else {
                watcher.place = Place::Reading(number);
                members.add(watcher, own);
            }
        }
        if let Some(first) = members.first() {
            let (at, slice, waits) = ((first, 0), Slice::default(), false);
            self.readings.push_back(Reading { number, view, at, members, slice, waits });
        }
        while self.sight == Sight::Following
            && let Some(mut first) = self.requests.first_entry()
        {
            let (stream, request) = (*first.key(), first.get_mut().pop_front());
            if first.get().is_empty() {
                first.remove();
            }
            request.into_iter().for_each(|request| self.request(stream, request));
        }
    }

    /// Sees to it that the hub follows if somebody watches, and that those who wait for a view or for a place get one.
    fn settle(&mut self) {
        while let Some(number) = self.places.next_turn() {
            self.wait(number);
        }
        if let Some(stream) = self.streams.values().next() {
            // All streams share this.
            stream.out.set_wanting(self.places.wanting());
        }
        if self.watchers.is_empty() && self.requests.is_empty() {
            if self.sight != Sight::Idle {
                self.sight = Sight::Idle;
                self.view = None;
                self.recent = Recent::default();
                self.hand.want_nothing();
            }
        } else if self.sight == Sight::Idle {
            self.sight = Sight::Lost;
            self.want_view();
        } else if !self.waiting.is_empty()
            && self.readings.len() + usize::from(self.inside.is_some()) < READINGS_MAX
        {
            self.want_view();
        }
    }

    /// Brings a watcher that has room to where it is told more.
    fn wait(&mut self, number: Number) {
        let watcher = self.watchers.get_mut(&number).expect("it exists");
        if planted::has(KvBug::WatchOverCompaction) {
            watcher.next = watcher.next.max(self.compacted);
        }
        let follows = self.sight == Sight::Following;
        if follows && watcher.next > self.head {
            self.go_live(number);
        } else if watcher.next < self.compacted {
            self.end_as_compacted(number);
        } else if follows && self.recent.has(watcher.next) {
            watcher.place = Place::Near;
            self.near.insert(number);
        } else {
            watcher.place = Place::Waiting;
            self.waiting.insert(number);
        }
    }

    /// [`Hub::wait`] for a watcher that was told everything before a revision that it gets later, also if a compaction
    /// has passed that.
    fn go_on_with(&mut self, number: Number) {
        let watcher = self.watchers.get_mut(&number).expect("it exists");
        if self.recent.has(watcher.next) && self.sight == Sight::Following {
            watcher.place = Place::Near;
            self.near.insert(number);
        } else {
            self.wait(number);
        }
    }

    fn go_live(&mut self, number: Number) {
        let watcher = self.watchers.get_mut(&number).expect("it exists");
        watcher.place = Place::Live;
        self.live.insert(&watcher.range, watcher.wants, number);
        self.live_count += 1;
        self.streams.get_mut(&watcher.stream).expect("a watcher has a stream").live += 1;
        self.places.forgo(watcher.stream, number);
    }

    fn leave_live(&mut self, number: Number) {
        let watcher = &self.watchers[&number];
        self.live.remove(&watcher.range, watcher.wants, number);
        self.live_count -= 1;
        self.streams.get_mut(&watcher.stream).expect("a watcher has a stream").live -= 1;
    }

    fn wait_for(&mut self, number: Number, lack: Lack) {
        let watcher = self.watchers.get_mut(&number).expect("it exists");
        self.places.forgo(watcher.stream, number);
        match lack {
            Lack::Place(bytes) => {
                watcher.place = Place::Large(self.places.wait(watcher.stream, number, bytes));
            }
            Lack::Room => {
                let stream = self.streams.get_mut(&watcher.stream).expect("a watcher has a stream");
                stream.came += 1;
                watcher.place = Place::Full(stream.came);
                stream.full.insert(stream.came, number);
            }
        }
    }

    /// Gives a watcher what is pending: all of it through this revision, or until it lacks something.
    fn deliver(&mut self, number: Number, through: i64) -> Result<(), Lack> {
        let Some(watcher) = self.watchers.get_mut(&number) else { return Ok(()) };
        let stream = &self.streams[&watcher.stream];
        let (mut rest, mut is_told) = (mem::take(&mut watcher.pending), false);
        while !rest.is_empty() {
            let (mut bytes, mut end) = (0, 0);
            let bytes_max = self.bounds.response_bytes_max.min(stream.out.room());
            // Whole revisions, at least one.
            for revision in rest.chunk_by(|one, next| {
                one.revision() == next.revision() && !planted::has(KvBug::WatchSplitsRevisions)
            }) {
                let more = bytes_of(revision);
                if end > 0 && bytes + more > bytes_max {
                    break;
                }
                bytes += more;
                end += revision.len();
            }
            let later = rest.split_off(end);
            if rest.capacity() > 2 * end {
                rest.shrink_to_fit();
            }
            let first = rest[0].revision();
            let revision =
                if later.is_empty() { through } else { rest.last().map_or(through, |last| last.revision()) };
            let item = Item::Events { id: watcher.id, revision, wants: watcher.wants, events: rest };
            let pushed = if !stream.out.is_large(bytes) {
                if stream.out.push_if_room(item, bytes) { Ok(()) } else { Err(Lack::Room) }
            } else if self.places.take(watcher.stream, number, bytes) {
                stream.out.push_large(item, bytes);
                Ok(())
            } else {
                Err(Lack::Place(bytes))
            };
            if let Err(lack) = pushed {
                watcher.next = first;
                return Err(lack);
            }
            rest = later;
            is_told = true;
        }
        watcher.next = watcher.next.max(through + 1);
        if is_told {
            // A revision for which a place was kept is large no more if there is more room by now.
            self.places.forgo(watcher.stream, number);
        }
        Ok(())
    }

    /// Tells the watchers that lack only what is kept of the latest commits all of that.
    fn catch_up_on_recent(&mut self) {
        let mut members = Members::default();
        // In turn: those of a stream whose client reads all the time come back at once.
        for number in in_turn(&self.near, &mut self.next_near, NEAR_MAX) {
            self.near.remove(&number);
            let watcher = self.watchers.get_mut(&number).expect("it exists");
            let has_turn = self.places.is_kept_for(watcher.stream, number);
            if self.streams[&watcher.stream].out.is_full() && !has_turn {
                self.wait_for(number, Lack::Room);
            } else if self.sight == Sight::Following && self.recent.has(watcher.next) {
                members.add(watcher, number);
            } else {
                watcher.place = Place::Waiting;
                self.waiting.insert(number);
            }
        }
        if let Some(first) = members.first() {
            self.follow_recent(first, members);
        }
    }

    /// Tells watchers all of the latest commits from a revision on, and makes them live.
    fn follow_recent(&mut self, from: i64, mut members: Members) {
        let recent = mem::take(&mut self.recent);
        let (mut noted, mut later) = (Noted::default(), Vec::new());
        for (revision, events) in recent.from(from) {
            members.reach(*revision, &self.watchers);
            for (place, told) in events.iter().enumerate() {
                if place > 0 {
                    for (number, bytes) in self.postponed(&mut noted, *revision) {
                        members.remove(&self.watchers[&number], number);
                        self.put_off(number, *revision, bytes, &mut later);
                    }
                }
                note(&members.index, &mut self.watchers, told, &mut noted);
            }
            if noted.events >= self.bounds.noted_max {
                self.deliver_noted(mem::take(&mut noted), *revision, &mut members);
            }
        }
        self.recent = recent;
        later.into_iter().for_each(|number| self.go_on_with(number));
        self.deliver_noted(noted, self.head, &mut members);
        for number in members.numbers {
            let watcher = self.watchers.get_mut(&number).expect("it exists");
            watcher.next = watcher.next.max(self.head + 1);
            self.go_live(number);
        }
    }

    /// Gives watchers that are told the past together what was noted for them, through this revision. Those that lack
    /// something leave the others.
    fn deliver_noted(&mut self, noted: Noted, through: i64, members: &mut Members) {
        debug_assert!(self.is_bounded(&noted));
        for number in noted.watchers {
            if let Err(lack) = self.deliver(number, through) {
                members.remove(&self.watchers[&number], number);
                self.wait_for(number, lack);
            }
        }
    }

    /// Ends a watcher that asks for what a compaction has removed.
    fn end_as_compacted(&mut self, number: Number) {
        let watcher = self.watchers.remove(&number).expect("it exists");
        self.places.forgo(watcher.stream, number);
        let stream = self.streams.get_mut(&watcher.stream).expect("a watcher has a stream");
        stream.future.remove(&(watcher.start, watcher.id));
        stream.ids.insert(watcher.id, None);
        let free = watcher.cost() - ID_BYTES;
        stream.out.push(Item::Compacted { id: watcher.id, compact_revision: self.compacted, free });
    }

    /// Removes a watcher from wherever it is, the ids of its stream excepted.
    fn remove(&mut self, number: Number) {
        let Some(watcher) = self.watchers.remove(&number) else { return };
        self.places.forgo(watcher.stream, number);
        let stream = self.streams.get_mut(&watcher.stream);
        match watcher.place {
            Place::Live => {
                self.live.remove(&watcher.range, watcher.wants, number);
                self.live_count -= 1;
                stream.into_iter().for_each(|stream| stream.live -= 1);
            }
            Place::Near => _ = self.near.remove(&number),
            Place::Waiting => _ = self.waiting.remove(&number),
            Place::Full(came) => stream.into_iter().for_each(|stream| _ = stream.full.remove(&came)),
            Place::Large(came) => self.places.leave(watcher.stream, came),
            Place::Reading(of) => {
                let mut readings = self.readings.iter_mut().chain(&mut self.inside);
                let reading = readings.find(|reading| reading.number == of);
                let reading = reading.expect("a watcher is told when its reading ends");
                reading.members.remove(&watcher, number);
                reading.slice.noted.events -= watcher.pending.len();
            }
        }
    }

    /// Lets some watchers go on for whose stream there is room. Each has one turn: it may find too little room.
    fn use_room(&mut self, number: StreamNumber, turns: usize) {
        let Some(stream) = self.streams.get_mut(&number) else { return };
        if stream.out.is_full() {
            // Then the hub hears of room again.
            return;
        }
        let first = || stream.full.pop_first().map(|(_, watcher)| watcher);
        let some: Vec<_> = iter::from_fn(first).take(turns.min(ROOM_MAX)).collect();
        let left = turns - some.len();
        if left > 0 && !some.is_empty() {
            self.roomy.insert(number, left);
        }
        some.into_iter().for_each(|number| self.wait(number));
    }

    /// How many watchers are in each place, for tests.
    #[cfg(test)]
    fn places(&self) -> std::collections::BTreeMap<&'static str, usize> {
        let mut places = std::collections::BTreeMap::new();
        for watcher in self.watchers.values() {
            let place = match watcher.place {
                Place::Live => "live",
                Place::Full(_) => "full",
                Place::Large(_) => "large",
                Place::Near => "near",
                Place::Waiting => "waiting",
                Place::Reading(_) => "reading",
            };
            *places.entry(place).or_default() += 1;
        }
        places
    }
}

/// This many of these watchers, from the next one on, round and round.
fn in_turn(watchers: &BTreeSet<Number>, next: &mut Number, most: usize) -> Vec<Number> {
    let round = watchers.range(*next..).chain(watchers.range(..*next));
    let some: Vec<_> = round.take(most).copied().collect();
    *next = some.last().map_or(0, |last| last.wrapping_add(1));
    some
}

/// Notes an event for all of these watchers that want it.
fn note(index: &Wanted, watchers: &mut Watchers, told: &Arc<Told>, noted: &mut Noted) {
    let event = told.event();
    let is_deletion = || event.is_deletion();
    index.watchers_of(event.key(), is_deletion, |number| _ = pend(watchers, number, told, noted));
}

/// Notes an event for one watcher; says whether the watcher lacks it.
fn pend(watchers: &mut Watchers, number: Number, told: &Arc<Told>, noted: &mut Noted) -> bool {
    let watcher = watchers.get_mut(&number).expect("watchers in an index exist");
    if told.revision() < watcher.next && !planted::has(KvBug::WatchRepeats) {
        return false;
    }
    if watcher.pending.is_empty() {
        noted.watchers.push(number);
    }
    // Shared, with its encodings, where the watcher is told all of it.
    watcher.pending.push(if told.event().is_changed_by_compaction(watcher.edge) {
        Told::new(told.event().clone().after_compaction(watcher.edge))
    } else {
        Arc::clone(told)
    });
    noted.events += 1;
    true
}

#[cfg(test)]
mod tests;

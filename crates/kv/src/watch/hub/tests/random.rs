//! Everything together, in random orders.

use super::*;

/// What a client asked for: a key or a range, the first revision, and what it does not want.
type Asked = (&'static str, &'static str, i64, Vec<FilterType>);

/// What a client knows of one of its watches.
#[derive(Debug)]
struct Known {
    key: &'static str,
    end: &'static str,
    filters: Vec<FilterType>,
    /// The first revision that it is to be told; known once it is created.
    from: Option<i64>,
    told: Vec<Happened>,
    /// The revision of the last response.
    through: i64,
    compacted: Option<i64>,
}

/// The keys and ranges that clients ask for.
const RANGES: [(&str, &str); 6] = [("a", ""), ("b", ""), ("c/", "c0"), ("a", "c"), ("\0", "\0"), ("c/2", "")];

/// The filters that clients ask for.
const FILTERS: [&[FilterType]; 5] =
    [&[], &[], &[FilterType::Noput], &[FilterType::Nodelete], &[FilterType::Noput, FilterType::Nodelete]];

/// How often the runs were in the places that matter.
#[derive(Debug, Default)]
struct Reached {
    lost: usize,
    compacted: usize,
    full: usize,
    large: usize,
    inside: usize,
    waits: usize,
}

/// What one seed plays.
struct Play {
    random: fastrand::Rng,
    world: World,
    /// The value of every put.
    value: String,
    known: BTreeMap<(usize, i64), Known>,
    /// What each stream has asked for and not seen created yet.
    created: Vec<VecDeque<Asked>>,
}

/// Watchers of all kinds, clients that read at times, a hand-over that overflows, snapshots and compactions, in any
/// order: each watcher is told each event of its range once, in order, without a gap, revisions never split.
#[test]
fn nothing_is_lost_repeated_or_reordered() {
    let mut reached = Reached::default();
    for seed in 0..80 {
        let mut play = Play::new(seed);
        for _ in 0..400 {
            play.step();
            play.note(&mut reached);
        }
        play.settle();
        assert!(!play.world.hub.has_work() && play.created.iter().all(VecDeque::is_empty));
        for known in play.known.values() {
            play.check(seed, known);
            reached.compacted += usize::from(known.compacted.is_some());
        }
    }
    let Reached { lost, compacted, full, large, inside, waits } = reached;
    let counted = [lost, compacted, full, large, inside, waits];
    assert!(counted.into_iter().all(|count| count > 20), "{counted:?}");
}

impl Play {
    fn new(seed: u64) -> Play {
        let mut random = fastrand::Rng::with_seed(seed);
        let value = "v".repeat(if random.bool() { 60_000 } else { 10 });
        let mut world = World::new(if random.bool() { 2_000 } else { 1 << 30 });
        world.hub.bounds.noted_max = if random.bool() { 4 } else { 1_000 };
        world.hub.bounds.slice_changes = random.choice([1, 2, 1_024]).unwrap();
        world.hub.places = Places::new(random.choice([1, 500_000, ALL_BYTES_MAX]).unwrap());
        world.stream_bytes_max = random.choice([1_000, STREAM_BYTES_MAX]).unwrap();
        Play { random, world, value, known: BTreeMap::new(), created: Vec::new() }
    }

    /// One event of any kind.
    fn step(&mut self) {
        let Play { random, world, .. } = self;
        match random.u8(0..24) {
            0 if world.streams.len() < 4 => {
                world.open();
                self.created.push(VecDeque::new());
            }
            1 | 2 if !world.streams.is_empty() => self.create(),
            3 => {
                let (low, high) = (world.store.compact_revision() + 1, world.store.revision());
                if low < high && random.u8(0..4) == 0 {
                    world.compact(random.i64(low.max(1)..=high));
                }
            }
            4 if random.u8(0..3) == 0 => world.install(random.usize(0..5)),
            5 if random.bool() => world.delete_all(),
            5 => world.delete(random.choice(["a", "b", "c/1"]).unwrap()),
            6..12 => {
                for _ in 0..random.usize(1..6) {
                    world.put(random.choice(["a", "b", "c/1", "c/2", "d"]).unwrap(), &self.value);
                }
            }
            12..16 if !world.streams.is_empty() => {
                let stream = random.usize(..world.streams.len());
                let most = random.usize(0..20);
                self.read(stream, most);
            }
            _ => world.burst(random.usize(0..8)),
        }
    }

    /// A client asks for a watch on one of its streams.
    fn create(&mut self) {
        let Play { random, world, created, .. } = self;
        let stream = random.usize(..world.streams.len());
        let (key, end) = random.choice(RANGES).unwrap();
        let lowest = world.store.compact_revision().max(1);
        let start = if random.bool() { 0 } else { random.i64(lowest..world.store.revision() + 4) };
        let filters = random.choice(FILTERS).unwrap();
        let mut request = WatchCreateRequest {
            key: key.into(),
            range_end: end.into(),
            start_revision: start,
            ..Default::default()
        };
        filters.iter().for_each(|filter| request.push_filters(*filter));
        world.create(stream, &request);
        created[stream].push_back((key, end, start, filters.to_vec()));
    }

    /// The client of a stream takes this many responses at most.
    fn read(&mut self, stream: usize, most: usize) {
        for _ in 0..most {
            let Some(item) = self.world.streams[stream].next() else { break };
            self.world.streams[stream].sent();
            match item {
                Item::Created { id, revision, .. } => {
                    let (key, end, start, filters) = self.created[stream].pop_front().unwrap();
                    let from = Some(if start == 0 { revision + 1 } else { start });
                    let (told, through, compacted) = (Vec::new(), 0, None);
                    let fresh = Known { key, end, filters, from, told, through, compacted };
                    assert!(self.known.insert((stream, id), fresh).is_none());
                }
                Item::Events { id, revision, events, .. } => {
                    let known = self.known.get_mut(&(stream, id)).expect("created first");
                    assert!(known.compacted.is_none() && known.through < revision);
                    let first = events[0].revision();
                    assert!(first > known.through, "a revision is split: {first} after {}", known.through);
                    assert!(events.last().unwrap().revision() <= revision);
                    known.through = revision;
                    known.told.extend(events.iter().map(|told| {
                        let value = told.event().to_message(false).kv.unwrap().value.to_vec();
                        let value = (!told.event().is_deletion()).then_some(value);
                        (told.revision(), told.event().key().to_vec(), value)
                    }));
                }
                Item::Compacted { id, compact_revision, .. } => {
                    let known = self.known.get_mut(&(stream, id)).expect("created first");
                    known.compacted = Some(compact_revision);
                }
                other => panic!("{}", text(&other)),
            }
        }
    }

    /// Counts where the hub is.
    fn note(&self, reached: &mut Reached) {
        let hub = &self.world.hub;
        let places = hub.places();
        reached.full += places.get("full").copied().unwrap_or(0);
        reached.large += places.get("large").copied().unwrap_or(0);
        reached.inside += usize::from(hub.inside.is_some());
        reached.waits += hub.readings.iter().filter(|reading| reading.waits).count();
        reached.lost += usize::from(hub.sight == Sight::Lost && !self.known.is_empty());
    }

    /// Everything happens that is still to happen.
    fn settle(&mut self) {
        let mut quiet = 0;
        while quiet < 10 {
            self.world.burst(usize::MAX);
            let (_, behind) = self.world.hub.counts();
            let waits = self.world.hub.has_work() || self.world.all.bytes() > 0 || behind > 0;
            quiet = if waits { 0 } else { quiet + 1 };
            for stream in 0..self.world.streams.len() {
                self.read(stream, usize::MAX);
            }
        }
    }

    /// A watch was told everything that it asked for, or everything until a compaction overtook it.
    fn check(&self, seed: u64, known: &Known) {
        let from = known.from.unwrap();
        let range = Range::of(known.key.as_bytes(), known.end.as_bytes()).unwrap();
        let mut index = Wanted::default();
        index.insert(&range, Wants::default(), 0);
        let watches = |key: &[u8], value: &Option<Vec<u8>>| {
            let mut found = false;
            index.watchers_of(key, || value.is_none(), |_| found = true);
            let kind = if value.is_some() { FilterType::Noput } else { FilterType::Nodelete };
            found && !known.filters.contains(&kind)
        };
        let history = self.world.history.iter();
        let expected: Vec<_> = history
            .filter(|(revision, key, value)| *revision >= from && watches(key, value))
            .cloned()
            .collect();
        match known.compacted {
            None => {
                let revisions =
                    |events: &[Happened]| events.iter().map(|(revision, ..)| *revision).collect::<Vec<_>>();
                let (told, due) = (revisions(&known.told), revisions(&expected));
                let places = self.world.hub.places();
                assert!(known.told == expected, "seed {seed}: {places:?}: {told:?}, not {due:?}");
            }
            Some(revision) => {
                assert!(expected.starts_with(&known.told), "seed {seed}");
                // It was due: something of what it was still to be told may be gone.
                assert!(known.through + 1 < revision, "seed {seed}: {} {revision}", known.through);
            }
        }
    }
}

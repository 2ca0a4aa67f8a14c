//! The upkeep of the store under every fault that the simulator knows: caretakers compact what is old and nothing else,
//! and have the contents of members compared, which never calls a sound member corrupt.
//!
//! Each replica has the keeper that a server has. In some runs one replica tells hashes of other contents than it
//! should have: these must be found, and it must be named.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    io::{self, Read, Write},
    mem,
    rc::Rc,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use bytes::Bytes;
use fastrand::Rng;
use prost::Message as _;
use synod_api::{
    etcdserverpb::{AlarmType, DeleteRangeRequest, PutRequest},
    synod::v1::{
        KvCommand, KvHash, KvHashCheck, KvQuery, KvReply, KvStatus, KvStatusRequest, kv_answer::Answer,
        kv_command::Command, kv_query::Query, kv_reply::Reply,
    },
};
use synod_consensus::ProtocolKind;
use synod_kv::{
    Comparer, KvBug, KvError, KvStore, plant,
    upkeep::{
        Compaction, Comparisons, Done, Judged, Keeper, Known, NO_HASH, Task, UpkeepConfig, Verdict, of_member,
    },
};
use synod_replica::{Context, Frozen, StateMachine};
use synod_sim::{Guest, InTime, Place, check::Compactions, plan::Plan};

const MS: Duration = Duration::from_millis(1);

/// Keepers have times of their own: so much faster than that of the world, whose runs last seconds.
const FASTER: u32 = 100;

/// A store, what the log says of comparisons, and the replica's keeper.
#[derive(Debug)]
struct Kept {
    store: KvStore,
    /// What the store of a replica would be that got other values.
    other: KvStore,
    seen: Arc<Seen>,
    keeper: RefCell<Option<(Keeper, Option<Task>)>>,
}

#[derive(Debug, Default)]
struct Seen(Mutex<(Comparisons, u64)>);

impl Seen {
    fn inner(&self) -> MutexGuard<'_, (Comparisons, u64)> {
        self.0.lock().unwrap()
    }
}

impl Comparer for Seen {
    fn seen(&self, member: u64, check: &KvHashCheck, revision: i64) {
        let (comparisons, ignored) = &mut *self.inner();
        *ignored += u64::from(!comparisons.seen(member, check, revision));
    }
}

impl Kept {
    fn new() -> Kept {
        let seen = Arc::new(Seen::default());
        let store = KvStore::new().compared_by(Arc::clone(&seen) as Arc<dyn Comparer>);
        Kept { store, other: KvStore::new(), seen, keeper: RefCell::default() }
    }

    fn status(&self) -> KvStatus {
        let query = KvQuery { query: Some(Query::Status(KvStatusRequest {})), ..KvQuery::default() };
        match self.store.query(&query) {
            Ok(Answer::Status(status)) => status,
            other => panic!("{other:?}"),
        }
    }

    /// The members that are said to be corrupt.
    fn corrupt(&self) -> BTreeSet<u64> {
        let alarms = self.status().alarms;
        let corrupt = alarms.iter().filter(|raised| raised.alarm() == AlarmType::Corrupt);
        corrupt.map(|raised| raised.member_id).collect()
    }
}

impl StateMachine for Kept {
    fn apply(&mut self, command: &Bytes, context: &Context) -> Bytes {
        let mut changed = KvCommand::decode(command.clone()).unwrap();
        if let Some(Command::Put(put)) = &mut changed.command {
            put.value = [&put.value[..], b"!"].concat().into();
        }
        self.other.apply(&changed.encode_to_vec().into(), context);
        self.store.apply(command, context)
    }

    fn query(&self, query: &Bytes) -> Bytes {
        StateMachine::query(&self.store, query)
    }

    fn freeze(&self) -> Box<dyn Frozen> {
        Box::new(FrozenKept(StateMachine::freeze(&self.store), StateMachine::freeze(&self.other)))
    }

    fn restore(&mut self, snapshot: &mut dyn Read) -> io::Result<()> {
        let mut len = [0; 8];
        snapshot.read_exact(&mut len)?;
        let mut own = Vec::new();
        (&mut *snapshot).take(u64::from_le_bytes(len)).read_to_end(&mut own)?;
        self.store.restore(&mut &own[..])?;
        self.other.restore(snapshot)
    }

    fn digest(&self) -> u64 {
        StateMachine::digest(&self.store) ^ StateMachine::digest(&self.other).rotate_left(9)
    }
}

struct FrozenKept(Box<dyn Frozen>, Box<dyn Frozen>);

impl Frozen for FrozenKept {
    fn write_to(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut own = Vec::new();
        self.0.write_to(&mut own)?;
        out.write_all(&(own.len() as u64).to_le_bytes())?;
        out.write_all(&own)?;
        self.1.write_to(out)
    }
}

/// What runs come to, counted. What is dangerous about upkeep must be among it.
const SITUATIONS: &[&str] = &[
    "a caretaker compacts",
    "another replica compacts than the one before",
    "a compaction comes when another has compacted as far",
    "nobody knows what became of a compaction",
    "all members are found to be the same",
    "members were compacted at different revisions when they answer",
    "a member has no hash of the revision",
    "a comparison ends without the answer of a member",
    "a question cannot be ordered, or nobody knows",
    "an answer comes that nobody waits for",
    "a question is answered a second time, after a restart",
    "members come or go while they are compared",
    "a replica asks that takes care no more when it judges",
];

/// What all replicas of a run have come to.
#[derive(Debug, Default)]
struct History {
    /// The latest time of the world. A run with a violation is run once more, and then begins again.
    now: Duration,
    counts: BTreeMap<&'static str, u64>,
    compactions: Compactions,
    /// Which replica last compacted.
    compactor: u64,
    /// Which replica has answered which round.
    answered: BTreeSet<(u64, u64)>,
    /// The members that took part in the comparison that a replica has under way.
    asked: BTreeMap<u64, Vec<u64>>,
    /// Members that were found to differ.
    found: BTreeSet<u64>,
    wrong: Option<String>,
}

impl History {
    fn see(&mut self, situation: &'static str) {
        assert!(SITUATIONS.contains(&situation), "{situation}");
        *self.counts.entry(situation).or_default() += 1;
    }

    /// Time has gone on, or begun again.
    fn at(&mut self, now: Duration) {
        if now < self.now {
            *self = History::default();
        }
        self.now = now;
    }
}

#[derive(Clone, Debug)]
struct Keeping {
    config: UpkeepConfig,
    /// A replica that tells hashes of other contents.
    differs: Option<u64>,
    history: Rc<RefCell<History>>,
}

impl Keeping {
    fn draw(seed: u64, differs: bool) -> Keeping {
        let rng = &mut Rng::with_seed(seed ^ 0x0c_a4_e7);
        let some = |rng: &mut Rng, low, high| Some(MS * rng.u32(low..high) * FASTER);
        let compaction = match rng.u8(0..4) {
            0 => Compaction::Revision(rng.i64(0..20)),
            _ => Compaction::Periodic(MS * rng.u32(50..600) * FASTER),
        };
        let config = UpkeepConfig {
            compaction: (rng.u8(0..8) > 0).then_some(compaction),
            check_interval: some(rng, 10, 200),
            compact_check_interval: some(rng, 10, 200),
        };
        let differs = differs.then(|| rng.u64(1..=3));
        Keeping { config, differs, history: Rc::default() }
    }

    /// A comparison has ended. Its verdict is compared with what can be told from the answers without counting them.
    fn heed(&self, judged: &Judged, answers: &BTreeMap<u64, KvHash>, place: &Place) {
        let history = &mut *self.history.borrow_mut();
        let Some(verdict) = &judged.verdict else {
            return history.see("a question cannot be ordered, or nobody knows");
        };
        let compactions: BTreeSet<_> = answers.values().map(|told| told.compact_revision).collect();
        if compactions.contains(&NO_HASH) {
            history.see("a member has no hash of the revision");
        }
        if compactions.iter().filter(|revision| **revision != NO_HASH).count() > 1 {
            history.see("members were compacted at different revisions when they answer");
        }
        if answers.len() < place.members.len() {
            history.see("a comparison ends without the answer of a member");
        }
        if history.asked.remove(&place.replica).is_some_and(|asked| asked != place.members) {
            history.see("members come or go while they are compared");
        }
        if !place.takes_care {
            history.see("a replica asks that takes care no more when it judges");
        }
        if *verdict == Verdict::Same(place.members.len()) {
            history.see("all members are found to be the same");
        }
        let own = answers.get(&place.replica);
        let comparable = answers
            .values()
            .filter(|told| own.is_some_and(|own| told.compact_revision == own.compact_revision));
        let hashes: BTreeSet<u32> = comparable.map(|told| told.hash).collect();
        if (hashes.len() > 1) == matches!(verdict, Verdict::Same(_)) {
            history.wrong = Some(format!("{verdict:?} of {answers:?}"));
        }
        if let Verdict::Differ { differ, .. } = verdict {
            history.found.extend(differ);
        }
    }
}

impl Guest for Keeping {
    type Machine = Kept;

    fn machine(&self) -> Kept {
        Kept::new()
    }

    fn command(&self, rng: &mut Rng) -> Bytes {
        let key: Bytes = vec![rng.u8(b'a'..b'f')].into();
        let command = if rng.u8(0..5) == 0 {
            Command::DeleteRange(DeleteRangeRequest { key, ..DeleteRangeRequest::default() })
        } else {
            Command::Put(PutRequest { key, value: vec![rng.u8(..)].into(), ..PutRequest::default() })
        };
        KvCommand { command: Some(command), ..KvCommand::default() }.encode_to_vec().into()
    }

    /// The stores have digests, and the rest is the replica's own.
    fn state(&self, machine: &Kept) -> String {
        format!("{} {}", machine.store.revision(), machine.other.revision())
    }

    fn looks_each(&self) -> Option<Duration> {
        Some(4 * MS)
    }

    fn look(&self, machine: &Kept, place: &Place) -> Option<Bytes> {
        self.history.borrow_mut().at(place.elapsed);
        let now = place.elapsed * FASTER;
        let status = machine.status();
        let known = Known {
            revision: status.revision,
            compact_revision: status.compact_revision,
            corrupt: !machine.corrupt().is_empty(),
            takes_care: place.takes_care,
            members: place.members.len(),
            forked_with: BTreeSet::new(),
        };
        let mut keeper = machine.keeper.borrow_mut();
        let round = place.replica << 48 | place.life << 32;
        let (keeper, under_way) =
            keeper.get_or_insert_with(|| (Keeper::new(self.config, place.replica, round, now), None));
        let (comparisons, ignored) = &mut *machine.seen.inner();
        for _ in 0..mem::take(ignored) {
            self.history.borrow_mut().see("an answer comes that nobody waits for");
        }
        loop {
            let task = keeper.next(now, &known, comparisons)?;
            let command = match &task {
                Task::Heed(judged) => {
                    self.heed(judged, comparisons.answers(), place);
                    keeper.done(now, &task, Done::Executed);
                    continue;
                }
                Task::Answer(question) => {
                    let history = &mut *self.history.borrow_mut();
                    if !history.answered.insert((place.replica, question.round)) {
                        history.see("a question is answered a second time, after a restart");
                    }
                    let differs = self.differs == Some(place.replica);
                    let store = if differs { &machine.other } else { &machine.store };
                    Command::HashCheck(question.answer(store.hash_kv(question.hashed_at()).ok().as_ref()))
                }
                task => {
                    if let Task::Ask(..) = task {
                        self.history.borrow_mut().asked.insert(place.replica, place.members.clone());
                    }
                    task.command()?
                }
            };
            *under_way = Some(task);
            return Some(of_member(place.replica, command).encode_to_vec().into());
        }
    }

    fn looked(&self, machine: &Kept, place: &Place, reply: Option<Bytes>) {
        let mut keeper = machine.keeper.borrow_mut();
        let (keeper, under_way) = keeper.as_mut().unwrap();
        let task = under_way.take().unwrap();
        let done = match reply.map(|reply| KvReply::decode(reply).unwrap().reply.unwrap()) {
            Some(Reply::Error(refused)) if refused.message == KvError::Compacted.to_string() => {
                Done::Compacted
            }
            Some(Reply::Error(_)) | None => Done::Failed,
            Some(_) => Done::Executed,
        };
        if let Task::Compact(_) = task {
            let history = &mut *self.history.borrow_mut();
            match done {
                Done::Executed => {
                    history.see("a caretaker compacts");
                    if ![0, place.replica].contains(&mem::replace(&mut history.compactor, place.replica)) {
                        history.see("another replica compacts than the one before");
                    }
                }
                Done::Compacted => history.see("a compaction comes when another has compacted as far"),
                Done::Failed => history.see("nobody knows what became of a compaction"),
            }
        }
        if let Some(judged) = keeper.done(place.elapsed * FASTER, &task, done) {
            self.heed(&judged, &BTreeMap::new(), place);
        }
    }

    fn check_in_time(&self, machine: &Kept, time: InTime) -> Result<(), String> {
        let history = &mut *self.history.borrow_mut();
        history.at(time.elapsed);
        let (revision, compacted) = (machine.store.revision(), machine.store.compact_revision());
        history.compactions.seen(time.elapsed * FASTER, revision, compacted, self.config.compaction)?;
        let allowed: BTreeSet<u64> = self.differs.into_iter().chain(self.differs.map(|_| 0)).collect();
        let corrupt = machine.corrupt();
        if !corrupt.is_subset(&allowed) {
            return Err(format!("{corrupt:?} are called corrupt, {:?} differs", self.differs));
        }
        history.wrong.clone().map_or(Ok(()), Err)
    }
}

/// Runs a seed, and adds up what it comes to. The result is how many members were found to differ.
fn run(differs: bool, seed: u64, counts: &mut BTreeMap<&'static str, u64>) -> Result<usize, String> {
    let protocols = [ProtocolKind::MultiPaxos, ProtocolKind::SequencePaxos, ProtocolKind::Raft];
    let protocol = protocols[usize::try_from(seed % 3).expect("it is small")];
    run_plan(&Plan::draw(seed, protocol), Keeping::draw(seed, differs), counts)
}

fn run_plan(
    plan: &Plan,
    keeping: Keeping,
    counts: &mut BTreeMap<&'static str, u64>,
) -> Result<usize, String> {
    synod_sim::run_guest(plan, keeping.clone()).map_err(|failure| failure.to_string())?;
    let history = keeping.history.borrow();
    history.counts.keys().for_each(|situation| *counts.entry(situation).or_default() += 1);
    Ok(history.found.len())
}

#[test]
fn caretakers_compact_what_is_old_and_call_nobody_corrupt() {
    let mut counts = BTreeMap::new();
    for seed in 0.. {
        assert_eq!(run(false, seed, &mut counts), Ok(0));
        // Some of them are rare.
        if seed >= 8 && counts.len() == SITUATIONS.len() {
            break;
        }
        assert!(seed < 60, "not everything that is dangerous occurs: {counts:#?}");
    }
}

/// What keepers order travels in any of the groups, so questions, answers and compactions meet in their common order.
#[test]
fn caretakers_of_merged_groups_compact_what_is_old_and_call_nobody_corrupt() {
    let mut counts = BTreeMap::new();
    for seed in 0..20 {
        let plan = Plan::draw_merging(seed);
        assert_eq!(run_plan(&plan, Keeping::draw(seed, false), &mut counts), Ok(0));
    }
    for situation in ["a caretaker compacts", "all members are found to be the same"] {
        assert!(counts.contains_key(situation), "{counts:#?}");
    }
}

#[test]
fn a_replica_that_differs_is_found_and_named() {
    let found: usize = (0..18).map(|seed| run(true, seed, &mut BTreeMap::new()).unwrap()).sum();
    assert!(found >= 4, "found in {found} of 18 runs");
}

#[test]
fn each_planted_bug_of_upkeep_is_found() {
    for &bug in KvBug::UPKEEP {
        plant(Some(bug));
        let differs = matches!(bug, KvBug::AnyHashIsRight | KvBug::JudgeByRevision);
        let found = (0..200).find_map(|seed| run(differs, seed, &mut BTreeMap::new()).err());
        plant(None);
        println!("{bug:?}: {}", found.unwrap_or_else(|| panic!("{bug:?} is not found")));
    }
}

/// More seeds than CI has time for: `SEEDS=1000`.
#[test]
#[ignore = "takes minutes: run it beside CI"]
fn many_seeds_of_upkeep() {
    let seeds = std::env::var("SEEDS").map_or(300, |seeds| seeds.parse().unwrap());
    let (mut counts, mut found) = (BTreeMap::new(), 0);
    (0..seeds).for_each(|seed| found += run(false, seed, &mut counts).unwrap());
    println!("{counts:#?}, {found} found");
    (0..seeds).for_each(|seed| found += run(true, seed, &mut counts).unwrap());
    println!("with one that differs: {counts:#?}, {found} found");
}

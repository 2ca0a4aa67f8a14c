//! Leases of the store under every fault that the simulator knows: none ends early, by the true time of the world, and
//! the keys of a lease go with it, at one revision.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    io::{self, Read, Write},
    time::Duration,
};

use bytes::Bytes;
use fastrand::Rng;
use prost::Message as _;
use synod_api::{
    etcdserverpb::{
        LeaseGrantRequest, LeaseLeasesRequest, LeaseRevokeRequest, LeaseTimeToLiveRequest, PutRequest,
        RangeRequest,
    },
    synod::v1::{
        KvAnswer, KvCommand, KvLeaseRenew, KvQuery, KvReply, kv_answer::Answer, kv_command::Command,
        kv_query::Query, kv_reply::Reply,
    },
};
use synod_consensus::ProtocolKind;
use synod_kv::{KvBug, KvStore, plant};
use synod_replica::{Context, Frozen, StateMachine};
use synod_sim::{Guest, InTime, check::Invariant, plan::Plan};
use synod_wire::SessionId;

/// Leases that clients use.
const LEASES: i64 = 6;

/// The same mover for every tick.
const ANY_MOVER: SessionId = SessionId(1);

/// A store, and what happened to its leases.
#[derive(Debug, Default)]
struct Leased {
    store: KvStore,
    /// Whether time counts from a grant on, by a clock that may not have moved for a while, and no other replica's tick
    /// lets leases start again: a mistake, which must be found.
    hasty: bool,
    /// Grants and renewals so far, and the last one of each lease that exists.
    count: u64,
    last: BTreeMap<i64, Promise>,
    /// The last promises of leases that the clock has ended.
    ended: Vec<Promise>,
}

/// A grant or a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Promise {
    number: u64,
    seconds: i64,
}

impl Leased {
    fn promise(&mut self, id: i64, seconds: i64) {
        self.count += 1;
        self.last.insert(id, Promise { number: self.count, seconds });
    }

    fn ask(&self, query: Query) -> Answer {
        let answer = StateMachine::query(
            &self.store,
            &KvQuery { query: Some(query), ..KvQuery::default() }.encode_to_vec().into(),
        );
        KvAnswer::decode(answer).unwrap().answer.unwrap()
    }

    fn leases(&self) -> Vec<i64> {
        let Answer::LeaseLeases(found) = self.ask(Query::LeaseLeases(LeaseLeasesRequest {})) else {
            panic!()
        };
        found.leases.iter().map(|lease| lease.id).collect()
    }

    /// The keys of each lease, as they say themselves.
    fn keys(&self) -> BTreeMap<i64, Vec<Bytes>> {
        let all = RangeRequest { key: "\0".into(), range_end: "\0".into(), ..Default::default() };
        let Answer::Range(found) = self.ask(Query::Range(all)) else { panic!() };
        let mut keys: BTreeMap<i64, Vec<Bytes>> = BTreeMap::new();
        for kv in found.kvs.into_iter().filter(|kv| kv.lease != 0) {
            keys.entry(kv.lease).or_default().push(kv.key);
        }
        keys
    }
}

impl StateMachine for Leased {
    fn apply(&mut self, command: &Bytes, context: &Context) -> Bytes {
        let mut wanted = *context;
        wanted.reply_wanted = true;
        let reply = self.store.apply(command, &wanted);
        if self.hasty {
            // Leases that are new have their end set by the second tick.
            (0..2).for_each(|_| self.clock_moved(context, ANY_MOVER));
        }
        let asked = KvCommand::decode(command.clone()).unwrap().command.unwrap();
        match (asked, KvReply::decode(reply.clone()).unwrap().reply.unwrap()) {
            (_, Reply::LeaseGrant(granted)) => self.promise(granted.id, granted.ttl),
            (Command::LeaseRenew(renew), Reply::LeaseRenew(renewed)) => {
                for (id, ttl) in renew.ids.into_iter().zip(renewed.ttls) {
                    if ttl > 0 {
                        self.promise(id, ttl);
                    }
                }
            }
            (Command::LeaseRevoke(revoke), Reply::LeaseRevoke(_)) => _ = self.last.remove(&revoke.id),
            _ => {}
        }
        reply
    }

    fn clock_moved(&mut self, context: &Context, mover: SessionId) {
        let (keys, before) = (self.keys(), self.store.revision());
        self.store.clock_moved(context, if self.hasty { ANY_MOVER } else { mover });
        let left = self.leases();
        let gone: Vec<i64> = self.last.keys().copied().filter(|id| !left.contains(id)).collect();
        let with_keys = gone.iter().filter(|id| keys.contains_key(id)).count();
        assert_eq!(self.store.revision() - before, with_keys as i64, "a revision for each lease with keys");
        self.ended.extend(gone.iter().filter_map(|id| self.last.remove(id)));
    }

    fn waits_for(&self) -> Option<Duration> {
        self.store.waits_for()
    }

    fn query(&self, query: &Bytes) -> Bytes {
        StateMachine::query(&self.store, query)
    }

    fn freeze(&self) -> Box<dyn Frozen> {
        let mut own = vec![self.count, self.last.len() as u64, self.ended.len() as u64];
        for (id, promise) in &self.last {
            own.extend([id.unsigned_abs(), promise.number, promise.seconds.unsigned_abs()]);
        }
        for promise in &self.ended {
            own.extend([promise.number, promise.seconds.unsigned_abs()]);
        }
        Box::new(FrozenLeased { own, store: self.store.freeze() })
    }

    fn restore(&mut self, snapshot: &mut dyn Read) -> io::Result<()> {
        let mut number = || {
            let mut bytes = [0; 8];
            snapshot.read_exact(&mut bytes).map(|()| u64::from_le_bytes(bytes))
        };
        let (count, last, ended) = (number()?, number()?, number()?);
        let mut restored = Leased { count, hasty: self.hasty, ..Leased::default() };
        for _ in 0..last {
            let (id, number, seconds) = (number()? as i64, number()?, number()? as i64);
            restored.last.insert(id, Promise { number, seconds });
        }
        for _ in 0..ended {
            restored.ended.push(Promise { number: number()?, seconds: number()? as i64 });
        }
        restored.store.restore(snapshot)?;
        *self = restored;
        Ok(())
    }
}

#[derive(Debug)]
struct FrozenLeased {
    own: Vec<u64>,
    store: Box<dyn Frozen>,
}

impl Frozen for FrozenLeased {
    fn write_to(&self, out: &mut dyn Write) -> io::Result<()> {
        for number in &self.own {
            out.write_all(&number.to_le_bytes())?;
        }
        self.store.write_to(out)
    }
}

/// Clients that grant, renew, revoke and use leases.
#[derive(Debug)]
struct Leasing {
    /// What a lease is taken to live longer than it says, so that a test can see that this is found out.
    longer: Duration,
    hasty: bool,
    /// When each promise was first executed anywhere.
    seen: RefCell<BTreeMap<u64, Duration>>,
}

impl Leasing {
    fn new(longer: Duration, hasty: bool) -> Leasing {
        Leasing { longer, hasty, seen: RefCell::default() }
    }
}

impl Guest for Leasing {
    type Machine = Leased;

    fn machine(&self) -> Leased {
        Leased { hasty: self.hasty, ..Leased::default() }
    }

    fn command(&self, rng: &mut Rng) -> Bytes {
        let id = rng.i64(1..=LEASES);
        let command = match rng.u8(0..10) {
            0..3 => Command::LeaseGrant(LeaseGrantRequest { id, ttl: rng.i64(2..5) }),
            3..5 => Command::LeaseRenew(KvLeaseRenew { ids: vec![id, rng.i64(1..=LEASES)] }),
            5 => Command::LeaseRevoke(LeaseRevokeRequest { id }),
            _ => {
                let lease = if rng.u8(0..8) == 0 { 0 } else { id };
                Command::Put(PutRequest { key: vec![rng.u8(b'a'..b'm')].into(), lease, ..Default::default() })
            }
        };
        KvCommand { command: Some(command), ..KvCommand::default() }.encode_to_vec().into()
    }

    /// The store has a digest.
    fn state(&self, machine: &Leased) -> String {
        format!("{} {:?} {:?}", machine.count, machine.last, machine.ended)
    }

    fn check(&self, machine: &Leased) -> Result<(), String> {
        // Each key is among those of its lease, and no lease has others.
        let keys = machine.keys();
        for (id, of) in &keys {
            let request = LeaseTimeToLiveRequest { id: *id, keys: true };
            let Answer::LeaseTimeToLive(found) = machine.ask(Query::LeaseTimeToLive(request)) else {
                panic!()
            };
            if found.ttl < 0 || found.keys != *of {
                return Err(format!(
                    "lease {id} has {:?}, and the keys {of:?} say that they have it",
                    found.keys
                ));
            }
        }
        let (exist, known) = (machine.leases(), machine.last.keys().copied().collect::<Vec<_>>());
        if exist == known { Ok(()) } else { Err(format!("leases {exist:?}, and promises of {known:?}")) }
    }

    fn check_in_time(&self, machine: &Leased, time: InTime) -> Result<(), String> {
        self.check(machine)?;
        let mut seen = self.seen.borrow_mut();
        for number in 1..=machine.count {
            seen.entry(number).or_insert(time.elapsed);
        }
        for promise in &machine.ended {
            let since = time.elapsed - seen[&promise.number].min(time.elapsed);
            let lives = Duration::from_secs(promise.seconds.unsigned_abs()) + self.longer;
            if since + time.error < lives {
                return Err(format!("a lease of {lives:?} ended after {since:?}"));
            }
        }
        Ok(())
    }
}

fn run(longer: Duration, hasty: bool, seeds: std::ops::Range<u64>) -> Result<(), String> {
    for seed in seeds {
        for protocol in
            [ProtocolKind::MultiPaxos, ProtocolKind::SequencePaxos, ProtocolKind::Raft, ProtocolKind::Ring]
        {
            let plan = Plan::draw(seed, protocol);
            let run = synod_sim::run_guest(&plan, Leasing::new(longer, hasty));
            run.map_err(|failure| format!("seed {seed} {protocol:?}: {}", failure.violation))?;
        }
    }
    Ok(())
}

#[test]
fn no_lease_ends_early_whatever_happens() {
    run(Duration::ZERO, false, 0..5).unwrap();
}

#[test]
fn a_lease_that_ends_early_would_be_found_out() {
    let found = run(Duration::from_secs(5), false, 0..25).unwrap_err();
    assert!(found.contains("ended after"), "{found}");
}

#[test]
fn a_lease_whose_time_counts_from_its_grant_is_found_out() {
    let found = run(Duration::ZERO, true, 0..50).unwrap_err();
    assert!(found.contains("ended after"), "{found}");
}

/// Each by the simulator's own clients, and by the invariant that is about it.
#[test]
fn each_planted_bug_of_leases_is_found() {
    for &bug in KvBug::LEASES {
        plant(Some(bug));
        let found = (0..400).find_map(|seed| {
            let (_, protocol) =
                ProtocolKind::ALL[usize::try_from(seed).unwrap() / 4 % ProtocolKind::ALL.len()];
            let plan = Plan::draw(seed, protocol);
            // The others have no leases.
            if plan.clients.leases > 0 { synod_sim::run(&plan).err() } else { None }
        });
        plant(None);
        let failure = found.unwrap_or_else(|| panic!("{bug:?} is not found"));
        println!("{bug:?}: seed {}: {}", failure.seed, failure.violation);
        let by = match bug {
            KvBug::LeaseCountsAtOnce => Invariant::LeaseNotEarly,
            KvBug::LeaseCountsAtRestore => Invariant::SameState,
            _ => Invariant::LeaseTakesItsKeys,
        };
        assert_eq!(failure.violation.invariant, by, "{bug:?}: {}", failure.violation);
    }
}

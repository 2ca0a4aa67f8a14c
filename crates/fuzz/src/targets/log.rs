//! What comes out of the log: batches that peers forwarded or that a disk kept, records, changes of the group, and the
//! state that executing them makes.

use std::{
    io::{self, Read},
    time::Duration,
};

use bytes::Bytes;
use prost::Message;
use synod_consensus::Options;
use synod_kv::KvStore;
use synod_replica::{
    ChangeRequest, Context, Executor, Frozen, Group, LogRecord, Outcome, StateMachine, Take, Tick,
    decode_reply, encode_reply,
};
use synod_wire::{
    Ballot, Ballots, Batch, BatchBuilder, BatchId, CommandKind, GroupId, ReplicaId, SessionId, Slot,
    replica_session,
};

use super::{Memory, Target, Verdict, hex_lines, kind, kv, numbered, peer};
use crate::entropy::Entropy;

pub(super) const TARGETS: &[Target] = &[
    Target {
        name: "log-batch",
        about: "a batch of commands: what each of its readers finds in it agrees, and it is the same when it is read again",
        run: batch,
        seeds: || numbered("", batches().into_iter().map(|(name, batch)| (name, batch.bytes().to_vec()))),
        memory: Memory { base: 32 << 10, times: 64 },
        words: &[],
    },
    Target {
        name: "log-record",
        about: "records of all protocols and of the replica around them; a record that is written again is the same",
        run: record,
        seeds: record_seeds,
        memory: Memory { base: 32 << 10, times: 64 },
        words: &[],
    },
    Target {
        name: "log-change",
        about: "a group, a change of it, the group after the change, and the reply; each is the same when it is written again",
        run: change,
        seeds: change_seeds,
        memory: Memory { base: 64 << 10, times: 96 },
        words: &[
            b"multipaxos",
            b"raft",
            b"ring",
            b"ballot",
            b"max-request-bytes=5000",
            b"http://10.0.0.1:2380",
        ],
    },
    Target {
        name: "log-execute",
        about: "batches of any commands, executed by two replicas of which one answers nobody, and by a third one that goes on from \
                a snapshot: their digests are equal",
        run: execute,
        seeds: execute_seeds,
        memory: Memory { base: 2 << 20, times: 4 << 10 },
        words: &[],
    },
    Target {
        name: "log-snapshot",
        about: "the part of a snapshot before the state machine: groups, sessions, fingerprints, of one group and of merged ones; \
                an executor that takes it writes one with the same digest",
        run: snapshot,
        seeds: snapshot_seeds,
        memory: Memory { base: 256 << 10, times: 128 },
        words: &[],
    },
];

fn batch(input: &[u8]) -> Verdict {
    let bytes = Bytes::copy_from_slice(input);
    let batch = match Batch::from_parts(bytes.clone(), crc32fast::hash(&bytes)) {
        Ok(batch) => batch,
        Err(error) => return Verdict::Refused(error.to_string()),
    };
    assert!(batch.is_intact());
    let commands: Vec<_> = batch.commands().collect();
    let (places, reconfiguration) = (batch.places(), batch.reconfiguration());
    let is_executed = |kind| kind != CommandKind::Skip;
    assert_eq!(places.executes, commands.iter().any(|command| is_executed(command.kind)));
    if let Some(payload) = &reconfiguration {
        assert!(matches!(&commands[..], [only] if only.payload == payload));
    }
    if batch.is_reference() {
        assert!(commands.is_empty() && batch.reference().is_none());
    }
    if let Some(reference) = batch.reference() {
        assert!(reference.is_reference() && reference.stands_for(&batch) && reference.id() == batch.id());
    }
    let kinds: Vec<_> = commands.iter().take(3).map(|command| command.kind).collect();
    Verdict::Accepted(format!("{kinds:?} {} {}", batch.id().is_some(), places.skips_to.is_some()))
}

/// Batches with a command of each kind.
fn batches() -> Vec<(String, Batch)> {
    let client = SessionId(5);
    let of = |name: &str, kind, payload: &[u8]| {
        let mut builder = BatchBuilder::new();
        builder.push_as(kind, client, 1, 1, payload);
        (name.to_owned(), builder.finish())
    };
    let mut named = BatchBuilder::identified();
    named.push(client, 1, 1, b"a");
    named.push(client, 2, 1, b"bc");
    let named = named.finish_as(BatchId { origin: SessionId(9), number: 7 }, 5);
    vec![
        of("apply", CommandKind::Apply, &kv::plain_put()),
        of("open-session", CommandKind::OpenSession, &[]),
        of("advance-clock", CommandKind::AdvanceClock, &Tick { from: 0, by: 1000 }.encode()),
        of("reconfigure", CommandKind::Reconfigure, &changes()[0].1),
        of("skip", CommandKind::Skip, &9_u64.to_le_bytes()),
        ("settle".into(), Batch::settling()),
        ("reference".into(), named.reference().expect("it has a name")),
        ("named".into(), named),
        ("noop".into(), Batch::noop()),
    ]
}

fn record(input: &[u8]) -> Verdict {
    let record = LogRecord::decode(Bytes::copy_from_slice(input));
    if let Ok(record) = &record {
        let again = LogRecord::decode(record.encode().to_bytes());
        assert_eq!(again.as_ref(), Ok(record));
        let _ = record.keep();
    }
    Verdict::of(&record)
}

fn record_seeds() -> Vec<(String, Vec<u8>)> {
    let of_protocols = peer::ENCODINGS.iter().flat_map(|(protocol, text)| {
        let records = peer::encodings(text, "record").into_iter();
        let records = records.map(|(name, bytes)| (name, [vec![1, 3, 0, 0, 0, 0, 0, 0, 0], bytes].concat()));
        numbered(&format!("{protocol}-"), records)
    });
    let others = hex_lines(include_str!("../../../replica/src/fixed/records.txt"));
    of_protocols.chain(numbered("replica-", others.map(|(name, bytes)| (name.to_owned(), bytes)))).collect()
}

fn group() -> Group {
    Group::of(&Options::default(), [ReplicaId(1), ReplicaId(2), ReplicaId(3)])
}

/// The group and the change are two parts, each with its length in front.
fn change(input: &[u8]) -> Verdict {
    let mut input = Entropy::new(input);
    let len = usize::from(u16::from_le_bytes([input.byte(), input.byte()]));
    let group = match Group::decode(Bytes::copy_from_slice(input.take(len))) {
        Ok(group) => group,
        Err(error) => return Verdict::Refused(format!("group: {error}")),
    };
    assert_eq!(Group::decode(group.encode().to_bytes()).as_ref(), Ok(&group));
    let request = match ChangeRequest::decode(Bytes::copy_from_slice(input.rest())) {
        Ok(request) => request,
        Err(error) => return Verdict::Refused(format!("change: {error}")),
    };
    assert_eq!(ChangeRequest::decode(request.encode().to_bytes()).as_ref(), Ok(&request));
    // What decides about a change is decided: its version is that of the group, or not.
    let outcome = group.apply(Slot(9), &request);
    assert_eq!(decode_reply(encode_reply(&outcome)).as_ref(), Ok(&outcome));
    if let Ok(after) = &outcome {
        assert_eq!(Group::decode(after.encode().to_bytes()).as_ref(), Ok(after));
    }
    Verdict::Accepted(format!("{} {}", kind(&request.change), kind(&outcome.err())))
}

/// Changes, from the texts of fixed bytes and from here.
fn changes() -> Vec<(String, Vec<u8>)> {
    use synod_replica::{Change, Goal, Limits, MemberInfo, MemberSet};
    let info = || MemberInfo::new("n4", vec!["http://10.0.0.4:2380".into()]);
    let options = Options::default();
    let set = MemberSet { version: 3, members: group().members, next_id: ReplicaId(4) };
    let all = vec![
        ("add", Change::Add { info: info(), goal: Goal::Vote }),
        ("replace", Change::Add { info: info(), goal: Goal::Replace(ReplicaId(2)) }),
        ("promote", Change::promote(ReplicaId(2))),
        ("promote-named", Change::Promote { id: ReplicaId(2), birth: Some(7) }),
        ("name-births", Change::NameBirths(vec![(ReplicaId(1), 5), (ReplicaId(2), 7)])),
        ("remove", Change::Remove(ReplicaId(2))),
        ("update", Change::Update { id: ReplicaId(2), info: info() }),
        (
            "order",
            Change::Order {
                protocol: synod_consensus::ProtocolKind::Raft,
                election: synod_consensus::ProtocolKind::Raft.elections()[0],
                overrides: synod_consensus::Overrides::shared(&options),
            },
        ),
        ("limits", Change::Limits(Limits::default())),
        ("follow", Change::Follow(std::sync::Arc::new(set))),
        ("place", Change::Place(None)),
        ("readmit", Change::Readmit { id: ReplicaId(2), life: synod_wire::Incarnation(3), birth: Some(7) }),
    ];
    let request = |(name, change): (&str, Change)| {
        let request = ChangeRequest { expected: 1, change };
        (name.to_owned(), request.encode().to_bytes().to_vec())
    };
    all.into_iter().map(request).collect()
}

fn change_seeds() -> Vec<(String, Vec<u8>)> {
    let groups = [("alone", group()), ("followed", group().followed()), ("following", group().following(1))];
    let seed = |group: &Group, change: Vec<u8>| {
        let group = group.encode().to_bytes();
        let len = u16::try_from(group.len()).expect("it is small").to_le_bytes();
        [&len[..], &group, &change].concat()
    };
    let seeds = groups.iter().flat_map(|(of, group)| {
        changes().into_iter().map(move |(name, change)| (format!("{of}-{name}"), seed(group, change)))
    });
    seeds.collect()
}

/// The sessions that commands come from: a replica's, two that may be open, and one that never is.
fn session(choice: usize) -> SessionId {
    match choice {
        0 => replica_session(ReplicaId(1), synod_wire::Incarnation(1), 1),
        1 => SessionId(1),
        2 => SessionId(2),
        _ => SessionId(77),
    }
}

/// A batch of a few commands, with any numbers in their headers.
fn any_batch(input: &mut Entropy<'_>, sequences: &mut [u64; 4]) -> Option<Batch> {
    let mut bytes = Vec::new();
    if input.below(4) == 3 {
        // A name: the session and the number of the batch, and the lowest number that its origin waits for.
        let (number, floor) = (input.number().cast_unsigned(), input.number().cast_unsigned());
        for number in [session(input.below(2)).0, number, floor] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        bytes.extend_from_slice(&[CommandKind::Identity as u8, 0, 0, 0, 0]);
    }
    for _ in 0..=input.below(3) {
        let choice = input.below(4);
        let ahead = input.of(&[1, 1, 1, 1, 0, 2, 300, u64::MAX]);
        let sequence = sequences[choice].saturating_add(ahead);
        if ahead <= 2 {
            sequences[choice] = sequence;
        }
        let lowest = input.of(&[0, sequence, sequence, sequence.saturating_sub(1), u64::MAX]);
        let kind = input.of(&[0, 0, 0, 0, 0, 1, 2, 7, 3, 4]);
        let payload = match kind {
            0 if input.flag() => kv::any_command(input).encode_to_vec(),
            2 => Tick { from: input.number().cast_unsigned(), by: input.number().cast_unsigned() }
                .encode()
                .to_vec(),
            3 => match changes().get(input.below(12)) {
                Some((_, change)) => change.clone(),
                None => input.slice(40).to_vec(),
            },
            _ => input.slice(40).to_vec(),
        };
        for number in [session(choice).0, sequence, lowest] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        bytes.push(kind);
        bytes.extend_from_slice(&u32::try_from(payload.len()).expect("it is small").to_le_bytes());
        bytes.extend_from_slice(&payload);
    }
    let crc = crc32fast::hash(&bytes);
    Batch::from_parts(bytes.into(), crc).ok()
}

fn execute(input: &[u8]) -> Verdict {
    let mut input = Entropy::new(input);
    let executor = || Executor::new(KvStore::new(), group());
    let (mut answers, mut silent) = (executor(), executor());
    let ballots = Ballots::both(Ballot { round: 1, replica: ReplicaId(1) });
    let mut sequences = [0; 4];
    let (mut replies, mut slot) = (0, Slot::ZERO);
    while !input.is_empty() && slot < Slot(200) {
        slot = slot.next();
        let batch = any_batch(&mut input, &mut sequences).unwrap_or_default();
        let outcomes = answers.execute(slot, ballots, &batch, |_| true);
        replies += outcomes.iter().filter(|outcome| matches!(outcome, Outcome::Reply(_))).count();
        silent.execute(slot, ballots, &batch, |_| false);
        if input.below(16) == 15 {
            let restored = again(&answers, executor());
            assert_eq!(restored.digest(), answers.digest(), "a snapshot holds the whole state");
            silent = restored;
        }
    }
    assert_eq!(answers.digest(), silent.digest(), "replicas agree");
    if replies == 0 {
        return Verdict::Refused("no command was executed".into());
    }
    let group = answers.group();
    Verdict::Accepted(format!(
        "{} replies, {} sessions, revision {}, version {}, clock {}",
        replies.min(6),
        answers.client_sessions(),
        answers.machine().revision().min(6),
        group.version,
        answers.clock() > Duration::ZERO,
    ))
}

/// Another executor that begins with a snapshot of the first.
fn again<S: StateMachine>(executor: &Executor<S>, mut other: Executor<S>) -> Executor<S> {
    let mut bytes = Vec::new();
    executor.freeze().write_to(&mut bytes).expect("a vector takes everything");
    other.restore(&mut &bytes[..]).expect("what was written is read");
    other
}

fn execute_seeds() -> Vec<(String, Vec<u8>)> {
    let mut random = fastrand::Rng::with_seed(1);
    let mut seed = |len| (0..len).map(|_| random.u8(..)).collect::<Vec<u8>>();
    [20, 100, 300, 600].map(|len| (format!("{len}-choices"), seed(len))).into()
}

/// A state machine that keeps the last command.
#[derive(Debug, Default)]
struct Last(Bytes);

impl StateMachine for Last {
    fn apply(&mut self, command: &Bytes, _: &Context) -> Bytes {
        self.0 = command.clone();
        command.clone()
    }

    fn query(&self, _: &Bytes) -> Bytes {
        self.0.clone()
    }

    fn freeze(&self) -> Box<dyn Frozen> {
        Box::new(self.0.clone())
    }

    fn restore(&mut self, snapshot: &mut dyn Read) -> io::Result<()> {
        let mut bytes = Vec::new();
        snapshot.read_to_end(&mut bytes)?;
        self.0 = bytes.into();
        Ok(())
    }
}

/// The first byte says how many groups there are.
fn executor(groups: u8) -> Executor<Last> {
    match groups % 2 {
        0 => Executor::new(Last::default(), group()),
        _ => Executor::merged(
            Last::default(),
            [group().followed(), group().following(1)],
            Take::new(2).expect("it is in range"),
        ),
    }
}

fn snapshot(input: &[u8]) -> Verdict {
    let Some((&groups, bytes)) = input.split_first() else { return Verdict::Refused("empty".into()) };
    let mut restored = executor(groups);
    if let Err(error) = restored.restore(&mut &bytes[..]) {
        return Verdict::Refused(error.to_string());
    }
    let twin = again(&restored, executor(groups));
    assert_eq!(twin.digest(), restored.digest());
    let (applied, sessions) = (restored.applied(), restored.client_sessions());
    // It goes on, unless the last slot that there can be is executed.
    if restored.groups() == 1 && applied < Slot(u64::MAX) {
        let mut builder = BatchBuilder::new();
        builder.push(session(1), 2, 1, b"again");
        builder.push(session(0), 1, 1, b"more");
        restored.execute(applied.next(), Ballots::ZERO, &builder.finish(), |_| true);
    }
    let cached = restored.cached_reply_bytes().0 > 0;
    Verdict::Accepted(format!("{groups} {} {} {cached}", applied == Slot::ZERO, sessions.min(4)))
}

fn snapshot_seeds() -> Vec<(String, Vec<u8>)> {
    let ballots = Ballots::both(Ballot { round: 1, replica: ReplicaId(1) });
    let mut seeds = Vec::new();
    for groups in [0, 1] {
        let mut executor = executor(groups);
        let mut write = |name: &str, executor: &Executor<Last>| {
            let mut bytes = vec![groups];
            executor.freeze().write_to(&mut bytes).expect("a vector takes everything");
            seeds.push((format!("{}-{name}", if groups == 0 { "single" } else { "merged" }), bytes));
        };
        write("empty", &executor);
        for slot in 1..=4 {
            let mut builder = BatchBuilder::identified();
            builder.push_as(CommandKind::OpenSession, session(0), 2 * slot, 1, &[]);
            builder.push(session(1), slot, 1, b"command");
            builder.push(session(2), 5 + slot, 1, b"command");
            let name = BatchId { origin: session(0), number: slot };
            let batch = builder.finish_as(name, slot.saturating_sub(1));
            executor.execute_of(GroupId::FIRST, Slot(slot), ballots, &batch, |_| true);
        }
        write("sessions", &executor);
    }
    seeds
}

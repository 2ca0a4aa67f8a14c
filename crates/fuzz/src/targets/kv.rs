//! What reaches the store: commands, queries, and snapshots of it.

use std::{cell::OnceCell, io::Write as _, time::Duration};

use bytes::Bytes;
use prost::Message;
use synod_api::{
    authpb::Permission,
    etcdserverpb::{
        AlarmRequest, AlarmType, AuthDisableRequest, AuthEnableRequest, AuthRoleAddRequest,
        AuthRoleDeleteRequest, AuthRoleGrantPermissionRequest, AuthUserAddRequest, AuthUserDeleteRequest,
        AuthUserGrantRoleRequest, AuthUserListRequest, AuthUserRevokeRoleRequest, CompactionRequest, Compare,
        DeleteRangeRequest, HashKvRequest, LeaseGrantRequest, LeaseLeasesRequest, LeaseRevokeRequest,
        LeaseTimeToLiveRequest, PutRequest, RangeRequest, RequestOp, TxnRequest, alarm_request::AlarmAction,
        compare::TargetUnion, request_op::Request,
    },
    synod::v1::{
        KvAnswer, KvAuthChange, KvAuthQuery, KvAuthenticate, KvBucketEntry, KvCommand, KvEtcdSnapshot,
        KvHash, KvHashCheck, KvLeaseRenew, KvPermission, KvQuery, KvReply, KvStatusRequest,
        kv_answer::Answer, kv_auth_change::Change, kv_auth_query, kv_command::Command, kv_query::Query,
        kv_reply::Reply,
    },
};
use synod_kv::{
    KvStore, ROOT,
    validate::{self, Limits},
};
use synod_replica::{Context, StateMachine};
use synod_wire::{SessionId, Slot};

use super::{Memory, Target, Verdict, kind, numbered};
use crate::entropy::Entropy;

pub(super) const TARGETS: &[Target] = &[
    Target {
        name: "kv-commands",
        about: "commands as bytes, applied by two stores of which one answers nobody: their digests are equal, and so is that of a \
                store that is restored from a snapshot",
        run: commands,
        seeds: command_seeds,
        memory: Memory { base: 1 << 20, times: 2 << 10 },
        words: &[b"root", b"key", b"a", b"b"],
    },
    Target {
        name: "kv-steps",
        about: "sequences of well-formed commands, chosen by the input, with users, leases and a clock: digests and hashes of two \
                stores are equal, also through a snapshot, and a read of everything agrees with the status",
        run: steps,
        seeds: step_seeds,
        memory: Memory { base: 4 << 20, times: 16 << 10 },
        words: &[],
    },
    Target {
        name: "kv-query",
        about: "queries as bytes: the answer as a whole, and the answer in pieces, which is the same",
        run: query,
        seeds: query_seeds,
        // A file of etcd's database has some pages in any case, and an answer may hold the whole store many times.
        memory: Memory { base: 4 << 20, times: 16 << 10 },
        words: &[b"root", b"key"],
    },
    Target {
        name: "kv-snapshot",
        about: "what a snapshot of the store holds, in each version of the format: a store that is restored from it writes one with \
                the same digest, and goes on",
        run: snapshot,
        seeds: snapshot_seeds,
        memory: Memory { base: 1 << 20, times: 256 },
        words: &[b"root"],
    },
];

/// The bytes of a put.
pub(super) fn plain_put() -> Vec<u8> {
    encoded(Command::Put(PutRequest { key: "k".into(), value: "v".into(), ..PutRequest::default() }))
}

fn encoded(command: Command) -> Vec<u8> {
    KvCommand { command: Some(command), ..KvCommand::default() }.encode_to_vec()
}

fn context(slot: u64, time: Duration) -> Context {
    let mut context = Context::new(Slot(slot));
    context.time = time;
    context
}

/// A store that answers, and one that does not.
struct Twins {
    answers: KvStore,
    silent: KvStore,
    slot: u64,
    time: Duration,
}

impl Twins {
    fn new() -> Twins {
        Twins { answers: KvStore::new(), silent: KvStore::new(), slot: 0, time: Duration::ZERO }
    }

    /// Both apply a command; returns the reply.
    fn apply(&mut self, command: &Bytes) -> Reply {
        self.slot += 1;
        let context = context(self.slot, self.time);
        let reply = self.answers.apply(command, &context);
        self.silent.apply(command, &context.without_reply());
        let reply = KvReply::decode(reply).expect("a reply is one");
        reply.reply.expect("there is always a reply")
    }

    fn pass(&mut self, time: Duration) {
        self.slot += 1;
        self.time = self.time.saturating_add(time);
        let context = context(self.slot, self.time);
        for store in [&mut self.answers, &mut self.silent] {
            StateMachine::clock_moved(store, &context, SessionId(1));
        }
    }

    /// The silent one begins with a snapshot of the other.
    fn restore(&mut self) {
        let snapshot = written(&self.answers);
        self.silent.restore(&mut &snapshot[..]).expect("what was written is read");
    }

    /// Checks that both have the same state, and says which.
    fn compare(mut self) -> String {
        assert_eq!(self.answers.digest(), self.silent.digest(), "stores agree");
        assert_eq!(self.answers.size_bytes(), self.silent.size_bytes());
        self.restore();
        assert_eq!(self.answers.digest(), self.silent.digest(), "a snapshot holds the whole state");
        assert_eq!(self.answers.size_bytes(), self.silent.size_bytes());
        for revision in [0, self.answers.compact_revision(), self.answers.revision() - 1] {
            assert_eq!(
                self.answers.hash_kv(revision).ok(),
                self.silent.hash_kv(revision).ok(),
                "hashes agree"
            );
        }
        let status = self.answers.status();
        assert_eq!(status, self.silent.status());
        let compacted = status.compact_revision > 0;
        format!("revision {} keys {} compacted {compacted}", status.revision.min(8), status.keys.min(4))
    }
}

fn written(store: &KvStore) -> Vec<u8> {
    let mut bytes = Vec::new();
    store.freeze().write_to(&mut bytes).expect("a vector takes everything");
    bytes
}

/// Commands, each with its length of two bytes in front.
fn commands(input: &[u8]) -> Verdict {
    let mut input = Entropy::new(input);
    let mut twins = Twins::new();
    let (mut done, mut last) = (0, String::new());
    while !input.is_empty() && twins.slot < 100 {
        let len = usize::from(u16::from_le_bytes([input.byte(), input.byte()]));
        let bytes = Bytes::copy_from_slice(input.take(len));
        // What a server would order. What it would refuse can only come from a peer, and must do no harm either.
        let is_valid = KvCommand::decode(bytes.clone())
            .is_ok_and(|command| validate::command(&command, &Limits::default()).is_ok());
        let reply = twins.apply(&bytes);
        done += usize::from(!matches!(reply, Reply::Error(_)));
        last = match &reply {
            Reply::Error(failure) => format!("{is_valid} {}", failure.message),
            reply => format!("{is_valid} {}", kind(reply)),
        };
    }
    let state = twins.compare();
    if done == 0 { Verdict::Refused(last) } else { Verdict::Accepted(format!("{last} {state}")) }
}

/// A short key; there are few, so that commands meet.
fn key(input: &mut Entropy<'_>) -> Bytes {
    const KEYS: [&[u8]; 8] = [b"a", b"b", b"aa", b"ab", b"c\0", b"\xff", b"\xff\xff", b""];
    match input.below(9) {
        8 => Bytes::copy_from_slice(input.slice(12)),
        known => Bytes::from_static(KEYS[known]),
    }
}

/// The end of a range: none, everything from the key on, or a key.
fn range_end(input: &mut Entropy<'_>) -> Bytes {
    match input.below(4) {
        0 | 1 => Bytes::new(),
        2 => Bytes::from_static(b"\0"),
        _ => key(input),
    }
}

fn put(input: &mut Entropy<'_>) -> PutRequest {
    let lease = if input.below(4) == 0 { input.number() } else { 0 };
    let (prev_kv, ignore_value, ignore_lease) = (input.flag(), input.below(8) == 7, input.below(8) == 7);
    let value = Bytes::copy_from_slice(input.slice(20));
    PutRequest { key: key(input), value, lease, prev_kv, ignore_value, ignore_lease }
}

fn delete(input: &mut Entropy<'_>) -> DeleteRangeRequest {
    DeleteRangeRequest { key: key(input), range_end: range_end(input), prev_kv: input.flag() }
}

fn range(input: &mut Entropy<'_>) -> RangeRequest {
    let mut request =
        RangeRequest { key: key(input), range_end: range_end(input), ..RangeRequest::default() };
    if input.flag() {
        (request.limit, request.revision) = (input.number(), input.number());
        (request.sort_order, request.sort_target) =
            (i32::from(input.byte() % 4), i32::from(input.byte() % 6));
        (request.keys_only, request.count_only) = (input.flag(), input.flag());
        (request.min_mod_revision, request.max_mod_revision) = (input.number(), input.number());
        (request.min_create_revision, request.max_create_revision) = (input.number(), input.number());
    }
    request
}

fn txn(input: &mut Entropy<'_>, depth: usize) -> TxnRequest {
    let ops = |input: &mut Entropy<'_>| {
        (0..input.below(4))
            .map(|_| {
                let request = match input.below(8) {
                    0..3 => Some(Request::RequestPut(put(input))),
                    3 | 4 => Some(Request::RequestDeleteRange(delete(input))),
                    5 => Some(Request::RequestRange(range(input))),
                    6 if depth > 0 => Some(Request::RequestTxn(txn(input, depth - 1))),
                    _ => None,
                };
                RequestOp { request }
            })
            .collect::<Vec<_>>()
    };
    let compare = (0..input.below(3)).map(|_| {
        let number = input.number();
        let (target, target_union) = match input.below(6) {
            0 => (0, Some(TargetUnion::Version(number))),
            1 => (1, Some(TargetUnion::CreateRevision(number))),
            2 => (2, Some(TargetUnion::ModRevision(number))),
            3 => (3, Some(TargetUnion::Value(key(input)))),
            4 => (4, Some(TargetUnion::Lease(number))),
            _ => (i32::from(input.byte()), None),
        };
        let result = i32::from(input.byte() % 5);
        Compare { result, target, target_union, key: key(input), range_end: range_end(input) }
    });
    let compare = compare.collect();
    TxnRequest { compare, success: ops(input), failure: ops(input) }
}

/// The names of users and roles, which are few.
fn name(input: &mut Entropy<'_>) -> String {
    input.of(&[ROOT, "u", "v", ""]).to_owned()
}

fn auth_change(input: &mut Entropy<'_>) -> Change {
    let role = name(input);
    match input.below(10) {
        0 => Change::UserAdd(AuthUserAddRequest {
            name: role,
            hashed_password: "aGFzaA==".into(),
            ..Default::default()
        }),
        1 => Change::RoleAdd(AuthRoleAddRequest { name: role }),
        2 => Change::UserGrantRole(AuthUserGrantRoleRequest { user: name(input), role }),
        3 => Change::UserRevokeRole(AuthUserRevokeRoleRequest { name: name(input), role }),
        4 => {
            let perm = Permission {
                perm_type: i32::from(input.byte() % 4),
                key: key(input),
                range_end: range_end(input),
            };
            Change::RoleGrantPermission(AuthRoleGrantPermissionRequest { name: role, perm: Some(perm) })
        }
        5 => Change::UserDelete(AuthUserDeleteRequest { name: role }),
        6 => Change::RoleDelete(AuthRoleDeleteRequest { role }),
        7 => Change::Authenticate(KvAuthenticate {
            name: role,
            checked_revision: input.number().cast_unsigned(),
            secret: "secret".into(),
            issued_ms: 1,
        }),
        8 => Change::Enable(AuthEnableRequest {}),
        _ => Change::Disable(AuthDisableRequest {}),
    }
}

/// Any command that is well-formed; whether it makes sense is another matter.
pub(super) fn any_command(input: &mut Entropy<'_>) -> KvCommand {
    let command = match input.below(24) {
        0..8 => Command::Put(put(input)),
        8..11 => Command::DeleteRange(delete(input)),
        11..14 => Command::Txn(txn(input, 2)),
        14 => Command::Compact(CompactionRequest { revision: input.number(), physical: input.flag() }),
        15 => Command::Alarm(AlarmRequest {
            action: input.of(&[AlarmAction::Get, AlarmAction::Activate, AlarmAction::Deactivate]).into(),
            member_id: u64::from(input.byte() % 3),
            alarm: input.of(&[AlarmType::None, AlarmType::Nospace, AlarmType::Corrupt]).into(),
        }),
        16 | 17 => Command::LeaseGrant(LeaseGrantRequest { ttl: input.number(), id: input.number() }),
        18 => Command::LeaseRevoke(LeaseRevokeRequest { id: input.number() }),
        19 => {
            Command::LeaseRenew(KvLeaseRenew { ids: (0..input.below(4)).map(|_| input.number()).collect() })
        }
        20 => Command::HashCheck(KvHashCheck {
            round: u64::from(input.byte() % 3),
            revision: input.number(),
            hash: input.flag().then(|| KvHash {
                hash: u32::from(input.byte()),
                compact_revision: input.number(),
                revision: input.number(),
            }),
        }),
        _ => Command::Auth(KvAuthChange { change: Some(auth_change(input)) }),
    };
    let (user, auth_revision) = match input.below(8) {
        0 => (name(input), input.number().cast_unsigned()),
        _ => Default::default(),
    };
    KvCommand {
        command: Some(command),
        of_member: input.below(8) == 1,
        user,
        auth_revision,
        answer_bytes_max: input.of(&[0, 0, 0, 0, 1, 100]),
        quota_bytes: input.of(&[0, 0, 0, 0, 1, 600]),
        member_id: u64::from(input.byte() % 3),
    }
}

fn steps(input: &[u8]) -> Verdict {
    let mut input = Entropy::new(input);
    let mut twins = Twins::new();
    let mut done = 0;
    while !input.is_empty() && twins.slot < 300 {
        match input.below(20) {
            0 => twins.pass(Duration::from_millis(u64::from(input.byte()) * 100)),
            1 if input.below(4) == 0 => twins.restore(),
            _ => {
                let command = any_command(&mut input).encode_to_vec().into();
                done += usize::from(!matches!(twins.apply(&command), Reply::Error(_)));
            }
        }
    }
    check_reads(&twins.answers);
    let state = twins.compare();
    if done == 0 { Verdict::Refused("nothing was done".into()) } else { Verdict::Accepted(state) }
}

/// A read of everything finds as many keys as the status says, in order, and each of them alone is the same.
fn check_reads(store: &KvStore) {
    let everything = RangeRequest { key: "\0".into(), range_end: "\0".into(), ..RangeRequest::default() };
    let ask = |request: RangeRequest| {
        let query = KvQuery { query: Some(Query::Range(request)), of_member: true, ..KvQuery::default() };
        match store.query(&query) {
            Ok(Answer::Range(range)) => range,
            other => panic!("{other:?}"),
        }
    };
    let all = ask(everything);
    assert_eq!(all.count.cast_unsigned(), store.key_count());
    assert!(all.kvs.is_sorted_by(|one, other| one.key < other.key));
    for pair in &all.kvs {
        let alone = ask(RangeRequest { key: pair.key.clone(), ..RangeRequest::default() });
        assert_eq!(alone.kvs, std::slice::from_ref(pair));
        assert!(pair.create_revision <= pair.mod_revision && pair.mod_revision <= store.revision());
    }
}

fn step_seeds() -> Vec<(String, Vec<u8>)> {
    let mut random = fastrand::Rng::with_seed(2);
    let mut seed = |len| (0..len).map(|_| random.u8(..)).collect::<Vec<u8>>();
    [30, 100, 400, 900].map(|len| (format!("{len}-choices"), seed(len))).into()
}

/// One command of each kind.
fn some_commands() -> Vec<(&'static str, Command)> {
    let put =
        |key: &'static str| PutRequest { key: key.into(), value: "value".into(), ..PutRequest::default() };
    let op = |request| RequestOp { request: Some(request) };
    let everything = || RangeRequest { key: "\0".into(), range_end: "\0".into(), ..RangeRequest::default() };
    let compare = Compare {
        result: 0,
        target: 2,
        target_union: Some(TargetUnion::ModRevision(2)),
        key: "a".into(),
        range_end: Bytes::new(),
    };
    let inner = TxnRequest { success: vec![op(Request::RequestPut(put("c")))], ..TxnRequest::default() };
    let txn = TxnRequest {
        compare: vec![compare],
        success: vec![op(Request::RequestPut(put("b"))), op(Request::RequestRange(everything()))],
        failure: vec![op(Request::RequestTxn(inner))],
    };
    let auth = |change| Command::Auth(KvAuthChange { change: Some(change) });
    let hashed_password = "aGFzaA==".to_owned();
    let user = |name: &str| AuthUserAddRequest {
        name: name.into(),
        hashed_password: hashed_password.clone(),
        ..Default::default()
    };
    let perm = Some(Permission { perm_type: 2, key: "a".into(), range_end: "b".into() });
    vec![
        ("put", Command::Put(put("a"))),
        ("put-with-lease", Command::Put(PutRequest { lease: 7, prev_kv: true, ..put("a") })),
        (
            "delete",
            Command::DeleteRange(DeleteRangeRequest { key: "a".into(), prev_kv: true, ..Default::default() }),
        ),
        ("txn", Command::Txn(txn)),
        ("compact", Command::Compact(CompactionRequest { revision: 2, physical: true })),
        ("alarm", Command::Alarm(AlarmRequest { action: 1, member_id: 1, alarm: 1 })),
        ("lease-grant", Command::LeaseGrant(LeaseGrantRequest { ttl: 60, id: 7 })),
        ("lease-revoke", Command::LeaseRevoke(LeaseRevokeRequest { id: 7 })),
        ("lease-renew", Command::LeaseRenew(KvLeaseRenew { ids: vec![7, 8] })),
        ("hash-check", Command::HashCheck(KvHashCheck { revision: 1, ..KvHashCheck::default() })),
        ("user-add", auth(Change::UserAdd(user(ROOT)))),
        ("role-add", auth(Change::RoleAdd(AuthRoleAddRequest { name: ROOT.into() }))),
        (
            "grant-role",
            auth(Change::UserGrantRole(AuthUserGrantRoleRequest { user: ROOT.into(), role: ROOT.into() })),
        ),
        (
            "grant-permission",
            auth(Change::RoleGrantPermission(AuthRoleGrantPermissionRequest { name: ROOT.into(), perm })),
        ),
        ("enable", auth(Change::Enable(AuthEnableRequest {}))),
        (
            "authenticate",
            auth(Change::Authenticate(KvAuthenticate {
                name: ROOT.into(),
                checked_revision: 5,
                ..Default::default()
            })),
        ),
    ]
}

pub(super) fn command_seeds() -> Vec<(String, Vec<u8>)> {
    let framed = |command: &Command| {
        let bytes = encoded(command.clone());
        [&u16::try_from(bytes.len()).expect("it is small").to_le_bytes()[..], &bytes].concat()
    };
    let all = some_commands();
    let together = all.iter().flat_map(|(_, command)| framed(command)).collect();
    let each = all.iter().map(|(name, command)| ((*name).to_owned(), framed(command)));
    each.chain([("all".to_owned(), together)]).collect()
}

thread_local! {
    /// The store that queries are about.
    static FILLED: OnceCell<KvStore> = const { OnceCell::new() };
}

/// A store with keys, versions, a lease, users and roles, which are off.
fn filled() -> KvStore {
    let mut store = KvStore::new();
    let commands =
        some_commands().into_iter().filter(|(name, _)| !matches!(*name, "enable" | "lease-revoke" | "alarm"));
    for (at, (_, command)) in commands.cycle().take(40).enumerate() {
        store.apply(&encoded(command).into(), &context(at as u64, Duration::from_secs(1)));
    }
    store
}

fn query(input: &[u8]) -> Verdict {
    let bytes = Bytes::copy_from_slice(input);
    FILLED.with(|cell| {
        let store = cell.get_or_init(filled);
        let whole = StateMachine::query(store, &bytes);
        let pieces = StateMachine::answer(store, &bytes).whole();
        let (whole, pieces) = (KvAnswer::decode(whole), KvAnswer::decode(pieces));
        let (whole, pieces) = (whole.expect("an answer is one"), pieces.expect("pieces are an answer"));
        match (whole.answer, pieces.answer) {
            (Some(Answer::Error(failure)), _) => Verdict::Refused(failure.message),
            (Some(Answer::EtcdSnapshot(_)), Some(pieces)) => Verdict::Accepted(kind(&pieces)),
            (Some(whole), pieces) => {
                assert_eq!(Some(&whole), pieces.as_ref());
                let found = if let Answer::Range(range) = &whole { range.kvs.len() } else { 0 };
                Verdict::Accepted(format!("{} {found}", kind(&whole)))
            }
            (None, _) => panic!("there is always an answer"),
        }
    })
}

pub(super) fn query_seeds() -> Vec<(String, Vec<u8>)> {
    let everything = RangeRequest { key: "\0".into(), range_end: "\0".into(), ..RangeRequest::default() };
    let sorted = RangeRequest { sort_order: 2, sort_target: 3, limit: 2, ..everything.clone() };
    let past = RangeRequest { revision: 3, keys_only: true, min_mod_revision: 2, ..everything.clone() };
    let op = RequestOp { request: Some(Request::RequestRange(everything.clone())) };
    let auth = |query| Query::Auth(KvAuthQuery { query: Some(query) });
    let entry = KvBucketEntry { bucket: "cluster".into(), key: "v".into(), value: "3.7.0".into() };
    let all = [
        ("range", Query::Range(everything)),
        ("sorted", Query::Range(sorted)),
        ("past", Query::Range(past)),
        ("txn", Query::Txn(TxnRequest { success: vec![op.clone(), op], ..TxnRequest::default() })),
        ("hash-kv", Query::HashKv(HashKvRequest { revision: 3 })),
        ("status", Query::Status(KvStatusRequest {})),
        ("time-to-live", Query::LeaseTimeToLive(LeaseTimeToLiveRequest { id: 7, keys: true })),
        ("leases", Query::LeaseLeases(LeaseLeasesRequest {})),
        ("users", auth(kv_auth_query::Query::UserList(AuthUserListRequest {}))),
        (
            "permission",
            auth(kv_auth_query::Query::Permission(KvPermission { key: "a".into(), ..Default::default() })),
        ),
        ("etcd-snapshot", Query::EtcdSnapshot(KvEtcdSnapshot { entries: vec![entry] })),
    ];
    let seed = |(name, query): (&str, Query)| {
        let query = KvQuery { query: Some(query), user: ROOT.into(), auth_revision: 6, ..KvQuery::default() };
        (name.to_owned(), query.encode_to_vec())
    };
    all.into_iter().map(seed).collect()
}

/// Bytes of a block, at most.
const BLOCK_BYTES_MAX: usize = 64 << 10;

/// The file of a snapshot with these contents: the first byte gives the version of the format, and the rest is put into
/// blocks with their checksums.
fn file(version: u8, contents: &[u8]) -> Vec<u8> {
    let mut file = b"synod-kv".to_vec();
    let version = u32::from(2 + version % 3);
    file.extend_from_slice(&synod_wire::Written { version, readers: version }.packed().to_le_bytes());
    let mut crc = crc32fast::Hasher::new();
    let end: &[u8] = &[];
    for block in contents.chunks(BLOCK_BYTES_MAX).chain([end]) {
        crc.update(block);
        file.extend_from_slice(&u32::try_from(block.len()).expect("a block is small").to_le_bytes());
        file.extend_from_slice(&crc.clone().finalize().to_le_bytes());
        file.write_all(block).expect("a vector grows");
    }
    file
}

fn snapshot(input: &[u8]) -> Verdict {
    let Some((&version, contents)) = input.split_first() else { return Verdict::Refused("empty".into()) };
    // One in sixteen is a file as it is.
    let bytes = if version >= 240 { contents.to_vec() } else { file(version, contents) };
    let mut store = KvStore::new();
    if let Err(error) = store.restore(&mut &bytes[..]) {
        return Verdict::Refused(error.to_string());
    }
    Verdict::Accepted(gone_on(store))
}

/// Goes on with a store that was read, and says what became of it.
pub(super) fn gone_on(store: KvStore) -> String {
    let mut twins = Twins { answers: store, ..Twins::new() };
    twins.restore();
    for command in some_commands() {
        twins.apply(&encoded(command.1).into());
    }
    twins.pass(Duration::from_secs(100));
    check_reads(&twins.answers);
    twins.compare()
}

/// A store in which one command of each kind was executed.
pub(super) fn lived_in() -> KvStore {
    let mut store = KvStore::new();
    for (at, (_, command)) in some_commands().into_iter().enumerate() {
        store.apply(&encoded(command).into(), &context(at as u64, Duration::from_secs(1)));
    }
    store
}

/// The contents of a snapshot, with the byte for its version in front.
fn contents(file: &[u8]) -> Vec<u8> {
    let version = u32::from_le_bytes(file[8..12].try_into().expect("4 bytes"));
    let mut contents =
        vec![u8::try_from(synod_wire::Written::unpacked(version).version - 2).expect("few versions")];
    let mut rest = &file[12..];
    while let Some((head, after)) = rest.split_at_checked(8) {
        let len = u32::from_le_bytes(head[..4].try_into().expect("4 bytes")) as usize;
        contents.extend_from_slice(&after[..len]);
        rest = &after[len..];
    }
    contents
}

fn snapshot_seeds() -> Vec<(String, Vec<u8>)> {
    let mut store = KvStore::new();
    let mut seeds = vec![("empty".to_owned(), contents(&written(&store)))];
    for (at, (name, command)) in some_commands().into_iter().enumerate() {
        store.apply(&encoded(command).into(), &context(at as u64, Duration::from_secs(1)));
        seeds.push((name.to_owned(), contents(&written(&store))));
    }
    numbered("after-", seeds)
}

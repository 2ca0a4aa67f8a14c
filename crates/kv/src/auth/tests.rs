//! What users may do, and who manages them.

use std::sync::{Mutex, PoisonError};

use bytes::Bytes;
use synod_api::{
    authpb::UserAddOptions,
    etcdserverpb::{
        AlarmRequest, AlarmType, AuthDisableRequest, AuthEnableRequest, AuthRoleAddRequest,
        AuthRoleGetRequest, AuthStatusRequest, AuthUserDeleteRequest, AuthUserGetRequest, CompactionRequest,
        Compare, HashKvRequest, LeaseGrantRequest, LeaseLeasesRequest, LeaseRevokeRequest,
        LeaseTimeToLiveRequest, PutRequest, RequestOp, TxnRequest, alarm_request::AlarmAction,
    },
    synod::v1::{
        KvCommand, KvLeaseRenew, KvPasswordOf, KvPermission, KvQuery, kv_answer::Answer as Answered,
        kv_command::Command, kv_query::Query as Asked, kv_reply::Reply,
    },
};
use synod_replica::{Context, StateMachine};
use synod_wire::Slot;

use super::*;
use crate::{
    budget::Budget,
    testing::{all, delete, op, op_delete, op_put, op_range, op_txn, put, range},
};

/// A store with users: root; `u`, who may read and write keys from `a` to `n` and read those from `n` to `s`; and `w`,
/// who may write those from `a` to `n`.
fn store() -> KvStore {
    let mut store = KvStore::new();
    let mut managed = |change| change_of(&mut store, change).unwrap();
    for name in ["root", "u", "w"] {
        managed(add_user(name));
    }
    managed(add_role("root"));
    managed(add_role("editor"));
    managed(add_role("writer"));
    managed(grant("editor", Type::Readwrite, "a", "n"));
    managed(grant("editor", Type::Read, "n", "s"));
    managed(grant("writer", Type::Write, "a", "n"));
    managed(grant_role("root", "root"));
    managed(grant_role("u", "editor"));
    managed(grant_role("w", "writer"));
    managed(Change::Enable(AuthEnableRequest {}));
    store
}

fn add_user(name: &str) -> Change {
    let (name, hashed_password) = (name.to_owned(), format!("hash of {name}"));
    Change::UserAdd(AuthUserAddRequest { name, hashed_password, ..AuthUserAddRequest::default() })
}

fn add_role(name: &str) -> Change {
    Change::RoleAdd(AuthRoleAddRequest { name: name.to_owned() })
}

fn grant(role: &str, kind: Type, key: &str, range_end: &str) -> Change {
    let (key, range_end) = (key.to_owned().into(), range_end.to_owned().into());
    let perm = Some(Permission { perm_type: kind.into(), key, range_end });
    Change::RoleGrantPermission(AuthRoleGrantPermissionRequest { name: role.to_owned(), perm })
}

fn revoke(role: &str, key: &str, range_end: &str) -> Change {
    let (key, range_end) = (key.to_owned().into(), range_end.to_owned().into());
    Change::RoleRevokePermission(AuthRoleRevokePermissionRequest { role: role.to_owned(), key, range_end })
}

fn grant_role(user: &str, role: &str) -> Change {
    Change::UserGrantRole(AuthUserGrantRoleRequest { user: user.to_owned(), role: role.to_owned() })
}

fn revoke_role(user: &str, role: &str) -> Change {
    Change::UserRevokeRole(AuthUserRevokeRoleRequest { name: user.to_owned(), role: role.to_owned() })
}

/// A change that root makes.
fn change_of(store: &mut KvStore, change: Change) -> Result<KvAuthChanged, KvError> {
    let change = Command::Auth(KvAuthChange { change: Some(change) });
    match by(store, "root", change)? {
        Reply::Auth(changed) => Ok(changed),
        other => panic!("{other:?}"),
    }
}

/// A command of a user whose server knows the newest users and roles.
fn by(store: &mut KvStore, user: &str, command: Command) -> Result<Reply, KvError> {
    let auth_revision = if user.is_empty() { 0 } else { store.auth.revision };
    store.execute(&command_of(user, auth_revision, command))
}

fn command_of(user: &str, auth_revision: u64, command: Command) -> KvCommand {
    KvCommand { command: Some(command), user: user.to_owned(), auth_revision, ..KvCommand::default() }
}

fn ask(store: &KvStore, user: &str, query: Asked) -> Result<Answered, KvError> {
    let auth_revision = if user.is_empty() { 0 } else { store.auth.revision };
    let user = user.to_owned();
    store.query(&KvQuery { query: Some(query), user, auth_revision, ..KvQuery::default() })
}

fn managed_as(user: &str, query: Query) -> impl Fn(&KvStore) -> Result<Answered, KvError> {
    move |store| ask(store, user, Asked::Auth(KvAuthQuery { query: Some(query.clone()) }))
}

#[test]
fn a_user_may_do_what_a_role_permits_and_nothing_else() {
    let mut store = store();
    let denied = Some(KvError::PermissionDenied);
    let mut put_by = |user, key| by(&mut store, user, Command::Put(put(key, "v"))).err();
    assert_eq!([put_by("u", "a"), put_by("w", "mmm"), put_by("root", "zzz")], [None, None, None]);
    assert_eq!([put_by("u", "n"), put_by("w", "z"), put_by("u", "A")], [(); 3].map(|()| denied.clone()));
    assert_eq!(put_by("", "a"), Some(KvError::UserEmpty));
    assert_eq!(put_by("nobody", "a"), denied);
    let read = |user, key, end| ask(&store, user, Asked::Range(range(key, end))).err();
    // The two permissions to read touch.
    assert_eq!([read("u", "a", "s"), read("u", "m", "o"), read("root", "\0", "\0")], [None, None, None]);
    for (user, key, end) in
        [("u", "a", "s\0"), ("u", "a", "\0"), ("u", "s", ""), ("w", "a", ""), ("u", "b", "t")]
    {
        assert_eq!(read(user, key, end), denied, "{user} {key} {end}");
    }
    assert_eq!(read("", "a", ""), Some(KvError::UserEmpty));
    let mut delete_by = |user, prev_kv| {
        by(&mut store, user, Command::DeleteRange(DeleteRange { prev_kv, ..delete("b", "c") })).err()
    };
    assert_eq!([delete_by("u", true), delete_by("w", false)], [None, None]);
    assert_eq!(delete_by("w", true), denied);
    // The pair that a put replaces is read.
    let replace = Command::Put(PutRequest { prev_kv: true, ..put("a", "") });
    assert_eq!(by(&mut store, "w", replace.clone()).err(), denied);
    assert!(by(&mut store, "u", replace).is_ok());
}

use synod_api::etcdserverpb::DeleteRangeRequest as DeleteRange;

#[test]
fn a_transaction_takes_the_rights_of_all_its_parts() {
    let mut store = store();
    let compares = |key: &str, end: &str| {
        let (key, range_end) = (key.to_owned().into(), end.to_owned().into());
        TxnRequest {
            compare: vec![Compare { key, range_end, ..Compare::default() }],
            ..TxnRequest::default()
        }
    };
    let otherwise = |failure: Vec<RequestOp>| TxnRequest { failure, ..TxnRequest::default() };
    let allowed = [
        all(vec![op_put("a", ""), op_range("m", "s"), op_txn(otherwise(vec![op_delete("b", "")]))]),
        compares("a", "b"),
    ];
    let refused = [
        all(vec![op_put("a", ""), op_put("z", "")]),
        all(vec![op_put("p", "")]),
        otherwise(vec![op_range("a", "\0")]),
        all(vec![op_txn(otherwise(vec![op_txn(all(vec![op_delete("o", "")]))]))]),
        compares("s", ""),
        all(vec![op_txn(compares("z", ""))]),
    ];
    let before = store.revision();
    for txn in &refused {
        let reply = by(&mut store, "u", Command::Txn(txn.clone()));
        assert_eq!(reply.err(), Some(KvError::PermissionDenied), "{txn:?}");
    }
    assert_eq!(store.revision(), before);
    for txn in refused.iter().filter(|txn| crate::validate::is_read_only(txn)) {
        assert_eq!(ask(&store, "u", Asked::Txn(txn.clone())).err(), Some(KvError::PermissionDenied));
    }
    for txn in &allowed {
        by(&mut store, "u", Command::Txn(txn.clone())).unwrap();
    }
    // A put in a transaction that gives back what it replaces reads that.
    let replace = || {
        op(synod_api::etcdserverpb::request_op::Request::RequestPut(PutRequest {
            prev_kv: true,
            ..put("a", "")
        }))
    };
    let by_writer = by(&mut store, "w", Command::Txn(all(vec![replace()])));
    assert_eq!(by_writer.err(), Some(KvError::PermissionDenied));
    by(&mut store, "u", Command::Txn(all(vec![replace()]))).unwrap();
}

/// A server found out who the user is before the permission was revoked; the command is decided after that.
#[test]
fn what_was_revoked_in_an_earlier_slot_is_gone_in_a_later_one() {
    let mut store = store();
    let proposed = command_of("u", store.auth.revision, Command::Put(put("a", "late")));
    change_of(&mut store, revoke("editor", "a", "n")).unwrap();
    let before = store.revision();
    assert_eq!(store.execute(&proposed).err(), Some(KvError::AuthOldRevision));
    // As the packed form of a put, too.
    let reply = store.apply(&proposed.encode_to_vec().into(), &Context::new(Slot(9)));
    let reply = synod_api::synod::v1::KvReply::decode(reply).unwrap().reply;
    let Some(Reply::Error(failure)) = reply else { panic!("{reply:?}") };
    assert_eq!(failure.message, "etcdserver: revision of auth store is old");
    assert_eq!(by(&mut store, "u", Command::Put(put("a", "late"))).err(), Some(KvError::PermissionDenied));
    assert_eq!(store.revision(), before);
    // A command that was proposed before users counted has no user.
    let mut open = KvStore::new();
    let early = command_of("", 0, Command::Put(put("a", "")));
    open.execute(&early).unwrap();
    open.auth = store.auth.clone();
    assert_eq!(open.execute(&early).err(), Some(KvError::UserEmpty));
    // A read that was checked against an earlier or a later state than the one that it sees is refused. So is a watch,
    // which asks for its permission.
    let permission = KvPermission { key: "n".into(), ..KvPermission::default() };
    let permission = KvAuthQuery { query: Some(Query::Permission(permission)) };
    let now = store.auth.revision;
    for (revision, refused) in [(now - 1, true), (now, false), (now + 1, true)] {
        for query in [Asked::Range(range("n", "")), Asked::Auth(permission.clone())] {
            let query = Some(query);
            let query = KvQuery { query, user: "u".into(), auth_revision: revision, ..KvQuery::default() };
            assert_eq!(store.query(&query).err(), refused.then_some(KvError::AuthOldRevision));
        }
    }
    // The keys of leases are as secret as keys are, also for a user who may have lost the role root since.
    let later = |user: &str, query| {
        let user = user.to_owned();
        store.query(&KvQuery { query: Some(query), user, auth_revision: now + 1, ..KvQuery::default() }).err()
    };
    for user in ["u", "root"] {
        let keys_of = |keys| Asked::LeaseTimeToLive(LeaseTimeToLiveRequest { id: 1, keys });
        assert_eq!(later(user, keys_of(true)), Some(KvError::AuthOldRevision));
        assert_eq!(later(user, Asked::LeaseLeases(LeaseLeasesRequest {})), Some(KvError::AuthOldRevision));
        assert_eq!(later(user, keys_of(false)), None, "{user}");
    }
}

#[test]
fn a_plain_put_is_read_in_place_with_its_user() {
    let command = command_of("u", 7, Command::Put(put("key", "value")));
    let command = KvCommand { quota_bytes: 1 << 20, member_id: 2, ..command };
    assert!(crate::put::PlainPut::read(&command.encode_to_vec()).is_some());
    let of_member = KvCommand { of_member: true, ..command };
    assert!(crate::put::PlainPut::read(&of_member.encode_to_vec()).is_none());
    let mut store = store();
    store.execute(&of_member).unwrap();
}

#[test]
fn leases_take_the_rights_of_their_keys() {
    let mut store = store();
    let denied = Some(KvError::PermissionDenied);
    let grant = |id| Command::LeaseGrant(LeaseGrantRequest { ttl: 10, id });
    assert_eq!(by(&mut store, "", grant(1)).err(), Some(KvError::UserEmpty));
    by(&mut store, "u", grant(1)).unwrap();
    by(&mut store, "u", grant(2)).unwrap();
    let attach = |key, lease| Command::Put(PutRequest { lease, ..put(key, "") });
    by(&mut store, "u", attach("a", 1)).unwrap();
    by(&mut store, "root", attach("x", 2)).unwrap();
    // A user who could not end the lease must not add keys to it.
    assert_eq!(by(&mut store, "u", attach("b", 2)).err(), denied);
    let in_txn =
        op(synod_api::etcdserverpb::request_op::Request::RequestPut(PutRequest { lease: 2, ..put("b", "") }));
    assert_eq!(by(&mut store, "u", Command::Txn(all(vec![in_txn]))).err(), denied);
    let renew = |ids: Vec<i64>| Command::LeaseRenew(KvLeaseRenew { ids });
    let Ok(Reply::LeaseRenew(renewed)) = by(&mut store, "u", renew(vec![1, 2, 3])) else { panic!() };
    assert_eq!(renewed.ttls, [10, -1, 0]);
    assert_eq!(by(&mut store, "", renew(vec![1])).err(), Some(KvError::UserEmpty));
    // A lease is judged once, however often it is renewed in a command; here it may cost 512 looks.
    let again = KvLeaseRenew { ids: vec![1; 600] };
    let caller = Caller { user: "u", revision: store.auth.revision, of_member: false };
    let renewed = store.lease_renew(&again, &caller, &mut Budget::page()).unwrap();
    assert_eq!(renewed.ttls, [10; 600]);
    let keys_of = |id, keys| Asked::LeaseTimeToLive(LeaseTimeToLiveRequest { id, keys });
    assert!(ask(&store, "u", keys_of(1, true)).is_ok() && ask(&store, "u", keys_of(2, false)).is_ok());
    assert_eq!(ask(&store, "u", keys_of(2, true)).err(), denied);
    assert_eq!(ask(&store, "", keys_of(2, false)).err(), Some(KvError::UserEmpty));
    let listed = || Asked::LeaseLeases(LeaseLeasesRequest {});
    assert_eq!(ask(&store, "u", listed()).err(), denied);
    assert!(ask(&store, "root", listed()).is_ok());
    let end = |id| Command::LeaseRevoke(LeaseRevokeRequest { id });
    assert_eq!(by(&mut store, "u", end(2)).err(), denied);
    by(&mut store, "u", end(1)).unwrap();
    assert!(ask(&store, "root", listed()).is_ok());
    by(&mut store, "root", end(2)).unwrap();
    assert!(ask(&store, "u", listed()).is_ok());
}

/// A store that knows whose rights to the keys of leases it has found decides as one that looks at each key again.
#[test]
fn what_is_known_of_rights_to_a_lease_changes_no_outcome() {
    let (mut known, mut again) = (store(), store());
    let mut random = fastrand::Rng::with_seed(9);
    let (mut hits, mut denials) = (0, 0);
    for _ in 0..20_000 {
        let user = random.choice(["u", "u", "w", "root", ""]).unwrap_or_default();
        let (lease, start) = (random.i64(1..4), random.choice(["a", "b", "c", "c", "x"]).unwrap_or_default());
        let key = format!("{start}{}", random.u8(0..40));
        let attach = |lease| PutRequest { lease, ..put(&key, "") };
        let command = match random.u8(0..100) {
            0..=2 => Command::LeaseGrant(LeaseGrantRequest { ttl: 10, id: lease }),
            3 => Command::LeaseRevoke(LeaseRevokeRequest { id: lease }),
            13 => Command::LeaseRenew(KvLeaseRenew { ids: vec![1, 2, 3] }),
            14..=20 => Command::DeleteRange(delete("x", "y")),
            4 => Command::Auth(KvAuthChange { change: Some(grant("writer", Type::Write, "x", "y")) }),
            5 => Command::Auth(KvAuthChange { change: Some(revoke("writer", "x", "y")) }),
            6 => Command::Auth(KvAuthChange { change: Some(Change::Disable(AuthDisableRequest {})) }),
            7..=12 => Command::Auth(KvAuthChange { change: Some(Change::Enable(AuthEnableRequest {})) }),
            21..=30 => {
                let puts = [attach(lease), PutRequest { lease, ..put("b0", "") }];
                let request = |put| op(synod_api::etcdserverpb::request_op::Request::RequestPut(put));
                Command::Txn(all(puts.into_iter().map(request).collect()))
            }
            31..=40 => Command::Put(attach(0)),
            _ => Command::Put(attach(lease)),
        };
        let auth_revision =
            if user.is_empty() { 0 } else { known.auth.revision - u64::from(random.u8(0..20) == 0) };
        let command = command_of(user, auth_revision, command);
        again.holders = check::Holders::default();
        let caller = Caller::from(&command);
        hits += u32::from(known.auth.enabled && known.holders.is_known(lease, &known.auth, &caller));
        let outcome = known.execute(&command);
        denials += u32::from(outcome == Err(KvError::PermissionDenied));
        assert_eq!(outcome, again.execute(&command), "{command:?}");
        assert_eq!(known.digest(), again.digest());
    }
    assert!(hits > 200 && denials > 200, "{hits} and {denials}");
}

#[test]
fn rights_to_a_lease_are_known_until_somebody_else_adds_a_key() {
    let mut store = store();
    by(&mut store, "u", Command::LeaseGrant(LeaseGrantRequest { ttl: 10, id: 1 })).unwrap();
    let attach = |key: &str| Command::Put(PutRequest { lease: 1, ..put(key, "") });
    let knows = |store: &KvStore, user| {
        let caller = Caller { user, revision: store.auth.revision, of_member: false };
        store.holders.is_known(1, &store.auth, &caller)
    };
    (0..20).for_each(|n| drop(by(&mut store, "u", attach(&format!("a{n}"))).unwrap()));
    assert!(knows(&store, "u") && !knows(&store, "w") && !knows(&store, "root"));
    // A look at each key counts all the same.
    let put_again = command_of("u", store.auth.revision, attach("a0"));
    let caller = Caller::from(&put_again);
    let mut budget = Budget::page();
    (0..25).for_each(|_| store.may_write_keys_of(&caller, 1, &mut budget).unwrap());
    assert_eq!(store.may_write_keys_of(&caller, 1, &mut budget), Err(KvError::TooManyKeys));
    by(&mut store, "root", attach("x")).unwrap();
    assert!(!knows(&store, "u"));
    assert_eq!(by(&mut store, "u", attach("a1")).err(), Some(KvError::PermissionDenied));
    by(&mut store, "root", Command::DeleteRange(delete("x", ""))).unwrap();
    by(&mut store, "u", attach("a1")).unwrap();
    assert!(knows(&store, "u"));
    change_of(&mut store, add_role("other")).unwrap();
    assert!(!knows(&store, "u"), "users and roles are others");
}

/// What many leases take to be judged is counted, so that it is not done between two commands.
#[test]
fn leases_without_keys_cost_who_lists_them_looks() {
    let mut store = store();
    let grant = |store: &mut KvStore, ids: std::ops::Range<i64>| {
        for id in ids {
            let grant = Command::LeaseGrant(LeaseGrantRequest { ttl: 10, id });
            by(store, "u", grant).unwrap();
        }
    };
    let judged = |store: &KvStore, user: &str| {
        let query = KvQuery {
            query: Some(Asked::LeaseLeases(LeaseLeasesRequest {})),
            user: user.to_owned(),
            auth_revision: store.auth.revision,
            ..KvQuery::default()
        };
        store.check_query(&query, &mut Budget::page())
    };
    // A page has 512 looks.
    grant(&mut store, 1..513);
    assert_eq!(judged(&store, "u"), Ok(()));
    grant(&mut store, 513..514);
    assert_eq!(judged(&store, "u"), Err(KvError::TooManyKeys));
    assert_eq!(judged(&store, "root"), Ok(()), "nothing is looked at");
    assert!(ask(&store, "u", Asked::LeaseLeases(LeaseLeasesRequest {})).is_ok(), "by another thread");
}

#[test]
fn what_concerns_all_takes_the_role_root() {
    let mut store = store();
    let alarm =
        AlarmRequest { action: AlarmAction::Activate.into(), member_id: 1, alarm: AlarmType::Nospace.into() };
    let commands = [
        Command::Compact(CompactionRequest { revision: 1, physical: false }),
        Command::Alarm(alarm),
        Command::Auth(KvAuthChange { change: Some(add_user("v")) }),
        Command::Auth(KvAuthChange { change: Some(Change::Disable(AuthDisableRequest {})) }),
    ];
    for command in commands {
        let before = (store.auth.clone(), store.revision, store.compacted, store.alarms.clone());
        assert_eq!(by(&mut store, "u", command.clone()).err(), Some(KvError::PermissionDenied));
        assert_eq!(by(&mut store, "", command.clone()).err(), Some(KvError::UserEmpty));
        assert_eq!(by(&mut store, "gone", command.clone()).err(), Some(KvError::UserNotFound));
        assert_eq!((store.auth.clone(), store.revision, store.compacted, store.alarms.clone()), before);
        by(&mut store, "root", command).unwrap();
    }
    assert!(!store.auth.enabled);
    let store = self::store();
    let hash = || Asked::HashKv(HashKvRequest { revision: 0 });
    assert_eq!(ask(&store, "u", hash()).err(), Some(KvError::PermissionDenied));
    assert!(ask(&store, "root", hash()).is_ok());
    let of_member = KvQuery { query: Some(hash()), of_member: true, ..KvQuery::default() };
    assert!(store.query(&of_member).is_ok());
}

#[test]
fn users_without_permission_raise_no_alarm() {
    let mut store = store();
    let command = KvCommand {
        quota_bytes: 1,
        member_id: 1,
        ..command_of("u", store.auth.revision, Command::Put(put("z", "")))
    };
    assert_eq!(store.execute(&command).err(), Some(KvError::PermissionDenied));
    assert!(store.alarms.is_empty());
}

#[test]
fn management_answers_as_etcd_does() {
    let mut fresh = KvStore::new();
    assert_eq!(
        change_of(&mut fresh, Change::Enable(AuthEnableRequest {})).err(),
        Some(KvError::RootUserMissing)
    );
    change_of(&mut fresh, add_user("root")).unwrap();
    assert_eq!(
        change_of(&mut fresh, Change::Enable(AuthEnableRequest {})).err(),
        Some(KvError::RootRoleMissing)
    );
    let mut store = store();
    let revision = store.auth.revision;
    let delete = |name: &str| Change::UserDelete(AuthUserDeleteRequest { name: name.to_owned() });
    let drop_role = |role: &str| Change::RoleDelete(AuthRoleDeleteRequest { role: role.to_owned() });
    let password = |name: &str| {
        let name = name.to_owned();
        Change::UserChangePassword(AuthUserChangePasswordRequest { name, ..Default::default() })
    };
    let no_range =
        Change::RoleGrantPermission(AuthRoleGrantPermissionRequest { name: "editor".into(), perm: None });
    let refused = [
        (add_user(""), KvError::UserEmpty),
        (add_user("u"), KvError::UserExists),
        (delete("v"), KvError::UserNotFound),
        (delete("root"), KvError::InvalidAuthMgmt),
        (password("v"), KvError::UserNotFound),
        (grant_role("v", "editor"), KvError::UserNotFound),
        (grant_role("u", "none"), KvError::RoleNotFound),
        (revoke_role("v", "editor"), KvError::UserNotFound),
        (revoke_role("u", "writer"), KvError::RoleNotGranted),
        (revoke_role("root", "root"), KvError::InvalidAuthMgmt),
        (add_role(""), KvError::RoleEmpty),
        (add_role("editor"), KvError::RoleExists),
        (drop_role("none"), KvError::RoleNotFound),
        (drop_role("root"), KvError::InvalidAuthMgmt),
        (no_range, KvError::PermissionNotGiven),
        (grant("none", Type::Read, "a", ""), KvError::RoleNotFound),
        (grant("editor", Type::Read, "", "b"), KvError::InvalidAuthMgmt),
        (grant("editor", Type::Read, "b", "a"), KvError::InvalidAuthMgmt),
        (revoke("none", "a", ""), KvError::RoleNotFound),
        (revoke("editor", "a", "m"), KvError::PermissionNotGranted),
    ];
    for (change, error) in refused {
        assert_eq!(change_of(&mut store, change.clone()).err(), Some(error), "{change:?}");
    }
    // A role that the user has already is no change, and neither is what is so already.
    change_of(&mut store, grant_role("u", "editor")).unwrap();
    change_of(&mut store, Change::Enable(AuthEnableRequest {})).unwrap();
    assert_eq!(store.auth.revision, revision);
    change_of(&mut store, drop_role("editor")).unwrap();
    assert_eq!(by(&mut store, "u", Command::Put(put("a", ""))).err(), Some(KvError::PermissionDenied));
    // A role of the same name does not bring the old permissions, nor users, back.
    change_of(&mut store, add_role("editor")).unwrap();
    change_of(&mut store, grant("editor", Type::Write, "a", "")).unwrap();
    assert_eq!(by(&mut store, "u", Command::Put(put("a", ""))).err(), Some(KvError::PermissionDenied));
    change_of(&mut store, grant_role("u", "editor")).unwrap();
    by(&mut store, "u", Command::Put(put("a", ""))).unwrap();
    // Granting a range again changes what is permitted there.
    change_of(&mut store, grant("editor", Type::Read, "a", "")).unwrap();
    assert_eq!(by(&mut store, "u", Command::Put(put("a", ""))).err(), Some(KvError::PermissionDenied));
    assert_eq!(store.auth.revision, revision + 5);
    change_of(&mut store, Change::Disable(AuthDisableRequest {})).unwrap();
    by(&mut store, "", Command::Put(put("a", ""))).unwrap();
}

#[test]
fn users_see_themselves_and_their_roles() {
    let store = store();
    let user = |name: &str| Query::UserGet(AuthUserGetRequest { name: name.to_owned() });
    let role = |role: &str| Query::RoleGet(AuthRoleGetRequest { role: role.to_owned() });
    for (who, query, error) in [
        ("u", user("u"), None),
        ("u", user("w"), Some(KvError::PermissionDenied)),
        ("root", user("u"), None),
        ("root", user("v"), Some(KvError::UserNotFound)),
        ("", user("u"), Some(KvError::UserEmpty)),
        ("u", role("editor"), None),
        ("u", role("writer"), Some(KvError::PermissionDenied)),
        ("root", role("none"), Some(KvError::RoleNotFound)),
        ("root", role("root"), None),
        ("u", Query::UserList(Default::default()), Some(KvError::PermissionDenied)),
        ("u", Query::RoleList(Default::default()), Some(KvError::PermissionDenied)),
        ("", Query::Status(AuthStatusRequest {}), None),
        (
            "u",
            Query::Permission(KvPermission { administer: true, ..Default::default() }),
            Some(KvError::PermissionDenied),
        ),
        ("", Query::Permission(KvPermission::default()), Some(KvError::UserEmpty)),
        ("w", Query::Permission(KvPermission::default()), None),
        (
            "w",
            Query::Permission(KvPermission { key: "a".into(), ..Default::default() }),
            Some(KvError::PermissionDenied),
        ),
        // A hash is for servers alone.
        ("root", Query::PasswordOf(KvPasswordOf { name: "u".into() }), Some(KvError::PermissionDenied)),
    ] {
        assert_eq!(managed_as(who, query.clone())(&store).err(), error, "{who} {query:?}");
    }
}

/// What a feed was told.
#[derive(Debug, Default)]
struct Told(Mutex<Vec<String>>);

impl Told {
    fn note(&self, what: String) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(what);
    }

    fn taken(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

impl AuthFeed for Told {
    fn state(&self, enabled: bool, revision: u64, tokens: u64) {
        self.note(format!("{enabled} {revision} {tokens}"));
    }

    fn issued(&self, token: &Token<'_>) {
        self.note(format!("{token} of {} at {}", token.user, token.issued_ms));
    }

    fn void(&self, user: Option<&str>) {
        self.note(format!("void {}", user.unwrap_or("all")));
    }

    fn changed(&self, user: Option<&str>) {
        self.note(format!("changed {}", user.unwrap_or("all")));
    }
}

#[test]
fn a_token_is_issued_only_if_nothing_has_changed_since_the_password_was_right() {
    let told = Arc::new(Told::default());
    let mut store = store().authenticating(told.clone());
    let revision = store.auth.revision;
    assert_eq!(told.taken(), [format!("true {revision} 0")]);
    let authenticate = |name: &str, checked_revision| {
        let (name, secret) = (name.to_owned(), "secret".to_owned());
        Change::Authenticate(KvAuthenticate { name, checked_revision, secret, issued_ms: 5 })
    };
    // It takes no user.
    let ask = |change| Command::Auth(KvAuthChange { change: Some(change) });
    let Ok(Reply::Auth(issued)) = by(&mut store, "", ask(authenticate("u", revision))) else { panic!() };
    assert_eq!((issued.token.as_str(), issued.auth_revision), ("secret.1", revision));
    assert_eq!(told.taken(), ["secret.1 of u at 5".to_owned(), format!("true {revision} 1")]);
    assert_eq!(change_of(&mut store, authenticate("v", revision)).err(), Some(KvError::AuthFailed));
    change_of(
        &mut store,
        Change::UserChangePassword(AuthUserChangePasswordRequest { name: "u".into(), ..Default::default() }),
    )
    .unwrap();
    let changed = |who: &str| format!("changed {who}");
    assert_eq!(told.taken(), ["void u".to_owned(), format!("true {} 1", revision + 1), changed("u")]);
    assert_eq!(change_of(&mut store, authenticate("u", revision)).err(), Some(KvError::AuthOldRevision));
    // A server that signs its tokens sends no secret.
    let unsigned = KvAuthenticate { name: "u".into(), checked_revision: revision + 1, ..Default::default() };
    assert_eq!(change_of(&mut store, Change::Authenticate(unsigned)).unwrap().token, "");
    let request = AuthUserAddRequest {
        name: "cert".into(),
        options: Some(UserAddOptions { no_password: true }),
        ..Default::default()
    };
    change_of(&mut store, Change::UserAdd(request)).unwrap();
    assert_eq!(change_of(&mut store, authenticate("cert", revision + 2)).err(), Some(KvError::AuthFailed));
    assert_eq!(store.auth.password_of("cert"), Err(KvError::NoPasswordUser));
    change_of(&mut store, Change::UserDelete(AuthUserDeleteRequest { name: "u".into() })).unwrap();
    told.taken();
    // A snapshot makes all tokens void.
    let mut snapshot = Vec::new();
    store.freeze().write_to(&mut snapshot).unwrap();
    store.restore(&mut &snapshot[..]).unwrap();
    assert_eq!(told.taken(), ["void all".to_owned(), format!("true {} 1", revision + 3), changed("all")]);
    change_of(&mut store, Change::Disable(AuthDisableRequest {})).unwrap();
    assert_eq!(told.taken(), ["void all".to_owned(), format!("false {} 1", revision + 4)]);
    assert_eq!(
        change_of(&mut store, authenticate("root", revision + 4)).err(),
        Some(KvError::AuthNotEnabled)
    );
}

#[test]
fn a_snapshot_holds_users_and_one_without_them_is_as_before() {
    let version = |store: &KvStore| {
        let mut bytes = Vec::new();
        store.freeze().write_to(&mut bytes).unwrap();
        let written = synod_wire::Written::unpacked(u32::from_le_bytes(bytes[8..12].try_into().unwrap()));
        let mut again = KvStore::new();
        again.restore(&mut &bytes[..]).unwrap();
        assert_eq!(again.digest(), store.digest());
        assert_eq!(again.auth, store.auth);
        let mut rewritten = Vec::new();
        again.freeze().write_to(&mut rewritten).unwrap();
        assert!(rewritten == bytes);
        (written.version, written.readers)
    };
    let mut plain = KvStore::new();
    plain.execute(&command_of("", 0, Command::Put(put("a", "")))).unwrap();
    assert_eq!(version(&plain), (2, 2));
    by(&mut plain, "", Command::LeaseGrant(LeaseGrantRequest { ttl: 5, id: 5 })).unwrap();
    assert_eq!(version(&plain), (3, 3));
    let mut store = store();
    assert_eq!(version(&store), (4, 4));
    by(&mut store, "root", Command::LeaseGrant(LeaseGrantRequest { ttl: 5, id: 5 })).unwrap();
    assert_eq!(version(&store), (4, 4));
    // Every part of it counts for the digest.
    let digest = store.digest();
    for change in [
        add_user("v"),
        grant_role("u", "writer"),
        revoke("writer", "a", "n"),
        grant("editor", Type::Write, "n", "s"),
        Change::Disable(AuthDisableRequest {}),
    ] {
        let mut other = KvStore::new();
        other
            .restore(
                &mut &{
                    let mut b = Vec::new();
                    store.freeze().write_to(&mut b).unwrap();
                    b
                }[..],
            )
            .unwrap();
        change_of(&mut other, change.clone()).unwrap();
        Arc::make_mut(&mut other.auth).revision = store.auth.revision;
        assert_ne!(other.digest(), digest, "{change:?}");
    }
}

/// A change by way of any permission shows at once, whatever the other users have: against a twin that looks through
/// the roles at each question.
#[test]
fn what_users_may_do_follows_from_their_roles() {
    let mut random = fastrand::Rng::with_seed(8);
    let mut store = store();
    let names = ["p", "q", "r"];
    let keys = ["a", "b", "c", "d"];
    for name in names {
        change_of(&mut store, add_user(name)).unwrap();
        change_of(&mut store, add_role(name)).unwrap();
    }
    let mut permitted = [0; 2];
    for _ in 0..2_000 {
        let pick = |random: &mut fastrand::Rng| random.choice(names).unwrap();
        let (name, role, key) = (pick(&mut random), pick(&mut random), random.choice(keys).unwrap());
        let kind = random.choice([Type::Read, Type::Write, Type::Readwrite]).unwrap();
        let change = match random.u8(..6) {
            0 => grant_role(name, role),
            1 => revoke_role(name, role),
            2 | 3 => grant(role, kind, key, ""),
            4 => revoke(role, key, ""),
            _ if random.u8(..8) == 0 => Change::RoleDelete(AuthRoleDeleteRequest { role: role.into() }),
            _ => add_role(role),
        };
        let _ = change_of(&mut store, change);
        for (user, key) in names.iter().flat_map(|user| keys.map(|key| (*user, key))) {
            let roles = store.auth.users[user].roles.iter().filter_map(|role| store.auth.roles.get(role));
            let kinds: Vec<i32> = roles
                .filter_map(|role| role.permissions.get(&(Bytes::from(key), Bytes::new())).copied())
                .collect();
            let has =
                |kind: Type| kinds.iter().any(|&one| one == kind as i32 || one == Type::Readwrite as i32);
            let user = &store.auth.users[user];
            assert_eq!(user.may_read.cover(key.as_bytes(), b""), has(Type::Read));
            assert_eq!(user.may_write.cover(key.as_bytes(), b""), has(Type::Write));
            permitted[usize::from(has(Type::Write))] += 1;
        }
    }
    assert!(permitted.iter().all(|&times| times > 1_000), "{permitted:?}");
}

/// What lasts is judged again for those who may have lost something, and for nobody else.
#[test]
fn a_feed_is_told_whose_rights_may_be_less() {
    let told = Arc::new(Told::default());
    let mut store = store().authenticating(told.clone());
    let mut changed = |change: Change| {
        told.taken();
        change_of(&mut store, change).unwrap();
        let told = told.taken();
        // The state comes first: who is judged again is judged by it.
        let state = told.iter().position(|what| what.starts_with("true") || what.starts_with("false"));
        let of: Vec<_> = told.iter().skip(state.unwrap() + 1).cloned().collect();
        assert!(of.iter().all(|what| what.starts_with("changed ")), "{told:?}");
        of.into_iter().map(|what| what["changed ".len()..].to_owned()).collect::<Vec<_>>()
    };
    let none: [&str; 0] = [];
    assert_eq!(changed(add_user("one")), none);
    assert_eq!(changed(add_user("two")), none);
    assert_eq!(changed(add_role("both")), none);
    assert_eq!(changed(grant_role("one", "both")), none);
    assert_eq!(changed(grant_role("two", "both")), none);
    assert_eq!(changed(grant("both", Type::Read, "q", "r")), ["one", "two"]);
    let (key, range_end) = ("q".into(), "r".into());
    let revoke = AuthRoleRevokePermissionRequest { role: "both".into(), key, range_end };
    assert_eq!(changed(Change::RoleRevokePermission(revoke)), ["one", "two"]);
    let revoke = AuthUserRevokeRoleRequest { name: "two".into(), role: "both".into() };
    assert_eq!(changed(Change::UserRevokeRole(revoke)), ["two"]);
    assert_eq!(changed(Change::RoleDelete(AuthRoleDeleteRequest { role: "both".into() })), ["one"]);
    assert_eq!(changed(Change::UserDelete(AuthUserDeleteRequest { name: "one".into() })), ["one"]);
    assert_eq!(changed(Change::Enable(AuthEnableRequest {})), none, "users count already");
    assert_eq!(changed(Change::Disable(AuthDisableRequest {})), none);
    assert_eq!(changed(Change::Enable(AuthEnableRequest {})), ["all"]);
}

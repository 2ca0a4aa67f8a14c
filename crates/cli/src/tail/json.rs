//! Commands for programs. Bytes are in base64, as etcdctl prints them.
//!
//! All of a command is printed, so that a program which reads the log can do what a replica does with it. Secrets are
//! the exception: hashes of passwords and tokens are left out, as servers leave them out of what they send. Messages
//! are taken apart field by field, so that a field that is added cannot be forgotten here.

use bytes::Bytes;
use prost::Message as _;
use serde_json::{Value, json};
use synod_api::synod::v1::{
    CommandKind, KvAuthChange, KvAuthenticate, KvCommand, KvHash, KvHashCheck, KvLeaseRenew,
    kv_auth_change::Change, kv_command::Command,
};
use synod_client::{
    api::{
        AlarmRequest, AuthDisableRequest, AuthEnableRequest, AuthRoleAddRequest, AuthRoleDeleteRequest,
        AuthRoleGrantPermissionRequest, AuthRoleRevokePermissionRequest, AuthUserAddRequest,
        AuthUserChangePasswordRequest, AuthUserDeleteRequest, AuthUserGrantRoleRequest,
        AuthUserRevokeRoleRequest, CompactionRequest, Compare, DeleteRangeRequest, LeaseGrantRequest,
        LeaseRevokeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest, compare::TargetUnion,
        request_op::Request,
    },
    authpb::{Permission, UserAddOptions, permission::Type},
    native::{DecidedBatch, DecidedCommand},
};
use synod_replica::{ChangeRequest, Tick, describe};

use super::auth_text;
use crate::output::{base64, object};

/// A command, and where it was decided.
pub fn command(batch: &DecidedBatch, command: &DecidedCommand) -> Value {
    let DecidedCommand { kind: _, session, sequence, payload } = command;
    let kind = command.kind();
    let mut value = object([
        ("slot", batch.slot.into()),
        ("kind", kind.as_str_name().to_lowercase().into()),
        ("session", (*session).into()),
        ("sequence", (*sequence).into()),
    ]);
    // These are there also if they are 0.
    value["group"] = batch.group.into();
    if let Some(position) = batch.position {
        value["position"] = position.into();
    }
    match kind {
        CommandKind::Apply => applied(payload, &mut value),
        // They are for replicas, so what they say is told beside their bytes, as far as it is known here.
        _ if !payload.is_empty() => value["payload"] = base64(payload),
        _ => {}
    }
    match kind {
        CommandKind::AdvanceClock => {
            if let Some(Tick { from, by }) = Tick::decode(payload) {
                value["advance_clock"] = json!({ "from_ms": from, "by_ms": by });
            }
        }
        CommandKind::Reconfigure => {
            if let Ok(request) = ChangeRequest::decode(payload.clone()) {
                value["reconfigure"] = describe::change(&request).into();
            }
        }
        CommandKind::Skip => {
            if let Ok(position) = <[u8; 8]>::try_from(&payload[..]) {
                value["skip"] = json!({ "position": u64::from_le_bytes(position) });
            }
        }
        CommandKind::Apply | CommandKind::OpenSession | CommandKind::Settle => {}
    }
    value
}

/// Adds a command of the key-value store, or of another state machine.
fn applied(payload: &Bytes, value: &mut Value) {
    let decoded = KvCommand::decode(payload.clone()).unwrap_or_default();
    let KvCommand { command, of_member, user, auth_revision, answer_bytes_max, quota_bytes, member_id } =
        decoded;
    let Some(command) = command else {
        value["payload"] = base64(payload);
        return;
    };
    let of_server = object([
        ("of_member", of_member.into()),
        ("user", user.into()),
        ("auth_revision", auth_revision.into()),
        ("answer_bytes_max", answer_bytes_max.into()),
        ("quota_bytes", quota_bytes.into()),
        ("member_id", member_id.into()),
    ]);
    add(value, of_server);
    match &command {
        Command::Put(request) => value["put"] = put(request),
        Command::DeleteRange(request) => value["delete_range"] = delete(request),
        Command::Txn(request) => value["txn"] = txn(request),
        Command::Compact(CompactionRequest { revision, physical }) => {
            value["compact"] = json!({ "revision": revision, "physical": physical });
        }
        Command::Alarm(request) => alarm(request, value),
        Command::LeaseGrant(LeaseGrantRequest { ttl, id }) => {
            value["lease_grant"] = json!({ "id": id, "ttl": ttl });
        }
        Command::LeaseRevoke(LeaseRevokeRequest { id }) => value["lease_revoke"] = json!({ "id": id }),
        Command::LeaseRenew(KvLeaseRenew { ids }) => value["lease_renew"] = json!({ "ids": ids }),
        Command::HashCheck(request) => value["hash_check"] = hash_check(request),
        Command::Auth(change) => {
            value["auth"] = auth_text(change).into();
            value["auth_change"] = auth_change(change);
        }
    }
}

/// Adds the fields of another object.
fn add(value: &mut Value, fields: Value) {
    if let (Value::Object(all), Value::Object(fields)) = (value, fields) {
        all.extend(fields);
    }
}

fn put(request: &PutRequest) -> Value {
    let PutRequest { key, value, lease, prev_kv, ignore_value, ignore_lease } = request;
    object([
        ("key", base64(key)),
        ("value", base64(value)),
        ("lease", (*lease).into()),
        ("prev_kv", (*prev_kv).into()),
        ("ignore_value", (*ignore_value).into()),
        ("ignore_lease", (*ignore_lease).into()),
    ])
}

fn delete(request: &DeleteRangeRequest) -> Value {
    let DeleteRangeRequest { key, range_end, prev_kv } = request;
    object([("key", base64(key)), ("range_end", base64(range_end)), ("prev_kv", (*prev_kv).into())])
}

/// A read matters to a transaction: if its revision is gone or to come, the transaction has no effect.
fn range(request: &RangeRequest) -> Value {
    let RangeRequest {
        key,
        range_end,
        limit,
        revision,
        sort_order,
        sort_target,
        serializable,
        keys_only,
        count_only,
        min_mod_revision,
        max_mod_revision,
        min_create_revision,
        max_create_revision,
    } = request;
    object([
        ("key", base64(key)),
        ("range_end", base64(range_end)),
        ("limit", (*limit).into()),
        ("revision", (*revision).into()),
        ("sort_order", named(*sort_order, request.sort_order().as_str_name())),
        ("sort_target", named(*sort_target, request.sort_target().as_str_name())),
        ("serializable", (*serializable).into()),
        ("keys_only", (*keys_only).into()),
        ("count_only", (*count_only).into()),
        ("min_mod_revision", (*min_mod_revision).into()),
        ("max_mod_revision", (*max_mod_revision).into()),
        ("min_create_revision", (*min_create_revision).into()),
        ("max_create_revision", (*max_create_revision).into()),
    ])
}

/// The name of an enumeration's value, unless it is the default.
fn named(number: i32, name: &str) -> Value {
    if number == 0 { Value::Null } else { name.into() }
}

pub fn txn(request: &TxnRequest) -> Value {
    let operation = |operation: &RequestOp| match &operation.request {
        Some(Request::RequestPut(request)) => json!({ "put": put(request) }),
        Some(Request::RequestDeleteRange(request)) => json!({ "delete_range": delete(request) }),
        Some(Request::RequestRange(request)) => json!({ "range": range(request) }),
        Some(Request::RequestTxn(inner)) => json!({ "txn": txn(inner) }),
        None => json!({}),
    };
    let TxnRequest { compare, success, failure } = request;
    json!({
        "compares": compare.len(),
        "compare": compare.iter().map(comparison).collect::<Vec<_>>(),
        "success": success.iter().map(operation).collect::<Vec<_>>(),
        "failure": failure.iter().map(operation).collect::<Vec<_>>(),
    })
}

/// A comparison with the names of etcd's JSON. What it compares with is there also if that is 0.
fn comparison(compare: &Compare) -> Value {
    let Compare { result: _, target: _, key, target_union, range_end } = compare;
    let mut value = object([("key", base64(key)), ("range_end", base64(range_end))]);
    value["result"] = compare.result().as_str_name().into();
    value["target"] = compare.target().as_str_name().into();
    match target_union {
        Some(TargetUnion::Version(version)) => value["version"] = (*version).into(),
        Some(TargetUnion::CreateRevision(revision)) => value["create_revision"] = (*revision).into(),
        Some(TargetUnion::ModRevision(revision)) => value["mod_revision"] = (*revision).into(),
        Some(TargetUnion::Value(bytes)) => value["value"] = base64(bytes),
        Some(TargetUnion::Lease(id)) => value["lease"] = (*id).into(),
        None => {}
    }
    value
}

/// Without a member it is about all of them.
fn alarm(request: &AlarmRequest, value: &mut Value) {
    let AlarmRequest { action: _, member_id, alarm: _ } = request;
    value["alarm"] = request.action().as_str_name().into();
    value["alarm_kind"] = request.alarm().as_str_name().into();
    add(value, object([("alarm_member", (*member_id).into())]));
}

/// A question has no hash.
fn hash_check(request: &KvHashCheck) -> Value {
    let KvHashCheck { round, revision, hash } = request;
    let mut value = json!({ "round": round, "revision": revision, "hash": null });
    if let Some(KvHash { hash, compact_revision, revision }) = hash {
        add(
            &mut value,
            json!({ "hash": hash, "compact_revision": compact_revision, "present_revision": revision }),
        );
    }
    value
}

/// A change of users and roles, without its secrets.
fn auth_change(KvAuthChange { change }: &KvAuthChange) -> Value {
    let Some(change) = change else { return json!({}) };
    let (name, fields) = match change {
        Change::Enable(AuthEnableRequest {}) => ("enable", json!({})),
        Change::Disable(AuthDisableRequest {}) => ("disable", json!({})),
        Change::Authenticate(KvAuthenticate { name, checked_revision, secret: _, issued_ms }) => {
            let (checked_revision, issued_ms) = ((*checked_revision).into(), (*issued_ms).into());
            let name = name.as_str().into();
            (
                "authenticate",
                object([("name", name), ("checked_revision", checked_revision), ("issued_ms", issued_ms)]),
            )
        }
        Change::UserAdd(AuthUserAddRequest { name, password: _, options, hashed_password: _ }) => {
            let no_password = options.as_ref().is_some_and(|&UserAddOptions { no_password }| no_password);
            ("user_add", object([("name", name.as_str().into()), ("no_password", no_password.into())]))
        }
        Change::UserDelete(AuthUserDeleteRequest { name }) => ("user_delete", json!({ "name": name })),
        Change::UserChangePassword(AuthUserChangePasswordRequest {
            name,
            password: _,
            hashed_password: _,
        }) => ("user_change_password", json!({ "name": name })),
        Change::UserGrantRole(AuthUserGrantRoleRequest { user, role }) => {
            ("user_grant_role", json!({ "user": user, "role": role }))
        }
        Change::UserRevokeRole(AuthUserRevokeRoleRequest { name, role }) => {
            ("user_revoke_role", json!({ "name": name, "role": role }))
        }
        Change::RoleAdd(AuthRoleAddRequest { name }) => ("role_add", json!({ "name": name })),
        Change::RoleDelete(AuthRoleDeleteRequest { role }) => ("role_delete", json!({ "role": role })),
        Change::RoleGrantPermission(AuthRoleGrantPermissionRequest { name, perm }) => {
            let perm = perm.as_ref().map(permission);
            ("role_grant_permission", json!({ "name": name, "perm": perm }))
        }
        Change::RoleRevokePermission(AuthRoleRevokePermissionRequest { role, key, range_end }) => {
            let range_end = base64(range_end);
            let fields = [("role", role.as_str().into()), ("key", base64(key)), ("range_end", range_end)];
            ("role_revoke_permission", object(fields))
        }
    };
    json!({ name: fields })
}

fn permission(permission: &Permission) -> Value {
    let Permission { perm_type, key, range_end } = permission;
    // The store keeps kinds that are not known, which permit nothing.
    let kind = Type::try_from(*perm_type).map_or_else(|kind| kind.0.into(), |kind| kind.as_str_name().into());
    object([("perm_type", kind), ("key", base64(key)), ("range_end", base64(range_end))])
}

#[cfg(test)]
mod tests {
    use synod_replica::{Change as OfGroup, Goal, MemberInfo};

    use super::*;

    fn decided(kind: CommandKind, payload: impl Into<Bytes>) -> Value {
        let batch = DecidedBatch { group: 0, slot: 17, position: Some(5), commands: Vec::new() };
        let payload = payload.into();
        command(&batch, &DecidedCommand { kind: kind.into(), session: 7, sequence: 3, payload })
    }

    /// The command as it is printed, without where it was decided.
    fn applied(command: Command) -> Value {
        let payload = KvCommand { command: Some(command), ..KvCommand::default() }.encode_to_vec();
        let mut value = decided(CommandKind::Apply, payload);
        for key in ["group", "slot", "position", "kind", "session", "sequence"] {
            assert!(value.as_object_mut().unwrap().remove(key).is_some(), "{key}");
        }
        value
    }

    #[test]
    fn a_command_has_its_place_and_what_servers_add() {
        let put = PutRequest { key: "city".into(), value: "x".into(), ..PutRequest::default() };
        let of_server = KvCommand {
            command: Some(Command::Put(put)),
            of_member: true,
            user: "ann".into(),
            auth_revision: 4,
            answer_bytes_max: 5,
            quota_bytes: 6,
            member_id: 8,
        };
        assert_eq!(
            decided(CommandKind::Apply, of_server.encode_to_vec()),
            json!({
                "group": 0, "slot": 17, "position": 5, "kind": "apply", "session": 7, "sequence": 3,
                "put": { "key": "Y2l0eQ==", "value": "eA==" },
                "of_member": true, "user": "ann", "auth_revision": 4, "answer_bytes_max": 5, "quota_bytes": 6,
                "member_id": 8,
            })
        );
        assert_eq!(decided(CommandKind::Apply, "\u{1}?")["payload"], "AT8=");
    }

    /// A write that has every field.
    fn whole_put() -> PutRequest {
        PutRequest {
            key: "k".into(),
            value: "v".into(),
            lease: 1,
            prev_kv: true,
            ignore_value: true,
            ignore_lease: true,
        }
    }

    /// A read that has every field.
    fn whole_range() -> RangeRequest {
        RangeRequest {
            key: "k".into(),
            range_end: "v".into(),
            limit: 1,
            revision: 2,
            sort_order: 1,
            sort_target: 4,
            serializable: true,
            keys_only: true,
            count_only: true,
            min_mod_revision: 3,
            max_mod_revision: 4,
            min_create_revision: 5,
            max_create_revision: 6,
        }
    }

    #[test]
    fn every_kind_of_command_is_printed_whole() {
        let delete = DeleteRangeRequest { key: "k".into(), range_end: "v".into(), prev_kv: true };
        let read = TxnRequest {
            success: vec![RequestOp { request: Some(Request::RequestRange(whole_range())) }],
            ..TxnRequest::default()
        };
        let hash = KvHash { hash: 1, compact_revision: -1, revision: 9 };
        let ask = KvHashCheck { round: 2, revision: 3, hash: None };
        let cases = [
            (
                Command::Put(whole_put()),
                json!({ "put": {
                    "key": "aw==", "value": "dg==", "lease": 1, "prev_kv": true, "ignore_value": true,
                    "ignore_lease": true,
                } }),
            ),
            (
                Command::DeleteRange(delete),
                json!({ "delete_range": { "key": "aw==", "range_end": "dg==", "prev_kv": true } }),
            ),
            (
                Command::Txn(read),
                json!({ "txn": { "compares": 0, "compare": [], "failure": [], "success": [{ "range": {
                    "key": "aw==", "range_end": "dg==", "limit": 1, "revision": 2, "sort_order": "ASCEND",
                    "sort_target": "VALUE", "serializable": true, "keys_only": true, "count_only": true,
                    "min_mod_revision": 3, "max_mod_revision": 4, "min_create_revision": 5,
                    "max_create_revision": 6,
                } }] } }),
            ),
            (
                Command::Compact(CompactionRequest { revision: 4, physical: true }),
                json!({ "compact": { "revision": 4, "physical": true } }),
            ),
            (
                Command::Alarm(AlarmRequest { action: 1, member_id: 3, alarm: 2 }),
                json!({ "alarm": "ACTIVATE", "alarm_kind": "CORRUPT", "alarm_member": 3 }),
            ),
            (
                Command::LeaseGrant(LeaseGrantRequest { ttl: 60, id: 7 }),
                json!({ "lease_grant": { "id": 7, "ttl": 60 } }),
            ),
            (Command::LeaseRevoke(LeaseRevokeRequest { id: 7 }), json!({ "lease_revoke": { "id": 7 } })),
            (
                Command::LeaseRenew(KvLeaseRenew { ids: vec![7, 8] }),
                json!({ "lease_renew": { "ids": [7, 8] } }),
            ),
            (Command::HashCheck(ask), json!({ "hash_check": { "round": 2, "revision": 3, "hash": null } })),
            (
                Command::HashCheck(KvHashCheck { hash: Some(hash), ..ask }),
                json!({ "hash_check": {
                    "round": 2, "revision": 3, "hash": 1, "compact_revision": -1, "present_revision": 9,
                } }),
            ),
        ];
        for (command, expected) in cases {
            assert_eq!(applied(command), expected);
        }
    }

    /// Changes of users with what is printed of them.
    fn changes_of_users() -> Vec<(Change, Value)> {
        let secret = || "s3cret".to_owned();
        vec![
            (Change::Enable(AuthEnableRequest {}), json!({ "enable": {} })),
            (Change::Disable(AuthDisableRequest {}), json!({ "disable": {} })),
            (
                Change::Authenticate(KvAuthenticate {
                    name: "u".into(),
                    checked_revision: 2,
                    secret: secret(),
                    issued_ms: 3,
                }),
                json!({ "authenticate": { "name": "u", "checked_revision": 2, "issued_ms": 3 } }),
            ),
            (
                Change::UserAdd(AuthUserAddRequest {
                    name: "u".into(),
                    password: secret(),
                    options: Some(UserAddOptions { no_password: true }),
                    hashed_password: secret(),
                }),
                json!({ "user_add": { "name": "u", "no_password": true } }),
            ),
            (
                Change::UserDelete(AuthUserDeleteRequest { name: "u".into() }),
                json!({ "user_delete": { "name": "u" } }),
            ),
            (
                Change::UserChangePassword(AuthUserChangePasswordRequest {
                    name: "u".into(),
                    password: secret(),
                    hashed_password: secret(),
                }),
                json!({ "user_change_password": { "name": "u" } }),
            ),
        ]
    }

    /// Changes of roles, and of who has them, with what is printed of them.
    fn changes_of_roles() -> Vec<(Change, Value)> {
        let perm = Permission { perm_type: 1, key: "a".into(), range_end: "b".into() };
        vec![
            (
                Change::UserGrantRole(AuthUserGrantRoleRequest { user: "u".into(), role: "r".into() }),
                json!({ "user_grant_role": { "user": "u", "role": "r" } }),
            ),
            (
                Change::UserRevokeRole(AuthUserRevokeRoleRequest { name: "u".into(), role: "r".into() }),
                json!({ "user_revoke_role": { "name": "u", "role": "r" } }),
            ),
            (
                Change::RoleAdd(AuthRoleAddRequest { name: "r".into() }),
                json!({ "role_add": { "name": "r" } }),
            ),
            (
                Change::RoleDelete(AuthRoleDeleteRequest { role: "r".into() }),
                json!({ "role_delete": { "role": "r" } }),
            ),
            (
                Change::RoleGrantPermission(AuthRoleGrantPermissionRequest {
                    name: "r".into(),
                    perm: Some(perm),
                }),
                json!({ "role_grant_permission": {
                    "name": "r", "perm": { "perm_type": "WRITE", "key": "YQ==", "range_end": "Yg==" },
                } }),
            ),
            (
                Change::RoleRevokePermission(AuthRoleRevokePermissionRequest {
                    role: "r".into(),
                    key: "a".into(),
                    range_end: "b".into(),
                }),
                json!({ "role_revoke_permission": { "role": "r", "key": "YQ==", "range_end": "Yg==" } }),
            ),
        ]
    }

    #[test]
    fn changes_of_users_are_printed_without_their_secrets() {
        for (change, expected) in changes_of_users().into_iter().chain(changes_of_roles()) {
            let value = applied(Command::Auth(KvAuthChange { change: Some(change) }));
            assert_eq!(value["auth_change"], expected);
            assert!(value["auth"].is_string() && !value.to_string().contains("s3cret"), "{value}");
        }
    }

    #[test]
    fn what_is_for_replicas_is_printed_as_bytes_and_in_words() {
        let tick = decided(CommandKind::AdvanceClock, Tick { from: 1000, by: 50 }.encode().to_vec());
        assert_eq!(tick["advance_clock"], json!({ "from_ms": 1000, "by_ms": 50 }));
        assert_eq!(tick["payload"], "6AMAAAAAAAAyAAAAAAAAAA==");
        let info = MemberInfo::new("n4", vec!["http://d:2380".to_owned()]);
        let request = ChangeRequest { expected: 3, change: OfGroup::Add { info, goal: Goal::Vote } };
        let change = decided(CommandKind::Reconfigure, request.encode().to_bytes());
        assert_eq!(change["reconfigure"], "add n4, to vote (of version 3)");
        assert!(change["payload"].is_string());
        let skip = decided(CommandKind::Skip, 9_u64.to_le_bytes().to_vec());
        assert_eq!(skip["skip"], json!({ "position": 9 }));
        // Of another version of the program.
        for kind in [CommandKind::AdvanceClock, CommandKind::Reconfigure, CommandKind::Skip] {
            let value = decided(kind, "?");
            assert_eq!(value["payload"], "Pw==");
            assert!(
                ["advance_clock", "reconfigure", "skip"].iter().all(|key| value.get(key).is_none()),
                "{value}"
            );
        }
        let opened = decided(CommandKind::OpenSession, "");
        let expected = json!({ "group": 0, "slot": 17, "position": 5, "kind": "open_session", "session": 7, "sequence": 3 });
        assert_eq!(opened, expected);
    }
}

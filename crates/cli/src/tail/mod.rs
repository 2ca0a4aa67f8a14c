//! `synod tail`: prints what the cluster decides, as it does.

mod json;

use std::{fmt::Write as _, str::FromStr};

use clap::Args;
use prost::Message as _;
use synod_api::synod::v1::{
    CommandKind, KvAuthChange, KvCommand, kv_auth_change::Change, kv_command::Command,
};
use synod_client::{
    Start, Subscription,
    api::{
        AlarmRequest, Compare, DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest,
        compare::{CompareResult, CompareTarget, TargetUnion},
        request_op::Request,
    },
    authpb::permission::Type,
    native::{DecidedBatch, DecidedCommand, GroupPoint},
};
use synod_replica::{ChangeRequest, describe};
use tokio::signal;

use crate::{
    client::{ClientArgs, block_on},
    failure::Failure,
    output::{self, Format},
};

/// The end of `synod tail --help`.
pub const HELP: &str = "\
A line is GROUP:SLOT, the position in the common order after @ where the cluster has one, and a command:

  0:17@5  put \"city\" \"Lausanne\"
  2:9@5   delete \"a\" to \"b\"
  1:23@6  txn if mod(\"x\") = 0, value(\"y\") > \"a\" then put \"x\" \"1\" else nothing

With --groups merge:N the groups have one order, that in which all replicas execute: any two tails of the same groups
print the same lines, and a tail of fewer groups prints those of its groups in the same order. It does not wait for the
others. With --groups shard:N the groups have no common order, and do not wait for each other here either.

A command is printed when it is decided. It may have no effect: a transaction may take its other branch, and a command
that a client sent again is there twice and is executed once. With -w json all of a command is printed, so that a
program can find that out: its session and number there, the fields of its request, and those that servers add, such as
the user. No tail shows hashes of passwords and tokens.

A tail goes on at the next of the endpoints if its replica fails, and loses nothing. At its end it says on standard error
what to give as --from in order to go on. Replicas keep only the newest part of their logs (serve --keep-slots,
--keep-bytes): a start that is gone is refused, with the first one that can be had.";

/// Arguments of `synod tail`.
#[derive(Clone, Debug, Args)]
pub struct TailArgs {
    /// The groups to follow, counted from 0; all if none is given.
    #[arg(long, value_name = "GROUP,...", value_delimiter = ',')]
    groups: Vec<u32>,
    /// Where to begin: now, beginning, round:N (of the common order), or after a slot of each group, GROUP:SLOT,... A
    /// group that --groups names and that has no slot here joins the others at their next round.
    #[arg(long, value_name = "START", default_value = "now")]
    from: From,
    /// End after this many lines.
    #[arg(short = 'n', long, value_name = "LINES", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Print also what concerns sessions, the replicated clock and the group itself.
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    client: ClientArgs,
}

/// Where a tail begins.
#[derive(Clone, Debug, PartialEq)]
struct From(Start);

impl FromStr for From {
    type Err = String;

    fn from_str(text: &str) -> Result<From, String> {
        let wrong = || {
            format!(
                "'{text}' is no start; accepted: now, beginning, round:N, or GROUP:SLOT,... such as 0:17,2:9"
            )
        };
        let point = |part: &str| {
            let (group, slot) = part.split_once(':')?;
            let (group, slot) = (group.parse().ok()?, slot.parse().ok()?);
            Some(GroupPoint { group, slot, ..GroupPoint::default() })
        };
        Ok(From(match text {
            "now" => Start::Now,
            "beginning" => Start::Beginning,
            _ => match text.strip_prefix("round:") {
                Some(round) => Start::Round(round.parse().map_err(|_| wrong())?),
                None => Start::Points(text.split(',').map(point).collect::<Option<_>>().ok_or_else(wrong)?),
            },
        }))
    }
}

pub fn run(args: &TailArgs) -> Result<(), Failure> {
    if !matches!(args.client.write_out, Format::Simple | Format::Json) {
        return Err(Failure::usage(
            "a tail has no end, and so no table; accepted for --write-out: simple, json",
        ));
    }
    let mut groups = args.groups.clone();
    if let (true, Start::Points(points)) = (groups.is_empty(), &args.from.0) {
        groups.extend(points.iter().map(|point| point.group));
    }
    let client = args.client.client()?;
    block_on(async {
        let mut subscription = client.subscribe(&groups, args.from.0.clone()).await?;
        let followed = tokio::select! {
            followed = follow(args, &mut subscription) => followed,
            _ = signal::ctrl_c() => Ok(()),
        };
        let points: Vec<String> =
            subscription.points().iter().map(|point| format!("{}:{}", point.group, point.slot)).collect();
        eprintln!("to go on: synod tail --from {}", points.join(","));
        followed
    })
}

async fn follow(args: &TailArgs, subscription: &mut Subscription) -> Result<(), Failure> {
    let mut left = args.count.unwrap_or(u64::MAX);
    while left > 0 {
        let batch = subscription.next().await?;
        let is_shown = |command: &&DecidedCommand| args.all || command.kind() == CommandKind::Apply;
        let mut text = String::new();
        for command in batch.commands.iter().filter(is_shown) {
            text += &match args.client.write_out {
                Format::Json => format!("{}\n", json::command(&batch, command)),
                _ => line(&batch, command),
            };
            left = left.saturating_sub(1);
        }
        output::print(text.as_bytes())?;
    }
    Ok(())
}

/// A command for people.
fn line(batch: &DecidedBatch, command: &DecidedCommand) -> String {
    let DecidedBatch { group, slot, position, .. } = batch;
    let position = position.map(|position| format!("@{position}")).unwrap_or_default();
    let what = match command.kind() {
        CommandKind::Apply => applied(&command.payload),
        CommandKind::OpenSession => "open a session".to_owned(),
        CommandKind::AdvanceClock => "advance the clock".to_owned(),
        CommandKind::Reconfigure => match ChangeRequest::decode(command.payload.clone()) {
            Ok(request) => format!("change the group: {}", describe::change(&request)),
            Err(_) => "change the group in a way that this program does not know".to_owned(),
        },
        CommandKind::Settle => "complete a change of voters".to_owned(),
        CommandKind::Skip => "skip".to_owned(),
    };
    format!("{:<12} {what}\n", format!("{group}:{slot}{position}"))
}

/// A command of the key-value store, or of another state machine.
fn applied(payload: &[u8]) -> String {
    match KvCommand::decode(payload).ok().and_then(|command| command.command) {
        Some(Command::Put(put)) => put_text(&put),
        Some(Command::DeleteRange(range)) => delete_text(&range),
        Some(Command::Txn(txn)) => txn_text(&txn),
        Some(Command::Compact(compact)) => format!("compact {}", compact.revision),
        Some(Command::Alarm(alarm)) => alarm_text(&alarm),
        Some(Command::LeaseGrant(grant)) => format!("lease {:x} for {} s", grant.id, grant.ttl),
        Some(Command::LeaseRevoke(revoke)) => format!("revoke lease {:x}", revoke.id),
        Some(Command::LeaseRenew(renew)) => {
            let ids: Vec<_> = renew.ids.iter().map(|id| format!("{id:x}")).collect();
            format!("renew leases {}", ids.join(", "))
        }
        Some(Command::HashCheck(check)) => match check.hash {
            None => format!("ask for hashes at revision {}", check.revision),
            Some(hash) => format!("hash {:08x} at revision {}", hash.hash, check.revision),
        },
        Some(Command::Auth(change)) => auth_text(&change),
        None => format!("{} bytes {}", payload.len(), text(payload)),
    }
}

fn alarm_text(alarm: &AlarmRequest) -> String {
    let of =
        if alarm.member_id == 0 { "all members".to_owned() } else { format!("member {:x}", alarm.member_id) };
    format!("alarm {} {} of {of}", alarm.action().as_str_name().to_lowercase(), alarm.alarm().as_str_name())
}

/// What becomes of users and roles. Hashes and tokens are left out.
fn auth_text(change: &KvAuthChange) -> String {
    match &change.change {
        Some(Change::Enable(_)) => "auth enable".to_owned(),
        Some(Change::Disable(_)) => "auth disable".to_owned(),
        Some(Change::Authenticate(user)) => format!("authenticate {:?}", user.name),
        Some(Change::UserAdd(user)) => format!("user add {:?}", user.name),
        Some(Change::UserDelete(user)) => format!("user delete {:?}", user.name),
        Some(Change::UserChangePassword(user)) => format!("user passwd {:?}", user.name),
        Some(Change::UserGrantRole(user)) => format!("user grant-role {:?} {:?}", user.user, user.role),
        Some(Change::UserRevokeRole(user)) => format!("user revoke-role {:?} {:?}", user.name, user.role),
        Some(Change::RoleAdd(role)) => format!("role add {:?}", role.name),
        Some(Change::RoleDelete(role)) => format!("role delete {:?}", role.role),
        Some(Change::RoleGrantPermission(role)) => {
            let permission = role.perm.as_ref().map(|perm| {
                let kind = Type::try_from(perm.perm_type);
                let kind = kind
                    .map_or_else(|kind| format!("kind {}", kind.0), |kind| kind.as_str_name().to_lowercase());
                format!("{kind} {}", range_text(&perm.key, &perm.range_end))
            });
            format!("role grant-permission {:?} {}", role.name, permission.unwrap_or_default())
        }
        Some(Change::RoleRevokePermission(role)) => {
            format!("role revoke-permission {:?} {}", role.role, range_text(&role.key, &role.range_end))
        }
        None => "auth".to_owned(),
    }
}

fn put_text(put: &PutRequest) -> String {
    let lease = if put.lease == 0 { String::new() } else { format!(" --lease {:x}", put.lease) };
    let value = if put.ignore_value { "--ignore-value".to_owned() } else { text(&put.value) };
    let kept = if put.ignore_lease { " --ignore-lease" } else { "" };
    format!("put {} {value}{lease}{kept}", text(&put.key))
}

fn delete_text(range: &DeleteRangeRequest) -> String {
    format!("delete {}", range_text(&range.key, &range.range_end))
}

fn get_text(range: &RangeRequest) -> String {
    format!("get {}", range_text(&range.key, &range.range_end))
}

fn range_text(key: &[u8], end: &[u8]) -> String {
    match end {
        [] => text(key),
        [0] => format!("{} and later", text(key)),
        end => format!("{} to {}", text(key), text(end)),
    }
}

fn txn_text(txn: &TxnRequest) -> String {
    let operations = |operations: &[RequestOp]| {
        let mut all = String::new();
        for operation in operations.iter().filter_map(|operation| operation.request.as_ref()) {
            let one = match operation {
                Request::RequestPut(put) => put_text(put),
                Request::RequestDeleteRange(range) => delete_text(range),
                Request::RequestRange(range) => get_text(range),
                Request::RequestTxn(inner) => format!("({})", txn_text(inner)),
            };
            let _ = write!(all, "{}{one}", if all.is_empty() { "" } else { ", " });
        }
        if all.is_empty() { "nothing".to_owned() } else { all }
    };
    let compares: Vec<_> = txn.compare.iter().map(compare_text).collect();
    let condition = if compares.is_empty() { "true".to_owned() } else { compares.join(", ") };
    format!("txn if {condition} then {} else {}", operations(&txn.success), operations(&txn.failure))
}

/// A comparison as `synod txn` takes it.
fn compare_text(compare: &Compare) -> String {
    let target = match compare.target() {
        CompareTarget::Version => "version",
        CompareTarget::Create => "create",
        CompareTarget::Mod => "mod",
        CompareTarget::Value => "value",
        CompareTarget::Lease => "lease",
    };
    let result = match compare.result() {
        CompareResult::Equal => "=",
        CompareResult::Greater => ">",
        CompareResult::Less => "<",
        CompareResult::NotEqual => "!=",
    };
    let with = match &compare.target_union {
        Some(
            TargetUnion::Version(number)
            | TargetUnion::CreateRevision(number)
            | TargetUnion::ModRevision(number),
        ) => number.to_string(),
        Some(TargetUnion::Value(value)) => text(value),
        Some(TargetUnion::Lease(id)) => format!("{id:x}"),
        // The store takes it for the target's default.
        None if compare.target() == CompareTarget::Value => text(&[]),
        None => "0".to_owned(),
    };
    format!("{target}({}) {result} {with}", range_text(&compare.key, &compare.range_end))
}

/// Bytes in quotes, as text if they are.
fn text(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) => format!("{text:?}"),
        Err(_) => format!("b\"{}\"", bytes.escape_ascii()),
    }
}

#[cfg(test)]
mod tests {
    use synod_client::{api::AuthRoleGrantPermissionRequest, authpb::Permission};
    use synod_replica::Change as OfGroup;
    use synod_wire::ReplicaId;

    use super::*;

    #[test]
    fn a_start_is_read_and_a_wrong_one_says_what_is_accepted() {
        let point = |group, slot| GroupPoint { group, slot, ..GroupPoint::default() };
        assert_eq!("now".parse(), Ok(From(Start::Now)));
        assert_eq!("round:12".parse(), Ok(From(Start::Round(12))));
        assert_eq!("0:17,2:9".parse(), Ok(From(Start::Points(vec![point(0, 17), point(2, 9)]))));
        for wrong in ["", "later", "round:", "0", "0:17,", "0:17,2", "-1:3"] {
            assert!(wrong.parse::<From>().unwrap_err().contains("accepted"), "{wrong}");
        }
    }

    #[test]
    fn commands_are_printed_for_people() {
        let put = |key: &str, value: &[u8]| PutRequest {
            key: key.to_owned().into(),
            value: value.to_vec().into(),
            ..PutRequest::default()
        };
        let range =
            DeleteRangeRequest { key: "a".into(), range_end: "b".into(), ..DeleteRangeRequest::default() };
        let txn = TxnRequest {
            success: vec![RequestOp { request: Some(Request::RequestPut(put("x", b"1"))) }],
            ..TxnRequest::default()
        };
        let of = |command| {
            let payload = KvCommand { command: Some(command), ..KvCommand::default() }.encode_to_vec();
            DecidedCommand { payload: payload.into(), session: 7, sequence: 3, ..DecidedCommand::default() }
        };
        let batch = DecidedBatch { group: 0, slot: 17, position: Some(5), commands: Vec::new() };
        assert_eq!(
            line(&batch, &of(Command::Put(put("city", b"\xff")))),
            "0:17@5       put \"city\" b\"\\xff\"\n"
        );
        assert_eq!(line(&batch, &of(Command::DeleteRange(range))), "0:17@5       delete \"a\" to \"b\"\n");
        assert_eq!(
            line(&batch, &of(Command::Txn(txn))),
            "0:17@5       txn if true then put \"x\" \"1\" else nothing\n"
        );
        let other = DecidedCommand { payload: "\u{1}?".into(), ..DecidedCommand::default() };
        assert_eq!(line(&batch, &other), "0:17@5       2 bytes \"\\u{1}?\"\n");
        let alarm = AlarmRequest { action: 2, member_id: 31, alarm: 1 };
        assert_eq!(
            line(&batch, &of(Command::Alarm(alarm))),
            "0:17@5       alarm deactivate NOSPACE of member 1f\n"
        );
        let perm = Permission { perm_type: 2, key: "a".into(), range_end: "b".into() };
        let grant = AuthRoleGrantPermissionRequest { name: "r".into(), perm: Some(perm) };
        let grant = KvAuthChange { change: Some(Change::RoleGrantPermission(grant)) };
        assert_eq!(
            line(&batch, &of(Command::Auth(grant))),
            "0:17@5       role grant-permission \"r\" readwrite \"a\" to \"b\"\n"
        );
        let removal = ChangeRequest { expected: 3, change: OfGroup::Remove(ReplicaId(2)) };
        let of_group = |payload| DecidedCommand {
            kind: CommandKind::Reconfigure.into(),
            payload,
            ..DecidedCommand::default()
        };
        assert_eq!(
            line(&batch, &of_group(removal.encode().to_bytes())),
            "0:17@5       change the group: remove r2 (of version 3)\n"
        );
        assert!(line(&batch, &of_group("?".into())).contains("in a way that this program does not know"));
    }

    #[test]
    fn a_transaction_is_printed_whole() {
        let compare = |key: &str, result: CompareResult, target: CompareTarget, with| Compare {
            result: result.into(),
            target: target.into(),
            key: key.to_owned().into(),
            target_union: Some(with),
            ..Compare::default()
        };
        let of_range = Compare {
            range_end: "c".into(),
            ..compare("b", CompareResult::NotEqual, CompareTarget::Lease, TargetUnion::Lease(16))
        };
        let kept = PutRequest {
            key: "x".into(),
            lease: 26,
            ignore_value: true,
            ignore_lease: true,
            ..PutRequest::default()
        };
        let read = RangeRequest { key: "x".into(), revision: 9, sort_order: 2, ..RangeRequest::default() };
        let operation = |request| RequestOp { request: Some(request) };
        let inner = TxnRequest {
            compare: vec![compare("d", CompareResult::Less, CompareTarget::Mod, TargetUnion::ModRevision(7))],
            failure: vec![operation(Request::RequestRange(read))],
            ..TxnRequest::default()
        };
        let txn = TxnRequest {
            compare: vec![
                compare("a", CompareResult::Equal, CompareTarget::Create, TargetUnion::CreateRevision(0)),
                compare("a", CompareResult::Greater, CompareTarget::Value, TargetUnion::Value("v".into())),
                of_range,
            ],
            success: vec![operation(Request::RequestPut(kept))],
            failure: vec![operation(Request::RequestTxn(inner))],
        };
        assert_eq!(
            txn_text(&txn),
            "txn if create(\"a\") = 0, value(\"a\") > \"v\", lease(\"b\" to \"c\") != 10 then put \"x\" --ignore-value --lease 1a \
             --ignore-lease else (txn if mod(\"d\") < 7 then nothing else get \"x\")"
        );
        assert_eq!(
            json::txn(&txn),
            serde_json::json!({
                "compares": 3,
                "compare": [
                    { "key": "YQ==", "result": "EQUAL", "target": "CREATE", "create_revision": 0 },
                    { "key": "YQ==", "result": "GREATER", "target": "VALUE", "value": "dg==" },
                    { "key": "Yg==", "range_end": "Yw==", "result": "NOT_EQUAL", "target": "LEASE", "lease": 16 },
                ],
                "success": [
                    { "put": { "key": "eA==", "lease": 26, "ignore_value": true, "ignore_lease": true } },
                ],
                "failure": [{
                    "txn": {
                        "compares": 1,
                        "compare": [{ "key": "ZA==", "result": "LESS", "target": "MOD", "mod_revision": 7 }],
                        "success": [],
                        "failure": [{ "range": { "key": "eA==", "revision": 9, "sort_order": "DESCEND" } }],
                    },
                }],
            })
        );
    }
}

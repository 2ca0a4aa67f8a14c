//! Requests that end etcd and that Synod answers.

use std::time::Duration;

use synod_api::etcdserverpb::{
    DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest, request_op::Request as Op,
};
use tokio::time::sleep;
use tonic::Code;

use super::{
    differences::{Answer, Verdict, judge},
    draw::Request,
    pair::{Pair, Trouble, ask},
};

/// A request that ends etcd.
struct Lethal {
    /// Its description in the report.
    what: &'static str,
    /// Whether it ends only versions before 3.6.
    old_only: bool,
    request: fn() -> Request,
    /// Whether an answer is the one that Synod must give.
    is_right: fn(&Answer) -> bool,
}

const KEY: &[u8] = b"there";

/// etcd checks a put with `ignore_value` or `ignore_lease` against the store before the transaction. It does
/// not check a deletion up to the end of all keys against puts, since its interval arithmetic takes that range
/// for empty. So it decides to execute a transaction that it then cannot execute, and every member panics,
/// again after each restart. Synod executes the operations in order: a deleted key has no value to keep.
const ALL: [Lethal; 3] = [
    Lethal {
        what: "a transaction that deletes up to the end of all keys and then puts one of them with `ignore_value`",
        old_only: false,
        request: || deletes_and_puts(PutRequest { ignore_value: true, ..put() }),
        is_right: is_executed,
    },
    Lethal {
        what: "the same with `ignore_lease`",
        old_only: false,
        request: || deletes_and_puts(PutRequest { ignore_lease: true, ..put() }),
        is_right: is_executed,
    },
    Lethal {
        what: "a range with a sort target that there is not (etcd before 3.6)",
        old_only: true,
        request: || {
            let range =
                RangeRequest { key: KEY.into(), sort_order: 1, sort_target: 99, ..Default::default() };
            Request::Range(range)
        },
        is_right: |answer| matches!(answer, Answer::Refused(Code::InvalidArgument, why) if why == "etcdserver: invalid sort option"),
    },
];
/// How long etcd may take to end.
const WAIT_MAX: Duration = Duration::from_secs(10);
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

fn put() -> PutRequest {
    PutRequest { key: KEY.into(), ..PutRequest::default() }
}

fn is_executed(answer: &Answer) -> bool {
    matches!(answer, Answer::Txn(txn) if txn.succeeded && txn.responses.len() == 2)
}

fn deletes_and_puts(put: PutRequest) -> Request {
    let delete = DeleteRangeRequest { key: KEY.into(), range_end: "\0".into(), prev_kv: true };
    let ops = [Op::RequestDeleteRange(delete), Op::RequestPut(put)];
    let success = ops.into_iter().map(|op| RequestOp { request: Some(op) }).collect();
    Request::Txn(TxnRequest { success, ..TxnRequest::default() })
}

/// Sends one of these requests to both systems, as the last request of a sequence, and returns its description.
pub async fn play(pair: &mut Pair, seed: u64) -> Result<&'static str, Trouble> {
    let all: Vec<&Lethal> = ALL.iter().filter(|lethal| !(lethal.old_only && pair.is_new)).collect();
    let &Lethal { what, request, is_right, .. } = all[usize::try_from(seed).unwrap_or(0) % all.len()];
    let there = Request::Put(put());
    alike(pair, &there).await?;
    let request = request();
    let [synod, etcd] = pair.sides.each_ref().map(|side| ask(side.client(0), request.clone()));
    let (synod, etcd) = tokio::join!(synod, etcd);
    let range = Request::Range(RangeRequest { key: KEY.into(), ..RangeRequest::default() });
    let after = ask(pair.sides[0].client(1), range).await;
    let stays = matches!(&after, Answer::Range(found) if found.count == 1);
    if !is_right(&synod) || !stays {
        return Err(Trouble::Differs(format!("{what}: Synod answered {synod:?}, and then {after:?}")));
    }
    for _ in 0..WAIT_MAX.as_millis() / LOOK_INTERVAL.as_millis() {
        if !pair.sides[1].cluster.dead().is_empty() {
            return Ok(what);
        }
        sleep(LOOK_INTERVAL).await;
    }
    Err(Trouble::Differs(format!("{what}: etcd should have ended, and answered {etcd:?}")))
}

/// Sends a request to both systems, whose answers must be the same.
pub async fn alike(pair: &mut Pair, request: &Request) -> Result<(), Trouble> {
    let answers = pair.ask(std::slice::from_ref(request)).await?;
    match answers.into_iter().next() {
        Some([synod, etcd]) if judge(request, synod.clone(), etcd.clone(), pair.is_new) == Verdict::Same => {
            Ok(())
        }
        other => Err(Trouble::Differs(format!("{request:?}: {other:?}"))),
    }
}

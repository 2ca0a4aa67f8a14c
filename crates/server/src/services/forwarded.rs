//! Answers of the store become messages for clients without being decoded.
//!
//! The state machine encodes an answer once, since sessions keep it as bytes: around the message that a client gets,
//! whose header has a revision and nothing else. Here the header is completed, and the other fields are copied to where
//! they are sent from.

use bytes::{Buf, Bytes};
use prost::{
    Message,
    encoding::{WireType, decode_key, decode_varint},
};
use synod_api::etcdserverpb::{LeaseRevokeResponse, ResponseHeader};
use synod_grpc::framed_with;

/// The field of the header, in every message that a client gets.
const HEADER: u32 = 1;

/// The field of `KvAnswer` that has a range.
pub(super) const RANGE: u32 = 1;

/// The fields of `KvReply` that have the replies to commands.
pub(super) const PUT: u32 = 1;
pub(super) const DELETE_RANGE: u32 = 2;
pub(super) const TXN: u32 = 3;

/// The message in this field of an answer, framed, with this header and the revision of the store's. `None` if the
/// answer is not this field alone, as when the store refuses something.
pub(super) fn forwarded(answer: &Bytes, field: u32, header: ResponseHeader) -> Option<Bytes> {
    let mut message = answer.clone();
    if sized(&mut message, field)? != message.len() {
        return None;
    }
    let len = sized(&mut message, HEADER).filter(|&len| len <= message.len())?;
    let ResponseHeader { revision, .. } = ResponseHeader::decode(message.split_to(len)).ok()?;
    // A message with nothing but a header.
    let head = LeaseRevokeResponse { header: Some(ResponseHeader { revision, ..header }) };
    Some(framed_with(&head, &message))
}

/// Takes the key of a field with this number, and how many bytes it has.
fn sized(message: &mut Bytes, field: u32) -> Option<usize> {
    let is_next = message.has_remaining() && decode_key(message).ok()? == (field, WireType::LengthDelimited);
    usize::try_from(decode_varint(message).ok().filter(|_| is_next)?).ok()
}

#[cfg(test)]
mod tests {
    use synod_api::{
        etcdserverpb::{
            DeleteRangeRequest, PutRequest, RangeRequest, RequestOp, TxnRequest, request_op::Request,
        },
        synod::v1::{
            KvAnswer, KvCommand, KvQuery, KvReply, kv_answer::Answer, kv_command::Command, kv_query::Query,
            kv_reply::Reply,
        },
    };
    use synod_grpc::framed;
    use synod_kv::KvStore;
    use synod_replica::{Context, StateMachine};
    use synod_wire::Slot;

    use super::*;

    const HEADER: ResponseHeader =
        ResponseHeader { cluster_id: 1 << 60, member_id: 300, raft_term: 7, revision: 0 };

    fn completed(told: ResponseHeader) -> ResponseHeader {
        ResponseHeader { revision: told.revision, ..HEADER }
    }

    /// The message for the client, decoded and encoded again.
    fn decoded(reply: Reply) -> Bytes {
        match reply {
            Reply::Put(mut done) => {
                done.header = done.header.map(completed);
                framed(&done)
            }
            Reply::DeleteRange(mut done) => {
                done.header = done.header.map(completed);
                framed(&done)
            }
            Reply::Txn(mut done) => {
                done.header = done.header.map(completed);
                framed(&done)
            }
            other => panic!("{other:?} is not passed on"),
        }
    }

    fn put(key: String, value: Vec<u8>) -> PutRequest {
        PutRequest { key: key.into(), value: value.into(), prev_kv: true, ..PutRequest::default() }
    }

    fn range(key: &str, end: &str) -> RangeRequest {
        let (key, range_end) = (key.to_owned().into(), end.to_owned().into());
        RangeRequest { key, range_end, ..RangeRequest::default() }
    }

    #[test]
    fn what_is_forwarded_has_the_bytes_of_what_is_decoded_and_encoded() {
        let mut store = KvStore::new();
        let mut rng = fastrand::Rng::with_seed(1);
        let mut forwarded_bytes = 0;
        for slot in 1..500 {
            let key = format!("k{}", rng.u8(0..20));
            let value = vec![b'v'; rng.usize(0..300)];
            let (field, command) = match rng.u8(0..4) {
                0 => {
                    let (key, prev_kv) = (key.into(), true);
                    let delete = DeleteRangeRequest { key, prev_kv, ..DeleteRangeRequest::default() };
                    (DELETE_RANGE, Command::DeleteRange(delete))
                }
                1 => {
                    let ops = [Request::RequestPut(put(key, value)), Request::RequestRange(range("k", "l"))];
                    let ops = ops.map(|op| RequestOp { request: Some(op) });
                    (TXN, Command::Txn(TxnRequest { success: ops.into(), ..TxnRequest::default() }))
                }
                _ => (PUT, Command::Put(put(key, value))),
            };
            let command = KvCommand { command: Some(command), ..KvCommand::default() }.encode_to_vec();
            let reply = store.apply(&command.into(), &Context::new(Slot(slot)));
            let sent = forwarded(&reply, field, HEADER).expect("it is a reply");
            let reply = KvReply::decode(reply).unwrap().reply.unwrap();
            assert_eq!(sent, decoded(reply));
            forwarded_bytes += sent.len();
            let query = Query::Range(range("k", if rng.bool() { "l" } else { "" }));
            let query = KvQuery { query: Some(query), ..KvQuery::default() }.encode_to_vec();
            let answer = StateMachine::query(&store, &query.into());
            let sent = forwarded(&answer, RANGE, HEADER).expect("it is a range");
            let Some(Answer::Range(mut found)) = KvAnswer::decode(answer).unwrap().answer else {
                panic!("it is a range")
            };
            found.header = found.header.map(completed);
            assert_eq!(sent, framed(&found));
        }
        assert!(forwarded_bytes > 50_000);
    }

    #[test]
    fn what_is_no_such_answer_is_decoded() {
        let mut store = KvStore::new();
        let command = Command::Put(PutRequest::default());
        let command = KvCommand { command: Some(command), ..KvCommand::default() }.encode_to_vec();
        let refused = store.apply(&command.into(), &Context::new(Slot(1)));
        assert!(matches!(KvReply::decode(refused.clone()).unwrap().reply, Some(Reply::Error(_))));
        assert_eq!(forwarded(&refused, PUT, HEADER), None);
        let query = KvQuery { query: Some(Query::Range(range("k", ""))), ..KvQuery::default() };
        let answer = StateMachine::query(&store, &query.encode_to_vec().into());
        assert!(forwarded(&answer, RANGE, HEADER).is_some());
        for end in 0..answer.len() {
            assert_eq!(forwarded(&answer.slice(..end), RANGE, HEADER), None, "{end} bytes of it");
        }
        let more = [&answer[..], &[0x10, 1]].concat().into();
        assert_eq!(forwarded(&more, RANGE, HEADER), None, "it says that other pieces follow");
    }
}

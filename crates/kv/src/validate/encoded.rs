//! The number of operations of a transaction that is still encoded.
//!
//! An empty operation has two bytes and a hundred times as many once it is decoded. So operations are counted before
//! that, without any memory for each: a transaction that has more than a client may send is not decoded.

use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};

use super::{Limits, TXN_DEPTH_MAX};
use crate::KvError;

/// The field of a `KvCommand`, and of a `KvQuery`, that holds a transaction.
const TXN_OF_COMMAND: u32 = 3;
const TXN_OF_QUERY: u32 = 2;
/// The fields of a transaction: its comparisons, and the operations of its branches.
const LISTS: [u32; 3] = [1, 2, 3];
const BRANCHES: [u32; 2] = [2, 3];
/// The field of an operation that holds a nested transaction.
const NESTED: u32 = 4;

/// Checks the number of operations of an encoded `KvCommand`. Bytes that cannot be decoded may pass.
///
/// # Errors
/// [`KvError::TooManyOps`], [`KvError::NestedTooDeeply`].
pub fn encoded_command(command: &[u8], limits: &Limits) -> Result<(), KvError> {
    txn(&parts(command, TXN_OF_COMMAND), limits.txn_ops_max, &mut limits.txn_ops_total_max(), TXN_DEPTH_MAX)
}

/// Checks the number of operations of an encoded `KvQuery`. Bytes that cannot be decoded may pass.
///
/// # Errors
/// [`KvError::TooManyOps`], [`KvError::NestedTooDeeply`].
pub fn encoded_query(query: &[u8], limits: &Limits) -> Result<(), KvError> {
    txn(&parts(query, TXN_OF_QUERY), limits.txn_ops_max, &mut limits.txn_ops_total_max(), TXN_DEPTH_MAX)
}

/// Checks the number of operations of an encoded `TxnRequest`. Bytes that cannot be decoded may pass.
///
/// # Errors
/// [`KvError::TooManyOps`], [`KvError::NestedTooDeeply`].
pub fn encoded_txn(request: &[u8], limits: &Limits) -> Result<(), KvError> {
    txn(&[request], limits.txn_ops_max, &mut limits.txn_ops_total_max(), TXN_DEPTH_MAX)
}

/// Checks a transaction, which may be in several parts: a field that comes again is merged with what came before.
/// It has at most `ops_max` operations in each list, and all of them are taken from `total_left`.
fn txn(
    parts_of_txn: &[&[u8]],
    ops_max: usize,
    total_left: &mut usize,
    depth_left: usize,
) -> Result<(), KvError> {
    if parts_of_txn.is_empty() {
        return Ok(());
    }
    let below = depth_left.checked_sub(1).ok_or(KvError::NestedTooDeeply)?;
    let mut counts = [0; LISTS.len()];
    for part in parts_of_txn {
        each(part, |field, _| {
            if let Some(list) = LISTS.iter().position(|list| *list == field) {
                counts[list] += 1;
                if counts[list] > ops_max {
                    return Err(KvError::TooManyOps);
                }
                *total_left = total_left.checked_sub(1).ok_or(KvError::TooManyOps)?;
            }
            Ok(())
        })?;
    }
    let left = ops_max - counts.into_iter().max().unwrap_or(0);
    for part in parts_of_txn {
        each(part, |field, op| match BRANCHES.contains(&field) {
            true => txn(&parts(op, NESTED), left, total_left, below),
            false => Ok(()),
        })?;
    }
    Ok(())
}

/// The values of a field that is a message or bytes.
fn parts(message: &[u8], wanted: u32) -> Vec<&[u8]> {
    let mut found = Vec::new();
    let walked = each(message, |field, value| {
        if field == wanted {
            found.push(value);
        }
        Ok(())
    });
    debug_assert!(walked.is_ok(), "nothing is refused");
    found
}

/// Calls `take` for each field that is a message or bytes, up to where the decoder would fail.
fn each<'a>(
    mut message: &'a [u8],
    mut take: impl FnMut(u32, &'a [u8]) -> Result<(), KvError>,
) -> Result<(), KvError> {
    while let Ok((field, wire_type)) = decode_key(&mut message) {
        if wire_type != WireType::LengthDelimited {
            if skip_field(wire_type, field, &mut message, DecodeContext::default()).is_err() {
                break;
            }
            continue;
        }
        let len = decode_varint(&mut message).ok().and_then(|len| usize::try_from(len).ok());
        let Some((value, rest)) = len.and_then(|len| message.split_at_checked(len)) else { break };
        take(field, value)?;
        message = rest;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use prost::Message as _;
    use synod_api::{
        etcdserverpb::{Compare, RequestOp, TxnRequest},
        synod::v1::{KvCommand, KvQuery, kv_command::Command, kv_query::Query},
    };

    use super::*;
    use crate::{
        testing::{all, op_put, op_range, op_txn},
        validate::check_ops,
    };

    fn limits(txn_ops_max: usize) -> Limits {
        Limits { txn_ops_max, ..Limits::default() }
    }

    fn random_txn(random: &mut fastrand::Rng, depth: usize) -> TxnRequest {
        let ops = |random: &mut fastrand::Rng| -> Vec<RequestOp> {
            let op = |random: &mut fastrand::Rng| match random.u8(0..4) {
                0 if depth > 0 => op_txn(random_txn(random, depth - 1)),
                1 => op_range("k", ""),
                _ => op_put("k", "v"),
            };
            (0..random.usize(0..5)).map(|_| op(random)).collect()
        };
        let (success, failure) = (ops(random), ops(random));
        let compare = vec![Compare { key: "k".into(), ..Compare::default() }; random.usize(0..5)];
        TxnRequest { compare, success, failure }
    }

    #[test]
    fn what_is_encoded_is_counted_as_what_is_decoded() {
        let mut random = fastrand::Rng::with_seed(3);
        let (mut passed, mut refused) = (0, 0);
        for _ in 0..5_000 {
            let (ops_max, depth) = (random.usize(0..12), random.usize(0..4));
            let request = random_txn(&mut random, depth);
            let limits = limits(ops_max);
            let decoded = check_ops(&request, ops_max, &mut limits.txn_ops_total_max(), TXN_DEPTH_MAX);
            assert_eq!(encoded_txn(&request.encode_to_vec(), &limits), decoded, "{request:?}");
            *if decoded.is_ok() { &mut passed } else { &mut refused } += 1;
        }
        assert!(passed > 500 && refused > 500, "{passed} and {refused}");
    }

    #[test]
    fn a_transaction_is_counted_where_a_command_and_a_query_have_it() {
        let of = |count: usize| all(vec![RequestOp { request: None }; count]);
        let command = |txn| KvCommand { command: Some(Command::Txn(txn)), ..KvCommand::default() };
        let query = |txn| KvQuery { query: Some(Query::Txn(txn)), ..KvQuery::default() };
        for (count, outcome) in [(128, Ok(())), (129, Err(KvError::TooManyOps))] {
            let (command, query) = (command(of(count)).encode_to_vec(), query(of(count)).encode_to_vec());
            assert_eq!(encoded_command(&command, &Limits::default()), outcome);
            assert_eq!(encoded_query(&query, &Limits::default()), outcome);
        }
        // The decoder merges a message that comes in parts.
        let half = command(of(100)).encode_to_vec();
        let merged = [&half[..], &half].concat();
        assert_eq!(KvCommand::decode(&merged[..]).unwrap(), command(of(200)));
        assert_eq!(encoded_command(&merged, &Limits::default()), Err(KvError::TooManyOps));
        let part = op_txn(of(100)).encode_to_vec();
        let nested = RequestOp::decode(&[&part[..], &part].concat()[..]).unwrap();
        assert_eq!(nested, op_txn(of(200)));
        let mut around = Vec::new();
        prost::encoding::encode_key(2, WireType::LengthDelimited, &mut around);
        prost::encoding::encode_varint(2 * part.len() as u64, &mut around);
        around.extend([&part[..], &part].concat());
        assert_eq!(encoded_txn(&around, &Limits::default()), Err(KvError::TooManyOps));
    }

    #[test]
    fn operations_of_all_levels_are_counted_before_anything_is_decoded() {
        let wide = |op: RequestOp, width: usize| op_txn(all(vec![op; width]));
        let tree = |width: usize| wide(wide(op_txn(all(vec![])), width), width);
        // 12 + 12 * 12 + 12 * 12 * 12 are 1,884 operations, and with 13 in each list they are 2,379.
        for (width, outcome) in [(12, Ok(())), (13, Err(KvError::TooManyOps)), (40, Err(KvError::TooManyOps))]
        {
            let request = all(vec![tree(width); width]);
            assert_eq!(encoded_txn(&request.encode_to_vec(), &Limits::default()), outcome, "{width}");
            let command = KvCommand { command: Some(Command::Txn(request)), ..KvCommand::default() };
            assert_eq!(encoded_command(&command.encode_to_vec(), &Limits::default()), outcome, "{width}");
        }
    }

    #[test]
    fn depth_is_bounded_and_bytes_that_are_none_are_left_to_the_decoder() {
        let nested =
            |depth| (1..depth).fold(all(vec![]), |inner, _| all(vec![op_txn(inner)])).encode_to_vec();
        assert_eq!(encoded_txn(&nested(TXN_DEPTH_MAX), &Limits::default()), Ok(()));
        assert_eq!(
            encoded_txn(&nested(TXN_DEPTH_MAX + 1), &Limits::default()),
            Err(KvError::NestedTooDeeply)
        );
        let valid = all(vec![op_txn(all(vec![op_put("key", "value")]))]).encode_to_vec();
        (0..valid.len()).for_each(|end| assert_eq!(encoded_txn(&valid[..end], &limits(1)), Ok(()), "{end}"));
    }
}

//! etcd's service KV.

use bytes::Bytes;
use prost::Message as _;
use synod_api::{
    etcdserverpb::{
        CompactionRequest, CompactionResponse, DeleteRangeRequest, DeleteRangeResponse, PutRequest,
        PutResponse, RangeRequest, RangeResponse, RangeStreamResponse, ResponseHeader, TxnRequest,
        TxnResponse,
        range_request::{SortOrder, SortTarget},
    },
    synod::v1::{kv_answer::Answer, kv_command::Command, kv_query::Query, kv_reply::Reply},
};
use synod_kv::validate;
use tonic::Status;

use super::envelope::{Store, refusal, unexpected};
use crate::{Consistency, Replica, message::framed};

/// Keys in the first piece of a streamed range.
const PIECE_KEYS_FIRST: i64 = 64;
/// What a piece of a streamed range should have; the next piece's number of keys is chosen to come near it.
const PIECE_BYTES: usize = 1 << 20;

impl<R: Replica> Store<R> {
    pub(super) fn range(
        &self,
        request: RangeRequest,
    ) -> impl Future<Output = Result<RangeResponse, Status>> + Send {
        let consistency = consistency(request.serializable);
        let query = validate::range(&request).map(|()| Query::Range(request));
        self.query(query, consistency, |answer| match answer {
            Answer::Range(found) => Ok(RangeResponse { header: self.header(found.header), ..found }),
            other => Err(unexpected(other)),
        })
    }

    /// A range in pieces, all of them at the revision of the first, so that together they are one consistent answer.
    /// The keys come in their own order. That is also what no order stands for, whatever the sort target is: a piece
    /// ends with a key and the next one begins behind it, which no other order allows.
    pub(super) fn range_stream(&self, request: RangeRequest) -> Result<Pieces<'_, R>, Status> {
        validate::range(&request).map_err(|error| refusal(&error))?;
        let by_key = request.sort_order() == SortOrder::None
            || (request.sort_order() == SortOrder::Ascend && request.sort_target() == SortTarget::Key);
        let bounds = [
            request.min_mod_revision,
            request.max_mod_revision,
            request.min_create_revision,
            request.max_create_revision,
        ];
        if !by_key {
            return Err(Status::unimplemented("RangeStream does not support custom sort orders"));
        }
        if bounds != [0; 4] {
            return Err(Status::unimplemented("RangeStream does not support revision filters"));
        }
        let left = if request.limit <= 0 { i64::MAX } else { request.limit };
        let request = RangeRequest { sort_target: SortTarget::Key.into(), ..request };
        Ok(Pieces { store: self, rest: Some(request), left, piece_keys: PIECE_KEYS_FIRST, whole: None })
    }

    pub(super) fn put(
        &self,
        request: PutRequest,
    ) -> impl Future<Output = Result<PutResponse, Status>> + Send {
        self.execute(Command::Put(request), |reply| match reply {
            Reply::Put(done) => Ok(PutResponse { header: self.header(done.header), ..done }),
            other => Err(unexpected(other)),
        })
    }

    pub(super) fn delete_range(
        &self,
        request: DeleteRangeRequest,
    ) -> impl Future<Output = Result<DeleteRangeResponse, Status>> + Send {
        self.execute(Command::DeleteRange(request), |reply| match reply {
            Reply::DeleteRange(done) => Ok(DeleteRangeResponse { header: self.header(done.header), ..done }),
            other => Err(unexpected(other)),
        })
    }

    pub(super) fn compact(
        &self,
        request: CompactionRequest,
    ) -> impl Future<Output = Result<CompactionResponse, Status>> + Send {
        self.execute(Command::Compact(request), |reply| match reply {
            Reply::Compact(done) => Ok(CompactionResponse { header: self.header(done.header) }),
            other => Err(unexpected(other)),
        })
    }

    pub(super) fn txn(
        &self,
        request: TxnRequest,
    ) -> impl Future<Output = Result<TxnResponse, Status>> + Send {
        self.execute(Command::Txn(request), |reply| match reply {
            Reply::Txn(done) => Ok(TxnResponse { header: self.header(done.header), ..done }),
            other => Err(unexpected(other)),
        })
    }

    /// A transaction that can not write need not be ordered.
    pub(super) fn read_only_txn(
        &self,
        request: TxnRequest,
    ) -> impl Future<Output = Result<TxnResponse, Status>> + Send {
        let consistency = consistency(validate::is_serializable(&request));
        let query = validate::txn(&request, &self.limits()).map(|()| Query::Txn(request));
        self.query(query, consistency, |answer| match answer {
            Answer::Txn(found) => Ok(TxnResponse { header: self.header(found.header), ..found }),
            other => Err(unexpected(other)),
        })
    }
}

/// The pieces of a range that are still to be sent.
#[derive(Debug)]
pub(crate) struct Pieces<'a, R> {
    store: &'a Store<R>,
    /// For what the next piece begins with; nothing, after the last one.
    rest: Option<RangeRequest>,
    /// Keys that the client still wants.
    left: i64,
    /// Keys in the next piece.
    piece_keys: i64,
    /// The first piece's header and number of keys, which the last piece has, since they concern the whole.
    whole: Option<(Option<ResponseHeader>, i64)>,
}

impl<R: Replica> Pieces<'_, R> {
    /// The next message.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, Status> {
        let Some(mut request) = self.rest.take() else { return Ok(None) };
        request.limit = self.piece_keys.min(self.left);
        let mut piece = self.store.range(request.clone()).await?;
        let (header, count) = *self.whole.get_or_insert((piece.header, piece.count));
        self.left -= i64::try_from(piece.kvs.len()).unwrap_or(i64::MAX);
        self.piece_keys = next_piece_keys(self.piece_keys, piece.encoded_len());
        if let Some(last) = piece.kvs.last().filter(|_| piece.more && self.left > 0) {
            // The first key beyond the last one sent.
            request.key = [&last.key[..], &[0]].concat().into();
            if request.revision <= 0 {
                request.revision = header.map_or(0, |header| header.revision);
            }
            // This replica's state has the revision; it need not be confirmed again.
            request.serializable = true;
            self.rest = Some(request);
            (piece.header, piece.count, piece.more) = (None, 0, false);
        } else {
            (piece.header, piece.count) = (header, count);
        }
        Ok(Some(framed(&RangeStreamResponse { range_response: Some(piece) })))
    }
}

fn next_piece_keys(keys: i64, bytes: usize) -> i64 {
    if bytes < PIECE_BYTES / 2 {
        keys.saturating_mul(2)
    } else if bytes > PIECE_BYTES * 2 {
        (keys / 2).max(1)
    } else {
        keys
    }
}

fn consistency(serializable: bool) -> Consistency {
    if serializable { Consistency::Serializable } else { Consistency::Linearizable }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_grow_and_shrink_towards_their_size() {
        assert_eq!(next_piece_keys(64, 1000), 128);
        assert_eq!(next_piece_keys(64, PIECE_BYTES), 64);
        assert_eq!(next_piece_keys(64, 5 * PIECE_BYTES), 32);
        assert_eq!(next_piece_keys(1, 5 * PIECE_BYTES), 1);
    }
}

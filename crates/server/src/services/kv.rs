//! etcd's service KV.

use std::sync::Arc;

use prost::Message;
use synod_api::{
    etcdserverpb::{
        CompactionRequest, CompactionResponse, DeleteRangeRequest, DeleteRangeResponse, PutRequest,
        PutResponse, RangeRequest, RangeResponse, RangeStreamResponse, TxnRequest, TxnResponse,
        kv_server::Kv,
        range_request::{SortOrder, SortTarget},
    },
    synod::v1::{kv_answer::Answer, kv_command::Command, kv_query::Query, kv_reply::Reply},
};
use synod_kv::validate;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};

use super::envelope::{Store, refusal, unexpected};
use crate::{Consistency, Replica};

/// Keys in the first piece of a streamed range.
const PIECE_KEYS_FIRST: i64 = 64;
/// What a piece of a streamed range should have; the next piece's number of keys is chosen to come near it.
const PIECE_BYTES: usize = 1 << 20;
/// Pieces that wait for the client to take them.
const PIECES_WAITING_MAX: usize = 2;

#[derive(Debug)]
pub(crate) struct KvService<R> {
    store: Arc<Store<R>>,
}

impl<R: Replica> KvService<R> {
    pub(super) fn new(store: Arc<Store<R>>) -> KvService<R> {
        KvService { store }
    }
}

impl<R: Replica> Store<R> {
    async fn range(&self, request: RangeRequest) -> Result<RangeResponse, Status> {
        let consistency = consistency(request.serializable);
        match self.query(Query::Range(request), consistency).await? {
            Answer::Range(mut response) => {
                response.header = self.header(response.header);
                Ok(response)
            }
            other => Err(unexpected(other)),
        }
    }

    /// Sends a range in pieces, all of them at the revision of the first, so that together they are one consistent
    /// answer; the last one carries what concerns the whole.
    async fn stream_range(
        &self,
        mut request: RangeRequest,
        pieces: &mpsc::Sender<Result<RangeStreamResponse, Status>>,
    ) -> Result<(), Status> {
        let mut left = if request.limit == 0 { i64::MAX } else { request.limit };
        let mut piece_keys = PIECE_KEYS_FIRST;
        let mut whole = None;
        loop {
            request.limit = piece_keys.min(left);
            let mut piece = self.range(request.clone()).await?;
            let (header, count) = *whole.get_or_insert((piece.header, piece.count));
            left -= i64::try_from(piece.kvs.len()).unwrap_or(i64::MAX);
            piece_keys = next_piece_keys(piece_keys, piece.encoded_len());
            let last = piece.kvs.last().filter(|_| piece.more && left > 0).map(|kv| kv.key.clone());
            if last.is_none() {
                (piece.header, piece.count) = (header, count);
            } else {
                (piece.header, piece.count, piece.more) = (None, 0, false);
            }
            let gone = pieces.send(Ok(RangeStreamResponse { range_response: Some(piece) })).await.is_err();
            let (Some(last), false) = (last, gone) else { return Ok(()) };
            // The first key beyond the last one sent.
            request.key = [&last[..], &[0]].concat().into();
            if request.revision <= 0 {
                request.revision = header.map_or(0, |header| header.revision);
            }
            // This replica's state has the revision; it need not be confirmed again.
            request.serializable = true;
        }
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

#[tonic::async_trait]
impl<R: Replica> Kv for KvService<R> {
    async fn range(&self, request: Request<RangeRequest>) -> Result<Response<RangeResponse>, Status> {
        let request = request.into_inner();
        validate::range(&request).map_err(|error| refusal(&error))?;
        self.store.range(request).await.map(Response::new)
    }

    type RangeStreamStream = ReceiverStream<Result<RangeStreamResponse, Status>>;

    async fn range_stream(
        &self,
        request: Request<RangeRequest>,
    ) -> Result<Response<Self::RangeStreamStream>, Status> {
        let request = request.into_inner();
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
        let (pieces, receiver) = mpsc::channel(PIECES_WAITING_MAX);
        let store = self.store.clone();
        tokio::spawn(async move {
            if let Err(status) = store.stream_range(request, &pieces).await {
                // If the client has gone, nobody wants to know.
                let _ = pieces.send(Err(status)).await;
            }
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn put(&self, request: Request<PutRequest>) -> Result<Response<PutResponse>, Status> {
        match self.store.execute(Command::Put(request.into_inner())).await? {
            Reply::Put(mut response) => {
                response.header = self.store.header(response.header);
                Ok(Response::new(response))
            }
            other => Err(unexpected(other)),
        }
    }

    async fn delete_range(
        &self,
        request: Request<DeleteRangeRequest>,
    ) -> Result<Response<DeleteRangeResponse>, Status> {
        match self.store.execute(Command::DeleteRange(request.into_inner())).await? {
            Reply::DeleteRange(mut response) => {
                response.header = self.store.header(response.header);
                Ok(Response::new(response))
            }
            other => Err(unexpected(other)),
        }
    }

    /// A transaction that can not write need not be ordered.
    async fn txn(&self, request: Request<TxnRequest>) -> Result<Response<TxnResponse>, Status> {
        let request = request.into_inner();
        let response = if validate::is_read_only(&request) {
            validate::txn(&request, self.store.limits()).map_err(|error| refusal(&error))?;
            let consistency = consistency(validate::is_serializable(&request));
            match self.store.query(Query::Txn(request), consistency).await? {
                Answer::Txn(response) => response,
                other => return Err(unexpected(other)),
            }
        } else {
            match self.store.execute(Command::Txn(request)).await? {
                Reply::Txn(response) => response,
                other => return Err(unexpected(other)),
            }
        };
        Ok(Response::new(TxnResponse { header: self.store.header(response.header), ..response }))
    }

    async fn compact(
        &self,
        request: Request<CompactionRequest>,
    ) -> Result<Response<CompactionResponse>, Status> {
        match self.store.execute(Command::Compact(request.into_inner())).await? {
            Reply::Compact(mut response) => {
                response.header = self.store.header(response.header);
                Ok(Response::new(response))
            }
            other => Err(unexpected(other)),
        }
    }
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

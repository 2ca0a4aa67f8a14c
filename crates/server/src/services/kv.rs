//! etcd's service KV.

use std::mem;

use bytes::{Buf, Bytes};
use prost::Message as _;
use synod_api::{
    etcdserverpb::{
        CompactionRequest, CompactionResponse, DeleteRangeRequest, PutRequest, RangeRequest, RangeResponse,
        RangeStreamResponse, TxnRequest, TxnResponse,
        range_request::{SortOrder, SortTarget},
    },
    synod::v1::{
        KvAnswer, KvStatus, kv_answer::Answer as Found, kv_command::Command, kv_query::Query, kv_reply::Reply,
    },
};
use synod_grpc::{begun, framed};
use synod_kv::{KvError, validate};
use tonic::Status;

use super::{
    Answer,
    envelope::{Store, failed, garbled, refusal, unexpected},
    forwarded::{DELETE_RANGE, PUT, RANGE, TXN, forwarded},
};
use crate::{
    Consistency, Replica,
    auth::Who,
    readers::{Lane, Place, Source},
    replica,
};

/// The largest message that gRPC's Go implementation takes, and so what clients of etcd know.
const MESSAGE_BYTES_MAX: u64 = i32::MAX as u64;

impl<R: Replica> Store<R> {
    pub(super) fn range(
        &self,
        who: &Who,
        request: RangeRequest,
    ) -> impl Future<Output = Result<Answer<'_, R>, Status>> + Send {
        let consistency = consistency(request.serializable);
        // In any other order all pairs are in memory before the first is sent.
        let as_found = is_by_key(&request) && bounds_of_revisions(&request) == [0; 4];
        let query = validate::range(&request).map(|()| Query::Range(request));
        let found = self.asked(who, query, consistency);
        async move {
            match found.await? {
                replica::Answer::Pieces(source) => {
                    Ok(Answer::Pieces(Pieces::new(self, source, Form::OneMessage, !as_found)))
                }
                answer => {
                    let answer = answer.whole();
                    let header = self.header(None).unwrap_or_default();
                    if let Some(message) = forwarded(&answer, RANGE, header) {
                        return Ok(Answer::Message(message));
                    }
                    let (found, _) = self.ranged(answer)?;
                    Ok(Answer::Message(framed(&found)))
                }
            }
        }
    }

    /// A range in pieces, all of one state, sorted as the answer to [`range`](Self::range) is. As with etcd, a sort
    /// target that is not the key is refused with an order and taken without one.
    pub(super) fn range_stream(
        &self,
        who: &Who,
        request: RangeRequest,
    ) -> impl Future<Output = Result<Answer<'_, R>, Status>> + Send {
        let no_order = request.sort_order() == SortOrder::None;
        let unsupported = if !no_order && !is_by_key(&request) {
            Some("RangeStream does not support custom sort orders")
        } else if bounds_of_revisions(&request) != [0; 4] {
            Some("RangeStream does not support revision filters")
        } else {
            None
        };
        let consistency = consistency(request.serializable);
        let query = validate::range(&request).map(|()| Query::Range(request));
        let unsupported = unsupported.filter(|_| query.is_ok());
        let found = self.asked(who, query, consistency);
        async move {
            if let Some(unsupported) = unsupported {
                return Err(Status::unimplemented(unsupported));
            }
            match found.await? {
                replica::Answer::Pieces(source) => {
                    Ok(Answer::Pieces(Pieces::new(self, source, Form::Messages, false)))
                }
                answer => {
                    let (found, _) = self.ranged(answer.whole())?;
                    Ok(Answer::Message(streamed(&found)))
                }
            }
        }
    }

    /// Decodes an answer to a range, or its first piece. Also returns the bytes that the other pieces have.
    fn ranged(&self, answer: Bytes) -> Result<(RangeResponse, u64), Status> {
        let KvAnswer { answer, rest_bytes } = KvAnswer::decode(answer).map_err(garbled)?;
        match answer {
            Some(Found::Range(found)) => {
                Ok((RangeResponse { header: self.header(found.header), ..found }, rest_bytes))
            }
            Some(Found::Error(error)) => Err(failed(error)),
            other => Err(unexpected(other)),
        }
    }

    /// A put whose answer has the pair that it replaces.
    pub(super) async fn replace(
        &self,
        who: &Who,
        request: PutRequest,
        lane: &Lane,
    ) -> Result<(Bytes, Option<Place>), Status> {
        self.execute_in_place(who, (Command::Put(request), PUT), lane).await
    }

    pub(super) async fn delete_range(
        &self,
        who: &Who,
        request: DeleteRangeRequest,
        lane: &Lane,
    ) -> Result<(Bytes, Option<Place>), Status> {
        self.execute_in_place(who, (Command::DeleteRange(request), DELETE_RANGE), lane).await
    }

    pub(super) async fn compact(
        &self,
        who: &Who,
        request: CompactionRequest,
    ) -> Result<CompactionResponse, Status> {
        let execute = self.execute(who, Command::Compact(request), |reply| match reply {
            Reply::Compact(done) => Ok(CompactionResponse { header: self.header(done.header) }),
            other => Err(unexpected(other)),
        });
        let response = execute.await?;
        self.clear_away(who, request).await?;
        Ok(response)
    }

    /// Waits until what a compaction made superfluous is cleared away, if the client asks for that, or compacts because
    /// the quota is used up: it then expects room. Each command clears a portion, so no other command waits for more
    /// than one portion.
    async fn clear_away(&self, who: &Who, request: CompactionRequest) -> Result<(), Status> {
        let more = CompactionRequest { physical: true, ..request };
        let compacted = refusal(&KvError::Compacted);
        loop {
            let KvStatus { compact_revision, purged_revision, alarms, .. } =
                self.status(Consistency::Serializable).await?;
            let waits = request.physical || !alarms.is_empty();
            if !waits || compact_revision != request.revision || purged_revision >= compact_revision {
                return Ok(());
            }
            match self.execute(who, Command::Compact(more), |_| Ok(())).await {
                Err(status) if status.message() == compacted.message() => {}
                other => other?,
            }
        }
    }

    pub(super) async fn txn(
        &self,
        who: &Who,
        request: TxnRequest,
        lane: &Lane,
    ) -> Result<(Bytes, Option<Place>), Status> {
        self.execute_in_place(who, (Command::Txn(request), TXN), lane).await
    }

    /// A transaction that cannot write need not be ordered.
    pub(super) fn read_only_txn(
        &self,
        who: &Who,
        request: TxnRequest,
        lane: &Lane,
    ) -> impl Future<Output = Result<(TxnResponse, Option<Place>), Status>> + Send {
        let consistency = consistency(validate::is_serializable(&request));
        let query = validate::txn(&request, &self.limits()).map(|()| Query::Txn(request));
        self.query(who, query, consistency, lane, |answer| match answer {
            Found::Txn(found) => Ok(TxnResponse { header: self.header(found.header), ..found }),
            other => Err(unexpected(other)),
        })
    }
}

/// A large range, or a snapshot, whose next piece is made once the client has taken the last one.
pub(crate) struct Pieces<'a, R> {
    store: &'a Store<R>,
    source: Option<Source>,
    form: Form,
    begun: bool,
    /// Whether all pairs must be in memory before the first is sent.
    whole: bool,
    /// The fields that concern the whole range, if the last message carries them.
    last: Option<RangeResponse>,
}

/// How the pieces are sent: as parts of one message, or each as a message.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    OneMessage,
    Messages,
    /// They are messages already.
    Ready,
}

impl<'a, R: Replica> Pieces<'a, R> {
    fn new(store: &'a Store<R>, source: Source, form: Form, whole: bool) -> Box<Pieces<'a, R>> {
        let (source, begun, last) = (Some(source), false, None);
        Box::new(Pieces { store, source, form, begun, whole, last })
    }

    /// Messages that are made as they are sent.
    pub(super) fn ready(store: &'a Store<R>, source: Source) -> Box<Pieces<'a, R>> {
        Pieces::new(store, source, Form::Ready, false)
    }

    /// Waits for the places that the range needs until it is sent. The scarcer place comes first, so that a
    /// range that waits for it holds no other.
    pub(crate) async fn places(&mut self, lane: &Lane) -> (Option<Place>, Place) {
        let whole = if self.whole { Some(lane.place().await) } else { None };
        let sending = lane.sending().await;
        for place in whole.iter().chain([&sending]) {
            self.source = self.source.take().map(|source| place.kept_by(source));
        }
        (whole, sending)
    }

    /// Whether everything has been handed out to be sent.
    pub(crate) fn are_sent(&self) -> bool {
        self.begun && self.source.is_none() && self.last.is_none()
    }

    /// Makes the next bytes to be sent, about `bytes` of them. Returns nothing after the last ones.
    pub(crate) async fn next(&mut self, lane: &Lane, bytes: usize) -> Result<Vec<Bytes>, Status> {
        if self.form == Form::Ready {
            self.begun = true;
            return lane.next(&mut self.source, bytes).await;
        }
        if !mem::replace(&mut self.begun, true) {
            // Asking for one byte gives the first piece alone.
            let head = lane.next(&mut self.source, 1).await?.pop().unwrap_or_default();
            let (head, rest_bytes) = self.store.ranged(head)?;
            match self.form {
                Form::OneMessage => return Ok(vec![begin_message(&head, rest_bytes)?]),
                Form::Messages | Form::Ready => self.last = Some(head),
            }
        }
        let pieces = lane.next(&mut self.source, bytes).await?;
        if pieces.is_empty() {
            let last = self.last.take();
            return Ok(last.iter().map(streamed).collect());
        }
        pieces
            .into_iter()
            .map(|piece| match self.form {
                Form::OneMessage => fields(piece),
                Form::Ready => Ok(piece),
                Form::Messages => match KvAnswer::decode(piece).map_err(garbled)?.answer {
                    Some(Found::Range(found)) => Ok(streamed(&found)),
                    other => Err(unexpected(other)),
                },
            })
            .collect()
    }
}

/// One message of a stream.
fn streamed(range: &RangeResponse) -> Bytes {
    framed(&RangeStreamResponse { range_response: Some(range.clone()) })
}

/// The beginning of a message of which `rest_bytes` bytes follow.
fn begin_message(head: &RangeResponse, rest_bytes: u64) -> Result<Bytes, Status> {
    let len = head.encoded_len() as u64 + rest_bytes;
    if len > MESSAGE_BYTES_MAX {
        let text = format!("trying to send message larger than max ({len} vs. {MESSAGE_BYTES_MAX})");
        return Err(Status::resource_exhausted(text));
    }
    Ok(begun(head, len))
}

/// The fields of the response in a piece, which must hold nothing else.
fn fields(mut piece: Bytes) -> Result<Bytes, Status> {
    const RANGE_FIELD: u8 = 1 << 3 | 2;
    let other = || unexpected("a piece that is not of a range");
    if piece.is_empty() || piece.get_u8() != RANGE_FIELD {
        return Err(other());
    }
    let len = prost::decode_length_delimiter(&mut piece).map_err(garbled)?;
    if len == piece.len() { Ok(piece) } else { Err(other()) }
}

/// Whether the pairs come in the order of their keys.
fn is_by_key(request: &RangeRequest) -> bool {
    request.sort_target() == SortTarget::Key && request.sort_order() != SortOrder::Descend
}

fn bounds_of_revisions(request: &RangeRequest) -> [i64; 4] {
    [
        request.min_mod_revision,
        request.max_mod_revision,
        request.min_create_revision,
        request.max_create_revision,
    ]
}

fn consistency(serializable: bool) -> Consistency {
    if serializable { Consistency::Serializable } else { Consistency::Linearizable }
}

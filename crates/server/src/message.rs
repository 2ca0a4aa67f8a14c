//! One message of gRPC: five bytes that say whether it is compressed and how long it is, then protobuf.

use std::{future::poll_fn, mem, time::Duration};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use futures_util::FutureExt;
use h2::RecvStream;
use prost::Message;
use synod_kv::KvError;
use tokio::time::timeout;
use tonic::Status;

use crate::{admission::Charge, services::refusal};

/// Before each message: whether it is compressed, and its length.
const PREFIX_BYTES: usize = 5;

/// A message that is larger gets the room that it says it needs, as soon as so much of it has come. What is only said takes no
/// memory: the system gives a page when something is written to it. Doubling what there is, time and again, would leave holes
/// of all sizes.
const GROWTH_BYTES_MAX: usize = 64 << 10;

/// How long nothing of a request's body may come while the rest is waited for. What came of it is kept in memory until then.
const COME_TIMEOUT: Duration = Duration::from_secs(10);

/// A message with its prefix, ready to be sent.
pub(crate) fn framed(message: &impl Message) -> Bytes {
    begun(message, message.encoded_len() as u64)
}

/// The beginning of a message of so many bytes: its prefix, and its first fields.
pub(crate) fn begun(head: &impl Message, len: u64) -> Bytes {
    let mut frame = Vec::with_capacity(PREFIX_BYTES + head.encoded_len());
    frame.put_u8(0);
    frame.put_u32(u32::try_from(len).expect("answers are bounded far below 4 GiB"));
    head.encode(&mut frame).expect("a vector grows");
    frame.into()
}

/// The body of a unary request: one message, of which more or less may have come.
#[derive(Debug)]
pub(crate) struct RequestBody<'a> {
    stream: RecvStream,
    message_bytes_max: usize,
    charge: &'a Charge,
}

impl<'a> RequestBody<'a> {
    /// What comes is added to the charge.
    pub(crate) fn new(stream: RecvStream, message_bytes_max: usize, charge: &'a Charge) -> RequestBody<'a> {
        RequestBody { stream, message_bytes_max, charge }
    }

    /// Waits for the whole message, which takes no more memory than it has bytes.
    pub(crate) async fn message<M: Message + Default>(mut self) -> Result<M, Status> {
        // Most messages come in one piece, which is used as it is; the others are put together.
        let (mut body, mut joined) = (Bytes::new(), BytesMut::new());
        while let Some(piece) = self.piece().await? {
            if !self.charge.grow(piece.len() as u64) {
                return Err(too_many());
            }
            // It fails only if more is released than was received.
            let _ = self.stream.flow_control().release_capacity(piece.len());
            if body.is_empty() && joined.is_empty() {
                body = piece;
                self.check(&body)?;
            } else {
                if joined.is_empty() {
                    joined.put(mem::take(&mut body));
                }
                if joined.len() >= GROWTH_BYTES_MAX {
                    // What the message says of its length was checked.
                    joined.reserve(whole(&joined).saturating_sub(joined.len()));
                }
                joined.put(piece);
                self.check(&joined)?;
            }
        }
        if body.is_empty() {
            body = joined.freeze();
        }
        match whole(&body) {
            0 => return Err(malformed("it is shorter than a message's prefix")),
            whole if whole != body.len() => return Err(malformed("it ends before its message does")),
            _ => {}
        }
        body.advance(PREFIX_BYTES);
        M::decode(body).map_err(|error| match error.to_string() {
            // In a request only transactions lie in each other.
            text if text.contains("recursion limit") => refusal(&KvError::NestedTooDeeply),
            text => malformed(&text),
        })
    }

    async fn piece(&mut self) -> Result<Option<Bytes>, Status> {
        let mut next = poll_fn(|cx| self.stream.poll_data(cx));
        let piece = match (&mut next).now_or_never() {
            Some(piece) => piece,
            // Boxed, since it is rare: most bodies have come when their request is looked at.
            None => Box::pin(timeout(COME_TIMEOUT, next)).await.map_err(|_| {
                Status::cancelled(
                    "synod: the request is broken off, since nothing of it came for ten seconds",
                )
            })?,
        };
        piece.transpose().map_err(|error| Status::cancelled(format!("the request broke off: {error}")))
    }

    /// Refuses as early as it can what will not become one message, or one that is too large.
    fn check(&self, body: &[u8]) -> Result<(), Status> {
        match body.first() {
            None | Some(0) => {}
            Some(1) => {
                return Err(Status::unimplemented(
                    "compressed messages are not supported; send them as they are",
                ));
            }
            Some(flag) => return Err(malformed(&format!("{flag} is no compression flag; 0 and 1 are"))),
        }
        let Some(len) = whole(body).checked_sub(PREFIX_BYTES) else { return Ok(()) };
        if len > self.message_bytes_max {
            // In the words of gRPC's Go implementation, which are what clients of etcd see.
            let max = self.message_bytes_max;
            let text = format!("grpc: received message larger than max ({len} vs. {max})");
            return Err(Status::resource_exhausted(text));
        }
        if body.len() - PREFIX_BYTES > len {
            return Err(malformed("something follows its message"));
        }
        Ok(())
    }
}

/// How long a body is, with its prefix, as that says; 0 as long as the prefix is not there.
fn whole(body: &[u8]) -> usize {
    body.first_chunk().map_or(0, |&[_, a, b, c, d]| PREFIX_BYTES + u32::from_be_bytes([a, b, c, d]) as usize)
}

/// In the words of etcd. The client may ask again.
pub(crate) fn too_many() -> Status {
    Status::resource_exhausted("etcdserver: too many requests")
}

fn malformed(what: &str) -> Status {
    Status::internal(format!("malformed request: {what}"))
}

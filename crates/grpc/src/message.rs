//! Messages of gRPC: five bytes that tell whether the message is compressed and how long it is, then protobuf.
//!
//! Messages of clients may be compressed with gzip, if the headers say so. Answers never are.

use std::{
    future::poll_fn,
    io::Read,
    mem,
    pin::pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use flate2::bufread::GzDecoder;
use futures_util::FutureExt;
use h2::RecvStream;
use http::request::Parts;
use prost::{DecodeError, Message};
use tokio::{task::yield_now, time::timeout};
use tonic::Status;

use crate::{
    admission::Charge,
    head::{GRPC_ENCODING, GZIP},
    pace::ComePace,
    places::Mark,
};

/// Bytes before each message: a flag for compression, and the length.
const PREFIX_BYTES: usize = 5;

/// The flag of a message that is compressed.
const PACKED: u8 = 1;

/// How long a client may take to stop sending a request that was answered before its end.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// A message with its prefix, ready to be sent.
#[must_use]
pub fn framed(message: &impl Message) -> Bytes {
    begun(message, message.encoded_len() as u64)
}

/// A message whose first fields are those of `head`, and whose other fields are encoded already.
///
/// # Panics
/// It has 4 GiB.
#[must_use]
pub fn framed_with(head: &impl Message, rest: &[u8]) -> Bytes {
    let len = head.encoded_len() + rest.len();
    let mut frame = Vec::with_capacity(PREFIX_BYTES + len);
    begin(&mut frame, head, len as u64);
    frame.put_slice(rest);
    frame.into()
}

/// The beginning of a message of `len` bytes: its prefix and its first fields.
///
/// # Panics
/// It has 4 GiB.
#[must_use]
pub fn begun(head: &impl Message, len: u64) -> Bytes {
    let mut frame = Vec::with_capacity(PREFIX_BYTES + head.encoded_len());
    begin(&mut frame, head, len);
    frame.into()
}

fn begin(frame: &mut Vec<u8>, head: &impl Message, len: u64) {
    frame.put_u8(0);
    frame.put_u32(u32::try_from(len).expect("answers are bounded far below 4 GiB"));
    head.encode(frame).expect("a vector grows");
}

/// What is asked of the messages of a call before each is decoded.
pub trait Checks {
    /// Most bytes of a message.
    fn bytes_max(&self) -> usize;

    /// The only message of a call has come, with this many bytes and its prefix.
    fn came(&self, _bytes: usize) {}

    /// How many bytes a message takes once it is decoded, beyond those that every request is charged.
    ///
    /// # Errors
    /// The message contains too much.
    fn cost(&self, message: &[u8]) -> Result<u64, Status>;

    /// The refusal of the only message of a call that is not decoded, unless the usual one tells enough.
    fn undecoded(&self, _error: &DecodeError) -> Option<Status> {
        None
    }
}

/// What a client sends after the headers of its call.
#[derive(Debug)]
pub struct Incoming {
    stream: RecvStream,
    /// Whether messages may be compressed: the headers say that they are with gzip.
    may_be_packed: bool,
}

impl Incoming {
    /// What follows these headers.
    #[must_use]
    pub fn new(head: &Parts, stream: RecvStream) -> Incoming {
        let may_be_packed = head.headers.get(GRPC_ENCODING).is_some_and(|encoding| *encoding == GZIP);
        Incoming { stream, may_be_packed }
    }

    /// The rest of it, of which nobody is interested in messages.
    pub fn into_rest(self) -> RecvStream {
        self.stream
    }
}

/// The body of a unary request: one message, which may not have arrived completely.
#[derive(Debug)]
pub struct RequestBody<'a, C> {
    stream: &'a mut RecvStream,
    may_be_packed: bool,
    checks: C,
    charge: &'a Charge,
    /// That of the connection, if it works as soon as the message is whole.
    mark: Option<&'a Mark>,
    pace: ComePace,
}

impl<'a, C: Checks> RequestBody<'a, C> {
    /// The bytes of the body are added to the charge as they arrive, and what is made of them before it is.
    #[must_use]
    pub fn new(incoming: &'a mut Incoming, checks: C, charge: &'a Charge) -> RequestBody<'a, C> {
        let &mut Incoming { ref mut stream, may_be_packed } = incoming;
        RequestBody { stream, may_be_packed, checks, charge, mark: None, pace: ComePace::default() }
    }

    /// The same body, whose connection works once the message is whole.
    #[must_use]
    pub fn marking(self, mark: Option<&'a Mark>) -> RequestBody<'a, C> {
        RequestBody { mark, ..self }
    }

    /// Waits for the whole message. Until it is decoded it takes no more memory than it has bytes.
    ///
    /// # Errors
    /// It does not come as a whole, is no such message, or there is no memory for it.
    pub async fn message<M: Message + Default>(mut self) -> Result<M, Status> {
        // Most messages arrive in one piece, which is used as it is; others are put together from pieces.
        let (mut body, mut pieces) = (Bytes::new(), Pieces::default());
        while let Some(piece) = self.piece().await? {
            self.charge.afford(piece.len() as u64)?;
            // This fails only if more is released than was received.
            let _ = self.stream.flow_control().release_capacity(piece.len());
            if body.is_empty() && pieces.len() == 0 {
                body = piece;
                self.check(&body, body.len())?;
            } else {
                if pieces.len() == 0 {
                    pieces.put(mem::take(&mut body));
                }
                pieces.put(piece);
                self.check(pieces.head(), pieces.len())?;
            }
        }
        if body.is_empty() {
            body = pieces.join();
        }
        self.checks.came(body.len());
        let Some(&[flag, a, b, c, d]) = body.first_chunk() else {
            return Err(malformed("it is shorter than a message's prefix"));
        };
        if u32::from_be_bytes([a, b, c, d]) as usize != body.len() - PREFIX_BYTES {
            return Err(malformed("it ends before its message does"));
        }
        body.advance(PREFIX_BYTES);
        if flag == PACKED {
            body = unpacked(&body, self.checks.bytes_max(), self.charge)?;
        }
        self.mark.into_iter().for_each(Mark::works);
        self.charge.afford(self.checks.cost(&body)?)?;
        M::decode(body)
            .map_err(|error| self.checks.undecoded(&error).unwrap_or_else(|| malformed(&error.to_string())))
    }

    async fn piece(&mut self) -> Result<Option<Bytes>, Status> {
        let mut next = poll_fn(|cx| self.stream.poll_data(cx));
        let piece = match (&mut next).now_or_never() {
            Some(piece) => piece,
            // Boxed, since it is rare: most bodies have arrived before their request is handled.
            None => Box::pin(self.pace.kept(next)).await?,
        };
        let piece = piece.transpose().map_err(|error| broke_off(&error))?;
        self.pace.came(piece.as_ref().map_or(0, Bytes::len));
        Ok(piece)
    }

    /// Refuses as early as it can a body that will not become one message, or one that is too large. `head`
    /// is the beginning of the `len` bytes that have arrived.
    fn check(&self, head: &[u8], len: usize) -> Result<(), Status> {
        match announced(head, self.checks.bytes_max(), self.may_be_packed)? {
            Some(message) if len - PREFIX_BYTES > message => Err(malformed("something follows its message")),
            _ => Ok(()),
        }
    }
}

/// The messages of a client that sends them one after another.
#[derive(Debug)]
pub struct ClientMessages<'a, C> {
    stream: &'a mut RecvStream,
    may_be_packed: bool,
    /// What has arrived of the next message, and what follows it.
    buffer: BytesMut,
    checks: C,
    /// Bytes for which the client has no window again.
    unreleased: usize,
    /// The client sends no more.
    ended: bool,
    charge: &'a Charge,
}

impl<'a, C: Checks> ClientMessages<'a, C> {
    /// What has arrived and is not taken is added to the charge.
    #[must_use]
    pub fn new(incoming: &'a mut Incoming, checks: C, charge: &'a Charge) -> ClientMessages<'a, C> {
        let &mut Incoming { ref mut stream, may_be_packed } = incoming;
        let (buffer, unreleased, ended) = (BytesMut::new(), 0, false);
        ClientMessages { stream, may_be_packed, buffer, unreleased, ended, checks, charge }
    }

    /// Waits for the next message. `None`: the client sends no more.
    ///
    /// # Errors
    /// The request broke off, is no such message, or there is no memory for it.
    pub async fn next<M: Message + Default>(&mut self) -> Result<Option<M>, Status> {
        loop {
            if let Some(len) = announced(&self.buffer, self.checks.bytes_max(), self.may_be_packed)?
                && self.buffer.len() >= PREFIX_BYTES + len
            {
                let mut message = self.buffer.split_to(PREFIX_BYTES + len).freeze();
                if message.len() > BLOCK_BYTES || self.buffer.is_empty() {
                    // What is left would keep the place of what was there.
                    self.buffer = BytesMut::from(&self.buffer[..]);
                }
                self.charge.give_back(message.len() as u64);
                let flag = message.get_u8();
                message.advance(PREFIX_BYTES - 1);
                if flag == PACKED {
                    message = unpacked(&message, self.checks.bytes_max(), self.charge)?;
                    self.charge.give_back(message.len() as u64);
                    // What came in one packet may be a thousand times as long: others have their turn in between.
                    yield_now().await;
                }
                // The reader of the messages charges what it keeps of each.
                self.checks.cost(&message)?;
                return M::decode(message).map(Some).map_err(|error| malformed(&error.to_string()));
            }
            if self.ended {
                let whole = self.buffer.is_empty();
                return if whole { Ok(None) } else { Err(malformed("it ends before its message does")) };
            }
            // This fails only if more is released than was received.
            let _ = self.stream.flow_control().release_capacity(mem::take(&mut self.unreleased));
            poll_fn(|cx| self.poll_more(cx)).await?;
        }
    }

    /// Does some work, and takes meanwhile what the client has sent already: in `h2` each frame would take far more
    /// memory than a small message has bytes, and a connection with thousands of them is closed. The client's window
    /// does not open, so what is taken is bounded by it.
    ///
    /// # Errors
    /// The request broke off, or there is no memory for what has come.
    pub async fn meanwhile<T>(&mut self, work: impl Future<Output = T>) -> Result<T, Status> {
        let mut work = pin!(work);
        poll_fn(|cx| {
            if let Poll::Ready(done) = work.as_mut().poll(cx) {
                return Poll::Ready(Ok(done));
            }
            while !self.ended {
                ready!(self.poll_more(cx))?;
            }
            Poll::Pending
        })
        .await
    }

    /// Takes the next piece that has come, or learns that there is none.
    fn poll_more(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Status>> {
        let piece = ready!(self.stream.poll_data(cx)).transpose().map_err(|error| broke_off(&error))?;
        let Some(piece) = piece else {
            self.ended = true;
            return Poll::Ready(Ok(()));
        };
        self.charge.afford(piece.len() as u64)?;
        self.unreleased += piece.len();
        self.buffer.extend_from_slice(&piece);
        Poll::Ready(Ok(()))
    }
}

/// Takes what is still under way of a request that was answered before its end. Its client stops sending once it has
/// the answer, so this lasts a moment; the stream of a client that goes on is reset.
///
/// If nobody held the body, `h2` would count each small frame that still comes for as long as the connection lasts, and
/// end the connection once there were some thousands. The rest of a burst of renewals, on a stream that the server
/// ends, has as many.
pub(crate) async fn drain(mut body: RecvStream) {
    let rest = async {
        while let Some(Ok(piece)) = poll_fn(|cx| body.poll_data(cx)).await {
            // This fails only if more is released than was received.
            let _ = body.flow_control().release_capacity(piece.len());
        }
    };
    let _ = timeout(DRAIN_TIMEOUT, rest).await;
}

/// How many bytes the message has that begins here, if that can be seen yet.
fn announced(head: &[u8], message_bytes_max: usize, may_be_packed: bool) -> Result<Option<usize>, Status> {
    match head.first() {
        None | Some(&0) => {}
        Some(&PACKED) if may_be_packed => {}
        // These texts are those of gRPC's Go implementation, which clients know.
        Some(&PACKED) => {
            return Err(Status::internal("grpc: compressed flag set with identity or empty encoding"));
        }
        Some(flag) => {
            return Err(Status::internal(format!("grpc: received unexpected payload format {flag}")));
        }
    }
    let Some(&[_, a, b, c, d]) = head.first_chunk() else { return Ok(None) };
    let len = u32::from_be_bytes([a, b, c, d]) as usize;
    if len > message_bytes_max {
        // The text is that of gRPC's Go implementation, which clients know.
        let text = format!("grpc: received message larger than max ({len} vs. {message_bytes_max})");
        return Err(Status::resource_exhausted(text));
    }
    Ok(Some(len))
}

/// Unpacks a message of a client, which may become as long as one that is not compressed. What it takes is added to the
/// charge as it grows.
fn unpacked(packed: &[u8], message_bytes_max: usize, charge: &Charge) -> Result<Bytes, Status> {
    // A message is one member of gzip: a thousand empty ones would take time, and have no bytes that count.
    let (mut reader, mut pieces) = (GzDecoder::new(packed), Pieces::default());
    let mut piece = [0; 8 << 10];
    loop {
        let len = match reader.read(&mut piece) {
            Ok(0) if reader.get_ref().is_empty() => return Ok(pieces.join()),
            Ok(0) => return Err(malformed("something follows its gzip")),
            Ok(len) => len,
            Err(error) => return Err(malformed(&format!("its gzip cannot be unpacked: {error}"))),
        };
        if pieces.len() + len > message_bytes_max {
            // The text is that of gRPC's Go implementation, which clients know.
            let text =
                format!("grpc: received message after decompression larger than max {message_bytes_max}");
            return Err(Status::resource_exhausted(text));
        }
        charge.afford(len as u64)?;
        pieces.put(Bytes::copy_from_slice(&piece[..len]));
    }
}

fn broke_off(error: &h2::Error) -> Status {
    Status::cancelled(format!("the request broke off: {error}"))
}

/// The pieces of a growing body, in blocks of one size. Thousands of bodies that grow side by side, and of
/// which many are dropped half-way, leave only blocks that others can use. Buffers that double would leave
/// holes of all sizes, and take up to twice the memory that is counted.
#[derive(Debug, Default)]
struct Pieces {
    blocks: Vec<Bytes>,
    last: BytesMut,
}

/// Bytes of a block.
const BLOCK_BYTES: usize = 64 << 10;

impl Pieces {
    fn len(&self) -> usize {
        self.blocks.len() * BLOCK_BYTES + self.last.len()
    }

    /// Enough of the beginning to contain the prefix, if that has arrived.
    fn head(&self) -> &[u8] {
        self.blocks.first().map_or(&self.last, |block| block)
    }

    fn put(&mut self, mut piece: Bytes) {
        while !piece.is_empty() {
            let room = BLOCK_BYTES - self.last.len();
            self.last.put(piece.split_to(room.min(piece.len())));
            if self.last.len() == BLOCK_BYTES {
                let full = mem::replace(&mut self.last, BytesMut::with_capacity(BLOCK_BYTES));
                self.blocks.push(full.freeze());
            }
        }
    }

    /// Joins all blocks. They are freed before another body is put together.
    fn join(self) -> Bytes {
        if self.blocks.is_empty() {
            return self.last.freeze();
        }
        let mut all = Vec::with_capacity(self.len());
        self.blocks.into_iter().for_each(|block| all.extend_from_slice(&block));
        all.extend_from_slice(&self.last);
        all.into()
    }
}

fn malformed(what: &str) -> Status {
    Status::internal(format!("malformed request: {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_any_size_are_put_together_as_they_came() {
        for piece_bytes in [1, 1000, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 3 * BLOCK_BYTES] {
            let all: Vec<u8> = (0..5 * BLOCK_BYTES / 2).map(|at| (at % 251) as u8).collect();
            let mut pieces = Pieces::default();
            for piece in all.chunks(piece_bytes) {
                pieces.put(Bytes::copy_from_slice(piece));
                assert!(pieces.head().len() >= PREFIX_BYTES.min(pieces.len()));
            }
            assert_eq!(pieces.len(), all.len());
            assert!(pieces.blocks.iter().all(|block| block.len() == BLOCK_BYTES));
            assert_eq!(pieces.join(), all);
        }
    }
}

//! Gathers the frames that are to be sent on a connection, until the connection's task has them sent.
//!
//! `h2` writes each answer of more than a few hundred bytes with a system call of its own, and then asks for
//! a flush. Under load the server would spend most of its time there.

use std::{
    io, mem,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, ready},
};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf, ReadHalf, Take, WriteHalf, split};

use crate::pings::Pings;

/// Once this many bytes are gathered, they are sent before more are taken.
const GATHERED_BYTES: usize = 64 << 10;

/// Once this many bytes were read, the requests that they belong to have their turn: before they take the frames, each
/// costs `h2` more than it has bytes, and a connection with more than a few thousand of them ends. These bytes are some
/// 1,600 of the smallest frames.
const READ_TURN_BYTES: usize = 16 << 10;

/// Splits a stream into the end that `h2` reads and writes, and the end that sends.
///
/// `pings` are those of the client.
pub(crate) fn gathering<S: AsyncRead + AsyncWrite>(stream: S, pings: Pings) -> (Gathering<S>, Outbox<S>) {
    let (read, write) = split(stream);
    let outbox = Outbox(Arc::new(Mutex::new(Gathered {
        write,
        bytes: BytesMut::new(),
        unflushed: false,
        full: false,
        pings,
    })));
    (Gathering { read: read.take(0), turn: 0, outbox: Outbox(outbox.0.clone()) }, outbox)
}

/// A stream that keeps what is written until the outbox sends it, or until there is much of it, and that is read in
/// turns.
#[derive(Debug)]
pub(crate) struct Gathering<S> {
    /// Limited to what is left of the turn: the buffers of `h2` have room for several.
    read: Take<ReadHalf<S>>,
    /// Bytes that were read in this turn.
    turn: usize,
    outbox: Outbox<S>,
}

/// The sending end. Only one task uses both ends, so the lock is never contended.
#[derive(Debug)]
pub(crate) struct Outbox<S>(Arc<Mutex<Gathered<S>>>);

#[derive(Debug)]
struct Gathered<S> {
    write: WriteHalf<S>,
    bytes: BytesMut,
    /// Whether the stream may hold bytes that it has taken and not sent, as one with TLS does.
    unflushed: bool,
    /// Whether a write found no room since [`Outbox::is_all_sent`] last asked.
    full: bool,
    /// They are counted where the connection's bytes pass.
    pings: Pings,
}

impl<S: AsyncRead + AsyncWrite> Outbox<S> {
    /// Sends the gathered bytes. If the stream takes no more, the task is woken once it does.
    pub(crate) fn poll_send(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.gathered().poll_send(cx)
    }

    /// Whether all bytes that were written since the last call have been sent.
    pub(crate) fn is_all_sent(&self) -> bool {
        let mut gathered = self.gathered();
        !mem::take(&mut gathered.full) && gathered.bytes.is_empty() && !gathered.unflushed
    }

    /// Whether the client has asked too often if the server is there, while it has requests (`busy`) or none.
    pub(crate) fn are_pings_too_many(&self, busy: bool) -> bool {
        let mut gathered = self.gathered();
        gathered.pings.set_busy(busy);
        gathered.pings.are_too_many()
    }

    /// Tells the client so, as the last thing that it is sent.
    pub(crate) fn say_too_many_pings(&self, cx: &mut Context<'_>) {
        let mut gathered = self.gathered();
        let Gathered { pings, bytes, .. } = &mut *gathered;
        pings.say_goodbye(bytes);
        // The connection ends even if the client takes nothing.
        let _ = gathered.poll_send(cx);
    }

    /// Frees the buffer of an idle connection.
    pub(crate) fn rest(&self) {
        let mut gathered = self.gathered();
        if gathered.bytes.is_empty() {
            gathered.bytes = BytesMut::new();
        }
    }

    fn gathered(&self) -> MutexGuard<'_, Gathered<S>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S: AsyncRead + AsyncWrite> Gathered<S> {
    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.bytes.is_empty() {
            let sent = ready!(Pin::new(&mut self.write).poll_write(cx, &self.bytes))?;
            if sent == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.bytes.advance(sent);
            self.unflushed = true;
        }
        // The buffer is reused from its beginning.
        self.bytes.clear();
        if self.unflushed {
            ready!(Pin::new(&mut self.write).poll_flush(cx))?;
            self.unflushed = false;
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite> AsyncRead for Gathering<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.turn >= READ_TURN_BYTES {
            self.turn = 0;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let (before, left) = (buffer.filled().len(), READ_TURN_BYTES - self.turn);
        self.read.set_limit(left as u64);
        ready!(Pin::new(&mut self.read).poll_read(cx, buffer))?;
        self.turn += buffer.filled().len() - before;
        self.outbox.gathered().pings.came(&buffer.filled()[before..]);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite> AsyncWrite for Gathering<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut gathered = self.outbox.gathered();
        if gathered.bytes.len() >= GATHERED_BYTES {
            gathered.full = true;
            ready!(gathered.poll_send(cx))?;
            gathered.full = false;
        }
        gathered.pings.leave(bytes);
        gathered.bytes.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut gathered = self.outbox.gathered();
        ready!(gathered.poll_send(cx))?;
        Pin::new(&mut gathered.write).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::{future::poll_fn, time::Duration};

    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    #[tokio::test]
    async fn what_is_written_leaves_together() {
        let (mut client, stream) = duplex(1 << 20);
        let (mut stream, outbox) = gathering(stream, Pings::new(Duration::ZERO));
        for part in ["one ", "two ", "three"] {
            stream.write_all(part.as_bytes()).await.unwrap();
            stream.flush().await.unwrap();
        }
        poll_fn(|cx| outbox.poll_send(cx)).await.unwrap();
        let mut heard = [0; 100];
        let len = client.read(&mut heard).await.unwrap();
        assert_eq!(&heard[..len], b"one two three");
    }

    #[tokio::test]
    async fn a_turn_reads_no_more_than_it_may_however_much_room_there_is() {
        let (mut client, stream) = duplex(1 << 20);
        let (mut stream, _outbox) = gathering(stream, Pings::new(Duration::ZERO));
        client.write_all(&[7; 5 * READ_TURN_BYTES / 2]).await.unwrap();
        let mut room = vec![0; 1 << 20];
        let mut turns = Vec::new();
        for _ in 0..3 {
            let mut turn = 0;
            let read = poll_fn(|cx| {
                let mut buffer = ReadBuf::new(&mut room);
                while Pin::new(&mut stream).poll_read(cx, &mut buffer).is_ready() {}
                turn = buffer.filled().len();
                Poll::Ready(())
            });
            read.await;
            turns.push(turn);
        }
        assert_eq!(turns, [READ_TURN_BYTES, READ_TURN_BYTES, READ_TURN_BYTES / 2]);
    }

    #[tokio::test]
    async fn what_is_gathered_is_bounded_and_all_of_it_leaves_before_the_end() {
        let (mut client, stream) = duplex(1000);
        let (mut stream, _outbox) = gathering(stream, Pings::new(Duration::ZERO));
        let piece = [7; 1000];
        let mut written = 0;
        while poll_fn(|cx| Poll::Ready(Pin::new(&mut stream).poll_write(cx, &piece))).await.is_ready() {
            written += piece.len();
        }
        assert!((GATHERED_BYTES..GATHERED_BYTES + 3 * piece.len()).contains(&written), "{written}");
        let reader = tokio::spawn(async move {
            let mut heard = Vec::new();
            client.read_to_end(&mut heard).await.map(|_| heard)
        });
        stream.shutdown().await.unwrap();
        assert_eq!(reader.await.unwrap().unwrap().len(), written);
    }
}

//! The sending half of a call, which knows what of it is still in memory.
//!
//! What is handed over to `h2` stays there until the client's socket takes it, also if the client has announced room
//! for all of it, or takes that back. So a call that lasts hands over little at a time, and one whose answer holds a
//! place keeps that until the answer is no longer there. What is handed over tells when it is dropped: once it is
//! copied into the outbox of its connection, of which there is one, or when the stream or the connection is reset.

use std::{
    future::poll_fn,
    sync::{
        Arc,
        atomic::{
            AtomicU64, AtomicUsize,
            Ordering::{Relaxed, SeqCst},
        },
    },
};

use bytes::Bytes;
use h2::{Reason, SendStream};
use http::HeaderMap;
use tokio::sync::Notify;
use tonic::Status;

use crate::admission::Charge;

/// Bytes of a streamed answer that a stream holds for a client that does not read. Then the writer waits. Pieces of an
/// answer are gathered up to as many.
pub const GATHERED_BYTES: usize = 256 << 10;
/// Bytes that a call that lasts has handed over at most, unless these are dropped.
const HANDED_MAX: usize = 16 << 10;
/// What such a call costs for that.
pub const HANDED_BYTES: u64 = HANDED_MAX as u64;

/// The bytes that a call has handed over and that are not dropped.
#[derive(Debug, Default)]
struct Handed {
    bytes: AtomicUsize,
    fewer: Notify,
}

/// A part of what was handed over. It is dropped under a lock of `h2`, so that does no more than count and wake.
struct Part {
    bytes: Bytes,
    handed: Arc<Handed>,
}

impl AsRef<[u8]> for Part {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.handed.bytes.fetch_sub(self.bytes.len(), SeqCst);
        self.handed.fewer.notify_one();
    }
}

/// The sending half of a call.
#[derive(Debug)]
pub struct Sender {
    stream: SendStream<Bytes>,
    handed: Arc<Handed>,
}

impl Sender {
    /// That of a call whose answer has begun.
    #[must_use]
    pub fn new(stream: SendStream<Bytes>) -> Sender {
        Sender { stream, handed: Arc::default() }
    }

    /// Waits until the client gives the request up.
    pub async fn reset(&mut self) -> Status {
        let _ = poll_fn(|cx| self.stream.poll_reset(cx)).await;
        gone("it has given the request up")
    }

    /// Does what is waited for, unless the client gives the request up.
    pub async fn unless_gone<T>(&mut self, work: impl Future<Output = T>) -> Result<T, Status> {
        tokio::select! {
            biased;
            done = work => Ok(done),
            gone = self.reset() => Err(gone),
        }
    }

    /// Waits until the client has room for some of the next `bytes` bytes, however long that takes. Returns how many.
    pub async fn room(&mut self, bytes: usize) -> Result<usize, Status> {
        self.stream.reserve_capacity(bytes);
        // `poll_capacity` does not report again the capacity that was granted before.
        while self.stream.capacity() == 0 {
            let granted = poll_fn(|cx| self.stream.poll_capacity(cx)).await;
            granted
                .ok_or_else(|| gone("it has closed the stream"))?
                .map_err(|error| gone(&error.to_string()))?;
        }
        Ok(self.stream.capacity())
    }

    /// The same for what is handed over a little at a time.
    pub async fn little_room(&mut self, bytes: usize) -> Result<usize, Status> {
        while self.handed() >= HANDED_MAX {
            self.until_fewer().await?;
        }
        let little = bytes.min(HANDED_MAX - self.handed());
        Ok(self.room(little).await?.min(little))
    }

    /// Bytes that were handed over and are still in memory.
    pub fn handed(&self) -> usize {
        self.handed.bytes.load(SeqCst)
    }

    /// Waits until these may be fewer.
    pub async fn until_fewer(&mut self) -> Result<(), Status> {
        let handed = Arc::clone(&self.handed);
        self.unless_gone(handed.fewer.notified()).await
    }

    /// Waits until there are none.
    pub async fn until_left(&mut self) -> Result<(), Status> {
        while self.handed() > 0 {
            self.until_fewer().await?;
        }
        Ok(())
    }

    /// Hands over what there is room for.
    pub fn hand(&mut self, mut bytes: Bytes) -> Result<(), Status> {
        while !bytes.is_empty() {
            let bytes = bytes.split_to(HANDED_MAX.min(bytes.len()));
            self.handed.bytes.fetch_add(bytes.len(), SeqCst);
            let part = Part { bytes, handed: Arc::clone(&self.handed) };
            let sent = self.stream.send_data(Bytes::from_owner(part), false);
            sent.map_err(|error| gone(&error.to_string()))?;
        }
        Ok(())
    }

    /// Sends bytes at the client's pace, however slow that is: the caller keeps little for a client that takes nothing.
    pub async fn send(&mut self, bytes: Bytes) -> Result<(), Status> {
        self.send_counted(bytes, &AtomicU64::new(0)).await
    }

    /// The same, and counts the bytes that the client has taken.
    pub async fn send_counted(&mut self, mut bytes: Bytes, taken: &AtomicU64) -> Result<(), Status> {
        while !bytes.is_empty() {
            let room = self.little_room(bytes.len()).await?;
            let part = bytes.split_to(room);
            taken.fetch_add(part.len() as u64, Relaxed);
            self.hand(part)?;
        }
        Ok(())
    }

    /// The same for bytes that are not few: they are charged until the client has taken all but the last.
    pub async fn send_charged(
        &mut self,
        bytes: Bytes,
        charge: &Charge,
        taken: &AtomicU64,
    ) -> Result<(), Status> {
        let len = bytes.len() as u64;
        charge.afford(len)?;
        let sent = self.send_counted(bytes, taken).await;
        charge.give_back(len);
        sent
    }

    /// Ends the body without trailers.
    pub fn end(&mut self) {
        // An error means that the client is gone, as below.
        let _ = self.stream.send_data(Bytes::new(), true);
    }

    /// Ends the body.
    pub fn end_with(&mut self, trailers: HeaderMap) {
        let _ = self.stream.send_trailers(trailers);
    }

    /// Ends the call, and throws away what has not left.
    pub fn cancel(&mut self) {
        self.stream.send_reset(Reason::CANCEL);
    }
}

fn gone(why: &str) -> Status {
    Status::cancelled(format!("the client has gone: {why}"))
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use http::{Request, Response};
    use tokio::{io::duplex, time::timeout};

    use super::*;

    /// Otherwise a client that announces room and does not read its socket has the server keep that much for each call.
    #[tokio::test(start_paused = true)]
    async fn a_call_that_lasts_hands_over_little_before_it_has_left() {
        let (client, server) = duplex(1 << 20);
        let mut builder = h2::client::Builder::new();
        builder.initial_window_size(1 << 30).initial_connection_window_size(1 << 30);
        let asking = tokio::spawn(async move {
            let (mut send, connection) = builder.handshake::<_, Bytes>(client).await.unwrap();
            let connection = tokio::spawn(connection);
            let (response, _) =
                send.send_request(Request::post("http://x/").body(()).unwrap(), true).unwrap();
            let body = response.await.unwrap().into_body();
            (send, connection, body)
        });
        let mut connection = h2::server::handshake(server).await.unwrap();
        let (_request, mut reply) = connection.accept().await.unwrap().unwrap();
        let stream = reply.send_response(Response::new(()), false).unwrap();
        // The head leaves, and nothing more for now.
        poll_fn(|cx| {
            let _ = connection.poll_closed(cx);
            std::task::Poll::Ready(())
        })
        .await;
        let _asked = asking.await.unwrap();
        let mut sender = Sender::new(stream);
        let taken = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&taken);
        let sending = tokio::spawn(async move {
            sender.send_counted(vec![7; 5 * HANDED_MAX].into(), &counted).await.unwrap();
            sender.until_left().await.unwrap();
        });
        let handed = async || {
            tokio::time::sleep(Duration::from_secs(1)).await;
            taken.load(Relaxed) as usize
        };
        assert_eq!(handed().await, HANDED_MAX);
        assert_eq!(handed().await, HANDED_MAX, "the connection sends nothing");
        let _connection = tokio::spawn(async move { poll_fn(|cx| connection.poll_closed(cx)).await });
        timeout(Duration::from_secs(1), sending).await.expect("all has left").unwrap();
        assert_eq!(handed().await, 5 * HANDED_MAX);
    }
}

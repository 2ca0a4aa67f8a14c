//! The sending half of a call, which knows what of it may still be in memory.
//!
//! What is handed over to `h2` stays there until the client's socket takes it, also if the client has announced room
//! for all of it. So a call that lasts hands over little at a time, and one whose answer holds a place keeps that
//! until the answer has left.
//!
//! A connection counts **rounds**: it begins one whenever it is about to send what its calls have handed over, and once
//! its socket has taken all of that, everything of the rounds before has left.

use std::{
    future::poll_fn,
    sync::atomic::{
        AtomicU64,
        Ordering::{Relaxed, SeqCst},
    },
};

use bytes::Bytes;
use h2::{Reason, SendStream};
use http::HeaderMap;
use tokio::sync::Notify;
use tonic::Status;

use crate::{
    admission::{Charge, Share},
    message::too_many,
};

/// Bytes that a call hands over before what it has handed over has left.
const HANDED_MAX: usize = 16 << 10;
/// What a call that lasts costs for that. A client that takes room back can keep as much from leaving, and have the
/// call hand over as much again.
pub(crate) const HANDED_BYTES: u64 = 2 * HANDED_MAX as u64;

/// The rounds of a connection.
#[derive(Debug, Default)]
pub(crate) struct Rounds {
    /// The present one.
    now: AtomicU64,
    /// What was handed over before this one has left.
    left: AtomicU64,
    told: Notify,
}

impl Rounds {
    /// Begins another round, and returns it.
    pub(crate) fn begin(&self) -> u64 {
        self.now.fetch_add(1, SeqCst) + 1
    }

    /// Takes note that what was handed over before this round has left.
    pub(crate) fn left_before(&self, round: u64) {
        self.left.store(round, SeqCst);
        self.told.notify_waiters();
    }

    fn has_left(&self, round: u64) -> bool {
        round < self.left.load(SeqCst)
    }

    /// Waits until what was handed over in this round has left.
    async fn until_left(&self, round: u64) {
        loop {
            let told = self.told.notified();
            if self.has_left(round) {
                return;
            }
            told.await;
        }
    }
}

/// The sending half of a call.
pub(crate) struct Sender {
    stream: SendStream<Bytes>,
    share: Share,
    /// What was handed over and may not have left, and the round in which the last of it was.
    handed: usize,
    round: u64,
}

impl Sender {
    pub(crate) fn new(stream: SendStream<Bytes>, share: Share) -> Sender {
        Sender { stream, share, handed: 0, round: 0 }
    }

    /// Waits until the client gives the request up.
    pub(crate) async fn reset(&mut self) -> Status {
        let _ = poll_fn(|cx| self.stream.poll_reset(cx)).await;
        gone("it has given the request up")
    }

    /// Does what is waited for, unless the client gives the request up.
    pub(crate) async fn unless_gone<T>(&mut self, work: impl Future<Output = T>) -> Result<T, Status> {
        tokio::select! {
            biased;
            done = work => Ok(done),
            gone = self.reset() => Err(gone),
        }
    }

    /// Waits until the client has room for some of the next `bytes` bytes, however long that takes. Returns how many.
    pub(crate) async fn room(&mut self, bytes: usize) -> Result<usize, Status> {
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
    pub(crate) async fn little_room(&mut self, bytes: usize) -> Result<usize, Status> {
        if self.handed >= HANDED_MAX {
            self.until_left().await?;
        } else if self.share.rounds().has_left(self.round) {
            self.handed = 0;
        }
        let little = bytes.min(HANDED_MAX - self.handed);
        Ok(self.room(little).await?.min(little))
    }

    /// Waits until the client's socket has taken what was handed over.
    pub(crate) async fn until_left(&mut self) -> Result<(), Status> {
        let (share, round) = (self.share.clone(), self.round);
        if self.handed > 0 {
            self.unless_gone(share.rounds().until_left(round)).await?;
            self.handed = 0;
        }
        Ok(())
    }

    /// Hands over what there is room for.
    pub(crate) fn hand(&mut self, bytes: Bytes) -> Result<(), Status> {
        self.handed += bytes.len();
        self.round = self.share.rounds().now.load(SeqCst);
        self.stream.send_data(bytes, false).map_err(|error| gone(&error.to_string()))
    }

    /// Sends bytes at the client's pace, however slow that is: the caller keeps little for a client that takes nothing.
    pub(crate) async fn send(&mut self, bytes: Bytes) -> Result<(), Status> {
        self.send_counted(bytes, &AtomicU64::new(0)).await
    }

    /// The same, and counts the bytes that the client has taken.
    pub(crate) async fn send_counted(&mut self, mut bytes: Bytes, taken: &AtomicU64) -> Result<(), Status> {
        while !bytes.is_empty() {
            let room = self.little_room(bytes.len()).await?;
            let part = bytes.split_to(room);
            taken.fetch_add(part.len() as u64, Relaxed);
            self.hand(part)?;
        }
        Ok(())
    }

    /// The same for bytes that are not few: they are charged until the client has taken all but the last.
    pub(crate) async fn send_charged(
        &mut self,
        bytes: Bytes,
        charge: &Charge,
        taken: &AtomicU64,
    ) -> Result<(), Status> {
        let len = bytes.len() as u64;
        if !charge.grow(len) {
            return Err(too_many());
        }
        let sent = self.send_counted(bytes, taken).await;
        charge.give_back(len);
        sent
    }

    /// Ends the body without trailers.
    pub(crate) fn end(&mut self) {
        // An error means that the client is gone, as below.
        let _ = self.stream.send_data(Bytes::new(), true);
    }

    pub(crate) fn end_with(&mut self, trailers: HeaderMap) {
        let _ = self.stream.send_trailers(trailers);
    }

    /// Ends the call, and throws away what has not left.
    pub(crate) fn cancel(&mut self) {
        self.stream.send_reset(Reason::CANCEL);
    }
}

pub(crate) fn gone(why: &str) -> Status {
    Status::cancelled(format!("the client has gone: {why}"))
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use http::{Request, Response};
    use tokio::{io::duplex, time::timeout};

    use super::*;
    use crate::admission::Admission;

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
        let _connection = tokio::spawn(async move { poll_fn(|cx| connection.poll_closed(cx)).await });
        let _asked = asking.await.unwrap();
        let share = Admission::new(1 << 20).share();
        let (rounds, mut sender) = (share.rounds(), Sender::new(stream, share.clone()));
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
        rounds.left_before(0);
        assert_eq!(handed().await, HANDED_MAX, "what left was of an earlier round");
        for times in 2..=5 {
            rounds.left_before(rounds.begin());
            assert_eq!(handed().await, times * HANDED_MAX);
        }
        assert!(!sending.is_finished(), "the last of it has not left");
        rounds.left_before(rounds.begin());
        timeout(Duration::from_secs(1), sending).await.expect("all has left").unwrap();
    }
}

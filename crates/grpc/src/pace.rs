//! The pace at which a client must send what it asks, and take what it is answered.
//!
//! A client that is slower than that is broken off: what it holds meanwhile, others cannot have.

use std::{pin::pin, time::Duration};

use bytes::Bytes;
use tokio::time::{self, Instant, timeout, timeout_at};
use tonic::Status;

use crate::sending::Sender;

/// How long a client may take almost nothing of an answer that is sent at the client's pace. Until then the
/// server keeps what the answer is made from.
pub const TAKE_TIMEOUT: Duration = Duration::from_secs(60);
/// A client must take this many bytes in that time. It is less than a frame, so a client may spend as long on
/// each frame. A smaller bound would let a client with one byte a minute keep everything as well.
pub const TAKE_BYTES_MIN: usize = 8 << 10;
/// What a client is told that takes its answer too slowly.
pub const NOT_TAKEN: &str =
    "synod: the answer is broken off, since the client took next to nothing of it for a minute";

/// How long a request's body may make no progress. The bytes that have arrived are kept in memory until then.
const COME_TIMEOUT: Duration = Duration::from_secs(10);

/// After that, how long the server waits for what has come already. A thread that could not run for as long learns at
/// once that the time is over and that there is something to read, and the time comes first.
const COME_LATE: Duration = Duration::from_millis(100);

/// The pace at which a request's body comes: something in ten seconds, and in each minute as much as a client must take
/// of an answer. A body that comes a byte at a time would keep a place and memory for days.
#[derive(Debug, Default)]
pub struct ComePace {
    /// When [`TAKE_BYTES_MIN`] bytes must have come, and how many of them have; it begins with the first wait.
    until: Option<Instant>,
    bytes: usize,
}

impl ComePace {
    /// Waits for the next piece.
    ///
    /// # Errors
    /// The body comes too slowly.
    pub async fn kept<T>(&mut self, piece: impl Future<Output = T>) -> Result<T, Status> {
        let now = Instant::now();
        let until = *self.until.get_or_insert(now + TAKE_TIMEOUT);
        let mut piece = pin!(piece);
        if let Ok(piece) = timeout_at(until.min(now + COME_TIMEOUT), &mut piece).await {
            return Ok(piece);
        }
        timeout(COME_LATE, piece).await.map_err(|_| {
            Status::cancelled(if until < now + COME_TIMEOUT {
                "synod: the request is broken off, since next to nothing of it came for a minute"
            } else {
                "synod: the request is broken off, since nothing of it came for ten seconds"
            })
        })
    }

    /// This many bytes have come.
    pub fn came(&mut self, bytes: usize) {
        self.bytes += bytes;
        if self.bytes >= TAKE_BYTES_MIN {
            *self = ComePace::default();
        }
    }
}

/// Whether a client takes its answer fast enough.
#[derive(Debug)]
pub struct Pace {
    /// When the client must have taken [`TAKE_BYTES_MIN`] bytes.
    until: Instant,
    /// How many of these bytes it has taken.
    bytes: usize,
}

impl Pace {
    /// The pace of an answer that begins now.
    #[must_use]
    pub fn begin() -> Pace {
        Pace { until: Instant::now() + TAKE_TIMEOUT, bytes: 0 }
    }

    /// Waits until the client has room for some of the next `bytes` bytes, as long as it keeps its pace.
    pub async fn room(&self, sender: &mut Sender, bytes: usize) -> Result<usize, Status> {
        self.kept(sender.room(bytes)).await
    }

    /// The same for what is handed over a little at a time.
    pub async fn little_room(&self, sender: &mut Sender, bytes: usize) -> Result<usize, Status> {
        self.kept(sender.little_room(bytes)).await
    }

    async fn kept<T>(&self, wait: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
        let done = time::timeout_at(self.until, wait).await;
        done.map_err(|_| Status::resource_exhausted(NOT_TAKEN))?
    }

    fn took(&mut self, bytes: usize) {
        self.bytes += bytes;
        if self.bytes >= TAKE_BYTES_MIN {
            *self = Pace::begin();
        }
    }

    /// Hands bytes over as the client has room for them.
    pub async fn send_as_taken(&mut self, sender: &mut Sender, mut piece: Bytes) -> Result<(), Status> {
        while !piece.is_empty() {
            let room = self.room(sender, piece.len()).await?;
            let part = piece.split_to(room.min(piece.len()));
            self.took(part.len());
            sender.hand(part)?;
        }
        Ok(())
    }

    /// Sends bytes a little at a time, and waits until they have left.
    pub async fn send(&mut self, sender: &mut Sender, bytes: Bytes) -> Result<(), Status> {
        self.send_little(sender, bytes).await?;
        self.kept(sender.until_left()).await
    }

    /// Sends bytes a little at a time.
    pub async fn send_little(&mut self, sender: &mut Sender, mut bytes: Bytes) -> Result<(), Status> {
        while !bytes.is_empty() {
            let room = self.little_room(sender, bytes.len()).await?;
            sender.hand(bytes.split_to(room))?;
            self.took(room);
        }
        Ok(())
    }

    /// Waits for work that does not depend on the client, without counting that time against the client.
    pub async fn paused<T>(&mut self, work: impl Future<Output = T>) -> T {
        let began = Instant::now();
        let done = work.await;
        self.until += began.elapsed();
        done
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_piece_that_came_while_the_thread_could_not_run_is_taken() {
        let (send, came) = oneshot::channel();
        let mut pace = ComePace::default();
        let mut waits = Box::pin(pace.kept(came));
        assert!((&mut waits).now_or_never().is_none());
        // The connection is read only after its calls have learned the time.
        time::advance(2 * COME_TIMEOUT).await;
        assert!((&mut waits).now_or_never().is_none(), "it is not given up yet");
        send.send(7).unwrap();
        assert_eq!(waits.await.unwrap(), Ok(7));
        let broken_off = ComePace::default().kept(std::future::pending::<()>()).await.unwrap_err();
        assert!(broken_off.message().ends_with("nothing of it came for ten seconds"), "{broken_off}");
    }

    /// How long a body lasts of which this many bytes come every five seconds, for an hour at most.
    async fn lasts(bytes: usize) -> Duration {
        let (mut pace, began) = (ComePace::default(), Instant::now());
        while began.elapsed() < Duration::from_secs(3600)
            && pace.kept(time::sleep(Duration::from_secs(5))).await.is_ok()
        {
            pace.came(bytes);
        }
        began.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_has_a_pace_in_bytes() {
        assert!(lasts(1).await < TAKE_TIMEOUT + Duration::from_secs(10));
        assert!(lasts(500).await < TAKE_TIMEOUT + Duration::from_secs(10));
        assert!(lasts(1000).await >= Duration::from_secs(3600));
    }
}

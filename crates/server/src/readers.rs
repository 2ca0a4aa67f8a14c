//! Large answers: threads of their own make them piece by piece, as fast as the client takes them.
//!
//! A client that asks for the whole store and does not read costs a view of the store, and one piece. A few
//! threads make the pieces, at most one at a time for each connection, so a connection with a thousand large
//! requests is served as often as one with a single request. An answer that must be in memory as a whole (a
//! large answer to a transaction or another command, or a range in another order than that of its keys) holds
//! one of a few places until it is sent. Only a command in a session holds none: it cannot be executed again
//! once its answer turns out to be large.
//!
//! Large bodies of JSON are translated elsewhere too, and before it is known whose they are. So they have threads of
//! their own, and each address has its turn: a client that sends many makes only those at the same address wait.

use std::{cell::Cell, num::NonZero, sync::Arc, thread};

use bytes::Bytes;
use rustix::{process::setpriority_process, thread::gettid};
use synod_grpc::{Mark, Origin, Remote};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    task::spawn_blocking,
};
use tonic::Status;

use crate::{
    call::too_many,
    turns::{Turn, Turns},
};

/// An iterator over the pieces of an answer.
pub(crate) type Source = Box<dyn Iterator<Item = Bytes> + Send>;

/// Large answers that are being made and sent piece by piece, over all connections, and for one connection. A
/// client that takes a part of its answers and then stops keeps one piece of each in memory, of at most
/// [`GATHERED_BYTES`](synod_grpc::GATHERED_BYTES). If a large value exceeds that, its request is charged for the
/// difference.
pub(crate) const SENT_MAX: usize = 1024;
const SENT_OF_CONNECTION_MAX: usize = 16;

/// Large answers that are in memory as a whole, over all connections.
pub(crate) const WHOLE_MAX: usize = 8;

/// The niceness of the threads that make pieces. A thread with it gets about a tenth of the CPU time of one without.
const NICENESS: i32 = 10;

/// Bodies that wait to be translated, each of another connection. Their memory is bounded as that of all requests.
const BODIES_WAITING_MAX: usize = 4096;

/// The threads that make pieces, and the places for answers that are in memory as a whole. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Readers {
    threads: Arc<Semaphore>,
    sent: Arc<Semaphore>,
    whole: Arc<Semaphore>,
    /// The threads that translate bodies.
    translating: Arc<Turns>,
}

impl Readers {
    /// Allows half as many threads as there are processors, and at most four; and as many that translate bodies. The
    /// other processors order and execute commands.
    pub(crate) fn new() -> Readers {
        let processors = thread::available_parallelism().map_or(1, NonZero::get);
        let threads = (processors / 2).clamp(1, 4);
        let translating = Arc::new(Turns::new(threads, 0, BODIES_WAITING_MAX));
        Readers { threads: places(threads), sent: places(SENT_MAX), whole: places(WHOLE_MAX), translating }
    }

    /// Makes the share of a new connection from there.
    pub(crate) fn lane(&self, origin: Origin) -> Lane {
        let (sent, one) = (places(SENT_OF_CONNECTION_MAX), || places(1));
        let (readers, piece, whole, password, body) = (self.clone(), one(), one(), one(), one());
        let (mark, remote) = (Mark::default(), Remote::default());
        Lane { readers, origin, remote, piece, sent, whole, password, body, mark }
    }
}

/// A connection's share: one piece at a time, some answers in pieces, and one answer that is in memory as a whole.
#[derive(Clone, Debug)]
pub(crate) struct Lane {
    readers: Readers,
    origin: Origin,
    remote: Remote,
    piece: Arc<Semaphore>,
    sent: Arc<Semaphore>,
    whole: Arc<Semaphore>,
    password: Arc<Semaphore>,
    body: Arc<Semaphore>,
    mark: Mark,
}

/// A place for an answer. Dropping its last clone frees the place.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    _permits: Arc<[OwnedSemaphorePermit; 2]>,
}

impl Place {
    async fn new(of_connection: &Arc<Semaphore>, of_all: &Arc<Semaphore>) -> Place {
        Place { _permits: Arc::new([permit(of_connection).await, permit(of_all).await]) }
    }

    /// The same source, which keeps the place until it is dropped: a piece may be made when the client has left.
    pub(crate) fn kept_by(&self, source: Source) -> Source {
        let place = self.clone();
        Box::new(source.inspect(move |_| {
            let _ = &place;
        }))
    }
}

impl Lane {
    /// Waits for a place for an answer that will be in memory as a whole.
    pub(crate) async fn place(&self) -> Place {
        Place::new(&self.whole, &self.readers.whole).await
    }

    /// Waits for a place for an answer in pieces.
    pub(crate) async fn sending(&self) -> Place {
        Place::new(&self.sent, &self.readers.sent).await
    }

    /// The same for the connection that has this mark.
    pub(crate) fn of(self, mark: Mark) -> Lane {
        Lane { mark, ..self }
    }

    /// The same for a connection from there.
    pub(crate) fn to(self, remote: Remote) -> Lane {
        Lane { remote, ..self }
    }

    /// The mark of the connection.
    pub(crate) fn mark(&self) -> &Mark {
        &self.mark
    }

    pub(crate) fn origin(&self) -> Origin {
        self.origin
    }

    /// The other end of the connection, for the log.
    pub(crate) fn remote(&self) -> Remote {
        self.remote
    }

    /// Waits until no other password of the connection is looked at.
    pub(crate) async fn password(&self) -> OwnedSemaphorePermit {
        permit(&self.password).await
    }

    /// Makes the next pieces, none of them empty, until they have `bytes` bytes. Returns at least one, unless
    /// none is left.
    pub(crate) async fn next(&self, source: &mut Option<Source>, bytes: usize) -> Result<Vec<Bytes>, Status> {
        while let Some(mut rest) = source.take() {
            let turns = self.turn().await;
            let made = spawn_blocking(move || {
                let _turns = turns;
                give_way();
                let (mut pieces, mut gathered) = (Vec::new(), 0);
                while gathered < bytes {
                    match rest.next() {
                        None => return (pieces, None),
                        // An empty piece means that much was looked at; other answers get their turn.
                        Some(piece) if piece.is_empty() => break,
                        Some(piece) => {
                            gathered += piece.len();
                            pieces.push(piece);
                        }
                    }
                }
                (pieces, Some(rest))
            });
            let made =
                made.await.map_err(|error| Status::internal(format!("synod: a piece failed: {error}")))?;
            *source = made.1;
            if !made.0.is_empty() {
                return Ok(made.0);
            }
        }
        Ok(Vec::new())
    }

    /// Converts a large message apart from the thread that serves clients, since that may be the protocol's. What
    /// `kept` holds for the work, such as a place or a charge, it holds until the work has ended, also if the client
    /// leaves.
    pub(crate) async fn blocking<K: Send + 'static, T: Send + 'static>(
        &self,
        kept: K,
        work: impl FnOnce(&K) -> T + Send + 'static,
    ) -> Result<(T, K), Status> {
        let turns = self.turn().await;
        blocking(turns, kept, work).await
    }

    /// The same for a body of JSON, which becomes a request.
    ///
    /// # Errors
    /// Too many bodies wait.
    pub(crate) async fn translated<K: Send + 'static, T: Send + 'static>(
        &self,
        kept: K,
        work: impl FnOnce(&K) -> T + Send + 'static,
    ) -> Result<(T, K), Status> {
        let turns = self.turn_to_translate().await?;
        blocking(turns, kept, work).await
    }

    async fn turn_to_translate(&self) -> Result<(OwnedSemaphorePermit, Turn), Status> {
        let of_connection = permit(&self.body).await;
        let turn = self.readers.translating.turn((self.origin, "".into()), false).await;
        Ok((of_connection, turn.ok_or_else(too_many)?))
    }

    /// Waits for a thread. Semaphores are fair: the streams of a connection take turns, and so do the connections.
    async fn turn(&self) -> (OwnedSemaphorePermit, OwnedSemaphorePermit) {
        (permit(&self.piece).await, permit(&self.readers.threads).await)
    }
}

/// Does work on a thread of its own, which holds `turns` until the work has ended, and what is `kept` for it.
async fn blocking<K: Send + 'static, T: Send + 'static>(
    turns: impl Send + 'static,
    kept: K,
    work: impl FnOnce(&K) -> T + Send + 'static,
) -> Result<(T, K), Status> {
    let done = spawn_blocking(move || {
        let _turns = turns;
        give_way();
        (work(&kept), kept)
    });
    done.await.map_err(|error| Status::internal(format!("synod: a large message failed: {error}")))
}

/// Lowers this thread's priority, so that the threads that order and execute go first where processors are few.
pub(crate) fn give_way() {
    thread_local!(static GIVES_WAY: Cell<bool> = const { Cell::new(false) });
    if !GIVES_WAY.replace(true) {
        lower_priority(NICENESS);
    }
}

/// Where the system does not allow it, the thread keeps its priority.
pub(crate) fn lower_priority(niceness: i32) {
    let _ = setpriority_process(Some(gettid()), niceness);
}

fn places(count: usize) -> Arc<Semaphore> {
    Arc::new(Semaphore::new(count))
}

async fn permit(of: &Arc<Semaphore>) -> OwnedSemaphorePermit {
    Arc::clone(of).acquire_owned().await.expect("it is never closed")
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, time::Duration};

    use futures_util::FutureExt as _;
    use tokio::time::{sleep, timeout};

    use super::*;

    /// Otherwise a client that leaves makes room for the next, while the work of both goes on.
    #[tokio::test]
    async fn work_holds_what_it_was_given_when_its_client_has_left() {
        let readers = Readers::new();
        let threads = readers.threads.available_permits();
        let held = Arc::new(());
        let mut ends = Vec::new();
        for _ in 0..2 * threads + 1 {
            let (end, ended) = mpsc::channel::<()>();
            let lane = readers.lane(None);
            let held = Arc::clone(&held);
            let mut work =
                Box::pin(async move { lane.blocking(held, move |_| ended.recv().is_err()).await.map(drop) });
            // The client leaves when the work was begun, or waits for its turn.
            assert!((&mut work).now_or_never().is_none());
            drop(work);
            ends.push(end);
        }
        assert_eq!(readers.threads.available_permits(), 0);
        assert_eq!(Arc::strong_count(&held), 1 + threads);
        drop(ends);
        let freed = async {
            while Arc::strong_count(&held) > 1 {
                sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(Duration::from_secs(20), freed).await.expect("the work has ended");
        assert_eq!(readers.threads.available_permits(), threads);
    }

    /// Otherwise a stranger who sends bodies of JSON would hold up everybody before it is known whose they are.
    #[tokio::test]
    async fn bodies_do_not_hold_up_answers_nor_those_of_other_addresses() {
        let readers = Readers::new();
        let from = |host| readers.lane(Some([10, 0, 0, host].into()));
        let mut ends = Vec::new();
        let mut flood: Vec<_> = (0..100)
            .map(|_| {
                let (end, ended) = mpsc::channel::<()>();
                ends.push(end);
                let lane = from(1);
                Box::pin(async move { lane.translated((), move |()| ended.recv().is_err()).await.map(drop) })
            })
            .collect();
        flood.iter_mut().for_each(|body| assert!(body.now_or_never().is_none()));
        let soon = Duration::from_secs(20);
        let answer = from(2);
        timeout(soon, answer.blocking((), |()| 7)).await.expect("answers have threads of their own").unwrap();
        let own = from(2);
        let mut own = Box::pin(async move { own.translated((), |()| 7).await });
        assert!((&mut own).now_or_never().is_none());
        // Those at work end; the others of the flood do not.
        let threads = readers.threads.available_permits();
        ends.drain(..threads);
        timeout(soon, futures_util::future::join_all(flood.drain(..threads))).await.unwrap();
        timeout(soon, own).await.expect("the other address has the next turn").unwrap();
    }

    #[tokio::test]
    async fn a_place_is_held_by_what_makes_its_answer() {
        let readers = Readers::new();
        let lane = readers.lane(None);
        let place = lane.place().await;
        let source = place.kept_by(Box::new([Bytes::from_static(b"a")].into_iter()));
        drop(place);
        assert_eq!(readers.whole.available_permits(), WHOLE_MAX - 1);
        assert!(lane.next(&mut Some(source), 1).await.unwrap() == [Bytes::from_static(b"a")]);
        assert_eq!(readers.whole.available_permits(), WHOLE_MAX);
    }
}

//! Large answers: made a piece at a time by threads of their own, as fast as the client takes them.
//!
//! A client that asks for the whole store and does not read costs a view of the store, and one piece. Pieces are made in turns:
//! a few threads make them, and of each connection at most one at a time, so that a connection with a thousand large
//! requests is served as often as one with a single one. What has to be in memory as a whole (a large answer to a
//! transaction or another command, a range in another order than that of its keys) takes one of a few places until it is sent.
//! Only a command in a session is answered without: it cannot be executed again when its answer turns out to be large.

use std::{cell::Cell, num::NonZero, sync::Arc, thread};

use bytes::Bytes;
use rustix::{process::setpriority_process, thread::gettid};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    task::spawn_blocking,
};
use tonic::Status;

/// What makes the pieces of an answer.
pub(crate) type Source = Box<dyn Iterator<Item = Bytes> + Send>;

/// Large answers of which pieces are made and sent, over all connections and of one. A client that takes a part of its answers
/// and no more keeps so many of their pieces in memory, of at most [`GATHERED_BYTES`] each; what a large value takes beyond that,
/// its request is charged for.
pub(crate) const SENT_MAX: usize = 1024;
const SENT_OF_CONNECTION_MAX: usize = 16;

/// Large answers that are in memory as a whole, over all connections.
pub(crate) const WHOLE_MAX: usize = 8;

/// Of the threads that make pieces: with this one, a thread gets about a tenth of what one without gets.
const NICENESS: i32 = 10;

/// Pieces are gathered up to so many bytes if the client takes as many: each turn costs some changes of threads.
pub(crate) const GATHERED_BYTES: usize = 256 << 10;

/// The threads that make pieces, and the places of answers that are in memory as a whole. Clones are the same.
#[derive(Clone, Debug)]
pub(crate) struct Readers {
    threads: Arc<Semaphore>,
    sent: Arc<Semaphore>,
    whole: Arc<Semaphore>,
}

impl Readers {
    /// As many threads as half of the processors, and no more than four: the others order and execute commands.
    pub(crate) fn new() -> Readers {
        let processors = thread::available_parallelism().map_or(1, NonZero::get);
        let threads = (processors / 2).clamp(1, 4);
        Readers { threads: places(threads), sent: places(SENT_MAX), whole: places(WHOLE_MAX) }
    }

    /// The share of a connection.
    pub(crate) fn lane(&self) -> Lane {
        let sent = places(SENT_OF_CONNECTION_MAX);
        Lane { readers: self.clone(), piece: places(1), sent, whole: places(1) }
    }
}

/// A connection's share: one piece at a time, some answers that are sent, and one that is in memory as a whole.
#[derive(Clone, Debug)]
pub(crate) struct Lane {
    readers: Readers,
    piece: Arc<Semaphore>,
    sent: Arc<Semaphore>,
    whole: Arc<Semaphore>,
}

/// A place for an answer. It is free again when this is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    _of_connection: OwnedSemaphorePermit,
    _of_all: OwnedSemaphorePermit,
}

impl Lane {
    /// Waits for a place for an answer that will be in memory as a whole.
    pub(crate) async fn place(&self) -> Place {
        Place { _of_connection: permit(&self.whole).await, _of_all: permit(&self.readers.whole).await }
    }

    /// Waits for a place for an answer of which a piece is to be made.
    pub(crate) async fn sending(&self) -> Place {
        Place { _of_connection: permit(&self.sent).await, _of_all: permit(&self.readers.sent).await }
    }

    /// Makes the next pieces, none of them empty, until there are so many bytes; at least one, unless there are no more.
    pub(crate) async fn next(&self, source: &mut Option<Source>, bytes: usize) -> Result<Vec<Bytes>, Status> {
        while let Some(mut rest) = source.take() {
            // In the order in which they came, the connections as well as the streams of one.
            let turns = (permit(&self.piece).await, permit(&self.readers.threads).await);
            let made = spawn_blocking(move || {
                let _turns = turns;
                give_way();
                let (mut pieces, mut gathered) = (Vec::new(), 0);
                while gathered < bytes {
                    match rest.next() {
                        None => return (pieces, None),
                        // Others may want to make something of theirs.
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
}

/// Has this thread wait for those that order and execute, where there are fewer processors than threads that want one.
fn give_way() {
    thread_local!(static GIVES_WAY: Cell<bool> = const { Cell::new(false) });
    if !GIVES_WAY.replace(true) {
        // Where it is not allowed, it goes on as it is.
        let _ = setpriority_process(Some(gettid()), NICENESS);
    }
}

fn places(count: usize) -> Arc<Semaphore> {
    Arc::new(Semaphore::new(count))
}

async fn permit(of: &Arc<Semaphore>) -> OwnedSemaphorePermit {
    Arc::clone(of).acquire_owned().await.expect("it is never closed")
}

//! Large answers: made a piece at a time by threads of their own, as fast as the client takes them.
//!
//! A client that asks for the whole store and does not read costs a view of the store, and one piece. Pieces are made in turns:
//! a few threads make them, and of each connection at most one at a time, so that a connection with a thousand large
//! requests is served as often as one with a single one. What has to be in memory as a whole (the answer to a
//! transaction, a range in another order than that of its keys) takes one of a few places until it is sent.

use std::{num::NonZero, sync::Arc, thread};

use bytes::Bytes;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    task::spawn_blocking,
};
use tonic::Status;

/// What makes the pieces of an answer.
pub(crate) type Source = Box<dyn Iterator<Item = Bytes> + Send>;

/// Large answers that are in memory as a whole, over all connections.
const WHOLE_MAX: usize = 8;

/// The threads that make pieces, and the places of answers that are in memory as a whole. Clones are the same.
#[derive(Clone, Debug)]
pub(crate) struct Readers {
    threads: Arc<Semaphore>,
    whole: Arc<Semaphore>,
}

impl Readers {
    /// As many threads as half of the processors, and no more than four: the others order and execute commands.
    pub(crate) fn new() -> Readers {
        let processors = thread::available_parallelism().map_or(1, NonZero::get);
        let threads = (processors / 2).clamp(1, 4);
        Readers { threads: Arc::new(Semaphore::new(threads)), whole: Arc::new(Semaphore::new(WHOLE_MAX)) }
    }

    /// The share of a connection.
    pub(crate) fn lane(&self) -> Lane {
        let one = || Arc::new(Semaphore::new(1));
        Lane { readers: self.clone(), piece: one(), whole: one() }
    }
}

/// A connection's share: one piece at a time, and one answer that is in memory as a whole.
#[derive(Clone, Debug)]
pub(crate) struct Lane {
    readers: Readers,
    piece: Arc<Semaphore>,
    whole: Arc<Semaphore>,
}

/// A place for an answer that is in memory as a whole. It is free again when this is dropped.
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

    /// Makes the next piece that is not empty; nothing, after the last one.
    pub(crate) async fn next(&self, source: &mut Option<Source>) -> Result<Option<Bytes>, Status> {
        while let Some(mut rest) = source.take() {
            // In the order in which they came, the connections as well as the streams of one.
            let turns = (permit(&self.piece).await, permit(&self.readers.threads).await);
            let made = spawn_blocking(move || {
                let _turns = turns;
                rest.next().map(|piece| (piece, rest))
            });
            let made =
                made.await.map_err(|error| Status::internal(format!("synod: a piece failed: {error}")))?;
            let Some((piece, rest)) = made else { break };
            *source = Some(rest);
            if !piece.is_empty() {
                return Ok(Some(piece));
            }
        }
        Ok(None)
    }
}

async fn permit(of: &Arc<Semaphore>) -> OwnedSemaphorePermit {
    Arc::clone(of).acquire_owned().await.expect("it is never closed")
}

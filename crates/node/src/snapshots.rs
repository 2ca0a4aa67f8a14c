//! The snapshot thread: writes snapshots, serves pieces of them to replicas that lag, and receives them.
//!
//! Pieces are served between two pieces of a snapshot that is being written, so that neither waits for the other.

use std::{
    io::{self, Write},
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use synod_replica::{Event, Frozen, SnapshotInfo};
use synod_storage::{SnapshotReceiver, SnapshotStore, StorageError};
use synod_sync::{
    Planted,
    channel::{Receiver, Sender},
    planted,
};
use synod_wire::{ReplicaId, Slot};

use crate::{
    executor::{Job, JobSender},
    protocol::Input,
};

/// What the snapshot thread is asked to do.
pub(crate) enum SnapshotJob {
    /// Write the state as it was at a slot.
    Write { slot: Slot, frozen: Box<dyn Frozen> },
    /// Read a piece of a snapshot for a peer.
    ReadChunk { to: ReplicaId, slot: Slot, offset: u64, len_max: usize },
    /// Add a piece to the snapshot that is being received.
    WriteChunk { info: SnapshotInfo, offset: u64, bytes: Bytes },
    /// The received snapshot is complete.
    Finish(SnapshotInfo),
    /// No more jobs follow.
    Stop,
}

/// Snapshots kept on disk: the newest, and the one before, in case the newest is found damaged.
const KEPT: usize = 2;

/// Further ones kept while a peer is receiving one, lest it begin anew with every new snapshot...
const KEPT_FOR_PEERS: usize = 2;

/// ...which it is taken to do for this long after it last asked for a piece.
const PEER_PATIENCE: Duration = Duration::from_secs(10);

/// See the module.
pub(crate) struct SnapshotStage {
    pub(crate) store: Arc<SnapshotStore>,
    pub(crate) events: Sender<Input>,
    pub(crate) executor: JobSender,
    pub(crate) receiving: Option<(SnapshotInfo, SnapshotReceiver)>,
    /// When a peer last asked for a piece.
    pub(crate) served: Option<Instant>,
    /// It was told to stop.
    pub(crate) stopping: bool,
}

impl SnapshotStage {
    /// Runs until told to stop.
    pub(crate) fn run(mut self, jobs: &Receiver<SnapshotJob>) {
        while !self.stopping
            && let Ok(job) = jobs.recv()
        {
            match job {
                SnapshotJob::Write { slot, frozen } => self.write(slot, frozen, jobs),
                SnapshotJob::Stop => self.stopping = true,
                job => self.serve(job),
            }
        }
    }

    fn serve(&mut self, job: SnapshotJob) {
        match job {
            SnapshotJob::ReadChunk { to, slot, offset, len_max } => {
                self.read_chunk(to, slot, offset, len_max)
            }
            SnapshotJob::WriteChunk { info, offset, bytes } => self.write_chunk(info, offset, &bytes),
            SnapshotJob::Finish(info) => self.finish(info),
            SnapshotJob::Write { .. } | SnapshotJob::Stop => {}
        }
    }

    fn tell(&self, event: Event) {
        // A failed send means that the protocol's thread has ended; the stop follows.
        let _ = self.events.send(Input::Event(event));
    }

    fn write(&mut self, slot: Slot, frozen: Box<dyn Frozen>, jobs: &Receiver<SnapshotJob>) {
        let began = Instant::now();
        let written = self.write_file(slot, &*frozen, jobs);
        match &written {
            Ok(bytes) => {
                tracing::info!(slot = slot.0, bytes, took = ?began.elapsed(), "wrote a snapshot");
                let receiving = self.served.is_some_and(|served| served.elapsed() < PEER_PATIENCE);
                if let Err(error) = self.store.retain(if receiving { KEPT + KEPT_FOR_PEERS } else { KEPT }) {
                    tracing::warn!(%error, "old snapshots could not be removed");
                }
            }
            // The log keeps growing until one succeeds, but nothing is lost.
            Err(error) => tracing::error!(slot = slot.0, %error, "a snapshot could not be written"),
        }
        self.tell(Event::SnapshotTaken(written.ok().map(|bytes| SnapshotInfo { slot, bytes })));
    }

    fn write_file(
        &mut self,
        slot: Slot,
        frozen: &dyn Frozen,
        jobs: &Receiver<SnapshotJob>,
    ) -> io::Result<u64> {
        let writer = self.store.create(slot).map_err(io::Error::other)?;
        let mut serving = Serving { writer, stage: self, jobs };
        frozen.write_to(&mut serving)?;
        if serving.stage.stopping {
            return Err(io::Error::other("the replica is stopping"));
        }
        Ok(serving.writer.finish().map_err(io::Error::other)?.file_bytes)
    }

    fn read_chunk(&mut self, to: ReplicaId, slot: Slot, offset: u64, len_max: usize) {
        // A snapshot that is gone is answered with a size of zero: the peer then asks what there is instead.
        self.served = Some(Instant::now());
        let bytes = self.store.read_chunk(slot, offset, len_max);
        let (total, bytes) = match bytes.and_then(|bytes| Ok((self.store.file_bytes(slot)?, bytes))) {
            Ok(found) => found,
            Err(error) => {
                tracing::warn!(slot = slot.0, %error, "a snapshot can not be sent to a peer");
                (0, Bytes::new())
            }
        };
        self.tell(Event::ChunkRead { to, slot, offset, total, bytes });
    }

    fn write_chunk(&mut self, info: SnapshotInfo, offset: u64, bytes: &Bytes) {
        match self.add_chunk(info, offset, bytes) {
            Ok(end) => self.tell(Event::ChunkWritten { slot: info.slot, end }),
            Err(error) => {
                tracing::error!(slot = info.slot.0, %error, "a snapshot cannot be received");
                self.receiving = None;
                self.tell(Event::SnapshotInstalled(None));
            }
        }
    }

    fn add_chunk(&mut self, info: SnapshotInfo, offset: u64, bytes: &Bytes) -> Result<u64, StorageError> {
        if offset == 0 || self.receiving.as_ref().is_none_or(|(receiving, _)| *receiving != info) {
            tracing::info!(slot = info.slot.0, bytes = info.bytes, "receiving a snapshot");
            self.receiving = None;
            self.receiving = Some((info, self.store.receive(info.slot, info.bytes)?));
        }
        let (_, receiver) = self.receiving.as_mut().expect("just set");
        receiver.write_chunk(offset, bytes)?;
        Ok(offset + bytes.len() as u64)
    }

    fn finish(&mut self, info: SnapshotInfo) {
        let finished = match self.receiving.take() {
            Some((receiving, receiver)) if receiving == info => {
                receiver.finish().map_err(|error| error.to_string())
            }
            _ => Err("its pieces are not here".to_owned()),
        };
        match finished {
            Ok(_) => {
                // A failed send means that the replica is stopping.
                self.executor.send(Job::Restore(info));
            }
            Err(error) => {
                tracing::error!(slot = info.slot.0, error, "a received snapshot is not sound");
                self.tell(Event::SnapshotInstalled(None));
            }
        }
    }
}

/// A snapshot file that is being written; between two writes, peers are served.
struct Serving<'a, W> {
    writer: W,
    stage: &'a mut SnapshotStage,
    jobs: &'a Receiver<SnapshotJob>,
}

impl<W: Write> Write for Serving<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        while let Ok(job) = self.jobs.try_recv() {
            if matches!(job, SnapshotJob::Stop) {
                // Nobody says it twice.
                self.stage.stopping = !planted(Planted::ForgetStop);
                return Err(io::Error::other("the replica is stopping"));
            }
            self.stage.serve(job);
        }
        self.writer.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.writer.flush()
    }
}

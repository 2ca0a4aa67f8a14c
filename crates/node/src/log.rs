//! The log writer's thread: everything that waits goes into one commit, and what was to be sent after it leaves.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use synod_storage::{StorageError, Wal};
use synod_sync::{
    Planted,
    channel::{Receiver, RecvTimeoutError, Sender},
    planted,
    time::Instant,
};
use synod_wire::{Encoded, GroupId, Keep, Lsn, ReplicaId, Slot};

use crate::{protocol::Input, status::Shared};

/// What one burst of the protocol gives to the log.
#[derive(Debug, Default)]
pub(crate) struct LogJob {
    pub(crate) records: Vec<(Lsn, Keep, Encoded)>,
    /// Messages that leave once a record is durable.
    pub(crate) sends: Vec<GatedSend>,
    pub(crate) trim: Option<Slot>,
    /// The replica votes again after the loss of its log.
    pub(crate) loss_made_good: bool,
    /// Commit what is left and end.
    pub(crate) stop: bool,
}

impl LogJob {
    pub(crate) fn is_empty(&self) -> bool {
        let nothing = self.records.is_empty() && self.sends.is_empty() && self.trim.is_none();
        nothing && !self.loss_made_good && !self.stop
    }
}

/// A message that waits for a record.
#[derive(Debug)]
pub(crate) struct GatedSend {
    /// Peers that speak this version.
    pub(crate) to: Vec<ReplicaId>,
    pub(crate) version: u16,
    pub(crate) body: Encoded,
    pub(crate) after: Lsn,
}

/// Bytes that one commit takes from what waits.
const COMMIT_BYTES_MAX: usize = 8 << 20;

/// So long after its last commit the log notes, with one more fsync, that this was durable. A longer time leaves it
/// longer to rot without being missed; a shorter one costs a lightly loaded disk more fsyncs.
const IDLE: Duration = Duration::from_millis(50);

/// The log with what it needs to report.
pub(crate) struct LogStage {
    pub(crate) wal: Wal,
    pub(crate) events: Sender<Input>,
    pub(crate) transport: Arc<dyn synod_transport::Sender>,
    pub(crate) shared: Arc<Shared>,
    /// What peers are told to be durable, with every message.
    pub(crate) told: Arc<AtomicU64>,
    /// Bounded by the replica, which sends no more than `Settings::held_bytes_max` bytes of them before it hears that
    /// records are durable. So are the records that wait in the queue in front of this stage.
    pub(crate) gated: Vec<GatedSend>,
    /// Messages that have left so far.
    pub(crate) released: u64,
    pub(crate) trim: Option<Slot>,
    pub(crate) loss_made_good: bool,
}

impl LogStage {
    /// Runs until told to stop. An error is fatal for the replica: what could not be written is not acknowledged.
    pub(crate) fn run(mut self, jobs: &Receiver<LogJob>) -> Result<(), StorageError> {
        while let Some(first) = self.next(jobs)? {
            let began = Instant::now();
            let mut stop = self.take(first)?;
            while !stop && self.wal.pending_bytes() < COMMIT_BYTES_MAX {
                let Ok(job) = jobs.try_recv() else { break };
                stop = self.take(job)?;
            }
            if stop && planted(Planted::StopWithoutCommit) {
                return Ok(());
            }
            self.commit()?;
            self.shared.log_busy.since(began);
            if stop {
                return self.wal.close();
            }
        }
        self.wal.close()
    }

    /// Waits for a job; `None` if none will come.
    fn next(&mut self, jobs: &Receiver<LogJob>) -> Result<Option<LogJob>, StorageError> {
        if !self.wal.is_marked() {
            match jobs.recv_timeout(IDLE) {
                Err(RecvTimeoutError::Timeout) => self.wal.mark_durable()?,
                other => return Ok(other.ok()),
            }
        }
        Ok(jobs.recv().ok())
    }

    /// Takes in a job; true if it is the last.
    pub(crate) fn take(&mut self, job: LogJob) -> Result<bool, StorageError> {
        for (lsn, keep, record) in job.records {
            self.wal.append(lsn, keep, record);
        }
        self.gated.extend(job.sends);
        // Both only once what was appended before is durable.
        self.trim = job.trim.or(self.trim);
        self.loss_made_good |= job.loss_made_good;
        Ok(job.stop)
    }

    /// Lets the messages leave that waited for records. A job brings records before what waits for them, and a commit is
    /// of all records, so none of these waits for a later one.
    fn release(&mut self, durable: Lsn) {
        for send in self.gated.drain(..) {
            assert!(send.after <= durable, "a message waits for a record that the log was not given");
            #[cfg(feature = "shuttle")]
            send.to.iter().for_each(|&to| self.shared.watch.leaves(to, &send.body, send.after));
            self.transport.send_in(send.version, GroupId::FIRST, &send.to, send.body);
            self.released += 1;
        }
        self.shared.released.publish(self.released);
    }

    pub(crate) fn commit(&mut self) -> Result<(), StorageError> {
        let before = self.wal.durable();
        let began = Instant::now();
        if planted(Planted::SendBeforeCommit) {
            self.release(Lsn(u64::MAX));
        }
        let durable = self.wal.commit()?;
        if durable > before {
            self.shared.log_commits.record(began.elapsed());
        }
        // Before anything leaves that rests on it.
        self.told.store(durable.0, SeqCst);
        self.release(durable);
        if durable > before {
            self.shared.durable.publish(durable.0);
            if self.shared.wake_when_durable.load(SeqCst) {
                let _ = self.events.send(Input::Wake);
            }
            let stats = self.wal.stats();
            self.shared.log_bytes.set(self.wal.bytes());
            self.shared.log_records.set(stats.records);
            self.shared.log_bytes_written.set(stats.bytes_written);
        }
        if let Some(through) = self.trim.take() {
            self.wal.trim(through)?;
        }
        if std::mem::take(&mut self.loss_made_good) {
            self.wal.loss_made_good()?;
        }
        Ok(())
    }
}

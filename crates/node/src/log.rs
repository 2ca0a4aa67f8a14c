//! The log writer's thread: everything that waits goes into one commit, and what had to be sent after it leaves.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use synod_host::{Bundles, Exit};
use synod_replica::{Event, worth_a_snapshot};
use synod_storage::{StorageError, Wal};
use synod_sync::{
    Planted,
    channel::{Receiver, RecvTimeoutError},
    planted,
    time::Instant,
};
use synod_wire::{Encoded, GroupId, Keep, Lsn, ReplicaId, Slot};

use crate::{
    inputs::Queue,
    protocol::Input,
    status::{Ahead, Shared},
};

/// What one burst of the protocol gives to the log, for all groups.
#[derive(Debug, Default)]
pub(crate) struct LogJob {
    pub(crate) records: Vec<GroupRecord>,
    /// Messages that leave once a record of their group is durable.
    pub(crate) sends: Vec<(GroupId, Lsn, GatedSend)>,
    pub(crate) trims: Vec<(GroupId, Slot)>,
    /// Whether all groups vote again after the loss of the log.
    pub(crate) loss_made_good: bool,
    /// Whether to commit what is left and end.
    pub(crate) stop: bool,
}

impl LogJob {
    pub(crate) fn is_empty(&self) -> bool {
        let nothing = self.records.is_empty() && self.sends.is_empty() && self.trims.is_empty();
        nothing && !self.loss_made_good && !self.stop
    }
}

/// A record of a group.
#[derive(Debug)]
pub(crate) struct GroupRecord {
    pub(crate) group: GroupId,
    /// The number that the group gave it.
    pub(crate) lsn: Lsn,
    pub(crate) keep: Keep,
    pub(crate) record: Encoded,
}

/// A message that waits for a record of its group.
#[derive(Debug)]
pub(crate) struct GatedSend {
    /// The receivers, which speak this version.
    pub(crate) to: Vec<ReplicaId>,
    pub(crate) version: u16,
    pub(crate) body: Encoded,
}

/// The most bytes that one commit takes of what waits.
const COMMIT_BYTES_MAX: usize = 8 << 20;

/// This long after its last commit the log notes, with one more fsync, that the commit was durable. With a longer
/// time a record could rot unnoticed for longer; with a shorter one a lightly loaded disk gets more fsyncs.
const IDLE: Duration = Duration::from_millis(50);

/// The log may have this many segments, and as many bytes as are worth the snapshots, before a group that keeps the
/// oldest segment is asked for a snapshot: a group that has little to do takes none by itself.
const SEGMENTS_MAX: usize = 4;

/// The log, with what it needs to report.
pub(crate) struct LogStage {
    pub(crate) wal: Wal,
    /// The groups, by their numbers.
    pub(crate) groups: Vec<LoggedGroup>,
    /// Whether they have one order, so that one snapshot holds all of them.
    pub(crate) merged: bool,
    pub(crate) ahead: Arc<Ahead>,
    pub(crate) events: Queue,
    pub(crate) transport: Arc<dyn synod_transport::Sender>,
    pub(crate) bundles: Bundles,
    /// The record through which peers are told that the log is durable, with every message; it counts the
    /// records of all groups.
    pub(crate) told: Arc<AtomicU64>,
    pub(crate) trims: Vec<(GroupId, Slot)>,
    pub(crate) loss_made_good: bool,
    /// The number of segments at which a group was last asked to release some.
    pub(crate) asked_for: usize,
}

/// A group as the log knows it. It numbers its own records, beginning after the last one that the log had
/// when it started; and a commit contains the records of all groups.
pub(crate) struct LoggedGroup {
    pub(crate) shared: Arc<Shared>,
    pub(crate) appended: Lsn,
    pub(crate) durable: Lsn,
    /// The messages that wait. The replica bounds them: it sends no more than `Settings::held_bytes_max`
    /// bytes of them before it hears that records are durable. So are the records that wait in the queue
    /// before this stage.
    pub(crate) gate: Exit<GatedSend>,
}

impl LoggedGroup {
    /// A group that begins where the log ends.
    pub(crate) fn new(shared: Arc<Shared>, last: Lsn) -> LoggedGroup {
        LoggedGroup { shared, appended: last, durable: last, gate: Exit::default() }
    }
}

impl LogStage {
    /// Runs until told to stop. An error is fatal for the replica: what could not be written is not acknowledged.
    pub(crate) fn run(mut self, jobs: &Receiver<LogJob>) -> Result<(), StorageError> {
        while let Some(first) = self.next(jobs)? {
            let began = Instant::now();
            let mut stop = self.take(first);
            while !stop && self.wal.pending_bytes() < COMMIT_BYTES_MAX {
                let Ok(job) = jobs.try_recv() else { break };
                stop = self.take(job);
            }
            if stop && planted(Planted::StopWithoutCommit) {
                return Ok(());
            }
            self.commit()?;
            self.groups[0].shared.log_busy.since(began);
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

    /// Takes in a job; returns whether it is the last.
    pub(crate) fn take(&mut self, job: LogJob) -> bool {
        for GroupRecord { group, lsn, keep, record } in job.records {
            let of = &mut self.groups[usize::from(group.0)];
            assert_eq!(lsn, of.appended.next(), "a group's records come in the order of their numbers");
            of.appended = lsn;
            self.wal.append_to(group, keep, record);
        }
        for (group, after, send) in job.sends {
            self.groups[usize::from(group.0)].gate.hold(after, send);
        }
        // Both happen only once what was appended before is durable.
        self.trims.extend(job.trims);
        self.loss_made_good |= job.loss_made_good;
        job.stop
    }

    /// Sends the messages that waited for records. A job brings records before what waits for them, and a
    /// commit contains all records, so none of these waits for a later one.
    fn release(&mut self) {
        for (group, of) in (0..).map(GroupId).zip(&mut self.groups) {
            while let Some((_after, send)) = of.gate.leave(of.appended) {
                #[cfg(feature = "shuttle")]
                send.to.iter().for_each(|&to| of.shared.watch.leaves(to, &send.body, _after));
                let frame = |version, group, to: &_, body| self.transport.send_in(version, group, to, body);
                self.bundles.put(send.version, group, &send.to, send.body, frame);
            }
            assert!(of.gate.is_empty(), "a message waits for a record that the log was not given");
        }
        self.bundles.leave(|version, group, to, body| self.transport.send_in(version, group, to, body));
        self.transport.flush();
    }

    pub(crate) fn commit(&mut self) -> Result<(), StorageError> {
        let before = self.wal.durable();
        let began = Instant::now();
        if planted(Planted::SendBeforeCommit) {
            self.release();
        }
        let durable = self.wal.commit()?;
        if durable > before {
            self.groups[0].shared.log_commits.record(began.elapsed());
        }
        // This comes before anything leaves that rests on it.
        self.told.store(durable.0, SeqCst);
        self.release();
        if durable > before {
            self.publish_durable();
        }
        for (group, through) in std::mem::take(&mut self.trims) {
            self.wal.trim_of(group, through)?;
        }
        self.ask_for_snapshots();
        if std::mem::take(&mut self.loss_made_good) {
            self.wal.loss_made_good()?;
        }
        Ok(())
    }

    /// Publishes how far the log of each group is durable of which something was written.
    fn publish_durable(&mut self) {
        let (stats, bytes) = (self.wal.stats(), self.wal.bytes());
        let mut wake = false;
        for (group, of) in (0..).map(GroupId).zip(&mut self.groups) {
            if of.appended > of.durable {
                of.durable = of.appended;
                of.shared.durable.publish(of.durable.0);
                self.ahead.mark(group);
                wake |= of.shared.wake_when_durable.load(SeqCst);
                of.shared.log_bytes.set(bytes);
                of.shared.log_records.set(stats.records);
                of.shared.log_bytes_written.set(stats.bytes_written);
            }
        }
        if wake {
            let _ = self.events.send(Input::Wake);
        }
    }

    /// Has groups take a snapshot if old segments are kept only for them. A group that is alone has limits of its own.
    fn ask_for_snapshots(&mut self) {
        let segments = self.wal.segments();
        let snapshots = self.groups.iter().map(|of| of.shared.snapshot_bytes.get());
        if self.groups.len() == 1
            || segments <= self.asked_for.max(SEGMENTS_MAX)
            || self.wal.bytes() < worth_snapshots(snapshots, self.merged)
        {
            self.asked_for = self.asked_for.min(segments);
            return;
        }
        // They are asked again when there is one segment more.
        self.asked_for = segments;
        for group in self.wal.oldest_needed_by() {
            let _ = self.events.send(Input::Event(group, Event::TakeSnapshot));
        }
    }
}

/// The bytes of log that are worth new snapshots of all groups, given the bytes of their last ones.
fn worth_snapshots(last: impl Iterator<Item = u64>, merged: bool) -> u64 {
    let worth = last.map(worth_a_snapshot);
    if merged { worth.max().unwrap_or(0) } else { worth.sum() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_of_several_groups_may_be_as_long_as_is_worth_their_snapshots() {
        let worth = |last: [u64; 3], merged| worth_snapshots(last.into_iter(), merged);
        assert_eq!(worth([0, 1 << 20, 1 << 20], false), 0, "small snapshots are always worth it");
        assert_eq!(worth([1 << 30, 1 << 28, 1 << 20], false), (1 << 29) + (1 << 27));
        assert_eq!(worth([1 << 30; 3], true), 1 << 29, "one snapshot holds all groups");
    }
}

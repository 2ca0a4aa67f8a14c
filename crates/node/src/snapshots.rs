//! The snapshot thread: writes snapshots of all groups, serves pieces of them to replicas that lag, receives them, and
//! reads what was received, so that the executor need not.
//!
//! Pieces are served between two pieces of a snapshot that is being written or read, so that neither waits for the
//! other.

use std::{
    any::Any,
    collections::VecDeque,
    io::{self, Write},
    sync::Arc,
    time::Instant,
};

use bytes::Bytes;
use synod_host::{Kept, SnapshotBook};
use synod_replica::{Cut, Event, Executor, Frozen, ReadSnapshot, Replaced, SnapshotInfo, StateMachine};
use synod_storage::{SnapshotReceiver, SnapshotStore, StorageError};
use synod_sync::{Planted, channel::Receiver, planted};
use synod_transport::Repeats;
use synod_wire::{GroupId, ReplicaId, Slot};

use crate::{
    executor::{Job, JobSender},
    inputs::Queue,
    protocol::{Clock, Input},
    status::Shared,
};

/// What the snapshot thread is asked to do.
pub(crate) enum SnapshotJob {
    /// Write the state as it was at a slot; `cut` says how far all groups were, if they are merged.
    Write { slot: Slot, frozen: Box<dyn Frozen>, cut: Option<Cut> },
    /// Read a piece of a snapshot for a peer.
    ReadChunk { to: ReplicaId, slot: Slot, offset: u64, len_max: usize },
    /// Add a piece to the snapshot that is being received.
    WriteChunk { info: SnapshotInfo, offset: u64, bytes: Bytes },
    /// The received snapshot is complete.
    Finish(SnapshotInfo),
    /// Read a snapshot that was received, for the executor.
    Read(SnapshotInfo),
    /// The executor has gone on from a snapshot of merged groups that was received, or could not.
    Restored { slot: Slot, sound: bool },
    /// Free a state that was replaced.
    Free(Replaced),
    /// No more jobs follow.
    Stop,
}

/// What was read of a snapshot: a [`ReadSnapshot`] of the executor's state machine.
pub(crate) type ReadState = Box<dyn Any + Send>;

/// Reads snapshots on this thread.
pub(crate) type Reader = fn(&mut dyn io::Read) -> io::Result<ReadState>;

/// The reader for a kind of state machine, if it has one.
pub(crate) fn reader<S: StateMachine>() -> Option<Reader> {
    Executor::<S>::reader().map(|_| {
        let read: Reader = |snapshot| {
            let read = Executor::<S>::reader().ok_or(io::ErrorKind::Unsupported)?;
            Ok(Box::new(read(snapshot)?))
        };
        read
    })
}

/// What was read, of the executor's own kind.
pub(crate) fn of_kind<S: StateMachine>(read: ReadState) -> Result<ReadSnapshot<S>, String> {
    read.downcast().map(|read| *read).map_err(|_| "it is one of another state machine".to_owned())
}

/// The thread, with the snapshots of all groups.
pub(crate) struct SnapshotStage {
    /// The groups, by their numbers.
    pub(crate) groups: Vec<GroupSnapshots>,
    /// Which files there are, and what becomes of them.
    pub(crate) book: SnapshotBook<SnapshotReceiver>,
    pub(crate) clock: Clock,
    pub(crate) events: Queue,
    pub(crate) executor: JobSender,
    /// What the first group shows.
    pub(crate) shared: Arc<Shared>,
    /// Reads snapshots here, and not on the executor's thread.
    pub(crate) reader: Option<Reader>,
    /// Snapshots that have to be written or read after the one that is being written or read.
    pub(crate) waiting: VecDeque<(GroupId, SnapshotJob)>,
    /// Whether the thread was told to stop.
    pub(crate) stopping: bool,
}

/// The snapshots of a group.
pub(crate) struct GroupSnapshots {
    pub(crate) store: Arc<SnapshotStore>,
    /// What goes wrong with them does so again at the next attempt.
    warnings: Repeats,
}

impl GroupSnapshots {
    pub(crate) fn new(store: Arc<SnapshotStore>) -> GroupSnapshots {
        GroupSnapshots { store, warnings: Repeats::default() }
    }
}

impl SnapshotStage {
    /// Runs until told to stop.
    pub(crate) fn run(mut self, jobs: &Receiver<(GroupId, SnapshotJob)>) {
        while !self.stopping
            && let Some((group, job)) = self.waiting.pop_front().or_else(|| jobs.recv().ok())
        {
            match job {
                SnapshotJob::Write { slot, frozen, cut } => self.write(group, slot, frozen, cut, jobs),
                SnapshotJob::Read(info) => self.read(group, info, jobs),
                SnapshotJob::Stop => self.stopping = true,
                job => self.serve(group, job),
            }
        }
    }

    fn serve(&mut self, group: GroupId, job: SnapshotJob) {
        let event = match job {
            SnapshotJob::ReadChunk { to, slot, offset, len_max } => {
                self.read_chunk(group, to, slot, offset, len_max)
            }
            SnapshotJob::WriteChunk { info, offset, bytes } => self.write_chunk(group, info, offset, &bytes),
            SnapshotJob::Finish(info) if self.finish(group, info) => {
                match self.reader {
                    Some(_) => self.waiting.push_front((group, SnapshotJob::Read(info))),
                    // A failed send means that the replica is stopping.
                    None => _ = self.executor.send(group, Job::Restore(info, None)),
                }
                return;
            }
            SnapshotJob::Finish(_) => Event::SnapshotInstalled(None),
            // There is one at a time, so another group's snapshot waits until this one is written or read.
            job @ (SnapshotJob::Write { .. } | SnapshotJob::Read(_)) => {
                return self.waiting.push_back((group, job));
            }
            SnapshotJob::Restored { slot, sound } => return self.restored(group, slot, sound),
            SnapshotJob::Free(replaced) => return drop(replaced),
            SnapshotJob::Stop => return,
        };
        self.tell(group, event);
    }

    /// Adds a piece to the snapshot that a group receives.
    fn write_chunk(&mut self, group: GroupId, info: SnapshotInfo, offset: u64, bytes: &Bytes) -> Event {
        match self.add_chunk(group, info, offset, bytes) {
            Ok(end) => Event::ChunkWritten { slot: info.slot, end },
            Err(error) => {
                if let Some(left_out) = self.groups[usize::from(group.0)].warnings.admit("receive") {
                    tracing::error!(slot = info.slot.0, %error, "a snapshot cannot be received{left_out}");
                }
                self.book.give_up(group);
                Event::SnapshotInstalled(None)
            }
        }
    }

    fn add_chunk(
        &mut self,
        group: GroupId,
        info: SnapshotInfo,
        offset: u64,
        bytes: &Bytes,
    ) -> Result<u64, StorageError> {
        let store = &self.groups[usize::from(group.0)].store;
        let begin = || {
            tracing::info!(slot = info.slot.0, bytes = info.bytes, "receiving a snapshot");
            store.receive(info.slot, info.bytes)
        };
        self.book.receive(group, info, offset, begin)?.write_chunk(offset, bytes)?;
        Ok(offset + bytes.len() as u64)
    }

    fn tell(&self, group: GroupId, event: Event) {
        // A failed send means that the protocol's thread has ended; the stop follows.
        let _ = self.events.send(Input::Event(group, event));
    }

    /// Reads a piece of the file that holds a group through this slot.
    fn read_chunk(
        &mut self,
        group: GroupId,
        to: ReplicaId,
        slot: Slot,
        offset: u64,
        len_max: usize,
    ) -> Event {
        let (of, named) = self.book.serve(self.clock.now(), to, group, slot, offset);
        let event = self.groups[usize::from(of.0)].read_chunk(to, named, offset, len_max);
        match event {
            // The peer knows it by the slot that it asked for.
            Event::ChunkRead { to, offset, total, bytes, .. } => {
                let end = offset + bytes.len() as u64;
                if offset == 0 && total > 0 {
                    tracing::debug!(%group, %to, slot = slot.0, bytes = total, "sending a snapshot");
                }
                if end == total && total > 0 {
                    tracing::debug!(%group, %to, slot = slot.0, bytes = total, "sent the end of a snapshot");
                }
                Event::ChunkRead { to, slot, offset, total, bytes }
            }
            other => other,
        }
    }

    /// Reads a snapshot that was received, and has the executor put it in place.
    fn read(&mut self, group: GroupId, info: SnapshotInfo, jobs: &Receiver<(GroupId, SnapshotJob)>) {
        let Some(read) = self.reader else { return };
        let store = Arc::clone(&self.groups[usize::from(group.0)].store);
        // One that was written meanwhile may have taken its place: it holds as much, and has a size of its own.
        let bytes = store.file_bytes(info.slot).unwrap_or(info.bytes);
        let info = SnapshotInfo { bytes, ..info };
        let opened = store.open_snapshot(info.slot).map_err(io::Error::other);
        let outcome = opened.and_then(|file| read(&mut Serving { file, stage: self, jobs }));
        match outcome {
            // A failed send means that the replica is stopping.
            Ok(read) => _ = self.executor.send(group, Job::Restore(info, Some(read))),
            Err(_) if self.stopping => {}
            Err(error) => {
                if let Some(left_out) = self.groups[usize::from(group.0)].warnings.admit("install") {
                    let slot = info.slot.0;
                    tracing::error!(%group, slot, %error, "a received snapshot cannot be installed{left_out}");
                }
                self.restored(group, info.slot, false);
                self.tell(group, Event::SnapshotInstalled(None));
            }
        }
    }

    /// Merged groups have gone on from a file that was received, or it cannot be read.
    fn restored(&mut self, group: GroupId, slot: Slot, sound: bool) {
        let Some(kept) = self.book.restored(group, slot, sound) else { return };
        if let Err(error) = self.groups[usize::from(group.0)].store.retain_only(&kept) {
            tracing::warn!(%error, "a snapshot that cannot be installed could not be removed");
        }
    }

    /// Whether the received bytes are a whole snapshot, which then gets its name. Merged groups are in one file, which
    /// may be of the slot of another group.
    fn finish(&mut self, group: GroupId, info: SnapshotInfo) -> bool {
        let Some(receiver) = self.book.received(group, info) else {
            tracing::error!(slot = info.slot.0, "the pieces of a received snapshot are not here");
            return false;
        };
        let finished = if self.book.merged().is_none() {
            receiver.finish().map(drop)
        } else {
            let mut accepted = None;
            let finished = receiver.finish_for_group(|contents| {
                accepted = self.book.accepted(group, info, contents);
                accepted.is_some()
            });
            finished.map(|_| accepted.into_iter().for_each(|file| self.book.named(file)))
        };
        match &finished {
            Ok(()) => {
                tracing::debug!(%group, slot = info.slot.0, bytes = info.bytes, "received a snapshot whole")
            }
            Err(error) => {
                if let Some(left_out) = self.groups[usize::from(group.0)].warnings.admit("sound") {
                    tracing::error!(%group, slot = info.slot.0, %error, "a received snapshot is not sound{left_out}");
                }
            }
        }
        finished.is_ok()
    }

    fn write(
        &mut self,
        group: GroupId,
        slot: Slot,
        frozen: Box<dyn Frozen>,
        cut: Option<Cut>,
        jobs: &Receiver<(GroupId, SnapshotJob)>,
    ) {
        tracing::debug!(%group, slot = slot.0, "writing a snapshot");
        let began = Instant::now();
        let written = self.write_file(group, slot, &*frozen, cut.as_ref(), jobs);
        match &written {
            Ok(bytes) => {
                tracing::info!(%group, slot = slot.0, bytes, took = ?began.elapsed(), "wrote a snapshot");
                self.shared.snapshots_written.add(1);
                self.shared.snapshot_bytes_written.add(*bytes);
                for (other, info) in self.book.written(group, SnapshotInfo { slot, bytes: *bytes }, cut) {
                    self.tell(other, Event::SnapshotShared(info));
                }
                if let Err(error) = self.retain(group)
                    && let Some(left_out) = self.groups[usize::from(group.0)].warnings.admit("retain")
                {
                    tracing::warn!(%error, "old snapshots could not be removed{left_out}");
                }
            }
            // The log keeps growing until one succeeds, but nothing is lost.
            Err(error) => {
                if let Some(left_out) = self.groups[usize::from(group.0)].warnings.admit("write") {
                    tracing::error!(%group, slot = slot.0, %error, "a snapshot could not be written{left_out}");
                }
            }
        }
        self.tell(group, Event::SnapshotTaken(written.ok().map(|bytes| SnapshotInfo { slot, bytes })));
    }

    /// Removes snapshots that are not needed any more.
    fn retain(&mut self, group: GroupId) -> Result<(), StorageError> {
        for (group, kept) in self.book.keep(self.clock.now(), group) {
            let store = &self.groups[usize::from(group.0)].store;
            match kept {
                Kept::Newest(count) => store.retain(count)?,
                Kept::Slots(slots) => store.retain_only(&slots)?,
            }
        }
        Ok(())
    }

    fn write_file(
        &mut self,
        group: GroupId,
        slot: Slot,
        frozen: &dyn Frozen,
        cut: Option<&Cut>,
        jobs: &Receiver<(GroupId, SnapshotJob)>,
    ) -> io::Result<u64> {
        let store = &self.groups[usize::from(group.0)].store;
        let writer = store.create(slot).map_err(io::Error::other)?;
        let mut serving = Serving { file: writer, stage: self, jobs };
        frozen.write_to(&mut serving)?;
        if serving.stage.stopping {
            return Err(io::Error::other("the replica is stopping"));
        }
        // One of that name may have come from a peer meanwhile. None can between this and the end, since only this
        // thread names files.
        if !serving.stage.book.may_be_named(group, slot, cut) {
            return Err(io::Error::other("there is one of that name which holds more"));
        }
        Ok(serving.file.finish().map_err(io::Error::other)?.file_bytes)
    }
}

impl GroupSnapshots {
    fn read_chunk(&mut self, to: ReplicaId, slot: Slot, offset: u64, len_max: usize) -> Event {
        // A snapshot that is gone is answered with a size of zero: the peer then asks what there is instead.
        let bytes = self.store.read_chunk(slot, offset, len_max);
        let (total, bytes) = match bytes.and_then(|bytes| Ok((self.store.file_bytes(slot)?, bytes))) {
            Ok(found) => found,
            Err(error) => {
                if let Some(left_out) = self.warnings.admit("send") {
                    tracing::warn!(slot = slot.0, %error, "a snapshot cannot be sent to a peer{left_out}");
                }
                (0, Bytes::new())
            }
        };
        Event::ChunkRead { to, slot, offset, total, bytes }
    }
}

/// A snapshot file that is being written or read; between two writes or reads, peers are served.
struct Serving<'a, F> {
    file: F,
    stage: &'a mut SnapshotStage,
    jobs: &'a Receiver<(GroupId, SnapshotJob)>,
}

impl<F> Serving<'_, F> {
    fn serve(&mut self) -> io::Result<()> {
        while let Ok((group, job)) = self.jobs.try_recv() {
            if matches!(job, SnapshotJob::Stop) {
                // It is not said a second time.
                self.stage.stopping = !planted(Planted::ForgetStop);
                return Err(io::Error::other("the replica is stopping"));
            }
            self.stage.serve(group, job);
        }
        Ok(())
    }
}

impl<F: Write> Write for Serving<'_, F> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.serve()?;
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl<F: io::Read> io::Read for Serving<'_, F> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.serve()?;
        self.file.read(bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use synod_consensus::Options;
    use synod_replica::{Context, Group, MergedFiles, SnapshotReader, Take};
    use synod_sync::channel::{Sender, unbounded};
    use synod_wire::{Ballots, BatchBuilder, ClusterId, CommandKind, SessionId};

    use super::*;
    use crate::{
        merged::{MergedGroup, MergedStage},
        status::Ahead,
    };

    const PEER: ReplicaId = ReplicaId(2);
    /// The group that orders something, and takes snapshots.
    const BUSY: GroupId = GroupId(0);
    /// One that only skips.
    const QUIET: GroupId = GroupId(1);

    #[derive(Clone, Default)]
    struct Tape(Vec<u8>);

    impl Frozen for Tape {
        fn write_to(&self, out: &mut dyn Write) -> io::Result<()> {
            out.write_all(&self.0)
        }
    }

    impl StateMachine for Tape {
        fn apply(&mut self, command: &Bytes, _: &Context) -> Bytes {
            self.0.extend_from_slice(command);
            Bytes::new()
        }

        fn query(&self, _: &Bytes) -> Bytes {
            self.0.clone().into()
        }

        fn freeze(&self) -> Box<dyn Frozen> {
            Box::new(self.clone())
        }

        fn restore(&mut self, snapshot: &mut dyn Read) -> io::Result<()> {
            self.0.clear();
            snapshot.read_to_end(&mut self.0).map(drop)
        }

        fn reader() -> Option<SnapshotReader<Tape>> {
            Some(|snapshot| {
                let mut read = Tape::default();
                read.restore(snapshot)?;
                Ok(Box::new(|tape| Box::new(std::mem::replace(tape, read))))
            })
        }

        fn digest(&self) -> u64 {
            self.0.len() as u64
        }
    }

    /// A state after this many batches of the busy group and this many skips of the quiet one.
    fn executed(batches: u64, skips: u64) -> Executor<Tape> {
        let group = || Group::of(&Options::default(), [1, 2, 3].map(ReplicaId));
        let mut executor = Executor::merged(Tape::default(), [group(), group()], Take::MIN);
        for (group, kind, count) in [(BUSY, CommandKind::Apply, batches), (QUIET, CommandKind::Skip, skips)] {
            for slot in 1..=count {
                let mut builder = BatchBuilder::new();
                builder.push_as(kind, SessionId(1), slot, slot, &slot.to_le_bytes());
                executor.execute_of(group, Slot(slot), Ballots::ZERO, &builder.finish(), |_| false);
            }
        }
        executor
    }

    /// The snapshot thread of a node, its executor, and what both tell.
    struct Node {
        stage: SnapshotStage,
        merged: MergedStage<Tape>,
        asked: Sender<(GroupId, SnapshotJob)>,
        snapshots: Receiver<(GroupId, SnapshotJob)>,
        jobs: Receiver<(GroupId, Job)>,
        events: Receiver<Input>,
        _dir: tempfile::TempDir,
    }

    impl Node {
        fn new(batches: u64, skips: u64) -> Node {
            let dir = tempfile::tempdir().unwrap();
            let store = |group: u16| {
                let dir = dir.path().join(group.to_string());
                Arc::new(SnapshotStore::open(&dir, ClusterId(7)).unwrap())
            };
            let stores = [0, 1].map(store);
            let (queue, events) = Queue::new(100, None);
            let (executor, jobs) = unbounded();
            let (asked, snapshots) = unbounded();
            let groups = stores
                .each_ref()
                .map(|store| MergedGroup { shared: Arc::default(), store: Arc::clone(store) });
            let ahead = Arc::new(Ahead::new(groups.len()));
            let merged = MergedStage::new(executed(batches, skips), groups.into(), asked.clone(), ahead);
            let stage = SnapshotStage {
                groups: stores.into_iter().map(GroupSnapshots::new).collect(),
                book: SnapshotBook::new(2, Some(MergedFiles::default())),
                clock: Clock::start(),
                events: queue,
                executor: JobSender::Thread(executor),
                shared: Arc::default(),
                reader: reader::<Tape>(),
                waiting: VecDeque::new(),
                stopping: false,
            };
            Node { stage, merged, asked, snapshots, jobs, events, _dir: dir }
        }

        /// The events that replicas were told.
        fn told(&self) -> Vec<(GroupId, Event)> {
            let event = |input| match input {
                Input::Event(group, event) => (group, event),
                _ => unreachable!("the thread tells of nothing else"),
            };
            self.events.try_iter().map(event).collect()
        }

        /// Writes a snapshot of a state that a group asked for; its size.
        fn write(&mut self, group: GroupId, batches: u64, skips: u64) -> Option<u64> {
            let executor = executed(batches, skips);
            let (slot, cut) = (executor.applied_of(group), executor.cut());
            self.stage.write(group, slot, executor.freeze(), Some(cut), &self.snapshots);
            let taken = self.told().into_iter().find_map(|(of, event)| match event {
                Event::SnapshotTaken(info) if of == group => Some(info),
                _ => None,
            });
            taken.expect("the group is told").map(|info| info.bytes)
        }

        /// What a peer is sent for a group, piece by piece.
        fn send(&mut self, group: GroupId, slot: Slot, bytes: u64) -> Vec<Bytes> {
            let mut pieces: Vec<Bytes> = Vec::new();
            loop {
                let offset = pieces.iter().map(Bytes::len).sum::<usize>() as u64;
                let job = SnapshotJob::ReadChunk { to: PEER, slot, offset, len_max: 100 };
                self.stage.serve(group, job);
                match self.told().pop() {
                    Some((_, Event::ChunkRead { bytes, .. })) if bytes.is_empty() => return pieces,
                    Some((of, Event::ChunkRead { slot: piece_of, total, bytes: piece, .. })) => {
                        assert_eq!((of, piece_of, total), (group, slot, bytes));
                        pieces.push(piece);
                    }
                    other => panic!("{other:?}"),
                }
            }
        }

        /// Asks for what follows from the pieces of a snapshot that a peer has sent.
        fn receive(&self, group: GroupId, slot: Slot, pieces: &[Bytes]) {
            let info = SnapshotInfo { slot, bytes: pieces.iter().map(Bytes::len).sum::<usize>() as u64 };
            let mut offset = 0;
            for bytes in pieces {
                let job = SnapshotJob::WriteChunk { info, offset, bytes: bytes.clone() };
                self.asked.send((group, job)).unwrap();
                offset += bytes.len() as u64;
            }
            self.asked.send((group, SnapshotJob::Finish(info))).unwrap();
        }

        /// Does all that there is to do; what the replicas are told of snapshots that were installed or shared.
        fn go_on(&mut self) -> Vec<(GroupId, Option<SnapshotInfo>)> {
            let mut events = Vec::new();
            loop {
                let job = self.stage.waiting.pop_front().or_else(|| self.snapshots.try_recv().ok());
                match job {
                    Some((group, SnapshotJob::Read(info))) => self.stage.read(group, info, &self.snapshots),
                    Some((group, job)) => self.stage.serve(group, job),
                    None => match self.jobs.try_recv() {
                        Ok((group, job)) => events.extend(self.merged.run_job(group, job)),
                        Err(_) => break,
                    },
                }
                events.extend(self.told());
            }
            let of_snapshots = events.into_iter().filter_map(|(group, event)| match event {
                Event::SnapshotInstalled(installed) => {
                    Some((group, installed.map(|installed| installed.info)))
                }
                Event::SnapshotShared(info) => Some((group, Some(info))),
                _ => None,
            });
            of_snapshots.collect()
        }

        fn names(&self) -> [Vec<u64>; 2] {
            [0, 1].map(|group: usize| {
                let slots = self.stage.groups[group].store.slots().unwrap();
                assert_eq!(self.stage.book.merged().unwrap().slots_of(GroupId(group as u16)), slots);
                slots.into_iter().map(|slot| slot.0).collect()
            })
        }
    }

    /// What a group is sent of a state that another group has taken a snapshot of.
    fn sent(group: GroupId, batches: u64, skips: u64) -> (Slot, Vec<Bytes>) {
        let mut peer = Node::new(batches, skips);
        let bytes = peer.write(BUSY, batches, skips).unwrap();
        let slot = peer.merged.applied_of(group);
        (slot, peer.send(group, slot, bytes))
    }

    #[test]
    fn a_group_that_alone_lacks_its_log_goes_on_from_a_file_that_another_group_took() {
        let mut node = Node::new(2, 0);
        let (slot, pieces) = sent(QUIET, 4, 3);
        node.receive(QUIET, slot, &pieces);
        let bytes = pieces.iter().map(Bytes::len).sum::<usize>() as u64;
        let info = |slot| Some(SnapshotInfo { slot: Slot(slot), bytes });
        assert_eq!(node.go_on(), [(BUSY, info(4)), (QUIET, info(3))]);
        assert_eq!(node.merged.applied(), [4, 3].map(Slot));
        assert_eq!(node.names(), [vec![], vec![3]]);
        // It is whole for a later life, and others are sent it for any group.
        assert!(node.stage.groups[1].store.usable(Slot(3)).unwrap().is_some());
        assert_eq!(node.send(QUIET, Slot(3), bytes).concat(), node.send(BUSY, Slot(4), bytes).concat());
        let mut next = Node::new(0, 0);
        next.receive(BUSY, Slot(4), &node.send(BUSY, Slot(4), bytes));
        assert_eq!(next.go_on(), [(BUSY, info(4)), (QUIET, info(3))]);
    }

    /// Logs may be trimmed through what the file that is here holds of other groups.
    #[test]
    fn a_received_file_takes_no_name_and_a_written_one_only_that_of_one_that_holds_no_more() {
        let mut node = Node::new(4, 3);
        let first = node.write(QUIET, 4, 3).unwrap();
        let (slot, less) = sent(QUIET, 2, 3);
        node.receive(QUIET, slot, &less);
        assert_eq!(node.go_on(), [(QUIET, None)]);
        assert_eq!((node.names(), node.send(BUSY, Slot(4), first).len()), ([vec![], vec![3]], less.len()));
        // The file comes while one of its name is written.
        let (slot, more) = sent(QUIET, 9, 5);
        node.receive(QUIET, slot, &more);
        assert_eq!(node.write(QUIET, 6, 5), None);
        let bytes = more.iter().map(Bytes::len).sum::<usize>() as u64;
        let info = |slot| Some(SnapshotInfo { slot: Slot(slot), bytes });
        assert_eq!(node.go_on(), [(BUSY, info(9)), (QUIET, info(5))]);
        assert_eq!(node.names(), [vec![], vec![3, 5]]);
        assert!(node.write(QUIET, 10, 5).is_some_and(|written| written > bytes));
        assert_eq!(node.names(), [vec![], vec![3, 5]]);
    }

    /// A file comes while another one is written, in which the busy group is as far; its replica is told of the one
    /// that came last.
    #[test]
    fn a_peer_is_sent_the_file_of_which_the_replica_was_told_last() {
        let mut node = Node::new(4, 3);
        let (slot, pieces) = sent(QUIET, 4, 5);
        node.receive(QUIET, slot, &pieces);
        assert!(node.write(BUSY, 4, 3).is_some());
        let bytes = pieces.iter().map(Bytes::len).sum::<usize>() as u64;
        let info = |slot| Some(SnapshotInfo { slot: Slot(slot), bytes });
        assert_eq!(node.go_on(), [(BUSY, info(4)), (QUIET, info(5))]);
        assert_eq!(node.names(), [vec![4], vec![5]]);
        assert_eq!(node.send(BUSY, Slot(4), bytes).concat(), node.send(QUIET, slot, bytes).concat());
    }

    #[test]
    fn a_received_file_that_cannot_be_read_is_gone_and_may_come_again() {
        for read in [None, Some((|_| Err(io::ErrorKind::InvalidData.into())) as Reader)] {
            let mut node = Node::new(4, 3);
            node.write(BUSY, 3, 3).unwrap();
            node.write(BUSY, 4, 3).unwrap();
            let (slot, pieces) = sent(QUIET, 9, 5);
            // Without a reader the executor finds that the file is gone.
            node.stage.reader = read;
            node.receive(QUIET, slot, &pieces);
            while let Ok((group, job)) = node.snapshots.try_recv() {
                node.stage.serve(group, job);
            }
            assert_eq!(node.names(), [vec![3, 4], vec![5]]);
            if read.is_none() {
                std::fs::remove_file(node.stage.groups[1].store.usable(slot).unwrap().unwrap().path).unwrap();
            }
            assert_eq!(node.go_on(), [(QUIET, None)]);
            assert_eq!(node.names(), [vec![3, 4], vec![]]);
            node.stage.reader = reader::<Tape>();
            node.receive(QUIET, slot, &pieces);
            assert!(node.go_on().iter().all(|(_, installed)| installed.is_some()));
            assert_eq!(node.names(), [vec![3, 4], vec![5]]);
        }
    }
}

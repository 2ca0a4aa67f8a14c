//! Prepares the next segment before it is needed, and prepares old segments for another use.
//!
//! A file that has been written through once takes a durable append in two thirds of the time that a growing
//! file takes, since the file system has no metadata to write. Writing a file through takes long, so a thread
//! does it while the current segment fills. Should the writer be faster than the thread, it gets the file as
//! far as it is: a file that grows is better than a stall of the whole replica. The same thread renames or
//! removes segments that were trimmed.

use std::{
    collections::VecDeque,
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use synod_sync::{
    Arc, Condvar, Mutex, MutexGuard, Planted, PoisonError, planted,
    thread::{self, JoinHandle},
};

use super::{
    format::{PAGE, segment_name},
    list::{Entry, SegmentList},
};
use crate::{
    StorageError,
    disk::{Disk, DiskFile, How, open, remove_file, sync_dir, sync_file, write_zeros},
};

/// A file that is zeros, or at least holds nothing that passes for a record with the mark that the list gives it.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub segment: u64,
    pub path: PathBuf,
    pub file: Box<dyn DiskFile>,
    /// How many bytes are meant to be filled. All of them were written through, unless the file was needed in a hurry.
    pub bytes: u64,
    /// The mark of the records to come.
    pub life: u64,
}

/// How to go on writing a file through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pace {
    Steady,
    /// The file is needed now, as far as it is.
    EndHere,
    /// The file is not needed any more.
    GiveUp,
}

/// Prepares segments: the part that works on files.
#[derive(Debug)]
pub(crate) struct Workshop {
    pub disk: Arc<dyn Disk>,
    pub dir: PathBuf,
    pub segment_bytes: u64,
    pub spares_max: usize,
    pub list: SegmentList,
}

impl Workshop {
    /// Makes a new segment of `bytes` bytes; `None` if `pace` said to give up.
    pub(crate) fn make(
        &mut self,
        segment: u64,
        bytes: u64,
        pace: impl FnMut() -> Pace,
    ) -> Result<Option<Prepared>, StorageError> {
        // Only a file that is zeros in all its length, whatever the length is, gets a segment's name.
        let temporary = self.dir.join(format!("{segment:020}.tmp"));
        let made = self.write_through(&temporary, bytes, pace);
        let Ok(Some(file)) = made else {
            // A half-written file must not occupy space that is needed elsewhere.
            remove_file(&*self.disk, &temporary)?;
            return made.map(|_| None);
        };
        self.name(segment, &temporary, file, bytes).map(Some)
    }

    fn write_through(
        &self,
        path: &Path,
        bytes: u64,
        mut pace: impl FnMut() -> Pace,
    ) -> Result<Option<Box<dyn DiskFile>>, StorageError> {
        let file = open(&*self.disk, path, How::Create)?;
        // The first page is written however great the hurry: a segment that is found empty later must have
        // lost something.
        let first = bytes.min(PAGE as u64);
        write_zeros(&*file, path, 0, first, || true)?;
        let mut last = Pace::Steady;
        write_zeros(&*file, path, first, bytes - first, || {
            last = pace();
            last == Pace::Steady
        })?;
        if last == Pace::GiveUp {
            return Ok(None);
        }
        sync_file(&*file, path)?;
        Ok(Some(file))
    }

    /// Makes a segment out of a spare file. The old records stay in it: they bear another mark, and what
    /// clients put into them was written before this segment's mark was drawn.
    fn reuse(&mut self, segment: u64, spare: &Path) -> Result<Prepared, StorageError> {
        let file = open(&*self.disk, spare, How::Write)?;
        write_zeros(&*file, spare, 0, PAGE as u64, || true)?;
        self.name(segment, spare, file, self.segment_bytes)
    }

    /// Gives a file its name, and adds it to the list; only then may the segment be begun.
    fn name(
        &mut self,
        segment: u64,
        from: &Path,
        file: Box<dyn DiskFile>,
        bytes: u64,
    ) -> Result<Prepared, StorageError> {
        let path = self.dir.join(segment_name(segment));
        // An earlier attempt may have listed a longer file.
        self.list.settle()?;
        self.disk.rename(from, &path).map_err(|error| StorageError::io("rename to", &path, error))?;
        sync_dir(&*self.disk, &self.dir)?;
        let written = file.bytes().map_err(|error| StorageError::io("look at", &path, error))?;
        let life = self.disk.secret();
        self.list.add(segment, Entry { bytes: written, life })?;
        tracing::debug!(segment, bytes = written, from = %from.display(), "prepared a segment of the log");
        Ok(Prepared { segment, path, file, bytes, life })
    }

    /// Takes a segment out of the log. Returns its file if it can be used again.
    ///
    /// Durable on return: if the end of a later segment survived a power failure and the end of this one did
    /// not, the log would have a hole.
    fn retire(&mut self, segment: u64, spares: usize) -> Result<Option<PathBuf>, StorageError> {
        self.list.remove(segment)?;
        let path = self.dir.join(segment_name(segment));
        let spare = path.with_extension("spare");
        match self.disk.file_bytes(&path) {
            Ok(bytes) if spares < self.spares_max && bytes == self.segment_bytes => {
                self.disk.rename(&path, &spare).map_err(|error| StorageError::io("rename", &path, error))?;
            }
            Ok(_) => remove_file(&*self.disk, &path)?,
            // An earlier attempt removed the file, and failed to make that durable.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(StorageError::io("look at", &path, error)),
        }
        sync_dir(&*self.disk, &self.dir)?;
        Ok(self.disk.file_bytes(&spare).is_ok().then_some(spare))
    }
}

/// What prepares segments, as the log sees it: a thread, or, where the disk allows no threads, a bench that
/// the log's owner works step by step.
#[derive(Debug)]
pub(crate) struct Preparer {
    shared: Arc<Shared>,
    worker: Worker,
}

#[derive(Debug)]
enum Worker {
    Thread(Option<JoinHandle<()>>),
    Bench(Bench),
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    /// The segment that is to be ready next.
    next: u64,
    /// The prepared segment `next`, or why preparing it failed; `None` while that is being worked on.
    outcome: Option<Result<Prepared, StorageError>>,
    /// Segments to be taken out of the log, oldest first. There are never more of them than the log has segments.
    retired: VecDeque<u64>,
    /// Whether taking a segment out failed; it is tried again when more segments are retired.
    retiring_failed: bool,
    spares: Vec<PathBuf>,
    /// Whether the writer waits for the next segment.
    hurry: bool,
    stop: bool,
}

impl State {
    fn has_work(&self) -> bool {
        self.outcome.is_none() || (!self.retired.is_empty() && !self.retiring_failed)
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Every change of the state is a single assignment, so a panic in another thread leaves it whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Preparer {
    /// Starts the thread, which prepares segment `next` unless the caller hands it over as `ready`.
    pub(crate) fn start(
        workshop: Workshop,
        next: u64,
        ready: Option<Prepared>,
    ) -> Result<Preparer, StorageError> {
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                next,
                outcome: ready.map(Ok),
                retired: VecDeque::new(),
                retiring_failed: false,
                spares: Vec::new(),
                hurry: false,
                stop: false,
            }),
            changed: Condvar::new(),
        });
        let (dir, has_threads) = (workshop.dir.clone(), workshop.disk.has_threads());
        let bench = Bench { shared: Arc::clone(&shared), workshop };
        let worker = if has_threads {
            let thread = thread::Builder::new().name("log-preparer".to_owned()).spawn(move || bench.work());
            Worker::Thread(Some(thread.map_err(|error| StorageError::io("start a thread for", &dir, error))?))
        } else {
            Worker::Bench(bench)
        };
        Ok(Preparer { shared, worker })
    }

    /// Takes the next segment, as far as it is ready; work then begins on the one after it. If preparing it failed,
    /// it is tried once more, since there may be space again. The flag says whether the caller had to wait.
    pub(crate) fn take(&mut self) -> Result<(Prepared, bool), StorageError> {
        let mut waited = false;
        let mut tried_again = false;
        loop {
            let mut state = self.shared.lock();
            match state.outcome.take() {
                Some(Ok(prepared)) => {
                    state.next = prepared.segment + 1;
                    state.hurry = false;
                    self.shared.changed.notify_all();
                    return Ok((prepared, waited));
                }
                Some(Err(error)) if tried_again => return Err(error),
                Some(Err(_)) => tried_again = true,
                None => {}
            }
            state.hurry = true;
            waited = true;
            self.shared.changed.notify_all();
            match &mut self.worker {
                Worker::Bench(bench) => {
                    drop(state);
                    bench.step();
                }
                Worker::Thread(thread) => {
                    if thread.as_ref().is_none_or(JoinHandle::is_finished) {
                        let source = io::Error::other("the thread that prepares segments has ended");
                        return Err(StorageError::io("prepare a segment in", Path::new("the log"), source));
                    }
                    let timeout = Duration::from_secs(1);
                    let waiting = self.shared.changed.wait_timeout(state, timeout);
                    drop(waiting.unwrap_or_else(PoisonError::into_inner));
                }
            }
        }
    }

    /// Has these segments, given oldest first, taken out of the log at some later time.
    pub(crate) fn retire(&mut self, segments: impl IntoIterator<Item = u64>) {
        let mut state = self.shared.lock();
        state.retired.extend(segments);
        state.retiring_failed = false;
        self.shared.changed.notify_all();
    }

    /// Does one piece of the waiting work if there is a bench rather than a thread; returns false if nothing waits.
    pub(crate) fn step(&mut self) -> bool {
        match &mut self.worker {
            Worker::Bench(bench) => bench.step(),
            Worker::Thread(_) => false,
        }
    }

    /// Waits until nothing is left to do, for tests.
    #[cfg(test)]
    pub(crate) fn settle(&self) {
        let mut state = self.shared.lock();
        while state.outcome.is_none() || (!state.retired.is_empty() && !state.retiring_failed) {
            state = self.shared.changed.wait(state).unwrap();
        }
    }
}

impl Drop for Preparer {
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        self.shared.changed.notify_all();
        if let Worker::Thread(thread) = &mut self.worker
            && let Some(thread) = thread.take()
        {
            // A panic of the thread was printed when it happened, and nothing is left to be told of it.
            let _ = thread.join();
        }
    }
}

/// Does the work, in the thread or step by step.
#[derive(Debug)]
struct Bench {
    shared: Arc<Shared>,
    workshop: Workshop,
}

impl Bench {
    fn work(mut self) {
        loop {
            let worked = self.step();
            let state = self.shared.lock();
            if state.stop {
                return;
            }
            if !worked && !state.has_work() {
                let state = if planted(Planted::LookWithoutLock) {
                    drop(state);
                    self.shared.lock()
                } else {
                    state
                };
                drop(self.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner));
            }
        }
    }

    /// Does one piece of the waiting work; returns false if nothing waits.
    fn step(&mut self) -> bool {
        let state = self.shared.lock();
        if state.stop || !state.has_work() {
            return false;
        }
        // Retired segments come first, since the file of one of them may become the next segment.
        if let (Some(&segment), false) = (state.retired.front(), state.retiring_failed) {
            let spares = state.spares.len();
            drop(state);
            let retired = self.workshop.retire(segment, spares);
            if let Ok(spare) = &retired {
                tracing::debug!(segment, kept = spare.is_some(), "took a trimmed segment out of the log");
            }
            let mut state = self.shared.lock();
            match retired {
                Ok(spare) => {
                    state.spares.extend(spare);
                    state.retired.pop_front();
                    if matches!(state.outcome, Some(Err(_))) {
                        // The disk has more space than when the preparation failed.
                        state.outcome = None;
                    }
                }
                Err(error) => {
                    state.retiring_failed = true;
                    tracing::warn!(segment, %error, "could not take a trimmed segment out of the log");
                }
            }
        } else {
            drop(state);
            let prepared = self.prepare();
            self.shared.lock().outcome = prepared.transpose();
        }
        self.shared.changed.notify_all();
        true
    }

    fn prepare(&mut self) -> Result<Option<Prepared>, StorageError> {
        let (segment, spare) = {
            let mut state = self.shared.lock();
            (state.next, state.spares.pop())
        };
        if let Some(spare) = spare {
            match self.workshop.reuse(segment, &spare) {
                Ok(prepared) => return Ok(Some(prepared)),
                Err(error) => tracing::warn!(%error, "could not use a spare segment again; making a new one"),
            }
        }
        let made = self.workshop.make(segment, self.workshop.segment_bytes, || {
            let state = self.shared.lock();
            match (state.stop, state.hurry) {
                (true, _) => Pace::GiveUp,
                (false, true) => Pace::EndHere,
                (false, false) => Pace::Steady,
            }
        });
        if let Err(error) = &made {
            tracing::warn!(segment, %error, "could not prepare the next segment; the current one goes on until it is full");
        }
        made
    }
}

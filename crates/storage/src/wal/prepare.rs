//! The next segment, made ready before it is needed, and old ones made ready for their next life.
//!
//! A file that was written through once takes a durable append in two thirds of the time that a growing one does,
//! since the file system has no metadata to write. Writing it through takes long, so a thread does it while the
//! current segment fills. Should the writer be faster, it gets the file as far as it is: better a file that grows
//! than a stall of the whole replica. The same thread renames or removes segments that were trimmed.

use std::{
    collections::VecDeque,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
    time::Duration,
};

use super::format::{PAGE, segment_name};
use crate::{
    StorageError,
    disk::{Disk, remove_file, sync_dir, write_zeros},
};

/// A file that is zeros, or at least holds nothing that passes for a record of the segment that it is named for.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub segment: u64,
    pub path: PathBuf,
    pub file: File,
    /// Bytes that are meant to be filled. All were written through, unless the file was needed in a hurry.
    pub bytes: u64,
}

/// How to go on with writing a file through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pace {
    Steady,
    /// The file is needed now, as far as it is.
    EndHere,
    /// Nobody needs it any more.
    GiveUp,
}

/// Makes segments ready; the part that works on files.
#[derive(Clone, Debug)]
pub(crate) struct Workshop {
    pub disk: Arc<dyn Disk>,
    pub dir: PathBuf,
    pub segment_bytes: u64,
    pub spares_max: usize,
}

impl Workshop {
    /// Makes a segment of `bytes` bytes out of nothing. `None` if it was told to give up.
    pub(crate) fn make(
        &self,
        segment: u64,
        bytes: u64,
        pace: impl FnMut() -> Pace,
    ) -> Result<Option<Prepared>, StorageError> {
        // Only a file that is zeros in all its length, whatever that is, gets a segment's name.
        let temporary = self.dir.join(format!("{segment:020}.tmp"));
        let made = self.write_through(&temporary, bytes, pace);
        let Ok(Some(file)) = made else {
            // A half-written file must not take the room that somebody else needs.
            remove_file(&temporary)?;
            return made.map(|_| None);
        };
        self.name(segment, &temporary, file, bytes).map(Some)
    }

    fn write_through(
        &self,
        path: &Path,
        bytes: u64,
        mut pace: impl FnMut() -> Pace,
    ) -> Result<Option<File>, StorageError> {
        let file = open(path, true)?;
        let mut last = Pace::Steady;
        write_zeros(&*self.disk, &file, path, 0, bytes, || {
            last = pace();
            last == Pace::Steady
        })?;
        if last == Pace::GiveUp {
            return Ok(None);
        }
        file.sync_all().map_err(|error| StorageError::io("make durable", path, error))?;
        Ok(Some(file))
    }

    /// Makes a segment out of a spare file. Its old records stay, and are bound to another segment.
    fn reuse(&self, segment: u64, spare: &Path) -> Result<Prepared, StorageError> {
        let file = open(spare, false)?;
        write_zeros(&*self.disk, &file, spare, 0, PAGE as u64, || true)?;
        self.name(segment, spare, file, self.segment_bytes)
    }

    fn name(&self, segment: u64, from: &Path, file: File, bytes: u64) -> Result<Prepared, StorageError> {
        let path = self.dir.join(segment_name(segment));
        self.disk.rename(from, &path).map_err(|error| StorageError::io("rename to", &path, error))?;
        sync_dir(&*self.disk, &self.dir)?;
        Ok(Prepared { segment, path, file, bytes })
    }

    /// Takes a segment out of the log. Returns its file if that can be used again.
    ///
    /// Durable on return: would a later segment's end survive a power failure and this one's not, then the log
    /// would have a hole.
    fn retire(&self, segment: u64, spares: usize) -> Result<Option<PathBuf>, StorageError> {
        let path = self.dir.join(segment_name(segment));
        let bytes = match fs::metadata(&path) {
            Ok(metadata) => metadata.len(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(StorageError::io("look at", &path, error)),
        };
        let spare =
            (spares < self.spares_max && bytes == self.segment_bytes).then(|| path.with_extension("spare"));
        match &spare {
            Some(spare) => {
                self.disk.rename(&path, spare).map_err(|error| StorageError::io("rename", &path, error))?;
            }
            None => remove_file(&path)?,
        }
        sync_dir(&*self.disk, &self.dir)?;
        Ok(spare)
    }
}

fn open(path: &Path, fresh: bool) -> Result<File, StorageError> {
    let file = File::options().read(true).write(true).create(fresh).truncate(fresh).open(path);
    file.map_err(|error| StorageError::io(if fresh { "create" } else { "open" }, path, error))
}

/// The thread, as the log sees it.
#[derive(Debug)]
pub(crate) struct Preparer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
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
    /// What became of it; `None` while it is worked on.
    outcome: Option<Result<Prepared, StorageError>>,
    /// Segments to be taken out of the log, oldest first. No longer than the log.
    retired: VecDeque<u64>,
    /// Retiring failed; it is tried again when something else happens.
    retiring_failed: bool,
    spares: Vec<PathBuf>,
    /// The writer waits.
    hurry: bool,
    stop: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Every change of the state is a single assignment, so a panic elsewhere leaves it whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Preparer {
    /// Starts the thread, which makes segment `next` ready unless it is handed over as `ready`.
    pub(crate) fn start(
        workshop: Workshop,
        next: u64,
        ready: Option<Prepared>,
        spares: Vec<PathBuf>,
    ) -> Result<Preparer, StorageError> {
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                next,
                outcome: ready.map(Ok),
                retired: VecDeque::new(),
                retiring_failed: false,
                spares,
                hurry: false,
                stop: false,
            }),
            changed: Condvar::new(),
        });
        let dir = workshop.dir.clone();
        let thread = thread::Builder::new()
            .name("log-preparer".to_owned())
            .spawn({
                let shared = Arc::clone(&shared);
                move || work(&shared, &workshop)
            })
            .map_err(|error| StorageError::io("start a thread for", &dir, error))?;
        Ok(Preparer { shared, thread: Some(thread) })
    }

    /// The next segment, as far as it is ready; the thread then begins with the one after it. A preparation
    /// that failed is tried once more, since there may be room again. The flag says whether it had to hurry.
    pub(crate) fn take(&self) -> Result<(Prepared, bool), StorageError> {
        let mut state = self.shared.lock();
        let mut waited = false;
        let mut tried_again = false;
        loop {
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
            self.shared.changed.notify_all();
            if self.thread.as_ref().is_none_or(JoinHandle::is_finished) {
                let source = io::Error::other("the thread that prepares segments has ended");
                return Err(StorageError::io("prepare a segment in", Path::new("the log"), source));
            }
            waited = true;
            let timeout = Duration::from_secs(1);
            state =
                self.shared.changed.wait_timeout(state, timeout).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Takes segments, oldest first, out of the log, sooner or later.
    pub(crate) fn retire(&self, segments: impl IntoIterator<Item = u64>) {
        let mut state = self.shared.lock();
        state.retired.extend(segments);
        state.retiring_failed = false;
        self.shared.changed.notify_all();
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
        if let Some(thread) = self.thread.take() {
            // A panic in it was printed, and there is nobody left to be told.
            let _ = thread.join();
        }
    }
}

fn work(shared: &Shared, workshop: &Workshop) {
    let mut state = shared.lock();
    while !state.stop {
        // Retired segments first: one of them may become the next.
        if let (Some(&segment), false) = (state.retired.front(), state.retiring_failed) {
            let spares = state.spares.len();
            drop(state);
            let retired = workshop.retire(segment, spares);
            state = shared.lock();
            match retired {
                Ok(spare) => {
                    state.spares.extend(spare);
                    state.retired.pop_front();
                    if matches!(state.outcome, Some(Err(_))) {
                        // There is more room than when it failed.
                        state.outcome = None;
                    }
                }
                Err(error) => {
                    state.retiring_failed = true;
                    tracing::warn!(segment, %error, "could not take a trimmed segment out of the log");
                }
            }
        } else if state.outcome.is_none() {
            let (segment, spare) = (state.next, state.spares.pop());
            drop(state);
            let prepared = prepare(shared, workshop, segment, spare);
            state = shared.lock();
            state.outcome = prepared.transpose();
        } else {
            state = shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            continue;
        }
        shared.changed.notify_all();
    }
}

fn prepare(
    shared: &Shared,
    workshop: &Workshop,
    segment: u64,
    spare: Option<PathBuf>,
) -> Result<Option<Prepared>, StorageError> {
    if let Some(spare) = spare {
        match workshop.reuse(segment, &spare) {
            Ok(prepared) => return Ok(Some(prepared)),
            Err(error) => tracing::warn!(%error, "could not use a spare segment again; making a new one"),
        }
    }
    let made = workshop.make(segment, workshop.segment_bytes, || {
        let state = shared.lock();
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

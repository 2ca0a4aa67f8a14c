//! All that storage asks of a file system, so that tests can put one in its place that fails.

use std::{
    fmt::Debug,
    fs::{self, File, TryLockError},
    hash::{BuildHasher, RandomState},
    io::{self, IoSlice},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use crate::StorageError;

/// A file system. The defaults are the real one; tests replace single operations, or all of them.
///
/// Names are durable once their directory was synced, contents once their file was. Nothing here relies on more than
/// that: not that operations become durable in order, and not that a file's sync keeps its name.
pub(crate) trait Disk: Debug + Send + Sync {
    /// Opens a file.
    fn open(&self, path: &Path, how: How) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(open_real(path, how)?))
    }

    /// Bytes of the file with this name.
    fn file_bytes(&self, path: &Path) -> io::Result<u64> {
        Ok(fs::metadata(path)?.len())
    }

    /// Whether there is a directory with this name.
    fn is_dir(&self, path: &Path) -> bool {
        path.is_dir()
    }

    /// Creates a directory in one that exists.
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        fs::create_dir(dir)
    }

    /// Names of a directory's entries, in any order. Names that are no valid text are nothing of ours and are left out.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(dir)? {
            names.extend(entry?.file_name().into_string());
        }
        Ok(names)
    }

    /// Makes the directory's entries durable.
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        File::open(dir)?.sync_all()
    }

    /// Renames a file within its directory, or a directory within its own.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    /// Lets two directories have each other's name, at once. An error of kind [`io::ErrorKind::Unsupported`] or
    /// [`io::ErrorKind::InvalidInput`] says that this file system has no such operation.
    fn exchange(&self, one: &Path, other: &Path) -> io::Result<()> {
        exchange_real(one, other)
    }

    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    /// Takes the lock on a file, which is created if there is none; `None` if somebody else has it. The system lets go
    /// of it when the process ends, however it ends.
    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn Guard>>> {
        let file = File::options().create(true).truncate(false).read(true).write(true).open(path)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Box::new(file))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    /// A text that is another one after every boot of the machine; empty where the system offers none.
    fn boot(&self) -> String {
        let id = fs::read_to_string("/proc/sys/kernel/random/boot_id");
        id.map(|id| id.trim().to_owned()).unwrap_or_default()
    }

    /// A number that nobody can guess and nobody else draws; never 0.
    fn secret(&self) -> u64 {
        // The hasher's keys come from the system's source of randomness.
        RandomState::new().hash_one(std::time::SystemTime::now()).max(1)
    }

    /// Whether a thread of its own may work on it. Where none may, somebody calls the work step by step.
    fn has_threads(&self) -> bool {
        true
    }
}

/// An open file. What is read is what was written, durable or not.
pub(crate) trait DiskFile: Debug + Send + Sync {
    /// Reads at most the buffer's length from `offset` on; 0 bytes at the end.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Writes a prefix of `parts` at `offset`; returns how many bytes.
    fn write_at(&self, parts: &[IoSlice<'_>], offset: u64) -> io::Result<usize>;

    /// Makes the file's contents durable, and what of its metadata is needed to read them.
    fn sync(&self) -> io::Result<()>;

    /// Bytes of the file.
    fn bytes(&self) -> io::Result<u64>;
}

/// What holds a lock for as long as it lives.
pub(crate) trait Guard: Debug + Send + Sync {}

impl Guard for File {}

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    /// To be read; it must exist.
    Read,
    /// To be read and written; it must exist.
    Write,
    /// To be read and written; it is created, or emptied.
    Create,
    /// To be read and written; it must not exist.
    CreateNew,
}

/// The real thing.
#[derive(Debug)]
pub(crate) struct RealDisk;

impl Disk for RealDisk {}

/// The disk of this machine.
#[cfg(not(feature = "shuttle"))]
pub(crate) fn the_disk() -> Arc<dyn Disk> {
    Arc::new(RealDisk)
}

/// The disk that the test has put in.
#[cfg(feature = "shuttle")]
pub(crate) fn the_disk() -> Arc<dyn Disk> {
    Arc::new(crate::explored::disk())
}

/// Opens a file of the real file system.
pub(crate) fn open_real(path: &Path, how: How) -> io::Result<File> {
    let mut options = File::options();
    options.read(true).write(how != How::Read);
    match how {
        How::Read | How::Write => options.open(path),
        How::Create => options.create(true).truncate(true).open(path),
        How::CreateNew => options.create_new(true).open(path),
    }
}

#[cfg(any(target_os = "linux", target_vendor = "apple"))]
fn exchange_real(one: &Path, other: &Path) -> io::Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    Ok(renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE)?)
}

#[cfg(not(any(target_os = "linux", target_vendor = "apple")))]
fn exchange_real(_: &Path, _: &Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

impl DiskFile for File {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        FileExt::read_at(self, buffer, offset)
    }

    fn write_at(&self, parts: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        Ok(rustix::io::pwritev(self, parts, offset)?)
    }

    fn sync(&self) -> io::Result<()> {
        self.sync_data()
    }

    fn bytes(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }
}

/// The kernel takes at most this many buffers in one gathered write.
const IOV_MAX: usize = 1024;

/// Writes all of `parts` at `offset`, in as few calls as the system allows.
pub(crate) fn write_all_at(
    file: &dyn DiskFile,
    path: &Path,
    mut parts: &mut [IoSlice<'_>],
    mut offset: u64,
) -> Result<(), StorageError> {
    // Empty buffers in front would make a write of 0 bytes look like a disk that takes nothing.
    IoSlice::advance_slices(&mut parts, 0);
    while !parts.is_empty() {
        let now = parts.len().min(IOV_MAX);
        match file.write_at(&parts[..now], offset) {
            Ok(0) => return Err(StorageError::io("write to", path, io::ErrorKind::WriteZero.into())),
            Ok(written) => {
                IoSlice::advance_slices(&mut parts, written);
                offset += written as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(StorageError::io("write to", path, error)),
        }
    }
    Ok(())
}

/// Fills the buffer with what is at `offset`. An error of kind `UnexpectedEof` says that the file ends before.
pub(crate) fn read_exact_at(file: &dyn DiskFile, mut buffer: &mut [u8], mut offset: u64) -> io::Result<()> {
    while !buffer.is_empty() {
        match file.read_at(buffer, offset) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => {
                buffer = &mut buffer[read..];
                offset += read as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Reads a whole file.
pub(crate) fn read_file(disk: &dyn Disk, path: &Path) -> io::Result<Vec<u8>> {
    let file = disk.open(path, How::Read)?;
    let mut bytes = vec![0; usize::try_from(file.bytes()?).map_err(io::Error::other)?];
    read_exact_at(&*file, &mut bytes, 0)?;
    Ok(bytes)
}

/// Reads a whole file, with zeros for what the disk cannot read. The number says where the first such byte is.
pub(crate) fn read_what_can_be_read(disk: &dyn Disk, path: &Path) -> io::Result<(Vec<u8>, Option<u64>)> {
    const PIECE: usize = 4096;
    let file = disk.open(path, How::Read)?;
    let mut bytes = vec![0; usize::try_from(file.bytes()?).map_err(io::Error::other)?];
    match read_exact_at(&*file, &mut bytes, 0) {
        Err(error) if is_unreadable(&error) => {}
        other => return other.map(|()| (bytes, None)),
    }
    let mut unreadable = None;
    for (at, piece) in (0..).step_by(PIECE).zip(bytes.chunks_mut(PIECE)) {
        match read_exact_at(&*file, piece, at) {
            Err(error) if is_unreadable(&error) => {
                piece.fill(0);
                unreadable = unreadable.or(Some(at));
            }
            other => other?,
        }
    }
    Ok((bytes, unreadable))
}

/// Whether the disk, or the file system's checksum, says that what was stored is lost.
pub(crate) fn is_unreadable(error: &io::Error) -> bool {
    use rustix::io::Errno;
    [Errno::IO, Errno::BADMSG].iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

/// Makes a file's contents durable.
pub(crate) fn sync_file(file: &dyn DiskFile, path: &Path) -> Result<(), StorageError> {
    file.sync().map_err(|error| StorageError::io("make durable", path, error))
}

/// Writes zeros over `len` bytes from `offset`, a mebibyte at a time. `go_on` is asked before each step; returns
/// whether it was let to the end.
pub(crate) fn write_zeros(
    file: &dyn DiskFile,
    path: &Path,
    offset: u64,
    len: u64,
    mut go_on: impl FnMut() -> bool,
) -> Result<bool, StorageError> {
    const STEP: u64 = 1 << 20;
    // Each step is pushed to the disk at once: a large backlog of dirty pages would delay the fsyncs of a log
    // that is being written beside this.
    let zeros = vec![0; STEP.min(len) as usize];
    let mut done = 0;
    while done < len {
        if !go_on() {
            return Ok(false);
        }
        let step = STEP.min(len - done);
        write_all_at(file, path, &mut [IoSlice::new(&zeros[..step as usize])], offset + done)?;
        sync_file(file, path)?;
        done += step;
    }
    Ok(true)
}

/// Opens a file.
pub(crate) fn open(disk: &dyn Disk, path: &Path, how: How) -> Result<Box<dyn DiskFile>, StorageError> {
    let doing = if matches!(how, How::Create | How::CreateNew) { "create" } else { "open" };
    disk.open(path, how).map_err(|error| StorageError::io(doing, path, error))
}

/// Makes a directory's entries durable.
pub(crate) fn sync_dir(disk: &dyn Disk, dir: &Path) -> Result<(), StorageError> {
    disk.sync_dir(dir).map_err(|error| StorageError::io("make durable the directory", dir, error))
}

/// Replaces a small file so that a crash leaves either the old or the new contents.
pub(crate) fn replace_file(disk: &dyn Disk, path: &Path, contents: &[u8]) -> Result<(), StorageError> {
    // A name of its own: another thread may replace another file of the directory.
    let temporary = beside(path, "tmp");
    // After a rename that a crash tore, the file may still have this name too, so it must not be written over.
    remove_file(disk, &temporary)?;
    let file = open(disk, &temporary, How::CreateNew)?;
    write_all_at(&*file, &temporary, &mut [IoSlice::new(contents)], 0)?;
    sync_file(&*file, &temporary)?;
    disk.rename(&temporary, path).map_err(|error| StorageError::io("rename to", path, error))?;
    sync_dir(disk, path.parent().expect("a file is in a directory"))
}

/// Creates a directory with its parents, unless it exists. The name of each that is created is durable when this
/// returns.
pub(crate) fn create_dir(disk: &dyn Disk, dir: &Path) -> Result<(), StorageError> {
    let named = dir.ancestors().filter(|dir| !dir.as_os_str().is_empty());
    let missing: Vec<_> = named.take_while(|dir| !disk.is_dir(dir)).collect();
    for dir in missing.into_iter().rev() {
        match disk.create_dir(dir) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(StorageError::io("create the directory", dir, error));
            }
            _ => sync_dir(disk, folder_of(dir))?,
        }
    }
    Ok(())
}

/// Makes the way to a directory durable: its name, and those of the directories above it. An earlier process may have
/// created any of them and ended before it could do so. One that may not be read is of somebody else, who created it
/// before; one that cannot be made durable at all (`EINVAL`), or is read-only, was not created by a replica either:
/// [`create_dir`] forgives none of that.
pub(crate) fn sync_way_to(disk: &dyn Disk, dir: &Path) -> Result<(), StorageError> {
    let forgiven =
        [io::ErrorKind::PermissionDenied, io::ErrorKind::InvalidInput, io::ErrorKind::ReadOnlyFilesystem];
    for dir in dir.ancestors().filter(|dir| !dir.as_os_str().is_empty()) {
        let folder = folder_of(dir);
        match disk.sync_dir(folder) {
            Err(error) if !forgiven.contains(&error.kind()) => {
                return Err(StorageError::io("make durable the directory", folder, error));
            }
            _ => {}
        }
    }
    Ok(())
}

/// The directory that the entry is in.
pub(crate) fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A path in the same directory: the name with `.suffix` behind it.
pub(crate) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.file_name().map(ToOwned::to_owned).unwrap_or_default();
    name.push(format!(".{suffix}"));
    path.with_file_name(name)
}

/// Removes a file; one that is already gone is no error.
pub(crate) fn remove_file(disk: &dyn Disk, path: &Path) -> Result<(), StorageError> {
    match disk.remove(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(StorageError::io("remove", path, error)),
        _ => Ok(()),
    }
}

/// Names of a directory's entries, sorted.
pub(crate) fn file_names(disk: &dyn Disk, dir: &Path) -> Result<Vec<String>, StorageError> {
    let mut names = disk.list(dir).map_err(|error| StorageError::io("list", dir, error))?;
    names.sort_unstable();
    Ok(names)
}

/// A disk that crashes, for tests of files that are replaced.
#[cfg(test)]
pub(crate) mod crash {
    use std::{
        collections::{BTreeMap, BTreeSet},
        os::unix::fs::MetadataExt,
        sync::{Arc, Mutex},
    };

    use super::*;

    /// Works until a given operation, and then never again. It knows what would not survive a power failure.
    #[derive(Clone, Debug, Default)]
    struct CrashDisk {
        state: Arc<Mutex<CrashState>>,
    }

    #[derive(Debug)]
    struct CrashFile {
        file: File,
        disk: CrashDisk,
    }

    #[derive(Debug, Default)]
    struct CrashState {
        operations_left: usize,
        /// Files, by inode, with contents that were not made durable.
        dirty: BTreeSet<u64>,
        /// Renames that were not made durable: the new name, and what it named before.
        renamed: BTreeMap<PathBuf, Option<Vec<u8>>>,
    }

    impl CrashDisk {
        /// Counts an operation. The one that crashes has no effect; that it had one is the next crash's case.
        fn step(&self) -> io::Result<()> {
            let mut state = self.state.lock().unwrap();
            state.operations_left =
                state.operations_left.checked_sub(1).ok_or_else(|| io::Error::other("power failure"))?;
            Ok(())
        }

        /// Takes back, or damages, what the power failure does not leave.
        fn lose(&self) {
            let state = self.state.lock().unwrap();
            for (path, before) in &state.renamed {
                match before {
                    Some(contents) => fs::write(path, contents).unwrap(),
                    None => fs::remove_file(path).unwrap(),
                }
            }
        }
    }

    impl DiskFile for CrashFile {
        fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
            DiskFile::read_at(&self.file, buffer, offset)
        }

        fn write_at(&self, parts: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
            self.disk.step()?;
            self.disk.state.lock().unwrap().dirty.insert(self.file.metadata()?.ino());
            // A few bytes at a time, so that there are crashes in the middle.
            let some = &parts[0][..parts[0].len().min(50)];
            DiskFile::write_at(&self.file, &[IoSlice::new(some)], offset)
        }

        fn sync(&self) -> io::Result<()> {
            self.disk.step()?;
            self.disk.state.lock().unwrap().dirty.remove(&self.file.metadata()?.ino());
            Ok(())
        }

        fn bytes(&self) -> io::Result<u64> {
            DiskFile::bytes(&self.file)
        }
    }

    impl Disk for CrashDisk {
        fn open(&self, path: &Path, how: How) -> io::Result<Box<dyn DiskFile>> {
            let file = open_real(path, how)?;
            Ok(Box::new(CrashFile { file, disk: self.clone() }))
        }

        fn sync_dir(&self, _: &Path) -> io::Result<()> {
            self.step()?;
            self.state.lock().unwrap().renamed.clear();
            Ok(())
        }

        fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
            self.step()?;
            let mut state = self.state.lock().unwrap();
            assert!(!state.dirty.contains(&fs::metadata(from)?.ino()), "what is renamed must be durable");
            state.renamed.insert(to.to_owned(), fs::read(to).ok());
            RealDisk.rename(from, to)
        }
    }

    /// Crashes `change` at each of its operations in turn, in a directory that `before` prepared; then calls
    /// `after` with the directory and whether `change` reported success. It does so twice for each, since what was
    /// not made durable may or may not be lost. Returns what `after` did. The last two times nothing crashed.
    pub(crate) fn for_every_crash<T>(
        before: impl Fn(&Path),
        change: impl Fn(Arc<dyn Disk>, &Path) -> bool,
        after: impl Fn(&Path, bool) -> T,
    ) -> Vec<T> {
        let mut seen = Vec::new();
        for operations_left in 0..1000 {
            let mut finished = false;
            for lose in [false, true] {
                let dir = tempfile::tempdir().unwrap();
                before(dir.path());
                let disk = CrashDisk::default();
                disk.state.lock().unwrap().operations_left = operations_left;
                finished = change(Arc::new(disk.clone()), dir.path());
                if lose {
                    disk.lose();
                }
                seen.push(after(dir.path(), finished));
            }
            if finished {
                assert!(operations_left >= 4, "write, sync, rename, sync of the directory");
                return seen;
            }
        }
        panic!("it never finished");
    }
}

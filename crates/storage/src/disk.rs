//! Every operation on a file system that storage uses, as a trait, so that a program can substitute another one:
//! one in memory, or one that fails.

use std::{
    fmt::Debug,
    fs::{self, File, TryLockError},
    hash::{BuildHasher, RandomState},
    io::{self, IoSlice},
    os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use crate::StorageError;

/// A file system. The default methods are those of this machine's; an implementation replaces some or
/// all of them.
///
/// A name is durable once its directory was synced, contents once their file was. Nothing here relies on
/// more: neither on the order in which operations become durable, nor on a file's sync keeping its name.
pub trait Disk: Debug + Send + Sync {
    /// Opens a file.
    ///
    /// # Errors
    /// There is none, there must be none, or the file system fails.
    fn open(&self, path: &Path, how: How) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(open_real(path, how)?))
    }

    /// Bytes of the file with this name.
    ///
    /// # Errors
    /// There is none, or the file system fails.
    fn file_bytes(&self, path: &Path) -> io::Result<u64> {
        Ok(fs::metadata(path)?.len())
    }

    /// Whether there is a directory with this name.
    fn is_dir(&self, path: &Path) -> bool {
        path.is_dir()
    }

    /// What its owner, its group and others may do with a file or directory: the lowest nine bits of its mode. `None`
    /// if this file system does not say.
    fn permissions(&self, path: &Path) -> Option<u32> {
        Some(fs::metadata(path).ok()?.mode() & 0o777)
    }

    /// Creates a directory in one that exists. Nobody but its owner may enter it.
    ///
    /// # Errors
    /// It exists, its parent does not, or the file system fails.
    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        fs::DirBuilder::new().mode(0o700).create(dir)
    }

    /// Names of a directory's entries, in any order. A name that is not valid text is not one of Synod's and
    /// is left out.
    ///
    /// # Errors
    /// There is no such directory, or the file system fails.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(dir)? {
            names.extend(entry?.file_name().into_string());
        }
        Ok(names)
    }

    /// Makes the directory's entries durable.
    ///
    /// # Errors
    /// The names may not be durable.
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        File::open(dir)?.sync_all()
    }

    /// Renames a file within its directory, or a directory within its own.
    ///
    /// # Errors
    /// The old name may still be there.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    /// Exchanges the names of two directories atomically. An error of kind [`io::ErrorKind::Unsupported`] or
    /// [`io::ErrorKind::InvalidInput`] means that this file system has no such operation.
    ///
    /// # Errors
    /// The names are as they were.
    fn exchange(&self, one: &Path, other: &Path) -> io::Result<()> {
        exchange_real(one, other)
    }

    /// Removes a file.
    ///
    /// # Errors
    /// There is none, or the file system fails.
    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    /// Locks a file, which is created if it does not exist. Returns `None` if another process holds the lock.
    /// The system releases it when the process ends, in whatever way.
    ///
    /// # Errors
    /// The file cannot be opened or locked.
    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn Guard>>> {
        let mut options = File::options();
        let file =
            options.create(true).truncate(false).read(true).write(true).mode(FILE_PERMISSIONS).open(path)?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Box::new(file))),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    /// A text that changes with every boot of the machine; empty where the system offers none.
    fn boot(&self) -> String {
        let id = fs::read_to_string("/proc/sys/kernel/random/boot_id");
        id.map(|id| id.trim().to_owned()).unwrap_or_default()
    }

    /// A number that cannot be guessed and is drawn only once; never 0.
    fn secret(&self) -> u64 {
        // The hasher's keys come from the system's source of randomness.
        RandomState::new().hash_one(std::time::SystemTime::now()).max(1)
    }

    /// Whether storage may start threads on it. If not, the owner calls their work step by step.
    fn has_threads(&self) -> bool {
        true
    }
}

/// An open file. Reading returns what was written, durable or not.
pub trait DiskFile: Debug + Send + Sync {
    /// Reads at most the buffer's length from `offset` on; 0 bytes at the end.
    ///
    /// # Errors
    /// The file system fails; what the disk cannot read is an `EIO` or `EBADMSG` of the system.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Writes a prefix of `parts` at `offset`, and returns its length in bytes.
    ///
    /// # Errors
    /// The file system fails or is full.
    fn write_at(&self, parts: &[IoSlice<'_>], offset: u64) -> io::Result<usize>;

    /// Makes the file's contents durable, with the metadata that reading them needs.
    ///
    /// # Errors
    /// Contents may not be durable, and a later call must not be believed.
    fn sync(&self) -> io::Result<()>;

    /// Bytes of the file.
    ///
    /// # Errors
    /// The file system fails.
    fn bytes(&self) -> io::Result<u64>;
}

/// Holds a lock until it is dropped.
pub trait Guard: Debug + Send + Sync {}

impl Guard for File {}

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// For reading; the file must exist.
    Read,
    /// For reading and writing; the file must exist.
    Write,
    /// For reading and writing; the file is created, or emptied.
    Create,
    /// For reading and writing; the file must not exist.
    CreateNew,
}

/// The real file system.
#[derive(Debug)]
pub struct RealDisk;

impl Disk for RealDisk {}

/// The file system of this machine.
#[cfg(not(feature = "shuttle"))]
#[must_use]
pub fn the_disk() -> Arc<dyn Disk> {
    Arc::new(RealDisk)
}

/// The file system that the test has set.
#[cfg(feature = "shuttle")]
#[must_use]
pub fn the_disk() -> Arc<dyn Disk> {
    crate::explored::disk()
}

/// Only the owner reads and writes what is created: logs and snapshots hold tokens and hashes of passwords.
const FILE_PERMISSIONS: u32 = 0o600;

/// Opens a file of the real file system.
pub(crate) fn open_real(path: &Path, how: How) -> io::Result<File> {
    let mut options = File::options();
    options.read(true).write(how != How::Read).mode(FILE_PERMISSIONS);
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
    // Leading empty buffers are skipped: a write of 0 bytes would look like a disk that accepts nothing.
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

/// Fills the buffer from `offset` on. An error of kind `UnexpectedEof` means that the file is too short.
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

/// Reads a whole file, with zeros in place of bytes that the disk cannot read. The number is the offset of
/// the first such byte.
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

/// Whether the disk, or the file system's checksum, reports that stored data is lost.
pub(crate) fn is_unreadable(error: &io::Error) -> bool {
    use rustix::io::Errno;
    [Errno::IO, Errno::BADMSG].iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

/// Makes a file's contents durable.
pub(crate) fn sync_file(file: &dyn DiskFile, path: &Path) -> Result<(), StorageError> {
    file.sync().map_err(|error| StorageError::io("make durable", path, error))
}

/// Writes zeros over `len` bytes from `offset`, a mebibyte at a time. It calls `go_on` before each step and
/// stops if that is false. Returns whether it came to the end.
pub(crate) fn write_zeros(
    file: &dyn DiskFile,
    path: &Path,
    offset: u64,
    len: u64,
    mut go_on: impl FnMut() -> bool,
) -> Result<bool, StorageError> {
    const STEP: u64 = 1 << 20;
    // Each step is synced at once: a large backlog of dirty pages would delay the fsyncs of a log that is
    // being written meanwhile.
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

/// Replaces a small file. A crash leaves either the old or the new contents.
pub(crate) fn replace_file(disk: &dyn Disk, path: &Path, contents: &[u8]) -> Result<(), StorageError> {
    // The temporary name is unique to the file, since another thread may replace another file of the directory.
    let temporary = beside(path, "tmp");
    // After a rename torn by a crash the file may also have the temporary name, so that file must not be overwritten.
    remove_file(disk, &temporary)?;
    let file = open(disk, &temporary, How::CreateNew)?;
    write_all_at(&*file, &temporary, &mut [IoSlice::new(contents)], 0)?;
    sync_file(&*file, &temporary)?;
    disk.rename(&temporary, path).map_err(|error| StorageError::io("rename to", path, error))?;
    sync_dir(disk, path.parent().expect("a file is in a directory"))
}

/// Creates a directory and its parents, unless they exist. The names of all that are created are durable when
/// this returns.
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

/// Makes the names of a directory and of the directories above it durable, since an earlier process may have
/// created any of them and ended before it could do so. A directory that this process may not read was
/// created by another user, before. One that cannot be made durable at all (`EINVAL`), or is read-only, was
/// not created by a replica either: [`create_dir`] would have failed there.
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

/// A path in the same directory: the name followed by `.suffix`.
pub(crate) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.file_name().map(ToOwned::to_owned).unwrap_or_default();
    name.push(format!(".{suffix}"));
    path.with_file_name(name)
}

/// Removes a file. A file that does not exist is no error.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_created_is_for_its_owner_alone() {
        let folder = tempfile::tempdir().unwrap();
        let in_folder = |name: &str| folder.path().join(name);
        create_dir(&RealDisk, &in_folder("a/b")).unwrap();
        RealDisk.open(&in_folder("new"), How::CreateNew).unwrap();
        RealDisk.open(&in_folder("emptied"), How::Create).unwrap();
        replace_file(&RealDisk, &in_folder("replaced"), b"x").unwrap();
        RealDisk.lock(&in_folder("lock")).unwrap();
        for (name, permissions) in [
            ("a", 0o700),
            ("a/b", 0o700),
            ("new", 0o600),
            ("emptied", 0o600),
            ("replaced", 0o600),
            ("lock", 0o600),
        ] {
            assert_eq!(RealDisk.permissions(&in_folder(name)), Some(permissions), "{name}");
        }
    }
}

/// A disk that crashes, for tests of files that are replaced.
#[cfg(test)]
pub(crate) mod crash {
    use std::{
        collections::{BTreeMap, BTreeSet},
        sync::{Arc, Mutex},
    };

    use super::*;

    /// A disk that works until a given operation, and never again. It knows what would not survive a power failure.
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
        /// Files, by inode, whose contents are not durable.
        dirty: BTreeSet<u64>,
        /// Renames that are not durable: the new name, and the contents that it had before.
        renamed: BTreeMap<PathBuf, Option<Vec<u8>>>,
    }

    impl CrashDisk {
        /// Counts an operation. The operation that crashes has no effect; the case that it had one is the next crash's.
        fn step(&self) -> io::Result<()> {
            let mut state = self.state.lock().unwrap();
            state.operations_left =
                state.operations_left.checked_sub(1).ok_or_else(|| io::Error::other("power failure"))?;
            Ok(())
        }

        /// Undoes, or damages, what a power failure does not keep.
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
            // Writes accept a few bytes at a time, so that crashes happen in the middle of them.
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

    /// Crashes `change` at each of its operations in turn, in a directory that `before` prepared. Then it
    /// calls `after` with the directory and whether `change` reported success. Each crash happens twice,
    /// since what is not durable may or may not be lost. Returns the results of `after`; the last two are of
    /// runs without a crash.
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

//! The file operations that can fail in ways that tests must be able to provoke.

use std::{
    fmt::Debug,
    fs::{self, File},
    io::{self, IoSlice},
    path::Path,
};

use crate::StorageError;

/// The system calls that decide over durability. The defaults are the real ones; tests replace single ones to
/// make a disk fill up or fail.
pub(crate) trait Disk: Debug + Send + Sync {
    /// Writes a prefix of `parts` at `offset`; returns how many bytes.
    fn write_at(&self, file: &File, parts: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        Ok(rustix::io::pwritev(file, parts, offset)?)
    }

    /// Makes the file's contents durable, and what of its metadata is needed to read them.
    fn sync_data(&self, file: &File) -> io::Result<()> {
        file.sync_data()
    }

    /// Makes the directory's entries durable.
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        File::open(dir)?.sync_all()
    }

    /// Renames a file within its directory.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }
}

/// The real thing.
#[derive(Debug)]
pub(crate) struct RealDisk;

impl Disk for RealDisk {}

/// The kernel takes at most this many buffers in one gathered write.
const IOV_MAX: usize = 1024;

/// Writes all of `parts` at `offset`, in as few calls as the system allows.
pub(crate) fn write_all_at(
    disk: &dyn Disk,
    file: &File,
    path: &Path,
    mut parts: &mut [IoSlice<'_>],
    mut offset: u64,
) -> Result<(), StorageError> {
    // Empty buffers in front would make a write of 0 bytes look like a disk that takes nothing.
    IoSlice::advance_slices(&mut parts, 0);
    while !parts.is_empty() {
        let now = parts.len().min(IOV_MAX);
        match disk.write_at(file, &parts[..now], offset) {
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

/// Writes zeros over `len` bytes from `offset`, a mebibyte at a time. `go_on` is asked before each step; returns
/// whether it was let to the end.
pub(crate) fn write_zeros(
    disk: &dyn Disk,
    file: &File,
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
        write_all_at(disk, file, path, &mut [IoSlice::new(&zeros[..step as usize])], offset + done)?;
        disk.sync_data(file).map_err(|error| StorageError::io("make durable", path, error))?;
        done += step;
    }
    Ok(true)
}

/// Makes a directory's entries durable.
pub(crate) fn sync_dir(disk: &dyn Disk, dir: &Path) -> Result<(), StorageError> {
    disk.sync_dir(dir).map_err(|error| StorageError::io("make durable the directory", dir, error))
}

/// Replaces a small file so that a crash leaves either the old or the new contents.
pub(crate) fn replace_file(disk: &dyn Disk, path: &Path, contents: &[u8]) -> Result<(), StorageError> {
    let temporary = path.with_extension("tmp");
    let file = File::create(&temporary).map_err(|error| StorageError::io("create", &temporary, error))?;
    write_all_at(disk, &file, &temporary, &mut [IoSlice::new(contents)], 0)?;
    disk.sync_data(&file).map_err(|error| StorageError::io("make durable", &temporary, error))?;
    disk.rename(&temporary, path).map_err(|error| StorageError::io("rename to", path, error))?;
    sync_dir(disk, path.parent().expect("a file is in a directory"))
}

/// Creates a directory with its parents and makes its entry in the parent durable.
pub(crate) fn create_dir(disk: &dyn Disk, dir: &Path) -> Result<(), StorageError> {
    if dir.is_dir() {
        return Ok(());
    }
    fs::create_dir_all(dir).map_err(|error| StorageError::io("create the directory", dir, error))?;
    match dir.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => sync_dir(disk, parent),
        _ => sync_dir(disk, Path::new(".")),
    }
}

/// Removes a file; one that is already gone is no error.
pub(crate) fn remove_file(path: &Path) -> Result<(), StorageError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(StorageError::io("remove", path, error)),
        _ => Ok(()),
    }
}

/// Names of the plain entries of a directory that are valid text, sorted; others are nothing of ours.
pub(crate) fn file_names(dir: &Path) -> Result<Vec<String>, StorageError> {
    let entries = fs::read_dir(dir).map_err(|error| StorageError::io("list", dir, error))?;
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|error| StorageError::io("list", dir, error))?;
        names.extend(entry.file_name().into_string());
    }
    names.sort_unstable();
    Ok(names)
}

/// A disk that crashes, for tests of files that are replaced.
#[cfg(test)]
pub(crate) mod crash {
    use std::{
        collections::{BTreeMap, BTreeSet},
        path::PathBuf,
        sync::{Arc, Mutex},
    };

    use super::*;

    /// Works until a given operation, and then never again. It knows what would not survive a power failure.
    #[derive(Debug, Default)]
    struct CrashDisk {
        state: Mutex<CrashState>,
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

    fn inode(file: &File) -> io::Result<u64> {
        Ok(std::os::unix::fs::MetadataExt::ino(&file.metadata()?))
    }

    impl Disk for CrashDisk {
        fn write_at(&self, file: &File, parts: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
            self.step()?;
            self.state.lock().unwrap().dirty.insert(inode(file)?);
            // A few bytes at a time, so that there are crashes in the middle.
            let some = &parts[0][..parts[0].len().min(50)];
            RealDisk.write_at(file, &[IoSlice::new(some)], offset)
        }

        fn sync_data(&self, file: &File) -> io::Result<()> {
            self.step()?;
            self.state.lock().unwrap().dirty.remove(&inode(file)?);
            Ok(())
        }

        fn sync_dir(&self, _: &Path) -> io::Result<()> {
            self.step()?;
            self.state.lock().unwrap().renamed.clear();
            Ok(())
        }

        fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
            self.step()?;
            let mut state = self.state.lock().unwrap();
            assert!(!state.dirty.contains(&inode(&File::open(from)?)?), "what is renamed must be durable");
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
                let disk = Arc::new(CrashDisk::default());
                disk.state.lock().unwrap().operations_left = operations_left;
                finished = change(Arc::clone(&disk) as Arc<dyn Disk>, dir.path());
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

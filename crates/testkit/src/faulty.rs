//! A file system in memory that does the worst that real ones do, as a seed decides.
//!
//! It guarantees only what storage relies on: a file's contents are durable once [`DiskFile::sync`] has
//! returned, and a name once [`Disk::sync_dir`] of its directory has. Until then a power failure keeps any of
//! the written sectors and any of the changed names, in any combination; a rename may be kept with both
//! names. An fsync that fails leaves pages that look written and are not: reads return them until the cache
//! drops them, and no later fsync writes them. Besides, sectors rot, with or without the disk noticing, and
//! writes get lost or land elsewhere although the disk reports success.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, IoSlice},
    path::{Component, Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard},
};

use fastrand::Rng;
use synod_storage::{
    DataDir, Disk, DiskFile, Durability, Guard, How, Options, Recovered, SnapshotStore, StorageError, Wal,
};
use synod_wire::{ClusterId, ReplicaId};

/// The unit that a disk writes or loses as a whole, in bytes.
pub const SECTOR: usize = 512;

const ROOT: usize = 0;

/// How often each fault happens, in thousandths.
#[derive(Clone, Copy, Debug, Default)]
pub struct Odds {
    /// An fsync of a file fails.
    pub sync_fails: u32,
    /// An fsync of a directory fails.
    pub dir_sync_fails: u32,
    /// A write, or the creation of a file, finds no room.
    pub full: u32,
    /// One of the sectors of a write is not written, and the disk does not notice.
    pub lost_write: u32,
    /// One of the sectors of a write lands in another one's place, and the disk does not notice.
    pub misdirected_write: u32,
}

/// The disk. Clones share it.
#[derive(Clone, Debug)]
pub struct FaultyDisk {
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    rng: Rng,
    /// The source of numbers that cannot be guessed on a real disk. It is separate, so that drawing them
    /// changes nothing else.
    secrets: Rng,
    odds: Odds,
    inodes: Vec<Inode>,
    locked: BTreeSet<usize>,
    boot: u64,
    /// The number of the process that may use the disk; handles of earlier processes fail.
    process: u64,
    /// Operations until all fail; `None` if none fails.
    left: Option<u64>,
    /// Whether names cannot be exchanged.
    plain: bool,
    /// Faults that no operation reported, in order.
    silent: Vec<SilentFault>,
    /// Whether threads may work on it.
    threads: bool,
    /// Lets another thread run, before something becomes visible or durable.
    switch: Option<fn()>,
}

/// A sector that differs from what was last written to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SilentFault {
    /// The file.
    pub path: PathBuf,
    /// The sector's number in the file, from 0.
    pub sector: usize,
}

#[derive(Debug)]
enum Inode {
    Dir(Dir),
    File(Contents),
}

#[derive(Clone, Debug, Default)]
struct Dir {
    /// The names as processes see them.
    names: BTreeMap<String, usize>,
    durable: BTreeMap<String, usize>,
    /// The changes that lead from `durable` to `names`, in order.
    pending: Vec<Change>,
}

#[derive(Clone, Debug)]
enum Change {
    Link(String, usize),
    Unlink(String),
    Rename(String, String, usize),
    Exchange(String, String),
}

#[derive(Clone, Debug, Default)]
struct Contents {
    /// The contents as processes see them.
    bytes: Vec<u8>,
    durable: Vec<u8>,
    /// Sectors that the next fsync writes. Others may differ from the durable ones too: those that an fsync
    /// failed to write, and those whose write was lost.
    dirty: BTreeSet<usize>,
    /// Sectors that cannot be read.
    unreadable: BTreeSet<usize>,
}

#[derive(Debug)]
struct Handle {
    disk: FaultyDisk,
    inode: usize,
    process: u64,
    writable: bool,
    path: PathBuf,
}

#[derive(Debug)]
struct Lock {
    disk: FaultyDisk,
    inode: usize,
    process: u64,
}

impl Guard for Lock {}

impl Drop for Lock {
    fn drop(&mut self) {
        let mut state = self.disk.lock_state();
        if state.process == self.process {
            state.locked.remove(&self.inode);
        }
    }
}

impl Change {
    /// Applies the change. If `torn`, of a rename only the new name appears.
    fn apply(&self, names: &mut BTreeMap<String, usize>, torn: bool) {
        match self {
            Change::Link(name, inode) => {
                names.insert(name.clone(), *inode);
            }
            Change::Unlink(name) => {
                names.remove(name);
            }
            Change::Rename(from, to, inode) => {
                if !torn && names.get(from) == Some(inode) {
                    names.remove(from);
                }
                names.insert(to.clone(), *inode);
            }
            Change::Exchange(one, other) => {
                if let (Some(&a), Some(&b)) = (names.get(one), names.get(other)) {
                    names.insert(one.clone(), b);
                    names.insert(other.clone(), a);
                }
            }
        }
    }
}

impl Dir {
    fn change(&mut self, change: Change) {
        change.apply(&mut self.names, false);
        self.pending.push(change);
    }
}

impl Contents {
    fn sectors(range: std::ops::Range<usize>) -> std::ops::Range<usize> {
        range.start / SECTOR..range.end.div_ceil(SECTOR)
    }

    /// Writes a sector to the disk, which grows as needed.
    fn persist(&mut self, sector: usize) {
        let (from, to) = (sector * SECTOR, ((sector + 1) * SECTOR).min(self.bytes.len()));
        if from < to {
            self.durable.resize(self.durable.len().max(to), 0);
            self.durable[from..to].copy_from_slice(&self.bytes[from..to]);
        }
    }

    /// Drops everything from the cache that is not to be written.
    fn evict(&mut self) {
        for sector in 0..self.durable.len().div_ceil(SECTOR) {
            let (from, to) = (sector * SECTOR, ((sector + 1) * SECTOR).min(self.durable.len()));
            if !self.dirty.contains(&sector) && to <= self.bytes.len() {
                self.bytes[from..to].copy_from_slice(&self.durable[from..to]);
            }
        }
    }
}

impl State {
    fn dir(&mut self, inode: usize) -> io::Result<&mut Dir> {
        match self.inodes.get_mut(inode) {
            Some(Inode::Dir(dir)) => Ok(dir),
            _ => Err(io::ErrorKind::NotADirectory.into()),
        }
    }

    fn file(&mut self, inode: usize) -> io::Result<&mut Contents> {
        match self.inodes.get_mut(inode) {
            Some(Inode::File(contents)) => Ok(contents),
            _ => Err(io::ErrorKind::IsADirectory.into()),
        }
    }

    fn find(&mut self, path: &Path) -> io::Result<usize> {
        let mut at = ROOT;
        for part in path.components() {
            if let Component::Normal(name) = part {
                let name = name.to_str().expect("names in tests are text");
                at = *self.dir(at)?.names.get(name).ok_or(io::ErrorKind::NotFound)?;
            }
        }
        Ok(at)
    }

    /// The directory of the path, and its name there.
    fn place(&mut self, path: &Path) -> io::Result<(usize, String)> {
        let name = path.file_name().and_then(|name| name.to_str()).expect("names in tests are text");
        Ok((self.find(path.parent().expect("not the root"))?, name.to_owned()))
    }

    fn happens(&mut self, thousandths: u32) -> bool {
        thousandths > 0 && self.rng.u32(0..1000) < thousandths
    }

    /// Counts an operation that changes something. The operation that crashes has no effect; the case that it
    /// had one is the next crash's.
    fn step(&mut self) -> io::Result<()> {
        match &mut self.left {
            Some(0) => Err(io::Error::other("power failure")),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Writes something that was not synced, from time to time, as a system does.
    fn write_back(&mut self, inode: usize) {
        if self.rng.u8(0..8) > 0 {
            return;
        }
        let mut rng = self.rng.fork();
        match &mut self.inodes[inode] {
            Inode::File(file) => {
                for sector in file.dirty.clone() {
                    if rng.bool() {
                        file.persist(sector);
                    }
                }
            }
            Inode::Dir(dir) => {
                let count = rng.usize(0..=dir.pending.len());
                dir.pending.drain(..count).for_each(|change| change.apply(&mut dir.durable, false));
            }
        }
    }

    /// The paths of all files.
    fn paths(&self) -> BTreeMap<PathBuf, usize> {
        let (mut found, mut open) = (BTreeMap::new(), vec![(PathBuf::from("/"), ROOT)]);
        while let Some((path, inode)) = open.pop() {
            match &self.inodes[inode] {
                Inode::Dir(dir) => open.extend(dir.names.iter().map(|(name, &at)| (path.join(name), at))),
                Inode::File(_) => {
                    found.insert(path, inode);
                }
            }
        }
        found
    }

    /// Draws a sector of a file for which `fits` holds.
    fn some_sector(&mut self, fits: &dyn Fn(&Path) -> bool) -> Option<(PathBuf, usize, usize)> {
        let files: Vec<_> = self.paths().into_iter().filter(|(path, _)| fits(path)).collect();
        if files.is_empty() {
            return None;
        }
        let (path, inode) = files[self.rng.usize(..files.len())].clone();
        let sectors = self.file(inode).ok()?.durable.len().div_ceil(SECTOR);
        (sectors > 0).then(|| (path, inode, self.rng.usize(..sectors)))
    }
}

impl FaultyDisk {
    /// Makes an empty disk with only the root directory.
    pub fn new(seed: u64) -> FaultyDisk {
        let state = State {
            rng: Rng::with_seed(seed),
            secrets: Rng::with_seed(!seed),
            odds: Odds::default(),
            inodes: vec![Inode::Dir(Dir::default())],
            locked: BTreeSet::new(),
            boot: 1,
            process: 1,
            left: None,
            plain: false,
            silent: Vec::new(),
            threads: false,
            switch: None,
        };
        FaultyDisk { state: Arc::new(Mutex::new(state)) }
    }

    /// Makes the exchange of names fail from now on.
    pub fn make_plain(&self) {
        self.lock_state().plain = true;
    }

    fn lock_state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Sets how often each fault happens from now on.
    pub fn set_odds(&self, odds: Odds) {
        self.lock_state().odds = odds;
    }

    /// Makes all operations fail after this many that change something, until [`FaultyDisk::power_failure`]
    /// or [`FaultyDisk::kill`].
    pub fn crash_after(&self, operations: u64) {
        self.lock_state().left = Some(operations);
    }

    /// Ends the process and closes its files. Nothing is lost, except perhaps from the cache.
    pub fn kill(&self) {
        let mut state = self.lock_state();
        state.process += 1;
        state.left = None;
        state.locked.clear();
        if state.rng.bool() {
            state.inodes.iter_mut().for_each(|inode| {
                if let Inode::File(file) = inode {
                    file.evict();
                }
            });
        }
    }

    /// Cuts the machine's power, and starts it again.
    pub fn power_failure(&self) {
        let mut state = self.lock_state();
        let mut rng = state.rng.fork();
        state.process += 1;
        state.boot += 1;
        state.left = None;
        state.locked.clear();
        // The share of the changes that survive although they were not durable: all, none, or some.
        let share = [0, 500, 1000, 900, 100][rng.usize(..5)];
        let mut keeps = || rng.u32(0..1000) < share;
        for inode in &mut state.inodes {
            match inode {
                Inode::File(file) => {
                    for sector in std::mem::take(&mut file.dirty) {
                        if keeps() {
                            file.persist(sector);
                        }
                    }
                    if file.bytes.len() != file.durable.len() && keeps() {
                        file.durable.resize(file.bytes.len(), 0);
                    }
                    file.bytes = file.durable.clone();
                }
                Inode::Dir(dir) => {
                    for change in std::mem::take(&mut dir.pending) {
                        if keeps() {
                            let torn = keeps() && keeps() && keeps();
                            change.apply(&mut dir.durable, torn);
                        }
                    }
                    dir.names = dir.durable.clone();
                }
            }
        }
    }

    /// Changes a bit of a durable sector of a file for which `fits` holds. Returns where, if there is such a file.
    pub fn rot(&self, fits: impl Fn(&Path) -> bool) -> Option<SilentFault> {
        let mut state = self.lock_state();
        let (path, inode, sector) = state.some_sector(&fits)?;
        let bit = state.rng.usize(..SECTOR * 8);
        let file = state.file(inode).ok()?;
        let at = (sector * SECTOR + bit / 8).min(file.durable.len() - 1);
        file.durable[at] ^= 1 << (bit % 8);
        if !file.dirty.contains(&sector) {
            file.bytes[at] = file.durable[at];
        }
        Some(SilentFault { path, sector })
    }

    /// Makes a sector of a file for which `fits` holds unreadable until it is written. Returns where.
    pub fn spoil(&self, fits: impl Fn(&Path) -> bool) -> Option<SilentFault> {
        let mut state = self.lock_state();
        let (path, inode, sector) = state.some_sector(&fits)?;
        state.file(inode).ok()?.unreadable.insert(sector);
        Some(SilentFault { path, sector })
    }

    /// Returns the writes that were lost or misdirected since the last call.
    pub fn silent_faults(&self) -> Vec<SilentFault> {
        std::mem::take(&mut self.lock_state().silent)
    }

    /// The durable contents of all files below `dir`, by path.
    pub fn image(&self, dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
        let mut state = self.lock_state();
        let below = state.paths().into_iter().filter(|(path, _)| path.starts_with(dir));
        let below: Vec<_> = below.collect();
        below.into_iter().map(|(path, inode)| (path, state.file(inode).unwrap().durable.clone())).collect()
    }

    /// Makes another disk with everything that is durable on this one.
    #[must_use]
    pub fn copy(&self, seed: u64) -> FaultyDisk {
        let copy = FaultyDisk::new(seed);
        let state = self.lock_state();
        let inodes = state.inodes.iter().map(|inode| match inode {
            Inode::Dir(dir) => {
                let durable = dir.durable.clone();
                Inode::Dir(Dir { names: durable.clone(), durable, pending: Vec::new() })
            }
            Inode::File(file) => {
                let durable = file.durable.clone();
                let unreadable = file.unreadable.clone();
                Inode::File(Contents { bytes: durable.clone(), durable, unreadable, ..Contents::default() })
            }
        });
        copy.lock_state().inodes = inodes.collect();
        copy
    }

    /// Makes another disk with everything that is durable below `dir` on this one, on which no threads work.
    #[must_use]
    pub fn copy_of(&self, dir: &Path) -> FaultyDisk {
        let copy = FaultyDisk::new(0);
        let image = self.image(dir);
        let above = |file: &PathBuf| file.ancestors().skip(1).map(Path::to_owned).collect::<Vec<_>>();
        let mut folders: BTreeSet<PathBuf> = image.keys().flat_map(above).collect();
        folders.extend([dir.to_owned(), dir.join("wal"), dir.join("snapshots")]);
        // One comes after those that it is in.
        for folder in folders.into_iter().filter(|folder| folder.starts_with(dir)) {
            copy.create_dir(&folder).expect("it is empty");
        }
        copy.put_back(dir, &image);
        copy
    }

    /// Restores the files of an earlier [`FaultyDisk::image`]; other files below `dir` disappear.
    pub fn put_back(&self, dir: &Path, image: &BTreeMap<PathBuf, Vec<u8>>) {
        for path in self.image(dir).into_keys().filter(|path| !image.contains_key(path)) {
            self.delete(&path);
        }
        for (path, bytes) in image {
            self.put(path, bytes);
        }
    }

    /// Makes a file hold these bytes, durably.
    pub fn put(&self, path: &Path, bytes: &[u8]) {
        let mut state = self.lock_state();
        let (dir, name) = state.place(path).unwrap();
        let contents = Contents { bytes: bytes.to_vec(), durable: bytes.to_vec(), ..Contents::default() };
        state.inodes.push(Inode::File(contents));
        let inode = state.inodes.len() - 1;
        let dir = state.dir(dir).unwrap();
        dir.names.insert(name.clone(), inode);
        dir.durable.insert(name, inode);
    }

    /// Deletes a file, durably.
    pub fn delete(&self, path: &Path) {
        let mut state = self.lock_state();
        let (dir, name) = state.place(path).unwrap();
        let dir = state.dir(dir).unwrap();
        dir.names.remove(&name);
        dir.durable.remove(&name);
    }

    /// From now on threads may work on it, as those of a running replica do. What a seed draws then depends on their
    /// order.
    #[must_use]
    pub fn with_threads(self) -> FaultyDisk {
        self.lock_state().threads = true;
        self
    }

    /// From now on threads of a scheduler may work on it, whose order can be repeated. It calls `switch`, which lets
    /// another one run, before something becomes visible or durable.
    #[must_use]
    pub fn with_scheduler(self, switch: fn()) -> FaultyDisk {
        self.lock_state().switch = Some(switch);
        self.with_threads()
    }

    /// Does what [`DataDir::open`] does, on this disk.
    ///
    /// # Errors
    /// Those of [`DataDir::open`].
    pub fn open_dir(
        &self,
        path: &Path,
        cluster: ClusterId,
        replica: ReplicaId,
    ) -> Result<DataDir, StorageError> {
        let disk = Arc::new(self.clone());
        DataDir::open_on(disk, path, cluster, replica, &replica.to_string(), Durability::Sync)
    }

    /// Does what [`Wal::open`] does, on this disk.
    ///
    /// # Errors
    /// Those of [`Wal::open`].
    pub fn open_wal(&self, dir: &DataDir, options: Options) -> Result<(Wal, Recovered), StorageError> {
        Wal::open_on(Arc::new(self.clone()), &dir.wal(), dir.identity(), options)
    }

    /// Does what [`SnapshotStore::open`] does, on this disk.
    ///
    /// # Errors
    /// Those of [`SnapshotStore::open`].
    pub fn open_snapshots(&self, dir: &DataDir) -> Result<SnapshotStore, StorageError> {
        SnapshotStore::open_on(Arc::new(self.clone()), &dir.snapshots(), dir.identity().cluster)
    }
}

impl Disk for FaultyDisk {
    fn open(&self, path: &Path, how: How) -> io::Result<Box<dyn DiskFile>> {
        let mut state = self.lock_state();
        let process = state.process;
        let inode = match (state.find(path), how) {
            (Ok(_), How::CreateNew) => return Err(io::ErrorKind::AlreadyExists.into()),
            (Ok(inode), How::Create) => {
                state.step()?;
                let file = state.file(inode)?;
                // Emptying a file is like a write: it is durable with the next fsync.
                file.bytes.clear();
                file.dirty.clear();
                inode
            }
            (Ok(inode), _) => {
                state.file(inode)?;
                inode
            }
            (Err(_), How::Create | How::CreateNew) => {
                state.step()?;
                let full = state.odds.full;
                if state.happens(full) {
                    return Err(io::ErrorKind::StorageFull.into());
                }
                let (dir, name) = state.place(path)?;
                state.inodes.push(Inode::File(Contents::default()));
                let inode = state.inodes.len() - 1;
                state.dir(dir)?.change(Change::Link(name, inode));
                inode
            }
            (Err(error), _) => return Err(error),
        };
        let (disk, path) = (self.clone(), path.to_owned());
        Ok(Box::new(Handle { disk, inode, process, writable: how != How::Read, path }))
    }

    fn file_bytes(&self, path: &Path) -> io::Result<u64> {
        let mut state = self.lock_state();
        let inode = state.find(path)?;
        Ok(state.file(inode).map_or(0, |file| file.bytes.len() as u64))
    }

    fn is_dir(&self, path: &Path) -> bool {
        let mut state = self.lock_state();
        state.find(path).is_ok_and(|inode| state.dir(inode).is_ok())
    }

    fn permissions(&self, _: &Path) -> Option<u32> {
        None
    }

    fn create_dir(&self, dir: &Path) -> io::Result<()> {
        let mut state = self.lock_state();
        state.step()?;
        if state.find(dir).is_ok() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let (parent, name) = state.place(dir)?;
        state.inodes.push(Inode::Dir(Dir::default()));
        let inode = state.inodes.len() - 1;
        state.dir(parent)?.change(Change::Link(name, inode));
        Ok(())
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let mut state = self.lock_state();
        let inode = state.find(dir)?;
        Ok(state.dir(inode)?.names.keys().cloned().collect())
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        let mut state = self.lock_state();
        state.step()?;
        let inode = state.find(dir)?;
        let fails = state.odds.dir_sync_fails;
        if state.happens(fails) {
            return Err(io::Error::other("the directory could not be written"));
        }
        let dir = state.dir(inode)?;
        dir.durable = dir.names.clone();
        dir.pending.clear();
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.lock_state();
        state.step()?;
        let inode = state.find(from)?;
        let ((dir, from), (same, to)) = (state.place(from)?, state.place(to)?);
        assert_eq!(dir, same, "a rename stays in its directory");
        if let Ok(file) = state.file(inode) {
            // The contents of a spare segment no longer matter.
            assert!(file.dirty.is_empty() || to.ends_with(".spare"), "what is renamed must be durable");
        }
        state.dir(dir)?.change(Change::Rename(from, to, inode));
        state.write_back(dir);
        Ok(())
    }

    fn exchange(&self, one: &Path, other: &Path) -> io::Result<()> {
        let mut state = self.lock_state();
        state.step()?;
        if state.plain {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        state.find(one)?;
        state.find(other)?;
        let ((dir, one), (same, other)) = (state.place(one)?, state.place(other)?);
        assert_eq!(dir, same, "names are exchanged within a directory");
        state.dir(dir)?.change(Change::Exchange(one, other));
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut state = self.lock_state();
        state.step()?;
        state.find(path)?;
        let (dir, name) = state.place(path)?;
        state.dir(dir)?.change(Change::Unlink(name));
        state.write_back(dir);
        Ok(())
    }

    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn Guard>>> {
        if self.file_bytes(path).is_err() {
            self.open(path, How::Create)?;
        }
        let mut state = self.lock_state();
        let (inode, process) = (state.find(path)?, state.process);
        let free = state.locked.insert(inode);
        Ok(free.then(|| Box::new(Lock { disk: self.clone(), inode, process }) as Box<dyn Guard>))
    }

    fn boot(&self) -> String {
        format!("boot {}", self.lock_state().boot)
    }

    fn secret(&self) -> u64 {
        self.lock_state().secrets.u64(1..)
    }

    fn has_threads(&self) -> bool {
        self.lock_state().threads
    }
}

impl Handle {
    /// Another thread may run before something becomes visible or durable.
    fn switch(&self) {
        let switch = self.disk.lock_state().switch;
        if let Some(switch) = switch {
            switch();
        }
    }

    /// The disk, unless the process that opened this handle has ended.
    fn state(&self) -> io::Result<MutexGuard<'_, State>> {
        let state = self.disk.lock_state();
        if state.process == self.process { Ok(state) } else { Err(io::Error::other("the process has ended")) }
    }
}

impl DiskFile for Handle {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut state = self.state()?;
        let file = state.file(self.inode)?;
        let from = (offset as usize).min(file.bytes.len());
        let to = (from + buffer.len()).min(file.bytes.len());
        if Contents::sectors(from..to).any(|sector| file.unreadable.contains(&sector)) {
            return Err(io::Error::from_raw_os_error(rustix::io::Errno::IO.raw_os_error()));
        }
        buffer[..to - from].copy_from_slice(&file.bytes[from..to]);
        Ok(to - from)
    }

    fn write_at(&self, parts: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        assert!(self.writable, "{} was opened to be read", self.path.display());
        self.switch();
        let mut state = self.state()?;
        state.step()?;
        let wanted: Vec<u8> = parts.iter().flat_map(|part| part.iter().copied()).collect();
        let full = state.odds.full;
        if state.happens(full) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        // Sometimes a write accepts less than it was given.
        let taken = if state.rng.u8(0..8) == 0 { state.rng.usize(1..=wanted.len()) } else { wanted.len() };
        let (from, to) = (offset as usize, offset as usize + taken);
        let file = state.file(self.inode)?;
        let len = file.bytes.len().max(to);
        file.bytes.resize(len, 0);
        file.bytes[from..to].copy_from_slice(&wanted[..taken]);
        let sectors = Contents::sectors(from..to);
        file.dirty.extend(sectors.clone());
        for sector in sectors.clone() {
            file.unreadable.remove(&sector);
        }
        let odds = state.odds;
        let (lost, misdirected) = (state.happens(odds.lost_write), state.happens(odds.misdirected_write));
        if lost || misdirected {
            let sector = state.rng.usize(sectors);
            let file = state.file(self.inode)?;
            let end = ((sector + 1) * SECTOR).min(file.bytes.len());
            let bytes = file.bytes[sector * SECTOR..end].to_vec();
            file.durable.resize(file.durable.len().max(end), 0);
            file.dirty.remove(&sector);
            state.silent.push(SilentFault { path: self.path.clone(), sector });
            if misdirected && let Some((path, inode, elsewhere)) = state.some_sector(&|_| true) {
                let file = state.file(inode)?;
                let at = elsewhere * SECTOR;
                let len = bytes.len().min(file.durable.len() - at);
                file.durable[at..at + len].copy_from_slice(&bytes[..len]);
                state.silent.push(SilentFault { path, sector: elsewhere });
            }
        }
        state.write_back(self.inode);
        Ok(taken)
    }

    fn sync(&self) -> io::Result<()> {
        self.switch();
        let mut state = self.state()?;
        state.step()?;
        let fails = state.odds.sync_fails;
        let fails = state.happens(fails);
        let mut rng = state.rng.fork();
        let file = state.file(self.inode)?;
        for sector in std::mem::take(&mut file.dirty) {
            if !fails || rng.bool() {
                file.persist(sector);
            }
        }
        if fails {
            return Err(io::Error::other("the disk is broken"));
        }
        let len = file.bytes.len();
        file.durable.resize(len, 0);
        Ok(())
    }

    fn bytes(&self) -> io::Result<u64> {
        Ok(self.state()?.file(self.inode)?.bytes.len() as u64)
    }
}

//! A replica's data directory, and the file in it that names its owner.
//!
//! ```text
//! DIR/LOCK        held by the running replica
//! DIR/identity    cluster, replica, birth, how many times it was started
//! DIR/group       the group that the log begins with, and who is a member now (see group.rs)
//! DIR/lives       the nonces of its lives, and how far back their memory goes (see lives.rs)
//! DIR/peers       who the other replicas were when they were last seen (see peer_book.rs)
//! DIR/wal/        the write-ahead log, or a link to the directory where it is
//! DIR/snapshots/  snapshots of the state machine
//! DIR/groups/N/   group and snapshots/ of the groups that share the log, from the second one, 1, on
//! ```

use std::{
    fmt, fs, io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;
use synod_wire::{ClusterId, Format, GroupId, Groups, INCARNATION_MAX, Incarnation, ReplicaId};

use crate::{
    Durability, StorageError,
    disk::{Disk, RealDisk, beside, create_dir, folder_of, sync_dir, sync_way_to, the_disk},
    fields::Fields,
    group, lives,
    lock::DirLock,
    replacement::refuse_unfinished,
    wal::state::{LogState, Previous},
};

pub(crate) const FILE_NAME: &str = "identity";
const TITLE: &str = "synod data directory";
pub(crate) const FORMAT: Format = Format::first(3);
const WAL: &str = "wal";

/// The owner of a data directory, and which of its lives this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// The cluster. Files of another cluster are refused.
    pub cluster: ClusterId,
    /// The replica. Files of another replica are refused.
    pub replica: ReplicaId,
    /// A random number, drawn when the data directory was made. Files of another directory are refused. Other
    /// replicas tell by it whether a replica that comes back still has its data.
    pub birth: u64,
    /// How many times the replica was started, this time included.
    pub incarnation: Incarnation,
}

impl Identity {
    /// Whether both are the same replica of the same cluster with the same data, in any lives.
    #[must_use]
    pub fn is_same_replica(&self, other: &Identity) -> bool {
        (self.cluster, self.replica, self.birth) == (other.cluster, other.replica, other.birth)
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "replica {} of cluster {}, birth {:016x}", self.replica, self.cluster, self.birth)
    }
}

/// The contents of the identity file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Marker {
    /// The directory's owner, with the incarnation of the last start.
    pub identity: Identity,
    /// The replica's name at the last start.
    pub name: String,
    /// How the log was written since the last start.
    pub durability: Durability,
    /// The groups that share the log.
    pub groups: Groups,
}

/// A data directory that no other process can open meanwhile.
#[derive(Debug)]
pub struct DataDir {
    pub(crate) disk: Arc<dyn Disk>,
    path: PathBuf,
    identity: Identity,
    previous: Option<Marker>,
    _lock: DirLock,
}

impl DataDir {
    /// Opens the directory, or makes it if it does not exist, and counts the start. The incarnation is
    /// durable when this returns, so no two lives share one.
    ///
    /// # Errors
    /// The directory is in use, belongs to another cluster or replica, or cannot be read or written.
    pub fn open(
        path: &Path,
        cluster: ClusterId,
        replica: ReplicaId,
        name: &str,
        durability: Durability,
    ) -> Result<DataDir, StorageError> {
        DataDir::open_on(the_disk(), path, cluster, replica, name, durability)
    }

    /// The same on another disk than the one of this machine.
    ///
    /// # Errors
    /// As those of [`DataDir::open`].
    pub fn open_on(
        disk: Arc<dyn Disk>,
        path: &Path,
        cluster: ClusterId,
        replica: ReplicaId,
        name: &str,
        durability: Durability,
    ) -> Result<DataDir, StorageError> {
        DataDir::open_for_groups(disk, path, cluster, replica, name, durability, Groups::ONE)
    }

    /// The same for a replica of these groups, which share the log, and are the same at every start.
    ///
    /// # Errors
    /// As those of [`DataDir::open`]; the directory is of other groups.
    pub fn open_for_groups(
        disk: Arc<dyn Disk>,
        path: &Path,
        cluster: ClusterId,
        replica: ReplicaId,
        name: &str,
        durability: Durability,
        groups: Groups,
    ) -> Result<DataDir, StorageError> {
        refuse_unfinished(&*disk, path)?;
        refuse_etcds(&*disk, path)?;
        refuse_dangling(&*disk, path)?;
        create_dir(&*disk, path)?;
        if let Some(warning) =
            disk.permissions(path).and_then(|permissions| open_to_others(path, permissions))
        {
            tracing::warn!("{warning}");
        }
        if disk.file_bytes(&path.join(FILE_NAME)).is_err() {
            // Where the identity file exists, an earlier start has already made the way to the directory durable.
            sync_way_to(&*disk, path)?;
        }
        let lock = DirLock::take(&*disk, path)?;
        let previous = DataDir::read_on(&*disk, path)?;
        let log = LogState::read(&*disk, &wal_in(path))?;
        // If the identity file is lost, the log still knows the owner.
        let latest = previous.as_ref().map(|marker| marker.identity).or(log.identity());
        let outlived = lives::read(&*disk, path, None)?.map_or(Incarnation(0), |lives| lives.outlived);
        let lives = latest.map_or(0, |identity| identity.incarnation.0).max(outlived.0);
        if lives >= INCARNATION_MAX.0 {
            let reason =
                format!("the replica has had {lives} lives, and there are {INCARNATION_MAX} at most");
            return Err(StorageError::Malformed { path: path.to_owned(), reason });
        }
        let birth = latest.map_or_else(|| disk.secret(), |identity| identity.birth);
        let identity = Identity { cluster, replica, birth, incarnation: Incarnation(lives + 1) };
        if let Some(found) = latest.filter(|found| !found.is_same_replica(&identity)) {
            let file = if previous.is_some() {
                path.join(FILE_NAME)
            } else {
                wal_in(path).join(crate::wal::state::FILE_NAME)
            };
            return Err(StorageError::OtherIdentity {
                path: file,
                found: found.to_string(),
                expected: format!("replica {replica} of cluster {cluster}"),
            });
        }
        if let Some(found) = previous.as_ref().map(|marker| marker.groups).filter(|found| *found != groups) {
            return Err(StorageError::Groups { path: path.join(FILE_NAME), found, expected: groups });
        }
        if let Some(marker) = previous.as_ref().filter(|marker| marker.name != name) {
            tracing::warn!(was = marker.name, is = name, "the replica has a new name");
        }
        if previous.is_none() && latest.is_some() {
            tracing::warn!(%identity, "the directory is new, and has the log of a replica, as which it goes on");
        }
        let marker = Marker { identity, name: name.to_owned(), durability, groups };
        let dir = DataDir { disk, path: path.to_owned(), identity, previous, _lock: lock };
        let disk = &*dir.disk;
        if outlived > Incarnation(0) {
            dir.set_log_aside(outlived)?;
        }
        create_dir(disk, &dir.wal())?;
        create_dir(disk, &dir.snapshots())?;
        let never_begun = match log {
            Previous::None => lives == 0,
            // An earlier start of this replica wrote the file, and may have ended before it was durable.
            Previous::Read(state) => {
                state.identity.is_same_replica(&identity)
                    && state.identity.incarnation == Incarnation(0)
                    && outlived == Incarnation(0)
            }
            Previous::Unreadable(_) => false,
        };
        if never_begun {
            // The log's state file is written before the identity file. So from the second start on, a
            // missing log is known to be lost, not never begun.
            let unborn = Identity { incarnation: Incarnation(0), ..identity };
            LogState::opened(unborn, Durability::Sync, disk.boot()).write(disk, &dir.wal())?;
        }
        marker.to_fields().write(disk, &path.join(FILE_NAME), TITLE)?;
        Ok(dir)
    }

    /// Sets aside the log of a directory that was restored from a copy, since the promises made after the
    /// copy are not in it. From now on the log counts as lost.
    fn set_log_aside(&self, outlived: Incarnation) -> Result<(), StorageError> {
        let (wal, aside) =
            (self.wal(), beside(&self.wal(), &format!("outlived-{:016x}", self.disk.secret())));
        tracing::error!(
            life = outlived.0, aside = %aside.display(),
            "this data directory is a copy that a later life of the replica outlived: its log is set aside, and it \
             learns from its peers before it votes"
        );
        if self.disk.is_dir(&wal) {
            self.disk.rename(&wal, &aside).map_err(|error| StorageError::io("set aside", &wal, error))?;
            sync_dir(&*self.disk, folder_of(&wal))?;
        }
        Ok(())
    }

    /// Reads the identity file in `path` without opening or locking anything. Returns `None` if there is none.
    ///
    /// # Errors
    /// The file cannot be read or is malformed, or the directory is missing because its replacement was interrupted.
    pub fn read(path: &Path) -> Result<Option<Marker>, StorageError> {
        DataDir::read_on(&*the_disk(), path)
    }

    /// The same on another disk than the one of this machine.
    ///
    /// # Errors
    /// As those of [`DataDir::read`].
    pub fn read_on(disk: &dyn Disk, path: &Path) -> Result<Option<Marker>, StorageError> {
        refuse_unfinished(disk, path)?;
        let path = path.join(FILE_NAME);
        let malformed = |reason: String| StorageError::Malformed { path: path.clone(), reason };
        let Some(fields) = Fields::read(disk, &path)? else { return Ok(None) };
        let fields = fields.map_err(malformed)?;
        fields.check_version(&path, &FORMAT)?;
        Marker::from_fields(&fields).map(Some).map_err(malformed)
    }

    /// The owner, and its present life.
    #[must_use]
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// The contents of the identity file before this start; `None` if there was none.
    #[must_use]
    pub fn previous(&self) -> Option<&Marker> {
        self.previous.as_ref()
    }

    /// Whether this start made the directory.
    #[must_use]
    pub fn is_first_start(&self) -> bool {
        self.identity.incarnation == Incarnation(1)
    }

    /// Where the files of a group are, besides the log.
    fn home(&self, group: GroupId) -> PathBuf {
        if group == GroupId::FIRST {
            self.path.clone()
        } else {
            self.path.join("groups").join(group.0.to_string())
        }
    }

    /// The group that the replica began with and the present members, as last given to
    /// [`set_origin`](DataDir::set_origin); `None` if that was never called.
    ///
    /// # Errors
    /// The file cannot be read, is damaged, or belongs to another replica.
    pub fn origin(&self) -> Result<Option<Bytes>, StorageError> {
        self.origin_of(GroupId::FIRST)
    }

    /// The same of any group.
    ///
    /// # Errors
    /// As those of [`DataDir::origin`].
    pub fn origin_of(&self, group: GroupId) -> Result<Option<Bytes>, StorageError> {
        group::read(&*self.disk, &self.home(group), self.identity)
    }

    /// Replaces the group that the replica began with and the present members. The bytes are durable when this
    /// returns; a crash before leaves the old bytes or the new ones. Only the caller knows what they mean.
    ///
    /// # Errors
    /// There are more than [`GROUP_BYTES_MAX`](crate::GROUP_BYTES_MAX) bytes, or the file cannot be written.
    pub fn set_origin(&self, origin: &Bytes) -> Result<(), StorageError> {
        self.set_origin_of(GroupId::FIRST, origin)
    }

    /// The same of any group.
    ///
    /// # Errors
    /// As those of [`DataDir::set_origin`].
    pub fn set_origin_of(&self, group: GroupId, origin: &Bytes) -> Result<(), StorageError> {
        let home = self.home(group);
        create_dir(&*self.disk, &home)?;
        group::write(&*self.disk, &home, self.identity, origin)
    }

    /// The directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The directory of the write-ahead log.
    #[must_use]
    pub fn wal(&self) -> PathBuf {
        wal_in(&self.path)
    }

    /// Has the log of the data directory at `path`, which need not exist yet, in `log_dir`: `wal` becomes a link to it.
    /// Both directories are made. Without effect if it is so already. It does not matter to what is in the data
    /// directory whether its log is in `log_dir`: one that is missing in the directory counts as lost, and one of
    /// another replica is refused when it is opened.
    ///
    /// # Errors
    /// The log is elsewhere, its directory is gone, `log_dir` has something else in it or is where a file system is
    /// mounted, or the directories cannot be made. Nothing is made either where [`DataDir::open`] would not open the
    /// data directory for what is in it, or beside it.
    pub fn link_log(path: &Path, log_dir: &Path) -> Result<(), StorageError> {
        refuse_unfinished(&RealDisk, path)?;
        refuse_etcds(&RealDisk, path)?;
        let wal = path.join(WAL);
        let failed = |doing, path: &Path| {
            let path = path.to_owned();
            move |error| StorageError::io(doing, &path, error)
        };
        match fs::symlink_metadata(&wal) {
            Ok(_) if !is_same_place(&wal_in(path), log_dir) => {
                return Err(StorageError::LogElsewhere { wanted: log_dir.to_owned(), at: wal_in(path) });
            }
            Ok(_) => return refuse_dangling(&RealDisk, path),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                // The log of a copy that was outlived is set aside as a whole.
                if fs::canonicalize(log_dir).is_ok_and(|log_dir| DataDir::is_mount_point(&log_dir)) {
                    return Err(StorageError::LogMount { dir: log_dir.to_owned() });
                }
                let holds = fs::read_dir(log_dir).is_ok_and(|mut found| found.next().is_some());
                if holds && !log_dir.join(crate::wal::state::FILE_NAME).exists() {
                    return Err(StorageError::NoLogDir { dir: log_dir.to_owned() });
                }
                // The folder first: a link whose folder is not there is one to a file system that is not mounted.
                create_dir(&RealDisk, log_dir)?;
                create_dir(&RealDisk, path)?;
                symlink(log_dir, &wal).map_err(failed("make the link", &wal))?;
                sync_dir(&RealDisk, path)?;
            }
            Err(error) => return Err(failed("find", &wal)(error)),
        }
        Ok(())
    }

    /// The place of a log that is not where that of the data directory at `path` is anyhow, for
    /// [`link_log`](DataDir::link_log).
    ///
    /// # Errors
    /// It is elsewhere in the data directory, or the present directory cannot be found.
    pub fn log_apart(path: &Path, log_dir: &Path) -> Result<Option<PathBuf>, StorageError> {
        let absolute =
            |path: &Path| std::path::absolute(path).map_err(|error| StorageError::io("find", path, error));
        let (path, log_dir) = (absolute(path)?, absolute(log_dir)?);
        let (real_path, real_log_dir) = (resolved(&path), resolved(&log_dir));
        // Also where the first is a link to the second, which `resolved` would follow.
        if log_dir == path.join(WAL) || real_log_dir == real_path.join(WAL) {
            return Ok(None);
        }
        if real_log_dir.starts_with(&real_path) || real_path.starts_with(&real_log_dir) {
            return Err(StorageError::NoLogDir { dir: log_dir });
        }
        Ok(Some(log_dir))
    }

    /// The directory of the snapshots of the first group.
    #[must_use]
    pub fn snapshots(&self) -> PathBuf {
        self.snapshots_of(GroupId::FIRST)
    }

    /// Where the snapshots of a group live.
    #[must_use]
    pub fn snapshots_of(&self, group: GroupId) -> PathBuf {
        self.home(group).join("snapshots")
    }
}

/// A log in another place, which is not there, may be on a file system that is not mounted: an operator who forgot to
/// mount it must not lose what is there. One that is to be set aside, since a later life outlived it, may have been
/// already.
fn refuse_dangling(disk: &dyn Disk, path: &Path) -> Result<(), StorageError> {
    let log_dir = wal_in(path);
    let leads_elsewhere = log_dir != path.join(WAL);
    if leads_elsewhere && !log_dir.exists() {
        if lives::read(disk, path, None)?.is_some_and(|lives| lives.outlived > Incarnation(0)) {
            return Ok(());
        }
        return Err(StorageError::LogAway { dir: log_dir });
    }
    Ok(())
}

/// The place to which an absolute path leads, by links that exist.
fn resolved(path: &Path) -> PathBuf {
    let missing = || match (path.parent(), path.file_name()) {
        (Some(parent), Some(name)) => resolved(parent).join(name),
        _ => path.to_owned(),
    };
    fs::canonicalize(path).unwrap_or_else(|_| missing())
}

/// Whether two paths lead to one directory, or would if it existed.
fn is_same_place(one: &Path, other: &Path) -> bool {
    one == other || resolved(one) == resolved(other)
}

/// The directory of a log, which may be a link to another place ([`DataDir::link_log`]).
fn wal_in(path: &Path) -> PathBuf {
    let wal = path.join(WAL);
    match fs::read_link(&wal) {
        // One that an operator has made may be relative to the directory that it is in.
        Ok(to) => path.join(to),
        Err(_) => wal,
    }
}

impl Marker {
    fn to_fields(&self) -> Fields {
        let mut fields = Fields::default();
        fields.set_version(&FORMAT);
        fields.set("cluster", self.identity.cluster);
        fields.set("replica", self.identity.replica.0);
        fields.set("birth", format_args!("{:016x}", self.identity.birth));
        fields.set("name", &self.name);
        fields.set("incarnation", self.identity.incarnation);
        fields.set("durability", self.durability);
        // Where there is one, a program that knows no groups reads all of it.
        if self.groups.count > 1 {
            fields.set("groups", self.groups.count);
        }
        if let Some(take) = self.groups.merged {
            fields.set("merged", take);
        }
        fields
    }

    fn from_fields(fields: &Fields) -> Result<Marker, String> {
        Ok(Marker {
            identity: Identity {
                cluster: ClusterId(fields.hex("cluster")?),
                replica: ReplicaId(fields.parse("replica")?),
                birth: fields.hex("birth")?,
                incarnation: Incarnation(fields.parse("incarnation")?),
            },
            name: fields.text("name")?.to_owned(),
            durability: fields.parse("durability")?,
            groups: Groups {
                count: if fields.text("groups").is_ok() { fields.parse("groups")? } else { 1 },
                merged: if fields.text("merged").is_ok() { Some(fields.parse("merged")?) } else { None },
            },
        })
    }
}

/// An operator who puts this program in etcd's place and keeps the data directory would find the store empty.
fn refuse_etcds(disk: &dyn Disk, path: &Path) -> Result<(), StorageError> {
    let has = |file: &str| disk.file_bytes(&path.join(file)).is_ok();
    if has("member/snap/db") && !has(FILE_NAME) {
        return Err(StorageError::OfEtcd { path: path.to_owned() });
    }
    Ok(())
}

/// A warning if others than the owner may look into a data directory, as an earlier version or an operator made it.
fn open_to_others(path: &Path, permissions: u32) -> Option<String> {
    let dir = path.display();
    (permissions & 0o077 != 0).then(|| {
        format!(
            "other users of this machine may use the data directory {dir} (its permissions are {permissions:03o}), in which are \
             tokens, hashes of passwords and all keys; close it with: chmod -R go= {dir}"
        )
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::{Options, Wal, disk::RealDisk};

    #[test]
    fn a_log_may_be_in_another_place_and_is_found_there() {
        let folder = tempfile::tempdir().unwrap();
        let (path, fast) = (folder.path().join("n1"), folder.path().join("fast/n1"));
        let open = || DataDir::open(&path, ClusterId(7), ReplicaId(1), "n1", Durability::Sync).unwrap();
        let loss = |dir: &DataDir| Wal::open(&dir.wal(), dir.identity(), Options::default()).unwrap().1.loss;
        for _ in 0..2 {
            DataDir::link_log(&path, &fast).unwrap();
            let dir = open();
            assert_eq!((dir.wal(), loss(&dir)), (fast.clone(), None));
        }
        assert!(path.join("wal").join(crate::wal::state::FILE_NAME).exists());
        // It is found without being named, and another place is refused.
        assert_eq!(loss(&open()), None);
        let other = folder.path().join("other");
        let error = DataDir::link_log(&path, &other).unwrap_err();
        assert!(matches!(error, StorageError::LogElsewhere { .. }) && !other.exists(), "{error}");
        fs::rename(&fast, &other).unwrap();
        fs::remove_file(path.join("wal")).unwrap();
        DataDir::link_log(&path, &other).unwrap();
        assert_eq!(loss(&open()), None, "it was moved as the message says");
        // What is not there may be mounted later; an empty directory says that it is lost.
        fs::remove_dir_all(&other).unwrap();
        assert!(matches!(DataDir::link_log(&path, &other), Err(StorageError::LogAway { .. })));
        let error = DataDir::open(&path, ClusterId(7), ReplicaId(1), "n1", Durability::Sync).unwrap_err();
        assert!(matches!(error, StorageError::LogAway { .. }) && !other.exists(), "{error}");
        fs::create_dir(&other).unwrap();
        DataDir::link_log(&path, &other).unwrap();
        assert!(loss(&open()).is_some());
        // A link that an operator has made, relative to the data directory.
        fs::remove_file(path.join("wal")).unwrap();
        symlink("../other", path.join("wal")).unwrap();
        assert_eq!(open().wal(), path.join("../other"));
        for same in [other.clone(), path.join("../other"), folder.path().join("fast/../other")] {
            let log_dir = DataDir::log_apart(&path, &same).unwrap().unwrap();
            DataDir::link_log(&path, &log_dir).unwrap();
        }
        assert!(path.join("wal").join(crate::wal::state::FILE_NAME).exists());
        // That of a replica without the flag, and a directory of somebody else.
        let plain = folder.path().join("n2");
        drop(DataDir::open(&plain, ClusterId(7), ReplicaId(2), "n2", Durability::Sync).unwrap());
        assert!(matches!(DataDir::link_log(&plain, &fast), Err(StorageError::LogElsewhere { .. })));
        fs::create_dir_all(&fast).unwrap();
        fs::write(fast.join("0000000000000000-0000000000000000.wal"), "etcd's").unwrap();
        let new = folder.path().join("n3");
        assert!(
            matches!(DataDir::link_log(&new, &fast), Err(StorageError::NoLogDir { .. })) && !new.exists()
        );
        // A folder that cannot be made leaves no link to it.
        assert!(DataDir::link_log(&new, &fast.join("0000000000000000-0000000000000000.wal/log")).is_err());
        assert!(!new.exists());
        let mounted = DataDir::link_log(&new, Path::new("/proc"));
        assert!(matches!(mounted, Err(StorageError::LogMount { .. })) && !new.exists());
        // What would be refused without the flag is refused before anything is made.
        fs::rename(&plain, DataDir::replacement(&new)).unwrap();
        assert!(
            matches!(DataDir::link_log(&new, &other), Err(StorageError::Unfinished { .. })) && !new.exists()
        );
        let etcds = folder.path().join("etcd");
        fs::create_dir_all(etcds.join("member/snap")).unwrap();
        fs::write(etcds.join("member/snap/db"), "").unwrap();
        assert!(matches!(DataDir::link_log(&etcds, &other), Err(StorageError::OfEtcd { .. })));
        assert!(fs::symlink_metadata(etcds.join("wal")).is_err());
    }

    #[test]
    fn a_directory_that_others_may_use_is_warned_of() {
        let dir = Path::new("/var/lib/synod");
        assert_eq!(open_to_others(dir, 0o700), None);
        for permissions in [0o701, 0o710, 0o750, 0o755, 0o777] {
            let warning = open_to_others(dir, permissions).unwrap();
            assert!(warning.contains(&format!("are {permissions:o})")), "{warning}");
            assert!(warning.ends_with("chmod -R go= /var/lib/synod"), "{warning}");
        }
    }

    fn open(path: &Path, cluster: u64, replica: u64) -> Result<DataDir, StorageError> {
        DataDir::open(path, ClusterId(cluster), ReplicaId(replica), "n1", Durability::Sync)
    }

    #[test]
    fn every_start_is_another_incarnation() {
        let temporary = tempfile::tempdir().unwrap();
        let path = temporary.path().join("data").join("r1");
        let first = open(&path, 7, 1).unwrap();
        assert!(first.is_first_start());
        assert_eq!(first.identity().incarnation, Incarnation(1));
        assert!(first.wal().is_dir() && first.snapshots().is_dir());
        drop(first);
        for life in 2..5 {
            let again = open(&path, 7, 1).unwrap();
            assert!(!again.is_first_start());
            assert_eq!(again.identity().incarnation, Incarnation(life));
            assert_eq!(again.previous().unwrap().name, "n1");
        }
    }

    #[test]
    fn the_data_of_an_etcd_are_left_alone() {
        let temporary = tempfile::tempdir().unwrap();
        let path = temporary.path().join("default.etcd");
        fs::create_dir_all(path.join("member/snap")).unwrap();
        fs::write(path.join("member/snap/db"), "pages").unwrap();
        let refused = open(&path, 7, 1).unwrap_err();
        assert!(refused.to_string().contains("has the data of an etcd"), "{refused}");
        assert_eq!(fs::read_dir(&path).unwrap().count(), 1, "nothing is added");
        fs::remove_dir_all(path.join("member")).unwrap();
        open(&path, 7, 1).unwrap();
    }

    /// A disk on which the directories above one of them cannot be made durable.
    #[derive(Debug)]
    struct Foreign {
        from: PathBuf,
        errno: rustix::io::Errno,
    }

    impl Disk for Foreign {
        fn sync_dir(&self, dir: &Path) -> std::io::Result<()> {
            if dir.starts_with(&self.from) { RealDisk.sync_dir(dir) } else { Err(self.errno.into()) }
        }
    }

    #[test]
    fn only_what_is_above_the_directories_it_makes_may_be_on_a_file_system_that_knows_no_fsync() {
        use rustix::io::Errno;
        for errno in [Errno::INVAL, Errno::ROFS, Errno::ACCESS, Errno::IO] {
            for made_before in [true, false] {
                let temporary = tempfile::tempdir().unwrap();
                let from = temporary.path().join("synod");
                if made_before {
                    fs::create_dir(&from).unwrap();
                }
                let (path, disk) = (from.join("n1"), Arc::new(Foreign { from, errno }));
                let opened =
                    DataDir::open_on(disk, &path, ClusterId(7), ReplicaId(1), "n1", Durability::Sync);
                assert_eq!(opened.is_ok(), made_before && errno != Errno::IO, "{errno}, {opened:?}");
            }
        }
    }

    #[test]
    fn the_directory_of_another_replica_is_refused_and_not_counted() {
        let temporary = tempfile::tempdir().unwrap();
        drop(open(temporary.path(), 7, 1).unwrap());
        for (cluster, replica) in [(8, 1), (7, 2)] {
            let error = open(temporary.path(), cluster, replica).unwrap_err();
            assert!(matches!(error, StorageError::OtherIdentity { .. }), "{error}");
            assert!(error.to_string().contains("replica r1 of cluster 0000000000000007"), "{error}");
        }
        assert_eq!(DataDir::read(temporary.path()).unwrap().unwrap().identity.incarnation, Incarnation(1));
        // The same holds if only the log is left to name the owner.
        fs::remove_file(temporary.path().join(FILE_NAME)).unwrap();
        let error = open(temporary.path(), 7, 2).unwrap_err();
        assert!(matches!(error, StorageError::OtherIdentity { .. }), "{error}");
    }

    #[test]
    fn a_directory_is_of_one_number_of_groups_and_each_has_files_of_its_own() {
        let temporary = tempfile::tempdir().unwrap();
        let open = |groups| {
            let (cluster, me) = (ClusterId(7), ReplicaId(1));
            DataDir::open_for_groups(
                the_disk(),
                temporary.path(),
                cluster,
                me,
                "n1",
                Durability::Sync,
                groups,
            )
        };
        let merged = |count| Groups { merged: std::num::NonZeroU32::new(2), ..Groups::shards(count) };
        let dir = open(Groups::shards(3)).unwrap();
        for group in [0, 1, 2].map(GroupId) {
            assert_eq!(dir.origin_of(group).unwrap(), None);
            dir.set_origin_of(group, &Bytes::from(group.to_string())).unwrap();
        }
        drop(dir);
        for other in [Groups::ONE, Groups::shards(2), Groups::shards(4), merged(3)] {
            let error = open(other).unwrap_err().to_string();
            assert!(error.contains("is of the groups shard:3"), "{error}");
        }
        let dir = open(Groups::shards(3)).unwrap();
        assert_eq!(dir.identity().incarnation, Incarnation(2), "those that were refused are not counted");
        for group in [0, 1, 2].map(GroupId) {
            assert_eq!(dir.origin_of(group).unwrap().unwrap(), group.to_string());
        }
        assert_eq!(dir.origin().unwrap().unwrap(), "g0");
    }

    #[test]
    fn a_birth_is_as_old_as_the_directory() {
        let temporary = tempfile::tempdir().unwrap();
        let birth = open(temporary.path(), 7, 1).unwrap().identity().birth;
        assert_ne!(birth, 0);
        assert_eq!(open(temporary.path(), 7, 1).unwrap().identity().birth, birth);
        let other = tempfile::tempdir().unwrap();
        assert_ne!(open(other.path(), 7, 1).unwrap().identity().birth, birth);

        // The same id with an empty directory is another replica, and the rest of the old files does not count.
        let wal = other.path().join(WAL);
        fs::remove_dir_all(&wal).unwrap();
        fs::rename(temporary.path().join(WAL), &wal).unwrap();
        let dir = open(other.path(), 7, 1).unwrap();
        let error = Wal::open(&dir.wal(), dir.identity(), Options::default()).unwrap_err();
        assert!(matches!(error, StorageError::OtherIdentity { .. }), "{error}");
    }

    #[test]
    fn an_identity_file_without_a_birth_is_of_an_older_version() {
        let temporary = tempfile::tempdir().unwrap();
        drop(open(temporary.path(), 7, 1).unwrap());
        let mut old = Fields::default();
        for (key, value) in [("version", "1"), ("cluster", "7"), ("replica", "1"), ("incarnation", "1")] {
            old.set(key, value);
        }
        old.write(&RealDisk, &temporary.path().join(FILE_NAME), TITLE).unwrap();
        let error = open(temporary.path(), 7, 1).unwrap_err();
        assert!(
            error.to_string().contains("has format version 1; this program reads version 3 and later"),
            "{error}"
        );
    }

    #[test]
    fn two_processes_cannot_have_it_at_once() {
        let temporary = tempfile::tempdir().unwrap();
        let first = open(temporary.path(), 7, 1).unwrap();
        let error = open(temporary.path(), 7, 1).unwrap_err();
        assert!(matches!(error, StorageError::Locked { .. }), "{error}");
        drop(first);
        assert_eq!(open(temporary.path(), 7, 1).unwrap().identity().incarnation, Incarnation(2));
    }

    #[test]
    fn a_lost_identity_file_does_not_restart_the_count() {
        let temporary = tempfile::tempdir().unwrap();
        let mut birth = 0;
        for _ in 0..3 {
            let dir = open(temporary.path(), 7, 1).unwrap();
            birth = dir.identity().birth;
            drop(Wal::open(&dir.wal(), dir.identity(), Options::default()).unwrap());
        }
        fs::remove_file(temporary.path().join(FILE_NAME)).unwrap();
        let dir = open(temporary.path(), 7, 1).unwrap();
        assert_eq!((dir.identity().incarnation, dir.identity().birth), (Incarnation(4), birth));
        assert!(!dir.is_first_start() && dir.previous().is_none());
    }

    #[test]
    fn a_log_that_was_never_begun_is_not_taken_for_a_lost_one() {
        let temporary = tempfile::tempdir().unwrap();
        let loss = |dir: &DataDir| Wal::open(&dir.wal(), dir.identity(), Options::default()).unwrap().1.loss;
        drop(open(temporary.path(), 7, 1).unwrap());
        let second = open(temporary.path(), 7, 1).unwrap();
        assert_eq!(loss(&second), None);
        fs::remove_dir_all(second.wal()).unwrap();
        drop(second);
        assert_eq!(loss(&open(temporary.path(), 7, 1).unwrap()), Some(crate::Loss::LogMissing));
        // The loss stays recorded until it is made good.
        assert_eq!(loss(&open(temporary.path(), 7, 1).unwrap()), Some(crate::Loss::LogMissing));
    }

    #[test]
    fn a_damaged_identity_file_is_an_error() {
        let temporary = tempfile::tempdir().unwrap();
        drop(open(temporary.path(), 7, 1).unwrap());
        let file = temporary.path().join(FILE_NAME);
        let text = fs::read_to_string(&file).unwrap().replace("replica = 1", "replica = 2");
        fs::write(&file, text).unwrap();
        let error = open(temporary.path(), 7, 1).unwrap_err();
        assert!(matches!(error, StorageError::Malformed { .. }), "{error}");
    }
}

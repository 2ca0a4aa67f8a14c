//! A replica's data directory and the file in it that says whose it is.
//!
//! ```text
//! DIR/LOCK        held by the running replica
//! DIR/identity    cluster, replica, how many times it was started
//! DIR/wal/        the write-ahead log
//! DIR/snapshots/  snapshots of the state machine
//! ```

use std::{
    fmt,
    path::{Path, PathBuf},
};

use synod_wire::{ClusterId, Incarnation, ReplicaId};

use crate::{
    Durability, StorageError,
    disk::{Disk, RealDisk, create_dir},
    fields::Fields,
    lock::DirLock,
    wal::state::{LogState, Previous},
};

const FILE_NAME: &str = "identity";
const TITLE: &str = "synod data directory";
const VERSION: u32 = 1;
const WAL: &str = "wal";

/// Whose files they are, and in which of its lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// The cluster; files of another one are refused.
    pub cluster: ClusterId,
    /// The replica; files of another one are refused.
    pub replica: ReplicaId,
    /// How many times it was started, this time included.
    pub incarnation: Incarnation,
}

impl Identity {
    /// Whether both are the same replica of the same cluster, in whichever life.
    #[must_use]
    pub fn is_same_replica(&self, other: &Identity) -> bool {
        (self.cluster, self.replica) == (other.cluster, other.replica)
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "replica {} of cluster {}", self.replica, self.cluster)
    }
}

/// What the identity file says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Marker {
    /// Whose directory it is; the incarnation is that of the last start.
    pub identity: Identity,
    /// The replica's name at the last start.
    pub name: String,
    /// How the log was written since the last start.
    pub durability: Durability,
}

/// A data directory that this process has for itself.
#[derive(Debug)]
pub struct DataDir {
    path: PathBuf,
    identity: Identity,
    previous: Option<Marker>,
    _lock: DirLock,
}

impl DataDir {
    /// Opens the directory, or makes it if there is none, and counts the start: the incarnation is durable when
    /// this returns, so no two lives share one.
    ///
    /// # Errors
    /// The directory is in use, belongs to another cluster or replica, or can not be read or written.
    pub fn open(
        path: &Path,
        cluster: ClusterId,
        replica: ReplicaId,
        name: &str,
        durability: Durability,
    ) -> Result<DataDir, StorageError> {
        DataDir::open_on(&RealDisk, path, cluster, replica, name, durability)
    }

    pub(crate) fn open_on(
        disk: &dyn Disk,
        path: &Path,
        cluster: ClusterId,
        replica: ReplicaId,
        name: &str,
        durability: Durability,
    ) -> Result<DataDir, StorageError> {
        create_dir(disk, path)?;
        let lock = DirLock::take(path)?;
        let previous = DataDir::read(path)?;
        let log = LogState::read(&path.join(WAL))?;
        let lives = previous.as_ref().map(|marker| marker.identity.incarnation.0);
        let lives = lives.or(log.incarnation().map(|i| i.0)).unwrap_or(0);
        let identity = Identity { cluster, replica, incarnation: Incarnation(lives + 1) };
        if let Some(marker) = &previous {
            if !marker.identity.is_same_replica(&identity) {
                return Err(StorageError::OtherIdentity {
                    path: path.join(FILE_NAME),
                    found: marker.identity.to_string(),
                    expected: identity.to_string(),
                });
            }
            if marker.name != name {
                tracing::warn!(was = marker.name, is = name, "the replica has a new name");
            }
        }
        let marker = Marker { identity, name: name.to_owned(), durability };
        let dir = DataDir { path: path.to_owned(), identity, previous, _lock: lock };
        create_dir(disk, &dir.wal())?;
        create_dir(disk, &dir.snapshots())?;
        if lives == 0 && matches!(log, Previous::None) {
            // Before the marker, so that from the second start on a missing log is known to be lost, and not
            // never begun.
            let unborn = Identity { incarnation: Incarnation(0), ..identity };
            LogState::opened(unborn, Durability::Sync).write(disk, &dir.wal())?;
        }
        marker.to_fields().write(disk, &path.join(FILE_NAME), TITLE)?;
        Ok(dir)
    }

    /// What the identity file in `path` says, without opening or locking anything; `None` if there is none.
    ///
    /// # Errors
    /// The file can not be read, or is malformed.
    pub fn read(path: &Path) -> Result<Option<Marker>, StorageError> {
        let path = path.join(FILE_NAME);
        let malformed = |reason: String| StorageError::Malformed { path: path.clone(), reason };
        let Some(fields) = Fields::read(&path)? else { return Ok(None) };
        let fields = fields.map_err(malformed)?;
        let version = fields.parse("version").map_err(malformed)?;
        if version != VERSION {
            return Err(StorageError::Version { path, found: version, supported: VERSION });
        }
        Marker::from_fields(&fields).map(Some).map_err(malformed)
    }

    /// Who runs here, and in which life.
    #[must_use]
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// What the identity file said before this start; `None` if there was none.
    #[must_use]
    pub fn previous(&self) -> Option<&Marker> {
        self.previous.as_ref()
    }

    /// Whether the directory was made by this start.
    #[must_use]
    pub fn is_first_start(&self) -> bool {
        self.identity.incarnation == Incarnation(1)
    }

    /// The directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where the write-ahead log lives.
    #[must_use]
    pub fn wal(&self) -> PathBuf {
        self.path.join(WAL)
    }

    /// Where the snapshots live.
    #[must_use]
    pub fn snapshots(&self) -> PathBuf {
        self.path.join("snapshots")
    }
}

impl Marker {
    fn to_fields(&self) -> Fields {
        let mut fields = Fields::default();
        fields.set("version", VERSION);
        fields.set("cluster", self.identity.cluster);
        fields.set("replica", self.identity.replica.0);
        fields.set("name", &self.name);
        fields.set("incarnation", self.identity.incarnation);
        fields.set("durability", self.durability);
        fields
    }

    fn from_fields(fields: &Fields) -> Result<Marker, String> {
        Ok(Marker {
            identity: Identity {
                cluster: ClusterId(fields.hex("cluster")?),
                replica: ReplicaId(fields.parse("replica")?),
                incarnation: Incarnation(fields.parse("incarnation")?),
            },
            name: fields.text("name")?.to_owned(),
            durability: fields.parse("durability")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::{Options, Wal};

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
    fn the_directory_of_somebody_else_is_refused_and_not_counted() {
        let temporary = tempfile::tempdir().unwrap();
        drop(open(temporary.path(), 7, 1).unwrap());
        for (cluster, replica) in [(8, 1), (7, 2)] {
            let error = open(temporary.path(), cluster, replica).unwrap_err();
            assert!(matches!(error, StorageError::OtherIdentity { .. }), "{error}");
            assert!(error.to_string().contains("replica r1 of cluster 0000000000000007"), "{error}");
        }
        assert_eq!(DataDir::read(temporary.path()).unwrap().unwrap().identity.incarnation, Incarnation(1));
    }

    #[test]
    fn two_can_not_have_it_at_once() {
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
        for _ in 0..3 {
            let dir = open(temporary.path(), 7, 1).unwrap();
            drop(Wal::open(&dir.wal(), dir.identity(), Options::default()).unwrap());
        }
        fs::remove_file(temporary.path().join(FILE_NAME)).unwrap();
        let dir = open(temporary.path(), 7, 1).unwrap();
        assert_eq!(dir.identity().incarnation, Incarnation(4));
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
        // It stays so until it is made good.
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

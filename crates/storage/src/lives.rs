//! The file `lives`: the lives of a replica in this data directory, and how far back their memory goes.
//!
//! ```text
//! # synod lives
//! birth = 5f0c...        of the replica whose file it is
//! cluster = 00000000000000a1
//! life.4 = 91ab...       the nonce that life 4 drew
//! life.5 = 07e2...
//! began.4 = 310          the last record of the log with which life 4 began
//! began.5 = 512
//! outlived = 0           another replica has seen this life, which this directory knows nothing of; 0: none
//! replica = 1
//! since = 0              the life with which the memory begins; 0: it is whole
//! readers = 2
//! version = 3
//! checksum = 7d1c9f02
//! ```
//!
//! By the nonces other replicas recognise a directory that was restored from a copy; see [`Introduction`].
//! Such a directory is not used as it is: the next start sets the log aside, takes a number higher than that
//! of every life that any replica has seen, and learns again before it votes.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use synod_sync::{Mutex, PoisonError};
use synod_wire::{
    ClusterId, EARLIER_LIVES_MAX, EarlierLife, Format, Incarnation, Introduction, Lsn, ReplicaId, Written,
};

use crate::{DataDir, Identity, StorageError, disk::Disk, fields::Fields};

const FILE_NAME: &str = "lives";
const TITLE: &str = "synod lives";
/// Version 1 did not say which versions can read it, and version 2 did not say at which record lives began.
pub(crate) const FORMAT: Format = Format { written: Written { version: 3, readers: 2 }, ..Format::first(2) };
const NONCE: &str = "life.";
const BEGAN: &str = "began.";

/// The lives of a data directory, the present one included. Several threads may use it.
#[derive(Debug)]
pub struct Lives {
    disk: Arc<dyn Disk>,
    path: PathBuf,
    me: Identity,
    state: Mutex<State>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct State {
    nonces: BTreeMap<Incarnation, u64>,
    began: BTreeMap<Incarnation, Lsn>,
    since: Incarnation,
    pub(crate) outlived: Incarnation,
}

impl Lives {
    /// Records that the life of `dir` begins, with a nonce that no other life has. Durable when it returns.
    ///
    /// # Errors
    /// The file cannot be read or written, is malformed, or belongs to another replica.
    pub fn begin(dir: &DataDir) -> Result<Lives, StorageError> {
        let (disk, me) = (Arc::clone(&dir.disk), dir.identity());
        let mut state = read(&*disk, dir.path(), Some(me))?.unwrap_or_default();
        while state.nonces.len() > EARLIER_LIVES_MAX - 1 {
            state.nonces.pop_first();
        }
        let kept = state.nonces.keys().next().copied().unwrap_or_default();
        state.began.retain(|&life, _| life >= kept);
        state.nonces.insert(me.incarnation, disk.secret());
        if std::mem::take(&mut state.outlived) > Incarnation(0) {
            state.since = me.incarnation;
        }
        let lives = Lives { disk, path: dir.path().join(FILE_NAME), me, state: Mutex::new(state.clone()) };
        lives.write(&state)?;
        Ok(lives)
    }

    /// Records the last record of the log with which this life begins. Call it before anything is added to
    /// the log, and before any other replica learns of this life. Durable when it returns.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn begin_log(&self, last: Lsn) -> Result<(), StorageError> {
        self.change(|state| _ = state.began.insert(self.me.incarnation, last))
    }

    /// How this life introduces itself, given that records through `durable` are durable.
    #[must_use]
    pub fn introduction(&self, durable: Lsn) -> Introduction {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let incarnation = self.me.incarnation;
        let earlier = |incarnation, nonce| EarlierLife {
            incarnation,
            nonce,
            began: state.began.get(&incarnation).copied().unwrap_or(Lsn::MAX),
        };
        Introduction {
            birth: self.me.birth,
            incarnation,
            nonce: state.nonces[&incarnation],
            since: state.since,
            earlier: state.nonces.range(..incarnation).map(|(&life, &nonce)| earlier(life, nonce)).collect(),
            began: state.began.get(&incarnation).copied().unwrap_or(durable),
            durable,
        }
    }

    /// Records that this life and later ones remember nothing of those before it. Durable when it returns.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn begin_without_memory(&self) -> Result<(), StorageError> {
        self.change(|state| state.since = self.me.incarnation)
    }

    /// Records that another replica has seen `life` of this replica, which this directory knows nothing of:
    /// the directory was restored from a copy, or two processes use copies of it. The next start begins
    /// without memory, with a number higher than `life`. Durable when it returns.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn outlived_by(&self, life: Incarnation) -> Result<(), StorageError> {
        // The present life counts too, since it is over.
        self.change(|state| state.outlived = state.outlived.max(life).max(self.me.incarnation))
    }

    fn change(&self, change: impl FnOnce(&mut State)) -> Result<(), StorageError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let mut changed = state.clone();
        change(&mut changed);
        if changed != *state {
            self.write(&changed)?;
            *state = changed;
        }
        Ok(())
    }

    fn write(&self, state: &State) -> Result<(), StorageError> {
        let mut fields = Fields::default();
        fields.set_version(&FORMAT);
        fields.set("cluster", self.me.cluster);
        fields.set("replica", self.me.replica.0);
        fields.set("birth", format_args!("{:016x}", self.me.birth));
        fields.set("since", state.since);
        fields.set("outlived", state.outlived);
        for (life, nonce) in &state.nonces {
            fields.set(&format!("{NONCE}{life}"), format_args!("{nonce:016x}"));
        }
        for (life, began) in &state.began {
            fields.set(&format!("{BEGAN}{life}"), began);
        }
        fields.write(&*self.disk, &self.path, TITLE)
    }
}

/// Reads the file in a data directory; `None` if there is none. The file must belong to `me`, if that is given.
pub(crate) fn read(disk: &dyn Disk, dir: &Path, me: Option<Identity>) -> Result<Option<State>, StorageError> {
    let path = dir.join(FILE_NAME);
    let malformed = |reason: String| StorageError::Malformed { path: path.clone(), reason };
    let Some(fields) = Fields::read(disk, &path)? else { return Ok(None) };
    let fields = fields.map_err(malformed)?;
    fields.check_version(&path, &FORMAT)?;
    let (owner, state) = parse(&fields).map_err(malformed)?;
    if let Some(me) = me.filter(|me| !me.is_same_replica(&owner)) {
        let (found, expected) = (owner.to_string(), me.to_string());
        return Err(StorageError::OtherIdentity { path, found, expected });
    }
    Ok(Some(state))
}

fn parse(fields: &Fields) -> Result<(Identity, State), String> {
    let number = |prefix: &str, life: &str| {
        let malformed = |_| format!("\"{prefix}{life}\" does not end in the number of a life");
        Ok::<_, String>(Incarnation(life.parse().map_err(malformed)?))
    };
    let nonce = |(life, _)| Ok((number(NONCE, life)?, fields.hex(&format!("{NONCE}{life}"))?));
    let began = |(life, _)| Ok((number(BEGAN, life)?, Lsn(fields.parse(&format!("{BEGAN}{life}"))?)));
    let owner = Identity {
        cluster: ClusterId(fields.hex("cluster")?),
        replica: ReplicaId(fields.parse("replica")?),
        birth: fields.hex("birth")?,
        incarnation: Incarnation(0),
    };
    let state = State {
        nonces: fields.with_prefix(NONCE).map(nonce).collect::<Result<_, String>>()?,
        began: fields.with_prefix(BEGAN).map(began).collect::<Result<_, String>>()?,
        since: Incarnation(fields.parse("since")?),
        outlived: Incarnation(fields.parse("outlived")?),
    };
    Ok((owner, state))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use synod_wire::Acquaintance;

    use super::*;
    use crate::{Durability, Loss, Options, Wal};

    fn open(path: &Path) -> (DataDir, Lives) {
        let dir = DataDir::open(path, ClusterId(7), ReplicaId(1), "n1", Durability::Sync).unwrap();
        let lives = Lives::begin(&dir).unwrap();
        (dir, lives)
    }

    fn copy(from: &Path, to: &Path) {
        fs::create_dir_all(to).unwrap();
        for entry in fs::read_dir(from).unwrap() {
            let path = entry.unwrap().path();
            let target = to.join(path.file_name().unwrap());
            if path.is_dir() { copy(&path, &target) } else { _ = fs::copy(&path, &target).unwrap() }
        }
    }

    #[test]
    fn each_life_names_those_before_it() {
        let temporary = tempfile::tempdir().unwrap();
        let mut known: Option<Acquaintance> = None;
        let mut nonces = Vec::new();
        for life in 1..=EARLIER_LIVES_MAX as u64 + 3 {
            let (_dir, lives) = open(temporary.path());
            lives.begin_log(Lsn(life)).unwrap();
            let shown = lives.introduction(Lsn(life));
            assert_eq!((shown.incarnation, shown.since), (Incarnation(life), Incarnation(0)));
            let last: Vec<_> = shown.earlier.iter().map(|earlier| earlier.nonce).collect();
            assert!(shown.earlier.iter().all(|earlier| earlier.began == Lsn(earlier.incarnation.0)));
            assert!(nonces.ends_with(&last) && last.len() == nonces.len().min(EARLIER_LIVES_MAX - 1));
            nonces.push(shown.nonce);
            known = Some(known.map_or(Acquaintance::first(&shown), |known| known.meet(&shown).unwrap()));
        }
        let mut distinct = nonces.clone();
        distinct.sort_unstable();
        distinct.dedup();
        assert_eq!(distinct.len(), nonces.len());
    }

    #[test]
    fn a_copy_is_found_out_and_begins_without_memory() {
        let temporary = tempfile::tempdir().unwrap();
        let (data, backup) = (temporary.path().join("data"), temporary.path().join("backup"));
        drop(open(&data));
        copy(&data, &backup);
        let (dir, lives) = open(&data);
        let known = Acquaintance::first(&lives.introduction(Lsn(9)));
        drop((dir, lives));

        let (dir, lives) = open(&backup);
        let stranger = known.meet(&lives.introduction(Lsn(9))).unwrap_err();
        assert_eq!(stranger.mismatch, synod_wire::Mismatch::Copied);
        drop(Wal::open(&dir.wal(), dir.identity(), Options::default()).unwrap());
        lives.outlived_by(Incarnation(7)).unwrap();
        drop((dir, lives));

        let (dir, lives) = open(&backup);
        let shown = lives.introduction(Lsn(0));
        assert_eq!((shown.incarnation, shown.since), (Incarnation(8), Incarnation(8)));
        assert!(known.meet(&shown).is_ok());
        let (_, found) = Wal::open(&dir.wal(), dir.identity(), Options::default()).unwrap();
        assert_eq!(found.loss, Some(Loss::LogMissing));
        drop((dir, lives));
        // The log is set aside only once.
        let (dir, lives) = open(&backup);
        let shown = lives.introduction(Lsn(0));
        assert_eq!((shown.incarnation, shown.since), (Incarnation(9), Incarnation(8)));
        let aside = |name: &str| name.starts_with("wal.outlived");
        let names = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name());
        assert_eq!(names.filter(|name| aside(&name.to_string_lossy())).count(), 1);
    }

    #[test]
    fn a_log_apart_that_was_outlived_is_lost_also_if_the_process_ended_while_it_was_set_aside() {
        let temporary = tempfile::tempdir().unwrap();
        let (data, apart) = (temporary.path().join("data"), temporary.path().join("fast/log"));
        DataDir::link_log(&data, &apart).unwrap();
        let (dir, lives) = open(&data);
        drop(Wal::open(&dir.wal(), dir.identity(), Options::default()).unwrap());
        lives.outlived_by(Incarnation(7)).unwrap();
        drop((dir, lives));
        fs::rename(&apart, temporary.path().join("fast/log.outlived")).unwrap();
        DataDir::link_log(&data, &apart).unwrap();
        let (dir, _lives) = open(&data);
        let (_, found) = Wal::open(&dir.wal(), dir.identity(), Options::default()).unwrap();
        assert_eq!((dir.wal(), found.loss), (apart, Some(Loss::LogMissing)));
    }

    #[test]
    fn a_copy_that_wrote_before_it_met_anybody_is_found_out() {
        let temporary = tempfile::tempdir().unwrap();
        let (dir, lives) = open(temporary.path());
        lives.begin_log(Lsn(3)).unwrap();
        let known = Acquaintance::first(&lives.introduction(Lsn(9)));
        drop((dir, lives));
        // The log was put back to record 8, and two lives have written since.
        for (began, durable) in [(8, 10), (10, 12)] {
            let (_dir, lives) = open(temporary.path());
            lives.begin_log(Lsn(began)).unwrap();
            let stranger = known.meet(&lives.introduction(Lsn(durable))).unwrap_err();
            assert_eq!(stranger.mismatch, synod_wire::Mismatch::Shorter);
        }
    }

    #[test]
    fn the_file_of_another_replica_and_a_damaged_one_are_refused() {
        let temporary = tempfile::tempdir().unwrap();
        let (dir, lives) = open(temporary.path());
        lives.begin_without_memory().unwrap();
        let other = Identity { birth: 1, ..dir.identity() };
        let error = read(&*dir.disk, dir.path(), Some(other)).unwrap_err();
        assert!(matches!(error, StorageError::OtherIdentity { .. }));
        let file = dir.path().join(FILE_NAME);
        fs::write(&file, fs::read_to_string(&file).unwrap().replace("since = 1", "since = 0")).unwrap();
        assert!(matches!(read(&*dir.disk, dir.path(), None), Err(StorageError::Malformed { .. })));
    }
}

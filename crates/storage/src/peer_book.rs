//! `peers`: which birth each other replica showed when it was first seen.
//!
//! ```text
//! # synod peers
//! birth = 5f0c...        of this replica itself, whose book it is
//! birth.2 = 91ab...      of replica 2
//! cluster = 00000000000000a1
//! replica = 1
//! readers = 2
//! version = 2
//! checksum = 7d1c9f02
//! ```
//!
//! A replica that lost its data forgot what it promised, and must not take part under its old id. It cannot know
//! that; the others can, if they remember. So a birth is durable here before it is recognised for the first time.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use synod_sync::{Mutex, PoisonError};
use synod_wire::{ClusterId, Format, Incarnation, ReplicaId};

use crate::{DataDir, Identity, StorageError, disk::Disk, fields::Fields};

const FILE_NAME: &str = "peers";
const TITLE: &str = "synod peers";
const FORMAT: Format = Format::first(2);
const PREFIX: &str = "birth.";

/// The births of other replicas. Usable from several threads.
///
/// It is as large as the set of ids that it is asked about and not told to forget, so it is to be asked about
/// members only.
#[derive(Debug)]
pub struct PeerBook {
    disk: Arc<dyn Disk>,
    path: PathBuf,
    me: Identity,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    births: BTreeMap<ReplicaId, u64>,
    /// What the first failed change failed with. Nobody knows what the file says now, so nothing new is promised any
    /// more; what was durable before still is.
    failed: Option<StorageError>,
}

impl PeerBook {
    /// Reads the book of a data directory; it is empty if there is none.
    ///
    /// # Errors
    /// The file cannot be read, is malformed, or belongs to another replica.
    pub fn open(dir: &DataDir) -> Result<PeerBook, StorageError> {
        PeerBook::open_on(Arc::clone(&dir.disk), dir.path(), dir.identity())
    }

    fn open_on(disk: Arc<dyn Disk>, dir: &Path, me: Identity) -> Result<PeerBook, StorageError> {
        let path = dir.join(FILE_NAME);
        let births = read(&*disk, &path, me)?;
        Ok(PeerBook { disk, path, me, state: Mutex::new(State { births, failed: None }) })
    }

    /// Whether the replica `id`, which shows `birth`, is the one that was seen first under this id. If none was, it
    /// is this one from now on, durably before this returns; later calls touch no file. Blocks for the disk.
    ///
    /// # Errors
    /// The book could not be written, now or earlier. Then nobody new is recognised before a restart, unless only room was
    /// missing; those who are known still are.
    pub fn recognise(&self, id: ReplicaId, birth: u64) -> Result<bool, StorageError> {
        self.with_births(|births| match births.get(&id) {
            Some(known) => (*known == birth, None),
            None => {
                let mut births = births.clone();
                births.insert(id, birth);
                (true, Some(births))
            }
        })
    }

    /// Forgets all replicas but `members`, so that the id of one that was removed can be given to another. Durable
    /// when it returns.
    ///
    /// # Errors
    /// As those of [`recognise`](PeerBook::recognise).
    pub fn forget_all_but(&self, members: &[ReplicaId]) -> Result<(), StorageError> {
        self.with_births(|births| {
            let mut rest = births.clone();
            rest.retain(|id, _| members.contains(id));
            let changed = rest.len() != births.len();
            ((), changed.then_some(rest))
        })
    }

    /// The births that are known.
    #[must_use]
    pub fn births(&self) -> BTreeMap<ReplicaId, u64> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).births.clone()
    }

    /// Looks at the births, and replaces them if `look` returns others. One at a time, so that no two births of a
    /// replica are both the first.
    fn with_births<T>(
        &self,
        look: impl FnOnce(&BTreeMap<ReplicaId, u64>) -> (T, Option<BTreeMap<ReplicaId, u64>>),
    ) -> Result<T, StorageError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (result, changed) = look(&state.births);
        if let Some(births) = changed {
            if let Some(error) = &state.failed {
                return Err(error.clone());
            }
            if let Err(error) = write(&*self.disk, &self.path, self.me, &births) {
                // Where there was no room there may be some later; another write takes another file.
                state.failed =
                    Some(error.clone()).filter(|error| !matches!(error, StorageError::Full { .. }));
                return Err(error);
            }
            state.births = births;
        }
        Ok(result)
    }
}

fn write(
    disk: &dyn Disk,
    path: &Path,
    me: Identity,
    births: &BTreeMap<ReplicaId, u64>,
) -> Result<(), StorageError> {
    let mut fields = Fields::default();
    fields.set_version(&FORMAT);
    fields.set("cluster", me.cluster);
    fields.set("replica", me.replica.0);
    fields.set("birth", format_args!("{:016x}", me.birth));
    for (id, birth) in births {
        fields.set(&format!("{PREFIX}{}", id.0), format_args!("{birth:016x}"));
    }
    fields.write(disk, path, TITLE)
}

fn read(disk: &dyn Disk, path: &Path, me: Identity) -> Result<BTreeMap<ReplicaId, u64>, StorageError> {
    let malformed = |reason: String| StorageError::Malformed { path: path.to_owned(), reason };
    let Some(fields) = Fields::read(disk, path)? else { return Ok(BTreeMap::new()) };
    let fields = fields.map_err(malformed)?;
    fields.check_version(path, &FORMAT)?;
    let owner = owner(&fields).map_err(malformed)?;
    if !owner.is_same_replica(&me) {
        let (found, expected) = (owner.to_string(), me.to_string());
        return Err(StorageError::OtherIdentity { path: path.to_owned(), found, expected });
    }
    let birth = |(id, _): (&str, &str)| {
        let key = format!("{PREFIX}{id}");
        let id = id.parse().map_err(|_| format!("\"{key}\" does not end in the id of a replica"))?;
        Ok((ReplicaId(id), fields.hex(&key)?))
    };
    fields.with_prefix(PREFIX).map(birth).collect::<Result<_, String>>().map_err(malformed)
}

fn owner(fields: &Fields) -> Result<Identity, String> {
    Ok(Identity {
        cluster: ClusterId(fields.hex("cluster")?),
        replica: ReplicaId(fields.parse("replica")?),
        birth: fields.hex("birth")?,
        incarnation: Incarnation(0),
    })
}

#[cfg(test)]
mod tests {
    use std::{fs, thread};

    use super::*;
    use crate::{
        disk::{RealDisk, crash::for_every_crash},
        faulty::{FaultyDisk, Odds},
    };

    const ME: Identity =
        Identity { cluster: ClusterId(7), replica: ReplicaId(1), birth: 9, incarnation: Incarnation(1) };
    const TWO: ReplicaId = ReplicaId(2);
    const THREE: ReplicaId = ReplicaId(3);

    fn open(dir: &Path) -> PeerBook {
        PeerBook::open_on(Arc::new(RealDisk), dir, ME).unwrap()
    }

    #[test]
    fn the_first_birth_of_a_replica_is_the_only_one() {
        let dir = tempfile::tempdir().unwrap();
        let mut book = open(dir.path());
        for _ in 0..2 {
            assert!(book.recognise(TWO, 20).unwrap());
            assert!(!book.recognise(TWO, 21).unwrap());
            assert!(book.recognise(THREE, 30).unwrap());
            assert!(!book.recognise(THREE, 20).unwrap());
            // So it is after a restart.
            book = open(dir.path());
        }
        assert_eq!(book.births(), BTreeMap::from([(TWO, 20), (THREE, 30)]));
    }

    #[test]
    fn what_is_forgotten_can_be_another() {
        let dir = tempfile::tempdir().unwrap();
        let book = open(dir.path());
        assert!(book.recognise(TWO, 20).unwrap() && book.recognise(THREE, 30).unwrap());
        book.forget_all_but(&[THREE, ReplicaId(4)]).unwrap();
        drop(book);
        let book = open(dir.path());
        assert!(book.recognise(TWO, 21).unwrap());
        assert!(!book.recognise(THREE, 31).unwrap());
    }

    #[test]
    fn of_many_at_once_one_is_the_first() {
        let dir = tempfile::tempdir().unwrap();
        let book = open(dir.path());
        let book = &book;
        let recognised: u32 = thread::scope(|scope| {
            let first = |birth| scope.spawn(move || u32::from(book.recognise(TWO, birth).unwrap()));
            let threads: Vec<_> = (0..8).map(first).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(recognised, 1);
    }

    #[test]
    fn the_book_of_somebody_else_and_a_damaged_one_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        assert!(open(dir.path()).recognise(TWO, 20).unwrap());
        let other = |me| PeerBook::open_on(Arc::new(RealDisk), dir.path(), me).unwrap_err();
        for me in [
            Identity { cluster: ClusterId(8), ..ME },
            Identity { replica: TWO, ..ME },
            Identity { birth: 10, ..ME },
        ] {
            assert!(matches!(other(me), StorageError::OtherIdentity { .. }));
        }
        let file = dir.path().join(FILE_NAME);
        let text = fs::read_to_string(&file).unwrap();
        fs::write(&file, text.replace("birth.2", "birth.4")).unwrap();
        assert!(matches!(other(ME), StorageError::Malformed { .. }));
    }

    #[test]
    fn a_full_disk_delays_who_is_new_and_nobody_else() {
        let disk = FaultyDisk::new(1);
        disk.create_dir(Path::new("/n1")).unwrap();
        let book = PeerBook::open_on(Arc::new(disk.clone()), Path::new("/n1"), ME).unwrap();
        assert!(book.recognise(TWO, 20).unwrap());
        disk.set_odds(Odds { full: 1000, ..Odds::default() });
        assert!(matches!(book.recognise(THREE, 30), Err(StorageError::Full { .. })));
        assert!(book.recognise(TWO, 20).unwrap() && !book.recognise(TWO, 21).unwrap());
        disk.set_odds(Odds::default());
        assert!(book.recognise(THREE, 31).unwrap() && !book.recognise(THREE, 30).unwrap());
    }

    #[test]
    fn after_a_crash_it_says_what_it_said() {
        let before = |dir: &Path| assert!(open(dir).recognise(TWO, 20).unwrap());
        let change = |disk: Arc<dyn Disk>, dir: &Path| {
            let book = PeerBook::open_on(disk, dir, ME).unwrap();
            let recognised = book.recognise(THREE, 30);
            if recognised.is_err() {
                // A disk that failed once is not trusted any more, even if it seems to work again. Nor is it needed.
                assert!(book.recognise(THREE, 31).is_err());
                assert!(book.recognise(TWO, 20).unwrap() && !book.recognise(TWO, 21).unwrap());
                assert!(book.forget_all_but(&[]).is_err());
            }
            recognised.is_ok()
        };
        let seen = for_every_crash(before, change, |dir, finished| {
            let book = open(dir);
            assert!(!book.recognise(TWO, 21).unwrap() && book.recognise(TWO, 20).unwrap());
            let known = book.births().contains_key(&THREE);
            assert!(known || !finished, "what was promised is kept");
            assert_eq!(book.recognise(THREE, 31).unwrap(), !known);
            known
        });
        assert!(seen.contains(&true) && seen.contains(&false));
    }
}

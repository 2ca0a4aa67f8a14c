//! The file `peers`: the births and lives of the other replicas as they were last seen.
//!
//! ```text
//! # synod peers
//! birth = 5f0c...        of this replica itself, whose book it is
//! birth.2 = 91ab...      of replica 2
//! cluster = 00000000000000a1
//! decided = 0 700 5e01.. this replica itself knew slots through 700 to be decided, with this fingerprint, which covers
//!                        the slots after slot 0
//! earlier = 698 07e2.. 699 be13..
//!                        the fingerprints of some slots before
//! life.2 = 4 07e2... 512 replica 2 was last seen in its life 4, which drew this nonce; what it said rests on its log
//!                        through record 512, if not further
//! met = yes              every replica with which the cluster began welcomed this one once
//! replica = 1
//! readers = 3
//! version = 5
//! welcomed.2 = yes       replica 2 has welcomed this one: it takes it for the one that it knows
//! checksum = 7d1c9f02
//! ```
//!
//! A replica that lost its data forgot its promises, and must not take part under its old id; a replica whose
//! data directory was restored from a copy forgot what it promised since. Neither can know that; the others
//! can, if they remember. So a birth and a life are durable here before they are first recognised. How far a
//! life has told its log grows with every message, so it is written only from time to time
//! ([`PeerBook::heard`]) and with every later life. `docs/identity.md` explains why that is enough.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::Arc,
};

use synod_sync::{Mutex, PoisonError};
use synod_wire::{
    Acquaintance, ClusterId, Format, GroupId, Incarnation, Introduction, Lsn, ReplicaId, Slot, Stranger,
    Written,
};

use crate::{DataDir, Identity, StorageError, disk::Disk, fields::Fields};

const FILE_NAME: &str = "peers";
const TITLE: &str = "synod peers";
/// Version 1 knew births only, version 2 did not say which versions can read it, version 3 did not say what
/// was decided, version 4 had only the newest fingerprint, and version 5 had those of the first group alone.
pub(crate) const FORMAT: Format =
    Format { written: Written { version: 6, readers: 3 }, oldest: 1, ..Format::first(3) };
const BIRTH: &str = "birth.";
const LIFE: &str = "life.";
const WELCOMED: &str = "welcomed.";
const REACHED: &str = "decided";
const EARLIER: &str = "earlier";

/// What this replica remembers of the others. Several threads may use it.
///
/// It grows with the set of ids that it is asked about and not told to forget, so ask it about members only.
#[derive(Debug)]
pub struct PeerBook {
    disk: Arc<dyn Disk>,
    path: PathBuf,
    me: Identity,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    book: Book,
    /// The births that each group names. The groups are written down elsewhere, so these are not in the file.
    named: BTreeMap<GroupId, BTreeMap<ReplicaId, u64>>,
}

impl State {
    /// The birth that has the vote of a replica. A data directory is in all groups, so whichever names it is right.
    fn named(&self, id: ReplicaId) -> Option<u64> {
        self.named.values().find_map(|named| named.get(&id)).copied()
    }
}

/// What a replica knew to be decided, which its log does not say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reached {
    /// The fingerprints cover the slots after this one.
    pub since: Slot,
    /// Some decided slots in ascending order, up to the last one, each with the fingerprint of everything
    /// decided through it.
    pub sums: Vec<(Slot, u64)>,
}

/// The contents of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Book {
    peers: BTreeMap<ReplicaId, Acquaintance>,
    welcomed: BTreeSet<ReplicaId>,
    met: bool,
    reached: BTreeMap<GroupId, Reached>,
}

impl PeerBook {
    /// Reads the book of a data directory. It is empty if there is no file.
    ///
    /// # Errors
    /// The file cannot be read, is malformed, or belongs to another replica.
    pub fn open(dir: &DataDir) -> Result<PeerBook, StorageError> {
        PeerBook::open_on(Arc::clone(&dir.disk), dir.path(), dir.identity())
    }

    fn open_on(disk: Arc<dyn Disk>, dir: &Path, me: Identity) -> Result<PeerBook, StorageError> {
        let path = dir.join(FILE_NAME);
        let book = read(&*disk, &path, me)?;
        Ok(PeerBook { disk, path, me, state: Mutex::new(State { book, named: BTreeMap::new() }) })
    }

    /// From now on the vote of each of these replicas in a group belongs to this birth: another one is not met, and
    /// that one is met whatever was seen under the id before. Returns the replicas that were seen with another birth.
    pub fn expect(
        &self,
        group: GroupId,
        named: impl IntoIterator<Item = (ReplicaId, u64)>,
    ) -> Vec<ReplicaId> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.named.insert(group, named.into_iter().collect());
        let differs = |(id, seen): (&ReplicaId, &Acquaintance)| {
            state.named(*id).is_some_and(|birth| birth != seen.birth).then_some(*id)
        };
        state.book.peers.iter().filter_map(differs).collect()
    }

    /// Whether a group names births ([`expect`](PeerBook::expect)).
    #[must_use]
    pub fn expects_births(&self) -> bool {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.named.values().any(|named| !named.is_empty())
    }

    /// Meets the replica `id`, which introduces itself. If no replica was seen under this id before, and no group names
    /// its birth ([`expect`](PeerBook::expect)), it is this one from now on. A life that is met for the first time is
    /// remembered durably before this returns; later calls touch no file. `heard` is the nonce of a life of `id`, and
    /// the last record of its log on which anything rests that it has told. `welcomed` says that it has recognised this
    /// replica. The call blocks for the disk.
    ///
    /// # Errors
    /// The book could not be written. The new life is then not recognised, and may be at the next attempt;
    /// lives that are known still are. The inner error means that this is not the replica that was seen
    /// before, or that it forgot what it told.
    pub fn meet(
        &self,
        id: ReplicaId,
        who: &Introduction,
        heard: Option<(u64, Lsn)>,
        welcomed: bool,
    ) -> Result<Result<(), Stranger>, StorageError> {
        self.look_at(|state| {
            let book = &state.book;
            let known = book.peers.get(&id).copied();
            let known = known.map(|known| match heard {
                Some((nonce, told)) if nonce == known.nonce => known.heard(told),
                _ => known,
            });
            let met = match Acquaintance::judge(known.as_ref(), state.named(id), who) {
                Ok(met) => met,
                Err(stranger) => return (Err(stranger), None),
            };
            let is_same = |known: Acquaintance| (known.birth, known.nonce) == (met.birth, met.nonce);
            let is_known = known.is_some_and(is_same) && (!welcomed || book.welcomed.contains(&id));
            if is_known {
                return (Ok(()), None);
            }
            let mut book = book.clone();
            book.peers.insert(id, met);
            if welcomed {
                book.welcomed.insert(id);
            }
            (Ok(()), Some(book))
        })
    }

    /// Records how far lives have told their logs; each life is named by its nonce. Durable when it returns.
    /// A life that is not the latest of its replica is ignored.
    ///
    /// # Errors
    /// Those of [`meet`](PeerBook::meet).
    pub fn heard(&self, told: &[(ReplicaId, u64, Lsn)]) -> Result<(), StorageError> {
        self.look(|book| {
            let mut next = book.clone();
            for &(id, nonce, lsn) in told {
                if let Some(known) = next.peers.get_mut(&id).filter(|known| known.nonce == nonce) {
                    *known = known.heard(lsn);
                }
            }
            let changed = next != *book;
            ((), changed.then_some(next))
        })
    }

    /// Whether each of these replicas has welcomed this one once. Having seen them is not enough: a replica
    /// that lost its data sees the others, and those that remember it do not welcome it. A positive answer is
    /// remembered, also for replicas that are forgotten later.
    ///
    /// # Errors
    /// Those of [`meet`](PeerBook::meet).
    pub fn has_met(&self, all: &[ReplicaId]) -> Result<bool, StorageError> {
        self.look(|book| {
            if book.met || !all.iter().all(|id| book.welcomed.contains(id)) {
                return (book.met, None);
            }
            (true, Some(Book { met: true, ..book.clone() }))
        })
    }

    /// Records that all replicas count as having welcomed this one, since an operator says that it need not
    /// wait for them.
    ///
    /// # Errors
    /// Those of [`meet`](PeerBook::meet).
    pub fn wait_for_nobody(&self) -> Result<(), StorageError> {
        self.look(|book| ((), (!book.met).then(|| Book { met: true, ..book.clone() })))
    }

    /// Forgets all replicas but those for which `keeps` is true, so that the id of a removed replica can be
    /// given to another. Durable when it returns. The condition is evaluated on the present contents of the
    /// book: a list of ids made earlier would forget a replica that another thread has met since.
    ///
    /// # Errors
    /// Those of [`meet`](PeerBook::meet).
    pub fn forget_all_but(&self, keeps: impl Fn(ReplicaId) -> bool) -> Result<(), StorageError> {
        self.look(|book| {
            let mut rest = book.clone();
            rest.peers.retain(|id, _| keeps(*id));
            rest.welcomed.retain(|id| keeps(*id));
            let changed = rest != *book;
            ((), changed.then_some(rest))
        })
    }

    /// Records what this replica itself knows to be decided in groups. Durable when it returns. What was recorded of
    /// other groups stays.
    ///
    /// # Errors
    /// Those of [`meet`](PeerBook::meet).
    pub fn reach(&self, told: impl IntoIterator<Item = (GroupId, Reached)>) -> Result<(), StorageError> {
        self.look(|book| {
            let mut next = book.clone();
            next.reached.extend(told);
            let changed = next != *book;
            ((), changed.then_some(next))
        })
    }

    /// Forgets what was recorded as decided, since nothing of it counts any more. Durable when it returns.
    ///
    /// # Errors
    /// Those of [`meet`](PeerBook::meet).
    pub fn forget_reached(&self) -> Result<(), StorageError> {
        self.look(|book| {
            let known = !book.reached.is_empty();
            ((), known.then(|| Book { reached: BTreeMap::new(), ..book.clone() }))
        })
    }

    /// What this replica knew to be decided in each group, as far as it was recorded.
    #[must_use]
    pub fn reached(&self) -> BTreeMap<GroupId, Reached> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).book.reached.clone()
    }

    /// The births that are known, by replica.
    #[must_use]
    pub fn births(&self) -> BTreeMap<ReplicaId, u64> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.book.peers.iter().map(|(&id, known)| (id, known.birth)).collect()
    }

    /// The replicas that have welcomed this one.
    #[must_use]
    pub fn welcomed(&self) -> BTreeSet<ReplicaId> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).book.welcomed.clone()
    }

    /// Shows the book to `look`, and replaces it if that returns another. Calls take turns, so that no two
    /// births of a replica are both the first.
    fn look<T>(&self, look: impl FnOnce(&Book) -> (T, Option<Book>)) -> Result<T, StorageError> {
        self.look_at(|state| look(&state.book))
    }

    fn look_at<T>(&self, look: impl FnOnce(&State) -> (T, Option<Book>)) -> Result<T, StorageError> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (result, changed) = look(&state);
        if let Some(book) = changed {
            // If writing fails, the file may hold either book, and nothing of the new one was promised. The
            // next change writes the whole book to another file, so it may use a disk that failed once.
            write(&*self.disk, &self.path, self.me, &book)?;
            state.book = book;
        }
        Ok(result)
    }
}

fn write(disk: &dyn Disk, path: &Path, me: Identity, book: &Book) -> Result<(), StorageError> {
    let mut fields = Fields::default();
    fields.set_version(&FORMAT);
    fields.set("cluster", me.cluster);
    fields.set("replica", me.replica.0);
    fields.set("birth", format_args!("{:016x}", me.birth));
    fields.set("met", if book.met { "yes" } else { "no" });
    for (group, Reached { since, sums }) in &book.reached {
        let Some(((slot, fingerprint), earlier)) = sums.split_last() else { continue };
        fields.set(&of(REACHED, *group), format_args!("{since} {slot} {fingerprint:016x}"));
        let earlier: Vec<String> = earlier.iter().map(|(slot, sum)| format!("{slot} {sum:016x}")).collect();
        fields.set(&of(EARLIER, *group), earlier.join(" "));
    }
    for (id, known) in &book.peers {
        let Acquaintance { birth, incarnation, nonce, told } = known;
        fields.set(&format!("{BIRTH}{}", id.0), format_args!("{birth:016x}"));
        fields.set(&format!("{LIFE}{}", id.0), format_args!("{incarnation} {nonce:016x} {told}"));
    }
    for id in &book.welcomed {
        fields.set(&format!("{WELCOMED}{}", id.0), "yes");
    }
    fields.write(disk, path, TITLE)
}

/// The key of what is said of a group. That of the first one is what it was when there was no other.
fn of(key: &str, group: GroupId) -> String {
    if group == GroupId::FIRST { key.to_owned() } else { format!("{key}.{}", group.0) }
}

fn read(disk: &dyn Disk, path: &Path, me: Identity) -> Result<Book, StorageError> {
    let malformed = |reason: String| StorageError::Malformed { path: path.to_owned(), reason };
    let Some(fields) = Fields::read(disk, path)? else { return Ok(Book::default()) };
    let fields = fields.map_err(malformed)?;
    fields.check_version(path, &FORMAT)?;
    let owner = owner(&fields).map_err(malformed)?;
    if !owner.is_same_replica(&me) {
        let (found, expected) = (owner.to_string(), me.to_string());
        return Err(StorageError::OtherIdentity { path: path.to_owned(), found, expected });
    }
    let version = fields.parse("version").map_err(malformed)?;
    parse(&fields, version).map_err(malformed)
}

fn parse(fields: &Fields, version: u32) -> Result<Book, String> {
    let mut book = Book::default();
    for (id, _) in fields.with_prefix(BIRTH) {
        let key = format!("{BIRTH}{id}");
        let number = id.parse().map_err(|_| format!("\"{key}\" does not end in the id of a replica"))?;
        let birth = fields.hex(&key)?;
        // In a book that knows only the birth, every life is a later one.
        let mut known = Acquaintance { birth, incarnation: Incarnation(0), nonce: 0, told: Lsn::ZERO };
        if version > 1 {
            let key = format!("{LIFE}{id}");
            let text = fields.text(&key)?;
            let life = || {
                let [incarnation, nonce, told] = text.split(' ').collect::<Vec<_>>()[..] else { return None };
                let nonce = u64::from_str_radix(nonce, 16).ok()?;
                Some((Incarnation(incarnation.parse().ok()?), nonce, Lsn(told.parse().ok()?)))
            };
            (known.incarnation, known.nonce, known.told) =
                life().ok_or_else(|| format!("\"{key} = {text}\" makes no sense"))?;
        }
        book.peers.insert(ReplicaId(number), known);
        if fields.text(&format!("{WELCOMED}{id}")).is_ok() {
            book.welcomed.insert(ReplicaId(number));
        }
    }
    // A version that did not record it did not wait for the others, either.
    book.met = version == 1 || fields.text("met")? == "yes";
    let first = fields.text(REACHED).is_ok().then_some(GroupId::FIRST);
    let prefix = of(REACHED, GroupId(0)) + ".";
    let others = fields.with_prefix(&prefix);
    let others = others.map(|(number, _)| {
        let malformed = || format!("\"{REACHED}.{number}\" does not end in the number of a group");
        number.parse().map(GroupId).map_err(|_| malformed())
    });
    let groups = first.map(Ok).into_iter().chain(others).collect::<Result<Vec<_>, _>>()?;
    for group in groups {
        let (reached_key, earlier_key) = (of(REACHED, group), of(EARLIER, group));
        let text = fields.text(&reached_key)?;
        let reached = || {
            let [since, slot, fingerprint] = text.split(' ').collect::<Vec<_>>()[..] else { return None };
            Some((Slot(since.parse().ok()?), parse_sum(slot, fingerprint)?))
        };
        let malformed = |key: &str, text: &str| format!("\"{key} = {text}\" makes no sense");
        let (since, last) = reached().ok_or_else(|| malformed(&reached_key, text))?;
        let earlier = fields.text(&earlier_key).unwrap_or_default();
        let words: Vec<&str> = earlier.split_whitespace().collect();
        let sums = words.chunks(2).map(|pair| parse_sum(pair[0], pair.get(1)?));
        let sums: Option<Vec<_>> = sums.chain([Some(last)]).collect();
        let sums = sums.ok_or_else(|| malformed(&earlier_key, earlier))?;
        book.reached.insert(group, Reached { since, sums });
    }
    Ok(book)
}

fn parse_sum(slot: &str, fingerprint: &str) -> Option<(Slot, u64)> {
    Some((Slot(slot.parse().ok()?), u64::from_str_radix(fingerprint, 16).ok()?))
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

    use synod_wire::{EarlierLife, Mismatch};

    use super::*;
    use crate::disk::{RealDisk, crash::for_every_crash};

    const ME: Identity =
        Identity { cluster: ClusterId(7), replica: ReplicaId(1), birth: 9, incarnation: Incarnation(1) };
    const TWO: ReplicaId = ReplicaId(2);
    const THREE: ReplicaId = ReplicaId(3);

    fn open(dir: &Path) -> PeerBook {
        PeerBook::open_on(Arc::new(RealDisk), dir, ME).unwrap()
    }

    /// The first life of a replica.
    fn born(birth: u64) -> Introduction {
        Introduction { birth, incarnation: Incarnation(1), nonce: birth + 1000, ..Introduction::default() }
    }

    fn recognises(book: &PeerBook, id: ReplicaId, birth: u64) -> bool {
        book.meet(id, &born(birth), None, true).unwrap().is_ok()
    }

    #[test]
    fn the_birth_that_a_group_names_is_met_whatever_was_seen_first() {
        let folder = tempfile::tempdir().unwrap();
        let book = open(folder.path());
        assert!(recognises(&book, TWO, 20) && recognises(&book, THREE, 30));
        assert!(!book.expects_births());
        assert_eq!(book.expect(GroupId(1), [(TWO, 21), (THREE, 30)]), [TWO]);
        assert!(book.expects_births());
        assert!(!recognises(&book, TWO, 20) && recognises(&book, TWO, 21) && !recognises(&book, TWO, 20));
        assert!(recognises(&book, THREE, 30) && !recognises(&book, THREE, 31));
        assert_eq!(book.expect(GroupId(1), [(TWO, 21)]), []);
        // What was met in the end is in the file.
        assert_eq!(open(folder.path()).births(), BTreeMap::from([(TWO, 21), (THREE, 30)]));
    }

    #[test]
    fn the_first_birth_of_a_replica_is_the_only_one() {
        let dir = tempfile::tempdir().unwrap();
        let mut book = open(dir.path());
        for _ in 0..2 {
            assert!(recognises(&book, TWO, 20));
            assert!(!recognises(&book, TWO, 21));
            assert!(recognises(&book, THREE, 30));
            assert!(!recognises(&book, THREE, 20));
            // It is the same after a restart.
            book = open(dir.path());
        }
        assert_eq!(book.births(), BTreeMap::from([(TWO, 20), (THREE, 30)]));
    }

    #[test]
    fn what_was_decided_is_remembered_until_it_does_not_count_any_more() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(open(dir.path()).reached(), BTreeMap::new());
        let other = (GroupId(12), Reached { since: Slot(0), sums: vec![(Slot(9), 7)] });
        open(dir.path()).reach([other.clone()]).unwrap();
        for sums in [vec![(Slot(70), 0x5e01)], vec![(Slot(68), 1), (Slot(69), u64::MAX), (Slot(70), 0x5e01)]]
        {
            let reached = Reached { since: Slot(3), sums };
            let all = BTreeMap::from([(GroupId::FIRST, reached.clone()), other.clone()]);
            open(dir.path()).reach([(GroupId::FIRST, reached)]).unwrap();
            assert_eq!(open(dir.path()).reached(), all);
            assert!(recognises(&open(dir.path()), TWO, 20));
            assert_eq!(open(dir.path()).reached(), all);
        }
        open(dir.path()).forget_reached().unwrap();
        assert_eq!(open(dir.path()).reached(), BTreeMap::new());
    }

    #[test]
    fn a_life_is_remembered_with_how_far_it_told() {
        let dir = tempfile::tempdir().unwrap();
        let book = open(dir.path());
        assert!(recognises(&book, TWO, 20));
        let nonce = born(20).nonce;
        book.heard(&[(TWO, nonce, Lsn(40)), (TWO, 5, Lsn(900)), (THREE, nonce, Lsn(7))]).unwrap();
        drop(book);
        let book = open(dir.path());
        let second = |durable| Introduction {
            incarnation: Incarnation(2),
            nonce: 77,
            earlier: vec![EarlierLife { incarnation: Incarnation(1), nonce, began: Lsn(0) }],
            began: Lsn(durable),
            durable: Lsn(durable),
            ..born(20)
        };
        let known = Acquaintance { birth: 20, incarnation: Incarnation(1), nonce, told: Lsn(40) };
        let mismatch = Mismatch::Shorter;
        assert_eq!(book.meet(TWO, &second(39), None, false).unwrap(), Err(Stranger { mismatch, known }));
        // What that life told counts even if it was not written.
        assert!(book.meet(TWO, &second(40), Some((nonce, Lsn(41))), false).unwrap().is_err());
        assert!(book.meet(TWO, &second(40), Some((nonce + 1, Lsn(41))), false).unwrap().is_ok());
        let copied = Introduction { nonce: 78, ..second(90) };
        for _ in 0..2 {
            // It is the same after a restart.
            let book = open(dir.path());
            let stranger = book.meet(TWO, &copied, None, false).unwrap().unwrap_err();
            assert_eq!(stranger.mismatch, Mismatch::Copied);
        }
    }

    #[test]
    fn whether_all_were_met_is_remembered_when_some_are_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let book = open(dir.path());
        assert!(recognises(&book, TWO, 20));
        assert!(!book.has_met(&[TWO, THREE]).unwrap());
        assert!(book.meet(THREE, &born(30), None, false).unwrap().is_ok());
        assert!(
            !book.has_met(&[TWO, THREE]).unwrap(),
            "it called, and nobody knows what it makes of this one"
        );
        assert!(recognises(&book, THREE, 30));
        assert_eq!(open(dir.path()).welcomed(), BTreeSet::from([TWO, THREE]));
        assert!(book.has_met(&[TWO, THREE]).unwrap());
        book.forget_all_but(|id| id == TWO).unwrap();
        let other = tempfile::tempdir().unwrap();
        open(other.path()).wait_for_nobody().unwrap();
        assert!(open(other.path()).has_met(&[TWO, THREE]).unwrap());
        assert!(open(dir.path()).has_met(&[TWO, THREE]).unwrap());
    }

    #[test]
    fn a_book_that_knew_births_only_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let mut fields = Fields::default();
        for (key, value) in
            [("version", "1"), ("cluster", "7"), ("replica", "1"), ("birth", "9"), ("birth.2", "14")]
        {
            fields.set(key, value);
        }
        fields.write(&RealDisk, &dir.path().join(FILE_NAME), TITLE).unwrap();
        let book = open(dir.path());
        assert!(!recognises(&book, TWO, 21) && recognises(&book, TWO, 20));
        assert_eq!(open(dir.path()).births(), BTreeMap::from([(TWO, 20)]));
        assert!(open(dir.path()).has_met(&[TWO, THREE]).unwrap(), "it has begun before");
    }

    #[test]
    fn what_is_forgotten_can_be_another() {
        let dir = tempfile::tempdir().unwrap();
        let book = open(dir.path());
        assert!(recognises(&book, TWO, 20) && recognises(&book, THREE, 30));
        book.forget_all_but(|id| [THREE, ReplicaId(4)].contains(&id)).unwrap();
        drop(book);
        let book = open(dir.path());
        assert!(recognises(&book, TWO, 21));
        assert!(!recognises(&book, THREE, 31));
    }

    #[test]
    fn of_many_at_once_one_is_the_first() {
        let dir = tempfile::tempdir().unwrap();
        let book = open(dir.path());
        let book = &book;
        let recognised: u32 = thread::scope(|scope| {
            let first = |birth| scope.spawn(move || u32::from(recognises(book, TWO, birth)));
            let threads: Vec<_> = (0..8).map(first).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(recognised, 1);
    }

    #[test]
    fn the_book_of_another_replica_and_a_damaged_one_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        assert!(recognises(&open(dir.path()), TWO, 20));
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
    fn after_a_crash_it_says_what_it_said() {
        let before = |dir: &Path| assert!(recognises(&open(dir), TWO, 20));
        let change = |disk: Arc<dyn Disk>, dir: &Path| {
            let book = PeerBook::open_on(disk, dir, ME).unwrap();
            let recognised = book.meet(THREE, &born(30), None, false);
            if recognised.is_err() {
                // A life that was known before needs no disk.
                assert!(book.meet(THREE, &born(31), None, false).is_err());
                assert!(recognises(&book, TWO, 20) && !recognises(&book, TWO, 21));
                assert!(book.forget_all_but(|_| false).is_err());
            }
            recognised.is_ok()
        };
        let seen = for_every_crash(before, change, |dir, finished| {
            let book = open(dir);
            assert!(!recognises(&book, TWO, 21) && recognises(&book, TWO, 20));
            let known = book.births().contains_key(&THREE);
            assert!(known || !finished, "what was promised is kept");
            assert_eq!(recognises(&book, THREE, 31), !known);
            known
        });
        assert!(seen.contains(&true) && seen.contains(&false));
    }
}

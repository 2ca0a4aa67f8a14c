//! What a snapshot holds of an executor: how far its groups are, the sessions, and the state machine. It is written
//! from a frozen state, and read at once or on another thread.

use std::{
    fmt,
    io::{self, BufReader, BufWriter, Read, Write},
};

use bytes::Bytes;
use synod_wire::{DecodeError, Format, Reader, Slot, Writer, Written};

use super::{Executor, Head};
use crate::{
    Frozen, Group, History, Install, Replaced, StateMachine, Take,
    merge::{MergeBug, has},
    session::{SessionTable, Sessions},
};

/// Of what a snapshot holds besides the state machine. Version 4 and before did not say who can read it; version 5 has
/// no fingerprints of what was decided, and version 6 no names of the batches that were. Version 8 is that of several
/// groups in one order; the snapshot of one group is written as version 7.
const FORMAT: Format = Format { oldest: WITHOUT_HISTORY, ..Format::first(8) };
pub(super) const WITHOUT_HISTORY: u32 = 5;
const WITHOUT_NAMES: u32 = 6;
const OF_ONE_GROUP: Written = Written { version: 7, readers: 7 };

/// The formats of what a snapshot holds besides the state machine.
pub const SNAPSHOT_FORMATS: &[(&str, Format)] =
    &[("of one group", Format { written: OF_ONE_GROUP, ..FORMAT }), ("of merged groups", FORMAT)];

/// Bytes that are gathered before they are given to a snapshot file.
const WRITE_BYTES: usize = 64 << 10;

/// How far the groups of a snapshot are in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Batches of the common order; grows from one snapshot to the next.
    pub order: u64,
    /// The last slot of each group.
    pub slots: Vec<Slot>,
}

impl Cut {
    /// How far the groups are in a snapshot, of which no more than that is read; `None` if it is one of a single group.
    ///
    /// # Errors
    /// Those of `snapshot`; it is none.
    pub fn read_from(snapshot: &mut dyn Read) -> io::Result<Option<Cut>> {
        Ok(Heads::read_from(&mut BufReader::new(snapshot))?.cut())
    }
}

impl<S: StateMachine> Executor<S> {
    /// Freezes state machine and sessions as they are. It runs between two commands, so nothing is encoded here, and of
    /// the session table a reference to each session is copied.
    #[must_use]
    pub fn freeze(&self) -> Box<dyn Frozen> {
        self.assert_whole();
        let mut head = Writer::new();
        let written = match self.take {
            None => {
                self.heads[0].encode(&mut head);
                OF_ONE_GROUP
            }
            Some(take) => {
                head.u32(take.get());
                head.u64(self.order);
                head.u32(u32::try_from(self.heads.len()).expect("groups have numbers of 16 bits"));
                for one in &self.heads {
                    one.encode(&mut head);
                    let mut replicas = Vec::new();
                    one.replicas.freeze().write_to(&mut replicas).expect("a vector takes everything");
                    head.shared(&replicas.into());
                }
                FORMAT.written
            }
        };
        let mut writer = Writer::new();
        writer.u32(written.packed());
        writer.shared(&head.finish().to_bytes());
        Box::new(FrozenExecutor {
            head: writer.finish().to_bytes(),
            sessions: if self.forgets_sessions {
                self.sessions.freeze().forgetful()
            } else {
                self.sessions.freeze()
            },
            machine: self.machine.freeze(),
        })
    }

    /// Replaces the state with a frozen one. On an error the old state is still in place. With several groups, what was
    /// executed here beyond the frozen state stays.
    ///
    /// # Errors
    /// Those of `snapshot`; it is not one of this kind, or of another number of groups.
    pub fn restore(&mut self, snapshot: &mut dyn Read) -> io::Result<()> {
        self.assert_whole();
        let mut snapshot = BufReader::new(snapshot);
        let heads = Heads::read_from(&mut snapshot)?;
        self.check_groups(&heads)?;
        if self.lacks(&heads) {
            let sessions = heads.sessions_from(&mut snapshot)?;
            self.machine.restore(&mut snapshot)?;
            self.sessions = sessions;
        }
        self.go_on_from(heads);
        Ok(())
    }

    /// Reads snapshots on another thread, for [`Executor::install`], if the state machine has a reader.
    #[must_use]
    pub fn reader() -> Option<ReadSnapshotFrom<S>> {
        S::reader().map(|_| ReadSnapshot::read as ReadSnapshotFrom<S>)
    }

    /// Does what [`Executor::restore`] does with a snapshot that was read before. What it replaced, or what was read
    /// and is older than what is here, may be large: it is to be dropped on another thread.
    ///
    /// # Errors
    /// The snapshot is one of another number of groups.
    pub fn install(&mut self, snapshot: ReadSnapshot<S>) -> io::Result<Replaced> {
        self.assert_whole();
        let ReadSnapshot { heads, sessions, machine } = snapshot;
        self.check_groups(&heads)?;
        let replaced: Replaced = if self.lacks(&heads) {
            Box::new((machine(&mut self.machine), std::mem::replace(&mut self.sessions, sessions)))
        } else {
            Box::new((machine, sessions))
        };
        self.go_on_from(heads);
        Ok(replaced)
    }

    /// Whether a snapshot is one of as many groups as are executed here.
    fn check_groups(&self, Heads { take, heads, .. }: &Heads) -> io::Result<()> {
        if *take == self.take && heads.len() == self.heads.len() {
            return Ok(());
        }
        let of = |heads: usize, take: Option<Take>| match take {
            None => "one group".to_owned(),
            Some(take) => format!("{heads} merged groups, {take} batches of each in a row"),
        };
        let (found, wanted) = (of(heads.len(), *take), of(self.heads.len(), self.take));
        Err(invalid(format!("a snapshot of {found}; this replica has {wanted}")))
    }

    /// Whether a snapshot has a state to put in place of the present one.
    fn lacks(&self, heads: &Heads) -> bool {
        heads.take.is_none() || heads.order > self.order
    }

    /// Takes over how far the groups are in a snapshot.
    fn go_on_from(&mut self, Heads { take, order, heads }: Heads) {
        if take.is_none() || order > self.order {
            self.order = order;
        }
        for (own, theirs) in self.heads.iter_mut().zip(heads) {
            // Of two points of the common order, what lies between them in a group that is further at the earlier one
            // has nothing to execute: batches that have are in the order.
            if take.is_none() || theirs.applied > own.applied || has(MergeBug::ForgetFurtherHead) {
                let before = std::mem::replace(own, theirs);
                if has(MergeBug::KeepMembersAtRestore) {
                    own.group = before.group;
                }
            }
        }
    }
}

fn invalid(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

/// Reads a snapshot for [`Executor::install`].
pub type ReadSnapshotFrom<S> = fn(&mut dyn Read) -> io::Result<ReadSnapshot<S>>;

/// A snapshot that was read, to be put in place with [`Executor::install`].
pub struct ReadSnapshot<S> {
    heads: Heads,
    sessions: SessionTable,
    machine: Install<S>,
}

impl<S> fmt::Debug for ReadSnapshot<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ReadSnapshot")
    }
}

impl<S: StateMachine> ReadSnapshot<S> {
    fn read(snapshot: &mut dyn Read) -> io::Result<ReadSnapshot<S>> {
        let read = S::reader().ok_or(io::ErrorKind::Unsupported)?;
        let mut snapshot = BufReader::new(snapshot);
        let heads = Heads::read_from(&mut snapshot)?;
        let sessions = heads.sessions_from(&mut snapshot)?;
        Ok(ReadSnapshot { heads, sessions, machine: read(&mut snapshot)? })
    }

    /// How far the groups are in it; `None` if it is one of a single group.
    #[must_use]
    pub fn cut(&self) -> Option<Cut> {
        self.heads.cut()
    }
}

/// What stands before the sessions in a snapshot.
#[derive(Debug)]
struct Heads {
    take: Option<Take>,
    order: u64,
    heads: Vec<Head>,
}

impl Heads {
    fn read_from(snapshot: &mut impl Read) -> io::Result<Heads> {
        let mut prefix = [0; 8];
        snapshot.read_exact(&mut prefix)?;
        let mut reader = Reader::new(Bytes::copy_from_slice(&prefix));
        let written = Written::unpacked(reader.u32("version").map_err(invalid)?);
        FORMAT.check(written).map_err(invalid)?;
        let len = reader.u32("length").map_err(invalid)?;
        let mut head = Vec::new();
        snapshot.take(len.into()).read_to_end(&mut head)?;
        let mut reader = Reader::new(head.into());
        let heads = Heads::decode(&mut reader, written.version)?;
        reader.finish().map_err(invalid)?;
        Ok(heads)
    }

    /// The sessions, which follow.
    fn sessions_from(&self, snapshot: &mut dyn Read) -> io::Result<SessionTable> {
        Ok(SessionTable::of(Sessions::read_from(snapshot)?, self.heads[0].group.limits.sessions))
    }

    fn cut(&self) -> Option<Cut> {
        let slots = self.heads.iter().map(|head| head.applied).collect();
        self.take.map(|_| Cut { order: self.order, slots })
    }

    fn decode(reader: &mut Reader, version: u32) -> io::Result<Heads> {
        if version <= OF_ONE_GROUP.version {
            let heads = vec![Head::decode(reader, version)?];
            return Ok(Heads { take: None, order: 0, heads });
        }
        let take = Take::new(reader.u32("take").map_err(invalid)?);
        let order = reader.u64("order").map_err(invalid)?;
        let count = reader.u32("groups").map_err(invalid)?;
        let mut heads = Vec::new();
        for _ in 0..count {
            let mut head = Head::decode(reader, version)?;
            let replicas = reader.bytes("sessions of replicas").map_err(invalid)?;
            let replicas = Sessions::read_from(&mut &replicas[..])?;
            head.replicas = SessionTable::of(replicas, head.group.limits.sessions);
            heads.push(head);
        }
        if has(MergeBug::ForgetPlace)
            && let Some(last) = heads.last_mut()
        {
            last.history.forget_place();
        }
        if take.is_none() || heads.is_empty() {
            return Err(invalid("a snapshot of no group"));
        }
        Ok(Heads { take, order, heads })
    }
}

impl Head {
    fn encode(&self, writer: &mut Writer) {
        writer.slot(self.applied);
        writer.ballots(self.ballots);
        writer.shared(&self.group.encode().to_bytes());
        self.history.encode(writer);
    }

    fn decode(reader: &mut Reader, version: u32) -> io::Result<Head> {
        let read = |reader: &mut Reader| -> Result<Head, DecodeError> {
            let (applied, ballots) = (reader.slot("slot")?, reader.ballots("ballots")?);
            let group = Group::decode(reader.bytes("group")?)?;
            let history = match version {
                ..=WITHOUT_HISTORY => History::unknown(applied),
                version => History::decode(reader, version > WITHOUT_NAMES, version > OF_ONE_GROUP.version)?,
            };
            Ok(Head { applied, ballots, ..Head::new(group, history) })
        };
        let head = read(reader).map_err(invalid)?;
        let end = head.history.end().slot;
        if end != head.applied {
            let why = format!("a snapshot of slot {} with the fingerprints of slot {end}", head.applied);
            return Err(invalid(why));
        }
        Ok(head)
    }
}

struct FrozenExecutor {
    head: Bytes,
    sessions: Sessions,
    machine: Box<dyn Frozen>,
}

impl Frozen for FrozenExecutor {
    fn write_to(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut buffered = BufWriter::with_capacity(WRITE_BYTES, &mut *out);
        buffered.write_all(&self.head)?;
        self.sessions.write_to(&mut buffered)?;
        buffered.flush()?;
        drop(buffered);
        self.machine.write_to(out)
    }
}

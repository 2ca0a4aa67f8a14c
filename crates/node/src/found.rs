//! What a replica finds on disk when it starts, and whether it may start with that.

use synod_replica::{
    Cut, Executor, Installed, LogRecord, MergedFile, MergedFiles, Recovered, StateMachine, Take, salvage,
};
use synod_storage::{
    Damage, DataDir, Lives, Loss, PeerBook, RecoveredRecord, SnapshotFile, SnapshotStore, Wal,
};
use synod_sync::Arc;
use synod_wire::{GroupId, Groups, Lsn, ReplicaId, Slot};

use crate::{
    Config, Lacking, Merging, Origin, StartError,
    lone_replica::{OtherHolders, Verdict},
};

/// What was found on disk.
pub(crate) struct Found<S> {
    pub(crate) data_dir: DataDir,
    pub(crate) wal: Wal,
    /// By the number of the group.
    pub(crate) groups: Vec<FoundGroup>,
    /// One for each group, or one for all if they are merged; with what the newest snapshot holds.
    pub(crate) executors: Vec<Executor<S>>,
    /// The snapshots that hold all groups, if they are merged.
    pub(crate) files: Option<MergedFiles>,
    /// Identities and births of the other replicas when they were last seen.
    pub(crate) peers: PeerBook,
    /// The lives of this replica.
    pub(crate) lives: Lives,
    /// Something was lost, and there is nobody else who may hold it.
    pub(crate) goes_on: bool,
}

/// What was found of a group.
pub(crate) struct FoundGroup {
    pub(crate) group: GroupId,
    pub(crate) store: Arc<SnapshotStore>,
    /// What the group began with.
    pub(crate) origin: Origin,
    pub(crate) recovered: Recovered,
}

/// Opens what a replica left, of as many groups as there are state machines. `recovering`: only to look at it; a loss
/// is no reason to refuse then, but that the folder of a log apart is not there, which may only be not mounted.
pub(crate) fn open<S: StateMachine>(
    config: &Config,
    machines: Vec<S>,
    recovering: bool,
) -> Result<Found<S>, StartError> {
    let disk = || Arc::clone(&config.disk);
    let Config { cluster, me, name, durability, .. } = config;
    let all = match config.merging {
        Some(Merging { groups, take, .. }) => Groups { count: groups, merged: Some(take) },
        None => Groups::shards(u16::try_from(machines.len()).expect("at most GROUPS_MAX")),
    };
    let count = all.count;
    if let Some(log_dir) = &config.log_dir
        && let Some(log_dir) = DataDir::log_apart(&config.data_dir, log_dir)?
    {
        DataDir::link_log(&config.data_dir, &log_dir)?;
    }
    let data_dir = DataDir::open_for_groups(disk(), &config.data_dir, *cluster, *me, name, *durability, all)?;
    let identity = data_dir.identity();
    let groups = || (0..count).map(GroupId);
    // The first group's is written last: with it the directory counts as begun (`is_begun`).
    let written = groups().rev().map(|group| origin(config, &data_dir, group, all));
    let mut origins = written.collect::<Result<Vec<_>, _>>()?;
    origins.reverse();
    let peers = PeerBook::open(&data_dir)?;
    let lives = Lives::begin(&data_dir)?;
    let others =
        OtherHolders::in_all(origins.iter().map(|origin| OtherHolders::of(config.me, &origin.present)));
    // With whom the groups begin is the same for all of them.
    let first = others_at_first(&origins[0], config.me);
    let mut states = Vec::new();
    for (group, origin) in groups().zip(origins) {
        states.push(open_state(config, &data_dir, group, origin, recovering)?);
    }
    let (executors, files) = match config.merging {
        Some(merging) => {
            let (executor, files) = restore_merged(merging.take, machines, &mut states)?;
            (vec![executor], Some(files))
        }
        None => {
            let restored =
                machines.into_iter().zip(&mut states).map(|(machine, state)| restore(machine, state));
            (restored.collect::<Result<_, _>>()?, None)
        }
    };

    let options = synod_storage::Options {
        durability: config.durability,
        segment_bytes: config.segment_bytes,
        ..synod_storage::Options::default()
    };
    let (mut wal, found) = Wal::open_on(disk(), &data_dir.wal(), identity, options)?;
    if found.loss == Some(Loss::Stopped) && !recovering {
        return Err(StartError::Stopped(data_dir.path().to_owned()));
    }
    let mut last_lsn = found.last;
    let mut records = by_group(&found.records, states.len())?;
    let held =
        states.iter().map(|state| state.snapshot.as_ref().map_or(Slot::ZERO, |snapshot| snapshot.info.slot));
    let verdict = match (&found.damage, &found.loss) {
        (Some(_), _) if recovering => None,
        (Some(damage), _) => {
            last_lsn = set_aside(&data_dir, others, damage, &mut wal, &mut records, held)?;
            Some(Verdict::Learn)
        }
        (None, Some(loss)) => Some(judge_loss(config, &data_dir, others, loss, recovering)?),
        (None, None) => None,
    };
    if verdict.is_some() {
        // Before anybody is told: what earlier lives told is not in this log.
        lives.begin_without_memory()?;
    }
    lives.begin_log(last_lsn)?;
    let amnesia = verdict.is_some() && verdict != Some(Verdict::GoOn);
    if config.begin_without_all {
        peers.wait_for_nobody()?;
    }
    let met_all = first.is_empty() || peers.has_met(&first)?;
    let (incarnation, nonce) = (identity.incarnation, lives.introduction(last_lsn).nonce);
    let mut found_groups = Vec::new();
    for (group, (state, records)) in groups().zip(states.into_iter().zip(records)) {
        let FoundState { origin, store, snapshot, .. } = state;
        let records = records.into_iter().map(|(_, record)| record).collect();
        let birth = identity.birth;
        let recovered =
            Recovered { records, last_lsn, snapshot, amnesia, birth, incarnation, nonce, met_all };
        found_groups.push(FoundGroup { group, store, origin, recovered });
    }
    let goes_on = verdict == Some(Verdict::GoOn);
    Ok(Found { data_dir, wal, groups: found_groups, executors, files, peers, lives, goes_on })
}

/// Sets a damaged log aside, but for what it proves to be decided, which begins the log that replaces it; returns the
/// number of its last record. `held` are the slots of the groups' snapshots.
fn set_aside(
    data_dir: &DataDir,
    others: OtherHolders,
    damage: &Damage,
    wal: &mut Wal,
    records: &mut [Vec<(Lsn, LogRecord)>],
    held: impl Iterator<Item = Slot>,
) -> Result<Lsn, StartError> {
    match others {
        OtherHolders::Nobody => {
            return Err(StartError::DamagedAlone(Lacking::Damage(damage.clone()), data_dir.wal()));
        }
        OtherHolders::Learners => {
            return Err(StartError::LostBeforeLearners(Lacking::Damage(damage.clone())));
        }
        OtherHolders::Voters => {}
    }
    // The readable rest of the log may lack later promises, so the promises in it are not trusted. Slots that it proves
    // decided are decided, and are kept.
    for (records, held) in records.iter_mut().zip(held) {
        let kept = salvage(records.drain(..), held);
        // Their numbers do not matter any more.
        records.extend(kept.into_iter().map(|record| (Lsn::ZERO, record)));
    }
    let kept = (0..).map(GroupId).zip(&*records).flat_map(|(group, records)| {
        records.iter().map(move |(_, record)| (group, record.keep(), record.encode()))
    });
    let last = wal.quarantine(kept)?;
    let (slots, bytes) = (records.iter().map(Vec::len).sum::<usize>(), wal.bytes());
    tracing::error!(
        %damage, slots, bytes,
        "the log is damaged: set aside, but for what it proves to be decided; this replica learns the rest \
         from its peers before it votes"
    );
    Ok(last)
}

/// Whether a replica goes on although its log lacks something, and how. `recovering`: it is only looked at.
fn judge_loss(
    config: &Config,
    data_dir: &DataDir,
    others: OtherHolders,
    loss: &Loss,
    recovering: bool,
) -> Result<Verdict, StartError> {
    let verdict = match others.verdict(loss) {
        Verdict::GoOnIfTold if config.accept_lost_log => Verdict::GoOn,
        verdict => verdict,
    };
    match verdict {
        _ if recovering => {}
        Verdict::Learn => tracing::warn!(%loss, "this replica learns from its peers before it votes"),
        Verdict::GoOn => {
            tracing::warn!(%loss, "there is no other replica: this one goes on with what it finds")
        }
        Verdict::GoOnIfTold => return Err(StartError::LostAlone(loss.clone(), data_dir.path().to_owned())),
        Verdict::Refuse => return Err(StartError::LostBeforeLearners(Lacking::Loss(loss.clone()))),
    }
    Ok(verdict)
}

/// What was found of a group besides the log.
struct FoundState {
    origin: Origin,
    store: Arc<SnapshotStore>,
    /// The newest file.
    file: Option<SnapshotFile>,
    /// What an executor was restored from, as far as this group is concerned.
    snapshot: Option<Installed>,
}

/// The latest snapshot file of a group.
fn open_state(
    config: &Config,
    data_dir: &DataDir,
    group: GroupId,
    origin: Origin,
    recovering: bool,
) -> Result<FoundState, StartError> {
    let (disk, dir) = (Arc::clone(&config.disk), data_dir.snapshots_of(group));
    let store = Arc::new(SnapshotStore::open_on(disk, &dir, config.cluster)?);
    let latest = store.latest()?;
    if matches!(OtherHolders::of(config.me, &origin.present), OtherHolders::Voters) && !recovering {
        // Where nobody else has another one, it stays where it is: the disk may read it tomorrow.
        store.set_aside(&latest.damaged)?;
    }
    Ok(FoundState { origin, store, file: latest.snapshot, snapshot: None })
}

/// The state machine of a group with what its latest snapshot holds.
fn restore<S: StateMachine>(machine: S, state: &mut FoundState) -> Result<Executor<S>, StartError> {
    let mut executor = Executor::new(machine, state.origin.first.clone());
    if let Some(file) = &state.file {
        restore_from(&mut executor, &state.store, file)?;
        state.snapshot = Some(executor.installed(GroupId::FIRST, file.file_bytes));
    }
    Ok(executor)
}

/// The state machine of merged groups with what the latest snapshot holds, whichever group has its file.
fn restore_merged<S: StateMachine>(
    take: Take,
    machines: Vec<S>,
    states: &mut [FoundState],
) -> Result<(Executor<S>, MergedFiles), StartError> {
    let machine = machines.into_iter().next().expect("merged groups have one state machine");
    let first = states.iter().map(|state| state.origin.first.clone());
    let (mut executor, mut files) = (Executor::merged(machine, first, take), MergedFiles::default());
    for (group, state) in (0u16..).map(GroupId).zip(&*states) {
        for slot in state.store.slots()? {
            // A snapshot that cannot be read is skipped; a start that finds it as the newest one has said so.
            if let Ok(mut reader) = state.store.open_snapshot(slot)
                && let Ok(Some(cut)) = Cut::read_from(&mut reader)
                && cut.slots.len() == executor.groups()
            {
                files.add(MergedFile { cut, group, slot, bytes: state.store.file_bytes(slot)? });
            }
        }
    }
    let starts = files.restore_all(&mut executor, |executor, file| {
        let store = &states[usize::from(file.group.0)].store;
        let Some(verified) = store.usable(file.slot)? else { return Ok(false) };
        restore_from(executor, store, &verified).map(|()| true)
    })?;
    states.iter_mut().zip(starts).for_each(|(state, snapshot)| state.snapshot = snapshot);
    Ok((executor, files))
}

fn restore_from<S: StateMachine>(
    executor: &mut Executor<S>,
    store: &SnapshotStore,
    file: &SnapshotFile,
) -> Result<(), StartError> {
    let mut reader = store.open_snapshot(file.slot)?;
    executor.restore(&mut reader).map_err(|error| StartError::Snapshot { path: file.path.clone(), error })
}

/// The records of each of `count` groups, in order. In their numbers is a gap only where there is one in the log, so
/// that records may be lost there, of any group.
fn by_group(found: &[RecoveredRecord], count: usize) -> Result<Vec<Vec<(Lsn, LogRecord)>>, StartError> {
    let mut groups = vec![Vec::new(); count];
    // Of each group, the number of its last record, and how many gaps the log had before that.
    let mut numbered = vec![(Lsn::ZERO, 0); count];
    let (mut gaps, mut expected) = (0, None);
    for RecoveredRecord { lsn, group, bytes, .. } in found {
        gaps += u64::from(expected.is_some_and(|expected| expected != *lsn));
        expected = Some(lsn.next());
        let at = usize::from(group.0);
        if at >= count {
            return Err(StartError::RecordOfGroup { lsn: *lsn, group: *group, groups: count });
        }
        let record =
            LogRecord::decode(bytes.clone()).map_err(|error| StartError::Record { lsn: *lsn, error })?;
        let (last, before) = &mut numbered[at];
        *last = if *before == gaps { last.next() } else { last.next().next() };
        *before = gaps;
        groups[at].push((*last, record));
    }
    Ok(groups)
}

/// The other members with which the group began, if this replica is one of them: one that joins later is told by the
/// members what was decided.
pub(crate) fn others_at_first(origin: &Origin, me: ReplicaId) -> Vec<ReplicaId> {
    if origin.first.member(me).is_none() {
        return Vec::new();
    }
    origin.first.members.iter().map(|member| member.id).filter(|&id| id != me).collect()
}

/// What the data directory says that a group began with; at the first start that is written down.
fn origin(config: &Config, data_dir: &DataDir, group: GroupId, groups: Groups) -> Result<Origin, StartError> {
    if let Some(bytes) = data_dir.origin_of(group)? {
        return Origin::decode(bytes)
            .map_err(|error| StartError::Origin { data_dir: data_dir.path().to_owned(), error });
    }
    let origin = config.origin(group, groups)?;
    data_dir.set_origin_of(group, &origin.encode())?;
    Ok(origin)
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        io::{self, Read, Write},
        path::{Path, PathBuf},
    };

    use bytes::Bytes;
    use synod_consensus::{Options, ProtocolKind, multipaxos};
    use synod_replica::{Context, Frozen, Goal, Group, Standing};
    use synod_storage::Durability;
    use synod_wire::{Ballot, Batch, ClusterId, Epoch, Incarnation, Introduction};

    use super::*;

    const R1: ReplicaId = ReplicaId(1);
    const CLUSTER: ClusterId = ClusterId(7);

    struct Nothing;

    impl Frozen for Nothing {
        fn write_to(&self, _out: &mut dyn Write) -> io::Result<()> {
            Ok(())
        }
    }

    impl StateMachine for Nothing {
        fn apply(&mut self, _command: &Bytes, _: &Context) -> Bytes {
            Bytes::new()
        }

        fn query(&self, _query: &Bytes) -> Bytes {
            Bytes::new()
        }

        fn freeze(&self) -> Box<dyn Frozen> {
            Box::new(Nothing)
        }

        fn restore(&mut self, _snapshot: &mut dyn Read) -> io::Result<()> {
            Ok(())
        }

        fn digest(&self) -> u64 {
            0
        }
    }

    fn files(dir: &Path) -> Vec<PathBuf> {
        let mut files: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        files
    }

    /// The replica began in a group of three. Where others were removed since, `members` says which are left and
    /// `voters` which of these vote; the log may have lost that. One bit of its first record has changed.
    fn damaged(path: &Path, members: &[u64], voters: &[u64]) -> Config {
        let ids = [R1, ReplicaId(2), ReplicaId(3)];
        let first = Group::of(&Options::of(ProtocolKind::MultiPaxos), ids);
        let dir = DataDir::open(path, CLUSTER, R1, "n1", Durability::Sync).unwrap();
        let mut present = first.clone();
        present.version = 3;
        present.members.retain(|member| members.contains(&member.id.0));
        let learners = present.members.iter_mut().filter(|member| !voters.contains(&member.id.0));
        learners.for_each(|member| member.standing = Standing::Learner(Goal::Learn));
        dir.set_origin(&Origin { present, ..Origin::new(CLUSTER, first) }.encode()).unwrap();
        let peers = PeerBook::open(&dir).unwrap();
        for (id, birth) in [(ids[1], 20), (ids[2], 30)] {
            let who = Introduction { birth, incarnation: Incarnation(1), ..Introduction::default() };
            peers.meet(id, &who, None, true).unwrap().unwrap();
        }
        let (mut wal, _) = Wal::open(&dir.wal(), dir.identity(), synod_storage::Options::default()).unwrap();
        for slot in 1..=3 {
            let record: LogRecord = LogRecord::Protocol {
                epoch: Epoch(1),
                record: multipaxos::Record::Accepted {
                    ballot: Ballot { round: 1, replica: R1 },
                    first: Slot(slot),
                    decided: Slot(slot - 1),
                    batches: [Batch::noop()].into(),
                }
                .into(),
            };
            wal.append(Lsn(slot), record.keep(), record.encode());
            wal.commit().unwrap();
        }
        wal.close().unwrap();
        let segment = dir.wal().join("00000000000000000001.wal");
        let mut bytes = fs::read(&segment).unwrap();
        bytes[4096 + 60] ^= 1;
        fs::write(&segment, bytes).unwrap();
        Config::new(CLUSTER, R1, Vec::new(), path.to_owned())
    }

    #[test]
    fn the_damaged_log_of_the_only_voter_left_is_not_set_aside() {
        for (members, voters) in [(vec![1], vec![1]), (vec![1, 2], vec![1]), (vec![1, 2], vec![1, 2])] {
            let folder = tempfile::tempdir().unwrap();
            let config = damaged(&folder.path().join("r1"), &members, &voters);
            let wal = config.data_dir.join("wal");
            let before = files(&wal);
            let opened = open(&config, vec![Nothing], false);
            match (members.len(), voters.len()) {
                (1, _) => assert!(matches!(opened.err(), Some(StartError::DamagedAlone(..)))),
                (_, 1) => assert!(matches!(opened.err(), Some(StartError::LostBeforeLearners(..)))),
                _ => assert!(opened.unwrap().groups[0].recovered.amnesia),
            }
            assert_eq!(files(&wal) == before, voters.len() == 1);
        }
    }

    /// It has nobody to ask and votes on, but its learners must not take it for one that remembers.
    #[test]
    fn the_only_voter_says_what_a_restart_may_lose() {
        for (durability, since) in [(Durability::Sync, 0), (Durability::Memory, 2)] {
            let folder = tempfile::tempdir().unwrap();
            let mut config = Config::new(CLUSTER, R1, Vec::new(), folder.path().to_owned());
            config.durability = durability;
            let dir = DataDir::open(&config.data_dir, CLUSTER, R1, &config.name, durability).unwrap();
            let group = Group::of(&Options::of(ProtocolKind::Raft), [R1]);
            dir.set_origin(&Origin::new(CLUSTER, group).encode()).unwrap();
            let (wal_dir, who) = (dir.wal(), dir.identity());
            let options = synod_storage::Options { durability, ..synod_storage::Options::default() };
            drop(Wal::open(&wal_dir, who, options).unwrap());
            drop(dir);
            let found = open(&config, vec![Nothing], false).unwrap();
            assert!(!found.groups[0].recovered.amnesia);
            assert_eq!(found.lives.introduction(Lsn(0)).since, Incarnation(since));
        }
    }
}

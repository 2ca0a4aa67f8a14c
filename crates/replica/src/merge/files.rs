//! Snapshot files of merged groups: which of them holds what, and what a replica starts from.
//!
//! A file holds all groups at one point of the common order, whichever group asked for it: it is named by that group
//! and its slot, and peers of every group are served from it.

use std::{collections::BTreeMap, io::Read};

use synod_wire::{GroupId, ReplicaId, Slot};

use super::{MergeBug, has};
use crate::{Cut, Executor, Installed, SnapshotInfo, StateMachine};

/// The snapshot files of merged groups.
#[derive(Debug, Default)]
pub struct MergedFiles {
    /// The latest last.
    files: Vec<KnownFile>,
    added: u64,
    /// Which file a peer receives for a group: other files may hold the group through the same slot.
    serving: BTreeMap<(ReplicaId, GroupId), (Slot, MergedFile)>,
}

#[derive(Debug)]
struct KnownFile {
    file: MergedFile,
    /// The number of files of which replicas had been told before.
    added: u64,
    /// A peer sent it, and the executor has yet to go on from it. No replica was told of it, and it may turn out to be
    /// unreadable.
    is_new: bool,
}

/// A snapshot of all groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MergedFile {
    /// How far the groups are in it.
    pub cut: Cut,
    /// The group whose file it is.
    pub group: GroupId,
    /// The slot of that group by which it is named.
    pub slot: Slot,
    /// The size of the file in bytes.
    pub bytes: u64,
}

impl MergedFile {
    fn is_named(&self, group: GroupId, slot: Slot) -> bool {
        (self.group, self.slot) == (group, slot)
    }

    fn holds(&self, group: GroupId, slot: Slot) -> bool {
        self.cut.slots[usize::from(group.0)] == slot
    }
}

impl MergedFiles {
    /// The file that a peer has sent for a group, if its `contents` hold as many groups as there are here, and this one
    /// through the slot that was asked for. It takes no other file's name: the group is as far as that file already, or
    /// soon, and logs may have been trimmed through it.
    pub fn accepted(
        &self,
        group: GroupId,
        SnapshotInfo { slot, bytes }: SnapshotInfo,
        groups: usize,
        contents: &mut dyn Read,
    ) -> Option<MergedFile> {
        let cut = Cut::read_from(contents).ok().flatten().filter(|cut| cut.slots.len() == groups)?;
        let file = MergedFile { cut, group, slot, bytes };
        let is_free = self.named(group, slot).is_none();
        (file.holds(group, slot) && is_free).then_some(file)
    }

    /// Records a file that was accepted and has its name now. The executor is to go on from it.
    pub fn receive(&mut self, file: MergedFile) {
        self.put(file, true);
    }

    /// The executor has gone on from a file that was received: replicas are told of it.
    pub fn installed(&mut self, group: GroupId, slot: Slot) {
        let is_it = |known: &mut KnownFile| known.is_new && known.file.is_named(group, slot);
        let found = self.files.extract_if(.., is_it).next();
        if let Some(known) = found {
            self.put(known.file, false);
        }
    }

    /// Forgets a file that was received and cannot be read. A file that has taken its place is not meant.
    pub fn forget(&mut self, group: GroupId, slot: Slot) {
        self.files.retain(|known| !known.is_new || !known.file.is_named(group, slot));
    }

    /// Whether a file with this cut, which this replica wrote, may get this name: none has it, or the new file holds
    /// all that the other one does, of the order and of each group. Logs may have been trimmed through that.
    #[must_use]
    pub fn may_be_named(&self, group: GroupId, slot: Slot, cut: &Cut) -> bool {
        self.named(group, slot).is_none_or(|MergedFile { cut: known, .. }| {
            let further = |(slot, known): (&Slot, &Slot)| slot >= known;
            cut.order >= known.order && cut.slots.iter().zip(&known.slots).all(further)
        })
    }

    fn named(&self, group: GroupId, slot: Slot) -> Option<&MergedFile> {
        self.files.iter().map(|known| &known.file).find(|file| file.is_named(group, slot))
    }

    /// Records a file, which takes the place of one with the same name.
    pub fn add(&mut self, file: MergedFile) {
        self.put(file, false);
    }

    fn put(&mut self, file: MergedFile, is_new: bool) {
        self.files.retain(|known| !known.file.is_named(file.group, file.slot));
        self.added += 1;
        self.files.push(KnownFile { file, added: self.added, is_new });
        self.files.sort_by_key(|known| (known.file.cut.order, known.added));
    }

    fn told(&self) -> impl Iterator<Item = &KnownFile> {
        self.files.iter().filter(|known| !known.is_new)
    }

    /// The file of which the replica of a group was told last among those that hold the group through this very slot:
    /// the one whose size it offers to peers.
    #[must_use]
    pub fn holding(&self, group: GroupId, slot: Slot) -> Option<&MergedFile> {
        let holding = self.told().filter(|known| known.file.holds(group, slot));
        holding.max_by_key(|known| known.added).map(|known| &known.file)
    }

    /// The file from which a peer is to be given the piece at `offset` of what holds a group through a slot: the same
    /// as before, if it has begun with one. While a group is quiet, each snapshot of another group holds it through the
    /// same slot, and pieces of different files make no snapshot.
    pub fn serve(&mut self, to: ReplicaId, group: GroupId, slot: Slot, offset: u64) -> Option<MergedFile> {
        let began = self.serving.get(&(to, group)).filter(|(of, _)| offset > 0 && *of == slot);
        let began =
            began.map(|(_, file)| file).filter(|file| self.files.iter().any(|known| known.file == **file));
        let file = began.or_else(|| self.holding(group, slot))?.clone();
        if has(MergeBug::ServeOwnFiles) && file.group != group {
            return None;
        }
        self.serving.insert((to, group), (slot, file.clone()));
        Some(file)
    }

    /// Forgets all but the newest ones, those that hold a group further than all other files, those that are to be
    /// installed, and, if any peer still `receives` a file, those that peers receive. No file is forgotten because of
    /// one that is to be installed.
    ///
    /// A file of an earlier point of the common order may hold a group further than the newest one: a peer sent it, and
    /// what it holds of that group beyond has nothing to execute. The group's log was trimmed through it all the same.
    pub fn keep(&mut self, count: usize, receives: bool) {
        if !receives {
            self.serving.clear();
        }
        let (mut excess, mut at) = (self.told().count().saturating_sub(count), 0);
        while excess > 0 {
            excess -= usize::from(!self.files[at].is_new);
            if self.files[at].is_new || self.is_needed(at) {
                at += 1;
            } else {
                self.files.remove(at);
            }
        }
    }

    /// Whether a peer receives this file, or it holds a group further than all others.
    fn is_needed(&self, at: usize) -> bool {
        let file = &self.files[at].file;
        let others = || self.told().map(|known| &known.file).filter(|other| *other != file);
        let held = |group: usize| others().map(|other| other.cut.slots[group]).max().unwrap_or_default();
        let further = file.cut.slots.iter().enumerate().any(|(group, slot)| *slot > held(group));
        further || self.serving.values().any(|(_, served)| served == file)
    }

    /// The slots of a group's files.
    #[must_use]
    pub fn slots_of(&self, group: GroupId) -> Vec<Slot> {
        self.files
            .iter()
            .map(|known| &known.file)
            .filter(|file| file.group == group)
            .map(|file| file.slot)
            .collect()
    }

    /// Gives an executor in its initial state what these files hold, and says what each group starts from. `restore`
    /// reads one of them, and says whether it could be read; others are forgotten.
    ///
    /// The newest file may be a peer's, in which a quiet group is less far than in an older file of this replica,
    /// through which its log was trimmed.
    ///
    /// # Errors
    /// Those of `restore`.
    pub fn restore_all<S: StateMachine, E>(
        &mut self,
        executor: &mut Executor<S>,
        mut restore: impl FnMut(&mut Executor<S>, &MergedFile) -> Result<bool, E>,
    ) -> Result<Vec<Option<Installed>>, E> {
        let mut damaged = Vec::new();
        // The latest first: of the others only what it lacks is read.
        for KnownFile { file, .. } in self.files.iter().rev() {
            let held = executor.cut();
            let is_further = file.cut.order > held.order;
            let lacks = file.cut.slots.iter().zip(&held.slots).any(|(theirs, own)| theirs > own);
            if (is_further || lacks) && !restore(executor, file)? {
                damaged.push(file.clone());
            }
        }
        self.files.retain(|known| !damaged.contains(&known.file));
        let groups = (0..executor.groups() as u16).map(GroupId);
        let starts = groups.map(|group| {
            let installed = executor.installed(group, 0);
            let slot = Some(installed.info.slot).filter(|slot| *slot > Slot::ZERO)?;
            let info = SnapshotInfo { slot, bytes: self.holding(group, slot)?.bytes };
            Some(Installed { info, ..installed })
        });
        Ok(starts.collect())
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use synod_consensus::Options;
    use synod_wire::{Ballots, BatchBuilder, CommandKind, SessionId};

    use super::*;
    use crate::{Group, Take, executor::tests::Tape};

    const PEER: ReplicaId = ReplicaId(2);
    const BUSY: GroupId = GroupId(0);
    const QUIET: GroupId = GroupId(1);

    /// A snapshot that the busy group took, in which the quiet one is as far as ever.
    fn file(order: u64) -> MergedFile {
        let cut = Cut { order, slots: vec![Slot(order), Slot(3)] };
        MergedFile { cut, group: BUSY, slot: Slot(order), bytes: 1_000 + order }
    }

    #[test]
    fn a_peer_is_given_all_pieces_of_one_file() {
        let mut files = MergedFiles::default();
        files.add(file(10));
        assert_eq!(files.serve(PEER, QUIET, Slot(3), 0), Some(file(10)));
        for order in 11..20 {
            files.add(file(order));
            files.keep(2, true);
            assert_eq!(files.serve(PEER, QUIET, Slot(3), 500), Some(file(10)));
        }
        assert_eq!(files.slots_of(BUSY), [10, 18, 19].map(Slot));
        assert_eq!(files.serve(PEER, QUIET, Slot(3), 0), Some(file(19)), "it begins again");
        files.keep(2, true);
        assert_eq!(files.slots_of(BUSY), [18, 19].map(Slot));
        assert_eq!(files.serve(PEER, QUIET, Slot(4), 500), None);
    }

    #[test]
    fn a_name_goes_to_a_file_only_that_holds_all_that_the_one_before_does() {
        let mut files = MergedFiles::default();
        let cut = |order, slots: [u64; 2]| Cut { order, slots: slots.map(Slot).to_vec() };
        let (group, slot) = (GroupId(1), Slot(399));
        files.add(MergedFile { cut: cut(10, [450, 399]), group, slot, bytes: 1 });
        let may = |order, slots| files.may_be_named(group, slot, &cut(order, slots));
        assert!(may(10, [450, 399]), "another copy");
        assert!(may(12, [460, 399]));
        assert!(!may(9, [450, 399]), "an earlier point of the order");
        assert!(!may(12, [400, 399]), "the log of the first group may be trimmed through 450");
        assert!(files.may_be_named(group, Slot(400), &cut(1, [1, 400])), "no file has that name");
        assert!(files.may_be_named(GroupId(0), slot, &cut(1, [399, 1])), "nor that one");
    }

    #[test]
    fn a_received_file_that_cannot_be_read_is_forgotten_and_has_taken_no_other_ones_place() {
        let mut files = MergedFiles::default();
        let of = |order, slots: [u64; 2]| Cut { order, slots: slots.map(Slot).to_vec() };
        let own = MergedFile { cut: of(8, [8, 5]), ..file(8) };
        let received = MergedFile { cut: of(20, [20, 9]), group: QUIET, slot: Slot(9), bytes: 7 };
        files.add(own.clone());
        (9..12).for_each(|order| files.add(file(order)));
        files.receive(received.clone());
        files.keep(2, false);
        assert_eq!(files.slots_of(BUSY), [8, 10, 11].map(Slot), "those before it stay");
        assert_eq!((files.slots_of(QUIET), files.holding(QUIET, Slot(9))), (vec![Slot(9)], None));
        files.forget(QUIET, Slot(9));
        assert_eq!(files.slots_of(QUIET), []);
        files.receive(received.clone());
        files.installed(QUIET, Slot(9));
        files.forget(QUIET, Slot(9));
        assert_eq!(files.holding(QUIET, Slot(9)), Some(&received), "it was read");
        files.keep(1, false);
        assert_eq!((files.slots_of(BUSY), files.slots_of(QUIET)), (vec![], vec![Slot(9)]));
        // One that was written took its place before it could be read.
        files.receive(MergedFile { slot: Slot(10), cut: of(21, [21, 10]), ..received.clone() });
        let written = MergedFile { slot: Slot(10), cut: of(22, [22, 10]), ..received };
        assert!(files.may_be_named(QUIET, Slot(10), &written.cut));
        files.add(written.clone());
        files.forget(QUIET, Slot(10));
        assert_eq!(files.holding(QUIET, Slot(10)), Some(&written));
    }

    #[test]
    fn a_peer_may_send_a_file_that_another_group_took_if_no_other_file_has_the_name() {
        let mut files = MergedFiles::default();
        let (bytes, taken) = taken(4, 3);
        let accepted = |files: &MergedFiles, group, slot, groups, mut bytes: &[u8]| {
            files.accepted(group, SnapshotInfo { slot: Slot(slot), bytes: 7 }, groups, &mut bytes)
        };
        let named = |group, slot| Some(MergedFile { group, slot: Slot(slot), bytes: 7, ..taken.clone() });
        assert_eq!(accepted(&files, BUSY, 4, 2, &bytes), named(BUSY, 4));
        assert_eq!(accepted(&files, QUIET, 3, 2, &bytes), named(QUIET, 3));
        assert_eq!(accepted(&files, QUIET, 4, 2, &bytes), None, "it is through another slot");
        assert_eq!(accepted(&files, QUIET, 3, 3, &bytes), None, "it is of two groups");
        assert_eq!(accepted(&files, QUIET, 3, 2, &bytes[1..]), None);
        files.receive(named(QUIET, 3).unwrap());
        assert_eq!(accepted(&files, QUIET, 3, 2, &bytes), None, "there is one of that name");
        assert_eq!(accepted(&files, BUSY, 4, 2, &bytes), named(BUSY, 4));
    }

    #[test]
    fn the_file_that_holds_a_group_furthest_stays() {
        let mut files = MergedFiles::default();
        let of_peer = MergedFile { cut: Cut { order: 8, slots: vec![Slot(8), Slot(5)] }, ..file(8) };
        files.add(of_peer.clone());
        (9..12).for_each(|order| files.add(file(order)));
        files.keep(2, false);
        assert_eq!(
            (files.slots_of(BUSY), files.holding(QUIET, Slot(5))),
            (vec![Slot(8), Slot(10), Slot(11)], Some(&of_peer))
        );
        files.add(MergedFile { cut: Cut { order: 12, slots: vec![Slot(12), Slot(5)] }, ..file(12) });
        files.keep(2, false);
        assert_eq!(files.slots_of(BUSY), [11, 12].map(Slot));
    }

    /// A state after this many batches of the busy group, with this many skips of the quiet one, and its snapshot.
    fn taken(batches: u64, skips: u64) -> (Vec<u8>, MergedFile) {
        let mut executor = empty();
        for (group, kind, count) in
            [(BUSY, CommandKind::OpenSession, batches), (QUIET, CommandKind::Skip, skips)]
        {
            for slot in 1..=count {
                let mut builder = BatchBuilder::new();
                let position =
                    if kind == CommandKind::Skip { slot.to_le_bytes().to_vec() } else { Vec::new() };
                builder.push_as(kind, SessionId(1 << 63 | 1), slot, slot, &position);
                executor.execute_of(group, Slot(slot), Ballots::ZERO, &builder.finish(), |_| false);
            }
        }
        let mut bytes = Vec::new();
        executor.freeze().write_to(&mut bytes).unwrap();
        let (cut, slot) = (executor.cut(), Slot(batches));
        let file = MergedFile { cut, group: BUSY, slot, bytes: bytes.len() as u64 };
        (bytes, file)
    }

    fn empty() -> Executor<Tape> {
        let group = || Group::of(&Options::default(), [1, 2, 3].map(ReplicaId));
        Executor::merged(Tape::default(), [group(), group()], Take::MIN)
    }

    /// A peer's file is of a later point of the order, and holds the quiet group less far than the replica's own,
    /// through which the log was trimmed; a third one is damaged.
    #[test]
    fn a_new_life_starts_from_all_that_its_files_hold() {
        let (own, of_peer, damaged) = (taken(2, 3), taken(4, 1), taken(5, 2));
        let mut files = MergedFiles::default();
        [&own, &of_peer, &damaged].into_iter().for_each(|(_, file)| files.add(file.clone()));
        let mut executor = empty();
        let starts = files.restore_all(&mut executor, |executor, file| {
            let (bytes, _) =
                [&own, &of_peer].into_iter().find(|(_, known)| known == file).unwrap_or(&damaged);
            let sound = *file != damaged.1;
            if sound {
                executor.restore(&mut &bytes[..]).unwrap();
            }
            Ok::<_, Infallible>(sound)
        });
        let starts = starts.unwrap().into_iter().map(|start| start.unwrap().info).collect::<Vec<_>>();
        let info =
            |slot, (bytes, _): &(Vec<u8>, _)| SnapshotInfo { slot: Slot(slot), bytes: bytes.len() as u64 };
        assert_eq!(starts, [info(4, &of_peer), info(3, &own)]);
        assert_eq!(executor.cut(), Cut { order: 4, slots: vec![Slot(4), Slot(3)] });
        assert_eq!(files.slots_of(BUSY), [2, 4].map(Slot), "the damaged one is forgotten");
    }

    /// What a replica offers has the size of the file that it was told of last, which may be of an earlier point of the
    /// common order: one that a peer has sent.
    #[test]
    fn what_is_offered_is_what_is_served() {
        let mut files = MergedFiles::default();
        files.add(file(10));
        files.add(file(8));
        assert_eq!(files.holding(QUIET, Slot(3)), Some(&file(8)));
        files.keep(1, false);
        assert_eq!(files.holding(QUIET, Slot(3)), Some(&file(10)));
    }
}

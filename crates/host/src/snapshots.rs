//! The book of a node's snapshot files: which piece belongs to which file, which file a peer is sent, which file may
//! get a name, and which are forgotten, and when.
//!
//! A group that is alone has files of its own. A file of merged groups holds all of them at one point of the common
//! order ([`MergedFiles`]).

use std::{io::Read, time::Duration};

use synod_replica::{Cut, MergedFile, MergedFiles, SnapshotInfo};
use synod_wire::{GroupId, ReplicaId, Slot, Time};

use crate::planted::{HostBug, has};

/// How many snapshots are kept on disk: the newest, and the one before, in case the newest is found damaged.
const KEPT: usize = 2;

/// How many more are kept while a peer is receiving one, since it would otherwise begin again with every new snapshot.
const KEPT_FOR_PEERS: usize = 2;

/// For how long after it last asked for a piece a peer counts as receiving a snapshot.
const RECEIVES_FOR: Duration = Duration::from_secs(10);

/// The snapshot files of all groups of a node. `R` is what takes the pieces of a snapshot that is being received.
#[derive(Debug)]
pub struct SnapshotBook<R> {
    /// By the numbers of the groups.
    groups: Vec<OfGroup<R>>,
    /// The files of merged groups.
    merged: Option<MergedFiles>,
}

#[derive(Debug)]
struct OfGroup<R> {
    receiving: Option<(SnapshotInfo, R)>,
    /// When a peer last asked for a piece of a file of this group.
    served: Option<Time>,
}

/// The files of a group that stay. All others are to be deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kept {
    /// This many, the newest.
    Newest(usize),
    /// Those of these slots.
    Slots(Vec<Slot>),
}

impl<R> SnapshotBook<R> {
    /// The book of this many groups; `merged` are the files that are there, if the groups are merged.
    #[must_use]
    pub fn new(groups: usize, merged: Option<MergedFiles>) -> SnapshotBook<R> {
        let groups = (0..groups).map(|_| OfGroup { receiving: None, served: None }).collect();
        SnapshotBook { groups, merged }
    }

    /// The files of merged groups.
    #[must_use]
    pub fn merged(&self) -> Option<&MergedFiles> {
        self.merged.as_ref()
    }

    /// A peer asks for the piece at `offset` of what holds a group through a slot. Returns the group and the slot that
    /// name the file from which it is to be read, if there is one.
    pub fn serve(
        &mut self,
        now: Time,
        to: ReplicaId,
        group: GroupId,
        slot: Slot,
        offset: u64,
    ) -> (GroupId, Slot) {
        let file = self.merged.as_mut().and_then(|files| files.serve(to, group, slot, offset));
        let (group, slot) = file.map_or((group, slot), |file| (file.group, file.slot));
        self.of(group).served = Some(now);
        (group, slot)
    }

    /// What takes a piece of a snapshot that a peer sends. The first piece, or one of another snapshot, begins again.
    ///
    /// # Errors
    /// Those of `begin`.
    pub fn receive<E>(
        &mut self,
        group: GroupId,
        info: SnapshotInfo,
        offset: u64,
        begin: impl FnOnce() -> Result<R, E>,
    ) -> Result<&mut R, E> {
        let receiving = &mut self.of(group).receiving;
        if offset == 0 || receiving.as_ref().is_none_or(|(of, _)| *of != info) {
            // What was there first gives its file up.
            *receiving = None;
            *receiving = Some((info, begin()?));
        }
        let (_, receiver) = receiving.as_mut().expect("just set");
        Ok(receiver)
    }

    /// The snapshot of a group is complete: what took its pieces, if that is the one that was being received.
    pub fn received(&mut self, group: GroupId, info: SnapshotInfo) -> Option<R> {
        let (receiving, receiver) = self.of(group).receiving.take()?;
        (receiving == info).then_some(receiver)
    }

    /// The pieces of a snapshot cannot be written.
    pub fn give_up(&mut self, group: GroupId) {
        self.of(group).receiving = None;
    }

    /// The file that a peer has sent for a merged group, if its `contents` may get the name.
    pub fn accepted(
        &self,
        group: GroupId,
        info: SnapshotInfo,
        contents: &mut dyn Read,
    ) -> Option<MergedFile> {
        self.merged.as_ref()?.accepted(group, info, self.groups.len(), contents)
    }

    /// A file that was accepted has its name now. The executor is to go on from it.
    pub fn named(&mut self, file: MergedFile) {
        if let Some(files) = &mut self.merged {
            files.receive(file);
        }
    }

    /// The executor has gone on from a file that was received, or cannot. Then these files of the group stay, and the
    /// received one is to be deleted: it may be newer than all others, and the next life would begin with it.
    pub fn restored(&mut self, group: GroupId, slot: Slot, sound: bool) -> Option<Vec<Slot>> {
        let files = self.merged.as_mut()?;
        if sound {
            files.installed(group, slot);
            return None;
        }
        files.forget(group, slot);
        Some(files.slots_of(group))
    }

    /// Whether a file that this replica wrote may get its name. `cut` says how far merged groups are in it.
    #[must_use]
    pub fn may_be_named(&self, group: GroupId, slot: Slot, cut: Option<&Cut>) -> bool {
        let named = self.merged.as_ref().zip(cut);
        named.is_none_or(|(files, cut)| files.may_be_named(group, slot, cut))
    }

    /// A file that this replica wrote has its name now. Returns what the other groups are to be told, which it holds
    /// too if they are merged.
    pub fn written(
        &mut self,
        group: GroupId,
        info: SnapshotInfo,
        cut: Option<Cut>,
    ) -> Vec<(GroupId, SnapshotInfo)> {
        let Some((files, cut)) = self.merged.as_mut().zip(cut) else { return Vec::new() };
        let others = (0u16..).map(GroupId).zip(&cut.slots);
        let others = others.filter(|&(other, &slot)| other != group && slot > Slot::ZERO);
        let shared = others.map(|(other, &slot)| (other, SnapshotInfo { slot, ..info })).collect();
        files.add(MergedFile { cut, group, slot: info.slot, bytes: info.bytes });
        shared
    }

    /// Which files stay, now that the group has a new one; of each group of which some may have to go.
    pub fn keep(&mut self, now: Time, group: GroupId) -> Vec<(GroupId, Kept)> {
        let receives = |of: &OfGroup<R>| of.served.is_some_and(|served| now.since(served) < RECEIVES_FOR);
        let Some(files) = &mut self.merged else {
            let of_peers = if receives(self.of(group)) { KEPT_FOR_PEERS } else { 0 };
            let kept = if has(HostBug::KeepNoFile) { 0 } else { KEPT + of_peers };
            return vec![(group, Kept::Newest(kept))];
        };
        files.keep(KEPT, self.groups.iter().any(receives));
        let groups = (0..self.groups.len() as u16).map(GroupId);
        groups.map(|group| (group, Kept::Slots(files.slots_of(group)))).collect()
    }

    fn of(&mut self, group: GroupId) -> &mut OfGroup<R> {
        &mut self.groups[usize::from(group.0)]
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    const FIRST: GroupId = GroupId::FIRST;
    const SECOND: GroupId = GroupId(1);
    const PEER: ReplicaId = ReplicaId(2);

    fn info(slot: u64, bytes: u64) -> SnapshotInfo {
        SnapshotInfo { slot: Slot(slot), bytes }
    }

    fn at(seconds: u64) -> Time {
        Time::ZERO + Duration::from_secs(seconds)
    }

    fn cut(slots: [u64; 2], order: u64) -> Cut {
        Cut { slots: slots.map(Slot).into(), order }
    }

    #[test]
    fn pieces_of_another_snapshot_begin_again() {
        let mut book = SnapshotBook::<Vec<u8>>::new(1, None);
        let mut piece = |info, offset, byte| {
            let begun = book.receive(FIRST, info, offset, || Ok::<_, Infallible>(Vec::new()));
            let Ok(bytes) = begun;
            bytes.push(byte);
            bytes.clone()
        };
        assert_eq!(piece(info(5, 2), 0, 1), [1]);
        assert_eq!(piece(info(5, 2), 1, 2), [1, 2]);
        assert_eq!(piece(info(5, 2), 0, 3), [3], "its first piece again");
        assert_eq!(piece(info(7, 2), 1, 4), [4], "another one");
        assert_eq!(book.received(FIRST, info(5, 2)), None, "that is not the one which came");
        assert_eq!(book.received(FIRST, info(7, 2)), None, "and no pieces are left");
        let failed = book.receive(FIRST, info(8, 2), 0, || Err("no room"));
        assert_eq!(failed, Err("no room"));
        assert_eq!(book.received(FIRST, info(8, 2)), None);
    }

    #[test]
    fn files_stay_while_a_peer_receives_one() {
        let mut book = SnapshotBook::<()>::new(2, None);
        assert_eq!(book.keep(at(1), FIRST), [(FIRST, Kept::Newest(2))]);
        assert_eq!(book.serve(at(1), PEER, FIRST, Slot(4), 0), (FIRST, Slot(4)));
        assert_eq!(book.keep(at(10), FIRST), [(FIRST, Kept::Newest(4))]);
        assert_eq!(book.keep(at(10), SECOND), [(SECOND, Kept::Newest(2))]);
        assert_eq!(book.keep(at(11), FIRST), [(FIRST, Kept::Newest(2))]);
    }

    #[test]
    fn a_file_of_merged_groups_is_told_to_all_and_has_one_name() {
        let mut book = SnapshotBook::<()>::new(2, Some(MergedFiles::default()));
        assert_eq!(book.written(FIRST, info(4, 9), Some(cut([4, 3], 4))), [(SECOND, info(3, 9))]);
        assert_eq!(book.serve(at(1), PEER, SECOND, Slot(3), 0), (FIRST, Slot(4)));
        let less = cut([4, 2], 4);
        assert!(
            !book.may_be_named(FIRST, Slot(4), Some(&less)) && book.may_be_named(FIRST, Slot(5), Some(&less))
        );
        assert_eq!(book.written(FIRST, info(5, 9), Some(cut([5, 0], 5))), []);
        let kept = |slots: [&[u64]; 2]| {
            let of = |slots: &[u64]| Kept::Slots(slots.iter().copied().map(Slot).collect());
            [(FIRST, of(slots[0])), (SECOND, of(slots[1]))]
        };
        assert_eq!(book.written(SECOND, info(6, 9), Some(cut([5, 6], 6))), [(FIRST, info(5, 9))]);
        assert_eq!(book.keep(at(2), SECOND), kept([&[4, 5], &[6]]), "the peer still receives the first one");
        assert_eq!(book.keep(at(20), SECOND), kept([&[5], &[6]]));
    }

    #[test]
    fn a_received_file_that_cannot_be_read_loses_its_name() {
        let mut book = SnapshotBook::<()>::new(2, Some(MergedFiles::default()));
        book.written(FIRST, info(4, 9), Some(cut([4, 3], 4)));
        let received = MergedFile { cut: cut([7, 5], 8), group: FIRST, slot: Slot(7), bytes: 9 };
        book.named(received.clone());
        assert_eq!(book.serve(at(1), PEER, FIRST, Slot(7), 0), (FIRST, Slot(7)), "no replica offers it yet");
        assert_eq!(book.restored(FIRST, Slot(7), false), Some(vec![Slot(4)]));
        book.named(received);
        assert_eq!(book.restored(FIRST, Slot(7), true), None);
        assert_eq!(book.serve(at(1), PEER, SECOND, Slot(5), 0), (FIRST, Slot(7)));
    }
}

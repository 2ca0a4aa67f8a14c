//! Situations in a group that begins with the state of a backup. A slot stands for it that is in no log, so a replica
//! that lacks it has to get a snapshot.

use synod_replica::{Event, PeerMessage};
use synod_wire::{Epoch, Slot};

use super::{
    Reached, Sight, Situation,
    scene::{Actor, Scene},
};

pub(super) fn see(scene: &Scene, sight: &Sight<'_>, reached: &mut Reached) {
    let backup = scene.backup;
    if backup == Slot::ZERO {
        return;
    }
    match *sight {
        Sight::Starts { of, snapshot, .. } => {
            let votes = scene.voters.contains(&of);
            reached.mark(Situation::BackupLost, votes && snapshot < backup);
            reached.mark(Situation::BackupLacking, !votes && snapshot < backup);
        }
        Sight::Sends { message: PeerMessage::Fetch { from, .. }, .. } => {
            reached.mark(Situation::BackupAsked, *from <= backup);
        }
        Sight::Takes { event: Event::SnapshotInstalled(Some(installed)), .. } => {
            reached.mark(Situation::BackupFetched, installed.info.slot == backup);
        }
        Sight::Regroups { before, group, .. } => {
            // What is in no epoch yet is just starting, and shows nothing of what it has.
            let lacks = |actor: &Actor| actor.face.epoch > Epoch(0) && actor.face.decided < backup;
            let ends = group.epoch > before.epoch;
            reached
                .mark(Situation::EpochWithoutBackup, ends && scene.running().any(|(_, actor)| lacks(actor)));
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use synod_consensus::Options;
    use synod_replica::{Group, History, Installed, SnapshotInfo};
    use synod_wire::{Ballots, ReplicaId};

    use super::{
        super::{Face, Situations},
        *,
    };

    fn group() -> Group {
        Group::of(&Options::default(), (1..=3).map(ReplicaId))
    }

    /// What is reached by this, in a group that begins with a backup and in one that does not.
    fn reach(sights: &[Sight<'_>]) -> [Vec<Situation>; 2] {
        [group().after_backup(), group()].map(|group| {
            let mut seen = Situations::new(&group, 4);
            sights.iter().for_each(|sight| seen.see(sight));
            seen.reached().iter().collect()
        })
    }

    fn starts(of: usize, snapshot: u64) -> Sight<'static> {
        let (tail, snapshot) = (Slot::ZERO, Slot(snapshot));
        Sight::Starts { of, tail, snapshot, amnesia: false, votes_lost: None }
    }

    #[test]
    fn one_lacks_a_backup_whose_group_began_with_one_and_that_has_no_snapshot() {
        assert_eq!(reach(&[starts(0, 1), starts(1, 7)]), [vec![], vec![]]);
        assert_eq!(reach(&[starts(2, 0)]), [vec![Situation::BackupLost], vec![]]);
        assert_eq!(reach(&[starts(3, 0)]), [vec![Situation::BackupLacking], vec![]]);
        assert_eq!(reach(&[starts(3, 1)]), [vec![], vec![]]);
    }

    #[test]
    fn the_backup_is_asked_for_by_its_slot_and_comes_as_its_snapshot() {
        let asked = |from| {
            let message = PeerMessage::Fetch { from: Slot(from), through: Slot(9) };
            reach(&[Sight::Sends { from: 0, to: 1, message: &message }])
        };
        assert_eq!(asked(1), [vec![Situation::BackupAsked], vec![]]);
        assert_eq!(asked(2), [vec![], vec![]]);
        let installed = |slot| {
            let (group, history) = (group().after_backup(), History::beginning());
            let info = SnapshotInfo { slot: Slot(slot), bytes: 1 };
            let installed = Installed { info, ballots: Ballots::ZERO, group, history };
            let event = Event::SnapshotInstalled(Some(Box::new(installed)));
            // One of no epoch would take it for the end of one.
            let face = Face { epoch: Epoch(1), ..Face::NEW };
            reach(&[Sight::Stepped { of: 0, face }, Sight::Takes { of: 0, event: &event }])
        };
        assert_eq!(installed(1), [vec![Situation::BackupFetched], vec![]]);
        assert_eq!(installed(2), [vec![], vec![]]);
    }

    #[test]
    fn an_epoch_ends_too_early_for_a_replica_that_runs_and_has_decided_nothing() {
        let before = group().after_backup();
        let mut same = before.clone();
        same.version = 2;
        let mut next = same.clone();
        (next.epoch, next.first) = (Epoch(2), Slot(3));
        let with = |decided, group: &Group| {
            let face = Face { epoch: Epoch(1), decided: Slot(decided), ..Face::NEW };
            reach(&[
                starts(0, 1),
                Sight::Stepped { of: 0, face },
                Sight::Regroups { slot: Slot(2), before: &before, group },
            ])
        };
        assert_eq!(with(0, &next), [vec![Situation::EpochWithoutBackup], vec![]]);
        assert_eq!(with(1, &next), [vec![], vec![]]);
        assert_eq!(with(0, &same), [vec![], vec![]]);
        // One that starts has not shown yet what it has.
        let starting = [starts(0, 1), Sight::Regroups { slot: Slot(2), before: &before, group: &next }];
        assert_eq!(reach(&starting), [vec![], vec![]]);
    }
}

//! What becomes of leases and watches, which the store keeps, while replicas fail and lead.

use synod_consensus::Role;

use super::{Reached, Sight, Situation, scene::Scene};
use crate::check::LeaseAct;

pub(super) fn see(scene: &Scene, sight: &Sight<'_>, reached: &mut Reached) {
    match *sight {
        Sight::Leases(acts) => {
            // One that is paused for long would go on with the clock where it left off.
            let two_lead = || scene.claim_to_lead().count() > 1;
            for act in acts {
                match *act {
                    LeaseAct::Ended { had_keys, .. } => {
                        reached.mark(Situation::LeaseEndsWithKeys, had_keys);
                        reached.mark(Situation::LeaseEndsWhileTwoLead, two_lead());
                    }
                    LeaseAct::StartsAgain { .. } => reached.mark(Situation::LeaseStartsAgain, true),
                    LeaseAct::Lives { .. } | LeaseAct::Revoked { .. } => {}
                }
            }
        }
        Sight::Renews { of } => {
            reached.mark(Situation::RenewedByFollower, scene.actors[of].face.role != Role::Leader);
        }
        Sight::Watches(remarks) => {
            reached.mark(Situation::WatchAfterCrash, remarks.after_crash);
            reached.mark(Situation::WatchFromHistory, remarks.from_history);
            reached.mark(Situation::WatchOverSnapshot, remarks.after_snapshot);
            reached.mark(Situation::WatchCompacted, remarks.compacted);
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use synod_wire::{Ballot, Epoch, ReplicaId};

    use super::{
        super::{Face, Situations, stories::three},
        *,
    };
    use crate::watches::Remarks;

    /// What is reached by a sight, and was not before.
    fn reaches(seen: &mut Situations, sight: &Sight<'_>) -> Vec<Situation> {
        let before = seen.reached();
        seen.see(sight);
        seen.reached().iter().filter(|situation| !before.has(*situation)).collect()
    }

    fn leads(seen: &mut Situations, of: usize, round: u64) {
        let me = ReplicaId(of as u64 + 1);
        let ballot = Ballot { round, replica: me };
        let face = Face { role: Role::Leader, ballot, leader: Some(me), epoch: Epoch(1), ..Face::NEW };
        seen.see(&Sight::Stepped { of, face });
    }

    #[test]
    fn leases_end_with_keys_or_without_and_under_two_leaders() {
        let mut seen = three();
        leads(&mut seen, 0, 1);
        let ended = |had_keys| [LeaseAct::Ended { lease: 1, had_keys }];
        let lives = [LeaseAct::Lives { lease: 1, seconds: 1 }, LeaseAct::Revoked { lease: 1 }];
        assert_eq!(reaches(&mut seen, &Sight::Leases(&lives)), []);
        assert_eq!(reaches(&mut seen, &Sight::Leases(&ended(false))), []);
        assert_eq!(reaches(&mut seen, &Sight::Leases(&ended(true))), [Situation::LeaseEndsWithKeys]);
        let again = [LeaseAct::StartsAgain { lease: 1 }];
        assert_eq!(reaches(&mut seen, &Sight::Leases(&again)), [Situation::LeaseStartsAgain]);
        leads(&mut seen, 1, 2);
        assert_eq!(reaches(&mut seen, &Sight::Leases(&ended(false))), [Situation::LeaseEndsWhileTwoLead]);
    }

    #[test]
    fn renewals_count_where_nobody_leads() {
        let mut seen = three();
        leads(&mut seen, 0, 1);
        assert_eq!(reaches(&mut seen, &Sight::Renews { of: 0 }), []);
        assert_eq!(reaches(&mut seen, &Sight::Renews { of: 1 }), [Situation::RenewedByFollower]);
    }

    #[test]
    fn watches_count_by_what_a_watcher_was_told() {
        let mut seen = three();
        let nothing = Remarks { began: true, events: 1, ..Remarks::default() };
        assert_eq!(reaches(&mut seen, &Sight::Watches(&nothing)), []);
        for (remarks, situation) in [
            (Remarks { after_crash: true, ..nothing }, Situation::WatchAfterCrash),
            (Remarks { from_history: true, ..nothing }, Situation::WatchFromHistory),
            (Remarks { after_snapshot: true, ..nothing }, Situation::WatchOverSnapshot),
            (Remarks { compacted: true, ..nothing }, Situation::WatchCompacted),
        ] {
            assert_eq!(reaches(&mut seen, &Sight::Watches(&remarks)), [situation]);
        }
    }
}

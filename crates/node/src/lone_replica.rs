//! What a replica that lost something of its log may do, which depends on the other replicas that may hold
//! what is missing.
//!
//! The log itself cannot say who these are, for the record that says so may be the one that is lost. So the
//! group is written down beside the log, in [`Origin::present`]: durably, with every `--durability`, and
//! before this replica sends a message to a replica because it is a member. A member is in the group as a
//! learner before it votes. Hence, whatever was lost: if no other replica is written down, then every other
//! replica that ever acted on a decision of this one has been removed since; and if another is written down,
//! this replica decides nothing by itself any more.
//!
//! A removed replica may not have heard of its removal. So a loss that includes the record of earlier members
//! ends the cluster ([`StartError::MembersForgotten`](crate::StartError)): their ids would be given to new
//! replicas, and the removed ones would be believed under these ids.

use synod_consensus::VoterSets;
use synod_replica::Group;
use synod_storage::Loss;
use synod_wire::ReplicaId;

/// The other replicas that may hold what a replica lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OtherHolders {
    /// This replica is the only member.
    Nobody,
    /// The other members only learn. What they hold is a part of what this replica had, and no majority can
    /// tell which part.
    Learners,
    /// Other members vote.
    Voters,
}

/// What a replica does about a loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It learns from a majority of the other members before it votes again.
    Learn,
    /// It goes on with what is there.
    GoOn,
    /// It goes on if the operator says so, since acknowledged writes may be missing.
    GoOnIfTold,
    /// It does not start, and the operator has to start a new cluster: a learner that holds more than this
    /// replica would otherwise follow a history that differs from its own.
    Refuse,
}

impl OtherHolders {
    /// The other holders of what `me` lost, where `group` is the group that was written down last.
    pub(crate) fn of(me: ReplicaId, group: &Group) -> OtherHolders {
        if group.members.iter().all(|member| member.id == me) {
            OtherHolders::Nobody
        } else if is_only_voter(me, group) {
            OtherHolders::Learners
        } else {
            OtherHolders::Voters
        }
    }

    /// Those of a replica in all its groups. They share the log that may lack something, and differ only for as
    /// long as some of them do not follow yet. Then neither can it be said that nobody else holds what is missing, nor
    /// that others can tell it in every group, which is as with learners.
    pub(crate) fn in_all(groups: impl IntoIterator<Item = OtherHolders>) -> OtherHolders {
        let mut groups = groups.into_iter();
        let first = groups.next().expect("a replica has a group");
        if groups.all(|other| other == first) { first } else { OtherHolders::Learners }
    }

    pub(crate) fn verdict(self, loss: &Loss) -> Verdict {
        match (self, loss) {
            (OtherHolders::Voters, _) => Verdict::Learn,
            (OtherHolders::Learners, _) => Verdict::Refuse,
            // The operator chose a durability that acknowledges what a restart may lose.
            (OtherHolders::Nobody, Loss::Memory | Loss::Reboot) => Verdict::GoOn,
            (OtherHolders::Nobody, _) => Verdict::GoOnIfTold,
        }
    }
}

pub(crate) fn is_only_voter(me: ReplicaId, group: &Group) -> bool {
    group.voter_sets() == VoterSets::simple(vec![me])
}

#[cfg(test)]
mod tests {
    use synod_consensus::{Options, ProtocolKind};
    use synod_replica::{Change, ChangeRequest, Goal, MemberInfo};
    use synod_wire::Slot;

    use super::*;

    const R1: ReplicaId = ReplicaId(1);
    const R2: ReplicaId = ReplicaId(2);

    #[test]
    fn a_learner_may_hold_it_and_is_no_majority() {
        let options = Options::of(ProtocolKind::Raft);
        let alone = Group::of(&options, [R1]);
        let add = Change::Add { info: MemberInfo::default(), goal: Goal::Vote };
        let with_learner =
            alone.apply(Slot(1), &ChangeRequest { expected: alone.version, change: add }).unwrap();
        assert_eq!(OtherHolders::of(R1, &alone), OtherHolders::Nobody);
        assert_eq!(OtherHolders::of(R1, &with_learner), OtherHolders::Learners);
        assert_eq!(OtherHolders::of(R1, &Group::of(&options, [R1, R2])), OtherHolders::Voters);
        assert_eq!(OtherHolders::of(R2, &with_learner), OtherHolders::Voters);
    }

    #[test]
    fn groups_that_differ_have_nobody_who_could_tell_what_is_missing() {
        use OtherHolders::*;
        for (groups, all) in [
            (vec![Voters, Voters], Voters),
            (vec![Nobody, Nobody], Nobody),
            (vec![Voters, Nobody], Learners),
            (vec![Nobody, Learners], Learners),
        ] {
            assert_eq!(OtherHolders::in_all(groups), all);
        }
    }

    #[test]
    fn only_a_replica_without_others_goes_on_after_a_loss() {
        use Verdict::*;
        for (others, memory, missing) in [
            (OtherHolders::Nobody, GoOn, GoOnIfTold),
            (OtherHolders::Learners, Refuse, Refuse),
            (OtherHolders::Voters, Learn, Learn),
        ] {
            assert_eq!(others.verdict(&Loss::Memory), memory);
            assert_eq!(others.verdict(&Loss::LogMissing), missing);
        }
    }
}

//! What a replica may do that lost something of its log: that depends on who else may hold what is missing.
//!
//! The log itself cannot tell, for the record that says so may be the one that is lost. So the group is written down
//! beside the log, in [`Origin::present`], durably, with every `--durability`, and before anybody is sent a message
//! because he is a member of it. A member is there as a learner before it votes. Hence, whatever was lost: if nobody else
//! is written down, nobody else has ever acted on what this replica decided and not been removed since; and if somebody
//! is, this replica decides nothing by itself any more.
//!
//! One that was removed may not have heard of it. So a loss that takes along who was a member once ends the cluster
//! ([`StartError::MembersForgotten`](crate::StartError)): their ids would be given again, and they would be believed.

use synod_consensus::VoterSets;
use synod_replica::Group;
use synod_storage::Loss;
use synod_wire::ReplicaId;

/// Who else may hold what a replica lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Company {
    /// Nobody: this is the only member.
    Nobody,
    /// Members that only learn. What they hold is a part of what this replica had, and no majority can tell which.
    Learners,
    /// Others vote.
    Voters,
}

/// What is to be done about a loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Learn from a majority of the others before voting again.
    Learn,
    /// Go on with what is there.
    GoOn,
    /// Go on if the operator says so, since acknowledged writes may be missing.
    GoOnIfTold,
    /// Start a new cluster: learners that hold more would otherwise follow another history than theirs.
    Refuse,
}

impl Company {
    /// Of `me` in `group`, the one that was written down last.
    pub(crate) fn of(me: ReplicaId, group: &Group) -> Company {
        if group.members.iter().all(|member| member.id == me) {
            Company::Nobody
        } else if is_only_voter(me, group) {
            Company::Learners
        } else {
            Company::Voters
        }
    }

    pub(crate) fn verdict(self, loss: &Loss) -> Verdict {
        match (self, loss) {
            (Company::Voters, _) => Verdict::Learn,
            (Company::Learners, _) => Verdict::Refuse,
            // It was told to acknowledge what a restart may lose.
            (Company::Nobody, Loss::Memory | Loss::Reboot) => Verdict::GoOn,
            (Company::Nobody, _) => Verdict::GoOnIfTold,
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
    fn a_learner_is_company_but_nobody_who_can_tell() {
        let options = Options::of(ProtocolKind::Raft);
        let alone = Group::of(&options, [R1]);
        let add = Change::Add { info: MemberInfo::default(), goal: Goal::Vote };
        let with_learner =
            alone.apply(Slot(1), &ChangeRequest { expected: alone.version, change: add }).unwrap();
        assert_eq!(Company::of(R1, &alone), Company::Nobody);
        assert_eq!(Company::of(R1, &with_learner), Company::Learners);
        assert_eq!(Company::of(R1, &Group::of(&options, [R1, R2])), Company::Voters);
        assert_eq!(Company::of(R2, &with_learner), Company::Voters);
    }

    #[test]
    fn only_who_is_alone_goes_on() {
        use Verdict::*;
        for (company, memory, missing) in [
            (Company::Nobody, GoOn, GoOnIfTold),
            (Company::Learners, Refuse, Refuse),
            (Company::Voters, Learn, Learn),
        ] {
            assert_eq!(company.verdict(&Loss::Memory), memory);
            assert_eq!(company.verdict(&Loss::LogMissing), missing);
        }
    }
}

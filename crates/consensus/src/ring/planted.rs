//! Bugs of the ring that a test can plant ([`crate::Bug`]), and the rule that each replaces. Those that replace a rule of
//! the family are in `../planted.rs`.

use synod_wire::{Lsn, Slot};

use super::{
    Content,
    rules::{Passing, Rules, accepts, decides},
};
use crate::{Members, Options, ReplicaSet, Threshold, planted::is_nearly_quorum};

/// A known mistake in an implementation of the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// Votes are counted, not collected as a set: one that comes back to where it was given counts again (Benz 2013,
    /// ERR-5).
    CountVotes,
    /// The first member at which one vote less than a quorum has come together makes the decision.
    DecideEarly,
    /// A member whose disk is slow lets the votes pass with its own, although its record is not durable.
    PassWithOwn,
    /// Bytes leave one hop too early.
    StripEarly,
    /// A replica votes for a name whose batch it does not hold (ERR-23).
    VoteWithoutBytes,
    /// A new coordinator takes the reported value with the lowest ballot instead of the highest (ERR-2).
    AdoptLowestBallot,
    /// A new coordinator puts no-ops where acceptors reported values (ERR-2).
    DropAcceptedValue,
    /// What was told of one range of slots is taken for all that was accepted, although the answers say that there is
    /// more.
    TakeRangeForAll,
    /// A learner adds a vote to those that pass it.
    LearnerVotes,
    /// A replica that accepted a value in a lower ballot keeps it, and votes for it in the new ballot (ERR-6).
    KeepAcceptedValue,
    /// A replica accepts another value in a ballot in which it has accepted one (A7).
    AcceptAnother,
    /// A new coordinator proposes in slots that an answer says to be decided (A1).
    ProposeBelowPrefix,
    /// A replica that refuses a message of a lower ballot does not send it on (ERR-20).
    DropRefused,
    /// A decision of one ballot is taken for the value that was accepted in another.
    DecideAcrossBallots,
}

/// The rules of a replica with these options: a planted bug replaces one.
#[inline]
pub(super) fn rules(options: &Options) -> Rules {
    let mut rules = Rules::SOUND;
    match options.planted_bug() {
        Some(crate::Bug::CommitWithMinority) => rules.decides = decides_early,
        Some(crate::Bug::Ring(bug)) => replace(&mut rules, bug),
        _ => {}
    }
    rules
}

fn replace(rules: &mut Rules, bug: Bug) {
    match bug {
        Bug::CountVotes => {
            rules.decides = decides_by_count;
            rules.came_round = counted_again;
        }
        Bug::DecideEarly => rules.decides = decides_early,
        Bug::PassWithOwn => {
            rules.own_vote_after = |record, is_late| if is_late { record.map(|_| Lsn::ZERO) } else { record };
        }
        Bug::StripEarly => rules.hops_of_bytes = |ring| ring.hops().saturating_sub(1),
        Bug::VoteWithoutBytes => {
            rules.accepts = |proposed, before, passed| match proposed {
                Content::Name(name) => accepts(proposed, before, passed).or_else(|| Some(name.clone())),
                Content::Whole(_) => accepts(proposed, before, passed),
            };
        }
        Bug::TakeRangeForAll => {
            rules.reserved = |through, has_no_more| Some(if has_no_more { through } else { Slot(u64::MAX) });
        }
        Bug::LearnerVotes => rules.is_acceptor = |_| true,
        Bug::KeepAcceptedValue => {
            rules.accepts =
                |proposed, before, passed| before.cloned().or_else(|| accepts(proposed, before, passed));
        }
        Bug::AcceptAnother => rules.may_accept = |_, _| true,
        Bug::ProposeBelowPrefix => rules.proposes_after = |_, own| own,
        Bug::DropRefused => rules.refused = |_| None,
        Bug::AdoptLowestBallot | Bug::DropAcceptedValue | Bug::DecideAcrossBallots => {}
    }
}

fn decides_early(votes: &Passing<'_>) -> bool {
    let voters = votes.view.voters(votes.leave, votes.members);
    votes.decides_here() && is_nearly_quorum(votes.members, voters)
}

/// The vote of this member is added whether or not it is there already.
fn decides_by_count(votes: &Passing<'_>) -> bool {
    let quorum = Threshold::Majority.least(votes.members.count());
    decides(votes) || votes.came == votes.leave && votes.leave.count() + 1 >= quorum
}

/// Numbers of votes are added up, whichever members gave them.
fn counted_again(members: &Members, known: ReplicaSet, voters: ReplicaSet) -> ReplicaSet {
    let count = known.len() + voters.len();
    members.ids().iter().take(count).fold(voters, |set, &id| set.union(members.only(id)))
}

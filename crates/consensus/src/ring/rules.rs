//! The rules of the ring that are its own. Those that the whole family has are in `../rules.rs`: what a replica may
//! answer, what a quorum is, which value a new coordinator adopts, what an announcement decides.
//!
//! Benz 2013 has no pseudo-code. ERR-n are corrections of it, A-n amendments (docs/ring.md, "The document").

use synod_wire::{Ballot, Batch, Lsn, Slot};

use super::{Content, Message, RingDecision, View, Votes};
use crate::{Members, ReplicaSet, Role, rules::rules};

/// Votes that pass a member: as they came, and as they leave with its own among them or without.
pub(super) struct Passing<'a> {
    pub(super) members: &'a Members,
    pub(super) view: &'a View,
    pub(super) decision: RingDecision,
    /// The next member is the coordinator.
    pub(super) is_last: bool,
    pub(super) came: Votes,
    pub(super) leave: Votes,
}

impl Passing<'_> {
    /// Whether this member is the one that may decide.
    pub(super) fn decides_here(&self) -> bool {
        match self.decision {
            RingDecision::Quorum => self.leave != self.came,
            RingDecision::Last => self.is_last,
        }
    }
}

rules! {
    // Phase 1.

    /// The last slot in which a candidate may propose that was told of the slots through `through`: a read would miss
    /// what may have been chosen later, so it asks on unless a quorum accepted nothing there (section 3.1.2).
    fn reserved(through: Slot, quorum_has_no_more: bool) -> Option<Slot> {
        quorum_has_no_more.then_some(through)
    }

    /// A new coordinator proposes after the longest prefix that an answer says to be decided, perhaps where its values
    /// were trimmed (section 3.1.2, A1).
    fn proposes_after(told: Slot, own: Slot) -> Slot {
        told.max(own)
    }

    // Accepting.

    /// Of two values in one ballot a member stays with the one that it has (section 3.1.3, A7).
    fn may_accept(accepted_in: Option<Ballot>, ballot: Ballot) -> bool {
        accepted_in != Some(ballot)
    }

    /// What a member writes down for a proposal: its bytes, which a name finds in what the member accepted before in
    /// the slot, or in what passed by. Of a value whose bytes are not here it writes down nothing, so it does not vote
    /// (section 3.1.3, ERR-23). What it accepted in a lower ballot is replaced (ERR-6).
    fn accepts(proposed: &Content, before: Option<&Batch>, passed: Option<&Batch>) -> Option<Batch> {
        match proposed {
            Content::Whole(batch) => Some(batch.clone()),
            Content::Name(name) => before.filter(|batch| name.stands_for(batch)).or(passed).cloned(),
        }
    }

    // Voting and deciding.

    /// Acceptors vote; learners pass votes on (section 2.3).
    fn is_acceptor(role: Role) -> bool {
        role != Role::Learner
    }

    /// The record after which votes go on with a member's own among them; without it where its vote comes late, which
    /// then goes straight to the coordinator (`late.rs`).
    fn own_vote_after(record: Option<Lsn>, is_late: bool) -> Option<Lsn> {
        record.filter(|_| !is_late)
    }

    /// The member at which the votes reach a quorum decides, or the last one of the ring if that is chosen. Votes are a
    /// set, of whichever replicas gave them (section 2.3, ERR-5).
    fn decides(votes: &Passing<'_>) -> bool {
        votes.decides_here() && votes.members.is_quorum(votes.view.voters(votes.leave, votes.members))
    }

    /// Votes that came round count as a set, with those that are known (ERR-5).
    #[allow(unused_variables, reason = "a planted bug adds up numbers of votes")]
    fn came_round(members: &Members, known: ReplicaSet, voters: ReplicaSet) -> ReplicaSet {
        voters
    }

    // Sending on.

    /// What a member refuses goes on unchanged: the others may be a quorum (section 3.1.2, ERR-20).
    fn refused(message: Message) -> Option<Message> {
        Some(message)
    }

    /// Bytes go with a batch for this many hops from its origin: past all others (section 2.3).
    fn hops_of_bytes(ring: &View) -> u8 {
        ring.hops()
    }
}

#[cfg(test)]
mod tests {
    use synod_wire::ReplicaId;

    use super::*;
    use crate::{
        Options,
        ring::{Bug, planted, tests::batch},
    };

    fn with(bug: Bug) -> Rules {
        planted::rules(&Options { planted: Some(bug.into()), ..Options::default() })
    }

    fn ballot(round: u64) -> Ballot {
        Ballot { round, replica: ReplicaId(1) }
    }

    /// Against all sets of votes of up to five members: a majority decides where its last vote was added, or at the
    /// last member, and nothing else does.
    #[test]
    fn a_majority_of_members_decides_at_one_place() {
        let mut differs = [false; 2];
        for n in 1..=5u64 {
            let members = &Members::new((1..=n).map(ReplicaId), ReplicaId(1));
            let view = &View::probe(
                Ballot { round: 1, replica: ReplicaId(n) },
                (1..=n).rev().map(ReplicaId).collect(),
            );
            for (bits, place) in (0..1u64 << n).flat_map(|bits| (0..n).map(move |place| (bits, place))) {
                let (came, leave) = (Votes([bits & !(1 << place), 0]), Votes([bits, 0]));
                let enough = 2 * u64::from(bits.count_ones()) > n;
                for (decision, is_last) in [
                    (RingDecision::Quorum, false),
                    (RingDecision::Quorum, true),
                    (RingDecision::Last, false),
                    (RingDecision::Last, true),
                ] {
                    let here = if decision == RingDecision::Last { is_last } else { bits >> place & 1 == 1 };
                    let votes = Passing { members, view, decision, is_last, came, leave };
                    assert_eq!(decides(&votes), enough && here, "{n} members, {bits:b} at {place}");
                    differs[0] |= with(Bug::DecideEarly).decides(&votes) && !enough;
                    differs[1] |= with(Bug::CountVotes).decides(&votes) && !enough;
                }
            }
            let one = members.only(ReplicaId(1));
            assert_eq!(came_round(members, one, one), one);
            assert_eq!(with(Bug::CountVotes).came_round(members, one, one).len() as u64, n.min(2));
        }
        assert_eq!(differs, [true; 2], "the planted bugs decide with less");
    }

    #[test]
    fn a_member_writes_down_the_bytes_of_what_is_proposed_and_nothing_else() {
        let (proposed, another) = (batch(1, 1), batch(1, 2));
        let name = Content::Name(proposed.reference().expect("it has a name"));
        let helds = || [None, Some(&proposed), Some(&another)];
        let passed = || [None, Some(&proposed)];
        for (before, passed) in
            helds().iter().flat_map(|before| passed().map(move |passed| (*before, passed)))
        {
            let whole = Content::Whole(proposed.clone());
            assert_eq!(accepts(&whole, before, passed), Some(proposed.clone()));
            let is_here = [before, passed].contains(&Some(&proposed));
            assert_eq!(accepts(&name, before, passed), is_here.then(|| proposed.clone()));
            let kept = with(Bug::KeepAcceptedValue).accepts(&whole, before, passed);
            assert_eq!(kept.as_ref(), before.or(Some(&proposed)));
            assert!(with(Bug::VoteWithoutBytes).accepts(&name, before, passed).is_some());
        }
    }

    #[test]
    fn a_ballot_has_one_value_in_a_slot() {
        for (before, ballot) in (0..3).flat_map(|before| (0..3).map(move |now| (ballot(before), ballot(now))))
        {
            assert_eq!(may_accept(Some(before), ballot), before != ballot);
            assert!(may_accept(None, ballot) && with(Bug::AcceptAnother).may_accept(Some(before), ballot));
        }
    }

    #[test]
    fn nothing_is_proposed_where_something_may_have_been_chosen() {
        let slots = || (0..4).map(Slot);
        for (told, own) in slots().flat_map(|told| slots().map(move |own| (told, own))) {
            let decided = |slot: &Slot| *slot <= told || *slot <= own;
            assert_eq!(Some(proposes_after(told, own)), slots().rfind(decided));
            assert_eq!(with(Bug::ProposeBelowPrefix).proposes_after(told, own), own);
            assert_eq!((reserved(told, true), reserved(told, false)), (Some(told), None));
            assert!(with(Bug::TakeRangeForAll).reserved(told, false).is_some());
        }
    }

    #[test]
    fn a_vote_goes_with_the_others_only_after_its_record() {
        let record = Some(Lsn(3));
        assert_eq!((own_vote_after(record, false), own_vote_after(record, true)), (record, None));
        assert_eq!(with(Bug::PassWithOwn).own_vote_after(record, true), Some(Lsn::ZERO));
        assert_eq!(with(Bug::PassWithOwn).own_vote_after(None, true), None);
    }

    #[test]
    fn learners_do_not_vote_and_everything_goes_on() {
        let roles = [Role::Follower, Role::Candidate, Role::Leader, Role::Recovering];
        assert!(roles.into_iter().all(is_acceptor) && !is_acceptor(Role::Learner));
        assert!(with(Bug::LearnerVotes).is_acceptor(Role::Learner));
        let message = Message::Reject { promised: ballot(2) };
        assert_eq!(refused(message.clone()), Some(message.clone()));
        assert_eq!(with(Bug::DropRefused).refused(message), None);
        let view = View::probe(ballot(1), [1, 2, 3].map(ReplicaId).to_vec());
        assert_eq!((hops_of_bytes(&view), with(Bug::StripEarly).hops_of_bytes(&view)), (2, 1));
    }
}

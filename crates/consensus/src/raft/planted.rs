//! Bugs of Raft that a test can plant, and the rules as a replica follows them, of which such a bug replaces one; see
//! [`crate::Bug`].

use synod_wire::{Ballot, Lsn, ReplicaId, Slot};

use super::{log::Position, rules};
use crate::{ChangeRefused, Options, VoterSets};

/// A known mistake in an implementation of Raft.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// A replica gives its vote to every candidate that asks, even twice in a term (Ng 2020, E25).
    VoteTwice,
    /// The longer log counts as up to date, whatever the terms of its entries (E25).
    VoteByLength,
    /// A vote is told before it is durable (E30).
    VoteBeforeDurable,
    /// A restarted replica forgets which candidate it voted for.
    ForgetVote,
    /// Entries are acknowledged before they are durable (E30).
    AckBeforeDurable,
    /// An append removes everything after it, including what is not in conflict (E27).
    TruncateAlways,
    /// Entries of older terms are committed by counting (E28).
    CountOldTerms,
    /// Under a joint configuration a majority of all voters counts as a quorum.
    UnionMajority,
    /// Voters are changed before the leader has committed an entry of its term, or the previous change.
    ChangeAtOnce,
    /// Votes are counted by messages and not by voters (Driftwood 2023, listing 4.2; ERR-20).
    CountVoteMessages,
    /// A round is answered with the end of the follower's log, whether it equals the leader's or not (ERR-6).
    ReplyWithLast,
    /// A commit status of an older term is merged (ERR-8).
    MergeOlderTerms,
    /// What replicas held in one term counts in the next.
    KeepStatusOfTerm,
    /// A replica counts as a holder of a slot although its log has no entry of the leader's term (ERR-9).
    HoldAnyTerm,
    /// Everything in the log is committed as soon as a commit status is known (ERR-11).
    CommitEverything,
    /// A follower commits what a quorum holds although its own log may differ from the leader's (ERR-11).
    CommitAnyTerm,
    /// A replica serves entries that a round needs from a log that may differ from the leader's.
    ServeAnyLog,
    /// A round that came without entries fits every log that is long enough, whatever the term of the entry there.
    FitByLength,
    /// A leader answers reads at what it has committed itself, although a follower may have committed more.
    ReadAtCommit,
    /// A replica counts the holders of slots that its log does not have, by the voters that its log names last.
    CountBeyondLog,
}

/// The rules that a replica follows: those of `rules.rs`, and of `driftwood/rules.rs`, of which a planted bug replaces
/// one. Without the feature `planted-bugs` there is none.
#[derive(Clone, Copy)]
pub(super) struct Rules(Option<Bug>);

impl Rules {
    pub(super) fn of(options: &Options) -> Rules {
        match options.planted {
            Some(crate::Bug::Raft(bug)) if options.has(bug) => Rules(Some(bug)),
            _ => Rules(None),
        }
    }

    pub(super) fn has(self, bug: Bug) -> bool {
        self.0 == Some(bug)
    }

    /// See [`rules::is_up_to_date`].
    pub(super) fn is_up_to_date(self, candidate: Position, own: Position) -> bool {
        match self.0 {
            Some(Bug::VoteByLength) => candidate.slot >= own.slot,
            _ => rules::is_up_to_date(candidate, own),
        }
    }

    /// See [`rules::may_vote`].
    pub(super) fn may_vote(self, voted_for: Option<ReplicaId>, candidate: ReplicaId, leads: bool) -> bool {
        rules::may_vote(voted_for, candidate, leads) || self.has(Bug::VoteTwice) && !leads
    }

    /// The vote of this term that a replica knows after a restart: the one that it wrote down (Ongaro 2014, 3.8).
    pub(super) fn recalls_vote(self, written: Option<ReplicaId>) -> Option<ReplicaId> {
        written.filter(|_| !self.has(Bug::ForgetVote))
    }

    /// The record that has to be durable before a message about a vote leaves: the one of the term with the vote (E30).
    pub(super) fn vote_rests_on(self, term: Lsn) -> Lsn {
        if self.has(Bug::VoteBeforeDurable) { Lsn::ZERO } else { term }
    }

    /// The record that has to be durable before entries are acknowledged: the later one of theirs and the term's (E30).
    pub(super) fn acknowledgement_rests_on(self, entries: Lsn, term: Lsn) -> Lsn {
        if self.has(Bug::AckBeforeDurable) { Lsn::ZERO } else { entries.max(term) }
    }

    /// See [`rules::counts_vote`].
    pub(super) fn counts_vote(self, granted: &[ReplicaId], voter: ReplicaId) -> bool {
        rules::counts_vote(granted, voter) || self.has(Bug::CountVoteMessages)
    }

    /// See [`rules::elects`].
    pub(super) fn elects(self, voters: &VoterSets, granted: &[ReplicaId]) -> bool {
        match self.0 {
            Some(Bug::UnionMajority) => rules::elects(&voters.union(), granted),
            Some(Bug::CountVoteMessages) => granted.len() > voters.all().len() / 2,
            _ => rules::elects(voters, granted),
        }
    }

    /// See [`rules::reached_by_quorum`].
    pub(super) fn reached_by_quorum(self, voters: &VoterSets, held: impl FnMut(ReplicaId) -> Slot) -> Slot {
        match self.0 {
            Some(Bug::UnionMajority) => rules::reached_by_quorum(&voters.union(), held),
            _ => rules::reached_by_quorum(voters, held),
        }
    }

    /// See [`rules::may_commit`].
    pub(super) fn may_commit(
        self,
        reached: Slot,
        there: Option<Ballot>,
        decided: Slot,
        leader: Ballot,
    ) -> bool {
        match self.0 {
            Some(Bug::CountOldTerms) => reached > decided,
            _ => rules::may_commit(reached, there, decided, leader),
        }
    }

    /// See [`rules::removed_from`].
    pub(super) fn removed_from(self, lacking: Option<Slot>, through: Slot, decided: Slot) -> Option<Slot> {
        match self.0 {
            Some(Bug::TruncateAlways) => lacking.or(Some(through.next())).filter(|&slot| slot > decided),
            _ => rules::removed_from(lacking, decided),
        }
    }

    /// See [`rules::may_change`].
    pub(super) fn may_change(
        self,
        has_own: bool,
        last_change: Slot,
        decided: Slot,
    ) -> Result<(), ChangeRefused> {
        match self.0 {
            Some(Bug::ChangeAtOnce) => Ok(()),
            _ => rules::may_change(has_own, last_change, decided),
        }
    }
}

//! Bugs of Raft that a test can plant ([`crate::Bug`]), and the rule that each replaces.

use synod_wire::Lsn;

use super::rules::{Rules, elects, may_vote, reached_by_quorum};
use crate::Options;

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

/// The rules of a replica with these options: a planted bug replaces one. Those that rounds of gossip add are in
/// `driftwood/planted.rs`.
#[inline]
pub(super) fn rules(options: &Options) -> Rules {
    let mut rules = Rules::SOUND;
    let Some(crate::Bug::Raft(bug)) = options.planted_bug() else { return rules };
    match bug {
        Bug::VoteTwice => rules.may_vote = |voted, from, leads| may_vote(voted, from, leads) || !leads,
        Bug::VoteByLength => rules.is_up_to_date = |candidate, own| candidate.slot >= own.slot,
        Bug::VoteBeforeDurable => rules.vote_rests_on = |_| Lsn::ZERO,
        Bug::ForgetVote => rules.recalls_vote = |_| None,
        Bug::AckBeforeDurable => rules.acknowledgement_rests_on = |_, _| Lsn::ZERO,
        Bug::TruncateAlways => {
            rules.removed_from =
                |lacking, through, decided| lacking.or(Some(through.next())).filter(|&slot| slot > decided);
        }
        Bug::CountOldTerms => rules.may_commit = |reached, _, decided, _| reached > decided,
        Bug::UnionMajority => {
            rules.elects = |voters, granted| elects(&voters.union(), granted);
            rules.reached_by_quorum = |voters, held| reached_by_quorum(&voters.union(), held);
        }
        Bug::ChangeAtOnce => rules.may_change = |_, _, _| Ok(()),
        Bug::CountVoteMessages => {
            rules.counts_vote = |_, _| true;
            rules.elects = |voters, granted| granted.len() > voters.all().len() / 2;
        }
        _ => {}
    }
    rules
}

//! What is known of Raft before it runs.

use super::Raft;
use crate::{Bug, ElectionKind, registry::Profile};

pub(crate) const PROFILE: Profile = Profile {
    elections: &[ElectionKind::Randomized],
    changes_voters_itself: true,
    recovers_itself: false,
    has_terms: true,
    keys: &[],
    options_to_try: &["window-max=2"],
    bugs: &[
        Bug::RaftVoteTwice,
        Bug::RaftVoteByLength,
        Bug::RaftVoteBeforeDurable,
        Bug::RaftForgetVote,
        Bug::RaftAckBeforeDurable,
        Bug::RaftTruncateAlways,
        Bug::RaftCountOldTerms,
    ],
    start: |options, members, restart, now, effects| {
        Box::new(Raft::start(options, members, restart, now, effects))
    },
};

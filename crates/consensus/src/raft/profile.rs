//! What is known of Raft before it runs, and its options.

use super::Raft;
use super::planted::Bug as Own;
use crate::{
    Bug, ElectionKind,
    registry::{Profile, Survives},
};

/// The options of Raft.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// How many messages with entries one follower may have unanswered; at least 1. Entries that wait for an
    /// answer leave together.
    pub inflight_max: usize,
    /// Bytes of batches in these messages; one message may always leave.
    pub inflight_bytes_max: usize,
    /// Bytes of batches in one message; one entry may always leave.
    pub append_bytes_max: usize,
}

impl Default for Tuning {
    fn default() -> Tuning {
        Tuning { inflight_max: 64, inflight_bytes_max: 8 << 20, append_bytes_max: 1 << 20 }
    }
}

pub(crate) const PROFILE: Profile = Profile {
    elections: &[ElectionKind::Randomized],
    changes_voters_itself: true,
    every_replica_proposes: false,
    recovers_itself: false,
    has_terms: true,
    survives: Survives::ALL,
    page_bytes_max: |options| options.raft.append_bytes_max,
    keys: &[],
    options_to_try: &["window-max=2"],
    bugs: &[
        Bug::Raft(Own::VoteTwice),
        Bug::Raft(Own::VoteByLength),
        Bug::Raft(Own::VoteBeforeDurable),
        Bug::Raft(Own::ForgetVote),
        Bug::Raft(Own::AckBeforeDurable),
        Bug::Raft(Own::TruncateAlways),
        Bug::Raft(Own::CountOldTerms),
    ],
    start: |options, members, restart, now, effects| {
        Box::new(Raft::start(options, members, restart, now, effects))
    },
};

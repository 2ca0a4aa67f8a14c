//! What is known of Kernel Paxos before it runs, and its options.

use super::KernelPaxos;
use crate::{
    Bug, Dissemination, ElectionKind, Threshold,
    options::choice,
    overrides::{Serves, chosen},
    registry::{Profile, Survives},
};

choice! {
    /// How a leader prepares the slots in which it proposes (Kernel Paxos 2019, sections III-C and VI-B).
    #[derive(Default)]
    Preparation, "preparation" {
        #[default]
        /// By the promise of all slots with which it began.
        All = "all",
        /// A window of them at the beginning, and then one with each proposal.
        Ahead = "ahead",
        /// Each when it is needed.
        Each = "each",
    }
}

/// The options of Kernel Paxos.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tuning {
    /// How a leader prepares the slots in which it proposes.
    pub prepare: Preparation,
}

pub(crate) const PROFILE: Profile = Profile {
    laboratory: Some(
        "is new; over TCP it does what multipaxos with decision=all does, with a message a slot, and what it is for, votes in the \
         driver of a network card, no replica does yet",
    ),
    elections: &[ElectionKind::Ballot, ElectionKind::Rotating],
    disseminations: Dissemination::EVERY,
    changes_voters_itself: false,
    has_leader: true,
    every_replica_proposes: false,
    recovers_itself: false,
    has_terms: false,
    fills_slots_alone: true,
    promises_sequence: false,
    times_answers: |_| false,
    survives: Survives::ALL,
    // A message is about one slot.
    page_bytes_max: |_| 0,
    threshold: |_| Threshold::Majority,
    keys: &[chosen!(
        "prepare",
        "all, ahead, each",
        kernel_paxos.prepare,
        Serves::Only {
            values: &["all"],
            why: "the document prepares slot by slot, and one promise of all slots does the same with fewer messages",
        }
    )],
    options_to_try: &["window-max=1", "prepare=ahead", "prepare=each"],
    bugs: &[
        Bug::VoteBeforeDurable,
        Bug::ForgetPromise,
        Bug::CommitWithMinority,
        Bug::VoteWithAmnesia,
        Bug::ExecuteRetryTwice,
    ],
    start: |options, members, restart, now, effects| {
        Box::new(KernelPaxos::start(options, members, restart, now, effects))
    },
};

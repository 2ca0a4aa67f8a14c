//! What is known of MultiPaxos before it runs, and its options.

use super::MultiPaxos;
use super::planted::Bug as Own;
use crate::{
    Bug, Dissemination, ElectionKind, Threshold,
    options::choice,
    overrides::chosen,
    registry::{Profile, Survives},
};

choice! {
    /// Which replicas find out that a slot is decided (Santos 2012, section 7.1.2). All replicas of an epoch
    /// must do it in the same way: a leader of `Leader` answers reads as the first to know of a decision,
    /// which it is not if others count votes too.
    #[derive(Default)]
    Decision, "decision" {
        #[default]
        /// Acceptors answer the leader, which announces decisions: 3(n-1) messages per slot, fewer under load.
        Leader = "leader",
        /// Acceptors tell all replicas: one message delay less at followers, (n-1)(n+1) messages per slot.
        All = "all",
    }
}

/// The options of MultiPaxos.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tuning {
    /// Which replicas find out that a slot is decided.
    pub decision: Decision,
}

pub(crate) const PROFILE: Profile = Profile {
    elections: &[ElectionKind::Ballot, ElectionKind::Rotating, ElectionKind::Latency],
    disseminations: Dissemination::EVERY,
    changes_voters_itself: false,
    has_leader: true,
    every_replica_proposes: false,
    recovers_itself: true,
    has_terms: false,
    fills_slots_alone: true,
    promises_sequence: false,
    times_answers: |_| false,
    survives: Survives::ALL,
    page_bytes_max: |options| options.page_bytes_max,
    threshold: |_| Threshold::Majority,
    keys: &[chosen!("decision", "leader, all", multipaxos.decision)],
    options_to_try: &["window-max=1", "decision=all"],
    laboratory: None,
    bugs: &[
        Bug::VoteBeforeDurable,
        Bug::ForgetPromise,
        Bug::CommitWithMinority,
        Bug::MultiPaxos(Own::DeliverOutOfOrder),
        Bug::ExecuteRetryTwice,
        Bug::DecisionOfEachReplica,
        Bug::ClockCountsTwice,
        Bug::ReadWithoutConfirmation,
        Bug::KeepRelayedAnswer,
        Bug::MultiPaxos(Own::DropAcceptedValue),
        Bug::MultiPaxos(Own::DecideAcrossBallots),
        Bug::VoteWithAmnesia,
        Bug::MultiPaxos(Own::MixLivesOfPromise),
        Bug::MultiPaxos(Own::CountOutlivedAnswer),
        Bug::ReuseBallot,
        Bug::TrimPastSnapshot,
        Bug::MultiPaxos(Own::AdoptLowestBallot),
        Bug::ElectionMajorityOffByOne,
        Bug::ElectionEchoesHighest,
        Bug::ElectionForgetsPromise,
        Bug::ElectionIgnoresHappiness,
    ],
    start: |options, members, restart, now, effects| {
        Box::new(MultiPaxos::start(options, members, restart, now, effects))
    },
};

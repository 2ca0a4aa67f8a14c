//! What is known of MultiPaxos before it runs.

use super::MultiPaxos;
use crate::{Bug, Decision, ElectionKind, overrides::Key, registry::Profile};

pub(crate) const PROFILE: Profile = Profile {
    elections: &[ElectionKind::Ballot, ElectionKind::Rotating],
    changes_voters_itself: false,
    recovers_itself: true,
    has_terms: false,
    keys: &[Key {
        name: "decision",
        accepted: "leader, all",
        set: |options, value| value.parse().map(|decision| options.decision = decision).is_ok(),
        // A leader answers reads as the first to know of a decision, which it is not if others count votes, too.
        shared: Some(|options| {
            Some(options.decision)
                .filter(|&decision| decision != Decision::default())
                .map(|it| it.to_string())
        }),
    }],
    options_to_try: &["window-max=1", "decision=all"],
    bugs: &[
        Bug::VoteBeforeDurable,
        Bug::ForgetPromise,
        Bug::CommitWithMinority,
        Bug::DeliverOutOfOrder,
        Bug::ExecuteRetryTwice,
        Bug::DecisionOfEachReplica,
        Bug::ClockCountsTwice,
        Bug::ReadWithoutConfirmation,
        Bug::KeepRelayedAnswer,
        Bug::DropAcceptedValue,
        Bug::DecideAcrossBallots,
        Bug::VoteWithAmnesia,
        Bug::MixLivesOfPromise,
        Bug::CountOutlivedAnswer,
        Bug::ReuseBallot,
        Bug::TrimPastSnapshot,
        Bug::AdoptLowestBallot,
        Bug::ElectionMajorityOffByOne,
        Bug::ElectionEchoesHighest,
        Bug::ElectionForgetsPromise,
        Bug::ElectionIgnoresHappiness,
    ],
    start: |options, members, restart, now, effects| {
        Box::new(MultiPaxos::start(options, members, restart, now, effects))
    },
};

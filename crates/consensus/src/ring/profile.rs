//! What is known of the ring before it runs.

use super::Ring;
use super::planted::Bug as Own;
use crate::{
    Bug, ElectionKind,
    registry::{Profile, Survives},
};

/// The ring has no options of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tuning {}

pub(crate) const PROFILE: Profile = Profile {
    elections: &[ElectionKind::Ballot],
    changes_voters_itself: false,
    every_replica_proposes: true,
    recovers_itself: false,
    has_terms: false,
    survives: Survives::ALL,
    page_bytes_max: |options| options.page_bytes_max,
    keys: &[],
    options_to_try: &["window-max=1"],
    bugs: &[
        Bug::VoteBeforeDurable,
        Bug::ForgetPromise,
        Bug::CommitWithMinority,
        Bug::ExecuteRetryTwice,
        Bug::ReadWithoutConfirmation,
        Bug::VoteWithAmnesia,
        Bug::ReuseBallot,
        Bug::TrimPastSnapshot,
        Bug::Ring(Own::CountVotes),
        Bug::Ring(Own::DecideEarly),
        Bug::Ring(Own::VoteWithoutBytes),
        Bug::Ring(Own::AdoptLowestBallot),
        Bug::Ring(Own::DropAcceptedValue),
        Bug::Ring(Own::DecideAcrossBallots),
    ],
    start: |options, members, restart, now, effects| {
        Box::new(Ring::start(options, members, restart, now, effects))
    },
};

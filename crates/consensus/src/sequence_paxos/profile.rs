//! What is known of Sequence Paxos before it runs.

use super::SequencePaxos;
use crate::{
    Bug, ElectionKind,
    overrides::{Key, ON_OFF, on_off},
    registry::Profile,
};

/// A switch of an optimisation.
macro_rules! switch {
    ($name:literal, $field:ident) => {
        Key {
            name: $name,
            accepted: ON_OFF,
            set: |options, value| on_off(&mut options.sequence_paxos.$field, value),
            shared: None,
        }
    };
}

pub(crate) const PROFILE: Profile = Profile {
    elections: &[ElectionKind::Ballot, ElectionKind::Rotating],
    changes_voters_itself: false,
    recovers_itself: false,
    has_terms: false,
    keys: &[
        switch!("batched-accepts", batched_accepts),
        switch!("latest-decide", latest_decide),
        switch!("latest-accepted", latest_accepted),
        switch!("max-accept-sync", max_accept_sync),
        switch!("head-start", head_start),
        switch!("decide-on-accept", decide_on_accept),
    ],
    options_to_try: &["window-max=3", "max-accept-sync=off,decide-on-accept=off", "head-start=off"],
    bugs: &[
        Bug::VoteBeforeDurable,
        Bug::ForgetPromise,
        Bug::CommitWithMinority,
        Bug::ReadWithoutConfirmation,
        Bug::VoteWithAmnesia,
        Bug::AdoptWithoutBallot,
        Bug::PromiseOthersDecided,
        Bug::PromiseOnlyNewer,
        Bug::RefusePrepareAgain,
        Bug::AcceptGap,
        Bug::DecideInAnyPhase,
        Bug::TornAdoption,
        Bug::CompareSuffixLengths,
    ],
    start: |options, members, restart, now, effects| {
        Box::new(SequencePaxos::start(options, members, restart, now, effects))
    },
};

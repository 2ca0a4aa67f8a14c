//! What is known of Sequence Paxos before it runs, and what can be set.

use super::SequencePaxos;
use super::planted::Bug as Own;
use crate::{
    Bug, Dissemination, ElectionKind, Threshold,
    overrides::{Key, ON_OFF, Serves, on_off},
    registry::{Profile, Survives},
};

/// The optimisations (Ng 2020, sections 4.4.3 and 7.1), each to be switched off so that its
/// effect can be measured. All are on by default, and none matters for safety.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tuning {
    /// What a burst of inputs proposes goes to a follower in one `Accept`, and to the log in one record. Off: every
    /// slot has an `Accept` and a record of its own, also when it is sent again.
    pub batched_accepts: bool,
    /// A burst of inputs ends with one `Decide`, the latest. Off: every slot is announced by a `Decide` of its own,
    /// at once.
    pub latest_decide: bool,
    /// A follower answers a burst of `Accept`s with one `Accepted`, the latest. Off: it answers each.
    pub latest_accepted: bool,
    /// A follower whose sequence is known to be a prefix of the leader's is sent only what it lacks. Off: whatever
    /// it has not decided is sent again at the start of a ballot.
    pub max_accept_sync: bool,
    /// The replica that led the epoch before tries to lead the next one at once.
    pub head_start: bool,
    /// `Accept` says how far decisions go, so that under load no `Decide` is needed. Off: only `Decide` and the
    /// heartbeat do.
    pub decide_on_accept: bool,
}

impl Default for Tuning {
    fn default() -> Tuning {
        Tuning {
            batched_accepts: true,
            latest_decide: true,
            latest_accepted: true,
            max_accept_sync: true,
            head_start: true,
            decide_on_accept: true,
        }
    }
}

/// A switch of an optimisation.
macro_rules! switch {
    ($name:literal, $field:ident) => {
        Key {
            name: $name,
            accepted: ON_OFF,
            set: |options, value| on_off(&mut options.sequence_paxos.$field, value),
            shared: None,
            serves: Serves::Only {
                values: &["on"],
                why: "it is an optimisation of the document, and is off to measure its effect",
            },
        }
    };
}

pub(crate) const PROFILE: Profile = Profile {
    elections: &[ElectionKind::Ballot, ElectionKind::Rotating, ElectionKind::Latency],
    disseminations: Dissemination::EVERY,
    changes_voters_itself: false,
    has_leader: true,
    every_replica_proposes: false,
    recovers_itself: false,
    has_terms: false,
    fills_slots_alone: false,
    promises_sequence: true,
    times_answers: |_| false,
    survives: Survives::ALL,
    page_bytes_max: |options| options.page_bytes_max,
    threshold: |_| Threshold::Majority,
    keys: &[
        switch!("batched-accepts", batched_accepts),
        switch!("latest-decide", latest_decide),
        switch!("latest-accepted", latest_accepted),
        switch!("max-accept-sync", max_accept_sync),
        switch!("head-start", head_start),
        switch!("decide-on-accept", decide_on_accept),
    ],
    options_to_try: &["window-max=3", "max-accept-sync=off,decide-on-accept=off", "head-start=off"],
    laboratory: None,
    bugs: &[
        Bug::VoteBeforeDurable,
        Bug::ForgetPromise,
        Bug::CommitWithMinority,
        Bug::ReadWithoutConfirmation,
        Bug::VoteWithAmnesia,
        Bug::SequencePaxos(Own::AdoptWithoutBallot),
        Bug::SequencePaxos(Own::PromiseOthersDecided),
        Bug::SequencePaxos(Own::PromiseOnlyNewer),
        Bug::SequencePaxos(Own::RefusePrepareAgain),
        Bug::SequencePaxos(Own::AcceptGap),
        Bug::SequencePaxos(Own::DecideInAnyPhase),
        Bug::SequencePaxos(Own::TornAdoption),
        Bug::SequencePaxos(Own::KeepLongerSequence),
    ],
    start: |options, members, restart, now, effects| {
        Box::new(SequencePaxos::start(options, members, restart, now, effects))
    },
};

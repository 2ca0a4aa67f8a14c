//! What is known of the log in rounds before it runs, and its options.

use std::time::Duration;

use super::{Bounds, Bug as Own, RoundsLog, Synchronisation, planted};
use crate::{
    Bug, Dissemination, ElectionKind, Options, Threshold,
    options::choice,
    overrides::{Serves, chosen},
    registry::{Profile, Survives},
};

choice! {
    /// The algorithm that decides.
    #[derive(Default)]
    RoundsAlgorithm, "algorithm" {
        #[default]
        /// LastVoting in phases of three rounds: all hear the acknowledgements (Santos 2012, Algorithm 4.2).
        LastVoting3 = "last-voting-3",
        /// LastVoting in phases of four rounds: the coordinator hears the acknowledgements, and tells what is decided
        /// (Santos 2012, Algorithm 4.1).
        LastVoting4 = "last-voting-4",
        /// OneThirdRule: a phase is one round, in which all tell all their estimates, and what more than two thirds of
        /// the members said is decided. It survives the loss of fewer than a third of them (Santos 2012, Algorithm
        /// 3.1).
        OneThirdRule = "one-third-rule",
    }
}

impl RoundsAlgorithm {
    /// Rounds of a phase.
    pub(super) fn phase(self) -> u64 {
        match self {
            RoundsAlgorithm::LastVoting3 => 3,
            RoundsAlgorithm::LastVoting4 => 4,
            RoundsAlgorithm::OneThirdRule => 1,
        }
    }

    /// How many members a quorum takes.
    fn threshold(self) -> Threshold {
        match self {
            RoundsAlgorithm::LastVoting3 | RoundsAlgorithm::LastVoting4 => Threshold::Majority,
            RoundsAlgorithm::OneThirdRule => Threshold::TwoThirds,
        }
    }

    /// In how many phases in a row nothing is decided, though something waits, before time-outs are too short: one more
    /// than it takes where one was lost. A command is offered in one round of OneThirdRule and decided in the next.
    pub(super) fn failures_max(self) -> u32 {
        match self {
            RoundsAlgorithm::LastVoting3 | RoundsAlgorithm::LastVoting4 => 2,
            RoundsAlgorithm::OneThirdRule => 4,
        }
    }
}

choice! {
    /// How rounds are made.
    #[derive(Default)]
    RoundsKind, "kind of rounds" {
        #[default]
        /// A round ends once all that are alive are heard (Santos 2012, Algorithm 5.4).
        Swift = "swift",
        /// Each round ends by its time-out (Santos 2012, Algorithm 5.1).
        Timed = "timed",
    }
}

/// The options of the log in rounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Tuning {
    /// The algorithm that decides.
    pub algorithm: RoundsAlgorithm,
    /// How rounds are made.
    pub rounds: RoundsKind,
}

/// The network is promised to deliver within this many parts of an election time-out (`Δ`), and a replica to take a
/// step within a hundredth of that (`Φ`).
const DELAY_PARTS: u32 = 30;
const STEP_PARTS: u32 = 100;

/// The delay that the network is promised to keep with these options.
pub(super) fn promised_delay(options: &Options) -> Duration {
    options.election_timeout / DELAY_PARTS
}

/// A letter has room for this many bytes of batches at least: a phase takes three rounds however little it orders, so
/// with letters of one batch it would order less than one client asks for.
const LETTER_BYTES_MIN: usize = 4 << 10;

/// The most bytes of batches in a letter with these options; one batch may always leave.
pub(super) fn letter_bytes_max(options: &Options) -> usize {
    options.page_bytes_max.max(LETTER_BYTES_MIN)
}

/// How rounds are made in a group of this many, with the least time-outs that suffice for a delay.
pub(super) fn synchronisation(kind: RoundsKind, replicas: usize, delay: Duration) -> Synchronisation {
    let replicas = u32::try_from(replicas).unwrap_or(u32::MAX);
    let bounds = Bounds::exact(replicas, delay, delay / STEP_PARTS);
    match kind {
        RoundsKind::Swift => bounds.swift(),
        RoundsKind::Timed => bounds.repeated(),
    }
}

pub(crate) const PROFILE: Profile = Profile {
    elections: &[ElectionKind::None],
    disseminations: &[Dissemination::Leader],
    changes_voters_itself: false,
    has_leader: false,
    every_replica_proposes: false,
    recovers_itself: false,
    has_terms: false,
    fills_slots_alone: true,
    promises_sequence: false,
    times_answers: |_| false,
    survives: Survives::ALL,
    page_bytes_max: letter_bytes_max,
    threshold: |options| options.rounds.algorithm.threshold(),
    keys: &[
        chosen!(
            "algorithm",
            "last-voting-3, last-voting-4, one-third-rule",
            rounds.algorithm,
            Serves::Only {
                values: &["last-voting-3"],
                why: "the fourth round costs a delay, and where all send to all in each round it saves nothing; \
                      one-third-rule survives the loss of fewer members",
            }
        ),
        chosen!(
            "rounds",
            "swift, timed",
            rounds.rounds,
            Serves::Only {
                values: &["swift"],
                why: "each round of timed rounds lasts for its whole time-out, however soon all are heard",
            }
        ),
    ],
    options_to_try: &["window-max=1", "algorithm=last-voting-4", "rounds=timed", "algorithm=one-third-rule"],
    laboratory: Some(
        "orders a log without a leader, and is tested less than the other protocols: docs/rounds.md has what is missing",
    ),
    bugs: &[
        Bug::VoteBeforeDurable,
        Bug::ForgetPromise,
        Bug::CommitWithMinority,
        Bug::ExecuteRetryTwice,
        Bug::Rounds(Own::EstimateToAll),
        Bug::Rounds(Own::VoteOutlivesPhase),
        Bug::Rounds(Own::AdoptEarliest),
        Bug::Rounds(Own::CommitWithoutMajority),
        Bug::Rounds(Own::SpeakBeforeDurable),
        Bug::Rounds(Own::ResumeInSamePhase),
        Bug::Rounds(Own::SpeakWithoutMemory),
        Bug::Rounds(Own::DecideWithMajority),
        Bug::Rounds(Own::AdoptWithMajority),
        Bug::Rounds(Own::AdoptSmallest),
        Bug::Rounds(Own::CountDecided),
    ],
    start: |options, members, restart, now, effects| {
        let rules = planted::rules(&options);
        Box::new(RoundsLog::start(options, members, &restart, rules, now, effects))
    },
};

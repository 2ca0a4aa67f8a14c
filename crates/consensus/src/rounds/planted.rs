//! Bugs of the log in rounds that a test can plant ([`crate::Bug`]), and the rule that each replaces. Those that
//! replace a rule of the family are in `../planted.rs`.

use synod_wire::Lsn;

use super::rules::Rules;
use crate::Options;

/// A known mistake in an implementation of the log in rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// An estimate goes to all, and a replica that takes itself for the coordinator counts it (Santos 2012, section
    /// 4.3).
    EstimateToAll,
    /// What a coordinator is to vote for outlives its phase (Santos 2012, with E1 of its errata).
    VoteOutlivesPhase,
    /// Of several estimates the one of the earliest phase is taken.
    AdoptEarliest,
    /// A coordinator votes with the estimates of any replicas.
    CommitWithoutMajority,
    /// Letters leave before the records on which they rest are durable.
    SpeakBeforeDurable,
    /// A restart goes on in the phase in which the earlier life spoke.
    ResumeInSamePhase,
    /// A read waits for what is known to be decided, and not for what may be.
    ReadAtDecided,
    /// An answer to an earlier life's read counts for a read of this life.
    AnswerOfEarlierLife,
    /// A replica that lost its log sends letters, if empty ones.
    SpeakWithoutMemory,
    /// OneThirdRule decides what a majority said.
    DecideWithMajority,
    /// OneThirdRule adopts what is most frequent among a majority.
    AdoptWithMajority,
    /// Of several values OneThirdRule adopts the smallest, however often it is said.
    AdoptSmallest,
    /// OneThirdRule counts estimates for slots of which some members say nothing any more, since they are decided.
    CountDecided,
}

static SOUND: Rules = Rules::SOUND;

/// The rules of a replica with these options: a planted bug replaces one.
pub(super) fn rules(options: &Options) -> &'static Rules {
    match options.planted_bug() {
        Some(crate::Bug::Rounds(bug)) => replaced(bug),
        _ => &SOUND,
    }
}

pub(super) fn replaced(bug: Bug) -> &'static Rules {
    const SOUND: Rules = Rules::SOUND;
    match bug {
        Bug::EstimateToAll => {
            const { &Rules { is_addressed: |_, _| true, counts_estimate: |_, _| true, ..SOUND } }
        }
        Bug::VoteOutlivesPhase => const { &Rules { forgets: |_, _| false, ..SOUND } },
        Bug::AdoptEarliest => const { &Rules { outranks: |told, held| told < held, ..SOUND } },
        Bug::CommitWithoutMajority => const { &Rules { may_commit: |_, set| !set.is_empty(), ..SOUND } },
        Bug::SpeakBeforeDurable => const { &Rules { leaves_after: |_| Lsn::ZERO, ..SOUND } },
        Bug::ResumeInSamePhase => {
            const { &Rules { resumes_in: |promised| if promised.round > 1 { promised.round } else { 1 }, ..SOUND } }
        }
        Bug::ReadAtDecided => const { &Rules { read_through: |_, decided| decided, ..SOUND } },
        Bug::AnswerOfEarlierLife => const { &Rules { is_own_question: |_, _| true, ..SOUND } },
        Bug::DecideWithMajority => {
            const { &Rules { is_decided: |members, set| members.is_quorum(set), ..SOUND } }
        }
        Bug::AdoptWithMajority => {
            const { &Rules { hears_enough: |members, set| members.is_quorum(set), ..SOUND } }
        }
        Bug::AdoptSmallest => const { &Rules { is_preferred: |_, held| held == 0, ..SOUND } },
        Bug::CountDecided => const { &Rules { counts_after: |_, delivered| delivered, ..SOUND } },
        Bug::SpeakWithoutMemory => const { &Rules { may_speak: |_| true, ..SOUND } },
    }
}

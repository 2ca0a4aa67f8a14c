//! Bugs of the latency-aware election that a test can plant ([`crate::Bug`]), and the rule that each replaces.

use super::rules::Rules;

/// A known mistake in an implementation of a latency-aware election.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// The chosen member stands before the record that tests its disk is durable.
    StandsBeforeRecord,
    /// The chosen member stands although no quorum has answered since it was asked.
    StandsWithoutQuorum,
    /// A member that failed may be chosen again at once.
    NeverAbstains,
    /// A member that failed once is never chosen again.
    AbstainsForever,
    /// The leader chooses itself in place of the better member, as Santos 2012, Algorithm 6.1, line 35, is printed.
    HandsToItself,
    /// A member does not answer the question by which it learns of a leader, as lines 18 to 25 are printed.
    FirstQuestionUnanswered,
    /// What a member reported counts in later cycles too.
    KeepsMatrix,
    /// The last answer to a ping counts, however long it stood in a queue.
    LastAnswerCounts,
    /// Only a member that lacks nothing takes over, while one that lags by a slot says that it could.
    StandsWithoutLag,
    /// What a member says of an operator's wish counts in one cycle only.
    ForgetsWish,
    /// A wish that nobody followed counts when the wanted member leads later for another reason.
    WishStays,
    /// A replica says that it was moved although the member that an operator wanted leads no more.
    KeepsWishOfGone,
    /// Only the member that replaces a silent leader remembers that it failed.
    OnlyReplacerRemembers,
    /// A leader hands over to a member that was better in one cycle.
    MovesAfterOneCycle,
    /// A member that heard the leader to the end does not remember that it failed.
    BystanderForgets,
    /// Nothing that is known of members counts in the next epoch.
    ForgetsWithEpoch,
    /// Each request to take over that is not followed in time is a failure, also where many come in a row.
    CountsEachRequest,
    /// A member that has made sure too late that it can lead stands all the same.
    StandsLate,
    /// A leader of Raft hands over to the better member before that one is ready.
    TransfersAtOnce,
    /// Where the choice should weigh from where commands come, it does not.
    IgnoresOrigins,
}

impl Bug {
    /// All of them.
    pub const ALL: &'static [Bug] = &[
        Bug::StandsBeforeRecord,
        Bug::StandsWithoutQuorum,
        Bug::NeverAbstains,
        Bug::AbstainsForever,
        Bug::HandsToItself,
        Bug::FirstQuestionUnanswered,
        Bug::KeepsMatrix,
        Bug::LastAnswerCounts,
        Bug::StandsWithoutLag,
        Bug::ForgetsWish,
        Bug::WishStays,
        Bug::KeepsWishOfGone,
        Bug::OnlyReplacerRemembers,
        Bug::MovesAfterOneCycle,
        Bug::BystanderForgets,
        Bug::ForgetsWithEpoch,
        Bug::CountsEachRequest,
        Bug::StandsLate,
        Bug::TransfersAtOnce,
        Bug::IgnoresOrigins,
    ];
}

/// The rules of an election in which this bug is planted.
#[inline]
pub(super) fn rules(planted: Option<crate::Bug>) -> Rules {
    let mut rules = Rules::SOUND;
    let Some(crate::Bug::LatencyElection(bug)) = planted else { return rules };
    match bug {
        Bug::StandsBeforeRecord => rules.may_stand = |_, quorum, caught_up| quorum && caught_up,
        Bug::StandsWithoutQuorum => rules.may_stand = |durable, _, caught_up| durable && caught_up,
        Bug::NeverAbstains => rules.abstains_for = |_, _| std::time::Duration::ZERO,
        Bug::AbstainsForever => rules.abstains_for = |_, _| std::time::Duration::MAX / 4,
        Bug::HandsToItself => rules.heir = |_, me| me,
        Bug::FirstQuestionUnanswered => rules.answers_question = |knows_leader| knows_leader,
        Bug::KeepsMatrix => rules.row_of_next_cycle = |row| row,
        Bug::LastAnswerCounts => rules.time_of = |lately| *lately.back().expect("an answer came"),
        Bug::StandsWithoutLag => rules.needs_decided = |_, known_now| known_now,
        Bug::ForgetsWish => rules.wish_of_next_cycle = |_, _| false,
        Bug::WishStays => rules.wish_waits = |_| std::time::Duration::MAX / 4,
        Bug::KeepsWishOfGone => rules.keeps_wish = |_, _| true,
        Bug::OnlyReplacerRemembers => {
            rules.remembers_failure = |silent, _, takes_its_place| silent && takes_its_place
        }
        Bug::MovesAfterOneCycle => rules.moves = |_| true,
        Bug::BystanderForgets => rules.remembers_failure = |silent, _, _| silent,
        Bug::ForgetsWithEpoch => rules.counts_in_next_epoch = |_| false,
        Bug::CountsEachRequest => rules.spares = |_| false,
        Bug::StandsLate => rules.is_in_time = |_, _| true,
        Bug::TransfersAtOnce => rules.transfers_at_once = |_| true,
        Bug::IgnoresOrigins => rules.time_of_command = |majority, _| majority,
    }
    rules
}

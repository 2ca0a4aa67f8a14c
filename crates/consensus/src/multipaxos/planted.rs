//! Bugs of MultiPaxos that a test can plant ([`crate::Bug`]), and the rule that each replaces. Those that replace a rule
//! of the family are in `../planted.rs`.

use super::rules::Rules;
use crate::Options;

/// A known mistake in an implementation of MultiPaxos.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// A decided slot is delivered although one before it is not decided.
    DeliverOutOfOrder,
    /// A new leader puts no-ops where acceptors reported values.
    DropAcceptedValue,
    /// A follower takes an announced decision for the value that it accepted in an older ballot.
    DecideAcrossBallots,
    /// A promise counts as one although its pages are of several lives of its sender.
    MixLivesOfPromise,
    /// A replica that recovers counts an answer although its sender has lost its log since, and does not
    /// remember in which life the others answered.
    CountOutlivedAnswer,
    /// A new leader takes the reported value with the lowest ballot instead of the highest.
    AdoptLowestBallot,
}

/// The rules of a replica with these options: a planted bug replaces one.
#[inline]
pub(super) fn rules(options: &Options) -> Rules {
    let mut rules = Rules::SOUND;
    let Some(crate::Bug::MultiPaxos(bug)) = options.planted_bug() else { return rules };
    match bug {
        Bug::MixLivesOfPromise => rules.begins_again = |_, _| false,
        Bug::CountOutlivedAnswer => {
            rules.life_heard = |_, _| None;
            rules.is_outlived = |_, _| false;
        }
        Bug::DeliverOutOfOrder => {
            rules.next_delivered = |acceptor| acceptor.deliver().or_else(|| acceptor.deliver_out_of_order());
        }
        Bug::DropAcceptedValue | Bug::DecideAcrossBallots | Bug::AdoptLowestBallot => {}
    }
    rules
}

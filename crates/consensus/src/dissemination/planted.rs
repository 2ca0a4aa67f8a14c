//! Bugs of dissemination that a test can plant ([`crate::Bug`]), and the rule that each replaces.

use std::collections::BTreeSet;

use synod_wire::Lsn;

use super::rules::Rules;
use crate::Options;

/// A known way to get dissemination wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// The leader proposes a batch that it alone is known to hold.
    ProposeUnstable,
    /// A replica acknowledges a batch before its record is durable.
    AcknowledgeBeforeDurable,
    /// A replica acknowledges a batch that it did not write down.
    HoldUnrecorded,
    /// The inner protocol sees references whose batches are not here.
    VoteWithoutBatch,
    /// The log forgets a batch that is not delivered, or that was delivered in a later slot than was expected.
    TrimHeld,
    /// A new leader proposes a second time what it has in its log.
    ForgetReproposed,
    /// A replica that lacks the batch to which a reference refers takes another one of its own for it.
    FillWithAnother,
    /// A replica that starts again gives its batches the names that an earlier life gave to others.
    ReuseNames,
}

/// The rules of a replica with these options: a planted bug replaces one. Two concern the names that the replica around
/// the protocol gives to its batches, and are planted there.
#[inline]
pub(super) fn rules(options: &Options) -> Rules {
    let mut rules = Rules::SOUND;
    let Some(crate::Bug::Dissemination(bug)) = options.planted_bug() else { return rules };
    match bug {
        Bug::ProposeUnstable => rules.is_stable = |_, _| true,
        Bug::AcknowledgeBeforeDurable => rules.acknowledges_after = |_| Lsn::ZERO,
        Bug::HoldUnrecorded => rules.writes = |_| None,
        Bug::VoteWithoutBatch => rules.may_see = |_| true,
        Bug::TrimHeld => rules.is_kept = |_, _| true,
        Bug::ForgetReproposed => rules.proposed_already = |_| BTreeSet::new(),
        Bug::FillWithAnother | Bug::ReuseNames => {}
    }
    rules
}

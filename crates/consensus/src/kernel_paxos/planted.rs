//! Bugs of Kernel Paxos that a test can plant ([`crate::Bug`]), and the rule that each replaces. Those that replace a
//! rule of the family are in `../planted.rs`. The errata are those of Kernel Paxos 2019, section 11; section 10.3 lists
//! the mistakes that a simulator has to find.

use synod_wire::{Batch, Lsn};

use super::{KernelPaxos, Message, State, rules::Rules};
use crate::{Effects, Options, leadership::Leads};

/// A known mistake in an implementation of Kernel Paxos.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// A proposer asks for promises before its ballot is durable, so that a later life may use it again (E5).
    PrepareBeforeDurable,
    /// A value without bytes, which fills a gap, is taken for none (E13).
    EmptyIsNothing,
    /// Votes that are told again count in the ballot that is promised by now (E12).
    CountByPromise,
    /// The acceptor uses slots again that are not decided (E11).
    ForgetUndelivered,
    /// A gap is filled whatever phase 1 told of it (E4).
    FillWithoutPhase1,
    /// A leader that is stuck fills the gap in its present ballot, in whose phase 1 it did not ask about it (E4).
    FillInPresentBallot,
    /// A candidate leads before it has read what an acceptor was touched in (K13).
    LeadBeforeRead,
    /// A new leader takes the reported value with the lowest ballot instead of the highest.
    AdoptLowestBallot,
    /// A follower takes an announced decision for the value that it accepted in an older ballot.
    DecideAcrossBallots,
}

/// The rules of a replica with these options: a planted bug replaces one.
#[inline]
pub(super) fn rules(options: &Options) -> Rules {
    let mut rules = Rules::SOUND;
    let Some(crate::Bug::KernelPaxos(bug)) = options.planted_bug() else { return rules };
    match bug {
        Bug::PrepareBeforeDurable => rules.prepares_after = |_| Lsn::ZERO,
        Bug::EmptyIsNothing => rules.has_accepted = |ballot, bytes| ballot > 0 && bytes > 0,
        Bug::CountByPromise => rules.counts_in = |promised, _| promised,
        Bug::ForgetUndelivered => rules.forgets_through = |delivered, touched| touched.max(delivered),
        Bug::LeadBeforeRead => rules.has_told_all = |_, _, _| true,
        Bug::FillWithoutPhase1
        | Bug::FillInPresentBallot
        | Bug::AdoptLowestBallot
        | Bug::DecideAcrossBallots => {}
    }
    rules
}

/// Fills the first gap of a leader that is stuck, if [`Bug::FillInPresentBallot`] is planted: what no leader does.
/// Returns whether it is.
pub(super) fn fills_gap(replica: &mut KernelPaxos, effects: &mut Effects) -> bool {
    let State::Leader(leader) = &replica.state else { return false };
    if !replica.common.options.has(Bug::FillInPresentBallot) {
        return false;
    }
    let (ballot, decided) = (leader.ballot, replica.decided());
    let slot = decided.next();
    let accept = Message::Accept { ballot, slot, further: None, decided, proposed: Batch::noop() };
    replica.common.broadcast(accept, Lsn::ZERO, effects);
    replica.accept(ballot, slot, None, Batch::noop(), effects);
    true
}

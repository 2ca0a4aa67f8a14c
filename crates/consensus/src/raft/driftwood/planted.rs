//! The rule of rounds of gossip that each planted bug replaces.

use synod_wire::Slot;

use super::rules::Rules;
use crate::{Options, raft::Bug};

/// The rules of rounds of gossip of a replica with these options: a planted bug replaces one.
#[inline]
pub(in crate::raft) fn rules(options: &Options) -> Rules {
    let mut rules = Rules::SOUND;
    let Some(crate::Bug::Raft(bug)) = options.planted_bug() else { return rules };
    match bug {
        Bug::MergeOlderTerms => rules.may_merge = |told, known| told <= known,
        Bug::KeepStatusOfTerm => rules.forgets_status = |_, _| false,
        Bug::AckBeforeDurable => rules.stable_through = |_, written| written,
        Bug::HoldAnyTerm => rules.held_through = |durable, _, _| durable,
        Bug::CountBeyondLog => rules.counted_through = |_, _, _| Slot(u64::MAX),
        Bug::CommitEverything => rules.delivered_through = |_, verified, _| verified,
        Bug::CommitAnyTerm => rules.delivered_through = |committed, _, end| committed.min(end),
        Bug::ReplyWithLast => rules.replies_through = |_, end| end,
        Bug::FitByLength => {
            rules.compares = |named, own, has_entries| own.filter(|_| !has_entries).unwrap_or(named);
        }
        Bug::ServeAnyLog => rules.may_serve = |_, _| true,
        Bug::ReadAtCommit => rules.reads_wait_for_all = |_| false,
        _ => {}
    }
    rules
}

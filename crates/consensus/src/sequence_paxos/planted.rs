//! Bugs of Sequence Paxos that a test can plant ([`crate::Bug`]), and the rule that each replaces. Those that replace a
//! rule of the family are in `../planted.rs`.

use synod_wire::Slot;

use super::{
    Extent, Record,
    rules::{Rules, promises},
};
use crate::{Batches, Options};

/// A known way to get it wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// A new leader adopts a sequence, but not in its own ballot (Ng 2020, erratum E1).
    AdoptWithoutBallot,
    /// A promise names the decided slot of the `Prepare` instead of the sender's (E2).
    PromiseOthersDecided,
    /// What is learned and held already is not written down: after a restart it counts as decided in the ballot in
    /// which it had been accepted.
    ForgetLearnedBallot,
    /// A promise tells of its sequence only if its ballot is higher than the candidate's, not if it is equal (E15).
    PromiseOnlyNewer,
    /// A follower does not answer a `Prepare` in a ballot that it has promised already (E16).
    RefusePrepareAgain,
    /// A follower appends whatever comes next, although it missed something before (E17).
    AcceptGap,
    /// A follower takes an announced decision for what it holds before it has the leader's sequence (E18).
    DecideInAnyPhase,
    /// The accepted ballot becomes durable before the sequence (E20).
    TornAdoption,
    /// A decision is announced to a follower that was not sent what it names (E21).
    DecideToUnsynced,
    /// A follower keeps a sequence of the adopted ballot that is longer than the adopted one, as if it were a prefix
    /// (E22).
    KeepLongerSequence,
}

/// The rules of a replica with these options: a planted bug replaces one.
#[inline]
pub(super) fn rules(options: &Options) -> Rules {
    let mut rules = Rules::SOUND;
    if let Some(crate::Bug::SequencePaxos(bug)) = options.planted_bug() {
        replace(&mut rules, bug);
    }
    rules
}

fn replace(rules: &mut Rules, bug: Bug) {
    match bug {
        Bug::AdoptWithoutBallot => rules.adopted_in = |_, before| before,
        Bug::PromiseOthersDecided => {
            rules.promises = |has, asked| (Extent { decided: asked.decided, ..has }, promises(has, asked).1);
        }
        Bug::ForgetLearnedBallot => rules.raises_ballot = |_, _| false,
        Bug::PromiseOnlyNewer => {
            rules.is_better = |one, other| one.accepted_in > other.accepted_in;
            rules.promises = |has, asked| (has, has.accepted_in > asked.accepted_in);
        }
        Bug::RefusePrepareAgain => rules.answers_prepare = |promised, ballot| ballot > promised,
        Bug::AcceptGap => rules.held_already = |_, _| Some(0),
        Bug::DecideInAnyPhase => rules.holds_decision = |_, _, _| true,
        Bug::TornAdoption => rules.adoption = torn,
        Bug::DecideToUnsynced => rules.may_hear = |_, _, _| true,
        Bug::KeepLongerSequence => {
            rules.is_prefix = |has, adopted, leads_in| {
                has.accepted_in == leads_in || has.accepted_in == adopted.accepted_in
            };
        }
    }
}

/// The ballot comes first, as if it meant nothing without the sequence.
fn torn(record: Record, held: Slot) -> Vec<Record> {
    let Record::Adopted { ballot, decided, covers, .. } = record else { return vec![record] };
    let (first, batches) = (held.next(), Batches::default());
    vec![Record::Adopted { ballot, first, from: first, decided, covers, batches }, record]
}

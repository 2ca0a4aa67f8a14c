//! The rules on which Raft's safety rests: each a function of plain data, with the line of the document that states it.
//!
//! The tests hold each against a twin that tries every small case. A planted bug replaces one of them (`planted.rs`).

use synod_wire::{Ballot, ReplicaId, Slot};

use super::log::Position;
use crate::{ChangeRefused, VoterSets};

/// Whether a candidate's log, which ends at `candidate`, is as up to date as a voter's, which ends at `own`: the later
/// term wins, and with the same term the longer log (Ongaro 2014, 3.6.1; Ng 2020, E25).
pub(super) fn is_up_to_date(candidate: Position, own: Position) -> bool {
    (candidate.ballot, candidate.slot) >= (own.ballot, own.slot)
}

/// Whether a voter that gave its vote in this term to `voted_for` may give it to `candidate`: one vote a term (Ongaro
/// 2014, figure 3.1, RequestVote, step 2; Ng 2020, E25). A replica that leads the term gives it to no other.
pub(super) fn may_vote(voted_for: Option<ReplicaId>, candidate: ReplicaId, leads: bool) -> bool {
    voted_for.map_or(!leads, |id| id == candidate)
}

/// Whether a vote counts that comes after those of `granted`: voters count, and not messages (Driftwood 2023, listing
/// 4.2, corrected by ERR-20).
pub(super) fn counts_vote(granted: &[ReplicaId], voter: ReplicaId) -> bool {
    !granted.contains(&voter)
}

/// Whether these votes elect a leader: a majority of the voters; during a change a majority of the former voters and
/// one of the future ones (Ongaro 2014, 3.4 and 4.3; Ng 2020, section 2.5.1).
pub(super) fn elects(voters: &VoterSets, granted: &[ReplicaId]) -> bool {
    voters.is_quorum(|id| granted.contains(&id))
}

/// The slot that a quorum has reached, where each voter has reached `held` (Ongaro 2014, figure 3.1, leaders, and 4.3).
pub(super) fn reached_by_quorum(voters: &VoterSets, mut held: impl FnMut(ReplicaId) -> Slot) -> Slot {
    Slot(voters.quorum_value(|id| held(id).0))
}

/// Whether a leader may commit the slots through `reached`, which a quorum has, and where its log has an entry of the
/// ballot `there`: only an entry of its own term, by which those before it are committed as well. An entry of an older
/// term may be replaced although a quorum has it (Ongaro 2014, 3.6.2 and figure 3.7; Ng 2020, E28).
pub(super) fn may_commit(reached: Slot, there: Option<Ballot>, decided: Slot, leader: Ballot) -> bool {
    reached > decided && there == Some(leader)
}

/// The first of a leader's entries, from `first` on, that the log lacks: a slot and a term name one entry (Log Matching,
/// Ongaro 2014, 3.5). Decided entries are the leader's as well.
pub(super) fn first_lacking(
    first: Slot,
    entries: impl Iterator<Item = Ballot>,
    decided: Slot,
    ballot_at: impl Fn(Slot) -> Option<Ballot>,
) -> Option<Slot> {
    let mut slots = (first.0..).map(Slot).zip(entries);
    slots.find(|&(slot, ballot)| slot > decided && ballot_at(slot) != Some(ballot)).map(|(slot, _)| slot)
}

/// The slot from which on entries are removed when a leader's come of which the log lacks those from `lacking` on: only
/// those in conflict, since the message may be old, and what stands behind its last entry may be acknowledged (Ongaro
/// 2014, figure 3.1, AppendEntries, step 3; Ng 2020, E27; Driftwood 2023, ERR-2). What is decided is never in conflict.
pub(super) fn removed_from(lacking: Option<Slot>, decided: Slot) -> Option<Slot> {
    lacking.filter(|&slot| slot > decided)
}

/// Whether a leader may begin to change the voters: not before it has committed an entry of its own term, and not while
/// the last change, in slot `last_change`, is not decided (Ongaro 2014, 4.1, with the correction of 2015; Ng 2020, E29).
pub(super) fn may_change(has_own: bool, last_change: Slot, decided: Slot) -> Result<(), ChangeRefused> {
    match (has_own, last_change > decided) {
        (false, _) => Err(ChangeRefused::TooEarly),
        (true, true) => Err(ChangeRefused::Pending),
        (true, false) => Ok(()),
    }
}

#[cfg(test)]
#[path = "tests/rules.rs"]
pub(super) mod tests;

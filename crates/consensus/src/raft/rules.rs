//! The rules on which Raft's safety rests: each a function of plain data, with the line of the document that states it.
//!
//! The tests hold each against a twin that tries every small case. A planted bug replaces one in a replica's table of
//! rules (`planted.rs`). Rounds of gossip add those of `driftwood/rules.rs`.

use synod_wire::{Ballot, Lsn, ReplicaId, Slot};

use super::log::Position;
use crate::{ChangeRefused, VoterSets, rules::rules};

rules! {
    // Voting.

    /// Whether a candidate's log, which ends at `candidate`, is as up to date as a voter's, which ends at `own`: the
    /// later term wins, and with the same term the longer log (Ongaro 2014, 3.6.1; Ng 2020, E25).
    fn is_up_to_date(candidate: Position, own: Position) -> bool {
        (candidate.ballot, candidate.slot) >= (own.ballot, own.slot)
    }

    /// Whether a voter that gave its vote in this term to `voted_for` may give it to `candidate`: one vote a term
    /// (Ongaro 2014, figure 3.1, RequestVote, step 2; Ng 2020, E25). A replica that leads the term gives it to no
    /// other.
    fn may_vote(voted_for: Option<ReplicaId>, candidate: ReplicaId, leads: bool) -> bool {
        voted_for.map_or(!leads, |id| id == candidate)
    }

    /// The vote of this term that a replica knows after a restart: the one that it wrote down (Ongaro 2014, 3.8).
    fn recalls_vote(written: Option<ReplicaId>) -> Option<ReplicaId> {
        written
    }

    /// The record that has to be durable before a message about a vote leaves: the one of the term with the vote (E30).
    fn vote_rests_on(term: Lsn) -> Lsn {
        term
    }

    /// Whether a vote counts that comes after those of `granted`: voters count, and not messages (Driftwood 2023,
    /// listing 4.2, corrected by ERR-20).
    fn counts_vote(granted: &[ReplicaId], voter: ReplicaId) -> bool {
        !granted.contains(&voter)
    }

    /// Whether these votes elect a leader: a majority of the voters; during a change a majority of the former voters
    /// and one of the future ones (Ongaro 2014, 3.4 and 4.3; Ng 2020, section 2.5.1).
    fn elects(voters: &VoterSets, granted: &[ReplicaId]) -> bool {
        voters.is_quorum(|id| granted.contains(&id))
    }

    // Committing.

    /// The slot that a quorum has reached, where each voter has reached `held` (Ongaro 2014, figure 3.1, leaders, and
    /// 4.3).
    fn reached_by_quorum(voters: &VoterSets, held: &dyn Fn(ReplicaId) -> Slot) -> Slot {
        Slot(voters.quorum_value(|id| held(id).0))
    }

    /// Whether a leader may commit the slots through `reached`, which a quorum has, and where its log has an entry of
    /// the ballot `there`: only an entry of its own term, by which those before it are committed as well. An entry of
    /// an older term may be replaced although a quorum has it (Ongaro 2014, 3.6.2 and figure 3.7; Ng 2020, E28).
    fn may_commit(reached: Slot, there: Option<Ballot>, decided: Slot, leader: Ballot) -> bool {
        reached > decided && there == Some(leader)
    }

    // Appending.

    /// The slot from which on entries are removed when a leader's come, through `through`, of which the log lacks those
    /// from `lacking` on: only those in conflict, since the message may be old, and what stands behind its last entry
    /// may be acknowledged (Ongaro 2014, figure 3.1, AppendEntries, step 3; Ng 2020, E27; Driftwood 2023, ERR-2). What
    /// is decided is never in conflict.
    #[allow(unused_variables, reason = "a planted bug removes what is behind the last of them")]
    fn removed_from(lacking: Option<Slot>, through: Slot, decided: Slot) -> Option<Slot> {
        lacking.filter(|&slot| slot > decided)
    }

    /// The record that has to be durable before entries are acknowledged: the later one of theirs and the term's (E30).
    fn acknowledgement_rests_on(entries: Lsn, term: Lsn) -> Lsn {
        entries.max(term)
    }

    // Changing the voters.

    /// Whether a leader may begin to change the voters: not before it has committed an entry of its own term, and not
    /// while the last change, in slot `last_change`, is not decided (Ongaro 2014, 4.1, with the correction of 2015).
    fn may_change(has_own: bool, last_change: Slot, decided: Slot) -> Result<(), ChangeRefused> {
        match (has_own, last_change > decided) {
            (false, _) => Err(ChangeRefused::TooEarly),
            (true, true) => Err(ChangeRefused::Pending),
            (true, false) => Ok(()),
        }
    }
}

/// The first of a leader's entries, from `first` on, that the log lacks: a slot and a term name one entry (Log
/// Matching, Ongaro 2014, 3.5). Decided entries are the leader's as well.
pub(super) fn first_lacking(
    first: Slot,
    entries: impl Iterator<Item = Ballot>,
    decided: Slot,
    ballot_at: impl Fn(Slot) -> Option<Ballot>,
) -> Option<Slot> {
    let mut slots = (first.0..).map(Slot).zip(entries);
    slots.find(|&(slot, ballot)| slot > decided && ballot_at(slot) != Some(ballot)).map(|(slot, _)| slot)
}

#[cfg(test)]
#[path = "tests/rules.rs"]
pub(super) mod tests;

//! What rounds of gossip do not bring: a voter whose log does not fit is sent directly what it lacks, as in Raft
//! without gossip, until the next round fits (Driftwood 2023, `isRPC` in Algorithm 1).

use std::time::Duration;

use synod_wire::{Ballot, ReplicaId, Slot, Time};

use super::{MemberStatus, RoundConflict, Rounds};
use crate::{
    Effects,
    raft::{Raft, State, leader::Leader, progress::Progress},
};

/// What a leader that begins rounds knows of a voter besides its [`Progress`].
#[derive(Clone, Debug, Default)]
pub(in crate::raft) struct ByGossip {
    /// The voter is sent directly what it lacks through this slot.
    repairs: Option<Slot>,
    /// Rounds through this one were begun before the replica was tracked: answers to them do not count.
    since_round: u64,
    /// The last heartbeat after which the voter still followed, as far as commit statuses say.
    beat: u64,
}

impl ByGossip {
    /// Of a replica that is tracked from now on.
    pub(in crate::raft) fn since(rounds: Option<&Rounds>) -> ByGossip {
        ByGossip { since_round: rounds.map_or(0, |rounds| rounds.number), ..ByGossip::default() }
    }

    /// A learner has become a voter: what was sent directly goes on so until it has arrived, through `last`.
    pub(in crate::raft) fn begins_to_vote(&mut self, last: Option<Slot>) {
        self.repairs = last;
    }
}

impl Progress {
    /// Whether entries are sent to it directly where voters get them by gossip.
    pub(in crate::raft) fn is_direct(&self) -> bool {
        self.learner || self.by_gossip.repairs.is_some()
    }

    /// Sends directly what the follower lacks through a slot; returns whether that begins now.
    pub(in crate::raft) fn begin_repair(&mut self, through: Slot) -> bool {
        let begins = self.by_gossip.repairs.is_none();
        self.by_gossip.repairs = self.by_gossip.repairs.max(Some(through));
        begins
    }

    /// Ends that once the follower has it and all that rounds of gossip leave out, so that the next one fits its log.
    pub(in crate::raft) fn repaired(&mut self, gained: Slot) {
        if self.by_gossip.repairs.is_some_and(|through| self.matched >= through.max(gained)) {
            self.by_gossip.repairs = None;
            self.forget_unanswered();
        }
    }
}

impl Leader {
    /// The progress of a voter that answers a round, if the round was begun since the voter is tracked.
    pub(super) fn answers_round(&mut self, id: ReplicaId, number: u64, now: Time) -> Option<&mut Progress> {
        let last = self.rounds.as_ref()?.number;
        let progress = self.peers.get_mut(&id).filter(|progress| !progress.learner)?;
        if number <= progress.by_gossip.since_round || number > last {
            return None;
        }
        progress.lives(now);
        Some(progress)
    }

    /// Records what a status says of a voter.
    pub(super) fn knows(
        &mut self,
        known: MemberStatus,
        last: Slot,
        decided: Slot,
        now: Time,
        resend_after: Duration,
    ) {
        let Some(progress) = self.peers.get_mut(&known.id) else { return };
        if known.beat > progress.by_gossip.beat && self.duties.answered(known.id, known.beat) {
            progress.by_gossip.beat = known.beat;
            progress.lives(now);
        }
        if known.held > progress.matched && known.held <= last && !progress.learner {
            progress.matches(known.held, now, resend_after);
            progress.repaired(decided);
        }
    }

    /// Sends directly what voters are not known to have: rounds have not brought it to enough of them for long.
    pub(super) fn serve_directly(&mut self, last: Slot) {
        let behind = self.peers.values_mut().filter(|progress| !progress.learner && progress.matched < last);
        for progress in behind {
            if progress.begin_repair(last) {
                let known = progress.matched > Slot::ZERO;
                progress.probe(if known { progress.matched.next() } else { last.next() });
            }
        }
    }

    /// Records that a round tells the voters that slots through this one are committed.
    pub(super) fn told_voters(&mut self, commit: Slot) {
        let voters = self.peers.values_mut().filter(|progress| !progress.learner);
        voters.for_each(|progress| progress.told = commit);
    }
}

impl Raft {
    /// A follower answers a round: its log equals this leader's through a slot.
    pub(super) fn handle_round_reply(
        &mut self,
        now: Time,
        from: ReplicaId,
        ballot: Ballot,
        number: u64,
        through: Slot,
        effects: &mut Effects,
    ) {
        if self.answered_round(now, from, ballot, number).is_some() {
            self.holds_through(now, from, through, effects);
        }
    }

    /// A follower answers a round: its log has no such entry. It gets what it lacks directly.
    pub(super) fn handle_round_conflict(&mut self, now: Time, from: ReplicaId, conflict: RoundConflict) {
        let RoundConflict { ballot, number, prev, hint, hint_ballot } = conflict;
        let agree = self.log.last_not_above(hint, hint_ballot);
        let Some(progress) = self.answered_round(now, from, ballot, number) else { return };
        if prev <= progress.matched || !progress.begin_repair(prev) {
            return;
        }
        progress.probe_before(prev, agree);
    }

    /// The progress of a follower that answers a round, if the round was begun since the follower is tracked.
    fn answered_round(
        &mut self,
        now: Time,
        from: ReplicaId,
        ballot: Ballot,
        number: u64,
    ) -> Option<&mut Progress> {
        let State::Leader(leader) = &mut self.state else { return None };
        if ballot != leader.ballot {
            return None;
        }
        if let Some(rounds) = &mut leader.rounds {
            rounds.pace.returns(number, now);
        }
        leader.answers_round(from, number, now)
    }
}

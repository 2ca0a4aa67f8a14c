//! What a replica lacks of the rounds that came, and what other replicas lack that it passed on (Driftwood 2023,
//! section 6.2: lazy push, and pull from any up-to-date process).
//!
//! A round may be passed on without its entries: it then names only the last of them. A replica that lacks them asks
//! the replica that passed the round on. That one may lack them as well, if it asked in turn: it answers as soon as it
//! has them. So positions run ahead, and entries follow along the way by which each replica first heard of them.
//!
//! A replica waits for one answer at a time, and remembers one question of each voter.

use std::collections::BTreeMap;

use synod_wire::{Ballot, ReplicaId, Slot, Time};

use super::Round;
use crate::{
    Effects,
    raft::{
        Message, Raft,
        log::{Position, fitting},
    },
};

/// What a replica remembers of questions for entries. All of it is of the present term.
#[derive(Clone, Debug, Default)]
pub(super) struct Pulls {
    /// The last position of the leader's log that this replica has heard of and lacked, and who told it.
    lacks: Option<(ReplicaId, Position)>,
    /// The replica that this one has asked, and how long it waits before it asks another one.
    asked: Option<(ReplicaId, Time)>,
    /// The replicas that asked for what this one does not have yet: the leader's ballot, and where the logs may agree.
    waiting: BTreeMap<ReplicaId, (Ballot, Position)>,
}

impl Pulls {
    /// The session to a peer ended: neither its answer nor its question counts any more.
    pub(super) fn lost(&mut self, peer: ReplicaId) {
        self.waiting.remove(&peer);
        self.answered_by(peer);
    }

    /// A replica answers.
    fn answered_by(&mut self, peer: ReplicaId) {
        self.asked = self.asked.filter(|(asked, _)| *asked != peer);
    }
}

impl Raft {
    /// Whether this replica asks others than the leader for what a round needs.
    pub(super) fn pulls(&self) -> bool {
        self.options.raft.peer_repair || self.options.raft.lazy_push.is_some()
    }

    /// The round as this replica passes it on: without entries, if they are large, and then with the position of the
    /// last one. That is as true of the leader's log as the entries are.
    pub(super) fn without_entries(&self, round: &Round) -> Round {
        let (bytes, last) =
            (fitting(round.entries.iter(), usize::MAX).1, Slot(round.prev.0 + round.entries.len() as u64));
        match (self.options.raft.lazy_push, round.entries.last()) {
            (Some(least), Some(entry)) if bytes > least as usize => {
                Round { prev: last, prev_ballot: entry.ballot, entries: [].into(), ..round.clone() }
            }
            _ => round.clone(),
        }
    }

    /// This replica lacks what a round from a peer needs, and its log may agree with the leader's at `hint`.
    pub(super) fn pull(
        &mut self,
        now: Time,
        from: ReplicaId,
        ballot: Ballot,
        needs: Position,
        hint: Position,
        effects: &mut Effects,
    ) {
        let pulls = &mut self.gossip.pulls;
        if pulls.lacks.is_none_or(|(_, lacks)| lacks.slot <= needs.slot) {
            pulls.lacks = Some((from, needs));
        }
        if pulls.asked.is_some_and(|(_, until)| now < until) {
            return;
        }
        pulls.asked = Some((from, now + self.options.retransmit_after));
        let Position { slot: hint, ballot: hint_ballot } = hint;
        effects.send(from, Message::Pull { ballot, hint, hint_ballot }, self.term_lsn);
    }

    /// Takes in what a peer sends for this replica alone, and asks for what is still lacking.
    pub(super) fn take_page(&mut self, now: Time, from: ReplicaId, page: Round, effects: &mut Effects) {
        let (ballot, before) = (page.ballot, self.log.last_written());
        self.gossip.pulls.answered_by(from);
        self.take_round(now, from, page, effects);
        let Some((peer, needs)) = self.gossip.pulls.lacks else { return };
        match self.conflict(needs) {
            None => self.gossip.pulls.lacks = None,
            // Without room for entries it would be asked for the same ones.
            Some(hint) if self.log.last_written() > before => {
                self.pull(now, peer, ballot, needs, hint, effects);
            }
            Some(_) => {}
        }
    }

    /// A replica lacks what a round that this one passed on needs. Any replica may serve it whose log ends with
    /// an entry of the leader's term: then the log is a beginning of the leader's. Otherwise its end may be of an older
    /// term, and the other one would take it for the leader's.
    pub(super) fn handle_pull(
        &mut self,
        from: ReplicaId,
        ballot: Ballot,
        hint: Position,
        effects: &mut Effects,
    ) {
        if ballot.round == self.term
            && !self.serves(from, ballot, hint, effects)
            && self.voters().contains(from)
        {
            self.gossip.pulls.waiting.insert(from, (ballot, hint));
        }
    }

    /// Answers those who asked for what this replica did not have, and now has.
    pub(super) fn serve_waiting(&mut self, effects: &mut Effects) {
        if self.gossip.pulls.waiting.is_empty() {
            return;
        }
        for (peer, (ballot, hint)) in std::mem::take(&mut self.gossip.pulls.waiting) {
            if !self.serves(peer, ballot, hint, effects) {
                self.gossip.pulls.waiting.insert(peer, (ballot, hint));
            }
        }
    }

    /// Sends a replica what follows a position. Returns false if this replica has nothing to send yet.
    fn serves(&self, to: ReplicaId, ballot: Ballot, hint: Position, effects: &mut Effects) -> bool {
        if !self.gossip_rules().may_serve(self.log.last_ballot(), ballot) {
            return false;
        }
        let prev =
            self.log.last_not_above(hint.slot, hint.ballot).filter(|prev| prev.next() >= self.log.first());
        // What is not held any more is committed, and comes by catch-up.
        let Some((prev, prev_ballot)) = prev.and_then(|prev| Some((prev, self.log.ballot_at(prev)?))) else {
            return true;
        };
        let (count, _) = fitting(self.log.from(prev.next()), self.options.raft.append_bytes_max);
        let entries = self.log.share(prev.next(), count);
        if entries.is_empty() {
            return false;
        }
        let (commit, status) = (self.decided, self.status_to_tell());
        let page = Round { ballot, number: 0, beat: 0, prev, prev_ballot, entries, commit, status };
        effects.send(to, Message::Round(Box::new(page)), self.term_lsn);
        true
    }
}

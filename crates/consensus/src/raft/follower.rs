//! Following a leader: appending what it sends, and delivering what it says is committed.

use synod_wire::{Ballot, Lsn, ReplicaId, Slot, Time};

use super::{
    Conflict, DecidedPrefix, Entries, HeartbeatAck, Message, Raft, State, log::Position, rules::first_lacking,
};
use crate::{Effects, LeaderView, Protocol, batches::last_of};

/// What a follower did with entries of its leader.
pub(super) enum AppendOutcome {
    /// Nothing: the logs differ before them. They may still agree here, at the follower's last entry before the
    /// conflicting term.
    Conflicts(Position),
    /// Nothing: there is no room for them.
    Nothing,
    /// The log equals the leader's through a slot.
    Holds {
        /// The slot.
        through: Slot,
        /// The record that has to be durable before the follower says so.
        after: Lsn,
    },
}

impl Raft {
    /// Handles the term of a leader's message; returns false if the term is too low to be obeyed.
    pub(super) fn follow(
        &mut self,
        now: Time,
        from: ReplicaId,
        ballot: Ballot,
        effects: &mut Effects,
    ) -> bool {
        if ballot.replica != from {
            // Only the leader of a term speaks in it.
            return false;
        }
        if ballot.round < self.term {
            effects.send(from, Message::Stale { term: self.term }, self.term_lsn);
            return false;
        }
        if ballot.round > self.term {
            self.enter_term(now, ballot.round, None, effects);
        }
        self.obey(now, ballot, effects);
        true
    }

    /// Takes a message of the leader of the present term, which shows that it lives, for what it is.
    pub(super) fn obey(&mut self, now: Time, ballot: Ballot, effects: &mut Effects) {
        let leader = ballot.replica;
        let stalls = self.leader_stalls(now, ballot);
        if stalls && self.rehearses() {
            // This replica obeys the message, and goes on asking which voters would vote for it.
            return;
        }
        // Another candidate of the same term has won. Its log is not compared, since it has a quorum's votes (E26).
        self.state = State::Follower;
        if !stalls {
            let rank = if self.election_timer.is_refused_by(leader) { self.rank_after(leader) } else { 0 };
            self.election_timer.heard_leader(now, leader, self.options.priority, rank);
        }
        self.follows(now, ballot, !stalls);
        self.reported.leader(LeaderView { ballot, leader: Some(leader) }, effects);
    }

    /// Whether this replica accepted something in this ballot that is not known to be decided, and nothing
    /// was decided for long.
    fn leader_stalls(&mut self, now: Time, ballot: Ballot) -> bool {
        let known = self.decided_elsewhere.max(self.decided);
        let waits = self.log.last_ballot() == ballot && self.log.last() > known;
        self.progress.stalls(now, known, waits, self.options.election_timeout)
    }

    /// Appends what is missing, and answers.
    pub(super) fn handle_append(
        &mut self,
        session: u64,
        prev: Slot,
        prev_ballot: Ballot,
        entries: Entries,
        effects: &mut Effects,
    ) {
        let ballot = self.reported.view.ballot;
        match self.take_in(prev, prev_ballot, entries, effects) {
            AppendOutcome::Conflicts(Position { slot: hint, ballot: hint_ballot }) => {
                let conflict = Conflict { ballot, session, prev, hint, hint_ballot };
                effects.send(ballot.replica, Message::Conflict(conflict), self.term_lsn);
            }
            AppendOutcome::Nothing => {}
            AppendOutcome::Holds { through, after } => {
                effects.send(ballot.replica, Message::AppendReply { ballot, session, through }, after);
            }
        }
    }

    /// Appends what is missing of the leader's entries after the slot `prev`.
    pub(super) fn take_in(
        &mut self,
        prev: Slot,
        prev_ballot: Ballot,
        entries: Entries,
        effects: &mut Effects,
    ) -> AppendOutcome {
        if let Some(hint) = self.conflict(Position { slot: prev, ballot: prev_ballot }) {
            return AppendOutcome::Conflicts(hint);
        }
        let through = last_of(prev.next(), &entries);
        let ballots = entries.iter().map(|entry| entry.ballot);
        let lacking = first_lacking(prev.next(), ballots, self.decided, |slot| self.log.ballot_at(slot));
        if lacking.is_some() && self.is_congested() {
            // Not answering is always safe. The leader sends it again, or it comes by catch-up.
            return AppendOutcome::Nothing;
        }
        if let Some(from) = self.rules().removed_from(lacking, through, self.decided) {
            self.truncate(from, effects);
        }
        if let Some(from) = lacking {
            let held = usize::try_from(from.0 - prev.next().0).expect("it is the slot of one of them");
            let rest = if held == 0 { entries } else { entries[held..].into() };
            let prefix = DecidedPrefix { through: self.decided, decided_in: self.decided_in };
            self.append(rest, prefix, effects);
        }
        self.verified = self.verified.max(through);
        let after = self.rules().acknowledgement_rests_on(self.log.lsn_of(through), self.term_lsn);
        AppendOutcome::Holds { through, after }
    }

    /// Where the two logs may still agree, unless the log has the leader's entry at this position. The whole term
    /// that is in conflict there is skipped (Ng 2020, section 10.1).
    pub(super) fn conflict(&self, of_leader: Position) -> Option<Position> {
        if of_leader.slot <= self.decided {
            // The leader has every decided entry, and these are decided.
            return None;
        }
        let slot = match self.log.ballot_at(of_leader.slot) {
            Some(ballot) if ballot == of_leader.ballot => return None,
            Some(_) => self.log.run_start(of_leader.slot).prev().max(self.decided),
            None => self.log.last(),
        };
        Some(Position { slot, ballot: self.log.ballot_at(slot).unwrap_or_default() })
    }

    /// Records that the leader has committed slots through this one. The message can only mean what is
    /// known to be in the leader's log as well.
    pub(super) fn handle_commit(&mut self, commit: Slot, effects: &mut Effects) {
        self.decided_elsewhere = self.decided_elsewhere.max(commit);
        self.deliver_through(commit.min(self.verified), self.reported.view.ballot, effects);
    }

    /// Answers the leader's sign of life, with how far this replica is.
    pub(super) fn handle_heartbeat(&self, to: ReplicaId, ballot: Ballot, round: u64, effects: &mut Effects) {
        let (decided, priority) = (self.decided, self.options.priority);
        let ack = HeartbeatAck { ballot, round, decided, priority };
        effects.send(to, Message::HeartbeatAck(ack), self.term_lsn);
    }
}

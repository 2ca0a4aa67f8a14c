//! Phase 2, in the order in which its messages travel: the leader proposes (`Accept`), each member writes that down and
//! votes (`Accepted`), a quorum decides, the slots are delivered in order, and the members hear of it (`Decided`, and
//! whatever else the leader sends).
//!
//! What a burst of inputs proposes, and what it votes for, leaves at its end: `flush_all` (`wiring.rs`) calls
//! `send_accepts` and `send_accepted`. `follow` (`../paxos.rs`) comes before each handler of a leader's message: it
//! refuses a ballot below the promised one, and promises a higher one.

use synod_wire::{Ballot, Batch, Lsn, ReplicaId, Slot, Time};

use super::{Message, MultiPaxos, Record, State, Votes};
use crate::{
    Batches, Decision, Effect, Effects, Protocol,
    acceptor::pages,
    batches::{fitting, last_of},
    leadership::{Leadership, Leads},
    paxos::Paxos,
    proposer::{GapWatch, InFlight},
    resend::Resend,
};

/// A replica that completed Phase 1.
#[derive(Clone, Debug)]
pub(super) struct Leader {
    pub(super) ballot: Ballot,
    /// Slots through this one are proposed.
    pub(super) proposed: Slot,
    /// What goes into the slots after it, which leaves at the end of this burst.
    waiting: Vec<Batch>,
    pub(super) duties: Leadership,
    flights: InFlight,
    pub(super) gap: GapWatch,
}

impl Leader {
    /// A leader of this ballot: slots through `decided` are decided, and what waits goes into the slots after it.
    pub(super) fn begin(
        now: Time,
        ballot: Ballot,
        decided: Slot,
        waiting: Vec<Batch>,
        duties: Leadership,
    ) -> Leader {
        let (flights, gap) = (InFlight::new(), GapWatch::begin(now));
        Leader { ballot, proposed: decided, waiting, duties, flights, gap }
    }

    pub(super) fn tick_at(&self) -> Time {
        self.duties.tick_at().min(self.flights.resend_at())
    }

    /// The batches that it took and has not proposed yet.
    pub(super) fn waiting(&self) -> impl Iterator<Item = &Batch> {
        self.waiting.iter()
    }

    /// The slot for what is proposed next.
    pub(super) fn next_slot(&self) -> Slot {
        Slot(self.proposed.0 + self.waiting.len() as u64 + 1)
    }
}

impl MultiPaxos {
    // The leader proposes.

    /// How many batches it may propose now: as many as its window has room for, if it leads.
    pub(super) fn room(&self) -> usize {
        match &self.state {
            State::Leader(leader) if !self.is_congested() => {
                self.acceptor.slots_free(leader.next_slot(), &self.common.options)
            }
            _ => 0,
        }
    }

    /// Takes a batch. It gets its slot now, and leaves with all others of this burst ([`MultiPaxos::send_accepts`]).
    pub(super) fn propose(&mut self, _: Time, batch: Batch, awaited: bool) {
        if self.room() == 0 {
            return;
        }
        let State::Leader(leader) = &mut self.state else { return };
        if awaited {
            leader.duties.awaits(leader.next_slot());
        }
        leader.waiting.push(batch);
    }

    /// Proposes what waits; consecutive slots leave together.
    pub(super) fn send_accepts(&mut self, now: Time, effects: &mut Effects) {
        while let State::Leader(leader) = &mut self.state
            && !leader.waiting.is_empty()
        {
            let count = fitting(leader.waiting.iter(), self.common.options.page_bytes_max);
            let batches: Batches = leader.waiting.drain(..count).collect();
            let first = leader.proposed.next();
            self.propose_at(now, first, batches, effects);
        }
    }

    fn propose_at(&mut self, now: Time, first: Slot, batches: Batches, effects: &mut Effects) {
        let decided = self.decided();
        let State::Leader(leader) = &mut self.state else { return };
        let (ballot, last) = (leader.ballot, last_of(first, &batches));
        leader.proposed = last;
        while leader.flights.lands(decided).is_some() {}
        let resend = Resend::first(now, self.common.options.retransmit_after);
        leader.flights.begins(first, last, resend, ());
        leader.duties.told(decided);
        // The followers' disks work while this one does: the own votes count once they are durable.
        let accept = Message::Accept { ballot, first, decided, batches: batches.clone() };
        self.common.broadcast(accept, Lsn::ZERO, effects);
        self.accept(ballot, first, batches, effects);
    }

    // A member accepts, and votes.

    pub(super) fn handle_accept(
        &mut self,
        ballot: Ballot,
        first: Slot,
        mut batches: Batches,
        effects: &mut Effects,
    ) {
        // Not answering is always safe. The leader proposes again, or the slot comes by catch-up.
        let ahead_max = if self.is_congested() { 0 } else { self.common.options.accept_ahead_max() };
        let through = self.common.rules().takes_through(self.decided(), ahead_max);
        let room = usize::try_from(through.next().0.saturating_sub(first.0)).unwrap_or(usize::MAX);
        if room < batches.len() {
            batches = batches[..room].into();
        }
        self.accept(ballot, first, batches, effects);
    }

    /// Accepts what is proposed in `first` and the slots after it, in the ballot that this replica promised: writes
    /// down what is new, remembers to count the own votes once that is durable, and tells the replicas that count
    /// votes of all of it.
    fn accept(&mut self, ballot: Ballot, first: Slot, batches: Batches, effects: &mut Effects) {
        let slot_at = |index: usize| Slot(first.0 + index as u64);
        let mut from = 0;
        while from < batches.len() {
            let new = self.acceptor.new_ones(ballot, slot_at(from), batches.len() - from);
            if new == 0 {
                self.accept_again(ballot, slot_at(from), effects);
                from += 1;
                continue;
            }
            let part = from..from + new;
            // Usually everything is new: then the record shares what the message brought.
            let run = if new == batches.len() { batches.clone() } else { batches[part.clone()].into() };
            self.accept_run(ballot, slot_at(from), run, effects);
            from = part.end;
        }
    }

    fn accept_run(&mut self, ballot: Ballot, first: Slot, batches: Batches, effects: &mut Effects) {
        let decided = self.decided();
        let lsn =
            effects.append(Record::Accepted { ballot, first, decided, batches: batches.clone() }.into());
        let votes = self.acceptor.accept(ballot, first, &batches, lsn);
        self.common.disk.given(lsn, votes.slots());
        self.tell_accepted(ballot, first, votes.last, self.common.rules().leaves_after(lsn), effects);
    }

    /// A proposal came again, or its slot is decided.
    fn accept_again(&mut self, ballot: Ballot, slot: Slot, effects: &mut Effects) {
        if slot <= self.decided() {
            // A quorum accepted this slot's value durably without this answer; the leader can only be
            // proposing that value again, and may not know yet that it is decided.
            return self.tell_accepted(ballot, slot, slot, self.common.promised_lsn, effects);
        }
        let Some(lsn) = self.acceptor.accepted(slot).map(|accepted| accepted.lsn) else { return };
        let votes_came_first = self.acceptor.has_votes(slot);
        let after = self.common.rules().leaves_after(lsn.max(self.common.promised_lsn));
        self.tell_accepted(ballot, slot, slot, after, effects);
        // In the variant where everybody counts, the quorum may have answered before the proposal came.
        if votes_came_first && lsn <= self.common.durable {
            self.count_votes(slot, slot, ballot, self.common.members.me(), effects);
        }
    }

    /// Values were accepted here; the replicas that count votes are told at the end of the burst, once record `after`
    /// is durable.
    fn tell_accepted(&mut self, ballot: Ballot, first: Slot, last: Slot, after: Lsn, effects: &mut Effects) {
        if let Some(votes) = &mut self.untold
            && votes.ballot == ballot
            && votes.last.next() == first
        {
            votes.last = last;
            votes.after = votes.after.max(after);
            return;
        }
        self.send_accepted(effects);
        self.untold = Some(Votes { ballot, first, last, after });
    }

    /// Lets the votes of this burst leave.
    pub(super) fn send_accepted(&mut self, effects: &mut Effects) {
        let Some(Votes { ballot, first, last, after }) = self.untold.take() else { return };
        let message = Message::Accepted { ballot, first, last };
        match self.common.options.multipaxos.decision {
            Decision::Leader if ballot.replica != self.common.members.me() => {
                effects.send(ballot.replica, message, after);
            }
            Decision::Leader => {}
            Decision::All => self.common.broadcast(message, after, effects),
        }
    }

    // Votes are counted, and decide.

    /// A member voted for the proposals of some slots.
    pub(super) fn handle_accepted(
        &mut self,
        now: Time,
        from: ReplicaId,
        ballot: Ballot,
        first: Slot,
        last: Slot,
        effects: &mut Effects,
    ) {
        // With decision `all`, votes for another replica's ballot come here as well: they answer that replica.
        if ballot.replica == self.common.members.me() {
            self.common.election.answered(from, now);
        }
        self.count_votes(first, last, ballot, from, effects);
    }

    /// Counts the own votes whose records became durable.
    pub(super) fn count_own_votes(&mut self, effects: &mut Effects) {
        while let Some(votes) = self.acceptor.became_durable(self.common.durable) {
            // Where only leaders count votes, this replica does so in its own ballots alone. (`Acceptor::vote` passes
            // over slots that hold the value of a higher ballot, or are decided.)
            if self.common.options.multipaxos.decision == Decision::Leader
                && votes.ballot.replica != self.common.members.me()
            {
                continue;
            }
            self.count_votes(votes.first, votes.last, votes.ballot, self.common.members.me(), effects);
        }
    }

    /// Counts the votes of `who`, which accepted the proposals of `ballot` for some slots, and decides those for which
    /// that makes a quorum.
    fn count_votes(
        &mut self,
        first: Slot,
        last: Slot,
        ballot: Ballot,
        who: ReplicaId,
        effects: &mut Effects,
    ) {
        let proposed = if let State::Leader(leader) = &self.state { leader.proposed } else { Slot::ZERO };
        let last = self.acceptor.counted_through(last, proposed, self.common.options.accept_ahead_max());
        let (members, rules) = (&self.common.members, self.common.rules());
        let is_quorum = |votes| rules.is_chosen(members, votes);
        if self.acceptor.vote(first, last, ballot, members.only(who), is_quorum) {
            self.deliver(effects);
        }
    }

    /// Delivers the decided slots at the front.
    pub(super) fn deliver(&mut self, effects: &mut Effects) {
        let before = self.decided();
        let rules = self.rules();
        while let Some((slot, ballots, batch)) = rules.next_delivered(&mut self.acceptor) {
            effects.push(Effect::Deliver { slot, ballots, batch });
        }
        let decided = self.decided();
        self.common.decided_elsewhere = self.common.decided_elsewhere.max(decided);
        if let State::Leader(leader) = &mut self.state
            && decided > before
        {
            leader.proposed = leader.proposed.max(decided);
            leader.gap.delivered();
        }
    }

    // The members hear what is decided.

    /// Tells the others what is decided, unless the next proposal soon does. Where all count votes, each finds out by
    /// itself.
    pub(super) fn announce_decided(&mut self, now: Time, effects: &mut Effects) {
        let decided = self.decided();
        if !self.all_count() {
            self.announce(now, effects);
        } else if let State::Leader(leader) = &mut self.state {
            leader.duties.announces_no_more(decided);
        }
    }

    /// Tells the others that slots through this one are decided.
    pub(super) fn tell_decided(&mut self, through: Slot, effects: &mut Effects) {
        let ballot = self.common.promised;
        self.common.broadcast(Message::Decided { ballot, through }, Lsn::ZERO, effects);
    }

    /// The leader of `ballot` announced that slots through `through` are decided.
    pub(super) fn handle_decided(&mut self, ballot: Ballot, through: Slot, effects: &mut Effects) {
        self.common.decided_elsewhere = self.common.decided_elsewhere.max(through);
        let rules = self.common.rules();
        self.acceptor.decide_through(through, |accepted| rules.holds_decision(accepted.ballot, ballot));
        self.deliver(effects);
    }

    /// The leader lives, and says what is decided.
    pub(super) fn handle_heartbeat(
        &mut self,
        from: ReplicaId,
        ballot: Ballot,
        decided: Slot,
        round: u64,
        effects: &mut Effects,
    ) {
        effects.send(from, Message::HeartbeatAck { ballot, round }, self.common.promised_lsn);
        self.handle_decided(ballot, decided, effects);
    }

    // Proposing again.

    /// Proposes again what was not accepted in time, or runs Phase 1 again if that does not help.
    pub(super) fn propose_again(&mut self, now: Time, effects: &mut Effects) {
        let lags = self.decided() < self.common.decided_elsewhere && !self.is_congested();
        let State::Leader(leader) = &mut self.state else { return };
        if leader.gap.is_stuck(now, lags, self.common.options.election_timeout) {
            self.ask_all_again(now, effects);
        } else {
            self.resend_proposals(now, effects);
        }
    }

    fn resend_proposals(&mut self, now: Time, effects: &mut Effects) {
        let wait_max = self.common.options.election_timeout;
        let State::Leader(leader) = &mut self.state else { return };
        let mut due = Vec::new();
        leader.flights.repeat(now, wait_max, &self.acceptor, |flight| due.extend(flight.slots()));
        for peer in self.common.members.peers() {
            self.resend_proposals_to(peer, &due, effects);
        }
    }

    /// Proposes slots again to a member that is not known to have accepted them. Consecutive ones leave together.
    fn resend_proposals_to(&self, peer: ReplicaId, slots: &[Slot], effects: &mut Effects) {
        let State::Leader(leader) = &self.state else { return };
        let (ballot, decided) = (leader.ballot, self.decided());
        let mut missing: Vec<_> = self.acceptor.undecided_of(ballot, slots).collect();
        if self.all_count() {
            // The peer may also have missed this replica's own vote.
            for &(slot, accepted) in missing.iter().filter(|(_, own)| own.lsn <= self.common.durable) {
                effects.send(peer, Message::Accepted { ballot, first: slot, last: slot }, accepted.lsn);
            }
        } else {
            let members = &self.common.members;
            missing.retain(|(slot, _)| !members.contains(self.acceptor.voters(*slot, ballot), peer));
        }
        for page in pages(&missing, self.common.options.page_bytes_max) {
            let (first, batches) = (page[0].0, page.iter().map(|(_, own)| own.batch.clone()).collect());
            effects.send(peer, Message::Accept { ballot, first, decided, batches }, Lsn::ZERO);
        }
    }

    /// A session to a peer began: what was sent to it before may be lost.
    pub(super) fn resend_to(&mut self, _: Time, peer: ReplicaId, effects: &mut Effects) {
        match &self.state {
            State::Candidate(_) => self.ask_for_promise(peer, effects),
            State::Leader(leader) => {
                let (ballot, round) = (leader.ballot, leader.duties.rounds.last());
                effects.send(peer, Message::Heartbeat { ballot, decided: self.decided(), round }, Lsn::ZERO);
                let undecided: Vec<Slot> = self.acceptor.undecided().collect();
                self.resend_proposals_to(peer, &undecided, effects);
            }
            State::Recovering(_) => self.ask_to_recover(peer, effects),
            State::Follower => {}
        }
    }

    /// Slots after the decided prefix, through the last one that this leader gave to a batch, that are not known here
    /// to be decided.
    pub(super) fn in_flight(&self) -> usize {
        match &self.state {
            State::Leader(leader) => self.acceptor.undecided_before(leader.next_slot()),
            _ => 0,
        }
    }
}

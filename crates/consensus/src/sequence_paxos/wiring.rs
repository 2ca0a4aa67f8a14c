//! What Sequence Paxos answers otherwise than the rest of the family (`../wiring.rs`): its states, and questions of the
//! replica around it.

use synod_wire::{Ballot, Batch, ReplicaId, Slot, Time};

use super::{Message, Phase, Record, SequencePaxos, State};
use crate::{
    Effects, Protocol, Role,
    leadership::Leads,
    paxos::{Common, Paxos},
};

crate::wiring::protocol!(SequencePaxos, log);

impl Paxos for SequencePaxos {
    type Message = Message;

    fn common(&self) -> &Common {
        &self.common
    }

    fn common_mut(&mut self) -> &mut Common {
        &mut self.common
    }

    fn role(&self) -> Role {
        match self.state {
            State::Follower(_) => Role::Follower,
            State::Candidate(_) => Role::Candidate,
            State::Leader(_) => Role::Leader,
            State::Recovering => Role::Recovering,
        }
    }

    fn become_candidate(&mut self, now: Time, ballot: Ballot, effects: &mut Effects) {
        self.become_candidate(now, ballot, effects);
    }

    fn accepted_after(&self, known: Slot, ballot: Ballot) -> bool {
        self.accepted_in == ballot && self.log.last() > known
    }

    /// It grows with the slots that this leader decided, and with those that each follower has of its sequence, be it
    /// in pages that count for nothing yet. It stops to grow if nothing is decided, as then nothing more than the
    /// window is proposed.
    fn progress(&self) -> (Slot, bool) {
        let State::Leader(leader) = &self.state else { return (Slot::ZERO, false) };
        let followers: u64 = leader.peers.values().map(|peer| peer.reached.0).sum();
        let gained = Slot(self.log.decided().0.saturating_add(followers));
        (gained, self.in_flight() > 0 && !self.is_congested())
    }

    fn resend(&mut self, now: Time, effects: &mut Effects) {
        match self.state {
            State::Follower(_) => self.ask_for_prepare(now, effects),
            State::Candidate(_) => self.resend_prepare(now, effects),
            State::Leader(_) => self.resend_to_peers(now, effects),
            State::Recovering => {}
        }
    }

    fn own_deadline(&self) -> Time {
        match &self.state {
            State::Follower(follower) if self.common.reported.view.leader.is_some() => follower.ask_at(),
            State::Candidate(candidate) => candidate.resend.at(),
            State::Leader(leader) => leader.tick_at(),
            State::Follower(_) | State::Recovering => Time::NEVER,
        }
    }
    /// A candidate, or a follower that lagged too far, may wait for what was learned.
    fn knows_more(&mut self, now: Time, effects: &mut Effects) {
        self.complete_prepare(now, effects);
        self.caught_up(now, effects);
    }

    fn trim(&mut self, slot: Slot, effects: &mut Effects) {
        effects.append(Record::Trimmed { slot, accepted_in: self.accepted_in }.into());
    }

    /// Checks the invariants of docs/errata.md that one replica can check; the simulator checks I3, I5 and I8,
    /// which are about several. I6 concerns epochs.
    fn assert_invariants(&self) {
        if self.is_planted() || matches!(self.state, State::Recovering) {
            return;
        }
        debug_assert!(self.accepted_in <= self.common.promised, "I1");
        debug_assert!(self.log.decided() <= self.log.last(), "I2");
        if let State::Leader(leader) = &self.state {
            debug_assert!(leader.ballot == self.common.promised && leader.ballot == self.accepted_in, "I4");
            debug_assert!(leader.all_within(self.log.last()), "I7");
        }
        if let State::Follower(follower) = &self.state {
            let accepts = follower.phase == Phase::Accept;
            debug_assert!(!accepts || self.accepted_in == self.common.promised, "accepts in its ballot only");
        }
    }
}

impl SequencePaxos {
    pub(super) fn room(&self) -> usize {
        match &self.state {
            State::Leader(_) if !self.is_congested() => {
                self.common.options.window_max.saturating_sub(self.in_flight())
            }
            _ => 0,
        }
    }

    fn for_each_undelivered(&self, see: &mut dyn FnMut(&Batch)) {
        let undecided = (self.log.decided().0 + 1..=self.log.last().0).map(Slot);
        undecided.filter_map(|slot| self.log.get(slot)).for_each(see);
    }

    fn flush_all(&mut self, now: Time, effects: &mut Effects) {
        self.send_accepted(effects);
        self.send_accepts(effects);
        self.announce(now, effects);
    }

    fn on_durable(&mut self, now: Time, effects: &mut Effects) {
        self.count_own_acceptance(effects);
        self.complete_prepare(now, effects);
    }

    /// How many slots of this leader's sequence are not decided.
    fn in_flight(&self) -> usize {
        match &self.state {
            State::Leader(_) => {
                usize::try_from(self.log.last().0 - self.log.decided().0).unwrap_or(usize::MAX)
            }
            _ => 0,
        }
    }

    pub(super) fn leads(&self) -> bool {
        matches!(self.state, State::Leader(_))
    }

    /// With a bug planted, invariants need not hold.
    pub(super) fn is_planted(&self) -> bool {
        self.common.options.planted_bug().is_some()
    }
}

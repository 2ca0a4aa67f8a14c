//! A follower that may have missed something, in the order in which the messages travel: it asks for a `Prepare`
//! (`PrepareReq`), its leader asks what it has, or says that it dropped what the follower lacks (`Lagging`). The answer
//! is in `phase1.rs`, what follows it in `phase2.rs`.

use synod_wire::{Ballot, Lsn, ReplicaId, Slot, Time};

use super::{Extent, Follower, Message, Phase, Prepare, SequencePaxos, State, peers::Stage};
use crate::{Effects, resend::Resend};

impl SequencePaxos {
    /// A follower that knows nothing of a leader yet.
    pub(super) fn new_follower(&self, now: Time) -> Follower {
        Follower {
            phase: Phase::Recover,
            ask: Resend::at_once(now, self.common.options.retransmit_after),
            dropped: Slot::ZERO,
            staging: None,
            told: Slot::ZERO,
            accepted_due: false,
        }
    }

    /// Asks for a `Prepare` if this replica needs one and it is time to ask.
    pub(super) fn ask_for_prepare(&mut self, now: Time, effects: &mut Effects) {
        let wait_max = self.common.options.election_timeout;
        let State::Follower(follower) = &mut self.state else { return };
        if now < follower.ask_at() {
            return;
        }
        if let Some(leader) = self.common.reported.view.leader
            && follower.ask.is_due(now, wait_max)
        {
            effects.send(leader, Message::PrepareReq { promised: self.common.promised }, Lsn::ZERO);
        }
    }

    /// Something was missed: what comes cannot be used before the leader has asked what is here.
    pub(super) fn recover(&mut self, now: Time, effects: &mut Effects) {
        let retransmit_after = self.common.options.retransmit_after;
        let State::Follower(follower) = &mut self.state else { return };
        if follower.phase == Phase::Accept {
            follower.phase = Phase::Recover;
            follower.ask = Resend::at_once(now, retransmit_after);
            self.ask_for_prepare(now, effects);
        }
    }

    /// A session to a peer began: what was sent to it before may be lost.
    pub(super) fn resend_to(&mut self, now: Time, peer: ReplicaId, effects: &mut Effects) {
        match &mut self.state {
            State::Candidate(_) => self.ask_for_promise(peer, effects),
            // The first message of the session, so that whatever was lost is found out before anything else comes.
            State::Leader(_) => self.prepare_peer(now, peer, effects),
            State::Follower(_) => {
                let promised = self.common.promised;
                effects.send(peer, Message::PrepareReq { promised }, Lsn::ZERO);
            }
            State::Recovering => {}
        }
    }

    /// A follower may have missed something.
    pub(super) fn handle_prepare_req(
        &mut self,
        now: Time,
        from: ReplicaId,
        promised: Ballot,
        effects: &mut Effects,
    ) {
        let State::Leader(leader) = &self.state else { return };
        // A `Prepare` or a page is under way, and is sent again. Beginning again with each question would never end
        // where a page takes longer than the follower waits.
        let is_served = leader.peers.get(&from).is_some_and(|peer| peer.is_served(now));
        // A replica that has promised more will hear of a leader that can use it.
        if promised <= leader.ballot && !is_served {
            self.prepare_peer(now, from, effects);
        }
    }

    /// Asks a follower what it has, since it may have missed something.
    pub(super) fn prepare_peer(&mut self, now: Time, to: ReplicaId, effects: &mut Effects) {
        let (retransmit_after, timeout) =
            (self.common.options.retransmit_after, self.common.options.election_timeout);
        let Some(prepare) = self.prepare_of_leader() else { return };
        let State::Leader(leader) = &mut self.state else { return };
        let Some(peer) = leader.peers.get_mut(&to) else { return };
        peer.stage = Stage::Asked;
        peer.goes_on(now, retransmit_after, timeout);
        effects.send(to, prepare, Lsn::ZERO);
    }

    pub(super) fn prepare_of_leader(&self) -> Option<Message> {
        let State::Leader(leader) = &self.state else { return None };
        // What was proposed in this burst is not written yet, so no follower can have it.
        let has = Extent { last: leader.written, ..self.extent() };
        Some(Message::Prepare(Prepare { ballot: leader.ballot, has, page: Slot::ZERO }))
    }

    /// Handles the message that the leader has dropped what this replica lacks.
    pub(super) fn handle_lagging(&mut self, now: Time, through: Slot, effects: &mut Effects) {
        self.common.decided_elsewhere = self.common.decided_elsewhere.max(through);
        let State::Follower(follower) = &mut self.state else { return };
        if follower.phase == Phase::Accept {
            if self.log.last() >= through {
                // This replica does not lack it any more: the leader answers a promise that was sent before that.
                return self.accepted(effects);
            }
            follower.phase = Phase::Recover;
        }
        follower.dropped = through;
        self.caught_up(now, effects);
    }

    /// Asks for a `Prepare` once what the leader has dropped was learned elsewhere.
    pub(super) fn caught_up(&mut self, now: Time, effects: &mut Effects) {
        let decided = self.log.decided();
        let retransmit_after = self.common.options.retransmit_after;
        let State::Follower(follower) = &mut self.state else { return };
        if follower.dropped > Slot::ZERO && decided >= follower.dropped {
            follower.dropped = Slot::ZERO;
            follower.ask = Resend::at_once(now, retransmit_after);
            self.ask_for_prepare(now, effects);
        }
    }
}

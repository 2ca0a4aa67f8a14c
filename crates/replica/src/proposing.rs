//! What this replica proposes, as the leader or where every replica proposes; and what it sends to the leader.
//!
//! A command of a client waits in `requests.rs` until there is room for its batch, here or at the leader. A change of
//! the group may end the epoch, so that what is proposed after the change would be void: then the leader proposes
//! nothing more before it knows what becomes of the change. A protocol that changes voters itself takes only one change
//! at a time: then the next change, and what comes after it, wait.

use std::time::Duration;

use bytes::Bytes;
use synod_consensus::{Bug, ChangeRefused, Control, ElectionKind, Input};
use synod_wire::{Ballot, Batch, CommandKind, SessionId, Time};

use crate::{
    Action, Change, ChangeRequest, Replica, RequestError, RequestId, SessionCommand, message::Routed,
    pacing::Pacing, requests::Taker,
};

/// A change of the group on its way through this leader.
#[derive(Debug, Default)]
pub(crate) struct Changing {
    /// A change that was proposed here ends the epoch, probably: what is proposed after it would be void.
    stopping: bool,
    /// A change that the protocol is being asked to take, and whether another replica waits for it.
    offered: Option<(Batch, bool)>,
    /// A change that the protocol does not take yet, so that what comes after the change waits as well.
    held_back: Option<(Batch, bool)>,
}

impl Changing {
    /// Whether a change was proposed here that probably ends the epoch.
    pub fn ends_epoch(&self) -> bool {
        self.stopping
    }

    /// How many changes the protocol has not taken yet.
    pub fn waiting(&self) -> usize {
        usize::from(self.offered.is_some()) + usize::from(self.held_back.is_some())
    }

    /// Records that a change is decided.
    pub fn decided(&mut self) {
        self.stopping = false;
    }

    /// Records that a snapshot took the place of slots that were not delivered here: a change that was proposed may
    /// have been decided, or refused, in one of them. If it was not, what is proposed after it may be void.
    pub fn skipped(&mut self) {
        self.stopping = false;
    }

    /// Gives up what is on its way, since this replica does not lead. The replica that asked for it asks the next
    /// leader.
    pub fn abandoned(&mut self) {
        self.stopping = false;
        self.held_back = None;
    }
}

impl Replica {
    // Commands come.

    /// Takes a command of a client of this replica.
    pub(crate) fn request(
        &mut self,
        now: Time,
        request: RequestId,
        kind: CommandKind,
        session: Option<SessionCommand>,
        payload: &Bytes,
        actions: &mut Vec<Action>,
    ) {
        let named = kind.is_change().then(|| self.with_births(payload));
        let limits = &self.group.limits;
        let outstanding_max = limits.sessions.replica_outstanding_max / 2;
        let has_room = self.requests.has_room(payload.len(), self.settings.queue_bytes_max, outstanding_max);
        let refused = if self.group.is_away(self.me) {
            Some(RequestError::TakesNoPart)
        } else if !has_room {
            Some(RequestError::Overloaded)
        } else if payload.len() > limits.request_bytes_max {
            Some(RequestError::TooLarge)
        } else {
            match &named {
                Some(Err(error)) => Some(*error),
                Some(Ok(request)) if self.is_premature(request, now) => Some(RequestError::NotCaughtUp),
                _ => None,
            }
        };
        let named = named.and_then(Result::ok).map(|request| (request.kind(), request.encode().to_bytes()));
        let (kind, payload) = named.as_ref().map_or((kind, payload), |(kind, payload)| (*kind, payload));
        let failed = match (refused, session) {
            (Some(error), _) => Some((request, error)),
            (None, Some(command)) => self.requests.add_of_client(now, request, kind, command, payload).err(),
            (None, None) => {
                self.requests.add_own(now, Some(request), kind, payload);
                None
            }
        };
        actions.extend(failed.map(|(request, error)| Action::RequestFailed { request, error }));
    }

    // Batches leave.

    /// A batch is as large as this replica was told, but no larger than the group allows.
    pub(crate) fn bound_batches(&mut self) {
        let most = self.batch_bytes_max();
        let bytes_max = self.pacing.as_ref().map_or(most, |pacing| pacing.batch_bytes_max(most));
        self.requests.bound_batches(bytes_max);
    }

    fn batch_bytes_max(&self) -> usize {
        self.settings.batch_bytes_max.min(self.group.limits.batch_bytes_max())
    }

    /// How long a batch that this leader proposed counts as under way. Nothing that works takes so long.
    fn patience(&self) -> Duration {
        self.settings.consensus.election_timeout
    }

    /// Whether commands are proposed here, also where another replica leads. Changes of the group go to the leader in
    /// any case.
    pub(crate) fn proposes_without_leading(&self) -> bool {
        self.group.proposes_anywhere() && self.instance.routes_here()
    }

    /// Whether ordering this batch of another replica would count for nothing, since it was delivered or given up: a
    /// replica that lags sends it all the same, and would have it counted as under way for good.
    pub(crate) fn is_void(&self, batch: &Batch) -> bool {
        let voids = |id| self.history.delivered().voids(id);
        self.group.proposes_anywhere() && batch.id().is_some_and(voids)
    }

    /// Proposes, or sends to the leader, what waits, as far as there is room.
    pub(crate) fn propose(&mut self, now: Time, actions: &mut Vec<Action>) {
        let ballot = self.view.ballot;
        if self.proposes_without_leading() {
            self.requests.overtake_with_changes();
        }
        if self.leads() {
            self.order_as_leader(now, ballot, actions);
        } else {
            self.forward(now, ballot, actions);
        }
        if self.proposes_without_leading() {
            self.propose_commands(now, actions);
        }
    }

    fn order_as_leader(&mut self, now: Time, ballot: Ballot, actions: &mut Vec<Action>) {
        let anywhere = self.proposes_without_leading();
        let (leader, changes) = (Taker::Leader(ballot), anywhere.then_some(true));
        let me = self.requests.origin();
        if now >= Time::ZERO + self.settings.request_timeout {
            self.forwarded.expire(now - self.settings.request_timeout);
        }
        let patience = self.patience();
        if let Some(pacing) = &mut self.pacing {
            pacing.give_up(now, patience);
            self.bound_batches();
        }
        while self.room() > 0 {
            let held_back = self.changing.held_back.take();
            // What a leader proposed the protocol keeps proposing, as long as it leads.
            let mut again = || self.requests.resend(leader, changes, now, Duration::MAX);
            let own = |batch| (batch, false);
            let next = held_back.or_else(|| again().map(own)).or_else(|| {
                // Each follower that waits has its turn, and so do the clients of this replica.
                let is_turn = !anywhere && self.forwarded.is_turn_of(me);
                let new = if is_turn { self.requests.next_batch(now, leader) } else { None };
                new.is_some().then(|| self.forwarded.had_turn(me));
                new.map(own).or_else(|| self.forwarded.take().map(|batch| (batch, true)))
            });
            let Some((batch, awaited)) = next else { break };
            self.order(now, batch, awaited, actions);
            if self.changing.held_back.is_some() {
                break;
            }
        }
        let waits = self.requests.has_waiting() || self.forwarded.bytes() > 0;
        let most = self.batch_bytes_max();
        if let Some(pacing) = &mut self.pacing {
            pacing.left(waits, most);
        }
    }

    /// Proposes the commands of this replica's own clients where every replica does. The protocol keeps proposing them
    /// as long as the epoch lasts.
    fn propose_commands(&mut self, now: Time, actions: &mut Vec<Action>) {
        let here = Taker::Here(self.known.running());
        while self.instance.room() > 0 {
            let again = self.requests.resend(here, Some(false), now, Duration::MAX);
            let Some(batch) = again.or_else(|| self.requests.next_batch(now, here)) else { break };
            self.input(now, Input::Propose { batch, awaited: false }, actions);
        }
    }

    /// How many batches may be proposed here now.
    fn room(&self) -> usize {
        if self.changing.stopping || self.is_paced() { 0 } else { self.instance.room() }
    }

    /// Whether as much is under way as is worth it. Where every replica proposes, a leader orders names alone, which
    /// are small.
    fn is_paced(&self) -> bool {
        let has_room = |pacing: &Pacing| pacing.has_room(self.batch_bytes_max());
        !self.proposes_without_leading() && self.pacing.as_ref().is_some_and(|pacing| !has_room(pacing))
    }

    fn forward(&mut self, now: Time, ballot: Ballot, actions: &mut Vec<Action>) {
        let Some(route) = self.leader_route() else { return };
        let (leader, retry) = (Taker::Leader(ballot), self.forward_retry());
        // A replica that takes no part in ordering sends all that it has to the leader.
        let anywhere = self.proposes_without_leading();
        while let Some(batch) = self.requests.resend(leader, anywhere.then_some(true), now, retry) {
            self.send_on(route, Routed::Forward(batch), actions);
        }
        while !anywhere && self.may_forward(ballot) {
            let Some(batch) = self.requests.next_batch(now, leader) else { break };
            self.send_on(route, Routed::Forward(batch), actions);
        }
    }

    /// Whether something that was sent to the leader has not been answered for too long.
    pub(crate) fn is_answer_overdue(&self, now: Time) -> bool {
        let retry = self.forward_retry();
        self.reads.overdue(now, retry) || self.requests.is_overdue(self.view.ballot, now, retry)
    }

    /// Whether one more batch may be on its way to the leader of `ballot`. More than the leader's window would only
    /// wait there, each for a slot of its own, while what waits here grows into one batch.
    fn may_forward(&self, ballot: Ballot) -> bool {
        self.requests.with_leader(ballot) < self.settings.forward_window_max.min(self.window_max())
    }

    /// Slots that a leader may have under way: the group's, or this replica's own.
    pub(crate) fn window_max(&self) -> usize {
        self.group.overrides.window_max().unwrap_or(self.settings.consensus.window_max)
    }

    /// How long an answer of the leader may take before it is asked again.
    pub(crate) fn forward_retry(&self) -> Duration {
        self.settings.consensus.election_timeout
    }

    /// When this replica next proposes or forwards something by itself.
    pub(crate) fn proposes_at(&self) -> Option<Time> {
        let (leads, anywhere) = (self.leads(), self.proposes_without_leading());
        let follows = !leads && self.leader_route().is_some();
        let proposes = (leads || anywhere) && self.room() > 0 && self.changing.held_back.is_none();
        let forwards = follows && !anywhere && self.may_forward(self.view.ballot);
        let new = self.requests.batch_due().filter(|_| proposes || forwards);
        // What it proposed the protocol proposes again by itself. Where this replica proposes its commands itself,
        // those that it sent to a leader before wait for room here, and not for a time.
        let sends = follows.then(|| anywhere.then_some(true));
        let again = sends.and_then(|changes| self.requests.retry_at(changes, self.forward_retry()));
        let pacing = self.pacing.as_ref().filter(|_| leads && self.is_paced());
        let paced = pacing.and_then(|pacing| pacing.gives_up_at(self.patience()));
        new.into_iter().chain(again).chain(paced).min()
    }

    // Changes of the group.

    /// Proposes a batch here. After a change that ends the epoch nothing is proposed until it is known
    /// whether it is decided.
    pub(crate) fn order(&mut self, now: Time, batch: Batch, awaited: bool, actions: &mut Vec<Action>) {
        let slot = self.decided.last().next();
        if self.would_be_stuck(now, &batch) {
            // One more slot may have been decided since a learner was found to have caught up. This asks
            // again at the learner's next message; otherwise it could be so each time.
            if let Some(Change::Promote { id, .. }) = change_in(&batch) {
                self.reports.refuse(id);
                // One that lost its log stays as it is.
                if self.group.member(id).is_none_or(|member| self.births.remembers(member)) {
                    self.reports.may_ask_again();
                }
            }
            return self.fail_change(&batch, RequestError::Unhealthy, actions);
        }
        if ChangeRequest::is_unknown(&batch) {
            // A replica of a later release asks for it. Decided, it would stop all that do not know it.
            return self.fail_change(&batch, RequestError::NotAChange, actions);
        }
        let change = change_in(&batch);
        if self.begins_latency(change.as_ref()) && !self.group.names_births() {
            // A member that runs 0.2.0 passes over a change with an election that it does not know, and the group would
            // part. One that names births was met by all its members, each with a later program.
            return self.fail_change(&batch, RequestError::NotCaughtUp, actions);
        }
        if self.names_a_stranger(change.as_ref()) {
            return self.fail_change(&batch, RequestError::NotCaughtUp, actions);
        }
        if let Some(changed) = self.group.after(slot, &batch) {
            let ends = changed.is_ok_and(|next| next.epoch != self.group.epoch);
            self.changing.stopping = ends && !self.has(Bug::DeliverAfterEnd);
        }
        if let Some(pacing) = &mut self.pacing {
            pacing.sent(now, batch.id(), batch.bytes().len());
        }
        // All replicas wait for what ends an epoch: the followers are told at once that it is decided.
        let awaited = awaited || self.changing.stopping;
        let Some(voters) = self.group.voters_after(slot, &batch) else {
            return self.input(now, Input::Propose { batch, awaited }, actions);
        };
        self.changing.offered = Some((batch.clone(), awaited));
        self.input(now, Input::Control(Control::ChangeVoters { voters, batch }), actions);
        self.changing.offered = None;
    }

    /// Records that the protocol does not take the change that was offered to it.
    pub(crate) fn change_refused(&mut self, refused: ChangeRefused, actions: &mut Vec<Action>) {
        let Some(offered) = self.changing.offered.take() else { return };
        self.changing.stopping = false;
        match refused {
            ChangeRefused::Pending | ChangeRefused::TooEarly => self.changing.held_back = Some(offered),
            // The replica that asked for it sends it to the next leader.
            ChangeRefused::NotLeading => {}
            ChangeRefused::Lagging(_) => {
                // If it comes from a follower, the follower sends it again after a while.
                self.fail_change(&offered.0, RequestError::NotCaughtUp, actions);
                if let Some(Change::Promote { id, .. }) = change_in(&offered.0) {
                    self.reports.refuse(id);
                }
                self.reports.may_ask_again();
            }
        }
    }

    /// Fails a change that will not be proposed.
    fn fail_change(&mut self, change: &Batch, error: RequestError, actions: &mut Vec<Action>) {
        self.forwarded.done(change);
        let requests = self.requests.done(change);
        actions.extend(requests.into_iter().map(|(_, request)| Action::RequestFailed { request, error }));
    }

    /// Records that the leader did not propose a change of this follower's client.
    pub(crate) fn change_turned_down(
        &mut self,
        session: SessionId,
        sequence: u64,
        actions: &mut Vec<Action>,
    ) {
        if let Some(change) = self.requests.change(session, sequence) {
            self.fail_change(&change, RequestError::Unhealthy, actions);
        }
    }

    /// Whether a change of voters that this leader is asked for would be the last for long, because fewer of
    /// the replicas that would vote answer it, with their memory, than decide from then on. (etcd's strict
    /// reconfiguration check.) With three voters, one of them down, the removal of another would leave two,
    /// and both would be needed. A learner that lost its log would not vote in the epoch that its promotion begins, and
    /// the others have to be a quorum without it to readmit it.
    pub(crate) fn would_be_stuck(&self, now: Time, batch: &Batch) -> bool {
        let slot = self.decided.last().next();
        let next = self.group.after(slot, batch).filter(|_| self.instance.runs());
        let Some(Ok(next)) = next else { return false };
        let remembers = |id| next.member(id).is_none_or(|member| self.births.remembers(member));
        let answers = |id| {
            if self.group.votes(id) && id != self.me {
                self.instance.answers(now, id)
            } else {
                id == self.me || self.has_caught_up(id, now) && remembers(id)
            }
        };
        let changes = next.voters().ne(self.group.voters()) || next.threshold() != self.group.threshold();
        let quorum = next.threshold().least(next.voters().count());
        changes && next.voters().filter(|&id| answers(id)).count() < quorum
    }

    /// Whether a change is to an election that 0.2.0 does not know, from another. A group that was begun with it has
    /// no member of that release.
    fn begins_latency(&self, change: Option<&Change>) -> bool {
        matches!(change, Some(Change::Order { election: ElectionKind::Latency, .. }))
            && self.group.election != ElectionKind::Latency
    }
}

/// The change of the group that a batch asks for. What clients write may look like one.
fn change_in(batch: &Batch) -> Option<Change> {
    ChangeRequest::decode(batch.reconfiguration()?).ok().map(|request| request.change)
}

#[cfg(test)]
mod tests {
    use synod_wire::{BatchBuilder, ReplicaId};

    use super::*;

    #[test]
    fn what_a_client_writes_is_no_change_of_the_group() {
        let promotion = Change::Promote { id: ReplicaId(4), birth: Some(7) };
        let request = ChangeRequest { expected: 1, change: promotion.clone() };
        let payload = request.encode().to_bytes();
        let batch = |kind| {
            let mut builder = BatchBuilder::new();
            builder.push_as(kind, SessionId(1), 1, 1, &payload);
            builder.finish()
        };
        assert_eq!(change_in(&batch(request.kind())), Some(promotion));
        assert_eq!(change_in(&batch(CommandKind::Apply)), None);
    }
}

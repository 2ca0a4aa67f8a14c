//! A way to the leader by another voter, for a replica that misses the leader.
//!
//! A follower may lose its link to the leader and keep those to the others. No election ends the leader's work for
//! that (`synod_consensus::election`), so the follower's own clients would wait until the link is mended. Instead:
//!
//! - A replica that has not heard its leader for an election time-out, or has waited for an answer for that long, asks
//!   all voters repeatedly whether they hear the leader ([`PeerMessage::SeekLeader`]). Those that do say which replica
//!   it is and how far they are ([`PeerMessage::Progress`]); what was decided then comes from them by catch-up.
//! - What it has for the leader goes by way of one of them, in an envelope that names its origin and its receiver
//!   ([`PeerMessage::Relayed`]). The voter passes the envelope on unchanged and remembers nothing of it; the leader's
//!   answer comes back the same way.
//! - **One hop**: an envelope is passed on only if it came from its origin. So none goes in circles.
//! - **Bounded**: a replica has no more batches under way than to a leader that it hears, an envelope is as
//!   large as its content, and
//!   the voter that passes it on keeps it only as long as its queue to that peer has room.
//!
//! Safety does not depend on it. An envelope holds only what the replica layer has for the leader, and the
//! leader's answers ([`Routed`]): never a message of a protocol. So a vote or a promise still comes from the
//! replica at the other end of a session. A batch may be ordered twice, as always, and is executed once. The
//! answer to a read names the question by a token that no other question of the asker has; the token goes
//! with the name of the asker.

use synod_consensus::{Bug, Control, Input, To};
use synod_wire::{Lsn, ReplicaId, Time};

use crate::{Action, PeerMessage, Replica, message::Routed};

/// The way of a message from here to another replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RelayRoute {
    /// The replica that it is for.
    pub to: ReplicaId,
    /// The voter that passes the message on; `None` if it goes directly.
    pub via: Option<ReplicaId>,
}

/// Whether this replica misses its leader, and by way of which voter it then reaches it.
#[derive(Debug)]
pub struct Relay {
    /// When the leader was last heard.
    heard: Time,
    /// Whether the leader is heard, and does not answer.
    unanswered: bool,
    /// When voters were last asked whether they hear the leader.
    asked: Option<Time>,
    /// The voters that said so.
    guides: Vec<Guide>,
    /// The voter that passes messages on at the moment.
    via: Option<ReplicaId>,
}

/// A voter that hears the leader.
#[derive(Clone, Copy, Debug)]
struct Guide {
    id: ReplicaId,
    leader: ReplicaId,
    /// When it said so.
    told: Time,
    /// When something that it had to pass on was last not answered in time.
    failed: Option<Time>,
}

impl Relay {
    /// A replica that starts, and waits a while to hear the leader.
    pub fn new(now: Time) -> Relay {
        Relay { heard: now, unanswered: false, asked: None, guides: Vec::new(), via: None }
    }

    fn guide(&self) -> Option<&Guide> {
        self.guides.iter().find(|guide| Some(guide.id) == self.via)
    }

    /// Takes note that a voter hears this leader.
    fn told(&mut self, id: ReplicaId, leader: ReplicaId, now: Time) {
        match self.guides.iter_mut().find(|guide| guide.id == id) {
            Some(guide) => (guide.leader, guide.told) = (leader, now),
            None => self.guides.push(Guide { id, leader, told: now, failed: None }),
        }
    }

    /// Takes note that what was sent was not answered in time.
    fn not_answered(&mut self, now: Time) {
        match self.guides.iter_mut().find(|guide| Some(guide.id) == self.via) {
            Some(guide) => {
                guide.failed = Some(now);
                self.via = None;
            }
            None if self.unanswered => {}
            None => (self.unanswered, self.asked) = (true, None),
        }
    }

    /// Keeps the voter as long as it hears the leader; otherwise takes one that has not failed, or the one
    /// whose failure is the oldest.
    fn choose(&mut self) {
        if self.guide().is_none() {
            self.via = self.guides.iter().min_by_key(|guide| (guide.failed, guide.id)).map(|guide| guide.id);
        }
    }
}

impl Replica {
    /// Looks for a way to the leader if this replica misses it, and goes back to the direct one if it does not.
    pub(crate) fn find_way(&mut self, now: Time, actions: &mut Vec<Action>) {
        let before = self.relay.via;
        if self.leader_route().is_some() && self.is_answer_overdue(now) {
            self.relay.not_answered(now);
        }
        if self.misses_leader(now) {
            let (group, catch_up) = (&self.group, &self.catch_up);
            let believed = self.settings.consensus.election_timeout;
            self.relay.guides.retain(|guide| {
                group.votes(guide.id) && !catch_up.is_down(guide.id) && now < guide.told + believed
            });
            self.relay.choose();
            self.seek_leader(now, actions);
        } else {
            self.relay.guides.clear();
            self.relay.via = None;
        }
        if self.relay.via != before {
            // What was sent the other way may be lost.
            self.requests.forget_sent();
            self.reads.ask_again();
        }
    }

    /// The way on which messages for the leader go.
    pub(crate) fn leader_route(&self) -> Option<RelayRoute> {
        match self.relay.guide() {
            Some(guide) => Some(RelayRoute { to: guide.leader, via: Some(guide.id) }),
            // What waits for a session waits here, and is known not to have left.
            None => {
                let reached = |&to: &ReplicaId| to == self.me || !self.catch_up.is_down(to);
                self.view.leader.filter(reached).map(|to| RelayRoute { to, via: None })
            }
        }
    }

    /// The leader that another voter hears, if this replica goes by way of that voter.
    pub(crate) fn leader_of_guide(&self) -> Option<ReplicaId> {
        self.relay.guide().map(|guide| guide.leader)
    }

    /// Whether this replica, which does not lead, does not hear the leader, or is not heard by it.
    pub(crate) fn misses_leader(&self, now: Time) -> bool {
        self.group.member(self.me).is_some()
            && !self.leads()
            && (self.relay.unanswered || now >= self.relay.heard + self.settings.consensus.election_timeout)
    }

    /// From when on this replica, unless it hears of a leader before, has known none for so long that
    /// requests that wait for one fail.
    pub(crate) fn leaderless_from(&self) -> Option<Time> {
        let timeout = self.settings.leaderless_timeout().max(self.settings.consensus.election_timeout);
        (!self.leads() && self.relay.guide().is_none()).then(|| self.relay.heard + timeout)
    }

    /// When [`Replica::find_way`] has something to do even if nothing happens.
    pub(crate) fn find_way_at(&self, now: Time) -> Option<Time> {
        if self.leads() || self.group.member(self.me).is_none() {
            return None;
        }
        if !self.misses_leader(now) {
            return Some(self.relay.heard + self.settings.consensus.election_timeout);
        }
        self.relay.asked.map(|asked| asked + self.seek_interval())
    }

    /// The time between two questions. While a voter hears the leader, this replica hears of decisions as
    /// often as from a leader that has nothing to say.
    fn seek_interval(&self) -> std::time::Duration {
        let options = &self.settings.consensus;
        if self.relay.guides.is_empty() { options.election_timeout / 2 } else { options.heartbeat_interval }
    }

    fn seek_leader(&mut self, now: Time, actions: &mut Vec<Action>) {
        if self.relay.asked.is_some_and(|asked| now < asked + self.seek_interval()) {
            return;
        }
        self.relay.asked = Some(now);
        let others = self.group.voters().filter(|&id| id != self.me && !self.catch_up.is_down(id));
        let to = To::Each(others.collect());
        actions.push(Action::Send { to, message: PeerMessage::SeekLeader, after: Lsn::ZERO });
    }

    /// Answers another replica that misses the leader. A replica that was removed and does not know it misses
    /// the last leader that it had: it hears how far the log is, fetches what it lacks, and finds its removal
    /// there. No other replica speaks to it.
    pub(crate) fn leader_sought(&self, now: Time, from: ReplicaId, actions: &mut Vec<Action>) {
        let hears = |leader| leader == self.me || !self.misses_leader(now) && !self.catch_up.is_down(leader);
        let member = self.group.member(from).is_some();
        let removed = !member && from < self.group.next_id;
        if removed || member && self.view.leader.is_some_and(hears) {
            actions.push(self.progress_to(from, member));
        }
    }

    /// Takes note that a voter that was asked says which replica leads.
    pub(crate) fn leader_found(&mut self, now: Time, from: ReplicaId, leader: ReplicaId) {
        if leader == from && self.view.leader == Some(from) {
            // The leader itself answers, so it was reached, and is heard.
            (self.relay.heard, self.relay.unanswered) = (now, false);
        } else if leader != self.me && self.group.votes(from) {
            self.relay.told(from, leader, now);
        }
    }

    /// Takes note that a message came directly from this replica.
    pub(crate) fn heard_from(&mut self, now: Time, from: ReplicaId) {
        if self.view.leader == Some(from) && !self.catch_up.is_down(from) {
            self.relay.heard = now;
        }
    }

    /// Waits for the leader again: another replica leads, or this one did until now, or the session to the
    /// leader is a new one.
    pub(crate) fn expect_leader(&mut self, now: Time) {
        (self.relay.heard, self.relay.unanswered) = (now, false);
    }

    /// Handles an envelope.
    pub(crate) fn relayed(
        &mut self,
        now: Time,
        from: ReplicaId,
        origin: ReplicaId,
        to: ReplicaId,
        message: Routed,
        actions: &mut Vec<Action>,
    ) {
        if self.differs(origin) {
            return;
        }
        if to == self.me && origin != self.me {
            let back = RelayRoute { to: origin, via: Some(from).filter(|&from| from != origin) };
            self.routed(now, back, message, actions);
        } else if from == origin && self.group.member(origin).is_some() && self.group.member(to).is_some() {
            if let Routed::ReadIndexAnswer { slot, .. } = message
                && self.has(Bug::KeepRelayedAnswer)
                && let Some(own) = self.reads.first_asked()
            {
                self.reads_answered(own, slot);
            }
            let message = PeerMessage::Relayed { origin, to, message };
            actions.push(Action::Send { to: to.into(), message, after: Lsn::ZERO });
        }
    }

    /// Something for the leader, or an answer of the leader, whichever way it came; `back` is the way back.
    pub(crate) fn routed(&mut self, now: Time, back: RelayRoute, message: Routed, actions: &mut Vec<Action>) {
        match message {
            Routed::Forward(batch) => {
                if self.leads() && self.would_be_stuck(now, &batch) {
                    let command = batch.commands().next().map(|command| (command.session, command.sequence));
                    let (session, sequence) = command.expect("the change is one");
                    self.send_on(back, Routed::TurnedDown { session, sequence }, actions);
                } else if self.leads() && !batch.is_noop() && !self.is_void(&batch) {
                    self.forwarded.hear(&batch);
                    self.forwarded.add(now, batch, self.settings.queue_bytes_max);
                }
            }
            Routed::TurnedDown { session, sequence } => self.change_turned_down(session, sequence, actions),
            Routed::ReadIndex { token } => {
                if !self.instance.runs() && !self.has(Bug::LeakRemoteReads) {
                    // There is nobody here who could answer.
                    self.refuse_reads(vec![(back, token)], actions);
                } else if let Some(token) = self.reads.ask_for(back, token, now) {
                    self.input(now, Input::Control(Control::ReadIndex(token)), actions);
                }
            }
            Routed::ReadIndexAnswer { token, slot } => self.reads_answered(token, slot),
        }
    }

    /// Sends something for the leader, or the leader's answer.
    pub(crate) fn send_on(&self, route: RelayRoute, message: Routed, actions: &mut Vec<Action>) {
        let RelayRoute { to, via } = route;
        let action = match via {
            None => Action::Send { to: to.into(), message: PeerMessage::Direct(message), after: Lsn::ZERO },
            Some(via) => {
                let message = PeerMessage::Relayed { origin: self.me, to, message };
                Action::Send { to: via.into(), message, after: Lsn::ZERO }
            }
        };
        actions.push(action);
    }
}

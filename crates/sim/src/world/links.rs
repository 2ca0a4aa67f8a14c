//! Sessions between replicas, and messages in them.

use std::time::Duration;

use bytes::Bytes;
use synod_consensus::{Class, Link};
use synod_host::Input;
use synod_replica::{Event, History, Met, PeerMessage};
use synod_wire::{GroupId, ReplicaId, Slot};

use super::{FIRST, Happening, World};
use crate::{
    chart::{Key, Lane},
    check::{Checked, Invariant, Violation, demand},
    describe,
    network::{Loss, Packet, Wire, between},
    plan::Ending,
    situations::Sight,
};

/// What a node hears of another one.
#[derive(Clone, Copy, Debug)]
pub(crate) enum News {
    /// A session to it begins or ends.
    Link { peer: ReplicaId, link: Link },
    /// Whose messages come from it.
    Met { peer: ReplicaId, met: Met },
    /// Every member with which the groups began was met once.
    MetAll,
}

impl News {
    fn event(self) -> Event {
        match self {
            News::Link { peer, link } => Event::Link { peer, link },
            News::Met { peer, met } => Event::Met { peer, met },
            News::MetAll => Event::MetAll,
        }
    }
}

const MS: Duration = Duration::from_millis(1);

impl World {
    /// A message leaves a replica, its records being durable.
    pub(super) fn send(&mut self, from: usize, to: usize, group: GroupId, message: &PeerMessage) -> Checked {
        if self.times_out && *message == PeerMessage::SeekLeader {
            return Ok(());
        }
        // Nobody listens to a copy: all others would notice, or the copy would not have been restored.
        if !self.is_peer(from, to) || self.machines[from].copied {
            return Ok(());
        }
        if matches!(message, PeerMessage::History { .. }) {
            self.tell_history(from, to, group, message);
            return Ok(());
        }
        let life = self.machines[from].lives;
        let checks = &mut self.checks[group];
        checks.situations.see(&Sight::Sends { from, to, message });
        checks.batches.sent(message);
        if let PeerMessage::Protocol { epoch, message } = message {
            if group == FIRST && message.body().class() == Class::Transfer {
                self.trials.asked_to_lead(from, to);
            }
            let more = message.body().promise_page().is_some_and(|page| page.more);
            if more && self.plan.faults.between_pages.hit(&mut self.rng) {
                self.queue.push(self.now, Happening::Crash { of: from, life });
            }
            let id = self.machines[from].id;
            let message = &checks.batches.filled(*epoch, message);
            let delivered = self.machines[from]
                .life
                .as_ref()
                .map_or(Slot::ZERO, |life| life.hosted[group].watch.delivered());
            let last = checks.log.last();
            checks.batches.said((id, delivered), *epoch, message, last)?;
            let claims = message.body().claims_of(id);
            checks.memory.said(*epoch, from, message, &claims)?;
            for claim in &claims {
                checks.groups.said(from, *epoch, claim, delivered)?;
                checks.votes.said(*epoch, from, id, life, claim, last)?;
            }
            let to = self.machines[to].id;
            checks.letters.said(*epoch, from, checks.votes.promised(*epoch, from), to, message)?;
            checks.terms.said(*epoch, from, (id, life), to, message, last)?;
        }
        let shown = self.machines[to].is_alive() && !(self.idles && describe::is_sign_of_life(message));
        if self.network.wire() == Wire::Manual && shown {
            let lost = if self.network.is_up(from, to) { "" } else { " (no session: lost)" };
            let of = self.of_group(group);
            self.line(from, || format!("→ r{}  {of}{}{lost}", to + 1, describe::message(message)));
        }
        let body = message.encode().to_bytes();
        self.sent += 1;
        let number = self.sent;
        self.chart(|chart| chart.sends(number, (from, to), message, body.len()));
        let max = self.frame_bytes_max;
        demand(body.len() <= max, Invariant::FitsAFrame, || {
            let what = describe::class(message);
            format!("r{} sends {what} of {} bytes; at most {max} fit", from + 1, body.len())
        })?;
        self.fold(body.len() as u64);
        let mut arrivals = std::mem::take(&mut self.arrivals);
        let alone = self.network.travels_alone(from, to, body.len());
        let ends = self.network.send(self.now, from, to, Packet { number, group, body }, &mut arrivals);
        self.note_losses();
        if alone && arrivals.is_empty() {
            self.coverage.messages_lost += 1;
            let of = self.of_group(group);
            self.line(from, || format!("→ r{}  lost: {of}{}", to + 1, describe::message(message)));
        }
        self.expect(from, to, arrivals);
        if ends {
            self.end_session(from, to);
        }
        Ok(())
    }

    /// What replicas tell of their histories changes nothing while all is well, and goes beside all else that they say.
    /// It may be lost, and may come late, as anything else.
    fn tell_history(&mut self, from: usize, to: usize, group: GroupId, message: &PeerMessage) {
        // As often as it is told it is written down.
        let machine = &mut self.machines[from];
        let reached = machine.life.as_ref().and_then(|life| life.replica(group).reached());
        if let Some(history) = reached {
            machine.files.reached[group] = History::noted(history.since(), history.to_note());
        }
        let up = self.network.wire() == Wire::Datagram || self.network.is_up(from, to);
        if !up || self.network.is_cut(from, to) || !self.machines[to].is_alive() {
            return;
        }
        let body = message.encode().to_bytes();
        let wait = between(&mut self.telling, self.plan.network.delay_min, self.plan.network.delay_max * 2);
        let session = self.network.session(from, to);
        let birth = self.machines[from].files.birth;
        self.queue.push(self.now + wait, Happening::Tell { from, birth, to, session, group, body });
    }

    /// A history arrives that was told in a session which still lasts.
    pub(super) fn hear_history(
        &mut self,
        (from, birth): (usize, u64),
        to: usize,
        session: u64,
        group: GroupId,
        body: Bytes,
    ) -> Checked {
        let lasts = match self.network.wire() {
            Wire::Datagram => self.is_heard(to, from) && self.knows_birth(to, from, birth),
            Wire::Stream | Wire::Mixed(_) | Wire::Manual => {
                self.network.is_up(from, to) && self.network.session(from, to) == session
            }
        };
        let message = PeerMessage::decode(body).map_err(|error| Violation {
            invariant: Invariant::Sound,
            detail: format!("r{} cannot read the history of r{}: {error}", to + 1, from + 1),
        })?;
        let sender = self.machines[from].id;
        if !lasts || !self.machines[to].is_alive() {
            return Ok(());
        }
        self.coverage.histories_compared += 1;
        self.take(to, Input::Event(group, Event::Receive { from: sender, message }))
    }

    fn expect(&mut self, from: usize, to: usize, mut arrivals: Vec<crate::network::Arrival>) {
        let birth = self.machines[from].files.birth;
        for arrival in arrivals.drain(..) {
            let (session, body) = (arrival.session, arrival.body);
            self.queue.push(arrival.at, Happening::Arrive { from, birth, to, session, body });
        }
        self.arrivals = arrivals;
    }

    /// `sender`: who sent it, and of which birth it was then.
    pub(super) fn arrive(
        &mut self,
        sender: (usize, u64),
        to: usize,
        session: u64,
        body: Option<Packet>,
    ) -> Checked {
        let (from, alone) = (sender.0, body.is_some());
        let arrived = self.network.arrive(from, to, session, body);
        self.note_losses();
        let Some(packet) = arrived else { return Ok(()) };
        match self.network.damage(&packet.body) {
            Some(damaged) => {
                self.note_loss(packet.number, Loss::Damaged);
                self.is_damaged(from, to, damaged, alone);
                Ok(())
            }
            None => self.receive(sender, to, packet),
        }
    }

    /// A message arrives damaged. Its checksum says so, and the session ends, unless it travelled alone: what a damaged
    /// message seems to say is heeded by nobody. A replica that reads it all the same finds an error at most.
    fn is_damaged(&mut self, from: usize, to: usize, damaged: Bytes, alone: bool) {
        self.coverage.messages_damaged += 1;
        self.line(to, || format!("← r{}  a damaged message", from + 1));
        let _ = PeerMessage::decode(damaged);
        if self.network.wire().has_sessions() && !alone {
            self.end_session(from, to);
        }
    }

    /// A replica gets a message, if it lives. `birth`: that of the sender when it sent it, which may have lost
    /// everything since.
    pub(crate) fn receive(&mut self, (from, birth): (usize, u64), to: usize, packet: Packet) -> Checked {
        let Packet { number, group, body } = packet;
        if !self.machines[to].is_alive() {
            self.note_loss(number, Loss::Down);
            return Ok(());
        }
        if self.network.wire() == Wire::Datagram
            && !(self.is_peer(to, from) && self.is_heard(to, from) && self.knows_birth(to, from, birth))
        {
            self.coverage.messages_lost += 1;
            self.note_loss(number, Loss::Stranger);
            return Ok(());
        }
        self.chart(|chart| chart.arrives(Key::Message(number), Lane::Replica(to)));
        let message = PeerMessage::decode(body).map_err(|error| Violation {
            invariant: Invariant::Sound,
            detail: format!("r{} cannot read a message of r{}: {error}", to + 1, from + 1),
        })?;
        let brief = self.network.wire() == Wire::Manual;
        let shown = !(self.idles && describe::is_sign_of_life(&message));
        let of = self.of_group(group);
        let line = || {
            let text = describe::message(&message);
            // In a script the whole message is shown when it is sent.
            let text = if brief { text.split(' ').next().unwrap_or_default() } else { &text };
            format!("← r{}  {of}{text}", from + 1)
        };
        if shown {
            self.line(to, line);
        }
        self.fold((from * 16 + to) as u64);
        if let PeerMessage::Protocol { epoch, message } = &message {
            self.checks[group].memory.arrives(*epoch, from, to, message);
        }
        // What an earlier life said may come late, also when the machine holds something else by now.
        let present = self.machines[from].is_alive() && self.is_heard(to, from);
        if present && matches!(message, PeerMessage::Protocol { .. }) {
            self.counts(from, birth, to, group)?;
        }
        let from = self.machines[from].id;
        self.step(to, group, Event::Receive { from, message })
    }

    /// A life has begun: it makes sessions to all peers.
    pub(super) fn make_sessions(&mut self, of: usize) {
        let life = self.machines[of].lives;
        self.network.begin_life(of);
        for peer in (0..self.machines.len()).filter(|&peer| peer != of) {
            if self.network.wire() == Wire::Datagram {
                self.tell_link(of, life, peer, Link::Up);
                self.dial_soon(of, peer);
            } else {
                // Whatever an earlier life had is over.
                self.network.disconnect(of, peer);
                self.note_losses();
                self.dial_soon(of, peer);
            }
        }
    }

    /// A life has ended: sessions to it end. What it had sent may still arrive, or not.
    pub(super) fn break_sessions(&mut self, of: usize, ending: Ending) {
        let link = if ending == Ending::Process { Link::Refused } else { Link::Down };
        for peer in (0..self.machines.len()).filter(|&peer| peer != of) {
            if self.network.wire() != Wire::Datagram {
                self.end_session_as(peer, of, link);
                if self.network.wire().has_sessions() && self.rng.bool() {
                    self.network.disconnect(of, peer);
                    self.note_losses();
                }
            }
        }
    }

    /// A machine has come into the world: the others dial it.
    pub(super) fn dial_newcomer(&mut self, of: usize) {
        for peer in (0..self.machines.len()).filter(|&peer| peer != of) {
            if self.machines[peer].is_alive() && self.network.wire() == Wire::Datagram {
                self.tell_link(peer, self.machines[peer].lives, of, Link::Up);
                self.dial_soon(peer, of);
            } else if self.machines[peer].is_alive() {
                self.dial_soon(peer, of);
            }
        }
    }

    pub(super) fn dial_soon(&mut self, from: usize, to: usize) {
        if self.machines[to].retired || self.faults.dialing(from, to, true) {
            return;
        }
        let wait = match self.network.wire() {
            Wire::Manual => Duration::ZERO,
            Wire::Stream | Wire::Mixed(_) | Wire::Datagram => between(&mut self.rng, MS / 10, 30 * MS),
        };
        self.queue.push(self.now + wait, Happening::Dial { from, to });
    }

    pub(super) fn dial(&mut self, from: usize, to: usize) -> Checked {
        self.faults.dialing(from, to, false);
        let life = self.machines[from].lives;
        let datagram = self.network.wire() == Wire::Datagram;
        let is_up = if datagram {
            let welcomed = self.machines[from].files.is_welcomed_by(self.machines[to].id);
            welcomed && self.is_heard(to, from) && self.is_heard(from, to)
        } else {
            self.network.is_up(from, to)
        };
        if !self.machines[from].is_alive() || is_up || !self.is_peer(from, to) {
            return Ok(());
        }
        let reachable = !self.network.is_cut(from, to) && !self.network.is_cut(to, from);
        let runs = self.machines[to].is_running() && self.machines[from].is_running();
        if reachable && runs && self.is_peer(to, from) && self.shake_hands(from, to) {
            if datagram {
                return Ok(());
            }
            let mut arrivals = std::mem::take(&mut self.arrivals);
            self.network.connect(self.now, from, to, &mut arrivals);
            // Before anything that comes in the session.
            self.tell_met(to, from);
            self.expect(from, to, arrivals);
            self.tell_link(from, life, to, Link::Up);
        } else if self.network.wire() != Wire::Manual {
            self.dial_soon(from, to);
        }
        Ok(())
    }

    /// A session ends for whatever reason; the sender is told, and dials again.
    pub(super) fn end_session(&mut self, from: usize, to: usize) {
        self.end_session_as(from, to, Link::Down);
    }

    pub(super) fn end_session_as(&mut self, from: usize, to: usize, link: Link) {
        self.coverage.messages_lost += self.network.in_transit(from, to).count() as u64;
        let lasted = self.network.disconnect(from, to);
        self.note_losses();
        if !lasted || !self.machines[from].is_alive() {
            return;
        }
        let life = self.machines[from].lives;
        self.tell_link(from, life, to, link);
        if self.network.wire() != Wire::Manual {
            self.dial_soon(from, to);
        }
    }

    fn tell_link(&mut self, of: usize, life: u64, peer: usize, link: Link) {
        let news = News::Link { peer: self.machines[peer].id, link };
        self.queue.push(self.now, Happening::News { of, life, news });
    }

    /// A node hears of another one, which concerns all its groups.
    pub(super) fn hear_news(&mut self, of: usize, life: u64, news: News) -> Checked {
        if self.machines[of].in_life(life).is_none() {
            return Ok(());
        }
        self.see(&Sight::Takes { of, event: &news.event() });
        // Datagrams have no sessions, so none keeps a removed node as a peer.
        let sessions = self.network.wire() != Wire::Datagram;
        if let (News::Link { peer, link }, Some(life), true) = (news, &mut self.machines[of].life, sessions) {
            life.parting.linked(life.clock.read(self.now), peer, link == Link::Up);
        }
        self.take_all(of, || news.event())
    }

    /// Mends what a partition cut.
    pub(super) fn uncut(&mut self, from: usize, to: usize) {
        let mut arrivals = std::mem::take(&mut self.arrivals);
        self.network.mend(self.now, from, to, &mut arrivals);
        self.expect(from, to, arrivals);
    }
}

//! Sessions between nodes, which all groups share: messages of one keep their order, and are lost with it.

use std::{collections::VecDeque, time::Duration};

use bytes::Bytes;
use synod_consensus::Link;
use synod_replica::{Event, PeerMessage};
use synod_wire::GroupId;

use super::{Happening, World, machine::id};
use crate::{
    check::{Checked, Invariant, Violation},
    clock::Moment,
    network::between,
};

/// The link of two nodes.
#[derive(Debug, Default)]
pub(super) struct Pair {
    /// The number of the session, if there is one.
    session: Option<u64>,
    /// Nothing arrives while it is cut so often.
    cut: u32,
    /// What would have arrived.
    stuck: VecDeque<Happening>,
    dialing: bool,
    /// When the last message of each direction and group arrives.
    last: [Vec<Moment>; 2],
}

/// All links.
#[derive(Debug)]
pub(super) struct Links {
    pairs: Vec<Pair>,
    nodes: usize,
    sessions: u64,
}

impl Links {
    pub fn new(nodes: usize, groups: usize) -> Links {
        let pair =
            || Pair { last: [vec![Moment::START; groups], vec![Moment::START; groups]], ..Pair::default() };
        Links { pairs: (0..nodes * nodes).map(|_| pair()).collect(), nodes, sessions: 0 }
    }

    fn pair(&mut self, one: usize, other: usize) -> &mut Pair {
        &mut self.pairs[one.min(other) * self.nodes + one.max(other)]
    }
}

impl World {
    pub(super) fn links_cut(&mut self, one: usize, other: usize) -> bool {
        self.links.pair(one, other).cut > 0
    }

    /// A node tries to begin sessions to all others.
    pub(super) fn dial_all(&mut self, of: usize) {
        (0..self.machines.len()).filter(|to| *to != of).for_each(|to| self.dial_later(of, to));
    }

    pub(super) fn dial_later(&mut self, one: usize, other: usize) {
        if self.machines[one].gone || self.machines[other].gone {
            return;
        }
        let pair = self.links.pair(one, other);
        if !pair.dialing && pair.session.is_none() {
            pair.dialing = true;
            let wait = between(&mut self.rng, Duration::from_millis(1), Duration::from_millis(30));
            self.queue.push(self.now + wait, Happening::Dial { one, other });
        }
    }

    pub(super) fn dial(&mut self, one: usize, other: usize) -> Checked {
        let alive = |of: usize| self.machines[of].life.is_some();
        let (alive, known) = (alive(one) && alive(other), alive(one) || alive(other));
        let running = [one, other].iter().all(|&of| self.machines[of].paused.is_none());
        let sessions = self.links.sessions + 1;
        let pair = self.links.pair(one, other);
        pair.dialing = false;
        if pair.session.is_some() || !known {
            return Ok(());
        }
        if !alive || !running || pair.cut > 0 {
            self.dial_later(one, other);
            return Ok(());
        }
        pair.session = Some(sessions);
        self.links.sessions = sessions;
        self.line(one, || format!("has a session to r{}", other + 1));
        for (of, peer) in [(one, other), (other, one)] {
            self.machines[of].met.insert(peer);
            self.tell_link(of, peer, Link::Up)?;
        }
        Ok(())
    }

    /// Tells a node what happened to a session.
    fn tell_link(&mut self, of: usize, peer: usize, link: Link) -> Checked {
        if self.machines[of].life.is_none() {
            return Ok(());
        }
        let life = self.machines[of].lives;
        self.happen(Happening::Linked { of, life, peer, link })
    }

    /// A message leaves a node, its records being durable.
    pub(super) fn send(&mut self, from: usize, to: usize, group: GroupId, message: &PeerMessage) {
        let (now, delay) = (self.now, between(&mut self.rng, self.plan.delay.0, self.plan.delay.1));
        let late = self.holds.iter().filter(|hold| hold.holds(from, to, group)).map(|hold| hold.until).max();
        let body = message.encode().to_bytes();
        let pair = self.links.pair(from, to);
        let Some(session) = pair.session else { return };
        let last = &mut pair.last[usize::from(from > to)][usize::from(group.0)];
        let at = (now + delay).max(*last).max(late.unwrap_or(Moment::START));
        *last = at;
        self.line(from, || format!("→ r{}  {group} {}", to + 1, crate::describe::message(message)));
        self.queue.push(at, Happening::Arrive { from, to, session, group, body });
    }

    /// A message arrives, if its session still lasts.
    pub(super) fn arrive(
        &mut self,
        from: usize,
        to: usize,
        session: u64,
        group: GroupId,
        body: Bytes,
    ) -> Checked {
        let pair = self.links.pair(from, to);
        if pair.session != Some(session) {
            return Ok(());
        }
        if pair.cut > 0 {
            pair.stuck.push_back(Happening::Arrive { from, to, session, group, body });
            return Ok(());
        }
        let message = PeerMessage::decode(body).map_err(|error| Violation {
            invariant: Invariant::Sound,
            detail: format!("r{} cannot read a message of r{}: {error}", to + 1, from + 1),
        })?;
        self.step(to, group, Event::Receive { from: id(from), message });
        self.end_burst(to)
    }

    /// Nothing arrives any more on a link, and its session ends if that lasts.
    pub(super) fn cut(&mut self, one: usize, other: usize) {
        let wait = between(&mut self.rng, Duration::from_millis(20), Duration::from_millis(400));
        let pair = self.links.pair(one, other);
        pair.cut += 1;
        if let Some(session) = pair.session {
            self.queue.push(self.now + wait, Happening::Hangup { one, other, session });
        }
    }

    /// A link works again.
    pub(super) fn mend(&mut self, one: usize, other: usize) -> Checked {
        let pair = self.links.pair(one, other);
        pair.cut = pair.cut.saturating_sub(1);
        if pair.cut == 0 {
            for happening in std::mem::take(&mut pair.stuck) {
                self.happen(happening)?;
            }
        }
        Ok(())
    }

    /// A session ends if its link is cut.
    pub(super) fn hang_up(&mut self, one: usize, other: usize, session: u64) -> Checked {
        let pair = self.links.pair(one, other);
        if pair.session == Some(session) && pair.cut > 0 {
            self.break_session(one, other, Link::Down)
        } else {
            Ok(())
        }
    }

    /// A session ends, and what is on its way is lost; `link` is what the second node is told.
    pub(super) fn break_session(&mut self, one: usize, other: usize, link: Link) -> Checked {
        let pair = self.links.pair(one, other);
        pair.stuck.clear();
        if pair.session.take().is_none() {
            return Ok(());
        }
        self.line(one, || format!("has no session to r{} any more", other + 1));
        self.tell_link(one, other, Link::Down)?;
        self.tell_link(other, one, link)?;
        self.dial_later(one, other);
        Ok(())
    }
}

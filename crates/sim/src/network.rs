//! The network between the replicas: one link for each ordered pair.
//!
//! A link is of one of three kinds, the same for a whole world:
//!
//! - **Stream**, as Synod's TCP transport promises: sessions in which messages arrive in order, once, without gaps;
//!   when a session ends, a suffix is lost. A cut link holds messages back until it is mended or the session ends.
//! - **Datagram**: every message for itself; it may be lost, duplicated, and overtake others.
//! - **Mixed**, as the transport `udp` promises: sessions as those of a stream, in which small messages travel as
//!   datagrams. Such a message arrives in any session between the two lives that were there when it was sent.
//!
//! The network only tells what arrives when; the world puts that into its queue.

use std::{collections::VecDeque, fmt, time::Duration};

use bytes::Bytes;
use fastrand::Rng;
use synod_wire::GroupId;

use crate::{clock::Moment, odds::Odds};

/// The kind of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wire {
    /// FIFO sessions that may end.
    Stream,
    /// Each message is sent separately.
    Datagram,
    /// As `Stream`, but messages of at most this many bytes are sent separately.
    Mixed(usize),
    /// As `Stream`, but nothing arrives until a command says so, for scenario scripts.
    Manual,
}

impl Wire {
    /// Whether links have sessions that end and begin by themselves.
    #[must_use]
    pub fn has_sessions(self) -> bool {
        matches!(self, Wire::Stream | Wire::Mixed(_))
    }
}

/// How the links of a world behave.
#[derive(Clone, Copy, Debug)]
pub struct NetworkPlan {
    /// The kind of all links.
    pub wire: Wire,
    /// The least time that a message takes.
    pub delay_min: Duration,
    /// The most time that a message usually takes on the slowest link.
    pub delay_max: Duration,
    /// How many messages take ten times as long.
    pub slow: Odds,
    /// One in four of the slow messages takes any time up to this.
    pub late_max: Duration,
    /// How many messages are lost (datagrams only).
    pub loss: Odds,
    /// How many messages arrive twice (datagrams only).
    pub duplicate: Odds,
    /// How many messages end the session (streams only).
    pub reset: Odds,
    /// How many messages arrive damaged: cut somewhere, or with other bytes.
    pub damage: Odds,
    /// Messages that a link without a session keeps for the next one; older ones are dropped.
    pub keep_max: usize,
}

/// A message in flight.
#[derive(Clone, Debug)]
pub struct Packet {
    /// The number of the message in its world, from 1. A datagram that arrives twice keeps its number.
    pub number: u64,
    /// The group whose replicas it is for.
    pub group: GroupId,
    /// What it says.
    pub body: Bytes,
}

/// Why a message does not arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// The network lost it.
    Network,
    /// The link was cut when it would have arrived.
    Cut,
    /// There was no session, or too many messages waited for the next one.
    NoSession,
    /// The session ended while it was in flight.
    SessionEnded,
    /// It arrived damaged.
    Damaged,
    /// No process was running at its target.
    Down,
    /// The receiver does not recognise the sender.
    Stranger,
    /// A script dropped it.
    Script,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Loss::Network => "the network lost it",
            Loss::Cut => "the link was cut",
            Loss::NoSession => "there was no session",
            Loss::SessionEnded => "the session ended while it was under way",
            Loss::Damaged => "it arrived damaged",
            Loss::Down => "the receiver was down",
            Loss::Stranger => "the receiver does not know this sender",
            Loss::Script => "the script lost it",
        })
    }
}

/// A message that is going to arrive.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// The time of the arrival.
    pub at: Moment,
    /// The session in which it was sent.
    pub session: u64,
    /// The message, if it is a datagram; otherwise the front of the stream arrives.
    pub body: Option<Packet>,
}

/// The most messages in flight in a stream, oldest first. This bounds the memory of a link that is cut for long.
const PIPE_MAX: usize = 20_000;

/// One direction between two replicas.
#[derive(Debug)]
struct Link {
    delay_max: Duration,
    /// How much longer messages take.
    slowed_by: Duration,
    /// The number of the session. Messages of earlier sessions are lost, but for datagrams.
    session: u64,
    /// The first session between the present lives of the two replicas.
    since: u64,
    up: bool,
    /// How many partitions cut this link.
    cuts: u32,
    pipe: VecDeque<Packet>,
    /// How many arrivals the cut link missed: as many messages wait in the pipe for the link to be mended.
    missed: usize,
    last_arrival: Moment,
}

/// All links.
#[derive(Debug)]
pub struct Network {
    plan: NetworkPlan,
    replicas: usize,
    links: Vec<Link>,
    /// Messages that were lost since the list was last taken.
    lost: Vec<(u64, Loss)>,
    rng: Rng,
}

impl Network {
    /// A network of links that are all down (streams) or that need no session (datagrams).
    #[must_use]
    pub fn new(plan: NetworkPlan, replicas: usize, mut rng: Rng) -> Network {
        let mut link = || Link {
            delay_max: between(&mut rng, plan.delay_min, plan.delay_max),
            slowed_by: Duration::ZERO,
            session: 0,
            since: 0,
            up: plan.wire == Wire::Datagram,
            cuts: 0,
            pipe: VecDeque::new(),
            missed: 0,
            last_arrival: Moment::START,
        };
        let links = (0..replicas * replicas).map(|_| link()).collect();
        Network { plan, replicas, links, lost: Vec::new(), rng }
    }

    /// The kind of the links.
    #[must_use]
    pub fn wire(&self) -> Wire {
        self.plan.wire
    }

    fn link(&mut self, from: usize, to: usize) -> &mut Link {
        &mut self.links[from * self.replicas + to]
    }

    /// Whether nothing gets through.
    #[must_use]
    pub fn is_cut(&self, from: usize, to: usize) -> bool {
        self.links[from * self.replicas + to].cuts > 0
    }

    /// Whether there is a session.
    #[must_use]
    pub fn is_up(&self, from: usize, to: usize) -> bool {
        self.links[from * self.replicas + to].up
    }

    /// The present session, or the last one.
    #[must_use]
    pub fn session(&self, from: usize, to: usize) -> u64 {
        self.links[from * self.replicas + to].session
    }

    /// The delay of a message that is sent now.
    fn delay(&mut self, from: usize, to: usize) -> Duration {
        let (plan, link) = (&self.plan, &self.links[from * self.replicas + to]);
        let delay = between(&mut self.rng, plan.delay_min, link.delay_max) + link.slowed_by;
        match plan.slow.hit(&mut self.rng) {
            true if self.rng.u8(0..4) == 0 => between(&mut self.rng, delay, plan.late_max),
            true => delay * 10,
            false => delay,
        }
    }

    /// Whether a message of this many bytes that is sent now is a datagram.
    #[must_use]
    pub fn travels_alone(&self, from: usize, to: usize, bytes: usize) -> bool {
        match self.plan.wire {
            Wire::Datagram => true,
            Wire::Mixed(bytes_max) => bytes <= bytes_max && self.is_up(from, to),
            Wire::Stream | Wire::Manual => false,
        }
    }

    /// Sends a message. Returns whether the session ends because of it; arrivals are appended.
    pub fn send(
        &mut self,
        now: Moment,
        from: usize,
        to: usize,
        packet: Packet,
        arrivals: &mut Vec<Arrival>,
    ) -> bool {
        if !self.travels_alone(from, to, packet.body.len()) {
            return self.send_in_stream(now, from, to, packet, arrivals);
        }
        self.send_datagram(now, from, to, &packet, arrivals);
        false
    }

    fn send_datagram(
        &mut self,
        now: Moment,
        from: usize,
        to: usize,
        packet: &Packet,
        arrivals: &mut Vec<Arrival>,
    ) {
        let session = self.session(from, to);
        let copies = 1 + usize::from(self.plan.duplicate.hit(&mut self.rng));
        for _ in 0..copies {
            if !self.plan.loss.hit(&mut self.rng) {
                let at = now + self.delay(from, to);
                arrivals.push(Arrival { at, session, body: Some(packet.clone()) });
            }
        }
        if arrivals.is_empty() {
            self.lost.push((packet.number, Loss::Network));
        }
    }

    fn send_in_stream(
        &mut self,
        now: Moment,
        from: usize,
        to: usize,
        packet: Packet,
        arrivals: &mut Vec<Arrival>,
    ) -> bool {
        let delay = self.delay(from, to);
        let (keep_max, manual) = (self.plan.keep_max, self.plan.wire == Wire::Manual);
        let resets = self.plan.reset.hit(&mut self.rng);
        let Network { links, lost, replicas, .. } = self;
        let link = &mut links[from * *replicas + to];
        if link.pipe.len() >= PIPE_MAX {
            lost.push((packet.number, Loss::SessionEnded));
            return true;
        }
        if manual && !link.up {
            lost.push((packet.number, Loss::NoSession));
            return false;
        }
        link.pipe.push_back(packet);
        if link.up && !manual {
            // A message comes no earlier than those before it.
            link.last_arrival = link.last_arrival.max(now + delay);
            arrivals.push(Arrival { at: link.last_arrival, session: link.session, body: None });
            return resets;
        }
        while !manual && link.pipe.len() > keep_max {
            lost.extend(link.pipe.pop_front().map(|packet| (packet.number, Loss::NoSession)));
        }
        false
    }

    /// The message that arrives now, if one does.
    pub fn arrive(&mut self, from: usize, to: usize, session: u64, body: Option<Packet>) -> Option<Packet> {
        let mixed = matches!(self.plan.wire, Wire::Mixed(_));
        let link = self.link(from, to);
        if let Some(packet) = body {
            let why = match link {
                Link { cuts: 1.., .. } => Loss::Cut,
                Link { up, since, .. } if mixed && (!*up || session < *since) => Loss::SessionEnded,
                _ => return Some(packet),
            };
            self.lost.push((packet.number, why));
            return None;
        }
        if link.session != session || !link.up {
            return None;
        }
        if link.cuts > 0 {
            link.missed += 1;
            return None;
        }
        link.pipe.pop_front()
    }

    /// The damaged form of a message that arrives now, if it is damaged in flight.
    pub fn damage(&mut self, body: &Bytes) -> Option<Bytes> {
        if body.is_empty() || !self.plan.damage.hit(&mut self.rng) {
            return None;
        }
        let place = self.rng.usize(0..body.len());
        if self.rng.bool() {
            return Some(body.slice(..place));
        }
        let mut damaged = body.to_vec();
        let end = self.rng.usize(place..body.len().min(place + 8)) + 1;
        damaged[place..end].iter_mut().for_each(|byte| *byte = self.rng.u8(..));
        Some(damaged.into())
    }

    /// Makes the messages of a link take this much longer from now on.
    pub fn slow_down(&mut self, from: usize, to: usize, by: Duration) {
        self.link(from, to).slowed_by = by;
    }

    /// How much longer the messages of a link take.
    pub fn slowed_by(&self, from: usize, to: usize) -> Duration {
        self.links[from * self.replicas + to].slowed_by
    }

    /// Cuts a link; it takes as many [`Network::mend`]s to mend it.
    pub fn cut(&mut self, from: usize, to: usize) {
        self.link(from, to).cuts += 1;
    }

    /// Takes one cut back. Messages that a stream held back arrive after all.
    pub fn mend(&mut self, now: Moment, from: usize, to: usize, arrivals: &mut Vec<Arrival>) {
        let delay = self.delay(from, to);
        let link = self.link(from, to);
        assert!(link.cuts > 0, "only what was cut is mended");
        link.cuts -= 1;
        if link.cuts == 0 && link.missed > 0 {
            link.last_arrival = link.last_arrival.max(now + delay);
            let arrival = Arrival { at: link.last_arrival, session: link.session, body: None };
            arrivals.extend((0..link.missed).map(|_| arrival.clone()));
            link.missed = 0;
        }
    }

    /// A session begins; the messages that waited for it are sent.
    pub fn connect(&mut self, now: Moment, from: usize, to: usize, arrivals: &mut Vec<Arrival>) {
        let delay = self.delay(from, to);
        let manual = self.plan.wire == Wire::Manual;
        let link = self.link(from, to);
        assert!(!link.up, "one session at a time");
        link.up = true;
        link.session += 1;
        link.missed = 0;
        link.last_arrival = link.last_arrival.max(now + delay);
        if !manual {
            let arrival = Arrival { at: link.last_arrival, session: link.session, body: None };
            arrivals.extend((0..link.pipe.len()).map(|_| arrival.clone()));
        }
    }

    /// A life of a replica begins: nothing counts any more that travels alone to or from an earlier one.
    pub fn begin_life(&mut self, of: usize) {
        for peer in (0..self.replicas).filter(|&peer| peer != of) {
            for (from, to) in [(of, peer), (peer, of)] {
                let link = self.link(from, to);
                link.since = link.session + 1;
            }
        }
    }

    /// The session ends; its messages in flight are lost, but for datagrams. Returns false if there was none.
    pub fn disconnect(&mut self, from: usize, to: usize) -> bool {
        let Network { links, lost, replicas, .. } = self;
        let link = &mut links[from * *replicas + to];
        lost.extend(link.pipe.drain(..).map(|packet| (packet.number, Loss::SessionEnded)));
        link.missed = 0;
        std::mem::take(&mut link.up)
    }

    /// The messages in flight in a stream, oldest first.
    pub fn in_transit(&self, from: usize, to: usize) -> impl Iterator<Item = &Packet> {
        self.links[from * self.replicas + to].pipe.iter()
    }

    /// Takes a message out of a stream: for scenario scripts.
    pub fn take(&mut self, from: usize, to: usize, index: usize) -> Option<Packet> {
        self.link(from, to).pipe.remove(index)
    }

    /// The messages that were lost since this was asked last, each by its number.
    pub fn take_lost(&mut self) -> Vec<(u64, Loss)> {
        std::mem::take(&mut self.lost)
    }

    /// From now on nothing is lost, duplicated or reset, and no delay is extraordinary. Returns how it was.
    pub fn calm(&mut self) -> NetworkPlan {
        let before = self.plan;
        self.plan.slow = Odds::NEVER;
        self.plan.loss = Odds::NEVER;
        self.plan.duplicate = Odds::NEVER;
        self.plan.reset = Odds::NEVER;
        self.plan.damage = Odds::NEVER;
        before
    }

    /// When the last message arrives that was sent in a stream so far.
    #[must_use]
    pub fn is_slow_until(&self) -> Moment {
        self.links.iter().map(|link| link.last_arrival).max().unwrap_or(Moment::START)
    }

    /// From now on messages are lost, duplicated, late and so on as often as in this plan.
    pub fn be_as(&mut self, plan: NetworkPlan) {
        self.plan = plan;
    }
}

/// A duration between two, both included.
pub(crate) fn between(rng: &mut Rng, low: Duration, high: Duration) -> Duration {
    let nanos = |duration: Duration| u64::try_from(duration.as_nanos()).expect("a simulation is short");
    Duration::from_nanos(rng.u64(nanos(low)..=nanos(high).max(nanos(low))))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn plan(wire: Wire) -> NetworkPlan {
        NetworkPlan {
            wire,
            delay_min: MS,
            delay_max: MS * 20,
            slow: Odds::percent(10),
            late_max: MS * 500,
            loss: Odds::NEVER,
            duplicate: Odds::NEVER,
            reset: Odds::NEVER,
            damage: Odds::NEVER,
            keep_max: 3,
        }
    }

    fn body(n: u8) -> Packet {
        Packet { number: u64::from(n), group: GroupId::FIRST, body: Bytes::copy_from_slice(&[n]) }
    }

    /// Plays arrivals in the order of their instants.
    fn play(network: &mut Network, mut arrivals: Vec<Arrival>) -> Vec<u8> {
        arrivals.sort_by_key(|arrival| arrival.at);
        let bodies = arrivals.into_iter().filter_map(|a| network.arrive(0, 1, a.session, a.body));
        bodies.map(|packet| packet.body[0]).collect()
    }

    #[test]
    fn a_stream_keeps_its_order_and_a_cut_only_delays() {
        let mut network = Network::new(plan(Wire::Stream), 2, Rng::with_seed(1));
        let mut arrivals = Vec::new();
        network.connect(Moment::START, 0, 1, &mut arrivals);
        for n in 0..50 {
            network.send(Moment::START, 0, 1, body(n), &mut arrivals);
        }
        network.cut(0, 1);
        assert_eq!(play(&mut network, std::mem::take(&mut arrivals)), []);
        network.mend(Moment::START, 0, 1, &mut arrivals);
        network.send(Moment::START, 0, 1, body(50), &mut arrivals);
        assert_eq!(play(&mut network, arrivals), (0..=50).collect::<Vec<u8>>());
    }

    #[test]
    fn an_ended_session_loses_what_is_under_way_and_the_next_one_brings_what_was_kept() {
        let mut network = Network::new(plan(Wire::Stream), 2, Rng::with_seed(1));
        let mut arrivals = Vec::new();
        network.connect(Moment::START, 0, 1, &mut arrivals);
        network.send(Moment::START, 0, 1, body(1), &mut arrivals);
        assert!(network.disconnect(0, 1));
        for n in 10..20 {
            network.send(Moment::START, 0, 1, body(n), &mut arrivals);
        }
        network.connect(Moment::START, 0, 1, &mut arrivals);
        assert_eq!(play(&mut network, arrivals), [17, 18, 19]);
        let lost = |number, loss| (number, loss);
        let mut told = vec![lost(1, Loss::SessionEnded)];
        told.extend((10..17).map(|number| lost(number, Loss::NoSession)));
        assert_eq!(network.take_lost(), told);
    }

    #[test]
    fn small_messages_of_a_session_travel_alone_and_between_two_lives_only() {
        let rough =
            NetworkPlan { loss: Odds::percent(20), duplicate: Odds::percent(20), ..plan(Wire::Mixed(1)) };
        let mut network = Network::new(rough, 2, Rng::with_seed(1));
        let mut arrivals = Vec::new();
        let large = |n: u8| Packet { body: Bytes::copy_from_slice(&[n, 0]), ..body(n) };
        network.begin_life(0);
        network.connect(Moment::START, 0, 1, &mut arrivals);
        for n in 0..100 {
            network.send(Moment::START, 0, 1, if n % 2 == 0 { body(n) } else { large(n) }, &mut arrivals);
        }
        let found = play(&mut network, std::mem::take(&mut arrivals));
        let (small, large): (Vec<u8>, Vec<u8>) = found.iter().partition(|&&n| n % 2 == 0);
        assert_eq!(large, (0..100).filter(|n| n % 2 == 1).collect::<Vec<u8>>(), "a stream");
        let mut once = small.clone();
        once.sort_unstable();
        assert_ne!(once, small);
        once.dedup();
        assert!(once.len() < small.len() && (30..50).contains(&once.len()), "{once:?}");

        // What travels alone does not end with its session, and ends with the life of either side.
        for (lives, expected) in [(0, true), (1, false)] {
            network.calm();
            network.send(Moment::START, 0, 1, body(7), &mut arrivals);
            network.disconnect(0, 1);
            (0..lives).for_each(|_| network.begin_life(1));
            let waiting = std::mem::take(&mut arrivals);
            assert_eq!(play(&mut network, waiting.clone()), [], "there is no session");
            network.connect(Moment::START, 0, 1, &mut arrivals);
            arrivals.clear();
            assert_eq!(!play(&mut network, waiting).is_empty(), expected, "{lives}");
        }
    }

    #[test]
    fn datagrams_overtake_each_other_and_are_lost_and_doubled() {
        let rough =
            NetworkPlan { loss: Odds::percent(20), duplicate: Odds::percent(20), ..plan(Wire::Datagram) };
        let mut network = Network::new(rough, 2, Rng::with_seed(1));
        let mut arrivals = Vec::new();
        for n in 0..200 {
            network.send(Moment::START, 0, 1, body(n), &mut arrivals);
        }
        let order = play(&mut network, arrivals);
        assert!(!order.is_sorted());
        assert!((0..200).any(|n| !order.contains(&n)), "some are lost");
        assert!((0..200).any(|n| order.iter().filter(|m| **m == n).count() == 2), "some come twice");
    }
}

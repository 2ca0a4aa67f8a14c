//! A network within one process, for programs that test with their own replicas: it loses nothing until a link is cut.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, io,
    net::SocketAddr,
    time::Duration,
};

use bytes::Bytes;
use synod_sync::{
    Arc, Mutex, MutexGuard,
    channel::{self, Receiver, RecvTimeoutError},
    thread::{self, JoinHandle},
    time::Instant,
};
use synod_wire::{Encoded, GROUPS_SINCE, GroupId, Introduction, Lsn, Mismatch, ReplicaId};
use tracing::{error, warn};

use crate::{
    Config, Connections, Event, Meeting, Metrics, Network, Peer, PeerMetrics, Sender, Sink, TransportError,
    Unrecognised,
    config::{check_peers, default_frame_bytes_max},
    handshake,
    sync::lock,
};

/// How often a replica tries again to reach peers with which it has no session.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// A network in memory. Clones are the same network. Addresses of peers are ignored: a replica is found by its id.
///
/// Each replica has one thread, which delivers what arrives. Between any two there is a session in each
/// direction while both are connected, name each other as peers and recognise each other.
#[derive(Clone, Default)]
pub struct MemoryNetwork {
    hub: Arc<Mutex<Hub>>,
}

#[derive(Default)]
struct Hub {
    places: BTreeMap<ReplicaId, Place>,
    /// The pairs between which nothing goes, the lower id first.
    cut: BTreeSet<(ReplicaId, ReplicaId)>,
    /// The link from the first replica to the second.
    links: BTreeMap<(ReplicaId, ReplicaId), Link>,
    /// The number of the last replica that was connected, or session that began.
    last: u64,
}

/// A replica that is connected.
struct Place {
    number: u64,
    config: Config,
    peers: Vec<ReplicaId>,
    inbox: channel::Sender<Item>,
}

#[derive(Default)]
struct Link {
    /// The number of the session, and the version that is spoken in it.
    session: Option<(u64, u16)>,
    /// When the last session began.
    began: Option<Instant>,
    /// The nonce of the sender's life, and how far it has told the receiver that its log is durable.
    heard: Option<(u64, Lsn)>,
    sessions: u64,
    sent: Count,
    received: Count,
    dropped: u64,
    refused: u64,
}

#[derive(Clone, Copy, Default)]
struct Count {
    messages: u64,
    bytes: u64,
}

impl Count {
    fn add(&mut self, bytes: usize) {
        self.messages += 1;
        self.bytes += bytes as u64;
    }
}

/// What the thread of a replica takes from its inbox.
enum Item {
    /// Sessions may have begun or ended, so the thread has to look.
    Look,
    /// A session to the owner began: whose messages follow.
    Met(Event),
    Message(Message),
    Stop,
}

/// A message on its way.
struct Message {
    from: ReplicaId,
    session: u64,
    version: u16,
    group: GroupId,
    /// The life of the sender, and how far its log was durable.
    told: (u64, Lsn),
    body: Bytes,
}

impl fmt::Debug for MemoryNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hub = lock(&self.hub);
        f.debug_struct("MemoryNetwork").field("replicas", &hub.places.keys()).field("cut", &hub.cut).finish()
    }
}

impl MemoryNetwork {
    /// A network without replicas.
    #[must_use]
    pub fn new() -> MemoryNetwork {
        MemoryNetwork::default()
    }

    /// Lets nothing go from one of these replicas to the other until [`MemoryNetwork::heal`]: their sessions
    /// end, and what is under way is lost.
    pub fn cut(&self, one: ReplicaId, other: ReplicaId) {
        let mut hub = lock(&self.hub);
        hub.cut.insert(pair(one, other));
        hub.end(one, other);
        hub.end(other, one);
    }

    /// Lets the two replicas reach each other again.
    pub fn heal(&self, one: ReplicaId, other: ReplicaId) {
        let mut hub = lock(&self.hub);
        hub.cut.remove(&pair(one, other));
        hub.look(one);
        hub.look(other);
    }
}

fn pair(one: ReplicaId, other: ReplicaId) -> (ReplicaId, ReplicaId) {
    (one.min(other), one.max(other))
}

fn ids(peers: &[Peer]) -> Vec<ReplicaId> {
    peers.iter().map(|peer| peer.id).collect()
}

impl Hub {
    fn link(&mut self, from: ReplicaId, to: ReplicaId) -> &mut Link {
        self.links.entry((from, to)).or_default()
    }

    fn session(&self, from: ReplicaId, to: ReplicaId) -> Option<(u64, u16)> {
        self.links.get(&(from, to))?.session
    }

    /// Ends the session, and has its two ends notice.
    fn end(&mut self, from: ReplicaId, to: ReplicaId) {
        if self.link(from, to).session.take().is_some() {
            self.look(from);
            self.look(to);
        }
    }

    fn look(&self, id: ReplicaId) {
        if let Some(place) = self.places.get(&id) {
            // A failed send means that its thread has ended.
            _ = place.inbox.send(Item::Look);
        }
    }

    fn next(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// The second replica, if the first wants a session to it and can have one.
    fn reachable(&self, from: ReplicaId, to: ReplicaId) -> Option<&Place> {
        let (own, place) = (self.places.get(&from)?, self.places.get(&to)?);
        let related = own.config.cluster == place.config.cluster && place.peers.contains(&from);
        (related && !self.cut.contains(&pair(from, to))).then_some(place)
    }

    fn send(&mut self, from: ReplicaId, to: ReplicaId, version: u16, group: GroupId, body: &Bytes) {
        let (told, max) = {
            let config = &self.places[&from].config;
            ((config.who.nonce, config.introduction().durable), config.frame_bytes_max)
        };
        let is_spoken = group == GroupId::FIRST || version >= GROUPS_SINCE;
        let session = self.session(from, to).filter(|&(_, agreed)| version <= agreed && is_spoken);
        let (Some((session, _)), Some(place)) = (session, self.places.get(&to)) else {
            self.link(from, to).dropped += 1;
            return;
        };
        let fits = body.len() <= max && place.inbox.len() < place.config.send_queue_frames_max;
        let item = Item::Message(Message { from, session, version, group, told, body: body.clone() });
        if fits && place.inbox.send(item).is_ok() {
            self.link(from, to).sent.add(body.len());
        } else {
            // A session has no gaps.
            self.link(from, to).dropped += 1;
            self.end(from, to);
        }
    }
}

impl Network for MemoryNetwork {
    fn start(&self, config: Config, sink: Box<Sink>) -> Result<Box<dyn Connections>, TransportError> {
        config.validate()?;
        let me = config.me;
        let (inbox, items) = channel::unbounded();
        let number = {
            let mut hub = lock(&self.hub);
            if hub.places.contains_key(&me) {
                let why = format!("{me} is connected to this network already");
                return Err(io::Error::new(io::ErrorKind::AddrInUse, why).into());
            }
            let number = hub.next();
            let place =
                Place { number, config: config.clone(), peers: ids(&config.peers), inbox: inbox.clone() };
            hub.places.insert(me, place);
            let others: Vec<_> = hub.places.keys().copied().collect();
            others.into_iter().for_each(|id| hub.look(id));
            number
        };
        let mut connected = Connected { hub: Arc::clone(&self.hub), me, number, inbox, config, thread: None };
        let deliverer = Deliverer {
            hub: Arc::clone(&self.hub),
            config: connected.config.clone(),
            sink,
            up: BTreeMap::new(),
            refused: BTreeSet::new(),
        };
        // If there is no thread for it, dropping it takes its place away again.
        let thread =
            thread::Builder::new().name(format!("deliver-{me}")).spawn(move || deliverer.run(&items))?;
        connected.thread = Some(thread);
        Ok(Box::new(connected))
    }

    fn message_bytes_max(&self) -> usize {
        default_frame_bytes_max()
    }

    fn name(&self) -> &'static str {
        "memory"
    }
}

/// A replica's place in the network.
struct Connected {
    hub: Arc<Mutex<Hub>>,
    me: ReplicaId,
    number: u64,
    inbox: channel::Sender<Item>,
    config: Config,
    thread: Option<JoinHandle<()>>,
}

impl fmt::Debug for Connected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connected").field("me", &self.me).finish_non_exhaustive()
    }
}

impl Connections for Connected {
    fn sender(&self) -> Arc<dyn Sender> {
        let (hub, me, number) = (Arc::clone(&self.hub), self.me, self.number);
        Arc::new(MemorySender { hub, me, number, config: self.config.clone() })
    }

    fn local_addresses(&self) -> Vec<SocketAddr> {
        Vec::new()
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        let left = {
            let mut hub = lock(&self.hub);
            let left = hub.places.remove(&self.me);
            let others: Vec<_> = hub.places.keys().copied().collect();
            for other in others {
                hub.end(self.me, other);
                hub.end(other, self.me);
                // What the replica heard was known to this life only.
                hub.link(other, self.me).heard = None;
            }
            left
        };
        // Its settings hold what the owner gave them, and dropping that must not wait while the hub is locked.
        drop(left);
        // A failed send means that the thread has ended.
        _ = self.inbox.send(Item::Stop);
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            error!("the thread that delivers to {} panicked", self.me);
        }
    }
}

/// What [`Connections::sender`] returns.
struct MemorySender {
    hub: Arc<Mutex<Hub>>,
    me: ReplicaId,
    number: u64,
    config: Config,
}

impl fmt::Debug for MemorySender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemorySender").field("me", &self.me).finish_non_exhaustive()
    }
}

impl MemorySender {
    /// The hub, while the replica is connected.
    fn hub(&self) -> Option<MutexGuard<'_, Hub>> {
        let hub = lock(&self.hub);
        let connected = hub.places.get(&self.me).is_some_and(|place| place.number == self.number);
        connected.then_some(hub)
    }
}

impl Sender for MemorySender {
    fn send_in(&self, version: u16, group: GroupId, to: &[ReplicaId], body: Encoded) {
        let body = body.to_bytes();
        let Some(mut hub) = self.hub() else { return };
        to.iter().for_each(|&to| hub.send(self.me, to, version, group, &body));
    }

    /// Every message leaves when it is queued.
    fn flush(&self) {}

    fn version(&self, to: ReplicaId) -> u16 {
        let session = lock(&self.hub).session(self.me, to);
        session.map_or(*self.config.versions.start(), |(_, version)| version)
    }

    fn heard(&self) -> Vec<(ReplicaId, u64, Lsn)> {
        let Some(hub) = self.hub() else { return Vec::new() };
        let heard = hub.links.iter().filter(|((_, to), _)| *to == self.me);
        heard.filter_map(|(&(from, _), link)| link.heard.map(|(nonce, told)| (from, nonce, told))).collect()
    }

    fn set_peers(&self, peers: Vec<Peer>) -> Result<(), TransportError> {
        check_peers(self.me, &peers, self.config.inbound_connections_max)?;
        let Some(mut hub) = self.hub() else { return Ok(()) };
        let peers = ids(&peers);
        let place = hub.places.get_mut(&self.me).expect("it is connected");
        let before = std::mem::replace(&mut place.peers, peers.clone());
        for &left in before.iter().filter(|id| !peers.contains(id)) {
            hub.end(self.me, left);
            hub.end(left, self.me);
        }
        peers.iter().for_each(|&id| hub.look(id));
        hub.look(self.me);
        Ok(())
    }

    fn metrics(&self) -> Metrics {
        let Some(mut hub) = self.hub() else { return Metrics::default() };
        let peers = hub.places[&self.me].peers.clone();
        let metrics = |peer: ReplicaId| {
            let (receiving, received, frames_refused) = {
                let from = hub.link(peer, self.me);
                (from.session.is_some(), from.received, from.refused)
            };
            let to = hub.link(self.me, peer);
            PeerMetrics {
                peer,
                connected_since: to.began.filter(|_| to.session.is_some()),
                is_silent: false,
                back_since: None,
                obstacle: None,
                receiving,
                turned_away: None,
                sessions: to.sessions,
                frames_sent: to.sent.messages,
                bytes_sent: to.sent.bytes,
                writes: to.sent.messages,
                frames_received: received.messages,
                bytes_received: received.bytes,
                frames_dropped: to.dropped,
                frames_refused,
                queue_frames: 0,
                queue_bytes: 0,
                takes_datagrams: false,
                datagrams_sent: 0,
                datagram_messages_sent: 0,
                datagrams_unsent: 0,
                datagrams_received: 0,
                round_trips: Arc::default(),
            }
        };
        Metrics { peers: peers.into_iter().map(metrics).collect(), ..Metrics::default() }
    }
}

/// The thread of a replica.
struct Deliverer {
    hub: Arc<Mutex<Hub>>,
    config: Config,
    sink: Box<Sink>,
    /// The sessions to peers of which the owner was told.
    up: BTreeMap<ReplicaId, u64>,
    /// The peers that the owner was told are gone.
    refused: BTreeSet<ReplicaId>,
}

impl Deliverer {
    fn run(mut self, items: &Receiver<Item>) {
        loop {
            self.look();
            loop {
                match items.recv_timeout(RETRY_INTERVAL) {
                    Ok(Item::Look) | Err(RecvTimeoutError::Timeout) => break,
                    Ok(Item::Stop) | Err(RecvTimeoutError::Disconnected) => return,
                    Ok(Item::Met(event)) => self.tell(event),
                    Ok(Item::Message(message)) => {
                        if !self.deliver(message) {
                            break;
                        }
                    }
                }
            }
        }
    }

    /// Hands a message to the owner if its session goes on; returns false if it does not.
    fn deliver(&self, message: Message) -> bool {
        let Message { from, session, version, group, told, body } = message;
        let me = self.config.me;
        {
            let mut hub = lock(&self.hub);
            if hub.session(from, me).is_none_or(|(number, _)| number != session) {
                return true;
            }
            let link = hub.link(from, me);
            link.heard = Some(later(link.heard, told));
            link.received.add(body.len());
        }
        match (self.sink)(vec![Event::Received { from, version, group, body }]) {
            Ok(()) => true,
            Err(error) => {
                warn!(peer = %from, "ended a session: {error}");
                let mut hub = lock(&self.hub);
                hub.link(from, me).refused += 1;
                hub.end(from, me);
                false
            }
        }
    }

    fn tell(&self, event: Event) {
        if let Err(error) = (self.sink)(vec![event]) {
            warn!("the owner of the network does not understand a change of sessions: {error}");
        }
    }

    /// Tells the owner which sessions ended, and begins those that can begin.
    fn look(&mut self) {
        let me = self.config.me;
        let (peers, ended) = {
            let hub = lock(&self.hub);
            let Some(place) = hub.places.get(&me) else { return };
            let is_over = |&(&peer, &number): &(&ReplicaId, &u64)| {
                hub.session(me, peer).is_none_or(|(session, _)| session != number)
            };
            let ended: Vec<_> = self.up.iter().filter(is_over).map(|(&peer, _)| peer).collect();
            (place.peers.clone(), ended)
        };
        for peer in ended {
            self.up.remove(&peer);
            self.tell(Event::Down { peer });
        }
        for peer in peers {
            if !self.up.contains_key(&peer) {
                self.open(peer);
            }
        }
    }

    /// Begins a session to a peer, if both sides recognise each other.
    fn open(&mut self, peer: ReplicaId) {
        let me = self.config.me;
        let (number, theirs, heard_there, heard_here) = {
            let mut hub = lock(&self.hub);
            let gone = !hub.places.contains_key(&peer) && !hub.cut.contains(&pair(me, peer));
            let Some(place) = hub.reachable(me, peer) else {
                drop(hub);
                if gone && self.refused.insert(peer) {
                    self.tell(Event::Refused { peer });
                }
                return;
            };
            let (number, theirs) = (place.number, place.config.clone());
            (number, theirs, hub.link(me, peer).heard, hub.link(peer, me).heard)
        };
        let Some(version) = handshake::common(&self.config.versions, &theirs.versions) else { return };
        let (own, other) = (self.config.introduction(), theirs.introduction());
        match (theirs.recognise)(me, &own, Meeting { heard: heard_there, welcomed: false, version }) {
            Ok(()) => {}
            Err(Unrecognised::Stranger(stranger)) if stranger.mismatch != Mismatch::OtherBirth => {
                return (self.config.outlived)(peer, &stranger);
            }
            Err(_) => return,
        }
        let meeting = Meeting { heard: heard_here, welcomed: true, version };
        if (self.config.recognise)(peer, &other, meeting).is_err() {
            return;
        }
        let session = {
            let mut hub = lock(&self.hub);
            // The hub was not locked meanwhile, so anything may have happened.
            let Some(place) = hub.reachable(me, peer).filter(|place| place.number == number) else { return };
            // Before the first message of the session, which goes the same way.
            let Introduction { birth, incarnation, since, .. } = own;
            _ = place.inbox.send(Item::Met(Event::Met { peer: me, birth, incarnation, since, version }));
            let session = hub.next();
            let back = hub.link(peer, me);
            back.heard = Some(later(back.heard, (other.nonce, other.durable)));
            let link = hub.link(me, peer);
            link.heard = Some(later(link.heard, (own.nonce, own.durable)));
            (link.session, link.began) = (Some((session, version)), Some(Instant::now()));
            link.sessions += 1;
            session
        };
        self.refused.remove(&peer);
        self.up.insert(peer, session);
        self.tell(Event::Up { peer, incarnation: other.incarnation });
    }
}

/// What is known of a life, replaced by what is heard of a later one.
fn later(known: Option<(u64, Lsn)>, heard: (u64, Lsn)) -> (u64, Lsn) {
    match known {
        Some((nonce, told)) if nonce == heard.0 => (nonce, told.max(heard.1)),
        _ => heard,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use synod_wire::{ClusterId, Incarnation, Writer};

    use super::*;

    const R1: ReplicaId = ReplicaId(1);
    const R2: ReplicaId = ReplicaId(2);

    struct Replica {
        connections: Box<dyn Connections>,
        events: Receiver<Event>,
    }

    fn connect(network: &MemoryNetwork, me: ReplicaId) -> Replica {
        let others = [R1, R2].into_iter().filter(|id| *id != me);
        let peers = others.map(|id| Peer { id, address: "memory:1".into() }).collect();
        let config = Config { peers, ..Config::new(ClusterId(1), me, Incarnation(1), me.0) };
        let (told, events) = channel::unbounded();
        let sink = move |events: Vec<Event>| {
            events.into_iter().for_each(|event| told.send(event).unwrap());
            Ok(())
        };
        Replica { connections: network.start(config, Box::new(sink)).unwrap(), events }
    }

    impl Replica {
        fn until(&self, wanted: impl Fn(&Event) -> bool) -> Vec<Event> {
            let (mut seen, began) = (Vec::new(), Instant::now());
            while began.elapsed() < Duration::from_secs(20) {
                if let Ok(event) = self.events.recv_timeout(Duration::from_secs(1)) {
                    seen.push(event);
                    if wanted(seen.last().unwrap()) {
                        return seen;
                    }
                }
            }
            panic!("it has not come: {seen:?}");
        }

        fn send(&self, to: ReplicaId, text: &str) {
            let mut body = Writer::new();
            body.bytes(text.as_bytes());
            let sender = self.connections.sender();
            sender.send_in(sender.version(to), GroupId(7), &[to], body.finish());
        }
    }

    fn is_up(event: &Event) -> bool {
        matches!(event, Event::Up { .. })
    }

    fn is_message(event: &Event) -> bool {
        matches!(event, Event::Received { .. })
    }

    #[test]
    fn what_is_sent_arrives_in_order_and_a_cut_ends_the_session() {
        let network = MemoryNetwork::new();
        let (one, two) = (connect(&network, R1), connect(&network, R2));
        one.until(is_up);
        two.until(is_up);
        for text in ["a", "b", "c"] {
            one.send(R2, text);
        }
        let mut received = Vec::new();
        for _ in 0..3 {
            let Some(Event::Received { from: R1, group: GroupId(7), body, .. }) = two.until(is_message).pop()
            else {
                panic!()
            };
            received.push(*body.last().unwrap());
        }
        assert_eq!(received, b"abc");

        network.cut(R2, R1);
        one.until(|event| *event == Event::Down { peer: R2 });
        one.send(R2, "lost");
        assert_eq!(one.connections.sender().metrics().peers[0].frames_dropped, 1);
        network.heal(R1, R2);
        one.until(is_up);
        one.send(R2, "d");
        let Some(Event::Received { body, .. }) = two.until(is_message).pop() else { panic!() };
        assert_eq!(body.last(), Some(&b'd'));
    }

    #[test]
    fn a_message_that_makes_no_sense_ends_its_session_and_is_counted() {
        let network = MemoryNetwork::new();
        let one = connect(&network, R1);
        let peers = vec![Peer { id: R1, address: "memory:1".into() }];
        let config = Config { peers, ..Config::new(ClusterId(1), R2, Incarnation(2), 2) };
        let sink = |events: Vec<Event>| match events[..] {
            [Event::Received { .. }] => Err(crate::Unreadable("it is not a word".into())),
            _ => Ok(()),
        };
        let two = network.start(config, Box::new(sink)).unwrap();
        one.until(is_up);
        one.send(R2, "a");
        one.until(|event| *event == Event::Down { peer: R2 });
        let metrics = two.sender().metrics();
        assert_eq!((metrics.peers[0].frames_refused, metrics.peers[0].frames_received), (1, 1));
    }

    #[test]
    fn a_replica_that_leaves_is_noticed_and_its_place_is_free_again() {
        let network = MemoryNetwork::new();
        let (one, two) = (connect(&network, R1), connect(&network, R2));
        one.until(is_up);
        let config = Config::new(ClusterId(1), R2, Incarnation(1), 2);
        assert!(network.start(config, Box::new(|_| Ok(()))).is_err(), "r2 is there already");
        let sender = two.connections.sender();
        drop(two);
        let seen = one.until(|event| *event == Event::Refused { peer: R2 });
        assert!(seen.contains(&Event::Down { peer: R2 }));
        assert_eq!(sender.version(R1), *Config::new(ClusterId(1), R2, Incarnation(1), 2).versions.start());
        let again = connect(&network, R2);
        again.until(is_up);
        one.until(is_up);
        sender.send_in(sender.version(R1), GroupId::FIRST, &[R1], Writer::new().finish());
        again.send(R1, "e");
        let Some(Event::Received { body, .. }) = one.until(is_message).pop() else { panic!() };
        assert_eq!(body.last(), Some(&b'e'), "what an earlier life sends is dropped");
    }

    #[test]
    fn a_stranger_has_no_session_and_is_told() {
        let network = MemoryNetwork::new();
        let one = connect(&network, R1);
        let peers = vec![Peer { id: R1, address: "memory:1".into() }];
        let mut config = Config { peers, ..Config::new(ClusterId(1), R2, Incarnation(1), 2) };
        config.recognise = Arc::new(|_, _, _| Err(Unrecognised::Unwritten));
        let two = network.start(config, Box::new(|_| Ok(()))).unwrap();
        let began = Instant::now();
        while began.elapsed() < RETRY_INTERVAL * 3 {
            // Before the other replica was there, this one may have missed it.
            let event = one.events.recv_timeout(RETRY_INTERVAL);
            assert!(event.is_err() || event == Ok(Event::Refused { peer: R2 }), "{event:?}");
        }
        assert!(two.sender().metrics().peers.iter().all(|peer| !peer.connected() && !peer.receiving));
    }
}

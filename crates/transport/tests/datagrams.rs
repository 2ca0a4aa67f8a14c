//! Messages as datagrams, on real sockets: what takes which way, and packets that are lost, doubled, late, forged or of
//! an earlier life.

mod common;

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream, UdpSocket},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread,
    time::Duration,
};

use common::{Replica, UNREADABLE, addresses, cluster_with, config, eventually, listeners, without_threads};
use synod_transport::{Config, Event, MTU_DEFAULT, Peer, Transport, TransportError};
use synod_wire::{GroupId, ReplicaId};

/// Longer than any packet here.
const LARGE: usize = 10_000;

fn with_datagrams(config: Config) -> Config {
    Config { datagram_mtu: Some(MTU_DEFAULT), ..config }
}

fn compact(config: Config) -> Config {
    without_threads(with_datagrams(config))
}

/// What happens to a packet on its way, by its number.
type Fate = dyn Fn(usize) -> Way + Send + Sync;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Arrives,
    Lost,
    Twice,
    /// After the next one.
    Late,
}

/// A host between a replica and its peer, which passes on connections, and packets as it likes.
struct Between {
    address: SocketAddr,
    /// What came as packets.
    seen: Arc<Mutex<Vec<Vec<u8>>>>,
    stop: Arc<AtomicBool>,
}

impl Between {
    /// Passes on what comes for `peer`.
    fn new(peer: SocketAddr, fate: Arc<Fate>) -> Between {
        let listener = listeners(1).remove(0);
        let address = listener.local_addr().unwrap();
        let packets = UdpSocket::bind(address).unwrap();
        packets.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        let between = Between { address, seen: Arc::default(), stop: Arc::default() };
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (stream, Ok(onward)) = (stream.unwrap(), TcpStream::connect(peer)) else { continue };
                let pair = [(stream.try_clone().unwrap(), onward.try_clone().unwrap()), (onward, stream)];
                for (from, to) in pair {
                    thread::spawn(move || pass_on(from, to));
                }
            }
        });
        let (seen, stop) = (Arc::clone(&between.seen), Arc::clone(&between.stop));
        thread::spawn(move || {
            let (mut buffer, mut held) = (vec![0; 70_000], None::<Vec<u8>>);
            for number in 0.. {
                let Ok(length) = packets.recv(&mut buffer) else {
                    if stop.load(SeqCst) {
                        return;
                    }
                    continue;
                };
                let packet = &buffer[..length];
                seen.lock().unwrap().push(packet.to_vec());
                let onward = |packet: &[u8]| _ = packets.send_to(packet, peer);
                match fate(number) {
                    Way::Lost => {}
                    Way::Late if held.is_none() => held = Some(packet.to_vec()),
                    way => {
                        onward(packet);
                        (way == Way::Twice).then(|| onward(packet));
                        held.take().iter().for_each(|late| onward(late));
                    }
                }
            }
        });
        between
    }
}

impl Drop for Between {
    fn drop(&mut self) {
        self.stop.store(true, SeqCst);
    }
}

fn pass_on(mut from: TcpStream, mut to: TcpStream) {
    from.set_nodelay(true).unwrap();
    let mut buffer = [0; 16 << 10];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        if to.write_all(&buffer[..length]).is_err() {
            break;
        }
    }
    _ = to.shutdown(std::net::Shutdown::Both);
    _ = from.shutdown(std::net::Shutdown::Both);
}

/// Two replicas; what the first sends to the second goes through a host between them.
fn two_through(fate: Arc<Fate>, tune: fn(Config) -> Config) -> (Replica, Replica, Between) {
    let listeners = listeners(2);
    let addresses = addresses(&listeners);
    let mut listeners = listeners.into_iter();
    let between = Between::new(addresses[1], fate);
    let mut first = tune(config(1, 1, &addresses));
    first.peers = vec![Peer { id: ReplicaId(2), address: between.address.to_string() }];
    first.probe_interval = Duration::from_millis(100);
    let own = listeners.next().unwrap();
    let second = Replica::start(tune(config(2, 1, &addresses)), listeners.next().unwrap());
    let first = Replica::start(first, own);
    first.wait_up(2);
    (first, second, between)
}

/// Sends a message in the version of the session, as a replica does. In an earlier one it is for TCP.
fn send(from: &Replica, to: u64, body: &[u8]) {
    let (sender, to) = (&from.sender, ReplicaId(to));
    sender.send_in(sender.version(to), GroupId::FIRST, &[to], common::encode(body));
    sender.flush();
}

fn wait_for_datagrams(replica: &Replica, peer: u64) {
    eventually("the peer says that datagrams arrive", || replica.metrics(peer).takes_datagrams);
}

/// The next body from a peer.
fn received(replica: &Replica, from: u64) -> Vec<u8> {
    replica.wait_received(from).to_vec()
}

#[test]
fn what_fits_a_packet_leaves_as_a_datagram_and_what_does_not_over_tcp() {
    for tune in [with_datagrams, compact] {
        let replicas = cluster_with(3, tune);
        let (one, two) = (&replicas[0], &replicas[1]);
        wait_for_datagrams(one, 2);
        wait_for_datagrams(two, 1);
        // A probe may have come before the session had begun here.
        let (before, dropped) = (one.metrics(2), two.transport.metrics().datagrams_dropped);
        for number in 0..100_u8 {
            send(one, 2, &[number; 200]);
        }
        send(one, 2, &[7; LARGE]);
        let mut bodies: Vec<_> = (0..101).map(|_| received(two, 1)).collect();
        bodies.sort_unstable_by_key(|body| (body.len(), body[0]));
        assert_eq!(bodies[100], [7; LARGE]);
        assert!((0..100).all(|number| bodies[usize::from(number)] == [number; 200]));
        let after = one.metrics(2);
        assert_eq!(after.datagram_messages_sent - before.datagram_messages_sent, 100);
        assert_eq!((after.datagrams_sent - before.datagrams_sent, after.datagrams_unsent), (100, 0));
        eventually("the large one has left", || one.metrics(2).frames_sent > before.frames_sent);
        assert!(two.metrics(1).datagrams_received >= 100);
        assert_eq!(two.transport.metrics().datagrams_dropped, dropped);
        // The other direction, too.
        send(two, 1, b"back");
        assert_eq!(received(one, 2), b"back");
        assert_eq!(two.metrics(1).datagram_messages_sent, 1);
        replicas.into_iter().for_each(Replica::stop);
    }
}

#[test]
fn messages_that_leave_together_share_packets() {
    let replicas = cluster_with(2, compact);
    wait_for_datagrams(&replicas[0], 2);
    let sender = &replicas[0].sender;
    let version = sender.version(ReplicaId(2));
    for number in 0..30_u8 {
        let body = common::encode(&[number; 100]);
        sender.send_in(version, GroupId(number.into()), &[ReplicaId(2)], body);
    }
    sender.flush();
    let bodies: Vec<_> = (0..30).map(|_| received(&replicas[1], 1)).collect();
    assert!(bodies.iter().zip(0..).all(|(body, number)| *body == [number; 100]));
    // 13 of 104 bytes fit into 1,472 with the header.
    let metrics = replicas[0].metrics(2);
    assert_eq!((metrics.datagram_messages_sent, metrics.datagrams_sent), (30, 3));
    replicas.into_iter().for_each(Replica::stop);
}

#[test]
fn a_peer_that_takes_no_datagrams_gets_everything_over_tcp() {
    let listeners = listeners(2);
    let addresses = addresses(&listeners);
    let mut listeners = listeners.into_iter();
    let one = Replica::start(with_datagrams(config(1, 1, &addresses)), listeners.next().unwrap());
    let two = Replica::start(config(2, 1, &addresses), listeners.next().unwrap());
    one.wait_up(2);
    two.wait_up(1);
    for _ in 0..10 {
        send(&one, 2, b"there");
        send(&two, 1, b"back");
        assert_eq!((received(&two, 1), received(&one, 2)), (b"there".to_vec(), b"back".to_vec()));
    }
    for metrics in [one.metrics(2), two.metrics(1)] {
        assert_eq!((metrics.datagrams_sent, metrics.takes_datagrams), (0, false));
    }
    assert!(two.transport.metrics().datagrams_dropped.is_empty(), "it takes none");
    one.stop();
    two.stop();
}

#[test]
fn where_no_packet_gets_through_everything_goes_over_tcp_until_one_does() {
    for tune in [with_datagrams, compact] {
        let is_open = Arc::new(AtomicBool::new(false));
        let open = Arc::clone(&is_open);
        let fate = move |_| if open.load(SeqCst) { Way::Arrives } else { Way::Lost };
        let (one, two, between) = two_through(Arc::new(fate), tune);
        let exchange = || {
            send(&one, 2, b"hello");
            received(&two, 1)
        };
        eventually("probes are sent", || between.seen.lock().unwrap().len() >= 3);
        assert_eq!(exchange(), b"hello");
        assert_eq!((one.metrics(2).takes_datagrams, one.metrics(2).datagrams_sent), (false, 0));

        is_open.store(true, SeqCst);
        wait_for_datagrams(&one, 2);
        assert_eq!((exchange(), one.metrics(2).datagrams_sent), (b"hello".to_vec(), 1));

        is_open.store(false, SeqCst);
        eventually("probes are not answered", || !one.metrics(2).takes_datagrams);
        assert_eq!((exchange(), one.metrics(2).datagrams_sent), (b"hello".to_vec(), 1));
        assert_eq!(one.metrics(2).sessions, 1, "the session has gone on");
        one.stop();
        two.stop();
    }
}

#[test]
fn packets_are_lost_and_doubled_and_late_and_their_messages_whole() {
    for tune in [with_datagrams, compact] {
        let fate = |number: usize| match number % 7 {
            // Not the first ones, which ask whether any arrive.
            _ if number < 10 => Way::Arrives,
            2 | 5 => Way::Lost,
            3 => Way::Twice,
            4 => Way::Late,
            _ => Way::Arrives,
        };
        let (one, two, _between) = two_through(Arc::new(fate), tune);
        wait_for_datagrams(&one, 2);
        for number in 0..500_u32 {
            send(&one, 2, &[&number.to_le_bytes()[..], &[number as u8; 300]].concat());
            if number % 20 == 0 {
                // The host between them has little room for packets.
                thread::sleep(Duration::from_millis(2));
            }
        }
        send(&one, 2, &[0; LARGE]);
        let mut numbers = Vec::new();
        // Nothing says when the last one has come.
        while let Ok(event) = two.events.recv_timeout(Duration::from_secs(1)) {
            let Event::Received { body, .. } = event else { continue };
            if body.len() != LARGE {
                let number = u32::from_le_bytes(body[..4].try_into().unwrap());
                assert_eq!(body[4..], [number as u8; 300]);
                numbers.push(number);
            }
        }
        let mut once = numbers.clone();
        once.sort_unstable();
        assert!(once != numbers, "some overtook others");
        once.dedup();
        assert!(once.len() < numbers.len(), "some came twice");
        assert!((200..500).contains(&once.len()), "some were lost, and not most: {}", once.len());
        assert_eq!((one.metrics(2).sessions, two.metrics(1).frames_refused), (1, 0));
        one.stop();
        two.stop();
    }
}

#[test]
fn no_packet_of_an_earlier_life_counts() {
    for tune in [with_datagrams, compact] {
        let (one, two, between) = two_through(Arc::new(|_| Way::Arrives), tune);
        wait_for_datagrams(&one, 2);
        send(&one, 2, b"vote");
        assert_eq!(received(&two, 1), b"vote");
        let of_first_life = between.seen.lock().unwrap().last().unwrap().clone();
        let address = one.address;
        one.stop();

        let forger = UdpSocket::bind("127.0.0.1:0").unwrap();
        let drops = |reason: &str| {
            let counts = two.transport.metrics().datagrams_dropped;
            counts.iter().find(|(name, _)| *name == reason).unwrap().1
        };
        eventually("the session ends", || !two.metrics(1).receiving);
        // A probe that came before its session counts so, too.
        let before = drops("binding");
        forger.send_to(&of_first_life, two.address).unwrap();
        eventually("without a session it is dropped", || drops("binding") > before);

        let mut second_life = tune(config(1, 2, &[address, two.address]));
        second_life.peers[0].address = between.address.to_string();
        let one = Replica::start(second_life, TcpListener::bind(address).unwrap());
        one.wait_up(2);
        wait_for_datagrams(&one, 2);
        let before = drops("binding");
        forger.send_to(&of_first_life, two.address).unwrap();
        eventually("in the session of the next life it is dropped", || drops("binding") > before);
        send(&one, 2, b"vote of the second life");
        assert_eq!(received(&two, 1), b"vote of the second life");
        one.stop();
        two.stop();
    }
}

#[test]
fn packets_of_strangers_are_dropped_by_reason_and_cost_nobody_a_session() {
    for tune in [with_datagrams, compact] {
        let (one, two, between) = two_through(Arc::new(|_| Way::Arrives), tune);
        wait_for_datagrams(&one, 2);
        send(&one, 2, b"vote");
        assert_eq!(received(&two, 1), b"vote");
        let sound = between.seen.lock().unwrap().last().unwrap().clone();
        let changed = |at: usize, byte: u8| {
            let mut packet = sound.clone();
            packet[at] = byte;
            let crc = crc32fast::hash(&[&packet[..28], &packet[32..]].concat());
            packet[28..32].copy_from_slice(&crc.to_le_bytes());
            packet
        };
        let mut damaged = sound.clone();
        damaged[36] ^= 1;
        let forged = [
            ("short", sound[..31].to_vec()),
            ("magic", b"GET / HTTP/1.1\r\nHost: a-host-that-is-no-replica\r\n\r\n".to_vec()),
            ("version", changed(4, 9)),
            ("large", [&sound[..], &vec![0; 2_000]].concat()),
            ("length", sound[..sound.len() - 1].to_vec()),
            ("checksum", damaged),
            ("unused", changed(26, 1)),
            ("kind", changed(5, 77)),
            ("binding", changed(8, sound[8] ^ 1)),
            ("message-version", changed(7, 0x7f)),
            ("content", changed(34, 200)),
        ];
        let forger = UdpSocket::bind("127.0.0.1:0").unwrap();
        // A probe that came before its session counts under "binding".
        let before = two.transport.metrics().datagrams_dropped;
        forged.iter().for_each(|(_, packet)| _ = forger.send_to(packet, two.address).unwrap());
        let more = |(&(name, count), (reason, _)): (&(&'static str, u64), &(&'static str, Vec<u8>))| {
            assert_eq!(name, *reason);
            (name, count + 1)
        };
        assert_eq!(before.len(), forged.len());
        let expected: Vec<_> = before.iter().zip(&forged).map(more).collect();
        eventually("each is counted", || two.transport.metrics().datagrams_dropped == expected);
        // A packet may be padded.
        forger.send_to(&[&sound[..], &[0; 18]].concat(), two.address).unwrap();
        assert_eq!(received(&two, 1), b"vote");
        send(&one, 2, b"still here");
        assert_eq!(received(&two, 1), b"still here");
        assert_eq!((one.metrics(2).sessions, two.metrics(1).frames_refused), (1, 0));
        one.stop();
        two.stop();
    }
}

#[test]
fn a_message_that_cannot_be_read_ends_its_session_also_in_a_datagram() {
    for tune in [with_datagrams, compact] {
        let replicas = cluster_with(3, tune);
        wait_for_datagrams(&replicas[0], 2);
        send(&replicas[0], 2, UNREADABLE);
        replicas[0].wait_down(2);
        replicas[0].wait_up(2);
        eventually("it is counted", || replicas[1].metrics(1).frames_refused == 1);
        wait_for_datagrams(&replicas[0], 2);
        send(&replicas[0], 2, b"sense");
        assert_eq!(received(&replicas[1], 1), b"sense");
        assert_eq!(replicas[1].metrics(3).sessions, 1);
        replicas.into_iter().for_each(Replica::stop);
    }
}

#[test]
fn a_port_that_is_taken_is_named() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let _other = UdpSocket::bind(address).unwrap();
    let own = with_datagrams(config(1, 1, &[address]));
    let error = Transport::start_on(own, vec![listener], |_| Ok(())).unwrap_err();
    assert!(matches!(error, TransportError::BindDatagrams { address: at, .. } if at == address), "{error}");
    let text = error.to_string();
    assert!(text.contains(&address.to_string()) && text.contains("--transport udp"), "{text}");
}

#[test]
fn sessions_of_lives_that_follow_each_other_soon_keep_their_datagrams_apart() {
    for tune in [with_datagrams, compact] {
        let listeners = listeners(2);
        let addresses = addresses(&listeners);
        let mut listeners = listeners.into_iter();
        let first = listeners.next().unwrap();
        let two = Replica::start(tune(config(2, 1, &addresses)), listeners.next().unwrap());
        let mut listener = Some(first);
        for life in 1..=5_u64 {
            let listener = listener.take().unwrap_or_else(|| TcpListener::bind(addresses[0]).unwrap());
            let one = Replica::start(tune(config(1, life, &addresses)), listener);
            one.wait_up(2);
            wait_for_datagrams(&one, 2);
            (0..200).for_each(|_| send(&one, 2, &life.to_le_bytes()));
            // Those of a life come after it was told whose messages follow, and before the next life is.
            for _ in 0..200 {
                assert_eq!(received(&two, 1), life.to_le_bytes());
                assert_eq!(two.met.lock().unwrap().last().unwrap().2.0, life);
            }
            one.stop();
        }
        two.stop();
    }
}

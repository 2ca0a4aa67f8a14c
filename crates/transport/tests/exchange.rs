//! What a transport does when all is well.

mod common;

use std::{
    collections::BTreeSet,
    io::{Read, Write},
    sync::Arc,
    thread,
    time::Duration,
};

use bytes::Bytes;
use common::{CLUSTER, Replica, cluster_with, one_of_two, probe, welcome, without_threads};
use common::{addresses, cluster, config, encode, eventually, frame, hello, is_closed, join, listeners};
use synod_transport::{Config, Event, Transport, TransportError, VERSION};
use synod_wire::{BatchBuilder, GroupId, Incarnation, Reader, ReplicaId, SessionId, Writer};

/// Threads for each connection, and none.
const BOTH: [fn(Config) -> Config; 2] = [|config| config, without_threads];

#[test]
fn bodies_travel_both_ways_and_are_counted() {
    let replicas = cluster(2);
    replicas[0].send(2, b"ping");
    assert_eq!(
        replicas[1].next(),
        Event::Received {
            from: ReplicaId(1),
            version: VERSION,
            group: GroupId::FIRST,
            body: Bytes::from_static(b"ping")
        }
    );
    replicas[1].send(1, b"");
    assert_eq!(
        replicas[0].next(),
        Event::Received { from: ReplicaId(2), version: VERSION, group: GroupId::FIRST, body: Bytes::new() }
    );

    eventually("both frames are counted", || {
        let (one, two) = (replicas[0].metrics(2), replicas[1].metrics(1));
        (one.frames_sent, one.bytes_sent, two.frames_sent, two.bytes_sent) == (1, 32, 1, 28)
    });
    let metrics = replicas[0].metrics(2);
    assert!(metrics.connected() && metrics.receiving);
    assert_eq!((metrics.frames_received, metrics.bytes_received), (1, 28));
    assert_eq!((metrics.sessions, metrics.writes, metrics.frames_dropped), (1, 1, 0));
    assert_eq!((metrics.queue_frames, metrics.queue_bytes), (0, 0));
    replicas.into_iter().for_each(Replica::stop);
}

#[test]
fn up_tells_the_incarnation() {
    let listeners = listeners(2);
    let addresses = addresses(&listeners);
    let mut listeners = listeners.into_iter();
    let one = Replica::start(config(1, 4, &addresses), listeners.next().unwrap());
    let two = Replica::start(config(2, 9, &addresses), listeners.next().unwrap());
    assert_eq!(one.wait_up(2), Incarnation(9));
    assert_eq!(two.wait_up(1), Incarnation(4));
    one.stop();
    two.stop();
}

/// Asks often.
fn probing(config: Config) -> Config {
    Config { probe_interval: Duration::from_millis(200), ..config }
}

#[test]
fn each_tells_how_long_the_other_takes_to_answer() {
    for tune in [probing, |config| probing(without_threads(config))] {
        let replicas = cluster_with(2, tune);
        eventually("both have been answered", || {
            !replicas[0].metrics(2).round_trips.is_empty() && !replicas[1].metrics(1).round_trips.is_empty()
        });
        replicas.into_iter().for_each(Replica::stop);
    }
}

#[test]
fn a_peer_that_asks_is_answered_once_and_its_answer_counts_once() {
    let (one, by_hand) = one_of_two(|config| Config { probe_interval: Duration::from_secs(2), ..config });
    let mut hears = welcome(&by_hand, 1, u32::MAX);
    one.wait_up(2);
    let mut says = join(one.address, 2, 1, 1);
    says.write_all(&[probe(0, 70), probe(0, 71), frame(b"after")].concat()).unwrap();
    assert_eq!(one.wait_received(2)[..], *b"after");
    let mut heard = vec![0; probe(1, 70).len()];
    hears.read_exact(&mut heard).unwrap();
    assert_eq!(heard, probe(1, 70));
    // An answer that nobody asked for is no measurement.
    says.write_all(&[probe(1, 1), frame(b"early")].concat()).unwrap();
    assert_eq!(one.wait_received(2)[..], *b"early");
    assert!(one.metrics(2).round_trips.is_empty());
    // The next frame is its own probe, after some seconds; none answered the second.
    hears.read_exact(&mut heard).unwrap();
    assert_eq!(heard, probe(0, 1));
    says.write_all(&probe(1, 1)).unwrap();
    eventually("it was answered", || !one.metrics(2).round_trips.is_empty());
    one.stop();
}

#[test]
fn order_is_kept_among_many_senders() {
    let (frames, writes) = order_is_kept(cluster(3));
    assert!(writes < frames, "frames that wait leave together");
}

#[test]
fn order_is_kept_among_many_senders_that_write_themselves() {
    order_is_kept(cluster_with(3, without_threads));
}

/// Returns how many frames the first replica sent to the second, and in how many writes.
fn order_is_kept(replicas: Vec<Replica>) -> (u64, u64) {
    const EACH: u64 = 20_000;
    thread::scope(|scope| {
        for (from, to) in [(0, 1), (0, 2), (1, 0), (2, 1)] {
            let sender = replicas[from].sender.clone();
            scope.spawn(move || {
                for i in 0..EACH {
                    sender.send(ReplicaId(to + 1), encode(&i.to_le_bytes()));
                }
            });
        }
        for (at, expected) in [(0, 1), (1, 2), (2, 1)] {
            let replica = &replicas[at];
            let mut next = [0; 3];
            for _ in 0..EACH * expected {
                let Event::Received { from, body, .. } = replica.next() else { panic!("a session ended") };
                let count = &mut next[from.0 as usize - 1];
                assert_eq!(body[..], u64::to_le_bytes(*count));
                *count += 1;
            }
        }
    });
    let metrics = replicas[0].metrics(2);
    assert_eq!(metrics.frames_sent, EACH);
    (metrics.frames_sent, metrics.writes)
}

#[test]
fn one_message_goes_to_many_by_reference() {
    let replicas = cluster(3);
    let mut builder = BatchBuilder::new();
    builder.push(SessionId(1), 1, 1, &[7; 5_000_000]);
    let batch = builder.finish();
    let mut writer = Writer::new();
    writer.u64(42);
    writer.batch(&batch);
    writer.u8(1);
    replicas[0].sender.send_many(&[ReplicaId(2), ReplicaId(3)], writer.finish());
    for replica in &replicas[1..] {
        let mut reader = Reader::new(replica.wait_received(1));
        assert_eq!(reader.u64("number").unwrap(), 42);
        let received = reader.batch("batch").unwrap();
        assert!(received == batch && received.is_intact());
        assert_eq!(reader.u8("end").unwrap(), 1);
    }
}

#[test]
fn large_frames_between_small_ones_arrive_intact() {
    large_frames_arrive_intact(cluster(2));
}

#[test]
fn large_frames_that_no_socket_takes_at_once_arrive_intact() {
    large_frames_arrive_intact(cluster_with(2, without_threads));
}

fn large_frames_arrive_intact(replicas: Vec<Replica>) {
    let bodies: Vec<Vec<u8>> = [10, 8 << 20, 0, 40_000, 1, 3 << 20, 32 * 1024 - 28, 100]
        .iter()
        .map(|size| (0..*size as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect())
        .collect();
    bodies.iter().for_each(|body| replicas[0].send(2, body));
    for body in &bodies {
        assert!(replicas[1].wait_received(1) == body);
    }
    eventually("all is counted", || replicas[1].metrics(1).frames_received == bodies.len() as u64);
}

#[test]
fn frames_may_come_one_byte_at_a_time() {
    for tune in BOTH {
        frames_come_one_byte_at_a_time(tune);
    }
}

fn frames_come_one_byte_at_a_time(tune: fn(Config) -> Config) {
    let listeners = listeners(2);
    let addresses = addresses(&listeners);
    // Replica 2 does not run: its own call would end the connection by hand.
    let replica = Replica::start(tune(config(1, 1, &addresses)), listeners.into_iter().next().unwrap());
    let mut stream = std::net::TcpStream::connect(replica.address).unwrap();
    stream.set_nodelay(true).unwrap();
    let bytes = [hello(CLUSTER, 2, 1, 1), frame(b"slow"), frame(b"")].concat();
    for byte in bytes {
        std::io::Write::write_all(&mut stream, &[byte]).unwrap();
    }
    assert_eq!(replica.wait_received(2), "slow");
    assert_eq!(replica.wait_received(2), "");
    replica.stop();
}

#[test]
fn a_new_connection_replaces_the_one_before() {
    BOTH.into_iter().for_each(a_new_connection_replaces);
}

fn a_new_connection_replaces(tune: fn(Config) -> Config) {
    let listeners = listeners(2);
    let addresses = addresses(&listeners);
    let replica = Replica::start(tune(config(1, 1, &addresses)), listeners.into_iter().next().unwrap());
    let mut older = join(replica.address, 2, 1, 5);
    std::io::Write::write_all(&mut older, &frame(b"a")).unwrap();
    assert_eq!(replica.wait_received(2), "a");
    let mut newer = join(replica.address, 2, 1, 5);
    assert!(is_closed(&older));
    std::io::Write::write_all(&mut newer, &frame(b"b")).unwrap();
    assert_eq!(replica.wait_received(2), "b");
    replica.stop();
}

#[test]
fn several_addresses_are_listened_on() {
    let more = listeners(3);
    let targets = addresses(&more);
    let peers = config(1, 1, &[targets[0], "127.0.0.1:9".parse().unwrap()]);
    let (tell, events) = std::sync::mpsc::channel();
    let transport = Transport::start_on(peers, more, move |event| {
        if !matches!(event, Event::Refused { .. } | Event::Met { .. }) {
            _ = tell.send(event);
        }
        Ok(())
    })
    .unwrap();
    assert_eq!(transport.local_addresses(), targets);
    let mut seen = BTreeSet::new();
    for (i, target) in targets.iter().enumerate() {
        let mut stream = join(*target, 2, 1, 1);
        std::io::Write::write_all(&mut stream, &frame(&[i as u8])).unwrap();
        match events.recv_timeout(common::WAIT_MAX).unwrap() {
            Event::Received { body, .. } => seen.insert(body[0]),
            other => panic!("{other:?}"),
        };
    }
    assert_eq!(seen, BTreeSet::from([0, 1, 2]));
}

#[test]
fn a_sender_outlives_its_transport() {
    let replicas = cluster(2);
    let sender = replicas[0].sender.clone();
    replicas.into_iter().for_each(Replica::stop);
    sender.send(ReplicaId(2), encode(b"late"));
    assert_eq!(sender.metrics().peers[0].frames_dropped, 1);
}

#[test]
fn a_sink_that_holds_the_sender_does_not_keep_the_transport() {
    let witness = Arc::new(());
    let weak = Arc::downgrade(&witness);
    let slot = Arc::new(std::sync::OnceLock::new());
    let sink = {
        let slot = Arc::clone(&slot);
        move |_| {
            _ = (&witness, slot.get().is_some());
            Ok(())
        }
    };
    let config = Config { listen: vec!["127.0.0.1:0".parse().unwrap()], ..config(1, 1, &[]) };
    let transport = Transport::start(config, sink).unwrap();
    slot.set(transport.sender()).unwrap();
    transport.shutdown();
    assert!(weak.upgrade().is_none(), "the sink is dropped");
}

#[test]
fn a_transport_that_cannot_start_says_why() {
    let taken = listeners(1);
    let mut config = config(1, 1, &[addresses(&taken)[0], addresses(&taken)[0]]);
    assert!(matches!(Transport::start(config.clone(), |_| Ok(())), Err(TransportError::NoListenAddress)));
    config.listen = addresses(&taken);
    let error = Transport::start(config, |_| Ok(())).unwrap_err();
    assert!(error.to_string().contains(&addresses(&taken)[0].to_string()), "{error}");
}

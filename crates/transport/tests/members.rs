//! Peers that come, go and move while the transport runs.

mod common;

use std::{
    io::Write,
    net::{SocketAddr, TcpListener},
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

use common::{
    CLUSTER, Gate, Replica, WAIT_MAX, addresses, birth, call, cluster, config, encode, eventually, frame,
    hello, is_closed, join, listeners, welcome, welcome_born,
};
use synod_transport::{Config, Event, Peer, Transport, TransportError, VERSION};
use synod_wire::{GroupId, Incarnation, ReplicaId};

/// All replicas of `addresses` except `me`, as in [`config`].
fn peers(me: u64, addresses: &[SocketAddr]) -> Vec<Peer> {
    config(me, 1, addresses).peers
}

/// How many sessions to `peer` there ever were; `None` if it is not a peer.
fn sessions(replica: &Replica, peer: u64) -> Option<u64> {
    let metrics = replica.transport.metrics();
    metrics.peers.iter().find(|metrics| metrics.peer.0 == peer).map(|metrics| metrics.sessions)
}

/// A frame of the first group, as it arrives.
fn received(from: u64, body: &'static str) -> Event {
    Event::Received { from: ReplicaId(from), version: VERSION, group: GroupId::FIRST, body: body.into() }
}

#[test]
fn a_peer_joins_and_another_leaves_and_the_rest_notices_nothing() {
    let all = listeners(4);
    let addresses = addresses(&all);
    let mut replicas: Vec<Replica> = (1..)
        .zip(all)
        .map(|(me, listener)| {
            // The fourth replica knows all others; none of them knows it yet.
            let known = if me == 4 { &addresses[..] } else { &addresses[..3] };
            Replica::start(config(me, 1, known), listener)
        })
        .collect();
    for replica in &replicas[..3] {
        (0..2).for_each(|_| assert!(matches!(replica.next(), Event::Up { .. })));
        assert_eq!(sessions(replica, 4), None);
    }
    for (me, replica) in (1..=3).zip(&replicas) {
        replica.transport.set_peers(peers(me, &addresses)).unwrap();
        // It is a peer from now on, whether it can be reached already or not.
        replica.send(4, b"welcome");
    }
    for (me, replica) in (1..=3).zip(&replicas) {
        assert_eq!(replica.next(), Event::Up { peer: ReplicaId(4), incarnation: Incarnation(1) });
        replicas[3].send(me, b"thanks");
        assert_eq!(replica.next(), received(4, "thanks"));
    }
    let (mut ups, mut welcomes) = (Vec::new(), Vec::new());
    while ups.len() < 3 || welcomes.len() < 3 {
        match replicas[3].next() {
            Event::Up { peer, .. } => ups.push(peer.0),
            Event::Received { from, body, .. } if body == "welcome" => welcomes.push(from.0),
            other => panic!("{other:?}"),
        }
    }
    ups.sort_unstable();
    welcomes.sort_unstable();
    assert_eq!((ups, welcomes), (vec![1, 2, 3], vec![1, 2, 3]));

    // Replica 2 leaves: the others are told first, then it is.
    let without = |me: u64| {
        let mut peers = peers(me, &addresses);
        peers.retain(|peer| peer.id.0 != 2);
        peers
    };
    for me in [1, 3, 4] {
        let replica = &replicas[me as usize - 1];
        replica.sender.set_peers(without(me)).unwrap();
        assert_eq!(replica.next(), Event::Down { peer: ReplicaId(2) });
        assert_eq!(sessions(replica, 2), None);
        replica.send(2, b"nobody");
        assert_eq!(replica.transport.metrics().frames_unroutable, 1);
    }
    for peer in [1, 3, 4] {
        eventually("what replica 2 sends arrives nowhere", || !replicas[1].metrics(peer).connected());
        replicas[1].send(peer, b"still there?");
    }
    for (from, to) in [(1, 3), (3, 1), (1, 4), (4, 1), (3, 4), (4, 3)] {
        replicas[from - 1].send(to as u64, b"go on");
        let expected = received(from as u64, "go on");
        assert_eq!(replicas[to - 1].next(), expected, "no session ended, and nothing came from replica 2");
        assert_eq!(sessions(&replicas[from - 1], to as u64), Some(1));
    }
    let (_, verdict) = call(addresses[0], &hello(CLUSTER, 2, 1, 1));
    assert_eq!(verdict, 3, "it is unknown now");
    replicas.drain(..).for_each(Replica::stop);
}

#[test]
fn one_that_leaves_is_cut_off_on_both_connections() {
    let all = listeners(2);
    let addresses = addresses(&all);
    let mut all = all.into_iter();
    let one = Replica::start(config(1, 1, &addresses), all.next().unwrap());
    let by_hand = all.next().unwrap();
    let stalled = welcome(&by_hand, 1, u32::MAX);
    one.wait_up(2);
    let inbound = join(one.address, 2, 1, 1);
    // The peer takes nothing, so the sender thread is stuck in a write.
    let body = encode(&vec![0; 1 << 20]);
    (0..40).for_each(|_| one.sender.send(ReplicaId(2), body.clone()));
    eventually("the sender is stuck", || {
        let before = one.metrics(2);
        thread::sleep(Duration::from_millis(50));
        one.metrics(2).queue_frames > 0 && one.metrics(2).frames_sent == before.frames_sent
    });

    let started = Instant::now();
    one.transport.set_peers(Vec::new()).unwrap();
    let elapsed = started.elapsed();
    assert!(elapsed < Duration::from_millis(100), "the caller waited for {elapsed:?}");
    one.wait_down(2);
    assert!(is_closed(&inbound));
    let rest = std::io::copy(&mut &stalled, &mut std::io::sink());
    assert!(rest.is_ok_and(|bytes| bytes < 40 << 20), "what was queued is dropped");
    by_hand.set_nonblocking(true).unwrap();
    thread::sleep(Duration::from_millis(100));
    assert!(by_hand.accept().is_err(), "it is not dialled any more");
    one.stop();
}

#[test]
fn one_that_moves_is_dialled_at_its_new_address() {
    let all = listeners(4);
    let addresses = addresses(&all);
    let mut all = all.into_iter();
    let one = Replica::start(config(1, 1, &addresses[..3]), all.next().unwrap());
    let (old, third, new) = (all.next().unwrap(), all.next().unwrap(), all.next().unwrap());
    let before = welcome(&old, 1, 1000);
    one.wait_up(2);
    // Replica 3 is in the middle of its handshake.
    let (hesitant, _) = third.accept().unwrap();
    let mut inbound = join(one.address, 2, 1, 1);

    let moved = |address: SocketAddr| {
        let mut peers = peers(1, &addresses[..3]);
        peers[0].address = address.to_string();
        peers
    };
    one.transport.set_peers(moved(addresses[3])).unwrap();
    one.wait_down(2);
    assert!(is_closed(&before));
    one.send(2, b"found you");
    let mut after = welcome(&new, 1, 1000);
    one.wait_up(2);
    let mut bytes = vec![0; frame(b"found you").len()];
    std::io::Read::read_exact(&mut after, &mut bytes).unwrap();
    assert_eq!(bytes, frame(b"found you"));
    inbound.write_all(&frame(b"I am where I was")).unwrap();
    assert_eq!(one.wait_received(2), "I am where I was");
    assert_eq!((one.metrics(2).sessions, one.metrics(2).frames_dropped), (2, 0));

    // A handshake and a connection attempt are given up as well.
    let mut both = moved(addresses[3]);
    both[1].address = addresses[1].to_string();
    one.transport.set_peers(both).unwrap();
    let mut rest = Vec::new();
    _ = std::io::Read::read_to_end(&mut &hesitant, &mut rest);
    assert_eq!(rest.len(), common::HELLO_BYTES, "the hello, and then the end");
    let (mut stream, _) = old.accept().unwrap();
    stream.write_all(&welcome_born(1, 1000, birth(3))).unwrap();
    one.wait_up(3);
    one.stop();
}

#[test]
fn a_pause_between_attempts_ends_when_the_peer_moves() {
    let all = listeners(3);
    let addresses = addresses(&all);
    let mut all = all.into_iter();
    let patient = Duration::from_secs(600);
    let slow =
        Config { redial_delay_min: patient, redial_delay_max: patient, ..config(1, 1, &addresses[..2]) };
    let own = all.next().unwrap();
    // No process listens there.
    drop(all.next());
    let one = Replica::start(slow, own);
    thread::sleep(Duration::from_millis(100));
    let new = Peer { id: ReplicaId(2), address: addresses[2].to_string() };
    one.transport.set_peers(vec![new]).unwrap();
    let _stream = welcome(&all.next().unwrap(), 1, 1000);
    one.wait_up(2);
    one.stop();
}

#[test]
fn a_wrong_list_changes_nothing() {
    let replicas = cluster(3);
    let addresses: Vec<_> = replicas.iter().map(|replica| replica.address).collect();
    let two = Peer { id: ReplicaId(2), address: addresses[1].to_string() };
    let wrong = [
        (vec![two.clone(), two.clone()], "named twice"),
        (vec![Peer { id: ReplicaId(1), ..two.clone() }], "this replica itself"),
        (vec![Peer { address: "nowhere".into(), ..two.clone() }], "not host:port"),
        ((2..70).map(|id| Peer { id: ReplicaId(id), ..two.clone() }).collect(), "inbound_connections_max"),
    ];
    for (peers, expected) in wrong {
        let error = replicas[0].transport.set_peers(peers).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    assert_eq!((sessions(&replicas[0], 2), sessions(&replicas[0], 3)), (Some(1), Some(1)));
    let alone = Transport::start(config(1, 1, &[]), |_| Ok(())).unwrap();
    assert!(matches!(alone.set_peers(vec![two.clone()]), Err(TransportError::NoListenAddress)));

    // After the end the sender does nothing.
    let sender = replicas[0].sender.clone();
    replicas.into_iter().for_each(Replica::stop);
    sender.set_peers(Vec::new()).unwrap();
    assert_eq!(sender.metrics().peers.len(), 2);
}

#[test]
fn members_that_change_under_load_lose_no_session_of_others() {
    const FRAMES: u64 = 50_000;
    let replicas = cluster(3);
    let addresses: Vec<_> = replicas.iter().map(|replica| replica.address).collect();
    thread::scope(|scope| {
        let sender = replicas[0].sender.clone();
        let sent = scope.spawn(move || {
            for i in 0..FRAMES {
                sender.send_many(&[ReplicaId(2), ReplicaId(3)], encode(&i.to_le_bytes()));
            }
        });
        let control = replicas[0].sender.clone();
        scope.spawn(move || {
            // Replica 3 leaves, comes back, and a stranger comes and goes.
            let stranger = Peer { id: ReplicaId(9), address: "127.0.0.1:9".into() };
            for turn in 0.. {
                let mut list = peers(1, &addresses);
                if turn % 2 == 0 {
                    list.pop();
                    list.push(stranger.clone());
                }
                control.set_peers(list).unwrap();
                if sent.is_finished() && turn % 2 == 1 {
                    break;
                }
                thread::sleep(Duration::from_millis(3));
            }
        });
        for i in 0..FRAMES {
            match replicas[1].next() {
                Event::Received { from: ReplicaId(1), body, .. } => assert_eq!(body[..], i.to_le_bytes()),
                other => panic!("{other:?} instead of frame {i}"),
            }
        }
    });
    assert_eq!(sessions(&replicas[0], 2), Some(1));

    // Replica 1 saw `Up` and `Down` of replica 3 in turn, whichever link they were of.
    eventually("the last state is reached", || replicas[0].metrics(3).connected());
    let mut up = true;
    for event in replicas[0].events.try_iter() {
        match event {
            Event::Up { peer: ReplicaId(3), .. } => assert!(!std::mem::replace(&mut up, true)),
            Event::Down { peer: ReplicaId(3) } => assert!(std::mem::replace(&mut up, false)),
            other => panic!("{other:?}"),
        }
    }
    replicas[0].send(3, b"last");
    // The messages that replica 3 received are in order, too.
    let mut last = None;
    loop {
        match replicas[2].next() {
            Event::Received { body, .. } if body == "last" => break,
            Event::Received { body, .. } => {
                let number = u64::from_le_bytes(body[..].try_into().unwrap());
                assert!(last.replace(number) < Some(number), "{number} after {last:?}");
            }
            Event::Up { .. } | Event::Down { .. } | Event::Refused { .. } | Event::Met { .. } => {}
        }
    }
    replicas.into_iter().for_each(Replica::stop);
}

#[test]
fn a_peer_that_comes_back_waits_until_its_former_self_is_gone() {
    let all: Vec<TcpListener> = listeners(2);
    let addresses = addresses(&all);
    let gate = Arc::new(Gate::default());
    let (tell, events) = mpsc::channel();
    let sink = {
        let gate = Arc::clone(&gate);
        move |event| {
            // The receiver thread is held while it delivers a body.
            if matches!(&event, Event::Received { body, .. } if body == "old") {
                _ = tell.send(Event::Down { peer: ReplicaId(99) });
                gate.pass();
            }
            if !matches!(event, Event::Refused { .. } | Event::Met { .. }) {
                _ = tell.send(event);
            }
            Ok(())
        }
    };
    let mut all = all.into_iter();
    let own = all.next().unwrap();
    // No process listens there.
    drop(all);
    let address = own.local_addr().unwrap();
    let one = Transport::start_on(config(1, 1, &addresses), vec![own], sink).unwrap();
    let mut before = join(address, 2, 1, 1);
    before.write_all(&frame(b"old")).unwrap();
    assert_eq!(events.recv_timeout(WAIT_MAX).unwrap(), Event::Down { peer: ReplicaId(99) });

    one.set_peers(Vec::new()).unwrap();
    one.set_peers(peers(1, &addresses)).unwrap();
    assert!(is_closed(&before));
    for _ in 0..3 {
        let (_, verdict) = call(address, &hello(CLUSTER, 2, 1, 1));
        assert_eq!(verdict, 3, "not yet");
        thread::sleep(Duration::from_millis(50));
    }
    gate.open();
    let mut welcomed = None;
    eventually("it is welcome again", || {
        let (stream, verdict) = call(address, &hello(CLUSTER, 2, 1, 1));
        welcomed = (verdict == 0).then_some(stream);
        welcomed.is_some()
    });
    welcomed.unwrap().write_all(&frame(b"new")).unwrap();
    for expected in ["old", "new"] {
        match events.recv_timeout(WAIT_MAX).unwrap() {
            Event::Received { body, .. } => assert_eq!(body, expected),
            other => panic!("{other:?}"),
        }
    }
    one.shutdown();
}

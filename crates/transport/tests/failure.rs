//! Peers that die, come back, stall or are too slow.

mod common;

use std::{
    env,
    io::Write,
    net::{SocketAddr, TcpStream},
    process::{Command, Stdio},
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

use common::{
    CLUSTER, Gate, Replica, addresses, cluster, config, encode, eventually, frame, hello, is_closed, join,
    one_of_two,
};
use common::{listeners, welcome};
use synod_transport::{Config, Event, ObstacleKind, Transport};
use synod_wire::{Incarnation, ReplicaId};

#[test]
fn a_peer_that_restarts_is_found_again() {
    let mut replicas = cluster(3);
    let addresses: Vec<SocketAddr> = replicas.iter().map(|replica| replica.address).collect();
    for incarnation in 2..5 {
        replicas.remove(1).stop();
        replicas[0].wait_down(2);
        replicas[1].wait_down(2);
        let again = Config { listen: vec![addresses[1]], ..config(2, incarnation, &addresses) };
        let (tell, events) = mpsc::channel();
        let transport = Transport::start(again, move |event| {
            _ = tell.send(event);
            Ok(())
        })
        .unwrap();
        let (sender, address) = (transport.sender(), addresses[1]);
        replicas
            .insert(1, Replica { reader: None, sender, transport, events, met: Default::default(), address });
        assert_eq!(replicas[0].wait_up(2), Incarnation(incarnation));
        assert_eq!(replicas[2].wait_up(2), Incarnation(incarnation));
        replicas[0].send(2, b"welcome back");
        assert_eq!(replicas[1].wait_received(1), "welcome back");
        replicas[1].send(3, b"thanks");
        assert_eq!(replicas[2].wait_received(2), "thanks");
    }
    // The replica that never went down saw no other sessions end.
    assert_eq!(replicas[0].metrics(3).sessions, 1);
    assert_eq!(replicas[0].metrics(2).sessions, 4);
}

/// Each time that a peer has gone, the absence of a listener at its address is reported once, however often
/// the address is dialled.
#[test]
fn a_missing_listener_is_reported_once_between_two_sessions() {
    let mut both = listeners(2).into_iter();
    let (own, other) = (both.next().unwrap(), both.next().unwrap());
    let addresses = [own.local_addr().unwrap(), other.local_addr().unwrap()];
    let (tell, events) = mpsc::channel();
    let sink = move |event| {
        if !matches!(event, Event::Met { .. }) {
            _ = tell.send(event);
        }
        Ok(())
    };
    let one = Transport::start_on(config(1, 1, &addresses), vec![own], sink).unwrap();
    let mut listener = Some(other);
    for incarnation in 1..4 {
        let life = Config { listen: vec![addresses[1]], ..config(2, incarnation, &addresses) };
        let two = match listener.take() {
            Some(listener) => Transport::start_on(life, vec![listener], |_| Ok(())).unwrap(),
            None => Transport::start(life, |_| Ok(())).unwrap(),
        };
        let next = || events.recv_timeout(common::WAIT_MAX).unwrap();
        let obstacle = || one.metrics().peers[0].obstacle.clone().map(|obstacle| obstacle.kind);
        assert_eq!(next(), Event::Up { peer: ReplicaId(2), incarnation: Incarnation(incarnation) });
        assert_eq!(obstacle(), None);
        two.shutdown();
        assert_eq!(next(), Event::Down { peer: ReplicaId(2) });
        assert_eq!(next(), Event::Refused { peer: ReplicaId(2) });
        // The address is dialled about five times in this time.
        assert!(events.recv_timeout(Duration::from_millis(200)).is_err(), "once is enough");
        assert_eq!(obstacle(), Some(ObstacleKind::NobodyListens));
    }
    one.shutdown();
}

/// The other process of the test below; does nothing when run as a test.
#[test]
fn child_process() {
    let Ok(addresses) = env::var("SYNOD_TEST_ADDRESSES") else { return };
    let addresses: Vec<SocketAddr> = addresses.split(',').map(|address| address.parse().unwrap()).collect();
    let config = Config { listen: vec![addresses[1]], ..config(2, 1, &addresses) };
    let _transport = Transport::start(config, |_| Ok(())).unwrap();
    thread::sleep(Duration::from_secs(120));
}

#[test]
fn a_killed_process_is_noticed_at_once() {
    let listeners = listeners(2);
    let addresses = addresses(&listeners);
    let mut listeners = listeners.into_iter();
    let replica = Replica::start(config(1, 1, &addresses), listeners.next().unwrap());
    // The child listens on the second address from now on.
    drop(listeners);
    let mut child = Command::new(env::current_exe().unwrap())
        .args(["--exact", "child_process"])
        .env("SYNOD_TEST_ADDRESSES", format!("{},{}", addresses[0], addresses[1]))
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    replica.wait_up(2);
    let killed = Instant::now();
    child.kill().unwrap();
    replica.wait_down(2);
    let elapsed = killed.elapsed();
    child.wait().unwrap();
    println!("a killed peer was noticed after {elapsed:?}");
    // There was no traffic, so only the end of the connection itself can have told this replica.
    assert_eq!(replica.metrics(2).frames_sent, 0);
    assert!(elapsed < Duration::from_millis(500), "{elapsed:?}");
    replica.stop();
}

#[test]
fn messages_for_an_absent_peer_are_kept_in_a_sixteenth_of_the_bounds() {
    let listeners = listeners(2);
    let addresses = addresses(&listeners);
    let mut listeners = listeners.into_iter();
    let few = |config: Config| Config { send_queue_frames_max: 160, ..config };
    let one = Replica::start(few(config(1, 1, &addresses)), listeners.next().unwrap());
    (0..100_u8).for_each(|i| one.send(2, &[i]));
    let metrics = one.metrics(2);
    assert_eq!((metrics.queue_frames, metrics.frames_dropped, metrics.connected()), (10, 90, false));
    let two = Replica::start(config(2, 1, &addresses), listeners.next().unwrap());
    for i in 90..100 {
        assert_eq!(two.wait_received(1)[..], [i], "the newest are kept");
    }
    one.stop();
    two.stop();
}

#[test]
fn a_slow_receiver_costs_the_oldest_frames_and_never_the_sender() {
    const FRAMES: u32 = 4000;
    let listeners = listeners(2);
    let addresses = addresses(&listeners);
    let mut listeners = listeners.into_iter();
    let bounded = Config { send_queue_frames_max: 64, ..config(1, 1, &addresses) };
    let one = Replica::start(bounded, listeners.next().unwrap());
    let gate = Arc::new(Gate::default());
    let (tell, numbers) = mpsc::channel();
    let sink = {
        let gate = Arc::clone(&gate);
        move |event| {
            if let Event::Received { body, .. } = event {
                gate.pass();
                _ = tell.send(u32::from_le_bytes(body[..4].try_into().unwrap()));
            }
            Ok(())
        }
    };
    let two = Transport::start_on(config(2, 1, &addresses), vec![listeners.next().unwrap()], sink).unwrap();
    one.wait_up(2);

    let mut body = vec![0; 64 * 1024];
    let mut slowest = Duration::ZERO;
    for i in 0..FRAMES {
        body[..4].copy_from_slice(&i.to_le_bytes());
        let message = encode(&body);
        let started = Instant::now();
        one.sender.send(ReplicaId(2), message);
        slowest = slowest.max(started.elapsed());
        assert!(one.metrics(2).queue_frames <= 64);
    }
    let dropped = one.metrics(2).frames_dropped;
    assert!(dropped > 0, "{FRAMES} frames do not fit into the system's buffers");
    assert!(slowest < Duration::from_millis(500), "a send took {slowest:?}");
    one.wait_down(2);

    gate.open();
    // Once the receiver is quick again, messages arrive.
    let mut received = Vec::new();
    eventually("the newest frame arrives", || {
        one.sender.send(ReplicaId(2), encode(&FRAMES.to_le_bytes()));
        received.extend(numbers.try_iter());
        received.last() == Some(&FRAMES)
    });
    received.retain(|number| *number < FRAMES);
    assert!(received.is_sorted_by(|a, b| a < b), "no frame comes twice or out of order");
    let gaps = received.windows(2).filter(|pair| pair[0] + 1 < pair[1]).count();
    let sessions = one.metrics(2).sessions;
    println!("{} received, {dropped} dropped, {gaps} gaps, {sessions} sessions", received.len());
    assert!(gaps as u64 <= sessions, "gaps lie between sessions only");
    one.stop();
    two.shutdown();
}

#[test]
fn a_frame_that_was_cut_is_sent_whole_in_the_next_session() {
    let (one, by_hand) = one_of_two(|config| config);
    let stream = welcome(&by_hand, 1, u32::MAX);
    one.wait_up(2);
    // This is more than the buffers of the system hold, so the frame is cut somewhere.
    let large = vec![5; 48 << 20];
    one.send(2, &large);
    eventually("it is being written", || one.metrics(2).queue_frames == 0);
    thread::sleep(Duration::from_millis(50));
    // Unread data makes this drop a reset.
    drop(stream);
    one.wait_down(2);
    assert_eq!(one.metrics(2).frames_sent, 0);
    let mut stream = welcome(&by_hand, 1, u32::MAX);
    let mut arrived = vec![0; 28 + large.len()];
    // The frame is larger than the sixteenth of the queue that is kept while the peer is away, but the newest
    // frame is kept always.
    std::io::Read::read_exact(&mut stream, &mut arrived).unwrap();
    assert!(arrived == frame(&large));
    one.stop();
}

#[test]
fn a_frame_that_the_peer_has_no_room_for_is_dropped_once() {
    let listeners = listeners(2);
    let addresses = addresses(&listeners);
    let mut listeners = listeners.into_iter();
    let one = Replica::start(config(1, 1, &addresses), listeners.next().unwrap());
    let small = Config { frame_bytes_max: 1000, ..config(2, 1, &addresses) };
    let two = Replica::start(small, listeners.next().unwrap());
    one.wait_up(2);
    one.send(2, &[1; 2000]);
    one.wait_down(2);
    one.wait_up(2);
    one.send(2, &[2; 1000]);
    assert_eq!(two.wait_received(1)[..], [2; 1000]);
    assert_eq!(one.metrics(2).frames_dropped, 1);
    // The sender checks its own bound before it queues anything.
    two.send(1, &[3; 1001]);
    two.wait_down(1);
    assert_eq!(two.metrics(1).frames_dropped, 1);
    one.stop();
    two.stop();
}

/// The message that does not fit would end one session after the other, so there is no session, and a reason is given.
#[test]
fn a_peer_that_could_not_take_the_largest_message_gets_no_session() {
    let listeners = listeners(2);
    let addresses = addresses(&listeners);
    let mut listeners = listeners.into_iter();
    let large = Config { message_bytes_max: 1001, ..config(1, 1, &addresses) };
    let one = Replica::start(large, listeners.next().unwrap());
    let small = Config { frame_bytes_max: 1000, message_bytes_max: 1000, ..config(2, 1, &addresses) };
    let two = Replica::start(small, listeners.next().unwrap());
    two.wait_up(1);
    two.send(1, &[2; 1000]);
    assert_eq!(one.wait_received(2)[..], [2; 1000], "in this direction everything fits");
    one.send(2, b"small");
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!((one.metrics(2).sessions, one.metrics(2).frames_sent), (0, 0));
    one.stop();
    two.stop();
}

#[test]
fn a_later_life_of_a_peer_ends_the_session_with_the_earlier() {
    let (one, by_hand) = one_of_two(|config| config);
    let older = welcome(&by_hand, 3, 1000);
    assert_eq!(one.wait_up(2), Incarnation(3));
    // The host of the older life fell silent, and the newer life calls.
    let _inbound = join(one.address, 2, 1, 4);
    one.wait_down(2);
    assert!(is_closed(&older));
    let _newer = welcome(&by_hand, 4, 1000);
    assert_eq!(one.wait_up(2), Incarnation(4));
    one.stop();
}

#[test]
fn a_peer_that_calls_is_dialled_at_once() {
    let listeners = listeners(2);
    let addresses = addresses(&listeners);
    let mut listeners = listeners.into_iter();
    let patient = Duration::from_secs(600);
    let slow = Config { redial_delay_min: patient, redial_delay_max: patient, ..config(1, 1, &addresses) };
    let own = listeners.next().unwrap();
    // No replica listens there at first.
    drop(listeners);
    let one = Replica::start(slow, own);
    thread::sleep(Duration::from_millis(100));
    let two = Config { listen: vec![addresses[1]], ..config(2, 1, &addresses) };
    let two = Transport::start(two, |_| Ok(())).unwrap();
    one.wait_up(2);
    one.stop();
    two.shutdown();
}

#[test]
fn shutdown_does_not_wait_for_peers() {
    let listeners = listeners(4);
    let addresses = addresses(&listeners);
    let mut listeners = listeners.into_iter();
    // Replica 2 takes nothing off its connection, replica 3 never answers a hello, and replica 4 has two
    // connections to this replica: one in the middle of its hello, and one in the middle of a frame.
    let one = Replica::start(config(1, 1, &addresses), listeners.next().unwrap());
    let _stalled = welcome(&listeners.next().unwrap(), 1, u32::MAX);
    one.wait_up(2);
    let body = encode(&vec![0; 1 << 20]);
    (0..40).for_each(|_| one.sender.send(ReplicaId(2), body.clone()));
    let mut inbound = join(one.address, 4, 1, 1);
    inbound.write_all(&frame(&[0; 100_000])[..50_000]).unwrap();
    let mut hesitant = TcpStream::connect(one.address).unwrap();
    hesitant.write_all(&hello(CLUSTER, 4, 1, 1)[..10]).unwrap();
    eventually("the sender is stuck", || {
        let before = one.metrics(2);
        thread::sleep(Duration::from_millis(50));
        let after = one.metrics(2);
        after.queue_frames > 0 && after.frames_sent == before.frames_sent
    });
    one.stop();
    assert!(is_closed(&inbound) && is_closed(&hesitant));
}

#[test]
fn a_peer_that_takes_nothing_is_given_up() {
    let (one, by_hand) = one_of_two(|config| Config { silence_max: Duration::from_millis(300), ..config });
    let _stalled = welcome(&by_hand, 1, u32::MAX);
    one.wait_up(2);
    let started = Instant::now();
    let body = encode(&vec![0; 1 << 20]);
    (0..40).for_each(|_| one.sender.send(ReplicaId(2), body.clone()));
    one.wait_down(2);
    assert!(started.elapsed() >= Duration::from_millis(250));
    one.stop();
}

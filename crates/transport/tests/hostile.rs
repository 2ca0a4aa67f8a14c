//! Strangers, faulty peers and attackers: each costs one connection, and the other connections go on.

mod common;

use std::{
    io::Write,
    net::TcpStream,
    time::{Duration, Instant},
};

use common::{
    CLUSTER, Replica, UNREADABLE, addresses, call, cluster, config, eventually, frame, frame_with, hello,
    one_of_two,
};
use common::{is_closed, join, listeners, sealed, verdict, welcome, welcome_born};
use synod_transport::{Config, Event};
use synod_wire::ClusterId;

/// Replica 2 of three, with a connection from replica 3 that must survive whatever happens to other connections.
struct Victim {
    replica: Replica,
    witness: TcpStream,
    _others: Vec<std::net::TcpListener>,
}

impl Victim {
    fn new(change: impl FnOnce(Config) -> Config) -> Victim {
        let mut others = listeners(3);
        let addresses = addresses(&others);
        let own = others.remove(1);
        let replica = Replica::start(change(config(2, 1, &addresses)), own);
        let witness = join(replica.address, 3, 2, 1);
        Victim { replica, witness, _others: others }
    }

    fn assert_unharmed(mut self) {
        self.witness.write_all(&frame(b"still here")).unwrap();
        assert_eq!(self.replica.wait_received(3), "still here");
        self.replica.stop();
    }
}

#[test]
fn garbage_instead_of_a_hello() {
    let victim = Victim::new(|config| config);
    let mut http = TcpStream::connect(victim.replica.address).unwrap();
    http.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    assert!(is_closed(&http));

    let mut damaged = hello(CLUSTER, 1, 2, 1);
    damaged[20] ^= 1;
    let mut stream = TcpStream::connect(victim.replica.address).unwrap();
    stream.write_all(&damaged).unwrap();
    assert!(is_closed(&stream));
    victim.assert_unharmed();
}

#[test]
fn garbage_one_byte_at_a_time() {
    let victim = Victim::new(|config| config);
    let mut stream = TcpStream::connect(victim.replica.address).unwrap();
    stream.set_nodelay(true).unwrap();
    // The call begins well, so it is not the first byte that betrays it.
    for byte in b"SYNX and more".iter().cycle().take(2000) {
        if stream.write_all(&[*byte]).is_err() {
            break;
        }
    }
    assert!(is_closed(&stream));

    let mut stream = join(victim.replica.address, 1, 2, 1);
    stream.set_nodelay(true).unwrap();
    for byte in b"SYNOPSIS".iter().cycle().take(2000) {
        if stream.write_all(&[*byte]).is_err() {
            break;
        }
    }
    assert!(is_closed(&stream));
    victim.assert_unharmed();
}

#[test]
fn refusals_carry_their_reason() {
    let victim = Victim::new(|config| config);
    let of_versions = |oldest, newest| {
        let mut hello = hello(CLUSTER, 1, 2, 1);
        (hello[4], hello[8]) = (newest, oldest);
        hello.truncate(hello.len() - 4);
        sealed(hello)
    };
    let cases = [
        (1, of_versions(9, 9)),
        // This hello names no range of versions.
        (1, of_versions(2, 2)),
        (2, hello(ClusterId(0xbad), 1, 2, 1)),
        (3, hello(CLUSTER, 9, 2, 1)),
        (3, hello(CLUSTER, 2, 2, 1)),
        (4, hello(CLUSTER, 1, 3, 1)),
        // Replica 3 was seen in its incarnation 1.
        (5, hello(CLUSTER, 3, 2, 0)),
    ];
    for (reason, hello) in cases {
        let (stream, verdict) = call(victim.replica.address, &hello);
        assert_eq!(verdict, reason);
        assert!(is_closed(&stream));
    }
    victim.assert_unharmed();
}

#[test]
fn bad_frames_close_the_connection() {
    let victim = Victim::new(|config| Config { frame_bytes_max: 1000, ..config });
    let body_crc = crc32fast::hash(b"hello");
    let mut damaged_header = frame(b"hello");
    damaged_header[9] ^= 1;
    let mut damaged_body = frame(b"hello");
    *damaged_body.last_mut().unwrap() ^= 1;
    let cases = [
        ("magic", b"NOPE, no frame".to_vec()),
        ("header checksum", damaged_header),
        ("body checksum", damaged_body),
        ("oversized", frame_with(CLUSTER, u32::MAX, 0, b"")),
        ("just above the bound", frame_with(CLUSTER, 1001, 0, b"")),
        ("other cluster", frame_with(ClusterId(1), 5, body_crc, b"hello")),
    ];
    for (what, bytes) in cases {
        let mut stream = join(victim.replica.address, 1, 2, 1);
        stream.write_all(&frame(b"good")).unwrap();
        stream.write_all(&bytes).unwrap();
        stream.write_all(&frame(b"never delivered")).unwrap();
        assert!(is_closed(&stream), "{what}");
        assert_eq!(victim.replica.wait_received(1), "good", "{what}");
    }
    eventually("the last bad connection is gone", || !victim.replica.metrics(1).receiving);
    assert_eq!(victim.replica.metrics(1).frames_received, 6);
    victim.assert_unharmed();
}

#[test]
fn a_body_that_makes_no_sense_ends_its_session_and_nothing_after_it_is_delivered() {
    let victim = Victim::new(|config| config);
    let mut stream = join(victim.replica.address, 1, 2, 1);
    for body in [b"before".as_slice(), UNREADABLE, b"after it"] {
        stream.write_all(&frame(body)).unwrap();
    }
    assert!(is_closed(&stream));
    assert_eq!(victim.replica.wait_received(1), "before");
    // The peer may start a new session.
    let mut again = join(victim.replica.address, 1, 2, 1);
    again.write_all(&frame(b"again")).unwrap();
    assert_eq!(victim.replica.wait_received(1), "again");
    assert_eq!(victim.replica.metrics(1).frames_refused, 1);
    victim.assert_unharmed();
}

#[test]
fn a_frame_cut_short_is_not_delivered() {
    let victim = Victim::new(|config| config);
    let whole = frame(&[1; 100_000]);
    for cut in [1, 27, 28, 5000, whole.len() - 1] {
        let mut stream = join(victim.replica.address, 1, 2, 1);
        stream.write_all(&whole[..cut]).unwrap();
    }
    let mut stream = join(victim.replica.address, 1, 2, 1);
    stream.write_all(&whole).unwrap();
    assert_eq!(victim.replica.wait_received(1).len(), 100_000);
    assert_eq!((victim.replica.metrics(1).frames_received, victim.replica.metrics(1).frames_refused), (1, 0));
    victim.assert_unharmed();
}

#[test]
fn silent_callers_are_dropped_and_bounded() {
    let victim = Victim::new(|config| Config {
        handshake_timeout: Duration::from_millis(300),
        inbound_connections_max: 4,
        ..config
    });
    let started = Instant::now();
    let silent: Vec<_> = (0..20).map(|_| TcpStream::connect(victim.replica.address).unwrap()).collect();
    // The witness takes one place; of the others, the newest three have a place.
    for stream in silent.iter().take(17) {
        assert!(is_closed(stream));
    }
    assert!(silent.iter().all(is_closed));
    assert!(started.elapsed() >= Duration::from_millis(300), "some were given the time");
    // Their places are free again.
    join(victim.replica.address, 1, 2, 1);
    victim.assert_unharmed();
}

#[test]
fn silent_callers_keep_no_member_out() {
    let victim = Victim::new(|config| Config {
        handshake_timeout: Duration::from_secs(600),
        inbound_connections_max: 4,
        ..config
    });
    let mut silent = Vec::new();
    for incarnation in 1..=10 {
        // Some connections send nothing, some send half of a call.
        for said in [0, 11, 30].map(|length| hello(CLUSTER, 1, 2, 1)[..length].to_vec()) {
            let mut stream = TcpStream::connect(victim.replica.address).unwrap();
            stream.write_all(&said).unwrap();
            silent.push(stream);
        }
        join(victim.replica.address, 1, 2, incarnation);
    }
    victim.assert_unharmed();
}

#[test]
fn data_from_the_wrong_side_ends_the_session() {
    let (replica, by_hand) = one_of_two(|config| config);
    let mut stream = welcome(&by_hand, 1, 1000);
    replica.wait_up(2);
    stream.write_all(b"x").unwrap();
    replica.wait_down(2);
    welcome(&by_hand, 1, 1000);
    replica.wait_up(2);
    replica.stop();
}

#[test]
fn a_listener_that_answers_a_dial_with_garbage_is_not_a_peer() {
    let listeners = listeners(2);
    let addresses = addresses(&listeners);
    let mut listeners = listeners.into_iter();
    // After some answers, the replica waits for the rest.
    let config = Config { handshake_timeout: Duration::from_millis(500), ..config(1, 1, &addresses) };
    let replica = Replica::start(config, listeners.next().unwrap());
    let by_hand = listeners.next().unwrap();
    let mut damaged_verdict = welcome_born(1, 1000, 5);
    damaged_verdict[8] ^= 1;
    let mut damaged_birth = welcome_born(1, 1000, 5);
    damaged_birth[24] ^= 1;
    let replies = [
        b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(),
        damaged_verdict,
        damaged_birth,
        verdict(2, 1, 0),
        verdict(77, 1, 0),
    ];
    for reply in replies {
        let (mut stream, _) = by_hand.accept().unwrap();
        stream.write_all(&reply).unwrap();
        let mut rest = Vec::new();
        // What comes is the hello, then the end of the stream. A reset is as good.
        _ = std::io::Read::read_to_end(&mut stream, &mut rest);
        assert!(replica.events.try_recv().is_err(), "no session began");
    }
    // A correct answer is still welcome, but not from a life that is earlier than one seen before.
    drop(welcome(&by_hand, 7, 1000));
    assert_eq!(replica.wait_up(2).0, 7);
    replica.wait_down(2);
    assert!(is_closed(&welcome(&by_hand, 6, 1000)));
    let _stream = welcome(&by_hand, 8, 1000);
    assert_eq!(
        replica.next(),
        Event::Up { peer: synod_wire::ReplicaId(2), incarnation: synod_wire::Incarnation(8) }
    );
    replica.stop();
}

#[test]
fn random_bytes_on_welcomed_connections() {
    let victim = Victim::new(|config| config);
    let mut random = fastrand::Rng::with_seed(7);
    for _ in 0..200 {
        let mut stream = join(victim.replica.address, 1, 2, 1);
        let mut bytes = frame(b"hello");
        let len = random.usize(0..60);
        bytes.extend((0..len).map(|_| random.u8(..)));
        let flip = random.usize(0..20);
        bytes[flip] ^= random.u8(1..);
        // The replica may close the connection before all is written.
        _ = stream.write_all(&bytes);
    }
    eventually("all are closed", || !victim.replica.metrics(1).receiving);
    assert_eq!(victim.replica.metrics(1).frames_received, 0);
    victim.assert_unharmed();
}

#[test]
fn messages_that_no_peer_can_take_are_dropped_and_counted() {
    let replicas = cluster(2);
    replicas[0].send(9, b"nobody");
    replicas[0].send(1, b"myself");
    assert_eq!(replicas[0].transport.metrics().frames_unroutable, 2);
    replicas[0].send(2, b"fine");
    assert_eq!(replicas[1].wait_received(1), "fine");
}

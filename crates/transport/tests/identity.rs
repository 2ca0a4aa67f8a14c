//! Which callers are recognised, and what strangers may ask.

mod common;

use std::{
    collections::BTreeMap,
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use bytes::Bytes;
use common::{
    CLUSTER, Gate, HELLO_BYTES, Replica, WAIT_MAX, addresses, birth, call, config, encode, eventually, frame,
    hello, hello_born, inquiry, inquiry_in, is_closed, join, listeners, nonce, sealed, verdict, welcome_born,
};
use synod_transport::{
    ANSWER_BYTES_MAX, Config, Event, InquireError, Meeting, ObstacleKind, Peer, Unrecognised, VERSION,
    VERSION_OLDEST, inquire,
};
use synod_wire::{
    Acquaintance, ClusterId, GROUPS_SINCE, GroupId, Incarnation, Introduction, Lsn, Mismatch, ReplicaId,
    Stranger,
};

type Book = Arc<Mutex<BTreeMap<u64, u64>>>;

/// Remembers the first birth that each replica shows, and recognises no other.
fn recognising(config: Config) -> (Config, Book) {
    let book = Book::default();
    let births = Arc::clone(&book);
    let recognise = move |id: ReplicaId, who: &Introduction, _| {
        let known = *births.lock().unwrap().entry(id.0).or_insert(who.birth);
        let known = Acquaintance { birth: known, ..Acquaintance::first(who) };
        known.meet(who).map_or_else(|stranger| Err(stranger.into()), |_| Ok(()))
    };
    (Config { recognise: Arc::new(recognise), ..config }, book)
}

fn accept(listener: &TcpListener, birth: u64) -> TcpStream {
    let (mut stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
    stream.read_exact(&mut [0; HELLO_BYTES]).unwrap();
    stream.write_all(&welcome_born(1, 1000, birth)).unwrap();
    stream
}

#[test]
fn each_learns_the_birth_of_the_other() {
    let all = listeners(2);
    let addresses = addresses(&all);
    let mut all = all.into_iter();
    let (first, first_book) = recognising(config(1, 1, &addresses));
    let (second, second_book) = recognising(config(2, 1, &addresses));
    let one = Replica::start(first, all.next().unwrap());
    let two = Replica::start(second, all.next().unwrap());
    one.wait_up(2);
    two.wait_up(1);
    assert_eq!(*first_book.lock().unwrap(), BTreeMap::from([(2, birth(2))]));
    assert_eq!(*second_book.lock().unwrap(), BTreeMap::from([(1, birth(1))]));
    one.stop();
    two.stop();
}

#[test]
fn a_replica_that_lost_its_data_is_refused_in_both_directions() {
    let all = listeners(2);
    let addresses = addresses(&all);
    let mut all = all.into_iter();
    let (config, book) = recognising(config(1, 1, &addresses));
    let one = Replica::start(config, all.next().unwrap());
    let by_hand = all.next().unwrap();
    let session = accept(&by_hand, birth(2));
    one.wait_up(2);
    let mut inbound = join(one.address, 2, 1, 1);

    // A high incarnation does not help, and the sessions with the known replica go on.
    let (stream, reason) = call(one.address, &hello_born(CLUSTER, 2, 1, 1000, 7));
    assert_eq!(reason, 6);
    assert!(is_closed(&stream));
    inbound.write_all(&frame(b"I am")).unwrap();
    assert_eq!(one.wait_received(2), "I am");
    assert!(one.metrics(2).connected());

    // Now the other replica answers a dial.
    drop(session);
    one.wait_down(2);
    assert!(is_closed(&accept(&by_hand, 7)));
    let _session = accept(&by_hand, birth(2));
    one.wait_up(2);

    // Once the old replica is replaced (here: forgotten), the new one is recognised, although its lives are
    // counted from 1, and the old one is not recognised any more.
    book.lock().unwrap().clear();
    let (_newer, reason) = call(one.address, &hello_born(CLUSTER, 2, 1, 1, 7));
    assert_eq!(reason, 0);
    one.wait_down(2);
    assert!(is_closed(&inbound), "the newest connection is the one that counts");
    let _session = accept(&by_hand, 7);
    one.wait_up(2);
    let (_, reason) = call(one.address, &hello(CLUSTER, 2, 1, 9));
    assert_eq!(reason, 6);
    one.stop();
}

#[test]
fn replicas_of_different_clusters_tell_why_they_have_no_session_and_that_the_other_runs() {
    let all = listeners(2);
    let addresses = addresses(&all);
    let mut all = all.into_iter();
    let one = Replica::start(config(1, 1, &addresses), all.next().unwrap());
    let other = Config { cluster: ClusterId(0xbad), ..config(2, 1, &addresses) };
    let two = Replica::start(other, all.next().unwrap());
    for (replica, peer) in [(&one, 2), (&two, 1)] {
        let kind = || replica.metrics(peer).obstacle.map(|obstacle| obstacle.kind);
        eventually("the obstacle is told", || kind() == Some(ObstacleKind::OtherCluster));
        eventually("the other one calls", || replica.metrics(peer).calls());
        let why = replica.metrics(peer).obstacle.unwrap().why;
        assert!(why.contains("different clusters: --initial-cluster-token"), "{why}");
    }
    one.stop();
    two.stop();
}

#[test]
fn a_replica_that_forgot_what_it_told_is_told_so() {
    let all = listeners(2);
    let addresses = addresses(&all);
    let mut all = all.into_iter();
    let first = config(1, 1, &addresses);
    // Replica 1 remembers a life that said more than the one that calls.
    let known = Acquaintance {
        birth: birth(2),
        incarnation: Incarnation(3),
        nonce: nonce(3, birth(2)),
        told: Lsn(90),
    };
    let recognise = move |_: ReplicaId, who: &Introduction, _: Meeting| {
        known.meet(who).map_or_else(|stranger| Err(Unrecognised::Stranger(stranger)), |_| Ok(()))
    };
    let one = Replica::start(Config { recognise: Arc::new(recognise), ..first }, all.next().unwrap());
    let (tell, told) = mpsc::channel();
    let mut second = config(2, 4, &addresses);
    second.durable.store(80, Relaxed);
    let tell = Mutex::new(tell);
    second.outlived = Arc::new(move |by, stranger| _ = tell.lock().unwrap().send((by, *stranger)));
    let two = Replica::start(second, all.next().unwrap());
    let expected = (ReplicaId(1), Stranger { mismatch: Mismatch::Shorter, known });
    assert_eq!(told.recv_timeout(WAIT_MAX).unwrap(), expected);
    assert!(!one.metrics(2).connected() && !two.metrics(1).connected());
    two.stop();
    one.stop();
}

#[test]
fn peers_know_how_far_a_log_is_durable_from_frames_and_from_silence() {
    let all = listeners(2);
    let addresses = addresses(&all);
    let mut all = all.into_iter();
    let first = config(1, 1, &addresses);
    let durable = Arc::clone(&first.durable);
    durable.store(5, Relaxed);
    let one = Replica::start(first, all.next().unwrap());
    let two = Replica::start(config(2, 1, &addresses), all.next().unwrap());
    one.wait_up(2);
    two.wait_up(1);
    let heard = |lsn| vec![(ReplicaId(1), nonce(1, birth(1)), Lsn(lsn))];
    eventually("the introduction counts", || two.sender.heard() == heard(5));
    durable.store(7, Relaxed);
    one.send(2, b"voted");
    two.wait_received(1);
    assert_eq!(two.sender.heard(), heard(7));
    durable.store(9, Relaxed);
    eventually("silence tells too", || two.sender.heard() == heard(9));
    one.stop();
    two.stop();
}

#[test]
fn a_session_speaks_the_highest_version_that_both_know() {
    let (old, new) = (VERSION, VERSION + 1);
    for (first, second, agreed) in [(old, new, old), (new, old, old), (new, new, new)] {
        let all = listeners(2);
        let addresses = addresses(&all);
        let mut all = all.into_iter();
        let speaking = |me, newest| Config { versions: VERSION_OLDEST..=newest, ..config(me, 1, &addresses) };
        let one = Replica::start(speaking(1, first), all.next().unwrap());
        let two = Replica::start(speaking(2, second), all.next().unwrap());
        assert_eq!(one.sender.version(ReplicaId(2)), VERSION_OLDEST);
        one.wait_up(2);
        two.wait_up(1);
        assert_eq!(one.sender.version(ReplicaId(2)), agreed);
        // A message of a version that is not spoken is lost, and the session goes on; the same holds for a
        // message of a group in a version without groups.
        let without = GROUPS_SINCE - 1;
        one.sender.send_in(without, GroupId(1), &[ReplicaId(2)], encode(b"of a group"));
        one.sender.send_in(agreed + 1, GroupId::FIRST, &[ReplicaId(2)], encode(b"too new"));
        one.sender.send_in(agreed, GroupId::FIRST, &[ReplicaId(2)], encode(b"hello"));
        one.sender.flush();
        let (version, body) = two.wait_for(|event| match event {
            Event::Received { version, body, .. } => Some((*version, body.clone())),
            _ => None,
        });
        assert_eq!((version, &body[..]), (agreed, b"hello".as_slice()));
        one.stop();
        two.stop();
    }
    // The two have no version in common: each learns what the other speaks, and neither is harmed.
    let all = listeners(2);
    let addresses = addresses(&all);
    let mut all = all.into_iter();
    let one = Replica::start(config(1, 1, &addresses), all.next().unwrap());
    let later = Config { versions: new..=new, ..config(2, 1, &addresses) };
    let two = Replica::start(later, all.next().unwrap());
    thread::sleep(Duration::from_millis(300));
    assert!(!one.metrics(2).connected() && !two.metrics(1).connected());
    one.stop();
    two.stop();
}

#[test]
fn a_replica_is_told_whose_messages_come_with_each_life_of_a_peer() {
    let all = listeners(2);
    let addresses = addresses(&all);
    let mut all = all.into_iter();
    let one = Replica::start(config(1, 1, &addresses), all.next().unwrap());
    let at = all.next().unwrap();
    for life in 4..6 {
        let two = Replica::start(config(2, life, &addresses), at.try_clone().unwrap());
        two.wait_up(1);
        two.send(1, b"voted");
        one.wait_received(2);
        two.stop();
    }
    let met = |life| (ReplicaId(2), birth(2), Incarnation(life), VERSION);
    assert_eq!(*one.met.lock().unwrap(), [met(4), met(5)]);
    one.stop();
}

#[test]
fn a_peer_that_does_not_know_the_changes_of_the_group_is_refused() {
    let all = listeners(2);
    let addresses = addresses(&all);
    let mut all = all.into_iter();
    let recognise = |_: ReplicaId, _: &Introduction, meeting: Meeting| {
        if meeting.version < VERSION { Err(Unrecognised::Outdated(VERSION)) } else { Ok(()) }
    };
    let one = Config { recognise: Arc::new(recognise), ..config(1, 1, &addresses) };
    let one = Replica::start(one, all.next().unwrap());
    let at = all.next().unwrap();
    let old = Config { versions: VERSION_OLDEST..=VERSION - 1, ..config(2, 1, &addresses) };
    let old = Replica::start(old, at.try_clone().unwrap());
    thread::sleep(Duration::from_millis(300));
    assert!(!one.metrics(2).connected() && !old.metrics(1).connected());
    assert!(one.met.lock().unwrap().is_empty());
    old.stop();
    let later = Replica::start(config(2, 2, &addresses), at);
    one.wait_up(2);
    later.wait_up(1);
    later.stop();
    one.stop();
}

#[test]
fn strangers_are_not_asked_about() {
    let all = listeners(2);
    let addresses = addresses(&all);
    let (config, book) = recognising(config(1, 1, &addresses));
    let one = Replica::start(config, all.into_iter().next().unwrap());
    for (reason, hello) in [
        (2, hello(synod_wire::ClusterId(1), 2, 1, 1)),
        (3, hello(CLUSTER, 9, 1, 1)),
        (4, hello(CLUSTER, 2, 3, 1)),
    ] {
        assert_eq!(call(one.address, &hello).1, reason);
    }
    assert!(book.lock().unwrap().is_empty(), "nobody can fill the book with births of others");
    one.stop();
}

/// A replica without peers that answers with `answer`.
fn answering(answer: impl Fn() -> Bytes + Send + Sync + 'static) -> Replica {
    let config = Config { answer: Arc::new(answer), ..config(1, 1, &[]) };
    Replica::start(config, listeners(1).remove(0))
}

fn ask(address: SocketAddr) -> Result<Bytes, InquireError> {
    inquire(&address.to_string(), None, WAIT_MAX)
}

#[test]
fn an_inquiry_is_answered_with_what_holds_now() {
    let asked = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&asked);
    let replica = answering(move || Bytes::from(vec![5; counter.fetch_add(1, Relaxed) * ANSWER_BYTES_MAX]));
    assert_eq!(ask(replica.address).unwrap(), "");
    assert!(ask(replica.address).unwrap() == vec![5; ANSWER_BYTES_MAX]);
    // This answer is larger than any inquirer takes.
    let error = ask(replica.address).unwrap_err();
    assert!(matches!(&error, InquireError::NoAnswer { .. }), "{error}");
    assert!(error.to_string().contains("too large"), "{error}");
    assert!(replica.events.try_recv().is_err(), "an inquiry is no event");
    replica.stop();
}

#[test]
fn an_inquirer_needs_no_cluster_and_becomes_no_peer() {
    let replica = answering(|| Bytes::from_static(b"members"));
    let mut stream = TcpStream::connect(replica.address).unwrap();
    stream.write_all(&inquiry()).unwrap();
    let mut bytes = vec![0; 24 + 8 + 7];
    stream.read_exact(&mut bytes).unwrap();
    assert_eq!(bytes[..24], verdict(0, 1, 64 << 20));
    assert_eq!(bytes[24..28], 7_u32.to_le_bytes());
    let crc = crc32fast::hash(&[&7_u32.to_le_bytes(), b"members".as_slice()].concat());
    assert_eq!(bytes[28..32], crc.to_le_bytes());
    assert_eq!(&bytes[32..], b"members");
    assert!(is_closed(&stream));
    assert!(replica.events.try_recv().is_err());

    let mut damaged = inquiry();
    damaged[9] ^= 1;
    let mut stream = TcpStream::connect(replica.address).unwrap();
    stream.write_all(&damaged).unwrap();
    assert!(is_closed(&stream));
    // A call of a kind that there is not.
    let mut unknown = inquiry();
    unknown.truncate(unknown.len() - 4);
    unknown[6] = 2;
    let unknown = sealed(unknown);
    let mut stream = TcpStream::connect(replica.address).unwrap();
    stream.write_all(&unknown).unwrap();
    assert!(is_closed(&stream));
    replica.stop();
}

#[test]
fn an_inquirer_that_does_not_read_is_dropped() {
    let all = listeners(2);
    let addresses = addresses(&all);
    let config = Config {
        answer: Arc::new(|| Bytes::from(vec![5; ANSWER_BYTES_MAX])),
        handshake_timeout: Duration::from_millis(500),
        ..config(1, 1, &addresses)
    };
    let replica = Replica::start(config, all.into_iter().next().unwrap());
    let mut witness = join(replica.address, 2, 1, 1);
    let silent: Vec<_> = (0..50)
        .map(|_| {
            let mut stream = TcpStream::connect(replica.address).unwrap();
            stream.write_all(&inquiry()).unwrap();
            stream
        })
        .collect();
    witness.write_all(&frame(b"still here")).unwrap();
    assert_eq!(replica.wait_received(2), "still here");
    // Whatever they still got, each of them ends, and other inquiries are answered again.
    for mut stream in silent {
        stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
        _ = std::io::copy(&mut stream, &mut std::io::sink());
    }
    eventually("there is room again", || ask(replica.address).is_ok());
    replica.stop();
}

#[test]
fn inquiries_are_bounded() {
    let (enter, entered) = mpsc::channel();
    let gate = Arc::new(Gate::default());
    let door = Arc::clone(&gate);
    let replica = answering(move || {
        _ = enter.send(());
        door.pass();
        Bytes::from_static(b"at last")
    });
    let address = replica.address;
    thread::scope(|scope| {
        let waiting: Vec<_> = (0..8).map(|_| scope.spawn(move || ask(address))).collect();
        (0..8).for_each(|_| entered.recv_timeout(WAIT_MAX).unwrap());
        let error = ask(address).unwrap_err();
        assert!(error.to_string().contains("ask again"), "{error}");
        gate.open();
        for waiting in waiting {
            assert_eq!(waiting.join().unwrap().unwrap(), "at last");
        }
    });
    assert_eq!(ask(address).unwrap(), "at last");
    replica.stop();
}

#[test]
fn an_inquiry_fails_with_a_reason_and_in_time() {
    for address in ["", "host", ":1", "host:0", "host:x"] {
        assert!(matches!(inquire(address, None, WAIT_MAX), Err(InquireError::Address(_))), "{address}");
    }
    let listener = listeners(1).remove(0);
    let address = listener.local_addr().unwrap().to_string();
    let started = Instant::now();
    let error = inquire(&address, None, Duration::from_millis(300)).unwrap_err();
    assert!(matches!(error, InquireError::Timeout { .. }), "{error}");
    assert!((250..2000).contains(&started.elapsed().as_millis()));
    drop(listener.accept().unwrap());

    let ok = verdict(0, 1, 1000);
    let with = |length: u32, crc: u32, bytes: &[u8]| {
        [ok.as_slice(), &length.to_le_bytes(), &crc.to_le_bytes(), bytes].concat()
    };
    let older = format!("versions 2 to {VERSION_OLDEST}");
    let cases = [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(), "not a Synod replica"),
        (verdict(1, 1, 0), "another version"),
        ([verdict(1, 1, 0), sealed(b"\x02\0\x02\0".to_vec())].concat(), older.as_str()),
        (verdict(77, 1, 0), "reason 77"),
        (with(u32::MAX, 0, b""), "exceeds the bound"),
        (with(3, 12345, b"abc"), "checksum"),
        (with(30, 0, b"abc"), "closed"),
        (ok[..10].to_vec(), "closed"),
        (Vec::new(), "closed"),
    ];
    for (reply, expected) in cases {
        let inquirer = {
            let address = address.clone();
            thread::spawn(move || inquire(&address, None, WAIT_MAX))
        };
        let (mut stream, _) = listener.accept().unwrap();
        let mut asked = [0; 16];
        stream.read_exact(&mut asked).unwrap();
        assert_eq!(asked[..], inquiry_in(VERSION));
        stream.write_all(&reply).unwrap();
        drop(stream);
        let error = inquirer.join().unwrap().unwrap_err();
        assert!(matches!(error, InquireError::NoAnswer { .. }), "{error}");
        assert!(error.to_string().contains(expected), "{error}, not {expected}");
    }
    drop(listener);
    let error = inquire(&address, None, WAIT_MAX).unwrap_err();
    assert!(matches!(error, InquireError::Connect { .. }), "{error}");
}

#[test]
fn a_joining_replica_learns_the_cluster_and_is_welcome() {
    let all = listeners(2);
    let addresses = addresses(&all);
    let mut all = all.into_iter();
    // The owner of the transport decides what the answer is; here, its address.
    let answer = addresses[0].to_string();
    let first = Config { answer: Arc::new(move || answer.clone().into()), ..config(1, 1, &addresses[..1]) };
    let one = Replica::start(first, all.next().unwrap());
    let learnt = String::from_utf8(ask(one.address).unwrap().into()).unwrap();
    let peers = vec![Peer { id: ReplicaId(1), address: learnt }];
    let two = Replica::start(Config { peers, ..config(2, 1, &[]) }, all.next().unwrap());
    two.send(1, b"hello");
    // The replica calls before it is a peer, and is turned away until it is.
    thread::sleep(Duration::from_millis(50));
    let newcomer = Peer { id: ReplicaId(2), address: addresses[1].to_string() };
    one.transport.set_peers(vec![newcomer]).unwrap();
    one.wait_up(2);
    assert_eq!(one.wait_received(2), "hello");
    one.stop();
    two.stop();
}

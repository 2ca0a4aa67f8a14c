//! Who is recognised, and what strangers may ask.

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
    CLUSTER, PATIENCE, Replica, addresses, birth, call, config, eventually, frame, hello, hello_born,
    inquiry, is_closed, join, listeners, verdict, welcome_born,
};
use synod_transport::{ANSWER_BYTES_MAX, Config, InquireError, Peer, inquire};
use synod_wire::ReplicaId;

type Book = Arc<Mutex<BTreeMap<u64, u64>>>;

/// Remembers the first birth that each replica shows, and recognises no other.
fn recognising(config: Config) -> (Config, Book) {
    let book = Book::default();
    let births = Arc::clone(&book);
    let recognise =
        move |id: ReplicaId, birth: u64| *births.lock().unwrap().entry(id.0).or_insert(birth) == birth;
    (Config { recognise: Arc::new(recognise), ..config }, book)
}

fn accept(listener: &TcpListener, birth: u64) -> TcpStream {
    let (mut stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.read_exact(&mut [0; 52]).unwrap();
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

    // A high incarnation does not help, and the sessions with the one that is known go on.
    let (stream, reason) = call(one.address, &hello_born(CLUSTER, 2, 1, 1000, 7));
    assert_eq!(reason, 6);
    assert!(is_closed(&stream));
    inbound.write_all(&frame(b"I am")).unwrap();
    assert_eq!(one.wait_received(2), "I am");
    assert!(one.metrics(2).connected);

    // Now it answers a dial.
    drop(session);
    one.wait_down(2);
    assert!(is_closed(&accept(&by_hand, 7)));
    let _session = accept(&by_hand, birth(2));
    one.wait_up(2);

    // Once it is replaced (here: forgotten), the new one is recognised, although its lives are counted from 1, and
    // the old one is not any more.
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
    inquire(&address.to_string(), PATIENCE)
}

#[test]
fn an_inquiry_is_answered_with_what_holds_now() {
    let asked = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&asked);
    let replica = answering(move || Bytes::from(vec![5; counter.fetch_add(1, Relaxed) * ANSWER_BYTES_MAX]));
    assert_eq!(ask(replica.address).unwrap(), "");
    assert!(ask(replica.address).unwrap() == vec![5; ANSWER_BYTES_MAX]);
    // Larger than anybody takes.
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
    let mut unknown = inquiry();
    unknown[6] = 2;
    let mut stream = TcpStream::connect(replica.address).unwrap();
    stream.write_all(&unknown).unwrap();
    assert!(is_closed(&stream));
    replica.stop();
}

#[test]
fn whoever_inquires_without_reading_is_dropped() {
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
    // Whatever they still got, each comes to its end, and others are answered again.
    for mut stream in silent {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        _ = std::io::copy(&mut stream, &mut std::io::sink());
    }
    eventually("there is room again", || ask(replica.address).is_ok());
    replica.stop();
}

#[test]
fn inquiries_are_bounded() {
    let (enter, entered) = mpsc::channel();
    let open = Arc::new((Mutex::new(false), std::sync::Condvar::new()));
    let door = Arc::clone(&open);
    let replica = answering(move || {
        _ = enter.send(());
        drop(door.1.wait_while(door.0.lock().unwrap(), |open| !*open).unwrap());
        Bytes::from_static(b"at last")
    });
    let address = replica.address;
    thread::scope(|scope| {
        let waiting: Vec<_> = (0..8).map(|_| scope.spawn(move || ask(address))).collect();
        (0..8).for_each(|_| entered.recv_timeout(PATIENCE).unwrap());
        let error = ask(address).unwrap_err();
        assert!(error.to_string().contains("ask again"), "{error}");
        *open.0.lock().unwrap() = true;
        open.1.notify_all();
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
        assert!(matches!(inquire(address, PATIENCE), Err(InquireError::Address(_))), "{address}");
    }
    let listener = listeners(1).remove(0);
    let address = listener.local_addr().unwrap().to_string();
    let started = Instant::now();
    let error = inquire(&address, Duration::from_millis(300)).unwrap_err();
    assert!(matches!(error, InquireError::Timeout { .. }), "{error}");
    assert!((250..2000).contains(&started.elapsed().as_millis()));
    drop(listener.accept().unwrap());

    let ok = verdict(0, 1, 1000);
    let with = |length: u32, crc: u32, bytes: &[u8]| {
        [ok.as_slice(), &length.to_le_bytes(), &crc.to_le_bytes(), bytes].concat()
    };
    let cases = [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(), "not a Synod replica"),
        (verdict(1, 1, 0), "another version"),
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
            thread::spawn(move || inquire(&address, PATIENCE))
        };
        let (mut stream, _) = listener.accept().unwrap();
        let mut asked = [0; 12];
        stream.read_exact(&mut asked).unwrap();
        assert_eq!(asked[..], inquiry());
        stream.write_all(&reply).unwrap();
        drop(stream);
        let error = inquirer.join().unwrap().unwrap_err();
        assert!(matches!(error, InquireError::NoAnswer { .. }), "{error}");
        assert!(error.to_string().contains(expected), "{error}, not {expected}");
    }
    drop(listener);
    let error = inquire(&address, PATIENCE).unwrap_err();
    assert!(matches!(error, InquireError::Connect { .. }), "{error}");
}

#[test]
fn one_that_joins_learns_whom_and_is_welcome() {
    let all = listeners(2);
    let addresses = addresses(&all);
    let mut all = all.into_iter();
    // The answer is what the node makes of it; here, its address.
    let answer = addresses[0].to_string();
    let first = Config { answer: Arc::new(move || answer.clone().into()), ..config(1, 1, &addresses[..1]) };
    let one = Replica::start(first, all.next().unwrap());
    let learnt = String::from_utf8(ask(one.address).unwrap().into()).unwrap();
    let peers = vec![Peer { id: ReplicaId(1), address: learnt }];
    let two = Replica::start(Config { peers, ..config(2, 1, &[]) }, all.next().unwrap());
    two.send(1, b"hello");
    // It calls before it is a peer, and is turned away until then.
    thread::sleep(Duration::from_millis(50));
    let newcomer = Peer { id: ReplicaId(2), address: addresses[1].to_string() };
    one.transport.set_peers(vec![newcomer]).unwrap();
    one.wait_up(2);
    assert_eq!(one.wait_received(2), "hello");
    one.stop();
    two.stop();
}

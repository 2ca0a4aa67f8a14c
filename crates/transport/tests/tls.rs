//! Peers over TLS: the same frames in the same order, and only peers.

mod common;

use std::{
    fmt::Write as _,
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    sync::{Arc, Mutex, Once},
    time::Duration,
};

use bytes::Bytes;
use common::{
    CLUSTER, Replica, WAIT_MAX, addresses, config, encode, eventually, frame, hello, listeners,
    without_threads,
};
use synod_tls::{
    Acceptor, Allowed, Connector, Identity, Policy, Trust,
    authority::{Authority, Wanted},
    rustls::{ClientConnection, pki_types::ServerName},
};
use synod_transport::{Config, Event, InquireError, Peer, Tls, inquire};
use synod_wire::ReplicaId;
use tracing::{
    Event as Logged, Metadata, Subscriber,
    field::{Field, Visit},
    span::{Attributes, Id, Record},
};

/// TLS of a member, or of somebody with this name and authority.
fn tls(authority: &Authority, name: &str, allowed: Allowed) -> Tls {
    let wanted = Wanted { file: name, common_name: name, ..Wanted::default() };
    tls_with(authority, &wanted, Trust::of(authority.certificate()).named(allowed))
}

fn tls_with(authority: &Authority, wanted: &Wanted<'_>, trust: Trust) -> Tls {
    let issued = authority.issue(wanted);
    let identity = Identity::of(issued.certificate, issued.key);
    Tls::of(
        Acceptor::new(identity.clone(), Some(trust.clone()), Policy::default(), &[]).unwrap(),
        Connector::new(Some(identity), Some(trust), Policy::default(), &[]).unwrap(),
    )
}

/// The settings of a replica that speaks TLS to all others.
fn secured(me: u64, incarnation: u64, addresses: &[SocketAddr], tls: Tls) -> Config {
    let mut config = config(me, incarnation, addresses);
    config.peers.iter_mut().for_each(|peer| peer.address.insert_str(0, "https://"));
    Config { tls: Some(tls), ..config }
}

/// Everything that is logged in this program.
static LOG: Mutex<String> = Mutex::new(String::new());

fn keep_the_log() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| tracing::subscriber::set_global_default(Keeper).unwrap());
}

fn wait_logged(text: &str) {
    let what = format!("{text:?} is logged");
    eventually(&what, || LOG.lock().unwrap().contains(text));
}

struct Keeper;

struct Message<'a>(&'a mut String);

impl Visit for Message<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" {
            writeln!(self.0, "{value:?}").unwrap();
        }
    }
}

impl Subscriber for Keeper {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Logged<'_>) {
        event.record(&mut Message(&mut LOG.lock().unwrap()));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Bodies of all sizes, from nothing to more than any buffer holds.
fn bodies() -> Vec<Vec<u8>> {
    let sizes = [0, 1, 100, 16 << 10, 1, 2, (16 << 10) + 1, 64 << 10, 3, 100_000, 5];
    let sizes = sizes.iter().cycle().take(60).chain(&[3 << 20, 7, 3 << 20]);
    sizes.zip(0..).map(|(&size, number)| vec![number; size]).collect()
}

fn frames_arrive_whole_and_in_order(tune: fn(Config) -> Config) {
    let authority = Authority::new();
    let listeners = listeners(3);
    let addresses = addresses(&listeners);
    let start = |(listener, id): (_, u64)| {
        let tls = tls(&authority, &format!("r{id}"), Allowed::All);
        Replica::start(tune(secured(id, 1, &addresses, tls)), listener)
    };
    let replicas: Vec<_> = listeners.into_iter().zip(1..).map(start).collect();
    // All of them first: to wait for one event passes over others, and so would lose what came before it.
    for replica in &replicas {
        for _ in 0..2 {
            replica.wait_for(|event| matches!(event, Event::Up { .. }).then_some(()));
        }
    }
    for (replica, me) in replicas.iter().zip(1_u64..) {
        for body in bodies() {
            let others: Vec<_> = (1..=3).filter(|&other| other != me).map(ReplicaId).collect();
            replica.sender.send_many(&others, encode(&body));
        }
    }
    for (replica, me) in replicas.iter().zip(1_u64..) {
        let mut expected = [bodies().into_iter(), bodies().into_iter(), bodies().into_iter()];
        for _ in 0..2 * bodies().len() {
            let (from, body): (u64, Bytes) = replica.wait_for(|event| match event {
                Event::Received { from, body, .. } => Some((from.0, body.clone())),
                _ => None,
            });
            assert_eq!(body, expected[from as usize - 1].next().unwrap(), "from {from} to {me}");
        }
    }
    // Small ones, one by one, which leave at once.
    for round in 0..200_u32 {
        replicas[0].send(2, &round.to_le_bytes());
        assert_eq!(replicas[1].wait_received(1), round.to_le_bytes()[..]);
        replicas[1].send(1, &round.to_le_bytes());
        assert_eq!(replicas[0].wait_received(2), round.to_le_bytes()[..]);
    }
    for (replica, me) in replicas.iter().zip(1_u64..) {
        let others = (1..=3).filter(|&other| other != me);
        assert!(
            others
                .map(|other| replica.metrics(other))
                .all(|peer| peer.sessions == 1 && peer.frames_dropped == 0)
        );
    }
    replicas.into_iter().for_each(Replica::stop);
}

#[test]
fn frames_arrive_whole_and_in_order_with_threads() {
    frames_arrive_whole_and_in_order(|config| config);
}

#[test]
fn frames_arrive_whole_and_in_order_without_threads() {
    frames_arrive_whole_and_in_order(without_threads);
}

#[test]
fn a_replica_that_comes_back_is_welcome_again() {
    let authority = Authority::new();
    let mut listeners = listeners(2);
    let addresses = addresses(&listeners);
    let settings = |me, life| secured(me, life, &addresses, tls(&authority, &format!("r{me}"), Allowed::All));
    let two = Replica::start(settings(2, 1), listeners.pop().unwrap());
    let one = Replica::start(without_threads(settings(1, 1)), listeners.pop().unwrap());
    assert_eq!(one.wait_up(2).0, 1);
    two.stop();
    one.wait_down(2);
    one.send(2, b"while it is away");
    let listener = std::net::TcpListener::bind(addresses[1]).unwrap();
    let two = Replica::start(settings(2, 2), listener);
    assert_eq!(one.wait_up(2).0, 2);
    assert_eq!(&two.wait_received(1)[..], b"while it is away");
    one.stop();
    two.stop();
}

/// Starts a replica that speaks TLS and knows one peer, which `other` starts with these addresses.
fn against(mine: Tls, other: impl FnOnce(&[SocketAddr]) -> Config) -> (Replica, Replica) {
    keep_the_log();
    let mut listeners = listeners(2);
    let addresses = addresses(&listeners);
    let two = Replica::start(other(&addresses), listeners.pop().unwrap());
    let one = Replica::start(secured(1, 1, &addresses, mine), listeners.pop().unwrap());
    (one, two)
}

fn have_nothing_to_do_with_each_other(one: Replica, two: Replica) {
    std::thread::sleep(Duration::from_millis(300));
    assert!(one.events.try_recv().is_err() && two.events.try_recv().is_err());
    assert_eq!((one.metrics(2).sessions, two.metrics(1).sessions), (0, 0));
    one.stop();
    two.stop();
}

#[test]
fn a_stranger_of_another_authority_is_no_peer() {
    let (authority, other) = (Authority::new(), Authority::new());
    let stranger = tls(&other, "r2", Allowed::All);
    let (one, two) =
        against(tls(&authority, "r1", Allowed::All), |addresses| secured(2, 1, addresses, stranger));
    wait_logged("comes from another authority than the ones that are trusted here");
    have_nothing_to_do_with_each_other(one, two);
}

#[test]
fn only_allowed_names_are_peers() {
    let authority = Authority::new();
    let members = || Allowed::CommonNames(vec!["r1".into(), "r2".into()]);
    let visitor = tls(&authority, "visitor", Allowed::All);
    let (one, two) = against(tls(&authority, "r1", members()), |addresses| secured(2, 1, addresses, visitor));
    wait_logged("the certificate of visitor has none of the allowed common names: r1, r2");
    have_nothing_to_do_with_each_other(one, two);
    let member = tls(&authority, "r2", members());
    let (one, two) = against(tls(&authority, "r1", members()), |addresses| secured(2, 1, addresses, member));
    one.wait_up(2);
    two.wait_up(1);
    one.stop();
    two.stop();
}

/// Otherwise a client with a certificate of the same authority could call as a member.
#[test]
fn a_member_shows_a_certificate_for_the_host_of_its_address() {
    keep_the_log();
    let authority = Authority::new();
    let wanted = |hosts| Wanted { file: "elsewhere", hosts, ..Wanted::default() };
    let with = |hosts| tls_with(&authority, &wanted(hosts), Trust::of(authority.certificate()));
    for hosts in [&["10.1.2.3", "client.example"][..], &[]] {
        // It is called at another address, where it would be refused as well: so it only calls here.
        let (one, two) =
            against(tls(&authority, "r1", Allowed::All), |addresses| secured(2, 1, addresses, with(hosts)));
        wait_logged("is not valid for 127.0.0.1, the host of https://127.0.0.1:");
        wait_logged("the caller's certificate is not valid for the host of its peer URL");
        have_nothing_to_do_with_each_other(one, two);
        LOG.lock().unwrap().clear();
    }
    let mut calls = tls(&authority, "r2", Allowed::All);
    calls.connector = with(&["client.example"]).connector;
    let mut unchecked = tls(&authority, "r1", Allowed::All);
    unchecked.checks_hosts = false;
    let (one, two) = against(unchecked, |addresses| secured(2, 1, addresses, calls));
    one.wait_up(2);
    two.wait_up(1);
    one.stop();
    two.stop();
}

/// The list of revoked certificates changes while a replica runs.
#[test]
fn a_member_whose_certificate_is_revoked_is_no_peer_any_more() {
    keep_the_log();
    let authority = Authority::new();
    let list = authority.revoke(&[7]);
    let member = |file, serial| {
        let wanted = Wanted { file, common_name: file, serial, ..Wanted::default() };
        tls_with(&authority, &wanted, Trust::of(authority.certificate()).without(&list))
    };
    let mut listeners = listeners(2);
    let addresses = addresses(&listeners);
    let (first, second) = (member("r1", 1), member("r2", 2));
    let settings = |life| secured(2, life, &addresses, second.clone());
    let two = Replica::start(settings(1), listeners.pop().unwrap());
    let one = Replica::start(secured(1, 1, &addresses, first.clone()), listeners.pop().unwrap());
    one.wait_up(2);
    two.wait_up(1);
    let calls = |at: usize, tls| inquire(&format!("https://{}", addresses[at]), Some(tls), WAIT_MAX);
    calls(0, &second).unwrap();
    calls(1, &first).unwrap();
    assert_eq!(authority.revoke(&[2]), list);
    eventually("who has a revoked certificate is refused", || calls(0, &second).is_err());
    eventually("who has a revoked certificate is called no more", || calls(1, &first).is_err());
    wait_logged("the certificate of the other side is revoked");
    // The connections that are there stay.
    two.send(1, b"still here");
    assert_eq!(&one.wait_received(2)[..], b"still here");
    let sessions = one.metrics(2).sessions;
    two.stop();
    one.wait_down(2);
    let two = Replica::start(settings(2), std::net::TcpListener::bind(addresses[1]).unwrap());
    std::thread::sleep(Duration::from_millis(500));
    assert!(one.events.try_recv().is_err() && two.events.try_recv().is_err());
    assert_eq!((one.metrics(2).sessions, two.metrics(1).sessions), (sessions, 0));
    one.stop();
    two.stop();
}

#[test]
fn a_peer_without_tls_and_one_with_it_say_what_is_wrong() {
    let authority = Authority::new();
    let (one, two) = against(tls(&authority, "r1", Allowed::All), |addresses| config(2, 1, addresses));
    // The one that listens with TLS is called without.
    wait_logged("the caller does not speak TLS, and this replica expects it at this address");
    wait_logged("the other side expects TLS");
    // The one that listens without is called with TLS.
    wait_logged("the caller speaks TLS, and this replica does not at this address");
    wait_logged(
        "the connection was closed during the handshake; does the other side expect its peers without TLS",
    );
    have_nothing_to_do_with_each_other(one, two);
    // One that has no certificate calls nobody with TLS.
    let (one, two) = against(tls(&authority, "r1", Allowed::All), |addresses| Config {
        tls: None,
        ..secured(2, 1, addresses, tls(&authority, "r2", Allowed::All))
    });
    wait_logged("its address asks for TLS (https://), and this replica has none for peers");
    have_nothing_to_do_with_each_other(one, two);
}

#[test]
fn an_address_may_take_both() {
    let authority = Authority::new();
    let listeners = listeners(2);
    let addresses = addresses(&listeners);
    drop(listeners);
    let both = |config: Config, at: usize| Config {
        listen: vec![addresses[at]],
        listen_tls: vec![addresses[at]],
        ..config
    };
    let tls_of = |me, hosts| {
        let wanted = Wanted { file: &format!("r{me}"), hosts, ..Wanted::default() };
        tls_with(&authority, &wanted, Trust::of(authority.certificate()))
    };
    // The second knows an address of the first that has no TLS: the certificate need not be for that host.
    let secured = secured(1, 1, &addresses, tls_of(1, &["n1.example"]));
    let plainly = Config { tls: Some(tls_of(2, &["127.0.0.1"])), ..config(2, 1, &addresses) };
    let start = |config| {
        let (tell, events) = std::sync::mpsc::channel();
        let sink = move |event| {
            _ = tell.send(event);
            Ok(())
        };
        (synod_transport::Transport::start(config, sink).unwrap(), events)
    };
    // The first calls with TLS, the second without.
    let (one, of_one) = start(both(secured, 0));
    let (two, of_two) = start(both(plainly, 1));
    for events in [of_one, of_two] {
        let is_up = |event: Event| matches!(event, Event::Up { .. });
        while !is_up(events.recv_timeout(WAIT_MAX).unwrap()) {}
    }
    one.shutdown();
    two.shutdown();
}

#[test]
fn an_inquiry_needs_tls_too() {
    let authority = Authority::new();
    let listener = listeners(1).pop().unwrap();
    let address = listener.local_addr().unwrap();
    let mine = tls(&authority, "r1", Allowed::All);
    let answering = Config {
        tls: Some(mine.clone()),
        answer: Arc::new(|| Bytes::from_static(b"the members")),
        peers: vec![Peer { id: ReplicaId(2), address: "https://127.0.0.1:1".into() }],
        ..config(1, 1, &[address])
    };
    let one = Replica::start(answering, listener);
    let secured = format!("https://{address}");
    let joining = tls(&authority, "joining", Allowed::All);
    assert_eq!(inquire(&secured, Some(&joining), WAIT_MAX).unwrap(), "the members");
    let error = inquire(&secured, None, WAIT_MAX).unwrap_err();
    assert!(matches!(error, InquireError::NoTls(_)), "{error}");
    let error = inquire(&address.to_string(), Some(&joining), WAIT_MAX).unwrap_err();
    assert!(error.to_string().contains("the other side expects TLS"), "{error}");
    let stranger = tls(&Authority::new(), "stranger", Allowed::All);
    inquire(&secured, Some(&stranger), WAIT_MAX).unwrap_err();
    one.stop();
}

/// Otherwise a client with a certificate of the same authority could ask for members and settings.
#[test]
fn an_inquiry_is_answered_to_a_certificate_for_the_host_of_a_member() {
    let authority = Authority::new();
    let listener = listeners(1).pop().unwrap();
    let address = listener.local_addr().unwrap();
    let answering = |listener, tls| {
        let to_come = "https://joins.example:2380".to_owned();
        let answering = Config {
            tls: Some(tls),
            answer: Arc::new(|| Bytes::from_static(b"the members")),
            peers: vec![Peer { id: ReplicaId(2), address: to_come }],
            ..config(1, 1, &[address])
        };
        Replica::start(answering, listener)
    };
    let one = answering(listener, tls(&authority, "r1", Allowed::All));
    let secured = format!("https://{address}");
    let asks = |hosts| {
        let wanted = Wanted { file: "asks", hosts, ..Wanted::default() };
        let shown = tls_with(&authority, &wanted, Trust::of(authority.certificate()));
        inquire(&secured, Some(&shown), WAIT_MAX)
    };
    assert_eq!(asks(&["joins.example"]).unwrap(), "the members");
    for hosts in [&["client.example"][..], &[]] {
        let refused = asks(hosts).unwrap_err().to_string();
        assert!(refused.contains("is not valid for the host of its peer URL"), "{refused}");
    }
    one.stop();
    let mut unchecked = tls(&authority, "r1", Allowed::All);
    unchecked.checks_hosts = false;
    let one = answering(std::net::TcpListener::bind(address).unwrap(), unchecked);
    assert_eq!(asks(&["client.example"]).unwrap(), "the members");
    one.stop();
}

/// More callers than there are places begin a handshake, and stop.
#[test]
fn a_handshake_that_stops_keeps_no_member_out() {
    let authority = Authority::new();
    let mut listeners = listeners(2);
    let addresses = addresses(&listeners);
    let settings = |me| secured(me, 1, &addresses, tls(&authority, &format!("r{me}"), Allowed::All));
    let few = Config { inbound_connections_max: 4, ..settings(1) };
    let (second, first) = (listeners.pop().unwrap(), listeners.pop().unwrap());
    let one = Replica::start(few, first);
    let stopped: Vec<_> = (0..12)
        .map(|_| {
            let mut stream = std::net::TcpStream::connect(addresses[0]).unwrap();
            std::io::Write::write_all(&mut stream, &[22, 3, 1, 2, 0, 1]).unwrap();
            stream
        })
        .collect();
    let two = Replica::start(settings(2), second);
    two.wait_up(1);
    one.wait_up(2);
    drop(stopped);
    one.stop();
    two.stop();
}

/// Bytes that are no handshake, of every length, cost their connection only.
#[test]
fn garbage_costs_its_connection() {
    let authority = Authority::new();
    let listener = listeners(1).pop().unwrap();
    let address = listener.local_addr().unwrap();
    let joining = Peer { id: ReplicaId(2), address: "https://127.0.0.1:1".into() };
    let mine = Some(tls(&authority, "r1", Allowed::All));
    let settings = Config { tls: mine, peers: vec![joining], ..config(1, 1, &[address]) };
    let one = Replica::start(settings, listener);
    let mut random = fastrand::Rng::with_seed(7);
    for round in 0..50 {
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
        let mut bytes: Vec<u8> = (0..5 + random.usize(..3000)).map(|_| random.u8(..)).collect();
        if round % 2 == 0 {
            bytes[..3].copy_from_slice(&[22, 3, 1]);
            bytes[3] %= 8;
        }
        _ = std::io::Write::write_all(&mut stream, &bytes);
        _ = stream.shutdown(std::net::Shutdown::Write);
        let mut heard = Vec::new();
        // The connection may be reset, since not all was read.
        match std::io::Read::read_to_end(&mut stream, &mut heard) {
            Ok(_) => {}
            Err(error) => assert_ne!(error.kind(), std::io::ErrorKind::WouldBlock, "it is closed"),
        }
    }
    let joining = tls(&authority, "joining", Allowed::All);
    inquire(&format!("https://{address}"), Some(&joining), WAIT_MAX).unwrap();
    one.stop();
}

/// Somebody with a certificate who speaks TLS by hand.
struct ByHand {
    socket: TcpStream,
    session: ClientConnection,
}

impl ByHand {
    /// Before the first word.
    fn new(address: SocketAddr, tls: &Tls) -> ByHand {
        let socket = TcpStream::connect(address).unwrap();
        socket.set_nodelay(true).unwrap();
        socket.set_read_timeout(Some(WAIT_MAX)).unwrap();
        let name = ServerName::try_from("127.0.0.1").unwrap();
        ByHand { socket, session: ClientConnection::new(tls.connector.config(), name).unwrap() }
    }

    /// After the handshake.
    fn secured(address: SocketAddr, tls: &Tls) -> ByHand {
        let mut caller = ByHand::new(address, tls);
        while caller.session.is_handshaking() {
            caller.session.complete_io(&mut caller.socket).unwrap();
        }
        caller
    }

    /// What the session has to say after `bytes`, as it travels.
    fn encrypted(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.session.writer().write_all(bytes).unwrap();
        let mut encrypted = Vec::new();
        while self.session.wants_write() {
            self.session.write_tls(&mut encrypted).unwrap();
        }
        encrypted
    }

    /// Whether the other side ends the connection, whatever it says before.
    fn is_closed(&mut self) -> bool {
        match self.socket.read_to_end(&mut Vec::new()) {
            Ok(_) => true,
            Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }
}

/// A replica that takes this for its peer 2.
fn called_by_hand(tune: fn(Config) -> Config) -> (Replica, Tls) {
    let authority = Authority::new();
    let mut listeners = listeners(2);
    let addresses = addresses(&listeners);
    let settings = secured(1, 1, &addresses, tls(&authority, "r1", Allowed::All));
    (Replica::start(tune(settings), listeners.remove(0)), tls(&authority, "r2", Allowed::All))
}

/// Bytes that come one by one, and make no whole record, do not stretch the time for a handshake.
#[test]
fn a_record_that_trickles_does_not_stretch_the_handshake() {
    let (one, tls) =
        called_by_hand(|config| Config { handshake_timeout: Duration::from_millis(300), ..config });
    let mut caller = ByHand::secured(one.address, &tls);
    let record = caller.encrypted(&[0; 10_000]);
    let refused = record.iter().take(2000).any(|&byte| {
        std::thread::sleep(Duration::from_millis(5));
        caller.socket.write_all(&[byte]).is_err()
    });
    assert!(refused, "ten seconds are more than the time for a handshake");
    one.stop();
}

fn a_goodbye_after_a_frame_ends_the_session(tune: fn(Config) -> Config) {
    let (one, tls) = called_by_hand(tune);
    let mut caller = ByHand::secured(one.address, &tls);
    let hello = caller.encrypted(&hello(CLUSTER, 2, 1, 1));
    caller.socket.write_all(&hello).unwrap();
    caller.session.writer().write_all(&frame(b"the last word")).unwrap();
    caller.session.send_close_notify();
    let last = caller.encrypted(b"");
    // The socket stays open on this side.
    caller.socket.write_all(&last).unwrap();
    assert_eq!(one.wait_received(2), "the last word");
    assert!(caller.is_closed());
    one.stop();
}

#[test]
fn a_goodbye_after_a_frame_ends_the_session_with_threads() {
    a_goodbye_after_a_frame_ends_the_session(|config| config);
}

#[test]
fn a_goodbye_after_a_frame_ends_the_session_without_threads() {
    a_goodbye_after_a_frame_ends_the_session(without_threads);
}

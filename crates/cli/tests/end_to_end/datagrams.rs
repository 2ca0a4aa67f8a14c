//! Replicas that talk to each other in datagrams: under load, killed, with a share of the datagrams lost.

use std::{
    net::{Ipv4Addr, SocketAddr, UdpSocket},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
};

use synod_lab::net::{Link, Relay};
use synod_testkit::{free_ports, processes::Cluster, until};
use synod_wire::ReplicaId;

use super::{
    ONE_AT_A_TIME, SMALL,
    commands::{SYNOD, done, page, refused, synod},
    finish, kills_of,
    load::Load,
    progress,
};

/// One datagram of this many is lost.
const LOST_ONE_OF: u64 = 10;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn multipaxos_over_datagrams_loses_nothing_acknowledged_by_kills_under_load() {
    kills("--protocol=multipaxos").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a minute, and datagrams do not know which protocol they carry: run it when datagrams change"]
async fn what_else_orders_over_datagrams_loses_nothing_acknowledged_by_kills_under_load() {
    for ordering in ["--protocol=sequence-paxos", "--protocol=raft", "--protocol=ring", "--groups=merge:3"] {
        kills(ordering).await;
    }
}

async fn kills(ordering: &str) {
    let _alone = ONE_AT_A_TIME.lock().await;
    let folder = tempfile::tempdir().unwrap();
    let flags = [&SMALL[..], &["--transport=udp", ordering]].concat();
    kills_of(Cluster::start(Path::new(SYNOD), folder.path(), 3, &flags), 1).await;
}

/// With stages on threads of their own datagrams are taken elsewhere than with one thread for all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn most_messages_are_datagrams_and_one_of_ten_that_is_lost_costs_no_write() {
    for (threads, protocol) in [("compact", "multipaxos"), ("spread", "raft")] {
        lossy(&[&format!("--threads={threads}"), &format!("--protocol={protocol}")]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "half a minute, and datagrams do not know which protocol they carry: run it when datagrams change"]
async fn one_of_ten_datagrams_that_is_lost_costs_no_write_of_the_other_protocols() {
    for flag in
        ["--protocol=sequence-paxos", "--protocol=ring", "--dissemination=balanced", "--groups=merge:3"]
    {
        lossy(&[flag]).await;
    }
}

async fn lossy(flags: &[&str]) {
    let _alone = ONE_AT_A_TIME.lock().await;
    let folder = tempfile::tempdir().unwrap();
    let (passed, lost) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
    // It outlives the cluster.
    let mut relay = None;
    let behind = |peers: &[u16]| -> Vec<u16> {
        let addresses = peers.iter().map(|&port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        let targets = (1..).map(ReplicaId).zip(addresses).collect();
        let links = vec![vec![Link::CLEAR; peers.len()]; peers.len()];
        let relay = relay.insert(Relay::start(links, targets, 0).unwrap());
        let fronts: Vec<u16> = relay.addresses().iter().map(SocketAddr::port).collect();
        for (&front, &peer) in fronts.iter().zip(peers) {
            pass_datagrams_on(front, peer, Arc::clone(&passed), Arc::clone(&lost));
        }
        fronts
    };
    // Each replica is called elsewhere than it listens, on purpose.
    let flags = [&SMALL[..], &["--transport=udp"], flags].concat();
    let cluster = Cluster::start_behind(Path::new(SYNOD), folder.path(), 3, behind, &flags);
    let endpoints = cluster.endpoints();
    let load = Load::start(&endpoints);
    progress(&load, 50).await;
    until("every replica sends datagrams to both others", || {
        endpoints.iter().all(|endpoint| sum(endpoint, "synod_peer_datagrams{") == 2)
    });
    progress(&load, 500).await;
    let said = done(&endpoints[0], &["status"]);
    assert!(said.lines().any(|line| line.starts_with("Transport") && line.contains("udp")), "{said}");
    for endpoint in &endpoints {
        let datagrams = sum(endpoint, "synod_datagram_messages_sent_total{");
        let frames = sum(endpoint, "synod_peer_frames_sent_total{");
        println!("{endpoint}: {datagrams} messages in datagrams, {frames} frames");
        assert!(datagrams > 2 * frames, "{endpoint}: {datagrams} messages in datagrams, {frames} frames");
        let of_strangers = sum(endpoint, "synod_datagrams_dropped_total{") - dropped(endpoint, "binding");
        assert_eq!(of_strangers, 0, "only one that comes before its session is dropped");
    }
    let (passed, lost) = (passed.load(Relaxed), lost.load(Relaxed));
    println!("{flags:?}: {lost} datagrams were lost, {passed} were not");
    assert!(lost > 50 && passed > 500, "too little was sent to prove anything");
    finish(cluster, load, &[0, 1, 2]).await;
}

fn dropped(endpoint: &str, reason: &str) -> u64 {
    sum(endpoint, &format!("synod_datagrams_dropped_total{{reason=\"{reason}\"}}"))
}

/// The sum of the samples of a replica whose lines begin so.
fn sum(endpoint: &str, start: &str) -> u64 {
    let (_, page) = page(endpoint, "/metrics");
    let values =
        page.lines().filter(|line| line.starts_with(start)).filter_map(|line| line.rsplit(' ').next());
    values.map(|value| value.parse::<u64>().expect("a count")).sum()
}

fn pass_datagrams_on(front: u16, peer: u16, passed: Arc<AtomicU64>, lost: Arc<AtomicU64>) {
    let socket = UdpSocket::bind(("127.0.0.1", front)).unwrap();
    thread::spawn(move || {
        let (mut buffer, mut random) = (vec![0; 70_000], fastrand::Rng::with_seed(front.into()));
        while let Ok(length) = socket.recv(&mut buffer) {
            let is_lost = random.u64(..LOST_ONE_OF) == 0;
            if !is_lost {
                // The replica may not run yet.
                _ = socket.send_to(&buffer[..length], ("127.0.0.1", peer));
            }
            (if is_lost { &lost } else { &passed }).fetch_add(1, Relaxed);
        }
    });
}

#[test]
fn datagrams_do_not_go_with_tls_nor_with_a_port_that_is_taken() {
    let folder = tempfile::tempdir().unwrap();
    let data = format!("--data-dir={}", folder.path().join("a").display());
    let url = "https://127.0.0.1:2380";
    let (listen, cluster) = (format!("--listen-peer-urls={url}"), format!("--initial-cluster=a={url}"));
    let with_tls = ["serve", "--name=a", &data, &listen, &cluster, "--transport=udp", "--peer-auto-tls"];
    refused(&synod(&with_tls), 2, &["--transport udp", "not encrypted", "accepted: tcp"]);
    refused(&synod(&["serve", "--mtu=9000", &data]), 2, &["--mtu 9000", "--transport udp"]);

    let [peers, clients] = free_ports(2)[..] else { unreachable!() };
    let _taken = UdpSocket::bind(("127.0.0.1", peers)).unwrap();
    let (peers, clients) = (format!("http://127.0.0.1:{peers}"), format!("http://127.0.0.1:{clients}"));
    let args = [
        "serve",
        "--name=a",
        &data,
        "--transport=udp",
        &format!("--listen-peer-urls={peers}"),
        &format!("--initial-cluster=a={peers}"),
        &format!("--listen-client-urls={clients}"),
    ];
    refused(&synod(&args), 1, &["cannot take datagrams at 127.0.0.1:", "--transport udp"]);
}

//! Real processes whose links have different lengths: the leader moves to where a majority is near, and `synod status`
//! shows why.

mod commands;

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    time::Duration,
};

use serde_json::Value;
use synod_lab::net::{Link, Links, Relay};
use synod_testkit::{processes::Cluster, until};
use synod_wire::ReplicaId;

use self::commands::{SYNOD, done, leader, synod};

/// What a byte takes from or to the first replica.
const FAR: Duration = Duration::from_millis(40);
/// A round trip to the first replica takes at least this long, in milliseconds, and one between the others less.
const FAR_MS: f64 = 80.0;

/// The first replica is far from the others, which are near each other.
fn links(replicas: usize) -> Links {
    let far = Link { delay: FAR, ..Link::CLEAR };
    let link = |from: usize, to: usize| if from == 0 || to == 0 { far } else { Link::CLEAR };
    (0..replicas).map(|from| (0..replicas).map(|to| link(from, to)).collect()).collect()
}

/// What each replica of the cluster says of itself, in the order of the names.
fn told(endpoints: &str) -> Vec<Value> {
    let output = synod(&["status", "--endpoints", endpoints, "-w", "json"]);
    let mut all: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap_or_default();
    all.sort_by_key(|status| status["name"].to_string());
    all
}

/// The cells of the row of the matrix that begins with this name.
fn row(table: &str, name: &str) -> Vec<String> {
    let matrix = table.lines().skip_while(|line| !line.contains("RTT, MS"));
    let cells = |line: &str| line.split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
    let mut rows = matrix.map(cells);
    rows.find(|cells| cells.get(1).is_some_and(|cell| cell == name)).unwrap_or_else(|| panic!("{table}"))
}

#[test]
fn the_leader_moves_to_a_near_majority_and_status_shows_what_a_move_would_gain() {
    let folder = tempfile::tempdir().unwrap();
    let mut relay = None;
    let behind = |ports: &[u16]| -> Vec<u16> {
        let addresses = ports.iter().map(|&port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        let targets = (1..).map(ReplicaId).zip(addresses).collect();
        let relay = relay.insert(Relay::start(links(ports.len()), targets, 0).unwrap());
        relay.addresses().iter().map(SocketAddr::port).collect()
    };
    let flags = ["--election=latency", "--election-timeout=1500ms", "--heartbeat-interval=150ms"];
    let cluster = Cluster::start_behind(Path::new(SYNOD), folder.path(), 3, behind, &flags);
    let endpoints = cluster.endpoints();
    let all = endpoints.join(",");
    until("they serve", || synod(&["put", "k", "v", "--endpoints", &all]).status.success());
    until("a near replica leads", || leader(&endpoints) != 0);
    let number = |status: &Value, key: &str| status[key].as_f64();
    until("each has measured each, and one leads", || {
        let told = told(&all);
        let measured = |status: &Value| {
            let peers = status["peers"].as_array().map_or(&[][..], |peers| peers);
            peers.len() == 2 && peers.iter().all(|peer| number(peer, "round_trip_ms").is_some())
        };
        told.len() == 3
            && told.iter().all(|status| measured(status) && number(status, "gain_if_it_led_ms").is_some())
    });

    let told = told(&all);
    let majority = |of: usize| number(&told[of], "majority_ms").expect("it is measured");
    let gain = |of: usize| number(&told[of], "gain_if_it_led_ms").expect("it is known who leads");
    assert!(majority(0) >= FAR_MS && majority(1) < FAR_MS && majority(2) < FAR_MS, "{told:#?}");
    let near = told.iter().position(|status| status["role"] == "leader").expect("one leads");
    assert_eq!(gain(near), 0.0);
    assert!((gain(0) - (majority(near) - majority(0))).abs() < 1e-6 && gain(0) < 0.0, "{told:#?}");

    let table = done(&all, &["status"]);
    assert_eq!(row(&table, "RTT, MS")[2..7], ["n1", "n2", "n3", "MAJORITY", "IF IT LED"]);
    let milliseconds = |cell: &str| cell.parse::<f64>().unwrap_or_else(|_| panic!("{table}"));
    let far = row(&table, "n1");
    assert!(far[2].is_empty() && [3, 4, 5].iter().all(|&cell| milliseconds(&far[cell]) >= FAR_MS), "{table}");
    assert!(far[6].starts_with('+'), "{table}");
    assert_eq!(row(&table, &format!("n{}", near + 1))[6], "leads");
}

/// Nothing is measured with another election, and nothing is shown.
#[test]
fn status_shows_no_matrix_where_the_election_measures_none() {
    let folder = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(Path::new(SYNOD), folder.path(), 3, &["--election=ballot"]);
    let all = cluster.endpoints().join(",");
    until("they serve", || synod(&["put", "k", "v", "--endpoints", &all]).status.success());
    let table = done(&all, &["status"]);
    assert!(table.contains("ballot") && !table.contains("RTT"), "{table}");
    let told = told(&all);
    assert!(told.len() == 3 && told.iter().all(|status| status["majority_ms"].is_null()), "{told:#?}");
}

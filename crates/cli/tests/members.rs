//! A cluster of real processes whose members change under load: no acknowledged write is lost.
//!
//! The load and the checks are Synod's own commands, so this needs nothing but the program.

mod commands;

use std::{
    collections::BTreeSet,
    fs,
    io::{Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    path::Path,
    process::{Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use synod_client::{Client, Config, api::PutRequest};
use synod_lab::net::{Link, Relay};
use synod_wire::ReplicaId;

use synod_testkit::{
    WAIT_MAX, free_port, free_ports,
    processes::{Cluster, stop},
    until,
};

use self::commands::{SYNOD, done, leader, members, page, status, synod, voters};

/// Small limits, so that a joining replica must fetch a snapshot first.
const FLAGS: [&str; 4] =
    ["--election-timeout=600ms", "--heartbeat-interval=60ms", "--snapshot-count=100", "--keep-slots=20"];

/// Runs a test with each of three protocols at once: what it does is mostly to wait.
fn with_each_protocol(test: fn(&str)) {
    thread::scope(|scope| {
        for protocol in ["multipaxos", "sequence-paxos", "raft"] {
            let named = thread::Builder::new().name(protocol.to_owned());
            named.spawn_scoped(scope, move || test(protocol)).unwrap();
        }
    });
}

#[test]
fn a_leader_that_is_told_to_stop_hands_over_and_a_name_that_is_taken_is_refused() {
    with_each_protocol(hand_over);
}

/// With an election time-out of a minute, no replica would lead in time if the leader just ended.
fn hand_over(protocol: &str) {
    let folder = tempfile::tempdir().unwrap();
    let flags = ["--protocol", protocol, "--heartbeat-interval=100ms"];
    let mut cluster = Cluster::start(Path::new(SYNOD), folder.path(), 3, &flags);
    let endpoints = cluster.endpoints();
    let all = endpoints.join(",");
    until("they serve", || synod(&["put", "k", "v", "--endpoints", &all]).status.success());
    // Only from now on may an election take long.
    for (index, endpoint) in endpoints.iter().enumerate() {
        cluster.stop(index);
        cluster.restart_with(index, &["--election-timeout=60s"]);
        until("they serve", || status(endpoint).is_some());
    }
    let first = leader(&endpoints);
    cluster.stop(first);
    assert!(cluster.said(first).contains("handed over the leadership"), "{}", cluster.said(first));
    let others: Vec<_> = (0..3).filter(|index| *index != first).collect();
    done(&endpoints[others[0]], &["put", "k", "w"]);

    let taken = format!("--name=n{}", others[0] + 1);
    cluster.restart_with(first, &[&taken]);
    assert_eq!(cluster.ends(first, WAIT_MAX).code(), Some(2));
    assert!(cluster.said(first).contains("has that name"), "{}", cluster.said(first));
}

/// A client that writes one key after the other, and remembers those that were acknowledged.
struct Load {
    stop: Arc<AtomicBool>,
    acknowledged: Arc<Mutex<BTreeSet<String>>>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl Load {
    fn start(endpoints: &[String]) -> Load {
        let (stop, acknowledged) = (Arc::<AtomicBool>::default(), Arc::<Mutex<BTreeSet<String>>>::default());
        let threads = (0..2).map(|writer| {
            let mut config = Config::new(endpoints.iter().cloned());
            config.request_timeout = Duration::from_secs(4);
            config.retry_writes = true; // Every key is written with one value only.
            let (stop, acknowledged) = (Arc::clone(&stop), Arc::clone(&acknowledged));
            thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(async {
                    let client = Client::new(config).unwrap();
                    let mut number = 0;
                    while !stop.load(Ordering::Relaxed) {
                        number += 1;
                        let key = format!("load/{writer}/{number:06}");
                        let put = PutRequest {
                            key: key.clone().into(),
                            value: "v".repeat(200).into(),
                            ..Default::default()
                        };
                        if client.put(put).await.is_ok() {
                            acknowledged.lock().unwrap().insert(key);
                        }
                    }
                });
            })
        });
        let threads = threads.collect();
        Load { stop, acknowledged, threads }
    }

    fn count(&self) -> usize {
        self.acknowledged.lock().unwrap().len()
    }

    /// Waits until this many more writes were acknowledged.
    #[track_caller]
    fn progress(&self, writes: usize) {
        let wanted = self.count() + writes;
        until("writes are acknowledged", || self.count() >= wanted);
    }

    fn stop(self) -> BTreeSet<String> {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.into_iter().for_each(|thread| thread.join().unwrap());
        Arc::try_unwrap(self.acknowledged).unwrap().into_inner().unwrap()
    }
}

/// All keys of the load that a replica itself holds.
fn held(endpoint: &str) -> BTreeSet<String> {
    let args = ["get", "load/", "--prefix", "--keys-only", "--serializable"];
    done(endpoint, &args).lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

#[track_caller]
fn nothing_is_missing(endpoint: &str, acknowledged: &BTreeSet<String>) {
    until("the replica catches up", || held(endpoint).is_superset(acknowledged));
}

#[test]
fn members_come_go_and_are_replaced_under_load() {
    members_come_and_go("multipaxos");
}

#[test]
fn so_they_do_within_an_epoch_of_raft() {
    members_come_and_go("raft");
}

/// Takes the disk of a follower, and replaces the follower at its address. Returns where clients reach the replacement.
fn replace_wiped(cluster: &mut Cluster, follower: usize, all: &str) -> String {
    let endpoint = cluster.endpoints()[follower].clone();
    let name = format!("n{}", follower + 1);
    cluster.kill(follower);
    fs::remove_dir_all(cluster.data_dir(follower)).unwrap();
    cluster.restart(follower);
    until("the wiped replica is refused", || cluster.said(follower).contains("synod member replace"));
    assert!(status(&endpoint).is_none_or(|status| status["applied"] == 0), "nobody tells it anything");
    cluster.kill(follower);
    let port = cluster.peer_port(follower);
    let joins = cluster.join(&name, port, &FLAGS);
    assert!(!cluster.ends(joins, WAIT_MAX).success());
    let said = cluster.said(joins);
    assert!(said.contains(&format!("synod member replace {name} {name}")), "{said}");
    let url = format!("http://127.0.0.1:{port}");
    done(all, &["member", "replace", &name, &name, "--peer-urls", &url, "--wait=false"]);
    cluster.restart(joins);
    let replaced = cluster.endpoints()[joins].clone();
    until("the replacement votes", || voters(&replaced).len() == 3 && members(&replaced).len() == 3);
    replaced
}

fn members_come_and_go(protocol: &str) {
    let folder = tempfile::tempdir().unwrap();
    let ordering = format!("--protocol={protocol}");
    let flags: Vec<_> = FLAGS.into_iter().chain([ordering.as_str()]).collect();
    let mut cluster = Cluster::start(Path::new(SYNOD), folder.path(), 3, &flags);
    let three = cluster.endpoints();
    let all = three.join(",");
    let load = Load::start(&three);
    load.progress(300);

    // Names and client URLs come through the log.
    until("all have published", || {
        let list = done(&all, &["member", "list"]);
        (1..=3).all(|n| list.contains(&format!("n{n}, http"))) && three.iter().all(|url| list.contains(url))
    });

    // A learner joins, and is promoted by hand.
    let ports = free_ports(2);
    let url = format!("http://127.0.0.1:{}", ports[0]);
    let said = done(&all, &["member", "add", "n4", "--peer-urls", &url, "--learner"]);
    let hints = ["synod serve --name n4", "--initial-cluster-state existing"];
    assert!(hints.iter().all(|hint| said.contains(hint)), "{said}");
    let early = synod(&["member", "promote", "n4", "--endpoints", &all]);
    let why = String::from_utf8_lossy(&early.stderr);
    assert!(why.contains("can only promote a learner member which is in sync with leader"), "{why}");
    let four = cluster.join("n4", ports[0], &FLAGS);
    let learner = cluster.endpoints()[four].clone();
    until("the learner learns", || members(&learner).contains(&("n4".into(), "learner".into())));
    load.progress(100);
    until("n4 is promoted", || synod(&["member", "promote", "n4", "--endpoints", &all]).status.success());
    until("n4 votes", || voters(&learner) == ["n1", "n2", "n3", "n4"]);
    println!("n4 votes after a snapshot: {}", cluster.said(four).contains("snapshot"));

    // The leadership moves to the new member, which is removed while it leads.
    until("the leadership moves", || synod(&["move-leader", "n4", "--endpoints", &all]).status.success());
    let leads = |name: &str| status(&learner).is_some_and(|status| status["leader_name"] == name);
    until("n4 leads", || leads("n4"));
    load.progress(100);
    done(&all, &["member", "remove", "n4"]);
    assert!(cluster.ends(four, WAIT_MAX).success(), "who was removed ends in good order");
    let said = cluster.said(four);
    let (_, end) = said.split_once("was removed from the cluster").expect("it says why it ends");
    assert!(!end.contains("rejected connection"), "that the others still call is no news: {end}");
    load.progress(100);

    // A follower whose disk is lost is replaced at its address. It is not admitted as what it was.
    let follower = (leader(&three) + 1) % 3;
    let replaced = replace_wiped(&mut cluster, follower, &all);
    load.progress(100);

    // The leader, which is alive, is replaced by a new replica elsewhere; the command waits for that.
    let urls: Vec<_> =
        (0..3).filter(|&n| n != follower).map(|n| three[n].clone()).chain([replaced]).collect();
    let old = leader(&urls);
    let name = status(&urls[old]).unwrap()["name"].as_str().unwrap().to_owned();
    let url = format!("http://127.0.0.1:{}", ports[1]);
    let (port, endpoints) = (ports[1], urls.join(","));
    let waits = thread::spawn(move || {
        done(&endpoints, &["member", "replace", &name, "n5", "--peer-urls", &url, "--wait-timeout", "60s"])
    });
    until("n5 is a member", || members(&urls[old]).iter().any(|(name, _)| name == "n5"));
    let five = cluster.join("n5", port, &FLAGS);
    assert!(waits.join().unwrap().contains("synod serve --name n5"));
    let gone = cluster.endpoints().iter().position(|url| *url == urls[old]).unwrap();
    assert!(cluster.ends(gone, WAIT_MAX).success(), "the leader that was replaced ends in good order");
    load.progress(100);

    // The protocol is changed too, and back.
    let some = rest_of(&urls, old).join(",");
    let epoch = |url: &str| status(url).unwrap()["epoch"].as_u64();
    let changes = if protocol == "raft" { 0 } else { 4 };
    let any = rest_of(&urls, old).swap_remove(0);
    assert_eq!(epoch(&any), Some(1 + changes), "voters changed four times");
    for protocol in ["sequence-paxos", protocol] {
        done(&some, &["reconfigure", "--protocol", protocol]);
        load.progress(100);
    }

    let acknowledged = load.stop();
    println!("{} writes were acknowledged", acknowledged.len());
    for endpoint in rest_of(&urls, old).iter().chain([&cluster.endpoints()[five]]) {
        nothing_is_missing(endpoint, &acknowledged);
        assert_eq!(voters(endpoint).len(), 3);
    }
}

#[test]
fn a_joiner_that_lost_its_disk_gets_no_vote_back_from_members_that_know_too_little() {
    wiped_joiner("multipaxos");
}

/// Never more than one of three voters is down until the disk is lost. n2 does not know that n4 votes when the empty n4
/// asks to join, and learns it from n3, which was removed and hands out the log through its own removal.
fn wiped_joiner(protocol: &str) {
    let folder = tempfile::tempdir().unwrap();
    let ordering = format!("--protocol={protocol}");
    let flags: Vec<_> = FLAGS.into_iter().chain([ordering.as_str()]).collect();
    let mut cluster = Cluster::start(Path::new(SYNOD), folder.path(), 3, &flags);
    let three = cluster.endpoints();
    let all = three.join(",");
    until("they serve", || synod(&["put", "k", "old", "--endpoints", &all]).status.success());
    until("the births of the voters are named", || {
        (0..3).all(|n| cluster.said(n).contains("names_births=true"))
    });

    let port = free_port();
    let url = format!("http://127.0.0.1:{port}");
    done(&all, &["member", "replace", "n3", "n4", "--peer-urls", &url, "--wait=false"]);
    let is_listed = |name: &str, endpoint: &str| members(endpoint).iter().any(|(other, _)| other == name);
    until("n2 knows n4 as a learner", || is_listed("n4", &three[1]));
    cluster.stop(1);
    let four = cluster.join("n4", port, &FLAGS);
    until("n4 votes in the place of n3", || voters(&three[0]) == ["n1", "n2", "n4"]);
    assert!(cluster.ends(2, WAIT_MAX).success(), "n3 is not needed any more");
    until("n1 and n4 decide", || synod(&["put", "k", "new", "--endpoints", &three[0]]).status.success());

    cluster.stop(0);
    cluster.kill(four);
    fs::remove_dir_all(cluster.data_dir(four)).unwrap();
    cluster.restart(1);
    until("n2 answers", || status(&three[1]).is_some());
    cluster.restart(four);
    until("n2 lets the empty n4 in", || {
        cluster.said(1).contains("peer=r4") || cluster.said(four).contains("connected")
    });
    cluster.restart(2);
    until("n2 learns that n4 votes", || voters(&three[1]) == ["n1", "n2", "n4"]);
    let two = &three[1];
    for _ in 0..3 {
        for command in [&["get", "k"][..], &["put", "k", "forked"]] {
            let said = synod(&[command, &["--endpoints", two]].concat());
            assert!(!said.status.success(), "{}", String::from_utf8_lossy(&said.stdout));
        }
    }
    let role = status(&cluster.endpoints()[four]).map(|status| status["role"].clone());
    assert!(role.is_none_or(|role| role != "leader"));

    cluster.restart(0);
    until("n1 and n2 go on", || {
        let said = synod(&["get", "k", "--print-value-only", "--endpoints", two]);
        said.status.success() && String::from_utf8_lossy(&said.stdout).trim() == "new"
    });
}

/// The calls of etcd's `Cluster`, by the Rust client.
#[test]
fn a_client_adds_moves_and_removes_a_member() {
    let folder = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(Path::new(SYNOD), folder.path(), 3, &FLAGS);
    let endpoints = cluster.endpoints();
    let all = endpoints.join(",");
    until("they serve", || synod(&["put", "k", "v", "--endpoints", &all]).status.success());
    let [first, second] = free_ports(2)[..] else { unreachable!("two were asked for") };
    let urls = |port: u16| vec![format!("http://127.0.0.1:{port}")];
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = Client::new(Config::new(endpoints)).unwrap();
        // Voters have to be connected for five seconds, as with etcd.
        let added = loop {
            match client.member_add(urls(first), true).await {
                Ok(added) => break added,
                Err(error) => assert!(error.to_string().contains("unhealthy cluster"), "{error}"),
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        };
        let id = added.member.unwrap().id;
        assert_eq!(added.members.len(), 4);
        // It was never started, so it has not caught up.
        let refused = client.member_promote(id).await.unwrap_err().to_string();
        assert!(
            refused.contains("can only promote a learner member which is in sync with leader"),
            "{refused}"
        );
        client.member_update(id, urls(second)).await.unwrap();
        let listed = client.member_list(true).await.unwrap().members;
        let learner = listed.iter().find(|member| member.id == id).unwrap();
        assert!(learner.is_learner && learner.peer_ur_ls == urls(second), "{learner:?}");
        assert_eq!(client.member_remove(id).await.unwrap().members.len(), 3);
        let gone = client.member_remove(id).await.unwrap_err().to_string();
        assert!(gone.contains("member not found"), "{gone}");
    });
}

/// Whether /metrics has a series of the peer `id`.
fn is_in_metrics(endpoint: &str, id: u64) -> bool {
    let address = endpoint.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).unwrap();
    assert!(page.contains("synod_peer_connected"), "{page}");
    page.contains(&format!("{{peer=\"{id}\"}}"))
}

/// The cell `PEERS UP` of `synod status`.
fn peers_up(endpoint: &str) -> String {
    let table = done(endpoint, &["status"]);
    let cells = |line: &str| line.split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
    let lines: Vec<_> = table.lines().filter(|line| line.contains('|')).map(cells).collect();
    let column = lines[0].iter().position(|cell| cell == "PEERS UP").expect(&table);
    lines[1][column].clone()
}

/// A firewall that drops what one replica sends to another ends the connection that the first has dialled. Each of the
/// two then has one connection of two with the other, and says so.
#[test]
fn a_direction_that_is_cut_shows_at_both_ends_with_the_name_of_the_other() {
    let folder = tempfile::tempdir().unwrap();
    let mut started = None;
    let behind = |ports: &[u16]| -> Vec<u16> {
        let addresses = ports.iter().map(|&port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        let targets = (1..).map(ReplicaId).zip(addresses);
        let links = vec![vec![Link::CLEAR; ports.len()]; ports.len()];
        let relay = started.insert(Relay::start(links, targets.collect(), 0).unwrap());
        relay.addresses().iter().map(SocketAddr::port).collect()
    };
    let cluster = Cluster::start_behind(Path::new(SYNOD), folder.path(), 3, behind, &FLAGS);
    let relay = started.expect("it was started with the cluster");
    let endpoints = cluster.endpoints();
    for endpoint in &endpoints {
        until("each serves", || synod(&["put", "k", "v", "--endpoints", endpoint]).status.success());
    }
    let shows = |expected: [&str; 3]| {
        for (endpoint, expected) in endpoints.iter().zip(expected) {
            until(&format!("{expected} at {endpoint}"), || peers_up(endpoint) == expected);
        }
    };
    let counts = |index: usize, peer: u64, connected: u64| {
        let series = format!("synod_peer_connected{{peer=\"{peer}\"}} {connected}\n");
        until(&series, || page(&endpoints[index], "/metrics").1.contains(&series));
    };
    shows(["2 of 2"; 3]);

    relay.cut(0, 1, true);
    relay.reset(0, 1);
    shows(["1 of 2, not n2", "1 of 2, not n1", "2 of 2"]);
    for (index, peer, connected) in [(0, 2, 0), (0, 3, 1), (1, 1, 0), (1, 3, 1), (2, 1, 1), (2, 2, 1)] {
        counts(index, peer, connected);
    }

    relay.cut(0, 1, false);
    shows(["2 of 2"; 3]);
    counts(0, 2, 1);
    counts(1, 1, 1);
}

#[test]
fn removed_members_are_forgotten() {
    with_each_protocol(forget_the_removed);
}

fn forget_the_removed(protocol: &str) {
    let folder = tempfile::tempdir().unwrap();
    let ordering = format!("--protocol={protocol}");
    let flags: Vec<_> = FLAGS.into_iter().chain([ordering.as_str()]).collect();
    let mut cluster = Cluster::start(Path::new(SYNOD), folder.path(), 3, &flags);
    let three = cluster.endpoints();
    let stopped = (leader(&three) + 1) % 3;
    let id = |index: usize| index as u64 + 1;
    let rest: Vec<usize> = (0..3).filter(|&index| index != stopped).collect();
    let two = rest_of(&three, stopped);

    // A member that has stopped is removed: only the members count from the change on, and its links go soon after.
    cluster.kill(stopped);
    done(&two.join(","), &["member", "remove", &format!("n{}", id(stopped))]);
    let forgotten = |gone: u64| {
        for endpoint in &two {
            until("only the members are counted", || peers_up(endpoint) == "1 of 1");
            until("who was removed is in no metric", || !is_in_metrics(endpoint, gone));
        }
    };
    forgotten(id(stopped));

    // A member that lives is removed. The change before is not the last one any more.
    let port = free_port();
    let url = format!("http://127.0.0.1:{port}");
    done(&two.join(","), &["member", "add", "n4", "--peer-urls", &url, "--wait=false"]);
    let four = cluster.join("n4", port, &FLAGS);
    until("n4 votes", || voters(&two[0]).len() == 3 && voters(&two[1]).len() == 3);
    done(&two.join(","), &["member", "remove", "n4"]);
    assert!(cluster.ends(four, WAIT_MAX).success());
    forgotten(4);

    // A replica that seeks votes for long without success asks neither of them.
    let before: Vec<usize> = rest.iter().map(|&index| cluster.said(index).len()).collect();
    let away = rest.iter().position(|&index| index == leader(&three)).expect("one of them leads");
    let stays = 1 - away;
    cluster.kill(rest[away]);
    thread::sleep(Duration::from_secs(6));
    let said = cluster.said(rest[stays])[before[stays]..].to_owned();
    cluster.restart(rest[away]);
    until("they serve again", || synod(&["put", "k", "v", "--endpoints", &two.join(",")]).status.success());
    for gone in [id(stopped), 4] {
        assert!(!said.contains(&format!("r{gone}")), "of r{gone}: {said}");
    }
    assert!(said.contains(&format!("r{}", id(rest[away]))), "it says which peer is gone: {said}");
}

#[test]
fn a_new_cluster_serves_once_all_members_came_and_names_those_it_waits_for() {
    let folder = tempfile::tempdir().unwrap();
    let mut cluster = Cluster::start_some(Path::new(SYNOD), folder.path(), 3, 2, &FLAGS);
    let two = cluster.endpoints()[..2].join(",");
    until("both say whom they wait for", || {
        let asked = synod(&["status", "--cluster", "--endpoints", &two]);
        String::from_utf8_lossy(&asked.stdout).matches("it waits for n3").count() == 2
    });
    let said = |args: &[&str]| {
        let asked = synod(&[args, &["--endpoints", &two]].concat());
        String::from_utf8_lossy(&asked.stderr).into_owned()
    };
    let told = said(&["status"]);
    for part in
        ["n1, n2: this new cluster has not begun", "has not met n3", "start n3", "--begin-without-all"]
    {
        assert!(told.contains(part), "{part} is missing in {told}");
    }
    let hint = said(&["put", "a", "0"]);
    assert!(hint.contains(": this new cluster has not begun") && hint.contains("start n3"), "{hint}");

    // It runs, and belongs to another cluster: then nobody is to begin without it.
    cluster.restart_with(2, &["--initial-cluster-token=other"]);
    until("the token is named in the status and in the log", || {
        let token = "belongs to another cluster: it was started with another --initial-cluster-token";
        let told = said(&["status"]);
        told.contains(token) && told.contains("n1, n2: n3 runs") && cluster.said(0).contains(token)
    });
    let told = said(&["status"]);
    assert!(!told.contains("--begin-without-all"), "{told}");
    cluster.kill(2);
    fs::remove_dir_all(cluster.data_dir(2)).unwrap();
    cluster.restart_with(2, &["--initial-cluster-token=synod-cluster"]);
    let written = || synod(&["put", "a", "1", "--endpoints", &two]).status.success();
    until("the cluster serves", written);
    assert_eq!(done(&two, &["get", "a"]), "a\n1\n");
}

fn rest_of(urls: &[String], gone: usize) -> Vec<String> {
    urls.iter().filter(|url| **url != urls[gone]).cloned().collect()
}

#[test]
fn one_survivor_becomes_a_new_cluster_with_all_that_was_acknowledged() {
    force_new_cluster(&["--election=rotating"]);
}

#[test]
fn so_it_does_with_the_other_election() {
    force_new_cluster(&["--election=ballot"]);
}

#[test]
fn so_it_does_with_sequence_paxos() {
    force_new_cluster(&["--protocol=sequence-paxos"]);
}

fn force_new_cluster(ordering: &[&'static str]) {
    let folder = tempfile::tempdir().unwrap();
    let flags: Vec<_> = FLAGS.into_iter().chain(ordering.iter().copied()).collect();
    let mut cluster = Cluster::start(Path::new(SYNOD), folder.path(), 3, &flags);
    let three = cluster.endpoints();
    let load = Load::start(&three);
    load.progress(250);
    // The data of n3 lack what is acknowledged while it is away, so the new cluster has to be made of one of
    // the other two.
    cluster.kill(2);
    load.progress(250);
    cluster.kill(1);
    thread::sleep(Duration::from_millis(200));
    cluster.kill(0);
    let acknowledged = load.stop();

    let dir = cluster.data_dir(0).to_str().unwrap().to_owned();
    let recover = |more: &[&str]| {
        let mut args = vec!["recover", "--force-new-cluster", "--data-dir", &dir];
        args.extend(more);
        synod(&args)
    };
    let asked = recover(&[]);
    let said = String::from_utf8_lossy(&asked.stderr);
    assert!(!asked.status.success() && said.contains("--yes") && said.contains("LOST"), "{said}");
    let recovered = recover(&["--yes"]);
    assert!(recovered.status.success(), "{}", String::from_utf8_lossy(&recovered.stderr));
    // The command prints the complete command that starts the survivor.
    let said = String::from_utf8(recovered.stdout).unwrap();
    let line = said.lines().find_map(|line| line.strip_prefix("  synod ")).expect("a command line");
    for part in [format!(" --data-dir {dir} "), format!(" --listen-client-urls {}", three[0])] {
        assert!(line.contains(&part), "{part} is missing in {line}");
    }
    let peer = format!(" --listen-peer-urls http://127.0.0.1:{} ", cluster.peer_port(0));
    assert!(line.contains(&peer), "{peer} is missing in {line}");
    let mut survivor = Command::new(SYNOD).args(line.split(' ')).stderr(Stdio::null()).spawn().unwrap();
    until("what it says starts the survivor", || {
        status(&three[0]).is_some_and(|status| status["role"] == "leader")
    });
    stop(&mut survivor);

    cluster.restart(0);
    until("the survivor leads", || status(&three[0]).is_some_and(|status| status["role"] == "leader"));
    nothing_is_missing(&three[0], &acknowledged);
    assert_eq!(voters(&three[0]), ["n1"]);
    done(&three[0], &["put", "after", "it"]);
    // An old member that comes back is refused, and a new one joins by a snapshot.
    cluster.restart(1);
    until("the old member is refused", || cluster.said(1).contains("different clusters"));
    until("the old member answers", || status(&three[1]).is_some());
    assert_eq!(done(&three[1], &["get", "after", "--serializable"]), "");
    cluster.kill(1);
    let port = free_port();
    let url = format!("http://127.0.0.1:{port}");
    done(&three[0], &["member", "add", "n6", "--peer-urls", &url, "--wait=false"]);
    let six = cluster.join("n6", port, &FLAGS);
    let joined = cluster.endpoints()[six].clone();
    until("n6 votes", || voters(&joined) == ["n1", "n6"]);
    nothing_is_missing(&joined, &acknowledged);
    // Both go on after a restart.
    cluster.kill(0);
    cluster.restart(0);
    until("writes go on", || synod(&["put", "x", "y", "--endpoints", &joined]).status.success());
}

#[test]
fn so_it_does_with_raft() {
    force_new_cluster(&["--protocol=raft"]);
}

#[test]
fn a_replica_that_waits_for_others_without_logs_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let mut cluster = Cluster::start(Path::new(SYNOD), folder.path(), 3, &FLAGS);
    let three = cluster.endpoints();
    leader(&three);
    done(&three[0], &["put", "key", "value"]);
    for lost in 0..2 {
        cluster.kill(lost);
        fs::remove_dir_all(cluster.data_dir(lost).join("wal")).unwrap();
    }
    (0..2).for_each(|lost| cluster.restart(lost));
    until("both say that they have no vote", || {
        three[..2].iter().all(|url| status(url).is_some_and(|status| status["without_memory"] == true))
    });
    let said = |endpoints: &str| {
        let output = synod(&["status", "--endpoints", endpoints]);
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert!(said(&three[0]).contains("while most voters have kept theirs"), "{}", said(&three[0]));
    let all = said(&three.join(","));
    assert!(
        all.contains("2 of 3 voters have lost (part of) their logs (n1, n2) and wait for each other"),
        "{all}"
    );
    assert_eq!(done(&three[2], &["get", "key", "--serializable", "--print-value-only"]).trim(), "value");
}

/// A replica that joins while there is no quorum serves nobody; then what it answers first is no older than what was
/// acknowledged before it was started.
#[test]
fn a_replica_that_joins_serves_clients_once_it_has_caught_up() {
    let folder = tempfile::tempdir().unwrap();
    let mut cluster = Cluster::start(Path::new(SYNOD), folder.path(), 3, &FLAGS);
    let three = cluster.endpoints();
    leader(&three);
    done(&three[0], &["put", "key", "value"]);
    let port = free_port();
    let url = format!("http://127.0.0.1:{port}");
    done(&three[0], &["member", "add", "n4", "--learner", "--peer-urls", &url, "--wait=false"]);
    // Of a group whose members have told no address, `status --cluster` asks the given endpoints alone.
    until("the first member has told its address", || cluster.said(0).contains("published"));
    cluster.kill(1);
    cluster.kill(2);
    let pages = format!("http://127.0.0.1:{}", free_port());
    let listen = format!("--listen-metrics-urls={pages}");
    let four = cluster.join("n4", port, &[FLAGS[0], FLAGS[1], "--request-timeout=2s", &listen]);
    let joined = cluster.endpoints()[four].clone();
    until("it runs", || cluster.said(four).contains("clients are served once it has caught up"));
    let get = ["get", "key", "--serializable", "--print-value-only", "--endpoints", &joined];
    // It lives, and is not ready.
    assert_eq!(page(&pages, "/livez").0, 200);
    assert_eq!(page(&pages, "/readyz").0, 503);
    for _ in 0..3 {
        let refused = synod(&[&get[..], &["--command-timeout", "1s"]].concat());
        assert!(!refused.status.success(), "{}", String::from_utf8_lossy(&refused.stdout));
    }
    let told = synod(&["status", "--cluster", "--endpoints", &three[0]]);
    let told = String::from_utf8_lossy(&told.stderr).into_owned();
    assert!(
        told.contains("(n4) has not told its client URLs: it has not started yet, or it joins"),
        "{told}"
    );
    assert!(!cluster.said(four).contains("published"));
    cluster.restart(1);
    cluster.restart(2);
    let mut first = None;
    until("it answers", || {
        let answer = synod(&get);
        first = answer.status.success().then(|| String::from_utf8(answer.stdout).unwrap());
        first.is_some()
    });
    assert_eq!(first.unwrap().trim(), "value");
    until("it is ready but for its vote", || page(&pages, "/readyz?exclude=non_learner").0 == 200);
}

#[test]
fn a_replica_that_is_not_a_member_is_told_how_to_become_one() {
    let folder = tempfile::tempdir().unwrap();
    let mut cluster = Cluster::start(Path::new(SYNOD), folder.path(), 1, &FLAGS);
    let only = cluster.endpoints().remove(0);
    until("it leads", || status(&only).is_some_and(|status| status["role"] == "leader"));
    let stranger = cluster.join("n2", free_port(), &FLAGS);
    assert!(!cluster.ends(stranger, WAIT_MAX).success());
    let said = cluster.said(stranger);
    assert!(said.contains("is not a member") && said.contains("synod member add n2"), "{said}");

    let refused = |args: &[&str], why: &str| {
        let mut all = args.to_vec();
        all.extend(["--endpoints", &only]);
        let output = synod(&all);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(why), "{args:?}: {said}");
    };
    let url = format!("http://127.0.0.1:{}", cluster.peer_port(0));
    refused(&["member", "add", "n9", "--peer-urls", &url], "Peer URLs already exists");
    refused(&["member", "add", "n9", "--peer-urls", "nonsense"], "given member URLs are invalid");
    refused(&["member", "add", "n1", "--peer-urls", "http://h:1"], "choose another");
    refused(&["member", "remove", "n1"], "not enough started members");
    refused(&["member", "remove", "n7"], "n7 is not a member; accepted: n1 (1)");
    refused(&["member", "promote", "n1"], "can only promote a learner member");
    refused(&["reconfigure", "--protocol", "multipaxos"], "nothing would change");
    refused(&["reconfigure", "--election", "rotating", "--expected-version", "99"], "look at it again");
    refused(&["reconfigure"], "give --protocol");
    refused(&["reconfigure", "--protocol", "raft", "--election", "ballot"], "accepted: randomized");
    refused(&["reconfigure", "--election", "randomized"], "accepted: ballot, rotating, latency");
    refused(&["reconfigure", "--options", "head-start=off"], "accepted: window-max, dissemination, decision");
    let measured = ["reconfigure", "--protocol", "sequence-paxos", "--options", "head-start=off"];
    refused(&measured, "accepted: head-start=on, or any value on servers that run with --laboratory");
    done(&only, &["reconfigure", "--options", "window-max=4,decision=all"]);
    until("the options are fixed", || {
        status(&only).is_some_and(|status| status["options"] == "decision=all,window-max=4")
    });
    done(&only, &["reconfigure", "--election", "rotating"]);
    until("the election is another", || {
        status(&only).is_some_and(|status| status["election"] == "rotating" && status["role"] == "leader")
    });
    done(&only, &["move-leader", "n1"]);

    // A group that has such an option goes on with it, and says so.
    cluster.stop(0);
    cluster.restart_with(0, &["--laboratory"]);
    until("it leads", || status(&only).is_some_and(|status| status["role"] == "leader"));
    let said = done(&only, &measured);
    let dropped = "Dropped with the previous protocol: election=rotating, decision=all, window-max=4\n";
    assert!(said.contains(dropped), "{said}");
    let troubles =
        || status(&only).and_then(|status| status["troubles"].as_array().cloned()).unwrap_or_default();
    let warns =
        |line: &serde_json::Value| line.as_str().unwrap_or_default().contains("head-start=off exists to be");
    assert!(!troubles().iter().any(warns));
    cluster.stop(0);
    cluster.restart_with(0, &["--laboratory=false"]);
    until("status warns", || troubles().iter().any(warns));
    assert!(cluster.said(0).contains("To go back: synod reconfigure --options"), "{}", cluster.said(0));
    done(&only, &["reconfigure", "--options", "head-start=off,window-max=4"]);
    done(&only, &["reconfigure", "--options", ""]);
    until("it warns no more", || status(&only).is_some() && !troubles().iter().any(warns));
}

//! Protocol, dissemination and voters change under load, some at the same time.

use std::{
    path::Path,
    thread,
    time::{Duration, Instant},
};

use synod_testkit::{WAIT_MAX, free_port, processes::Cluster, until};

use crate::{
    ONE_AT_A_TIME,
    commands::{SYNOD, done, leader, members, status, synod, voters},
    finish,
    load::Load,
    progress,
};

/// Small limits, so that a joining replica must fetch a snapshot, which is of an earlier epoch.
const FLAGS: [&str; 4] =
    ["--election-timeout=600ms", "--heartbeat-interval=60ms", "--snapshot-count=300", "--keep-slots=50"];

/// A cluster whose members change, and the load on it.
struct Rig {
    cluster: Cluster,
    load: Load,
    /// The replicas that are members.
    live: Vec<usize>,
}

impl Rig {
    fn start(folder: &Path, protocol: &str) -> Rig {
        let protocol = format!("--protocol={protocol}");
        let flags: Vec<_> = FLAGS.into_iter().chain([&*protocol]).collect();
        let cluster = Cluster::start(Path::new(SYNOD), folder, 3, &flags);
        let load = Load::start(&cluster.endpoints());
        Rig { cluster, load, live: vec![0, 1, 2] }
    }

    fn endpoints(&self) -> Vec<String> {
        let all = self.cluster.endpoints();
        self.live.iter().map(|&index| all[index].clone()).collect()
    }

    fn all(&self) -> String {
        self.endpoints().join(",")
    }

    /// The place of the leader in `live`.
    fn leader(&self) -> usize {
        leader(&self.endpoints())
    }

    /// The name of a replica by its place in `live`.
    fn name(&self, place: usize) -> String {
        let status = status(&self.endpoints()[place]).expect("it is up");
        status["name"].as_str().expect("it has a name").to_owned()
    }

    /// Announces and starts a member, which gets load, too.
    fn join(&mut self, name: &str, announce: &[&str]) {
        let port = free_port();
        let url = format!("http://127.0.0.1:{port}");
        let mut args = announce.to_vec();
        args.extend(["--peer-urls", &url, "--wait=false"]);
        done(&self.all(), &args);
        let index = self.cluster.join(name, port, &FLAGS);
        self.live.push(index);
        self.load.join(&self.cluster.endpoints()[index]);
    }

    /// Asks for another protocol, in a thread of its own.
    fn reconfigure(&self, protocol: &'static str) -> thread::JoinHandle<Duration> {
        let all = self.all();
        thread::spawn(move || {
            let began = Instant::now();
            done(&all, &["reconfigure", "--protocol", protocol]);
            began.elapsed()
        })
    }

    fn await_protocol(&self, protocol: &str) {
        for endpoint in self.endpoints() {
            until("all go over to the protocol", || {
                status(&endpoint).is_some_and(|status| status["protocol"] == protocol)
            });
        }
    }

    fn await_voters(&self, names: &[&str]) {
        for endpoint in self.endpoints() {
            until("all know who votes", || {
                voters(&endpoint) == names && members(&endpoint).len() == names.len()
            });
        }
    }

    /// Waits until a removed member ends by itself.
    fn await_end(&mut self, place: usize) {
        let index = self.live.remove(place);
        assert!(
            self.cluster.ends(index, WAIT_MAX).success(),
            "who is not needed any more ends in good order"
        );
    }

    /// Prints the longest time without an acknowledged write since this was last called.
    async fn report(&self, what: &str) {
        progress(&self.load, 100).await;
        println!("{what}: no write was acknowledged for {} ms at most", self.load.longest_gap().as_millis());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_protocol_and_the_members_change_at_the_same_time() {
    let _alone = ONE_AT_A_TIME.lock().await;
    let folder = tempfile::tempdir().unwrap();
    let mut rig = Rig::start(folder.path(), "multipaxos");
    progress(&rig.load, 400).await;
    rig.load.longest_gap();
    rig.report("nothing changes").await;

    rig.join("n4", &["member", "add", "n4"]);
    let change = rig.reconfigure("sequence-paxos");
    println!("reconfigured in {:?}", change.join().unwrap());
    rig.await_voters(&["n1", "n2", "n3", "n4"]);
    rig.await_protocol("sequence-paxos");
    rig.report("multipaxos to sequence-paxos while a member is added").await;

    let follower = (rig.leader() + 1) % 3;
    let gone = rig.name(follower);
    rig.join("n5", &["member", "replace", &gone, "n5"]);
    let change = rig.reconfigure("raft");
    println!("reconfigured in {:?}", change.join().unwrap());
    rig.await_end(follower);
    rig.await_protocol("raft");
    rig.report("sequence-paxos to raft while a follower is replaced").await;

    let leader = rig.leader();
    let gone = rig.name(leader);
    rig.join("n6", &["member", "replace", &gone, "n6"]);
    let change = rig.reconfigure("multipaxos");
    println!("reconfigured in {:?}", change.join().unwrap());
    rig.await_end(leader);
    rig.await_protocol("multipaxos");
    rig.report("raft to multipaxos while the leader is replaced").await;

    let leader = rig.leader();
    let gone = rig.name(leader);
    let others = rig.all();
    let change = rig.reconfigure("raft");
    done(&others, &["member", "remove", &gone]);
    println!("reconfigured in {:?}", change.join().unwrap());
    rig.await_end(leader);
    rig.await_protocol("raft");
    rig.report("multipaxos to raft while the leader is removed").await;

    for endpoint in rig.endpoints() {
        assert_eq!(voters(&endpoint).len(), 3);
    }
    finish(rig.cluster, rig.load, &rig.live).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dissemination_changes_to_balanced_and_back() {
    let _alone = ONE_AT_A_TIME.lock().await;
    let folder = tempfile::tempdir().unwrap();
    let rig = Rig::start(folder.path(), "raft");
    progress(&rig.load, 100).await;
    rig.load.longest_gap();
    for dissemination in ["balanced", "references", "balanced", "leader"] {
        let option = format!("dissemination={dissemination}");
        done(&rig.all(), &["reconfigure", "--options", &option]);
        for endpoint in rig.endpoints() {
            until("all disseminate in the new way", || {
                status(&endpoint).is_some_and(|status| status["dissemination"] == dissemination)
            });
        }
        rig.report(&format!("to {dissemination}")).await;
    }
    finish(rig.cluster, rig.load, &rig.live).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_leader_is_killed_while_the_protocol_changes() {
    let _alone = ONE_AT_A_TIME.lock().await;
    let folder = tempfile::tempdir().unwrap();
    let mut rig = Rig::start(folder.path(), "multipaxos");
    progress(&rig.load, 100).await;
    rig.load.longest_gap();

    for (number, protocol) in ["sequence-paxos", "raft", "multipaxos", "raft", "sequence-paxos", "multipaxos"]
        .into_iter()
        .enumerate()
    {
        if number < 3 {
            // This is for comparison, with nothing else going on.
            rig.reconfigure(protocol).join().unwrap();
            rig.await_protocol(protocol);
            rig.report(&format!("to {protocol}")).await;
            continue;
        }
        let leader = rig.leader();
        let all = rig.all();
        // Whether the change was made before the leader was killed is a matter of luck; when asked for again,
        // it must be made in the end.
        let change = thread::spawn(move || {
            synod(&["reconfigure", "--protocol", protocol, "--endpoints", &all]).status.success()
        });
        thread::sleep(Duration::from_millis(fastrand::u64(0..25)));
        rig.cluster.kill(leader);
        progress(&rig.load, 100).await;
        println!("the change was answered: {}", change.join().unwrap());
        rig.report(&format!("to {protocol}, kill -9 of the leader")).await;
        rig.cluster.restart(leader);
        until("the change is made", || {
            let endpoints = rig.endpoints();
            let made = |endpoint: &String| status(endpoint).is_some_and(|now| now["protocol"] == protocol);
            if endpoints.iter().any(made) {
                return true;
            }
            synod(&["reconfigure", "--protocol", protocol, "--endpoints", &rig.all()]);
            false
        });
        rig.await_protocol(protocol);
        rig.load.longest_gap();
    }
    finish(rig.cluster, rig.load, &rig.live).await;
}

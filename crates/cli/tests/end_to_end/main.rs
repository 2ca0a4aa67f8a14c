//! Replicas as real processes under load: killed repeatedly, with each protocol and with balanced; and while
//! protocol, dissemination and members change; and over datagrams, of which some are lost.
//!
//! `SYNOD_E2E_ROUNDS` says how often each of leader, follower and all at once is killed; once if it is not set.

mod changes;
#[path = "../commands/mod.rs"]
mod commands;
mod datagrams;
mod load;

use std::{
    collections::BTreeMap,
    env,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use etcd_client::{Client, GetOptions};
use tokio::{sync::Mutex, time::sleep};

use synod_testkit::processes::Cluster;

use self::{
    commands::SYNOD,
    load::{Load, connect},
};

/// Several clusters at once would take each other's processor time, and elections would say little about the program.
static ONE_AT_A_TIME: Mutex<()> = Mutex::const_new(());
/// Small limits, so that the replicas also take snapshots, trim their logs and catch up by both.
const SMALL: [&str; 5] = [
    "--election-timeout=600ms",
    "--heartbeat-interval=60ms",
    "--snapshot-count=400",
    "--keep-slots=100",
    "--wal-segment-bytes=1MiB",
];
/// How long anything may take that depends on elections and on how busy the machine is.
const WAIT_MAX: Duration = Duration::from_secs(30);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn multipaxos_loses_nothing_acknowledged_by_kills_under_load() {
    kills(&["--protocol=multipaxos"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sequence_paxos_loses_nothing_acknowledged_by_kills_under_load() {
    kills(&["--protocol=sequence-paxos"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn raft_loses_nothing_acknowledged_by_kills_under_load() {
    kills(&["--protocol=raft"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a quarter of a minute, and balanced is killed below with another protocol: run it when MultiPaxos changes"]
async fn multipaxos_with_balanced_loses_nothing_acknowledged_by_kills_under_load() {
    kills(&["--protocol=multipaxos", "--dissemination=balanced"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sequence_paxos_with_balanced_loses_nothing_acknowledged_by_kills_under_load() {
    kills(&["--protocol=sequence-paxos", "--dissemination=balanced"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a quarter of a minute, and balanced is killed above with another protocol: run it when Raft changes"]
async fn raft_with_balanced_loses_nothing_acknowledged_by_kills_under_load() {
    kills(&["--protocol=raft", "--dissemination=balanced"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ring_loses_nothing_acknowledged_by_kills_under_load() {
    kills(&["--protocol=ring"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a quarter of a minute: run it, or `synod lab run chaos` with these options, when gossip changes"]
async fn raft_with_gossip_loses_nothing_acknowledged_by_kills_under_load() {
    kills(&["--protocol=raft", "--options=replication=gossip-status"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn merged_groups_lose_nothing_acknowledged_by_kills_under_load() {
    kills(&["--groups=merge:3"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "half a minute: run it when the election by latency changes"]
async fn a_leader_chosen_by_latency_loses_nothing_acknowledged_by_kills_under_load() {
    kills(&["--protocol=raft", "--election=latency"]).await;
    kills(&["--protocol=ring", "--election=latency"]).await;
}

/// Nobody leads: each replica is killed, and then all are.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a quarter of a minute: run it when the log in rounds changes"]
async fn rounds_lose_nothing_acknowledged_by_kills_under_load() {
    let _alone = ONE_AT_A_TIME.lock().await;
    let folder = tempfile::tempdir().unwrap();
    let mut flags = SMALL.to_vec();
    flags.extend(["--protocol=rounds", "--laboratory"]);
    let mut cluster = Cluster::start(Path::new(SYNOD), folder.path(), 3, &flags);
    let load = Load::start(&cluster.endpoints());
    progress(&load, 50).await;
    for index in 0..3 {
        cluster.kill(index);
        progress(&load, 100).await;
        cluster.restart(index);
        progress(&load, 100).await;
    }
    (0..3).for_each(|index| cluster.kill(index));
    (0..3).for_each(|index| cluster.restart(index));
    progress(&load, 100).await;
    finish(cluster, load, &[0, 1, 2]).await;
}

async fn kills(ordering: &[&str]) {
    let _alone = ONE_AT_A_TIME.lock().await;
    let rounds = env::var("SYNOD_E2E_ROUNDS").map_or(1, |rounds| rounds.parse().expect("a number of rounds"));
    let folder = tempfile::tempdir().unwrap();
    let mut flags = SMALL.to_vec();
    flags.extend(ordering);
    let cluster = Cluster::start(Path::new(SYNOD), folder.path(), 3, &flags);
    kills_of(cluster, rounds).await;
}

/// Kills replicas of a cluster under load, this many times each.
async fn kills_of(mut cluster: Cluster, rounds: usize) {
    let endpoints = cluster.endpoints();
    let load = Load::start(&endpoints);
    progress(&load, 50).await;

    for round in 0..rounds {
        let leader = leader(&endpoints).await;
        println!("round {round}: kill -9 of the leader, n{}", leader + 1);
        cluster.kill(leader);
        progress(&load, 100).await;
        cluster.restart(leader);
        progress(&load, 100).await;

        let follower = (self::leader(&endpoints).await + 1 + round % 2) % 3;
        println!("round {round}: kill -9 of a follower, n{}", follower + 1);
        cluster.kill(follower);
        progress(&load, 500).await;
        cluster.restart(follower);
        progress(&load, 100).await;

        println!("round {round}: kill -9 of all three");
        (0..3).for_each(|index| cluster.kill(index));
        (0..3).for_each(|index| cluster.restart(index));
        progress(&load, 100).await;
    }
    finish(cluster, load, &[0, 1, 2]).await;
}

/// Ends the load, and checks what these replicas hold and what clients saw.
async fn finish(mut cluster: Cluster, load: Load, live: &[usize]) {
    let (acknowledged, history) = load.stop().await;
    let all = cluster.endpoints();
    let endpoints: Vec<_> = live.iter().map(|&index| all[index].clone()).collect();
    let contents = equal_contents(&endpoints).await;
    let missing: Vec<_> = acknowledged.iter().filter(|key| !contents.contains_key(*key)).collect();
    assert!(missing.is_empty(), "{} acknowledged writes are lost: {missing:?}", missing.len());
    let found = history.check();
    println!("{} keys acknowledged, {found:?}", acknowledged.len());
    assert!(found.violations.is_empty(), "{}", found.violations.join("\n"));
    assert_eq!(found.undecided, 0);
    assert!(found.reads > 50 && found.writes > 50, "too little was done to prove anything: {found:?}");

    for &index in live {
        assert!(cluster.stop(index).success(), "SIGTERM ends a replica in good order");
        let verify =
            Command::new(SYNOD).args(["wal", "verify"]).arg(cluster.data_dir(index)).output().unwrap();
        let said = String::from_utf8_lossy(&verify.stdout);
        assert!(verify.status.success() && said.contains("closed in good order"), "{said}");
    }
}

/// Waits until this many more writes were acknowledged.
async fn progress(load: &Load, writes: u64) {
    let wanted = load.acknowledged() + writes;
    let deadline = Instant::now() + WAIT_MAX;
    while load.acknowledged() < wanted {
        assert!(Instant::now() < deadline, "the cluster serves no writes");
        sleep(Duration::from_millis(10)).await;
    }
}

/// The leader's index, as told by a replica that takes itself for the leader.
async fn leader(endpoints: &[String]) -> usize {
    let deadline = Instant::now() + WAIT_MAX;
    loop {
        for (index, endpoint) in endpoints.iter().enumerate() {
            let status = connect(std::slice::from_ref(endpoint)).await.status().await;
            // The ids are 1, 2, 3 in the order of the names.
            if status.is_ok_and(|status| status.leader() == index as u64 + 1) {
                return index;
            }
        }
        assert!(Instant::now() < deadline, "nobody leads");
        sleep(Duration::from_millis(50)).await;
    }
}

/// A key's value, the revision at which it was written, and its version.
type Contents = BTreeMap<String, (String, i64, i64)>;

/// Waits until all replicas have executed the same, and returns what they then hold: the same.
async fn equal_contents(endpoints: &[String]) -> Contents {
    let deadline = Instant::now() + WAIT_MAX;
    let mut clients = Vec::new();
    for endpoint in endpoints {
        clients.push(connect(std::slice::from_ref(endpoint)).await);
    }
    loop {
        let mut seen = Vec::new();
        for client in &mut clients {
            // A replica that was just restarted may not answer yet.
            if let Ok(one) = contents(client).await {
                seen.push(one);
            }
        }
        if seen.len() == clients.len() && seen.iter().all(|(_, revision, _)| *revision == seen[0].1) {
            for (index, (contents, _, hash)) in seen.iter().enumerate() {
                let (one, other) = (&endpoints[0], &endpoints[index]);
                assert!(*contents == seen[0].0, "{other} holds something else than {one}");
                assert_eq!(*hash, seen[0].2, "{other} has another hash than {one}");
            }
            return seen.swap_remove(0).0;
        }
        assert!(Instant::now() < deadline, "the replicas do not reach the same revision");
        sleep(Duration::from_millis(100)).await;
    }
}

/// What a replica itself holds, at which revision, and its hash.
async fn contents(client: &mut Client) -> Result<(Contents, i64, u32), etcd_client::Error> {
    let all = GetOptions::new().with_all_keys().with_serializable();
    let response = client.get("", Some(all)).await?;
    let revision = response.header().map_or(0, |header| header.revision());
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("only text is written here");
    let contents =
        response.kvs().iter().map(|kv| (text(kv.key()), (text(kv.value()), kv.mod_revision(), kv.version())));
    let hash = client.hash_kv(revision).await?.hash();
    Ok((contents.collect(), revision, hash))
}

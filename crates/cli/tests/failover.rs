//! Real processes, and a leader that is killed.

use std::{
    path::Path,
    process::{Command, Output},
    time::{Duration, Instant},
};
use synod_testkit::processes::Cluster;

const SYNOD: &str = env!("CARGO_BIN_EXE_synod");
/// This is so long that a replica that waits for it is too late for this test.
const ELECTION_TIMEOUT: Duration = Duration::from_secs(10);

fn ask(endpoints: &str, what: &[&str]) -> Output {
    let all = [what, &["--endpoints", endpoints, "--command-timeout", "9s"]].concat();
    Command::new(SYNOD).args(all).output().expect("the program can be started")
}

#[test]
fn a_leader_whose_process_has_ended_is_replaced_without_waiting_for_its_silence() {
    let elections = [
        ("multipaxos", "ballot"),
        ("multipaxos", "rotating"),
        ("sequence-paxos", "latency"),
        ("raft", "randomized"),
    ];
    for (protocol, election) in elections {
        let folder = tempfile::tempdir().unwrap();
        let timeout = format!("--election-timeout={}", ELECTION_TIMEOUT.as_millis());
        let flags = [
            &*format!("--protocol={protocol}"),
            &format!("--election={election}"),
            &timeout,
            "--request-timeout=60s",
        ];
        let mut cluster = Cluster::start(Path::new(SYNOD), folder.path(), 3, &flags);
        let endpoints = cluster.endpoints();
        let began = Instant::now();
        while !ask(&endpoints[0], &["put", "a", "1"]).status.success() {
            assert!(began.elapsed() < Duration::from_secs(120), "nothing was written with {election}");
        }
        let status = ask(&endpoints.join(","), &["status"]);
        let text = String::from_utf8_lossy(&status.stdout).into_owned();
        let leader = (0..3).find(|index| text.contains(&format!("n{}, ballot", index + 1))).expect(&text);

        cluster.kill(leader);
        let killed = Instant::now();
        let put = ask(&endpoints[(leader + 1) % 3], &["put", "a", "2"]);
        assert!(put.status.success(), "{election}: {}", String::from_utf8_lossy(&put.stderr));
        assert!(killed.elapsed() < ELECTION_TIMEOUT, "{election}");
    }
}

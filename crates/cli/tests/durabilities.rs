//! Real processes with less than `--durability sync`: what a restarted replica knows, and which replica may
//! not restart.

mod commands;

use std::{
    fs,
    path::Path,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
};

use synod_testkit::{WAIT_MAX, free_port, processes::Cluster, until};

use self::commands::{SYNOD, done, leader, status, synod, voters};

const FLAGS: [&str; 3] = ["--election-timeout=600ms", "--heartbeat-interval=60ms", "--snapshot-count=50"];

/// Writes of the keys k1, k2 and so on, each with its number as the value, as far as they were acknowledged.
#[derive(Default)]
struct Writes {
    acknowledged: AtomicU64,
    over: AtomicBool,
}

impl Writes {
    /// Writes one key after the other, each until it is acknowledged.
    fn go_on(&self, endpoints: &str) {
        while !self.over.load(Ordering::SeqCst) {
            let next = (self.acknowledged.load(Ordering::SeqCst) + 1).to_string();
            let put =
                ["put", &format!("k{next}"), &next, "--endpoints", endpoints, "--command-timeout", "5s"];
            if synod(&put).status.success() {
                self.acknowledged.fetch_add(1, Ordering::SeqCst);
            }
        }
    }

    #[track_caller]
    fn progress(&self) {
        let before = self.acknowledged.load(Ordering::SeqCst);
        until("writes are acknowledged", || self.acknowledged.load(Ordering::SeqCst) > before + 10);
    }
}

/// Changes the data as a power failure would: the machine has booted again, and the end of the log was never
/// on its disk.
fn power_fails(data_dir: &Path) {
    let state = data_dir.join("wal/log.state");
    let text = fs::read_to_string(&state).unwrap();
    let (body, _) = text.rsplit_once("checksum = ").unwrap();
    let lines = body.lines().map(|line| if line.starts_with("boot = ") { "boot = another" } else { line });
    let body: String = lines.map(|line| format!("{line}\n")).collect();
    fs::write(&state, format!("{body}checksum = {:08x}\n", crc32fast::hash(body.as_bytes()))).unwrap();

    let segments = fs::read_dir(data_dir.join("wal")).unwrap().map(|entry| entry.unwrap().path());
    let mut segments: Vec<_> =
        segments.filter(|path| path.extension().is_some_and(|end| end == "wal")).collect();
    segments.sort();
    // The last segment may be prepared and not begun.
    let begun = |path: &std::path::PathBuf| fs::read(path).unwrap().iter().any(|&byte| byte != 0);
    let last = segments.into_iter().rev().find(begun).unwrap();
    let mut bytes = fs::read(&last).unwrap();
    let end = bytes.iter().rposition(|&byte| byte != 0).unwrap();
    bytes[end & !4095..].fill(0);
    fs::write(&last, bytes).unwrap();
    // The log had not been idle either: otherwise it would have been made durable, and that would have been noted.
    let mark = data_dir.join("wal/log.mark");
    fs::write(&mark, vec![0; fs::read(&mark).unwrap().len()]).unwrap();
}

#[test]
fn a_view_replica_is_killed_and_loses_power_under_writes_and_votes_again() {
    for protocol in ["multipaxos", "raft"] {
        let folder = tempfile::tempdir().unwrap();
        let protocol_flag = format!("--protocol={protocol}");
        let flags = [&FLAGS[..], &["--durability=view", &protocol_flag]].concat();
        let mut cluster = Cluster::start(Path::new(SYNOD), folder.path(), 3, &flags);
        let endpoints = cluster.endpoints();
        let all = endpoints.join(",");
        let writes = Writes::default();
        thread::scope(|scope| {
            scope.spawn(|| writes.go_on(&all));
            // A panic here ends the writer, too.
            let end = end_with(&writes.over);
            writes.progress();

            // The kernel has all that the processes wrote, so no replica forgets anything.
            (0..3).for_each(|index| cluster.kill(index));
            (0..3).for_each(|index| cluster.restart(index));
            writes.progress();
            let forgot = "learns from its peers before it votes";
            (0..3).for_each(|index| assert!(!cluster.said(index).contains(forgot), "{protocol}"));

            let follower = (leader(&endpoints) + 1) % 3;
            cluster.kill(follower);
            power_fails(cluster.data_dir(follower));
            writes.progress();
            cluster.restart(follower);
            until("it knows that it forgot", || cluster.said(follower).contains(forgot));
            until("it votes again", || {
                status(&endpoints[follower]).is_some_and(|now| {
                    now["without_memory"] == false
                        && ["follower", "leader"].iter().any(|role| now["role"] == *role)
                })
            });
            // The vote of the restarted replica is needed from here on.
            let leads = leader(&endpoints);
            cluster.kill(if leads == follower { (follower + 1) % 3 } else { leads });
            writes.progress();
            drop(end);
        });
        let acknowledged = writes.acknowledged.load(Ordering::SeqCst);
        let kept = done(&all, &["get", "k", "--prefix", "--count-only"]);
        // One more key may have been written whose answer was lost.
        let kept: u64 = kept.trim().parse().unwrap_or_else(|_| panic!("{kept}"));
        assert!(kept == acknowledged || kept == acknowledged + 1, "{protocol}: {kept} of {acknowledged}");
    }
}

/// Ends the writes when it is dropped.
fn end_with(over: &AtomicBool) -> impl Drop + '_ {
    struct End<'a>(&'a AtomicBool);
    impl Drop for End<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    End(over)
}

#[test]
fn a_crash_stop_replica_is_refused_a_second_start_and_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let flags = [&FLAGS[..], &["--durability=crash-stop"]].concat();
    let mut cluster = Cluster::start(Path::new(SYNOD), folder.path(), 3, &flags);
    let endpoints = cluster.endpoints();
    until("a write is acknowledged", || {
        synod(&["put", "a", "1", "--endpoints", &endpoints[0]]).status.success()
    });

    cluster.kill(2);
    for again in [&[][..], &["--durability=sync"]] {
        cluster.restart_with(2, again);
        assert_eq!(cluster.ends(2, WAIT_MAX).code(), Some(1));
        let said = cluster.said(2);
        let last = said.lines().last().unwrap_or_default();
        for part in ["crash-stop", "synod member replace", "--initial-cluster-state existing"] {
            assert!(last.contains(part), "{said}");
        }
    }

    let port = free_port();
    let url = format!("http://127.0.0.1:{port}");
    let left = endpoints[..2].join(",");
    done(&left, &["member", "replace", "n3", "n4", "--peer-urls", &url, "--wait=false"]);
    cluster.join("n4", port, &flags);
    until("it votes", || voters(&endpoints[0]) == ["n1", "n2", "n4"]);
    cluster.kill(1);
    until("its vote counts", || synod(&["put", "a", "2", "--endpoints", &endpoints[0]]).status.success());
}

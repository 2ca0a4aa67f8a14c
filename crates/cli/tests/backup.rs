//! Backups: saved while a cluster serves, and restored into new ones.

mod commands;

use std::{
    env, fs,
    net::TcpListener,
    ops::Range,
    os::unix::{fs::PermissionsExt as _, process::CommandExt as _},
    path::Path,
    process::Command,
};

use rustix::process::{Pid, Signal, kill_process_group};

use synod_testkit::{processes::Cluster, until};

use self::commands::{SYNOD, done, refused, synod};

/// What a client reads of all that is in a backup.
fn contents(endpoint: &str, lease: &str) -> Vec<String> {
    let read = |args: &[&str]| {
        let mut answer: serde_json::Value = serde_json::from_str(&done(endpoint, args)).unwrap();
        // Cluster, member and term are others.
        let revision = answer["header"]["revision"].take();
        answer.as_object_mut().map(|answer| answer.remove("header"));
        format!("{args:?}: {revision} {answer}")
    };
    let mut all: Vec<_> = ["3", "4", "5", "0"]
        .iter()
        .map(|revision| read(&["get", "", "--prefix", "--rev", revision, "-w", "json"]))
        .collect();
    let leased: serde_json::Value =
        serde_json::from_str(&done(endpoint, &["lease", "timetolive", lease, "--keys", "-w", "json"]))
            .unwrap();
    all.push(format!("{} {}", leased["granted-ttl"], leased["keys"]));
    all
}

#[test]
fn what_one_cluster_saved_another_one_begins_with() {
    let folder = tempfile::tempdir().unwrap();
    let flags = ["--election-timeout=300"];
    ["old", "new", "merged"].iter().for_each(|name| fs::create_dir(folder.path().join(name)).unwrap());
    let old = Cluster::start(Path::new(SYNOD), &folder.path().join("old"), 1, &flags);
    let from = old.endpoints().swap_remove(0);
    until("it serves", || synod(&["put", "a", "1", "--endpoints", &from]).status.success());
    let lease = done(&from, &["lease", "grant", "3600"]);
    let lease = lease.split(' ').nth(1).unwrap();
    done(&from, &["put", "leased", "2", "--lease", lease]);
    done(&from, &["put", "a", "3"]);
    done(&from, &["del", "leased"]);
    done(&from, &["put", "leased", "4", "--lease", lease]);
    done(&from, &["compact", "3"]);
    let before = contents(&from, lease);

    let file = folder.path().join("backup");
    let path = file.to_str().unwrap();
    let said = done(&from, &["snapshot", "save", path]);
    assert!(said.contains("saved: revision 6, 2 keys, "), "{said}");
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 4, "nothing else is left");
    let told = synod(&["snapshot", "status", path, "-w", "json"]);
    let told: serde_json::Value = serde_json::from_slice(&told.stdout).unwrap();
    assert_eq!((told["revision"].as_i64(), told["totalKey"].as_i64()), (Some(6), Some(2)));

    // Three replicas, and one with merged groups, in which keys are in one order too.
    for (name, replicas, more) in [("new", 3, &[][..]), ("merged", 1, &["--groups=merge:2"])] {
        let flags = [&flags[..], more].concat();
        let mut new = Cluster::start_some(Path::new(SYNOD), &folder.path().join(name), replicas, 0, &flags);
        for index in 0..replicas {
            let restored = new.restore(index, &[path]);
            let said = String::from_utf8_lossy(&restored.stdout);
            assert!(
                restored.status.success() && said.contains("revision 6, 2 keys, 1 leases"),
                "{restored:?}"
            );
        }
        refused(&new.restore(0, &[path]), 2, &["--data-dir", "is not empty"]);
        (0..replicas).for_each(|index| new.restart(index));
        let all = new.endpoints();
        until("it serves", || synod(&["get", "a", "--endpoints", &all.join(",")]).status.success());
        for endpoint in &all {
            assert_eq!(contents(endpoint, lease), before, "{name}");
        }
        done(&all[0], &["put", "b", "7"]);
        let watched = done(&all[replicas - 1], &["get", "b", "-w", "json"]);
        assert!(watched.contains("\"mod_revision\":7"), "{watched}");
        // It is another cluster, but its flags are those of the first start.
        assert!(!new.said(0).contains("would not begin"), "{}", new.said(0));
    }
}

#[test]
fn what_cannot_be_restored_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    ["old", "new"].iter().for_each(|name| fs::create_dir(folder.path().join(name)).unwrap());
    let old = Cluster::start(Path::new(SYNOD), &folder.path().join("old"), 1, &["--election-timeout=300"]);
    let from = old.endpoints().swap_remove(0);
    until("it serves", || synod(&["put", "a", "1", "--endpoints", &from]).status.success());
    let file = folder.path().join("backup");
    let path = file.to_str().unwrap();
    done(&from, &["snapshot", "save", path]);
    let good = fs::read(&file).unwrap();

    let new = Cluster::start_some(Path::new(SYNOD), &folder.path().join("new"), 1, 0, &[]);
    let restore = |more: &[&str]| new.restore(0, &[&[path], more].concat());
    fs::write(&file, &good[..good.len() - 4096]).unwrap();
    refused(&restore(&[]), 1, &["backup: its hash does not match", "hint: take an earlier file"]);
    refused(&restore(&["--skip-hash-check"]), 1, &["backup: it ends too early"]);
    fs::write(&file, &good[..good.len() - 32]).unwrap();
    refused(&restore(&[]), 1, &["does not end with a hash", "hint: ", "--skip-hash-check"]);
    let mut flipped = good.clone();
    flipped[5 * 4096 + 3] ^= 1;
    fs::write(&file, &flipped).unwrap();
    refused(&restore(&[]), 1, &["its hash does not match"]);
    refused(&restore(&["--skip-hash-check"]), 1, &["backup: page 5: it has another number"]);
    fs::write(&file, "no database").unwrap();
    refused(&restore(&["--skip-hash-check"]), 1, &["no valid first pages"]);
    refused(&synod(&["snapshot", "status", "missing"]), 1, &["missing: No such file"]);
    fs::write(&file, &good).unwrap();
    refused(&restore(&["--groups=shard:2"]), 2, &["--groups shard:2", "merge:N"]);
    refused(&restore(&["--initial-cluster-state=existing"]), 2, &["--initial-cluster-state existing"]);
    refused(&restore(&["--bump-revision=5"]), 2, &["--mark-compacted"]);
    assert!(!new.data_dir(0).exists() && !folder.path().join("new/n1.new").exists());

    // The bare database of a member, and revisions that are skipped.
    fs::write(&file, &good[..good.len() - 32]).unwrap();
    let bumped = restore(&["--skip-hash-check", "--bump-revision=100", "--mark-compacted"]);
    assert!(String::from_utf8_lossy(&bumped.stdout).contains("revision 102, 1 keys"), "{bumped:?}");

    // Settings in a file or in etcd's variables are those of `serve`.
    let settings = folder.path().join("new/n2.toml");
    let (second, third) = (folder.path().join("new/n2"), folder.path().join("new/n3"));
    let cluster = "name = 'x'\ninitial-cluster = 'x=http://127.0.0.1:23801'\n";
    fs::write(&settings, format!("{cluster}data-dir = {second:?}\n")).unwrap();
    let by_file =
        ["snapshot", "restore", path, "--skip-hash-check", "--config-file", settings.to_str().unwrap()];
    assert!(synod(&by_file).status.success() && second.exists());
    let mut by_variable = Command::new(SYNOD);
    by_variable.args(["snapshot", "restore", path, "--skip-hash-check"]).env("ETCD_DATA_DIR", &third);
    assert!(by_variable.output().unwrap().status.success() && third.exists());

    // A save that fails leaves no file, and an earlier one as it was.
    fs::write(&file, "earlier").unwrap();
    drop(old);
    refused(&synod(&["snapshot", "save", path, "--endpoints", &from]), 1, &[&from]);
    assert_eq!(fs::read(&file).unwrap(), b"earlier");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3, "nothing else is left");
}

/// Replicas that a script has started.
struct Started(Pid);

impl Drop for Started {
    fn drop(&mut self) {
        let _ = kill_process_group(self.0, Signal::KILL);
    }
}

/// The end of five-digit ports that begin with 1, 2 and 3, at which nobody listens.
fn free_ending(among: Range<u16>) -> String {
    loop {
        let ending = format!("{:04}", fastrand::u16(among.clone()));
        let is_free = |first: &u16| TcpListener::bind(format!("127.0.0.1:{first}{ending}")).is_ok();
        if [1, 2, 3].iter().all(is_free) {
            return ending;
        }
    }
}

#[test]
fn the_page_about_backups_does_what_it_says() {
    let folder = tempfile::tempdir().unwrap();
    let old = Cluster::start(Path::new(SYNOD), folder.path(), 1, &["--election-timeout=300"]);
    let from = old.endpoints().swap_remove(0);
    until("it serves", || synod(&["put", "a", "1", "--endpoints", &from]).status.success());
    let page = include_str!("../../../docs/backup.md");
    let script = page.split("```sh\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let (peers, clients) = (free_ending(1_000..1_500), free_ending(1_500..2_000));
    let script = script
        .replace("http://127.0.0.1:2379", &from)
        .replace("2380", &peers)
        .replace("}2379", &format!("}}{clients}"));
    let way = format!("{}:{}", Path::new(SYNOD).parent().unwrap().display(), env::var("PATH").unwrap());
    let mut shell = Command::new("sh");
    shell.args(["-euc", &script]).env("PATH", way).current_dir(folder.path()).process_group(0);
    let mut shell = shell.spawn().unwrap();
    let _started = Started(Pid::from_child(&shell));
    assert!(shell.wait().unwrap().success(), "{script}");
    let endpoints = ["1", "2", "3"].map(|first| format!("http://127.0.0.1:{first}{clients}"));
    until("the new cluster serves", || {
        let read = synod(&["get", "a", "--print-value-only", "--endpoints", &endpoints.join(",")]);
        read.stdout == b"1\n"
    });
}

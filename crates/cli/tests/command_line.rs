//! The program as a person or a script meets it: messages, exit codes, `dev`, and the commands on keys.

mod commands;

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    net::TcpListener,
    path::Path,
    process::{Child, Command, Output, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use synod_testkit::{
    free_port,
    processes::{Cluster, stop},
};

use self::commands::{SYNOD, refused, synod};

const WAIT_MAX: Duration = Duration::from_secs(30);

#[test]
fn a_wrong_setting_is_named_with_its_value_and_what_is_accepted() {
    refused(&synod(&["serve", "--protocol", "rafft"]), 2, &["rafft", "--protocol", "accepted: multipaxos"]);
    refused(
        &synod(&["serve", "--election-timeout", "soon"]),
        2,
        &["soon", "--election-timeout", "accepted: 100"],
    );
    refused(&synod(&["serve", "--window-max", "0"]), 2, &["0", "--window-max", "1 to 65535 slots"]);
    refused(&synod(&["serve", "--data-dirr", "x"]), 2, &["--data-dirr", "--data-dir"]);
    refused(
        &synod(&["serve", "--name", "x", "--initial-cluster", "a=http://h:1"]),
        2,
        &["--name x", "accepted: a"],
    );
    refused(
        &synod(&["serve", "--listen-client-urls", "https://127.0.0.1:1"]),
        2,
        &["--listen-client-urls https://127.0.0.1:1", "TLS"],
    );
    refused(
        &synod(&["serve", "--protocol", "raft", "--election", "ballot"]),
        2,
        &[
            "--election ballot: does not go with --protocol raft; accepted: randomized",
            "`synod serve --help` ends with",
        ],
    );
    let help = synod(&["serve", "--help"]);
    let help = String::from_utf8_lossy(&help.stdout).into_owned();
    assert!(help.contains("  raft            election       randomized, latency\n"), "{help}");
    refused(&synod(&["serve", "--log-level", "x=y=z"]), 2, &["--log-level x=y=z", "accepted: error, warn"]);
}

#[test]
fn a_reader_that_has_seen_enough_is_no_failure() {
    let piped = format!("set -o pipefail; {SYNOD} sim run --seeds 17..19 --trace | head -n 3");
    let output = Command::new("bash").args(["-c", &piped]).output().expect("there is a shell");
    assert!(output.status.success(), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stdout).lines().count(), 3);
    assert!(!String::from_utf8_lossy(&output.stderr).contains("panicked"), "{output:?}");
}

#[test]
fn a_flag_that_is_given_twice_takes_the_last_value() {
    let given =
        &["serve", "--name", "a", "--name", "x", "--initial-cluster", "b=http://h:2", "--window-max=3"];
    let twice = [given, &["--window-max", "4", "--initial-cluster=a=http://h:1"][..]].concat();
    refused(&synod(&twice), 2, &["--name x", "accepted: a"]);
    refused(
        &synod(&[&twice[..], &["--window-max", "0"]].concat()),
        2,
        &["0", "--window-max", "1 to 65535 slots"],
    );
}

#[test]
fn a_flag_wins_over_the_environment_and_that_over_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("synod.toml");
    fs::write(&file, "election-timeout = 110\nheartbeat-interval = '90ms'\n").unwrap();
    let serve = |args: &[&str], env: Option<&str>| {
        let mut command = Command::new(SYNOD);
        command.args(["serve", "--config-file"]).arg(&file).args(args);
        command.envs(env.map(|value| ("SYNOD_ELECTION_TIMEOUT", value)));
        command.output().unwrap()
    };
    // All of these are too short for the file's heartbeat, so the refusal tells which one counts.
    refused(&serve(&[], None), 2, &["--election-timeout 110ms", "90ms"]);
    refused(&serve(&[], Some("120")), 2, &["--election-timeout 120ms", "90ms"]);
    refused(&serve(&["--election-timeout=130"], Some("120")), 2, &["--election-timeout 130ms", "90ms"]);

    fs::write(&file, "elektion-timeout = 110\n").unwrap();
    refused(&serve(&[], None), 2, &["synod.toml", "unknown key 'elektion-timeout'", "election-timeout"]);
    fs::write(&file, "decision = 'both'\n").unwrap();
    refused(&serve(&[], None), 2, &["synod.toml", "decision = both", "accepted: leader, all"]);
    fs::remove_file(&file).unwrap();
    refused(&serve(&[], None), 2, &["synod.toml", "cannot be read"]);
}

#[test]
fn a_port_that_is_taken_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", taken.local_addr().unwrap());
    let data = folder.path().join("data");
    let dir = data.to_str().unwrap();
    let peers = format!("http://127.0.0.1:{}", free_port());
    let serve =
        synod(&["serve", "--data-dir", dir, "--listen-client-urls", &url, "--listen-peer-urls", &peers]);
    refused(&serve, 1, &[&url["http://".len()..], "in use", "--listen-client-urls"]);
    let serve = synod(&["serve", "--data-dir", dir, "--listen-peer-urls", &url]);
    refused(&serve, 1, &[&url["http://".len()..], "in use", "--listen-peer-urls"]);
}

#[test]
fn what_cannot_be_reached_or_read_is_a_failure() {
    let nobody = format!("http://127.0.0.1:{}", free_port());
    let began = Instant::now();
    let get = synod(&["get", "a", "--endpoints", &nobody, "--command-timeout", "60s"]);
    refused(&get, 1, &[&nobody, "is a replica running there?", "synod dev", "--endpoints"]);
    assert!(began.elapsed() < Duration::from_secs(30), "it is said at once");
    refused(&synod(&["wal", "verify", "/nowhere"]), 1, &["/nowhere"]);
    refused(&synod(&["put", "--endpoints", "ftp://a:1", "a", "b"]), 2, &["ftp://a:1", "http://"]);
    // As etcdctl takes them.
    refused(&synod(&["--endpoints", "ftp://a:1", "put", "a", "b"]), 2, &["ftp://a:1", "http://"]);
}

#[test]
fn a_missing_quorum_is_called_that_within_the_time_that_a_command_has() {
    let folder = tempfile::tempdir().unwrap();
    let flags = ["--election-timeout=300", "--request-timeout=2s"];
    let mut cluster = Cluster::start(Path::new(SYNOD), folder.path(), 3, &flags);
    let first = cluster.endpoints().swap_remove(0);
    let ask = |what: &[&str]| synod(&[what, &["--endpoints", &first]].concat());
    let began = Instant::now();
    while !ask(&["put", "a", "b"]).status.success() {
        assert!(began.elapsed() < WAIT_MAX, "nothing was written");
    }
    cluster.kill(1);
    cluster.kill(2);
    for what in [&["put", "a", "c"][..], &["get", "a"], &["member", "list"], &["compact", "1"]] {
        let answer = ask(&[what, &["--command-timeout", "2500ms"]].concat());
        let quorum = "1 of 3 voters answers (n1), and 2 have to. Start n2, n3;";
        refused(&answer, 1, &["etcdserver: no leader", quorum, "A quorum is lost for good"]);
    }
}

/// The commands do not wait for it, though it is named first.
#[test]
fn a_replica_that_hangs_is_passed_over_and_named() {
    let folder = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(Path::new(SYNOD), folder.path(), 3, &["--election-timeout=300"]);
    let endpoints = cluster.endpoints().join(",");
    let ask = |what: &[&str]| synod(&[what, &["--endpoints", &endpoints]].concat());
    let until = |what: &[&str]| {
        let began = Instant::now();
        while !ask(what).status.success() {
            assert!(began.elapsed() < WAIT_MAX, "{what:?}");
        }
    };
    until(&["put", "a", "b"]);
    until(&["move-leader", "n2"]);
    let began = Instant::now();
    let all_told = || {
        let members = String::from_utf8(ask(&["member", "list"]).stdout).unwrap();
        cluster.endpoints().iter().all(|endpoint| members.contains(endpoint))
    };
    while !all_told() {
        assert!(began.elapsed() < WAIT_MAX, "all tell where clients reach them");
    }
    cluster.hang(0);
    for what in [&["put", "a", "c"][..], &["get", "a"], &["move-leader", "n3"], &["member", "list"]] {
        let answer = ask(what);
        assert!(answer.status.success(), "{what:?}: {answer:?}");
    }
    let status = ask(&["status", "--cluster"]);
    refused(&status, 1, &["no answer in time", "1 of 3 replicas gave no status"]);
    let told = String::from_utf8_lossy(&status.stdout).into_owned();
    let is_named = |line: &str| line.contains("n1") && line.contains("unreachable");
    assert!(told.lines().any(is_named) && told.contains("n2"), "{told}");
}

#[test]
fn a_full_store_is_told_and_takes_puts_again_once_there_is_room() {
    let folder = tempfile::tempdir().unwrap();
    let flags = ["--election-timeout=300", "--quota-backend-bytes=2MiB"];
    let cluster = Cluster::start(Path::new(SYNOD), folder.path(), 1, &flags);
    let endpoint = cluster.endpoints().swap_remove(0);
    let ask = |what: &[&str]| synod(&[what, &["--endpoints", &endpoint]].concat());
    let text =
        |output: Output| String::from_utf8(output.stdout).unwrap() + &String::from_utf8_lossy(&output.stderr);
    let until = |what: &str, holds: &dyn Fn() -> bool| {
        let began = Instant::now();
        while !holds() {
            assert!(began.elapsed() < WAIT_MAX, "{what}\n{}", cluster.said(0));
            thread::sleep(Duration::from_millis(100));
        }
    };
    until("it serves", &|| ask(&["put", "a", "b"]).status.success());
    let value = "v".repeat(100_000);
    until("it is full", &|| !ask(&["put", "large", &value]).status.success());
    refused(
        &ask(&["put", "a", "c"]),
        1,
        &["database space exceeded", "hint: the store is full", "synod compact REVISION --disarm"],
    );
    assert!(text(ask(&["alarm", "list"])).contains("alarm:NOSPACE"));
    assert!(text(ask(&["status"])).contains("the alarm NOSPACE of n1 is raised: the store is full"));
    until("it is in the log", &|| cluster.said(0).contains("the alarm NOSPACE of n1 is raised"));
    // The newest revision is that of the last put.
    let at = text(ask(&["get", "large", "-w", "json"]));
    let revision: serde_json::Value = serde_json::from_str(&at).unwrap();
    let revision = revision["header"]["revision"].to_string();
    assert!(ask(&["del", "large"]).status.success());
    let newest = (revision.parse::<i64>().unwrap() + 1).to_string();
    let told = text(ask(&["compact", &newest, "--disarm"]));
    assert_eq!(told, format!("compacted revision {newest}\ncleared 1 alarm\n"));
    assert_eq!(text(ask(&["put", "a", "c"])), "OK\n");
    assert_eq!(text(ask(&["alarm", "disarm"])), "");
    until("that is in the log", &|| cluster.said(0).contains("the alarm NOSPACE of n1 is cleared"));
}

/// `synod dev`, with its output line by line.
struct Dev {
    process: Child,
    lines: mpsc::Receiver<String>,
    endpoints: String,
}

impl Dev {
    fn start(data: &Path, base_port: u16) -> Dev {
        let mut process = Command::new(SYNOD)
            .args(["dev", "--election-timeout=500ms", &format!("--base-port={base_port}"), "--data"])
            .arg(data)
            // The replicas inherit it. A hash that costs more takes long without optimisations.
            .env("SYNOD_BCRYPT_COST", "4")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the program can be started");
        let said = BufReader::new(process.stdout.take().unwrap());
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || said.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        let urls = (0..3).map(|index| format!("http://127.0.0.1:{}", base_port + 10 * index));
        Dev { process, lines, endpoints: urls.collect::<Vec<_>>().join(",") }
    }

    /// Waits for a line with this in it.
    fn wait_for(&self, part: &str) -> String {
        let deadline = Instant::now() + WAIT_MAX;
        let mut before = Vec::new();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) if line.contains(part) => return line,
                Ok(line) => before.push(line),
                Err(_) => panic!("dev did not say '{part}', only {before:#?}"),
            }
        }
    }

    /// Runs a command against the cluster that must succeed; `input` is its standard input.
    fn synod(&self, args: &[&str], input: &str) -> String {
        let mut command = Command::new(SYNOD)
            .args(args)
            .env("SYNOD_ENDPOINTS", &self.endpoints)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        command.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let output = command.wait_with_output().unwrap();
        assert!(output.status.success(), "synod {args:?}");
        String::from_utf8(output.stdout).unwrap()
    }
}

impl Drop for Dev {
    fn drop(&mut self) {
        // This matters only after a failure; the replicas end with `dev`.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Waits until no process listens at these ports.
fn wait_until_free(ports: &[u16]) {
    let deadline = Instant::now() + WAIT_MAX;
    while !ports.iter().all(|&port| TcpListener::bind(("127.0.0.1", port)).is_ok()) {
        assert!(Instant::now() < deadline, "a replica outlives dev");
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn dev_starts_serves_stops_and_goes_on_with_its_data() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let base = free_block();
    let ports: Vec<u16> = (0..3).flat_map(|index| [base + 10 * index, base + 10 * index + 1]).collect();

    let mut dev = Dev::start(&data, base);
    dev.wait_for("n3     clients http://127.0.0.1:");
    dev.wait_for(" leads (ballot ");
    dev.wait_for("Try, in another terminal");
    keys(&dev);
    overview(&dev);
    users(&dev, folder.path());
    assert!(stop(&mut dev.process).success(), "SIGTERM stops dev in good order");
    wait_until_free(&ports);
    for name in ["n1", "n2", "n3"] {
        let verify = synod(&["wal", "verify", data.join(name).to_str().unwrap()]);
        let said = String::from_utf8_lossy(&verify.stdout);
        assert!(verify.status.success() && said.contains("closed in good order"), "{said}");
    }
    dumped(&data.join("n1"));

    let mut dev = Dev::start(&data, base);
    let leader = dev.wait_for(" leads (ballot ");
    assert_eq!(dev.synod(&["get", "city"], ""), "city\nLausanne\n");
    kill_replica(&dev, &leader);
    dev.wait_for("it stays dead");
    dev.wait_for(" leads (ballot ");
    assert_eq!(dev.synod(&["put", "after", "kill"], ""), "OK\n");

    // A dev that is killed takes its replicas with it.
    dev.process.kill().unwrap();
    dev.process.wait().unwrap();
    wait_until_free(&ports);

    // The replicas know each other's addresses from their first start on.
    let elsewhere = (base + 1).to_string();
    let moved = synod(&["dev", "--base-port", &elsewhere, "--data", data.to_str().unwrap()]);
    refused(&moved, 2, &["--base-port", &base.to_string(), "--data"]);
    let mut dev = Dev::start(&data, base);
    dev.wait_for(" leads (ballot ");
    assert_eq!(dev.synod(&["get", "after", "--print-value-only"], ""), "kill\n");
    assert!(stop(&mut dev.process).success());
    refused(
        &synod(&["dev", "--replicas", "5", "--data", data.to_str().unwrap()]),
        2,
        &["--replicas 5", "data of 3", "--data"],
    );
    damaged(&data.join("n2"));
}

/// A port that is followed by free ports where `dev` looks for them.
fn free_block() -> u16 {
    loop {
        let base = free_port();
        let wanted = (0..3).flat_map(|index| [base + 10 * index, base + 10 * index + 1]);
        if wanted.into_iter().all(|port| TcpListener::bind(("127.0.0.1", port)).is_ok()) {
            return base;
        }
    }
}

/// Kills the replica that leads, by its process id, which `dev` has printed.
fn kill_replica(dev: &Dev, leader: &str) {
    let name = leader.split(' ').next().unwrap();
    let status = dev.synod(&["status", "-w", "json"], "");
    assert!(status.contains(&format!(r#""leader_name":"{name}""#)), "{status}");
    let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", dev.process.id())).unwrap();
    let is_leader = |pid: &&str| {
        let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split('\0').any(|arg| arg == format!("--name={name}"))
    };
    let pid = children.split_whitespace().find(is_leader).expect("the leader is a child of dev");
    let pid = rustix::process::Pid::from_raw(pid.parse().unwrap()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

/// The commands on keys, in the manner of etcdctl.
fn keys(dev: &Dev) {
    assert_eq!(dev.synod(&["put", "city", "Bern"], ""), "OK\n");
    assert_eq!(dev.synod(&["put", "city", "--prev-kv"], "Lausanne"), "OK\ncity\nBern\n");
    assert_eq!(dev.synod(&["put", "country", "Switzerland"], ""), "OK\n");
    assert_eq!(dev.synod(&["get", "city"], ""), "city\nLausanne\n");
    assert_eq!(dev.synod(&["get", "city", "--rev", "2"], ""), "city\nBern\n");
    assert_eq!(dev.synod(&["get", "c", "--prefix", "--keys-only"], ""), "city\n\ncountry\n\n");
    assert_eq!(dev.synod(&["get", "c", "--prefix", "--count-only"], ""), "2\n");
    let descending = ["get", "", "--prefix", "--order", "DESCEND", "--limit", "1", "--print-value-only"];
    assert_eq!(dev.synod(&descending, ""), "Switzerland\n");
    assert_eq!(dev.synod(&["get", "nothing", "--serializable"], ""), "");
    let json = dev.synod(&["get", "city", "-w", "json"], "");
    assert!(json.contains(r#""key":"Y2l0eQ==""#) && json.contains(r#""mod_revision":3"#), "{json}");
    let table = dev.synod(&["get", "city", "-w", "table"], "");
    assert!(table.contains("| city | Lausanne |"), "{table}");

    let txn = "value(\"city\") = \"Lausanne\"\n\nput state Vaud\nget city\n\ndel city\n\n";
    assert_eq!(dev.synod(&["txn"], txn), "SUCCESS\n\nOK\n\ncity\nLausanne\n");
    let txn = "version(\"city\") < \"2\"\n\nput state Bern\n\nget state\n\n";
    assert_eq!(dev.synod(&["txn"], txn), "FAILURE\n\nstate\nVaud\n");
    assert_eq!(dev.synod(&["del", "state", "--prev-kv"], ""), "1\nstate\nVaud\n");
    assert_eq!(dev.synod(&["compact", "4"], ""), "compacted revision 4\n");
    let old = ["get", "city", "--rev", "2", "--endpoints", &dev.endpoints];
    refused(&synod(&old), 1, &["etcdserver: mvcc: required revision has been compacted"]);
}

fn overview(dev: &Dev) {
    let members = dev.synod(&["member", "list"], "");
    assert_eq!(members.lines().count(), 3, "{members}");
    assert!(members.starts_with("1, started, n1, http://127.0.0.1:"), "{members}");
    let status = dev.synod(&["status"], "");
    assert_eq!(status.matches("| leader ").count(), 1, "{status}");
    assert_eq!(status.matches("| follower ").count(), 2, "{status}");
    let first = dev.endpoints.split(',').next().unwrap();
    let status = dev.synod(&["status", "--cluster", "-w", "json", "--endpoints", first], "");
    assert_eq!(status.matches(r#""state":"reachable""#).count(), 3, "{status}");

    let what_does_not_go_together =
        synod(&["reconfigure", "--protocol", "raft", "--election", "ballot", "--endpoints", first]);
    let why = "election ballot does not go with raft; accepted: randomized";
    refused(&what_does_not_go_together, 1, &[why]);
    let foreign = synod(&["reconfigure", "--options", "head-start=off", "--endpoints", first]);
    refused(&foreign, 1, &["option head-start does not go with multipaxos; accepted: window-max"]);
}

/// Users and roles, until users count no more.
fn users(dev: &Dev, folder: &Path) {
    let fails = |args: &[&str], code: i32, parts: &[&str]| {
        refused(&synod(&[args, &["--endpoints", &dev.endpoints]].concat()), code, parts);
    };
    fails(&["auth", "enable"], 1, &["root user does not exist", "hint: ", "`synod user add root`"]);
    fails(&["user", "add", "root"], 3, &["standard input", "the password is empty", "--new-password-file"]);
    assert_eq!(dev.synod(&["user", "add", "root"], "a secret\n"), "User root created\n");
    let granted = dev.synod(&["user", "grant-role", "root", "root"], "");
    assert_eq!(granted, "Role root is granted to user root\n");
    let file = folder.join("password");
    fs::write(&file, "hers\n").unwrap();
    let add = ["user", "add", "app", "--new-password-file", file.to_str().unwrap()];
    assert_eq!(dev.synod(&add, ""), "User app created\n");
    assert_eq!(dev.synod(&["role", "add", "app"], ""), "Role app created\n");
    let grant = ["role", "grant-permission", "app", "readwrite", "app/", "--prefix"];
    assert_eq!(dev.synod(&grant, ""), "Role app updated\n");
    dev.synod(&["user", "grant-role", "app", "app"], "");
    assert_eq!(dev.synod(&["auth", "enable"], ""), "Authentication Enabled\n");

    fails(&["put", "app/a", "1"], 1, &["etcdserver: user name is empty", "hint: users count here"]);
    assert_eq!(dev.synod(&["put", "app/a", "1", "--user", "app:hers"], ""), "OK\n");
    fails(&["put", "b", "1", "--user", "app:hers"], 1, &["etcdserver: permission denied", "hint: "]);
    let root = ["--user", "root:a secret"];
    let as_root = |args: &[&str], input: &str| dev.synod(&[args, &root].concat(), input);
    assert_eq!(as_root(&["user", "list"], ""), "app\nroot\n");
    assert_eq!(as_root(&["user", "passwd", "app"], "new\n"), "Password updated\n");
    fails(&["get", "app/a", "--user", "app:hers"], 1, &["authentication failed"]);
    let detail = dev.synod(&["user", "get", "app", "--detail", "--user", "app:new"], "");
    let range = "\t[app/, app0) (prefix app/)\n";
    assert_eq!(detail, format!("User: app\n\nRole app\nKV Read:\n{range}KV Write:\n{range}"));
    // The role root permits everything, though nobody has added it.
    let detail = as_root(&["user", "get", "root", "--detail", "-w", "json"], "");
    let permitted = r#"[{"perm":[{"permType":2,"range_end":"AA=="}],"role":"root"}]"#;
    assert_eq!(detail, format!("{{\"detail\":{permitted},\"roles\":[\"root\"]}}\n"));
    let json = as_root(&["role", "get", "app", "-w", "json"], "");
    let permitted = r#""perm":[{"key":"YXBwLw==","permType":2,"range_end":"YXBwMA=="}]"#;
    assert!(json.contains(permitted), "{json}");
    let other = [&["role", "revoke-permission", "app", "app/"][..], &root].concat();
    fails(&other, 1, &["permission is not granted to the role", "hint: "]);
    let revoked = as_root(&["role", "revoke-permission", "app", "app/", "--prefix"], "");
    assert_eq!(revoked, "Permission of range [app/, app0) is revoked from role app\n");
    let delete = [&["user", "delete", "root"][..], &root].concat();
    fails(&delete, 1, &["etcdserver: invalid auth management", "`synod auth disable`"]);
    let status = dev.synod(&["auth", "status"], "");
    assert!(status.starts_with("Authentication Status: true\nAuthRevision: "), "{status}");
    assert_eq!(as_root(&["auth", "disable"], ""), "Authentication Disabled\n");
}

fn dumped(dir: &Path) {
    let dump = synod(&["wal", "dump", dir.to_str().unwrap()]);
    let said = String::from_utf8_lossy(&dump.stdout);
    // What waited together shares a record, so the slots of a record differ from run to run.
    let put = said.lines().find(|line| line.contains("city=Bern"));
    assert!(dump.status.success() && put.is_some_and(|line| line.contains(", slot")), "{said}");
}

/// Changes a byte in the middle of a log: that is damage, not a torn end.
fn damaged(dir: &Path) {
    let dump = synod(&["wal", "dump", dir.to_str().unwrap()]);
    let said = String::from_utf8_lossy(&dump.stdout).into_owned();
    let at = said.split("at byte ").nth(2).and_then(|rest| rest.split(',').next()).unwrap();
    let segment = said.lines().next().unwrap().split(' ').nth(2).unwrap();
    let mut bytes = fs::read(segment).unwrap();
    bytes[at.parse::<usize>().unwrap() + 60] ^= 0xff;
    fs::write(segment, bytes).unwrap();
    let verify = synod(&["wal", "verify", dir.to_str().unwrap()]);
    assert!(String::from_utf8_lossy(&verify.stdout).contains("DAMAGED"), "{verify:?}");
    refused(&verify, 1, &["not whole"]);
}

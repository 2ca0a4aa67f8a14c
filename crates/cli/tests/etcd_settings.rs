//! A replica that is started with etcd's own settings: its YAML file, its variables, its flags.

mod commands;

use std::{
    fs,
    os::unix::net::UnixDatagram,
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use synod_testkit::{
    free_ports,
    processes::{Cluster, stop},
    until,
};

use self::commands::{SYNOD, done, synod};

/// A process that ends with the test.
struct Replica(Option<Child>);

impl Drop for Replica {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            stop(&mut child);
        }
    }
}

/// A file as etcd reads it, with settings that have an effect here and others that have none.
fn etcd_file(folder: &Path, client: &str, peer: &str, log: &Path) -> String {
    format!(
        "name: of-file\ndata-dir: {data}\nlisten-peer-urls: {peer}\nlisten-client-urls: {client}\n\
         advertise-client-urls: {client}\ninitial-cluster: n1={peer}\nmax-wals: 5\nsnapshot-count: 10000\n\
         quota-backend-bytes: 0\nheartbeat-interval: 50\nelection-timeout: 500\ninitial-cluster-token: 'etcd-cluster'\n\
         warning-unary-request-duration: 1\nauto-compaction-mode: revision\nauto-compaction-retention: \"1000\"\n\
         client-transport-security:\n  cert-file:\n  client-cert-auth: false\nlog-outputs: [stderr, {log}]\n\
         enable-log-rotation: true\nlog-rotation-config-json: '{{\"maxsize\": 5, \"localtime\": true}}'\n\
         log-level: debug\n",
        data = folder.join("data").display(),
        log = log.display(),
    )
}

#[test]
fn a_file_variables_and_flags_of_etcds_start_a_replica() {
    let folder = tempfile::tempdir().unwrap();
    let [client, peer, pages] = free_ports(3)[..] else { unreachable!("three were asked for") };
    let [client, peer, pages] = [client, peer, pages].map(|port| format!("http://127.0.0.1:{port}"));
    let (file, log) = (folder.path().join("etcd.conf.yml"), folder.path().join("log"));
    fs::write(&file, etcd_file(folder.path(), &client, &peer, &log)).unwrap();
    let mut command = Command::new(SYNOD);
    command.args(["serve", "-pre-vote=false", "-name", "n1", "--feature-gates=InitialCorruptCheck=true"]);
    command.args([
        "--peer-skip-client-san-verification",
        "--client-cert-file=a.crt",
        "--client-key-file=a.key",
    ]);
    command.env("ETCD_CONFIG_FILE", &file).env("ETCD_NAME", "of-variable");
    command.env("ETCD_LISTEN_CLIENT_HTTP_URLS", &pages).env("ETCD_UNHEARD_OF", "1");
    let child = command.stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let replica = Replica(Some(child));
    until("it serves", || synod(&["get", "k", "--endpoints", &client]).status.success());
    done(&client, &["put", "k", "v"]);
    assert_eq!(done(&client, &["get", "k", "--print-value-only"]), "v\n");
    // Pages are served apart from gRPC.
    let page = |url: &str| {
        let page = Command::new("curl").args(["-s", "-m", "5", &format!("{url}/version")]).output().unwrap();
        String::from_utf8(page.stdout).unwrap()
    };
    assert!(page(&pages).contains("etcdserver"), "{}", page(&pages));
    assert_eq!(page(&client), "");
    let post = |path: &str, body: &str| {
        let args = ["-s", "-m", "10", &format!("{pages}/v3/{path}"), "-d", body];
        let answer = Command::new("curl").args(args).output().unwrap();
        assert!(String::from_utf8(answer.stdout).unwrap().contains("header"), "{path}");
    };
    post("auth/user/add", r#"{"name":"u","password":"s3cret"}"#);
    // A second member that stays a learner is one too many.
    let add = |name: &str, url: &str| {
        let args = ["member", "add", name, "--peer-urls", url, "--learner", "--endpoints", &client];
        String::from_utf8(synod(&args).stderr).unwrap()
    };
    assert_eq!(add("n2", "http://127.0.0.1:1"), "");
    let refused = add("n3", "http://127.0.0.1:2");
    assert!(refused.contains("too many learner members in cluster"), "{refused}");
    // That its address is taken is said first, as by etcd.
    let refused = add("n3", "http://127.0.0.1:1");
    assert!(refused.contains("Peer URLs already exists"), "{refused}");
    // It serves some time before it says so.
    let log = || fs::read_to_string(&log).unwrap();
    until("it is ready", || log().contains("ready to serve client requests"));
    // Every request is slow here, and ten a second are told.
    until("a slow put is told with its key and where its time went", || {
        post("kv/put", r#"{"key":"YS1rZXk=","value":"YS12YWx1ZQ=="}"#);
        let parts =
            ["request stats", "key=\"a-key\"", "peer=127.0.0.1:", "_bytes=", " ordering=", " execution="];
        log().lines().any(|line| parts.iter().all(|part| line.contains(part)))
    });
    drop(replica);
    let log = log();
    for line in [
        "ETCD_NAME is set too, and --name counts",
        "unrecognized environment variable ETCD_UNHEARD_OF",
        "--max-wals has no meaning here",
        "--pre-vote false has no effect",
        "--log-rotation-config-json: localtime has no effect",
        "starting initial corruption check",
        "request stats: it took too long",
        // What `debug` adds.
        "settings of this replica",
        "prepared a segment of the log",
        "election group=g0 epoch=e1 role=\"leader\"",
    ] {
        assert!(log.contains(line), "{line:?} is not in\n{log}");
    }
    // It is nothing for each request, and no secret.
    for not in ["h2::", "s3cret", "a-value"] {
        assert!(!log.contains(not), "{not:?} is in\n{log}");
    }
    assert!(!log.contains("--initial-cluster-token"), "{log}");
}

/// What the server does by itself from time to time, at the shortest intervals that etcd takes.
#[test]
fn old_revisions_are_compacted_and_members_compared_as_the_flags_say() {
    let folder = tempfile::tempdir().unwrap();
    let flags = [
        "--auto-compaction-mode=periodic",
        "--auto-compaction-retention=2s",
        "--corrupt-check-time=1s",
        "--feature-gates=CompactHashCheck=true",
        "--compact-hash-check-time=1s",
    ];
    let cluster = Cluster::start(Path::new(SYNOD), folder.path(), 3, &flags);
    let endpoint = cluster.endpoints().remove(0);
    until("it serves", || synod(&["put", "k", "1", "--endpoints", &endpoint]).status.success());
    for value in ["2", "3"] {
        done(&endpoint, &["put", "k", value]);
    }
    until("the first revision is compacted", || {
        let refused = synod(&["get", "k", "--rev", "2", "--endpoints", &endpoint]).stderr;
        String::from_utf8(refused).unwrap().contains("required revision has been compacted")
    });
    assert_eq!(done(&endpoint, &["get", "k", "--print-value-only"]), "3\n");
    let said = |line: &str| (0..3).any(|of| cluster.said(of).contains(line));
    until("members were compared", || said("finished peer corruption check"));
    for line in ["starting auto periodic compaction", "completed auto periodic compaction"] {
        assert!(said(line), "{line:?} is in no log");
    }
}

#[test]
fn a_service_manager_is_told_when_the_replica_serves_and_when_it_ends() {
    let folder = tempfile::tempdir().unwrap();
    let [client, peer] = free_ports(2)[..] else { unreachable!("two were asked for") };
    let path = folder.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let receives = || {
        let mut bytes = [0; 64];
        let received = socket.recv(&mut bytes).unwrap();
        String::from_utf8(bytes[..received].to_vec()).unwrap()
    };
    let client = format!("http://127.0.0.1:{client}");
    let mut command = Command::new(SYNOD);
    command.args(["serve", "--name=n1", "--initial-cluster", &format!("n1=http://127.0.0.1:{peer}")]);
    command.args([
        "--listen-client-urls",
        &client,
        "--listen-peer-urls",
        &format!("http://127.0.0.1:{peer}"),
    ]);
    let (data, log) = (folder.path().join("data"), folder.path().join("fast/wal"));
    command.arg("--data-dir").arg(&data).env("ETCD_WAL_DIR", &log).env("NOTIFY_SOCKET", &path);
    let replica = Replica(Some(command.stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()));
    assert_eq!(receives(), "READY=1");
    done(&client, &["put", "k", "v"]);
    drop(replica);
    assert_eq!(receives(), "STOPPING=1");
    assert!(log.join("00000000000000000001.wal").exists());
    let verified = synod(&["wal", "verify", data.to_str().unwrap()]);
    assert!(verified.status.success(), "{verified:?}");
}

#[test]
fn what_would_be_dangerous_to_ignore_is_refused() {
    let refused = |args: &[&str], parts: &[&str]| {
        let output = synod(&[&["serve"], args].concat());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{said}");
        parts.iter().for_each(|part| assert!(said.contains(part), "{said} should contain {part}"));
    };
    refused(&["--force-new-cluster"], &["--force-new-cluster", "synod recover"]);
    refused(&["--unsafe-no-fsync", "--durability=view"], &["--unsafe-no-fsync", "--durability view"]);
    refused(&["--auto-compaction-retention=soon"], &["--auto-compaction-retention soon", "30m"]);
    refused(&["--feature-gates=Speed=true"], &["unrecognized feature gate: Speed"]);
    refused(&["--no-such-flag"], &["--no-such-flag"]);
}

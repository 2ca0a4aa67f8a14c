//! Clusters of real processes that speak TLS with clients and with each other.

#[path = "../../tls/src/authority.rs"]
#[allow(dead_code, reason = "a part of it is used")]
mod authority;
mod commands;

use std::{os::unix::net::UnixStream, path::Path};

use synod_testkit::{WAIT_MAX, free_port, processes::Cluster, until};

use self::{
    authority::{Authority, Issued, Wanted},
    commands::{SYNOD, synod},
};

/// Small limits, so that a joining replica must fetch a snapshot first.
const FLAGS: [&str; 2] = ["--snapshot-count=100", "--keep-slots=20"];

fn issue(authority: &Authority, name: &str) -> Issued {
    authority.issue(&Wanted { file: name, common_name: name, ..Wanted::default() })
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Runs a command with the flags of a client.
fn run(endpoints: &str, client: &[&str], args: &[&str]) -> Result<String, String> {
    run_for("20s", endpoints, client, args)
}

/// Why a client with these flags gets nothing.
fn refused(endpoints: &str, client: &[&str]) -> String {
    run_for("1s", endpoints, client, &["get", "k"]).unwrap_err()
}

fn run_for(time: &str, endpoints: &str, client: &[&str], args: &[&str]) -> Result<String, String> {
    let output = synod(&[args, client, &["--endpoints", endpoints, "--command-timeout", time]].concat());
    let said = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    if output.status.success() { Ok(said(output.stdout)) } else { Err(said(output.stderr)) }
}

/// Replicas with TLS for all, which admit certificates of one authority only; one is killed, comes back, and one joins.
fn a_cluster_serves_and_admits_members_only(threads: &str) {
    let (folder, authority) = (tempfile::tempdir().unwrap(), Authority::new());
    let (member, user) = (issue(&authority, "member"), issue(&authority, "user"));
    let ca = text(authority.certificate());
    let flags = [
        "--cert-file",
        text(&member.certificate),
        "--key-file",
        text(&member.key),
        "--trusted-ca-file",
        ca,
        "--peer-cert-file",
        text(&member.certificate),
        "--peer-key-file",
        text(&member.key),
        "--peer-trusted-ca-file",
        ca,
        "--peer-cert-allowed-cn",
        "member",
        "--threads",
        threads,
    ];
    let flags = [&flags[..], &FLAGS].concat();
    let mut cluster = Cluster::start_with_tls(Path::new(SYNOD), folder.path(), 3, &flags);
    let all = cluster.endpoints().join(",");
    let client = ["--cacert", ca, "--cert", text(&user.certificate), "--key", text(&user.key)];
    until("they serve", || run(&all, &client, &["put", "k", "v"]).is_ok());
    let load = ["bench", "put", "--total", "150", "--sequential-keys", "--key-size", "8", "--keep"];
    run(&all, &client, &load).unwrap();
    for endpoint in cluster.endpoints() {
        assert_eq!(run(&endpoint, &client, &["get", "k", "--print-value-only"]).unwrap().trim(), "v");
    }
    let status = run(&all, &client, &["status", "-w", "json"]).unwrap();
    assert_eq!(status.matches("\"reachable\"").count(), 3, "{status}");

    // A client that shows no certificate, or trusts another authority, gets nothing.
    let stranger = Authority::new();
    refused(&all, &["--cacert", ca]);
    refused(&all, &["--insecure-skip-tls-verify"]);
    let error = refused(&all, &["--cacert", text(stranger.certificate())]);
    assert!(error.contains("another authority") && error.contains("hint: --cacert names"), "{error}");
    let plain = all.replace("https://", "http://");
    let error = refused(&plain, &[]);
    assert!(error.contains("hint: http://") && error.contains("speaks TLS: write https://"), "{error}");

    cluster.kill(2);
    run(&all, &client, &["put", "k", "w"]).unwrap();
    cluster.restart(2);
    let third = &cluster.endpoints()[2];
    until("it comes back", || {
        run(third, &client, &["get", "k", "--print-value-only"]).is_ok_and(|v| v.trim() == "w")
    });

    // One that joins asks whom it joins, and fetches a snapshot.
    let port = free_port();
    let url = format!("https://127.0.0.1:{port}");
    run(&all, &client, &["member", "add", "n4", "--peer-urls", &url, "--wait=false"]).unwrap();
    let fourth = cluster.join("n4", port, &flags);
    let endpoint = cluster.endpoints()[fourth].clone();
    let get = ["get", "000", "--prefix", "--keys-only", "--serializable"];
    until("it has everything", || {
        run(&endpoint, &client, &get)
            .is_ok_and(|keys| keys.lines().filter(|key| !key.is_empty()).count() == 150)
    });
    let said: Vec<_> = (0..4).map(|index| cluster.said(index)).collect();
    assert!(!said.iter().any(|said| said.contains("cannot reach peer: TLS")), "{said:?}");
    for index in 0..4 {
        assert!(cluster.stop(index).success());
    }
}

#[test]
fn a_spread_cluster_serves_and_admits_members_only() {
    a_cluster_serves_and_admits_members_only("spread");
}

#[test]
fn a_compact_cluster_serves_and_admits_members_only() {
    a_cluster_serves_and_admits_members_only("compact");
}

/// Certificates that replicas make for themselves, and a unix socket beside an address with TLS and without.
#[test]
fn a_replica_makes_its_own_certificates() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("client.sock");
    let port = free_port();
    let both = format!("http://127.0.0.1:{port},https://127.0.0.1:{port},unix://{}", socket.display());
    let flags = ["--auto-tls", "--peer-auto-tls", &format!("--listen-client-urls={both}")];
    let mut cluster = Cluster::start_with_tls(Path::new(SYNOD), folder.path(), 1, &[]);
    // Without a certificate there is no TLS.
    assert_eq!(cluster.ends(0, WAIT_MAX).code(), Some(2));
    let said = cluster.said(0);
    assert!(
        said.contains("--listen-client-urls https://") && said.contains("--auto-tls makes one"),
        "{said}"
    );
    cluster.restart_with(0, &flags);
    let secure = format!("https://127.0.0.1:{port}");
    until("it serves", || run(&secure, &["--insecure-skip-tls-verify"], &["put", "k", "v"]).is_ok());
    let made = cluster.data_dir(0).join("fixtures/client/cert.pem");
    for (endpoint, client) in [
        (secure.clone(), &["--cacert", text(&made)][..]),
        (secure.replace("https", "http"), &[]),
        (format!("unix://{}", socket.display()), &[]),
    ] {
        assert_eq!(
            run(&endpoint, client, &["get", "k", "--print-value-only"]).unwrap().trim(),
            "v",
            "{endpoint}"
        );
    }
    // The file of a process that was killed is in nobody's way.
    cluster.kill(0);
    cluster.restart(0);
    until("it serves again", || run(&secure, &["--insecure-skip-tls-verify"], &["get", "k"]).is_ok());
    UnixStream::connect(&socket).unwrap();
    assert!(cluster.stop(0).success() && !socket.exists());
}

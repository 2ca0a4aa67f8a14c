//! More connections than there are descriptors, at real processes: they survive, and serve other clients.

mod commands;

use std::{
    fs,
    net::{TcpStream, ToSocketAddrs},
    os::unix::fs::PermissionsExt,
    thread,
    time::Duration,
};

use synod_testkit::{processes::Cluster, until};

use self::commands::{SYNOD, done, synod};

/// The descriptors of each process; 368 of them are the replica's.
const LIMIT: usize = 384;

#[test]
fn replicas_outlive_more_idle_connections_than_descriptors() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("limited");
    fs::write(&program, format!("#!/bin/sh\nulimit -n {LIMIT}\nexec {SYNOD} \"$@\"\n")).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    // With these flags every few writes need another file.
    let flags = ["--wal-segment-bytes=16KiB", "--snapshot-count=50"];
    let mut cluster = Cluster::start(&program, folder.path(), 3, &flags);
    let endpoints = cluster.endpoints();
    let all = endpoints.join(",");
    until("they serve", || synod(&["put", "k", "v", "--endpoints", &all]).status.success());

    let mut idle = Vec::new();
    for endpoint in &endpoints {
        let address = endpoint.trim_start_matches("http://").to_socket_addrs().unwrap().next().unwrap();
        for _ in 0..LIMIT + 100 {
            idle.extend(TcpStream::connect_timeout(&address, Duration::from_secs(5)));
        }
    }
    let value = "v".repeat(4_000);
    for round in 0..60 {
        let endpoint = &endpoints[round % 3];
        done(endpoint, &["put", &format!("k{round}"), &value]);
    }
    thread::sleep(Duration::from_millis(100));
    for index in 0..3 {
        assert!(cluster.said(index).contains("clients get fewer connections"), "{}", cluster.said(index));
        assert!(cluster.stop(index).success(), "{}", cluster.said(index));
    }
    drop(idle);
}

//! What a release wrote is read by every later one: data directories that lie in `tests/formats/RELEASE/`.
//!
//! A release adds a folder, and changes none: `SYNOD_WRITE_FORMATS=RELEASE cargo test -p synod-node --test formats`
//! writes it.

mod common;

use std::{env, fs, net::TcpListener, path::Path};

use bytes::Bytes;
use common::{Tape, append, block, copy, tape, until};
use synod_consensus::{Dissemination, ProtocolKind};
use synod_node::{Config, MemberAddress, Node};
use synod_replica::SessionCommand;
use synod_wire::{ClusterId, ReplicaId, SessionId};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/formats");

/// What is in each release's folder: a data directory of each.
fn cases() -> impl Iterator<Item = (String, ProtocolKind, Dissemination)> {
    ProtocolKind::ALL.iter().flat_map(|&(name, protocol)| {
        Dissemination::ALL
            .iter()
            .map(move |&(how, dissemination)| (format!("{name}-{how}"), protocol, dissemination))
    })
}

fn start(protocol: ProtocolKind, dissemination: Dissemination, dir: &Path) -> Node {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let members = vec![MemberAddress::new(ReplicaId(1), "n1", address.to_string())];
    let mut config = Config::new(ClusterId(7), ReplicaId(1), members, dir.to_owned());
    config.listeners = vec![listener.into()];
    // The smallest that there is.
    config.segment_bytes = 16 << 10;
    config.settings.consensus.protocol = protocol;
    config.settings.consensus.election = protocol.elections()[0];
    config.settings.consensus.dissemination = dissemination;
    config.settings.snapshot_slots = 5;
    Node::start_blocking(config, Tape::default()).unwrap()
}

/// The session that [`fill`] opens is told here, since a test that reads cannot know it otherwise.
const SESSION: &str = "session";

/// Leaves a snapshot, slots after it, and a session with a reply that is kept.
fn fill(protocol: ProtocolKind, dissemination: Dissemination, dir: &Path) {
    let node = start(protocol, dissemination, dir);
    let handle = node.handle();
    for text in ["a", "b", "c", "d", "e", "f"] {
        append(&handle, text);
    }
    until("there is a snapshot", || handle.status().snapshot.0 > 0);
    let session = block(handle.open_session()).unwrap();
    let place = SessionCommand { session, sequence: 1, lowest_outstanding: 1 };
    block(handle.execute_in_session(place, Bytes::from_static(b"g"))).unwrap();
    node.stop_blocking().unwrap();
    fs::write(dir.join(SESSION), session.0.to_string()).unwrap();
}

fn read(protocol: ProtocolKind, dissemination: Dissemination, dir: &Path) {
    let session = SessionId(fs::read_to_string(dir.join(SESSION)).unwrap().parse().unwrap());
    fs::remove_file(dir.join(SESSION)).unwrap();
    let node = start(protocol, dissemination, dir);
    let handle = node.handle();
    assert_eq!(tape(&handle), "abcdefg");
    let place = SessionCommand { session, sequence: 1, lowest_outstanding: 1 };
    let again = block(handle.execute_in_session(place, Bytes::from_static(b"g"))).unwrap();
    assert_eq!((&*again, &*tape(&handle)), (&b"7"[..], "abcdefg"), "it is answered, and not executed again");
    assert_eq!(append(&handle, "h"), "8");
    let group = handle.group();
    assert_eq!((group.protocol, group.overrides.dissemination()), (protocol, dissemination));
    node.stop_blocking().unwrap();
}

#[test]
fn what_releases_wrote_is_read() {
    if let Ok(release) = env::var("SYNOD_WRITE_FORMATS") {
        for (name, protocol, dissemination) in cases() {
            let dir = Path::new(FOLDER).join(&release).join(name);
            if !dir.exists() {
                fill(protocol, dissemination, &dir);
            }
        }
    }
    let mut releases: Vec<_> = fs::read_dir(FOLDER).unwrap().map(|entry| entry.unwrap().path()).collect();
    releases.sort();
    assert!(releases.iter().any(|release| release.ends_with("0.2.0")), "{releases:?}");
    for release in releases {
        for (name, protocol, dissemination) in cases() {
            let from = release.join(&name);
            if from.exists() {
                println!("{}", from.display());
                let dir = tempfile::tempdir().unwrap();
                copy(&from, dir.path());
                read(protocol, dissemination, dir.path());
            }
        }
    }
}

//! What a release wrote is read by every later one: data directories that lie in `tests/formats/RELEASE/`.
//!
//! A release adds a folder, and changes none:
//! `SYNOD_WRITE_FORMATS=RELEASE cargo test -p synod-node --test node formats`
//! writes it.

use std::{env, fs, net::TcpListener, path::Path};

use crate::common::{Tape, append, block, copy, tape};
use bytes::Bytes;
use synod_consensus::{Dissemination, ProtocolKind};
use synod_node::{Config, Handle, MemberAddress, Merging, Node};
use synod_replica::SessionCommand;
use synod_testkit::until;
use synod_wire::{ClusterId, ReplicaId, SessionId};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/formats");

/// A data directory in each release's folder.
struct Case {
    name: String,
    protocol: ProtocolKind,
    dissemination: Dissemination,
    groups: Groups,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Groups {
    One,
    /// Each with a state machine of its own.
    Apart,
    /// In one order, on one state machine.
    Merged,
}

const GROUPS: u16 = 2;

fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for &(protocol_name, protocol) in ProtocolKind::ALL {
        let mut add = |name: &str, dissemination, groups| {
            cases.push(Case { name: format!("{protocol_name}-{name}"), protocol, dissemination, groups });
        };
        for &(name, dissemination) in Dissemination::ALL {
            add(name, dissemination, Groups::One);
        }
        add("shard", Dissemination::Leader, Groups::Apart);
        add("merge", Dissemination::Leader, Groups::Merged);
    }
    cases
}

/// The session that [`Case::fill`] opens is told here, since a test that reads cannot know it otherwise.
const SESSION: &str = "session";

impl Case {
    fn start(&self, dir: &Path) -> Node {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let members = vec![MemberAddress::new(ReplicaId(1), "n1", address.to_string())];
        let mut config = Config::new(ClusterId(7), ReplicaId(1), members, dir.to_owned());
        config.listeners = vec![listener.into()];
        // The smallest that there is.
        config.segment_bytes = 16 << 10;
        config.settings.consensus.protocol = self.protocol;
        config.settings.consensus.election = self.protocol.elections()[0];
        config.settings.consensus.dissemination = self.dissemination;
        // Of merged groups each orders a part of the commands.
        config.settings.snapshot_slots = if self.groups == Groups::Merged { 2 } else { 5 };
        config.merging = (self.groups == Groups::Merged).then(|| Merging::of(GROUPS));
        let machines = if self.groups == Groups::Apart { GROUPS.into() } else { 1 };
        Node::start_groups_blocking(config, vec![Tape::default(); machines]).unwrap()
    }

    /// One of each state machine.
    fn machines(&self, node: &Node) -> Vec<Handle> {
        match self.groups {
            Groups::Apart => node.handles().to_vec(),
            Groups::One | Groups::Merged => vec![node.handle()],
        }
    }

    /// Leaves a snapshot, slots after it, and a session with a reply that is kept.
    fn fill(&self, dir: &Path) {
        let node = self.start(dir);
        let handles = node.handles();
        for (at, text) in ["a", "b", "c", "d", "e", "f"].into_iter().enumerate() {
            match self.groups {
                Groups::Apart => handles.iter().for_each(|handle| drop(append(handle, text))),
                // Each group orders some of them.
                Groups::One | Groups::Merged => drop(append(&handles[at % handles.len()], text)),
            }
        }
        let written = |handle: &Handle| handle.status().snapshot.0 > 0;
        until("there is a snapshot", || match self.groups {
            Groups::One | Groups::Apart => handles.iter().all(written),
            Groups::Merged => handles.iter().any(written),
        });
        let sessions = self.machines(&node).into_iter().map(|handle| {
            let session = block(handle.open_session()).unwrap();
            block(handle.execute_in_session(first_place(session), Bytes::from_static(b"g"))).unwrap();
            session.0.to_string()
        });
        let sessions = sessions.collect::<Vec<_>>().join(" ");
        node.stop_blocking().unwrap();
        fs::write(dir.join(SESSION), sessions).unwrap();
    }

    fn read(&self, dir: &Path) {
        let sessions = fs::read_to_string(dir.join(SESSION)).unwrap();
        fs::remove_file(dir.join(SESSION)).unwrap();
        let node = self.start(dir);
        let machines = self.machines(&node);
        assert_eq!(sessions.split(' ').count(), machines.len());
        for (handle, session) in machines.iter().zip(sessions.split(' ')) {
            assert_eq!(tape(handle), "abcdefg");
            let place = first_place(SessionId(session.parse().unwrap()));
            let again = block(handle.execute_in_session(place, Bytes::from_static(b"g"))).unwrap();
            assert_eq!(
                (&*again, &*tape(handle)),
                (&b"7"[..], "abcdefg"),
                "it is answered, and not executed again"
            );
            assert_eq!(append(handle, "h"), "8");
        }
        for handle in node.handles() {
            let group = handle.group();
            assert_eq!(
                (group.protocol, group.overrides.dissemination()),
                (self.protocol, self.dissemination)
            );
        }
        node.stop_blocking().unwrap();
    }
}

fn first_place(session: SessionId) -> SessionCommand {
    SessionCommand { session, sequence: 1, lowest_outstanding: 1 }
}

#[test]
fn what_releases_wrote_is_read() {
    if let Ok(release) = env::var("SYNOD_WRITE_FORMATS") {
        for case in cases() {
            let dir = Path::new(FOLDER).join(&release).join(&case.name);
            if !dir.exists() {
                case.fill(&dir);
            }
        }
    }
    let mut releases: Vec<_> = fs::read_dir(FOLDER).unwrap().map(|entry| entry.unwrap().path()).collect();
    releases.sort();
    assert!(releases.iter().any(|release| release.ends_with("0.2.0")), "{releases:?}");
    for release in releases {
        for case in cases() {
            let from = release.join(&case.name);
            if from.exists() {
                println!("{}", from.display());
                let dir = tempfile::tempdir().unwrap();
                copy(&from, dir.path());
                case.read(dir.path());
            } else {
                assert!(!release.ends_with("0.2.0"), "{} is missing", from.display());
            }
        }
    }
}

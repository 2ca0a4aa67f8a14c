//! Exhaustive exploration of small configurations: model checking of the protocols that ship.
//!
//! The simulator runs whole replicas in long random runs. Exploration takes a few bare protocols
//! ([`synod_consensus::Protocol`], the very code that a server runs) and goes through **all** their states:
//! in every state that can be reached it tries everything that can happen next, until there is no other state
//! within the bounds. A violation is shown with a shortest way to it.
//!
//! ```
//! use synod_consensus::ProtocolKind;
//! use synod_sim::explore::{Bounds, explore};
//!
//! let bounds = Bounds { commands: 1, timeouts: 1, crashes: 0, losses: 0, ..Bounds::default() };
//! let report = explore(ProtocolKind::Raft, bounds, &mut |_| ());
//! assert!(report.is_complete() && report.found.is_none());
//! ```
//!
//! | file | story |
//! | --- | --- |
//! | `search.rs` | what can happen in a state; breadth-first, each state once |
//! | `states.rs` | the states that were reached, and which cover others |
//! | `space.rs` | replicas and messages by number; a step of one replica is worked out once |
//! | `node.rs` | one replica: its protocol, clock and log, and what one step makes of them |
//! | `past.rs` | what a replica said and did in all its lives, and whether it may say what it says |
//! | `on_disk.rs` | what a log's durable records say |
//! | `judge.rs` | what the replicas of a state must agree on |
//! | `walks.rs` | random walks instead, for what is too large |
//! | `fingerprint.rs` | telling states apart |
//!
//! [docs/exploring.md](../../../../docs/exploring.md) says what a state is, what can happen in one, what is left out,
//! and why. All replicas begin with their first records durable, and with sessions to each other. Decisions are
//! announced at once.

#[cfg(feature = "cli")]
pub mod cli;
mod fingerprint;
mod judge;
mod node;
mod on_disk;
mod past;
mod search;
mod space;
mod states;
mod walks;

use std::time::Duration;

use synod_api::{
    etcdserverpb::PutRequest,
    synod::v1::{KvCommand, kv_command::Command},
};
use synod_consensus::{Dissemination, ElectionKind, Options, ProtocolKind};
use synod_wire::{Batch, BatchBuilder, BatchId, Incarnation, ReplicaId, SessionId, replica_session};

use crate::check::Violation;
use node::Setting;
use on_disk::Values;
pub use search::Count;
use search::{End, Search, Taken};
use space::{Move, Space};
pub use walks::Walks;

/// The bounds of an exploration. Keep them small: each increment multiplies the states by ten and more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Replicas, all of which vote; 1 to [`Bounds::REPLICAS_MAX`].
    pub replicas: usize,
    /// Commands that are proposed, each once.
    pub commands: u8,
    /// Timers that fire, on all replicas together.
    pub timeouts: u8,
    /// Times that a replica's clock advances by an election time-out without its timer, which is late if it
    /// was due then.
    pub waits: u8,
    /// Replicas that crash and start again.
    pub crashes: u8,
    /// Sessions that break.
    pub losses: u8,
    /// Messages that arrive twice.
    pub duplicates: u8,
    /// Decided slots that a replica learns from another, outside its protocol.
    pub catch_ups: u8,
    /// Whether the first replica begins as one that led an epoch before, and tries to lead at once: then no time-out is
    /// needed for the first election.
    pub head_start: bool,
    /// Whether promises, and what leaders send to lagging followers, come in pages of one batch.
    pub pages: bool,
    /// Steps from the beginning; `None` for any number.
    pub depth: Option<usize>,
    /// Different states, at most 2^32 - 1. About 120 bytes each.
    pub states_max: usize,
}

impl Bounds {
    /// The most replicas.
    pub const REPLICAS_MAX: usize = 7;
    /// The most commands.
    pub const COMMANDS_MAX: u8 = 9;
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds {
            replicas: 3,
            commands: 1,
            timeouts: 1,
            waits: 0,
            crashes: 1,
            losses: 0,
            duplicates: 0,
            catch_ups: 0,
            head_start: false,
            pages: false,
            depth: None,
            states_max: 10_000_000,
        }
    }
}

/// The result of an exploration.
#[derive(Clone, Debug)]
pub struct Report {
    /// How much was explored.
    pub count: Count,
    /// The bound that kept it from exploring everything, if there was one.
    pub incomplete: Option<Incomplete>,
    /// The violation, if one was found.
    pub found: Option<Found>,
}

impl Report {
    /// Whether every state within the bounds was explored.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.incomplete.is_none() && self.found.is_none()
    }
}

/// Why not everything was explored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Incomplete {
    /// [`Bounds::depth`] was reached.
    Depth,
    /// [`Bounds::states_max`] was reached.
    States,
    /// Random walks visit only some states.
    Random,
}

/// A violation, and how to reach it.
#[derive(Clone, Debug)]
pub struct Found {
    /// The violation.
    pub violation: Violation,
    /// The steps that lead to it, each with its effects: as few as possible or, after a random walk, such
    /// that none can be left out.
    pub story: Vec<String>,
}

/// Explores a protocol. `watch` is called from time to time with the progress.
///
/// # Panics
/// The bounds are not those that [`Bounds`] allows.
#[must_use]
pub fn explore(protocol: ProtocolKind, bounds: Bounds, watch: &mut dyn FnMut(Count)) -> Report {
    explore_with(options(protocol), bounds, watch)
}

/// Takes random walks through the states of a protocol. A violation is shown with a run from which no step
/// can be left out, which need not be a shortest one.
///
/// # Panics
/// The bounds are not those that [`Bounds`] allows.
#[must_use]
pub fn walk(protocol: ProtocolKind, bounds: Bounds, walks: Walks, watch: &mut dyn FnMut(Count)) -> Report {
    walk_with(options(protocol), bounds, walks, watch)
}

/// Takes random walks with other options than [`options`].
///
/// # Panics
/// The bounds are not those that [`Bounds`] allows.
#[must_use]
pub fn walk_with(options: Options, bounds: Bounds, walks: Walks, watch: &mut dyn FnMut(Count)) -> Report {
    let (mut space, count, end) = walks::walk(|| setting(options.clone(), bounds), bounds, walks, watch);
    report(&mut space, count, end)
}

/// Explores a protocol with other options than [`options`].
///
/// # Panics
/// The bounds are not those that [`Bounds`] allows.
#[must_use]
pub fn explore_with(options: Options, bounds: Bounds, watch: &mut dyn FnMut(Count)) -> Report {
    let mut space = Space::new(setting(options, bounds));
    let (count, end) = Search::new(&mut space, bounds).run(watch);
    report(&mut space, count, end)
}

/// The setting that all replicas share.
fn setting(mut options: Options, bounds: Bounds) -> Setting {
    assert!((1..=Bounds::REPLICAS_MAX).contains(&bounds.replicas), "this many replicas are not explored");
    assert!(bounds.commands <= Bounds::COMMANDS_MAX, "this many commands are not explored");
    assert!(u32::try_from(bounds.states_max).is_ok(), "states are numbered with 32 bits");
    if bounds.pages {
        (options.page_bytes_max, options.raft.append_bytes_max) = (1, 1);
    }
    let ids: Vec<ReplicaId> = (1..=bounds.replicas as u64).map(ReplicaId).collect();
    let named = options.dissemination == Dissemination::Balanced;
    let forms = |n| if named { named_command(n, &ids, bounds.crashes) } else { vec![command(n)] };
    let values = Values::new((1..=bounds.commands).map(forms).collect());
    Setting { options, values, ids, head_start: bounds.head_start }
}

fn report(space: &mut Space, count: Count, end: End) -> Report {
    let (incomplete, found) = match end {
        End::Complete => (None, None),
        End::Depth => (Some(Incomplete::Depth), None),
        End::States => (Some(Incomplete::States), None),
        End::Walked => (Some(Incomplete::Random), None),
        End::Violated(path, violation) => (None, Some(Found { violation, story: tell(space, &path) })),
    };
    Report { count, incomplete, found }
}

/// The options with which a protocol is explored: the rotating election, where there is a choice, and times
/// that let each time-out mean one thing.
#[must_use]
pub fn options(protocol: ProtocolKind) -> Options {
    let mut options = Options::of(protocol);
    if protocol.elections().contains(&ElectionKind::Rotating) {
        options.election = ElectionKind::Rotating;
    }
    options.election_timeout = Duration::from_secs(1);
    options.heartbeat_interval = options.election_timeout;
    // Longer than any wait of a replica.
    options.retransmit_after = options.election_timeout * 100;
    options
}

/// The n-th command: it puts n.
fn command(n: u8) -> Batch {
    put(n, BatchBuilder::new()).finish()
}

/// The n-th command with the names that it may have: those of the first lives of all replicas, then those of the second
/// ones, and so on.
fn named_command(n: u8, ids: &[ReplicaId], crashes: u8) -> Vec<Batch> {
    let lives = (1..=u64::from(crashes) + 1).map(Incarnation);
    let origins = lives.flat_map(|life| ids.iter().map(move |&id| replica_session(id, life, 0)));
    let name = |origin| put(n, BatchBuilder::identified()).finish_as(BatchId { origin, number: n.into() }, 1);
    origins.map(name).collect()
}

fn put(n: u8, mut batch: BatchBuilder) -> BatchBuilder {
    let put = PutRequest { key: "x".into(), value: n.to_string().into(), ..PutRequest::default() };
    let payload = KvCommand { command: Some(Command::Put(put)), ..KvCommand::default() };
    batch.push(SessionId(1), n.into(), n.into(), &prost::Message::encode_to_vec(&payload));
    batch
}

/// The steps as text.
fn tell(space: &mut Space, path: &[Taken]) -> Vec<String> {
    let mut lines = Vec::new();
    let Ok((mut nodes, _)) = space.begin() else { return lines };
    for (place, taken) in path.iter().enumerate() {
        let at = usize::from(taken.at);
        lines.push(format!("{:>3}  {} {}", place + 1, space.setting.ids[at], title(space, nodes[at], taken)));
        let mut notes = Vec::new();
        let happening = space.happening(at, nodes[at], taken.made);
        // The last step is the one that fails, or the one that leads to a violation.
        let _ = space.node(nodes[at]).node.step(&space.setting, &happening, Some(&mut notes));
        lines.extend(notes.iter().map(|note| format!("         {note}")));
        match space.outcome(at, nodes[at], taken.made) {
            Ok(outcome) => nodes[at] = outcome.node,
            Err(_) => break,
        }
    }
    lines
}

fn title(space: &Space, node: u32, taken: &Taken) -> String {
    match taken.made {
        Move::Receive(parcel) => {
            let parcel = space.parcel(parcel);
            let again = if taken.doubled { " (which will come again)" } else { "" };
            format!("← {}  {}{again}", parcel.from, node::text(&parcel.message))
        }
        Move::Session(peer) => {
            format!("loses its session to {}, and begins another", space.setting.ids[peer as usize])
        }
        Move::Durable(through) => format!("log durable to {through}"),
        Move::Timer => "timer".to_owned(),
        Move::Wait => "an election time-out goes by".to_owned(),
        Move::Propose(proposed) => format!("proposes command {}", proposed + 1),
        Move::Learn(decision) => {
            let (slot, ballots, _) = space.decision(decision);
            format!("learns slot {slot}, decided in ballot {}", ballots.decided)
        }
        Move::Restart(kept) => {
            let lost = space.node(node).records - kept;
            let lost = if lost == 0 { String::new() } else { format!(" without its last {lost} records") };
            format!("crashes, and starts again{lost}")
        }
    }
}

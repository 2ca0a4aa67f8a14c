//! The deterministic simulator: clusters of real replicas in a world where everything can go wrong, from one seed.
//!
//! The replicas are [`synod_replica::Replica`] and [`synod_replica::Executor`] over `synod_kv::KvStore`, as
//! a server runs them; their messages, records and snapshots go through their real encodings. Their
//! surroundings are simulated: time and clocks, the network, disks, clients, and accidents. Nothing here is a
//! second implementation of anything that ships, except the specification of the store against which
//! histories are checked.
//!
//! # How to read it
//!
//! 1. [`plan`]: what a seed draws.
//! 2. [`World`]: how it runs; see the table in `world/mod.rs`.
//! 3. [`check`]: the invariants, each with its source, and the search for a linearization.
//! 4. [`scenario`]: stories told by scripts, with the same replicas and the same checks.
//! 5. [`explore`]: model checking of small configurations of a protocol.
//! 6. [`situations`]: the dangerous situations that the runs of many seeds have reached.
//! 7. [`outage`]: how long service is missing while one fault lasts.
//! 8. [`choice`]: whether a leader that is chosen by latency ends where it should.
//! 9. [`chart`]: message-sequence charts of runs and scenarios.
//! 10. [`guest`]: a state machine of your own under the same faults, with your invariants; [`plans`] and [`REPLAY`].
//! 11. [`cli`]: `synod sim`.
//!
//! # Features
//!
//! Both are on by default. Without them a state machine of your own runs alone ([`run_guest`]).
//!
//! - `kv`: the store, the clients that use and watch it, and what is made for it: scripts, exploration,
//!   outages and choices.
//! - `cli`: `synod sim`, which needs `kv`.
//!
//! # Equal seeds, equal runs
//!
//! All random numbers come from the seed, events of one instant happen in the order in which they were added,
//! and nothing iterates over a randomly hashed map. So a failure is replayed by its seed alone, with a trace:
//!
//! ```
//! use synod_consensus::ProtocolKind;
//! use synod_sim::plan::Plan;
//!
//! let plan = Plan::draw(42, ProtocolKind::MultiPaxos);
//! let outcome = synod_sim::run(&plan)
//!     .unwrap_or_else(|failure| panic!("{}", failure.report(ProtocolKind::MultiPaxos, None)));
//! assert_eq!(synod_sim::run(&plan).unwrap().fingerprint, outcome.fingerprint);
//! ```

// Without `cli` what only its commands show has no user (windows of charts, medians of outages, where a run was), and
// without `kv` what scripts and the store's clients use.
#![cfg_attr(not(feature = "cli"), allow(dead_code, unused_imports))]

mod backup;
pub mod chart;
pub mod check;
#[cfg(feature = "kv")]
pub mod choice;
#[cfg(feature = "cli")]
pub mod cli;
mod clock;
pub mod describe;
mod disk;
#[cfg(feature = "kv")]
pub mod explore;
mod files;
pub mod guest;
mod network;
mod odds;
#[cfg(feature = "kv")]
mod ops;
#[cfg(feature = "kv")]
pub mod outage;
mod per_group;
pub mod plan;
mod queue;
mod replay;
mod run;
#[cfg(feature = "kv")]
pub mod scenario;
pub mod situations;
mod trace;
mod watches;
#[cfg(feature = "kv")]
mod watching;
mod world;

pub use guest::{Guest, InTime, Place, Told};
pub use network::{NetworkPlan, Wire};
pub use odds::Odds;
pub use replay::{REPLAY, plans};
pub use run::{Failure, Groups, record, run, run_guest, run_with_trace};
pub use trace::Trace;
pub use world::{Coverage, Outcome, World};

//! Ordering protocols and leader elections as pure state machines.
//!
//! A protocol is given [`Input`]s (a message, a proposal, "this is on disk now", "this instant has come") and
//! answers with [`Effect`]s (remember this, send that, this is decided). Nothing in this crate reads a clock,
//! opens a file or starts a thread; iteration orders are defined, and random numbers come from a seed. So the code that
//! a server runs is the code that the simulator attacks.
//!
//! # How to read it
//!
//! 1. [`Protocol`]: the contract, with the three rules that carry safety.
//! 2. [`Members`], [`VoterSets`] and [`ReplicaSet`]: what a quorum is.
//! 3. [`multipaxos`], [`sequence_paxos`], [`raft`], [`ring`], [`kernel_paxos`]: the protocols; each folder has the same
//!    files. `rules.rs`, here and in the folders, has what safety rests on, a few lines a rule.
//! 4. [`election`]: who should lead; a protocol is told, and makes it so.
//! 5. [`dissemination`]: how batches reach all replicas, if not by the leader.
//! 6. [`rounds`]: consensus in rounds, and a log that is ordered so without a leader.
//! 7. [`Body`], [`Logged`]: what others see of messages and records, whichever protocol's they are; `registry.rs`:
//!    which protocols there are.

mod acceptor;
mod batches;
mod by_slot;
mod claims;
mod codec;
mod combination;
mod departures;
mod describe;
mod disk_watch;
pub mod dissemination;
pub mod election;
pub mod kernel_paxos;
mod leadership;
mod members;
mod message;
pub mod multipaxos;
mod options;
mod outside;
mod overrides;
mod paxos;
mod planted;
mod progress_watch;
mod proofs;
mod proposer;
mod protocol;
pub mod raft;
mod read_rounds;
mod registry;
mod replay;
mod resend;
pub mod ring;
pub mod rounds;
mod rules;
pub mod sequence_paxos;
mod slot_acceptor;
mod slots;
mod staged;
mod wiring;

pub use batches::Batches;
pub use by_slot::BySlot;
pub use claims::{
    Claim, Claims, Extent, Fact, Facts, Letter, PromisePage, Recollection, Recovery, RingPath, TermClaim,
    TermFact,
};
pub use codec::Field;
pub use combination::{Combination, CombinationError};
pub use describe::{BatchText, Class, Describe};
pub use dissemination::Dissemination;
pub use members::{MEMBERS_MAX, Members, ReplicaSet, Threshold, VoterSets};
pub use message::{Body, Logged};
pub use multipaxos::Decision;
pub use options::{MESSAGE_HEAD_BYTES, Options, Restart, UnknownName};
pub use outside::{NotRegistered, Outside, OutsideMessage, OutsideRecord, Registered, Start};
pub use overrides::{MeasuredOption, OptionError, Overrides, OwnOption};
pub use planted::Bug;
pub use proofs::{Proofs, Prove};
pub use protocol::{
    ChangeRefused, CloneProtocol, Control, Effect, Effects, Input, LeaderView, Link, Protocol, ReadToken,
    Role, Route, Status, To,
};
pub use raft::{Entries, Entry};
pub use registry::{ElectionKind, Message, ProtocolKind, Record, Survives};
pub use slot_acceptor::{SlotAcceptor, SlotRecord};

/// What the code that [`messages!`] writes names.
#[doc(hidden)]
pub use claims::Claimed;
#[doc(hidden)]
pub use synod_wire as wire;

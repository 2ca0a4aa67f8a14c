//! What is checked while a world runs, and at its end.

mod batches;
#[cfg(feature = "kv")]
mod compactions;
mod decided;
mod estimates;
mod gates;
mod goodput;
mod groups;
mod guest;
#[cfg(feature = "kv")]
mod history;
mod invariant;
#[cfg(feature = "kv")]
mod journal;
mod leases;
mod letters;
pub mod linear;
mod lives;
mod memory;
#[cfg(feature = "kv")]
mod model;
mod order;
mod records;
mod reference;
mod terms;
mod votes;

pub(crate) use batches::Batches;
#[cfg(feature = "kv")]
pub use compactions::Compactions;
pub(crate) use decided::DecidedLog;
pub(crate) use gates::SentMessages;
pub(crate) use goodput::Goodput;
pub(crate) use groups::{Groups, settled};
pub(crate) use guest::Answered;
#[cfg(feature = "kv")]
pub(crate) use history::{Done, EndedLease, check_history};
pub(crate) use invariant::demand;
pub use invariant::{Checked, Invariant, Violation};
#[cfg(feature = "kv")]
pub(crate) use journal::Journal;
pub(crate) use leases::{LeaseAct, Leases};
pub(crate) use letters::Letters;
pub(crate) use lives::{Held, Surroundings, Watch};
pub(crate) use memory::Memory;
#[cfg(feature = "kv")]
pub(crate) use model::Model;
pub(crate) use order::{Followed, Order};
pub(crate) use records::{is_learned, slots, values};
pub(crate) use reference::{Reference, point_of};
pub(crate) use terms::Terms;
pub(crate) use votes::Votes;

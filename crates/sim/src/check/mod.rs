//! What is checked while a world runs, and at its end.

mod batches;
mod compactions;
mod goodput;
mod groups;
mod guest;
mod history;
mod invariant;
mod journal;
mod leases;
pub mod linear;
mod lives;
mod memory;
mod model;
mod records;
mod reference;
mod terms;
mod votes;

pub(crate) use batches::Batches;
pub use compactions::Compactions;
pub(crate) use goodput::Goodput;
pub(crate) use groups::{Groups, settled};
pub(crate) use guest::{Answered, GuestReference};
pub(crate) use history::{Done, EndedLease, check_history};
pub(crate) use invariant::demand;
pub use invariant::{Checked, Invariant, Violation};
pub(crate) use journal::{Journal, LeaseAct};
pub(crate) use leases::Leases;
pub(crate) use lives::{Held, Surroundings, Watch};
pub(crate) use memory::Memory;
pub(crate) use model::Model;
pub(crate) use records::{is_learned, slots, values};
pub(crate) use reference::Reference;
pub(crate) use terms::Terms;
pub(crate) use votes::Votes;

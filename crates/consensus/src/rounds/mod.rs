//! Consensus in rounds: Heard-Of algorithms, and the layers that make rounds out of messages and time-outs (Santos
//! 2012, chapters 3 to 5; docs/rounds.md).
//!
//! An [`Algorithm`] knows rounds, messages and a coordinator, and no time: [`OneThirdRule`], [`LastVoting`], and
//! [`Spread`], which lets each of them tell what it decided. A [`Layer`] runs one on a network: it says when a round
//! ends, which rounds are skipped, where letters go and who coordinates, by a [`Synchronisation`]. The two know
//! nothing of each other but these traits, so that every algorithm runs on every layer.
//!
//! [`RoundsLog`] orders a log so: it is the protocol `rounds`, whose messages, options and planted bugs are in
//! `messages.rs`, `profile.rs` and `planted.rs`.
//!
//! `rules.rs` has what safety and progress rest on, a few lines a rule; `timeouts.rs` the bounds of all time-outs.
//! [`Detector`] and [`Channel`] are what the one algorithm with a failure detector needs, and serve comparisons alone.

mod algorithm;
mod channel;
mod detector;
#[cfg(test)]
mod harness;
mod last_voting;
mod layer;
mod log;
mod messages;
mod one_third_rule;
mod pace;
mod planted;
mod profile;
mod rules;
mod spread;
mod synchronisation;
mod timeouts;

pub use crate::SlotRecord as Record;
pub use algorithm::{Algorithm, At, Heard, Round};
pub use channel::{Channel, Frame};
pub use detector::Detector;
pub use last_voting::{LastVoting, Voting, Word};
pub use layer::{Ended, Layer, Letter};
pub use log::RoundsLog;
pub use messages::Message;
pub use one_third_rule::OneThirdRule;
pub use planted::Bug;
pub(crate) use profile::PROFILE;
pub use profile::{RoundsAlgorithm, RoundsKind, Tuning};
pub use spread::{Said, Spread};
pub use synchronisation::Synchronisation;
pub use timeouts::{Bounds, TimeoutError};

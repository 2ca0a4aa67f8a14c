//! Who should lead.
//!
//! An election only ever *suggests*: safety rests on ballots and quorums alone, so a wrong suspicion costs time,
//! never data. [`Rotating`] suspects silent leaders and passes leadership around in a fixed order.

mod rotating;

pub use rotating::Rotating;

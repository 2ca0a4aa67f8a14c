//! What the simulator finds, and what it does not find where nothing is wrong. All of it is one program, so that the
//! short tests of one file run beside the long ones of another.
//!
//! Protocols that do not stand in this tree are registered for a whole process: `leaderless.rs` and `outside.rs` are
//! programs of their own.

mod auth;
mod choices;
mod explore;
mod guest;
mod hosts;
mod leases;
mod merge_states;
mod merged;
mod outages;
mod planted_bugs;
mod rounds;
mod scenarios;
mod seeds;
mod upkeep;
mod watches;

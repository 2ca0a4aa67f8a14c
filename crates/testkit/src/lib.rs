//! Support for tests of the other crates. No program runs any of it.
//!
//! - [`FaultyDisk`]: a disk in memory that fails as a seed decides. The simulator has it too, and an embedder whose own tests
//!   let power fail.
//! - [`processes`]: clusters of real processes.
//! - [`until`] waits, and [`free_port`] finds a port.
//!
//! Storage's own unit tests cannot use it: this crate depends on another copy of their types. Its integration tests do.

mod faulty;
mod ports;
pub mod processes;
mod wait;

pub use faulty::{FaultyDisk, Odds, SECTOR, SilentFault};
pub use ports::{free_port, free_ports};
pub use wait::{WAIT_MAX, until};

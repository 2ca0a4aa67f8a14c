pub mod check;
pub mod cli;
mod clock;
mod describe;
mod disk;
mod network;
mod odds;
mod ops;
pub mod plan;
mod queue;
mod run;
pub mod scenario;
mod trace;
mod world;

pub use odds::Odds;
pub use run::{Failure, run, run_with_trace};
pub use trace::Trace;
pub use world::{Outcome, World};

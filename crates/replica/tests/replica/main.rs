//! Replicas and executors, from outside: in one program, which takes less time to build than one for each file.

mod bounds;
mod history;
mod references;
mod relay;
mod restart;
mod salvage;
mod state_transfer;

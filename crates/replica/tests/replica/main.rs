//! Replicas and executors, from outside: in one program, which takes a fraction of the time to build of one for each file.

mod bounds;
mod history;
mod references;
mod relay;
mod restart;
mod salvage;
mod state_transfer;

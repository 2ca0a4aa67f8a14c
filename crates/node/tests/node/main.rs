//! Replicas as embedding programs meet them: in one program, which takes less time to build than one for each file.

#[path = "../common/mod.rs"]
mod common;

mod embedding;
mod forks;
mod formats;
mod groups;
mod growth;
mod identity;
mod injected;
mod merged;
mod placement;
mod recover;
mod three_replicas;

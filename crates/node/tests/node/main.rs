//! Replicas as a program that embeds them meets them: in one program, which takes a fraction of the time to build of one for each file.

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

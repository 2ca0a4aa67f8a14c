//! The server as its clients meet it: in one program, which takes less time to build than one for each file.

#[macro_use]
mod common;

mod admission;
mod auth;
mod bursts;
mod connections;
mod etcd_api;
mod gateway;
mod groups;
mod lasting;
mod leases;
mod locks;
mod members;
mod native;
mod resets;
mod sessions;
mod streams;
mod tls;
mod upkeep;
mod watch;

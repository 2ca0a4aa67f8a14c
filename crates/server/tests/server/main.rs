//! The server as its clients meet it: in one program, which takes a fraction of the time to build of one for each file.

#[macro_use]
mod common;

mod admission;
mod auth;
mod bursts;
mod connections;
mod etcd_api;
mod event_loop;
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

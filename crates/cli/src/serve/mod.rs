//! `synod serve`: one replica.
//!
//! ```text
//! flags, environment ───────────────┐
//! TOML file (file.rs)               ├─ ServeArgs (flags.rs) ─ check (config.rs) ─ Settings (run.rs) ─ NodeServer
//! etcd's variables and file (etcd/) ┘
//! ```
//!
//! The server is put together and runs in [`synod_server::node`]. Flags that the group overrules are warned of
//! (`agreed.rs`). Descriptors that the replica does not need itself go to clients (`descriptors.rs`). What goes
//! together is told by `combinations.rs`, and what only the laboratory takes by `laboratory.rs`. A cluster may have
//! several groups ([`synod_wire::Groups`]). Metrics tell what the process uses of the machine (`process.rs`). TLS is
//! made from files (`tls.rs`). A service manager is told of the beginning and the end (`notify.rs`).

mod agreed;
pub mod combinations;
pub mod config;
mod descriptors;
pub mod etcd;
mod file;
pub mod flags;
mod laboratory;
pub mod log;
mod network;
mod notify;
mod process;
mod run;
mod tls;
pub mod units;

pub use run::serve;

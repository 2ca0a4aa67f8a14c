//! `synod serve`: one replica.
//!
//! ```text
//! flags, environment ───────────────┐
//! TOML file (file.rs)               ├─ ServeArgs (flags.rs) ─ check (config.rs) ─ Node + Server (run.rs, replica.rs)
//! etcd's variables and file (etcd/) ┘
//! ```
//!
//! Settings that belong to the group are used as the group has them (`agreed.rs`). A joining replica first asks for the
//! group (`join.rs`). A running one tells the group its name and the addresses for its clients (`membership.rs`), and a
//! leader that is told to stop first hands over. Descriptors that the replica does not need itself go to clients
//! (`descriptors.rs`). `obstacles.rs` tells what keeps it from other members. What goes together is told by
//! `combinations.rs`, and what only the laboratory takes by `laboratory.rs`. A cluster may have several groups ([`synod_wire::Groups`]). Metrics tell what the process uses
//! of the machine (`process.rs`). TLS is made from files (`tls.rs`). A service manager is told of the beginning and the
//! end (`notify.rs`).

mod agreed;
pub mod combinations;
pub mod config;
mod descriptors;
pub mod etcd;
mod file;
pub mod flags;
mod join;
mod laboratory;
pub mod log;
mod membership;
mod notify;
mod obstacles;
mod process;
mod replica;
mod run;
mod tls;
pub mod units;

pub use run::serve;

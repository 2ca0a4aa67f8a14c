//! `synod serve`: one replica.
//!
//! ```text
//! flags, environment ─┐
//! TOML file (file.rs) ┴─ ServeArgs (flags.rs) ─ check (config.rs) ─ Node + Server (run.rs, replica.rs)
//! ```
//!
//! What belongs to the group counts as the group has it (`agreed.rs`). A replica that joins first asks whom it joins
//! (`join.rs`); while it runs it tells the group its name and where clients reach it (`membership.rs`); a leader that is told to
//! stop hands over first. Clients get the descriptors that it does not need itself (`descriptors.rs`). Its metrics say what the
//! process takes of the machine (`process.rs`).

mod agreed;
pub mod config;
mod descriptors;
mod file;
pub mod flags;
mod join;
pub mod log;
mod membership;
mod process;
mod replica;
mod run;
pub mod units;

pub use file::arguments as file_arguments;
pub use run::serve;

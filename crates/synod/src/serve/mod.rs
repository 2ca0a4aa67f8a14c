//! `synod serve`: one replica.
//!
//! ```text
//! flags, environment ─┐
//! TOML file (file.rs) ┴─ ServeArgs (flags.rs) ─ check (config.rs) ─ Node + Server (run.rs, replica.rs)
//! ```

pub mod config;
mod file;
pub mod flags;
mod log;
mod replica;
mod run;
pub mod units;

pub use file::arguments as file_arguments;
pub use run::serve;

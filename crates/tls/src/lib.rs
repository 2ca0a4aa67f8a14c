//! TLS for clients and for peers: what files say, as configurations of rustls that follow the files.
//!
//! ```text
//! Identity, Trust, Policy ─ Acceptor   accepts connections   ServerConfig ┐ replaced when a file changes
//!                         └ Connector  makes connections     ClientConfig ┘ (reload.rs)
//! ```
//!
//! - [`Acceptor`] and [`Connector`] are made once, at the start, and refuse whatever cannot work: a file that cannot be
//!   read, a key of another certificate, a certificate that has expired. Each error names the file and what to do.
//! - A thread looks once a second whether a file has changed. Connections that begin afterwards use what the files say
//!   then; if they make no sense, the last configuration stays, with one warning.
//! - Who may connect is decided by the chain to an authority ([`Trust::authorities`]), then by the list of revoked
//!   certificates, then by the names that are allowed (`verify.rs`).
//!
//! The names and rules of the settings are etcd's; docs/tls.md says where they differ. Nothing here reads or writes a
//! socket.

mod acceptor;
#[cfg(any(test, feature = "authority"))]
pub mod authority;
#[cfg(feature = "self-signed")]
mod automatic;
mod certificate;
mod connector;
mod explain;
mod files;
mod policy;
mod reload;
mod verify;

pub use acceptor::Acceptor;
#[cfg(feature = "self-signed")]
pub use automatic::self_signed;
pub use certificate::common_name;
pub use connector::Connector;
pub use explain::{explain, explain_io};
pub use files::{Identity, TlsError, key_is_open};
pub use policy::{Policy, PolicyError};
pub use verify::{Allowed, Trust, is_valid_for};

pub use rustls;

//! The client, and a server in the same process: in one program, which takes less time to build than one for each file.

mod client;
mod common;
mod locks;
mod session;
mod tls;
mod watch;

//! The client, and a server in the same process: in one program, which takes a fraction of the time to build of one for each file.

mod client;
mod common;
mod locks;
mod session;
mod tls;
mod watch;

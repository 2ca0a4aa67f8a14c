//! The transport over real sockets: in one program, which takes less time to build than one for each file.

mod common;
mod exchange;
mod failure;
mod hostile;
mod identity;
mod members;
mod tls;

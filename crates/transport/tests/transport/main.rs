//! The transport over real sockets: in one program, which takes a fraction of the time to build of one for each file.

mod common;
mod exchange;
mod failure;
mod hostile;
mod identity;
mod members;
mod tls;

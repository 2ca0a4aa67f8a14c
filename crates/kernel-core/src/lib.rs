//! The acceptor of Kernel Paxos: the C of `kernel/core`, which an XDP program and a kernel module compile too, with a
//! safe Rust interface.
//!
//! [`Acceptor`] gives at most one reply to a [`Message`]. It allocates once, reads no clock and has no pointers inside,
//! so a clone is a copy of its bytes: the simulator explores with copies of what ships. [`frame`] has the bytes of
//! messages on a segment.
//!
//! The values of an [`Acceptor`] here are names of at most [`VALUE_BYTES_MAX`] bytes, and its caller keeps the
//! bodies: votes and bodies may have different lives, and a body may be larger than a frame.

mod acceptor;
mod binding;
pub mod frame;
mod message;

pub use acceptor::{Acceptor, VALUE_BYTES_MAX, Value};
pub use message::{BRIEF, Message, NO_OP, Type, Verdict};

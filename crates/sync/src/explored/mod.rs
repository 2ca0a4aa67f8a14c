//! Locks, threads, clocks and sockets of a scheduler that explores orders.

mod condvar;
pub mod explore;
pub mod net;
pub mod thread;
pub mod time;

pub use condvar::{Condvar, WaitTimeoutResult};
pub use explore::planted;
pub use shuttle::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak, atomic};

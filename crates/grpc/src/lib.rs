//! A server of gRPC over HTTP/2: everything between a listening socket and the code that answers a call.
//!
//! The engine knows nothing of services. Each connection has a [`Handler`], which answers its requests; the engine
//! bounds what they cost, whatever the clients do.
//!
//! ```text
//! listen.rs ── places.rs ── stream.rs ── connection.rs ── Handler
//! sockets      who stays    TLS, or not  one task for     head.rs, message.rs   what came
//!                                        all requests     answer.rs, sending.rs what leaves, at the client's pace
//!                                        outbox.rs        pace.rs
//!                                        pings.rs         admission.rs          memory
//! ```
//!
//! `docs/decisions/0016-own-http2-engine.md` says why it is not one of the usual stacks of services.

mod admission;
mod answer;
mod connection;
#[cfg(any(test, feature = "fuzzing"))]
mod echo;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod head;
mod listen;
mod message;
mod outbox;
mod pace;
mod pings;
mod places;
mod sending;
mod stream;

pub use admission::{Admission, Charge, REQUEST_BYTES, Share};
pub use answer::{Refusal, end, end_once_left, head, send_large, send_message, until_ended};
pub use connection::{CONNECTION_BYTES, Handler, KeepAlive, Terms, serve};
pub use head::{Deadline, is_grpc, timeout};
pub use listen::{
    Accepted, Address, At, Bound, ListenError, Listener, Origin, Remote, Speaks, listen_addresses,
};
pub use message::{Checks, ClientMessages, Incoming, RequestBody, begun, framed, framed_with};
pub use pace::{ComePace, NOT_TAKEN, Pace, TAKE_BYTES_MIN, TAKE_TIMEOUT};
pub use places::{IDLE_MIN, Mark, Places, Presence};
pub use sending::{GATHERED_BYTES, HANDED_BYTES, Sender};
pub use stream::{Ahead, Established, PROTOCOLS, Resting, Socket, Stream, TLS_BYTES, establish};

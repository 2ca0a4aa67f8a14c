//! What a server does for those who watch its store: it tells them what changes, from any revision that is not
//! compacted on.
//!
//! ```text
//! executor ── commits, views ──> hub ──> queues of streams
//! hand.rs     bounded            hub.rs  outgoing.rs
//!             message.rs         index.rs, places.rs
//! ```
//!
//! Nothing here has a thread: `synod-server` runs a [`Hub`] on a thread, `synod-sim` when a seed says so. The only
//! random numbers are those of hashes, on which nothing depends that a watcher is told.

mod hand;
mod hub;
mod index;
mod message;
mod outgoing;
mod places;

pub use self::{
    hand::{HANDED_BYTES_MAX, Hand},
    hub::{Bounds, Hub, RECENT_BYTES_MAX},
    message::{Create, Message, NO_WATCH, Request, StreamNumber, Told, Wants},
    outgoing::{ALL_BYTES_MAX, All, Item, Outgoing, STREAM_BYTES_MAX, STREAM_BYTES_MIN},
};

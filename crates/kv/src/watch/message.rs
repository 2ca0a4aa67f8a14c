//! What the hub is told, and what clients ask of it and get.

use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use prost::Message as _;
use synod_api::etcdserverpb::{WatchCreateRequest, watch_create_request::FilterType};

use super::{index::Range, outgoing::Outgoing};
use crate::{Commit, Event, View};

/// What a watch costs its client besides its range: its places in the hub and in its stream.
pub(super) const WATCH_BYTES: u64 = 512;
/// What is left of it while a watch that a compaction ended keeps its id.
pub(super) const ID_BYTES: u64 = 64;

/// The id that stands for no watch, or for all watches of a stream.
pub const NO_WATCH: i64 = -1;

/// A stream's name.
pub type StreamNumber = u64;

/// What the hub is told.
#[derive(Debug)]
pub enum Message {
    /// The store has committed this, which counts as this many bytes.
    Committed(Commit, usize),
    /// The store was compacted at this revision.
    Compacted(i64),
    /// The view with this number, which the hub asked for.
    View(u64, Box<View>),
    /// The store has commits of which the hub is not told.
    Lost,
    /// What a client asks for.
    Request(StreamNumber, Request),
    /// The server stops.
    Stop,
}

/// What a client asks for, or its stream.
#[derive(Debug)]
pub enum Request {
    /// The stream begins.
    Open(Arc<Outgoing>),
    /// A watch begins.
    Create(Box<Create>),
    /// A watch is refused for this reason before it begins. The answer keeps its place among the others.
    Refuse(String),
    /// A watch ends.
    Cancel(i64),
    /// How far the watch is, or all of the stream together.
    Progress(Option<i64>),
    /// The stream has room again.
    Room,
    /// The large revision of the stream has left.
    LargeLeft,
    /// The stream has ended.
    Close,
}

impl Request {
    /// Whether it is one of those that are answered in their order, of which only this many may wait.
    #[must_use]
    pub fn is_answered(&self) -> bool {
        matches!(self, Request::Create(_) | Request::Refuse(_) | Request::Cancel(_) | Request::Progress(_))
    }
}

/// What a client asks of a new watch. It keeps nothing of the message in which it came.
#[derive(Debug)]
pub struct Create {
    /// `None` if the range is empty.
    pub(super) range: Option<Range>,
    pub(super) wants: Wants,
    pub(super) id: i64,
    pub(super) start: i64,
    pub(super) progress: bool,
}

impl Create {
    /// Reads a request.
    #[must_use]
    pub fn of(request: &WatchCreateRequest) -> Create {
        Create {
            range: Range::of(&request.key, &request.range_end),
            wants: Wants::of(request),
            id: request.watch_id,
            start: request.start_revision,
            progress: request.progress_notify,
        }
    }

    /// What the watch costs its client, until an item gives it back.
    #[must_use]
    pub fn cost(&self) -> u64 {
        WATCH_BYTES + self.range.as_ref().map_or(0, Range::bytes)
    }
}

/// What an event takes in memory beyond its key and its values.
const TOLD_BYTES: usize = 256;

/// An event, with its encodings once somebody needed them.
#[derive(Debug)]
pub struct Told {
    event: Event,
    pub(super) bytes: usize,
    encoded: [OnceLock<Bytes>; 2],
}

impl Told {
    pub(super) fn new(event: Event) -> Arc<Told> {
        Arc::new(Told { bytes: TOLD_BYTES + event.bytes(), event, encoded: Default::default() })
    }

    /// The event as clients get it, with the pair before it or without.
    #[must_use]
    pub fn encoded(&self, prev_kv: bool) -> &Bytes {
        self.encoded[usize::from(prev_kv)].get_or_init(|| self.event.encoded(prev_kv))
    }

    /// How many bytes that has, if it is not to be made.
    #[must_use]
    pub fn encoded_len(&self, prev_kv: bool) -> usize {
        self.event.to_message(prev_kv).encoded_len()
    }

    /// About how many bytes it takes in memory, the previous pair included, which other streams may share.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The event.
    #[must_use]
    pub fn event(&self) -> &Event {
        &self.event
    }

    /// The revision that made it.
    #[must_use]
    pub fn revision(&self) -> i64 {
        self.event.revision()
    }
}

/// What a watcher wants of events.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wants {
    /// The pairs before.
    pub prev_kv: bool,
    /// Large responses in several messages.
    pub fragments: bool,
    no_puts: bool,
    no_deletions: bool,
}

impl Wants {
    fn of(request: &WatchCreateRequest) -> Wants {
        let filters = |kind| request.filters().any(|filter| filter == kind);
        Wants {
            prev_kv: request.prev_kv,
            fragments: request.fragment,
            no_puts: filters(FilterType::Noput),
            no_deletions: filters(FilterType::Nodelete),
        }
    }

    pub(super) fn takes_puts(self) -> bool {
        !self.no_puts
    }

    pub(super) fn takes_deletions(self) -> bool {
        !self.no_deletions
    }
}

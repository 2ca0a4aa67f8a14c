//! The settings of a replica besides those of its protocol.

use std::{fmt, str::FromStr, time::Duration};

use synod_consensus::{MESSAGE_HEAD_BYTES, Options};

use crate::{Limits, message::PROTOCOL_HEAD_BYTES};

/// How a joining replica gets what was decided before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum StateTransfer {
    /// It asks for it, several replicas at a time.
    #[default]
    Pull,
    /// The voters send it without being asked; what is lost on the way the joining replica asks for after a while.
    Eager,
}

impl fmt::Display for StateTransfer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            StateTransfer::Pull => "pull",
            StateTransfer::Eager => "eager",
        })
    }
}

/// A word that names no way of state transfer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown state transfer '{0}'; accepted: pull, eager")]
pub struct UnknownTransfer(String);

impl FromStr for StateTransfer {
    type Err = UnknownTransfer;

    fn from_str(text: &str) -> Result<StateTransfer, UnknownTransfer> {
        match text {
            "pull" => Ok(StateTransfer::Pull),
            "eager" => Ok(StateTransfer::Eager),
            _ => Err(UnknownTransfer(text.to_owned())),
        }
    }
}

/// Settings of a replica. What all replicas of a group must have alike is in the [`Group`](crate::Group),
/// whose values count: here it is only what a group begins with.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Settings {
    /// The ordering protocol and its options. The group says which protocol, election and mode of decision are used.
    pub consensus: Options,
    /// The limits with which the group begins.
    pub limits: Limits,
    /// A batch is closed when another command would make it larger than this (Santos 2012: BSZ). A single
    /// command that is larger is a batch of its own; with 1, every command is.
    pub batch_bytes_max: usize,
    /// Within the window and the bound of a batch, a leader bounds what it has under way by the rate and the round trip
    /// that it measures (`--window-max auto`).
    pub paced: bool,
    /// A batch that waits for more commands is closed this long after its first (Santos 2012: Δ_B).
    pub batch_delay_max: Duration,
    /// Bytes of commands that may wait for a decision; more are refused.
    pub queue_bytes_max: usize,
    /// Batches that a follower may have on their way to the leader, which is not more than the leader's window.
    pub forward_window_max: usize,
    /// A request that is not decided for this long fails; see also [`Settings::leaderless_timeout`].
    pub request_timeout: Duration,
    /// A snapshot is due after this many slots, but a large one not before the log is worth it
    /// ([`worth_a_snapshot`](crate::worth_a_snapshot)). While a peer fetches the last snapshot, four times as much of
    /// each is needed.
    pub snapshot_slots: u64,
    /// A snapshot is also due after this many bytes of batches, under the same conditions.
    pub snapshot_log_bytes: u64,
    /// Decided slots before a snapshot that are kept in memory, for replicas that lag.
    pub keep_slots: u64,
    /// Bytes of batches that are kept for the same purpose.
    pub keep_bytes: u64,
    /// Decided batches are kept beyond that if no snapshot covers them, up to this many bytes; a replica that
    /// lags further then has to wait for a snapshot.
    pub kept_bytes_max: u64,
    /// Bytes of batches in one answer to a replica that lags.
    pub fetch_bytes_max: usize,
    /// How a joining replica gets what was decided before. Replicas must have this alike; where they differ,
    /// the replica only asks.
    pub state_transfer: StateTransfer,
    /// Bytes of a snapshot in one message.
    pub chunk_bytes_max: usize,
    /// Decided slots that may wait for execution; beyond that, the replica proposes and accepts nothing new.
    pub backlog_slots_max: u64,
    /// The same in bytes of batches.
    pub backlog_bytes_max: u64,
    /// Bytes of records that may wait to become durable; beyond that, the replica proposes and accepts nothing new.
    pub undurable_bytes_max: u64,
    /// Bytes of messages that may wait for records to become durable; a message that does not fit is not sent.
    /// If there is no room for a message to each peer, the last peers do not get it until it is sent again.
    pub held_bytes_max: u64,
    /// A learner that lacks at most this many decided slots has caught up, and may be promoted.
    pub caught_up_slots: u64,
    /// How often a leader advances the replicated clock, by which idle sessions expire.
    pub clock_interval: Duration,
    /// The group is one of several that are merged into one order ([`crate::Merge`]).
    pub merged: bool,
}

impl Settings {
    /// The largest message, in bytes, that a replica with these settings sends in a group with these limits.
    /// A page holds as much as its bound allows or one batch, whichever is more; see
    /// [`PeerMessage`](crate::PeerMessage).
    #[must_use]
    pub fn message_bytes_max(&self, limits: &Limits) -> usize {
        let page = self.fetch_bytes_max.max(self.chunk_bytes_max);
        let own = page.max(limits.batch_bytes_max()).saturating_add(MESSAGE_HEAD_BYTES);
        let protocols = self.consensus.message_bytes_max(limits.batch_bytes_max());
        own.max(protocols.saturating_add(PROTOCOL_HEAD_BYTES))
    }

    /// How long a request waits at a replica that hears of no leader: three fifths of the request time-out,
    /// so that a client with the same time-out is told the reason.
    #[must_use]
    pub fn leaderless_timeout(&self) -> Duration {
        self.request_timeout * 3 / 5
    }
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            consensus: Options::default(),
            limits: Limits::default(),
            batch_bytes_max: 64 << 10,
            paced: false,
            batch_delay_max: Duration::from_millis(1),
            queue_bytes_max: 64 << 20,
            forward_window_max: 8,
            request_timeout: Duration::from_secs(5),
            snapshot_slots: 10_000,
            snapshot_log_bytes: 128 << 20,
            keep_slots: 5_000,
            keep_bytes: 32 << 20,
            kept_bytes_max: 1 << 30,
            fetch_bytes_max: 1 << 20,
            state_transfer: StateTransfer::default(),
            chunk_bytes_max: 512 << 10,
            backlog_slots_max: 10_000,
            backlog_bytes_max: 64 << 20,
            undurable_bytes_max: 64 << 20,
            held_bytes_max: 16 << 20,
            caught_up_slots: 100,
            clock_interval: Duration::from_secs(30),
            merged: false,
        }
    }
}

//! What a running replica shows of itself, without a lock: plain numbers that its threads store and anybody reads.

use std::{
    sync::atomic::{
        AtomicBool, AtomicU8, AtomicU64,
        Ordering::{Relaxed, SeqCst},
    },
    time::Duration,
};

use arc_swap::{ArcSwap, ArcSwapOption};
use synod_consensus::Role;
use synod_metrics::Durations;
use synod_replica::{Clocked, Group, ReplicaStatus};
use synod_storage::Reached;
use synod_sync::{atomic, time::Instant};
use synod_transport::{Obstacle, PeerMetrics};
use synod_wire::{Ballot, Epoch, GroupId, ReplicaId, Slot};

use crate::{merged::MergeView, view::Watchers};

/// A gauge.
#[derive(Debug, Default)]
pub(crate) struct Gauge(AtomicU64);

impl Gauge {
    pub(crate) fn set(&self, value: u64) {
        self.0.store(value, Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }

    pub(crate) fn add(&self, value: u64) {
        self.0.fetch_add(value, Relaxed);
    }

    /// Sets it unless it is higher already.
    pub(crate) fn raise(&self, value: u64) {
        self.0.fetch_max(value, Relaxed);
    }
}

/// How far a thread is, ordered with the flags that ask it for wake-ups.
#[derive(Debug, Default)]
pub(crate) struct Progress(atomic::AtomicU64);

impl Progress {
    pub(crate) fn publish(&self, value: u64) {
        self.0.store(value, SeqCst);
    }

    pub(crate) fn observe(&self) -> u64 {
        self.0.load(SeqCst)
    }
}

/// Which groups have become durable or executed further since the protocol's thread last looked. A thread publishes how
/// far a group is, and then marks it.
#[derive(Debug)]
pub(crate) struct Ahead(Vec<atomic::AtomicU64>);

impl Ahead {
    /// For groups from 0 on.
    pub(crate) fn new(groups: usize) -> Ahead {
        Ahead((0..groups.div_ceil(64)).map(|_| atomic::AtomicU64::new(0)).collect())
    }

    pub(crate) fn mark(&self, group: GroupId) {
        self.0[usize::from(group.0) / 64].fetch_or(1 << (group.0 % 64), SeqCst);
    }

    /// The marked groups, without a mark from now on.
    pub(crate) fn take(&self) -> impl Iterator<Item = GroupId> {
        self.groups(|word| if word.load(SeqCst) == 0 { 0 } else { word.swap(0, SeqCst) })
    }

    /// The marked groups.
    pub(crate) fn peek(&self) -> impl Iterator<Item = GroupId> {
        self.groups(|word| word.load(SeqCst))
    }

    fn groups(&self, read: impl Fn(&atomic::AtomicU64) -> u64) -> impl Iterator<Item = GroupId> {
        (0..).step_by(64).zip(&self.0).flat_map(move |(first, word)| {
            let mut bits = read(word);
            std::iter::from_fn(move || {
                let bit = bits.trailing_zeros();
                (bits != 0).then(|| {
                    bits &= bits - 1;
                    GroupId(first + bit as u16)
                })
            })
        })
    }
}

/// Nanoseconds that a thread was busy.
#[derive(Debug, Default)]
pub(crate) struct Busy(Gauge);

impl Busy {
    /// Counts the time since `began`.
    pub(crate) fn since(&self, began: Instant) {
        self.0.add(u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX));
    }

    #[cfg(feature = "metrics")]
    pub(crate) fn total(&self) -> std::time::Duration {
        std::time::Duration::from_nanos(self.0.get())
    }
}

/// What the threads of a node tell of themselves, for status and metrics. Numbers of one moment may differ by an
/// instant from each other.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    /// The group as it is; only its changes are stored.
    pub(crate) group: ArcSwapOption<Group>,
    /// How far learners are, as they told.
    pub(crate) progress: ArcSwap<Vec<(ReplicaId, Slot)>>,
    /// In which time other voters answered lately, as of a while ago.
    pub(crate) round_trips: ArcSwap<Vec<(ReplicaId, Duration)>>,
    /// From which voters commands came lately, as of a while ago.
    pub(crate) origins: ArcSwap<Vec<(ReplicaId, u64)>>,
    /// Members that this replica waits for before it votes.
    pub(crate) waits_for: ArcSwap<Vec<ReplicaId>>,
    /// Those that have decided something else than this replica.
    pub(crate) forked_with: ArcSwap<Vec<ReplicaId>>,
    /// What this replica knows to be decided, as of a while ago.
    pub(crate) reached: ArcSwapOption<Reached>,
    pub(crate) receiving_bytes: Gauge,
    pub(crate) receiving_total: Gauge,
    pub(crate) sources: Gauge,
    /// This replica's own state is what it may tell: it has what an earlier life may have told, or has waited long
    /// enough for that.
    pub(crate) settled: AtomicBool,
    /// Tasks that wait for a change.
    pub(crate) watchers: Watchers,
    /// This replica was removed, and nobody needs it.
    pub(crate) retired: AtomicBool,
    pub(crate) epoch: Gauge,
    pub(crate) role: AtomicU8,
    /// The replica lost (part of) its log, and does not vote yet.
    pub(crate) without_memory: AtomicBool,
    /// The replica does what one replica has to do for all.
    pub(crate) takes_care: AtomicBool,
    pub(crate) leader: Gauge,
    /// Epoch and ballot as one number; see [`term`].
    pub(crate) term: Gauge,
    pub(crate) ballot_round: Gauge,
    pub(crate) ballot_replica: Gauge,
    pub(crate) decided: Gauge,
    pub(crate) decided_elsewhere: Gauge,
    /// The decided log can be read through this slot.
    pub(crate) delivered: Gauge,
    pub(crate) executed: Progress,
    /// Of several groups that are merged: where this one is in the common order, and of the first, which one the others
    /// wait for.
    pub(crate) position: Gauge,
    pub(crate) merge: MergeView,
    /// What the replicated clock shows, in milliseconds, and one more than what the state machine waits for; 0 if it
    /// waits for nothing.
    clock_ms: Gauge,
    clock_waits_for: Gauge,
    /// Records through this one are on stable storage.
    pub(crate) durable: Progress,
    /// Whether the protocol's thread wants to be woken when records are durable. Otherwise it looks when it is awake
    /// anyway: a wake-up that changes nothing costs more than what it tells.
    pub(crate) wake_when_durable: atomic::AtomicBool,
    /// Whether it wants to be woken when slots are executed.
    pub(crate) wake_when_executed: atomic::AtomicBool,
    pub(crate) in_flight: Gauge,
    pub(crate) window_max: Gauge,
    pub(crate) queued_bytes: Gauge,
    pub(crate) unexecuted_bytes: Gauge,
    pub(crate) undurable_bytes: Gauge,
    pub(crate) held_bytes: Gauge,
    pub(crate) sends_given_up: Gauge,
    pub(crate) backlogged: Gauge,
    pub(crate) kept_slots: Gauge,
    pub(crate) kept_bytes: Gauge,
    pub(crate) snapshot_slot: Gauge,
    pub(crate) snapshot_bytes: Gauge,
    pub(crate) client_sessions: Gauge,
    pub(crate) log_bytes: Gauge,
    pub(crate) log_records: Gauge,
    pub(crate) log_bytes_written: Gauge,
    pub(crate) log_commits: Durations,
    pub(crate) leader_changes: Gauge,
    pub(crate) requests: Gauge,
    pub(crate) messages_sent: Gauge,
    pub(crate) reads: Gauge,
    pub(crate) bursts: Gauge,
    pub(crate) events: Gauge,
    pub(crate) protocol_busy: Busy,
    pub(crate) log_busy: Busy,
    pub(crate) executor_busy: Busy,
    /// How long the executor took for each of its jobs; while it does one, it does nothing else.
    pub(crate) executor_jobs: Durations,
    /// Nanoseconds that the longest of them took.
    pub(crate) executor_longest: Gauge,
    /// Nanoseconds of processor time, of the job that took most of it. A job that had to wait for a processor, since
    /// other threads had it, takes longer than that.
    pub(crate) executor_most_work: Gauge,
    /// Snapshots that this replica wrote, and the bytes of their files.
    pub(crate) snapshots_written: Gauge,
    pub(crate) snapshot_bytes_written: Gauge,
    /// Checks what leaves.
    #[cfg(feature = "shuttle")]
    pub(crate) watch: crate::watch::Watch,
}

const ROLES: [Role; 5] = [Role::Follower, Role::Candidate, Role::Leader, Role::Recovering, Role::Learner];

/// A role as the metric `synod_role` has it.
#[must_use]
pub fn role_number(role: Role) -> u8 {
    let number = ROLES.iter().position(|&listed| listed == role).expect("all roles are listed");
    u8::try_from(number).expect("five roles")
}

impl Shared {
    pub(crate) fn set_clock(&self, clock: Clocked) {
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        self.clock_ms.set(millis(clock.shows));
        self.clock_waits_for.set(clock.waits_for.map_or(0, |time| millis(time).saturating_add(1)));
    }

    pub(crate) fn clock(&self) -> Clocked {
        let waits_for = self.clock_waits_for.get().checked_sub(1).map(Duration::from_millis);
        Clocked { shows: Duration::from_millis(self.clock_ms.get()), waits_for }
    }

    pub(crate) fn store(&self, status: &ReplicaStatus) {
        self.role.store(role_number(status.protocol.role), Relaxed);
        self.without_memory.store(status.without_memory, Relaxed);
        self.takes_care.store(status.takes_care, Relaxed);
        self.leader.set(status.protocol.view.leader.map_or(0, |leader| leader.0));
        self.term.raise(term(status.entered, status.protocol.view.ballot));
        self.ballot_round.set(status.protocol.view.ballot.round);
        self.ballot_replica.set(status.protocol.view.ballot.replica.0);
        self.epoch.set(status.epoch.0);
        self.decided.set(status.protocol.decided.0);
        self.decided_elsewhere.set(status.protocol.decided_elsewhere.0);
        self.delivered.set(status.delivered.0);
        self.in_flight.set(status.protocol.in_flight as u64);
        self.window_max.set(status.window_max as u64);
        self.wake_when_durable.store(status.waits_for_disk, SeqCst);
        self.wake_when_executed.store(status.backlogged, SeqCst);
        self.queued_bytes.set(status.queued_bytes as u64);
        self.unexecuted_bytes.set(status.unexecuted_bytes);
        self.undurable_bytes.set(status.undurable_bytes);
        self.held_bytes.set(status.held_bytes);
        self.sends_given_up.set(status.sends_given_up);
        self.backlogged.set(status.backlogged.into());
        self.kept_slots.set(status.kept_slots as u64);
        self.kept_bytes.set(status.kept_bytes);
        self.snapshot_slot.set(status.snapshot.map_or(0, |snapshot| snapshot.slot.0));
        self.snapshot_bytes.set(status.snapshot.map_or(0, |snapshot| snapshot.bytes));
        let (received, total) =
            status.receiving.map_or((0, 0), |(snapshot, received)| (received, snapshot.bytes));
        self.receiving_bytes.set(received);
        self.receiving_total.set(total);
        self.sources.set(status.sources as u64);
    }

    pub(crate) fn term(&self) -> u64 {
        self.term.get()
    }

    pub(crate) fn ballot(&self) -> Ballot {
        Ballot { round: self.ballot_round.get(), replica: ReplicaId(self.ballot_replica.get()) }
    }

    pub(crate) fn leader(&self) -> Option<ReplicaId> {
        Some(ReplicaId(self.leader.get())).filter(|leader| leader.0 != 0)
    }

    pub(crate) fn role(&self) -> Role {
        ROLES[usize::from(self.role.load(Relaxed))]
    }
}

/// How many bits of a term the round has: 10^12 rounds, of which an election takes some hundreds at most.
const TERM_ROUND_BITS: u32 = 40;

/// One number that grows with the ballots of an epoch, which begin again in each, and from each epoch to the next. In
/// the first epoch it is the round.
fn term(epoch: Epoch, ballot: Ballot) -> u64 {
    let round = ballot.round.min((1 << TERM_ROUND_BITS) - 1);
    (epoch.0.saturating_sub(1) << TERM_ROUND_BITS) + round
}

/// A replica at one moment.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct NodeStatus {
    /// What it does.
    pub role: Role,
    /// Whether it lost (part of) its log, and does not vote until it has learned what it may have said.
    pub without_memory: bool,
    /// Whether it does what one replica has to do for all, as far as it knows: the leader, or with a protocol without
    /// one whichever the protocol names.
    pub takes_care: bool,
    /// The leader, as far as it knows.
    pub leader: Option<ReplicaId>,
    /// The epoch that it is in.
    pub epoch: Epoch,
    /// The highest ballot that it knows.
    pub ballot: Ballot,
    /// Decided through this slot, without a gap.
    pub decided: Slot,
    /// Known to be decided somewhere through this slot.
    pub decided_elsewhere: Slot,
    /// Executed through this slot.
    pub executed: Slot,
    /// The last snapshot's slot; [`Slot::ZERO`]: none.
    pub snapshot: Slot,
    /// A snapshot that is being fetched: bytes that have come, and its size; 0 of 0: none.
    pub receiving: (u64, u64),
    /// From how many replicas that snapshot, or decided slots that are missing here, come.
    pub sources: u64,
    /// How far learners are, as far as they told this replica.
    pub learners: Vec<(ReplicaId, Slot)>,
    /// Bytes of the write-ahead log.
    pub log_bytes: u64,
    /// Messages of this group that were sent to other replicas since the start. Small ones may share a frame.
    pub messages_sent: u64,
    /// Open sessions of clients.
    pub client_sessions: u64,
    /// The connections to other replicas.
    pub peers: Vec<PeerLink>,
    /// The shortest time in which each other voter answered lately, where the election measures that (`latency`, and
    /// the ring's): a second old at most.
    pub round_trips: Vec<(ReplicaId, Duration)>,
    /// Thousandths of the commands of clients that came from each voter lately, where the election weighs that: a
    /// second old at most.
    pub origins: Vec<(ReplicaId, u64)>,
    /// Members with which the group began that this replica has never met: it votes once it has met them all.
    pub waits_for: Vec<ReplicaId>,
    /// Replicas that have decided something else than this one, so that nothing they say counts here.
    pub forked_with: Vec<ReplicaId>,
    /// Of one of several groups that are merged into one order.
    pub merge: Option<MergeStatus>,
}

impl Default for NodeStatus {
    /// A follower that knows of nothing.
    fn default() -> NodeStatus {
        NodeStatus {
            role: Role::Follower,
            without_memory: false,
            takes_care: false,
            leader: None,
            epoch: Epoch(0),
            ballot: Ballot::ZERO,
            decided: Slot::ZERO,
            decided_elsewhere: Slot::ZERO,
            executed: Slot::ZERO,
            snapshot: Slot::ZERO,
            receiving: (0, 0),
            sources: 0,
            learners: Vec::new(),
            log_bytes: 0,
            messages_sent: 0,
            client_sessions: 0,
            peers: Vec::new(),
            round_trips: Vec::new(),
            origins: Vec::new(),
            waits_for: Vec::new(),
            forked_with: Vec::new(),
            merge: None,
        }
    }
}

impl NodeStatus {
    /// The slots that it lacks of those that it knows to be decided elsewhere.
    #[must_use]
    pub fn missing(&self) -> u64 {
        self.decided_elsewhere.0.saturating_sub(self.decided.0)
    }

    /// How far a learner is, as far as it told this replica.
    #[must_use]
    pub fn learned(&self, id: ReplicaId) -> Option<Slot> {
        self.learners.iter().find(|(learner, _)| *learner == id).map(|&(_, slot)| slot)
    }

    /// Thousandths of the commands that came from a voter lately; 0 if that is not counted.
    #[must_use]
    pub fn share_of_commands(&self, id: ReplicaId) -> u64 {
        self.origins.iter().find(|(voter, _)| *voter == id).map_or(0, |&(_, share)| share)
    }

    /// The shortest time in which a voter answered this replica lately, if that was measured.
    #[must_use]
    pub fn round_trip(&self, id: ReplicaId) -> Option<Duration> {
        self.round_trips.iter().find(|(voter, _)| *voter == id).map(|&(_, time)| time)
    }
}

/// Where one of several groups is in their common order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MergeStatus {
    /// The position that its next batch takes, as far as batches are executed.
    pub position: u64,
    /// The group for which batches of others wait now, and for how long they have; the same with every group.
    pub waits_for: Option<(GroupId, Duration)>,
    /// For how long batches of some group have waited for another group since the start, in all; the same with every
    /// group.
    pub waited: Duration,
}

/// The connection to another replica.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PeerLink {
    /// The other replica.
    pub id: ReplicaId,
    /// Since when messages can be sent to it; `None` if they cannot, if none can come from it, or if it answers none.
    pub up_since: Option<Instant>,
    /// What is in the way of messages to it, as the last attempt to reach it showed.
    pub obstacle: Option<Obstacle>,
    /// Whether a replica of its id calls this one, or did a moment ago, welcome or not: its process runs.
    pub calls: bool,
    /// Whether messages that fit a packet go to it as datagrams now.
    pub datagrams: bool,
}

impl PeerLink {
    /// A connection that nothing is in the way of, or none that anything is known of.
    #[must_use]
    pub fn new(id: ReplicaId, up_since: Option<Instant>) -> PeerLink {
        PeerLink { id, up_since, obstacle: None, calls: false, datagrams: false }
    }

    pub(crate) fn of(peer: PeerMetrics) -> PeerLink {
        let (up_since, calls) = (peer.up_since(), peer.calls());
        let PeerMetrics { peer: id, obstacle, takes_datagrams: datagrams, .. } = peer;
        PeerLink { id, up_since, obstacle, calls, datagrams }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_taken_once_and_each_says_which_group() {
        let ahead = Ahead::new(130);
        let groups = [0, 1, 63, 64, 129];
        groups.iter().for_each(|&group| ahead.mark(GroupId(group)));
        ahead.mark(GroupId(64));
        for marked in [ahead.peek().collect::<Vec<_>>(), ahead.take().collect()] {
            assert_eq!(marked, groups.map(GroupId));
        }
        assert_eq!(ahead.take().count() + ahead.peek().count(), 0);
    }
}

//! Checks one life of a replica: what may only grow, and what must stay small.

use synod_consensus::{LeaderView, Role};
use synod_replica::{ReplicaStatus, SEGMENTS_MAX, SessionLimits, Settings};
use synod_wire::{Ballot, Epoch, ReplicaId, Slot};

use super::invariant::{Checked, Invariant, demand};

/// What the bounds of a replica's queues depend on, besides its own settings.
#[derive(Clone, Copy, Debug)]
pub struct Surroundings {
    /// How many replicas have a window of proposals of their own.
    pub windows: u64,
    /// How many slots ahead the replica with the largest window accepts, with those of all that have one: windows may
    /// differ, and what one leader proposed others take over.
    pub ahead_max: u64,
    /// The most bytes of batches in a message.
    pub batches_max: u64,
    /// The last slot that some replica has delivered.
    pub decided: Slot,
}

/// Bytes that wait for a replica's executor and for its disk.
#[derive(Clone, Copy, Debug, Default)]
pub struct Held {
    /// Batches that the executor has not executed.
    pub batches: u64,
    /// Messages that wait for records to become durable.
    pub messages: u64,
    /// The largest message that ever waited in this life.
    pub largest_message: u64,
}

/// The observations of one life so far.
#[derive(Debug)]
pub struct Watch {
    id: ReplicaId,
    /// The last slot delivered.
    delivered: Slot,
    decided: Slot,
    executed: Slot,
    ballot: Ballot,
    /// The last slot that a snapshot on stable storage holds.
    snapshot: Slot,
    /// The last slot of a snapshot from which the executor goes on. The replica sees how far the executor is before it
    /// is told that the snapshot is installed.
    restored: Slot,
    /// The newest epoch that it has written to have entered.
    entered: Epoch,
    /// How many times it forgot the leader because it went on to another epoch.
    fresh_views: u64,
    /// Bytes of the largest batch that was delivered.
    largest_batch: u64,
    /// Bytes of the batches that were delivered before the first step, since the replica found them decided
    /// when it started.
    found: u64,
    /// Bytes of records that are not durable, after the last step, and the most that a step added.
    undurable: (u64, u64),
    /// Bytes of decided batches that are not executed, after the last step, and the most that a step added.
    unexecuted: (u64, u64),
}

impl Watch {
    /// A life that begins with a snapshot, and with a log that names the epoch entered last.
    #[must_use]
    pub fn new(id: ReplicaId, snapshot: Slot, entered: Epoch) -> Watch {
        let (delivered, decided, executed) = (snapshot, snapshot, snapshot);
        Watch {
            id,
            delivered,
            decided,
            executed,
            ballot: Ballot::ZERO,
            snapshot,
            restored: snapshot,
            entered,
            fresh_views: 0,
            largest_batch: 0,
            found: 0,
            undurable: (0, 0),
            unexecuted: (0, 0),
        }
    }

    /// The last slot delivered, here or by a snapshot.
    #[must_use]
    pub fn delivered(&self) -> Slot {
        self.delivered
    }

    /// The replica writes down that it enters an epoch.
    pub fn enters(&mut self, epoch: Epoch) {
        self.entered = self.entered.max(epoch);
    }

    /// The replica sends a message of an epoch's protocol.
    pub fn says(&self, epoch: Epoch) -> Checked {
        demand(epoch >= self.entered, Invariant::NoWayBack, || {
            format!("{} speaks in epoch {epoch}, and has entered {}", self.id, self.entered)
        })
    }

    /// The replica found what it delivered so far decided when it started, and executes all of it at once.
    pub fn started(&mut self, status: &ReplicaStatus) {
        self.found = status.unexecuted_bytes;
    }

    /// The replica delivers a slot.
    pub fn delivers(&mut self, slot: Slot, bytes: u64) -> Checked {
        self.largest_batch = self.largest_batch.max(bytes);
        demand(slot == self.delivered.next(), Invariant::DeliveryOrder, || {
            format!("{} delivers slot {slot} after slot {}", self.id, self.delivered)
        })?;
        self.delivered = slot;
        Ok(())
    }

    /// The executor goes on from a snapshot of this slot.
    pub fn restores(&mut self, slot: Slot) {
        self.restored = self.restored.max(slot);
    }

    /// A snapshot of this slot was installed: the slots that it covers are not delivered any more.
    pub fn installed(&mut self, slot: Slot) {
        self.delivered = self.delivered.max(slot);
        self.snapshot = self.snapshot.max(slot);
    }

    /// A snapshot taken here is on stable storage.
    pub fn snapshot(&mut self, slot: Slot) -> Checked {
        self.snapshot = self.snapshot.max(slot);
        demand(slot <= self.delivered, Invariant::SnapshotCovers, || {
            format!("{} has a snapshot of slot {slot}, but has delivered {} only", self.id, self.delivered)
        })
    }

    /// The replica lets the log forget slots.
    pub fn trims(&self, through: Slot) -> Checked {
        demand(through <= self.snapshot, Invariant::SnapshotCovers, || {
            format!("{} trims its log through {through}; its snapshot holds {} only", self.id, self.snapshot)
        })
    }

    /// The replica reports a leader. Ballots of different epochs are not compared: when it goes on to the
    /// next one, and when it begins to vote there, it forgets the leader.
    pub fn leader(&mut self, view: LeaderView, epoch: Epoch) -> Checked {
        if view == LeaderView::default() && self.fresh_views < 2 * epoch.0 {
            self.fresh_views += 1;
            self.ballot = Ballot::ZERO;
        }
        demand(view.ballot >= self.ballot, Invariant::Monotone, || {
            format!("{} goes back from ballot {} to {}", self.id, self.ballot, view.ballot)
        })?;
        self.ballot = view.ballot;
        demand(view.leader.is_none_or(|leader| leader == view.ballot.replica), Invariant::OneLeader, || {
            format!(
                "{} takes {} for the leader of ballot {}",
                self.id,
                view.leader.unwrap_or_default(),
                view.ballot
            )
        })
    }

    /// Checks the replica after a step. The window of an orderer is that of so many replicas.
    pub fn stepped(
        &mut self,
        status: &ReplicaStatus,
        held: Held,
        settings: &Settings,
        world: &Surroundings,
    ) -> Checked {
        let protocol = &status.protocol;
        for (what, now, before) in [
            ("decided", protocol.decided, &mut self.decided),
            ("executed", status.executed, &mut self.executed),
        ] {
            demand(now >= *before, Invariant::Monotone, || {
                format!("{} has {what} slots through {now}, and had {before} before", self.id)
            })?;
            *before = now;
        }
        demand(status.executed <= protocol.decided.max(self.restored), Invariant::DeliveryOrder, || {
            format!("{} has executed {}, but decided {} only", self.id, status.executed, protocol.decided)
        })?;
        demand(
            protocol.role != Role::Leader || protocol.view.ballot.replica == self.id,
            Invariant::OneLeader,
            || format!("{} leads in ballot {}, which is not its own", self.id, protocol.view.ballot),
        )?;
        self.bounded(status, held, settings, world)
    }

    /// The bytes of the session table's cached replies: of all sessions, and the most of one session.
    pub fn caches(&self, (all, of_one): (u64, u64), limits: &SessionLimits) -> Checked {
        self.bounds([
            ("bytes of cached replies", all, limits.reply_bytes_max),
            ("bytes of cached replies of one session", of_one, limits.session_reply_bytes_max),
        ])
    }

    fn bounds<const N: usize>(&self, bounds: [(&str, u64, u64); N]) -> Checked {
        bounds.into_iter().try_for_each(|(what, is, max)| {
            demand(is <= max, Invariant::Bounded, || {
                format!("{} has {is} {what}; at most {max} are allowed", self.id)
            })
        })
    }

    fn bounded(
        &mut self,
        status: &ReplicaStatus,
        held: Held,
        settings: &Settings,
        &Surroundings { windows, ahead_max, batches_max, decided }: &Surroundings,
    ) -> Checked {
        let most_undurable = most_added(&mut self.undurable, status.undurable_bytes);
        let most_unexecuted = most_added(&mut self.unexecuted, status.unexecuted_bytes);
        // A new leader takes over what others accepted, also if it lags, and has not heard by how much.
        let lag = status.protocol.decided_elsewhere.max(decided).0 - status.protocol.decided.0;
        // One command may always enter.
        let queue_max = settings.queue_bytes_max as u64 + COMMAND_BYTES_MAX;
        let ahead_bytes_max = (SEGMENTS_MAX as u64 + 1) * batches_max;
        let unexecuted_slots = status.protocol.decided.0.saturating_sub(status.executed.0);
        let unexecuted_slots_max = settings.backlog_slots_max + ahead_max + FETCH_SLOTS_MAX;
        // One message may always wait.
        let messages_max = settings.held_bytes_max.max(held.largest_message);
        // What was accepted before there was too much is still decided, and so is what a follower takes over
        // at once from a new leader of Sequence Paxos. A restart finds its log decided.
        let accepted_max = (ahead_max + 1) * self.largest_batch;
        let adopted_max = SYNC_SPANS_MAX * ahead_max * self.largest_batch;
        let unexecuted_max =
            self.found.max(settings.backlog_bytes_max) + accepted_max + most_unexecuted.min(adopted_max);
        // The bound allows for the step that exceeds the limit, the step in which a leader takes over what
        // others accepted, and states. Where every replica has a window, a batch that a message waits for is written
        // whatever else waits, since the message was taken in before.
        let wanted_max = if windows > 1 { ahead_max * self.largest_batch } else { 0 };
        let undurable_max = settings.undurable_bytes_max + 2 * most_undurable + STATES_BYTES_MAX + wanted_max;
        self.bounds([
            ("slots in flight", status.protocol.in_flight as u64, ahead_max.saturating_add(lag)),
            ("bytes queued", status.queued_bytes as u64, queue_max),
            ("bytes of batches of followers", status.forwarded_bytes as u64, queue_max.max(batches_max)),
            ("questions of other replicas", status.remote_reads as u64, REMOTE_READS_MAX),
            ("bytes not executed", status.unexecuted_bytes, unexecuted_max),
            // An installed snapshot counts for batches that wait after it.
            ("bytes of batches for its executor", held.batches, 2 * unexecuted_max),
            ("bytes of messages for its disk to release", held.messages, status.held_bytes.min(messages_max)),
            ("bytes not durable", status.undurable_bytes, undurable_max),
            ("slots not executed", unexecuted_slots, unexecuted_slots_max),
            ("bytes of decided batches", status.kept_bytes, settings.kept_bytes_max.max(self.largest_batch)),
            ("bytes that wait for slots in front of them", status.ahead_bytes as u64, ahead_bytes_max),
        ])
    }
}

/// The most that a step added to an amount, given the amount after another step.
fn most_added((before, most): &mut (u64, u64), now: u64) -> u64 {
    *most = (*most).max(now.saturating_sub(*before));
    *before = now;
    *most
}

/// A follower of Sequence Paxos takes over at most this many times what any replica accepts ahead: a leader sends what
/// it has in flight, and drops what was decided before that.
const SYNC_SPANS_MAX: u64 = 4;

/// No simulated command is larger.
const COMMAND_BYTES_MAX: u64 = 16 << 10;

/// Questions of other replicas that may wait at one.
const REMOTE_READS_MAX: u64 = 1024;

/// Records of promises and other states, which are small, are written whatever else waits.
const STATES_BYTES_MAX: u64 = 64 << 10;

/// An upper bound of the slots that one answer to a fetch brings in a simulation.
const FETCH_SLOTS_MAX: u64 = 4096;

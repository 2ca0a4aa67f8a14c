//! Decided slots that others may need, and fetching those that this replica missed.

use std::{collections::VecDeque, time::Duration};

use synod_wire::{Ballot, Batch, ReplicaId, Slot, Time};

use crate::{GROUP_MEMBERS_MAX, SnapshotInfo};

/// What was decided in a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decided {
    /// A ballot in which it was proposed there, as the protocol said when it delivered it.
    pub ballot: Ballot,
    /// The batch.
    pub batch: Batch,
}

/// The decided batches behind the last trim, in memory: references to buffers that were received or sent.
#[derive(Debug)]
pub struct DecidedLog {
    first: Slot,
    batches: VecDeque<Decided>,
    bytes: u64,
    /// How the last slot was delivered.
    ballot: Ballot,
}

impl DecidedLog {
    /// Nothing yet; the slot before `first` was delivered with `ballot`.
    pub fn new(first: Slot, ballot: Ballot) -> DecidedLog {
        DecidedLog { first, batches: VecDeque::new(), bytes: 0, ballot }
    }

    /// How the last slot was delivered.
    pub fn ballot(&self) -> Ballot {
        self.ballot
    }

    /// The last slot that was decided.
    pub fn last(&self) -> Slot {
        Slot(self.first.0 + self.batches.len() as u64 - 1)
    }

    /// Bytes of batches.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How many slots are held.
    pub fn len(&self) -> usize {
        self.batches.len()
    }

    pub fn push(&mut self, slot: Slot, ballot: Ballot, batch: Batch) {
        assert_eq!(slot, self.last().next(), "slots are decided in order");
        self.bytes += batch.bytes().len() as u64;
        self.batches.push_back(Decided { ballot, batch });
        self.ballot = ballot;
    }

    fn pop(&mut self) {
        if let Some(decided) = self.batches.pop_front() {
            self.bytes -= decided.batch.bytes().len() as u64;
            self.first = self.first.next();
        }
    }

    /// Drops what a snapshot through `snapshot` covers, but for the last `slots` slots or `bytes` bytes of it.
    pub fn trim(&mut self, snapshot: Slot, slots: u64, bytes: u64) {
        while self.first <= snapshot
            && !self.batches.is_empty()
            && (self.first.0 + slots <= snapshot.0 || self.bytes > bytes)
        {
            self.pop();
        }
    }

    /// Drops the oldest batches, whether a snapshot covers them or not, until at most `bytes` are left.
    pub fn cap(&mut self, bytes: u64) {
        while self.bytes > bytes && self.batches.len() > 1 {
            self.pop();
        }
    }

    /// A snapshot through `slot` was installed.
    pub fn restart_after(&mut self, slot: Slot, ballot: Ballot) {
        *self = DecidedLog::new(slot.next(), ballot);
    }

    /// Consecutive batches from a slot on, `bytes_max` bytes of them and at least one. `None` if the slot is not
    /// held any more.
    pub fn from(&self, slot: Slot, bytes_max: usize) -> Option<Vec<Decided>> {
        let skip = usize::try_from(slot.0.checked_sub(self.first.0)?).ok()?;
        let mut bytes = 0;
        let fits = |decided: &&Decided| {
            let len = decided.batch.bytes().len();
            let fits = bytes == 0 || bytes + len <= bytes_max;
            // An empty batch takes room in a message too.
            bytes += len + 24;
            fits
        };
        Some(self.batches.iter().skip(skip).take_while(fits).cloned().collect())
    }
}

/// What is to be asked of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Decided slots from this one on.
    Slots(Slot),
    /// A piece of a snapshot.
    Chunk { slot: Slot, offset: u64 },
}

/// Fetching from peers, one question at a time. A peer that does not answer, or can not help, is followed by the
/// next one.
///
/// Where links work in one direction only, or only some of them do, most peers may be out of reach, and whoever is
/// heard need not be: to try one after the other would take longer than an election. So a peer that does not answer is
/// followed by the **leader**: if this replica is needed for a quorum, the two reach each other.
#[derive(Debug)]
pub struct CatchUp {
    peers: Vec<ReplicaId>,
    /// Whom to ask next.
    turn: usize,
    /// Who leads, if that is known and somebody else.
    leader: Option<ReplicaId>,
    /// The last one asked did not answer, so that it is the leader's turn.
    leader_next: bool,
    /// Since when decisions have been missing that are known to exist.
    missing_since: Option<Time>,
    /// The last delivered slot when that was last looked at.
    seen: Slot,
    /// The last answer helped: what is still missing is not on its way by itself.
    eager: bool,
    question: Option<Question>,
    snapshot: Option<Receiving>,
}

#[derive(Debug)]
struct Question {
    peer: ReplicaId,
    at: Time,
}

/// A snapshot that is being received.
#[derive(Debug)]
struct Receiving {
    peer: ReplicaId,
    info: SnapshotInfo,
    /// Bytes received and written.
    offset: u64,
    /// A piece is being written, or the whole is being installed.
    busy: bool,
    /// How often the next piece was asked for in vain.
    failures: u32,
}

/// Those of this replica's group and those of the group that it does not know yet.
const PEERS_MAX: usize = 4 * GROUP_MEMBERS_MAX;

/// A sender of a snapshot that does not answer so often is given up.
const PIECE_FAILURES_MAX: u32 = 3;

/// What came of a piece of a snapshot.
#[derive(Debug, PartialEq, Eq)]
pub enum Piece {
    /// Not the one that was asked for.
    Unexpected,
    /// Write it.
    Write,
    /// The sender does not have the snapshot any more.
    Gone,
}

impl CatchUp {
    /// Whom to ask from now on.
    pub fn set_peers(&mut self, peers: Vec<ReplicaId>) {
        self.peers = peers;
    }

    /// Another replica leads, or nobody does as far as is known.
    pub fn set_leader(&mut self, leader: Option<ReplicaId>) {
        self.leader = leader;
    }

    /// A peer that is ahead speaks: it can be asked too, also if this replica, which lags, does not know it yet. All
    /// whom it does know may be gone.
    pub fn heard(&mut self, peer: ReplicaId) {
        if self.peers.len() < PEERS_MAX && !self.peers.contains(&peer) {
            self.peers.push(peer);
        }
    }

    pub fn new(peers: impl IntoIterator<Item = ReplicaId>) -> CatchUp {
        let peers = peers.into_iter().collect();
        CatchUp {
            peers,
            turn: 0,
            leader: None,
            leader_next: false,
            missing_since: None,
            seen: Slot::ZERO,
            eager: false,
            question: None,
            snapshot: None,
        }
    }

    /// Looks at how far this replica is, and says whom to ask for what, if anybody. `patience`: decisions that
    /// are missing for no longer than this are probably on their way.
    pub fn next(
        &mut self,
        now: Time,
        decided: Slot,
        elsewhere: Slot,
        patience: Duration,
        retry: Duration,
    ) -> Option<(ReplicaId, Ask)> {
        if self.question.as_ref().is_some_and(|question| now.since(question.at) >= retry) {
            self.unanswered();
        }
        if let Some(receiving) = &self.snapshot {
            if receiving.busy || self.question.is_some() {
                return None;
            }
            let ask = Ask::Chunk { slot: receiving.info.slot, offset: receiving.offset };
            let peer = receiving.peer;
            self.question = Some(Question { peer, at: now });
            return Some((peer, ask));
        }
        if decided >= elsewhere || self.peers.is_empty() {
            self.missing_since = None;
            self.question = None;
            self.eager = false;
            return None;
        }
        if self.missing_since.is_none() || decided > self.seen && self.question.is_none() {
            self.missing_since = Some(now);
        }
        self.seen = decided;
        let since = self.missing_since.expect("set above");
        if self.question.is_some() || now < since + patience && !self.eager {
            return None;
        }
        self.eager = false;
        let leader = self.leader.filter(|_| std::mem::take(&mut self.leader_next));
        let peer = leader.unwrap_or(self.peers[self.turn % self.peers.len()]);
        self.question = Some(Question { peer, at: now });
        Some((peer, Ask::Slots(decided.next())))
    }

    /// When [`CatchUp::next`] should be called again.
    pub fn deadline(&self, patience: Duration, retry: Duration) -> Option<Time> {
        match (&self.question, self.missing_since) {
            (Some(question), _) => Some(question.at + retry),
            (None, Some(since)) if self.snapshot.is_none() => Some(since + patience),
            _ => None,
        }
    }

    /// A question was not answered in time: it or its answer may be lost, or the peer gone.
    fn unanswered(&mut self) {
        match &mut self.snapshot {
            Some(receiving) if receiving.failures < PIECE_FAILURES_MAX => {
                receiving.failures += 1;
                self.question = None;
            }
            _ => self.give_up(),
        }
    }

    /// The peer did not help: the turn of the leader, or of the next one.
    fn give_up(&mut self) {
        let asked = self.question.take().map(|question| question.peer);
        self.leader_next = asked != self.leader;
        // The leader was asked out of turn, unless it is its turn.
        if self.leader_next || asked == self.peers.get(self.turn % self.peers.len().max(1)).copied() {
            self.turn += 1;
        }
        if self.snapshot.as_ref().is_some_and(|receiving| !receiving.busy) {
            self.snapshot = None;
        }
    }

    fn answers(&self, from: ReplicaId) -> bool {
        self.question.as_ref().is_some_and(|question| question.peer == from)
    }

    /// Decided slots came. True if they were asked for; `helpful` says whether any was new.
    pub fn fetched(&mut self, from: ReplicaId, helpful: bool, now: Time) {
        if !self.answers(from) || self.snapshot.is_some() {
            return;
        }
        self.question = None;
        self.eager = helpful;
        if !helpful {
            self.turn += 1;
            self.missing_since = Some(now);
        }
    }

    /// The peer has a snapshot instead. True if it is taken.
    pub fn offered(&mut self, from: ReplicaId, info: SnapshotInfo, decided: Slot, now: Time) -> bool {
        if !self.answers(from) || self.snapshot.is_some() {
            return false;
        }
        self.question = None;
        if info.slot <= decided || info.bytes == 0 {
            self.turn += 1;
            self.missing_since = Some(now);
            return false;
        }
        self.snapshot = Some(Receiving { peer: from, info, offset: 0, busy: false, failures: 0 });
        true
    }

    /// A piece of a snapshot came.
    pub fn piece(&mut self, from: ReplicaId, slot: Slot, offset: u64, total: u64, len: usize) -> Piece {
        let answers = self.answers(from);
        let Some(receiving) = &mut self.snapshot else { return Piece::Unexpected };
        if !answers || receiving.busy || receiving.info.slot != slot || offset != receiving.offset {
            return Piece::Unexpected;
        }
        if total != receiving.info.bytes || len == 0 || offset + len as u64 > total {
            self.give_up();
            return Piece::Gone;
        }
        self.question = None;
        receiving.busy = true;
        receiving.failures = 0;
        Piece::Write
    }

    /// A piece was written: true if it was the last.
    pub fn written(&mut self, slot: Slot, end: u64) -> bool {
        let Some(receiving) = self.snapshot.as_mut().filter(|receiving| receiving.info.slot == slot) else {
            return false;
        };
        receiving.offset = end;
        receiving.busy = end == receiving.info.bytes;
        receiving.busy
    }

    /// The snapshot was installed, or could not be.
    pub fn snapshot_done(&mut self, installed: bool) {
        self.snapshot = None;
        if !installed {
            self.turn += 1;
        }
    }

    /// The snapshot that is being received, and how many bytes of it have come.
    pub fn receiving(&self) -> Option<(SnapshotInfo, u64)> {
        self.snapshot.as_ref().map(|receiving| (receiving.info, receiving.offset))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use synod_wire::{BatchBuilder, SessionId};

    const PATIENCE: Duration = Duration::from_millis(10);
    const RETRY: Duration = Duration::from_millis(100);

    fn at(ms: u64) -> Time {
        Time::from_nanos(ms * 1_000_000)
    }

    fn batch(len: usize) -> Batch {
        let mut builder = BatchBuilder::new();
        builder.push(SessionId(1), 1, 1, &vec![0; len]);
        builder.finish()
    }

    #[test]
    fn the_decided_log_keeps_what_it_should() {
        let mut log = DecidedLog::new(Slot(1), Ballot::ZERO);
        (1..=10).for_each(|slot| log.push(Slot(slot), Ballot::ZERO, batch(100)));
        assert_eq!(log.from(Slot(9), 10_000).unwrap().len(), 2);
        assert_eq!(log.from(Slot(1), 300).unwrap().len(), 2);
        assert_eq!(log.from(Slot(1), 1).unwrap().len(), 1, "at least one");
        assert_eq!(log.from(Slot(11), 1).unwrap().len(), 0);
        log.trim(Slot(8), 3, u64::MAX);
        assert!(log.from(Slot(5), 1).is_none());
        assert!(log.from(Slot(6), 1).is_some(), "three slots behind the snapshot are kept");
        log.trim(Slot(8), 3, 0);
        assert!(log.from(Slot(8), 1).is_none(), "bytes bound it as well");
        assert!(log.from(Slot(9), 1).is_some(), "what no snapshot covers stays");
    }

    #[test]
    fn missing_slots_are_asked_for_after_a_while_and_of_others_in_turn() {
        let mut catch_up = CatchUp::new([ReplicaId(2), ReplicaId(3)]);
        let mut next = |ms, decided| catch_up.next(at(ms), Slot(decided), Slot(9), PATIENCE, RETRY);
        assert_eq!(next(0, 5), None);
        assert_eq!(next(5, 6), None, "progress: what is missing is on its way");
        assert_eq!(next(10, 6), None);
        assert_eq!(next(15, 6), Some((ReplicaId(2), Ask::Slots(Slot(7)))));
        assert_eq!(next(20, 6), None);
        assert_eq!(next(115, 6), Some((ReplicaId(3), Ask::Slots(Slot(7)))));
        catch_up.fetched(ReplicaId(2), true, at(116));
        assert!(catch_up.question.is_some(), "an answer nobody waits for");
        catch_up.fetched(ReplicaId(3), true, at(117));
        assert_eq!(
            catch_up.next(at(117), Slot(8), Slot(9), PATIENCE, RETRY),
            Some((ReplicaId(3), Ask::Slots(Slot(9)))),
            "the rest is asked for at once"
        );
        assert_eq!(catch_up.next(at(118), Slot(9), Slot(9), PATIENCE, RETRY), None);
    }

    #[test]
    fn where_most_are_out_of_reach_the_leader_is_asked_second() {
        let mut catch_up = CatchUp::new([2, 3, 4, 5].map(ReplicaId));
        catch_up.set_leader(Some(ReplicaId(5)));
        let mut next = |ms| catch_up.next(at(ms), Slot(1), Slot(9), PATIENCE, RETRY).map(|(peer, _)| peer.0);
        assert_eq!(next(0), None);
        let asked: Vec<_> = (0..8).filter_map(|round| next(10 + 100 * round)).collect();
        assert_eq!(asked, [2, 5, 3, 5, 4, 5, 2, 5]);
    }

    #[test]
    fn whoever_is_ahead_can_be_asked() {
        let mut catch_up = CatchUp::new([]);
        let next = |catch_up: &mut CatchUp| catch_up.next(at(0), Slot(1), Slot(9), Duration::ZERO, RETRY);
        assert_eq!(next(&mut catch_up), None, "nobody is known");
        catch_up.heard(ReplicaId(7));
        assert_eq!(next(&mut catch_up), Some((ReplicaId(7), Ask::Slots(Slot(2)))));
    }

    #[test]
    fn a_snapshot_is_received_piece_by_piece() {
        let mut catch_up = CatchUp::new([ReplicaId(2)]);
        let info = SnapshotInfo { slot: Slot(8), bytes: 10 };
        catch_up.next(at(0), Slot(1), Slot(9), Duration::ZERO, RETRY).unwrap();
        assert!(catch_up.offered(ReplicaId(2), info, Slot(1), at(1)));
        let ask = |catch_up: &mut CatchUp| catch_up.next(at(2), Slot(1), Slot(9), Duration::ZERO, RETRY);
        assert_eq!(ask(&mut catch_up), Some((ReplicaId(2), Ask::Chunk { slot: Slot(8), offset: 0 })));
        assert_eq!(catch_up.piece(ReplicaId(2), Slot(8), 5, 10, 5), Piece::Unexpected);
        assert_eq!(catch_up.piece(ReplicaId(2), Slot(8), 0, 10, 6), Piece::Write);
        assert_eq!(ask(&mut catch_up), None, "the piece is being written");
        assert!(!catch_up.written(Slot(8), 6));
        assert_eq!(ask(&mut catch_up), Some((ReplicaId(2), Ask::Chunk { slot: Slot(8), offset: 6 })));
        assert_eq!(catch_up.piece(ReplicaId(2), Slot(8), 6, 10, 4), Piece::Write);
        assert!(catch_up.written(Slot(8), 10));
        catch_up.snapshot_done(true);
        assert!(catch_up.receiving().is_none());
    }
}

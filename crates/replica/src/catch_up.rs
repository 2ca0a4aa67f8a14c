//! Fetching what this replica missed: decided slots from several peers at a time, or a snapshot from one.
//!
//! What is missing is cut into segments (Ng 2020, sections 4.1 and 4.4: pull). Each segment is asked of one
//! peer that has it as far as this replica knows, and of a follower rather than of the leader, whose outgoing
//! links carry the proposals. A replica that lags itself serves what it has. Answers that come before those
//! with lower slots wait in [`Ahead`]. A segment without an answer is asked of another peer, and what an
//! answer leaves out is asked for again.
//!
//! Where links work in one direction only, or only some of them work, most peers may be out of reach, even peers
//! that this replica hears: to try one after the other would take longer than an election. So after a peer that
//! does not answer, the leader is asked next: if this replica is needed for a quorum, the two reach each other.
//!
//! A snapshot comes from one peer, piece by piece: the snapshots of two replicas at the same slot may differ
//! in how that slot was delivered, so pieces of several do not make one.

mod peers;
#[cfg(test)]
mod tests;

use std::{
    collections::VecDeque,
    ops::{Range, RangeInclusive},
    time::Duration,
};

use synod_wire::{ReplicaId, Slot, Time};

use crate::{
    GROUP_MEMBERS_MAX, SnapshotInfo,
    ahead::{self, Ahead},
    decided::Decided,
};
use peers::{Keeps, Peer, Rank, SLOW_MAX};

/// What a peer is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Decided slots.
    Slots { from: Slot, through: Slot },
    /// A piece of a snapshot.
    Chunk { slot: Slot, offset: u64 },
}

/// How long a replica waits before it asks, and how much it asks for at a time.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Slots that have been missing for less than this are probably on their way.
    pub delay: Duration,
    /// What is not answered for this long is asked of another peer.
    pub retry: Duration,
    /// A peer that said that it lacks a slot is asked again after this time, if no other is more likely to
    /// have the slot.
    pub fresh: Duration,
    /// After this time it no longer matters that a peer left a question unanswered.
    pub forget: Duration,
    /// After this time it no longer matters that a peer lacked a slot. All others can be asked meanwhile: two replicas
    /// that lack the same would otherwise ask each other forever, and never the leader.
    pub lacked: Duration,
    /// Bytes of batches in an answer; one batch may be larger.
    pub answer_bytes: usize,
}

impl Pace {
    /// Bytes of batches that may wait for slots with lower numbers.
    fn ahead_bytes_max(&self) -> usize {
        self.answer_bytes.saturating_mul(SEGMENTS_MAX)
    }
}

/// Consecutive decided slots that came from a peer.
#[derive(Debug)]
pub struct Arrived {
    pub peer: ReplicaId,
    pub first: Slot,
    pub batches: Vec<Decided>,
}

/// What a replica lacks, which peers may have it, and what it has asked them for.
#[derive(Debug)]
pub struct CatchUp {
    peers: Vec<Peer>,
    /// The index of the peer that is preferred among equals.
    turn: usize,
    /// The time since which decisions have been missing that are known to exist.
    missing_since: Option<Time>,
    /// The last slot that was delivered, and the last slot known to be decided elsewhere, at the last look,
    /// and when that was.
    seen: Slot,
    elsewhere: Slot,
    looked_at: Time,
    /// Slots through this one are asked for.
    goal: Slot,
    /// Whether the last answer brought something new: then what is still missing is not on its way by itself.
    hurry: bool,
    /// When the last new slot came without having been asked for.
    pushed_at: Time,
    questions: Vec<Question>,
    /// Whether the last peer that was asked for the slot that is needed next did not answer, so that the
    /// leader is asked next.
    leader_next: bool,
    ahead: Ahead,
    /// Runs of slots that this replica holds itself, after others that it lacks.
    held: VecDeque<Range<Slot>>,
    /// About how many bytes a slot takes, as the last answer showed.
    slot_bytes: usize,
    snapshot: Option<Receiving>,
}

#[derive(Debug)]
struct Question {
    peer: ReplicaId,
    from: Slot,
    through: Slot,
    at: Time,
}

/// A snapshot that is being received.
#[derive(Debug)]
struct Receiving {
    peer: ReplicaId,
    info: SnapshotInfo,
    /// Bytes received and written.
    offset: u64,
    /// Whether a piece is being written, or the whole snapshot is being installed.
    busy: bool,
    /// When the next piece was asked for, if it was.
    asked_at: Option<Time>,
    /// How many times in a row it was asked for without an answer.
    failures: u32,
}

/// At most this many peers are known: members of this replica's group, and members of a later group that it
/// does not know yet.
const PEERS_MAX: usize = 4 * GROUP_MEMBERS_MAX;

/// A sender of a snapshot that has left this many questions in a row unanswered is given up at the next.
const PIECE_FAILURES_MAX: u32 = 3;

/// At most this many segments are asked for or wait for slots with lower numbers. Each may be a single slot.
pub const SEGMENTS_MAX: usize = ahead::SLOTS_MIN;

/// The most slots of a segment, however small they are.
const SEGMENT_SLOTS_MAX: usize = 8192;

/// The fewest slots of a segment, if this many are missing, however many peers could share them.
const SEGMENT_SLOTS_MIN: u64 = 64;

/// The assumed bytes of a slot as long as none has come.
const SLOT_BYTES: usize = 4096;

/// The most questions to one peer at a time: it answers one while the next is on its way.
const QUESTIONS_PER_PEER: usize = 2;

/// What the replica does with a piece of a snapshot.
#[derive(Debug, PartialEq, Eq)]
pub enum Piece {
    /// It ignores the piece, which is not the one that it asked for.
    Unexpected,
    /// It writes the piece.
    Write,
    /// It gives the snapshot up, which the sender does not have any more.
    Gone,
}

impl CatchUp {
    pub fn new(peers: impl IntoIterator<Item = ReplicaId>) -> CatchUp {
        CatchUp {
            peers: peers.into_iter().map(Peer::new).collect(),
            turn: 0,
            missing_since: None,
            seen: Slot::ZERO,
            elsewhere: Slot::ZERO,
            looked_at: Time::ZERO,
            goal: Slot::ZERO,
            hurry: false,
            pushed_at: Time::ZERO,
            questions: Vec::new(),
            leader_next: false,
            ahead: Ahead::default(),
            held: VecDeque::new(),
            slot_bytes: SLOT_BYTES,
            snapshot: None,
        }
    }

    // Which peers can be asked.

    /// Makes these the peers that can be asked.
    pub fn set_peers(&mut self, ids: &[ReplicaId]) {
        self.peers.retain(|peer| ids.contains(&peer.id));
        ids.iter().for_each(|&id| self.add(id));
    }

    fn add(&mut self, id: ReplicaId) {
        if self.peers.len() < PEERS_MAX && self.peers.iter().all(|peer| peer.id != id) {
            self.peers.push(Peer::new(id));
        }
    }

    fn peer(&mut self, id: ReplicaId) -> Option<&mut Peer> {
        self.peers.iter_mut().find(|peer| peer.id == id)
    }

    /// Records that a peer which is ahead speaks. It can be asked, even if this replica, which lags, does
    /// not know it as a member yet: all the members that it knows may be gone.
    pub fn heard(&mut self, id: ReplicaId) {
        self.add(id);
    }

    /// Records that a peer says that it keeps the slots from `first` to `last`.
    pub fn told(&mut self, id: ReplicaId, first: Slot, last: Slot, now: Time) {
        let elsewhere = self.elsewhere.max(last);
        if let Some(peer) = self.peer(id) {
            peer.keeps = Some(Keeps { first, last, at: now, elsewhere });
        }
    }

    /// Records that a peer will not send what it has by itself, although it could have, so that it has to
    /// be asked. While other peers send slots, nothing is asked for.
    pub fn sends_nothing(&mut self, now: Time, pace: &Pace) {
        self.hurry |= now >= self.pushed_at + pace.delay;
    }

    /// Records that a session to a peer began or ended.
    pub fn linked(&mut self, id: ReplicaId, up: bool) {
        if let Some(peer) = self.peer(id) {
            (peer.down, peer.silent_since, peer.slow) = (!up, None, 0);
        }
        // What was asked in the last session may be lost, and so may its answer.
        self.questions.retain(|question| question.peer != id);
    }

    /// Whether there is no session to a peer.
    pub fn is_down(&self, id: ReplicaId) -> bool {
        self.peers.iter().any(|peer| peer.id == id && peer.down)
    }

    /// Records that this replica holds these runs of slots itself, in order, after others that it lacks:
    /// they are not asked for.
    pub fn holds(&mut self, runs: VecDeque<Range<Slot>>) {
        self.held = runs;
    }

    // Asking.

    /// Records how far this replica is, and returns which peers to ask for what.
    pub fn next(
        &mut self,
        now: Time,
        decided: Slot,
        elsewhere: Slot,
        leader: Option<ReplicaId>,
        pace: &Pace,
    ) -> Vec<(ReplicaId, Ask)> {
        if self.rests(now, decided, elsewhere) {
            return Vec::new();
        }
        self.questions.retain(|question| question.through > decided);
        self.time_out(now, decided, leader, pace.retry);
        if self.snapshot.is_some() {
            return self.next_piece(now, pace.retry).into_iter().collect();
        }
        if decided >= elsewhere || self.peers.is_empty() {
            self.rest();
            return Vec::new();
        }
        if self.missing_since.is_none() || decided > self.seen && self.questions.is_empty() {
            self.missing_since = Some(now);
        }
        self.seen = decided;
        let since = self.missing_since.expect("set above");
        let hurry = self.hurry && now >= self.pushed_at + pace.delay;
        if self.questions.is_empty() {
            if now < since + pace.delay && !hurry {
                return Vec::new();
            }
            self.goal = elsewhere;
        } else if pace.delay.is_zero() {
            // Nothing of what is decided meanwhile comes by itself.
            self.goal = elsewhere;
        }
        self.ask_segments(now, decided, leader, pace)
    }

    /// Records what is decided, and returns whether there is nothing to ask: nothing is missing, or no peer can
    /// be asked, and nothing was asked before. So it is nearly always.
    pub fn rests(&mut self, now: Time, decided: Slot, elsewhere: Slot) -> bool {
        self.looked_at = now;
        self.elsewhere = elsewhere;
        self.ahead.drop_through(decided);
        let asks = decided < elsewhere && !self.peers.is_empty();
        let rests = !asks && self.questions.is_empty() && self.snapshot.is_none();
        if rests {
            self.rest();
        }
        rests
    }

    /// Forgets the questions, since nothing is missing or no peer can be asked.
    fn rest(&mut self) {
        self.missing_since = None;
        self.questions.clear();
        self.hurry = false;
        self.peers.iter_mut().for_each(|peer| peer.helped = false);
    }

    fn ask_segments(
        &mut self,
        now: Time,
        decided: Slot,
        leader: Option<ReplicaId>,
        pace: &Pace,
    ) -> Vec<(ReplicaId, Ask)> {
        let len = (pace.answer_bytes / self.slot_bytes).clamp(1, SEGMENT_SLOTS_MAX) as u64;
        let helpers = self.peers.iter().filter(|peer| peer.helps(leader, now, pace)).count().max(1);
        let shares = (helpers * QUESTIONS_PER_PEER) as u64;
        let mut asks = Vec::new();
        let mut from = decided.next();
        for _ in 0..SEGMENTS_MAX {
            from = self.first_open(from);
            let waiting = self.ahead.bytes().div_ceil(pace.answer_bytes.max(1)).min(self.ahead.len());
            // The slot that is needed next is asked for in any case, since everything else waits for it.
            let full = self.questions.len() + waiting >= SEGMENTS_MAX && from != decided.next();
            if from > self.goal || full {
                break;
            }
            let asked = self.questions.iter().map(|question| question.from);
            let held = self.held.iter().map(|run| run.start).find(|&begins| begins > from);
            let here = self.ahead.first_from(from).into_iter().chain(held);
            let next = asked.filter(|&begins| begins > from).chain(here).min();
            // Segments become shorter towards the end, so that all peers finish at about the same time.
            let share = (self.goal.0 - from.0 + 1).div_ceil(shares).max(SEGMENT_SLOTS_MIN);
            let mut through = Slot(from.0.saturating_add(len.min(share) - 1)).min(self.goal);
            through = next.map_or(through, |next| through.min(next.prev()));
            let second = leader.filter(|_| self.leader_next && from == decided.next());
            let second = second.and_then(|leader| self.peers.iter().position(|peer| peer.id == leader));
            if let Some(index) = second.or_else(|| self.choose(from, leader, now, pace)) {
                self.leader_next = false;
                let peer = &self.peers[index];
                if let Some(keeps) = peer.keeps.filter(|_| peer.has(from)) {
                    through = through.min(keeps.last);
                }
                asks.push((peer.id, Ask::Slots { from, through }));
                self.questions.push(Question { peer: peer.id, from, through, at: now });
                self.turn = index + 1;
                self.hurry = false;
            }
            from = through.next();
        }
        asks
    }

    /// The first slot from this one on that is neither here nor asked for.
    fn first_open(&self, mut slot: Slot) -> Slot {
        loop {
            let asked =
                self.questions.iter().find(|question| question.from <= slot && slot <= question.through);
            let held = || self.held.iter().find(|run| run.contains(&slot)).map(|run| run.end);
            match asked
                .map(|question| question.through.next())
                .or_else(|| self.ahead.end_of(slot))
                .or_else(held)
            {
                Some(after) => slot = after,
                None => return slot,
            }
        }
    }

    /// The index of the peer to ask for a slot: one of those with the best rank that is not busy; `None` if
    /// there is none.
    fn choose(&self, slot: Slot, leader: Option<ReplicaId>, now: Time, pace: &Pace) -> Option<usize> {
        let rank = |peer: &Peer| match peer.rank(slot, leader, now, pace)? {
            // A question shows what the peer has.
            Rank::Unknown => Some(Rank::Has),
            rank => Some(rank),
        };
        let first = self.peers.iter().filter_map(rank).min();
        if first.is_none_or(|first| first >= Rank::Lacked) {
            // All other peers keep saying that they do not have the slot any more, so that only peers that lacked the
            // slot, or do not answer, would be asked, or nobody.
            let busy = |peer: &Peer| self.questions.iter().any(|question| question.peer == peer.id);
            let follows = |peer: &Peer| peer.keeps_what_follows(slot, now, pace) && !busy(peer);
            let others = self.peers.iter().enumerate().filter(|(_, peer)| follows(peer));
            if let Some((index, _)) = others.max_by_key(|(_, peer)| peer.keeps.map(|keeps| keeps.last)) {
                return Some(index);
            }
        }
        let first = first?;
        let among = self.peers.iter().enumerate().filter(|(_, peer)| rank(peer) == Some(first));
        let idle = among.filter_map(|(index, peer)| {
            let busy = self.questions.iter().filter(|question| question.peer == peer.id).count();
            let most = if peer.has(slot) && first <= Rank::Leads { QUESTIONS_PER_PEER } else { 1 };
            let place = (index + self.peers.len() - self.turn % self.peers.len()) % self.peers.len();
            let order = match peer.keeps {
                // Of the peers that have the slot, the one that has fewer slots after it is asked: others can
                // be asked for the rest.
                Some(keeps) if peer.has(slot) => keeps.last.0,
                // A peer that is further may have a snapshot of what it does not keep any more.
                Some(keeps) => u64::MAX - keeps.last.0,
                None => u64::MAX,
            };
            (busy < most).then_some((busy, !peer.has(slot), order, place, index))
        });
        idle.min().map(|(.., index)| index)
    }

    /// Whether there may be a [`CatchUp::deadline`]: something is missing, or was asked for.
    pub fn waits(&self) -> bool {
        self.snapshot.is_some() || !self.questions.is_empty() || self.missing_since.is_some()
    }

    /// When [`CatchUp::next`] should be called the next time.
    pub fn deadline(&self, pace: &Pace) -> Option<Time> {
        if let Some(receiving) = &self.snapshot {
            return receiving.asked_at.map(|at| at + pace.retry);
        }
        if let Some(due) = self.questions.iter().map(|question| self.due(question, pace.retry)).min() {
            return Some(due);
        }
        let due = self.missing_since? + pace.delay;
        // If no peer could be asked, one may have what is missing later.
        let later = self.looked_at + pace.fresh.max(Duration::from_millis(1));
        Some(if self.looked_at < due { due } else { later })
    }

    /// When the answer to a question is overdue.
    fn due(&self, question: &Question, retry: Duration) -> Time {
        let peer = self.peers.iter().find(|peer| peer.id == question.peer);
        let (answered_at, slow) = peer.map_or((Time::ZERO, 0), |peer| (peer.answered_at, peer.slow));
        // A peer answers one question after the other.
        question.at.max(answered_at) + retry * (1 + slow)
    }

    /// Gives up questions that were not answered in time: the question or the answer may be lost, or the peer
    /// may be gone.
    fn time_out(&mut self, now: Time, decided: Slot, leader: Option<ReplicaId>, retry: Duration) {
        let overdue: Vec<usize> = (0..self.questions.len())
            .rev()
            .filter(|&index| now >= self.due(&self.questions[index], retry))
            .collect();
        for index in overdue {
            let Question { peer: id, from, .. } = self.questions.remove(index);
            if from <= decided.next() {
                self.leader_next = leader.is_some_and(|leader| leader != id);
            }
            if let Some(peer) = self.peer(id) {
                peer.silent_since = Some(now);
            }
        }
    }

    // Arriving slots.

    /// Takes decided slots that came as an answer, from a peer that keeps these slots.
    pub fn fetched(
        &mut self,
        now: Time,
        arrived: Arrived,
        keeps: RangeInclusive<Slot>,
        decided: Slot,
        pace: &Pace,
    ) {
        let Arrived { peer, first, .. } = arrived;
        self.told(peer, *keeps.start(), *keeps.end(), now);
        let asked =
            self.questions.iter().position(|question| question.peer == peer && question.from == first);
        if let Some(index) = asked {
            // A peer answers in the order of the questions, so answers to earlier questions are lost.
            let mut place = 0;
            self.questions.retain(|question| {
                place += 1;
                question.peer != peer || place > index + 1
            });
        }
        if let Some(peer) = self.peer(peer) {
            peer.answers(now);
            let slow = if asked.is_some() { peer.slow.saturating_sub(1) } else { peer.slow + 1 };
            peer.slow = slow.min(SLOW_MAX);
        }
        let new = self.take(arrived, decided, pace);
        if asked.is_some() && new {
            self.hurry = true;
        } else if asked.is_some() && self.questions.is_empty() {
            self.hurry = false;
            self.missing_since = Some(now);
        }
    }

    /// Takes decided slots that came without having been asked for, from a peer that keeps what follows them
    /// through `last`.
    pub fn pushed(&mut self, now: Time, arrived: Arrived, last: Slot, decided: Slot, pace: &Pace) {
        let earlier =
            self.peer(arrived.peer).and_then(|peer| peer.keeps).map_or(Slot(u64::MAX), |keeps| keeps.first);
        self.told(arrived.peer, earlier.min(arrived.first), last, now);
        if self.take(arrived, decided, pace) {
            self.pushed_at = now;
        }
    }

    /// Keeps what is new until it is its turn; returns whether anything was new.
    fn take(&mut self, arrived: Arrived, decided: Slot, pace: &Pace) -> bool {
        let Arrived { peer, first, batches } = arrived;
        let (count, bytes) = (batches.len(), batches.iter().map(Decided::size).sum::<usize>());
        let new = self.ahead.insert(first, batches, decided, pace.ahead_bytes_max());
        if new {
            self.slot_bytes = bytes.div_ceil(count).max(1);
            if let Some(peer) = self.peer(peer) {
                peer.helped = true;
            }
        }
        new
    }

    /// What was decided in a slot, if that has come and everything before it was taken.
    pub fn front(&self, slot: Slot) -> Option<&Decided> {
        self.ahead.front(slot)
    }

    /// Records that slots through this one are delivered.
    pub fn delivered(&mut self, slot: Slot) {
        self.ahead.drop_through(slot);
    }

    /// Bytes of batches that wait for slots with lower numbers.
    pub fn ahead_bytes(&self) -> usize {
        self.ahead.bytes()
    }

    /// How many peers slots or a snapshot come from.
    pub fn sources(&self) -> usize {
        let asked = |peer: &&Peer| self.questions.iter().any(|question| question.peer == peer.id);
        let slots = self.peers.iter().filter(|peer| peer.helped || asked(peer)).count();
        self.snapshot.as_ref().map_or(slots, |_| 1)
    }

    // Snapshots.

    /// Records that a peer offers a snapshot, instead of slots that it was asked for or `unsolicited`. Returns
    /// whether the snapshot is to be fetched.
    pub fn offered(
        &mut self,
        from: ReplicaId,
        info: SnapshotInfo,
        decided: Slot,
        unsolicited: bool,
        now: Time,
    ) -> bool {
        // An offer does not say which question it answers: it is taken to be the first one.
        let answered = self.questions.iter().position(|question| question.peer == from);
        let answered = answered.map(|index| self.questions.remove(index).from);
        if let Some(peer) = self.peer(from).filter(|_| answered.is_some()) {
            peer.answers(now);
        }
        if self.snapshot.is_some() || answered.is_none() && !unsolicited {
            return false;
        }
        // As far as is known, the peer keeps neither that slot nor anything that the snapshot covers.
        let gone = answered.unwrap_or_default().max(info.slot);
        let last = self.peer(from).and_then(|peer| peer.keeps).map_or(gone, |keeps| keeps.last);
        self.told(from, gone.next(), last.max(gone), now);
        if info.slot <= decided || info.bytes == 0 {
            if self.questions.is_empty() {
                self.hurry = false;
                self.missing_since = Some(now);
            }
            return false;
        }
        let next = decided.next();
        let answers = |peer: &Peer| !peer.down && peer.silent_since.is_none();
        let asked = |peer: &Peer| {
            let of_it = |question: &&Question| question.peer == peer.id && question.from <= next;
            self.questions.iter().filter(of_it).any(|question| next <= question.through)
        };
        if self.peers.iter().any(|peer| answers(peer) && (peer.has(next) || asked(peer))) {
            // Another peer keeps more than this one, or may keep more, and will be asked. (A silent peer may
            // never answer.)
            return false;
        }
        self.questions.clear();
        self.ahead.drop_through(info.slot);
        self.snapshot =
            Some(Receiving { peer: from, info, offset: 0, busy: false, asked_at: None, failures: 0 });
        true
    }

    /// The next piece to ask for, if it is time to ask.
    fn next_piece(&mut self, now: Time, retry: Duration) -> Option<(ReplicaId, Ask)> {
        let receiving = self.snapshot.as_mut()?;
        if receiving.asked_at.is_some_and(|at| now >= at + retry) {
            receiving.asked_at = None;
            receiving.failures += 1;
        }
        if receiving.failures > PIECE_FAILURES_MAX && !receiving.busy {
            let peer = receiving.peer;
            self.snapshot = None;
            if let Some(peer) = self.peer(peer) {
                peer.silent_since = Some(now);
            }
            return None;
        }
        if receiving.busy || receiving.asked_at.is_some() {
            return None;
        }
        receiving.asked_at = Some(now);
        Some((receiving.peer, Ask::Chunk { slot: receiving.info.slot, offset: receiving.offset }))
    }

    /// Says what to do with a piece of a snapshot that has come.
    pub fn piece(&mut self, from: ReplicaId, slot: Slot, offset: u64, total: u64, len: usize) -> Piece {
        let Some(receiving) = &mut self.snapshot else { return Piece::Unexpected };
        let asked = receiving.asked_at.is_some() && receiving.peer == from;
        if !asked || receiving.busy || receiving.info.slot != slot || offset != receiving.offset {
            return Piece::Unexpected;
        }
        if total != receiving.info.bytes || len == 0 || offset + len as u64 > total {
            self.snapshot = None;
            return Piece::Gone;
        }
        receiving.asked_at = None;
        receiving.busy = true;
        receiving.failures = 0;
        Piece::Write
    }

    /// Records that a piece was written; returns whether it was the last.
    pub fn written(&mut self, slot: Slot, end: u64) -> bool {
        let Some(receiving) = self.snapshot.as_mut().filter(|receiving| receiving.info.slot == slot) else {
            return false;
        };
        receiving.offset = end;
        receiving.busy = end == receiving.info.bytes;
        receiving.busy
    }

    /// Records that the snapshot was installed, or could not be. If it could not, other peers are asked first.
    pub fn snapshot_done(&mut self, installed: bool, now: Time) {
        let Some(receiving) = self.snapshot.take() else { return };
        if !installed && let Some(peer) = self.peer(receiving.peer) {
            peer.silent_since = Some(now);
        }
    }

    /// The snapshot that is being received, and how many bytes of it have come.
    pub fn receiving(&self) -> Option<(SnapshotInfo, u64)> {
        self.snapshot.as_ref().map(|receiving| (receiving.info, receiving.offset))
    }
}

//! Collects commands into batches (Santos 2012, section 8.2).
//!
//! A batch is closed when it is full or when its first command has waited for the batch delay. There is one
//! improvement: while the window has room and nothing is being batched, a command leaves at once, together
//! with whatever came in the same burst; the delay only ever applies to batches that had to wait for room.
//!
//! A batch that leaves has a name ([`BatchId`]), which is the session of this life of the replica and a number, and
//! says below which number this life waits for no batch any more. Both are written when it leaves, however long it
//! was closed before: the leader leaves out what is below that number.

use std::{collections::VecDeque, time::Duration};

use synod_wire::{Batch, BatchBuilder, BatchId, COMMAND_HEADER_BYTES, CommandKind, SessionId, Time};

use crate::RequestId;

/// What waits for a command of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiter {
    /// A request that counts as this replica's, with its number.
    Own {
        /// Its number in the replica's session.
        sequence: u64,
        /// The request; `None` if it was given up, so that nothing waits any more.
        request: Option<RequestId>,
    },
    /// A client that identifies itself; see `Requests::clients` for the request.
    Client {
        /// The session.
        session: SessionId,
        /// The command's number in it.
        sequence: u64,
    },
}

impl Waiter {
    /// Whether a client waits. None waits for what the replica asks for itself, such as ticks of the replicated clock.
    pub fn is_client(&self) -> bool {
        matches!(self, Waiter::Client { .. } | Waiter::Own { request: Some(_), .. })
    }
}

/// A command, with everything that a batch says of it.
#[derive(Debug)]
pub struct Entry<'a> {
    pub kind: CommandKind,
    pub session: SessionId,
    pub sequence: u64,
    pub lowest_outstanding: u64,
    pub payload: &'a [u8],
    pub waiter: Waiter,
}

/// A batch that left, and what waits for its commands.
#[derive(Debug)]
pub struct Named {
    pub batch: Batch,
    /// Its number among the batches of this life.
    pub number: u64,
    pub closed: Closed,
}

/// What is known of a closed batch besides its commands.
#[derive(Debug)]
pub struct Closed {
    /// Whether it is a change of the group, which is a batch of its own.
    pub changes_group: bool,
    /// What waits for its commands, in order.
    pub waiters: Vec<Waiter>,
    /// The number of its first command in the replica's own session, if it has any.
    pub first_own: Option<u64>,
    /// When its first command came.
    pub born: Time,
}

/// The batch that is open, and the batches that wait for room.
#[derive(Debug)]
pub struct Batcher {
    /// The session of this life, which names its batches.
    session: SessionId,
    /// The number of the next batch.
    number: u64,
    bytes_max: usize,
    delay_max: Duration,
    builder: BatchBuilder,
    waiters: Vec<Waiter>,
    first_own: Option<u64>,
    born: Time,
    /// Whether the open batch has been left over by a flush, because there was no room.
    waited: bool,
    /// Whether anything was left over at the end of the last burst.
    left_over: bool,
    closed: VecDeque<(BatchBuilder, Closed)>,
    closed_bytes: usize,
    /// [`Closed::first_own`] of those that have one, in order.
    closed_own: VecDeque<u64>,
}

impl Batcher {
    /// The session that names its batches.
    pub fn session(&self) -> SessionId {
        self.session
    }

    pub fn new(session: SessionId, bytes_max: usize, delay_max: Duration) -> Batcher {
        Batcher {
            session,
            number: 1,
            bytes_max,
            delay_max,
            builder: BatchBuilder::identified(),
            waiters: Vec::new(),
            first_own: None,
            born: Time::ZERO,
            waited: false,
            left_over: false,
            closed: VecDeque::new(),
            closed_bytes: 0,
            closed_own: VecDeque::new(),
        }
    }

    /// Closes batches, from now on, when another command would make them larger than this.
    pub fn bound(&mut self, bytes_max: usize) {
        self.bytes_max = bytes_max;
    }

    /// Bytes that wait here.
    pub fn bytes(&self) -> usize {
        self.builder.len() + self.closed_bytes
    }

    /// How many batches wait here, the open one among them.
    pub fn batches(&self) -> usize {
        self.closed.len() + usize::from(!self.builder.is_empty())
    }

    /// Whether what waits here has to wait for its turn, and not only for the end of the burst with which it came.
    pub fn queues(&self) -> bool {
        self.left_over && self.batches() > 0
    }

    /// Adds a command.
    pub fn push(&mut self, now: Time, entry: Entry<'_>) {
        let len = COMMAND_HEADER_BYTES + entry.payload.len();
        // A change of the group is a batch of its own.
        let alone = entry.kind.is_change();
        if !self.builder.is_empty() && (alone || self.builder.len() + len > self.bytes_max) {
            self.close(false);
        }
        if self.builder.is_empty() {
            self.born = now;
            self.waited = false;
        }
        let Entry { kind, session, sequence, lowest_outstanding, payload, waiter } = entry;
        self.builder.push_as(kind, session, sequence, lowest_outstanding, payload);
        self.waiters.push(waiter);
        if let Waiter::Own { sequence, .. } = waiter {
            self.first_own.get_or_insert(sequence);
        }
        if alone {
            self.close(true);
        }
    }

    fn close(&mut self, changes_group: bool) {
        self.closed_bytes += self.builder.len();
        let first_own = self.first_own.take();
        self.closed_own.extend(first_own);
        let waiters = std::mem::take(&mut self.waiters);
        let closed = Closed { changes_group, waiters, first_own, born: self.born };
        self.closed.push_back((self.builder.split(), closed));
    }

    /// Takes out the closed batch at this place.
    fn remove(&mut self, place: usize) -> Option<(BatchBuilder, Closed)> {
        let (builder, closed) = self.closed.remove(place)?;
        self.closed_bytes -= builder.len();
        if let Some(own) = closed.first_own {
            self.closed_own.remove(self.closed_own.partition_point(|&earlier| earlier < own));
        }
        Some((builder, closed))
    }

    /// Gives the closed batch at this place its name, and takes it out.
    fn name(&mut self, place: usize, lowest: Option<u64>) -> Option<Named> {
        let (mut builder, closed) = self.remove(place)?;
        let (origin, number) = (self.session, self.number);
        self.number += 1;
        let batch = builder.finish_as(BatchId { origin, number }, lowest.unwrap_or(number));
        Some(Named { batch, number, closed })
    }

    /// The next batch to propose, now that there is room for one. `lowest` is the lowest number of a batch that was
    /// taken and is still waited for.
    pub fn take(&mut self, now: Time, lowest: Option<u64>) -> Option<Named> {
        let full = self.builder.len() >= self.bytes_max;
        let ready = !self.waited || full || now >= self.born + self.delay_max;
        if self.closed.is_empty() && !self.builder.is_empty() && ready {
            self.close(false);
        }
        self.name(0, lowest)
    }

    /// The next change of the group that waits here, before what came earlier: each replica orders commands of its own
    /// clients where batches are disseminated by all, and the leader orders changes. `lowest` is as for
    /// [`Batcher::take`].
    pub fn take_change(&mut self, lowest: Option<u64>) -> Option<Named> {
        let place = self.closed.iter().position(|(_, closed)| closed.changes_group)?;
        self.name(place, lowest)
    }

    /// Records that a burst is over: what is still open had no room.
    pub fn end_burst(&mut self) {
        self.waited = true;
        self.left_over = self.batches() > 0;
    }

    /// When an open batch has waited long enough, if there is one.
    pub fn deadline(&self) -> Option<Time> {
        (!self.builder.is_empty()).then(|| self.born + self.delay_max)
    }

    /// When the oldest command came.
    pub fn oldest(&self) -> Option<Time> {
        self.closed.front().map(|(_, closed)| closed.born).or((!self.builder.is_empty()).then_some(self.born))
    }

    /// Takes out the batches whose first command came at or before `born_max`.
    pub fn expire(&mut self, born_max: Time) -> Vec<Closed> {
        if !self.builder.is_empty() && self.born <= born_max {
            self.close(false);
        }
        let mut expired = Vec::new();
        while self.closed.front().is_some_and(|(_, closed)| closed.born <= born_max) {
            expired.extend(self.remove(0).map(|(_, closed)| closed));
        }
        expired
    }

    /// The lowest number in the replica's own session of a command that waits here.
    pub fn lowest_own(&self) -> Option<u64> {
        self.closed_own.front().copied().or(self.first_own)
    }

    /// Everything that waits here, in the order of arrival.
    pub fn waiters(&self) -> impl Iterator<Item = &Waiter> {
        self.closed.iter().flat_map(|(_, closed)| &closed.waiters).chain(&self.waiters)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RequestId;
    use synod_wire::IDENTITY_BYTES;

    fn batcher(bytes_max: usize, delay_max: Duration) -> Batcher {
        Batcher::new(SessionId(9), bytes_max, delay_max)
    }

    fn push(batcher: &mut Batcher, now: Time, payload: &[u8]) {
        let waiter = Waiter::Own { sequence: 1, request: Some(RequestId(1)) };
        let kind = CommandKind::Apply;
        let session = SessionId(1);
        batcher.push(now, Entry { kind, session, sequence: 1, lowest_outstanding: 1, payload, waiter });
    }

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn the_lowest_own_number_is_that_of_the_first_own_command_that_waits() {
        let mut batcher = batcher(1, MS);
        let push = |batcher: &mut Batcher, kind, waiter| {
            let (session, payload) = (SessionId(1), b"x".as_slice());
            let entry = Entry { kind, session, sequence: 9, lowest_outstanding: 1, payload, waiter };
            batcher.push(Time::ZERO, entry);
        };
        let own = |sequence| Waiter::Own { sequence, request: None };
        let client = Waiter::Client { session: SessionId(1), sequence: 9 };
        assert_eq!(batcher.lowest_own(), None);
        for waiter in [client, own(3), client, own(4)] {
            push(&mut batcher, CommandKind::Apply, waiter);
        }
        push(&mut batcher, CommandKind::Reconfigure, own(5));
        push(&mut batcher, CommandKind::Apply, own(6));
        assert_eq!(batcher.lowest_own(), Some(3));
        let mut next = |overtakes: bool| {
            if overtakes { batcher.take_change(None) } else { batcher.take(Time::ZERO, None) }.unwrap();
            batcher.lowest_own()
        };
        assert_eq!(next(true), Some(3), "a change of the group was taken out of the middle");
        assert_eq!([next(false), next(false)], [Some(3), Some(4)], "a client's command, then 3");
        assert_eq!([next(false), next(false), next(false)], [Some(4), Some(6), None]);
    }

    #[test]
    fn a_lone_command_leaves_at_once() {
        let mut batcher = batcher(1000, MS * 50);
        push(&mut batcher, Time::ZERO, b"a");
        assert_eq!(batcher.take(Time::ZERO, None).unwrap().closed.waiters.len(), 1);
        assert!(batcher.take(Time::ZERO, None).is_none());
    }

    #[test]
    fn a_batch_that_had_no_room_waits_until_its_delay_is_over_or_it_is_full() {
        let mut batcher = batcher(100 + IDENTITY_BYTES, MS * 50);
        push(&mut batcher, Time::ZERO, b"a");
        batcher.end_burst();
        push(&mut batcher, Time::ZERO + MS, b"b");
        assert!(batcher.take(Time::ZERO + MS, None).is_none());
        assert_eq!(batcher.deadline(), Some(Time::ZERO + MS * 50), "the delay counts from the first command");
        assert_eq!(batcher.take(Time::ZERO + MS * 50, None).unwrap().closed.waiters.len(), 2);

        push(&mut batcher, Time::ZERO, b"a");
        batcher.end_burst();
        push(&mut batcher, Time::ZERO, &[0; 80]);
        assert_eq!(batcher.take(Time::ZERO, None).unwrap().closed.waiters.len(), 1, "the second did not fit");
        assert_eq!(batcher.bytes(), 80 + COMMAND_HEADER_BYTES + IDENTITY_BYTES);
    }

    #[test]
    fn what_came_with_the_present_burst_does_not_wait_for_its_turn() {
        let mut batcher = batcher(100 + IDENTITY_BYTES, MS * 50);
        for payload in [b"a", b"b"] {
            push(&mut batcher, Time::ZERO, payload);
            assert!(!batcher.queues());
        }
        batcher.end_burst();
        assert!(batcher.queues(), "there was no room");
        batcher.take(Time::ZERO + MS * 50, None).unwrap();
        assert!(!batcher.queues());
    }

    #[test]
    fn a_command_larger_than_a_batch_is_a_batch() {
        let mut batcher = batcher(1, MS);
        push(&mut batcher, Time::ZERO, b"one");
        push(&mut batcher, Time::ZERO, b"two");
        assert_eq!(batcher.take(Time::ZERO, None).unwrap().closed.waiters.len(), 1);
        assert_eq!(batcher.take(Time::ZERO, None).unwrap().closed.waiters.len(), 1);
        assert_eq!(batcher.bytes(), 0);
    }

    #[test]
    fn a_batch_says_when_it_leaves_below_which_number_nothing_is_waited_for() {
        let mut batcher = batcher(1, MS);
        let named = |named: Named| {
            let id = named.batch.id().unwrap();
            assert_eq!(named.number, id.number);
            (named.number, named.batch.floor())
        };
        [b"a", b"b", b"c", b"d"].into_iter().for_each(|payload| push(&mut batcher, Time::ZERO, payload));
        assert_eq!(named(batcher.take(Time::ZERO, None).unwrap()), (1, 1));
        assert_eq!(named(batcher.take(Time::ZERO, Some(1)).unwrap()), (2, 1), "the first is waited for");
        assert_eq!(named(batcher.take(Time::ZERO, None).unwrap()), (3, 3), "both were given up meanwhile");
        batcher.expire(Time::ZERO);
        push(&mut batcher, Time::ZERO, b"e");
        assert_eq!(
            named(batcher.take(Time::ZERO, Some(3)).unwrap()),
            (4, 3),
            "what never left has no number"
        );
    }
}

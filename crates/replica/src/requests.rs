//! Commands of this replica's clients, and its own, until they are decided or given up.
//!
//! A command gets a number in this replica's own session, unless its client identifies itself, and waits in the
//! batcher. A batch may be lost on its way (a leader crashes with it), so it stays here until it is delivered, and is
//! sent again whenever another replica begins to lead. That can order it twice; the session table executes it once.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use synod_consensus::{Bug, dissemination};
use synod_wire::{Ballot, Batch, BatchId, CommandKind, Epoch, Incarnation, SessionId, Time, replica_session};

use crate::{
    RequestError, RequestId, SessionCommand, Settings,
    batcher::{Batcher, Closed, Entry, Named, Waiter},
    session::is_replica,
    throughput::Throughput,
};

/// What has to order a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taker {
    /// The leader of this ballot.
    Leader(Ballot),
    /// The protocol that runs here in this epoch, whichever replica leads.
    Here(Epoch),
}

/// A batch on its way.
#[derive(Debug)]
struct Outstanding {
    batch: Batch,
    closed: Closed,
    /// What has to order it, and when it was given there.
    sent: Option<(Taker, Time)>,
    /// How often it was sent to that leader again.
    repeats: u32,
}

/// How often the time doubles after which a batch is sent to the same leader again.
const REPEAT_DOUBLINGS_MAX: u32 = 3;

impl Outstanding {
    fn retry_at(&self, retry: Duration) -> Option<Time> {
        let wait = retry.checked_mul(1 << self.repeats.min(REPEAT_DOUBLINGS_MAX)).unwrap_or(Duration::MAX);
        self.sent.map(|(_, at)| at + wait)
    }

    /// Whether it is among these batches: changes of the group, others, or both.
    fn is_one_of(&self, changes: Option<bool>) -> bool {
        changes.is_none_or(|changes| changes == self.closed.changes_group)
    }
}

/// A command's place in its batch, and the request that waits for it.
pub(crate) type Awaited = (usize, RequestId);

/// The commands that wait for a batch or for its delivery, and which requests wait for them.
#[derive(Debug)]
pub(crate) struct Requests {
    /// The session of this life, in which a command counts whose client does not identify itself.
    session: SessionId,
    /// The next number in that session.
    next_sequence: u64,
    /// Commands of clients that identify themselves: which request waits.
    clients: BTreeMap<(SessionId, u64), RequestId>,
    batcher: Batcher,
    /// The batches on their way, by number, which is the order in which they were made.
    outstanding: BTreeMap<u64, Outstanding>,
    /// Bytes of these batches.
    outstanding_bytes: usize,
    /// When the batches came that left and were given up, and may still be ordered before others.
    given_up: BTreeMap<u64, Time>,
    /// The first sequence number of this replica's own session in each of them.
    own_first: BTreeSet<u64>,
    /// The number of the last skip of the common order of several groups, in the own session.
    last_skip: Option<u64>,
    /// How fast they are delivered.
    throughput: Throughput,
}

/// Requests that waited for too long.
#[derive(Debug)]
pub(crate) struct Expired {
    /// Their commands were not sent to any replica.
    pub unsent: Vec<RequestId>,
    /// Their commands may still be decided.
    pub sent: Vec<RequestId>,
}

impl Requests {
    /// No requests, in a life with this session, which also names its batches.
    pub fn new(session: SessionId, settings: &Settings) -> Requests {
        let names = if let Some((me, _)) = session.of_replica()
            && settings.consensus.has(Bug::Dissemination(dissemination::Bug::ReuseNames))
        {
            replica_session(me, Incarnation(0), 0)
        } else {
            session
        };
        Requests {
            session,
            next_sequence: 1,
            clients: BTreeMap::new(),
            batcher: Batcher::new(names, settings.batch_bytes_max, settings.batch_delay_max),
            outstanding: BTreeMap::new(),
            outstanding_bytes: 0,
            given_up: BTreeMap::new(),
            own_first: BTreeSet::new(),
            last_skip: None,
            throughput: Throughput::new(settings.request_timeout),
        }
    }

    // Commands come.

    /// Whether there is room for a command with a payload of `len` bytes: at most `bytes_max` bytes wait, unless the
    /// command is the only one, and at most `outstanding_max` commands of the own session.
    pub fn has_room(&self, len: usize, bytes_max: usize, outstanding_max: u64) -> bool {
        let fits = self.bytes() + len <= bytes_max || self.bytes() == 0;
        fits && self.next_sequence - self.lowest_own() < outstanding_max
    }

    /// The session that names the batches of this life.
    pub fn origin(&self) -> SessionId {
        self.batcher.session()
    }

    /// Whether a command that comes now would wait for so long that its answer would probably come too late.
    pub fn would_wait_too_long(&mut self, now: Time) -> bool {
        self.elapse(now);
        // Batches leave in the order in which they came, but for changes of the group.
        let given_up = self.given_up.values().next().copied();
        let outstanding = self.outstanding.values().next().map(|batch| batch.closed.born);
        let oldest = given_up.or(outstanding).or(self.batcher.oldest());
        let batches = self.batches() + self.given_up.len();
        oldest.is_some_and(|oldest| self.throughput.is_exceeded(batches, oldest, self.batcher.queues()))
    }

    /// Counts the time for which something has waited.
    fn elapse(&mut self, now: Time) {
        let counts_for = self.throughput.counts_for();
        self.given_up.retain(|_, &mut born| born + counts_for > now);
        self.throughput.elapse(now, self.batches() + self.given_up.len() > 0);
    }

    /// Records that another replica leads, with which nothing is that was given up.
    pub fn forget_given_up(&mut self) {
        self.given_up.clear();
    }

    /// Batches that are not decided.
    fn batches(&self) -> usize {
        self.outstanding.len() + self.batcher.batches()
    }

    /// Records whether a leader is known.
    pub fn led(&mut self, now: Time, led: bool) {
        self.elapse(now);
        self.throughput.led(led);
    }

    /// Adds a command of the own session, for which `request` waits, if there is one; returns its number.
    pub fn add_own(
        &mut self,
        now: Time,
        request: Option<RequestId>,
        kind: CommandKind,
        payload: &[u8],
    ) -> u64 {
        self.elapse(now);
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        let waiter = Waiter::Own { sequence, request };
        let lowest_outstanding = self.lowest_own().min(sequence);
        let entry = Entry { kind, session: self.session, sequence, lowest_outstanding, payload, waiter };
        self.batcher.push(now, entry);
        sequence
    }

    /// Adds a command of a client that identifies itself.
    ///
    /// # Errors
    /// The request that fails, and why: this one; or an earlier one for the same command, which is on its way, so that
    /// only this one is answered.
    pub fn add_of_client(
        &mut self,
        now: Time,
        request: RequestId,
        kind: CommandKind,
        command: SessionCommand,
        payload: &[u8],
    ) -> Result<(), (RequestId, RequestError)> {
        let SessionCommand { session, sequence, lowest_outstanding } = command;
        if is_replica(session) {
            // The sessions of replicas are not for clients: a forged command could silence a replica.
            return Err((request, RequestError::SessionExpired));
        }
        if lowest_outstanding > sequence || sequence == 0 {
            return Err((request, RequestError::Stale));
        }
        if let Some(earlier) = self.clients.insert((session, sequence), request) {
            return Err((earlier, RequestError::Superseded));
        }
        self.elapse(now);
        let waiter = Waiter::Client { session, sequence };
        let entry = Entry { kind, session, sequence, lowest_outstanding, payload, waiter };
        self.batcher.push(now, entry);
        Ok(())
    }

    /// The lowest number in the own session of a command that may still be executed; the next one if there is none.
    pub fn lowest_own(&self) -> u64 {
        let batched = self.batcher.lowest_own();
        self.own_first.first().copied().into_iter().chain(batched).min().unwrap_or(self.next_sequence)
    }

    /// Adds a skip to this position of the common order of several groups.
    pub fn add_skip(&mut self, now: Time, target: u64) {
        self.last_skip = Some(self.add_own(now, None, CommandKind::Skip, &target.to_le_bytes()));
    }

    /// Whether a skip may still be executed.
    pub fn has_skip(&self) -> bool {
        self.last_skip.is_some_and(|skip| self.has_own(skip))
    }

    /// Whether this command of the own session may still be executed.
    fn has_own(&self, sequence: u64) -> bool {
        // Own commands leave the batcher in the order of their numbers.
        let waits = self.batcher.lowest_own().is_some_and(|lowest| lowest <= sequence);
        let is_it = |waiter: &Waiter| matches!(waiter, Waiter::Own { sequence: own, .. } if *own == sequence);
        waits || self.outstanding.values().any(|batch| batch.closed.waiters.iter().any(is_it))
    }

    /// The lowest number of a batch that is outstanding.
    fn lowest_number(&self) -> Option<u64> {
        self.outstanding.first_key_value().map(|(&number, _)| number)
    }

    /// How many batches were sent to be ordered, and are not decided.
    pub fn under_way(&self) -> usize {
        self.outstanding.len()
    }

    /// Bytes of commands that are not decided.
    pub fn bytes(&self) -> usize {
        self.batcher.bytes() + self.outstanding_bytes
    }

    /// How many commands a client waits for.
    pub fn awaited(&self) -> usize {
        let outstanding = self.outstanding.values().flat_map(|batch| &batch.closed.waiters);
        self.batcher.waiters().chain(outstanding).filter(|waiter| waiter.is_client()).count()
    }

    /// How many of them are of clients that identify themselves.
    pub fn awaited_by_session(&self) -> usize {
        self.clients.len()
    }

    // Batches leave.

    /// Bounds the batches that are closed from now on.
    pub fn bound_batches(&mut self, bytes_max: usize) {
        self.batcher.bound(bytes_max);
    }

    /// Whether a command has not left yet.
    pub fn has_waiting(&self) -> bool {
        self.batcher.batches() > 0
    }

    /// Records that a burst of events is over: what did not leave in it had no room.
    pub fn end_burst(&mut self) {
        self.batcher.end_burst();
    }

    /// When a batch that waits to be filled leaves even if it is not full.
    pub fn batch_due(&self) -> Option<Time> {
        self.batcher.deadline()
    }

    /// The next new batch, which counts as given to `taker` now.
    pub fn next_batch(&mut self, now: Time, taker: Taker) -> Option<Batch> {
        let named = self.batcher.take(now, self.lowest_number())?;
        let batch = named.batch.clone();
        self.sends(named, Some((taker, now)));
        Some(batch)
    }

    /// Takes changes of the group out of the queue, before what came earlier: each replica orders commands of its own
    /// clients where batches are disseminated by all, and the leader orders changes.
    pub fn overtake_with_changes(&mut self) {
        while let Some(change) = self.batcher.take_change(self.lowest_number()) {
            self.sends(change, None);
        }
    }

    fn sends(&mut self, named: Named, sent: Option<(Taker, Time)>) {
        let Named { batch, number, closed } = named;
        self.outstanding_bytes += batch.bytes().len();
        self.own_first.extend(closed.first_own);
        self.outstanding.insert(number, Outstanding { batch, closed, sent, repeats: 0 });
    }

    /// How many batches the leader of `ballot` has, as far as is known.
    pub fn with_leader(&self, ballot: Ballot) -> usize {
        let taker = Taker::Leader(ballot);
        self.outstanding.values().filter(|batch| batch.sent.is_some_and(|(sent, _)| sent == taker)).count()
    }

    /// The next batch to send, or to send again: one that `taker` does not have, or was given longer than
    /// `retry` ago. It counts as given now. `changes` says whether only changes of the group are wanted
    /// (`Some(true)`), only other batches (`Some(false)`), or both.
    pub fn resend(
        &mut self,
        taker: Taker,
        changes: Option<bool>,
        now: Time,
        retry: Duration,
    ) -> Option<Batch> {
        let elsewhere = |batch: &Outstanding| batch.sent.is_none_or(|(sent, _)| sent != taker);
        let overdue = |batch: &Outstanding| batch.retry_at(retry).is_some_and(|at| now >= at);
        let mut wanted = self.outstanding.values_mut().filter(|batch| batch.is_one_of(changes));
        let batch = wanted.find(|batch| elsewhere(batch) || overdue(batch))?;
        batch.repeats = if elsewhere(batch) { 0 } else { batch.repeats + 1 };
        batch.sent = Some((taker, now));
        Some(batch.batch.clone())
    }

    /// Whether it is time to send a batch to the leader of `ballot` again, which has had it for so long.
    pub fn is_overdue(&self, ballot: Ballot, now: Time, retry: Duration) -> bool {
        let overdue = |batch: &Outstanding| {
            batch.sent.is_some_and(|(sent, _)| sent == Taker::Leader(ballot))
                && batch.retry_at(retry).is_some_and(|at| now >= at)
        };
        self.outstanding.values().any(overdue)
    }

    /// Records that what was sent to a leader may be lost.
    pub fn forget_sent(&mut self) {
        let to_leader = |batch: &&mut Outstanding| matches!(batch.sent, Some((Taker::Leader(_), _)));
        self.outstanding.values_mut().filter(to_leader).for_each(|batch| batch.sent = None);
        self.forget_given_up();
    }

    /// When the next batch has to be sent to the leader again, of those that [`Requests::resend`] would send with the
    /// same `changes`.
    pub fn retry_at(&self, changes: Option<bool>, retry: Duration) -> Option<Time> {
        let to_leader = |batch: &&Outstanding| matches!(batch.sent, Some((Taker::Leader(_), _)));
        let wanted = self.outstanding.values().filter(|batch| batch.is_one_of(changes));
        wanted.filter(to_leader).filter_map(|batch| batch.retry_at(retry)).min()
    }

    /// The outstanding batch for which a reference stands.
    pub fn referred_to(&self, reference: &Batch) -> Option<Batch> {
        let id = reference.id().filter(|id| id.origin == self.batcher.session())?;
        let batch = &self.outstanding.get(&id.number)?.batch;
        Some(batch).filter(|batch| reference.stands_for(batch)).cloned()
    }

    /// Some outstanding batch, which only a planted bug wants.
    pub fn any(&self) -> Option<Batch> {
        self.outstanding.values().next().map(|outstanding| outstanding.batch.clone())
    }

    // What becomes of them.

    /// Records that this batch is delivered; if it is one of this replica's, returns the requests that wait for it.
    pub fn delivered(&mut self, now: Time, batch: &Batch) -> Vec<Awaited> {
        self.elapse(now);
        if let Some(number) = self.number_of(batch) {
            if self.outstanding.contains_key(&number) || self.given_up.contains_key(&number) {
                self.throughput.delivered();
            }
            // Those that left earlier and are not delivered were passed over.
            self.given_up.retain(|&earlier, _| earlier > number);
        }
        self.done(batch)
    }

    /// Records that this batch is decided, or will not be proposed; if it is one of this replica's, returns the
    /// requests that wait for it.
    pub fn done(&mut self, batch: &Batch) -> Vec<Awaited> {
        let closed = self.number_of(batch).and_then(|number| self.remove(number));
        closed.map_or_else(Vec::new, |closed| self.waiting_for(&closed))
    }

    /// The number of a batch of this life.
    fn number_of(&self, batch: &Batch) -> Option<u64> {
        let ours = batch.id().filter(|id| id.origin == self.batcher.session() && !batch.is_reference());
        ours.map(|id| id.number)
    }

    /// The requests of batches of which it is known that they are delivered, with results that are not.
    pub fn delivered_unseen(&mut self, now: Time, is_delivered: impl Fn(BatchId) -> bool) -> Vec<RequestId> {
        self.elapse(now);
        let origin = self.batcher.session();
        let is_delivered = |number| is_delivered(BatchId { origin, number });
        self.given_up.retain(|&number, _| !is_delivered(number));
        let unseen: Vec<u64> =
            self.outstanding.keys().copied().filter(|&number| is_delivered(number)).collect();
        let closed: Vec<Closed> = unseen.into_iter().filter_map(|number| self.remove(number)).collect();
        closed.iter().for_each(|_| self.throughput.delivered());
        closed.iter().flat_map(|closed| self.waiting_for(closed)).map(|(_, request)| request).collect()
    }

    fn remove(&mut self, number: u64) -> Option<Closed> {
        let Outstanding { batch, closed, .. } = self.outstanding.remove(&number)?;
        self.outstanding_bytes -= batch.bytes().len();
        if let Some(first) = closed.first_own {
            self.own_first.remove(&first);
        }
        Some(closed)
    }

    fn waiting_for(&mut self, closed: &Closed) -> Vec<Awaited> {
        let mut requests = Vec::with_capacity(closed.waiters.len());
        for (place, waiter) in closed.waiters.iter().enumerate() {
            let request = match *waiter {
                Waiter::Own { request, .. } => request,
                Waiter::Client { session, sequence } => self.clients.remove(&(session, sequence)),
            };
            requests.extend(request.map(|request| (place, request)));
        }
        requests
    }

    /// The outstanding change of the group with this place in its session.
    pub fn change(&self, session: SessionId, sequence: u64) -> Option<Batch> {
        let changes = self.outstanding.values().filter(|outstanding| outstanding.closed.changes_group);
        let mut changes = changes.map(|outstanding| &outstanding.batch);
        let asked = |batch: &Batch| {
            batch.commands().any(|command| (command.session, command.sequence) == (session, sequence))
        };
        changes.find(|batch| asked(batch)).cloned()
    }

    /// When the oldest command came.
    pub fn oldest(&self) -> Option<Time> {
        let outstanding = self.outstanding.values().map(|batch| batch.closed.born);
        outstanding.chain(self.batcher.oldest()).min()
    }

    /// Gives up the batches whose first command came at or before `born_max`.
    pub fn expire(&mut self, now: Time, born_max: Time) -> Expired {
        self.elapse(now);
        let unsent = self.batcher.expire(born_max);
        let old = self.outstanding.iter().filter(|(_, batch)| batch.closed.born <= born_max);
        let old: Vec<(u64, Time)> = old.map(|(&number, batch)| (number, batch.closed.born)).collect();
        self.given_up.extend(old.iter().copied());
        let sent: Vec<_> = old.into_iter().filter_map(|(number, _)| self.remove(number)).collect();
        let mut requests = |given_up: Vec<Closed>| {
            let waiting = given_up.iter().flat_map(|closed| self.waiting_for(closed));
            waiting.map(|(_, request)| request).collect()
        };
        Expired { unsent: requests(unsent), sent: requests(sent) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use synod_wire::BatchBuilder;

    const NOW: Time = Time::ZERO;
    const LEADER: Taker = Taker::Leader(Ballot::ZERO);

    fn requests() -> Requests {
        Requests::new(SessionId(1), &Settings::default())
    }

    /// A batch with the command of this request, on its way to the leader.
    fn sent(requests: &mut Requests, request: u64) -> Batch {
        requests.add_own(NOW, Some(RequestId(request)), CommandKind::Apply, &[0; 100]);
        requests.next_batch(NOW, LEADER).unwrap()
    }

    #[test]
    fn what_is_outstanding_counts_until_it_is_delivered() {
        let mut requests = requests();
        let batches = [1, 2].map(|request| sent(&mut requests, request));
        let len = batches[0].bytes().len();
        assert_eq!((requests.bytes(), requests.lowest_own()), (2 * len, 1));
        assert_eq!(requests.done(&batches[0]), [(0, RequestId(1))]);
        assert_eq!((requests.bytes(), requests.lowest_own()), (len, 2));
        assert_eq!(requests.done(&batches[1]), [(0, RequestId(2))]);
        assert_eq!((requests.bytes(), requests.lowest_own()), (0, 3));
        assert_eq!(requests.done(&batches[1]), [], "it was delivered");
    }

    /// A replica on a ring that proposes its commands itself sends the leader only changes of the group: a deadline for
    /// anything else would have passed, and stay.
    #[test]
    fn what_is_due_is_sent_again_and_then_not_due() {
        let (mut requests, retry) = (requests(), Duration::from_secs(1));
        sent(&mut requests, 1);
        let due = NOW + retry;
        assert_eq!(requests.retry_at(None, retry), Some(due));
        assert_eq!(requests.retry_at(Some(true), retry), None);
        requests.add_own(NOW, Some(RequestId(2)), CommandKind::Reconfigure, &[0; 100]);
        requests.next_batch(NOW, LEADER).unwrap();
        for changes in [None, Some(true), Some(false)] {
            let mut now = NOW;
            while let Some(due) = requests.retry_at(changes, retry).filter(|&due| due < NOW + retry * 60) {
                assert!(due > now, "{changes:?}: time goes on");
                now = due;
                while requests.resend(LEADER, changes, now, retry).is_some() {}
            }
        }
    }

    /// The batches that leave at a moment before a command is refused, at most nine.
    fn admitted(requests: &mut Requests, now: Time) -> Vec<Batch> {
        let mut admitted = Vec::new();
        while admitted.len() < 9 && !requests.would_wait_too_long(now) {
            requests.add_own(now, None, CommandKind::Apply, b"a");
            admitted.push(requests.next_batch(now, LEADER).unwrap());
        }
        admitted
    }

    /// Requests that may take six seconds, with eight batches on their way, of which a second each five are delivered
    /// and three given up; and a moment soon after that.
    fn with_three_given_up() -> (Requests, Time) {
        let at = |second| NOW + Duration::from_secs(second);
        let settings = Settings { request_timeout: Duration::from_secs(6), ..Settings::default() };
        let mut requests = Requests::new(SessionId(1), &settings);
        requests.led(NOW, true);
        let batches: Vec<Batch> = (0..8).map(|request| sent(&mut requests, request)).collect();
        for (second, batch) in (1..).zip(&batches[..5]) {
            requests.delivered(at(second), batch);
        }
        assert_eq!(requests.expire(at(6), NOW).sent.len(), 3);
        (requests, at(6))
    }

    #[test]
    fn what_was_given_up_on_its_way_is_in_front_of_the_next_command() {
        let (mut requests, now) = with_three_given_up();
        let late = admitted(&mut requests, now);
        assert!((1..4).contains(&late.len()), "{} beside three others", late.len());
        let second = Duration::from_secs(1);
        requests.delivered(now + second, &late[0]);
        assert_eq!(admitted(&mut requests, now + second).len(), 9, "they were passed over");
    }

    #[test]
    fn what_was_given_up_counts_with_its_leader_and_for_a_time_only() {
        let (mut requests, now) = with_three_given_up();
        admitted(&mut requests, now);
        assert!(requests.would_wait_too_long(now));
        requests.forget_sent();
        assert!(!requests.would_wait_too_long(now), "with another leader");
        let (mut requests, now) = with_three_given_up();
        let later = now + Duration::from_secs(2);
        requests.elapse(later);
        assert!(requests.given_up.is_empty(), "eight seconds after they came");
    }

    #[test]
    fn an_own_command_is_here_until_it_is_delivered_whatever_came_before_it() {
        let mut requests = requests();
        let batches = [1, 2].map(|request| sent(&mut requests, request));
        assert!(!requests.has_skip());
        requests.add_skip(NOW, 9);
        assert_eq!(([1, 2, 3].map(|own| requests.has_own(own)), requests.has_skip()), ([true; 3], true));
        requests.done(&batches[1]);
        assert_eq!([1, 2, 3].map(|own| requests.has_own(own)), [true, false, true]);
        let skip = requests.next_batch(NOW, LEADER).unwrap();
        requests.done(&skip);
        assert!(!requests.has_skip());
    }

    #[test]
    fn what_a_snapshot_holds_is_waited_for_no_more() {
        let mut requests = requests();
        let [one, _] = [1, 2].map(|request| sent(&mut requests, request));
        assert_eq!(requests.delivered_unseen(NOW, |id| Some(id) == one.id()), [RequestId(1)]);
        assert_eq!(requests.awaited(), 1);
    }

    #[test]
    fn of_two_requests_for_one_command_only_the_later_is_answered() {
        let mut requests = requests();
        let command = SessionCommand { session: SessionId(7), sequence: 1, lowest_outstanding: 1 };
        let add = |requests: &mut Requests, request| {
            requests.add_of_client(NOW, RequestId(request), CommandKind::Apply, command, b"a")
        };
        assert_eq!(add(&mut requests, 1), Ok(()));
        assert_eq!(add(&mut requests, 2), Err((RequestId(1), RequestError::Superseded)));
        assert_eq!((requests.awaited(), requests.awaited_by_session()), (1, 1));
        let batch = requests.next_batch(NOW, LEADER).unwrap();
        assert_eq!(requests.done(&batch), [(0, RequestId(2))]);
        assert_eq!(requests.awaited_by_session(), 0);
    }

    #[test]
    fn a_client_cannot_speak_for_a_replica_or_name_a_command_that_it_gave_up() {
        let mut requests = requests();
        let replicas = synod_wire::replica_session(synod_wire::ReplicaId(2), synod_wire::Incarnation(1), 0);
        let mut refused = |session, sequence, lowest_outstanding| {
            let command = SessionCommand { session, sequence, lowest_outstanding };
            let added = requests.add_of_client(NOW, RequestId(1), CommandKind::Apply, command, b"a");
            added.map_err(|(_, error)| error)
        };
        assert_eq!(refused(replicas, 1, 1), Err(RequestError::SessionExpired));
        assert_eq!(refused(SessionId(7), 1, 2), Err(RequestError::Stale));
        assert_eq!(refused(SessionId(7), 0, 0), Err(RequestError::Stale));
        assert_eq!(requests.bytes(), 0);
    }

    #[test]
    fn of_what_waits_for_too_long_it_is_known_whether_it_left() {
        let mut requests = requests();
        sent(&mut requests, 1);
        requests.add_own(NOW, Some(RequestId(2)), CommandKind::Apply, b"a");
        let later = NOW + Duration::from_secs(1);
        requests.add_own(later, Some(RequestId(3)), CommandKind::Reconfigure, b"b");
        assert_eq!(requests.oldest(), Some(NOW));
        let Expired { unsent, sent } = requests.expire(NOW, NOW);
        assert_eq!((unsent, sent), (vec![RequestId(2)], vec![RequestId(1)]));
        assert_eq!((requests.awaited(), requests.oldest()), (1, Some(later)));
    }

    #[test]
    fn a_reference_stands_for_an_outstanding_batch_of_this_life_with_the_same_bytes() {
        let mut requests = requests();
        let batch = sent(&mut requests, 1);
        assert_eq!(requests.referred_to(&batch.reference().unwrap()), Some(batch.clone()));
        let other = |origin, number, len: usize| {
            let mut builder = BatchBuilder::identified();
            builder.push(SessionId(1), 1, 1, &vec![0; len]);
            builder.finish_as(BatchId { origin: SessionId(origin), number }, 1).reference().unwrap()
        };
        assert_eq!(requests.referred_to(&other(1, 1, 100)), Some(batch), "the same bytes");
        assert_eq!(requests.referred_to(&other(1, 2, 100)), None, "it is not here");
        assert_eq!(requests.referred_to(&other(2, 1, 100)), None, "it is of another life");
        assert_eq!(requests.referred_to(&other(1, 1, 99)), None, "it is another batch");
    }
}

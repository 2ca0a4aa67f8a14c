//! The clients in virtual time: their outstanding proposals, the leader they know, and their answers.

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

use synod_wire::{Ballot, Epoch, ReplicaId, Time};

use crate::ground::{BIN, Load, Outcome, registry::Values};

/// The number of something that a client, or the operator, asks of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request(pub(super) u64);

/// An outstanding proposal.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pending {
    pub(super) value: u64,
    began: Time,
    /// The replica that was asked last.
    pub(super) asked: ReplicaId,
}

/// The clients of a group, with a constant number of outstanding proposals.
pub(super) struct Client {
    answer_timeout: Duration,
    /// Outstanding proposals by the number of their request. The map is only looked up, never iterated.
    pending: HashMap<u64, Pending>,
    /// Requests in the order in which their proposals were first sent, for time-outs.
    in_order: VecDeque<u64>,
    next_request: u64,
    next_value: u64,
    /// From one value to the next: no two groups propose the same value.
    step: u64,
    /// The replica that the client believes to lead, with the epoch and ballot that say so.
    leader: Option<(Epoch, Ballot, ReplicaId)>,
    /// The beginning and end of the time in which answers count.
    window: Option<(Time, Time)>,
    last_answer: Time,
    pub(super) outcome: Outcome,
    pub(super) acknowledged: Values,
}

impl Client {
    /// The clients of the group with this number, of this many groups.
    pub(super) fn new(load: &Load, number: u64, groups: u64) -> Client {
        Client {
            answer_timeout: load.answer_timeout,
            pending: HashMap::new(),
            in_order: VecDeque::new(),
            next_request: 0,
            next_value: number,
            step: groups,
            leader: None,
            window: None,
            last_answer: Time::ZERO,
            outcome: Outcome::new(),
            acknowledged: Values::default(),
        }
    }

    pub(super) fn leader(&self) -> Option<ReplicaId> {
        self.leader.map(|(.., leader)| leader)
    }

    /// A replica says that it leads.
    pub(super) fn hear(&mut self, epoch: Epoch, ballot: Ballot, leader: ReplicaId) {
        let news = (epoch, ballot, leader);
        if self.leader.is_some_and(|known| known >= news) {
            return;
        }
        if self.leader() != Some(leader) {
            self.outcome.leaders.push(leader);
        }
        self.leader = Some(news);
    }

    pub(super) fn open(&mut self, now: Time, window: Duration) {
        self.window = Some((now, now + window));
        self.last_answer = now;
        let leading = self.outcome.leaders.last().copied();
        let bins = (window.as_nanos()).div_ceil(BIN.as_nanos()) as usize;
        self.outcome = Outcome {
            leaders: leading.into_iter().collect(),
            timeline: vec![0.0; bins],
            seconds: window.as_secs_f64(),
            ..Outcome::new()
        };
    }

    pub(super) fn is_over(&self, now: Time) -> bool {
        self.window.is_some_and(|(_, until)| now >= until)
    }

    pub(super) fn outstanding(&self) -> usize {
        self.pending.len()
    }

    /// Makes a new proposal to this replica. Returns its request and its value.
    pub(super) fn propose(&mut self, now: Time, to: ReplicaId) -> (Request, u64) {
        let value = self.next_value;
        self.next_value += self.step;
        (self.send(Pending { value, began: now, asked: to }), value)
    }

    fn send(&mut self, pending: Pending) -> Request {
        self.next_request += 1;
        self.pending.insert(self.next_request, pending);
        self.in_order.push_back(self.next_request);
        Request(self.next_request)
    }

    /// Sends a proposal again, perhaps to another replica.
    pub(super) fn resend(&mut self, request: Request, to: ReplicaId) -> Option<(Request, u64)> {
        let pending = self.pending.remove(&request.0)?;
        self.outcome.resent += 1;
        // Its time counts from the first sending. It times out a little late if others were sent meanwhile.
        Some((self.send(Pending { asked: to, ..pending }), pending.value))
    }

    /// The outstanding proposals at a replica, oldest first.
    pub(super) fn at(&self, replica: ReplicaId) -> Vec<Request> {
        let at = |request: &&u64| self.pending.get(request).is_some_and(|pending| pending.asked == replica);
        self.in_order.iter().filter(at).map(|&request| Request(request)).collect()
    }

    /// Counts an answer. Returns the replica that was asked, or `None` if the proposal is no longer outstanding.
    pub(super) fn answered(&mut self, now: Time, request: Request) -> Option<ReplicaId> {
        let pending = self.pending.remove(&request.0)?;
        self.acknowledged.insert(pending.value);
        if self.count(now, pending) {
            self.outcome.longest_gap = self.outcome.longest_gap.max(now.since(self.last_answer));
            self.last_answer = now;
        }
        Some(pending.asked)
    }

    /// The replica that was asked last.
    pub(super) fn asked(&self, request: Request) -> Option<ReplicaId> {
        self.pending.get(&request.0).map(|pending| pending.asked)
    }

    /// Gives up proposals that waited for too long, and returns how many.
    pub(super) fn expire(&mut self, now: Time) -> usize {
        let mut expired = 0;
        while let Some(&request) = self.in_order.front() {
            match self.pending.get(&request) {
                Some(pending) if now.since(pending.began) < self.answer_timeout => break,
                Some(&pending) => {
                    self.pending.remove(&request);
                    if self.count(now, pending) {
                        self.outcome.timed_out += 1;
                    }
                    expired += 1;
                }
                None => {}
            }
            self.in_order.pop_front();
        }
        expired
    }

    fn count(&mut self, now: Time, pending: Pending) -> bool {
        let Some((from, _)) = self.window.filter(|&(from, until)| from <= now && now < until) else {
            return false;
        };
        self.outcome.answered += 1;
        *self.outcome.answered_by.entry(pending.asked).or_default() += 1;
        let nanos = u64::try_from(now.since(pending.began).as_nanos()).unwrap_or(u64::MAX);
        self.outcome.latency.saturating_record(nanos);
        let waited = self.outcome.waited_by.entry(pending.asked).or_default();
        *waited = waited.saturating_add(nanos);
        self.outcome.timeline[(now.since(from).as_nanos() / BIN.as_nanos()) as usize] += 1.0;
        true
    }

    /// A gap that lasted to the end of the window counts too.
    pub(super) fn close(&mut self) {
        if let Some((_, until)) = self.window {
            self.outcome.longest_gap = self.outcome.longest_gap.max(until.since(self.last_answer));
        }
    }
}

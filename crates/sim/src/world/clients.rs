//! Clients: which client asks which replica for what, what it hears, and the history of all that.
//!
//! A **direct** client gives up an operation that is not answered in time: whether it happened is not known.
//! A **session** client asks again, elsewhere, with the same sequence number, until it knows. Both have
//! workers that do one operation after the other; a session's workers share its numbers.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use bytes::Bytes;
use fastrand::Rng;
use synod_replica::{RequestError, SessionCommand};
use synod_wire::{GroupId, SessionId};

use super::{FIRST, Happening, World};
use crate::{
    backup::{self, Backup},
    chart,
    check::{Checked, Done, EndedLease, Invariant, Model, Violation, check_history},
    describe,
    network::between,
    ops::{Answer, Key, Lease, Op, Order, Other, Part, draw_lease_op},
    per_group::PerGroup,
    plan::Plan,
    situations::MergeSituation,
};

/// A question on its way to a replica.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub(super) group: GroupId,
    pub(super) client: usize,
    pub(super) worker: usize,
    pub(super) attempt: u64,
    pub(super) session: Option<SessionCommand>,
    pub(super) kind: Kind,
    pub(super) payload: Bytes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Command,
    Read,
    OpenSession,
}

/// What a client hears.
#[derive(Debug)]
pub(crate) struct Heard {
    pub(super) client: usize,
    pub(super) worker: usize,
    pub(super) attempt: u64,
    pub(super) response: Response,
}

#[derive(Debug)]
pub(super) enum Response {
    Reply(Bytes),
    Failed(RequestError),
    /// There was no connection, so the question was not heard.
    Refused,
    /// The connection broke.
    Broken,
}

impl Response {
    /// Whether a replica sent it. What a broken connection means, a client finds out by itself.
    pub(super) fn travels(&self) -> bool {
        matches!(self, Response::Reply(_) | Response::Failed(_))
    }
}

#[derive(Debug, Default)]
struct Worker {
    /// The index in the history of the operation under way.
    op: Option<usize>,
    /// The operation's number in the session.
    sequence: u64,
    /// How far that number was above the lowest outstanding one when it was taken; it comes nearer since.
    distance: u64,
    /// The number of the current attempt, which grows with every attempt.
    attempt: u64,
    /// The group that was asked last to execute the operation.
    asked: Option<GroupId>,
}

#[derive(Debug, PartialEq, Eq)]
enum Session {
    /// The client has no session and wants none.
    Unwanted,
    Closed,
    /// This worker opens the session.
    Opening(usize),
    Open {
        id: SessionId,
        next: u64,
    },
}

#[derive(Debug)]
struct Client {
    /// The group that the client asks.
    group: GroupId,
    /// The replica that the client asks.
    home: usize,
    session: Session,
    /// The numbers that the client waits for.
    outstanding: BTreeSet<u64>,
    workers: Vec<Worker>,
    /// The revision at which the client last saw each key changed.
    known: BTreeMap<Key, i64>,
    revision: i64,
    /// What the client still has to do if it is a probe, which stays with its replica until it has written
    /// and read there.
    probe: Option<Probe>,
}

/// What a probe has still to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Probe {
    Write,
    Read,
    Done,
}

/// Whether something is on its way from a client to a replica.
pub(super) fn is_question(happening: &Happening) -> bool {
    matches!(happening, Happening::Asked { .. })
}

/// All clients.
#[derive(Debug)]
pub(crate) struct Clients {
    clients: Vec<Client>,
    /// The clients from this one on probe the members.
    probed_from: usize,
    /// What was done with each state machine.
    pub(super) history: PerGroup<Vec<Done>>,
    /// The leases that the log has ended by its clock.
    pub(super) ended: Vec<EndedLease>,
    /// The group in which a lease was granted last.
    granted: BTreeMap<Lease, GroupId>,
    /// Counts invocations and returns.
    pub(super) stamp: u64,
    pub(super) asked: u64,
    pub(super) rng: Rng,
    /// What was asked in each attempt, in a script.
    pub(super) scripted: BTreeMap<u64, Scripted>,
}

/// A question of a script.
#[derive(Debug)]
pub(super) struct Scripted {
    pub(super) text: String,
    /// The operation; `None` if the script opens a session.
    pub(super) op: Option<Op>,
}

/// How long a question or an answer travels.
pub(super) const TRAVELS: (Duration, Duration) = (Duration::from_micros(20), Duration::from_micros(500));
/// A value of this size or more counts as large.
const LARGE_VALUE_BYTES: usize = 2_000;
/// How long a client waits before it asks again after a refusal.
const RETRY: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(100));

impl Clients {
    pub(crate) fn new(plan: &Plan, mut rng: Rng) -> Clients {
        let mut clients = Vec::new();
        for index in 0..plan.clients.direct + plan.clients.sessions {
            let direct = index < plan.clients.direct;
            let workers = if direct { 1 } else { plan.clients.pipeline };
            let session = if direct { Session::Unwanted } else { Session::Closed };
            let group = match &plan.merging {
                Some(merging) => merging.busy[index % merging.busy.len()],
                None => GroupId((index % plan.groups) as u16),
            };
            clients.push(Client::new(group, rng.usize(0..plan.replicas), session, workers));
        }
        let scripted = BTreeMap::new();
        let probed_from = clients.len();
        Clients {
            clients,
            probed_from,
            history: (0..plan.states()).map(|_| Vec::new()).collect(),
            ended: Vec::new(),
            granted: BTreeMap::new(),
            stamp: 0,
            asked: 0,
            rng,
            scripted,
        }
    }

    /// How many operations there were, and how many of them have an unknown outcome.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let unknown = |done: &&Done| !done.void && done.returned.is_none();
        (self.operations(), self.history.all().flatten().filter(unknown).count())
    }

    /// How many operations there were.
    fn operations(&self) -> usize {
        self.history.all().map(Vec::len).sum()
    }

    pub(super) fn stamp(&mut self) -> u64 {
        self.stamp += 1;
        self.stamp
    }

    fn draw_op(&mut self, client: usize, plan: &Plan) -> Op {
        let id = self.operations() as u64;
        let rng = &mut self.rng;
        let client = &self.clients[client];
        let key = rng.u8(1..=plan.clients.keys);
        let last = rng.u8(key..=plan.clients.keys);
        let known = client.known.get(&key).copied().unwrap_or(0);
        if plan.clients.leases > 0 && rng.u8(0..100) < plan.clients.leases {
            return draw_lease_op(rng, key, id);
        }
        match rng.u8(0..100) {
            // An alarm stops all writes until it is cleared.
            99 if rng.u8(0..4) == 0 => Op::Exceed { key },
            99 if last != key => Op::Overrun { key, other: last },
            97..99 => Op::Disarm,
            90..97 if last != key => Op::Nest { key, expected: known, value: id, inner: last },
            0..17 => Op::Get { first: key, last: key },
            17..27 => Op::Look {
                first: key,
                last,
                revision: if rng.bool() { 0 } else { (client.revision - rng.i64(-1..8)).max(0) },
                limit: rng.i64(0..3),
                order: [Order::Key, Order::KeyDown, Order::Modified][rng.usize(0..3)],
                count_only: rng.u8(0..4) == 0,
            },
            27..35 => Op::Get { first: 1, last: plan.clients.keys },
            35..65 => Op::Put { key, value: id },
            65..73 => Op::Delete { first: key, last },
            73..76 => Op::Compact { revision: client.revision - rng.i64(0..4) },
            _ => {
                let other = if last == key {
                    Other::Nothing
                } else if rng.bool() {
                    Other::Put(last)
                } else {
                    Other::Delete(last)
                };
                Op::Swap { key, expected: known, value: id, other }
            }
        }
    }
}

impl Client {
    fn new(group: GroupId, home: usize, session: Session, workers: usize) -> Client {
        Client {
            group,
            home,
            session,
            outstanding: BTreeSet::new(),
            workers: (0..workers).map(|_| Worker::default()).collect(),
            known: BTreeMap::new(),
            revision: 0,
            probe: None,
        }
    }
}

impl World {
    /// Notes which leases have ended by what was just delivered for the first time.
    pub(super) fn leases_end(&mut self) {
        for (lease, revision, place) in self.references[FIRST].take_ended() {
            let lease = lease.try_into().expect("clients use few");
            let delivered = self.clients.stamp();
            self.clients.ended.push(EndedLease { lease, delivered, place, revision });
            self.coverage.leases_ended += 1;
        }
    }

    /// Looks for an order of everything that clients did. Returns true if the search was given up.
    pub(super) fn check_clients(&self) -> Result<bool, Violation> {
        let begins = self.backup.as_ref().map_or_else(Model::default, Backup::model);
        let mut undecided = false;
        for (group, history) in self.clients.history.iter() {
            // Clients use leases of the first group only, and a backup has no other.
            let ended = if group == FIRST { &self.clients.ended[..] } else { &[] };
            let reference = &self.references[group];
            undecided |= check_history(begins.clone(), history, ended, |payload| reference.reply(payload))?;
        }
        Ok(undecided)
    }

    /// Has all workers begin to think.
    pub(super) fn begin_asking(&mut self) {
        for client in 0..self.clients.clients.len() {
            for worker in 0..self.clients.clients[client].workers.len() {
                self.think_later(client, worker, self.plan.clients.think);
            }
        }
    }

    fn think_later(&mut self, client: usize, worker: usize, (low, high): (Duration, Duration)) {
        let wait = between(&mut self.clients.rng, low, high);
        self.queue.push(self.now + wait, Happening::Think { client, worker });
    }

    /// Has a worker go on: with a new operation, or with the one that is not answered yet.
    pub(super) fn think(&mut self, index: usize, worker: usize) -> Checked {
        let plan = &self.plan.clients;
        let clients = &mut self.clients;
        if clients.clients[index].workers[worker].op.is_some() {
            self.coverage.retries += 1;
            self.attempt(index, worker);
            return Ok(());
        }
        match &clients.clients[index].session {
            Session::Opening(opener) if *opener != worker => {
                self.think_later(index, worker, RETRY);
                return Ok(());
            }
            Session::Closed | Session::Opening(_) => {
                clients.clients[index].session = Session::Opening(worker);
                self.attempt(index, worker);
                return Ok(());
            }
            Session::Unwanted | Session::Open { .. } => {}
        }
        let op = match clients.clients[index].probe {
            Some(Probe::Done) => return Ok(()),
            Some(Probe::Write) => Op::Put { key: 1, value: clients.operations() as u64 },
            Some(Probe::Read) => Op::Get { first: 1, last: plan.keys },
            None if clients.operations() >= plan.operations => return Ok(()),
            None if plan.stale_reads.hit(&mut clients.rng) => {
                let of = clients.clients[index].home;
                self.queue.push(self.now, Happening::Peek { of });
                self.think_later(index, worker, self.plan.clients.think);
                return Ok(());
            }
            None => clients.draw_op(index, &self.plan),
        };
        let (id, group) = (clients.operations() as u64, clients.clients[index].group);
        let padding = clients.rng.usize(0..=plan.padding_max);
        self.coverage.large_values += u64::from(padding >= LARGE_VALUE_BYTES);
        let payload = op.encode(id, padding);
        if !op.is_read() {
            self.goodput.asked(&payload);
        }
        let invoked = clients.stamp();
        let read = op.is_read();
        let history = &mut clients.history[self.plan.state_of(group)];
        history.push(Done { op, payload, invoked, returned: None, void: read });
        let client = &mut clients.clients[index];
        client.workers[worker].op = Some(history.len() - 1);
        client.workers[worker].asked = None;
        if !read && let Session::Open { next, .. } = &mut client.session {
            client.outstanding.insert(*next);
            let lowest = *client.outstanding.first().expect("this one is outstanding");
            (client.workers[worker].sequence, client.workers[worker].distance) = (*next, *next - lowest);
            *next += 1;
        }
        self.attempt(index, worker);
        Ok(())
    }

    /// Has a worker ask a replica: to execute its operation, or to open a session.
    fn attempt(&mut self, index: usize, worker: usize) {
        let clients = &mut self.clients;
        clients.asked += 1;
        let attempt = clients.asked;
        let client = &mut clients.clients[index];
        let (group, history) = (client.group, &clients.history[self.plan.state_of(client.group)]);
        let state = &mut client.workers[worker];
        state.attempt = attempt;
        let (kind, payload, session) = match state.op {
            None => (Kind::OpenSession, Bytes::new(), None),
            Some(op) if history[op].op.is_read() => (Kind::Read, history[op].payload.clone(), None),
            Some(op) => {
                let session = match client.session {
                    Session::Open { id, .. } => Some(SessionCommand {
                        session: id,
                        sequence: state.sequence,
                        lowest_outstanding: *client.outstanding.first().expect("this one is outstanding"),
                    }),
                    _ => None,
                };
                if session.is_some() && state.asked.is_some_and(|asked| asked != group) {
                    self.merges.see(MergeSituation::RetriedElsewhere);
                }
                state.asked = Some(group);
                (Kind::Command, history[op].payload.clone(), session)
            }
        };
        if kind != Kind::Read {
            self.checks[group].log.submitted(&payload);
        }
        let of = client.home;
        let ask = Ask { group, client: index, worker, attempt, session, kind, payload };
        self.trace.line(self.now, || format!("c{index}.{worker:<7}→ r{}  {}", of + 1, describe_ask(&ask)));
        self.chart(|chart| {
            chart.asks(attempt, of, format!("c{index}.{worker} asks: {}", describe_ask(&ask)))
        });
        let travels = between(&mut self.clients.rng, TRAVELS.0, TRAVELS.1);
        self.queue.push(self.now + travels, Happening::Asked { of, ask });
        let cancels = self.plan.clients.cancels.hit(&mut self.clients.rng);
        self.coverage.requests_cancelled += u64::from(cancels);
        let until = self.now + if cancels { TRAVELS.1 } else { self.plan.clients.timeout };
        self.queue.push(until, Happening::GivesUp { client: index, worker, attempt });
    }

    /// Handles what a client hears.
    pub(super) fn heard(&mut self, heard: Heard) -> Checked {
        let Heard { client: index, worker, attempt, response } = heard;
        if response.travels() {
            self.chart(|chart| chart.arrives(chart::Key::Answer(attempt), chart::Lane::Clients));
        }
        if self.clients.clients[index].workers[worker].attempt != attempt {
            return Ok(()); // An answer to a question that was given up.
        }
        self.clients.clients[index].workers[worker].attempt = NO_ATTEMPT;
        let text = || super::requests::describe_response(&response);
        self.trace.line(self.now, || format!("c{index}.{worker:<7}hears {}", text()));
        if !response.travels() {
            self.chart(|chart| chart.marks_clients(format!("c{index}.{worker} hears {}", text())));
        }
        match response {
            Response::Reply(reply) => self.replied(index, worker, &reply),
            Response::Failed(error) => self.failed(index, worker, error),
            Response::Refused => {
                self.not_done(index, worker);
                Ok(())
            }
            Response::Broken => {
                self.unknown(index, worker, false);
                Ok(())
            }
        }
    }

    fn replied(&mut self, index: usize, worker: usize, reply: &Bytes) -> Checked {
        let clients = &mut self.clients;
        let client = &mut clients.clients[index];
        let group = self.plan.state_of(client.group);
        let Some(op) = client.workers[worker].op.take() else {
            let id = reply[..].try_into().map(u64::from_le_bytes).map_err(|_| Violation {
                invariant: Invariant::Sound,
                detail: "opening a session gives no session id".to_owned(),
            })?;
            backup::opened(self.backup.as_ref(), id)?;
            client.session = Session::Open { id: SessionId(id), next: 1 };
            self.think_later(index, worker, self.plan.clients.think);
            return Ok(());
        };
        let done = &clients.history[group][op].op;
        if !done.is_read() {
            client.outstanding.remove(&client.workers[worker].sequence);
        }
        let Some(answer) = Answer::decode(done, reply) else {
            let detail = format!("{done:?} got a reply of another kind");
            return Err(Violation { invariant: Invariant::Sound, detail });
        };
        client.revision = client.revision.max(answer.revision().unwrap_or(0));
        client.known.extend(answer.entries().map(|entry| (entry.key, entry.modified)));
        client.probe = client.probe.map(|probe| match probe {
            Probe::Write => Probe::Read,
            Probe::Read | Probe::Done => Probe::Done,
        });
        let lives = matches!(&answer, Answer::Done { parts, .. } if matches!(parts[..], [Part::Lives(1..)]));
        let asked = client.group;
        match *done {
            Op::Grant { lease, .. } if lives => _ = clients.granted.insert(lease, asked),
            Op::Renew { lease } if lives && clients.granted.get(&lease).is_some_and(|of| *of != asked) => {
                self.merges.see(MergeSituation::RenewedElsewhere);
            }
            _ => {}
        }
        let returned = Some((clients.stamp(), answer));
        let done = &mut clients.history[group][op];
        (done.returned, done.void) = (returned, false);
        self.goodput.answered(&done.payload);
        self.think_later(index, worker, self.plan.clients.think);
        Ok(())
    }

    fn failed(&mut self, index: usize, worker: usize, error: RequestError) -> Checked {
        let outstanding_max = self.plan.settings.limits.sessions.outstanding_max;
        let client = &mut self.clients.clients[index];
        let in_session = matches!(client.session, Session::Open { .. });
        if error == RequestError::OutcomeUnknown && client.probe == Some(Probe::Write) {
            // The write was executed. A replica that lives on snapshots, since no peer keeps the slots, hears
            // no more of its writes.
            client.probe = Some(Probe::Read);
        }
        match error {
            RequestError::ReplyGone => {
                self.coverage.replies_gone += 1;
                self.executed_unseen(index, worker);
            }
            RequestError::SessionExpired if in_session => {
                self.coverage.sessions_expired += 1;
                self.session_ends(index);
            }
            RequestError::TooFarAhead if in_session && client.workers[worker].distance >= outstanding_max => {
                self.coverage.refused_far_ahead += 1;
                self.not_done(index, worker);
            }
            RequestError::Stale | RequestError::TooFarAhead if in_session => {
                let detail = format!("client {index} hears of a command that it waits for: {error}");
                return Err(Violation { invariant: Invariant::Integrity, detail });
            }
            error if error.may_have_executed() => {
                self.unknown(index, worker, error == RequestError::Timeout);
            }
            _ => self.not_done(index, worker),
        }
        Ok(())
    }

    /// Handles an attempt that certainly did nothing; an earlier attempt of a session client may have done something.
    fn not_done(&mut self, index: usize, worker: usize) {
        let clients = &mut self.clients;
        let client = &mut clients.clients[index];
        if client.session == Session::Unwanted
            && let Some(op) = client.workers[worker].op.take()
        {
            clients.history[self.plan.state_of(client.group)][op].void = true;
        }
        self.move_on(index, worker, false);
    }

    /// Handles the answer that an earlier attempt was executed and its reply is gone: there is nothing more to ask.
    fn executed_unseen(&mut self, index: usize, worker: usize) {
        let client = &mut self.clients.clients[index];
        client.outstanding.remove(&client.workers[worker].sequence);
        if let Some(op) = client.workers[worker].op.take() {
            let group = self.plan.state_of(client.group);
            self.goodput.does_not_count(&self.clients.history[group][op].payload);
        }
        self.think_later(index, worker, self.plan.clients.think);
    }

    /// Handles an attempt of which it is not known what it did. A session client asks again; a direct one
    /// does something else.
    /// `waited`: it took too long.
    fn unknown(&mut self, index: usize, worker: usize, waited: bool) {
        let client = &mut self.clients.clients[index];
        let (group, op) = (self.plan.state_of(client.group), client.workers[worker].op);
        let asks_again = client.session != Session::Unwanted;
        if !asks_again {
            client.workers[worker].op = None;
        }
        if let Some(op) = op {
            let payload = &self.clients.history[group][op].payload;
            if waited {
                self.goodput.given_up(payload, asks_again);
            } else if !asks_again {
                self.goodput.does_not_count(payload);
            }
        }
        self.move_on(index, worker, waited);
    }

    /// Has a worker turn to another replica, and then go on with whatever it has to do. One that `waited` until its
    /// time was over backs off after the last fault, unless it presses on: a replica refuses nothing that can leave, so
    /// where all windows together take longer than a request may, clients that ask again at once keep them full of what
    /// has timed out.
    fn move_on(&mut self, index: usize, worker: usize, waited: bool) {
        let backs_off = waited && self.faults_are_over() && self.plan.clients.presses_on.is_zero();
        let clients = &mut self.clients;
        let client = &mut clients.clients[index];
        if client.probe.is_none() {
            client.home = clients.rng.usize(0..self.machines.len());
            if let Some(merging) = &self.plan.merging {
                client.group = merging.busy[clients.rng.usize(0..merging.busy.len())];
            }
        }
        client.workers[worker].attempt = NO_ATTEMPT;
        let pause =
            if backs_off { (RETRY.0, RETRY.1 + self.plan.settings.request_timeout * 2) } else { RETRY };
        self.think_later(index, worker, pause);
    }

    /// Ends a session, and with it all knowledge of what is outstanding.
    fn session_ends(&mut self, index: usize) {
        let client = &mut self.clients.clients[index];
        client.session = Session::Closed;
        client.outstanding.clear();
        let mut idle = Vec::new();
        for (worker, state) in client.workers.iter_mut().enumerate() {
            if let Some(op) = state.op.take() {
                let group = self.plan.state_of(client.group);
                self.goodput.does_not_count(&self.clients.history[group][op].payload);
                state.attempt = NO_ATTEMPT;
                idle.push(worker);
            }
        }
        for worker in idle {
            self.think_later(index, worker, RETRY);
        }
    }

    pub(super) fn gives_up(&mut self, index: usize, worker: usize, attempt: u64) -> Checked {
        if self.clients.clients[index].workers[worker].attempt == attempt {
            self.trace.line(self.now, || format!("c{index}.{worker:<7}gives up waiting"));
            self.chart(|chart| chart.marks_clients(format!("c{index}.{worker} gives up waiting")));
            self.unknown(index, worker, true);
        }
        Ok(())
    }

    /// Gives each member a client that writes and reads there, and tries until it succeeds.
    pub(super) fn begin_probing(&mut self) {
        self.clients.probed_from = self.clients.clients.len();
        self.probe_members();
    }

    /// The clients of this round of probes.
    fn probes(&self) -> impl Iterator<Item = &Client> {
        self.clients.clients.iter().skip(self.clients.probed_from)
    }

    /// Gives replicas that have become members since such a client, too.
    pub(super) fn probe_members(&mut self) {
        for (group, of) in self.members() {
            let is_probed = |client: &Client| (client.group, client.home) == (group, of);
            if self.is_out(of) || self.probes().any(is_probed) {
                continue;
            }
            let mut probe = Client::new(group, of, Session::Unwanted, 1);
            probe.probe = Some(Probe::Write);
            self.clients.clients.push(probe);
            self.think_later(self.clients.clients.len() - 1, 0, (Duration::ZERO, Duration::ZERO));
        }
    }

    /// The members of groups at which no write or no read has succeeded yet.
    pub(super) fn probes_missing(&self) -> Vec<(GroupId, usize)> {
        let done = |(group, of): &(GroupId, usize)| {
            let at = |client: &Client| (client.group, client.home) == (*group, *of);
            self.probes().any(|client| at(client) && client.probe == Some(Probe::Done))
        };
        self.members().into_iter().filter(|member| !self.is_out(member.1) && !done(member)).collect()
    }
}

/// Attempts are numbered from 1: what comes for an earlier one is ignored.
const NO_ATTEMPT: u64 = 0;

fn describe_ask(ask: &Ask) -> String {
    match ask.kind {
        Kind::OpenSession => "open a session".to_owned(),
        Kind::Read => format!("read {}", describe::query(&ask.payload)),
        Kind::Command => {
            let place = ask.session.map(|place| {
                format!("s{}#{} (waits from {}) ", place.session, place.sequence, place.lowest_outstanding)
            });
            format!("{}{}", place.unwrap_or_default(), describe::command(&ask.payload))
        }
    }
}

//! Clients: who asks what of whom, what they hear, and the history of it all.
//!
//! A **direct** client gives up an operation that is not answered in time: whether it happened is not known. A
//! **session** client asks again, elsewhere, with the same sequence number, until it knows. Both have workers that
//! do one operation after the other; a session's workers share its numbers.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use bytes::Bytes;
use fastrand::Rng;
use synod_replica::{Event, Outcome, ReadId, RequestError, RequestId, SessionCommand};
use synod_wire::{CommandKind, SessionId, Slot};

use super::{Happening, World};
use crate::{
    check::{
        Checked, Invariant, Model, Violation, demand,
        linear::{self, Operation, Verdict},
    },
    describe,
    network::between,
    ops::{Answer, Key, Op, Other},
    plan::Plan,
};

/// A question on its way to a replica.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    client: usize,
    worker: usize,
    attempt: u64,
    session: Option<SessionCommand>,
    kind: Kind,
    payload: Bytes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Command,
    Read,
    OpenSession,
}

/// What a client hears.
#[derive(Debug)]
pub(crate) struct Heard {
    client: usize,
    worker: usize,
    attempt: u64,
    response: Response,
}

#[derive(Debug)]
enum Response {
    Reply(Bytes),
    Failed(RequestError),
    /// There was no connection: the question was not heard.
    Refused,
    /// The connection broke.
    Broken,
}

/// One operation of the history.
#[derive(Debug)]
struct Done {
    op: Op,
    payload: Bytes,
    invoked: u64,
    returned: Option<(u64, Answer)>,
    /// It did not happen, or changes nothing and was not answered.
    void: bool,
}

#[derive(Debug, Default)]
struct Worker {
    /// The operation under way, in the history.
    op: Option<usize>,
    /// Its number in the session.
    sequence: u64,
    /// Grows with every attempt.
    attempt: u64,
}

#[derive(Debug, PartialEq, Eq)]
enum Session {
    /// The client has none and wants none.
    Unwanted,
    Closed,
    /// This worker opens it.
    Opening(usize),
    Open {
        id: SessionId,
        next: u64,
    },
}

#[derive(Debug)]
struct Client {
    /// The replica that it asks.
    home: usize,
    session: Session,
    /// Numbers that it waits for.
    outstanding: BTreeSet<u64>,
    workers: Vec<Worker>,
    /// The revisions at which it saw keys changed last.
    known: BTreeMap<Key, i64>,
    revision: i64,
    /// A probe stays with its replica until it has written and read there.
    probe: Option<Probe>,
}

/// What a probe has still to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Probe {
    Write,
    Read,
    Done,
}

/// A question that a replica works on.
#[derive(Debug)]
struct Pending {
    at: usize,
    ask: Ask,
}

/// All clients.
#[derive(Debug)]
pub(crate) struct Clients {
    clients: Vec<Client>,
    history: Vec<Done>,
    /// Counts invocations and returns.
    stamp: u64,
    asked: u64,
    requests: BTreeMap<RequestId, Pending>,
    reads: BTreeMap<ReadId, Pending>,
    rng: Rng,
    /// In a script: what was asked in each attempt.
    scripted: BTreeMap<u64, Scripted>,
}

/// A question of a script.
#[derive(Debug)]
struct Scripted {
    text: String,
    /// `None`: it opens a session.
    op: Option<Op>,
}

/// How long a question or an answer travels.
const TRAVELS: (Duration, Duration) = (Duration::from_micros(20), Duration::from_micros(500));
/// Wait before asking again after a refusal.
const RETRY: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(100));
/// States that the search for a linearization may visit.
const SEARCH_STEPS_MAX: usize = 2_000_000;

impl Clients {
    pub(crate) fn new(plan: &Plan, mut rng: Rng) -> Clients {
        let mut clients = Vec::new();
        for index in 0..plan.clients.direct + plan.clients.sessions {
            let direct = index < plan.clients.direct;
            let workers = if direct { 1 } else { plan.clients.pipeline };
            let session = if direct { Session::Unwanted } else { Session::Closed };
            clients.push(Client::new(rng.usize(0..plan.replicas), session, workers));
        }
        let (requests, reads) = (BTreeMap::new(), BTreeMap::new());
        let scripted = BTreeMap::new();
        Clients { clients, history: Vec::new(), stamp: 0, asked: 0, requests, reads, rng, scripted }
    }

    /// Operations, and those among them whose outcome is unknown.
    pub(crate) fn counts(&self) -> (usize, usize) {
        let unknown = |done: &&Done| !done.void && done.returned.is_none();
        (self.history.len(), self.history.iter().filter(unknown).count())
    }

    fn stamp(&mut self) -> u64 {
        self.stamp += 1;
        self.stamp
    }

    fn draw_op(&mut self, client: usize, plan: &Plan) -> Op {
        let rng = &mut self.rng;
        let client = &self.clients[client];
        let id = self.history.len() as u64;
        let key = rng.u8(1..=plan.clients.keys);
        let last = rng.u8(key..=plan.clients.keys);
        let known = client.known.get(&key).copied().unwrap_or(0);
        match rng.u8(0..100) {
            0..25 => Op::Get { first: key, last: key },
            25..35 => Op::Get { first: 1, last: plan.clients.keys },
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
    fn new(home: usize, session: Session, workers: usize) -> Client {
        Client {
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
    /// All workers begin to think.
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

    /// A worker goes on: with a new operation, or with the one that is not answered yet.
    pub(super) fn think(&mut self, index: usize, worker: usize) -> Checked {
        let plan = &self.plan.clients;
        let clients = &mut self.clients;
        if clients.clients[index].workers[worker].op.is_some() {
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
            Some(Probe::Write) => Op::Put { key: 1, value: clients.history.len() as u64 },
            Some(Probe::Read) => Op::Get { first: 1, last: plan.keys },
            None if clients.history.len() >= plan.operations => return Ok(()),
            None if plan.stale_reads.hit(&mut clients.rng) => {
                let of = clients.clients[index].home;
                self.queue.push(self.now, Happening::Peek { of });
                self.think_later(index, worker, self.plan.clients.think);
                return Ok(());
            }
            None => clients.draw_op(index, &self.plan),
        };
        let id = clients.history.len() as u64;
        let padding = clients.rng.usize(0..=plan.padding_max);
        let payload = op.encode(id, padding);
        if !op.is_read() {
            self.reference.submitted(&payload);
        }
        let invoked = clients.stamp();
        let read = op.is_read();
        clients.history.push(Done { op, payload, invoked, returned: None, void: read });
        let client = &mut clients.clients[index];
        client.workers[worker].op = Some(clients.history.len() - 1);
        if !read && let Session::Open { next, .. } = &mut client.session {
            client.workers[worker].sequence = *next;
            client.outstanding.insert(*next);
            *next += 1;
        }
        self.attempt(index, worker);
        Ok(())
    }

    /// A worker asks a replica: its operation, or for a session.
    fn attempt(&mut self, index: usize, worker: usize) {
        let clients = &mut self.clients;
        clients.asked += 1;
        let attempt = clients.asked;
        let client = &mut clients.clients[index];
        let state = &mut client.workers[worker];
        state.attempt = attempt;
        let (kind, payload, session) = match state.op {
            None => (Kind::OpenSession, Bytes::new(), None),
            Some(op) if clients.history[op].op.is_read() => {
                (Kind::Read, clients.history[op].payload.clone(), None)
            }
            Some(op) => {
                let session = match client.session {
                    Session::Open { id, .. } => Some(SessionCommand {
                        session: id,
                        sequence: state.sequence,
                        lowest_outstanding: *client.outstanding.first().expect("this one is outstanding"),
                    }),
                    _ => None,
                };
                (Kind::Command, clients.history[op].payload.clone(), session)
            }
        };
        if kind == Kind::OpenSession {
            self.reference.submitted(&payload);
        }
        let of = client.home;
        let ask = Ask { client: index, worker, attempt, session, kind, payload };
        self.trace.line(self.now, || format!("c{index}.{worker:<7}→ r{}  {}", of + 1, describe_ask(&ask)));
        let travels = between(&mut self.clients.rng, TRAVELS.0, TRAVELS.1);
        self.queue.push(self.now + travels, Happening::Asked { of, ask });
        let patience = self.now + self.plan.clients.timeout;
        self.queue.push(patience, Happening::Impatient { client: index, worker, attempt });
    }

    /// A question reaches a replica.
    pub(super) fn asked(&mut self, of: usize, ask: Ask) -> Checked {
        if !self.machines[of].is_alive() {
            self.respond(&ask, Response::Refused);
            return Ok(());
        }
        let id = self.clients.asked;
        self.clients.asked += 1;
        let (kind, payload, session) = (ask.kind, ask.payload.clone(), ask.session);
        let pending = Pending { at: of, ask };
        if kind == Kind::Read {
            self.clients.reads.insert(ReadId(id), pending);
            return self.step(of, Event::Read(ReadId(id)));
        }
        let request = RequestId(id);
        self.clients.requests.insert(request, pending);
        let kind = if kind == Kind::Command { CommandKind::Apply } else { CommandKind::OpenSession };
        self.step(of, Event::Request { request, kind, session, payload })
    }

    /// A script asks a replica for something; what it is answered shows in the trace.
    pub(crate) fn ask_in_script(
        &mut self,
        of: usize,
        op: Option<Op>,
        id: Option<u64>,
        session: Option<SessionCommand>,
        text: String,
    ) -> Checked {
        self.clients.asked += 1;
        let attempt = self.clients.asked;
        let payload = op.as_ref().map_or_else(Bytes::new, |op| op.encode(id.unwrap_or(attempt), 0));
        let kind = match &op {
            None => Kind::OpenSession,
            Some(op) if op.is_read() => Kind::Read,
            Some(_) => Kind::Command,
        };
        if kind != Kind::Read {
            self.reference.submitted(&payload);
        }
        self.clients.scripted.insert(attempt, Scripted { text, op });
        self.asked(of, Ask { client: 0, worker: 0, attempt, session, kind, payload })
    }

    fn answer_in_script(&mut self, scripted: &Scripted, response: &Response) {
        let Scripted { text, op } = scripted;
        let answer = match (response, op) {
            (Response::Reply(reply), Some(op)) => match Answer::decode(op, reply) {
                Some(answer) => answer.to_string(),
                None => "a reply of another kind".to_owned(),
            },
            (Response::Reply(reply), None) => {
                format!("session s{}", reply.iter().rev().fold(0_u64, |id, byte| id << 8 | u64::from(*byte)))
            }
            _ => describe_response(response),
        };
        self.trace.line(self.now, || format!("client    {text}: {answer}"));
    }

    fn respond(&mut self, ask: &Ask, response: Response) {
        if let Some(scripted) = self.clients.scripted.remove(&ask.attempt) {
            return self.answer_in_script(&scripted, &response);
        }
        let travels = between(&mut self.clients.rng, TRAVELS.0, TRAVELS.1);
        let Ask { client, worker, attempt, .. } = *ask;
        self.queue.push(self.now + travels, Happening::Heard(Heard { client, worker, attempt, response }));
    }

    /// A replica has the outcome of a command.
    pub(super) fn answer_request(&mut self, of: usize, request: RequestId, outcome: Outcome) {
        let Some(pending) = self.clients.requests.remove(&request) else { return };
        assert_eq!(pending.at, of, "replicas answer what they were asked");
        let response = match outcome {
            Outcome::Reply(reply) => Response::Reply(reply),
            Outcome::Error(error) => Response::Failed(error),
        };
        self.respond(&pending.ask, response);
    }

    pub(super) fn fail_request(&mut self, of: usize, request: RequestId, error: RequestError) {
        self.answer_request(of, request, Outcome::Error(error));
    }

    pub(super) fn fail_read(&mut self, of: usize, read: ReadId, error: RequestError) {
        let Some(pending) = self.clients.reads.remove(&read) else { return };
        assert_eq!(pending.at, of, "replicas answer what they were asked");
        self.respond(&pending.ask, Response::Failed(error));
    }

    /// Answers the reads whose slot is executed.
    pub(super) fn answer_reads(&mut self, of: usize) {
        let Some(life) = &mut self.machines[of].life else { return };
        let applied: Slot = life.executor.applied();
        let (ready, reads) =
            std::mem::take(&mut life.reads).into_iter().partition(|(slot, _)| *slot <= applied);
        life.reads = reads;
        let ready: Vec<(Slot, ReadId)> = ready;
        for (_, read) in ready {
            let Some(pending) = self.clients.reads.remove(&read) else { continue };
            let Some(life) = &self.machines[of].life else { return };
            let reply = life.executor.query(&pending.ask.payload);
            self.respond(&pending.ask, Response::Reply(reply));
        }
    }

    /// A replica crashes: whoever waits for it notices.
    pub(super) fn hang_up_clients(&mut self, of: usize) {
        let gone = |pending: &&mut Pending| pending.at == of;
        let requests = self.clients.requests.values_mut().filter(gone).map(|pending| pending.ask.clone());
        let mut asks: Vec<Ask> = requests.collect();
        asks.extend(self.clients.reads.values_mut().filter(gone).map(|pending| pending.ask.clone()));
        self.clients.requests.retain(|_, pending| pending.at != of);
        self.clients.reads.retain(|_, pending| pending.at != of);
        for ask in asks {
            self.respond(&ask, Response::Broken);
        }
    }

    /// A client hears something.
    pub(super) fn heard(&mut self, heard: Heard) -> Checked {
        let Heard { client: index, worker, attempt, response } = heard;
        if self.clients.clients[index].workers[worker].attempt != attempt {
            return Ok(()); // An answer to a question that was given up.
        }
        self.clients.clients[index].workers[worker].attempt = NO_ATTEMPT;
        self.trace.line(self.now, || format!("c{index}.{worker:<7}hears {}", describe_response(&response)));
        match response {
            Response::Reply(reply) => self.replied(index, worker, &reply),
            Response::Failed(error) => self.failed(index, worker, error),
            Response::Refused => {
                self.not_done(index, worker);
                Ok(())
            }
            Response::Broken => {
                self.unknown(index, worker);
                Ok(())
            }
        }
    }

    fn replied(&mut self, index: usize, worker: usize, reply: &Bytes) -> Checked {
        let clients = &mut self.clients;
        let client = &mut clients.clients[index];
        let Some(op) = client.workers[worker].op.take() else {
            let id = reply[..].try_into().map(u64::from_le_bytes).map_err(|_| Violation {
                invariant: Invariant::Sound,
                detail: "opening a session gives no session id".to_owned(),
            })?;
            client.session = Session::Open { id: SessionId(id), next: 1 };
            self.think_later(index, worker, self.plan.clients.think);
            return Ok(());
        };
        if !clients.history[op].op.is_read() {
            client.outstanding.remove(&client.workers[worker].sequence);
        }
        let Some(answer) = Answer::decode(&clients.history[op].op, reply) else {
            let detail = format!("{:?} got a reply of another kind", clients.history[op].op);
            return Err(Violation { invariant: Invariant::Sound, detail });
        };
        client.revision = client.revision.max(answer.revision().unwrap_or(0));
        client.known.extend(answer.entries().map(|entry| (entry.key, entry.modified)));
        client.probe = client.probe.map(|probe| match probe {
            Probe::Write => Probe::Read,
            Probe::Read | Probe::Done => Probe::Done,
        });
        let returned = Some((clients.stamp(), answer));
        let done = &mut clients.history[op];
        (done.returned, done.void) = (returned, false);
        self.think_later(index, worker, self.plan.clients.think);
        Ok(())
    }

    fn failed(&mut self, index: usize, worker: usize, error: RequestError) -> Checked {
        let in_session = matches!(self.clients.clients[index].session, Session::Open { .. });
        match error {
            RequestError::NoLeader | RequestError::Overloaded | RequestError::TooLarge => {
                self.not_done(index, worker);
            }
            RequestError::Timeout
            | RequestError::OutcomeUnknown
            | RequestError::Superseded
            | RequestError::Stopping => self.unknown(index, worker),
            RequestError::SessionExpired if in_session => self.session_ends(index),
            RequestError::Stale | RequestError::TooFarAhead if in_session => {
                let detail = format!("client {index} hears of a command that it waits for: {error}");
                return Err(Violation { invariant: Invariant::Integrity, detail });
            }
            RequestError::SessionExpired | RequestError::Stale | RequestError::TooFarAhead => {
                self.unknown(index, worker);
            }
        }
        Ok(())
    }

    /// The attempt certainly did nothing; an earlier attempt of a session client may have.
    fn not_done(&mut self, index: usize, worker: usize) {
        let clients = &mut self.clients;
        let client = &mut clients.clients[index];
        if client.session == Session::Unwanted
            && let Some(op) = client.workers[worker].op.take()
        {
            clients.history[op].void = true;
        }
        self.move_on(index, worker);
    }

    /// Nobody knows what the attempt did. A session client asks again; a direct one does something else.
    fn unknown(&mut self, index: usize, worker: usize) {
        let client = &mut self.clients.clients[index];
        if client.session == Session::Unwanted {
            client.workers[worker].op = None;
        }
        self.move_on(index, worker);
    }

    /// To another replica, and then on with whatever there is to do.
    fn move_on(&mut self, index: usize, worker: usize) {
        let clients = &mut self.clients;
        let client = &mut clients.clients[index];
        if client.probe.is_none() {
            client.home = clients.rng.usize(0..self.machines.len());
        }
        client.workers[worker].attempt = NO_ATTEMPT;
        self.think_later(index, worker, RETRY);
    }

    /// The session is gone, and with it all knowledge of what is outstanding.
    fn session_ends(&mut self, index: usize) {
        let client = &mut self.clients.clients[index];
        client.session = Session::Closed;
        client.outstanding.clear();
        let mut idle = Vec::new();
        for (worker, state) in client.workers.iter_mut().enumerate() {
            if state.op.take().is_some() {
                state.attempt = NO_ATTEMPT;
                idle.push(worker);
            }
        }
        for worker in idle {
            self.think_later(index, worker, RETRY);
        }
    }

    pub(super) fn impatient(&mut self, index: usize, worker: usize, attempt: u64) -> Checked {
        if self.clients.clients[index].workers[worker].attempt == attempt {
            self.trace.line(self.now, || format!("c{index}.{worker:<7}gives up waiting"));
            self.unknown(index, worker);
        }
        Ok(())
    }

    /// A read of whatever state a replica has: it must be the state after some slot, and no older than one seen
    /// at this replica before.
    pub(super) fn peek(&mut self, of: usize) -> Checked {
        let keys = self.plan.clients.keys;
        let Some(life) = &mut self.machines[of].life else { return Ok(()) };
        let op = Op::Get { first: 1, last: keys };
        let reply = life.executor.query(&op.encode(0, 0));
        let revision = Answer::decode(&op, &reply).and_then(|answer| answer.revision()).unwrap_or(0);
        let before = std::mem::replace(&mut life.seen_revision, revision);
        demand(revision >= before, Invariant::Monotone, || {
            format!("a stale read at r{} shows revision {revision} after {before}", of + 1)
        })?;
        self.check_state(of)
    }

    /// Each replica gets a client that writes and reads there, and tries until it succeeds.
    pub(super) fn begin_probing(&mut self) {
        for of in 0..self.machines.len() {
            let mut probe = Client::new(of, Session::Unwanted, 1);
            probe.probe = Some(Probe::Write);
            self.clients.clients.push(probe);
            self.think_later(self.clients.clients.len() - 1, 0, (Duration::ZERO, Duration::ZERO));
        }
    }

    /// The replicas at which no write or no read has succeeded yet.
    pub(super) fn probes_missing(&self) -> Vec<usize> {
        let missing = self
            .clients
            .clients
            .iter()
            .filter(|client| client.probe.is_some_and(|probe| probe != Probe::Done));
        missing.map(|client| client.home).collect()
    }

    /// Looks for a linearization. True if the search was given up.
    pub(super) fn check_history(&mut self) -> Result<bool, Violation> {
        let history = &self.clients.history;
        let hint = self.hints();
        let operations: Vec<Operation<Op, Answer>> = history
            .iter()
            .filter(|done| !done.void)
            .map(|done| Operation {
                op: done.op.clone(),
                invoked: done.invoked,
                returned: done.returned.clone(),
                hint: hint(done),
            })
            .collect();
        match linear::check(Model::default(), &operations, SEARCH_STEPS_MAX) {
            Verdict::Linearizable => Ok(false),
            Verdict::Undecided => Ok(true),
            Verdict::NotLinearizable { longest, stuck_at } => {
                let stuck = &operations[stuck_at];
                let detail = format!(
                    "of {} operations at most {longest} fit into an order; then {:?} does not follow, which was \
                     answered {:?}",
                    operations.len(),
                    stuck.op,
                    stuck.returned.as_ref().map(|(_, answer)| answer)
                );
                Err(Violation { invariant: Invariant::Linearizable, detail })
            }
        }
    }

    /// Where an operation probably belongs: a command where the log has it, a read behind the command that made the
    /// revision which it saw.
    fn hints(&self) -> impl Fn(&Done) -> u64 {
        let mut made = BTreeMap::new();
        for done in self.clients.history.iter().filter(|done| !done.op.is_read()) {
            let Some((place, reply)) = self.reference.reply(&done.payload) else { continue };
            if let Some(revision) = Answer::decode(&done.op, reply).and_then(|answer| answer.revision()) {
                let first = made.entry(revision).or_insert(place);
                *first = place.min(*first);
            }
        }
        move |done| {
            let seen = done.returned.as_ref().and_then(|(_, answer)| answer.revision());
            let place = self.reference.reply(&done.payload).map(|(place, _)| place * 2);
            let behind = || made.range(..=seen?).next_back().map(|(_, place)| place * 2 + 1);
            match (&done.returned, done.op.is_read()) {
                (_, true) => behind().unwrap_or(0),
                // It is not in the log: probably it never happened.
                (None, false) => place.unwrap_or(u64::MAX),
                (Some(_), false) => place.unwrap_or(0),
            }
        }
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

fn describe_response(response: &Response) -> String {
    match response {
        Response::Reply(reply) => format!("a reply of {} bytes", reply.len()),
        Response::Failed(error) => error.to_string(),
        Response::Refused => "nothing: connection refused".to_owned(),
        Response::Broken => "nothing more: connection broken".to_owned(),
    }
}

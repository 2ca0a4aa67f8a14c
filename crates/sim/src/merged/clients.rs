//! Clients: whom they ask for what, and what they see.
//!
//! A **direct** client gives up an operation that is not answered in time; a **session** client asks again, at another
//! node and mostly of another group, with the same number, until it knows. A **probe** writes and reads at one node and
//! of one group, once all faults are over.

use std::{collections::BTreeMap, time::Duration};

use bytes::Bytes;
use fastrand::Rng;
use synod_host::Input;
use synod_replica::{RequestError, SessionCommand};
use synod_wire::{CommandKind, GroupId, SessionId};

use super::{
    Happening, Situation, World,
    machine::{Waiter, id},
    plan::MergedPlan,
};
use crate::{
    backup,
    check::{Checked, Done, EndedLease, Invariant, Violation},
    network::between,
    ops::{Answer, Key, Lease, Op, Order, Other, Part, draw_lease_op},
};

const TRAVELS: (Duration, Duration) = (Duration::from_micros(20), Duration::from_micros(500));
const RETRY: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(60));

/// A question on its way to a node.
#[derive(Clone, Debug)]
pub(super) struct Ask {
    client: usize,
    attempt: u64,
    group: GroupId,
    session: Option<SessionCommand>,
    kind: Kind,
    pub payload: Bytes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Command,
    Read,
    /// Of a guest's client, which does not wait for it.
    GuestRead,
    OpenSession,
}

impl Ask {
    /// A read of a guest's client, which has this number.
    pub fn of_guest(read: usize, payload: Bytes) -> Ask {
        let (attempt, group) = (NO_ATTEMPT, GroupId::FIRST);
        Ask { client: read, attempt, group, session: None, kind: Kind::GuestRead, payload }
    }

    /// The number of a read of a guest's client.
    pub fn guest_read(&self) -> Option<usize> {
        (self.kind == Kind::GuestRead).then_some(self.client)
    }
}

/// What a client hears.
#[derive(Debug)]
pub(super) struct Heard {
    client: usize,
    attempt: u64,
    response: Response,
}

#[derive(Debug)]
pub(super) enum Response {
    Reply(Bytes),
    Failed(RequestError),
    Refused,
}

#[derive(Debug, PartialEq, Eq)]
enum Session {
    Unwanted,
    Closed,
    Open { id: SessionId, next: u64 },
}

/// What a probe has still to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Probe {
    Write,
    Read,
    Done,
}

#[derive(Debug)]
struct Client {
    home: usize,
    group: GroupId,
    session: Session,
    /// The index in the history of the operation under way, and its number in the session.
    op: Option<usize>,
    sequence: u64,
    attempt: u64,
    /// The group that was asked for the present operation last.
    asked: Option<GroupId>,
    /// The revision at which the client last saw each key changed.
    known: BTreeMap<Key, i64>,
    probe: Option<Probe>,
}

/// All clients.
#[derive(Debug)]
pub(super) struct Clients {
    clients: Vec<Client>,
    pub history: Vec<Done>,
    /// The leases that the log has ended by its clock.
    pub ended: Vec<EndedLease>,
    /// The group in which a lease was granted last.
    granted: BTreeMap<Lease, GroupId>,
    stamp: u64,
    attempts: u64,
    rng: Rng,
    /// No more new operations.
    pub closing: bool,
}

impl Clients {
    pub fn new(plan: &MergedPlan, mut rng: Rng) -> Clients {
        let count = plan.direct + plan.sessions;
        let clients = (0..count).map(|index| {
            let session = if index < plan.direct { Session::Unwanted } else { Session::Closed };
            let (home, group) = (rng.usize(0..plan.nodes), plan.busy[rng.usize(0..plan.busy.len())]);
            Client::new(home, GroupId(group), session)
        });
        let clients = clients.collect();
        let (history, ended, granted) = Default::default();
        Clients { clients, history, ended, granted, stamp: 0, attempts: 0, rng, closing: false }
    }

    /// How many operations there were, and how many of them have an unknown outcome.
    pub fn counts(&self) -> (usize, usize) {
        let unknown = |done: &&Done| !done.void && done.returned.is_none();
        (self.history.len(), self.history.iter().filter(unknown).count())
    }

    /// Whether every probe is done, and nobody waits for anything.
    pub fn are_done(&self) -> bool {
        self.clients
            .iter()
            .all(|client| client.op.is_none() && client.probe.is_none_or(|probe| probe == Probe::Done))
    }

    /// What somebody still waits for, for people.
    pub fn missing(&self) -> String {
        let waits =
            |client: &&Client| client.op.is_some() || client.probe.is_some_and(|probe| probe != Probe::Done);
        let who = self.clients.iter().filter(waits).map(|client| {
            let op = client.op.map(|op| &self.history[op].op);
            format!("a client of {} at r{}: {op:?}", client.group, client.home + 1)
        });
        who.collect::<Vec<_>>().join("; ")
    }

    pub fn stamp(&mut self) -> u64 {
        self.stamp += 1;
        self.stamp
    }

    fn draw_op(&mut self, client: usize, keys: u8, leases: u8) -> Op {
        let (rng, value) = (&mut self.rng, self.history.len() as u64);
        let key = rng.u8(1..=keys);
        let last = rng.u8(key..=keys);
        let expected = self.clients[client].known.get(&key).copied().unwrap_or(0);
        if leases > 0 && rng.u8(0..100) < leases {
            return draw_lease_op(rng, key, value);
        }
        match rng.u8(0..100) {
            0..20 => Op::Get { first: key, last: key },
            20..35 => Op::Get { first: 1, last: keys },
            35..40 => {
                let (revision, limit, order, count_only) = (0, rng.i64(0..3), Order::Modified, rng.bool());
                Op::Look { first: key, last, revision, limit, order, count_only }
            }
            40..70 => Op::Put { key, value },
            70..77 => Op::Delete { first: key, last },
            77..84 if last != key => Op::Nest { key, expected, value, inner: last },
            _ if last == key => Op::Swap { key, expected, value, other: Other::Nothing },
            _ if rng.bool() => Op::Swap { key, expected, value, other: Other::Put(last) },
            _ => Op::Swap { key, expected, value, other: Other::Delete(last) },
        }
    }
}

impl Client {
    fn new(home: usize, group: GroupId, session: Session) -> Client {
        Client {
            home,
            group,
            session,
            op: None,
            sequence: 0,
            attempt: NO_ATTEMPT,
            asked: None,
            known: BTreeMap::new(),
            probe: None,
        }
    }
}

/// Attempts are numbered from 1: what comes for an earlier one is ignored.
const NO_ATTEMPT: u64 = 0;

impl World {
    /// Has all clients begin to think.
    pub(super) fn begin_asking(&mut self) {
        (0..self.clients.clients.len()).for_each(|client| self.think_later(client, self.plan.think));
    }

    /// Has somebody write and read at every node, of every group.
    pub(super) fn begin_probing(&mut self) {
        let nodes: Vec<usize> = (0..self.machines.len()).filter(|of| !self.machines[*of].gone).collect();
        for of in nodes {
            for group in self.groups() {
                let mut probe = Client::new(of, group, Session::Unwanted);
                probe.probe = Some(Probe::Write);
                self.clients.clients.push(probe);
                self.think_later(
                    self.clients.clients.len() - 1,
                    (Duration::ZERO, Duration::from_millis(100)),
                );
            }
        }
    }

    fn think_later(&mut self, client: usize, (low, high): (Duration, Duration)) {
        let wait = between(&mut self.clients.rng, low, high);
        self.queue.push(self.now + wait, Happening::Think { client });
    }

    /// Has a client go on: with a new operation, or with the one that is not answered yet.
    pub(super) fn think(&mut self, index: usize) {
        let clients = &mut self.clients;
        let client = &mut clients.clients[index];
        if client.probe.is_some() && !self.order.has_member(GroupId::FIRST, id(client.home)) {
            // The node leaves, and need not serve anybody.
            (client.op, client.probe) = (None, Some(Probe::Done));
        }
        let goes_on = client.op.is_some() || client.session == Session::Closed && !clients.closing;
        if goes_on {
            return self.attempt(index);
        }
        let op = match client.probe {
            Some(Probe::Done) => return,
            Some(Probe::Write) => Op::Put { key: 1, value: clients.history.len() as u64 },
            Some(Probe::Read) => Op::Get { first: 1, last: self.plan.keys },
            None if clients.closing || clients.history.len() >= self.plan.operations => return,
            None => clients.draw_op(index, self.plan.keys, self.plan.leases),
        };
        let padding = clients.rng.usize(0..=self.plan.padding_max);
        let payload = op.encode(clients.history.len() as u64, padding);
        let (invoked, void) = (clients.stamp(), op.is_read());
        clients.history.push(Done { op, payload, invoked, returned: None, void });
        let client = &mut clients.clients[index];
        (client.op, client.asked) = (Some(clients.history.len() - 1), None);
        if let Session::Open { next, .. } = &mut client.session
            && !void
        {
            client.sequence = *next;
            *next += 1;
        }
        self.attempt(index);
    }

    /// Has a client ask a node: to execute its operation, or to open a session.
    fn attempt(&mut self, index: usize) {
        let clients = &mut self.clients;
        clients.attempts += 1;
        let (attempt, client) = (clients.attempts, &mut clients.clients[index]);
        client.attempt = attempt;
        let (kind, payload, session) = match client.op {
            None => (Kind::OpenSession, Bytes::new(), None),
            Some(op) if clients.history[op].op.is_read() => {
                (Kind::Read, clients.history[op].payload.clone(), None)
            }
            Some(op) => {
                let sequence = client.sequence;
                let session = match client.session {
                    Session::Open { id: session, .. } => {
                        Some(SessionCommand { session, sequence, lowest_outstanding: sequence })
                    }
                    _ => None,
                };
                if session.is_some() && client.asked.is_some_and(|asked| asked != client.group) {
                    self.counts.see(Situation::RetriedElsewhere);
                }
                client.asked = Some(client.group);
                (Kind::Command, clients.history[op].payload.clone(), session)
            }
        };
        let (of, group) = (client.home, client.group);
        self.trace.line(self.now, || {
            let what = client.op.map(|op| &clients.history[op].op);
            format!("c{index:<4}→ r{} {group} {kind:?} {what:?}", of + 1)
        });
        let ask = Ask { client: index, attempt, group, session, kind, payload };
        let travels = between(&mut clients.rng, TRAVELS.0, TRAVELS.1);
        self.queue.push(self.now + travels, Happening::Asked { of, ask });
        self.queue.push(self.now + self.plan.timeout, Happening::GivesUp { client: index, attempt });
    }

    /// A question arrives at a node.
    pub(super) fn asked(&mut self, of: usize, ask: Ask) -> Checked {
        if self.machines[of].life.is_none() {
            self.respond(&ask, Response::Refused);
            return Ok(());
        }
        let (group, session, payload) = (ask.group, ask.session, ask.payload.clone());
        let command =
            |kind, ask| Input::Command { group, kind, session, payload, client: Waiter::Client(ask) };
        let input = match ask.kind {
            Kind::Read | Kind::GuestRead => Input::Query(group, ask),
            Kind::Command => command(CommandKind::Apply, ask),
            Kind::OpenSession => command(CommandKind::OpenSession, ask),
        };
        self.give(of, input);
        self.end_burst(of)
    }

    pub(super) fn respond(&mut self, ask: &Ask, response: Response) {
        if ask.guest_read().is_some() {
            return; // It failed, and nobody asks again.
        }
        let travels = between(&mut self.clients.rng, TRAVELS.0, TRAVELS.1);
        let Ask { client, attempt, .. } = *ask;
        self.queue.push(self.now + travels, Happening::Heard(Heard { client, attempt, response }));
    }

    pub(super) fn heard(&mut self, heard: Heard) -> Checked {
        let Heard { client: index, attempt, response } = heard;
        if self.clients.clients[index].attempt != attempt {
            return Ok(()); // An answer to a question that was given up.
        }
        self.clients.clients[index].attempt = NO_ATTEMPT;
        match response {
            Response::Reply(reply) => self.replied(index, &reply)?,
            Response::Failed(error) => self.failed(index, error)?,
            Response::Refused => self.not_done(index),
        }
        Ok(())
    }

    fn replied(&mut self, index: usize, reply: &Bytes) -> Checked {
        let clients = &mut self.clients;
        let client = &mut clients.clients[index];
        let Some(op) = client.op.take() else {
            let id = reply[..].try_into().map(u64::from_le_bytes).map_err(|_| Violation {
                invariant: Invariant::Sound,
                detail: "opening a session gives no session id".to_owned(),
            })?;
            backup::opened(self.backup.as_ref(), id)?;
            client.session = Session::Open { id: SessionId(id), next: 1 };
            self.think_later(index, self.plan.think);
            return Ok(());
        };
        let Some(answer) = Answer::decode(&clients.history[op].op, reply) else {
            let detail = format!("{:?} got a reply of another kind", clients.history[op].op);
            return Err(Violation { invariant: Invariant::Sound, detail });
        };
        client.known.extend(answer.entries().map(|entry| (entry.key, entry.modified)));
        client.probe = client.probe.map(|probe| match probe {
            Probe::Write => Probe::Read,
            Probe::Read | Probe::Done => Probe::Done,
        });
        self.trace.line(self.now, || format!("c{index:<4}hears {answer}"));
        let lives = matches!(&answer, Answer::Done { parts, .. } if matches!(parts[..], [Part::Lives(1..)]));
        match clients.history[op].op {
            Op::Grant { lease, .. } if lives => _ = clients.granted.insert(lease, client.group),
            Op::Renew { lease }
                if lives && clients.granted.get(&lease).is_some_and(|of| *of != client.group) =>
            {
                self.counts.see(Situation::RenewedElsewhere);
            }
            _ => {}
        }
        let returned = Some((clients.stamp(), answer));
        let done = &mut clients.history[op];
        (done.returned, done.void) = (returned, false);
        self.think_later(index, self.plan.think);
        Ok(())
    }

    fn failed(&mut self, index: usize, error: RequestError) -> Checked {
        self.trace.line(self.now, || format!("c{index:<4}hears: {error}"));
        let client = &mut self.clients.clients[index];
        let in_session = matches!(client.session, Session::Open { .. });
        if error == RequestError::OutcomeUnknown && client.probe == Some(Probe::Write) {
            client.probe = Some(Probe::Read);
        }
        match error {
            RequestError::ReplyGone if in_session => client.op = None,
            RequestError::SessionExpired if in_session => {
                (client.session, client.op) = (Session::Closed, None);
            }
            RequestError::Stale | RequestError::TooFarAhead if in_session => {
                let detail = format!("client {index} hears of a command that it waits for: {error}");
                return Err(Violation { invariant: Invariant::Integrity, detail });
            }
            error if error.may_have_executed() => {
                self.unknown(index);
                return Ok(());
            }
            _ => {
                self.not_done(index);
                return Ok(());
            }
        }
        self.think_later(index, RETRY);
        Ok(())
    }

    /// Handles an attempt that certainly did nothing; an earlier attempt of a session client may have done something.
    fn not_done(&mut self, index: usize) {
        let client = &mut self.clients.clients[index];
        if client.session == Session::Unwanted
            && let Some(op) = client.op.take()
        {
            self.clients.history[op].void = true;
        }
        self.move_on(index);
    }

    /// Handles an attempt of which it is not known what it did.
    fn unknown(&mut self, index: usize) {
        let client = &mut self.clients.clients[index];
        if client.session == Session::Unwanted {
            client.op = None;
        }
        self.move_on(index);
    }

    /// Has a client turn to another node and another group.
    fn move_on(&mut self, index: usize) {
        let (nodes, busy) = (self.machines.len(), &self.plan.busy);
        let Clients { clients, rng, .. } = &mut self.clients;
        let client = &mut clients[index];
        if client.probe.is_none() {
            (client.home, client.group) = (rng.usize(0..nodes), GroupId(busy[rng.usize(0..busy.len())]));
        }
        client.attempt = NO_ATTEMPT;
        self.think_later(index, RETRY);
    }

    pub(super) fn gives_up(&mut self, index: usize, attempt: u64) {
        if self.clients.clients[index].attempt == attempt {
            self.unknown(index);
        }
    }
}

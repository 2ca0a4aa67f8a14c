//! The clients of a guest: each sends one command after the other in a session, and the same one again until it knows
//! what became of it. And what replicas order for a guest by themselves.

use std::{collections::BTreeMap, rc::Rc, time::Duration};

use bytes::Bytes;
use fastrand::Rng;
use synod_replica::{Event, Outcome, RequestError, RequestId, SessionCommand};
use synod_wire::{CommandKind, SessionId};

use super::{Happening, World};
use crate::{
    check::{Checked, Invariant, Violation, demand},
    clock::Moment,
    guest::{AnyGuest, InTime, Place, Told, payload},
    network::between,
};

const CLIENTS: usize = 3;
/// Commands of all clients together.
const COMMANDS_MAX: usize = 300;
/// How long a client waits between two commands, or before it tries again.
const THINK: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(60));

/// The clients of a guest's state machine, and what they wait for.
#[derive(Debug)]
pub(crate) struct Guests {
    pub(super) guest: Rc<dyn AnyGuest>,
    clients: Vec<Client>,
    /// Requests that a replica works on: the replica, and the client.
    requests: BTreeMap<RequestId, (usize, usize)>,
    history: Vec<Told>,
    /// Commands that replicas have ordered themselves: each replica has one at a time.
    own: BTreeMap<RequestId, usize>,
    /// How many there were.
    owned: u64,
    /// How many sessions expired. Those of a group whose clock ticks seldom may do so all the time.
    expired: usize,
    rng: Rng,
    /// No client begins another command.
    over: bool,
}

#[derive(Debug, Default)]
struct Client {
    session: Option<SessionId>,
    /// The number of the last command in the session.
    sequence: u64,
    /// The command under way, in the history.
    under_way: Option<usize>,
    /// The request that it waits for.
    request: Option<RequestId>,
}

impl Guests {
    pub(super) fn new(guest: Rc<dyn AnyGuest>, seed: u64) -> Guests {
        Guests {
            guest,
            clients: (0..CLIENTS).map(|_| Client::default()).collect(),
            requests: BTreeMap::new(),
            history: Vec::new(),
            own: BTreeMap::new(),
            owned: 0,
            expired: 0,
            // Not from the same source as the rest, which is as it was without a guest.
            rng: Rng::with_seed(seed ^ 0x9_0e57),
            over: false,
        }
    }
}

impl World {
    pub(super) fn begin_guests(&mut self) {
        if self.guests.is_some() {
            (0..CLIENTS).for_each(|client| self.guest_thinks_later(client));
        }
    }

    /// No more commands.
    pub(super) fn end_guests(&mut self) {
        if let Some(guests) = &mut self.guests {
            guests.over = true;
        }
    }

    fn guest_thinks_later(&mut self, client: usize) {
        let Some(guests) = &mut self.guests else { return };
        let wait = between(&mut guests.rng, THINK.0, THINK.1);
        self.queue.push(self.now + wait, Happening::GuestThinks { client });
    }

    /// A client asks a replica: for a session, for what it has not been told yet, or for something new.
    pub(super) fn guest_thinks(&mut self, index: usize) -> Checked {
        let replicas = self.machines.len();
        let Some(guests) = &mut self.guests else { return Ok(()) };
        if guests.over || guests.clients[index].request.is_some() {
            return Ok(());
        }
        let of = guests.rng.usize(0..replicas);
        if !self.machines[of].is_running() {
            self.guest_thinks_later(index);
            return Ok(());
        }
        let client = &mut guests.clients[index];
        let (kind, session, payload) = match client.session {
            None => (CommandKind::OpenSession, None, Bytes::new()),
            Some(session) => {
                let at = match client.under_way {
                    Some(at) => at,
                    None if guests.history.len() >= COMMANDS_MAX => return Ok(()),
                    None => {
                        let command = guests.guest.command(&mut guests.rng);
                        let asked_at = self.clients.stamp();
                        guests.history.push(Told { client: index, command, asked_at, answer: None });
                        client.sequence += 1;
                        guests.history.len() - 1
                    }
                };
                client.under_way = Some(at);
                let sequence = client.sequence;
                let place = SessionCommand { session, sequence, lowest_outstanding: sequence };
                (CommandKind::Apply, Some(place), payload(at as u64, &guests.history[at].command))
            }
        };
        let request = RequestId(self.clients.asked);
        self.clients.asked += 1;
        client.request = Some(request);
        guests.requests.insert(request, (of, index));
        self.reference.submitted(&payload);
        self.step(of, Event::Request { request, kind, session, payload })
    }

    /// A life has begun: its replica looks at its machine now and then, if the guest wants that.
    pub(super) fn guest_looks_later(&mut self, of: usize) {
        let (Some(guests), Some(life)) = (&mut self.guests, &self.machines[of].life) else { return };
        let Some(interval) = guests.guest.looks_each().filter(|_| !guests.over) else { return };
        let wait = between(&mut guests.rng, interval / 2, interval * 2);
        self.queue.push(self.now + wait, Happening::GuestLooks { of, life: life.number });
    }

    /// A replica looks at its own machine, and perhaps orders something.
    pub(super) fn guest_looks(&mut self, of: usize, life: u64) -> Checked {
        if self.machines[of].in_life(life).is_none() {
            return Ok(());
        }
        self.guest_looks_later(of);
        let Some(place) = self.guest_place(of) else { return Ok(()) };
        let (Some(guests), Some(life)) = (&mut self.guests, &self.machines[of].life) else { return Ok(()) };
        if guests.over || guests.own.values().any(|at| *at == of) {
            return Ok(());
        }
        let machine = life.executor.machine().guest().expect("every machine hosts the guest");
        let Some(command) = guests.guest.look(machine, &place) else { return Ok(()) };
        let request = RequestId(self.clients.asked);
        self.clients.asked += 1;
        guests.own.insert(request, of);
        guests.owned += 1;
        // Clients' commands are numbered from below.
        let payload = payload(!guests.owned, &command);
        self.reference.submitted(&payload);
        self.step(of, Event::Request { request, kind: CommandKind::Apply, session: None, payload })
    }

    fn guest_place(&self, of: usize) -> Option<Place> {
        let machine = &self.machines[of];
        let life = machine.life.as_ref()?;
        Some(Place {
            replica: machine.id.0,
            life: life.number,
            elapsed: self.now.since(Moment::START),
            takes_care: life.replica.status().takes_care,
            members: life.executor.group().members.iter().map(|member| member.id.0).collect(),
        })
    }

    /// Whether an outcome is for a guest's client, which then goes on, or of what a replica ordered itself.
    pub(super) fn guest_answered(
        &mut self,
        request: RequestId,
        outcome: &Outcome,
    ) -> Result<bool, Violation> {
        let Some(guests) = &mut self.guests else { return Ok(false) };
        if let Some(of) = guests.own.remove(&request) {
            let reply = if let Outcome::Reply(reply) = outcome { Some(reply.clone()) } else { None };
            let place = self.guest_place(of);
            if let (Some(guests), Some(life), Some(place)) = (&self.guests, &self.machines[of].life, place) {
                let machine = life.executor.machine().guest().expect("every machine hosts the guest");
                guests.guest.looked(machine, &place, reply);
            }
            return Ok(true);
        }
        let Some((_, index)) = guests.requests.remove(&request) else { return Ok(false) };
        let client = &mut guests.clients[index];
        client.request = None;
        match outcome {
            Outcome::Reply(reply) if client.session.is_some() => {
                if let Some(at) = client.under_way.take() {
                    guests.history[at].answer = Some((self.clients.stamp(), reply.clone()));
                }
            }
            Outcome::Reply(id) => {
                let id = id[..].try_into().map(u64::from_le_bytes).map_err(|_| Violation {
                    invariant: Invariant::Sound,
                    detail: "opening a session gives no session id".to_owned(),
                })?;
                (client.session, client.sequence) = (Some(SessionId(id)), 0);
            }
            // Nobody can say any more what became of the command.
            Outcome::Error(RequestError::SessionExpired) => {
                (client.session, client.under_way) = (None, None);
                guests.expired += 1;
            }
            Outcome::Error(RequestError::ReplyGone) => client.under_way = None,
            Outcome::Error(_) | Outcome::Unanswered => {}
        }
        self.guest_thinks_later(index);
        Ok(true)
    }

    /// A replica crashes: clients that wait for it notice.
    pub(super) fn hang_up_guests(&mut self, of: usize) {
        let Some(guests) = &mut self.guests else { return };
        let mut left = Vec::new();
        guests.own.retain(|_, at| *at != of);
        guests.requests.retain(|_, (at, client)| {
            if *at == of {
                left.push(*client);
            }
            *at != of
        });
        left.iter().for_each(|&client| guests.clients[client].request = None);
        left.into_iter().for_each(|client| self.guest_thinks_later(client));
    }

    /// What the guest says of a replica's state.
    pub(super) fn check_guest(&self, of: usize) -> Checked {
        let (Some(guests), Some(life)) = (&self.guests, &self.machines[of].life) else { return Ok(()) };
        let Some(machine) = life.executor.machine().guest() else { return Ok(()) };
        let time = InTime { elapsed: self.now.since(Moment::START), error: self.clock_error() };
        guests.guest.check_in_time(machine, time).map_err(|why| Violation {
            invariant: Invariant::Guest,
            detail: format!("r{} after slot {}: {why}", of + 1, life.executor.applied()),
        })
    }

    /// What the guest says of the end.
    pub(super) fn check_guest_history(&self) -> Checked {
        let Some(guests) = &self.guests else { return Ok(()) };
        let machine = self.reference.machine().guest().expect("every machine hosts the guest");
        let answered = guests.history.iter().filter(|told| told.answer.is_some()).count();
        demand(answered + guests.expired > 0, Invariant::Liveness, || {
            "no command of the guest was answered".to_owned()
        })?;
        let checked = guests.guest.check_history(machine, &guests.history);
        checked.map_err(|detail| Violation { invariant: Invariant::Guest, detail })
    }
}

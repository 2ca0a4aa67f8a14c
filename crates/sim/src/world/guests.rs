//! The clients of a guest: each sends one command after the other in a session, and the same one again until it knows
//! what became of it; in between it reads. And what replicas order for a guest by themselves.

use std::{collections::BTreeSet, rc::Rc, time::Duration};

use bytes::Bytes;
use fastrand::Rng;
use synod_replica::{Outcome, RequestError, SessionCommand};
use synod_wire::{CommandKind, GroupId, SessionId};

#[cfg(not(feature = "kv"))]
use super::alone::Probes;
use super::{
    FIRST, Happening, World,
    waiting::{Question, Waiter},
};
use crate::{
    backup,
    check::{Answered, Checked, Invariant, Violation, demand, point_of},
    clock::Moment,
    guest::{AnyGuest, AnyMachine, InTime, Place, Told, payload, query_payload, text_of},
    network::between,
};

const CLIENTS: usize = 3;
/// Commands of all clients together.
const COMMANDS_MAX: usize = 300;
/// One of this many questions of a client is a read, if the guest has queries.
const READ_EVERY: u8 = 4;
/// How long a client waits between two commands, or before it tries again.
const THINK: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(60));

/// The clients of a guest's state machine, and what they wait for.
#[derive(Debug)]
pub(crate) struct Guests {
    pub(super) guest: Rc<dyn AnyGuest>,
    clients: Vec<Client>,
    /// Reads that were answered.
    pub(super) read: usize,
    /// The last point of the state of which a client knows: each later read has to reflect it.
    known: u64,
    history: Vec<Told>,
    /// The replicas, by index, that order a command themselves: each has one at a time.
    own: BTreeSet<usize>,
    /// How many there were.
    owned: u64,
    /// How many sessions expired. Those of a group whose clock ticks seldom may do so all the time.
    expired: usize,
    rng: Rng,
    /// What clients read is drawn apart, so that they send the same commands as without.
    readers: Rng,
    /// No client begins another command.
    over: bool,
    /// The replicas that have served since somebody began to look.
    #[cfg(not(feature = "kv"))]
    pub(super) probes: Probes,
    /// The guest has queries.
    #[cfg(not(feature = "kv"))]
    pub(super) queries: bool,
}

#[derive(Debug, Default)]
struct Client {
    session: Option<SessionId>,
    /// The number of the last command in the session.
    sequence: u64,
    /// The command under way, in the history.
    under_way: Option<usize>,
    /// It waits for the outcome of a command.
    waits: bool,
    /// The read that it waits for.
    reading: Option<Reading>,
    /// The replica that it asks, if it asks only one, until that has served.
    #[cfg(not(feature = "kv"))]
    home: Option<usize>,
}

#[derive(Debug)]
struct Reading {
    query: Bytes,
    /// Everything through this point has to be reflected.
    from: u64,
}

impl Guests {
    pub(super) fn new(guest: Rc<dyn AnyGuest>, seed: u64) -> Guests {
        Guests {
            guest,
            clients: (0..CLIENTS).map(|_| Client::default()).collect(),
            read: 0,
            known: 0,
            history: Vec::new(),
            own: BTreeSet::new(),
            owned: 0,
            expired: 0,
            // Not from the same source as the rest, which is as it was without a guest.
            rng: Rng::with_seed(seed ^ 0x9_0e57),
            readers: Rng::with_seed(seed ^ 0x4e_ad_e4),
            over: false,
            #[cfg(not(feature = "kv"))]
            probes: Probes::default(),
            #[cfg(not(feature = "kv"))]
            queries: false,
        }
    }

    /// Adds a client that asks one replica until that has served.
    #[cfg(not(feature = "kv"))]
    pub(super) fn add_probe(&mut self, of: usize) -> usize {
        self.clients.push(Client { home: Some(of), ..Client::default() });
        self.clients.len() - 1
    }

    /// Whether a client reads next, and what.
    fn draw_query(&mut self) -> Option<Bytes> {
        let drawn = self.readers.u8(0..READ_EVERY) == 0;
        let query = if drawn { self.guest.query(&mut self.readers) } else { None };
        #[cfg(not(feature = "kv"))]
        (self.queries |= query.is_some());
        query
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

    /// A client asks a replica: for a session, for what it has not been told yet, or for something new, which may be a
    /// read.
    pub(super) fn guest_thinks(&mut self, index: usize) -> Checked {
        let replicas = self.machines.len();
        let Some(guests) = &mut self.guests else { return Ok(()) };
        let client = &guests.clients[index];
        if guests.over || client.waits || client.reading.is_some() {
            return Ok(());
        }
        let is_free = client.session.is_some() && client.under_way.is_none();
        let of = guests.rng.usize(0..replicas);
        #[cfg(not(feature = "kv"))]
        let home = guests.clients[index].home;
        #[cfg(not(feature = "kv"))]
        if home.is_some_and(|home| guests.has_served(home)) {
            return Ok(());
        }
        #[cfg(not(feature = "kv"))]
        let (of, is_free) =
            (home.unwrap_or(of), is_free || home.is_some_and(|home| guests.has_written(home)));
        if !self.machines[of].is_running() {
            self.guest_thinks_later(index);
            return Ok(());
        }
        if is_free && let Some(query) = guests.draw_query() {
            return self.guest_reads(of, index, query);
        }
        let is_done = guests.history.len() >= COMMANDS_MAX;
        #[cfg(not(feature = "kv"))]
        let is_done = is_done && home.is_none();
        let client = &mut guests.clients[index];
        let (kind, session, payload) = match client.session {
            None => (CommandKind::OpenSession, None, Bytes::new()),
            Some(session) => {
                let at = match client.under_way {
                    Some(at) => at,
                    None if is_done => return Ok(()),
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
        client.waits = true;
        self.trace.line(self.now, || {
            let what = client.under_way.map(|at| guests.guest.describe(&guests.history[at].command));
            format!("g{index:<9}→ r{}  {}", of + 1, what.unwrap_or_else(|| "open a session".to_owned()))
        });
        let group = self.guest_group();
        self.checks[group].log.submitted(&payload);
        self.command(of, group, (kind, session, payload), Waiter::Guest(index))
    }

    /// The group that a guest's client asks: any that clients use, if groups are merged.
    fn guest_group(&mut self) -> GroupId {
        match (&self.plan.merging, &mut self.guests) {
            (Some(merging), Some(guests)) => merging.busy[guests.rng.usize(0..merging.busy.len())],
            _ => FIRST,
        }
    }

    /// A client reads at a replica.
    fn guest_reads(&mut self, of: usize, index: usize, query: Bytes) -> Checked {
        let Some(guests) = &mut self.guests else { return Ok(()) };
        self.trace.line(self.now, || format!("g{index:<9}→ r{}  read {}", of + 1, text_of(&query)));
        guests.clients[index].reading = Some(Reading { query, from: guests.known });
        let group = self.guest_group();
        self.query(of, group, Question::Guest(index))
    }

    /// The read of a guest's client is answered from what the replica has executed.
    pub(super) fn guest_read(&mut self, of: usize, index: usize) -> Checked {
        let Some(guests) = &mut self.guests else { return Ok(()) };
        let (reading, life) = (guests.clients[index].reading.take(), &self.machines[of].life);
        let (Some(Reading { query, from }), Some(life)) = (reading, life) else { return Ok(()) };
        let payload = query_payload(&query);
        // As a node answers, which the guest may have a method of its own for.
        let answer = life.executor(FIRST).answer(&payload).whole();
        self.trace.line(self.now, || format!("g{index:<9}hears {}", text_of(&answer)));
        let short = life.executor(FIRST).query(&payload);
        demand(answer == short, Invariant::Guest, || {
            let [query, answer, short] = [&query, &answer, &short].map(text_of);
            format!("r{}: `answer` gives {answer} for the query {query}, and `query` {short}", of + 1)
        })?;
        let through = self.references[FIRST].last();
        let answered = Answered { query: &query, answer: &answer, from, through };
        let seen = self.references[FIRST].answers(self.machines[of].id, &answered)?;
        guests.known = guests.known.max(seen);
        guests.read += 1;
        #[cfg(not(feature = "kv"))]
        guests.probes.read(of);
        self.guest_thinks_later(index);
        Ok(())
    }

    /// The read of a guest's client is not answered, and the client goes on.
    pub(super) fn guest_read_failed(&mut self, index: usize, error: RequestError) {
        let Some(guests) = &mut self.guests else { return };
        guests.clients[index].reading = None;
        self.trace.line(self.now, || format!("g{index:<9}hears {error}"));
        self.guest_thinks_later(index);
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
        if guests.over || guests.own.contains(&of) {
            return Ok(());
        }
        let machine = life.executor(FIRST).machine().guest().expect("every machine hosts the guest");
        let Some(command) = guests.guest.look(machine, &place) else { return Ok(()) };
        guests.own.insert(of);
        guests.owned += 1;
        // Clients' commands are numbered from below.
        let payload = payload(!guests.owned, &command);
        let group = self.guest_group();
        self.checks[group].log.submitted(&payload);
        self.command(of, group, (CommandKind::Apply, None, payload), Waiter::OfGuest)
    }

    fn guest_place(&self, of: usize) -> Option<Place> {
        let machine = &self.machines[of];
        let life = machine.life.as_ref()?;
        Some(Place {
            replica: machine.id.0,
            life: life.number,
            elapsed: self.now.since(Moment::START),
            takes_care: life.replica(FIRST).status().takes_care,
            members: life.executor(FIRST).group().members.iter().map(|member| member.id.0).collect(),
        })
    }

    /// What a replica ordered itself has an outcome.
    pub(super) fn guest_looked(&mut self, of: usize, outcome: Outcome) {
        let Some(guests) = &mut self.guests else { return };
        guests.own.remove(&of);
        let reply = if let Outcome::Reply(reply) = outcome { Some(reply) } else { None };
        let place = self.guest_place(of);
        if let (Some(guests), Some(life), Some(place)) = (&self.guests, &self.machines[of].life, place) {
            let machine = life.executor(FIRST).machine().guest().expect("every machine hosts the guest");
            guests.guest.looked(machine, &place, reply);
        }
    }

    /// The command of a guest's client has an outcome at a replica, and the client goes on.
    pub(super) fn guest_answered(&mut self, _of: usize, index: usize, outcome: &Outcome) -> Checked {
        let Some(guests) = &mut self.guests else { return Ok(()) };
        #[cfg(not(feature = "kv"))]
        guests.probes.answered(_of, outcome);
        let client = &mut guests.clients[index];
        client.waits = false;
        self.trace.line(self.now, || match outcome {
            Outcome::Reply(reply) if client.session.is_some() => {
                format!("g{index:<9}hears {}", text_of(reply))
            }
            Outcome::Reply(_) => format!("g{index:<9}has a session"),
            Outcome::Error(error) => format!("g{index:<9}hears {error}"),
            Outcome::Unanswered => format!("g{index:<9}hears nothing"),
        });
        match outcome {
            Outcome::Reply(reply) if client.session.is_some() => {
                if let (Some(at), Some(session)) = (client.under_way.take(), client.session) {
                    guests.history[at].answer = Some((self.clients.stamp(), reply.clone()));
                    let point = self.references[FIRST].executed_in(session, client.sequence);
                    guests.known = guests.known.max(point.unwrap_or_default());
                }
            }
            Outcome::Reply(id) => {
                let id = id[..].try_into().map(u64::from_le_bytes).map_err(|_| Violation {
                    invariant: Invariant::Sound,
                    detail: "opening a session gives no session id".to_owned(),
                })?;
                backup::opened(self.backup.as_ref(), id)?;
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
        Ok(())
    }

    /// A replica crashes that ordered something itself.
    pub(super) fn guest_looks_no_more(&mut self, of: usize) {
        self.guests.iter_mut().for_each(|guests| _ = guests.own.remove(&of));
    }

    /// The replica crashes that a guest's client waits for, which the client notices.
    pub(super) fn guest_hangs_up(&mut self, index: usize) {
        let Some(guests) = &mut self.guests else { return };
        (guests.clients[index].waits, guests.clients[index].reading) = (false, None);
        self.guest_thinks_later(index);
    }

    /// What the guest says of a replica's state.
    pub(super) fn check_guest(&self, of: usize) -> Checked {
        let (Some(guests), Some(life)) = (&self.guests, &self.machines[of].life) else { return Ok(()) };
        let Some(machine) = life.executor(FIRST).machine().guest() else { return Ok(()) };
        let time = InTime { elapsed: self.now.since(Moment::START), error: self.clock_error() };
        guests.guest.check_in_time(machine, time).map_err(|why| Violation {
            invariant: Invariant::Guest,
            detail: format!("r{} after slot {}: {why}", of + 1, life.executor(FIRST).applied()),
        })
    }

    /// What the guest says of the end, at the reference and at each replica that has executed all its commands.
    pub(super) fn check_guest_history(&self) -> Checked {
        let Some(guests) = &self.guests else { return Ok(()) };
        let answered = guests.history.iter().filter(|told| told.answer.is_some()).count();
        demand(answered + guests.expired > 0, Invariant::Liveness, || {
            "no command of the guest was answered".to_owned()
        })?;
        let check = |who: &str, machine: Option<&dyn AnyMachine>| {
            let machine = machine.expect("every machine hosts the guest");
            guests.guest.check_history(machine, &guests.history).map_err(|why| Violation {
                invariant: Invariant::Guest,
                detail: format!("at the end, by the state of {who}: {why}"),
            })
        };
        check("the reference", self.references[FIRST].machine().guest())?;
        let last = self.references[FIRST].last_for_guest();
        for (of, machine) in self.machines.iter().enumerate() {
            // A replica that is no member any more may lack something.
            let life = machine.life.as_ref().filter(|life| point_of(life.executor(FIRST)) >= last);
            if let Some(life) = life {
                self.check_state(of, FIRST)?;
                check(&machine.id.to_string(), life.executor(FIRST).machine().guest())?;
            }
        }
        Ok(())
    }
}

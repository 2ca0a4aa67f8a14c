//! The clients of a guest's state machine: they send commands to any node, of any group that clients use, and read at
//! any node. They wait for no answer before the next question, and ask for nothing twice.

use std::{rc::Rc, time::Duration};

use bytes::Bytes;
use fastrand::Rng;
use synod_host::Input;
use synod_wire::{CommandKind, GroupId};

use super::{
    Happening, World,
    clients::Ask,
    machine::{Waiter, id},
};
use crate::{
    check::{Answered, Checked, Invariant, Violation, demand},
    clock::Moment,
    guest::{AnyGuest, AnyMachine, InTime, Told, payload, query_payload, text_of},
    network::between,
};

/// Commands of a run.
const COMMANDS_MAX: usize = 300;
/// One of so many questions is a read, if the guest has queries.
const READ_EVERY: u8 = 4;
const THINK: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(20));

/// What a guest's clients have asked for.
#[derive(Debug)]
pub(super) struct Guests {
    pub guest: Rc<dyn AnyGuest>,
    history: Vec<Told>,
    /// What was read, each with the batch through which the answer has to reflect everything.
    reads: Vec<(Bytes, u64)>,
    /// Reads that were answered.
    pub read: usize,
    /// The last batch of which a client knows that its commands are executed.
    known: u64,
    rng: Rng,
    /// What clients read is drawn apart, so that they send the same commands as without.
    readers: Rng,
}

impl Guests {
    pub fn new(guest: Rc<dyn AnyGuest>, seed: u64) -> Guests {
        // Not from the same source as the rest, which is as it was without a guest.
        Guests {
            guest,
            history: Vec::new(),
            reads: Vec::new(),
            read: 0,
            known: 0,
            rng: Rng::with_seed(seed ^ 0x9_0e57),
            readers: Rng::with_seed(seed ^ 0x4e_ad_e4),
        }
    }

    /// Whether a client reads next, and what.
    fn draw_query(&mut self) -> Option<Bytes> {
        if self.readers.u8(0..READ_EVERY) > 0 { None } else { self.guest.query(&mut self.readers) }
    }
}

impl World {
    pub(super) fn guest_thinks_later(&mut self) {
        let Some(guests) = &mut self.guests else { return };
        let wait = between(&mut guests.rng, THINK.0, THINK.1);
        self.queue.push(self.now + wait, Happening::GuestThinks);
    }

    /// A client of the guest sends a command, or reads.
    pub(super) fn guest_thinks(&mut self) -> Checked {
        let Some(guests) = &mut self.guests else { return Ok(()) };
        if self.clients.closing || guests.history.len() >= COMMANDS_MAX {
            return Ok(());
        }
        let of = guests.rng.usize(0..self.machines.len());
        let group = GroupId(self.plan.busy[guests.rng.usize(0..self.plan.busy.len())]);
        let runs = self.machines[of].life.is_some();
        if runs && let Some(query) = guests.draw_query() {
            let (read, payload) = (guests.reads.len(), query_payload(&query));
            self.trace.line(self.now, || format!("g    → r{} read {}", of + 1, text_of(&query)));
            guests.reads.push((query, guests.known));
            self.give(of, Input::Query(group, Ask::of_guest(read, payload)));
            self.end_burst(of)?;
        } else if runs {
            let (at, command) = (guests.history.len(), guests.guest.command(&mut guests.rng));
            let payload = payload(at as u64, &command);
            self.trace.line(self.now, || {
                format!("g    → r{} {group} command {at}: {}", of + 1, guests.guest.describe(&command))
            });
            // It is the only one that ever asks for this.
            let told = Told { client: at, command, asked_at: self.clients.stamp(), answer: None };
            guests.history.push(told);
            let (kind, client) = (CommandKind::Apply, Waiter::Guest(at));
            self.give(of, Input::Command { group, kind, session: None, payload, client });
            self.end_burst(of)?;
        }
        self.guest_thinks_later();
        Ok(())
    }

    /// A command of the guest was executed, in this batch of the common order.
    pub(super) fn guest_told(&mut self, at: usize, order: u64, reply: Bytes) {
        let stamp = self.clients.stamp();
        self.trace.line(self.now, || format!("g    hears of command {at}: {}", text_of(&reply)));
        if let Some(guests) = &mut self.guests {
            guests.history[at].answer = Some((stamp, reply));
            guests.known = guests.known.max(order);
        }
    }

    /// A node has answered a read of the guest's clients.
    pub(super) fn guest_read(&mut self, of: usize, read: usize, answer: &Bytes) -> Checked {
        let Some(guests) = &mut self.guests else { return Ok(()) };
        self.trace.line(self.now, || format!("g    hears {}", text_of(answer)));
        let (query, from) = &guests.reads[read];
        let answered = Answered { query, answer, from: *from, through: self.order.len() };
        let seen = self.order.answers(of, &answered)?;
        guests.known = guests.known.max(seen);
        guests.read += 1;
        Ok(())
    }

    /// What the guest says of a node's state.
    pub(super) fn check_guest(&self, of: usize) -> Checked {
        let (Some(guests), Some(life)) = (&self.guests, &self.machines[of].life) else { return Ok(()) };
        let executor = life.merged.executor();
        let time = InTime { elapsed: self.now.since(Moment::START), error: self.clock_error() };
        guests.guest.check_in_time(hosted(executor.machine().guest()), time).map_err(|why| Violation {
            invariant: Invariant::Guest,
            detail: format!("r{} after batch {}: {why}", of + 1, executor.cut().order),
        })
    }

    /// What the guest says of the end, at the reference and at each node that has executed all its commands.
    pub(super) fn check_guest_history(&self) -> Checked {
        let Some(guests) = &self.guests else { return Ok(()) };
        let answered = guests.history.iter().any(|told| told.answer.is_some());
        demand(answered, Invariant::Liveness, || "no command of the guest was answered".to_owned())?;
        let check = |who: &str, machine: Option<&dyn AnyMachine>| {
            guests.guest.check_history(hosted(machine), &guests.history).map_err(|why| Violation {
                invariant: Invariant::Guest,
                detail: format!("at the end, by the state of {who}: {why}"),
            })
        };
        check("the reference", self.order.machine().guest())?;
        let last = self.order.last_for_guest();
        for (of, machine) in self.machines.iter().enumerate() {
            // A node that has left may lack something.
            let executor = machine.life.as_ref().map(|life| life.merged.executor());
            if let Some(executor) = executor.filter(|executor| executor.cut().order >= last) {
                self.check_state(of)?;
                check(&id(of).to_string(), executor.machine().guest())?;
            }
        }
        Ok(())
    }
}

fn hosted(machine: Option<&dyn AnyMachine>) -> &dyn AnyMachine {
    machine.expect("every machine hosts the guest")
}

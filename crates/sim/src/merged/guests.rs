//! The clients of a guest's state machine: they send commands to any node, of any group that clients use, wait for no
//! answer before the next one, and ask for nothing twice.

use std::{rc::Rc, time::Duration};

use bytes::Bytes;
use fastrand::Rng;
use synod_replica::Event;
use synod_wire::{CommandKind, GroupId};

use super::{Happening, World, machine::Waiter};
use crate::{
    check::{Checked, Invariant, Violation, demand},
    clock::Moment,
    guest::{AnyGuest, AnyMachine, InTime, Told, payload},
    network::between,
};

/// Commands of a run.
const COMMANDS_MAX: usize = 300;
const THINK: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(20));

/// What a guest's clients have asked for.
#[derive(Debug)]
pub(super) struct Guests {
    pub guest: Rc<dyn AnyGuest>,
    history: Vec<Told>,
    rng: Rng,
}

impl Guests {
    pub fn new(guest: Rc<dyn AnyGuest>, seed: u64) -> Guests {
        // Not from the same source as the rest, which is as it was without a guest.
        Guests { guest, history: Vec::new(), rng: Rng::with_seed(seed ^ 0x9_0e57) }
    }
}

impl World {
    pub(super) fn guest_thinks_later(&mut self) {
        let Some(guests) = &mut self.guests else { return };
        let wait = between(&mut guests.rng, THINK.0, THINK.1);
        self.queue.push(self.now + wait, Happening::GuestThinks);
    }

    /// A client of the guest sends a command.
    pub(super) fn guest_thinks(&mut self) -> Checked {
        let request = self.next_request();
        let Some(guests) = &mut self.guests else { return Ok(()) };
        if self.clients.closing || guests.history.len() >= COMMANDS_MAX {
            return Ok(());
        }
        let of = guests.rng.usize(0..self.machines.len());
        let group = GroupId(self.plan.busy[guests.rng.usize(0..self.plan.busy.len())]);
        if let Some(life) = &mut self.machines[of].life {
            let (at, command) = (guests.history.len(), guests.guest.command(&mut guests.rng));
            let payload = payload(at as u64, &command);
            // It is the only one that ever asks for this.
            let told = Told { client: at, command, asked_at: self.clients.stamp(), answer: None };
            guests.history.push(told);
            life.hosted[usize::from(group.0)].requests.insert(request, Waiter::Guest(at));
            self.step(
                of,
                group,
                Event::Request { request, kind: CommandKind::Apply, session: None, payload },
            );
            self.end_burst(of)?;
        }
        self.guest_thinks_later();
        Ok(())
    }

    /// A command of the guest was executed.
    pub(super) fn guest_told(&mut self, at: usize, reply: Bytes) {
        let stamp = self.clients.stamp();
        if let Some(guests) = &mut self.guests {
            guests.history[at].answer = Some((stamp, reply));
        }
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

    /// What the guest says of the end.
    pub(super) fn check_guest_history(&self) -> Checked {
        let Some(guests) = &self.guests else { return Ok(()) };
        let answered = guests.history.iter().any(|told| told.answer.is_some());
        demand(answered, Invariant::Liveness, || "no command of the guest was answered".to_owned())?;
        let checked = guests.guest.check_history(hosted(self.order.machine().guest()), &guests.history);
        checked.map_err(|detail| Violation { invariant: Invariant::Guest, detail })
    }
}

fn hosted(machine: Option<&dyn AnyMachine>) -> &dyn AnyMachine {
    machine.expect("every machine hosts the guest")
}

//! The state machine of the simulated replicas where there is no store: that of the guest.

use std::{
    cell::RefCell,
    io::{self, Read},
    rc::Rc,
    time::Duration,
};

use bytes::Bytes;
use synod_replica::{Answer, Context, Frozen, StateMachine};
use synod_wire::SessionId;

use super::{AnyGuest, AnyMachine, Input, command_in, query_in};

/// The machine of a guest, if there is one.
#[derive(Debug)]
pub(crate) struct Hosting {
    guest: Option<Box<dyn AnyMachine>>,
    /// What the machine was given since it was last taken, at the reference.
    inputs: Option<RefCell<Vec<Input>>>,
}

impl Hosting {
    /// That of the reference, which keeps what the guest's machine is given.
    pub(crate) fn of_reference(guest: Option<&Rc<dyn AnyGuest>>) -> Hosting {
        Hosting { inputs: guest.map(|_| RefCell::default()), ..Hosting::of(guest) }
    }

    /// That of a replica.
    pub(crate) fn of(guest: Option<&Rc<dyn AnyGuest>>) -> Hosting {
        Hosting { guest: guest.map(|guest| guest.machine()), inputs: None }
    }

    /// The same with the state of a backup; there is no store to execute commands.
    pub(crate) fn with_backup(mut self, _: &[Bytes], guest: Option<&Rc<dyn AnyGuest>>) -> Hosting {
        self.guest = guest.map(|guest| guest.backup());
        self
    }

    /// What the guest's machine was given since the last call.
    pub(crate) fn take_inputs(&self) -> Vec<Input> {
        self.inputs.as_ref().map(RefCell::take).unwrap_or_default()
    }

    pub(crate) fn guest(&self) -> Option<&dyn AnyMachine> {
        self.guest.as_deref()
    }
}

impl StateMachine for Hosting {
    fn apply(&mut self, command: &Bytes, context: &Context) -> Bytes {
        // Nobody sends anything else.
        let (Some(guest), Some(command)) = (&mut self.guest, command_in(command)) else {
            return Bytes::new();
        };
        let reply = guest.apply(&command, context);
        if let Some(inputs) = &mut self.inputs {
            inputs.get_mut().push(Input::Command(command, *context));
        }
        reply
    }

    fn clock_moved(&mut self, context: &Context, mover: SessionId) {
        if let Some(guest) = &mut self.guest {
            guest.clock_moved(context, mover);
            if let Some(inputs) = &mut self.inputs {
                inputs.get_mut().push(Input::Clock(mover, *context));
            }
        }
    }

    fn waits_for(&self) -> Option<Duration> {
        self.guest.as_ref().and_then(|guest| guest.waits_for())
    }

    fn query(&self, query: &Bytes) -> Bytes {
        match (&self.guest, query_in(query)) {
            (Some(guest), Some(query)) => guest.query(&query),
            _ => Bytes::new(),
        }
    }

    fn answer(&self, query: &Bytes) -> Answer {
        match (&self.guest, query_in(query)) {
            (Some(guest), Some(query)) => guest.answer(&query),
            _ => Answer::Whole(Bytes::new()),
        }
    }

    fn freeze(&self) -> Box<dyn Frozen> {
        self.guest.as_ref().map_or_else(|| Box::new(Bytes::new()) as Box<dyn Frozen>, |guest| guest.freeze())
    }

    fn restore(&mut self, snapshot: &mut dyn Read) -> io::Result<()> {
        self.guest.as_mut().map_or(Ok(()), |guest| guest.restore(snapshot))
    }

    fn digest(&self) -> u64 {
        self.guest.as_ref().map_or(0, |guest| guest.digest())
    }
}

//! Where there is no store, nobody uses or watches it. The clients of a guest are the only ones, and some of them find
//! out whether each member serves.

use std::{collections::BTreeSet, rc::Rc};

use fastrand::Rng;
use synod_replica::{Outcome, RequestError};
use synod_wire::GroupId;

use super::{Happening, World, guests::Guests};
use crate::{
    check::Violation,
    guest::{AnyGuest, Hosting},
    plan::Plan,
};

/// What serves those who watch at a replica: nothing.
pub(crate) type Served = ();

/// A snapshot from another replica has replaced the state of one; nobody has to be told.
pub(super) fn replaced(_: &mut Served) {}

/// The state machine of the reference.
pub(super) fn reference(_: &Plan, guest: Option<&Rc<dyn AnyGuest>>) -> Hosting {
    Hosting::of_reference(guest)
}

/// Whether something is on its way from a client to a replica: clients of guests are where the replicas are.
pub(super) fn is_question(_: &Happening) -> bool {
    false
}

/// What counts the questions of a guest's clients.
#[derive(Debug, Default)]
pub(crate) struct Clients {
    stamp: u64,
}

impl Clients {
    pub(crate) fn new(_: &Plan, _: Rng) -> Clients {
        Clients::default()
    }

    pub(super) fn stamp(&mut self) -> u64 {
        self.stamp += 1;
        self.stamp
    }

    /// The operations of the store's clients, and how many of them have an unknown outcome.
    pub(crate) fn counts(&self) -> (usize, usize) {
        (0, 0)
    }
}

/// The replicas, by index, that have served a guest's clients since somebody began to look.
#[derive(Debug, Default)]
pub(crate) struct Probes {
    /// Those that have got a client.
    asked: BTreeSet<usize>,
    written: BTreeSet<usize>,
    read: BTreeSet<usize>,
}

impl Probes {
    /// A replica tells what became of a client's command.
    pub(super) fn answered(&mut self, of: usize, outcome: &Outcome) {
        // One that lives on snapshots, since no peer keeps the slots, hears no more of its commands than that they were
        // executed.
        if matches!(outcome, Outcome::Reply(_) | Outcome::Error(RequestError::OutcomeUnknown)) {
            self.written.insert(of);
        }
    }

    /// A replica has answered a query.
    pub(super) fn read(&mut self, of: usize) {
        self.read.insert(of);
    }
}

impl Guests {
    /// Whether a replica has executed a command, or has opened a session.
    pub(super) fn has_written(&self, of: usize) -> bool {
        self.probes.written.contains(&of)
    }

    /// The same, and has answered a query, if the guest has any.
    pub(super) fn has_served(&self, of: usize) -> bool {
        self.has_written(of) && (!self.queries || self.probes.read.contains(&of))
    }
}

impl World {
    /// A state machine in its initial state, and what serves those who watch it.
    pub(super) fn hosting(&self) -> (Hosting, Served) {
        (Hosting::of(self.guests.as_ref().map(|guests| &guests.guest)), ())
    }

    /// There is nothing to be put into an order.
    pub(super) fn check_clients(&self) -> Result<bool, Violation> {
        Ok(false)
    }

    /// Gives each member a client that asks there, and tries until it has served.
    pub(super) fn begin_probing(&mut self) {
        if let Some(guests) = &mut self.guests {
            guests.probes = Probes::default();
        }
        self.probe_members();
    }

    /// Gives replicas that have become members since such a client, too.
    pub(super) fn probe_members(&mut self) {
        for (_, of) in self.probes_missing() {
            let Some(guests) = &mut self.guests else { return };
            if guests.probes.asked.insert(of) {
                let client = guests.add_probe(of);
                self.queue.push(self.now, Happening::GuestThinks { client });
            }
        }
    }

    /// The members that have not served yet.
    pub(super) fn probes_missing(&self) -> Vec<(GroupId, usize)> {
        let Some(guests) = &self.guests else { return Vec::new() };
        let missing = |(_, of): &(GroupId, usize)| !self.is_out(*of) && !guests.has_served(*of);
        self.members().into_iter().filter(missing).collect()
    }
}

//! Sessions between machines, and what a message passes on its way: a card, a link, and another card.

use std::time::Duration;

use synod_consensus::Link as PeerLink;
use synod_replica::{Event, PeerMessage, RequestError};
use synod_wire::{GroupId, ReplicaId, Time};

use super::{super::machine::Given, Happening, World};

/// What arrives for the replica of a group, if its session still exists.
pub(super) struct Arrival {
    pub(super) from: ReplicaId,
    /// The same replica as `from`, if a client sends it.
    pub(super) to: ReplicaId,
    pub(super) session: u64,
    pub(super) group: GroupId,
    pub(super) given: Box<Given>,
    /// The bytes that the receiver's network card has yet to take in.
    pub(super) bytes: usize,
}

impl World<'_> {
    /// A session begins, or ends if the link is cut.
    pub(super) fn connect(&mut self, from: ReplicaId, to: ReplicaId) {
        let (one, other) = (self.machines[&from].place, self.machines[&to].place);
        if self.setup.cuts.iter().any(|&cut| cut == (one, other) || cut == (other, one)) {
            return self.tell_of_link(from, to, PeerLink::Down);
        }
        self.wires.entry((from, to)).or_insert((self.now, 0)).1 += 1;
        self.tell_of_link(from, to, PeerLink::Up);
    }

    /// Tells the replicas of the groups that two machines have in common about a session from one to the other.
    fn tell_of_link(&mut self, from: ReplicaId, to: ReplicaId, link: PeerLink) {
        for group in self.in_common(from, to) {
            self.give(from, group, Given::Event(Event::Link { peer: to, link }));
        }
    }

    /// The groups that two machines have in common.
    fn in_common(&self, one: ReplicaId, other: ReplicaId) -> Vec<GroupId> {
        let hosts =
            |id| move |group: &GroupId| self.machines.get(&id).is_some_and(|machine| machine.hosts(*group));
        self.numbers().filter(hosts(one)).filter(hosts(other)).collect()
    }

    /// A message, whose record is durable, leaves a machine.
    pub(super) fn send(
        &mut self,
        from: ReplicaId,
        to: ReplicaId,
        group: GroupId,
        (message, bytes): (PeerMessage, usize),
        leaves: Time,
    ) {
        // The system does not send more than a little to a machine that does not answer, and that does not count.
        if self.machines.get(&to).is_none_or(|machine| machine.retired) {
            return;
        }
        let leaves = self.through_card(from, bytes, leaves);
        let unread = self.for_card(to, bytes);
        let counts = !self.is_over();
        if counts {
            *self.carried.entry((from, to)).or_default() += bytes as f64;
        }
        for end in [from, to] {
            if let Some(machine) = self.machines.get_mut(&end).filter(|_| counts) {
                machine.usage.messages += 1.0;
            }
        }
        let (Some(source), Some(target)) = (self.machines.get(&from), self.machines.get(&to)) else { return };
        let link = self.links[source.place][target.place];
        let Some((busy_until, session)) = self.wires.get_mut(&(from, to)) else { return };
        if link.loss > 0.0 && self.random.f64() < link.loss {
            // The session ends, its messages in flight are lost, and a new one begins.
            *session += 1;
            let session = *session;
            self.tell_of_link(from, to, PeerLink::Down);
            for group in self.in_common(from, to) {
                let given = Box::new(Given::Event(Event::Link { peer: to, link: PeerLink::Up }));
                let up = Arrival { from, to: from, session, group, given, bytes: 0 };
                self.at(leaves + link.delay * 2, Happening::Arrive(up));
            }
            return;
        }
        let session = *session;
        let on_wire = match link.bytes_per_second {
            0 => 0.0,
            rate => bytes as f64 / rate as f64,
        };
        let jitter = link.jitter.mul_f64(self.random.f64());
        let through = leaves.max(*busy_until) + Duration::from_secs_f64(on_wire);
        *busy_until = through;
        // A stream keeps its order even if one message is delayed for longer than the next.
        let arrives = through + link.delay + jitter;
        *busy_until = (*busy_until).max(arrives - link.delay);
        let given = Box::new(Given::Message(from, message, bytes));
        self.at(arrives, Happening::Arrive(Arrival { from, to, session, group, given, bytes: unread }));
    }

    /// A message has come to the receiver's network card, or through it.
    pub(super) fn arrive(&mut self, arrival: Arrival) {
        let Arrival { from, to, session, group, given, bytes } = arrival;
        if bytes > 0 {
            // The card takes in one byte after another, from when the first could arrive.
            let time = self.setup.hardware.card.time(bytes);
            let Some(machine) = self.machines.get_mut(&to) else { return };
            machine.receives_until = self.now.max(machine.receives_until + time);
            let at = machine.receives_until;
            if at > self.now {
                let whole = Arrival { from, to, session, group, given, bytes: 0 };
                return self.at(at, Happening::Arrive(whole));
            }
        }
        let lasts = self.wires.get(&(from, to)).is_some_and(|(_, present)| *present == session);
        match *given {
            Given::Command(.., client) if self.machines[&to].retired => {
                // A server that was removed has stopped, so its clients get an error and turn to another.
                self.at(self.now, Happening::Answer((group, client, Err(RequestError::Stopping))));
            }
            given if lasts || from == to => {
                if let Given::Message(from, message, _) = &given {
                    self.stopwatch.arrived(self.now, *from, message, self.setup.replicas);
                }
                self.give(to, group, given);
            }
            _ => {}
        }
    }

    /// A replica's network card sends this many bytes, after all that it was given before. Returns when the last of
    /// them has left.
    pub(super) fn through_card(&mut self, id: ReplicaId, bytes: usize, leaves: Time) -> Time {
        let card = &self.setup.hardware.card;
        let counts = !self.is_over();
        let machine = self.machines.get_mut(&id).expect("a machine that has started");
        if counts {
            machine.usage.sent += bytes as f64;
        }
        if !card.is_limited() {
            return leaves;
        }
        machine.sends_until = machine.sends_until.max(leaves) + card.time(bytes);
        machine.sends_until
    }

    /// The bytes of a message that the receiver's card has yet to take in when they arrive.
    pub(super) fn for_card(&mut self, to: ReplicaId, bytes: usize) -> usize {
        let counts = !self.is_over();
        if let Some(machine) = self.machines.get_mut(&to).filter(|_| counts) {
            machine.usage.received += bytes as f64;
        }
        if self.setup.hardware.card.is_limited() { bytes } else { 0 }
    }
}

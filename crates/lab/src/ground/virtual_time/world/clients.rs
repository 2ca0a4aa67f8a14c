//! What the clients of the groups propose, and the answers that they get.

use std::time::Duration;

use bytes::Bytes;
use synod_replica::RequestError;
use synod_wire::{Ballot, COMMAND_HEADER_BYTES, CommandKind, Epoch, GroupId, ReplicaId, Time};

use super::{
    super::{
        client::Request,
        machine::{Given, Machine},
    },
    Answer, Happening, World,
    links::Arrival,
    operator::OPERATOR,
};
use crate::{ground::Asked, study::LabError};

/// The pause before a refused proposal is sent again.
const RESEND_DELAY: Duration = Duration::from_millis(10);

impl World<'_> {
    /// The clients of a group learn that a replica leads; the first time they begin.
    pub(super) fn hear(&mut self, group: GroupId, epoch: Epoch, ballot: Ballot, leader: ReplicaId) {
        let client = self.client(group);
        let first = client.leader().is_none();
        client.hear(epoch, ballot, leader);
        if first {
            let load = &self.seats(group).load;
            match load.rate {
                Some(_) => self.after(Duration::ZERO, Happening::Due(group)),
                None => (0..load.concurrent).for_each(|_| self.propose(group, None)),
            }
            if self.clients.iter().all(|client| client.leader().is_some()) {
                self.after(self.load().warm_up, Happening::Open);
            }
        }
    }

    /// The client of an open loop sends its next proposal.
    pub(super) fn due(&mut self, group: GroupId) {
        if let Some(rate) = self.seats(group).load.rate.filter(|_| !self.is_over()) {
            self.propose(group, None);
            let gap = -(1.0 - self.random.f64()).ln() / rate;
            self.after(Duration::from_secs_f64(gap), Happening::Due(group));
        }
    }

    /// Clients give up what waits for too long.
    pub(super) fn expire(&mut self) {
        for group in self.numbers() {
            let now = self.now;
            let expired = self.client(group).expire(now);
            if self.seats(group).load.rate.is_none() {
                (0..expired).for_each(|_| self.propose(group, None));
            }
        }
    }

    /// A client of a group makes a proposal: to the same replica as the client's last one, if that runs and any may be
    /// asked.
    fn propose(&mut self, group: GroupId, last: Option<ReplicaId>) {
        if self.is_over() {
            return;
        }
        let Some(replica) = self.choose(group, last) else { return };
        let now = self.now;
        let (number, value) = self.client(group).propose(now, replica);
        if self.groups.merge.is_some() {
            self.proposed[usize::from(group.0)].push(now);
        }
        self.ask(replica, group, number, value);
    }

    /// The replica that a client of a group asks.
    fn choose(&mut self, group: GroupId, last: Option<ReplicaId>) -> Option<ReplicaId> {
        let seats = self.seats(group);
        if seats.load.asked == Asked::Leader {
            return self.client(group).leader();
        }
        let runs = |id: &ReplicaId| {
            let takes = |machine: &Machine| machine.hosts(group) && !seats.learners.contains(&machine.place);
            self.machines.get(id).is_some_and(|machine| !machine.retired && takes(machine))
        };
        if let Some(last) = last.filter(runs) {
            return Some(last);
        }
        let running: Vec<_> = self.machines.keys().copied().filter(runs).collect();
        // Clients are distributed evenly at first.
        self.last_asked += 1;
        running.get(self.last_asked % running.len().max(1)).copied()
    }

    fn ask(&mut self, replica: ReplicaId, group: GroupId, number: Request, value: u64) {
        let Some(machine) = self.machines.get(&replica) else { return };
        let load = &self.seats(group).load;
        let there = self.way(group, machine.place).map_or(Duration::ZERO, |way| way.0);
        let mut payload = vec![0; load.value_bytes.max(8)];
        payload[..8].copy_from_slice(&value.to_le_bytes());
        let bytes = payload.len() + COMMAND_HEADER_BYTES;
        let bytes = if load.beside { 0 } else { self.for_card(replica, bytes) };
        let given = Box::new(Given::Command(CommandKind::Apply, Bytes::from(payload), number));
        let arrival = Arrival { from: replica, to: replica, session: 0, group, given, bytes };
        self.after(there, Happening::Arrive(arrival));
    }

    /// How long a command is on its way from a client of a group to a machine, and the answer on its way back.
    pub(super) fn way(&self, group: GroupId, place: usize) -> Result<(Duration, Duration), LabError> {
        if self.seats(group).load.beside {
            return Ok((Duration::ZERO, Duration::ZERO));
        }
        self.topology.client_way(place)
    }

    /// An answer has come. A client that shares processors with the replicas reads it later.
    pub(super) fn take_answer(&mut self, answer: Answer) {
        if self.processors.is_empty() {
            return self.answer(answer);
        }
        self.unread.push(answer);
        if self.unread.len() == 1 {
            let from = self.now.max(self.client_until);
            self.at(from, Happening::Read);
        }
    }

    /// The client reads what has come meanwhile together, and what it causes leaves together.
    pub(super) fn read(&mut self) {
        let answers = std::mem::take(&mut self.unread);
        let nanos = self.setup.hardware.costs.client_nanos * answers.len() as f64;
        let done = self.client_works(Duration::from_nanos(nanos as u64));
        self.at(done, Happening::Answers(answers));
    }

    pub(super) fn answer(&mut self, (group, number, answer): Answer) {
        if number.0 >= OPERATOR {
            return;
        }
        match answer {
            Ok(_) | Err(RequestError::OutcomeUnknown) => {
                let now = self.now;
                let asked = self.client(group).answered(now, number);
                if asked.is_some() && self.seats(group).load.rate.is_none() {
                    self.propose(group, asked);
                }
            }
            Err(_) => self.after(RESEND_DELAY, Happening::Resend(group, number)),
        }
    }

    pub(super) fn resend(&mut self, group: GroupId, number: Request) {
        let last = self.client(group).asked(number);
        let Some(replica) = self.choose(group, last) else { return };
        if let Some((number, value)) = self.client(group).resend(number, replica) {
            self.ask(replica, group, number, value);
        }
    }

    /// The client works for this long on the processors that it shares with the replicas, one thing after the other.
    /// Returns when it is done.
    fn client_works(&mut self, cost: Duration) -> Time {
        let from = self.now.max(self.client_until);
        // It stays on the processor that it has, if that waits for nothing else.
        let free = self.processors.iter_mut().filter(|until| **until <= from).max();
        let processor = match free {
            Some(processor) => processor,
            None => self.processors.iter_mut().min().expect("it shares some"),
        };
        *processor = from.max(*processor) + cost;
        self.client_until = *processor;
        self.client_until
    }
}

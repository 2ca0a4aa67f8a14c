//! Replica cores of Synod: a protocol with what surrounds it on a server.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use synod_consensus::{Options, ProtocolKind, Role};
use synod_replica::{Action, Event, Group, Recovered, Replica, RequestId, Settings, SnapshotInfo};
use synod_wire::{Batch, CommandKind, Incarnation, Lsn, ReplicaId, Time};

use crate::Cluster;

struct Cores {
    list: Vec<Core>,
    leader: usize,
    actions: Vec<Action>,
    began: Instant,
    /// How far time was advanced so that the election need not be waited for.
    skipped: Duration,
    /// Commands in a batch, once known.
    commands: u64,
}

struct Core {
    replica: Replica,
    inbox: VecDeque<Event>,
    deadline: Time,
    commands: u64,
}

pub fn start(kind: ProtocolKind, replicas: usize, outstanding: usize) -> Box<dyn Cluster> {
    let mut settings = Settings::default();
    settings.consensus = Options::of(kind);
    settings.consensus.window_max = outstanding;
    settings.snapshot_log_bytes = 16 << 20;
    settings.snapshot_slots = 1 << 20;
    settings.keep_slots = 100;
    let ids: Vec<_> = (1..=replicas as u64).map(ReplicaId).collect();
    let mut cores = Cores {
        list: Vec::new(),
        leader: 0,
        actions: Vec::new(),
        began: Instant::now(),
        skipped: Duration::ZERO,
        commands: 1,
    };
    let mut first = Vec::new();
    for &me in &ids {
        let recovered = Recovered {
            records: Vec::new(),
            last_lsn: Lsn::ZERO,
            snapshot: None,
            amnesia: false,
            birth: 1,
            incarnation: Incarnation(1),
            nonce: 0,
            met_all: true,
        };
        let group = Group::of(&settings.consensus, ids.iter().copied());
        let mut actions = Vec::new();
        let replica = Replica::start(settings.clone(), me, group, recovered, Time::ZERO, &mut actions);
        let up = ids
            .iter()
            .filter(|&&peer| peer != me)
            .map(|&peer| Event::Link { peer, link: synod_consensus::Link::Up });
        cores.list.push(Core { replica, inbox: up.collect(), deadline: Time::NEVER, commands: 0 });
        first.push(actions);
    }
    for (index, actions) in first.into_iter().enumerate() {
        cores.actions = actions;
        cores.carry_out(index);
    }
    loop {
        cores.skipped += Duration::from_millis(1);
        cores.round(Instant::now());
        let leads = |core: &Core| core.replica.status().protocol.role == Role::Leader;
        if let Some(leader) = cores.list.iter().position(leads)
            && cores.list.iter().all(|core| core.replica.status().protocol.view.leader == Some(ids[leader]))
        {
            cores.leader = leader;
            return Box::new(cores);
        }
    }
}

impl Cores {
    fn carry_out(&mut self, index: usize) {
        let (mut durable, mut executed) = (None, None);
        for action in self.actions.drain(..) {
            match action {
                Action::Append { lsn, .. } => durable = Some(lsn),
                Action::Send { to, message, .. } => {
                    let from = ReplicaId(index as u64 + 1);
                    for to in to.ids() {
                        let message = message.clone();
                        self.list[to.0 as usize - 1].inbox.push_back(Event::Receive { from, message });
                    }
                }
                Action::Execute { slot, batch, .. } => {
                    self.list[index].commands += batch.commands().count() as u64;
                    executed = Some(slot);
                }
                Action::Deadline(at) => self.list[index].deadline = at,
                Action::TakeSnapshot => {
                    // Nothing is executed, so there is nothing to write: only the log is trimmed.
                    let slot = self.list[index].replica.status().protocol.decided;
                    let taken = Event::SnapshotTaken(Some(SnapshotInfo { slot, bytes: 1 }));
                    self.list[index].inbox.push_back(taken);
                }
                _ => {}
            }
        }
        let inbox = &mut self.list[index].inbox;
        inbox.extend(durable.map(Event::Durable));
        inbox.extend(executed.map(|slot| Event::Executed { slot, clock: Default::default() }));
    }
}

impl Cluster for Cores {
    /// Passes the batch's commands on one by one; the replica makes batches of those that wait.
    fn propose(&mut self, batch: &Batch) {
        self.commands = 0;
        for command in batch.commands() {
            self.commands += 1;
            let event = Event::Request {
                request: RequestId(1),
                kind: CommandKind::Apply,
                session: None,
                payload: command.payload,
            };
            self.list[self.leader].inbox.push_back(event);
        }
    }

    fn round(&mut self, now: Instant) {
        let now = Time::ZERO + self.skipped + (now - self.began);
        for index in 0..self.list.len() {
            let core = &mut self.list[index];
            if core.deadline <= now {
                core.inbox.push_back(Event::Timer);
            }
            while let Some(event) = core.inbox.pop_front() {
                core.replica.step(now, event, &mut self.actions);
            }
            core.replica.flush(now, &mut self.actions);
            self.carry_out(index);
        }
    }

    fn decided(&self) -> (u64, u64) {
        let all = self.list.iter().map(|core| core.commands).min();
        (self.list[self.leader].commands / self.commands, all.unwrap_or(0) / self.commands)
    }
}

//! A protocol of Synod without a replica around it.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use synod_consensus::{Effect, Effects, Input, Members, Options, Protocol, ProtocolKind, Restart, Role};
use synod_wire::{Batch, Incarnation, Lsn, ReplicaId, Time};

use crate::Cluster;

struct Replicas {
    list: Vec<Replica>,
    /// Replica 0 of the benchmark: the one that leads.
    leader: usize,
    began: Instant,
    /// How far time was advanced so that the election need not be waited for.
    skipped: Duration,
}

struct Replica {
    protocol: Box<dyn Protocol>,
    effects: Effects,
    inbox: VecDeque<Input>,
    deadline: Time,
    decided: u64,
}

pub fn start(kind: ProtocolKind, replicas: usize, outstanding: usize) -> Box<dyn Cluster> {
    let mut options = Options::of(kind);
    options.window_max = outstanding;
    let ids: Vec<_> = (1..=replicas as u64).map(ReplicaId).collect();
    let list = ids.iter().map(|&me| {
        let mut effects = Effects::new(Lsn::ZERO);
        let members = Members::new(ids.iter().copied(), me);
        let protocol = options.start(members, Restart::first(Incarnation(1)), Time::ZERO, &mut effects);
        let peers = ids.iter().filter(|&&peer| peer != me);
        let inbox = peers.map(|&peer| Input::Link { peer, link: synod_consensus::Link::Up }).collect();
        Replica { protocol, effects, inbox, deadline: Time::NEVER, decided: 0 }
    });
    let mut cluster =
        Replicas { list: list.collect(), leader: 0, began: Instant::now(), skipped: Duration::ZERO };
    (0..replicas).for_each(|index| cluster.carry_out(index));
    loop {
        cluster.skipped += Duration::from_millis(1);
        cluster.round(Instant::now());
        // A leader that may propose, and that all others follow.
        let leads =
            |replica: &Replica| replica.protocol.status().role == Role::Leader && replica.protocol.room() > 0;
        if let Some(leader) = cluster.list.iter().position(leads)
            && cluster.list.iter().all(|one| one.protocol.status().view.leader == Some(ids[leader]))
        {
            cluster.leader = leader;
            return Box::new(cluster);
        }
    }
}

impl Replicas {
    fn carry_out(&mut self, index: usize) {
        let mut durable = None;
        let mut effects = std::mem::replace(&mut self.list[index].effects, Effects::new(Lsn::ZERO));
        for effect in effects.drain() {
            match effect {
                Effect::Append { lsn, .. } => durable = Some(lsn),
                Effect::Send { to, message, .. } => {
                    let from = ReplicaId(index as u64 + 1);
                    let mut give = |to: &ReplicaId, message| {
                        self.list[to.0 as usize - 1].inbox.push_back(Input::Receive { from, message });
                    };
                    // On a server one encoding goes to all; here the last receiver takes the message itself.
                    let (last, others) = to.ids().split_last().expect("a message has a receiver");
                    others.iter().for_each(|to| give(to, message.clone()));
                    give(last, message);
                }
                // The no-op that begins a ballot is not one of the benchmark's batches.
                Effect::Deliver { batch, .. } => self.list[index].decided += u64::from(!batch.is_noop()),
                Effect::Deadline(at) => self.list[index].deadline = at,
                _ => {}
            }
        }
        let replica = &mut self.list[index];
        replica.effects = effects;
        replica.inbox.extend(durable.map(Input::Durable));
    }
}

impl Cluster for Replicas {
    fn propose(&mut self, batch: &Batch) {
        let input = Input::Propose { batch: batch.clone(), awaited: false };
        self.list[self.leader].inbox.push_back(input);
    }

    fn round(&mut self, now: Instant) {
        let now = Time::ZERO + self.skipped + (now - self.began);
        for index in 0..self.list.len() {
            let replica = &mut self.list[index];
            if replica.deadline <= now {
                replica.inbox.push_back(Input::Timer);
            }
            while let Some(input) = replica.inbox.pop_front() {
                replica.protocol.step(now, input, &mut replica.effects);
            }
            replica.protocol.flush(now, &mut replica.effects);
            self.carry_out(index);
        }
    }

    fn decided(&self) -> (u64, u64) {
        let all = self.list.iter().map(|replica| replica.decided).min();
        (self.list[self.leader].decided, all.unwrap_or(0))
    }
}

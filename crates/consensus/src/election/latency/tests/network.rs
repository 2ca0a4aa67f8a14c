//! The model: members with their elections, links with delays and losses, disks that may hang.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
    time::Duration,
};

use fastrand::Rng;
use synod_wire::{Ballot, Lsn, ReplicaId, Slot, Time};

use super::super::{rules::UNREACHABLE, *};
use crate::{Effect, ElectionKind, Members, Message as Any, VoterSets, multipaxos};

pub(super) const TIMEOUT: Duration = Duration::from_millis(1500);
const HEARTBEAT: Duration = Duration::from_millis(100);

/// What travels between members.
#[derive(Clone, Debug)]
pub(super) enum Sent {
    Election(Message),
    /// Phase 1 and its answer, in one: the receiver follows if it has promised nothing higher.
    Prepare(Ballot),
    Promise(Ballot),
    Heartbeat(Ballot),
    HeartbeatAnswer(Ballot),
    TakeOver,
    /// A member's own record is durable.
    Durable(Lsn),
    /// A member's own promise is durable, so that it asks the others for theirs.
    Promised(Ballot),
}

/// A member and what the protocol around it knows.
pub(super) struct Member {
    id: ReplicaId,
    pub(super) election: LatencyAware,
    promised: Ballot,
    /// Members that promised the ballot in which this one tries to lead, or leads.
    promises: Vec<ReplicaId>,
    pub(super) leads: bool,
    heartbeat_at: Time,
    pub(super) is_up: bool,
    /// Its last record.
    record: Lsn,
    /// Whether nothing becomes durable there.
    pub(super) hangs: bool,
}

/// Members, and what is on its way between them.
pub(super) struct Network {
    pub(super) now: Time,
    pub(super) members: Vec<Member>,
    /// One-way delays by sender and receiver, in nanoseconds.
    pub(super) delays: Vec<Vec<u64>>,
    pub(super) jitter: u64,
    /// How many of a million messages are lost, by sender and receiver.
    pub(super) losses: Vec<Vec<u64>>,
    options: Options,
    rng: Rng,
    count: u64,
    on_the_way: BinaryHeap<Reverse<(Time, u64)>>,
    pub(super) sent: BTreeMap<u64, (usize, usize, Sent)>,
    /// When a member began to lead, and which.
    pub(super) changes: Vec<(Time, ReplicaId)>,
    /// How long no member led that a majority was up for, since the first one began to.
    pub(super) nobody_led: Duration,
    /// The sum of the leader's usual majority times, in nanoseconds, each as long as it was so in seconds.
    pub(super) majority_times: f64,
    /// A member with bursts of work: of each period it takes nothing and sends nothing during the first part.
    pub(super) busy: Option<(usize, Duration, Duration)>,
}

pub(super) fn nanos(millis: u64) -> u64 {
    millis * 1_000_000
}

impl Network {
    /// `delays` in milliseconds.
    pub(super) fn new(
        seed: u64,
        delays: &[Vec<u64>],
        tolerance: Duration,
        misses: u32,
        loss_percent: u64,
    ) -> Network {
        Network::with(None, seed, delays, Tuning { tolerance, misses, ..Tuning::default() }, loss_percent)
    }

    /// The same with a bug.
    pub(super) fn with(
        planted: Option<Bug>,
        seed: u64,
        delays: &[Vec<u64>],
        tuning: Tuning,
        loss_percent: u64,
    ) -> Network {
        let count = delays.len() as u64;
        let ids = || (1..=count).map(ReplicaId);
        let mut options = Options { election: ElectionKind::Latency, ..Options::default() };
        (options.election_timeout, options.heartbeat_interval) = (TIMEOUT, HEARTBEAT);
        (options.latency, options.planted) = (tuning, planted.map(crate::Bug::LatencyElection));
        let member = |id| Member {
            id,
            election: LatencyAware::new(&options, Members::new(ids(), id), Time::ZERO),
            promised: Ballot::ZERO,
            promises: Vec::new(),
            leads: false,
            heartbeat_at: Time::NEVER,
            is_up: true,
            record: Lsn::ZERO,
            hangs: false,
        };
        Network {
            now: Time::ZERO,
            members: ids().map(member).collect(),
            delays: delays.iter().map(|row| row.iter().map(|&millis| nanos(millis)).collect()).collect(),
            jitter: tuning.tolerance.as_nanos() as u64,
            losses: vec![vec![loss_percent * 10_000; delays.len()]; delays.len()],
            options: options.clone(),
            rng: Rng::with_seed(seed),
            count: 0,
            on_the_way: BinaryHeap::new(),
            sent: BTreeMap::new(),
            changes: Vec::new(),
            nobody_led: Duration::ZERO,
            majority_times: 0.0,
            busy: None,
        }
    }

    fn send(&mut self, from: usize, to: usize, sent: Sent) {
        if self.rng.u64(0..1_000_000) < self.losses[from][to] {
            return;
        }
        let usual = self.delays[from][to];
        let delay = (usual + self.rng.u64(0..=2 * self.jitter)).saturating_sub(self.jitter).max(1);
        let arrives = self.when_free(from, self.now) + Duration::from_nanos(delay);
        self.arrives(self.when_free(to, arrives), from, to, sent);
    }

    /// When a member that may be busy has time.
    fn when_free(&self, member: usize, at: Time) -> Time {
        match self.busy {
            Some((busy, period, burst)) if busy == member => {
                let within = Duration::from_nanos(at.as_nanos() % period.as_nanos() as u64);
                at + burst.saturating_sub(within)
            }
            _ => at,
        }
    }

    fn arrives(&mut self, at: Time, from: usize, to: usize, sent: Sent) {
        self.count += 1;
        self.on_the_way.push(Reverse((at, self.count)));
        self.sent.insert(self.count, (from, to, sent));
    }

    /// A member writes something, which becomes durable unless its disk hangs.
    fn write(&mut self, at: usize, sent: Sent) {
        if !self.members[at].hangs {
            self.arrives(self.now + Duration::from_millis(1), at, at, sent);
        }
    }

    fn broadcast(&mut self, from: usize, sent: &Sent) {
        for to in (0..self.members.len()).filter(|&to| to != from) {
            self.send(from, to, sent.clone());
        }
    }

    fn carry(&mut self, from: usize, mut effects: Effects) {
        self.members[from].record = effects.last_lsn();
        for effect in effects.drain() {
            match effect {
                Effect::Send { to, message: Any::Election(message), .. } => {
                    for to in to.ids() {
                        self.send(from, to.0 as usize - 1, Sent::Election(message.clone()));
                    }
                }
                Effect::Append { lsn, .. } => self.write(from, Sent::Durable(lsn)),
                _ => panic!("an election sends messages of its own and writes a promise again: {effect:?}"),
            }
        }
    }

    pub(super) fn try_to_lead(&mut self, at: usize, ballot: Ballot) {
        let now = self.now;
        let member = &mut self.members[at];
        (member.promised, member.leads, member.promises) = (ballot, false, vec![member.id]);
        member.election.promised(ballot, now);
        member.election.tried();
        self.write(at, Sent::Promised(ballot));
    }

    /// An operator asks a member that leads to let another lead.
    pub(super) fn transfer(&mut self, at: usize, to: usize) {
        let (now, id) = (self.now, self.members[to].id);
        self.members[at].election.wishes(id, now);
        self.send(at, to, Sent::TakeOver);
    }

    /// A member that does not lead stands if it should.
    fn stand(&mut self, at: usize, effects: &mut Effects) {
        let now = self.now;
        let member = &mut self.members[at];
        if member.leads {
            return;
        }
        if let Some(ballot) = member.election.candidacy(now, member.promised, effects) {
            self.try_to_lead(at, ballot);
        }
    }

    fn receive(&mut self, from: usize, at: usize, sent: Sent) {
        let (now, sender) = (self.now, self.members[from].id);
        let member = &mut self.members[at];
        match sent {
            Sent::Election(message) => {
                let mut effects = Effects::new(member.record);
                member.election.receive(now, sender, &message, &mut effects);
                self.stand(at, &mut effects);
                self.carry(at, effects);
            }
            Sent::Promised(ballot) if ballot == member.promised => self.broadcast(at, &Sent::Prepare(ballot)),
            Sent::Durable(lsn) => member.election.durable(lsn),
            Sent::Prepare(ballot) if ballot > member.promised => {
                (member.promised, member.leads) = (ballot, false);
                member.election.promised(ballot, now);
                self.send(at, from, Sent::Promise(ballot));
            }
            Sent::Promise(ballot) if ballot == member.promised => {
                member.election.answered(sender, now);
                member.promises.push(sender);
                if !member.leads && member.promises.len() > self.delays.len() / 2 {
                    (member.leads, member.heartbeat_at) = (true, now);
                    member.election.leads(now);
                    let id = member.id;
                    self.changes.push((now, id));
                }
            }
            Sent::Heartbeat(ballot) if ballot >= member.promised => {
                if ballot > member.promised {
                    (member.promised, member.leads) = (ballot, false);
                    member.election.promised(ballot, now);
                }
                member.election.heard_leader(now);
                self.send(at, from, Sent::HeartbeatAnswer(ballot));
            }
            Sent::HeartbeatAnswer(ballot) if ballot == member.promised && member.leads => {
                member.election.answered(sender, now);
            }
            Sent::TakeOver if member.promised.replica == sender => {
                let mut effects = Effects::new(member.record);
                let promise = multipaxos::Record::Promised(member.promised).into();
                assert!(!member.election.asked_to_lead(now, promise, Slot::ZERO, &mut effects));
                member.election.decided(Slot::ZERO, Slot::ZERO, false);
                self.carry(at, effects);
            }
            _ => {}
        }
    }

    fn timer(&mut self, at: usize) {
        let now = self.now;
        let member = &mut self.members[at];
        let mut effects = Effects::new(member.record);
        member.election.on_timer(now, true, &mut effects);
        let mut heir = None;
        if !member.leads {
            self.stand(at, &mut effects);
        } else if let Advice::HandTo(better) = member.election.advice(now) {
            heir = Some(better);
        } else if member.election.advice(now) == Advice::Yield {
            member.leads = false;
            member.election.gave_up(now);
        }
        self.carry(at, effects);
        let member = &mut self.members[at];
        if member.leads && now >= member.heartbeat_at {
            member.heartbeat_at = now + HEARTBEAT;
            let ballot = member.promised;
            self.broadcast(at, &Sent::Heartbeat(ballot));
        }
        if let Some(heir) = heir.filter(|heir| heir.0 as usize != at + 1) {
            self.send(at, heir.0 as usize - 1, Sent::TakeOver);
        }
    }

    fn due(&self, at: usize) -> Time {
        let member = &self.members[at];
        match member.is_up {
            false => Time::NEVER,
            true if member.leads => member.election.tick_at().min(member.heartbeat_at),
            true => member.election.deadline(member.promised),
        }
    }

    pub(super) fn run_until(&mut self, end: Time) {
        loop {
            let timer = (0..self.members.len()).map(|at| (self.due(at), at)).min().expect("members");
            let arrival = self.on_the_way.peek().map_or(Time::NEVER, |Reverse((at, _))| *at);
            let passes = timer.0.min(arrival).min(end).since(self.now);
            match self.leader().filter(|&leader| self.usual(leader) != UNREACHABLE) {
                Some(leader) => self.majority_times += self.usual(leader) as f64 * passes.as_secs_f64(),
                None if !self.changes.is_empty() => self.nobody_led += passes,
                None => {}
            }
            if timer.0.min(arrival) > end {
                self.now = end;
                return;
            }
            if arrival <= timer.0 {
                let Reverse((at, number)) = self.on_the_way.pop().expect("peeked");
                let (from, to, sent) = self.sent.remove(&number).expect("on the way");
                self.now = at;
                if self.members[to].is_up {
                    self.receive(from, to, sent);
                }
            } else {
                self.now = self.now.max(timer.0);
                self.timer(timer.1);
            }
        }
    }

    pub(super) fn leader(&self) -> Option<usize> {
        let leaders = (0..self.members.len()).filter(|&at| self.members[at].leads && self.members[at].is_up);
        leaders.max_by_key(|&at| self.members[at].promised)
    }

    /// A member crashes, and its election forgets everything.
    pub(super) fn crash(&mut self, at: usize) {
        let member = &mut self.members[at];
        (member.is_up, member.leads) = (false, false);
    }

    /// It starts again. What it promised is in its log.
    pub(super) fn restart(&mut self, at: usize) {
        let ids = self.members.iter().map(|member| member.id).collect::<Vec<_>>();
        let member = &mut self.members[at];
        member.election = LatencyAware::new(&self.options, Members::new(ids, member.id), self.now);
        member.election.restarted(member.promised);
        member.is_up = true;
    }

    /// The usual majority time of a member, in nanoseconds.
    pub(super) fn usual(&self, at: usize) -> u64 {
        let trip = |to: usize| match self.members[to].is_up {
            _ if to == at => 0,
            true => self.delays[at][to] + self.delays[to][at],
            false => UNREACHABLE,
        };
        let voters = VoterSets::simple(self.members.iter().map(|member| member.id).collect());
        majority_time(&voters, |id| trip(id.0 as usize - 1))
    }

    pub(super) fn best(&self) -> u64 {
        let up = (0..self.members.len()).filter(|&at| self.members[at].is_up);
        up.map(|at| self.usual(at)).min().expect("members")
    }
}

pub(super) fn seconds(seconds: u64) -> Time {
    Time::ZERO + Duration::from_secs(seconds)
}

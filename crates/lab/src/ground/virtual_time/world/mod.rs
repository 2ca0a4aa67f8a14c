//! A run: machines, links, clients and an operator, and the order of what happens to them.

mod clients;
mod links;
mod machines;
mod operator;
mod outcome;

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
    time::Duration,
};

use bytes::Bytes;
use synod_replica::{Group, RequestError};
use synod_wire::{Ballot, Epoch, GroupId, ReplicaId, Time};

use self::{links::Arrival, operator::UnderWay};
use super::{
    Traffic, Usage,
    client::{Client, Request},
    discovery::Discovery,
    groups::{Groups, Merged, Seats, Sent},
    machine::Machine,
    prepare::Stopwatch,
};
use crate::{
    ground::{Act, Load, Setup},
    net::{Link, Topology},
    study::{Conduct, LabError},
};

/// How often the client looks for time-outs, and the operator for the progress of a change.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);
/// How long the group may take to find its first leader.
const FIRST_LEADER_TIMEOUT: Duration = Duration::from_secs(60);
/// How long replicas may take to have the same state once the load is over.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(120);

/// A scheduled event.
enum Happening {
    /// A message, or a command of a client, arrives.
    Arrive(Arrival),
    /// A commit of this replica's disk has ended.
    Committed(ReplicaId),
    /// The client of an open loop sends its next proposal.
    Due(GroupId),
    /// A processor is free and has work, or a deadline has passed.
    Work(ReplicaId),
    /// The client learns that this replica leads.
    Hear(GroupId, Epoch, Ballot, ReplicaId),
    /// The client gets an answer.
    Answer(Answer),
    /// The client, which shares processors with the replicas, reads the answers that have come.
    Read,
    /// The client has read these.
    Answers(Vec<Answer>),
    /// The client sends a proposal again.
    Resend(GroupId, Request),
    /// The client looks for time-outs, and the operator for the progress of a change.
    Look,
    /// A new replica starts in the place of another.
    Join(ReplicaId, usize),
    /// The warm-up is over.
    Open,
}

/// What a client of a group is answered.
type Answer = (GroupId, Request, Result<Bytes, RequestError>);

/// Machines, links, clients and operator of a run.
pub(super) struct World<'a> {
    setup: &'a Setup,
    groups: &'a Groups,
    topology: Topology,
    links: Vec<Vec<Link>>,
    /// The groups as they begin.
    first: Vec<Group>,
    now: Time,
    queue: BinaryHeap<Reverse<(Time, u64)>>,
    happenings: BTreeMap<u64, Happening>,
    last: u64,
    machines: BTreeMap<ReplicaId, Machine>,
    /// For each link, when its last byte will have left, and the number of its session.
    wires: BTreeMap<(ReplicaId, ReplicaId), (Time, u64)>,
    random: fastrand::Rng,
    /// Where the replicas and the client share processors: until when each is busy.
    processors: Vec<Time>,
    /// Until when the client is busy, where it shares processors with the replicas.
    client_until: Time,
    /// Answers that a client has not read that shares processors with the replicas.
    unread: Vec<Answer>,
    /// Counts the clients that chose a replica.
    last_asked: usize,
    /// The clients of each group.
    clients: Vec<Client>,
    opened: Option<Time>,
    /// The group whose load has actions.
    operated: GroupId,
    acts: std::vec::IntoIter<Act>,
    act: Option<UnderWay>,
    done: Vec<(Duration, Duration)>,
    traffic: Traffic,
    stopwatch: Stopwatch,
    discovery: Discovery,
    /// What the replicas of each group sent each other.
    sent: Vec<Sent>,
    /// Bytes that each machine sent to each other one.
    carried: BTreeMap<(ReplicaId, ReplicaId), f64>,
    /// When each value of each group was proposed, if groups are merged.
    proposed: Vec<Vec<Time>>,
    /// What each machine executed of each group in one order.
    merged: BTreeMap<(usize, GroupId), Merged>,
}

impl<'a> World<'a> {
    pub(super) fn new(setup: &'a Setup, groups: &'a Groups) -> Result<World<'a>, LabError> {
        let topology = match &setup.topology {
            Some(topology) => topology.clone(),
            None => Topology::named("single-dc")?,
        };
        let ids: Vec<_> = (1..=setup.replicas as u64).map(ReplicaId).collect();
        let count = groups.groups.len();
        let loads = || groups.groups.iter().map(|seats| &seats.load);
        let operated = loads().position(|load| !load.acts.is_empty()).unwrap_or(0);
        let merging = (0..setup.replicas).filter(|&place| groups.merges_at(place));
        let merging = merging.flat_map(|place| groups.hosted_at(place).map(move |group| (place, group)));
        let merged =
            |(place, group): (usize, GroupId)| ((place, group), Merged::new(place, usize::from(group.0)));
        let mut world = World {
            setup,
            groups,
            links: topology.links(setup.replicas)?,
            topology,
            first: groups.groups.iter().map(|seats| seats.group(&setup.settings)).collect(),
            now: Time::ZERO + Duration::from_secs(3600),
            queue: BinaryHeap::new(),
            happenings: BTreeMap::new(),
            last: 0,
            machines: BTreeMap::new(),
            wires: BTreeMap::new(),
            random: fastrand::Rng::with_seed(setup.seed),
            processors: vec![Time::ZERO; setup.hardware.shared_processors.unwrap_or(0)],
            client_until: Time::ZERO,
            unread: Vec::new(),
            last_asked: 0,
            clients: (0..count as u64)
                .zip(loads())
                .map(|(at, load)| Client::new(load, at, count as u64))
                .collect(),
            opened: None,
            operated: GroupId(operated as u16),
            acts: groups.groups[operated].load.acts.clone().into_iter(),
            act: None,
            done: Vec::new(),
            traffic: Traffic::default(),
            stopwatch: Stopwatch::default(),
            discovery: Discovery::default(),
            sent: vec![Sent::default(); count],
            carried: BTreeMap::new(),
            proposed: vec![Vec::new(); count],
            merged: merging.map(merged).collect(),
        };
        for (place, &id) in ids.iter().enumerate() {
            // The replicas start at slightly different times; otherwise these would be equal and decide the election.
            let delay = Duration::from_micros(world.random.u64(0..20_000));
            world.after(delay, Happening::Join(id, place));
        }
        world.after(LOOK_INTERVAL, Happening::Look);
        Ok(world)
    }

    fn seats(&self, group: GroupId) -> &'a Seats {
        &self.groups.groups[usize::from(group.0)]
    }

    fn client(&mut self, group: GroupId) -> &mut Client {
        &mut self.clients[usize::from(group.0)]
    }

    /// The load of the first group, whose window is that of all.
    fn load(&self) -> &'a Load {
        &self.groups.groups[0].load
    }

    /// The numbers of all groups.
    fn numbers(&self) -> impl Iterator<Item = GroupId> + use<> {
        (0..self.clients.len() as u16).map(GroupId)
    }

    /// Whether the window is over.
    fn is_over(&self) -> bool {
        self.clients[0].is_over(self.now)
    }

    fn outstanding(&self) -> usize {
        self.clients.iter().map(Client::outstanding).sum()
    }

    fn after(&mut self, time: Duration, what: Happening) {
        self.at(self.now + time, what);
    }

    fn at(&mut self, time: Time, what: Happening) {
        self.last += 1;
        self.queue.push(Reverse((time, self.last)));
        self.happenings.insert(self.last, what);
    }

    /// Runs until the load is over, everything is answered and the replicas have the same state.
    pub(super) fn run(&mut self, conduct: &Conduct) -> Result<(), LabError> {
        let began = self.now;
        let mut over: Option<Time> = None;
        while let Some(Reverse((time, number))) = self.queue.pop() {
            self.now = time;
            let what = self.happenings.remove(&number).expect("each is queued once");
            let look = matches!(what, Happening::Look);
            self.happen(what)?;
            if !look {
                continue;
            }
            conduct.check()?;
            if self.opened.is_none() && self.now.since(began) > FIRST_LEADER_TIMEOUT + self.load().warm_up {
                return Err(LabError::Stalled(format!("nobody leads after {FIRST_LEADER_TIMEOUT:?}")));
            }
            if self.is_over() {
                let over = *over.get_or_insert(self.now);
                if self.outstanding() == 0 && self.agree() {
                    return Ok(());
                }
                if self.now.since(over) > SETTLE_TIMEOUT {
                    let what = format!(
                        "{SETTLE_TIMEOUT:?} after the load {} proposals have no answer; {}",
                        self.outstanding(),
                        self.standings().join(", ")
                    );
                    return Err(LabError::Stalled(what));
                }
            }
        }
        Err(LabError::Replicas("nothing happens any more".to_owned()))
    }

    /// How far each replica is, in words.
    fn standings(&self) -> Vec<String> {
        let replicas = self
            .machines
            .values()
            .flat_map(|machine| machine.hosted.iter().map(move |hosted| (machine, hosted.group)));
        let words = replicas.map(|(machine, group)| {
            let of = if self.clients.len() > 1 { format!(" of {group}") } else { String::new() };
            format!("{} at slot {}{of}", machine.id, machine.standing(group).0)
        });
        words.collect()
    }

    fn happen(&mut self, what: Happening) -> Result<(), LabError> {
        match what {
            Happening::Arrive(arrival) => self.arrive(arrival),
            Happening::Work(id) => self.work(id)?,
            Happening::Committed(id) => self.committed(id),
            Happening::Due(group) => self.due(group),
            Happening::Hear(group, epoch, ballot, leader) => self.hear(group, epoch, ballot, leader),
            Happening::Answer(answer) => self.take_answer(answer),
            Happening::Read => self.read(),
            Happening::Answers(answers) => {
                answers.into_iter().for_each(|answer| self.answer(answer));
            }
            Happening::Resend(group, request) => self.resend(group, request),
            Happening::Look => {
                self.expire();
                self.operate()?;
                self.sample_waiting();
                self.after(LOOK_INTERVAL, Happening::Look);
            }
            Happening::Join(id, place) => self.join(id, place)?,
            Happening::Open => self.open(),
        }
        Ok(())
    }

    /// The warm-up is over: what is counted begins.
    fn open(&mut self) {
        let (now, window) = (self.now, self.load().window);
        self.clients.iter_mut().for_each(|client| client.open(now, window));
        self.opened = Some(self.now);
        self.traffic = Traffic::default();
        self.machines.values_mut().for_each(|machine| machine.usage = Usage::default());
        self.stopwatch.took = None;
        self.discovery = Discovery::default();
        self.sent.fill(Sent::default());
        self.carried.clear();
        self.merged.values_mut().for_each(|merged| *merged = Merged::new(merged.place, merged.group));
    }

    /// Records how many batches wait for other groups.
    fn sample_waiting(&mut self) {
        let Some(opened) = self.opened.filter(|_| !self.is_over()) else { return };
        for machine in self.machines.values() {
            for (group, waiting) in machine.waiting() {
                if let Some(merged) = self.merged.get_mut(&(machine.place, group)) {
                    merged.sample(opened, self.now, waiting);
                }
            }
        }
    }
}

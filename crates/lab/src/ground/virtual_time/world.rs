//! The order of events: messages in flight, processors, the client and actions.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
    time::Duration,
};

use bytes::Bytes;
use synod_consensus::{Link as PeerLink, Overrides, Role};
use synod_replica::{Change, ChangeRequest, Event, Goal, Group, MemberInfo, RequestError, RequestId};
use synod_wire::{Ballot, COMMAND_HEADER_BYTES, CommandKind, Epoch, GroupId, Incarnation, ReplicaId, Time};

use super::{
    Traffic, Usage,
    client::Client,
    discovery::Discovery,
    groups::{Groups, Merged, Ran, Seats, Sent},
    machine::{Burst, Effects, Executing, Kind, Machine, kind, request},
    prepare::Stopwatch,
};
use crate::{
    ground::{Act, Asked, Load, Outcome, Setup, Victim, What},
    net::{Link, Topology},
    study::{Conduct, LabError},
};

/// Requests of the operator are numbered from here; those of the client are below.
const OPERATOR: u64 = 1 << 62;
/// How often the client looks for time-outs, and the operator for the progress of a change.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);
/// The pause before a refused proposal is sent again.
const RESEND_DELAY: Duration = Duration::from_millis(10);
/// How long the group may take to find its first leader.
const FIRST_LEADER_TIMEOUT: Duration = Duration::from_secs(60);
/// How long replicas may take to have the same state once the load is over.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(120);
/// The time from the change of the group until the new replica starts.
const JOIN_DELAY: Duration = Duration::from_millis(50);
/// The bytes of an answer: those of Santos 2012, section 10.4, and as much around it as around a command.
const ANSWER_BYTES: usize = COMMAND_HEADER_BYTES + 8;
/// How long a client whose replica has crashed waits until it turns to another, in milliseconds (Santos 2012,
/// section 10.4.3).
const RECONNECT_MS: std::ops::Range<u64> = 100..500;

/// A scheduled event.
enum Happening {
    /// A message arrives for the replica of a group, if its session still exists. `bytes` are those that the receiver's
    /// network card has yet to take in.
    Arrive { from: ReplicaId, to: ReplicaId, session: u64, group: GroupId, event: Box<Event>, bytes: usize },
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
    Resend(GroupId, RequestId),
    /// The client looks for time-outs, and the operator for the progress of a change.
    Look,
    /// A new replica starts in the place of another.
    Join(ReplicaId, usize),
    /// The warm-up is over.
    Open,
}

/// What a client of a group is answered.
type Answer = (GroupId, RequestId, Result<Bytes, RequestError>);

/// An action that has begun.
struct UnderWay {
    what: What,
    began: Time,
    /// The member to be replaced, once it is chosen.
    victim: Option<ReplicaId>,
    /// When the change was last asked for.
    asked: Option<Time>,
}

impl UnderWay {
    /// Whether to ask for the change, perhaps again. An answer may be lost with the replica that gave it. So
    /// only the group's state counts, and asking twice is harmless.
    fn is_due(&mut self, now: Time) -> bool {
        let due = self.asked.is_none_or(|asked| now.since(asked) > Duration::from_secs(1));
        if due {
            self.asked = Some(now);
        }
        due
    }
}

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
            Happening::Arrive { from, to, session, group, event, bytes } if bytes > 0 => {
                // The card takes in one byte after another, from when the first could arrive.
                let time = self.setup.hardware.card.time(bytes);
                let Some(machine) = self.machines.get_mut(&to) else { return Ok(()) };
                machine.receives_until = self.now.max(machine.receives_until + time);
                let at = machine.receives_until;
                let whole = Happening::Arrive { from, to, session, group, event, bytes: 0 };
                if at > self.now {
                    self.at(at, whole);
                } else {
                    self.happen(whole)?;
                }
            }
            Happening::Arrive { from, to, session, group, event, .. } => {
                let lasts = self.wires.get(&(from, to)).is_some_and(|(_, present)| *present == session);
                match *event {
                    Event::Request { request, .. } if self.machines[&to].retired => {
                        // A server that was removed has stopped, so its clients get an error and turn to another.
                        self.at(self.now, Happening::Answer((group, request, Err(RequestError::Stopping))));
                    }
                    event if lasts || from == to => {
                        if let Event::Receive { from, message } = &event {
                            self.stopwatch.arrived(self.now, *from, message, self.setup.replicas);
                        }
                        self.give(to, group, event);
                    }
                    _ => {}
                }
            }
            Happening::Work(id) => self.work(id)?,
            Happening::Committed(id) => self.committed(id),
            Happening::Due(group) => {
                if let Some(rate) = self.seats(group).load.rate.filter(|_| !self.is_over()) {
                    self.propose(group, None);
                    let gap = -(1.0 - self.random.f64()).ln() / rate;
                    self.after(Duration::from_secs_f64(gap), Happening::Due(group));
                }
            }
            Happening::Hear(group, epoch, ballot, leader) => {
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
            Happening::Answer(answer) if !self.processors.is_empty() => {
                self.unread.push(answer);
                if self.unread.len() == 1 {
                    let from = self.now.max(self.client_until);
                    self.at(from, Happening::Read);
                }
            }
            Happening::Answer(answer) => self.answer(answer),
            Happening::Read => {
                // What has come meanwhile is read together, and what it causes leaves together.
                let answers = std::mem::take(&mut self.unread);
                let nanos = self.setup.hardware.costs.client_nanos * answers.len() as f64;
                let done = self.client_works(Duration::from_nanos(nanos as u64));
                self.at(done, Happening::Answers(answers));
            }
            Happening::Answers(answers) => {
                answers.into_iter().for_each(|answer| self.answer(answer));
            }
            Happening::Resend(group, request) => self.resend(group, request),
            Happening::Look => {
                for group in self.numbers() {
                    let now = self.now;
                    let expired = self.client(group).expire(now);
                    if self.seats(group).load.rate.is_none() {
                        (0..expired).for_each(|_| self.propose(group, None));
                    }
                }
                self.operate()?;
                self.sample_waiting();
                self.after(LOOK_INTERVAL, Happening::Look);
            }
            Happening::Join(id, place) => self.join(id, place)?,
            Happening::Open => {
                let (now, window) = (self.now, self.load().window);
                self.clients.iter_mut().for_each(|client| client.open(now, window));
                self.opened = Some(self.now);
                self.traffic = Traffic::default();
                self.machines.values_mut().for_each(|machine| machine.usage = Usage::default());
                self.stopwatch.took = None;
                self.discovery = Discovery::default();
                self.sent.fill(Sent::default());
                self.merged.values_mut().for_each(|merged| *merged = Merged::new(merged.place, merged.group));
            }
        }
        Ok(())
    }

    /// Takes note of how many batches wait for other groups.
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

    // Replicas.

    fn join(&mut self, id: ReplicaId, place: usize) -> Result<(), LabError> {
        let life = Incarnation(self.random.u64(1..1_000_000));
        let mut machine = Machine::start(self.setup, self.groups, (id, place), &self.first, life, self.now);
        let burst = machine.begin()?;
        let others: Vec<_> = self.machines.keys().copied().collect();
        self.machines.insert(id, machine);
        self.carry_out(id, burst)?;
        for other in others {
            self.connect(id, other);
            self.connect(other, id);
        }
        self.schedule(id);
        Ok(())
    }

    /// A session begins, or ends if the link is cut.
    fn connect(&mut self, from: ReplicaId, to: ReplicaId) {
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
            self.give(from, group, Event::Link { peer: to, link });
        }
    }

    /// The groups that two machines have in common.
    fn in_common(&self, one: ReplicaId, other: ReplicaId) -> Vec<GroupId> {
        let hosts =
            |id| move |group: &GroupId| self.machines.get(&id).is_some_and(|machine| machine.hosts(*group));
        self.numbers().filter(hosts(one)).filter(hosts(other)).collect()
    }

    fn give(&mut self, to: ReplicaId, group: GroupId, event: Event) {
        // A replica that has not started yet, or has been removed, receives nothing.
        let Some(machine) = self.machines.get_mut(&to).filter(|machine| !machine.retired) else { return };
        machine.push(group, event);
        self.schedule(to);
    }

    /// Schedules a processor to handle its inbox as soon as it is free.
    fn schedule(&mut self, id: ReplicaId) {
        let machine = self.machines.get_mut(&id).expect("a machine that has started");
        if machine.has_work() && !machine.scheduled {
            machine.scheduled = true;
            let at = machine.free_at.max(self.now);
            self.at(at, Happening::Work(id));
        }
    }

    fn work(&mut self, id: ReplicaId) -> Result<(), LabError> {
        let machine = self.machines.get_mut(&id).expect("a machine that has started");
        if machine.retired || (!machine.scheduled && machine.deadline() > self.now) {
            return Ok(());
        }
        if machine.free_at > self.now {
            // The deadline passed while the processor was busy; it is handled with the next event.
            machine.scheduled = true;
            let at = machine.free_at;
            self.at(at, Happening::Work(id));
            return Ok(());
        }
        let processor = self.processors.iter().enumerate().min_by_key(|(_, until)| **until);
        if let Some((_, &until)) = processor.filter(|(_, until)| **until > self.now) {
            // All processors are busy with other replicas, or with the client.
            machine.scheduled = true;
            self.at(until, Happening::Work(id));
            return Ok(());
        }
        machine.scheduled = false;
        let burst = machine.work(self.now)?;
        if let Some((processor, _)) = processor {
            self.processors[processor] = machine.free_at;
        }
        self.carry_out(id, burst)
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

    /// What waited for the disk leaves, and the next commit begins.
    fn committed(&mut self, id: ReplicaId) {
        let Some(machine) = self.machines.get_mut(&id).filter(|machine| !machine.retired) else { return };
        machine.disk.committed();
        let next = machine.disk.commit();
        let groups: Vec<_> = machine.hosted.iter().map(|hosted| hosted.group).collect();
        let durable = machine.disk.durable();
        let held: Vec<_> = std::iter::from_fn(|| machine.disk.release()).collect();
        for (at, (_, to, message, bytes)) in held {
            self.send(id, to, groups[at], Event::Receive { from: id, message }, bytes, self.now);
        }
        if let Some(time) = next {
            self.after(time, Happening::Committed(id));
        }
        for (group, durable) in groups.into_iter().zip(durable) {
            self.give(id, group, Event::Durable(durable));
        }
    }

    /// Carries out a burst's effects when the burst is over.
    fn carry_out(&mut self, id: ReplicaId, burst: Burst) -> Result<(), LabError> {
        let machine = &self.machines[&id];
        let (leaves, deadline) = (machine.free_at, machine.deadline());
        let groups: Vec<_> = machine.hosted.iter().map(|hosted| hosted.group).collect();
        if let Some(time) = burst.commit {
            self.at(leaves + time, Happening::Committed(id));
        }
        if !self.is_over() {
            let usage = &mut self.machines.get_mut(&id).expect("it has started").usage;
            usage.busy += burst.busy;
            usage.bursts += burst.woken;
        }
        for (at, (group, effects)) in groups.into_iter().zip(burst.groups).enumerate() {
            self.carry_out_of(id, (at, group), effects, leaves)?;
        }
        if deadline < Time::NEVER {
            self.at(deadline.max(self.now), Happening::Work(id));
        }
        self.schedule(id);
        Ok(())
    }

    /// Carries out what a burst caused in the group that a machine hosts at this place.
    fn carry_out_of(
        &mut self,
        id: ReplicaId,
        (at, group): (usize, GroupId),
        effects: Effects,
        leaves: Time,
    ) -> Result<(), LabError> {
        let (place, over) = (self.machines[&id].place, self.is_over());
        for held in effects.messages {
            let (message, bytes) = (&held.2, held.3 as u64);
            match kind(message) {
                Kind::Decide => self.traffic.decides += 1,
                Kind::Sync => self.traffic.sync_bytes += bytes,
                Kind::Other => {}
            }
            self.stopwatch.sent(self.now, message);
            self.traffic.messages += 1;
            self.traffic.bytes += bytes;
            if !over {
                let sent = &mut self.sent[usize::from(group.0)];
                (sent.messages, sent.bytes) = (sent.messages + 1, sent.bytes + bytes);
            }
            let machine = self.machines.get_mut(&id).expect("it has started");
            if let Some((_, to, message, bytes)) = machine.disk.hold(at, held) {
                self.send(id, to, group, Event::Receive { from: id, message }, bytes, leaves);
            }
        }
        let (back, beside) = (self.way(group, place)?.1, self.seats(group).load.beside);
        for (request, answer) in effects.answers {
            let through = if beside { leaves } else { self.through_card(id, ANSWER_BYTES, leaves) };
            self.at(through + back, Happening::Answer((group, request, answer)));
        }
        if effects.leader {
            let status = self.machines[&id].replica(group).status();
            let view = status.protocol.view;
            if status.protocol.role == Role::Leader && view.leader == Some(id) {
                self.at(leaves + back, Happening::Hear(group, status.epoch, view.ballot, id));
            }
        }
        if let Some(slot) = effects.executed.filter(|_| group == GroupId::FIRST) {
            let leads = self.clients[0].leader() == Some(id);
            // The executor's standing is that after the whole burst.
            self.discovery.found(slot, leads, place, leaves);
        }
        if let Some(merged) = self.merged.get_mut(&(place, group)).filter(|_| !over) {
            let (groups, proposed) = (self.clients.len() as u64, &self.proposed[usize::from(group.0)]);
            for value in effects.merged {
                merged.executed(proposed[(value / groups) as usize], leaves);
            }
        }
        if !over {
            self.sent[usize::from(group.0)].skips += effects.skips;
        }
        if let Some(group) = effects.group {
            self.admit(&group);
        }
        Ok(())
    }

    /// How long a command is on its way from a client of a group to a machine, and the answer on its way back.
    fn way(&self, group: GroupId, place: usize) -> Result<(Duration, Duration), LabError> {
        if self.seats(group).load.beside {
            return Ok((Duration::ZERO, Duration::ZERO));
        }
        self.topology.client_way(place)
    }

    /// Starts the members of a group that have not started.
    fn admit(&mut self, group: &Group) {
        let learners: Vec<_> = group.learners().collect();
        for (id, goal) in learners {
            let waits =
                self.happenings.values().any(|what| matches!(what, Happening::Join(one, _) if *one == id));
            if self.machines.contains_key(&id) || waits {
                continue;
            }
            let place = match goal {
                Goal::Replace(victim) => self.machines.get(&victim).map_or(0, |machine| machine.place),
                _ => id.0 as usize % self.setup.replicas,
            };
            self.after(JOIN_DELAY, Happening::Join(id, place));
        }
    }

    /// A replica's network card sends this many bytes, after all that it was given before. Returns when the last of
    /// them has left.
    fn through_card(&mut self, id: ReplicaId, bytes: usize, leaves: Time) -> Time {
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
    fn for_card(&mut self, to: ReplicaId, bytes: usize) -> usize {
        let counts = !self.is_over();
        if let Some(machine) = self.machines.get_mut(&to).filter(|_| counts) {
            machine.usage.received += bytes as f64;
        }
        if self.setup.hardware.card.is_limited() { bytes } else { 0 }
    }

    fn send(
        &mut self,
        from: ReplicaId,
        to: ReplicaId,
        group: GroupId,
        event: Event,
        bytes: usize,
        leaves: Time,
    ) {
        // The system does not send more than a little to a machine that does not answer, and that does not count.
        if self.machines.get(&to).is_none_or(|machine| machine.retired) {
            return;
        }
        let leaves = self.through_card(from, bytes, leaves);
        let unread = self.for_card(to, bytes);
        let counts = !self.is_over();
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
                let event = Box::new(Event::Link { peer: to, link: PeerLink::Up });
                let up = Happening::Arrive { from, to: from, session, group, event, bytes: 0 };
                self.at(leaves + link.delay * 2, up);
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
        let event = Box::new(event);
        self.at(arrives, Happening::Arrive { from, to, session, group, event, bytes: unread });
    }

    // The clients.

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

    fn ask(&mut self, replica: ReplicaId, group: GroupId, number: RequestId, value: u64) {
        let Some(machine) = self.machines.get(&replica) else { return };
        let load = &self.seats(group).load;
        let there = self.way(group, machine.place).map_or(Duration::ZERO, |way| way.0);
        let mut payload = vec![0; load.value_bytes.max(8)];
        payload[..8].copy_from_slice(&value.to_le_bytes());
        let bytes = payload.len() + COMMAND_HEADER_BYTES;
        let bytes = if load.beside { 0 } else { self.for_card(replica, bytes) };
        let event = Box::new(request(number, CommandKind::Apply, Bytes::from(payload)));
        let arrive = Happening::Arrive { from: replica, to: replica, session: 0, group, event, bytes };
        self.after(there, arrive);
    }

    fn answer(&mut self, (group, number, answer): Answer) {
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

    fn resend(&mut self, group: GroupId, number: RequestId) {
        let last = self.client(group).asked(number);
        let Some(replica) = self.choose(group, last) else { return };
        if let Some((number, value)) = self.client(group).resend(number, replica) {
            self.ask(replica, group, number, value);
        }
    }

    /// A machine fails. Its clients lose their connections, and turn to another replica after a while.
    fn crash(&mut self, id: ReplicaId) {
        self.machines.get_mut(&id).expect("a machine that has started").retired = true;
        for group in self.numbers() {
            for request in self.client(group).at(id) {
                let pause = Duration::from_millis(self.random.u64(RECONNECT_MS));
                self.after(pause, Happening::Resend(group, request));
            }
        }
    }

    // The operator.

    /// Begins the next action when it is due, and follows the present one to its end.
    fn operate(&mut self) -> Result<(), LabError> {
        let Some(opened) = self.opened else { return Ok(()) };
        if self.act.is_none() {
            let due = self.acts.as_slice().first().is_some_and(|act| opened + act.at <= self.now);
            let Some(act) = due.then(|| self.acts.next()).flatten() else { return Ok(()) };
            self.act = Some(UnderWay { what: act.what, began: self.now, victim: None, asked: None });
        }
        let operated = self.operated;
        let Some(leader) = self.client(operated).leader() else { return Ok(()) };
        let mut act = self.act.take().expect("there is one");
        let group = self.machines[&leader].replica(operated).group().clone();
        let change = match act.what {
            What::HandOver => {
                let before = *act.victim.get_or_insert(leader);
                if leader != before {
                    self.finish_act(&act);
                    return Ok(());
                }
                let voters: Vec<_> = group.voters().collect();
                let place = voters.iter().position(|&id| id == leader).unwrap_or(0);
                let to = voters[(place + voters.len() - 1) % voters.len()];
                if act.is_due(self.now) {
                    self.give(leader, operated, Event::Transfer(to));
                }
                self.act = Some(act);
                return Ok(());
            }
            What::Crash(victim) => {
                let running = |id: &ReplicaId| self.machines.get(id).is_some_and(|machine| !machine.retired);
                let victim = match victim {
                    Victim::Leader => Some(leader).filter(running),
                    Victim::Follower => group.voters().find(|id| *id != leader && running(id)),
                };
                match victim {
                    Some(victim) => {
                        self.crash(victim);
                        self.finish_act(&act);
                    }
                    // The client does not know yet which replica leads.
                    None => self.act = Some(act),
                }
                return Ok(());
            }
            What::Pause(time) => {
                let machine = self.machines.get_mut(&leader).expect("it has started");
                machine.free_at = machine.free_at.max(self.now + time);
                self.finish_act(&act);
                return Ok(());
            }
            What::Order(protocol, election) => {
                let done = (group.protocol, group.election) == (protocol, election);
                (!done).then_some(Change::Order { protocol, election, overrides: Overrides::default() })
            }
            What::Replace(victim) => {
                let victim = *act.victim.get_or_insert_with(|| match victim {
                    Victim::Leader => leader,
                    Victim::Follower => group.voters().find(|&id| id != leader).unwrap_or(leader),
                });
                let leaves = group.learners().any(|(_, goal)| goal == Goal::Replace(victim));
                let info = MemberInfo::new(format!("in place of {victim}"), Vec::new());
                match (group.member(victim), leaves) {
                    // The client does not know yet which replica leads instead.
                    (None, _) if leader == victim => {
                        self.act = Some(act);
                        return Ok(());
                    }
                    (None, _) => None,
                    (Some(_), false) => Some(Change::Add { info, goal: Goal::Replace(victim) }),
                    // The change is going on: the learner catches up, and takes its place.
                    (Some(_), true) => {
                        self.act = Some(act);
                        return Ok(());
                    }
                }
            }
        };
        let Some(change) = change else {
            self.finish_act(&act);
            return Ok(());
        };
        if act.is_due(self.now) {
            self.last += 1;
            let payload = ChangeRequest { expected: group.version, change }.encode().to_bytes();
            let event = request(RequestId(OPERATOR + self.last), CommandKind::Reconfigure, payload);
            self.give(leader, operated, event);
        }
        self.act = Some(act);
        Ok(())
    }

    fn finish_act(&mut self, act: &UnderWay) {
        let opened = self.opened.expect("acts begin in the window");
        self.done.push((act.began.since(opened), self.now.since(act.began)));
        // Proposals that wait at a removed replica go to another. A replica that only handed the leadership
        // over forwards them.
        let removed = act.victim.filter(|_| matches!(act.what, What::Replace(_)));
        let operated = self.operated;
        for stranded in removed.map(|victim| self.client(operated).at(victim)).unwrap_or_default() {
            self.resend(operated, stranded);
        }
    }

    // The end.

    /// Machines that run and whose replicas vote in the newest state of a group.
    fn members(&self, group: GroupId) -> impl Iterator<Item = &Machine> {
        let hosts = move |machine: &&Machine| machine.hosts(group);
        let groups = self.machines.values().filter(hosts).map(move |machine| machine.replica(group).group());
        let newest = groups.max_by_key(|group| group.version);
        let ids: Vec<_> = newest.into_iter().flat_map(Group::voters).collect();
        self.machines.values().filter(move |machine| ids.contains(&machine.id) && !machine.retired)
    }

    /// Whether all have come as far as they have to before they are compared.
    fn agree(&self) -> bool {
        if self.groups.merge.is_some() {
            // Groups may go on forever by skips, so values are what counts.
            return self.missing().is_none();
        }
        self.numbers().all(|group| {
            let mut slots = self.members(group).map(|machine| machine.standing(group).0);
            let first = slots.next();
            slots.all(|slot| Some(slot) == first)
        })
    }

    /// A value that was acknowledged and that a machine lacks which it concerns.
    fn missing(&self) -> Option<(u64, ReplicaId)> {
        let groups = self.numbers().zip(&self.clients);
        groups.into_iter().find_map(|(group, client)| {
            // Where groups are merged, those who only learn are waited for too.
            let concerned: Vec<&Machine> = if self.groups.merge.is_some() {
                self.machines.values().filter(|machine| machine.hosts(group)).collect()
            } else {
                self.members(group).collect()
            };
            concerned.into_iter().find_map(|machine| {
                let values = &machine.registry(group).values;
                client.acknowledged.first_missing_in(values).map(|value| (value, machine.id))
            })
        })
    }

    /// Checks that members hold the same in the same order, and everything that was acknowledged.
    pub(super) fn verify(&self) -> Result<(), LabError> {
        let mut digests = BTreeMap::new();
        for group in self.numbers() {
            for machine in self.members(group) {
                // Machines hold the same if they execute the same groups in one order.
                let of: Vec<GroupId> = match &machine.executing {
                    Executing::Apart(_) => vec![group],
                    Executing::Merged(_) => machine.hosted.iter().map(|hosted| hosted.group).collect(),
                };
                let digest = machine.digest(group);
                let (other, first) = *digests.entry(of).or_insert((machine.id, digest));
                if first != digest {
                    let what = format!("{other} and {} hold different states in the same slot", machine.id);
                    return Err(LabError::Broken(what));
                }
            }
        }
        if let Some((value, id)) = self.missing() {
            return Err(LabError::Broken(format!("value {value} was acknowledged and is not in {id}")));
        }
        Ok(())
    }

    pub(super) fn finish(mut self) -> (Outcome, Traffic) {
        let client = &mut self.clients[0];
        client.close();
        let leader = client.leader();
        let used = |leads: bool| {
            let own = self.machines.values().filter(|machine| (Some(machine.id) == leader) == leads);
            Usage::mean(&own.map(|machine| machine.usage).collect::<Vec<_>>())
        };
        let (leader, follower) = (used(true), used(false));
        let client = self.clients.swap_remove(0);
        let outcome = Outcome { acts: self.done, ..client.outcome };
        let discovery = self.discovery.delays();
        (outcome, Traffic { prepare: self.stopwatch.took, leader, follower, discovery, ..self.traffic })
    }

    /// What came of several groups.
    pub(super) fn finish_all(mut self) -> Ran {
        self.clients.iter_mut().for_each(Client::close);
        let usage = self.machines.values().map(|machine| machine.usage).collect();
        let mut groups: Vec<_> = self.clients.into_iter().map(|client| client.outcome).collect();
        groups[usize::from(self.operated.0)].acts = self.done;
        Ran { groups, sent: self.sent, merged: self.merged.into_values().collect(), usage }
    }
}

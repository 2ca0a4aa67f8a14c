//! The order of events: messages in flight, processors, the client and actions.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap},
    time::Duration,
};

use bytes::Bytes;
use synod_consensus::{Link as PeerLink, Overrides, Role};
use synod_replica::{Change, ChangeRequest, Event, Goal, Group, MemberInfo, RequestError, RequestId};
use synod_wire::{Ballot, COMMAND_HEADER_BYTES, CommandKind, Epoch, Incarnation, Lsn, ReplicaId, Time};

use super::{
    Traffic, Usage,
    client::Client,
    discovery::Discovery,
    prepare::Stopwatch,
    replica::{Burst, Kind, Machine, kind, request},
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
    /// A message arrives, if its session still exists. `bytes` are those that the receiver's network card has yet to
    /// take in.
    Arrive { from: ReplicaId, to: ReplicaId, session: u64, event: Box<Event>, bytes: usize },
    /// A commit of this replica's disk has ended.
    Committed(ReplicaId),
    /// The client of an open loop sends its next proposal.
    Due,
    /// A processor is free and has work, or a deadline has passed.
    Work(ReplicaId),
    /// The client learns that this replica leads.
    Hear(Epoch, Ballot, ReplicaId),
    /// The client gets an answer.
    Answer(RequestId, Result<Bytes, RequestError>),
    /// The client, which shares processors with the replicas, reads the answers that have come.
    Read,
    /// The client has read these.
    Answers(Vec<(RequestId, Result<Bytes, RequestError>)>),
    /// The client sends a proposal again.
    Resend(RequestId),
    /// The client looks for time-outs, and the operator for the progress of a change.
    Look,
    /// A new replica starts in the place of another.
    Join(ReplicaId, usize),
    /// The warm-up is over.
    Open,
}

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

/// Replicas, links, client and operator of a run.
pub(super) struct World<'a> {
    setup: &'a Setup,
    load: &'a Load,
    topology: Topology,
    links: Vec<Vec<Link>>,
    first: Group,
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
    unread: Vec<(RequestId, Result<Bytes, RequestError>)>,
    /// Counts the clients that chose a replica.
    last_asked: usize,
    client: Client,
    opened: Option<Time>,
    acts: std::vec::IntoIter<Act>,
    act: Option<UnderWay>,
    done: Vec<(Duration, Duration)>,
    traffic: Traffic,
    stopwatch: Stopwatch,
    discovery: Discovery,
}

impl<'a> World<'a> {
    pub(super) fn new(setup: &'a Setup, load: &'a Load) -> Result<World<'a>, LabError> {
        let topology = match &setup.topology {
            Some(topology) => topology.clone(),
            None => Topology::named("single-dc")?,
        };
        let ids: Vec<_> = (1..=setup.replicas as u64).map(ReplicaId).collect();
        let info = |id: ReplicaId| MemberInfo::new(format!("r{}", id.0), Vec::new());
        let first = Group::first(&setup.settings.consensus, ids.iter().map(|&id| (id, info(id))))
            .limited(setup.settings.limits);
        let mut world = World {
            setup,
            load,
            links: topology.links(setup.replicas)?,
            topology,
            first,
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
            client: Client::new(load),
            opened: None,
            acts: load.acts.clone().into_iter(),
            act: None,
            done: Vec::new(),
            traffic: Traffic::default(),
            stopwatch: Stopwatch::default(),
            discovery: Discovery::default(),
        };
        for (place, &id) in ids.iter().enumerate() {
            // The replicas start at slightly different times; otherwise these would be equal and decide the election.
            let delay = Duration::from_micros(world.random.u64(0..20_000));
            world.after(delay, Happening::Join(id, place));
        }
        world.after(LOOK_INTERVAL, Happening::Look);
        Ok(world)
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
            if self.opened.is_none() && self.now.since(began) > FIRST_LEADER_TIMEOUT + self.load.warm_up {
                return Err(LabError::Stalled(format!("nobody leads after {FIRST_LEADER_TIMEOUT:?}")));
            }
            if self.client.is_over(self.now) {
                let over = *over.get_or_insert(self.now);
                if self.client.outstanding() == 0 && self.agree() {
                    return Ok(());
                }
                if self.now.since(over) > SETTLE_TIMEOUT {
                    let standing: Vec<_> = self
                        .machines
                        .values()
                        .map(|one| format!("{} at slot {}", one.id, one.standing().0))
                        .collect();
                    let what = format!(
                        "{SETTLE_TIMEOUT:?} after the load {} proposals have no answer; {}",
                        self.client.outstanding(),
                        standing.join(", ")
                    );
                    return Err(LabError::Stalled(what));
                }
            }
        }
        Err(LabError::Replicas("nothing happens any more".to_owned()))
    }

    fn happen(&mut self, what: Happening) -> Result<(), LabError> {
        match what {
            Happening::Arrive { from, to, session, event, bytes } if bytes > 0 => {
                // The card takes in one byte after another, from when the first could arrive.
                let time = self.setup.hardware.card.time(bytes);
                let Some(machine) = self.machines.get_mut(&to) else { return Ok(()) };
                machine.receives_until = self.now.max(machine.receives_until + time);
                let at = machine.receives_until;
                let whole = Happening::Arrive { from, to, session, event, bytes: 0 };
                if at > self.now {
                    self.at(at, whole);
                } else {
                    self.happen(whole)?;
                }
            }
            Happening::Arrive { from, to, session, event, .. } => {
                let lasts = self.wires.get(&(from, to)).is_some_and(|(_, present)| *present == session);
                match *event {
                    Event::Request { request, .. } if self.machines[&to].retired => {
                        // A server that was removed has stopped, so its clients get an error and turn to another.
                        self.at(self.now, Happening::Answer(request, Err(RequestError::Stopping)));
                    }
                    event if lasts || from == to => {
                        if let Event::Receive { from, message } = &event {
                            self.stopwatch.arrived(self.now, *from, message, self.setup.replicas);
                        }
                        self.give(to, event);
                    }
                    _ => {}
                }
            }
            Happening::Work(id) => self.work(id)?,
            Happening::Committed(id) => self.committed(id),
            Happening::Due => {
                if let Some(rate) = self.load.rate.filter(|_| !self.client.is_over(self.now)) {
                    self.propose(None);
                    let gap = -(1.0 - self.random.f64()).ln() / rate;
                    self.after(Duration::from_secs_f64(gap), Happening::Due);
                }
            }
            Happening::Hear(epoch, ballot, leader) => {
                let first = self.client.leader().is_none();
                self.client.hear(epoch, ballot, leader);
                if first {
                    match self.load.rate {
                        Some(_) => self.after(Duration::ZERO, Happening::Due),
                        None => (0..self.load.concurrent).for_each(|_| self.propose(None)),
                    }
                    self.after(self.load.warm_up, Happening::Open);
                }
            }
            Happening::Answer(request, answer) if !self.processors.is_empty() => {
                self.unread.push((request, answer));
                if self.unread.len() == 1 {
                    let from = self.now.max(self.client_until);
                    self.at(from, Happening::Read);
                }
            }
            Happening::Answer(request, answer) => self.answer(request, answer)?,
            Happening::Read => {
                // What has come meanwhile is read together, and what it causes leaves together.
                let answers = std::mem::take(&mut self.unread);
                let nanos = self.setup.hardware.costs.client_nanos * answers.len() as f64;
                let done = self.client_works(Duration::from_nanos(nanos as u64));
                self.at(done, Happening::Answers(answers));
            }
            Happening::Answers(answers) => {
                answers.into_iter().try_for_each(|(request, answer)| self.answer(request, answer))?;
            }
            Happening::Resend(request) => self.resend(request),
            Happening::Look => {
                let expired = self.client.expire(self.now);
                if self.load.rate.is_none() {
                    (0..expired).for_each(|_| self.propose(None));
                }
                self.operate()?;
                self.after(LOOK_INTERVAL, Happening::Look);
            }
            Happening::Join(id, place) => self.join(id, place)?,
            Happening::Open => {
                self.client.open(self.now, self.load.window);
                self.opened = Some(self.now);
                self.traffic = Traffic::default();
                self.machines.values_mut().for_each(|machine| machine.usage = Usage::default());
                self.stopwatch.took = None;
                self.discovery = Discovery::default();
            }
        }
        Ok(())
    }

    // Replicas.

    fn join(&mut self, id: ReplicaId, place: usize) -> Result<(), LabError> {
        let settings = self.setup.settings_of(place);
        let means = (self.setup.hardware.costs.clone(), self.setup.durability);
        let life = Incarnation(self.random.u64(1..1_000_000));
        let mut machine = Machine::start(settings, means, id, place, &self.first, life, self.now);
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
            return self.give(from, Event::Link { peer: to, link: PeerLink::Down });
        }
        self.wires.entry((from, to)).or_insert((self.now, 0)).1 += 1;
        self.give(from, Event::Link { peer: to, link: PeerLink::Up });
    }

    fn give(&mut self, to: ReplicaId, event: Event) {
        // A replica that has not started yet, or has been removed, receives nothing.
        let Some(machine) = self.machines.get_mut(&to).filter(|machine| !machine.retired) else { return };
        machine.push(event);
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
        if machine.retired || (!machine.scheduled && machine.deadline > self.now) {
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
        let durable = machine.disk.durable;
        let held: Vec<_> = std::iter::from_fn(|| machine.disk.release()).collect();
        for (_, to, message, bytes) in held {
            self.send(id, to, Event::Receive { from: id, message }, bytes, self.now);
        }
        if let Some(time) = next {
            self.after(time, Happening::Committed(id));
        }
        self.give(id, Event::Durable(durable));
    }

    /// Carries out a burst's effects when the burst is over.
    fn carry_out(&mut self, id: ReplicaId, burst: Burst) -> Result<(), LabError> {
        let machine = &self.machines[&id];
        let (leaves, place, deadline) = (machine.free_at, machine.place, machine.deadline);
        let durable = machine.disk.durable;
        if let Some(time) = burst.commit {
            self.at(leaves + time, Happening::Committed(id));
        }
        let counts = !self.client.is_over(self.now);
        if counts {
            let usage = &mut self.machines.get_mut(&id).expect("it has started").usage;
            usage.busy += burst.busy;
            usage.bursts += burst.woken;
        }
        for (after, to, message, bytes) in burst.messages {
            match kind(&message) {
                Kind::Decide => self.traffic.decides += 1,
                Kind::Sync => self.traffic.sync_bytes += bytes as u64,
                Kind::Other => {}
            }
            self.stopwatch.sent(self.now, &message);
            self.traffic.messages += 1;
            self.traffic.bytes += bytes as u64;
            let machine = self.machines.get_mut(&id).expect("it has started");
            // What rests on records does not overtake what waits for others.
            if after > durable || (after > Lsn::ZERO && !machine.disk.held.is_empty()) {
                machine.disk.held.push_back((after, to, message, bytes));
            } else {
                self.send(id, to, Event::Receive { from: id, message }, bytes, leaves);
            }
        }
        let back = self.topology.client_way(place)?.1;
        for (request, answer) in burst.answers {
            let through = self.through_card(id, ANSWER_BYTES, leaves);
            self.at(through + back, Happening::Answer(request, answer));
        }
        if burst.leader {
            let status = self.machines[&id].replica.status();
            let view = status.protocol.view;
            if status.protocol.role == Role::Leader && view.leader == Some(id) {
                self.at(leaves + back, Happening::Hear(status.epoch, view.ballot, id));
            }
        }
        if let Some(slot) = burst.executed {
            let leads = self.client.leader() == Some(id);
            // The executor's standing is that after the whole burst.
            self.discovery.found(slot, leads, place, leaves);
        }
        if let Some(group) = burst.group {
            self.admit(&group);
        }
        if deadline < Time::NEVER {
            self.at(deadline.max(self.now), Happening::Work(id));
        }
        self.schedule(id);
        Ok(())
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
        let counts = !self.client.is_over(self.now);
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
        let counts = !self.client.is_over(self.now);
        if let Some(machine) = self.machines.get_mut(&to).filter(|_| counts) {
            machine.usage.received += bytes as f64;
        }
        if self.setup.hardware.card.is_limited() { bytes } else { 0 }
    }

    fn send(&mut self, from: ReplicaId, to: ReplicaId, event: Event, bytes: usize, leaves: Time) {
        // The system does not send more than a little to a machine that does not answer, and that does not count.
        if self.machines.get(&to).is_none_or(|machine| machine.retired) {
            return;
        }
        let leaves = self.through_card(from, bytes, leaves);
        let unread = self.for_card(to, bytes);
        for end in [from, to] {
            if let Some(machine) = self.machines.get_mut(&end).filter(|_| !self.client.is_over(self.now)) {
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
            self.give(from, Event::Link { peer: to, link: PeerLink::Down });
            let up = Event::Link { peer: to, link: PeerLink::Up };
            self.at(
                leaves + link.delay * 2,
                Happening::Arrive { from, to: from, session, event: Box::new(up), bytes: 0 },
            );
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
        self.at(arrives, Happening::Arrive { from, to, session, event: Box::new(event), bytes: unread });
    }

    // The client.

    /// Makes a proposal: to the same replica as the client's last one, if that runs and any may be asked.
    fn propose(&mut self, last: Option<ReplicaId>) {
        if self.client.is_over(self.now) {
            return;
        }
        let Some(replica) = self.choose(last) else { return };
        let (number, value) = self.client.propose(self.now, replica);
        self.ask(replica, number, value);
    }

    /// The replica that a client asks.
    fn choose(&mut self, last: Option<ReplicaId>) -> Option<ReplicaId> {
        if self.load.asked == Asked::Leader {
            return self.client.leader();
        }
        let runs = |id: &ReplicaId| self.machines.get(id).is_some_and(|machine| !machine.retired);
        if let Some(last) = last.filter(runs) {
            return Some(last);
        }
        let running: Vec<_> = self.machines.keys().copied().filter(runs).collect();
        // Clients are distributed evenly at first.
        self.last_asked += 1;
        running.get(self.last_asked % running.len().max(1)).copied()
    }

    fn ask(&mut self, replica: ReplicaId, number: RequestId, value: u64) {
        let Some(machine) = self.machines.get(&replica) else { return };
        let there = self.topology.client_way(machine.place).map_or(Duration::ZERO, |way| way.0);
        let mut payload = vec![0; self.load.value_bytes.max(8)];
        payload[..8].copy_from_slice(&value.to_le_bytes());
        let bytes = self.for_card(replica, payload.len() + COMMAND_HEADER_BYTES);
        let event = Box::new(request(number, CommandKind::Apply, Bytes::from(payload)));
        self.after(there, Happening::Arrive { from: replica, to: replica, session: 0, event, bytes });
    }

    fn answer(&mut self, number: RequestId, answer: Result<Bytes, RequestError>) -> Result<(), LabError> {
        if number.0 >= OPERATOR {
            return Ok(());
        }
        match answer {
            Ok(_) | Err(RequestError::OutcomeUnknown) => {
                let asked = self.client.answered(self.now, number);
                if asked.is_some() && self.load.rate.is_none() {
                    self.propose(asked);
                }
            }
            Err(_) => self.after(RESEND_DELAY, Happening::Resend(number)),
        }
        Ok(())
    }

    fn resend(&mut self, number: RequestId) {
        let last = self.client.asked(number);
        let Some(replica) = self.choose(last) else { return };
        if let Some((number, value)) = self.client.resend(number, replica) {
            self.ask(replica, number, value);
        }
    }

    /// A machine fails. Its clients lose their connections, and turn to another replica after a while.
    fn crash(&mut self, id: ReplicaId) {
        self.machines.get_mut(&id).expect("a machine that has started").retired = true;
        for request in self.client.at(id) {
            let pause = Duration::from_millis(self.random.u64(RECONNECT_MS));
            self.after(pause, Happening::Resend(request));
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
        let Some(leader) = self.client.leader() else { return Ok(()) };
        let mut act = self.act.take().expect("there is one");
        let group = self.machines[&leader].replica.group().clone();
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
                    self.give(leader, Event::Transfer(to));
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
            self.give(leader, event);
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
        for stranded in removed.map(|victim| self.client.at(victim)).unwrap_or_default() {
            self.resend(stranded);
        }
    }

    // The end.

    /// Members of the newest group that run.
    fn members(&self) -> impl Iterator<Item = &Machine> {
        let newest =
            self.machines.values().map(|machine| machine.replica.group()).max_by_key(|group| group.version);
        let ids: Vec<_> = newest.into_iter().flat_map(Group::voters).collect();
        self.machines.values().filter(move |machine| ids.contains(&machine.id) && !machine.retired)
    }

    fn agree(&self) -> bool {
        let mut slots = self.members().map(|machine| machine.executor.applied());
        let first = slots.next();
        slots.all(|slot| Some(slot) == first)
    }

    /// Checks that members hold the same in the same order, and everything that was acknowledged.
    pub(super) fn verify(&self) -> Result<(), LabError> {
        let mut digests = self.members().map(|machine| (machine.id, machine.executor.digest()));
        if let Some((id, digest)) = digests.next()
            && let Some((other, _)) = digests.find(|(_, other)| *other != digest)
        {
            return Err(LabError::Broken(format!("{id} and {other} hold different states in the same slot")));
        }
        for machine in self.members() {
            let values = &machine.executor.machine().values;
            if let Some(value) = self.client.acknowledged.first_missing_in(values) {
                let what = format!("value {value} was acknowledged and is not in {}", machine.id);
                return Err(LabError::Broken(what));
            }
        }
        Ok(())
    }

    pub(super) fn finish(mut self) -> (Outcome, Traffic) {
        self.client.close();
        let leader = self.client.leader();
        let used = |leads: bool| {
            let own = self.machines.values().filter(|machine| (Some(machine.id) == leader) == leads);
            Usage::mean(&own.map(|machine| machine.usage).collect::<Vec<_>>())
        };
        let (leader, follower) = (used(true), used(false));
        let outcome = Outcome { acts: self.done, ..self.client.outcome };
        let discovery = self.discovery.delays();
        (outcome, Traffic { prepare: self.stopwatch.took, leader, follower, discovery, ..self.traffic })
    }
}

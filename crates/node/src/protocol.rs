//! The protocol's thread: takes events, steps the replica, hands out what it wants done. It does no I/O, takes no
//! lock, and never waits for anybody but for its next event.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use crossbeam_channel::{Receiver, Sender, TryRecvError};
use synod_consensus::Role;
use synod_replica::{
    Action, Event, PeerMessage, ReadId, Replica, RequestError, RequestId, SessionCommand, SnapshotInfo,
    StateMachine,
};
use synod_wire::{CommandKind, Lsn, ReplicaId, Slot, Time};

use crate::{
    executor::{ExecutorStage, Job},
    handle::Reply,
    log::{GatedSend, LogJob},
    snapshots::SnapshotJob,
    status::Shared,
};

/// What a client of this replica wants.
pub(crate) enum ClientJob {
    Command { kind: CommandKind, session: Option<SessionCommand>, payload: Bytes, reply: Reply },
    Read { query: Bytes, reply: Reply },
}

/// What the other threads tell the protocol.
#[derive(Debug)]
pub(crate) enum NodeEvent {
    Receive { from: ReplicaId, message: PeerMessage },
    Link { peer: ReplicaId, up: bool },
    Durable(Lsn),
    Executed(Slot),
    SnapshotTaken(Option<SnapshotInfo>),
    ChunkRead { to: ReplicaId, slot: Slot, offset: u64, total: u64, bytes: Bytes },
    ChunkWritten { slot: Slot, end: u64 },
    SnapshotInstalled(Option<SnapshotInfo>),
    Stop,
}

/// Events and requests taken before what they caused leaves: bounds the delay of the first of them.
const BURST_MAX: usize = 512;

/// Where commands are executed.
pub(crate) enum Execution<S> {
    /// On a thread of its own.
    Thread(Sender<Job>),
    /// Here. The jobs of queries that need no slot still come through the channel.
    Here(Box<ExecutorStage<S>>, Receiver<Job>),
}

/// The replica with everybody that it hands work to.
pub(crate) struct ProtocolStage<S> {
    pub(crate) replica: Replica,
    pub(crate) actions: Vec<Action>,
    pub(crate) clock: Clock,
    pub(crate) events: Receiver<NodeEvent>,
    pub(crate) requests: Receiver<ClientJob>,
    pub(crate) log: Sender<LogJob>,
    pub(crate) transport: synod_transport::Sender,
    pub(crate) execution: Execution<S>,
    pub(crate) snapshots: Sender<SnapshotJob>,
    pub(crate) shared: Arc<Shared>,
    /// Whether the log was told that it has everything again.
    pub(crate) loss_pending: bool,
    pub(crate) durable: Lsn,
    pub(crate) deadline: Time,
    pub(crate) waiting: Waiting,
}

/// Clients that wait, by what they wait for.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    commands: HashMap<RequestId, Reply>,
    reads: HashMap<ReadId, Vec<(Bytes, Reply)>>,
    /// Queries of the present burst; they share one confirmation.
    burst: Vec<(Bytes, Reply)>,
    last: u64,
}

/// A monotonic clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock(Instant);

impl Clock {
    pub(crate) fn start() -> Clock {
        Clock(Instant::now())
    }

    pub(crate) fn now(&self) -> Time {
        // Not from zero on, so that the past can be spoken of.
        Time::ZERO + Duration::from_secs(3600) + self.0.elapsed()
    }
}

impl<S: StateMachine> ProtocolStage<S> {
    /// Runs until told to stop.
    pub(crate) fn run(mut self) {
        // What the start of the replica wants done.
        self.carry_out();
        loop {
            let wait = self.deadline.since(self.clock.now()).min(Duration::from_secs(1));
            let first = self.wait(wait);
            let began = Instant::now();
            let stop = match first {
                Some(event) => self.burst(event),
                None => false,
            };
            if stop {
                return self.stop();
            }
            let now = self.clock.now();
            if now >= self.deadline {
                self.deadline = Time::NEVER;
                self.replica.step(now, Event::Timer, &mut self.actions);
            }
            self.ask_reads(now);
            self.replica.flush(now, &mut self.actions);
            self.carry_out();
            self.shared.store(&self.replica.status());
            self.shared.bursts.add(1);
            self.shared.protocol_busy.since(began);
        }
    }

    /// The next event or request, if one comes in time.
    fn wait(&mut self, wait: Duration) -> Option<Input> {
        let jobs = match &self.execution {
            Execution::Here(_, jobs) => jobs.clone(),
            Execution::Thread(_) => crossbeam_channel::never(),
        };
        crossbeam_channel::select! {
            recv(self.events) -> event => Some(event.map_or(Input::Event(NodeEvent::Stop), Input::Event)),
            // Nobody has a handle any more; events go on.
            recv(self.requests) -> request => request.ok().map(Input::Request),
            recv(jobs) -> job => job.ok().map(Input::Job),
            default(wait) => None,
        }
    }

    /// Takes an event and what has gathered behind it; true if it is time to stop.
    fn burst(&mut self, first: Input) -> bool {
        let now = self.clock.now();
        let mut taken = 1;
        if self.take(now, first) {
            return true;
        }
        while taken < BURST_MAX {
            match self.events.try_recv() {
                Ok(event) => {
                    if self.take(now, Input::Event(event)) {
                        return true;
                    }
                    taken += 1;
                }
                Err(TryRecvError::Disconnected) => return true,
                Err(TryRecvError::Empty) => break,
            }
        }
        while taken < BURST_MAX && self.replica.has_room() {
            let Ok(request) = self.requests.try_recv() else { break };
            self.take(now, Input::Request(request));
            taken += 1;
        }
        self.shared.events.add(taken as u64);
        false
    }

    fn take(&mut self, now: Time, input: Input) -> bool {
        match input {
            Input::Event(NodeEvent::Stop) => return true,
            Input::Event(event) => self.event(now, event),
            Input::Request(ClientJob::Command { kind, session, payload, reply }) => {
                self.shared.requests.add(1);
                self.waiting.last += 1;
                let request = RequestId(self.waiting.last);
                self.waiting.commands.insert(request, reply);
                let event = Event::Request { request, kind, session, payload };
                self.replica.step(now, event, &mut self.actions);
            }
            Input::Request(ClientJob::Read { query, reply }) => {
                self.shared.reads.add(1);
                self.waiting.burst.push((query, reply));
            }
            Input::Job(job) => {
                if let Execution::Here(stage, _) = &mut self.execution {
                    stage.run_job(job);
                }
            }
        }
        false
    }

    fn event(&mut self, now: Time, event: NodeEvent) {
        let event = match event {
            NodeEvent::Receive { from, message } => Event::Receive { from, message },
            NodeEvent::Link { peer, up } => Event::Link { peer, up },
            NodeEvent::Durable(lsn) => {
                self.durable = lsn;
                Event::Durable(lsn)
            }
            NodeEvent::Executed(slot) => Event::Executed(slot),
            NodeEvent::SnapshotTaken(info) => Event::SnapshotTaken(info),
            NodeEvent::ChunkRead { to, slot, offset, total, bytes } => {
                Event::ChunkRead { to, slot, offset, total, bytes }
            }
            NodeEvent::ChunkWritten { slot, end } => Event::ChunkWritten { slot, end },
            NodeEvent::SnapshotInstalled(info) => Event::SnapshotInstalled(info),
            NodeEvent::Stop => return,
        };
        self.replica.step(now, event, &mut self.actions);
    }

    fn ask_reads(&mut self, now: Time) {
        if !self.waiting.burst.is_empty() {
            self.waiting.last += 1;
            let read = ReadId(self.waiting.last);
            self.waiting.reads.insert(read, std::mem::take(&mut self.waiting.burst));
            self.replica.step(now, Event::Read(read), &mut self.actions);
        }
    }

    /// Hands out what the replica wants done.
    fn carry_out(&mut self) {
        let mut log = LogJob::default();
        // Executing here makes more actions.
        while !self.actions.is_empty() {
            let mut actions = std::mem::take(&mut self.actions);
            actions.drain(..).for_each(|action| self.carry_out_one(action, &mut log));
            if self.actions.is_empty() {
                self.actions = actions; // Its memory serves again.
            }
        }
        if self.loss_pending && self.replica.votes() {
            self.loss_pending = false;
            log.loss_made_good = true;
            tracing::info!("this replica has learned again what it may have lost, and votes");
        }
        if !log.is_empty() {
            // A failed send means that the log has failed, which stops the replica.
            let _ = self.log.send(log);
        }
    }

    fn carry_out_one(&mut self, action: Action, log: &mut LogJob) {
        match action {
            Action::Append { lsn, record } => log.records.push((lsn, record.keep(), record.encode())),
            Action::Send { to, message, after } => {
                let body = message.encode();
                if after <= self.durable {
                    self.transport.send(to, body);
                } else {
                    log.sends.push(GatedSend { to, body, after });
                }
            }
            Action::Execute { slot, batch, requests } => {
                let commands = &mut self.waiting.commands;
                let reply = |(place, request)| Some((place, commands.remove(&request)?));
                let replies = requests.into_iter().filter_map(reply).collect();
                self.execute(Job::Execute { slot, batch, replies });
            }
            Action::ReadAt { read, slot } => {
                if let Some(queries) = self.waiting.reads.remove(&read) {
                    self.execute(Job::Query { slot, queries });
                }
            }
            Action::ReadFailed { read, error } => {
                for (_, reply) in self.waiting.reads.remove(&read).into_iter().flatten() {
                    let _ = reply.send(Err(error));
                }
            }
            Action::RequestFailed { request, error } => {
                if let Some(reply) = self.waiting.commands.remove(&request) {
                    let _ = reply.send(Err(error));
                }
            }
            Action::Leader(view) => self.report_leader(view),
            Action::Deadline(deadline) => self.deadline = deadline,
            Action::TakeSnapshot => self.execute(Job::Freeze),
            Action::ReadChunk { to, slot, offset, len_max } => {
                self.to_snapshots(SnapshotJob::ReadChunk { to, slot, offset, len_max });
            }
            Action::WriteChunk { info, offset, bytes } => {
                self.to_snapshots(SnapshotJob::WriteChunk { info, offset, bytes });
            }
            Action::InstallSnapshot(info) => self.to_snapshots(SnapshotJob::Finish(info)),
            Action::Trim(through) => log.trim = Some(through),
        }
    }

    fn execute(&mut self, job: Job) {
        match &mut self.execution {
            Execution::Thread(jobs) => {
                let _ = jobs.send(job);
            }
            Execution::Here(stage, _) => {
                let before = stage.applied();
                stage.run_job(job);
                if stage.applied() > before {
                    let executed = Event::Executed(stage.applied());
                    self.replica.step(self.clock.now(), executed, &mut self.actions);
                }
            }
        }
    }

    fn to_snapshots(&self, job: SnapshotJob) {
        let _ = self.snapshots.send(job);
    }

    fn report_leader(&self, view: synod_consensus::LeaderView) {
        let role: Role = self.replica.status().protocol.role;
        match view.leader {
            Some(leader) => {
                self.shared.leader_changes.add(1);
                tracing::info!(%leader, ballot = %view.ballot, role = role.as_str(), "leader elected");
            }
            None => tracing::info!(ballot = %view.ballot, role = role.as_str(), "no leader"),
        }
    }

    /// Fails everybody who waits; the other threads are told by whoever stops this one.
    fn stop(self) {
        for (_, reply) in self.waiting.commands {
            let _ = reply.send(Err(RequestError::Stopping));
        }
        for (_, reply) in self.waiting.reads.into_values().flatten() {
            let _ = reply.send(Err(RequestError::Stopping));
        }
    }
}

/// Whatever the protocol's thread waits for.
enum Input {
    Event(NodeEvent),
    Request(ClientJob),
    Job(Job),
}

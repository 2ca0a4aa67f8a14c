//! The protocol's thread: takes events, steps the replica, hands out what it wants done. It does no I/O, takes no
//! lock, and never waits for anybody but for its next event; only a change of the group is written down before it has
//! any effect.

use std::{
    collections::HashMap,
    sync::{Arc, atomic::Ordering::SeqCst},
    time::Duration,
};

use bytes::Bytes;
use synod_consensus::{Link, Role, To};
use synod_replica::{
    Action, Event, Fork, Mark, PeerMessage, ReadId, Replica, RequestError, RequestId, SessionCommand,
    StateMachine,
};
use synod_storage::Reached;
use synod_sync::{
    Planted,
    channel::{Receiver, RecvTimeoutError, Sender},
    planted,
    time::Instant,
};
use synod_wire::{CommandKind, GroupId, Lsn, ReplicaId, Slot, Time};

use crate::{
    Ended,
    executor::{ExecutorStage, Job},
    handle::Reply,
    log::{GatedSend, LogJob},
    meeting::forked,
    node::Notes,
    origin::former,
    parting::Parting,
    snapshots::SnapshotJob,
    status::Shared,
};

/// What a client of this replica wants.
pub(crate) enum ClientJob {
    Command { kind: CommandKind, session: Option<SessionCommand>, payload: Bytes, reply: Reply },
    Read { query: Bytes, reply: Reply },
}

/// Whatever the protocol's thread waits for: one queue, so that it waits in one place.
#[allow(clippy::large_enum_variant, reason = "nearly all are events, and a box each would cost more")]
pub(crate) enum Input {
    /// Another thread, or a peer, has something for the replica.
    Event(Event),
    /// A client wants something.
    Request(ClientJob),
    /// Clients of one thread do.
    Requests(Vec<ClientJob>),
    /// A query that needs no slot, if commands are executed here.
    Job(Job),
    /// Look at what is durable and executed.
    Wake,
    /// Time to end.
    Stop,
}

/// Events and requests taken before what they caused leaves: bounds the delay of the first of them.
const BURST_MAX: usize = 512;

/// How old what the other threads know of what is decided gets.
const REACHED_INTERVAL: Duration = Duration::from_secs(1);

/// Elections are over by then, if there can be any.
const STRANDED_AFTER: Duration = Duration::from_secs(30);

/// Where commands are executed.
pub(crate) enum Execution<S> {
    /// On a thread of its own.
    Thread(Sender<Job>),
    /// Here.
    Here(Box<ExecutorStage<S>>),
}

/// The replica with everybody that it hands work to.
pub(crate) struct ProtocolStage<S> {
    pub(crate) replica: Replica,
    pub(crate) actions: Vec<Action>,
    pub(crate) clock: Clock,
    pub(crate) inputs: Receiver<Input>,
    /// What did not find room there; see [`crate::inputs`].
    pub(crate) around: Receiver<Input>,
    pub(crate) log: Sender<LogJob>,
    pub(crate) transport: Arc<dyn synod_transport::Sender>,
    pub(crate) execution: Execution<S>,
    pub(crate) snapshots: Sender<SnapshotJob>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) me: ReplicaId,
    /// Who the members are, and where to find them while the log does not tell.
    pub(crate) notes: Notes,
    /// The peers: the members, and for a while those who were.
    pub(crate) parting: Parting,
    /// What ends this replica.
    pub(crate) failed: Option<Ended>,
    /// Whether the log was told that it has everything again.
    pub(crate) loss_pending: bool,
    /// Whether it has long been without memory and without a leader.
    pub(crate) stranded: Stranded,
    /// When the other threads last heard what is decided.
    pub(crate) reached_at: Time,
    pub(crate) durable: Lsn,
    /// Messages that the log's thread was given so far.
    pub(crate) gated: u64,
    pub(crate) executed: Slot,
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

/// See [`ProtocolStage::warn_if_stranded`].
#[derive(Debug, Default)]
pub(crate) struct Stranded {
    /// Since when it is.
    since: Option<Time>,
    /// That it has been so for long was said.
    told: bool,
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

/// Who is told that the group has changed may ask at once who is in it now: so that is carried out before the change is
/// executed and answered.
fn change_before_answer(actions: &mut [Action]) {
    let mut change = None;
    for at in 0..actions.len() {
        match &actions[at] {
            Action::Execute { batch, .. } => change = batch.reconfiguration().map(|_| at),
            Action::Group(_) => {
                if let Some(from) = change.take() {
                    actions[from..=at].rotate_right(1);
                }
            }
            _ => {}
        }
    }
}

impl<S: StateMachine> ProtocolStage<S> {
    /// Runs until told to stop, or until a change of the group cannot be written down.
    pub(crate) fn run(mut self) -> Result<(), Ended> {
        // What the start of the replica wants done. It may wait for the disk, as the only voter does.
        self.carry_out();
        self.shared.store(&self.replica.status());
        self.look_again();
        loop {
            if let Some(why) = self.failed.take() {
                self.stop();
                return Err(why);
            }
            let wait = self.deadline.since(self.clock.now()).min(Duration::from_secs(1));
            let first = match self.inputs.recv_timeout(wait) {
                Ok(input) => Some(input),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => {
                    self.stop();
                    return Ok(());
                }
            };
            let began = Instant::now();
            if first.is_some_and(|input| self.burst(input)) {
                self.stop();
                return Ok(());
            }
            let now = self.look();
            if now >= self.deadline {
                self.deadline = Time::NEVER;
                self.replica.step(now, Event::Timer, &mut self.actions);
            }
            self.ask_reads(now);
            self.replica.flush(now, &mut self.actions);
            self.carry_out();
            self.shared.store(&self.replica.status());
            self.warn_if_stranded(now);
            self.publish_progress();
            self.publish_reached(now);
            self.part(now);
            self.look_again();
            self.shared.bursts.add(1);
            self.shared.protocol_busy.since(began);
        }
    }

    /// Takes an input and what has gathered behind it; true if it is time to stop.
    fn burst(&mut self, first: Input) -> bool {
        let now = self.clock.now();
        let mut taken = 0;
        let (inputs, around) = (self.inputs.clone(), self.around.clone());
        let gathered = inputs.try_iter().take(BURST_MAX).chain(around.try_iter().take(BURST_MAX));
        for input in std::iter::once(first).chain(gathered) {
            taken += 1;
            if self.take(now, input) {
                return true;
            }
        }
        self.shared.events.add(taken);
        false
    }

    fn take(&mut self, now: Time, input: Input) -> bool {
        match input {
            Input::Stop => return true,
            Input::Wake => {}
            Input::Event(event) => {
                if let Event::Link { peer, link } = event {
                    self.parting.linked(now, peer, link == Link::Up);
                }
                self.replica.step(now, event, &mut self.actions);
            }
            Input::Request(job) => self.request(now, job),
            Input::Requests(jobs) => jobs.into_iter().for_each(|job| self.request(now, job)),
            Input::Job(job) => self.execute(job),
        }
        false
    }

    fn request(&mut self, now: Time, job: ClientJob) {
        match job {
            ClientJob::Command { kind, session, payload, reply } => {
                self.shared.requests.add(1);
                self.waiting.last += 1;
                let request = RequestId(self.waiting.last);
                self.waiting.commands.insert(request, reply);
                let event = Event::Request { request, kind, session, payload };
                self.replica.step(now, event, &mut self.actions);
            }
            ClientJob::Read { query, reply } => {
                self.shared.reads.add(1);
                self.waiting.burst.push((query, reply));
            }
        }
    }

    /// Tells the replica what has become durable and what was executed since the last look, as of the instant that it
    /// returns.
    fn look(&mut self) -> Time {
        let durable = Lsn(self.shared.durable.observe());
        let slot = Slot(self.shared.executed.observe());
        let clock = Duration::from_millis(self.shared.clock_ms.get());
        // Asked for only now: what the replica takes for gone by since it saw the replicated clock is no more than that.
        let now = self.clock.now();
        if durable > self.durable {
            self.durable = durable;
            self.replica.step(now, Event::Durable(durable), &mut self.actions);
        }
        if slot > self.executed {
            self.executed = slot;
            self.replica.step(now, Event::Executed { slot, clock }, &mut self.actions);
        }
        now
    }

    /// What became durable or was executed just before the wake-ups were asked for came without one; and what is left of what
    /// went around the queue brings none either.
    fn look_again(&mut self) {
        let status =
            (self.shared.wake_when_durable.load(SeqCst), self.shared.wake_when_executed.load(SeqCst));
        let missed = status.0 && self.shared.durable.observe() > self.durable.0
            || status.1 && self.shared.executed.observe() > self.executed.0
            || !self.around.is_empty();
        if missed {
            self.deadline = self.clock.now();
        }
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
            change_before_answer(&mut actions);
            actions.drain(..).for_each(|action| self.carry_out_one(action, &mut log));
            if self.actions.is_empty() {
                self.actions = actions; // Its memory serves again.
            }
        }
        if self.loss_pending && self.replica.may_vote() {
            self.loss_pending = false;
            log.loss_made_good = true;
            tracing::info!("this replica has learned again what it may have lost, and votes");
        }
        if !log.is_empty() {
            #[cfg(feature = "shuttle")]
            log.records.last().inspect(|(lsn, ..)| self.shared.watch.given(*lsn));
            // A failed send means that the log has failed, which stops the replica.
            let _ = self.log.send(log);
        }
    }

    /// Encodes a message once for all peers that speak the same version, and sends it, or leaves it to the log.
    fn send(&mut self, to: &To, message: &PeerMessage, after: Lsn, log: &mut LogJob) {
        // The replica may still have a word for one that was removed and is let go of.
        let peers = to.ids().iter().copied().filter(|&id| self.parting.has(id));
        let mut peers: Vec<_> = peers.map(|id| (self.transport.version(id), id)).collect();
        peers.sort_unstable_by_key(|&(version, _)| version);
        for peers in peers.chunk_by(|one, other| one.0 == other.0) {
            let version = peers[0].0;
            if !message.is_spoken_in(version) {
                continue;
            }
            let body = message.encode_in(version);
            let to: Vec<_> = peers.iter().map(|&(_, id)| id).collect();
            #[cfg(feature = "shuttle")]
            to.iter().for_each(|&to| self.shared.watch.said(to, &body, after));
            if after <= self.durable && !self.would_overtake(after) {
                #[cfg(feature = "shuttle")]
                to.iter().for_each(|&to| self.shared.watch.leaves(to, &body, after));
                self.transport.send_in(version, GroupId::FIRST, &to, body);
            } else {
                self.gated += 1;
                log.sends.push(GatedSend { to, version, body, after });
            }
        }
    }

    fn carry_out_one(&mut self, action: Action, log: &mut LogJob) {
        match action {
            Action::Append { lsn, record } => log.records.push((lsn, record.keep(), record.encode())),
            Action::Send { to, message, after } => self.send(&to, &message, after, log),
            Action::Execute { slot, ballots, batch, requests } => {
                let commands = &mut self.waiting.commands;
                let reply = |(place, request)| Some((place, commands.remove(&request)?));
                let replies = requests.into_iter().filter_map(reply).collect();
                self.execute(Job::Execute { slot, ballots, batch, replies });
            }
            Action::ReadAt { read, slot } => {
                if let Some(queries) = self.waiting.reads.remove(&read) {
                    self.execute(Job::Query { slot, queries });
                }
            }
            Action::ReadFailed { read, error } => {
                for (_, reply) in self.waiting.reads.remove(&read).into_iter().flatten() {
                    reply.send(Err(error));
                }
            }
            Action::RequestFailed { request, error } => {
                if let Some(reply) = self.waiting.commands.remove(&request) {
                    reply.send(Err(error));
                }
            }
            Action::Leader(view) => self.report_leader(view),
            Action::Group(group) => {
                tracing::info!(
                    version = group.version, epoch = %group.epoch, protocol = %group.protocol, election = %group.election,
                    voters = ?group.voters().map(|id| id.0).collect::<Vec<_>>(), "group"
                );
                if let Err(error) = self.notes.group(&group) {
                    self.failed.get_or_insert(error.into());
                    return;
                }
                let (members, former) = (self.notes.origin.members(&group, self.me), former(&group, self.me));
                self.parting.group(self.clock.now(), &group, members, former);
                self.set_peers();
                self.shared.group.store(Some(Arc::new(group)));
            }
            Action::Forked(fork) => self.differs(&fork),
            Action::Agreed(with) => {
                tracing::warn!(%with, "it had decided something else than this replica, and has learned again");
                self.publish_forks();
            }
            Action::Retired => {
                tracing::warn!("this replica was removed from the group, and the others go on without it");
                self.shared.retired.store(true, SeqCst);
            }
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

    fn set_peers(&self) {
        if let Err(error) = self.transport.set_peers(self.parting.peers().cloned().collect()) {
            tracing::error!(%error, "the group has a member that cannot be a peer; connections stay as they are");
        }
    }

    /// Ends what connects this replica with those who were removed and have had time to hear of it.
    fn part(&mut self, now: Time) {
        if self.parting.look(now) {
            self.set_peers();
        }
    }

    /// Another replica has decided something else than this one.
    fn differs(&mut self, fork: &Fork) {
        self.publish_forks();
        let why = forked(&self.me, fork);
        tracing::error!("{why}");
        if fork.alone {
            self.failed.get_or_insert(Ended::Forked(why));
        }
    }

    fn publish_forks(&self) {
        self.shared.forked_with.store(Arc::new(self.replica.forks().map(|fork| fork.with).collect()));
    }

    /// Whether a message that rests on a record would leave before an earlier one, which the log's thread still has. What
    /// rests on records leaves in the order in which it was said; what does not need not wait for it.
    fn would_overtake(&self, after: Lsn) -> bool {
        let waits = self.gated > self.shared.released.observe();
        after > Lsn::ZERO && waits && !planted(Planted::OvertakeGated)
    }

    /// A replica that lost its log learns from a leader what it may have said. Where there is none for long, most of the
    /// voters may have lost theirs: then they wait for each other, and only an operator can help.
    fn warn_if_stranded(&mut self, now: Time) {
        let status = self.replica.status();
        if !status.without_memory || status.protocol.view.leader.is_some() {
            self.stranded = Stranded::default();
            return;
        }
        let since = *self.stranded.since.get_or_insert(now);
        if now.since(since) > STRANDED_AFTER && !self.stranded.told {
            self.stranded.told = true;
            tracing::warn!(
                "this replica has lost (part of) its log and has no vote, and nobody leads, so it waits. If most of the \
                 voters lost theirs, they wait for each other: see 'Replicas without memory' in docs/operating.md"
            );
        }
    }

    /// What another thread writes down; see [`crate::meeting::write_what_is_heard`].
    fn publish_reached(&mut self, now: Time) {
        if now >= self.reached_at + REACHED_INTERVAL {
            self.reached_at = now;
            self.tell_reached();
        }
    }

    fn tell_reached(&self) {
        if let Some(history) = self.replica.reached() {
            let sums = history.to_note().map(|Mark { slot, fingerprint }| (slot, fingerprint)).collect();
            self.shared.reached.store(Some(Arc::new(Reached { since: history.since(), sums })));
        }
    }

    fn publish_progress(&self) {
        let published = self.shared.progress.load();
        if !self.replica.progress().eq(published.iter().copied()) {
            self.shared.progress.store(Arc::new(self.replica.progress().collect()));
        }
    }

    fn execute(&mut self, job: Job) {
        match &mut self.execution {
            Execution::Thread(jobs) => {
                let _ = jobs.send(job);
            }
            // What it executed shows at the next look.
            Execution::Here(stage) => {
                if let Some(event) = stage.run_job(job) {
                    self.replica.step(self.clock.now(), event, &mut self.actions);
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
        self.tell_reached();
        for (_, reply) in self.waiting.commands {
            reply.send(Err(RequestError::Stopping));
        }
        for (_, reply) in self.waiting.reads.into_values().flatten() {
            reply.send(Err(RequestError::Stopping));
        }
    }
}

#[cfg(test)]
mod tests {
    use synod_consensus::Options;
    use synod_replica::Group;
    use synod_wire::{Ballots, Batch, BatchBuilder, CommandKind, SessionId};

    use super::*;

    #[test]
    fn a_change_is_known_before_it_is_answered_and_all_else_keeps_its_order() {
        let batch = |kind| {
            let mut builder = BatchBuilder::new();
            builder.push_as(kind, SessionId(1), 1, 1, b"x");
            builder.finish()
        };
        let execute = |slot, batch: Batch| Action::Execute {
            slot: Slot(slot),
            ballots: Ballots::ZERO,
            batch,
            requests: Vec::new(),
        };
        let group = || Action::Group(Group::of(&Options::default(), [ReplicaId(1)]));
        let mut actions = vec![
            execute(1, batch(CommandKind::Reconfigure)),
            execute(2, batch(CommandKind::Apply)),
            execute(3, batch(CommandKind::Reconfigure)),
            Action::Retired,
            group(),
            execute(4, batch(CommandKind::Apply)),
            group(),
        ];
        change_before_answer(&mut actions);
        let told = actions.iter().map(|action| match action {
            Action::Execute { slot, .. } => slot.to_string(),
            Action::Group(_) => "group".to_owned(),
            _ => "retired".to_owned(),
        });
        assert_eq!(told.collect::<Vec<_>>(), ["1", "2", "group", "3", "retired", "4", "group"]);
    }
}

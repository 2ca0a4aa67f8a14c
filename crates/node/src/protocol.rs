//! The protocol's thread: takes events, steps the replicas of all groups that this node hosts, hands out what they want
//! done. It never waits for anybody but for its next event; only a change of a group is written down before it has any
//! effect. It does no I/O either, and executes nothing, unless it does the work of other threads beside its own
//! ([`crate::Threads::Compact`]): then it writes to sockets as much as they take at once, reads from them what is
//! there, and executes for a bounded time.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use synod_consensus::{Link, To};
use synod_host::{self as host, BURST_MAX, Bundles, Host, Parting, Turns};
use synod_replica::{
    Event, Group, LogBegin, LogFrom, LogPart, Met, PeerMessage, Replica, RequestError, SessionCommand,
    StateMachine,
};
use synod_storage::{PeerBook, StorageError};
use synod_sync::{
    channel::{RecvTimeoutError, Sender, TryRecvError},
    time::Instant,
};
use synod_transport::{Inbox, Peer};
use synod_wire::{CommandKind, GroupId, Lsn, ReplicaId, Time};
use tokio::sync::oneshot;

use crate::{
    Ended, Origin,
    event_loop::Task,
    executor::{Executors, Job},
    handle::Reply,
    hosted::Hosted,
    inputs::InputsEnd,
    log::{GatedSend, LogJob},
    merged::Query,
    node::{met_in, receive},
    origin::peers_of,
    snapshots::SnapshotJob,
    status::Ahead,
};

/// What a client of this replica wants.
pub(crate) enum ClientJob {
    Command { kind: CommandKind, session: Option<SessionCommand>, payload: Bytes, reply: Reply },
    Upkeep { payload: Bytes, reply: Reply },
    Read { query: Bytes, reply: Reply },
}

/// Whatever the protocol's thread waits for: one queue, so that it waits in one place.
#[allow(clippy::large_enum_variant, reason = "nearly all are events, and a box each would cost more")]
pub(crate) enum Input {
    /// Another thread, or a peer, has something for a group.
    Event(GroupId, Event),
    /// A peer has something for several groups.
    Events(Vec<(GroupId, Event)>),
    /// A session to a peer began or ended, or cannot begin: that concerns every group.
    Link(ReplicaId, Link),
    /// Every member with which the groups began was met once.
    MetAll,
    /// A client wants something of a group.
    Request(GroupId, ClientJob),
    /// Clients of one thread do.
    Requests(GroupId, Vec<ClientJob>),
    /// Read the decided log of a group, or say where it begins.
    ReadLog {
        group: GroupId,
        from: LogFrom,
        bytes_max: usize,
        answer: oneshot::Sender<Result<Option<LogPart>, LogBegin>>,
    },
    /// Something to execute, if commands are executed here.
    Job(GroupId, Job),
    /// Look at what is durable and executed.
    Wake,
    /// Time to end.
    Stop,
}

/// All groups that this node hosts, and everybody that they hand work to. A burst of inputs steps those groups that it
/// concerns; only they are then flushed, and what they want written or sent leaves together.
pub(crate) struct ProtocolStage<S> {
    /// The replicas of the groups, and what is decided of their bursts without a thread.
    pub(crate) host: Host<Reply, Query>,
    /// What serves them, by the number of the group.
    pub(crate) hosted: Vec<Hosted>,
    pub(crate) inputs: InputsEnd,
    /// What peers send, if this thread reads that itself.
    pub(crate) inbox: Option<Box<dyn Inbox>>,
    /// Where this is a task, if it is one.
    pub(crate) task: Option<Task>,
    /// What executes, if commands are executed here.
    pub(crate) executors: Option<Executors<S>>,
    pub(crate) common: Common,
}

/// What the groups share.
pub(crate) struct Common {
    pub(crate) me: ReplicaId,
    pub(crate) clock: Clock,
    /// What is to be executed.
    pub(crate) execution: Turns<Job>,
    pub(crate) log: Sender<LogJob>,
    /// What the present burst gives to the log.
    pub(crate) job: LogJob,
    pub(crate) transport: Arc<dyn synod_transport::Sender>,
    pub(crate) bundles: Bundles,
    pub(crate) snapshots: Sender<(GroupId, SnapshotJob)>,
    /// Which groups have become durable or executed further.
    pub(crate) ahead: Arc<Ahead>,
    /// Identities and births of the other replicas when they were last seen.
    pub(crate) book: Arc<PeerBook>,
    /// The peers: the members of all groups, and for a while those who were.
    pub(crate) parting: Parting<String>,
    /// What ends this replica.
    pub(crate) failed: Option<Ended>,
    /// Whether the log has still to be told that this replica has learned again what it may have lost.
    pub(crate) loss_pending: bool,
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
    /// Runs until told to stop, or until a change of the group cannot be written down.
    pub(crate) fn run(mut self) -> Result<(), Ended> {
        // What the start of the replicas wants done. They may wait for the disk, as an only voter does.
        self.carry_out(self.common.clock.now());
        self.execute();
        self.publish();
        if let Some(why) = self.failure() {
            return Err(why);
        }
        if let Some(task) = self.task.take() {
            return self.run_on(&task);
        }
        loop {
            let next = self.next(self.wait());
            if let Some(end) = self.turn(next) {
                return end;
            }
        }
    }

    /// How long the thread may sleep if nothing comes.
    pub(crate) fn wait(&self) -> Duration {
        self.host.due().since(self.common.clock.now())
    }

    /// Takes a burst of inputs, and does what they cause; says how the thread ends, if it does.
    pub(crate) fn turn(
        &mut self,
        next: Result<Option<Input>, RecvTimeoutError>,
    ) -> Option<Result<(), Ended>> {
        let began = Instant::now();
        let told_to_stop = next.map_or(true, |first| self.burst(first));
        if told_to_stop {
            self.stop();
            return Some(Ok(()));
        }
        let now = self.look();
        self.host.turn(now);
        self.carry_out(now);
        if let Some(why) = self.failure() {
            return Some(Err(why));
        }
        if !self.host.skip(now).is_empty() {
            self.carry_out(now);
            if let Some(why) = self.failure() {
                return Some(Err(why));
            }
        }
        self.execute();
        self.publish();
        if self.common.parting.look(now) {
            self.common.set_peers();
        }
        let shared = &self.hosted[0].shared;
        shared.bursts.add(1);
        shared.protocol_busy.since(began);
        self.failure().map(Err)
    }

    /// What ends this replica, if something does; then it was stopped.
    fn failure(&mut self) -> Option<Ended> {
        let why = self.common.failed.take()?;
        self.stop();
        Some(why)
    }

    /// Waits for an input, or for something from a peer if this thread reads that; `None` if there is nothing but that.
    ///
    /// # Errors
    /// Nobody can send inputs any more.
    fn next(&mut self, wait: Duration) -> Result<Option<Input>, RecvTimeoutError> {
        let wait = if self.common.execution.is_idle() { wait } else { Duration::ZERO };
        let Some(inbox) = &mut self.inbox else {
            return match self.inputs.queue.recv_timeout(wait) {
                Ok(input) => Ok(Some(input)),
                Err(RecvTimeoutError::Timeout) => Ok(None),
                Err(ended) => Err(ended),
            };
        };
        inbox.wait(wait, &|| self.inputs.queue.is_empty());
        match self.inputs.queue.try_recv() {
            Ok(input) => Ok(Some(input)),
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(RecvTimeoutError::Disconnected),
        }
    }

    /// Takes an input and what has gathered after it and from peers; true if it is time to stop.
    fn burst(&mut self, first: Option<Input>) -> bool {
        let now = self.common.clock.now();
        let mut taken = 0;
        let InputsEnd { queue, around } = self.inputs.clone();
        let gathered = queue.try_iter().take(BURST_MAX).chain(around.try_iter().take(BURST_MAX));
        for input in first.into_iter().chain(gathered) {
            taken += 1;
            if self.take(now, input) {
                return true;
            }
        }
        taken += self.take_from_peers(now);
        self.hosted[0].shared.events.add(taken);
        false
    }

    /// Takes what peers have sent, if this thread reads that; returns how many messages that were.
    fn take_from_peers(&mut self, now: Time) -> u64 {
        let Some(mut inbox) = self.inbox.take() else { return 0 };
        let (hosted, mut taken) = (self.hosted.len(), 0);
        let mut events = Vec::new();
        inbox.take(&mut |event| {
            let read = match event {
                synod_transport::Event::Received { from, version, group, body } => {
                    receive(hosted, group, from, version, body, &mut events)
                }
                synod_transport::Event::Met { peer, birth, incarnation, since, version } => {
                    events.extend(met_in(hosted, peer, Met { birth, incarnation, since, version }));
                    Ok(())
                }
                _ => Ok(()),
            };
            taken += events.len() as u64;
            let host = &mut self.host;
            events.drain(..).for_each(|(group, event)| host.step(now, host::Input::Event(group, event)));
            read
        });
        self.inbox = Some(inbox);
        taken
    }

    fn take(&mut self, now: Time, input: Input) -> bool {
        match input {
            Input::Stop => return true,
            Input::Wake => {}
            Input::Event(group, event) => self.host.step(now, host::Input::Event(group, event)),
            Input::Events(events) => {
                let step = |(group, event)| self.host.step(now, host::Input::Event(group, event));
                events.into_iter().for_each(step);
            }
            Input::Link(peer, link) => {
                self.common.parting.linked(now, peer, link == Link::Up);
                self.host.step_all(now, || Event::Link { peer, link });
            }
            Input::MetAll => self.host.step_all(now, || Event::MetAll),
            Input::Request(group, job) => self.request(now, group, job),
            Input::Requests(group, jobs) => {
                jobs.into_iter().for_each(|job| self.request(now, group, job));
            }
            Input::Job(group, job) => self.push_job(group, job),
            Input::ReadLog { group, from, bytes_max, answer } => {
                // A task that does not wait any more needs no answer.
                let _ = answer.send(self.host.replica(group).read_log(from, bytes_max));
            }
        }
        false
    }

    fn request(&mut self, now: Time, group: GroupId, job: ClientJob) {
        let shared = &self.hosted[usize::from(group.0)].shared;
        let input = match job {
            ClientJob::Command { kind, session, payload, reply } => {
                shared.requests.add(1);
                host::Input::Command { group, kind, session, payload, client: reply }
            }
            ClientJob::Upkeep { payload, reply } => {
                shared.requests.add(1);
                host::Input::Upkeep { group, payload, client: reply }
            }
            ClientJob::Read { query, reply } => {
                shared.reads.add(1);
                host::Input::Query(group, (query, reply))
            }
        };
        self.host.step(now, input);
    }

    /// Something is to be executed here.
    fn push_job(&mut self, group: GroupId, job: Job) {
        self.common.execution.push(group, job);
        self.common.execution.find(&[group]);
    }

    /// Tells the groups what has become durable and what was executed since the last look, as of the instant that it
    /// returns.
    fn look(&mut self) -> Time {
        let ahead = Arc::clone(&self.common.ahead);
        let see = |group: GroupId| (group, self.hosted[usize::from(group.0)].see());
        let seen: Vec<_> = ahead.take().map(see).collect();
        // Asked for only now: what a replica takes for gone by since it saw the replicated clock is no more than that.
        let now = self.common.clock.now();
        for (group, progress) in seen {
            self.host.step(now, host::Input::Progress(group, progress));
        }
        now
    }

    /// Executes for a while what waits to be executed here, in turns for all groups. It comes after everything that the
    /// burst wants sent and written has left.
    fn execute(&mut self) {
        let Common { clock, execution, .. } = &mut self.common;
        execution.find(self.host.touched());
        let Some(executors) = self.executors.as_mut().filter(|_| !execution.is_idle()) else { return };
        let (clock, began, mut changed) = (*clock, Instant::now(), false);
        execution.turn(clock.now(), |group, job, until| {
            for (group, event) in executors.run_job(group, job, || clock.now() >= until) {
                self.host.step(clock.now(), host::Input::Event(group, event));
                changed = true;
            }
            (executors.has_more(group).then_some(Job::GoOn), clock.now())
        });
        self.hosted[0].shared.executor_busy.since(began);
        if changed {
            let now = clock.now();
            self.host.flush(now);
            self.carry_out(now);
            self.common.execution.find(self.host.touched());
        }
    }

    /// Hands out what the groups want done. After something that ends this replica nothing more of the burst leaves:
    /// members that could not be written down must have no effect.
    fn carry_out(&mut self, now: Time) {
        let (hosted, common) = (&mut self.hosted, &mut self.common);
        self.host.carry_out(now, |group, replica, effect| {
            if common.failed.is_none() {
                hosted[usize::from(group.0)].carry_out(replica, effect, common);
            }
        });
        if common.failed.is_some() {
            return;
        }
        self.host.touched().iter().for_each(|group| hosted[usize::from(group.0)].hand_over(common));
        let transport = &common.transport;
        common.bundles.leave(|version, group, to, body| transport.send_in(version, group, to, body));
        transport.flush();
        // In a group that does not count on it, it may have no vote for good. There the log of the group says what it
        // lost.
        let counted = |replica: &&Replica| replica.group().counts(common.me);
        let votes = self.host.replicas().any(|replica| counted(&replica));
        if common.loss_pending && votes && self.host.replicas().filter(counted).all(Replica::may_vote) {
            common.loss_pending = false;
            common.job.loss_made_good = true;
            tracing::info!("this replica has learned again what it may have lost, and votes");
        }
        if !common.job.is_empty() {
            #[cfg(feature = "shuttle")]
            for crate::log::GroupRecord { group, lsn, .. } in &common.job.records {
                self.hosted[usize::from(group.0)].shared.watch.given(*lsn);
            }
            // A failed send means that the log has failed, which stops the replica.
            let _ = common.log.send(std::mem::take(&mut common.job));
        }
    }

    /// Shows how the touched groups are now; the burst is over.
    fn publish(&mut self) {
        let now = self.common.clock.now();
        let touched = self.host.end();
        for &group in &touched {
            let (hosted, replica) = (&mut self.hosted[usize::from(group.0)], self.host.replica(group));
            let status = replica.status();
            hosted.shared.store(&status);
            hosted.log_stage(&status);
            hosted.warn_if_stranded(replica, self.common.me, now);
            hosted.publish_progress(replica);
            hosted.publish_reached(replica, now);
            hosted.settle_in_time(replica, self.common.me, now);
            hosted.shared.watchers.tell();
        }
        self.host.reuse(touched);
        // What became durable or was executed just before the wake-ups were asked for came without one.
        for group in self.common.ahead.peek() {
            if self.hosted[usize::from(group.0)].has_missed() {
                self.host.wake(group, now);
            }
        }
        // What is left of what went around the queue brings no wake-up either.
        if !self.inputs.around.is_empty() {
            self.host.wake(GroupId::FIRST, now);
        }
    }

    /// Fails all requests that wait; the other threads are told by the one that stops this one.
    fn stop(&mut self) {
        for (hosted, replica) in self.hosted.iter().zip(self.host.replicas()) {
            hosted.tell_reached(replica);
        }
        let (commands, queries) = self.host.stop();
        let waiting = commands.into_iter().chain(queries.into_iter().map(|(_, reply)| reply));
        waiting.for_each(|reply| reply.send(Err(RequestError::Stopping)));
        self.hosted.clear();
    }
}

impl Common {
    /// Sends a message, or leaves it to the log.
    pub(crate) fn send(&mut self, of: &mut Hosted, to: &To, message: &PeerMessage, after: Lsn) {
        let transport = &self.transport;
        // The replica may still have a word for one that was removed and is let go of.
        let peers = to.ids().iter().copied().filter(|&id| self.parting.has(id));
        let peers = peers.map(|id| (transport.version(id), id)).collect();
        host::encode_by_version(of.group, message, peers, |version, to, body| {
            of.shared.messages_sent.add(to.len() as u64);
            #[cfg(feature = "shuttle")]
            to.iter().for_each(|&to| of.shared.watch.said(to, &body, after));
            if of.admits(after) {
                #[cfg(feature = "shuttle")]
                to.iter().for_each(|&to| of.shared.watch.leaves(to, &body, after));
                let frame = |version, group, to: &_, body| transport.send_in(version, group, to, body);
                self.bundles.put(version, of.group, &to, body, frame);
            } else {
                self.job.sends.push((of.group, after, GatedSend { to, version, body }));
            }
        });
    }

    /// A group is another one now.
    pub(crate) fn regroup(
        &mut self,
        of: GroupId,
        group: &Group,
        origin: &Origin,
    ) -> Result<(), StorageError> {
        let (members, former) = peers_of(group, origin, self.me);
        let (members, former) = (addressed(members), addressed(former));
        self.parting.group(self.clock.now(), of, group, members, former);
        self.book.forget_all_but(|id| self.parting.remembers(id))?;
        let strangers = self.book.expect(of, group.births());
        if !strangers.is_empty() {
            // Their sessions end, and begin again only with those that the group knows.
            let known = peers(&self.parting).filter(|peer| !strangers.contains(&peer.id));
            self.set_peers_to(known.collect());
        }
        self.set_peers();
        Ok(())
    }

    fn set_peers(&self) {
        self.set_peers_to(peers(&self.parting).collect());
    }

    fn set_peers_to(&self, peers: Vec<Peer>) {
        if let Err(error) = self.transport.set_peers(peers) {
            tracing::error!(%error, "the group has a member that cannot be a peer; connections stay as they are");
        }
    }
}

/// The replicas to be connected with, and where they are.
pub(crate) fn peers(parting: &Parting<String>) -> impl Iterator<Item = Peer> {
    parting.peers().cloned().map(|(id, address)| Peer { id, address })
}

/// The same for [`Parting`].
pub(crate) fn addressed(peers: Vec<Peer>) -> Vec<(ReplicaId, String)> {
    peers.into_iter().map(|Peer { id, address }| (id, address)).collect()
}

//! How the rest of a process talks to its replica.

use std::{
    future::{Future, poll_fn},
    iter, mem,
    pin::pin,
    sync::{
        Arc,
        atomic::Ordering::{Relaxed, SeqCst},
    },
    task::Poll,
    time::Duration,
};

use bytes::Bytes;
use synod_consensus::{Combination, Role};
use synod_replica::{
    Answer, Change, ChangeRequest, Choice, Event, Group, Limits, LogBegin, LogFrom, LogPart, Membership,
    Others, RequestError, SessionCommand, SubscribeError, Take, decode_reply,
};
use synod_sync::time::Instant;
use synod_wire::{Ballot, Batch, CommandKind, Durability, GroupId, ReplicaId, SessionId, Slot};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};

use crate::{
    ChangeError, ReadLogError, Watch,
    executor::{Job, JobSender},
    inputs::Inputs,
    node::joins,
    protocol::{ClientJob, Input},
    status::{MergeStatus, NodeStatus, PeerLink, Shared},
    view::any_change,
};

/// Bytes that one permit of the admission semaphore stands for.
const PERMIT_BYTES: usize = 1024;

/// Requests that are handed over together at most.
const TURN_MAX: usize = 256;

/// What a client waits for, and its place in the queue. The place is taken until there is an answer, whether or not the
/// client still waits: a client that withdraws its requests as fast as it sends them fills the queue no further than
/// one that waits.
#[derive(Debug)]
pub(crate) struct Reply {
    answer: oneshot::Sender<Told>,
    ordered: Option<Instant>,
    _place: OwnedSemaphorePermit,
}

/// What a client is told, and when its command was decided, or its read confirmed, if that happened.
type Told = (Result<Answer, RequestError>, Option<Instant>);

impl Reply {
    /// What it waits for was ordered at this moment: only its execution is still to come.
    pub(crate) fn ordered(self, at: Option<Instant>) -> Reply {
        Reply { ordered: at, ..self }
    }

    /// Whether the client still waits.
    pub(crate) fn is_awaited(&self) -> bool {
        !self.answer.is_closed()
    }

    /// Answers the client, if it still waits, and frees its place.
    pub(crate) fn send(self, answer: Result<Answer, RequestError>) {
        let _ = self.answer.send((answer, self.ordered));
    }
}

/// An answer, and where the time went until it came.
#[doc(hidden)]
#[derive(Debug)]
pub struct Timed<T> {
    /// The answer.
    pub outcome: Result<T, RequestError>,
    /// How long the request waited for a place in the queue and for its order: until the command was decided, or it was
    /// known what the read must see; or until it failed.
    pub ordering: Duration,
    /// How long it then took until the answer came, with the wait for what was to be executed before it.
    pub execution: Duration,
}

impl<T> Timed<T> {
    fn new(began: Instant, told: Result<Told, RequestError>, of: impl FnOnce(Answer) -> T) -> Timed<T> {
        let (outcome, ordered) = told.unwrap_or_else(|error| (Err(error), None));
        let now = Instant::now();
        let ordered = ordered.unwrap_or(now);
        Timed {
            outcome: outcome.map(of),
            ordering: ordered.saturating_duration_since(began),
            execution: now.saturating_duration_since(ordered),
        }
    }
}

/// A handle on a running replica; clones are handles on the same one.
///
/// The futures belong to no particular runtime, and no method blocks its thread. Futures may be dropped at any time.
/// Requests wait for admission when too many bytes of commands are under way, so that clients feel the load. A request
/// that is dropped after its admission keeps its place until its command is executed or has failed.
#[derive(Clone, Debug)]
pub struct Handle {
    pub(crate) inner: Arc<Inner>,
    /// See [`Handle::gathering`].
    gathered: Option<mpsc::UnboundedSender<ClientJob>>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) me: ReplicaId,
    pub(crate) group: GroupId,
    /// What all groups of the node show, by their numbers.
    pub(crate) all: Arc<[Arc<Shared>]>,
    /// How many batches of each come in a row, if they have one order.
    pub(crate) take: Option<Take>,
    pub(crate) durability: Durability,
    pub(crate) inputs: Inputs,
    pub(crate) executor: JobSender,
    pub(crate) admission: Arc<Semaphore>,
    pub(crate) permits_max: usize,
    pub(crate) shared: Arc<Shared>,
    pub(crate) transport: Arc<dyn synod_transport::Sender>,
}

type Answered = oneshot::Receiver<Told>;

/// What came for a client; a replica that is gone was stopping.
async fn told(answer: Answered) -> Told {
    answer.await.unwrap_or((Err(RequestError::Stopping), None))
}

impl Inner {
    fn execute(&self, job: Job) -> Result<(), RequestError> {
        if self.executor.send(self.group, job) { Ok(()) } else { Err(RequestError::Stopping) }
    }

    /// Reads the decided log of a group, or finds out where it begins.
    ///
    /// # Errors
    /// The replica is stopping.
    pub(crate) async fn read_log(
        &self,
        group: GroupId,
        from: LogFrom,
        bytes_max: usize,
    ) -> Result<Result<Option<LogPart>, LogBegin>, SubscribeError> {
        let (answer, answered) = oneshot::channel();
        self.inputs.send(Input::ReadLog { group, from, bytes_max, answer });
        answered.await.map_err(|_| SubscribeError::Stopping)
    }

    /// Whether this replica takes part in a group.
    pub(crate) fn takes_part(&self, group: GroupId) -> bool {
        let group = self.all[usize::from(group.0)].group.load();
        group.as_ref().is_none_or(|group| !group.is_away(self.me))
    }

    fn joins(&self) -> bool {
        joins(self.shared.group.load().as_ref().expect("stored when the replica started"), self.me)
    }

    /// This replica's own state is what it may tell from now on.
    fn settle(&self) {
        if !self.shared.settled.load(Relaxed) && !self.joins() {
            self.shared.settled.store(true, SeqCst);
            self.shared.watchers.tell();
        }
    }

    /// Waits for a place in the queue for this many bytes.
    async fn admit(&self, bytes: usize) -> Result<(Reply, Answered), RequestError> {
        let permits = (bytes / PERMIT_BYTES + 1).min(self.permits_max);
        let permits = u32::try_from(permits).expect("bounded by permits_max");
        let place = Arc::clone(&self.admission).acquire_many_owned(permits).await;
        let place = place.map_err(|_| RequestError::Stopping)?;
        let (answer, answered) = oneshot::channel();
        Ok((Reply { answer, ordered: None, _place: place }, answered))
    }

    pub(crate) fn permits(queue_bytes_max: usize) -> usize {
        (queue_bytes_max / PERMIT_BYTES).clamp(1, u32::MAX as usize >> 4)
    }
}

impl Handle {
    pub(crate) fn new(inner: Inner) -> Handle {
        Handle { inner: Arc::new(inner), gathered: None }
    }

    /// A handle for the tasks of one thread, and a task that has to run among them: what they want in one turn of
    /// that thread is handed to the replica together. A hand-over costs more than ordering a command, and it takes the
    /// processor from the task that is about to bring the next command, so that batches would stay small.
    #[doc(hidden)]
    pub fn gathering(&self) -> (Handle, impl Future<Output = ()> + Send + use<>) {
        // Bounded by the admission of requests.
        let (gathered, jobs) = mpsc::unbounded_channel();
        let handle = Handle { inner: Arc::clone(&self.inner), gathered: Some(gathered) };
        (handle, hand_over(jobs, self.inner.group, self.inner.inputs.clone()))
    }

    fn send(&self, job: ClientJob) -> Result<(), RequestError> {
        let sent = match &self.gathered {
            Some(gathered) => gathered.send(job).is_ok(),
            None => self.inner.inputs.send(Input::Request(self.inner.group, job)),
        };
        if sent { Ok(()) } else { Err(RequestError::Stopping) }
    }

    /// Orders a command and executes it, at most once, in this replica's own session. Returns the state machine's
    /// reply.
    ///
    /// # Errors
    /// See [`RequestError`]; [`RequestError::may_have_executed`] says whether the command may have been executed all
    /// the same.
    pub async fn execute(&self, command: Bytes) -> Result<Bytes, RequestError> {
        self.execute_timed(command).await.outcome
    }

    /// The same with where the time went.
    #[doc(hidden)]
    pub async fn execute_timed(&self, command: Bytes) -> Timed<Bytes> {
        self.command(CommandKind::Apply, None, command).await
    }

    /// The same for a command that keeps something alive, such as a lease: it is not refused because others wait. A
    /// caller has few of them under way at a time.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub async fn execute_upkeep(&self, command: Bytes) -> Result<Bytes, RequestError> {
        self.submit(command, |payload, reply| ClientJob::Upkeep { payload, reply }).await.outcome
    }

    /// The same for a client that numbers its commands: one that was executed before is answered with the reply
    /// of that time.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub async fn execute_in_session(
        &self,
        place: SessionCommand,
        command: Bytes,
    ) -> Result<Bytes, RequestError> {
        self.execute_in_session_timed(place, command).await.outcome
    }

    /// The same with where the time went.
    #[doc(hidden)]
    pub async fn execute_in_session_timed(&self, place: SessionCommand, command: Bytes) -> Timed<Bytes> {
        self.command(CommandKind::Apply, Some(place), command).await
    }

    /// Opens a session, through the log.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub async fn open_session(&self) -> Result<SessionId, RequestError> {
        let reply = self.command(CommandKind::OpenSession, None, Bytes::new()).await.outcome?;
        let id = reply[..].try_into().map_err(|_| RequestError::OutcomeUnknown)?;
        Ok(SessionId(u64::from_le_bytes(id)))
    }

    /// The group as this replica knows it. It may have changed since.
    #[must_use]
    pub fn group(&self) -> Arc<Group> {
        self.inner.shared.group.load_full().expect("stored when the replica started")
    }

    /// What the group bounds, as this replica knows it. Cheap.
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.inner.shared.group.load().as_ref().expect("stored when the replica started").limits
    }

    /// Something to wait with until leadership, the applied slot or the membership changes.
    #[must_use]
    pub fn watch(&self) -> Watch {
        Watch::new(Arc::clone(&self.inner.shared))
    }

    /// Reads the decided log from slot `from` on: consecutive slots, at most `bytes_max` bytes of batches, but at least
    /// one slot if any is decided there. None are returned if `from` is not decided yet; [`Handle::watch`] tells when
    /// more are executed. A replica keeps slots for others that lag ([`Settings::keep_slots`],
    /// [`Settings::keep_bytes`]), and until a snapshot covers them.
    ///
    /// A batch holds all that was ordered in its slot. A command that a client sent again may be there twice, and is
    /// executed once; changes of the group and the sessions are there too ([`CommandKind`]).
    ///
    /// [`Settings::keep_slots`]: synod_replica::Settings::keep_slots
    /// [`Settings::keep_bytes`]: synod_replica::Settings::keep_bytes
    ///
    /// # Errors
    /// See [`ReadLogError`].
    pub async fn read_log(&self, from: Slot, bytes_max: usize) -> Result<Vec<(Slot, Batch)>, ReadLogError> {
        match self.inner.read_log(self.inner.group, LogFrom::Slot(from), bytes_max).await {
            Ok(Ok(part)) => {
                let batches = part.map(|part| part.batches).unwrap_or_default();
                Ok((from.0..).map(Slot).zip(batches).collect())
            }
            Ok(Err(LogBegin { first, .. })) => Err(ReadLogError::Trimmed { first }),
            Err(_) => Err(ReadLogError::Stopping),
        }
    }

    /// Whether this replica takes part in the group; otherwise it answers [`RequestError::TakesNoPart`] to whatever is
    /// asked of it. It may be a member of the cluster, and take no part where others were chosen
    /// ([`Others::StayAway`]).
    #[must_use]
    pub fn takes_part(&self) -> bool {
        self.inner.takes_part(self.inner.group)
    }

    /// Whether this replica joins the group, and has not learned yet that it is a member.
    #[must_use]
    pub fn joins(&self) -> bool {
        self.inner.joins()
    }

    /// Whether this replica was removed from the group, and nobody needs it any more. It comes back to a group of
    /// several if it is chosen again ([`Change::Place`]).
    #[must_use]
    pub fn is_retired(&self) -> bool {
        self.inner.shared.retired.load(std::sync::atomic::Ordering::SeqCst)
    }

    /// Changes the group, if it is still the one of version `expected`; the group as it is then. A change of what
    /// orders begins an epoch, which takes a moment in which commands wait; so does one of who votes, unless the
    /// protocol changes voters itself.
    ///
    /// # Errors
    /// See [`ChangeError`].
    pub async fn change(&self, expected: u64, change: Change) -> Result<Group, ChangeError> {
        self.check(&change)?;
        let request = ChangeRequest { expected, change };
        let payload = request.encode().to_bytes();
        let reply = self.command(CommandKind::Reconfigure, None, payload).await.outcome?;
        Ok(decode_reply(reply).map_err(|_| RequestError::OutcomeUnknown)??)
    }

    /// Refuses what every replica would refuse too, with a reason that says more.
    fn check(&self, change: &Change) -> Result<(), ChangeError> {
        match change {
            // This changes nothing but what members say of themselves, which stands in the first group.
            Change::Update { id, info }
                if self.inner.group == GroupId::FIRST
                    && self
                        .group()
                        .member(*id)
                        .is_some_and(|member| member.info.peer_urls == info.peer_urls) => {}
            Change::Add { .. } | Change::Promote { .. } | Change::Remove(_) | Change::Update { .. }
                if self.inner.all.len() > 1 =>
            {
                match self.group().membership {
                    Membership::Followed(_) => {}
                    Membership::Follows(_) => return Err(ChangeError::MembersFollow),
                    _ => return Err(ChangeError::MembersStay),
                }
            }
            Change::Follow(_) => return Err(ChangeError::MembersFollow),
            Change::Place(Some(Choice { others: Others::StayAway, .. })) if self.inner.take.is_some() => {
                return Err(ChangeError::AllLearn);
            }
            Change::Order { protocol, election, overrides } => {
                overrides.check(*protocol)?;
                let (dissemination, durability) = (overrides.dissemination(), self.inner.durability);
                Combination::of(*protocol, *election, dissemination, durability).check()?;
            }
            Change::Limits(limits) => limits.check()?,
            _ => {}
        }
        Ok(())
    }

    /// Asks this replica, if it leads, to hand the leadership to a member. Whether that happens shows in the status;
    /// nothing does if this replica does not lead.
    ///
    /// # Errors
    /// The replica is stopping, or has too much to do to be asked now.
    pub fn transfer(&self, to: ReplicaId) -> Result<(), RequestError> {
        let event = Input::Event(self.inner.group, Event::Transfer(to));
        self.inner.inputs.send_if_room(event)
    }

    async fn command(
        &self,
        kind: CommandKind,
        session: Option<SessionCommand>,
        payload: Bytes,
    ) -> Timed<Bytes> {
        self.submit(payload, |payload, reply| ClientJob::Command { kind, session, payload, reply }).await
    }

    async fn submit(&self, payload: Bytes, job: impl FnOnce(Bytes, Reply) -> ClientJob) -> Timed<Bytes> {
        let began = Instant::now();
        let submitted = async {
            if payload.len() > self.limits().request_bytes_max {
                return Err(RequestError::TooLarge);
            }
            let (reply, answer) = self.inner.admit(payload.len()).await?;
            self.send(job(payload, reply))?;
            Ok(told(answer).await)
        };
        Timed::new(began, submitted.await, Answer::whole)
    }

    /// Asks the state machine; the answer reflects everything that was acknowledged before the call.
    ///
    /// # Errors
    /// See [`RequestError`]; a query never changes anything.
    pub async fn query(&self, query: Bytes) -> Result<Bytes, RequestError> {
        self.read(query).await.map(Answer::whole)
    }

    /// The same for an answer that may be large: what of it comes in pieces is made by the thread that takes them,
    /// which should be a thread that may take its time.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub async fn read(&self, query: Bytes) -> Result<Answer, RequestError> {
        self.read_timed(query).await.outcome
    }

    /// The same with where the time went.
    #[doc(hidden)]
    pub async fn read_timed(&self, query: Bytes) -> Timed<Answer> {
        let began = Instant::now();
        let submitted = async {
            let (reply, answer) = self.inner.admit(query.len()).await?;
            self.send(ClientJob::Read { query, reply })?;
            Ok::<_, RequestError>(told(answer).await)
        };
        let timed = Timed::new(began, submitted.await, |answer| answer);
        if timed.outcome.is_ok() {
            self.inner.settle();
        }
        timed
    }

    /// Asks the state machine as this replica has it, without asking anybody how recent that is. Later answers
    /// are never older than earlier ones.
    ///
    /// After a restart that needs the others: until a first read has succeeded, this asks as [`Handle::query`] does,
    /// so that no answer is older than one of the life before. If that fails, as without a quorum, or takes longer than
    /// the request time-out since the start, the replica answers what it has, which may be older. A replica that joins
    /// answers once it has learned that it is a member.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub async fn query_stale(&self, query: Bytes) -> Result<Bytes, RequestError> {
        self.read_stale(query).await.map(Answer::whole)
    }

    /// The same for an answer that may be large; see [`Handle::read`].
    ///
    /// # Errors
    /// See [`RequestError`].
    pub async fn read_stale(&self, query: Bytes) -> Result<Answer, RequestError> {
        if !self.takes_part() {
            return Err(RequestError::TakesNoPart);
        }
        if !self.inner.shared.settled.load(SeqCst)
            && let Some(answer) = self.first_answer(&query).await
        {
            return answer;
        }
        self.read_present(query).await
    }

    /// The first answers of a life; `None` if the replica answers from its own state from now on.
    async fn first_answer(&self, query: &Bytes) -> Option<Result<Answer, RequestError>> {
        let shared = &*self.inner.shared;
        let mut read = pin!(self.read(query.clone()));
        let mut settled = pin!(any_change(iter::once(shared), || shared.settled.load(SeqCst)));
        let answer = poll_fn(|context| match read.as_mut().poll(context) {
            Poll::Ready(answer) => Poll::Ready(Some(answer)),
            Poll::Pending => settled.as_mut().poll(context).map(|_| None),
        });
        match answer.await? {
            Err(RequestError::NoLeader | RequestError::Timeout) if !self.joins() => {
                self.inner.settle();
                None
            }
            answer => Some(answer),
        }
    }

    /// Asks the state machine as this replica has it at this moment, for those who look after the replica: after a
    /// restart the answer may be older than one of the life before.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub async fn read_present(&self, query: Bytes) -> Result<Answer, RequestError> {
        if !self.takes_part() {
            return Err(RequestError::TakesNoPart);
        }
        let (reply, answer) = self.inner.admit(query.len()).await?;
        let job = Job::Query { slot: Slot::ZERO, queries: vec![(query, reply)] };
        self.inner.execute(job)?;
        told(answer).await.0
    }

    /// A fingerprint of the state machine and the sessions, and the slot that it belongs to: equal on all replicas
    /// at equal slots.
    ///
    /// # Errors
    /// The replica is stopping.
    pub async fn digest(&self) -> Result<(Slot, u64), RequestError> {
        let (reply, answer) = oneshot::channel();
        self.inner.execute(Job::Digest(reply))?;
        answer.await.map_err(|_| RequestError::Stopping)
    }

    /// Whether this replica leads. Cheap.
    #[must_use]
    pub fn leads(&self) -> bool {
        self.inner.shared.role() == Role::Leader
    }

    /// The highest ballot that this replica knows.
    #[must_use]
    pub fn ballot(&self) -> Ballot {
        self.inner.shared.ballot()
    }

    /// A number that grows with the leaders and the epochs of the group. Of two replicas, the one with the greater term
    /// knows more of that; within a replica's life it never shrinks. Cheap.
    #[must_use]
    pub fn term(&self) -> u64 {
        self.inner.shared.term()
    }

    /// The replica at this moment.
    #[must_use]
    pub fn status(&self) -> NodeStatus {
        let shared = &self.inner.shared;
        let peers = self.inner.transport.metrics().peers;
        NodeStatus {
            role: shared.role(),
            without_memory: shared.without_memory.load(Relaxed),
            takes_care: shared.takes_care.load(Relaxed),
            leader: shared.leader(),
            epoch: synod_wire::Epoch(shared.epoch.get()),
            ballot: shared.ballot(),
            decided: Slot(shared.decided.get()),
            decided_elsewhere: Slot(shared.decided_elsewhere.get()),
            executed: Slot(shared.executed.observe()),
            snapshot: Slot(shared.snapshot_slot.get()),
            receiving: (shared.receiving_bytes.get(), shared.receiving_total.get()),
            sources: shared.sources.get(),
            learners: shared.progress.load().to_vec(),
            log_bytes: shared.log_bytes.get(),
            messages_sent: shared.messages_sent.get(),
            client_sessions: shared.client_sessions.get(),
            peers: peers.into_iter().map(PeerLink::of).collect(),
            round_trips: shared.round_trips.load().to_vec(),
            origins: shared.origins.load().to_vec(),
            waits_for: shared.waits_for.load().to_vec(),
            forked_with: shared.forked_with.load().to_vec(),
            merge: self.inner.take.map(|_| MergeStatus {
                position: shared.position.get(),
                waits_for: self.inner.all[0].merge.stall(),
                waited: self.inner.all[0].merge.waited(),
            }),
        }
    }
}

async fn hand_over(mut jobs: mpsc::UnboundedReceiver<ClientJob>, group: GroupId, inputs: Inputs) {
    let mut turn = Vec::new();
    while jobs.recv_many(&mut turn, TURN_MAX).await > 0 {
        let_others_run().await;
        while turn.len() < TURN_MAX
            && let Ok(job) = jobs.try_recv()
        {
            turn.push(job);
        }
        if !inputs.send(Input::Requests(group, mem::take(&mut turn))) {
            return;
        }
    }
}

/// Returns once the tasks that are ready now have run.
async fn let_others_run() {
    let mut yielded = false;
    std::future::poll_fn(|context| {
        if mem::replace(&mut yielded, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

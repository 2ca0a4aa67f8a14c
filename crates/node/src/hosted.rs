//! One group of replicas, as this node takes part in it: what its replica is told, and what it wants done.

use std::{
    sync::{Arc, atomic::Ordering::SeqCst},
    time::Duration,
};

use synod_consensus::Role;
use synod_host::{Entry, Execution};
use synod_replica::{Action, Clocked, Event, Fork, Group, Mark, Replica, ReplicaStatus, RequestError};
use synod_storage::Reached;
use synod_sync::{Planted, channel::Sender, planted, time::Instant};
use synod_wire::{Ballot, Epoch, GroupId, Lsn, ReplicaId, Slot, Time};

use crate::{
    Ended,
    executor::Job,
    log::GroupRecord,
    meeting::forked,
    merged::Queries,
    node::{Notes, joins},
    protocol::{ClientJob, Common},
    snapshots::SnapshotJob,
    status::Shared,
    view::Watched,
    waiting::Waiting,
};

/// How old what the other threads know of what is decided gets.
const REACHED_INTERVAL: Duration = Duration::from_secs(1);

/// Elections are over by then, if there can be any.
const STRANDED_AFTER: Duration = Duration::from_secs(30);

/// One group of replicas, as this node takes part in it.
pub(crate) struct Hosted {
    pub(crate) group: GroupId,
    pub(crate) replica: Replica,
    pub(crate) actions: Vec<Action>,
    /// What is to be executed.
    pub(crate) execution: Execution<Job>,
    /// The thread that executes it, unless this one does.
    pub(crate) executor: Option<Sender<(GroupId, Job)>>,
    pub(crate) shared: Arc<Shared>,
    /// The members, and where to find them while the log does not tell.
    pub(crate) notes: Notes,
    /// Whether it has long been without memory and without a leader.
    pub(crate) stranded: Stranded,
    /// The stage of elections that was logged last.
    pub(crate) stage: Option<Stage>,
    /// When the other threads last heard what is decided.
    pub(crate) reached_at: Time,
    /// When it answers from its own state at the latest, unless it joins.
    pub(crate) settles_at: Time,
    /// The present burst has touched it.
    pub(crate) is_touched: bool,
    /// Where its messages go before they leave; those that have to wait leave by the log's thread.
    pub(crate) gate: Entry,
    pub(crate) executed: Slot,
    /// What the replica was last told of the replicated clock.
    pub(crate) clock: Option<Clocked>,
    pub(crate) waiting: Waiting,
    /// Ends what tasks wait for when this thread ends.
    pub(crate) _watched: Watched,
}

/// See [`Hosted::warn_if_stranded`].
#[derive(Debug, Default)]
pub(crate) struct Stranded {
    /// Since when it is.
    since: Option<Time>,
    /// That it has been so for long was said.
    told: bool,
}

/// What changes in the course of an election: the epoch, the role, and the highest ballot that the replica knows.
type Stage = (Epoch, Role, Ballot);

/// How far a group is on the disk and in execution, and what its replicated clock shows.
pub(crate) struct Seen {
    durable: Lsn,
    slot: Slot,
    clock: Clocked,
}

impl Hosted {
    pub(crate) fn step(&mut self, now: Time, event: Event) {
        self.replica.step(now, event, &mut self.actions);
    }

    pub(crate) fn request(&mut self, now: Time, job: ClientJob) {
        match job {
            ClientJob::Command { kind, session, payload, reply } => {
                self.shared.requests.add(1);
                let request = self.waiting.commands.insert(reply);
                self.step(now, Event::Request { request, kind, session, payload });
            }
            ClientJob::Upkeep { payload, reply } => {
                self.shared.requests.add(1);
                let request = self.waiting.commands.insert(reply);
                self.step(now, Event::Upkeep { request, payload });
            }
            ClientJob::Read { query, reply } => {
                self.shared.reads.add(1);
                self.waiting.query(query, reply);
            }
        }
    }

    pub(crate) fn see(&self) -> Seen {
        Seen {
            durable: Lsn(self.shared.durable.observe()),
            slot: Slot(self.shared.executed.observe()),
            clock: self.shared.clock(),
        }
    }

    pub(crate) fn look(&mut self, now: Time, Seen { durable, slot, clock }: Seen) {
        if durable > self.gate.through() {
            self.gate.durable(durable);
            self.step(now, Event::Durable(durable));
        }
        // Of merged groups, another one may have executed what the state machine of all waits for now.
        if slot > self.executed || self.clock != Some(clock) {
            self.executed = self.executed.max(slot);
            self.clock = Some(clock);
            self.step(now, Event::Executed { slot: self.executed, clock });
        }
    }

    /// Whether something that it wants to be woken for has happened since the last look.
    pub(crate) fn has_missed(&self) -> bool {
        let shared = &self.shared;
        shared.wake_when_durable.load(SeqCst) && shared.durable.observe() > self.gate.through().0
            || shared.wake_when_executed.load(SeqCst) && shared.executed.observe() > self.executed.0
    }

    pub(crate) fn ask_reads(&mut self, now: Time) {
        if let Some(read) = self.waiting.read() {
            self.step(now, Event::Read(read));
        }
    }

    pub(crate) fn carry_out(&mut self, common: &mut Common, deadline: &mut Time) {
        let mut actions = std::mem::take(&mut self.actions);
        actions.drain(..).for_each(|action| self.carry_out_one(action, common, deadline));
        self.actions = actions; // Its memory serves again.
        // Last: a caller that is told that the group has changed may ask at once which replicas are in it now.
        if let Some(executor) = &self.executor {
            for job in self.execution.hand_over() {
                // A failed send means that the replica is stopping.
                let _ = executor.send((self.group, job));
            }
        }
    }

    fn carry_out_one(&mut self, action: Action, common: &mut Common, deadline: &mut Time) {
        match action {
            Action::Append { lsn, record } => {
                let (group, keep, record) = (self.group, record.keep(), record.encode());
                common.job.records.push(GroupRecord { group, lsn, keep, record });
            }
            Action::Send { to, message, after } => common.send(self, &to, &message, after),
            Action::Execute { slot, ballots, batch, requests } => {
                let commands = &mut self.waiting.commands;
                // One look at the clock for all, and none for a batch without clients of this replica.
                let now = (!requests.is_empty()).then(Instant::now);
                let reply = |(place, request)| Some((place, commands.remove(request)?.ordered(now)));
                let replies = requests.into_iter().filter_map(reply).collect();
                self.execution.push(Job::Execute { slot, ballots, batch, replies });
            }
            Action::ReadAt { read, slot } if common.merged.is_some() => {
                let reads = common.merged.as_mut().map(|merged| &mut merged.reads);
                if let Some((slots, queries)) =
                    reads.and_then(|reads| reads.confirmed(self.group, read, slot))
                {
                    self.execution.push(Job::QueryAt { slots, queries: confirmed(queries) });
                }
            }
            Action::ReadFailed { read, error } if common.merged.is_some() => {
                let queries = common.merged.iter_mut().flat_map(|merged| merged.reads.failed(read));
                queries.for_each(|(_, reply)| reply.send(Err(error)));
            }
            Action::ReadAt { read, slot } => {
                if let Some(queries) = self.waiting.take_read(read) {
                    self.execution.push(Job::Query { slot, queries: confirmed(queries) });
                }
            }
            Action::ReadFailed { read, error } => {
                for (_, reply) in self.waiting.take_read(read).into_iter().flatten() {
                    reply.send(Err(error));
                }
            }
            Action::RequestFailed { request, error } => {
                if let Some(reply) = self.waiting.commands.remove(request) {
                    reply.send(Err(error));
                }
            }
            Action::Leader(view) => self.report_leader(view),
            Action::Group(group) => self.regroup(group, common),
            Action::Forked(fork) => self.differs(&fork, common),
            Action::Agreed(with) => {
                tracing::warn!(%with, "it had decided something else than this replica, and has learned again");
                self.publish_forks();
            }
            Action::TwoProposals { ballot, slot } => {
                tracing::error!(
                    of = %self.group, %ballot, slot = slot.0,
                    "two batches were proposed for one slot in one ballot, which breaks a rule of the protocol: this \
                     replica stays with the first one; see 'When something breaks' in docs/operating.md (`synod docs operating`)"
                );
            }
            Action::UnknownChange { slot } => {
                let of = self.group;
                common.failed.get_or_insert(Ended::UnknownChange { group: of, slot });
            }
            Action::Retired => {
                let of = self.group;
                if self.replica.group().is_away(common.me) {
                    tracing::info!(%of, "the group goes on without this replica, which takes no part in it");
                } else {
                    tracing::warn!(%of, "this replica was removed from the group, and the others go on without it");
                }
                self.shared.retired.store(true, SeqCst);
            }
            Action::Deadline(at) => *deadline = common.rounded(at),
            Action::TakeSnapshot => self.execution.push(Job::Freeze),
            Action::ReadChunk { to, slot, offset, len_max } => {
                self.to_snapshots(common, SnapshotJob::ReadChunk { to, slot, offset, len_max });
            }
            Action::WriteChunk { info, offset, bytes } => {
                self.to_snapshots(common, SnapshotJob::WriteChunk { info, offset, bytes });
            }
            Action::InstallSnapshot(info) => self.to_snapshots(common, SnapshotJob::Finish(info)),
            Action::Trim(through) => common.job.trims.push((self.group, through)),
        }
    }

    fn regroup(&mut self, group: Group, common: &mut Common) {
        tracing::info!(
            of = %self.group, version = group.version, epoch = %group.epoch, protocol = %group.protocol,
            election = %group.election, voters = ?group.voters().map(|id| id.0).collect::<Vec<_>>(),
            names_births = group.names_births(), "group"
        );
        let noted = self.notes.group(&group);
        if let Err(error) = noted.and_then(|()| common.regroup(self.group, &group, &self.notes.origin)) {
            common.failed.get_or_insert(error.into());
            return;
        }
        if self.replica.is_disowned() {
            tracing::error!(
                of = %self.group,
                "the vote of this replica, {}, belongs to another data directory than this one, which has forgotten what was \
                 said there: it never votes. If that data directory is elsewhere, correct --data-dir; if it is lost, \
                 replace this replica (`synod member replace`); see docs/identity.md (`synod docs identity`)",
                common.me
            );
        }
        if group.member(common.me).is_some() {
            // It may have come back to a group that had gone on without it.
            self.shared.retired.store(false, SeqCst);
        }
        self.shared.group.store(Some(Arc::new(group)));
    }

    /// Another replica has decided something else than this one.
    fn differs(&mut self, fork: &Fork, common: &mut Common) {
        self.publish_forks();
        let why = forked(&common.me, fork);
        tracing::error!("{why}");
        if fork.alone {
            let &Fork { with, agreed, slot, .. } = fork;
            common.failed.get_or_insert(Ended::Forked { with, agreed, slot, why });
        }
    }

    fn publish_forks(&self) {
        self.shared.forked_with.store(Arc::new(self.replica.forks().map(|fork| fork.with).collect()));
    }

    /// Whether a message leaves at once. If not, the log's thread is to hold it.
    pub(crate) fn admits(&mut self, after: Lsn) -> bool {
        let released = &self.shared.released;
        let left = || if planted(Planted::OvertakeGated) { u64::MAX } else { released.observe() };
        self.gate.admits(after, left)
    }

    /// Logs each stage of an election, also of one that nobody wins.
    pub(crate) fn log_stage(&mut self, status: &ReplicaStatus) {
        let stage @ (epoch, role, ballot) =
            (status.entered, status.protocol.role, status.protocol.view.ballot);
        if self.stage.replace(stage) != Some(stage) {
            tracing::debug!(group = %self.group, %epoch, role = role.as_str(), %ballot, "election");
        }
    }

    /// A replica that lost its log learns from a leader what it may have said. Where there is none for long, most of
    /// the voters may have lost theirs: then they wait for each other, and only an operator can help.
    pub(crate) fn warn_if_stranded(&mut self, me: ReplicaId, now: Time) {
        let status = self.replica.status();
        let away = self.replica.group().is_away(me);
        if !status.without_memory || status.protocol.view.leader.is_some() || away {
            self.stranded = Stranded::default();
            return;
        }
        let since = *self.stranded.since.get_or_insert(now);
        if now.since(since) > STRANDED_AFTER && !self.stranded.told {
            self.stranded.told = true;
            tracing::warn!(
                of = %self.group,
                "this replica has lost (part of) its log and has no vote, and nobody leads, so it waits. If most of the \
                 voters lost theirs, they wait for each other: see 'Replicas without memory' in docs/operating.md \
                 (`synod docs operating`)"
            );
        }
    }

    /// What another thread writes down; see [`crate::meeting::write_what_is_heard`].
    pub(crate) fn publish_reached(&mut self, now: Time) {
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

    /// Lets reads of the replica's own state be answered if they have waited long enough for what an earlier life may
    /// have told. A replica that joins has told nothing, and knows nothing yet.
    pub(crate) fn settle_in_time(&self, me: ReplicaId, now: Time) {
        let settled = &self.shared.settled;
        if !settled.load(SeqCst) && now >= self.settles_at && !joins(self.replica.group(), me) {
            settled.store(true, SeqCst);
        }
    }

    pub(crate) fn publish_progress(&self) {
        let published = self.shared.progress.load();
        if !self.replica.progress().eq(published.iter().copied()) {
            self.shared.progress.store(Arc::new(self.replica.progress().collect()));
        }
    }

    fn to_snapshots(&self, common: &Common, job: SnapshotJob) {
        let _ = common.snapshots.send((self.group, job));
    }

    fn report_leader(&self, view: synod_consensus::LeaderView) {
        let role: Role = self.replica.status().protocol.role;
        // Each epoch begins with the lowest ballots again.
        let epoch = self.replica.group().epoch;
        match view.leader {
            Some(leader) => {
                self.shared.leader_changes.add(1);
                tracing::info!(group = %self.group, %leader, %epoch, ballot = %view.ballot, role = role.as_str(), "leader elected");
            }
            None => {
                tracing::info!(group = %self.group, %epoch, ballot = %view.ballot, role = role.as_str(), "no leader")
            }
        }
    }

    pub(crate) fn stop(self) {
        self.tell_reached();
        self.waiting.into_replies().for_each(|reply| reply.send(Err(RequestError::Stopping)));
    }
}

/// What these queries must see is known now.
fn confirmed(queries: Queries) -> Queries {
    let now = Some(Instant::now());
    queries.into_iter().map(|(query, reply)| (query, reply.ordered(now))).collect()
}

//! One group of replicas, as this node takes part in it: what its replica is told, and what it wants done.

use std::{
    sync::{Arc, atomic::Ordering::SeqCst},
    time::Duration,
};

use synod_consensus::Role;
use synod_host::{Effect, Entry, Progress, ReadAt};
use synod_replica::{Action, Fork, Group, Mark, Replica, ReplicaStatus};
use synod_storage::Reached;
use synod_sync::{channel::Sender, time::Instant};
use synod_wire::{Ballot, Epoch, GroupId, Lsn, ReplicaId, Slot, Time};

use crate::{
    Ended,
    executor::Job,
    handle::Reply,
    log::GroupRecord,
    meeting::forked,
    merged::{Queries, Query},
    node::{Notes, joins},
    protocol::Common,
    snapshots::SnapshotJob,
    status::Shared,
    view::Watched,
};

/// How old what the other threads know of what is decided gets.
const REACHED_INTERVAL: Duration = Duration::from_secs(1);

/// Elections are over by then, if there can be any.
const STRANDED_AFTER: Duration = Duration::from_secs(30);

/// One group of replicas, as the threads of this node serve it; its replica is the host's.
pub(crate) struct Hosted {
    pub(crate) group: GroupId,
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
    /// Where its messages go before they leave; those that have to wait leave by the log's thread.
    pub(crate) gate: Entry,
    /// How far it was executed when its replica was last told.
    pub(crate) executed: Slot,
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

impl Hosted {
    /// How far the group is.
    pub(crate) fn see(&mut self) -> Progress {
        let durable = Lsn(self.shared.durable.observe());
        let executed = Slot(self.shared.executed.observe());
        self.gate.durable(durable);
        self.executed = self.executed.max(executed);
        Progress { durable, executed, clock: self.shared.clock() }
    }

    /// Whether something that it wants to be woken for has happened since the last look.
    pub(crate) fn has_missed(&self) -> bool {
        let shared = &self.shared;
        shared.wake_when_durable.load(SeqCst) && shared.durable.observe() > self.gate.through().0
            || shared.wake_when_executed.load(SeqCst) && shared.executed.observe() > self.executed.0
    }

    /// Carries out something that the group wants.
    pub(crate) fn carry_out(&mut self, replica: &Replica, effect: Effect<Reply, Query>, common: &mut Common) {
        match effect {
            Effect::Execute { slot, ballots, batch, clients } => {
                // One look at the clock for all, and none for a batch without clients of this replica.
                let now = (!clients.is_empty()).then(Instant::now);
                let replies = clients.into_iter().map(|(place, reply)| (place, reply.ordered(now))).collect();
                common.execution.push(self.group, Job::Execute { slot, ballots, batch, replies });
            }
            Effect::Read(ReadAt::Slot(slot), queries) => {
                common.execution.push(self.group, Job::Query { slot, queries: confirmed(queries) });
            }
            Effect::Read(ReadAt::Slots(slots), queries) => {
                common.execution.push(self.group, Job::QueryAt { slots, queries: confirmed(queries) });
            }
            Effect::ReadFailed(queries, error) => {
                queries.into_iter().for_each(|(_, reply)| reply.send(Err(error)));
            }
            Effect::CommandFailed(reply, error) => reply.send(Err(error)),
            Effect::Action(action) => self.act(replica, action, common),
        }
    }

    /// Hands the jobs over to the thread that executes, if that is another one than this. That comes after all else: a
    /// caller that is told that the group has changed may ask at once which replicas are in it now.
    pub(crate) fn hand_over(&self, common: &mut Common) {
        if let Some(executor) = &self.executor {
            for job in common.execution.hand_over(self.group) {
                // A failed send means that the replica is stopping.
                let _ = executor.send((self.group, job));
            }
        }
    }

    fn act(&mut self, replica: &Replica, action: Action, common: &mut Common) {
        match action {
            Action::Append { lsn, record } => {
                let (group, keep, record) = (self.group, record.keep(), record.encode());
                common.job.records.push(GroupRecord { group, lsn, keep, record });
            }
            Action::Send { to, message, after } => common.send(self, &to, &message, after),
            Action::Leader(view) => self.report_leader(replica, view),
            Action::Group(group) => self.regroup(replica, group, common),
            Action::Forked(fork) => self.differs(replica, &fork, common),
            Action::Agreed(with) => {
                tracing::warn!(%with, "it had decided something else than this replica, and has learned again");
                self.publish_forks(replica);
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
                if replica.group().is_away(common.me) {
                    tracing::info!(%of, "the group goes on without this replica, which takes no part in it");
                } else {
                    tracing::warn!(%of, "this replica was removed from the group, and the others go on without it");
                }
                self.shared.retired.store(true, SeqCst);
            }
            Action::TakeSnapshot => common.execution.push(self.group, Job::Freeze),
            Action::ReadChunk { to, slot, offset, len_max } => {
                self.to_snapshots(common, SnapshotJob::ReadChunk { to, slot, offset, len_max });
            }
            Action::WriteChunk { info, offset, bytes } => {
                self.to_snapshots(common, SnapshotJob::WriteChunk { info, offset, bytes });
            }
            Action::InstallSnapshot(info) => self.to_snapshots(common, SnapshotJob::Finish(info)),
            Action::Trim(through) => common.job.trims.push((self.group, through)),
            Action::Execute { .. }
            | Action::ReadAt { .. }
            | Action::ReadFailed { .. }
            | Action::RequestFailed { .. }
            | Action::Deadline(_) => unreachable!("the host has dealt with it"),
        }
    }

    fn regroup(&mut self, replica: &Replica, group: Group, common: &mut Common) {
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
        if replica.is_disowned() {
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
    fn differs(&mut self, replica: &Replica, fork: &Fork, common: &mut Common) {
        self.publish_forks(replica);
        let why = forked(&common.me, fork);
        tracing::error!("{why}");
        if fork.alone {
            let &Fork { with, agreed, slot, .. } = fork;
            common.failed.get_or_insert(Ended::Forked { with, agreed, slot, why });
        }
    }

    fn publish_forks(&self, replica: &Replica) {
        self.shared.forked_with.store(Arc::new(replica.forks().map(|fork| fork.with).collect()));
    }

    /// Whether a message leaves at once. If not, the log's thread is to hold it.
    pub(crate) fn admits(&mut self, after: Lsn) -> bool {
        self.gate.admits(after)
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
    pub(crate) fn warn_if_stranded(&mut self, replica: &Replica, me: ReplicaId, now: Time) {
        let status = replica.status();
        let away = replica.group().is_away(me);
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

    /// Publishes the decided history for the thread that saves it ([`crate::meeting::write_what_is_heard`]).
    pub(crate) fn publish_reached(&mut self, replica: &Replica, now: Time) {
        if now >= self.reached_at + REACHED_INTERVAL {
            self.reached_at = now;
            self.tell_reached(replica);
            self.publish_round_trips(replica);
        }
    }

    fn publish_round_trips(&self, replica: &Replica) {
        let measured = replica.round_trips();
        if **self.shared.round_trips.load() != measured {
            self.shared.round_trips.store(Arc::new(measured));
        }
        let origins = replica.origins();
        if **self.shared.origins.load() != origins {
            self.shared.origins.store(Arc::new(origins));
        }
    }

    pub(crate) fn tell_reached(&self, replica: &Replica) {
        if let Some(history) = replica.reached() {
            let sums = history.to_note().map(|Mark { slot, fingerprint }| (slot, fingerprint)).collect();
            self.shared.reached.store(Some(Arc::new(Reached { since: history.since(), sums })));
        }
    }

    /// Lets reads of the replica's own state be answered if they have waited long enough for what an earlier life may
    /// have told. A replica that joins has told nothing, and knows nothing yet.
    pub(crate) fn settle_in_time(&self, replica: &Replica, me: ReplicaId, now: Time) {
        let settled = &self.shared.settled;
        if !settled.load(SeqCst) && now >= self.settles_at && !joins(replica.group(), me) {
            settled.store(true, SeqCst);
        }
    }

    pub(crate) fn publish_progress(&self, replica: &Replica) {
        let published = self.shared.progress.load();
        if !replica.progress().eq(published.iter().copied()) {
            self.shared.progress.store(Arc::new(replica.progress().collect()));
        }
    }

    fn to_snapshots(&self, common: &Common, job: SnapshotJob) {
        let _ = common.snapshots.send((self.group, job));
    }

    fn report_leader(&self, replica: &Replica, view: synod_consensus::LeaderView) {
        let role: Role = replica.status().protocol.role;
        // Each epoch begins with the lowest ballots again.
        let epoch = replica.group().epoch;
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
}

/// What these queries must see is known now.
fn confirmed(queries: Queries) -> Queries {
    let now = Some(Instant::now());
    queries.into_iter().map(|(query, reply)| (query, reply.ordered(now))).collect()
}

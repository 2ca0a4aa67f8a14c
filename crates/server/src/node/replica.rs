//! The running replica as the server sees it: one of the groups of a node, or all of them in one order.

use std::{pin::Pin, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::future::join_all;
use synod_consensus::Overrides;
use synod_node::Handle;
use synod_replica::{ChangeRequest, SessionCommand};
use synod_wire::{ClusterId, GroupId, ReplicaId, SessionId};
use tokio::time::{Instant, sleep};

use super::{
    changes::{
        adds_too_many_learners, check_all_know_election, check_others_follow, leaving, members_pending,
    },
    measured,
    obstacles::Obstacles,
    quorums,
};
use crate::{
    Answer, Change, ChangeError, Changed, Consistency, Elsewhere, Group, Limits, MoveError, NodeStatus,
    Ordered, Point, Refusal, Replica, RequestError, Start, Status, SubscribeError, Subscription, Timed,
    Wanted,
};

/// The time between two looks whether another replica leads.
const GLANCE_INTERVAL: Duration = Duration::from_millis(10);
/// The time between two requests to hand the leadership over, in case the first had no effect.
const TRANSFER_INTERVAL: Duration = Duration::from_secs(1);
/// How often a change that names no version is made again for a group that has changed meanwhile.
const CHANGE_ATTEMPTS_MAX: u32 = 10;

/// A handle on a group of the node, or on all groups that are merged into one order, and the settings that a server
/// needs.
#[derive(Clone, Debug)]
pub(super) struct OnNode {
    handle: Handle,
    /// The number of that group.
    number: usize,
    /// Those of all groups; the members are decided in the first one.
    groups: Arc<[Handle]>,
    /// Handles on the groups that order the commands, if there are several for one store.
    merged: Arc<[Handle]>,
    fixed: Arc<Fixed>,
}

/// What does not change while the replica runs.
#[derive(Debug)]
pub(super) struct Fixed {
    pub cluster: ClusterId,
    pub me: ReplicaId,
    pub name: String,
    pub durability: String,
    pub transport: &'static str,
    /// How many members may stay learners.
    pub learners_max: u32,
    /// How long a transfer of the leadership may take.
    pub transfer_timeout: Duration,
    /// What keeps this replica from other members, as far as that is known.
    pub obstacles: Arc<Obstacles>,
    /// Whether options that exist to be measured are taken.
    pub laboratory: bool,
    /// Options of this replica's own, which its group may fix.
    pub options: Option<Overrides>,
}

impl OnNode {
    /// One of the groups.
    pub fn new(number: usize, groups: Arc<[Handle]>, fixed: Arc<Fixed>) -> OnNode {
        OnNode { handle: groups[number].clone(), number, groups, merged: Arc::default(), fixed }
    }

    /// One store whose commands several groups order.
    pub fn merged(groups: Arc<[Handle]>, fixed: Arc<Fixed>) -> OnNode {
        OnNode { handle: groups[0].clone(), number: 0, merged: Arc::clone(&groups), groups, fixed }
    }

    /// The group that orders a command; which one it is changes nothing but how long that takes. It is the first group
    /// that this replica leads, so that the command needs no way to a leader; otherwise the same one every time, so
    /// that the other groups can tell how far ahead they should be.
    fn orders(&self) -> &Handle {
        let own = || usize::try_from(self.fixed.me.0).unwrap_or(0) % self.merged.len();
        match self.merged.iter().find(|group| group.leads()) {
            Some(led) => led,
            None if self.merged.is_empty() => &self.handle,
            None => &self.merged[own()],
        }
    }

    /// One of the groups by itself.
    fn alone(&self, number: usize) -> OnNode {
        OnNode::new(number, Arc::clone(&self.groups), Arc::clone(&self.fixed))
    }

    /// A word before what is said of the group, where there are several.
    fn named(&self, before: &str) -> String {
        if self.groups.len() > 1 { format!(" {before} group {}", self.number) } else { String::new() }
    }

    /// What an operator should know of a group in which this replica has no vote, since it lost its log.
    fn memory_trouble(&self, group: &Group) -> String {
        let others: Vec<_> = group.voters().filter(|&id| id != self.fixed.me).collect();
        let needed = group.threshold();
        let outlook = if others.len() >= needed.least(group.voters().count()) {
            format!("it votes again by itself while {} have kept theirs", quorums::most(needed))
        } else {
            let names = if others.is_empty() { "no other".into() } else { self.names_of(others).join(", ") };
            let unless = if group.protocol.recovers_itself() { " unless a leader is left" } else { "" };
            format!(
                "the voters that are left ({names}) are {}, so waiting does not help{unless}: stop the replica and put \
                 its log back, if there is a copy of it",
                quorums::too_few(needed)
            )
        };
        let (of, there) = (self.named("of"), self.named("in"));
        format!(
            "this replica has lost (part of) its log{of} and has no vote{there}; {outlook}: see 'Replicas without \
             memory' in docs/operating.md (`synod docs operating`)"
        )
    }

    /// What an operator should know of the group.
    fn troubles(&self, group: &Group, status: &NodeStatus) -> Vec<String> {
        let mut lines = Vec::new();
        // The connections are those of all groups, and the members those of the first one.
        if self.number == 0 {
            lines.extend(self.fixed.obstacles.lines(group, status));
        }
        if !status.forked_with.is_empty() {
            let names: Vec<_> = status.forked_with.iter().map(|&id| group.name_of(id)).collect();
            lines.push(format!(
                "this replica and {} have different histories{}, and ignore each other: acknowledged writes are in one of \
                 them only; see 'Forks' in docs/identity.md (`synod docs identity`)",
                names.join(", "),
                self.named("in")
            ));
        }
        if status.without_memory && group.counts(self.fixed.me) {
            lines.push(self.memory_trouble(group));
        }
        let number = Some(self.number).filter(|_| self.groups.len() > 1);
        lines.extend(quorums::remark(group, number));
        if !self.fixed.laboratory {
            lines.extend(measured::remarks(group, number, self.fixed.options.as_ref()));
        }
        let stall = status.merge.and_then(|merge| merge.waits_for);
        let waits =
            stall.filter(|&(of, since)| usize::from(of.0) == self.number && since >= STALL_TOLD_AFTER);
        if let Some((_, since)) = waits {
            let leader = status.leader.map(|leader| self.names_of([leader]).remove(0));
            let voters = self.names_of(group.voters());
            lines.push(stall_trouble(self.number, since, leader.as_deref(), &voters));
        }
        lines.into_iter().map(|line| format!("synod: {line}")).collect()
    }

    fn leads(&self) -> bool {
        self.handle.status().leader == Some(self.fixed.me)
    }

    /// The names of the members of the cluster with these ids. Names are told to the first group.
    fn names_of(&self, ids: impl IntoIterator<Item = ReplicaId>) -> Vec<String> {
        let first = self.groups[0].group();
        ids.into_iter().map(|id| first.name_of(id)).collect()
    }
}

impl Replica for OnNode {
    fn gathering(&self) -> (OnNode, impl Future<Output = ()> + Send + 'static) {
        // The first of merged groups takes what is not said to one of them.
        let own = [self.handle.clone()];
        let all = if self.merged.is_empty() { &own[..] } else { &self.merged };
        let (handles, tasks): (Vec<_>, Vec<_>) = all.iter().map(Handle::gathering).unzip();
        let handle = handles[0].clone();
        let merged = if self.merged.is_empty() { Arc::default() } else { handles.into() };
        let served = OnNode { handle, merged, ..self.clone() };
        (served, async move { drop(join_all(tasks).await) })
    }

    async fn execute(&self, command: Bytes) -> Result<Bytes, RequestError> {
        self.orders().execute(command).await
    }

    async fn execute_upkeep(&self, command: Bytes) -> Result<Bytes, RequestError> {
        self.orders().execute_upkeep(command).await
    }

    async fn execute_in_session(
        &self,
        session: SessionId,
        sequence: u64,
        lowest_outstanding: u64,
        command: Bytes,
    ) -> Result<Bytes, RequestError> {
        let place = SessionCommand { session, sequence, lowest_outstanding };
        self.orders().execute_in_session(place, command).await
    }

    async fn execute_timed(&self, command: Bytes) -> Timed<Bytes> {
        self.orders().execute_timed(command).await
    }

    async fn execute_in_session_timed(
        &self,
        session: SessionId,
        sequence: u64,
        lowest_outstanding: u64,
        command: Bytes,
    ) -> Timed<Bytes> {
        let place = SessionCommand { session, sequence, lowest_outstanding };
        self.orders().execute_in_session_timed(place, command).await
    }

    async fn query_timed(&self, query: Bytes, consistency: Consistency) -> Timed<Answer> {
        if consistency == Consistency::Linearizable {
            return self.handle.read_timed(query).await;
        }
        // This replica's own state answers.
        let began = Instant::now();
        let outcome = self.query(query, consistency).await;
        Timed { outcome, ordering: Duration::ZERO, execution: began.elapsed() }
    }

    async fn open_session(&self) -> Result<SessionId, RequestError> {
        self.handle.open_session().await
    }

    async fn query(&self, query: Bytes, consistency: Consistency) -> Result<Answer, RequestError> {
        match consistency {
            Consistency::Linearizable => self.handle.read(query).await,
            Consistency::Serializable => self.handle.read_stale(query).await,
            Consistency::Present => self.handle.read_present(query).await,
        }
    }

    fn term(&self) -> u64 {
        self.handle.term()
    }

    fn limits(&self) -> Limits {
        let synod_replica::Limits { request_bytes_max, txn_ops_max, answer_bytes_max, .. } =
            self.handle.limits();
        Limits { request_bytes_max, txn_ops_max, answer_bytes_max }
    }

    fn status(&self) -> Status {
        let mut node = self.handle.status();
        let group = self.handle.group();
        let merged: Vec<_> = (0..self.merged.len()).map(|number| self.alone(number).status()).collect();
        let mut troubles = Vec::new();
        if merged.is_empty() {
            troubles = self.troubles(&group, &node);
        }
        for trouble in merged.iter().flat_map(|of_group| &of_group.troubles) {
            if !troubles.contains(trouble) {
                troubles.push(trouble.clone());
            }
        }
        // Elsewhere it may have no vote for good, and need none.
        node.without_memory &= group.counts(self.fixed.me);
        let mut pending = String::new();
        if group.is_away(self.fixed.me) {
            (node.leader, node.decided_elsewhere) = (None, node.decided);
        } else {
            pending = members_pending(&group, &self.groups[0].group());
        }
        Status {
            cluster: self.fixed.cluster,
            replica: self.fixed.me,
            name: self.fixed.name.clone(),
            durability: self.fixed.durability.clone(),
            transport: self.fixed.transport.into(),
            node,
            group,
            troubles,
            members_pending: pending,
            merged,
        }
    }

    fn takes_care(&self) -> bool {
        self.handle.takes_part() && self.handle.status().takes_care
    }

    fn group(&self) -> Arc<Group> {
        self.handle.group()
    }

    fn elsewhere(&self) -> Option<Elsewhere> {
        if self.handle.takes_part() {
            return None;
        }
        let first = self.groups[0].group();
        let voters: Vec<_> = self.handle.group().voters().collect();
        let urls = voters.iter().filter_map(|&id| first.member(id)?.info.client_urls.first().cloned());
        Some(Elsewhere { client_urls: urls.collect(), names: self.names_of(voters.iter().copied()) })
    }

    async fn change(&self, expected: Option<u64>, wanted: &Wanted<'_>) -> Result<Changed, ChangeError> {
        for attempt in 1.. {
            // The answer does not matter: after it the group here is no older than this call.
            self.handle.query(Bytes::new()).await?;
            let group = self.handle.group();
            if let Some(expected) = expected.filter(|&expected| expected != group.version) {
                return Err(Refusal::Stale { expected, current: group.version }.into());
            }
            let change = wanted(&group)?;
            if let Some(why) = measured::refused(&group, &change).filter(|_| !self.fixed.laboratory) {
                return Err(ChangeError::Unacceptable(why));
            }
            check_all_know_election(&group, &change)?;
            if adds_too_many_learners(&group, &change, self.fixed.learners_max) {
                // What the group itself refuses, as an address that is taken, is said first, as by etcd.
                let request = ChangeRequest { expected: group.version, change };
                let alone = group.apply(synod_wire::Slot(0), &request).err();
                return Err(alone.map_or(ChangeError::TooManyLearners, ChangeError::from));
            }
            if let Some(leaving) = leaving(&group, &change) {
                let removed = matches!(change, Change::Remove(_));
                check_others_follow(&self.groups, &group, leaving, removed)?;
            }
            match self.handle.change(group.version, change).await {
                Ok(next) => {
                    return Ok(Changed { dropped: group.dropped_by(&next), group: Arc::new(next) });
                }
                Err(synod_node::ChangeError::Refused(Refusal::Stale { .. }))
                    if expected.is_none() && attempt < CHANGE_ATTEMPTS_MAX => {}
                Err(failed) => return Err(failed.into()),
            }
        }
        unreachable!("the last attempt returns")
    }

    fn merged_group(&self, number: u32) -> Option<OnNode> {
        let number = usize::try_from(number).ok().filter(|number| *number < self.merged.len())?;
        Some(self.alone(number))
    }

    async fn subscribe(
        &self,
        groups: Vec<GroupId>,
        start: Start,
    ) -> Result<Box<dyn Subscription>, SubscribeError> {
        Ok(Box::new(self.handle.subscribe(groups, start).await?))
    }

    async fn move_leader(&self, to: ReplicaId) -> Result<(), MoveError> {
        if !self.leads() {
            return Err(MoveError::NotLeader);
        }
        if !self.handle.group().votes(to) {
            return Err(MoveError::BadTransferee);
        }
        let deadline = Instant::now() + self.fixed.transfer_timeout;
        let mut asked_at = None::<Instant>;
        while self.handle.status().leader != Some(to) {
            if Instant::now() >= deadline {
                return Err(MoveError::TookTooLong);
            }
            if self.leads() && asked_at.is_none_or(|at| at.elapsed() >= TRANSFER_INTERVAL) {
                self.handle.transfer(to).map_err(|_| MoveError::Stopping)?;
                asked_at = Some(Instant::now());
            }
            sleep(GLANCE_INTERVAL).await;
        }
        Ok(())
    }
}

impl Subscription for synod_node::Subscription {
    fn next(&mut self) -> Pin<Box<dyn Future<Output = Result<Ordered, SubscribeError>> + Send + '_>> {
        Box::pin(synod_node::Subscription::next(self))
    }

    fn try_next(&mut self) -> Option<Ordered> {
        synod_node::Subscription::try_next(self)
    }

    fn remove(&mut self, group: GroupId) {
        synod_node::Subscription::remove(self, group);
    }

    fn points(&self) -> Vec<Point> {
        synod_node::Subscription::points(self)
    }

    fn lacks_leader(&self) -> bool {
        synod_node::Subscription::lacks_leader(self)
    }
}

/// How long batches of merged groups may wait for one of them before an operator hears of it.
const STALL_TOLD_AFTER: Duration = Duration::from_secs(1);

/// What an operator should know of a group that the others wait for, as this replica knows it.
fn stall_trouble(group: usize, since: Duration, leader: Option<&str>, voters: &[String]) -> String {
    let why = match leader {
        None => "has no leader".to_owned(),
        Some(leader) => format!("orders nothing although {leader} leads it"),
    };
    format!(
        "commands have waited for group {group} for {:.1} s, since it {why}: `synod status --cluster` shows which of \
         its voters ({}) do not answer or have lost their logs",
        since.as_secs_f64(),
        voters.join(", ")
    )
}

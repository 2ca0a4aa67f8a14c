//! The running replica as the server sees it: the types of one crate translated to those of the other.

use std::{pin::Pin, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::future::join_all;
use synod_consensus::{Overrides, ProtocolKind};
use synod_node::Handle;
use synod_replica::{
    ChangeRequest, Choice, MemberInfo, Membership, Others, Placement, Refusal, SessionCommand,
};
use synod_server::{
    Answer, Change, ChangeError, Changed, Consistency, Elsewhere, Goal, Group, Limits, Member, MoveError,
    Ordered, PeerStatus, Point, Replica, RequestError, Role, Start, Status, SubscribeError, Subscription,
    Timed,
};
use synod_wire::{ClusterId, GroupId, ReplicaId, SessionId, Slot};
use tokio::time::{Instant, sleep};

use super::{flags::Tuning, laboratory, obstacles::Obstacles};

/// The time between two looks whether another replica leads.
const GLANCE_INTERVAL: Duration = Duration::from_millis(10);
/// The time between two requests to hand the leadership over, in case the first had no effect.
const TRANSFER_INTERVAL: Duration = Duration::from_secs(1);
/// How often a change that names no version is made again for a group that has changed meanwhile.
const CHANGE_ATTEMPTS_MAX: u32 = 10;

/// A handle on a group of the node, or on all groups that are merged into one order, and the configuration that the
/// server needs.
#[derive(Clone, Debug)]
pub struct Served {
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
pub struct Fixed {
    pub cluster: ClusterId,
    pub me: ReplicaId,
    pub name: String,
    pub durability: String,
    /// How many members may stay learners.
    pub learners_max: u32,
    /// How long a transfer of the leadership may take.
    pub transfer_timeout: Duration,
    /// What keeps this replica from other members, as far as that is known.
    pub obstacles: Arc<Obstacles>,
    /// Whether options that exist to be measured are taken.
    pub laboratory: bool,
    /// The replica's own settings, which its group may fix.
    pub tuning: Tuning,
}

impl Served {
    /// One of the groups.
    pub fn new(number: usize, groups: Arc<[Handle]>, fixed: Arc<Fixed>) -> Served {
        Served { handle: groups[number].clone(), number, groups, merged: Arc::default(), fixed }
    }

    /// One store whose commands several groups order.
    pub fn merged(groups: Arc<[Handle]>, fixed: Arc<Fixed>) -> Served {
        Served { handle: groups[0].clone(), number: 0, merged: Arc::clone(&groups), groups, fixed }
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
    fn alone(&self, number: usize) -> Served {
        Served::new(number, Arc::clone(&self.groups), Arc::clone(&self.fixed))
    }

    /// A word before what is said of the group, where there are several.
    fn named(&self, before: &str) -> String {
        if self.groups.len() > 1 { format!(" {before} group {}", self.number) } else { String::new() }
    }

    /// What an operator should know of a group in which this replica has no vote, since it lost its log.
    fn memory_trouble(&self, group: &synod_replica::Group) -> String {
        let others: Vec<_> = group.voters().filter(|&id| id != self.fixed.me).collect();
        let outlook = if group.voters().count() / 2 < others.len() {
            "it votes again by itself while most voters have kept theirs".to_owned()
        } else {
            let names = if others.is_empty() { "no other".into() } else { self.names_of(others).join(", ") };
            let unless = if group.protocol.recovers_itself() { " unless a leader is left" } else { "" };
            format!(
                "the voters that are left ({names}) are no majority, so waiting does not help{unless}: stop the replica and put \
                 its log back, if there is a copy of it"
            )
        };
        let (of, there) = (self.named("of"), self.named("in"));
        format!(
            "synod: this replica has lost (part of) its log{of} and has no vote{there}; {outlook}: see 'Replicas without \
             memory' in docs/operating.md (`synod docs operating`)"
        )
    }

    fn leads(&self) -> bool {
        self.handle.status().leader == Some(self.fixed.me)
    }

    /// The names of the members of the cluster with these ids. Names are told to the first group.
    fn names_of(&self, ids: impl IntoIterator<Item = ReplicaId>) -> Vec<String> {
        let first = self.groups[0].group();
        let name =
            |id| first.member(id).map(|member| member.info.name.clone()).filter(|name| !name.is_empty());
        ids.into_iter().map(|id| name(id).unwrap_or_else(|| id.to_string())).collect()
    }

    /// The choice of the voters of a group, for people; empty if there is none.
    fn placement(&self, group: &synod_replica::Group) -> String {
        let Some(Choice { voters, others, .. }) = group.placement.as_ref().map(|placement| &placement.choice)
        else {
            return String::new();
        };
        let names = self.names_of(voters.iter().copied());
        format!(
            "{} {}, the others {others}",
            names.join(", "),
            if names.len() == 1 { "votes" } else { "vote" }
        )
    }

    fn told(&self, group: &synod_replica::Group) -> Group {
        let progress = self.handle.status().learners;
        let decided = |id| progress.iter().find(|(learner, _)| *learner == id).map(|&(_, slot)| slot);
        let members = group.members.iter().map(|member| Member {
            id: member.id,
            name: member.info.name.clone(),
            peer_urls: member.info.peer_urls.clone(),
            client_urls: member.info.client_urls.clone(),
            standing: member.standing,
            decided: decided(member.id),
        });
        let mut members: Vec<_> = members.collect();
        members.sort_by_key(|member| member.id);
        Group {
            version: group.version,
            epoch: group.epoch.0,
            protocol: group.protocol.to_string(),
            election: group.election.to_string(),
            options: group.overrides.to_string(),
            limits: group.limits.to_string(),
            members,
        }
    }
}

impl Replica for Served {
    fn gathering(&self) -> (Served, impl Future<Output = ()> + Send + 'static) {
        // The first of merged groups takes what is not said to one of them.
        let own = [self.handle.clone()];
        let all = if self.merged.is_empty() { &own[..] } else { &self.merged };
        let (handles, tasks): (Vec<_>, Vec<_>) = all.iter().map(Handle::gathering).unzip();
        let handle = handles[0].clone();
        let merged = if self.merged.is_empty() { Arc::default() } else { handles.into() };
        let served = Served { handle, merged, ..self.clone() };
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
        timed(self.orders().execute_timed(command).await)
    }

    async fn execute_in_session_timed(
        &self,
        session: SessionId,
        sequence: u64,
        lowest_outstanding: u64,
        command: Bytes,
    ) -> Timed<Bytes> {
        let place = SessionCommand { session, sequence, lowest_outstanding };
        timed(self.orders().execute_in_session_timed(place, command).await)
    }

    async fn query_timed(&self, query: Bytes, consistency: Consistency) -> Timed<Answer> {
        if consistency == Consistency::Linearizable {
            return timed(self.handle.read_timed(query).await);
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
        let status = self.handle.status();
        let in_the_log = self.handle.group();
        let group = self.told(&in_the_log);
        let away = in_the_log.is_away(self.fixed.me);
        let mut troubles = Vec::new();
        let waits_for: Vec<String> = status.waits_for.iter().map(|&id| group.name_of(id)).collect();
        // The connections are those of all groups, and the members those of the first one.
        if self.number == 0 {
            let lines = self.fixed.obstacles.lines(&in_the_log, &status);
            troubles.extend(lines.iter().map(|line| format!("synod: {line}")));
        }
        let forked: Vec<String> = status.forked_with.iter().map(|&id| group.name_of(id)).collect();
        if !forked.is_empty() {
            troubles.push(format!(
                "synod: this replica and {} have different histories{}, and ignore each other: acknowledged writes are in \
                 one of them only; see 'Forks' in docs/identity.md (`synod docs identity`)",
                forked.join(", "),
                self.named("in")
            ));
        }
        // Elsewhere it may have no vote for good, and need none.
        let without_memory = status.without_memory && in_the_log.counts(self.fixed.me);
        if without_memory {
            troubles.push(self.memory_trouble(&in_the_log));
        }
        if !self.fixed.laboratory {
            let number = Some(self.number).filter(|_| self.groups.len() > 1);
            let own = laboratory::own_remarks(&self.fixed.tuning, &in_the_log);
            let lines = laboratory::remarks(&in_the_log, number).chain(own);
            troubles.extend(lines.map(|line| format!("synod: {line}")));
        }
        let stall = status.merge.and_then(|merge| merge.waits_for);
        let waits =
            stall.filter(|&(of, since)| usize::from(of.0) == self.number && since >= STALL_TOLD_AFTER);
        if let Some((_, since)) = waits {
            let leader = status.leader.map(|leader| self.names_of([leader]).remove(0));
            let voters = self.names_of(in_the_log.voters());
            troubles.push(stall_trouble(self.number, since, leader.as_deref(), &voters));
        }
        let merged: Vec<_> = (0..self.merged.len()).map(|number| self.alone(number).status()).collect();
        if !merged.is_empty() {
            // The first group's are these.
            troubles.clear();
        }
        for trouble in merged.iter().flat_map(|of_group| &of_group.troubles) {
            if !troubles.contains(trouble) {
                troubles.push(trouble.clone());
            }
        }
        let learned = |id| status.learners.iter().find(|(learner, _)| *learner == id);
        // Members that were removed a short time ago may still be connected.
        let members = |id| group.members.iter().any(|member| member.id == id);
        let peers = status.peers.iter().filter(|peer| members(peer.id)).map(|peer| PeerStatus {
            replica: peer.id,
            name: group.name_of(peer.id),
            up_since: peer.up_since,
            // Only learners tell how far they are.
            decided: learned(peer.id).map_or(Slot::ZERO, |&(_, slot)| slot),
        });
        Status {
            cluster: self.fixed.cluster,
            replica: self.fixed.me,
            name: self.fixed.name.clone(),
            role: if away { Role::Away } else { role(status.role) },
            without_memory,
            leader: status.leader.filter(|_| !away),
            ballot: status.ballot,
            epoch: in_the_log.epoch,
            protocol: group.protocol.clone(),
            election: group.election.clone(),
            dissemination: in_the_log.overrides.dissemination().to_string(),
            durability: self.fixed.durability.clone(),
            decided: status.decided,
            applied: status.executed,
            log_bytes: status.log_bytes,
            snapshot: status.snapshot,
            sessions: status.client_sessions,
            troubles,
            forked_with: status.forked_with,
            peers: peers.collect(),
            receiving: Some(status.receiving).filter(|&(_, total)| total > 0),
            missing: if away { 0 } else { status.decided_elsewhere.0.saturating_sub(status.decided.0) },
            sources: status.sources,
            waits_for,
            members_pending: if away {
                String::new()
            } else {
                members_pending(&in_the_log, &self.groups[0].group())
            },
            placement: self.placement(&in_the_log),
            voters: self.names_of(in_the_log.voters()),
            position: status.merge.map(|merge| merge.position),
            stalled: stall,
            merged,
        }
    }

    fn takes_care(&self) -> bool {
        self.handle.takes_part() && self.handle.status().takes_care
    }

    fn group(&self) -> Group {
        self.told(&self.handle.group())
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

    async fn change(&self, expected: Option<u64>, change: Change) -> Result<Changed, ChangeError> {
        for attempt in 1.. {
            // The answer does not matter: after it the group here is no older than this call.
            self.handle.query(Bytes::new()).await?;
            let group = self.handle.group();
            if let Some(expected) = expected.filter(|&expected| expected != group.version) {
                return Err(Refusal::Stale { expected, current: group.version }.into());
            }
            let wanted = in_the_log(&group, &change)?;
            if let Some(why) = laboratory::refused(&group, &wanted).filter(|_| !self.fixed.laboratory) {
                return Err(ChangeError::Unacceptable(why));
            }
            if adds_too_many_learners(&group, &wanted, self.fixed.learners_max) {
                // What the group itself refuses, as an address that is taken, is said first, as by etcd.
                let request = ChangeRequest { expected: group.version, change: wanted };
                let alone = group.apply(Slot(0), &request).err();
                return Err(alone.map_or(ChangeError::TooManyLearners, ChangeError::from));
            }
            if let Some(leaving) = leaving(&group, &wanted) {
                let removed = matches!(wanted, synod_replica::Change::Remove(_));
                self.check_others_follow(&group, leaving, removed)?;
            }
            match self.handle.change(group.version, wanted).await {
                Ok(next) => {
                    return Ok(Changed { group: self.told(&next), dropped: group.dropped_by(&next) });
                }
                Err(synod_node::ChangeError::Refused(Refusal::Stale { .. }))
                    if expected.is_none() && attempt < CHANGE_ATTEMPTS_MAX => {}
                Err(synod_node::ChangeError::Refused(refusal)) => return Err(refusal.into()),
                Err(synod_node::ChangeError::Request(failed)) => return Err(failed.into()),
                Err(other) => return Err(ChangeError::Unacceptable(other.to_string())),
            }
        }
        unreachable!("the last attempt returns")
    }

    fn merged_group(&self, number: u32) -> Option<Served> {
        let number = usize::try_from(number).ok().filter(|number| *number < self.merged.len())?;
        Some(self.alone(number))
    }

    async fn subscribe(
        &self,
        groups: Vec<GroupId>,
        start: Start,
    ) -> Result<Box<dyn Subscription>, SubscribeError> {
        Ok(Box::new(Subscribed(self.handle.subscribe(groups, start).await?)))
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

/// A subscription of the node, as the server takes it.
struct Subscribed(synod_node::Subscription);

impl Subscription for Subscribed {
    fn next(&mut self) -> Pin<Box<dyn Future<Output = Result<Ordered, SubscribeError>> + Send + '_>> {
        Box::pin(self.0.next())
    }

    fn try_next(&mut self) -> Option<Ordered> {
        self.0.try_next()
    }

    fn remove(&mut self, group: GroupId) {
        self.0.remove(group);
    }

    fn points(&self) -> Vec<Point> {
        self.0.points()
    }

    fn lacks_leader(&self) -> bool {
        self.0.lacks_leader()
    }
}

impl Served {
    /// Refuses to have a member leave the first group of several while another group needs it.
    fn check_others_follow(
        &self,
        first: &synod_replica::Group,
        leaving: ReplicaId,
        removed: bool,
    ) -> Result<(), ChangeError> {
        for (number, handle) in self.groups.iter().enumerate().skip(1) {
            // What this replica knows of a group in which it takes no part is old.
            let (group, old) = (handle.group(), !handle.takes_part());
            let is_left = |id: &&ReplicaId| first.member(**id).is_some();
            let is_only =
                |placement: &Placement| placement.choice.voters.iter().filter(is_left).eq([&leaving]);
            if removed && group.placement.as_ref().is_some_and(is_only) {
                let as_known =
                    if old { ", as far as this replica knows, which takes no part in it" } else { "" };
                return Err(ChangeError::Unacceptable(format!(
                    "{leaving} is the only member that votes in group {number}{as_known}: let others vote there first, with \
                     `synod reconfigure --group {number} --voters`, or ask a replica that takes part in the group"
                )));
            }
            if !old && first.is_needed_by(&group.follower(), leaving) {
                return Err(ChangeError::Unacceptable(format!(
                    "group {number} has not followed the last changes of members ({}), and without {leaving} fewer than a \
                     majority of its voters are left: wait until `synod status` shows it as group 0",
                    members_pending(&group, first)
                )));
            }
        }
        Ok(())
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
        "synod: commands have waited for group {group} for {:.1} s, since it {why}: `synod status --cluster` shows which of \
         its voters ({}) do not answer or have lost their logs",
        since.as_secs_f64(),
        voters.join(", ")
    )
}

/// The member that leaves with a change of the group, or will.
fn leaving(group: &synod_replica::Group, change: &synod_replica::Change) -> Option<ReplicaId> {
    use synod_replica::Change;
    match *change {
        Change::Remove(id) | Change::Add { goal: Goal::Replace(id), .. } => Some(id),
        Change::Promote { id: promoted, .. } => group.learners().find_map(|(id, goal)| match goal {
            Goal::Replace(old) if id == promoted => Some(old),
            _ => None,
        }),
        _ => None,
    }
}

/// Whether a change would leave more members than so many without a vote for good. A learner that is to vote, or to
/// replace another member, does not count.
fn adds_too_many_learners(group: &synod_replica::Group, change: &synod_replica::Change, max: u32) -> bool {
    use synod_replica::Change;
    let stay = group.learners().filter(|(_, goal)| *goal == Goal::Learn).count();
    matches!(change, Change::Add { goal: Goal::Learn, .. }) && stay >= max as usize
}

/// What is missing until a group has the members of the first one, for people; empty if it has them, as the first group
/// itself does.
fn members_pending(group: &synod_replica::Group, first: &synod_replica::Group) -> String {
    if !matches!(group.membership, Membership::Follows(_)) || group.agrees_with(first) {
        return String::new();
    }
    let name = |member: &synod_replica::Member| match member.info.name.as_str() {
        "" => member.id.to_string(),
        name => name.to_owned(),
    };
    let mut missing = Vec::new();
    let part = |id| first.member(id).is_some() && group.has_part_for(id);
    for member in first.members.iter().filter(|member| part(member.id)) {
        let is_to_vote = first.votes(member.id) && group.may_choose(member.id);
        match group.member(member.id) {
            None => missing.push(format!("{} joins", name(member))),
            Some(_) if is_to_vote && !group.votes(member.id) => {
                missing.push(format!("{} learns", name(member)))
            }
            Some(_) if !is_to_vote && group.votes(member.id) => {
                missing.push(format!("{} hands over its vote", name(member)));
            }
            Some(_) => {}
        }
    }
    let left = group.members.iter().filter(|member| !part(member.id));
    missing.extend(left.map(|member| format!("{} leaves", name(member))));
    if missing.is_empty() { "not up to date".to_owned() } else { missing.join(", ") }
}

/// A change in the form in which the log holds it, made for this group.
fn in_the_log(group: &synod_replica::Group, change: &Change) -> Result<synod_replica::Change, ChangeError> {
    use synod_replica::Change as Core;
    let unacceptable = |error: &dyn std::fmt::Display| ChangeError::Unacceptable(error.to_string());
    Ok(match change {
        Change::Add { name, peer_urls, goal } => {
            let taken = |member: &synod_replica::Member| {
                let replaced = *goal == Goal::Replace(member.id);
                member.info.name == *name && !name.is_empty() && !replaced
            };
            if let Some(member) = group.members.iter().find(|member| taken(member)) {
                let why = format!("{} has the name {name} already; choose another", member.id);
                return Err(ChangeError::Unacceptable(why));
            }
            let info = MemberInfo::new(name, peer_urls.clone());
            Core::Add { info, goal: *goal }
        }
        Change::Promote(id) => Core::promote(*id),
        Change::Remove(id) => Core::Remove(*id),
        Change::Update { id, peer_urls } => {
            let member = group.member(*id).ok_or(Refusal::NotAMember(*id))?;
            let mut info = member.info.clone();
            info.peer_urls.clone_from(peer_urls);
            Core::Update { id: *id, info }
        }
        Change::Order { protocol, election, options } => {
            let protocol: ProtocolKind = protocol
                .as_deref()
                .map_or(Ok(group.protocol), str::parse)
                .map_err(|error| unacceptable(&error))?;
            // Another protocol brings its own election; the same protocol keeps the one it has.
            let usual = if protocol == group.protocol { group.election } else { protocol.elections()[0] };
            let election =
                election.as_deref().map_or(Ok(usual), str::parse).map_err(|error| unacceptable(&error))?;
            let usual =
                if protocol == group.protocol { group.overrides.clone() } else { Overrides::default() };
            let overrides: Overrides =
                options.as_deref().map_or(Ok(usual), str::parse).map_err(|error| unacceptable(&error))?;
            Core::Order { protocol, election, overrides }
        }
        Change::Place { voters, others_stay_away } => {
            let others = if *others_stay_away { Others::StayAway } else { Others::Learn };
            Core::Place((!voters.is_empty()).then(|| Choice::of(voters.iter().copied(), others)))
        }
        Change::Limits(limits) => {
            Core::Limits(group.limits.with(limits).map_err(|error| unacceptable(&error))?)
        }
    })
}

fn role(role: synod_consensus::Role) -> Role {
    match role {
        synod_consensus::Role::Leader => Role::Leader,
        synod_consensus::Role::Follower => Role::Follower,
        synod_consensus::Role::Candidate => Role::Candidate,
        synod_consensus::Role::Recovering => Role::Recovering,
        _ => Role::Learner,
    }
}

fn timed<T>(timed: synod_node::Timed<T>) -> Timed<T> {
    let synod_node::Timed { outcome, ordering, execution } = timed;
    Timed { outcome, ordering, execution }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn learners_that_are_to_vote_do_not_count() {
        use synod_replica::{Change, ChangeRequest, Goal, Group};
        let group = Group::of(&synod_consensus::Options::default(), [1, 2, 3].map(ReplicaId));
        let add = |goal| Change::Add { info: MemberInfo::new("", vec![format!("http://{goal:?}:1")]), goal };
        let added = |group: &Group, goal| {
            group.apply(Slot(1), &ChangeRequest { expected: group.version, change: add(goal) }).unwrap()
        };
        let voting = added(&group, Goal::Vote);
        assert!(!adds_too_many_learners(&voting, &add(Goal::Learn), 1));
        let learning = added(&voting, Goal::Learn);
        assert!(adds_too_many_learners(&learning, &add(Goal::Learn), 1));
        assert!(!adds_too_many_learners(&learning, &add(Goal::Learn), 2));
        assert!(!adds_too_many_learners(&learning, &add(Goal::Vote), 1));
        assert!(!adds_too_many_learners(&learning, &Change::promote(ReplicaId(5)), 1));
    }

    #[test]
    fn a_member_leaves_when_its_successor_is_promoted() {
        use synod_replica::{Change, ChangeRequest, Goal, Group};
        let group = Group::of(&synod_consensus::Options::default(), [1, 2, 3].map(ReplicaId));
        let add = |goal| Change::Add { info: MemberInfo::default(), goal };
        let replaces = add(Goal::Replace(ReplicaId(2)));
        assert_eq!(leaving(&group, &replaces), Some(ReplicaId(2)));
        assert_eq!(leaving(&group, &add(Goal::Vote)), None);
        assert_eq!(leaving(&group, &Change::Remove(ReplicaId(1))), Some(ReplicaId(1)));
        let request = ChangeRequest { expected: group.version, change: replaces };
        let group = group.apply(Slot(1), &request).unwrap();
        assert_eq!(leaving(&group, &Change::promote(ReplicaId(4))), Some(ReplicaId(2)));
        assert_eq!(leaving(&group, &Change::promote(ReplicaId(3))), None);
    }
}

//! What a running replica does about its own membership: if it joins, it finds out when it may serve clients; it tells
//! the group its name and its client URLs; it finds out what keeps it from other members, and if it was removed while
//! it was away.
//!
//! Names and client URLs are published through the log, as etcd does: each replica knows only its own, and
//! all must begin with the same group.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use synod_node::{AskError, ChangeError, Handle, NodeStatus, Origin, Repeats, Tls};
use synod_replica::{Change, Group, Member, Refusal, RequestError};
use synod_wire::{ClusterId, Groups, ReplicaId};

use super::obstacles::{Obstacles, PATIENCE};
use crate::urls;

/// The time between two looks.
const GLANCE_INTERVAL: Duration = Duration::from_millis(100);
/// The same while a replica joins: clients wait for it.
const JOINING_GLANCE: Duration = Duration::from_millis(10);
/// The time between two attempts to publish, which doubles up to `RETRY_MAX`.
const RETRY_MIN: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(5);
/// How long a replica is without sessions to a leader and from it before it asks the others whether it is still a
/// member, and how long it waits between two such questions.
const LEADERLESS_MAX: Duration = Duration::from_secs(5);
/// How long a replica that joins, and cannot serve clients yet, waits before it says why.
const JOINING_INTERVAL: Duration = Duration::from_secs(10);
/// The time between two looks at what is in the way of other members.
const OBSTACLES_INTERVAL: Duration = Duration::from_secs(1);
/// Programs that start etcd wait for this message: the replica has a leader, and the cluster knows where it serves
/// clients.
const READY: &str = "ready to serve client requests";
/// How long all answers together may take.
const ASK_TIMEOUT: Duration = Duration::from_secs(5);

/// A replica, and what its membership has to say about it.
#[derive(Debug)]
pub(super) struct Membership {
    /// On the first group.
    pub handle: Handle,
    /// On the other groups, by their numbers.
    pub others: Vec<Handle>,
    pub cluster: ClusterId,
    pub groups: Groups,
    pub me: ReplicaId,
    pub name: String,
    pub client_urls: Vec<String>,
    /// TLS with other replicas.
    pub tls: Option<Tls>,
    /// What keeps this replica from other members.
    pub obstacles: Arc<Obstacles>,
}

/// A handle on the thread that looks after the membership.
#[derive(Clone, Debug, Default)]
pub(super) struct Watch {
    removed: Arc<AtomicBool>,
    /// The replica knows that it is a member, and what was decided before it asked.
    joined: Arc<AtomicBool>,
    /// Clients are served.
    open: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
}

impl Watch {
    /// Whether the others say that this replica was removed.
    pub fn is_removed(&self) -> bool {
        self.removed.load(Ordering::Acquire)
    }

    /// Whether clients may be served: a replica that joins knows that it is a member, and what was decided before it
    /// asked, as any other one.
    pub fn has_joined(&self) -> bool {
        self.joined.load(Ordering::Acquire)
    }

    /// Clients are served from now on, so the others may be told where.
    pub fn opened(&self) {
        self.open.store(true, Ordering::Release);
    }

    /// Tells the thread to end soon.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
    }
}

impl Membership {
    /// Begins to look after the membership, on a thread of its own.
    pub fn start(self) -> io::Result<Watch> {
        let watch = Watch::default();
        let seen = watch.clone();
        let runtime = tokio::runtime::Builder::new_current_thread().build()?;
        thread::Builder::new().name("membership".into()).spawn(move || self.run(&seen, &runtime))?;
        Ok(watch)
    }

    fn run(self, watch: &Watch, runtime: &tokio::runtime::Runtime) {
        if !self.join(watch, runtime) {
            return;
        }
        let mut publish_at = Instant::now();
        let mut retry = RETRY_MIN;
        let mut heard_at = Instant::now();
        let mut was_ready = false;
        let mut look_at = Instant::now() + PATIENCE;
        let mut obstacles = Vec::new();
        let mut warnings = Repeats::default();
        while !watch.stop.load(Ordering::Acquire) {
            thread::sleep(GLANCE_INTERVAL);
            if Instant::now() >= look_at {
                self.tell_of_obstacles(&mut obstacles, &mut warnings);
                look_at = Instant::now() + OBSTACLES_INTERVAL;
            }
            let now = Instant::now();
            if !watch.open.load(Ordering::Acquire) {
                continue;
            }
            // A replica that was removed from the first group alone hears nothing of its leaders any more.
            let (group, status) = (self.handle.group(), self.handle.status());
            let (left, has_leader) = (group.member(self.me).is_none(), group.protocol.has_leader());
            if !left && has_sessions(&status, has_leader, self.me) {
                heard_at = now;
            } else if now - heard_at >= LEADERLESS_MAX {
                if self.was_removed(&mut warnings) {
                    watch.removed.store(true, Ordering::Release);
                    return;
                }
                heard_at = Instant::now();
            }
            // A voter that has no session to its leader may reach it by another one.
            let is_led = !has_leader || status.leader.is_some();
            if left || !is_led || now < publish_at {
                continue;
            }
            if let Some((expected, change)) = self.news() {
                match runtime.block_on(self.handle.change(expected, change)) {
                    Ok(_) => {
                        retry = RETRY_MIN;
                        tracing::info!(name = self.name, clients = self.client_urls.join(","), "published");
                    }
                    Err(ChangeError::Request(RequestError::Stopping)) => return,
                    // Another replica may publish at the same time, and a change without a quorum times out:
                    // it is tried again with the group as it is then.
                    Err(
                        ChangeError::Refused(
                            Refusal::Stale { .. } | Refusal::NothingToDo | Refusal::Unsettled,
                        )
                        | ChangeError::Request(_),
                    ) => {
                        publish_at = now + retry;
                        retry = (retry * 2).min(RETRY_MAX);
                    }
                    Err(refusal) => {
                        if let Some(left_out) = warnings.admit("published") {
                            tracing::warn!(%refusal, "name and client URLs cannot be published{left_out}");
                        }
                        publish_at = now + RETRY_MAX;
                    }
                }
            } else if !was_ready {
                was_ready = true;
                tracing::info!(name = self.name, "{READY}");
            }
        }
    }

    /// Waits until this replica may serve clients, if it joins, and says from time to time what it waits for; false if
    /// it is to stop, or was removed.
    fn join(&self, watch: &Watch, runtime: &tokio::runtime::Runtime) -> bool {
        let mut told_at = Instant::now();
        let mut asked_at = told_at;
        let mut warnings = Repeats::default();
        let joins = self.groups_joined().next().is_some();
        if joins {
            tracing::info!(name = self.name, "this replica joins: clients are served once it has caught up");
        }
        // What a group decided before is known here once a read of it has succeeded.
        while joins && !watch.stop.load(Ordering::Acquire) {
            let read = |handle: &Handle| match runtime.block_on(handle.query(bytes::Bytes::new())) {
                Ok(_) | Err(RequestError::TakesNoPart) => None,
                Err(why) => Some(why),
            };
            let why = match self.groups_joined().next() {
                Some((number, handle)) => {
                    let status = handle.status();
                    let lacks = status.decided_elsewhere.0.saturating_sub(status.decided.0);
                    format!(
                        "it has not learned yet that it is a member of group {number}, and lacks {lacks} slots at least"
                    )
                }
                None => match self.handles().find_map(|(number, handle)| Some((number, read(handle)?))) {
                    Some((number, why)) => format!("a read of group {number} failed: {why}"),
                    None => break,
                },
            };
            let now = Instant::now();
            if now - told_at >= JOINING_INTERVAL {
                told_at = now;
                if warnings.admit("joins").is_some() {
                    tracing::warn!("this replica joins, and does not serve clients yet: {why}");
                }
            }
            if now - asked_at >= LEADERLESS_MAX {
                asked_at = now;
                if self.was_removed(&mut warnings) {
                    watch.removed.store(true, Ordering::Release);
                    return false;
                }
            }
            thread::sleep(JOINING_GLANCE);
        }
        watch.joined.store(true, Ordering::Release);
        true
    }

    /// The groups by their numbers.
    fn handles(&self) -> impl Iterator<Item = (usize, &Handle)> {
        std::iter::once(&self.handle).chain(&self.others).enumerate()
    }

    /// The groups of which this replica does not know yet that it is a member.
    fn groups_joined(&self) -> impl Iterator<Item = (usize, &Handle)> {
        self.handles().filter(|(_, handle)| handle.joins())
    }

    /// What the group does not know of this replica, or knows no longer, with the version of the group.
    fn news(&self) -> Option<(u64, Change)> {
        let group = self.handle.group();
        let known = &group.member(self.me)?.info;
        let mut info = known.clone();
        info.name.clone_from(&self.name);
        info.client_urls.clone_from(&self.client_urls);
        (info != *known).then_some((group.version, Change::Update { id: self.me, info }))
    }

    /// Where the other replicas listen for their peers.
    fn addresses(&self) -> Vec<String> {
        addresses(self.handle.group().known().filter(|member| member.id != self.me))
    }

    /// Says what is in the way of other members now and was not at the last look, whose lines are `told`.
    fn tell_of_obstacles(&self, told: &mut Vec<String>, warnings: &mut Repeats) {
        self.obstacles.ask(&self.handle, self.cluster, self.groups, self.tls.as_ref());
        let lines = self.obstacles.lines(&self.handle.group(), &self.handle.status());
        for line in lines.iter().filter(|line| !told.contains(line)) {
            if warnings.admit(line).is_some() {
                tracing::warn!("{line}");
            }
        }
        *told = lines;
    }

    /// Asks the other replicas whether this one was removed, from every group.
    fn was_removed(&self, warnings: &mut Repeats) -> bool {
        let addresses = self.addresses();
        let Ok(told) = ask(&addresses, self.tls.as_ref()) else {
            return false;
        };
        if told.cluster != self.cluster || !says_removed(&told, &self.handle.group(), self.me) {
            return false;
        }
        let needed =
            self.others.iter().position(|handle| is_needed(&handle.group(), self.me, self.tls.as_ref()));
        if let Some(number) = needed.map(|place| place + 1)
            && warnings.admit("needed").is_some()
        {
            tracing::error!(
                "this replica was removed from the cluster. It votes in group {number}, as far as it knows, and no other \
                 voter of that group answers: it goes on, since the group may not decide anything without it"
            );
        }
        needed.is_none()
    }
}

/// Whether a replica leads, or knows a leader with sessions to it and from it. A learner that was cut off for long goes
/// on believing in the leader that it had. Where nobody leads, sessions with anybody count, or that there is nobody.
fn has_sessions(status: &NodeStatus, has_leader: bool, me: ReplicaId) -> bool {
    let is_up = |id| status.peers.iter().any(|peer| peer.id == id && peer.up_since.is_some());
    if has_leader {
        status.leader.is_some_and(|leader| leader == me || is_up(leader))
    } else {
        status.peers.is_empty() || status.peers.iter().any(|peer| is_up(peer.id))
    }
}

fn addresses<'a>(members: impl Iterator<Item = &'a Member>) -> Vec<String> {
    let urls = members.filter_map(|member| member.info.peer_urls.first());
    urls.filter_map(|url| urls::peer_address(url).ok()).collect()
}

/// Whether an answer says that a replica was removed, and that decisions do not need it any more. Only an answer with a
/// group that is no older than the one that the replica knows, to which its id was known, counts.
fn says_removed(told: &Origin, known: &Group, me: ReplicaId) -> bool {
    told.present.version >= known.version
        && told.present.member(me).is_none()
        && !told.present.counts(me)
        && me < told.present.next_id
        && !told.staying.contains(&me)
}

/// Whether a replica has to go on for a group that it knows so: it votes there, and no other voter answers. Replicas
/// that stay away from the group do not know who is needed there.
fn is_needed(group: &Group, me: ReplicaId, tls: Option<&Tls>) -> bool {
    let voters = group.members.iter().filter(|member| group.votes(member.id) && member.id != me);
    group.votes(me) && ask(&addresses(voters), tls).is_err()
}

fn ask(addresses: &[String], tls: Option<&Tls>) -> Result<Origin, AskError> {
    Origin::ask_blocking(addresses.iter().map(String::as_str), tls, ASK_TIMEOUT)
}

#[cfg(test)]
mod tests {
    use synod_consensus::Options;
    use synod_node::PeerLink;
    use synod_replica::{ChangeRequest, Choice, MemberInfo, Others};
    use synod_wire::Slot;

    use super::*;

    const R3: ReplicaId = ReplicaId(3);

    fn changed(group: &Group, change: Change) -> Group {
        group.apply(Slot(9), &ChangeRequest { expected: group.version, change }).expect("it can be made")
    }

    #[test]
    fn a_leader_without_a_session_is_not_heard_and_where_nobody_leads_any_session_counts() {
        let status = |leader: u64, up_since| {
            let mut status = NodeStatus::default();
            status.leader = Some(ReplicaId(leader));
            status.peers.push(PeerLink::new(ReplicaId(1), up_since));
            status
        };
        let (up, down) = (status(1, Some(Instant::now())), status(1, None));
        assert!(has_sessions(&status(3, None), true, R3), "it leads");
        assert!(has_sessions(&up, true, R3));
        assert!(!has_sessions(&down, true, R3), "the leader has let go of it");
        assert!(!has_sessions(&NodeStatus::default(), true, R3));
        // Where nobody leads.
        assert!(has_sessions(&up, false, R3) && !has_sessions(&down, false, R3));
        assert!(has_sessions(&NodeStatus::default(), false, R3), "it is alone");
    }

    #[test]
    fn an_answer_without_a_replica_says_that_it_was_removed_unless_another_group_has_it() {
        let first = Group::of(&Options::default(), (1..=3).map(ReplicaId)).followed();
        let mut told = Origin::new(ClusterId(1), first.clone());
        assert!(!says_removed(&told, &first, R3));
        told.present = changed(&first, Change::Remove(R3));
        assert!(says_removed(&told, &first, R3));
        told.staying = vec![R3];
        assert!(!says_removed(&told, &first, R3));
    }

    #[test]
    fn a_replica_is_needed_where_it_votes_and_no_other_voter_answers() {
        let unused = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let info = |id: u64| MemberInfo::new(format!("n{id}"), vec![format!("http://{unused}")]);
        let first = Group::first(&Options::default(), (1..=3).map(|id| (ReplicaId(id), info(id))));
        let of = |voters: &[ReplicaId]| {
            let choice = Choice::of(voters.iter().copied(), Others::StayAway);
            changed(&first.clone().following(first.version), Change::Place(Some(choice)))
        };
        // The others stay away, and know nothing of the group; or the other voter is down.
        assert!(is_needed(&of(&[R3]), R3, None) && is_needed(&of(&[ReplicaId(2), R3]), R3, None));
        assert!(!is_needed(&of(&[R3]), ReplicaId(1), None));
    }
}

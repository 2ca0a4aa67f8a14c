//! A server that stands on a node: how it is put together, what it does until it ends, and how it ends.
//!
//! A program builds [`Settings`], which know nothing of flags, and calls [`NodeServer::start`] and
//! [`NodeServer::serve`].
//!
//! ```text
//! Settings ─ join.rs ─ Node, with a KvStore ─ OnNode (replica.rs) ─┬─ Server ─ sockets of clients
//!                            │                 changes.rs           └─ Upkeep
//!                            └─ membership.rs, obstacles.rs
//! ```
//!
//! Settings that belong to the group are used as the group has them. A replica that joins first asks for the group
//! (`join.rs`). One that runs tells the group its name and the addresses for its clients (`membership.rs`), and a
//! leader that is told to stop hands over before. `obstacles.rs` knows what keeps it from other members, and
//! `measured.rs` which options serve in a laboratory only.

mod changes;
mod join;
mod measured;
mod membership;
mod obstacles;
mod quorums;
mod replica;

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use prometheus_client::registry::Registry;
use synod_consensus::Overrides;
use synod_kv::KvStore;
use synod_node::{Ended, Handle, Node, StartError, Tls};
use synod_replica::Group;
use synod_storage::StorageError;
use synod_wire::{ClusterId, Groups, ReplicaId};

pub use self::join::Joining;
use self::{
    membership::{Membership, Watch},
    replica::{Fixed, OnNode},
};
use crate::{Auth, Config, Differs, EventLoop, Hashes, Server, Upkeep, UpkeepConfig, Watches};

/// How long a request to stop may go unnoticed.
const GLANCE_INTERVAL: Duration = Duration::from_millis(50);
/// The time between two looks whether a replica that joins may serve clients.
const JOINING_GLANCE: Duration = Duration::from_millis(10);
/// How long a replica that was removed still answers.
const GRACE: Duration = Duration::from_secs(1);
/// How long another process may hold on to the data directory.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);

/// What a server on a node is made of.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The replica. If it joins, the cluster tells its id and how its groups are merged.
    pub node: synod_node::Config,
    /// The server. Without [`Config::client_io_threads`] clients are served on the replica's own thread, which must be
    /// compact then. The watches, and the event loop, are made here.
    pub server: Config,
    /// What the replica does for its stores by itself.
    pub upkeep: UpkeepConfig,
    /// Whether it compares its contents with those of the others before it serves.
    pub check_at_start: bool,
    /// The groups of the cluster. If the replica joins, the cluster tells them.
    pub groups: Groups,
    /// For the first start of a replica that joins a cluster.
    pub joining: Option<Joining>,
    /// The addresses that clients are told for this replica.
    pub client_urls: Vec<String>,
    /// How many members may stay learners.
    pub learners_max: u32,
    /// Whether options that exist to be measured are taken.
    pub laboratory: bool,
    /// Options of this replica's own, which its group may fix.
    pub options: Option<Overrides>,
}

/// Why a server does not serve, or has ended by itself. The texts name the flags of `synod serve`.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting does not fit the cluster. The text says what is accepted.
    #[error("{0}")]
    Setting(String),
    /// The replica cannot join its cluster. The text says what to do.
    #[error("{0}")]
    Join(String),
    /// The node does not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The server cannot listen for clients.
    #[error(transparent)]
    Listen(io::Error),
    /// The system gives no thread or no descriptor.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The contents of this replica are not those of the others.
    #[error("{0}: this replica's contents are not those of most others. Replace it: `synod member replace`")]
    Differs(Differs),
    /// The replica could not go on.
    #[error(transparent)]
    Ended(#[from] Ended),
}

/// Where a server is in its life, for a manager of services.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// It serves, and each of its groups has a leader.
    Ready,
    /// It ends.
    Stopping,
}

/// A replica with stores of keys, and the server in front of it.
#[derive(Debug)]
pub struct NodeServer {
    node: Node,
    fixed: Arc<Fixed>,
    groups: Groups,
    /// The group as the members told it, if the replica joins, or else as its log has it.
    group: Group,
    hashes: Vec<Hashes>,
    config: Config,
    upkeep: UpkeepConfig,
    check_at_start: bool,
    client_urls: Vec<String>,
    /// TLS with other replicas.
    tls: Option<Tls>,
    /// Whether its groups make one order.
    merged: bool,
    /// Most bytes of commands that may wait for a decision.
    queue_bytes_max: u64,
}

impl NodeServer {
    /// Joins the cluster, if that is to be done, and starts the node. It blocks for that. `stop` ends it early.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn start(settings: Settings, stop: &AtomicBool) -> Result<NodeServer, Error> {
        let Settings { mut node, mut server, groups, joining, .. } = settings;
        let groups = match joining {
            Some(joining) => join::join(&joining, &mut node, stop)?,
            None => groups,
        };
        if server.client_io_threads == 0 {
            let event_loop = EventLoop::new()?;
            node.event_loop = Some(event_loop.clone());
            server.event_loop = Some(event_loop);
        }
        let merged = node.merging.is_some();
        // Where keys are spread over several groups there is no single revision to watch by, nor one store of users.
        server.watches = (merged || groups.count == 1).then(Watches::new);
        if server.watches.is_none() {
            server.auth = None;
        }
        let stores = if merged { 1 } else { groups.count };
        let hashes: Vec<_> = (0..stores).map(|_| Hashes::default()).collect();
        let fixed = Fixed {
            cluster: node.cluster,
            me: node.me,
            name: node.name.clone(),
            durability: node.durability.to_string(),
            transport: node.network.name(),
            learners_max: settings.learners_max,
            transfer_timeout: node.settings.request_timeout,
            obstacles: Arc::default(),
            laboratory: settings.laboratory,
            options: settings.options,
        };
        let told = node.joins.as_ref().map(|origin| origin.present.clone());
        let (tls, queue_bytes_max) = (node.tls.clone(), node.settings.queue_bytes_max as u64);
        let node = start(node, &server, &hashes, stop)?;
        // A joining replica may have been told of a group that its own log does not reach yet.
        let here = node.handle().group();
        let group = told.filter(|told| told.version > here.version).unwrap_or_else(|| (*here).clone());
        if let Err(refusal) = check_name(&fixed.name, fixed.me, &group) {
            node.stop_blocking()?;
            return Err(refusal);
        }
        Ok(NodeServer {
            node,
            fixed: Arc::new(fixed),
            groups,
            group,
            hashes,
            config: server,
            upkeep: settings.upkeep,
            check_at_start: settings.check_at_start,
            client_urls: settings.client_urls,
            tls,
            merged,
            queue_bytes_max,
        })
    }

    /// The cluster.
    #[must_use]
    pub fn cluster(&self) -> ClusterId {
        self.fixed.cluster
    }

    /// The groups of the cluster.
    #[must_use]
    pub fn groups(&self) -> Groups {
        self.groups
    }

    /// The first group when the node started.
    #[must_use]
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// What node and server count.
    #[must_use]
    pub fn metrics(&self) -> Registry {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(self.node.metrics()));
        registry.register_collector(Box::new(self.config.requests.clone()));
        registry
    }

    /// Serves clients until the replica is told to stop, was removed, or cannot go on. The page `/metrics` shows
    /// `metrics`.
    ///
    /// # Errors
    /// See [`Error`].
    pub fn serve(
        self,
        metrics: Registry,
        stop: &AtomicBool,
        mut tell: impl FnMut(Phase),
    ) -> Result<(), Error> {
        self.warn_of_groups();
        let answer_bytes_max = self.node.handle().limits().answer_bytes_max;
        let (replicas, membership) = (self.replicas(), self.membership());
        let NodeServer { node, fixed, hashes, config, upkeep, check_at_start, queue_bytes_max, .. } = self;
        let upkeep = Upkeep::start(upkeep, replicas.iter().cloned().zip(hashes).collect())?;
        if check_at_start && let Err(differs) = upkeep.check_at_start() {
            node.stop_blocking()?;
            return Err(Error::Differs(differs));
        }
        let mut server = Server::prepare_groups(&config, replicas, metrics).map_err(Error::Listen)?;
        tracing::info!(
            mib = (config.memory_bytes_max(answer_bytes_max) + queue_bytes_max) >> 20,
            "memory that clients can make this replica take at most, beside the store"
        );
        let watch = membership.start()?;
        if until_joined(&node, stop, &watch) {
            server.open().map_err(Error::Listen)?;
            watch.opened();
            tracing::info!(name = fixed.name, "serving");
        }
        let outcome = until_stopped(node, server, stop, &watch, &mut tell);
        drop(upkeep);
        Ok(outcome?)
    }

    /// Warns of options, of the groups and of this replica, that exist to be measured, and of groups that survive the
    /// loss of no voter.
    fn warn_of_groups(&self) {
        let several = self.node.handles().len() > 1;
        for (number, group) in self.node.handles().iter().map(Handle::group).enumerate() {
            let number = Some(number).filter(|_| several);
            quorums::remark(&group, number).into_iter().for_each(|line| tracing::warn!("{line}"));
            if self.fixed.laboratory {
                continue;
            }
            let lines = measured::remarks(&group, number, self.fixed.options.as_ref());
            lines.for_each(|line| tracing::warn!("{line}"));
        }
    }

    /// What clients reach: a store of each group, or one of all merged groups.
    fn replicas(&self) -> Vec<OnNode> {
        let groups: Arc<[_]> = self.node.handles().iter().cloned().collect();
        if self.merged {
            return vec![OnNode::merged(groups, Arc::clone(&self.fixed))];
        }
        let of_group = |number| OnNode::new(number, Arc::clone(&groups), Arc::clone(&self.fixed));
        (0..groups.len()).map(of_group).collect()
    }

    fn membership(&self) -> Membership {
        Membership {
            handle: self.node.handle(),
            others: self.node.handles()[1..].to_vec(),
            cluster: self.fixed.cluster,
            groups: self.groups,
            me: self.fixed.me,
            name: self.fixed.name.clone(),
            client_urls: self.client_urls.clone(),
            tls: self.tls.clone(),
            obstacles: Arc::clone(&self.fixed.obstacles),
        }
    }
}

/// Starts the node. If another process of this replica, which was told to stop a moment ago, is still closing its log,
/// waits for it.
fn start(
    config: synod_node::Config,
    server: &Config,
    hashes: &[Hashes],
    stop: &AtomicBool,
) -> Result<Node, Error> {
    let deadline = Instant::now() + LOCK_TIMEOUT;
    let mut said = false;
    loop {
        let store = |hashes: &Hashes| {
            let store = KvStore::new().compared_by(hashes.comparer());
            let store = server.watches.iter().map(Watches::feed).fold(store, KvStore::feeding);
            server.auth.iter().map(Auth::feed).fold(store, KvStore::authenticating)
        };
        let stores = hashes.iter().map(store).collect();
        match Node::start_groups_blocking(config.clone(), stores) {
            Err(StartError::Storage(locked @ StorageError::Locked { .. }))
                if Instant::now() < deadline && !stop.load(Ordering::Acquire) =>
            {
                if !said {
                    tracing::warn!("{locked}; waiting up to {LOCK_TIMEOUT:?} for it to end");
                    said = true;
                }
                thread::sleep(GLANCE_INTERVAL);
            }
            other => return Ok(other?),
        }
    }
}

/// A replica may take another name, but not one that another member has, since the name could not tell them
/// apart. (A replica that is added to replace another begins with that one's name.)
fn check_name(name: &str, me: ReplicaId, group: &Group) -> Result<(), Error> {
    let own = group.member(me).map_or("", |member| member.info.name.as_str());
    let other = group.members.iter().find(|member| member.id != me && member.info.name == name);
    match other {
        Some(other) if !own.is_empty() && own != name => Err(Error::Setting(format!(
            "--name {name}: the member {} has that name, and this data directory is that of {own} ({me}). Give --name {own}, \
             or the data directory of {name}",
            other.id
        ))),
        _ => Ok(()),
    }
}

/// Waits until a replica that joins may serve clients; false if it is to end before.
fn until_joined(node: &Node, stop: &AtomicBool, watch: &Watch) -> bool {
    while !watch.has_joined() {
        let ends = stop.load(Ordering::Acquire) || watch.is_removed();
        if ends || node.wait_blocking(JOINING_GLANCE).is_some() {
            return false;
        }
    }
    true
}

/// Waits for the end and shuts down in order; an error says why the replica could not go on.
fn until_stopped(
    node: Node,
    server: Server,
    stop: &AtomicBool,
    watch: &Watch,
    tell: &mut impl FnMut(Phase),
) -> Result<(), Ended> {
    let handles = node.handles().to_vec();
    // Until every group has it out, its vote may be needed in one.
    let removed = || handles.iter().all(Handle::is_retired) || watch.is_removed();
    let (mut failed, mut told) = (None, false);
    while failed.is_none() && !stop.load(Ordering::Acquire) && !removed() {
        // As with etcd: once there is a leader, and so a quorum that it can serve with.
        let leads_nobody = |group: &Handle| group.takes_part() && group.status().leader.is_none();
        if !told && !handles.iter().any(leads_nobody) {
            tell(Phase::Ready);
            told = true;
        }
        failed = node.wait_blocking(GLANCE_INTERVAL);
    }
    tell(Phase::Stopping);
    watch.stop();
    if failed.is_some() {
        // The replica stops first: it will not answer the requests under way any more, and says so to them.
        let outcome = node.stop_now_blocking();
        server.stop();
        return outcome;
    }
    if removed() {
        tracing::warn!(
            "this replica was removed from the cluster: it ends. The cluster does not need its data directory \
             any more; to come back, delete it and add the replica again"
        );
        // Clients that were told of other replicas a moment ago may still be on their way to them.
        thread::sleep(GRACE);
    }
    tracing::info!("stopping: requests under way are finished, then the log is closed");
    // Before the server, which answers those whose commands are decided meanwhile.
    node.hand_over_blocking();
    server.stop();
    node.stop_now_blocking()
}

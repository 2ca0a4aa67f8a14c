//! What a replica needs to be told to run.

use std::{net::SocketAddr, ops::RangeInclusive, path::PathBuf, sync::Arc};

use synod_replica::{Group, Limits, MemberInfo, REQUEST_BYTES_MAX, Settings};
use synod_storage::{Disk, Durability, Ending, the_disk};
use synod_transport::{Network, Tcp};
use synod_wire::{ClusterId, ReplicaId};

use crate::Origin;

/// A member of the group and where its peers reach it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberAddress {
    /// Its id.
    pub id: ReplicaId,
    /// Its name, for people.
    pub name: String,
    /// `host:port` for other replicas.
    pub address: String,
}

impl MemberAddress {
    /// A member that other replicas reach at `address`.
    #[must_use]
    pub fn new(id: ReplicaId, name: impl Into<String>, address: impl Into<String>) -> MemberAddress {
        MemberAddress { id, name: name.into(), address: address.into() }
    }

    fn info(&self) -> MemberInfo {
        MemberInfo {
            name: self.name.clone(),
            peer_urls: vec![format!("http://{}", self.address)],
            // Members tell them when they run; all replicas must begin with the same group.
            client_urls: Vec::new(),
        }
    }
}

/// Configuration of one replica.
#[derive(Clone, Debug)]
pub struct Config {
    /// The cluster; replicas of another one are refused.
    pub cluster: ClusterId,
    /// This replica; one of `members`, unless it joins.
    pub me: ReplicaId,
    /// Its name, for its own messages and the identity file.
    pub name: String,
    /// The members with which the group begins, the same at all replicas. They count at the first start only: from
    /// then on the data directory knows with whom the group began, and the log who has belonged to it since.
    pub members: Vec<MemberAddress>,
    /// For the first start of a replica that joins a group: what a member told ([`Origin::ask`]).
    pub joins: Option<Origin>,
    /// Where to listen for other replicas.
    pub listen: Vec<SocketAddr>,
    /// Where log and snapshots live.
    pub data_dir: PathBuf,
    /// What a commit to the log waits for.
    pub durability: Durability,
    /// Size of a log segment, in bytes.
    pub segment_bytes: u64,
    /// Start the only replica of a group although its log is gone: it goes on from its last snapshot, and what was
    /// acknowledged behind that is lost.
    pub accept_lost_log: bool,
    /// Vote at the first start although some of `members` have not been met yet. Without it a replica of a new group
    /// waits for all of them once, so that two that know nothing of what was decided cannot be a quorum.
    pub begin_without_all: bool,
    /// The versions of messages that may be spoken with other replicas; those that this build knows, but in tests.
    pub versions: RangeInclusive<u16>,
    /// The protocol's and the replica's settings.
    pub settings: Settings,
    /// What carries messages between replicas: TCP, unless a program has one of its own.
    pub network: Arc<dyn Network>,
    /// Where `data_dir` is: on the disk of this machine, unless a program has one of its own.
    pub disk: Arc<dyn Disk>,
    /// Execute commands on a thread of its own (`true`), or on the protocol's thread: one hand-over less a
    /// command, but a slow state machine then delays the protocol.
    pub executor_thread: bool,
}

impl Config {
    /// A configuration with defaults for everything that has one.
    #[must_use]
    pub fn new(cluster: ClusterId, me: ReplicaId, members: Vec<MemberAddress>, data_dir: PathBuf) -> Config {
        let name = members.iter().find(|member| member.id == me).map_or("", |member| &member.name).to_owned();
        Config {
            cluster,
            me,
            name,
            members,
            joins: None,
            listen: Vec::new(),
            data_dir,
            durability: Durability::Sync,
            segment_bytes: 64 << 20,
            accept_lost_log: false,
            begin_without_all: false,
            versions: synod_transport::VERSION_OLDEST..=synod_transport::VERSION,
            settings: Settings::default(),
            network: Arc::new(Tcp),
            disk: the_disk(),
            executor_thread: true,
        }
    }

    /// What this replica begins with if its data directory does not say.
    pub(crate) fn origin(&self) -> Result<Origin, StartError> {
        if let Some(told) = &self.joins {
            return Ok(told.clone());
        }
        self.check_members()?;
        let members = self.members.iter().map(|member| (member.id, member.info()));
        let first = Group::first(&self.settings.consensus, members).limited(self.settings.limits);
        Ok(Origin::new(self.cluster, first))
    }

    /// The largest message that this replica may ever have to send, in bytes, whatever limits its group takes on.
    pub(crate) fn message_bytes_max(&self) -> usize {
        let limits = Limits { request_bytes_max: REQUEST_BYTES_MAX, ..Limits::default() };
        self.settings.message_bytes_max(&limits)
    }

    fn check_members(&self) -> Result<(), StartError> {
        let invalid = |reason: String| Err(StartError::Config(reason));
        if !self.members.iter().any(|member| member.id == self.me) {
            return invalid(format!("replica {} is not among the members", self.me));
        }
        let mut ids: Vec<_> = self.members.iter().map(|member| member.id).collect();
        ids.sort_unstable();
        if ids.windows(2).any(|pair| pair[0] == pair[1]) {
            return invalid("two members have the same id".to_owned());
        }
        if ids.len() > synod_consensus::MEMBERS_MAX {
            return invalid(format!("{} members; at most {}", ids.len(), synod_consensus::MEMBERS_MAX));
        }
        if ids.iter().any(|id| id.0 == 0 || id.0 > synod_replica::session::REPLICA_ID_MAX) {
            return invalid(format!("replica ids go from 1 to {}", synod_replica::session::REPLICA_ID_MAX));
        }
        if ids.len() == 2 && !self.durability.keeps_promises(Ending::Process) {
            return invalid(format!(
                "with durability {}, a group of 2 could never go on without one of them; use 3",
                self.durability
            ));
        }
        Ok(())
    }

    pub(crate) fn check(&self) -> Result<(), StartError> {
        let invalid = |reason: String| Err(StartError::Config(reason));
        let consensus = &self.settings.consensus;
        for (key, value) in [
            ("heartbeat-interval", consensus.heartbeat_interval),
            ("retransmit-after", consensus.retransmit_after),
            ("request-timeout", self.settings.request_timeout),
            ("clock-interval", self.settings.clock_interval),
        ] {
            if value.is_zero() {
                return invalid(format!("{key} is 0; it must be longer"));
            }
        }
        let frame_bytes_max = self.network.message_bytes_max();
        if self.message_bytes_max() > frame_bytes_max {
            return invalid(format!(
                "a message between replicas may have {} bytes, which exceeds the {frame_bytes_max} of a frame; lower \
                 promise_bytes_max, append_bytes_max, fetch_bytes_max or chunk_bytes_max",
                self.message_bytes_max()
            ));
        }
        if let Err(error) = self.settings.limits.check() {
            return invalid(error.to_string());
        }
        if self.settings.forward_window_max == 0 {
            return invalid("forward-window-max is 0; it must be at least 1".to_owned());
        }
        if consensus.window_max == 0 {
            return invalid("window-max is 0; it must be at least 1".to_owned());
        }
        if consensus.election_timeout < consensus.heartbeat_interval * 3 {
            return invalid(format!(
                "election-timeout ({:?}) must be at least 3 times heartbeat-interval ({:?})",
                consensus.election_timeout, consensus.heartbeat_interval
            ));
        }
        Ok(())
    }
}

/// Why a replica did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration makes no sense.
    #[error("configuration: {0}")]
    Config(String),
    /// Log, snapshots or data directory.
    #[error(transparent)]
    Storage(#[from] synod_storage::StorageError),
    /// The replica was started before with durability `crash-stop`, which keeps no log.
    #[error(
        "{0} is of a replica that was started with durability crash-stop before. It does not remember what it promised, so it must \
         not start again. Let another replica take its place: synod member replace, and then a start with an empty data \
         directory and --initial-cluster-state existing. If most of the voters are gone, make a new cluster of what a \
         snapshot holds: synod recover --force-new-cluster"
    )]
    Stopped(PathBuf),
    /// Listening for other replicas.
    #[error(transparent)]
    Transport(#[from] synod_transport::TransportError),
    /// A record of the log, or a snapshot, is not what this program writes.
    #[error("{0}")]
    Unreadable(String),
    /// Nobody can help: the data of the only replica is damaged.
    #[error(
        "the log is damaged ({0}), and there is no other replica to recover from; restore {1} from a backup"
    )]
    DamagedAlone(String, PathBuf),
    /// The log of the only replica is gone, and it was not told to do without ([`Config::accept_lost_log`]).
    #[error(
        "the log is lost ({0}), and there is no other replica to recover from; restore {1} from a backup, or start \
         once with --accept-lost-log to go on from the last snapshot, without what was written since"
    )]
    LostAlone(String, PathBuf),
    /// The only voter lost something that members without a vote may hold.
    #[error(
        "the log is damaged or lost ({0}), and the other members have no vote, so nobody can tell what is missing, though they \
         may hold it. Make a new cluster of the data directory that holds most, this one or one of theirs: synod recover \
         --force-new-cluster"
    )]
    LostBeforeLearners(String),
    /// The only member lost the record of those who were members once, and would give their ids to others.
    #[error(
        "the log is damaged or lost, and with it who was a member once. The ids of those would be given again, and one \
         that never heard of its removal would be taken for a new member. Make a new cluster of what is left, which they \
         cannot reach: synod recover --force-new-cluster"
    )]
    MembersForgotten,
}

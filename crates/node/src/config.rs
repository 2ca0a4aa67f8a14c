//! What a replica needs to be told to run.

use std::{
    collections::BTreeMap, fmt, net::SocketAddr, ops::RangeInclusive, path::PathBuf, str::FromStr, sync::Arc,
};

use synod_consensus::{Combination, Options};
use synod_replica::{Group, Limits, MemberInfo, REQUEST_BYTES_MAX, Settings, Skips, Take};
use synod_storage::{Disk, Durability, Ending, the_disk};
use synod_sync::net::TcpListener;
use synod_transport::{EventLoop, Network, Tcp, Tls};
use synod_wire::{ClusterId, GroupId, Groups, MERGED_MAX, ReplicaId, TAKE_MAX};

use crate::{ConfigError, Origin, origin::beside};

/// A member of the group and where its peers reach it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemberAddress {
    /// Its id.
    pub id: ReplicaId,
    /// Its name, for people.
    pub name: String,
    /// `host:port` for other replicas, or `https://host:port` if they are to call it with TLS.
    pub address: String,
}

impl MemberAddress {
    /// A member that other replicas reach at `address`.
    #[must_use]
    pub fn new(id: ReplicaId, name: impl Into<String>, address: impl Into<String>) -> MemberAddress {
        MemberAddress { id, name: name.into(), address: address.into() }
    }

    /// Its `host:port`, written alike for all members at one address.
    fn place(&self) -> String {
        let address = self.address.split_once("://").map_or(&*self.address, |(_, address)| address);
        address.trim_end_matches('/').to_ascii_lowercase()
    }

    fn info(&self) -> MemberInfo {
        // Members tell their URLs for clients when they run; all replicas must begin with the same group.
        let url = if self.address.contains("://") { "" } else { "http://" };
        MemberInfo::new(&self.name, vec![format!("{url}{}", self.address)])
    }
}

/// Configuration of one replica.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// The cluster; replicas of another one are refused.
    pub cluster: ClusterId,
    /// This replica; one of `members`, unless it joins.
    pub me: ReplicaId,
    /// Its name, for its own messages and the identity file.
    pub name: String,
    /// The members with which the group begins, the same at all replicas, each with an id and an address of its own.
    /// They count at the first start only: from then on the data directory knows with whom the group began, and the log
    /// who has belonged to it since.
    pub members: Vec<MemberAddress>,
    /// For the first start of a replica that joins a group: what a member told ([`Origin::ask`]).
    pub joins: Option<Origin>,
    /// Where to listen for other replicas that call without TLS.
    pub listen: Vec<SocketAddr>,
    /// Where to listen for those that call with TLS. An address may be in both lists.
    pub listen_tls: Vec<SocketAddr>,
    /// TLS with other replicas: for those whose address begins with `https://`, and at addresses of
    /// [`Config::listen_tls`].
    pub tls: Option<Tls>,
    /// Sockets that listen already, in place of [`Config::listen`] and [`Config::listen_tls`], with TLS if there is
    /// any: with ports that the system chose, the addresses of all replicas must be known before the first of them
    /// starts.
    pub listeners: Vec<Arc<TcpListener>>,
    /// Where log and snapshots live.
    pub data_dir: PathBuf,
    /// Where the log lives instead, if not in the data directory. It is the same at every start, or `None` after the
    /// first.
    pub log_dir: Option<PathBuf>,
    /// What a commit to the log waits for.
    pub durability: Durability,
    /// Size of a log segment, in bytes.
    pub segment_bytes: u64,
    /// Start the only replica of a group although its log is gone: it goes on from its last snapshot, and what was
    /// acknowledged after that is lost.
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
    /// How the work is spread over threads.
    pub threads: Threads,
    /// Several groups in one order, which execute on one state machine. The same at all replicas of a cluster, and at
    /// every start; but for [`Merging::skips`].
    pub merging: Option<Merging>,
    /// With [`Threads::Compact`]: the event loop on which the protocol runs, beside other tasks, such as those that
    /// serve clients. Without one its thread waits for sockets of peers alone. The state machine, the disk and the
    /// network are then called inside of that loop's tasks, where tokio allows no blocking calls of its own; and no
    /// other task of the loop may block, or stop this replica. A loop runs one replica, once.
    pub event_loop: Option<Arc<dyn EventLoop>>,
}

/// How several groups make one order ([`synod_replica::Merge`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Merging {
    /// How many groups.
    pub groups: u16,
    /// How many batches of a group come in a row.
    pub take: Take,
    /// When a group that orders less than others skips.
    pub skips: Skips,
}

impl Merging {
    /// This many groups, a batch of each in turn.
    #[must_use]
    pub fn of(groups: u16) -> Merging {
        Merging { groups, take: Take::MIN, skips: Skips::default() }
    }

    /// What the groups of a cluster make, if they are merged.
    #[must_use]
    pub fn of_cluster(groups: Groups, skips: Skips) -> Option<Merging> {
        Some(Merging { groups: groups.count, take: groups.merged?, skips })
    }
}

/// How a replica's stages are placed on threads.
///
/// A command passes from the sockets of peers to the protocol, to the log, to the executor, and to sockets again. Each
/// time another thread goes on, that thread has to be woken, which costs more than what it does for a small command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Threads {
    /// Each stage has a thread of its own, and so has each direction of each connection to a peer: for machines with
    /// more processors than busy threads, and for state machines whose commands may take long.
    #[default]
    Spread,
    /// One thread reads the sockets of peers, runs the protocol, writes to the sockets and executes commands. Only the
    /// log has a thread of its own, since it waits for the disk. With [`Config::event_loop`] the same thread can serve
    /// clients too. A command that takes long delays the protocol: one that takes a good part of an election time-out
    /// can cost the leadership.
    Compact,
}

impl fmt::Display for Threads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Threads::Spread => "spread",
            Threads::Compact => "compact",
        })
    }
}

/// A word that names no placement of stages on threads.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not known; accepted: spread, compact")]
pub struct UnknownThreads(String);

impl FromStr for Threads {
    type Err = UnknownThreads;

    fn from_str(text: &str) -> Result<Threads, UnknownThreads> {
        match text {
            "spread" => Ok(Threads::Spread),
            "compact" => Ok(Threads::Compact),
            _ => Err(UnknownThreads(text.to_owned())),
        }
    }
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
            listen_tls: Vec::new(),
            tls: None,
            listeners: Vec::new(),
            data_dir,
            log_dir: None,
            durability: Durability::Sync,
            segment_bytes: 64 << 20,
            accept_lost_log: false,
            begin_without_all: false,
            versions: synod_transport::VERSION_OLDEST..=synod_transport::VERSION,
            settings: Settings::default(),
            network: Arc::new(Tcp),
            disk: the_disk(),
            threads: Threads::default(),
            merging: None,
            event_loop: None,
        }
    }

    /// What this replica begins with in one of `groups` groups if its data directory does not say.
    pub(crate) fn origin(&self, group: GroupId, groups: Groups) -> Result<Origin, ConfigError> {
        if let Some(told) = &self.joins {
            let cluster = told.groups();
            return match cluster == groups {
                true => Ok(told.of(group)),
                false => Err(ConfigError::GroupsOfCluster { own: groups, cluster }),
            };
        }
        self.check_members()?;
        let members = self.members.iter().map(|member| (member.id, member.info()));
        let first = Group::first(&self.settings.consensus, members).limited(self.settings.limits);
        let first = match (groups.count, group) {
            (1, _) => first,
            (_, GroupId::FIRST) => first.followed(),
            _ => beside(&first),
        };
        Ok(Origin::new(self.cluster, first))
    }

    /// The largest message that this replica may ever have to send, in bytes, whatever limits its group takes on.
    pub(crate) fn message_bytes_max(&self) -> usize {
        let mut limits = Limits::default();
        limits.request_bytes_max = REQUEST_BYTES_MAX;
        self.settings.message_bytes_max(&limits)
    }

    fn check_members(&self) -> Result<(), ConfigError> {
        if !self.members.iter().any(|member| member.id == self.me) {
            return Err(ConfigError::NotAMember(self.me));
        }
        let mut ids: Vec<_> = self.members.iter().map(|member| member.id).collect();
        ids.sort_unstable();
        if let Some(pair) = ids.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(ConfigError::SameId(pair[0]));
        }
        let mut places = BTreeMap::new();
        for member in &self.members {
            if let Some(one) = places.insert(member.place(), &member.name) {
                let (one, other) = (one.clone(), member.name.clone());
                return Err(ConfigError::SameAddress { one, other, address: member.place() });
            }
        }
        if ids.len() > synod_consensus::MEMBERS_MAX {
            return Err(ConfigError::TooManyMembers(ids.len()));
        }
        if let Some(&id) = ids.iter().find(|id| id.0 == 0 || id.0 > synod_wire::REPLICA_ID_MAX) {
            return Err(ConfigError::Id(id));
        }
        let (members, needed) = (ids.len(), self.settings.consensus.threshold());
        if members > 1 && needed.spare(members) == 0 && !self.durability.keeps_promises(Ending::Process) {
            let (durability, least) = (self.durability, needed.members_for(1));
            return Err(ConfigError::AllAreNeeded { durability, members, needed, least });
        }
        Ok(())
    }

    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let consensus = &self.settings.consensus;
        for (key, value) in [
            ("heartbeat-interval", consensus.heartbeat_interval),
            ("retransmit-after", consensus.retransmit_after),
            ("request-timeout", self.settings.request_timeout),
            ("clock-interval", self.settings.clock_interval),
        ] {
            if value.is_zero() {
                return Err(ConfigError::NoTime(key));
            }
        }
        if let Some(Merging { groups, take, .. }) = self.merging
            && !((2..=MERGED_MAX).contains(&groups) && take.get() <= TAKE_MAX)
        {
            return Err(ConfigError::Merging);
        }
        if self.event_loop.is_some() && self.threads != Threads::Compact {
            return Err(ConfigError::EventLoop);
        }
        let &Options { protocol, election, dissemination, .. } = consensus;
        Combination::of(protocol, election, dissemination, self.durability).check()?;
        let (message_bytes_max, frame_bytes_max) =
            (self.message_bytes_max(), self.network.message_bytes_max());
        if message_bytes_max > frame_bytes_max {
            return Err(ConfigError::MessageTooLarge { message_bytes_max, frame_bytes_max });
        }
        self.settings.limits.check()?;
        if self.settings.forward_window_max == 0 {
            return Err(ConfigError::Zero("forward-window-max"));
        }
        if consensus.window_max == 0 {
            return Err(ConfigError::Zero("window-max"));
        }
        if consensus.election_timeout < consensus.heartbeat_interval * 3 {
            return Err(ConfigError::ElectionTooSoon {
                election_timeout: consensus.election_timeout,
                heartbeat_interval: consensus.heartbeat_interval,
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use synod_consensus::{Overrides, ProtocolKind};

    use super::*;

    #[test]
    fn two_members_at_one_address_are_refused_by_name() {
        let with = |third: &str| {
            let member = |(id, name, at): (u64, &str, &str)| MemberAddress::new(ReplicaId(id), name, at);
            let members = [(1, "one", "host:1"), (2, "two", "host:2"), (3, "three", third)].map(member);
            Config::new(ClusterId(7), ReplicaId(1), members.into(), PathBuf::new()).check_members()
        };
        assert_eq!(with("host:3"), Ok(()));
        for third in ["host:2", "https://Host:2/"] {
            let (one, other, address) = ("two".into(), "three".into(), "host:2".into());
            assert_eq!(with(third), Err(ConfigError::SameAddress { one, other, address }));
        }
    }

    /// One that starts again without its log needs a quorum of the others, to have a vote again.
    #[test]
    fn a_group_in_which_all_are_needed_is_refused_where_a_restart_forgets() {
        let with = |durability, options: &str, members: u64| {
            let member = |id| MemberAddress::new(ReplicaId(id), format!("n{id}"), format!("host{id}:1"));
            let members = (1..=members).map(member).collect();
            let mut config = Config::new(ClusterId(7), ReplicaId(1), members, PathBuf::new());
            config.settings.consensus.protocol = ProtocolKind::Rounds;
            options.parse::<Overrides>().expect(options).apply(&mut config.settings.consensus);
            config.durability = durability;
            config.check_members().map_err(|error| error.to_string())
        };
        let thirds = "algorithm=one-third-rule";
        assert_eq!(
            with(Durability::Memory, thirds, 3).unwrap_err(),
            "with durability memory, a group of 3 could never go on without one of them, since more than two thirds of the \
             voters decide; use 4 members or more, or durability sync"
        );
        assert!(with(Durability::Memory, "", 2).unwrap_err().contains("use 3 members or more"));
        for (durability, options, members) in [
            (Durability::Sync, thirds, 3),
            (Durability::Memory, thirds, 4),
            (Durability::Memory, thirds, 1),
            (Durability::Memory, "", 3),
        ] {
            assert_eq!(with(durability, options, members), Ok(()), "{durability} {options} {members}");
        }
    }
}

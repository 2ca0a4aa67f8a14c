//! The server's interface to a replica.

use std::{
    pin::Pin,
    time::{Duration, Instant},
};

use bytes::Bytes;
pub use synod_kv::validate::Limits;
pub use synod_replica::{
    Answer, Goal, Ordered, Point, Refusal, RequestError, Standing, Start, SubscribeError,
};
use synod_wire::{Ballot, ClusterId, Epoch, GroupId, ReplicaId, SessionId, Slot};

/// A replica of a state machine, as its clients see it. A clone is another handle of the same replica.
///
/// A future may be dropped at any time, when its client leaves. A command that was handed over may then still
/// be executed.
pub trait Replica: Clone + Send + Sync + 'static {
    /// A handle for the tasks of one thread of the server, and a future that must run among them while the
    /// handle is used. A replica for which a hand-over is cheap keeps this default.
    fn gathering(&self) -> (Self, impl Future<Output = ()> + Send + 'static) {
        (self.clone(), std::future::ready(()))
    }

    /// Orders a command, executes it at most once, in this replica's own session, and returns the state machine's
    /// reply.
    fn execute(&self, command: Bytes) -> impl Future<Output = Result<Bytes, RequestError>> + Send;

    /// The same for a command that keeps something alive, such as a lease, which is not refused because others wait.
    fn execute_upkeep(&self, command: Bytes) -> impl Future<Output = Result<Bytes, RequestError>> + Send {
        self.execute(command)
    }

    /// Executes a command of a client that numbers its commands. If a command with this number of the session
    /// was executed before, the reply of that time is returned. The client has an answer to, or has given up,
    /// every number below `lowest_outstanding`.
    fn execute_in_session(
        &self,
        session: SessionId,
        sequence: u64,
        lowest_outstanding: u64,
        command: Bytes,
    ) -> impl Future<Output = Result<Bytes, RequestError>> + Send;

    /// [`Replica::execute`], with where the time went.
    fn execute_timed(&self, command: Bytes) -> impl Future<Output = Timed<Bytes>> + Send {
        timed(self.execute(command))
    }

    /// [`Replica::execute_in_session`], with where the time went.
    fn execute_in_session_timed(
        &self,
        session: SessionId,
        sequence: u64,
        lowest_outstanding: u64,
        command: Bytes,
    ) -> impl Future<Output = Timed<Bytes>> + Send {
        timed(self.execute_in_session(session, sequence, lowest_outstanding, command))
    }

    /// [`Replica::query`], with where the time went.
    fn query_timed(
        &self,
        query: Bytes,
        consistency: Consistency,
    ) -> impl Future<Output = Timed<Answer>> + Send {
        timed(self.query(query, consistency))
    }

    /// Opens a session.
    fn open_session(&self) -> impl Future<Output = Result<SessionId, RequestError>> + Send;

    /// Asks the state machine without changing it. This replica's own state answers, so of two queries, one
    /// after the other, the second never sees an older state.
    fn query(
        &self,
        query: Bytes,
        consistency: Consistency,
    ) -> impl Future<Output = Result<Answer, RequestError>> + Send;

    /// Raft's term, as clients see it: a number that grows with the leaders and the epochs of the group. Clients leave
    /// a replica whose term is smaller than one that they have seen. It must be cheap, since every answer contains it.
    fn term(&self) -> u64;

    /// The group's limits on a request. It must be cheap, since every request is checked.
    fn limits(&self) -> Limits;

    /// How this replica sees itself and its peers. The cluster and the replica's id never change.
    fn status(&self) -> Status;

    /// Whether this replica does what one replica has to do for all, as far as it knows. Two may believe it at a time.
    fn takes_care(&self) -> bool {
        let status = self.status();
        status.leader == Some(status.replica)
    }

    /// The group as this replica knows it, which may be out of date. After a linearizable query it is no
    /// older than the query.
    fn group(&self) -> Group;

    /// Changes the group. If `expected` is given, the change is refused unless it is the group's version.
    fn change(
        &self,
        expected: Option<u64>,
        change: Change,
    ) -> impl Future<Output = Result<Changed, ChangeError>> + Send;

    /// One of the groups that order the commands of this store, if several do: for changes of what orders it, and for
    /// its leadership.
    fn merged_group(&self, number: u32) -> Option<Self> {
        let _ = number;
        None
    }

    /// The members that take part in the group, if this replica does not. It must be cheap, since every request is
    /// checked.
    fn elsewhere(&self) -> Option<Elsewhere> {
        None
    }

    /// Follows what these groups of the replica decide, or all groups if none is named.
    fn subscribe(
        &self,
        groups: Vec<GroupId>,
        start: Start,
    ) -> impl Future<Output = Result<Box<dyn Subscription>, SubscribeError>> + Send {
        let _ = (groups, start);
        async { Err(SubscribeError::NoLog) }
    }

    /// Hands the leadership from this replica to another, and waits until that one leads.
    fn move_leader(&self, to: ReplicaId) -> impl Future<Output = Result<(), MoveError>> + Send;
}

/// An answer, and where the time went until it came.
#[derive(Debug)]
pub struct Timed<T> {
    /// The answer.
    pub outcome: Result<T, RequestError>,
    /// How long the request waited until it was ordered: until the command was decided, or it was known what a
    /// linearizable query must see. A request that failed before has waited for nothing else.
    pub ordering: Duration,
    /// How long it then took to execute the command, or to answer the query, with what was to be executed before.
    pub execution: Duration,
}

/// The time that a replica takes which orders nothing, or does not know how long that takes.
async fn timed<T>(answer: impl Future<Output = Result<T, RequestError>>) -> Timed<T> {
    let began = Instant::now();
    let outcome = answer.await;
    Timed { outcome, ordering: Duration::ZERO, execution: began.elapsed() }
}

/// The members that take part in a group, as far as a replica knows that does not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Elsewhere {
    /// The names of its voters.
    pub names: Vec<String>,
    /// The addresses at which clients reach these.
    pub client_urls: Vec<String>,
}

/// What groups decide, batch by batch.
pub trait Subscription: Send {
    /// Waits for the next batch. A future that is dropped loses none.
    fn next(&mut self) -> Pin<Box<dyn Future<Output = Result<Ordered, SubscribeError>> + Send + '_>>;

    /// The next batch, if it is here.
    fn try_next(&mut self) -> Option<Ordered>;

    /// Does not follow a group any more, from the next round on where groups are merged.
    fn remove(&mut self, group: GroupId);

    /// Where the subscription is in each group.
    fn points(&self) -> Vec<Point>;

    /// Whether the replica knows no leader of a group that is followed.
    fn lacks_leader(&self) -> bool;
}

/// How new the state must be that a query sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consistency {
    /// Not older than anything that was answered before the query came.
    Linearizable,
    /// Any state that this replica was in, but after a restart none that is older than what it told before, as far as
    /// it can find that out.
    Serializable,
    /// The state that this replica is in, for those who look after it.
    Present,
}

/// The role of a replica at present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The replica proposes.
    Leader,
    /// The replica follows a leader, or waits for one.
    Follower,
    /// The replica tries to become the leader.
    Candidate,
    /// The replica votes once it knows what it may have said, since it lost (part of) its log, or once it has the state
    /// with which the present epoch began.
    Recovering,
    /// The replica learns what is decided and has no vote.
    Learner,
    /// The replica takes no part in the group.
    Away,
}

impl Role {
    /// The role in lower case.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Role::Leader => "leader",
            Role::Follower => "follower",
            Role::Candidate => "candidate",
            Role::Recovering => "recovering",
            Role::Learner => "learner",
            Role::Away => "away",
        }
    }
}

/// How a replica sees itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// Its cluster.
    pub cluster: ClusterId,
    /// Its id.
    pub replica: ReplicaId,
    /// Its name, for people.
    pub name: String,
    /// Its role.
    pub role: Role,
    /// Whether it lost its log, or a part of it, and does not vote yet in the group, whose decisions may need its vote.
    pub without_memory: bool,
    /// The replica that it takes for the leader.
    pub leader: Option<ReplicaId>,
    /// The leader's ballot, in the epoch.
    pub ballot: Ballot,
    /// The group's epoch.
    pub epoch: Epoch,
    /// The ordering protocol, such as `multipaxos`.
    pub protocol: String,
    /// The election, such as `rotating`.
    pub election: String,
    /// How batches reach all replicas, such as `leader`.
    pub dissemination: String,
    /// Its durability, such as `sync`: which records it waits for the disk to have.
    pub durability: String,
    /// The last slot that it knows to be decided without a gap before it.
    pub decided: Slot,
    /// The last slot that it has executed.
    pub applied: Slot,
    /// Bytes of its write-ahead log.
    pub log_bytes: u64,
    /// The last slot that its newest snapshot covers; [`Slot::ZERO`] if there is none.
    pub snapshot: Slot,
    /// Sessions in its session table.
    pub sessions: u64,
    /// Problems that an operator should know of, one sentence each.
    pub troubles: Vec<String>,
    /// Replicas that have decided something else than this one.
    pub forked_with: Vec<ReplicaId>,
    /// The other replicas.
    pub peers: Vec<PeerStatus>,
    /// The snapshot that it is fetching: bytes that have arrived, and bytes in all.
    pub receiving: Option<(u64, u64)>,
    /// How many slots it lacks of those that it knows to be decided elsewhere.
    pub missing: u64,
    /// How many replicas send it these slots or the snapshot.
    pub sources: u64,
    /// Names of the members of a new cluster that it has never met. It votes once it has met them all.
    pub waits_for: Vec<String>,
    /// What is missing until this group has the members of the first one, such as `n4 learns, n3 leaves`; empty if it
    /// has them.
    pub members_pending: String,
    /// Of one of several groups that are merged into one order: the position that its next batch takes.
    pub position: Option<u64>,
    /// Where the voters are chosen among the members that vote in the first group: the choice, for people. Otherwise
    /// empty.
    pub placement: String,
    /// The names of the members that vote.
    pub voters: Vec<String>,
    /// The merged group that the others wait for now, and for how long they have.
    pub stalled: Option<(GroupId, Duration)>,
    /// What the merged groups show of themselves, if this is the status of all of them.
    pub merged: Vec<Status>,
}

/// How a replica sees another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerStatus {
    /// Its id.
    pub replica: ReplicaId,
    /// Its name.
    pub name: String,
    /// Since when there is a connection to it; `None` if there is none, or none from it, or if it answers nothing.
    pub up_since: Option<Instant>,
    /// The last slot that it is known to have decided.
    pub decided: Slot,
}

/// The members of a cluster, and its protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Grows by one with every change.
    pub version: u64,
    /// Grows by one with every change of the voters or of the protocol.
    pub epoch: u64,
    /// The ordering protocol, such as `multipaxos`.
    pub protocol: String,
    /// The election, such as `rotating`.
    pub election: String,
    /// Options of the protocol that all replicas use, whatever they were started with: `KEY=VALUE,KEY=VALUE`.
    pub options: String,
    /// Limits that all replicas apply alike: `KEY=NUMBER,KEY=NUMBER`.
    pub limits: String,
    /// The members by ascending id. Ids grow, so a member that was just added is the last.
    pub members: Vec<Member>,
}

/// A group after a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changed {
    /// The group.
    pub group: Group,
    /// What it had and does not have with its new protocol, such as `election=rotating` or `decision=all`.
    pub dropped: Vec<String>,
}

impl From<Group> for Changed {
    /// A change that drops nothing.
    fn from(group: Group) -> Changed {
        Changed { group, dropped: Vec::new() }
    }
}

impl Group {
    /// A member's name, or the id if it has no name or is not a member.
    #[must_use]
    pub fn name_of(&self, id: ReplicaId) -> String {
        let member = self.members.iter().find(|member| member.id == id && !member.name.is_empty());
        member.map_or_else(|| id.to_string(), |member| member.name.clone())
    }

    /// Whether a member has no vote.
    #[must_use]
    pub fn is_learner(&self, id: ReplicaId) -> bool {
        self.members.iter().any(|member| member.id == id && member.standing != Standing::Voter)
    }
}

/// A member of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its id.
    pub id: ReplicaId,
    /// Its name; empty until the member has told it.
    pub name: String,
    /// The addresses at which its peers reach it.
    pub peer_urls: Vec<String>,
    /// The addresses at which clients reach it; empty until the member has told them.
    pub client_urls: Vec<String>,
    /// Whether it votes.
    pub standing: Standing,
    /// The last slot that a learner has, as it last told this replica; `None` for a voter, or if not known.
    pub decided: Option<Slot>,
}

/// A change of the group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A learner joins.
    Add {
        /// Its name; may be empty.
        name: String,
        /// The addresses at which its peers reach it.
        peer_urls: Vec<String>,
        /// What becomes of it.
        goal: Goal,
    },
    /// A learner votes from now on.
    Promote(ReplicaId),
    /// A member leaves.
    Remove(ReplicaId),
    /// A member has other addresses for its peers.
    Update {
        /// The member.
        id: ReplicaId,
        /// The new addresses.
        peer_urls: Vec<String>,
    },
    /// The protocol changes, or its election or options.
    Order {
        /// The protocol. `None` keeps the present one.
        protocol: Option<String>,
        /// The election. `None` keeps the present one, or takes the protocol's default if the protocol changes.
        election: Option<String>,
        /// The options that all replicas use, in place of the present ones. `None` keeps those, or clears
        /// them if the protocol changes.
        options: Option<String>,
    },
    /// The group's limits change, as `KEY=NUMBER,KEY=NUMBER`. Limits that are not named stay.
    Limits(String),
    /// Other members vote in the group, which is one of several and not the first.
    Place {
        /// The members that vote; none if those of the first group do.
        voters: Vec<ReplicaId>,
        /// Whether the other members take no part in the group; otherwise they learn what it decides.
        others_stay_away: bool,
    },
}

/// Why a change of the group failed. Only [`Request`](ChangeError::Request) may leave open whether it was made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// The group stays as it is, and this is why.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// As many members stay learners as may.
    #[error("too many learner members in cluster")]
    TooManyLearners,
    /// This replica cannot make the change. The text says what is accepted.
    #[error("{0}")]
    Unacceptable(String),
    /// The change was not ordered, or no decision came in time.
    #[error(transparent)]
    Request(#[from] RequestError),
}

/// Why the leadership did not move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MoveError {
    /// This replica does not lead.
    #[error("not leader")]
    NotLeader,
    /// The other replica is not a voting member.
    #[error("bad leader transferee")]
    BadTransferee,
    /// The other replica did not become the leader in time; it still may.
    #[error("request timed out, leader transfer took too long")]
    TookTooLong,
    /// The replica is being stopped.
    #[error("server stopped")]
    Stopping,
}

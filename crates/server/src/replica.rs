//! What the server needs of a replica.

use bytes::Bytes;
use synod_wire::{Ballot, ClusterId, ReplicaId, SessionId, Slot};

/// A replica of some state machine, as its clients see it. A clone is another handle of the same replica.
///
/// Futures may be dropped at any time, when a client goes away; a command that was handed over may then be executed
/// or not.
pub trait Replica: Clone + Send + Sync + 'static {
    /// Orders a command, executes it at most once, in this replica's own session, and returns the state machine's
    /// reply.
    fn execute(&self, command: Bytes) -> impl Future<Output = Result<Bytes, RequestError>> + Send;

    /// The same for a client that numbers its commands: a number of its session that was executed before is answered
    /// with the reply of that time. Every number below `lowest_outstanding` is answered or given up.
    fn execute_in_session(
        &self,
        session: SessionId,
        sequence: u64,
        lowest_outstanding: u64,
        command: Bytes,
    ) -> impl Future<Output = Result<Bytes, RequestError>> + Send;

    /// Makes a session.
    fn open_session(&self) -> impl Future<Output = Result<SessionId, RequestError>> + Send;

    /// Asks the state machine without changing it. The answer comes from this replica's own state, so of two queries,
    /// one after the other, the second never sees an older state.
    fn query(
        &self,
        query: Bytes,
        consistency: Consistency,
    ) -> impl Future<Output = Result<Bytes, RequestError>> + Send;

    /// The ballot of the present leader, as this replica knows it. Asked for every answer, so it must be cheap.
    fn ballot(&self) -> Ballot;

    /// How this replica sees itself and its peers. The cluster and the replica's id never change.
    fn status(&self) -> Status;

    /// The members of the cluster, by id.
    fn members(&self) -> Vec<Member>;
}

/// How new the state must be that a query sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Consistency {
    /// Not older than anything that was answered before the query came.
    Linearizable,
    /// Any state that this replica was in.
    Serializable,
}

/// Why a replica did not answer a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// No leader was found in time; the request was not proposed.
    #[error("no leader")]
    NoLeader,
    /// The request was proposed and no decision came in time; it may still be executed.
    #[error("request timed out")]
    Timeout,
    /// A queue is full; the request was not proposed.
    #[error("too many requests")]
    Overloaded,
    /// The command is larger than the replica takes; it was not proposed.
    #[error("request is too large")]
    TooLarge,
    /// The learner that is to be promoted has not caught up; nothing was proposed.
    #[error("the learner has not caught up")]
    NotCaughtUp,
    /// There is no such session, or no longer.
    #[error("the session has expired")]
    SessionExpired,
    /// The session has given up this number, and the reply to it is forgotten.
    #[error("the session has given up this sequence number")]
    StaleSequence,
    /// The replica is being stopped; a request that was proposed may still be executed.
    #[error("server stopped")]
    Stopping,
    /// The replica can not serve, for this reason, until an operator or its peers have helped.
    #[error("this replica can not serve: {0}")]
    Damaged(String),
}

/// What a replica does at present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It proposes.
    Leader,
    /// It follows a leader, or waits for one.
    Follower,
    /// It tries to become the leader.
    Candidate,
    /// It learns what is decided and has no vote.
    Learner,
}

impl Role {
    /// The role in lower case.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Role::Leader => "leader",
            Role::Follower => "follower",
            Role::Candidate => "candidate",
            Role::Learner => "learner",
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
    /// What it does.
    pub role: Role,
    /// Whom it takes for the leader.
    pub leader: Option<ReplicaId>,
    /// The leader's ballot.
    pub ballot: Ballot,
    /// The ordering protocol, such as `multipaxos`.
    pub protocol: String,
    /// The election, such as `rotating`.
    pub election: String,
    /// What it keeps when, such as `sync`.
    pub durability: String,
    /// The last slot that it knows to be decided without a gap before it.
    pub decided: Slot,
    /// The last slot that it has executed.
    pub applied: Slot,
    /// Bytes of its write-ahead log.
    pub log_bytes: u64,
    /// The last slot that its newest snapshot covers; [`Slot::ZERO`]: there is none.
    pub snapshot: Slot,
    /// Sessions in its session table.
    pub sessions: u64,
    /// What an operator should know, one sentence each.
    pub troubles: Vec<String>,
    /// The other replicas.
    pub peers: Vec<PeerStatus>,
}

/// How a replica sees another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerStatus {
    /// Its id.
    pub replica: ReplicaId,
    /// Its name.
    pub name: String,
    /// Whether there is a connection to it.
    pub up: bool,
    /// The last slot that it is known to have decided.
    pub decided: Slot,
}

/// A member of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its id.
    pub id: ReplicaId,
    /// Its name.
    pub name: String,
    /// Where its peers reach it.
    pub peer_urls: Vec<String>,
    /// Where clients reach it.
    pub client_urls: Vec<String>,
    /// Whether it has no vote.
    pub is_learner: bool,
}

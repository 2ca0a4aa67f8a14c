//! What the server needs of a replica.

use bytes::Bytes;
pub use synod_kv::validate::Limits;
pub use synod_replica::Answer;
use synod_wire::{Ballot, ClusterId, ReplicaId, SessionId, Slot};

/// A replica of some state machine, as its clients see it. A clone is another handle of the same replica.
///
/// Futures may be dropped at any time, when a client goes away; a command that was handed over may then be executed
/// or not.
pub trait Replica: Clone + Send + Sync + 'static {
    /// A handle for the tasks of one thread of the server, and a task to run among them for as long as it is used.
    /// A replica for which a hand-over is cheap does without.
    fn gathering(&self) -> (Self, impl Future<Output = ()> + Send + 'static) {
        (self.clone(), std::future::ready(()))
    }

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
    ) -> impl Future<Output = Result<Answer, RequestError>> + Send;

    /// The ballot of the present leader, as this replica knows it. Asked for every answer, so it must be cheap.
    fn ballot(&self) -> Ballot;

    /// What the group takes of a request. Asked for every request, so it must be cheap.
    fn limits(&self) -> Limits;

    /// How this replica sees itself and its peers. The cluster and the replica's id never change.
    fn status(&self) -> Status;

    /// The group as this replica knows it; it may have changed since. After a linearizable query it is no older than
    /// the query.
    fn group(&self) -> Group;

    /// Changes the group, and returns it as it is then. A change that names the version `expected` is refused if the
    /// group has another one; with none, the change is made to the group as it is.
    fn change(
        &self,
        expected: Option<u64>,
        change: Change,
    ) -> impl Future<Output = Result<Group, ChangeError>> + Send;

    /// Hands the leadership from this replica to another, and waits until that one leads.
    fn move_leader(&self, to: ReplicaId) -> impl Future<Output = Result<(), MoveError>> + Send;
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
    #[error("can only promote a learner member which is in sync with leader")]
    NotCaughtUp,
    /// Too few of those who would vote answer the leader; it did not propose the change of voters.
    #[error("unhealthy cluster")]
    Unhealthy,
    /// There is no such session, or no longer.
    #[error("the session has expired")]
    SessionExpired,
    /// The command was executed before, once, and its reply is not kept any more: the session cached too many bytes of
    /// replies without saying that it has them.
    #[error("the command was executed before, and its reply is not kept any more")]
    ReplyGone,
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
    /// Whether it lost (part of) its log, and does not vote yet.
    pub without_memory: bool,
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
    /// Bytes of a snapshot that have come, and bytes that it has, while one is being fetched.
    pub receiving: Option<(u64, u64)>,
    /// Slots that are decided elsewhere, as far as it knows, and that it lacks.
    pub missing: u64,
    /// From how many replicas those or the snapshot come.
    pub sources: u64,
    /// Names of the members of a new cluster that it has never met: it votes once it has met them all.
    pub waits_for: Vec<String>,
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

/// Who belongs to the cluster, and what orders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Grows by one with every change.
    pub version: u64,
    /// Grows by one with every change of who votes or of what orders.
    pub epoch: u64,
    /// The ordering protocol, such as `multipaxos`.
    pub protocol: String,
    /// The election, such as `rotating`.
    pub election: String,
    /// Options of the protocol that all replicas have, whatever they were started with: `KEY=VALUE,KEY=VALUE`.
    pub options: String,
    /// What all replicas bound alike: `KEY=NUMBER,KEY=NUMBER`.
    pub limits: String,
    /// The members, by id; ids grow, so one that was just added is the last.
    pub members: Vec<Member>,
}

impl Group {
    /// A member's name; its id if it has none, or is not a member.
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
    /// Its name; empty until it has told it.
    pub name: String,
    /// Where its peers reach it.
    pub peer_urls: Vec<String>,
    /// Where clients reach it; empty until it has told it.
    pub client_urls: Vec<String>,
    /// Whether it votes.
    pub standing: Standing,
    /// Of a learner: the last slot that it has, as far as it told this replica.
    pub decided: Option<Slot>,
}

/// Whether a member votes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It does.
    Voter,
    /// It does not.
    Learner(Goal),
}

/// What a learner is there for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// To stay one until it is promoted.
    Learn,
    /// To vote as soon as it has caught up.
    Vote,
    /// To take this member's place as soon as it has caught up.
    Replace(ReplicaId),
}

/// A change of the group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A learner joins.
    Add {
        /// Its name, if it is known.
        name: String,
        /// Where its peers reach it.
        peer_urls: Vec<String>,
        /// What it is there for.
        goal: Goal,
    },
    /// A learner votes from now on.
    Promote(ReplicaId),
    /// A member leaves.
    Remove(ReplicaId),
    /// Its peers reach a member elsewhere.
    Update {
        /// The member.
        id: ReplicaId,
        /// Where.
        peer_urls: Vec<String>,
    },
    /// Something else orders from now on.
    Order {
        /// The protocol; `None`: as before.
        protocol: Option<String>,
        /// The election; `None`: the protocol's own choice if the protocol changes, else as before.
        election: Option<String>,
        /// Options for all replicas, in place of those before; `None`: none if the protocol changes, else as before.
        options: Option<String>,
    },
    /// The group has these limits from now on, as `KEY=NUMBER,KEY=NUMBER`; those that are not named stay.
    Limits(String),
}

/// Why a group was not changed, or perhaps was not.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// The group has changed since the change was made for it.
    #[error(
        "the change was made for version {expected} of the group, and it is at version {current}: look at it again"
    )]
    Stale {
        /// The version that the change named.
        expected: u64,
        /// The version that there is.
        current: u64,
    },
    /// There is no such member.
    #[error("member not found")]
    NotAMember,
    /// It votes already.
    #[error("can only promote a learner member")]
    NotALearner,
    /// Nobody would be left to vote.
    #[error("re-configuration failed due to not enough started members")]
    LastVoter,
    /// Another member is reached there.
    #[error("Peer URLs already exists")]
    AddressTaken,
    /// There are as many members as there can be.
    #[error("the group has as many members as it can have")]
    Full,
    /// Things are already as the change would make them.
    #[error("nothing would change")]
    NothingToDo,
    /// The last change of voters is not complete.
    #[error("the last change of voters is not complete; ask again in a moment")]
    Unsettled,
    /// The change is not one that this replica can make; says what is accepted.
    #[error("{0}")]
    Unacceptable(String),
    /// The change was not ordered, or no decision came.
    #[error(transparent)]
    Request(#[from] RequestError),
}

/// Why the leadership did not move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MoveError {
    /// This replica does not lead.
    #[error("not leader")]
    NotLeader,
    /// The other one is not a member that votes.
    #[error("bad leader transferee")]
    BadTransferee,
    /// The other one did not become the leader in time; it may still.
    #[error("request timed out, leader transfer took too long")]
    TookTooLong,
    /// The replica is being stopped.
    #[error("server stopped")]
    Stopping,
}

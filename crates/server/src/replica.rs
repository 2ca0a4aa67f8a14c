//! The server's interface to a replica.

use std::{
    pin::Pin,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
pub use synod_kv::validate::Limits;
pub use synod_node::{NodeStatus, PeerLink, Timed};
pub use synod_replica::{
    Answer, Change, Goal, Group, Member, MemberInfo, Ordered, Point, Refusal, RequestError, Standing, Start,
    SubscribeError,
};
use synod_wire::{ClusterId, GroupId, ReplicaId, SessionId};

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
        self.status().leads()
    }

    /// The group as this replica knows it, which may be out of date. After a linearizable query it is no
    /// older than the query.
    fn group(&self) -> Arc<Group>;

    /// Changes the group. If `expected` is given, the change is refused unless it is the group's version; otherwise it
    /// is made again for a group that has changed meanwhile.
    fn change(
        &self,
        expected: Option<u64>,
        wanted: &Wanted<'_>,
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

/// Makes the change that a client wants for the group as it is, or says why that cannot be.
pub type Wanted<'a> = dyn Fn(&Group) -> Result<Change, ChangeError> + Send + Sync + 'a;

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

/// How a replica sees itself in a group: what its node tells, and what its server adds.
#[derive(Clone, Debug)]
pub struct Status {
    /// Its cluster.
    pub cluster: ClusterId,
    /// Its id.
    pub replica: ReplicaId,
    /// Its name, for people.
    pub name: String,
    /// Its durability, such as `sync`: which records it waits for the disk to have.
    pub durability: String,
    /// What carries messages between replicas, such as `tcp`.
    pub transport: String,
    /// What its node tells. Of a group in which it takes no part this says nothing that is old: no leader, no slots
    /// that it lacks, no vote that it misses.
    pub node: NodeStatus,
    /// The group as it knows it.
    pub group: Arc<Group>,
    /// Problems that an operator should know of, one sentence each.
    pub troubles: Vec<String>,
    /// What is missing until this group has the members of the first one, such as `n4 learns, n3 leaves`; empty if it
    /// has them.
    pub members_pending: String,
    /// What the merged groups show of themselves, if this is the status of all of them.
    pub merged: Vec<Status>,
}

impl Status {
    /// Whether it takes no part in the group.
    #[must_use]
    pub fn is_away(&self) -> bool {
        self.group.is_away(self.replica)
    }

    /// Whether it leads, as far as it knows.
    #[must_use]
    pub fn leads(&self) -> bool {
        self.node.leader == Some(self.replica)
    }
}

/// A group after a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changed {
    /// The group.
    pub group: Arc<Group>,
    /// What it had and does not have with its new protocol, such as `election=rotating` or `decision=all`.
    pub dropped: Vec<String>,
}

impl From<Arc<Group>> for Changed {
    /// A change that drops nothing.
    fn from(group: Arc<Group>) -> Changed {
        Changed { group, dropped: Vec::new() }
    }
}

/// Why a change of the group failed. Only what the node says may leave open whether it was made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// What the node says.
    #[error(transparent)]
    OfNode(#[from] synod_node::ChangeError),
    /// As many members stay learners as may.
    #[error("too many learner members in cluster")]
    TooManyLearners,
    /// This replica cannot make the change. The text says what is accepted.
    #[error("{0}")]
    Unacceptable(String),
}

impl From<Refusal> for ChangeError {
    fn from(refusal: Refusal) -> ChangeError {
        ChangeError::OfNode(refusal.into())
    }
}

impl From<RequestError> for ChangeError {
    fn from(error: RequestError) -> ChangeError {
        ChangeError::OfNode(error.into())
    }
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

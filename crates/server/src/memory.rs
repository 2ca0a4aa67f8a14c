//! A replica without replication.

use std::{
    collections::{BTreeMap, HashMap},
    fmt, io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use bytes::Bytes;
use synod_consensus::{Options, Role};
use synod_replica::{Context, StateMachine};
use synod_wire::{Ballot, ClusterId, Epoch, ReplicaId, SessionId, Slot};
use tokio::sync::{mpsc, oneshot};

use crate::{
    ChangeError, Changed, Consistency, Group, Limits, Member, MoveError, NodeStatus, Replica, RequestError,
    Standing, Status, Wanted, replica,
};

/// Requests that wait for the executor. A further one makes its sender wait.
const QUEUE_MAX: usize = 4096;
/// Requests that the executor takes at once.
const TAKE_MAX: usize = 1024;
/// The only ballot there is, since no other replica will ever lead.
const BALLOT_ROUND: u64 = 1;

/// A cluster of one replica that keeps its state in memory only, for examples, for tests of clients, and for
/// measuring the server alone. The state is lost when the last handle is dropped. Its group has the default protocol,
/// which orders nothing here.
#[derive(Clone)]
pub struct InMemory {
    requests: mpsc::Sender<Request>,
    cluster: ClusterId,
    group: Arc<Group>,
    limits: Limits,
    shared: Arc<Shared>,
}

/// State of the executor that handles read.
#[derive(Debug, Default)]
struct Shared {
    applied: AtomicU64,
    sessions: AtomicU64,
}

type Answer<T> = oneshot::Sender<Result<T, RequestError>>;

enum Request {
    Execute {
        command: Bytes,
        answer: Answer<Bytes>,
    },
    ExecuteInSession {
        session: SessionId,
        sequence: u64,
        lowest_outstanding: u64,
        command: Bytes,
        answer: Answer<Bytes>,
    },
    OpenSession {
        answer: Answer<SessionId>,
    },
    Query {
        query: Bytes,
        answer: Answer<replica::Answer>,
    },
}

impl fmt::Debug for InMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InMemory").field("member", self.member()).finish_non_exhaustive()
    }
}

impl InMemory {
    /// Starts a replica of `machine`, with a thread of its own that ends when the last clone is dropped.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(machine: impl StateMachine, cluster: ClusterId, member: Member) -> io::Result<InMemory> {
        let (requests, mut received) = mpsc::channel(QUEUE_MAX);
        let shared = Arc::new(Shared::default());
        let mut executor = Executor { machine, sessions: HashMap::new(), shared: shared.clone() };
        thread::Builder::new().name("executor".into()).spawn(move || {
            let mut taken = Vec::with_capacity(TAKE_MAX);
            while received.blocking_recv_many(&mut taken, TAKE_MAX) > 0 {
                taken.drain(..).for_each(|request| executor.serve(request));
            }
        })?;
        let mut group = Group::of(&Options::default(), [member.id]);
        group.members = vec![member];
        Ok(InMemory { requests, cluster, group: Arc::new(group), limits: Limits::default(), shared })
    }

    fn member(&self) -> &Member {
        &self.group.members[0]
    }

    /// The same replica with other limits on a request.
    #[must_use]
    pub fn limited(self, limits: Limits) -> InMemory {
        InMemory { limits, ..self }
    }

    async fn ask<T>(&self, request: impl FnOnce(Answer<T>) -> Request) -> Result<T, RequestError> {
        let (answer, answered) = oneshot::channel();
        self.requests.send(request(answer)).await.map_err(|_| RequestError::Stopping)?;
        answered.await.unwrap_or(Err(RequestError::Stopping))
    }
}

impl Replica for InMemory {
    async fn execute(&self, command: Bytes) -> Result<Bytes, RequestError> {
        self.ask(|answer| Request::Execute { command, answer }).await
    }

    async fn execute_in_session(
        &self,
        session: SessionId,
        sequence: u64,
        lowest_outstanding: u64,
        command: Bytes,
    ) -> Result<Bytes, RequestError> {
        self.ask(|answer| Request::ExecuteInSession {
            session,
            sequence,
            lowest_outstanding,
            command,
            answer,
        })
        .await
    }

    async fn open_session(&self) -> Result<SessionId, RequestError> {
        self.ask(|answer| Request::OpenSession { answer }).await
    }

    /// Every query sees the newest state.
    async fn query(&self, query: Bytes, _: Consistency) -> Result<replica::Answer, RequestError> {
        self.ask(|answer| Request::Query { query, answer }).await
    }

    fn term(&self) -> u64 {
        BALLOT_ROUND
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    fn status(&self) -> Status {
        let applied = Slot(self.shared.applied.load(Ordering::Relaxed));
        let Member { id, ref info, .. } = *self.member();
        let mut node = NodeStatus::default();
        (node.role, node.leader) = (Role::Leader, Some(id));
        (node.epoch, node.ballot) = (Epoch(1), Ballot { round: BALLOT_ROUND, replica: id });
        (node.decided, node.executed) = (applied, applied);
        node.client_sessions = self.shared.sessions.load(Ordering::Relaxed);
        Status {
            cluster: self.cluster,
            replica: id,
            name: info.name.clone(),
            durability: "none".into(),
            transport: "none".into(),
            node,
            group: self.group(),
            troubles: Vec::new(),
            members_pending: String::new(),
            merged: Vec::new(),
        }
    }

    fn group(&self) -> Arc<Group> {
        Arc::clone(&self.group)
    }

    /// A cluster without replication has no members to change.
    async fn change(&self, _: Option<u64>, _: &Wanted<'_>) -> Result<Changed, ChangeError> {
        Err(ChangeError::Unacceptable("a replica in memory stays alone".into()))
    }

    /// The only replica leads already.
    async fn move_leader(&self, to: ReplicaId) -> Result<(), MoveError> {
        let member = self.member();
        let voter = to == member.id && member.standing == Standing::Voter;
        if voter { Ok(()) } else { Err(MoveError::BadTransferee) }
    }
}

/// The state of a session.
#[derive(Default)]
struct Session {
    /// The highest value that the client has sent.
    lowest_outstanding: u64,
    /// Replies to executed commands with that number or a higher one.
    replies: BTreeMap<u64, Bytes>,
}

/// Executes requests in the order of their arrival.
struct Executor<M> {
    machine: M,
    sessions: HashMap<SessionId, Session>,
    shared: Arc<Shared>,
}

impl<M: StateMachine> Executor<M> {
    /// A client that no longer waits for an answer may drop its request, so a failed send is no error.
    fn serve(&mut self, request: Request) {
        match request {
            Request::Execute { command, answer } => {
                let _ = answer.send(Ok(self.apply(&command)));
            }
            Request::ExecuteInSession { session, sequence, lowest_outstanding, command, answer } => {
                let _ = answer.send(self.apply_once(session, sequence, lowest_outstanding, &command));
            }
            Request::OpenSession { answer } => {
                let session = SessionId(self.shared.sessions.fetch_add(1, Ordering::Relaxed) + 1);
                self.sessions.insert(session, Session::default());
                let _ = answer.send(Ok(session));
            }
            Request::Query { query, answer } => {
                let _ = answer.send(Ok(self.machine.answer(&query)));
            }
        }
    }

    fn apply(&mut self, command: &Bytes) -> Bytes {
        let context = next(&self.shared);
        self.machine.apply(command, &context)
    }

    fn apply_once(
        &mut self,
        session: SessionId,
        sequence: u64,
        lowest_outstanding: u64,
        command: &Bytes,
    ) -> Result<Bytes, RequestError> {
        let known = self.sessions.get_mut(&session).ok_or(RequestError::SessionExpired)?;
        if lowest_outstanding > known.lowest_outstanding {
            known.lowest_outstanding = lowest_outstanding;
            known.replies = known.replies.split_off(&lowest_outstanding);
        }
        if sequence < known.lowest_outstanding {
            return Err(RequestError::Stale);
        }
        if let Some(reply) = known.replies.get(&sequence) {
            return Ok(reply.clone());
        }
        let context = next(&self.shared);
        let reply = self.machine.apply(command, &context);
        known.replies.insert(sequence, reply.clone());
        Ok(reply)
    }
}

/// A slot for each command.
fn next(shared: &Shared) -> Context {
    Context::new(Slot(shared.applied.fetch_add(1, Ordering::Relaxed) + 1))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};

    use super::*;
    use synod_replica::{Frozen, MemberInfo};

    /// A state machine that adds up the lengths of its commands.
    struct Sum(u64);

    impl StateMachine for Sum {
        fn apply(&mut self, command: &Bytes, _: &Context) -> Bytes {
            self.0 += command.len() as u64;
            self.0.to_string().into()
        }

        fn query(&self, _: &Bytes) -> Bytes {
            self.0.to_string().into()
        }

        fn freeze(&self) -> Box<dyn Frozen> {
            struct Nothing;
            impl Frozen for Nothing {
                fn write_to(&self, _: &mut dyn Write) -> io::Result<()> {
                    Ok(())
                }
            }
            Box::new(Nothing)
        }

        fn restore(&mut self, _: &mut dyn Read) -> io::Result<()> {
            Ok(())
        }

        fn digest(&self) -> u64 {
            self.0
        }
    }

    #[tokio::test]
    async fn a_number_is_executed_once_and_forgotten_once_given_up() {
        let member = Member::voter(ReplicaId(1), MemberInfo::new("only", Vec::new()));
        let replica = InMemory::start(Sum(0), ClusterId(1), member).unwrap();
        let session = replica.open_session().await.unwrap();
        let add = |sequence, lowest| replica.execute_in_session(session, sequence, lowest, "abc".into());
        assert_eq!(add(1, 1).await.unwrap(), "3");
        assert_eq!(add(1, 1).await.unwrap(), "3");
        assert_eq!(add(2, 1).await.unwrap(), "6");
        assert_eq!(add(1, 1).await.unwrap(), "3");
        assert_eq!(add(3, 3).await.unwrap(), "9");
        assert_eq!(add(2, 2).await, Err(RequestError::Stale));
        assert_eq!(replica.query(Bytes::new(), Consistency::Linearizable).await.unwrap().whole(), "9");
        let stranger = SessionId(99);
        let refused = replica.execute_in_session(stranger, 1, 1, "abc".into()).await;
        assert_eq!(refused, Err(RequestError::SessionExpired));
        assert_eq!(replica.status().node.executed, Slot(3));
    }
}

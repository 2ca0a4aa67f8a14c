//! A server in front of a node.

use bytes::Bytes;
use synod_node::Handle;
use synod_server::{
    Answer, Change, ChangeError, Consistency, Group, InMemory, Limits, MoveError, Replica, RequestError,
    Status,
};
use synod_wire::{Ballot, ReplicaId, SessionId};

/// Passes commands on to a replica, and answers everything else itself.
#[derive(Clone)]
pub struct OnNode {
    pub handle: Handle,
    pub inner: InMemory,
}

impl Replica for OnNode {
    fn limits(&self) -> Limits {
        self.inner.limits()
    }

    fn gathering(&self) -> (OnNode, impl Future<Output = ()> + Send + 'static) {
        let (handle, task) = self.handle.gathering();
        (OnNode { handle, ..self.clone() }, task)
    }

    async fn execute(&self, command: Bytes) -> Result<Bytes, RequestError> {
        self.handle.execute(command).await.map_err(|_| RequestError::NoLeader)
    }

    async fn execute_in_session(
        &self,
        session: SessionId,
        sequence: u64,
        lowest_outstanding: u64,
        command: Bytes,
    ) -> Result<Bytes, RequestError> {
        self.inner.execute_in_session(session, sequence, lowest_outstanding, command).await
    }

    async fn open_session(&self) -> Result<SessionId, RequestError> {
        self.inner.open_session().await
    }

    async fn query(&self, query: Bytes, consistency: Consistency) -> Result<Answer, RequestError> {
        self.inner.query(query, consistency).await
    }

    fn ballot(&self) -> Ballot {
        self.inner.ballot()
    }

    fn status(&self) -> Status {
        self.inner.status()
    }

    fn group(&self) -> Group {
        self.inner.group()
    }

    async fn change(&self, expected: Option<u64>, change: Change) -> Result<Group, ChangeError> {
        self.inner.change(expected, change).await
    }

    async fn move_leader(&self, to: ReplicaId) -> Result<(), MoveError> {
        self.inner.move_leader(to).await
    }
}

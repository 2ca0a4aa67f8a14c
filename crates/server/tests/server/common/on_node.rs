//! A server in front of a node.

use bytes::Bytes;
use synod_node::Handle;
use synod_server::{InMemory, Replica, RequestError};

/// Passes commands on to a replica, and answers everything else itself.
#[derive(Clone)]
pub struct OnNode {
    pub handle: Handle,
    pub inner: InMemory,
}

impl Replica for OnNode {
    answered_by_inner!(
        limits,
        execute_in_session,
        open_session,
        query,
        term,
        status,
        group,
        change,
        move_leader
    );

    fn gathering(&self) -> (OnNode, impl Future<Output = ()> + Send + 'static) {
        let (handle, task) = self.handle.gathering();
        (OnNode { handle, ..self.clone() }, task)
    }

    async fn execute(&self, command: Bytes) -> Result<Bytes, RequestError> {
        self.handle.execute(command).await.map_err(|_| RequestError::NoLeader)
    }
}

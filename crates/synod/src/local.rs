//! A whole group in one process: for examples, tests, and first steps.

use std::{
    net::{SocketAddr, TcpListener},
    path::Path,
    sync::Arc,
};

use synod_node::{Config, Ended, Handle, MemberAddress, Node, StartError};
use synod_replica::StateMachine;
use synod_transport::TransportError;
use synod_wire::{ClusterId, ReplicaId};

/// Replicas in one process that talk over loopback, each with a data directory of its own.
///
/// They are what they would be in processes of their own; only the failure of the process takes all of them. In
/// production, start one [`Node`] a machine. Dropping the group stops its replicas as [`Node::stop_now_blocking`] does.
#[derive(Debug)]
pub struct LocalGroup {
    replicas: Vec<Replica>,
}

#[derive(Debug)]
struct Replica {
    /// What it starts with again.
    config: Config,
    node: Option<Node>,
}

impl LocalGroup {
    /// Starts as many replicas (1 to [`MEMBERS_MAX`](crate::MEMBERS_MAX)) at ports that the system chooses, with their
    /// data below `folder`. Their ids and names are 1, 2, ... and `replica-1`, `replica-2`, ...
    ///
    /// # Errors
    /// No port is free, or see [`StartError`].
    pub async fn start<S: StateMachine>(
        folder: &Path,
        replicas: u64,
        machine: impl Fn() -> S,
    ) -> Result<LocalGroup, StartError> {
        LocalGroup::start_with(folder, replicas, machine, |_| {}).await
    }

    /// The same, with what `tune` sets in the configuration of each replica.
    ///
    /// # Errors
    /// No port is free, or see [`StartError`].
    pub async fn start_with<S: StateMachine>(
        folder: &Path,
        replicas: u64,
        machine: impl Fn() -> S,
        tune: impl Fn(&mut Config),
    ) -> Result<LocalGroup, StartError> {
        // All listen before the first starts, so all know where the others are.
        let listeners: Vec<_> = (0..replicas).map(|_| listen()).collect::<Result<_, _>>()?;
        let members: Vec<_> = (1..)
            .zip(&listeners)
            .map(|(id, (address, _))| {
                MemberAddress::new(ReplicaId(id), format!("replica-{id}"), address.to_string())
            })
            .collect();
        let mut group = LocalGroup { replicas: Vec::new() };
        for (member, (address, listener)) in members.iter().zip(listeners) {
            let mut config = Config::new(ClusterId(1), member.id, members.clone(), folder.join(&member.name));
            tune(&mut config);
            config.listen = vec![address];
            let mut first = config.clone();
            first.listeners = vec![Arc::new(listener)];
            let node = Node::start(first, machine()).await?;
            group.replicas.push(Replica { config, node: Some(node) });
        }
        Ok(group)
    }

    /// A handle on a replica, counted from 0.
    ///
    /// # Panics
    /// If there is no such replica, or it was stopped.
    #[must_use]
    pub fn handle(&self, index: usize) -> Handle {
        self.replicas[index].node.as_ref().expect("this replica was stopped").handle()
    }

    /// Stops a replica, which hands over first if it leads. The others go on while they are a majority.
    ///
    /// # Errors
    /// Why it had ended before, or why its log could not be closed.
    ///
    /// # Panics
    /// If there is no such replica.
    pub async fn stop(&mut self, index: usize) -> Result<(), Ended> {
        let Some(node) = self.replicas[index].node.take() else { return Ok(()) };
        node.stop().await
    }

    /// Starts a replica again that was stopped, from what its data directory holds. `machine` is in its initial state.
    ///
    /// # Errors
    /// See [`StartError`]; the replica stays stopped.
    ///
    /// # Panics
    /// If there is no such replica, or it was not stopped.
    pub async fn restart<S: StateMachine>(&mut self, index: usize, machine: S) -> Result<(), StartError> {
        let replica = &mut self.replicas[index];
        assert!(replica.node.is_none(), "this replica was not stopped");
        replica.node = Some(Node::start(replica.config.clone(), machine).await?);
        Ok(())
    }

    /// With what a replica was started. Its data directory is the one to copy after it was stopped.
    ///
    /// # Panics
    /// If there is no such replica.
    #[must_use]
    pub fn config(&self, index: usize) -> &Config {
        &self.replicas[index].config
    }
}

fn listen() -> Result<(SocketAddr, TcpListener), TransportError> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    Ok((listener.local_addr()?, listener))
}

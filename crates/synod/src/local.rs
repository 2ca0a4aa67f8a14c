//! A whole group in one process: for examples, tests, and first steps.

use std::{net::TcpListener, path::Path};

use synod_node::{Config, Ended, Handle, MemberAddress, Node, StartError};
use synod_replica::StateMachine;
use synod_wire::{ClusterId, ReplicaId};

/// Replicas in one process that talk over loopback, each with a data directory of its own.
///
/// They are what they would be in processes of their own; only the failure of the process takes all of them. In
/// production, start one [`Node`] a machine. Dropping the group stops its replicas, and blocks meanwhile.
#[derive(Debug)]
pub struct LocalGroup {
    nodes: Vec<Option<Node>>,
}

impl LocalGroup {
    /// Starts `replicas` replicas (1 to 63) at free ports, with their data below `folder`.
    ///
    /// # Errors
    /// No port is free, or see [`StartError`].
    pub async fn start<S: StateMachine>(
        folder: &Path,
        replicas: u64,
        machine: impl Fn() -> S,
    ) -> Result<LocalGroup, StartError> {
        let free =
            || TcpListener::bind("127.0.0.1:0").and_then(|listener| Ok((listener.local_addr()?, listener)));
        let held = (0..replicas).map(|_| free()).collect::<Result<Vec<_>, _>>();
        // Held until all are chosen, so that no port is chosen twice.
        let held = held.map_err(|error| StartError::Transport(error.into()))?;
        let addresses: Vec<_> = held.iter().map(|(address, _)| *address).collect();
        drop(held);
        let members: Vec<_> = (1..)
            .zip(&addresses)
            .map(|(id, address)| {
                MemberAddress::new(ReplicaId(id), format!("replica-{id}"), address.to_string())
            })
            .collect();
        let mut nodes = Vec::new();
        for (member, address) in members.iter().zip(addresses) {
            let mut config = Config::new(ClusterId(1), member.id, members.clone(), folder.join(&member.name));
            config.listen = vec![address];
            nodes.push(Some(Node::start(config, machine()).await?));
        }
        Ok(LocalGroup { nodes })
    }

    /// A handle on a replica, counted from 0.
    ///
    /// # Panics
    /// If there is no such replica, or it was stopped.
    #[must_use]
    pub fn handle(&self, index: usize) -> Handle {
        self.nodes[index].as_ref().expect("this replica was stopped").handle()
    }

    /// Stops a replica, which hands over first if it leads. The others go on while they are a majority.
    ///
    /// # Errors
    /// Why it had ended before, or why its log could not be closed.
    pub async fn stop(&mut self, index: usize) -> Result<(), Ended> {
        let Some(node) = self.nodes[index].take() else { return Ok(()) };
        node.hand_over().await;
        node.stop().await
    }
}

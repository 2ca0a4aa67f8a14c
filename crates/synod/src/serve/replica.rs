//! The running replica as the server sees it: names of one crate for those of the other.

use bytes::Bytes;
use synod_node::Handle;
use synod_replica::SessionCommand;
use synod_server::{Consistency, Member, PeerStatus, Replica, RequestError, Role, Status};
use synod_wire::{Ballot, ClusterId, ReplicaId, SessionId, Slot};

use std::sync::Arc;

/// A handle on the node, and what it was configured with.
#[derive(Clone, Debug)]
pub struct Served {
    handle: Handle,
    fixed: Arc<Fixed>,
}

/// What does not change while the replica runs.
#[derive(Debug)]
pub struct Fixed {
    pub cluster: ClusterId,
    pub me: ReplicaId,
    pub members: Vec<Member>,
    pub protocol: String,
    pub election: String,
    pub durability: String,
}

impl Served {
    pub fn new(handle: Handle, fixed: Fixed) -> Served {
        Served { handle, fixed: Arc::new(fixed) }
    }

    fn name(&self, id: ReplicaId) -> String {
        let members = &self.fixed.members;
        members
            .iter()
            .find(|member| member.id == id)
            .map_or_else(|| id.to_string(), |member| member.name.clone())
    }
}

impl Replica for Served {
    async fn execute(&self, command: Bytes) -> Result<Bytes, RequestError> {
        self.handle.execute(command).await.map_err(error)
    }

    async fn execute_in_session(
        &self,
        session: SessionId,
        sequence: u64,
        lowest_outstanding: u64,
        command: Bytes,
    ) -> Result<Bytes, RequestError> {
        let place = SessionCommand { session, sequence, lowest_outstanding };
        self.handle.execute_in_session(place, command).await.map_err(error)
    }

    async fn open_session(&self) -> Result<SessionId, RequestError> {
        self.handle.open_session().await.map_err(error)
    }

    async fn query(&self, query: Bytes, consistency: Consistency) -> Result<Bytes, RequestError> {
        let answer = match consistency {
            Consistency::Linearizable => self.handle.query(query).await,
            Consistency::Serializable => self.handle.query_stale(query).await,
        };
        answer.map_err(error)
    }

    fn ballot(&self) -> Ballot {
        self.handle.ballot()
    }

    fn status(&self) -> Status {
        let status = self.handle.status();
        let mut troubles = Vec::new();
        if status.role == synod_consensus::Role::Recovering {
            troubles
                .push("synod: this replica has lost (part of) its log; it learns and has no vote".to_owned());
        }
        let peers = status.peers.iter().map(|peer| PeerStatus {
            replica: peer.id,
            name: self.name(peer.id),
            up: peer.up,
            // Peers do not tell how far they are.
            decided: Slot::ZERO,
        });
        Status {
            cluster: self.fixed.cluster,
            replica: self.fixed.me,
            name: self.name(self.fixed.me),
            role: role(status.role),
            leader: status.leader,
            ballot: status.ballot,
            protocol: self.fixed.protocol.clone(),
            election: self.fixed.election.clone(),
            durability: self.fixed.durability.clone(),
            decided: status.decided,
            applied: status.executed,
            log_bytes: status.log_bytes,
            snapshot: status.snapshot,
            sessions: status.client_sessions,
            troubles,
            peers: peers.collect(),
        }
    }

    fn members(&self) -> Vec<Member> {
        self.fixed.members.clone()
    }
}

fn role(role: synod_consensus::Role) -> Role {
    match role {
        synod_consensus::Role::Leader => Role::Leader,
        synod_consensus::Role::Follower => Role::Follower,
        synod_consensus::Role::Candidate => Role::Candidate,
        synod_consensus::Role::Recovering | synod_consensus::Role::Learner => Role::Learner,
    }
}

fn error(error: synod_replica::RequestError) -> RequestError {
    use synod_replica::RequestError as Core;
    match error {
        Core::NoLeader => RequestError::NoLeader,
        // In all three the command may have been executed and this client gets no reply to it.
        Core::Timeout | Core::OutcomeUnknown | Core::Superseded => RequestError::Timeout,
        Core::Overloaded | Core::TooFarAhead => RequestError::Overloaded,
        Core::NotCaughtUp => RequestError::NotCaughtUp,
        Core::TooLarge => RequestError::TooLarge,
        Core::SessionExpired => RequestError::SessionExpired,
        Core::Stale => RequestError::StaleSequence,
        Core::Stopping => RequestError::Stopping,
    }
}

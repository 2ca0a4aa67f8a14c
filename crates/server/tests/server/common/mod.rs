//! A server to test against.

/// Methods of a [`Replica`] that its field `inner` answers.
macro_rules! answered_by_inner {
    (limits) => {
        fn limits(&self) -> synod_server::Limits {
            self.inner.limits()
        }
    };
    (execute) => {
        async fn execute(&self, command: bytes::Bytes) -> Result<bytes::Bytes, synod_server::RequestError> {
            self.inner.execute(command).await
        }
    };
    (execute_in_session) => {
        async fn execute_in_session(
            &self,
            session: synod_wire::SessionId,
            sequence: u64,
            lowest_outstanding: u64,
            command: bytes::Bytes,
        ) -> Result<bytes::Bytes, synod_server::RequestError> {
            self.inner.execute_in_session(session, sequence, lowest_outstanding, command).await
        }
    };
    (open_session) => {
        async fn open_session(&self) -> Result<synod_wire::SessionId, synod_server::RequestError> {
            self.inner.open_session().await
        }
    };
    (query) => {
        async fn query(
            &self,
            query: bytes::Bytes,
            consistency: synod_server::Consistency,
        ) -> Result<synod_server::Answer, synod_server::RequestError> {
            self.inner.query(query, consistency).await
        }
    };
    (term) => {
        fn term(&self) -> u64 {
            self.inner.term()
        }
    };
    (status) => {
        fn status(&self) -> synod_server::Status {
            self.inner.status()
        }
    };
    (group) => {
        fn group(&self) -> std::sync::Arc<synod_server::Group> {
            self.inner.group()
        }
    };
    (change) => {
        async fn change(
            &self,
            expected: Option<u64>,
            wanted: &synod_server::Wanted<'_>,
        ) -> Result<synod_server::Changed, synod_server::ChangeError> {
            self.inner.change(expected, wanted).await
        }
    };
    (move_leader) => {
        async fn move_leader(&self, to: synod_wire::ReplicaId) -> Result<(), synod_server::MoveError> {
            self.inner.move_leader(to).await
        }
    };
    ($($method:ident),+) => {
        $(answered_by_inner!($method);)+
    };
}

pub mod http2;
pub mod on_node;
pub mod users;

use prometheus_client::{metrics::gauge::ConstGauge, registry::Registry};
use synod_kv::KvStore;
use synod_server::{Config, InMemory, Member, MemberInfo, Replica, Server};
use synod_wire::{ClusterId, ReplicaId};
use tonic::transport::{Channel, Endpoint};

pub const CLUSTER: u64 = 0xc1;
pub const MEMBER: u64 = 7;

pub fn replica() -> InMemory {
    replica_of(KvStore::new())
}

pub fn replica_of(store: KvStore) -> InMemory {
    let mut info = MemberInfo::new("only", vec!["http://127.0.0.1:2380".into()]);
    info.client_urls = vec!["http://127.0.0.1:2379".into()];
    InMemory::start(store, ClusterId(CLUSTER), Member::voter(ReplicaId(MEMBER), info)).unwrap()
}

pub fn config() -> Config {
    let anywhere = || vec![std::net::SocketAddr::from(([127, 0, 0, 1], 0)).into()];
    Config { client_addresses: anywhere(), metrics_addresses: anywhere(), ..Config::default() }
}

pub fn serve(config: &Config, replica: impl Replica) -> Server {
    let mut metrics = Registry::default();
    metrics.register("made_up", "Made up", ConstGauge::new(1_i64));
    Server::start(config, replica, metrics).unwrap()
}

pub async fn connect(server: &Server) -> Channel {
    let url = format!("http://{}", server.client_addresses()[0]);
    Endpoint::from_shared(url).unwrap().connect().await.unwrap()
}

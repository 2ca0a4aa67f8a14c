//! A server to test against.

#![allow(dead_code, reason = "each user needs some of it")]

pub mod http2;

use prometheus_client::{metrics::gauge::ConstGauge, registry::Registry};
use synod_kv::KvStore;
use synod_server::{Config, InMemory, Member, Replica, Server, Standing};
use synod_wire::{ClusterId, ReplicaId};
use tonic::transport::{Channel, Endpoint};

pub const CLUSTER: u64 = 0xc1;
pub const MEMBER: u64 = 7;

pub fn replica() -> InMemory {
    let member = Member {
        id: ReplicaId(MEMBER),
        name: "only".into(),
        peer_urls: vec!["http://127.0.0.1:2380".into()],
        client_urls: vec!["http://127.0.0.1:2379".into()],
        standing: Standing::Voter,
        decided: None,
    };
    InMemory::start(KvStore::new(), ClusterId(CLUSTER), member).unwrap()
}

pub fn config() -> Config {
    let anywhere = "127.0.0.1:0".parse().unwrap();
    Config { client_addresses: vec![anywhere], metrics_addresses: vec![anywhere], ..Config::default() }
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

//! A key-value server of one replica that keeps nothing on disk, for trying the API and for measuring the server alone.
//!
//! ```text
//! cargo run --release -p synod-server --example in_memory -- http://127.0.0.1:2379 [CLIENT-IO-THREADS]
//! ```

use std::{env, error::Error};

use synod_kv::KvStore;
use synod_server::{Config, InMemory, Member, MemberInfo, Registry, Server, listen_addresses};
use synod_wire::{ClusterId, ReplicaId};

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = env::args().skip(1);
    let url = arguments.next().unwrap_or_else(|| "http://127.0.0.1:2379".into());
    let threads = arguments.next().map_or(Ok(1), |threads| threads.parse())?;
    let config =
        Config { client_addresses: listen_addresses(&url)?, client_io_threads: threads, ..Config::default() };
    let mut info = MemberInfo::new("in-memory", Vec::new());
    info.client_urls = vec![url];
    let replica = InMemory::start(KvStore::new(), ClusterId(1), Member::voter(ReplicaId(1), info))?;
    let server = Server::start(&config, replica, Registry::default())?;
    println!("serving at {:?}; Ctrl-C stops", server.client_addresses());
    let wait = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    wait.block_on(tokio::signal::ctrl_c())?;
    server.stop();
    Ok(())
}

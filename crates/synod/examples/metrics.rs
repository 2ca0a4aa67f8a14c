//! What a replica counts, as Prometheus reads it: `cargo run --release --example metrics`.

use std::{error::Error, io};

use prometheus_client::{encoding::text::encode, registry::Registry};
use synod::{ClusterId, Config, Context, Frozen, MemberAddress, Node, ReplicaId, StateMachine, bytes::Bytes};

/// Answers every command with itself.
struct Echo;

impl StateMachine for Echo {
    fn apply(&mut self, command: &Bytes, _: &Context) -> Bytes {
        command.clone()
    }
    fn query(&self, query: &Bytes) -> Bytes {
        query.clone()
    }
    fn freeze(&self) -> Box<dyn Frozen> {
        Box::new(Bytes::new())
    }
    fn restore(&mut self, _: &mut dyn io::Read) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    let me = MemberAddress::new(ReplicaId(1), "one", listener.local_addr()?.to_string());
    let mut config = Config::new(ClusterId(7), me.id, vec![me], folder.path().join("one"));
    config.listeners = vec![listener.into()];
    let node = Node::start(config, Echo).await?;

    // Your own metrics go into the same registry, and your own server shows what it encodes at /metrics.
    let mut registry = Registry::default();
    registry.register_collector(Box::new(node.metrics()));

    for _ in 0..10 {
        node.handle().execute("a".into()).await?;
    }
    // Numbers are published a moment after the answer.
    node.handle().watch().until(|view| view.executed.0 >= 10).await;
    let mut text = String::new();
    encode(&mut text, &registry)?;
    let number =
        |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok());
    println!("{text}");
    assert_eq!(number("synod_role "), Some(2), "the only replica leads");
    assert!(number("synod_slot_executed ") >= Some(10));
    node.stop().await?;
    Ok(())
}

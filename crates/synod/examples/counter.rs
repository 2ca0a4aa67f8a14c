//! A counter of your own, replicated three times: `cargo run --example counter`.
//!
//! Three replicas run in this process and talk over loopback, each with a data directory of its own. A client adds
//! through every one of them, one replica stops, and nothing that was answered is lost.

use std::{error::Error, io, net::TcpListener};

use bytes::Bytes;
use synod::{ClusterId, Config, Frozen, MemberAddress, Node, ReplicaId, SessionCommand, StateMachine};

/// Commands are numbers to add (8 bytes, little-endian); every answer is the sum.
#[derive(Clone, Default)]
struct Counter(u64);

impl StateMachine for Counter {
    fn apply(&mut self, command: &Bytes) -> Bytes {
        // A command that makes no sense must not stop the replicas: it adds nothing.
        self.0 = self.0.wrapping_add(number(command));
        self.query(command)
    }
    fn query(&self, _: &Bytes) -> Bytes {
        bytes(self.0)
    }
    fn freeze(&self) -> Box<dyn Frozen> {
        Box::new(self.clone())
    }
    fn restore(&mut self, snapshot: &mut dyn io::Read) -> io::Result<()> {
        let mut word = [0; 8];
        snapshot.read_exact(&mut word)?;
        self.0 = u64::from_le_bytes(word);
        Ok(())
    }
    fn digest(&self) -> u64 {
        self.0
    }
}

impl Frozen for Counter {
    fn write_to(&self, out: &mut dyn io::Write) -> io::Result<()> {
        out.write_all(&self.0.to_le_bytes())
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let mut nodes = Vec::new();
    let members = members()?;
    for MemberAddress { id, address, .. } in &members {
        let data_dir = folder.path().join(id.to_string());
        let mut config = Config::new(ClusterId(42), *id, members.clone(), data_dir);
        config.listen = vec![address.parse()?];
        nodes.push(Node::start(config, Counter::default())?);
    }

    // Any replica takes commands, whoever leads.
    for round in 0..100 {
        nodes[round % 3].handle().execute(bytes(1)).await?;
    }
    // A client that numbers its commands may send one again: it is executed once.
    let session = nodes[0].handle().open_session().await?;
    let first = SessionCommand { session, sequence: 1, lowest_outstanding: 1 };
    nodes[0].handle().execute_in_session(first, bytes(1000)).await?;
    let sum = nodes[1].handle().execute_in_session(first, bytes(1000)).await?;
    assert_eq!(number(&sum), 1100);

    // Two of three are a majority.
    nodes.remove(0).stop()?;
    let sum = nodes[0].handle().execute(bytes(1)).await?;
    println!("after 100 times 1, a retried 1000, the end of a replica, and 1 more: {}", number(&sum));
    assert_eq!(number(&sum), 1101);
    assert_eq!(number(&nodes[1].handle().query(Bytes::new()).await?), 1101);
    Ok(())
}

/// Three replicas at ports that are free.
fn members() -> io::Result<Vec<MemberAddress>> {
    let held: Vec<_> = (0..3).map(|_| TcpListener::bind("127.0.0.1:0")).collect::<io::Result<_>>()?;
    let member = |(listener, id): (&TcpListener, u64)| {
        let address = listener.local_addr()?.to_string();
        Ok(MemberAddress::new(ReplicaId(id), format!("replica {id}"), address))
    };
    held.iter().zip(1..).map(member).collect()
}

fn number(bytes: &Bytes) -> u64 {
    bytes[..].try_into().map_or(0, u64::from_le_bytes)
}

fn bytes(number: u64) -> Bytes {
    number.to_le_bytes().to_vec().into()
}

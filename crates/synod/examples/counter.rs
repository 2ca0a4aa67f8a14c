//! A counter of your own, replicated three times: `cargo run --release --example counter`.

use std::{error::Error, io};

use synod::{Context, Frozen, LocalGroup, SessionCommand, StateMachine, bytes::Bytes};

/// Every command adds one; every answer is the sum.
#[derive(Default)]
struct Counter(u64);

impl StateMachine for Counter {
    fn apply(&mut self, command: &Bytes, _: &Context) -> Bytes {
        self.0 += 1;
        self.query(command)
    }
    fn query(&self, _: &Bytes) -> Bytes {
        Bytes::copy_from_slice(&self.0.to_le_bytes())
    }
    fn freeze(&self) -> Box<dyn Frozen> {
        Box::new(self.query(&Bytes::new()))
    }
    fn restore(&mut self, snapshot: &mut dyn io::Read) -> io::Result<()> {
        let mut sum = [0; 8];
        snapshot.read_exact(&mut sum)?;
        self.0 = u64::from_le_bytes(sum);
        Ok(())
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let mut replicas = LocalGroup::start(folder.path(), 3, Counter::default).await?;
    for round in 0..100 {
        replicas.handle(round % 3).execute("add".into()).await?; // Any replica takes commands.
    }
    let session = replicas.handle(0).open_session().await?;
    let numbered = SessionCommand { session, sequence: 1, lowest_outstanding: 1 };
    for replica in [0, 1] {
        // A client that numbers its commands may send one again: it is executed once.
        replicas.handle(replica).execute_in_session(numbered, "add".into()).await?;
    }
    replicas.stop(0).await?; // Two of three are a majority.
    let sum = replicas.handle(1).execute("add".into()).await?;
    println!("after 100 additions, one sent twice, the end of a replica, and one more: {}", sum[0]);
    assert_eq!(sum[0], 102);
    assert_eq!(replicas.handle(2).query(Bytes::new()).await?, sum);
    Ok(())
}

//! A client that is not told what became of its command sends it again, and it is executed once:
//! `cargo run --release --example sessions`.

use std::{error::Error, io, time::Duration};

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
    let impatient = |config: &mut synod::Config| config.settings.request_timeout = Duration::from_secs(1);
    let mut replicas = LocalGroup::start_with(folder.path(), 3, Counter::default, impatient).await?;
    let session = replicas.handle(0).open_session().await?;
    // Nothing lower than its first command is outstanding.
    let numbered = |sequence| SessionCommand { session, sequence, lowest_outstanding: 1 };
    replicas.handle(0).execute_in_session(numbered(1), "add".into()).await?;

    // Replica 0 leads, and has no majority any more: it cannot say what becomes of the command.
    while replicas.handle(0).status().leader.is_none_or(|leader| leader.0 != 1) {
        let led_by = replicas.handle(0).status().leader.map_or(1, |leader| leader.0 as usize - 1);
        replicas.handle(led_by).transfer(synod::ReplicaId(1))?;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    replicas.stop(1).await?;
    replicas.stop(2).await?;
    let failed = replicas.handle(0).execute_in_session(numbered(2), "add".into()).await.unwrap_err();
    println!("{failed}; may have been executed: {}", failed.may_have_executed());

    // With a majority again, the same number tells it, at any replica.
    replicas.restart(1, Counter::default()).await?;
    let mut sum = Err(failed);
    while let Err(error) = sum {
        println!("sending it again, since: {error}");
        sum = replicas.handle(1).execute_in_session(numbered(2), "add".into()).await;
    }
    assert_eq!(sum?[0], 2);
    assert_eq!(replicas.handle(0).query(Bytes::new()).await?[0], 2);
    println!("executed once");
    Ok(())
}

//! A client that is not told what became of its command sends it again, and it is executed once:
//! `cargo run --release --example sessions`.

use std::{error::Error, time::Duration};

use serde::{Deserialize, Serialize};
use synod::{
    Context, Json, LocalGroup, Machine, ReplicaId, Session, Typed, TypedError, TypedHandle, TypedSession,
};
use tokio::time::sleep;

/// Every command adds to the sum.
#[derive(Clone, Default, Serialize, Deserialize)]
struct Counter(u64);

impl Machine for Counter {
    type Command = u64;
    type Reply = u64;
    type Query = ();
    type Answer = u64;
    type Codec = Json;

    fn apply(&mut self, amount: u64, _: &Context) -> u64 {
        self.0 += amount;
        self.0
    }

    fn query(&self, (): ()) -> u64 {
        self.0
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let impatient = |config: &mut synod::Config| config.settings.request_timeout = Duration::from_secs(1);
    let mut replicas = LocalGroup::start_with(folder.path(), 3, Typed::<Counter>::default, impatient).await?;
    let counter = TypedHandle::<Counter>::new(replicas.handle(0));

    // At most 8 commands are outstanding, and each is sent again for a minute.
    let session = Session::open(replicas.handle(0), 8, Duration::from_secs(60)).await?;
    let session = TypedSession::<Counter>::new(session);
    let both = tokio::join!(session.execute(&1), session.execute(&1));
    assert_eq!(both.0?.max(both.1?), 2);

    // Replica 0 leads, and has no majority any more: it cannot say what becomes of a command.
    while replicas.handle(0).status().leader.is_none_or(|leader| leader.0 != 1) {
        let led_by = replicas.handle(0).status().leader.map_or(1, |leader| leader.0 as usize - 1);
        replicas.handle(led_by).transfer(ReplicaId(1))?;
        sleep(Duration::from_millis(50)).await;
    }
    replicas.stop(1).await?;
    replicas.stop(2).await?;
    let failed: TypedError = counter.execute(&10).await.unwrap_err();
    println!("without a session: {failed}; may have been executed: {}", failed.may_have_executed());

    // The session sends its command until there is a majority again.
    let (sum, restarted) = tokio::join!(session.execute(&100), async {
        sleep(Duration::from_secs(3)).await;
        println!("with a session: it waits");
        replicas.restart(1, Typed::<Counter>::default()).await
    });
    restarted?;
    let sum = sum?;
    println!("with a session: {sum}");
    assert!([102, 112].contains(&sum), "executed once, after the other command or without it");
    assert!([102, 112].contains(&counter.query(&()).await?));
    Ok(())
}

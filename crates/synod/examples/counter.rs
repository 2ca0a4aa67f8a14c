//! A counter of your own, replicated three times: `cargo run --release --example counter`.

use std::error::Error;

use serde::{Deserialize, Serialize};
use synod::{Context, Json, LocalGroup, Machine, Typed, TypedHandle};

/// Every command adds to the sum, and is answered with it.
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
    let mut replicas = LocalGroup::start(folder.path(), 3, Typed::<Counter>::default).await?;
    for round in 0..100 {
        let counter = TypedHandle::<Counter>::new(replicas.handle(round % 3)); // Any replica takes commands.
        counter.execute(&1).await?;
    }
    replicas.stop(0).await?; // Two of three are a majority.
    let [one, other] = [1, 2].map(|index| TypedHandle::<Counter>::new(replicas.handle(index)));
    let sum = one.execute(&10).await?;
    println!("after 100 additions of one, the end of a replica, and an addition of ten: {sum}");
    assert_eq!(sum, 110);
    assert_eq!(other.query(&()).await?, sum);
    Ok(())
}

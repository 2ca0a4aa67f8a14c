//! A bank with commands, queries and replies of its own types: `cargo run --release --example typed`.

use std::{collections::BTreeMap, error::Error};

use serde::{Deserialize, Serialize};
use synod::{Context, Json, LocalGroup, Machine, Typed, TypedHandle};

/// Accounts and what is on them. Its snapshot is its JSON.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Bank(BTreeMap<String, u64>);

#[derive(Serialize, Deserialize)]
enum Command {
    Deposit { to: String, amount: u64 },
    Transfer { from: String, to: String, amount: u64 },
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
enum Reply {
    Done,
    /// So much is there.
    TooLittle(u64),
}

impl Machine for Bank {
    type Command = Command;
    type Reply = Reply;
    type Query = String;
    type Answer = Option<u64>;
    type Codec = Json;

    fn apply(&mut self, command: Command, _: &Context) -> Reply {
        let (to, amount) = match command {
            Command::Deposit { to, amount } => (to, amount),
            Command::Transfer { from, to, amount } => {
                let there = self.0.entry(from).or_default();
                let Some(left) = there.checked_sub(amount) else { return Reply::TooLittle(*there) };
                *there = left;
                (to, amount)
            }
        };
        *self.0.entry(to).or_default() += amount;
        Reply::Done
    }

    fn query(&self, account: String) -> Option<u64> {
        self.0.get(&account).copied()
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let mut replicas = LocalGroup::start(folder.path(), 3, Typed::<Bank>::default).await?;
    let bank = TypedHandle::<Bank>::new(replicas.handle(0));
    bank.execute(&Command::Deposit { to: "ada".into(), amount: 100 }).await?;
    let transfer = |amount| Command::Transfer { from: "ada".into(), to: "bob".into(), amount };
    assert_eq!(bank.execute(&transfer(30)).await?, Reply::Done);
    assert_eq!(bank.execute(&transfer(80)).await?, Reply::TooLittle(70));

    replicas.stop(0).await?;
    let elsewhere = TypedHandle::<Bank>::new(replicas.handle(1));
    assert_eq!(elsewhere.query(&"bob".into()).await?, Some(30));
    assert_eq!(elsewhere.query(&"eve".into()).await?, None);
    println!("bob has 30, and nobody has an account of eve");
    Ok(())
}

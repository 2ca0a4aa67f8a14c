//! The protocol is a setting, and the group changes it while it works: `cargo run --release --example protocols
//! [NAME]`.

use std::{env, error::Error, io};

use synod::{
    Change, Context, Frozen, LocalGroup, Options, Overrides, ProtocolKind, Refusal, StateMachine,
    bytes::Bytes,
};

/// Remembers all commands.
#[derive(Clone, Default)]
struct Journal(Vec<u8>);

impl StateMachine for Journal {
    fn apply(&mut self, command: &Bytes, _: &Context) -> Bytes {
        self.0.extend_from_slice(command);
        Bytes::new()
    }
    fn query(&self, _: &Bytes) -> Bytes {
        Bytes::copy_from_slice(&self.0)
    }
    fn freeze(&self) -> Box<dyn Frozen> {
        Box::new(Bytes::copy_from_slice(&self.0))
    }
    fn restore(&mut self, snapshot: &mut dyn io::Read) -> io::Result<()> {
        self.0.clear();
        snapshot.read_to_end(&mut self.0).map(drop)
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let first: ProtocolKind = env::args().nth(1).as_deref().unwrap_or("multipaxos").parse()?;
    let folder = tempfile::tempdir()?;
    let replicas = LocalGroup::start_with(folder.path(), 3, Journal::default, |config| {
        config.settings.consensus = Options::of(first);
    })
    .await?;
    let handle = replicas.handle(0);
    let mut written = String::new();
    for (_, protocol) in ProtocolKind::ALL {
        let group = handle.group();
        let change = Change::Order {
            protocol: *protocol,
            election: protocol.elections()[0],
            overrides: Overrides::default(),
        };
        match handle.change(group.version, change).await {
            Ok(group) => println!("{}: {} with {}", group.epoch, group.protocol, group.election),
            Err(synod::ChangeError::Refused(Refusal::NothingToDo)) => println!("{protocol} orders already"),
            Err(error) => return Err(error.into()),
        }
        handle.execute(Bytes::from(format!("{protocol} "))).await?;
        written += &format!("{protocol} ");
    }
    for index in 0..3 {
        assert_eq!(replicas.handle(index).query(Bytes::new()).await?, written);
    }
    println!("every replica executed what each of them ordered: {written}");
    Ok(())
}

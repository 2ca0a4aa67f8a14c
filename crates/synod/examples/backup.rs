//! Backups, and new clusters of them: `cargo run --release --example backup`.
//!
//! While a group serves, a backup is the answer to a query, in a form of the program's own. Every member of a new
//! cluster begins with it. Where there is none, and only the data directory of one replica is left, that becomes a
//! cluster of its own.
//!
//! A replica must never go on from an older copy of its data under its old id: it would have forgotten what it
//! promised, and the others would refuse it.

use std::{error::Error, fs, io};

use synod::{
    ClusterId, Config, Context, Frozen, LocalGroup, MemberAddress, Node, StateMachine, bytes::Bytes,
    recover::force_new_cluster, restore::from_backup,
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
    let folder = tempfile::tempdir()?;
    let mut replicas = LocalGroup::start(&folder.path().join("cluster"), 3, Journal::default).await?;
    replicas.handle(0).execute("before ".into()).await?;

    // The backup. The group goes on.
    let backup = folder.path().join("backup");
    fs::write(&backup, replicas.handle(2).query(Bytes::new()).await?)?;
    replicas.handle(0).execute("after ".into()).await?;

    // A new cluster: its members begin with the backup, and then start as ever. Its id is that of no other.
    let journal = Journal(fs::read(&backup)?);
    let restore = |config: &mut Config| {
        config.cluster = ClusterId(2);
        from_backup(config, journal.clone()).expect("there is room for it");
    };
    let restored =
        LocalGroup::start_with(&folder.path().join("restored"), 3, Journal::default, restore).await?;
    restored.handle(1).execute("restored".into()).await?;
    let journal = restored.handle(2).query(Bytes::new()).await?;
    assert_eq!(journal, "before restored");
    println!("of a backup: {}", String::from_utf8_lossy(&journal));

    // Two of the three replicas of the old cluster are lost for good. The plan says what is kept; agreeing makes the
    // directory one of the only replica of a new cluster.
    replicas.handle(2).query(Bytes::new()).await?;
    replicas.stop(2).await?;
    let survivor = replicas.config(2).clone();
    drop(replicas);
    let plan = force_new_cluster(&survivor, vec![Journal::default()], |plan| {
        println!(
            "cluster {} becomes {}, with slots through {}",
            plan.old_cluster, plan.new_cluster, plan.groups[0].kept
        );
        true
    })?;
    let plan = plan.expect("agreed");
    let me = plan.groups[0].new.members[0].id;
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    let address = MemberAddress::new(me, "survivor", listener.local_addr()?.to_string());
    let mut config = Config::new(plan.new_cluster, me, vec![address], survivor.data_dir);
    config.listeners = vec![listener.into()];
    let node = Node::start(config, Journal::default()).await?;
    node.handle().execute("later".into()).await?;
    let journal = node.handle().query(Bytes::new()).await?;
    assert_eq!(journal, "before after later");
    println!("of a survivor: {}", String::from_utf8_lossy(&journal));
    node.stop().await?;
    Ok(())
}

//! A backup is a copy of a stopped replica's data directory; a restore begins a new cluster from it:
//! `cargo run --release --example backup`.
//!
//! A replica must never go on from an older copy of its data under its old id: it would have forgotten what it
//! promised, and the others would refuse it. What a copy holds becomes a cluster of its own instead.

use std::{error::Error, fs, io, path::Path};

use synod::{
    Config, Context, Frozen, LocalGroup, MemberAddress, Node, StateMachine, bytes::Bytes,
    recover::force_new_cluster,
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

    // The backup: what one replica has executed is in its directory. The others go on.
    replicas.handle(2).query(Bytes::new()).await?;
    replicas.stop(2).await?;
    let backup = folder.path().join("backup");
    copy(&replicas.config(2).data_dir, &backup)?;
    replicas.restart(2, Journal::default()).await?;
    replicas.handle(0).execute("after ".into()).await?;

    // The cluster is lost.
    let lost = replicas.config(2).clone();
    drop(replicas);
    fs::remove_dir_all(folder.path().join("cluster"))?;

    // The restore. The plan says what is kept; agreeing makes the directory one of the only replica of a new cluster.
    let restored = Config::new(lost.cluster, lost.me, Vec::new(), backup.clone());
    let plan = force_new_cluster(&restored, vec![Journal::default()], |plan| {
        println!(
            "cluster {} becomes {}, with slots through {}",
            plan.old_cluster, plan.new_cluster, plan.groups[0].kept
        );
        true
    })?;
    let plan = plan.expect("agreed");
    let me = plan.groups[0].new.members[0].id;
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    let address = MemberAddress::new(me, "restored", listener.local_addr()?.to_string());
    let mut config = Config::new(plan.new_cluster, me, vec![address], backup);
    config.listeners = vec![listener.into()];
    let node = Node::start(config, Journal::default()).await?;
    node.handle().execute("later".into()).await?;
    let journal = node.handle().query(Bytes::new()).await?;
    assert_eq!(journal, "before later");
    println!("{}", String::from_utf8_lossy(&journal));
    node.stop().await?;
    Ok(())
}

fn copy(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let path = entry?.path();
        let target = to.join(path.file_name().expect("an entry has a name"));
        if path.is_dir() { copy(&path, &target)? } else { fs::copy(&path, &target).map(drop)? }
    }
    Ok(())
}

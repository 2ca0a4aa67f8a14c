//! Three processes from one configuration file; then one more joins, and takes the place of one that is gone:
//! `cargo run --release --example processes`.
//!
//! This program starts itself once for each replica, and talks to each through a pipe: `add` adds one, `sum` asks for
//! the sum, `replace ID ADDRESS` has a new member at ADDRESS take the place of another.

use std::{
    env,
    error::Error,
    fs,
    io::{self, BufRead, BufReader, Write},
    net::TcpListener,
    path::Path,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::Duration,
};

use serde::{Deserialize, Serialize};
use synod::{
    Change, ClusterId, Config, Context, Goal, Json, Machine, MemberAddress, MemberInfo, Node, Origin,
    ReplicaId, Typed, TypedHandle,
};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

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

/// A line of the configuration file for each member: its id, and where the others reach it.
fn members(file: &Path) -> Result<Vec<MemberAddress>> {
    let text = fs::read_to_string(file)?;
    let member = |line: &str| {
        let (id, address) = line.split_once(' ').ok_or("a line is: ID HOST:PORT")?;
        Ok(MemberAddress::new(ReplicaId(id.parse()?), format!("replica-{id}"), address))
    };
    text.lines().map(member).collect()
}

/// The process of one replica: FOLDER ID, or FOLDER join ADDRESS.
async fn replica(folder: &Path, args: &[String]) -> Result<()> {
    let members = members(&folder.join("members"))?;
    let cluster = ClusterId(7);
    let mut config = if let [_, address] = args {
        // A member tells who else is there, and under which id this replica was added.
        let origin =
            Origin::ask(members.iter().map(|member| &member.address), None, Duration::from_secs(10)).await?;
        let urls = vec![format!("http://{address}")];
        let me = origin.present.members.iter().find(|member| member.info.peer_urls == urls);
        let me = me.ok_or("this replica was not added")?.id;
        let mut config = Config::new(origin.cluster, me, Vec::new(), folder.join(me.to_string()));
        config.joins = Some(origin);
        config.listen = vec![address.parse()?];
        config
    } else {
        let me = ReplicaId(args[0].parse()?);
        let own = members.iter().find(|member| member.id == me).ok_or("not in the file")?.address.parse()?;
        let mut config = Config::new(cluster, me, members, folder.join(me.to_string()));
        config.listen = vec![own];
        config
    };
    config.settings.consensus.election_timeout = Duration::from_millis(500);
    let node = Node::start(config, Typed::<Counter>::default()).await?;
    let counter = TypedHandle::new(node.handle());
    for line in io::stdin().lock().lines() {
        let answer = obey(&counter, &line?).await;
        println!("{}", answer.unwrap_or_else(|error| format!("error: {error}")));
    }
    Ok(node.stop().await?)
}

async fn obey(counter: &TypedHandle<Counter>, line: &str) -> Result<String> {
    let handle = counter.untyped();
    Ok(match line.split(' ').collect::<Vec<_>>()[..] {
        ["add"] => counter.execute(&1).await?.to_string(),
        ["sum"] => counter.query(&()).await?.to_string(),
        ["replace", id, address] => {
            let peer_urls = vec![format!("http://{address}")];
            let info = MemberInfo::new("new", peer_urls);
            let change = Change::Add { info, goal: Goal::Replace(ReplicaId(id.parse()?)) };
            // It learns what was decided, and votes in the other one's place as soon as it has caught up.
            let group = handle.change(handle.group().version, change).await?;
            format!("{} members", group.members.len())
        }
        // A replica that votes, and is not one of those of the beginning.
        ["voted"] => {
            let mut watch = handle.watch();
            let replaced = watch.until(|view| view.group.voters().all(|id| id != ReplicaId(2))).await;
            format!("{:?}", replaced.ok_or("it has ended")?.group.voters().collect::<Vec<_>>())
        }
        _ => return Err(format!("what is {line:?}?").into()),
    })
}

/// A replica's process, which is killed when this is dropped.
struct Process(Child, ChildStdin, BufReader<ChildStdout>);

impl Process {
    fn start(folder: &Path, args: &[&str]) -> Result<Process> {
        let mut command = Command::new(env::current_exe()?);
        let mut child =
            command.arg(folder).args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        Ok(Process(child, stdin.ok_or("no pipe")?, BufReader::new(stdout.ok_or("no pipe")?)))
    }

    fn ask(&mut self, line: &str) -> Result<String> {
        writeln!(self.1, "{line}")?;
        let mut answer = String::new();
        self.2.read_line(&mut answer)?;
        println!("{line} -> {}", answer.trim());
        Ok(answer.trim().to_owned())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let args: Vec<String> = env::args().skip(1).collect();
    if let [folder, rest @ ..] = &args[..] {
        return replica(Path::new(folder), rest).await;
    }
    let folder = tempfile::tempdir()?;
    // Ports that are free now.
    let free: Vec<_> = (0..4).map(|_| TcpListener::bind("127.0.0.1:0")).collect::<io::Result<_>>()?;
    let addresses = free.iter().map(|listener| Ok(listener.local_addr()?.to_string()));
    let addresses = addresses.collect::<io::Result<Vec<_>>>()?;
    drop(free);
    let lines: Vec<_> = (1..=3).map(|id| format!("{id} {}", addresses[id - 1])).collect();
    fs::write(folder.path().join("members"), lines.join("\n"))?;

    let mut one = Process::start(folder.path(), &["1"])?;
    let mut two = Process::start(folder.path(), &["2"])?;
    let mut three = Process::start(folder.path(), &["3"])?;
    assert_eq!(one.ask("add")?, "1");
    assert_eq!(two.ask("add")?, "2");
    assert_eq!(three.ask("sum")?, "2");

    drop(two); // Its process is killed.
    assert_eq!(one.ask(&format!("replace 2 {}", addresses[3]))?, "4 members");
    let mut four = Process::start(folder.path(), &["join", &addresses[3]])?;
    assert_eq!(three.ask("voted")?, "[ReplicaId(1), ReplicaId(3), ReplicaId(4)]");
    drop(one);
    // Three and four are a majority.
    assert_eq!(four.ask("add")?, "3");
    assert_eq!(three.ask("sum")?, "3");
    Ok(())
}

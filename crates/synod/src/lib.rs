//! One replicated log with interchangeable consensus, to be embedded: **replicate your own deterministic state
//! machine** over several machines (3, 5 or 7 as a rule, at most [`MEMBERS_MAX`]), so that it survives the loss of a
//! minority of them and never shows two truths.
//!
//! (The program of the same name, a key-value store that speaks the etcd v3 API, is made of the same parts and is a
//! crate of its own, `synod-cli`.)
//!
//! # How to use it
//!
//! 1. Write a [`StateMachine`]: commands and queries are bytes in an encoding of your own.
//! 2. Start a [`Node`] in each process, with a [`Config`] that says who the replicas are and where the data lives.
//! 3. Use the node's [`Handle`]: [`execute`](Handle::execute) a command, [`query`](Handle::query) the state. Any
//!    replica takes both, whichever leads.
//!
//! ```
//! use std::{io, net::TcpListener};
//! use bytes::Bytes;
//! use synod::{ClusterId, Config, Context, Frozen, MemberAddress, Node, ReplicaId, StateMachine};
//!
//! /// Remembers the longest command.
//! #[derive(Clone, Default)]
//! struct Longest(Bytes);
//!
//! impl StateMachine for Longest {
//!     fn apply(&mut self, command: &Bytes, _: &Context) -> Bytes {
//!         if command.len() > self.0.len() {
//!             self.0 = command.clone();
//!         }
//!         self.0.clone()
//!     }
//!     fn query(&self, _: &Bytes) -> Bytes {
//!         self.0.clone()
//!     }
//!     fn freeze(&self) -> Box<dyn Frozen> {
//!         Box::new(self.clone())
//!     }
//!     fn restore(&mut self, snapshot: &mut dyn io::Read) -> io::Result<()> {
//!         let mut bytes = Vec::new();
//!         snapshot.read_to_end(&mut bytes)?;
//!         self.0 = bytes.into();
//!         Ok(())
//!     }
//! }
//!
//! impl Frozen for Longest {
//!     fn write_to(&self, out: &mut dyn io::Write) -> io::Result<()> {
//!         out.write_all(&self.0)
//!     }
//! }
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let data_dir = folder.path().to_owned();
//! # let free = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
//! # let address = free.to_string();
//! // A cluster of one; each further replica is one more member, and a node elsewhere with another `me`.
//! let members = vec![MemberAddress::new(ReplicaId(1), "one", &address)];
//! let mut config = Config::new(ClusterId(42), ReplicaId(1), members, data_dir);
//! config.listen = vec![address.parse()?];
//! # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
//! # runtime.block_on(async {
//! let node = Node::start(config, Longest::default()).await?;
//!
//! let handle = node.handle();
//! handle.execute("Lausanne".into()).await?;
//! assert_eq!(handle.execute("Bern".into()).await?, "Lausanne");
//! assert_eq!(handle.query("".into()).await?, "Lausanne");
//! node.stop().await?;
//! # Ok(())
//! # })
//! # }
//! ```
//!
//! The examples, each a short program that checks its own result (`cargo run --release --example NAME`):
//!
//! | example | what it shows |
//! | --- | --- |
//! | `counter` | three replicas in one process ([`LocalGroup`]), one of which is lost |
//! | `typed` | commands, queries and replies of your own types ([`Typed`]) |
//! | `sessions` | a command that timed out is sent again, and executed once ([`Session`]) |
//! | `remote` | clients elsewhere: an RPC of your own, and a session across it ([`Endpoint`]) |
//! | `processes` | three processes from a configuration file; a fourth one joins and replaces a member |
//! | `protocols` | the protocol is chosen, and changed while the group works |
//! | `metrics` | what a replica counts, in a registry of Prometheus metrics |
//! | `backup` | a backup while the group serves, a new cluster of it, and one of what a survivor holds |
//! | `simulated` | your state machine in the simulator (the crate `synod-sim`): its code, the simulator's faults, your invariants |
//!
//! Features, all off unless named: `json`, a codec for typed machines; `metrics`, what a replica counts, for a registry
//! of Prometheus metrics; `faulty-disk`, a disk in memory that fails, for tests ([`disk`]). TLS between replicas
//! ([`tls`]) is always there: were it a feature, the build of each replica and not the configuration would say whether
//! two of them can speak with each other.
//!
//! Futures belong to no particular runtime, and methods that block their thread say so in their name: [`Node::start`]
//! and [`Node::stop`] are for asynchronous code, [`Node::start_blocking`] and [`Node::stop_blocking`] for all other. A
//! replica that is stopped hands over first if it leads; [`Node::stop_now`] does not.
//!
//! # What is promised
//!
//! - A command that was answered is never lost while a majority of the replicas keeps its disks ([`Durability`] says
//!   what a disk is), and every replica executes the same commands in the same order.
//! - A command is executed **at most once**, and exactly once if it was answered. Of one that failed,
//!   [`RequestError::may_have_executed`] says whether it may have been executed all the same. A client that must know
//!   has a [`Session`] ([`TypedSession`]), which numbers its commands and sends each until it is answered. One that
//!   numbers them itself has [`Handle::open_session`] and [`Handle::execute_in_session`].
//! - A query through [`Handle::query`] sees everything that was answered before it was asked. One through
//!   [`Handle::query_stale`] sees some earlier state, and needs no other replica.
//! - While a majority can talk to each other, commands are answered. With no majority nothing is, and nothing breaks. A
//!   new group is an exception, see below.
//!
//! # The first start
//!
//! **A new group waits for all its members.** A replica votes once it has met all others, so that members which know
//! nothing of what was decided cannot be a majority. Until then requests fail with [`RequestError::NoLeader`];
//! [`NodeStatus::waits_for`] names the members that a replica has not met, and [`NodeStatus::peers`] says what is in
//! the way of each. Once all have met, a majority is enough, at every start. With [`Config::begin_without_all`] a
//! replica does not wait for a member that cannot come.
//!
//! # What it logs
//!
//! The library logs by the crate `tracing`: for whom a new group waits, changes of the leader and of the group, peers
//! that are refused, a disk that fails. A program without a subscriber sees none of it. The crate `tracing-subscriber`
//! writes it to standard output if `main` begins with `tracing_subscriber::fmt().init()`; the targets are the crates'
//! names, as `synod_node` and `synod_transport`.
//!
//! # What a state machine must keep to
//!
//! It must be **deterministic**: no clock, no random numbers, no iteration over randomly hashed maps, no reading of
//! files. It must not panic on a command, since every replica would. [`StateMachine::digest`] is there to find out in
//! tests whether replicas have diverged ([`Handle::digest`]).
//!
//! Snapshots are taken while commands go on: [`StateMachine::freeze`] should be quick (share what is large, copy on
//! write), and [`Frozen::write_to`] may take its time on another thread.
//!
//! # What can be set
//!
//! [`Config`] holds what one replica is told; in it, [`Settings`] batching, time-outs, snapshots and limits; in that,
//! [`Options`] the protocol ([`ProtocolKind`]), the election ([`ElectionKind`]), how batches reach all replicas
//! ([`Dissemination`]) and their times; [`Combination`] knows what goes together. What replicas must have alike is of
//! the group: what they are started with counts when the group begins, and [`Handle::change`] changes it.
//!
//! Settings may get more fields, so take the defaults and set fields:
//!
//! ```
//! # use synod::{Config, Durability, Options, ProtocolKind};
//! # fn tune(config: &mut Config) {
//! config.durability = Durability::View;
//! config.settings.consensus = Options::of(ProtocolKind::Raft);
//! config.settings.batch_bytes_max = 16 << 10;
//! # }
//! ```
//!
//! # What is promised of the API
//!
//! Before 1.0 a new minor version may break it, and CHANGELOG.md says so; a patch does not. What is `#[non_exhaustive]`
//! may grow in a patch: settings, errors, changes, what is told of a group ([`Group`], [`Member`], [`Origin`]), and
//! enumerations such as protocols and durabilities.
//!
//! A test may give replicas a network and a disk of its own in [`Config`]: the modules [`network`] and [`disk`] have
//! what the traits speak of, a network in memory and a disk that fails.
//!
//! # What can be watched and read
//!
//! [`Handle::watch`] waits for changes of the leadership, the applied slot and the membership, and [`Handle::read_log`]
//! reads what was decided, as far as the replica keeps it. [`Handle::subscribe`] follows what is decided: of one group,
//! or of several, in the common order that merged groups have ([`Merging`]).
//!
//! ```
//! # use synod::{CommandKind, Handle, Start};
//! # async fn follow(handle: Handle) -> Result<(), Box<dyn std::error::Error>> {
//! let mut subscription = handle.subscribe([], Start::Now).await?;
//! handle.execute("Lausanne".into()).await?;
//! loop {
//!     let next = subscription.next().await?;
//!     let mut commands = next.batch.commands().filter(|command| command.kind == CommandKind::Apply);
//!     if commands.any(|command| command.payload == "Lausanne") {
//!         break;
//!     }
//! }
//! // Another replica can go on from here.
//! let points = subscription.points();
//! assert_eq!(points.len(), 1);
//! # Ok(())
//! # }
//! # #[derive(Clone)]
//! # struct Nothing;
//! # impl synod::StateMachine for Nothing {
//! #     fn apply(&mut self, command: &bytes::Bytes, _: &synod::Context) -> bytes::Bytes { command.clone() }
//! #     fn query(&self, query: &bytes::Bytes) -> bytes::Bytes { query.clone() }
//! #     fn freeze(&self) -> Box<dyn synod::Frozen> { Box::new(Nothing) }
//! #     fn restore(&mut self, _: &mut dyn std::io::Read) -> std::io::Result<()> { Ok(()) }
//! # }
//! # impl synod::Frozen for Nothing {
//! #     fn write_to(&self, _: &mut dyn std::io::Write) -> std::io::Result<()> { Ok(()) }
//! # }
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
//! # runtime.block_on(async {
//! # let group = synod::LocalGroup::start(folder.path(), 1, || Nothing).await?;
//! # follow(group.handle(0)).await
//! # })
//! # }
//! ```
//!
//! # Changing the group
//!
//! [`Handle::change`] adds, removes, promotes and replaces members, and changes what orders ([`Change`]), while the
//! group runs. A new replica asks the others whom it joins ([`Origin::ask`]), finds its id in the answer, and starts
//! with it in [`Config::joins`]. One that was removed finds [`Handle::is_retired`] true and should stop.
//!
//! # When a replica ends
//!
//! A replica stops by itself when it cannot keep its promises any more, above all when its disk fails: [`Node::wait`]
//! says so. Nothing acknowledged is lost by that; repair the cause and start it again. A replica whose log was damaged
//! learns from its peers before it votes again. One that has lost its whole data directory is refused under its old id;
//! replace it ([`Goal::Replace`]).

pub mod disk;
mod local;
pub mod network;
mod typed;

/// The buffers that commands, queries and replies are in.
pub use bytes;
pub use local::LocalGroup;
pub use synod_consensus::{
    Combination, CombinationError, Decision, Dissemination, ElectionKind, MEMBERS_MAX, OptionError, Options,
    Overrides, ProtocolKind, Role, UnknownName,
};
#[cfg(feature = "metrics")]
pub use synod_node::NodeMetrics;
pub use synod_node::{
    AskError, ChangeError, Config, ConfigError, Ended, Endpoint, Handle, Lacking, MemberAddress, MergeStatus,
    Merging, Node, NodeStatus, Obstacle, ObstacleKind, Origin, PeerLink, ReadLogError, Session, SessionError,
    StartError, Subscription, Threads, UnknownThreads, View, Watch, recover, restore,
};
pub use synod_replica::{
    Answer, Change, Choice, Context, Frozen, Goal, Group, LimitError, Limits, Member, MemberInfo, Membership,
    Ordered, Others, Placement, Point, Refusal, RequestError, SessionCommand, SessionLimits, Settings, Skips,
    Standing, Start, StateMachine, StateTransfer, SubscribeError, Take,
};
pub use synod_storage::{Damage, Disk, Durability, Ending, Loss, StorageError};
pub use synod_transport::{MemoryNetwork, Network, TransportError};
pub use synod_wire::{
    Ballot, Batch, ClusterId, Command, CommandKind, Epoch, GroupId, Groups, Incarnation, ReplicaId,
    SessionId, Slot,
};
#[cfg(feature = "json")]
pub use typed::Json;
pub use typed::{Codec, Machine, Typed, TypedError, TypedHandle, TypedSession};

/// TLS between the replicas of a group ([`Config::tls`]).
pub mod tls {
    pub use synod_tls::{Acceptor, Allowed, Connector, Identity, Policy, PolicyError, TlsError, Trust};
    pub use synod_transport::Tls;
}

//! What a network of your own implements, and what its methods speak of.
//!
//! [`Config::network`](crate::Config::network) takes it. Here is one that counts the messages that a replica sends,
//! on top of another one:
//!
//! ```
//! use std::{
//!     net::SocketAddr,
//!     sync::{
//!         Arc,
//!         atomic::{AtomicU64, Ordering::Relaxed},
//!     },
//! };
//! use synod::network::{
//!     Config, Connections, Encoded, GroupId, Lsn, MemoryNetwork, Metrics, Network, Peer, Sender, Sink, TransportError,
//! };
//! use synod::ReplicaId;
//!
//! #[derive(Clone, Debug, Default)]
//! struct Counting {
//!     inner: MemoryNetwork,
//!     sent: Arc<AtomicU64>,
//! }
//!
//! impl Network for Counting {
//!     fn start(&self, config: Config, sink: Box<Sink>) -> Result<Box<dyn Connections>, TransportError> {
//!         let inner = self.inner.start(config, sink)?;
//!         Ok(Box::new(Counted { inner, sent: Arc::clone(&self.sent) }))
//!     }
//!     fn message_bytes_max(&self) -> usize {
//!         self.inner.message_bytes_max()
//!     }
//! }
//!
//! #[derive(Debug)]
//! struct Counted<T: ?Sized> {
//!     sent: Arc<AtomicU64>,
//!     inner: T,
//! }
//!
//! impl Connections for Counted<Box<dyn Connections>> {
//!     fn sender(&self) -> Arc<dyn Sender> {
//!         Arc::new(Counted { inner: self.inner.sender(), sent: Arc::clone(&self.sent) })
//!     }
//!     fn local_addresses(&self) -> Vec<SocketAddr> {
//!         self.inner.local_addresses()
//!     }
//! }
//!
//! impl Sender for Counted<Arc<dyn Sender>> {
//!     fn send_in(&self, version: u16, group: GroupId, to: &[ReplicaId], body: Encoded) {
//!         self.sent.fetch_add(to.len() as u64, Relaxed);
//!         self.inner.send_in(version, group, to, body);
//!     }
//!     fn flush(&self) {
//!         self.inner.flush();
//!     }
//!     fn version(&self, to: ReplicaId) -> u16 {
//!         self.inner.version(to)
//!     }
//!     fn heard(&self) -> Vec<(ReplicaId, u64, Lsn)> {
//!         self.inner.heard()
//!     }
//!     fn set_peers(&self, peers: Vec<Peer>) -> Result<(), TransportError> {
//!         self.inner.set_peers(peers)
//!     }
//!     fn metrics(&self) -> Metrics {
//!         self.inner.metrics()
//!     }
//! }
//! # use bytes::Bytes;
//! # use synod::{Context, Frozen, LocalGroup, StateMachine};
//! # #[derive(Clone)]
//! # struct Nothing;
//! # impl Frozen for Nothing {
//! #     fn write_to(&self, _: &mut dyn std::io::Write) -> std::io::Result<()> { Ok(()) }
//! # }
//! # impl StateMachine for Nothing {
//! #     fn apply(&mut self, _: &Bytes, _: &Context) -> Bytes { Bytes::new() }
//! #     fn query(&self, _: &Bytes) -> Bytes { Bytes::new() }
//! #     fn freeze(&self) -> Box<dyn Frozen> { Box::new(Nothing) }
//! #     fn restore(&mut self, _: &mut dyn std::io::Read) -> std::io::Result<()> { Ok(()) }
//! # }
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let folder = folder.path();
//! # let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
//! # runtime.block_on(async {
//!
//! let network = Counting::default();
//! let tune = |config: &mut synod::Config| config.network = Arc::new(network.clone());
//! let group = LocalGroup::start_with(folder, 3, || Nothing, tune).await?;
//! group.handle(0).execute("anything".into()).await?;
//! assert!(network.sent.load(Relaxed) > 2);
//! # drop(group);
//! # Ok(())
//! # })
//! # }
//! ```

pub use synod_transport::{
    ANSWER_BYTES_MAX, Config, Connections, Event, EventLoop, Inbox, InquireError, Meeting, MemoryNetwork,
    Metrics, Network, Obstacle, ObstacleKind, Outlived, Peer, PeerMetrics, Readiness, Recognise, Sender,
    Sink, Tcp, TransportError, Unreadable, Unrecognised,
};
pub use synod_wire::{Encoded, GroupId, Incarnation, Introduction, Lsn, Stranger};

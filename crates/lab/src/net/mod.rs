//! Networks for experiments: the effects of a link, topologies, and a relay that applies them to real connections.

pub(crate) mod namespaces;
mod ports;
mod relay;
mod topology;

pub(crate) use ports::free_addresses;
pub use relay::Relay;
pub use topology::{Link, Links, Topology};

//! Networks for experiments: what a link does, which links there are, and a relay that makes real connections so.

mod relay;
mod topology;

pub use relay::Relay;
pub use topology::{Link, Links, Topology};

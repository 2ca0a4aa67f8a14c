//! The laboratory: load generators, and experiments that put peers side by side.
//!
//! [`mod@bench`] drives any server of the etcd v3 API, so that Synod and etcd are measured by one program.

pub mod bench;

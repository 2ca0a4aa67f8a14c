//! The laboratory: load generators, and experiments that put peers side by side.
//!
//! [`mod@bench`] drives any server of the etcd v3 API, so that Synod and etcd are measured by one program. [`cli`] is
//! `synod lab`: [`experiments`] by name, each declared in one place and judged by what it measured, and [`chaos`], which
//! does to real replicas whatever can be done to them; [`attacks`] does what a hostile client can; [`likeness`] compares
//! answers with etcd's.

pub mod attacks;
pub mod bench;
pub mod chaos;
pub mod cli;
pub mod experiments;
mod figure;
pub mod ground;
pub mod likeness;
pub mod net;
pub mod report;
pub mod statistics;
pub mod study;

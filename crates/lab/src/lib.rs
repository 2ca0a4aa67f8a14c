//! The laboratory: load generators, and experiments that put peers side by side.
//!
//! [`mod@bench`] drives any server of the etcd v3 API, so that one program measures Synod and etcd. [`cli`] is `synod
//! lab`. [`experiments`] are found by name, declared in one place each, and judged by their results. [`chaos`] applies
//! every kind of fault to real replicas. [`attacks`] does what a hostile client can. [`likeness`] compares answers with
//! etcd's. [`calibrate`] measures what work costs, for experiments in virtual time. [`overload`]
//! asks for more than can be ordered. [`mod@tune`] says what a running cluster can do, and what would help.

pub mod attacks;
pub mod bench;
pub mod calibrate;
pub mod chaos;
pub mod cli;
pub mod experiments;
mod figure;
pub mod ground;
pub mod likeness;
mod model;
pub mod net;
pub mod overload;
pub mod report;
pub mod statistics;
mod strace;
pub mod study;
pub mod threads;
pub mod tune;

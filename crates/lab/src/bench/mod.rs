//! A load generator for servers of the etcd v3 API: `synod bench put|get|mixed|compare`.
//!
//! How a run goes:
//!
//! ```text
//!  run (one task)             generator threads, each with a runtime of its own
//!  ┌──────────────┐  start    ┌───────────────────────────────────────────────┐
//!  │ ask status   ├──────────▶│ client ─┐                                     │
//!  │ collect, show│           │ client ─┼─ pacer ─ request ─ connection ──────┼──▶ server
//!  │ end the run  │◀──────────┤ client ─┘            │                        │
//!  └──────────────┘ a tally   │                      ▼                        │
//!                   an        │              tally of this interval           │
//!                   interval  └───────────────────────────────────────────────┘
//! ```
//!
//! Threads share nothing while requests are under way: connections, clients, random numbers and counts all belong to
//! one thread, and once an interval (a second) the thread hands what it counted to the collecting task. So the
//! generator stays light, which matters when it shares the machine with the servers; what it cost is in the report.
//!
//! Time is divided into a warm-up, whose requests are discarded, and the **window**. A request belongs to the window if
//! it was *due* in it. In a closed loop a request is due when its client is free. In an open loop ([`Load::rate`])
//! it is due by the timetable, whether or not a client is free, and its latency counts from then on: a server that
//! stalls for a second is charged with every request that should have been answered in that second, not with one.

mod clean;
mod compare;
mod connection;
mod figure;
mod generator;
mod host;
mod options;
mod present;
mod report;
mod requests;
mod run;
mod schedule;
mod tally;
pub(crate) mod target;

pub use compare::{Compared, Comparison, Level, Pair, Spread, compare, run_pair};
pub use options::{
    After, Args, Command, CompareCommand, CompareOptions, Consistency, Format, Load, Operation, Options,
    Output, TlsOptions,
};
pub use present::{comparison_csv, comparison_text, main, report_csv, report_text};
pub use report::{
    ClientHost, Ended, EndpointStatus, ErrorCount, FirstError, GeneratorCost, Interval, Latency, Report,
    Setup,
};
pub use run::{Progress, run, run_observed};

/// Why a run could not take place. Requests that fail are no such error: they are counted in the [`Report`].
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// A flag has a value that is not accepted.
    #[error("{flag} {value}: not accepted; {accepted}")]
    Argument {
        /// The flag, as it is typed.
        flag: &'static str,
        /// Its value.
        value: String,
        /// What is accepted instead.
        accepted: String,
    },
    /// A connection could not be made, or the first question got no answer.
    #[error("no answer from {endpoint} ({reason}); is a server listening there? See --endpoints")]
    Unreachable {
        /// The endpoint.
        endpoint: String,
        /// The error.
        reason: String,
    },
    /// The keys of the cluster are spread over groups, so that what is written cannot be found again by a range.
    #[error(
        "the keys of the cluster of {endpoint} are spread over several groups, where what is written cannot be removed \
         afterwards; accepted: --keep"
    )]
    NotRemovable {
        /// The endpoint.
        endpoint: String,
    },
    /// `--target-leader` was given, but none of the endpoints leads.
    #[error(
        "--target-leader: none of {endpoints} leads (they name {leader} as the leader); add its endpoint to --endpoints"
    )]
    NoLeader {
        /// The endpoints that were asked.
        endpoints: String,
        /// The member that they name, in hexadecimal, or "nobody".
        leader: String,
    },
    /// A generator thread could not be set up, or it panicked.
    #[error("generator thread: {0}")]
    Thread(String),
    /// A report could not be written.
    #[error("cannot write {path}: {reason}")]
    Write {
        /// The file.
        path: String,
        /// The error.
        reason: String,
    },
}

//! Parameters that several experiments share.

use crate::{
    ground::Ground,
    study::{LabError, Parameter, Parameters},
};

/// How long answers are counted at each point.
pub(super) const WINDOW: Parameter = Parameter {
    key: "seconds",
    help: "How long answers are counted in each run; what is answered before, for a quarter of that, is not.",
    default: "2",
    full: "20",
};

/// How long answers are counted in virtual time.
pub(super) const VIRTUAL_WINDOW: Parameter = Parameter {
    key: "seconds",
    help: "How many seconds answers are counted in each run; seconds of virtual time where time is virtual.",
    default: "3",
    full: "30",
};

/// A shorter window, for experiments with many answers a second.
pub(super) const SHORT_WINDOW: Parameter = Parameter { default: "0.5", full: "5", ..VIRTUAL_WINDOW };

/// The protocols to compare.
pub(super) const PROTOCOLS: Parameter = Parameter {
    key: "protocols",
    help: "Protocols separated by commas, each with its own election or as PROTOCOL/ELECTION; all: every protocol.",
    default: "all",
    full: "all",
};

/// The sizes of the group.
pub(super) const REPLICAS: Parameter =
    Parameter { key: "replicas", help: "Group sizes, separated by commas.", default: "3,5", full: "3,5" };

/// The load.
pub(super) const CONCURRENT: Parameter = Parameter {
    key: "concurrent",
    help: "Proposals outstanding at a time; several numbers are measured one after the other.",
    default: "1000,10000,100000",
    full: "1000,10000,100000",
};

/// The ground: processes by default.
pub(super) const ON_PROCESSES: Parameter = Parameter {
    key: "on",
    help: "processes: `synod serve`, a process each, and clients over gRPC; threads: replicas and client in this \
           process, TCP between replicas, no gRPC.",
    default: "processes",
    full: "processes",
};

/// The ground: threads by default, or processes.
pub(super) const ON_THREADS_OR_PROCESSES: Parameter =
    Parameter { default: "threads", full: "threads", ..ON_PROCESSES };

/// The ground: threads only.
pub(super) const ON_THREADS: Parameter = Parameter {
    help: "threads: replicas and client in this process, TCP over loopback between replicas, no gRPC.",
    ..ON_THREADS_OR_PROCESSES
};

/// The ground: virtual time only.
pub(super) const ON_VIRTUAL: Parameter = Parameter {
    help: "virtual: the replicas' code in virtual time, with a network as described.",
    default: "virtual",
    full: "virtual",
    ..ON_PROCESSES
};

/// The ground: virtual time, or processes with cards.
pub(super) const ON_VIRTUAL_OR_NAMESPACES: Parameter = Parameter {
    help: "virtual: the replicas' code in virtual time, with a network as described; namespaces: `synod serve`, a process \
           each in a network namespace of its own with a limited card (Linux, with the tools ip and tc), and clients over \
           gRPC.",
    ..ON_VIRTUAL
};

/// The ground: any, with a network between replicas and to the client.
pub(super) const ON_ANY: Parameter = Parameter {
    help: "virtual: the replicas' code in virtual time; processes, threads: real replicas, with a relay between them \
           and to the client that delays what it carries.",
    ..ON_VIRTUAL
};

/// What is on stable storage before a replica promises.
pub(super) const DURABILITY: Parameter = Parameter {
    key: "durability",
    help: "Of processes and threads: crash-stop, memory, async, view (fsync before promising) or sync (before voting as well).",
    default: "memory",
    full: "memory",
};

/// Proposals outstanding at a time, for each point.
pub(super) fn concurrencies(parameters: &Parameters) -> Result<Vec<usize>, LabError> {
    let all: Vec<usize> = parameters.list("concurrent")?;
    if all.iter().all(|concurrent| (1..=200_000).contains(concurrent)) {
        return Ok(all);
    }
    Err(parameters.wrong("concurrent", "accepted: numbers from 1 to 200000, separated by commas"))
}

/// The largest group where all replicas share this machine.
const REAL_SIZE_MAX: usize = 11;

/// The largest group in virtual time, where each replica has a machine of its own: that of Driftwood 2023.
const VIRTUAL_SIZE_MAX: usize = 125;

/// Group sizes.
pub(super) fn sizes(parameters: &Parameters) -> Result<Vec<usize>, LabError> {
    let is_virtual = parameters.declares("on") && parameters.text("on") == Ground::Virtual.to_string();
    let most = if is_virtual { VIRTUAL_SIZE_MAX } else { REAL_SIZE_MAX };
    let all: Vec<usize> = parameters.list("replicas")?;
    if all.iter().all(|size| (1..=most).contains(size) && *size != 2) {
        return Ok(all);
    }
    Err(parameters.wrong("replicas", format!("accepted: 1 and 3 to {most}, separated by commas")))
}

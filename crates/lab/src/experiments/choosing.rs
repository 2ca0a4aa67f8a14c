//! Which arrangement suits which deployment: the figures of `docs/choosing.md`.
//!
//! Each experiment is a kind of deployment. In all of them clients ask all replicas, as those of a service do that does
//! not care who leads; each replica has a machine of its own in virtual time, with the costs that were measured on the
//! real program. The figures show each choice as a multiple of `multipaxos`, the default.

use synod_consensus::{Dissemination, ProtocolKind, raft::Replication};

use super::{
    charts::ratios,
    judging::Rows,
    parameters::{ON_VIRTUAL, REPLICAS, SHORT_WINDOW, sizes},
    points::Field,
    s_paxos::COSTS,
};
use crate::{
    ground::{Asked, Ground, Load, Ordering, Setup, hardware::Costs},
    study::{Experiment, Judgement, LabError, Measured, Parameter, Parameters, Point, Shape},
};

/// What orders, and how batches reach the replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Choice {
    MultiPaxos,
    SequencePaxos,
    Raft,
    Gossip,
    Balanced,
    Ring,
}

impl Choice {
    const ALL: [Choice; 6] = [
        Choice::MultiPaxos,
        Choice::SequencePaxos,
        Choice::Raft,
        Choice::Gossip,
        Choice::Balanced,
        Choice::Ring,
    ];

    /// Its name in series.
    const fn name(self) -> &'static str {
        match self {
            Choice::MultiPaxos => "multipaxos",
            Choice::SequencePaxos => "sequence-paxos",
            Choice::Raft => "raft",
            Choice::Gossip => "raft, gossip-status",
            Choice::Balanced => "multipaxos, balanced",
            Choice::Ring => "ring",
        }
    }

    const fn protocol(self) -> ProtocolKind {
        match self {
            Choice::MultiPaxos | Choice::Balanced => ProtocolKind::MultiPaxos,
            Choice::SequencePaxos => ProtocolKind::SequencePaxos,
            Choice::Raft | Choice::Gossip => ProtocolKind::Raft,
            Choice::Ring => ProtocolKind::Ring,
        }
    }
}

/// What a deployment has.
#[derive(Clone, Copy, Debug)]
struct Deployment {
    replicas: usize,
    topology: &'static str,
    /// Megabits a second of each network card, in each direction.
    megabits: Option<f64>,
    /// Milliseconds of a commit, for which promises and votes wait.
    fsync_ms: Option<f64>,
    value_bytes: usize,
    /// Commands outstanding at a time.
    concurrent: usize,
}

/// Machines beside each other, and commands that are small.
const USUAL: Deployment = Deployment {
    replicas: 3,
    topology: "single-dc",
    megabits: None,
    fsync_ms: None,
    value_bytes: 20,
    concurrent: 100,
};

/// The card of machines whose links are the bottleneck.
const CARD_MEGABITS: f64 = 100.0;

/// Bytes of commands outstanding where links are the bottleneck.
const LARGE_BYTES: usize = 512 << 10;

const CONCURRENT: Parameter = Parameter {
    key: "concurrent",
    help: "Commands outstanding at a time, separated by commas.",
    default: "1,100,3000",
    full: "1,10,100,1000,3000,10000",
};

/// Small commands, by load.
pub const SMALL: Experiment = Experiment {
    name: "choosing-small-values",
    title: "Choosing: small commands, three machines in one place",
    source: "No document: a figure of docs/choosing.md",
    about: "Commands of 20 bytes, three replicas, 0.2 ms from one to another and back; clients ask all replicas, and keep so \
            many commands outstanding together.",
    parameters: &[ON_VIRTUAL, SHORT_WINDOW, COSTS, CONCURRENT],
    headline: "throughput",
    points: |parameters| {
        by_number(parameters, "concurrent", (1.0, 100_000.0), |number| Deployment {
            concurrent: number as usize,
            ..USUAL
        })
    },
    charts: &[
        ratios("Throughput", "throughput", "commands a second", "commands outstanding"),
        ratios("Median latency", "median_ms", "ms", "commands outstanding"),
    ],
    facts: &[],
    shapes: &[
        Shape {
            id: "lone",
            claim: "with one command at a time, multipaxos answers at most 15 % later than the soonest",
            judge: |measured| near_best(measured, Choice::MultiPaxos, Places::First, Metric::Latency, 0.15),
        },
        Shape {
            id: "busy",
            claim: "with the most outstanding, a ring of three orders the most, within 10 %",
            judge: |measured| near_best(measured, Choice::Ring, Places::Last, Metric::Throughput, 0.1),
        },
    ],
};

/// Large commands, by their size.
pub const LARGE: Experiment = Experiment {
    name: "choosing-large-values",
    title: "Choosing: large commands, five machines with slow links",
    source: "No document: a figure of docs/choosing.md",
    about: "Five replicas, each with a network card of 100 Mbit/s in each direction; clients ask all replicas, and keep 512 KiB \
            of commands outstanding together.",
    parameters: &[
        ON_VIRTUAL,
        Parameter { default: "2", full: "10", ..SHORT_WINDOW },
        COSTS,
        Parameter {
            key: "bytes",
            help: "Bytes of a command, separated by commas.",
            default: "1024,8192,65536",
            full: "256,1024,4096,8192,16384,65536",
        },
    ],
    headline: "throughput",
    points: |parameters| {
        by_number(parameters, "bytes", (64.0, 262_144.0), |number| Deployment {
            replicas: 5,
            megabits: Some(CARD_MEGABITS),
            value_bytes: number as usize,
            concurrent: (LARGE_BYTES / number as usize).max(5),
            ..USUAL
        })
    },
    charts: &[
        ratios("Throughput", "throughput", "commands a second", "bytes of a command"),
        ratios("Median latency", "median_ms", "ms", "bytes of a command"),
    ],
    facts: &[],
    shapes: &[Shape {
        id: "large",
        claim: "with commands of 8 KiB and more, a ring orders the most, within 10 %",
        judge: |measured| near_best(measured, Choice::Ring, Places::From(8192.0), Metric::Throughput, 0.1),
    }],
};

/// Replicas far from each other.
pub const WIDE: Experiment = Experiment {
    name: "choosing-wide-area",
    title: "Choosing: three continents",
    source: "No document: a figure of docs/choosing.md",
    about: "Three replicas in Cape Town, Sydney and California, clients in Ireland, which ask all replicas (the topology `geo`); \
            nobody says which replica should lead.",
    parameters: &[
        ON_VIRTUAL,
        Parameter { default: "20", full: "40", ..SHORT_WINDOW },
        COSTS,
        Parameter { default: "10,1000", full: "10,1000,10000", ..CONCURRENT },
    ],
    headline: "median_ms",
    points: |parameters| {
        by_number(parameters, "concurrent", (1.0, 100_000.0), |number| Deployment {
            topology: "geo",
            concurrent: number as usize,
            ..USUAL
        })
    },
    charts: &[
        ratios("Throughput", "throughput", "commands a second", "commands outstanding"),
        ratios("Median latency", "median_ms", "ms", "commands outstanding"),
    ],
    facts: &[],
    shapes: &[Shape {
        id: "wide",
        claim: "a ring, whose decisions visit one replica after the other, answers later than the soonest by a third at \
                least",
        judge: |measured| later(measured, Choice::Ring, (0.0, 1.0 / 3.0)),
    }],
};

/// Disks that take their time.
pub const DISKS: Experiment = Experiment {
    name: "choosing-slow-disks",
    title: "Choosing: disks that take their time",
    source: "No document: a figure of docs/choosing.md",
    about: "Three replicas with --durability sync, 100 commands outstanding; a commit takes so long.",
    parameters: &[
        ON_VIRTUAL,
        Parameter { default: "2", full: "10", ..SHORT_WINDOW },
        COSTS,
        Parameter {
            key: "fsync",
            help: "Milliseconds that a commit takes, separated by commas.",
            default: "0.1,1,10",
            full: "0.1,0.3,1,3,10,30",
        },
    ],
    headline: "median_ms",
    points: |parameters| {
        by_number(parameters, "fsync", (0.001, 1000.0), |number| Deployment {
            fsync_ms: Some(number),
            ..USUAL
        })
    },
    charts: &[
        ratios("Median latency", "median_ms", "ms", "ms of a commit"),
        ratios("Throughput", "throughput", "commands a second", "ms of a commit"),
    ],
    facts: &[],
    shapes: &[
        Shape {
            id: "disks",
            claim: "where a commit takes 10 ms, multipaxos answers as soon as any, within 10 %",
            judge: |measured| {
                near_best(measured, Choice::MultiPaxos, Places::From(10.0), Metric::Latency, 0.1)
            },
        },
        Shape {
            id: "two-commits",
            claim: "with balanced a command waits for one commit more: from commits of 1 ms on it answers later than the soonest \
                    by half at least",
            judge: |measured| later(measured, Choice::Balanced, (1.0, 0.5)),
        },
    ],
};

/// Many replicas.
pub const MANY: Experiment = Experiment {
    name: "choosing-many-replicas",
    title: "Choosing: many replicas",
    source: "No document: a figure of docs/choosing.md",
    about: "Commands of 20 bytes, 1,000 outstanding, replicas in one place.",
    parameters: &[
        ON_VIRTUAL,
        SHORT_WINDOW,
        COSTS,
        Parameter { default: "3,7,11", full: "3,5,7,9,11", ..REPLICAS },
    ],
    headline: "throughput",
    points: by_size,
    charts: &[
        ratios("Throughput", "throughput", "commands a second", "replicas"),
        ratios("Median latency", "median_ms", "ms", "replicas"),
    ],
    facts: &[],
    shapes: &[Shape {
        id: "many",
        claim: "with 11 replicas, multipaxos with balanced orders at least as much as multipaxos does",
        judge: more_than_leader,
    }],
};

fn setup(
    field: &Field<'_>,
    parameters: &Parameters,
    choice: Choice,
    deployment: Deployment,
) -> Result<Setup, LabError> {
    let Deployment { replicas, megabits, topology, .. } = deployment;
    let costs = Costs::named(parameters.text("costs"))?;
    let mut setup = field.machines(replicas, Ordering::of(choice.protocol()), costs, megabits, topology)?;
    if let Some(fsync_ms) = deployment.fsync_ms {
        setup.hardware.costs.fsync_micros = fsync_ms * 1e3;
        setup.durability = synod_storage::Durability::Sync;
    }
    let consensus = &mut setup.settings.consensus;
    if choice == Choice::Balanced {
        consensus.dissemination = Dissemination::Balanced;
    }
    if choice == Choice::Gossip {
        consensus.raft.replication = Replication::GossipStatus;
    }
    Ok(setup)
}

fn add(
    points: &mut Vec<Point>,
    parameters: &Parameters,
    x: f64,
    deployment: Deployment,
) -> Result<(), LabError> {
    let field = Field::new(parameters, &[Ground::Virtual])?;
    let window = parameters.seconds("seconds")?;
    for choice in Choice::ALL {
        let setup = setup(&field, parameters, choice, deployment)?;
        let Deployment { value_bytes, concurrent, .. } = deployment;
        let load = Load { asked: Asked::All, value_bytes, ..Load::new(concurrent, window) };
        points.push(field.point(choice.name(), x, setup, load));
    }
    Ok(())
}

fn by_number(
    parameters: &Parameters,
    key: &'static str,
    (least, most): (f64, f64),
    deployment: impl Fn(f64) -> Deployment,
) -> Result<Vec<Point>, LabError> {
    let mut points = Vec::new();
    for number in parameters.list::<f64>(key)? {
        if !(least..=most).contains(&number) {
            return Err(parameters.wrong(key, format!("accepted: {least} to {most}")));
        }
        add(&mut points, parameters, number, deployment(number))?;
    }
    Ok(points)
}

fn by_size(parameters: &Parameters) -> Result<Vec<Point>, LabError> {
    let mut points = Vec::new();
    for replicas in sizes(parameters)? {
        let deployment = Deployment { replicas, concurrent: 1000, ..USUAL };
        add(&mut points, parameters, replicas as f64, deployment)?;
    }
    Ok(points)
}

/// Where a claim is about.
#[derive(Clone, Copy, Debug)]
enum Places {
    First,
    Last,
    From(f64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Metric {
    Throughput,
    Latency,
}

impl Metric {
    fn of(self, measured: &Measured, choice: Choice, x: f64) -> Option<f64> {
        let metric = if self == Metric::Throughput { "throughput" } else { "median_ms" };
        measured.mean(choice.name(), x, metric).filter(|mean| *mean > 0.0)
    }

    /// How much worse one is than another, as a share of the other.
    fn worse_by(self, one: f64, other: f64) -> f64 {
        if self == Metric::Throughput { 1.0 - one / other } else { one / other - 1.0 }
    }
}

/// The choice that is best at a place, and its value.
fn best(measured: &Measured, metric: Metric, x: f64) -> Option<(Choice, f64)> {
    let all = Choice::ALL.iter().filter_map(|&choice| Some((choice, metric.of(measured, choice, x)?)));
    all.min_by(|(_, one), (_, other)| metric.worse_by(*one, *other).total_cmp(&0.0))
}

fn places(measured: &Measured, which: Places) -> Vec<f64> {
    let all = measured.places(Choice::MultiPaxos.name());
    match which {
        Places::First => all.first().copied().into_iter().collect(),
        Places::Last => all.last().copied().into_iter().collect(),
        Places::From(least) => all.into_iter().filter(|x| *x >= least).collect(),
    }
}

/// Whether a choice is nearly as good as the best.
fn near_best(measured: &Measured, of: Choice, which: Places, metric: Metric, within: f64) -> Judgement {
    let mut rows = Rows::new(&["at", "value", "the best", "its value"]);
    for x in places(measured, which) {
        let (Some(own), Some((other, value))) = (metric.of(measured, of, x), best(measured, metric, x))
        else {
            continue;
        };
        let cells = [format!("{x}"), number(own), other.name().to_owned(), number(value)];
        rows.add(cells, metric.worse_by(own, value) <= within);
    }
    rows.judge(format!("{} against the best", of.name()))
}

/// Whether a choice answers later than the soonest, at places from one on, by a share at least.
fn later(measured: &Measured, of: Choice, (from, by): (f64, f64)) -> Judgement {
    let mut rows = Rows::new(&["at", "median, ms", "the soonest", "its median, ms"]);
    for x in places(measured, Places::From(from)) {
        let metric = Metric::Latency;
        let (Some(own), Some((other, value))) = (metric.of(measured, of, x), best(measured, metric, x))
        else {
            continue;
        };
        let cells = [format!("{x}"), number(own), other.name().to_owned(), number(value)];
        rows.add(cells, metric.worse_by(own, value) >= by);
    }
    rows.judge(format!("{} against the soonest", of.name()))
}

fn more_than_leader(measured: &Measured) -> Judgement {
    let mut rows = Rows::new(&["replicas", "balanced, a second", "leader, a second"]);
    for x in places(measured, Places::From(11.0)) {
        let of = |choice| Metric::Throughput.of(measured, choice, x);
        let (Some(balanced), Some(leader)) = (of(Choice::Balanced), of(Choice::MultiPaxos)) else { continue };
        rows.add([format!("{x}"), number(balanced), number(leader)], balanced >= leader);
    }
    rows.judge("multipaxos with balanced against multipaxos")
}

fn number(value: f64) -> String {
    if value >= 100.0 { format!("{value:.0}") } else { format!("{value:.2}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::Verdict;

    #[test]
    fn the_best_is_found_and_what_is_near_it() {
        let mut measured = Measured::default();
        for (choice, throughput, latency) in
            [(Choice::MultiPaxos, 95.0, 1.0), (Choice::Ring, 100.0, 2.0), (Choice::Raft, 50.0, 1.05)]
        {
            measured.add(choice.name(), 1.0, "throughput", throughput);
            measured.add(choice.name(), 1.0, "median_ms", latency);
        }
        assert_eq!(best(&measured, Metric::Throughput, 1.0), Some((Choice::Ring, 100.0)));
        assert_eq!(best(&measured, Metric::Latency, 1.0), Some((Choice::MultiPaxos, 1.0)));
        let near = |choice, metric| near_best(&measured, choice, Places::First, metric, 0.1).verdict;
        assert_eq!(near(Choice::MultiPaxos, Metric::Throughput), Verdict::Holds);
        assert_eq!(near(Choice::Raft, Metric::Throughput), Verdict::DoesNotHold);
        assert_eq!(near(Choice::Raft, Metric::Latency), Verdict::Holds);
        assert_eq!(later(&measured, Choice::Ring, (0.0, 0.5)).verdict, Verdict::Holds);
        assert_eq!(later(&measured, Choice::Raft, (0.0, 0.5)).verdict, Verdict::DoesNotHold);
    }
}

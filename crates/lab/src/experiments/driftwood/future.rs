//! What the document leaves for the future: an interval between rounds that follows the load, and rounds that are
//! passed on without their entries.

use std::time::Duration;

use super::{COSTS_OF_MANY, FAN_OUT, INTERVAL, TOPOLOGY, WINDOW, Way, closed_loop, setup};
use crate::{
    experiments::{
        charts::lines,
        judging::{Rows, range},
        parameters::{CONCURRENT, ON_VIRTUAL, REPLICAS},
        points::Field,
    },
    ground::{Ground, Load},
    study::{Chart, Experiment, Judgement, LabError, Measured, Parameter, Parameters, Point, Shape},
};

const SIZES: Parameter = Parameter { default: "5,25,51,125", full: "5,25,51,125", ..REPLICAS };

const CHARTS: &[Chart] = &[
    lines("Throughput", "throughput", "commands a second", "replicas"),
    lines("Mean latency", "mean_ms", "ms", "replicas"),
    lines("What the leader sends", "leader_sent", "Mbit/s", "replicas"),
    lines("What a follower sends", "follower_sent", "Mbit/s", "replicas"),
    lines("Messages that the leader exchanges", "leader_messages", "messages a second", "replicas"),
    lines("Use of the leader's processor", "leader_busy", "%", "replicas"),
    lines("Use of a follower's processor", "follower_busy", "%", "replicas"),
];

/// The interval that the leader finds, beside fixed ones.
pub const PACE: Experiment = Experiment {
    name: "driftwood-auto-interval",
    title: "Driftwood: rounds as fast as they come back",
    source: "Driftwood 2023, section 6.2, which asks for a dynamic round interval",
    about: "As driftwood-many-peers: fixed times from one round to the next, and the one that the leader measures \
            (round-interval=auto). Fan-outs are the document's.",
    parameters: &[
        ON_VIRTUAL,
        WINDOW,
        COSTS_OF_MANY,
        TOPOLOGY,
        SIZES,
        Parameter { default: "10", full: "1,10,100", ..CONCURRENT },
        INTERVAL,
        FAN_OUT,
        Parameter {
            key: "intervals",
            help: "Fixed times in microseconds from one round to the next, separated by commas.",
            default: "200,400,800,1600,3200",
            full: "100,200,300,400,600,800,1200,1600,2400,3200,4800",
        },
    ],
    headline: "throughput",
    points: by_interval,
    charts: CHARTS,
    facts: &[],
    shapes: &[
        Shape {
            id: "D30-throughput",
            claim: "with every size and number of clients the leader's own interval orders at least 90 % of what the \
                    best fixed one does",
            judge: |measured| beside_fixed(measured, "throughput", f64::max, |own, best| own >= 0.9 * best),
        },
        Shape {
            id: "D30-latency",
            claim: "and answers at most 20 % later than the soonest",
            judge: |measured| beside_fixed(measured, "mean_ms", f64::min, |own, best| own <= 1.2 * best),
        },
    ],
};

/// Rounds that are passed on without their entries, beside rounds with them.
pub const LAZY: Experiment = Experiment {
    name: "driftwood-lazy-push",
    title: "Driftwood: rounds passed on without their entries",
    source: "Driftwood 2023, section 6.2, which asks for lazy push and for pulling",
    about: "As driftwood-many-peers, with larger commands and network cards of limited rate: each replica passes on \
            rounds with the entries, or with the position of the last one (lazy-push=0), and replicas ask for what \
            they lack. Times from round to round and fan-outs are the document's.",
    parameters: &[
        ON_VIRTUAL,
        WINDOW,
        COSTS_OF_MANY,
        TOPOLOGY,
        SIZES,
        Parameter { default: "10", full: "10", ..CONCURRENT },
        Parameter { key: "value-bytes", help: "Bytes of a command.", default: "4096", full: "4096" },
        Parameter {
            key: "card",
            help: "What each network card carries in each direction, in Mbit/s.",
            default: "1000",
            full: "1000",
        },
        INTERVAL,
        FAN_OUT,
    ],
    headline: "throughput",
    points: by_push,
    charts: CHARTS,
    facts: &[],
    shapes: &[
        Shape {
            id: "D31-bytes",
            claim: "from 25 replicas on, a follower sends at most half of what it does for a command otherwise, \
                    whatever the version",
            judge: |measured| {
                beside_eager(measured, "kB", |series, x| kilobytes(measured, series, x), |ratio| ratio <= 0.5)
            },
        },
        Shape {
            id: "D31-throughput",
            claim: "from 25 replicas on, that orders at least as much, within 5 %",
            judge: |measured| {
                let throughput = |series: &str, x| measured.mean(series, x, "throughput");
                beside_eager(measured, "commands a second", throughput, |ratio| ratio >= 0.95)
            },
        },
    ],
};

/// What the series of the leader's own interval end with.
const AUTO: &str = ", auto";

const WAYS: [Way; 2] = [Way::Replies, Way::Echoes];

fn fixed(way: Way, clients: usize, micros: u64) -> String {
    format!("{}, {clients} clients, {micros} µs", way.name())
}

fn auto(way: Way, clients: usize) -> String {
    format!("{}, {clients} clients{AUTO}", way.name())
}

fn by_interval(parameters: &Parameters) -> Result<Vec<Point>, LabError> {
    let field = Field::new(parameters, &[Ground::Virtual])?;
    let window = parameters.seconds("seconds")?;
    let fixed_ones: Vec<u64> = parameters.list("intervals")?;
    if !fixed_ones.iter().all(|micros| (50..=1_000_000).contains(micros)) {
        return Err(parameters.wrong("intervals", "accepted: 50 to 1000000 µs"));
    }
    field.sweep(|replicas, clients, points| {
        for way in WAYS {
            let mut add = |series, interval| -> Result<(), LabError> {
                let mut setup = setup(&field, parameters, way, replicas)?;
                setup.settings.consensus.raft.round_interval = interval;
                points.push(field.point(series, replicas as f64, setup, closed_loop(clients, window)));
                Ok(())
            };
            for &micros in &fixed_ones {
                add(fixed(way, clients, micros), Some(Duration::from_micros(micros)))?;
            }
            add(auto(way, clients), None)?;
        }
        Ok(())
    })
}

fn pushed(way: Way, lazy: bool) -> String {
    format!("{}, {}", way.name(), if lazy { "lazy" } else { "eager" })
}

fn by_push(parameters: &Parameters) -> Result<Vec<Point>, LabError> {
    let field = Field::new(parameters, &[Ground::Virtual])?;
    let window = parameters.seconds("seconds")?;
    let value_bytes = parameters.count("value-bytes", 1..=1 << 20)? as usize;
    let card = parameters.count("card", 1..=1_000_000)? as f64;
    field.sweep(|replicas, clients, points| {
        for way in WAYS {
            for lazy in [false, true] {
                let mut setup = setup(&field, parameters, way, replicas)?;
                setup.hardware.card.bytes_per_second = Some(card * 1e6 / 8.0);
                setup.settings.consensus.raft.lazy_push = lazy.then_some(0);
                let load = Load { value_bytes, ..closed_loop(clients, window) };
                points.push(field.point(pushed(way, lazy), replicas as f64, setup, load));
            }
        }
        Ok(())
    })
}

/// Compares the leader's own interval with the best fixed one of the same way, by a figure of which `best` says which
/// of two is better; `agrees` is told the leader's own and that one.
fn beside_fixed(
    measured: &Measured,
    metric: &str,
    best: fn(f64, f64) -> f64,
    agrees: fn(f64, f64) -> bool,
) -> Judgement {
    let mut rows = Rows::new(&["way", "replicas", "the leader's own", "best fixed", "own over best"]);
    let mut all = Vec::new();
    for own in measured.series() {
        let Some(way) = own.strip_suffix(AUTO) else { continue };
        for x in measured.places(own) {
            let at = |series: &str| measured.mean(series, x, metric);
            let fixed = measured.series().into_iter().filter(|other| *other != own && other.starts_with(way));
            let fixed: Vec<(f64, &str)> = fixed
                .filter_map(|other| Some((at(other)?, other[way.len()..].trim_start_matches(", "))))
                .collect();
            let (Some(found), Some(there)) = (at(own), fixed.iter().map(|(value, _)| *value).reduce(best))
            else {
                continue;
            };
            let which = fixed.iter().find(|(value, _)| *value == there).map_or("", |(_, which)| which);
            let ratio = found / there.max(f64::MIN_POSITIVE);
            all.push(ratio);
            let cells = [
                way.to_owned(),
                format!("{x}"),
                format!("{found:.2}"),
                format!("{there:.2} ({which})"),
                format!("{ratio:.2}"),
            ];
            rows.add(cells, agrees(found, there));
        }
    }
    let (least, most) = range(&all);
    rows.judge(format!("{least:.2} to {most:.2} of the best fixed one"))
}

/// Compares rounds without entries with rounds that have them, from 25 replicas on.
fn beside_eager(
    measured: &Measured,
    what: &'static str,
    figure: impl Fn(&str, f64) -> Option<f64>,
    agrees: fn(f64) -> bool,
) -> Judgement {
    let mut rows = Rows::new(&["way", "replicas", what, "with entries", "ratio"]);
    let mut all = Vec::new();
    for way in WAYS {
        for x in measured.places(&pushed(way, true)) {
            let (Some(lazy), Some(eager)) = (figure(&pushed(way, true), x), figure(&pushed(way, false), x))
            else {
                continue;
            };
            let ratio = lazy / eager.max(f64::MIN_POSITIVE);
            let cells = [
                way.name().to_owned(),
                format!("{x}"),
                format!("{lazy:.2}"),
                format!("{eager:.2}"),
                format!("{ratio:.2}"),
            ];
            if x >= 25.0 {
                all.push(ratio);
            }
            rows.add(cells, x < 25.0 || agrees(ratio));
        }
    }
    let (least, most) = range(&all);
    rows.judge(format!("{least:.2} to {most:.2} of it"))
}

/// Kilobytes that a follower sends for a command.
fn kilobytes(measured: &Measured, series: &str, x: f64) -> Option<f64> {
    let megabits = measured.mean(series, x, "follower_sent")?;
    Some(megabits * 125.0 / measured.mean(series, x, "throughput")?.max(f64::MIN_POSITIVE))
}

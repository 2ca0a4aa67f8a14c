//! Throughput, latency, and the use of processors by the size of the group.

use std::borrow::Cow::Borrowed;

use super::{
    COSTS_OF_MANY, DOCUMENTS_COSTS, DOCUMENTS_TOPOLOGY, FAN_OUT, INTERVAL, MEASURED_COSTS, TOPOLOGY, WINDOW,
    Way, closed_loop, setup,
};
use crate::{
    experiments::{
        charts::lines,
        judging::Rows,
        parameters::{ON_VIRTUAL, ON_VIRTUAL_OR_NAMESPACES, REPLICAS, concurrencies, sizes},
        points::Field,
        s_paxos::with_figure,
    },
    ground::{Ground, Setup},
    study::{Chart, Experiment, Fact, Judgement, LabError, Measured, Parameter, Parameters, Point, Shape},
};

const SIZES: Parameter =
    Parameter { default: "5,11,25,51,75,101,125", full: "5,11,25,51,75,101,125", ..REPLICAS };
const CLIENTS: Parameter =
    Parameter { default: "10", full: "10", ..crate::experiments::parameters::CONCURRENT };

const CHARTS: &[Chart] = &[
    lines("Throughput", "throughput", "commands a second", "replicas"),
    lines("Mean latency", "mean_ms", "ms", "replicas"),
    lines("Use of the leader's processor", "leader_busy", "%", "replicas"),
    lines("Use of a follower's processor", "follower_busy", "%", "replicas"),
    lines("Messages that the leader exchanges", "leader_messages", "messages a second", "replicas"),
    lines("Messages that a follower exchanges", "follower_messages", "messages a second", "replicas"),
    lines("What the leader sends", "leader_sent", "Mbit/s", "replicas"),
    lines("What a follower sends", "follower_sent", "Mbit/s", "replicas"),
    lines("From the leader's finding out to the others'", "after_leader_ms", "ms (median)", "replicas"),
];

/// With what the real program's work costs.
pub const MEASURED: Experiment = Experiment {
    name: "driftwood-scaling",
    title: "Driftwood: throughput, latency and processors by the number of replicas",
    source: "Driftwood 2023, sections 5.3, 5.6 and 5.7, figures 14, 17 and 19",
    about: "In virtual time each replica has a machine of its own, with the processor costs that were measured on the real \
            program and 0.1 ms to each other machine. Ten clients ask the leader, each with one command of 8 bytes at a time. \
            Unbatched Raft sends each follower a message for each command, as the document's does; batching Raft is \
            the program's default; versions 1 and 2 have the document's time from round to round and fan-out for each \
            size. A bound assumes that nothing waits: clients divided by the time in which entries can reach a \
            majority and the news of that the leader, or what the leader's processor does for a command, whichever is less.",
    parameters: &[
        ON_VIRTUAL_OR_NAMESPACES,
        WINDOW,
        MEASURED_COSTS,
        TOPOLOGY,
        SIZES,
        CLIENTS,
        INTERVAL,
        FAN_OUT,
    ],
    headline: "throughput",
    points,
    charts: CHARTS,
    facts: &[],
    shapes: SHAPES,
};

/// With what sockets to many peers cost as well.
pub const MANY: Experiment = Experiment {
    name: "driftwood-many-peers",
    title: "Driftwood: by the number of replicas, where each message costs a system call as well",
    about: "As driftwood-scaling, and each message costs 4.6 µs at both ends: what a write and a read of 100 bytes on a socket \
            take on the machine of the calibration. With the five replicas that the calibration has at most, that cannot be \
            told from the cost of a burst; with 125, a burst may send 124 messages.",
    parameters: &[ON_VIRTUAL, WINDOW, COSTS_OF_MANY, TOPOLOGY, SIZES, CLIENTS, INTERVAL, FAN_OUT],
    ..MEASURED
};

/// With costs of the document's program.
pub const DOCUMENTS: Experiment = Experiment {
    name: "driftwood-document",
    title: "Driftwood: by the number of replicas, with costs of the document's machine",
    about: "As driftwood-scaling, but a message costs 12.5 µs at both ends however many come together, a command 45 µs, and \
            machines are 25 µs apart: a calibration with which the leader of unbatched Raft reaches what the document's did. \
            Our statuses name each replica with its slot, and an entry has 65 bytes, so rounds cost more bytes than the \
            document's bitmaps.",
    parameters: &[ON_VIRTUAL, WINDOW, DOCUMENTS_COSTS, DOCUMENTS_TOPOLOGY, SIZES, CLIENTS, INTERVAL, FAN_OUT],
    facts: FACTS,
    ..MEASURED
};

const SHAPES: &[Shape] = &[
    Shape {
        id: "aim-throughput",
        claim: "with 125 replicas and 10 clients version 2 with one echo, which is the program's default, orders at least 4 \
                times what unbatched Raft does (the document: 6.7)",
        judge: |measured| gain(measured, Way::Echoes, 125.0, 4.0),
    },
    Shape {
        id: "aim-without-echo",
        claim: "the same without echoes, as in the document",
        judge: |measured| gain(measured, Way::Statuses, 125.0, 4.0),
    },
    Shape {
        id: "aim-processor",
        claim: "with 125 replicas the leader of version 2, with an echo or without, works at most 1.6 times as much as its \
                followers on average (the document: 1.26)",
        judge: leader_over_followers,
    },
    Shape {
        id: "E2a",
        claim: "unbatched Raft's throughput falls as one over the number of followers, within 25 %, from 11 replicas on",
        judge: inverse,
    },
    Shape {
        id: "E2b",
        claim: "version 1 is faster than unbatched Raft at every size, and at least 3.5 times with 125 replicas",
        judge: |measured| gain(measured, Way::Replies, 125.0, 3.5),
    },
    Shape { id: "E2c", claim: "version 2 gains on version 1 from 25 replicas on", judge: gains_on_version_1 },
    Shape {
        id: "E5",
        claim: "the use of its processor by the leader of version 2 does not grow with the group",
        judge: falling_leader,
    },
    Shape {
        id: "E6",
        claim: "in unbatched Raft the others find out after the leader; in version 2 half of them do so within one round of it, \
                before or after",
        judge: discovery,
    },
];

/// A number that the document prints.
const fn fact(way: Way, x: f64, metric: &'static str, value: f64) -> Fact {
    Fact {
        series: Borrowed(way.name()),
        x,
        metric: Borrowed(metric),
        value,
        place: Borrowed("sections A.2 and A.5; a core for each replica"),
    }
}

const FACTS: &[Fact] = &[
    fact(Way::Unbatched, 5.0, "throughput", 6566.4),
    fact(Way::Unbatched, 5.0, "mean_ms", 1.52),
    fact(Way::Unbatched, 5.0, "leader_busy", 88.66),
    fact(Way::Unbatched, 5.0, "follower_busy", 50.32),
    fact(Way::Unbatched, 11.0, "throughput", 3646.57),
    fact(Way::Unbatched, 11.0, "mean_ms", 2.74),
    fact(Way::Unbatched, 11.0, "leader_busy", 99.03),
    fact(Way::Unbatched, 11.0, "follower_busy", 22.61),
    fact(Way::Unbatched, 101.0, "throughput", 375.84),
    fact(Way::Unbatched, 101.0, "mean_ms", 27.28),
    fact(Way::Unbatched, 101.0, "leader_busy", 99.96),
    fact(Way::Unbatched, 101.0, "follower_busy", 1.76),
    fact(Way::Unbatched, 125.0, "throughput", 256.93),
    fact(Way::Unbatched, 125.0, "mean_ms", 38.92),
    fact(Way::Unbatched, 125.0, "leader_busy", 99.98),
    fact(Way::Unbatched, 125.0, "follower_busy", 1.37),
    fact(Way::Replies, 5.0, "throughput", 9837.23),
    fact(Way::Replies, 5.0, "mean_ms", 1.01),
    fact(Way::Replies, 5.0, "leader_busy", 72.06),
    fact(Way::Replies, 5.0, "follower_busy", 65.08),
    fact(Way::Replies, 11.0, "throughput", 7217.69),
    fact(Way::Replies, 11.0, "mean_ms", 1.38),
    fact(Way::Replies, 11.0, "leader_busy", 75.61),
    fact(Way::Replies, 11.0, "follower_busy", 49.64),
    fact(Way::Replies, 101.0, "throughput", 1565.41),
    fact(Way::Replies, 101.0, "mean_ms", 6.38),
    fact(Way::Replies, 101.0, "leader_busy", 87.28),
    fact(Way::Replies, 101.0, "follower_busy", 16.51),
    fact(Way::Replies, 125.0, "throughput", 1244.87),
    fact(Way::Replies, 125.0, "mean_ms", 8.03),
    fact(Way::Replies, 125.0, "leader_busy", 92.58),
    fact(Way::Replies, 125.0, "follower_busy", 14.2),
    fact(Way::Statuses, 5.0, "throughput", 6269.36),
    fact(Way::Statuses, 5.0, "mean_ms", 1.59),
    fact(Way::Statuses, 5.0, "leader_busy", 75.62),
    fact(Way::Statuses, 5.0, "follower_busy", 65.45),
    fact(Way::Statuses, 11.0, "throughput", 4068.22),
    fact(Way::Statuses, 11.0, "mean_ms", 2.45),
    fact(Way::Statuses, 11.0, "leader_busy", 76.82),
    fact(Way::Statuses, 11.0, "follower_busy", 61.33),
    fact(Way::Statuses, 101.0, "throughput", 1932.47),
    fact(Way::Statuses, 101.0, "mean_ms", 5.17),
    fact(Way::Statuses, 101.0, "leader_busy", 55.45),
    fact(Way::Statuses, 101.0, "follower_busy", 43.0),
    fact(Way::Statuses, 125.0, "throughput", 1721.5),
    fact(Way::Statuses, 125.0, "mean_ms", 5.8),
    fact(Way::Statuses, 125.0, "leader_busy", 51.05),
    fact(Way::Statuses, 125.0, "follower_busy", 40.52),
];

fn points(parameters: &Parameters) -> Result<Vec<Point>, LabError> {
    let field = Field::new(parameters, &[Ground::Virtual, Ground::Namespaces])?;
    let window = parameters.seconds("seconds")?;
    let mut points = Vec::new();
    for replicas in sizes(parameters)? {
        for clients in concurrencies(parameters)? {
            for way in Way::ALL {
                let setup = setup(&field, parameters, way, replicas)?;
                let bound = bound(&setup, way, clients);
                let interval =
                    setup.settings.consensus.raft.round_interval.unwrap_or_default().as_secs_f64() * 1e3;
                let point = field.point(way.name(), replicas as f64, setup, closed_loop(clients, window));
                let point = with_figure(point, "interval_ms", interval);
                // What the bound is made of are the costs of virtual machines.
                points.push(if field.is_virtual() { with_figure(point, "bound", bound) } else { point });
            }
        }
    }
    Ok(points)
}

/// Bytes of a message with one command, and of an answer, about.
const ENTRY_BYTES: f64 = 110.0;
const REPLY_BYTES: f64 = 40.0;

/// Commands a second that a group cannot exceed.
fn bound(setup: &Setup, way: Way, clients: usize) -> f64 {
    let costs = &setup.hardware.costs;
    let delay = setup
        .topology
        .as_ref()
        .map_or(0.0, |topology| topology.client_way(0).map_or(0.0, |(there, _)| there.as_secs_f64()));
    let others = setup.replicas as f64 - 1.0;
    let seconds = |bytes: f64| (costs.message_nanos + bytes * costs.byte_nanos) / 1e9;
    let burst = costs.burst_nanos / 1e9;
    // Entries need this many messages one after the other to reach a majority, and this many bring the news back.
    let fan_out = setup.settings.consensus.raft.round_fan_out.map_or(others, f64::from);
    let (there, back) = match way {
        Way::Unbatched | Way::Batching => (1.0, 1.0),
        Way::Replies => (steps(fan_out, others), 1.0),
        Way::Statuses | Way::Echoes => (steps(fan_out, others), steps(fan_out, others)),
    };
    let step = delay + burst + seconds(REPLY_BYTES);
    let latency = 2.0 * delay + costs.request_nanos / 1e9 + burst + (there + back) * step;
    let closed = clients as f64 / latency;
    let leader = match way {
        Way::Unbatched => others * (seconds(ENTRY_BYTES) + seconds(REPLY_BYTES)),
        // All clients' commands can share everything else.
        Way::Batching => others * (seconds(ENTRY_BYTES) + seconds(REPLY_BYTES)) / clients as f64,
        Way::Replies => others * seconds(REPLY_BYTES) / clients as f64,
        Way::Statuses | Way::Echoes => 0.0,
    };
    closed.min(1.0 / (leader + costs.request_nanos / 1e9))
}

/// How many steps it takes until half of the others have heard, if each tells this many.
fn steps(fan_out: f64, others: f64) -> f64 {
    let (mut steps, mut reached, mut last) = (0.0, 0.0, 1.0);
    while reached < (others / 2.0).ceil() && fan_out > 0.0 {
        last *= fan_out;
        reached += last;
        steps += 1.0;
    }
    steps
}

fn gain(measured: &Measured, way: Way, replicas: f64, least: f64) -> Judgement {
    let mut rows = Rows::new(&["replicas", "over unbatched Raft", "bound", "batching Raft over unbatched"]);
    let mut said = String::from("not measured there");
    for x in measured.places(way.name()) {
        let ratio = |way: Way, metric| {
            let unbatched = measured.mean(Way::Unbatched.name(), x, metric).filter(|mean| *mean > 0.0)?;
            Some(measured.mean(way.name(), x, metric)? / unbatched)
        };
        let (Some(gain), Some(bound)) = (ratio(way, "throughput"), ratio(way, "bound")) else { continue };
        let batching = ratio(Way::Batching, "throughput").map_or(String::new(), |it| format!("{it:.2}"));
        let must = if x == replicas { least } else { 0.0 };
        if x == replicas {
            said = format!("{gain:.2} of {bound:.2}");
        }
        rows.add([format!("{x}"), format!("{gain:.2}"), format!("{bound:.2}"), batching], gain >= must);
    }
    rows.judge(format!("with {replicas} replicas {said}"))
}

fn leader_over_followers(measured: &Measured) -> Judgement {
    let mut rows = Rows::new(&["way", "replicas", "leader, %", "followers, %", "ratio"]);
    let mut said = String::new();
    for way in Way::ALL {
        for x in measured.places(way.name()) {
            let mean = |metric| measured.mean(way.name(), x, metric);
            let (Some(leader), Some(follower)) = (mean("leader_busy"), mean("follower_busy")) else {
                continue;
            };
            let ratio = leader / follower.max(f64::MIN_POSITIVE);
            let aim = matches!(way, Way::Statuses | Way::Echoes) && x == 125.0;
            if aim {
                said = [said, format!("{}: {ratio:.2}", way.name())].join(" ");
            }
            let cells = [
                way.name().to_owned(),
                format!("{x}"),
                format!("{leader:.1}"),
                format!("{follower:.1}"),
                format!("{ratio:.2}"),
            ];
            rows.add(cells, !aim || ratio <= 1.6);
        }
    }
    rows.judge(format!("with 125 replicas{said}"))
}

fn inverse(measured: &Measured) -> Judgement {
    let series = Way::Unbatched.name();
    let product = |x: f64| Some(measured.mean(series, x, "throughput")? * (x - 1.0));
    let places: Vec<f64> = measured.places(series).into_iter().filter(|x| *x >= 11.0).collect();
    let products: Vec<f64> = places.iter().filter_map(|&x| product(x)).collect();
    let middle = products.iter().sum::<f64>() / products.len().max(1) as f64;
    let mut rows = Rows::new(&["replicas", "throughput times followers", "of the mean"]);
    for (x, product) in places.iter().zip(&products) {
        let share = product / middle;
        let cells = [format!("{x}"), format!("{product:.0}"), format!("{share:.2}")];
        rows.add(cells, (share - 1.0).abs() <= 0.25);
    }
    rows.judge(format!("{middle:.0} on average"))
}

fn gains_on_version_1(measured: &Measured) -> Judgement {
    let mut rows = Rows::new(&["replicas", "version 2 over version 1"]);
    let mut before = 0.0;
    for x in measured.places(Way::Statuses.name()).into_iter().filter(|x| *x >= 25.0) {
        let mean = |way: Way| measured.mean(way.name(), x, "throughput");
        let (Some(second), Some(first)) = (mean(Way::Statuses), mean(Way::Replies)) else { continue };
        let ratio = second / first.max(f64::MIN_POSITIVE);
        rows.add([format!("{x}"), format!("{ratio:.2}")], ratio >= 0.95 * before);
        before = ratio;
    }
    rows.judge(format!("{before:.2} at the largest size"))
}

fn falling_leader(measured: &Measured) -> Judgement {
    let series = Way::Statuses.name();
    let places = measured.places(series);
    let mut rows = Rows::new(&["replicas", "leader, %"]);
    let mut least = f64::INFINITY;
    for &x in &places {
        let Some(busy) = measured.mean(series, x, "leader_busy") else { continue };
        rows.add([format!("{x}"), format!("{busy:.1}")], busy <= 1.1 * least);
        least = least.min(busy);
    }
    rows.judge(format!("{least:.0} % at least"))
}

fn discovery(measured: &Measured) -> Judgement {
    let mut rows = Rows::new(&["way", "replicas", "5 %, ms", "half, ms", "95 %, ms"]);
    for way in [Way::Unbatched, Way::Statuses] {
        for x in measured.places(way.name()) {
            let mean = |metric| measured.mean(way.name(), x, metric);
            let (Some(least), Some(median), Some(most)) =
                (mean("after_leader_p5_ms"), mean("after_leader_ms"), mean("after_leader_p95_ms"))
            else {
                continue;
            };
            let cells = [
                way.name().to_owned(),
                format!("{x}"),
                format!("{least:.2}"),
                format!("{median:.2}"),
                format!("{most:.2}"),
            ];
            let round = mean("interval_ms").unwrap_or(0.0);
            rows.add(cells, if way == Way::Unbatched { least >= 0.0 } else { median.abs() <= round });
        }
    }
    rows.judge("the others after the leader")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::Verdict;

    #[test]
    fn the_aims_speak_of_125_replicas() {
        let verdicts = |gain_there: f64, busy: f64| {
            let mut measured = Measured::default();
            for (x, gain) in [(5.0, 0.9), (125.0, gain_there)] {
                for (way, throughput) in [(Way::Unbatched, 100.0), (Way::Echoes, 100.0 * gain)] {
                    measured.add(way.name(), x, "throughput", throughput);
                    measured.add(way.name(), x, "bound", throughput);
                    measured.add(way.name(), x, "leader_busy", if x == 125.0 { busy } else { 99.0 });
                    measured.add(way.name(), x, "follower_busy", 10.0);
                }
            }
            (gain(&measured, Way::Echoes, 125.0, 4.0).verdict, leader_over_followers(&measured).verdict)
        };
        assert_eq!(verdicts(4.1, 15.0), (Verdict::Holds, Verdict::Holds));
        assert_eq!(verdicts(3.9, 17.0), (Verdict::DoesNotHold, Verdict::DoesNotHold));
    }

    #[test]
    fn steps_to_a_majority_are_the_logarithm() {
        assert_eq!(
            [(4.0, 2.0), (124.0, 3.0), (124.0, 5.0), (124.0, 124.0)].map(|(n, f)| steps(f, n)),
            [1.0, 4.0, 3.0, 1.0]
        );
    }
}

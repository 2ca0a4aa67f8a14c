//! Unicast Ring Paxos (Benz 2013, chapters 3 to 5): what a ring carries where links are the bottleneck, and what its
//! order, its window and its stores do.
//!
//! The document had machines with a network card of 1 Gbit/s. Here they are virtual, with the costs that `synod lab run
//! calibrate` measured and slower cards, so that the card is what limits; ratios are compared, and shares of the card.

pub mod crashes;
pub mod links;
pub mod order;
pub mod shares;
pub mod window;

use synod_consensus::ProtocolKind;
use synod_storage::Durability;

use super::{
    charts::lines,
    judging::Rows,
    parameters::{ON_VIRTUAL, ON_VIRTUAL_OR_NAMESPACES, REPLICAS, SHORT_WINDOW, sizes},
    points::Field,
    s_paxos::{Arrangement, COSTS, LINK, Regime, Share, bound_of, load, setup, with_figure},
};
use crate::{
    ground::{Ground, Ordering},
    study::{Experiment, Judgement, LabError, Measured, Parameter, Parameters, Point, Shape},
};

/// How commands reach all replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Clients ask the leader of MultiPaxos, which sends bodies to all.
    Leader,
    /// Clients ask the coordinator of a ring.
    RingOfOne,
    /// Clients ask all members of a ring.
    RingOfAll,
}

impl Way {
    const ALL: [Way; 3] = [Way::Leader, Way::RingOfOne, Way::RingOfAll];

    const fn name(self) -> &'static str {
        match self {
            Way::Leader => "leader",
            Way::RingOfOne => "ring, clients at the coordinator",
            Way::RingOfAll => "ring, clients at all",
        }
    }

    fn ordering(self) -> Ordering {
        Ordering::of(if self == Way::Leader { ProtocolKind::MultiPaxos } else { ProtocolKind::Ring })
    }

    fn arrangement(self) -> Arrangement {
        if self == Way::RingOfAll { Arrangement::Forwarded } else { Arrangement::AtLeader }
    }

    /// What the replica with the most to do does for a command.
    fn shares(self, replicas: usize) -> Vec<Share> {
        let n = replicas as f64;
        match self {
            Way::Leader => vec![Share { taken: 1.0, sent: n - 1.0, received: 0.0 }],
            // The coordinator takes commands and sends them on; the others receive and send what they received.
            Way::RingOfOne => vec![
                Share { taken: 1.0, sent: 1.0, received: 0.0 },
                Share { taken: 0.0, sent: 1.0, received: 1.0 },
            ],
            // Each link carries all but the bytes of its receiver's own clients.
            Way::RingOfAll => vec![Share { taken: 1.0 / n, sent: (n - 1.0) / n, received: (n - 1.0) / n }],
        }
    }
}

/// Throughput by the size of the ring.
pub const SIZE: Experiment = Experiment {
    name: "benz-ring-size",
    title: "Ring: throughput by the number of replicas, where cards are the bottleneck",
    source: "Benz 2013, section 4.2, figure 4.5; section 2.3 (R5)",
    about: "Each replica has a network card of 100 Mbit/s in each direction (the document: 1 Gbit/s), and in virtual time a \
            machine of its own with the processor costs that were measured on the real program. Commands have 8 KiB. \
            Clients ask the leader of MultiPaxos, which sends bodies to all; or the coordinator of a ring; or all members of \
            a ring. A bound is what the bodies of commands and the clients leave of the busiest card. Clients share the cards \
            of the replicas that they ask, unlike in the document: so each card takes in every body once, from a client or \
            from the ring, and a ring cannot order more than one card carries, where the document has n/(n-1) of it. Clients \
            of a replica have 128 KiB of commands under way, as many whatever the size; those of the leader together at most \
            what its card sends in half a second.",
    parameters: &[
        ON_VIRTUAL_OR_NAMESPACES,
        Parameter { default: "4", full: "10", ..SHORT_WINDOW },
        COSTS,
        Parameter { default: "3,5,7,11,20", full: "3,5,7,9,11,15,20", ..REPLICAS },
    ],
    headline: "throughput",
    points: points_by_size,
    charts: &[
        lines("Throughput", "throughput", "commands a second", "replicas"),
        lines("Median latency", "median_ms", "ms", "replicas"),
        lines("What the leader sends", "leader_sent", "Mbit/s", "replicas"),
        lines("What a follower sends", "follower_sent", "Mbit/s", "replicas"),
        lines("Messages that the leader exchanges", "leader_messages", "messages a second", "replicas"),
    ],
    facts: &[],
    shapes: &[
        Shape {
            id: "R5",
            claim: "if clients ask all members, throughput is one card whatever the size, within 10 % (the document, whose cards \
                    carry no clients: n/(n-1) of a card)",
            judge: constant_share,
        },
        Shape {
            id: "R5-latency",
            claim: "with as many commands under way at each member whatever the size, the median latency is linear in the \
                    number of members, within 15 %",
            judge: linear_latency,
        },
        Shape {
            id: "ring-gain",
            claim: "with 7 replicas and clients at one replica, a ring orders at least 4 times what a leader does that sends to \
                    all (bound 6)",
            judge: |measured| gain(measured, Way::RingOfOne, 7.0, 4.0),
        },
        Shape {
            id: "ring-gain-all",
            claim: "with 7 replicas, the same for clients at all members",
            judge: |measured| gain(measured, Way::RingOfAll, 7.0, 4.0),
        },
    ],
};

/// Throughput by the size of commands.
pub const VALUES: Experiment = Experiment {
    name: "benz-value-size",
    title: "Ring: throughput and latency by the size of commands",
    source: "Benz 2013, section 4.2, figures 4.2 to 4.4 (R3, R4)",
    about: "A ring of three replicas, each with a network card of 100 Mbit/s in each direction (the document: 1 Gbit/s), and in \
            virtual time with a machine of its own. Clients ask the coordinator, or all members, and have 128 KiB of commands \
            under way at each replica; or, as in the document, those of each member have twenty commands under way, of \
            whatever size.",
    parameters: &[
        ON_VIRTUAL_OR_NAMESPACES,
        Parameter { default: "4", full: "10", ..SHORT_WINDOW },
        COSTS,
        Parameter {
            key: "bytes",
            help: "Bytes of a command, separated by commas.",
            default: "1024,2048,4096,8192,16384,32768",
            full: "512,1024,2048,4096,8192,16384,32768",
        },
    ],
    headline: "goodput",
    points: points_by_value,
    charts: &[
        lines("Bytes of commands", "goodput", "Mbit/s", "bytes of a command"),
        lines("Throughput", "throughput", "commands a second", "bytes of a command"),
        lines("Median latency", "median_ms", "ms", "bytes of a command"),
        lines("Latency within which 99 % of answers come", "p99_ms", "ms", "bytes of a command"),
    ],
    facts: &[],
    shapes: &[
        Shape {
            id: "R3",
            claim: "with commands of 8 KiB, one proposer at the coordinator of a ring of three reaches 90 % of a card",
            judge: |measured| share_of_card(measured, Way::RingOfOne, (0.9, 1.0)),
        },
        Shape {
            id: "R3-rate",
            claim: "with twenty commands under way at each of three members, commands a second fall as one over their size, \
                    within 10 %, from 4 KiB on",
            judge: |measured| by_size(measured, "throughput", |rate, bytes| rate * bytes),
        },
        Shape {
            id: "R3-latency",
            claim: "and mean latency grows as their size, within 10 %, from 4 KiB on",
            judge: |measured| by_size(measured, "mean_ms", |ms, bytes| ms / bytes),
        },
        Shape {
            id: "R4",
            claim: "with clients at all three members it is at least 95 % of a card, which is the bound here (the document: \
                    between 1.0 and 1.5 of a card that carries no clients)",
            judge: |measured| share_of_card(measured, Way::RingOfAll, (0.95, 1.5)),
        },
    ],
};

/// What is kept of accepted values, and where.
pub const STORES: Experiment = Experiment {
    name: "benz-stores",
    title: "Ring: throughput and latency by what is on the disk before a replica votes",
    source: "Benz 2013, section 3.4, figure 3.6; section 4.3.1 (R1)",
    about: "A ring of three replicas without a limit of their cards, 8 KiB a command, clients at all members, which keep few \
            commands under way. The document's stores: none is --durability crash-stop here, which keeps nothing and never \
            restarts; its lists on the heap and its cyclic array are memory, since nothing collects garbage here; deferred \
            writes are async; synchronous ones sync.",
    parameters: &[
        ON_VIRTUAL,
        Parameter { default: "2", full: "10", ..SHORT_WINDOW },
        COSTS,
        Parameter {
            key: "fsync",
            help: "Milliseconds that a commit takes which waits for the disk, separated by commas.",
            default: "1,8",
            full: "0.3,1,3,8",
        },
    ],
    headline: "throughput",
    points: points_by_store,
    charts: &[
        lines("Throughput", "throughput", "commands a second", "ms of a commit"),
        lines("Median latency", "median_ms", "ms", "ms of a commit"),
        lines("Latency within which 99 % of answers come", "p99_ms", "ms", "ms of a commit"),
        lines("Commits of a follower's disk", "follower_commits", "commits a second", "ms of a commit"),
    ],
    facts: &[],
    shapes: &[
        Shape {
            id: "R1a",
            claim: "what keeps nothing and what keeps it in memory order the same, within 10 %",
            judge: |measured| stores(measured, Durability::Memory, Durability::CrashStop, (0.9, 1.1)),
        },
        Shape {
            id: "R1b",
            claim: "on a slow disk (8 ms) a ring that does not wait for it orders at least twice what one does that waits",
            judge: |measured| stores(measured, Durability::Async, Durability::Sync, (2.0, f64::INFINITY)),
        },
        Shape {
            id: "R1c",
            claim: "where votes wait for disks, one commit takes in what several commands wait for, four of the 24 under way \
                    at least: commands a second are those of a commit times commits a second (B40)",
            judge: commits,
        },
    ],
};

/// Commands that the clients of a replica keep under way where the disk is what they wait for.
const FEW: usize = 8;

fn points_by_store(parameters: &Parameters) -> Result<Vec<Point>, LabError> {
    let field = Field::new(parameters, &[Ground::Virtual])?;
    let window = parameters.seconds("seconds")?;
    let mut points = Vec::new();
    for fsync in parameters.list::<f64>("fsync")? {
        if !(0.01..=1000.0).contains(&fsync) {
            return Err(parameters.wrong("fsync", "accepted: 0.01 to 1000 milliseconds"));
        }
        for durability in [Durability::CrashStop, Durability::Memory, Durability::Async, Durability::Sync] {
            let (way, regime) = (Way::RingOfAll, Regime { megabits: None, ..regime(VALUE_BYTES) });
            let mut setup = setup(&field, parameters, 3, way.ordering(), (regime, way.arrangement()))?;
            setup.hardware.costs.fsync_micros = fsync * 1e3;
            setup.durability = durability;
            let load = load(regime, way.arrangement(), 3 * FEW, window);
            points.push(field.point(durability.to_string(), fsync, setup, load));
        }
    }
    Ok(points)
}

/// The throughput with one store over that with another, where a commit takes 8 ms.
fn stores(measured: &Measured, one: Durability, other: Durability, (least, most): (f64, f64)) -> Judgement {
    let at = |of: Durability| measured.mean(&of.to_string(), 8.0, "throughput").filter(|mean| *mean > 0.0);
    let (Some(a), Some(b)) = (at(one), at(other)) else {
        return Judgement::open("commits of 8 ms were not measured");
    };
    let said = format!("{one} over {other}: {:.2} ({a:.0} and {b:.0} a second)", a / b);
    Judgement::of((least..=most).contains(&(a / b)), said)
}

/// Commands that a commit takes in at least, of those that wait.
const LEAST_TAKEN: f64 = 4.0;

/// What a commit takes in of what waits, and how busy disks are with that.
fn commits(measured: &Measured) -> Judgement {
    let mut rows = Rows::new(&[
        "ms of a commit",
        "commits a second",
        "busy",
        "commands a second",
        "commands of a commit",
    ]);
    let series = Durability::Sync.to_string();
    for x in measured.places(&series) {
        let mean = |metric| measured.mean(&series, x, metric);
        let (Some(throughput), Some(commits)) = (mean("throughput"), mean("follower_commits")) else {
            continue;
        };
        let (busy, taken) = (commits * x / 1e3, throughput / commits);
        let cells = [
            format!("{x}"),
            format!("{commits:.0}"),
            format!("{busy:.2}"),
            format!("{throughput:.0}"),
            format!("{taken:.1}"),
        ];
        rows.add(cells, taken >= LEAST_TAKEN);
    }
    rows.judge("commits of a follower's disk, which the votes wait for")
}

/// Bytes of commands that the clients of a replica have under way: enough to fill a card.
const CLIENT_BYTES: usize = 128 << 10;

/// Seconds within which a leader's card sends to all what its clients have under way. What the election asks and
/// answers waits behind that: where it was 1.2 s, with 11 replicas, another replica began to lead, and sent everything
/// again.
const LEADER_SECONDS: f64 = 0.5;

/// The card, with commands of this many bytes.
fn regime(value_bytes: usize) -> Regime {
    Regime { value_bytes, clients: (CLIENT_BYTES / value_bytes).max(1), ..LINK }
}

/// Commands that clients have under way together.
fn under_way(way: Way, regime: Regime, replicas: usize) -> usize {
    let all = regime.clients * replicas;
    if way != Way::Leader {
        return all;
    }
    let copies = (replicas - 1) * regime.value_bytes;
    all.min((CARD * 125e3 * LEADER_SECONDS / copies as f64) as usize).max(1)
}

fn point(
    field: &Field<'_>,
    parameters: &Parameters,
    (way, replicas, value_bytes): (Way, usize, usize),
    x: f64,
) -> Result<Point, LabError> {
    let (regime, window) = (regime(value_bytes), parameters.seconds("seconds")?);
    let setup = setup(field, parameters, replicas, way.ordering(), (regime, way.arrangement()))?;
    let bound = bound_of(&setup.hardware, regime, &way.shares(replicas));
    let load = load(regime, way.arrangement(), under_way(way, regime, replicas), window);
    let point = field.point(way.name(), x, setup, load);
    Ok(with_figure(point, "bound", bound))
}

fn points_by_size(parameters: &Parameters) -> Result<Vec<Point>, LabError> {
    let field = Field::new(parameters, &[Ground::Virtual, Ground::Namespaces])?;
    let mut points = Vec::new();
    for replicas in sizes(parameters)? {
        for way in Way::ALL {
            points.push(point(&field, parameters, (way, replicas, VALUE_BYTES), replicas as f64)?);
        }
    }
    Ok(points)
}

/// The document's size with the best throughput for its latency.
const VALUE_BYTES: usize = 8 << 10;

/// Commands that the clients of each member have under way in the document's experiment.
const DOCUMENTS_CLIENTS: usize = 20;
/// The series of them.
const TWENTY_EACH: &str = "ring, twenty commands at each";

fn points_by_value(parameters: &Parameters) -> Result<Vec<Point>, LabError> {
    let field = Field::new(parameters, &[Ground::Virtual, Ground::Namespaces])?;
    let window = parameters.seconds("seconds")?;
    let mut points = Vec::new();
    for bytes in parameters.list::<usize>("bytes")? {
        if !(64..=256 << 10).contains(&bytes) {
            return Err(parameters.wrong("bytes", "accepted: 64 to 262144 bytes"));
        }
        for way in [Way::RingOfOne, Way::RingOfAll] {
            let point = point(&field, parameters, (way, 3, bytes), bytes as f64)?;
            points.push(with_goodput(point, bytes));
        }
        let (way, regime) = (Way::RingOfAll, Regime { clients: DOCUMENTS_CLIENTS, ..regime(bytes) });
        let setup = setup(&field, parameters, 3, way.ordering(), (regime, way.arrangement()))?;
        let load = load(regime, way.arrangement(), 3 * regime.clients, window);
        points.push(with_goodput(field.point(TWENTY_EACH, bytes as f64, setup, load), bytes));
    }
    Ok(points)
}

/// Adds the bytes of commands that were ordered, in Mbit/s.
fn with_goodput(point: Point, bytes: usize) -> Point {
    let Point { series, x, measure } = point;
    let measure = move |conduct: &crate::study::Conduct| {
        let mut sample = measure(conduct)?;
        let throughput = sample.figures.get("throughput").copied().unwrap_or_default();
        sample.figures.insert("goodput", throughput * bytes as f64 * 8.0 / 1e6);
        Ok(sample)
    };
    Point { series, x, measure: Box::new(measure) }
}

/// Megabits a second of a card.
const CARD: f64 = 100.0;

fn constant_share(measured: &Measured) -> Judgement {
    let series = Way::RingOfAll.name();
    let mut rows = Rows::new(&["replicas", "commands a second", "share of the bound"]);
    for x in measured.places(series) {
        let mean = |metric| measured.mean(series, x, metric);
        let (Some(throughput), Some(bound)) = (mean("throughput"), mean("bound")) else { continue };
        let share = throughput / bound;
        let cells = [format!("{x}"), format!("{throughput:.0}"), format!("{share:.2}")];
        rows.add(cells, (share - 1.0).abs() <= 0.1);
    }
    rows.judge("throughput, of its bound")
}

/// Whether latency over the number of members is the same with all sizes.
fn linear_latency(measured: &Measured) -> Judgement {
    let mut rows = Rows::new(&["clients", "replicas", "median, ms", "ms a replica", "of the mean"]);
    for way in [Way::RingOfOne, Way::RingOfAll] {
        let places = measured.places(way.name());
        let median = |x: f64| measured.mean(way.name(), x, "median_ms");
        let each: Vec<(f64, f64)> = places.into_iter().filter_map(|x| Some((x, median(x)?))).collect();
        if each.len() == 1 {
            return Judgement::open("one size alone says nothing of a trend");
        }
        let mean = each.iter().map(|(x, ms)| ms / x).sum::<f64>() / each.len().max(1) as f64;
        for (x, ms) in each {
            let share = ms / x / mean;
            let figures = [ms, ms / x, share].map(|figure| format!("{figure:.2}"));
            let cells = [&[way.name().to_owned(), format!("{x}")][..], &figures].concat();
            rows.add(cells, (share - 1.0).abs() <= 0.15);
        }
    }
    rows.judge("median latency by the number of members")
}

/// Sizes of commands from which on the card is what limits twenty at each of three members.
const LARGE_BYTES: f64 = 4096.0;

/// Whether a figure follows the size of commands: what `of` makes of the two is the same for all large ones.
fn by_size(measured: &Measured, metric: &'static str, of: fn(f64, f64) -> f64) -> Judgement {
    let mut rows = Rows::new(&["bytes", "measured", "of what the size promises"]);
    let places = measured.places(TWENTY_EACH).into_iter().filter(|bytes| *bytes >= LARGE_BYTES);
    let found = places.filter_map(|bytes| Some((bytes, measured.mean(TWENTY_EACH, bytes, metric)?)));
    let found: Vec<(f64, f64)> = found.collect();
    if found.len() < 2 {
        return Judgement::open("fewer than two sizes say nothing of a trend");
    }
    let mean =
        found.iter().map(|&(bytes, figure)| of(figure, bytes)).sum::<f64>() / found.len().max(1) as f64;
    for (bytes, figure) in found {
        let share = of(figure, bytes) / mean;
        let cells = [format!("{bytes}"), format!("{figure:.1}"), format!("{share:.2}")];
        rows.add(cells, (share - 1.0).abs() <= 0.1);
    }
    rows.judge(metric)
}

fn gain(measured: &Measured, way: Way, replicas: f64, least: f64) -> Judgement {
    let mut rows = Rows::new(&["replicas", "ring over leader", "bound", "share of the bound"]);
    let mut said = Vec::new();
    for x in measured.places(way.name()) {
        let ratio = |metric| {
            let (ring, leader) = (way.name(), Way::Leader.name());
            let leader = measured.mean(leader, x, metric).filter(|mean| *mean > 0.0)?;
            Some(measured.mean(ring, x, metric)? / leader)
        };
        let (Some(ratio), Some(bound)) = (ratio("throughput"), ratio("bound")) else { continue };
        said.push(format!("n={x}: {ratio:.2} of {bound:.2}"));
        let cells =
            [format!("{x}"), format!("{ratio:.2}"), format!("{bound:.2}"), format!("{:.2}", ratio / bound)];
        rows.add(cells, x != replicas || ratio >= least);
    }
    rows.judge(format!("gain of its bound: {}", said.join(", ")))
}

fn share_of_card(measured: &Measured, way: Way, (least, most): (f64, f64)) -> Judgement {
    let at = measured.mean(way.name(), VALUE_BYTES as f64, "goodput");
    at.map_or_else(
        || Judgement::open("commands of 8 KiB were not measured"),
        |goodput| {
            let share = goodput / CARD;
            let said = format!("{goodput:.1} Mbit/s of commands: {share:.2} of a card");
            Judgement::of((least..=most).contains(&share), said)
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::Verdict;

    #[test]
    fn a_gain_is_judged_with_the_size_that_it_speaks_of() {
        let verdict = |ring: f64| {
            let mut measured = Measured::default();
            for (x, ring) in [(3.0, 1.0), (7.0, ring)] {
                for (series, value) in [(Way::Leader, 1.0), (Way::RingOfOne, ring)] {
                    measured.add(series.name(), x, "throughput", value);
                    measured.add(series.name(), x, "bound", value);
                }
            }
            gain(&measured, Way::RingOfOne, 7.0, 4.0).verdict
        };
        assert_eq!((verdict(4.1), verdict(3.9)), (Verdict::Holds, Verdict::DoesNotHold));
    }

    #[test]
    fn a_figure_that_does_not_follow_the_size_is_noticed() {
        let verdicts = |rate: f64, ms: f64| {
            let mut measured = Measured::default();
            for (bytes, rate, ms) in [(1024.0, 1.0, 9.0), (4096.0, 800.0, 4.0), (8192.0, rate, ms)] {
                measured.add(TWENTY_EACH, bytes, "throughput", rate);
                measured.add(TWENTY_EACH, bytes, "mean_ms", ms);
            }
            ["R3-rate", "R3-latency"].map(|id| {
                let shape = VALUES.shapes.iter().find(|shape| shape.id == id).expect("it is there");
                (shape.judge)(&measured).verdict
            })
        };
        assert_eq!(verdicts(400.0, 8.0), [Verdict::Holds; 2]);
        assert_eq!(verdicts(500.0, 6.0), [Verdict::DoesNotHold; 2]);
    }

    #[test]
    fn a_latency_that_is_not_linear_is_noticed() {
        let verdict = |at_seven: f64| {
            let mut measured = Measured::default();
            for (x, ms) in [(3.0, 30.0), (7.0, at_seven)] {
                measured.add(Way::RingOfAll.name(), x, "median_ms", ms);
            }
            linear_latency(&measured).verdict
        };
        assert_eq!((verdict(80.0), verdict(30.0)), (Verdict::Holds, Verdict::DoesNotHold));
        let mut alone = Measured::default();
        alone.add(Way::RingOfAll.name(), 3.0, "median_ms", 30.0);
        assert_eq!(linear_latency(&alone).verdict, Verdict::NotDecided);
    }

    #[test]
    fn disks_that_commit_for_each_command_are_noticed() {
        let verdict = |commits: f64| {
            let mut measured = Measured::default();
            measured.add(&Durability::Sync.to_string(), 8.0, "throughput", 1000.0);
            measured.add(&Durability::Sync.to_string(), 8.0, "follower_commits", commits);
            super::commits(&measured).verdict
        };
        assert_eq!((verdict(120.0), verdict(900.0)), (Verdict::Holds, Verdict::DoesNotHold));
    }

    /// A leader's clients have less under way in large groups, and those of a ring do not.
    #[test]
    fn what_waits_for_a_leaders_card_leaves_soon() {
        let of = |way, replicas| under_way(way, regime(VALUE_BYTES), replicas);
        assert_eq!([3, 7].map(|replicas| of(Way::Leader, replicas)), [48, 112]);
        assert_eq!([of(Way::Leader, 11), of(Way::RingOfAll, 11)], [76, 176]);
    }

    #[test]
    fn a_ring_that_does_not_keep_its_rate_is_noticed() {
        let verdict = |at_seven: f64| {
            let mut measured = Measured::default();
            for (x, throughput) in [(3.0, 2.0), (7.0, at_seven)] {
                measured.add(Way::RingOfAll.name(), x, "throughput", throughput);
                measured.add(Way::RingOfAll.name(), x, "bound", 2.0);
            }
            constant_share(&measured).verdict
        };
        assert_eq!((verdict(1.9), verdict(1.7)), (Verdict::Holds, Verdict::DoesNotHold));
    }
}

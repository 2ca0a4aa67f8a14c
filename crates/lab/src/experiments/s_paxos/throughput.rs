//! Throughput by the size of the group, for each bottleneck.

use super::{
    Arrangement, COSTS, EXECUTION, LINK, ORDERING, PROCESSOR, Regime, bound::bound, load, series, setup,
    with_figure,
};
use crate::{
    experiments::{
        charts::lines,
        judging::Rows,
        parameters::{ON_VIRTUAL, REPLICAS, SHORT_WINDOW, sizes},
        points::Field,
    },
    ground::{Ground, Ordering},
    study::{Chart, Experiment, Judgement, LabError, Measured, Parameter, Parameters, Point, Shape},
};

const REGIMES: [Regime; 3] = [LINK, PROCESSOR, EXECUTION];

/// The experiment, described by its fields.
pub const EXPERIMENT: Experiment = Experiment {
    name: "santos-throughput",
    title: "S-Paxos: throughput by bottleneck and size of the group",
    source: "Santos 2012, section 10.4.1, figures 10.3b, 10.5 and 10.6; section 10.4.4 (H12, H13, H14, H17)",
    about: "Each replica has a machine of its own, in virtual time, with the processor costs that were measured on the real \
            program. Three things are the bottleneck in turn: the network card (100 Mbit/s, commands of 1 KiB; the \
            document: 930 Mbit/s), the processor (commands of 20 bytes), and executing (50 µs a command at every \
            replica), which nothing can spread. The document's third bottleneck, the packets that one core of a kernel \
            handles, is no part of the model: it would have to know how many messages share a packet. \
            Clients are at the leader, which sends bodies to all, as in the document's JPaxos; or at all replicas, \
            which send batches to the leader, which sends bodies to all, or a reference instead to the origin of a batch; or \
            at all replicas, each of which sends its batches to all, as in S-Paxos. A bound is what the bodies of commands, \
            the clients and the execution leave of the busiest resource. The document's record run (H17) had a kernel that \
            spreads packets over cores, so that its limit was not packets but one thread that executes; here packets are \
            no limit anyway, and only the growth is compared (processor).",
    parameters: &[
        ON_VIRTUAL,
        Parameter { default: "1.5", full: "5", ..SHORT_WINDOW },
        COSTS,
        ORDERING,
        Parameter { default: "3,5,7,11", full: "3,5,7,9,11", ..REPLICAS },
    ],
    headline: "throughput",
    points,
    charts: &[
        chart("Throughput", "throughput", "commands a second"),
        chart("Use of the leader's processor", "leader_busy", "%"),
        chart("Use of a follower's processor", "follower_busy", "%"),
        chart("What the leader sends", "leader_sent", "Mbit/s"),
        chart("What a follower sends", "follower_sent", "Mbit/s"),
    ],
    facts: &[],
    shapes: &[
        Shape {
            id: "H14a",
            claim: "where the card is the bottleneck, balanced is at least 1.8 times as fast as clients at the leader with 3 \
                    replicas, and gains more with each size to 7",
            judge: |measured| gain(measured, LINK, &[Arrangement::AtLeader], Some(1.8)),
        },
        Shape {
            id: "H14b",
            claim: "where the processor is the bottleneck, the same",
            judge: |measured| gain(measured, PROCESSOR, &[Arrangement::AtLeader], Some(1.8)),
        },
        Shape {
            id: "H14c",
            claim: "where the card is the bottleneck, balanced gains at least 0.8 of the bound over the best of the three \
                    arrangements in which the leader disseminates",
            judge: |measured| gain(measured, LINK, &Arrangement::BY_LEADER, None),
        },
        Shape {
            id: "H14d",
            claim: "where the processor is the bottleneck, the same",
            judge: |measured| gain(measured, PROCESSOR, &Arrangement::BY_LEADER, None),
        },
        Shape {
            id: "H14e",
            claim: "where execution is the bottleneck, balanced gains nothing and loses at most 10 %",
            judge: |measured| gain(measured, EXECUTION, &Arrangement::BY_LEADER, None),
        },
        Shape {
            id: "H12",
            claim: "with balanced, leader and followers use processor and card alike, within 15 %",
            judge: alike,
        },
        Shape {
            id: "H17",
            claim: "without a limit on packets, balanced is faster with 11 replicas than with 3 (the document: 800,000 against \
                    500,000, which is 1.6 times)",
            judge: record,
        },
    ],
};

/// What the document's figures and text give for S-Paxos over JPaxos.
const DOCUMENT: [(&str, f64, f64); 4] = [
    ("link", 3.0, 800.0 / 400.0),
    ("link", 11.0, 800.0 / 93.0),
    ("processor", 3.0, 200.0 / 75.0),
    ("processor", 11.0, 300.0 / 50.0),
];

const fn chart(title: &'static str, metric: &'static str, y_label: &'static str) -> Chart {
    lines(title, metric, y_label, "replicas")
}

fn points(parameters: &Parameters) -> Result<Vec<Point>, LabError> {
    let field = Field::new(parameters, &[Ground::Virtual])?;
    let window = parameters.seconds("seconds")?;
    let mut points = Vec::new();
    for replicas in sizes(parameters)? {
        for ordering in Ordering::list(parameters, "protocols")? {
            for regime in REGIMES {
                for arrangement in Arrangement::ALL {
                    let setup = setup(&field, parameters, replicas, ordering, (regime, arrangement))?;
                    let bound = bound(&setup.hardware, regime, arrangement, replicas);
                    let load = load(regime, arrangement, regime.clients * replicas, window);
                    let point =
                        field.point(series(regime, ordering, arrangement), replicas as f64, setup, load);
                    points.push(with_figure(point, "bound", bound));
                }
            }
        }
    }
    Ok(points)
}

/// The series of an arrangement with the default ordering.
fn of(regime: Regime, arrangement: Arrangement) -> String {
    format!("{}, {}", regime.name, arrangement.name())
}

/// Balanced over the fastest of other arrangements, and its bound over the best of theirs. With `least` it must be
/// that much with 3 replicas, and more with each size to 7; otherwise 0.8 of what the bounds allow, or 0.9 where they
/// allow nothing.
fn gain(measured: &Measured, regime: Regime, others: &[Arrangement], least: Option<f64>) -> Judgement {
    let balanced = of(regime, Arrangement::Balanced);
    let best = |x: f64, metric: &str| {
        let all = others.iter().filter_map(|other| measured.mean(&of(regime, *other), x, metric));
        all.reduce(f64::max).filter(|mean| *mean > 0.0)
    };
    let mut rows =
        Rows::new(&["replicas", "balanced over the other", "bound", "share of the bound", "document"]);
    let (mut before, mut said) = (0.0, Vec::new());
    for x in measured.places(&balanced) {
        let mean = |metric| measured.mean(&balanced, x, metric);
        let (Some(own), Some(other)) = (mean("throughput"), best(x, "throughput")) else { continue };
        let (Some(own_bound), Some(other_bound)) = (mean("bound"), best(x, "bound")) else { continue };
        let (ratio, bound) = (own / other, own_bound / other_bound);
        let agrees = match least {
            Some(least) => (x > 3.0 || ratio >= least) && (x > 7.0 || ratio > before),
            None if bound < 1.1 => ratio >= 0.9,
            None => ratio >= 0.8 * bound,
        };
        before = ratio;
        let printed = DOCUMENT.iter().find(|(name, size, _)| *name == regime.name && *size == x);
        let printed = printed.map_or(String::new(), |(.., ratio)| format!("{ratio:.1}"));
        said.push(format!("n={x}: {ratio:.2} of {bound:.2}"));
        let share = format!("{:.2}", ratio / bound);
        rows.add([format!("{x}"), format!("{ratio:.2}"), format!("{bound:.2}"), share, printed], agrees);
    }
    rows.judge(format!("gain of its bound: {}", said.join(", ")))
}

fn alike(measured: &Measured) -> Judgement {
    let mut rows = Rows::new(&["of", "replicas", "leader", "follower", "leader over follower"]);
    for (regime, what, of_leader, of_follower) in [
        (PROCESSOR, "processor, %", "leader_busy", "follower_busy"),
        (LINK, "sent, Mbit/s", "leader_sent", "follower_sent"),
        (LINK, "received, Mbit/s", "leader_received", "follower_received"),
    ] {
        let series = of(regime, Arrangement::Balanced);
        for x in measured.places(&series) {
            let mean = |metric| measured.mean(&series, x, metric);
            let (Some(leader), Some(follower)) = (mean(of_leader), mean(of_follower)) else { continue };
            let ratio = leader / follower.max(f64::MIN_POSITIVE);
            let cells = [
                format!("{}: {what}", regime.name),
                format!("{x}"),
                format!("{leader:.1}"),
                format!("{follower:.1}"),
                format!("{ratio:.2}"),
            ];
            rows.add(cells, (0.85..=1.15).contains(&ratio));
        }
    }
    rows.judge("leader against follower")
}

fn record(measured: &Measured) -> Judgement {
    let at = |x| measured.mean(&of(PROCESSOR, Arrangement::Balanced), x, "throughput");
    match (at(3.0), at(11.0)) {
        (Some(small), Some(large)) if small > 0.0 => {
            let ratio = large / small;
            Judgement::of(ratio > 1.0, format!("{large:.0} against {small:.0} a second: {ratio:.2} times"))
        }
        _ => Judgement::open("3 and 11 replicas were not both measured"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::Verdict;

    /// Gains with 3, 5 and 7 replicas.
    fn measured(regime: Regime, gains: [f64; 3]) -> Measured {
        let mut measured = Measured::default();
        for (gain, x) in gains.into_iter().zip([3.0, 5.0, 7.0]) {
            for (arrangement, value, bound) in [
                (Arrangement::AtLeader, 1000.0, 2000.0),
                (Arrangement::Balanced, 1000.0 * gain, 2000.0 * (x - 1.0)),
            ] {
                measured.add(&of(regime, arrangement), x, "throughput", value);
                measured.add(&of(regime, arrangement), x, "bound", bound);
            }
        }
        measured
    }

    #[test]
    fn a_gain_is_judged_by_its_size_and_growth_or_by_its_bound() {
        let verdict =
            |gains, least| gain(&measured(LINK, gains), LINK, &Arrangement::BY_LEADER, least).verdict;
        assert_eq!(verdict([1.9, 3.5, 5.0], Some(1.8)), Verdict::Holds);
        assert_eq!(verdict([1.7, 3.5, 5.0], Some(1.8)), Verdict::DoesNotHold);
        assert_eq!(verdict([1.9, 3.5, 3.4], Some(1.8)), Verdict::DoesNotHold);
        assert_eq!(verdict([1.7, 3.5, 5.0], None), Verdict::Holds);
        assert_eq!(verdict([1.5, 3.5, 5.0], None), Verdict::DoesNotHold);
        let none = gain(&Measured::default(), LINK, &Arrangement::BY_LEADER, None);
        assert_eq!(none.verdict, Verdict::NotDecided);
    }

    #[test]
    fn a_busier_leader_is_noticed() {
        let judge = |leader| {
            let mut measured = Measured::default();
            let series = of(PROCESSOR, Arrangement::Balanced);
            measured.add(&series, 3.0, "leader_busy", leader);
            measured.add(&series, 3.0, "follower_busy", 90.0);
            alike(&measured).verdict
        };
        assert_eq!((judge(95.0), judge(30.0)), (Verdict::Holds, Verdict::DoesNotHold));
    }
}

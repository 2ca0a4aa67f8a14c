//! Replicas in one data centre.

use std::borrow::Cow::Borrowed;

use super::{
    charts,
    judging::{all_ratios, is_near, ratios},
    parameters::{CONCURRENT, DURABILITY, ON_ANY, PROTOCOLS, REPLICAS, VIRTUAL_WINDOW},
    points::Field,
};
use crate::{
    ground::{Ground, Load, Ordering},
    net::Topology,
    study::{Experiment, Fact, Judgement, LabError, Measured, Parameter, Parameters, Point, Shape},
};

/// The experiment, described by its fields.
pub const EXPERIMENT: Experiment = Experiment {
    name: "ng-single-dc",
    title: "One data centre, a machine for each replica",
    source: "Ng 2020, section 6.1, figures 14 and 15 (N82)",
    about: "Three replicas and a client, 0.2 ms and 10 Gbit/s between any two of them. In virtual time each has a \
            processor of its own, which no experiment on this machine can give them. The document finds no significant \
            difference between Sequence Paxos and Raft except at c = 10,000, where Raft was 10 % ahead.",
    parameters: &[
        ON_ANY,
        DURABILITY,
        // Some rounds of 100,000 proposals: the peak answers about 250,000 a second.
        Parameter { default: "2", full: "10", ..VIRTUAL_WINDOW },
        PROTOCOLS,
        Parameter { default: "3", full: "3", ..REPLICAS },
        Parameter { default: "1,1000,10000,100000", full: "1,1000,10000,100000", ..CONCURRENT },
    ],
    headline: "throughput",
    points,
    charts: &[charts::THROUGHPUT, charts::MEAN_LATENCY, charts::MEDIAN_LATENCY],
    facts: &[
        fact("sequence-paxos", 1e4, "throughput", 150_555.0),
        fact("raft", 1e4, "throughput", 165_321.0),
        fact("sequence-paxos", 1.0, "mean_ms", 2.2),
        fact("raft", 1.0, "mean_ms", 2.0),
    ],
    shapes: &[
        Shape {
            id: "D1",
            claim: "Sequence Paxos and Raft have the same throughput at every c, within 10 %",
            judge: same_throughput,
        },
        Shape {
            id: "D2",
            claim: "their median latency is the same at c = 1, within 5 %",
            judge: same_latency,
        },
        Shape {
            id: "D3",
            claim: "throughput grows little from c = 10,000 on (less than 25 % up to c = 100,000)",
            judge: little_growth,
        },
    ],
};

const fn fact(series: &'static str, x: f64, metric: &'static str, value: f64) -> Fact {
    let place = Borrowed("section 6.1; machines of a cloud, flush every 1 ms");
    Fact { series: Borrowed(series), x, metric: Borrowed(metric), value, place }
}

fn points(parameters: &Parameters) -> Result<Vec<Point>, LabError> {
    let field = Field::new(parameters, &[Ground::Virtual, Ground::Threads, Ground::Processes])?;
    field.sweep(|replicas, concurrent, points| {
        for ordering in Ordering::list(parameters, "protocols")? {
            let mut setup = field.setup(replicas, ordering)?;
            setup.topology = Some(Topology::named("single-dc")?);
            let load = Load::new(concurrent, parameters.seconds("seconds")?);
            let size = if replicas == 3 { String::new() } else { format!(", {replicas} replicas") };
            points.push(field.point(format!("{ordering}{size}"), concurrent as f64, setup, load));
        }
        Ok(())
    })
}

fn pair() -> [(&'static str, String, String); 1] {
    [("", "sequence-paxos".to_owned(), "raft".to_owned())]
}

fn same_throughput(measured: &Measured) -> Judgement {
    let ratios = ratios(measured, "throughput", &pair());
    all_ratios(&ratios, "Sequence Paxos over Raft", |ratio| is_near(ratio.value, 1.0, 0.1))
}

fn same_latency(measured: &Measured) -> Judgement {
    let mut ratios = ratios(measured, "median_ms", &pair());
    ratios.retain(|ratio| ratio.x == 1.0);
    all_ratios(&ratios, "median of Sequence Paxos over Raft", |ratio| is_near(ratio.value, 1.0, 0.05))
}

fn little_growth(measured: &Measured) -> Judgement {
    let growth = |series| {
        let at = |x| measured.mean(series, x, "throughput");
        Some((series, at(100_000.0)? / at(10_000.0)?))
    };
    let all: Vec<_> = ["sequence-paxos", "raft"].into_iter().filter_map(growth).collect();
    if all.is_empty() {
        return Judgement::open("c = 10,000 and c = 100,000 were not both measured");
    }
    let text: Vec<_> = all.iter().map(|(series, growth)| format!("{series}: {growth:.2}")).collect();
    let reason = format!("throughput at c = 100,000 over that at c = 10,000: {}", text.join(", "));
    Judgement::of(all.iter().all(|(_, growth)| *growth < 1.25), reason)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::Verdict;

    fn measured(paxos: [f64; 3], raft: [f64; 3]) -> Measured {
        let mut measured = Measured::default();
        for (series, values) in [("sequence-paxos", paxos), ("raft", raft)] {
            for (x, value) in [1.0, 10_000.0, 100_000.0].into_iter().zip(values) {
                measured.add(series, x, "throughput", value);
                measured.add(series, x, "median_ms", x / value * 1e3);
            }
        }
        measured
    }

    #[test]
    fn shapes_tell_equal_from_unequal() {
        let equal = measured([2500.0, 2e5, 2.1e5], [2500.0, 2.1e5, 2.1e5]);
        let unequal = measured([2500.0, 2e5, 4e5], [1000.0, 1e5, 4e5]);
        for judge in [same_throughput, same_latency, little_growth] {
            assert_eq!(
                (judge(&equal).verdict, judge(&unequal).verdict),
                (Verdict::Holds, Verdict::DoesNotHold)
            );
        }
    }
}

//! Measures throughput by the number of outstanding proposals.

use std::borrow::Cow::Borrowed;

use super::{
    charts,
    judging::{all_ratios, not_above, ratios},
    parameters::{CONCURRENT, DURABILITY, ON_PROCESSES, PROTOCOLS, REPLICAS, WINDOW},
    points::Field,
};
use crate::{
    ground::{Ground, Load, Ordering},
    study::{Experiment, Fact, Judgement, LabError, Measured, Parameter, Parameters, Point, Shape},
};

/// The experiment, described by its fields.
pub const EXPERIMENT: Experiment = Experiment {
    name: "ng-throughput",
    title: "Throughput of the protocols, on one machine",
    source: "Ng 2020, section 5.5.1, figure 11 (N79, R5)",
    about: "A closed-loop client keeps c proposals of 8 bytes outstanding at the leader. Answers are counted in a \
            window after a warm-up, where the document divides 20 million proposals by the time that they take; c goes \
            to 100,000 rather than a million, since there are few cores. On processes, a proposal is a \
            put through the whole server with its gRPC; on threads (--set on=threads) it is a command of the log, as in \
            the document.",
    parameters: &[ON_PROCESSES, DURABILITY, WINDOW, PROTOCOLS, REPLICAS, CONCURRENT_HERE],
    headline: "throughput",
    points,
    charts: &[charts::THROUGHPUT],
    facts: &[
        fact("sequence-paxos, 3 replicas", 1e4, 177_310.0),
        fact("raft, 3 replicas", 1e4, 165_190.0),
        fact("sequence-paxos, 3 replicas", 1e6, 261_590.0),
        fact("raft, 3 replicas", 1e6, 241_415.0),
        fact("sequence-paxos, 5 replicas", 1e6, 253_642.0),
        fact("raft, 5 replicas", 1e6, 217_684.0),
    ],
    shapes: &[
        Shape { id: "R5a", claim: "Sequence Paxos and Raft are within 20 % of each other", judge: close },
        Shape {
            id: "R5b",
            claim: "with batching that costs the same however much waits, Raft does not fall behind at the largest c \
                    (Sequence Paxos at most 8 % above, or not significantly)",
            judge: no_gap_at_the_top,
        },
        Shape {
            id: "R5c",
            claim: "with decisions that ride on accepts, Raft is not ahead at moderate c and five replicas \
                    (at most 8 % above, or not significantly)",
            judge: no_gap_at_five,
        },
    ],
};

/// Through gRPC, two cores take seconds for a round of 100,000.
const CONCURRENT_HERE: Parameter = Parameter { default: "1000,10000", ..CONCURRENT };

const fn fact(series: &'static str, x: f64, value: f64) -> Fact {
    let place = Borrowed("section 5.5.1; 16 cores");
    Fact { series: Borrowed(series), x, metric: Borrowed("throughput"), value, place }
}

fn points(parameters: &Parameters) -> Result<Vec<Point>, LabError> {
    let field = Field::new(parameters, &[Ground::Processes, Ground::Threads])?;
    field.sweep(|replicas, concurrent, points| {
        for ordering in Ordering::list(parameters, "protocols")? {
            let series = format!("{ordering}, {replicas} replicas");
            let load = Load::new(concurrent, parameters.seconds("seconds")?);
            points.push(field.point(series, concurrent as f64, field.setup(replicas, ordering)?, load));
        }
        Ok(())
    })
}

/// Sequence Paxos and Raft in groups of a size.
fn pair(replicas: usize) -> (String, String) {
    (format!("sequence-paxos, {replicas} replicas"), format!("raft, {replicas} replicas"))
}

fn close(measured: &Measured) -> Judgement {
    let pairs = [("n=3", pair(3)), ("n=5", pair(5))].map(|(group, (paxos, raft))| (group, paxos, raft));
    let ratios = ratios(measured, "throughput", &pairs);
    all_ratios(&ratios, "Sequence Paxos over Raft", |ratio| (0.8..=1.25).contains(&ratio.value))
}

fn no_gap_at_the_top(measured: &Measured) -> Judgement {
    let (paxos, raft) = pair(3);
    match measured.places(&paxos).last() {
        Some(&x) => not_above(measured, &paxos, &raft, x, "throughput", 0.08),
        None => Judgement::open("Sequence Paxos was not measured with 3 replicas"),
    }
}

fn no_gap_at_five(measured: &Measured) -> Judgement {
    let (paxos, raft) = pair(5);
    not_above(measured, &raft, &paxos, 10_000.0, "throughput", 0.08)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::Verdict;

    fn measured(paxos: &[f64], raft: &[f64]) -> Measured {
        let mut measured = Measured::default();
        for replicas in [3, 5] {
            let (paxos_name, raft_name) = pair(replicas);
            paxos.iter().for_each(|&value| measured.add(&paxos_name, 10_000.0, "throughput", value));
            raft.iter().for_each(|&value| measured.add(&raft_name, 10_000.0, "throughput", value));
        }
        measured
    }

    #[test]
    fn shapes_tell_equal_from_unequal() {
        let equal = measured(&[100.0, 102.0, 98.0], &[99.0, 101.0, 100.0]);
        for judge in [close, no_gap_at_the_top, no_gap_at_five] {
            assert_eq!(judge(&equal).verdict, Verdict::Holds);
        }
        let paxos_ahead = measured(&[150.0, 151.0, 149.0], &[100.0, 101.0, 99.0]);
        assert_eq!(close(&paxos_ahead).verdict, Verdict::DoesNotHold);
        assert_eq!(no_gap_at_the_top(&paxos_ahead).verdict, Verdict::DoesNotHold);
        assert_eq!(no_gap_at_five(&paxos_ahead).verdict, Verdict::Holds);
    }
}

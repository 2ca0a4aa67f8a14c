//! Throughput over proposals outstanding.

use std::borrow::Cow::Borrowed;

use super::*;
use crate::study::{Chart, Fact, Form, Judgement, Measured, Shape};

/// See its fields.
pub const EXPERIMENT: Experiment = Experiment {
    name: "ng-throughput",
    title: "Throughput of the protocols, on one machine",
    source: "Ng 2020, section 5.5.1, figure 11 (N79, R5)",
    about: "A closed-loop client keeps c proposals of 8 bytes outstanding at the leader. Answers are counted in a \
            window after a warm-up, where the document divides 20 million proposals by the time that they take; c goes \
            to 100,000 rather than a million, as the specification proposes for few cores.",
    parameters: &[
        ON_PROCESSES_TOO,
        DURABILITY,
        WINDOW,
        PROTOCOLS,
        Parameter { key: "replicas", help: "Group sizes.", default: "3,5", full: "3,5" },
        Parameter {
            key: "concurrent",
            help: "Proposals outstanding at a time.",
            default: "1000,10000,100000",
            full: "1000,10000,100000",
        },
    ],
    headline: "throughput",
    points,
    charts: &[Chart {
        title: Borrowed("Throughput"),
        metric: Borrowed("throughput"),
        x_label: Borrowed("proposals outstanding"),
        y_label: Borrowed("proposals decided a second"),
        form: Form::LogLines,
    }],
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

const fn fact(series: &'static str, x: f64, value: f64) -> Fact {
    let place = Borrowed("section 5.5.1; 16 cores");
    Fact { series: Borrowed(series), x, metric: Borrowed("throughput"), value, place }
}

fn points(parameters: &Parameters) -> Result<Vec<Point>, LabError> {
    let window = parameters.seconds("seconds")?;
    let mut points = Vec::new();
    for replicas in sizes(parameters)? {
        for concurrent in concurrencies(parameters)? {
            for ordering in Ordering::list(parameters, "protocols")? {
                let series = format!("{ordering}, {replicas} replicas");
                let load = Load::new(concurrent, window);
                points.push(real_point(parameters, series, concurrent as f64, replicas, ordering, load)?);
            }
        }
    }
    Ok(points)
}

/// The places at which both protocols were measured with so many replicas: place, Paxos over Raft.
fn ratios(measured: &Measured, replicas: usize) -> Vec<(f64, f64)> {
    let (paxos, raft) = pair(replicas);
    let places = measured.places(&paxos);
    let ratio =
        |x| Some((x, measured.mean(&paxos, x, "throughput")? / measured.mean(&raft, x, "throughput")?));
    places.into_iter().filter_map(ratio).collect()
}

fn pair(replicas: usize) -> (String, String) {
    (format!("sequence-paxos, {replicas} replicas"), format!("raft, {replicas} replicas"))
}

fn close(measured: &Measured) -> Judgement {
    let all: Vec<_> = [3, 5]
        .into_iter()
        .flat_map(|n| ratios(measured, n).into_iter().map(move |(x, ratio)| (n, x, ratio)))
        .collect();
    if all.is_empty() {
        return Judgement::open("Sequence Paxos and Raft were not measured together");
    }
    let text: Vec<_> = all.iter().map(|(n, x, ratio)| format!("n={n} c={x}: {ratio:.2}")).collect();
    let holds = all.iter().all(|(.., ratio)| (0.8..=1.25).contains(ratio));
    Judgement::of(holds, format!("Sequence Paxos over Raft: {}", text.join(", ")))
}

/// Whether `a` is at most 8 % above `b`, or not significantly above.
fn not_above(measured: &Measured, a: &str, b: &str, x: f64) -> Judgement {
    let mean = |series| measured.mean(series, x, "throughput");
    let (Some(mean_a), Some(mean_b)) = (mean(a), mean(b)) else {
        return Judgement::open(format!("{a} and {b} were not measured together"));
    };
    let gain = mean_a / mean_b - 1.0;
    let significant = measured.difference(a, b, x, "throughput").is_some_and(|it| it.is_significant());
    let word = if significant { "significantly" } else { "not significantly" };
    let reason = format!("{a} is {:+.1} % against {b} at c={x}, {word}", gain * 100.0);
    Judgement::of(gain <= 0.08 || !significant, reason)
}

fn no_gap_at_the_top(measured: &Measured) -> Judgement {
    let (paxos, raft) = pair(3);
    match measured.places(&paxos).last() {
        Some(&x) => not_above(measured, &paxos, &raft, x),
        None => Judgement::open("Sequence Paxos was not measured with 3 replicas"),
    }
}

fn no_gap_at_five(measured: &Measured) -> Judgement {
    let (paxos, raft) = pair(5);
    not_above(measured, &raft, &paxos, 10_000.0)
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
        // A large difference that is mostly noise decides nothing against the claim.
        let noise = measured(&[50.0, 250.0, 150.0], &[100.0, 101.0, 99.0]);
        assert_eq!(no_gap_at_the_top(&noise).verdict, Verdict::Holds);
    }
}

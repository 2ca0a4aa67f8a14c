//! Batched against unbatched.

use std::borrow::Cow::Borrowed;

use super::*;
use crate::study::{Chart, Fact, Form, Judgement, Measured, Shape};

const BATCHED: &str = "batches of up to 64 KiB";
const UNBATCHED: &str = "every proposal its own batch";

/// See its fields.
pub const EXPERIMENT: Experiment = Experiment {
    name: "ng-batching",
    title: "What batching is worth",
    source: "Ng 2020, section 5.3, figure 8 (N75, R1)",
    about: "The document's raw Paxos (messages collected and flushed every millisecond, accepts batched) against its \
            Kompact-Paxos (the same algorithm, each message at once, unbatched). Here: one protocol with batches of up \
            to 64 KiB against the same with a batch for every proposal. Batches are made of what is waiting; there is \
            no flush timer, so batching costs no latency and the curves have no reason to cross.",
    parameters: &[
        ON_THREADS,
        WINDOW,
        Parameter {
            key: "protocol",
            help: "The protocol, as PROTOCOL or PROTOCOL/ELECTION.",
            default: "multipaxos",
            full: "multipaxos",
        },
        Parameter { key: "replicas", help: "Group sizes; the claims are about 3.", default: "3", full: "3" },
        Parameter {
            key: "concurrent",
            help: "Proposals outstanding at a time.",
            default: "1,1000,10000",
            full: "1,1000,10000,100000",
        },
    ],
    headline: "throughput",
    points,
    charts: &[
        Chart {
            title: Borrowed("Throughput"),
            metric: Borrowed("throughput"),
            x_label: Borrowed("proposals outstanding"),
            y_label: Borrowed("proposals decided a second"),
            form: Form::LogLines,
        },
        Chart {
            title: Borrowed("Mean latency"),
            metric: Borrowed("mean_ms"),
            x_label: Borrowed("proposals outstanding"),
            y_label: Borrowed("ms"),
            form: Form::LogLines,
        },
    ],
    facts: &[fact(BATCHED, 2.0), fact(UNBATCHED, 0.17)],
    shapes: &[
        Shape {
            id: "R1a",
            claim: "unbatched has the lower latency at c = 1 (the document: 0.17 ms against 2 ms, its flush timer)",
            judge: latency,
        },
        Shape {
            id: "R1b",
            claim: "batched is at least 3 times faster from c = 10,000 on",
            judge: throughput,
        },
        Shape { id: "R1c", claim: "the curves cross between c = 1 and c about 1,000", judge: crossing },
    ],
};

const fn fact(series: &'static str, value: f64) -> Fact {
    let place = Borrowed("section 5.3; 16 cores");
    Fact { series: Borrowed(series), x: 1.0, metric: Borrowed("mean_ms"), value, place }
}

fn points(parameters: &Parameters) -> Result<Vec<Point>, LabError> {
    check_ground(parameters, &["threads"])?;
    let window = parameters.seconds("seconds")?;
    let ordering: Ordering = parameters.get("protocol")?;
    let mut points = Vec::new();
    for replicas in sizes(parameters)? {
        for concurrent in concurrencies(parameters)? {
            for (series, batch_bytes_max) in [(BATCHED, 64 << 10), (UNBATCHED, 1)] {
                let mut setup = Setup {
                    seed: parameters.get("seed")?,
                    ..Setup::new(replicas, ordering.protocol, ordering.election)
                };
                setup.settings.batch_bytes_max = batch_bytes_max;
                // The document's unbatched client is held up by nothing but c.
                setup.settings.consensus.window_max = 4096;
                let series =
                    if replicas == 3 { series.to_owned() } else { format!("{series}, {replicas} replicas") };
                points.push(threads_point(series, concurrent as f64, setup, Load::new(concurrent, window)));
            }
        }
    }
    Ok(points)
}

fn latency(measured: &Measured) -> Judgement {
    let mean = |series| measured.mean(series, 1.0, "mean_ms");
    let (Some(batched), Some(unbatched)) = (mean(BATCHED), mean(UNBATCHED)) else {
        return Judgement::open("c = 1 was not measured");
    };
    let lower = measured.difference(UNBATCHED, BATCHED, 1.0, "mean_ms").is_some_and(|it| it.interval.1 < 0.0);
    let reason =
        format!("{} unbatched, {} batched; there is no flush timer to wait for", ms(unbatched), ms(batched));
    Judgement::of(lower, reason)
}

/// How much faster batched is at each place from `from` on.
fn gains(measured: &Measured, from: f64) -> Vec<(f64, f64)> {
    let places = measured.places(BATCHED).into_iter().filter(|&x| x >= from);
    let mean = |series, x| measured.mean(series, x, "throughput");
    places.filter_map(|x| Some((x, mean(BATCHED, x)? / mean(UNBATCHED, x)?))).collect()
}

fn describe(gains: &[(f64, f64)]) -> String {
    let text: Vec<_> = gains.iter().map(|(x, gain)| format!("c={x}: {gain:.2}")).collect();
    format!("batched over unbatched: {}", text.join(", "))
}

fn throughput(measured: &Measured) -> Judgement {
    let gains = gains(measured, 10_000.0);
    if gains.is_empty() {
        return Judgement::open("nothing was measured from c = 10,000 on");
    }
    Judgement::of(gains.iter().all(|(_, gain)| *gain >= 3.0), describe(&gains))
}

fn crossing(measured: &Measured) -> Judgement {
    let gains = gains(measured, 1.0);
    let first = gains.iter().find(|(x, _)| *x == 1.0);
    let later = gains.iter().find(|(x, _)| *x >= 1000.0);
    let (Some(first), Some(later)) = (first, later) else {
        return Judgement::open("c = 1 and c = 1,000 were not both measured");
    };
    Judgement::of(first.1 < 0.98 && later.1 > 1.0, describe(&gains))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::Verdict;

    fn measured(batched: [f64; 3], unbatched: [f64; 3]) -> Measured {
        let mut measured = Measured::default();
        for (series, values) in [(BATCHED, batched), (UNBATCHED, unbatched)] {
            for (x, value) in [1.0, 1000.0, 10_000.0].into_iter().zip(values) {
                for run in [0.99, 1.0, 1.01] {
                    measured.add(series, x, "throughput", value * run);
                    measured.add(series, x, "mean_ms", x / value * run);
                }
            }
        }
        measured
    }

    #[test]
    fn the_shapes_of_the_document_hold_for_its_numbers_and_not_for_others() {
        let document = measured([0.5, 500.0, 5000.0], [6.0, 100.0, 1000.0]);
        for shape in EXPERIMENT.shapes {
            assert_eq!((shape.judge)(&document).verdict, Verdict::Holds, "{}", shape.id);
        }
        let flat = measured([6.0, 100.0, 1000.0], [6.0, 100.0, 1000.0]);
        for shape in EXPERIMENT.shapes {
            assert_eq!((shape.judge)(&flat).verdict, Verdict::DoesNotHold, "{}", shape.id);
        }
    }
}

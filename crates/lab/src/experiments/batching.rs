//! Compares batched with unbatched proposals.

use std::borrow::Cow::Borrowed;

use super::{
    charts,
    judging::{Ratio, all_ratios, ms, ratios, words},
    parameters::{CONCURRENT, DURABILITY, ON_THREADS_OR_PROCESSES, REPLICAS, WINDOW},
    points::Field,
};
use crate::{
    ground::{Ground, Load, Ordering},
    study::{Experiment, Fact, Judgement, LabError, Measured, Parameter, Parameters, Point, Shape},
};

const BATCHED: &str = "batches of up to 64 KiB";
const UNBATCHED: &str = "every proposal its own batch";

/// The experiment, described by its fields.
pub const EXPERIMENT: Experiment = Experiment {
    name: "ng-batching",
    title: "What batching is worth",
    source: "Ng 2020, section 5.3, figure 8 (N75, R1)",
    about: "The document's raw Paxos (messages collected and flushed every millisecond, accepts batched) against its \
            Kompact-Paxos (the same algorithm, each message at once, unbatched). Here: one protocol with batches of up \
            to 64 KiB against the same with a batch for every proposal. Batches are made of what is waiting; there is \
            no flush timer, so batching costs no latency and the curves have no reason to cross.",
    parameters: &[
        ON_THREADS_OR_PROCESSES,
        DURABILITY,
        WINDOW,
        Parameter {
            key: "protocol",
            help: "The protocol, as PROTOCOL or PROTOCOL/ELECTION.",
            default: "multipaxos",
            full: "multipaxos",
        },
        Parameter { help: "Group sizes; the claims are about 3.", default: "3", full: "3", ..REPLICAS },
        Parameter { default: "1,1000,10000", full: "1,1000,10000,100000", ..CONCURRENT },
    ],
    headline: "throughput",
    points,
    charts: &[charts::THROUGHPUT, charts::MEAN_LATENCY],
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
    let field = Field::new(parameters, &[Ground::Threads, Ground::Processes])?;
    let ordering: Ordering = parameters.get("protocol")?;
    field.sweep(|replicas, concurrent, points| {
        for (series, batch_bytes_max) in [(BATCHED, 64 << 10), (UNBATCHED, 1)] {
            let mut setup = field.setup(replicas, ordering)?;
            setup.settings.batch_bytes_max = batch_bytes_max;
            // Only c limits the document's unbatched client.
            setup.settings.consensus.window_max = 4096;
            let load = Load::new(concurrent, parameters.seconds("seconds")?);
            let size = if replicas == 3 { String::new() } else { format!(", {replicas} replicas") };
            points.push(field.point(format!("{series}{size}"), concurrent as f64, setup, load));
        }
        Ok(())
    })
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

/// How much faster batched is at each place.
fn gains(measured: &Measured) -> Vec<Ratio> {
    ratios(measured, "throughput", &[("", BATCHED.to_owned(), UNBATCHED.to_owned())])
}

fn throughput(measured: &Measured) -> Judgement {
    let many: Vec<_> = gains(measured).into_iter().filter(|gain| gain.x >= 10_000.0).collect();
    all_ratios(&many, "batched over unbatched from c = 10,000 on", |gain| gain.value >= 3.0)
}

fn crossing(measured: &Measured) -> Judgement {
    let gains = gains(measured);
    let first = gains.iter().find(|gain| gain.x == 1.0);
    let later = gains.iter().find(|gain| gain.x >= 1000.0);
    let (Some(first), Some(later)) = (first, later) else {
        return Judgement::open("c = 1 and c = 1,000 were not both measured");
    };
    let reason = format!("batched over unbatched: {}", words(&gains));
    Judgement::of(first.value < 0.98 && later.value > 1.0, reason)
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

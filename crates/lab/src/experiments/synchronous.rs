//! Compares a Raft that waits at every step, as LogCabin's does, with one that does not.

use std::borrow::Cow::Borrowed;

use synod_consensus::ProtocolKind;

use super::{
    charts,
    judging::{all_ratios, ratios},
    parameters::{CONCURRENT, DURABILITY, ON_THREADS, REPLICAS, WINDOW, concurrencies},
    points::Field,
};
use crate::{
    ground::{Ground, Load, Ordering},
    study::{Experiment, Fact, Judgement, LabError, Measured, Parameter, Parameters, Point, Shape},
};

const SYNCHRONOUS: &str = "synchronous, a thread a request";
const BATCHED: &str = "batched and pipelined";

/// The experiment, described by its fields.
pub const EXPERIMENT: Experiment = Experiment {
    name: "ng-synchronous-raft",
    title: "A synchronous Raft with a thread for every request",
    source: "Ng 2020, section 5.2, figure 7 (N74, N60, R10)",
    about: "The document compares LogCabin, which handles each request in a thread of its own and replicates \
            synchronously, with a batching Raft. Here both are Synod's Raft on threads: one with batches and many \
            messages under way; the other with every proposal an entry and a message of its own, one message under \
            way to each follower, and an operating-system thread for each request that waits for its answer.",
    parameters: &[
        ON_THREADS,
        DURABILITY,
        WINDOW,
        Parameter { default: "3", full: "3", ..REPLICAS },
        Parameter { default: "500,1000,2000,4000", full: "500,1000,2000,4000", ..CONCURRENT },
    ],
    headline: "throughput",
    points,
    charts: &[charts::THROUGHPUT, charts::MEAN_LATENCY],
    facts: &[
        fact(SYNCHRONOUS, 500.0, 17_318.0),
        fact(SYNCHRONOUS, 1000.0, 17_519.0),
        fact(BATCHED, 500.0, 116_069.0),
        fact(BATCHED, 1000.0, 148_146.0),
        fact(BATCHED, 4000.0, 174_213.0),
    ],
    shapes: &[
        Shape {
            id: "R10a",
            claim: "the synchronous one is flat or falls with c (at the largest at most 10 % above the smallest)",
            judge: flat,
        },
        Shape { id: "R10b", claim: "it stays below a third of the batched one at every c", judge: far_below },
    ],
};

const fn fact(series: &'static str, x: f64, value: f64) -> Fact {
    let place = Borrowed("section 5.2, LogCabin and raft-rs; 16 cores");
    Fact { series: Borrowed(series), x, metric: Borrowed("throughput"), value, place }
}

/// Threads that a run may start.
const THREADS_MAX: usize = 8000;

fn points(parameters: &Parameters) -> Result<Vec<Point>, LabError> {
    let field = Field::new(parameters, &[Ground::Threads])?;
    let window = parameters.seconds("seconds")?;
    if concurrencies(parameters)?.iter().any(|&concurrent| concurrent > THREADS_MAX) {
        let why = format!("each is a thread here; accepted: at most {THREADS_MAX}");
        return Err(parameters.wrong("concurrent", why));
    }
    field.sweep(|replicas, concurrent, points| {
        let size = if replicas == 3 { String::new() } else { format!(", {replicas} replicas") };
        let raft = || field.setup(replicas, Ordering::of(ProtocolKind::Raft));
        let x = concurrent as f64;
        points.push(field.point(format!("{BATCHED}{size}"), x, raft()?, Load::new(concurrent, window)));
        let mut setup = raft()?;
        setup.settings.batch_bytes_max = 1;
        setup.settings.consensus.raft.append_bytes_max = 1;
        setup.settings.consensus.raft.inflight_max = 1;
        let load = Load { thread_each: true, ..Load::new(concurrent, window) };
        points.push(field.point(format!("{SYNCHRONOUS}{size}"), x, setup, load));
        Ok(())
    })
}

fn flat(measured: &Measured) -> Judgement {
    let places = measured.places(SYNCHRONOUS);
    let mean = |x: Option<&f64>| Some((*x?, measured.mean(SYNCHRONOUS, *x?, "throughput")?));
    let (Some((few, first)), Some((many, last))) = (mean(places.first()), mean(places.last())) else {
        return Judgement::open("nothing was measured");
    };
    if few == many {
        return Judgement::open("only one number of proposals outstanding was measured");
    }
    Judgement::of(last <= first * 1.1, format!("{first:.0}/s at c={few}, {last:.0}/s at c={many}"))
}

fn far_below(measured: &Measured) -> Judgement {
    let ratios = ratios(measured, "throughput", &[("", SYNCHRONOUS.to_owned(), BATCHED.to_owned())]);
    all_ratios(&ratios, "synchronous over batched", |ratio| ratio.value < 1.0 / 3.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::Verdict;

    #[test]
    fn the_shape_of_the_document_holds_for_its_numbers_and_not_for_others() {
        let judged = |synchronous: [f64; 2]| {
            let mut measured = Measured::default();
            for (x, value, batched) in
                [(500.0, synchronous[0], 116_069.0), (4000.0, synchronous[1], 174_213.0)]
            {
                measured.add(SYNCHRONOUS, x, "throughput", value);
                measured.add(BATCHED, x, "throughput", batched);
            }
            (flat(&measured).verdict, far_below(&measured).verdict)
        };
        assert_eq!(judged([17_318.0, 16_300.0]), (Verdict::Holds, Verdict::Holds));
        assert_eq!(judged([50_000.0, 100_000.0]), (Verdict::DoesNotHold, Verdict::DoesNotHold));
    }
}

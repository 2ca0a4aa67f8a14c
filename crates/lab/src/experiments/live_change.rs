//! A running group changes its protocol.

use std::borrow::Cow::Borrowed;

use super::*;
use crate::study::{Chart, Form, Judgement, Measured, Shape};

/// See its fields.
pub const EXPERIMENT: Experiment = Experiment {
    name: "live-protocol-change",
    title: "A running group changes its protocol",
    source: "No document: what Ng 2020's stop-sign (section 2.4.3) gives to every protocol here",
    about: "A closed-loop client keeps proposals outstanding while the group goes through every protocol and back to \
            the first. In the end all replicas must hold the same values in the same order, all that were \
            acknowledged among them; otherwise the run fails rather than report figures.",
    parameters: &[
        ON_THREADS,
        Parameter {
            key: "seconds",
            help: "How long each protocol orders before the next one takes over.",
            default: "3",
            full: "10",
        },
        Parameter {
            key: "through",
            help: "The protocols, in order, as PROTOCOL or PROTOCOL/ELECTION; all: every protocol, then the first.",
            default: "all",
            full: "all",
        },
        Parameter { key: "replicas", help: "Group sizes.", default: "3", full: "3,5" },
        Parameter {
            key: "concurrent",
            help: "Proposals outstanding at a time.",
            default: "100,10000",
            full: "1,100,10000",
        },
    ],
    headline: "gap_ms",
    points,
    charts: &[
        Chart {
            title: Borrowed("Answers over time"),
            metric: Borrowed("throughput"),
            x_label: Borrowed("seconds"),
            y_label: Borrowed("answers a second"),
            form: Form::Timeline,
        },
        Chart {
            title: Borrowed("Longest time without an answer"),
            metric: Borrowed("gap_ms"),
            x_label: Borrowed("proposals outstanding"),
            y_label: Borrowed("ms"),
            form: Form::Bars,
        },
    ],
    facts: &[],
    shapes: &[
        Shape {
            id: "L1",
            claim: "no acknowledged write is lost, and replicas agree (a run that finds otherwise fails)",
            judge: nothing_lost,
        },
        Shape {
            id: "L2",
            claim: "service is back within two election timeouts (2 s) of each change",
            judge: short_gap,
        },
        Shape { id: "L3", claim: "no proposal times out", judge: no_timeouts },
    ],
};

fn points(parameters: &Parameters) -> Result<Vec<Point>, LabError> {
    check_ground(parameters, &["threads"])?;
    let each = parameters.seconds("seconds")?;
    let mut through = Ordering::list(parameters, "through")?;
    if parameters.text("through") == "all" {
        through.push(through[0]);
    }
    if through.len() == 1 || (through.len() == 2 && through[0] == through[1]) {
        // With one protocol alone there is its other election to go to and come back from.
        let protocol = through[0].protocol;
        let elections = protocol.elections().iter().chain(&protocol.elections()[..1]);
        through = elections.map(|&election| Ordering { protocol, election }).collect();
    }
    let names: Vec<_> = through.iter().map(ToString::to_string).collect();
    let mut points = Vec::new();
    for replicas in sizes(parameters)? {
        for concurrent in concurrencies(parameters)? {
            let first = through[0];
            let setup = Setup {
                seed: parameters.get("seed")?,
                ..Setup::new(replicas, first.protocol, first.election)
            };
            let mut load = Load::new(concurrent, each * through.len() as u32);
            load.acts = (1..)
                .zip(&through[1..])
                .map(|(turn, next)| Act { at: each * turn, what: What::Order(next.protocol, next.election) })
                .collect();
            let series = format!("{}, {replicas} replicas", names.join(" > "));
            points.push(threads_point(series, concurrent as f64, setup, load));
        }
    }
    Ok(points)
}

/// The highest value of a metric over all runs, with where.
fn highest(measured: &Measured, metric: &str) -> Option<(String, f64)> {
    let all = measured.iter().filter(|(_, _, name, _)| *name == metric);
    let all = all.flat_map(|(_, x, _, values)| values.iter().map(move |&value| (format!("c={x}"), value)));
    all.max_by(|a, b| a.1.total_cmp(&b.1))
}

fn nothing_lost(measured: &Measured) -> Judgement {
    let runs: usize =
        measured.iter().filter(|(_, _, name, _)| *name == "gap_ms").map(|(.., v)| v.len()).sum();
    if runs == 0 {
        return Judgement::open("nothing was measured");
    }
    Judgement::of(
        true,
        format!("all replicas held every acknowledged value, in the same order, in {runs} runs"),
    )
}

fn short_gap(measured: &Measured) -> Judgement {
    match highest(measured, "gap_ms") {
        None => Judgement::open("nothing was measured"),
        Some((place, gap)) => Judgement::of(gap <= 2000.0, format!("the longest was {gap:.0} ms ({place})")),
    }
}

fn no_timeouts(measured: &Measured) -> Judgement {
    match highest(measured, "timed_out") {
        None => Judgement::open("nothing was measured"),
        Some((_, most)) => Judgement::of(most == 0.0, format!("at most {most} in a run")),
    }
}

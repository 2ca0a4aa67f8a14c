//! Changes the protocol of a running group.

use super::{
    charts,
    judging::{at_most, no_timeouts},
    parameters::{CONCURRENT, DURABILITY, ON_THREADS, REPLICAS, WINDOW},
    points::Field,
};
use crate::{
    ground::{Act, Ground, Load, Ordering, What},
    study::{Experiment, Judgement, LabError, Measured, Parameter, Parameters, Point, Shape},
};

/// The experiment, described by its fields.
pub const EXPERIMENT: Experiment = Experiment {
    name: "live-protocol-change",
    title: "A running group changes its protocol",
    source: "No document: what Ng 2020's stop-sign (section 2.4.3) gives to every protocol here",
    about: "A closed-loop client keeps proposals outstanding while the group goes through every protocol and back to \
            the first. In the end all replicas must hold the same values in the same order, all that were \
            acknowledged among them; otherwise the run fails rather than report figures.",
    parameters: &[
        ON_THREADS,
        DURABILITY,
        Parameter {
            help: "How long each protocol orders before the next one takes over.",
            default: "3",
            full: "10",
            ..WINDOW
        },
        Parameter {
            key: "through",
            help: "The protocols, in order, as PROTOCOL or PROTOCOL/ELECTION; all: every protocol, then the first.",
            default: "all",
            full: "all",
        },
        Parameter { default: "3", full: "3,5", ..REPLICAS },
        Parameter { default: "100,10000", full: "1,100,10000", ..CONCURRENT },
    ],
    headline: "gap_ms",
    points,
    charts: &[charts::ANSWERS, charts::GAP],
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
    let field = Field::new(parameters, &[Ground::Threads])?;
    let each = parameters.seconds("seconds")?;
    let mut through = Ordering::list(parameters, "through")?;
    if parameters.text("through") == "all" {
        through.push(through[0]);
    }
    if through.windows(2).all(|pair| pair[0] == pair[1]) {
        return Err(parameters.wrong("through", "accepted: at least two that differ, separated by commas"));
    }
    let names: Vec<_> = through.iter().map(ToString::to_string).collect();
    field.sweep(|replicas, concurrent, points| {
        let mut load = Load::new(concurrent, each * through.len() as u32);
        load.acts = (1..)
            .zip(&through[1..])
            .map(|(turn, next)| Act { at: each * turn, what: What::Order(next.protocol, next.election) })
            .collect();
        let series = format!("{}, {replicas} replicas", names.join(" > "));
        points.push(field.point(series, concurrent as f64, field.setup(replicas, through[0])?, load));
        Ok(())
    })
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
    at_most(measured, "gap_ms", |_| true, 2000.0, " ms")
}

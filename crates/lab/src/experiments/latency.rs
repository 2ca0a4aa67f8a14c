//! Measures the latency of one proposal at a time.

use std::borrow::Cow::Borrowed;

use super::{
    judging::{Rows, highest, is_near, ms},
    parameters::{DURABILITY, ON_PROCESSES, PROTOCOLS, REPLICAS, WINDOW, sizes},
    points::Field,
};
use crate::{
    figure::numbers::number,
    ground::{Ground, Load, Ordering},
    study::{Chart, Experiment, Fact, Form, Judgement, LabError, Measured, Parameters, Point, Shape},
};

/// The experiment, described by its fields.
pub const EXPERIMENT: Experiment = Experiment {
    name: "ng-latency",
    title: "Latency, one proposal at a time",
    source: "Ng 2020, section 5.5.3, figure 13 (N81, N70, R7)",
    about: "A client keeps one proposal of 8 bytes outstanding; each latency is recorded. The document's \
            implementations collect what they send and flush it every millisecond, which gives them 2 ms whatever the \
            network; Synod's protocols have no flush timer: the effects of an input leave at once. (`ng-flush` sets the \
            delays that there are.) On processes, the latency is that of a put through the whole server with its gRPC.",
    parameters: &[ON_PROCESSES, DURABILITY, WINDOW, PROTOCOLS, REPLICAS],
    headline: "mean_ms",
    points,
    charts: &[
        chart("Median latency", "median_ms"),
        chart("Mean latency", "mean_ms"),
        chart("Highest latency", "max_ms"),
    ],
    facts: FACTS,
    shapes: &[
        Shape {
            id: "R7a",
            claim: "Sequence Paxos and Raft have the same latency (medians within 20 %)",
            judge: equal,
        },
        Shape {
            id: "R7b",
            claim: "without a flush timer the median stays below its 2 ms, by half at least",
            judge: below_the_timer,
        },
    ],
};

const fn chart(title: &'static str, metric: &'static str) -> Chart {
    Chart {
        title: Borrowed(title),
        metric: Borrowed(metric),
        x_label: Borrowed("replicas"),
        y_label: Borrowed("ms"),
        form: Form::Dots,
    }
}

const FACTS: &[Fact] = &[
    fact("sequence-paxos", 3.0, "median_ms", 2.0),
    fact("raft", 3.0, "median_ms", 2.0),
    fact("sequence-paxos", 5.0, "median_ms", 2.0),
    fact("raft", 5.0, "median_ms", 2.0),
    fact("sequence-paxos", 3.0, "mean_ms", 2.0),
    fact("raft", 3.0, "mean_ms", 2.0),
    fact("sequence-paxos", 5.0, "mean_ms", 2.0),
    fact("raft", 5.0, "mean_ms", 2.1),
    fact("sequence-paxos", 5.0, "max_ms", 16.6),
    fact("raft", 5.0, "max_ms", 12.0),
];

const fn fact(series: &'static str, x: f64, metric: &'static str, value: f64) -> Fact {
    let place = Borrowed("section 5.5.3; 16 cores, flush every 1 ms");
    Fact { series: Borrowed(series), x, metric: Borrowed(metric), value, place }
}

fn points(parameters: &Parameters) -> Result<Vec<Point>, LabError> {
    let field = Field::new(parameters, &[Ground::Processes, Ground::Threads])?;
    let window = parameters.seconds("seconds")?;
    let mut points = Vec::new();
    for replicas in sizes(parameters)? {
        for ordering in Ordering::list(parameters, "protocols")? {
            let setup = field.setup(replicas, ordering)?;
            points.push(field.point(ordering.to_string(), replicas as f64, setup, Load::new(1, window)));
        }
    }
    Ok(points)
}

fn equal(measured: &Measured) -> Judgement {
    let mut rows = Rows::new(&["replicas", "sequence-paxos", "raft"]);
    for replicas in measured.places("raft") {
        let median = |series| measured.mean(series, replicas, "median_ms");
        let (Some(paxos), Some(raft)) = (median("sequence-paxos"), median("raft")) else { continue };
        rows.add([number(replicas), ms(paxos), ms(raft)], is_near(paxos, raft, 0.2));
    }
    rows.judge("medians of the two")
}

fn below_the_timer(measured: &Measured) -> Judgement {
    match highest(measured, "median_ms", |_| true) {
        None => Judgement::open("nothing was measured"),
        Some((median, place)) => {
            Judgement::of(median < 1.0, format!("the highest median is {} ({place} replicas)", ms(median)))
        }
    }
}

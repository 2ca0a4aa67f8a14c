//! Latency of one proposal at a time.

use std::borrow::Cow::Borrowed;

use super::*;
use crate::study::{Chart, Fact, Form, Judgement, Measured, Shape};

/// See its fields.
pub const EXPERIMENT: Experiment = Experiment {
    name: "ng-latency",
    title: "Latency, one proposal at a time",
    source: "Ng 2020, section 5.5.3, figure 13 (N81, N70, R7)",
    about: "A client keeps one proposal of 8 bytes outstanding; each latency is recorded. The document's \
            implementations collect what they send and flush it every millisecond, which gives them 2 ms whatever the \
            network; Synod's protocols have no flush timer: the effects of an input leave at once.",
    parameters: &[
        ON_PROCESSES_TOO,
        DURABILITY,
        WINDOW,
        PROTOCOLS,
        Parameter { key: "replicas", help: "Group sizes.", default: "3,5", full: "3,5" },
    ],
    headline: "mean_ms",
    points,
    charts: &[
        Chart {
            title: Borrowed("Median latency"),
            metric: Borrowed("median_ms"),
            x_label: Borrowed("replicas"),
            y_label: Borrowed("ms"),
            form: Form::Bars,
        },
        Chart {
            title: Borrowed("Mean latency"),
            metric: Borrowed("mean_ms"),
            x_label: Borrowed("replicas"),
            y_label: Borrowed("ms"),
            form: Form::Bars,
        },
        Chart {
            title: Borrowed("Highest latency"),
            metric: Borrowed("max_ms"),
            x_label: Borrowed("replicas"),
            y_label: Borrowed("ms"),
            form: Form::Bars,
        },
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
            claim: "without a flush timer the median stays far below its 2 ms",
            judge: below_the_timer,
        },
    ],
};

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
    let window = parameters.seconds("seconds")?;
    let mut points = Vec::new();
    for replicas in sizes(parameters)? {
        for ordering in Ordering::list(parameters, "protocols")? {
            let load = Load::new(1, window);
            points.push(real_point(
                parameters,
                ordering.to_string(),
                replicas as f64,
                replicas,
                ordering,
                load,
            )?);
        }
    }
    Ok(points)
}

fn equal(measured: &Measured) -> Judgement {
    let mut reasons = Vec::new();
    let mut all = true;
    for replicas in measured.places("raft") {
        let median = |series| measured.mean(series, replicas, "median_ms");
        let (Some(paxos), Some(raft)) = (median("sequence-paxos"), median("raft")) else { continue };
        all &= (paxos / raft - 1.0).abs() <= 0.2;
        reasons.push(format!("{replicas} replicas: {} against {}", ms(paxos), ms(raft)));
    }
    if reasons.is_empty() {
        return Judgement::open("Sequence Paxos and Raft were not measured together");
    }
    Judgement::of(all, reasons.join("; "))
}

fn below_the_timer(measured: &Measured) -> Judgement {
    let places = measured
        .series()
        .into_iter()
        .flat_map(|series| measured.places(series).into_iter().map(move |x| (series, x)));
    let medians = places.filter_map(|(series, x)| Some((series, x, measured.mean(series, x, "median_ms")?)));
    let Some((series, x, highest)) = medians.max_by(|a, b| a.2.total_cmp(&b.2)) else {
        return Judgement::open("nothing was measured");
    };
    Judgement::of(highest < 1.0, format!("the highest median is {} ({series}, {x} replicas)", ms(highest)))
}

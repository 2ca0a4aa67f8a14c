//! The time from one round to the next, and the fan-out, with 125 replicas.

use std::time::Duration;

use super::{
    DOCUMENTS_COSTS, DOCUMENTS_TOPOLOGY, FAN_OUT, INTERVAL, MEASURED_COSTS, TOPOLOGY, WINDOW, Way, charts,
    closed_loop, setup,
};
use crate::{
    experiments::{
        judging::{Rows, range},
        parameters::{CONCURRENT, ON_VIRTUAL, REPLICAS, concurrencies, sizes},
        points::Field,
    },
    ground::Ground,
    study::{Chart, Experiment, Judgement, LabError, Measured, Parameter, Parameters, Point, Shape},
};

const INTERVALS: Parameter = Parameter {
    key: "intervals",
    help: "Microseconds from one round to the next, separated by commas.",
    default: "400,800,1600,3500",
    full: "400,600,800,1000,1500,2000,2500,3500,5000,6000",
};
const FAN_OUTS: Parameter = Parameter {
    key: "fan-outs",
    help: "To how many replicas each sends a round, separated by commas.",
    default: "2,3,5",
    full: "2,3,4,5",
};

const BY_INTERVAL: &[Chart] = &charts("µs from round to round");

/// With what the real program's work costs.
pub const MEASURED: Experiment = Experiment {
    name: "driftwood-rounds",
    title: "Driftwood: throughput by the time from round to round and by fan-out",
    source: "Driftwood 2023, section A.1 (E1), for version 2 as well",
    about: "As driftwood-scaling, with 125 replicas. The document has such a table for version 1 only.",
    parameters: &[
        ON_VIRTUAL,
        WINDOW,
        MEASURED_COSTS,
        TOPOLOGY,
        Parameter { default: "125", full: "125", ..REPLICAS },
        Parameter { default: "10", full: "10", ..CONCURRENT },
        INTERVAL,
        FAN_OUT,
        INTERVALS,
        FAN_OUTS,
    ],
    headline: "throughput",
    points,
    charts: BY_INTERVAL,
    facts: &[],
    shapes: &[Shape {
        id: "E1",
        claim: "the best time of version 1 is longer than that of version 2: its leader has to take in all answers of a round",
        judge: best,
    }],
};

/// With costs of the document's program.
pub const DOCUMENTS: Experiment = Experiment {
    name: "driftwood-document-rounds",
    title: "Driftwood: by the time from round to round and by fan-out, with costs of the document's machine",
    about: "As driftwood-document, with 125 replicas. The document has such a table for version 1 only.",
    parameters: &[
        ON_VIRTUAL,
        WINDOW,
        DOCUMENTS_COSTS,
        DOCUMENTS_TOPOLOGY,
        Parameter { default: "125", full: "125", ..REPLICAS },
        Parameter { default: "10", full: "10", ..CONCURRENT },
        INTERVAL,
        FAN_OUT,
        INTERVALS,
        FAN_OUTS,
    ],
    ..MEASURED
};

const WAYS: [Way; 3] = [Way::Replies, Way::Statuses, Way::Echoes];

fn series(way: Way, fan_out: u8) -> String {
    format!("{}, fan-out {fan_out}", way.name())
}

fn points(parameters: &Parameters) -> Result<Vec<Point>, LabError> {
    let field = Field::new(parameters, &[Ground::Virtual])?;
    let window = parameters.seconds("seconds")?;
    let fan_outs: Vec<u8> = parameters.list("fan-outs")?;
    let mut points = Vec::new();
    for replicas in sizes(parameters)? {
        for clients in concurrencies(parameters)? {
            for micros in parameters.list::<u64>("intervals")? {
                if !(50..=1_000_000).contains(&micros) {
                    return Err(parameters.wrong("intervals", "accepted: 50 to 1000000 µs"));
                }
                for way in WAYS {
                    for &fan_out in &fan_outs {
                        let mut setup = setup(&field, parameters, way, replicas)?;
                        setup.settings.consensus.raft.round_interval = Some(Duration::from_micros(micros));
                        setup.settings.consensus.raft.round_fan_out = Some(fan_out.max(1));
                        let load = closed_loop(clients, window);
                        points.push(field.point(series(way, fan_out), micros as f64, setup, load));
                    }
                }
            }
        }
    }
    Ok(points)
}

fn best(measured: &Measured) -> Judgement {
    let mut rows = Rows::new(&["fan-out", "version 1, µs", "version 2, µs"]);
    let mut all = Vec::new();
    for fan_out in 1..=124 {
        let best = |way| {
            let series = series(way, fan_out);
            let at = |x: f64| Some((measured.mean(&series, x, "throughput")?, x));
            measured.places(&series).into_iter().filter_map(at).max_by(|a, b| a.0.total_cmp(&b.0))
        };
        let (Some(first), Some(second)) = (best(Way::Replies), best(Way::Statuses)) else { continue };
        all.extend([first.0, second.0]);
        let cell = |best: (f64, f64)| format!("{} ({:.0}/s)", best.1, best.0);
        rows.add([format!("{fan_out}"), cell(first), cell(second)], first.1 > second.1);
    }
    let (least, most) = range(&all);
    rows.judge(format!("best throughputs {least:.0} to {most:.0}"))
}

//! Response time by the number of clients.

use super::{Arrangement, COSTS, ORDERING, PROCESSOR, load, series, setup};
use crate::{
    experiments::{
        charts,
        judging::Rows,
        parameters::{CONCURRENT, ON_VIRTUAL, REPLICAS, SHORT_WINDOW},
        points::Field,
    },
    figure::numbers::number,
    ground::{Ground, Ordering},
    study::{Experiment, Judgement, LabError, Measured, Parameter, Parameters, Point, Shape},
};

/// The experiment, described by its fields.
pub const EXPERIMENT: Experiment = Experiment {
    name: "santos-response-time",
    title: "S-Paxos: response time by the number of clients",
    source: "Santos 2012, section 10.4.2, figures 10.3a, 10.4 and 10.7 (H15)",
    about: "Closed-loop clients with commands of 20 bytes, three replicas with a processor each, in virtual time with measured \
            costs. The document: about 13 ms with JPaxos up to 1,000 clients, from where on it deteriorates fast; \
            about 20 ms with S-Paxos, and much better at high load. Its batches wait up to a time for more commands; here \
            they are made of what is waiting.",
    parameters: &[
        ON_VIRTUAL,
        SHORT_WINDOW,
        COSTS,
        ORDERING,
        Parameter { default: "3", full: "3,5", ..REPLICAS },
        Parameter {
            default: "1,10,100,1000,4000",
            full: "1,3,10,30,100,300,1000,2000,4000,8000",
            ..CONCURRENT
        },
    ],
    headline: "throughput",
    points,
    charts: &[charts::MEAN_LATENCY, charts::MEDIAN_LATENCY, charts::THROUGHPUT],
    facts: &[],
    shapes: &[
        Shape {
            id: "H15a",
            claim: "with one client at a time, balanced answers at most one round trip (0.2 ms) later than when the same replicas \
                    forward to the leader",
            judge: |measured| little_later(measured, Arrangement::Forwarded),
        },
        Shape {
            id: "H15f",
            claim: "with one client at a time, balanced answers at most one round trip (0.2 ms) later than with the client at the \
                    leader (the document: up to 10 ms later at low load)",
            judge: |measured| little_later(measured, Arrangement::AtLeader),
        },
        Shape {
            id: "H15b",
            claim: "with the most clients, balanced answers sooner than with clients at the leader (the document: much sooner)",
            judge: sooner_under_load,
        },
    ],
};

fn points(parameters: &Parameters) -> Result<Vec<Point>, LabError> {
    let field = Field::new(parameters, &[Ground::Virtual])?;
    let window = parameters.seconds("seconds")?;
    field.sweep(|replicas, concurrent, points| {
        for ordering in Ordering::list(parameters, "protocols")? {
            for arrangement in Arrangement::ALL {
                let setup = setup(&field, parameters, replicas, ordering, (PROCESSOR, arrangement))?;
                let load = load(PROCESSOR, arrangement, concurrent, window);
                let name = format!("{}, {replicas} replicas", series(PROCESSOR, ordering, arrangement));
                points.push(field.point(name, concurrent as f64, setup, load));
            }
        }
        Ok(())
    })
}

fn of(arrangement: Arrangement) -> String {
    format!("{}, {}, 3 replicas", PROCESSOR.name, arrangement.name())
}

fn little_later(measured: &Measured, other: Arrangement) -> Judgement {
    let mean = |arrangement| measured.mean(&of(arrangement), 1.0, "mean_ms");
    let (Some(own), Some(other)) = (mean(Arrangement::Balanced), mean(other)) else {
        return Judgement::open("one client was not measured");
    };
    Judgement::of(own <= other + 0.2, format!("{own:.3} ms against {other:.3} ms"))
}

fn sooner_under_load(measured: &Measured) -> Judgement {
    let mut rows = Rows::new(&["c", "balanced, ms", "clients at the leader, ms"]);
    let Some(x) = measured.places(&of(Arrangement::Balanced)).last().copied() else {
        return Judgement::open("nothing was measured");
    };
    let mean = |arrangement| measured.mean(&of(arrangement), x, "mean_ms");
    let (Some(own), Some(other)) = (mean(Arrangement::Balanced), mean(Arrangement::AtLeader)) else {
        return Judgement::open("the two were not measured together");
    };
    rows.add([number(x), format!("{own:.2}"), format!("{other:.2}")], own < other);
    rows.judge(format!("{own:.2} ms against {other:.2} ms with {} clients", number(x)))
}

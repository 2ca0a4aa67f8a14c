//! Replicas on two sides of an ocean.

use super::{
    charts,
    judging::{Rows, is_near, ms},
    parameters::{CONCURRENT, DURABILITY, ON_ANY, VIRTUAL_WINDOW, concurrencies},
    points::Field,
    wide_area::{PLACEABLE, load, placeable, spread_out},
};
use crate::{
    figure::numbers::number,
    ground::Ground,
    net::Topology,
    study::{Experiment, Judgement, LabError, Measured, Parameter, Parameters, Point, Shape},
};

/// The experiment, described by its fields.
pub const EXPERIMENT: Experiment = Experiment {
    name: "ng-trans-pacific",
    title: "Two sides of the Pacific, a slow minority",
    source: "Ng 2020, section 6.3, figures 20 and 21 (N82, R9)",
    about: "Three replicas and the client are in California, two replicas in Sydney. With the leader in California the \
            majority is near; with the leader in Sydney every decision crosses the ocean twice. The series without \
            Sydney has only the three replicas in California, to show what the far ones cost.",
    parameters: &[
        ON_ANY,
        DURABILITY,
        PLACEABLE,
        VIRTUAL_WINDOW,
        Parameter { default: "1,100,10000", full: "1,100,1000,10000,100000", ..CONCURRENT },
    ],
    headline: "throughput",
    points,
    charts: &[charts::THROUGHPUT, charts::MEDIAN_LATENCY],
    facts: &[],
    shapes: &[
        Shape {
            id: "R9a",
            claim: "with the majority near the client, the two far replicas cost less than 10 % at c = 1",
            judge: far_ones_cost_nothing,
        },
        Shape {
            id: "R9b",
            claim: "with the leader in the far site the latency is about 284 ms (within 5 %)",
            judge: far_leader,
        },
    ],
};

/// The three replicas in California alone.
const NEAR: &str = "about = 'The three replicas in California alone.'\nreplicas = ['california']\n\
                    client = 'california'\n[[link]]\nfrom = 'california'\nto = 'california'\n\
                    delay-ms = 0.15\nmegabits-per-second = 10000";

fn points(parameters: &Parameters) -> Result<Vec<Point>, LabError> {
    let field = Field::new(parameters, &[Ground::Virtual, Ground::Threads, Ground::Processes])?;
    let both = Topology::named("trans-pacific")?;
    let near = Topology::parse("california", NEAR)?;
    let mut points = Vec::new();
    for concurrent in concurrencies(parameters)? {
        for ordering in placeable(parameters)? {
            for (name, topology, replicas, leader) in [
                ("leader in california", &both, 5, 4),
                ("leader in sydney", &both, 5, 1),
                ("leader in california, without sydney", &near, 3, 2),
            ] {
                let mut setup = field.setup(replicas, ordering)?;
                spread_out(&mut setup, topology.clone(), Some(leader));
                let load = load(parameters, concurrent)?;
                points.push(field.point(format!("{ordering}, {name}"), concurrent as f64, setup, load));
            }
        }
    }
    Ok(points)
}

fn names(measured: &Measured, suffix: &str) -> Vec<String> {
    let all = measured.series().into_iter().filter(|series| series.ends_with(suffix));
    all.map(str::to_owned).collect()
}

fn far_ones_cost_nothing(measured: &Measured) -> Judgement {
    let mut rows = Rows::new(&["of", "with the far ones, a second", "without them, a second"]);
    for alone in names(measured, "leader in california, without sydney") {
        let all = alone.trim_end_matches(", without sydney");
        let mean = |series| measured.mean(series, 1.0, "throughput");
        let (Some(with), Some(without)) = (mean(all), mean(&alone)) else { continue };
        rows.add([all.to_owned(), number(with), number(without)], with >= without * 0.9);
    }
    rows.judge("throughput at c = 1 with the far ones against that without them")
}

fn far_leader(measured: &Measured) -> Judgement {
    // One round trip from the client to Sydney, and one from there to California.
    let expected = 284.0;
    let mut rows = Rows::new(&["of", "median at c = 1"]);
    for series in names(measured, "leader in sydney") {
        let Some(median) = measured.mean(&series, 1.0, "median_ms") else { continue };
        rows.add([series, ms(median)], is_near(median, expected, 0.05));
    }
    rows.judge(format!("medians against {expected} ms"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::Verdict;

    #[test]
    fn a_slow_minority_is_told_from_a_burden() {
        for (with, verdict) in [(990.0, Verdict::Holds), (300.0, Verdict::DoesNotHold)] {
            let mut measured = Measured::default();
            measured.add("raft, leader in california", 1.0, "throughput", with);
            measured.add("raft, leader in california, without sydney", 1.0, "throughput", 1000.0);
            assert_eq!(far_ones_cost_nothing(&measured).verdict, verdict);
        }
    }
}

//! Load below saturation: what balancing costs where it gains nothing.

use super::{Arrangement, COSTS, ORDERING, PROCESSOR, load, series, setup, with_figure};
use crate::{
    experiments::{
        charts::log_lines,
        judging::Rows,
        parameters::{ON_VIRTUAL, REPLICAS, SHORT_WINDOW, sizes},
        points::Field,
    },
    ground::{Ground, Ordering},
    study::{Chart, Experiment, Judgement, LabError, Measured, Parameter, Parameters, Point, Shape},
};

/// The round trip between replicas of the topology `single-dc`.
const ROUND_TRIP_MS: f64 = 0.2;

const RATES: Parameter = Parameter {
    key: "rates",
    help: "Commands a second; several numbers are measured one after the other.",
    default: "50,1000,10000,30000",
    full: "20,50,200,1000,3000,10000,30000,50000",
};

/// The experiment, described by its fields.
pub const EXPERIMENT: Experiment = Experiment {
    name: "santos-open-loop",
    title: "S-Paxos: an open loop below saturation, with disks that take time",
    source: "Santos 2012, sections 10.3.4 and 11.2 (H15, H18)",
    about: "Commands of 20 bytes come at random at a constant rate, below what one leader can take. A replica promises what it \
            has on stable storage, and a commit takes as long as the median fsync that was measured. With balanced a \
            batch is on the disks of a quorum before the leader proposes its name: one more commit, and one more \
            delay between replicas. The document has no stable storage.",
    parameters: &[
        ON_VIRTUAL,
        Parameter { default: "2", full: "10", ..SHORT_WINDOW },
        COSTS,
        ORDERING,
        Parameter { default: "3,5", full: "3,5,7", ..REPLICAS },
        RATES,
    ],
    headline: "throughput",
    points,
    charts: &[
        chart("Mean latency", "mean_ms", "ms"),
        chart("Median latency", "median_ms", "ms"),
        chart("Goodput", "throughput", "commands a second"),
    ],
    facts: &[],
    shapes: &[
        Shape {
            id: "H15c",
            claim: "goodput is the same with all arrangements, within 2 % from 1,000 commands a second on",
            judge: same_goodput,
        },
        Shape {
            id: "H15d",
            claim: "balanced answers at most one round trip and one fsync later than when the same replicas forward to the leader",
            judge: |measured| later(measured, Arrangement::Forwarded),
        },
        Shape {
            id: "H15e",
            claim: "balanced answers at most one round trip and one fsync later than with clients at the leader",
            judge: |measured| later(measured, Arrangement::AtLeader),
        },
    ],
};

const fn chart(title: &'static str, metric: &'static str, y_label: &'static str) -> Chart {
    log_lines(title, metric, y_label, "commands a second")
}

fn points(parameters: &Parameters) -> Result<Vec<Point>, LabError> {
    let field = Field::new(parameters, &[Ground::Virtual])?;
    let window = parameters.seconds("seconds")?;
    let rates: Vec<u32> = parameters.list("rates")?;
    if !rates.iter().all(|rate| (1..=1_000_000).contains(rate)) {
        return Err(
            parameters.wrong("rates", "accepted: whole numbers from 1 to 1000000, separated by commas")
        );
    }
    let mut points = Vec::new();
    for replicas in sizes(parameters)? {
        for ordering in Ordering::list(parameters, "protocols")? {
            for &rate in &rates {
                for arrangement in Arrangement::ALL {
                    let mut setup = setup(&field, parameters, replicas, ordering, (PROCESSOR, arrangement))?;
                    setup.durability = synod_storage::Durability::Sync;
                    let fsync_ms = setup.hardware.costs.fsync_micros / 1e3;
                    let mut load = load(PROCESSOR, arrangement, 1, window);
                    load.rate = Some(f64::from(rate));
                    let name = format!("{}, {replicas} replicas", series(PROCESSOR, ordering, arrangement));
                    let point = field.point(name, f64::from(rate), setup, load);
                    points.push(with_figure(point, "fsync_ms", fsync_ms));
                }
            }
        }
    }
    Ok(points)
}

/// The series of balanced, each with that of another arrangement.
fn pairs(measured: &Measured, other: Arrangement) -> Vec<(String, String)> {
    let balanced =
        measured.series().into_iter().filter(|series| series.contains(Arrangement::Balanced.name()));
    balanced.map(|own| (own.to_owned(), own.replace(Arrangement::Balanced.name(), other.name()))).collect()
}

fn same_goodput(measured: &Measured) -> Judgement {
    let mut rows = Rows::new(&["of", "commands a second", "balanced over the other"]);
    for other in Arrangement::BY_LEADER {
        for (own, other) in pairs(measured, other) {
            // Fewer are too few to compare: they come at random.
            for x in measured.places(&own).into_iter().filter(|x| *x >= 1000.0) {
                let mean = |series| measured.mean(series, x, "throughput").filter(|mean| *mean > 0.0);
                let (Some(a), Some(b)) = (mean(&own), mean(&other)) else { continue };
                rows.add(
                    [other.clone(), format!("{x}"), format!("{:.3}", a / b)],
                    (a / b - 1.0).abs() <= 0.02,
                );
            }
        }
    }
    rows.judge("balanced over each of the others")
}

fn later(measured: &Measured, other: Arrangement) -> Judgement {
    let mut rows = Rows::new(&[
        "of",
        "commands a second",
        "balanced, ms",
        "the other, ms",
        "later by, ms",
        "allowed, ms",
    ]);
    let mut most = f64::NEG_INFINITY;
    for (own, other) in pairs(measured, other) {
        for x in measured.places(&own) {
            let mean = |series, metric| measured.mean(series, x, metric);
            let (Some(a), Some(b)) = (mean(&own, "mean_ms"), mean(&other, "mean_ms")) else { continue };
            let allowed = ROUND_TRIP_MS + mean(&own, "fsync_ms").unwrap_or(0.0);
            most = most.max(a - b);
            let cells = [
                own.clone(),
                format!("{x}"),
                format!("{a:.3}"),
                format!("{b:.3}"),
                format!("{:.3}", a - b),
                format!("{allowed:.3}"),
            ];
            rows.add(cells, a - b <= allowed);
        }
    }
    rows.judge(format!("later by at most {most:.3} ms"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::Verdict;

    #[test]
    fn a_round_trip_and_a_commit_are_allowed() {
        let judge = |balanced, goodput| {
            let mut measured = Measured::default();
            for (arrangement, ms, rate) in
                [(Arrangement::Balanced, balanced, goodput), (Arrangement::Forwarded, 1.0, 100.0)]
            {
                let name = format!("processor, {}, 3 replicas", arrangement.name());
                measured.add(&name, 1000.0, "mean_ms", ms);
                measured.add(&name, 1000.0, "fsync_ms", 0.5);
                measured.add(&name, 1000.0, "throughput", rate);
            }
            (later(&measured, Arrangement::Forwarded).verdict, same_goodput(&measured).verdict)
        };
        assert_eq!(judge(1.69, 99.0), (Verdict::Holds, Verdict::Holds));
        assert_eq!(judge(1.8, 90.0), (Verdict::DoesNotHold, Verdict::DoesNotHold));
    }
}

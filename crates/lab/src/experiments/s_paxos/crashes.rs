//! A machine fails under load.

use std::time::Duration;

use super::{Arrangement, COSTS, LINK, ORDERING, load, series, setup, with_figure};
use crate::{
    experiments::{
        charts,
        judging::Rows,
        parameters::{ON_VIRTUAL, VIRTUAL_WINDOW},
        points::Field,
    },
    ground::{Act, Ground, Ordering, Victim, What},
    study::{Experiment, Judgement, LabError, Measured, Parameter, Parameters, Point, Shape},
};

const REPLICAS: usize = 5;
/// The document's time-out.
const TIMEOUT: Duration = Duration::from_secs(2);

/// The experiment, described by its fields.
pub const EXPERIMENT: Experiment = Experiment {
    name: "santos-crashes",
    title: "S-Paxos: a follower crashes, the leader crashes",
    source: "Santos 2012, section 10.4.3, figures 10.10 and 10.11 (H16)",
    about: "Five replicas, commands of 1 KiB, cards of 100 Mbit/s, saturated. A third into the window a machine fails and is \
            silent from then on; its clients turn to another replica after 0.1 to 0.5 s. The election time-out is 2 s, as \
            in the document. There the crash of a follower makes JPaxos faster, since the leader sends to one less, and \
            leaves S-Paxos as it was; after a crash of the leader S-Paxos recovers sooner, since four fifths of the clients \
            keep their connections. The axis of points is what crashes: 0 a follower, 1 the leader.",
    parameters: &[ON_VIRTUAL, Parameter { default: "15", full: "40", ..VIRTUAL_WINDOW }, COSTS, ORDERING],
    headline: "throughput",
    points,
    charts: &[charts::ANSWERS],
    facts: &[],
    shapes: &[
        Shape {
            id: "H16f",
            claim: "after a follower's crash balanced has at least 90 % of its throughput before (the document: unaffected)",
            judge: |measured| after(measured, Arrangement::Balanced, 0.0, 0.9),
        },
        Shape {
            id: "H16g",
            claim: "after a follower's crash clients at the leader have more than before (the document: throughput rises)",
            judge: |measured| after(measured, Arrangement::AtLeader, 0.0, 1.02),
        },
        Shape {
            id: "H16h",
            claim: "the leader's crash interrupts service for at most two time-outs (4 s), with every arrangement",
            judge: interruption,
        },
        Shape {
            id: "H16i",
            claim: "after the leader's crash balanced has at least 90 % of its throughput before",
            judge: |measured| after(measured, Arrangement::Balanced, 1.0, 0.9),
        },
    ],
};

fn points(parameters: &Parameters) -> Result<Vec<Point>, LabError> {
    let field = Field::new(parameters, &[Ground::Virtual])?;
    let window = parameters.seconds("seconds")?;
    let mut points = Vec::new();
    for ordering in Ordering::list(parameters, "protocols")? {
        for (x, victim) in [(0.0, Victim::Follower), (1.0, Victim::Leader)] {
            for arrangement in Arrangement::ALL {
                let mut setup = setup(&field, parameters, REPLICAS, ordering, (LINK, arrangement))?;
                setup.settings.consensus.election_timeout = TIMEOUT;
                let mut load = load(LINK, arrangement, LINK.clients * REPLICAS, window);
                let at = window / 3;
                load.acts = vec![Act { at, what: What::Crash(victim) }];
                let point = field.point(series(LINK, ordering, arrangement), x, setup, load);
                points.push(before_and_after(point, at, window));
            }
        }
    }
    Ok(points)
}

/// Adds the mean throughput before the crash, and that of the last third of the window.
fn before_and_after(point: Point, at: Duration, window: Duration) -> Point {
    let Point { series, x, measure } = with_figure(point, "crash_s", at.as_secs_f64());
    let measure = move |conduct: &crate::study::Conduct| {
        let mut sample = measure(conduct)?;
        let before = sample.answers_between(0.0, at.as_secs_f64() / window.as_secs_f64());
        let after = sample.answers_between(2.0 / 3.0, 1.0);
        sample.figures.extend([("before", before), ("after", after)]);
        Ok(sample)
    };
    Point { series, x, measure: Box::new(measure) }
}

fn of(arrangement: Arrangement) -> String {
    format!("{}, {}", LINK.name, arrangement.name())
}

fn after(measured: &Measured, arrangement: Arrangement, x: f64, least: f64) -> Judgement {
    let mean = |metric| measured.mean(&of(arrangement), x, metric);
    let (Some(before), Some(after)) = (mean("before").filter(|before| *before > 0.0), mean("after")) else {
        return Judgement::open("nothing was measured");
    };
    let ratio = after / before;
    Judgement::of(ratio >= least, format!("{after:.0} a second after {before:.0}: {:.0} %", ratio * 100.0))
}

fn interruption(measured: &Measured) -> Judgement {
    let mut rows = Rows::new(&["of", "longest time without an answer, ms"]);
    let mut most = 0.0_f64;
    for arrangement in Arrangement::ALL {
        if let Some(gap) = measured.mean(&of(arrangement), 1.0, "gap_ms") {
            most = most.max(gap);
            rows.add([of(arrangement), format!("{gap:.0}")], gap <= 2.0 * TIMEOUT.as_secs_f64() * 1e3);
        }
    }
    rows.judge(format!("at most {most:.0} ms"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::Verdict;

    #[test]
    fn what_is_left_after_a_crash_is_compared_with_what_was_before() {
        let mut measured = Measured::default();
        measured.add(&of(Arrangement::Balanced), 0.0, "before", 100.0);
        measured.add(&of(Arrangement::Balanced), 0.0, "after", 91.0);
        measured.add(&of(Arrangement::Balanced), 1.0, "gap_ms", 4100.0);
        assert_eq!(after(&measured, Arrangement::Balanced, 0.0, 0.9).verdict, Verdict::Holds);
        assert_eq!(after(&measured, Arrangement::Balanced, 0.0, 0.95).verdict, Verdict::DoesNotHold);
        assert_eq!(interruption(&measured).verdict, Verdict::DoesNotHold);
    }
}

//! What each proposer of a ring gets where all want more than there is.

use super::{VALUE_BYTES, Way, regime};
use crate::{
    experiments::{
        charts::lines,
        judging::Rows,
        parameters::{ON_VIRTUAL, REPLICAS, SHORT_WINDOW, sizes},
        points::Field,
        s_paxos::{COSTS, load, setup},
    },
    ground::{Ground, Load},
    study::{Experiment, Judgement, LabError, Measured, Parameter, Parameters, Point, Shape},
};

/// What each proposer gets of what a ring orders.
pub const EXPERIMENT: Experiment = Experiment {
    name: "benz-shares",
    title: "Ring: what each proposer gets where all want more than there is",
    source: "Benz 2013, section 4.3.1, figure 4.5 (B32)",
    about: "Each replica has a machine of its own with a network card of 100 Mbit/s in each direction. Beside each runs a \
            proposer that keeps 512 commands of 8 KiB under way, of which each is a batch. The windows of all together \
            are eight batches a replica, so all proposers want more than there is. The answers of each replica are \
            counted, and divided by those of a replica on average.",
    parameters: &[
        ON_VIRTUAL,
        Parameter { default: "10", full: "30", ..SHORT_WINDOW },
        COSTS,
        Parameter { default: "3,5,7", full: "3,5,7,9,11", ..REPLICAS },
        Parameter {
            key: "window",
            help: "Batches of a replica that the coordinator may have under way.",
            default: "8",
            full: "8",
        },
    ],
    headline: "least_share",
    points: points_of_shares,
    charts: &[
        lines("The coordinator's share", "leader_share", "of the mean", "replicas"),
        lines("The smallest share", "least_share", "of the mean", "replicas"),
        lines("The largest share", "most_share", "of the mean", "replicas"),
        lines("Throughput", "throughput", "commands a second", "replicas"),
    ],
    facts: &[],
    shapes: &[Shape {
        id: "B32",
        claim: "each proposer gets the mean of all, within 10 %, the coordinator's too",
        judge: equal_shares,
    }],
};

/// Commands that the proposer of each replica has under way.
const PLENTY: usize = 512;

fn points_of_shares(parameters: &Parameters) -> Result<Vec<Point>, LabError> {
    let field = Field::new(parameters, &[Ground::Virtual])?;
    let window = parameters.seconds("seconds")?;
    let batches = parameters.count("window", 1..=1024)? as usize;
    let mut points = Vec::new();
    for replicas in sizes(parameters)? {
        let (way, regime) = (Way::RingOfAll, regime(VALUE_BYTES));
        let mut setup = setup(&field, parameters, replicas, way.ordering(), (regime, way.arrangement()))?;
        setup.settings.consensus.window_max = batches;
        setup.settings.batch_bytes_max = 1;
        let load = load(regime, way.arrangement(), PLENTY * replicas, window);
        points.push(field.point(way.name(), replicas as f64, setup, Load { beside: true, ..load }));
    }
    Ok(points)
}

fn equal_shares(measured: &Measured) -> Judgement {
    let mut rows = Rows::new(&["replicas", "the coordinator's share", "the smallest", "the largest"]);
    let series = Way::RingOfAll.name();
    for x in measured.places(series) {
        let mean = |metric| measured.mean(series, x, metric);
        let (Some(leader), Some(least), Some(most)) =
            (mean("leader_share"), mean("least_share"), mean("most_share"))
        else {
            continue;
        };
        let figures = [leader, least, most].map(|share| format!("{share:.2}"));
        rows.add([&[format!("{x}")][..], &figures].concat(), least >= 0.9 && most <= 1.1);
    }
    rows.judge("shares, of the mean")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::Verdict;

    #[test]
    fn a_proposer_that_gets_too_little_or_too_much_is_noticed() {
        let verdict = |least, most| {
            let mut measured = Measured::default();
            for (metric, share) in [("leader_share", 1.0), ("least_share", least), ("most_share", most)] {
                measured.add(Way::RingOfAll.name(), 5.0, metric, share);
            }
            equal_shares(&measured).verdict
        };
        assert_eq!(verdict(0.91, 1.09), Verdict::Holds);
        assert_eq!((verdict(0.89, 1.05), verdict(0.95, 1.11)), (Verdict::DoesNotHold, Verdict::DoesNotHold));
    }
}

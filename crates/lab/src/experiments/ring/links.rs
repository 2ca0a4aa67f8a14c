//! How many bytes each link of a ring carries in a long run.

use super::{VALUE_BYTES, Way, regime};
use crate::{
    experiments::{
        charts::lines,
        judging::Rows,
        parameters::{ON_VIRTUAL, REPLICAS, SHORT_WINDOW, sizes},
        points::Field,
        s_paxos::{COSTS, Regime, load, setup},
    },
    ground::{Ground, Load},
    study::{Experiment, Judgement, LabError, Measured, Parameter, Parameters, Point, Shape},
};

/// Bytes on links.
pub const EXPERIMENT: Experiment = Experiment {
    name: "benz-links",
    title: "Ring: what each link carries",
    source: "Benz 2013, sections 2.3 and 3.1.3, test vectors TV1 to TV3 (R11)",
    about: "A ring whose cards are full, with commands of 8 KiB from proposers beside all members, or beside the \
            coordinator alone. All bytes that each replica sends to each other one are counted: names, votes, decisions, \
            heartbeats and whatever is sent again, too. A replica's link to its successor is the one on which it sends \
            most.",
    parameters: &[
        ON_VIRTUAL,
        Parameter { default: "100", full: "1000", ..SHORT_WINDOW },
        COSTS,
        Parameter { default: "3,5", full: "3,5,7", ..REPLICAS },
        Parameter {
            key: "card",
            help: "What each network card carries in each direction, in Mbit/s. All that is ordered stays in memory.",
            default: "100",
            full: "10",
        },
    ],
    headline: "throughput",
    points: points_of_links,
    charts: &[
        lines("The link that carries the most", "link_most", "Mbit/s", "replicas"),
        lines("The successor's link that carries the least", "link_least", "Mbit/s", "replicas"),
        lines("The busiest of all other links", "link_other", "Mbit/s", "replicas"),
    ],
    facts: &[],
    shapes: &[
        Shape {
            id: "R11a",
            claim: "if all propose, each link to a successor carries the bytes of what is ordered, but for what that successor \
                    proposed itself, within 5 %",
            judge: of_all,
        },
        Shape {
            id: "R11b",
            claim: "if the coordinator alone proposes, no link carries more than the bytes of what is ordered, within 5 %, and the \
                    link to the coordinator at most 5 % of them",
            judge: of_one,
        },
        Shape {
            id: "R11c",
            claim: "all other links together carry next to nothing: none more than 1 % of the bytes of what is ordered",
            judge: of_others,
        },
    ],
};

fn points_of_links(parameters: &Parameters) -> Result<Vec<Point>, LabError> {
    let field = Field::new(parameters, &[Ground::Virtual])?;
    let window = parameters.seconds("seconds")?;
    let card = parameters.count("card", 1..=1_000_000)? as f64;
    let mut points = Vec::new();
    for replicas in sizes(parameters)? {
        for way in [Way::RingOfOne, Way::RingOfAll] {
            let regime = Regime { megabits: Some(card), ..regime(VALUE_BYTES) };
            let setup = setup(&field, parameters, replicas, way.ordering(), (regime, way.arrangement()))?;
            let load = load(regime, way.arrangement(), regime.clients * replicas, window);
            points.push(field.point(way.name(), replicas as f64, setup, Load { beside: true, ..load }));
        }
    }
    Ok(points)
}

/// What a figure of links is, as a part of the bytes of what is ordered.
fn part(measured: &Measured, way: Way, x: f64, figure: &'static str) -> Option<f64> {
    let ordered = measured.mean(way.name(), x, "throughput").filter(|mean| *mean > 0.0)?;
    Some(measured.mean(way.name(), x, figure)? / (ordered * VALUE_BYTES as f64 * 8e-6))
}

/// The link to the member that proposes most carries least. With equal shares each link carries (n-1)/n.
fn of_all(measured: &Measured) -> Judgement {
    let mut rows = Rows::new(&[
        "replicas",
        "the least busy link",
        "all but the largest share",
        "the busiest link",
        "all but the smallest share",
    ]);
    let way = Way::RingOfAll;
    for x in measured.places(way.name()) {
        let part = |figure| part(measured, way, x, figure);
        let (Some(least), Some(most)) = (part("link_least"), part("link_most")) else { continue };
        let but_for = |share| measured.mean(way.name(), x, share).map(|of_the_mean| 1.0 - of_the_mean / x);
        let (Some(low), Some(high)) = (but_for("most_share"), but_for("least_share")) else { continue };
        let close = |part: f64, promised: f64| (0.95 * promised..=1.05 * promised).contains(&part);
        let mut cells = vec![x.to_string()];
        cells.extend([least, low, most, high].map(|part| format!("{part:.3}")));
        rows.add(cells, close(least, low) && close(most, high));
    }
    rows.judge("bytes of a link, of those ordered")
}

fn of_one(measured: &Measured) -> Judgement {
    let mut rows = Rows::new(&["replicas", "the busiest link", "the link to the coordinator"]);
    let way = Way::RingOfOne;
    for x in measured.places(way.name()) {
        let part = |figure| part(measured, way, x, figure);
        let (Some(least), Some(most)) = (part("link_least"), part("link_most")) else { continue };
        let cells = [format!("{x}"), format!("{most:.3}"), format!("{least:.3}")];
        rows.add(cells, (0.95..=1.05).contains(&most) && least <= 0.05);
    }
    rows.judge("bytes of a link, of those ordered")
}

fn of_others(measured: &Measured) -> Judgement {
    let mut rows = Rows::new(&["replicas", "proposers", "the busiest other link"]);
    for way in [Way::RingOfOne, Way::RingOfAll] {
        for x in measured.places(way.name()) {
            let Some(other) = part(measured, way, x, "link_other") else { continue };
            rows.add([format!("{x}"), way.name().to_owned(), format!("{other:.4}")], other <= 0.01);
        }
    }
    rows.judge("bytes of other links, of those ordered")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::Verdict;

    #[test]
    fn bytes_that_cross_a_link_twice_are_noticed() {
        let verdicts = |least: f64, most: f64, other: f64, shares: [f64; 2]| {
            let mut measured = Measured::default();
            let ordered = 100.0 / (VALUE_BYTES as f64 * 8e-6);
            for (metric, value) in [
                ("throughput", ordered),
                ("link_least", least),
                ("link_most", most),
                ("link_other", other),
                ("least_share", shares[0]),
                ("most_share", shares[1]),
            ] {
                measured.add(Way::RingOfAll.name(), 4.0, metric, value);
                measured.add(Way::RingOfOne.name(), 4.0, metric, value);
            }
            [of_all(&measured).verdict, of_one(&measured).verdict, of_others(&measured).verdict]
        };
        let (yes, no) = (Verdict::Holds, Verdict::DoesNotHold);
        assert_eq!(verdicts(74.0, 76.0, 0.5, [0.98, 1.02]), [yes, no, yes]);
        assert_eq!(verdicts(66.0, 87.0, 0.5, [0.5, 1.4]), [yes, no, yes]);
        assert_eq!(verdicts(66.0, 87.0, 0.5, [0.98, 1.02]), [no, no, yes]);
        assert_eq!(verdicts(2.0, 101.0, 1.5, [0.98, 1.02]), [no, yes, no]);
    }
}

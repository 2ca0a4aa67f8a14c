//! Finds out which replica leads, with and without priorities.

use std::borrow::Cow::Borrowed;

use super::{
    parameters::{ON_VIRTUAL, PROTOCOLS, VIRTUAL_WINDOW},
    points::Field,
    wide_area::{load, spread_out},
};
use crate::{
    ground::{Ground, Ordering},
    net::Topology,
    study::{Chart, Experiment, Form, Judgement, LabError, Measured, Parameter, Parameters, Point, Shape},
};

/// The experiment, described by its fields.
pub const EXPERIMENT: Experiment = Experiment {
    name: "ng-leader-placement",
    title: "Where the leader is, with and without priorities",
    source: "Ng 2020, section 6.2, table 6.1, and chapter 7: predictable placement (N82, R8)",
    about: "The group of `ng-geo` starts again and again, the replicas in random order within 20 ms, once without \
            priorities and once with the highest in California, nearest to the client. The place of the horizontal \
            axis is the number of the start. Ballot leader election prefers the highest id (California has it), Raft's \
            leader is the replica whose random timeout ends first; MultiPaxos' own election begins with the lowest id.",
    parameters: &[
        ON_VIRTUAL,
        Parameter { default: "2", full: "5", ..VIRTUAL_WINDOW },
        PROTOCOLS,
        Parameter {
            key: "starts",
            help: "How often the group starts, 1 to 1000.",
            default: "10",
            full: "50",
        },
    ],
    headline: "leader",
    points,
    charts: &[Chart {
        title: Borrowed("Who leads: 1 Cape Town, 2 Sydney, 3 California"),
        metric: Borrowed("leader"),
        x_label: Borrowed("start"),
        y_label: Borrowed("replica"),
        form: Form::Points,
    }],
    facts: &[],
    shapes: &[
        Shape {
            id: "R8e",
            claim: "with priorities, elections that know them put the leader in California in every start",
            judge: always_placed,
        },
        Shape {
            id: "R8f",
            claim: "without priorities, ballot leader election always elects the highest id",
            judge: highest_id,
        },
        Shape {
            id: "R8g",
            claim: "without priorities, the place of Raft's leader varies",
            judge: raft_varies,
        },
    ],
};

fn points(parameters: &Parameters) -> Result<Vec<Point>, LabError> {
    let field = Field::new(parameters, &[Ground::Virtual])?;
    let starts = parameters.count("starts", 1..=1000)?;
    let mut points = Vec::new();
    for ordering in Ordering::list(parameters, "protocols")? {
        for (name, leader) in [("without priorities", None), ("california first", Some(2))] {
            for start in 1..=starts {
                let mut setup = field.setup(3, ordering)?;
                spread_out(&mut setup, Topology::named("geo")?, leader);
                setup.seed = setup.seed.wrapping_mul(1009).wrapping_add(start * 7919);
                let series = format!("{ordering}/{}, {name}", ordering.election);
                points.push(field.point(series, start as f64, setup, load(parameters, 10)?));
            }
        }
    }
    Ok(points)
}

/// How often each replica led, over all series that `of` selects.
fn leaders(measured: &Measured, of: impl Fn(&str) -> bool) -> [usize; 4] {
    let mut counts = [0; 4];
    for (_, _, _, values) in
        measured.iter().filter(|(series, _, metric, _)| *metric == "leader" && of(series))
    {
        values.iter().for_each(|&leader| counts[(leader as usize).min(3)] += 1);
    }
    counts
}

fn count_words(counts: [usize; 4]) -> String {
    let [_, cape_town, sydney, california] = counts;
    format!("Cape Town {cape_town}, Sydney {sydney}, California {california} times")
}

fn always_placed(measured: &Measured) -> Judgement {
    let counts =
        leaders(measured, |series| series.ends_with("california first") && !series.contains("rotating"));
    if counts.iter().sum::<usize>() == 0 {
        return Judgement::open("no election that knows priorities was measured");
    }
    Judgement::of(counts[1] + counts[2] == 0, count_words(counts))
}

fn highest_id(measured: &Measured) -> Judgement {
    let counts =
        leaders(measured, |series| series.ends_with("without priorities") && series.contains("/ballot"));
    if counts.iter().sum::<usize>() == 0 {
        return Judgement::open("ballot leader election was not measured");
    }
    Judgement::of(counts[1] + counts[2] == 0, count_words(counts))
}

fn raft_varies(measured: &Measured) -> Judgement {
    let counts =
        leaders(measured, |series| series.starts_with("raft") && series.ends_with("without priorities"));
    if counts.iter().sum::<usize>() == 0 {
        return Judgement::open("Raft was not measured");
    }
    Judgement::of(counts[1..].iter().filter(|&&count| count > 0).count() > 1, count_words(counts))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::Verdict;

    #[test]
    fn places_are_counted() {
        let mut measured = Measured::default();
        for (start, leader) in [3.0, 3.0, 1.0].into_iter().enumerate() {
            measured.add("raft/randomized, without priorities", start as f64, "leader", leader);
            measured.add("sequence-paxos/ballot, without priorities", start as f64, "leader", 3.0);
        }
        assert_eq!(raft_varies(&measured).verdict, Verdict::Holds);
        assert_eq!(highest_id(&measured).verdict, Verdict::Holds);
        assert_eq!(always_placed(&measured).verdict, Verdict::NotDecided);
    }
}

//! Rings on machines of their own, merged at one machine more.

use std::borrow::Cow::Borrowed;

use synod_replica::Skips;
use synod_storage::Durability;
use synod_wire::COMMAND_HEADER_BYTES;

use super::{
    AT_THE_PROPOSER, BUSY_MERGER, DOCUMENT_BYTES, EXECUTED, FAST_CARD, ORDERED, RINGS, SKIPS, UNDER_WAY,
    by_rings, figures, load, merging, numbers, point, ring, setup,
};
use crate::{
    experiments::{
        judging::Rows,
        parameters::{ON_VIRTUAL, SHORT_WINDOW},
        points::Field,
        s_paxos::COSTS,
    },
    ground::{
        Asked, Ground,
        virtual_time::{Groups, Ran},
    },
    study::{Experiment, Fact, Judgement, LabError, Measured, Parameter, Parameters, Point, Sample, Shape},
};

/// Merged throughput by the number of rings.
pub const EXPERIMENT: Experiment = Experiment {
    name: "benz-merged",
    title: "Multi-Ring: rings on machines of their own, merged at one machine",
    source: "Benz 2013, section 4.3.2, figure 4.7 (R7)",
    about: "One to five rings of three machines each, and one machine more, which learns all and executes them in one \
            order. Each machine has a disk of its own and a card of 1 Gbit/s. Each member of a ring has a proposer; \
            together they keep twelve commands of 32 KiB under way. On slow disks a vote waits for a commit of 8 ms \
            (the document's disks turn at 7,200 a minute); in memory it waits for nothing. The bound of rings on slow \
            disks is what one ring orders, times their number; that of rings in memory is the merging machine's card. \
            What rings order beyond that, the merging machine learns later.",
    parameters: &[ON_VIRTUAL, Parameter { default: "4", full: "20", ..SHORT_WINDOW }, COSTS, SKIPS, RINGS],
    headline: "merged_goodput",
    points: points_of_merged,
    charts: &[
        EXECUTED,
        ORDERED,
        AT_THE_PROPOSER,
        by_rings("Median latency at the merge", "merged_ms", "ms"),
        BUSY_MERGER,
    ],
    facts: &[Fact {
        series: Borrowed("slow disks"),
        x: 5.0,
        metric: Borrowed("merged_goodput"),
        value: 600.0,
        place: Borrowed("section 4.3.2: five rings on disks of 7,200 a minute"),
    }],
    shapes: &[
        Shape {
            id: "R7a",
            claim: "five rings with slow disks order and execute in one order at least 4.5 times what one does (bound \
                    5)",
            judge: linear,
        },
        Shape {
            id: "R7b",
            claim: "rings in memory reach 90 % of the merging machine's card, or of what the rings order if \
                    that is less",
            judge: of_card,
        },
    ],
};

const DISKS: &str = "slow disks";
const MEMORY: &str = "memory";

/// Milliseconds of a commit on a slow disk.
const SLOW_COMMIT: f64 = 8.0;

fn points_of_merged(parameters: &Parameters) -> Result<Vec<Point>, LabError> {
    let field = Field::new(parameters, &[Ground::Virtual])?;
    let (window, skips) = (parameters.seconds("seconds")?, parameters.get::<Skips>("skips")?);
    let mut points = Vec::new();
    for rings in numbers(parameters, "rings", 20)? {
        for (series, durability) in [(DISKS, Durability::Sync), (MEMORY, Durability::Memory)] {
            let merger = 3 * rings;
            let mut setup = setup(&field, parameters, merger + 1, Some(FAST_CARD))?;
            setup.hardware.costs.fsync_micros = SLOW_COMMIT * 1e3;
            setup.durability = durability;
            let load = load(Asked::All, UNDER_WAY, DOCUMENT_BYTES, window);
            let one = |number| ring(3 * number..3 * number + 3, vec![merger], load.clone());
            let groups = (0..rings).map(one).collect();
            let groups = Groups { groups, merge: merging(skips, vec![merger]) };
            let sum_up = |ran: &Ran| {
                let mut figures = figures(ran, DOCUMENT_BYTES);
                figures.insert("card", bound_of_card(FAST_CARD, DOCUMENT_BYTES));
                Sample { figures, ..Sample::default() }
            };
            points.push(point(series, rings as f64, setup, groups, sum_up));
        }
    }
    Ok(points)
}

/// Megabits of commands a second that fill a card.
fn bound_of_card(megabits: f64, value_bytes: usize) -> f64 {
    megabits * value_bytes as f64 / (value_bytes + COMMAND_HEADER_BYTES) as f64
}

/// One or two rings do not fill the merging machine's card, and nothing is executed that was not ordered. So the bound
/// is what the rings order, if that is less than what the card carries.
fn of_card(measured: &Measured) -> Judgement {
    let mut rows =
        Rows::new(&["rings", "ordered, Mbit/s", "executed in one order, Mbit/s", "bound, Mbit/s", "share"]);
    for x in measured.places(MEMORY) {
        let mean = |metric| measured.mean(MEMORY, x, metric);
        let (Some(ordered), Some(merged), Some(card)) =
            (mean("goodput"), mean("merged_goodput"), mean("card"))
        else {
            continue;
        };
        let bound = card.min(ordered);
        let figures = [ordered, merged, bound].map(|value| format!("{value:.0}"));
        let cells = [&[format!("{x}")][..], &figures, &[format!("{:.2}", merged / bound)]].concat();
        rows.add(cells, merged >= 0.9 * bound);
    }
    rows.judge("rings in memory, of their bound")
}

fn linear(measured: &Measured) -> Judgement {
    let at = |x, metric| measured.mean(DISKS, x, metric).filter(|mean| *mean > 0.0);
    let (Some(one), Some(ordered)) = (at(1.0, "merged_goodput"), at(1.0, "goodput")) else {
        return Judgement::open("one ring was not measured");
    };
    let mut rows = Rows::new(&["rings", "ordered, over one", "executed in one order, over one", "bound"]);
    let mut said = Vec::new();
    for x in measured.places(DISKS) {
        let (Some(merged), Some(all)) = (at(x, "merged_goodput"), at(x, "goodput")) else { continue };
        let (merged, all) = (merged / one, all / ordered);
        said.push(format!("{x}: {merged:.2}"));
        let cells = [format!("{x}"), format!("{all:.2}"), format!("{merged:.2}"), format!("{x}")];
        rows.add(cells, x < 5.0 || merged >= 4.5);
    }
    rows.judge(format!("over one ring: {}", said.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::Verdict;

    #[test]
    fn rings_that_do_not_add_up_are_noticed() {
        let verdict = |five: f64| {
            let mut measured = Measured::default();
            for (x, value) in [(1.0, 100.0), (5.0, five)] {
                measured.add(DISKS, x, "goodput", value);
                measured.add(DISKS, x, "merged_goodput", value);
            }
            linear(&measured).verdict
        };
        assert_eq!((verdict(460.0), verdict(440.0)), (Verdict::Holds, Verdict::DoesNotHold));
    }
}

//! Rings on the same machines, merged at one machine more.

use synod_replica::Skips;

use super::{
    AT_THE_PROPOSER, BUSY_MERGER, DOCUMENT_BYTES, EXECUTED, ORDERED, RINGS, SKIPS, SLOW_CARD, UNDER_WAY,
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
    study::{Experiment, Judgement, LabError, Measured, Parameter, Parameters, Point, Sample, Shape},
};

/// What limits rings that share machines.
#[derive(Clone, Copy, Debug)]
struct Shared {
    name: &'static str,
    megabits: Option<f64>,
    /// Commands under way in each ring.
    concurrent: usize,
}

const SHARED: [Shared; 3] = [
    Shared {
        name: "cards of 100 Mbit/s, twelve under way",
        megabits: Some(SLOW_CARD),
        concurrent: UNDER_WAY,
    },
    Shared { name: "no limit of cards, twelve under way", megabits: None, concurrent: UNDER_WAY },
    Shared { name: "no limit of cards, one under way", megabits: None, concurrent: 1 },
];

/// Throughput by the number of rings on the same machines.
pub const EXPERIMENT: Experiment = Experiment {
    name: "benz-rings-per-node",
    title: "Multi-Ring: rings on the same three machines, merged at a fourth",
    source: "Benz 2013, section 4.3.2, figure 4.8 (R8)",
    about: "One to eight rings on the same three machines, their leaders spread over these; a fourth machine learns \
            all and executes them in one order. Commands have 32 KiB, and each ring has twelve under way, or one. A \
            machine has one processor for all its rings, as all groups of a node share one thread of the protocols; \
            the document's had four processors and threads for each ring. So rings add up until that one processor is \
            full.",
    parameters: &[
        ON_VIRTUAL,
        Parameter { default: "2", full: "10", ..SHORT_WINDOW },
        COSTS,
        Parameter { default: "lambda:20000", full: "lambda:20000", ..SKIPS },
        Parameter { default: "1,2,3,4,6,8", full: "1,2,3,4,5,6,7,8", ..RINGS },
    ],
    headline: "merged_goodput",
    points: points_per_node,
    charts: &[
        ORDERED,
        EXECUTED,
        by_rings("Processor of the busiest machine of the rings", "ring_busy", "%"),
        BUSY_MERGER,
        AT_THE_PROPOSER,
    ],
    facts: &[],
    shapes: &[
        Shape {
            id: "R8a",
            claim: "rings that leave the processor free add up: throughput grows by more than 5 % with each step \
                    until 90 % of the processor of one of their machines are used, or of the cards",
            judge: grows,
        },
        Shape {
            id: "R8b",
            claim: "with more rings than that, throughput stays at 80 % of its peak at least",
            judge: stays,
        },
    ],
};

fn points_per_node(parameters: &Parameters) -> Result<Vec<Point>, LabError> {
    let field = Field::new(parameters, &[Ground::Virtual])?;
    let (window, skips) = (parameters.seconds("seconds")?, parameters.get::<Skips>("skips")?);
    let mut points = Vec::new();
    for rings in numbers(parameters, "rings", 16)? {
        for Shared { name, megabits, concurrent } in SHARED {
            let setup = setup(&field, parameters, 4, megabits)?;
            let load = load(Asked::All, concurrent, DOCUMENT_BYTES, window);
            let one = |number: usize| {
                let voters = (0..3).map(move |place| (number + place) % 3);
                ring(voters, vec![3], load.clone())
            };
            let groups = Groups { groups: (0..rings).map(one).collect(), merge: merging(skips, vec![3]) };
            let sum_up = |ran: &Ran| Sample { figures: figures(ran, DOCUMENT_BYTES), ..Sample::default() };
            points.push(point(name, rings as f64, setup, groups, sum_up));
        }
    }
    Ok(points)
}

/// Percent of a processor, or of the cards, from which on they count as full.
const FULL: f64 = 90.0;

/// Throughput grows until something is full. The document's rings grew to as many as the processors of a machine
/// carried; here a ring is added where the one processor may have little left, so a step need not gain a whole ring.
fn grows(measured: &Measured) -> Judgement {
    let mut rows = Rows::new(&["limit", "rings", "Mbit/s", "processor before, %", "over fewer rings"]);
    for Shared { name, megabits, .. } in SHARED {
        let mean = |x, metric| measured.mean(name, x, metric);
        let places = measured.places(name);
        for pair in places.windows(2) {
            let (Some(before), Some(after)) = (mean(pair[0], "goodput"), mean(pair[1], "goodput")) else {
                continue;
            };
            let Some(busy) = mean(pair[0], "ring_busy") else { continue };
            // A body is sent three times: twice along its ring, and once to the merging machine. There are three
            // machines, so what they order fills their cards when it is as much as one card carries.
            let full = busy >= FULL || megabits.is_some_and(|card| before >= FULL / 100.0 * card);
            let gain = after / before;
            let cells = [
                name.to_owned(),
                format!("{}", pair[1]),
                format!("{after:.0}"),
                format!("{busy:.0}"),
                format!("{gain:.2}"),
            ];
            rows.add(cells, full || gain > 1.05);
        }
    }
    rows.judge("growth until something is full")
}

fn stays(measured: &Measured) -> Judgement {
    let mut rows = Rows::new(&["limit", "rings", "Mbit/s", "of the peak before"]);
    for Shared { name, .. } in SHARED {
        let mut peak: f64 = 0.0;
        for x in measured.places(name) {
            let Some(goodput) = measured.mean(name, x, "goodput") else { continue };
            peak = peak.max(goodput);
            let cells =
                [name.to_owned(), format!("{x}"), format!("{goodput:.0}"), format!("{:.2}", goodput / peak)];
            rows.add(cells, goodput >= 0.8 * peak);
        }
    }
    rows.judge("throughput, of its peak")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::Verdict;

    #[test]
    fn a_collapse_is_noticed() {
        let verdict = |last: f64| {
            let mut measured = Measured::default();
            for (x, goodput) in [(1.0, 100.0), (2.0, 200.0), (3.0, last)] {
                for Shared { name, .. } in SHARED {
                    measured.add(name, x, "goodput", goodput);
                }
            }
            stays(&measured).verdict
        };
        assert_eq!((verdict(170.0), verdict(150.0)), (Verdict::Holds, Verdict::DoesNotHold));
    }
}

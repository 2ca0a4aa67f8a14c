//! Local rings with and without a global one.

use std::collections::BTreeMap;

use synod_replica::Skips;

use super::{SKIPS, SLOW_CARD, SMALL_BYTES, load, merging, point, ring, setup, together};
use crate::{
    experiments::{
        charts::chart,
        judging::Rows,
        parameters::{ON_VIRTUAL, SHORT_WINDOW},
        points::Field,
        s_paxos::COSTS,
    },
    ground::{
        Asked, Ground,
        virtual_time::{Groups, Ran},
    },
    net::Topology,
    study::{Experiment, Form, Judgement, LabError, Measured, Parameter, Parameters, Point, Sample, Shape},
};

/// Commands that the two proposers of a local ring have under way together.
const LOCAL_UNDER_WAY: usize = 40;
/// Commands that the three proposers of the global ring have under way together (the document: ten each).
const GLOBAL_UNDER_WAY: usize = 30;

/// Local rings with and without a global one.
pub const EXPERIMENT: Experiment = Experiment {
    name: "benz-global",
    title: "Multi-Ring: three local rings, and a global one over wide-area links",
    source: "Benz 2013, section 4.3.2, figures 4.10 and 4.11 (R9)",
    about: "Three machines in each of Virginia, Ireland and Oregon (the topology `regions`). In each region two of \
            them vote in a local ring and the third learns it; these three third machines vote in the global ring, \
            and each executes its local ring and the global one in one order. Cards have 100 Mbit/s, commands 8 KiB; \
            each voter of a local ring has a proposer that keeps twenty under way, each of the global ring one that \
            keeps ten. The same without the global ring. The document measures latency at the proposer, that is at \
            the decision; latency in the merge stands beside it.",
    parameters: &[ON_VIRTUAL, Parameter { default: "4", full: "60", ..SHORT_WINDOW }, COSTS, SKIPS],
    headline: "throughput",
    points: points_of_regions,
    charts: &[
        chart(Form::Points, "Throughput", "throughput", "commands a second", WHICH_RING),
        chart(Form::Points, "Mean latency at the proposer", "decided_ms", "ms", WHICH_RING),
        chart(Form::Points, "Mean latency at the merge", "merged_ms", "ms", WHICH_RING),
    ],
    facts: &[],
    shapes: &[
        Shape {
            id: "R9a",
            claim: "a local ring has the same throughput with the global ring as without it, within 5 %",
            judge: |measured| undisturbed(measured, "throughput"),
        },
        Shape {
            id: "R9b",
            claim: "and the same mean latency at the proposer, within 5 %",
            judge: |measured| undisturbed(measured, "decided_ms"),
        },
        Shape {
            id: "R9c",
            claim: "in the merge a command of a local ring takes at least as long as one of the global ring, the \
                    slowest, takes at its proposer",
            judge: merged_later,
        },
    ],
};

const WHICH_RING: &str = "ring: 1 Virginia, 2 Ireland, 3 Oregon, 4 global";
const WITH: &str = "with the global ring";
const WITHOUT: &str = "without";
const REGIONS: usize = 3;

fn points_of_regions(parameters: &Parameters) -> Result<Vec<Point>, LabError> {
    let field = Field::new(parameters, &[Ground::Virtual])?;
    let (window, skips) = (parameters.seconds("seconds")?, parameters.get::<Skips>("skips")?);
    let mut points = Vec::new();
    for (series, rings) in [(WITH, REGIONS + 1), (WITHOUT, REGIONS)] {
        for number in 0..rings {
            let mut setup = setup(&field, parameters, 3 * REGIONS, Some(SLOW_CARD))?;
            setup.topology = Some(Topology::named("regions")?);
            let load = |under_way| load(Asked::All, under_way, SMALL_BYTES, window);
            let local = |region: usize| {
                let first = 3 * region;
                ring([first, first + 1], vec![first + 2], load(LOCAL_UNDER_WAY))
            };
            let mut groups: Vec<_> = (0..REGIONS).map(local).collect();
            let third = |region: usize| 3 * region + 2;
            if series == WITH {
                groups.push(ring((0..REGIONS).map(third), Vec::new(), load(GLOBAL_UNDER_WAY)));
            }
            let groups = Groups { groups, merge: merging(skips, (0..REGIONS).map(third).collect()) };
            let sum_up = move |ran: &Ran| of_ring(ran, number);
            points.push(point(series, number as f64 + 1.0, setup, groups, sum_up));
        }
    }
    Ok(points)
}

/// The figures of one ring among several. Latencies are means: the two proposers of a local ring may have unequal
/// shares, so that a median is that of the faster one.
fn of_ring(ran: &Ran, number: usize) -> Sample {
    let outcome = &ran.groups[number];
    let merged =
        together(ran.merged.iter().filter(|merged| merged.group == number).map(|merged| &merged.latency));
    let figures = BTreeMap::from([
        ("throughput", outcome.answered as f64 / outcome.seconds),
        ("decided_ms", outcome.latency.mean() / 1e6),
        ("merged_ms", merged.mean() / 1e6),
    ]);
    Sample { figures, ..Sample::default() }
}

fn undisturbed(measured: &Measured, metric: &str) -> Judgement {
    let mut rows = Rows::new(&["ring", "with", "without", "ratio"]);
    for x in measured.places(WITHOUT) {
        let mean = |series| measured.mean(series, x, metric).filter(|mean| *mean > 0.0);
        let (Some(with), Some(without)) = (mean(WITH), mean(WITHOUT)) else { continue };
        let cells =
            [format!("{x}"), format!("{with:.2}"), format!("{without:.2}"), format!("{:.3}", with / without)];
        rows.add(cells, (with / without - 1.0).abs() <= 0.05);
    }
    rows.judge("with the global ring, over without it")
}

/// The merged order is as slow as its slowest ring if the others wait for that ring's commands. Here they wait for its
/// skips, which begin at its coordinator and may be decided sooner than a command.
fn merged_later(measured: &Measured) -> Judgement {
    let global = (REGIONS + 1) as f64;
    let Some(slowest) = measured.mean(WITH, global, "decided_ms") else {
        return Judgement::open("the global ring was not measured");
    };
    let mut rows =
        Rows::new(&["ring", "at the proposer, ms", "in the merge, ms", "without the global ring, ms"]);
    for x in measured.places(WITHOUT) {
        let (Some(decided), Some(merged)) =
            (measured.mean(WITH, x, "decided_ms"), measured.mean(WITH, x, "merged_ms"))
        else {
            continue;
        };
        let alone = measured.mean(WITHOUT, x, "merged_ms").map_or("-".to_owned(), |ms| format!("{ms:.2}"));
        let cells = [format!("{x}"), format!("{decided:.2}"), format!("{merged:.2}"), alone];
        rows.add(cells, merged >= slowest);
    }
    rows.judge(format!("the global ring decides in {slowest:.0} ms"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::Verdict;

    #[test]
    fn a_disturbed_local_ring_is_noticed() {
        let verdict = |with: f64| {
            let mut measured = Measured::default();
            measured.add(WITH, 1.0, "throughput", with);
            measured.add(WITHOUT, 1.0, "throughput", 100.0);
            undisturbed(&measured, "throughput").verdict
        };
        assert_eq!((verdict(96.0), verdict(94.0)), (Verdict::Holds, Verdict::DoesNotHold));
    }
}

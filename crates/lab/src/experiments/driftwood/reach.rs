//! What some options of Driftwood are worth where links are cut: votes by gossip, repair by peers, and a leader that
//! finds out that it reaches no quorum.

use std::collections::BTreeSet;

use super::{
    FAN_OUT, INTERVAL, MEASURED_COSTS, TOPOLOGY, Way, closed_loop,
    partitions::{CUTS, WARM_UP, networks, that_may_stall, widest},
    setup,
};
use crate::{
    experiments::{
        charts::lines,
        judging::Rows,
        parameters::{ON_VIRTUAL, REPLICAS, SHORT_WINDOW, sizes},
        points::Field,
    },
    ground::{Ground, Load},
    study::{Experiment, Judgement, LabError, Measured, Parameter, Parameters, Point, Shape},
};

/// The experiment, described by its fields.
pub const EXPERIMENT: Experiment = Experiment {
    name: "driftwood-reach",
    title: "Driftwood: votes by gossip, repair by peers, a leader that checks its quorum",
    source: "Driftwood 2023, section 6.2, which asks for them",
    about: "As driftwood-partitions, with ten clients, in the networks with the most links cut. No replica is preferred as \
            the leader, so each run may elect another. Version 2 runs with votes by gossip (`vote-gossip`), with repair by \
            peers (`peer-repair`), with both and with neither; version 1 with both, and with a leader that gives up if it \
            hears no quorum (`check-quorum`) or does not. The window is longer than several election time-outs. A group \
            that finds no leader in a minute, or whose leader decides nothing, counts as 0 commands a second.",
    parameters: &[
        ON_VIRTUAL,
        Parameter { default: "10", full: "10", ..SHORT_WINDOW },
        MEASURED_COSTS,
        TOPOLOGY,
        Parameter { default: "5", full: "5,25,53", ..REPLICAS },
        Parameter { default: "50,90", full: "50,75,90", ..CUTS },
        INTERVAL,
        FAN_OUT,
    ],
    headline: "went_on",
    points,
    charts: &[
        lines("Runs that went on", "went_on", "%", "links that are cut"),
        lines("Throughput", "throughput", "commands a second", "links that are cut"),
        lines("Changes of the leader", "leader_changes", "changes in the window", "links that are cut"),
    ],
    facts: &[],
    shapes: &[
        Shape {
            id: "D32/D33",
            claim: "version 2 with votes by gossip and repair by peers goes on in every run",
            judge: |measured| {
                let others = [STATUSES, STATUSES_WITH_VOTES, STATUSES_WITH_REPAIR];
                let heads = ["with both, % of runs", "neither", "votes by gossip", "repair by peers"];
                went_on(measured, STATUSES_WITH_BOTH, &others, &heads, |_| true)
            },
        },
        Shape {
            id: "D34",
            claim: "version 1 whose leader checks its quorum goes on in every run in a network in which some replica has \
                    direct links to a majority",
            judge: |measured| {
                let heads = ["checked, % of runs", "unchecked"];
                went_on(measured, REPLIES_CHECKED, &[REPLIES_UNCHECKED], &heads, |has_hub| has_hub)
            },
        },
    ],
};

/// The document's clients in these networks.
const CLIENTS: usize = 10;

/// A way with a choice of options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Choice {
    way: Way,
    vote_gossip: bool,
    peer_repair: bool,
    check_quorum: bool,
}

const STATUSES: Choice =
    Choice { way: Way::Statuses, vote_gossip: false, peer_repair: false, check_quorum: true };
const STATUSES_WITH_VOTES: Choice = Choice { vote_gossip: true, ..STATUSES };
const STATUSES_WITH_REPAIR: Choice = Choice { peer_repair: true, ..STATUSES };
const STATUSES_WITH_BOTH: Choice = Choice { vote_gossip: true, peer_repair: true, ..STATUSES };
const REPLIES_CHECKED: Choice = Choice { way: Way::Replies, ..STATUSES_WITH_BOTH };
const REPLIES_UNCHECKED: Choice = Choice { check_quorum: false, ..REPLIES_CHECKED };

const CHOICES: [Choice; 6] = [
    STATUSES,
    STATUSES_WITH_VOTES,
    STATUSES_WITH_REPAIR,
    STATUSES_WITH_BOTH,
    REPLIES_CHECKED,
    REPLIES_UNCHECKED,
];

impl Choice {
    fn series(self, replicas: usize) -> String {
        let options = match (self.vote_gossip, self.peer_repair) {
            (false, false) => "neither",
            (true, false) => "votes by gossip",
            (false, true) => "repair by peers",
            (true, true) => "both",
        };
        let unchecked = if self.check_quorum { "" } else { ", unchecked" };
        format!("n={replicas}, {}, {options}{unchecked}", self.way.name())
    }
}

fn points(parameters: &Parameters) -> Result<Vec<Point>, LabError> {
    let field = Field::new(parameters, &[Ground::Virtual])?;
    let window = parameters.seconds("seconds")?;
    let mut points = Vec::new();
    for replicas in sizes(parameters)? {
        let mut networks = networks(parameters, replicas)?;
        if replicas == 5 {
            // With three links cut at most, every replica reaches a majority.
            networks.retain(|cuts| cuts.len() > 3);
        }
        for (cuts, choice) in networks.iter().flat_map(|cuts| CHOICES.map(|choice| (cuts, choice))) {
            let mut setup = setup(&field, parameters, choice.way, replicas)?;
            setup.cuts = cuts.clone();
            setup.priorities.clear();
            let raft = &mut setup.settings.consensus.raft;
            (raft.vote_gossip, raft.peer_repair) = (choice.vote_gossip, choice.peer_repair);
            raft.check_quorum = choice.check_quorum;
            let load = Load { warm_up: WARM_UP, ..closed_loop(CLIENTS, window) };
            let point = field.point(choice.series(replicas), cuts.len() as f64, setup, load);
            points.push(that_may_stall(point, widest(replicas, cuts)));
        }
    }
    Ok(points)
}

/// Whether every run of a choice went on in each network that the claim is about, with the others beside it; `counts`
/// is told whether a replica there has direct links to a majority.
fn went_on(
    measured: &Measured,
    judged: Choice,
    others: &[Choice],
    heads: &[&'static str],
    counts: fn(bool) -> bool,
) -> Judgement {
    let mut rows = Rows::new(&[&["replicas", "cut links", "some replica reaches"], heads].concat());
    let sizes = measured.series().into_iter().filter_map(|name| name.strip_prefix("n=")?.split_once(", "));
    let sizes: BTreeSet<usize> = sizes.filter_map(|(size, _)| size.parse().ok()).collect();
    for replicas in sizes {
        let series = judged.series(replicas);
        for x in measured.places(&series) {
            let share = |choice: &Choice| measured.mean(&choice.series(replicas), x, "went_on");
            let (Some(own), Some(widest)) = (share(&judged), measured.mean(&series, x, "widest")) else {
                continue;
            };
            if counts(2.0 * widest > replicas as f64) {
                let cell =
                    |share: Option<f64>| share.map_or_else(|| "-".to_owned(), |share| format!("{share:.0}"));
                let mut cells =
                    vec![format!("{replicas}"), format!("{x}"), format!("{widest}"), cell(Some(own))];
                cells.extend(others.iter().map(|choice| cell(share(choice))));
                rows.add(cells, own >= 100.0);
            }
        }
    }
    rows.judge(judged.way.name())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::Verdict;

    #[test]
    fn a_run_that_stood_still_is_noticed() {
        let verdict = |checked: f64, widest: f64| {
            let mut measured = Measured::default();
            for (choice, share) in [(REPLIES_CHECKED, checked), (REPLIES_UNCHECKED, 50.0)] {
                measured.add(&choice.series(5), 6.0, "went_on", share);
                measured.add(&choice.series(5), 6.0, "widest", widest);
            }
            (EXPERIMENT.shapes[1].judge)(&measured).verdict
        };
        assert_eq!((verdict(100.0, 4.0), verdict(80.0, 4.0)), (Verdict::Holds, Verdict::DoesNotHold));
        assert_eq!(verdict(80.0, 2.0), Verdict::NotDecided, "the claim is about networks with a hub");
    }
}

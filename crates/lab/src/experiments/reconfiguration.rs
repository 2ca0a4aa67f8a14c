//! A replica is replaced under load.

use std::borrow::Cow::Borrowed;

use synod_consensus::ProtocolKind;

use super::*;
use crate::{
    ground::Victim,
    study::{Chart, Form, Judgement, Measured, Shape},
};

const ANSWERS: Chart = Chart {
    title: Borrowed("Answers over time"),
    metric: Borrowed("throughput"),
    x_label: Borrowed("seconds"),
    y_label: Borrowed("answers a second"),
    form: Form::Timeline,
};
const GAP: Chart = Chart {
    title: Borrowed("Longest time without an answer"),
    metric: Borrowed("gap_ms"),
    x_label: Borrowed("proposals outstanding"),
    y_label: Borrowed("ms"),
    form: Form::Bars,
};
const THROUGHPUT: Chart = Chart {
    title: Borrowed("Throughput over the whole window, with the change in it"),
    metric: Borrowed("throughput"),
    x_label: Borrowed("proposals outstanding"),
    y_label: Borrowed("proposals decided a second"),
    form: Form::LogLines,
};

/// Replace a follower, replace the leader.
pub const RECONFIGURATION: Experiment = Experiment {
    name: "ng-reconfiguration",
    title: "A replica is replaced under load",
    source: "Ng 2020, section 5.5.2, figure 12, table 5.2 (N80, R6)",
    about: "A third into the window a new replica joins as a learner, fetches what was decided, and takes the place of \
            a follower or of the leader. With Paxos a stop-sign ends the epoch; Raft changes its voters by joint \
            consensus. Unlike the document's prototypes, Synod catches a new replica up before the change, holds back \
            what is proposed meanwhile, and keeps serving; so what remains is the change itself and, if the leader \
            goes, an election. In virtual time; the document's eager transfer (pushed rather than fetched) has no \
            counterpart in Synod.",
    parameters: &[
        ON_VIRTUAL,
        VIRTUAL_WINDOW,
        PROTOCOLS,
        Parameter { key: "replicas", help: "Group sizes.", default: "3", full: "3,5" },
        Parameter {
            key: "concurrent",
            help: "Proposals outstanding at a time.",
            default: "10,100",
            full: "10,100,1000,10000,100000",
        },
    ],
    headline: "throughput",
    points: reconfiguration_points,
    charts: &[ANSWERS, GAP, THROUGHPUT],
    facts: &[],
    shapes: &[
        Shape { id: "R6a", claim: "no proposal times out, with any protocol", judge: no_timeouts },
        Shape {
            id: "R6b",
            claim: "replacing the leader interrupts service for longer than replacing a follower",
            judge: leader_costs_more,
        },
        Shape {
            id: "R6c",
            claim: "Raft's replacement of a follower has no interval of a tenth of a second without an answer",
            judge: raft_follower_is_smooth,
        },
        Shape {
            id: "R6d",
            claim: "service is back within two election timeouts (2 s) whoever is replaced",
            judge: back_soon,
        },
    ],
};

fn reconfiguration_points(parameters: &Parameters) -> Result<Vec<Point>, LabError> {
    check_ground(parameters, &["virtual"])?;
    let window = parameters.seconds("seconds")?;
    let mut points = Vec::new();
    for replicas in sizes(parameters)? {
        for concurrent in concurrencies(parameters)? {
            for ordering in Ordering::list(parameters, "protocols")? {
                for (name, victim) in [("follower", Victim::Follower), ("leader", Victim::Leader)] {
                    let setup = Setup {
                        seed: parameters.get("seed")?,
                        ..Setup::new(replicas, ordering.protocol, ordering.election)
                    };
                    let mut load = Load::new(concurrent, window);
                    load.acts = vec![Act { at: window / 3, what: What::Replace(victim) }];
                    let series = format!("{ordering}, replace {name}, {replicas} replicas");
                    points.push(virtual_point(series, concurrent as f64, setup, load));
                }
            }
        }
    }
    Ok(points)
}

fn no_timeouts(measured: &Measured) -> Judgement {
    let all =
        measured.iter().filter(|(_, _, metric, _)| *metric == "timed_out").flat_map(|(.., values)| values);
    match all.copied().reduce(f64::max) {
        None => Judgement::open("nothing was measured"),
        Some(most) => Judgement::of(most == 0.0, format!("at most {most} in a run")),
    }
}

fn leader_costs_more(measured: &Measured) -> Judgement {
    let mut reasons = Vec::new();
    let mut holds = true;
    for leader in measured.series().into_iter().filter(|series| series.contains("replace leader")) {
        let follower = leader.replace("replace leader", "replace follower");
        for x in measured.places(leader) {
            let gap = |series| measured.mean(series, x, "gap_ms");
            let (Some(a), Some(b)) = (gap(leader), gap(&follower)) else { continue };
            holds &= a > b;
            let name = leader.replace(", replace leader", "");
            reasons.push(format!("{name} c={x}: {a:.0} against {b:.0} ms"));
        }
    }
    if reasons.is_empty() {
        return Judgement::open("nothing was measured");
    }
    Judgement::of(holds, reasons.join("; "))
}

fn raft_follower_is_smooth(measured: &Measured) -> Judgement {
    highest_gap(measured, |series| series.starts_with("raft, replace follower"), 100.0)
}

fn back_soon(measured: &Measured) -> Judgement {
    highest_gap(measured, |_| true, 2000.0)
}

fn highest_gap(measured: &Measured, of: impl Fn(&str) -> bool, most: f64) -> Judgement {
    let own = measured.iter().filter(|(series, _, metric, _)| *metric == "gap_ms" && of(series));
    let gaps = own
        .flat_map(|(series, x, _, values)| values.iter().map(move |&gap| (gap, format!("{series}, c={x}"))));
    match gaps.max_by(|a, b| a.0.total_cmp(&b.0)) {
        None => Judgement::open("nothing was measured"),
        Some((gap, place)) => Judgement::of(gap < most, format!("the longest was {gap:.0} ms ({place})")),
    }
}

/// Head start.
pub const HEAD_START: Experiment = Experiment {
    name: "ng-head-start",
    title: "Sequence Paxos: a head start for the leader of the last epoch",
    source: "Ng 2020, sections 4.4.3 and 5.4.3, figure 10, table 5.1 (N78, N53, R4)",
    about: "A follower is replaced a third into the window, with the head start of the last leader and without it. \
            New replicas have the highest ids, and ballot leader election prefers those. In virtual time.",
    parameters: &[
        ON_VIRTUAL,
        VIRTUAL_WINDOW,
        Parameter { key: "replicas", help: "Group sizes.", default: "3", full: "3,5" },
        Parameter {
            key: "concurrent",
            help: "Proposals outstanding at a time.",
            default: "10,100",
            full: "10,100,1000,10000,100000",
        },
    ],
    headline: "throughput",
    points: head_start_points,
    charts: &[
        ANSWERS,
        GAP,
        Chart {
            title: Borrowed("Changes of leader"),
            metric: Borrowed("leader_changes"),
            x_label: Borrowed("proposals outstanding"),
            y_label: Borrowed("in the window"),
            form: Form::Bars,
        },
    ],
    facts: &[],
    shapes: &[
        Shape {
            id: "R4a",
            claim: "with the head start the leader stays, and nothing times out",
            judge: stays,
        },
        Shape {
            id: "R4b",
            claim: "without it the leader changes in some runs, or service is interrupted for longer",
            judge: otherwise_worse,
        },
    ],
};

fn head_start_points(parameters: &Parameters) -> Result<Vec<Point>, LabError> {
    check_ground(parameters, &["virtual"])?;
    let window = parameters.seconds("seconds")?;
    let protocol = ProtocolKind::SequencePaxos;
    let mut points = Vec::new();
    for replicas in sizes(parameters)? {
        for concurrent in concurrencies(parameters)? {
            for (name, head_start) in [("with", true), ("without", false)] {
                let mut setup = Setup {
                    seed: parameters.get("seed")?,
                    ..Setup::new(replicas, protocol, protocol.elections()[0])
                };
                setup.settings.consensus.sequence_paxos.head_start = head_start;
                let mut load = Load::new(concurrent, window);
                load.acts = vec![Act { at: window / 3, what: What::Replace(Victim::Follower) }];
                let series = format!("{name} head start, {replicas} replicas");
                points.push(virtual_point(series, concurrent as f64, setup, load));
            }
        }
    }
    Ok(points)
}

/// The highest value of a metric in series that begin so.
fn highest(measured: &Measured, metric: &str, beginning: &str) -> Option<f64> {
    let own = measured.iter().filter(|(series, _, name, _)| *name == metric && series.starts_with(beginning));
    own.flat_map(|(.., values)| values).copied().reduce(f64::max)
}

fn stays(measured: &Measured) -> Judgement {
    let of = |metric| highest(measured, metric, "with head start");
    let (Some(changes), Some(timed_out)) = (of("leader_changes"), of("timed_out")) else {
        return Judgement::open("nothing was measured");
    };
    let reason = format!("at most {changes} changes of leader and {timed_out} time-outs in a run");
    Judgement::of(changes == 0.0 && timed_out == 0.0, reason)
}

fn otherwise_worse(measured: &Measured) -> Judgement {
    let of = |metric| {
        (highest(measured, metric, "with head start"), highest(measured, metric, "without head start"))
    };
    let ((Some(with), Some(without)), (_, Some(changes))) = (of("gap_ms"), of("leader_changes")) else {
        return Judgement::open("both were not measured");
    };
    let reason = format!(
        "without: up to {changes} changes of leader, the longest gap {without:.0} ms; with: {with:.0} ms"
    );
    Judgement::of(changes >= 1.0 || without > with * 1.5, reason)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::Verdict;

    #[test]
    fn gaps_are_judged() {
        let mut measured = Measured::default();
        for (who, gap) in [("leader", 1500.0), ("follower", 20.0)] {
            let series = format!("raft, replace {who}, 3 replicas");
            measured.add(&series, 100.0, "gap_ms", gap);
            measured.add(&series, 100.0, "timed_out", 0.0);
        }
        for shape in RECONFIGURATION.shapes {
            assert_eq!((shape.judge)(&measured).verdict, Verdict::Holds, "{}", shape.id);
        }
        measured.add("raft, replace follower, 3 replicas", 100.0, "gap_ms", 5000.0);
        measured.add("raft, replace follower, 3 replicas", 100.0, "timed_out", 7.0);
        for shape in RECONFIGURATION.shapes {
            assert_eq!((shape.judge)(&measured).verdict, Verdict::DoesNotHold, "{}", shape.id);
        }
    }

    #[test]
    fn a_head_start_that_changes_nothing_is_noticed() {
        let mut measured = Measured::default();
        for name in ["with", "without"] {
            let series = format!("{name} head start, 3 replicas");
            for (metric, value) in [("gap_ms", 10.0), ("leader_changes", 0.0), ("timed_out", 0.0)] {
                measured.add(&series, 100.0, metric, value);
            }
        }
        assert_eq!(stays(&measured).verdict, Verdict::Holds);
        assert_eq!(otherwise_worse(&measured).verdict, Verdict::DoesNotHold);
        measured.add("without head start, 3 replicas", 100.0, "leader_changes", 2.0);
        assert_eq!(otherwise_worse(&measured).verdict, Verdict::Holds);
    }
}

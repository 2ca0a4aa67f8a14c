//! Replaces a replica under load.

use std::borrow::Cow::Borrowed;

use synod_consensus::ProtocolKind;
use synod_replica::StateTransfer;

use super::{
    charts,
    judging::{Rows, all_ratios, at_most, highest, is_near, no_timeouts, ratios},
    parameters::{CONCURRENT, ON_VIRTUAL, PROTOCOLS, REPLICAS, VIRTUAL_WINDOW},
    points::Field,
};
use crate::{
    figure::numbers::number,
    ground::{Act, Ground, Load, Ordering, Victim, What},
    study::{Chart, Experiment, Form, Judgement, LabError, Measured, Parameter, Parameters, Point, Shape},
};

/// The replicas of a small group.
const SMALL: Parameter = Parameter { default: "3", full: "3,5", ..REPLICAS };

/// Few outstanding proposals, since a window of seconds has many answers.
const FEW: Parameter = Parameter { default: "10,100,1000", full: "10,100,1000,10000,100000", ..CONCURRENT };

const TRANSFER: Parameter = Parameter {
    key: "transfer",
    help: "How a new replica comes by what was decided before: pull, eager, or both with a comma.",
    default: "pull,eager",
    full: "pull,eager",
};

const CHANGE: Chart = Chart {
    title: Borrowed("How long the change takes, the new replica's catching up included"),
    metric: Borrowed("change_ms"),
    ..charts::GAP
};

const THROUGHPUT: Chart = Chart {
    title: Borrowed("Throughput over the whole window, with the change in it"),
    ..charts::THROUGHPUT
};

/// A load with a replacement a third into the window.
fn with_replacement(parameters: &Parameters, concurrent: usize, victim: Victim) -> Result<Load, LabError> {
    let window = parameters.seconds("seconds")?;
    let mut load = Load::new(concurrent, window);
    load.acts = vec![Act { at: window / 3, what: What::Replace(victim) }];
    Ok(load)
}

/// Replace a follower, replace the leader.
pub const RECONFIGURATION: Experiment = Experiment {
    name: "ng-reconfiguration",
    title: "A replica is replaced under load",
    source: "Ng 2020, section 5.5.2, figure 12, table 5.2 (N80, R6)",
    about: "A third into the window a new replica joins as a learner, fetches what was decided, and takes the place of \
            a follower or of the leader. The change of voters ends an epoch; Raft makes it within the epoch, through \
            a joint configuration. Unlike the document's prototypes, Synod catches a new replica up before the \
            change, holds back what is proposed meanwhile where an epoch ends, and keeps serving; so what remains is \
            the change itself and, if the leader goes, an election, or with Raft handing over. What was decided before \
            is fetched by the new replica (pull), or sent to it by those who vote (eager). In virtual time.",
    parameters: &[ON_VIRTUAL, VIRTUAL_WINDOW, PROTOCOLS, SMALL, FEW, TRANSFER],
    headline: "throughput",
    points: reconfiguration_points,
    charts: &[charts::ANSWERS, charts::GAP, CHANGE, THROUGHPUT],
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
            claim: "service is back within two election timeouts (2 s), whichever replica is replaced",
            judge: back_soon,
        },
        Shape {
            id: "R6e",
            claim: "throughput is the same whether the new replica pulls or is sent what was decided, within 10 %",
            judge: same_transfer,
        },
    ],
};

fn reconfiguration_points(parameters: &Parameters) -> Result<Vec<Point>, LabError> {
    let field = Field::new(parameters, &[Ground::Virtual])?;
    field.sweep(|replicas, concurrent, points| {
        for ordering in Ordering::list(parameters, "protocols")? {
            for (name, victim) in [("follower", Victim::Follower), ("leader", Victim::Leader)] {
                for transfer in parameters.list::<StateTransfer>("transfer")? {
                    let mut setup = field.setup(replicas, ordering)?;
                    setup.settings.state_transfer = transfer;
                    let series = format!("{ordering}, replace {name}, {transfer}, {replicas} replicas");
                    let load = with_replacement(parameters, concurrent, victim)?;
                    points.push(field.point(series, concurrent as f64, setup, load));
                }
            }
        }
        Ok(())
    })
}

fn leader_costs_more(measured: &Measured) -> Judgement {
    let mut rows = Rows::new(&["of", "c", "replace leader, ms", "replace follower, ms"]);
    let (mut least, mut most) = (f64::INFINITY, 0.0_f64);
    for leader in measured.series().into_iter().filter(|series| series.contains("replace leader")) {
        let follower = leader.replace("replace leader", "replace follower");
        for x in measured.places(leader) {
            let gap = |series| measured.mean(series, x, "gap_ms");
            let (Some(a), Some(b)) = (gap(leader), gap(&follower)) else { continue };
            let name = leader.replace(", replace leader", "");
            (least, most) = (least.min(a / b.max(1.0)), most.max(a / b.max(1.0)));
            rows.add([name, number(x), format!("{a:.0}"), format!("{b:.0}")], a > b);
        }
    }
    rows.judge(format!("longest gap, leader over follower: {least:.1} to {most:.1}"))
}

fn raft_follower_is_smooth(measured: &Measured) -> Judgement {
    at_most(measured, "gap_ms", |series| series.starts_with("raft, replace follower"), 100.0, " ms")
}

fn back_soon(measured: &Measured) -> Judgement {
    at_most(measured, "gap_ms", |_| true, 2000.0, " ms")
}

fn same_transfer(measured: &Measured) -> Judgement {
    let all = measured.series();
    let pulled = all.iter().filter(|series| series.contains(", pull, "));
    let pairs: Vec<_> = pulled
        .map(|pull| {
            (pull.split(", pull").next().unwrap_or(pull), pull.replace("pull", "eager"), (*pull).to_owned())
        })
        .collect();
    let ratios = ratios(measured, "throughput", &pairs);
    all_ratios(&ratios, "eager over pull", |ratio| is_near(ratio.value, 1.0, 0.1))
}

/// Head start.
pub const HEAD_START: Experiment = Experiment {
    name: "ng-head-start",
    title: "Sequence Paxos: a head start for the leader of the last epoch",
    source: "Ng 2020, sections 4.4.3 and 5.4.3, figure 10, table 5.1 (N78, N53, R4)",
    about: "A follower is replaced a third into the window, with the head start of the last leader and without it. \
            New replicas have the highest ids, and ballot leader election prefers those. In virtual time.",
    parameters: &[ON_VIRTUAL, VIRTUAL_WINDOW, SMALL, FEW, TRANSFER],
    headline: "throughput",
    points: head_start_points,
    charts: &[
        charts::ANSWERS,
        charts::GAP,
        Chart {
            title: Borrowed("Changes of leader"),
            metric: Borrowed("leader_changes"),
            y_label: Borrowed("in the window"),
            form: Form::Dots,
            ..charts::GAP
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
    let field = Field::new(parameters, &[Ground::Virtual])?;
    field.sweep(|replicas, concurrent, points| {
        for (name, head_start) in [("with", true), ("without", false)] {
            for transfer in parameters.list::<StateTransfer>("transfer")? {
                let mut setup = field.setup(replicas, Ordering::of(ProtocolKind::SequencePaxos))?;
                setup.settings.consensus.sequence_paxos.head_start = head_start;
                setup.settings.state_transfer = transfer;
                let series = format!("{name} head start, {transfer}, {replicas} replicas");
                let load = with_replacement(parameters, concurrent, Victim::Follower)?;
                points.push(field.point(series, concurrent as f64, setup, load));
            }
        }
        Ok(())
    })
}

/// The highest value of a metric in any run whose series has this prefix.
fn worst(measured: &Measured, metric: &str, beginning: &str) -> Option<f64> {
    highest(measured, metric, |series| series.starts_with(beginning)).map(|(value, _)| value)
}

fn stays(measured: &Measured) -> Judgement {
    let of = |metric| worst(measured, metric, "with head start");
    let (Some(changes), Some(timed_out)) = (of("leader_changes"), of("timed_out")) else {
        return Judgement::open("nothing was measured");
    };
    let reason = format!("at most {changes} changes of leader and {timed_out} time-outs in a run");
    Judgement::of(changes == 0.0 && timed_out == 0.0, reason)
}

fn otherwise_worse(measured: &Measured) -> Judgement {
    let of =
        |metric| (worst(measured, metric, "with head start"), worst(measured, metric, "without head start"));
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
        let series = |who, transfer| format!("raft, replace {who}, {transfer}, 3 replicas");
        for (who, gap) in [("leader", 1500.0), ("follower", 20.0)] {
            for transfer in ["pull", "eager"] {
                measured.add(&series(who, transfer), 100.0, "gap_ms", gap);
                measured.add(&series(who, transfer), 100.0, "timed_out", 0.0);
                measured.add(&series(who, transfer), 100.0, "throughput", 1000.0);
            }
        }
        for shape in RECONFIGURATION.shapes {
            assert_eq!((shape.judge)(&measured).verdict, Verdict::Holds, "{}", shape.id);
        }
        measured.add(&series("follower", "pull"), 100.0, "gap_ms", 5000.0);
        measured.add(&series("follower", "pull"), 100.0, "timed_out", 7.0);
        measured.add(&series("follower", "pull"), 100.0, "throughput", 2000.0);
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

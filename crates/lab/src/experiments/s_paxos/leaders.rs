//! Changes of leader under load: forced ones, and those of a time-out that is too short.

use std::{borrow::Cow::Borrowed, time::Duration};

use super::{Arrangement, COSTS, LINK, ORDERING, load, series, setup};
use crate::{
    experiments::{
        charts,
        judging::Rows,
        parameters::{ON_VIRTUAL, VIRTUAL_WINDOW},
        points::Field,
    },
    ground::{Act, Ground, Load, Ordering, Setup, What},
    study::{Chart, Experiment, Form, Judgement, LabError, Measured, Parameter, Parameters, Point, Shape},
};

const REPLICAS: usize = 3;
/// The default. What waits in front of the cards of three replicas waits for a fifth of it, and a new leader that lacks
/// something waits for a multiple of it.
const RETRANSMIT_AFTER: Duration = Duration::from_millis(100);

const WINDOW: Parameter = Parameter { default: "3", full: "20", ..VIRTUAL_WINDOW };

const THROUGHPUT: Chart = Chart { form: Form::LogLines, x_label: Borrowed("ms"), ..charts::THROUGHPUT };
const GAP: Chart = Chart { form: Form::LogLines, x_label: Borrowed("ms"), ..charts::GAP };

/// A list of milliseconds.
fn milliseconds(parameters: &Parameters, key: &str) -> Result<Vec<u64>, LabError> {
    let all: Vec<u64> = parameters.list(key)?;
    if all.iter().all(|ms| (1..=60_000).contains(ms)) {
        return Ok(all);
    }
    Err(parameters.wrong(key, "accepted: milliseconds from 1 to 60000, separated by commas"))
}

/// Forced changes.
pub const PROMOTIONS: Experiment = Experiment {
    name: "santos-promotions",
    title: "S-Paxos: the leadership is handed on again and again",
    source: "Santos 2012, section 10.4.3, figures 10.8b and 10.9 (H16)",
    about: "Three replicas, commands of 1 KiB, cards of 100 Mbit/s, saturated. Every so often the leader hands the leadership \
            to the replica before it; in the document the next replica promotes itself, which interrupts more. In the \
            document JPaxos loses throughput from once a second on and collapses at five times a second, while S-Paxos \
            keeps 70 % of its peak at twenty times a second.",
    parameters: &[
        ON_VIRTUAL,
        WINDOW,
        COSTS,
        ORDERING,
        Parameter {
            key: "every",
            help: "Milliseconds from one change to the next; several are measured one after the other.",
            default: "50,200,1000,10000",
            full: "20,50,100,200,500,1000,2000,10000,60000",
        },
    ],
    headline: "throughput",
    points: promotions,
    charts: &[THROUGHPUT, GAP, charts::ANSWERS],
    facts: &[],
    shapes: &[
        Shape {
            id: "H16a",
            claim: "with a change every 50 ms balanced keeps at least 70 % of its throughput without changes (the document: 70 %)",
            judge: |measured| kept(measured, Arrangement::Balanced, 50.0, 0.7),
        },
        Shape {
            id: "H16b",
            claim: "with a change every 200 ms balanced keeps a larger share than clients at the leader, or as much within 2 % (the \
                    document: there JPaxos collapses)",
            judge: |measured| keeps_more(measured, 200.0),
        },
    ],
};

fn promotions(parameters: &Parameters) -> Result<Vec<Point>, LabError> {
    let window = parameters.seconds("seconds")?;
    points(parameters, "every", |_, load, every| {
        let times = (1..).map(|number| every * number).take_while(|at| *at < window);
        load.acts = times.map(|at| Act { at, what: What::HandOver }).collect();
    })
}

/// Points for each time that a parameter names, with each ordering and arrangement. `change` makes of a group and its
/// load what the time means.
fn points(
    parameters: &Parameters,
    key: &str,
    change: impl Fn(&mut Setup, &mut Load, Duration),
) -> Result<Vec<Point>, LabError> {
    let field = Field::new(parameters, &[Ground::Virtual])?;
    let window = parameters.seconds("seconds")?;
    let mut points = Vec::new();
    for ordering in Ordering::list(parameters, "protocols")? {
        for time in milliseconds(parameters, key)? {
            for arrangement in Arrangement::ALL {
                let mut setup = setup(&field, parameters, REPLICAS, ordering, (LINK, arrangement))?;
                setup.settings.consensus.retransmit_after = RETRANSMIT_AFTER;
                let mut load = load(LINK, arrangement, LINK.clients * REPLICAS, window);
                change(&mut setup, &mut load, Duration::from_millis(time));
                points.push(field.point(series(LINK, ordering, arrangement), time as f64, setup, load));
            }
        }
    }
    Ok(points)
}

/// A time-out that is too short.
pub const SUSPICIONS: Experiment = Experiment {
    name: "santos-suspicions",
    title: "S-Paxos: a leader is suspected too soon",
    source: "Santos 2012, section 10.4.3, figure 10.8a (H16)",
    about: "Three replicas, commands of 1 KiB, cards of 100 Mbit/s, saturated; a leader is replaced when it was silent for the \
            time-out, and says that it lives four times as often. What waits in front of the leader's card is silence to \
            the others. In the document time-outs of 100 ms and more have no effect; below 10 ms JPaxos collapses, and \
            S-Paxos keeps 60 % of its peak at 3 ms.",
    parameters: &[
        ON_VIRTUAL,
        WINDOW,
        COSTS,
        ORDERING,
        Parameter {
            key: "timeout",
            help: "The election time-out in milliseconds; several are measured one after the other.",
            default: "3,10,30,100,1000",
            full: "3,5,10,20,30,50,100,200,1000",
        },
    ],
    headline: "throughput",
    points: suspicions,
    charts: &[
        THROUGHPUT,
        Chart {
            title: Borrowed("Changes of leader in the window"),
            metric: Borrowed("leader_changes"),
            x_label: Borrowed("ms"),
            y_label: Borrowed("changes"),
            form: Form::LogLines,
        },
        GAP,
    ],
    facts: &[],
    shapes: &[
        Shape {
            id: "H16c",
            claim: "with a time-out of 3 ms balanced keeps at least 60 % of its throughput with the longest (the document: 60 %)",
            judge: |measured| kept(measured, Arrangement::Balanced, 3.0, 0.6),
        },
        Shape {
            id: "H16d",
            claim: "with a time-out of 100 ms balanced keeps at least 95 % (the document: no effect)",
            judge: |measured| kept(measured, Arrangement::Balanced, 100.0, 0.95),
        },
        Shape {
            id: "H16e",
            claim: "with a time-out of 3 ms balanced keeps a larger share than clients at the leader, or as much within 2 % (the \
                    document: JPaxos collapses)",
            judge: |measured| keeps_more(measured, 3.0),
        },
    ],
};

fn suspicions(parameters: &Parameters) -> Result<Vec<Point>, LabError> {
    points(parameters, "timeout", |setup, _, timeout| {
        setup.settings.consensus.election_timeout = timeout;
        setup.settings.consensus.heartbeat_interval = timeout / 4;
    })
}

fn of(arrangement: Arrangement) -> String {
    format!("{}, {}", LINK.name, arrangement.name())
}

/// The share of the throughput at the last place that there is at another.
fn share(measured: &Measured, arrangement: Arrangement, x: f64) -> Option<f64> {
    let series = of(arrangement);
    let last = measured.places(&series).last().copied().filter(|last| *last > x)?;
    let peak = measured.mean(&series, last, "throughput").filter(|peak| *peak > 0.0)?;
    Some(measured.mean(&series, x, "throughput")? / peak)
}

fn kept(measured: &Measured, arrangement: Arrangement, x: f64, least: f64) -> Judgement {
    match share(measured, arrangement, x) {
        Some(share) => {
            Judgement::of(share >= least, format!("{}: {:.0} % at {x} ms", arrangement.name(), share * 100.0))
        }
        None => Judgement::open(format!("{x} ms and a longer time were not both measured")),
    }
}

fn keeps_more(measured: &Measured, x: f64) -> Judgement {
    let mut rows = Rows::new(&["ms", "balanced keeps, %", "the other keeps, %", "the other"]);
    let Some(own) = share(measured, Arrangement::Balanced, x) else {
        return Judgement::open(format!("{x} ms and a longer time were not both measured"));
    };
    let Some(other) = share(measured, Arrangement::AtLeader, x) else {
        return Judgement::open("clients at the leader were not measured");
    };
    let percent = |share: f64| format!("{:.0}", share * 100.0);
    let name = Arrangement::AtLeader.name().to_owned();
    rows.add([format!("{x}"), percent(own), percent(other), name], own >= other - 0.02);
    rows.judge(format!("{} % against {} %", percent(own), percent(other)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::Verdict;

    #[test]
    fn shares_are_those_of_the_longest_time() {
        let mut measured = Measured::default();
        for (arrangement, short, long) in
            [(Arrangement::Balanced, 70.0, 100.0), (Arrangement::AtLeader, 40.0, 50.0)]
        {
            measured.add(&of(arrangement), 50.0, "throughput", short);
            measured.add(&of(arrangement), 1000.0, "throughput", long);
        }
        assert_eq!(kept(&measured, Arrangement::Balanced, 50.0, 0.7).verdict, Verdict::Holds);
        assert_eq!(kept(&measured, Arrangement::Balanced, 50.0, 0.71).verdict, Verdict::DoesNotHold);
        assert_eq!(kept(&measured, Arrangement::Balanced, 1000.0, 0.7).verdict, Verdict::NotDecided);
        assert_eq!(keeps_more(&measured, 50.0).verdict, Verdict::DoesNotHold);
    }
}

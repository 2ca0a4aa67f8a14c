//! What waits in the merge of two rings, and what skips cost.

use std::time::Duration;

use synod_replica::Skips;

use super::{FAST_CARD, SKIPS, SMALL_BYTES, figures, load, merging, point, ring, setup, waiting};
use crate::{
    experiments::{
        charts::chart,
        judging::Rows,
        parameters::{ON_VIRTUAL, SHORT_WINDOW},
        points::Field,
        s_paxos::COSTS,
    },
    ground::{
        Act, Asked, Ground, Load, What,
        virtual_time::{Groups, Ran},
    },
    study::{
        Chart, Event, Experiment, Form, Judgement, LabError, Measured, Parameter, Parameters, Point, Sample,
        Shape,
    },
};

/// What the clients of two groups do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Busy {
    Neither,
    One,
    Both,
    /// One, and the leader of the other group stops for a second.
    Pause,
}

impl Busy {
    const ALL: [Busy; 4] = [Busy::Neither, Busy::One, Busy::Both, Busy::Pause];

    const fn name(self) -> &'static str {
        match self {
            Busy::Neither => "none busy",
            Busy::One => "one busy",
            Busy::Both => "both busy",
            Busy::Pause => "one busy and a pause",
        }
    }
}

/// Commands a second of a busy ring.
const RATE: f64 = 1000.0;
/// How long the leader of the idle group stops.
const PAUSE: Duration = Duration::from_secs(1);
/// From one machine to another in the topology `single-dc`: by so much the merging machine may learn a decision before
/// the proposer does.
const WAY_MS: f64 = 0.1;
/// The interval in which a group looks ahead, with room for an interval that had begun (Benz 2013: Δt).
const TWO_TICKS: Duration = Duration::from_millis(200);

/// A dot plot of a figure that each arrangement has once.
const fn dots(title: &'static str, metric: &'static str, y_label: &'static str) -> Chart {
    chart(Form::Dots, title, metric, y_label, "groups")
}

/// Skips under three loads, with each policy.
pub const EXPERIMENT: Experiment = Experiment {
    name: "benz-skips",
    title: "Multi-Ring: what waits in the merge of two rings, and what skips cost",
    source: "Benz 2013, section 4.3.2, figure 4.6 (R6, B70, B77, B83)",
    about: "Two rings of three machines each; a seventh machine learns both and executes them in one order. Each \
            machine has a card of 1 Gbit/s. At the leader of a busy ring 1,000 commands come a second, at random, \
            of 8 KiB if not told otherwise; at that of an idle one none. (The document's proposer had ten values under way, 680 Mbit/s.) With \
            lambda, half more than a busy ring orders, the rings know nothing of each other, as in the document. With \
            follow and demand the machines of each ring learn the other one as well, as each node of a Synod cluster \
            learns all groups. What an idle ring sends without any skips is measured beside that. In the last case \
            the leader of the idle ring does nothing for a second, in the middle of the window. What waits is looked \
            at every 10 ms.",
    parameters: &[
        ON_VIRTUAL,
        Parameter { default: "8", full: "600", ..SHORT_WINDOW },
        COSTS,
        Parameter {
            help: "When groups skip, as `synod serve --skips` has it, separated by commas.",
            default: "lambda:1500,follow,demand",
            full: "lambda:1500,follow,demand",
            ..SKIPS
        },
        Parameter {
            key: "bytes",
            help: "Bytes of a command. All that is ordered stays in memory.",
            default: "8192",
            full: "256",
        },
    ],
    headline: "throughput",
    points: points_of_skips,
    charts: &[
        chart(Form::Levels, "Batches that wait in the merge", "waiting", "batches", "seconds"),
        dots("The most batches that waited", "waiting_max", "batches"),
        dots("Median latency at the proposer", "decided_ms", "ms"),
        dots("Median latency at the merge", "merged_ms", "ms"),
        dots("Skips of the second ring", "skips", "skips a second"),
        dots("What the second ring sends", "second_bytes", "kbit/s"),
        dots("Messages of the second ring", "second_messages", "messages a second"),
    ],
    facts: &[],
    shapes: &[
        Shape {
            id: "R6a",
            claim: "while nothing is proposed, at most one batch of each ring waits, and there are no skips under \
                    follow and demand (B76)",
            judge: idle,
        },
        Shape {
            id: "R6b",
            claim: "if one ring is busy, at most as many of its batches wait as it orders in 100 ms and the latency \
                    of a decision (and three standard deviations of that more, since commands come at random), in \
                    either half of the window",
            judge: |measured| bounded(measured, Busy::One),
        },
        Shape {
            id: "R6c",
            claim: "if both are busy, the same holds of each: what waits does not grow",
            judge: |measured| bounded(measured, Busy::Both),
        },
        Shape {
            id: "R6d",
            claim: "if the leader of the idle ring stops for a second, the same holds from two intervals after that \
                    on (B77)",
            judge: |measured| bounded(measured, Busy::Pause),
        },
        Shape {
            id: "B83",
            claim: "a command is executed in the merge no sooner than its proposer hears of it, less the way from one \
                    machine to another",
            judge: |measured| {
                let mut rows = Rows::new(&["policy and load", "at the proposer, ms", "in the merge, ms"]);
                for series in measured.series() {
                    let mean = |metric| measured.mean(series, 2.0, metric);
                    let (Some(decided), Some(merged)) = (mean("decided_ms"), mean("merged_ms")) else {
                        continue;
                    };
                    if decided > 0.0 {
                        let cells = [series.to_owned(), format!("{decided:.2}"), format!("{merged:.2}")];
                        rows.add(cells, merged >= decided - WAY_MS);
                    }
                }
                rows.judge("median latency at the proposer and in the merge")
            },
        },
        Shape {
            id: "B70",
            claim: "under lambda an idle ring proposes at most ten skips a second, and a skip takes less than 2 kB of \
                    all links together (the document: 40 bytes a message)",
            judge: traffic,
        },
    ],
};

fn points_of_skips(parameters: &Parameters) -> Result<Vec<Point>, LabError> {
    let field = Field::new(parameters, &[Ground::Virtual])?;
    let window = parameters.seconds("seconds")?;
    let bytes = parameters.count("bytes", 8..=SMALL_BYTES as u64)? as usize;
    let mut points = Vec::new();
    let mut add = |name: &str, skips, apart, busy| {
        let setup = setup(&field, parameters, 7, Some(FAST_CARD))?;
        let groups = two_rings(skips, apart, busy, bytes, window);
        let sum_up = move |ran: &Ran| of_two(ran, busy, bytes, window);
        points.push(point(format!("{name}, {}", busy.name()), 2.0, setup, groups, sum_up));
        Ok::<(), LabError>(())
    };
    add(NO_SKIPS, Skips::Demand, true, Busy::Neither)?;
    for skips in parameters.list::<Skips>("skips")? {
        let apart = matches!(skips, Skips::Lambda(_));
        Busy::ALL.into_iter().try_for_each(|busy| add(&skips.to_string(), skips, apart, busy))?;
    }
    Ok(points)
}

/// Two idle rings that know nothing of each other, and so have no reason to skip.
const NO_SKIPS: &str = "no skips";

/// Two rings, and the machine that merges them. If they are `apart` the machines of one ring do not learn the other.
fn two_rings(skips: Skips, apart: bool, busy: Busy, bytes: usize, window: Duration) -> Groups {
    let load = |busy: bool| Load { rate: busy.then_some(RATE), ..load(Asked::Leader, 0, bytes, window) };
    let mut second = load(busy == Busy::Both);
    if busy == Busy::Pause {
        second.acts = vec![Act { at: window / 2, what: What::Pause(PAUSE) }];
    }
    let learners = |own: std::ops::Range<usize>| {
        let learns = |place: &usize| if apart { *place == 6 } else { !own.contains(place) };
        (0..7).filter(learns).collect()
    };
    let first = ring(0..3, learners(0..3), load(busy != Busy::Neither));
    let groups = vec![first, ring(3..6, learners(3..6), second)];
    Groups { groups, merge: merging(skips, vec![6]) }
}

/// The figures of two rings.
fn of_two(ran: &Ran, busy: Busy, bytes: usize, window: Duration) -> Sample {
    let (mut figures, seconds) = (figures(ran, bytes), ran.groups[0].seconds);
    let (sent, waiting) = (ran.sent[1], waiting(ran));
    let half = waiting.len() / 2;
    // After a pause counts what is there once it should be over.
    let settled = if busy == Busy::Pause { (PAUSE + TWO_TICKS).as_millis() as usize / 100 } else { 0 };
    let most = |of: &[u64]| of.iter().copied().max().map(|most| most as f64);
    let halves = [
        ("waiting_first_half", waiting.get(..half).and_then(most)),
        ("waiting_second_half", waiting.get(half + settled..).and_then(most)),
    ];
    figures.extend(halves.into_iter().filter_map(|(name, most)| Some((name, most?))));
    figures.extend([
        ("skips", sent.skips as f64 / seconds),
        ("second_bytes", sent.bytes as f64 * 8e-3 / seconds),
        ("second_messages", sent.messages as f64 / seconds),
    ]);
    let at = (window / 2).as_secs_f64();
    let events = (busy == Busy::Pause).then(|| Event { at, what: What::Pause(PAUSE).to_string() });
    let timeline = waiting.iter().map(|&waiting| waiting as f64).collect();
    Sample { figures, timeline, events: events.into_iter().collect() }
}

/// The series of a load.
fn series_under(measured: &Measured, busy: Busy) -> impl Iterator<Item = &str> {
    let under = move |series: &&str| series.split_once(", ").is_some_and(|(_, load)| load == busy.name());
    measured.series().into_iter().filter(under)
}

fn idle(measured: &Measured) -> Judgement {
    let mut rows = Rows::new(&["policy", "the most that waited", "skips a second"]);
    for series in series_under(measured, Busy::Neither) {
        let mean = |metric| measured.mean(series, 2.0, metric);
        let (Some(waiting), Some(skips)) = (mean("waiting_max"), mean("skips")) else { continue };
        let may_skip = series.starts_with("lambda");
        let cells = [series.to_owned(), format!("{waiting:.0}"), format!("{skips:.1}")];
        rows.add(cells, waiting <= 1.0 && (may_skip || skips == 0.0));
    }
    rows.judge("without any load")
}

/// Of a busy ring wait the commands that it orders until the other ring's next skip is decided: as many as come in an
/// interval and the latency of a decision, for which that of the busy ring stands. That is so if the rings begin
/// together (the document's did not), and then what waits never grows; so the most that was seen counts, in each half
/// of the window.
///
/// Here commands come at random, on average N in that time, with a standard deviation of √N. The most of some forty
/// intervals is compared, so N alone would be exceeded in each run. One in about 600 intervals exceeds N + 3√N.
fn bounded(measured: &Measured, busy: Busy) -> Judgement {
    let mut rows = Rows::new(&["policy", "first half, the most", "second half, the most", "bound"]);
    for series in series_under(measured, busy) {
        let mean = |metric| measured.mean(series, 2.0, metric);
        let (Some(first), Some(second)) = (mean("waiting_first_half"), mean("waiting_second_half")) else {
            continue;
        };
        let (Some(rate), Some(decided)) = (mean("throughput"), mean("decided_ms")) else { continue };
        let rate = if busy == Busy::Both { rate / 2.0 } else { rate };
        let mean = rate * (0.1 + decided / 1e3);
        let bound = mean + 3.0 * mean.sqrt();
        let cells = [series.to_owned(), format!("{first:.0}"), format!("{second:.0}"), format!("{bound:.0}")];
        rows.add(cells, first.max(second) <= bound);
    }
    rows.judge("batches that waited, beside their bound")
}

fn traffic(measured: &Measured) -> Judgement {
    let mut rows = Rows::new(&["policy", "skips a second", "messages a skip", "bytes a skip"]);
    let of = |series: &str, metric| measured.mean(series, 2.0, metric);
    let silent = format!("{NO_SKIPS}, {}", Busy::Neither.name());
    for series in series_under(measured, Busy::Neither).filter(|series| series.starts_with("lambda")) {
        let more = |metric| Some(of(series, metric)? - of(&silent, metric)?);
        let (Some(skips), Some(messages), Some(kilobits)) =
            (of(series, "skips"), more("second_messages"), more("second_bytes"))
        else {
            return Judgement::open("an idle ring without skips was not measured");
        };
        let (messages, bytes) = (messages / skips, kilobits * 125.0 / skips);
        let cells =
            [series.to_owned(), format!("{skips:.1}"), format!("{messages:.1}"), format!("{bytes:.0}")];
        rows.add(cells, skips <= 10.1 && bytes < 2000.0);
    }
    rows.judge("what an idle ring sends, less what it sends without skips")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::Verdict;

    #[test]
    fn what_grows_in_the_merge_is_noticed() {
        let verdict = |second: f64| {
            let mut measured = Measured::default();
            let series = format!("follow, {}", Busy::One.name());
            for (metric, value) in [
                ("throughput", 1000.0),
                ("decided_ms", 10.0),
                ("waiting_first_half", 100.0),
                ("waiting_second_half", second),
            ] {
                measured.add(&series, 2.0, metric, value);
            }
            bounded(&measured, Busy::One).verdict
        };
        assert_eq!((verdict(140.0), verdict(143.0)), (Verdict::Holds, Verdict::DoesNotHold));
    }
}

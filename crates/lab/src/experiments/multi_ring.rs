//! Multi-Ring Paxos (Benz 2013, section 4.3.2): rings whose batches are executed in one order.
//!
//! The document's rings ran on machines of their own, each proposer beside a ring's replica, and one machine more
//! learned all rings and merged them. So do these, in virtual time: the replicas' own code with the real merge
//! (`synod_replica::MergedExecutor`) and its skips, and the costs that were measured on the real program. A machine has
//! one processor, which all its groups share, as all groups of a node share one thread; one network card; and one disk
//! with one log. Each command is a batch of its own, as each value is an instance in the document.

use std::{collections::BTreeMap, time::Duration};

use hdrhistogram::Histogram;
use synod_consensus::ProtocolKind;
use synod_replica::{Skips, Take};
use synod_storage::Durability;
use synod_wire::COMMAND_HEADER_BYTES;

use super::{
    charts::{chart, lines},
    judging::Rows,
    parameters::{ON_VIRTUAL, SHORT_WINDOW},
    points::{Field, of_round},
    s_paxos::COSTS,
};
use crate::{
    ground::{
        Act, Asked, Ground, Load, Ordering, Setup, What,
        hardware::Costs,
        virtual_time::{self, Groups, Merging, Ran, Seats},
    },
    net::Topology,
    study::{
        Chart, Conduct, Event, Experiment, Form, Judgement, LabError, Measured, Parameter, Parameters, Point,
        Sample, Shape,
    },
};

/// Megabits a second of a card where the figures of the document are compared with those of its machines.
const FAST_CARD: f64 = 1000.0;
/// Megabits a second of a card that is the bottleneck whatever the processor costs.
const SLOW_CARD: f64 = 100.0;

/// The document's size of values.
const DOCUMENT_BYTES: usize = 32 << 10;
/// The document's size with the best throughput for its latency.
const SMALL_BYTES: usize = 8 << 10;
/// Commands that the three proposers of a ring have under way together, each the same number.
const UNDER_WAY: usize = 12;

/// Commands that the two proposers of a local ring have under way together.
const LOCAL_UNDER_WAY: usize = 40;
/// Commands that the three proposers of the global ring have under way together (the document: ten each).
const GLOBAL_UNDER_WAY: usize = 30;

/// The document has 600 positions in each 100 ms: half more than a link of 1 Gbit/s carries values of 32 KiB.
const SKIPS: Parameter = Parameter {
    key: "skips",
    help: "When a group skips, as `synod serve --skips` has it.",
    default: "lambda:6000",
    full: "lambda:6000",
};

const RINGS: Parameter = Parameter {
    key: "rings",
    help: "How many rings there are, separated by commas.",
    default: "1,2,3,4,5",
    full: "1,2,3,4,5",
};

/// A curve over the number of rings.
const fn by_rings(title: &'static str, metric: &'static str, y_label: &'static str) -> Chart {
    lines(title, metric, y_label, "rings")
}

const ORDERED: Chart = by_rings("Bytes of commands that the rings order", "goodput", "Mbit/s");
const EXECUTED: Chart =
    by_rings("Bytes of commands that are executed in one order", "merged_goodput", "Mbit/s");
const AT_THE_PROPOSER: Chart = by_rings("Median latency at the proposer", "decided_ms", "ms");
const BUSY_MERGER: Chart = by_rings("Processor of the merging machine", "merger_busy", "%");

/// A dot plot of a figure that each arrangement has once.
const fn dots(title: &'static str, metric: &'static str, y_label: &'static str) -> Chart {
    chart(Form::Dots, title, metric, y_label, "groups")
}

/// The setup of machines with these cards.
fn setup(
    field: &Field<'_>,
    parameters: &Parameters,
    machines: usize,
    megabits: Option<f64>,
) -> Result<Setup, LabError> {
    let costs = Costs::named(parameters.text("costs"))?;
    let ordering = Ordering::of(ProtocolKind::Ring);
    let mut setup = field.machines(machines, ordering, costs, megabits, "single-dc")?;
    setup.settings.batch_bytes_max = 1;
    Ok(setup)
}

/// Proposers beside the replicas that they ask, which have so many commands under way together.
fn load(asked: Asked, concurrent: usize, value_bytes: usize, window: Duration) -> Load {
    Load { asked, beside: true, value_bytes, ..Load::new(concurrent, window) }
}

/// A group of these voters, the first of which is to lead.
fn ring(voters: impl IntoIterator<Item = usize>, learners: Vec<usize>, load: Load) -> Seats {
    let voters: Vec<_> = voters.into_iter().collect();
    Seats { leader: voters.first().copied(), voters, learners, load }
}

/// A merge at these machines, a batch of each group in turn.
fn merging(skips: Skips, at: Vec<usize>) -> Option<Merging> {
    Some(Merging { take: Take::MIN, skips, at })
}

/// A point that runs groups, and sums up what came of it.
fn point(
    series: impl Into<String>,
    x: f64,
    setup: Setup,
    groups: Groups,
    sum_up: impl Fn(&Ran) -> Sample + 'static,
) -> Point {
    let measure = move |conduct: &Conduct| {
        Ok(sum_up(&virtual_time::run_groups(&of_round(&setup, conduct), &groups, conduct)?))
    };
    Point { series: series.into(), x, measure: Box::new(measure) }
}

/// All these latencies.
fn together<'a>(latencies: impl IntoIterator<Item = &'a Histogram<u64>>) -> Histogram<u64> {
    let mut all = Histogram::new_with_bounds(1, 600_000_000_000, 3).expect("constant bounds");
    for one in latencies {
        all.add(one).expect("they have the same bounds or narrower ones");
    }
    all
}

/// The figures that all experiments have: of the commands of all groups, and of the machine that merges all of them.
fn figures(ran: &Ran, value_bytes: usize) -> BTreeMap<&'static str, f64> {
    let seconds = ran.groups[0].seconds;
    let megabits = |commands: u64| commands as f64 * value_bytes as f64 * 8e-6 / seconds;
    let answered = ran.groups.iter().map(|group| group.answered).sum::<u64>();
    let decided = together(ran.groups.iter().map(|group| &group.latency));
    let latencies = together(ran.merged.iter().map(|merged| &merged.latency));
    let quantile = |of: &Histogram<u64>, share| of.value_at_quantile(share) as f64 / 1e6;
    let merger = ran.merged.last().map(|merged| ran.usage[merged.place]).unwrap_or_default();
    let others = &ran.usage[..ran.usage.len() - 1];
    let busiest = others.iter().map(|usage| usage.busy).fold(0.0, f64::max);
    BTreeMap::from([
        ("throughput", answered as f64 / seconds),
        ("goodput", megabits(answered)),
        ("merged_goodput", megabits(latencies.len())),
        ("decided_ms", quantile(&decided, 0.5)),
        ("merged_ms", quantile(&latencies, 0.5)),
        ("merged_p99_ms", quantile(&latencies, 0.99)),
        ("merger_received", merger.received * 8e-6 / seconds),
        ("merger_busy", 100.0 * merger.busy / seconds),
        ("ring_busy", 100.0 * busiest / seconds),
        ("waiting_max", waiting(ran).into_iter().max().unwrap_or(0) as f64),
    ])
}

/// The most batches of a group that waited for other groups, in tenths of a second.
fn waiting(ran: &Ran) -> Vec<u64> {
    let mut all: Vec<u64> = Vec::new();
    for merged in &ran.merged {
        all.resize(all.len().max(merged.waiting.len()), 0);
        all.iter_mut().zip(&merged.waiting).for_each(|(most, one)| *most = (*most).max(*one));
    }
    all
}

// Skips.

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
/// The interval in which a group looks ahead, with room for an interval that had begun (Benz 2013: Δt).
const TWO_TICKS: Duration = Duration::from_millis(200);

/// Skips under three loads, with each policy.
pub const SKIPS_OF_TWO: Experiment = Experiment {
    name: "benz-skips",
    title: "Multi-Ring: what waits in the merge of two rings, and what skips cost",
    source: "Benz 2013, section 4.3.2, figure 4.6 (R6, B70, B77, B83)",
    about: "Two rings of three machines each; a seventh machine learns both and executes them in one order. Each \
            machine has a card of 1 Gbit/s. At the leader of a busy ring 1,000 commands of 8 KiB come a second, at \
            random; at that of an idle one none. (The document's proposer had ten values under way, 680 Mbit/s.) With \
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
                        rows.add(cells, merged >= decided - 0.5);
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
    let mut points = Vec::new();
    let mut add = |name: &str, skips, apart, busy| {
        let setup = setup(&field, parameters, 7, Some(FAST_CARD))?;
        let groups = two_rings(skips, apart, busy, window);
        let sum_up = move |ran: &Ran| of_two(ran, busy, window);
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
fn two_rings(skips: Skips, apart: bool, busy: Busy, window: Duration) -> Groups {
    let load =
        |busy: bool| Load { rate: busy.then_some(RATE), ..load(Asked::Leader, 0, SMALL_BYTES, window) };
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
fn of_two(ran: &Ran, busy: Busy, window: Duration) -> Sample {
    let (mut figures, seconds) = (figures(ran, SMALL_BYTES), ran.groups[0].seconds);
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

/// What waits stays below what a ring orders in an interval and the latency of a decision, in both halves of the
/// window.
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

// Rings on machines of their own.

/// Merged throughput by the number of rings.
pub const MERGED: Experiment = Experiment {
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
    facts: &[crate::study::Fact {
        series: std::borrow::Cow::Borrowed("slow disks"),
        x: 5.0,
        metric: std::borrow::Cow::Borrowed("merged_goodput"),
        value: 600.0,
        place: std::borrow::Cow::Borrowed("section 4.3.2: five rings on disks of 7,200 a minute"),
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

/// How many groups there are at each point.
fn numbers(parameters: &Parameters, key: &str, most: usize) -> Result<Vec<usize>, LabError> {
    let all: Vec<usize> = parameters.list(key)?;
    if all.iter().all(|number| (1..=most).contains(number)) {
        return Ok(all);
    }
    Err(parameters.wrong(key, format!("accepted: 1 to {most}, separated by commas")))
}

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

// Rings on the same machines.

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
pub const PER_NODE: Experiment = Experiment {
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
            claim: "rings that leave the processor free add up: throughput grows with each ring until the processor \
                    of one of their machines is full, or the card",
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

/// Percent of a processor, or of a card, from which on it counts as full.
const FULL: f64 = 90.0;

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
            // Each body leaves its ring's three machines three times: twice for the ring, and once for the merging
            // machine.
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

// Local rings and a global one.

/// Local rings with and without a global one.
pub const GLOBAL: Experiment = Experiment {
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
            claim: "in the merge a command takes at least as long as a skip of the slowest ring takes to be decided, \
                    half a circle of the global ring",
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

fn merged_later(measured: &Measured) -> Judgement {
    let global = (REGIONS + 1) as f64;
    let Some(slowest) = measured.mean(WITH, global, "decided_ms") else {
        return Judgement::open("the global ring was not measured");
    };
    let mut rows =
        Rows::new(&["ring", "at the proposer, ms", "in the merge, ms", "without the global ring, ms"]);
    for x in measured.places(WITH) {
        let (Some(decided), Some(merged)) =
            (measured.mean(WITH, x, "decided_ms"), measured.mean(WITH, x, "merged_ms"))
        else {
            continue;
        };
        let alone = measured.mean(WITHOUT, x, "merged_ms").map_or("-".to_owned(), |ms| format!("{ms:.2}"));
        let cells = [format!("{x}"), format!("{decided:.2}"), format!("{merged:.2}"), alone];
        // The proposers of the global ring are at machines that merge, and are answered when that has its turn.
        rows.add(cells, merged >= slowest / 2.0 && (x == global || merged >= decided));
    }
    rows.judge(format!("the global ring decides in {slowest:.0} ms"))
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

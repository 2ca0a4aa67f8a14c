//! What a ring orders by how many batches its coordinator has under way.

use synod_consensus::ring::RingOrder;

use super::{CARD, VALUE_BYTES, Way, order::round_ms, regime};
use crate::{
    experiments::{
        charts::log_lines,
        judging::Rows,
        parameters::{ON_VIRTUAL, SHORT_WINDOW},
        points::Field,
        s_paxos::{COSTS, load, setup, with_figure},
    },
    ground::{Ground, Load},
    net::Topology,
    study::{Experiment, Judgement, LabError, Measured, Parameter, Parameters, Point, Shape},
};

/// Throughput and latency by the window.
pub const EXPERIMENT: Experiment = Experiment {
    name: "benz-window",
    title: "Ring: throughput and latency by what may be under way",
    source: "Benz 2013, section 4.3.1, figure 4.1 (R2)",
    about: "A ring of three replicas in three regions, whose round takes 145 ms (the topology `regions`), with network \
            cards of 100 Mbit/s. Clients run beside the coordinator. A command of 8 KiB is a batch, and the coordinator \
            has as many batches under way as its window allows; twice as many commands wait. The document varies the \
            receive windows of its sockets, which bound what is under way on a link; here the window of a proposer bounds \
            it for the whole ring.",
    parameters: &[
        ON_VIRTUAL,
        Parameter { default: "5", full: "30", ..SHORT_WINDOW },
        COSTS,
        Parameter {
            key: "windows",
            help: "Batches that a proposer may have under way, separated by commas.",
            default: "14,55,110,221,886,1772",
            full: "14,28,55,110,221,442,886,1772",
        },
    ],
    headline: "throughput",
    points: points_by_window,
    charts: &[
        log_lines("Throughput", "throughput", "commands a second", "batches under way"),
        log_lines("Median latency", "median_ms", "ms", "batches under way"),
    ],
    facts: &[],
    shapes: &[
        Shape {
            id: "R2a",
            claim: "windows of at most half of what a card carries in one round give window over round, within 10 %",
            judge: |measured| by_window(measured, |share| share <= 0.5, |share| share),
        },
        Shape {
            id: "R2b",
            claim: "windows of at least four times that give what a card carries, within 10 %",
            judge: |measured| by_window(measured, |share| share >= 4.0, |_| 1.0),
        },
        Shape {
            id: "R2c",
            claim: "from there on latency grows as the window does, within 10 %",
            judge: latency_grows,
        },
    ],
};

/// Commands a second of [`VALUE_BYTES`] that a card carries.
const CARD_COMMANDS: f64 = CARD * 1e6 / 8.0 / VALUE_BYTES as f64;

fn points_by_window(parameters: &Parameters) -> Result<Vec<Point>, LabError> {
    let field = Field::new(parameters, &[Ground::Virtual])?;
    let window = parameters.seconds("seconds")?;
    let topology = Topology::named("regions")?.in_turn();
    let round = round_ms(&topology, 3, RingOrder::Role)? / 1e3;
    let mut points = Vec::new();
    for batches in parameters.list::<usize>("windows")? {
        if !(1..=2048).contains(&batches) {
            return Err(parameters.wrong("windows", "accepted: 1 to 2048 batches"));
        }
        let (way, regime) = (Way::RingOfOne, regime(VALUE_BYTES));
        let mut setup = setup(&field, parameters, 3, way.ordering(), (regime, way.arrangement()))?;
        setup.topology = Some(topology.clone());
        setup.priorities = vec![u8::MAX, 0, 0];
        setup.settings.consensus.window_max = batches;
        setup.settings.batch_bytes_max = 1;
        let load = load(regime, way.arrangement(), 2 * batches, window);
        let load = Load { beside: true, warm_up: window, ..load };
        let point = field.point(way.name(), batches as f64, setup, load);
        points.push(with_figure(point, "of_round", batches as f64 / (CARD_COMMANDS * round)));
    }
    Ok(points)
}

/// Judges the windows of which `counts` is true, given their part of what a card carries in one round. `promised` is
/// the throughput then, as a part of what a card carries.
fn by_window(measured: &Measured, counts: fn(f64) -> bool, promised: fn(f64) -> f64) -> Judgement {
    let mut rows =
        Rows::new(&["batches", "of what a card carries in a round", "of what a card carries", "promised"]);
    let series = Way::RingOfOne.name();
    for x in measured.places(series) {
        let mean = |metric| measured.mean(series, x, metric);
        let (Some(throughput), Some(of_round)) = (mean("throughput"), mean("of_round")) else { continue };
        if counts(of_round) {
            let (of_card, promised) = (throughput / CARD_COMMANDS, promised(of_round));
            let figures = [of_round, of_card, promised].map(|value| format!("{value:.2}"));
            let cells = [&[format!("{x}")][..], &figures].concat();
            rows.add(cells, (of_card / promised - 1.0).abs() <= 0.1);
        }
    }
    rows.judge("throughput")
}

fn latency_grows(measured: &Measured) -> Judgement {
    let mut rows = Rows::new(&["batches", "median, ms", "over that of the first", "promised"]);
    let series = Way::RingOfOne.name();
    let mean = |x, metric| measured.mean(series, x, metric);
    let large = |x: &f64| mean(*x, "of_round").is_some_and(|share| share >= 4.0);
    let large: Vec<f64> = measured.places(series).into_iter().filter(large).collect();
    let median = |x| mean(x, "median_ms").filter(|ms| *ms > 0.0);
    for pair in large.windows(2) {
        let (first, x) = (large[0], pair[1]);
        let (Some(least), Some(median)) = (median(first), median(x)) else { continue };
        let (ratio, promised) = (median / least, x / first);
        let cells = [format!("{x}"), format!("{median:.0}"), format!("{ratio:.2}"), format!("{promised:.2}")];
        rows.add(cells, (ratio / promised - 1.0).abs() <= 0.1);
    }
    rows.judge("median latency")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::Verdict;

    #[test]
    fn a_window_that_gives_less_than_it_allows_is_noticed() {
        let verdicts = |small: f64, large: f64| {
            let mut measured = Measured::default();
            for (x, of_round, of_card) in [(55.0, 0.25, small), (884.0, 4.0, large), (1768.0, 8.0, 0.95)] {
                measured.add(Way::RingOfOne.name(), x, "of_round", of_round);
                measured.add(Way::RingOfOne.name(), x, "throughput", of_card * CARD_COMMANDS);
                measured.add(Way::RingOfOne.name(), x, "median_ms", x / of_card);
            }
            [0, 1, 2].map(|at| (EXPERIMENT.shapes[at].judge)(&measured).verdict)
        };
        let (yes, no) = (Verdict::Holds, Verdict::DoesNotHold);
        assert_eq!(verdicts(0.24, 0.95), [yes, yes, yes]);
        assert_eq!(verdicts(0.22, 0.8), [no, no, no]);
    }
}

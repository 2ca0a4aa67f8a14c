//! The order of a ring whose members are far from each other.

use synod_consensus::ring::RingOrder;

use super::{FEW, Way, regime};
use crate::{
    experiments::{
        charts::lines,
        judging::Rows,
        parameters::{ON_VIRTUAL, REPLICAS, SHORT_WINDOW, sizes},
        points::Field,
        s_paxos::{COSTS, Regime, load, setup, with_figure},
        wide_area::spread_out,
    },
    ground::{Ground, Load},
    net::Topology,
    study::{Experiment, Judgement, LabError, Measured, Parameter, Parameters, Point, Shape},
};

/// Latency and throughput by the order of the ring.
pub const EXPERIMENT: Experiment = Experiment {
    name: "benz-ring-order",
    title: "Ring: latency and throughput by its order, where replicas are far from each other",
    source: "Benz 2013, section 5.2 (B66, B67)",
    about: "Replicas stand in turn in three regions, 35, 40 and 70 ms from each other (the topology `regions`), so that \
            the order of their numbers goes from region to region at every hop. The measured order is what the \
            coordinator chooses from the delays that members measure. Clients run beside the coordinator, or beside all \
            members, and keep few commands of 256 bytes under way, so that the time of a round is what limits. A member \
            behind the coordinator and before the one at which the votes reach a quorum waits for two rounds. Beside that \
            five replicas 1 ms from each other (the topology `narrow-path`), with commands of 8 KiB from clients beside the \
            coordinator: the path from the second to the third carries 10 Mbit/s, and all others 100.",
    parameters: &[
        ON_VIRTUAL,
        Parameter { default: "10", full: "60", ..SHORT_WINDOW },
        COSTS,
        Parameter { default: "3,6,9", full: "3,4,5,6,9,12", ..REPLICAS },
    ],
    headline: "median_ms",
    points: all_points,
    charts: &[
        lines("Median latency", "median_ms", "ms", "replicas"),
        lines("Throughput", "throughput", "commands a second", "replicas"),
        lines("Mean latency of the member that waits the least", "soonest_mean_ms", "ms", "replicas"),
        lines("Mean latency of the member that waits the most", "latest_mean_ms", "ms", "replicas"),
    ],
    facts: &[],
    shapes: &[
        Shape {
            id: "R5-positions",
            claim: "if clients ask all members, those of some member wait for one round of the links on average, and those \
                    of a member between the coordinator and the decision, which there is from 4 replicas on, for two, \
                    within 5 %",
            judge: waits_by_position,
        },
        Shape {
            id: "B66",
            claim: "clients at the coordinator wait for one round of the links, within 5 %: in the order of the \
                    numbers, or in the shortest",
            judge: waits_one_round,
        },
        Shape {
            id: "B67",
            claim: "with the same number of commands under way, the measured order gives at least 90 % of the \
                    throughput that its shorter round promises",
            judge: gains_by_order,
        },
        Shape {
            id: "13.5",
            claim: "a measured order goes round a path that carries a tenth of the others: at least half of the commands that \
                    such paths carry (a penalty for slow links, which the document has not)",
            judge: goes_round,
        },
    ],
};

/// So few bytes that what carries them takes no time beside the links.
const ORDER_BYTES: usize = 256;

/// Election time-outs that pass before answers count, in which the coordinator chooses the order.
const SETTLES: u32 = 12;

fn series_of(way: Way, order: RingOrder) -> String {
    format!("{}, order by {order}", way.name())
}

/// The size of a group in which one path is narrow.
const NARROW: usize = 5;
/// Megabits a second of its other paths.
const WIDE: f64 = 100.0;
/// Bytes of its commands.
const NARROW_BYTES: usize = 8192;

fn all_points(parameters: &Parameters) -> Result<Vec<Point>, LabError> {
    let mut points = points_by_order(parameters)?;
    points.extend(points_with_a_narrow_path(parameters)?);
    Ok(points)
}

fn narrow_series_of(order: RingOrder) -> String {
    format!("one narrow path, order by {order}")
}

fn points_with_a_narrow_path(parameters: &Parameters) -> Result<Vec<Point>, LabError> {
    let field = Field::new(parameters, &[Ground::Virtual])?;
    let window = parameters.seconds("seconds")?;
    let regime = Regime { megabits: None, ..regime(NARROW_BYTES) };
    let way = Way::RingOfOne;
    let points = RingOrder::ALL.iter().map(|&(_, order)| {
        let mut setup = setup(&field, parameters, NARROW, way.ordering(), (regime, way.arrangement()))?;
        spread_out(&mut setup, Topology::named("narrow-path")?, Some(0));
        setup.settings.consensus.ring.order = order;
        let warm_up = setup.settings.consensus.election_timeout * SETTLES;
        let load = load(regime, way.arrangement(), regime.clients * NARROW, window);
        let load = Load { warm_up, beside: true, ..load };
        Ok(field.point(narrow_series_of(order), NARROW as f64, setup, load))
    });
    points.collect()
}

fn points_by_order(parameters: &Parameters) -> Result<Vec<Point>, LabError> {
    let field = Field::new(parameters, &[Ground::Virtual])?;
    let window = parameters.seconds("seconds")?;
    let topology = Topology::named("regions")?.in_turn();
    let regime = Regime { megabits: None, ..regime(ORDER_BYTES) };
    let mut points = Vec::new();
    for replicas in sizes(parameters)? {
        for way in [Way::RingOfOne, Way::RingOfAll] {
            for &(_, order) in RingOrder::ALL {
                let mut setup =
                    setup(&field, parameters, replicas, way.ordering(), (regime, way.arrangement()))?;
                spread_out(&mut setup, topology.clone(), Some(0));
                setup.settings.consensus.ring.order = order;
                let warm_up = setup.settings.consensus.election_timeout * SETTLES;
                let load = load(regime, way.arrangement(), FEW * replicas, window);
                let load = Load { warm_up, beside: true, ..load };
                let point = field.point(series_of(way, order), replicas as f64, setup, load);
                points.push(with_figure(point, "round_ms", round_ms(&topology, replicas, order)?));
            }
        }
    }
    Ok(points)
}

/// How long the way round the ring takes by the links alone: in the order of the numbers, or in the shortest of all.
/// That enters each region once, since there are three.
pub(super) fn round_ms(topology: &Topology, replicas: usize, order: RingOrder) -> Result<f64, LabError> {
    let mut ring: Vec<usize> = (0..replicas).collect();
    if order == RingOrder::Measured {
        ring.sort_by_key(|&replica| topology.site(replica));
    }
    let links = topology.links(replicas)?;
    let next = ring.iter().cycle().skip(1);
    Ok(ring.iter().zip(next).map(|(&one, &other)| links[one][other].delay.as_secs_f64() * 1e3).sum())
}

fn waits_one_round(measured: &Measured) -> Judgement {
    let mut rows = Rows::new(&["order by", "replicas", "one round, ms", "median, ms"]);
    for &(name, order) in RingOrder::ALL {
        let series = series_of(Way::RingOfOne, order);
        for x in measured.places(&series) {
            let mean = |metric| measured.mean(&series, x, metric);
            let (Some(median), Some(round)) = (mean("median_ms"), mean("round_ms")) else { continue };
            let cells = [name.to_owned(), format!("{x}"), format!("{round:.1}"), format!("{median:.1}")];
            rows.add(cells, (median / round - 1.0).abs() <= 0.05);
        }
    }
    rows.judge("median latency, beside one round")
}

fn waits_by_position(measured: &Measured) -> Judgement {
    let mut rows =
        Rows::new(&["order by", "replicas", "one round, ms", "the least, ms", "the most, ms", "rounds"]);
    for &(name, order) in RingOrder::ALL {
        let series = series_of(Way::RingOfAll, order);
        for x in measured.places(&series) {
            let mean = |metric| measured.mean(&series, x, metric);
            let (Some(round), Some(soonest), Some(latest)) =
                (mean("round_ms"), mean("soonest_mean_ms"), mean("latest_mean_ms"))
            else {
                continue;
            };
            // Of three the second decides.
            let most = if x >= 4.0 { 2.0 } else { 1.0 };
            let near = |found: f64, rounds: f64| (found / round / rounds - 1.0).abs() <= 0.05;
            let figures = [round, soonest, latest].map(|ms| format!("{ms:.1}"));
            let rounds = format!("{:.2} and {:.2}", soonest / round, latest / round);
            let cells = [&[name.to_owned(), format!("{x}")][..], &figures, &[rounds]].concat();
            rows.add(cells, near(soonest, 1.0) && near(latest, most));
        }
    }
    rows.judge("mean latency of a member's clients, beside one round")
}

fn goes_round(measured: &Measured) -> Judgement {
    let mut rows = Rows::new(&["order by", "commands a second", "of what paths of 100 Mbit/s carry"]);
    let carried = WIDE * 125e3 / NARROW_BYTES as f64;
    for &(name, order) in RingOrder::ALL {
        let series = narrow_series_of(order);
        for x in measured.places(&series) {
            let Some(throughput) = measured.mean(&series, x, "throughput") else { continue };
            let share = throughput / carried;
            let cells = [name.to_owned(), format!("{throughput:.0}"), format!("{share:.2}")];
            rows.add(cells, order == RingOrder::Role || share >= 0.5);
        }
    }
    rows.judge("commands of 8 KiB a second with one narrow path")
}

fn gains_by_order(measured: &Measured) -> Judgement {
    let mut rows = Rows::new(&["clients", "replicas", "measured order over that of numbers", "promised"]);
    for way in [Way::RingOfOne, Way::RingOfAll] {
        let [by_role, chosen] = [RingOrder::Role, RingOrder::Measured].map(|order| series_of(way, order));
        for x in measured.places(&chosen) {
            let ratio = |metric, one: &str, other: &str| {
                let other = measured.mean(other, x, metric).filter(|mean| *mean > 0.0)?;
                Some(measured.mean(one, x, metric)? / other)
            };
            let gain = ratio("throughput", &chosen, &by_role);
            let (Some(gain), Some(promised)) = (gain, ratio("round_ms", &by_role, &chosen)) else { continue };
            let cells =
                [way.name().to_owned(), format!("{x}"), format!("{gain:.2}"), format!("{promised:.2}")];
            rows.add(cells, gain >= 0.9 * promised);
        }
    }
    rows.judge("gain in throughput, beside that of the rounds")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::Verdict;

    #[test]
    fn the_shortest_round_enters_each_region_once() {
        let topology = Topology::named("regions").unwrap().in_turn();
        let round = |replicas, order| round_ms(&topology, replicas, order).unwrap();
        assert_eq!((round(3, RingOrder::Role), round(3, RingOrder::Measured)), (145.0, 145.0));
        let (numbers, shortest) = (round(9, RingOrder::Role), round(9, RingOrder::Measured));
        assert!((numbers - 435.0).abs() < 1e-9 && (shortest - 145.6).abs() < 1e-9, "{numbers} {shortest}");
    }

    #[test]
    fn an_order_that_keeps_to_a_narrow_path_is_noticed() {
        let verdict = |throughput: f64| {
            let mut measured = Measured::default();
            measured.add(&narrow_series_of(RingOrder::Role), 5.0, "throughput", 150.0);
            measured.add(&narrow_series_of(RingOrder::Measured), 5.0, "throughput", throughput);
            goes_round(&measured).verdict
        };
        assert_eq!([verdict(1_400.0), verdict(150.0)], [Verdict::Holds, Verdict::DoesNotHold]);
    }

    #[test]
    fn a_member_that_waits_for_another_number_of_rounds_is_noticed() {
        let verdict = |replicas: f64, latest: f64| {
            let mut measured = Measured::default();
            let series = series_of(Way::RingOfAll, RingOrder::Role);
            for (metric, ms) in [("round_ms", 300.0), ("soonest_mean_ms", 302.0), ("latest_mean_ms", latest)]
            {
                measured.add(&series, replicas, metric, ms);
            }
            waits_by_position(&measured).verdict
        };
        assert_eq!([verdict(3.0, 310.0), verdict(5.0, 610.0)], [Verdict::Holds; 2]);
        assert_eq!([verdict(3.0, 600.0), verdict(4.0, 310.0)], [Verdict::DoesNotHold; 2]);
    }

    #[test]
    fn an_order_that_gains_too_little_is_noticed() {
        let verdicts = |throughput: f64| {
            let mut measured = Measured::default();
            let (by_role, chosen) = (RingOrder::Role, RingOrder::Measured);
            for (order, throughput, round) in [(by_role, 100.0, 300.0), (chosen, throughput, 150.0)] {
                let series = series_of(Way::RingOfOne, order);
                measured.add(&series, 6.0, "throughput", throughput);
                measured.add(&series, 6.0, "round_ms", round);
                measured.add(&series, 6.0, "median_ms", round * 100.0 / throughput * 2.0);
            }
            gains_by_order(&measured).verdict
        };
        assert_eq!((verdicts(181.0), verdicts(179.0)), (Verdict::Holds, Verdict::DoesNotHold));
    }
}

//! The optimisations of Sequence Paxos, each alone: latest Decide and max AcceptSync.

use std::borrow::Cow::Borrowed;

use synod_consensus::ProtocolKind;

use super::{
    charts,
    judging::{Ratio, all_ratios, ratios},
    parameters::{CONCURRENT, ON_VIRTUAL, REPLICAS, SHORT_WINDOW, VIRTUAL_WINDOW},
    points::Field,
    wide_area::spread_out,
};
use crate::{
    ground::{Act, Ground, Load, Ordering, Setup, What},
    net::Topology,
    study::{Chart, Experiment, Fact, Judgement, LabError, Measured, Parameter, Parameters, Point, Shape},
};

const ON: &str = "on";
const OFF: &str = "off";

/// Only the latest Decide.
pub const LATEST_DECIDE: Experiment = Experiment {
    name: "ng-latest-decide",
    title: "Sequence Paxos: only the latest Decide",
    source: "Ng 2020, sections 4.4.3 and 5.4.1, figure 9 (N76, N51, R2)",
    about: "With the optimisation a burst of work ends with one Decide for all slots that it decided; without it every \
            slot has its own. Decisions do not ride on accepts here, as they did not in the document, and every \
            proposal is a batch of its own, so that there are many slots. In virtual time, where a message has its \
            price at both ends and each replica its own processor; Decide messages are counted.",
    parameters: &[
        ON_VIRTUAL,
        SHORT_WINDOW,
        REPLICAS,
        Parameter { default: "10,100,1000,10000", full: "10,100,1000,10000,100000", ..CONCURRENT },
    ],
    headline: "throughput",
    points: latest_decide_points,
    charts: &[
        charts::THROUGHPUT,
        Chart {
            title: Borrowed("Decide messages"),
            metric: Borrowed("decides"),
            y_label: Borrowed("for a thousand proposals"),
            ..charts::THROUGHPUT
        },
    ],
    facts: &[decide_fact(ON, 253_642.0), decide_fact(OFF, 236_457.0)],
    shapes: &[
        Shape {
            id: "R2a",
            claim: "on is at least as fast as off everywhere, within 2 %",
            judge: never_slower,
        },
        Shape {
            id: "R2b",
            claim: "the gain is largest, and at least 3 %, at the largest c with 5 replicas",
            judge: gain_at_the_top,
        },
        Shape {
            id: "R2c",
            claim: "Decide messages drop to less than half where more than 10 proposals are outstanding",
            judge: fewer_decides,
        },
    ],
};

const fn decide_fact(series: &'static str, value: f64) -> Fact {
    let place = Borrowed("section 5.4.1, 5 replicas; 16 cores");
    let series = if series.len() == ON.len() { "on, 5 replicas" } else { "off, 5 replicas" };
    Fact { series: Borrowed(series), x: 1e6, metric: Borrowed("throughput"), value, place }
}

/// Points of Sequence Paxos with and without an optimisation. `prepare` is told which.
fn on_and_off(
    parameters: &Parameters,
    prepare: impl Fn(&mut Setup, bool) -> Result<(), LabError>,
    load: impl Fn(usize) -> Result<Load, LabError>,
) -> Result<Vec<Point>, LabError> {
    let field = Field::new(parameters, &[Ground::Virtual])?;
    field.sweep(|replicas, concurrent, points| {
        for (name, on) in [(ON, true), (OFF, false)] {
            let mut setup = field.setup(replicas, Ordering::of(ProtocolKind::SequencePaxos))?;
            prepare(&mut setup, on)?;
            points.push(field.point(series(name, replicas), concurrent as f64, setup, load(concurrent)?));
        }
        Ok(())
    })
}

fn series(name: &str, replicas: usize) -> String {
    format!("{name}, {replicas} replicas")
}

/// The figure with the optimisation divided by that without, for each group size and place.
fn on_over_off(measured: &Measured, metric: &str) -> Vec<Ratio> {
    let pair = |group, replicas| (group, series(ON, replicas), series(OFF, replicas));
    ratios(measured, metric, &[pair("n=3", 3), pair("n=5", 5)])
}

fn latest_decide_points(parameters: &Parameters) -> Result<Vec<Point>, LabError> {
    let prepare = |setup: &mut Setup, latest| {
        let options = &mut setup.settings.consensus.sequence_paxos;
        options.decide_on_accept = false;
        options.latest_decide = latest;
        setup.settings.batch_bytes_max = 1;
        setup.settings.consensus.window_max = 16_384;
        Ok(())
    };
    on_and_off(parameters, prepare, |concurrent| Ok(Load::new(concurrent, parameters.seconds("seconds")?)))
}

fn never_slower(measured: &Measured) -> Judgement {
    all_ratios(&on_over_off(measured, "throughput"), "on over off", |ratio| ratio.value >= 0.98)
}

fn gain_at_the_top(measured: &Measured) -> Judgement {
    let all = on_over_off(measured, "throughput");
    let Some(top) = all.iter().rfind(|ratio| ratio.group == "n=5") else {
        return Judgement::open("five replicas were not measured");
    };
    let highest = all.iter().map(|ratio| ratio.value).fold(0.0, f64::max);
    let reason = format!("on over off: {:.2} at the largest c, at most {highest:.2} anywhere", top.value);
    Judgement::of(top.value >= 1.03 && top.value >= highest * 0.99, reason)
}

fn fewer_decides(measured: &Measured) -> Judgement {
    let mut all = on_over_off(measured, "decides");
    all.retain(|ratio| ratio.x > 10.0);
    all_ratios(&all, "messages, on over off", |ratio| ratio.value < 0.5)
}

/// Max AcceptSync.
pub const MAX_ACCEPT_SYNC: Experiment = Experiment {
    name: "ng-max-accept-sync",
    title: "Sequence Paxos: max AcceptSync",
    source: "Ng 2020, sections 4.4.3 and 5.4.2, figure 6 (N77, N52, R3)",
    about: "With the optimisation a follower that is known to hold what the new leader adopted is sent only what it \
            lacks; without it, everything that it has not decided. The document gives all processes 20 million \
            elements of which half are decided, and times the prepare phase: from when a replica is told to lead until \
            a majority has accepted its first AcceptSync. Synod bounds what may be undecided (four windows, here \
            16,384 batches of up to 256 bytes), so the suffix is what is in flight when the leadership is handed over \
            under load: it grows with the proposals outstanding. In virtual time, replicas on both sides of an ocean, \
            so that much is in flight; the new leader has a majority near.",
    parameters: &[
        ON_VIRTUAL,
        VIRTUAL_WINDOW,
        REPLICAS,
        Parameter { default: "100,1000,10000", full: "100,1000,10000,100000", ..CONCURRENT },
    ],
    headline: "prepare_ms",
    points: accept_sync_points,
    charts: &[
        Chart { title: Borrowed("Prepare phase"), metric: Borrowed("prepare_ms"), ..charts::MEAN_LATENCY },
        Chart {
            title: Borrowed("Bytes of AcceptSync in a change of leader"),
            metric: Borrowed("sync_bytes"),
            y_label: Borrowed("bytes"),
            ..charts::MEAN_LATENCY
        },
        charts::GAP,
    ],
    facts: &[],
    shapes: &[
        Shape {
            id: "R3a",
            claim: "wherever it sends fewer bytes, the prepare phase is shorter (the document: 650 against 829 ms with \
                    3 replicas, 1019 against 1308 with 5)",
            judge: shorter,
        },
        Shape {
            id: "R3b",
            claim: "it never sends more bytes, and fewer at the largest c",
            judge: fewer_bytes,
        },
        Shape {
            id: "R3c",
            claim: "the time that it saves grows with the suffix (at least threefold from the smallest to the largest)",
            judge: gap_grows,
        },
    ],
};

fn accept_sync_points(parameters: &Parameters) -> Result<Vec<Point>, LabError> {
    let prepare = |setup: &mut Setup, max| {
        setup.settings.consensus.sequence_paxos.max_accept_sync = max;
        setup.settings.consensus.window_max = 4096;
        setup.settings.batch_bytes_max = 256;
        // The leader that hands over is among the fewer on its side of the ocean, its successor on the other side: so
        // followers have accepted much that they do not know to be decided, and the successor's majority is near.
        let far = if setup.replicas == 5 { 0 } else { setup.replicas - 1 };
        spread_out(setup, Topology::named("trans-pacific")?, Some(far));
        Ok(())
    };
    on_and_off(parameters, prepare, |concurrent| {
        let window = parameters.seconds("seconds")?;
        let mut load = Load::new(concurrent, window);
        load.acts = vec![Act { at: window / 3, what: What::HandOver }];
        Ok(load)
    })
}

fn shorter(measured: &Measured) -> Judgement {
    // If nothing was in flight at the moment of the handover, the optimisation can leave nothing out.
    let fewer = on_over_off(measured, "sync_bytes").into_iter().filter(|bytes| bytes.value < 0.99);
    let fewer: Vec<_> = fewer.map(|bytes| (bytes.group, bytes.x)).collect();
    let mut times = on_over_off(measured, "prepare_ms");
    times.retain(|time| fewer.contains(&(time.group.clone(), time.x)));
    all_ratios(&times, "time, on over off", |ratio| ratio.value < 1.0)
}

fn fewer_bytes(measured: &Measured) -> Judgement {
    let ratios = on_over_off(measured, "sync_bytes");
    let largest = ratios.iter().map(|ratio| ratio.x).fold(0.0, f64::max);
    all_ratios(&ratios, "bytes, on over off", |ratio| {
        ratio.value <= 1.0 && (ratio.x < largest || ratio.value < 0.99)
    })
}

fn gap_grows(measured: &Measured) -> Judgement {
    let gap = |x| {
        let mean = |name| measured.mean(&series(name, 3), x, "prepare_ms");
        Some((x, mean(OFF)? - mean(ON)?))
    };
    let gaps: Vec<(f64, f64)> = measured.places(&series(ON, 3)).into_iter().filter_map(gap).collect();
    let (Some(first), Some(last)) = (gaps.first(), gaps.last()) else {
        return Judgement::open("three replicas were not measured");
    };
    if first.0 == last.0 {
        return Judgement::open("only one size was measured");
    }
    let reason = format!("it saves {:.3} ms at c={} and {:.3} ms at c={}", first.1, first.0, last.1, last.0);
    Judgement::of(last.1 > first.1.max(0.001) * 3.0, reason)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::Verdict;

    fn measured(metric: &str, on: [f64; 2], off: [f64; 2]) -> Measured {
        let mut measured = Measured::default();
        for replicas in [3, 5] {
            for (series, values) in [(ON, on), (OFF, off)] {
                for (x, value) in [100.0, 1000.0].into_iter().zip(values) {
                    measured.add(&super::series(series, replicas), x, metric, value);
                }
            }
        }
        measured
    }

    #[test]
    fn the_shape_of_the_document_holds_and_its_opposite_does_not() {
        let good = measured("throughput", [100.0, 107.0], [100.0, 100.0]);
        let bad = measured("throughput", [90.0, 100.0], [100.0, 100.0]);
        for judge in [never_slower, gain_at_the_top] {
            assert_eq!((judge(&good).verdict, judge(&bad).verdict), (Verdict::Holds, Verdict::DoesNotHold));
        }
        let (good, bad) = (measured("decides", [1.0; 2], [9.0; 2]), measured("decides", [8.0; 2], [9.0; 2]));
        assert_eq!(
            (fewer_decides(&good).verdict, fewer_decides(&bad).verdict),
            (Verdict::Holds, Verdict::DoesNotHold)
        );
        let mut good = measured("sync_bytes", [10.0, 20.0], [10.0, 1000.0]);
        let mut bad = measured("sync_bytes", [100.0, 1000.0], [100.0, 1000.0]);
        assert_eq!(shorter(&good).verdict, Verdict::NotDecided);
        for (measured, on) in [(&mut good, [1.0, 2.0]), (&mut bad, [1.0, 10.0])] {
            for replicas in [3, 5] {
                for (place, x) in [100.0, 1000.0].into_iter().enumerate() {
                    measured.add(&super::series(ON, replicas), x, "prepare_ms", on[place]);
                    measured.add(&super::series(OFF, replicas), x, "prepare_ms", [1.0, 10.0][place]);
                }
            }
        }
        for (judge, otherwise) in [
            (fewer_bytes as fn(&Measured) -> Judgement, Verdict::DoesNotHold),
            (shorter, Verdict::NotDecided),
            (gap_grows, Verdict::DoesNotHold),
        ] {
            assert_eq!((judge(&good).verdict, judge(&bad).verdict), (Verdict::Holds, otherwise));
        }
        for replicas in [3, 5] {
            good.add(&super::series(ON, replicas), 1000.0, "prepare_ms", 100.0);
        }
        assert_eq!(shorter(&good).verdict, Verdict::DoesNotHold);
    }
}

//! The optimisations of Sequence Paxos, each alone: latest Decide, max AcceptSync.

use std::borrow::Cow::Borrowed;

use synod_consensus::ProtocolKind;

use super::*;
use crate::study::{Chart, Fact, Form, Judgement, Measured, Shape};

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
        Parameter { key: "replicas", help: "Group sizes.", default: "3,5", full: "3,5" },
        Parameter {
            key: "concurrent",
            help: "Proposals outstanding at a time.",
            default: "10,100,1000",
            full: "10,100,1000,10000",
        },
    ],
    headline: "throughput",
    points: latest_decide_points,
    charts: &[
        Chart {
            title: Borrowed("Throughput"),
            metric: Borrowed("throughput"),
            x_label: Borrowed("proposals outstanding"),
            y_label: Borrowed("proposals decided a second"),
            form: Form::LogLines,
        },
        Chart {
            title: Borrowed("Decide messages"),
            metric: Borrowed("decides"),
            x_label: Borrowed("proposals outstanding"),
            y_label: Borrowed("for a thousand proposals"),
            form: Form::LogLines,
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

fn latest_decide_points(parameters: &Parameters) -> Result<Vec<Point>, LabError> {
    check_ground(parameters, &["virtual"])?;
    let window = parameters.seconds("seconds")?;
    let mut points = Vec::new();
    for replicas in sizes(parameters)? {
        for concurrent in concurrencies(parameters)? {
            for (series, latest) in [(ON, true), (OFF, false)] {
                let mut setup = sequence_paxos(parameters, replicas)?;
                let options = &mut setup.settings.consensus.sequence_paxos;
                options.decide_on_accept = false;
                options.latest_decide = latest;
                setup.settings.batch_bytes_max = 1;
                setup.settings.consensus.window_max = 16_384;
                let load = Load::new(concurrent, window);
                let series = format!("{series}, {replicas} replicas");
                points.push(virtual_point(series, concurrent as f64, setup, load));
            }
        }
    }
    Ok(points)
}

fn sequence_paxos(parameters: &Parameters, replicas: usize) -> Result<Setup, LabError> {
    let protocol = ProtocolKind::SequencePaxos;
    let setup = Setup::new(replicas, protocol, protocol.elections()[0]);
    Ok(Setup { seed: parameters.get("seed")?, ..setup })
}

/// On over off for each group size and place.
fn ratios(measured: &Measured, metric: &str) -> Vec<(usize, f64, f64)> {
    let mut all = Vec::new();
    for replicas in [3, 5] {
        let (on, off) = (format!("{ON}, {replicas} replicas"), format!("{OFF}, {replicas} replicas"));
        for x in measured.places(&on) {
            let (Some(on), Some(off)) = (measured.mean(&on, x, metric), measured.mean(&off, x, metric))
            else {
                continue;
            };
            all.push((replicas, x, on / off));
        }
    }
    all
}

fn describe(ratios: &[(usize, f64, f64)]) -> String {
    let text: Vec<_> = ratios.iter().map(|(n, x, ratio)| format!("n={n} c={x}: {ratio:.3}")).collect();
    format!("on over off: {}", text.join(", "))
}

fn never_slower(measured: &Measured) -> Judgement {
    let all = ratios(measured, "throughput");
    if all.is_empty() {
        return Judgement::open("nothing was measured");
    }
    Judgement::of(all.iter().all(|(.., ratio)| *ratio >= 0.98), describe(&all))
}

fn gain_at_the_top(measured: &Measured) -> Judgement {
    let all = ratios(measured, "throughput");
    let Some(top) = all.iter().rfind(|(n, ..)| *n == 5) else {
        return Judgement::open("five replicas were not measured");
    };
    let highest = all.iter().map(|(.., ratio)| *ratio).fold(0.0, f64::max);
    Judgement::of(top.2 >= 1.03 && top.2 >= highest * 0.99, describe(&all))
}

fn fewer_decides(measured: &Measured) -> Judgement {
    let all: Vec<_> = ratios(measured, "decides").into_iter().filter(|(_, x, _)| *x > 10.0).collect();
    if all.is_empty() {
        return Judgement::open("nothing was measured above 10 proposals outstanding");
    }
    Judgement::of(all.iter().all(|(.., ratio)| *ratio < 0.5), describe(&all))
}

/// Max AcceptSync.
pub const MAX_ACCEPT_SYNC: Experiment = Experiment {
    name: "ng-max-accept-sync",
    title: "Sequence Paxos: max AcceptSync",
    source: "Ng 2020, sections 4.4.3 and 5.4.2, figure 6 (N77, N52, R3)",
    about: "With the optimisation a follower that is known to hold what the new leader adopted is sent only what it \
            lacks; without it, everything that it has not decided. The document gives all processes 20 million \
            elements of which half are decided. Synod bounds what may be undecided (four windows), so the suffix here \
            is what is in flight when the leadership is handed over under load: it grows with the proposals \
            outstanding. Counted are the bytes of all AcceptSync messages of one handover, in virtual time.",
    parameters: &[
        ON_VIRTUAL,
        VIRTUAL_WINDOW,
        Parameter { key: "replicas", help: "Group sizes.", default: "3,5", full: "3,5" },
        Parameter {
            key: "concurrent",
            help: "Proposals outstanding at a time.",
            default: "100,1000",
            full: "100,1000,10000,100000",
        },
    ],
    headline: "sync_bytes",
    points: accept_sync_points,
    charts: &[
        Chart {
            title: Borrowed("Bytes of AcceptSync in a change of leader"),
            metric: Borrowed("sync_bytes"),
            x_label: Borrowed("proposals outstanding"),
            y_label: Borrowed("bytes"),
            form: Form::LogLines,
        },
        Chart {
            title: Borrowed("Longest time without an answer"),
            metric: Borrowed("gap_ms"),
            x_label: Borrowed("proposals outstanding"),
            y_label: Borrowed("ms"),
            form: Form::LogLines,
        },
    ],
    facts: &[],
    shapes: &[
        Shape { id: "R3a", claim: "on sends fewer bytes than off at every size", judge: fewer_bytes },
        Shape {
            id: "R3b",
            claim: "what off sends more grows with the suffix (at least threefold from the smallest to the largest)",
            judge: gap_grows,
        },
    ],
};

fn accept_sync_points(parameters: &Parameters) -> Result<Vec<Point>, LabError> {
    check_ground(parameters, &["virtual"])?;
    let window = parameters.seconds("seconds")?;
    let mut points = Vec::new();
    for replicas in sizes(parameters)? {
        for concurrent in concurrencies(parameters)? {
            for (series, max) in [(ON, true), (OFF, false)] {
                let mut setup = sequence_paxos(parameters, replicas)?;
                setup.settings.consensus.sequence_paxos.max_accept_sync = max;
                setup.settings.consensus.window_max = 4096;
                // A distance that keeps many slots in flight.
                setup.settings.batch_bytes_max = 256;
                setup.topology = Some(crate::net::Topology::named("trans-pacific")?);
                let mut load = Load::new(concurrent, window);
                load.acts = vec![Act { at: window / 3, what: What::HandOver }];
                let series = format!("{series}, {replicas} replicas");
                points.push(virtual_point(series, concurrent as f64, setup, load));
            }
        }
    }
    Ok(points)
}

fn fewer_bytes(measured: &Measured) -> Judgement {
    let all = ratios(measured, "sync_bytes");
    if all.is_empty() {
        return Judgement::open("nothing was measured");
    }
    Judgement::of(all.iter().all(|(.., ratio)| *ratio < 1.0), describe(&all))
}

fn gap_grows(measured: &Measured) -> Judgement {
    let gap = |x| {
        let mean = |series| measured.mean(series, x, "sync_bytes");
        Some((x, mean("off, 3 replicas")? - mean("on, 3 replicas")?))
    };
    let gaps: Vec<(f64, f64)> = measured.places("on, 3 replicas").into_iter().filter_map(gap).collect();
    let (Some(first), Some(last)) = (gaps.first(), gaps.last()) else {
        return Judgement::open("three replicas were not measured");
    };
    if first.0 == last.0 {
        return Judgement::open("only one size was measured");
    }
    let reason = format!("{:.0} bytes more at c={}, {:.0} at c={}", first.1, first.0, last.1, last.0);
    Judgement::of(last.1 > first.1.max(1.0) * 3.0, reason)
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
                    measured.add(&format!("{series}, {replicas} replicas"), x, metric, value);
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
        let good = measured("sync_bytes", [10.0, 20.0], [100.0, 1000.0]);
        let bad = measured("sync_bytes", [100.0, 1000.0], [100.0, 1000.0]);
        for judge in [fewer_bytes, gap_grows] {
            assert_eq!((judge(&good).verdict, judge(&bad).verdict), (Verdict::Holds, Verdict::DoesNotHold));
        }
    }
}

//! The window on wide and on narrow paths, and a leader that bounds what it has under way by what it measures.

use std::time::Duration;

use super::{
    charts,
    judging::Rows,
    parameters::{ON_VIRTUAL, VIRTUAL_WINDOW},
    points::Field,
};
use crate::{
    ground::{Ground, Load, Ordering, hardware::Costs},
    net::Topology,
    study::{Experiment, Judgement, LabError, Measured, Parameter, Parameters, Point, Shape},
};

/// The networks, each with what it is called.
const PATHS: [(&str, &str); 2] = [("emulab", "10 Mbit/s, 50 ms"), ("single-dc", "one data centre")];
/// What is not answered is sent again after this time.
const RESENT_AFTER: Duration = Duration::from_secs(2);
/// Where auto is drawn, and how many slots bound it.
const AUTO: f64 = 128.0;
const SLOTS_OF_AUTO: usize = 512;

/// The experiment, described by its fields.
pub const EXPERIMENT: Experiment = Experiment {
    name: "santos-window",
    title: "How much a leader should have under way",
    source: "Santos 2012, section 8.5 (8d, 8e, F8, F9)",
    about: "Closed-loop clients beside the leader of three replicas, in virtual time, with batches of up to 64 KiB and an \
            election time-out of a second; what is not answered is sent again after two. The document: on links of 10 Mbit/s and 50 ms a window of 2 is best for large \
            requests, and throughput collapses to a tenth with large windows, since what is under way exceeds what the \
            link holds and is sent again. `auto` bounds bytes under way by the rate and the round trip that the leader \
            measures.",
    parameters: &[
        ON_VIRTUAL,
        Parameter { default: "20", full: "60", ..VIRTUAL_WINDOW },
        Parameter {
            key: "windows",
            help: "Windows in slots, separated by commas.",
            default: "1,2,4,8,32,128",
            full: "1,2,4,8,16,32,64,128",
        },
        Parameter { key: "clients", help: "Clients, each with one command.", default: "500", full: "500" },
        Parameter { key: "bytes", help: "Bytes of a command.", default: "8192", full: "8192" },
    ],
    headline: "throughput",
    points,
    charts: &[
        charts::log_lines("Throughput", "throughput", "commands a second", "window, slots"),
        charts::log_lines("Median latency", "median_ms", "ms", "window, slots"),
    ],
    facts: &[],
    shapes: &[
        Shape {
            id: "R8a",
            claim: "auto has at least 0.9 of the throughput of the best fixed window, on each path",
            judge: nearly_the_best,
        },
        Shape {
            id: "R8b",
            claim: "on the narrow path a large fixed window collapses (the document: to a tenth), and auto does not",
            judge: collapses,
        },
    ],
};

fn fixed(path: &str) -> String {
    format!("fixed, {path}")
}

fn auto(path: &str) -> String {
    format!("auto, {path}")
}

fn points(parameters: &Parameters) -> Result<Vec<Point>, LabError> {
    let field = Field::new(parameters, &[Ground::Virtual])?;
    let windows: Vec<usize> = parameters.list("windows")?;
    let (clients, bytes): (usize, usize) = (parameters.get("clients")?, parameters.get("bytes")?);
    let mut points = Vec::new();
    for (topology, path) in PATHS {
        let mut base = field.setup(3, Ordering::of(synod_consensus::ProtocolKind::MultiPaxos))?;
        base.topology = Some(Topology::named(topology)?);
        base.hardware.costs = Costs::named("measured")?;
        // Links lose nothing, so nothing need be sent again while it waits in one.
        base.settings.consensus.retransmit_after = RESENT_AFTER;
        // The client is beside the replica that leads.
        base.priorities = vec![255, 0, 0];
        let mut load = Load::new(clients, parameters.seconds("seconds")?);
        load.value_bytes = bytes;
        for &window in &windows {
            let mut setup = base.clone();
            setup.settings.consensus.window_max = window;
            points.push(field.point(fixed(path), window as f64, setup, load.clone()));
        }
        let mut setup = base;
        setup.settings.consensus.window_max = SLOTS_OF_AUTO;
        setup.settings.paced = true;
        points.push(field.point(auto(path), AUTO, setup, load));
    }
    Ok(points)
}

/// The fixed window with the most commands a second, and how many these are.
fn best(measured: &Measured, path: &str) -> Option<(f64, f64)> {
    let series = fixed(path);
    let all = measured.places(&series).into_iter();
    let all = all.filter_map(|window| Some((window, measured.mean(&series, window, "throughput")?)));
    all.max_by(|one, other| one.1.total_cmp(&other.1))
}

fn nearly_the_best(measured: &Measured) -> Judgement {
    let mut rows = Rows::new(&["path", "best window", "commands a second", "auto"]);
    let mut shares = Vec::new();
    for (_, path) in PATHS {
        let (Some((window, most)), Some(auto)) =
            (best(measured, path), measured.mean(&auto(path), AUTO, "throughput"))
        else {
            continue;
        };
        shares.push(format!("{path}: {:.2}", auto / most));
        let row = [path.to_owned(), format!("{window}"), format!("{most:.0}"), format!("{auto:.0}")];
        rows.add(row, auto >= 0.9 * most);
    }
    rows.judge(format!("auto of the best: {}", shares.join(", ")))
}

fn collapses(measured: &Measured) -> Judgement {
    let (_, path) = PATHS[0];
    let largest = measured.places(&fixed(path)).into_iter().fold(0.0, f64::max);
    let (Some((_, most)), Some(large), Some(auto)) = (
        best(measured, path),
        measured.mean(&fixed(path), largest, "throughput"),
        measured.mean(&auto(path), AUTO, "throughput"),
    ) else {
        return Judgement::open("the narrow path was not measured");
    };
    let (large, auto) = (large / most, auto / most);
    let reason = format!("of the best: {large:.2} with a window of {largest}, {auto:.2} with auto");
    Judgement::of(large <= 0.2 && auto >= 0.9, reason)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::Verdict;

    fn measured(large: f64, of_auto: f64) -> Measured {
        let mut measured = Measured::default();
        for (_, path) in PATHS {
            for (window, puts) in [(1.0, 50.0), (2.0, 100.0), (128.0, large)] {
                measured.add(&fixed(path), window, "throughput", puts);
            }
            measured.add(&auto(path), AUTO, "throughput", of_auto);
        }
        measured
    }

    #[test]
    fn a_collapse_and_the_lack_of_one_are_told_apart() {
        let verdicts = |measured: &Measured| {
            EXPERIMENT.shapes.iter().map(|shape| (shape.judge)(measured).verdict).collect::<Vec<_>>()
        };
        assert_eq!(verdicts(&measured(10.0, 95.0)), [Verdict::Holds, Verdict::Holds]);
        assert_eq!(verdicts(&measured(90.0, 95.0)), [Verdict::Holds, Verdict::DoesNotHold]);
        assert_eq!(verdicts(&measured(10.0, 50.0)), [Verdict::DoesNotHold, Verdict::DoesNotHold]);
    }
}

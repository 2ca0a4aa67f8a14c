//! The experiments, each declared in one place.
//!
//! Sources are sections, figures and tables of Ng 2020 ("Deployment and comparison of leader-based consensus
//! protocols") as the specification numbers them; `N..` are items of its checklist, `R..` its acceptance shapes.
//! The document measured on 16 cores and on machines of a cloud; here everything may share two cores, so curves are
//! compared in their shape, and the document's numbers stand beside ours as numbers of another machine.

mod batching;
mod latency;
mod live_change;
mod optimisations;
mod reconfiguration;
mod throughput;
mod wide_area;

use std::time::Duration;

use synod_storage::Durability;

use crate::{
    ground::{Act, Load, Ordering, Setup, What, processes, threads, virtual_time},
    study::{Conduct, Experiment, LabError, Parameter, Parameters, Point},
};

/// All of them.
pub const ALL: &[&Experiment] = &[
    &throughput::EXPERIMENT,
    &latency::EXPERIMENT,
    &batching::EXPERIMENT,
    &optimisations::LATEST_DECIDE,
    &optimisations::MAX_ACCEPT_SYNC,
    &reconfiguration::HEAD_START,
    &reconfiguration::RECONFIGURATION,
    &wide_area::GEO,
    &wide_area::TRANS_PACIFIC,
    &wide_area::LEADER_PLACEMENT,
    &live_change::EXPERIMENT,
];

/// The experiments of these names; `all` names all.
///
/// # Errors
/// A name that none has.
pub fn find(names: &[String]) -> Result<Vec<&'static Experiment>, LabError> {
    if names.iter().any(|name| name == "all") {
        return Ok(ALL.to_vec());
    }
    let find = |name: &String| {
        let known = || ALL.iter().map(|experiment| experiment.name).collect();
        let found = ALL.iter().copied().find(|experiment| experiment.name == name.as_str());
        found.ok_or_else(|| LabError::UnknownExperiment { given: name.clone(), known: known() })
    };
    names.iter().map(find).collect()
}

/// How long answers are counted at each point.
const WINDOW: Parameter = Parameter {
    key: "seconds",
    help: "How long answers are counted in each run; what is answered before, for a quarter of that, is not.",
    default: "2",
    full: "20",
};

/// Which protocols.
const PROTOCOLS: Parameter = Parameter {
    key: "protocols",
    help: "Protocols separated by commas, each with its own election or as PROTOCOL/ELECTION; all: every protocol.",
    default: "all",
    full: "all",
};

/// On what, where the whole server can be measured too.
const ON_PROCESSES_TOO: Parameter = Parameter {
    key: "on",
    help: "threads: replicas and client in this process, TCP over loopback between replicas, no gRPC; processes: \
           `synod serve`, clients over gRPC.",
    default: "threads",
    full: "threads",
};

/// What is on stable storage before a replica promises, with processes.
const DURABILITY: Parameter = Parameter {
    key: "durability",
    help: "Of processes: memory, async or sync (fsync before promising). Threads are always memory.",
    default: "memory",
    full: "memory",
};

/// On what; one choice where there is only one.
const ON_THREADS: Parameter = Parameter {
    key: "on",
    help: "threads: replicas and client in this process, TCP over loopback between replicas, no gRPC.",
    default: "threads",
    full: "threads",
};

/// The same for experiments in virtual time.
const ON_VIRTUAL: Parameter = Parameter {
    key: "on",
    help: "virtual: the replicas' code in virtual time, with a network as described.",
    default: "virtual",
    full: "virtual",
};

/// How long answers are counted in virtual time.
const VIRTUAL_WINDOW: Parameter = Parameter {
    key: "seconds",
    help: "How many seconds of virtual time answers are counted in each run.",
    default: "3",
    full: "30",
};

/// The same where little happens in a second.
const LONG_WINDOW: Parameter = Parameter { default: "20", full: "60", ..VIRTUAL_WINDOW };

/// The same where much happens in a second.
const SHORT_WINDOW: Parameter = Parameter { default: "0.5", full: "5", ..VIRTUAL_WINDOW };

/// Refuses what an experiment can not run on.
fn check_ground(parameters: &Parameters, accepted: &[&str]) -> Result<(), LabError> {
    if accepted.contains(&parameters.text("on")) {
        return Ok(());
    }
    Err(parameters.wrong("on", format!("accepted: {}", accepted.join(", "))))
}

/// Proposals outstanding at a time, for each point.
fn concurrencies(parameters: &Parameters) -> Result<Vec<usize>, LabError> {
    let all: Vec<usize> = parameters.list("concurrent")?;
    if all.iter().all(|concurrent| (1..=200_000).contains(concurrent)) {
        return Ok(all);
    }
    Err(parameters.wrong("concurrent", "accepted: numbers from 1 to 200000, separated by commas"))
}

/// Group sizes.
fn sizes(parameters: &Parameters) -> Result<Vec<usize>, LabError> {
    let all: Vec<usize> = parameters.list("replicas")?;
    if all.iter().all(|size| (1..=9).contains(size) && *size != 2) {
        return Ok(all);
    }
    Err(parameters.wrong("replicas", "accepted: 1 and 3 to 9, separated by commas"))
}

/// A point on threads.
fn threads_point(series: String, x: f64, setup: Setup, load: Load) -> Point {
    let measure = move |conduct: &Conduct| {
        let setup = Setup { seed: setup.seed.wrapping_add(conduct.round), ..setup.clone() };
        let mut sample = threads::run(&setup, &load, conduct)?.sample();
        if load.acts.is_empty() {
            sample.timeline.clear();
        }
        Ok(sample)
    };
    Point { series, x, measure: Box::new(measure) }
}

/// A point on threads or processes, as the parameters say.
fn real_point(
    parameters: &Parameters,
    series: String,
    x: f64,
    replicas: usize,
    ordering: Ordering,
    load: Load,
) -> Result<Point, LabError> {
    check_ground(parameters, &["threads", "processes"])?;
    let durability: Durability = parameters.get("durability")?;
    if parameters.text("on") == "threads" {
        let setup = Setup::new(replicas, ordering.protocol, ordering.election);
        return Ok(threads_point(series, x, Setup { seed: parameters.get("seed")?, ..setup }, load));
    }
    let measure = move |conduct: &Conduct| processes::run(replicas, ordering, durability, &load, conduct);
    Ok(Point { series, x, measure: Box::new(measure) })
}

/// A point in virtual time.
fn virtual_point(series: String, x: f64, setup: Setup, load: Load) -> Point {
    let measure = move |conduct: &Conduct| {
        let setup = Setup { seed: setup.seed.wrapping_add(conduct.round << 32), ..setup.clone() };
        let (outcome, traffic) = virtual_time::run(&setup, &load, conduct)?;
        let mut sample = outcome.sample();
        let thousands = outcome.answered.max(1) as f64 / 1000.0;
        sample.figures.extend([
            ("messages", traffic.messages as f64 / thousands),
            ("bytes", traffic.bytes as f64 / thousands),
            ("decides", traffic.decides as f64 / thousands),
            ("sync_bytes", traffic.sync_bytes as f64),
        ]);
        if load.acts.is_empty() {
            sample.timeline.clear();
        }
        Ok(sample)
    };
    Point { series, x, measure: Box::new(measure) }
}

/// Milliseconds, in words for a reason.
fn ms(value: f64) -> String {
    format!("{value:.2} ms")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::study::COMMON_PARAMETERS;

    #[test]
    fn the_list_is_well_formed() {
        let names: BTreeSet<_> = ALL.iter().map(|experiment| experiment.name).collect();
        assert_eq!(names.len(), ALL.len(), "two experiments have the same name");
        for experiment in ALL {
            assert!(experiment.name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-'));
            for text in [experiment.title, experiment.source, experiment.about] {
                assert!(!text.is_empty(), "{}", experiment.name);
            }
            assert!(!experiment.shapes.is_empty() && !experiment.charts.is_empty(), "{}", experiment.name);
            let mut keys: Vec<_> = experiment
                .parameters
                .iter()
                .chain(COMMON_PARAMETERS)
                .map(|parameter| parameter.key)
                .collect();
            keys.sort_unstable();
            assert!(keys.windows(2).all(|pair| pair[0] != pair[1]), "{}: {keys:?}", experiment.name);
            assert!(keys.contains(&"on"), "{} does not say on what it runs", experiment.name);
        }
    }

    /// Defaults and full runs make points, facts belong to series that a full run measures, and claims without a
    /// measurement are not decided.
    #[test]
    fn every_experiment_has_points_and_judges_nothing_unmeasured() {
        for experiment in ALL {
            for full in [false, true] {
                let parameters = Parameters::new(experiment, full, &[]).unwrap();
                let points = (experiment.points)(&parameters).unwrap();
                assert!(!points.is_empty(), "{}", experiment.name);
                let places: BTreeSet<_> =
                    points.iter().map(|point| (point.series.clone(), point.x.to_bits())).collect();
                assert_eq!(places.len(), points.len(), "{} measures a point twice", experiment.name);
            }
            for shape in experiment.shapes {
                let judgement = (shape.judge)(&crate::study::Measured::default());
                assert_eq!(
                    judgement.verdict,
                    crate::study::Verdict::NotDecided,
                    "{} {}",
                    experiment.name,
                    shape.id
                );
            }
        }
    }

    #[test]
    fn a_wrong_parameter_is_explained() {
        let experiment = &throughput::EXPERIMENT;
        let points = |set: &str| {
            let parameters = Parameters::new(experiment, false, &[set.to_owned()]).unwrap();
            (experiment.points)(&parameters).unwrap_err().to_string()
        };
        assert!(points("concurrent=0").contains("concurrent=0: accepted: numbers from 1"));
        assert!(points("replicas=2").contains("accepted: 1 and 3 to 9"));
        assert!(points("protocols=pigeon").contains("unknown protocol 'pigeon'; accepted: multipaxos"));
        assert!(points("seconds=0").contains("seconds above 0"));
        assert!(points("on=moon").contains("accepted: threads"));
        let error =
            Parameters::check_keys(&[experiment], &["colour=red".to_owned()]).unwrap_err().to_string();
        assert!(error.contains("no such parameter here; accepted: concurrent"), "{error}");
        assert!(find(&["moon".to_owned()]).unwrap_err().to_string().contains("ng-throughput"));
    }
}

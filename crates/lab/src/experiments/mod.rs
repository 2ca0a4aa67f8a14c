//! The experiments, each declared in one place.
//!
//! Sources are sections, figures and tables of Ng 2020 ("Distributed Consensus: Performance Comparison of Paxos
//! and Raft"), and of Santos 2012 ("State Machine Replication: from Analytical Evaluation to High-Performance Paxos"),
//! chapter 10, of Benz 2013 ("Unicast Multi-Ring Paxos"), and of Driftwood 2023. `N..` and `H..` are items of
//! checklists of these documents, `R..` the claims that a repetition must reproduce. Ng 2020 measured on 16 cores and
//! on machines of a cloud; here all replicas may share two cores, so curves are compared by their shape, and the
//! document's numbers stand beside ours as numbers of another machine.

mod batching;
mod charts;
mod choosing;
mod driftwood;
mod flush;
mod geo;
mod judging;
mod latency;
mod leader_placement;
mod live_change;
mod multi_ring;
mod optimisations;
mod parameters;
mod points;
mod reconfiguration;
mod ring;
mod s_paxos;
mod single_dc;
mod synchronous;
mod throughput;
mod trans_pacific;
mod wide_area;
mod window;

use crate::study::{Experiment, LabError};

/// All of them.
pub const ALL: &[&Experiment] = &[
    &throughput::EXPERIMENT,
    &latency::EXPERIMENT,
    &flush::EXPERIMENT,
    &batching::EXPERIMENT,
    &synchronous::EXPERIMENT,
    &optimisations::LATEST_DECIDE,
    &optimisations::MAX_ACCEPT_SYNC,
    &reconfiguration::HEAD_START,
    &reconfiguration::RECONFIGURATION,
    &single_dc::EXPERIMENT,
    &geo::EXPERIMENT,
    &trans_pacific::EXPERIMENT,
    &leader_placement::EXPERIMENT,
    &live_change::EXPERIMENT,
    &window::EXPERIMENT,
    &s_paxos::throughput::EXPERIMENT,
    &s_paxos::response::EXPERIMENT,
    &s_paxos::open_loop::EXPERIMENT,
    &s_paxos::leaders::PROMOTIONS,
    &s_paxos::leaders::SUSPICIONS,
    &s_paxos::crashes::EXPERIMENT,
    &ring::SIZE,
    &ring::VALUES,
    &ring::STORES,
    &ring::order::EXPERIMENT,
    &ring::window::EXPERIMENT,
    &ring::shares::EXPERIMENT,
    &ring::crashes::EXPERIMENT,
    &ring::links::EXPERIMENT,
    &multi_ring::skips::EXPERIMENT,
    &multi_ring::merged::EXPERIMENT,
    &multi_ring::per_node::EXPERIMENT,
    &multi_ring::global::EXPERIMENT,
    &choosing::SMALL,
    &choosing::LARGE,
    &choosing::WIDE,
    &choosing::DISKS,
    &choosing::MANY,
    &driftwood::scaling::MEASURED,
    &driftwood::scaling::MANY,
    &driftwood::scaling::DOCUMENTS,
    &driftwood::rounds::MEASURED,
    &driftwood::rounds::DOCUMENTS,
    &driftwood::load::CLIENTS_MEASURED,
    &driftwood::load::CLIENTS_DOCUMENTS,
    &driftwood::load::RATES,
    &driftwood::load::DELAYS,
    &driftwood::partitions::EXPERIMENT,
    &driftwood::reach::EXPERIMENT,
    &driftwood::future::PACE,
    &driftwood::future::LAZY,
];

/// Finds experiments by name; `all` stands for all of them.
///
/// # Errors
/// No experiment has one of these names.
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::study::{COMMON_PARAMETERS, Parameters};

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

    /// Default and full parameters give points, facts belong to series that a full run measures, and claims
    /// without a measurement are not decided.
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
        assert!(points("replicas=2").contains("accepted: 1 and 3 to 11"));
        assert!(points("protocols=pigeon").contains("unknown protocol 'pigeon'; accepted: multipaxos"));
        assert!(points("seconds=0").contains("seconds above 0"));
        assert!(points("on=moon").contains("accepted: processes, threads"));
        let error =
            Parameters::check_keys(&[experiment], &["colour=red".to_owned()]).unwrap_err().to_string();
        assert!(error.contains("no such parameter here; accepted: concurrent"), "{error}");
        assert!(find(&["moon".to_owned()]).unwrap_err().to_string().contains("ng-throughput"));
    }
}

//! Runs a small experiment from its parameters to the report, with real replicas.

use std::{
    fs,
    path::PathBuf,
    sync::{Arc, atomic::AtomicBool},
};

use synod_lab::{
    experiments, report,
    study::{self, Conduct, LabError, RunOptions},
};

fn options(folder: &std::path::Path, set: &[&str]) -> RunOptions {
    RunOptions {
        folder: folder.to_owned(),
        full: false,
        set: set.iter().map(|set| (*set).to_owned()).collect(),
        commit: Some("c0ffee".to_owned()),
        progress: false,
    }
}

fn conduct(interrupted: bool) -> Conduct {
    Conduct::new(Arc::new(AtomicBool::new(interrupted)), PathBuf::from("/nowhere/synod"))
}

#[test]
fn figures_are_measured_kept_and_reported() {
    let folder = tempfile::tempdir().unwrap();
    let set = ["on=threads", "replicas=3", "protocols=multipaxos", "seconds=0.3", "runs=2", "runs-max=2"];
    let experiment = experiments::find(&["ng-latency".to_owned()]).unwrap()[0];
    let summary = study::run(experiment, &options(folder.path(), &set), &conduct(false)).unwrap();
    let median = summary.points.iter().find(|point| point.metric == "median_ms").unwrap();
    assert!(median.runs == 2 && median.mean > 0.0 && median.half_width.is_some(), "{median:?}");
    assert_eq!(summary.verdicts.len(), experiment.shapes.len());

    let raw = fs::read_to_string(folder.path().join("ng-latency-threads/raw.csv")).unwrap();
    assert!(raw.starts_with("series,x,run,metric,value\n\"multipaxos\",3,0,"), "{raw}");
    let html = fs::read_to_string(report::write(folder.path()).unwrap()).unwrap();
    for part in ["ng-latency", "R7b", "c0ffee", "multipaxos"] {
        assert!(html.contains(part), "{part} is missing in the page");
    }
    let pages = report::write_pages(Some(folder.path()), &folder.path().join("results")).unwrap();
    let page = fs::read_to_string(&pages[0]).unwrap();
    assert!(pages.len() == 1 && page.contains("`ng-latency-threads`: Synod"), "{pages:?}\n{page}");
    for extension in ["svg", "pdf", "csv"] {
        let file = format!("figures/ng-latency-threads-median-ms.{extension}");
        assert!(folder.path().join(&file).metadata().unwrap().len() > 100, "{file}");
        assert!(html.contains(&format!("href=\"{file}\"")), "{file} is not linked");
    }
    assert!(summary.shorter.iter().any(|parameter| parameter.starts_with("runs=2")), "{:?}", summary.shorter);
    assert!(html.contains("A short run, which decides little"), "it says nothing of its length");
}

/// With the relay of a wide-area network, a decision takes the round trips of the topology.
#[test]
fn a_relayed_group_has_the_latency_of_its_network() {
    let set = ["on=threads", "concurrent=1", "seconds=1.5", "runs=1", "runs-max=1"];
    let experiment = experiments::find(&["ng-geo".to_owned()]).unwrap()[0];
    let parameters = study::Parameters::new(experiment, false, &set.map(str::to_owned)).unwrap();
    let points = (experiment.points)(&parameters).unwrap();
    let series = "multipaxos, leader in california";
    let point = points.iter().find(|point| point.series == series).unwrap();
    let sample = (point.measure)(&conduct(false)).unwrap();
    let median = sample.figures["median_ms"];
    // 280 ms. A busy machine may add to it, and nothing may shorten it.
    assert!((279.0..600.0).contains(&median), "{median} ms");
    assert_eq!(sample.figures["leader"], 3.0);
}

#[test]
fn an_interrupted_run_keeps_what_it_has() {
    let folder = tempfile::tempdir().unwrap();
    let experiment = experiments::find(&["ng-latency".to_owned()]).unwrap()[0];
    let outcome = study::run(experiment, &options(folder.path(), &[]), &conduct(true));
    assert!(matches!(outcome, Err(LabError::Interrupted)));
    let summary = fs::read_to_string(folder.path().join("ng-latency/summary.json")).unwrap();
    assert!(summary.contains("\"cut_short\": \"interrupted\""), "{summary}");
}

#[test]
fn a_program_that_is_not_there_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let experiment = experiments::find(&["ng-latency".to_owned()]).unwrap()[0];
    let error = study::run(experiment, &options(folder.path(), &[]), &conduct(false)).unwrap_err();
    assert!(error.to_string().contains("starting /nowhere/synod"), "{error}");
}

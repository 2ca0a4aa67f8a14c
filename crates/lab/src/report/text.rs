//! Numbers and circumstances of a run for people, as all pages and figures have them.

use std::fmt::Write as _;

use super::Run;
use crate::{
    figure::numbers::{date, number},
    study::{Environment, PointSummary, Summary},
};

/// The introduction, which holds for all runs.
pub(super) const PREAMBLE: &str = "\
Written by `synod lab report` from what `synod lab run` measured; verdicts are the program's. Every figure was measured \
by the run that is described with it, except those said to be printed in the document. Names such as R6b number the \
claims that a repetition of the document must reproduce, and names such as N80 number what the document describes. \
Intervals are 95 % confidence \
intervals of the mean (Student's t); differences are called significant by Welch's test at 5 %. On processes and threads \
the replicas, the load and whatever else ran on the machine shared its cores, so absolute figures are those of a crowded \
machine; the load average is noted with each run. In virtual time nothing of that matters, and the prices of messages \
are a model.";

/// A mean with its confidence interval.
pub(super) fn estimate(point: &PointSummary) -> String {
    match point.half_width.filter(|half| *half > 0.0) {
        Some(half) => format!("{} ± {}", number(point.mean), number(half)),
        None => number(point.mean),
    }
}

/// With fewer runs at a point an interval says little.
const RUNS_FEW: usize = 3;

/// The table of a metric: series, place, ours, the document's.
pub(super) fn rows(summary: &Summary, metric: &str) -> Vec<[String; 5]> {
    let points = summary.points.iter().filter(|point| point.metric == metric);
    let row = |point: &PointSummary| {
        let fact = summary.facts.iter().find(|fact| {
            fact.metric == metric && fact.series == point.series && (fact.x - point.x).abs() < 1e-9
        });
        [
            point.series.clone(),
            number(point.x),
            estimate(point),
            point.runs.to_string(),
            fact.map_or(String::new(), |fact| format!("{} ({})", number(fact.value), fact.place)),
        ]
    };
    points.map(row).collect()
}

/// Whether replicas ran in virtual time, where neither the machine nor the build changes what is measured.
fn is_virtual(summary: &Summary) -> bool {
    summary.parameters.get("on").is_some_and(|on| on == "virtual")
}

/// A warning for a run with real replicas on a busy machine, whose load affects the figures more than the replicas do.
fn warning(summary: &Summary, environment: &Environment) -> Option<String> {
    let load = environment.load_before?;
    (!is_virtual(summary) && load > 3.0 * environment.cores as f64).then(|| {
        format!(
            "The machine was crowded: a load average of {load:.1} on {} cores before the run began. Absolute figures, \
             and verdicts that rest on them, say more about that than about the replicas.",
            environment.cores
        )
    })
}

/// The lowest and the highest of some counts.
pub(super) fn from_to(counts: impl Iterator<Item = usize> + Clone) -> String {
    let (few, many) = (counts.clone().min().unwrap_or(0), counts.max().unwrap_or(0));
    if few == many { few.to_string() } else { format!("{few} to {many}") }
}

/// Reasons why the figures and verdicts of a run decide little, if there are any.
pub(super) fn notes(run: &Run) -> Vec<String> {
    let Run { summary, environment, runs, .. } = run;
    let mut notes = Vec::new();
    if !summary.shorter.is_empty() {
        notes.push(format!("A short run, which decides little: {}.", summary.shorter.join(", ")));
    }
    let fewest = runs.split(' ').next().and_then(|few| few.parse().ok()).unwrap_or(RUNS_FEW);
    if (1..RUNS_FEW).contains(&fewest) {
        let runs = if fewest == 1 { "One run" } else { "Two runs" };
        notes.push(format!("{runs} at a point: how far runs differ is hardly known."));
    }
    if let Some(why) = &summary.cut_short {
        notes.push(format!("The run ended early: {why}."));
    }
    if !environment.optimised && !is_virtual(summary) {
        notes.push("Built without optimisation: its times are those of no real build.".to_owned());
    }
    notes.extend(warning(summary, environment));
    notes
}

/// The parameters, as `--set` takes them.
pub(super) fn parameters(summary: &Summary) -> String {
    let all: Vec<_> = summary.parameters.iter().map(|(key, value)| format!("{key}={value}")).collect();
    all.join(", ")
}

/// How often the points were run, and on which machine.
pub(super) fn conduct(run: &Run) -> String {
    format!(
        "Runs at each point: {}. Parameters: {}. Began on {} and took {:.0} s. On: {}.",
        run.runs,
        parameters(&run.summary),
        date(run.environment.began),
        run.summary.took_seconds,
        surroundings(&run.environment)
    )
}

/// What ran, when, and how often.
pub(super) fn ran(run: &Run) -> String {
    let Run { summary, environment, runs, .. } = run;
    let build = if environment.optimised { "release build" } else { "debug build" };
    let word = if runs == "1" { "run" } else { "runs" };
    let length =
        summary.parameters.get("seconds").map_or(String::new(), |seconds| format!(" of {seconds} s"));
    format!("{}, {build}, {}, {runs} {word}{length} a point", environment.program(), date(environment.began))
}

/// The machine that replicas ran on.
pub(super) fn machine(run: &Run) -> String {
    let Run { summary, environment, .. } = run;
    if is_virtual(summary) {
        // Experiments without such a parameter have the costs of Ng 2020.
        let costs = summary.parameters.get("costs").map_or("ng-2020", String::as_str);
        return format!(
            "virtual time: each machine has a processor, a disk and a card of its own, with costs `{costs}`"
        );
    }
    let on = summary.parameters.get("on").map_or("", String::as_str);
    let mut text = format!("{on} on one machine of {} cores", environment.cores);
    if let Some(processor) = &environment.processor {
        let _ = write!(text, ", {processor}");
    }
    if !environment.kernel.is_empty() {
        let _ = write!(text, ", {}", environment.kernel);
    }
    if let Some(load) = environment.load_before {
        let _ = write!(text, ", load average {load:.1} before the run");
    }
    text
}

/// The machine on which it was measured.
fn surroundings(environment: &Environment) -> String {
    let mut text = environment.ground.clone();
    let _ = write!(text, "; {} cores", environment.cores);
    if let Some(processor) = &environment.processor {
        let _ = write!(text, " of {processor}");
    }
    let _ = write!(text, ", {}, Synod {}", environment.kernel, environment.version);
    if let Some(commit) = &environment.commit {
        let _ = write!(text, " at {commit}");
    }
    if !environment.optimised {
        text.push_str(", BUILT WITHOUT OPTIMISATION");
    }
    let load = |load: Option<f64>| load.map_or("?".to_owned(), |load| format!("{load:.1}"));
    let (before, after) = (load(environment.load_before), load(environment.load_after));
    let _ = write!(text, "; load average {before} before and {after} after");
    text
}

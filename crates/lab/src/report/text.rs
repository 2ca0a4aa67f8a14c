//! Numbers as people read them, and the tables that both pages have.

use std::fmt::Write as _;

use crate::study::{Environment, PointSummary, Summary};

/// What holds for all runs.
pub(super) const PREAMBLE: &str = "\
Written by `synod lab report` from what `synod lab run` measured; verdicts are the program's. Every figure was measured \
by the run that is described with it, except those said to be printed in the document. Intervals are 95 % confidence \
intervals of the mean (Student's t); differences are called significant by Welch's test at 5 %. On processes and threads \
the replicas, the load and whatever else ran on the machine shared its cores, so absolute figures are those of a crowded \
machine; the load average is noted with each run. In virtual time nothing of that matters, and the prices of messages \
are a model.";

/// A number with the digits that mean something.
pub(super) fn number(value: f64) -> String {
    let size = value.abs();
    if size == 0.0 {
        return "0".to_owned();
    }
    if size >= 100.0 {
        return thousands(value.round());
    }
    let digits = if size >= 10.0 {
        1
    } else if size >= 1.0 {
        2
    } else {
        4
    };
    let text = format!("{value:.digits$}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn thousands(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut text = if value < 0.0 { "-".to_owned() } else { String::new() };
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A mean with its confidence interval.
pub(super) fn estimate(point: &PointSummary) -> String {
    match point.half_width {
        Some(half) => format!("{} ± {}", number(point.mean), number(half)),
        None => number(point.mean),
    }
}

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

/// What to say first of a run with real replicas on a machine where much else ran: how fast they are depends on it more
/// than on them.
pub(super) fn warning(summary: &Summary, environment: &Environment) -> Option<String> {
    let real = summary.parameters.get("on").is_some_and(|on| on != "virtual");
    let load = environment.load_before.filter(|load| real && *load > 3.0 * environment.cores as f64)?;
    Some(format!(
        "The machine was crowded: a load average of {load:.1} on {} cores before the run began. Absolute figures, and \
         verdicts that rest on them, say more about that than about the replicas.",
        environment.cores
    ))
}

/// How the points were run, and on what.
pub(super) fn conduct(summary: &Summary, environment: &Environment) -> String {
    let parameters: Vec<_> = summary.parameters.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let runs = summary.points.iter().map(|point| point.runs);
    let (few, many) = (runs.clone().min().unwrap_or(0), runs.max().unwrap_or(0));
    let runs = if few == many { few.to_string() } else { format!("{few} to {many}") };
    format!(
        "Runs at each point: {runs}. Parameters: {}. Took {:.0} s. On: {}.",
        parameters.join(", "),
        summary.took_seconds,
        surroundings(environment)
    )
}

/// On what it was measured.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_the_digits_that_mean_something() {
        let cases = [
            (0.0, "0"),
            (177_310.4, "177,310"),
            (1000.0, "1,000"),
            (-2_500_000.0, "-2,500,000"),
            (99.94, "99.9"),
            (2.0, "2"),
            (2.346, "2.35"),
            (0.1234, "0.1234"),
        ];
        for (value, expected) in cases {
            assert_eq!(number(value), expected);
        }
    }
}

//! The results of a run or a comparison as a figure: answers and latency, each in a row of its own.

use super::{Comparison, Report, compare::Compared, report::Interval};
use crate::{
    figure::{
        Figure, Kind, Panel, Point, Series,
        numbers::{date, number},
    },
    study,
};

/// With fewer pairs the range of the measured values says little.
const PAIRS_FEW: usize = 3;
/// A window shorter than this, in seconds, is mostly its beginning.
const SECONDS_FEW: f64 = 4.0;

/// Answers and latency over time.
pub(super) fn of_report(report: &Report) -> Figure {
    let line = |name: &str, value: &dyn Fn(&Interval) -> Option<f64>| {
        let point = |interval: &Interval| {
            let x = f64::midpoint(interval.from_seconds, interval.to_seconds);
            value(interval).map(|y| Point { x, y, interval: None })
        };
        // The interval after the window has only the last answers.
        let within = report.series.iter().filter(|interval| interval.from_seconds < report.seconds);
        Series { name: name.to_owned(), points: within.filter_map(point).collect(), ..Series::default() }
    };
    let milliseconds = |microseconds: Option<u64>| microseconds.map(|latency| latency as f64 / 1e3);
    let panels = vec![
        panel("answers a second", vec![line("", &|interval| Some(interval.throughput))]),
        panel(
            "latency, ms",
            vec![
                line("99th percentile", &|interval| milliseconds(interval.p99_us)),
                line("median", &|interval| milliseconds(interval.p50_us)),
            ],
        ),
    ];
    figure("Answers and latency over time", "seconds", false, panels, caption(report, report.seconds, None))
}

/// Both sides over the number of clients. `None` if no run was completed.
pub(super) fn of_comparison(comparison: &Comparison) -> Option<Figure> {
    let report = comparison.reports().next()?;
    let sides = |of_all: &dyn Fn(&super::Level) -> Compared, of_one: &dyn Fn(&Report) -> f64, unit: f64| {
        let side = |is_b: bool| {
            let point = |level: &super::Level| {
                let compared = of_all(level);
                let median = if is_b { compared.b_median } else { compared.a_median }?;
                let runs = level.pairs.iter().map(|pair| if is_b { &pair.b } else { &pair.a });
                let all = runs.filter(|run| run.answered > 0).map(|run| of_one(run) / unit);
                let range = all.clone().fold(f64::INFINITY, f64::min)..all.fold(f64::NEG_INFINITY, f64::max);
                Some(Point {
                    x: level.clients as f64,
                    y: median / unit,
                    interval: Some((range.start, range.end)),
                })
            };
            let name = if is_b { &comparison.b_name } else { &comparison.a_name };
            let points = comparison.levels.iter().filter_map(point).collect();
            Series { name: name.clone(), points, ..Series::default() }
        };
        vec![side(false), side(true)]
    };
    let panels = vec![
        panel("answers a second", sides(&|level| level.throughput, &|run| run.throughput, 1.0)),
        panel("median latency, ms", sides(&|level| level.p50_us, &|run| run.latency.p50_us as f64, 1e3)),
        panel(
            "99th percentile of latency, ms",
            sides(&|level| level.p99_us, &|run| run.latency.p99_us as f64, 1e3),
        ),
    ];
    let pairs = comparison.levels.iter().map(|level| level.pairs.len()).min().unwrap_or(0);
    let title = format!("{} and {} under the same load, in turns", comparison.a_name, comparison.b_name);
    Some(figure(&title, "clients", true, panels, caption(report, report.seconds, Some(pairs))))
}

fn panel(title: &str, series: Vec<Series>) -> Panel {
    Panel { title: title.to_owned(), series, events: Vec::new() }
}

fn figure(title: &str, x_label: &str, x_log: bool, panels: Vec<Panel>, caption: Vec<String>) -> Figure {
    Figure {
        title: title.to_owned(),
        y_label: String::new(),
        x_label: x_label.to_owned(),
        x_log,
        kind: Kind::Lines,
        panels,
        columns: 1,
        free_rows: true,
        caption,
    }
}

/// The caption: what ran, for how long, when, and of which commit. `pairs` is given for a comparison.
fn caption(report: &Report, seconds: f64, pairs: Option<usize>) -> Vec<String> {
    let setup = &report.setup;
    let mut caption = Vec::new();
    if let Some(pairs) = pairs {
        caption.push(format!(
            "Medians of {pairs} runs of {seconds:.0} s each, bars from the least to the greatest."
        ));
    }
    let values = match setup.operation.as_str() {
        "get" => String::new(),
        _ => format!(" of {} bytes", setup.val_size),
    };
    let clients = if pairs.is_some() { String::new() } else { format!("{} clients, ", setup.clients) };
    caption.push(format!(
        "Load: {}{values} over {} keys, {clients}connections: {}.",
        setup.operation,
        number(setup.key_space_size as f64),
        setup.conns
    ));
    if pairs.is_some_and(|pairs| pairs < PAIRS_FEW) || seconds < SECONDS_FEW {
        caption.push("A short run, which decides little.".to_owned());
    }
    let shared = if setup.client_host.loopback { ", which servers and clients share" } else { "" };
    let commit = std::env::current_exe().ok().and_then(|program| study::commit_of(&program));
    caption.push(format!(
        "synod bench, {} cores{shared}, {}, {}.",
        setup.client_host.cores,
        date(setup.began_unix_ms / 1000),
        study::program(env!("CARGO_PKG_VERSION"), commit.as_deref()),
    ));
    caption
}

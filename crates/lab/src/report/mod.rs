//! `synod lab report`: one self-contained HTML page, the same in Markdown, and each figure as SVG, PDF and CSV.

mod figures;
mod html;
mod markdown;
mod text;

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::{
    figure::Figure,
    study::{Chart, Environment, LabError, Summary, at, read_summary},
};

/// A run, as a report reads it.
pub(crate) struct Run {
    pub(crate) summary: Summary,
    pub(crate) environment: Environment,
}

/// A figure of a run.
struct Drawn {
    chart: Chart,
    figure: Figure,
    /// Its path, relative to the report, without the extension of SVG, PDF or CSV.
    file: String,
}

/// A run with its figures.
struct Illustrated {
    run: Run,
    figures: Vec<Drawn>,
}

impl Illustrated {
    fn new(run: Run) -> Illustrated {
        let draw = |chart: &Chart| {
            let kind = if chart.form.is_over_time() { "over-time" } else { &chart.metric };
            let file = format!("figures/{}-{}", run.summary.name, kind.replace('_', "-"));
            Some(Drawn { chart: chart.clone(), figure: figures::figure(&run, chart)?, file })
        };
        let figures = run.summary.charts.iter().filter_map(draw).collect();
        Illustrated { run, figures }
    }
}

/// Reads every run below a folder. Writes `report.html` and `report.md` there, and each figure below
/// `figures`. Returns the paths of the pages.
///
/// # Errors
/// There is no run in the folder, or one of its files cannot be read.
pub fn write(folder: &Path) -> Result<[PathBuf; 2], LabError> {
    let mut runs = Vec::new();
    let mut entries: Vec<_> =
        fs::read_dir(folder).map_err(at(folder))?.flatten().map(|entry| entry.path()).collect();
    entries.sort();
    for entry in entries.into_iter().filter(|entry| entry.join("summary.json").exists()) {
        let (summary, environment) = read_summary(&entry)?;
        runs.push(Run { summary, environment });
    }
    if runs.is_empty() {
        let why = "no run is here; `synod lab run NAME --out DIR` makes one".to_owned();
        return Err(LabError::Unreadable { path: folder.to_owned(), why });
    }
    let runs: Vec<_> = runs.into_iter().map(Illustrated::new).collect();
    let figures = folder.join("figures");
    fs::create_dir_all(&figures).map_err(at(&figures))?;
    for drawn in runs.iter().flat_map(|run| &run.figures) {
        let written = drawn.figure.write(&folder.join(&drawn.file));
        written.map_err(|(path, source)| LabError::File { path, source })?;
    }
    let html = folder.join("report.html");
    fs::write(&html, html::page(&runs)).map_err(at(&html))?;
    let markdown = folder.join("report.md");
    fs::write(&markdown, markdown::page(&runs)).map_err(at(&markdown))?;
    Ok([html, markdown])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::{Claim, Event, Fact, Form, Judgement, PointSummary, Timeline};
    use std::collections::BTreeMap;

    fn run() -> Run {
        let point = |series: &str, x, mean| PointSummary {
            series: series.to_owned(),
            x,
            metric: "throughput".to_owned(),
            runs: 3,
            mean,
            half_width: Some(mean / 10.0),
            median: mean,
            min: mean * 0.9,
            max: mean * 1.1,
        };
        let chart = |form| Chart {
            title: "Throughput".into(),
            metric: "throughput".into(),
            x_label: "c".into(),
            y_label: "1/s".into(),
            form,
        };
        let summary = Summary {
            name: "test".to_owned(),
            title: "A <test>".to_owned(),
            source: "Nobody 2020".to_owned(),
            about: "About & about.".to_owned(),
            parameters: BTreeMap::from([("on".to_owned(), "threads".to_owned())]),
            charts: [Form::LogLines, Form::Lines, Form::Dots, Form::Timeline].map(chart).to_vec(),
            facts: vec![Fact {
                series: "a".into(),
                x: 10.0,
                metric: "throughput".into(),
                value: 177_310.0,
                place: "Table 9".into(),
            }],
            points: vec![point("a", 10.0, 1000.0), point("a", 100.0, 4000.0), point("b", 10.0, 0.0)],
            timelines: vec![Timeline {
                series: "a".to_owned(),
                x: 10.0,
                answers: vec![1.0, 0.0, 3.0],
                events: vec![Event { at: 0.1, what: "to raft".to_owned() }],
            }],
            verdicts: vec![Claim {
                id: "R5".to_owned(),
                claim: "a is above b".to_owned(),
                judgement: Judgement::of(true, "1000 > 0")
                    .with(&["c", "a | b"], vec![vec!["10".to_owned(), "1000 | 0".to_owned()]]),
            }],
            took_seconds: 1.0,
            cut_short: None,
            shorter: Vec::new(),
        };
        Run { summary, environment: Environment::now(None, "threads".to_owned()) }
    }

    #[test]
    fn both_pages_say_what_was_measured_and_what_the_document_prints() {
        let runs = [Illustrated::new(run())];
        let (html, markdown) = (html::page(&runs), markdown::page(&runs));
        for part in
            ["R5", "holds", "1000 &gt; 0", "177,310", "A &lt;test&gt;", "About &amp; about", "<svg", "4,000"]
        {
            assert!(html.contains(part), "{part} is missing");
        }
        for part in
            ["| test | R5: a is above b | holds |", "**holds**", "1,000 ± 100 [177,310]", "± 400", "Table 9"]
        {
            assert!(markdown.contains(part), "{part} is missing in\n{markdown}");
        }
        let crowded = |load| {
            let mut run = run();
            (run.environment.cores, run.environment.load_before) = (2, Some(load));
            markdown::page(&[Illustrated::new(run)]).contains("a load average of")
        };
        assert!(crowded(25.0) && !crowded(2.0));
        assert_eq!(html.matches("<svg").count(), html.matches("</svg>").count());
        assert!(!html.contains("NaN") && !html.contains("inf"), "a picture has an impossible place");
        assert!(!html.contains("src=") && !html.contains("href=\"http"), "the page needs something else");
    }

    #[test]
    fn a_folder_without_runs_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        assert!(write(folder.path()).unwrap_err().to_string().contains("no run is here"));
    }
}

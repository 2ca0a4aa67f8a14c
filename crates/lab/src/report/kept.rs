//! What is kept of a run beside the pages of results: `NAME.json` with how it was measured and its verdicts,
//! `NAME.csv` with the points of its charts, `NAME-over-time.csv` with what happened over the time of a run, and
//! `NAME-claims.csv` with the rows that its verdicts rest on. Numbers are rounded as figures print them, so that a page
//! that is written again from them is the same.

use std::{collections::BTreeMap, fmt::Write as _, fs, path::Path};

use serde::{Deserialize, Serialize};

use super::{Run, text, write_file};
use crate::{
    figure::numbers::{date, number},
    ground::Ground,
    study::{
        Claim, Environment, Event, Evidence, Experiment, Judgement, LabError, PointSummary, Summary,
        Timeline, Verdict, at,
    },
};

/// `NAME.json`: a run without its values.
#[derive(Serialize, Deserialize)]
struct Record {
    name: String,
    parameters: BTreeMap<String, String>,
    runs: String,
    verdicts: Vec<Judged>,
    cut_short: Option<String>,
    shorter: Vec<String>,
    environment: Environment,
}

/// The verdict on a claim.
#[derive(Serialize, Deserialize)]
struct Judged {
    claim: String,
    verdict: Verdict,
    /// Why, in figures; empty for runs of which it was not kept.
    reason: String,
}

/// Keeps a run, in the place of an earlier one of its name.
pub(super) fn write(folder: &Path, run: &Run) -> Result<(), LabError> {
    let summary = &run.summary;
    let judged = |claim: &Claim| Judged {
        claim: claim.id.clone(),
        verdict: claim.judgement.verdict,
        reason: claim.judgement.reason.clone(),
    };
    let record = Record {
        name: summary.name.clone(),
        parameters: summary.parameters.clone(),
        runs: run.runs.clone(),
        verdicts: summary.verdicts.iter().map(judged).collect(),
        cut_short: summary.cut_short.clone(),
        shorter: summary.shorter.clone(),
        environment: run.environment.clone(),
    };
    let record = serde_json::to_string_pretty(&record).expect("plain figures and texts");
    write_file(&folder.join(format!("{}.json", summary.name)), &(record + "\n"))?;
    for (end, content) in
        [(".csv", points(run)), ("-over-time.csv", over_time(summary)), ("-claims.csv", claims(summary))]
    {
        let path = folder.join(format!("{}{end}", summary.name));
        match content {
            Some(content) => write_file(&path, &content)?,
            None if path.exists() => fs::remove_file(&path).map_err(at(&path))?,
            None => {}
        }
    }
    Ok(())
}

/// Reads all runs that are kept in a folder, by name.
pub(super) fn read(folder: &Path, experiments: &[&Experiment]) -> Result<Vec<Run>, LabError> {
    let files = fs::read_dir(folder).map_err(at(folder))?.flatten().map(|entry| entry.path());
    let mut records: Vec<_> =
        files.filter(|path| path.extension().is_some_and(|extension| extension == "json")).collect();
    // By name, and not by file: `a` is before `a-b`, and `a.json` is not before `a-b.json`.
    records.sort_by(|one, other| one.file_stem().cmp(&other.file_stem()));
    records.iter().map(|path| read_run(folder, path, experiments)).collect()
}

fn read_run(folder: &Path, path: &Path, experiments: &[&Experiment]) -> Result<Run, LabError> {
    let unreadable = |why: String| LabError::Unreadable { path: path.to_owned(), why };
    let record: Record = serde_json::from_str(&fs::read_to_string(path).map_err(at(path))?)
        .map_err(|error| unreadable(error.to_string()))?;
    let experiment = experiments
        .iter()
        .find(|experiment| is_run_of(&record.name, experiment.name))
        .ok_or_else(|| unreadable(format!("there is no experiment of a run {}", record.name)))?;
    let rows = |end: &str| read_rows(&folder.join(format!("{}{end}", record.name)));
    let verdict = |judged: Judged| {
        let claim = experiment.shapes.iter().find(|shape| shape.id == judged.claim);
        Claim {
            claim: claim.map_or("", |shape| shape.claim).to_owned(),
            id: judged.claim,
            judgement: Judgement {
                verdict: judged.verdict,
                reason: judged.reason,
                evidence: Evidence::default(),
            },
        }
    };
    let summary = Summary {
        title: experiment.title.to_owned(),
        source: experiment.source.to_owned(),
        about: experiment.about.to_owned(),
        charts: experiment.charts.to_vec(),
        facts: experiment.facts.to_vec(),
        points: rows(".csv")?.iter().filter_map(|row| point(row)).collect(),
        timelines: timelines(&rows("-over-time.csv")?),
        verdicts: record.verdicts.into_iter().map(verdict).collect(),
        parameters: record.parameters,
        took_seconds: 0.0,
        cut_short: record.cut_short,
        shorter: record.shorter,
        name: record.name,
    };
    let has_rows = folder.join(format!("{}-claims.csv", summary.name)).exists();
    Ok(Run { summary, environment: record.environment, runs: record.runs, has_rows })
}

/// Whether a run of this name is one of the experiment: on its usual ground, or on another one.
pub(super) fn is_run_of(run: &str, experiment: &str) -> bool {
    let on = run.strip_prefix(experiment).and_then(|rest| rest.strip_prefix('-'));
    run == experiment || on.is_some_and(|on| on.parse::<Ground>().is_ok())
}

/// The rows of a file below its head; none if there is no such file.
fn read_rows(path: &Path) -> Result<Vec<Vec<String>>, LabError> {
    if !path.exists() {
        return Ok(Vec::new());
    }
    let text = fs::read_to_string(path).map_err(at(path))?;
    Ok(text.lines().filter(|line| !line.starts_with('#')).skip(1).map(fields).collect())
}

/// The fields of a line.
fn fields(line: &str) -> Vec<String> {
    let (mut fields, mut quoted) = (vec![String::new()], false);
    let mut characters = line.chars().peekable();
    while let Some(character) = characters.next() {
        let field = fields.last_mut().expect("there is a field");
        match character {
            '"' if quoted && characters.peek() == Some(&'"') => field.extend(characters.next()),
            '"' => quoted = !quoted,
            ',' if !quoted => fields.push(String::new()),
            _ => field.push(character),
        }
    }
    fields
}

/// Text as a field.
fn field(text: &str) -> String {
    if text.contains([',', '"']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.to_owned() }
}

/// A number as figures print it, without separators.
fn rounded(value: f64) -> String {
    number(value).replace(',', "")
}

/// The points of all charts, with the numbers that the document prints.
fn points(run: &Run) -> Option<String> {
    let summary = &run.summary;
    let mut csv = format!(
        "# {}: {}. {} runs a point, {}, {}. Rounded; half_width: of the 95 % interval.\n\
         metric,unit,x_is,series,x,mean,half_width,median,document\n",
        summary.name,
        text::parameters(summary),
        run.runs,
        date(run.environment.began),
        run.environment.program(),
    );
    let before = csv.len();
    let mut metrics = Vec::new();
    for chart in summary.charts.iter().filter(|chart| !chart.form.is_over_time()) {
        if metrics.contains(&&chart.metric) {
            continue;
        }
        metrics.push(&chart.metric);
        let mut row = |series: &str, x: f64, [mean, half, median, document]: [Option<f64>; 4]| {
            let cells = [mean, half.filter(|half| *half > 0.0), median, document];
            let cells = cells.map(|value| value.map(rounded).unwrap_or_default()).join(",");
            let head = [&chart.metric, &chart.y_label, &chart.x_label].map(|text| field(text)).join(",");
            // Writing to a string does not fail.
            let _ = writeln!(csv, "{head},{},{x},{cells}", field(series));
        };
        let points = || summary.points.iter().filter(|point| point.metric == chart.metric);
        let facts = || summary.facts.iter().filter(|fact| fact.metric == chart.metric);
        let same = |one: (&str, f64), other: (&str, f64)| one.0 == other.0 && (one.1 - other.1).abs() < 1e-9;
        for point in points() {
            let fact = facts().find(|fact| same((&fact.series, fact.x), (&point.series, point.x)));
            let document = fact.map(|fact| fact.value);
            row(&point.series, point.x, [Some(point.mean), point.half_width, Some(point.median), document]);
        }
        for fact in facts() {
            if !points().any(|point| same((&fact.series, fact.x), (&point.series, point.x))) {
                row(&fact.series, fact.x, [None, None, None, Some(fact.value)]);
            }
        }
    }
    (csv.len() > before).then_some(csv)
}

/// A point of such a row; none of one that has the document's number only.
fn point(row: &[String]) -> Option<PointSummary> {
    let [metric, _, _, series, x, mean, half_width, median, _] = row else { return None };
    let mean = mean.parse().ok()?;
    Some(PointSummary {
        series: series.clone(),
        x: x.parse().ok()?,
        metric: metric.clone(),
        runs: 0,
        mean,
        half_width: half_width.parse().ok(),
        // Runs of long ago have none, and one value at each point of a chart of medians.
        median: median.parse().unwrap_or(mean),
        min: mean,
        max: mean,
    })
}

/// What happened over the time of a run, tenth by tenth of a second.
fn over_time(summary: &Summary) -> Option<String> {
    let mut csv = "series,x,second,value,event\n".to_owned();
    for Timeline { series, x, answers, events } in &summary.timelines {
        let series = field(series);
        for (tenth, value) in answers.iter().enumerate() {
            let _ = writeln!(csv, "{series},{x},{},{},", tenth as f64 / 10.0, rounded(*value));
        }
        for event in events {
            let _ = writeln!(csv, "{series},{x},{:.2},,{}", event.at, field(&event.what));
        }
    }
    (!summary.timelines.is_empty()).then_some(csv)
}

fn timelines(rows: &[Vec<String>]) -> Vec<Timeline> {
    let mut timelines: Vec<Timeline> = Vec::new();
    for row in rows {
        let [series, x, second, value, event] = row.as_slice() else { continue };
        let (Ok(x), Ok(at)) = (x.parse::<f64>(), second.parse()) else { continue };
        let own = timelines.iter().position(|line| line.series == *series && (line.x - x).abs() < 1e-9);
        let own = own.unwrap_or_else(|| {
            let (series, answers, events) = (series.clone(), Vec::new(), Vec::new());
            timelines.push(Timeline { series, x, answers, events });
            timelines.len() - 1
        });
        match value.parse() {
            Ok(value) => timelines[own].answers.push(value),
            Err(_) => timelines[own].events.push(Event { at, what: event.clone() }),
        }
    }
    timelines
}

/// The rows that verdicts rest on, a head above those of each claim.
fn claims(summary: &Summary) -> Option<String> {
    let mut csv = String::new();
    for claim in &summary.verdicts {
        let Evidence { columns, rows } = &claim.judgement.evidence;
        let line = |first: &str, cells: &[String]| {
            let cells = cells.iter().map(|cell| format!(",{}", field(cell)));
            format!("{}{}\n", field(first), cells.collect::<String>())
        };
        if !rows.is_empty() {
            csv += &line("claim", columns);
            csv.extend(rows.iter().map(|row| line(&claim.id, row)));
        }
    }
    (!csv.is_empty()).then_some(csv)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_as_they_are_written() {
        let texts = ["raft", "raft, 3 replicas", "a \"b\", c", "", "12.5"];
        let line = texts.map(field).join(",");
        assert_eq!(fields(&line), texts);
    }

    #[test]
    fn a_run_is_known_by_the_name_of_its_experiment_and_of_its_ground() {
        assert!(is_run_of("benz-links", "benz-links") && is_run_of("benz-links-namespaces", "benz-links"));
        assert!(!is_run_of("driftwood-document-rates", "driftwood-document"));
        assert!(!is_run_of("benz-linksvirtual", "benz-links") && !is_run_of("ng-geo", "benz-links"));
    }
}

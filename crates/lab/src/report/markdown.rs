//! Writes the report in Markdown, with the figures in files of their own, and a column for each place on the axis.

use std::fmt::Write as _;

use super::{Illustrated, text};
use crate::{
    figure::numbers::number,
    study::{Chart, Claim, Summary},
};

/// The whole page.
pub(super) fn page(runs: &[Illustrated]) -> String {
    let mut page = format!("# Experiments\n\n{}\n", text::PREAMBLE);
    overview(&mut page, runs);
    for run in runs {
        section(&mut page, run);
    }
    page
}

/// Text inside a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

fn overview(page: &mut String, runs: &[Illustrated]) {
    page.push_str("\n| experiment | claim | verdict |\n| --- | --- | --- |\n");
    for summary in runs.iter().map(|run| &run.run.summary) {
        for claim in &summary.verdicts {
            let (id, verdict) = (&claim.id, claim.judgement.verdict.as_str());
            let _ = writeln!(page, "| {} | {id}: {} | {verdict} |", summary.name, cell(&claim.claim));
        }
    }
}

fn section(page: &mut String, Illustrated { run, figures }: &Illustrated) {
    let summary = &run.summary;
    let _ = writeln!(page, "\n## {}: {}\n\n{}\n", summary.name, summary.title, summary.source);
    let _ = writeln!(page, "{}\n", summary.about);
    for note in text::notes(summary, &run.environment) {
        let _ = writeln!(page, "**{note}**\n");
    }
    page.push_str("| claim | measured | verdict |\n| --- | --- | --- |\n");
    for claim in &summary.verdicts {
        let (verdict, reason) = (claim.judgement.verdict.as_str(), cell(&claim.judgement.reason));
        let _ = writeln!(page, "| {}: {} | {reason} | **{verdict}** |", claim.id, cell(&claim.claim));
    }
    summary.verdicts.iter().for_each(|claim| evidence(page, claim));
    for drawn in figures {
        let (title, file) = (&drawn.chart.title, &drawn.file);
        let _ =
            writeln!(page, "\n![{title}]({file}.svg)\n\n{title} as [PDF]({file}.pdf) and [CSV]({file}.csv).");
        if !drawn.chart.form.is_over_time() {
            table(page, summary, &drawn.chart);
        }
    }
    let _ = writeln!(page, "\n{}", text::conduct(summary, &run.environment));
}

/// The figures that a verdict rests on.
fn evidence(page: &mut String, claim: &Claim) {
    let evidence = &claim.judgement.evidence;
    if evidence.rows.is_empty() {
        return;
    }
    let line = |cells: &[String]| cells.iter().map(|text| cell(text)).collect::<Vec<_>>().join(" | ");
    let _ = writeln!(page, "\nWhat {} rests on:\n\n| {} |", claim.id, line(&evidence.columns));
    let _ = writeln!(page, "|{}", " --- |".repeat(evidence.columns.len()));
    for row in &evidence.rows {
        let _ = writeln!(page, "| {} |", line(row));
    }
}

/// A row for each series, a column for each place.
fn table(page: &mut String, summary: &Summary, chart: &Chart) {
    let points: Vec<_> = summary.points.iter().filter(|point| point.metric == chart.metric).collect();
    let facts: Vec<_> = summary.facts.iter().filter(|fact| fact.metric == chart.metric).collect();
    if points.is_empty() {
        return;
    }
    let mut places: Vec<f64> =
        points.iter().map(|point| point.x).chain(facts.iter().map(|fact| fact.x)).collect();
    places.sort_by(f64::total_cmp);
    places.dedup();
    let mut series: Vec<&str> = points.iter().map(|point| point.series.as_str()).collect();
    series.sort_unstable();
    series.dedup();
    let heads: Vec<_> = places.iter().map(|&x| number(x)).collect();
    let _ = writeln!(page, "\n{}, {}, over {}:\n", chart.title, chart.y_label, chart.x_label);
    let _ = writeln!(page, "| series | {} |\n| --- |{}", heads.join(" | "), " ---: |".repeat(places.len()));
    for name in series {
        let at = |&x: &f64| {
            let ours = points.iter().find(|point| point.series == name && point.x == x);
            let printed = facts.iter().find(|fact| fact.series == name && fact.x == x);
            let ours = ours.map(|point| text::estimate(point));
            let printed = printed.map(|fact| format!("[{}]", number(fact.value)));
            [ours, printed].into_iter().flatten().collect::<Vec<_>>().join(" ")
        };
        let cells: Vec<_> = places.iter().map(at).collect();
        let _ = writeln!(page, "| {} | {} |", cell(name), cells.join(" | "));
    }
    let mut sources: Vec<_> = facts.iter().map(|fact| fact.place.as_ref()).collect();
    sources.dedup();
    if !sources.is_empty() {
        let _ = writeln!(page, "\nIn brackets: printed in the document, {}.", sources.join("; "));
    }
}

//! Writes the report as one page of HTML that loads nothing else.

use std::fmt::Write as _;

use super::{Illustrated, text};
use crate::study::{Evidence, Verdict};

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem;\
color:#1a1a1a;background:#fff}h2{margin-top:3rem;border-top:1px solid #ccc;padding-top:1rem}\
table{border-collapse:collapse;margin:1rem 0}td,th{border:1px solid #ddd;padding:.2rem .6rem;text-align:left}\
td.n{text-align:right;font-variant-numeric:tabular-nums}.holds{color:#00714f}.not{color:#b3261e}.open{color:#7a5c00}\
.small{color:#555;font-size:13px}svg{max-width:100%;height:auto}\
@media(prefers-color-scheme:dark){body{color:#ddd;background:#161616}td,th{border-color:#444}.small{color:#aaa}\
.holds{color:#5bd6a8}.not{color:#ff8a80}.open{color:#ffd666}}";

/// Text inside HTML.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Sentences inside HTML. Text between backticks is code.
fn prose(text: &str) -> String {
    let pieces = escape(text).split('`').map(str::to_owned).collect::<Vec<_>>();
    let code = |(index, piece): (usize, String)| match index % 2 {
        1 => format!("<code>{piece}</code>"),
        _ => piece,
    };
    // With an odd number of backticks, none of them marks code.
    if pieces.len() % 2 == 1 { pieces.into_iter().enumerate().map(code).collect() } else { escape(text) }
}

/// The whole page.
pub(super) fn page(runs: &[Illustrated]) -> String {
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Synod: experiments</title>\
         <style>{STYLE}</style></head><body>\n<h1>Experiments</h1>\n"
    );
    let _ = writeln!(page, "<p>{}</p>", prose(text::PREAMBLE));
    overview(&mut page, runs);
    for run in runs {
        section(&mut page, run);
    }
    page.push_str("</body></html>\n");
    page
}

fn class(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Holds => "holds",
        Verdict::DoesNotHold => "not",
        Verdict::NotDecided => "open",
    }
}

fn overview(page: &mut String, runs: &[Illustrated]) {
    page.push_str("<table><tr><th>experiment</th><th>claim</th><th>verdict</th></tr>\n");
    for summary in runs.iter().map(|run| &run.run.summary) {
        for claim in &summary.verdicts {
            let verdict = claim.judgement.verdict;
            let _ = writeln!(
                page,
                "<tr><td><a href=\"#{name}\">{name}</a></td><td>{}: {}</td><td class=\"{}\">{}</td></tr>",
                escape(&claim.id),
                prose(&claim.claim),
                class(verdict),
                verdict.as_str(),
                name = escape(&summary.name),
            );
        }
    }
    page.push_str("</table>\n");
}

fn section(page: &mut String, Illustrated { run, figures }: &Illustrated) {
    let summary = &run.summary;
    let _ = writeln!(page, "<h2 id=\"{0}\">{0}: {1}</h2>", escape(&summary.name), escape(&summary.title));
    let _ = writeln!(page, "<p>{}</p>\n<p>{}</p>", prose(&summary.source), prose(&summary.about));
    for note in text::notes(run) {
        let _ = writeln!(page, "<p class=\"not\">{}</p>", escape(&note));
    }
    page.push_str("<table><tr><th>claim</th><th>measured</th><th>verdict</th></tr>\n");
    for claim in &summary.verdicts {
        let verdict = claim.judgement.verdict;
        let _ = writeln!(
            page,
            "<tr><td>{}: {}</td><td>{}</td><td class=\"{}\"><b>{}</b></td></tr>",
            escape(&claim.id),
            prose(&claim.claim),
            prose(&claim.judgement.reason),
            class(verdict),
            verdict.as_str(),
        );
    }
    page.push_str("</table>\n");
    for claim in summary.verdicts.iter().filter(|claim| !claim.judgement.evidence.rows.is_empty()) {
        evidence(page, &claim.id, &claim.judgement.evidence);
    }
    for drawn in figures {
        let file = escape(&drawn.file);
        let _ = writeln!(
            page,
            "<h3>{}</h3>\n{}<p class=\"small\">{file}: <a href=\"{file}.svg\">SVG</a> <a href=\"{file}.pdf\">PDF</a> \
             <a href=\"{file}.csv\">CSV</a></p>",
            escape(&drawn.chart.title),
            drawn.figure.svg(),
        );
        let rows = text::rows(summary, &drawn.chart.metric);
        if !rows.is_empty() && !drawn.chart.form.is_over_time() {
            table(page, &drawn.chart.x_label, &drawn.chart.y_label, &rows);
        }
    }
    let conduct = text::conduct(run);
    let _ = writeln!(page, "<p class=\"small\">{}</p>", escape(&conduct));
}

/// The figures that a verdict rests on.
fn evidence(page: &mut String, id: &str, evidence: &Evidence) {
    let cells = |tag: &str, row: &[String]| {
        row.iter().map(|cell| format!("<{tag}>{}</{tag}>", prose(cell))).collect::<String>()
    };
    let _ = writeln!(
        page,
        "<details><summary>What {} rests on</summary><table><tr>{}</tr>",
        escape(id),
        cells("th", &evidence.columns)
    );
    for row in &evidence.rows {
        let _ = writeln!(page, "<tr>{}</tr>", cells("td", row));
    }
    page.push_str("</table></details>\n");
}

fn table(page: &mut String, x_label: &str, y_label: &str, rows: &[[String; 5]]) {
    let _ = writeln!(
        page,
        "<details><summary>Table</summary><table><tr><th>series</th><th>{}</th><th>{}</th><th>runs</th>\
         <th>printed in the document</th></tr>",
        escape(x_label),
        escape(y_label)
    );
    for [series, x, ours, runs, theirs] in rows {
        let _ = writeln!(
            page,
            "<tr><td>{}</td><td class=\"n\">{x}</td><td class=\"n\">{ours}</td><td class=\"n\">{runs}</td><td>{}</td></tr>",
            escape(series),
            escape(theirs)
        );
    }
    page.push_str("</table></details>\n");
}

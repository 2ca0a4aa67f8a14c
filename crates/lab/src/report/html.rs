//! The report as one page of HTML that loads nothing.

use std::fmt::Write as _;

use super::{Run, svg, text};
use crate::study::Verdict;

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem;\
color:#1a1a1a;background:#fff}h2{margin-top:3rem;border-top:1px solid #ccc;padding-top:1rem}\
table{border-collapse:collapse;margin:1rem 0}td,th{border:1px solid #ddd;padding:.2rem .6rem;text-align:left}\
td.n{text-align:right;font-variant-numeric:tabular-nums}.holds{color:#00714f}.not{color:#b3261e}.open{color:#7a5c00}\
.small{color:#555;font-size:13px}svg{max-width:100%;height:auto}\
@media(prefers-color-scheme:dark){body{color:#ddd;background:#161616}td,th{border-color:#444}.small{color:#aaa}\
.holds{color:#5bd6a8}.not{color:#ff8a80}.open{color:#ffd666}}";

/// Text inside HTML.
pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// The whole page.
pub(super) fn page(runs: &[Run]) -> String {
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Synod: experiments</title>\
         <style>{STYLE}</style></head><body>\n<h1>Experiments</h1>\n"
    );
    let _ = writeln!(page, "<p>{}</p>", escape(text::PREAMBLE));
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

fn overview(page: &mut String, runs: &[Run]) {
    page.push_str("<table><tr><th>experiment</th><th>claim</th><th>verdict</th></tr>\n");
    for summary in runs.iter().map(|run| &run.summary) {
        for claim in &summary.verdicts {
            let verdict = claim.judgement.verdict;
            let _ = writeln!(
                page,
                "<tr><td><a href=\"#{name}\">{name}</a></td><td>{}: {}</td><td class=\"{}\">{}</td></tr>",
                escape(&claim.id),
                escape(&claim.claim),
                class(verdict),
                verdict.as_str(),
                name = escape(&summary.name),
            );
        }
    }
    page.push_str("</table>\n");
}

fn section(page: &mut String, run: &Run) {
    let summary = &run.summary;
    let _ = writeln!(page, "<h2 id=\"{0}\">{0}: {1}</h2>", escape(&summary.name), escape(&summary.title));
    let _ = writeln!(page, "<p>{}</p>\n<p>{}</p>", escape(&summary.source), escape(&summary.about));
    if let Some(why) = &summary.cut_short {
        let _ = writeln!(page, "<p class=\"not\">The run ended early: {}.</p>", escape(why));
    }
    if let Some(warning) = text::warning(summary, &run.environment) {
        let _ = writeln!(page, "<p class=\"not\">{}</p>", escape(&warning));
    }
    page.push_str("<ul>\n");
    for claim in &summary.verdicts {
        let verdict = claim.judgement.verdict;
        let _ = writeln!(
            page,
            "<li>{} {}: <b class=\"{}\">{}</b>. {}</li>",
            escape(&claim.id),
            escape(&claim.claim),
            class(verdict),
            verdict.as_str(),
            escape(&claim.judgement.reason)
        );
    }
    page.push_str("</ul>\n");
    for chart in &summary.charts {
        let Some(picture) = svg::chart(summary, chart) else { continue };
        let _ = writeln!(page, "<h3>{}</h3>\n{picture}", escape(&chart.title));
        let rows = text::rows(summary, &chart.metric);
        if !rows.is_empty() && chart.form != crate::study::Form::Timeline {
            table(page, &chart.x_label, &chart.y_label, &rows);
        }
    }
    let conduct = text::conduct(summary, &run.environment);
    let _ = writeln!(page, "<p class=\"small\">{}</p>", escape(&conduct));
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

//! The report in Markdown: the same without pictures.

use std::fmt::Write as _;

use super::{Run, text};
use crate::study::Form;

/// The whole page.
pub(super) fn page(runs: &[Run]) -> String {
    let mut page =
        "# Experiments\n\nEvery figure was measured by the run that is described with it, except those \
                    said to be printed in a document. Intervals are 95 % confidence intervals of the mean \
                    (Student's t).\n"
            .to_owned();
    for run in runs {
        section(&mut page, run);
    }
    page
}

/// Text inside a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

fn section(page: &mut String, run: &Run) {
    let summary = &run.summary;
    let _ = writeln!(page, "\n## {}\n\n{}\n\n{}\n", summary.title, summary.source, summary.about);
    if let Some(why) = &summary.cut_short {
        let _ = writeln!(page, "**The run ended early: {why}.**\n");
    }
    for claim in &summary.verdicts {
        let judgement = &claim.judgement;
        let (id, claim) = (&claim.id, &claim.claim);
        let _ = writeln!(page, "- {id} {claim}: **{}**. {}", judgement.verdict.as_str(), judgement.reason);
    }
    for chart in summary.charts.iter().filter(|chart| chart.form != Form::Timeline) {
        let rows = text::rows(summary, &chart.metric);
        if rows.is_empty() {
            continue;
        }
        let (x, y) = (cell(&chart.x_label), cell(&chart.y_label));
        let _ = writeln!(page, "\n### {}\n", chart.title);
        let _ = writeln!(page, "| series | {x} | {y} | runs | printed in the document |");
        page.push_str("| --- | ---: | ---: | ---: | --- |\n");
        for row in rows {
            let _ = writeln!(page, "| {} |", row.map(|text| cell(&text)).join(" | "));
        }
    }
    let parameters: Vec<_> = summary.parameters.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let _ = writeln!(
        page,
        "\nParameters: {}. Took {:.0} s. On: {}.",
        parameters.join(", "),
        summary.took_seconds,
        text::surroundings(&run.environment)
    );
}

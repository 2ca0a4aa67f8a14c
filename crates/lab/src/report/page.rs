//! The page of a document: a table of its experiments, and of each the claims with their verdicts, what a person found,
//! one figure, and in five lines what was measured and how. Values stand in the files that it links.

use std::fmt::Write as _;

use super::{
    Run, figures,
    kept::is_run_of,
    text,
    texts::{Page, Section},
};
use crate::{
    figure::Figure,
    study::{Chart, Claim, Experiment, Verdict},
};

/// The figure of a run that its page shows: of its first chart that is over places rather than over time.
pub(super) fn figure(run: &Run) -> Option<(&Chart, Figure)> {
    let (over_time, over_places): (Vec<_>, Vec<_>) =
        run.summary.charts.iter().partition(|chart| chart.form.is_over_time());
    over_places.into_iter().chain(over_time).find_map(|chart| Some((chart, figures::figure(run, chart)?)))
}

/// A section with what is kept of it.
struct Entry<'a> {
    section: &'a Section,
    /// That of the first experiment, which names the section.
    experiment: &'a Experiment,
    runs: Vec<&'a Run>,
}

impl<'a> Entry<'a> {
    fn new(section: &'a Section, experiments: &[&'a Experiment], runs: &'a [Run]) -> Entry<'a> {
        let name = section.experiments.first().map_or("", String::as_str);
        let experiment =
            experiments.iter().find(|experiment| experiment.name == name).expect("a test finds each");
        let of = |name: &'a String| runs.iter().filter(move |run| is_run_of(&run.summary.name, name));
        // The runs of an experiment are in the order of their names, and so the usual ground is the first.
        Entry { section, experiment, runs: section.experiments.iter().flat_map(of).collect() }
    }

    fn title(&self) -> String {
        format!("{}: {}", self.experiment.name, self.section.heading)
    }

    /// The head of a run's column.
    fn column(&self, run: &Run) -> String {
        let parameter = |key: &str| run.summary.parameters.get(key).map(String::as_str);
        match parameter("on") {
            _ if self.runs.len() == 1 => "verdict".to_owned(),
            Some("virtual") if self.section.experiments.len() > 1 => {
                format!("`{}`", parameter("costs").unwrap_or_default())
            }
            Some("virtual") => "virtual time".to_owned(),
            on => on.unwrap_or_default().to_owned(),
        }
    }
}

/// The page; none if no run of it is kept.
pub(super) fn page(page: &Page, experiments: &[&Experiment], runs: &[Run]) -> Option<String> {
    let entries: Vec<_> =
        page.sections.iter().map(|section| Entry::new(section, experiments, runs)).collect();
    if entries.iter().all(|entry| entry.runs.is_empty()) {
        return None;
    }
    let mut text = format!("# {}\n\n{}\n\n", page.title, page.about.trim());
    let all = entries.iter().flat_map(|entry| &entry.runs).flat_map(|run| &run.summary.verdicts);
    let (holding, judged) = counts(all);
    // Writing to a string does not fail.
    let _ = writeln!(
        text,
        "{holding} of {judged} claims hold; one that several runs judged counts for each of them. `synod lab report` \
         writes this page: [how to read it](README.md).\n\n| experiment | claim | verdict |\n| --- | --- | --- |"
    );
    for entry in &entries {
        overview(&mut text, entry);
    }
    for entry in &entries {
        section(&mut text, entry);
    }
    Some(text)
}

/// How many claims hold, and how many were judged.
fn counts<'a>(claims: impl Iterator<Item = &'a Claim>) -> (usize, usize) {
    let verdicts: Vec<_> = claims.map(|claim| claim.judgement.verdict).collect();
    let count = |of: Verdict| verdicts.iter().filter(|verdict| **verdict == of).count();
    (count(Verdict::Holds), verdicts.len() - count(Verdict::NotDecided))
}

/// The anchor that readers of Markdown give a title.
fn anchor(title: &str) -> String {
    let kept = |character: &char| character.is_alphanumeric() || " -_".contains(*character);
    title
        .to_lowercase()
        .chars()
        .filter(kept)
        .map(|character| if character == ' ' { '-' } else { character })
        .collect()
}

/// Text inside a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

/// The row of a section in the table of all.
fn overview(text: &mut String, entry: &Entry<'_>) {
    let verdicts: Vec<_> = entry
        .runs
        .iter()
        .map(|run| match entry.runs.len() {
            1 => in_all(run),
            _ => format!("{}: {}", entry.column(run), in_all(run)),
        })
        .collect();
    let verdict = if verdicts.is_empty() { "not run here".to_owned() } else { verdicts.join("; ") };
    let (name, link) = (entry.experiment.name, anchor(&entry.title()));
    let _ = writeln!(text, "| [{name}](#{link}) | {} | {verdict} |", cell(&entry.section.brief));
}

/// The verdicts of a run in a few words.
fn in_all(run: &Run) -> String {
    let claims = &run.summary.verdicts;
    let not: Vec<_> = claims.iter().filter(|claim| claim.judgement.verdict == Verdict::DoesNotHold).collect();
    let not: Vec<_> = not.iter().map(|claim| claim.id.as_str()).collect();
    match counts(claims.iter()) {
        (_, 0) => Verdict::NotDecided.as_str().to_owned(),
        (holding, judged) if holding == judged => format!("holds, {holding} of {judged}"),
        (holding, judged) => format!("**{holding} of {judged}**, not {}", not.join(", ")),
    }
}

fn section(text: &mut String, entry: &Entry<'_>) {
    let Entry { section, experiment, runs } = entry;
    let _ = writeln!(text, "\n## {}\n\n{}.\n{}\n", entry.title(), experiment.source, section.text.trim());
    claims(text, entry);
    for found in &section.found {
        let told = found.text.trim();
        let is_of = |run: &&Run| run.environment.commit.as_ref() == Some(&found.of);
        let _ = match runs.is_empty() || runs.iter().any(is_of) {
            true => writeln!(text, "\n{told}"),
            false => writeln!(text, "\n*Found with an earlier run, of {}:* {told}", found.of),
        };
    }
    let is_shown = |run: &&&Run| section.shown.as_ref() == Some(&run.summary.name);
    let shown = runs.iter().find(is_shown).or(runs.first());
    if let Some((run, (chart, figure))) = shown.and_then(|run| Some((run, self::figure(run)?))) {
        let (name, y_label) = (&run.summary.name, &figure.y_label);
        let _ =
            writeln!(text, "\n![{}, {y_label}, over {}](figures/{name}.svg)", chart.title, figure.x_label);
    }
    if runs.is_empty() {
        text.push_str("\nNot run here.\n");
        return;
    }
    text.push('\n');
    for run in runs {
        let figure = shown.is_some_and(|shown| shown.summary.name != run.summary.name);
        let _ = writeln!(text, "- **Run** {}", conduct(run, figure && self::figure(run).is_some()));
        let _ = writeln!(text, "- **Machine** {}", text::machine(run));
    }
    let _ = writeln!(
        text,
        "- **Network** {}\n- **Durability** {}\n- **Clients** {}",
        section.network, section.durability, section.clients
    );
}

/// The claims with their verdicts: a column for each run, and if there is one run, what it measured.
fn claims(text: &mut String, entry: &Entry<'_>) {
    let mut heads: Vec<_> = entry.runs.iter().map(|run| entry.column(run)).collect();
    let reasons = match entry.runs.as_slice() {
        [run] => run.summary.verdicts.iter().any(|claim| !claim.judgement.reason.is_empty()),
        _ => false,
    };
    if heads.is_empty() {
        heads.push("verdict".to_owned());
    }
    if reasons {
        heads.push("measured".to_owned());
    }
    let _ = writeln!(text, "| claim | {} |\n| --- |{}", heads.join(" | "), " --- |".repeat(heads.len()));
    for shape in entry.experiment.shapes {
        let own = |run: &&Run| run.summary.verdicts.iter().find(|claim| claim.id == shape.id).cloned();
        let judged: Vec<_> = entry.runs.iter().map(own).collect();
        let verdict = |claim: &Option<Claim>| match claim.as_ref().map(|claim| claim.judgement.verdict) {
            Some(Verdict::DoesNotHold) => "**does not hold**".to_owned(),
            Some(verdict) => verdict.as_str().to_owned(),
            None => "not judged".to_owned(),
        };
        let mut cells: Vec<_> = judged.iter().map(verdict).collect();
        if cells.is_empty() {
            cells.push("not run here".to_owned());
        }
        if reasons {
            cells.push(judged.iter().flatten().map(|claim| cell(&claim.judgement.reason)).collect());
        }
        let _ = writeln!(text, "| {}: {} | {} |", shape.id, cell(shape.claim), cells.join(" | "));
    }
}

/// Which program ran, when, how often, with links to what is kept of it; and why it decides little, if it does.
fn conduct(run: &Run, figure: bool) -> String {
    let (summary, name) = (&run.summary, &run.summary.name);
    let mut line = format!("`{name}`: {}", text::ran(run));
    if figure {
        let _ = write!(line, "; [figure](figures/{name}.svg)");
    }
    let files = [
        (!summary.points.is_empty(), "points", ""),
        (!summary.timelines.is_empty(), "over time", "-over-time"),
        (run.has_rows, "claims, row by row", "-claims"),
    ];
    for (_, what, end) in files.into_iter().filter(|(is_there, ..)| *is_there) {
        let _ = write!(line, "; [{what}](data/{name}{end}.csv)");
    }
    for note in text::notes(run) {
        let _ = write!(line, ". **{}**", note.trim_end_matches('.'));
    }
    line + "."
}

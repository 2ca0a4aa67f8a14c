//! `synod lab report`: the results of runs for people, in two forms.
//!
//! Of the runs in a folder it writes one self-contained HTML page (`html`) with every chart, each as SVG, PDF and CSV
//! too. With `--out` it writes a page a document (`page`): claims, verdicts, one figure and how it was measured. What
//! these pages need of a run is kept beside them (`kept`), and what a person says of it is in the crate's folder
//! `pages` (`texts`), so any page can be written again without the run, and a run replaces nothing but its own.

mod figures;
mod html;
mod kept;
mod page;
mod text;
mod texts;

use std::{
    fs,
    path::{Path, PathBuf},
};

use self::texts::Page;
use crate::{
    experiments,
    figure::Figure,
    study::{Chart, Environment, Experiment, LabError, Summary, at, read_summary},
};

/// A run, as a report reads it.
pub(crate) struct Run {
    pub(crate) summary: Summary,
    pub(crate) environment: Environment,
    /// How often its points were run, such as `3 to 4`.
    pub(crate) runs: String,
    /// Whether there is a file with the rows that its verdicts rest on.
    pub(crate) has_rows: bool,
}

impl Run {
    fn new(summary: Summary, environment: Environment) -> Run {
        let runs = text::from_to(summary.points.iter().map(|point| point.runs));
        let has_rows = summary.verdicts.iter().any(|claim| !claim.judgement.evidence.rows.is_empty());
        Run { summary, environment, runs, has_rows }
    }
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

/// Reads every run below a folder.
fn runs(folder: &Path) -> Result<Vec<Run>, LabError> {
    let mut entries: Vec<_> =
        fs::read_dir(folder).map_err(at(folder))?.flatten().map(|entry| entry.path()).collect();
    entries.sort();
    let entries = entries.into_iter().filter(|entry| entry.join("summary.json").exists());
    let read =
        |entry: PathBuf| read_summary(&entry).map(|(summary, environment)| Run::new(summary, environment));
    let runs = entries.map(read).collect::<Result<Vec<_>, _>>()?;
    if runs.is_empty() {
        let why = "no run is here; `synod lab run NAME --out DIR` makes one".to_owned();
        return Err(LabError::Unreadable { path: folder.to_owned(), why });
    }
    Ok(runs)
}

fn write_file(path: &Path, content: &str) -> Result<(), LabError> {
    fs::write(path, content).map_err(at(path))
}

fn make_folder(path: &Path) -> Result<(), LabError> {
    fs::create_dir_all(path).map_err(at(path))
}

/// Reads every run below a folder. Writes `report.html` there, and each figure below `figures`. Returns the path of the
/// page.
///
/// # Errors
/// There is no run in the folder, or a file cannot be read or written.
pub fn write(folder: &Path) -> Result<PathBuf, LabError> {
    let runs: Vec<_> = runs(folder)?.into_iter().map(Illustrated::new).collect();
    make_folder(&folder.join("figures"))?;
    for drawn in runs.iter().flat_map(|run| &run.figures) {
        let written = drawn.figure.write(&folder.join(&drawn.file));
        written.map_err(|(path, source)| LabError::File { path, source })?;
    }
    let html = folder.join("report.html");
    write_file(&html, &html::page(&runs))?;
    Ok(html)
}

/// Keeps the runs below `from` in the folder `out`, each in the place of an earlier one of its name, and writes the
/// page of every document of which a run is kept there. Without `from` it writes the pages of what is kept. Returns the
/// paths of the pages.
///
/// # Errors
/// There is no run in `from`, none is kept, or a file cannot be read or written.
pub fn write_pages(from: Option<&Path>, out: &Path) -> Result<Vec<PathBuf>, LabError> {
    write_pages_of(&texts::all(), experiments::ALL, from, out)
}

fn write_pages_of(
    pages: &[(&str, Page)],
    experiments: &[&Experiment],
    from: Option<&Path>,
    out: &Path,
) -> Result<Vec<PathBuf>, LabError> {
    let (data, figures) = (out.join("data"), out.join("figures"));
    for folder in [&data, &figures] {
        make_folder(folder)?;
    }
    if let Some(from) = from {
        for run in runs(from)? {
            kept::write(&data, &run)?;
        }
    }
    let kept = kept::read(&data, experiments)?;
    if kept.is_empty() {
        let why = "no run is kept here; `synod lab report RUNS --out DIR` keeps those in RUNS".to_owned();
        return Err(LabError::Unreadable { path: data, why });
    }
    for run in &kept {
        if let Some((_, figure)) = page::figure(run) {
            write_file(&figures.join(format!("{}.svg", run.summary.name)), &figure.svg())?;
        }
    }
    let mut paths = Vec::new();
    for (name, page) in pages {
        if let Some(text) = page::page(page, experiments, &kept) {
            let path = out.join(format!("{name}.md"));
            write_file(&path, &text)?;
            paths.push(path);
        }
    }
    Ok(paths)
}

#[cfg(test)]
mod tests;

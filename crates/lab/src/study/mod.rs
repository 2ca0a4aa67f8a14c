//! What an experiment is, how it is run, and what is kept of it.
//!
//! An [`Experiment`] is declared in one place (`crate::experiments`): where it comes from, its parameters, what is
//! measured at which points, what must hold, and the numbers that the document prints. [`run()`] measures the points in
//! turns (all points once, then all again), so that a machine that slows down slows down everything alike, and writes
//! `raw.csv`, `summary.json` and `environment.json`. `crate::report` reads only these.

mod environment;
mod measured;
mod parameters;
mod run;
mod summary;

pub use environment::Environment;
pub(crate) use environment::commit_of;
pub use measured::{Evidence, Judgement, Measured, Verdict};
pub use parameters::{COMMON as COMMON_PARAMETERS, Parameter, Parameters};
pub use run::{Conduct, RunOptions, run};
pub(crate) use summary::read as read_summary;
pub use summary::{Claim, PointSummary, Summary, Timeline};

use std::{borrow::Cow, collections::BTreeMap, path::PathBuf};

use serde::{Deserialize, Serialize};

/// An experiment, as declared.
#[derive(Debug)]
pub struct Experiment {
    /// Its name on the command line.
    pub name: &'static str,
    /// Its name for people.
    pub title: &'static str,
    /// The figure, table or section that it repeats, and its numbers on the checklist.
    pub source: &'static str,
    /// What is done, and where it differs from the document.
    pub about: &'static str,
    /// Its own parameters; those of all experiments are in [`parameters::COMMON`].
    pub parameters: &'static [Parameter],
    /// The metric whose relative standard error says when there were enough runs.
    pub headline: &'static str,
    /// The points at which it measures.
    pub points: fn(&Parameters) -> Result<Vec<Point>, LabError>,
    /// What the report draws.
    pub charts: &'static [Chart],
    /// What the document prints.
    pub facts: &'static [Fact],
    /// What must hold.
    pub shapes: &'static [Shape],
}

/// Measures a point once.
pub type Measure = Box<dyn Fn(&Conduct) -> Result<Sample, LabError>>;

/// One point: a series, a place on the axis, and how to measure there.
pub struct Point {
    /// The curve that it belongs to.
    pub series: String,
    /// Its place on the axis.
    pub x: f64,
    /// Measures once.
    pub measure: Measure,
}

impl std::fmt::Debug for Point {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Point({} at {})", self.series, self.x)
    }
}

/// What one run at one point found.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    /// Figures by metric.
    pub figures: BTreeMap<&'static str, f64>,
    /// Answers in consecutive intervals of a tenth of a second, if the experiment is about gaps.
    pub timeline: Vec<f64>,
    /// What was done meanwhile.
    pub events: Vec<Event>,
}

/// Something that was done under load.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// When, in seconds from the beginning of the timeline.
    pub at: f64,
    /// What.
    pub what: String,
}

/// A picture of one metric.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Chart {
    /// What it shows.
    pub title: Cow<'static, str>,
    /// The metric.
    pub metric: Cow<'static, str>,
    /// What is on the horizontal axis, with its unit.
    pub x_label: Cow<'static, str>,
    /// What is on the vertical axis, with its unit.
    pub y_label: Cow<'static, str>,
    /// How it is drawn.
    pub form: Form,
}

/// How a chart is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Form {
    /// Lines over a logarithmic axis.
    LogLines,
    /// Lines.
    Lines,
    /// The median at each place, for values that are names rather than amounts.
    Points,
    /// A row of a dot plot for each series, a panel for each place.
    #[serde(alias = "Bars")]
    Dots,
    /// Answers over time.
    Timeline,
}

/// A number that the document prints.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fact {
    /// The series of this experiment that it corresponds to.
    pub series: Cow<'static, str>,
    /// The place on the axis.
    pub x: f64,
    /// The metric.
    pub metric: Cow<'static, str>,
    /// The number.
    pub value: f64,
    /// Where it is printed, and on what it was measured.
    pub place: Cow<'static, str>,
}

/// What must hold.
#[derive(Debug)]
pub struct Shape {
    /// Its name in the specification, such as `R1`, with a letter for each part.
    pub id: &'static str,
    /// What is claimed.
    pub claim: &'static str,
    /// Whether it holds.
    pub judge: fn(&Measured) -> Judgement,
}

/// Why an experiment, or a report, could not be made.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// No experiment of this name.
    #[error("there is no experiment '{given}'; `synod lab list` shows: {}", known.join(", "))]
    UnknownExperiment {
        /// What was asked for.
        given: String,
        /// The names.
        known: Vec<&'static str>,
    },
    /// `--set` with something else than KEY=VALUE, an unknown key or a value of the wrong kind.
    #[error("--set {given}: {why}")]
    Parameter {
        /// What was set.
        given: String,
        /// What is wrong, and what is accepted.
        why: String,
    },
    /// A topology that makes no sense.
    #[error("topology {name}: {why}")]
    Topology {
        /// The topology or its file.
        name: String,
        /// What is wrong.
        why: String,
    },
    /// A file or folder.
    #[error("{}: {source}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// A file of a run is not what `synod lab run` writes.
    #[error("{}: {why}; is it from another version? Run the experiment again", path.display())]
    Unreadable {
        /// Which.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// Replicas could not be started, or ended by themselves.
    #[error("replicas: {0}")]
    Replicas(String),
    /// What was measured can not be believed: replicas disagree, or an answered command is missing.
    #[error("the replicas broke a promise: {0}")]
    Broken(String),
    /// The load generator against processes.
    #[error(transparent)]
    Bench(#[from] crate::bench::BenchError),
    /// Ctrl-C.
    #[error("interrupted")]
    Interrupted,
}

/// Puts the path into an error of the system.
pub(crate) fn at(path: &std::path::Path) -> impl FnOnce(std::io::Error) -> LabError + '_ {
    move |source| LabError::File { path: path.to_owned(), source }
}

//! The definition of an experiment, how it is run, and what is kept of a run.
//!
//! An [`Experiment`] is declared in one place (`crate::experiments`): its source, its parameters, what is measured
//! at which points, the claims that must hold, and the numbers that the document prints. [`run()`] measures the
//! points in turns (all points once, then all again), so that a machine that slows down affects all of them alike,
//! and writes `raw.csv`, `summary.json` and `environment.json`. `crate::report` reads only these files.

mod environment;
mod measured;
mod parameters;
mod run;
mod summary;

pub use environment::Environment;
pub(crate) use environment::{commit_of, program};
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
    /// The figure, table or section that it repeats, with the numbers of its claims.
    pub source: &'static str,
    /// What is done, and how that differs from the document.
    pub about: &'static str,
    /// Its own parameters; those of all experiments are in [`parameters::COMMON`].
    pub parameters: &'static [Parameter],
    /// The metric whose relative standard error tells when there were enough runs.
    pub headline: &'static str,
    /// The points at which it measures.
    pub points: fn(&Parameters) -> Result<Vec<Point>, LabError>,
    /// The charts of the report.
    pub charts: &'static [Chart],
    /// The numbers that the document prints.
    pub facts: &'static [Fact],
    /// The claims that must hold.
    pub shapes: &'static [Shape],
}

/// Measures a point once.
pub type Measure = Box<dyn Fn(&Conduct) -> Result<Sample, LabError>>;

/// A point: a series, a place on the axis, and how to measure there.
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

/// The result of one run at one point.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    /// Figures by metric.
    pub figures: BTreeMap<&'static str, f64>,
    /// Answers in consecutive intervals of a tenth of a second, if the experiment is about gaps; or what its chart of
    /// form [`Form::Levels`] shows.
    pub timeline: Vec<f64>,
    /// Actions that were carried out meanwhile.
    pub events: Vec<Event>,
}

impl Sample {
    /// Answers a second in a part of the window, where 0 is its beginning and 1 its end.
    pub(crate) fn answers_between(&self, from: f64, to: f64) -> f64 {
        let place = |part: f64| (self.timeline.len() as f64 * part) as usize;
        let tenths = &self.timeline[place(from)..place(to)];
        tenths.iter().sum::<f64>() / tenths.len().max(1) as f64 * 10.0
    }
}

/// An action that was carried out under load.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// Its time, in seconds from the beginning of the timeline.
    pub at: f64,
    /// Its description.
    pub what: String,
}

/// A chart of one metric.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Chart {
    /// Its title.
    pub title: Cow<'static, str>,
    /// The metric.
    pub metric: Cow<'static, str>,
    /// The label of the horizontal axis, with the unit.
    pub x_label: Cow<'static, str>,
    /// The label of the vertical axis, with the unit.
    pub y_label: Cow<'static, str>,
    /// How it is drawn.
    pub form: Form,
}

/// How a chart is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Form {
    /// Lines over a logarithmic axis.
    LogLines,
    /// Lines over a logarithmic axis, all in one panel: each value as a multiple of that of the first series, by name,
    /// at the same place. So a reader sees which is how much better where.
    Ratios,
    /// Lines.
    Lines,
    /// The median at each place, for values that are names rather than amounts.
    Points,
    /// A row of a dot plot for each series, a panel for each place.
    #[serde(alias = "Bars")]
    Dots,
    /// Answers over time.
    Timeline,
    /// Something else over time, which the samples have in the place of answers.
    Levels,
}

impl Form {
    /// Whether it shows what happened over the time of a run.
    #[must_use]
    pub fn is_over_time(self) -> bool {
        matches!(self, Form::Timeline | Form::Levels)
    }
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
    /// Where it is printed, and on which machines it was measured.
    pub place: Cow<'static, str>,
}

/// A claim that must hold.
#[derive(Debug)]
pub struct Shape {
    /// Its number, such as `R1`, with a letter for each part.
    pub id: &'static str,
    /// The claim.
    pub claim: &'static str,
    /// Judges the claim.
    pub judge: fn(&Measured) -> Judgement,
}

/// Why an experiment could not be run, or a report not be made.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// There is no experiment of this name.
    #[error("there is no experiment '{given}'; `synod lab list` shows: {}", known.join(", "))]
    UnknownExperiment {
        /// The name that was given.
        given: String,
        /// The names that exist.
        known: Vec<&'static str>,
    },
    /// The argument of `--set` is not KEY=VALUE, or has an unknown key or a value of the wrong kind.
    #[error("--set {given}: {why}")]
    Parameter {
        /// The argument.
        given: String,
        /// What is wrong, and what is accepted.
        why: String,
    },
    /// A topology is not valid.
    #[error("topology {name}: {why}")]
    Topology {
        /// The topology or its file.
        name: String,
        /// What is wrong.
        why: String,
    },
    /// Costs of virtual time are not valid.
    #[error("costs {name}: {why}")]
    Costs {
        /// The costs or their file.
        name: String,
        /// What is wrong.
        why: String,
    },
    /// A model was asked for something that it does not say.
    #[error("the model says nothing of that: {0}")]
    Model(String),
    /// A file or folder cannot be used.
    #[error("{}: {source}", path.display())]
    File {
        /// Its path.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A file of a run does not have the contents that `synod lab run` writes.
    #[error("{}: {why}; is it from another version? Run the experiment again", path.display())]
    Unreadable {
        /// Its path.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// Replicas could not be started, or ended by themselves.
    #[error("replicas: {0}")]
    Replicas(String),
    /// The figures are not credible: replicas disagree, or an answered command is missing.
    #[error("the replicas broke a promise: {0}")]
    Broken(String),
    /// Replicas ran, and nothing was decided for long.
    #[error("the group makes no progress: {0}")]
    Stalled(String),
    /// The load generator failed.
    #[error(transparent)]
    Bench(#[from] crate::bench::BenchError),
    /// Ctrl-C was pressed.
    #[error("interrupted")]
    Interrupted,
}

/// Adds the path to an error of the system.
pub(crate) fn at(path: &std::path::Path) -> impl FnOnce(std::io::Error) -> LabError + '_ {
    move |source| LabError::File { path: path.to_owned(), source }
}

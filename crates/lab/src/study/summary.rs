//! The results of a run as a file, which reports read.

use std::{collections::BTreeMap, fs, path::Path};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::{Chart, Environment, Event, Fact, Judgement, LabError, Measured, at};
use crate::statistics;

/// `summary.json`: everything that a report tells about an experiment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// The experiment, with the ground if that is not the usual one.
    pub name: String,
    /// Its name for people.
    pub title: String,
    /// The figure, table or section that it repeats.
    pub source: String,
    /// What was done.
    pub about: String,
    /// The parameters.
    pub parameters: BTreeMap<String, String>,
    /// Its charts.
    pub charts: Vec<Chart>,
    /// The document's numbers.
    pub facts: Vec<Fact>,
    /// The results at each point.
    pub points: Vec<PointSummary>,
    /// Answers over time, of the first run of each point that is about gaps.
    pub timelines: Vec<Timeline>,
    /// The verdict on each claim.
    pub verdicts: Vec<Claim>,
    /// How long the run took, in seconds.
    pub took_seconds: f64,
    /// Why it ended early, if it did.
    pub cut_short: Option<String>,
    /// Parameters that made it shorter than usual, each with its usual value.
    #[serde(default)]
    pub shorter: Vec<String>,
}

/// One metric at one point.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PointSummary {
    /// The series.
    pub series: String,
    /// The place on the axis.
    pub x: f64,
    /// The metric.
    pub metric: String,
    /// How many runs there were.
    pub runs: usize,
    /// Their mean.
    pub mean: f64,
    /// Half of the width of its 95 % confidence interval.
    pub half_width: Option<f64>,
    /// The median.
    pub median: f64,
    /// The lowest value.
    pub min: f64,
    /// The highest value.
    pub max: f64,
}

/// Answers over time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Timeline {
    /// The series.
    pub series: String,
    /// The place on the axis of the other charts.
    pub x: f64,
    /// Answers in consecutive tenths of a second.
    pub answers: Vec<f64>,
    /// Actions that were carried out meanwhile.
    #[serde(default)]
    pub events: Vec<Event>,
}

/// A claim and its verdict.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    /// Its number.
    pub id: String,
    /// The claim.
    pub claim: String,
    /// The verdict.
    pub judgement: Judgement,
}

/// Sums up all values.
pub(super) fn points(measured: &Measured) -> Vec<PointSummary> {
    let summed = measured.iter().filter_map(|(series, x, metric, values)| {
        let estimate = statistics::estimate(values)?;
        Some(PointSummary {
            series: series.to_owned(),
            x,
            metric: metric.to_owned(),
            runs: values.len(),
            mean: estimate.mean,
            half_width: estimate.half_width,
            median: statistics::median(values)?,
            min: values.iter().copied().fold(f64::INFINITY, f64::min),
            max: values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        })
    });
    summed.collect()
}

/// Reads the files of a run from its folder.
///
/// # Errors
/// A file is missing, or does not have the contents that a run writes.
pub(crate) fn read(folder: &Path) -> Result<(Summary, Environment), LabError> {
    Ok((parse(&folder.join("summary.json"))?, parse(&folder.join("environment.json"))?))
}

fn parse<T: DeserializeOwned>(path: &Path) -> Result<T, LabError> {
    let text = fs::read_to_string(path).map_err(at(path))?;
    serde_json::from_str(&text)
        .map_err(|error| LabError::Unreadable { path: path.to_owned(), why: error.to_string() })
}

/// Writes a file of a run.
pub(super) fn write(path: &Path, value: &impl Serialize) -> Result<(), LabError> {
    let text = serde_json::to_string_pretty(value).expect("plain figures and texts");
    fs::write(path, text + "\n").map_err(at(path))
}

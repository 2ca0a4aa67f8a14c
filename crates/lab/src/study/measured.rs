//! The figures of an experiment, and the verdicts on its claims.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::statistics::{self, Difference, Estimate};

/// All figures of an experiment, by series, place and metric, with one value for each run.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    points: BTreeMap<(String, OrderedX), BTreeMap<String, Vec<f64>>>,
}

/// A place on the axis as a key. Places are finite and not negative, so their bits have the same order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct OrderedX(u64);

impl OrderedX {
    fn new(x: f64) -> OrderedX {
        assert!(x.is_finite() && x.is_sign_positive(), "{x} is a place on an axis");
        OrderedX(x.to_bits())
    }
}

/// The verdict on a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    /// The figures agree with the claim.
    Holds,
    /// The figures contradict the claim.
    DoesNotHold,
    /// The figures decide nothing.
    NotDecided,
}

impl Verdict {
    /// The verdict in the words of the report.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Verdict::Holds => "holds",
            Verdict::DoesNotHold => "does not hold",
            Verdict::NotDecided => "not decided",
        }
    }
}

/// A verdict with its reason, in figures.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Judgement {
    /// The verdict.
    pub verdict: Verdict,
    /// Why, in a sentence.
    pub reason: String,
    /// The figures that it rests on, if there are more than the reason tells.
    #[serde(default)]
    pub evidence: Evidence,
}

/// A table of figures.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evidence {
    /// The heads of its columns.
    pub columns: Vec<String>,
    /// A cell for each column.
    pub rows: Vec<Vec<String>>,
}

impl Judgement {
    /// The verdict of a test: the claim holds, or it does not.
    #[must_use]
    pub fn of(holds: bool, reason: impl Into<String>) -> Judgement {
        let verdict = if holds { Verdict::Holds } else { Verdict::DoesNotHold };
        Judgement { verdict, reason: reason.into(), evidence: Evidence::default() }
    }

    /// Adds the figures that the judgement rests on.
    ///
    /// # Panics
    /// A row has more or fewer cells than there are columns.
    #[must_use]
    pub fn with(self, columns: &[&str], rows: Vec<Vec<String>>) -> Judgement {
        assert!(rows.iter().all(|row| row.len() == columns.len()), "a table has rows of one length");
        let columns = columns.iter().map(|&column| column.to_owned()).collect();
        Judgement { evidence: Evidence { columns, rows }, ..self }
    }

    /// The verdict that figures are missing or too coarse.
    #[must_use]
    pub fn open(reason: impl Into<String>) -> Judgement {
        Judgement { verdict: Verdict::NotDecided, reason: reason.into(), evidence: Evidence::default() }
    }
}

impl Measured {
    /// Adds a value of one run.
    ///
    /// # Panics
    /// `x` is negative or not a number.
    pub fn add(&mut self, series: &str, x: f64, metric: &str, value: f64) {
        let metrics = self.points.entry((series.to_owned(), OrderedX::new(x))).or_default();
        metrics.entry(metric.to_owned()).or_default().push(value);
    }

    /// The values of all runs; empty if nothing was measured there.
    #[must_use]
    pub fn values(&self, series: &str, x: f64, metric: &str) -> &[f64] {
        let point = self.points.get(&(series.to_owned(), OrderedX::new(x)));
        point.and_then(|metrics| metrics.get(metric)).map_or(&[], Vec::as_slice)
    }

    /// The estimate of a mean.
    #[must_use]
    pub fn estimate(&self, series: &str, x: f64, metric: &str) -> Option<Estimate> {
        statistics::estimate(self.values(series, x, metric))
    }

    /// A mean.
    #[must_use]
    pub fn mean(&self, series: &str, x: f64, metric: &str) -> Option<f64> {
        self.estimate(series, x, metric).map(|estimate| estimate.mean)
    }

    /// Compares two series at one place.
    #[must_use]
    pub fn difference(&self, a: &str, b: &str, x: f64, metric: &str) -> Option<Difference> {
        statistics::difference(self.values(a, x, metric), self.values(b, x, metric))
    }

    /// The series, in order.
    #[must_use]
    pub fn series(&self) -> Vec<&str> {
        let mut names: Vec<_> = self.points.keys().map(|(series, _)| series.as_str()).collect();
        names.dedup();
        names
    }

    /// The places of a series, in order.
    #[must_use]
    pub fn places(&self, series: &str) -> Vec<f64> {
        let own = self.points.keys().filter(|(name, _)| name == series);
        own.map(|(_, x)| f64::from_bits(x.0)).collect()
    }

    /// All values, each as series, place, metric and the values of all runs.
    pub fn iter(&self) -> impl Iterator<Item = (&str, f64, &str, &[f64])> {
        self.points.iter().flat_map(|((series, x), metrics)| {
            let x = f64::from_bits(x.0);
            metrics
                .iter()
                .map(move |(metric, values)| (series.as_str(), x, metric.as_str(), values.as_slice()))
        })
    }
}

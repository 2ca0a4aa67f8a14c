//! Parameters of experiments: `--set key=value`.

use std::{collections::BTreeMap, str::FromStr, time::Duration};

use super::{Experiment, LabError};

/// A parameter with its defaults.
#[derive(Clone, Copy, Debug)]
pub struct Parameter {
    /// Its name.
    pub key: &'static str,
    /// What it is for, its unit and what is accepted.
    pub help: &'static str,
    /// Its value in a run of minutes.
    pub default: &'static str,
    /// Its value with `--full`.
    pub full: &'static str,
}

/// The parameters of every experiment.
pub const COMMON: &[Parameter] = &[
    Parameter { key: "runs", help: "Runs at each point, 1 to 1000.", default: "3", full: "10" },
    Parameter {
        key: "runs-max",
        help: "Points whose relative standard error is above `rse` are run up to so often.",
        default: "4",
        full: "30",
    },
    Parameter {
        key: "rse",
        help: "The relative standard error that is enough.",
        default: "0.1",
        full: "0.1",
    },
    Parameter { key: "seed", help: "Seed of whatever is drawn at random.", default: "1", full: "1" },
];

/// The values of one run.
#[derive(Clone, Debug)]
pub struct Parameters {
    values: BTreeMap<&'static str, String>,
    /// Their values if nothing was set.
    defaults: BTreeMap<&'static str, String>,
}

impl Parameters {
    /// The default values (or those of a full run), changed by `set`.
    ///
    /// # Errors
    /// [`LabError::Parameter`] if an argument is not `key=value`, or none of the experiments has its key.
    pub fn new(experiment: &Experiment, full: bool, set: &[String]) -> Result<Parameters, LabError> {
        let known = || COMMON.iter().chain(experiment.parameters);
        let default = |parameter: &Parameter| if full { parameter.full } else { parameter.default };
        let defaults: BTreeMap<_, _> =
            known().map(|parameter| (parameter.key, default(parameter).to_owned())).collect();
        let mut values = defaults.clone();
        for given in set {
            let (key, value) = split(given)?;
            if let Some(parameter) = known().find(|parameter| parameter.key == key) {
                values.insert(parameter.key, value.to_owned());
            }
        }
        Ok(Parameters { values, defaults })
    }

    /// Checks that each key that is set belongs to one of the experiments.
    ///
    /// # Errors
    /// [`LabError::Parameter`].
    pub fn check_keys(experiments: &[&Experiment], set: &[String]) -> Result<(), LabError> {
        let mut keys: Vec<_> = COMMON.iter().map(|parameter| parameter.key).collect();
        keys.extend(experiments.iter().flat_map(|experiment| experiment.parameters).map(|p| p.key));
        for given in set {
            let (key, _) = split(given)?;
            if !keys.contains(&key) {
                keys.sort_unstable();
                keys.dedup();
                let why = format!("no such parameter here; accepted: {}", keys.join(", "));
                return Err(LabError::Parameter { given: given.clone(), why });
            }
        }
        Ok(())
    }

    /// The text of a parameter.
    ///
    /// # Panics
    /// The experiment does not declare it.
    #[must_use]
    pub fn text(&self, key: &str) -> &str {
        self.values.get(key).unwrap_or_else(|| panic!("parameter {key} is declared"))
    }

    /// A parameter, parsed.
    ///
    /// # Errors
    /// [`LabError::Parameter`] says why its text is not accepted.
    pub fn get<T: FromStr<Err: std::fmt::Display>>(&self, key: &str) -> Result<T, LabError> {
        self.parse(key, self.text(key))
    }

    /// A number of seconds (above 0, at most an hour).
    ///
    /// # Errors
    /// Those of [`Parameters::get`].
    pub fn seconds(&self, key: &str) -> Result<Duration, LabError> {
        let seconds: f64 = self.get(key)?;
        if seconds > 0.0 && seconds <= 3600.0 {
            return Ok(Duration::from_secs_f64(seconds));
        }
        Err(self.wrong(key, "accepted: seconds above 0, at most 3600"))
    }

    /// A whole number within bounds.
    ///
    /// # Errors
    /// Those of [`Parameters::get`].
    pub fn count(&self, key: &str, accepted: std::ops::RangeInclusive<u64>) -> Result<u64, LabError> {
        let count = self.get(key)?;
        if accepted.contains(&count) {
            return Ok(count);
        }
        Err(self.wrong(key, format!("accepted: {} to {}", accepted.start(), accepted.end())))
    }

    /// Values separated by commas, at least one.
    ///
    /// # Errors
    /// Those of [`Parameters::get`].
    pub fn list<T: FromStr<Err: std::fmt::Display>>(&self, key: &str) -> Result<Vec<T>, LabError> {
        self.text(key).split(',').map(|text| self.parse(key, text.trim())).collect()
    }

    /// Whether the experiment has such a parameter.
    #[must_use]
    pub fn declares(&self, key: &str) -> bool {
        self.values.contains_key(key)
    }

    /// Whether a parameter has its default value.
    #[must_use]
    pub fn is_default(&self, key: &str) -> bool {
        self.values.get(key) == self.defaults.get(key)
    }

    /// Those of these parameters that are below their default, as `seconds=1 (usually 3)`.
    #[must_use]
    pub fn below_default(&self, keys: &[&str]) -> Vec<String> {
        let below = |key: &&str| {
            let (value, usual) = (self.values.get(*key)?, self.defaults.get(*key)?);
            let (less, more) = (value.parse::<f64>().ok()?, usual.parse::<f64>().ok()?);
            (less < more).then(|| format!("{key}={value} (usually {usual})"))
        };
        keys.iter().filter_map(below).collect()
    }

    /// All keys and values.
    #[must_use]
    pub fn all(&self) -> BTreeMap<String, String> {
        self.values.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect()
    }

    /// The error for a value that is well formed but not accepted.
    pub(crate) fn wrong(&self, key: &str, why: impl Into<String>) -> LabError {
        LabError::Parameter { given: format!("{key}={}", self.text(key)), why: why.into() }
    }

    fn parse<T: FromStr<Err: std::fmt::Display>>(&self, key: &str, text: &str) -> Result<T, LabError> {
        text.parse().map_err(|error: T::Err| self.wrong(key, error.to_string()))
    }
}

fn split(given: &str) -> Result<(&str, &str), LabError> {
    let why = "accepted: KEY=VALUE".to_owned();
    given.split_once('=').ok_or_else(|| LabError::Parameter { given: given.to_owned(), why })
}

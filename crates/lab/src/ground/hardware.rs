//! The machines of virtual time: what work costs a processor and a disk, and what a network card carries.

use std::{borrow::Cow, fs, path::Path, time::Duration};

use serde::{Deserialize, Serialize};

use crate::study::{LabError, at};

/// Costs that come with the lab.
const SHIPPED: &[(&str, &str)] = &[
    ("measured", include_str!("../../costs/measured.toml")),
    ("many-peers", include_str!("../../costs/many-peers.toml")),
    ("ng-2020", include_str!("../../costs/ng-2020.toml")),
    ("driftwood-2023", include_str!("../../costs/driftwood-2023.toml")),
];

/// What work costs a replica.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Costs {
    /// How these figures came about.
    pub about: Cow<'static, str>,
    /// Nanoseconds of a processor for a burst: whatever has come while the replica was busy or asleep is handled
    /// together, and what it caused leaves together.
    pub burst_nanos: f64,
    /// Nanoseconds of a processor for a message that is sent, and as much for one that is received.
    pub message_nanos: f64,
    /// Nanoseconds of a processor for each byte of a message that is sent or received, and of a command that a client
    /// sends.
    pub byte_nanos: f64,
    /// Nanoseconds of a processor for a command that is taken from a client and answered.
    pub request_nanos: f64,
    /// Nanoseconds of a processor for a command that is executed; every replica executes every command.
    pub execute_nanos: f64,
    /// Nanoseconds of a processor that the client spends on a command. They count only where it shares processors
    /// with the replicas.
    pub client_nanos: f64,
    /// Microseconds that a commit takes that waits for the disk.
    pub fsync_micros: f64,
}

impl Costs {
    /// Finds costs that come with the lab (`measured`: by `synod lab run calibrate`; `many-peers`: with what sockets
    /// cost where there are many; `ng-2020` and
    /// `driftwood-2023`: of these documents' machines), or reads a file.
    ///
    /// # Errors
    /// There are no such costs and no such file, or a figure is not a number from 0 to a second.
    pub fn named(name: &str) -> Result<Costs, LabError> {
        if let Some((_, text)) = SHIPPED.iter().find(|(shipped, _)| *shipped == name) {
            return Costs::parse(name, text);
        }
        let path = Path::new(name);
        if path.extension().is_none_or(|extension| extension != "toml") {
            let shipped: Vec<_> = SHIPPED.iter().map(|(name, _)| *name).collect();
            let why = format!("accepted: {}, or a file whose name ends with .toml", shipped.join(", "));
            return Err(LabError::Costs { name: name.to_owned(), why });
        }
        Costs::parse(name, &fs::read_to_string(path).map_err(at(path))?)
    }

    fn parse(name: &str, text: &str) -> Result<Costs, LabError> {
        let wrong = |why: String| LabError::Costs { name: name.to_owned(), why };
        let costs: Costs = toml::from_str(text).map_err(|error| wrong(error.to_string()))?;
        let figures = [
            ("burst-nanos", costs.burst_nanos, 1e9),
            ("message-nanos", costs.message_nanos, 1e9),
            ("byte-nanos", costs.byte_nanos, 1e9),
            ("request-nanos", costs.request_nanos, 1e9),
            ("execute-nanos", costs.execute_nanos, 1e9),
            ("client-nanos", costs.client_nanos, 1e9),
            ("fsync-micros", costs.fsync_micros, 1e6),
        ];
        for (key, value, most) in figures {
            if !(0.0..=most).contains(&value) {
                return Err(wrong(format!("{key} is {value}; accepted: 0 to {most}")));
            }
        }
        Ok(costs)
    }

    /// How long a commit takes that waits for the disk.
    #[must_use]
    pub fn fsync(&self) -> Duration {
        Duration::from_secs_f64(self.fsync_micros / 1e6)
    }

    /// What sending or receiving a message costs, in nanoseconds.
    pub(super) fn message(&self, bytes: usize) -> f64 {
        self.message_nanos + bytes as f64 * self.byte_nanos
    }

    /// What taking a command from a client costs, in nanoseconds.
    pub(crate) fn request(&self, bytes: usize) -> f64 {
        self.request_nanos + bytes as f64 * self.byte_nanos
    }
}

/// What a network card carries in each direction, of all that a replica exchanges with other replicas and with clients.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Card {
    /// Bytes a second; `None` for no limit.
    pub bytes_per_second: Option<f64>,
}

impl Card {
    pub(super) fn is_limited(&self) -> bool {
        self.bytes_per_second.is_some()
    }

    /// How long the card is busy with a message.
    pub(super) fn time(&self, bytes: usize) -> Duration {
        Duration::from_secs_f64(self.bytes_per_second.map_or(0.0, |rate| bytes as f64 / rate))
    }
}

/// The machines of a run in virtual time.
#[derive(Clone, Debug)]
pub struct Hardware {
    /// What work costs.
    pub costs: Costs,
    /// The network card of each replica.
    pub card: Card,
    /// How many processors all replicas and the client share; `None` if each replica has its own, and the client takes
    /// no time.
    pub shared_processors: Option<usize>,
}

impl Default for Hardware {
    /// A processor for each replica with the costs of Ng 2020, and cards without limits.
    fn default() -> Hardware {
        let costs = Costs::named("ng-2020").expect("a test reads all costs that come with the lab");
        Hardware { costs, card: Card::default(), shared_processors: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shipped_costs_are_well_formed_and_survive_a_file() {
        for (name, _) in SHIPPED {
            let costs = Costs::named(name).unwrap();
            assert!(!costs.about.is_empty() && costs.request_nanos > 0.0, "{name}");
            assert_eq!(Costs::parse("copy", &toml::to_string(&costs).unwrap()).unwrap(), costs);
        }
    }

    #[test]
    fn a_figure_that_makes_no_sense_is_named() {
        let text = include_str!("../../costs/ng-2020.toml").replace("3000.0", "-3.0");
        assert!(
            Costs::parse("x", &text).unwrap_err().to_string().contains("request-nanos is -3; accepted: 0 to")
        );
        assert!(
            Costs::named("moon").unwrap_err().to_string().contains("accepted: measured, many-peers, ng-2020")
        );
    }
}

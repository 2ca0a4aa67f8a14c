//! S-Paxos (Santos 2012, chapter 10): each replica disseminates the batches of its clients, and the leader orders
//! names.
//!
//! The document had clusters with a network card of 1 Gbit/s for each of up to 11 replicas. Here they are virtual, with
//! the costs that `synod lab run calibrate` measured; rates of cards are chosen so that what should be the bottleneck
//! is one. So ratios are compared, and never absolute figures. Beside each ratio stands its bound: what the bodies of
//! commands, the clients and the execution leave of the busiest resource ([`bound`]).

pub mod crashes;
pub mod leaders;
pub mod open_loop;
pub mod response;
pub mod throughput;

mod bound;

pub(super) use bound::{Share, bound_of};
use std::time::Duration;

use synod_consensus::Dissemination;

use super::{parameters::PROTOCOLS, points::Field};
use crate::{
    ground::{Asked, Load, Ordering, Setup, hardware::Costs},
    study::{LabError, Parameter, Parameters, Point},
};

/// Where clients are, and how batches reach the replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrangement {
    /// Clients ask the leader, which sends bodies to all: the document's JPaxos.
    AtLeader,
    /// Clients ask all replicas, which send batches to the leader, which sends bodies to all.
    Forwarded,
    /// The same, but the leader sends the origin of a batch a reference to it, and the body only to the others.
    References,
    /// Clients ask all replicas, and each sends its batches to all: S-Paxos.
    Balanced,
}

impl Arrangement {
    pub(super) const ALL: [Arrangement; 4] =
        [Arrangement::AtLeader, Arrangement::Forwarded, Arrangement::References, Arrangement::Balanced];
    /// Those in which the leader disseminates.
    pub(super) const BY_LEADER: [Arrangement; 3] =
        [Arrangement::AtLeader, Arrangement::Forwarded, Arrangement::References];

    /// Its name in series.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Arrangement::AtLeader => "clients at the leader",
            Arrangement::Forwarded => "forwarded to the leader",
            Arrangement::References => "references to the origin",
            Arrangement::Balanced => "balanced",
        }
    }
}

/// What limits a group.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Regime {
    /// Its name in series.
    pub(super) name: &'static str,
    /// Megabits a second of each network card, in each direction.
    pub(super) megabits: Option<f64>,
    /// Microseconds that executing a command takes, if not what was measured.
    pub(super) execute_micros: Option<f64>,
    /// Bytes of a command.
    pub(super) value_bytes: usize,
    /// Clients for each replica, which keep what is the bottleneck busy.
    pub(super) clients: usize,
}

/// The network card, with commands of 1 KiB (the document's cluster Paradent).
pub(super) const LINK: Regime =
    Regime { name: "link", megabits: Some(100.0), execute_micros: None, value_bytes: 1024, clients: 40 };
/// The processor, with commands of 20 bytes (the document's cluster Helios).
pub(super) const PROCESSOR: Regime =
    Regime { name: "processor", megabits: None, value_bytes: 20, clients: 1500, ..LINK };
/// Execution, which every replica has to do for every command.
const EXECUTION: Regime =
    Regime { name: "execution", megabits: None, execute_micros: Some(50.0), value_bytes: 20, clients: 1000 };

/// The parameter of costs.
pub(super) const COSTS: Parameter = Parameter {
    key: "costs",
    help: "What messages, bytes, commands and commits cost in virtual time: measured (by `synod lab run calibrate`), \
           many-peers, ng-2020, driftwood-2023, or a file that calibrate wrote.",
    default: "measured",
    full: "measured",
};

/// One protocol, since all are wrapped in the same way.
pub(super) const ORDERING: Parameter = Parameter { default: "multipaxos", full: "all", ..PROTOCOLS };

/// Makes a group of a regime.
pub(super) fn setup(
    field: &Field<'_>,
    parameters: &Parameters,
    replicas: usize,
    ordering: Ordering,
    (regime, arrangement): (Regime, Arrangement),
) -> Result<Setup, LabError> {
    let mut costs = Costs::named(parameters.text("costs"))?;
    if let Some(micros) = regime.execute_micros {
        costs.execute_nanos = micros * 1e3;
    }
    let mut setup = field.machines(replicas, ordering, costs, regime.megabits, "single-dc")?;
    setup.settings.consensus.dissemination = match arrangement {
        Arrangement::AtLeader | Arrangement::Forwarded => Dissemination::Leader,
        Arrangement::References => Dissemination::References,
        Arrangement::Balanced => Dissemination::Balanced,
    };
    Ok(setup)
}

/// Makes the load of an arrangement.
pub(super) fn load(regime: Regime, arrangement: Arrangement, clients: usize, window: Duration) -> Load {
    let asked = match arrangement {
        Arrangement::AtLeader => Asked::Leader,
        Arrangement::Forwarded | Arrangement::References | Arrangement::Balanced => Asked::All,
    };
    Load { asked, value_bytes: regime.value_bytes, ..Load::new(clients, window) }
}

/// The series of a regime, an ordering and an arrangement. The default ordering is not named.
pub(super) fn series(regime: Regime, ordering: Ordering, arrangement: Arrangement) -> String {
    let named = ordering.to_string();
    let named = if named == "multipaxos" { String::new() } else { format!("{named}, ") };
    format!("{}, {named}{}", regime.name, arrangement.name())
}

/// Adds a figure that was computed before the run.
pub(super) fn with_figure(point: Point, name: &'static str, value: f64) -> Point {
    let Point { series, x, measure } = point;
    let measure = move |conduct: &crate::study::Conduct| {
        let mut sample = measure(conduct)?;
        sample.figures.insert(name, value);
        Ok(sample)
    };
    Point { series, x, measure: Box::new(measure) }
}

//! Driftwood 2023, chapter 5: Raft whose entries travel from voter to voter, with 5 to 125 replicas.
//!
//! The document had a machine with 128 cores, a core for each replica. Here each replica has a processor of its own in
//! virtual time. Two models of costs are used: what `synod lab run calibrate` measured on the real program, where
//! whatever has come is handled in one burst and a burst is what costs; and one in which each message costs, as in the
//! document's program (`costs/driftwood-2023.toml`). Ratios are compared, never absolute figures.

pub mod future;
pub mod load;
pub mod partitions;
pub mod reach;
pub mod rounds;
pub mod scaling;

use std::time::Duration;

use synod_consensus::{
    ProtocolKind,
    raft::{Replication, Tuning},
};

use super::{charts::lines, parameters::SHORT_WINDOW, points::Field, s_paxos::COSTS};
use crate::{
    ground::{Load, Ordering, Setup, hardware::Costs},
    net::Topology,
    study::{Chart, LabError, Parameter, Parameters},
};

/// How a leader's entries reach the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// A message for each command and follower: the document's own Raft.
    Unbatched,
    /// Raft as it usually runs here: what waits leaves together.
    Batching,
    /// Rounds of gossip, and each replica answers the leader.
    Replies,
    /// Rounds of gossip that carry statuses, and nobody answers.
    Statuses,
    /// The same, and each replica tells others once between two rounds what it has learned, as the program does by
    /// default.
    Echoes,
}

impl Way {
    const ALL: [Way; 5] = [Way::Unbatched, Way::Batching, Way::Replies, Way::Statuses, Way::Echoes];

    const fn name(self) -> &'static str {
        match self {
            Way::Unbatched => "unbatched Raft",
            Way::Batching => "batching Raft",
            Way::Replies => "version 1",
            Way::Statuses => "version 2",
            Way::Echoes => "version 2, one echo",
        }
    }

    fn replication(self) -> Replication {
        match self {
            Way::Unbatched => Replication::Unbatched,
            Way::Batching => Replication::Direct,
            Way::Replies => Replication::GossipReplies,
            Way::Statuses | Way::Echoes => Replication::GossipStatus,
        }
    }

    /// The document's best time from one round to the next and fan-out, by the number of replicas (tables 3 and 4).
    fn rounds(self) -> &'static [(usize, u64, u8)] {
        match self {
            Way::Unbatched | Way::Batching => &[],
            Way::Replies => &[
                (5, 300, 2),
                (11, 500, 3),
                (19, 700, 4),
                (31, 900, 4),
                (53, 1250, 5),
                (77, 2000, 5),
                (101, 3000, 5),
                (125, 3500, 5),
            ],
            Way::Statuses | Way::Echoes => &[
                (5, 200, 2),
                (11, 300, 3),
                (19, 400, 3),
                (31, 500, 3),
                (53, 600, 3),
                (77, 700, 3),
                (101, 700, 3),
                (125, 800, 3),
            ],
        }
    }

    /// The same for any number of replicas: times in between lie on a line, fan-outs are those of the next smaller
    /// size.
    fn documents_rounds(self, replicas: usize) -> Option<(Duration, u8)> {
        let rounds = self.rounds();
        let &(n, micros, fan_out) = rounds.iter().rfind(|(n, ..)| *n <= replicas).or(rounds.first())?;
        let next = rounds.iter().find(|(next, ..)| *next > n && replicas > n);
        let micros = next.map_or(micros, |&(m, more, _)| {
            micros + (more - micros) * (replicas - n) as u64 / (m - n) as u64
        });
        Some((Duration::from_micros(micros), fan_out))
    }
}

/// A window of a second, in which there are hundreds of rounds.
const WINDOW: Parameter = Parameter { default: "1", full: "10", ..SHORT_WINDOW };

/// What is the same at all points of an experiment.
const INTERVAL: Parameter = Parameter {
    key: "interval",
    help: "Microseconds from one round of gossip to the next; document: those of its tables 3 and 4; auto: as the \
           leader measures.",
    default: "document",
    full: "document",
};

const FAN_OUT: Parameter = Parameter {
    key: "fan-out",
    help: "To how many replicas each sends a round; document: those of its tables 3 and 4; auto: the program's default.",
    default: "document",
    full: "document",
};

const TOPOLOGY: Parameter = Parameter {
    key: "topology",
    help: "The network: one-machine, single-dc, or a file.",
    default: "single-dc",
    full: "single-dc",
};

/// The costs that were measured on the real program.
const MEASURED_COSTS: Parameter = COSTS;

/// The same, with what a message costs where there are many peers.
const COSTS_OF_MANY: Parameter = Parameter { default: "many-peers", full: "many-peers", ..COSTS };

/// The costs of the document's program, on its machine.
const DOCUMENTS_COSTS: Parameter = Parameter { default: "driftwood-2023", full: "driftwood-2023", ..COSTS };
const DOCUMENTS_TOPOLOGY: Parameter = Parameter { default: "one-machine", full: "one-machine", ..TOPOLOGY };

/// The options of rounds that parameters name.
fn tuning(parameters: &Parameters, way: Way, replicas: usize) -> Result<Tuning, LabError> {
    let mut tuning = Tuning::default();
    tuning.replication = way.replication();
    let Some((interval, fan_out)) = way.documents_rounds(replicas) else { return Ok(tuning) };
    tuning.round_interval = match parameters.text("interval") {
        "document" => Some(interval),
        "auto" => None,
        _ => Some(Duration::from_micros(parameters.count("interval", 50..=1_000_000)?)),
    };
    tuning.round_fan_out = match parameters.text("fan-out") {
        "document" => Some(fan_out),
        "auto" => None,
        _ => Some(parameters.count("fan-out", 1..=124)? as u8),
    };
    tuning.status_echoes = u8::from(way == Way::Echoes);
    Ok(tuning)
}

/// A group of these machines. The first replica leads, as in the document.
fn setup(field: &Field<'_>, parameters: &Parameters, way: Way, replicas: usize) -> Result<Setup, LabError> {
    let mut setup = field.setup(replicas, Ordering::of(ProtocolKind::Raft))?;
    setup.hardware.costs = Costs::named(parameters.text("costs"))?;
    setup.topology = Some(Topology::named(parameters.text("topology"))?);
    setup.priorities = vec![1];
    setup.settings.consensus.raft = tuning(parameters, way, replicas)?;
    if way == Way::Unbatched {
        setup.settings.batch_bytes_max = 1;
    }
    Ok(setup)
}

/// What is drawn of a way.
const fn charts(x_label: &'static str) -> [Chart; 4] {
    [
        lines("Throughput", "throughput", "commands a second", x_label),
        lines("Mean latency", "mean_ms", "ms", x_label),
        lines("Use of the leader's processor", "leader_busy", "%", x_label),
        lines("Use of a follower's processor", "follower_busy", "%", x_label),
    ]
}

/// Clients that each wait for an answer, and ask the leader.
fn closed_loop(clients: usize, window: Duration) -> Load {
    Load::new(clients, window)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_are_those_of_the_document_and_in_between_lie_in_between() {
        let at = |way: Way, n| way.documents_rounds(n).map(|(time, fan_out)| (time.as_micros(), fan_out));
        assert_eq!(at(Way::Statuses, 125), Some((800, 3)));
        assert_eq!(at(Way::Replies, 5), Some((300, 2)));
        assert_eq!(at(Way::Replies, 3), Some((300, 2)));
        assert_eq!(at(Way::Statuses, 25), Some((450, 3)));
        assert_eq!(at(Way::Batching, 25), None);
    }
}

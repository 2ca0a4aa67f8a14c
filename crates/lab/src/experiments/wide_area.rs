//! What the experiments with replicas far from each other have in common.

use std::time::Duration;

use synod_consensus::ElectionKind;

use super::parameters::PROTOCOLS;
use crate::{
    ground::{Load, Ordering, Setup},
    net::Topology,
    study::{LabError, Parameter, Parameters},
};

/// Puts replicas far from each other, with the leader at a place, by priority. With `None` any replica may
/// lead. Time-outs suit the distances: the longest round trip is 400 ms.
pub(super) fn spread_out(setup: &mut Setup, topology: Topology, leader: Option<usize>) {
    setup.topology = Some(topology);
    let consensus = &mut setup.settings.consensus;
    consensus.election_timeout = Duration::from_secs(3);
    consensus.heartbeat_interval = Duration::from_millis(300);
    consensus.retransmit_after = Duration::from_millis(1500);
    if let Some(leader) = leader {
        let priority = |place| if place == leader { u8::MAX } else { 0 };
        setup.priorities = (0..setup.replicas).map(priority).collect();
    }
}

/// A load whose warm-up lasts several of the longest round trips. With 100,000 outstanding proposals a
/// quarter of the window gives enough answers.
pub(super) fn load(parameters: &Parameters, concurrent: usize) -> Result<Load, LabError> {
    let seconds = parameters.seconds("seconds")?;
    let window = if concurrent >= 100_000 { seconds / 4 } else { seconds };
    Ok(Load { warm_up: Duration::from_secs(2), ..Load::new(concurrent, window) })
}

/// The orderings. A leader can be placed only where priorities count.
pub(super) const PLACEABLE: Parameter = Parameter {
    help: "Orderings separated by commas, as PROTOCOL/ELECTION or PROTOCOL with its own election; not rotating \
           elections, which know no priorities.",
    default: "multipaxos/ballot,sequence-paxos,raft",
    full: "multipaxos/ballot,sequence-paxos,raft",
    ..PROTOCOLS
};

/// The orderings of [`PLACEABLE`].
pub(super) fn placeable(parameters: &Parameters) -> Result<Vec<Ordering>, LabError> {
    let all = Ordering::list(parameters, "protocols")?;
    if all.iter().any(|ordering| ordering.election == ElectionKind::Rotating) {
        let why = "rotating elections know no priorities; accepted: PROTOCOL/ELECTION with another, or raft";
        return Err(parameters.wrong("protocols", why));
    }
    Ok(all)
}

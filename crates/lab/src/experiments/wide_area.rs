//! What the experiments with replicas far from each other have in common.

use std::time::Duration;

use synod_consensus::{ElectionKind, ProtocolKind};

use super::points::Field;
use crate::{
    ground::{Load, Ordering, Setup},
    net::Topology,
    study::{LabError, Parameters},
};

/// Groups with the leader at a place, by priority; none: whoever wins. Times suit the distances: the longest round trip
/// is 400 ms.
pub(super) fn setup(
    field: &Field<'_>,
    ordering: Ordering,
    topology: Topology,
    replicas: usize,
    leader: Option<usize>,
) -> Result<Setup, LabError> {
    let mut setup = field.setup(replicas, ordering)?;
    setup.topology = Some(topology);
    let consensus = &mut setup.settings.consensus;
    consensus.election_timeout = Duration::from_secs(3);
    consensus.heartbeat_interval = Duration::from_millis(300);
    consensus.retransmit_after = Duration::from_millis(1500);
    if let Some(leader) = leader {
        setup.priorities = (0..replicas).map(|place| if place == leader { u8::MAX } else { 0 }).collect();
    }
    Ok(setup)
}

/// A load whose warm-up lasts several of the longest round trips. With 100,000 proposals outstanding a quarter of the
/// window gives answers enough.
pub(super) fn load(parameters: &Parameters, concurrent: usize) -> Result<Load, LabError> {
    let seconds = parameters.seconds("seconds")?;
    let window = if concurrent >= 100_000 { seconds / 4 } else { seconds };
    Ok(Load { warm_up: Duration::from_secs(2), ..Load::new(concurrent, window) })
}

/// Orderings whose election knows priorities, so that a leader can be placed.
pub(super) fn placeable() -> Vec<Ordering> {
    let all = ProtocolKind::ALL.iter().map(|&(_, protocol)| protocol);
    let election = |protocol: ProtocolKind| {
        let known = protocol.elections().iter().copied();
        known
            .filter(|election| *election != ElectionKind::Rotating)
            .map(move |election| Ordering { protocol, election })
    };
    all.flat_map(election).collect()
}

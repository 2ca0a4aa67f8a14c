//! Which orderings, elections, disseminations and durabilities go together.
//!
//! Everything that chooses one of each asks here: servers, changes of a group, and the table that `synod serve --help`
//! shows. The simulator's plans draw all that is legal, and nothing else (`sim/tests/simulator/seeds.rs`).

use synod_wire::{Durability, Ending};

use crate::{Dissemination, ElectionKind, ProtocolKind, Survives};

/// How a replica orders, elects, disseminates and keeps: one choice of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Combination {
    /// How slots are ordered.
    pub protocol: ProtocolKind,
    /// How a leader is chosen.
    pub election: ElectionKind,
    /// How batches reach all replicas.
    pub dissemination: Dissemination,
    /// For which records the replica waits for its disk.
    pub durability: Durability,
}

/// Why a combination is refused, and what is accepted in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CombinationError {
    /// The protocol does not work with the election.
    #[error("election {election} does not go with {protocol}; accepted: {}", names(protocol.elections()))]
    Election {
        /// The protocol.
        protocol: ProtocolKind,
        /// The election.
        election: ElectionKind,
    },
    /// Where every replica disseminates, a leader has to say in which order; and where a proposal names batches, these
    /// were sent to the leader before.
    #[error(
        "dissemination {dissemination} does not go with {protocol}, which has no leader {}; accepted: {}",
        missed(*dissemination),
        names(&protocol.disseminations())
    )]
    Dissemination {
        /// The protocol.
        protocol: ProtocolKind,
        /// The dissemination.
        dissemination: Dissemination,
    },
    /// With the durability a replica may lose what the protocol cannot do without.
    #[error(
        "durability {durability} does not go with {protocol}, which does not survive the loss of {}; accepted: {}",
        lost(*protocol, *durability),
        names(&protocol.durabilities())
    )]
    Durability {
        /// The protocol.
        protocol: ProtocolKind,
        /// The durability.
        durability: Durability,
    },
}

fn names<T: ToString>(accepted: &[T]) -> String {
    accepted.iter().map(T::to_string).collect::<Vec<_>>().join(", ")
}

/// What a protocol without a leader lacks for a dissemination.
fn missed(dissemination: Dissemination) -> &'static str {
    match dissemination {
        Dissemination::References => "to which replicas send their batches",
        _ => "to order the batches of all replicas",
    }
}

/// What a replica with this durability may lose, although the protocol does not survive that; empty if there is
/// nothing.
fn lost(protocol: ProtocolKind, durability: Durability) -> &'static str {
    let Survives { lost_logs, lost_replicas } = protocol.survives();
    if !lost_logs && !durability.keeps_votes(Ending::Machine) {
        "logs"
    } else if !lost_replicas && !durability.may_restart() {
        "replicas"
    } else {
        ""
    }
}

impl ProtocolKind {
    /// The durabilities with which it never decides two things; the first is the default.
    #[must_use]
    pub fn durabilities(self) -> Vec<Durability> {
        let all = Durability::ALL.iter().map(|&(_, durability)| durability);
        all.filter(|&durability| lost(self, durability).is_empty()).collect()
    }
}

impl ProtocolKind {
    /// The disseminations that go with it; the first is the default.
    #[must_use]
    pub fn disseminations(self) -> Vec<Dissemination> {
        self.profile().disseminations.to_vec()
    }
}

impl Combination {
    /// These choices, which may not go together ([`Combination::check`]).
    #[must_use]
    pub fn of(
        protocol: ProtocolKind,
        election: ElectionKind,
        dissemination: Dissemination,
        durability: Durability,
    ) -> Combination {
        Combination { protocol, election, dissemination, durability }
    }

    /// Every combination that is legal, of the protocols that this program knows.
    pub fn legal() -> impl Iterator<Item = Combination> {
        let everything = ProtocolKind::known().flat_map(|(_, protocol)| {
            let elections = protocol.elections().iter();
            elections.flat_map(move |&election| {
                Dissemination::ALL.iter().flat_map(move |&(_, dissemination)| {
                    Durability::ALL.iter().map(move |&(_, durability)| Combination {
                        protocol,
                        election,
                        dissemination,
                        durability,
                    })
                })
            })
        });
        everything.filter(|combination| combination.check().is_ok())
    }

    /// Whether it is legal.
    ///
    /// # Errors
    /// It is not; the error says which parts do not go together, and what is accepted.
    pub fn check(&self) -> Result<(), CombinationError> {
        let &Combination { protocol, election, dissemination, durability } = self;
        if !protocol.elections().contains(&election) {
            return Err(CombinationError::Election { protocol, election });
        }
        if !protocol.disseminations().contains(&dissemination) {
            return Err(CombinationError::Dissemination { protocol, dissemination });
        }
        if !lost(protocol, durability).is_empty() {
            return Err(CombinationError::Durability { protocol, durability });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_protocol_goes_with_its_own_elections_and_with_the_durabilities_that_it_survives() {
        let all = || Combination::legal().filter(|it| matches!(it.protocol, ProtocolKind::Raft));
        // An election of its own, and the same with the leader moved by latency.
        assert_eq!(all().count(), 2 * Dissemination::ALL.len() * Durability::ALL.len());
        let elections = [ElectionKind::Randomized, ElectionKind::Latency];
        assert!(all().all(|it| elections.contains(&it.election)));
        let legal: Vec<Combination> = Combination::legal().collect();
        for &(_, protocol) in ProtocolKind::ALL {
            for &(_, election) in ElectionKind::ALL {
                let it = Combination { protocol, election, ..legal[0] };
                assert_eq!(it.check().is_ok(), legal.contains(&it), "{it:?}");
                assert_eq!(it.check().is_ok(), protocol.elections().contains(&election));
            }
            assert_eq!(protocol.durabilities().len(), Durability::ALL.len(), "all survive everything");
        }
        let raft = Combination { protocol: ProtocolKind::Raft, ..legal[0] };
        let why = raft.check().unwrap_err().to_string();
        assert_eq!(why, "election ballot does not go with raft; accepted: randomized, latency");
        let rounds = |dissemination| {
            let (protocol, election) = (ProtocolKind::Rounds, ElectionKind::None);
            Combination::of(protocol, election, dissemination, Durability::Sync).check()
        };
        rounds(Dissemination::Leader).unwrap();
        for (dissemination, why) in [
            (Dissemination::Balanced, "to order the batches of all replicas"),
            (Dissemination::References, "to which replicas send their batches"),
        ] {
            assert_eq!(
                rounds(dissemination).unwrap_err().to_string(),
                format!(
                    "dissemination {dissemination} does not go with rounds, which has no leader {why}; accepted: leader"
                )
            );
        }
    }
}

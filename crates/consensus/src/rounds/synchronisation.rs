//! How rounds are made: when one ends, which are skipped, which members get a letter, and which of them coordinates
//! (Santos 2012, section 4.4: NextRound, SkipRound, Dest, ElectCoord). Each [`Synchronisation`] answers the four.

use std::{collections::BTreeMap, time::Duration};

use synod_wire::ReplicaId;

use super::{Round, layer::Letter, rules::Rules};
use crate::{Members, ReplicaSet, Threshold};

/// A way to make rounds, with its time-outs on the replica's own clock. [`super::Bounds`] computes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Synchronisation {
    /// Full synchronisation: all to all in every round, each of which ends by a time-out (Parametrization 4.1; with
    /// many instances Algorithm 5.1). For every algorithm.
    Full {
        /// How long a round lasts (`τ_C`, `TO`).
        round: Duration,
    },
    /// Phase synchronisation: only the messages that LastVoting of three rounds needs; replicas meet in the last round
    /// of a phase, which is all to all (Parametrization 4.2).
    Phase {
        /// How long the first round waits for a majority (`τ_C1`).
        estimates: Duration,
        /// How long the second round lasts (`τ_C2`).
        vote: Duration,
        /// How long the third round lasts (`τ_C3`).
        exchange: Duration,
    },
    /// Synchronisation by a coordinator: only the messages that LastVoting of four rounds needs; in the last round of
    /// a phase those send that got there first (Parametrization 4.3).
    Coordinator {
        /// How long the first round waits for a majority (`τ_C1`).
        estimates: Duration,
        /// How long the third round waits for a majority (`τ_C3`).
        acknowledgements: Duration,
        /// How long the fourth round lasts (`τ_C4`).
        decision: Duration,
    },
    /// Swift rounds: all to all; a round ends once all that are alive are heard (Algorithm 5.4). For every algorithm.
    Swift {
        /// How long a round lasts at most (`TO`).
        round: Duration,
        /// How long a replica stays in a round after the first letter of the next one (`TO_D`).
        next: Duration,
        /// After how long a silence a member is not alive (`TO_A`).
        alive: Duration,
    },
    /// Rounds over a failure detector and channels that lose nothing: a round ends once all that are not suspected are
    /// heard, and none is skipped (Algorithms 5.2 and 5.3). For comparisons: letters of later rounds wait, however many
    /// they are, and one that is lost stops the group.
    Suspecting,
}

/// The letters that a replica keeps: those of its round and of later ones, and who was heard in the round before.
pub(super) type Received<M> = BTreeMap<Round, BTreeMap<ReplicaId, Letter<M>>>;

/// What the four questions are answered from.
pub(super) struct Sight<'a> {
    pub(super) rules: &'a Rules,
    pub(super) members: &'a Members,
    pub(super) threshold: Threshold,
    pub(super) round: Round,
    /// The place of the round in its phase, from 1, and the rounds of a phase.
    pub(super) place: u64,
    pub(super) coordinator: Option<ReplicaId>,
    /// The members heard in this round and in the round before (`ho(r)`, `ho(r - 1)`).
    pub(super) heard: ReplicaSet,
    pub(super) heard_before: ReplicaSet,
    /// The highest round of which there is a letter.
    pub(super) highest: Option<Round>,
}

/// What time and the detector of failures add, when a round may end.
pub(super) struct Waited {
    /// Since the letters of this round were sent (`τ`, `i_p`).
    pub(super) elapsed: Duration,
    /// The round does not end early before this has elapsed.
    pub(super) least: Duration,
    /// What had elapsed when the first letter of the next round came.
    pub(super) next_seen: Option<Duration>,
    pub(super) alive: ReplicaSet,
    pub(super) suspected: ReplicaSet,
}

/// The members that get a letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Destination {
    All,
    Coordinator,
    Nobody,
}

impl Sight<'_> {
    fn is_coordinator(&self) -> bool {
        self.coordinator == Some(self.members.me())
    }

    fn is_overtaken(&self) -> bool {
        self.highest.is_some_and(|heard| self.rules.is_overtaken(heard, self.round))
    }
}

impl Synchronisation {
    /// Whether the round ends as soon as its letters are sent (`NextRound`, fourth line of Parametrization 4.3).
    pub(super) fn ends_at_once(&self, place: u64) -> bool {
        matches!(self, Synchronisation::Coordinator { .. }) && place == 2
    }

    /// Whether a receive step ends the round (`NextRound`).
    pub(super) fn is_over(&self, sight: &Sight<'_>, waited: &Waited) -> bool {
        let rules = sight.rules;
        let late = |timeout| rules.is_over(waited.elapsed, timeout);
        let majority = || sight.members.is_quorum(sight.heard);
        match *self {
            Synchronisation::Full { round } => sight.is_overtaken() || late(round),
            Synchronisation::Phase { estimates, vote, exchange } => {
                sight.is_overtaken()
                    || match sight.place {
                        1 => late(estimates) || majority(),
                        2 => late(vote),
                        _ => late(exchange),
                    }
            }
            Synchronisation::Coordinator { estimates, acknowledgements, decision } => {
                sight.is_overtaken()
                    || match sight.place {
                        1 => late(estimates) || majority(),
                        2 => true,
                        3 => late(acknowledgements) || majority(),
                        _ => late(decision),
                    }
            }
            Synchronisation::Swift { round, next, .. } => {
                let (members, threshold) = (sight.members, sight.threshold);
                let early =
                    late(waited.least) && rules.may_end_early(members, threshold, waited.alive, sight.heard);
                early
                    || late(rules.patience(waited.next_seen, next, round))
                    || sight.highest.is_some_and(|heard| rules.must_follow(heard, sight.round))
            }
            Synchronisation::Suspecting => {
                let unsuspected = sight.members.those(|id| !sight.members.contains(waited.suspected, id));
                rules.hears_unsuspected(unsuspected, sight.heard)
            }
        }
    }

    /// Whether the round is skipped: nothing is sent in it, and nothing waited for (`SkipRound`).
    pub(super) fn is_skipped(&self, sight: &Sight<'_>) -> bool {
        match self {
            Synchronisation::Suspecting => false,
            Synchronisation::Coordinator { .. } => {
                let (rules, before) = (sight.rules, sight.heard_before);
                let hears = |id| sight.members.contains(before, id);
                sight.is_overtaken()
                    || match sight.place {
                        2 => rules.has_no_vote(sight.members, sight.is_coordinator(), before),
                        3 => rules.has_heard_no_vote(sight.coordinator.is_some_and(hears)),
                        _ => false,
                    }
            }
            _ => sight.is_overtaken(),
        }
    }

    /// Which members get a letter (`Dest`).
    pub(super) fn destination(&self, sight: &Sight<'_>) -> Destination {
        match (self, sight.place) {
            (Synchronisation::Phase { .. }, 1) | (Synchronisation::Coordinator { .. }, 1 | 3) => {
                Destination::Coordinator
            }
            (Synchronisation::Phase { .. } | Synchronisation::Coordinator { .. }, 2) => {
                if sight.is_coordinator() { Destination::All } else { Destination::Nobody }
            }
            (Synchronisation::Coordinator { .. }, _) => {
                if sight.rules.competes(sight.heard) {
                    Destination::All
                } else {
                    Destination::Nobody
                }
            }
            _ => Destination::All,
        }
    }

    /// The coordinator of the phase that begins with this round (`ElectCoord`; it changes with phases alone).
    pub(super) fn elected(sight: &Sight<'_>) -> Option<ReplicaId> {
        let lowest = sight.members.ids().iter().find(|id| sight.members.contains(sight.heard_before, **id));
        sight.rules.elected(sight.round, sight.members, lowest.copied(), sight.coordinator)
    }
}

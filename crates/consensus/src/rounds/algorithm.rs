//! What an algorithm of the Heard-Of model is: a function that says what to send in a round, and one that changes the
//! state by what was heard in it (Santos 2012, section 3.1).

use std::fmt::Debug;

use synod_wire::ReplicaId;

use super::rules::Rules;
use crate::{Members, ReplicaSet, Threshold};

/// The number of a round. The first is 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Round(pub u64);

impl Round {
    /// The round after this one.
    #[must_use]
    pub fn next(self) -> Round {
        Round(self.0 + 1)
    }

    /// The phase of this round, from 1, where a phase has this many rounds.
    #[must_use]
    pub fn phase(self, rounds: u64) -> u64 {
        self.0.div_ceil(rounds)
    }

    /// The place of this round in its phase, from 1 to `rounds`.
    #[must_use]
    pub fn place(self, rounds: u64) -> u64 {
        (self.0 - 1) % rounds + 1
    }
}

/// Where and when an algorithm is called: at which member, in which round, and under which coordinator.
#[derive(Clone, Copy, Debug)]
pub struct At<'a> {
    /// The group, as this replica sees it.
    pub members: &'a Members,
    /// The round (`r`).
    pub round: Round,
    /// The member that this replica takes for the coordinator of the phase (`Coord(p, φ)`).
    pub coordinator: Option<ReplicaId>,
    pub(super) rules: &'a Rules,
}

impl At<'_> {
    /// Whether this replica takes itself for the coordinator.
    #[must_use]
    pub fn is_coordinator(&self) -> bool {
        self.coordinator == Some(self.members.me())
    }

    /// The members from which one of these messages came.
    #[must_use]
    pub fn senders<M>(&self, heard: &[(ReplicaId, &M)], counts: impl Fn(&M) -> bool) -> ReplicaSet {
        let senders = heard.iter().filter(|(_, message)| counts(message));
        senders.fold(ReplicaSet::default(), |set, (from, _)| set.union(self.members.only(*from)))
    }
}

/// What was heard in one round: at most one message of each member, in ascending order of members (`μ`).
pub type Heard<'a, M> = [(ReplicaId, &'a M)];

/// An algorithm in rounds, `⟨S, T⟩`. Rounds are closed: a message counts in its round or never.
///
/// A round in which nothing is heard changes at most what a whole phase of such rounds changes. So a layer may leave
/// out such rounds, if it runs a phase of them.
pub trait Algorithm {
    /// What is decided on. The order tells which of several values equally often heard is taken.
    type Value: Clone + Ord + Debug;
    /// What one replica tells another in a round.
    type Message: Clone + Debug;
    /// What a replica remembers.
    type State: Clone + Debug;

    /// The rounds of a phase.
    fn rounds(&self) -> u64;

    /// How many members have to be heard for progress; as many must be up.
    fn threshold(&self) -> Threshold;

    /// The state of a replica that proposes a value.
    fn begin(&self, proposed: Self::Value) -> Self::State;

    /// The message for one member in this round, if it gets one (`S`).
    fn send(&self, at: &At<'_>, state: &Self::State, to: ReplicaId) -> Option<Self::Message>;

    /// Ends the round, and returns the value that is decided, if one is (`T`). A value may be returned again.
    fn transition(
        &self,
        at: &At<'_>,
        heard: &Heard<'_, Self::Message>,
        state: &mut Self::State,
    ) -> Option<Self::Value>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_are_numbered_within_phases_from_one() {
        for rounds in 1..=4 {
            let mut twin = (1..).flat_map(|phase| (1..=rounds).map(move |place| (phase, place)));
            for round in (1..=20).map(Round) {
                assert_eq!(Some((round.phase(rounds), round.place(rounds))), twin.next(), "{round:?}");
            }
        }
        assert_eq!(Round(4).next(), Round(5));
    }
}

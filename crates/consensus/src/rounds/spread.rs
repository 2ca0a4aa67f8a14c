//! Telling what was decided (Santos 2012, section 3.1, the remark on decisions): the algorithms make a quorum decide; a
//! replica that has decided tells all others in every later round, and a replica that is told decides.

use synod_wire::ReplicaId;

use super::{Algorithm, At, Heard};
use crate::Threshold;

/// An algorithm whose replicas tell what they decided. A replica that has decided says nothing else any more, so a
/// decision that it was told stays all that it says of this instance.
#[derive(Clone, Copy, Debug, Default)]
pub struct Spread<A>(pub A);

/// What is said in a round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said<M, V> {
    /// A message of the algorithm.
    Own(M),
    /// This was decided.
    Decided(V),
}

impl<A: Algorithm> Algorithm for Spread<A> {
    type Value = A::Value;
    type Message = Said<A::Message, A::Value>;
    type State = (A::State, Option<A::Value>);

    fn rounds(&self) -> u64 {
        self.0.rounds()
    }

    fn threshold(&self) -> Threshold {
        self.0.threshold()
    }

    fn begin(&self, proposed: A::Value) -> Self::State {
        (self.0.begin(proposed), None)
    }

    fn send(&self, at: &At<'_>, (state, decided): &Self::State, to: ReplicaId) -> Option<Self::Message> {
        match decided {
            Some(value) => Some(Said::Decided(value.clone())),
            None => self.0.send(at, state, to).map(Said::Own),
        }
    }

    fn transition(
        &self,
        at: &At<'_>,
        heard: &Heard<'_, Self::Message>,
        (state, decided): &mut Self::State,
    ) -> Option<A::Value> {
        if decided.is_some() {
            return decided.clone();
        }
        let told = heard.iter().find_map(|(_, said)| match said {
            Said::Decided(value) => Some(value.clone()),
            Said::Own(_) => None,
        });
        let own = heard.iter().filter_map(|(from, said)| match said {
            Said::Own(message) => Some((*from, message)),
            Said::Decided(_) => None,
        });
        let own: Vec<_> = own.collect();
        *decided = self.0.transition(at, &own, state).or(told);
        decided.clone()
    }
}

//! LastVoting: Paxos in rounds, in phases of four or of three (Santos 2012, Algorithms 4.1 and 4.2).
//!
//! | round of four | of three | from, to | Paxos |
//! | --- | --- | --- | --- |
//! | 1 | 1 | all, the coordinator: estimates | phase 1b |
//! | 2 | 2 | the coordinator, all: its vote | phase 2a |
//! | 3 | - | all, the coordinator: acknowledgements | phase 2b |
//! | 4 | - | the coordinator, all: the decision | |
//! | - | 3 | all, all: acknowledgements | phase 2b to all |

use std::{fmt::Debug, marker::PhantomData};

use synod_wire::ReplicaId;

use super::{Algorithm, At, Heard};
use crate::Threshold;

/// The algorithm, for values of one type. It needs n > 2f members, and is safe whatever is lost and whichever replicas
/// take themselves for coordinators.
#[derive(Clone, Copy, Debug)]
pub struct LastVoting<V> {
    rounds: u64,
    values: PhantomData<fn() -> V>,
}

/// What a replica remembers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Voting<V> {
    /// The estimate (`x`).
    pub estimate: V,
    /// The phase in which the estimate was voted for, 0 if it was not (`ts`).
    pub voted_in: u64,
    /// A coordinator's vote, with what it has heard of it in this phase (`vote`, `commit`, `ready`).
    vote: Option<V>,
    commit: bool,
    ready: bool,
}

/// What is said in a round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Word<V> {
    /// The sender's estimate, with the phase in which it was voted for.
    Estimate(V, u64),
    /// The coordinator's vote.
    Vote(V),
    /// The sender voted so in this phase. The coordinator of four rounds knows the value.
    Acknowledgement(Option<V>),
    /// The coordinator's decision.
    Decision(V),
}

impl<V> LastVoting<V> {
    /// Phases of four rounds: the coordinator counts acknowledgements.
    #[must_use]
    pub fn four() -> LastVoting<V> {
        LastVoting { rounds: 4, values: PhantomData }
    }

    /// Phases of three rounds: every member counts acknowledgements.
    #[must_use]
    pub fn three() -> LastVoting<V> {
        LastVoting { rounds: 3, values: PhantomData }
    }
}

/// What a round is for.
enum Step {
    Estimates,
    Vote,
    /// Acknowledgements to the coordinator.
    Acknowledgements,
    Decision,
    /// Acknowledgements to all.
    Exchange,
}

impl<V: Clone + Ord + Debug> LastVoting<V> {
    fn step(&self, at: &At<'_>) -> Step {
        match (at.round.place(self.rounds), self.rounds) {
            (1, _) => Step::Estimates,
            (2, _) => Step::Vote,
            (3, 3) => Step::Exchange,
            (3, _) => Step::Acknowledgements,
            _ => Step::Decision,
        }
    }

    /// Line 11 to 14 of Algorithm 4.1.
    fn count_estimates(&self, at: &At<'_>, heard: &Heard<'_, Word<V>>, state: &mut Voting<V>) {
        let estimates = at.senders(heard, |word| matches!(word, Word::Estimate(..)));
        if !at.is_coordinator() || !at.rules.may_commit(at.members, estimates) {
            return;
        }
        let mut best: Option<(&V, u64)> = None;
        for (_, word) in heard {
            if let Word::Estimate(value, voted_in) = word
                && best.is_none_or(|(_, held)| at.rules.outranks(*voted_in, held))
            {
                best = Some((value, *voted_in));
            }
        }
        state.vote = best.map(|(value, _)| value.clone());
        state.commit = true;
    }

    /// Line 11 of Algorithm 4.2.
    fn count_acknowledgements(&self, at: &At<'_>, heard: &Heard<'_, Word<V>>) -> Option<V> {
        let values = heard.iter().filter_map(|(_, word)| match word {
            Word::Acknowledgement(value) => value.as_ref(),
            _ => None,
        });
        let chosen = |value: &V| {
            let voters = at
                .senders(heard, |word| matches!(word, Word::Acknowledgement(Some(other)) if other == value));
            at.rules.is_accepted(at.members, voters)
        };
        values.into_iter().find(|value| chosen(value)).cloned()
    }
}

impl<V: Clone + Ord + Debug> Algorithm for LastVoting<V> {
    type Value = V;
    type Message = Word<V>;
    type State = Voting<V>;

    fn rounds(&self) -> u64 {
        self.rounds
    }

    fn threshold(&self) -> Threshold {
        Threshold::Majority
    }

    fn begin(&self, proposed: V) -> Voting<V> {
        Voting { estimate: proposed, voted_in: 0, vote: None, commit: false, ready: false }
    }

    fn send(&self, at: &At<'_>, state: &Voting<V>, to: ReplicaId) -> Option<Word<V>> {
        let (rules, is_coordinator) = (at.rules, at.is_coordinator());
        let votes_now = rules.acknowledges(state.voted_in, at.round.phase(self.rounds));
        match self.step(at) {
            Step::Estimates => rules
                .is_addressed(to, at.coordinator)
                .then(|| Word::Estimate(state.estimate.clone(), state.voted_in)),
            Step::Vote if rules.proposes(is_coordinator, state.commit) => state.vote.clone().map(Word::Vote),
            Step::Acknowledgements => {
                (votes_now && at.coordinator == Some(to)).then_some(Word::Acknowledgement(None))
            }
            Step::Exchange => votes_now.then(|| Word::Acknowledgement(Some(state.estimate.clone()))),
            Step::Decision if rules.announces(is_coordinator, state.ready) => {
                state.vote.clone().map(Word::Decision)
            }
            Step::Vote | Step::Decision => None,
        }
    }

    fn transition(&self, at: &At<'_>, heard: &Heard<'_, Word<V>>, state: &mut Voting<V>) -> Option<V> {
        let of_coordinator = || {
            heard.iter().find(|(from, _)| at.rules.is_heeded(*from, at.coordinator)).map(|(_, word)| *word)
        };
        let decision = match self.step(at) {
            Step::Estimates => {
                self.count_estimates(at, heard, state);
                None
            }
            Step::Vote => {
                if let Some(Word::Vote(value)) = of_coordinator() {
                    state.estimate = value.clone();
                    state.voted_in = at.round.phase(self.rounds);
                }
                None
            }
            Step::Acknowledgements => {
                let voters = at.senders(heard, |word| matches!(word, Word::Acknowledgement(_)));
                state.ready |= at.is_coordinator() && at.rules.is_accepted(at.members, voters);
                None
            }
            Step::Exchange => self.count_acknowledgements(at, heard),
            Step::Decision => match of_coordinator() {
                Some(Word::Decision(value)) => Some(value.clone()),
                _ => None,
            },
        };
        if at.rules.forgets(at.round.place(self.rounds) == self.rounds, decision.is_some()) {
            (state.commit, state.ready) = (false, false);
        }
        decision
    }
}

//! OneThirdRule: consensus without a coordinator, in one round if all propose the same and in two otherwise, while more
//! than two thirds of the members are heard (Santos 2012, Algorithm 3.1).

use std::{collections::BTreeMap, fmt::Debug, marker::PhantomData};

use synod_wire::ReplicaId;

use super::{Algorithm, At, Heard};
use crate::Threshold;

/// The algorithm, for values of one type. It needs n > 3f members, and is safe whatever is lost. The state is the
/// estimate `x`.
#[derive(Clone, Copy, Debug, Default)]
pub struct OneThirdRule<V>(PhantomData<fn() -> V>);

impl<V> OneThirdRule<V> {
    /// The algorithm.
    #[must_use]
    pub fn new() -> OneThirdRule<V> {
        OneThirdRule(PhantomData)
    }
}

impl<V: Clone + Ord + Debug> Algorithm for OneThirdRule<V> {
    type Value = V;
    type Message = V;
    type State = V;

    fn rounds(&self) -> u64 {
        1
    }

    fn threshold(&self) -> Threshold {
        Threshold::TwoThirds
    }

    fn begin(&self, proposed: V) -> V {
        proposed
    }

    fn send(&self, _: &At<'_>, estimate: &V, _: ReplicaId) -> Option<V> {
        Some(estimate.clone())
    }

    fn transition(&self, at: &At<'_>, heard: &Heard<'_, V>, estimate: &mut V) -> Option<V> {
        let rules = at.rules;
        if !rules.hears_enough(at.members, at.senders(heard, |_| true)) {
            return None;
        }
        let mut counts: BTreeMap<&V, usize> = BTreeMap::new();
        heard.iter().for_each(|(_, value)| *counts.entry(value).or_default() += 1);
        let mut best: Option<(&V, usize)> = None;
        for (value, count) in counts {
            if best.is_none_or(|(_, held)| rules.is_preferred(count, held)) {
                best = Some((value, count));
            }
        }
        *estimate = best?.0.clone();
        // Of what was heard, not of the new estimate.
        let is_decided = |value: &V| rules.is_decided(at.members, at.senders(heard, |heard| heard == value));
        heard.iter().map(|(_, value)| *value).find(|value| is_decided(value)).cloned()
    }
}

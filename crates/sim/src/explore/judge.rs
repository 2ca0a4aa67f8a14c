//! Checks what the replicas of a state must agree on.

use std::collections::{BTreeMap, BTreeSet};

use synod_consensus::Threshold;
use synod_wire::{Ballot, Slot};

use super::{
    on_disk::{Element, OnDisk, Place, Value, Values},
    past::{Fulfilled, Owed, Past},
};
use crate::check::{Checked, Invariant, Violation, demand};

/// The deeds of one replica that matter to the others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Deeds {
    /// The values that it delivered from slot 1 on, in any life.
    delivered: Vec<Value>,
    /// The elements that it proposed or accepted.
    elements: BTreeMap<Place, Element>,
    /// The elements that it durably accepted.
    votes: BTreeSet<Place>,
    /// The ballots in which it led, each with the ballots of its log's entries (Raft only).
    led: BTreeMap<Ballot, Vec<Ballot>>,
}

impl Deeds {
    pub(super) fn of(disk: OnDisk, past: &Past, values: &Values) -> Result<Deeds, Violation> {
        votes_for_batches(&disk, past, values)?;
        let mut elements = disk.elements;
        for (&place, &element) in &past.proposed {
            let known = *elements.entry(place).or_insert(element);
            one_proposal(place, known, element)?;
        }
        let led = past.led.iter().map(|(&ballot, (_, log))| (ballot, log.clone())).collect();
        let delivered = past.delivered.iter().map(|&(value, _)| value).collect();
        Ok(Deeds { delivered, elements, votes: disk.votes, led })
    }
}

/// The result of judging a state.
#[derive(Debug, Default)]
pub(super) struct Verdict {
    chosen: BTreeMap<Slot, Chosen>,
    /// How many slots the most advanced replica has delivered.
    delivered: u64,
}

#[derive(Clone, Copy, Debug)]
struct Chosen {
    value: Value,
    /// The ballot in which it was proposed.
    ballot: Ballot,
    /// The lowest ballot in which it was chosen. With Raft that may be a higher one, since entries of a later
    /// term commit those before them.
    since: Ballot,
}

/// Checks the deeds of all replicas of a group, of which a quorum by this threshold decides.
pub(super) fn judge(deeds: &[&Deeds], threshold: Threshold) -> Result<Verdict, Violation> {
    agree(deeds)?;
    let chosen = match threshold {
        Threshold::Majority => chosen_by_ballots(deeds)?,
        Threshold::TwoThirds => chosen_by_estimates(deeds, threshold),
    };
    let mut delivered = 0;
    for deeds in deeds {
        delivered = delivered.max(deeds.delivered.len() as u64);
        for (slot, &value) in (1..).map(Slot).zip(&deeds.delivered) {
            demand(
                chosen.get(&slot).is_some_and(|chosen| chosen.value == value),
                Invariant::QuorumDurable,
                || format!("slot {slot} was delivered, and no quorum holds that durably in one ballot"),
            )?;
        }
    }
    Ok(Verdict { chosen, delivered })
}

/// What was chosen where a ballot has one proposal for a slot.
fn chosen_by_ballots(deeds: &[&Deeds]) -> Result<BTreeMap<Slot, Chosen>, Violation> {
    let elements = elements(deeds)?;
    let chosen = chosen(deeds, &elements)?;
    for (&(slot, ballot), element) in &elements {
        let chosen = chosen.get(&slot).filter(|chosen| chosen.since < ballot && element.before.is_none());
        demand(chosen.is_none_or(|chosen| chosen.value == element.value), Invariant::ChosenStays, || {
            format!("something else was chosen for slot {slot} than what ballot {ballot} proposes")
        })?;
    }
    let raft = elements.values().any(|element| element.before.is_some());
    for (&ballot, log) in deeds.iter().flat_map(|deeds| &deeds.led).filter(|_| raft) {
        for (&slot, chosen) in chosen.iter().filter(|(_, chosen)| chosen.since.round < ballot.round) {
            let index = usize::try_from(slot.0 - 1).unwrap_or(usize::MAX);
            demand(log.get(index) == Some(&chosen.ballot), Invariant::LeaderCompleteness, || {
                format!(
                    "{} leads ballot {ballot} without slot {slot}, which is committed in {}",
                    ballot.replica, chosen.since
                )
            })?;
        }
    }
    Ok(chosen)
}

/// What may be chosen where each replica has an estimate: what enough of them hold durably at this moment. Without that
/// nothing is decided; and what is decided, enough of them hold for good.
fn chosen_by_estimates(deeds: &[&Deeds], threshold: Threshold) -> BTreeMap<Slot, Chosen> {
    let mut held: BTreeMap<(Slot, Value), usize> = BTreeMap::new();
    for deeds in deeds {
        let last: BTreeMap<Slot, Ballot> = deeds.votes.iter().copied().collect();
        for place in last {
            let value = deeds.elements.get(&place).map_or(Values::STRANGE, |element| element.value);
            *held.entry((place.0, value)).or_default() += 1;
        }
    }
    let (ballot, since) = (Ballot::ZERO, Ballot::ZERO);
    let chosen = held.into_iter().filter(|(_, count)| *count >= threshold.least(deeds.len()));
    chosen.map(|((slot, value), _)| (slot, Chosen { value, ballot, since })).collect()
}

impl Verdict {
    /// Checks that the others have done what a replica relies on.
    pub(super) fn fulfils(&self, owed: &Owed) -> Checked {
        let holds = match owed.what {
            Fulfilled::Chosen(slot, value) => {
                let chosen = self.chosen.get(&slot);
                chosen.is_some_and(|chosen| value.is_none_or(|value| chosen.value == value))
            }
            Fulfilled::Delivered(slot, ballot) => {
                let mut chosen = self.chosen.range(..=slot);
                if let Some((slot, chosen)) = chosen.find(|(_, chosen)| chosen.since > ballot) {
                    let Violation { detail, .. } = &owed.otherwise;
                    let detail = format!("{detail}; slot {slot} was decided in ballot {}", chosen.since);
                    return Err(Violation { invariant: Invariant::NothingFromAbove, detail });
                }
                slot.0 <= self.delivered
            }
        };
        if holds { Ok(()) } else { Err(owed.otherwise.clone()) }
    }
}

/// Checks that a replica that has voted for a reference holds the batch, unless it is void.
fn votes_for_batches(disk: &OnDisk, past: &Past, values: &Values) -> Checked {
    let named = |place: &Place| {
        let value = disk.elements.get(place)?.value;
        let name = values.batch(value)?.id()?;
        Some((value, name))
    };
    let mut lacked = disk.votes.iter().filter_map(named).filter(|(value, _)| !disk.batches.contains(value));
    let delivered = || values.delivered(past.delivered.iter().map(|&(value, _)| value));
    let lacks = lacked.find(|&(_, name)| !delivered().voids(name));
    demand(lacks.is_none(), Invariant::QuorumDurable, || {
        let name = lacks.map(|(_, name)| name.to_string()).unwrap_or_default();
        format!("a replica has durably voted for a reference to {name}, and its log does not hold the batch")
    })
}

/// Checks that there is one batch for each slot, on all replicas and in all lives.
fn agree(deeds: &[&Deeds]) -> Checked {
    let longest = deeds.iter().map(|deeds| &deeds.delivered).max_by_key(|delivered| delivered.len());
    let Some(longest) = longest else { return Ok(()) };
    deeds.iter().try_for_each(|deeds| {
        let differs = deeds.delivered.iter().zip(longest).position(|(one, other)| one != other);
        demand(differs.is_none(), Invariant::Agreement, || {
            format!("two replicas delivered different batches in slot {}", differs.unwrap_or_default() + 1)
        })
    })
}

/// All proposed elements: one batch for each ballot and slot. With Raft the logs before it must be equal, too.
fn elements(deeds: &[&Deeds]) -> Result<BTreeMap<Place, Element>, Violation> {
    let mut all: BTreeMap<Place, Element> = BTreeMap::new();
    for (&place, &element) in deeds.iter().flat_map(|deeds| &deeds.elements) {
        let known = all.entry(place).or_insert(element);
        one_proposal(place, *known, element)?;
        known.before = known.before.or(element.before);
    }
    Ok(all)
}

fn one_proposal((slot, ballot): Place, one: Element, other: Element) -> Checked {
    demand(one.value == other.value, Invariant::OneProposal, || {
        format!("slot {slot} has two different batches in ballot {ballot}")
    })?;
    let differ = one.before.zip(other.before).is_some_and(|(one, other)| one != other);
    demand(!differ, Invariant::LogMatching, || {
        format!("slot {slot} has one entry in ballot {ballot}, and two different ones before it")
    })
}

/// The elements that a quorum has durably accepted in one ballot. With Raft also those before them.
fn chosen(
    deeds: &[&Deeds],
    elements: &BTreeMap<Place, Element>,
) -> Result<BTreeMap<Slot, Chosen>, Violation> {
    let quorum = deeds.len() / 2 + 1;
    let mut chosen: BTreeMap<Slot, Chosen> = BTreeMap::new();
    for &(slot, since) in elements.keys() {
        if deeds.iter().filter(|deeds| deeds.votes.contains(&(slot, since))).count() < quorum {
            continue;
        }
        let mut place = Some((slot, since));
        while let Some((slot, ballot)) = place
            && let Some(element) = elements.get(&(slot, ballot))
        {
            let Element { value, before } = *element;
            let known = chosen.entry(slot).or_insert(Chosen { value, ballot, since });
            let same = known.value == value && (before.is_none() || known.ballot == ballot);
            demand(same, Invariant::ChosenStays, || {
                format!(
                    "different batches are chosen for slot {slot} in ballots {} and {ballot}",
                    known.ballot
                )
            })?;
            known.since = known.since.min(since);
            place = before.filter(|_| slot > Slot(1)).map(|before| (slot.prev(), before));
        }
    }
    Ok(chosen)
}

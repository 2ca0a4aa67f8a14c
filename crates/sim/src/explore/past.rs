//! The messages and deeds of one replica in all its lives, and checks of its next ones against these.
//!
//! A replica's memory ends with its life; this does not. It is a part of the explored state, so that two
//! states with different pasts are never taken for one.

use std::collections::BTreeMap;

use synod_consensus::{Claim, Message, Record, TermClaim, TermFact};
use synod_wire::{Ballot, Ballots, Batch, ReplicaId, Slot};

use super::on_disk::{Element, OnDisk, Place, Value, Values};
use crate::check::{Checked, Invariant, Violation, demand};

/// The messages and deeds of one replica in all its lives.
#[derive(Clone, Debug, Default)]
pub(super) struct Past {
    /// The values that any life delivered, from slot 1 on, and the ballots with which each was delivered last.
    pub(super) delivered: Vec<(Value, Ballots)>,
    /// The elements that it proposed.
    pub(super) proposed: BTreeMap<Place, Element>,
    /// The ballots in which it led, each with the life and the ballots of its log's entries (if it has terms).
    pub(super) led: BTreeMap<Ballot, (u64, Vec<Ballot>)>,
    /// The highest ballot that it told another replica to follow.
    told: Ballot,
    /// The votes that it told of.
    told_votes: BTreeMap<Slot, Ballot>,
    /// For each term, the replica that it told to have its vote.
    told_candidates: BTreeMap<u64, ReplicaId>,
}

/// What must hold of the other replicas at this moment.
#[derive(Clone, Debug)]
pub(super) struct Owed {
    pub(super) what: Fulfilled,
    pub(super) otherwise: Violation,
}

/// A condition on the other replicas.
#[derive(Clone, Copy, Debug)]
pub(super) enum Fulfilled {
    /// The slot was chosen, with this value if one is named.
    Chosen(Slot, Option<Value>),
    /// A replica has delivered all slots through this one, and none of them was chosen in a higher ballot only.
    Delivered(Slot, Ballot),
}

/// The replica that sends a message.
#[derive(Clone, Copy, Debug)]
pub(super) struct Speaker<'a> {
    pub(super) id: ReplicaId,
    pub(super) life: u64,
    pub(super) disk: &'a OnDisk,
    /// Its log, including records that are not durable.
    pub(super) log: &'a [Record],
    pub(super) values: &'a Values,
}

impl Past {
    /// A replica delivers a slot, after all slots before it in this life.
    pub(super) fn delivers(
        &mut self,
        (id, slot): (ReplicaId, Slot),
        ballots: Ballots,
        batch: &Batch,
        values: &Values,
    ) -> Checked {
        let value = values.of(batch);
        demand(value != Values::STRANGE, Invariant::Validity, || {
            format!("{id} delivers in slot {slot} what nobody proposed")
        })?;
        let index = usize::try_from(slot.0 - 1).unwrap_or(usize::MAX);
        if let Some(name) = batch.id() {
            let void =
                values.delivered(self.delivered.iter().take(index).map(|&(value, _)| value)).voids(name);
            demand(void == batch.is_reference(), Invariant::OrderedOnce, || {
                let what = if void { "a batch that is void" } else { "a reference to a batch that counts" };
                format!("{id} delivers in slot {slot} {what}")
            })?;
        }
        match self.delivered.get_mut(index) {
            Some((before, last)) => {
                *last = ballots;
                demand(*before == value, Invariant::Agreement, || {
                    format!("{id} delivers something else in slot {slot} than in an earlier life")
                })
            }
            None => {
                self.delivered.push((value, ballots));
                Ok(())
            }
        }
    }

    /// A message leaves; the conditions on the others are added to `owed`.
    pub(super) fn says(
        &mut self,
        by: Speaker<'_>,
        to: ReplicaId,
        message: &Message,
        owed: &mut Vec<Owed>,
    ) -> Checked {
        let message = message.body();
        if let Some(letter) = message.letter() {
            demand(by.disk.promised.round >= letter.phase, Invariant::LetterPromised, || {
                format!("{} sends {letter:?}; its log promises {} only", by.id, by.disk.promised)
            })?;
        }
        message.claims_of(by.id).iter().try_for_each(|claim| self.claims(by, claim, owed))?;
        message.term_claims_of(by.id).iter().try_for_each(|claim| self.claims_of_term(by, to, claim, owed))
    }

    fn claims(&mut self, by: Speaker<'_>, claim: &Claim<'_>, owed: &mut Vec<Owed>) -> Checked {
        match claim {
            Claim::Candidate(ballot) => owns(by.id, *ballot),
            Claim::Leads { ballot, decided } => {
                self.announces(by.id, *ballot, *decided, owed);
                self.leads(by, *ballot, Vec::new)
            }
            Claim::Propose { ballot, slot, batch, decided } => {
                self.announces(by.id, *ballot, *decided, owed);
                self.leads(by, *ballot, Vec::new)?;
                self.proposes(by, (*slot, *ballot), batch, None)
            }
            Claim::Decided { ballot, first, last } => {
                for slot in (first.0..=last.0).map(Slot) {
                    let detail = format!("{} says in ballot {ballot} that slot {slot} is decided", by.id);
                    let otherwise = Violation { invariant: Invariant::AnnouncedDecided, detail };
                    owed.push(Owed { what: Fulfilled::Chosen(slot, None), otherwise });
                }
                Ok(())
            }
            Claim::Vote { ballot, slot } => {
                self.follows(by, *ballot, "votes in")?;
                self.votes(by, *slot, *ballot, owed);
                Ok(())
            }
            Claim::Told { promised, ballot, slot, .. } => {
                demand(by.disk.promised >= *promised, Invariant::DurableBeforePromise, || {
                    format!(
                        "{} tells that it promised {promised}; its log promises {} only",
                        by.id, by.disk.promised
                    )
                })?;
                let told = self.told_votes.get(slot).copied();
                self.votes(by, *slot, *ballot, owed);
                if let (Some(before), Some(told)) = (told, self.told_votes.get_mut(slot)) {
                    *told = before.max(*told);
                }
                Ok(())
            }
            Claim::Estimate { promised, ballot, slot, .. } => {
                self.follows(by, *promised, "says its estimates in")?;
                self.votes(by, *slot, *ballot, owed);
                Ok(())
            }
            Claim::VoteThrough { ballot, last } => {
                self.follows(by, *ballot, "votes in")?;
                // Delivered slots need no vote any more.
                let first = self.delivered.len() as u64 + 1;
                (first..=last.0).for_each(|slot| self.votes(by, Slot(slot), *ballot, owed));
                Ok(())
            }
            Claim::PromiseSequence { ballot, has } => {
                self.announces(by.id, *ballot, has.decided, owed);
                self.follows(by, *ballot, "promises")?;
                let mut votes = self.told_votes.range(has.decided.next()..);
                let kept = |(slot, voted): (&Slot, &Ballot)| {
                    has.rank() >= (*voted, *slot) || has.accepted_in > *voted
                };
                demand(votes.all(kept), Invariant::PromiseKept, || {
                    format!(
                        "{} promises {ballot} with slots through {} in ballot {}; it has voted for more",
                        by.id, has.last, has.accepted_in
                    )
                })
            }
            Claim::Promise { ballot, from, decided, next, accepted } => {
                self.announces(by.id, *ballot, *decided, owed);
                self.follows(by, *ballot, "promises")?;
                self.reports_votes(by, *ballot, (*from).max(decided.next()), *next, accepted, owed)
            }
        }
    }

    /// Checks that a promise has the votes of which the replica told, in the slots from `first` on and before `next`.
    fn reports_votes(
        &self,
        by: Speaker<'_>,
        ballot: Ballot,
        first: Slot,
        next: Option<Slot>,
        accepted: &[(Slot, Ballot, &Batch)],
        owed: &mut Vec<Owed>,
    ) -> Checked {
        for (&slot, &voted) in self.told_votes.range(first..) {
            if next.is_some_and(|next| slot >= next) {
                break;
            }
            let reported = accepted.iter().find(|(at, ..)| *at == slot);
            let forgotten = || Violation {
                invariant: Invariant::PromiseKept,
                detail: format!(
                    "{} has voted for slot {slot} in ballot {voted}; its promise of {ballot} reports {}",
                    by.id,
                    reported.map_or("nothing".to_owned(), |(_, ballot, _)| format!("ballot {ballot}"))
                ),
            };
            match reported {
                Some((_, in_ballot, _)) if *in_ballot >= voted => {}
                // What was chosen meanwhile may come from an older ballot: it is the same batch.
                Some((_, _, batch)) => {
                    let what = Fulfilled::Chosen(slot, Some(by.values.of(batch)));
                    owed.push(Owed { what, otherwise: forgotten() });
                }
                None => return Err(forgotten()),
            }
        }
        Ok(())
    }

    fn claims_of_term(
        &mut self,
        by: Speaker<'_>,
        to: ReplicaId,
        claim: &TermClaim<'_>,
        owed: &mut Vec<Owed>,
    ) -> Checked {
        match claim {
            TermClaim::Candidate { term } => self.gives_vote(by, *term, by.id),
            TermClaim::Grants { term } => self.gives_vote(by, *term, to),
            TermClaim::Votes { term, candidate } => self.gives_vote(by, *term, *candidate),
            TermClaim::Leads { ballot, commit } => {
                self.announces(by.id, *ballot, *commit, owed);
                self.leads(by, *ballot, || ballots(by.log))
            }
            TermClaim::Entry { slot, ballot, before, batch } => {
                self.proposes(by, (*slot, *ballot), batch, Some(*before))
            }
            TermClaim::Committed { ballot, through } => {
                self.announces(by.id, *ballot, *through, owed);
                Ok(())
            }
            TermClaim::Held { ballot, by: holder, through } if *holder == by.id => {
                let claim = TermClaim::Acknowledges { ballot: *ballot, through: *through };
                self.claims_of_term(by, to, &claim, owed)
            }
            // Each replica's past is followed by itself.
            TermClaim::Held { .. } => Ok(()),
            TermClaim::Acknowledges { ballot, through } => {
                // An entry that became durable together with its removal in a later term was still held
                // before that term.
                let mut votes = by.disk.votes.range((*through, Ballot::ZERO)..=(*through, *ballot));
                let held = by.disk.term > ballot.round && votes.next().is_some();
                let holds = by.disk.accepted.contains_key(through)
                    || held
                    || through.0 <= self.delivered.len() as u64;
                demand(by.disk.term >= ballot.round && holds, Invariant::DurableBeforePromise, || {
                    format!(
                        "{} acknowledges slot {through} in ballot {ballot}; its disk does not hold that",
                        by.id
                    )
                })
            }
        }
    }

    fn gives_vote(&mut self, by: Speaker<'_>, term: u64, candidate: ReplicaId) -> Checked {
        let told = *self.told_candidates.entry(term).or_insert(candidate);
        demand(told == candidate, Invariant::PromiseKept, || {
            format!("{} votes for {candidate} in term {term}, and has voted for {told}", by.id)
        })?;
        let OnDisk { term: durable, voted_for, .. } = by.disk;
        let holds = *durable > term || *durable == term && *voted_for == Some(candidate);
        demand(holds, Invariant::DurableBeforePromise, || {
            format!(
                "{} votes for {candidate} in term {term}; its disk holds term {durable}, vote {voted_for:?}",
                by.id
            )
        })
    }

    /// A replica sends a message as the leader of a ballot.
    fn leads(&mut self, by: Speaker<'_>, ballot: Ballot, log: impl FnOnce() -> Vec<Ballot>) -> Checked {
        owns(by.id, ballot)?;
        let (life, _) = self.led.entry(ballot).or_insert_with(|| (by.life, log()));
        demand(*life == by.life, Invariant::OneLeader, || {
            format!("{} leads in ballot {ballot} in life {}, and did so in life {life}", by.id, by.life)
        })
    }

    fn proposes(&mut self, by: Speaker<'_>, place: Place, batch: &Batch, before: Option<Ballot>) -> Checked {
        let element = Element { value: by.values.of(batch), before };
        let known = *self.proposed.entry(place).or_insert(element);
        demand(known == element, Invariant::OneProposal, || {
            format!("{} proposes two different batches for slot {} in ballot {}", by.id, place.0, place.1)
        })
    }

    /// A replica sends a message as a follower of a ballot.
    fn follows(&mut self, by: Speaker<'_>, ballot: Ballot, how: &str) -> Checked {
        demand(ballot >= self.told, Invariant::PromiseKept, || {
            format!("{} {how} ballot {ballot}, but has told of ballot {}", by.id, self.told)
        })?;
        demand(by.disk.promised >= ballot, Invariant::DurableBeforePromise, || {
            format!("{} {how} ballot {ballot}; its log promises {} only", by.id, by.disk.promised)
        })?;
        self.told = ballot;
        Ok(())
    }

    fn votes(&mut self, by: Speaker<'_>, slot: Slot, ballot: Ballot, owed: &mut Vec<Owed>) {
        let durable = by.disk.accepted.get(&slot).copied().unwrap_or_default();
        if durable >= ballot {
            self.told_votes.insert(slot, ballot);
            return;
        }
        // Where a value is chosen, a vote changes nothing any more and needs no record of its own.
        let detail = format!(
            "{} votes for slot {slot} in ballot {ballot}; its log holds ballot {durable} there",
            by.id
        );
        let otherwise = Violation { invariant: Invariant::DurableBeforePromise, detail };
        owed.push(Owed { what: Fulfilled::Chosen(slot, None), otherwise });
    }

    /// Slots that a message of a ballot says to be decided were decided in it or in a lower one.
    fn announces(&self, id: ReplicaId, ballot: Ballot, decided: Slot, owed: &mut Vec<Owed>) {
        let delivered = usize::try_from(decided.0).ok().and_then(|count| self.delivered.get(..count));
        let from_below = |ballots: &Ballots| ballots.decided <= ballot;
        if delivered.is_some_and(|slots| slots.iter().all(|(_, ballots)| from_below(ballots))) {
            return;
        }
        let detail = format!("{id} says in ballot {ballot} that slots through {decided} are decided");
        let otherwise = Violation { invariant: Invariant::AnnouncedDecided, detail };
        owed.push(Owed { what: Fulfilled::Delivered(decided, ballot), otherwise });
    }
}

fn owns(id: ReplicaId, ballot: Ballot) -> Checked {
    demand(ballot.replica == id, Invariant::OneLeader, || format!("{id} speaks in ballot {ballot}"))
}

/// The ballots of a log's entries, from slot 1 on; empty without terms.
fn ballots(log: &[Record]) -> Vec<Ballot> {
    let mut ballots = Vec::new();
    for record in log {
        match record.body().term_fact() {
            TermFact::Entries { first, entries, .. } => {
                ballots.truncate(index(first));
                ballots.extend(entries.iter().map(|entry| entry.ballot));
            }
            TermFact::Truncated { from } => ballots.truncate(index(from)),
            TermFact::Term { .. } | TermFact::Lost | TermFact::Nothing => {}
        }
    }
    ballots
}

fn index(slot: Slot) -> usize {
    usize::try_from(slot.0.saturating_sub(1)).unwrap_or(usize::MAX)
}

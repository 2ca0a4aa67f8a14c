//! What an acceptor knows of undecided slots where each slot has a value of its own: what it accepted, which
//! replicas voted for what, and what is decided. Protocols that decide slot by slot share it; they write the
//! records, and send the messages. `proposer.rs` has the leader's side.

use std::{borrow::Borrow, collections::VecDeque};

use synod_wire::{Ballot, Ballots, Batch, Lsn, Slot};

use crate::{
    Batches, Options, ReplicaSet,
    batches::{fitting, last_of},
    codec::fields,
    slots::Slots,
};

/// The undecided slots of one replica, and the decided ones that wait for a slot before them.
#[derive(Clone, Debug)]
pub(crate) struct Acceptor {
    /// The slots after the delivered prefix.
    slots: Slots<Instance>,
    /// How many of them are decided.
    decided_ahead: usize,
    /// What was accepted here and is not durable yet, in log order.
    undurable: VecDeque<Votes>,
}

/// What is known about one slot (Santos 2012, table 7.2: UNKNOWN without a value, KNOWN with one).
#[derive(Clone, Debug, Default)]
struct Instance {
    accepted: Option<Accepted>,
    /// The highest ballot in which some replica is known to have accepted a value here.
    voted: Ballot,
    /// The replicas that have. Votes may arrive before the proposal itself.
    votes: ReplicaSet,
    decided: bool,
}

/// A value that was accepted here.
#[derive(Clone, Debug)]
pub(crate) struct Accepted {
    pub(crate) ballot: Ballot,
    pub(crate) batch: Batch,
    /// The record that holds it.
    pub(crate) lsn: Lsn,
}

impl Accepted {
    /// The same as acceptors tell it.
    pub(crate) fn value_of(&self, slot: Slot) -> AcceptedValue {
        AcceptedValue { slot, ballot: self.ballot, batch: self.batch.clone() }
    }
}

/// A value that an acceptor accepted, in messages and records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcceptedValue {
    /// The slot.
    pub slot: Slot,
    /// The ballot in which it was accepted.
    pub ballot: Ballot,
    /// The value.
    pub batch: Batch,
}

fields! { AcceptedValue { slot, ballot, batch } }

/// These proposals in parts, each of consecutive slots and of no more bytes than a message may have.
pub(crate) fn pages<A: Borrow<Accepted>>(proposals: &[(Slot, A)], bytes_max: usize) -> Vec<&[(Slot, A)]> {
    let mut pages = Vec::new();
    for mut run in proposals.chunk_by(|(slot, _), (next, _)| slot.next() == *next) {
        while !run.is_empty() {
            let count = fitting(run.iter().map(|(_, accepted)| &accepted.borrow().batch), bytes_max);
            let (page, rest) = run.split_at(count);
            pages.push(page);
            run = rest;
        }
    }
    pages
}

/// Values that were accepted here, in one ballot and consecutive slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Votes {
    pub(crate) ballot: Ballot,
    pub(crate) first: Slot,
    pub(crate) last: Slot,
    /// The record that holds the latest of them.
    pub(crate) after: Lsn,
}

impl Votes {
    pub(crate) fn slots(&self) -> u64 {
        self.last.0 - self.first.0 + 1
    }
}

impl Acceptor {
    /// An acceptor for which everything through a slot is decided and delivered, and which knows nothing of
    /// what follows.
    pub(crate) fn new(decided: Slot) -> Acceptor {
        Acceptor { slots: Slots::new(decided.next()), decided_ahead: 0, undurable: VecDeque::new() }
    }

    /// The last slot of the delivered prefix.
    pub(crate) fn decided(&self) -> Slot {
        self.slots.first().prev()
    }

    /// The last slot of which anything is known.
    pub(crate) fn last(&self) -> Slot {
        self.slots.last()
    }

    // Accepting.

    /// What was accepted in a slot.
    pub(crate) fn accepted(&self, slot: Slot) -> Option<&Accepted> {
        self.slots.get(slot)?.accepted.as_ref()
    }

    /// Everything that was accepted from a slot on.
    pub(crate) fn accepted_from(&self, first: Slot) -> impl Iterator<Item = (Slot, &Accepted)> {
        let accepted = self.slots.iter().filter(move |(slot, _)| *slot >= first);
        accepted.filter_map(|(slot, instance)| Some((slot, instance.accepted.as_ref()?)))
    }

    /// A page of what was accepted in the slots from `first` to `through`: as much as fits this many bytes, and the
    /// next slot in which something was accepted, also one after `through`.
    pub(crate) fn page(
        &self,
        first: Slot,
        through: Slot,
        bytes_max: usize,
    ) -> (Vec<AcceptedValue>, Option<Slot>) {
        let (mut page, mut bytes) = (Vec::new(), 0);
        for (slot, accepted) in self.accepted_from(first) {
            let len = accepted.batch.bytes().len();
            if bytes > 0 && bytes + len > bytes_max || slot > through {
                return (page, Some(slot));
            }
            bytes += len + 32;
            page.push(accepted.value_of(slot));
        }
        (page, None)
    }

    /// Those of these slots that are not decided and hold the proposal of this ballot, with it.
    pub(crate) fn undecided_of<'a>(
        &'a self,
        ballot: Ballot,
        slots: &'a [Slot],
    ) -> impl Iterator<Item = (Slot, &'a Accepted)> {
        let open = slots.iter().copied().filter(|&slot| !self.is_decided(slot));
        let own = move |slot| self.accepted(slot).filter(|accepted| accepted.ballot == ballot);
        open.filter_map(move |slot| Some((slot, own(slot)?)))
    }

    /// How many slots of those before this one are not decided.
    pub(crate) fn undecided_before(&self, next: Slot) -> usize {
        usize::try_from(next.0 - self.slots.first().0)
            .unwrap_or(usize::MAX)
            .saturating_sub(self.decided_ahead)
    }

    /// How many more slots a leader may have under way after those before `next`: it goes no further beyond the decided
    /// prefix than acceptors follow.
    pub(crate) fn slots_free(&self, next: Slot, options: &Options) -> usize {
        let span_room = options.accept_ahead_max().saturating_sub(next.0 - self.slots.first().0);
        let window_room = options.window_max.saturating_sub(self.undecided_before(next));
        window_room.min(usize::try_from(span_room).unwrap_or(usize::MAX))
    }

    /// Whether something was accepted after a slot in a ballot.
    pub(crate) fn has_accepted_after(&self, slot: Slot, ballot: Ballot) -> bool {
        self.accepted_from(slot.next()).any(|(_, accepted)| accepted.ballot == ballot)
    }

    /// What is accepted and not delivered, also in slots that are decided after one that is not.
    pub(crate) fn batches(&self) -> impl Iterator<Item = &Batch> {
        self.accepted_from(Slot::ZERO).map(|(_, accepted)| &accepted.batch)
    }

    /// How many of `count` proposals of a ballot, for `first` and the slots after it, have to be written
    /// together: those before the first one that is accepted already, or whose slot is decided.
    pub(crate) fn new_ones(&self, ballot: Ballot, first: Slot, count: usize) -> usize {
        if first > self.slots.last() {
            return count;
        }
        let is_new = |slot: Slot| {
            slot > self.decided()
                && self.slots.get(slot).is_none_or(|instance| {
                    !instance.decided
                        && instance.accepted.as_ref().is_none_or(|accepted| accepted.ballot != ballot)
                })
        };
        (first.0..).map(Slot).take(count).take_while(|&slot| is_new(slot)).count()
    }

    /// Accepts new proposals, which a record holds. Votes for lower ballots do not count any more.
    pub(crate) fn accept(&mut self, ballot: Ballot, first: Slot, batches: &Batches, lsn: Lsn) -> Votes {
        for (slot, batch) in (first.0..).map(Slot).zip(batches.iter()) {
            let accepted = Some(Accepted { ballot, batch: batch.clone(), lsn });
            if slot == self.slots.last().next() {
                self.slots.push(Instance { accepted, voted: ballot, ..Instance::default() });
                continue;
            }
            let instance = self.slots.entry(slot);
            instance.accepted = accepted;
            instance.counts(ballot);
        }
        let votes = Votes { ballot, first, last: last_of(first, batches), after: lsn };
        self.undurable.push_back(votes);
        votes
    }

    /// The next of the values accepted here that has become durable, records through `durable` being so.
    pub(crate) fn became_durable(&mut self, durable: Lsn) -> Option<Votes> {
        self.undurable.front().filter(|votes| votes.after <= durable)?;
        self.undurable.pop_front()
    }

    // Counting votes.

    /// Whether any replica is known to have voted in the highest ballot of a slot.
    pub(crate) fn has_votes(&self, slot: Slot) -> bool {
        self.slots.get(slot).is_some_and(|instance| !instance.votes.is_empty())
    }

    /// The last slot for which votes count, of those through `last`. A leader that lags may have adopted slots further
    /// ahead than an acceptor would take, all through `proposed`; they are its own.
    pub(crate) fn counted_through(&self, last: Slot, proposed: Slot, ahead_max: u64) -> Slot {
        last.min(proposed.max(Slot(self.decided().0 + ahead_max)))
    }

    /// The replicas that are known to have accepted the proposal of a ballot.
    pub(crate) fn voters(&self, slot: Slot, ballot: Ballot) -> ReplicaSet {
        let instance = self.slots.get(slot).filter(|instance| instance.voted == ballot);
        instance.map(|instance| instance.votes).unwrap_or_default()
    }

    /// Records that these replicas accepted the proposals of `ballot` for some slots, and decides the
    /// slots for which that makes a quorum, and whose value is here. Returns whether that decides one.
    pub(crate) fn vote(
        &mut self,
        first: Slot,
        last: Slot,
        ballot: Ballot,
        voters: ReplicaSet,
        is_quorum: impl Fn(ReplicaSet) -> bool,
    ) -> bool {
        let before = self.decided_ahead;
        if last < first.max(self.slots.first()) {
            return false;
        }
        // Votes may come before the proposals do.
        self.slots.entry(last);
        // Mostly the same replicas voted for all of a run.
        let mut asked = (ReplicaSet::default(), false);
        for instance in self.slots.range_mut(first, last) {
            if ballot < instance.voted || instance.decided {
                continue;
            }
            instance.counts(ballot);
            instance.votes = instance.votes.union(voters);
            let known = instance.accepted.as_ref().is_some_and(|accepted| accepted.ballot == instance.voted);
            if known && instance.votes != asked.0 {
                asked = (instance.votes, is_quorum(instance.votes));
            }
            if known && asked.1 {
                instance.decided = true;
                self.decided_ahead += 1;
            }
        }
        self.decided_ahead > before
    }

    /// Records that slots through this one are decided. Those of which `is_it` is true are decided with
    /// the value that is held.
    pub(crate) fn decide_through(&mut self, through: Slot, is_it: impl Fn(&Accepted) -> bool) {
        self.decide_run(self.slots.first(), through, is_it);
    }

    /// The same for the slots from `first` to `last`.
    pub(crate) fn decide_run(&mut self, first: Slot, last: Slot, is_it: impl Fn(&Accepted) -> bool) {
        for instance in self.slots.range_mut(first, last) {
            if !instance.decided && instance.accepted.as_ref().is_some_and(&is_it) {
                instance.decided = true;
                self.decided_ahead += 1;
            }
        }
    }

    /// Records that a slot that is not known to be decided was decided with this value, which a record holds.
    pub(crate) fn learn(&mut self, slot: Slot, accepted: Accepted) {
        let instance = self.slots.entry(slot);
        debug_assert!(!instance.decided, "what is decided stays");
        (instance.accepted, instance.decided) = (Some(accepted), true);
        self.decided_ahead += 1;
    }

    /// Whether a slot is decided that cannot be delivered yet.
    pub(crate) fn has_decided_ahead(&self) -> bool {
        self.decided_ahead > 0
    }

    /// Whether a slot is known to be decided.
    pub(crate) fn is_decided(&self, slot: Slot) -> bool {
        slot <= self.decided() || self.slots.get(slot).is_some_and(|instance| instance.decided)
    }

    /// The slots that something is known of and that are not decided.
    pub(crate) fn undecided(&self) -> impl Iterator<Item = Slot> {
        self.slots.iter().filter(|(_, instance)| !instance.decided).map(|(slot, _)| slot)
    }

    // Delivering.

    /// Takes out the slot after the delivered prefix, if it is decided.
    pub(crate) fn deliver(&mut self) -> Option<(Slot, Ballots, Batch)> {
        if !self.slots.front()?.decided {
            return None;
        }
        let slot = self.slots.first();
        let accepted = self.slots.pop_front()?.accepted.expect("a decided slot has a value");
        self.decided_ahead -= 1;
        Some((slot, Ballots::both(accepted.ballot), accepted.batch))
    }

    /// Takes out the second slot instead of the first, which is a planted bug.
    pub(crate) fn deliver_out_of_order(&mut self) -> Option<(Slot, Ballots, Batch)> {
        let slot = self.slots.first();
        let next = self.slots.get(slot.next()).filter(|next| next.decided)?.accepted.clone()?;
        self.slots.pop_front();
        Some((slot, Ballots::both(next.ballot), next.batch))
    }

    /// Records that everything through a slot is delivered.
    pub(crate) fn installed(&mut self, slot: Slot) {
        self.slots.advance_to(slot.next());
        self.decided_ahead = self.slots.iter().filter(|(_, instance)| instance.decided).count();
    }

    // Starting again.

    /// Takes in a record of an earlier life, by which this was accepted, or decided, in a slot; it
    /// replaces what earlier records said of it.
    pub(crate) fn replay(&mut self, slot: Slot, accepted: Accepted, decided: bool) {
        if slot > self.decided() {
            let (voted, votes) = (accepted.ballot, ReplicaSet::default());
            let before = self.is_decided(slot);
            *self.slots.entry(slot) = Instance { accepted: Some(accepted), voted, votes, decided };
            self.decided_ahead = self.decided_ahead + usize::from(decided) - usize::from(before);
        }
    }

    /// [`Acceptor::replay`] for a record of values that were accepted in consecutive slots, of which those after `last`
    /// are not wanted.
    pub(crate) fn replay_run(&mut self, ballot: Ballot, first: Slot, batches: &Batches, last: Slot) {
        let slots = (first.0..).map(Slot).zip(batches.iter());
        for (slot, batch) in slots.take_while(|(slot, _)| *slot <= last) {
            self.replay(slot, Accepted { ballot, batch: batch.clone(), lsn: Lsn::ZERO }, false);
        }
    }

    /// The same for a record of a decided value.
    pub(crate) fn replay_learned(&mut self, value: AcceptedValue, last: Slot) {
        let AcceptedValue { slot, ballot, batch } = value;
        if slot <= last {
            self.replay(slot, Accepted { ballot, batch, lsn: Lsn::ZERO }, true);
        }
    }

    /// Where records may be missing, a newer value of a slot may be among them: forgets everything except what is known
    /// to be decided, since only that can be believed. Returns the prefix that is known without the rest.
    pub(crate) fn forget_undecided(&mut self) -> Slot {
        for (_, instance) in self.slots.iter_mut().filter(|(_, instance)| !instance.decided) {
            *instance = Instance::default();
        }
        self.decided()
    }
}

impl Instance {
    /// Lets votes in this ballot count, and none in a lower one.
    fn counts(&mut self, ballot: Ballot) {
        if self.voted < ballot {
            (self.voted, self.votes) = (ballot, ReplicaSet::default());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use synod_wire::{BatchBuilder, ReplicaId, SessionId};

    use super::*;
    use crate::Members;

    const REPLICAS: u64 = 3;

    fn ballot(round: u64) -> Ballot {
        Ballot { round, replica: ReplicaId(round % REPLICAS + 1) }
    }

    fn batch(number: u64) -> Batch {
        let mut builder = BatchBuilder::new();
        builder.push(SessionId(1), number, number, b"x");
        builder.finish()
    }

    /// What is known of a slot, kept as it came.
    #[derive(Default)]
    struct Twin {
        accepted: Option<(Ballot, Batch)>,
        votes: BTreeMap<Ballot, BTreeSet<ReplicaId>>,
        decided: Option<(Ballot, Batch)>,
    }

    impl Twin {
        /// A vote in a ballot came. It counts if nothing is known to be accepted in a higher one.
        fn count(&mut self, ballot: Ballot) {
            let voted = self.votes.iter().next_back().filter(|(highest, _)| **highest == ballot);
            let chosen =
                voted.filter(|(_, votes)| votes.len() as u64 > REPLICAS / 2).map(|(ballot, _)| *ballot);
            if self.decided.is_none() {
                self.decided = self.accepted.clone().filter(|(ballot, _)| Some(*ballot) == chosen);
            }
        }
    }

    /// Proposals and votes in any order, against a list of all that came.
    #[test]
    fn it_decides_what_a_quorum_accepted_in_one_ballot_and_delivers_it_in_order() {
        let members = Members::new((1..=REPLICAS).map(ReplicaId), ReplicaId(1));
        let mut seed = 5_u64;
        let mut random = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % below
        };
        let mut delivered_in_all = 0;
        for _ in 0..2_000 {
            let mut acceptor = Acceptor::new(Slot(7));
            let mut twins: BTreeMap<Slot, Twin> = BTreeMap::new();
            let mut delivered = Slot(7);
            for number in 0..40 {
                let (slot, in_ballot) = (Slot(8 + random(4)), ballot(1 + random(3)));
                if slot <= delivered {
                    continue;
                }
                let twin = twins.entry(slot).or_default();
                let is_lower = twin.accepted.as_ref().is_some_and(|(accepted, _)| *accepted >= in_ballot);
                if random(3) == 0 && !is_lower && twin.decided.is_none() {
                    assert_eq!(acceptor.new_ones(in_ballot, slot, 1), 1);
                    let value = batch(number);
                    acceptor.accept(in_ballot, slot, &[value.clone()].into(), Lsn(number));
                    twin.accepted = Some((in_ballot, value));
                    twin.votes.entry(in_ballot).or_default();
                } else {
                    let voter = ReplicaId(1 + random(REPLICAS));
                    let is_quorum = |votes| members.is_quorum(votes);
                    acceptor.vote(slot, slot, in_ballot, members.only(voter), is_quorum);
                    twin.votes.entry(in_ballot).or_default().insert(voter);
                    twin.count(in_ballot);
                }
                assert_eq!(acceptor.is_decided(slot), twin.decided.is_some());
                while let Some((slot, ballots, batch)) = acceptor.deliver() {
                    assert_eq!(slot, delivered.next());
                    assert_eq!(twins[&slot].decided, Some((ballots.decided, batch)));
                    delivered = slot;
                    delivered_in_all += 1;
                }
                let ahead = twins.iter().filter(|(slot, twin)| **slot > delivered && twin.decided.is_some());
                assert_eq!((acceptor.decided(), acceptor.decided_ahead), (delivered, ahead.count()));
            }
        }
        assert!(delivered_in_all > 1_000, "{delivered_in_all}");
    }

    #[test]
    fn pages_hold_so_many_bytes_and_end_at_gaps() {
        let mut acceptor = Acceptor::new(Slot(3));
        acceptor.accept(ballot(1), Slot(4), &[batch(4), batch(5), batch(6)].into(), Lsn(1));
        acceptor.accept(ballot(1), Slot(8), &[batch(8)].into(), Lsn(2));
        let slots = |page: &[AcceptedValue]| page.iter().map(|value| value.slot.0).collect::<Vec<_>>();
        let page = |first, through, bytes_max| {
            let (page, next) = acceptor.page(Slot(first), Slot(through), bytes_max);
            (slots(&page), next)
        };
        let bytes = batch(4).bytes().len();
        assert_eq!(page(4, u64::MAX, 0), (vec![4], Some(Slot(5))), "one value always fits");
        assert_eq!(page(5, u64::MAX, 2 * bytes + 32), (vec![5, 6], Some(Slot(8))));
        assert_eq!(page(5, u64::MAX, 1 << 20), (vec![5, 6, 8], None));
        assert_eq!(page(4, 6, 1 << 20), (vec![4, 5, 6], Some(Slot(8))), "a later value is told of");
        assert_eq!(acceptor.undecided_before(Slot(9)), 5);
        acceptor.decide_run(Slot(5), Slot(5), |_| true);
        assert_eq!(acceptor.undecided_before(Slot(9)), 4);
        let all: Vec<Slot> = (4..=9).map(Slot).collect();
        let proposals: Vec<_> = acceptor.undecided_of(ballot(1), &all).collect();
        let firsts = |bytes_max| {
            let pages = pages(&proposals, bytes_max).into_iter();
            pages.map(|page| (page[0].0.0, page.len())).collect::<Vec<_>>()
        };
        assert_eq!(firsts(1 << 20), [(4, 1), (6, 1), (8, 1)], "slot 5 is decided, slot 7 is empty");
        assert_eq!(acceptor.undecided_of(ballot(2), &all).count(), 0);
        let proposals: Vec<_> = acceptor.accepted_from(Slot(4)).collect();
        let pages: Vec<usize> = pages(&proposals, 2 * bytes + 16).into_iter().map(<[_]>::len).collect();
        assert_eq!(pages, [2, 1, 1]);
    }

    #[test]
    fn what_is_new_is_told_from_what_is_accepted_or_decided() {
        let mut acceptor = Acceptor::new(Slot(3));
        let votes = acceptor.accept(ballot(1), Slot(5), &[batch(5), batch(6)].into(), Lsn(9));
        assert_eq!(votes, Votes { ballot: ballot(1), first: Slot(5), last: Slot(6), after: Lsn(9) });
        assert_eq!(acceptor.new_ones(ballot(1), Slot(4), 5), 1, "slot 5 is accepted in this ballot");
        assert_eq!(acceptor.new_ones(ballot(1), Slot(7), 5), 5);
        assert_eq!(acceptor.new_ones(ballot(2), Slot(4), 5), 5);
        acceptor.decide_through(Slot(5), |accepted| accepted.ballot == ballot(1));
        assert_eq!(acceptor.new_ones(ballot(2), Slot(4), 5), 1, "slot 5 is decided");
        assert_eq!(acceptor.undecided().collect::<Vec<_>>(), [Slot(4), Slot(6)]);
        assert!(acceptor.deliver().is_none(), "slot 4 is missing");
        assert_eq!(acceptor.became_durable(Lsn(8)), None);
        assert_eq!(acceptor.became_durable(Lsn(9)), Some(votes));
        acceptor.installed(Slot(4));
        assert_eq!(acceptor.deliver().map(|(slot, ..)| slot), Some(Slot(5)));
        assert_eq!((acceptor.decided(), acceptor.decided_ahead), (Slot(5), 0));
    }

    #[test]
    fn a_later_record_takes_the_place_of_an_earlier_one() {
        let accepted =
            |round, number| Accepted { ballot: ballot(round), batch: batch(number), lsn: Lsn::ZERO };
        let mut acceptor = Acceptor::new(Slot(3));
        acceptor.replay(Slot(3), accepted(1, 3), true);
        acceptor.replay(Slot(4), accepted(1, 4), true);
        acceptor.replay(Slot(5), accepted(1, 5), false);
        acceptor.replay(Slot(5), accepted(2, 6), false);
        assert_eq!(acceptor.decided_ahead, 1, "slot 3 was covered before");
        assert_eq!(acceptor.accepted(Slot(5)).map(|accepted| accepted.ballot), Some(ballot(2)));
        acceptor.forget_undecided();
        assert!(acceptor.accepted(Slot(5)).is_none());
        assert_eq!(acceptor.deliver().map(|(slot, ..)| slot), Some(Slot(4)));
    }
}

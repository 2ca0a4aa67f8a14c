//! A learner that misses a slot: later ones are decided, here or elsewhere, and it is not.
//!
//! First it asks for the votes again (`Repeat`), which touches no ballot; each acceptor tells what it accepted, with
//! the ballot of the value (`Told`). A quorum of one ballot is a decision. Only if that does not help is a whole round
//! run, in an own ballot and by one replica: the leader ([`crate::proposer::GapWatch`]), or the next one, once the
//! election has seen that nothing is decided (Kernel Paxos 2019, section 4.5, with E4 and E12).
//!
//! It does not ask at once. With a window of slots under way later ones are decided first all the time.

use std::collections::BTreeMap;

use synod_wire::{Ballot, Ballots, ReplicaId, Slot, Time};

use super::{AcceptedValue, KernelPaxos, Message, State, votes::name};
use crate::{Effect, Effects, Protocol, leadership::Leads, resend::Resend};

/// The most slots that it asks about at a time.
const REPEATS_MAX: usize = 10;

/// What a learner misses, and what it was told of that.
#[derive(Clone, Debug, Default)]
pub(super) struct Gaps {
    /// The first slot that is missing, and when it asks.
    missing: Option<(Slot, Resend)>,
    /// What acceptors told of each slot that was asked about last: one vote of each, its latest, with the ballot in
    /// which it counts. The value comes with each telling, so none is kept.
    told: BTreeMap<Slot, BTreeMap<ReplicaId, Ballot>>,
}

impl Gaps {
    /// When it asks.
    pub(super) fn ask_at(&self) -> Time {
        self.missing.as_ref().map_or(Time::NEVER, |(_, resend)| resend.at())
    }

    /// Slots through this one are delivered.
    pub(super) fn forget(&mut self, delivered: Slot) {
        if !self.told.is_empty() {
            self.told = self.told.split_off(&delivered.next());
        }
    }
}

impl KernelPaxos {
    /// Looks whether a slot is missing, and since when.
    pub(super) fn watch_gaps(&mut self, now: Time) {
        let first = self.decided().next();
        let waits = matches!(self.state, State::Follower | State::Leader(_)) && !self.is_congested();
        let lacks = self.common.decided_elsewhere >= first || self.learner.has_decided_ahead();
        self.gaps.missing = match self.gaps.missing.take() {
            _ if !(waits && lacks) => None,
            Some((slot, resend)) if slot == first => Some((slot, resend)),
            _ => Some((first, Resend::first(now, self.common.options.retransmit_after))),
        };
    }

    /// Asks all acceptors for what they accepted in the slots that are missing.
    pub(super) fn ask_to_repeat(&mut self, now: Time, effects: &mut Effects) {
        let Some((first, resend)) = &mut self.gaps.missing else { return };
        if !resend.is_due(now, self.common.options.election_timeout) {
            return;
        }
        let last = self.common.decided_elsewhere.max(self.learner.last());
        let missing = (first.0..=last.0).map(Slot).filter(|&slot| !self.learner.is_decided(slot));
        let mut told = std::mem::take(&mut self.gaps.told);
        for slot in missing.take(REPEATS_MAX) {
            self.gaps.told.insert(slot, told.remove(&slot).unwrap_or_default());
            self.common.broadcast(Message::Repeat { slot }, self.common.promised_lsn, effects);
        }
    }

    /// A learner misses a slot. What it is told is a vote that was given, or the decision that was learned in its
    /// place, so the record must be durable. What was delivered is forgotten here, and comes from the replica around
    /// the protocol.
    pub(super) fn handle_repeat(&mut self, from: ReplicaId, slot: Slot, effects: &mut Effects) {
        if slot <= self.decided() {
            return effects.push(Effect::Lacks { peer: from, slot });
        }
        let mut promised = self.common.promised;
        let mut held = self.learner.accepted(slot);
        if !self.learner.is_decided(slot) {
            let Some((promised_there, in_ballot, value)) = self.voter.repeat(slot) else { return };
            promised = promised_there;
            held = held.filter(|held| held.ballot == in_ballot && name(&held.batch) == value);
        }
        let Some(held) = held else { return };
        let after = self.common.rules().leaves_after(held.lsn.max(self.common.promised_lsn));
        effects.send(from, Message::Told { promised, value: held.value_of(slot) }, after);
    }

    /// An acceptor tells what it accepted in a slot that is missing here, and was asked about.
    pub(super) fn handle_told(
        &mut self,
        now: Time,
        from: ReplicaId,
        promised: Ballot,
        value: AcceptedValue,
        effects: &mut Effects,
    ) {
        let AcceptedValue { slot, ballot, batch } = value;
        let through =
            self.common.rules().takes_through(self.decided(), self.common.options.accept_ahead_max());
        if self.learner.is_decided(slot) || slot > through {
            return;
        }
        let ballot = self.rules().counts_in(promised, ballot);
        let Some(told) = self.gaps.told.get_mut(&slot) else { return };
        let latest = told.entry(from).or_insert(ballot);
        *latest = ballot.max(*latest);
        let members = &self.common.members;
        let told = members.those(|id| told.get(&id) == Some(&ballot));
        // The own vote counts as well, if it is durable.
        let own = self.learner.accepted(slot);
        let own = own.is_some_and(|own| own.ballot == ballot && own.lsn <= self.common.durable);
        let votes = if own { told.union(members.only(members.me())) } else { told };
        if !self.common.rules().is_chosen(members, votes) {
            return;
        }
        // Whatever this replica says from now on it says knowing of that ballot.
        self.heed(now, ballot, effects);
        self.learn(slot, Ballots::both(ballot), batch, effects);
    }
}

//! What leaders share that propose slot by slot: which value a new one takes for each slot, what is in flight and has
//! to be proposed again, and whether the slot after the decided prefix is stuck. `acceptor.rs` has the acceptor's side.

use std::{
    collections::{BTreeMap, VecDeque, btree_map::Entry},
    time::Duration,
};

use synod_wire::{Ballot, Batch, Slot, Time};

use crate::{
    acceptor::{AcceptedValue, Acceptor},
    resend::Resend,
    rules::Rules,
};

/// What the members told of slots in Phase 1: for each slot that some answer mentions, the value of the highest ballot.
#[derive(Clone, Debug, Default)]
pub(crate) struct Phase1Values(BTreeMap<Slot, AcceptedValue>);

impl Phase1Values {
    /// Takes in what an acceptor accepted, which takes the place of another ballot's value of that slot if it `wins`:
    /// its ballot comes first, the other one's second.
    pub(crate) fn take(&mut self, value: AcceptedValue, wins: impl Fn(Ballot, Ballot) -> bool) {
        match self.0.entry(value.slot) {
            Entry::Vacant(entry) => _ = entry.insert(value),
            Entry::Occupied(mut entry) if wins(value.ballot, entry.get().ballot) => _ = entry.insert(value),
            Entry::Occupied(_) => {}
        }
    }

    /// What a new leader has to propose in the slots after `after`, up to the last one through `through` of which
    /// something was told: the value of the highest ballot, which is the only one that can have been chosen there; or
    /// none where no member of the quorum accepted anything, so that nothing was chosen. What the leader accepted
    /// itself counts like an answer.
    pub(crate) fn adopted(
        mut self,
        own: &Acceptor,
        after: Slot,
        through: Slot,
        rules: &Rules,
    ) -> Vec<Option<Batch>> {
        for (slot, own) in own.accepted_from(after.next()).take_while(|(slot, _)| *slot <= through) {
            self.take(own.value_of(slot), |told, held| rules.outranks(told, held));
        }
        self.0.retain(|&slot, _| slot > after && slot <= through);
        let last = self.0.keys().next_back().copied().unwrap_or(after);
        (after.0 + 1..=last.0).map(|slot| self.0.remove(&Slot(slot)).map(|value| value.batch)).collect()
    }
}

/// Slots that were proposed together. Those that are not decided are proposed again from time to time.
#[derive(Clone, Debug)]
pub(crate) struct Flight<T> {
    first: Slot,
    last: Slot,
    pub(crate) resend: Resend,
    /// What the protocol knows of it besides.
    pub(crate) more: T,
}

impl<T> Flight<T> {
    pub(crate) fn slots(&self) -> impl Iterator<Item = Slot> + use<T> {
        (self.first.0..=self.last.0).map(Slot)
    }
}

/// What was proposed, as far as it is in flight.
#[derive(Clone, Debug)]
pub(crate) struct InFlight<T = ()> {
    flights: VecDeque<Flight<T>>,
    /// When the first of it is due again.
    resend_at: Time,
}

impl<T> InFlight<T> {
    pub(crate) fn new() -> InFlight<T> {
        InFlight { flights: VecDeque::new(), resend_at: Time::NEVER }
    }

    /// When the first of it is due again.
    pub(crate) fn resend_at(&self) -> Time {
        self.resend_at
    }

    /// Takes note that some slots are proposed.
    pub(crate) fn begins(&mut self, first: Slot, last: Slot, resend: Resend, more: T) {
        self.resend_at = self.resend_at.min(resend.at());
        self.flights.push_back(Flight { first, last, resend, more });
    }

    /// Takes out the first flight, if slots through the last of it are decided.
    pub(crate) fn lands(&mut self, decided: Slot) -> Option<Flight<T>> {
        self.flights.front().filter(|flight| flight.last <= decided)?;
        self.flights.pop_front()
    }

    /// Shows what is due again, and drops what is decided.
    pub(crate) fn repeat(
        &mut self,
        now: Time,
        wait_max: Duration,
        acceptor: &Acceptor,
        mut due: impl FnMut(&mut Flight<T>),
    ) {
        if now < self.resend_at {
            return;
        }
        self.flights.retain(|flight| flight.slots().any(|slot| !acceptor.is_decided(slot)));
        for flight in &mut self.flights {
            if flight.resend.is_due(now, wait_max) {
                due(flight);
            }
        }
        self.resend_at = self.flights.iter().map(|flight| flight.resend.at()).min().unwrap_or(Time::NEVER);
    }

    /// Lets all of it be due at once, and then after `wait`.
    pub(crate) fn hasten(&mut self, now: Time, wait: Duration, mut each: impl FnMut(&mut T)) {
        for flight in &mut self.flights {
            flight.resend = Resend::at_once(now, wait);
            each(&mut flight.more);
        }
        self.resend_at = self.flights.front().map_or(Time::NEVER, |_| now);
    }
}

/// Watches the slot after the decided prefix of a leader that lacks slots which were decided before its time. The
/// replica that reported them decided may be gone for good; another Phase 1 finds the values with those who accepted
/// them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GapWatch {
    /// Whether a slot was delivered since the gap was last looked at.
    delivered: bool,
    /// Since when none was.
    since: Time,
}

impl GapWatch {
    pub(crate) fn begin(now: Time) -> GapWatch {
        GapWatch { delivered: false, since: now }
    }

    /// Takes note that a slot was delivered.
    pub(crate) fn delivered(&mut self) {
        self.delivered = true;
    }

    /// Whether nothing was delivered for two time-outs, although this leader lags all the time.
    pub(crate) fn is_stuck(&mut self, now: Time, lags: bool, timeout: Duration) -> bool {
        if !lags || std::mem::take(&mut self.delivered) {
            self.since = now;
        }
        now.since(self.since) > timeout * 2
    }
}

#[cfg(test)]
mod tests {
    use synod_wire::{BatchBuilder, Lsn, ReplicaId, SessionId};

    use super::*;

    const WAIT: Duration = Duration::from_millis(100);

    fn at(waits: u32) -> Time {
        Time::ZERO + WAIT * waits
    }

    fn ballot(round: u64) -> Ballot {
        Ballot { round, replica: ReplicaId(1) }
    }

    fn batch(number: u64) -> Batch {
        let mut builder = BatchBuilder::new();
        builder.push(SessionId(1), number, number, b"x");
        builder.finish()
    }

    fn value(slot: u64, round: u64) -> AcceptedValue {
        AcceptedValue { slot: Slot(slot), ballot: ballot(round), batch: batch(10 * slot + round) }
    }

    #[test]
    fn each_slot_gets_the_value_of_the_highest_ballot_the_own_one_included() {
        let mut own = Acceptor::new(Slot(3));
        own.accept(ballot(2), Slot(5), &[batch(52), batch(62)].into(), Lsn(1));
        own.accept(ballot(1), Slot(9), &[batch(91)].into(), Lsn(2));
        let mut told = Phase1Values::default();
        for value in [value(4, 1), value(5, 1), value(5, 3), value(6, 1), value(8, 1), value(3, 9)] {
            told.take(value, |new, held| new > held);
        }
        let adopted = |through| told.clone().adopted(&own, Slot(3), Slot(through), &Rules::SOUND);
        let upto_8 = [Some(batch(41)), Some(batch(53)), Some(batch(62)), None, Some(batch(81))];
        assert_eq!(adopted(8), upto_8, "nobody accepted anything in slot 7");
        assert_eq!(adopted(u64::MAX).len(), 6);
        assert_eq!(adopted(7), upto_8[..3]);
        assert!(told.adopted(&own, Slot(9), Slot(u64::MAX), &Rules::SOUND).is_empty());
    }

    #[test]
    fn what_is_not_decided_in_time_is_due_again_and_the_rest_is_dropped() {
        let mut acceptor = Acceptor::new(Slot(0));
        acceptor.accept(ballot(1), Slot(1), &[batch(1), batch(2), batch(3)].into(), Lsn(1));
        let mut flights = InFlight::new();
        flights.begins(Slot(1), Slot(2), Resend::first(at(0), WAIT), 'a');
        flights.begins(Slot(3), Slot(3), Resend::first(at(1), WAIT), 'b');
        let due = |flights: &mut InFlight<char>, acceptor: &Acceptor, now| {
            let mut due = Vec::new();
            flights.repeat(now, WAIT * 4, acceptor, |flight| due.push((flight.more, flight.slots().count())));
            due
        };
        assert_eq!((flights.resend_at(), due(&mut flights, &acceptor, at(0))), (at(1), vec![]));
        assert_eq!(due(&mut flights, &acceptor, at(1)), [('a', 2)]);
        acceptor.decide_through(Slot(1), |_| true);
        assert_eq!(due(&mut flights, &acceptor, at(3)), [('a', 2), ('b', 1)], "slot 2 is not decided");
        acceptor.decide_through(Slot(2), |_| true);
        assert_eq!(due(&mut flights, &acceptor, at(5)), [('b', 1)]);
        flights.hasten(at(5), WAIT, |more| *more = 'c');
        assert_eq!(due(&mut flights, &acceptor, at(5)), [('c', 1)]);
        assert!(flights.lands(Slot(2)).is_none());
        assert_eq!(flights.lands(Slot(3)).map(|flight| flight.more), Some('c'));
        assert!(flights.lands(Slot(9)).is_none());
    }

    #[test]
    fn a_leader_is_stuck_if_it_lags_and_delivers_nothing_for_two_time_outs() {
        let mut watch = GapWatch::begin(at(0));
        assert!(!watch.is_stuck(at(2), true, WAIT) && watch.is_stuck(at(3), true, WAIT));
        watch.delivered();
        assert!(!watch.is_stuck(at(3), true, WAIT) && !watch.is_stuck(at(5), true, WAIT));
        assert!(!watch.is_stuck(at(6), false, WAIT), "it lacks nothing");
        assert!(!watch.is_stuck(at(8), true, WAIT) && watch.is_stuck(at(9), true, WAIT));
    }
}

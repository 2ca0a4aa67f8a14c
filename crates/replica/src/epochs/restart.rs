//! Restarts: what a replica's log says, and where the replica goes on.

use std::collections::{BTreeMap, BTreeSet};

use synod_consensus::{Bug, Effect, Effects, Record, Restart};
use synod_wire::{Ballot, Ballots, Batch, Delivered, Epoch, Keep, Lsn, Slot, Time};

use crate::{Action, Group, LogRecord, Replica, salvage::Salvaged};

/// What the records of a log say.
#[derive(Debug, Default)]
struct Found {
    /// The records of protocols, by epoch.
    protocol: BTreeMap<Epoch, Vec<Record>>,
    /// How many of an epoch's first records were written before a loss, so that others of that time may be missing.
    distrusted: BTreeMap<Epoch, usize>,
    /// What other replicas said is decided.
    learned: BTreeMap<Slot, (Ballots, Batch)>,
    /// The slots that ended epochs, and the ballots of these slots.
    ended: BTreeMap<Slot, Ballots>,
    /// What is decided after slots that the log lacks.
    salvaged: Salvaged,
    /// Records of slots through this one may be gone.
    trimmed: Slot,
    /// The group with the epoch that was entered last.
    entered: Option<Group>,
    /// Whether an earlier life may have said something in that epoch that the log does not say.
    amnesia: bool,
}

impl Found {
    /// Reads a log, in the order in which it was written. `whole` says that none of its records are lost.
    fn read(records: Vec<LogRecord>, whole: bool, has: impl Fn(Bug) -> bool) -> Found {
        let mut found = Found::default();
        for record in records {
            found.take(record, &has);
        }
        if !whole {
            found.distrust();
        }
        found
    }

    /// Removes the records that cannot be believed where some may be missing, since one of those may have held the last
    /// value of a slot: only records that say by themselves what was decided are kept. Which of these help is for
    /// [`resolvable`] to say.
    fn distrust(&mut self) {
        for (&epoch, records) in &mut self.protocol {
            records.retain(|record| !matches!(record.keep(), Keep::Slot(_)) || record.is_decision());
            self.distrusted.insert(epoch, records.len());
        }
    }

    /// What the records of an epoch are for a replica that has come so far.
    fn records(&self, replica: &Replica, epoch: Epoch) -> Option<Vec<Record>> {
        let mut records = self.protocol.get(&epoch)?.clone();
        let distrusted = self.distrusted.get(&epoch).copied().unwrap_or_default();
        resolvable(&mut records, distrusted, replica.history.delivered(), replica.decided.last());
        Some(records)
    }

    fn take(&mut self, record: LogRecord, has: &impl Fn(Bug) -> bool) {
        match record {
            LogRecord::Protocol { epoch, record } => {
                // The protocol itself says if it has learned again what was forgotten.
                if epoch == self.written()
                    && let Some(lost) = record.amnesia()
                {
                    self.amnesia = lost && !has(Bug::ForgetParkedAmnesia);
                }
                self.protocol.entry(epoch).or_default().push(record);
            }
            LogRecord::Learned { slot, ballots, batch } => {
                self.learned.insert(slot, (ballots, batch));
            }
            LogRecord::Entered { group, amnesia } => {
                if amnesia {
                    self.distrust();
                }
                self.amnesia = amnesia;
                self.entered = Some(group);
            }
            LogRecord::Decided { epoch, slot, ballots, batch } => {
                self.salvaged.insert(epoch, slot, ballots, batch);
            }
            LogRecord::Ended { slot, ballots } => _ = self.ended.insert(slot, ballots),
            LogRecord::Trimmed(slot) => self.trimmed = self.trimmed.max(slot),
        }
    }

    /// The epoch that was entered last.
    fn written(&self) -> Epoch {
        self.entered.as_ref().map_or(Epoch(1), |group| group.epoch)
    }

    /// Whether an earlier life may have said something that the log does not say, if `group` is the group with which
    /// the log begins. This holds even if a snapshot is of a later epoch than the one that was entered last: an earlier
    /// life may have voted in that later one before its log was lost. Only an epoch that begins for this very life ends
    /// that.
    fn forgets(&self, group: &Group, has: impl Fn(Bug) -> bool) -> bool {
        let heeded = self.written() >= group.epoch || !has(Bug::ForgetAmnesiaAfterSnapshot);
        self.amnesia && heeded
    }

    /// The epoch that this replica entered last, and the slot with which it began, if `group` is the group after the
    /// last slot that is here. It is the group's epoch if the record of entering that one is lost, or a crash came
    /// before it, but what led to the epoch is not lost.
    fn running(&self, group: &Group, has: impl Fn(Bug) -> bool) -> (Epoch, Slot) {
        let entered = self.entered.as_ref().filter(|entered| entered.epoch >= group.epoch);
        let newest = entered.filter(|_| !has(Bug::RestartInOldEpoch)).unwrap_or(group);
        (newest.epoch, newest.first)
    }

    /// The group of which the log still has to say that its epoch was entered, if `group` is the group after the last
    /// slot that is here. `forgot` says that the log was lost.
    fn unwritten(&self, group: &Group, forgot: bool) -> Option<Group> {
        // Either the snapshot of a peer was installed, and this life is the first to take part after it. Or the log
        // was lost: the new log must say so before this replica enters any epoch, even if it does not vote yet, or the
        // next life would take its memory for whole.
        let unwritten = group.epoch > self.written() || forgot;
        // What led to the epoch that was entered last may be lost, or come again from other replicas.
        let entered = self.entered.as_ref().filter(|entered| entered.epoch > group.epoch);
        unwritten.then(|| entered.unwrap_or(group).clone())
    }

    /// What the log holds for the next slot to deliver, in `epoch`, without asking a protocol.
    fn take_decided(&mut self, slot: Slot, epoch: Epoch) -> Option<(Ballots, Batch)> {
        self.learned.remove(&slot).or_else(|| Some(self.salvaged.take(slot, epoch)?.into_parts()))
    }

    /// The last slot through which the records of a protocol say what was decided after slot `decided`, if its epoch is
    /// over and ended in `last`. What was learned is decided, even where an older record of the protocol says something
    /// else.
    fn through(&self, decided: Slot, last: Slot) -> Slot {
        let learned = self.learned.range(decided.next()..).next();
        learned.map_or(last, |(slot, _)| last.min(slot.prev()))
    }

    /// The ballots of a slot of an epoch that is over, of which its protocol says this. The protocol's states are gone
    /// by now, so what it says may be too low; the log has the ballots at the end of each epoch.
    fn in_its_epoch(&self, slot: Slot, ballots: Ballots) -> Ballots {
        let at_end = self.ended.range(slot..).next().map_or(Ballot::ZERO, |(_, ballots)| ballots.decided);
        Ballots { decided: ballots.decided.max(at_end), ..ballots }
    }
}

/// Keeps of the first records, which come from before a loss, those that help: a decision whose batch is missing does
/// not. But **a reference that is void needs no batch**, and nobody may have the batch any more. If it were dropped at
/// each start, replicas that all learned the slot after a loss could never prove it to each other. What was written
/// after the loss is whole, and stays as it is: a vote may name a void batch, too.
///
/// All slots through `decided` are delivered, with the names in `delivered`. After a slot of which nothing is known it
/// is not known either which references are void.
pub(super) fn resolvable(records: &mut Vec<Record>, distrusted: usize, delivered: &Delivered, decided: Slot) {
    if distrusted == 0 {
        return;
    }
    let (mut held, mut decisions) = (BTreeSet::new(), BTreeMap::new());
    for record in records.iter().filter(|record| record.is_decision()) {
        record.body().for_each_batch(&mut |slot, batch| match record {
            Record::Dissemination(_) => held.extend(batch.id()),
            _ => _ = decisions.insert(slot, batch.clone()),
        });
    }
    let mut table = delivered.clone();
    let mut void = BTreeSet::new();
    let (mut slot, is_held) =
        (decided.next(), |batch: &Batch| batch.id().is_some_and(|id| held.contains(&id)));
    while let Some(batch) = decisions.get(&slot) {
        if batch.id().is_some_and(|id| table.voids(id)) {
            void.insert(slot);
        } else if batch.is_reference() && !is_held(batch) {
            break;
        }
        table.deliver(batch);
        slot = slot.next();
    }
    let mut first = distrusted;
    records.retain(|record| {
        if first == 0 {
            return true;
        }
        first -= 1;
        let mut whole = true;
        record.body().for_each_batch(&mut |slot, batch| {
            whole &= !batch.is_reference() || is_held(batch) || void.contains(&slot);
        });
        whole || !matches!(record.keep(), Keep::Slot(_))
    });
}

impl Replica {
    /// Takes up what earlier lives wrote.
    pub(crate) fn replay(&mut self, now: Time, records: Vec<LogRecord>, actions: &mut Vec<Action>) {
        let forgot = self.known.amnesia;
        let mut found = Found::read(records, !forgot, |bug| self.has(bug));
        self.known.amnesia |= found.forgets(&self.group, |bug| self.has(bug));
        self.known.trimmed = found.trimmed;
        (self.known.running, self.known.first) = found.running(&self.group, |bug| self.has(bug));
        self.known.replaying = true;
        self.deliver_found(now, &mut found, actions);
        self.known.replaying = false;
        self.known.ended = false;
        (self.known.running, self.known.first) = found.running(&self.group, |bug| self.has(bug));
        self.known.distrusted = found.distrusted.get(&self.known.running).copied().unwrap_or_default();
        self.known.parked = found.protocol.remove(&self.known.running).unwrap_or_default();
        let parked = std::mem::take(&mut self.known.parked);
        parked.iter().for_each(|record| self.log_names(record));
        self.known.parked = parked;
        // A crash may have come before the group was told: its members are written down before the log says that it was
        // entered.
        self.group_changed(actions);
        if let Some(group) = found.unwritten(&self.group, forgot) {
            self.write_entered(group, actions);
        }
        self.salvaged = found.salvaged;
        if let Some(snapshot) = self.snapshots.last().filter(|last| last.slot > self.known.trimmed) {
            // A crash came between the snapshot and this record. If the snapshot is from a peer, the log does
            // not hold what it covers; and the snapshot may be lost later.
            self.write_trimmed(snapshot.slot, actions);
        }
        self.watch_salvaged();
        self.known.hears_of(self.salvaged.last());
        self.begin(now, false);
        self.carry_out(now, actions);
    }

    /// Delivers what the log proves to be decided, as far as no slot is missing.
    fn deliver_found(&mut self, now: Time, found: &mut Found, actions: &mut Vec<Action>) {
        loop {
            let before = self.decided.last();
            loop {
                let slot = self.decided.last().next();
                let Some((ballots, batch)) = found.take_decided(slot, self.group.epoch) else { break };
                let batch = self.as_delivered(batch);
                self.deliver(now, slot, ballots, batch, actions);
            }
            // A lost snapshot may have come from another replica, and have covered other values than the log
            // holds: what it held comes from the other replicas.
            if self.group.epoch < self.known.running && self.decided.last() >= self.known.trimmed {
                let through = found.through(self.decided.last(), self.known.first.prev());
                self.replay_old_epoch(now, through, found, actions);
            }
            if self.decided.last() == before {
                break;
            }
        }
    }

    /// Delivers what an epoch that is over decided, as far as the log tells, through a slot. Everything
    /// before the newest epoch was decided with the values that the log holds, unless something else was
    /// learned.
    fn replay_old_epoch(&mut self, now: Time, through: Slot, found: &Found, actions: &mut Vec<Action>) {
        let epoch = self.group.epoch;
        let (Some(members), Some(records)) = (self.voting(), found.records(self, epoch)) else {
            return;
        };
        let mut unwritten = Effects::new(Lsn::ZERO);
        let restart = Restart { records, decided: through, amnesia: false, is_over: true, ..self.restart() };
        // The instance is not needed, only what it delivers.
        drop(self.group.options(&self.settings.consensus).start(members, restart, now, &mut unwritten));
        for effect in unwritten.drain() {
            if let Effect::Deliver { slot, ballots, batch } = effect
                && self.group.epoch == epoch
                && slot <= through
            {
                self.deliver(now, slot, found.in_its_epoch(slot, ballots), batch, actions);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use synod_consensus::{Options, dissemination, multipaxos, sequence_paxos};
    use synod_wire::{BatchBuilder, BatchId, Incarnation, ReplicaId, replica_session};

    const NO_BUG: fn(Bug) -> bool = |_| false;

    fn group(epoch: u64) -> Group {
        Group { epoch: Epoch(epoch), ..Group::of(&Options::default(), (1..=3).map(ReplicaId)) }
    }

    fn entered(epoch: u64, amnesia: bool) -> LogRecord {
        LogRecord::Entered { group: group(epoch), amnesia }
    }

    fn ballots(round: u64) -> Ballots {
        Ballots { decided: Ballot { round, ..Ballot::ZERO }, ..Ballots::ZERO }
    }

    #[test]
    fn an_empty_log_is_of_the_first_epoch_and_forgot_nothing() {
        let found = Found::read(Vec::new(), true, NO_BUG);
        assert_eq!((found.written(), found.amnesia, found.trimmed), (Epoch(1), false, Slot::ZERO));
    }

    #[test]
    fn what_was_forgotten_counts_until_an_epoch_is_entered_with_memory() {
        let found = |records| Found::read(records, true, NO_BUG);
        let forgets = found(vec![entered(2, true)]);
        assert_eq!((forgets.written(), forgets.amnesia), (Epoch(2), true));
        let readmitted = found(vec![entered(2, true), entered(3, false)]);
        assert_eq!((readmitted.written(), readmitted.amnesia), (Epoch(3), false));
    }

    #[test]
    fn a_snapshot_of_a_later_epoch_does_not_make_up_for_what_was_forgotten() {
        let found = Found::read(vec![entered(2, true)], true, NO_BUG);
        assert!(found.forgets(&group(2), NO_BUG) && found.forgets(&group(3), NO_BUG));
        assert!(!Found::read(vec![entered(2, false)], true, NO_BUG).forgets(&group(3), NO_BUG));
    }

    #[test]
    fn the_newest_epoch_that_is_known_goes_on_and_is_written_down_if_it_was_not() {
        let found = Found::read(vec![entered(3, false)], true, NO_BUG);
        let running = |epoch| found.running(&group(epoch), NO_BUG).0;
        assert_eq!([running(2), running(3), running(4)], [3, 3, 4].map(Epoch));
        let unwritten = |epoch, forgot| found.unwritten(&group(epoch), forgot).map(|group| group.epoch);
        assert_eq!(
            [unwritten(2, false), unwritten(3, false), unwritten(4, false)],
            [None, None, Some(Epoch(4))]
        );
        assert_eq!([unwritten(2, true), unwritten(4, true)], [Some(Epoch(3)), Some(Epoch(4))]);
    }

    #[test]
    fn the_log_stays_trimmed_as_far_as_it_ever_was() {
        let trimmed = [9, 4].map(|slot| LogRecord::Trimmed(Slot(slot)));
        assert_eq!(Found::read(trimmed.to_vec(), true, NO_BUG).trimmed, Slot(9));
    }

    #[test]
    fn what_was_learned_comes_before_what_was_salvaged_or_a_protocol_says() {
        let (learned, salvaged) = (ballots(5), ballots(3));
        let batch = Batch::noop();
        let records = vec![
            LogRecord::Decided { epoch: Epoch(1), slot: Slot(4), ballots: salvaged, batch: batch.clone() },
            LogRecord::Decided { epoch: Epoch(1), slot: Slot(5), ballots: salvaged, batch: batch.clone() },
            LogRecord::Learned { slot: Slot(4), ballots: learned, batch },
        ];
        let mut found = Found::read(records, true, NO_BUG);
        assert_eq!(found.through(Slot(2), Slot(9)), Slot(3));
        assert_eq!((found.through(Slot(2), Slot(2)), found.through(Slot(4), Slot(9))), (Slot(2), Slot(9)));
        let mut ballots =
            |slot, epoch| found.take_decided(Slot(slot), Epoch(epoch)).map(|(ballots, _)| ballots);
        assert_eq!(ballots(4, 1), Some(learned));
        assert_eq!(ballots(5, 2), None, "what another epoch decided there is void");
        assert_eq!((ballots(5, 1), ballots(5, 1)), (Some(salvaged), None));
    }

    #[test]
    fn a_slot_of_an_old_epoch_has_at_least_the_ballots_of_its_end() {
        let ended = |slot, round| LogRecord::Ended { slot: Slot(slot), ballots: ballots(round) };
        let found = Found::read(vec![ended(4, 2), ended(9, 7)], true, NO_BUG);
        let of = |slot, round| found.in_its_epoch(Slot(slot), ballots(round)).decided.round;
        assert_eq!([of(4, 1), of(4, 3), of(5, 3), of(10, 1)], [2, 3, 7, 1]);
    }

    /// Batch `number` of a life of r2.
    fn batch(life: u64, number: u64) -> Batch {
        let origin = replica_session(ReplicaId(2), Incarnation(life), 0);
        let mut builder = BatchBuilder::identified();
        builder.push(origin, number, 1, b"x");
        builder.finish_as(BatchId { origin, number }, 1)
    }

    fn learned(slot: u64, batch: &Batch) -> Record {
        let batch = batch.reference().expect("it has a name");
        sequence_paxos::Record::Learned { slot: Slot(slot), ballots: Ballots::ZERO, batch }.into()
    }

    fn held(batch: Batch) -> Record {
        dissemination::Record::Held { keep: Slot(9), batch }.into()
    }

    fn slots_of(records: &[Record]) -> Vec<u64> {
        let mut slots = Vec::new();
        for record in records.iter().filter(|record| !matches!(record, Record::Dissemination(_))) {
            record.body().for_each_batch(&mut |slot, _| slots.push(slot.0));
        }
        slots
    }

    /// All replicas may have learned the slots after they had lost their logs, and nobody may have a void batch.
    #[test]
    fn a_reference_that_is_void_is_known_without_its_batch_where_records_are_missing() {
        let (earlier, later) = (batch(3, 6), batch(4, 1));
        let records = [held(later.clone()), learned(5, &later), learned(6, &earlier), learned(7, &earlier)];
        let after = |decided| {
            let mut records = records.to_vec();
            resolvable(&mut records, 4, &Delivered::default(), Slot(decided));
            slots_of(&records)
        };
        assert_eq!(after(4), [5, 6, 7]);
        assert_eq!(after(3), [5], "slot 4 may have named batches of a later life than slot 6 does");
        let mut delivered = Delivered::default();
        delivered.deliver(&later);
        let mut rest = vec![learned(6, &earlier), learned(8, &earlier)];
        resolvable(&mut rest, 2, &delivered, Slot(5));
        assert_eq!(slots_of(&rest), [6]);
    }

    #[test]
    fn a_decision_whose_batch_is_missing_says_nothing() {
        let (one, other) = (batch(3, 1), batch(3, 2));
        let mut records = vec![held(other.clone()), learned(1, &one), learned(2, &other)];
        resolvable(&mut records, 3, &Delivered::default(), Slot(0));
        assert_eq!(slots_of(&records), [2]);
    }

    /// A vote that were forgotten could let another value be chosen.
    #[test]
    fn what_was_written_after_a_loss_stays_whatever_it_names() {
        let (void, later) = (batch(3, 6), batch(4, 1));
        let vote = |slot: u64, batch: &Batch| -> Record {
            let (ballot, first, decided) = (Ballot { round: 9, ..Ballot::ZERO }, Slot(slot), Slot::ZERO);
            let batches = [batch.reference().expect("it has a name")].into();
            multipaxos::Record::Accepted { ballot, first, decided, batches }.into()
        };
        let log = |records: Vec<Record>, amnesia: bool| {
            let of = |record| LogRecord::Protocol { epoch: Epoch(1), record };
            let entered = amnesia.then(|| entered(1, true));
            records.into_iter().map(of).chain(entered).collect::<Vec<_>>()
        };
        let before = log(vec![vote(1, &later), learned(2, &later), learned(3, &void)], true);
        let after = log(vec![vote(5, &void), vote(6, &later)], false);
        let found = Found::read([before, after].concat(), true, NO_BUG);
        let mut records = found.protocol[&Epoch(1)].clone();
        resolvable(&mut records, found.distrusted[&Epoch(1)], &Delivered::default(), Slot(0));
        assert_eq!(slots_of(&records), [5, 6], "of what was written before, nothing can be told");
    }
}

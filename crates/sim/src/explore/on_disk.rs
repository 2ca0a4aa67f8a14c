//! The contents of the durable part of a log, for the checks.

use std::collections::{BTreeMap, BTreeSet};

use synod_consensus::{Fact, Record, TermFact, dissemination};
use synod_wire::{Ballot, Batch, Delivered, ReplicaId, Slot};

/// A batch as its index in the list of those that may be decided; [`Values::STRANGE`] for any other batch. A reference
/// is the batch that it stands for.
pub(super) type Value = u16;

/// Where a batch was proposed: the slot, and the ballot.
pub(super) type Place = (Slot, Ballot);

/// What was proposed at a [`Place`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Element {
    pub(super) value: Value,
    /// With terms: the ballot of the entry before it, if that is known.
    pub(super) before: Option<Ballot>,
}

/// The batches that may be decided: the no-op, and the commands.
#[derive(Debug)]
pub(super) struct Values {
    batches: Vec<Batch>,
    /// In how many forms each command is there: where batches have names, one for each life of each replica.
    forms: usize,
}

impl Values {
    /// A batch that was never proposed.
    pub(super) const STRANGE: Value = Value::MAX;

    /// These commands, each in all the forms that it may be proposed in.
    ///
    /// # Panics
    /// There are too many of them for a [`Value`], or commands have different numbers of forms.
    pub(super) fn new(commands: Vec<Vec<Batch>>) -> Values {
        let forms = commands.first().map_or(1, Vec::len);
        assert!(commands.iter().all(|command| command.len() == forms), "a form for each life");
        let batches: Vec<Batch> =
            std::iter::once(Batch::noop()).chain(commands.into_iter().flatten()).collect();
        assert!(batches.len() < usize::from(Values::STRANGE), "this many batches are not explored");
        Values { batches, forms }
    }

    pub(super) fn of(&self, batch: &Batch) -> Value {
        let known = self.batches.iter().position(|value| value == batch || batch.stands_for(value));
        known.and_then(|place| Value::try_from(place).ok()).unwrap_or(Values::STRANGE)
    }

    /// The batch of a value that is not strange.
    pub(super) fn batch(&self, value: Value) -> Option<&Batch> {
        self.batches.get(usize::from(value))
    }

    /// Which command it is, in whichever form; none if it is no command.
    pub(super) fn number(&self, value: Value) -> Option<usize> {
        let value = usize::from(value);
        (1..self.batches.len()).contains(&value).then(|| (value - 1) / self.forms)
    }

    /// A command, in one of its forms.
    pub(super) fn command(&self, command: usize, form: usize) -> Option<&Batch> {
        self.batches.get(1 + command * self.forms + form % self.forms)
    }

    /// What is void once these values are delivered, in this order.
    pub(super) fn delivered(&self, values: impl Iterator<Item = Value>) -> Delivered {
        let mut table = Delivered::default();
        values.filter_map(|value| self.batch(value)).for_each(|batch| table.deliver(batch));
        table
    }
}

/// The promises, votes and elements in a log's durable records.
#[derive(Debug, Default)]
pub(super) struct OnDisk {
    /// The promise: no lower ballot is followed.
    pub(super) promised: Ballot,
    /// For each slot, the ballot of the last value that was accepted there.
    pub(super) accepted: BTreeMap<Slot, Ballot>,
    /// The term, and the vote in it.
    pub(super) term: u64,
    pub(super) voted_for: Option<ReplicaId>,
    /// All elements that were accepted at some time.
    pub(super) elements: BTreeMap<Place, Element>,
    /// The places of those elements that were votes: with terms, only entries of the replica's term (Ongaro
    /// 2014, section 3.6.2).
    pub(super) votes: BTreeSet<Place>,
    /// The batches that are there themselves, and not only by reference.
    pub(super) batches: BTreeSet<Value>,
}

/// A sequence, reconstructed from its records.
#[derive(Default)]
struct Held {
    accepted: BTreeMap<Slot, Value>,
    /// Elements that may become a part of it, for a ballot and a first slot.
    staged: BTreeMap<Slot, Value>,
    staged_for: (Ballot, Slot),
}

impl OnDisk {
    /// Reads these records.
    pub(super) fn of(records: &[Record], values: &Values) -> OnDisk {
        let mut disk = OnDisk::default();
        let mut held = Held::default();
        for record in records {
            disk.take_in(record.body().fact(), &mut held, values);
            disk.take_in_terms(&record.body().term_fact(), values);
            if let Record::Dissemination(dissemination::Record::Held { batch, .. }) = record {
                disk.batches.insert(values.of(batch));
            }
        }
        disk
    }

    fn take_in(&mut self, fact: Fact, held: &mut Held, values: &Values) {
        let run = |from: Slot, batches: &[Batch]| -> Vec<(Slot, Value)> {
            (from.0..).map(Slot).zip(batches.iter().map(|batch| values.of(batch))).collect()
        };
        match fact {
            Fact::Promised(ballot) => self.promised = self.promised.max(ballot),
            Fact::Accepted { ballot, first, batches } => {
                run(first, &batches).into_iter().for_each(|(slot, value)| self.vote(slot, ballot, value));
            }
            Fact::Learned { slot, batch } => {
                held.accepted.insert(slot, values.of(&batch));
            }
            Fact::Extended { ballot, first, batches } => {
                held.accepted.split_off(&first);
                for (slot, value) in run(first, &batches) {
                    held.accepted.insert(slot, value);
                    self.vote(slot, ballot, value);
                }
            }
            Fact::Staged { ballot, first, from, batches } => {
                if held.staged_for != (ballot, first) || from == first {
                    held.staged.clear();
                    held.staged_for = (ballot, first);
                }
                held.staged.extend(run(from, &batches));
            }
            Fact::Adopted { ballot, first, from, decided, batches } => {
                let staged = std::mem::take(&mut held.staged);
                held.accepted.split_off(&first);
                held.accepted.extend(staged.into_iter().filter(|(slot, _)| first <= *slot && *slot < from));
                held.accepted.extend(run(from, &batches));
                // The whole sequence is accepted again, in this ballot; decided elements need no vote.
                for (&slot, &value) in held.accepted.range(decided.next()..) {
                    self.vote(slot, ballot, value);
                }
            }
            Fact::Nothing => {}
        }
    }

    fn vote(&mut self, slot: Slot, ballot: Ballot, value: Value) {
        self.accepted.insert(slot, ballot);
        self.elements.insert((slot, ballot), Element { value, before: None });
        self.votes.insert((slot, ballot));
    }

    fn take_in_terms(&mut self, fact: &TermFact, values: &Values) {
        match fact {
            TermFact::Term { term, voted_for } => (self.term, self.voted_for) = (*term, *voted_for),
            TermFact::Entries { first, entries, .. } => {
                self.accepted.split_off(first);
                for (slot, entry) in (first.0..).map(Slot).zip(entries.iter()) {
                    let before = ballot_before(&self.accepted, slot);
                    self.accepted.insert(slot, entry.ballot);
                    let place = (slot, entry.ballot);
                    self.elements.insert(place, Element { value: values.of(&entry.batch), before });
                    if self.term == entry.ballot.round {
                        self.votes.insert(place);
                    }
                }
            }
            TermFact::Truncated { from } => {
                self.accepted.split_off(from);
            }
            TermFact::Lost | TermFact::Nothing => {}
        }
    }
}

fn ballot_before(log: &BTreeMap<Slot, Ballot>, slot: Slot) -> Option<Ballot> {
    if slot == Slot(1) { Some(Ballot::ZERO) } else { log.get(&slot.prev()).copied() }
}

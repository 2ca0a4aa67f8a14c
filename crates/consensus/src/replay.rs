//! How a replica that decides slot by slot takes in the records of an earlier life. Each protocol writes records of its
//! own; what these mean is the same for all.

use synod_wire::{Ballot, Slot};

use crate::{
    Batches, Options,
    acceptor::{AcceptedValue, Acceptor},
    planted,
    rules::Rules,
};

/// Takes in records in the order in which they were written.
pub(crate) struct Replay<'a> {
    acceptor: &'a mut Acceptor,
    rules: Rules,
    promised: Ballot,
    /// Records may be missing, whatever those that are there say.
    missing: bool,
    /// This replica may have forgotten something.
    lost: bool,
    /// Slots through this one are decided.
    decided: Slot,
    /// What was accepted after this slot is left out.
    last: Slot,
}

/// What the records said, besides what the acceptor holds now.
pub(crate) struct Replayed {
    /// The highest ballot that was promised.
    pub(crate) promised: Ballot,
    /// Slots through this one are decided.
    pub(crate) decided: Slot,
    /// Whether this replica may have forgotten something: records are missing, or an earlier life had forgotten
    /// something and did not learn it again.
    pub(crate) lost: bool,
}

impl Replay<'_> {
    pub(crate) fn new<'a>(
        options: &Options,
        acceptor: &'a mut Acceptor,
        records_may_be_missing: bool,
    ) -> Replay<'a> {
        let decided = acceptor.decided();
        // After what is missing, values far ahead are useless: they come by catch-up again.
        let ahead = Slot(decided.0 + options.accept_ahead_max());
        let last = if records_may_be_missing { ahead } else { Slot(u64::MAX) };
        Replay {
            acceptor,
            rules: planted::rules(options),
            promised: Ballot::ZERO,
            missing: records_may_be_missing,
            lost: records_may_be_missing,
            decided,
            last,
        }
    }

    pub(crate) fn promised(&mut self, ballot: Ballot) {
        self.promised = self.rules.promised_before(self.promised, ballot);
    }

    /// Batches were accepted from slot `first` on, when slots through `decided` were known to be decided.
    pub(crate) fn accepted(&mut self, ballot: Ballot, first: Slot, decided: Slot, batches: &Batches) {
        self.decided = self.decided.max(decided);
        self.acceptor.replay_run(ballot, first, batches, self.last);
    }

    pub(crate) fn learned(&mut self, value: AcceptedValue) {
        self.acceptor.replay_learned(value, self.last);
    }

    /// A life began that had forgotten something, or what was forgotten had been learned again.
    pub(crate) fn amnesia(&mut self, forgot: bool) {
        self.lost = forgot || self.missing;
        if forgot {
            self.decided = self.acceptor.forget_undecided();
        }
    }

    /// That was all; besides, slots through `known` are decided.
    pub(crate) fn end(mut self, known: Slot) -> Replayed {
        if self.missing {
            self.decided = self.acceptor.forget_undecided();
        }
        let decided = self.decided.max(known);
        self.acceptor.decide_through(decided, |_| true);
        Replayed { promised: self.promised, decided, lost: self.lost }
    }
}

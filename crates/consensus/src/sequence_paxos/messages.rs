//! What Sequence Paxos replicas say to each other, and the records that each writes.
//!
//! Slots take the place of the lengths of Ng 2020: "the sequence through slot l" has length l. All are
//! absolute, so that what was said at different times can be compared (errata E17 and E22).

use synod_wire::{Ballot, Ballots, Batch, Keep, Slot};

use super::Extent;
use crate::{
    BatchText, Claim, Fact, PromisePage,
    batches::{Batches, last_of, see_run, with_others},
    codec::{fields, records},
    describe::amnesia as lost_text,
};

crate::messages! {
    /// A message between two Sequence Paxos replicas.
    #[derive(PartialEq, Eq)]
    pub enum Message, "message kind" {
        /// The sender wants to lead, or leads and wants to know what the receiver has.
        1, Prepare, claims [Claim::Candidate(prepare.ballot)],
        text ("Prepare {}, has {}{}", prepare.ballot, extent_text(&prepare.has), page_text(prepare.page)):
        Prepare(prepare: Prepare),
        /// Answers `Prepare`.
        2, Promise, claims [Claim::PromiseSequence { ballot: promise.ballot, has: promise.has }],
        text {
            let Promise { ballot, has, page: _, first, more, batches } = promise;
            format!("Promise {ballot}, has {}{}", extent_text(has), elements(", with", *first, batches, *more, batch))
        }:
        Promise(promise: Promise),
        /// The receiver's sequence has to become that of the sender, in one step.
        3, Sync, claims { Claim::proposals(sync.ballot, sync.from, sync.decided, &sync.batches) },
        text {
            let AcceptSync { ballot, first, from, more, decided, batches } = sync;
            let elements = elements("", *from, batches, *more, batch);
            format!("AcceptSync {ballot} from slot {first}, decided {decided}:{elements}")
        }:
        AcceptSync(sync: AcceptSync),
        /// Asks for the page of an `AcceptSync` that begins at `from`; the pages before it have come.
        4, Sync, text "SyncNext {ballot} from slot {first}, the page from slot {from}":
        SyncNext {
            /// The leader's ballot.
            ballot: Ballot,
            /// The same as in the `AcceptSync`.
            first: Slot,
            /// The slot with which the next page begins.
            from: Slot,
        },
        /// The next elements of the sequence.
        5, Proposal, claims { Claim::proposals(*ballot, *first, *decided, batches) },
        text ("Accept {ballot}, decided {decided}:{}", elements("", *first, batches, false, batch)):
        Accept {
            /// The leader's ballot.
            ballot: Ballot,
            /// The first slot of the elements: a receiver that has nothing in the slot before must not take them (E17).
            first: Slot,
            /// The sequence through this slot is decided, as far as it was proposed in `ballot`.
            decided: Slot,
            /// The elements for `first` and the slots after it.
            batches: Batches,
        },
        /// The sender has accepted the sequence of `ballot` through `last`.
        6, Vote, claims [Claim::VoteThrough { ballot: *ballot, last: *last }],
        text "Accepted {ballot} through slot {last}":
        Accepted {
            /// The ballot.
            ballot: Ballot,
            /// The last slot accepted.
            last: Slot,
        },
        /// The sequence of `ballot` is decided through `through`.
        7, Announcement, claims [Claim::Leads { ballot: *ballot, decided: *through }],
        text "Decide {ballot} through slot {through}":
        Decide {
            /// The leader's ballot.
            ballot: Ballot,
            /// The last slot decided.
            through: Slot,
        },
        /// The sender may have missed something: a leader in `promised` or a higher ballot should send it a `Prepare`.
        8, Recovery, text "PrepareReq promised {promised}":
        PrepareReq {
            /// The ballot that the sender has promised.
            promised: Ballot,
        },
        /// The receiver lags so far that the leader has dropped what it lacks. It should learn the slots through
        /// `through` from replicas that have them, and then ask for a `Prepare`.
        9, Sync, claims [Claim::Leads { ballot: *ballot, decided: *through }],
        text "Lagging {ballot}, decided {through}":
        Lagging {
            /// The leader's ballot.
            ballot: Ballot,
            /// Slots through this one are decided.
            through: Slot,
        },
        /// The leader lives, and asks whether the receiver still follows it, which is what a linearizable read
        /// needs to know.
        10, Heartbeat, claims [Claim::Leads { ballot: *ballot, decided: *decided }],
        text "Heartbeat {ballot} round {round}, decided {decided}":
        Heartbeat {
            /// The leader's ballot.
            ballot: Ballot,
            /// The same as in `Decide`.
            decided: Slot,
            /// The number of the question, which grows with every question.
            round: u64,
        },
        /// The sender still follows `ballot`.
        11, HeartbeatAnswer, text "HeartbeatAck {ballot} round {round}":
        HeartbeatAck {
            /// The leader's ballot.
            ballot: Ballot,
            /// The number of the question that is answered.
            round: u64,
        },
        /// The receiver's ballot is too low: the sender promised `promised`.
        12, Refusal, text "Reject promised {promised}":
        Reject {
            /// The higher ballot.
            promised: Ballot,
        },
        /// The leader wants the receiver to lead.
        13, Transfer, text "TakeOver from {ballot}":
        TakeOver {
            /// The leader's ballot.
            ballot: Ballot,
        },
    }
    described with batch;
    body {
        fn with_batches(&self, other: &mut dyn FnMut(&Batch) -> Option<Batch>) -> Option<crate::Message> {
            let &Message::Accept { ballot, first, decided, ref batches } = self else { return None };
            let batches = with_others(batches, other)?;
            Some(Message::Accept { ballot, first, decided, batches }.into())
        }
    }
    claims {
        fn promise_page(&self) -> Option<PromisePage> {
            let Message::Promise(promise) = self else { return None };
            let (first, delivered, more) = (promise.page, promise.first.prev(), promise.more);
            Some(PromisePage { ballot: promise.ballot, first, delivered, more })
        }
    }
}

fields! {
    /// The contents of [`Message::Prepare`].
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Prepare {
        /// The ballot of the sender.
        pub ballot: Ballot,
        /// What the sender has.
        pub has: Extent,
        /// The slot with which the wanted page of the answer begins; 0 for the first page.
        pub page: Slot,
    }
}

fields! {
    /// The contents of [`Message::Promise`].
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Promise {
        /// The ballot that is promised.
        pub ballot: Ballot,
        /// What the sender has: its own decided slot, not that of the `Prepare` (E2).
        pub has: Extent,
        /// The same as in the `Prepare`.
        pub page: Slot,
        /// The slot of the first of `batches`.
        pub first: Slot,
        /// Whether there are more elements after this page.
        pub more: bool,
        /// If the sender's sequence may hold something that the candidate lacks, its elements from `first` on:
        /// one page of them, so that no answer is unbounded.
        pub batches: Batches,
    }
}

fields! {
    /// The contents of [`Message::AcceptSync`].
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct AcceptSync {
        /// The leader's ballot.
        pub ballot: Ballot,
        /// The receiver keeps what it has before this slot; everything else is replaced.
        pub first: Slot,
        /// The slot with which this page begins.
        pub from: Slot,
        /// Whether there is another page: if so, nothing is accepted yet.
        pub more: bool,
        /// The same as in `Accept`.
        pub decided: Slot,
        /// The elements of this page.
        pub batches: Batches,
    }
}

fields! { Extent { accepted_in, last, decided } }

records! {
    /// What a replica must remember across a crash.
    pub enum Record, "record kind" {
        /// No lower ballot may be answered any more (Ng 2020: n_prom).
        1, keep Keep::State(STATE_PROMISED), fact Fact::Promised(*promised), text "promised {promised}":
        Promised(promised: Ballot),
        /// The accepted sequence was extended: nothing was held from `first` on.
        2, keep Keep::Slot(last_of(*first, batches)),
        fact Fact::Extended { ballot: *ballot, first: *first, batches: batches.clone() },
        text ("accepted {ballot}, decided {decided}:{}", elements("", *first, batches, false, write_batch)):
        Accepted {
            /// The ballot of the sequence.
            ballot: Ballot,
            /// The slot of the first of the batches.
            first: Slot,
            /// When this was written, slots through this one were decided, with the values that the log holds.
            decided: Slot,
            /// The accepted batches.
            batches: Batches,
        },
        /// A page of a new sequence that is not whole yet. It means nothing without the `Adopted` that names it.
        3, keep Keep::Slot(last_of(*from, batches)),
        fact Fact::Staged { ballot: *ballot, first: *first, from: *from, batches: batches.clone() },
        text ("staged {ballot} from slot {first}:{}", elements("", *from, batches, true, write_batch)):
        Staged {
            /// The ballot of the sequence.
            ballot: Ballot,
            /// The same as in the `Adopted`.
            first: Slot,
            /// The slot with which the page begins.
            from: Slot,
            /// The elements of the page.
            batches: Batches,
        },
        /// The accepted ballot and the accepted sequence changed, both at once (erratum E20): what was held
        /// before `first` stays, the staged pages of this ballot and `first` follow up to `from`, then come
        /// `batches`. Whatever else was held from `first` on is gone.
        4, keep Keep::Slot(*covers),
        fact Fact::Adopted {
            ballot: *ballot, first: *first, from: *from, decided: *decided, batches: batches.clone()
        },
        text {
            let elements = elements("", *from, batches, false, write_batch);
            format!("adopted {ballot} from slot {first}, decided {decided}:{elements}")
        }:
        Adopted {
            /// The ballot of the sequence from now on.
            ballot: Ballot,
            /// The first slot whose content is replaced; what is held before it stays.
            first: Slot,
            /// The slot of the first of `batches`.
            from: Slot,
            /// The same as in `Accepted`.
            decided: Slot,
            /// No record before this one holds a slot after this one. This record may be forgotten only together
            /// with all of them: otherwise a restart would take what it cut off for a part of its sequence.
            covers: Slot,
            /// The last page.
            batches: Batches,
        },
        /// A peer told what was decided in this slot, and that is something else than what was accepted there, or
        /// a higher ballot decided it than the one in which it was accepted.
        5, keep Keep::Slot(*slot), fact Fact::Learned { slot: *slot, batch: batch.clone() },
        text ("learned slot {slot}: {}", write_batch(batch)):
        Learned {
            /// The slot. Those before it were decided when this was written.
            slot: Slot,
            /// The ballots with which that peer delivered it: a restart must not make them lower.
            ballots: Ballots,
            /// What was decided.
            batch: Batch,
        },
        /// Whether this replica lost a log and must not vote. `false` is also the first record of a new log.
        6, keep Keep::State(STATE_AMNESIA), text { lost_text(*amnesia) }:
        Amnesia(amnesia: bool),
        /// A snapshot covers slots through this one, whose records may be gone, and with them the ballot of the
        /// sequence.
        7, keep Keep::State(STATE_TRIMMED),
        text "a snapshot covers slots through {slot}; accepted {accepted_in}":
        Trimmed {
            /// The slot.
            slot: Slot,
            /// The accepted ballot when this was written; it never decreases.
            accepted_in: Ballot,
        },
    }
    described with write_batch;
    logged {
        fn for_each_batch(&self, see: &mut dyn FnMut(Slot, &Batch)) {
            match self {
                Record::Accepted { first: from, batches, .. }
                | Record::Staged { from, batches, .. }
                | Record::Adopted { from, batches, .. } => see_run(*from, batches, see),
                Record::Learned { slot, batch, .. } => see(*slot, batch),
                Record::Promised(_) | Record::Amnesia(_) | Record::Trimmed { .. } => {}
            }
        }

        fn is_decision(&self) -> bool {
            matches!(self, Record::Learned { .. })
        }

        fn amnesia(&self) -> Option<bool> {
            if let Record::Amnesia(lost) = self { Some(*lost) } else { None }
        }
    }
}

const STATE_PROMISED: u8 = 1;
const STATE_AMNESIA: u8 = 3;
const STATE_TRIMMED: u8 = 4;

impl Record {
    /// How many slots it holds something for.
    pub(super) fn slots(&self) -> u64 {
        match self {
            Record::Accepted { batches, .. }
            | Record::Staged { batches, .. }
            | Record::Adopted { batches, .. } => batches.len() as u64,
            Record::Learned { .. } => 1,
            Record::Promised(_) | Record::Amnesia(_) | Record::Trimmed { .. } => 0,
        }
    }
}

fn extent_text(has: &Extent) -> String {
    format!("{} through slot {}, decided {}", has.accepted_in, has.last, has.decided)
}

/// Elements of a sequence.
fn elements(before: &str, first: Slot, batches: &[Batch], more: bool, batch: BatchText<'_>) -> String {
    let more = if more { ", and more" } else { "" };
    match batches {
        [] if before.is_empty() => format!(" nothing{more}"),
        [] => more.to_owned(),
        [only] => format!("{before} slot {first}: {}{more}", batch(only)),
        _ => {
            let last = last_of(first, batches);
            let all: Vec<String> = batches.iter().map(batch).collect();
            format!("{before} slots {first} to {last}: {}{more}", all.join(" | "))
        }
    }
}

fn page_text(page: Slot) -> String {
    if page == Slot::ZERO { String::new() } else { format!(", the page from slot {page}") }
}

#[cfg(test)]
#[path = "tests/messages.rs"]
mod tests;

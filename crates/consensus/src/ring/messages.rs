//! What replicas of the ring say to each other, and the records that each writes.
//!
//! | here | Benz 2013 |
//! | --- | --- |
//! | `Prepare` / `Promise` | Phase1Range, open-ended, asked and answered directly |
//! | `Values` | Value |
//! | `Accept`, `Votes` | Phase2, in two: bytes wait for no disk, votes do |
//! | `Decision` | Decision |
//! | `View` | what ZooKeeper tells each node |

use synod_wire::{Ballot, Batch, DecodeError, Keep, Reader, ReplicaId, Slot, Writer};

use super::{Delay, View, Votes};
use crate::{
    BatchText, Claim, Fact, PromisePage, RingPath,
    acceptor::AcceptedValue,
    batches::{Batches, check_run, last_of, see_run},
    codec::{Field, fields, records},
    describe::{accepted as accepted_text, amnesia as lost_text, joined, more, run},
};

crate::messages! {
    /// A message between two replicas of the ring.
    #[derive(PartialEq, Eq)]
    pub enum Message, "message kind" {
        /// Phase 1a, for all slots from `from` on.
        1, Prepare, claims [Claim::Candidate(*ballot)], text "Prepare {ballot} from slot {from}":
        Prepare {
            /// The ballot that the sender wants to lead.
            ballot: Ballot,
            /// The first slot that it wants to hear about.
            from: Slot,
        },
        /// Phase 1b: one page of what the sender accepted. The candidate asks for the next page with another `Prepare`.
        2, Promise,
        claims [Claim::promise(promise.ballot, promise.from, promise.decided, promise.next, &promise.accepted)],
        text (
            "Promise {} from slot {}, decided {}: {}{}",
            promise.ballot, promise.from, promise.decided, accepted_text(&promise.accepted, batch), more(promise.next)
        ):
        Promise(promise: Promise),
        /// Batches on their way from their origin to the coordinator.
        3, Dissemination, text ("Values {}{}: {}", ring(view), mode(*safe), carried(values, batch)):
        Values {
            /// The ring along which they go.
            view: View,
            /// Whether every member needs the bytes, however far they came.
            safe: bool,
            /// The batches.
            values: Vec<Value>,
        },
        /// Phase 2a, for consecutive slots, on its way round the ring until the member before the coordinator has it.
        4, Proposal,
        text (
            "Accept {} {}, decided {}{}: {}",
            ring(&accept.view), run(accept.first, last_of(accept.first, &accept.values)), accept.decided,
            mode(accept.safe), carried(&accept.values, batch)
        ):
        Accept(accept: Accept),
        /// Phase 2b, for consecutive slots, on its way round the ring until a quorum has voted.
        5, Vote,
        text (
            "Votes {} {}, decided {}, {}",
            ring(&votes.view), run(votes.first, votes.last), votes.decided, voted(&votes.view, votes.votes)
        ):
        Votes(votes: VoteRun),
        /// These consecutive slots are decided, with what was proposed in the view's ballot.
        6, Announcement,
        claims [
            Claim::Decided { ballot: decision.view.ballot, first: decision.first, last: decision.last },
        ],
        text (
            "Decision {} {}, ttl {}",
            ring(&decision.view), run(decision.first, decision.last), decision.ttl
        ):
        Decision(decision: DecisionRun),
        /// This is the ring from now on.
        7, Announcement,
        text {
            let order: Vec<String> = view.order.iter().map(ReplicaId::to_string).collect();
            format!("View {}: {}", ring(view), order.join(" "))
        }:
        View {
            /// The ring.
            view: View,
        },
        /// Slots through `through` are decided, those proposed in `ballot` with what was proposed there: answers values
        /// that were delivered before.
        8, Announcement, claims [Claim::Leads { ballot: *ballot, decided: *through }],
        text "Decided {ballot} through slot {through}":
        Decided {
            /// The coordinator's ballot.
            ballot: Ballot,
            /// The last slot of the decided prefix.
            through: Slot,
        },
        /// The coordinator lives, and asks whether the receiver still follows it.
        9, Heartbeat, claims [Claim::Leads { ballot: *ballot, decided: *decided }],
        text "Heartbeat {ballot} round {round}, decided {decided}":
        Heartbeat {
            /// The coordinator's ballot.
            ballot: Ballot,
            /// The same as `through` in `Decided`.
            decided: Slot,
            /// The number of the question, which grows with every question.
            round: u64,
        },
        /// The sender still follows `ballot`. A learner on the ring says so unsolicited, which counts as no answer.
        10, HeartbeatAnswer, text "HeartbeatAck {ballot} round {round}, view {minor}, decided {decided}":
        HeartbeatAck {
            /// The coordinator's ballot.
            ballot: Ballot,
            /// The number of the question that is answered; 0 if none is.
            round: u64,
            /// The number of the view of that ballot which the sender knows; 0 if it knows none.
            minor: u64,
            /// The sender has delivered the slots through this one.
            decided: Slot,
        },
        /// The receiver's ballot is too low: the sender promised `promised`.
        11, Refusal, text "Reject promised {promised}":
        Reject {
            /// The higher ballot.
            promised: Ballot,
        },
        /// The coordinator wants the receiver to lead.
        12, Transfer, text "TakeOver from {ballot}":
        TakeOver {
            /// The coordinator's ballot.
            ballot: Ballot,
        },
        /// How long what the sender sends takes to other members; with `ring-order=measured` only.
        13, HeartbeatAnswer,
        text {
            let one = |Delay { to, micros }: &Delay| format!("{to} {micros} us");
            format!("Delays to {}", delays.iter().map(one).collect::<Vec<_>>().join(", "))
        }:
        Delays {
            /// The other members that answered lately.
            delays: Vec<Delay>,
        },
        /// Phase 1a for the slots of a range, with `ring-reserve`: the receiver promises the ballot for all slots, and
        /// tells what it accepted in these.
        14, Prepare, claims [Claim::Candidate(*ballot)], text ("PrepareRange {ballot} {}", run(*from, *through)):
        PrepareRange {
            /// The same as in `Prepare`.
            ballot: Ballot,
            /// The first slot that it wants to hear about.
            from: Slot,
            /// The last.
            through: Slot,
        },
    }
    described with batch;
    checked by Message::holds_slots;
    body {
        fn other_bytes(&self) -> u64 {
            let (view, values) = match self {
                Message::Values { view, values, .. } | Message::Accept(Accept { view, values, .. }) => {
                    (view, &values[..])
                }
                Message::Votes(VoteRun { view, .. })
                | Message::Decision(DecisionRun { view, .. })
                | Message::View { view } => (view, &[][..]),
                Message::Delays { delays } => return (delays.len() * size_of::<Delay>()) as u64,
                _ => return 0,
            };
            let names = values.iter().filter(|value| value.content.whole().is_none()).count();
            (names * NAME_BYTES + view.len() * size_of::<ReplicaId>()) as u64
        }
    }
    claims {
        /// Members send an `Accept` on that the coordinator proposed, and `Votes` with the bits of others.
        fn claims_of(&self, sender: ReplicaId) -> Vec<Claim<'_>> {
            match self {
                Message::Accept(Accept { view, first, decided, values, .. }) if sender == view.ballot.replica => {
                    let (ballot, decided) = (view.ballot, *decided);
                    let mut claims = vec![Claim::Leads { ballot, decided }];
                    for (slot, value) in (first.0..).map(Slot).zip(values) {
                        let batch = value.content.whole();
                        claims.extend(batch.map(|batch| Claim::Propose { ballot, slot, batch, decided }));
                    }
                    claims
                }
                Message::Votes(VoteRun { view, first, last, votes, .. }) => {
                    let votes = view.place(sender).is_some_and(|place| votes.has(place));
                    let slots = (first.0..=last.0).map(Slot).filter(|_| votes);
                    slots.map(|slot| Claim::Vote { ballot: view.ballot, slot }).collect()
                }
                _ => self.claims(),
            }
        }

        fn ring_path(&self) -> Option<RingPath<'_>> {
            let (Message::Values { view, .. }
            | Message::Accept(Accept { view, .. })
            | Message::Votes(VoteRun { view, .. })
            | Message::Decision(DecisionRun { view, .. })
            | Message::View { view }) = self
            else {
                return None;
            };
            let votes = if let Message::Votes(run) = self { Some(run.votes) } else { None };
            Some(RingPath { ballot: view.ballot, number: view.minor, order: &view.order, votes })
        }

        fn range_asked(&self) -> Option<(Ballot, Slot)> {
            if let Message::PrepareRange { ballot, through, .. } = self {
                Some((*ballot, *through))
            } else {
                None
            }
        }

        fn promise_page(&self) -> Option<PromisePage> {
            let Message::Promise(promise) = self else { return None };
            let (first, delivered, more) = (promise.from, promise.decided, promise.next.is_some());
            Some(PromisePage { ballot: promise.ballot, first, delivered, more })
        }
    }
}

fields! {
    /// The contents of [`Message::Accept`].
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Accept {
        /// The ring along which it goes.
        pub view: View,
        /// The slot of the first value.
        pub first: Slot,
        /// Slots through this one are decided, those proposed in the view's ballot with what was proposed.
        pub decided: Slot,
        /// The same as in [`Message::Values`].
        pub safe: bool,
        /// What is proposed in `first` and the slots after it.
        pub values: Vec<Value>,
    }
}

fields! {
    /// The contents of [`Message::Votes`].
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct VoteRun {
        /// The ring along which it goes.
        pub view: View,
        /// The first slot.
        pub first: Slot,
        /// The last slot.
        pub last: Slot,
        /// The same as in [`Accept`].
        pub decided: Slot,
        /// The members of the view that have durably accepted what was proposed in these slots in the view's ballot.
        pub votes: Votes,
    }
}

fields! {
    /// The contents of [`Message::Decision`].
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct DecisionRun {
        /// The ring along which it goes.
        pub view: View,
        /// The first slot.
        pub first: Slot,
        /// The last slot.
        pub last: Slot,
        /// How many members it reaches from here on.
        pub ttl: u8,
    }
}

/// A batch on its way, with its bytes or without.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    /// For how many more hops, this one included, the bytes are needed.
    pub hops: u8,
    /// The batch.
    pub content: Content,
}

/// What a message carries of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// The batch.
    Whole(Batch),
    /// Its name, with length and checksum ([`Batch::reference`]): its receiver has the bytes.
    Name(Batch),
}

impl Content {
    /// The batch, if it is here.
    #[must_use]
    pub fn whole(&self) -> Option<&Batch> {
        match self {
            Content::Whole(batch) => Some(batch),
            Content::Name(_) => None,
        }
    }

    /// The batch, or its name.
    #[must_use]
    pub fn batch(&self) -> &Batch {
        match self {
            Content::Whole(batch) | Content::Name(batch) => batch,
        }
    }

    /// Whether this is a batch, or its name.
    #[must_use]
    pub fn is_of(&self, batch: &Batch) -> bool {
        match self {
            Content::Whole(whole) => whole == batch,
            Content::Name(name) => name.stands_for(batch),
        }
    }
}

impl Field for Value {
    fn write(&self, writer: &mut Writer) {
        writer.u8(self.hops);
        let (whole, batch) = match &self.content {
            Content::Whole(batch) => (true, batch),
            Content::Name(name) => (false, name),
        };
        writer.bool(whole);
        writer.batch(batch);
    }

    fn read(reader: &mut Reader, name: &'static str) -> Result<Value, DecodeError> {
        let hops = reader.u8("hops of a value")?;
        let whole = reader.bool("whether a value is whole")?;
        let batch = reader.batch(name)?;
        if !whole && !batch.is_reference() {
            return Err(DecodeError::Undefined { field: "name of a value", value: 0 });
        }
        Ok(Value { hops, content: if whole { Content::Whole(batch) } else { Content::Name(batch) } })
    }

    /// Names are not batches: the code that carries this message has nothing to fill in.
    fn for_each_batch(&self, see: &mut dyn FnMut(&Batch)) {
        self.content.whole().into_iter().for_each(see);
    }
}

fields! {
    /// The contents of [`Message::Promise`].
    #[derive(Clone, Debug, PartialEq, Eq)]
    pub struct Promise {
        /// The ballot that is promised.
        pub ballot: Ballot,
        /// The slot with which the page begins, as the candidate asked.
        pub from: Slot,
        /// Slots through this one are decided, and not reported.
        pub decided: Slot,
        /// The next slot in which the sender accepted something, also beyond the range that it was asked for; `None` if
        /// there is none.
        pub next: Option<Slot>,
        /// What the sender accepted in slots of this page, in slot order.
        pub accepted: Vec<AcceptedValue>,
    }
}

impl Message {
    /// Whether its slots are a run that does not end with the last number that there is.
    fn holds_slots(&self) -> Result<(), DecodeError> {
        let (first, last) = match self {
            Message::Accept(Accept { first, values, .. }) => {
                (*first, first.0.saturating_add(values.len() as u64))
            }
            Message::Votes(VoteRun { first, last, .. })
            | Message::Decision(DecisionRun { first, last, .. }) => (*first, last.0),
            _ => return Ok(()),
        };
        if first.0 <= last && last < u64::MAX {
            Ok(())
        } else {
            Err(DecodeError::Undefined { field: "last slot of a run", value: last })
        }
    }
}

/// About the most bytes that a name takes in a message.
const NAME_BYTES: usize = 64;

records! {
    /// What an acceptor must remember across a crash.
    pub enum Record, "record kind" {
        /// No lower ballot may be answered any more.
        1, keep Keep::State(STATE_PROMISED), fact Fact::Promised(*promised), text "promised {promised}":
        Promised(promised: Ballot),
        /// Values were accepted in consecutive slots: what one message brought is one record. Each value replaces
        /// what was accepted in its slot before.
        2, keep Keep::Slot(last_of(*first, batches)),
        fact Fact::Accepted { ballot: *ballot, first: *first, batches: batches.clone() },
        text (
            "accepted {ballot} {}, decided {decided}: {}",
            run(*first, last_of(*first, batches)), joined(batches, batch)
        ):
        Accepted {
            /// The ballot in which they were accepted.
            ballot: Ballot,
            /// The slot of the first batch.
            first: Slot,
            /// When this was written, slots through this one were decided, with the values that the log holds.
            decided: Slot,
            /// What was accepted in `first` and the slots after it; at least one batch.
            batches: Batches,
        },
        /// This was decided in this slot, as a peer or a decision says; it replaces what was accepted there.
        3, keep Keep::Slot(value.slot), fact Fact::Learned { slot: value.slot, batch: value.batch.clone() },
        text ("learned slot {}: {}", value.slot, batch(&value.batch)):
        Learned(value: AcceptedValue),
        /// Whether this replica lost a log and must not vote in this epoch. `false` is the first record of a new log.
        4, keep Keep::State(STATE_AMNESIA), text { lost_text(*amnesia) }:
        Amnesia(amnesia: bool),
    }
    described with batch;
    checked by Record::holds_slots;
    logged {
        fn for_each_batch(&self, see: &mut dyn FnMut(Slot, &Batch)) {
            match self {
                Record::Accepted { first, batches, .. } => see_run(*first, batches, see),
                Record::Learned(value) => see(value.slot, &value.batch),
                Record::Promised(_) | Record::Amnesia(_) => {}
            }
        }

        fn is_decision(&self) -> bool {
            matches!(self, Record::Learned(_))
        }

        fn amnesia(&self) -> Option<bool> {
            if let Record::Amnesia(lost) = self { Some(*lost) } else { None }
        }
    }
}

const STATE_PROMISED: u8 = 1;
const STATE_AMNESIA: u8 = 2;

impl Record {
    fn holds_slots(&self) -> Result<(), DecodeError> {
        if let Record::Accepted { first, batches, .. } = self { check_run(*first, batches) } else { Ok(()) }
    }
}

fn ring(view: &View) -> String {
    if view.is_detour() {
        format!("{} past {}", view.ballot, view.order[view.len() - 1])
    } else {
        format!("{}/{}", view.ballot, view.minor)
    }
}

fn mode(safe: bool) -> &'static str {
    if safe { ", safe" } else { "" }
}

fn voted(view: &View, votes: Votes) -> String {
    let voters = view.order.iter().enumerate().filter(|&(place, _)| votes.has(place));
    let voters: Vec<String> = voters.map(|(_, id)| id.to_string()).collect();
    if voters.is_empty() { "by none".to_owned() } else { format!("by {}", voters.join(" ")) }
}

fn carried(values: &[Value], batch: BatchText<'_>) -> String {
    let one = |Value { hops, content }: &Value| match content {
        Content::Whole(whole) => format!("h{hops} {}", batch(whole)),
        Content::Name(name) => {
            let id = name.id().expect("a reference has a name");
            format!("h{hops} named {id}")
        }
    };
    values.iter().map(one).collect::<Vec<_>>().join(" | ")
}

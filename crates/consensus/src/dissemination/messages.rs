//! What replicas say to each other about batches, and the records about them.

use synod_wire::{Batch, DecodeError, Keep, Reader, Slot, Writer};

use super::Holdings;
use crate::{
    Batches, Proofs, Prove,
    codec::{Field, records},
};

// What replicas say of batches is not a promise, proposal or vote. The simulator checks it by what the logs hold.
crate::messages! {
    /// A message about batches (Santos 2012, Algorithm 10.1).
    #[derive(PartialEq, Eq)]
    pub enum Message, "message about batches" {
        /// FORWARD: batches, and what the sender holds durably and has not said yet.
        1, Dissemination,
        text {
            let named = |it: &Batch| format!("{} {}", it.id().expect("it has a name"), batch(it));
            let batches: Vec<String> = batches.iter().map(named).collect();
            let held = if held.is_empty() { String::new() } else { format!("; holds {}", runs(held)) };
            format!("Forward {}{held}", batches.join(" | "))
        }:
        Forward {
            /// The acknowledgements that go with them.
            held: Holdings,
            /// The batches, each of which has a name.
            batches: Batches,
        },
        /// ACK: what the sender holds durably.
        2, Dissemination, text ("Held {}", runs(held)):
        Held {
            /// The batches.
            held: Holdings,
        },
        /// RESENDFORWARD: the sender lacks these batches.
        3, Dissemination, text ("Lacks {}", runs(lacked)):
        Lacks {
            /// The batches.
            lacked: Holdings,
        },
        /// Answers [`Message::Lacks`] if a batch is delivered, so that the receiver can fetch it as what was
        /// decided in its slot.
        4, Dissemination, text "Delivered through slot {decided}":
        Delivered {
            /// The sender has delivered all slots through this one.
            decided: Slot,
        },
    }
    described with batch;
    checked by Message::is_named;
}

impl Message {
    /// Only what a reference can stand for is disseminated.
    fn is_named(&self) -> Result<(), DecodeError> {
        match self {
            Message::Forward { batches, .. } => batches.iter().try_for_each(is_named),
            _ => Ok(()),
        }
    }
}

impl Field for Holdings {
    fn write(&self, writer: &mut Writer) {
        self.encode(writer);
    }

    fn read(reader: &mut Reader, _: &'static str) -> Result<Holdings, DecodeError> {
        Holdings::decode(reader)
    }
}

fn is_named(batch: &Batch) -> Result<(), DecodeError> {
    match batch.reference() {
        Some(_) => Ok(()),
        None => Err(DecodeError::Undefined { field: "name of a batch", value: 0 }),
    }
}

fn runs(holdings: &Holdings) -> String {
    let run = |run: &super::Run| match run.last == run.first.number {
        true => run.first.to_string(),
        false => format!("{} to #{}", run.first, run.last),
    };
    holdings.runs().iter().map(run).collect::<Vec<_>>().join(", ")
}

records! {
    /// A record about batches.
    pub enum Record, "record about batches" {
        /// This batch is held here. If several records hold it, it is kept as long as the one that is kept longest.
        1, keep Keep::Slot(*keep),
        text ("holds {} until slot {keep}: {}", batch.id().expect("it has a name"), write_batch(batch)):
        Held {
            /// The log keeps the record until it is trimmed through this slot: that of the batch's delivery, or a
            /// later one.
            keep: Slot,
            /// The batch.
            batch: Batch,
        },
    }
    described with write_batch;
    checked by Record::is_named;
    logged {
        fn for_each_batch(&self, see: &mut dyn FnMut(Slot, &Batch)) {
            let Record::Held { keep, batch } = self;
            see(*keep, batch);
        }

        /// The record says nothing of any slot, and is true whatever else was lost.
        fn is_decision(&self) -> bool {
            true
        }

        fn amnesia(&self) -> Option<bool> {
            None
        }
    }
}

impl Record {
    fn is_named(&self) -> Result<(), DecodeError> {
        let Record::Held { batch, .. } = self;
        is_named(batch)
    }

    /// What has to be written again before the log is trimmed through a slot, where the protocol of its epoch does not
    /// run and cannot see to that.
    #[must_use]
    pub fn kept_past(&self, trimmed: Slot) -> Option<Record> {
        let Record::Held { keep, batch } = self;
        let later = Slot(trimmed.0.saturating_add(KEPT_PARKED));
        (*keep <= trimmed).then(|| Record::Held { keep: later, batch: batch.clone() })
    }
}

/// For so many slots a batch is kept whose protocol does not run, until it is written again.
const KEPT_PARKED: u64 = 64;

impl Prove for Record {
    /// The record proves no decision: it holds what a proven reference stands for.
    fn prove(&self, proofs: &mut Proofs) {
        let Record::Held { batch, .. } = self;
        proofs.hold_batch(batch);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Body, Describe};
    use synod_wire::{BatchBuilder, BatchId, Incarnation, ReplicaId, SessionId, replica_session};

    fn batch() -> Batch {
        let mut builder = BatchBuilder::identified();
        builder.push(SessionId(1), 1, 1, b"put");
        builder.finish_as(id(2), 1)
    }

    fn id(number: u64) -> BatchId {
        BatchId { origin: replica_session(ReplicaId(1), Incarnation(3), 7), number }
    }

    fn messages() -> Vec<Message> {
        let held = || [id(1), id(2), id(4)].into_iter().collect();
        vec![
            Message::Forward { batches: [batch()].into(), held: held() },
            Message::Held { held: held() },
            Message::Lacks { lacked: held() },
            Message::Delivered { decided: Slot(9) },
        ]
    }

    #[test]
    fn every_byte_is_where_earlier_versions_look_for_it() {
        let records = [Record::Held { keep: Slot(9), batch: batch() }];
        crate::message::fixed::check(include_str!("encoding.txt"), &messages(), &records);
    }

    #[test]
    fn messages_and_records_come_back() {
        crate::message::fixed::survive_the_wire_and_no_truncation_decodes(&messages());
        crate::message::fixed::survive_the_disk(vec![Record::Held { keep: Slot(9), batch: batch() }]);
    }

    #[test]
    fn what_has_no_name_is_refused() {
        for unnamed in [Batch::noop(), Batch::settling(), batch().reference().unwrap()] {
            let mut writer = Writer::new();
            let forward = Message::Forward { batches: [unnamed].into(), held: Holdings::default() };
            forward.encode(&mut writer);
            assert!(Message::decode(&mut Reader::new(writer.finish().to_bytes())).is_err());
        }
    }

    #[test]
    fn people_read_names() {
        let text = |_: &Batch| "put".to_owned();
        assert_eq!(messages()[0].describe(&text), "Forward r1/3#2 put; holds r1/3#1 to #2, r1/3#4");
    }
}

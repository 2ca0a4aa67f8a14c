//! The format of messages and records on the wire and on disk.

use super::*;
use crate::{Body, message::fixed};
use synod_wire::{BatchBuilder, Reader, ReplicaId, SessionId, Writer};

const BALLOT: Ballot = Ballot { round: 5, replica: ReplicaId(2) };

fn messages() -> Vec<Message> {
    let ballot = BALLOT;
    let mut builder = BatchBuilder::new();
    builder.push(SessionId(1), 1, 1, b"x");
    let batch = builder.finish();
    let value = AcceptedValue { slot: Slot(3), ballot, batch: batch.clone() };
    let promise = |accepted| Promise { ballot, slot: Slot(3), decided: Slot(2), accepted };
    let accept = |further, proposed| {
        let (slot, decided) = (Slot(8), Slot(7));
        Message::Accept { ballot, slot, further, decided, proposed }
    };
    vec![
        Message::PrepareAll { ballot, from: Slot(3) },
        Message::PromiseAll { ballot, decided: Slot(2), touched: Slot(9) },
        Message::Prepare { ballot, slot: Slot(3) },
        Message::Promise(promise(vec![])),
        Message::Promise(promise(vec![value.clone()])),
        accept(None, batch),
        accept(Some(Slot(12)), Batch::noop()),
        Message::Accepted { ballot, slot: Slot(8), further: None },
        Message::Accepted { ballot, slot: Slot(8), further: Some(Slot(12)) },
        Message::Repeat { slot: Slot(3) },
        Message::Told { promised: Ballot { round: 6, replica: ReplicaId(1) }, value },
        Message::Heartbeat { ballot, decided: Slot(8), round: 4 },
        Message::HeartbeatAck { ballot, round: 4 },
        Message::Reject { promised: ballot },
        Message::TakeOver { ballot },
    ]
}

#[test]
fn messages_survive_the_wire_and_no_truncation_decodes() {
    fixed::survive_the_wire_and_no_truncation_decodes(&messages());
}

fn records() -> Vec<Record> {
    let (ballot, accepted) = (BALLOT, Batch::noop());
    vec![
        Record::Promised(ballot),
        Record::Accepted { ballot, slot: Slot(3), decided: Slot(2), accepted: accepted.clone() },
        Record::Learned(AcceptedValue { slot: Slot(3), ballot, batch: accepted }),
        Record::Amnesia(true),
    ]
}

#[test]
fn records_survive_the_disk() {
    fixed::survive_the_disk(records());
}

#[test]
fn every_byte_is_where_other_versions_look_for_it() {
    fixed::check(include_str!("encoding.txt"), &messages(), &records());
}

/// A value of any size is one message: there is no frame here.
#[test]
fn a_value_larger_than_a_frame_is_one_message() {
    let mut builder = BatchBuilder::new();
    builder.push(SessionId(1), 1, 1, &[7; 100_000]);
    let proposed = builder.finish();
    let accept =
        Message::Accept { ballot: BALLOT, slot: Slot(1), further: None, decided: Slot::ZERO, proposed };
    let mut writer = Writer::new();
    accept.encode(&mut writer);
    let decoded = Message::decode(&mut Reader::new(writer.finish().to_bytes()));
    assert_eq!(decoded, Ok(accept.clone()));
    assert!(crate::Message::from(accept).batch_bytes() > 100_000);
}

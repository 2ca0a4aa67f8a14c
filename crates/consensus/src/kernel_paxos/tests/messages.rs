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

#[test]
fn what_no_replica_says_is_refused() {
    let (ballot, sound) = (BALLOT, messages());
    let read = |message: &Message| {
        let mut writer = Writer::new();
        message.encode(&mut writer);
        Message::decode(&mut Reader::new(writer.finish().to_bytes()))
    };
    let value = |slot, ballot| AcceptedValue { slot: Slot(slot), ballot, batch: Batch::noop() };
    let promise = |accepted| Message::Promise(Promise { ballot, slot: Slot(3), decided: Slot(2), accepted });
    for accepted in [vec![value(4, ballot)], vec![value(3, Ballot::ZERO)], vec![value(3, ballot); 2]] {
        assert!(read(&promise(accepted)).is_err());
    }
    // Each number of each message in turn is one that nothing has: the bytes of a sound one are changed.
    let mut refused = 0;
    for message in &sound {
        let mut writer = Writer::new();
        message.encode(&mut writer);
        let bytes = writer.finish().to_bytes();
        for (at, absurd) in (1..bytes.len().saturating_sub(7)).flat_map(|at| [(at, 0), (at, u64::MAX)]) {
            let mut changed = bytes.to_vec();
            changed[at..at + 8].copy_from_slice(&absurd.to_le_bytes());
            let Ok(message) = Message::decode(&mut Reader::new(changed.into())) else {
                refused += 1;
                continue;
            };
            let (ballots, slots) = named(&message);
            assert!(ballots.iter().all(|ballot| ballot.round > 0 && ballot.is_in_reach()), "{message:?}");
            assert!(slots.iter().all(|slot| slot.0 < u64::MAX), "{message:?}");
        }
    }
    assert!(refused > 100, "{refused}");
    for of in [Ballot::ZERO, Ballot { round: Ballot::ROUND_MAX + 1, ..BALLOT }] {
        for message in [
            Message::PrepareAll { ballot: of, from: Slot(1) },
            Message::Told { promised: ballot, value: value(3, of) },
            Message::Told { promised: of, value: value(3, ballot) },
            Message::Reject { promised: of },
            Message::TakeOver { ballot: of },
        ] {
            assert!(read(&message).is_err(), "{message:?}");
        }
    }
    for slot in [Slot::ZERO, Slot(u64::MAX)] {
        for message in [
            Message::Prepare { ballot, slot },
            Message::Accepted { ballot, slot, further: None },
            Message::Repeat { slot },
            Message::Told { promised: ballot, value: value(slot.0, ballot) },
        ] {
            assert!(read(&message).is_err(), "{message:?}");
        }
    }
}

/// The ballots and the slots that a message names.
fn named(message: &Message) -> (Vec<Ballot>, Vec<Slot>) {
    match message {
        Message::PrepareAll { ballot, from } => (vec![*ballot], vec![*from]),
        Message::PromiseAll { ballot, decided, touched } => (vec![*ballot], vec![*decided, *touched]),
        Message::Prepare { ballot, slot } => (vec![*ballot], vec![*slot]),
        Message::Promise(promise) => {
            let values = promise.accepted.iter().map(|value| value.ballot);
            (values.chain([promise.ballot]).collect(), vec![promise.slot, promise.decided])
        }
        Message::Accept { ballot, slot, further, decided, .. } => {
            (vec![*ballot], vec![*slot, further.unwrap_or_default(), *decided])
        }
        Message::Accepted { ballot, slot, further } => {
            (vec![*ballot], vec![*slot, further.unwrap_or_default()])
        }
        Message::Repeat { slot } => (vec![], vec![*slot]),
        Message::Told { promised, value } => (vec![*promised, value.ballot], vec![value.slot]),
        Message::Heartbeat { ballot, decided, .. } => (vec![*ballot], vec![*decided]),
        Message::HeartbeatAck { ballot, .. }
        | Message::Reject { promised: ballot }
        | Message::TakeOver { ballot } => (vec![*ballot], vec![]),
    }
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

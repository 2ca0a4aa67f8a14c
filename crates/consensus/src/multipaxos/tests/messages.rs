//! What messages and records look like on the wire and on disk.

use super::*;
use crate::Claims;
use synod_wire::{BatchBuilder, SessionId};

fn messages() -> Vec<Message> {
    let ballot = Ballot { round: 5, replica: ReplicaId(2) };
    let mut builder = BatchBuilder::new();
    builder.push(SessionId(1), 1, 1, b"x");
    let batch = builder.finish();
    vec![
        Message::Prepare { ballot, from: Slot(3) },
        Message::Promise(Promise {
            ballot,
            from: Slot(3),
            decided: Slot(2),
            accepted: vec![AcceptedValue { slot: Slot(3), ballot, batch: batch.clone() }],
            next: Some(Slot(4)),
            incarnation: Incarnation(7),
            lives: vec![(ReplicaId(3), Incarnation(9))],
        }),
        Message::Accept { ballot, first: Slot(8), decided: Slot(7), batches: [batch, Batch::noop()].into() },
        Message::Accepted { ballot, first: Slot(8), last: Slot(9) },
        Message::Decided { ballot, through: Slot(8) },
        Message::Heartbeat { ballot, decided: Slot(8), round: 4 },
        Message::HeartbeatAck { ballot, round: 4 },
        Message::Reject { promised: ballot },
        Message::TakeOver { ballot },
        Message::Recover { incarnation: Incarnation(3) },
        Message::RecoverAnswer {
            asker: Incarnation(3),
            incarnation: Incarnation(5),
            promised: ballot,
            next_slot: None,
            lives: vec![(ReplicaId(3), Incarnation(9))],
        },
    ]
}

#[test]
fn messages_survive_the_wire_and_no_truncation_decodes() {
    for message in messages() {
        let mut writer = Writer::new();
        message.encode(&mut writer);
        let bytes = writer.finish().to_bytes();
        let mut reader = Reader::new(bytes.clone());
        assert_eq!(Message::decode(&mut reader).as_ref(), Ok(&message));
        reader.finish().unwrap();
        for len in 0..bytes.len() {
            assert!(
                Message::decode(&mut Reader::new(bytes.slice(..len))).is_err(),
                "{message:?} cut at {len}"
            );
        }
    }
}

fn records() -> Vec<Record> {
    let ballot = Ballot { round: 5, replica: ReplicaId(2) };
    let value = AcceptedValue { slot: Slot(3), ballot, batch: Batch::noop() };
    vec![
        Record::Promised(ballot),
        Record::Accepted {
            ballot,
            first: Slot(3),
            decided: Slot(2),
            batches: [Batch::noop(), Batch::noop()].into(),
        },
        Record::Learned(value),
        Record::Amnesia(true),
        Record::Lives(vec![(ReplicaId(1), Incarnation(2))]),
    ]
}

#[test]
fn records_survive_the_disk() {
    for record in records() {
        let record = crate::Record::from(record);
        let mut writer = Writer::new();
        record.encode(&mut writer);
        assert_eq!(crate::Record::decode(&mut Reader::new(writer.finish().to_bytes())), Ok(record));
    }
}

#[test]
fn every_byte_is_where_earlier_versions_look_for_it() {
    crate::message::fixed::check(include_str!("encoding.txt"), &messages(), &records());
}

#[test]
fn a_page_of_a_promise_says_whether_others_follow() {
    let pages: Vec<_> = messages().iter().filter_map(Message::promise_page).collect();
    assert!(matches!(pages[..], [page] if page.more && page.first == Slot(3) && page.delivered == Slot(2)));
    for message in messages() {
        let Message::Promise(promise) = message else { continue };
        let last = Message::Promise(Promise { next: None, ..promise });
        assert!(!last.promise_page().unwrap().more);
    }
}

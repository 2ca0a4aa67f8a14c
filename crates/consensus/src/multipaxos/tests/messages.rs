//! The format of messages and records on the wire and on disk.

use super::*;
use crate::Claims;
use crate::message::fixed;
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
    fixed::survive_the_wire_and_no_truncation_decodes(&messages());
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
    fixed::survive_the_disk(records());
}

#[test]
fn every_byte_is_where_earlier_versions_look_for_it() {
    fixed::check(include_str!("encoding.txt"), &messages(), &records());
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

//! Messages and records on the wire and on disk.

use synod_wire::{Ballot, Batch, ReplicaId, Slot};

use super::{BALLOT, batch, ring};
use crate::ring::{
    Accept, AcceptedValue, Content, DecisionRun, Delay, Message, Promise, Record, Value, VoteRun, Votes,
};

fn values() -> Vec<Value> {
    vec![
        Value { hops: 2, content: Content::Whole(batch(2, 1)) },
        Value { hops: 0, content: Content::Name(batch(3, 1).reference().unwrap()) },
        Value { hops: 0, content: Content::Whole(Batch::noop()) },
    ]
}

fn messages() -> Vec<Message> {
    let (ballot, first, decided, view) = (BALLOT, Slot(8), Slot(7), ring(&[1, 2, 3]));
    let accepted = vec![AcceptedValue { slot: Slot(9), ballot, batch: batch(2, 1) }];
    let votes = Votes::default().with(0).with(2);
    vec![
        Message::Prepare { ballot, from: first },
        Message::Promise(Promise { ballot, from: first, decided, accepted, next: Some(Slot(10)) }),
        Message::Values { view: view.clone(), safe: true, values: values() },
        Message::Accept(Accept { view: view.clone(), first, decided, safe: false, values: values() }),
        Message::Votes(VoteRun { view: view.clone(), first, last: Slot(10), decided, votes }),
        Message::Decision(DecisionRun { view: view.clone(), first, last: Slot(10), ttl: 2 }),
        Message::View { view },
        Message::Decided { ballot, through: decided },
        Message::Heartbeat { ballot, decided, round: 3 },
        Message::HeartbeatAck { ballot, round: 3, minor: 1, decided },
        Message::Reject { promised: Ballot { round: 512, replica: ReplicaId(2) } },
        Message::TakeOver { ballot },
        Message::Delays { delays: vec![Delay { to: ReplicaId(3), micros: 1_500 }] },
        Message::PrepareRange { ballot, from: first, through: Slot(40) },
    ]
}

fn records() -> Vec<Record> {
    let (ballot, first, decided) = (BALLOT, Slot(8), Slot(7));
    vec![
        Record::Promised(ballot),
        Record::Accepted { ballot, first, decided, batches: [batch(2, 1), Batch::noop()].into() },
        Record::Learned(AcceptedValue { slot: first, ballot, batch: batch(2, 1) }),
        Record::Amnesia(true),
    ]
}

#[test]
fn messages_and_records_come_back() {
    crate::message::fixed::survive_the_wire_and_no_truncation_decodes(&messages());
    crate::message::fixed::survive_the_disk(records());
}

#[test]
fn every_byte_is_where_earlier_versions_look_for_it() {
    crate::message::fixed::check(include_str!("encoding.txt"), &messages(), &records());
}

//! What messages and records look like on the wire and on disk.

use super::*;
use crate::Claims;
use synod_wire::{BatchBuilder, ReplicaId, SessionId};

const BALLOT: Ballot = Ballot { round: 5, replica: ReplicaId(2) };

fn batches() -> Batches {
    let mut builder = BatchBuilder::new();
    builder.push(SessionId(1), 1, 1, b"x");
    [builder.finish(), Batch::noop()].into()
}

fn messages() -> Vec<Message> {
    let (ballot, batches) = (BALLOT, batches());
    let has = Extent { accepted_in: ballot, last: Slot(9), decided: Slot(7) };
    let (start, from, decided) = (Slot(8), Slot(9), Slot(7));
    vec![
        Message::Prepare(Prepare { ballot, has, page: Slot(8) }),
        Message::Promise(Promise { ballot, has, page: Slot(8), start, batches: batches.clone(), more: true }),
        Message::AcceptSync(AcceptSync {
            ballot,
            start,
            from,
            batches: batches.clone(),
            more: true,
            decided,
        }),
        Message::SyncNext { ballot, start, from },
        Message::Accept { ballot, start, decided, batches },
        Message::Accepted { ballot, last: Slot(8) },
        Message::Decide { ballot, through: Slot(8) },
        Message::PrepareReq { promised: ballot },
        Message::Behind { ballot, through: Slot(3) },
        Message::Heartbeat { ballot, decided: Slot(8), round: 4 },
        Message::HeartbeatAck { ballot, round: 4 },
        Message::Reject { promised: ballot },
        Message::TakeOver { ballot },
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
            let cut = Message::decode(&mut Reader::new(bytes.slice(..len)));
            assert!(cut.is_err(), "{message:?} cut at {len}");
        }
    }
}

fn records() -> Vec<Record> {
    let (ballot, batches, decided) = (BALLOT, batches(), Slot(2));
    let (start, from, covers) = (Slot(3), Slot(4), Slot(9));
    vec![
        Record::Promised(ballot),
        Record::Accepted { ballot, start, decided, batches: batches.clone() },
        Record::Staged { ballot, start, from, batches: batches.clone() },
        Record::Adopted { ballot, start, from, decided, covers, batches: batches.clone() },
        Record::Learned { slot: start, ballots: Ballots::both(ballot), batch: batches[0].clone() },
        Record::Amnesia(true),
        Record::Trimmed { slot: start, accepted_in: ballot },
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
    assert!(matches!(pages[..], [page] if page.more && page.first == Slot(8) && page.delivered == Slot(7)));
    for message in messages() {
        let Message::Promise(promise) = message else { continue };
        let last = Message::Promise(Promise { more: false, ..promise });
        assert!(!last.promise_page().unwrap().more);
    }
}

//! The format of messages and records on the wire and on disk.

use super::*;
use crate::Claims;
use crate::message::fixed;
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
    let (first, from, decided) = (Slot(8), Slot(9), Slot(7));
    vec![
        Message::Prepare(Prepare { ballot, has, page: Slot(8) }),
        Message::Promise(Promise { ballot, has, page: Slot(8), first, batches: batches.clone(), more: true }),
        Message::AcceptSync(AcceptSync {
            ballot,
            first,
            from,
            batches: batches.clone(),
            more: true,
            decided,
        }),
        Message::SyncNext { ballot, first, from },
        Message::Accept { ballot, first, decided, batches },
        Message::Accepted { ballot, last: Slot(8) },
        Message::Decide { ballot, through: Slot(8) },
        Message::PrepareReq { promised: ballot },
        Message::Lagging { ballot, through: Slot(3) },
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
    let (ballot, batches, decided) = (BALLOT, batches(), Slot(2));
    let (first, from, covers) = (Slot(3), Slot(4), Slot(9));
    vec![
        Record::Promised(ballot),
        Record::Accepted { ballot, first, decided, batches: batches.clone() },
        Record::Staged { ballot, first, from, batches: batches.clone() },
        Record::Adopted { ballot, first, from, decided, covers, batches: batches.clone() },
        Record::Learned { slot: first, ballots: Ballots::both(ballot), batch: batches[0].clone() },
        Record::Amnesia(true),
        Record::Trimmed { slot: first, accepted_in: ballot },
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
    assert!(matches!(pages[..], [page] if page.more && page.first == Slot(8) && page.delivered == Slot(7)));
    for message in messages() {
        let Message::Promise(promise) = message else { continue };
        let last = Message::Promise(Promise { more: false, ..promise });
        assert!(!last.promise_page().unwrap().more);
    }
}

//! The format of messages and records on the wire and on disk.

use super::*;
use crate::{
    Logged,
    message::fixed,
    raft::{
        Merge,
        driftwood::{MemberStatus, Status},
        log::voters_bytes,
    },
};
use synod_wire::{BatchBuilder, SessionId};

fn voters() -> VoterSets {
    VoterSets::joint(vec![ReplicaId(1), ReplicaId(4)], vec![ReplicaId(1)])
}

fn messages() -> Vec<Message> {
    let ballot = Ballot { round: 5, replica: ReplicaId(2) };
    let mut builder = BatchBuilder::new();
    builder.push(SessionId(1), 1, 1, b"x");
    let entry = Entry { ballot, batch: builder.finish(), voters: None };
    let change = Entry { voters: Some(voters()), ..entry.clone() };
    vec![
        Message::Vote { term: 6, rehearsal: true, transfer: false, last: Slot(9), last_ballot: ballot },
        Message::VoteReply { term: 6, rehearsal: true, granted: true },
        Message::Append {
            ballot,
            session: 3,
            prev: Slot(8),
            prev_ballot: ballot,
            entries: [entry.clone(), change].into(),
            commit: Slot(7),
        },
        Message::AppendReply { ballot, session: 3, through: Slot(10) },
        Message::Conflict(Conflict { ballot, session: 3, prev: Slot(8), hint: Slot(4), hint_ballot: ballot }),
        Message::Commit { ballot, through: Slot(8) },
        Message::Heartbeat { ballot, commit: Slot(8), round: 4, priority_max: 9 },
        Message::HeartbeatAck(HeartbeatAck { ballot, round: 4, decided: Slot(8), priority: 9 }),
        Message::Stale { term: 7 },
        Message::TimeoutNow { ballot },
        Message::Priority { priority: 9 },
        Message::Follow,
        Message::Round(Box::new(round(entry.clone(), None))),
        Message::Round(Box::new(round(entry.clone(), Some(status(Merge::Vector))))),
        Message::Round(Box::new(round(entry, Some(status(Merge::LowerIfNews))))),
        Message::RoundReply { ballot, number: 300, through: Slot(9) },
        Message::RoundConflict(RoundConflict {
            ballot,
            number: 300,
            prev: Slot(8),
            hint: Slot(4),
            hint_ballot: ballot,
        }),
        Message::VoteRound(Box::new(VoteRound {
            candidate: ReplicaId(3),
            term: 6,
            attempt: 2,
            rehearsal: true,
            transfer: false,
            last: Slot(9),
            last_ballot: ballot,
            granted: vec![ReplicaId(2), ReplicaId(3)],
        })),
        Message::Pull { ballot, hint: Slot(4), hint_ballot: ballot },
    ]
}

fn round(entry: Entry, status: Option<Status>) -> Round {
    let ballot = entry.ballot;
    let (prev, commit) = (Slot(8), Slot(8));
    Round { ballot, number: 300, beat: 7, prev, prev_ballot: ballot, entries: [entry].into(), commit, status }
}

fn status(merge: Merge) -> Status {
    let next = if merge == Merge::Vector { Slot::ZERO } else { Slot(300) };
    let known = |id, held, beat| MemberStatus { id: ReplicaId(id), held: Slot(held), beat };
    let members = match merge {
        Merge::Vector => vec![known(1, 0, 7), known(2, 300, 6), known(900, 9, 0)],
        _ => vec![known(1, 0, 7), known(2, 300, 6), known(900, 300, 0)],
    };
    Status { merge, commit: Slot(8), next, members }
}

#[test]
fn a_status_takes_few_bytes_and_what_no_replica_writes_is_refused() {
    let len = |status: &Status| {
        let mut writer = Writer::new();
        Some(status.clone()).write(&mut writer);
        writer.finish().len()
    };
    let of = |count: u64| {
        let known =
            |id| MemberStatus { id: ReplicaId(id), held: Slot(1_000 + id % 100), beat: 1_000_000 - id % 3 };
        let members = (1..=count).map(known).collect();
        Status { merge: Merge::Vector, commit: Slot(990), next: Slot::ZERO, members }
    };
    assert!(len(&of(125)) < 125 * 4, "{} bytes", len(&of(125)));
    assert!(len(&of(2 * MEMBERS_MAX as u64)) < crate::MESSAGE_HEAD_BYTES / 2);
    let reads = |status: Status| {
        let mut writer = Writer::new();
        Some(status.clone()).write(&mut writer);
        let read = <Option<Status>>::read(&mut Reader::new(writer.finish().to_bytes()), "status");
        read.map(|read| read == Some(status))
    };
    assert_eq!(reads(of(2 * MEMBERS_MAX as u64)), Ok(true));
    assert!(reads(of(2 * MEMBERS_MAX as u64 + 1)).is_err());
    let bitmap = Status { merge: Merge::Printed, next: Slot(991), ..of(0) };
    assert_eq!(reads(bitmap.clone()), Ok(true));
    assert!(reads(Status { next: Slot(990), ..bitmap }).is_err(), "what is voted for is not committed");
    assert!(reads(Status { next: Slot(991), ..of(3) }).is_err());
}

#[test]
fn a_round_speaks_of_no_slot_that_has_no_next_one() {
    let entry = Entry { ballot: Ballot::ZERO, batch: Batch::noop(), voters: None };
    let reads = |round: Round| {
        let message = crate::Message::Raft(Message::Round(Box::new(round)));
        let mut writer = Writer::new();
        message.encode(&mut writer);
        crate::Message::decode(&mut Reader::new(writer.finish().to_bytes())).is_ok()
    };
    for slot in [u64::MAX, u64::MAX - 1, u64::MAX - 2] {
        let plain = Round { commit: Slot(slot), ..round(entry.clone(), None) };
        let told = Status { commit: Slot(slot), members: Vec::new(), ..status(Merge::Vector) };
        let told = Round { status: Some(told), ..round(entry.clone(), None) };
        let held = MemberStatus { id: ReplicaId(1), held: Slot(slot), beat: 7 };
        let held = Status { members: vec![held], ..status(Merge::Vector) };
        let held = Round { status: Some(held), ..round(entry.clone(), None) };
        for round in [plain, told, held] {
            assert_eq!(reads(round.clone()), slot == u64::MAX - 2, "{round:?}");
        }
    }
}

#[test]
fn voters_weigh_what_they_take_in_a_message() {
    let ids = |count| (1..=count).map(ReplicaId).collect::<Vec<_>>();
    for (incoming, outgoing) in [(1, 0), (3, 0), (5, 4), (2, 7)] {
        let voters = VoterSets::joint(ids(incoming), ids(outgoing));
        let mut writer = Writer::new();
        Some(voters.clone()).write(&mut writer);
        // Whether there are voters is counted with the entry.
        let (len, size) = (writer.finish().len() - 1, voters_bytes(&voters));
        assert!(len <= size && size <= len + 8, "{voters:?}: {len} bytes, and {size} counted");
    }
}

#[test]
fn messages_survive_the_wire_and_no_truncation_decodes() {
    fixed::survive_the_wire_and_no_truncation_decodes(&messages());
}

fn records() -> Vec<Record> {
    let ballot = Ballot { round: 5, replica: ReplicaId(2) };
    let entry = Entry { ballot, batch: Batch::noop(), voters: Some(voters()) };
    let other = Entry { voters: None, ..entry.clone() };
    vec![
        Record::Term { term: 5, voted_for: Some(ReplicaId(3)) },
        Record::Term { term: 5, voted_for: None },
        Record::Entries {
            first: Slot(3),
            entries: [entry.clone(), other].into(),
            decided: Slot(2),
            decided_in: ballot,
        },
        Record::Truncated { from: Slot(3), last: Slot(9) },
        Record::Amnesia(true),
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
fn entries_without_slots_and_slots_without_entries_are_refused() {
    let entry = Entry { ballot: Ballot::ZERO, batch: Batch::noop(), voters: None };
    for (first, entries) in
        [(Slot(3), vec![]), (Slot(0), vec![entry.clone()]), (Slot(u64::MAX), vec![entry.clone(); 2])]
    {
        let decided_in = Ballot::ZERO;
        let record = Record::Entries { first, entries: entries.into(), decided: Slot(2), decided_in };
        let mut writer = Writer::new();
        record.encode(&mut writer);
        let decoded = Record::decode(&mut Reader::new(writer.finish().to_bytes()));
        assert!(matches!(decoded, Err(DecodeError::Undefined { .. })), "{decoded:?}");
    }
}

/// It counts only as a whole: of the other slots no peer said that they are decided.
#[test]
fn a_record_is_a_decision_if_its_last_entry_is_decided() {
    let entry = Entry { ballot: Ballot::ZERO, batch: Batch::noop(), voters: None };
    let record = |decided| Record::Entries {
        first: Slot(3),
        entries: [entry.clone(), entry.clone()].into(),
        decided: Slot(decided),
        decided_in: Ballot::ZERO,
    };
    assert_eq!([2, 3, 4].map(|decided| record(decided).is_decision()), [false, false, true]);
    assert_eq!(record(2).keep(), Keep::Slot(Slot(4)));
}

#[test]
fn a_term_that_no_group_gets_to_is_refused() {
    let is_read = |message: Message| {
        let mut writer = Writer::new();
        crate::Message::from(message).encode(&mut writer);
        crate::Message::decode(&mut Reader::new(writer.finish().to_bytes())).is_ok()
    };
    for (term, reads) in [(Ballot::ROUND_MAX, true), (Ballot::ROUND_MAX + 1, false), (u64::MAX, false)] {
        let ballot = Ballot { round: term, replica: ReplicaId(1) };
        assert_eq!(is_read(Message::Stale { term }), reads);
        assert_eq!(is_read(Message::Commit { ballot, through: Slot(1) }), reads);
        assert_eq!(is_read(Message::VoteReply { term, rehearsal: false, granted: false }), reads);
    }
}

//! What a replica concludes from its log when it starts.

use std::time::Duration;

use synod_consensus::{
    LeaderView, Options, ProtocolKind,
    multipaxos::Record,
    raft::{self, Message},
    ring, sequence_paxos,
};
use synod_replica::{
    Action, Change, ChangeRequest, Decided, Event, Group, History, Installed, LogRecord, PeerMessage,
    Recovered, Replica, Settings, SnapshotInfo,
};
use synod_wire::{
    Ballot, Ballots, Batch, BatchBuilder, CommandKind, Epoch, Incarnation, Lsn, ReplicaId, SessionId, Slot,
    Time,
};

const R1: ReplicaId = ReplicaId(1);

fn batch(text: &str) -> Batch {
    let mut builder = BatchBuilder::new();
    builder.push(SessionId(1), 1, 1, text.as_bytes());
    builder.finish()
}

/// A log with these records, and no snapshot.
fn recovered(records: Vec<LogRecord>) -> Recovered {
    Recovered {
        last_lsn: Lsn(records.len() as u64),
        records,
        snapshot: None,
        amnesia: false,
        birth: 1,
        incarnation: Incarnation(2),
        nonce: 0,
        met_all: true,
    }
}

/// What r1 executes at once when it starts from these records.
fn executed_from(group: Group, records: Vec<LogRecord>) -> Vec<(Slot, Batch)> {
    let mut actions = Vec::new();
    Replica::start(Settings::default(), R1, group, recovered(records), Time::ZERO, &mut actions);
    let executes = |action: Action| match action {
        Action::Execute { slot, batch, .. } => Some((slot, batch)),
        _ => None,
    };
    actions.into_iter().filter_map(executes).collect()
}

/// In epoch 1 of this log, the slots from 1 on hold what r1 proposed there.
fn accepted_from_slot_1(texts: &[&str]) -> LogRecord {
    let ballot = Ballot { round: 1, replica: R1 };
    let batches = texts.iter().map(|text| batch(text)).collect();
    let record = Record::Accepted { ballot, first: Slot(1), decided: Slot::ZERO, batches };
    LogRecord::Protocol { epoch: Epoch(1), record: record.into() }
}

/// What r1 executes at once if it had entered an epoch that begins with slot 2, and starts without a snapshot.
fn executed(after: Option<LogRecord>) -> Vec<Slot> {
    started(2, &["proposed by r1"], after).into_iter().map(|(slot, _)| slot).collect()
}

/// The same if r1 accepted these, and the epoch that it had entered begins with slot `first`.
fn started(first_slot: u64, texts: &[&str], after: Option<LogRecord>) -> Vec<(Slot, Batch)> {
    let first = Group::of(&Options::default(), [1, 2, 3].map(ReplicaId));
    let second = second_epoch(&first, Slot(first_slot));
    let mut records = vec![accepted_from_slot_1(texts)];
    records.extend(after);
    records.push(LogRecord::Entered { group: second, amnesia: false });
    executed_from(first, records)
}

/// What is executed at once if Raft accepted three entries in epoch 1, by one record, epoch 2 begins after
/// them, and these slots were learned to be decided otherwise in between.
fn executed_from_one_record(learned: &[u64]) -> Vec<(Slot, Batch)> {
    let first = Group::of(&Options::of(ProtocolKind::Raft), [1, 2, 3].map(ReplicaId));
    let second = second_epoch(&first, Slot(4));
    let ballot = |round| Ballot { round, replica: R1 };
    let accepted = |text| raft::Entry { ballot: ballot(1), batch: batch(text), voters: None };
    let entries = ["a", "b", "c"].map(accepted).into();
    let record =
        raft::Record::Entries { first: Slot(1), entries, decided: Slot::ZERO, decided_in: Ballot::ZERO }
            .into();
    let mut records = vec![
        LogRecord::Protocol { epoch: Epoch(1), record: raft::Record::Amnesia(false).into() },
        LogRecord::Protocol { epoch: Epoch(1), record },
        LogRecord::Entered { group: second, amnesia: false },
    ];
    let otherwise = |&slot| LogRecord::Learned {
        slot: Slot(slot),
        ballots: Ballots::both(ballot(2)),
        batch: batch("otherwise"),
    };
    records.extend(learned.iter().map(otherwise));
    executed_from(first, records)
}

/// The group in its second epoch, which begins with a slot.
fn second_epoch(first: &Group, begins: Slot) -> Group {
    let mut second = first.clone();
    (second.version, second.epoch, second.first) = (2, Epoch(2), begins);
    second
}

/// What the log holds of an epoch that is over was written before the epoch began in which something is missing.
#[test]
fn what_was_forgotten_in_the_present_epoch_says_nothing_of_the_one_before() {
    let first = Group::of(&Options::of(ProtocolKind::Raft), [1, 2, 3].map(ReplicaId));
    let second = second_epoch(&first, Slot(3));
    let ballot = Ballot { round: 1, replica: R1 };
    let accepted = |text| raft::Entry { ballot, batch: batch(text), voters: None };
    let entries = ["a", "b"].map(accepted).into();
    let accepted =
        raft::Record::Entries { first: Slot(1), entries, decided: Slot::ZERO, decided_in: Ballot::ZERO };
    let records = vec![
        LogRecord::Protocol { epoch: Epoch(1), record: raft::Record::Amnesia(false).into() },
        LogRecord::Protocol { epoch: Epoch(1), record: accepted.into() },
        LogRecord::Entered { group: second, amnesia: false },
        LogRecord::Protocol { epoch: Epoch(2), record: raft::Record::Amnesia(true).into() },
    ];
    assert_eq!(executed_from(first, records), [(Slot(1), batch("a")), (Slot(2), batch("b"))]);
}

/// The slots of the written records that say through which slot the log may forget.
fn trimmed(actions: &[Action]) -> Vec<Slot> {
    let slot_of = |action: &Action| match action {
        Action::Append { record: LogRecord::Trimmed(slot), .. } => Some(*slot),
        _ => None,
    };
    actions.iter().filter_map(slot_of).collect()
}

#[test]
fn what_an_epoch_that_is_over_left_in_the_log_was_decided() {
    assert_eq!(executed(None), [Slot(1)]);
}

#[test]
fn of_a_record_of_several_slots_those_that_were_learned_give_way_and_the_others_stay() {
    let learned = |slot| {
        let ballot = Ballot { round: 2, replica: ReplicaId(2) };
        Some(LogRecord::Learned { slot: Slot(slot), ballots: Ballots::both(ballot), batch: batch("decided") })
    };
    let all = |texts: [&str; 3]| -> Vec<(Slot, Batch)> { (1..).map(Slot).zip(texts.map(batch)).collect() };
    assert_eq!(started(4, &["a", "b", "c"], learned(3)), all(["a", "b", "decided"]));
    assert_eq!(started(4, &["a", "b", "c"], learned(2)), all(["a", "decided", "c"]));
}

#[test]
fn what_was_learned_counts_for_its_slot_and_the_rest_of_a_record_that_holds_it_for_its_own() {
    let all = [(Slot(1), batch("a")), (Slot(2), batch("b")), (Slot(3), batch("c"))];
    assert_eq!(executed_from_one_record(&[]), all);
    let otherwise = |slot| (Slot(slot), batch("otherwise"));
    let [a, b, _] = all;
    assert_eq!(executed_from_one_record(&[2, 3]), [a.clone(), otherwise(2), otherwise(3)]);
    assert_eq!(executed_from_one_record(&[3]), [a.clone(), b, otherwise(3)]);
    let cut = executed_from_one_record(&[2]);
    assert_eq!(cut, [a, otherwise(2)], "what stands after an entry that was replaced never was decided");
}

#[test]
fn a_snapshot_that_is_lost_may_have_held_something_else_than_the_log() {
    // A snapshot was installed that covered slot 1, where the other replicas had decided something else.
    assert_eq!(executed(Some(LogRecord::Trimmed(Slot(1)))), []);
}

#[test]
fn what_a_lost_snapshot_covered_stays_forgotten_when_an_older_one_takes_its_place() {
    let first = Group::of(&Options::default(), [1, 2, 3].map(ReplicaId));
    let recovered = recovered(vec![LogRecord::Trimmed(Slot(5))]);
    let mut actions = Vec::new();
    let now = Time::ZERO;
    let mut replica = Replica::start(Settings::default(), R1, first.clone(), recovered, now, &mut actions);
    let info = SnapshotInfo { slot: Slot(3), bytes: 1 };
    let ballot = Ballot { round: 1, replica: R1 };
    let older =
        Installed { info, ballots: Ballots::both(ballot), group: first, history: History::unknown(Slot(3)) };
    replica.step(now, Event::SnapshotInstalled(Some(Box::new(older))), &mut actions);
    assert_eq!(trimmed(&actions), [Slot(5)]);
    assert!(!replica.may_vote(), "slots 4 and 5 are still to come from others");
}

/// The replica's own epoch is silent, and of the later epoch it understands only that there is one.
#[test]
fn without_memory_in_an_epoch_that_is_over_a_replica_asks_for_all_that_its_peers_have() {
    let first = Group::of(&Options::of(ProtocolKind::Raft), [1, 2, 3].map(ReplicaId));
    let recovered = Recovered { amnesia: true, ..recovered(Vec::new()) };
    let (mut now, r2, mut actions) = (Time::ZERO, ReplicaId(2), Vec::new());
    let mut replica = Replica::start(Settings::default(), R1, first, recovered, now, &mut actions);
    let message = Message::Commit { ballot: Ballot { round: 1, replica: r2 }, through: Slot(100) }.into();
    let later = PeerMessage::Protocol { epoch: Epoch(2), message };
    let mut asked = |now, message| {
        let mut actions = Vec::new();
        replica.step(now, Event::Receive { from: r2, message }, &mut actions);
        replica.flush(now, &mut actions);
        replica.flush(now + Duration::from_secs(1), &mut actions);
        actions.into_iter().find_map(|action| match action {
            Action::Send { message: PeerMessage::Fetch { from, through }, .. } => Some((from, through)),
            _ => None,
        })
    };
    assert_eq!(asked(now, later), Some((Slot(1), Slot(1))), "one more at least");
    now += Duration::from_secs(1);
    let batches =
        vec![Decided { ballots: Ballots::both(Ballot { round: 1, replica: r2 }), batch: batch("a") }];
    let fetched = PeerMessage::Fetched { from: Slot(1), kept: Slot(1), decided: Slot(99), batches };
    let (from, through) = asked(now, fetched).expect("it asks on");
    assert!(from == Slot(2) && through > from, "{from}-{through}");
}

#[test]
fn a_start_writes_what_its_snapshot_covers_if_a_crash_came_before() {
    let group = Group::of(&Options::default(), [1, 2, 3].map(ReplicaId));
    let written = |records: Vec<LogRecord>| {
        let info = SnapshotInfo { slot: Slot(3), bytes: 1 };
        let installed = Installed {
            info,
            ballots: Ballots::both(Ballot { round: 1, replica: R1 }),
            group: group.clone(),
            history: History::unknown(info.slot),
        };
        let recovered = Recovered { snapshot: Some(installed), ..recovered(records) };
        let mut actions = Vec::new();
        Replica::start(Settings::default(), R1, group.clone(), recovered, Time::ZERO, &mut actions);
        trimmed(&actions)
    };
    assert_eq!(written(vec![LogRecord::Trimmed(Slot(2))]), [Slot(3)]);
    assert_eq!(written(vec![LogRecord::Trimmed(Slot(3))]), []);
}

#[test]
fn a_replica_that_is_ahead_is_not_taken_for_a_removed_one() {
    let group = Group::of(&Options::default(), [1, 2, 3].map(ReplicaId));
    let recovered = recovered(Vec::new());
    let (now, r7, mut actions) = (Time::ZERO, ReplicaId(7), Vec::new());
    let mut replica = Replica::start(Settings::default(), R1, group, recovered, now, &mut actions);
    let mut answered = |decided| {
        let view = LeaderView::default();
        let message = PeerMessage::Progress { epoch: Epoch(1), kept: Slot(1), decided, view, sought: false };
        let mut actions = Vec::new();
        replica.step(now, Event::Receive { from: r7, message }, &mut actions);
        let answer =
            |action: &Action| matches!(action, Action::Send { message: PeerMessage::Progress { .. }, .. });
        actions.iter().any(answer)
    };
    assert!(answered(Slot::ZERO), "removed, as far as this replica knows");
    // The sender may have joined since, and would answer a replica that lags, and so on.
    assert!(!answered(Slot(9)));
}

/// The log if an earlier life of r1 lost its log in epoch 1, where its protocol wrote whether it still had to
/// learn what it had said.
fn without_memory_in_epoch_1(first: &Group, states: &[bool]) -> Vec<LogRecord> {
    let mut records = vec![LogRecord::Entered { group: first.clone(), amnesia: true }];
    let protocol = first.protocol;
    records.extend(states.iter().map(|&lost| {
        let record = match protocol {
            ProtocolKind::MultiPaxos => Record::Amnesia(lost).into(),
            ProtocolKind::SequencePaxos => sequence_paxos::Record::Amnesia(lost).into(),
            ProtocolKind::Ring => ring::Record::Amnesia(lost).into(),
            _ => {
                assert_eq!(protocol, ProtocolKind::Raft);
                raft::Record::Amnesia(lost).into()
            }
        };
        LogRecord::Protocol { epoch: Epoch(1), record }
    }));
    records
}

/// Epoch 2, which begins with slot 2, as a snapshot of slot 3 brings it.
fn snapshot_of_epoch_2(first: &Group) -> Installed {
    let group = second_epoch(first, Slot(2));
    Installed {
        info: SnapshotInfo { slot: Slot(3), bytes: 1 },
        ballots: Ballots::both(Ballot { round: 1, replica: R1 }),
        group,
        history: History::unknown(Slot(3)),
    }
}

/// Whether the replica writes that it may have voted in epoch 2 and forgotten it.
fn says_it_forgot_epoch_2(actions: &[Action]) -> bool {
    let says = |action: &Action| match action {
        Action::Append { record: LogRecord::Entered { group, amnesia }, .. } if group.epoch == Epoch(2) => {
            Some(*amnesia)
        }
        _ => None,
    };
    actions.iter().find_map(says).expect("it enters epoch 2")
}

/// A life without memory installed a snapshot of a later epoch, in which a life before it may have voted, and
/// crashed before it wrote that it entered that epoch.
#[test]
fn amnesia_is_not_forgotten_after_a_snapshot_of_a_later_epoch() {
    for &(_, protocol) in ProtocolKind::ALL {
        let first = Group::of(&Options::of(protocol), [1, 2, 3].map(ReplicaId));
        for states in [&[][..], &[true]] {
            let records = without_memory_in_epoch_1(&first, states);
            let recovered = Recovered { snapshot: Some(snapshot_of_epoch_2(&first)), ..recovered(records) };
            let mut actions = Vec::new();
            let (settings, now) = (Settings::default(), Time::ZERO);
            let replica = Replica::start(settings, R1, first.clone(), recovered, now, &mut actions);
            assert!(says_it_forgot_epoch_2(&actions), "{protocol}, {states:?}");
            assert!(!replica.may_vote(), "{protocol}, {states:?}");
            let enters =
                |action: &Action| matches!(action, Action::Append { record: LogRecord::Entered { .. }, .. });
            let names = actions.iter().position(|action| matches!(action, Action::Group(_)));
            assert!(
                names.is_some() && names < actions.iter().position(enters),
                "{protocol}: members come first"
            );
        }
    }
}

/// The snapshot was lost as well, so the protocol does not run before another snapshot comes, which is of the
/// next epoch.
#[test]
fn amnesia_of_which_only_the_protocols_records_know_goes_on_to_the_next_epoch() {
    for &(_, protocol) in ProtocolKind::ALL {
        let first = Group::of(&Options::of(protocol), [1, 2, 3].map(ReplicaId));
        let mut records = without_memory_in_epoch_1(&first, &[true]);
        records.push(LogRecord::Trimmed(Slot(1)));
        let mut actions = Vec::new();
        let (settings, now) = (Settings::default(), Time::ZERO);
        let mut replica = Replica::start(settings, R1, first.clone(), recovered(records), now, &mut actions);
        actions.clear();
        replica.step(
            now,
            Event::SnapshotInstalled(Some(Box::new(snapshot_of_epoch_2(&first)))),
            &mut actions,
        );
        assert!(says_it_forgot_epoch_2(&actions), "{protocol}");
        assert!(!replica.may_vote(), "{protocol}");
    }
}

/// A life of r1 came to an epoch before it wrote that it entered it, by a snapshot or by learning the change
/// that led there.
#[test]
fn multipaxos_knows_in_the_next_epoch_what_it_has_learned_again() {
    let first = Group::of(&Options::default(), [1, 2, 3].map(ReplicaId));
    let change = Change::Readmit { id: ReplicaId(2), life: Incarnation(5), birth: None };
    let request = ChangeRequest { expected: first.version, change };
    let mut builder = BatchBuilder::new();
    builder.push_as(CommandKind::Reconfigure, SessionId(1), 1, 1, &request.encode().to_bytes());
    let (ballot, batch) = (Ballot { round: 1, replica: ReplicaId(2) }, builder.finish());
    let learned = LogRecord::Learned { slot: Slot(1), ballots: Ballots::both(ballot), batch };
    for (after, snapshot) in [(None, Some(snapshot_of_epoch_2(&first))), (Some(learned), None)] {
        let mut records = without_memory_in_epoch_1(&first, &[true, false]);
        records.extend(after);
        let recovered = Recovered { snapshot, ..recovered(records) };
        let mut actions = Vec::new();
        let (settings, now) = (Settings::default(), Time::ZERO);
        let replica = Replica::start(settings, R1, first.clone(), recovered, now, &mut actions);
        assert!(!says_it_forgot_epoch_2(&actions));
        assert!(replica.may_vote());
    }
}

/// Raft's term of an epoch that is over is gone from the log, and an entry tells only the term in which it
/// was proposed.
#[test]
fn a_restart_names_no_lower_ballot_for_decisions_of_an_earlier_epoch() {
    let ballot = |round| Ballot { round, replica: R1 };
    let first = Group::of(&Options::of(ProtocolKind::Raft), [1, 2, 3].map(ReplicaId));
    let second = second_epoch(&first, Slot(3));
    let accepted = |text| raft::Entry { ballot: ballot(1), batch: batch(text), voters: None };
    let entries = ["a", "b"].map(accepted).into();
    let record = raft::Record::Entries { first: Slot(1), entries, decided: Slot(1), decided_in: ballot(1) };
    let records = vec![
        LogRecord::Protocol { epoch: Epoch(1), record: raft::Record::Amnesia(false).into() },
        LogRecord::Protocol { epoch: Epoch(1), record: record.into() },
        LogRecord::Ended { slot: Slot(2), ballots: Ballots { proposed: ballot(1), decided: ballot(3) } },
        LogRecord::Entered { group: second, amnesia: false },
    ];
    let mut actions = Vec::new();
    Replica::start(Settings::default(), R1, first, recovered(records), Time::ZERO, &mut actions);
    let decided = actions.into_iter().filter_map(|action| match action {
        Action::Execute { slot, ballots, .. } => Some((slot, ballots.proposed, ballots.decided)),
        _ => None,
    });
    let expected = [(Slot(1), ballot(1), ballot(3)), (Slot(2), ballot(1), ballot(3))];
    assert_eq!(decided.collect::<Vec<_>>(), expected);
}

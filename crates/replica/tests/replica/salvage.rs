//! A replica whose log lacks records keeps what the rest proves, and asks for nothing else.

use std::collections::BTreeSet;

use synod_consensus::{Options, ProtocolKind, Role, multipaxos, raft, sequence_paxos};
use synod_replica::{
    Action, Change, ChangeRequest, Decided, Event, Group, LogRecord, PeerMessage, Recovered, Replica,
    Settings, salvage,
};
use synod_wire::{
    Ballot, Ballots, Batch, BatchBuilder, CommandKind, Epoch, Incarnation, Lsn, ReplicaId, SessionId, Slot,
    Time,
};

const R1: ReplicaId = ReplicaId(1);
const R2: ReplicaId = ReplicaId(2);
const R3: ReplicaId = ReplicaId(3);

fn ballot(round: u64) -> Ballot {
    Ballot { round, replica: R2 }
}

fn batch(text: &str) -> Batch {
    let mut builder = BatchBuilder::new();
    builder.push(SessionId(1), 1, 1, text.as_bytes());
    builder.finish()
}

fn group(protocol: ProtocolKind) -> Group {
    Group::of(&Options::of(protocol), [R1, R2, R3])
}

/// The record that a follower of ballot 1 writes when it hears of a slot, and that the slots through
/// `decided` are decided.
fn accepted(protocol: ProtocolKind, slot: u64, decided: u64) -> LogRecord {
    let (slot, decided, value) = (Slot(slot), Slot(decided), batch(&format!("{slot}")));
    let record = match protocol {
        ProtocolKind::MultiPaxos => {
            let batches = [value].into();
            multipaxos::Record::Accepted { ballot: ballot(1), first: slot, decided, batches }.into()
        }
        ProtocolKind::SequencePaxos => {
            let batches = [value].into();
            sequence_paxos::Record::Accepted { ballot: ballot(1), first: slot, decided, batches }.into()
        }
        _ => {
            assert_eq!(protocol, ProtocolKind::Raft);
            let entries = [raft::Entry { ballot: ballot(1), batch: value, voters: None }].into();
            raft::Record::Entries { first: slot, entries, decided, decided_in: ballot(1) }.into()
        }
    };
    LogRecord::Protocol { epoch: Epoch(1), record }
}

fn decided(epoch: u64, slot: u64, value: Batch) -> LogRecord {
    let ballots = Ballots::both(ballot(1));
    LogRecord::Decided { epoch: Epoch(epoch), slot: Slot(slot), ballots, batch: value }
}

fn slots(records: &[LogRecord]) -> Vec<u64> {
    let slot = |record: &LogRecord| match record {
        LogRecord::Decided { slot, .. } | LogRecord::Learned { slot, .. } => Some(slot.0),
        _ => None,
    };
    records.iter().filter_map(slot).collect()
}

const PROTOCOLS: [ProtocolKind; 3] =
    [ProtocolKind::MultiPaxos, ProtocolKind::SequencePaxos, ProtocolKind::Raft];

/// The log of a follower that heard of the slots one by one, without these records.
fn lacking(protocol: ProtocolKind, lost: &[u64]) -> Vec<(Lsn, LogRecord)> {
    let records = (1..=10).map(|slot| (Lsn(slot), accepted(protocol, slot, slot - 1)));
    records.filter(|(lsn, _)| !lost.contains(&lsn.0)).collect()
}

#[test]
fn what_the_rest_of_the_log_proves_is_kept() {
    for protocol in PROTOCOLS {
        let kept = |lost: &[u64]| slots(&salvage(lacking(protocol, lost), Slot::ZERO));
        // Record k says that slot k - 1 was decided; no record says it of slot 10.
        assert_eq!(kept(&[]), [1, 2, 3, 4, 5, 6, 7, 8, 9], "{protocol}");
        assert_eq!(kept(&[1]), [2, 3, 4, 5, 6, 7, 8, 9], "{protocol}");
        assert_eq!(kept(&[5]), [1, 2, 3, 6, 7, 8, 9], "{protocol}: record 5 may have replaced slot 4");
        assert_eq!(kept(&[3, 7]), [1, 4, 5, 8, 9], "{protocol}");
        assert_eq!(kept(&[10]), [1, 2, 3, 4, 5, 6, 7, 8], "{protocol}");
        assert_eq!(slots(&salvage(lacking(protocol, &[5]), Slot(6))), [7, 8, 9], "{protocol}: a snapshot");
    }
}

#[test]
fn a_snapshot_of_another_replica_may_hold_other_values_than_were_accepted() {
    for protocol in PROTOCOLS {
        let mut records = lacking(protocol, &[]);
        records.truncate(6);
        records.push((Lsn(7), LogRecord::Trimmed(Slot(6))));
        records.push((Lsn(8), accepted(protocol, 7, 6)));
        let kept = salvage(records, Slot::ZERO);
        assert_eq!(slots(&kept), [1, 2, 3, 4, 5], "{protocol}: only what was decided here before it came");
        assert!(kept.contains(&LogRecord::Trimmed(Slot(6))));
    }
}

#[test]
fn what_was_learned_what_was_kept_before_and_the_epoch_stay() {
    let mut group = group(ProtocolKind::Raft);
    (group.epoch, group.first) = (Epoch(2), Slot(3));
    let learned = LogRecord::Learned { slot: Slot(2), ballots: Ballots::both(ballot(1)), batch: batch("2") };
    let records = [
        (Lsn(3), decided(1, 1, batch("1"))),
        (Lsn(5), learned.clone()),
        (Lsn(9), LogRecord::Entered { group: group.clone(), amnesia: false }),
        (Lsn(10), decided(2, 4, batch("4"))),
    ];
    let kept = salvage(records, Slot::ZERO);
    let entered = LogRecord::Entered { group, amnesia: true };
    assert_eq!(kept, [entered, decided(1, 1, batch("1")), learned, decided(2, 4, batch("4"))]);
}

struct Run {
    replica: Replica,
    now: Time,
    asked: BTreeSet<(u64, u64)>,
    executed: Vec<(u64, Batch)>,
    written: Vec<LogRecord>,
}

impl Run {
    /// Starts r1 without memory from what it kept.
    fn start(group: Group, records: Vec<LogRecord>) -> Run {
        let recovered = Recovered {
            last_lsn: Lsn(records.len() as u64),
            records,
            snapshot: None,
            amnesia: true,
            birth: 1,
            incarnation: Incarnation(2),
            nonce: 0,
            met_all: true,
        };
        let mut actions = Vec::new();
        let replica = Replica::start(Settings::default(), R1, group, recovered, Time::ZERO, &mut actions);
        let (asked, executed, written) = (BTreeSet::new(), Vec::new(), Vec::new());
        let mut run = Run { replica, now: Time::ZERO, asked, executed, written };
        run.note(actions);
        run
    }

    fn note(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Send { message: PeerMessage::Fetch { from, through }, .. } => {
                    self.asked.insert((from.0, through.0));
                }
                Action::Execute { slot, batch, .. } => self.executed.push((slot.0, batch)),
                Action::Append { record, .. } => self.written.push(record),
                _ => {}
            }
        }
    }

    /// Has r2, which has decided through `last`, answer about slots from `from` on.
    fn answer(&mut self, from: u64, last: u64, batches: &[Batch]) {
        let decided = |batch: &Batch| Decided { ballots: Ballots::both(ballot(1)), batch: batch.clone() };
        let batches = batches.iter().map(decided).collect();
        let message = PeerMessage::Fetched { from: Slot(from), kept: Slot(1), decided: Slot(last), batches };
        let mut actions = Vec::new();
        self.replica.step(self.now, Event::Receive { from: R2, message }, &mut actions);
        self.replica.flush(self.now, &mut actions);
        self.note(actions);
    }

    /// Lets a second pass.
    fn wait(&mut self) {
        self.now += std::time::Duration::from_secs(1);
        let mut actions = Vec::new();
        self.replica.step(self.now, Event::Timer, &mut actions);
        self.replica.flush(self.now, &mut actions);
        self.note(actions);
    }

    fn executed(&self) -> Vec<u64> {
        self.executed.iter().map(|(slot, _)| *slot).collect()
    }
}

/// The rest is delivered from the replica's own log when what was missing has come; until then the protocol
/// does not run.
#[test]
fn only_what_is_missing_is_asked_for() {
    for protocol in PROTOCOLS {
        let kept = salvage(lacking(protocol, &[3, 7]), Slot::ZERO);
        let mut run = Run::start(group(protocol), kept);
        assert_eq!(run.executed(), [1], "{protocol}");
        assert_eq!(run.asked, BTreeSet::from([(2, 3), (6, 7)]), "{protocol}");
        assert_eq!(run.replica.status().protocol.role, Role::Recovering);
        let only_entered = |record: &LogRecord| matches!(record, LogRecord::Entered { amnesia: true, .. });
        assert!(run.written.iter().all(only_entered), "{protocol}: the protocol does not run");
        run.answer(6, 10, &[batch("6"), batch("7")]);
        assert_eq!(run.executed(), [1], "{protocol}: what is in front of it is still missing");
        run.answer(2, 10, &[batch("2"), batch("3")]);
        assert_eq!(run.executed(), [1, 2, 3, 4, 5, 6, 7, 8, 9], "{protocol}");
        let values: Vec<_> = run.executed.iter().map(|(_, value)| value.clone()).collect();
        assert_eq!(values, (1..=9).map(|slot| batch(&slot.to_string())).collect::<Vec<_>>());
        // What came from other replicas is written, and nothing is written a second time.
        assert_eq!(slots(&run.written), [2, 3, 6, 7], "{protocol}");
        let runs = |record: &LogRecord| matches!(record, LogRecord::Protocol { .. });
        assert!(run.written.iter().any(runs), "{protocol}: now it does");
        assert!(!run.replica.may_vote());
    }
}

/// The next start finds that what was learned meanwhile has closed the gaps.
#[test]
fn a_second_start_needs_nothing_again() {
    let mut records = salvage(lacking(ProtocolKind::MultiPaxos, &[3]), Slot::ZERO);
    let mut run = Run::start(group(ProtocolKind::MultiPaxos), records.clone());
    run.answer(2, 10, &[batch("2"), batch("3")]);
    records.append(&mut run.written);
    let again = Run::start(group(ProtocolKind::MultiPaxos), records);
    assert_eq!(again.executed(), [1, 2, 3, 4, 5, 6, 7, 8, 9]);
    assert_eq!(again.asked, BTreeSet::new());
}

/// An epoch may decide slots after its end. They are void, which shows only when the end is known.
#[test]
fn what_an_epoch_decided_after_its_end_is_not_taken() {
    let first = group(ProtocolKind::MultiPaxos);
    let request = ChangeRequest { expected: first.version, change: Change::Remove(R3) };
    let mut builder = BatchBuilder::new();
    builder.push_as(CommandKind::Reconfigure, SessionId(1), 1, 1, &request.encode().to_bytes());
    let end = builder.finish();
    let void = || vec![decided(1, 1, batch("1")), decided(1, 3, batch("void")), decided(1, 4, batch("void"))];

    let mut run = Run::start(first.clone(), void());
    assert_eq!((run.executed(), run.asked.clone()), (vec![1], BTreeSet::from([(2, 2)])));
    run.answer(2, 4, std::slice::from_ref(&end));
    assert_eq!(run.executed(), [1, 2]);
    // The protocol of the next epoch runs, so what is missing may come by itself at first.
    run.wait();
    assert!(run.asked.contains(&(3, 4)), "{:?}", run.asked);

    let records = [void(), vec![decided(2, 3, batch("3"))]].concat();
    let mut run = Run::start(first, records);
    run.answer(2, 4, &[end]);
    assert_eq!(run.executed(), [1, 2, 3]);
    assert_eq!(run.executed[2].1, batch("3"));
}

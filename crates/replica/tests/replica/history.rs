//! What a replica does about others that have decided something else.

use synod_consensus::Options;
use synod_replica::{
    Action, Event, Fork, Group, History, Installed, LogRecord, Mark, PeerMessage, Recovered, Replica,
    Settings, SnapshotInfo,
};
use synod_wire::{Ballot, Ballots, Batch, BatchBuilder, Incarnation, Lsn, ReplicaId, SessionId, Slot, Time};

const R1: ReplicaId = ReplicaId(1);
const R2: ReplicaId = ReplicaId(2);
const R3: ReplicaId = ReplicaId(3);
const BALLOT: Ballot = Ballot { round: 1, replica: R1 };
const BALLOTS: Ballots = Ballots { proposed: BALLOT, decided: BALLOT };

fn batch(text: &str) -> Batch {
    let mut builder = BatchBuilder::new();
    builder.push(SessionId(1), 1, 1, text.as_bytes());
    builder.finish()
}

/// The fingerprints of what these letters decided, one a slot.
fn marks(letters: &str) -> Vec<Mark> {
    let mut history = History::beginning();
    let mut marks = Vec::new();
    for (slot, letter) in (1..).map(Slot).zip(letters.chars()) {
        history.push(slot, &batch(&letter.to_string()));
        marks.insert(0, history.end());
    }
    marks
}

fn last(letters: &str) -> Vec<Mark> {
    marks(letters).into_iter().take(1).collect()
}

/// The recorded history of a replica that decided these.
fn noted(letters: &str) -> History {
    History::noted(Slot::ZERO, marks(letters)).unwrap()
}

fn started(voters: u64, snapshot: Option<Installed>, letters: &str) -> Replica {
    let first = snapshot.as_ref().map_or(1, |snapshot| snapshot.info.slot.0 + 1);
    let learned = |(slot, letter): (u64, char)| LogRecord::Learned {
        slot: Slot(slot),
        ballots: BALLOTS,
        batch: batch(&letter.to_string()),
    };
    let records: Vec<_> = (first..).zip(letters.chars()).map(learned).collect();
    let recovered = Recovered {
        last_lsn: Lsn(records.len() as u64),
        records,
        snapshot,
        amnesia: false,
        birth: 1,
        incarnation: Incarnation(2),
        nonce: 1,
        met_all: true,
    };
    let group = Group::of(&Options::default(), (1..=voters).map(ReplicaId));
    Replica::start(Settings::default(), R1, group, recovered, Time::ZERO, &mut Vec::new())
}

/// The replica r1 of this many voters, which has decided these.
fn replica(voters: u64, letters: &str) -> Replica {
    started(voters, None, letters)
}

fn hears(replica: &mut Replica, from: ReplicaId, message: PeerMessage) -> Vec<Action> {
    let mut actions = Vec::new();
    replica.step(Time::ZERO, Event::Receive { from, message }, &mut actions);
    actions
}

fn is_told(replica: &mut Replica, from: ReplicaId, marks: Vec<Mark>) -> Vec<Action> {
    hears(replica, from, PeerMessage::History { since: Slot::ZERO, marks })
}

fn forks(actions: &[Action]) -> Vec<Fork> {
    let fork = |action: &Action| if let Action::Forked(fork) = action { Some(*fork) } else { None };
    actions.iter().filter_map(fork).collect()
}

/// The fingerprints that a replica tells another.
fn told_to(actions: &[Action], id: ReplicaId) -> Option<Vec<Mark>> {
    actions.iter().find_map(|action| match action {
        Action::Send { to, message: PeerMessage::History { marks, .. }, .. } if to.includes(id) => {
            Some(marks.clone())
        }
        _ => None,
    })
}

/// Whether a question of a peer gets an answer.
fn is_answered(replica: &mut Replica, from: ReplicaId) -> bool {
    !hears(replica, from, PeerMessage::Fetch { from: Slot(1), through: Slot(9) }).is_empty()
}

#[test]
fn replicas_that_agree_are_heard_wherever_they_are() {
    let mut one = replica(3, "abc");
    for told in [last("ab"), marks("abcde"), last("abcde"), Vec::new()] {
        assert!(is_told(&mut one, R2, told).is_empty(), "nothing follows");
        assert!(is_answered(&mut one, R2));
    }
}

#[test]
fn a_replica_that_decided_something_else_is_not_heard_and_is_told_why() {
    let mut one = replica(3, "abc");
    let actions = is_told(&mut one, R2, marks("axyz"));
    let (ours, theirs) = (last("ab")[0].fingerprint, last("ax")[0].fingerprint);
    let fork = Fork { with: R2, agreed: Slot(1), slot: Slot(2), ours, theirs, alone: false };
    assert_eq!(forks(&actions), [fork]);
    let told = told_to(&actions, R2).expect("it may not know yet");
    assert!(told.contains(&last("ab")[0]), "the slot that it named, since it may lag: {told:?}");
    assert!(!is_answered(&mut one, R2) && is_answered(&mut one, R3));
    assert!(is_told(&mut one, R2, marks("axyz")).is_empty(), "that was said");
    assert_eq!(is_told(&mut one, R2, last("a")).len(), 1, "another life of it, which has less");
    assert!(is_answered(&mut one, R2));
}

#[test]
fn a_replica_that_differs_stays_unheard_whatever_both_had_before() {
    let mut one = replica(3, "abc");
    is_told(&mut one, R2, marks("abx"));
    // The other replica has gone on, and of what it tells now only an older slot is known here.
    let beside = marks("abxyz").into_iter().filter(|mark| mark.slot != Slot(3)).collect();
    assert!(is_told(&mut one, R2, beside).is_empty());
    assert!(!is_answered(&mut one, R2));
    let actions = is_told(&mut one, R2, marks("abcd"));
    assert!(matches!(actions[..], [Action::Agreed(R2)]), "it has learned again: {actions:?}");
    assert!(is_answered(&mut one, R2));
}

#[test]
fn a_replica_that_no_majority_agrees_with_is_alone() {
    for (voters, differing, alone) in
        [(2, 1, true), (3, 1, false), (3, 2, true), (4, 2, true), (5, 2, false), (5, 3, true)]
    {
        let mut one = replica(voters, "abc");
        let told = |id| forks(&is_told(&mut one, ReplicaId(id), marks("abx")));
        let last = (2..2 + differing).map(told).last().unwrap();
        assert_eq!(last[0].alone, alone, "{differing} of {voters} differ");
    }
}

#[test]
fn all_are_told_once_per_time_out_and_a_new_peer_at_once() {
    let mut one = replica(3, "abc");
    let mut actions = Vec::new();
    one.step(Time::ZERO, Event::Link { peer: R3, link: synod_consensus::Link::Up }, &mut actions);
    assert_eq!(told_to(&actions, R3).unwrap()[0], last("abc")[0]);
    let timeout = Settings::default().consensus.election_timeout;
    for (at, tells) in [(timeout / 2, false), (timeout, true), (timeout * 3 / 2, false), (timeout * 2, true)]
    {
        actions.clear();
        one.flush(Time::ZERO + at, &mut actions);
        for id in [R2, R3] {
            assert_eq!(told_to(&actions, id).is_some(), tells, "{id} after {at:?}");
        }
    }
}

#[test]
fn what_an_earlier_life_knew_is_told_and_stays() {
    let mut one = replica(3, "a");
    let mut actions = Vec::new();
    one.remember(noted("ab"), &mut actions);
    assert!(actions.is_empty() && one.reached().is_none());
    one.step(Time::ZERO, Event::Link { peer: R2, link: synod_consensus::Link::Up }, &mut actions);
    assert_eq!(told_to(&actions, R2).unwrap()[..2], marks("ab"));
    assert!(!forks(&is_told(&mut one, R2, marks("ax"))).is_empty(), "r2 decided something else there");

    // r2 starts as well, and its history ends at another slot: each tells a fingerprint that the other's history has.
    for (ours, theirs) in [("ab", "acd"), ("acd", "ab"), ("abbbbb", "acd")] {
        let (mut one, mut two) = (replica(3, ""), replica(3, ""));
        one.remember(noted(ours), &mut Vec::new());
        two.remember(noted(theirs), &mut Vec::new());
        let mut told = Vec::new();
        two.step(Time::ZERO, Event::Link { peer: R2, link: synod_consensus::Link::Up }, &mut told);
        let known = !forks(&is_told(&mut one, R2, told_to(&told, R2).unwrap())).is_empty();
        told.clear();
        one.step(Time::ZERO, Event::Link { peer: R2, link: synod_consensus::Link::Up }, &mut told);
        let knows = !forks(&is_told(&mut two, R2, told_to(&told, R2).unwrap())).is_empty();
        assert!(known || knows, "{ours} and {theirs}");
    }

    // It learns something else of r3 before it hears that.
    for (letter, differs) in [("x", true), ("b", false)] {
        let mut one = replica(3, "a");
        one.remember(noted("ab"), &mut Vec::new());
        let mut history = History::beginning();
        ["a", letter].iter().zip(1..).for_each(|(text, slot)| history.push(Slot(slot), &batch(text)));
        let group = Group::of(&Options::default(), [R1, R2, R3]);
        let info = SnapshotInfo { slot: Slot(2), bytes: 1 };
        let installed = Installed { info, ballots: BALLOTS, group, history };
        let mut actions = Vec::new();
        one.step(Time::ZERO, Event::SnapshotInstalled(Some(Box::new(installed))), &mut actions);
        let alone = forks(&actions).iter().any(|fork| fork.with == R1 && fork.alone);
        assert_eq!((alone, one.reached().is_none()), (differs, differs));
    }
}

#[test]
fn a_snapshot_brings_the_history_that_it_covers() {
    let mut history = History::beginning();
    for (slot, text) in [(1, "a"), (2, "b")] {
        history.push(Slot(slot), &batch(text));
    }
    let group = Group::of(&Options::default(), [R1, R2, R3]);
    let info = SnapshotInfo { slot: Slot(2), bytes: 1 };
    let installed = Installed { info, ballots: BALLOTS, group, history };
    let mut one = started(3, Some(installed.clone()), "c");
    assert_eq!(one.history().end(), last("abc")[0]);
    assert!(!forks(&is_told(&mut one, R2, last("ax"))).is_empty(), "also before the snapshot");

    let mut lagging = replica(3, "a");
    let mut actions = Vec::new();
    lagging.step(Time::ZERO, Event::SnapshotInstalled(Some(Box::new(installed))), &mut actions);
    assert_eq!(lagging.history().end(), last("ab")[0]);
}

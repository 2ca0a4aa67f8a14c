//! One replica at a time, stepped by hand: what it says, and what must be durable first. `scenarios/` and the
//! simulator check how replicas behave together.

#[path = "driftwood/tests.rs"]
mod driftwood;
mod moving;
mod voters;

use std::time::Duration;

use synod_wire::{Ballot, Ballots, Batch, BatchBuilder, Incarnation, Lsn, ReplicaId, SessionId, Slot, Time};

use super::{Conflict, Entry, HeartbeatAck, Message, Record, Tuning};
use crate::{
    Control, Effect, Effects, Input, Members, Options, Protocol, ProtocolKind, ReadToken, Restart, Role,
    VoterSets,
};

const R1: ReplicaId = ReplicaId(1);
const R2: ReplicaId = ReplicaId(2);
const R3: ReplicaId = ReplicaId(3);
const R4: ReplicaId = ReplicaId(4);
const T: Duration = Duration::from_millis(1000);

fn ballot(round: u64, replica: ReplicaId) -> Ballot {
    Ballot { round, replica }
}

fn batch(text: &str) -> Batch {
    let mut builder = BatchBuilder::new();
    builder.push(SessionId(1), 1, 1, text.as_bytes());
    builder.finish()
}

fn entry(round: u64, replica: ReplicaId, text: &str) -> Entry {
    Entry { ballot: ballot(round, replica), batch: batch(text), voters: None }
}

struct One {
    protocol: Box<dyn Protocol>,
    effects: Effects,
    now: Time,
}

impl One {
    fn start(members: Members, options: &Options, records: Vec<Record>, amnesia: bool) -> One {
        let mut effects = Effects::new(Lsn(records.len() as u64));
        let records = records.into_iter().map(crate::Record::from).collect();
        let restart = Restart { records, amnesia, ..Restart::first(Incarnation(7)) };
        let options = Options { protocol: ProtocolKind::Raft, ..options.clone() };
        let protocol = options.start(members, restart, Time::ZERO, &mut effects);
        One { protocol, effects, now: Time::ZERO }
    }

    fn new(me: ReplicaId) -> One {
        One::with(me, &Options::default())
    }

    fn with(me: ReplicaId, options: &Options) -> One {
        let mut one = One::start(Members::new([R1, R2, R3], me), options, Vec::new(), false);
        one.effects.drain();
        one
    }

    fn restarted(me: ReplicaId, records: Vec<Record>) -> (One, Vec<Effect>) {
        let mut one = One::start(Members::new([R1, R2, R3], me), &Options::default(), records, false);
        let effects = one.effects.drain().collect();
        (one, effects)
    }

    fn step(&mut self, input: Input) -> Vec<Effect> {
        self.protocol.step(self.now, input, &mut self.effects);
        self.protocol.flush(self.now, &mut self.effects);
        self.effects.drain().filter(|effect| !matches!(effect, Effect::Deadline(_))).collect()
    }

    fn receive(&mut self, from: ReplicaId, message: Message) -> Vec<Effect> {
        self.step(Input::Receive { from, message: message.into() })
    }

    fn durable(&mut self) -> Vec<Effect> {
        self.step(Input::Durable(self.effects.last_lsn()))
    }

    fn wait(&mut self, wait: Duration) -> Vec<Effect> {
        self.now += wait;
        self.step(Input::Timer)
    }

    fn propose(&mut self, text: &str) -> Vec<Effect> {
        self.step(Input::Propose { batch: batch(text), awaited: true })
    }

    fn role(&self) -> Role {
        self.protocol.status().role
    }

    /// Makes r1 lead term 1, with its no-op committed in slot 1 and both followers in a pipeline.
    fn elected() -> One {
        One::elected_with(&Options::default())
    }

    fn elected_with(options: &Options) -> One {
        let mut one = One::with(R1, options);
        one.wait(T);
        one.receive(R2, Message::VoteReply { term: 1, rehearsal: true, granted: true });
        one.durable();
        one.receive(R2, Message::VoteReply { term: 1, rehearsal: false, granted: true });
        assert_eq!(one.role(), Role::Leader);
        one.durable();
        one.matched(R2, 1, 1);
        one.matched(R3, 2, 1);
        assert_eq!(one.protocol.status().decided, Slot(1));
        one
    }

    /// Has a follower of r1 acknowledge through a slot. Trackings are numbered in the order of replicas.
    fn matched(&mut self, from: ReplicaId, session: u64, through: u64) -> Vec<Effect> {
        let ballot = self.protocol.status().view.ballot;
        self.receive(from, Message::AppendReply { ballot, session, through: Slot(through) })
    }
}

fn simple(voters: &[ReplicaId]) -> VoterSets {
    VoterSets::simple(voters.to_vec())
}

fn vote(term: u64, last: u64, last_ballot: Ballot) -> Message {
    Message::Vote { term, rehearsal: false, transfer: false, last: Slot(last), last_ballot }
}

fn append(leader: Ballot, prev: u64, prev_ballot: Ballot, entries: Vec<Entry>, commit: u64) -> Message {
    let (prev, commit) = (Slot(prev), Slot(commit));
    Message::Append { ballot: leader, session: 1, prev, prev_ballot, entries: entries.into(), commit }
}

fn sent(effects: &[Effect], whom: ReplicaId) -> Vec<(Message, Lsn)> {
    let of = |effect: &Effect| match effect {
        Effect::Send { to, message: crate::Message::Raft(message), after } if to.includes(whom) => {
            Some((message.clone(), *after))
        }
        _ => None,
    };
    effects.iter().filter_map(of).collect()
}

fn delivered(effects: &[Effect]) -> Vec<(u64, Batch)> {
    let of = |effect: &Effect| match effect {
        Effect::Deliver { slot, batch, .. } => Some((slot.0, batch.clone())),
        _ => None,
    };
    effects.iter().filter_map(of).collect()
}

fn appended(effects: &[Effect], wanted: impl Fn(&Record) -> bool) -> Lsn {
    let of = |effect: &Effect| match effect {
        Effect::Append { lsn, record: crate::Record::Raft(record) } if wanted(record) => Some(*lsn),
        _ => None,
    };
    effects.iter().find_map(of).expect("the record is appended")
}

fn granted(effects: &[Effect], whom: ReplicaId) -> Option<(bool, Lsn)> {
    sent(effects, whom).into_iter().find_map(|(message, after)| match message {
        Message::VoteReply { granted, .. } => Some((granted, after)),
        _ => None,
    })
}

#[test]
fn a_vote_is_given_once_a_term_and_told_when_it_is_durable() {
    let mut voter = One::new(R3);
    let effects = voter.receive(R1, vote(1, 0, Ballot::ZERO));
    let record = appended(&effects, |record| *record == Record::Term { term: 1, voted_for: Some(R1) });
    assert_eq!(granted(&effects, R1), Some((true, record)));
    assert_eq!(granted(&voter.receive(R2, vote(1, 9, ballot(1, R1))), R2).map(|it| it.0), Some(false));
    assert_eq!(
        granted(&voter.receive(R1, vote(1, 0, Ballot::ZERO)), R1).map(|it| it.0),
        Some(true),
        "asked again"
    );
}

#[test]
fn a_vote_is_remembered_across_a_restart() {
    let records = vec![Record::Amnesia(false), Record::Term { term: 4, voted_for: Some(R1) }];
    let (mut voter, _) = One::restarted(R3, records);
    assert_eq!(granted(&voter.receive(R2, vote(4, 9, ballot(3, R2))), R2).map(|it| it.0), Some(false));
    let stale = voter.receive(R2, vote(3, 9, ballot(3, R2)));
    assert!(matches!(sent(&stale, R2)[..], [(Message::Stale { term: 4 }, _)]));
}

/// E25: logs are compared by the last entry's term first, then by length; not "both at least as large".
#[test]
fn logs_are_compared_by_their_last_term_and_then_by_length() {
    let records = vec![
        Record::Amnesia(false),
        Record::Term { term: 3, voted_for: None },
        Record::Entries {
            first: Slot(1),
            entries: [entry(1, R1, "a")].into(),
            decided: Slot::ZERO,
            decided_in: Ballot::ZERO,
        },
        Record::Entries {
            first: Slot(2),
            entries: [entry(3, R1, "b")].into(),
            decided: Slot::ZERO,
            decided_in: Ballot::ZERO,
        },
    ];
    for (last, round, expected) in [(9, 2, false), (1, 3, false), (2, 3, true), (1, 4, true)] {
        let (mut voter, _) = One::restarted(R3, records.clone());
        let effects = voter.receive(R2, vote(5, last, ballot(round, R1)));
        assert_eq!(granted(&effects, R2).map(|it| it.0), Some(expected), "slot {last} in term {round}");
    }
}

#[test]
fn a_voter_that_hears_a_leader_votes_for_no_other_unless_the_leader_wishes() {
    let mut follower = One::new(R3);
    follower.receive(R1, append(ballot(1, R1), 0, Ballot::ZERO, vec![], 0));
    assert!(
        follower.receive(R2, vote(9, 9, ballot(8, R2))).is_empty(),
        "a removed or parted replica disturbs"
    );
    let Message::Vote { last, last_ballot, .. } = vote(2, 9, ballot(1, R1)) else { unreachable!() };
    let wished = Message::Vote { term: 2, rehearsal: false, transfer: true, last, last_ballot };
    assert_eq!(granted(&follower.receive(R2, wished), R2).map(|it| it.0), Some(true));
}

#[test]
fn a_rehearsal_changes_nothing() {
    let mut voter = One::new(R3);
    let Message::Vote { term, transfer, last, last_ballot, .. } = vote(1, 0, Ballot::ZERO) else {
        unreachable!()
    };
    let rehearsal = Message::Vote { term, rehearsal: true, transfer, last, last_ballot };
    let effects = voter.receive(R1, rehearsal);
    assert_eq!(granted(&effects, R1).map(|it| it.0), Some(true));
    assert!(!effects.iter().any(|effect| matches!(effect, Effect::Append { .. })));
    assert_eq!(granted(&voter.receive(R2, vote(1, 0, Ballot::ZERO)), R2).map(|it| it.0), Some(true));
}

/// When a replica of a new group tries to lead, if nothing happens before.
fn first_try(one: &mut One, input: Input) -> Duration {
    one.protocol.step(one.now, input, &mut one.effects);
    one.protocol.flush(one.now, &mut one.effects);
    let deadline = one.effects.drain().find_map(|effect| match effect {
        Effect::Deadline(at) => Some(at),
        _ => None,
    });
    deadline.expect("its time-out begins again").since(one.now)
}

#[test]
fn in_a_first_election_those_with_a_priority_say_so_and_the_others_let_them_go_first() {
    let options = Options { priority: 2, ..Options::default() };
    let mut first = One::start(Members::new([R1, R2, R3], R2), &options, Vec::new(), false);
    let priority = crate::Message::from(Message::Priority { priority: 2 });
    let told = |effects: Vec<Effect>| {
        let to = |effect| match effect {
            Effect::Send { to, message, .. } if message == priority => to.ids().to_vec(),
            _ => Vec::new(),
        };
        effects.into_iter().flat_map(to).collect::<Vec<_>>()
    };
    assert_eq!(told(first.effects.drain().collect()), [R1, R3]);
    assert_eq!(
        told(first.step(Input::Link { peer: R3, link: crate::Link::Up })),
        [R3],
        "it may have come later"
    );

    let mut other = One::new(R1);
    let message = crate::Message::from(Message::Priority { priority: 2 });
    let hears = Input::Receive { from: R2, message };
    assert!(first_try(&mut other, hears.clone()) >= T * 5 / 8);
    assert!(
        first.wait(T / 2).iter().any(|effect| matches!(effect, Effect::Send { .. })),
        "it rehearses by then"
    );

    let mut led = One::elected();
    led.step(hears);
    assert_eq!(led.role(), Role::Leader, "later priorities are for the next election");
}

#[test]
fn entries_are_acknowledged_when_they_are_durable_and_repeats_are_answered_again() {
    let mut follower = One::new(R2);
    let message = append(ballot(1, R1), 0, Ballot::ZERO, vec![entry(1, R1, "x")], 0);
    let effects = follower.receive(R1, message.clone());
    let record = appended(&effects, |record| matches!(record, Record::Entries { .. }));
    let reply = Message::AppendReply { ballot: ballot(1, R1), session: 1, through: Slot(1) };
    assert_eq!(sent(&effects, R1), [(reply.clone(), record)]);
    let effects = follower.receive(R1, message);
    assert_eq!(sent(&effects, R1), [(reply, record)], "no second record");
}

/// E27: a delayed append must not remove what was appended, and acknowledged, after it.
#[test]
fn a_late_append_removes_nothing() {
    let mut follower = One::new(R2);
    let entries = vec![entry(1, R1, "a"), entry(1, R1, "b"), entry(1, R1, "c")];
    follower.receive(R1, append(ballot(1, R1), 0, Ballot::ZERO, entries.clone(), 0));
    let late = append(ballot(1, R1), 0, Ballot::ZERO, entries[..1].to_vec(), 0);
    let effects = follower.receive(R1, late);
    assert!(!effects.iter().any(|effect| matches!(effect, Effect::Append { .. })), "{effects:?}");
    let effects = follower.receive(R1, append(ballot(1, R1), 3, ballot(1, R1), vec![], 3));
    assert_eq!(delivered(&effects).len(), 3);
}

#[test]
fn what_is_in_conflict_is_replaced_and_the_records_say_so() {
    let mut follower = One::new(R2);
    follower
        .receive(R1, append(ballot(1, R1), 0, Ballot::ZERO, vec![entry(1, R1, "a"), entry(1, R1, "b")], 0));
    let effects = follower.receive(R3, append(ballot(2, R3), 1, ballot(1, R1), vec![entry(2, R3, "c")], 0));
    let cut = appended(&effects, |record| *record == Record::Truncated { from: Slot(2), last: Slot(2) });
    let new = appended(&effects, |record| matches!(record, Record::Entries { first: Slot(2), .. }));
    assert!(cut < new, "torn between them, the log is only shorter");
    let effects = follower.receive(R3, append(ballot(2, R3), 2, ballot(2, R3), vec![], 2));
    assert_eq!(delivered(&effects), [(1, batch("a")), (2, batch("c"))]);
}

#[test]
fn a_conflict_skips_a_whole_term() {
    let mut follower = One::new(R2);
    let entries = vec![entry(1, R1, "a"), entry(2, R1, "b"), entry(2, R1, "c"), entry(2, R1, "d")];
    follower.receive(R1, append(ballot(2, R1), 0, Ballot::ZERO, entries, 0));
    let effects = follower.receive(R3, append(ballot(4, R3), 4, ballot(3, R3), vec![], 0));
    let [(Message::Conflict(Conflict { hint, hint_ballot, .. }), _)] = &sent(&effects, R3)[..] else {
        panic!("{effects:?}")
    };
    assert_eq!((*hint, *hint_ballot), (Slot(1), ballot(1, R1)));
}

#[test]
fn a_commit_index_covers_only_what_is_known_to_be_the_leaders() {
    let mut follower = One::new(R2);
    follower.receive(R1, append(ballot(1, R1), 0, Ballot::ZERO, vec![entry(1, R1, "old")], 0));
    let effects = follower.receive(R3, Message::Commit { ballot: ballot(2, R3), through: Slot(1) });
    assert!(delivered(&effects).is_empty(), "term 2 may have another entry there");
    assert_eq!(follower.protocol.status().decided_elsewhere, Slot(1));
}

#[test]
fn a_decided_entry_that_differs_replaces_the_rest_of_the_log() {
    let mut follower = One::new(R2);
    follower
        .receive(R1, append(ballot(1, R1), 0, Ballot::ZERO, vec![entry(1, R1, "a"), entry(1, R1, "b")], 0));
    let decided = Control::Learn {
        slot: Slot(1),
        ballots: Ballots::both(ballot(2, R3)),
        batch: batch("c"),
        voters: None,
    };
    let effects = follower.step(Input::Control(decided));
    assert_eq!(delivered(&effects), [(1, batch("c"))]);
    let stale = follower.receive(R1, append(ballot(1, R1), 2, ballot(1, R1), vec![entry(1, R1, "d")], 0));
    assert!(matches!(sent(&stale, R1)[..], [(Message::Stale { term: 2 }, _)]), "term 2 decided something");
}

/// E28, figure 8 of the Raft paper: an entry of an old term that a majority holds may still be replaced.
#[test]
fn only_entries_of_the_own_term_are_counted() {
    let records = vec![
        Record::Amnesia(false),
        Record::Term { term: 2, voted_for: Some(R1) },
        Record::Entries {
            first: Slot(1),
            entries: [entry(2, R1, "old")].into(),
            decided: Slot::ZERO,
            decided_in: Ballot::ZERO,
        },
    ];
    let (mut leader, _) = One::restarted(R1, records);
    leader.wait(T * 2);
    leader.receive(R2, Message::VoteReply { term: 3, rehearsal: true, granted: true });
    leader.durable();
    leader.receive(R2, Message::VoteReply { term: 3, rehearsal: false, granted: true });
    leader.durable();
    assert!(delivered(&leader.matched(R2, 1, 1)).is_empty(), "a majority has slot 1");
    let effects = leader.matched(R2, 1, 2);
    assert_eq!(delivered(&effects), [(1, batch("old")), (2, Batch::noop())], "with one of term 3 after it");
}

#[test]
fn the_leaders_own_log_counts_once_it_is_durable() {
    let mut leader = One::elected();
    let effects = leader.propose("x");
    let [(Message::Append { prev, entries, .. }, after)] = &sent(&effects, R2)[..] else {
        panic!("{effects:?}")
    };
    assert_eq!((*prev, entries.len(), *after), (Slot(1), 1, Lsn::ZERO), "at once");
    assert!(delivered(&leader.matched(R2, 1, 2)).is_empty());
    assert_eq!(delivered(&leader.durable()), [(2, batch("x"))]);
    leader.propose("y");
    leader.matched(R2, 1, 3);
    assert_eq!(delivered(&leader.matched(R3, 2, 3)), [(3, batch("y"))], "a quorum without the leader's disk");
}

#[test]
fn entries_that_wait_leave_together() {
    let raft = Tuning { inflight_max: 1, ..Tuning::default() };
    let options = Options { raft, ..Options::default() };
    let mut leader = One::elected();
    let mut other = One::start(Members::new([R1, R2, R3], R1), &options, Vec::new(), false);
    std::mem::swap(&mut leader.protocol, &mut other.protocol);
    leader.effects = Effects::new(other.effects.last_lsn());
    leader.now = Time::ZERO;
    leader.wait(T);
    leader.receive(R2, Message::VoteReply { term: 1, rehearsal: true, granted: true });
    leader.durable();
    leader.receive(R2, Message::VoteReply { term: 1, rehearsal: false, granted: true });
    leader.matched(R2, 1, 1);
    assert_eq!(sent(&leader.propose("a"), R2).len(), 1);
    for text in ["b", "c", "d"] {
        assert!(sent(&leader.propose(text), R2).is_empty(), "one message at a time");
    }
    let effects = leader.matched(R2, 1, 2);
    let [(Message::Append { entries, .. }, _)] = &sent(&effects, R2)[..] else { panic!("{effects:?}") };
    assert_eq!(entries.len(), 3);
}

fn records(effects: &[Effect]) -> Vec<&Record> {
    fn of(effect: &Effect) -> Option<&Record> {
        if let Effect::Append { record: crate::Record::Raft(record), .. } = effect {
            Some(record)
        } else {
            None
        }
    }
    effects.iter().filter_map(of).collect()
}

#[test]
fn a_burst_is_one_record_which_shares_its_entries_with_the_messages() {
    let mut leader = One::elected();
    for text in ["a", "b", "c"] {
        let input = Input::Propose { batch: batch(text), awaited: false };
        leader.protocol.step(leader.now, input, &mut leader.effects);
    }
    assert_eq!(leader.protocol.status().in_flight, 3);
    leader.protocol.flush(leader.now, &mut leader.effects);
    let effects: Vec<_> = leader.effects.drain().collect();
    let [Record::Entries { first: Slot(2), entries, decided: Slot(1), .. }] = records(&effects)[..] else {
        panic!("{effects:?}")
    };
    assert_eq!(entries.len(), 3);
    for follower in [R2, R3] {
        let [(Message::Append { entries: told, .. }, Lsn::ZERO)] = &sent(&effects, follower)[..] else {
            panic!("{effects:?}")
        };
        assert!(std::sync::Arc::ptr_eq(told, entries));
    }
    assert!(delivered(&leader.matched(R2, 1, 4)).is_empty(), "one follower, and the record is not durable");
    assert_eq!(delivered(&leader.durable()).len(), 3);
}

#[test]
fn a_burst_that_is_larger_than_a_message_is_several_records() {
    let mut leader = One::elected();
    let large = "x".repeat(400 << 10);
    for _ in 0..5 {
        let input = Input::Propose { batch: batch(&large), awaited: false };
        leader.protocol.step(leader.now, input, &mut leader.effects);
    }
    leader.protocol.flush(leader.now, &mut leader.effects);
    let effects: Vec<_> = leader.effects.drain().collect();
    let len = |record: &&Record| if let Record::Entries { entries, .. } = record { entries.len() } else { 0 };
    assert_eq!(records(&effects).iter().map(len).collect::<Vec<_>>(), [2, 2, 1], "1 MiB each");
}

/// A burst that ends with something else does not lose what it began, either.
#[test]
fn what_a_leader_proposed_is_written_before_what_ends_its_term() {
    let mut leader = One::elected();
    let input = Input::Propose { batch: batch("a"), awaited: false };
    leader.protocol.step(leader.now, input, &mut leader.effects);
    let entries = vec![entry(2, R3, "b"), entry(2, R3, "c")];
    let effects = leader.receive(R3, append(ballot(2, R3), 1, ballot(1, R1), entries, 1));
    let [
        Record::Entries { first: Slot(2), .. },
        Record::Term { term: 2, .. },
        Record::Truncated { from: Slot(2), last: Slot(2) },
        Record::Entries { first: Slot(2), entries, .. },
    ] = &records(&effects)[..]
    else {
        panic!("{effects:?}")
    };
    assert_eq!(entries.len(), 2);
}

#[test]
fn of_a_message_only_what_is_new_is_written() {
    let mut follower = One::new(R2);
    let entries = vec![entry(1, R1, "a"), entry(1, R1, "b"), entry(1, R1, "c")];
    follower.receive(R1, append(ballot(1, R1), 0, Ballot::ZERO, entries[..2].to_vec(), 0));
    let effects = follower.receive(R1, append(ballot(1, R1), 0, Ballot::ZERO, entries.clone(), 0));
    let [Record::Entries { first: Slot(3), entries: new, .. }] = records(&effects)[..] else {
        panic!("{effects:?}")
    };
    assert_eq!(new[..], entries[2..]);
    let effects = follower.receive(R1, append(ballot(1, R1), 3, ballot(1, R1), vec![], 3));
    assert_eq!(delivered(&effects).len(), 3);
}

#[test]
fn without_answers_a_leader_sends_again_and_then_steps_down() {
    let mut leader = One::elected();
    leader.propose("x");
    let again = leader.wait(Options::default().retransmit_after);
    let resent = |(message, _): &(Message, Lsn)| matches!(message, Message::Append { prev: Slot(1), .. });
    assert!(sent(&again, R2).iter().any(resent), "{again:?}");
    leader.step(Input::Control(Control::ReadIndex(ReadToken(5))));
    let effects = leader.wait(T * 2);
    assert!(effects.iter().any(|effect| matches!(effect, Effect::ReadIndex { slot: None, .. })));
    assert_eq!((leader.role(), leader.protocol.room()), (Role::Follower, 0));
}

#[test]
fn a_leader_that_does_not_check_its_quorum_leads_on_and_confirms_no_read() {
    let mut options = Options::default();
    options.raft.check_quorum = false;
    let mut leader = One::elected_with(&options);
    leader.propose("x");
    leader.durable();
    leader.step(Input::Control(Control::ReadIndex(ReadToken(5))));
    let silent = (0..40).flat_map(|_| leader.wait(T / 4)).collect::<Vec<_>>();
    assert!(!silent.iter().any(|effect| matches!(effect, Effect::ReadIndex { .. })), "{silent:?}");
    assert_eq!((leader.role(), leader.protocol.status().decided), (Role::Leader, Slot(1)));
    leader.matched(R2, 1, 2);
    assert_eq!(leader.protocol.status().decided, Slot(2));
}

#[test]
fn a_leader_that_slept_gives_up_before_it_does_anything_else() {
    let mut leader = One::elected();
    leader.now += Duration::from_secs(900);
    let effects = leader.step(Input::Control(Control::ReadIndex(ReadToken(1))));
    assert_eq!(leader.role(), Role::Follower);
    let refused = |effect: &Effect| matches!(effect, Effect::ReadIndex { slot: None, .. });
    assert!(effects.iter().any(refused), "{effects:?}");
}

#[test]
fn a_read_waits_for_a_quorum_and_for_the_start_of_the_term() {
    let mut leader = One::elected();
    let effects = leader.step(Input::Control(Control::ReadIndex(ReadToken(5))));
    // The first heartbeat was not answered yet, and an answer to it proves nothing about the current time.
    assert!(!effects.iter().any(|effect| matches!(effect, Effect::ReadIndex { .. })));
    let ack = |round| {
        Message::HeartbeatAck(HeartbeatAck { ballot: ballot(1, R1), round, decided: Slot(1), priority: 0 })
    };
    let effects = leader.receive(R2, ack(1));
    assert!(!effects.iter().any(|effect| matches!(effect, Effect::ReadIndex { .. })));
    assert!(
        sent(&effects, R2).iter().any(|(message, _)| matches!(message, Message::Heartbeat { round: 2, .. }))
    );
    let effects = leader.receive(R3, ack(2));
    assert!(effects.iter().any(|effect| matches!(effect, Effect::ReadIndex { slot: Some(Slot(1)), .. })));
}

#[test]
fn a_leader_whose_disk_does_not_answer_steps_down() {
    let mut leader = One::elected();
    leader.propose("x");
    for _ in 0..11 {
        leader.now += Duration::from_millis(100);
        leader.matched(R2, 1, 2);
        leader.matched(R3, 2, 2);
        leader.step(Input::Timer);
    }
    assert_eq!(leader.role(), Role::Follower);
}

#[test]
fn a_transfer_that_fails_lets_the_leader_go_on() {
    let mut leader = One::elected();
    leader.propose("x");
    leader.durable();
    leader.matched(R2, 1, 2);
    let effects = leader.step(Input::Control(Control::Transfer(R3)));
    assert!(sent(&effects, R3).is_empty(), "it lacks slot 2");
    assert_eq!(leader.protocol.room(), 0, "nothing is proposed meanwhile");
    let effects = leader.matched(R3, 2, 2);
    assert!(sent(&effects, R3).iter().any(|(message, _)| matches!(message, Message::TimeoutNow { .. })));
    leader.now += T;
    leader.matched(R2, 1, 2);
    leader.step(Input::Timer);
    assert_eq!(leader.role(), Role::Leader);
    assert!(leader.protocol.room() > 0, "the target did not take over");
}

#[test]
fn asked_to_lead_a_follower_does_not_rehearse() {
    let mut follower = One::new(R2);
    follower.receive(R1, append(ballot(1, R1), 0, Ballot::ZERO, vec![entry(1, R1, "a")], 0));
    let effects = follower.receive(R1, Message::TimeoutNow { ballot: ballot(1, R1) });
    let asked = sent(&effects, R3);
    let [(Message::Vote { term: 2, rehearsal: false, transfer: true, .. }, after)] = &asked[..] else {
        panic!("{asked:?}")
    };
    assert!(*after > Lsn::ZERO, "its own vote first");
}

#[test]
fn answers_to_an_earlier_tracking_of_a_replica_mean_nothing() {
    let mut leader = One::elected();
    leader.propose("x");
    leader.durable();
    let effects = leader.matched(R2, 77, 2);
    assert!(delivered(&effects).is_empty(), "not this tracking");
    assert_eq!(delivered(&leader.matched(R2, 1, 2)), [(2, batch("x"))]);
}

#[test]
fn a_restart_delivers_what_was_decided() {
    let records = vec![
        Record::Amnesia(false),
        Record::Term { term: 1, voted_for: None },
        Record::Entries {
            first: Slot(1),
            entries: [entry(1, R1, "a")].into(),
            decided: Slot::ZERO,
            decided_in: Ballot::ZERO,
        },
        Record::Entries {
            first: Slot(2),
            entries: [entry(1, R1, "lost")].into(),
            decided: Slot::ZERO,
            decided_in: Ballot::ZERO,
        },
        Record::Truncated { from: Slot(2), last: Slot(2) },
        Record::Entries {
            first: Slot(2),
            entries: [entry(2, R3, "b")].into(),
            decided: Slot(1),
            decided_in: Ballot::ZERO,
        },
    ];
    let (mut one, effects) = One::restarted(R2, records);
    assert_eq!(delivered(&effects), [(1, batch("a"))]);
    let effects = one.receive(R3, append(ballot(2, R3), 2, ballot(2, R3), vec![], 2));
    assert_eq!(delivered(&effects), [(2, batch("b"))]);
}

/// What was decided came as a snapshot while the protocol did not run.
#[test]
fn a_restart_gives_up_what_stands_after_an_entry_that_was_replaced() {
    let record = |slot, text| Record::Entries {
        first: Slot(slot),
        entries: [entry(1, R2, text)].into(),
        decided: Slot(1),
        decided_in: Ballot::ZERO,
    };
    let records =
        [Record::Amnesia(false), Record::Term { term: 1, voted_for: None }, record(2, "x"), record(3, "y")];
    let start = |base_ballot| {
        let mut effects = Effects::new(Lsn(records.len() as u64));
        let restart = Restart {
            records: records.iter().cloned().map(crate::Record::from).collect(),
            base: Slot(2),
            base_ballots: Ballots::both(base_ballot),
            decided: Slot(2),
            ..Restart::first(Incarnation(7))
        };
        let options = Options { protocol: ProtocolKind::Raft, ..Options::default() };
        let protocol = options.start(Members::new([R1, R2, R3], R2), restart, Time::ZERO, &mut effects);
        let appended = effects.drain().filter_map(|effect| match effect {
            Effect::Append { record: crate::Record::Raft(record), .. } => Some(record),
            _ => None,
        });
        let appended: Vec<Record> = appended.collect();
        let mut one = One { protocol, effects, now: Time::ZERO };
        let asked = one.receive(R3, append(ballot(3, R3), 3, ballot(1, R2), vec![], 0));
        let holds =
            sent(&asked, R3).iter().any(|(message, _)| matches!(message, Message::AppendReply { .. }));
        (appended, holds)
    };
    assert_eq!(start(ballot(1, R2)), (vec![], true), "it continues the log");
    let (appended, holds) = start(ballot(2, R3));
    assert!(!holds);
    let truncated = Record::Truncated { from: Slot(2), last: Slot(3) };
    assert_eq!(appended, [truncated, Record::Term { term: 2, voted_for: None }]);
}

#[test]
fn a_survivor_decides_alone_what_it_accepted_whatever_its_log_says_of_voters() {
    let four = Some(simple(&[R1, R2, R3, R4]));
    let records = [
        Record::Amnesia(false),
        Record::Term { term: 1, voted_for: Some(R1) },
        Record::Entries {
            first: Slot(1),
            entries: [entry(1, R1, "a")].into(),
            decided: Slot::ZERO,
            decided_in: Ballot::ZERO,
        },
        Record::Entries {
            first: Slot(2),
            entries: [Entry { voters: four, ..entry(1, R1, "b") }].into(),
            decided: Slot(1),
            decided_in: Ballot::ZERO,
        },
    ];
    let start = |records: Vec<Record>| {
        let mut one = One::start(Members::new([R1], R1), &Options::default(), records, false);
        let mut effects: Vec<_> = one.effects.drain().collect();
        for _ in 0..4 {
            effects.extend(one.wait(T * 2));
            // The first is the vote for itself, the second the no-op of the term.
            effects.extend(one.durable());
            effects.extend(one.durable());
        }
        delivered(&effects).into_iter().map(|(slot, _)| slot).collect::<Vec<_>>()
    };
    assert_eq!(start(records.to_vec()), [1], "it waits for the others");
    let alone = |record: Record| match crate::Record::from(record).without_voters() {
        crate::Record::Raft(record) => record,
        other => unreachable!("it stays a record of Raft: {other:?}"),
    };
    let alone = records.into_iter().map(alone).collect();
    assert_eq!(start(alone), [1, 2, 3], "what it knew, what it accepted, and the no-op of its term");
}

#[test]
fn without_its_log_a_replica_only_learns_in_this_life_and_later_ones() {
    let members = || Members::new([R1, R2, R3], R3);
    let mut one = One::start(members(), &Options::default(), Vec::new(), true);
    let record =
        appended(&one.effects.drain().collect::<Vec<_>>(), |record| *record == Record::Amnesia(true));
    assert!(record > Lsn::ZERO);
    assert!(one.receive(R1, vote(1, 0, Ballot::ZERO)).is_empty());
    let effects = one.receive(R1, append(ballot(1, R1), 0, Ballot::ZERO, vec![entry(1, R1, "x")], 1));
    assert!(sent(&effects, R1).is_empty());
    assert_eq!(one.protocol.status().decided_elsewhere, Slot(1));
    let learn = Control::Learn {
        slot: Slot(1),
        ballots: Ballots::both(ballot(1, R1)),
        batch: batch("x"),
        voters: None,
    };
    assert_eq!(delivered(&one.step(Input::Control(learn))), [(1, batch("x"))]);
    let later = One::start(members(), &Options::default(), vec![Record::Amnesia(true)], false);
    assert_eq!(later.role(), Role::Recovering);
}

#[test]
fn a_follower_whose_disk_hangs_takes_in_only_so_much() {
    let mut follower = One::new(R2);
    for slot in 1..10_000 {
        let prev = if slot == 1 { Ballot::ZERO } else { ballot(1, R1) };
        follower.receive(R1, append(ballot(1, R1), slot - 1, prev, vec![entry(1, R1, "x")], slot - 1));
    }
    assert!(follower.effects.last_lsn() < Lsn(1000), "{}", follower.effects.last_lsn());

    // This holds however many entries a message has.
    let mut follower = One::new(R2);
    let mut taken = 0;
    for prev in (0..10_000).step_by(100) {
        let prev_ballot = if prev == 0 { Ballot::ZERO } else { ballot(1, R1) };
        let entries = vec![entry(1, R1, "x"); 100];
        let effects = follower.receive(R1, append(ballot(1, R1), prev, prev_ballot, entries, prev));
        for record in records(&effects) {
            if let Record::Entries { entries, .. } = record {
                taken += entries.len();
            }
        }
    }
    assert!(taken > 100 && taken < 1000, "{taken}");
}

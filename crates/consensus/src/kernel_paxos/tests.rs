//! One replica at a time, stepped by hand; and three of them whose messages are lost, doubled and reordered
//! (`model.rs`).

mod model;

use std::time::Duration;

use synod_wire::{Ballot, Ballots, Batch, BatchBuilder, Incarnation, Lsn, ReplicaId, SessionId, Slot, Time};

use super::{AcceptedValue, Bug, Message, Preparation, Promise, Record, Tuning};
use crate::{
    Control, Effect, Effects, ElectionKind, Input, Members, Options, Protocol, ProtocolKind, ReadToken,
    Restart, Role, election::Message as Election,
};

const R1: ReplicaId = ReplicaId(1);
const R2: ReplicaId = ReplicaId(2);
const R3: ReplicaId = ReplicaId(3);

fn ballot(round: u64) -> Ballot {
    Ballot { round, replica: ReplicaId((round - 1) % 3 + 1) }
}

fn batch(text: &str) -> Batch {
    let mut builder = BatchBuilder::new();
    builder.push(SessionId(1), 1, 1, text.as_bytes());
    builder.finish()
}

fn value(slot: u64, round: u64, text: &str) -> AcceptedValue {
    AcceptedValue { slot: Slot(slot), ballot: ballot(round), batch: batch(text) }
}

/// Options under which ballots are easily known in advance.
fn options() -> Options {
    Options { election: ElectionKind::Rotating, ..Options::of(ProtocolKind::KernelPaxos) }
}

fn with(prepare: Preparation) -> Options {
    Options { kernel_paxos: Tuning { prepare }, window_max: 4, ..options() }
}

fn planted(bug: Bug) -> Options {
    Options { planted: Some(bug.into()), ..options() }
}

struct One {
    protocol: Box<dyn Protocol>,
    effects: Effects,
    now: Time,
}

impl One {
    fn start(me: ReplicaId, options: &Options, records: Vec<Record>, amnesia: bool) -> One {
        let mut effects = Effects::new(Lsn(records.len() as u64));
        let records = records.into_iter().map(crate::Record::from).collect();
        let restart = Restart { records, amnesia, ..Restart::first(Incarnation(7)) };
        let protocol = options.start(Members::new([R1, R2, R3], me), restart, Time::ZERO, &mut effects);
        One { protocol, effects, now: Time::ZERO }
    }

    fn of(me: ReplicaId, options: &Options) -> One {
        let mut one = One::start(me, options, Vec::new(), false);
        one.effects.drain();
        one
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

    /// Lets time pass. If this replica asks whether it may try to lead, another one is willing.
    fn wait(&mut self, milliseconds: u64) -> Vec<Effect> {
        self.now += Duration::from_millis(milliseconds);
        let mut effects = self.step(Input::Timer);
        let asked = effects.iter().find_map(|effect| match effect {
            Effect::Send { to, message: crate::Message::Election(Election::Rehearse { ballot }), .. } => {
                Some((to.ids()[0], *ballot))
            }
            _ => None,
        });
        if let Some((from, ballot)) = asked {
            let message = Election::RehearseReply { ballot, willing: true, highest: Ballot::ZERO }.into();
            effects.extend(self.step(Input::Receive { from, message }));
        }
        effects
    }

    fn propose(&mut self, text: &str) -> Vec<Effect> {
        self.step(Input::Propose { batch: batch(text), awaited: true })
    }

    /// Lets it hear that slots through `decided` are decided, and ask about them from slot `first` on.
    fn miss(&mut self, first: u64, decided: u64) {
        self.receive(R1, Message::Heartbeat { ballot: ballot(1), decided: Slot(decided), round: 1 });
        self.durable();
        let effects = [self.wait(90), self.wait(20)].concat();
        assert!(messages(&effects, R2).contains(&repeat(first)), "{effects:?}");
    }

    /// r1, which leads in its first ballot: nothing was accepted before.
    fn elected(options: &Options) -> One {
        let mut one = One::of(R1, options);
        one.wait(1000);
        one.durable();
        one.receive(R2, promise_all(1, 0, 0));
        assert_eq!(one.protocol.status().role, Role::Leader);
        one
    }
}

fn promise_all(round: u64, decided: u64, touched: u64) -> Message {
    Message::PromiseAll { ballot: ballot(round), decided: Slot(decided), touched: Slot(touched) }
}

fn prepare(round: u64, slot: u64) -> Message {
    Message::Prepare { ballot: ballot(round), slot: Slot(slot) }
}

fn promise(round: u64, slot: u64, accepted: Vec<AcceptedValue>) -> Message {
    Message::Promise(Promise { ballot: ballot(round), slot: Slot(slot), decided: Slot::ZERO, accepted })
}

fn accept(round: u64, slot: u64, text: &str) -> Message {
    accept_of(round, slot, batch(text))
}

fn accept_of(round: u64, slot: u64, proposed: Batch) -> Message {
    Message::Accept { ballot: ballot(round), slot: Slot(slot), further: None, decided: Slot::ZERO, proposed }
}

fn accepted(round: u64, slot: u64) -> Message {
    Message::Accepted { ballot: ballot(round), slot: Slot(slot), further: None }
}

fn repeat(slot: u64) -> Message {
    Message::Repeat { slot: Slot(slot) }
}

/// The messages that are sent to a replica, each with the record that must be durable first.
fn sent(effects: &[Effect], whom: ReplicaId) -> Vec<(Message, Lsn)> {
    let of = |effect: &Effect| match effect {
        Effect::Send { to, message: crate::Message::KernelPaxos(message), after } if to.includes(whom) => {
            Some((message.clone(), *after))
        }
        _ => None,
    };
    effects.iter().filter_map(of).collect()
}

fn messages(effects: &[Effect], whom: ReplicaId) -> Vec<Message> {
    sent(effects, whom).into_iter().map(|(message, _)| message).collect()
}

fn delivered(effects: &[Effect]) -> Vec<(u64, Batch)> {
    let of = |effect: &Effect| match effect {
        Effect::Deliver { slot, batch, .. } => Some((slot.0, batch.clone())),
        _ => None,
    };
    effects.iter().filter_map(of).collect()
}

/// The number of the record in these effects that `wanted` accepts.
fn appended(effects: &[Effect], wanted: impl Fn(&Record) -> bool) -> Lsn {
    let of = |effect: &Effect| match effect {
        Effect::Append { lsn, record: crate::Record::KernelPaxos(record) } if wanted(record) => Some(*lsn),
        _ => None,
    };
    effects.iter().find_map(of).expect("the record is appended")
}

#[test]
fn ballots_and_promises_are_durable_before_anybody_hears_of_them() {
    let mut candidate = One::of(R1, &options());
    let effects = candidate.wait(1000);
    let record = appended(&effects, |record| *record == Record::Promised(ballot(1)));
    let asks = Message::PrepareAll { ballot: ballot(1), from: Slot(1) };
    assert_eq!(sent(&effects, R2), [(asks.clone(), record)]);
    let mut hasty = One::of(R1, &planted(Bug::PrepareBeforeDurable));
    assert_eq!(sent(&hasty.wait(1000), R2), [(asks.clone(), Lsn::ZERO)]);

    let mut acceptor = One::of(R2, &options());
    let effects = acceptor.receive(R1, asks);
    let record = appended(&effects, |record| *record == Record::Promised(ballot(1)));
    assert_eq!(sent(&effects, R1), [(promise_all(1, 0, 0), record)]);
    let forged = acceptor.receive(R1, prepare(5, 1));
    assert!(forged.is_empty(), "only its owner speaks in a ballot");
}

/// A peer that is out of its mind makes nobody ask for slots that no acceptor holds, and none is read without end.
#[test]
fn a_candidate_heeds_no_promise_that_no_acceptor_could_give() {
    let ahead = options().accept_ahead_max();
    let furthest = 5 * (ahead + 1);
    for touched in [furthest, furthest + 1, u64::MAX - 1] {
        let mut candidate = One::of(R1, &options());
        candidate.wait(1000);
        candidate.durable();
        let asked = messages(&candidate.receive(R2, promise_all(1, 0, touched)), R2);
        assert_eq!(asked.len(), if touched == furthest { 16 } else { 0 }, "{touched}");
        candidate.receive(R3, promise_all(1, 0, 0));
        assert_eq!(candidate.protocol.status().role, Role::Leader, "a quorum is sane");
    }
}

/// What is told without having been asked for is not kept, and of each acceptor one vote is.
#[test]
fn what_a_learner_keeps_of_tellings_does_not_grow() {
    let told = |slot, round, text| Message::Told { promised: ballot(round), value: value(slot, round, text) };
    let mut learner = One::of(R3, &options());
    learner.miss(1, 12);
    for slot in [11, 12, 13] {
        assert!(learner.receive(R1, told(slot, 1, "a")).is_empty());
        assert!(learner.receive(R2, told(slot, 1, "a")).is_empty(), "slot {slot} was not asked about");
    }
    for round in 1..1000 {
        learner.receive(R1, told(1, round, "a"));
    }
    assert!(delivered(&learner.receive(R2, told(1, 500, "b"))).is_empty(), "r1 has voted again since");
    assert_eq!(delivered(&learner.receive(R2, told(1, 999, "a"))), [(1, batch("a"))]);
}

/// A decision without a ballot says nothing: an acceptor could not be made of it after a restart.
#[test]
fn what_was_decided_in_no_ballot_is_not_learned() {
    let mut learner = One::of(R3, &options());
    let learn = |proposed| {
        let ballots = Ballots { proposed, decided: ballot(1) };
        Input::Control(Control::Learn { slot: Slot(2), ballots, batch: batch("a"), voters: None })
    };
    let learned = |effects: &[Effect]| {
        let is_it = |effect: &&Effect| {
            matches!(effect, Effect::Append { record: crate::Record::KernelPaxos(Record::Learned(_)), .. })
        };
        effects.iter().filter(is_it).count()
    };
    assert_eq!(learned(&learner.step(learn(Ballot::ZERO))), 0);
    assert_eq!(learned(&learner.step(learn(ballot(1)))), 1);
}

#[test]
fn a_vote_goes_to_all_after_its_record_and_is_given_again_without_another() {
    let mut acceptor = One::of(R2, &options());
    let effects = acceptor.receive(R1, accept(1, 1, "x"));
    let record = appended(&effects, |record| matches!(record, Record::Accepted { .. }));
    for whom in [R1, R3] {
        assert_eq!(sent(&effects, whom), [(accepted(1, 1), record)]);
    }
    let again = acceptor.receive(R1, accept(1, 1, "x"));
    assert_eq!(sent(&again, R3), [(accepted(1, 1), record)]);
    assert!(!again.iter().any(|effect| matches!(effect, Effect::Append { .. })));
    acceptor.receive(R2, accept(1, 1, "y"));
    let effects = acceptor.receive(R2, prepare(2, 1));
    assert!(effects.is_empty(), "nothing comes from oneself");
    acceptor.receive(R3, Message::PrepareAll { ballot: ballot(3), from: Slot(1) });
    let refused = acceptor.receive(R1, accept(1, 2, "x"));
    assert_eq!(messages(&refused, R1), [Message::Reject { promised: ballot(3) }]);
}

/// Every replica is a learner (K5), and delivers in the order of slots (K6).
#[test]
fn each_replica_counts_votes_and_delivers_in_order() {
    let mut learner = One::of(R3, &options());
    learner.receive(R1, accept(1, 1, "a"));
    learner.receive(R1, accept(1, 2, "b"));
    learner.durable();
    assert!(delivered(&learner.receive(R1, accepted(1, 2))).is_empty(), "slot 1 is not decided");
    let both = [(1, batch("a")), (2, batch("b"))];
    assert_eq!(delivered(&learner.receive(R2, accepted(1, 1))), both);
    // A vote may come before the proposal.
    learner.receive(R1, accepted(1, 3));
    learner.receive(R2, accepted(1, 3));
    assert!(delivered(&learner.receive(R1, accept(1, 3, "c"))).is_empty());
    assert_eq!(delivered(&learner.durable()), [(3, batch("c"))]);
}

#[test]
fn the_leader_proposes_at_once_and_its_vote_counts_when_durable() {
    let mut leader = One::elected(&options());
    let effects = leader.propose("x");
    assert_eq!(sent(&effects, R2)[0], (accept(1, 1, "x"), Lsn::ZERO));
    assert!(delivered(&leader.receive(R2, accepted(1, 1))).is_empty());
    assert_eq!(delivered(&leader.durable()), [(1, batch("x"))]);
}

/// Section 4.6: one promise of all slots, then each slot that an acceptor has touched.
#[test]
fn a_new_leader_reads_what_was_touched_and_takes_the_value_of_the_highest_ballot() {
    let mut candidate = One::of(R3, &options());
    candidate.receive(R2, accept(2, 3, "old"));
    candidate.durable();
    while candidate.protocol.status().role != Role::Candidate {
        candidate.wait(1000);
    }
    candidate.durable();
    let round = candidate.protocol.promised().round;
    let effects = candidate.receive(R1, promise_all(round, 0, 20));
    let asked: Vec<Message> = (1..=16).map(|slot| prepare(round, slot)).collect();
    assert_eq!(messages(&effects, R1), asked, "not everything at a time");
    for slot in 1..=20 {
        let told = match slot {
            1 => vec![value(1, 2, "adopted")],
            // Its own vote is of a higher ballot.
            3 => vec![value(3, 1, "lower")],
            _ => vec![],
        };
        let effects = candidate.receive(R1, promise(round, slot, told));
        if slot <= 4 {
            assert_eq!(messages(&effects, R1), [prepare(round, slot + 16)]);
        }
        assert!(candidate.receive(R1, promise(round, slot, vec![])).is_empty(), "it was told already");
        if slot < 20 {
            assert_eq!(candidate.protocol.status().role, Role::Candidate);
            continue;
        }
        let proposed = messages(&effects, R1);
        let values =
            [accept(round, 1, "adopted"), accept_of(round, 2, Batch::noop()), accept(round, 3, "old")];
        assert!(values.iter().all(|value| proposed.contains(value)), "{proposed:?}");
        assert_eq!(proposed.iter().filter(|message| matches!(message, Message::Accept { .. })).count(), 3);
    }
    assert_eq!(candidate.protocol.status().role, Role::Leader);
}

/// With the planted bug a candidate takes the value of the lower of two ballots, of which the higher one is its own.
#[test]
fn of_two_values_that_of_the_higher_ballot_is_proposed_again() {
    let proposes = |options: &Options| {
        let mut candidate = One::of(R3, options);
        candidate.receive(R2, accept(2, 1, "higher"));
        candidate.durable();
        while candidate.protocol.status().role != Role::Candidate {
            candidate.wait(1000);
        }
        candidate.durable();
        let round = candidate.protocol.promised().round;
        candidate.receive(R1, promise_all(round, 0, 1));
        let effects = candidate.receive(R1, promise(round, 1, vec![value(1, 1, "lower")]));
        let proposed = |value| messages(&effects, R1).contains(&accept(round, 1, value));
        (proposed("higher"), proposed("lower"))
    };
    assert_eq!(proposes(&options()), (true, false));
    assert_eq!(proposes(&planted(Bug::AdoptLowestBallot)), (false, true));
}

/// E13: what was accepted is told by its ballot. With the planted bug a filled gap is told as an empty slot.
#[test]
fn a_gap_that_was_filled_is_told_as_a_value() {
    let told = |options: &Options| {
        let mut acceptor = One::of(R2, options);
        acceptor.receive(R1, accept_of(1, 1, Batch::noop()));
        acceptor.receive(R3, Message::PrepareAll { ballot: ballot(3), from: Slot(1) });
        messages(&acceptor.receive(R3, prepare(3, 1)), R3)
    };
    let noop = AcceptedValue { slot: Slot(1), ballot: ballot(1), batch: Batch::noop() };
    assert_eq!(told(&options()), [promise(3, 1, vec![noop])]);
    assert_eq!(told(&planted(Bug::EmptyIsNothing)), [promise(3, 1, vec![])]);
}

/// E11: an acceptor forgets what is delivered, and nothing else.
#[test]
fn what_is_not_delivered_is_told_however_much_was_decided_after_it() {
    let told = |options: &Options| {
        let mut acceptor = One::of(R2, options);
        for slot in [1, 2, 3] {
            acceptor.receive(R1, accept(1, slot, "x"));
        }
        acceptor.durable();
        acceptor.receive(R3, accepted(1, 1));
        acceptor.receive(R3, accepted(1, 3));
        assert_eq!(acceptor.protocol.status().decided, Slot(1));
        acceptor.receive(R3, Message::PrepareAll { ballot: ballot(3), from: Slot(2) });
        let told = messages(&acceptor.receive(R3, prepare(3, 2)), R3);
        let [Message::Promise(promise)] = &told[..] else { panic!("{told:?}") };
        (promise.decided, promise.accepted.clone())
    };
    assert_eq!(told(&options()), (Slot(1), vec![value(2, 1, "x")]));
    assert_eq!(told(&planted(Bug::ForgetUndelivered)), (Slot(1), vec![]));
}

/// K11: first the votes are asked for again, late and a few at a time, and no ballot is touched.
#[test]
fn a_learner_asks_again_for_what_it_misses_and_a_quorum_of_one_ballot_decides() {
    let mut learner = One::of(R3, &options());
    let heartbeat = Message::Heartbeat { ballot: ballot(1), decided: Slot(30), round: 1 };
    learner.receive(R1, heartbeat);
    learner.durable();
    assert!(messages(&learner.wait(90), R2).is_empty(), "not at once");
    let asked = messages(&learner.wait(20), R2);
    assert_eq!(asked, (1..=10).map(repeat).collect::<Vec<_>>());
    assert!(messages(&learner.wait(20), R2).is_empty(), "and not all the time");
    let told = |round, text| Message::Told { promised: ballot(4), value: value(1, round, text) };
    assert!(delivered(&learner.receive(R1, told(1, "a"))).is_empty());
    assert!(delivered(&learner.receive(R1, told(1, "a"))).is_empty(), "one acceptor has one vote");
    assert!(delivered(&learner.receive(R2, told(2, "b"))).is_empty(), "another ballot");
    let effects = learner.receive(R1, told(2, "b"));
    assert_eq!(delivered(&effects), [(1, batch("b"))]);
    appended(&effects, |record| *record == Record::Learned(value(1, 2, "b")));
    assert_eq!(learner.protocol.promised(), ballot(2));
}

/// E12: the two acceptors have promised the same ballot since, and never voted for the same value.
#[test]
fn votes_that_are_told_again_count_in_the_ballot_of_the_value() {
    let learns = |options: &Options| {
        let mut learner = One::of(R3, options);
        learner.miss(1, 1);
        let told = |round, text| Message::Told { promised: ballot(4), value: value(1, round, text) };
        learner.receive(R1, told(1, "a"));
        delivered(&learner.receive(R2, told(2, "b")))
    };
    assert!(learns(&options()).is_empty());
    assert_eq!(learns(&planted(Bug::CountByPromise)), [(1, batch("b"))], "which nobody chose");
}

#[test]
fn an_acceptor_tells_again_what_it_accepted_with_its_ballot_once_that_is_durable() {
    let mut acceptor = One::of(R2, &options());
    assert!(acceptor.receive(R3, repeat(1)).is_empty(), "it accepted nothing");
    let effects = acceptor.receive(R1, accept(1, 1, "x"));
    let record = appended(&effects, |record| matches!(record, Record::Accepted { .. }));
    let told = |promised| Message::Told { promised, value: value(1, 1, "x") };
    assert_eq!(sent(&acceptor.receive(R3, repeat(1)), R3), [(told(ballot(1)), record)]);
    acceptor.receive(R3, Message::PrepareAll { ballot: ballot(3), from: Slot(1) });
    assert_eq!(messages(&acceptor.receive(R1, repeat(1)), R1), [told(ballot(3))]);
}

/// A decision that waits for a slot before it, and replaced the own vote, is told as a vote in its ballot: both are for
/// the same value. What is delivered is asked of the replica around the protocol.
#[test]
fn what_is_decided_is_told_again_too() {
    let mut acceptor = One::of(R2, &options());
    acceptor.receive(R1, accept(1, 2, "x"));
    let ballots = Ballots::both(ballot(2));
    let learn = Input::Control(Control::Learn { slot: Slot(2), ballots, batch: batch("x"), voters: None });
    let effects = acceptor.step(learn);
    let record = appended(&effects, |record| matches!(record, Record::Learned(_)));
    let told = Message::Told { promised: ballot(2), value: value(2, 2, "x") };
    assert_eq!(sent(&acceptor.receive(R3, repeat(2)), R3), [(told, record)]);

    acceptor.step(Input::Control(Control::Learn { slot: Slot(1), ballots, batch: batch("w"), voters: None }));
    assert_eq!(acceptor.protocol.status().decided, Slot(2));
    let effects = acceptor.receive(R3, repeat(2));
    assert!(matches!(effects[..], [Effect::Lacks { peer: R3, slot: Slot(2) }]), "{effects:?}");
}

/// E3: with its log the acceptor is what it was; without it, it is another life, and says nothing in this epoch.
#[test]
fn an_acceptor_is_made_again_from_the_log_and_is_silent_without_it() {
    let records = || {
        vec![
            Record::Amnesia(false),
            Record::Promised(ballot(1)),
            Record::Accepted { ballot: ballot(1), slot: Slot(2), decided: Slot::ZERO, accepted: batch("x") },
            Record::Promised(ballot(3)),
        ]
    };
    let mut acceptor = One::start(R2, &options(), records(), false);
    acceptor.effects.drain();
    let refused = acceptor.receive(R1, accept(1, 1, "y"));
    assert_eq!(messages(&refused, R1), [Message::Reject { promised: ballot(3) }]);
    let asks = Message::PrepareAll { ballot: ballot(3), from: Slot(1) };
    assert_eq!(messages(&acceptor.receive(R3, asks.clone()), R3), [promise_all(3, 0, 2)]);
    assert_eq!(messages(&acceptor.receive(R3, prepare(3, 2)), R3), [promise(3, 2, vec![value(2, 1, "x")])]);

    let mut lost = One::start(R2, &options(), records(), true);
    lost.effects.drain();
    assert_eq!(lost.protocol.status().role, Role::Recovering);
    for message in [asks, prepare(3, 2), repeat(2)] {
        assert!(messages(&lost.receive(R3, message), R3).is_empty());
    }
    assert!(messages(&lost.receive(R1, accept(4, 1, "y")), R1).is_empty());
    let effects = lost.wait(60_000);
    assert!([R1, R3].iter().all(|&whom| messages(&effects, whom).is_empty()));
}

/// A vote that was replaced by a decision which is not delivered yet is told after a restart as well: this acceptor may
/// be the only one of a quorum that knows of it.
#[test]
fn what_was_learned_in_the_place_of_a_vote_is_told_after_a_restart() {
    let records = vec![
        Record::Amnesia(false),
        Record::Promised(ballot(1)),
        Record::Accepted { ballot: ballot(1), slot: Slot(5), decided: Slot::ZERO, accepted: batch("x") },
        Record::Learned(value(5, 1, "x")),
    ];
    let mut acceptor = One::start(R2, &options(), records, false);
    acceptor.effects.drain();
    let asks = Message::PrepareAll { ballot: ballot(3), from: Slot(1) };
    assert_eq!(messages(&acceptor.receive(R3, asks), R3), [promise_all(3, 0, 5)]);
    assert_eq!(messages(&acceptor.receive(R3, prepare(3, 5)), R3), [promise(3, 5, vec![value(5, 1, "x")])]);
}

/// Answers what the leader sends, and what it sends to the answers. Returns how many messages went to the others and
/// came back; that the leader votes too is told in messages that are not counted.
fn answered(leader: &mut One, mut effects: Vec<Effect>) -> usize {
    let mut count = 0;
    loop {
        let mut answers = Vec::new();
        for whom in [R2, R3] {
            for message in messages(&effects, whom) {
                let answer = match message {
                    Message::Prepare { slot, .. } => promise(1, slot.0, vec![]),
                    Message::Accept { slot, further, .. } => {
                        Message::Accepted { ballot: ballot(1), slot, further }
                    }
                    _ => continue,
                };
                answers.push((whom, answer));
            }
        }
        if answers.is_empty() {
            return count;
        }
        count += 2 * answers.len();
        effects = answers.into_iter().flat_map(|(whom, answer)| leader.receive(whom, answer)).collect();
    }
}

/// The messages of a leader for a command, in and out, when it has warmed up (section 7).
fn messages_for_a_command(options: &Options) -> usize {
    let mut leader = One::of(R1, options);
    leader.wait(1000);
    leader.durable();
    let effects = leader.receive(R2, promise_all(1, 0, 0));
    answered(&mut leader, effects);
    let mut counts = Vec::new();
    for slot in 1..=8 {
        let effects = leader.propose("x");
        counts.push(1 + answered(&mut leader, effects));
        leader.durable();
        assert_eq!(leader.protocol.status().decided, Slot(slot));
    }
    assert!(counts.iter().all(|count| *count == counts[0]), "{counts:?}");
    counts[0]
}

/// K4, K39, K40: with two other acceptors a command takes a message in, two proposals and two votes; phase 1 of its own
/// takes four more. (The document's proposer is no acceptor: 7 and 13.)
#[test]
fn preparing_ahead_takes_as_many_messages_as_one_promise_of_all_and_each_takes_more() {
    assert_eq!(messages_for_a_command(&with(Preparation::All)), 5);
    assert_eq!(messages_for_a_command(&with(Preparation::Ahead)), 5);
    assert_eq!(messages_for_a_command(&with(Preparation::Each)), 9);
}

/// K3: a window of slots is prepared before any command comes, and then one with each.
#[test]
fn a_window_is_prepared_ahead_and_a_command_waits_for_its_slot() {
    let mut leader = One::of(R1, &with(Preparation::Ahead));
    leader.wait(1000);
    leader.durable();
    let effects = leader.receive(R2, promise_all(1, 0, 0));
    let prepares: Vec<Message> = (1..=4).map(|slot| prepare(1, slot)).collect();
    assert!(messages(&effects, R3).starts_with(&prepares), "{effects:?}");
    let accepts = |effects: &[Effect]| {
        let all = messages(effects, R2).into_iter();
        let of = |message| {
            if let Message::Accept { slot, further, .. } = message { Some((slot, further)) } else { None }
        };
        all.filter_map(of).collect::<Vec<_>>()
    };
    assert!(accepts(&leader.propose("x")).is_empty(), "slot 1 is not promised by a quorum");
    assert!(accepts(&leader.receive(R3, promise(1, 2, vec![]))).is_empty());
    assert_eq!(accepts(&leader.receive(R3, promise(1, 1, vec![]))), [(Slot(1), Some(Slot(5)))]);
    assert_eq!(accepts(&leader.propose("y")), [(Slot(2), Some(Slot(6)))], "it is prepared");
    // What was not promised is asked for again, of those that have not.
    let again = leader.wait(100);
    assert!(messages(&again, R2).contains(&prepare(1, 3)) && messages(&again, R3).contains(&prepare(1, 3)));
    assert!(!messages(&again, R2).contains(&prepare(1, 1)), "a quorum has promised slot 1");
}

/// K39: LibPaxos answers phase 1 of a slot without regard to others. What is told is durable.
#[test]
fn a_promise_of_one_slot_waits_for_what_it_tells_and_for_no_other_vote() {
    let mut acceptor = One::of(R2, &with(Preparation::Each));
    let effects = acceptor.receive(R1, prepare(1, 1));
    let promised = appended(&effects, |record| *record == Record::Promised(ballot(1)));
    assert_eq!(sent(&effects, R1), [(promise(1, 1, vec![]), promised)]);
    let effects = acceptor.receive(R1, accept(1, 1, "x"));
    let vote = appended(&effects, |record| matches!(record, Record::Accepted { .. }));
    assert_eq!(sent(&acceptor.receive(R1, prepare(1, 2)), R1), [(promise(1, 2, vec![]), promised)]);
    let told = promise(1, 1, vec![value(1, 1, "x")]);
    assert_eq!(sent(&acceptor.receive(R1, prepare(1, 1)), R1), [(told, vote)]);
}

#[test]
fn a_leader_that_is_stuck_runs_a_whole_round_in_a_ballot_of_its_own() {
    let mut leader = One::of(R1, &options());
    leader.wait(1000);
    leader.durable();
    leader.receive(R2, promise_all(1, 3, 3));
    let mut asked = Vec::new();
    let mut rounds = Vec::new();
    for _ in 0..40 {
        let effects = leader.wait(100);
        for message in messages(&effects, R2) {
            match message {
                Message::Repeat { slot } => asked.push((leader.protocol.promised(), slot)),
                Message::PrepareAll { ballot, .. } => rounds.push(ballot),
                Message::Heartbeat { ballot, round, .. } => {
                    leader.receive(R2, Message::HeartbeatAck { ballot, round });
                }
                _ => {}
            }
        }
    }
    assert!(
        asked.starts_with(&[(ballot(1), Slot(1)), (ballot(1), Slot(2)), (ballot(1), Slot(3))]),
        "{asked:?}"
    );
    assert!(rounds.first().is_some_and(|&round| round > ballot(1) && round.replica == R1), "{rounds:?}");
}

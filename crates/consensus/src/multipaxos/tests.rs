//! One replica at a time, stepped by hand: what it says, and what must be durable first. `scenarios/` and the
//! simulator check how replicas behave together.

mod recovery;

use std::{sync::Arc, time::Duration};

use synod_wire::{
    Ballot, Ballots, Batch, BatchBuilder, Incarnation, Keep, Lsn, ReplicaId, SessionId, Slot, Time,
};

use super::{AcceptedValue, Message, MultiPaxos, Promise, Record, Tuning};
use crate::{
    Control, Decision, Effect, Effects, ElectionKind, Input, Logged, Members, Options, Protocol, ReadToken,
    Restart, Role,
    election::{self, Advice, Advised},
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

/// Options under which ballots are easily known in advance.
fn options() -> Options {
    Options { election: ElectionKind::Rotating, ..Options::default() }
}

struct One {
    protocol: Box<dyn Protocol>,
    effects: Effects,
    now: Time,
}

impl One {
    fn start(me: ReplicaId, options: &Options, records: Vec<Record>, amnesia: bool) -> One {
        let last = Lsn(records.len() as u64);
        let mut effects = Effects::new(last);
        let records = records.into_iter().map(crate::Record::from).collect();
        let restart = Restart { records, amnesia, ..Restart::first(Incarnation(7)) };
        let protocol = options.start(Members::new([R1, R2, R3], me), restart, Time::ZERO, &mut effects);
        One { protocol, effects, now: Time::ZERO }
    }

    fn new(me: ReplicaId) -> One {
        let mut one = One::start(me, &options(), Vec::new(), false);
        one.effects.drain();
        one
    }

    /// The effects of a burst of inputs.
    fn burst(&mut self, inputs: impl IntoIterator<Item = Input>) -> Vec<Effect> {
        inputs.into_iter().for_each(|input| self.protocol.step(self.now, input, &mut self.effects));
        self.protocol.flush(self.now, &mut self.effects);
        self.effects.drain().filter(|effect| !matches!(effect, Effect::Deadline(_))).collect()
    }

    fn step(&mut self, input: Input) -> Vec<Effect> {
        self.burst([input])
    }

    fn receive(&mut self, from: ReplicaId, message: Message) -> Vec<Effect> {
        self.step(Input::Receive { from, message: message.into() })
    }

    fn durable(&mut self) -> Vec<Effect> {
        self.step(Input::Durable(self.effects.last_lsn()))
    }

    /// Lets time pass. If this replica asks whether it may try to lead, another one is willing.
    fn wait(&mut self, wait: Duration) -> Vec<Effect> {
        self.now += wait;
        let mut effects = self.step(Input::Timer);
        let asked = effects.iter().find_map(|effect| match effect {
            Effect::Send {
                to,
                message: crate::Message::Election(election::Message::Rehearse { ballot }),
                ..
            } => Some((to.ids()[0], *ballot)),
            _ => None,
        });
        if let Some((from, ballot)) = asked {
            let highest = Ballot::ZERO;
            let message = election::Message::RehearseReply { ballot, willing: true, highest }.into();
            effects.extend(self.step(Input::Receive { from, message }));
        }
        effects
    }

    /// Lets the election suggest a ballot, whichever election it is, and the record of that ballot become
    /// durable; returns the ballot.
    fn led_by_bid_or_rehearsal(&mut self) -> Ballot {
        loop {
            let effects = self.wait(Duration::from_millis(100));
            for effect in &effects {
                let Effect::Send { to, message: crate::Message::Election(message), .. } = effect else {
                    continue;
                };
                assert!(to.includes(R2));
                if let election::Message::HeartbeatRequest { round, .. } = *message {
                    let (ballot, leader) = (Ballot::ZERO, Ballot::ZERO);
                    let reply = election::Message::HeartbeatReply { round, ballot, leader, happy: false };
                    self.step(Input::Receive { from: R2, message: reply.into() });
                }
            }
            if let [(Message::Prepare { ballot, .. }, _), ..] = sent(&effects, R2)[..] {
                self.durable();
                return ballot;
            }
        }
    }

    /// r1, which leads in its first ballot.
    fn elected() -> One {
        let mut one = One::new(R1);
        one.elect();
        one
    }

    fn elect(&mut self) {
        self.wait(Duration::from_secs(1));
        self.durable();
        let effects = self.receive(R2, promise(ballot(1), Vec::new()));
        assert!(sent(&effects, R3).iter().any(|(message, _)| matches!(message, Message::Heartbeat { .. })));
        assert_eq!(self.protocol.status().role, Role::Leader);
    }
}

fn promise(ballot: Ballot, accepted: Vec<AcceptedValue>) -> Message {
    Message::Promise(Promise {
        ballot,
        from: Slot(1),
        decided: Slot::ZERO,
        accepted,
        next: None,
        incarnation: Incarnation(1),
        lives: Vec::new(),
    })
}

/// What a life of another replica answers to this one, which lost its log: what it promised, and its first
/// unproposed slot if it leads.
fn answer(life: u64, round: u64, next_slot: Option<Slot>, lives: &[(ReplicaId, Incarnation)]) -> Message {
    Message::RecoverAnswer {
        asker: Incarnation(7),
        incarnation: Incarnation(life),
        promised: ballot(round),
        next_slot,
        lives: lives.to_vec(),
    }
}

/// The proposal of one batch.
fn accept(ballot: Ballot, slot: u64, text: &str) -> Message {
    Message::Accept { ballot, first: Slot(slot), decided: Slot::ZERO, batches: [batch(text)].into() }
}

/// A vote for slots through `last`.
fn accepted(first: u64, last: u64) -> Message {
    Message::Accepted { ballot: ballot(1), first: Slot(first), last: Slot(last) }
}

fn proposal(text: &str) -> Input {
    Input::Propose { batch: batch(text), awaited: true }
}

/// The messages that are sent to a replica, each with the record that must be durable first.
fn sent(effects: &[Effect], whom: ReplicaId) -> Vec<(Message, Lsn)> {
    let of = |effect: &Effect| match effect {
        Effect::Send { to, message: crate::Message::MultiPaxos(message), after } if to.includes(whom) => {
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

/// The number of the record in these effects that `wanted` accepts.
fn appended(effects: &[Effect], wanted: impl Fn(&Record) -> bool) -> Lsn {
    let of = |effect: &Effect| match effect {
        Effect::Append { lsn, record: crate::Record::MultiPaxos(record) } if wanted(record) => Some(*lsn),
        _ => None,
    };
    effects.iter().find_map(of).expect("the record is appended")
}

/// A record of consecutive slots.
fn run(ballot: Ballot, first: u64, batches: &[&str], decided: u64) -> Record {
    let batches = batches.iter().map(|text| batch(text)).collect();
    Record::Accepted { ballot, first: Slot(first), decided: Slot(decided), batches }
}

/// The first and the last slot of each record of accepted values.
fn runs(effects: &[Effect]) -> Vec<(u64, u64)> {
    let of = |effect: &Effect| match effect {
        Effect::Append {
            record: crate::Record::MultiPaxos(Record::Accepted { first, batches, .. }), ..
        } => Some((first.0, first.0 + batches.len() as u64 - 1)),
        _ => None,
    };
    effects.iter().filter_map(of).collect()
}

fn several(ballot: Ballot, first: u64, batches: &[&str]) -> Message {
    let batches = batches.iter().map(|text| batch(text)).collect();
    Message::Accept { ballot, first: Slot(first), decided: Slot::ZERO, batches }
}

#[test]
fn prepare_and_promise_wait_for_the_promise_record() {
    let mut candidate = One::new(R1);
    let effects = candidate.wait(Duration::from_secs(1));
    let record = appended(&effects, |record| *record == Record::Promised(ballot(1)));
    assert_eq!(sent(&effects, R2), [(Message::Prepare { ballot: ballot(1), from: Slot(1) }, record)]);

    let mut acceptor = One::new(R2);
    let effects = acceptor.receive(R1, Message::Prepare { ballot: ballot(1), from: Slot(1) });
    let record = appended(&effects, |record| *record == Record::Promised(ballot(1)));
    let [(Message::Promise(promise), after)] = &sent(&effects, R1)[..] else { panic!("{effects:?}") };
    assert_eq!((promise.ballot, *after), (ballot(1), record));
}

#[test]
fn a_lower_ballot_is_rejected_with_the_promised_one() {
    let mut acceptor = One::new(R3);
    acceptor.receive(R2, Message::Prepare { ballot: ballot(2), from: Slot(1) });
    let prepare = Message::Prepare { ballot: ballot(1), from: Slot(1) };
    let accept = accept(ballot(1), 1, "x");
    for message in [prepare, accept] {
        let effects = acceptor.receive(R1, message);
        let [(answer, _)] = &sent(&effects, R1)[..] else { panic!("{effects:?}") };
        assert_eq!(*answer, Message::Reject { promised: ballot(2) });
    }
    let forged = acceptor.receive(R1, Message::Prepare { ballot: ballot(5), from: Slot(1) });
    assert!(forged.is_empty(), "only its owner speaks in a ballot");
}

#[test]
fn an_acceptance_waits_for_its_record_and_a_repeat_is_answered_again() {
    let mut acceptor = One::new(R2);
    let accept = accept(ballot(1), 1, "x");
    let effects = acceptor.receive(R1, accept.clone());
    let record = appended(&effects, |record| matches!(record, Record::Accepted { .. }));
    let answer = (accepted(1, 1), record);
    assert_eq!(sent(&effects, R1), std::slice::from_ref(&answer));
    let effects = acceptor.receive(R1, accept);
    assert_eq!(sent(&effects, R1), [answer], "no second record");
}

#[test]
fn the_leader_proposes_at_once_but_its_vote_counts_only_when_durable() {
    let mut leader = One::elected();
    let effects = leader.step(proposal("x"));
    assert_eq!(sent(&effects, R2), [(accept(ballot(1), 1, "x"), Lsn::ZERO)]);
    assert!(delivered(&leader.receive(R2, accepted(1, 1))).is_empty());
    assert_eq!(delivered(&leader.durable()), [(1, batch("x"))]);
}

#[test]
fn a_quorum_of_followers_decides_without_the_leaders_disk() {
    let mut leader = One::elected();
    leader.step(proposal("x"));
    leader.receive(R2, accepted(1, 1));
    let effects = leader.receive(R3, accepted(1, 1));
    assert_eq!(delivered(&effects), [(1, batch("x"))]);
    assert_eq!(sent(&effects, R2), [(Message::Decided { ballot: ballot(1), through: Slot(1) }, Lsn::ZERO)]);
}

#[test]
fn slots_are_decided_out_of_order_and_delivered_in_order() {
    let mut leader = One::elected();
    leader.step(proposal("x"));
    leader.step(proposal("y"));
    leader.durable();
    assert!(delivered(&leader.receive(R2, accepted(2, 2))).is_empty());
    let effects = leader.receive(R2, accepted(1, 1));
    assert_eq!(delivered(&effects), [(1, batch("x")), (2, batch("y"))]);
}

#[test]
fn a_new_leader_adopts_the_value_of_the_highest_ballot_and_fills_gaps() {
    let mut candidate = One::new(R3);
    candidate.receive(R2, Message::Prepare { ballot: ballot(2), from: Slot(1) });
    candidate.receive(R2, accept(ballot(2), 3, "old"));
    candidate.durable();
    candidate.wait(Duration::from_secs(4));
    candidate.durable();
    let newer = AcceptedValue { slot: Slot(1), ballot: ballot(2), batch: batch("adopted") };
    let effects = candidate.receive(R1, promise(ballot(3), vec![newer]));
    let batches = [batch("adopted"), Batch::noop(), batch("old")].into();
    let proposals = Message::Accept { ballot: ballot(3), first: Slot(1), decided: Slot::ZERO, batches };
    assert!(sent(&effects, R1).contains(&(proposals, Lsn::ZERO)), "{effects:?}");
}

#[test]
fn an_announced_decision_covers_only_values_of_its_own_ballot() {
    let mut follower = One::new(R3);
    follower.receive(R1, accept(ballot(1), 1, "x"));
    let effects = follower.receive(R2, Message::Decided { ballot: ballot(2), through: Slot(1) });
    assert!(delivered(&effects).is_empty(), "in ballot 2 another value may have been proposed");
    assert_eq!(follower.protocol.status().decided_elsewhere, Slot(1), "so it must be fetched");
    let effects = follower.step(Input::Control(Control::Learn {
        slot: Slot(1),
        ballots: Ballots::ZERO,
        batch: batch("decided"),
        voters: None,
    }));
    assert_eq!(delivered(&effects), [(1, batch("decided"))]);
}

#[test]
fn promises_come_in_pages() {
    let options = Options { page_bytes_max: 1, ..options() };
    let mut acceptor = One::start(R2, &options, Vec::new(), false);
    for slot in [1, 2] {
        acceptor.receive(R1, accept(ballot(1), slot, "x"));
    }
    let mut page = |from| {
        let effects = acceptor.receive(R3, Message::Prepare { ballot: ballot(3), from });
        match &sent(&effects, R3)[..] {
            [(Message::Promise(promise), _)] => (promise.accepted.len(), promise.next),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(page(Slot(1)), (1, Some(Slot(2))));
    assert_eq!(page(Slot(2)), (1, None));
}

#[test]
fn a_page_of_a_promise_holds_as_much_as_fits() {
    let len = batch("x").bytes().len();
    // Each value takes 32 bytes besides its batch.
    let four = 3 * (len + 32) + len;
    for (page_bytes_max, values) in [(four, 4), (four - 1, 3)] {
        let mut acceptor = One::start(R2, &Options { page_bytes_max, ..options() }, Vec::new(), false);
        acceptor.receive(R1, several(ballot(1), 1, &["x"; 9]));
        let effects = acceptor.receive(R3, Message::Prepare { ballot: ballot(3), from: Slot(1) });
        let promises = sent(&effects, R3);
        let Some((Message::Promise(promise), _)) = promises.first() else { panic!("{effects:?}") };
        assert_eq!((promise.accepted.len(), promise.next), (values, Some(Slot(values as u64 + 1))));
    }
}

#[test]
fn where_all_replicas_count_votes_a_proposal_may_come_last() {
    let options = Options { multipaxos: Tuning { decision: Decision::All }, ..options() };
    let mut follower = One::start(R3, &options, Vec::new(), false);
    let accepted = accepted(1, 1);
    follower.receive(R1, accepted.clone());
    assert!(delivered(&follower.receive(R2, accepted)).is_empty());
    let accept = accept(ballot(1), 1, "x");
    follower.receive(R1, accept);
    assert_eq!(delivered(&follower.durable()), [(1, batch("x"))]);
}

#[test]
fn a_read_waits_until_a_quorum_confirms_the_leader() {
    let mut leader = One::elected();
    leader.receive(R2, Message::HeartbeatAck { ballot: ballot(1), round: 1 });
    let effects = leader.step(Input::Control(Control::ReadIndex(ReadToken(5))));
    let [(Message::Heartbeat { round, .. }, _)] = &sent(&effects, R2)[..] else { panic!("{effects:?}") };
    let stale = leader.receive(R3, Message::HeartbeatAck { ballot: ballot(1), round: round - 1 });
    assert!(!stale.iter().any(|effect| matches!(effect, Effect::ReadIndex { .. })));
    let effects = leader.receive(R3, Message::HeartbeatAck { ballot: ballot(1), round: *round });
    let ready = |effect: &Effect| matches!(effect, Effect::ReadIndex { slot: Some(Slot(0)), .. });
    assert!(effects.iter().any(ready), "{effects:?}");
}

#[test]
fn a_leader_without_a_quorum_steps_down_and_its_reads_fail() {
    let mut leader = One::elected();
    leader.step(Input::Control(Control::ReadIndex(ReadToken(5))));
    let effects = leader.wait(Duration::from_secs(2));
    assert!(effects.iter().any(|effect| matches!(effect, Effect::ReadIndex { slot: None, .. })));
    assert_eq!(leader.protocol.status().role, Role::Follower);
    assert_eq!(leader.protocol.room(), 0);
}

#[test]
fn a_leader_that_slept_gives_up_before_it_does_anything_else() {
    for election in [ElectionKind::Rotating, ElectionKind::Ballot] {
        let mut leader = One::start(R1, &Options { election, ..options() }, Vec::new(), false);
        leader.effects.drain();
        let ballot = leader.led_by_bid_or_rehearsal();
        leader.receive(R2, promise(ballot, Vec::new()));
        assert_eq!(leader.protocol.status().role, Role::Leader, "{election}");
        leader.now += Duration::from_secs(900);
        // Nothing that comes first is an excuse: not a read, a late vote, or the end of a burst.
        let effects = leader.step(Input::Control(Control::ReadIndex(ReadToken(1))));
        assert_eq!(leader.protocol.status().role, Role::Follower, "{election}");
        let refused = |effect: &Effect| matches!(effect, Effect::ReadIndex { slot: None, .. });
        assert!(effects.iter().any(refused), "{effects:?}");
    }
}

#[test]
fn a_leader_whose_disk_does_not_answer_steps_down() {
    let mut leader = One::elected();
    leader.step(proposal("x"));
    for _ in 0..11 {
        leader.now += Duration::from_millis(100);
        leader.receive(R2, Message::HeartbeatAck { ballot: ballot(1), round: 1 });
        leader.step(Input::Timer);
    }
    assert_eq!(leader.protocol.status().role, Role::Follower);
}

#[test]
fn a_candidate_that_lags_far_lets_another_replica_lead() {
    let mut candidate = One::new(R1);
    candidate.wait(Duration::from_secs(1));
    candidate.durable();
    let Message::Promise(mut answer) = promise(ballot(1), Vec::new()) else { unreachable!() };
    answer.decided = Slot(1_000_000);
    candidate.receive(R2, Message::Promise(answer));
    let status = candidate.protocol.status();
    assert_eq!((status.role, status.decided_elsewhere), (Role::Follower, Slot(1_000_000)));
}

#[test]
fn a_leader_that_lacks_what_no_peer_hands_out_asks_again_what_was_accepted() {
    let mut leader = One::new(R1);
    leader.wait(Duration::from_secs(1));
    leader.durable();
    // r2 knows that slot 1 is decided, and is not heard of again.
    let Message::Promise(mut told) = promise(ballot(1), Vec::new()) else { unreachable!() };
    told.decided = Slot(1);
    leader.receive(R2, Message::Promise(told));
    assert_eq!(leader.protocol.status().role, Role::Leader);
    let mut asked_after = None;
    for round in 1..40 {
        leader.durable();
        leader.receive(R3, Message::HeartbeatAck { ballot: ballot(1), round });
        let effects = leader.wait(Duration::from_millis(100));
        let asks = |(message, _): &(Message, Lsn)| matches!(message, Message::Prepare { .. });
        if sent(&effects, R3).iter().any(asks) {
            asked_after = Some(round);
            break;
        }
    }
    let timeouts = Options::default().election_timeout.as_millis() as u64 / 100;
    assert!(asked_after.is_some_and(|rounds| rounds > 2 * timeouts), "{asked_after:?}");
}

#[test]
fn a_target_that_is_never_decided_gives_way_to_a_later_answer() {
    let mut one = One::start(R3, &options(), Vec::new(), true);
    one.receive(R2, answer(1, 1, None, &[]));
    one.receive(R1, answer(1, 1, Some(Slot(20)), &[]));
    one.durable();
    assert_eq!(one.protocol.status().role, Role::Recovering);
    let asked = one.wait(Duration::from_secs(5));
    assert!(!sent(&asked, R1).is_empty(), "it keeps asking");
    one.receive(R1, answer(1, 2, None, &[]));
    one.receive(R2, answer(1, 2, Some(Slot(1)), &[]));
    one.durable();
    assert_eq!(one.protocol.status().role, Role::Follower);
}

#[test]
fn a_target_does_not_run_away_from_a_replica_that_asks_again() {
    let learn = |slot: u64| {
        let batch = batch("x");
        Input::Control(Control::Learn { slot: Slot(slot), ballots: Ballots::ZERO, batch, voters: None })
    };
    let waits_for_slots_1_and_2 = || {
        let mut one = One::start(R3, &options(), Vec::new(), true);
        one.receive(R2, answer(1, 1, None, &[]));
        one.receive(R1, answer(1, 1, Some(Slot(3)), &[]));
        one.step(learn(1));
        one
    };
    let votes = |mut one: One| {
        one.durable();
        one.protocol.status().role == Role::Follower
    };
    // The leader goes on proposing, and says so whenever it is asked again.
    let mut one = waits_for_slots_1_and_2();
    one.receive(R1, answer(1, 1, Some(Slot(9)), &[]));
    one.receive(R2, answer(1, 1, None, &[]));
    one.step(learn(2));
    let known = one.effects.last_lsn();
    one.receive(R1, answer(1, 1, Some(Slot(12)), &[]));
    one.step(Input::Durable(known));
    assert_eq!(one.protocol.status().role, Role::Follower);

    let mut one = waits_for_slots_1_and_2();
    one.receive(R1, answer(1, 1, Some(Slot(2)), &[]));
    assert!(votes(one), "an earlier answer that comes late asks for less");

    let mut one = waits_for_slots_1_and_2();
    one.receive(R1, answer(1, 2, None, &[]));
    one.receive(R2, answer(1, 2, Some(Slot(9)), &[]));
    one.step(learn(2));
    assert!(!votes(one), "a higher ballot has another leader, which may have proposed more");

    let mut one = waits_for_slots_1_and_2();
    one.receive(R2, answer(2, 1, None, &[]));
    one.step(learn(2));
    assert!(votes(one), "the next life of r2 answers, too");
    let mut one = waits_for_slots_1_and_2();
    one.receive(R1, answer(1, 1, Some(Slot(9)), &[(R2, Incarnation(2))]));
    one.step(learn(2));
    assert!(!votes(one), "r2 lost what it answered");
}

#[test]
fn a_replica_whose_disk_hangs_takes_in_only_so_much() {
    let mut follower = One::new(R2);
    for slot in 1..10_000 {
        let accept = Message::Accept {
            ballot: ballot(1),
            first: Slot(slot),
            decided: Slot(slot - 1),
            batches: [batch("x")].into(),
        };
        follower.receive(R1, accept);
    }
    assert!(follower.effects.last_lsn() < Lsn(1000), "{}", follower.effects.last_lsn());

    // This holds however many slots a record has.
    let mut follower = One::new(R2);
    let taken: u64 = (0..1000)
        .map(|n| {
            let batches = vec![batch("x"); 100].into();
            let (first, decided) = (Slot(n * 100 + 1), Slot(n * 100));
            let effects =
                follower.receive(R1, Message::Accept { ballot: ballot(1), first, decided, batches });
            runs(&effects).iter().map(|(first, last)| last - first + 1).sum::<u64>()
        })
        .sum();
    assert!(taken < 1000, "{taken}");
}

#[test]
fn a_decision_without_a_waiting_replica_is_announced_with_the_next_message_or_later() {
    let mut leader = One::elected();
    leader.step(Input::Propose { batch: batch("x"), awaited: false });
    leader.durable();
    let effects = leader.receive(R2, accepted(1, 1));
    assert_eq!((delivered(&effects).len(), sent(&effects, R2).len()), (1, 0));
    let effects = leader.wait(Options::default().announce_delay_max);
    assert_eq!(sent(&effects, R2), [(Message::Decided { ballot: ballot(1), through: Slot(1) }, Lsn::ZERO)]);
}

#[test]
fn what_a_burst_proposes_leaves_together_and_is_answered_together() {
    let mut leader = One::elected();
    let effects = leader.burst(["x", "y", "z"].map(proposal));
    let [(accept, Lsn::ZERO)] = &sent(&effects, R2)[..] else { panic!("{effects:?}") };
    let batches = ["x", "y", "z"].map(batch).into();
    assert_eq!(*accept, Message::Accept { ballot: ballot(1), first: Slot(1), decided: Slot::ZERO, batches });
    let mut follower = One::new(R2);
    let effects = follower.receive(R1, accept.clone());
    let Message::Accept { batches, .. } = accept else { unreachable!() };
    let shared = appended(
        &effects,
        |record| matches!(record, Record::Accepted { batches: written, .. } if Arc::ptr_eq(written, batches)),
    );
    assert_eq!(runs(&effects), [(1, 3)], "what one message brings is one record");
    assert_eq!(sent(&effects, R1), [(accepted(1, 3), shared)], "once it is durable");
    leader.durable();
    let effects = leader.receive(R2, accepted(1, 3));
    assert_eq!(delivered(&effects), [(1, batch("x")), (2, batch("y")), (3, batch("z"))]);
}

#[test]
fn messages_of_proposals_are_bounded() {
    let options = Options { page_bytes_max: 1, ..options() };
    let mut leader = One::start(R1, &options, Vec::new(), false);
    leader.effects.drain();
    leader.elect();
    let effects = leader.burst(["x", "y"].map(proposal));
    let expected = [(1, "x"), (2, "y")].map(|(slot, text)| (accept(ballot(1), slot, text), Lsn::ZERO));
    assert_eq!(sent(&effects, R2), expected);
    let again = leader.wait(options.retransmit_after);
    assert_eq!(sent(&again, R2)[..2], expected);
}

#[test]
fn each_slot_is_proposed_again_to_the_acceptors_that_have_not_answered() {
    let mut leader = One::elected();
    leader.burst(["a", "b", "c", "d"].map(proposal));
    leader.receive(R2, accepted(2, 2));
    let effects = leader.wait(Options::default().retransmit_after);
    let again = |whom| -> Vec<(u64, usize)> {
        let proposed = |(message, _)| match message {
            Message::Accept { first, batches, .. } => Some((first.0, batches.len())),
            _ => None,
        };
        sent(&effects, whom).into_iter().filter_map(proposed).collect()
    };
    assert_eq!(again(R2), [(1, 1), (3, 2)]);
    assert_eq!(again(R3), [(1, 4)]);
    let effects = leader.step(Input::Link { peer: R2, link: crate::Link::Up });
    assert_eq!(sent(&effects, R2).len(), 3, "a heartbeat, and the same again");
}

#[test]
fn votes_that_are_not_consecutive_leave_apart_and_strange_slots_do_no_harm() {
    let mut follower = One::new(R2);
    let receive = |message: Message| Input::Receive { from: R1, message: message.into() };
    let effects = follower.burst(
        [accept(ballot(1), 3, "c"), accept(ballot(1), 1, "a"), accept(ballot(1), 2, "b")].map(receive),
    );
    let votes: Vec<Message> = sent(&effects, R1).into_iter().map(|(message, _)| message).collect();
    assert_eq!(votes, [accepted(3, 3), accepted(1, 2)]);
    let far = u64::MAX - 1;
    let batches = ["x", "y", "z"].map(batch).into();
    let beyond = Message::Accept { ballot: ballot(1), first: Slot(far), decided: Slot::ZERO, batches };
    assert!(sent(&follower.receive(R1, beyond), R1).is_empty());
    let mut leader = One::elected();
    assert!(delivered(&leader.receive(R2, accepted(far, u64::MAX))).is_empty());
    assert!(delivered(&leader.receive(R2, accepted(0, u64::MAX))).is_empty(), "nothing is proposed there");
}

#[test]
fn of_what_one_message_brings_only_what_is_new_is_written_in_as_few_records_as_can_be() {
    let mut follower = One::new(R2);
    follower.receive(R1, accept(ballot(1), 3, "c"));
    follower.step(Input::Control(Control::Learn {
        slot: Slot(6),
        ballots: Ballots::ZERO,
        batch: batch("f"),
        voters: None,
    }));
    let proposal = several(ballot(1), 1, &["a", "b", "c", "d", "e", "f", "g"]);
    let effects = follower.receive(R1, proposal.clone());
    assert_eq!(runs(&effects), [(1, 2), (4, 5), (7, 7)]);
    let last = follower.effects.last_lsn();
    assert_eq!(sent(&effects, R1), [(accepted(1, 7), last)], "one answer, once all of them are durable");
    let effects = follower.receive(R1, proposal);
    assert_eq!((runs(&effects), sent(&effects, R1)), (vec![], vec![(accepted(1, 7), last)]));
    let new = several(ballot(2), 1, &["a", "b", "c", "d", "e"]);
    let mut third = One::new(R3);
    third.receive(R1, several(ballot(1), 1, &["a", "b", "c"]));
    let effects = third.receive(R2, new);
    assert_eq!(runs(&effects), [(1, 5)], "another ballot makes everything new");
}

#[test]
fn the_own_vote_for_a_run_does_not_count_where_another_value_took_its_place() {
    let options = Options { multipaxos: Tuning { decision: Decision::All }, ..options() };
    let mut follower = One::start(R3, &options, Vec::new(), false);
    follower.effects.drain();
    follower.receive(R1, several(ballot(1), 1, &["a", "b", "c"]));
    let first = follower.effects.last_lsn();
    follower.receive(R2, accept(ballot(2), 2, "B"));
    follower.receive(R1, accepted(1, 3));
    assert_eq!(
        delivered(&follower.step(Input::Durable(first))),
        [(1, batch("a"))],
        "what r1 and r3 accepted in ballot 1; slot 2 needs the later record, and slot 3 waits for it"
    );
    let theirs = Message::Accepted { ballot: ballot(2), first: Slot(2), last: Slot(2) };
    assert!(delivered(&follower.receive(R2, theirs)).is_empty());
    assert_eq!(delivered(&follower.durable()), [(2, batch("B")), (3, batch("c"))]);
}

#[test]
fn a_restart_takes_of_each_run_what_neither_a_snapshot_nor_a_later_record_replaced() {
    let learned = AcceptedValue { slot: Slot(5), ballot: ballot(3), batch: batch("learned") };
    let records = vec![
        Record::Promised(ballot(3)),
        run(ballot(1), 1, &["a", "b", "c", "d", "e", "f"], 0),
        run(ballot(2), 3, &["C", "D"], 2),
        Record::Learned(learned),
    ];
    assert_eq!(records[1].keep(), Keep::Slot(Slot(6)), "kept until all of it is covered");
    let records: Vec<crate::Record> = records.into_iter().map(crate::Record::from).collect();
    let start = |base, decided| {
        let mut effects = Effects::new(Lsn(4));
        let (base, decided) = (Slot(base), Slot(decided));
        let restart = Restart { records: records.clone(), base, decided, ..Restart::first(Incarnation(7)) };
        let members = Members::new([R1, R2, R3], R3);
        let mut protocol = Options::default().start(members, restart, Time::ZERO, &mut effects);
        let started: Vec<Effect> = effects.drain().collect();
        let prepare = Message::Prepare { ballot: ballot(5), from: Slot(1) };
        protocol.step(Time::ZERO, Input::Receive { from: R2, message: prepare.into() }, &mut effects);
        let answers: Vec<Effect> = effects.drain().collect();
        let [(Message::Promise(promise), _)] = &sent(&answers, R2)[..] else { panic!("{answers:?}") };
        let held: Vec<_> =
            promise.accepted.iter().map(|value| (value.slot.0, value.ballot, value.batch.clone())).collect();
        (delivered(&started), held)
    };
    let later = [
        (3, ballot(2), batch("C")),
        (4, ballot(2), batch("D")),
        (5, ballot(3), batch("learned")),
        (6, ballot(1), batch("f")),
    ];
    assert_eq!(start(0, 0), (vec![(1, batch("a")), (2, batch("b"))], later.to_vec()));
    assert_eq!(start(3, 3), (vec![], later[1..].to_vec()));
    let through_4 = vec![(4, batch("D")), (5, batch("learned"))];
    assert_eq!(start(3, 4), (through_4, later[3..].to_vec()));
}

#[test]
fn votes_leave_before_a_higher_ballot_is_promised() {
    let mut follower = One::new(R2);
    let prepare = Message::Prepare { ballot: ballot(3), from: Slot(1) };
    let effects = follower.burst([
        Input::Receive { from: R1, message: accept(ballot(1), 1, "x").into() },
        Input::Receive { from: R3, message: prepare.into() },
    ]);
    let vote = appended(&effects, |record| matches!(record, Record::Accepted { .. }));
    assert_eq!(sent(&effects, R1), [(accepted(1, 1), vote)]);
    let [(Message::Promise(promise), _)] = &sent(&effects, R3)[..] else { panic!("{effects:?}") };
    assert_eq!(promise.accepted.len(), 1);
}

#[test]
fn what_was_not_sent_before_leadership_ended_is_never_sent() {
    let mut leader = One::elected();
    let prepare = Message::Prepare { ballot: ballot(3), from: Slot(1) };
    let effects = leader.burst([proposal("x"), Input::Receive { from: R3, message: prepare.into() }]);
    assert!(sent(&effects, R2).is_empty());
    let [(Message::Promise(promise), _)] = &sent(&effects, R3)[..] else { panic!("{effects:?}") };
    assert!(promise.accepted.is_empty(), "nor was it accepted");
}

#[test]
fn the_window_counts_slots_that_are_not_decided() {
    let options = Options { window_max: 4, ..options() };
    let mut leader = One::start(R1, &options, Vec::new(), false);
    leader.effects.drain();
    leader.elect();
    leader.burst(["a", "b", "c", "d", "too many"].map(proposal));
    let state = |leader: &One| (leader.protocol.status().in_flight, leader.protocol.room());
    assert_eq!(state(&leader), (4, 0));
    leader.durable();
    leader.receive(R2, accepted(2, 3));
    assert_eq!(state(&leader), (2, 2), "slots 2 and 3 are decided, and wait for slot 1");
    leader.receive(R2, accepted(1, 1));
    assert_eq!(state(&leader), (1, 3));
}

/// The largest message of MultiPaxos, page after page: a promise, in a group of which every replica recovered once.
#[test]
fn a_promise_has_the_bytes_that_a_message_may_have() {
    for page_max in [1, 300, 5_000] {
        let options = Options {
            page_bytes_max: page_max,
            raft: crate::raft::Tuning { append_bytes_max: 1, ..Default::default() },
            ..Options::default()
        };
        let mut one = One::start(R2, &options, Vec::new(), false);
        let texts = ["", "x", "a little more", &"y".repeat(2_000), ""];
        let batches: Vec<Batch> =
            texts.iter().map(|text| batch(text)).chain(vec![Batch::noop(); 40]).collect();
        let largest = batches.iter().map(|batch| batch.bytes().len()).max().unwrap();
        let accept = Message::Accept {
            ballot: ballot(1),
            first: Slot(1),
            decided: Slot::ZERO,
            batches: batches.into(),
        };
        one.receive(R1, accept);
        let (mut from, mut pages) = (Slot(1), 0);
        loop {
            let effects = one.receive(R3, Message::Prepare { ballot: ballot(3), from });
            let promises = sent(&effects, R3);
            let Some((Message::Promise(promise), _)) = promises.first() else { panic!("{effects:?}") };
            let lives = (1..=crate::MEMBERS_MAX as u64).map(|id| (ReplicaId(id), Incarnation(9))).collect();
            let mut writer = synod_wire::Writer::new();
            let promise = Promise { lives, ..promise.clone() };
            crate::Message::from(Message::Promise(promise.clone())).encode(&mut writer);
            let (len, max) = (writer.finish().len(), options.message_bytes_max(largest));
            assert!(len <= max, "{len} bytes of {} values, {max} allowed", promise.accepted.len());
            pages += 1;
            let Some(next) = promise.next else { break };
            from = next;
        }
        assert!(pages > 1 || page_max > 3_000, "{pages} pages of {page_max} bytes");
    }
}

#[test]
fn a_leader_that_is_advised_to_hand_over_asks_that_member_and_leads_until_it_does() {
    let advised = |advice| {
        let mut effects = Effects::new(Lsn::ZERO);
        let (members, restart) = (Members::new([R1, R2, R3], R1), Restart::first(Incarnation(7)));
        let mut replica = MultiPaxos::start(options(), members, restart, Time::ZERO, &mut effects);
        replica.common.election = Box::new(Advised { me: R1, advice });
        effects.drain();
        let mut one = One { protocol: Box::new(replica), effects, now: Time::ZERO };
        one.elect();
        let asked = sent(&one.wait(Duration::from_millis(100)), R2);
        let asked = asked.iter().any(|(message, _)| *message == Message::TakeOver { ballot: ballot(1) });
        (asked, one.protocol.status().role)
    };
    assert_eq!(advised(Advice::HandTo(R2)), (true, Role::Leader));
    assert_eq!(advised(Advice::HandTo(R3)), (false, Role::Leader));
    assert_eq!(advised(Advice::Stay), (false, Role::Leader));
}

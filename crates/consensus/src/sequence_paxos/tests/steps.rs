//! What single steps say, and after which records.

use super::*;
use crate::{
    Batches, ElectionKind, ReadToken, Role,
    election::{Advice, Advised},
    sequence_paxos::{Extent, Prepare, Promise, Tuning},
};

/// The effects of one step without a disk.
fn wants(cluster: &mut Cluster, of: usize, inputs: Vec<Input>) -> Vec<Effect> {
    let mut effects = cluster.effects(of);
    for input in inputs {
        cluster.nodes[of].replica.step(cluster.now, input, &mut effects);
    }
    cluster.nodes[of].replica.flush(cluster.now, &mut effects);
    effects.drain().collect()
}

fn sends(effects: &[Effect], whom: usize) -> Vec<(Message, Lsn)> {
    let of = |effect: &Effect| match effect {
        Effect::Send { to, message: crate::Message::SequencePaxos(message), after }
            if to.includes(id(whom)) =>
        {
            Some((message.clone(), *after))
        }
        _ => None,
    };
    effects.iter().filter_map(of).collect()
}

fn last_append(effects: &[Effect]) -> Lsn {
    let of = |effect: &Effect| match effect {
        Effect::Append { lsn, .. } => Some(*lsn),
        _ => None,
    };
    effects.iter().rev().find_map(of).expect("a record")
}

fn receive(from: usize, message: Message) -> Input {
    Input::Receive { from: id(from), message: message.into() }
}

fn propose(text: &str) -> Input {
    Input::Propose { batch: batch(text), awaited: true }
}

/// A cluster in which A leads and B follows, with this many proposals before.
fn led(options: Options) -> Cluster {
    let mut cluster = Cluster::new(3, options);
    cluster.elect(A, B, 1);
    cluster.talk(A, B);
    cluster.talk(A, C);
    cluster
}

#[test]
fn prepare_and_promise_wait_for_the_promise_record() {
    let mut cluster = Cluster::new(3, options());
    let mut effects = cluster.effects(A);
    cluster.nodes[A].replica.become_candidate(cluster.now, ballot(1, A), &mut effects);
    let effects: Vec<Effect> = effects.drain().collect();
    let [(prepare, after)] = &sends(&effects, B)[..] else { panic!("{effects:?}") };
    assert_eq!(*after, last_append(&effects));
    let effects = wants(&mut cluster, B, vec![receive(A, prepare.clone())]);
    let [(Message::Promise(promise), after)] = &sends(&effects, A)[..] else { panic!("{effects:?}") };
    assert_eq!((promise.ballot, *after), (ballot(1, A), last_append(&effects)));
}

#[test]
fn a_candidate_is_told_what_may_differ_after_what_both_have() {
    let mut cluster = led(options());
    for text in ["a", "b", "c"] {
        cluster.propose(A, text);
    }
    // They are accepted, but not known to be decided.
    cluster.pass(A, B);
    let accepted_in = cluster.replica(B).accepted_in;
    let mut told = |round: u64, has: Extent| {
        let prepare = Prepare { ballot: ballot(round, C), has, page: Slot::ZERO };
        let effects = wants(&mut cluster, B, vec![receive(C, Message::Prepare(prepare))]);
        let [(Message::Promise(promise), _)] = &sends(&effects, C)[..] else { panic!("{effects:?}") };
        (promise.first, promise.batches.iter().map(text).collect::<String>())
    };
    // What it accepted in a lower ballot does not count from the first slot on that is not decided there.
    let has = Extent { accepted_in: Ballot::ZERO, last: Slot(9), decided: Slot(1) };
    assert_eq!(told(2, has), (Slot(2), "bc".to_owned()));
    let has = Extent { accepted_in, last: Slot(2), decided: Slot(1) };
    assert_eq!(told(3, has), (Slot(3), "c".to_owned()), "in one ballot one sequence begins the other");
}

#[test]
fn a_lower_ballot_is_rejected_with_the_promised_one() {
    let mut cluster = Cluster::new(3, options());
    cluster.campaign(B, 2);
    cluster.pass(B, C);
    cluster.lose_all();
    cluster.campaign(A, 1);
    cluster.pass(A, C);
    assert_eq!(cluster.waiting(C, A), [&Message::Reject { promised: ballot(2, B) }]);
    cluster.pass(C, A);
    assert_eq!(cluster.replica(A).status().role, Role::Follower);
    assert_eq!(cluster.replica(A).common.promised, ballot(2, B));
}

#[test]
fn an_acceptance_waits_for_its_record_and_a_burst_has_one_answer() {
    let mut cluster = led(options());
    cluster.propose(A, "x");
    cluster.propose(A, "y");
    let accepts: Vec<Input> = cluster.take(A, B).into_iter().map(|message| receive(A, message)).collect();
    assert_eq!(accepts.len(), 2);
    let effects = wants(&mut cluster, B, accepts);
    let answer = (Message::Accepted { ballot: ballot(1, A), last: Slot(2) }, last_append(&effects));
    assert_eq!(sends(&effects, A), [answer]);
}

#[test]
fn without_the_optimisations_everything_has_a_message_of_its_own() {
    let sequence_paxos = Tuning {
        batched_accepts: false,
        latest_decide: false,
        latest_accepted: false,
        max_accept_sync: false,
        head_start: false,
        decide_on_accept: false,
    };
    for (sequence_paxos, accepts, records, decides) in
        [(Tuning::default(), 1, 1, 1), (sequence_paxos, 3, 3, 3)]
    {
        let mut cluster = led(Options { sequence_paxos, ..options() });
        let effects = wants(&mut cluster, A, vec![propose("x"), propose("y"), propose("z")]);
        let appended = effects.iter().filter(|effect| matches!(effect, Effect::Append { .. })).count();
        let sent = sends(&effects, B);
        assert_eq!((sent.len(), appended), (accepts, records));
        assert!(sent.iter().all(|(_, after)| *after == Lsn::ZERO), "the followers' disks work meanwhile");
        let inputs = sent.into_iter().map(|(message, _)| receive(A, message)).collect();
        let answers = sends(&wants(&mut cluster, B, inputs), A);
        assert_eq!(answers.len(), accepts);
        let durable = vec![Input::Durable(last_append(&effects))];
        assert!(sends(&wants(&mut cluster, A, durable), B).is_empty());
        let (last, _) = answers.into_iter().last().expect("an answer");
        let effects = wants(&mut cluster, A, vec![receive(B, last)]);
        let decided = sends(&effects, B);
        assert_eq!(decided.len(), decides, "{decided:?}");
        assert_eq!(decided.last().unwrap().0, Message::Decide { ballot: ballot(1, A), through: Slot(3) });
    }
}

#[test]
fn the_leaders_own_acceptance_counts_once_it_is_durable() {
    let mut cluster = led(options());
    let effects = wants(&mut cluster, A, vec![propose("x")]);
    let delivers = |effects: &[Effect]| effects.iter().any(|effect| matches!(effect, Effect::Deliver { .. }));
    let accepted = Message::Accepted { ballot: ballot(1, A), last: Slot(1) };
    assert!(!delivers(&wants(&mut cluster, A, vec![receive(B, accepted.clone())])));
    assert!(delivers(&wants(&mut cluster, A, vec![Input::Durable(last_append(&effects))])));
    // Nor is it needed where other replicas are a quorum.
    let mut cluster = led(options());
    wants(&mut cluster, A, vec![propose("x")]);
    wants(&mut cluster, A, vec![receive(B, accepted.clone())]);
    assert!(delivers(&wants(&mut cluster, A, vec![receive(C, accepted)])));
}

#[test]
fn a_single_replica_leads_and_decides() {
    let mut cluster = Cluster::new(1, options());
    cluster.propose(A, "x");
    assert_eq!(cluster.delivered(A), "x");
}

#[test]
fn a_candidate_waits_for_elements_that_a_promise_does_not_hold_any_more() {
    let mut cluster = led(options());
    for text in ["x", "y", "z"] {
        cluster.propose(A, text);
    }
    cluster.pass(A, B);
    cluster.pass(B, A);
    cluster.lose_all();
    assert_eq!(cluster.delivered(A), "xyz");
    // B has accepted them in the ballot that C has accepted too, but has only a snapshot of them; C has none.
    let has = Extent { accepted_in: ballot(1, A), last: Slot(3), decided: Slot(3) };
    cluster.campaign(C, 2);
    assert_eq!(cluster.replica(C).extent(), Extent { last: Slot(0), decided: Slot(0), ..has });
    let promise = Promise {
        ballot: ballot(2, C),
        has,
        page: Slot(0),
        first: Slot(4),
        batches: Batches::default(),
        more: false,
    };
    cluster.hand(B, C, Message::Promise(promise));
    assert!(matches!(cluster.replica(C).state, State::Candidate(_)), "slots 1 to 3 are chosen");
    assert_eq!(cluster.replica(C).status().decided_elsewhere, Slot(3));
    for (slot, text) in [(1, "x"), (2, "y"), (3, "z")] {
        cluster.learn(C, ballot(1, A), slot, text);
    }
    assert!(matches!(cluster.replica(C).state, State::Leader(_)));
    cluster.propose(C, "w");
    assert_eq!(
        cluster.replica(C).extent(),
        Extent { accepted_in: ballot(2, C), last: Slot(4), decided: Slot(3) }
    );
}

/// The leader's window may be larger: it sends together whatever the follower has not accepted.
#[test]
fn a_follower_accepts_as_much_of_a_message_as_it_has_room_for() {
    let mut cluster = led(options());
    let most = cluster.options.accept_ahead_max();
    let batches: Vec<_> = (0..most + 20).map(|_| batch("x")).collect();
    let accept = |first: u64| Message::Accept {
        ballot: ballot(1, A),
        first: Slot(first),
        decided: Slot::ZERO,
        batches: batches[first as usize - 1..].into(),
    };
    cluster.hand(A, B, accept(1));
    assert_eq!(cluster.replica(B).extent().last, Slot(most));
    let accepted = Message::Accepted { ballot: ballot(1, A), last: Slot(most) };
    assert!(cluster.waiting(B, A).contains(&&accepted), "the leader may decide these");
    cluster.hand(A, B, accept(most - 1));
    cluster.hand(A, B, accept(most + 1));
    assert_eq!(cluster.replica(B).extent().last, Slot(most));
}

#[test]
fn a_promise_that_comes_late_does_not_take_a_follower_back() {
    let mut cluster = Cluster::new(3, options());
    cluster.campaign(A, 1);
    cluster.pass(A, B);
    let late = cluster.waiting(B, A)[0].clone();
    cluster.talk(A, B);
    cluster.propose(A, "x");
    cluster.talk(A, B);
    cluster.hand(B, A, late);
    assert_eq!(cluster.waiting(A, B), Vec::<&Message>::new(), "B is well");
    cluster.propose(A, "y");
    cluster.talk(A, B);
    assert_eq!(cluster.delivered(B), "xy");
}

#[test]
fn a_leader_that_learns_that_it_does_not_lead_says_so() {
    let mut cluster = led(Options { election: ElectionKind::Ballot, ..options() });
    let is_happy = |cluster: &mut Cluster| {
        let mut effects = cluster.effects(A);
        let question = crate::election::Message::HeartbeatRequest { round: 1, highest: Ballot::ZERO };
        let asked = Input::Receive { from: id(B), message: question.into() };
        cluster.nodes[A].replica.step(cluster.now, asked, &mut effects);
        let answer = effects.drain().find_map(|effect| match effect {
            Effect::Send { message: crate::Message::Election(message), .. } => Some(message),
            _ => None,
        });
        match answer {
            Some(crate::election::Message::HeartbeatReply { happy, .. }) => happy,
            other => panic!("{other:?}"),
        }
    };
    assert!(is_happy(&mut cluster));
    cluster.propose(A, "x");
    cluster.learn(A, ballot(2, C), 1, "y");
    assert!(matches!(cluster.replica(A).state, State::Follower(_)));
    assert!(!is_happy(&mut cluster), "or nobody would ever bid");
}

#[test]
fn a_follower_that_has_a_prefix_is_sent_only_the_rest() {
    for (max_accept_sync, sent) in [(true, 1), (false, 3)] {
        let sequence_paxos = Tuning { max_accept_sync, ..Default::default() };
        let mut cluster = led(Options { sequence_paxos, ..options() });
        cluster.propose(A, "x");
        cluster.propose(A, "y");
        cluster.pass(A, B);
        cluster.pass(A, C);
        cluster.lose_all();
        cluster.propose(A, "z");
        cluster.pass(A, B);
        cluster.lose_all();
        cluster.elect(B, C, 2);
        let syncs = cluster.waiting(B, C).into_iter().filter_map(|message| match message {
            Message::AcceptSync(sync) => Some(sync.batches.len()),
            _ => None,
        });
        assert_eq!(syncs.collect::<Vec<_>>(), [sent]);
        cluster.talk(B, C);
        cluster.wait(B, Duration::from_millis(100));
        cluster.talk(B, C);
        assert_eq!((cluster.delivered(B), cluster.delivered(C)), ("xyz", "xyz"));
    }
}

#[test]
fn long_suffixes_come_in_pages_and_count_only_as_a_whole() {
    let sequence_paxos = Tuning { max_accept_sync: false, ..Default::default() };
    let mut cluster = Cluster::new(3, Options { page_bytes_max: 1, sequence_paxos, ..options() });
    cluster.elect(A, B, 1);
    cluster.talk(A, B);
    cluster.lose_all();
    for text in ["x", "y", "z"] {
        cluster.propose(A, text);
    }
    cluster.pass(A, B);
    cluster.lose_all();
    // The candidate lacks all of it, asks for page after page, and leads only after the last.
    cluster.campaign(C, 2);
    cluster.pass(C, B);
    cluster.pass(B, C);
    assert_eq!(cluster.replica(C).status().role, Role::Candidate);
    cluster.talk(C, B);
    assert_eq!(cluster.replica(C).status().role, Role::Leader);
    assert_eq!(cluster.delivered(C), "xyz");
    let pages = cluster.nodes[C].records.iter().filter(|record| matches!(record, Record::Staged { .. }));
    assert_eq!(pages.count(), 2, "and a last one that makes them count");
    cluster.lose_all();
    // A follower does so, too, and a page that comes twice changes nothing.
    cluster.link(C, A);
    cluster.pass(C, A);
    cluster.pass(A, C);
    let pages = cluster.take(C, A);
    for message in pages.iter().chain(&pages) {
        cluster.hand(C, A, message.clone());
    }
    assert_eq!(cluster.replica(A).extent().accepted_in, ballot(1, A), "not yet");
    cluster.talk(C, A);
    assert_eq!(cluster.replica(A).extent().accepted_in, ballot(2, C));
}

#[test]
fn what_an_older_ballot_left_behind_is_cut_off_also_after_a_restart() {
    let mut cluster = Cluster::new(3, options());
    cluster.elect(A, B, 1);
    cluster.talk(A, B);
    cluster.lose_all();
    cluster.propose(A, "p");
    cluster.propose(A, "q");
    cluster.lose_all();
    cluster.elect(B, C, 2);
    cluster.lose_all();
    cluster.link(B, A);
    cluster.talk(B, A);
    let has = Extent { accepted_in: ballot(2, B), last: Slot(0), decided: Slot(0) };
    assert_eq!(cluster.replica(A).extent(), has);
    let adopted =
        cluster.nodes[A].records.iter().rev().find(|record| matches!(record, Record::Adopted { .. }));
    assert!(
        matches!(adopted, Some(Record::Adopted { covers: Slot(2), .. })),
        "it stays as long as what it cut off: {adopted:?}"
    );
    cluster.restart(A, cluster.records(A), false);
    assert_eq!(cluster.replica(A).extent(), has);
}

#[test]
fn a_follower_that_lags_too_far_learns_elsewhere_and_asks_again() {
    let mut cluster = led(Options { window_max: 1, ..options() });
    let kept = cluster.options.accept_ahead_max() as usize;
    for slot in 0..kept + 10 {
        cluster.propose(A, &(slot % 10).to_string());
        cluster.pass(A, B);
        cluster.pass(B, A);
    }
    cluster.lose_all();
    assert_eq!(cluster.replica(A).log.first(), Slot(11), "a bounded tail is kept");
    cluster.link(A, C);
    cluster.talk(A, C);
    let status = cluster.replica(C).status();
    assert_eq!((status.decided, status.decided_elsewhere), (Slot(0), Slot(kept as u64 + 10)));
    for slot in 0..kept + 10 {
        cluster.learn(C, ballot(1, A), slot as u64 + 1, &(slot % 10).to_string());
    }
    cluster.talk(A, C);
    assert_eq!(cluster.replica(C).extent(), cluster.replica(A).extent());
}

#[test]
fn a_new_leaders_heartbeat_is_enough_to_join_it() {
    let mut cluster = Cluster::new(3, options());
    cluster.elect(A, B, 1);
    cluster.lose(A, C);
    cluster.wait(A, Duration::from_millis(100));
    let heartbeats = |message: &Message| matches!(message, Message::Heartbeat { .. });
    for message in cluster.take(A, C).into_iter().filter(heartbeats) {
        cluster.hand(A, C, message);
    }
    assert!(cluster.waiting(C, A).contains(&&Message::PrepareReq { promised: ballot(1, A) }));
    cluster.talk(A, C);
    assert_eq!(cluster.replica(C).extent().accepted_in, ballot(1, A));
}

/// A cluster in which A leads and has five elements, one to a page, of which neither B nor C has any. Time
/// stands still.
fn led_with_pages() -> Cluster {
    let mut cluster = led(Options { page_bytes_max: 1, ..options() });
    ["a", "b", "c", "d", "e"].into_iter().for_each(|text| cluster.propose(A, text));
    cluster.lose_all();
    cluster
}

/// The pages that are under way from the leader, by their first slots.
fn pages(cluster: &Cluster, whom: usize) -> Vec<u64> {
    let page = |message: &&Message| match message {
        Message::AcceptSync(sync) => Some(sync.from.0),
        _ => None,
    };
    cluster.waiting(A, whom).iter().filter_map(page).collect()
}

#[test]
fn a_question_or_a_promise_more_does_not_begin_again_with_the_first_page() {
    let mut cluster = led_with_pages();
    cluster.restart(B, cluster.records(B), false);
    cluster.link(A, B);
    let prepare = cluster.waiting(A, B)[0].clone();
    let question = Message::PrepareReq { promised: ballot(1, A) };
    cluster.hand(B, A, question.clone());
    assert_eq!(cluster.waiting(A, B).len(), 1, "it is asked already");
    cluster.pass(A, B);
    let promise = cluster.take(B, A).pop().expect("a promise");
    cluster.hand(B, A, promise.clone());
    cluster.pass(A, B);
    cluster.pass(B, A);
    assert_eq!(pages(&cluster, B), [2]);
    // Both come late, or twice.
    cluster.hand(B, A, promise);
    cluster.hand(B, A, question.clone());
    assert_eq!((pages(&cluster, B), cluster.waiting(A, B).len()), (vec![2], 1));
    // The follower does not ask sooner, either.
    cluster.wait(B, Duration::from_millis(900));
    assert_eq!(cluster.waiting(B, A), [] as [&Message; 0]);
    cluster.pass(A, B);
    cluster.pass(B, A);
    assert_eq!(pages(&cluster, B), [3]);
    // The page is lost, and so are those that are sent again. The question arrives in the end.
    for round in 0..3 {
        let ack = Message::HeartbeatAck { ballot: ballot(1, A), round };
        cluster.hand(B, A, ack);
        cluster.wait(A, Duration::ZERO);
        cluster.now += Duration::from_millis(400);
    }
    cluster.lose_all();
    cluster.hand(B, A, question);
    assert_eq!(cluster.waiting(A, B), [&prepare]);
    cluster.pass(A, B);
    cluster.pass(B, A);
    cluster.pass(A, B);
    cluster.pass(B, A);
    assert_eq!(pages(&cluster, B), [3], "what it has is not sent again");
    cluster.talk(A, B);
    assert_eq!(cluster.delivered(B), "abcde");
}

#[test]
fn a_follower_that_waited_a_time_out_for_a_page_is_heard_the_first_time() {
    let mut cluster = led_with_pages();
    cluster.restart(B, cluster.records(B), false);
    cluster.link(A, B);
    cluster.pass(A, B);
    cluster.pass(B, A);
    cluster.pass(A, B);
    // Its disk has the first page to write, so it takes in no other one for a while.
    let latency = Duration::from_millis(10);
    cluster.now += latency;
    cluster.pass(B, A);
    assert_eq!(pages(&cluster, B), [2]);
    for round in 0..2 {
        let ack = Message::HeartbeatAck { ballot: ballot(1, A), round };
        cluster.now += (Duration::from_secs(1) - latency) / 2;
        cluster.hand(B, A, ack);
        cluster.wait(A, Duration::ZERO);
    }
    cluster.lose_all();
    cluster.hand(B, A, Message::PrepareReq { promised: ballot(1, A) });
    assert!(matches!(cluster.waiting(A, B)[..], [Message::Prepare(_)]));
}

#[test]
fn a_follower_that_accepts_goes_on_when_it_is_asked_again() {
    let mut cluster = led(options());
    cluster.propose(A, "x");
    let accept = cluster.take(A, B).pop().expect("an Accept");
    cluster.link(A, B);
    cluster.pass(A, B);
    let [Message::Promise(promise)] = cluster.waiting(B, A)[..] else { panic!() };
    assert_eq!(promise.has.last, Slot(0));
    // The message was not lost.
    cluster.hand(A, B, accept);
    assert_eq!(cluster.replica(B).extent().last, Slot(1));
    cluster.propose(A, "y");
    cluster.talk(A, B);
    assert_eq!((cluster.delivered(A), cluster.replica(B).extent().last), ("xy", Slot(2)));

    // It is sent what it lacks, even if that is lost and a later message is not.
    cluster.propose(A, "z");
    cluster.lose_all();
    cluster.link(A, B);
    cluster.talk(A, B);
    assert_eq!((cluster.delivered(A), cluster.replica(B).extent().last), ("xyz", Slot(3)));
}

#[test]
fn an_element_that_no_follower_answers_is_sent_again() {
    let mut cluster = led(options());
    cluster.propose(A, "x");
    cluster.lose_all();
    cluster.wait(A, Duration::from_millis(100));
    cluster.talk(A, B);
    assert_eq!(cluster.delivered(A), "x");
}

#[test]
fn a_read_waits_until_a_quorum_confirms_the_leader() {
    let mut cluster = led(options());
    cluster.propose(A, "x");
    cluster.talk(A, B);
    cluster.lose_all();
    cluster.step(A, Input::Control(Control::ReadIndex(ReadToken(5))));
    assert!(cluster.reads.is_empty());
    cluster.talk(A, B);
    assert_eq!(cluster.reads, [Some(Slot(1))]);
    cluster.step(B, Input::Control(Control::ReadIndex(ReadToken(6))));
    assert_eq!(cluster.reads, [Some(Slot(1)), None], "who does not lead cannot know");
}

#[test]
fn a_new_leaders_reads_see_all_that_may_have_been_decided_before() {
    let mut cluster = led(options());
    cluster.propose(A, "x");
    cluster.pass(A, B);
    cluster.lose_all();
    cluster.elect(B, C, 2);
    cluster.step(B, Input::Control(Control::ReadIndex(ReadToken(1))));
    let heartbeats = |message: &Message| matches!(message, Message::Heartbeat { .. });
    for _ in 0..2 {
        for message in cluster.take(B, C).into_iter().filter(heartbeats) {
            cluster.hand(B, C, message);
        }
        cluster.pass(C, B);
    }
    assert_eq!(cluster.reads, [Some(Slot(1))], "although slot 1 is not decided yet");
    assert_eq!(cluster.delivered(B), "");
}

#[test]
fn a_leader_without_a_quorum_or_a_disk_steps_down() {
    let mut cluster = led(options());
    cluster.step(A, Input::Control(Control::ReadIndex(ReadToken(5))));
    cluster.lose_all();
    cluster.wait(A, Duration::from_secs(2));
    assert_eq!((cluster.replica(A).status().role, cluster.replica(A).room()), (Role::Follower, 0));
    assert_eq!(cluster.reads, [None]);

    let mut cluster = led(options());
    wants(&mut cluster, A, vec![propose("x")]);
    for round in 0..12 {
        cluster.now += Duration::from_millis(100);
        let ack = Message::HeartbeatAck { ballot: ballot(1, A), round };
        wants(&mut cluster, A, vec![receive(B, ack), Input::Timer]);
    }
    assert_eq!(cluster.replica(A).status().role, Role::Follower);
}

#[test]
fn leadership_is_handed_over() {
    let mut cluster = led(options());
    cluster.step(A, Input::Control(Control::Transfer(id(B))));
    for _ in 0..5 {
        cluster.talk(A, B);
        cluster.talk(B, C);
    }
    assert_eq!(cluster.replica(B).status().role, Role::Leader);
    assert_eq!(cluster.replica(A).status().role, Role::Follower);
}

#[test]
fn a_backlogged_replica_takes_nothing_in() {
    let mut cluster = led(options());
    cluster.step(B, Input::Control(Control::Backlogged(true)));
    cluster.step(A, Input::Control(Control::Backlogged(true)));
    assert_eq!(cluster.replica(A).room(), 0);
    cluster.step(A, Input::Control(Control::Backlogged(false)));
    cluster.propose(A, "x");
    cluster.talk(A, B);
    assert_eq!(cluster.replica(B).extent().last, Slot(0));
    cluster.step(B, Input::Control(Control::Backlogged(false)));
    cluster.wait(A, Duration::from_millis(100));
    cluster.talk(A, B);
    assert_eq!(cluster.replica(B).extent().last, Slot(1));
}

#[test]
fn a_leader_goes_on_while_pages_arrive_and_no_longer() {
    let mut cluster = led(Options { page_bytes_max: 1, ..options() });
    "abcdefghijklmnopqrst".split_inclusive(|_| true).for_each(|text| cluster.propose(A, text));
    cluster.lose_all();
    // It leads again, and does not know any more what it decided: it serves no reads before the last page, either.
    cluster.elect(A, C, 4);
    cluster.lose_all();
    cluster.restart(B, cluster.records(B), false);
    cluster.link(A, B);
    cluster.pass(A, B);
    cluster.pass(B, A);
    // Nothing is decided for much longer than a leader without progress is allowed.
    for page in 1..=16 {
        assert_eq!(pages(&cluster, B), [page]);
        cluster.pass(A, B);
        cluster.now += Duration::from_millis(500);
        cluster.pass(B, A);
        let sent = cluster.take(A, B);
        wants(&mut cluster, A, vec![Input::Timer]);
        assert_eq!(cluster.replica(A).status().role, Role::Leader, "with page {page}");
        sent.into_iter().for_each(|message| cluster.wire.push((A, B, message)));
    }
    // No page arrives any more, although B answers.
    let mut rounds = 0;
    while cluster.replica(A).status().role == Role::Leader && rounds < 100 {
        cluster.now += Duration::from_millis(500);
        rounds += 1;
        let ack = Message::HeartbeatAck { ballot: ballot(4, A), round: rounds };
        wants(&mut cluster, A, vec![receive(B, ack), Input::Timer]);
    }
    assert_eq!(rounds, 9, "after four time-outs");
}

#[test]
fn a_leader_that_is_advised_to_hand_over_asks_that_member_and_leads_until_it_does() {
    let mut cluster = led(options());
    for (advice, asks) in
        [(Advice::Stay, None), (Advice::HandTo(id(C)), Some(C)), (Advice::HandTo(id(A)), None)]
    {
        cluster.lose_all();
        cluster.nodes[A].replica.common.election = Box::new(Advised { me: id(A), advice });
        cluster.step(A, Input::Timer);
        let asked = cluster.wire.iter().find(|(_, _, message)| matches!(message, Message::TakeOver { .. }));
        assert_eq!(asked.map(|(_, to, _)| *to), asks);
        assert!(matches!(cluster.replica(A).state, State::Leader(_)));
    }
}

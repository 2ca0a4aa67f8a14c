//! Restarts and lost logs: what a replica may say before it knows what it said.

use super::*;

#[test]
fn a_restart_delivers_what_was_decided_and_remembers_its_promise() {
    let records =
        vec![Record::Promised(ballot(4)), run(ballot(1), 1, &["a"], 0), run(ballot(1), 2, &["b"], 1)];
    let mut one = One::start(R2, &options(), records, false);
    let effects: Vec<Effect> = one.effects.drain().collect();
    assert_eq!(delivered(&effects), [(1, batch("a"))]);
    let effects = one.receive(R3, Message::Prepare { ballot: ballot(3), from: Slot(2) });
    assert_eq!(sent(&effects, R3)[0].0, Message::Reject { promised: ballot(4) });
    let effects = one.receive(R2, Message::Prepare { ballot: ballot(5), from: Slot(2) });
    assert!(effects.is_empty(), "a replica does not write to itself");
}

#[test]
fn without_its_log_a_replica_votes_only_after_its_peers_have_told_it_what_it_may_have_promised() {
    let mut one = One::start(R3, &options(), Vec::new(), true);
    let effects: Vec<Effect> = one.effects.drain().collect();
    assert_eq!(sent(&effects, R1)[0].0, Message::Recover { incarnation: Incarnation(7) });
    let accept = accept(ballot(1), 1, "x");
    assert!(sent(&one.receive(R1, accept.clone()), R1).is_empty(), "no vote");
    one.receive(R2, answer(1, 1, None, &[(R2, Incarnation(1))]));
    one.receive(R1, answer(1, 1, Some(Slot(2)), &[]));
    one.durable();
    assert_eq!(one.protocol.status().role, Role::Recovering, "slot 1 may hold its own vote");
    one.step(Input::Control(Control::Learn {
        slot: Slot(1),
        ballots: Ballots::ZERO,
        batch: batch("x"),
        voters: None,
    }));
    assert_eq!(one.protocol.status().role, Role::Recovering, "what it learned must be durable");
    one.durable();
    assert_eq!(one.protocol.status().role, Role::Follower);
    assert!(!sent(&one.receive(R1, accept), R1).is_empty());
}

#[test]
fn a_promise_of_a_life_whose_log_was_lost_does_not_count() {
    let mut candidate = One::new(R1);
    candidate.wait(Duration::from_secs(1));
    candidate.durable();
    candidate.receive(R3, Message::Recover { incarnation: Incarnation(2) });
    candidate.receive(R3, promise(ballot(1), Vec::new()));
    assert_eq!(candidate.protocol.status().role, Role::Candidate, "r3 lives its second life");
    candidate.receive(R2, promise(ballot(1), Vec::new()));
    assert_eq!(candidate.protocol.status().role, Role::Leader);
}

/// r3, which lost its log, has answers of the first lives of r1, which leads, and of r2, and nothing to
/// learn. Only its disk has not come that far.
fn about_to_vote() -> One {
    let mut one = One::start(R3, &Options::default(), Vec::new(), true);
    one.effects.drain();
    one.receive(R2, answer(1, 1, None, &[]));
    one.receive(R1, answer(1, 1, Some(Slot(1)), &[]));
    one
}

#[test]
fn an_answer_of_a_life_that_lost_its_log_since_does_not_count() {
    // r3 hears of it from r2 itself, which does not know what to answer, or from r1.
    for news in [
        (R2, Message::Recover { incarnation: Incarnation(2) }),
        (R1, answer(1, 1, Some(Slot(1)), &[(R2, Incarnation(2))])),
    ] {
        let mut one = about_to_vote();
        let asked = one.receive(news.0, news.1);
        assert_eq!(sent(&asked, R2), [(Message::Recover { incarnation: Incarnation(7) }, Lsn::ZERO)]);
        one.durable();
        assert_eq!(one.protocol.status().role, Role::Recovering, "the set is not full any more");
        one.receive(R2, answer(1, 1, None, &[]));
        one.durable();
        assert_eq!(one.protocol.status().role, Role::Recovering, "an answer that comes late");
        one.receive(R2, answer(2, 1, None, &[]));
        one.durable();
        assert_eq!(one.protocol.status().role, Role::Follower);
    }
    let mut one = about_to_vote();
    one.durable();
    assert_eq!(one.protocol.status().role, Role::Follower, "without such news");
}

#[test]
fn an_answer_to_the_question_of_an_earlier_life_does_not_count() {
    let mut one = One::start(R3, &options(), Vec::new(), true);
    one.effects.drain();
    let to_the_life_before = |next_slot| Message::RecoverAnswer {
        asker: Incarnation(6),
        incarnation: Incarnation(1),
        promised: ballot(1),
        next_slot,
        lives: Vec::new(),
    };
    // The life that asked may have voted since then.
    one.receive(R2, to_the_life_before(None));
    one.receive(R1, to_the_life_before(Some(Slot(1))));
    one.durable();
    assert_eq!(one.protocol.status().role, Role::Recovering);
    one.receive(R2, answer(1, 1, None, &[]));
    one.receive(R1, answer(1, 1, Some(Slot(1)), &[]));
    one.durable();
    assert_eq!(one.protocol.status().role, Role::Follower);
}

#[test]
fn a_ballot_that_was_heard_while_recovering_is_promised_with_the_right_to_vote() {
    let mut one = about_to_vote();
    one.receive(R2, Message::Heartbeat { ballot: ballot(2), decided: Slot::ZERO, round: 1 });
    let effects = one.durable();
    assert_eq!(one.protocol.status().role, Role::Follower);
    appended(&effects, |record| *record == Record::Promised(ballot(2)));
    let effects = one.receive(R1, Message::Prepare { ballot: ballot(1), from: Slot(1) });
    assert_eq!(sent(&effects, R1)[0].0, Message::Reject { promised: ballot(2) });
}

#[test]
fn what_is_heard_of_lives_while_recovering_is_durable_before_the_first_vote_and_told_with_promises() {
    let mut one = about_to_vote();
    let before = one.effects.last_lsn();
    let heard = one.receive(R2, answer(4, 1, None, &[(R1, Incarnation(1))]));
    assert!(appended(&heard, |record| matches!(record, Record::Lives(_))) > before);
    one.step(Input::Durable(before));
    assert_eq!(one.protocol.status().role, Role::Recovering);
    one.durable();
    assert_eq!(one.protocol.status().role, Role::Follower);
    let effects = one.receive(R2, Message::Prepare { ballot: ballot(5), from: Slot(1) });
    let Some((Message::Promise(promise), _)) = sent(&effects, R2).pop() else { panic!("{effects:?}") };
    assert_eq!(promise.lives, [(R1, Incarnation(1)), (R2, Incarnation(4))]);
}

#[test]
fn the_pages_of_a_promise_are_of_one_life() {
    let mut candidate = One::new(R1);
    candidate.wait(Duration::from_secs(1));
    candidate.durable();
    let page = |from, next, life| {
        let Message::Promise(page) = promise(ballot(1), Vec::new()) else { unreachable!() };
        Message::Promise(Promise { from: Slot(from), next, incarnation: Incarnation(life), ..page })
    };
    let asks = |effects: &[Effect], slot| {
        let asked = Message::Prepare { ballot: ballot(1), from: Slot(slot) };
        sent(effects, R2).into_iter().map(|(message, _)| message).collect::<Vec<_>>() == [asked]
    };
    assert!(asks(&candidate.receive(R2, page(1, Some(Slot(3)), 1)), 3));
    let begins_again = candidate.receive(R2, page(3, None, 2));
    assert!(asks(&begins_again, 1), "the first page was of another life: {begins_again:?}");
    assert_eq!(candidate.protocol.status().role, Role::Candidate);
    assert!(asks(&candidate.receive(R2, page(1, Some(Slot(3)), 2)), 3));
    candidate.receive(R2, page(3, None, 1));
    assert_eq!(candidate.protocol.status().role, Role::Candidate, "the life before, late");
    candidate.receive(R2, page(3, None, 2));
    assert_eq!(candidate.protocol.status().role, Role::Leader);
}

//! Voters that change.

use super::*;
use crate::ChangeRefused;

fn change(one: &mut One, voters: VoterSets) -> Vec<Effect> {
    one.step(Input::Control(Control::ChangeVoters { voters, batch: batch("change") }))
}

fn refusal(effects: &[Effect]) -> Option<ChangeRefused> {
    effects.iter().find_map(|effect| match effect {
        Effect::ChangeRefused(refused) => Some(*refused),
        _ => None,
    })
}

/// The voters that a new entry of the log brings.
fn brought(effects: &[Effect]) -> Option<VoterSets> {
    effects.iter().find_map(|effect| match effect {
        Effect::Append { record: crate::Record::Raft(Record::Entries { entries, .. }), .. } => {
            entries.iter().find_map(|entry| entry.voters.clone())
        }
        _ => None,
    })
}

#[test]
fn a_change_goes_through_both_majorities_and_leaves_by_itself() {
    let mut leader = One::elected();
    let joint = VoterSets::joint(vec![R1, R4], vec![R1, R2, R3]);
    assert_eq!(refusal(&change(&mut leader, joint.clone())), Some(ChangeRefused::Lagging(R4)));
    leader.receive(R4, Message::Follow);
    leader.matched(R4, 3, 1);
    assert_eq!(brought(&change(&mut leader, joint.clone())), Some(joint.clone()));
    assert_eq!(refusal(&change(&mut leader, joint)), Some(ChangeRefused::Pending), "one at a time");
    leader.durable();
    assert!(delivered(&leader.matched(R4, 3, 2)).is_empty(), "r1 and r4 are no majority of the old");
    let effects = leader.matched(R2, 1, 2);
    assert_eq!(delivered(&effects), [(2, batch("change"))]);
    assert_eq!(brought(&effects), Some(simple(&[R1, R4])), "the new voters alone");
    leader.durable();
    assert_eq!(delivered(&leader.matched(R4, 3, 3)), [(3, Batch::settling())], "r2 and r3 are not needed");
}

#[test]
fn a_leader_that_removes_itself_does_not_count_itself_and_leaves_office() {
    let mut leader = One::elected();
    change(&mut leader, simple(&[R2, R3]));
    leader.durable();
    assert!(delivered(&leader.matched(R2, 1, 2)).is_empty(), "one of two");
    let effects = leader.matched(R3, 2, 2);
    assert_eq!(delivered(&effects), [(2, batch("change"))]);
    assert_eq!(leader.role(), Role::Learner);
    let heirs = [R2, R3].map(|id| sent(&effects, id)).concat();
    assert!(heirs.iter().any(|(message, _)| matches!(message, Message::TimeoutNow { .. })));
    let effects = leader.wait(T * 2);
    assert_eq!(leader.role(), Role::Learner, "and never stands again: {effects:?}");
}

/// Two leaders with changes of their own, neither of which is committed, can decide by majorities that do not meet.
#[test]
fn a_leader_changes_nothing_before_it_has_committed_something() {
    let mut leader = One::new(R1);
    leader.wait(T);
    leader.receive(R2, Message::VoteReply { term: 1, rehearsal: true, granted: true });
    leader.durable();
    leader.receive(R2, Message::VoteReply { term: 1, rehearsal: false, granted: true });
    assert_eq!(leader.role(), Role::Leader);
    assert_eq!(refusal(&change(&mut leader, simple(&[R1, R2]))), Some(ChangeRefused::TooEarly));
    assert_eq!(refusal(&change(&mut One::new(R2), simple(&[R1]))), Some(ChangeRefused::NotLeading));
}

/// What a batch makes of the group depends on the batches before it that speak of the group.
#[test]
fn also_what_leaves_the_voters_as_they_are_is_taken_one_at_a_time() {
    let mut leader = One::elected();
    let three = || simple(&[R1, R2, R3]);
    assert_eq!(brought(&change(&mut leader, three())), Some(three()));
    assert_eq!(refusal(&change(&mut leader, three())), Some(ChangeRefused::Pending));
    leader.durable();
    assert_eq!(delivered(&leader.matched(R2, 1, 2)), [(2, batch("change"))]);
    assert_eq!(refusal(&change(&mut leader, three())), None);
}

#[test]
fn a_truncated_change_is_undone() {
    let mut follower = One::new(R2);
    let changes = Entry { voters: Some(simple(&[R1])), ..entry(1, R1, "change") };
    follower.receive(R1, append(ballot(1, R1), 0, Ballot::ZERO, vec![changes], 0));
    assert_eq!(follower.role(), Role::Learner, "from the append on");
    follower.receive(R3, append(ballot(2, R3), 0, Ballot::ZERO, vec![entry(2, R3, "x")], 0));
    assert_eq!(follower.role(), Role::Follower);
}

#[test]
fn what_comes_by_catch_up_or_with_a_snapshot_names_the_voters() {
    let mut one = One::new(R3);
    let learn = |slot, voters| {
        let (slot, ballots, batch) = (Slot(slot), Ballots::both(ballot(1, R1)), batch("change"));
        Input::Control(Control::Learn { slot, ballots, batch, voters })
    };
    one.step(learn(1, Some(simple(&[R1, R2]))));
    assert_eq!(one.role(), Role::Learner);
    one.step(learn(2, None));
    assert_eq!(one.role(), Role::Learner);
    let voters = simple(&[R2, R3]);
    one.step(Input::Control(Control::Installed {
        delivered: std::sync::Arc::default(),
        slot: Slot(50),
        ballots: Ballots::both(ballot(5, R2)),
        voters,
    }));
    one.durable();
    let effects = one.wait(T * 2);
    assert_eq!(one.role(), Role::Candidate);
    assert!(sent(&effects, R1).is_empty() && !sent(&effects, R2).is_empty());
    assert_eq!(granted(&one.receive(R1, vote(10, 50, ballot(4, R1))), R1).map(|it| it.0), Some(false));
    assert_eq!(granted(&one.receive(R1, vote(11, 50, ballot(5, R2))), R1).map(|it| it.0), Some(true));
}

#[test]
fn a_life_that_begins_while_voters_change_needs_both_majorities() {
    let mut effects = Effects::new(Lsn::ZERO);
    let restart = Restart {
        base: Slot(9),
        base_ballots: Ballots::both(ballot(3, R1)),
        decided: Slot(9),
        ..Restart::first(Incarnation(2))
    };
    let options = Options::of(ProtocolKind::Raft);
    let protocol = options.start(
        Members::seen_by(R4, VoterSets::joint(vec![R3, R4], vec![R1, R2])),
        restart,
        Time::ZERO,
        &mut effects,
    );
    let mut one = One { protocol, effects, now: Time::ZERO };
    let started: Vec<_> = one.effects.drain().collect();
    let term = Record::Term { term: 3, voted_for: None };
    assert!(
        appended(&started, |record| *record == term) > Lsn::ZERO,
        "a leader of a lower one is not obeyed"
    );
    let rehearsal = |from| (from, Message::VoteReply { term: 4, rehearsal: true, granted: true });
    one.wait(T * 2);
    for (from, message) in [rehearsal(R3), rehearsal(R1)] {
        one.receive(from, message);
    }
    let record = one.receive(R2, rehearsal(R2).1);
    let wanted = Record::Term { term: 4, voted_for: Some(R4) };
    assert!(appended(&record, |record| *record == wanted) > Lsn::ZERO, "two of two, and two of two");
}

#[test]
fn a_replica_that_does_not_vote_follows_and_never_stands() {
    let mut learner = One::start(
        Members::seen_by(R4, VoterSets::simple(vec![R1, R2, R3])),
        &Options::default(),
        Vec::new(),
        false,
    );
    let effects: Vec<_> = learner.effects.drain().collect();
    assert_eq!(sent(&effects, R1), [(Message::Follow, Lsn::ZERO)]);
    let effects = learner.wait(T * 2);
    assert_eq!(sent(&effects, R1), [(Message::Follow, Lsn::ZERO)], "again, as long as it hears nobody");
    assert_eq!(learner.role(), Role::Learner);
    let effects = learner.receive(R1, append(ballot(1, R1), 0, Ballot::ZERO, vec![entry(1, R1, "x")], 1));
    assert_eq!(delivered(&effects), [(1, batch("x"))]);
}

#[test]
fn a_removed_replica_is_not_asked_for_anything_any_more() {
    let mut one = One::new(R1);
    let asked = |one: &mut One| {
        let mut effects = one.durable();
        effects.extend((0..5).flat_map(|_| one.wait(2 * T)));
        assert!(!sent(&effects, R3).is_empty());
        !sent(&effects, R2).is_empty()
    };
    assert!(asked(&mut one));
    let voters = VoterSets::simple(vec![R1, R3]);
    let (slot, batch) = (Slot(1), batch("r2 leaves"));
    let appended = Entry { ballot: ballot(9, R3), batch: batch.clone(), voters: Some(voters.clone()) };
    one.receive(R3, append(ballot(9, R3), 0, Ballot::ZERO, vec![appended], 0));
    assert!(asked(&mut one), "that entry may still be replaced");
    let ballots = Ballots::both(ballot(9, R3));
    one.step(Input::Control(Control::Learn { slot, ballots, batch, voters: Some(voters) }));
    assert!(!asked(&mut one));
}

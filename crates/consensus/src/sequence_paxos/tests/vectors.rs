//! Test vectors TV1 to TV9: scripts that show what each erratum of Ng 2020 breaks (docs/errata.md). Each is played with
//! the correct rule, and with the erratum planted, which must show. (TV10, which is about elections, is in
//! `election/ballot_tests.rs`.)

use super::*;

/// Plays a vector with and without its bug, and compares what is delivered in the end.
fn plays(vector: fn(Option<Bug>) -> String, bug: impl Into<Bug>, expected: &str, broken: &str) {
    let bug = bug.into();
    assert_eq!(vector(None), expected);
    assert_eq!(vector(Some(bug)), broken, "{bug:?} is planted");
}

fn three(bug: Option<Bug>) -> Cluster {
    Cluster::new(3, planted(bug))
}

/// C is left with an element that nobody else has: "j", accepted in ballot 1.
fn with_leftover(bug: Option<Bug>) -> Cluster {
    let mut cluster = three(bug);
    cluster.elect(C, B, 1);
    cluster.pass(C, B);
    cluster.lose_all();
    cluster.propose(C, "j");
    cluster.lose_all();
    cluster
}

/// A leads in ballot 1, and both others have its sequence, which is empty.
fn all_synced(bug: Option<Bug>) -> Cluster {
    let mut cluster = three(bug);
    cluster.elect(A, B, 1);
    cluster.pass(A, B);
    cluster.talk(A, C);
    cluster.lose_all();
    cluster
}

/// E1: a leader that does not raise its own accepted ballot hides from the next one what it chose.
#[test]
fn tv1_a_leader_adopts_in_its_own_ballot() {
    fn tv1(bug: Option<Bug>) -> String {
        let mut cluster = three(bug);
        cluster.elect(A, C, 1);
        cluster.pass(A, C);
        cluster.lose_all();
        cluster.elect(B, A, 2);
        cluster.pass(B, A);
        cluster.propose(B, "x");
        cluster.pass(B, A);
        cluster.pass(A, B);
        // The others know of the decision only through it.
        assert_eq!(cluster.delivered(B), "x");
        cluster.nodes[A].down = true;
        cluster.lose_all();
        cluster.elect(C, B, 3);
        cluster.propose(C, "y");
        cluster.talk(C, B);
        cluster.delivered(C).to_owned()
    }
    plays(tv1, super::super::Bug::AdoptWithoutBallot, "xy", "");
}

/// E2: a promise with the leader's decided slot lets a follower keep what it never decided.
#[test]
fn tv2_a_promise_names_the_senders_own_decided_slot() {
    fn tv2(bug: Option<Bug>) -> String {
        let mut cluster = with_leftover(bug);
        cluster.elect(A, B, 2);
        cluster.propose(A, "x");
        cluster.talk(A, B);
        assert_eq!(cluster.delivered(A), "x");
        cluster.lose_all();
        cluster.elect(A, C, 3);
        cluster.talk(A, C);
        cluster.delivered(C).to_owned()
    }
    plays(tv2, super::super::Bug::PromiseOthersDecided, "x", "j");
}

/// E15: in an equal ballot a follower may hold more that was chosen.
#[test]
fn tv3_a_promise_in_an_equal_ballot_tells_what_the_candidate_lacks() {
    fn tv3(bug: Option<Bug>) -> String {
        let mut cluster = all_synced(bug);
        cluster.propose(A, "x");
        cluster.pass(A, B);
        cluster.pass(B, A);
        assert_eq!(cluster.delivered(A), "x");
        cluster.lose_all();
        cluster.elect(C, B, 2);
        cluster.propose(C, "y");
        cluster.talk(C, B);
        cluster.delivered(C).to_owned()
    }
    plays(tv3, super::super::Bug::PromiseOnlyNewer, "xy", "y");
}

/// E17: after a loss, the next element must not be taken for the lost one.
#[test]
fn tv4_an_accept_after_a_gap_is_refused() {
    fn tv4(bug: Option<Bug>) -> String {
        let mut cluster = three(bug);
        cluster.elect(A, B, 1);
        cluster.talk(A, B);
        cluster.propose(A, "x");
        cluster.lose(A, B);
        cluster.propose(A, "y");
        cluster.propose(A, "z");
        cluster.talk(A, B);
        cluster.delivered(B).to_owned()
    }
    plays(tv4, super::super::Bug::AcceptGap, "xyz", "yz");
}

/// E18: a decision says nothing of what is held before the leader's sequence is there.
#[test]
fn tv5_a_decide_before_the_sequence_is_ignored() {
    fn tv5(bug: Option<Bug>) -> String {
        let mut cluster = with_leftover(bug);
        cluster.elect(A, B, 2);
        cluster.pass(A, C);
        cluster.pass(C, A);
        cluster.lose(A, C);
        cluster.propose(A, "x");
        cluster.talk(A, B);
        assert_eq!(cluster.delivered(A), "x");
        let through = Slot(1);
        assert!(cluster.waiting(A, C).contains(&&Message::Decide { ballot: ballot(2, A), through }));
        cluster.pass(A, C);
        cluster.delivered(C).to_owned()
    }
    plays(tv5, super::super::Bug::DecideInAnyPhase, "", "j");
}

/// The guard of section 9.3: an empty suffix does not prove that a follower has what the leader has.
#[test]
fn tv6_a_follower_that_promises_an_empty_suffix_may_lack_something() {
    let mut cluster = all_synced(None);
    cluster.propose(A, "x");
    cluster.talk(A, B);
    assert_eq!((cluster.delivered(A), cluster.delivered(B)), ("x", "x"));
    cluster.lose_all();
    cluster.elect(B, A, 2);
    cluster.propose(B, "y");
    cluster.talk(B, A);
    cluster.talk(B, C);
    assert_eq!(cluster.delivered(C), "xy");
}

/// E22: lengths that come from different Prepares have different bases.
#[test]
fn tv7_a_prepare_that_is_sent_again_does_not_confuse_lengths() {
    fn tv7(bug: Option<Bug>) -> String {
        let mut cluster = three(bug);
        cluster.elect(C, B, 1);
        cluster.pass(C, B);
        cluster.talk(C, A);
        cluster.lose_all();
        cluster.propose(C, "j");
        cluster.lose_all();
        cluster.elect(A, B, 2);
        cluster.propose(A, "x");
        cluster.talk(A, B);
        assert_eq!(cluster.delivered(A), "x");
        cluster.lose_all();
        cluster.link(A, C);
        cluster.talk(A, C);
        cluster.delivered(C).to_owned()
    }
    plays(tv7, super::super::Bug::KeepLongerSequence, "x", "j");
}

/// E19: a forgotten promise lets an older leader choose.
#[test]
fn tv8_a_promise_survives_a_crash() {
    fn tv8(bug: Option<Bug>) -> String {
        let mut cluster = three(bug);
        cluster.elect(A, B, 1);
        cluster.lose_all();
        cluster.propose(A, "x");
        cluster.lose_all();
        cluster.campaign(B, 2);
        let late = cluster.take(B, A);
        cluster.pass(B, C);
        cluster.pass(C, B);
        cluster.propose(B, "y");
        cluster.lose_all();
        cluster.restart(C, cluster.records(C), false);
        cluster.link(A, C);
        cluster.talk(A, C);
        cluster.lose_all();
        late.into_iter().for_each(|message| cluster.hand(B, A, message));
        cluster.talk(B, A);
        format!("A: {}, B: {}", cluster.delivered(A), cluster.delivered(B))
    }
    plays(tv8, Bug::ForgetPromise, "A: y, B: y", "A: x, B: y");
}

/// E21: a decision must not overtake the elements that it is about. Nothing is queued beyond a burst here, so the only
/// place where it could is a sequence of which a page is still to come.
#[test]
fn tv9_a_decide_is_sent_only_to_followers_that_were_sent_what_it_names() {
    fn tv9(bug: Option<Bug>) -> String {
        let mut cluster = Cluster::new(3, Options { page_bytes_max: 1, ..planted(bug) });
        cluster.elect(A, C, 1);
        cluster.lose(A, B);
        for text in ["1", "2", "3"] {
            cluster.propose(A, text);
        }
        cluster.talk(A, C);
        cluster.lose_all();
        cluster.link(A, B);
        cluster.pass(A, B);
        cluster.pass(B, A);
        for text in ["4", "5", "6"] {
            cluster.propose(A, text);
        }
        cluster.talk(A, C);
        assert_eq!(cluster.delivered(A), "123456");
        let early = |message: &&&Message| matches!(message, Message::Decide { .. });
        let waiting = cluster.waiting(A, B);
        let decides = waiting.iter().filter(early).count();
        cluster.talk(A, B);
        cluster.wait(A, Duration::from_millis(100));
        cluster.talk(A, B);
        format!("{} early, then {}", if decides > 0 { "some" } else { "none" }, cluster.delivered(B))
    }
    plays(tv9, super::super::Bug::DecideToUnsynced, "none early, then 123456", "some early, then 123456");
}

/// E16: its owner may prepare the same ballot again.
#[test]
fn a_prepare_in_a_ballot_that_is_promised_already_is_answered() {
    fn again(bug: Option<Bug>) -> String {
        let mut cluster = three(bug);
        cluster.elect(A, B, 1);
        cluster.talk(A, B);
        cluster.lose_all();
        cluster.propose(A, "x");
        cluster.lose_all();
        cluster.link(A, B);
        cluster.talk(A, B);
        cluster.delivered(B).to_owned()
    }
    plays(again, super::super::Bug::RefusePrepareAgain, "x", "");
}

/// E20: a crash in the middle of taking a sequence over leaves the old one, with its old ballot.
#[test]
fn a_torn_adoption_leaves_the_old_sequence_with_its_old_ballot() {
    fn torn(bug: Option<Bug>) -> String {
        let mut cluster = Cluster::new(3, Options { page_bytes_max: 1, ..planted(bug) });
        cluster.elect(A, C, 1);
        cluster.lose(A, B);
        for text in ["a", "b", "c"] {
            cluster.propose(A, text);
        }
        cluster.lose(A, C);
        cluster.link(A, B);
        let before = cluster.records(B);
        cluster.talk(A, B);
        let after = cluster.records(B);
        let mut seen = Vec::new();
        for kept in before..=after {
            let mut twin = Cluster::new(3, planted(bug));
            twin.nodes[B].records = cluster.nodes[B].records.clone();
            twin.restart(B, kept, false);
            let has = twin.replica(B).extent();
            seen.push(format!("{}:{}", has.accepted_in.round, has.last));
        }
        seen.dedup();
        seen.join(" ")
    }
    plays(torn, super::super::Bug::TornAdoption, "0:0 1:3", "0:0 1:0 1:3");
}

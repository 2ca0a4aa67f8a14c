//! Restarts, lost logs, and what is learned from others.

use super::*;
use crate::{Logged, Role, VoterSets};

#[test]
fn a_restart_delivers_what_was_decided_and_remembers_its_promise() {
    let mut cluster = Cluster::new(3, options());
    cluster.elect(A, B, 1);
    cluster.talk(A, B);
    for text in ["x", "y", "z"] {
        cluster.propose(A, text);
        cluster.talk(A, B);
    }
    assert_eq!(cluster.delivered(B), "xyz");
    cluster.campaign(C, 2);
    cluster.pass(C, B);
    cluster.lose_all();
    cluster.restart(B, cluster.records(B), false);
    assert_eq!(cluster.delivered(B), "xy", "when z was accepted, that was known");
    assert_eq!(
        (cluster.replica(B).common.promised, cluster.replica(B).extent().last),
        (ballot(2, C), Slot(3))
    );
}

#[test]
fn a_restarted_follower_takes_nothing_before_the_leader_has_asked() {
    let mut cluster = Cluster::new(3, options());
    cluster.elect(A, B, 1);
    cluster.talk(A, B);
    cluster.propose(A, "x");
    cluster.restart(B, cluster.records(B), false);
    assert_eq!(cluster.waiting(B, A), [&Message::PrepareReq { promised: ballot(1, A) }]);
    let early = cluster.take(A, B);
    early.into_iter().for_each(|message| cluster.hand(A, B, message));
    assert_eq!(cluster.replica(B).extent().last, Slot(0));
    cluster.talk(A, B);
    assert_eq!((cluster.delivered(A), cluster.replica(B).extent().last), ("x", Slot(1)));
}

#[test]
fn a_restarted_leader_does_not_go_on_in_its_ballot() {
    let mut cluster = Cluster::new(3, options());
    cluster.elect(A, B, 1);
    cluster.talk(A, B);
    cluster.lose_all();
    cluster.restart(A, cluster.records(A), false);
    assert_eq!(cluster.replica(A).status().role, Role::Follower);
    cluster.wait(A, Duration::from_secs(60));
    let willing = crate::election::Message::RehearseReply {
        ballot: ballot(4, A),
        willing: true,
        highest: ballot(1, A),
    };
    cluster.step(A, Input::Receive { from: id(B), message: willing.into() });
    assert_eq!(cluster.replica(A).common.promised, ballot(4, A));
}

#[test]
fn all_restart_and_go_on() {
    let mut cluster = Cluster::new(3, options());
    cluster.elect(A, B, 1);
    cluster.talk(A, B);
    cluster.propose(A, "x");
    cluster.talk(A, B);
    cluster.lose_all();
    for of in [A, B, C] {
        cluster.restart(of, cluster.records(of), false);
    }
    cluster.lose_all();
    cluster.elect(C, B, 2);
    cluster.propose(C, "y");
    cluster.talk(C, B);
    assert_eq!(cluster.delivered(C), "xy");
}

#[test]
fn a_replica_that_lost_records_only_learns_in_every_later_life() {
    let mut cluster = Cluster::new(3, options());
    cluster.elect(A, B, 1);
    cluster.talk(A, B);
    cluster.restart(C, 0, true);
    cluster.link(A, C);
    cluster.pass(A, C);
    assert!(cluster.waiting(C, A).is_empty(), "no promise, no vote, no answer to a heartbeat");
    cluster.propose(A, "x");
    cluster.talk(A, B);
    cluster.wait(A, Duration::from_millis(100));
    cluster.pass(A, C);
    let status = cluster.replica(C).status();
    assert_eq!((status.role, status.decided_elsewhere), (Role::Recovering, Slot(1)));
    assert_eq!(status.view.leader, Some(id(A)), "so that clients are sent there");
    cluster.learn(C, ballot(1, A), 1, "x");
    assert_eq!(cluster.delivered(C), "x");
    cluster.restart(C, cluster.records(C), false);
    assert_eq!((cluster.delivered(C), cluster.replica(C).status().role), ("x", Role::Recovering));
    cluster.wait(C, Duration::from_secs(60));
    assert_eq!(cluster.replica(C).status().role, Role::Recovering, "nor does it try to lead");
}

#[test]
fn a_missing_snapshot_is_a_loss_of_records() {
    let accepted_in = ballot(1, A);
    let records = vec![
        Record::Amnesia(false),
        Record::Trimmed { slot: Slot(1000), accepted_in },
        Record::Accepted {
            ballot: accepted_in,
            first: Slot(1001),
            decided: Slot(1000),
            batches: [batch("x")].into(),
        },
    ];
    let mut cluster = Cluster::new(3, options());
    cluster.nodes[A].records = records;
    cluster.restart(A, 3, false);
    assert_eq!(cluster.replica(A).status().role, Role::Recovering, "slots 1 to 1000 are gone");
}

#[test]
fn the_accepted_ballot_outlives_the_records_that_a_snapshot_covers() {
    let mut cluster = Cluster::new(3, options());
    cluster.elect(A, B, 1);
    cluster.talk(A, B);
    cluster.propose(A, "x");
    cluster.talk(A, B);
    cluster.step(B, Input::Control(Control::Trim(Slot(1))));
    let state = |record: &Record| matches!(record.keep(), synod_wire::Keep::State(_));
    let records: Vec<_> = cluster.nodes[B].records.iter().filter(|record| state(record)).cloned().collect();
    let mut effects = Effects::new(Lsn(9));
    let restart = Restart {
        records: records.into_iter().map(crate::Record::from).collect(),
        base: Slot(1),
        decided: Slot(1),
        ..Restart::first(Incarnation(8))
    };
    let members = Members::new((0..3).map(id), id(B));
    let replica = SequencePaxos::start(options(), members, restart, cluster.now, &mut effects);
    assert_eq!(replica.extent().rank(), (ballot(1, A), Slot(1)));
}

#[test]
fn a_learned_element_replaces_what_was_accepted_and_a_leader_that_sees_one_gives_up() {
    let mut cluster = Cluster::new(3, options());
    cluster.elect(A, B, 1);
    cluster.talk(A, B);
    cluster.lose_all();
    cluster.propose(A, "p");
    cluster.pass(A, B);
    cluster.lose_all();
    cluster.learn(B, ballot(2, C), 1, "x");
    assert_eq!((cluster.delivered(B), cluster.replica(B).extent().accepted_in), ("x", ballot(1, A)));
    cluster.learn(A, ballot(2, C), 1, "x");
    assert_eq!((cluster.delivered(A), cluster.replica(A).status().role), ("x", Role::Follower));
    cluster.restart(A, cluster.records(A), false);
    assert_eq!(cluster.delivered(A), "x");
}

#[test]
fn a_candidate_that_lacks_decided_elements_learns_them_before_it_leads() {
    let mut cluster = Cluster::new(3, Options { window_max: 1, ..options() });
    cluster.elect(A, B, 1);
    cluster.talk(A, B);
    for text in ["x", "y"] {
        cluster.propose(A, text);
        cluster.talk(A, B);
    }
    cluster.lose_all();
    // B has decided both slots and dropped the first; C has nothing.
    cluster.campaign(C, 2);
    cluster.talk(C, B);
    let status = cluster.replica(C).status();
    assert_eq!((status.role, status.decided_elsewhere), (Role::Candidate, Slot(2)));
    cluster.learn(C, ballot(1, A), 1, "x");
    assert_eq!(cluster.replica(C).status().role, Role::Leader);
    cluster.propose(C, "z");
    cluster.talk(C, B);
    assert_eq!((cluster.delivered(C), cluster.replica(B).extent().last), ("xyz", Slot(3)));
}

#[test]
fn an_installed_snapshot_takes_the_place_of_what_it_covers() {
    let mut cluster = Cluster::new(3, options());
    cluster.elect(A, B, 1);
    cluster.talk(A, B);
    cluster.propose(A, "x");
    cluster.pass(A, B);
    let voters = VoterSets::simple((0..3).map(id).collect());
    let installed = |ballot| {
        let voters = voters.clone();
        Input::Control(Control::Installed {
            slot: Slot(5),
            ballots: Ballots::both(ballot),
            voters,
            delivered: Default::default(),
        })
    };
    cluster.step(B, installed(ballot(1, A)));
    let has = cluster.replica(B).extent();
    assert_eq!((has.last, has.decided), (Slot(5), Slot(5)));
    cluster.step(A, installed(ballot(3, C)));
    assert_eq!(cluster.replica(A).status().role, Role::Follower, "it had proposed only one slot");
}

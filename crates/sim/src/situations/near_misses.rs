//! Near misses: each test comes within one fact of a situation, and mostly adds that fact at the end.
//!
//! Stories show that a predicate holds when it should. Near misses show that no weaker predicate would do:
//! they kill the mutants that stories leave alive ([docs/mutants.md](../../../../docs/mutants.md)).

use std::sync::Arc;

use synod_consensus::{ElectionKind, Options, ProtocolKind, Record, Role, multipaxos, raft};
use synod_replica::{
    Change, ChangeRequest, Choice, Decided, Event, Goal, Group, History, Installed, LogRecord, MemberInfo,
    Membership, Others, PeerMessage, ReadId, SnapshotInfo, Standing,
};
use synod_wire::{Ballot, Ballots, Batch, CommandKind, Epoch, Incarnation, ReplicaId, Slot};

use super::{Face, Sight, Situation, Situations, is_long};

fn id(of: usize) -> ReplicaId {
    ReplicaId(of as u64 + 1)
}

fn ballot(round: u64, of: usize) -> Ballot {
    Ballot { round, replica: id(of) }
}

fn leader(of: usize, round: u64) -> Face {
    let (role, leader) = (Role::Leader, Some(id(of)));
    Face { role, ballot: ballot(round, of), leader, epoch: Epoch(1), ..Face::NEW }
}

fn candidate(of: usize, round: u64) -> Face {
    Face { role: Role::Candidate, leader: None, ..leader(of, round) }
}

/// Follows a leader.
fn follower(of: usize, round: u64) -> Face {
    Face { role: Role::Follower, ..leader(of, round) }
}

fn group_of(protocol: ProtocolKind, voters: usize) -> Group {
    Group::of(&Options::of(protocol), (0..voters).map(id))
}

/// A cluster of this many running voters and learners.
fn cluster(protocol: ProtocolKind, voters: usize, learners: usize) -> Situations {
    let all = voters + learners;
    let mut seen = Situations::new(&group_of(protocol, voters), all);
    (0..all).for_each(|of| seen.starts(of, 0, 0, false));
    seen
}

fn paxos(voters: usize, learners: usize) -> Situations {
    cluster(ProtocolKind::MultiPaxos, voters, learners)
}

/// A batch that differs from that of every other number.
fn batch(number: u64) -> Batch {
    let mut builder = synod_wire::BatchBuilder::default();
    builder.push(synod_wire::SessionId(1), number, 0, b"");
    builder.finish()
}

/// A message that hands out a slot, decided in a ballot.
fn hands_out(slot: u64, decided: Ballot, batch: Batch) -> PeerMessage {
    let known = Decided { ballots: Ballots::both(decided), batch };
    PeerMessage::Fetched { from: Slot(slot), kept: Slot(1), decided: Slot(slot), batches: vec![known] }
}

fn installs(slot: u64, decided: Ballot, group: Group) -> Event {
    let info = SnapshotInfo { slot: Slot(slot), bytes: 1 };
    let (ballots, history) = (Ballots::both(decided), History::unknown(Slot(slot)));
    Event::SnapshotInstalled(Some(Box::new(Installed { info, ballots, group, history })))
}

/// A page of a promise of MultiPaxos to r1.
fn page(round: u64, from: u64) -> PeerMessage {
    let promise = multipaxos::Promise {
        ballot: ballot(round, 0),
        from: Slot(from),
        decided: Slot::ZERO,
        accepted: Vec::new(),
        next: Some(Slot(from + 1)),
        incarnation: Incarnation(1),
        lives: Vec::new(),
    };
    PeerMessage::Protocol { epoch: Epoch(1), message: multipaxos::Message::Promise(promise).into() }
}

fn both_ways(links: &[(usize, usize)]) -> Vec<(usize, usize)> {
    links.iter().flat_map(|&(a, b)| [(a, b), (b, a)]).collect()
}

impl Situations {
    fn is(&self, situation: Situation) -> bool {
        self.reached().has(situation)
    }

    fn starts(&mut self, of: usize, tail: u64, snapshot: u64, amnesia: bool) {
        self.see(&Sight::Starts {
            of,
            tail: Slot(tail),
            snapshot: Slot(snapshot),
            amnesia,
            votes_lost: None,
        });
    }

    fn ends(&mut self, of: usize) {
        self.see(&Sight::Ends { of });
    }

    fn steps(&mut self, of: usize, face: Face) {
        self.see(&Sight::Stepped { of, face });
    }

    fn cuts(&mut self, links: &[(usize, usize)]) {
        self.see(&Sight::Cuts(&both_ways(links)));
    }

    /// A leader proposes in a slot.
    fn proposes(&mut self, of: usize, face: Face, slot: u64, batch: Batch) {
        self.steps(of, face);
        let (first, batches) = (Slot(slot), [batch].into());
        let record =
            multipaxos::Record::Accepted { ballot: face.ballot, first, decided: Slot::ZERO, batches };
        let record = LogRecord::Protocol { epoch: face.epoch, record: Record::from(record) };
        self.see(&Sight::Appends { of, record: &record });
        self.steps(of, face);
    }

    /// A replica hears of a decided slot.
    fn hears(&mut self, of: usize, slot: u64, decided: Ballot) {
        let message = hands_out(slot, decided, batch(slot));
        self.takes(of, &Event::Receive { from: id(1), message });
    }

    /// A replica writes a slot that it learned.
    fn writes_down(&mut self, of: usize, slot: u64) {
        let record = LogRecord::Learned { slot: Slot(slot), ballots: Ballots::ZERO, batch: batch(slot) };
        self.see(&Sight::Appends { of, record: &record });
    }

    fn sends(&mut self, from: usize, message: &PeerMessage) {
        self.see(&Sight::Sends { from, to: 0, message });
    }
}

#[test]
fn a_pause_is_long_that_is_longer_than_a_leader_is_missed() {
    let timeout = std::time::Duration::from_secs(1);
    assert!(!is_long(timeout, timeout));
    assert!(is_long(timeout * 2, timeout));
}

#[test]
fn a_link_that_works_in_one_direction_does_not_connect() {
    let mut seen = paxos(3, 0);
    seen.see(&Sight::Cuts(&[(0, 2)]));
    assert!(seen.is(Situation::Bridge));
}

#[test]
fn two_leaders_without_a_bridge_between_them() {
    let lead = |seen: &mut Situations| {
        seen.steps(0, leader(0, 1));
        seen.steps(3, leader(3, 2));
        seen.is(Situation::BridgedLeaders)
    };
    // They reach each other, and another replica is cut off from others.
    let mut seen = paxos(5, 0);
    seen.cuts(&[(1, 4)]);
    assert!(!lead(&mut seen));
    // No replica reaches both.
    let mut seen = paxos(5, 0);
    seen.cuts(&[(0, 2), (0, 3), (0, 4), (1, 2), (1, 3), (1, 4)]);
    assert!(!lead(&mut seen));
    // Two replicas reach both.
    let mut seen = paxos(5, 0);
    seen.cuts(&[(0, 3), (0, 4)]);
    assert!(!lead(&mut seen));
    // Both led before there was a bridge.
    let mut seen = paxos(5, 0);
    assert!(!lead(&mut seen));
    seen.cuts(&[(0, 3), (0, 4), (1, 3), (1, 4)]);
    assert!(!lead(&mut seen));
    seen.steps(3, candidate(3, 3));
    assert!(lead(&mut seen));
}

#[test]
fn a_leader_is_deaf_that_a_quorum_hears_and_that_hears_none() {
    let mut seen = paxos(5, 0);
    let heard_by_one: Vec<_> = (2..5).map(|peer| (0, peer)).collect();
    let hears_nobody: Vec<_> = (1..5).map(|peer| (peer, 0)).collect();
    seen.see(&Sight::Cuts(&heard_by_one));
    seen.see(&Sight::Cuts(&hears_nobody));
    seen.steps(0, leader(0, 1));
    assert!(!seen.is(Situation::DeafLeader), "two of five hear it");
    seen.see(&Sight::Mends(&[(0, 2)]));
    seen.steps(0, follower(0, 1));
    assert!(!seen.is(Situation::DeafLeader), "it does not lead");
    seen.see(&Sight::Mends(&[(1, 0), (2, 0)]));
    seen.steps(0, leader(0, 1));
    assert!(!seen.is(Situation::DeafLeader), "it hears two others");
    seen.see(&Sight::Cuts(&[(2, 0)]));
    seen.steps(0, leader(0, 1));
    assert!(seen.is(Situation::DeafLeader));
}

#[test]
fn a_link_that_was_cut_twice_is_cut_until_both_cuts_are_mended() {
    let deaf = [(1, 0), (2, 0)];
    for mends in [1, 2] {
        let mut seen = paxos(3, 0);
        (0..2).for_each(|_| seen.see(&Sight::Cuts(&deaf)));
        (0..mends).for_each(|_| seen.see(&Sight::Mends(&deaf)));
        seen.steps(0, leader(0, 1));
        assert_eq!(seen.is(Situation::DeafLeader), mends == 1);
    }
}

#[test]
fn a_transfer_while_nothing_of_the_voters_or_everything_of_the_leader_is_cut() {
    let transfer = |seen: &mut Situations, face: Face| {
        seen.steps(0, face);
        seen.takes(0, &Event::Transfer(id(1)));
        seen.is(Situation::TransferWhileCut)
    };
    let mut seen = paxos(3, 1);
    seen.cuts(&[(0, 3)]);
    assert!(!transfer(&mut seen, leader(0, 1)), "the learner's link is cut");
    seen.ends(2);
    assert!(!transfer(&mut seen, leader(0, 1)), "a voter is down");
    let mut seen = paxos(3, 0);
    seen.cuts(&[(0, 1), (0, 2)]);
    assert!(!transfer(&mut seen, leader(0, 1)), "it reaches nobody");
    let mut seen = paxos(3, 0);
    seen.cuts(&[(0, 2)]);
    assert!(!transfer(&mut seen, follower(1, 1)), "it does not lead");
    assert!(transfer(&mut seen, leader(0, 1)));
}

#[test]
fn a_replica_is_asked_to_take_over_that_nothing_is_wrong_with() {
    let asks = |seen: &mut Situations, message: multipaxos::Message| {
        seen.sends(1, &PeerMessage::Protocol { epoch: Epoch(1), message: message.into() });
    };
    let take_over = || multipaxos::Message::TakeOver { ballot: ballot(1, 1) };
    let rows =
        [Situation::HeirStalls, Situation::HeirCutOff, Situation::FormerLeaderAsked, Situation::BusyHandOver];
    let mut seen = paxos(5, 0);
    seen.steps(1, leader(1, 1));
    // It still reaches two others, and another one led.
    seen.cuts(&[(0, 2), (0, 3)]);
    seen.steps(4, leader(4, 1));
    asks(&mut seen, take_over());
    assert!(rows.iter().all(|&row| !seen.is(row)));
    // All is wrong, but nobody asks it.
    seen.cuts(&[(0, 4)]);
    seen.steps(0, leader(0, 1));
    seen.steps(0, Face { stalled: true, ..follower(0, 2) });
    seen.proposes(1, leader(1, 1), 1, batch(1));
    asks(&mut seen, multipaxos::Message::Reject { promised: ballot(2, 1) });
    assert!(rows.iter().all(|&row| !seen.is(row)));
    asks(&mut seen, take_over());
    assert!(rows.iter().all(|&row| seen.is(row)));
    // A former leader that lives another life is none.
    let mut seen = paxos(3, 0);
    seen.steps(0, leader(0, 1));
    seen.ends(0);
    seen.starts(0, 0, 0, false);
    asks(&mut seen, take_over());
    assert!(!seen.is(Situation::FormerLeaderAsked));
}

#[test]
fn a_first_delivery_beside_no_lower_leader() {
    let deliver = |me: Face, other: Face| {
        let mut seen = paxos(3, 0);
        seen.steps(1, other);
        seen.steps(0, me);
        seen.see(&Sight::Delivers { of: 0, first: true, batch: &Batch::noop() });
        seen.is(Situation::DeposedUnknowing)
    };
    assert!(!deliver(follower(2, 3), leader(1, 2)), "it does not lead");
    assert!(!deliver(leader(0, 1), leader(1, 2)), "the other's ballot is the higher one");
    assert!(deliver(leader(0, 3), leader(1, 2)));
}

#[test]
fn a_read_at_a_replica_that_no_other_has_outrun() {
    let read = |me: Face, other: Face| {
        let mut seen = paxos(3, 0);
        seen.steps(1, other);
        seen.steps(0, me);
        seen.takes(0, &Event::Read(ReadId(1)));
        seen.is(Situation::DeposedRead)
    };
    let decided = |decided, face| Face { decided: Slot(decided), ..face };
    let me = decided(3, leader(0, 1));
    assert!(!read(decided(3, follower(2, 1)), decided(4, leader(1, 2))), "it does not lead");
    assert!(!read(me, decided(3, leader(1, 2))), "the other has decided no more");
    assert!(!read(me, decided(4, follower(2, 2))), "the other does not lead");
    assert!(!read(decided(3, leader(0, 3)), decided(4, leader(1, 2))), "the other's ballot is lower");
    let next = Face { epoch: Epoch(2), ..me };
    assert!(!read(next, decided(4, leader(1, 2))), "the other's epoch is lower");
    assert!(read(me, Face { epoch: Epoch(2), ..decided(4, leader(1, 1)) }));
    assert!(read(me, decided(4, leader(1, 2))));
}

#[test]
fn one_that_slept_and_did_not_lead() {
    let wake = |me: Face| {
        let mut seen = paxos(3, 0);
        seen.steps(0, me);
        seen.steps(1, leader(1, 2));
        seen.see(&Sight::Pauses { of: 0 });
        seen.see(&Sight::Resumes { of: 0, long: true });
        seen.is(Situation::PausedLeaderReturns)
    };
    assert!(!wake(follower(2, 1)));
    assert!(wake(leader(0, 1)));
}

#[test]
fn two_leaders_neither_or_the_higher_of_which_has_a_stalled_disk() {
    let mut seen = paxos(3, 0);
    seen.steps(0, leader(0, 1));
    seen.steps(1, leader(1, 2));
    seen.steps(1, Face { stalled: true, ..leader(1, 2) });
    assert!(!seen.is(Situation::StalledLeader));
    seen.steps(1, leader(1, 2));
    seen.steps(0, Face { stalled: true, ..leader(0, 1) });
    assert!(seen.is(Situation::StalledLeader));
}

#[test]
fn proposals_for_one_slot_in_two_epochs_or_by_one_that_leads_no_more() {
    let mut seen = paxos(3, 0);
    seen.proposes(0, leader(0, 1), 7, batch(1));
    seen.proposes(1, Face { epoch: Epoch(2), ..leader(1, 2) }, 7, batch(2));
    assert!(!seen.is(Situation::TwoLeadersOneSlot), "of two epochs");
    // Proposals of a ballot are forgotten with the ballot, and when the replica no longer leads.
    for then in [leader(0, 3), follower(0, 1)] {
        let mut seen = paxos(3, 0);
        seen.proposes(0, leader(0, 1), 7, batch(1));
        seen.steps(0, then);
        seen.steps(0, leader(0, then.ballot.round));
        seen.proposes(1, leader(1, 2), 7, batch(2));
        assert!(!seen.is(Situation::TwoLeadersOneSlot), "{then:?}");
    }
}

#[test]
fn a_leader_with_more_than_a_quorum_or_with_disks_that_answer() {
    let mut seen = paxos(5, 0);
    let hung = Face { stalled: true, ..follower(0, 1) };
    seen.steps(1, hung);
    seen.cuts(&[(0, 4)]);
    seen.proposes(0, leader(0, 1), 1, batch(1));
    assert!(!seen.is(Situation::HungQuorum), "it reaches three others");
    seen.steps(1, follower(0, 1));
    seen.cuts(&[(0, 3)]);
    seen.steps(0, leader(0, 1));
    assert!(!seen.is(Situation::HungQuorum), "all disks answer");
    seen.steps(1, hung);
    seen.steps(0, leader(0, 1));
    assert!(seen.is(Situation::HungQuorum));
    // Of two voters both are always needed.
    let mut seen = paxos(2, 0);
    seen.steps(1, hung);
    seen.proposes(0, leader(0, 1), 1, batch(1));
    assert!(!seen.is(Situation::HungQuorum), "nobody is missing");
}

#[test]
fn a_tail_that_is_decided_or_a_leader_that_it_knew() {
    let restart = |decided: u64, face: Face| {
        let mut seen = paxos(3, 0);
        seen.steps(2, follower(1, 2));
        seen.steps(0, Face { decided: Slot(decided), ..leader(0, 2) });
        seen.ends(2);
        seen.starts(2, 5, 0, false);
        seen.steps(2, face);
        seen.is(Situation::RestartWithTail)
    };
    let lagging = |face| Face { decided: Slot(3), ..face };
    assert!(!restart(3, lagging(follower(1, 2))), "in the ballot in which it crashed");
    assert!(!restart(3, Face { decided: Slot(5), ..follower(1, 3) }), "it has delivered the tail");
    assert!(!restart(5, lagging(follower(1, 3))), "others had delivered the tail");
    assert!(restart(3, lagging(follower(1, 3))));
}

#[test]
fn a_log_lost_without_a_snapshot_and_a_snapshot_without_a_loss() {
    for (snapshot, amnesia) in [(0, true), (5, false), (5, true)] {
        let mut seen = paxos(3, 0);
        seen.ends(0);
        seen.starts(0, 0, snapshot, amnesia);
        assert_eq!(seen.is(Situation::AmnesiaWithSnapshot), snapshot > 0 && amnesia);
    }
}

#[test]
fn votes_lost_by_one_that_has_no_vote_or_for_slots_that_are_decided() {
    for (of, slot, lost, undecided) in [
        (0, None, false, false),
        (3, Some(6), false, false),
        (0, Some(5), true, false),
        (0, Some(6), true, true),
    ] {
        let mut seen = paxos(3, 1);
        seen.steps(1, Face { decided: Slot(5), ..follower(1, 3) });
        seen.ends(of);
        let votes_lost = slot.map(Slot);
        seen.see(&Sight::Starts { of, tail: Slot(2), snapshot: Slot(1), amnesia: true, votes_lost });
        assert_eq!(seen.is(Situation::VotesLost), lost, "{of} {slot:?}");
        assert_eq!(seen.is(Situation::VotesLostUndecided), undecided, "{of} {slot:?}");
    }
}

#[test]
fn a_group_that_is_down_whenever_one_or_two_are() {
    for voters in 1..4 {
        let mut seen = paxos(voters, 0);
        (0..voters).for_each(|of| seen.ends(of));
        assert_eq!(seen.is(Situation::AllDown), voters > 2);
    }
}

#[test]
fn pages_of_two_ballots_or_the_same_page_of_two_lives() {
    let again = |seen: &mut Situations| {
        seen.ends(1);
        seen.starts(1, 0, 0, false);
    };
    let mut seen = paxos(3, 0);
    seen.sends(1, &page(1, 1));
    again(&mut seen);
    seen.sends(1, &page(1, 1));
    seen.sends(1, &page(1, 2));
    again(&mut seen);
    seen.sends(1, &page(2, 3));
    assert!(!seen.is(Situation::PagesOfTwoLives));
    again(&mut seen);
    seen.sends(1, &page(2, 4));
    assert!(seen.is(Situation::PagesOfTwoLives));
}

#[test]
fn a_page_that_got_lost_and_is_sent_by_another_life() {
    let mut seen = paxos(3, 0);
    seen.sends(1, &page(1, 1));
    seen.sends(1, &page(1, 2));
    seen.ends(1);
    seen.starts(1, 0, 0, false);
    seen.sends(1, &page(1, 2));
    assert!(seen.is(Situation::PagesOfTwoLives));
}

#[test]
fn a_vote_of_raft_in_the_term_of_the_candidacy_or_in_its_rehearsal() {
    let mut seen = cluster(ProtocolKind::Raft, 3, 0);
    seen.steps(0, candidate(0, 6));
    let mut vote = |term, rehearsal| {
        let message = raft::Message::VoteReply { term, rehearsal, granted: true }.into();
        let message = PeerMessage::Protocol { epoch: Epoch(1), message };
        seen.takes(0, &Event::Receive { from: id(1), message });
        seen.is(Situation::LateAnswer)
    };
    assert!(!vote(6, false));
    assert!(!vote(5, true));
    assert!(vote(5, false));
}

#[test]
fn what_hands_out_nothing_is_no_catch_up() {
    let mut seen = paxos(3, 0);
    let ask = PeerMessage::Fetch { from: Slot(1), through: Slot(1) };
    seen.see(&Sight::Overtakes { message: &ask });
    assert!(seen.is(Situation::Overtaken) && !seen.is(Situation::OvertakenByDecided));
    seen.steps(0, follower(1, 1));
    seen.sends(0, &ask);
    seen.steps(0, Face { epoch: Epoch(2), ..follower(1, 1) });
    let none = PeerMessage::Fetched { from: Slot(1), kept: Slot(1), decided: Slot(1), batches: Vec::new() };
    for message in [ask, none] {
        seen.takes(0, &Event::Receive { from: id(1), message });
        assert!(!seen.is(Situation::LateCatchUp));
    }
    seen.hears(0, 1, Ballot::ZERO);
    assert!(seen.is(Situation::LateCatchUp));
}

/// The rows that a replica reaches when it learns slot 7, decided in this ballot.
fn learns(protocol: ProtocolKind, of: usize, face: Face, decided: Ballot) -> Vec<Situation> {
    let mut seen = cluster(protocol, 3, 1);
    seen.steps(of, face);
    seen.hears(of, 7, decided);
    seen.writes_down(of, 7);
    let rows = seen.reached().iter().filter(|row| *row >= Situation::LeaderLearns);
    rows.filter(|row| *row <= Situation::FollowerLearnsHigher).collect()
}

#[test]
fn a_replica_learns_from_above_or_not() {
    use Situation::{
        CandidateLearns, CandidateLearnsHigher, FollowerLearnsHigher, LeaderLearns, LeaderLearnsHigher,
    };
    let learns = |of, face, round| learns(ProtocolKind::MultiPaxos, of, face, ballot(round, 1));
    assert_eq!(learns(0, leader(0, 5), 4), [LeaderLearns]);
    assert_eq!(learns(0, leader(0, 5), 6), [LeaderLearns, LeaderLearnsHigher]);
    assert_eq!(learns(0, candidate(0, 5), 4), [CandidateLearns]);
    assert_eq!(learns(0, candidate(0, 5), 6), [CandidateLearns, CandidateLearnsHigher]);
    assert_eq!(learns(0, follower(1, 5), 4), []);
    assert_eq!(learns(0, Face { leader: None, ..follower(1, 5) }, 6), [], "it follows nobody");
    assert_eq!(learns(3, follower(1, 5), 6), [], "it does not vote");
    assert_eq!(learns(0, follower(1, 5), 6), [FollowerLearnsHigher]);
}

#[test]
fn a_term_that_another_candidate_has_won() {
    use Situation::CandidateLearnsWinner;
    let nobody = Ballot { round: 5, replica: ReplicaId::default() };
    let stands = Face { ballot: nobody, ..candidate(0, 5) };
    let wins = |protocol, face, decided| learns(protocol, 0, face, decided).contains(&CandidateLearnsWinner);
    let raft = ProtocolKind::Raft;
    assert!(!wins(raft, Face { ballot: nobody, ..follower(1, 5) }, ballot(5, 1)), "it is no candidate");
    assert!(!wins(raft, stands, ballot(4, 1)), "an earlier term");
    assert!(!wins(raft, stands, ballot(5, 0)), "it won itself");
    assert!(!wins(ProtocolKind::MultiPaxos, stands, ballot(5, 1)), "no terms");
    assert!(wins(raft, stands, ballot(5, 1)));
}

#[test]
fn what_an_earlier_life_heard_and_what_is_still_to_be_delivered() {
    let mut seen = paxos(3, 0);
    seen.hears(0, 7, ballot(6, 1));
    seen.ends(0);
    seen.starts(0, 0, 0, false);
    seen.steps(0, leader(0, 5));
    seen.writes_down(0, 7);
    assert!(!seen.is(Situation::LeaderLearnsHigher), "an earlier life heard it");
    seen.hears(0, 7, ballot(6, 1));
    seen.steps(0, Face { decided: Slot(6), ..leader(0, 5) });
    seen.writes_down(0, 7);
    assert!(seen.is(Situation::LeaderLearnsHigher));
}

#[test]
fn a_snapshot_in_front_of_what_is_proposed_or_of_what_is_delivered() {
    let group = || group_of(ProtocolKind::MultiPaxos, 3);
    let mut seen = paxos(3, 0);
    seen.proposes(0, leader(0, 5), 9, batch(9));
    seen.takes(0, &installs(8, ballot(4, 1), group()));
    assert!(seen.is(Situation::LeaderInstalls) && !seen.is(Situation::LeaderInstallsOverOwn));
    assert!(!seen.is(Situation::EndInstalled), "of the same epoch");
    seen.takes(0, &installs(9, ballot(4, 1), group()));
    assert!(seen.is(Situation::LeaderInstallsOverOwn));
    let mut seen = paxos(3, 0);
    seen.steps(0, Face { decided: Slot(8), ..leader(0, 5) });
    seen.takes(0, &installs(8, ballot(4, 1), group()));
    assert!(!seen.is(Situation::LeaderInstalls));
    for face in [leader(0, 5), candidate(0, 5)] {
        let mut seen = paxos(3, 0);
        seen.steps(0, face);
        seen.takes(0, &installs(8, ballot(6, 1), group()));
        assert!(!seen.is(Situation::FollowerInstallsHigher), "{face:?}");
    }
}

#[test]
fn an_end_that_comes_after_what_was_learned() {
    let mut seen = paxos(3, 0);
    let next = Face { epoch: Epoch(2), ..follower(1, 1) };
    seen.steps(0, leader(0, 5));
    seen.hears(0, 7, ballot(4, 1));
    seen.writes_down(0, 7);
    seen.steps(0, leader(0, 5));
    assert!(!seen.is(Situation::EndLearned), "the epoch goes on");
    seen.steps(0, next);
    assert!(!seen.is(Situation::EndLearned), "by another event");
    let mut seen = paxos(3, 0);
    seen.steps(0, leader(0, 5));
    seen.writes_down(0, 7);
    seen.steps(0, next);
    assert!(seen.is(Situation::EndLearned));
}

fn in_epoch(group: &Group, epoch: u64) -> Group {
    let mut group = group.clone();
    group.epoch = Epoch(epoch);
    group
}

#[test]
fn a_slot_of_an_epoch_that_is_not_over_or_in_the_life_that_saw_it_end() {
    let group = group_of(ProtocolKind::MultiPaxos, 3);
    let second = in_epoch(&group, 2);
    let mut later = second.clone();
    later.version = 7;
    let mut seen = paxos(3, 0);
    seen.see(&Sight::Regroups { slot: Slot(9), before: &group, group: &second });
    // The group changes again, and the epoch continues.
    seen.see(&Sight::Regroups { slot: Slot(19), before: &second, group: &later });
    let face = Face { epoch: Epoch(2), ..follower(0, 1) };
    seen.steps(1, face);
    let old = hands_out(9, Ballot::ZERO, batch(9));
    seen.sends(1, &old);
    assert!(!seen.is(Situation::OldSlotOfLaterLife), "it saw the end itself");
    seen.ends(1);
    seen.starts(1, 0, 0, false);
    seen.steps(1, face);
    let none = PeerMessage::Fetched { from: Slot(9), kept: Slot(1), decided: Slot(9), batches: Vec::new() };
    for message in [none, hands_out(10, Ballot::ZERO, batch(10)), hands_out(12, Ballot::ZERO, batch(12))] {
        seen.sends(1, &message);
        assert!(!seen.is(Situation::OldSlotOfLaterLife), "{message:?}");
    }
    seen.sends(1, &old);
    assert!(seen.is(Situation::OldSlotOfLaterLife));
}

#[test]
fn a_voter_that_is_new_or_old_or_has_delivered_all() {
    let voters = group_of(ProtocolKind::MultiPaxos, 4);
    let mut learns = voters.clone();
    learns.members[3].standing = Standing::Learner(Goal::Vote);
    let without = group_of(ProtocolKind::MultiPaxos, 3);
    let votes = |before: &Group, decided: u64| {
        let mut seen = paxos(3, 1);
        seen.steps(3, Face { decided: Slot(decided), ..follower(0, 1) });
        seen.see(&Sight::Regroups { slot: Slot(9), before, group: &voters });
        seen.is(Situation::LaggingVoter)
    };
    assert!(!votes(&learns, 8), "it has delivered everything before the change");
    assert!(!votes(&voters, 0), "it voted before");
    assert!(!votes(&without, 0), "it was no member");
    assert!(votes(&learns, 7));
}

#[test]
fn an_epoch_that_ends_in_calm() {
    let group = group_of(ProtocolKind::MultiPaxos, 4);
    let second = in_epoch(&group, 2);
    let mut seen = paxos(4, 0);
    seen.steps(0, leader(0, 1));
    // A partition has no bridge.
    seen.cuts(&[(0, 2), (0, 3), (1, 2), (1, 3)]);
    seen.see(&Sight::Regroups { slot: Slot(9), before: &group, group: &second });
    for row in [Situation::EpochUnderBridge, Situation::EpochWithTwoLeaders, Situation::EpochDuringCandidacy]
    {
        assert!(!seen.is(row), "{row}");
    }
    seen.see(&Sight::Mends(&both_ways(&[(0, 2)])));
    seen.steps(1, leader(1, 2));
    seen.steps(2, candidate(2, 3));
    let third = in_epoch(&second, 3);
    seen.see(&Sight::Regroups { slot: Slot(19), before: &second, group: &third });
    for row in [Situation::EpochUnderBridge, Situation::EpochWithTwoLeaders, Situation::EpochDuringCandidacy]
    {
        assert!(seen.is(row), "{row}");
    }
}

/// A group of three that follows another, whose latest members have a fourth that is to vote; and the batch with which
/// it follows the set of this version.
fn following() -> (Group, impl Fn(&Group, u64) -> Batch) {
    let begins = group_of(ProtocolKind::MultiPaxos, 3);
    let changed = |group: &Group, change| {
        group.apply(Slot(1), &ChangeRequest { expected: group.version, change }).expect("it can be made")
    };
    let joined =
        changed(&begins.clone().followed(), Change::Add { info: MemberInfo::default(), goal: Goal::Vote });
    let votes = changed(&joined, Change::promote(id(3)));
    let follow = move |group: &Group, version: u64| {
        let first =
            [&joined, &votes].into_iter().find(|first| first.version == version).expect("there is one");
        let change = Change::Follow(Arc::new(first.member_set().expect("others follow it")));
        let request = ChangeRequest { expected: group.version, change };
        let mut builder = synod_wire::BatchBuilder::default();
        let payload = request.encode().to_bytes();
        builder.push_as(CommandKind::Reconfigure, synod_wire::SessionId(1), 1, 1, &payload);
        builder.finish()
    };
    (begins.following(1), follow)
}

#[test]
fn a_member_set_that_is_later_or_made_for_another_version_or_known_already() {
    let (before, follow) = following();
    let mut seen = Situations::new(&before, 4);
    (0..3).for_each(|of| seen.starts(of, 0, 0, false));
    let delivers = |seen: &mut Situations, first, batch: &Batch| {
        seen.see(&Sight::Delivers { of: 0, first, batch });
        seen.is(Situation::OlderMembersRefused)
    };
    let latest = follow(&before, 3);
    assert!(!delivers(&mut seen, true, &latest), "it is a later set");
    let group = before.after(Slot(9), &latest).expect("a change").expect("that can be made");
    seen.see(&Sight::Regroups { slot: Slot(9), before: &before, group: &group });
    assert!(!delivers(&mut seen, true, &follow(&before, 2)), "it is made for another version of the group");
    assert!(!delivers(&mut seen, false, &follow(&group, 2)), "another replica delivered it before");
    assert!(delivers(&mut seen, true, &follow(&group, 2)));
}

#[test]
fn a_follower_that_is_not_chosen_and_a_member_that_was_here() {
    let (before, _) = following();
    let place = |group: &Group, voters: &[u64], others| {
        let change = Change::Place(Some(Choice::of(voters.iter().copied().map(ReplicaId), others)));
        group.apply(Slot(9), &ChangeRequest { expected: group.version, change }).expect("it can be made")
    };
    let rows = |before: &Group, group: &Group| {
        let mut seen = Situations::new(before, 4);
        (0..3).for_each(|of| seen.starts(of, 0, 0, false));
        seen.steps(0, leader(0, 1));
        seen.see(&Sight::Regroups { slot: Slot(9), before, group });
        [Situation::LeaderNotChosen, Situation::LeaderLeftBehind, Situation::ComesBack]
            .map(|row| seen.is(row))
    };
    let two = place(&before, &[1, 2], Others::StayAway);
    assert_eq!(rows(&before, &two), [false, false, false], "the leader was chosen");
    assert_eq!(rows(&before, &place(&before, &[2, 3], Others::StayAway)), [true, false, false]);
    assert_eq!(rows(&two, &place(&two, &[2], Others::Learn)), [true, false, true]);
    let learns = place(&before, &[1, 2], Others::Learn);
    assert_eq!(rows(&learns, &place(&learns, &[1, 3], Others::Learn)), [false, false, false], "it learned");
}

#[test]
fn a_leader_that_leaves_and_a_protocol_that_changes_where_no_group_is_followed() {
    let (before, follow) = following();
    let takes_on = before.after(Slot(9), &follow(&before, 3)).expect("a change").expect("that can be made");
    let change = |group: &Group| {
        let mut after = in_epoch(group, 2);
        (after.version, after.election) = (group.version + 1, ElectionKind::Rotating);
        after.members.remove(0);
        after
    };
    let rows = |before: &Group, group: &Group| {
        let mut seen = Situations::new(before, 4);
        (0..4).for_each(|of| seen.starts(of, 0, 0, false));
        seen.steps(0, leader(0, 1));
        seen.see(&Sight::Regroups { slot: Slot(19), before, group });
        [Situation::LeaderLeftBehind, Situation::ReorderedWhileFollowing].map(|row| seen.is(row))
    };
    assert_eq!(rows(&takes_on, &change(&takes_on)), [true, true]);
    let mut alone = takes_on.clone();
    alone.membership = Membership::Alone;
    assert_eq!(rows(&alone, &change(&alone)), [false, false]);
    let mut stays = change(&takes_on);
    stays.members.clone_from(&takes_on.members);
    assert_eq!(rows(&takes_on, &stays), [false, true]);
    let mut same = change(&takes_on);
    same.election = takes_on.election;
    assert_eq!(rows(&takes_on, &same), [true, false]);
    assert_eq!(rows(&before, &change(&before)), [true, false], "nobody is to vote");
}

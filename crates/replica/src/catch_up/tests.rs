use synod_wire::{Ballot, Ballots, Batch};

use super::*;

const PACE: Pace = Pace {
    delay: Duration::from_millis(10),
    retry: Duration::from_millis(100),
    fresh: Duration::from_millis(5),
    forget: Duration::from_millis(400),
    lacked: Duration::from_millis(400),
    answer_bytes: 10 * SLOT_BYTES,
};
const AT_ONCE: Pace = Pace { delay: Duration::ZERO, ..PACE };
const R1: ReplicaId = ReplicaId(1);
const R2: ReplicaId = ReplicaId(2);
const R3: ReplicaId = ReplicaId(3);

fn at(ms: u64) -> Time {
    Time::from_nanos(1_000_000_000 + ms * 1_000_000)
}

fn slots(from: u64, through: u64) -> (u64, u64) {
    (from, through)
}

/// The questions for slots, as (peer, first slot, last slot).
fn asked(asks: &[(ReplicaId, Ask)]) -> Vec<(u64, (u64, u64))> {
    let slots = asks.iter().filter_map(|(to, ask)| match ask {
        Ask::Slots { from, through } => Some((to.0, (from.0, through.0))),
        Ask::Chunk { .. } => None,
    });
    slots.collect()
}

/// Batches whose ballots tell their slots.
fn batches(from: u64, through: u64) -> Vec<Decided> {
    let decided =
        |round| Decided { ballots: Ballots::both(Ballot { round, ..Ballot::ZERO }), batch: Batch::noop() };
    (from..=through).map(decided).collect()
}

/// A replica that lags and catches up.
struct Laggard {
    catch_up: CatchUp,
    decided: Slot,
    elsewhere: Slot,
    leader: Option<ReplicaId>,
    pace: Pace,
}

impl Laggard {
    fn new(peers: &[ReplicaId], decided: u64, elsewhere: u64, pace: Pace) -> Laggard {
        let catch_up = CatchUp::new(peers.iter().copied());
        Laggard { catch_up, decided: Slot(decided), elsewhere: Slot(elsewhere), leader: Some(R1), pace }
    }

    fn next(&mut self, ms: u64) -> Vec<(u64, (u64, u64))> {
        let asks = self.catch_up.next(at(ms), self.decided, self.elsewhere, self.leader, &self.pace);
        asked(&asks)
    }

    fn chunk(&mut self, ms: u64) -> Option<(u64, u64)> {
        let asks = self.catch_up.next(at(ms), self.decided, self.elsewhere, self.leader, &self.pace);
        asks.iter().find_map(|(to, ask)| match ask {
            Ask::Chunk { offset, .. } => Some((to.0, *offset)),
            Ask::Slots { .. } => None,
        })
    }

    /// Takes an answer with these slots from a peer that keeps the slots of `keeps`.
    fn fetched(&mut self, ms: u64, peer: ReplicaId, from: u64, through: u64, keeps: (u64, u64)) {
        let arrived = Arrived { peer, first: Slot(from), batches: batches(from, through) };
        let keeps = Slot(keeps.0)..=Slot(keeps.1);
        self.catch_up.fetched(at(ms), arrived, keeps, self.decided, &self.pace);
        self.take();
    }

    fn take(&mut self) {
        while let Some(decided) = self.catch_up.front(self.decided.next()) {
            assert_eq!(decided.ballots.proposed.round, self.decided.0 + 1, "in order, each once");
            self.decided = self.decided.next();
            self.catch_up.delivered(self.decided);
        }
    }

    fn offered(&mut self, ms: u64, peer: ReplicaId, slot: u64, unsolicited: bool) -> bool {
        let info = SnapshotInfo { slot: Slot(slot), bytes: 10 };
        self.catch_up.offered(peer, info, self.decided, unsolicited, at(ms))
    }
}

#[test]
fn the_leader_is_asked_if_others_lack_it_however_long_a_question_waits() {
    let pace = Pace { delay: Duration::from_millis(200), forget: Duration::from_millis(6), ..PACE };
    let mut laggard = Laggard::new(&[R1, R2], 5, 9, pace);
    assert_eq!(laggard.next(0), []);
    assert_eq!(laggard.next(200), [(2, slots(6, 9))], "not of the leader");
    laggard.fetched(201, R2, 6, 5, (1, 5));
    assert_eq!(laggard.next(202), []);
    assert_eq!(laggard.next(402), [(1, slots(6, 9))]);
}

#[test]
fn missing_slots_are_asked_for_after_a_while_and_of_others_after_a_time_out() {
    let mut laggard = Laggard::new(&[R1, R2, R3], 5, 9, PACE);
    assert_eq!(laggard.next(0), []);
    laggard.decided = Slot(6);
    assert_eq!(laggard.next(5), [], "progress: what is missing is on its way");
    assert_eq!(laggard.catch_up.deadline(&PACE), Some(at(15)));
    assert_eq!(laggard.next(15), [(2, slots(7, 9))], "not of the leader");
    assert_eq!(laggard.next(20), []);
    assert_eq!(laggard.catch_up.deadline(&PACE), Some(at(115)));
    assert_eq!(laggard.next(115), [(1, slots(7, 9))], "of the leader if a peer does not answer");
    laggard.fetched(216, R1, 7, 8, (1, 9));
    assert_eq!(laggard.decided, Slot(8));
    assert_eq!(laggard.next(216), [(3, slots(9, 9))], "the rest is asked for at once");
    laggard.fetched(217, R2, 9, 9, (1, 9));
    assert_eq!(laggard.next(217), [], "a late answer is as good as another");
    assert_eq!(laggard.catch_up.deadline(&PACE), None);
}

#[test]
fn where_most_are_out_of_reach_the_leader_is_asked_second() {
    let mut laggard = Laggard::new(&[2, 3, 4, 5].map(ReplicaId), 1, 9, AT_ONCE);
    laggard.leader = Some(ReplicaId(5));
    let asked: Vec<_> = (0..8).flat_map(|round| laggard.next(100 * round)).map(|(peer, _)| peer).collect();
    assert_eq!(asked, [2, 5, 3, 5, 4, 5, 2, 5]);
}

#[test]
fn segments_are_asked_of_several_at_once_and_taken_in_order() {
    let mut laggard = Laggard::new(&[R1, R2, R3], 0, 100, AT_ONCE);
    assert_eq!(
        laggard.next(0),
        [(2, slots(1, 10)), (3, slots(11, 20))],
        "one each: who knows what they have"
    );
    laggard.fetched(1, R3, 11, 20, (1, 100));
    assert_eq!(laggard.decided, Slot(0));
    assert_eq!(laggard.catch_up.sources(), 2);
    laggard.catch_up.slot_bytes = SLOT_BYTES;
    assert_eq!(laggard.next(1), [(3, slots(21, 30)), (3, slots(31, 40))], "two if it is known");
    laggard.fetched(2, R2, 1, 4, (1, 100));
    assert_eq!(laggard.decided, Slot(4));
    laggard.catch_up.slot_bytes = SLOT_BYTES;
    assert_eq!(
        laggard.next(2),
        [(2, slots(5, 10)), (2, slots(41, 50))],
        "what an answer left out is asked for again, no more than is missing"
    );
    laggard.fetched(3, R2, 5, 10, (1, 100));
    assert_eq!(laggard.decided, Slot(20));
}

#[test]
fn a_lagging_peer_is_asked_for_what_it_has_and_the_leader_for_the_rest() {
    let mut laggard = Laggard::new(&[R1, R2, R3], 0, 30, AT_ONCE);
    laggard.catch_up.elsewhere = Slot(30);
    laggard.catch_up.told(R2, Slot(1), Slot(7), at(0));
    laggard.catch_up.told(R3, Slot(5), Slot(20), at(0));
    assert_eq!(
        laggard.next(0),
        [(2, slots(1, 7)), (3, slots(8, 17)), (3, slots(18, 20)), (1, slots(21, 30))]
    );
    let mut laggard = Laggard::new(&[R1, R2], 0, 30, AT_ONCE);
    laggard.catch_up.elsewhere = Slot(30);
    laggard.catch_up.told(R2, Slot(1), Slot(7), at(0));
    laggard.next(0);
    laggard.fetched(1, R2, 1, 7, (1, 7));
    laggard.fetched(1, R1, 8, 12, (1, 30));
    laggard.catch_up.slot_bytes = SLOT_BYTES;
    assert_eq!(laggard.next(7), [(1, slots(13, 22)), (1, slots(23, 30))]);
    laggard.elsewhere = Slot(40);
    assert_eq!(laggard.next(8), [(2, slots(31, 40))], "of what was decided since it has said nothing");
}

#[test]
fn what_waits_for_lower_slots_is_bounded() {
    let mut laggard = Laggard::new(&[R1, R2, R3], 0, 10_000, AT_ONCE);
    laggard.catch_up.told(R3, Slot(1), Slot(10_000), at(0));
    // r2 does not answer, and has the first segment.
    let mut open = laggard.next(0);
    assert_eq!(open.remove(0).0, 3);
    let (_, first) = open.remove(0);
    let mut most = 0;
    for ms in 1..90 {
        for (peer, (from, through)) in std::mem::take(&mut open) {
            if peer == 3 {
                laggard.fetched(ms, R3, from, through, (1, 10_000));
                laggard.catch_up.slot_bytes = SLOT_BYTES;
            }
        }
        open = laggard.next(ms);
        most = most.max(laggard.catch_up.ahead_bytes());
        assert!(laggard.catch_up.questions.len() <= SEGMENTS_MAX);
    }
    assert!(most > 0 && most <= PACE.answer_bytes * SEGMENTS_MAX, "{most}");
    assert!(first.0 > 0);
}

#[test]
fn an_ended_session_takes_its_questions_with_it() {
    let mut laggard = Laggard::new(&[R1, R2], 0, 9, AT_ONCE);
    assert_eq!(laggard.next(0), [(2, slots(1, 9))]);
    laggard.catch_up.linked(R2, false);
    assert!(laggard.catch_up.is_down(R2));
    assert_eq!(laggard.next(1), [(1, slots(1, 9))]);
    laggard.catch_up.linked(R2, true);
    laggard.catch_up.linked(R1, false);
    assert_eq!(laggard.next(2), [(2, slots(1, 9))]);
}

#[test]
fn every_peer_that_is_ahead_can_be_asked() {
    let mut laggard = Laggard::new(&[], 1, 9, AT_ONCE);
    assert_eq!(laggard.next(0), [], "nobody is known");
    laggard.catch_up.heard(ReplicaId(7));
    assert_eq!(laggard.next(0), [(7, slots(2, 9))]);
}

#[test]
fn what_is_pushed_need_not_be_asked_for() {
    let mut laggard = Laggard::new(&[R1, R2, R3], 0, 40, PACE);
    let push = |laggard: &mut Laggard, ms, from, through| {
        let arrived = Arrived { peer: R2, first: Slot(from), batches: batches(from, through) };
        laggard.catch_up.pushed(at(ms), arrived, Slot(40), laggard.decided, &PACE);
        laggard.take();
    };
    assert_eq!(laggard.next(0), []);
    push(&mut laggard, 5, 1, 20);
    assert_eq!(laggard.next(5), []);
    push(&mut laggard, 12, 31, 40);
    assert_eq!(laggard.next(12), []);
    laggard.catch_up.slot_bytes = SLOT_BYTES;
    assert_eq!(laggard.next(15), [(2, slots(21, 30))], "but what is lost must be");
    assert_eq!(laggard.catch_up.sources(), 1);
    laggard.fetched(16, R2, 21, 30, (1, 40));
    assert_eq!(laggard.decided, Slot(40));
}

#[test]
fn a_peer_that_sends_nothing_is_asked_at_once() {
    let mut laggard = Laggard::new(&[R1, R2, R3], 0, 40, PACE);
    assert_eq!(laggard.next(0), [], "it might come");
    laggard.catch_up.told(R2, Slot(1), Slot(40), at(1));
    laggard.catch_up.sends_nothing(at(1), &PACE);
    assert_eq!(laggard.next(1), [(2, slots(1, 10)), (3, slots(11, 20)), (2, slots(21, 30))]);

    let mut laggard = Laggard::new(&[R1, R2, R3], 0, 40, PACE);
    let arrived = Arrived { peer: R3, first: Slot(1), batches: batches(1, 20) };
    laggard.catch_up.pushed(at(0), arrived, Slot(40), laggard.decided, &PACE);
    laggard.take();
    laggard.catch_up.sends_nothing(at(1), &PACE);
    assert_eq!(laggard.next(1), [], "another one sends");
}

#[test]
fn a_snapshot_is_received_piece_by_piece() {
    let mut laggard = Laggard::new(&[R1, R2], 1, 9, AT_ONCE);
    assert!(!laggard.offered(0, R2, 8, false), "nobody asked");
    assert_eq!(laggard.next(5), [(2, slots(2, 9))]);
    assert!(laggard.offered(6, R2, 8, false));
    assert_eq!(laggard.chunk(6), Some((2, 0)));
    let piece =
        |laggard: &mut Laggard, from, offset, len| laggard.catch_up.piece(from, Slot(8), offset, 10, len);
    assert_eq!(piece(&mut laggard, R2, 5, 5), Piece::Unexpected);
    assert_eq!(piece(&mut laggard, R1, 0, 6), Piece::Unexpected);
    assert_eq!(piece(&mut laggard, R2, 0, 6), Piece::Write);
    assert_eq!(laggard.chunk(7), None, "the piece is being written");
    assert!(!laggard.catch_up.written(Slot(8), 6));
    assert_eq!(laggard.chunk(8), Some((2, 6)));
    assert_eq!(laggard.catch_up.deadline(&AT_ONCE), Some(at(108)));
    assert_eq!(laggard.chunk(108), Some((2, 6)), "a piece that does not come is asked for again");
    assert_eq!(piece(&mut laggard, R2, 6, 4), Piece::Write);
    assert!(laggard.catch_up.written(Slot(8), 10));
    laggard.catch_up.snapshot_done(true, at(109));
    assert!(laggard.catch_up.receiving().is_none());
}

#[test]
fn a_sender_of_a_snapshot_that_falls_silent_is_given_up() {
    let mut laggard = Laggard::new(&[R1, R2], 1, 9, AT_ONCE);
    laggard.next(0);
    assert!(laggard.offered(1, R2, 8, false));
    let asked = (1..).step_by(100).take_while(|&ms| laggard.chunk(ms).is_some()).count();
    assert_eq!(asked, 1 + PIECE_FAILURES_MAX as usize);
    assert_eq!(laggard.next(500), [(1, slots(2, 9))]);
    assert!(laggard.offered(501, R1, 8, false));
    // Nor is a peer whose file is gone asked for the snapshot again.
    assert!(laggard.chunk(501).is_some());
    assert_eq!(laggard.catch_up.piece(R1, Slot(8), 0, 0, 0), Piece::Gone);
    assert!(laggard.catch_up.receiving().is_none());
}

#[test]
fn no_snapshot_is_taken_while_a_peer_keeps_the_slots() {
    let mut laggard = Laggard::new(&[R1, R2, R3], 1, 9, AT_ONCE);
    laggard.catch_up.told(R3, Slot(1), Slot(6), at(0));
    laggard.catch_up.linked(R3, false);
    laggard.catch_up.linked(R1, false);
    assert_eq!(laggard.next(0), [(2, slots(2, 9))]);
    laggard.catch_up.linked(R3, true);
    assert!(!laggard.offered(1, R2, 8, false));
    assert_eq!(laggard.next(1)[0], (3, slots(2, 6)), "a follower that lags");
    // r3 has dropped these slots meanwhile.
    assert!(laggard.offered(2, R3, 7, false));
    assert_eq!(laggard.chunk(2), Some((3, 0)));
}

#[test]
fn a_snapshot_is_taken_also_while_an_answer_with_later_slots_is_on_its_way() {
    let mut laggard = Laggard::new(&[R2, R3], 1, 60, AT_ONCE);
    laggard.catch_up.told(R2, Slot(1), Slot(60), at(0));
    laggard.catch_up.told(R3, Slot(17), Slot(60), at(0));
    let asked = laggard.next(0);
    assert!(asked.iter().any(|&(peer, (from, _))| (peer, from) == (2, 2)), "{asked:?}");
    assert!(asked.iter().any(|&(peer, (from, _))| peer == 3 && from > 16), "{asked:?}");
    // r2 has dropped these slots meanwhile, and no other peer keeps what comes next.
    assert!(laggard.offered(1, R2, 16, false));
}

/// The slot that is needed first is asked of a peer that never answers. Whenever that question is given up,
/// the other peers have just said that they do not keep the slot: they keep offering a snapshot instead of
/// what they are asked for meanwhile.
#[test]
fn a_snapshot_is_taken_while_a_peer_that_never_answers_is_asked() {
    let mut laggard = Laggard::new(&[R1, R2, R3], 0, 60, AT_ONCE);
    laggard.catch_up.slot_bytes = usize::MAX;
    // A leader would be asked second.
    laggard.leader = None;
    let mut answers: Vec<(u64, ReplicaId)> = Vec::new();
    let taken = (0..1_000).any(|ms| {
        if ms == 0 || ms == 98 {
            for peer in [R1, R2] {
                laggard.catch_up.told(peer, Slot(41), Slot(60), at(ms));
            }
        }
        let (due, later): (Vec<_>, Vec<_>) = answers.drain(..).partition(|(when, _)| *when <= ms);
        answers = later;
        let taken = due.into_iter().any(|(_, peer)| laggard.offered(ms, peer, 40, false));
        let asked = laggard.next(ms).into_iter().filter(|(peer, _)| *peer != 3);
        answers.extend(asked.map(|(peer, _)| (ms + 5, ReplicaId(peer))));
        taken
    });
    assert!(taken);
}

#[test]
fn an_unsolicited_offer_is_taken_only_where_it_is_expected() {
    let mut laggard = Laggard::new(&[R1, R2], 1, 9, AT_ONCE);
    assert!(!laggard.offered(0, R2, 1, true), "it holds nothing new");
    assert!(laggard.offered(0, R2, 8, true));
    assert!(!laggard.offered(0, R1, 9, true), "one at a time");
}

/// Peers keep different slots, and answers are lost, late or cut short. Everything comes, in order, each slot
/// once, as long as a peer has it; and no peer is asked for what it said that it does not have.
#[test]
fn everything_comes_whatever_is_lost() {
    for seed in 0..200_u64 {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut draw = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        let ids: Vec<ReplicaId> = (1..=2 + draw(4)).map(ReplicaId).collect();
        let goal = 50 + draw(400);
        let pace = if draw(2) == 0 { PACE } else { AT_ONCE };
        let mut laggard = Laggard::new(&ids, 0, goal, pace);
        // The first peer, which leads, has everything.
        let mut keeps: Vec<(u64, u64)> = ids.iter().map(|_| (1 + draw(30), draw(goal) + 1)).collect();
        keeps[0] = (1, goal);
        let mut answers: Vec<(u64, ReplicaId, u64, u64)> = Vec::new();
        let mut ms = 0;
        while laggard.decided < Slot(goal) {
            ms += 1;
            assert!(ms < 60_000, "seed {seed}: stuck at {}", laggard.decided);
            let (due, later): (Vec<_>, Vec<_>) = answers.into_iter().partition(|(when, ..)| *when <= ms);
            answers = later;
            for (_, peer, from, through) in due {
                let has = keeps[peer.0 as usize - 1];
                if from < has.0 {
                    // The peer's snapshot is too old to help.
                    assert!(!laggard.offered(ms, peer, 0, false));
                    continue;
                }
                let through = through.min(has.1).min(from + draw(12));
                let through = if from > has.1 { from - 1 } else { through };
                laggard.fetched(ms, peer, from, through, has);
            }
            for (peer, (from, through)) in laggard.next(ms) {
                let known = laggard.catch_up.peers.iter().find(|known| known.id.0 == peer).unwrap();
                let rank = known.rank(Slot(from), laggard.leader, at(ms), &pace);
                // Only one that keeps later slots is asked again, since it may have a snapshot.
                let may_help = rank.is_some() || known.keeps_what_follows(Slot(from), at(ms), &pace);
                assert!(may_help, "seed {seed}: r{peer} has just said that it lacks {from}");
                if draw(5) > 0 {
                    answers.push((ms + 1 + draw(20), ReplicaId(peer), from, through));
                }
            }
            assert!(laggard.catch_up.questions.len() <= SEGMENTS_MAX);
            if draw(100) == 0 {
                laggard.catch_up.linked(ids[draw(ids.len() as u64) as usize], draw(2) == 0);
            }
            let deadline = laggard.catch_up.deadline(&pace);
            assert!(laggard.decided >= Slot(goal) || deadline.is_some_and(|at_| at_ > at(ms)), "seed {seed}");
        }
    }
}

/// Peers that have less than this replica answer, too; they must not keep it from asking those that have a snapshot.
#[test]
fn where_no_peer_keeps_what_is_missing_the_one_that_is_further_is_asked() {
    let mut laggard = Laggard::new(&[R2, R3], 9, 15, AT_ONCE);
    laggard.leader = None;
    assert_eq!(laggard.next(0), [(2, slots(10, 15))]);
    laggard.fetched(1, R2, 10, 9, (1, 9));
    laggard.catch_up.told(R3, Slot(14), Slot(15), at(1));
    // Both have just said that they lack it, but r3 was not asked, and may have a snapshot.
    assert_eq!(laggard.next(1), [(3, slots(10, 15))]);
    assert!(laggard.offered(2, R3, 14, false));
}

/// A peer that goes on answering puts off the time when an answer is overdue; what it did not answer must not
/// wait forever.
#[test]
fn a_peer_that_keeps_only_later_slots_is_asked_before_a_silent_one() {
    let mut laggard = Laggard::new(&[R2, R3], 9, 60, PACE);
    laggard.leader = None;
    let mut asked = Vec::new();
    for ms in 0..600 {
        // r3 is gone, and no replica can tell.
        laggard.catch_up.told(R2, Slot(50), Slot(60), at(ms));
        let asks = laggard.next(ms);
        for &(_, (from, through)) in asks.iter().filter(|(peer, _)| *peer == 2) {
            laggard.fetched(ms, R2, from, if from < 50 { from - 1 } else { through }, (50, 60));
        }
        asked.extend(asks);
    }
    let times = asked.iter().filter(|(peer, (from, _))| (*peer, *from) == (2, 10)).count();
    assert!((2..=60).contains(&times), "it may have a snapshot, and is not asked all the time: {asked:?}");
}

/// A learner of a group with one voter, which says after each slot that it keeps later slots only, asks it for a
/// snapshot.
#[test]
fn the_only_peer_is_asked_however_often_it_says_that_it_keeps_only_later_slots() {
    let mut laggard = Laggard::new(&[R2], 9, 60, PACE);
    let mut asked = 0;
    for ms in 0..600 {
        laggard.catch_up.told(R2, Slot(50), Slot(60 + ms), at(ms));
        for (_, (from, through)) in laggard.next(ms) {
            asked += u64::from(from == 10);
            laggard.fetched(ms, R2, from, if from < 50 { from - 1 } else { through }, (50, 60 + ms));
        }
    }
    assert!((2..=120).contains(&asked), "it may have a snapshot, and is not asked all the time: {asked}");
}

/// A replica that asks whenever a peer says how far it is must not go on asking another that has nothing, since the one
/// that speaks has just said that it keeps only later slots.
#[test]
fn a_peer_that_keeps_only_later_slots_is_asked_before_one_that_lacks_what_is_missing() {
    let mut laggard = Laggard::new(&[R2, R3], 9, 10, Pace { delay: Duration::from_millis(50), ..PACE });
    laggard.leader = None;
    let asks_for_snapshot = (0..1_000).any(|ms| {
        if ms % 10 == 0 {
            laggard.catch_up.told(R3, Slot(11), Slot(10), at(ms));
            laggard.catch_up.sends_nothing(at(ms), &laggard.pace);
        }
        let asks = laggard.next(ms);
        for &(_, (from, _)) in asks.iter().filter(|(peer, _)| *peer == 2) {
            laggard.fetched(ms, R2, from, from - 1, (1, 9));
        }
        asks.iter().any(|(peer, _)| *peer == 3)
    });
    assert!(asks_for_snapshot);
}

#[test]
fn an_answer_shows_that_those_to_earlier_questions_are_lost() {
    let mut laggard = Laggard::new(&[R2], 0, 20, AT_ONCE);
    assert_eq!(laggard.next(0), [(2, slots(1, 10))]);
    laggard.catch_up.told(R2, Slot(1), Slot(20), at(1));
    assert_eq!(laggard.next(1), [(2, slots(11, 20))]);
    laggard.fetched(50, R2, 11, 20, (1, 20));
    assert_eq!(laggard.next(50), [(2, slots(1, 10))], "again");
}

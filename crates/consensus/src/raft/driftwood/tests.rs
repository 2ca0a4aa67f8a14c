//! Rounds of gossip: who passes them on, who is answered, and what counts.

use super::*;
use crate::raft::{CommitStatus, MemberStatus, Merge, Replication, Round, RoundConflict, VoteRound};

const R5: ReplicaId = ReplicaId(5);
const FIVE: [ReplicaId; 5] = [R1, R2, R3, R4, R5];

fn options(replication: Replication) -> Options {
    let raft = Tuning { replication, round_fan_out: Some(4), status_echoes: 0, ..Tuning::default() };
    Options { raft, ..Options::default() }
}

fn follower(me: ReplicaId, replication: Replication) -> One {
    let mut one = One::start(Members::new(FIVE, me), &options(replication), Vec::new(), false);
    one.effects.drain();
    one
}

/// Makes r1 lead term 1 of five; its no-op is durable here and in slot 1.
fn leader(replication: Replication) -> (One, Vec<Effect>) {
    leader_with(&options(replication))
}

fn leader_with(options: &Options) -> (One, Vec<Effect>) {
    let mut one = One::start(Members::new(FIVE, R1), options, Vec::new(), false);
    one.effects.drain();
    one.wait(T * 2);
    for rehearsal in [true, false] {
        one.durable();
        for from in [R2, R3] {
            one.receive(from, Message::VoteReply { term: 1, rehearsal, granted: true });
        }
    }
    assert_eq!(one.role(), Role::Leader);
    let mut effects = one.durable();
    effects.extend(one.wait(Duration::from_millis(1)));
    (one, effects)
}

fn round(
    number: u64,
    leader: Ballot,
    prev: u64,
    prev_ballot: Ballot,
    entries: Vec<Entry>,
    commit: u64,
) -> Round {
    let (prev, commit) = (Slot(prev), Slot(commit));
    Round {
        ballot: leader,
        number,
        beat: 1,
        prev,
        prev_ballot,
        entries: entries.into(),
        commit,
        status: None,
    }
}

fn with_status(round: Round, commit: u64, held: &[(ReplicaId, u64)]) -> Round {
    let members = held.iter().map(|&(id, held)| MemberStatus { id, held: Slot(held), beat: 0 }).collect();
    let status = CommitStatus { merge: Merge::Vector, commit: Slot(commit), next: Slot::ZERO, members };
    Round { status: Some(status), ..round }
}

fn gossip(one: &mut One, from: ReplicaId, round: &Round) -> Vec<Effect> {
    one.receive(from, Message::Round(Box::new(round.clone())))
}

/// The rounds that leave, and for whom.
fn rounds(effects: &[Effect]) -> Vec<(Vec<ReplicaId>, Round, Lsn)> {
    let of = |effect: &Effect| match effect {
        Effect::Send { to, message: crate::Message::Raft(Message::Round(round)), after } => {
            let mut to = to.ids().to_vec();
            to.sort_unstable();
            Some((to, (**round).clone(), *after))
        }
        _ => None,
    };
    effects.iter().filter_map(of).collect()
}

fn others(effects: &[Effect], whom: ReplicaId) -> Vec<(Message, Lsn)> {
    let mut others = sent(effects, whom);
    others.retain(|(message, _)| !matches!(message, Message::Round(_)));
    others
}

#[test]
fn a_follower_passes_a_round_on_once_and_answers_its_leader() {
    let mut follower = follower(R2, Replication::GossipReplies);
    let first = round(1, ballot(1, R1), 0, Ballot::ZERO, vec![entry(1, R1, "a")], 0);
    let effects = gossip(&mut follower, R3, &first);
    let record = appended(&effects, |record| matches!(record, Record::Entries { .. }));
    assert_eq!(rounds(&effects), [(vec![R3, R4, R5], first.clone(), Lsn::ZERO)], "not to the leader");
    let reply = Message::RoundReply { ballot: ballot(1, R1), number: 1, through: Slot(1) };
    assert_eq!(others(&effects, R1), [(reply, record)]);
    assert_eq!(follower.protocol.status().view.leader, Some(R1));
    assert!(gossip(&mut follower, R4, &first).is_empty(), "it was here before");
    let late = round(0, ballot(1, R1), 0, Ballot::ZERO, vec![], 0);
    assert!(gossip(&mut follower, R1, &late).is_empty());
}

/// ERR-5: otherwise nobody behind it would hear of the round.
#[test]
fn a_round_that_does_not_fit_is_passed_on_and_removes_nothing() {
    let mut follower = follower(R2, Replication::GossipReplies);
    gossip(&mut follower, R1, &round(1, ballot(1, R1), 0, Ballot::ZERO, vec![entry(1, R1, "a")], 0));
    let effects =
        gossip(&mut follower, R1, &round(2, ballot(1, R1), 4, ballot(1, R1), vec![entry(1, R1, "e")], 4));
    assert_eq!(rounds(&effects).len(), 1);
    assert!(!effects.iter().any(|effect| matches!(effect, Effect::Append { .. })));
    let [(Message::RoundConflict(RoundConflict { prev: Slot(4), hint: Slot(1), .. }), _)] =
        others(&effects, R1)[..]
    else {
        panic!("{effects:?}")
    };
    assert_eq!(follower.protocol.status().decided_elsewhere, Slot(4), "it may catch up meanwhile");
}

/// ERR-2: a round, or what came directly, may be late and short.
#[test]
fn a_late_round_removes_nothing() {
    let mut follower = follower(R2, Replication::GossipReplies);
    let entries = vec![entry(1, R1, "a"), entry(1, R1, "b"), entry(1, R1, "c")];
    gossip(&mut follower, R1, &round(1, ballot(1, R1), 0, Ballot::ZERO, entries.clone(), 0));
    let effects =
        gossip(&mut follower, R1, &round(2, ballot(1, R1), 0, Ballot::ZERO, entries[..1].to_vec(), 0));
    assert!(!effects.iter().any(|effect| matches!(effect, Effect::Append { .. })), "{effects:?}");
    let reply =
        |number, through| Message::RoundReply { ballot: ballot(1, R1), number, through: Slot(through) };
    assert_eq!(others(&effects, R1)[0].0, reply(2, 1), "only what is known to be the leader's (ERR-6)");
    let effects = gossip(&mut follower, R1, &round(3, ballot(1, R1), 3, ballot(1, R1), vec![], 3));
    assert_eq!(delivered(&effects).len(), 3);
}

/// ERR-7: a new leader's rounds begin with 1 again.
#[test]
fn rounds_are_numbered_in_each_term_and_lower_terms_are_refused() {
    let mut follower = follower(R2, Replication::GossipReplies);
    gossip(&mut follower, R1, &round(300, ballot(1, R1), 0, Ballot::ZERO, vec![entry(1, R1, "a")], 0));
    let effects =
        gossip(&mut follower, R4, &round(1, ballot(2, R3), 0, Ballot::ZERO, vec![entry(2, R3, "b")], 0));
    assert_eq!(rounds(&effects).len(), 1);
    assert!(matches!(others(&effects, R3)[..], [(Message::RoundReply { number: 1, .. }, _)]));
    let effects = gossip(&mut follower, R4, &round(301, ballot(1, R1), 1, ballot(1, R1), vec![], 0));
    assert!(rounds(&effects).is_empty());
    assert!(matches!(others(&effects, R1)[..], [(Message::Stale { term: 2 }, _)]), "told to the leader");
}

/// h4: a round goes on for a while after its leader is gone.
#[test]
fn only_a_new_round_is_a_sign_of_life() {
    let mut follower = follower(R2, Replication::GossipStatus);
    let mut deadline = |number, wait: Duration| {
        follower.now += wait;
        let round = with_status(round(number, ballot(1, R1), 0, Ballot::ZERO, vec![], 0), 0, &[]);
        let message = Message::Round(Box::new(round)).into();
        follower.protocol.step(follower.now, Input::Receive { from: R3, message }, &mut follower.effects);
        follower.protocol.flush(follower.now, &mut follower.effects);
        follower.effects.drain().any(|effect| matches!(effect, Effect::Deadline(_)))
    };
    assert!(deadline(1, Duration::ZERO));
    assert!(!deadline(1, T / 2), "it was here before");
    assert!(deadline(2, T / 4));
}

#[test]
fn a_leader_counts_answers_to_its_rounds() {
    let (mut leader, effects) = leader(Replication::GossipReplies);
    let [(to, first, Lsn::ZERO)] = &rounds(&effects)[..] else { panic!("{effects:?}") };
    assert_eq!((to, first.entries.len(), first.status.is_none()), (&vec![R2, R3, R4, R5], 1, true));
    let reply =
        |number, through| Message::RoundReply { ballot: ballot(1, R1), number, through: Slot(through) };
    assert!(delivered(&leader.receive(R2, reply(1, 1))).is_empty());
    assert!(delivered(&leader.receive(R2, reply(1, 1))).is_empty(), "the same follower");
    assert!(delivered(&leader.receive(R3, reply(9, 1))).is_empty(), "no such round");
    assert_eq!(delivered(&leader.receive(R3, reply(1, 1))).len(), 1);
    // What waits goes with the next round.
    let effects = leader.propose("a");
    assert!(others(&effects, R2).is_empty());
    let effects = leader.wait(Duration::from_millis(1));
    let [(_, second, _)] = &rounds(&effects)[..] else { panic!("{effects:?}") };
    assert_eq!((second.prev, second.entries.len(), second.commit), (Slot(1), 1, Slot(1)));
    assert!(second.number > first.number);
}

/// Entries of an earlier term are committed only with one of this term behind them: a leader that told nothing else
/// before the first message was committed would tell nothing else at all.
#[test]
fn a_round_has_at_most_the_bytes_of_a_message_and_the_next_one_goes_on_where_it_ends() {
    let bytes_max = 2_500;
    let raft = Tuning { append_bytes_max: bytes_max, ..options(Replication::GossipReplies).raft };
    let options = Options { raft, ..Options::default() };
    let old = ["a", "b", "c", "d", "e"].map(|text| entry(1, R1, &text.repeat(1_000)));
    let records = vec![
        Record::Amnesia(false),
        Record::Term { term: 1, voted_for: Some(R1) },
        Record::Entries {
            first: Slot(1),
            entries: old.into(),
            decided: Slot::ZERO,
            decided_in: Ballot::ZERO,
        },
    ];
    let mut leader = One::start(Members::new(FIVE, R1), &options, records, false);
    leader.effects.drain();
    let mut effects = leader.wait(T * 2);
    for rehearsal in [true, false] {
        leader.durable();
        for from in [R2, R3] {
            effects.extend(leader.receive(from, Message::VoteReply { term: 2, rehearsal, granted: true }));
        }
    }
    assert_eq!(leader.role(), Role::Leader);
    effects.extend(leader.durable());
    for _ in 0..3 {
        effects.extend(leader.wait(Duration::from_millis(1)));
    }
    let told: Vec<Round> = rounds(&effects).into_iter().map(|(_, round, _)| round).collect();
    let pages: Vec<_> = told.iter().map(|round| (round.prev.0, round.entries.len())).collect();
    assert_eq!(pages[..3], [(0, 2), (2, 2), (4, 2)], "nobody has answered yet");
    let (ballot, number) = (ballot(2, R1), told[2].number);
    for from in [R2, R3] {
        let reply = Message::RoundReply { ballot, number: told[0].number, through: Slot(2) };
        assert!(delivered(&leader.receive(from, reply)).is_empty(), "it is of an earlier term");
    }
    let mut again = Vec::new();
    for _ in 0..20 {
        again.extend(rounds(&leader.wait(T / 20)));
    }
    let pages: Vec<_> = again.iter().map(|(_, round, _)| (round.prev.0, round.entries.len())).collect();
    let with_entries: Vec<_> = pages.iter().filter(|(_, count)| *count > 0).collect();
    assert_eq!(with_entries[..2], [&(2, 2), &(4, 2)], "a quorum has the first page: {pages:?}");
    assert!(pages.iter().all(|&(prev, count)| count > 0 || prev == 0), "an empty round fits more logs");
    for round in &told {
        let bytes: usize = round.entries.iter().map(|entry| entry.batch.bytes().len()).sum();
        assert!(bytes <= bytes_max, "{bytes} in round {}", round.number);
    }
    let mut decided = 0;
    for from in [R2, R3] {
        let reply = Message::RoundReply { ballot, number, through: Slot(6) };
        decided += delivered(&leader.receive(from, reply)).len();
    }
    assert_eq!(decided, 6, "with the entry of this term, which the third round brought");
    // What is larger than a message is one by itself.
    leader.propose(&"f".repeat(2 * bytes_max));
    let effects = leader.propose("g");
    let effects =
        [effects, leader.wait(Duration::from_millis(1)), leader.wait(Duration::from_millis(1))].concat();
    let pages: Vec<_> =
        rounds(&effects).iter().map(|(_, round, _)| (round.prev.0, round.entries.len())).collect();
    assert_eq!(pages[..2], [(6, 1), (7, 1)]);
}

#[test]
fn a_follower_whose_log_does_not_fit_is_served_directly_until_it_does() {
    let (mut leader, _) = leader(Replication::GossipReplies);
    for from in [R2, R3] {
        leader.receive(from, Message::RoundReply { ballot: ballot(1, R1), number: 1, through: Slot(1) });
    }
    leader.propose("a");
    let number = rounds(&leader.wait(Duration::from_millis(1)))[0].1.number;
    let conflict = Message::RoundConflict(RoundConflict {
        ballot: ballot(1, R1),
        number,
        prev: Slot(1),
        hint: Slot::ZERO,
        hint_ballot: Ballot::ZERO,
    });
    let effects = leader.receive(R4, conflict.clone());
    let [(Message::Append { prev: Slot(0), entries, session, .. }, _)] = &others(&effects, R4)[..] else {
        panic!("{effects:?}")
    };
    assert_eq!(entries.len(), 2);
    assert!(others(&leader.receive(R4, conflict), R4).is_empty(), "one at a time");
    leader.receive(R4, Message::AppendReply { ballot: ballot(1, R1), session: *session, through: Slot(2) });
    let effects = leader.propose("b");
    assert!(others(&effects, R4).is_empty(), "it fits again");
}

#[test]
fn a_follower_says_what_it_holds_once_that_is_durable_and_commits_by_itself() {
    let mut follower = follower(R2, Replication::GossipStatus);
    let entries = vec![entry(1, R1, "a"), entry(1, R1, "b")];
    let first = with_status(round(1, ballot(1, R1), 0, Ballot::ZERO, entries.clone(), 0), 0, &[(R1, 2)]);
    let effects = gossip(&mut follower, R3, &first);
    assert!(others(&effects, R1).is_empty(), "nobody answers");
    let [(to, passed_on, after)] = &rounds(&effects)[..] else { panic!("{effects:?}") };
    assert_eq!(*to, [R1, R3, R4, R5], "the leader as well");
    assert_eq!(
        *after,
        appended(&effects, |record| matches!(record, Record::Term { .. })),
        "it says that it follows"
    );
    let held = |round: &Round| -> Vec<(u64, u64)> {
        let status = round.status.as_ref().expect("a status");
        status.members.iter().map(|known| (known.id.0, known.held.0)).collect()
    };
    assert_eq!(held(passed_on), [(1, 2), (2, 0)], "its own is not durable yet");
    // The same round comes again with the bit of a third one, which would be a majority with this one's.
    let again = with_status(first.clone(), 0, &[(R1, 2), (R4, 2)]);
    let effects = gossip(&mut follower, R4, &again);
    assert!(rounds(&effects).is_empty() && delivered(&effects).is_empty());
    assert_eq!(delivered(&follower.durable()).len(), 2, "nobody told it, and the leader may not know");
    let second = with_status(round(2, ballot(1, R1), 0, Ballot::ZERO, entries, 0), 0, &[]);
    let passed_on = &rounds(&gossip(&mut follower, R1, &second))[0].1;
    assert_eq!(passed_on.status.as_ref().map(|status| status.commit), Some(Slot(2)));
}

/// ERR-9: what earlier terms left is no vote in this one.
#[test]
fn without_an_entry_of_the_term_a_replica_holds_nothing_and_commits_nothing() {
    let mut follower = follower(R2, Replication::GossipStatus);
    let old = vec![entry(1, R1, "a"), entry(1, R1, "b")];
    gossip(&mut follower, R1, &round(1, ballot(1, R1), 0, Ballot::ZERO, old, 0));
    follower.durable();
    let next =
        with_status(round(1, ballot(2, R3), 5, ballot(2, R3), vec![], 0), 5, &[(R3, 6), (R4, 6), (R5, 6)]);
    let effects = gossip(&mut follower, R3, &next);
    assert!(delivered(&effects).is_empty(), "its slots may differ (ERR-11)");
    assert_eq!(follower.protocol.status().decided_elsewhere, Slot(5));
    let effects = follower.durable();
    assert!(delivered(&effects).is_empty());
}

#[test]
fn a_leader_learns_what_all_know_from_its_own_rounds_and_confirms_reads_by_them() {
    let (mut leader, effects) = leader(Replication::GossipStatus);
    let first = rounds(&effects)[0].1.clone();
    let back = |commit, held: &[(ReplicaId, u64)], beat| {
        let mut round = with_status(first.clone(), commit, held);
        let status = round.status.as_mut().expect("a status");
        status.members.iter_mut().for_each(|known| known.beat = beat);
        round
    };
    assert!(delivered(&gossip(&mut leader, R4, &back(0, &[(R2, 1)], 0))).is_empty());
    assert_eq!(delivered(&gossip(&mut leader, R4, &back(0, &[(R3, 1)], 0))).len(), 1);
    leader.propose("a");
    leader.propose("b");
    let effects = leader.step(Input::Control(Control::ReadIndex(ReadToken(5))));
    assert!(!effects.iter().any(|effect| matches!(effect, Effect::ReadIndex { .. })));
    // It waits for everything that was proposed when it came: others may have committed that.
    let read = |effects: &[Effect]| {
        effects.iter().find_map(|effect| match effect {
            Effect::ReadIndex { slot, .. } => Some(*slot),
            _ => None,
        })
    };
    // The heartbeat that is under way began before the read.
    let effects = gossip(&mut leader, R2, &back(1, &[(R3, 0), (R4, 0)], 1));
    assert_eq!(read(&effects), None);
    let effects = gossip(&mut leader, R2, &back(1, &[(R3, 0), (R4, 0)], 2));
    assert_eq!(read(&effects), Some(Some(Slot(3))));
    leader.now += T / 2;
    assert!(leader.protocol.answers(leader.now, R4) && !leader.protocol.answers(leader.now, R5));
}

/// A leader that decides nothing stays for the reads that it serves (`progress_watch.rs`). With statuses it serves
/// none: a read waits for all that is proposed.
#[test]
fn a_leader_that_decides_nothing_gives_up_where_reads_wait_for_all_that_is_proposed() {
    for (replication, role) in
        [(Replication::GossipReplies, Role::Leader), (Replication::GossipStatus, Role::Follower)]
    {
        let (mut leader, _) = leader(replication);
        let first = round(1, ballot(1, R1), 0, Ballot::ZERO, vec![], 0);
        for from in [R2, R3] {
            if replication == Replication::GossipStatus {
                gossip(&mut leader, from, &with_status(first.clone(), 0, &[(from, 1)]));
            } else {
                let (ballot, through) = (ballot(1, R1), Slot(1));
                leader.receive(from, Message::RoundReply { ballot, number: 1, through });
            }
        }
        assert_eq!(leader.protocol.status().decided, Slot(1));
        leader.propose("x");
        leader.durable();
        for _ in 0..100 {
            // All answer its heartbeats, and none has its entry.
            let effects = leader.wait(T / 20);
            let beats = sent(&effects, R2).into_iter().filter_map(|(message, _)| match message {
                Message::Heartbeat { ballot, round, .. } => Some((ballot, round)),
                _ => None,
            });
            for (ballot, round) in beats {
                for from in [R2, R3] {
                    let ack = HeartbeatAck { ballot, round, decided: Slot(1), priority: 0 };
                    leader.receive(from, Message::HeartbeatAck(ack));
                }
            }
        }
        assert_eq!(leader.role(), role, "{replication:?}");
    }
}

#[test]
fn unbatched_there_is_a_message_for_each_entry_and_follower() {
    let (mut leader, _) = leader(Replication::Unbatched);
    for (from, session) in [(R2, 1), (R3, 2)] {
        leader.matched(from, session, 1);
    }
    for text in ["a", "b", "c"] {
        let input = Input::Propose { batch: batch(text), awaited: false };
        leader.protocol.step(leader.now, input, &mut leader.effects);
    }
    leader.protocol.flush(leader.now, &mut leader.effects);
    let effects: Vec<_> = leader.effects.drain().collect();
    let appends = |whom| sent(&effects, whom).len();
    assert_eq!([R2, R3, R4].map(appends), [3, 3, 0], "r4 is still asked where its log agrees");
}

/// Replicas whose messages take one hop of time each, and whose disks are immediate.
struct Net {
    ones: Vec<One>,
    now: Time,
    flight: Vec<(ReplicaId, ReplicaId, Message)>,
    /// Messages that r1 sent and took.
    leader_work: usize,
}

const HOP: Duration = Duration::from_micros(250);

impl Net {
    /// This many replicas, of which r1 leads.
    fn of(n: u64, raft: Tuning) -> Net {
        let options = Options { raft, ..Options::default() };
        let members = |me| Members::new((1..=n).map(ReplicaId), ReplicaId(me));
        let ones = (1..=n).map(|me| One::start(members(me), &options, Vec::new(), false)).collect();
        let mut net = Net { ones, now: Time::ZERO, flight: Vec::new(), leader_work: 0 };
        for one in &mut net.ones {
            one.effects.drain();
        }
        net.now += T * 2;
        net.step(0, Input::Timer);
        for _ in 0..40 {
            net.hop();
        }
        assert_eq!(net.ones[0].role(), Role::Leader);
        net
    }

    fn step(&mut self, of: usize, input: Input) {
        let one = &mut self.ones[of];
        one.now = self.now;
        let mut effects = one.step(input);
        effects.extend(one.durable());
        let from = ReplicaId(of as u64 + 1);
        for effect in effects {
            if let Effect::Send { to, message: crate::Message::Raft(message), .. } = effect {
                self.leader_work += if of == 0 { to.ids().len() } else { 0 };
                self.flight.extend(to.ids().iter().map(|&to| (from, to, message.clone())));
            }
        }
    }

    fn hop(&mut self) {
        self.now += HOP;
        for (from, to, message) in std::mem::take(&mut self.flight) {
            self.leader_work += usize::from(to == R1);
            self.step(to.0 as usize - 1, Input::Receive { from, message: message.into() });
        }
        self.step(0, Input::Timer);
    }

    /// Orders this many batches, one after the other; returns the hops and the leader's messages for one.
    fn order(&mut self, count: u32) -> (f64, f64) {
        let (mut hops, work) = (0, self.leader_work);
        for _ in 0..count {
            let before = self.ones[0].protocol.status().decided;
            self.step(0, Input::Propose { batch: batch("x"), awaited: false });
            while self.ones[0].protocol.status().decided == before {
                self.hop();
                hops += 1;
                assert!(hops < 400 * count, "it does not stall");
            }
        }
        (f64::from(hops) / f64::from(count), (self.leader_work - work) as f64 / f64::from(count))
    }
}

/// Any number of members: the sets are no words of 64 bits. The leader's work for a batch grows with the logarithm of
/// the group and not with its size; statuses that are told between rounds bring decisions sooner (section 6.2), and so
/// do vectors compared with sets.
#[test]
fn in_large_groups_statuses_spare_the_leader_and_find_decisions_soon() {
    let of = |n, replication, status_merge, status_echoes| {
        let raft = Tuning { replication, status_merge, status_echoes, ..Tuning::default() };
        let found = Net::of(n, raft).order(12);
        println!(
            "{n} replicas, {replication}, {status_merge}, {status_echoes} echoes: {found:?} hops, messages"
        );
        found
    };
    for n in [53, 125] {
        let (_, direct) = of(n, Replication::Direct, Merge::Vector, 0);
        let (_, replies) = of(n, Replication::GossipReplies, Merge::Vector, 0);
        let (hops, work) = of(n, Replication::GossipStatus, Merge::Vector, 0);
        let (hops_of_sets, _) = of(n, Replication::GossipStatus, Merge::LowerIfNews, 0);
        let (hops_with_echoes, _) = of(n, Replication::GossipStatus, Merge::Vector, 1);
        assert!(direct > 1.5 * n as f64, "each follower is sent something, and answers");
        assert!(
            replies < 1.2 * direct,
            "each follower answers, and as long as nothing waits there is one round a batch"
        );
        assert!(work < direct / 2.0, "{work} and {direct} messages");
        assert!(hops_with_echoes < hops, "{hops_with_echoes} and {hops} hops");
        assert!(hops <= hops_of_sets, "{hops} and {hops_of_sets} hops");
    }
}

/// A candidate that reaches one other replica only.
#[test]
fn votes_come_by_way_of_others_and_each_counts_once() {
    let raft =
        Tuning { vote_gossip: true, round_fan_out: Some(4), ..options(Replication::GossipStatus).raft };
    let options = Options { raft, ..Options::default() };
    let start = |me| {
        let mut one = One::start(Members::new(FIVE, me), &options, Vec::new(), false);
        one.effects.drain();
        one
    };
    let asked = |effects: &[Effect]| -> Option<VoteRound> {
        effects.iter().find_map(|effect| match effect {
            Effect::Send { message: crate::Message::Raft(Message::VoteRound(round)), .. } => {
                Some((**round).clone())
            }
            _ => None,
        })
    };
    let (mut candidate, mut second, mut third) = (start(R1), start(R2), start(R3));
    let mut effects = candidate.wait(T * 2);
    for rehearsal in [true, false] {
        effects.extend(candidate.durable());
        let round = asked(&effects).expect("it asks by gossip");
        assert_eq!((round.rehearsal, &round.granted[..]), (rehearsal, &[R1][..]));
        let passed_on =
            asked(&second.receive(R1, Message::VoteRound(Box::new(round.clone())))).expect("news");
        assert_eq!(passed_on.granted, [R1, R2]);
        assert!(asked(&second.receive(R4, Message::VoteRound(Box::new(round.clone())))).is_none(), "no news");
        let effects_of_third = third.receive(R2, Message::VoteRound(Box::new(passed_on)));
        let passed_on = asked(&effects_of_third).expect("news");
        assert_eq!(passed_on.granted, [R1, R2, R3]);
        if !rehearsal {
            let vote = |record: &Record| *record == Record::Term { term: 1, voted_for: Some(R1) };
            let record = appended(&effects_of_third, vote);
            let to_candidate = sent(&effects_of_third, R1);
            assert!(
                to_candidate.iter().all(|(_, after)| *after >= record),
                "its vote is durable before it is told"
            );
            let rival = VoteRound { candidate: R5, granted: vec![R5], ..round };
            let passed_on =
                asked(&third.receive(R4, Message::VoteRound(Box::new(rival)))).expect("news of a rival");
            assert_eq!(passed_on.granted, [R5], "it has voted in this term");
        }
        effects = candidate.receive(R2, Message::VoteRound(Box::new(passed_on)));
    }
    assert_eq!(candidate.role(), Role::Leader);
}

/// Votes of a term stay given, so what an earlier question of it has gathered counts for a later one. Those who
/// rehearse may change their minds.
#[test]
fn a_vote_that_was_given_to_an_earlier_question_of_the_term_is_not_lost() {
    let raft =
        Tuning { vote_gossip: true, round_fan_out: Some(4), ..options(Replication::GossipStatus).raft };
    let options = Options { raft, ..Options::default() };
    let asked = |effects: &[Effect]| {
        effects.iter().find_map(|effect| match effect {
            Effect::Send { message: crate::Message::Raft(Message::VoteRound(round)), .. } => {
                Some((**round).clone())
            }
            _ => None,
        })
    };
    let question = |rehearsal, attempt, granted: &[ReplicaId]| VoteRound {
        candidate: R1,
        term: 1,
        attempt,
        rehearsal,
        transfer: false,
        last: Slot::ZERO,
        last_ballot: Ballot::ZERO,
        granted: granted.to_vec(),
    };
    for (rehearsal, known) in [(true, vec![R1, R2]), (false, vec![R1, R2, R3])] {
        let mut one = One::start(Members::new(FIVE, R2), &options, Vec::new(), false);
        one.effects.drain();
        let mut ask = |round| asked(&one.receive(R4, Message::VoteRound(Box::new(round))));
        assert_eq!(ask(question(rehearsal, 7, &[R1, R3])).expect("news").granted, [R1, R2, R3]);
        let again = ask(question(rehearsal, 8, &[R1])).expect("it asks again");
        assert_eq!((again.attempt, again.granted), (8, known));
        let late = ask(question(rehearsal, 7, &[R1, R5]));
        let late = late.map(|late| (late.attempt, late.granted));
        assert_eq!(late, (!rehearsal).then(|| (8, vec![R1, R2, R3, R5])));
        assert_eq!(ask(question(rehearsal, 8, &[R1, R2])), None, "no news");
    }
    // The candidate itself has asked again when the answer to its first question comes.
    let mut one = One::start(Members::new(FIVE, R1), &options, Vec::new(), false);
    one.effects.drain();
    one.wait(T * 2);
    one.durable();
    for from in [R2, R3] {
        one.receive(from, Message::VoteReply { term: 1, rehearsal: true, granted: true });
    }
    let effects = one.durable();
    let first = asked(&effects).or_else(|| asked(&one.wait(T / 2))).expect("it asks");
    assert!(!first.rehearsal);
    let again = asked(&one.wait(T / 2)).expect("it asks again");
    assert!(again.attempt > first.attempt);
    one.receive(R3, Message::VoteRound(Box::new(VoteRound { granted: vec![R1, R2, R3], ..first })));
    assert_eq!(one.role(), Role::Leader);
}

/// In version 2 others find out by themselves what is committed, and the leader may hear of it by catch-up first.
#[test]
fn a_leader_that_learns_of_its_joint_configuration_goes_on_with_the_change() {
    let (mut one, _) = leader(Replication::GossipStatus);
    let own = ballot(1, R1);
    let told = with_status(round(1, own, 0, Ballot::ZERO, vec![], 0), 0, &[(R2, 1), (R3, 1)]);
    gossip(&mut one, R2, &told);
    assert_eq!(one.protocol.status().decided, Slot(1));
    let voters = VoterSets::joint(vec![R1, R2, R3], FIVE.to_vec());
    let batch = batch("change");
    let change = Control::ChangeVoters { voters: voters.clone(), batch: batch.clone() };
    one.step(Input::Control(change));
    let ballots = Ballots { proposed: own, decided: own };
    let effects =
        one.step(Input::Control(Control::Learn { slot: Slot(2), ballots, batch, voters: Some(voters) }));
    assert_eq!(delivered(&effects).len(), 1);
    appended(&effects, |record| {
        let Record::Entries { first: Slot(3), entries, .. } = record else { return false };
        entries[0].voters == Some(simple(&[R1, R2, R3]))
    });
}

#[test]
fn a_peer_serves_what_a_round_needs_if_its_log_is_the_leaders() {
    let raft = Tuning { peer_repair: true, ..options(Replication::GossipStatus).raft };
    let options = Options { raft, ..Options::default() };
    let start = |me| {
        let mut one = One::start(Members::new(FIVE, me), &options, Vec::new(), false);
        one.effects.drain();
        one
    };
    let (mut behind, mut peer) = (start(R2), start(R3));
    let entries = vec![entry(1, R1, "a"), entry(1, R1, "b")];
    let first = with_status(round(1, ballot(1, R1), 0, Ballot::ZERO, entries, 0), 0, &[]);
    gossip(&mut peer, R1, &first);
    let second = round(2, ballot(1, R1), 2, ballot(1, R1), vec![entry(1, R1, "c")], 0);
    let second = with_status(second, 0, &[]);
    gossip(&mut peer, R1, &second);
    let effects = gossip(&mut behind, R3, &second);
    assert!(others(&effects, R1).is_empty(), "it does not need the leader");
    let [(pull, _)] = &others(&effects, R3)[..] else { panic!("{effects:?}") };
    let answer = peer.receive(R2, pull.clone());
    let [(to, page, _)] = &rounds(&answer)[..] else { panic!("{answer:?}") };
    assert_eq!((&to[..], page.number, page.entries.len()), (&[R2][..], 0, 3));
    let effects = gossip(&mut behind, R3, page);
    assert!(rounds(&effects).is_empty(), "it is for one replica only");
    appended(
        &effects,
        |record| matches!(record, Record::Entries { first: Slot(1), entries, .. } if entries.len() == 3),
    );
    // A leader of a later term is known to r4, whose log ends in the earlier one.
    let mut other = start(R4);
    gossip(&mut other, R1, &first);
    gossip(&mut other, R5, &with_status(round(1, ballot(2, R5), 7, ballot(2, R5), vec![], 0), 0, &[]));
    let pull = Message::Pull { ballot: ballot(2, R5), hint: Slot::ZERO, hint_ballot: Ballot::ZERO };
    assert!(other.receive(R2, pull).is_empty(), "its log may differ from that leader's");
}

/// Replicas of five that pass rounds on without entries.
fn lazy(me: ReplicaId, replication: Replication) -> One {
    let raft = Tuning { lazy_push: Some(0), ..options(replication).raft };
    let options = Options { raft, ..Options::default() };
    let mut one = One::start(Members::new(FIVE, me), &options, Vec::new(), false);
    one.effects.drain();
    one
}

fn pulls(effects: &[Effect]) -> Vec<(ReplicaId, Message)> {
    let of = |effect: &Effect| match effect {
        Effect::Send { to, message: crate::Message::Raft(pull @ Message::Pull { .. }), .. } => {
            Some((to.ids()[0], pull.clone()))
        }
        _ => None,
    };
    effects.iter().filter_map(of).collect()
}

/// The position runs ahead of the entries; each replica that lacks them has them from the one that told it.
#[test]
fn a_round_goes_on_without_its_entries_and_they_follow_when_they_are_asked_for() {
    let [mut second, mut third, mut fourth] = [R2, R3, R4].map(|me| lazy(me, Replication::GossipReplies));
    let entries = vec![entry(1, R1, "a"), entry(1, R1, "b")];
    let first = round(1, ballot(1, R1), 0, Ballot::ZERO, entries.clone(), 0);
    let [(_, told, Lsn::ZERO)] = &rounds(&gossip(&mut second, R1, &first))[..] else { panic!("a round") };
    assert_eq!((told.prev, told.prev_ballot, told.entries.len()), (Slot(2), ballot(1, R1), 0));
    let effects = gossip(&mut third, R2, told);
    assert_eq!(rounds(&effects)[0].1, *told, "it goes on at once, although this replica lacks the entries");
    let [(R2, third_asks)] = &pulls(&effects)[..] else { panic!("{effects:?}") };
    assert!(
        others(&effects, R1).is_empty(),
        "it does not say that it has them, and the leader need not know"
    );
    let [(R3, fourth_asks)] = &pulls(&gossip(&mut fourth, R3, told))[..] else { panic!("it asks") };
    assert!(third.receive(R4, fourth_asks.clone()).is_empty(), "it does not have them itself");
    let page = rounds(&second.receive(R3, third_asks.clone()))[0].1.clone();
    let effects = gossip(&mut third, R2, &page);
    let reply = Message::RoundReply { ballot: ballot(1, R1), number: 1, through: Slot(2) };
    assert_eq!(others(&effects, R1)[0].0, reply);
    let [(to, page, _)] = &rounds(&effects)[..] else { panic!("{effects:?}") };
    assert_eq!((&to[..], page.number, &page.entries[..]), (&[R4][..], 0, &entries[..]), "now it has them");
    assert!(!gossip(&mut fourth, R3, page).is_empty());
    // What is here need not be asked for, and is answered to the leader.
    let again = Round { number: 2, ..told.clone() };
    let effects = gossip(&mut fourth, R2, &again);
    assert!(pulls(&effects).is_empty());
    assert!(matches!(others(&effects, R1)[..], [(Message::RoundReply { through: Slot(2), .. }, _)]));
}

#[test]
fn a_replica_waits_for_one_answer_at_a_time_and_then_asks_another_one() {
    let mut one = lazy(R2, Replication::GossipStatus);
    let told =
        |number, last| with_status(round(number, ballot(1, R1), last, ballot(1, R1), vec![], 0), 0, &[]);
    assert!(matches!(pulls(&gossip(&mut one, R3, &told(1, 2)))[..], [(R3, _)]));
    assert!(pulls(&gossip(&mut one, R4, &told(1, 2))).is_empty(), "it has asked");
    assert!(pulls(&gossip(&mut one, R4, &told(2, 5))).is_empty(), "and remembers what else it lacks");
    let entries = vec![entry(1, R1, "a"), entry(1, R1, "b")];
    let page = with_status(round(0, ballot(1, R1), 0, Ballot::ZERO, entries, 0), 0, &[]);
    let [(R4, Message::Pull { hint: Slot(2), .. })] = pulls(&gossip(&mut one, R3, &page))[..] else {
        panic!("it goes on with who told of more")
    };
    assert!(pulls(&gossip(&mut one, R5, &told(2, 5))).is_empty());
    one.now += one.protocol.options().retransmit_after;
    assert!(matches!(pulls(&gossip(&mut one, R5, &told(2, 5)))[..], [(R5, _)]), "no answer came");
    one.step(Input::Link { peer: R5, link: crate::Link::Down });
    assert!(matches!(pulls(&gossip(&mut one, R3, &told(2, 5)))[..], [(R3, _)]), "none will come");
    // The leader's own copy comes last, and brings the entries of which others brought the position.
    let entries = vec![entry(1, R1, "c"), entry(1, R1, "d"), entry(1, R1, "e")];
    let effects =
        gossip(&mut one, R1, &with_status(round(2, ballot(1, R1), 2, ballot(1, R1), entries, 0), 0, &[]));
    appended(&effects, |record| matches!(record, Record::Entries { first: Slot(3), .. }));
    assert!(rounds(&effects).is_empty(), "it was passed on before");
}

/// A slot and a term name one entry, so a position says as much as entries do; the slot alone says nothing.
#[test]
fn a_position_fits_no_log_with_another_entry_there() {
    let mut one = lazy(R2, Replication::GossipReplies);
    gossip(
        &mut one,
        R1,
        &round(1, ballot(1, R1), 0, Ballot::ZERO, vec![entry(1, R1, "a"), entry(1, R1, "b")], 0),
    );
    let effects = gossip(&mut one, R3, &round(1, ballot(2, R4), 2, ballot(2, R4), vec![], 0));
    assert!(others(&effects, R4).is_empty(), "no answer: slot 2 is of another term");
    let [(R3, Message::Pull { hint: Slot(0), .. })] = pulls(&effects)[..] else { panic!("{effects:?}") };
    let entries = vec![entry(2, R4, "c"), entry(2, R4, "d")];
    let effects = gossip(&mut one, R3, &round(0, ballot(2, R4), 0, Ballot::ZERO, entries, 0));
    appended(&effects, |record| *record == Record::Truncated { from: Slot(1), last: Slot(2) });
    assert!(matches!(others(&effects, R4)[..], [(Message::RoundReply { through: Slot(2), .. }, _)]));
}

#[test]
fn small_entries_travel_with_the_round_and_questions_end_with_their_term() {
    let raft = Tuning { lazy_push: Some(500), ..options(Replication::GossipReplies).raft };
    let options = Options { raft, ..Options::default() };
    let mut one = One::start(Members::new(FIVE, R2), &options, Vec::new(), false);
    one.effects.drain();
    let small = round(1, ballot(1, R1), 0, Ballot::ZERO, vec![entry(1, R1, "a")], 0);
    assert_eq!(rounds(&gossip(&mut one, R1, &small))[0].1, small);
    let large = round(2, ballot(1, R1), 1, ballot(1, R1), vec![entry(1, R1, &"b".repeat(500))], 0);
    assert!(rounds(&gossip(&mut one, R1, &large))[0].1.entries.is_empty());
    let pull = Message::Pull { ballot: ballot(1, R1), hint: Slot(2), hint_ballot: ballot(1, R1) };
    assert!(one.receive(R3, pull).is_empty(), "there is no more");
    let next = round(1, ballot(2, R4), 2, ballot(1, R1), vec![entry(2, R4, "c")], 0);
    let effects = gossip(&mut one, R4, &next);
    assert_eq!(rounds(&effects).len(), 1, "r3 asked for what r1 had");
}

#[test]
fn a_leader_begins_rounds_as_fast_as_they_come_back() {
    let raft = Tuning { round_interval: None, ..options(Replication::GossipReplies).raft };
    let options = Options { raft, ..Options::default() };
    let step = Duration::from_micros(100);
    let mut spaced = [300, 20_000].map(|micros| {
        let (mut leader, _) = leader_with(&options);
        // The time until the next round that brings something, and its number.
        let next_round = |leader: &mut One| {
            let mut effects = leader.propose("x");
            effects.extend(leader.durable());
            let number = |effects: &[Effect]| rounds(effects).iter().map(|(_, round, _)| round.number).next();
            let mut sent = number(&effects);
            let mut steps = 0;
            while sent.is_none() {
                (sent, steps) = (number(&leader.wait(step)), steps + 1);
                assert!(steps < 1_000, "it leads on");
            }
            (steps * step, sent.expect("a round"))
        };
        for slot in 1..=40 {
            let (_, number) = next_round(&mut leader);
            leader.wait(Duration::from_micros(micros));
            for from in [R2, R3] {
                leader.receive(
                    from,
                    Message::RoundReply { ballot: ballot(1, R1), number, through: Slot(slot) },
                );
            }
            // Without heartbeats nothing else is sent meanwhile.
            leader.wait(Duration::from_millis(45));
        }
        next_round(&mut leader);
        next_round(&mut leader).0
    });
    spaced.sort_unstable();
    assert!(spaced[0] < Duration::from_millis(1) && spaced[1] > Duration::from_millis(7), "{spaced:?}");
}

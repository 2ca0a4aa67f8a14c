//! Rounds of gossip: how a leader's entries reach the voters by way of each other (Driftwood 2023, chapter 3).
//!
//! The leader sends a **round** to a few voters: the entries after its committed prefix, or after those of earlier
//! terms that a quorum is known to have. A voter that sees the round for the first time passes it on to a few others,
//! and takes the entries in. With `gossip-replies` (version 1) it answers the leader. With `gossip-status` (version 2)
//! it does not: every copy of a round carries the [`CommitStatus`] of the replica that sends it.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use synod_wire::{Incarnation, Lsn, ReplicaId, Slot, Time};

use super::{
    RoundConflict, VoteRound, commit_status::CommitStatus, messages::Round, pace::Pace, pulls::Pulls,
};
use crate::{
    Effects, Link, Options, VoterSets,
    leadership::Leads,
    raft::{
        Message, Raft, Replication, State,
        follower::AppendOutcome,
        log::{Position, fitting},
    },
};

/// What a replica remembers of rounds, whether it leads or not.
#[derive(Clone, Debug, Default)]
pub(in crate::raft) struct Gossip {
    /// Orders the targets of this replica: the state of a generator of pseudo-random numbers.
    seed: u64,
    /// The other replicas as of the last time, and in the order in which this one sends to them.
    others: Vec<ReplicaId>,
    order: Vec<ReplicaId>,
    /// The place in that order of the replica that is sent something next.
    sent: usize,
    /// The voters to which this replica has no session any more: nothing that is sent there would arrive.
    down: BTreeSet<ReplicaId>,
    /// The last round of the present term that this replica has seen.
    seen: u64,
    pub(super) status: CommitStatus,
    /// How often this replica may still tell of its status before it passes on the next round.
    echoes_left: u8,
    /// Whether it has learned something since it last told.
    pub(super) has_news: bool,
    /// Of each candidate the last attempt to be elected, and the replicas that are known to vote for it.
    pub(super) votes: BTreeMap<ReplicaId, VoteRound>,
    /// How often this replica has asked for votes by gossip, in all lives.
    pub(super) attempts: u64,
    /// Which replicas were asked for entries, and by which.
    pub(super) pulls: Pulls,
}

impl Gossip {
    pub(in crate::raft) fn new(life: Incarnation, me: ReplicaId, committed: Slot) -> Gossip {
        let seed = mixed(life.0) ^ mixed(me.0);
        let mut gossip = Gossip { seed, attempts: life.0 << 32, ..Gossip::default() };
        gossip.status.raise(committed);
        gossip
    }

    /// A new term begins, in which rounds are numbered from 1 on.
    pub(in crate::raft) fn enter_term(&mut self) {
        (self.seen, self.echoes_left, self.has_news) = (0, 0, false);
        self.pulls = Pulls::default();
    }

    /// Records what happened to the session to a peer.
    pub(in crate::raft) fn link(&mut self, peer: ReplicaId, link: Link, voters: &VoterSets) {
        self.down.retain(|id| voters.contains(*id));
        if link != Link::Up {
            self.pulls.lost(peer);
        }
        match link {
            Link::Up => drop(self.down.remove(&peer)),
            Link::Down | Link::Refused if voters.contains(peer) => drop(self.down.insert(peer)),
            Link::Down | Link::Refused | Link::Renewed => {}
        }
    }

    /// Those of these replicas to which there may be a session; all of them if there is none to any.
    pub(super) fn within_reach(&self, mut others: Vec<ReplicaId>) -> Vec<ReplicaId> {
        if others.iter().any(|id| !self.down.contains(id)) {
            others.retain(|id| !self.down.contains(id));
        }
        others
    }

    /// The next replicas to send to: each replica goes round all others (Algorithm 1; ERR-1), each time in another
    /// order. With one order, rounds that differ by turns, such as those with entries and those without, would each
    /// reach the same ones only.
    pub(super) fn targets(
        &mut self,
        others: &[ReplicaId],
        fan_out: usize,
        except: Option<ReplicaId>,
    ) -> Vec<ReplicaId> {
        if self.others != others {
            (self.others, self.order, self.sent) = (others.to_vec(), others.to_vec(), 0);
            self.shuffle();
        }
        let count = fan_out.min(self.order.len());
        let mut next = Vec::with_capacity(count);
        while next.len() < count {
            if self.sent == self.order.len() {
                self.sent = 0;
                self.shuffle();
            }
            let id = self.order[self.sent];
            self.sent += 1;
            if !next.contains(&id) {
                next.push(id);
            }
        }
        next.retain(|&id| Some(id) != except);
        next
    }

    fn shuffle(&mut self) {
        self.seed = mixed(self.seed);
        let seed = self.seed;
        self.order.sort_unstable_by_key(|id| (mixed(seed ^ id.0), *id));
    }
}

/// A number that looks random (splitmix64).
fn mixed(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// To how many of this many voters each sends a round, if no number is given: the logarithm reaches nearly all.
fn fan_out(voters: usize) -> usize {
    match voters {
        0..=7 => 2,
        8..=20 => 3,
        21..=54 => 4,
        55..=148 => 5,
        _ => 6,
    }
}

/// When the leader begins rounds.
#[derive(Clone, Debug)]
pub(in crate::raft) struct Rounds {
    /// The last round.
    pub(super) number: u64,
    /// When it began.
    began: Time,
    /// Entries through this slot were in a round at least once.
    newest: Slot,
    /// The end of the last round's entries, if there was no room for all: the next round goes on there.
    page_end: Option<Slot>,
    /// Whether a round should begin although there may be nothing in it: it says that the leader lives, or what is
    /// committed.
    wanted: bool,
    /// Whether this replica has learned something since the last round that the others may not know.
    news: bool,
    /// After a round that brings nothing new the next one waits longer.
    gap: Duration,
    /// When entries that were in a round before are in one again.
    again_at: Time,
    again_gap: Duration,
    pub(super) pace: Pace,
}

impl Rounds {
    pub(super) fn new(now: Time, options: &Options) -> Rounds {
        let pace = Pace::new(options);
        let interval = pace.interval();
        Rounds {
            number: 0,
            began: Time::ZERO,
            newest: Slot::ZERO,
            page_end: None,
            wanted: true,
            news: false,
            gap: interval,
            again_at: now,
            again_gap: interval,
            pace,
        }
    }

    /// A round is wanted, even an empty one.
    pub(super) fn want(&mut self) {
        self.wanted = true;
    }

    /// This replica has learned something.
    fn has_news(&mut self) {
        (self.news, self.gap) = (true, self.pace.interval());
    }

    /// When the next round is due; `waits` says that something is not committed, `last` is the last slot that could be
    /// told.
    pub(super) fn due(&self, how: Replication, last: Slot, waits: bool) -> Time {
        let soon = self.began + self.pace.interval();
        match how {
            _ if self.number == 0 => Time::ZERO,
            _ if self.wanted || waits && (last > self.newest || self.page_end.is_some()) => soon,
            _ if !waits => Time::NEVER,
            Replication::GossipStatus => (self.began + self.gap).min(self.again_at).max(soon),
            _ => self.again_at.max(soon),
        }
    }
}

impl Raft {
    /// Begins a round if one is due.
    pub(super) fn begin_round(&mut self, now: Time, effects: &mut Effects) {
        if now < self.round_at() {
            return;
        }
        let (status, others) = (self.status_to_tell(), self.others());
        let (decided, last) = (self.decided, self.log.last_written());
        // Where nobody answers, only what is committed is known to be at a quorum.
        let gained = if self.has_status() { decided } else { self.gained() };
        let State::Leader(leader) = &mut self.state else { return };
        let Some(rounds) = &mut leader.rounds else { return };
        let interval = rounds.pace.interval();
        let again_max = self.options.retransmit_after.max(interval);
        // Only entries of this term commit those before it, so a leader does not wait for a page to be committed before
        // it sends the next one, and does not begin again with what a quorum has of earlier terms.
        let page_end = rounds.page_end.filter(|&end| end < last);
        let fresh = last > rounds.newest;
        let has_entries = fresh || page_end.is_some() || now >= rounds.again_at;
        let prev = if has_entries { page_end.map_or(gained, |end| end.max(gained)) } else { decided };
        let prev_ballot = self.log.ballot_at(prev);
        let Some(prev_ballot) = prev_ballot else {
            // More terms came and went than a log remembers.
            rounds.began = now;
            return;
        };
        if fresh {
            (rounds.gap, rounds.again_gap) = (interval, interval);
        }
        let unanswered = !fresh && now >= rounds.again_at && rounds.again_gap >= again_max && last > decided;
        let entries = if has_entries {
            rounds.again_at = now + rounds.again_gap;
            rounds.again_gap = (rounds.again_gap * 2).min(again_max);
            let (count, _) = fitting(self.log.from(prev.next()), self.options.raft.append_bytes_max);
            self.log.share(prev.next(), count)
        } else {
            [].into()
        };
        let end = Slot(prev.0 + entries.len() as u64);
        rounds.page_end = Some(end).filter(|_| !entries.is_empty() && end < last);
        rounds.newest = rounds.newest.max(end);
        rounds.gap = if rounds.news { interval } else { (rounds.gap * 2).min(again_max) };
        (rounds.news, rounds.wanted) = (false, false);
        (rounds.number, rounds.began) = (rounds.number + 1, now);
        // Where nobody is to answer an empty round, it is not waited for.
        if status.is_some() || !entries.is_empty() {
            rounds.pace.begins(rounds.number, now);
        }
        let (number, beat, commit) = (rounds.number, leader.duties.rounds.last(), decided);
        let ballot = leader.ballot;
        leader.told_voters(commit);
        if unanswered {
            leader.serve_directly(last);
        }
        let fan_out = fan_out_of(&self.options, others.len() + 1);
        let others = self.gossip.within_reach(others);
        let targets = self.gossip.targets(&others, fan_out, None);
        let round = Round { ballot, number, beat, prev, prev_ballot, entries, commit, status };
        effects.send_each(targets, Message::Round(Box::new(round)), Lsn::ZERO);
    }

    /// The voters except this replica.
    pub(super) fn others(&self) -> Vec<ReplicaId> {
        let mut others = self.voters().all();
        others.retain(|&id| id != self.members.me());
        others
    }

    /// The voters except this replica, and the leader: it may be about to leave, and must learn that it may.
    fn others_with(&self, leader: ReplicaId) -> Vec<ReplicaId> {
        let mut others = self.others();
        if !others.contains(&leader) {
            others.push(leader);
        }
        others
    }

    /// Takes in a round, which another replica than its leader may have passed on.
    pub(super) fn handle_round(
        &mut self,
        now: Time,
        from: ReplicaId,
        mut round: Box<Round>,
        effects: &mut Effects,
    ) {
        let (ballot, leader) = (round.ballot, round.ballot.replica);
        if leader == self.members.me() {
            return self.on_own_round(now, &round, effects);
        }
        if ballot.round > self.term {
            self.enter_term(now, ballot.round, None, effects);
        }
        let news = round.status.as_ref().is_some_and(|status| self.take_status(ballot, status));
        if ballot.round < self.term {
            // The replica that passed it on hears of the term as well: it may be the only one that this one reaches.
            let told = BTreeSet::from([leader, from]);
            return effects.send_each(told, Message::Stale { term: self.term }, self.term_lsn);
        }
        if round.number <= self.gossip.seen {
            self.gossip.has_news |= news;
            if round.number == 0 && !round.entries.is_empty() {
                // A peer answers: what it sends is for this replica only.
                let number = self.gossip.seen;
                self.take_page(now, from, Round { number, ..*round }, effects);
            } else if self.is_first_with_entries(from, &round) {
                self.take_round(now, from, *round, effects);
            }
            // It is no sign of life: a round goes on for a while after its leader is gone.
            return self.settle(now, effects);
        }
        (self.gossip.seen, self.gossip.echoes_left) = (round.number, self.options.raft.status_echoes);
        self.obey(now, ballot, effects);
        if round.status.is_some() {
            self.gossip.status.raise(round.commit);
            self.gossip.status.beat(self.members.me(), round.beat);
            round.status = self.status_to_tell();
            self.gossip.has_news = false;
        }
        self.pass_on(&round, effects);
        self.take_round(now, from, *round, effects);
        self.settle(now, effects);
    }

    /// Passes a round on, whether it fits this replica's log or not (ERR-5). A status says of this replica that it
    /// follows, so its term must be durable; the entries of others are no promise of this one.
    fn pass_on(&mut self, round: &Round, effects: &mut Effects) {
        let leader = round.ballot.replica;
        let others = self.others_with(leader);
        let (after, except) =
            if round.status.is_some() { (self.term_lsn, None) } else { (Lsn::ZERO, Some(leader)) };
        let fan_out = fan_out_of(&self.options, others.len() + 1);
        let others = self.gossip.within_reach(others);
        let targets = self.gossip.targets(&others, fan_out, except);
        effects.send_each(targets, Message::Round(Box::new(self.without_entries(round))), after);
    }

    /// Tells others what this replica has learned since it passed the last round on; a few times a round. It is no
    /// round, and has the number 0: nobody takes it for a sign of life, or passes it on.
    pub(super) fn echo(&mut self, effects: &mut Effects) {
        let follows = matches!(self.state, State::Follower);
        if !self.gossip.has_news || self.gossip.echoes_left == 0 || !follows {
            return;
        }
        let Some(status) = self.status_to_tell() else { return };
        (self.gossip.has_news, self.gossip.echoes_left) = (false, self.gossip.echoes_left - 1);
        let ballot = self.gossip.status.ballot();
        let others = self.others_with(ballot.replica);
        let fan_out = fan_out_of(&self.options, others.len() + 1);
        let others = self.gossip.within_reach(others);
        let targets = self.gossip.targets(&others, fan_out, None);
        let echo = Round::echo(ballot, status);
        effects.send_each(targets, Message::Round(Box::new(echo)), self.term_lsn);
    }

    /// Whether a copy of a round that this replica has seen is of use although others came before: the first ones may
    /// have brought the position of entries only, and then this one brings the entries, or names another replica that
    /// may be asked for them.
    fn is_first_with_entries(&self, from: ReplicaId, round: &Round) -> bool {
        if self.options.raft.lazy_push.is_none() || round.number == 0 || round.number < self.gossip.seen {
            return false;
        }
        let is_from_peer = from != round.ballot.replica;
        self.conflict(round.end()).is_some() && (is_from_peer || self.conflict(round.before()).is_none())
    }

    pub(super) fn take_round(&mut self, now: Time, from: ReplicaId, round: Round, effects: &mut Effects) {
        let answers = round.status.is_none() && round.says_something();
        let Round { ballot, number, prev, prev_ballot, entries, commit, status, beat: _ } = round;
        let rules = self.gossip_rules();
        let prev_ballot = rules.compares(prev_ballot, self.log.ballot_at(prev), !entries.is_empty());
        match self.take_in(prev, prev_ballot, entries, effects) {
            AppendOutcome::Conflicts(hint) if self.pulls() && from != ballot.replica => {
                self.pull(now, from, ballot, Position { slot: prev, ballot: prev_ballot }, hint, effects);
            }
            AppendOutcome::Conflicts(Position { slot: hint, ballot: hint_ballot }) => {
                let conflict = RoundConflict { ballot, number, prev, hint, hint_ballot };
                effects.send(ballot.replica, Message::RoundConflict(conflict), self.term_lsn);
            }
            AppendOutcome::Nothing => return,
            AppendOutcome::Holds { through, after } if answers => {
                let through = rules.replies_through(through, self.log.last_written());
                effects.send(ballot.replica, Message::RoundReply { ballot, number, through }, after);
            }
            AppendOutcome::Holds { .. } => {}
        }
        if status.is_none() {
            self.handle_commit(commit, effects);
        }
    }

    /// A round that this replica began comes back with what another one knows.
    fn on_own_round(&mut self, now: Time, round: &Round, effects: &mut Effects) {
        let Some(status) = &round.status else { return };
        if !matches!(&self.state, State::Leader(leader) if leader.ballot == round.ballot) {
            return;
        }
        let news = self.take_status(round.ballot, status);
        let known: Vec<_> = self.gossip.status.known().collect();
        let last = self.log.last_written();
        let (decided, retransmit_after) = (self.decided, self.options.retransmit_after);
        let State::Leader(leader) = &mut self.state else { return };
        if let Some(rounds) = &mut leader.rounds {
            rounds.pace.returns(round.number, now);
            if news {
                rounds.has_news();
            }
        }
        for known in known {
            leader.knows(known, last, decided, now, retransmit_after);
        }
        self.settle(now, effects);
        self.confirm_reads(effects);
        self.hand_over(now, effects);
    }
}

pub(super) fn fan_out_of(options: &crate::Options, voters: usize) -> usize {
    options.raft.round_fan_out.map_or_else(|| fan_out(voters), usize::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn others(n: u64, me: u64) -> Vec<ReplicaId> {
        (1..=n).filter(|&id| id != me).map(ReplicaId).collect()
    }

    #[test]
    fn a_replica_goes_round_all_others_before_it_sends_to_one_again() {
        for (n, fan_out) in [(5, 2), (31, 4), (125, 5), (125, 3)] {
            let mut gossip = Gossip::new(Incarnation(1), ReplicaId(1), Slot::ZERO);
            let others = others(n, 1);
            let rounds = others.len().div_ceil(fan_out);
            let mut met: Vec<ReplicaId> =
                (0..rounds).flat_map(|_| gossip.targets(&others, fan_out, None)).collect();
            met.truncate(others.len());
            assert_ne!(met, others, "each in an order of its own");
            met.sort_unstable();
            assert_eq!(met, others);
        }
        let mut gossip = Gossip::new(Incarnation(1), ReplicaId(1), Slot::ZERO);
        let by_turns: Vec<_> = (0..40).map(|_| gossip.targets(&others(5, 1), 2, None)).step_by(2).collect();
        assert!(
            by_turns.iter().any(|targets| *targets != by_turns[0]),
            "every second round does not reach the same"
        );
        assert_eq!(gossip.targets(&others(3, 1), 9, None).len(), 2, "there are no more");
        assert_eq!(gossip.targets(&others(3, 1), 2, Some(ReplicaId(2))), [ReplicaId(3)]);
        assert_eq!(gossip.targets(&[], 2, None), []);
    }

    #[test]
    fn a_replica_sends_nothing_where_it_has_no_session_unless_it_has_none_at_all() {
        let mut gossip = Gossip::new(Incarnation(1), ReplicaId(1), Slot::ZERO);
        let (all, voters) = (others(5, 1), VoterSets::simple(others(5, 0)));
        gossip.link(ReplicaId(9), Link::Down, &voters);
        for id in [2, 3, 4] {
            gossip.link(ReplicaId(id), Link::Down, &voters);
        }
        assert_eq!(gossip.within_reach(all.clone()), [ReplicaId(5)]);
        gossip.link(ReplicaId(3), Link::Renewed, &voters);
        gossip.link(ReplicaId(2), Link::Up, &voters);
        assert_eq!(gossip.within_reach(all.clone()), [ReplicaId(2), ReplicaId(5)]);
        for id in [2, 5] {
            gossip.link(ReplicaId(id), Link::Refused, &voters);
        }
        assert_eq!(gossip.within_reach(all.clone()), all);
        assert_eq!(gossip.down.len(), 4, "only voters");
    }

    #[test]
    fn the_fan_out_grows_with_the_logarithm_of_the_group() {
        assert_eq!([1, 2, 3, 5, 8, 31, 53, 125].map(fan_out), [2, 2, 2, 2, 3, 4, 4, 5]);
    }

    /// The share of replicas that one round does not reach is 1 - x with
    /// x = 1 - exp(-F x); and the longest time without a round, counted in rounds.
    #[test]
    fn one_round_reaches_as_many_as_chance_would_and_nobody_is_left_out_for_long() {
        let n = 125;
        for (fan_out, missed, gap_max) in [(2, 0.203, 14), (3, 0.059, 8), (5, 0.007, 5)] {
            let mut all: Vec<Gossip> =
                (1..=n).map(|id| Gossip::new(Incarnation(1), ReplicaId(id), Slot::ZERO)).collect();
            let (mut unreached, mut last_reached, mut gap) = (0, vec![0; n as usize], 0);
            let rounds = 400;
            for round in 1..=rounds {
                let (mut reached, mut queue) = (vec![false; n as usize], vec![1]);
                reached[0] = true;
                while let Some(id) = queue.pop() {
                    for target in all[id as usize - 1].targets(&others(n, id), fan_out, None) {
                        if !std::mem::replace(&mut reached[target.0 as usize - 1], true) {
                            queue.push(target.0);
                        }
                    }
                }
                for (reached, last) in reached.iter().zip(&mut last_reached) {
                    if *reached {
                        gap = gap.max(round - *last);
                        *last = round;
                    } else {
                        unreached += 1;
                    }
                }
            }
            let share = f64::from(unreached) / f64::from(rounds) / n as f64;
            assert!((share - missed).abs() < 0.02, "fan-out {fan_out}: {share}");
            assert!(gap <= gap_max, "fan-out {fan_out}: {gap} rounds without one");
        }
    }
}

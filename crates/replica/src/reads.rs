//! Linearizable reads without a log write.
//!
//! A read must see everything that was acknowledged before it began. The leader finds the slot to wait for by
//! asking a quorum whether it still leads; a follower asks the leader. Reads that come while a question is
//! under way share the next one.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};

use synod_consensus::{Bug, Control, Input, ReadToken};
use synod_wire::{Incarnation, Slot, Time};

use crate::{Action, ReadId, Replica, message::Routed, relay::RelayRoute};

/// The most questions under way at a time: one is answered while the next collects reads.
const ROUNDS_MAX: usize = 2;

/// The most questions of other replicas that may wait here.
const REMOTE_MAX: usize = 1024;

/// Reads that share one question.
#[derive(Debug)]
struct Round {
    reads: Vec<(ReadId, Time)>,
    /// Those of them that were confirmed before, and still wait for their slot.
    confirmed: BTreeSet<ReadId>,
    asked: Time,
}

/// A question of another replica.
#[derive(Debug)]
struct Remote {
    /// The way on which the answer goes back.
    route: RelayRoute,
    /// The asker's own token.
    token: u64,
    asked: Time,
}

/// Where a question came from.
#[derive(Debug, PartialEq, Eq)]
pub enum Asker {
    /// From a client of this replica.
    Here,
    /// From another replica: the way back, and the token that it gave the question.
    Peer(RelayRoute, u64),
}

/// The most reads that may wait here; more are refused.
pub const READS_MAX: usize = 1 << 16;

/// The reads of this replica's clients, and the questions of other replicas, that wait here.
#[derive(Debug)]
pub struct Reads {
    /// The reads that no question was asked for yet.
    waiting: VecDeque<(ReadId, Time)>,
    rounds: BTreeMap<u64, Round>,
    /// The reads whose question was answered, but whose slot this replica does not have yet.
    confirmed: Vec<(Slot, ReadId, Time)>,
    /// When a question was last asked for these.
    confirmed_asked: Time,
    /// The questions of other replicas that the protocol here has to answer, by the tokens that it was given.
    remote: BTreeMap<u64, Remote>,
    last_token: u64,
}

impl Reads {
    /// A table without reads. Tokens of different lives differ, so that an answer to an earlier life, which
    /// may be on its way for long, is not taken for an answer to this one.
    pub fn new(incarnation: Incarnation) -> Reads {
        Reads {
            waiting: VecDeque::new(),
            rounds: BTreeMap::new(),
            confirmed: Vec::new(),
            confirmed_asked: Time::ZERO,
            remote: BTreeMap::new(),
            last_token: incarnation.0 << 32,
        }
    }

    /// How many reads wait.
    pub fn len(&self) -> usize {
        let asked: usize = self.rounds.values().map(|round| round.reads.len()).sum();
        self.waiting.len() + asked + self.confirmed.len()
    }

    /// Adds a read of a client of this replica.
    pub fn add(&mut self, read: ReadId, now: Time) {
        self.waiting.push_back((read, now));
    }

    fn token(&mut self) -> u64 {
        self.last_token += 1;
        self.last_token
    }

    /// Begins a question for all reads that wait, unless enough are under way.
    pub fn ask(&mut self, now: Time) -> Option<ReadToken> {
        if self.waiting.is_empty() || self.rounds.len() >= ROUNDS_MAX {
            return None;
        }
        let token = self.token();
        let reads = self.waiting.drain(..).collect();
        self.rounds.insert(token, Round { reads, confirmed: BTreeSet::new(), asked: now });
        Some(ReadToken(token))
    }

    /// When reads that were confirmed have waited for their slot for so long that it may never come, unless enough
    /// questions are under way.
    pub fn confirmed_again_at(&self, retry: Duration) -> Option<Time> {
        let oldest = self.confirmed.iter().map(|(_, _, began)| *began).min()?;
        (self.rounds.len() < ROUNDS_MAX).then_some(oldest.max(self.confirmed_asked) + retry)
    }

    /// Begins another question for the reads that are confirmed, if it is due. Where nobody leads, a member of a quorum
    /// may name a slot that it alone accepted, and lose that with its memory: then nothing is decided there until
    /// somebody writes.
    ///
    /// Each of the two answers covers what was acknowledged before the read began, so the lower slot will do. A read so
    /// never waits for more than at first, however often the question is asked.
    pub fn ask_for_confirmed(&mut self, now: Time, retry: Duration) -> Option<ReadToken> {
        if self.confirmed_again_at(retry).is_none_or(|at| now < at) {
            return None;
        }
        let token = self.token();
        let confirmed = self.confirmed.iter().map(|(_, read, _)| *read).collect();
        self.rounds.insert(token, Round { reads: Vec::new(), confirmed, asked: now });
        self.confirmed_asked = now;
        Some(ReadToken(token))
    }

    /// Adds a question of another replica; `None` if too many wait already: it asks again.
    pub fn ask_for(&mut self, route: RelayRoute, token: u64, now: Time) -> Option<ReadToken> {
        if self.remote.len() >= REMOTE_MAX {
            return None;
        }
        let own = self.token();
        self.remote.insert(own, Remote { route, token, asked: now });
        Some(ReadToken(own))
    }

    /// How many questions of other replicas wait.
    pub fn remote(&self) -> usize {
        self.remote.len()
    }

    /// Gives up the questions of other replicas, since the protocol that had to answer them runs no more;
    /// returns where they came from, each with its token.
    pub fn fail_remote(&mut self) -> Vec<(RelayRoute, u64)> {
        std::mem::take(&mut self.remote).into_values().map(|remote| (remote.route, remote.token)).collect()
    }

    /// Gives up the questions of other replicas that came at or before `asked_max`; returns where they came
    /// from, each with its token.
    pub fn expire_remote(&mut self, asked_max: Time) -> Vec<(RelayRoute, u64)> {
        let expired = self.remote.extract_if(.., |_, remote| remote.asked <= asked_max);
        expired.map(|(_, remote)| (remote.route, remote.token)).collect()
    }

    /// Where the question came from that is answered.
    pub fn asker(&mut self, token: ReadToken) -> Asker {
        let remote = self.remote.remove(&token.0);
        remote.map_or(Asker::Here, |Remote { route, token, .. }| Asker::Peer(route, token))
    }

    /// Records that a question is answered: its reads may go on as soon as this replica has the slot.
    pub fn answered(&mut self, token: u64, slot: Slot) {
        let Some(round) = self.rounds.remove(&token) else { return };
        for (waits_for, _, _) in self.confirmed.iter_mut().filter(|(_, id, _)| round.confirmed.contains(id)) {
            *waits_for = slot.min(*waits_for);
        }
        self.confirmed.extend(round.reads.into_iter().map(|(read, began)| (slot, read, began)));
    }

    /// The oldest question that is not answered.
    pub fn first_asked(&self) -> Option<u64> {
        self.rounds.keys().next().copied()
    }

    /// The reads that may go on now that slots through `decided` are known.
    pub fn ready(&mut self, decided: Slot) -> Vec<(ReadId, Slot)> {
        let ready = self.confirmed.extract_if(.., |(slot, _, _)| *slot <= decided);
        ready.map(|(slot, read, _)| (read, slot)).collect()
    }

    /// Lets everything be asked again: the replica that was asked may not have got the question, or does not
    /// lead any more.
    pub fn ask_again(&mut self) {
        for (_, round) in std::mem::take(&mut self.rounds).into_iter().rev() {
            round.reads.into_iter().rev().for_each(|read| self.waiting.push_front(read));
        }
    }

    /// Lets everything be asked again at the end of an epoch, even what was answered: the leader that
    /// answered does not know what the next epoch decides.
    pub fn start_over(&mut self) {
        self.ask_again_after(Slot::ZERO);
    }

    /// Lets everything be asked again, even what was answered with a slot after `decided`. The leader that answered may
    /// have named a slot that it had only proposed; if it is gone, nothing may ever be decided there.
    ///
    /// That is linearizable: what was acknowledged before a read began was also acknowledged before the later question,
    /// so the answer to that one covers it.
    pub fn ask_again_after(&mut self, decided: Slot) {
        let unreached: Vec<_> = self.confirmed.extract_if(.., |(slot, _, _)| *slot > decided).collect();
        for (_, read, began) in unreached.into_iter().rev() {
            self.waiting.push_front((read, began));
        }
        self.ask_again();
    }

    /// Whether a question was asked longer than `retry` ago.
    pub fn overdue(&self, now: Time, retry: Duration) -> bool {
        self.rounds.values().any(|round| now.since(round.asked) >= retry)
    }

    /// When the oldest question is overdue.
    pub fn retry_at(&self, retry: Duration) -> Option<Time> {
        self.rounds.values().map(|round| round.asked + retry).min()
    }

    /// When the oldest question of another replica came.
    pub fn oldest_remote(&self) -> Option<Time> {
        // Tokens grow with time.
        self.remote.values().next().map(|remote| remote.asked)
    }

    /// When the oldest read began.
    pub fn oldest(&self) -> Option<Time> {
        let waiting = self.waiting.iter().map(|(_, began)| *began);
        let asked = self.rounds.values().flat_map(|round| round.reads.iter().map(|(_, began)| *began));
        let confirmed = self.confirmed.iter().map(|(_, _, began)| *began);
        waiting.chain(asked).chain(confirmed).min()
    }

    /// Gives up the reads that began at or before `began_max`.
    pub fn expire(&mut self, began_max: Time) -> Vec<ReadId> {
        let mut expired = Vec::new();
        let mut keep = |&(read, began): &(ReadId, Time)| {
            if began <= began_max {
                expired.push(read);
            }
            began > began_max
        };
        self.waiting.retain(&mut keep);
        self.rounds.values_mut().for_each(|round| round.reads.retain(&mut keep));
        self.confirmed.retain(|&(_, read, began)| keep(&(read, began)));
        self.rounds.retain(|_, round| !round.reads.is_empty() || !round.confirmed.is_empty());
        expired
    }
}

impl Replica {
    /// Asks the leader how far the log must be executed before waiting reads may be answered.
    pub(crate) fn ask_reads(&mut self, now: Time, actions: &mut Vec<Action>) {
        if self.reads.overdue(now, self.forward_retry()) {
            self.reads.ask_again();
        }
        let Some(route) = self.leader_route() else { return };
        let confirmed =
            self.confirmed_again_at().and_then(|_| self.reads.ask_for_confirmed(now, self.forward_retry()));
        for token in self.reads.ask(now).into_iter().chain(confirmed) {
            if route.to == self.me {
                self.input(now, Input::Control(Control::ReadIndex(token)), actions);
            } else {
                self.send_on(route, Routed::ReadIndex { token: token.0 }, actions);
            }
        }
    }

    /// When this replica asks again for reads that wait for a slot: where nobody leads. Where a leader is gone, another
    /// view begins, with which everything is asked again.
    pub(crate) fn confirmed_again_at(&self) -> Option<Time> {
        self.instance.taker_without_leader(self.me)?;
        self.leader_route()?;
        self.reads.confirmed_again_at(self.forward_retry())
    }

    /// The protocol answers a question.
    pub(crate) fn read_index(&mut self, token: ReadToken, slot: Option<Slot>, actions: &mut Vec<Action>) {
        match self.reads.asker(token) {
            Asker::Here => self.reads_answered(token.0, slot),
            Asker::Peer(route, token) => {
                self.send_on(route, Routed::ReadIndexAnswer { token, slot }, actions);
            }
        }
    }

    /// Tells other replicas that their questions are not answered here, so that they ask elsewhere.
    pub(crate) fn refuse_reads(&mut self, asked: Vec<(RelayRoute, u64)>, actions: &mut Vec<Action>) {
        for (route, token) in asked {
            self.send_on(route, Routed::ReadIndexAnswer { token, slot: None }, actions);
        }
    }

    /// The protocol that was to answer other replicas runs no more.
    pub(crate) fn fail_remote_reads(&mut self, actions: &mut Vec<Action>) {
        if !self.has(Bug::LeakRemoteReads) {
            let asked = self.reads.fail_remote();
            self.refuse_reads(asked, actions);
        }
    }

    /// Takes the answer to a question of this replica.
    pub(crate) fn reads_answered(&mut self, token: u64, slot: Option<Slot>) {
        // A replica that says no does not lead: ask again when somebody does, or when the question is overdue.
        if let Some(slot) = slot {
            self.reads.answered(token, slot);
        }
    }

    /// Lets reads go on whose slot has come.
    pub(crate) fn release_reads(&mut self, actions: &mut Vec<Action>) {
        for (read, slot) in self.reads.ready(self.decided.last()) {
            actions.push(Action::ReadAt { read, slot });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Time {
        Time::ZERO + Duration::from_millis(ms)
    }

    /// Reads 1 and 2 are confirmed for slot 5, read 3 is asked for, and read 4 waits. Each began at its own number.
    fn in_every_stage() -> (Reads, ReadToken) {
        let mut reads = Reads::new(Incarnation(1));
        reads.add(ReadId(1), at(1));
        reads.add(ReadId(2), at(2));
        let first = reads.ask(at(2)).unwrap();
        reads.answered(first.0, Slot(5));
        reads.add(ReadId(3), at(3));
        let second = reads.ask(at(3)).unwrap();
        reads.add(ReadId(4), at(4));
        (reads, second)
    }

    #[test]
    fn a_read_counts_until_it_is_served_or_given_up() {
        let (mut reads, token) = in_every_stage();
        assert_eq!(reads.len(), 4);
        assert_eq!(reads.oldest(), Some(at(1)));
        assert_eq!(reads.ready(Slot(4)), []);
        assert_eq!(reads.ready(Slot(5)), [(ReadId(1), Slot(5)), (ReadId(2), Slot(5))]);
        assert_eq!(reads.len(), 2);
        reads.answered(token.0, Slot(6));
        assert_eq!(reads.ready(Slot(6)), [(ReadId(3), Slot(6))]);
        assert_eq!((reads.len(), reads.oldest()), (1, Some(at(4))));
    }

    #[test]
    fn what_another_leader_answered_is_asked_again_unless_its_slot_is_decided() {
        let (mut reads, token) = in_every_stage();
        reads.answered(token.0, Slot(9));
        reads.ask_again_after(Slot(5));
        assert_eq!(reads.ready(Slot(9)), [(ReadId(1), Slot(5)), (ReadId(2), Slot(5))]);
        assert_eq!((reads.len(), reads.oldest()), (2, Some(at(3))));
        let token = reads.ask(at(6)).unwrap();
        reads.answered(token.0, Slot(6));
        assert_eq!(reads.ready(Slot(6)), [(ReadId(3), Slot(6)), (ReadId(4), Slot(6))]);
    }

    /// The slot that was named is never decided: the member that had accepted something there lost it in a crash.
    #[test]
    fn what_was_confirmed_is_asked_again_and_waits_for_the_lower_slot() {
        let retry = Duration::from_millis(10);
        let (mut reads, second) = in_every_stage();
        assert_eq!(reads.confirmed_again_at(retry), Some(at(11)));
        assert_eq!(reads.ask_for_confirmed(at(10), retry), None);
        let again = reads.ask_for_confirmed(at(11), retry).unwrap();
        assert_eq!((reads.confirmed_again_at(retry), reads.len()), (None, 4), "two questions are under way");
        reads.answered(second.0, Slot(7));
        reads.answered(again.0, Slot(4));
        assert_eq!(reads.ready(Slot(4)), [(ReadId(1), Slot(4)), (ReadId(2), Slot(4))]);
        // Read 3 was confirmed after that question. A higher slot makes no read wait for more.
        let later = reads.ask_for_confirmed(at(21), retry).unwrap();
        reads.answered(later.0, Slot(70));
        assert_eq!(reads.ready(Slot(7)), [(ReadId(3), Slot(7))]);
        assert_eq!(reads.confirmed_again_at(retry), None);
    }

    #[test]
    fn a_read_is_given_up_in_whatever_stage_it_is() {
        let (mut reads, token) = in_every_stage();
        assert_eq!(reads.expire(at(0)), []);
        assert_eq!(reads.expire(at(1)), [ReadId(1)]);
        assert_eq!(reads.len(), 3);
        let mut expired = reads.expire(at(3));
        expired.sort_unstable();
        assert_eq!(expired, [ReadId(2), ReadId(3)]);
        assert_eq!(reads.retry_at(Duration::ZERO), None, "nobody waits for that question any more");
        reads.answered(token.0, Slot(5));
        assert_eq!(reads.ready(Slot(5)), [], "its answer comes late");
        assert_eq!(reads.expire(at(4)), [ReadId(4)]);
        assert_eq!((reads.len(), reads.oldest()), (0, None));
    }
}

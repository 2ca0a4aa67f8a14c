//! What a replica knows of how far the logs of all replicas go, and what follows from it: version 2 of Driftwood 2023,
//! section 3.2, with its errata.
//!
//! Every copy of a round carries the status of the replica that sends it. Each replica merges what it is told into its
//! own status, and a replica that sees a quorum commits by itself; nobody answers the leader. What a status says of a
//! log is said of one ballot, and true forever: *this replica had, durably, the log of that ballot's leader through
//! this slot, where it has an entry of that ballot*. `docs/driftwood.md` has the argument.
//!
//! | here | Driftwood 2023 |
//! | --- | --- |
//! | `commit` | MaxCommit |
//! | `next` | NextCommit; only bitmaps have it |
//! | `held` | the bitmap, or the vector that replaces it |
//! | [`CommitStatus::merge`] | Merge, Algorithm 3 |
//! | [`CommitStatus::settle`] | Update, Algorithm 2, with the rule for a replica's own bit |

use std::collections::BTreeMap;

use synod_wire::{Ballot, ReplicaId, Slot};

use crate::{VoterSets, options::choice};

choice! {
    /// How a replica merges another one's commit status into its own.
    #[derive(Default)]
    Merge, "status merge" {
        #[default]
        /// For each replica the highest slot that it is known to hold; the greater one counts.
        Vector = "vec",
        /// A set of the replicas that hold one slot, which goes back to a lower slot if it learns something there.
        LowerIfNews = "lownew",
        /// The same set, as the document prints it. It stalls where one replica is the only link between others: it is
        /// there to show that.
        Printed = "print",
    }
}

/// A commit status as a message carries it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// How it is merged, which the leader has chosen for its ballot.
    pub merge: Merge,
    /// Slots through this one are committed.
    pub commit: Slot,
    /// The slot that is voted for; [`Slot::ZERO`] in a vector.
    pub next: Slot,
    /// What is known of each replica, in ascending order.
    pub members: Vec<MemberStatus>,
}

/// What a commit status says of one replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberStatus {
    /// The replica.
    pub id: ReplicaId,
    /// It holds the leader's log through this slot; [`Slot::ZERO`] if nothing is known beyond what is committed.
    pub held: Slot,
    /// The last heartbeat of the leader after which it still followed.
    pub beat: u64,
}

/// What a replica knows of how far all logs go.
#[derive(Clone, Debug, Default)]
pub(super) struct CommitStatus {
    /// The ballot of which everything but `commit` is said.
    ballot: Ballot,
    merge: Merge,
    /// Slots through this one are committed. It never decreases.
    commit: Slot,
    /// The slot that is voted for, after `commit`.
    next: Slot,
    /// In a vector, the slot through which each replica holds the leader's log. With a bitmap, `next` for each replica
    /// that has its bit set.
    held: BTreeMap<ReplicaId, Slot>,
    /// The last heartbeat after which each replica still followed.
    beats: BTreeMap<ReplicaId, u64>,
}

impl CommitStatus {
    pub(super) fn ballot(&self) -> Ballot {
        self.ballot
    }

    pub(super) fn commit(&self) -> Slot {
        self.commit
    }

    /// The slot that a replica is known to hold.
    pub(super) fn held_by(&self, id: ReplicaId) -> Slot {
        self.held.get(&id).copied().unwrap_or_default()
    }

    /// Begins again for another ballot: what was said of logs was said of the ballot before (D21).
    pub(super) fn begin(&mut self, ballot: Ballot, merge: Merge, forgets: bool) {
        (self.ballot, self.merge) = (ballot, merge);
        if forgets {
            self.held.clear();
            self.beats.clear();
            self.next = self.commit.next();
        }
    }

    /// Records that slots through this one are committed.
    pub(super) fn raise(&mut self, commit: Slot) {
        self.commit = self.commit.max(commit);
        if self.next <= self.commit {
            self.next = self.commit.next();
            if self.merge != Merge::Vector {
                self.held.clear();
            }
        }
    }

    /// Takes in what another replica said of the same ballot, as far as it is said of replicas of which `counts` is
    /// true. Returns whether that is news.
    pub(super) fn merge(&mut self, told: &Status, counts: impl Fn(ReplicaId) -> bool) -> bool {
        // With bitmaps every change of the set changes its size, or the slot that it is for.
        let before = (self.commit, self.next, self.held.len());
        let members = || told.members.iter().filter(|known| counts(known.id));
        let mut news = false;
        self.commit = self.commit.max(told.commit);
        match self.merge {
            Merge::Vector => {
                for known in members() {
                    news |= self.hold(known.id, known.held);
                }
                self.next = self.next.max(self.commit.next());
            }
            Merge::LowerIfNews | Merge::Printed => {
                let bits: Vec<_> =
                    members().filter(|known| known.held != Slot::ZERO).map(|known| known.id).collect();
                self.merge_bits(told.next, &bits);
            }
        }
        news |= before != (self.commit, self.next, self.held.len());
        for known in members() {
            news |= self.beat(known.id, known.beat);
        }
        debug_assert!(self.next > self.commit, "what is voted for is not committed");
        news
    }

    /// Forgets what was said of replicas that do not vote any more, once these could be more than those that do.
    pub(super) fn forget_others(&mut self, voters: &VoterSets, me: ReplicaId) {
        let count = voters.incoming().len() + voters.outgoing().len() + 1;
        if self.held.len().max(self.beats.len()) > count {
            let counts = |id| id == me || voters.contains(id);
            self.held.retain(|&id, _| counts(id));
            self.beats.retain(|&id, _| counts(id));
        }
    }

    /// The bits that another replica has set for the slot `next`.
    fn merge_bits(&mut self, next: Slot, bits: &[ReplicaId]) {
        if self.next <= self.commit {
            // The other one is ahead.
            self.next = next.max(self.commit.next());
            self.held.clear();
            self.or(next, bits);
        } else if self.next <= next {
            // A bit for a later slot holds for every slot before it.
            self.or(next, bits);
        } else if self.merge == Merge::LowerIfNews
            && next > self.commit
            && bits.iter().any(|id| !self.held.contains_key(id))
        {
            self.next = next;
            self.held.values_mut().for_each(|held| *held = next);
            self.or(next, bits);
        }
    }

    fn or(&mut self, next: Slot, bits: &[ReplicaId]) {
        if next >= self.next {
            self.held.extend(bits.iter().map(|&id| (id, self.next)));
        }
    }

    /// A replica holds the leader's log through a slot, where that has an entry of the ballot. Returns whether that is
    /// news.
    pub(super) fn hold(&mut self, id: ReplicaId, through: Slot) -> bool {
        match self.merge {
            Merge::Vector if through > Slot::ZERO => {
                let held = self.held.entry(id).or_default();
                let news = through > *held;
                *held = through.max(*held);
                news
            }
            Merge::LowerIfNews | Merge::Printed if through >= self.next => {
                self.held.insert(id, self.next).is_none()
            }
            _ => false,
        }
    }

    /// A replica still followed after a heartbeat. Returns whether that is news.
    pub(super) fn beat(&mut self, id: ReplicaId, beat: u64) -> bool {
        let last = self.beats.entry(id).or_default();
        let news = beat > *last;
        *last = beat.max(*last);
        news
    }

    /// What is known of each replica: the slot that it holds, and the heartbeat after which it followed.
    pub(super) fn known(&self) -> impl Iterator<Item = MemberStatus> {
        let all: std::collections::BTreeSet<ReplicaId> =
            self.held.keys().chain(self.beats.keys()).copied().collect();
        let held = |id| self.held.get(&id).copied().unwrap_or_default();
        let beat = |id| self.beats.get(&id).copied().unwrap_or_default();
        all.into_iter().map(move |id| MemberStatus { id, held: held(id), beat: beat(id) })
    }

    /// Draws the conclusions, after every change of the log or of the status (ERR-10).
    ///
    /// `me` holds the leader's log durably through `own`, which is [`Slot::ZERO`] unless that slot has an entry of the
    /// ballot (ERR-9). `quorum_value` finds the greatest number that a quorum reaches. Nothing after `counted` is
    /// concluded: the voters that count there are not known.
    pub(super) fn settle(
        &mut self,
        me: ReplicaId,
        own: Slot,
        counted: Slot,
        quorum_value: impl Fn(&dyn Fn(ReplicaId) -> u64) -> u64,
    ) {
        self.hold(me, own);
        match self.merge {
            Merge::Vector => {
                let held = |id| self.held.get(&id).map_or(0, |held| held.0);
                let reached = Slot(quorum_value(&held)).min(counted);
                self.commit = self.commit.max(reached);
                self.next = self.next.max(self.commit.next());
            }
            Merge::LowerIfNews | Merge::Printed => {
                // A replica that is a quorum by itself has seen one again at once.
                while self.next <= counted && self.is_voted(&quorum_value) {
                    self.commit = self.next;
                    self.held.clear();
                    self.next = if self.next < own { own } else { self.next.next() };
                    self.hold(me, own);
                }
            }
        }
        debug_assert!(self.next > self.commit, "what is voted for is not committed");
    }

    fn is_voted(&self, quorum_value: impl Fn(&dyn Fn(ReplicaId) -> u64) -> u64) -> bool {
        quorum_value(&|id| u64::from(self.held.contains_key(&id))) == 1
    }

    /// The status for a message, of replicas of which `tells` is true. What is committed anyway is left out.
    pub(super) fn tell(&self, tells: impl Fn(ReplicaId) -> bool) -> Status {
        let (merge, commit) = (self.merge, self.commit);
        let members = self.known().filter(|known| tells(known.id)).map(|known| {
            let held = if known.held > commit { known.held } else { Slot::ZERO };
            MemberStatus { held, ..known }
        });
        let next = if merge == Merge::Vector { Slot::ZERO } else { self.next };
        Status { merge, commit, next, members: members.collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BALLOT: Ballot = Ballot { round: 5, replica: ReplicaId(1) };

    fn status(merge: Merge, commit: u64, next: u64, bits: &[u64]) -> CommitStatus {
        let mut status = CommitStatus { ballot: BALLOT, merge, commit: Slot(commit), ..Default::default() };
        status.next = Slot(next);
        status.held = bits.iter().map(|&id| (ReplicaId(id), Slot(next))).collect();
        status
    }

    fn shown(status: &CommitStatus) -> (u64, u64, Vec<u64>) {
        (status.commit.0, status.next.0, status.held.keys().map(|id| id.0).collect())
    }

    fn settle(status: &mut CommitStatus, me: u64, own: u64, voters: u64) {
        let voters = VoterSets::simple((1..=voters).map(ReplicaId).collect());
        status.settle(ReplicaId(me), Slot(own), Slot(u64::MAX), |value| voters.quorum_value(value));
    }

    /// Figures 9 and 10: what Update does when a majority has voted.
    #[test]
    fn a_majority_of_bits_commits_and_the_vote_goes_on() {
        for merge in [Merge::Printed, Merge::LowerIfNews] {
            let mut all_voted = status(merge, 0, 3, &[1, 2]);
            settle(&mut all_voted, 1, 3, 3);
            assert_eq!(shown(&all_voted), (3, 4, vec![]), "the log ends there");
            let mut longer = status(merge, 0, 3, &[2, 3]);
            settle(&mut longer, 1, 7, 3);
            assert_eq!(
                shown(&longer),
                (3, 7, vec![1]),
                "the vote is for the last slot, and this replica gives its own"
            );
            let mut outdated = status(merge, 0, 3, &[2, 3]);
            settle(&mut outdated, 1, 0, 3);
            assert_eq!(shown(&outdated), (3, 4, vec![]), "without an entry of the term there is no own vote");
            let mut minority = status(merge, 0, 3, &[2]);
            settle(&mut minority, 1, 2, 3);
            assert_eq!(shown(&minority), (0, 3, vec![2]), "its log ends before that slot");
        }
    }

    /// Figure 10: replicas without an entry of the term do not vote, and yet see that others have a majority.
    #[test]
    fn with_an_idle_leader_the_vote_reaches_the_end_of_the_log() {
        let mut leader = status(Merge::Printed, 6, 7, &[]);
        let mut outdated = status(Merge::Printed, 6, 7, &[]);
        for _ in 0..4 {
            settle(&mut leader, 1, 9, 5);
            leader.merge(&Status { members: voters(&[4, 5]), ..tell(&leader) }, |_| true);
            settle(&mut leader, 1, 9, 5);
            outdated.merge(&tell(&leader), |_| true);
            settle(&mut outdated, 2, 0, 5);
        }
        assert_eq!(shown(&leader), (9, 10, vec![4, 5]));
        assert_eq!(outdated.commit, Slot(9));
    }

    fn voters(bits: &[u64]) -> Vec<MemberStatus> {
        bits.iter().map(|&id| MemberStatus { id: ReplicaId(id), held: Slot(1), beat: 0 }).collect()
    }

    fn tell(status: &CommitStatus) -> Status {
        status.tell(|_| true)
    }

    /// Figure 11.
    #[test]
    fn bits_for_a_later_slot_count_for_every_slot_before_it() {
        let merged = |merge, mine: (u64, u64, &[u64]), told: (u64, u64, &[u64])| {
            let mut mine = status(merge, mine.0, mine.1, mine.2);
            mine.merge(&tell(&status(merge, told.0, told.1, told.2)), |_| true);
            shown(&mine)
        };
        for merge in [Merge::Printed, Merge::LowerIfNews] {
            assert_eq!(merged(merge, (3, 5, &[1]), (3, 5, &[2])), (3, 5, vec![1, 2]), "the same slot");
            assert_eq!(merged(merge, (3, 5, &[1]), (5, 7, &[2])), (5, 7, vec![2]), "the other one is ahead");
            assert_eq!(merged(merge, (3, 5, &[1]), (4, 7, &[2])), (4, 5, vec![1, 2]), "a later slot");
            assert_eq!(merged(merge, (4, 7, &[2]), (4, 5, &[2])), (4, 7, vec![2]), "nothing new");
        }
        assert_eq!(merged(Merge::Printed, (4, 7, &[2]), (3, 5, &[1])), (4, 7, vec![2]), "as printed");
        assert_eq!(merged(Merge::LowerIfNews, (4, 7, &[2]), (3, 5, &[1])), (4, 5, vec![1, 2]));
        assert_eq!(
            merged(Merge::LowerIfNews, (5, 7, &[2]), (3, 5, &[1])),
            (5, 7, vec![2]),
            "it is committed"
        );
    }

    /// The four replicas of a star of which the leader is the centre, and a fifth that is down: the state from which
    /// the printed rule never gets away, whatever order they exchange statuses in.
    fn star(merge: Merge) -> Option<u32> {
        let (last, centre) = ([5, 4, 4, 4], 0);
        let of = |commit, next, id| match merge {
            Merge::Vector => {
                let mut of = status(merge, commit, commit + 1, &[]);
                of.hold(ReplicaId(id), Slot(next));
                of
            }
            _ => status(merge, commit, next, &[id]),
        };
        let mut all = [of(3, 5, 1), of(1, 4, 2), of(2, 4, 3), of(3, 4, 4)];
        let mut seed = 7u64;
        for step in 0..20_000 {
            if all[centre].commit >= Slot(4) {
                return Some(step);
            }
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let leaf = 1 + (seed >> 33) as usize % 3;
            let (from, to) = if seed >> 40 & 1 == 0 { (centre, leaf) } else { (leaf, centre) };
            let told = tell(&all[from]);
            all[to].merge(&told, |_| true);
            settle(&mut all[to], to as u64 + 1, last[to], 5);
        }
        None
    }

    #[test]
    fn the_printed_rule_stalls_in_a_star_and_the_others_do_not() {
        assert_eq!(star(Merge::Printed), None);
        assert!(star(Merge::LowerIfNews).is_some());
        assert!(star(Merge::Vector).is_some());
    }

    /// Whatever is lost, repeated or late, and whichever replicas meet: nobody takes for committed what no majority
    /// held, and no bit is without a log behind it (I5, I7, I8).
    #[test]
    fn only_what_a_majority_held_is_committed() {
        let mut seed = 3u64;
        let mut random = move |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % below
        };
        for run in 0..600 {
            let merge = [Merge::Vector, Merge::LowerIfNews, Merge::Printed][run % 3];
            let n = 3 + 2 * random(2) as usize;
            let mut all: Vec<CommitStatus> = (0..n).map(|_| status(merge, 0, 1, &[])).collect();
            // The first slot with an entry of the term, and how far each log goes; only longer with time.
            let own_term = 1 + random(3);
            let mut last = vec![0; n];
            let mut late: Vec<Status> = vec![tell(&all[0])];
            for _ in 0..300 {
                let of = random(n as u64) as usize;
                match random(3) {
                    0 if of == 0 => last[0] += 1,
                    0 => last[of] = last[of].max(random(last[0] + 1)),
                    1 => {
                        let told = late[random(late.len() as u64) as usize].clone();
                        let before = all[of].commit;
                        all[of].merge(&told, |_| true);
                        assert!(all[of].commit >= before);
                    }
                    _ => late.push(tell(&all[of])),
                }
                let own = if last[of] >= own_term { last[of] } else { 0 };
                settle(&mut all[of], of as u64 + 1, own, n as u64);
                let mut holders: Vec<u64> =
                    last.iter().map(|&last| if last >= own_term { last } else { 0 }).collect();
                for known in all[of].known() {
                    assert!(known.held.0 <= holders[known.id.0 as usize - 1], "{merge}: {known:?}");
                }
                holders.sort_unstable();
                assert!(all[of].commit.0 <= holders[n - n / 2 - 1], "{merge}: {:?} {holders:?}", all[of]);
                assert!(all[of].next > all[of].commit);
            }
        }
    }

    #[test]
    fn another_term_begins_with_nothing_but_what_is_committed() {
        let mut vector = status(Merge::Vector, 3, 4, &[]);
        vector.hold(ReplicaId(2), Slot(9));
        vector.begin(Ballot { round: 6, ..BALLOT }, Merge::Vector, true);
        settle(&mut vector, 1, 9, 3);
        assert_eq!((vector.commit, vector.next), (Slot(3), Slot(4)));
        vector.hold(ReplicaId(2), Slot(8));
        settle(&mut vector, 1, 9, 3);
        assert_eq!(vector.commit, Slot(8));
    }

    #[test]
    fn nothing_is_concluded_where_the_voters_are_not_known() {
        let voters = VoterSets::simple([1, 2, 3].map(ReplicaId).to_vec());
        for merge in [Merge::Vector, Merge::LowerIfNews] {
            let mut of = status(merge, 0, 1, &[]);
            of.next = Slot(if merge == Merge::Vector { 1 } else { 9 });
            of.hold(ReplicaId(1), Slot(9));
            of.hold(ReplicaId(2), Slot(9));
            of.settle(ReplicaId(3), Slot::ZERO, Slot(4), |value| voters.quorum_value(value));
            assert!(of.commit <= Slot(4), "{merge}: its log ends at slot 4");
        }
    }

    #[test]
    fn alone_a_replica_commits_all_that_it_holds() {
        for merge in [Merge::Vector, Merge::LowerIfNews, Merge::Printed] {
            let mut alone = status(merge, 0, 1, &[]);
            settle(&mut alone, 1, 9, 1);
            assert_eq!((alone.commit, alone.next), (Slot(9), Slot(10)), "{merge}");
        }
    }

    /// During a change a majority of both groups is needed, and what a status says of a replica goes with its id.
    #[test]
    fn two_groups_must_hold_a_slot_while_voters_change() {
        let ids = |ids: &[u64]| ids.iter().copied().map(ReplicaId).collect::<Vec<_>>();
        let joint = VoterSets::joint(ids(&[3, 4, 5]), ids(&[1, 2, 3]));
        let mut of = status(Merge::Vector, 0, 1, &[]);
        let mut commit = |id, through| {
            of.hold(ReplicaId(id), Slot(through));
            of.settle(ReplicaId(9), Slot::ZERO, Slot(99), |value| joint.quorum_value(value));
            of.commit.0
        };
        assert_eq!([commit(1, 9), commit(2, 9), commit(4, 7), commit(5, 6)], [0, 0, 0, 6]);
    }

    #[test]
    fn what_is_said_of_replicas_that_do_not_vote_is_not_kept() {
        let ids = |ids: std::ops::RangeInclusive<u64>| ids.map(ReplicaId).collect::<Vec<_>>();
        let voters = VoterSets::simple(ids(1..=3));
        for merge in [Merge::Vector, Merge::LowerIfNews, Merge::Printed] {
            let mut of = status(merge, 0, 1, &[]);
            for stranger in 0..50 {
                let told = status(merge, 0, 5, &[2, 1_000 + stranger, 2_000 + stranger]);
                let news = of.merge(&tell(&told), |id| voters.contains(id));
                assert_eq!(news, stranger == 0, "{merge}: nothing that counts");
            }
            assert_eq!(of.held.len(), 1, "{merge}");
            // The voters change, again and again in one ballot.
            for first in 1..50 {
                let voters = VoterSets::simple(ids(first..=first + 2));
                let members =
                    voters.all().into_iter().map(|id| MemberStatus { id, held: Slot(1), beat: first });
                let told = Status { members: members.collect(), ..tell(&of) };
                of.merge(&told, |id| voters.contains(id));
                of.forget_others(&voters, ReplicaId(1));
                assert!(of.held.len() <= 4 && of.beats.len() <= 4, "{merge}: {of:?}");
                assert_eq!(of.known().filter(|known| voters.contains(known.id)).count(), 3, "{merge}");
            }
        }
    }
}

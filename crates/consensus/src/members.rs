//! Which replicas vote, and which sets of them are a quorum.

use std::{fmt, sync::Arc};

use synod_wire::ReplicaId;

use crate::To;

/// The most replicas a group may have.
pub const MEMBERS_MAX: usize = 127;
/// The most replicas of a group that is spared the room for the largest one where a quorum is computed.
const SMALL_GROUP: usize = 9;

/// How many members of a group are a quorum of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threshold {
    /// More than half: any two quorums share a member.
    Majority,
    /// More than two thirds: any three quorums share a member.
    TwoThirds,
}

impl Threshold {
    /// The size of the smallest quorums of a group of this many members.
    #[must_use]
    pub fn least(self, of: usize) -> usize {
        match self {
            Threshold::Majority => of / 2 + 1,
            Threshold::TwoThirds => 2 * of / 3 + 1,
        }
    }

    /// How many members of a group of this many may be missing while the others decide.
    #[must_use]
    pub fn spare(self, of: usize) -> usize {
        of - self.least(of).min(of)
    }

    /// The fewest members of which this many may be missing.
    #[must_use]
    pub fn members_for(self, missing: usize) -> usize {
        match self {
            Threshold::Majority => 2 * missing + 1,
            Threshold::TwoThirds => 3 * missing + 1,
        }
    }
}

impl fmt::Display for Threshold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Threshold::Majority => "more than half of the voters",
            Threshold::TwoThirds => "more than two thirds of the voters",
        })
    }
}

/// The replicas whose quorum counts; during a change, two groups, both of whose quorums count. A quorum is a majority,
/// unless a [`Threshold`] says otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VoterSets {
    /// Shared, and small in each place that holds it: every entry of a log has room for voters, and hardly
    /// any entry has them.
    halves: Arc<Halves>,
}

#[derive(Debug, PartialEq, Eq)]
struct Halves {
    incoming: Vec<ReplicaId>,
    outgoing: Vec<ReplicaId>,
}

impl VoterSets {
    /// A configuration with one group of voters.
    #[must_use]
    pub fn simple(voters: Vec<ReplicaId>) -> VoterSets {
        VoterSets::joint(voters, Vec::new())
    }

    /// A joint configuration of the future group and the former group. Each is sorted, without duplicates.
    #[must_use]
    pub fn joint(mut incoming: Vec<ReplicaId>, mut outgoing: Vec<ReplicaId>) -> VoterSets {
        for half in [&mut incoming, &mut outgoing] {
            half.sort_unstable();
            half.dedup();
        }
        VoterSets { halves: Arc::new(Halves { incoming, outgoing }) }
    }

    /// The replicas that vote once the change, if there is one, is complete.
    #[must_use]
    pub fn incoming(&self) -> &[ReplicaId] {
        &self.halves.incoming
    }

    /// The replicas that voted before a change that is under way; empty if there is none.
    #[must_use]
    pub fn outgoing(&self) -> &[ReplicaId] {
        &self.halves.outgoing
    }

    /// Whether a change is under way.
    #[must_use]
    pub fn is_joint(&self) -> bool {
        !self.outgoing().is_empty()
    }

    /// Whether a replica votes.
    #[must_use]
    pub fn contains(&self, id: ReplicaId) -> bool {
        self.incoming().binary_search(&id).is_ok() || self.outgoing().binary_search(&id).is_ok()
    }

    /// All replicas that vote, in ascending order.
    #[must_use]
    pub fn all(&self) -> Vec<ReplicaId> {
        let mut all: Vec<_> = self.incoming().iter().chain(self.outgoing()).copied().collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Whether these replicas are a quorum: a majority of each group.
    pub fn is_quorum(&self, mut has: impl FnMut(ReplicaId) -> bool) -> bool {
        self.quorum_value(|id| u64::from(has(id))) >= 1
    }

    /// [`VoterSets::is_quorum`] with another threshold.
    pub fn is_quorum_of(&self, threshold: Threshold, mut has: impl FnMut(ReplicaId) -> bool) -> bool {
        self.quorum_value_of(threshold, |id| u64::from(has(id))) >= 1
    }

    /// The largest number that a quorum reaches, where each replica has reached `value`.
    pub fn quorum_value(&self, value: impl FnMut(ReplicaId) -> u64) -> u64 {
        self.quorum_value_of(Threshold::Majority, value)
    }

    /// [`VoterSets::quorum_value`] with another threshold.
    pub fn quorum_value_of(&self, threshold: Threshold, mut value: impl FnMut(ReplicaId) -> u64) -> u64 {
        let mut of = |half: &[ReplicaId]| reached_by(half, threshold.least(half.len()), &mut value);
        match (self.incoming().is_empty(), self.outgoing().is_empty()) {
            (false, true) => of(self.incoming()),
            (false, false) => of(self.incoming()).min(of(self.outgoing())),
            // A configuration without voters, which no leader ever makes, decides nothing.
            (true, _) => 0,
        }
    }

    /// The two groups taken for one, which is a planted bug.
    pub(crate) fn union(&self) -> VoterSets {
        VoterSets::simple(self.all())
    }
}

/// The largest number that `count` of these replicas reach, where each has reached `value`.
fn reached_by(ids: &[ReplicaId], count: usize, value: impl FnMut(ReplicaId) -> u64) -> u64 {
    debug_assert!(count <= ids.len(), "there are this many");
    match ids.len() {
        _ if count == 0 => u64::MAX,
        0..=SMALL_GROUP => reached_in::<SMALL_GROUP>(ids, count, value),
        _ => reached_in::<MEMBERS_MAX>(ids, count, value),
    }
}

/// [`reached_by`] for at most `MAX` replicas.
fn reached_in<const MAX: usize>(
    ids: &[ReplicaId],
    count: usize,
    mut value: impl FnMut(ReplicaId) -> u64,
) -> u64 {
    let mut values = [0; MAX];
    let values = &mut values[..ids.len()];
    for (value_of, &id) in values.iter_mut().zip(ids) {
        *value_of = value(id);
    }
    values.sort_unstable();
    values[ids.len() - count]
}

/// The voting members of a group, in ascending order, as one replica sees them, which may be one of them or
/// only observe. While a change is under way they are those of both groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Members {
    voters: VoterSets,
    ids: Vec<ReplicaId>,
    incoming: ReplicaSet,
    outgoing: ReplicaSet,
    me: ReplicaId,
    /// All members except this replica.
    peers: Arc<[ReplicaId]>,
}

impl Members {
    /// A group of these members, as seen by `me`.
    ///
    /// # Panics
    /// If `me` is not a member, if a member is named twice, or if there are more than [`MEMBERS_MAX`]. The
    /// code that reads a configuration checks that first.
    #[must_use]
    pub fn new(ids: impl IntoIterator<Item = ReplicaId>, me: ReplicaId) -> Members {
        let ids: Vec<_> = ids.into_iter().collect();
        let named = ids.len();
        let members = Members::seen_by(me, VoterSets::simple(ids));
        assert_eq!(members.count(), named, "members are distinct");
        assert!(members.index(me).is_some(), "this replica is a member");
        members
    }

    /// The replicas that vote, as seen by `me`, which need not vote (yet) and then only follows. For
    /// protocols that change voters themselves.
    ///
    /// # Panics
    /// If one of the groups has more than [`MEMBERS_MAX`] members.
    #[must_use]
    pub fn seen_by(me: ReplicaId, voters: VoterSets) -> Members {
        let ids = voters.all();
        let halves = [voters.incoming(), voters.outgoing()];
        assert!(halves.iter().all(|half| half.len() <= MEMBERS_MAX), "at most {MEMBERS_MAX} members");
        let peers = ids.iter().copied().filter(|&id| id != me).collect();
        let none = ReplicaSet::default();
        let mut members = Members { voters, ids, incoming: none, outgoing: none, me, peers };
        members.incoming = members.those(|id| members.voters.incoming().contains(&id));
        members.outgoing = members.those(|id| members.voters.outgoing().contains(&id));
        members
    }

    /// This replica.
    #[must_use]
    pub fn me(&self) -> ReplicaId {
        self.me
    }

    /// This replica's place among the members, from 0.
    ///
    /// # Panics
    /// If this replica only observes.
    #[must_use]
    pub fn my_index(&self) -> usize {
        self.index(self.me).expect("this replica is a member")
    }

    /// The voters, which are the same as seen by any replica.
    #[must_use]
    pub fn voters(&self) -> &VoterSets {
        &self.voters
    }

    /// All members, including this replica unless it only observes.
    #[must_use]
    pub fn ids(&self) -> &[ReplicaId] {
        &self.ids
    }

    /// All members except this replica.
    pub fn peers(&self) -> impl Iterator<Item = ReplicaId> + '_ {
        self.peers.iter().copied()
    }

    /// The receivers of a message to all members except this replica.
    #[must_use]
    pub fn to_peers(&self) -> To {
        To::Each(Arc::clone(&self.peers))
    }

    /// The receivers of a message to those members except this replica for which this is true.
    #[must_use]
    pub fn to_those(&self, goes_to: impl Fn(ReplicaId) -> bool) -> To {
        if self.peers().all(&goes_to) {
            self.to_peers()
        } else {
            To::Each(self.peers().filter(|&id| goes_to(id)).collect())
        }
    }

    /// How many members there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.ids.len()
    }

    /// A member's place among the members, from 0.
    #[must_use]
    pub fn index(&self, id: ReplicaId) -> Option<usize> {
        self.ids.binary_search(&id).ok()
    }

    /// Whether these replicas are a quorum: a majority of the members, or of each group while a change is under way.
    #[must_use]
    pub fn is_quorum(&self, set: ReplicaSet) -> bool {
        self.is_quorum_of(Threshold::Majority, set)
    }

    /// [`Members::is_quorum`] with another threshold.
    #[must_use]
    pub fn is_quorum_of(&self, threshold: Threshold, set: ReplicaSet) -> bool {
        let has = |half: ReplicaSet, of: usize| set.intersection(half).len() >= threshold.least(of);
        let (incoming, outgoing) = (self.voters.incoming().len(), self.voters.outgoing().len());
        has(self.incoming, incoming) && (outgoing == 0 || has(self.outgoing, outgoing))
    }

    /// Whether every quorum has a member among these.
    #[must_use]
    pub fn meets_quorums(&self, set: ReplicaSet) -> bool {
        !self.is_quorum(self.those(|id| !self.contains(set, id)))
    }

    /// The largest number that a quorum of the members reaches, where each has reached `value`.
    #[must_use]
    pub fn quorum_value(&self, value: impl FnMut(ReplicaId) -> u64) -> u64 {
        self.voters.quorum_value(value)
    }

    /// [`Members::quorum_value`] with another threshold.
    #[must_use]
    pub fn quorum_value_of(&self, threshold: Threshold, value: impl FnMut(ReplicaId) -> u64) -> u64 {
        self.voters.quorum_value_of(threshold, value)
    }

    /// The members for which this is true.
    #[must_use]
    pub fn those(&self, mut is_so: impl FnMut(ReplicaId) -> bool) -> ReplicaSet {
        let mut set = ReplicaSet::default();
        self.ids.iter().enumerate().filter(|&(_, &id)| is_so(id)).for_each(|(index, _)| set.add(index));
        set
    }

    /// The set of this one member; empty if the replica is not a member.
    #[must_use]
    pub fn only(&self, id: ReplicaId) -> ReplicaSet {
        let mut set = ReplicaSet::default();
        self.index(id).into_iter().for_each(|index| set.add(index));
        set
    }

    /// Whether a member is in a set.
    #[must_use]
    pub fn contains(&self, set: ReplicaSet, id: ReplicaId) -> bool {
        !set.intersection(self.only(id)).is_empty()
    }
}

/// A set of members of one group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplicaSet([u64; WORDS]);

/// A bit for each member, also while a change is under way.
const WORDS: usize = (2 * MEMBERS_MAX).div_ceil(u64::BITS as usize);

impl ReplicaSet {
    /// The replicas that are in either of two sets.
    #[must_use]
    pub fn union(self, other: ReplicaSet) -> ReplicaSet {
        ReplicaSet(std::array::from_fn(|word| self.0[word] | other.0[word]))
    }

    /// The replicas that are in both of two sets.
    #[must_use]
    pub fn intersection(self, other: ReplicaSet) -> ReplicaSet {
        ReplicaSet(std::array::from_fn(|word| self.0[word] & other.0[word]))
    }

    /// How many replicas are in it.
    #[must_use]
    pub fn len(self) -> usize {
        // Without the processor's own instruction a word is counted in a dozen steps, and of most sets it is one word.
        self.0.iter().filter(|word| **word != 0).map(|word| word.count_ones() as usize).sum()
    }

    /// Whether no replica is in it.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == [0; WORDS]
    }

    /// Adds the member at this place.
    fn add(&mut self, index: usize) {
        self.0[index / u64::BITS as usize] |= 1 << (index % u64::BITS as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members(n: u64) -> Members {
        Members::new((1..=n).map(ReplicaId), ReplicaId(1))
    }

    /// The set of the members whose places are set in a number.
    fn set(bits: u64) -> ReplicaSet {
        let mut set = ReplicaSet::default();
        set.0[0] = bits;
        set
    }

    /// Checks against all pairs of subsets that any two quorums share a member, and that a set meets every
    /// quorum if it shares a member with each.
    #[test]
    fn quorums_intersect() {
        for n in 1..=7 {
            let members = members(n);
            let sets = || (0..1u64 << n).map(set);
            let quorums: Vec<_> = sets().filter(|&set| members.is_quorum(set)).collect();
            for &a in &quorums {
                assert!(quorums.iter().all(|b| !a.intersection(*b).is_empty()), "{n} members");
            }
            for set in sets() {
                let meets = quorums.iter().all(|quorum| !set.intersection(*quorum).is_empty());
                assert_eq!(members.meets_quorums(set), meets, "{n} members, {set:?}");
            }
        }
    }

    /// Checks against all triples of quorums that any three of more than two thirds share a member, and that
    /// smaller ones would not.
    #[test]
    fn any_three_quorums_of_more_than_two_thirds_share_a_member() {
        for n in 1..=7usize {
            let members = members(n as u64);
            let of_size =
                |least: usize| (0..1u64 << n).filter(move |bits| bits.count_ones() as usize >= least);
            let intersect = |sets: &[u64]| {
                let rest = |pair| sets.iter().all(|c| pair & c != 0);
                sets.iter().all(|a| sets.iter().all(|b| rest(a & b)))
            };
            let quorums: Vec<u64> =
                (0..1 << n).filter(|&bits| members.is_quorum_of(Threshold::TwoThirds, set(bits))).collect();
            let least = Threshold::TwoThirds.least(n);
            assert_eq!(quorums, of_size(least).collect::<Vec<_>>(), "{n} members");
            assert!(intersect(&quorums), "{n} members");
            assert!(!intersect(&of_size(least - 1).collect::<Vec<_>>()), "{n} members: fewer would do");
        }
    }

    /// A group of 2f+1 makes progress without any f of its members, and not without one more.
    #[test]
    fn a_minority_is_not_needed() {
        for (n, f) in [(1, 0), (3, 1), (5, 2), (7, 3)] {
            for bits in 0..1u64 << n {
                let missing = n - bits.count_ones();
                assert_eq!(members(n.into()).is_quorum(set(bits)), missing <= f);
            }
        }
    }

    fn ids(bits: u32) -> Vec<ReplicaId> {
        (0..6).filter(|bit| bits & (1 << bit) != 0).map(|bit| ReplicaId(bit + 1)).collect()
    }

    const THRESHOLDS: [Threshold; 2] = [Threshold::Majority, Threshold::TwoThirds];

    /// A quorum of one group, by the definition: more than half, or more than two thirds.
    fn suffices(threshold: Threshold, of: u32, has: u32) -> bool {
        let (these, all) = ((of & has).count_ones(), of.count_ones());
        match threshold {
            Threshold::Majority => 2 * these > all,
            Threshold::TwoThirds => 3 * these > 2 * all,
        }
    }

    #[test]
    fn as_many_may_be_missing_as_leave_a_quorum() {
        for threshold in THRESHOLDS {
            for of in 1..20 {
                let quorum = |missing: usize| suffices(threshold, (1 << of) - 1, (1 << (of - missing)) - 1);
                let spare = threshold.spare(of);
                assert!(quorum(spare) && !quorum(spare + 1), "{threshold:?} {of}");
            }
            for missing in 0..6 {
                let least = threshold.members_for(missing);
                assert_eq!(
                    (threshold.spare(least), threshold.spare(least - 1)),
                    (missing, missing.saturating_sub(1))
                );
            }
        }
    }

    /// Checks all pairs of groups of at most six replicas against all sets of supporters.
    #[test]
    fn a_quorum_is_one_of_each_group() {
        for incoming in 1..64u32 {
            for outgoing in (0..64u32).step_by(3) {
                let sets = VoterSets::joint(ids(incoming), ids(outgoing));
                let members = Members::seen_by(ReplicaId(7), sets.clone());
                for (has, threshold) in
                    (0..64u32).flat_map(|has| THRESHOLDS.map(|threshold| (has, threshold)))
                {
                    let of = |group| suffices(threshold, group, has);
                    let expected = of(incoming) && (outgoing == 0 || of(outgoing));
                    let found = sets.is_quorum_of(threshold, |id| has & (1 << (id.0 - 1)) != 0);
                    assert_eq!(found, expected, "{threshold:?} {incoming:b} {outgoing:b} {has:b}");
                    let these = members.those(|id| has & (1 << (id.0 - 1)) != 0);
                    let found = members.is_quorum_of(threshold, these);
                    assert_eq!(found, expected, "{threshold:?} {incoming:b} {outgoing:b} {has:b}");
                    if threshold == Threshold::Majority {
                        assert_eq!(members.is_quorum(these), expected, "{incoming:b} {outgoing:b} {has:b}");
                    }
                }
            }
        }
    }

    /// Checks the value of a quorum against its definition: the largest value that a quorum has reached.
    #[test]
    fn the_value_of_a_quorum_is_the_largest_that_one_reaches() {
        let mut seed = 7u64;
        let mut random = || {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            seed >> 33
        };
        for _ in 0..20_000 {
            let sets = VoterSets::joint(ids(random() as u32 % 63 + 1), ids(random() as u32 % 64));
            let values: Vec<u64> = (0..6).map(|_| random() % 5).collect();
            let value = |id: ReplicaId| values[id.0 as usize - 1];
            for threshold in THRESHOLDS {
                let reaches = |bound: &u64| sets.is_quorum_of(threshold, |id| value(id) >= *bound);
                let brute = (0..5).rev().find(reaches).unwrap_or(0);
                let members = Members::seen_by(ReplicaId(7), sets.clone());
                assert_eq!(
                    members.quorum_value_of(threshold, value),
                    brute,
                    "{threshold:?} {sets:?} {values:?}"
                );
            }
        }
    }

    /// The fact that joint consensus rests on: a quorum of the joint configuration meets every quorum of both groups.
    #[test]
    fn joint_quorums_meet_those_before_and_after() {
        let (old, new) = (0b00111u32, 0b11100u32);
        let joint = VoterSets::joint(ids(new), ids(old));
        let quorums = |sets: &VoterSets| -> Vec<u32> {
            (0..32).filter(|has| sets.is_quorum(|id| has & (1 << (id.0 - 1)) != 0)).collect()
        };
        for one in quorums(&joint) {
            for other in [VoterSets::simple(ids(old)), VoterSets::simple(ids(new)), joint.clone()] {
                assert!(quorums(&other).iter().all(|quorum| one & quorum != 0));
            }
        }
    }

    /// The largest group that changes into another as large: 254 replicas have a bit each.
    #[test]
    fn the_largest_groups_have_room_for_a_joint_change() {
        let half = |from: u64| (from..from + MEMBERS_MAX as u64).map(ReplicaId).collect::<Vec<_>>();
        let (old, new) = (half(1), half(200));
        let members = Members::seen_by(ReplicaId(1), VoterSets::joint(new, old));
        assert_eq!(members.count(), 2 * MEMBERS_MAX);
        let majority_of_both = members.those(|id| id.0 <= 64 || (200..264).contains(&id.0));
        assert_eq!(majority_of_both.len(), 128);
        assert!(members.is_quorum(majority_of_both));
        assert!(!members.is_quorum(members.those(|id| id.0 <= 64 || (200..263).contains(&id.0))));
        assert_eq!(members.quorum_value(|id| id.0), 64, "of the old group 64 to 127 have reached it");
    }

    #[test]
    fn strangers_are_not_counted() {
        let members = members(3);
        assert!(members.only(ReplicaId(9)).is_empty());
        let set = members.only(ReplicaId(2));
        assert_eq!(set.union(set).len(), 1);
        assert!(members.contains(set, ReplicaId(2)) && !members.contains(set, ReplicaId(3)));
        assert!(!members.contains(set, ReplicaId(9)));
    }
}

//! How long a replica that was removed from the group stays a peer of this one.
//!
//! In a cluster of several groups the peers are the members of all of them, and a replica counts as removed once no
//! group has it any more: until then it may vote in one. This replica keeps a removed one as a peer while the last
//! change of voters is incomplete, while there is a session to it, and for a time after that, since it may still have
//! to hear that it was removed. Then this replica does not dial it any more, sends it nothing, and has no metrics of
//! it. docs/epochs.md says why nothing is lost by that.

use std::{collections::BTreeSet, time::Duration};

use synod_replica::Group;
use synod_wire::{GroupId, ReplicaId, Time};

/// For how many election time-outs a removed replica stays a peer, from its removal or from the end of its
/// last session on. A leader of Raft goes on telling it what is decided for four.
const TIMEOUTS: u32 = 5;

/// The peers of this replica: the members, and the former members that it still keeps, each with where it is.
#[derive(Debug)]
pub struct Parting<A> {
    kept_for: Duration,
    /// What each group says, by its number.
    groups: Vec<OfGroup<A>>,
    /// The members of all groups.
    members: Vec<(ReplicaId, A)>,
    /// The former members that are still kept, in the order in which they left, each with the time from which
    /// its time counts.
    leaving: Vec<((ReplicaId, A), Time)>,
    /// The replicas to which there is a session.
    linked: BTreeSet<ReplicaId>,
    /// Whether decisions still need the voters from before the last change.
    unsettled: bool,
}

/// What a group says of its members.
#[derive(Debug)]
struct OfGroup<A> {
    members: Vec<(ReplicaId, A)>,
    /// The members, and those that its last change removed.
    known: Vec<ReplicaId>,
    next_id: ReplicaId,
    /// Whether decisions still need the voters from before the last change.
    unsettled: bool,
}

impl<A: Clone> Parting<A> {
    /// A node of this many groups, which have said nothing so far.
    #[must_use]
    pub fn new(election_timeout: Duration, groups: usize) -> Parting<A> {
        let silent =
            || OfGroup { members: Vec::new(), known: Vec::new(), next_id: ReplicaId(0), unsettled: false };
        Parting {
            kept_for: election_timeout * TIMEOUTS,
            groups: std::iter::repeat_with(silent).take(groups).collect(),
            members: Vec::new(),
            leaving: Vec::new(),
            linked: BTreeSet::new(),
            unsettled: false,
        }
    }

    /// A group has changed and has these members now; `former` are the members that its last change removed.
    pub fn group(
        &mut self,
        now: Time,
        of: GroupId,
        group: &Group,
        members: Vec<(ReplicaId, A)>,
        former: Vec<(ReplicaId, A)>,
    ) {
        self.groups[usize::from(of.0)] = OfGroup {
            members,
            known: group.known().map(|member| member.id).collect(),
            next_id: group.next_id,
            unsettled: !group.outgoing.is_empty(),
        };
        self.unsettled = self.groups.iter().any(|group| group.unsettled);
        let mut members: Vec<(ReplicaId, A)> = Vec::new();
        // The first group is the first to know of new addresses.
        for peer in self.groups.iter().flat_map(|group| &group.members) {
            if !is_among(&members, peer.0) {
                members.push(peer.clone());
            }
        }
        let before = std::mem::replace(&mut self.members, members);
        self.leaving.retain(|(peer, _)| !is_among(&self.members, peer.0));
        for peer in before.into_iter().chain(former) {
            if !self.has(peer.0) {
                self.leaving.push((peer, now));
            }
        }
    }

    /// Whether a group knows the replica `id`, or has not seen it yet, since this replica lags there. All others were
    /// removed from every group, and ids are not given twice, so nobody will show the birth of such a replica again.
    #[must_use]
    pub fn remembers(&self, id: ReplicaId) -> bool {
        self.groups.iter().any(|group| id >= group.next_id || group.known.contains(&id))
    }

    /// A session to a replica began or ended.
    pub fn linked(&mut self, now: Time, id: ReplicaId, up: bool) {
        if up {
            self.linked.insert(id);
        } else {
            self.linked.remove(&id);
        }
        let left = self.leaving.iter_mut().find(|(peer, _)| peer.0 == id);
        left.into_iter().for_each(|(_, since)| *since = now);
    }

    /// Drops the former members whose time is over; returns whether there were any.
    pub fn look(&mut self, now: Time) -> bool {
        let before = self.leaving.len();
        let Parting { kept_for, leaving, linked, unsettled, .. } = self;
        for (peer, since) in leaving.iter_mut() {
            if *unsettled || linked.contains(&peer.0) {
                *since = now;
            }
        }
        leaving.retain(|(_, since)| now < *since + *kept_for);
        leaving.len() < before
    }

    /// The replicas to be connected with.
    pub fn peers(&self) -> impl Iterator<Item = &(ReplicaId, A)> {
        self.members.iter().chain(self.leaving.iter().map(|(peer, _)| peer))
    }

    /// Whether this replica speaks to the replica `id`.
    #[must_use]
    pub fn has(&self, id: ReplicaId) -> bool {
        self.peers().any(|peer| peer.0 == id)
    }
}

fn is_among<A>(peers: &[(ReplicaId, A)], id: ReplicaId) -> bool {
    peers.iter().any(|peer| peer.0 == id)
}

#[cfg(test)]
mod tests {
    use synod_replica::Settings;

    use super::*;

    const FIRST: GroupId = GroupId::FIRST;
    const SECOND: Duration = Duration::from_secs(1);

    fn at(seconds: u64) -> Time {
        Time::ZERO + SECOND * u32::try_from(seconds).expect("few")
    }

    fn peers(ids: &[u64]) -> Vec<(ReplicaId, String)> {
        ids.iter().map(|&id| (ReplicaId(id), format!("h{id}:1"))).collect()
    }

    fn ids(parting: &Parting<String>) -> Vec<u64> {
        parting.peers().map(|peer| peer.0.0).collect()
    }

    fn group() -> Group {
        Group::of(&Settings::default().consensus, (1..=4).map(ReplicaId))
    }

    fn parting() -> Parting<String> {
        let mut parting = Parting::new(SECOND, 1);
        parting.group(at(0), FIRST, &group(), peers(&[2, 3, 4]), Vec::new());
        parting
    }

    #[test]
    fn a_replica_that_a_lagging_group_has_not_seen_is_remembered() {
        let of = |ids: &[u64]| Group::of(&Settings::default().consensus, ids.iter().copied().map(ReplicaId));
        let (now, later) = (of(&[1, 2, 3, 5]), of(&[1, 2, 3]));
        let mut parting = Parting::new(SECOND, 2);
        parting.group(at(0), FIRST, &now, peers(&[2, 3, 5]), Vec::new());
        parting.group(at(0), GroupId(1), &later, peers(&[2, 3]), Vec::new());
        assert!(parting.remembers(ReplicaId(4)), "it may have joined and voted there, and may still");
        parting.group(at(1), GroupId(1), &now, peers(&[2, 3, 5]), Vec::new());
        assert!(!parting.remembers(ReplicaId(4)) && parting.remembers(ReplicaId(5)));
        assert!(parting.remembers(ReplicaId(6)), "it may join");
    }

    #[test]
    fn a_stopped_member_that_is_removed_is_dropped_after_a_while() {
        let mut parting = parting();
        parting.group(at(10), FIRST, &group(), peers(&[2, 3]), peers(&[4]));
        assert!(!parting.look(at(14)));
        assert_eq!(ids(&parting), [2, 3, 4]);
        assert!(parting.look(at(15)) && !parting.has(ReplicaId(4)));
        assert!(!parting.look(at(16)), "once");
    }

    #[test]
    fn a_removed_member_is_kept_while_it_has_a_session() {
        let mut parting = parting();
        parting.linked(at(1), ReplicaId(4), true);
        parting.group(at(10), FIRST, &group(), peers(&[2, 3]), peers(&[4]));
        assert!(!parting.look(at(100)));
        parting.linked(at(101), ReplicaId(4), false);
        assert!(!parting.look(at(105)));
        // The removed replica comes back for a moment.
        parting.linked(at(105), ReplicaId(4), true);
        parting.linked(at(106), ReplicaId(4), false);
        assert!(!parting.look(at(110)));
        assert!(parting.look(at(111)));
        assert_eq!(ids(&parting), [2, 3]);
    }

    #[test]
    fn the_next_change_does_not_drop_a_removed_member_earlier() {
        let mut parting = parting();
        parting.group(at(10), FIRST, &group(), peers(&[2, 3]), peers(&[4]));
        parting.group(at(11), FIRST, &group(), peers(&[2, 5]), peers(&[3]));
        assert_eq!(ids(&parting), [2, 5, 4, 3]);
        assert!(parting.look(at(15)));
        assert_eq!(ids(&parting), [2, 5, 3]);
    }

    #[test]
    fn a_replica_is_a_peer_until_every_group_has_removed_it() {
        let mut parting = Parting::new(SECOND, 2);
        let without = Group::of(&Settings::default().consensus, (1..=3).map(ReplicaId));
        for of in [FIRST, GroupId(1)] {
            parting.group(at(0), of, &group(), peers(&[2, 3, 4]), Vec::new());
        }
        parting.group(at(10), FIRST, &without, peers(&[2, 3]), peers(&[4]));
        assert!(!parting.look(at(100)) && parting.has(ReplicaId(4)) && parting.remembers(ReplicaId(4)));
        parting.group(at(100), GroupId(1), &without, peers(&[2, 3]), peers(&[4]));
        assert!(!parting.look(at(104)) && parting.has(ReplicaId(4)));
        assert!(parting.look(at(105)) && !parting.has(ReplicaId(4)));
        parting.group(at(106), GroupId(1), &without, peers(&[2, 3]), Vec::new());
        assert_eq!(ids(&parting), [2, 3]);
    }

    #[test]
    fn a_removed_member_that_still_votes_is_kept() {
        let mut parting = parting();
        let mut unsettled = group();
        unsettled.outgoing = vec![ReplicaId(4)];
        parting.group(at(10), FIRST, &unsettled, peers(&[2, 3]), peers(&[4]));
        assert!(!parting.look(at(100)));
        parting.group(at(100), FIRST, &group(), peers(&[2, 3]), peers(&[4]));
        assert!(!parting.look(at(104)));
        assert!(parting.look(at(105)));
    }
}

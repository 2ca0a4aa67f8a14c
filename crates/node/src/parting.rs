//! How long a replica that was removed from the group stays a peer of this one.
//!
//! It is kept while the last change of voters is incomplete, while there is a session to it, and for a time after
//! that: it may still have to hear that it was removed. Then it is no peer any more: nobody dials it, nothing is sent to
//! it, and no metric speaks of it.
//!
//! Nothing is lost by that, whatever protocol orders:
//!
//! - **Safety.** What is not sent to a replica is as good as lost on its way, and no protocol relies on a message that
//!   arrives. Who votes is for the log to say, not for the connections.
//! - **This replica does not need it.** It has delivered the change, so the change is decided: what it takes part in from
//!   there on is decided by majorities of the others alone. With a protocol that ends an epoch for the change, the next
//!   epoch does not know the removed replica. With Raft the entry counts from its append on, but what is delivered is
//!   committed, so a majority of the voters behind the entry holds it, and no other history can win an election. In a
//!   joint configuration ([`Group::outgoing`]) the removed replica still votes: until the entry that ends it is
//!   delivered here, it is kept, connected or not.
//! - **A replica that has not delivered the change** may need it, if nobody who has is left. It keeps it as a member: each
//!   replica judges by what it delivered itself, and a connection concerns the two at its ends only.
//! - **The removed replica** ends its service when a quorum has told it of the change. If it was away for longer than
//!   this waits, it asks, which needs no session (`Origin::ask`), and learns that it was removed.

use std::{collections::BTreeSet, time::Duration};

use synod_replica::Group;
use synod_transport::Peer;
use synod_wire::{ReplicaId, Time};

/// How many election time-outs a removed replica has, from when it was removed or its last session ended. A leader of
/// Raft goes on telling it what is decided for four.
const TIMEOUTS: u32 = 5;

/// The peers of this replica: the members, and those who were until not long ago.
#[derive(Debug)]
pub(crate) struct Parting {
    patience: Duration,
    members: Vec<Peer>,
    /// Who left, in the order of their leaving, and since when they are waited for.
    leaving: Vec<(Peer, Time)>,
    /// Those to whom there is a session.
    linked: BTreeSet<ReplicaId>,
    /// Whether decisions still need the voters before the last change.
    unsettled: bool,
}

impl Parting {
    pub(crate) fn new(election_timeout: Duration) -> Parting {
        Parting {
            patience: election_timeout * TIMEOUTS,
            members: Vec::new(),
            leaving: Vec::new(),
            linked: BTreeSet::new(),
            unsettled: false,
        }
    }

    /// The group is another one now, with these members; `former` are those whom its last change removed.
    pub(crate) fn group(&mut self, now: Time, group: &Group, members: Vec<Peer>, former: Vec<Peer>) {
        self.unsettled = !group.outgoing.is_empty();
        let before = std::mem::replace(&mut self.members, members);
        self.leaving.retain(|(peer, _)| !is_among(&self.members, peer.id));
        for peer in before.into_iter().chain(former) {
            let known = self.peers().any(|known| known.id == peer.id);
            if !known {
                self.leaving.push((peer, now));
            }
        }
    }

    /// A session to a replica began or ended.
    pub(crate) fn linked(&mut self, now: Time, id: ReplicaId, up: bool) {
        if up {
            self.linked.insert(id);
        } else {
            self.linked.remove(&id);
        }
        let left = self.leaving.iter_mut().find(|(peer, _)| peer.id == id);
        left.into_iter().for_each(|(_, since)| *since = now);
    }

    /// Lets go of those whose time is over; whether there are any.
    pub(crate) fn look(&mut self, now: Time) -> bool {
        let before = self.leaving.len();
        let Parting { patience, leaving, linked, unsettled, .. } = self;
        for (peer, since) in leaving.iter_mut() {
            if *unsettled || linked.contains(&peer.id) {
                *since = now;
            }
        }
        leaving.retain(|(_, since)| now < *since + *patience);
        leaving.len() < before
    }

    /// Whom to be connected with.
    pub(crate) fn peers(&self) -> impl Iterator<Item = &Peer> {
        self.members.iter().chain(self.leaving.iter().map(|(peer, _)| peer))
    }

    /// Whether a replica is to be spoken to.
    pub(crate) fn has(&self, id: ReplicaId) -> bool {
        self.peers().any(|peer| peer.id == id)
    }
}

fn is_among(peers: &[Peer], id: ReplicaId) -> bool {
    peers.iter().any(|peer| peer.id == id)
}

#[cfg(test)]
mod tests {
    use synod_consensus::{Options, ProtocolKind};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn at(seconds: u64) -> Time {
        Time::ZERO + SECOND * u32::try_from(seconds).expect("few")
    }

    fn peers(ids: &[u64]) -> Vec<Peer> {
        ids.iter().map(|&id| Peer { id: ReplicaId(id), address: format!("h{id}:1") }).collect()
    }

    fn ids(parting: &Parting) -> Vec<u64> {
        parting.peers().map(|peer| peer.id.0).collect()
    }

    fn group() -> Group {
        Group::of(&Options::of(ProtocolKind::Raft), (1..=4).map(ReplicaId))
    }

    fn parting() -> Parting {
        let mut parting = Parting::new(SECOND);
        parting.group(at(0), &group(), peers(&[2, 3, 4]), Vec::new());
        parting
    }

    #[test]
    fn a_stopped_member_that_is_removed_is_let_go_of_after_a_while() {
        let mut parting = parting();
        parting.group(at(10), &group(), peers(&[2, 3]), peers(&[4]));
        assert!(!parting.look(at(14)));
        assert_eq!(ids(&parting), [2, 3, 4]);
        assert!(parting.look(at(15)) && !parting.has(ReplicaId(4)));
        assert!(!parting.look(at(16)), "once");
    }

    #[test]
    fn one_that_lives_is_kept_until_it_has_gone() {
        let mut parting = parting();
        parting.linked(at(1), ReplicaId(4), true);
        parting.group(at(10), &group(), peers(&[2, 3]), peers(&[4]));
        assert!(!parting.look(at(100)));
        parting.linked(at(101), ReplicaId(4), false);
        assert!(!parting.look(at(105)));
        // It comes back for a moment.
        parting.linked(at(105), ReplicaId(4), true);
        parting.linked(at(106), ReplicaId(4), false);
        assert!(!parting.look(at(110)));
        assert!(parting.look(at(111)));
        assert_eq!(ids(&parting), [2, 3]);
    }

    #[test]
    fn the_next_change_does_not_cut_it_off_earlier() {
        let mut parting = parting();
        parting.group(at(10), &group(), peers(&[2, 3]), peers(&[4]));
        parting.group(at(11), &group(), peers(&[2, 5]), peers(&[3]));
        assert_eq!(ids(&parting), [2, 5, 4, 3]);
        assert!(parting.look(at(15)));
        assert_eq!(ids(&parting), [2, 5, 3]);
    }

    #[test]
    fn one_that_still_votes_is_kept_connected_or_not() {
        let mut parting = parting();
        let unsettled = Group { outgoing: vec![ReplicaId(4)], ..group() };
        parting.group(at(10), &unsettled, peers(&[2, 3]), peers(&[4]));
        assert!(!parting.look(at(100)));
        parting.group(at(100), &group(), peers(&[2, 3]), peers(&[4]));
        assert!(!parting.look(at(104)));
        assert!(parting.look(at(105)));
    }
}

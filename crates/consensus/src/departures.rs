//! Peers whose process has ended: their system closes the connections to them at once and refuses new ones,
//! long before their silence would reveal it.
//!
//! A follower that is refused where its leader used to listen, and has reached no process there after a short
//! **grace** period, takes the leader for gone. It rehearses an election without waiting for the rest of the time-out,
//! and lets others try, whatever it heard from the leader before. Each election says what that means for it.
//!
//! The mere end of a session says nothing: a living leader accepts the next one, however many connections a
//! switch resets and however long a round trip takes.
//!
//! **No working leader is deposed by this**, even if a third party refuses the connections. A follower answers
//! its leader through its session to it. So if a quorum takes the leader for gone at one time, every quorum
//! contains a replica that cannot answer it: the leader decides nothing and confirms no read until one of the
//! sessions begins again. For this reason the consent to a rehearsal counts only until the next question.
//!
//! As with a time-out, a wrong guess costs time, never data.

use std::time::Duration;

use synod_wire::{ReplicaId, Time};

use crate::{Link, MEMBERS_MAX};

/// The grace period is this part of the election time-out, 25 ms by default: about as long as it takes until
/// all followers have been refused, since a peer is dialled again after 5 to 10 ms.
const GRACES_PER_TIMEOUT: u32 = 40;

/// Which peers refuse connections, and since when.
#[derive(Clone, Debug)]
pub(crate) struct Departures {
    grace: Duration,
    /// The peers that refuse connections and whose session has not begun again, each with the time of the
    /// first refusal.
    refused: Vec<(ReplicaId, Time)>,
}

impl Departures {
    pub(crate) fn new(election_timeout: Duration) -> Departures {
        Departures { grace: election_timeout / GRACES_PER_TIMEOUT, refused: Vec::new() }
    }

    /// Records what happened to the session to a peer.
    pub(crate) fn link(&mut self, now: Time, peer: ReplicaId, link: Link) {
        match link {
            Link::Up => self.refused.retain(|&(id, _)| id != peer),
            Link::Refused if self.refuses(peer) => {}
            Link::Refused => {
                // The oldest entry is dropped first: peers that were removed long ago are the oldest.
                if self.refused.len() >= MEMBERS_MAX {
                    self.refused.remove(0);
                }
                self.refused.push((peer, now));
            }
            Link::Renewed | Link::Down => {}
        }
    }

    /// Whether a peer refuses connections.
    pub(crate) fn refuses(&self, peer: ReplicaId) -> bool {
        self.refused.iter().any(|&(id, _)| id == peer)
    }

    /// How long a peer that refuses connections has to come back.
    pub(crate) fn grace(&self) -> Duration {
        self.grace
    }

    /// When a peer will be taken for gone, unless it comes back before; `None` if it refuses no connections.
    pub(crate) fn gone_at(&self, peer: ReplicaId) -> Option<Time> {
        self.refused.iter().find(|(id, _)| *id == peer).map(|&(_, since)| since + self.grace)
    }

    /// Whether a peer is taken for gone.
    pub(crate) fn is_gone(&self, now: Time, peer: ReplicaId) -> bool {
        self.gone_at(peer).is_some_and(|gone_at| now >= gone_at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_is_gone_once_it_has_been_away_for_the_grace_and_until_it_is_back() {
        let (peer, other) = (ReplicaId(2), ReplicaId(3));
        let t = |ms| Time::ZERO + Duration::from_millis(ms);
        let mut departures = Departures::new(Duration::from_millis(1000));
        assert_eq!(departures.gone_at(peer), None, "it was never there");
        departures.link(t(50), peer, Link::Down);
        assert_eq!(departures.gone_at(peer), None, "that says nothing");
        departures.link(t(100), peer, Link::Refused);
        departures.link(t(110), peer, Link::Refused);
        assert!(!departures.is_gone(t(124), peer));
        assert!(departures.is_gone(t(125), peer) && !departures.is_gone(t(125), other));
        departures.link(t(126), peer, Link::Renewed);
        assert!(departures.is_gone(t(126), peer), "something that it said before came late");
        departures.link(t(130), peer, Link::Up);
        assert!(!departures.is_gone(t(200), peer));
    }

    #[test]
    fn so_many_members_as_there_can_be_are_remembered() {
        let mut departures = Departures::new(Duration::from_millis(1000));
        for id in 1..=1000 {
            departures.link(Time::ZERO, ReplicaId(id), Link::Refused);
        }
        assert_eq!(departures.refused.len(), MEMBERS_MAX);
        assert!(departures.refuses(ReplicaId(1000)) && !departures.refuses(ReplicaId(1)));
    }
}

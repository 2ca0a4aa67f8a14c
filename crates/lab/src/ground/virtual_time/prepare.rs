//! A stopwatch for the prepare phase of Sequence Paxos (Ng 2020, section 5.4.2).

use std::{collections::BTreeSet, time::Duration};

use synod_consensus::{Message, sequence_paxos};
use synod_replica::PeerMessage;
use synod_wire::{Ballot, ReplicaId, Time};

/// Watches messages between replicas. It starts when a replica sends the first `Prepare` of a ballot, and
/// stops when a majority, that replica included, has accepted in that ballot.
#[derive(Debug, Default)]
pub(super) struct Stopwatch {
    running: Option<Running>,
    /// The first completed phase since this was last taken.
    pub(super) took: Option<Duration>,
}

#[derive(Debug)]
struct Running {
    ballot: Ballot,
    began: Time,
    accepted: BTreeSet<ReplicaId>,
}

impl Stopwatch {
    /// A replica sends this message.
    pub(super) fn sent(&mut self, now: Time, message: &PeerMessage) {
        let PeerMessage::Protocol { message: Message::SequencePaxos(message), .. } = message else { return };
        // A leader that has lost sight of a follower asks it again in its ballot, which does not begin a phase.
        if let sequence_paxos::Message::Prepare(prepare) = message
            && self.running.as_ref().is_none_or(|running| running.ballot < prepare.ballot)
        {
            self.running = Some(Running { ballot: prepare.ballot, began: now, accepted: BTreeSet::new() });
        }
    }

    /// This message has arrived at a replica, in a group of this size.
    pub(super) fn arrived(&mut self, now: Time, from: ReplicaId, message: &PeerMessage, replicas: usize) {
        let PeerMessage::Protocol { message: Message::SequencePaxos(message), .. } = message else { return };
        let Some(running) = &mut self.running else { return };
        if let sequence_paxos::Message::Accepted { ballot, .. } = message
            && *ballot == running.ballot
        {
            let first = running.accepted.insert(from);
            if first && running.accepted.len() == replicas / 2 && self.took.is_none() {
                self.took = Some(now.since(running.began));
            }
        }
    }
}

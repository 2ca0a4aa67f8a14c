//! Situations with rounds of gossip, which replicas pass on to each other.

use std::collections::BTreeSet;

use synod_consensus::{
    Message, Role,
    raft::{self, Round},
};
use synod_replica::{Event, LogRecord, PeerMessage};
use synod_wire::{Ballot, Slot};

use super::{
    Reached, Sight, Situation,
    scene::{Scene, index_of},
};

/// What each replica has seen of rounds.
#[derive(Debug)]
pub(super) struct Watcher {
    of: Vec<Seen>,
}

#[derive(Clone, Debug, Default)]
struct Seen {
    /// The last round that came here.
    round: (Ballot, u64),
    /// The last slot that it wrote, whether durably or not, and the term of the entry.
    wrote: (Slot, Ballot),
    /// The last slot that it wrote whose entry changes voters; zero if there is none.
    change: Slot,
    /// The leader whose round did not fit its log.
    refused: Option<Ballot>,
    /// The replicas whose questions for entries came in this burst.
    asked_by: BTreeSet<usize>,
}

impl Seen {
    fn writes(&mut self, record: &raft::Record) {
        match record {
            raft::Record::Entries { first, entries, .. } => {
                let slots = (first.0..).map(Slot).zip(entries.iter());
                for (slot, entry) in slots {
                    self.wrote = (slot, entry.ballot);
                    if entry.voters.is_some() {
                        self.change = slot;
                    }
                }
            }
            raft::Record::Truncated { from, .. } if *from <= self.change => self.change = Slot::ZERO,
            _ => {}
        }
    }
}

impl Watcher {
    pub(super) fn new(capacity: usize) -> Watcher {
        Watcher { of: vec![Seen::default(); capacity] }
    }

    pub(super) fn see(&mut self, scene: &Scene, sight: &Sight<'_>, reached: &mut Reached) {
        if let Sight::Stepped { of, .. } = *sight {
            self.of[of].asked_by.clear();
        }
        match *sight {
            Sight::Starts { of, .. } => self.of[of] = Seen::default(),
            Sight::Appends {
                of,
                record: LogRecord::Protocol { record: synod_consensus::Record::Raft(record), .. },
            } => self.of[of].writes(record),
            Sight::Sends { from, to, message: PeerMessage::Protocol { message, .. } } => match message {
                Message::Raft(raft::Message::Round(round)) => self.sends((from, to), round, reached),
                Message::Raft(raft::Message::RoundConflict(conflict)) => {
                    self.of[from].refused = Some(conflict.ballot);
                }
                Message::Raft(raft::Message::Append { ballot, entries, .. }) => {
                    let refused = self.of[to].refused == Some(*ballot);
                    reached.mark(Situation::RoundRepaired, refused && !entries.is_empty());
                }
                _ => {}
            },
            Sight::Takes { of, event } => self.takes(of, event, reached),
            Sight::Delivers { of, first: true, .. } => {
                let leads = |leader: &usize| scene.actors[*leader].face.role == Role::Leader;
                let leader = scene.actors[of].face.leader.map(index_of).filter(leads);
                let follows = scene.actors[of].face.role == Role::Follower;
                let gossips = self.of[of].round.0 != Ballot::ZERO;
                let Some(leader) = leader.filter(|_| follows && gossips) else { return };
                reached.mark(Situation::FollowerCommitsFirst, true);
                let wrote = self.of[of].wrote.0;
                reached.mark(
                    Situation::CommitsByOldVoters,
                    wrote > Slot::ZERO && self.of[leader].change > wrote,
                );
            }
            _ => {}
        }
    }

    fn takes(&mut self, of: usize, event: &Event, reached: &mut Reached) {
        let Event::Receive {
            from,
            message: PeerMessage::Protocol { message: Message::Raft(message), .. },
            ..
        } = event
        else {
            return;
        };
        match message {
            raft::Message::Pull { .. } => _ = self.of[of].asked_by.insert(index_of(*from)),
            raft::Message::Round(round) => {
                let last = &mut self.of[of].round;
                let this = (round.ballot, round.number);
                let follows = index_of(round.ballot.replica) != of;
                reached.mark(Situation::RoundTwice, follows && round.number > 0 && this <= *last);
                *last = this.max(*last);
            }
            _ => {}
        }
    }

    fn sends(&self, (from, to): (usize, usize), round: &Round, reached: &mut Reached) {
        let serves = round.number == 0 && !round.entries.is_empty();
        reached.mark(Situation::RoundPulled, serves);
        reached.mark(Situation::PullWaits, serves && !self.of[from].asked_by.contains(&to));
        let passes_on = index_of(round.ballot.replica) != from && round.number > 0;
        reached.mark(Situation::RoundPassedOn, passes_on);
        let Some(status) = &round.status else { return };
        let own = status.members.iter().find(|known| index_of(known.id) == from);
        let held = own.map_or(Slot::ZERO, |known| known.held).max(status.commit);
        let (wrote, ballot) = self.of[from].wrote;
        reached.mark(Situation::HeldLater, passes_on && ballot == round.ballot && held < wrote);
    }
}

//! Votes that do not wait for a slow disk.
//!
//! Votes pass the members one after the other, so one whose disk is slow would hold up every slot, although the others
//! are a quorum. Once the commits of a member take longer than a small part of an election time-out, it lets votes
//! pass without its own, which follows straight to the coordinator when its record is durable. In the same way the
//! coordinator lets the votes begin without its own. A vote still leaves after its record, whichever way it goes.

use std::time::Duration;

use synod_wire::{Lsn, Slot, Time};

use super::{Message, Ring, State, View, VoteRun, Votes};
use crate::{Effects, acceptor::Votes as Durable, leadership::Leads, paxos::Paxos};

/// Commits are slow that take longer than one part in this many of an election time-out.
const SLOW_PART: u32 = 100;

/// The votes of the promised ballot that went on without this replica's own.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Late {
    /// The last slot of them.
    passed: Slot,
}

impl Ring {
    /// Whether the disk of this replica is so slow that votes do not wait for it.
    pub(super) fn is_disk_slow(&self, now: Time) -> bool {
        let limit: Duration = self.common().options.election_timeout / SLOW_PART;
        self.common().disk.is_slower_than(limit, now)
    }

    /// Whether the votes for these slots go on without this replica's own, which waits for the record `after`. On a
    /// detour nobody else waits for it.
    pub(super) fn lets_pass(&mut self, now: Time, view: &View, first: Slot, last: Slot, after: Lsn) -> bool {
        let waits = after > self.common().durable && first > self.decided() && !view.is_detour();
        let passes = waits && self.is_disk_slow(now);
        if passes {
            self.late.passed = self.late.passed.max(last);
        }
        passes
    }

    /// Records of this replica became durable: sends its votes to the coordinator, if the others passed before.
    pub(super) fn vote_late(&mut self, own: &Durable, effects: &mut Effects) {
        let ballot = own.ballot;
        let (first, last) = (own.first, own.last.min(self.late.passed));
        if !matches!(self.state, State::Follower) || ballot != self.common().promised || first > last {
            return;
        }
        let view = View::detour(ballot, self.me());
        let (decided, votes) = (self.decided(), Votes::default().with(1));
        self.send_round(Message::Votes(VoteRun { view, first, last, decided, votes }), Lsn::ZERO, effects);
    }
}

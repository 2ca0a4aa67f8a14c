//! Eager transfer of state: members send a joining replica what it lacks without being asked (Ng 2020,
//! sections 4.1 and 4.4).
//!
//! A replica that does not vote yet tells all voters how far it is. Each voter sends it a share of the slots
//! after that: [`SEGMENT_SLOTS`] slots are one segment, and the segments go round among the voters without
//! the leader, whose outgoing links carry the proposals. So the voters need not agree on who sends what. What
//! is on its way is bounded, and the receiver makes room for more by telling how far it has come. Two voters
//! may see different leaders and different voters that are up: what all of them or none of them sends, or
//! what is lost, the receiver fetches after a while (`catch_up.rs`).
//!
//! Where the slots are not kept any more, the first voter in the round offers its snapshot, whose pieces the
//! receiver fetches.

use std::collections::{BTreeMap, VecDeque};

use synod_wire::{Lsn, ReplicaId, Slot, Time};

use crate::{Action, PeerMessage, Replica, StateTransfer, decided::Decided};

/// Slots of a segment.
const SEGMENT_SLOTS: u64 = 16;

/// The most messages on their way to one replica.
const MESSAGES_MAX: usize = 256;

/// They hold at most this many times the bytes of one answer to a replica that asks.
const ANSWERS_MAX: usize = 4;

/// What is sent to one replica.
#[derive(Debug)]
struct Push {
    /// How far the receiver was when it last said so, and when that was.
    acknowledged: Slot,
    heard_at: Time,
    /// This replica has sent its share of the slots through this one.
    sent: Slot,
    /// The messages on their way, as far as is known: the last slot of each, and its bytes.
    under_way: VecDeque<(Slot, usize)>,
    bytes: usize,
}

impl Push {
    fn new(acknowledged: Slot, now: Time) -> Push {
        Push { acknowledged, heard_at: now, sent: acknowledged, under_way: VecDeque::new(), bytes: 0 }
    }

    /// Records that the receiver has everything through a slot.
    fn acknowledge(&mut self, slot: Slot, now: Time) {
        if slot < self.acknowledged {
            // The receiver started again, without what it had.
            *self = Push::new(slot, now);
            return;
        }
        (self.acknowledged, self.heard_at, self.sent) = (slot, now, self.sent.max(slot));
        while let Some((_, bytes)) = self.under_way.front().filter(|(last, _)| *last <= slot) {
            self.bytes -= bytes;
            self.under_way.pop_front();
        }
    }

    fn has_room(&self, bytes_max: usize) -> bool {
        self.under_way.is_empty() || self.bytes < bytes_max && self.under_way.len() < MESSAGES_MAX
    }

    fn sends(&mut self, last: Slot, bytes: usize) {
        self.sent = last;
        self.under_way.push_back((last, bytes));
        self.bytes += bytes;
    }
}

/// The replicas to which this one sends slots without being asked.
#[derive(Debug, Default)]
pub(crate) struct Pushes {
    to: BTreeMap<ReplicaId, Push>,
}

/// The last slot of the segment that a slot is in, and the place in the round of the voter whose share that segment is.
fn share(slot: Slot, sharers: usize) -> (Slot, usize) {
    let segment = slot.0 / SEGMENT_SLOTS;
    let sharer = usize::try_from(segment % sharers as u64).expect("less than their number");
    (Slot((segment + 1).saturating_mul(SEGMENT_SLOTS) - 1), sharer)
}

impl Replica {
    /// Records how far a joining replica says it is: it is then sent more, or told what it can ask for.
    pub(crate) fn heard_joining(
        &mut self,
        now: Time,
        from: ReplicaId,
        decided: Slot,
        actions: &mut Vec<Action>,
    ) {
        if self.settings.state_transfer == StateTransfer::Pull {
            // It can ask this replica too. Of what the leader has it is told anyway.
            if decided < self.decided.last() && !self.leads() {
                self.answer_progress(now, from, actions);
            }
            return;
        }
        if !self.instance.runs() {
            return;
        }
        let push = self.pushes.to.entry(from).or_insert_with(|| Push::new(decided, now));
        push.acknowledge(decided, now);
        let trimmed = decided.next() < self.decided.first();
        if trimmed
            && self.sharers(from).first() == Some(&self.me)
            && let Some(message) = self.snapshot_offer(decided.next(), actions)
        {
            actions.push(Action::Send { to: from.into(), message, after: Lsn::ZERO });
        }
    }

    /// The voters that send slots to a replica, in the order of the round.
    fn sharers(&self, to: ReplicaId) -> Vec<ReplicaId> {
        let able = |id: &ReplicaId| *id != to && !self.catch_up.is_down(*id);
        let mut sharers: Vec<ReplicaId> = self.group.voters().filter(able).collect();
        if sharers.len() > 1 {
            sharers.retain(|&id| self.view.leader != Some(id));
        }
        sharers
    }

    /// Sends what joining replicas lack, as far as there is room.
    pub(crate) fn push_state(&mut self, now: Time, actions: &mut Vec<Action>) {
        if self.pushes.to.is_empty() {
            return;
        }
        let timeout = self.settings.consensus.election_timeout;
        let mut pushes = std::mem::take(&mut self.pushes);
        pushes.to.retain(|&to, push| {
            now < push.heard_at + timeout && self.instance.runs() && self.group.awaits(to, push.acknowledged)
        });
        for (&to, push) in &mut pushes.to {
            let sharers = self.sharers(to);
            let Some(place) = sharers.iter().position(|&id| id == self.me) else { continue };
            self.push_to(to, push, (place, sharers.len()), actions);
        }
        self.pushes = pushes;
    }

    fn push_to(&self, to: ReplicaId, push: &mut Push, round: (usize, usize), actions: &mut Vec<Action>) {
        let (place, sharers) = round;
        let last = self.decided.last();
        let bytes_max = self.settings.fetch_bytes_max;
        while push.sent < last && push.has_room(bytes_max.saturating_mul(ANSWERS_MAX)) {
            let from = push.sent.next();
            let (end, sharer) = share(from, sharers);
            if sharer != place {
                push.sent = end.min(last);
                continue;
            }
            let Some(batches) = self.decided.range(from, end, bytes_max) else { return };
            let through = Slot(push.sent.0 + batches.len() as u64);
            push.sends(through, batches.iter().map(Decided::size).sum());
            let message = PeerMessage::Pushed { from, decided: last, batches };
            actions.push(Action::Send { to: to.into(), message, after: Lsn::ZERO });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Time = Time::ZERO;

    #[test]
    fn every_slot_is_the_share_of_one_voter() {
        for sharers in 1..=5 {
            let mut counts = vec![0; sharers];
            let mut slot = Slot(1);
            while slot < Slot(400) {
                let (end, sharer) = share(slot, sharers);
                assert!(end >= slot);
                assert!((slot.0..=end.0).all(|slot| share(Slot(slot), sharers) == (end, sharer)));
                counts[sharer] += end.0 + 1 - slot.0;
                slot = end.next();
            }
            let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
            assert!(most - least <= SEGMENT_SLOTS, "{counts:?}");
        }
        share(Slot(u64::MAX), 3);
    }

    #[test]
    fn what_is_under_way_is_bounded_and_an_acknowledgement_makes_room() {
        let mut push = Push::new(Slot(4), NOW);
        assert!(push.has_room(0), "one message may always be on its way");
        push.sends(Slot(8), 100);
        assert!(push.has_room(101) && !push.has_room(100));
        push.acknowledge(Slot(7), NOW);
        assert!(!push.has_room(100));
        push.acknowledge(Slot(8), NOW);
        assert!(push.has_room(1) && push.bytes == 0);
        (0..MESSAGES_MAX).for_each(|message| push.sends(Slot(9 + message as u64), 1));
        assert!(!push.has_room(usize::MAX));
    }

    #[test]
    fn a_receiver_that_lost_its_memory_is_sent_everything_again() {
        let mut push = Push::new(Slot(4), NOW);
        push.sends(Slot(8), 100);
        push.acknowledge(Slot(6), NOW);
        assert_eq!(push.sent, Slot(8));
        push.acknowledge(Slot(20), NOW);
        assert_eq!(push.sent, Slot(20), "it got the rest elsewhere");
        push.acknowledge(Slot(0), NOW);
        assert_eq!((push.sent, push.bytes), (Slot(0), 0));
    }
}

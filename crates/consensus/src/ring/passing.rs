//! Messages that pass: which ones a member obeys, to whom they go on, and what leaves together.

use synod_wire::{Lsn, ReplicaId, Time};

use super::{Accept, DecisionRun, Message, Ring, State, Value, View, VoteRun};
use crate::{
    Effects,
    batches::last_of,
    leadership::Leads,
    paxos::{FamilyMessage, Paxos},
};

/// This many messages leave at the latest.
const OUTGOING_MAX: usize = 64;

/// A message that leaves at the end of the burst.
#[derive(Clone, Debug)]
pub(super) struct Outgoing {
    to: ReplicaId,
    message: Message,
    after: Lsn,
}

impl Ring {
    /// Handles the view of a message that passes the ring; returns false if it is of a ballot that is not obeyed. Other
    /// than what only its owner sends, such a message comes from any member.
    pub(super) fn follow_ring(
        &mut self,
        now: Time,
        from: ReplicaId,
        view: &View,
        effects: &mut Effects,
    ) -> bool {
        let (ballot, me) = (view.ballot, self.me());
        if !view.is_of(&self.common.members, self.takes_learners()) || !ballot.is_in_reach() {
            return false;
        }
        if ballot.replica == me {
            return matches!(&self.state, State::Leader(leader) if leader.ballot == ballot);
        }
        let (promised, promised_lsn) = (self.common.promised, self.common.promised_lsn);
        if !self.common.rules().may_obey(promised, ballot) {
            if !self.is_learner() {
                let reject = Message::from(FamilyMessage::Reject { promised });
                effects.send(ballot.replica, reject, promised_lsn);
            }
            return false;
        }
        if ballot > promised {
            self.promise(now, ballot, effects);
        }
        if from == ballot.replica {
            self.follow(now, from, ballot, effects);
        } else {
            self.common.heard_of_leader(now, ballot, effects);
        }
        self.adopt_view(now, view);
        true
    }

    /// Takes a view for the ring, if it is newer than the one that is known.
    fn adopt_view(&mut self, now: Time, view: &View) {
        if view.ballot == self.common.promised && view.replaces(self.view.as_ref()) {
            self.view = Some(view.clone());
            self.send_values_again(now);
        }
    }

    /// The member to which a message of this view goes on; none if there is a newer view, along which the coordinator
    /// sends again what is not decided.
    pub(super) fn onward(&self, view: &View) -> Option<ReplicaId> {
        let newer = |known: &View| known.ballot == view.ballot && known.minor > view.minor;
        let outdated = !view.is_detour() && self.view.as_ref().is_some_and(newer);
        if outdated { None } else { view.next(self.me()) }
    }

    /// Sends a message to the next member of its view once a record is durable. What a burst sends there leaves
    /// together.
    pub(super) fn send_round(&mut self, message: Message, after: Lsn, effects: &mut Effects) {
        let (Message::Accept(Accept { view, .. })
        | Message::Votes(VoteRun { view, .. })
        | Message::Decision(DecisionRun { view, .. })) = &message
        else {
            return;
        };
        let Some(to) = self.onward(view) else { return };
        let bytes_max = self.message_bytes_max();
        if let Some(last) = self.outgoing.last_mut()
            && last.to == to
            && join(&mut last.message, &message, bytes_max)
        {
            last.after = last.after.max(after);
            return;
        }
        self.send_behind(to, message, after, effects);
    }

    /// Sends a message behind what leaves for the ring. Values must not overtake the decision of those before them: the
    /// coordinator would have no room for them yet, and drop them.
    pub(super) fn send_behind(&mut self, to: ReplicaId, message: Message, after: Lsn, effects: &mut Effects) {
        if self.outgoing.len() >= OUTGOING_MAX {
            self.send_outgoing(effects);
        }
        self.outgoing.push(Outgoing { to, message, after });
    }

    /// Lets what goes round the ring leave.
    pub(super) fn send_outgoing(&mut self, effects: &mut Effects) {
        for Outgoing { to, message, after } in self.outgoing.drain(..) {
            effects.send(to, message, after);
        }
    }
}

/// Adds the slots of a message to those of the one before, if they follow them and all else is the same.
fn join(before: &mut Message, next: &Message, bytes_max: usize) -> bool {
    let fits = |values: &[Value], more: &[Value]| {
        let bytes = |value: &Value| value.content.whole().map_or(64, |batch| batch.bytes().len() + 64);
        values.iter().chain(more).map(bytes).sum::<usize>() <= bytes_max
    };
    match (before, next) {
        (
            Message::Accept(Accept { view, first, decided, safe, values }),
            Message::Accept(Accept {
                view: in_view,
                first: from,
                decided: through,
                safe: mode,
                values: more,
            }),
        ) if (&*view, &*safe) == (in_view, mode)
            && last_of(*first, values).next() == *from
            && fits(values, more) =>
        {
            values.extend(more.iter().cloned());
            *decided = (*decided).max(*through);
            true
        }
        (
            Message::Votes(VoteRun { view, last, decided, votes, .. }),
            Message::Votes(VoteRun { view: in_view, first: from, last: end, decided: through, votes: voted }),
        ) if (&*view, &*votes, last.next()) == (in_view, voted, *from) => {
            (*last, *decided) = (*end, (*decided).max(*through));
            true
        }
        (
            Message::Decision(DecisionRun { view, last, ttl, .. }),
            Message::Decision(DecisionRun { view: in_view, first: from, last: end, ttl: left }),
        ) if (&*view, &*ttl, last.next()) == (in_view, left, *from) => {
            *last = *end;
            true
        }
        _ => false,
    }
}

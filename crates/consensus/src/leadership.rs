//! What every leader does besides ordering: it says that it lives, tells the others what is decided, and
//! confirms reads.

use std::time::Duration;

use synod_wire::{Ballot, ReplicaId, Slot, Time};

use crate::{
    Bug, Effect, Effects, LeaderView, Protocol, ReadToken, Role, VoterSets, read_rounds::ReadRounds,
};

/// A protocol whose leader has these duties: what differs comes first, the rest follows from it.
pub(crate) trait Leads: Protocol {
    /// This replica.
    fn me(&self) -> ReplicaId;

    /// The last slot of the decided prefix.
    fn decided(&self) -> Slot;

    /// The duties of this replica, if it leads, and the voters whose answers count.
    fn duties(&mut self) -> Option<(&mut Leadership, &VoterSets)>;

    /// Sends the heartbeat that was begun last ([`ReadRounds::last`]) to all followers.
    fn tell_heartbeat(&mut self, effects: &mut Effects);

    /// Gives up leading although no other leader is known. The others elect one once they miss this replica, which
    /// comes last in line.
    fn give_up(&mut self, now: Time, effects: &mut Effects);

    /// Tells the replica around the protocol which replica leads, if that has changed.
    fn report_leader(&mut self, effects: &mut Effects);

    /// The last slot that this leader proposed, where another member may know of a decision before the leader does: a
    /// read waits for all that is proposed. `None` where the leader decides alone.
    fn reads_wait_for(&self) -> Option<Slot> {
        None
    }

    /// The slot that a read must see that comes now; `None` if this replica does not lead.
    fn read_slot(&mut self) -> Option<Slot> {
        let (decided, proposed) = (self.decided(), self.reads_wait_for());
        self.duties().map(|(duties, _)| proposed.unwrap_or_else(|| duties.read_slot(decided)))
    }

    /// Whether a read that comes now need not wait for any decision, so that also a leader that decides nothing is
    /// useful (`progress_watch.rs`).
    fn serves_reads(&mut self) -> bool {
        let (decided, decides_alone) = (self.decided(), self.reads_wait_for().is_none());
        decides_alone && self.duties().is_some_and(|(duties, _)| duties.knows_all_before(decided))
    }

    /// Whether this leader goes on leading, where `works` says that its disk and its voters answer, and `stalls` that
    /// it decides nothing although it should. A leader that decides nothing still serves reads, if it knows all that
    /// was decided before its time.
    fn is_useful(&mut self, works: bool, stalls: bool) -> bool {
        works && (!stalls || self.serves_reads())
    }

    /// Whether the others know that slots through this one are decided, although nothing announced it.
    fn is_known(&self, _through: Slot) -> bool {
        false
    }

    /// Tells the followers that slots through this one are decided; nothing where decisions reach all without that.
    fn tell_decided(&mut self, _through: Slot, _effects: &mut Effects) {}

    /// Tells the followers of decisions that no proposal carried.
    fn announce(&mut self, now: Time, effects: &mut Effects) {
        let (through, delay_max) = (self.decided(), self.options().announce_delay_max);
        let known = self.is_known(through);
        let Some((duties, _)) = self.duties() else { return };
        if known {
            duties.told(through);
        }
        if duties.announces(now, through, delay_max) {
            self.tell_decided(through, effects);
        }
    }

    /// Gives up if this leader slept too long. Every step and every flush begins with that.
    #[inline]
    fn yield_after_sleep(&mut self, now: Time, effects: &mut Effects) {
        let timeout = self.options().election_timeout;
        if self.duties().is_some_and(|(duties, _)| duties.slept_past_timeout(now, timeout)) {
            self.yield_to_others(now, effects);
        }
    }

    /// Gives up, unless this leader orders alone: there is no other to do it for.
    #[cold]
    fn yield_to_others(&mut self, now: Time, effects: &mut Effects) {
        let me = self.me();
        let alone = self.duties().is_some_and(|(_, voters)| voters.is_quorum(|id| id == me));
        if !alone && !self.options().has(Bug::ReadWithoutConfirmation) {
            self.give_up(now, effects);
            self.report_leader(effects);
        }
    }

    /// Sends a heartbeat if one is due.
    fn heartbeat_if_due(&mut self, now: Time, effects: &mut Effects) {
        let interval = self.options().heartbeat_interval;
        if self.duties().is_some_and(|(duties, _)| duties.is_heartbeat_due(now, interval)) {
            self.send_heartbeat(effects);
        }
    }

    /// Sends a heartbeat, which tells the others what is decided and asks them to confirm that this replica leads.
    fn send_heartbeat(&mut self, effects: &mut Effects) {
        let (me, decided) = (self.me(), self.decided());
        let Some((duties, _)) = self.duties() else { return };
        duties.beats(me, decided);
        self.tell_heartbeat(effects);
        self.confirm_reads(effects);
    }

    /// Takes a read, which waits until a quorum has answered a heartbeat that is sent from now on.
    fn read_index(&mut self, token: ReadToken, effects: &mut Effects) {
        let (slot, confirmed) = (self.read_slot(), !self.options().has(Bug::ReadWithoutConfirmation));
        if let Some(slot) = slot.filter(|_| confirmed)
            && let Some((duties, _)) = self.duties()
        {
            duties.rounds.ask(token, slot);
        } else {
            effects.push(Effect::ReadIndex { token, slot });
        }
        self.confirm_reads(effects);
    }

    /// Answers the reads for which a quorum has confirmed that this replica leads, and asks the followers for
    /// the other reads.
    fn confirm_reads(&mut self, effects: &mut Effects) {
        let Some((duties, voters)) = self.duties() else { return };
        if duties.rounds.confirm(|round_of| voters.quorum_value(round_of), effects) {
            self.send_heartbeat(effects);
        }
    }
}

/// The duties of one leader, from its beginning to its end.
#[derive(Clone, Debug)]
pub(crate) struct Leadership {
    /// A read must see everything through this slot: an earlier leader may have decided it.
    floor: Slot,
    /// The other replicas were told that slots through this one are decided.
    announced: Slot,
    /// When the other replicas have to be told what is decided, unless a proposal tells them before.
    announce_at: Time,
    /// The last slot whose decision another replica waits for.
    awaited: Slot,
    heartbeat_at: Time,
    pub(crate) rounds: ReadRounds,
}

impl Leadership {
    /// A leadership that begins at `now`, with slots through `decided` decided. Other replicas may wait for
    /// what earlier leaders proposed through `floor`.
    pub(crate) fn begin(now: Time, decided: Slot, floor: Slot) -> Leadership {
        Leadership {
            floor,
            announced: decided,
            announce_at: Time::NEVER,
            awaited: floor,
            heartbeat_at: now,
            rounds: ReadRounds::default(),
        }
    }

    /// When the leader has to do something even if nothing happens.
    pub(crate) fn tick_at(&self) -> Time {
        self.heartbeat_at.min(self.announce_at)
    }

    // Announcements.

    /// Takes note that another replica waits for the decision of this slot.
    pub(crate) fn awaits(&mut self, slot: Slot) {
        self.awaited = slot;
    }

    /// Takes note that a message told the others that slots through this one are decided.
    pub(crate) fn told(&mut self, through: Slot) {
        self.announced = self.announced.max(through);
    }

    /// Whether to tell the others now that slots through this one are decided, which no proposal told them:
    /// at once if one of them waits for it, otherwise after `delay_max`, since under load the next proposal
    /// tells them. If so, they count as told.
    pub(crate) fn announces(&mut self, now: Time, through: Slot, delay_max: Duration) -> bool {
        let news = self.announced < through;
        if news {
            self.announce_at = self.announce_at.min(now + delay_max);
            if self.announced >= self.awaited && now < self.announce_at {
                return false;
            }
        }
        self.announce_at = Time::NEVER;
        self.told(through);
        news
    }

    /// Stops announcing: from now on decisions reach the others without that.
    pub(crate) fn announces_no_more(&mut self, through: Slot) {
        self.told(through);
        self.announce_at = Time::NEVER;
    }

    // Heartbeats.

    /// Whether this leader slept through an election time-out, because its process was stopped or its machine
    /// moved. It does not know any more whether it leads, and must find out before it does anything else.
    pub(crate) fn slept_past_timeout(&self, now: Time, timeout: Duration) -> bool {
        now.since(self.heartbeat_at) > timeout
    }

    /// Whether a heartbeat is due; if so, the next one is due after `interval`.
    pub(crate) fn is_heartbeat_due(&mut self, now: Time, interval: Duration) -> bool {
        let due = now >= self.heartbeat_at;
        if due {
            self.heartbeat_at = now + interval;
        }
        due
    }

    /// Takes note that the next heartbeat leaves, which tells the others what is decided.
    fn beats(&mut self, me: ReplicaId, decided: Slot) {
        self.told(decided);
        self.rounds.begin(me);
    }

    /// Takes note that a replica answered this heartbeat; returns false if the heartbeat was never sent.
    pub(crate) fn answered(&mut self, from: ReplicaId, round: u64) -> bool {
        let sent = round <= self.rounds.last();
        if sent {
            self.rounds.answered(from, round);
        }
        sent
    }

    // Reads.

    /// Whether a read need not wait for any decision, because everything that an earlier leader may have
    /// decided is decided here.
    pub(crate) fn knows_all_before(&self, decided: Slot) -> bool {
        decided >= self.floor
    }

    /// The slot that a read must see that comes now. Whatever was decided before it came must be visible to
    /// it: no replica can know of a decision of this leader before the leader does, and the floor covers the
    /// decisions of earlier leaders.
    pub(crate) fn read_slot(&self, decided: Slot) -> Slot {
        decided.max(self.floor)
    }
}

/// What the replica around a protocol was told last.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reported {
    /// Which replica leads.
    pub(crate) view: LeaderView,
    /// The role, and the ballot in which the replica acts, for which that is so.
    settled: Option<(Role, Ballot)>,
    deadline: Option<Time>,
}

impl Reported {
    /// Tells which replica leads, if that has changed.
    pub(crate) fn leader(&mut self, view: LeaderView, effects: &mut Effects) {
        if self.view != view {
            self.view = view;
            self.settled = None;
            effects.push(Effect::Leader(view));
        }
    }

    /// Tells which replica leads, as far as the own role says it; `acts_in` is the ballot in which this replica acts,
    /// or the lowest of its term. Nearly every step asks, and hardly any has news.
    #[inline]
    pub(crate) fn role(&mut self, role: Role, me: ReplicaId, acts_in: Ballot, effects: &mut Effects) {
        if self.settled != Some((role, acts_in)) {
            self.settle(role, me, acts_in, effects);
            self.settled = Some((role, acts_in));
        }
    }

    #[cold]
    fn settle(&mut self, role: Role, me: ReplicaId, acts_in: Ballot, effects: &mut Effects) {
        let LeaderView { ballot, leader } = self.view;
        let view = match role {
            Role::Leader => LeaderView { ballot: acts_in, leader: Some(me) },
            // A candidate knows of no leader. Any other replica knows its leader from messages of the current ballot;
            // one that recovers, and so does not promise, may have heard of a higher one.
            _ if role != Role::Candidate && ballot >= acts_in && leader != Some(me) => return,
            _ => LeaderView { ballot: ballot.max(acts_in), leader: None },
        };
        self.leader(view, effects);
    }

    /// Asks to be woken at this time, unless that was asked before.
    pub(crate) fn deadline(&mut self, deadline: Time, effects: &mut Effects) {
        if self.deadline != Some(deadline) {
            self.deadline = Some(deadline);
            effects.push(Effect::Deadline(deadline));
        }
    }

    /// Takes note that the time that was asked for is over: it can then be asked for again, even for the same time.
    pub(crate) fn woken(&mut self) {
        self.deadline = None;
    }
}

#[cfg(test)]
mod tests {
    use synod_wire::Lsn;

    use super::*;

    const DELAY: Duration = Duration::from_millis(5);

    fn t(ms: u64) -> Time {
        Time::ZERO + Duration::from_millis(ms)
    }

    #[test]
    fn a_decision_is_announced_once_at_once_if_awaited_and_late_otherwise() {
        let mut leader = Leadership::begin(t(0), Slot(3), Slot(3));
        assert!(!leader.announces(t(0), Slot(3), DELAY));
        assert!(!leader.announces(t(1), Slot(4), DELAY), "perhaps the next proposal tells it");
        assert_eq!(leader.tick_at(), t(0), "the first heartbeat is due");
        assert!(leader.is_heartbeat_due(t(1), Duration::from_millis(100)));
        assert_eq!(leader.tick_at(), t(6));
        assert!(!leader.announces(t(5), Slot(5), DELAY));
        assert!(leader.announces(t(6), Slot(5), DELAY));
        assert!(!leader.announces(t(7), Slot(5), DELAY));
        assert_eq!(leader.tick_at(), t(101));
        leader.awaits(Slot(6));
        assert!(leader.announces(t(8), Slot(6), DELAY));
        assert!(!leader.announces(t(9), Slot(7), DELAY));
        leader.told(Slot(7));
        assert!(!leader.announces(t(99), Slot(7), DELAY), "a proposal told it");
        assert_eq!(leader.tick_at(), t(101));
    }

    #[test]
    fn a_read_sees_what_earlier_leaders_left() {
        let mut leader = Leadership::begin(t(0), Slot(3), Slot(5));
        assert!(!leader.knows_all_before(Slot(4)) && leader.knows_all_before(Slot(5)));
        assert_eq!((leader.read_slot(Slot(4)), leader.read_slot(Slot(6))), (Slot(5), Slot(6)));
        let mut effects = Effects::new(Lsn::ZERO);
        leader.rounds.ask(ReadToken(1), Slot(6));
        assert_eq!(effects.drain().count(), 0, "nobody has confirmed that it leads");
        leader.rounds.fail(&mut effects);
        assert_eq!(effects.drain().count(), 1);
    }

    #[test]
    fn what_was_told_is_not_told_again() {
        let (mut reported, mut effects) = (Reported::default(), Effects::new(Lsn::ZERO));
        reported.leader(LeaderView::default(), &mut effects);
        reported.deadline(t(1), &mut effects);
        reported.deadline(t(1), &mut effects);
        assert_eq!(effects.drain().count(), 1);
        reported.woken();
        reported.deadline(t(1), &mut effects);
        assert_eq!(effects.drain().count(), 1);
    }
}

//! How Raft leads: replication, commitment, heartbeats, read confirmation, and handing over.

use std::{collections::BTreeMap, time::Duration};

use synod_wire::{Ballot, Batch, Lsn, ReplicaId, Slot, Time};

use super::{
    Conflict, Entries, Entry, HeartbeatAck, Message, Raft, Replication, State,
    driftwood::{ByGossip, Rounds},
    log::fitting,
    progress::{Mode, Progress},
};
use crate::{
    Effects, MEMBERS_MAX, Protocol, Role, VoterSets,
    leadership::{Leadership, Leads},
    resend::Resend,
};

/// A learner that is silent for this many election time-outs is not tracked any more.
const LEARNER_TIMEOUTS: u32 = 4;

/// A replica that won an election.
#[derive(Clone, Debug)]
pub(super) struct Leader {
    pub(super) ballot: Ballot,
    /// Its floor is the slot of the no-op at the start of this term: once that is committed, so is everything
    /// before it.
    pub(super) duties: Leadership,
    /// What is known of the other voters, and of the replicas that only follow.
    pub(super) peers: BTreeMap<ReplicaId, Progress>,
    /// The number of the last tracking that was begun.
    session: u64,
    /// Whether it decides nothing although it should: then another replica that could lead may try.
    pub(super) stalls: bool,
    transfer: Option<Transfer>,
    /// Its rounds of gossip, if entries reach the voters by these.
    pub(super) rounds: Option<Rounds>,
}

/// A hand-over of leadership, during which nothing is proposed.
#[derive(Clone, Debug)]
struct Transfer {
    to: ReplicaId,
    /// If the other replica does not lead by then, this one goes on leading.
    until: Time,
    /// When the other replica, which has everything and was asked to lead, is asked again.
    asked: Option<Resend>,
}

impl Leader {
    pub(super) fn is_transferring(&self) -> bool {
        self.transfer.is_some()
    }

    pub(super) fn transfers_to(&self) -> Option<ReplicaId> {
        self.transfer.as_ref().map(|transfer| transfer.to)
    }

    pub(super) fn tick_at(&self) -> Time {
        let transfer = self.transfer.as_ref().map_or(Time::NEVER, |transfer| {
            transfer.until.min(transfer.asked.as_ref().map_or(Time::NEVER, Resend::at))
        });
        let resend = self.peers.values().map(Progress::resend_at).min().unwrap_or(Time::NEVER);
        self.duties.tick_at().min(transfer).min(resend)
    }

    /// Whether a replica follows closely enough to vote without delaying the others.
    pub(super) fn has_caught_up(&self, id: ReplicaId, first_held: Slot) -> bool {
        let follows =
            |progress: &Progress| progress.mode == Mode::Pipeline && progress.matched.next() >= first_held;
        self.peers.get(&id).is_some_and(follows)
    }

    /// Records that a replica obeys no leader of a term below this one.
    pub(super) fn note_term(&mut self, id: ReplicaId, term: u64) {
        if let Some(peer) = self.peers.get_mut(&id).filter(|_| term > self.ballot.round) {
            peer.term_ahead = peer.term_ahead.max(Some(term));
        }
    }

    /// The term of a replica, if it is above this leader's.
    pub(super) fn term_ahead(&self, id: ReplicaId) -> Option<u64> {
        self.peers.get(&id).and_then(|peer| peer.term_ahead)
    }

    /// Whether a replica answered in this term within the last `timeout`.
    pub(super) fn is_answered_by(&self, id: ReplicaId, now: Time, timeout: Duration) -> bool {
        self.peers.get(&id).is_some_and(|peer| peer.answers && now.since(peer.heard) <= timeout)
    }

    /// The replica with the longest log among these.
    pub(super) fn most_advanced(&self, of: &[ReplicaId]) -> Option<ReplicaId> {
        let known = of.iter().filter_map(|&id| Some((self.peers.get(&id)?.matched, id)));
        known.max().map(|(_, id)| id)
    }

    fn begin_tracking(&mut self, id: ReplicaId, last: Slot, learner: bool, now: Time) {
        self.session += 1;
        let mut progress = Progress::new(self.session, last, learner, now);
        progress.by_gossip = ByGossip::since(self.rounds.as_ref());
        self.peers.insert(id, progress);
    }

    /// Tracks a replica that does not vote and follows; returns whether it is new.
    pub(super) fn track_learner(&mut self, id: ReplicaId, last: Slot, now: Time) -> bool {
        let news = !self.peers.contains_key(&id) && self.peers.len() < MEMBERS_MAX;
        if news {
            self.begin_tracking(id, last, true, now);
        }
        news
    }
}

impl Leads for Raft {
    fn me(&self) -> ReplicaId {
        self.members.me()
    }

    fn decided(&self) -> Slot {
        self.decided
    }

    fn duties(&mut self) -> Option<(&mut Leadership, &VoterSets)> {
        let State::Leader(leader) = &mut self.state else { return None };
        Some((&mut leader.duties, &self.log.configuration().voters))
    }

    fn tell_heartbeat(&mut self, effects: &mut Effects) {
        let decided = self.decided;
        let State::Leader(leader) = &mut self.state else { return };
        leader.peers.values_mut().for_each(|progress| progress.told = decided);
        let State::Leader(leader) = &self.state else { return };
        let heartbeat = self.heartbeat(leader);
        effects.send_each(leader.peers.keys().copied(), heartbeat, Lsn::ZERO);
        self.want_round();
    }

    /// Where any replica may find out that a slot is committed, one may know it before this leader does, so the read
    /// waits for all that is proposed.
    fn read_slot(&mut self) -> Option<Slot> {
        let (decided, last) = (self.decided, self.log.last());
        let any = self.gossip_rules().reads_wait_for_all(self.any_may_commit());
        self.duties().map(|(duties, _)| if any { last } else { duties.read_slot(decided) })
    }

    /// Where a read waits for all that is proposed, a leader that decides nothing serves none.
    fn serves_reads(&mut self) -> bool {
        let decided = self.decided;
        !self.any_may_commit() && self.duties().is_some_and(|(duties, _)| duties.knows_all_before(decided))
    }

    fn give_up(&mut self, now: Time, effects: &mut Effects) {
        self.step_down(now, effects);
        if let Some(mover) = &mut self.mover {
            mover.gives_up(now);
        }
    }

    /// What was known of the term's leader stays, but it need not lead any more. A replica that recovers knows of none.
    fn report_leader(&mut self, effects: &mut Effects) {
        let nobody = Ballot { round: self.term, replica: ReplicaId::default() };
        let (role, acts_in) = match &self.state {
            State::Leader(leader) => (Role::Leader, leader.ballot),
            State::Candidate(_) => (Role::Candidate, nobody),
            State::Follower => (Role::Follower, nobody),
            State::Recovering => return,
        };
        self.reported.role(role, self.members.me(), acts_in, effects);
    }

    /// Entries tell it too.
    fn is_known(&self, through: Slot) -> bool {
        let State::Leader(leader) = &self.state else { return false };
        leader.peers.values().all(|progress| progress.told >= through)
    }

    fn tell_decided(&mut self, _: Slot, effects: &mut Effects) {
        if self.gossips() {
            self.tell_learners(effects);
            return self.want_round();
        }
        self.tell_commit(effects);
    }
}

impl Raft {
    /// Begins to lead.
    pub(super) fn lead(&mut self, now: Time, effects: &mut Effects) {
        let ballot = Ballot { round: self.term, replica: self.members.me() };
        let (last, rounds) = (self.log.last(), self.begin_rounds(now, ballot));
        let granted = match &mut self.state {
            State::Candidate(candidate) => std::mem::take(&mut candidate.granted),
            _ => Vec::new(),
        };
        self.state = State::Leader(Box::new(Leader {
            ballot,
            // The replicas that proposed the entries of earlier terms may wait for them.
            duties: Leadership::begin(now, self.decided, last.next()),
            peers: BTreeMap::new(),
            session: 0,
            stalls: false,
            transfer: None,
            rounds,
        }));
        self.track_voters(now);
        if let Some(mover) = &mut self.mover {
            mover.leads(now, ballot);
        }
        if let State::Leader(leader) = &mut self.state {
            // A vote is an answer, too.
            let voters = leader.peers.iter_mut().filter(|(id, _)| granted.contains(id));
            voters.for_each(|(_, peer)| peer.lives(now));
        }
        self.log.push(Entry { ballot, batch: Batch::noop(), voters: None });
        self.write(effects);
        self.replicate(now, effects);
        self.lead_on(now, effects);
    }

    /// Tracks all voters. Replicas that do not vote any more are tracked again, as learners, until they fall silent.
    pub(super) fn track_voters(&mut self, now: Time) {
        let (last, me) = (self.log.last(), self.members.me());
        let voters = self.log.configuration().voters.all();
        let State::Leader(leader) = &mut self.state else { return };
        let gossips = leader.rounds.is_some();
        let tracked: Vec<_> = leader.peers.iter().map(|(&id, progress)| (id, progress.learner)).collect();
        for (id, learner) in tracked {
            if !learner && !voters.contains(&id) {
                leader.begin_tracking(id, last, true, now);
            }
        }
        for id in voters.into_iter().filter(|&id| id != me) {
            match leader.peers.get_mut(&id) {
                Some(progress) if progress.learner => {
                    progress.learner = false;
                    progress.by_gossip.begins_to_vote(gossips.then_some(last));
                }
                Some(_) => {}
                None => leader.begin_tracking(id, last, false, now),
            }
        }
    }

    /// Proposes a batch. What a burst of inputs proposes is written, and leaves, at its end.
    pub(super) fn propose(&mut self, batch: Batch, awaited: bool) {
        if self.room() == 0 {
            return;
        }
        let State::Leader(leader) = &mut self.state else { return };
        if awaited {
            leader.duties.awaits(self.log.last().next());
        }
        let ballot = leader.ballot;
        self.log.push(Entry { ballot, batch, voters: None });
    }

    /// Sends every follower what it lacks, as far as the bounds on unanswered messages allow; what waits leaves
    /// together. The followers' disks work while this replica's disk does: its own log counts once it is durable.
    pub(super) fn replicate(&mut self, now: Time, effects: &mut Effects) {
        let Raft { options, log, decided, state: State::Leader(leader), .. } = self else { return };
        let (ballot, commit) = (leader.ballot, *decided);
        let at_once = if options.raft.replication == Replication::Unbatched { 1 } else { usize::MAX };
        // What the peer before was sent; mostly all lack the same.
        let mut sent: Option<(Slot, usize, Entries)> = None;
        for (&id, progress) in &mut leader.peers {
            if leader.rounds.is_some() && !progress.is_direct() {
                continue;
            }
            while progress.has_room(options.raft.inflight_max, options.raft.inflight_bytes_max) {
                if progress.mode == Mode::Pipeline && progress.next > log.last() {
                    break;
                }
                let prev = progress.next.prev();
                let Some(prev_ballot) = log.ballot_at(prev).filter(|_| progress.next >= log.first()) else {
                    progress.must_catch_up();
                    progress.told = commit;
                    effects.send(id, Message::Commit { ballot, through: commit }, Lsn::ZERO);
                    break;
                };
                if sent.as_ref().is_none_or(|(first, ..)| *first != progress.next) {
                    let entries = log.from(progress.next).take(at_once);
                    let (count, bytes) = fitting(entries, options.raft.append_bytes_max);
                    sent = Some((progress.next, bytes, log.share(progress.next, count)));
                }
                let (_, bytes, entries) = sent.clone().expect("set above");
                progress.sent(Slot(prev.0 + entries.len() as u64), bytes, now, options.retransmit_after);
                progress.told = commit;
                let session = progress.session;
                let append = Message::Append { ballot, session, prev, prev_ballot, entries, commit };
                effects.send(id, append, Lsn::ZERO);
            }
        }
    }

    /// The tracking that an answer belongs to, if it belongs to any.
    fn answered(
        &mut self,
        now: Time,
        from: ReplicaId,
        ballot: Ballot,
        session: u64,
    ) -> Option<&mut Progress> {
        let State::Leader(leader) = &mut self.state else { return None };
        if ballot != leader.ballot {
            return None;
        }
        let progress = leader.peers.get_mut(&from).filter(|progress| progress.session == session)?;
        progress.lives(now);
        Some(progress)
    }

    pub(super) fn handle_append_reply(
        &mut self,
        now: Time,
        from: ReplicaId,
        ballot: Ballot,
        session: u64,
        through: Slot,
        effects: &mut Effects,
    ) {
        if self.answered(now, from, ballot, session).is_some() {
            self.holds_through(now, from, through, effects);
        }
    }

    /// A follower's log equals this leader's through a slot, durably.
    pub(super) fn holds_through(&mut self, now: Time, from: ReplicaId, through: Slot, effects: &mut Effects) {
        let (last, decided, gained) = (self.log.last_written(), self.decided, self.gained());
        let resend_after = self.options.retransmit_after;
        let State::Leader(leader) = &mut self.state else { return };
        // No replica has more of this term than its leader sent.
        let Some(progress) = leader.peers.get_mut(&from).filter(|_| through <= last) else { return };
        let advanced = through > progress.matched;
        progress.matches(through, now, resend_after);
        progress.repaired(gained);
        if advanced {
            self.holds_directly(from, through);
            // An answer that comes after a quorum has the slot commits nothing, but it counts as a status.
            if through > decided || self.has_status() {
                self.commit(now, effects);
            }
        }
        self.hand_over(now, effects);
    }

    pub(super) fn handle_conflict(&mut self, now: Time, from: ReplicaId, conflict: Conflict) {
        let Conflict { ballot, session, prev, hint, hint_ballot } = conflict;
        let agree = self.log.last_not_above(hint, hint_ballot);
        let Some(progress) = self.answered(now, from, ballot, session) else { return };
        // An answer to an earlier message says nothing about what was sent since.
        let current = match progress.mode {
            Mode::Probe => prev == progress.next.prev(),
            Mode::Pipeline => prev > progress.matched,
            Mode::CatchUp => false,
        };
        if !current || prev <= progress.matched {
            return;
        }
        progress.probe_before(prev, agree);
    }

    /// Commits what a quorum has, if the rules allow it.
    pub(super) fn commit(&mut self, now: Time, effects: &mut Effects) {
        let State::Leader(leader) = &self.state else { return };
        if self.any_may_commit() {
            return self.settle(now, effects);
        }
        let reached = self.quorum_holds(leader);
        if self.rules().may_commit(reached, self.log.ballot_at(reached), self.decided, leader.ballot) {
            let decided_in = leader.ballot;
            self.deliver_through(reached, decided_in, effects);
            self.advance_change(now, effects);
        }
    }

    /// A quorum is known to hold this leader's log through this slot, durably.
    fn quorum_holds(&self, leader: &Leader) -> Slot {
        let (me, stable) = (self.members.me(), self.stable);
        let has = |id| match leader.peers.get(&id) {
            Some(progress) => progress.matched,
            None if id == me => stable,
            None => Slot::ZERO,
        };
        self.rules().reached_by_quorum(self.voters(), &has)
    }

    /// How far this leader has come: what is decided, and before it can decide anything what a quorum has of earlier
    /// terms. To bring many entries in small messages may take longer than a leader may make no progress.
    pub(super) fn gained(&self) -> Slot {
        match &self.state {
            State::Leader(leader) => self.decided.max(self.quorum_holds(leader)),
            _ => self.decided,
        }
    }

    fn tell_learners(&mut self, effects: &mut Effects) {
        let through = self.decided;
        let State::Leader(leader) = &mut self.state else { return };
        let ballot = leader.ballot;
        let untold =
            leader.peers.iter_mut().filter(|(_, progress)| progress.learner && progress.told < through);
        let untold = untold.map(|(&id, progress)| {
            progress.told = through;
            id
        });
        effects.send_each(untold, Message::Commit { ballot, through }, Lsn::ZERO);
    }

    /// Tells every follower that does not know it yet what is committed.
    pub(super) fn tell_commit(&mut self, effects: &mut Effects) {
        let through = self.decided;
        let State::Leader(leader) = &mut self.state else { return };
        let ballot = leader.ballot;
        leader.duties.told(through);
        let untold = leader.peers.iter_mut().filter(|(_, progress)| progress.told < through);
        let untold = untold.map(|(&id, progress)| {
            progress.told = through;
            id
        });
        effects.send_each(untold, Message::Commit { ballot, through }, Lsn::ZERO);
    }

    /// What a leader does whenever its timer fires: it steps down if it cannot lead, sends again what was not
    /// answered, and says that it lives.
    pub(super) fn lead_on(&mut self, now: Time, effects: &mut Effects) {
        let timeout = self.options.election_timeout;
        let waits = !self.is_congested() && self.log.last() > self.decided;
        let gained = self.gained();
        let stalls = self.progress.stalls(now, gained, waits, timeout);
        let checks = self.options.raft.check_quorum;
        let works = self.disk.answers(now, timeout) && (!checks || self.hears_a_quorum(now));
        if !self.is_useful(works, stalls && checks) {
            return self.give_up(now, effects);
        }
        let State::Leader(leader) = &mut self.state else { return };
        leader.stalls = stalls;
        leader.peers.retain(|&id, peer| {
            let silent = peer.learner && now.since(peer.heard) > timeout * LEARNER_TIMEOUTS;
            if silent {
                leader.duties.rounds.forget(id);
            }
            !silent
        });
        if leader.transfer.as_ref().is_some_and(|transfer| now >= transfer.until) {
            // The hand-over did not work, so this replica accepts proposals again.
            leader.transfer = None;
        }
        leader.peers.values_mut().for_each(|progress| progress.probe_if_overdue(now, timeout));
        self.hand_over(now, effects);
        self.heartbeat_if_due(now, effects);
    }

    /// CheckQuorum: whether a quorum gave a sign of life within the last time-out.
    fn hears_a_quorum(&self, now: Time) -> bool {
        let State::Leader(leader) = &self.state else { return false };
        let timeout = self.options.election_timeout;
        self.voters().is_quorum(|id| match leader.peers.get(&id) {
            Some(progress) => now.since(progress.heard) <= timeout,
            None => id == self.members.me(),
        })
    }

    fn heartbeat(&self, leader: &Leader) -> Message {
        let own = if self.votes() { self.options.priority } else { 0 };
        let voters = leader.peers.values().filter(|progress| !progress.learner);
        let priority_max = voters.map(|progress| progress.priority).fold(own, u8::max);
        let (ballot, round) = (leader.ballot, leader.duties.rounds.last());
        Message::Heartbeat { ballot, commit: self.decided, round, priority_max }
    }

    pub(super) fn handle_heartbeat_ack(
        &mut self,
        now: Time,
        from: ReplicaId,
        ack: HeartbeatAck,
        effects: &mut Effects,
    ) {
        let HeartbeatAck { ballot, round, decided, priority } = ack;
        let (first, known) = (self.log.first(), self.log.ballot_at(decided).is_some());
        let State::Leader(leader) = &mut self.state else { return };
        let Some(progress) = leader.peers.get_mut(&from).filter(|_| ballot == leader.ballot) else { return };
        if !leader.duties.answered(from, round) {
            return;
        }
        progress.lives(now);
        progress.priority = priority;
        if progress.mode == Mode::CatchUp && decided.next() >= first && known {
            progress.probe(decided.next());
        }
        self.confirm_reads(effects);
    }

    /// Sends again what may be lost, when a session to a peer begins.
    pub(super) fn resend_to(&mut self, peer: ReplicaId, effects: &mut Effects) {
        self.resend_vote_to(peer, effects);
        let State::Leader(leader) = &mut self.state else { return };
        let Some(progress) = leader.peers.get_mut(&peer) else { return };
        if progress.mode != Mode::CatchUp {
            let next = if progress.mode == Mode::Pipeline { progress.matched.next() } else { progress.next };
            progress.probe(next);
        }
        progress.told = self.decided;
        let State::Leader(leader) = &self.state else { return };
        effects.send(peer, self.heartbeat(leader), Lsn::ZERO);
    }

    // Handing over.

    /// Lets a voter lead once it has everything. Until then, or until that takes too long, nothing is proposed.
    pub(super) fn transfer(&mut self, now: Time, to: ReplicaId, effects: &mut Effects) {
        let (votes, last) = (self.voters().contains(to), self.log.last_written());
        let until = now + self.options.election_timeout;
        let State::Leader(leader) = &mut self.state else { return };
        if votes && let Some(progress) = leader.peers.get_mut(&to) {
            if leader.rounds.is_some() {
                progress.begin_repair(last);
            }
            leader.transfer = Some(Transfer { to, until, asked: None });
            self.hand_over(now, effects);
        }
    }

    pub(super) fn hand_over(&mut self, now: Time, effects: &mut Effects) {
        let (last, retransmit_after) = (self.log.last(), self.options.retransmit_after);
        let timeout = self.options.election_timeout;
        let State::Leader(leader) = &mut self.state else { return };
        let Some(transfer) = &mut leader.transfer else { return };
        if leader.peers.get(&transfer.to).is_none_or(|progress| progress.matched < last) {
            return;
        }
        let due = transfer.asked.as_mut().is_none_or(|asked| asked.is_due(now, timeout));
        if due {
            transfer.asked.get_or_insert(Resend::first(now, retransmit_after));
            effects.send(transfer.to, Message::TimeoutNow { ballot: leader.ballot }, Lsn::ZERO);
        }
    }
}

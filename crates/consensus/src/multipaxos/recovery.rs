//! Starting: from an intact log, or without one.
//!
//! # Voting again after the loss of a log
//!
//! An acceptor that may have forgotten a promise or an accepted value must not vote: with its vote a second
//! value could be chosen. Santos 2012 leaves recovery open (section 16, G8); the protocol here follows the idea
//! of JPaxos' EpochSS (lives are numbered, and a promise of an outdated life does not count), with one disk
//! write at those who answer, so that it also holds when they crash.
//!
//! The replica X in its new life e does this:
//!
//! 1. It sends `Recover(e)` to all. Whoever can vote writes "X lives its life e" down, and answers with the ballot
//!    that it has promised and, if it leads in that ballot, the first slot that it has not proposed.
//! 2. X waits until n - q + 1 others have answered, where q is the size of a quorum of the n members (f+1 of 2f+1:
//!    as many), among them the leader of the highest ballot b that is mentioned. It promises b, durably, and takes
//!    over what they know of lives that are void. It keeps asking: any such set of latest answers will do.
//! 3. It learns, by catch-up, every decision below that leader's first unproposed slot. Then it votes.
//!
//! **Accepted values.** What X accepted before its crash was proposed in some ballot. In b: the slot is below the
//! first unproposed slot, since the leader answered after X crashed; X knows its decision before it votes.
//! In a lower ballot: if it was chosen, the Phase 1 of b found it or knew it decided, so that slot is below as
//! well. In a higher ballot b' than b: its leader had completed Phase 1 before X accepted, so at least f members
//! besides X had promised b'. Of the 2f other members f+1 answered, so one of those f among them; it would have
//! mentioned b', and b would not be the highest.
//!
//! **Promises.** X may have promised b' > b before its crash, and the candidate C of b' may still count that
//! promise. C needs f more members besides X; at least one of these, say D, is among the f+1 that answered X.
//! If D promised b' before it answered, its answer mentions b', and b is not highest. If it did so after, its
//! `Promise` carries "X lives its life e", and C throws X's promise of the earlier life away. C itself may be D.
//! (Without the numbered lives this is the known hole of recovery from volatile memory: E. Michael et al.,
//! "Recovering Shared Objects Without Stable Storage", DISC 2017.)

use std::collections::BTreeMap;

use synod_wire::{Ballot, Incarnation, Lsn, ReplicaId, Slot, Time};

use super::{Accepted, AcceptedValue, Instance, Message, MultiPaxos, Record, State};
use crate::{
    Bug, Effects, LeaderView, Members, Options, ReplicaSet, Restart, election::Election, resend::Resend,
    slots::Slots,
};

/// A replica that must not vote.
#[derive(Clone, Debug)]
pub(super) struct Recovering {
    /// What others answered: the ballot that they promised and, from its leader, its first unproposed slot.
    answers: BTreeMap<ReplicaId, (Ballot, Option<Slot>)>,
    /// Once enough have answered: everything before this slot must be learned.
    target: Option<Slot>,
    /// Once it is: the record that has to be durable before this replica votes.
    after: Option<Lsn>,
    pub(super) resend: Resend,
}

impl MultiPaxos {
    /// The replica as it is after a start.
    pub(crate) fn start(
        options: Options,
        members: Members,
        restart: Restart,
        now: Time,
        effects: &mut Effects,
    ) -> MultiPaxos {
        let election = Election::new(&options, members.clone(), restart.incarnation, now);
        let mut replica = MultiPaxos {
            incarnation: restart.incarnation,
            election,
            promised: Ballot::ZERO,
            promised_lsn: Lsn::ZERO,
            view: LeaderView::default(),
            state: State::Follower,
            slots: Slots::new(restart.base.next()),
            decided_ahead: 0,
            decided_elsewhere: restart.base,
            durable: effects.last_lsn(),
            appended: effects.last_lsn(),
            undurable: Default::default(),
            undurable_slots: 0,
            untold: None,
            disk: Default::default(),
            recovered: BTreeMap::new(),
            backlogged: false,
            deadline: None,
            members,
            options,
        };
        let born = restart.records.is_empty();
        let amnesia =
            replica.replay(restart.records, restart.decided, restart.amnesia, effects) || restart.amnesia;
        replica.election.restarted(replica.promised);
        if born || amnesia {
            effects.append(Record::Amnesia(amnesia).into());
        }
        if amnesia && !replica.options.has(Bug::VoteWithAmnesia) {
            replica.state = State::Recovering(Recovering {
                answers: BTreeMap::new(),
                target: None,
                after: None,
                resend: Resend::first(now, replica.options.retransmit_after),
            });
            let peers: Vec<_> = replica.members.peers().collect();
            peers.into_iter().for_each(|peer| replica.ask_to_recover(peer, effects));
        } else if replica.promised == Ballot::ZERO || replica.members.count() == 1 {
            replica.election.expect_no_leader();
            // Who votes alone has nobody to wait for, either.
            if restart.head_start || replica.members.count() == 1 {
                let ballot = replica.election.next_ballot(replica.promised);
                replica.become_candidate(now, ballot, effects);
            }
        } else if replica.options.has(Bug::ReuseBallot) && replica.promised.replica == replica.members.me() {
            let ballot = replica.promised;
            replica.promised.round -= 1;
            replica.become_candidate(now, ballot, effects);
        }
        replica.appended = effects.last_lsn();
        replica.report_leader(effects);
        replica.ask_for_timer(effects);
        replica
    }

    /// Takes in the records of an earlier life. True if this replica may have forgotten something: that life was
    /// still recovering, or records may be missing.
    fn replay(
        &mut self,
        records: Vec<crate::Record>,
        known_decided: Slot,
        records_may_be_missing: bool,
        effects: &mut Effects,
    ) -> bool {
        let mut amnesia = records_may_be_missing;
        let mut decided = self.decided();
        // Behind what is missing, values far ahead are of no use: they come by catch-up again.
        let last = if amnesia { self.decided().0 + self.options.accept_ahead_max() } else { u64::MAX };
        let wanted = |slot: Slot, first: Slot| slot >= first && slot.0 <= last;
        for record in records {
            // A log in which another protocol wrote is the business of whoever changed the protocol.
            let crate::Record::MultiPaxos(record) = record else { continue };
            match record {
                Record::Promised(ballot) => {
                    if !self.options.has(Bug::ForgetPromise) {
                        self.promised = self.promised.max(ballot);
                    }
                }
                Record::Accepted { ballot, first, decided: prefix, batches } => {
                    decided = decided.max(prefix);
                    for (slot, batch) in (first.0..).map(Slot).zip(batches.iter()) {
                        if wanted(slot, self.slots.first()) {
                            let accepted = Some(Accepted { ballot, batch: batch.clone(), lsn: Lsn::ZERO });
                            *self.slots.entry(slot) =
                                Instance { accepted, voted: ballot, ..Instance::default() };
                        }
                    }
                }
                Record::Learned(AcceptedValue { slot, ballot, batch }) => {
                    if wanted(slot, self.slots.first()) {
                        let accepted = Accepted { ballot, batch, lsn: Lsn::ZERO };
                        let instance = self.slots.entry(slot);
                        let votes = ReplicaSet::default();
                        *instance =
                            Instance { accepted: Some(accepted), voted: ballot, votes, decided: true };
                    }
                }
                Record::Amnesia(lost) => {
                    amnesia = lost || records_may_be_missing;
                    if lost {
                        decided = self.forget_accepted();
                    }
                }
                Record::Recovered(lives) => self.recovered = lives.into_iter().collect(),
            }
        }
        if records_may_be_missing {
            decided = self.forget_accepted();
        }
        let decided = decided.max(known_decided);
        for (_, instance) in self.slots.iter_mut().take_while(|(slot, _)| *slot <= decided) {
            instance.decided = instance.accepted.is_some();
        }
        self.count_decided();
        self.decided_elsewhere = self.decided_elsewhere.max(decided);
        self.deliver(effects);
        amnesia
    }

    /// Where records may be missing, a newer value of a slot may be among them: only what a peer said to be decided
    /// can be believed. Returns the prefix that is known without the rest.
    fn forget_accepted(&mut self) -> Slot {
        for (_, instance) in self.slots.iter_mut().filter(|(_, instance)| !instance.decided) {
            *instance = Instance::default();
        }
        self.decided()
    }

    pub(super) fn ask_to_recover(&self, peer: ReplicaId, effects: &mut Effects) {
        effects.send(peer, Message::Recover { incarnation: self.incarnation }, Lsn::ZERO);
    }

    pub(super) fn resend_recover(&mut self, now: Time, effects: &mut Effects) {
        let wait_max = self.options.election_timeout;
        let State::Recovering(recovering) = &mut self.state else { return };
        if recovering.resend.is_due(now, wait_max) {
            // Ask everybody again, also those who have answered: they may have begun to lead since, and what an
            // earlier leader had proposed when it answered may never be decided.
            let peers: Vec<_> = self.members.peers().collect();
            peers.into_iter().for_each(|peer| self.ask_to_recover(peer, effects));
        }
    }

    /// A peer lost its log and asks what it must know.
    pub(super) fn on_recover(&mut self, from: ReplicaId, incarnation: Incarnation, effects: &mut Effects) {
        let known = self.recovered.get(&from).copied().unwrap_or_default();
        if incarnation < known {
            return;
        }
        if incarnation > known {
            self.recovered.insert(from, incarnation);
            let lives = self.recovered.iter().map(|(&replica, &life)| (replica, life)).collect();
            effects.append(Record::Recovered(lives).into());
            if let State::Candidate(candidate) = &mut self.state {
                candidate.outlived(from, incarnation);
            }
        }
        let next_slot = match &self.state {
            State::Leader(leader) => Some(leader.proposed.next()),
            _ => None,
        };
        let recovered = self.recovered.iter().map(|(&replica, &life)| (replica, life)).collect();
        let answer = Message::RecoverAnswer { incarnation, promised: self.promised, next_slot, recovered };
        effects.send(from, answer, effects.last_lsn());
    }

    pub(super) fn receive_while_recovering(
        &mut self,
        now: Time,
        from: ReplicaId,
        message: Message,
        effects: &mut Effects,
    ) {
        match message {
            // Not a vote, and not an answer to a leader that counts who follows it: only what is decided.
            Message::Accept { ballot, decided, .. }
            | Message::Decided { ballot, through: decided }
            | Message::Heartbeat { ballot, decided, .. } => {
                self.decided_elsewhere = self.decided_elsewhere.max(decided);
                if ballot >= self.promised.max(self.view.ballot) {
                    self.set_view(LeaderView { ballot, leader: Some(from) }, effects);
                }
            }
            Message::RecoverAnswer { incarnation, promised, next_slot, recovered }
                if incarnation == self.incarnation =>
            {
                self.remember_lives(recovered, effects);
                let State::Recovering(recovering) = &mut self.state else { return };
                recovering.answers.insert(from, (promised, next_slot));
                self.set_recovery_target(effects);
            }
            _ => {}
        }
        self.finish_recovery(now, effects);
    }

    /// Takes in which lives are void. Without it, two replicas that lose their logs one after the other could let a
    /// promise of the first one's earlier life count again.
    fn remember_lives(&mut self, lives: Vec<(ReplicaId, Incarnation)>, effects: &mut Effects) {
        let mut news = false;
        for (replica, life) in lives.into_iter().filter(|(replica, _)| *replica != self.members.me()) {
            let known = self.recovered.entry(replica).or_default();
            news |= life > *known;
            *known = (*known).max(life);
        }
        if news {
            let lives = self.recovered.iter().map(|(&replica, &life)| (replica, life)).collect();
            effects.append(Record::Recovered(lives).into());
        }
    }

    fn set_recovery_target(&mut self, effects: &mut Effects) {
        let State::Recovering(recovering) = &mut self.state else { return };
        let mut answered = ReplicaSet::default();
        recovering.answers.keys().for_each(|&replica| self.members.add(&mut answered, replica));
        let Some(&highest) = recovering.answers.values().map(|(ballot, _)| ballot).max() else { return };
        let leader = recovering.answers.get(&highest.replica);
        let Some(&(_, Some(next_slot))) = leader.filter(|(ballot, _)| *ballot == highest) else { return };
        if answered.len() < self.members.count() - self.members.quorum() + 1 {
            return;
        }
        recovering.target = Some(next_slot);
        if highest > self.promised {
            self.promised = highest;
            self.promised_lsn = effects.append(Record::Promised(highest).into());
        }
    }

    /// Votes again, if everything is known that has to be.
    pub(super) fn finish_recovery(&mut self, now: Time, effects: &mut Effects) {
        let known = self.decided().next();
        let State::Recovering(recovering) = &mut self.state else { return };
        let Some(target) = recovering.target else { return };
        if known < target {
            return;
        }
        // What was learned, the promise, and that this replica was without memory, must survive the next crash.
        let after = *recovering.after.get_or_insert(effects.last_lsn());
        if self.durable < after {
            return;
        }
        effects.append(Record::Amnesia(false).into());
        self.state = State::Follower;
        self.election.restarted(self.promised);
        self.election.gave_up(now);
        // It may have heard of a higher ballot meanwhile; who is known to lead then stays known.
        let heard = self.view.ballot;
        if heard > self.promised {
            self.promise(now, heard, effects);
        }
        self.report_leader(effects);
    }
}

//! Starting: from an intact log, or from one that may have lost records.
//!
//! With its log a replica makes its acceptor again: it votes again as it did, and promises what it promised. Without it
//! the acceptor is another life, which would promise and vote for what contradicts the earlier one (Kernel Paxos 2019,
//! E3). So such a replica neither promises nor votes in this epoch: it learns, until an epoch begins for it. That is
//! also what becomes of one whose votes are in memory only (durability `memory`) after each restart.

use std::sync::Arc;

use synod_wire::{Ballot, Ballots, Batch, Delivered, ReplicaId, Slot, Time};

use super::{AcceptedValue, Gaps, KernelPaxos, Message, Record, State, votes::Voter};
use crate::{
    Effects, Members, Options, Proofs, Prove, Restart,
    acceptor::Acceptor,
    election,
    leadership::Leads,
    paxos::{Common, Paxos},
    replay::Replay,
};

impl Prove for Record {
    /// What it proves, with what the log holds, if records are lost: the values of slots are independent.
    fn prove(&self, proofs: &mut Proofs) {
        match self {
            Record::Accepted { ballot, slot, decided, accepted } => {
                proofs.decide(*decided, Ballots::both);
                proofs.hold(*slot, [(*ballot, accepted)]);
            }
            Record::Learned(AcceptedValue { slot, ballot, batch }) => {
                proofs.learn(*slot, Ballots::both(*ballot), batch);
            }
            Record::Promised(_) | Record::Amnesia(_) => {}
        }
    }
}

impl KernelPaxos {
    /// The replica as it is after a start.
    pub(crate) fn start(
        options: Options,
        members: Members,
        restart: Restart,
        now: Time,
        effects: &mut Effects,
    ) -> KernelPaxos {
        let election = election::start(&options, members.clone(), &restart, now);
        let before = effects.last_lsn();
        let mut replica = KernelPaxos {
            voter: Voter::new(&members, KernelPaxos::ring_slots(&options), restart.base),
            common: Common::new(options, members, election, restart.base, effects),
            state: State::Follower,
            learner: Acceptor::new(restart.base),
            gaps: Gaps::default(),
        };
        let born = restart.records.is_empty();
        let lost = replica.replay(restart.records, restart.decided, restart.amnesia, effects);
        if born || lost {
            // What this life does not know, no later life knows.
            effects.append(Record::Amnesia(lost).into());
        }
        if replica.common.rules().may_vote(lost) {
            replica.make_room(replica.learner.last());
            replica.resume(restart.head_start, now, effects);
        } else {
            replica.state = State::Recovering;
            // It keeps no promise, so that it follows whichever leader it hears.
            replica.common.promised = Ballot::ZERO;
        }
        replica.started(now, before, effects);
        replica
    }

    /// How many slots the acceptor has room for: twice as many as it takes from a leader, since a leader may adopt what
    /// others took that were so far ahead of it.
    fn ring_slots(options: &Options) -> u64 {
        2 * options.accept_ahead_max()
    }

    /// Makes the acceptor again, with room for this slot: it votes as it did, and then promises what is promised. Slots
    /// that were promised by themselves need no more than the promise of all. What was learned in the place of a vote
    /// counts as one in the ballot of the decision: a candidate has to be told that there is something.
    pub(super) fn make_room(&mut self, slot: Slot) {
        let delivered = self.learner.decided();
        let slots = KernelPaxos::ring_slots(&self.common.options).max(slot.0.saturating_sub(delivered.0));
        let mut voter = Voter::new(&self.common.members, slots, delivered);
        for (slot, own) in self.learner.accepted_from(delivered.next()) {
            let (votes, _) = voter.accept(slot, own.ballot, &own.batch, None);
            assert!(votes, "an acceptor that has promised nothing votes for what it has room for");
        }
        voter.prepare_all(self.common.promised);
        self.voter = voter;
    }

    /// Takes in the records of an earlier life. True if this replica may have forgotten something: that life had, or
    /// records may be missing.
    fn replay(
        &mut self,
        records: Vec<crate::Record>,
        known_decided: Slot,
        records_may_be_missing: bool,
        effects: &mut Effects,
    ) -> bool {
        let mut replay = Replay::new(&self.common.options, &mut self.learner, records_may_be_missing);
        for record in records {
            // A log in which another protocol wrote is the business of the layer that changed the protocol.
            let crate::Record::KernelPaxos(record) = record else { continue };
            match record {
                Record::Promised(ballot) => replay.promised(ballot),
                Record::Accepted { ballot, slot, decided, accepted } => {
                    replay.accepted(ballot, slot, decided, &[accepted].into());
                }
                Record::Learned(value) => replay.learned(value),
                Record::Amnesia(forgot) => replay.amnesia(forgot),
            }
        }
        let lost = self.common.replayed(replay.end(known_decided));
        self.deliver(effects);
        lost
    }

    /// Takes only how far decisions go, and which replica leads. It neither votes nor answers a leader that counts
    /// which replicas follow it.
    pub(super) fn handle_while_recovering(
        &mut self,
        now: Time,
        from: ReplicaId,
        message: &Message,
        effects: &mut Effects,
    ) {
        let (Message::Heartbeat { ballot, decided, .. } | Message::Accept { ballot, decided, .. }) = message
        else {
            return;
        };
        self.common.heard_without_memory(now, from, (*ballot, *decided), effects);
    }

    // What the replica around it knows.

    /// A peer says what was decided in a slot. Nothing is decided in no ballot.
    pub(super) fn learn(&mut self, slot: Slot, ballots: Ballots, batch: Batch, effects: &mut Effects) {
        if ballots.proposed.round == 0 {
            return;
        }
        let value = AcceptedValue { slot, ballot: ballots.proposed, batch };
        self.common.learn(&mut self.learner, value, |value| Record::Learned(value).into(), effects);
        self.deliver(effects);
    }

    /// A snapshot holds everything through a slot.
    pub(super) fn installed(&mut self, slot: Slot, _: Arc<Delivered>, effects: &mut Effects) {
        if slot > self.decided() {
            self.learner.installed(slot);
            if let State::Leader(leader) = &mut self.state {
                leader.proposed = leader.proposed.max(slot);
                leader.prepared.decided(slot);
            }
            self.deliver(effects);
        }
    }
}

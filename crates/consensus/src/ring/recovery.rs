//! How a replica of the ring starts: from an intact log, or from one that may have lost records.
//!
//! A replica that lost records does not vote again in the epoch, as with Sequence Paxos: it learns, until an epoch
//! begins for it. So what it promised and voted for before the loss binds nobody who needs it: no quorum of a later
//! ballot has it in.

use std::sync::Arc;

use synod_wire::{Ballot, Ballots, ReplicaId, Slot, Time};

use super::{AcceptedValue, Message, Record, Ring, State, learner::Learner, values::Values, walk::Walk};
use crate::{
    Bug, Effects, Members, Options, Proofs, Prove, Restart,
    acceptor::Acceptor,
    election,
    leadership::Leads,
    paxos::{Common, Paxos},
};

impl Prove for Record {
    /// What it proves, with what the log holds, if records are lost: the values of slots are independent.
    fn prove(&self, proofs: &mut Proofs) {
        match self {
            Record::Accepted { ballot, first, decided, batches } => {
                proofs.decide(*decided, Ballots::both);
                proofs.hold(*first, batches.iter().map(|batch| (*ballot, batch)));
            }
            Record::Learned(AcceptedValue { slot, ballot, batch }) => {
                proofs.learn(*slot, Ballots::both(*ballot), batch);
            }
            Record::Promised(_) | Record::Amnesia(_) => {}
        }
    }
}

impl Ring {
    /// The replica as it is after a start.
    pub(crate) fn start(
        mut options: Options,
        members: Members,
        restart: Restart,
        now: Time,
        effects: &mut Effects,
    ) -> Ring {
        let election = election::start(&options, members.clone(), restart.incarnation, now);
        let before = effects.last_lsn();
        let window_own = options.window_max;
        // The coordinator orders for all.
        options.window_max *= members.count();
        let mut replica = Ring {
            common: Common::new(options, members, election, restart.base, effects),
            told: Slot::ZERO,
            state: State::Follower,
            acceptor: Acceptor::new(restart.base),
            view: None,
            values: Values::default(),
            window_own,
            table: Arc::clone(&restart.delivered),
            stale: false,
            reported_in: Ballot::ZERO,
            outgoing: Vec::new(),
            walk: Walk::default(),
            now,
        };
        let born = restart.records.is_empty();
        let lost = replica.replay(restart.records, restart.decided, restart.amnesia, effects);
        if born || lost {
            // What this life does not know, no later life knows.
            effects.append(Record::Amnesia(lost).into());
        }
        if replica.common.members.index(replica.me()).is_none() {
            replica.state = State::Learner(Learner { tells_at: now });
            // It follows whichever leader it hears.
            replica.common.promised = Ballot::ZERO;
        } else if lost && !replica.has(Bug::VoteWithAmnesia) {
            replica.state = State::Recovering;
            // It keeps no promise, so that it follows whichever leader it hears.
            replica.common.promised = Ballot::ZERO;
        } else if !replica.take_part(restart.head_start, now, effects)
            && replica.has(Bug::ReuseBallot)
            && replica.common.promised.replica == replica.me()
        {
            let ballot = replica.common.promised;
            replica.common.promised.round -= 1;
            replica.become_candidate(now, ballot, effects);
        }
        replica.common.disk.appended(before, effects.last_lsn(), now);
        replica.report_leader(effects);
        replica.ask_for_timer(effects);
        replica
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
        let mut lost = records_may_be_missing;
        let mut decided = self.decided();
        // After what is missing, values far ahead are useless: they come by catch-up again.
        let ahead = self.decided().0 + self.common.options.accept_ahead_max();
        let last = Slot(if lost { ahead } else { u64::MAX });
        for record in records {
            // A log in which another protocol wrote is the business of the layer that changed the protocol.
            let crate::Record::Ring(record) = record else { continue };
            match record {
                Record::Promised(ballot) => {
                    if !self.has(Bug::ForgetPromise) {
                        self.common.promised = self.common.promised.max(ballot);
                    }
                }
                Record::Accepted { ballot, first, decided: prefix, batches } => {
                    decided = decided.max(prefix);
                    self.acceptor.replay_run(ballot, first, &batches, last);
                }
                Record::Learned(value) => self.acceptor.replay_learned(value, last),
                Record::Amnesia(forgot) => {
                    lost |= forgot;
                    if forgot {
                        decided = self.acceptor.forget_undecided();
                    }
                }
            }
        }
        if records_may_be_missing {
            decided = self.acceptor.forget_undecided();
        }
        let decided = decided.max(known_decided);
        self.acceptor.decide_through(decided, |_| true);
        self.common.decided_elsewhere = self.common.decided_elsewhere.max(decided);
        self.deliver(effects);
        lost
    }

    /// Takes only how far decisions go, and which replica leads. It neither votes nor answers a leader that counts
    /// which replicas follow it, so it is left out of the ring.
    pub(super) fn receive_while_recovering(
        &mut self,
        now: Time,
        from: ReplicaId,
        message: &Message,
        effects: &mut Effects,
    ) {
        let (Message::Heartbeat { ballot, decided, .. } | Message::Decided { ballot, through: decided }) =
            message
        else {
            return;
        };
        self.common.decided_elsewhere = self.common.decided_elsewhere.max(*decided);
        if ballot.replica == from && *ballot >= self.common.reported.view.ballot {
            self.common.heard_of_leader(now, *ballot, effects);
        }
    }
}

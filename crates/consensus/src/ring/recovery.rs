//! How a replica of the ring starts: from an intact log, or from one that may have lost records.
//!
//! A replica that lost records does not vote again in the epoch, as with Sequence Paxos: it learns, until an epoch
//! begins for it. So what it promised and voted for before the loss binds nobody who needs it: no quorum of a later
//! ballot has it in.

use std::sync::Arc;

use synod_wire::{Ballot, Ballots, ReplicaId, Slot, Time};

use super::{
    AcceptedValue, Message, Record, Ring, State, late::Late, learner::Learner, round_trip::RoundTrip,
    values::Values,
};
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
        let election = election::start(&options, members.clone(), &restart, now);
        let before = effects.last_lsn();
        let window_own = options.window_max;
        // The coordinator orders for all.
        options.window_max *= members.count();
        let mut replica = Ring {
            common: Common::new(options, members, election, restart.base, effects),
            state: State::Follower,
            acceptor: Acceptor::new(restart.base),
            view: None,
            values: Values::default(),
            window_own,
            table: Arc::clone(&restart.delivered),
            stale: false,
            reported_in: Ballot::ZERO,
            outgoing: Vec::new(),
            round_trip: RoundTrip::default(),
            late: Late::default(),
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
        } else if !replica.common.rules().may_vote(lost) {
            replica.state = State::Recovering;
            // It keeps no promise, so that it follows whichever leader it hears.
            replica.common.promised = Ballot::ZERO;
        } else {
            replica.resume(restart.head_start, now, effects);
        }
        replica.started(now, before, effects);
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
        let mut replay = Replay::new(&self.common.options, &mut self.acceptor, records_may_be_missing);
        for record in records {
            // A log in which another protocol wrote is the business of the layer that changed the protocol.
            let crate::Record::Ring(record) = record else { continue };
            match record {
                Record::Promised(ballot) => replay.promised(ballot),
                Record::Accepted { ballot, first, decided, batches } => {
                    replay.accepted(ballot, first, decided, &batches);
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
    /// which replicas follow it, so it is left out of the ring.
    pub(super) fn handle_while_recovering(
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
        self.common.heard_without_memory(now, from, (*ballot, *decided), effects);
    }
}

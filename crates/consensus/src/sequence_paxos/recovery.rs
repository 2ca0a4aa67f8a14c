//! How Sequence Paxos starts: from an intact log, or from one that may have lost records.

use synod_wire::{Ballot, Ballots, Batch, Lsn, ReplicaId, Slot, Time};

use super::{Message, Record, SequencePaxos, State, follower::Follower, sequence::Sequence};
use crate::{
    Effect, Effects, Members, Options, Proofs, Prove, Restart,
    batches::last_of,
    election,
    paxos::{Common, Paxos},
    planted,
    staged::Staged,
};

impl SequencePaxos {
    /// The replica as it is after a start.
    pub(crate) fn start(
        options: Options,
        members: Members,
        restart: Restart,
        now: Time,
        effects: &mut Effects,
    ) -> SequencePaxos {
        let election = election::start(&options, members.clone(), &restart, now);
        let before = effects.last_lsn();
        let mut replica = SequencePaxos {
            common: Common::new(options, members, election, restart.base, effects),
            accepted_in: Ballot::ZERO,
            log: Sequence::new(restart.base),
            accepted_lsn: Lsn::ZERO,
            recorded: restart.base,
            state: State::Recovering,
        };
        let born = restart.records.is_empty();
        let records: Vec<Record> = restart.records.into_iter().filter_map(own).collect();
        let lost = !replica.replay(records, restart.decided, restart.amnesia, effects);
        if born || lost {
            // What this life does not know, no later life knows.
            effects.append(Record::Amnesia(lost).into());
        }
        if replica.common.rules().may_vote(lost) {
            replica.rejoin(restart.head_start, now, effects);
        }
        replica.end_of_step(now, before, effects);
        replica.ask_for_timer(effects);
        replica
    }

    /// Takes part again. A leader may have sent something to an earlier life that this one does not have:
    /// until the leader has asked, nothing of what it sends can be used.
    fn rejoin(&mut self, head_start: bool, now: Time, effects: &mut Effects) {
        let follower: Follower = self.new_follower(now);
        self.state = State::Follower(follower);
        let head_start = head_start && self.common.options.sequence_paxos.head_start;
        if !self.take_part(head_start, now, effects) {
            let promised = self.common.promised;
            self.common.broadcast(Message::PrepareReq { promised }, Lsn::ZERO, effects);
        }
        planted::reuse_ballot(self, now, effects);
    }

    /// Takes in the records of earlier lives. Returns false if this replica may have forgotten something: records may
    /// be missing, now or in one of those lives, or the snapshot that covered trimmed ones is not there any more.
    fn replay(
        &mut self,
        records: Vec<Record>,
        known_decided: Slot,
        records_may_be_missing: bool,
        effects: &mut Effects,
    ) -> bool {
        let base = self.log.decided();
        let mut whole = !records_may_be_missing;
        let (mut hole, mut lost) = (false, false);
        for record in &records {
            match record {
                Record::Trimmed { slot, .. } => hole = *slot > base,
                Record::Amnesia(amnesia) => lost = *amnesia,
                _ => {}
            }
        }
        whole &= !hole && !lost;
        if !whole {
            self.replay_learned(records, effects);
            return false;
        }
        let mut staged = Staged::default();
        for record in records {
            match record {
                Record::Promised(ballot) => {
                    self.common.promised = self.common.rules().promised_before(self.common.promised, ballot);
                }
                Record::Accepted { ballot, first, decided, batches } => {
                    self.decide_through(decided, effects);
                    whole &= self.replay_elements(ballot, first, &batches);
                }
                Record::Staged { ballot, first, from, batches } => staged.add(ballot, first, from, &batches),
                Record::Adopted { ballot, first, from, decided, batches, .. } => {
                    self.decide_through(decided, effects);
                    // Pages through the base may be trimmed; then the rest begins after it.
                    let (from, mut elements) = staged.take(ballot, first, from, base);
                    elements.extend(batches.iter().cloned());
                    // What is before `first` stays, what is after it goes.
                    self.log.truncate(first.prev());
                    whole &= self.replay_elements(ballot, from, &elements);
                }
                Record::Learned { slot, ballots, batch } => {
                    self.decide_through(slot.prev(), effects);
                    self.recorded = self.recorded.max(slot);
                    if slot == self.log.decided().next() {
                        self.log.set_decided(slot, batch.clone());
                        effects.push(Effect::Deliver { slot, ballots, batch });
                        self.forget_old();
                    }
                }
                Record::Trimmed { accepted_in, .. } => self.replay_accepted_in(accepted_in),
                Record::Amnesia(_) => {}
            }
        }
        self.decide_through(known_decided, effects);
        self.common.decided_elsewhere = self.common.decided_elsewhere.max(self.log.decided());
        whole
    }

    /// This replica had promised a ballot in which it accepted, even if the record of the
    /// promise is gone: of an epoch that is over only what it decided is kept.
    fn replay_accepted_in(&mut self, ballot: Ballot) {
        self.accepted_in = self.accepted_in.max(ballot);
        self.common.promised = self.common.rules().promised_before(self.common.promised, ballot);
    }

    /// Puts elements in their place, and drops what was after them. Returns false if there is a gap before them.
    fn replay_elements(&mut self, ballot: Ballot, first: Slot, elements: &[Batch]) -> bool {
        self.replay_accepted_in(ballot);
        self.recorded = self.recorded.max(last_of(first, elements));
        let next = self.log.last().next();
        if first > next {
            return false;
        }
        if last_of(first, elements) >= self.log.decided() {
            self.replace(first, elements);
        }
        true
    }

    /// Takes only what peers said to be decided, since records are missing: of what was accepted in a slot, a
    /// newer value may be among those that are lost.
    fn replay_learned(&mut self, records: Vec<Record>, effects: &mut Effects) {
        for record in records {
            match record {
                Record::Learned { slot, ballots, batch } if slot == self.log.decided().next() => {
                    self.log.set_decided(slot, batch.clone());
                    effects.push(Effect::Deliver { slot, ballots, batch });
                    self.forget_old();
                }
                Record::Promised(ballot) if self.common.rules().may_vote(true) => {
                    self.common.promised = self.common.promised.max(ballot);
                }
                _ => {}
            }
        }
        self.common.decided_elsewhere = self.common.decided_elsewhere.max(self.log.decided());
    }

    /// Takes only what is decided, and which replica leads. It neither votes nor answers a leader that counts
    /// which replicas follow it.
    pub(super) fn handle_while_recovering(
        &mut self,
        now: Time,
        from: ReplicaId,
        message: &Message,
        effects: &mut Effects,
    ) {
        let (ballot, decided) = match message {
            Message::Accept { ballot, decided, .. }
            | Message::Decide { ballot, through: decided }
            | Message::Heartbeat { ballot, decided, .. } => (*ballot, *decided),
            Message::AcceptSync(sync) => (sync.ballot, sync.decided),
            _ => return,
        };
        self.common.heard_without_memory(now, from, (ballot, decided), effects);
    }
}

impl Prove for Record {
    /// What the record proves, with what the log holds, if records are lost. Each record says through which
    /// slot all was decided before it was written, in no ballot above that of the sequence.
    fn prove(&self, proofs: &mut Proofs) {
        let decide = |proofs: &mut Proofs, through| {
            let ballots = Ballots::both(proofs.sequence());
            proofs.decide(through, |_| ballots);
        };
        match self {
            Record::Accepted { ballot, first, decided, batches } => {
                decide(proofs, *decided);
                proofs.accepted_in(*ballot);
                proofs.cut(*first);
                proofs.hold(*first, batches.iter().map(|batch| (*ballot, batch)));
            }
            Record::Staged { ballot, first, from, batches } => {
                proofs.staged.add(*ballot, *first, *from, batches);
            }
            Record::Adopted { ballot, first, from, decided, batches, .. } => {
                decide(proofs, *decided);
                proofs.accepted_in(*ballot);
                proofs.cut(*first);
                let (from, mut elements) = proofs.staged.take(*ballot, *first, *from, Slot::ZERO);
                elements.extend(batches.iter().cloned());
                proofs.hold(from, elements.iter().map(|batch| (*ballot, batch)));
            }
            Record::Learned { slot, ballots, batch } => {
                decide(proofs, slot.prev());
                proofs.learn(*slot, *ballots, batch);
            }
            Record::Trimmed { slot, accepted_in } => {
                proofs.accepted_in(*accepted_in);
                proofs.cover(*slot);
            }
            Record::Promised(_) | Record::Amnesia(_) => {}
        }
    }
}

/// A log in which another protocol wrote is the business of the layer that changed the protocol.
fn own(record: crate::Record) -> Option<Record> {
    match record {
        crate::Record::SequencePaxos(record) => Some(record),
        _ => None,
    }
}

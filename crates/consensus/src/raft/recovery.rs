//! Starting, and what comes by catch-up instead of from the leader.
//!
//! # What the records need not say
//!
//! A life begins after a slot through which everything is decided and executed. The replica layer knows that
//! slot's term and the voters after it, so only what stands after it has to be in the records. An entry that
//! a peer told of has its voters like any other ([`Control::Learn`](crate::Control::Learn)).
//!
//! # Amnesia
//!
//! A replica that may have lost a record might vote twice in a term, or let a quorum lose an entry that it had
//! acknowledged. It only learns, for the whole epoch and in all later lives; the replica layer re-admits it.

use std::collections::BTreeMap;

use synod_wire::{Ballot, Ballots, Lsn, ReplicaId, Slot, Time};

use super::{
    Configuration, DecidedPrefix, ElectionTimer, Entry, Gossip, Message, Raft, Record, State, log::Log,
    planted,
};
use crate::{
    Effects, LeaderView, Members, Options, Proofs, Protocol, Prove, Restart, batches::last_of,
    leadership::Leads,
};

/// What the records of earlier lives say.
#[derive(Default)]
struct Replayed {
    entries: BTreeMap<Slot, (Entry, bool)>,
    /// The last slot for which there is a record, even if its entry was removed.
    recorded: Slot,
    term: u64,
    voted_for: Option<ReplicaId>,
    decided: Slot,
    decided_in: Ballot,
    amnesia: bool,
}

impl Replayed {
    /// Builds the log after a slot that is decided, where `begins` counts, and says whether the records have another
    /// entry in that slot: then none of the entries that they have after it counts.
    fn rebuild(&mut self, begins: Configuration, append_bytes_max: usize) -> (Log, bool) {
        let (base, ballot) = (begins.slot, begins.ballot);
        let mut log = Log::new(begins);
        let entries = std::mem::take(&mut self.entries);
        // What came while this protocol did not run here, as a snapshot or otherwise, may be another entry than
        // the one in the log. Then what the log holds there and after it was never decided, as in `learn`.
        let replaced = entries.get(&base).is_some_and(|(entry, _)| entry.ballot != ballot);
        let mut after_base = entries.into_iter().filter(|(slot, _)| *slot > base && !replaced).peekable();
        // This is a hole: records are gone without a snapshot that covers them.
        self.amnesia |= after_base.peek().is_some_and(|(slot, _)| *slot != base.next());
        for (slot, (entry, learned)) in after_base {
            // Where records may be missing, a later one may have replaced this entry, unless it is decided.
            if slot != log.last().next() || self.amnesia && !learned {
                break;
            }
            log.push(entry);
        }
        // Their records exist; in memory they are written in pages.
        log.write(append_bytes_max, |_, _| Lsn::ZERO);
        log.set_recorded(self.recorded);
        (log, replaced)
    }
}

impl Raft {
    /// The replica as it is after a start.
    pub(crate) fn start(
        options: Options,
        members: Members,
        restart: Restart,
        now: Time,
        effects: &mut Effects,
    ) -> Raft {
        let born = restart.records.is_empty();
        let mut replayed = replay(restart.records, &options);
        replayed.amnesia |= restart.amnesia;
        let (base, ballot) = (restart.base, restart.base_ballots.proposed);
        let begins = Configuration { slot: base, ballot, voters: members.voters().clone() };
        let (log, replaced) = replayed.rebuild(begins, options.raft.append_bytes_max);
        let amnesia = replayed.amnesia;
        let decided = if amnesia {
            log.last()
        } else {
            replayed.decided.max(restart.decided).max(base).min(log.last())
        };
        // The replica layer may know that more was decided, in an epoch that is over. This replica had promised
        // the ballot of that.
        let promised = Ballot { round: replayed.term, replica: ReplicaId(u64::MAX) };
        let told = if decided > replayed.decided { promised } else { Ballot::ZERO };
        let decided_in = replayed.decided_in.max(restart.base_ballots.decided).max(told);
        let seed = restart.incarnation.0.wrapping_mul(0x1_0001).wrapping_add(members.me().0);
        let mut replica = Raft {
            term: replayed.term,
            voted_for: replayed.voted_for,
            term_lsn: Lsn::ZERO,
            reported: Default::default(),
            state: State::Follower,
            election_timer: ElectionTimer::new(options.election_timeout, seed),
            decided: base,
            decided_in,
            decided_elsewhere: base,
            verified: base,
            stable: log.last(),
            durable: effects.last_lsn(),
            disk: Default::default(),
            progress: Default::default(),
            backlogged: false,
            gossip: Gossip::new(restart.incarnation, members.me(), base),
            mover: None,
            log,
            members,
            options,
        };
        replica.deliver_through(decided, decided_in, effects);
        if replaced && !amnesia {
            effects.append(Record::Truncated { from: base, last: replica.log.recorded() }.into());
        }
        if born || amnesia {
            effects.append(Record::Amnesia(amnesia).into());
        }
        if !amnesia {
            replica.begin_moving(now, &restart.memory);
        }
        replica.begin(now, amnesia, restart.head_start, effects);
        replica
    }

    /// Begins to take part, as far as this replica may after it lost records or not.
    fn begin(&mut self, now: Time, amnesia: bool, head_start: bool, effects: &mut Effects) {
        if amnesia {
            // A replica that may have lost records neither leads nor votes.
            self.state = State::Recovering;
        } else if self.term == 0 && head_start {
            self.campaign(now, false, false, effects);
        } else {
            self.expect_no_leader(now, effects);
        }
        if !amnesia && !self.may_stand() {
            // The leader need not find out by itself that this replica listens.
            self.send_to(self.acquaintances(), Message::Follow, Lsn::ZERO, effects);
        }
        self.report_leader(effects);
        self.ask_for_timer(effects);
    }

    /// Takes only what is decided, and which replica leads; answers nothing.
    pub(super) fn receive_while_recovering(
        &mut self,
        from: ReplicaId,
        message: &Message,
        effects: &mut Effects,
    ) {
        let (ballot, commit, leader) = match message {
            Message::Append { ballot, commit, .. }
            | Message::Commit { ballot, through: commit }
            | Message::Heartbeat { ballot, commit, .. } => (*ballot, *commit, from),
            Message::Round(round) => (round.ballot, round.commit, round.ballot.replica),
            _ => return,
        };
        self.decided_elsewhere = self.decided_elsewhere.max(commit);
        if ballot >= self.reported.view.ballot && ballot.replica == leader {
            self.reported.leader(LeaderView { ballot, leader: Some(leader) }, effects);
        }
    }

    /// Records what a peer says was decided in a slot.
    pub(super) fn learn(&mut self, slot: Slot, entry: Entry, decided_in: Ballot, effects: &mut Effects) {
        self.decided_elsewhere = self.decided_elsewhere.max(slot);
        if slot != self.decided.next() || self.is_congested() {
            return;
        }
        self.write(effects);
        if self.log.ballot_at(slot) != Some(entry.ballot) {
            self.assert_no_leader();
            // What stands here was never decided, nor what stands after it: the logs that hold it differ from
            // every leader's log from the term of the decided entry on. So no leader counted it.
            self.truncate(slot, effects);
            self.append([entry].into(), DecidedPrefix { through: slot, decided_in }, effects);
        }
        self.deliver_through(slot, decided_in, effects);
    }

    /// Leader Append-Only (Ongaro 2014, figure 3.2): the log of a leader has what was decided in its term or
    /// before it, and a replica that learns of a later term does not lead any more.
    fn assert_no_leader(&self) {
        let leads = matches!(self.state, State::Leader(_));
        debug_assert!(!leads || self.options.planted.is_some(), "a leader never changes its log");
    }

    /// Records that a snapshot covers everything through the slot of `base`, from which on that
    /// configuration counts.
    pub(super) fn installed(&mut self, base: Configuration, decided_in: Ballot, effects: &mut Effects) {
        let slot = base.slot;
        if slot <= self.decided {
            return;
        }
        self.write(effects);
        if self.log.ballot_at(slot) == Some(base.ballot) {
            // What stands after it continues it.
            self.log.release(slot.next());
            self.log.forget_before(slot);
            self.log.forget_configurations_before(slot);
        } else {
            self.assert_no_leader();
            self.truncate(self.log.first().max(self.decided.next()), effects);
            self.log.restart_after(base);
        }
        self.decided = slot;
        self.decided_in = self.decided_in.max(decided_in);
        self.decided_elsewhere = self.decided_elsewhere.max(slot);
        self.verified = self.verified.max(slot);
        self.stable = self.stable.max(slot);
    }
}

fn replay(records: Vec<crate::Record>, options: &Options) -> Replayed {
    let mut replayed = Replayed::default();
    for record in records {
        // A log in which another protocol wrote is the business of the layer that changed the protocol.
        let crate::Record::Raft(record) = record else { continue };
        match record {
            Record::Term { term, voted_for } => {
                replayed.term = term;
                replayed.voted_for = planted::rules(options).recalls_vote(voted_for);
            }
            Record::Entries { first, entries, decided, decided_in } => {
                replayed.entries.split_off(&first);
                replayed.recorded = replayed.recorded.max(last_of(first, &entries));
                let learned = |(slot, entry): (Slot, &Entry)| (slot, (entry.clone(), decided >= slot));
                replayed.entries.extend((first.0..).map(Slot).zip(entries.iter()).map(learned));
                replayed.decided = replayed.decided.max(decided);
                replayed.decided_in = replayed.decided_in.max(decided_in);
            }
            Record::Truncated { from, .. } => {
                replayed.entries.split_off(&from);
            }
            // Once a replica has lost records, no later record takes that back.
            Record::Amnesia(lost) => replayed.amnesia |= lost,
        }
    }
    replayed
}

impl Prove for Record {
    /// What the record proves, with what the log holds, if records are lost.
    fn prove(&self, proofs: &mut Proofs) {
        match self {
            Record::Entries { first, entries, decided, decided_in } => {
                proofs.cut(*first);
                proofs.hold(*first, entries.iter().map(|entry| (entry.ballot, &entry.batch)));
                // These entries are among the decided ones if a peer told them.
                proofs.decide(*decided, |proposed| Ballots { proposed, decided: *decided_in });
            }
            Record::Truncated { from, .. } => proofs.cut(*from),
            Record::Term { .. } | Record::Amnesia(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Effect, Input, Logged, ProtocolKind};
    use synod_wire::{Batch, Incarnation, Keep};

    /// A follower's disk, and the log that it should give.
    struct Disk {
        records: Vec<Record>,
        /// The terms of slots 1 and on.
        terms: Vec<u64>,
        decided: u64,
        /// Records of slots through this one may be gone, since a snapshot covers them.
        trimmed: u64,
    }

    fn ballot(term: u64) -> Ballot {
        if term == 0 { Ballot::ZERO } else { Ballot { round: term, replica: ReplicaId(1) } }
    }

    fn at(terms: &[u64], slot: u64) -> Ballot {
        ballot(slot.checked_sub(1).map_or(0, |index| terms[index as usize]))
    }

    impl Disk {
        /// The disk after several terms, each of which appends some entries in one message after what is
        /// decided; at times the replica starts again from what the disk holds, after a snapshot, with or
        /// without the records that the snapshot covers.
        fn of(mut random: impl FnMut(u64) -> u64) -> Disk {
            let mut disk = Disk { records: Vec::new(), terms: Vec::new(), decided: 0, trimmed: 0 };
            let mut raft = disk.start(0);
            for term in 1..20 {
                let prev = disk.decided + random(disk.terms.len() as u64 - disk.decided + 1);
                let count = 1 + random(4);
                let commit =
                    if random(3) == 0 { disk.decided + random(prev + count + 1 - disk.decided) } else { 0 };
                let entry = || Entry { ballot: ballot(term), batch: Batch::noop(), voters: None };
                let message = Message::Append {
                    ballot: ballot(term),
                    session: 1,
                    prev: Slot(prev),
                    prev_ballot: at(&disk.terms, prev),
                    entries: (0..count).map(|_| entry()).collect(),
                    commit: Slot(commit),
                };
                let input = Input::Receive { from: ReplicaId(1), message: message.into() };
                let mut effects = Effects::new(Lsn(disk.records.len() as u64));
                raft.step(Time::ZERO, input, &mut effects);
                disk.write(effects);
                disk.terms.truncate(prev as usize);
                disk.terms.extend((0..count).map(|_| term));
                disk.decided = disk.decided.max(commit);
                if random(3) == 0 {
                    disk.tear();
                    let base = disk.trimmed + random(disk.decided - disk.trimmed + 1);
                    let through = disk.trimmed + random(base - disk.trimmed + 1);
                    disk.trim(through);
                    raft = disk.start(base);
                }
            }
            disk
        }

        fn write(&mut self, mut effects: Effects) {
            for effect in effects.drain() {
                if let Effect::Append { record: crate::Record::Raft(record), .. } = effect {
                    self.records.push(record);
                }
            }
        }

        /// Loses the last record, if it holds entries that are not known to be decided.
        fn tear(&mut self) {
            if let Some(Record::Entries { first, .. }) = self.records.last()
                && first.0 > self.decided
            {
                self.terms.truncate(first.0 as usize - 1);
                self.records.pop();
            }
        }

        fn trim(&mut self, through: u64) {
            self.trimmed = through;
            self.records.retain(|record| !matches!(record.keep(), Keep::Slot(slot) if slot.0 <= through));
        }

        fn start(&mut self, base: u64) -> Raft {
            let restart = Restart {
                records: self.records.iter().cloned().map(crate::Record::from).collect(),
                base: Slot(base),
                base_ballots: Ballots::both(at(&self.terms, base)),
                decided: Slot(self.decided),
                ..Restart::first(Incarnation(1))
            };
            let mut effects = Effects::new(Lsn(self.records.len() as u64));
            let members = Members::new([1, 2, 3].map(ReplicaId), ReplicaId(2));
            let options = Options::of(ProtocolKind::Raft);
            let raft = Raft::start(options, members, restart, Time::ZERO, &mut effects);
            self.write(effects);
            raft
        }
    }

    /// A record may hold entries that a snapshot covers together with others, and records that say what
    /// happened to the former may be gone.
    #[test]
    fn whichever_records_a_snapshot_drops_the_rest_build_the_log_after_it() {
        let mut seed = 11u64;
        let mut random = move |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) % below
        };
        for _ in 0..2_000 {
            let mut disk = Disk::of(&mut random);
            let base = disk.trimmed + random(disk.decided - disk.trimmed + 1);
            disk.trim(base);
            let raft = disk.start(base);
            let last = disk.terms.len() as u64;
            assert!(matches!(raft.state, State::Follower), "nothing is missing");
            assert_eq!(raft.log.last(), Slot(last), "{:?}", disk.records);
            for slot in base..=last {
                let found = raft.log.ballot_at(Slot(slot));
                assert_eq!(found, Some(at(&disk.terms, slot)), "slot {slot} of {:?}", disk.records);
            }
        }
    }
}

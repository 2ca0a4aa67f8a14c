//! Starting, and what comes by catch-up instead of from the leader.
//!
//! # What the records need not say
//!
//! A life begins behind a slot through which everything is decided and executed. The replica layer knows that slot's term
//! and who votes behind it, so only what stands behind it has to be in the records. An entry that a peer told of has
//! its voters like any other ([`Control::Learn`](crate::Control::Learn)).
//!
//! # Amnesia
//!
//! A replica that may have lost a record might vote twice in a term, or let a quorum lose an entry that it had
//! acknowledged. It only learns, for the whole epoch and in all later lives; the replica layer re-admits it.

use std::collections::BTreeMap;

use synod_wire::{Lsn, ReplicaId, Slot, Time};

use super::{Configuration, Entry, Message, Patience, Raft, Record, State, VoterSets, log::Log};
use crate::{Bug, Effects, LeaderView, Members, Options, Restart, batches::last_of};

/// What the records of earlier lives say.
#[derive(Default)]
struct Replayed {
    entries: BTreeMap<Slot, (Entry, bool)>,
    /// The last slot for which there is a record, also if its entry was removed.
    recorded: Slot,
    term: u64,
    voted_for: Option<ReplicaId>,
    decided: Slot,
    amnesia: bool,
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
        let replayed = replay(restart.records, &options);
        let (base, ballot) = (restart.base, restart.base_ballot);
        let voters = VoterSets::joint(members.ids().to_vec(), restart.outgoing);
        let mut log = Log::new(Configuration { slot: base, ballot, voters });
        // What came while this protocol did not run here, as a snapshot or otherwise, may be another entry than the one
        // in the log. Then what the log holds there and behind it was never decided, as in `learn`.
        let replaced = replayed.entries.get(&base).is_some_and(|(entry, _)| entry.ballot != ballot);
        // A hole: records are gone without a snapshot that covers them.
        let behind = replayed.entries.into_iter().filter(|(slot, _)| *slot > base && !replaced);
        let behind: Vec<_> = behind.collect();
        let hole = behind.first().is_some_and(|(slot, _)| *slot != base.next());
        let amnesia = replayed.amnesia || restart.amnesia || hole;
        for (slot, (entry, learned)) in behind {
            // Where records may be missing, a later one may have replaced this entry, unless it is decided.
            if slot != log.last().next() || amnesia && !learned {
                break;
            }
            log.push(entry);
        }
        // Their records are there; in memory they go by pages.
        log.write(options.append_bytes_max, |_, _| Lsn::ZERO);
        log.set_recorded(replayed.recorded);
        let decided = if amnesia {
            log.last()
        } else {
            replayed.decided.max(restart.decided).max(base).min(log.last())
        };
        let seed = restart.incarnation.0.wrapping_mul(0x1_0001).wrapping_add(members.me().0);
        let mut replica = Raft {
            term: replayed.term,
            voted_for: replayed.voted_for,
            term_lsn: Lsn::ZERO,
            view: LeaderView::default(),
            state: State::Follower,
            patience: Patience::new(options.election_timeout, seed),
            decided: base,
            decided_elsewhere: base,
            verified: base,
            stable: log.last(),
            durable: effects.last_lsn(),
            disk: Default::default(),
            backlogged: false,
            deadline: None,
            log,
            members,
            options,
        };
        replica.deliver_through(decided, effects);
        if replaced && !amnesia {
            effects.append(Record::Truncated { from: base, last: replica.log.recorded() }.into());
        }
        if born || amnesia {
            effects.append(Record::Amnesia(amnesia).into());
        }
        if amnesia {
            replica.state = State::Recovering;
        }
        replica.rise_to(now, ballot.round, effects);
        if amnesia {
            // It neither leads nor votes.
        } else if replica.term == 0 && restart.head_start {
            replica.campaign(now, false, false, effects);
        } else {
            replica.expect_no_leader(now, effects);
        }
        if !amnesia && !replica.may_stand() {
            // Whoever leads need not find out by itself that somebody listens.
            replica.send_to(replica.acquaintances(), &Message::Follow, Lsn::ZERO, effects);
        }
        replica.report_leader(effects);
        replica.ask_for_timer(effects);
        replica
    }

    /// Only what is decided, and who leads; nothing is answered.
    pub(super) fn receive_while_recovering(
        &mut self,
        from: ReplicaId,
        message: &Message,
        effects: &mut Effects,
    ) {
        if let Message::Append { ballot, commit, .. }
        | Message::Commit { ballot, through: commit }
        | Message::Heartbeat { ballot, commit, .. } = message
        {
            self.decided_elsewhere = self.decided_elsewhere.max(*commit);
            if *ballot >= self.view.ballot && ballot.replica == from {
                self.set_view(LeaderView { ballot: *ballot, leader: Some(from) }, effects);
            }
        }
    }

    /// A peer told what was decided in a slot.
    pub(super) fn learn(&mut self, now: Time, slot: Slot, entry: Entry, effects: &mut Effects) {
        self.decided_elsewhere = self.decided_elsewhere.max(slot);
        if slot != self.decided.next() || self.is_congested() {
            return;
        }
        self.write(effects);
        let ballot = entry.ballot;
        self.rise_to(now, ballot.round, effects);
        if self.log.ballot_at(slot) != Some(ballot) {
            // What stands here was never decided, nor what stands behind it: those logs that hold it differ from
            // every leader's from the term of the decided entry on. So whoever was told that it is here
            // can not have counted it in vain.
            self.truncate(slot, effects);
            self.append([entry].into(), slot, effects);
        }
        self.deliver_through(slot, effects);
    }

    /// Something was decided in a term: no leader of an older one may append behind it.
    fn rise_to(&mut self, now: Time, term: u64, effects: &mut Effects) {
        if term > self.term && !matches!(self.state, State::Recovering) {
            self.enter_term(now, term, None, effects);
        }
    }

    /// A snapshot covers everything through the slot of `base`, as of which that counts.
    pub(super) fn installed(&mut self, now: Time, base: Configuration, effects: &mut Effects) {
        let slot = base.slot;
        if slot <= self.decided {
            return;
        }
        self.write(effects);
        self.rise_to(now, base.ballot.round, effects);
        if self.log.ballot_at(slot) == Some(base.ballot) {
            // What stands behind it continues it.
            self.log.release(slot.next());
            self.log.forget_before(slot);
            self.log.forget_configurations_before(slot);
        } else {
            self.truncate(self.log.first().max(self.decided.next()), effects);
            self.log.restart_after(base);
        }
        self.decided = slot;
        self.decided_elsewhere = self.decided_elsewhere.max(slot);
        self.verified = self.verified.max(slot);
        self.stable = self.stable.max(slot);
    }
}

fn replay(records: Vec<crate::Record>, options: &Options) -> Replayed {
    let mut replayed = Replayed::default();
    for record in records {
        let crate::Record::Raft(record) = record else {
            unreachable!("the log of an instance holds its own records")
        };
        match record {
            Record::Term { term, voted_for } => {
                replayed.term = term;
                replayed.voted_for = voted_for.filter(|_| !options.has(Bug::RaftForgetVote));
            }
            Record::Entries { start, entries, decided } => {
                replayed.entries.split_off(&start);
                replayed.recorded = replayed.recorded.max(last_of(start, &entries));
                let learned = |(slot, entry): (Slot, &Entry)| (slot, (entry.clone(), decided >= slot));
                replayed.entries.extend((start.0..).map(Slot).zip(entries.iter()).map(learned));
                replayed.decided = replayed.decided.max(decided);
            }
            Record::Truncated { from, .. } => {
                replayed.entries.split_off(&from);
            }
            // Once forgetful, always: no later record takes it back.
            Record::Amnesia(lost) => replayed.amnesia |= lost,
        }
    }
    replayed
}

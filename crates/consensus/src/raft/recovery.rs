//! Starting, and what comes by catch-up instead of from the leader.
//!
//! # What catch-up does not say
//!
//! A slot that the replica layer fetched comes with its batch and its term, but an entry that changes voters then looks
//! like any other, and a snapshot may even come without a term. So a replica remembers through which slot it is
//! **blind**, and:
//!
//! - Without the term of its last entry it gives no votes and asks for none: it could not compare logs.
//! - It asks others ([`Message::Ask`]) until one that is not blind has told it the configuration. Terms of decided
//!   entries are told by anybody who knows them.
//! - Until then it may stand for election, since there may be nobody left to ask; but it says through which slot
//!   it is blind, and voters answer with the configurations that they hold there. A change that was committed is in
//!   the logs of a majority of the voters before it, so one of any quorum knows.
//!
//! - An entry that changes voters may be covered by a snapshot without it being known whether it is the one that was
//!   decided there (the snapshot came from a peer, or its record was lost in a crash). It is kept as a **guess**, for
//!   others to hear of; the replica itself does not stand for election before it was told.
//!
//! # Amnesia
//!
//! A replica that may have lost a record might vote twice in a term, or let a quorum lose an entry that it had
//! acknowledged. It only learns, for the whole epoch and in all later lives; the replica layer re-admits it.

use std::collections::BTreeMap;

use synod_wire::{Ballot, Batch, Lsn, ReplicaId, Slot, Time};

use super::{Configuration, Entry, Message, Patience, Raft, Record, State, VoterSets, log::Log};
use crate::{Bug, Effects, LeaderView, Members, Options, Restart, resend::Resend};

/// What the records of earlier lives say.
#[derive(Default)]
struct Replayed {
    entries: BTreeMap<Slot, (Entry, bool)>,
    term: u64,
    voted_for: Option<ReplicaId>,
    decided: Slot,
    amnesia: bool,
    base: Option<Base>,
}

/// See [`Record::Base`].
#[derive(Clone)]
struct Base {
    slot: Slot,
    ballot: Option<Ballot>,
    configuration: Configuration,
    guess: Option<Configuration>,
    blind: Slot,
    trimmed: Slot,
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
        let first = Configuration {
            slot: Slot::ZERO,
            ballot: Ballot::ZERO,
            voters: VoterSets::simple(members.ids().to_vec()),
        };
        let base = restart.base;
        let noted = replayed.base.clone().unwrap_or(Base {
            slot: restart.begin,
            ballot: Some(Ballot::ZERO),
            configuration: first,
            guess: None,
            blind: Slot::ZERO,
            trimmed: Slot::ZERO,
        });
        let Base { slot: base_slot, ballot: base_ballot, ref configuration, blind, trimmed, .. } = noted;
        // A replica that does not vote from the start joins an epoch that others have begun.
        let joins = born && members.index(members.me()).is_none() && base > Slot::ZERO;
        let given = restart.base_ballot != Ballot::ZERO || base == restart.begin || born && !joins;
        let in_log = replayed.entries.get(&base).map(|(entry, _)| entry.ballot);
        let ballot = Some(restart.base_ballot)
            .filter(|_| given)
            .or(base_ballot.filter(|_| base_slot == base))
            .or(in_log);
        // What came while this protocol did not run here, as a snapshot or otherwise, may be another entry than the one
        // in the log. Then what the log holds there and behind it was never decided, as in `learn`.
        let replaced = in_log.is_some() && in_log != ballot;
        let seed = restart.incarnation.0.wrapping_mul(0x1_0001).wrapping_add(members.me().0);
        let mut log = Log::new(base, ballot, configuration.clone());
        let covered = covered(&noted, base, &replayed, replaced);
        let mut replica = Raft {
            term: replayed.term,
            voted_for: replayed.voted_for,
            term_lsn: Lsn::ZERO,
            view: LeaderView::default(),
            reported_voters: (Slot::ZERO, Ballot::ZERO),
            state: State::Follower,
            patience: Patience::new(options.election_timeout, seed),
            decided: base,
            decided_elsewhere: base,
            verified: base,
            stable: base,
            blind: if joins || !covered.sure { blind.max(base) } else { blind },
            guesses: false,
            asking: None,
            trimmed,
            durable: effects.last_lsn(),
            appended: effects.last_lsn(),
            disk: Default::default(),
            backlogged: false,
            deadline: None,
            log: Log::new(base, ballot, configuration.clone()),
            members,
            options,
        };
        let last_entry = replayed.entries.last_key_value().map_or(base, |(&slot, _)| slot);
        // A hole: records were trimmed that a snapshot covered, and that is gone.
        let behind = replayed.entries.into_iter().filter(|(slot, _)| *slot > base && !replaced);
        let behind: Vec<_> = behind.collect();
        let hole = trimmed > base || behind.first().is_some_and(|(slot, _)| *slot != base.next());
        let amnesia = replayed.amnesia || restart.amnesia || hole;
        let mut decided = replayed.decided.max(restart.decided).max(base);
        for (slot, (entry, learned)) in behind {
            // Where records may be missing, a later one may have replaced this entry, unless it is decided.
            if slot != log.last().next() || amnesia && !learned {
                break;
            }
            if learned && slot > base_slot {
                replica.blind = replica.blind.max(slot);
            }
            log.append(entry, Lsn::ZERO);
        }
        if amnesia {
            decided = log.last();
        }
        log.learn_configuration(base.max(base_slot), covered.configuration);
        if let Some(guess) = covered.guess {
            // It stands before whatever the entries behind the snapshot say.
            replica.guesses = log.configuration().slot <= base;
            if replica.guesses {
                log.guess_configuration(guess);
            }
        }
        replica.log = log;
        replica.stable = replica.log.last();
        replica.decided_elsewhere = decided;
        replica.deliver_through(decided.min(replica.log.last()), effects);
        if replaced && !amnesia {
            effects.append(Record::Truncated { from: base, last: last_entry }.into());
            replica.write_base(effects);
        }
        if born || amnesia {
            effects.append(Record::Amnesia(amnesia).into());
        }
        if amnesia {
            replica.state = State::Recovering;
        } else if replica.term == 0 && restart.head_start {
            replica.campaign(now, false, false, effects);
        } else {
            replica.expect_no_leader(now, effects);
        }
        replica.appended = effects.last_lsn();
        replica.ask_if_blind(now, effects);
        replica.report_leader(effects);
        replica.report_voters(effects);
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
    pub(super) fn learn(
        &mut self,
        now: Time,
        slot: Slot,
        ballot: Ballot,
        batch: Batch,
        effects: &mut Effects,
    ) {
        self.decided_elsewhere = self.decided_elsewhere.max(slot);
        if slot != self.decided.next() || self.is_congested() {
            return;
        }
        self.rise_to(now, ballot, effects);
        if self.log.ballot_at(slot) != Some(ballot) {
            // What stands here was never decided, nor what stands behind it: those logs that hold it differ from
            // every leader's from the term of the decided entry on. So whoever was told that it is here
            // can not have counted it in vain.
            self.truncate(slot, effects);
            let entry = Entry { ballot, batch, voters: None };
            let record = Record::Entry { slot, entry: entry.clone(), decided: slot };
            let lsn = effects.append(record.into());
            self.log.append(entry, lsn);
            self.blind = slot;
        }
        self.deliver_through(slot, effects);
    }

    /// Something was decided in a term: no leader of an older one may append behind it.
    fn rise_to(&mut self, now: Time, ballot: Ballot, effects: &mut Effects) {
        if ballot.round > self.term && !matches!(self.state, State::Recovering) {
            self.enter_term(now, ballot.round, None, effects);
        }
    }

    /// A snapshot covers everything through `slot`.
    pub(super) fn installed(&mut self, now: Time, slot: Slot, ballot: Option<Ballot>, effects: &mut Effects) {
        if let Some(ballot) = ballot {
            self.rise_to(now, ballot, effects);
        }
        if slot > self.decided {
            let same = ballot.is_some() && self.log.ballot_at(slot) == ballot;
            if same {
                // What stands behind it continues it.
                self.log.release(slot.next());
            } else {
                let guess = self.log.configurations_in(self.decided, slot).pop();
                self.truncate(self.log.first().max(self.decided.next()), effects);
                self.log.restart_after(slot, ballot);
                self.blind = slot;
                if let Some(guess) = guess {
                    self.guesses = true;
                    self.log.guess_configuration(guess);
                }
            }
            self.decided = slot;
            self.decided_elsewhere = self.decided_elsewhere.max(slot);
            self.verified = self.verified.max(slot);
            self.stable = self.stable.max(slot);
            self.write_base(effects);
        } else if let Some(ballot) = ballot.filter(|_| self.log.ballot_at(slot).is_none()) {
            self.log.learn_ballot(slot, ballot);
            self.write_base(effects);
        }
    }

    /// The log may forget slots through this one.
    pub(super) fn trim(&mut self, now: Time, slot: Slot, effects: &mut Effects) {
        if slot > self.decided {
            // An installed snapshot, whose term follows; the records in front of it may go already.
            self.trimmed = slot;
            return self.installed(now, slot, None, effects);
        }
        self.trimmed = slot;
        self.log.forget_before(slot);
        self.write_base(effects);
    }

    fn write_base(&mut self, effects: &mut Effects) {
        let slot = self.decided;
        let counts = self.log.configuration_at(slot);
        let sure = if self.guesses { self.log.first_configuration() } else { counts };
        let guess = self.guesses.then(|| counts.clone());
        let (ballot, blind, trimmed) = (self.log.ballot_at(slot), self.blind, self.trimmed);
        let configuration = sure.clone();
        effects.append(Record::Base { slot, ballot, configuration, guess, blind, trimmed }.into());
    }

    /// Sees to it that somebody is asked, from time to time, for what catch-up did not tell.
    pub(super) fn ask_if_blind(&mut self, now: Time, effects: &mut Effects) {
        if self.blind == Slot::ZERO || matches!(self.state, State::Recovering | State::Leader(_)) {
            self.asking = None;
            return;
        }
        // More may come by catch-up, so that the answer would be of little use: not at once.
        let wait = self.options.heartbeat_interval;
        let asking = self.asking.get_or_insert(Resend::first(now, wait));
        if asking.is_due(now, self.options.election_timeout) {
            let question = Message::Ask { slot: self.decided };
            self.send_to(self.acquaintances(), &question, Lsn::ZERO, effects);
        }
    }

    pub(super) fn on_ask(&self, from: ReplicaId, slot: Slot, effects: &mut Effects) {
        if slot > self.decided {
            return;
        }
        if let Some(ballot) = self.log.ballot_at(slot) {
            let sure = self.blind == Slot::ZERO;
            let configuration = sure.then(|| self.log.configuration_at(slot).clone());
            effects.send(from, Message::Told { slot, ballot, configuration }, Lsn::ZERO);
        }
    }

    pub(super) fn on_told(
        &mut self,
        slot: Slot,
        ballot: Ballot,
        configuration: Option<Configuration>,
        effects: &mut Effects,
    ) {
        if slot > self.decided || self.blind == Slot::ZERO {
            return;
        }
        let news = self.log.last_ballot().is_none();
        self.log.learn_ballot(slot, ballot);
        match configuration {
            Some(configuration) if slot >= self.blind => {
                self.log.learn_configuration(slot, configuration);
                self.is_sure(effects);
            }
            // Whoever answers is blind as well, or more came by catch-up meanwhile. Logs can be compared now.
            _ if news => self.write_base(effects),
            _ => {}
        }
    }

    /// Everything is known that catch-up did not tell.
    pub(super) fn is_sure(&mut self, effects: &mut Effects) {
        if self.blind > Slot::ZERO {
            self.blind = Slot::ZERO;
            self.guesses = false;
            self.write_base(effects);
        }
    }
}

/// What is known of the configuration as of the snapshot that a life begins with.
struct Covered {
    configuration: Configuration,
    /// No later one can be in front of it.
    sure: bool,
    guess: Option<Configuration>,
}

/// The snapshot at `base` may be later than what was noted last; then the entries between tell, if they are all there
/// and known to be decided.
fn covered(noted: &Base, base: Slot, replayed: &Replayed, replaced: bool) -> Covered {
    let (configuration, guess) = (noted.configuration.clone(), noted.guess.clone());
    if base <= noted.slot {
        return Covered { configuration, sure: true, guess };
    }
    let between: Vec<_> = replayed.entries.range(noted.slot.next()..=base).collect();
    let complete = between.len() as u64 == base.0 - noted.slot.0;
    let sure =
        complete && !replaced && base <= replayed.decided && between.iter().all(|(_, (_, learned))| !learned);
    let change = |(slot, (entry, _)): &(&Slot, &(Entry, bool))| {
        let voters = entry.voters.clone()?;
        Some(Configuration { slot: **slot, ballot: entry.ballot, voters })
    };
    let change = between.iter().rev().find_map(change);
    match change {
        Some(configuration) if sure => Covered { configuration, sure, guess: None },
        change => Covered { configuration, sure, guess: change.or(guess) },
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
            Record::Entry { slot, entry, decided } => {
                replayed.entries.split_off(&slot);
                replayed.entries.insert(slot, (entry, decided >= slot));
                replayed.decided = replayed.decided.max(decided);
            }
            Record::Truncated { from, .. } => {
                replayed.entries.split_off(&from);
            }
            Record::Base { slot, ballot, configuration, guess, blind, trimmed } => {
                replayed.base = Some(Base { slot, ballot, configuration, guess, blind, trimmed });
                replayed.decided = replayed.decided.max(slot);
            }
            // Once forgetful, always: no later record takes it back.
            Record::Amnesia(lost) => replayed.amnesia |= lost,
        }
    }
    replayed
}

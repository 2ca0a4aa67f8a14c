//! Checks terms, votes in them, and logs: compares messages with the sender's disk and with earlier messages.

use std::{
    collections::{BTreeMap, VecDeque},
    rc::Rc,
};

use synod_consensus::{Entry, Message, Record, TermClaim, TermFact, VoterSets};
use synod_replica::{Group, LogRecord};
use synod_wire::{Ballot, Batch, Epoch, Lsn, ReplicaId, Slot};

use super::invariant::{Checked, Invariant, demand};

/// A log, reconstructed from its records.
#[derive(Clone, Debug, Default)]
struct Log {
    /// The terms of its entries; those that a snapshot covers may be missing.
    ballots: BTreeMap<Slot, Ballot>,
    /// Through this slot the log holds decided entries only: a snapshot covers them, or they were learned
    /// outside of the protocol.
    base: Slot,
}

impl Log {
    fn take_in(&mut self, fact: &TermFact) {
        match fact {
            TermFact::Entries { first, entries, .. } => {
                self.ballots.split_off(first);
                self.ballots.extend(placed(*first, entries).map(|(slot, entry)| (slot, entry.ballot)));
            }
            TermFact::Truncated { from } => {
                self.ballots.split_off(from);
            }
            // The lost records may have replaced what the log before holds.
            TermFact::Lost => self.ballots.clear(),
            TermFact::Term { .. } | TermFact::Nothing => {}
        }
    }

    fn last(&self) -> Slot {
        self.ballots.last_key_value().map_or(self.base, |(&slot, _)| slot.max(self.base))
    }

    fn holds(&self, slot: Slot, ballot: Ballot) -> bool {
        slot <= self.base || self.ballots.get(&slot) == Some(&ballot)
    }
}

/// Entries with their slots.
fn placed(first: Slot, entries: &[Entry]) -> impl Iterator<Item = (Slot, &Entry)> {
    (first.0..).map(Slot).zip(entries)
}

/// What is known of one replica.
#[derive(Debug, Default)]
struct Server {
    pending: VecDeque<(Lsn, TermFact)>,
    /// The last durable record that was processed.
    seen: Lsn,
    /// The log that the durable records give.
    durable: Log,
    term: u64,
    voted_for: Option<ReplicaId>,
    /// How far its durable log went when it left a term for a higher one.
    left_at: BTreeMap<u64, Slot>,
    /// The log that all records give, durable or not.
    log: Log,
    /// The term of all records, durable or not.
    latest_term: u64,
    /// The last term that its present life led.
    led: u64,
    /// For each term, the replica that it told to have its vote, in any life.
    told: BTreeMap<u64, ReplicaId>,
}

/// An entry that a replica appended.
#[derive(Debug)]
struct Known {
    batch: Batch,
    /// The term of the entry before it, once a replica had both.
    prev: Option<Ballot>,
    /// The voters that count for it.
    voters: Rc<VoterSets>,
    /// Whether the entry itself names these voters.
    brings: bool,
    /// The replicas that had it durably while in its own term, as a set of bits.
    acknowledged: u64,
}

/// The terms of all epochs. Replicas are named by index. Terms of different epochs are not compared.
#[derive(Debug)]
pub struct Terms {
    replicas: usize,
    epochs: BTreeMap<Epoch, EpochTerms>,
}

impl Terms {
    /// The terms of at most this many replicas.
    #[must_use]
    pub fn new(replicas: usize) -> Terms {
        Terms { replicas, epochs: BTreeMap::new() }
    }

    /// A replica is in an epoch of this group.
    pub fn epoch_begins(&mut self, group: &Group) {
        let replicas = self.replicas;
        self.epochs.range_mut(..group.epoch).for_each(|(_, terms)| terms.ended = true);
        self.epochs.entry(group.epoch).or_insert_with(|| EpochTerms::new(replicas, group));
    }

    /// A replica has everything through this slot, decided and outside of the protocol's log.
    pub fn covered(&mut self, replica: usize, slot: Slot) {
        for terms in self.epochs.values_mut() {
            let server = &mut terms.servers[replica];
            server.log.base = server.log.base.max(slot);
            server.durable.base = server.durable.base.max(slot);
        }
    }

    /// Checks the group after a slot that an epoch of Raft decided: its voters are those that the log names.
    pub fn agrees(&self, epoch: Epoch, slot: Slot, group: &Group) -> Checked {
        let known = self.epochs.get(&epoch).and_then(|terms| {
            let (ballot, _) = terms.committed.get(&slot)?;
            terms.entries.get(&(slot, *ballot))
        });
        // After a stop-sign the next epoch's voters count.
        let Some(known) = known.filter(|_| group.epoch == epoch) else { return Ok(()) };
        demand(*known.voters == group.voter_sets(), Invariant::OneGroup, || {
            format!(
                "after slot {slot} the log lets {:?} vote, and the group {:?}",
                known.voters,
                group.voter_sets()
            )
        })
    }

    fn epoch(&mut self, epoch: Epoch) -> &mut EpochTerms {
        self.epochs.get_mut(&epoch).expect("an epoch begins before anything happens in it")
    }

    /// The batch committed in a slot in an epoch, if one is.
    #[must_use]
    pub fn committed(&self, epoch: Epoch, slot: Slot) -> Option<&Batch> {
        self.epochs.get(&epoch)?.committed(slot)
    }

    /// The term in which that became so.
    #[must_use]
    pub fn committed_in(&self, epoch: Epoch, slot: Slot) -> Option<u64> {
        self.epochs.get(&epoch)?.committed.get(&slot).map(|(_, term)| *term)
    }

    /// A replica appends a record.
    pub fn appended(&mut self, replica: usize, lsn: Lsn, record: &LogRecord) -> Checked {
        match record {
            LogRecord::Protocol { epoch, record } => self.epoch(*epoch).appended(replica, lsn, record),
            LogRecord::Trimmed(slot) | LogRecord::Learned { slot, .. } => {
                self.covered(replica, *slot);
                Ok(())
            }
            LogRecord::Entered { .. } | LogRecord::Ended { .. } | LogRecord::Decided { .. } => Ok(()),
        }
    }

    /// A replica's records through `lsn` are durable.
    pub fn durable(&mut self, replica: usize, lsn: Lsn) -> Checked {
        self.epochs.values_mut().try_for_each(|epoch| epoch.durable(replica, lsn))
    }

    /// A replica starts with a snapshot through a slot and these durable records. If `lost`, it may have lost
    /// others, so its earlier messages no longer bind it.
    pub fn restarted(
        &mut self,
        replica: usize,
        mut base: Slot,
        records: impl Iterator<Item = (Lsn, LogRecord)>,
        lost: bool,
    ) -> Checked {
        let mut by_epoch: BTreeMap<Epoch, Vec<(Lsn, Record)>> = BTreeMap::new();
        for (lsn, record) in records {
            match record {
                LogRecord::Protocol { epoch, record } => {
                    by_epoch.entry(epoch).or_default().push((lsn, record));
                }
                LogRecord::Learned { slot, .. } | LogRecord::Decided { slot, .. } if slot == base.next() => {
                    base = slot;
                }
                _ => {}
            }
        }
        for (epoch, terms) in &mut self.epochs {
            terms.servers[replica].durable.base = base;
            terms.restarted(replica, by_epoch.remove(epoch).unwrap_or_default().into_iter(), lost)?;
        }
        Ok(())
    }

    /// A message of an epoch leaves a replica in one of its lives. Everything through `decided` is known to be decided.
    pub fn said(
        &mut self,
        epoch: Epoch,
        replica: usize,
        who: (ReplicaId, u64),
        to: ReplicaId,
        message: &Message,
        decided: Slot,
    ) -> Checked {
        self.epoch(epoch).said(replica, who, to, message, decided)
    }
}

/// The terms of one epoch.
#[derive(Debug)]
struct EpochTerms {
    /// The slot with which it began.
    first: Slot,
    /// Whether a later epoch has begun, so that entries committed after its end are void.
    ended: bool,
    /// Whether followers find out by themselves what is committed.
    followers_count: bool,
    servers: Vec<Server>,
    first_voters: Rc<VoterSets>,
    entries: BTreeMap<(Slot, Ballot), Known>,
    /// The leader of each term, and its life.
    leaders: BTreeMap<u64, (ReplicaId, u64)>,
    /// The committed entries, each with the term in which it was committed.
    committed: BTreeMap<Slot, (Ballot, u64)>,
    /// For each term, the slot through which its leader said that everything is committed.
    announced: BTreeMap<u64, Slot>,
}

impl EpochTerms {
    /// The terms of an epoch with this many replicas and the voters of this group.
    fn new(replicas: usize, group: &Group) -> EpochTerms {
        EpochTerms {
            first: group.first,
            ended: false,
            followers_count: group.overrides.get("replication") == Some("gossip-status"),
            servers: (0..replicas).map(|_| Server::default()).collect(),
            first_voters: Rc::new(VoterSets::simple(group.voters().collect())),
            entries: BTreeMap::new(),
            leaders: BTreeMap::new(),
            committed: BTreeMap::new(),
            announced: BTreeMap::new(),
        }
    }

    /// The batch committed in a slot, if one is.
    fn committed(&self, slot: Slot) -> Option<&Batch> {
        let (ballot, _) = self.committed.get(&slot)?;
        self.entries.get(&(slot, *ballot)).map(|known| &known.batch)
    }

    /// A replica appends a record.
    fn appended(&mut self, replica: usize, lsn: Lsn, record: &Record) -> Checked {
        let fact = record.body().term_fact();
        let server = &mut self.servers[replica];
        server.pending.push_back((lsn, fact.clone()));
        match fact {
            TermFact::Term { term, .. } => server.latest_term = term,
            TermFact::Truncated { from } => self.may_truncate(replica, from)?,
            _ => {}
        }
        let server = &mut self.servers[replica];
        server.log.take_in(&fact);
        let TermFact::Entries { first, entries, decided } = fact else { return Ok(()) };
        for (slot, entry) in placed(first, &entries) {
            let before = self.servers[replica].log.ballots.get(&slot.prev()).copied();
            self.log_matches(slot, entry, before, decided >= slot)?;
            if entry.voters.is_some() && entry.ballot.replica.0 == replica as u64 + 1 {
                // From now on these voters count for entries that are not committed yet.
                let last = self.committed.last_key_value().map_or(Slot::ZERO, |(&slot, _)| slot);
                (last.0 + 1..=slot.0).try_for_each(|slot| self.commit(Slot(slot), entry.ballot))?;
            }
        }
        Ok(())
    }

    /// A leader never removes an entry.
    fn may_truncate(&self, replica: usize, from: Slot) -> Checked {
        let server = &self.servers[replica];
        let term = server.latest_term;
        let leads = term > 0 && server.led == term;
        let removed = server.log.ballots.range(from..).next().map(|(slot, _)| *slot);
        demand(!leads || removed.is_none(), Invariant::LeaderAppendOnly, || {
            format!("r{} leads term {term} and removes its entries from slot {from} on", replica + 1)
        })
    }

    /// Log Matching: a slot and a term name one entry and, by induction, one log.
    fn log_matches(&mut self, slot: Slot, entry: &Entry, before: Option<Ballot>, learned: bool) -> Checked {
        let before = if slot == self.first { Some(Ballot::ZERO) } else { before };
        let Some(known) = self.entries.get_mut(&(slot, entry.ballot)) else {
            // Only its leader makes an entry; an entry that is learned or sent on was made before. After a
            // snapshot its maker may not know the entry before it, but that one is committed.
            let committed = self.committed.get(&slot.prev()).map(|&(ballot, _)| ballot);
            let inherited = before.or(committed).and_then(|before| self.entries.get(&(slot.prev(), before)));
            let inherited = inherited.map_or(&self.first_voters, |known| &known.voters);
            let voters = entry.voters.as_ref().map_or(Rc::clone(inherited), |sets| Rc::new(sets.clone()));
            let (batch, brings) = (entry.batch.clone(), entry.voters.is_some());
            let known = Known { batch, prev: before, voters, brings, acknowledged: 0 };
            self.entries.insert((slot, entry.ballot), known);
            return demand(!learned, Invariant::LogMatching, || {
                format!("slot {slot} is learned with ballot {}, but nobody appended that", entry.ballot)
            });
        };
        let votes = entry.voters.as_ref().map_or(!known.brings, |voters| *voters == *known.voters);
        let same = known.batch == entry.batch && votes;
        // A replica that has the entry after a snapshot may not know the entry before it.
        known.prev = known.prev.or(before);
        let follows = before.is_none_or(|before| known.prev == Some(before));
        demand(same && follows, Invariant::LogMatching, || {
            format!(
                "slot {slot} has two different entries, or different ones before it, in ballot {}",
                entry.ballot
            )
        })
    }

    /// A replica's records through `lsn` are durable.
    fn durable(&mut self, replica: usize, lsn: Lsn) -> Checked {
        while self.servers[replica].pending.front().is_some_and(|(at, _)| *at <= lsn) {
            let (at, fact) = self.servers[replica].pending.pop_front().expect("there is a front");
            self.is_durable(replica, at, &fact)?;
        }
        Ok(())
    }

    fn is_durable(&mut self, replica: usize, lsn: Lsn, fact: &TermFact) -> Checked {
        let server = &mut self.servers[replica];
        server.seen = server.seen.max(lsn);
        server.durable.take_in(fact);
        match fact {
            TermFact::Term { term, voted_for } => {
                if *term > server.term {
                    server.left_at.insert(server.term, server.durable.last());
                }
                (server.term, server.voted_for) = (*term, *voted_for);
                Ok(())
            }
            TermFact::Entries { first, entries, .. } => {
                let term = server.term;
                let in_its_term = |(_, entry): &(Slot, &Entry)| entry.ballot.round == term;
                let mut counted = placed(*first, entries).filter(in_its_term);
                counted.try_for_each(|(slot, entry)| self.acknowledged(replica, slot, entry.ballot))
            }
            _ => Ok(()),
        }
    }

    /// An entry is durable in its own term: with a quorum it is committed, and all before it.
    fn acknowledged(&mut self, replica: usize, slot: Slot, ballot: Ballot) -> Checked {
        let Some(known) = self.entries.get_mut(&(slot, ballot)) else { return Ok(()) };
        known.acknowledged |= 1 << replica;
        self.commit(slot, ballot)
    }

    /// The voters that count are those of the last configuration in the leader's log, also for the entries before it.
    fn voters(&self, ballot: Ballot) -> Option<Rc<VoterSets>> {
        let leader = self.servers.get(usize::try_from(ballot.replica.0).ok()?.checked_sub(1)?)?;
        let (&slot, &last) = leader.log.ballots.last_key_value()?;
        let known = self.entries.get(&(slot, last))?;
        (last == ballot).then(|| Rc::clone(&known.voters))
    }

    fn commit(&mut self, slot: Slot, ballot: Ballot) -> Checked {
        let Some(known) = self.entries.get(&(slot, ballot)) else { return Ok(()) };
        let acknowledged = known.acknowledged;
        let quorum = |voters: &VoterSets| voters.is_quorum(|id| acknowledged & (1 << (id.0 - 1)) != 0);
        let latest = self.voters(ballot).unwrap_or_else(|| Rc::clone(&known.voters));
        // A follower that counts by itself does so by its own log, which may end before the leader's last
        // configuration. It may also go further than what is left of the log of a leader that has crashed.
        let mut from_here = self.entries.range((slot, Ballot::ZERO)..).filter(|((_, of), _)| *of == ballot);
        let committed =
            quorum(&latest) || self.followers_count && from_here.any(|(_, known)| quorum(&known.voters));
        if !committed {
            return Ok(());
        }
        let (mut slot, mut at) = (slot, ballot);
        while slot >= self.first {
            if let Some(&(committed, term)) = self.committed.get(&slot) {
                demand(committed == at, Invariant::ChosenStays, || {
                    format!("slot {slot} is committed in ballots {committed} and {at}")
                })?;
                if term <= ballot.round {
                    return Ok(());
                }
                // A lower term may reach its quorum after a higher one: the replicas of that quorum knew the
                // entry before.
            }
            self.committed.insert(slot, (at, ballot.round));
            let Some(known) = self.entries.get(&(slot, at)) else { break };
            let Some(prev) = known.prev else { break };
            (slot, at) = (slot.prev(), prev);
        }
        Ok(())
    }

    /// A replica starts with these durable records. If `lost`, it may have lost others, so its earlier
    /// messages no longer bind it.
    fn restarted(
        &mut self,
        replica: usize,
        records: impl Iterator<Item = (Lsn, Record)>,
        lost: bool,
    ) -> Checked {
        let server = &mut self.servers[replica];
        server.pending.clear();
        if lost {
            let durable = Log { base: server.durable.base, ..Log::default() };
            *server = Server { seen: server.seen, durable, ..Server::default() };
        }
        let seen = server.seen;
        // A prefix of what was not durable at the crash has become so.
        for (lsn, record) in records {
            if lsn > seen || lost {
                self.is_durable(replica, lsn, &record.body().term_fact())?;
            }
        }
        let server = &mut self.servers[replica];
        server.log = server.durable.clone();
        // A term that an earlier life led has no leader any more, even if no replica has led since.
        (server.latest_term, server.led) = (server.term, 0);
        Ok(())
    }

    /// A message leaves a replica in one of its lives. Everything through `decided` is known to be decided.
    fn said(
        &mut self,
        replica: usize,
        (id, life): (ReplicaId, u64),
        to: ReplicaId,
        message: &Message,
        decided: Slot,
    ) -> Checked {
        let claims = message.body().term_claims_of(id);
        claims.iter().try_for_each(|claim| self.claims(replica, (id, life), to, claim, decided))
    }

    fn claims(
        &mut self,
        replica: usize,
        (id, life): (ReplicaId, u64),
        to: ReplicaId,
        claim: &TermClaim<'_>,
        decided: Slot,
    ) -> Checked {
        match claim {
            TermClaim::Candidate { term } => self.votes(replica, id, *term, id),
            TermClaim::Grants { term } => self.votes(replica, id, *term, to),
            TermClaim::Votes { term, candidate } => self.votes(replica, id, *term, *candidate),
            TermClaim::Leads { ballot, commit } => {
                demand(*commit <= decided || self.ended, Invariant::AnnouncedDecided, || {
                    format!("{id} announces slots through {commit}; only those through {decided} are decided")
                })?;
                self.leads(replica, id, life, *ballot)?;
                self.announces(replica, id, *ballot, *commit)
            }
            TermClaim::Acknowledges { ballot, through } => {
                let server = &self.servers[replica];
                // An entry that became durable together with its removal in a later term was still held
                // before that term.
                let left_at = server.left_at.get(&ballot.round);
                let held = left_at.is_some_and(|last| last >= through);
                let durable = server.durable.ballots.contains_key(through) || server.durable.base >= *through;
                let holds = server.term >= ballot.round && (durable || held || *through <= decided);
                demand(holds, Invariant::DurableBeforePromise, || {
                    format!(
                        "{id} acknowledges slot {through} in ballot {ballot}; its disk does not hold that"
                    )
                })
            }
            TermClaim::Held { ballot, by, through } => self.held(id, *ballot, *by, *through, decided),
            TermClaim::Committed { ballot, through } => {
                demand(*through <= decided || self.ended, Invariant::AnnouncedDecided, || {
                    format!("{id} knows slots through {through}; only those through {decided} are decided")
                })?;
                let above = self.committed.range(..=*through).find(|(_, (_, term))| *term > ballot.round);
                demand(above.is_none(), Invariant::NothingFromAbove, || {
                    format!(
                        "{id} says in term {} that what a higher term committed is: {above:?}",
                        ballot.round
                    )
                })
            }
            TermClaim::Entry { .. } => Ok(()),
        }
    }

    /// A replica had an entry of a term durably while in that term, in the slot or after it, and so the log of the
    /// term's leader before that; or else it may have it by a snapshot.
    fn held(&self, id: ReplicaId, ballot: Ballot, by: ReplicaId, through: Slot, decided: Slot) -> Checked {
        let has = |known: &Known| known.acknowledged & (1 << (by.0 - 1)) != 0;
        let mut after = self.entries.range((through, Ballot::ZERO)..);
        let held = after.any(|((_, of), known)| *of == ballot && has(known));
        demand(held || through <= decided || self.ended, Invariant::DurableBeforePromise, || {
            format!("{id} says that {by} held slot {through} in ballot {ballot}, which no disk did")
        })
    }

    /// A leader tells in its term what is committed: it was committed in no higher term, and is the entry of its log.
    fn announces(&mut self, replica: usize, id: ReplicaId, ballot: Ballot, commit: Slot) -> Checked {
        let known = self.announced.entry(ballot.round).or_default();
        let news = known.next()..=commit;
        *known = commit.max(*known);
        if news.is_empty() {
            return Ok(());
        }
        let log = &self.servers[replica].log;
        for (&slot, &(committed, term)) in self.committed.range(news) {
            demand(term <= ballot.round, Invariant::NothingFromAbove, || {
                format!(
                    "{id} says in term {} that slot {slot} is committed; term {term} did that",
                    ballot.round
                )
            })?;
            demand(log.holds(slot, committed), Invariant::AnnouncedIsProposed, || {
                format!("{id} says that slot {slot} is committed, and holds something else than {committed}")
            })?;
        }
        Ok(())
    }

    fn votes(&mut self, replica: usize, id: ReplicaId, term: u64, candidate: ReplicaId) -> Checked {
        let server = &mut self.servers[replica];
        let told = *server.told.entry(term).or_insert(candidate);
        demand(told == candidate, Invariant::PromiseKept, || {
            format!("{id} votes for {candidate} in term {term}, and has voted for {told}")
        })?;
        let durable = server.term > term || server.term == term && server.voted_for == Some(candidate);
        demand(durable, Invariant::DurableBeforePromise, || {
            format!(
                "{id} votes for {candidate} in term {term}; its disk holds term {}, vote {:?}",
                server.term, server.voted_for
            )
        })
    }

    fn leads(&mut self, replica: usize, id: ReplicaId, life: u64, ballot: Ballot) -> Checked {
        demand(ballot.replica == id, Invariant::OneLeader, || format!("{id} speaks in ballot {ballot}"))?;
        if let Some(&(leader, in_life)) = self.leaders.get(&ballot.round) {
            return demand((leader, in_life) == (id, life), Invariant::OneLeader, || {
                format!("{id} leads term {} in life {life}; {leader} did so in life {in_life}", ballot.round)
            });
        }
        self.leaders.insert(ballot.round, (id, life));
        self.servers[replica].led = ballot.round;
        // By Log Matching the last one stands for all before it.
        let mut before = self.committed.iter().rev().filter(|(_, (_, term))| *term < ballot.round);
        let Some((&slot, &(committed, _))) = before.next() else { return Ok(()) };
        demand(self.servers[replica].log.holds(slot, committed), Invariant::LeaderCompleteness, || {
            format!("{id} leads term {} without slot {slot}, which is committed in {committed}", ballot.round)
        })
    }
}

#[cfg(test)]
mod tests {
    use synod_consensus::{
        Options, ProtocolKind,
        raft::{self, Replication},
    };

    use super::*;

    const LEADER: Ballot = Ballot { round: 1, replica: ReplicaId(1) };

    /// Of four voters the first leads, appends an entry and then one that removes the fourth, and crashes before its
    /// disk holds them. The second and the third have both in their logs, and the first entry durably: a majority of
    /// the three that remain. Returns the last slot that counts as committed.
    fn committed(replication: Replication) -> Option<Slot> {
        let mut options = Options::of(ProtocolKind::Raft);
        options.raft.replication = replication;
        let group = Group::of(&options, (1..=4).map(ReplicaId));
        let mut terms = EpochTerms::new(4, &group);
        let entry = |first, voters| {
            let entry = Entry { ballot: LEADER, batch: Batch::noop(), voters };
            let (entries, decided, decided_in) = ([entry].into(), Slot::ZERO, Ballot::ZERO);
            Record::from(raft::Record::Entries { first: Slot(first), entries, decided, decided_in })
        };
        let rest = VoterSets::simple((1..=3).map(ReplicaId).collect());
        let term = raft::Record::Term { term: 1, voted_for: Some(ReplicaId(1)) };
        let records = [Record::from(term), entry(1, None), entry(2, Some(rest))];
        for replica in 0..3 {
            for (lsn, record) in (1..).map(Lsn).zip(&records) {
                terms.appended(replica, lsn, record).expect("nothing is wrong");
            }
        }
        terms.restarted(0, [].into_iter(), false).expect("nothing is wrong");
        for replica in [1, 2] {
            terms.durable(replica, Lsn(2)).expect("nothing is wrong");
        }
        terms.committed.last_key_value().map(|(&slot, _)| slot)
    }

    #[test]
    fn followers_that_count_may_have_a_configuration_that_its_leader_lost() {
        assert_eq!(committed(Replication::GossipStatus), Some(Slot(1)));
        assert_eq!(committed(Replication::GossipReplies), None, "only the leader counts");
        assert_eq!(committed(Replication::Direct), None, "only the leader counts");
    }
}

//! Checks promises, proposals and votes: compares messages with the sender's disk and with earlier messages.

use std::collections::{BTreeMap, VecDeque};

use synod_consensus::{Claim, Extent, Fact, Threshold};
use synod_replica::{Group, LogRecord};
use synod_wire::{Ballot, Batch, Epoch, Lsn, ReplicaId, Slot};

use super::{
    estimates::Estimates,
    invariant::{Checked, Invariant, demand},
};

/// What is known of one replica's log, and of its messages.
#[derive(Debug, Default)]
struct Acceptor {
    /// The contents of records that are not durable yet.
    pending: VecDeque<(Lsn, Fact)>,
    /// The promise in the durable records.
    promised: Ballot,
    accepted: BTreeMap<Slot, Ballot>,
    /// The highest ballot that it told another replica to follow.
    told: Ballot,
    /// The votes for slots that were not chosen when it told of them.
    told_votes: BTreeMap<Slot, Ballot>,
    /// For a protocol that orders sequences: the accepted sequence that the durable records give.
    held: Held,
    /// The accepted sequence that all records give, durable or not.
    latest: Held,
}

/// A sequence, reconstructed from records.
#[derive(Debug, Default)]
struct Held {
    /// The ballot in which it is accepted.
    accepted_in: Ballot,
    /// After a restart there are holes where records were trimmed.
    elements: BTreeMap<Slot, Batch>,
    /// Elements that may become a part of it, for a ballot and a start.
    staged: BTreeMap<Slot, Batch>,
    staged_for: (Ballot, Slot),
}

impl Held {
    fn take_in(&mut self, fact: &Fact) {
        match fact {
            Fact::Learned { slot, batch } => {
                self.elements.insert(*slot, batch.clone());
            }
            Fact::Extended { ballot, first, batches } => {
                self.accepted_in = *ballot;
                self.elements.split_off(first);
                self.elements.extend(placed(*first, batches));
            }
            Fact::Staged { ballot, first, from, batches } => {
                if self.staged_for != (*ballot, *first) || from == first {
                    self.staged.clear();
                    self.staged_for = (*ballot, *first);
                }
                self.staged.extend(placed(*from, batches));
            }
            Fact::Adopted { ballot, first, from, batches, .. } => {
                self.accepted_in = *ballot;
                let staged = std::mem::take(&mut self.staged);
                self.elements.split_off(first);
                self.elements.extend(staged.into_iter().filter(|(slot, _)| first <= slot && slot < from));
                self.elements.extend(placed(*from, batches));
            }
            Fact::Promised(_) | Fact::Accepted { .. } | Fact::Nothing => {}
        }
    }
}

/// Batches with their slots.
fn placed(first: Slot, batches: &[Batch]) -> impl Iterator<Item = (Slot, Batch)> {
    (first.0..).map(Slot).zip(batches.iter().cloned())
}

/// The proposals for one slot.
#[derive(Debug, Default)]
struct Proposed {
    /// In ascending order of ballots: the batch, and the replicas that have durably accepted it, as a set of bits.
    ballots: BTreeMap<Ballot, (Batch, u64)>,
    /// The lowest ballot in which a quorum has accepted, and the batch.
    chosen: Option<(Ballot, Batch)>,
}

/// The votes of all epochs. Replicas are named by index. Ballots of different epochs are not compared.
#[derive(Debug)]
pub struct Votes {
    replicas: usize,
    epochs: BTreeMap<Epoch, EpochVotes>,
    /// For each replica, the epochs of the records that it appended and that are not durable yet.
    pending: Vec<VecDeque<(Lsn, Epoch)>>,
    /// Through this record a replica's log has gaps. It does not determine the sequence that its owner held,
    /// since a lost record may have changed what a later one kept. The replica does not use it either.
    gaps: Vec<Lsn>,
}

impl Votes {
    /// The votes of at most this many replicas.
    #[must_use]
    pub fn new(replicas: usize) -> Votes {
        Votes {
            replicas,
            epochs: BTreeMap::new(),
            pending: vec![VecDeque::new(); replicas],
            gaps: vec![Lsn::ZERO; replicas],
        }
    }

    /// A replica is in an epoch of this group.
    pub fn epoch_begins(&mut self, group: &Group) {
        let replicas = self.replicas;
        self.epochs.range_mut(..group.epoch).for_each(|(_, votes)| votes.ended = true);
        let begins = || EpochVotes::new(replicas, group);
        self.epochs.entry(group.epoch).or_insert_with(begins);
    }

    fn epoch(&mut self, epoch: Epoch) -> &mut EpochVotes {
        self.epochs.get_mut(&epoch).expect("an epoch begins before anything happens in it")
    }

    /// A replica appends a record.
    pub fn appended(&mut self, replica: usize, lsn: Lsn, record: &LogRecord) -> Checked {
        match record {
            LogRecord::Protocol { epoch, record } => {
                self.pending[replica].push_back((lsn, *epoch));
                self.epoch(*epoch).appended(replica, lsn, record)
            }
            LogRecord::Trimmed(slot) => {
                self.covered(replica, *slot);
                Ok(())
            }
            LogRecord::Entered { .. }
            | LogRecord::Ended { .. }
            | LogRecord::Learned { .. }
            | LogRecord::Decided { .. } => Ok(()),
        }
    }

    /// A snapshot covers everything through this slot, whatever the records say.
    fn covered(&mut self, replica: usize, slot: Slot) {
        for epoch in self.epochs.values_mut() {
            let latest = &mut epoch.acceptors[replica].latest;
            latest.elements = latest.elements.split_off(&slot.next());
        }
    }

    /// A replica's records through `lsn` are durable.
    pub fn durable(&mut self, replica: usize, lsn: Lsn) -> Checked {
        let mut last = None;
        while let Some(&(at, epoch)) = self.pending[replica].front()
            && at <= lsn
        {
            self.pending[replica].pop_front();
            if last.replace(epoch) != Some(epoch) {
                self.epoch(epoch).durable(replica, lsn)?;
            }
        }
        Ok(())
    }

    /// A replica starts with these durable records. If `lost`, it may have lost others, so its earlier
    /// messages no longer bind it.
    pub fn restarted(
        &mut self,
        replica: usize,
        records: impl Iterator<Item = (Lsn, LogRecord)>,
        lost: bool,
        amnesia: bool,
    ) -> Checked {
        self.pending[replica].clear();
        self.epochs.values_mut().for_each(|epoch| epoch.restarted(replica, lost));
        // A prefix of what was not durable at the crash has become so.
        let records: Vec<_> = records.collect();
        if amnesia {
            self.gaps[replica] = records.last().map_or(Lsn::ZERO, |(lsn, _)| *lsn);
        }
        for (lsn, record) in records {
            match record {
                LogRecord::Protocol { epoch, record } => {
                    let fact = record.body().fact();
                    let of_a_sequence = matches!(fact, Fact::Adopted { .. } | Fact::Extended { .. });
                    if of_a_sequence && lsn <= self.gaps[replica] {
                        continue;
                    }
                    let epoch = self.epoch(epoch);
                    epoch.acceptors[replica].latest.take_in(&fact);
                    epoch.is_durable(replica, fact)?;
                }
                LogRecord::Trimmed(slot) => self.covered(replica, slot),
                LogRecord::Entered { .. }
                | LogRecord::Ended { .. }
                | LogRecord::Learned { .. }
                | LogRecord::Decided { .. } => {}
            }
        }
        Ok(())
    }

    /// The last slot for which anything was proposed.
    #[must_use]
    pub fn highest(&self) -> Slot {
        self.epochs.values().map(EpochVotes::highest).max().unwrap_or_default()
    }

    /// The ballot that a replica's durable records of an epoch promise.
    #[must_use]
    pub fn promised(&self, epoch: Epoch, replica: usize) -> Ballot {
        self.epochs.get(&epoch).map_or(Ballot::ZERO, |votes| votes.acceptors[replica].promised)
    }

    /// The batch chosen for a slot in an epoch, if one is.
    #[must_use]
    pub fn chosen(&self, epoch: Epoch, slot: Slot) -> Option<&Batch> {
        self.epochs.get(&epoch)?.chosen(slot)
    }

    /// The lowest ballot of an epoch that chose it.
    #[must_use]
    pub fn chosen_in(&self, epoch: Epoch, slot: Slot) -> Option<Ballot> {
        let proposed = self.epochs.get(&epoch)?.slots.get(&slot)?;
        proposed.chosen.as_ref().map(|(ballot, _)| *ballot)
    }

    /// The earlier epoch that chose a batch for a slot, if there is one: it did so after its end.
    #[must_use]
    pub fn chosen_before(&self, epoch: Epoch, slot: Slot, batch: &Batch) -> Option<Epoch> {
        let mut before = self.epochs.range(..epoch);
        let is_it = |chosen: &Batch| chosen == batch || chosen.stands_for(batch);
        before.find(|(_, votes)| votes.chosen(slot).is_some_and(is_it)).map(|(&before, _)| before)
    }

    /// A message of an epoch leaves a replica in one of its lives. Everything through `decided` is known to be decided.
    pub fn said(
        &mut self,
        epoch: Epoch,
        replica: usize,
        id: ReplicaId,
        life: u64,
        claim: &Claim<'_>,
        decided: Slot,
    ) -> Checked {
        self.epoch(epoch).said(replica, id, life, claim, decided)
    }
}

/// The messages and votes of one epoch.
#[derive(Debug)]
struct EpochVotes {
    quorum: u32,
    /// The voters, as a set of bits.
    voters: u64,
    /// Whether a later epoch has begun.
    ended: bool,
    acceptors: Vec<Acceptor>,
    /// The slots from 1 on.
    slots: BTreeMap<Slot, Proposed>,
    /// For each ballot, the life of its owner that leads in it.
    lives: BTreeMap<Ballot, u64>,
    /// For each ballot, the slot through which its leader said that everything is decided.
    announced: BTreeMap<Ballot, Slot>,
    /// For each ballot, the slot through which any replica said so in a promise of it.
    promised: BTreeMap<Ballot, Slot>,
    /// Where there are estimates in the place of proposals.
    estimates: Option<Estimates>,
}

impl EpochVotes {
    /// The votes of an epoch with the voters of this group.
    fn new(replicas: usize, group: &Group) -> EpochVotes {
        let voters = group.voters().fold(0_u64, |set, id| set | 1 << (id.0 - 1));
        let quorum = group.threshold().least(voters.count_ones() as usize);
        let has_estimates = group.threshold() == Threshold::TwoThirds;
        EpochVotes {
            quorum: u32::try_from(quorum).expect("few voters"),
            voters,
            ended: false,
            acceptors: (0..replicas).map(|_| Acceptor::default()).collect(),
            slots: BTreeMap::new(),
            lives: BTreeMap::new(),
            announced: BTreeMap::new(),
            promised: BTreeMap::new(),
            estimates: has_estimates.then(|| Estimates::new(quorum)),
        }
    }

    /// The last slot for which anything was proposed.
    fn highest(&self) -> Slot {
        self.slots.last_key_value().map_or(Slot::ZERO, |(&slot, _)| slot)
    }

    fn appended(&mut self, replica: usize, lsn: Lsn, record: &synod_consensus::Record) -> Checked {
        let fact = record.body().fact();
        self.acceptors[replica].latest.take_in(&fact);
        let adopted = matches!(fact, Fact::Adopted { .. });
        self.acceptors[replica].pending.push_back((lsn, fact));
        if adopted { self.is_synchronised(replica) } else { Ok(()) }
    }

    /// A replica has adopted the sequence of a ballot, which is the one that its leader holds.
    fn is_synchronised(&self, replica: usize) -> Checked {
        let follower = &self.acceptors[replica].latest;
        let ballot = follower.accepted_in;
        let owner = usize::try_from(ballot.replica.0 - 1).unwrap_or(usize::MAX);
        let Some(leader) = self.acceptors.get(owner).map(|owner| &owner.latest) else { return Ok(()) };
        if leader.accepted_in != ballot {
            // The replica has gone on to another ballot.
            return Ok(());
        }
        let differs = |(slot, batch): &(&Slot, &Batch)| {
            leader.elements.get(slot).is_some_and(|leaders| leaders != *batch)
        };
        let different = follower.elements.iter().find(differs);
        demand(different.is_none(), Invariant::SyncedPrefix, || {
            let slot = different.map_or(Slot::ZERO, |(&slot, _)| slot);
            format!("r{} adopts ballot {ballot}, and holds something else in slot {slot}", replica + 1)
        })
    }

    fn durable(&mut self, replica: usize, lsn: Lsn) -> Checked {
        while self.acceptors[replica].pending.front().is_some_and(|(at, _)| *at <= lsn) {
            let (_, fact) = self.acceptors[replica].pending.pop_front().expect("there is a front");
            self.is_durable(replica, fact)?;
        }
        Ok(())
    }

    fn is_durable(&mut self, replica: usize, fact: Fact) -> Checked {
        let speaks = matches!(fact, Fact::Promised(_) | Fact::Accepted { .. });
        demand(!speaks || self.voters & 1 << replica != 0, Invariant::VotersOnly, || {
            format!("r{} promises or accepts in an epoch in which it does not vote", replica + 1)
        })?;
        let acceptor = &mut self.acceptors[replica];
        acceptor.held.take_in(&fact);
        match fact {
            Fact::Promised(ballot) => acceptor.promised = acceptor.promised.max(ballot),
            Fact::Accepted { ballot, first, batches } => {
                for (slot, batch) in (first.0..).map(Slot).zip(batches.iter()) {
                    self.acceptors[replica].accepted.insert(slot, ballot);
                    self.voted(replica, ballot, slot, batch.clone())?;
                }
            }
            Fact::Learned { slot, .. } => {
                // This ballot stands for every vote: the slot was decided.
                acceptor.accepted.insert(slot, Ballot { round: u64::MAX, replica: ReplicaId(u64::MAX) });
            }
            Fact::Extended { ballot, first, batches } => {
                self.holds(replica, ballot, placed(first, &batches))?;
            }
            Fact::Adopted { ballot, decided, .. } => {
                // The whole sequence is accepted again, in this ballot; decided elements need no vote.
                let kept = acceptor.held.elements.range(decided.next()..);
                let kept: Vec<(Slot, Batch)> = kept.map(|(&slot, batch)| (slot, batch.clone())).collect();
                self.holds(replica, ballot, kept.into_iter())?;
            }
            Fact::Staged { .. } | Fact::Nothing => {}
        }
        Ok(())
    }

    /// A replica has durably accepted these elements of a sequence.
    fn holds(
        &mut self,
        replica: usize,
        ballot: Ballot,
        mut elements: impl Iterator<Item = (Slot, Batch)>,
    ) -> Checked {
        elements.try_for_each(|(slot, batch)| {
            self.acceptors[replica].accepted.insert(slot, ballot);
            self.voted(replica, ballot, slot, batch)
        })
    }

    fn voted(&mut self, replica: usize, ballot: Ballot, slot: Slot, batch: Batch) -> Checked {
        if let Some(estimates) = &mut self.estimates {
            // What is decided, a quorum holds at some moment, and from then on.
            if estimates.hold(replica, ballot, slot, &batch)? {
                self.slots.entry(slot).or_default().chosen = Some((Ballot::ZERO, batch));
            }
            return Ok(());
        }
        let proposed = self.slots.entry(slot).or_default();
        let (known, votes) = proposed.ballots.entry(ballot).or_insert_with(|| (batch.clone(), 0));
        demand(*known == batch, Invariant::OneProposal, || {
            format!("slot {slot} has two different batches in ballot {ballot}")
        })?;
        *votes |= 1 << replica;
        // A leader's own acceptance is not always sent to another replica.
        if let Some((chosen_in, chosen)) = &proposed.chosen {
            demand(ballot < *chosen_in || *chosen == batch, Invariant::ChosenStays, || {
                format!(
                    "slot {slot} was chosen in ballot {chosen_in}; r{} accepts something else in ballot {ballot}",
                    replica + 1
                )
            })?;
        }
        let (_, votes) = &proposed.ballots[&ballot];
        if votes.count_ones() < self.quorum {
            return Ok(());
        }
        let chosen = proposed.chosen.as_ref();
        demand(chosen.is_none_or(|(_, chosen)| *chosen == batch), Invariant::Agreement, || {
            format!("two different batches are chosen for slot {slot}, one of them in ballot {ballot}")
        })?;
        // The last vote of a quorum may come after a higher ballot has decided the same batch: then both
        // ballots decided it.
        if chosen.is_some_and(|(chosen_in, _)| *chosen_in <= ballot) {
            return Ok(());
        }
        proposed.chosen = Some((ballot, batch.clone()));
        let mut later =
            proposed.ballots.range((std::ops::Bound::Excluded(ballot), std::ops::Bound::Unbounded));
        demand(later.all(|(_, (proposal, _))| *proposal == batch), Invariant::ChosenStays, || {
            format!("slot {slot}: chosen in ballot {ballot}, but something else was proposed in a later one")
        })
    }

    fn restarted(&mut self, replica: usize, lost: bool) {
        let acceptor = &mut self.acceptors[replica];
        acceptor.pending.clear();
        if lost {
            *acceptor = Acceptor::default();
        }
        // The records, in their order, determine what a sequence holds.
        acceptor.held = Held::default();
        acceptor.latest = Held::default();
    }

    fn chosen(&self, slot: Slot) -> Option<&Batch> {
        self.slots.get(&slot)?.chosen.as_ref().map(|(_, batch)| batch)
    }

    fn said(
        &mut self,
        replica: usize,
        id: ReplicaId,
        life: u64,
        claim: &Claim<'_>,
        decided: Slot,
    ) -> Checked {
        match claim {
            // A replica that lost its log may try again in a ballot in which it never led.
            Claim::Candidate(ballot) => owns(id, *ballot),
            Claim::Leads { ballot, decided: announced } => {
                self.speaks_in(id, life, *ballot)?;
                self.announces(id, *ballot, *announced, decided)
            }
            Claim::Propose { ballot, slot, batch, decided: announced } => {
                self.speaks_in(id, life, *ballot)?;
                self.announces(id, *ballot, *announced, decided)?;
                self.proposed(*ballot, *slot, batch)
            }
            Claim::Decided { ballot, first, last } => {
                (first.0..=last.0).try_for_each(|slot| self.is_decided_in(id, *ballot, Slot(slot)))
            }
            Claim::Vote { ballot, slot } => self.vote_leaves(replica, id, *ballot, *slot),
            Claim::Told { promised, ballot, slot, batch } => {
                self.told_leaves(replica, id, (*promised, *ballot), *slot, batch)
            }
            Claim::Estimate { promised, ballot, slot, batch } => {
                self.follows(replica, id, *promised)?;
                self.estimate_leaves(replica, id, (*promised, *ballot), *slot, batch)
            }
            Claim::VoteThrough { ballot, last } => {
                self.follows(replica, id, *ballot)?;
                // A decided slot needs no vote any more.
                (decided.0 + 1..=last.0)
                    .try_for_each(|slot| self.vote_leaves(replica, id, *ballot, Slot(slot)))
            }
            Claim::PromiseSequence { ballot, has } => {
                self.promises_prefix(id, *ballot, has.decided, decided)?;
                self.sequence_promise_leaves(replica, id, *ballot, *has)
            }
            Claim::Promise { ballot, from, decided: own, next, accepted } => {
                self.promises_prefix(id, *ballot, *own, decided)?;
                self.promise_leaves(replica, id, *ballot, (*from, *next, *own), accepted)
            }
        }
    }

    /// A leader says in its ballot what is decided.
    fn announces(&mut self, id: ReplicaId, ballot: Ballot, announced: Slot, decided: Slot) -> Checked {
        self.is_decided(id, announced, decided)?;
        let known = self.announced.entry(ballot).or_default();
        let news = known.0 + 1..=announced.0;
        *known = announced.max(*known);
        for slot in news.map(Slot) {
            self.is_from_below(id, ballot, slot)?;
            let Some(proposed) = self.slots.get(&slot) else { continue };
            let own = proposed.ballots.get(&ballot).map(|(batch, _)| batch);
            self.is_announced_truly(ballot, slot, own)?;
        }
        Ok(())
    }

    /// Checks that a slot was decided with what a ballot proposed.
    fn is_decided_in(&self, id: ReplicaId, ballot: Ballot, slot: Slot) -> Checked {
        demand(self.chosen(slot).is_some(), Invariant::AnnouncedDecided, || {
            format!("{id} says in ballot {ballot} that slot {slot} is decided, and it is not")
        })?;
        let own = self.slots.get(&slot).and_then(|proposed| proposed.ballots.get(&ballot));
        self.is_announced_truly(ballot, slot, own.map(|(batch, _)| batch))
    }

    /// A promise says what is decided.
    fn promises_prefix(&mut self, id: ReplicaId, ballot: Ballot, prefix: Slot, decided: Slot) -> Checked {
        self.is_decided(id, prefix, decided)?;
        let known = self.promised.entry(ballot).or_default();
        let mut news = known.0 + 1..=prefix.0;
        *known = prefix.max(*known);
        news.try_for_each(|slot| self.is_from_below(id, ballot, Slot(slot)))
    }

    /// Checks that a replica that acts in a ballot knows of no decision in a higher one.
    fn is_from_below(&self, id: ReplicaId, ballot: Ballot, slot: Slot) -> Checked {
        let chosen = self.slots.get(&slot).and_then(|proposed| proposed.chosen.as_ref());
        let above = chosen.filter(|(chosen_in, _)| *chosen_in > ballot);
        demand(above.is_none(), Invariant::NothingFromAbove, || {
            let chosen_in = above.map_or(Ballot::ZERO, |(chosen_in, _)| *chosen_in);
            format!("{id} says in ballot {ballot} that slot {slot} is decided; ballot {chosen_in} decided it")
        })
    }

    /// Checks what a ballot proposed in a slot that its leader says is decided.
    fn is_announced_truly(&self, ballot: Ballot, slot: Slot, proposed: Option<&Batch>) -> Checked {
        let (Some(proposed), Some(chosen)) = (proposed, self.chosen(slot)) else { return Ok(()) };
        demand(proposed == chosen, Invariant::AnnouncedIsProposed, || {
            format!(
                "slot {slot} is announced in ballot {ballot}, which proposed something else than was chosen"
            )
        })
    }

    /// Checks that an announced slot is decided. After the end of an epoch its protocol may decide further
    /// slots for a while, which no replica delivers.
    fn is_decided(&self, id: ReplicaId, announced: Slot, decided: Slot) -> Checked {
        let void = |slot: u64| self.ended && self.chosen(Slot(slot)).is_some();
        let known = (decided.next().0..=announced.0).all(void);
        demand(known, Invariant::AnnouncedDecided, || {
            format!("{id} announces slots through {announced}; only those through {decided} are decided")
        })
    }

    fn speaks_in(&mut self, id: ReplicaId, life: u64, ballot: Ballot) -> Checked {
        owns(id, ballot)?;
        let owner = *self.lives.entry(ballot).or_insert(life);
        demand(owner == life, Invariant::OneLeader, || {
            format!("{id} leads in ballot {ballot} in life {life}, and did so in life {owner}")
        })
    }

    fn proposed(&mut self, ballot: Ballot, slot: Slot, batch: &Batch) -> Checked {
        let proposed = self.slots.entry(slot).or_default();
        if let Some((chosen_in, chosen)) = &proposed.chosen {
            demand(ballot < *chosen_in || chosen == batch, Invariant::ChosenStays, || {
                format!(
                    "slot {slot} was chosen in ballot {chosen_in}; ballot {ballot} proposes something else"
                )
            })?;
        }
        let (known, _) = proposed.ballots.entry(ballot).or_insert_with(|| (batch.clone(), 0));
        demand(known == batch, Invariant::OneProposal, || {
            format!("two different batches are proposed for slot {slot} in ballot {ballot}")
        })?;
        let announced = self.announced.get(&ballot).is_some_and(|&through| slot <= through);
        if announced { self.is_announced_truly(ballot, slot, Some(batch)) } else { Ok(()) }
    }

    /// A replica sends a message as a follower of a ballot.
    fn follows(&mut self, replica: usize, id: ReplicaId, ballot: Ballot) -> Checked {
        let acceptor = &mut self.acceptors[replica];
        demand(ballot >= acceptor.told, Invariant::PromiseKept, || {
            format!("{id} votes in ballot {ballot}, but has told of ballot {}", acceptor.told)
        })?;
        demand(acceptor.promised >= ballot, Invariant::DurableBeforePromise, || {
            format!("{id} votes in ballot {ballot}; its log promises {} only", acceptor.promised)
        })?;
        acceptor.told = ballot;
        Ok(())
    }

    fn vote_leaves(&mut self, replica: usize, id: ReplicaId, ballot: Ballot, slot: Slot) -> Checked {
        self.follows(replica, id, ballot)?;
        let chosen = self.chosen(slot).is_some();
        let acceptor = &mut self.acceptors[replica];
        if chosen {
            // Then a vote changes nothing any more, and needs no record of its own.
            return Ok(());
        }
        let durable = acceptor.accepted.get(&slot).copied().unwrap_or_default();
        demand(durable >= ballot, Invariant::DurableBeforePromise, || {
            format!("{id} votes for slot {slot} in ballot {ballot}; its log holds ballot {durable} there")
        })?;
        acceptor.told_votes.insert(slot, ballot);
        Ok(())
    }

    /// A vote is told again, with what was promised since. The value is what its ballot proposed.
    fn told_leaves(
        &mut self,
        replica: usize,
        id: ReplicaId,
        (promised, ballot): (Ballot, Ballot),
        slot: Slot,
        batch: &Batch,
    ) -> Checked {
        let proposed = self.slots.get(&slot).and_then(|proposed| proposed.ballots.get(&ballot));
        demand(proposed.is_none_or(|(known, _)| known == batch), Invariant::OneProposal, || {
            format!("{id} tells another batch for slot {slot} than ballot {ballot} proposed")
        })?;
        let chosen = self.chosen(slot).is_some();
        let acceptor = &mut self.acceptors[replica];
        demand(acceptor.promised >= promised, Invariant::DurableBeforePromise, || {
            format!("{id} tells that it promised {promised}; its log promises {} only", acceptor.promised)
        })?;
        let durable = acceptor.accepted.get(&slot).copied().unwrap_or_default();
        demand(durable >= ballot, Invariant::DurableBeforePromise, || {
            format!(
                "{id} tells a vote for slot {slot} in ballot {ballot}; its log holds ballot {durable} there"
            )
        })?;
        if !chosen {
            let told = acceptor.told_votes.entry(slot).or_default();
            *told = ballot.max(*told);
        }
        Ok(())
    }

    /// A replica says its estimate in a round.
    fn estimate_leaves(
        &mut self,
        replica: usize,
        id: ReplicaId,
        (promised, ballot): (Ballot, Ballot),
        slot: Slot,
        batch: &Batch,
    ) -> Checked {
        let is_chosen = self.chosen(slot) == Some(batch);
        let estimates = self.estimates.as_mut().expect("in such an epoch alone replicas say estimates");
        let is_held = estimates.holds(replica, ballot, slot, batch);
        demand(is_held || is_chosen, Invariant::DurableBeforePromise, || {
            format!("{id} says an estimate for slot {slot} of ballot {ballot}; its log does not hold that")
        })?;
        estimates.said(replica, promised.round, slot, batch)
    }

    fn sequence_promise_leaves(
        &mut self,
        replica: usize,
        id: ReplicaId,
        ballot: Ballot,
        has: Extent,
    ) -> Checked {
        self.promise_is_durable(replica, id, ballot)?;
        for (&slot, &voted) in self.acceptors[replica].told_votes.range(has.decided.next()..) {
            demand(has.rank() >= (voted, slot) || has.accepted_in > voted, Invariant::PromiseKept, || {
                format!(
                    "{id} has voted for slot {slot} in ballot {voted}; its promise of {ballot} has slots through {} \
                     in ballot {}",
                    has.last, has.accepted_in
                )
            })?;
        }
        Ok(())
    }

    fn promise_is_durable(&mut self, replica: usize, id: ReplicaId, ballot: Ballot) -> Checked {
        let acceptor = &mut self.acceptors[replica];
        demand(ballot >= acceptor.told, Invariant::PromiseKept, || {
            format!("{id} promises ballot {ballot}, but has told of ballot {}", acceptor.told)
        })?;
        demand(acceptor.promised >= ballot, Invariant::DurableBeforePromise, || {
            format!("{id} promises ballot {ballot}; its log promises {} only", acceptor.promised)
        })?;
        acceptor.told = ballot;
        Ok(())
    }

    fn promise_leaves(
        &mut self,
        replica: usize,
        id: ReplicaId,
        ballot: Ballot,
        (from, next, decided): (Slot, Option<Slot>, Slot),
        accepted: &[(Slot, Ballot, &Batch)],
    ) -> Checked {
        self.promise_is_durable(replica, id, ballot)?;
        let first = from.max(decided.next());
        let acceptor = &self.acceptors[replica];
        for (&slot, &voted) in acceptor.told_votes.range(first..) {
            if next.is_some_and(|next| slot >= next) {
                break;
            }
            let reported = accepted.iter().find(|(at, ..)| *at == slot);
            let holds = match reported {
                Some((_, in_ballot, _)) if *in_ballot >= voted => true,
                // What was chosen meanwhile may come from an older ballot: it is the same batch.
                Some((_, _, batch)) => self.chosen(slot) == Some(batch),
                None => false,
            };
            demand(holds, Invariant::PromiseKept, || {
                format!(
                    "{id} has voted for slot {slot} in ballot {voted}; its promise of {ballot} reports {}",
                    reported.map_or("nothing".to_owned(), |(_, ballot, _)| format!("ballot {ballot}"))
                )
            })?;
        }
        Ok(())
    }
}

fn owns(id: ReplicaId, ballot: Ballot) -> Checked {
    demand(ballot.replica == id, Invariant::OneLeader, || format!("{id} speaks in ballot {ballot}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use synod_consensus::{Options, ProtocolKind, kernel_paxos::Record};
    use synod_wire::BatchBuilder;

    const R2: ReplicaId = ReplicaId(2);

    fn ballot(round: u64) -> Ballot {
        Ballot { round, replica: ReplicaId(1) }
    }

    fn batch(text: &str) -> Batch {
        let mut builder = BatchBuilder::new();
        builder.push(synod_wire::SessionId(1), 1, 1, text.as_bytes());
        builder.finish()
    }

    /// The votes of three replicas, of which the second one has appended a promise and a vote.
    fn votes() -> (Votes, Epoch) {
        let group = Group::of(&Options::of(ProtocolKind::KernelPaxos), (1..=3).map(ReplicaId));
        let mut votes = Votes::new(3);
        votes.epoch_begins(&group);
        let accepted =
            Record::Accepted { ballot: ballot(1), slot: Slot(1), decided: Slot::ZERO, accepted: batch("a") };
        for (lsn, record) in
            [(1, Record::Promised(ballot(1))), (2, accepted), (3, Record::Promised(ballot(3)))]
        {
            let record = LogRecord::Protocol { epoch: group.epoch, record: record.into() };
            votes.appended(1, Lsn(lsn), &record).unwrap();
        }
        (votes, group.epoch)
    }

    #[test]
    fn a_vote_that_is_told_again_waits_for_its_record_and_for_that_of_the_promise() {
        let told = |votes: &mut Votes, epoch, batch: &Batch| {
            let claim = Claim::Told { promised: ballot(3), ballot: ballot(1), slot: Slot(1), batch };
            votes.said(epoch, 1, R2, 1, &claim, Slot::ZERO).map_err(|violation| violation.invariant)
        };
        let (mut votes, epoch) = votes();
        for durable in 0..3 {
            votes.durable(1, Lsn(durable)).unwrap();
            assert_eq!(
                told(&mut votes, epoch, &batch("a")),
                Err(Invariant::DurableBeforePromise),
                "{durable}"
            );
        }
        votes.durable(1, Lsn(3)).unwrap();
        assert_eq!(told(&mut votes, epoch, &batch("b")), Err(Invariant::OneProposal));
        assert_eq!(told(&mut votes, epoch, &batch("a")), Ok(()));
        // What was told binds as a vote does.
        let nothing = Claim::Promise {
            ballot: ballot(3),
            from: Slot(1),
            decided: Slot::ZERO,
            next: None,
            accepted: Vec::new(),
        };
        let promised = votes.said(epoch, 1, R2, 1, &nothing, Slot::ZERO);
        assert_eq!(promised.map_err(|violation| violation.invariant), Err(Invariant::PromiseKept));
    }
}

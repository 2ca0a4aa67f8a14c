//! Checks replicas that lost their logs: whether they are silent, and, once they vote again, whether promises
//! still bind and the others remember.
//!
//! - **Silence.** In an epoch that had begun when it lost its log, and in which an earlier life may have
//!   voted, a replica sends only the questions that it must ask in order to vote again.
//!
//! Only MultiPaxos lets such a replica vote again in the same epoch; docs/recovery-without-a-log.md says how, and why
//! it may:
//!
//! - **Answers of the latest life.** When it votes again, n - q + 1 others have answered it, each in the
//!   latest life that it knows of, where q is the size of a quorum of the n voters.
//!
//! Two statements of the argument are checked literally, whatever a protocol itself counts:
//!
//! - **Promises bind.** When a candidate begins to lead, a quorum has promised its ballot, each replica in
//!   full and in one life. From then on each replica of that quorum remembers it, does not vote, or has
//!   promised as much again.
//! - **Lives are remembered.** When a replica votes again in a new life, and from then on, n - q + 1 others know of
//!   that life or do not vote.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use synod_consensus::{Claim, Message, Recollection, Recovery};
use synod_replica::{Group, LogRecord};
use synod_wire::{Ballot, Epoch, Incarnation, Lsn, ReplicaId, Slot};

use super::invariant::{Checked, Invariant, demand};

/// The messages that replicas without logs may send. Replicas are named by index.
#[derive(Debug)]
pub struct Memory {
    replicas: Vec<Lives>,
    epochs: BTreeMap<Epoch, EpochMemory>,
}

#[derive(Debug, Default)]
struct Lives {
    /// Its present or last life.
    present: u64,
    /// The latest life that began without a whole log; 0 if there was none.
    forgot: u64,
    /// The last record that this life found. Records through it that say that the log is whole are not true any more.
    found: Lsn,
    /// What it has written and is not durable yet.
    pending: VecDeque<(Lsn, Epoch, Recollection)>,
}

impl Memory {
    /// The memory of at most this many replicas.
    #[must_use]
    pub fn new(replicas: usize) -> Memory {
        Memory { replicas: (0..replicas).map(|_| Lives::default()).collect(), epochs: BTreeMap::new() }
    }

    /// A replica is in an epoch of this group.
    pub fn epoch_begins(&mut self, group: &Group) {
        let replicas = self.replicas.len();
        self.epochs.entry(group.epoch).or_insert_with(|| EpochMemory::new(replicas, group));
    }

    fn epoch(&mut self, epoch: Epoch) -> &mut EpochMemory {
        self.epochs.get_mut(&epoch).expect("an epoch begins before anything happens in it")
    }

    /// A replica appends a record.
    pub fn appended(&mut self, replica: usize, lsn: Lsn, record: &LogRecord) -> Checked {
        let Some((epoch, record)) = of_epoch(record) else { return Ok(()) };
        let whole = matches!(record, Recollection::Whole(true));
        self.replicas[replica].pending.push_back((lsn, epoch, record));
        let epoch = self.epoch(epoch);
        if whole && std::mem::take(&mut epoch.voters[replica].silent) {
            // Its messages from now on rest on older records, or wait for this one.
            return epoch.was_answered(replica);
        }
        Ok(())
    }

    /// A replica's records through `lsn` are durable.
    pub fn durable(&mut self, replica: usize, lsn: Lsn) -> Checked {
        let lives = &mut self.replicas[replica];
        let life = lives.present;
        let due = lives.pending.iter().take_while(|(at, ..)| *at <= lsn).count();
        let due: Vec<_> = lives.pending.drain(..due).collect();
        due.into_iter().try_for_each(|(_, epoch, record)| self.remembers(epoch, replica, life, record))
    }

    /// A replica starts with these durable records. `amnesia` means that others may be missing.
    pub fn restarted(
        &mut self,
        replica: usize,
        life: u64,
        records: impl Iterator<Item = (Lsn, LogRecord)>,
        amnesia: bool,
    ) -> Checked {
        let lives = &mut self.replicas[replica];
        lives.pending.clear();
        let before = std::mem::replace(&mut lives.present, life);
        for voter in self.epochs.values_mut().map(|epoch| &mut epoch.voters[replica]) {
            voter.silent = voter.forgetful;
            voter.answers.clear();
        }
        if amnesia {
            (lives.forgot, lives.found) = (life, Lsn::ZERO);
            self.epochs.values_mut().for_each(|epoch| epoch.voters[replica].forget());
        }
        let records: Vec<_> = records.collect();
        if let Some((last, _)) = records.last().filter(|_| amnesia) {
            self.replicas[replica].found = *last;
        }
        // A prefix of what was not durable at the crash has become so.
        let mut whole = BTreeMap::new();
        for (lsn, record) in records {
            match of_epoch(&record) {
                Some((_, Recollection::Whole(true))) if lsn <= self.replicas[replica].found => {}
                Some((epoch, Recollection::Whole(is))) => _ = whole.insert(epoch, is),
                Some((epoch, record)) => self.remembers(epoch, replica, before, record)?,
                None => {}
            }
        }
        let mut last = whole.into_iter().map(|(epoch, is)| (epoch, Recollection::Whole(is)));
        last.try_for_each(|(epoch, record)| self.remembers(epoch, replica, before, record))
    }

    /// A replica remembers this from now on.
    fn remembers(&mut self, epoch: Epoch, replica: usize, life: u64, what: Recollection) -> Checked {
        let Memory { replicas, epochs } = self;
        let epoch = epochs.get_mut(&epoch).expect("an epoch begins before anything happens in it");
        let voter = &mut epoch.voters[replica];
        match what {
            Recollection::Promised(ballot) => voter.promised = voter.promised.max(ballot),
            Recollection::Lives(lives) => voter.lives = lives.into_iter().collect(),
            Recollection::Whole(false) => (voter.forgetful, voter.silent) = (true, true),
            Recollection::Whole(true) if voter.forgetful => {
                (voter.forgetful, voter.silent, voter.recovered) = (false, false, Some(life));
                return epoch.votes_again(replica, replicas);
            }
            Recollection::Whole(true) => {}
        }
        Ok(())
    }

    /// A replica sends a message in an epoch.
    pub fn said(&mut self, epoch: Epoch, replica: usize, message: &Message, claims: &[Claim<'_>]) -> Checked {
        let Memory { replicas, epochs } = self;
        let votes = epochs.get_mut(&epoch).expect("an epoch begins before anything happens in it");
        let recovery = message.body().recovery();
        // What it says of batches that it holds rests on no promise and no vote.
        let of_batches = matches!(message, Message::Dissemination(_));
        let may_speak =
            !votes.voters[replica].silent || of_batches || matches!(recovery, Some(Recovery::Asks));
        demand(may_speak, Invariant::SilentAmnesia, || {
            format!("r{} has lost its log, and speaks in epoch {epoch}", replica + 1)
        })?;
        for claim in claims {
            match claim {
                Claim::Candidate(ballot) => votes.asks(*ballot, replicas[replica].present, recovery),
                Claim::Leads { ballot, .. } | Claim::Propose { ballot, .. } => {
                    votes.leads(*ballot, replica, replicas)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// A message of a replica arrives at another one.
    pub fn arrives(&mut self, epoch: Epoch, from: usize, to: usize, message: &Message) {
        let recovery = message.body().recovery();
        if let Some(Recovery::Answers { asker, life }) = recovery
            && asker.0 == self.replicas[to].present
        {
            let known = self.epoch(epoch).voters[to].answers.entry(from).or_insert(life);
            *known = life.max(*known);
        }
        if let Some(Recovery::Page { ballot, first, next, life }) = recovery
            && let Some(candidacy) = self.epoch(epoch).ballots.get_mut(&ballot)
            && candidacy.counted.is_none()
        {
            candidacy.pages.entry((from, life.0)).or_default().insert((first, next));
        }
    }
}

fn of_epoch(record: &LogRecord) -> Option<(Epoch, Recollection)> {
    match record {
        LogRecord::Protocol { epoch, record } => record.body().recollection().map(|record| (*epoch, record)),
        LogRecord::Entered { group, amnesia: true } => Some((group.epoch, Recollection::Whole(false))),
        _ => None,
    }
}

/// What one replica remembers of an epoch.
#[derive(Debug, Default)]
struct Voter {
    promised: Ballot,
    /// The lives of others.
    lives: BTreeMap<ReplicaId, Incarnation>,
    /// Whether it lost its log, and has not durably begun to vote again.
    forgetful: bool,
    /// Whether it has not even written that it votes again.
    silent: bool,
    /// The replicas that have told this life what it must know in order to vote again, each with the latest
    /// of its lives.
    answers: BTreeMap<usize, Incarnation>,
    /// The life in which it began to vote again.
    recovered: Option<u64>,
}

impl Voter {
    fn forget(&mut self) {
        *self = Voter { forgetful: true, silent: true, ..Voter::default() };
    }
}

/// For each page, where it begins, and where the next one does.
type Pages = BTreeSet<(Slot, Option<Slot>)>;

/// A candidacy: how a ballot came to have a leader.
#[derive(Debug)]
struct Candidacy {
    /// The life in which its owner asked for promises. (A replica that lost its log may do so again if it never led.)
    life: u64,
    /// The first slot that it asked about.
    first: Slot,
    /// The pages that have arrived from a replica in one of its lives.
    pages: BTreeMap<(usize, u64), Pages>,
    /// Once its owner leads: the replicas that had promised in full, and in which life.
    counted: Option<BTreeMap<usize, u64>>,
}

impl Candidacy {
    /// Whether these pages are a complete promise.
    fn is_whole(&self, pages: &Pages) -> bool {
        // Each page begins where an earlier one says that the next one does.
        let mut reached = BTreeSet::from([self.first]);
        for (first, next) in pages {
            match next {
                _ if !reached.contains(first) => {}
                None => return true,
                Some(next) => _ = reached.insert(*next),
            }
        }
        false
    }
}

#[derive(Debug)]
struct EpochMemory {
    group: Group,
    ballots: BTreeMap<Ballot, Candidacy>,
    /// By index, including replicas that do not vote.
    voters: Vec<Voter>,
}

impl EpochMemory {
    fn new(replicas: usize, group: &Group) -> EpochMemory {
        let voters = (0..replicas).map(|_| Voter::default()).collect();
        EpochMemory { group: group.clone(), ballots: BTreeMap::new(), voters }
    }

    fn quorum(&self) -> usize {
        self.group.voters().count() / 2 + 1
    }

    fn asks(&mut self, ballot: Ballot, life: u64, question: Option<Recovery>) {
        if let Some(Recovery::PageWanted { first }) = question
            && self.ballots.get(&ballot).is_none_or(|candidacy| candidacy.life != life)
        {
            // The first page is the one that it asks for first.
            let candidacy = Candidacy { life, first, pages: BTreeMap::new(), counted: None };
            self.ballots.insert(ballot, candidacy);
        }
    }

    fn leads(&mut self, ballot: Ballot, owner: usize, replicas: &[Lives]) -> Checked {
        let Some(candidacy) = self.ballots.get_mut(&ballot).filter(|candidacy| candidacy.counted.is_none())
        else {
            return Ok(());
        };
        let pages = std::mem::take(&mut candidacy.pages);
        let whole = pages.iter().filter(|(_, pages)| candidacy.is_whole(pages));
        // Of several lives of a replica that promised in full, the latest counts.
        let mut counted: BTreeMap<usize, u64> = whole.map(|(&(replica, life), _)| (replica, life)).collect();
        counted.insert(owner, candidacy.life);
        candidacy.counted = Some(counted);
        self.binds(ballot, replicas)
    }

    /// The replicas whose promises made a ballot's owner lead still form a quorum.
    fn binds(&self, ballot: Ballot, replicas: &[Lives]) -> Checked {
        let Some(counted) = &self.ballots[&ballot].counted else { return Ok(()) };
        let bound = |&(&replica, &life): &(&usize, &u64)| {
            let voter = &self.voters[replica];
            life >= replicas[replica].forgot || voter.forgetful || voter.promised >= ballot
        };
        let bound: Vec<String> =
            counted.iter().filter(bound).map(|(replica, _)| format!("r{}", replica + 1)).collect();
        demand(bound.len() >= self.quorum(), Invariant::PromiseBinds, || {
            format!(
                "{} leads in ballot {ballot}; only [{}] promised it, each in full and in one life, and are still bound",
                ballot.replica,
                bound.join(" ")
            )
        })
    }

    /// A replica that had lost its log has enough answers to vote again.
    fn was_answered(&self, replica: usize) -> Checked {
        let voter = &self.voters[replica];
        let latest = |(from, life): &(&usize, &Incarnation)| {
            voter.lives.get(&ReplicaId(**from as u64 + 1)).is_none_or(|known| *life >= known)
        };
        let answered = voter.answers.iter().filter(latest).count();
        let enough = self.group.voters().count() - self.quorum() + 1;
        demand(answered >= enough, Invariant::LatestLifeAnswers, || {
            format!(
                "r{} votes again with answers {:?}; it knows of the lives {:?}",
                replica + 1,
                voter.answers,
                voter.lives
            )
        })
    }

    /// A replica that had lost its log votes again.
    fn votes_again(&self, replica: usize, replicas: &[Lives]) -> Checked {
        let above = (std::ops::Bound::Excluded(self.voters[replica].promised), std::ops::Bound::Unbounded);
        self.ballots.range(above).try_for_each(|(&ballot, _)| self.binds(ballot, replicas))?;
        (0..self.voters.len()).try_for_each(|replica| self.is_remembered(replica))
    }

    /// Enough others know the life in which a replica votes again.
    fn is_remembered(&self, of: usize) -> Checked {
        let Some(life) = self.voters[of].recovered else { return Ok(()) };
        let id = ReplicaId(of as u64 + 1);
        let knows = |other: &ReplicaId| {
            let voter = &self.voters[usize::try_from(other.0).expect("a small number") - 1];
            voter.forgetful || voter.lives.get(&id).is_some_and(|known| known.0 >= life)
        };
        let others: Vec<ReplicaId> = self.group.voters().filter(|&other| other != id).filter(knows).collect();
        let enough = self.group.voters().count() - self.quorum() + 1;
        demand(others.len() >= enough, Invariant::LivesRemembered, || {
            format!(
                "{id} votes in life {life} after the loss of its log; of those who vote, only {others:?} know that"
            )
        })
    }
}

//! Starting: from an intact log, or without one.
//!
//! An acceptor that may have forgotten a promise or an accepted value must not vote. Before it votes again, a replica
//! in a new life asks all others (`Recover`), learns which ballot is promised from n - q + 1 of them, promises that,
//! and learns what its leader had proposed. Lives are numbered, and answers and promises of an outdated life do not
//! count. `docs/recovery-without-a-log.md` has the steps and shows why they suffice, for any number of replicas that
//! lose their logs; "Replicas without memory" in docs/operating.md says what an operator does when too many have.
//!
//! (Santos 2012 leaves recovery open, section 16, G8; the idea is that of JPaxos' EpochSS.)

use std::collections::BTreeMap;

use synod_wire::{Ballot, Ballots, Incarnation, Lsn, ReplicaId, Slot, Time};

use super::{AcceptedValue, Acceptor, Message, MultiPaxos, Record, Rules, State, lives::Lives};
use crate::{
    Effects, Members, Options, Proofs, Prove, Restart, election,
    leadership::Leads,
    paxos::{Common, Paxos},
    replay::Replay,
    resend::Resend,
};

/// A replica that must not vote.
#[derive(Clone, Debug)]
pub(super) struct Recovering {
    answers: BTreeMap<ReplicaId, Answer>,
    /// Once enough have answered.
    target: Option<Target>,
    /// Once it is: the record that has to be durable before this replica votes.
    after: Option<Lsn>,
    pub(super) resend: Resend,
}

/// What another replica answered.
#[derive(Clone, Debug)]
struct Answer {
    /// In which life.
    incarnation: Incarnation,
    promised: Ballot,
    /// If it leads in that ballot: its first unproposed slot.
    next_slot: Option<Slot>,
}

/// What a complete set of answers asks of this replica. Any set will do, so the target moves only for a reason. A
/// target that each later answer moved would run away from this replica while the leader goes on proposing.
#[derive(Clone, Copy, Debug)]
struct Target {
    /// The highest ballot that an answer of the set mentions.
    promised: Ballot,
    /// The first slot that its leader had not proposed: everything before it must be learned.
    next_slot: Slot,
}

impl Target {
    /// Whether it takes the place of the one that is held. Slots before that of a lower ballot may never be decided. In
    /// the same ballot a lower slot is an earlier answer of the leader, which comes late and asks for less.
    fn replaces(self, held: Target) -> bool {
        (self.promised, held.next_slot) > (held.promised, self.next_slot)
    }
}

impl Recovering {
    fn new(resend: Resend) -> Recovering {
        Recovering { answers: BTreeMap::new(), target: None, after: None, resend }
    }

    /// Drops what earlier lives answered: those may have forgotten it, so that it does not count. Returns which
    /// replicas have to be asked again.
    fn drop_outlived(&mut self, lives: &Lives, rules: &Rules) -> Vec<ReplicaId> {
        let is_outlived = |&replica: &ReplicaId, answer: &mut Answer| {
            rules.is_outlived(answer.incarnation, lives.latest(replica))
        };
        let outlived = self.answers.extract_if(.., is_outlived);
        let outlived: Vec<ReplicaId> = outlived.map(|(replica, _)| replica).collect();
        if !outlived.is_empty() {
            (self.target, self.after) = (None, None);
        }
        outlived
    }
}

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
            Record::Promised(_) | Record::Lives(_) | Record::Amnesia(_) => {}
        }
    }
}

impl MultiPaxos {
    /// The replica as it is after a start.
    pub(crate) fn start(
        options: Options,
        members: Members,
        restart: Restart,
        now: Time,
        effects: &mut Effects,
    ) -> MultiPaxos {
        let election = election::start(&options, members.clone(), &restart, now);
        let before = effects.last_lsn();
        let mut replica = MultiPaxos {
            common: Common::new(options, members, election, restart.base, effects),
            incarnation: restart.incarnation,
            state: State::Follower,
            acceptor: Acceptor::new(restart.base),
            untold: None,
            lives: Lives::default(),
        };
        let born = restart.records.is_empty();
        let amnesia = replica.replay(restart.records, restart.decided, restart.amnesia, effects);
        if born || amnesia {
            effects.append(Record::Amnesia(amnesia).into());
        }
        if !replica.common.rules().may_vote(amnesia) {
            let resend = Resend::first(now, replica.common.options.retransmit_after);
            replica.state = State::Recovering(Recovering::new(resend));
            replica.common.election.restarted(replica.common.promised);
            let peers: Vec<_> = replica.common.members.peers().collect();
            peers.into_iter().for_each(|peer| replica.ask_to_recover(peer, effects));
        } else {
            replica.resume(restart.head_start, now, effects);
        }
        replica.started(now, before, effects);
        replica
    }

    /// Takes in the records of an earlier life. True if this replica may have forgotten something: that life was
    /// still recovering, or records may be missing.
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
            let crate::Record::MultiPaxos(record) = record else { continue };
            match record {
                Record::Promised(ballot) => replay.promised(ballot),
                Record::Accepted { ballot, first, decided, batches } => {
                    replay.accepted(ballot, first, decided, &batches);
                }
                Record::Learned(value) => replay.learned(value),
                Record::Amnesia(forgot) => replay.amnesia(forgot),
                Record::Lives(lives) => self.lives = lives.into_iter().collect(),
            }
        }
        let lost = self.common.replayed(replay.end(known_decided));
        self.deliver(effects);
        lost
    }

    pub(super) fn ask_to_recover(&self, peer: ReplicaId, effects: &mut Effects) {
        effects.send(peer, Message::Recover { incarnation: self.incarnation }, Lsn::ZERO);
    }

    pub(super) fn resend_recover(&mut self, now: Time, effects: &mut Effects) {
        let wait_max = self.common.options.election_timeout;
        let State::Recovering(recovering) = &mut self.state else { return };
        if recovering.resend.is_due(now, wait_max) {
            // Ask everybody again, also those who have answered: they may have begun to lead since, and what an
            // earlier leader had proposed when it answered may never be decided.
            let peers: Vec<_> = self.common.members.peers().collect();
            peers.into_iter().for_each(|peer| self.ask_to_recover(peer, effects));
        }
    }

    /// A peer lost its log and asks what it must know.
    pub(super) fn handle_recover(&mut self, from: ReplicaId, asker: Incarnation, effects: &mut Effects) {
        if !self.lives.is_latest(from, asker) {
            return;
        }
        self.note_lives(&[(from, asker)], effects);
        let next_slot = match &self.state {
            State::Leader(leader) => Some(leader.proposed.next()),
            State::Follower | State::Candidate(_) | State::Recovering(_) => None,
        };
        let (incarnation, promised, lives) = (self.incarnation, self.common.promised, self.lives.list());
        let answer = Message::RecoverAnswer { asker, incarnation, promised, next_slot, lives };
        effects.send(from, answer, effects.last_lsn());
    }

    /// Takes in which lives others live: what earlier ones promised or answered does not count, and they are asked
    /// again.
    pub(super) fn note_lives(&mut self, lives: &[(ReplicaId, Incarnation)], effects: &mut Effects) {
        let me = self.common.members.me();
        let others = lives.iter().filter(|(replica, _)| *replica != me);
        let news = others.filter(|(replica, life)| self.lives.note(*replica, *life)).count();
        if news == 0 {
            return;
        }
        effects.append(Record::Lives(self.lives.list()).into());
        let rules = self.rules();
        match &mut self.state {
            State::Recovering(recovering) => {
                // Before it votes, this has to be durable as well.
                recovering.after = None;
                let outlived = recovering.drop_outlived(&self.lives, &rules);
                outlived.into_iter().for_each(|peer| self.ask_to_recover(peer, effects));
            }
            State::Candidate(candidate) => {
                let outlived = candidate.drop_outlived(&self.lives);
                outlived.into_iter().for_each(|peer| self.ask_for_promise(peer, effects));
            }
            State::Follower | State::Leader(_) => {}
        }
    }

    pub(super) fn handle_while_recovering(
        &mut self,
        now: Time,
        from: ReplicaId,
        message: Message,
        effects: &mut Effects,
    ) {
        match message {
            // Not a vote, and not an answer to a leader that counts who follows it: only what is decided. Nor is a
            // leader believed that is below a ballot which this replica has promised.
            Message::Accept { ballot, decided, .. }
            | Message::Decided { ballot, through: decided }
            | Message::Heartbeat { ballot, decided, .. } => {
                self.common.decided_elsewhere = self.common.decided_elsewhere.max(decided);
                if ballot >= self.common.promised.max(self.common.reported.view.ballot) {
                    self.common.heard_of_leader(now, ballot, effects);
                }
            }
            Message::Recover { incarnation } => {
                self.note_lives(self.rules().life_heard(from, incarnation).as_slice(), effects);
            }
            Message::RecoverAnswer { asker, incarnation, promised, next_slot, lives }
                if asker == self.incarnation =>
            {
                self.note_lives(&lives, effects);
                self.note_lives(self.rules().life_heard(from, incarnation).as_slice(), effects);
                self.handle_recover_answer(from, Answer { incarnation, promised, next_slot }, effects);
            }
            _ => {}
        }
        self.finish_recovery(now, effects);
    }

    fn handle_recover_answer(&mut self, from: ReplicaId, answer: Answer, effects: &mut Effects) {
        let State::Recovering(recovering) = &mut self.state else { return };
        if !self.lives.is_latest(from, answer.incarnation) {
            return;
        }
        recovering.answers.insert(from, answer);
        let answers = &recovering.answers;
        let answered = self.common.members.those(|id| answers.contains_key(&id));
        let highest = answers.values().map(|answer| answer.promised).max().unwrap_or_default();
        let leader = answers.get(&highest.replica).filter(|answer| answer.promised == highest);
        let Some(next_slot) = leader.and_then(|answer| answer.next_slot) else { return };
        if !self.common.members.meets_quorums(answered) {
            return;
        }
        let target = Target { promised: highest, next_slot };
        if recovering.target.is_none_or(|held| target.replaces(held)) {
            (recovering.target, recovering.after) = (Some(target), None);
        }
        if highest > self.common.promised {
            self.common.promised = highest;
            self.common.promised_lsn = effects.append(Record::Promised(highest).into());
        }
    }

    /// Votes again, if everything is known that has to be.
    pub(super) fn finish_recovery(&mut self, now: Time, effects: &mut Effects) {
        let known = self.decided().next();
        let State::Recovering(recovering) = &mut self.state else { return };
        let Some(target) = recovering.target else { return };
        if known < target.next_slot {
            return;
        }
        // What was learned, the promise, and that this replica was without memory, must survive the next crash.
        let after = *recovering.after.get_or_insert(effects.last_lsn());
        if self.common.durable < after {
            return;
        }
        effects.append(Record::Amnesia(false).into());
        self.state = State::Follower;
        self.common.election.restarted(self.common.promised);
        self.common.election.gave_up(now);
        // It may have heard of a higher ballot meanwhile; the leader that it then knows stays known.
        let heard = self.common.reported.view.ballot;
        if heard > self.common.promised && heard.is_in_reach() {
            self.promise(now, heard, effects);
        }
        self.report_leader(effects);
    }
}

//! Phase 1, in the order in which its messages travel: a candidate asks (`Prepare`), each member promises and tells
//! what it accepted (`Promise`), and with a quorum the candidate coordinates.
//!
//! A promise is for all slots, and a coordinator needs no second one. What it has to ask is what was accepted before:
//! open, for all later slots at once; or for one range of slots after the other (Benz 2013, section 3.1.2), each
//! asked for when the one before is half used up. It proposes in a slot only after a quorum, having promised its
//! ballot, told what it accepted there; docs/ring.md has the argument.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use synod_wire::{Ballot, Batch, ReplicaId, Slot, Time};

use super::{
    Message, Promise, Record, Ring, State,
    coordinator::{Leader, Waiting},
    late::Late,
};
use crate::{
    Effects, Members, ReplicaSet, Role,
    leadership::{Leadership, Leads},
    paxos::Paxos,
    proposer::Phase1Values,
    resend::Resend,
    rules,
};

/// A replica in Phase 1.
#[derive(Clone, Debug)]
pub(super) struct Candidate {
    pub(super) question: Question,
    /// The members that answered questions before.
    answered: BTreeSet<ReplicaId>,
}

/// What the members are asked: what each accepted in some slots.
#[derive(Clone, Debug)]
pub(super) struct Question {
    /// The first slot.
    from: Slot,
    /// The last slot; the last that there is, if the question is open.
    through: Slot,
    /// How far each member is with its answer.
    answers: BTreeMap<ReplicaId, Answer>,
    told: Phase1Values,
    /// The longest decided prefix that an answer mentions.
    decided: Slot,
    resend: Resend,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    /// The page that begins with this slot is still to come.
    Wanted(Slot),
    /// The member told all; and whether it accepted something in slots after these.
    Whole { more: bool },
}

impl Question {
    pub(super) fn resend_at(&self) -> Time {
        self.resend.at()
    }

    /// Takes a page of an answer; returns whether it is the one that was wanted.
    fn takes(&mut self, from: ReplicaId, promise: Promise, rules: &rules::Rules) -> bool {
        let wanted = self.answers.get(&from).copied().unwrap_or(Answer::Wanted(self.from));
        if wanted != Answer::Wanted(promise.from) {
            return false; // It was counted already.
        }
        self.decided = self.decided.max(promise.decided);
        for value in promise.accepted {
            self.told.take(value, |told, held| rules.outranks(told, held));
        }
        let answer = match promise.next {
            Some(next) if next <= self.through => Answer::Wanted(next),
            next => Answer::Whole { more: next.is_some() },
        };
        self.answers.insert(from, answer);
        true
    }

    /// The members that told all, this replica included.
    fn told(&self, members: &Members) -> ReplicaSet {
        let whole = |id| matches!(self.answers.get(&id), Some(Answer::Whole { .. }));
        members.those(|id| id == members.me() || whole(id))
    }

    /// Of these, those that accepted nothing in later slots. `own_more` says whether this replica did.
    fn told_no_more(&self, members: &Members, own_more: bool) -> ReplicaSet {
        let nothing = |id| self.answers.get(&id) == Some(&Answer::Whole { more: false });
        members.those(|id| if id == members.me() { !own_more } else { nothing(id) })
    }
}

impl Ring {
    // The candidate asks.

    /// Promises itself a ballot of its own, and asks all others to promise it.
    pub(super) fn become_candidate(&mut self, now: Time, ballot: Ballot, effects: &mut Effects) {
        self.common.election.tried();
        self.promise(now, ballot, effects);
        let question = self.question(self.decided().next(), now);
        self.state = State::Candidate(Candidate { question, answered: BTreeSet::new() });
        self.ask_all(effects);
    }

    /// A question about the slots from one on: as many as the options say, or all.
    fn question(&self, from: Slot, now: Time) -> Question {
        let count = self.reserve();
        Question {
            from,
            through: if count == u64::MAX { Slot(u64::MAX) } else { Slot(from.0 + count - 1) },
            answers: BTreeMap::new(),
            told: Phase1Values::default(),
            decided: self.decided(),
            resend: Resend::first(now, self.common().options.retransmit_after),
        }
    }

    /// How many slots a question is about: no fewer than may be under way.
    fn reserve(&self) -> u64 {
        let options = &self.common().options;
        options.ring.reserve.map_or(u64::MAX, |slots| u64::from(slots).max(options.window_max as u64))
    }

    /// The question that is not answered yet.
    fn asked(&mut self) -> Option<&mut Question> {
        match &mut self.state {
            State::Candidate(candidate) => Some(&mut candidate.question),
            State::Leader(leader) => leader.reserving.as_mut(),
            State::Follower | State::Recovering | State::Learner(_) => None,
        }
    }

    /// Asks all members.
    fn ask_all(&mut self, effects: &mut Effects) {
        let Some(question) = self.asked() else { return };
        let (from, through) = (question.from, question.through);
        let message = self.prepare(from, through);
        self.common().broadcast(message, self.common().promised_lsn, effects);
    }

    fn prepare(&self, from: Slot, through: Slot) -> Message {
        let ballot = self.common().promised;
        if through == Slot(u64::MAX) {
            Message::Prepare { ballot, from }
        } else {
            Message::PrepareRange { ballot, from, through }
        }
    }

    // A member answers.

    /// A candidate asks for a promise, and for what was accepted in the slots from `first` to `through`.
    pub(super) fn handle_prepare(
        &mut self,
        now: Time,
        from: ReplicaId,
        ballot: Ballot,
        first: Slot,
        through: Slot,
        effects: &mut Effects,
    ) {
        if !self.obeys_prepare(now, from, ballot, first, effects) {
            return;
        }
        let promise = self.promise_page(ballot, first, through);
        effects.send(from, Message::Promise(promise), effects.last_lsn());
    }

    /// Promises a higher ballot: lower ones are not answered any more, and whatever this replica did in one ends.
    pub(super) fn promise(&mut self, now: Time, ballot: Ballot, effects: &mut Effects) {
        debug_assert!(ballot > self.common.promised, "promises only grow");
        // Votes in a lower ballot leave before it is known that there are no more.
        self.send_outgoing(effects);
        self.common.promised = ballot;
        self.late = Late::default();
        if self.is_learner() {
            // It only follows: nobody needs its promise.
            self.common.election.promised(ballot, now);
            return;
        }
        self.common.promised_lsn = effects.append(Record::Promised(ballot).into());
        self.common.election.promised(ballot, now);
        self.step_down(effects);
    }

    /// Gives up leading or trying to.
    pub(super) fn step_down(&mut self, effects: &mut Effects) {
        if let State::Leader(leader) = &mut self.state {
            leader.duties.rounds.fail(effects);
        }
        self.common.progress = Default::default();
        if !matches!(self.role(), Role::Recovering | Role::Learner) {
            self.state = State::Follower;
        }
    }

    /// What this replica accepted in the slots from `first` to `through`, as much as fits a page. The page speaks of
    /// records up to the present end of the log, so it may leave only once they are durable.
    fn promise_page(&self, ballot: Ballot, first: Slot, through: Slot) -> Promise {
        let (accepted, next) = self.acceptor.page(first, through, self.common.options.page_bytes_max);
        Promise { ballot, from: first, decided: self.decided(), accepted, next }
    }

    // The candidate takes the answers.

    /// A member promised, and told a page of what it accepted.
    pub(super) fn handle_promise(
        &mut self,
        now: Time,
        from: ReplicaId,
        promise: Promise,
        effects: &mut Effects,
    ) {
        let rules = self.common().rules();
        let (decided, ballot) = (promise.decided, promise.ballot);
        let ahead_max = self.common().options.accept_ahead_max();
        if ballot != self.common().promised || self.asked().is_none() {
            return;
        }
        let tries = matches!(self.state, State::Candidate(_));
        let Some(question) = self.asked() else { return };
        if !question.takes(from, promise, &rules) {
            return;
        }
        self.common_mut().election.answered(from, now);
        if tries && decided > Slot(self.decided().next().0 + ahead_max) {
            // This replica lags too far to hold what it would have to propose: it catches up, and lets another lead.
            let common = self.common_mut();
            common.decided_elsewhere = common.decided_elsewhere.max(decided);
            return self.give_up(now, effects);
        }
        self.ask_rest(from, effects);
        self.complete_phase_1(now, effects);
    }

    /// Goes on if a quorum has told all that it was asked: begins to lead, or asks about the slots after these, if
    /// something may have been chosen there, which a read would miss.
    pub(super) fn complete_phase_1(&mut self, now: Time, effects: &mut Effects) {
        if self.common().promised_lsn > self.common().durable {
            return;
        }
        let (members, family) = (self.common().members.clone(), self.common().rules());
        let Some(question) = self.asked() else { return };
        if !family.is_promised(&members, question.told(&members)) {
            return;
        }
        let (decided, through) = (question.decided, question.through);
        let own_more = self.acceptor.accepted_from(Slot(through.0.saturating_add(1))).next().is_some();
        let Some(question) = self.asked() else { return };
        let ends = family.is_promised(&members, question.told_no_more(&members, own_more));
        // Slots through `decided` are decided, perhaps where their values were trimmed: nothing is ever proposed there,
        // and what this replica lacks of them comes by catch-up (Benz 2013, A1).
        let decided = decided.max(self.decided());
        self.common_mut().decided_elsewhere = self.common().decided_elsewhere.max(decided);
        let rules = self.rules();
        let (decided, reserved) =
            (rules.proposes_after(decided, self.decided()), rules.reserved(through, ends));
        match (&mut self.state, reserved) {
            (State::Candidate(candidate), None) => {
                let answered = std::mem::take(&mut candidate.question.answers);
                candidate.answered.extend(answered.into_keys());
                let told = std::mem::take(&mut candidate.question.told);
                let next = self.question(through.max(decided).next(), now);
                let State::Candidate(candidate) = &mut self.state else { return };
                candidate.question = Question { told, decided, ..next };
                self.ask_all(effects);
            }
            (State::Candidate(candidate), Some(reserved)) => {
                let told = std::mem::take(&mut candidate.question.told);
                candidate.answered.extend(candidate.question.answers.keys());
                let answered = std::mem::take(&mut candidate.answered);
                let adopted = told.adopted(&self.acceptor, decided, through, &family);
                let waiting = self.in_turn(adopted, VecDeque::new());
                self.begin_to_lead(now, decided, reserved, waiting, answered, effects);
            }
            (State::Leader(leader), _) => {
                let Some(question) = leader.reserving.take() else { return };
                leader.proposed = leader.proposed.max(decided.min(through));
                leader.reserved = through;
                let (proposed, waiting) = (leader.proposed, std::mem::take(&mut leader.waiting));
                let adopted = question.told.adopted(&self.acceptor, proposed, through, &family);
                let adopted = self.unless_under_way(adopted);
                let waiting = self.in_turn(adopted, waiting);
                if let State::Leader(leader) = &mut self.state {
                    leader.waiting = waiting;
                }
                self.send_accepts(now, effects);
                self.reserve_more(now, effects);
            }
            (State::Follower | State::Recovering | State::Learner(_), _) => {}
        }
    }

    /// Begins to lead: slots through `decided` are decided, and what waits goes into the slots after it, none of
    /// which is after `reserved`.
    fn begin_to_lead(
        &mut self,
        now: Time,
        decided: Slot,
        reserved: Slot,
        waiting: VecDeque<Waiting>,
        answered: BTreeSet<ReplicaId>,
        effects: &mut Effects,
    ) {
        let last = Slot(decided.0 + waiting.len() as u64);
        let duties = Leadership::begin(now, self.decided(), last);
        let leader = Leader::begin(now, self.common.promised, duties, (decided, reserved), waiting, answered);
        self.state = State::Leader(Box::new(leader));
        self.common.election.leads(now);
        self.form_ring(now, self.first_order(now), effects);
        // At once: these values belong into these slots, whatever else this burst brings.
        self.send_accepts(now, effects);
        self.lead_on(now, effects);
    }

    /// Of what was accepted in a later range, that which this coordinator has not under way and which may still count.
    /// It began to lead because a quorum had accepted nothing in later slots, so nothing was chosen there in a lower
    /// ballot, and nothing has to be proposed again: a batch that it proposes elsewhere would only take a second slot.
    fn unless_under_way(&mut self, mut adopted: Vec<Option<Batch>>) -> Vec<Option<Batch>> {
        let table = Arc::clone(&self.table);
        let State::Leader(leader) = &mut self.state else { return adopted };
        for value in &mut adopted {
            let id = value.as_ref().and_then(Batch::id);
            if id.is_some_and(|id| table.voids(id) || !leader.takes(id)) {
                *value = None;
            }
        }
        while adopted.last().is_some_and(Option::is_none) {
            adopted.pop();
        }
        adopted
    }

    /// What goes into the next slots: what was accepted in each, or something that waits, or nothing; then the rest of
    /// what waits.
    fn in_turn(&self, accepted: Vec<Option<Batch>>, mut waiting: VecDeque<Waiting>) -> VecDeque<Waiting> {
        let rules = self.common().rules();
        // It is not known which members have its bytes.
        let safe = |batch| Waiting { batch, hops: 0, safe: true };
        let mut adopted = VecDeque::new();
        for value in accepted {
            let other = || waiting.pop_front().unwrap_or_else(|| safe(Batch::noop()));
            adopted.push_back(rules.adopted(value).map_or_else(other, safe));
        }
        adopted.extend(waiting);
        adopted
    }

    /// Asks about the next slots, as a coordinator, if less than half of those that it asked about at a time are left.
    pub(super) fn reserve_more(&mut self, now: Time, effects: &mut Effects) {
        let reserve = self.reserve();
        let State::Leader(leader) = &self.state else { return };
        let used = leader.proposed.max(self.decided());
        if leader.reserving.is_none() && leader.reserved.0.saturating_sub(used.0).saturating_mul(2) < reserve
        {
            let question = self.question(leader.reserved.max(used).next(), now);
            if let State::Leader(leader) = &mut self.state {
                leader.reserving = Some(question);
            }
            self.ask_all(effects);
            self.complete_phase_1(now, effects);
        }
    }

    // Asking again.

    /// Asks again, if it is time, those that have not told all.
    pub(super) fn ask_again(&mut self, now: Time, effects: &mut Effects) {
        let wait_max = self.common().options.election_timeout;
        if self.asked().is_some_and(|question| question.resend.is_due(now, wait_max)) {
            let peers: Vec<ReplicaId> = self.common().members.peers().collect();
            peers.into_iter().for_each(|peer| self.ask(peer, effects));
        }
    }

    /// Asks a member for the page of its promise that is still missing.
    pub(super) fn ask(&mut self, peer: ReplicaId, effects: &mut Effects) {
        let Some(question) = self.asked() else { return };
        let through = question.through;
        let from = match question.answers.get(&peer) {
            None => question.from,
            Some(Answer::Wanted(next)) => *next,
            Some(Answer::Whole { .. }) => return,
        };
        let message = self.prepare(from, through);
        effects.send(peer, message, self.common().promised_lsn);
    }

    /// Asks for the rest of an answer of which a page came.
    fn ask_rest(&mut self, peer: ReplicaId, effects: &mut Effects) {
        let wanted = |question: &mut Question| matches!(question.answers.get(&peer), Some(Answer::Wanted(_)));
        if self.asked().is_some_and(wanted) {
            self.ask(peer, effects);
        }
    }
}

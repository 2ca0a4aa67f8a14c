//! From one epoch to the next; replicas that take no part in ordering.
//!
//! A decided change of voters or of the protocol ends an epoch (Ng 2020, sections 2.4.3 and 4.4); `voters.rs`
//! has the changes of voters that a protocol makes itself, within its epoch. Every replica that delivers the
//! end of an epoch stops the old protocol and, if it takes part in the new epoch, starts the new one after
//! it. `docs/epochs.md` has the argument. Its rules are:
//!
//! - A replica says something in an epoch only after the record that it entered it ([`LogRecord::Entered`]),
//!   and from then on says nothing in an older one.
//! - What the old protocol decides after the end of its epoch is void.
//! - A replica that delivered the change answers messages of the old epoch with how far it is
//!   ([`crate::PeerMessage::Progress`]), and hands out what was decided.
//! - A voter whose birth is not the one that the group names is no voter (`births.rs`).
//! - A voter without memory votes only in an epoch that was begun for its present life ([`crate::Change::Readmit`]),
//!   unless its protocol has a way of its own.
//! - A replica that begins with nothing takes no part before it has met every member with which the group began
//!   ([`crate::Event::MetAll`]).
//!
//! `epochs/restart.rs` has what a restart finds in the log, `epochs/progress.rs` what replicas tell each other.

mod progress;
mod restart;

pub(crate) use progress::{Peer, ProgressReports};

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use synod_consensus::{
    Bug, Control, Input, LeaderView, Members, Record, Restart, Role, Status, VoterSets, election,
};
use synod_wire::{Ballots, Batch, Epoch, Lsn, ReplicaId, Slot, Time};

use crate::{Action, ChangeRequest, Group, LogRecord, Refusal, Replica, RequestError};

/// What a replica knows of epochs.
#[derive(Debug)]
pub(crate) struct KnownEpochs {
    /// The newest epoch that this replica entered. Its protocol runs, or will run once the state is here.
    running: Epoch,
    /// The record that says so. Other replicas hear of the epoch only once it is durable: a removed replica
    /// ends its service when enough of them have gone on permanently.
    entered: Lsn,
    /// The slot with which that epoch began.
    first: Slot,
    /// Records of slots through this one may be gone: a snapshot covered them, which may have been lost since.
    trimmed: Slot,
    /// The records that its protocol wrote in an earlier life, until the protocol runs.
    parked: Vec<Record>,
    /// How many of the first of these were written before a loss, so that others of that time may be missing.
    distrusted: usize,
    /// Whether an earlier life may have said something in that epoch that this life does not remember.
    amnesia: bool,
    /// Whether a delivered change ended the epoch before.
    ended: bool,
    /// The slot that ended the epoch, and the ballots of its slots.
    ended_in: Option<(Slot, Ballots)>,
    /// Whether records are being read: nothing is begun before all of them are.
    replaying: bool,
    /// Whether this replica waits until it has met every member with which the group began, before which
    /// nothing is begun either. Two replicas that know nothing, one of them because it lost its data, could
    /// be a quorum; see `docs/identity.md`.
    waits: bool,
    /// Whether a change was decided that this program does not know: nothing is delivered from there on.
    halted: bool,
    /// Slots through this one are decided at some replica, as other replicas said.
    elsewhere: Slot,
    /// The replicas that spoke in an epoch whose protocol did not run here yet, and were not heard; each with
    /// its last such epoch.
    early: BTreeMap<ReplicaId, Epoch>,
    /// The replicas that have spoken in the epoch that runs here, so that they take part in it.
    met: BTreeSet<ReplicaId>,
}

impl KnownEpochs {
    pub(crate) fn new(group: &Group, amnesia: bool, waits: bool) -> KnownEpochs {
        KnownEpochs {
            running: group.epoch,
            entered: Lsn::ZERO,
            first: group.first,
            trimmed: Slot::ZERO,
            parked: Vec::new(),
            distrusted: 0,
            amnesia,
            ended: false,
            ended_in: None,
            replaying: false,
            waits,
            halted: false,
            elsewhere: Slot::ZERO,
            early: BTreeMap::new(),
            met: BTreeSet::new(),
        }
    }

    /// The newest epoch that this replica entered.
    pub(crate) fn running(&self) -> Epoch {
        self.running
    }

    /// Whether this replica waits until it has met every member with which the group began.
    pub(crate) fn waits(&self) -> bool {
        self.waits
    }

    /// Records that slots through this one are decided at some replica.
    pub(crate) fn hears_of(&mut self, slot: Slot) {
        self.elsewhere = self.elsewhere.max(slot);
    }
}

impl Replica {
    /// The last slot without which the current epoch's protocol cannot run here: the slots through it are
    /// decided, and no record of that protocol holds them.
    fn needed(&self) -> Slot {
        self.known.first.prev().max(self.known.trimmed).max(self.salvaged.last())
    }

    /// The voters, if this replica runs the protocol of the current epoch.
    fn voting(&self) -> Option<Members> {
        let members = self.group.voting(self.me)?;
        if self.has(Bug::RestartUnsettled) {
            let voters = VoterSets::simple(self.group.voters().collect());
            return Some(Members::seen_by(self.me, voters));
        }
        Some(members)
    }

    /// What the current epoch's protocol starts with, from where this replica is.
    fn restart(&self) -> Restart {
        Restart {
            records: Vec::new(),
            base: self.decided.last(),
            base_ballots: self.decided.ballots(),
            begin: self.group.first.prev(),
            decided: self.decided.last(),
            amnesia: self.known.amnesia,
            incarnation: self.incarnation,
            head_start: false,
            delivered: Arc::clone(self.history.delivered()),
            memory: election::Memory::default(),
            is_over: false,
        }
    }

    // From one epoch to the next.

    /// Whether this replica has stopped at or before a slot, because a change was decided that this program does not
    /// know. A replica that went on would apply the changes after it to another group than the others, and would
    /// recognise other quorums.
    pub(crate) fn halts_at(&mut self, slot: Slot, batch: &Batch, actions: &mut Vec<Action>) -> bool {
        if !self.known.halted && ChangeRequest::is_unknown(batch) {
            self.known.halted = true;
            actions.push(Action::UnknownChange { slot });
        }
        self.known.halted
    }

    /// Records the outcome of a decided change, which is the same at all replicas.
    pub(crate) fn change_group(&mut self, changed: Result<Group, Refusal>, actions: &mut Vec<Action>) {
        self.changing.decided();
        let Ok(next) = changed else { return };
        if next.epoch != self.group.epoch {
            self.known.ended = true;
            self.known.ended_in = Some((next.first.prev(), self.decided.ballots()));
            self.decided.begin_epoch();
        }
        self.group = next;
        if !self.known.replaying {
            self.group_changed(actions);
        }
    }

    /// Takes over a later group, which a snapshot brought.
    pub(crate) fn adopt_group(&mut self, now: Time, group: Group, actions: &mut Vec<Action>) {
        self.known.ended |= group.epoch != self.group.epoch;
        if !self.has(Bug::SnapshotOfOldGroup) {
            self.group = group;
        }
        self.group_changed(actions);
        self.watch_salvaged();
        // What the old protocol still wanted is written before the next one begins.
        self.carry_out(now, actions);
        self.begin(now, false);
    }

    fn group_changed(&mut self, actions: &mut Vec<Action>) {
        let known = self.group.known().map(|member| member.id);
        self.catch_up.set_peers(&known.filter(|&id| id != self.me).collect::<Vec<_>>());
        self.reports.group_changed(self.me, &self.group, self.decided.last());
        if let Some(pacing) = &mut self.pacing {
            pacing.restart();
        }
        self.bound_batches();
        actions.push(Action::Group(self.group.clone()));
        if self.group.is_away(self.me) {
            let reads = self.reads.expire(Time::NEVER).into_iter();
            actions.extend(reads.map(|read| Action::ReadFailed { read, error: RequestError::TakesNoPart }));
        }
    }

    /// Enters the epoch that a delivered change began; returns whether there was one. Nothing of the old
    /// protocol may be pending.
    pub(crate) fn enter_next_epoch(&mut self, now: Time, actions: &mut Vec<Action>) -> bool {
        if !std::mem::take(&mut self.known.ended) || self.known.replaying {
            return false;
        }
        let ended_in = self.known.ended_in.take();
        // In the epoch before, a snapshot may have delivered batches that would have been ordered again there.
        self.fail_delivered_unseen(now, actions);
        if self.group.epoch <= self.known.running {
            // This life had lost what led to an epoch that an earlier one entered.
            self.begin(now, false);
            return true;
        }
        self.say_what_ended_it(now, actions);
        let led = self.leads();
        let forgets = self.forgets();
        let for_this_life = !self.is_disowned()
            && self.group.member(self.me).is_some_and(|member| member.readmitted == self.incarnation);
        self.instance.stop();
        self.fail_remote_reads(actions);
        self.known.running = self.group.epoch;
        self.known.first = self.group.first;
        (self.known.parked, self.known.distrusted) = (Vec::new(), 0);
        self.known.met.clear();
        self.known.amnesia = forgets && !for_this_life;
        if let Some((slot, ballots)) = ended_in {
            self.append(LogRecord::Ended { slot, ballots }, actions);
        }
        if !self.has(Bug::EnterUnrecorded) {
            self.write_entered(self.group.clone(), actions);
        }
        self.leader_changed(now, LeaderView::default(), actions);
        self.requests.forget_sent();
        self.reads.start_over();
        self.begin(now, led);
        true
    }

    /// Sends the last message of the old protocol, that the change is decided. Otherwise the others would
    /// miss it, and what they are told in the new epoch, until they are asked again.
    pub(crate) fn say_what_ended_it(&mut self, now: Time, actions: &mut Vec<Action>) {
        if !self.instance.runs() {
            return;
        }
        self.instance.flush(now);
        let (last, epoch) = (self.instance.drain(), self.known.running);
        last.into_iter().for_each(|effect| self.carry_out_one(now, epoch, effect, actions));
    }

    /// Writes that the log may forget slots through this one. If a later snapshot was lost, and this one
    /// takes its place, what that one covered stays forgotten: the last record counts, and must not say less.
    pub(crate) fn write_trimmed(&mut self, slot: Slot, actions: &mut Vec<Action>) {
        self.known.trimmed = self.known.trimmed.max(slot);
        self.append(LogRecord::Trimmed(self.known.trimmed), actions);
    }

    /// The log is about to forget slots through this one. Batches that the present epoch's protocol holds must stay,
    /// though it does not run yet.
    pub(crate) fn keep_parked(&mut self, trimmed: Slot, actions: &mut Vec<Action>) {
        let epoch = self.known.running;
        for parked in &mut self.known.parked {
            if let Record::Dissemination(held) = parked
                && let Some(kept) = held.kept_past(trimmed)
            {
                *held = kept;
                let record = LogRecord::Protocol { epoch, record: parked.clone() };
                actions.push(self.instance.append(record).1);
            }
        }
    }

    fn write_entered(&mut self, group: Group, actions: &mut Vec<Action>) {
        let amnesia = self.known.amnesia;
        self.known.entered = self.append(LogRecord::Entered { group, amnesia }, actions);
    }

    /// Starts the current epoch's protocol, if this replica takes part in it and has the state with which the
    /// epoch began.
    pub(crate) fn begin(&mut self, now: Time, head_start: bool) {
        // A replica without memory that does not vote would not hear from the leader: it fetches what is decided.
        let hears = !self.known.amnesia || self.group.counts(self.me);
        let here = self.group.epoch == self.known.running
            && hears
            && !self.is_disowned()
            && (!self.known.waits || self.has(Bug::VoteBeforeAllMet))
            && (self.decided.last() >= self.needed() || self.has(Bug::EnterTooSoon));
        if !here || self.instance.runs() {
            return;
        }
        let Some(members) = self.voting() else { return };
        if self.view != LeaderView::default() {
            // What others told of the leader may be of a later epoch, and ballots of different epochs do not compare.
            self.instance.forget_leader();
        }
        let mut records = std::mem::take(&mut self.known.parked);
        let distrusted = std::mem::take(&mut self.known.distrusted);
        restart::resolvable(&mut records, distrusted, self.history.delivered(), self.decided.last());
        let restart = Restart { records, head_start, ..self.restart() };
        let options = self.group.options(&self.settings.consensus);
        self.instance.start(&options, members, restart, self.is_backlogged(), now);
    }

    /// Records that every member with which the group began was met, so that this replica may take part.
    pub(crate) fn met_all(&mut self, now: Time, actions: &mut Vec<Action>) {
        if std::mem::take(&mut self.known.waits) {
            self.begin(now, false);
            self.carry_out(now, actions);
        }
    }

    /// Whether this replica may vote in the epoch that it knows: not while an earlier life may have said something
    /// that this one does not know, or while what it knew is still to come from others.
    #[must_use]
    pub fn may_vote(&self) -> bool {
        let unknown = || self.known.amnesia || self.group.votes(self.me);
        !self.is_disowned() && !self.instance.recovers().unwrap_or_else(unknown)
    }

    /// Whether an earlier life may have said something in this epoch that this one does not know.
    pub(crate) fn forgets(&self) -> bool {
        self.is_disowned() || self.instance.recovers().unwrap_or(self.known.amnesia)
    }

    /// The protocol's status, or an equivalent if no protocol runs.
    pub(crate) fn protocol_status(&self) -> Status {
        let elsewhere = self.known.elsewhere;
        match self.instance.status() {
            Some(status) => Status { decided_elsewhere: status.decided_elsewhere.max(elsewhere), ..status },
            None => Status {
                // A voter whose protocol does not run lacks the state with which the epoch began.
                role: if self.group.votes(self.me) { Role::Recovering } else { Role::Learner },
                view: self.view,
                decided: self.decided.last(),
                decided_elsewhere: elsewhere.max(self.decided.last()),
                in_flight: 0,
                waits_for_disk: false,
            },
        }
    }

    /// Records what a peer says was decided in a slot.
    pub(crate) fn learn(
        &mut self,
        now: Time,
        slot: Slot,
        ballots: Ballots,
        batch: Batch,
        actions: &mut Vec<Action>,
    ) {
        if self.is_disowned_by_batch(&batch) {
            self.stop_taking_part(now, actions);
        }
        if self.instance.runs() {
            let voters = self.group.voters_after(slot, &batch).filter(|_| !self.has(Bug::LearnWithoutVoters));
            return self.input(now, Input::Control(Control::Learn { slot, ballots, batch, voters }), actions);
        }
        if slot == self.decided.last().next() && !self.is_backlogged() {
            if !self.has(Bug::LearnUnrecorded) {
                self.append(LogRecord::Learned { slot, ballots, batch: batch.clone() }, actions);
            }
            self.deliver(now, slot, ballots, batch, actions);
            self.carry_out(now, actions);
            self.watch_salvaged();
            self.begin(now, false);
            self.carry_out(now, actions);
            self.take_salvaged(now, actions);
        }
    }
}

//! From one epoch to the next; restarts; replicas that take no part in ordering.
//!
//! A decided change of voters or of the protocol ends an epoch (Ng 2020, sections 2.4.3 and 4.4); `voters.rs`
//! has the changes of voters that a protocol makes itself, within its epoch. Every replica that delivers the
//! end of an epoch stops the old protocol and, if it takes part in the new epoch, starts the new one after
//! it. `docs/epochs.md` has the argument. Its rules are:
//!
//! - A replica says something in an epoch only after the record that it entered it ([`LogRecord::Entered`]),
//!   and from then on says
//!   nothing in an older one.
//! - What the old protocol decides after the end of its epoch is void.
//! - A replica that delivered the change answers messages of the old epoch with how far it is
//!   ([`PeerMessage::Standing`]), and
//!   hands out what was decided.
//! - A voter without memory votes only in an epoch that was begun for its present life ([`Change::Readmit`]),
//!   unless its protocol
//!   has a way of its own.
//! - A replica that begins with nothing takes no part before it has met every member with which the group began
//!   ([`crate::Event::MetAll`]).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use synod_consensus::{
    Bug, Control, Effect, Effects, Input, LeaderView, Link, Members, Record, Restart, Role, Status, VoterSets,
};
use synod_wire::{Ballot, Ballots, Batch, BatchId, CommandKind, Epoch, Keep, Lsn, ReplicaId, Slot, Time};

use crate::{
    Action, Change, ChangeRequest, GROUP_MEMBERS_MAX, Group, LogRecord, PeerMessage, Refusal, Replica,
    StateTransfer, salvage::Salvaged,
};

/// What a replica knows of epochs.
#[derive(Debug)]
pub(crate) struct Known {
    /// The newest epoch that this replica entered. Its protocol runs, or will run once the state is here.
    pub(crate) running: Epoch,
    /// The record that says so. Other replicas hear of the epoch only once it is durable: a removed replica
    /// ends its service when enough of them have gone on permanently.
    entered: Lsn,
    /// The slot with which that epoch began.
    first: Slot,
    /// Records of slots through this one may be gone: a snapshot covered them, which may have been lost since.
    trimmed: Slot,
    /// What this replica's own log holds after slots that it lacks.
    pub(crate) salvaged: Salvaged,
    /// The records that its protocol wrote in an earlier life, until the protocol runs.
    parked: Vec<Record>,
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
    pub(crate) waits: bool,
    /// Slots through this one are decided at some replica, as other replicas said.
    pub(crate) elsewhere: Slot,
    /// The replicas that spoke in an epoch whose protocol did not run here yet, and were not heard; each with
    /// its last such epoch.
    early: BTreeMap<ReplicaId, Epoch>,
    /// The replicas that have spoken in the epoch that runs here, so that they take part in it.
    met: BTreeSet<ReplicaId>,
}

impl Known {
    pub(crate) fn new(group: &Group, amnesia: bool, waits: bool) -> Known {
        Known {
            running: group.epoch,
            entered: Lsn::ZERO,
            first: group.first,
            trimmed: Slot::ZERO,
            salvaged: Salvaged::default(),
            parked: Vec::new(),
            amnesia,
            ended: false,
            ended_in: None,
            replaying: false,
            waits,
            elsewhere: Slot::ZERO,
            early: BTreeMap::new(),
            met: BTreeSet::new(),
        }
    }
}

impl Known {
    /// The last slot without which the current epoch's protocol cannot run here: the slots through it are
    /// decided, and no record of that protocol holds them.
    fn needed(&self) -> Slot {
        self.first.prev().max(self.trimmed).max(self.salvaged.last())
    }
}

/// Which replicas are told how far this one is, and what others told of themselves.
#[derive(Debug, Default)]
pub(crate) struct Audience {
    /// When others were last told, and how far this replica was then.
    told_at: Time,
    told: Slot,
    /// The replicas that were answered a short time ago how far this one is, each with the time.
    answered: BTreeMap<ReplicaId, Time>,
    /// How far learners are.
    pub(crate) learners: BTreeMap<ReplicaId, Learner>,
    /// The learner that got no vote when this replica last asked for one.
    pub(crate) refused: Option<ReplicaId>,
    /// The voters that entered the epoch in which this replica is not a member any more.
    successors: BTreeSet<ReplicaId>,
    retired: bool,
    /// When this replica last asked for a change by itself.
    pub(crate) asked_at: Time,
}

/// How far a learner is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Learner {
    /// The slot through which it has everything that led to its being a learner.
    pub(crate) added: Slot,
    /// How far it last said it is, and when.
    pub(crate) decided: Slot,
    pub(crate) heard: Time,
}

impl Learner {
    /// A learner that was added with this slot, or before it, and has said nothing yet.
    fn new(added: Slot) -> Learner {
        Learner { added, decided: Slot::ZERO, heard: Time::ZERO }
    }
}

impl Audience {
    /// Lets this replica ask again, since it asked for a change too early.
    pub(crate) fn may_ask_again(&mut self) {
        self.asked_at = Time::ZERO;
    }
}

/// Removes the records that cannot be believed where some may be missing, since one of those may have held
/// the last value of a slot: only records that say by themselves what was decided are kept. A record that
/// refers to a batch that is missing says nothing.
fn distrust(by_epoch: &mut BTreeMap<Epoch, Vec<Record>>) {
    for records in by_epoch.values_mut() {
        let mut held: BTreeSet<BatchId> = BTreeSet::new();
        for record in records.iter().filter(|record| matches!(record, Record::Dissemination(_))) {
            record.body().for_each_batch(&mut |_, batch| held.extend(batch.id()));
        }
        records.retain(|record| {
            let mut whole = true;
            record.body().for_each_batch(&mut |_, batch| {
                whole &= !batch.is_reference() || batch.id().is_some_and(|id| held.contains(&id));
            });
            !matches!(record.keep(), Keep::Slot(_)) || record.is_decision() && whole
        });
    }
}

impl Replica {
    // Restarts.

    /// Takes up what earlier lives wrote.
    pub(crate) fn replay(&mut self, now: Time, records: Vec<LogRecord>, actions: &mut Vec<Action>) {
        let mut by_epoch: BTreeMap<Epoch, Vec<Record>> = BTreeMap::new();
        let mut learned: BTreeMap<Slot, (Ballots, Batch)> = BTreeMap::new();
        let mut ended: BTreeMap<Slot, Ballots> = BTreeMap::new();
        let mut entered: Option<Group> = None;
        // The epoch that was entered last, and whether an earlier life may have said something in it that was
        // forgotten.
        let (mut written, mut amnesia) = (Epoch(1), false);
        let forgot = self.known.amnesia;
        for record in records {
            match record {
                LogRecord::Protocol { epoch, record } => {
                    // The protocol itself says if it has learned again what was forgotten.
                    if epoch == written
                        && let Some(lost) = record.amnesia()
                    {
                        amnesia = lost && !self.has(Bug::ForgetParkedAmnesia);
                    }
                    by_epoch.entry(epoch).or_default().push(record);
                }
                LogRecord::Learned { slot, ballots, batch } => {
                    learned.insert(slot, (ballots, batch));
                }
                LogRecord::Entered { group, amnesia: lost } => {
                    if lost {
                        distrust(&mut by_epoch);
                    }
                    (written, amnesia) = (group.epoch, lost);
                    entered = Some(group);
                }
                LogRecord::Decided { epoch, slot, ballots, batch } => {
                    self.known.salvaged.insert(epoch, slot, ballots, batch);
                }
                LogRecord::Ended { slot, ballots } => _ = ended.insert(slot, ballots),
                LogRecord::Trimmed(slot) => self.known.trimmed = self.known.trimmed.max(slot),
            }
        }
        // This holds even if a snapshot is of a later epoch than the one that was entered last: an earlier
        // life may have voted in that later one before its log was lost. Only an epoch that begins for this
        // very life ends that.
        let heeded = written >= self.group.epoch || !self.has(Bug::ForgetAmnesiaBehindSnapshot);
        self.known.amnesia |= amnesia && heeded;
        if let Some(group) = &entered
            && group.epoch >= self.group.epoch
            && !self.has(Bug::RestartInOldEpoch)
        {
            self.known.running = group.epoch;
            self.known.first = group.first;
        }
        if forgot {
            distrust(&mut by_epoch);
        }
        self.known.replaying = true;
        loop {
            let before = self.decided.last();
            loop {
                let (slot, epoch) = (self.decided.last().next(), self.group.epoch);
                let salvaged = || Some(self.known.salvaged.take(slot, epoch)?.into_parts());
                let Some((ballots, batch)) = learned.remove(&slot).or_else(salvaged) else { break };
                let batch = self.as_delivered(batch);
                self.deliver(now, slot, ballots, batch, actions);
            }
            // A lost snapshot may have come from another replica, and have covered other values than the log
            // holds: what it held comes from the other replicas.
            if self.group.epoch < self.known.running
                && self.decided.last() >= self.known.trimmed
                && let Some(records) = by_epoch.get(&self.group.epoch)
            {
                // What was learned is decided, even where an older record of the protocol says something else.
                let learned = learned.range(self.decided.last().next()..).next().map(|(slot, _)| slot.prev());
                let through = self.known.first.prev().min(learned.unwrap_or(Slot(u64::MAX)));
                self.replay_old_epoch(now, records.clone(), through, &ended, actions);
            }
            if self.decided.last() == before {
                break;
            }
        }
        self.known.replaying = false;
        self.known.ended = false;
        if self.group.epoch > self.known.running {
            // The record of entering this epoch is lost, or a crash came before it, but what led to the epoch
            // is not lost.
            self.known.running = self.group.epoch;
            self.known.first = self.group.first;
        }
        self.known.parked = by_epoch.remove(&self.known.running).unwrap_or_default();
        let newest = match entered {
            // What led to that epoch may be lost, or come again from other replicas.
            Some(group) if group.epoch > self.group.epoch => group,
            _ => self.group.clone(),
        };
        if self.group.epoch > written || forgot {
            // Either the snapshot of a peer was installed, and this life is the first to take part after it.
            // Or the log was lost: the new log must say so before this replica enters any epoch, even if it
            // does not vote yet, or the next life would take its memory for whole.
            self.write_entered(newest, actions);
        }
        if let Some(snapshot) = self.snapshots.last().filter(|last| last.slot > self.known.trimmed) {
            // A crash came between the snapshot and this record. If the snapshot is from a peer, the log does
            // not hold what it covers; and the snapshot may be lost later.
            self.write_trimmed(snapshot.slot, actions);
        }
        self.group_changed(actions);
        self.watch_salvaged();
        self.known.elsewhere = self.known.elsewhere.max(self.known.salvaged.last());
        self.begin(now, false);
        self.carry_out(now, actions);
    }

    /// Delivers what an epoch that is over decided, as far as the log tells, through a slot. Everything
    /// before the newest epoch was decided with the values that the log holds, unless something else was
    /// learned. The protocol's states are gone by now, so what it says of ballots may be too low; `ended` has
    /// the ballots at the end of each epoch.
    fn replay_old_epoch(
        &mut self,
        now: Time,
        records: Vec<Record>,
        through: Slot,
        ended: &BTreeMap<Slot, Ballots>,
        actions: &mut Vec<Action>,
    ) {
        let epoch = self.group.epoch;
        let Some(members) = self.voting() else { return };
        let mut unwritten = Effects::new(Lsn::ZERO);
        let restart = Restart { records, decided: through, amnesia: false, is_over: true, ..self.restart() };
        // The instance is not needed, only what it delivers.
        drop(self.group.options(&self.settings.consensus).start(members, restart, now, &mut unwritten));
        for effect in unwritten.drain() {
            if let Effect::Deliver { slot, ballots, batch } = effect
                && self.group.epoch == epoch
                && slot <= through
            {
                let at_end = ended.range(slot..).next().map_or(Ballot::ZERO, |(_, ballots)| ballots.decided);
                let ballots = Ballots { decided: ballots.decided.max(at_end), ..ballots };
                self.deliver(now, slot, ballots, batch, actions);
            }
        }
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
            is_over: false,
        }
    }

    // From one epoch to the next.

    /// Takes note of the outcome of a decided change, which is the same at all replicas.
    pub(crate) fn change_group(&mut self, changed: Result<Group, Refusal>, actions: &mut Vec<Action>) {
        self.stopping = false;
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
        let group = &self.group;
        self.audience.learners.retain(|&id, _| group.member(id).is_some());
        for (id, _) in group.learners() {
            self.audience.learners.entry(id).or_insert(Learner::new(self.decided.last()));
        }
        self.audience.successors.clear();
        self.bound_batches();
        actions.push(Action::Group(self.group.clone()));
    }

    /// Enters the epoch that a delivered change began; returns whether there was one. Nothing of the old
    /// protocol may be pending.
    pub(crate) fn enter_next_epoch(&mut self, now: Time, actions: &mut Vec<Action>) -> bool {
        if !std::mem::take(&mut self.known.ended) || self.known.replaying {
            return false;
        }
        let ended_in = self.known.ended_in.take();
        if self.group.epoch <= self.known.running {
            // This life had lost what led to an epoch that an earlier one entered.
            self.begin(now, false);
            return true;
        }
        self.say_what_ended_it(now, actions);
        let led = self.leads();
        let forgets = self.forgets();
        let for_this_life =
            self.group.member(self.me).is_some_and(|member| member.readmitted == self.incarnation);
        self.protocol = None;
        self.fail_remote_reads(actions);
        self.protocol_deadline = Time::NEVER;
        self.known.running = self.group.epoch;
        self.known.first = self.group.first;
        self.known.parked = Vec::new();
        self.known.met.clear();
        self.known.amnesia = forgets && !for_this_life;
        if let Some((slot, ballots)) = ended_in {
            let lsn = self.effects.number();
            actions.push(Action::Append { lsn, record: LogRecord::Ended { slot, ballots } });
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
        let Some(protocol) = &mut self.protocol else { return };
        protocol.flush(now, &mut self.effects);
        let last: Vec<Effect> = self.effects.drain().collect();
        let epoch = self.known.running;
        last.into_iter().for_each(|effect| self.carry_out_one(now, epoch, effect, actions));
    }

    /// Writes that the log may forget slots through this one. If a later snapshot was lost, and this one
    /// takes its place, what that one covered stays forgotten: the last record counts, and must not say less.
    pub(crate) fn write_trimmed(&mut self, slot: Slot, actions: &mut Vec<Action>) {
        let lsn = self.effects.number();
        self.known.trimmed = self.known.trimmed.max(slot);
        actions.push(Action::Append { lsn, record: LogRecord::Trimmed(self.known.trimmed) });
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
                let (lsn, record) = (self.effects.number(), parked.clone());
                actions.push(Action::Append { lsn, record: LogRecord::Protocol { epoch, record } });
            }
        }
    }

    fn write_entered(&mut self, group: Group, actions: &mut Vec<Action>) {
        let amnesia = self.known.amnesia;
        let lsn = self.effects.number();
        self.known.entered = lsn;
        actions.push(Action::Append { lsn, record: LogRecord::Entered { group, amnesia } });
    }

    /// Starts the current epoch's protocol, if this replica takes part in it and has the state with which the
    /// epoch began.
    pub(crate) fn begin(&mut self, now: Time, head_start: bool) {
        // A replica without memory that does not vote would not hear from the leader: it fetches what is decided.
        let hears = !self.known.amnesia || self.group.counts(self.me);
        let here = self.group.epoch == self.known.running
            && hears
            && (!self.known.waits || self.has(Bug::VoteBeforeAllMet))
            && (self.decided.last() >= self.known.needed() || self.has(Bug::EnterTooSoon));
        let Some(members) = self.voting().filter(|_| here && self.protocol.is_none()) else {
            return;
        };
        if self.view != LeaderView::default() {
            // What others told of the leader may be of a later epoch, and ballots of different epochs do not compare.
            self.effects.push(Effect::Leader(LeaderView::default()));
        }
        let records = std::mem::take(&mut self.known.parked);
        let restart = Restart { records, head_start, ..self.restart() };
        let options = self.group.options(&self.settings.consensus);
        let mut protocol = options.start(members, restart, now, &mut self.effects);
        if self.is_backlogged() {
            protocol.step(now, Input::Control(Control::Backlogged(true)), &mut self.effects);
        }
        self.protocol = Some(protocol);
    }

    /// Takes note that every member with which the group began was met, so that this replica may take part.
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
        match &self.protocol {
            Some(protocol) => protocol.status().role != Role::Recovering,
            None => !self.known.amnesia && !self.group.votes(self.me),
        }
    }

    /// Whether an earlier life may have said something in this epoch that this one does not know.
    pub(crate) fn forgets(&self) -> bool {
        self.protocol
            .as_ref()
            .map_or(self.known.amnesia, |protocol| protocol.status().role == Role::Recovering)
    }

    /// The protocol's status, or an equivalent if no protocol runs.
    pub(crate) fn protocol_status(&self) -> Status {
        let elsewhere = self.known.elsewhere;
        match &self.protocol {
            Some(protocol) => {
                let status = protocol.status();
                Status { decided_elsewhere: status.decided_elsewhere.max(elsewhere), ..status }
            }
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

    /// Takes note of what a peer says was decided in a slot.
    pub(crate) fn learn(
        &mut self,
        now: Time,
        slot: Slot,
        ballots: Ballots,
        batch: Batch,
        actions: &mut Vec<Action>,
    ) {
        if self.protocol.is_some() {
            let voters =
                self.group.voters_behind(slot, &batch).filter(|_| !self.has(Bug::LearnWithoutVoters));
            return self.input(now, Input::Control(Control::Learn { slot, ballots, batch, voters }), actions);
        }
        if slot == self.decided.last().next() && !self.is_backlogged() {
            if !self.has(Bug::LearnUnrecorded) {
                let lsn = self.effects.number();
                let record = LogRecord::Learned { slot, ballots, batch: batch.clone() };
                actions.push(Action::Append { lsn, record });
            }
            self.deliver(now, slot, ballots, batch, actions);
            self.carry_out(now, actions);
            self.watch_salvaged();
            self.begin(now, false);
            self.carry_out(now, actions);
            self.take_salvaged(now, actions);
        }
    }

    // Telling each other.

    /// Handles a message of an epoch whose protocol does not run here.
    pub(crate) fn heard_other_epoch(&mut self, from: ReplicaId, epoch: Epoch, actions: &mut Vec<Action>) {
        if epoch < self.known.running {
            actions.push(self.standing(from, false));
            return;
        }
        let decided =
            if epoch == self.known.running { self.known.needed() } else { self.decided.last().next() };
        self.known.elsewhere = self.known.elsewhere.max(decided);
        self.heard_ahead(from, decided);
        if self.known.early.len() < GROUP_MEMBERS_MAX || self.known.early.contains_key(&from) {
            self.known.early.insert(from, epoch);
        }
    }

    /// Whether a replica is heard in the epoch that runs here for the first time.
    pub(crate) fn meets(&mut self, from: ReplicaId) -> bool {
        !self.known.met.contains(&from)
            && self.known.met.len() < GROUP_MEMBERS_MAX
            && self.known.met.insert(from)
    }

    fn heard_ahead(&mut self, from: ReplicaId, decided: Slot) {
        if decided > self.decided.last() {
            self.catch_up.heard(from);
        }
    }

    /// The message of how far this replica is. `sought` says that the receiver asked which replicas hear the leader.
    pub(crate) fn standing(&self, to: ReplicaId, sought: bool) -> Action {
        let message = PeerMessage::Standing {
            epoch: self.known.running,
            kept: self.decided.first(),
            decided: self.decided.last(),
            view: self.view,
            sought,
        };
        Action::Send { to: to.into(), message, after: self.known.entered }
    }

    /// The message that what was sent here in this epoch could not be taken in.
    pub(crate) fn tell_missed(&self, to: ReplicaId) -> Action {
        let message = PeerMessage::Missed { epoch: self.known.running };
        Action::Send { to: to.into(), message, after: self.known.entered }
    }

    pub(crate) fn heard_standing(
        &mut self,
        now: Time,
        from: ReplicaId,
        epoch: Epoch,
        (kept, decided): (Slot, Slot),
        view: LeaderView,
        actions: &mut Vec<Action>,
    ) {
        self.known.elsewhere = self.known.elsewhere.max(decided);
        self.heard_ahead(from, decided);
        self.catch_up.told(from, kept, decided, now);
        if self.is_pushed_to() && view.leader != Some(from) {
            // A replica that says only how far it is does not send what it has, so it has to be asked.
            self.catch_up.sends_nothing(now, &self.pace());
        }
        if self.joins(from, decided) {
            self.heard_joining(now, from, decided, actions);
        }
        if self.group.learners().any(|(id, _)| id == from) {
            let added = self.decided.last();
            let learner = self.audience.learners.entry(from).or_insert(Learner::new(added));
            (learner.decided, learner.heard) = (decided, now);
            // This has to happen now, while the learner is up to date: on a busy log it will not be when this
            // replica tells it of more.
            self.promote_learners(now);
        }
        // The sender was removed, and wants to know whether it is still needed; or it does not know that it
        // votes. A replica that is ahead knows more of the group than this one. (So a replica that is answered
        // does not answer in turn: it lags then, or is at the same place, where both say the same of the group.)
        let behind = decided <= self.decided.last();
        let removed = behind && self.group.member(from).is_none() && self.group.votes(self.me);
        let lost = decided < self.decided.last() && self.group.votes(from) && self.protocol.is_some();
        if (removed || lost) && epoch <= self.known.running {
            self.answer_standing(now, from, actions);
        }
        // A replica that is still to join is not a member yet, as far as it knows.
        let removed = self.group.member(self.me).is_none() && self.me < self.group.next_id;
        if removed && epoch >= self.group.epoch && self.group.votes(from) {
            self.audience.successors.insert(from);
            self.retire(actions);
        }
        let takes_part = epoch == self.known.running && self.protocol.is_some() && self.group.votes(from);
        if takes_part && self.meets(from) {
            // What the sender was sent in this epoch before is lost, as if a session had ended.
            self.input(now, Input::Link { peer: from, link: Link::Renewed }, actions);
        }
        let news = view.leader.is_some() && view.leader != Some(self.me) && view != self.view;
        // Nothing of an epoch before the one that was entered is taken, though what led to that one may still
        // have to be learned again: it would be taken, and told, for something of this epoch, and ballots of
        // different epochs do not compare.
        let may_lead = epoch >= self.known.running && view.ballot >= self.view.ballot;
        if self.protocol.is_none() && may_lead && news {
            self.leader_changed(now, view, actions);
        }
    }

    /// Tells a lagging replica how far this one is, at most twice a heartbeat. (While slots are decided, a
    /// replica that answers is ahead of the one that it hears, and would be answered in turn.)
    pub(crate) fn answer_standing(&mut self, now: Time, to: ReplicaId, actions: &mut Vec<Action>) {
        let interval = self.settings.consensus.heartbeat_interval / 2;
        self.audience.answered.retain(|_, at| now < *at + interval);
        if self.audience.answered.contains_key(&to) {
            return;
        }
        self.audience.answered.insert(to, now);
        actions.push(self.standing(to, false));
    }

    /// Ends the service of a replica that is not a member any more, once a quorum went on without it.
    fn retire(&mut self, actions: &mut Vec<Action>) {
        let voters = if self.has(Bug::RetireEarly) { 1 } else { self.group.voters().count() };
        // The replicas that voted before may still be needed; see `docs/epochs.md`.
        let settled = self.group.outgoing.is_empty() || self.has(Bug::RetireUnsettled);
        if settled && self.audience.successors.len() > voters / 2 && !self.audience.retired {
            self.audience.retired = true;
            actions.push(Action::Retired);
        }
    }

    /// The replicas to tell how far this one is.
    fn listeners(&self) -> Vec<ReplicaId> {
        let others = |id: &ReplicaId| *id != self.me;
        if self.takes_care() {
            return self.group.learners().map(|(id, _)| id).filter(others).collect();
        }
        if self.protocol.is_some() && self.group.counts(self.me) || self.audience.retired {
            return Vec::new();
        }
        // This is a learner or a removed replica. The leader asks nothing, so it is told without being asked.
        self.group.voters().filter(others).collect()
    }

    /// Whether a member that has come this far does not take part in ordering yet.
    pub(crate) fn joins(&self, id: ReplicaId, decided: Slot) -> bool {
        let lacks_beginning = self.group.votes(id) && decided < self.group.first.prev();
        lacks_beginning || self.group.learners().any(|(learner, _)| learner == id)
    }

    /// Whether others send this replica what it lacks without being asked.
    pub(crate) fn is_pushed_to(&self) -> bool {
        self.settings.state_transfer == StateTransfer::Eager
            && self.protocol.is_none()
            && !self.audience.retired
    }

    /// Tells a peer how far this replica is, if the peer has to be told, when a session to it begins.
    pub(crate) fn greet(&self, peer: ReplicaId, actions: &mut Vec<Action>) {
        if self.listeners().contains(&peer) {
            actions.push(self.standing(peer, false));
        }
    }

    /// When [`Replica::tell_standing`] has something to do.
    pub(crate) fn standing_at(&self) -> Option<Time> {
        if self.wants_readmission() {
            return Some(self.audience.asked_at + self.ask_interval());
        }
        if self.listeners().is_empty() {
            return None;
        }
        Some(self.audience.told_at + self.tell_interval())
    }

    fn tell_interval(&self) -> Duration {
        let options = &self.settings.consensus;
        // A replica that is sent slots without asking says what it got: then it is sent more, or promoted.
        // (What it said a while ago is never all that there is, even if the log grows slowly.)
        let soon = self.takes_care() || self.is_pushed_to() || self.is_to_vote();
        if soon && self.decided.last() > self.audience.told {
            options.announce_delay_max
        } else {
            options.heartbeat_interval
        }
    }

    pub(crate) fn ask_interval(&self) -> Duration {
        self.settings.consensus.election_timeout * 2
    }

    /// Tells the replicas that wait for it how far this one is, and asks for the changes that it wants.
    pub(crate) fn tell_standing(&mut self, now: Time, actions: &mut Vec<Action>) {
        if self.wants_readmission() && now >= self.audience.asked_at + self.ask_interval() {
            let change = Change::Readmit { id: self.me, life: self.incarnation };
            self.ask_for(now, change);
        }
        if self.protocol.is_some() {
            // The protocol runs now: replicas that spoke to it before need not wait until it is time to say it again.
            let running = self.known.running;
            let early = self.known.early.extract_if(.., |_, epoch| *epoch <= running);
            let early: Vec<_> = early.map(|(id, _)| id).collect();
            actions.extend(early.into_iter().map(|to| self.standing(to, false)));
        }
        let listeners = self.listeners();
        if listeners.is_empty() || now < self.audience.told_at + self.tell_interval() {
            return;
        }
        self.audience.told_at = now;
        self.audience.told = self.decided.last();
        actions.extend(listeners.into_iter().map(|to| self.standing(to, false)));
        self.promote_learners(now);
    }

    /// Whether this replica should ask for an epoch in which it may take part again.
    fn wants_readmission(&self) -> bool {
        let learns = !self.group.votes(self.me) && self.group.voting(self.me).is_some();
        (self.protocol.is_some() || learns)
            && !self.group.protocol.recovers_itself()
            && self.view.leader.is_some()
            && self.forgets()
    }

    pub(crate) fn ask_for(&mut self, now: Time, change: Change) {
        self.audience.asked_at = now;
        let request = ChangeRequest { expected: self.group.version, change };
        self.requests.add_own(now, None, CommandKind::Reconfigure, &request.encode().to_bytes());
    }
}

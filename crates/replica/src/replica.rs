//! One replica: an ordering protocol and what surrounds it.
//!
//! Like the protocol it is a pure state machine: it is given [`Event`]s and answers with [`Action`]s (`events.rs`),
//! which the threads of a server, or the simulator, carry out. This file says which part takes an event, a message of
//! another replica, or an effect of the protocol. The parts stand in files of their own, each with what a replica does
//! with it.

use synod_consensus::{Bug, Control, Effect, Input, LeaderView, Link, Message};
use synod_wire::{
    Ballots, Batch, CommandKind, Epoch, Incarnation, Lsn, ReplicaId, Slot, Time, replica_session,
};

use crate::{
    Group, History, LogRecord, PeerMessage, RequestError, Settings,
    backlog::Backlog,
    births::Births,
    catch_up::{Arrived, CatchUp, Piece},
    clock::ClockView,
    decided::{DecidedLog, LogBegin, LogFrom, LogPart},
    epochs::{KnownEpochs, Peer, ProgressReports},
    events::{Action, Event, Installed, Recovered, ReplicaStatus, SnapshotInfo, Waiting},
    follow::OtherGroups,
    forwarded::Forwarded,
    history::Forks,
    instance::Instance,
    pacing::Pacing,
    proposing::Changing,
    push::Pushes,
    reads::{READS_MAX, Reads},
    relay::{Relay, RelayRoute},
    requests::{Expired, Requests},
    salvage::Salvaged,
    snapshots::Snapshots,
};

/// A replica of a group: it orders commands of clients with the other members, and says what to execute.
pub struct Replica {
    pub(crate) settings: Settings,
    pub(crate) me: ReplicaId,
    /// The number of this life.
    pub(crate) incarnation: Incarnation,
    /// The group as it is after the last delivered slot.
    pub(crate) group: Group,
    /// What is known of epochs.
    pub(crate) known: KnownEpochs,
    /// Which data directories have votes, and who was met.
    pub(crate) births: Births,
    /// What this replica's own log holds after slots that it lacks.
    pub(crate) salvaged: Salvaged,
    /// Which replicas are told how far this one is, and what others told of themselves.
    pub(crate) reports: ProgressReports,
    /// What this node has seen of the groups that this one follows, or that follow it.
    pub(crate) other_groups: OtherGroups,
    /// The protocol that runs here.
    pub(crate) instance: Instance,
    /// The leader, as the protocol or, where none runs, another replica last said. Where a protocol has no leader, it
    /// is the replica to which the protocol routes commands.
    pub(crate) view: LeaderView,
    /// Commands of this replica's clients, until they are decided or given up.
    pub(crate) requests: Requests,
    /// Batches that followers sent here to be ordered.
    pub(crate) forwarded: Forwarded,
    /// What this leader has under way, where that is bounded by what it measures.
    pub(crate) pacing: Option<Pacing>,
    /// A change of the group on its way through this leader.
    pub(crate) changing: Changing,
    /// Reads of this replica's clients, and questions of other replicas.
    pub(crate) reads: Reads,
    /// By which way what is for the leader goes there.
    pub(crate) relay: Relay,
    /// The decided slots that are kept for others.
    pub(crate) decided: DecidedLog,
    /// Fingerprints of all that was decided, and who has others.
    pub(crate) history: History,
    pub(crate) forks: Forks,
    /// What this replica lacks, and which replicas it asks for it.
    pub(crate) catch_up: CatchUp,
    /// The replicas to which this one sends decided slots without being asked.
    pub(crate) pushes: Pushes,
    /// What the disk and the executor have not dealt with yet.
    pub(crate) backlog: Backlog,
    /// The snapshot that this replica keeps, and how much was decided since.
    pub(crate) snapshots: Snapshots,
    /// What this replica knows of the replicated clock.
    pub(crate) clock: ClockView,
    /// The deadline that was last asked for.
    deadline: Option<Time>,
}

impl std::fmt::Debug for Replica {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Replica").field("me", &self.me).field("status", &self.status()).finish()
    }
}

impl Replica {
    /// A replica as it is after a start, of a group that began as `first`. The executor must have been restored from
    /// `recovered.snapshot`; the actions execute what is known to be decided after it.
    pub fn start(
        settings: Settings,
        me: ReplicaId,
        first: Group,
        recovered: Recovered,
        now: Time,
        actions: &mut Vec<Action>,
    ) -> Replica {
        let Recovered { records, last_lsn, snapshot, amnesia, birth, incarnation, nonce, met_all } =
            recovered;
        let (info, ballots, group, history) = match snapshot {
            Some(Installed { info, ballots, group, history }) => (Some(info), ballots, group, history),
            None if settings.merged => (None, Ballots::ZERO, first, History::merged()),
            None => (None, Ballots::ZERO, first, History::beginning()),
        };
        let base = info.map_or(Slot::ZERO, |info| info.slot);
        let peers: Vec<_> = group.known().map(|member| member.id).filter(|&id| id != me).collect();
        let session = replica_session(me, incarnation, nonce);
        let mut replica = Replica {
            known: KnownEpochs::new(&group, amnesia, !met_all),
            births: Births::new(birth),
            salvaged: Salvaged::default(),
            reports: ProgressReports::default(),
            other_groups: OtherGroups::default(),
            instance: Instance::none(last_lsn),
            view: LeaderView::default(),
            requests: Requests::new(session, &settings),
            forwarded: Forwarded::default(),
            pacing: settings.paced.then(Pacing::default),
            changing: Changing::default(),
            reads: Reads::new(incarnation),
            relay: Relay::new(now),
            decided: DecidedLog::new(base.next(), ballots),
            history: History::beginning(),
            forks: Forks::new(now),
            catch_up: CatchUp::new(peers),
            pushes: Pushes::default(),
            backlog: Backlog::new(base, last_lsn),
            snapshots: Snapshots::new(info),
            clock: ClockView::new(now),
            deadline: None,
            me,
            incarnation,
            group,
            settings,
        };
        replica.history = replica.of_snapshot(history);
        replica.replay(now, records, actions);
        replica.weigh(now, 0, actions);
        replica.flush(now, actions);
        replica
    }

    /// Takes one event. At the end of a burst of events, call [`Replica::flush`].
    pub fn step(&mut self, now: Time, event: Event, actions: &mut Vec<Action>) {
        let before = actions.len();
        self.take(now, event, actions);
        // What is given to the disk or to the executor is among the actions.
        if actions.len() > before {
            self.weigh(now, before, actions);
        }
    }

    fn take(&mut self, now: Time, event: Event, actions: &mut Vec<Action>) {
        match event {
            Event::Receive { from, message } => self.receive(now, from, message, actions),
            Event::Met { peer, met } => {
                if self.births.meet(peer, met) {
                    // What its earlier life said of how far it is says nothing of this one.
                    self.reports.begins_again(peer);
                }
            }
            Event::MetAll => self.met_all(now, actions),
            Event::Link { peer, link } => self.linked(now, peer, link, actions),
            Event::Durable(lsn) => {
                self.backlog.durable(lsn);
                self.watch_backlog(now);
                self.input(now, Input::Durable(lsn), actions);
            }
            Event::Timer => {
                // Ask for the next deadline even if it is the same.
                self.deadline = None;
                if self.instance.take_timer(now) {
                    self.input(now, Input::Timer, actions);
                }
                self.expire(now, actions);
            }
            Event::Request { request, kind, session, payload } => {
                // A change of the group may be what makes it faster.
                let is_bound = kind != CommandKind::Reconfigure && !self.has(Bug::AdmitEverything);
                if is_bound && self.requests.would_wait_too_long(now) {
                    actions.push(Action::RequestFailed { request, error: RequestError::Overloaded });
                } else {
                    self.request(now, request, kind, session, &payload, actions);
                }
            }
            Event::Upkeep { request, payload } => {
                self.request(now, request, CommandKind::Apply, None, &payload, actions);
            }
            Event::Read(read) if self.group.is_away(self.me) => {
                actions.push(Action::ReadFailed { read, error: RequestError::TakesNoPart });
            }
            Event::Read(read) if self.reads.len() < READS_MAX => self.reads.add(read, now),
            Event::Read(read) => actions.push(Action::ReadFailed { read, error: RequestError::Overloaded }),
            Event::Executed { slot, clock } => {
                self.backlog.executed(slot);
                self.clock.shows(clock, now);
                self.watch_backlog(now);
                self.carry_out(now, actions);
            }
            Event::SnapshotTaken(info) => self.snapshot_taken(now, info, actions),
            Event::SnapshotShared(info) => self.snapshot_shared(now, info, actions),
            Event::ChunkRead { to, slot, offset, total, bytes } => {
                if offset == 0 {
                    self.snapshots.has_size(slot, total);
                }
                let message = PeerMessage::Chunk { slot, offset, total, bytes };
                actions.push(Action::Send { to: to.into(), message, after: Lsn::ZERO });
            }
            Event::ChunkWritten { slot, end } => {
                if self.catch_up.written(slot, end) {
                    self.install_snapshot(now, actions);
                }
            }
            Event::SnapshotInstalled(installed) => {
                self.snapshot_installed(now, installed.map(|installed| *installed), actions);
            }
            Event::TakeSnapshot => self.take_snapshot_if_there_is_more(actions),
            Event::Transfer(to) => self.input(now, Input::Control(Control::Transfer(to)), actions),
            Event::Members(set) => self.told_of_members(now, set),
            Event::Followers(voters) => self.other_groups.told_of_followers(voters),
            Event::Skip(target) => self.skip(now, target),
        }
    }

    fn linked(&mut self, now: Time, peer: ReplicaId, link: Link, actions: &mut Vec<Action>) {
        let up = link == Link::Up;
        if up && self.view.leader == Some(peer) {
            self.requests.forget_sent();
            self.reads.ask_again();
            self.expect_leader(now);
        }
        self.catch_up.linked(peer, up);
        if up {
            actions.push(self.history_for(peer));
            self.greet(peer, actions);
        }
        self.input(now, Input::Link { peer, link }, actions);
    }

    /// Lets everything leave that can: batches, reads, questions to peers; and asks for the next deadline.
    pub fn flush(&mut self, now: Time, actions: &mut Vec<Action>) {
        let before = actions.len();
        self.find_way(now, actions);
        self.follow_members(now);
        self.name_births(now, actions);
        self.propose(now, actions);
        self.ask_reads(now, actions);
        self.instance.flush(now);
        self.carry_out(now, actions);
        self.release_reads(actions);
        self.take_salvaged(now, actions);
        self.catch_up(now, actions);
        self.advance_clock(now);
        self.tell_progress(now, actions);
        self.tell_history(now, actions);
        self.push_state(now, actions);
        self.ask_for_missed(actions);
        self.requests.end_burst();
        self.weigh(now, before, actions);
        self.ask_for_timer(now, actions);
    }

    /// What this replica knows of itself.
    #[must_use]
    pub fn status(&self) -> ReplicaStatus {
        let mut protocol = self.protocol_status();
        protocol.view.leader = protocol.view.leader.or_else(|| self.leader_of_guide());
        ReplicaStatus {
            epoch: self.group.epoch,
            entered: self.known.running(),
            waits_for_members: self.known.waits(),
            protocol,
            delivered: self.decided.last(),
            executed: self.backlog.executed_through(),
            snapshot: self.snapshots.last(),
            window_max: self.window_max(),
            queued_bytes: self.requests.bytes(),
            kept_slots: self.decided.len(),
            kept_bytes: self.decided.bytes(),
            forwarded_bytes: self.forwarded.bytes(),
            remote_reads: self.reads.remote(),
            unexecuted_bytes: self.backlog.unexecuted_bytes(),
            undurable_bytes: self.backlog.undurable_bytes(),
            held_bytes: self.backlog.held_bytes(),
            sends_given_up: self.backlog.given_up(),
            backlogged: self.is_backlogged(),
            waits_for_disk: protocol.waits_for_disk
                || self.backlog.waits_for_disk()
                || self.instance.missed(),
            receiving: self.catch_up.receiving(),
            sources: self.catch_up.sources(),
            ahead_bytes: self.catch_up.ahead_bytes(),
            without_memory: self.forgets(),
            takes_care: self.takes_care(),
        }
    }

    /// What somebody waits for.
    #[must_use]
    pub fn waiting(&self) -> Waiting {
        let unexecuted = self.decided.last().0.saturating_sub(self.backlog.executed_through().0);
        Waiting {
            reads: self.reads.len(),
            remote_reads: self.reads.remote(),
            commands: self.requests.awaited(),
            client_commands: self.requests.awaited_by_session(),
            forwarded: self.forwarded.len(),
            changes: self.changing.waiting(),
            unexecuted: usize::try_from(unexecuted).unwrap_or(usize::MAX),
            held_bytes: self.backlog.held_bytes(),
        }
    }

    /// Whether this bug is planted; see [`Bug`].
    pub(crate) fn has(&self, bug: Bug) -> bool {
        cfg!(feature = "planted-bugs") && self.settings.consensus.planted == Some(bug)
    }

    /// Turns the protocol's effects into actions.
    pub(crate) fn carry_out(&mut self, now: Time, actions: &mut Vec<Action>) {
        // Delivering may tell the protocol that execution falls behind, or end the epoch, which have effects of their
        // own.
        loop {
            while self.instance.has_effects() {
                let epoch = self.known.running();
                let mut effects = self.instance.drain();
                effects.drain(..).for_each(|effect| self.carry_out_one(now, epoch, effect, actions));
                self.instance.give_back(effects);
            }
            if !self.enter_next_epoch(now, actions) && !self.leave(now, actions) {
                return;
            }
        }
    }

    pub(crate) fn carry_out_one(
        &mut self,
        now: Time,
        epoch: Epoch,
        effect: Effect,
        actions: &mut Vec<Action>,
    ) {
        // Once a change that ends the epoch is delivered, what else the old protocol says counts for nothing, apart
        // from what it wants written: records have no gaps.
        let over = epoch != self.group.epoch && !self.has(Bug::DeliverAfterEnd);
        match effect {
            Effect::Append { lsn, record } => {
                self.log_names(&record);
                actions.push(Action::Append { lsn, record: LogRecord::Protocol { epoch, record } });
            }
            Effect::Send { to, message, after } => self.send_of_protocol(epoch, to, message, after, actions),
            Effect::Deliver { slot, ballots, batch } if !over => {
                self.deliver(now, slot, ballots, batch, actions);
            }
            Effect::Leader(view) if !over => self.leader_changed(now, view, actions),
            Effect::ReadIndex { token, slot } => {
                self.read_index(token, slot.filter(|_| !over), actions);
            }
            Effect::Deadline(deadline) if !over => self.instance.wakes_at(deadline),
            Effect::TwoProposals { ballot, slot } => actions.push(Action::TwoProposals { ballot, slot }),
            Effect::ChangeRefused(refused) => self.change_refused(refused, actions),
            Effect::Lacks { peer, slot } => self.push_kept(peer, slot, actions),
            Effect::Deliver { .. } | Effect::Leader(_) | Effect::Deadline(_) => {}
        }
    }

    fn receive(&mut self, now: Time, from: ReplicaId, message: PeerMessage, actions: &mut Vec<Action>) {
        if self.is_stranger(from) {
            return;
        }
        let message = match message {
            PeerMessage::History { since, marks } => return self.heard_history(from, since, &marks, actions),
            message => message,
        };
        if self.differs(from) {
            return;
        }
        self.heard_from(now, from);
        match message {
            PeerMessage::History { .. } => unreachable!("taken above"),
            PeerMessage::Protocol { epoch, message } => {
                self.receive_of_protocol(now, from, epoch, message, actions);
            }
            PeerMessage::Progress { epoch, kept, decided, view, sought } => {
                let peer = Peer { id: from, epoch, decided, view };
                self.heard_progress(now, peer, kept, actions);
                if let Some(leader) = view.leader.filter(|_| sought) {
                    self.leader_found(now, from, leader);
                }
            }
            PeerMessage::Births(births) => self.births_told(from, births),
            PeerMessage::Missed { epoch } => {
                if epoch == self.known.running() {
                    self.forwarded.missed_by(from);
                    self.input(now, Input::Link { peer: from, link: Link::Renewed }, actions);
                }
            }
            PeerMessage::Rejoin { kept, decided } => self.called_back(now, from, kept, decided),
            PeerMessage::SeekLeader => self.leader_sought(now, from, actions),
            PeerMessage::Direct(message) => {
                self.routed(now, RelayRoute { to: from, via: None }, message, actions);
            }
            PeerMessage::Relayed { origin, to, message } => {
                self.relayed(now, from, origin, to, message, actions);
            }
            PeerMessage::Fetch { from: slot, through } => {
                self.answer_fetch(now, from, slot, through, actions)
            }
            PeerMessage::Fetched { from: first, kept, decided, batches } => {
                let arrived = Arrived { peer: from, first, batches };
                self.fetched(now, arrived, kept..=decided, actions);
            }
            PeerMessage::Pushed { from: first, decided, batches } => {
                self.pushed(now, Arrived { peer: from, first, batches }, decided, actions);
            }
            PeerMessage::SnapshotOffer { slot, total } => {
                let info = SnapshotInfo { slot, bytes: total };
                let unsolicited = self.is_pushed_to();
                self.catch_up.offered(from, info, self.decided.last(), unsolicited, now);
            }
            PeerMessage::FetchChunk { slot, offset } => {
                self.answer_fetch_chunk(now, from, slot, offset, actions);
            }
            PeerMessage::Chunk { slot, offset, total, bytes } => {
                if self.catch_up.piece(from, slot, offset, total, bytes.len()) == Piece::Write {
                    let info = SnapshotInfo { slot, bytes: total };
                    actions.push(Action::WriteChunk { info, offset, bytes });
                }
            }
        }
    }

    fn receive_of_protocol(
        &mut self,
        now: Time,
        from: ReplicaId,
        epoch: Epoch,
        message: Message,
        actions: &mut Vec<Action>,
    ) {
        if self.is_disowned_by(&message) {
            self.stop_taking_part(now, actions);
        } else if epoch == self.known.running() && self.instance.runs() {
            self.instance.receives(&message);
            self.meets(from);
            match self.filled(message) {
                Some(message) => self.input(now, Input::Receive { from, message }, actions),
                None => self.instance.dropped(),
            }
            self.heard_in_epoch(from);
        } else {
            self.heard_other_epoch(from, epoch, actions);
        }
    }

    /// Decided batches from a point on: at most `bytes_max` bytes of them, but at least one if there is one. `None`:
    /// the slot is not decided, nor is the one before it.
    ///
    /// # Errors
    /// Where the log begins, if this replica does not keep the point any more.
    pub fn read_log(&self, from: LogFrom, bytes_max: usize) -> Result<Option<LogPart>, LogBegin> {
        self.decided.read(from, self.position(), bytes_max)
    }

    /// The position of the common order that the next batch takes; 0 where groups are not merged.
    fn position(&self) -> u64 {
        self.history.place().unwrap_or_default().position
    }

    pub(crate) fn leads(&self) -> bool {
        self.view.leader == Some(self.me)
    }

    /// Whether this replica does what one replica has to do for all; see [`synod_consensus::Protocol::caretaker`].
    pub(crate) fn takes_care(&self) -> bool {
        self.instance.caretaker() == Some(self.me)
    }

    pub(crate) fn deliver(
        &mut self,
        now: Time,
        slot: Slot,
        ballots: Ballots,
        batch: Batch,
        actions: &mut Vec<Action>,
    ) {
        if self.halts_at(slot, &batch, actions) {
            return;
        }
        let position = self.position();
        self.names_delivered(slot);
        self.history.push(slot, &batch);
        self.count_origin(&batch);
        self.meet_earlier_life(actions);
        self.decided.push(slot, position, ballots, batch.clone());
        self.decided.cap(self.settings.kept_bytes_max);
        self.backlog.delivered(slot, batch.bytes().len() as u64);
        self.snapshots.delivered(batch.bytes().len());
        self.forwarded.done(&batch);
        if let Some((pacing, id)) = self.pacing.as_mut().zip(batch.id()) {
            pacing.delivered(now, id);
        }
        if self.group.proposes_anywhere() {
            self.forwarded.drop_void(self.history.delivered());
        }
        let requests = self.requests.delivered(now, &batch);
        let bug = self.settings.consensus.planted.filter(|_| cfg!(feature = "planted-bugs"));
        let changed = self.group.after_with(slot, &batch, bug);
        actions.push(Action::Execute { slot, ballots, batch, requests });
        if let Some(changed) = changed {
            self.change_group(changed, actions);
        }
        self.take_snapshot_if_due(now, actions);
        self.watch_backlog(now);
    }

    /// Tells an election that weighs it from which replica the commands of clients in this batch came.
    fn count_origin(&mut self, batch: &Batch) {
        if !self.settings.consensus.latency.origins {
            return;
        }
        let Some((origin, _)) = batch.id().and_then(|id| id.origin.of_replica()) else { return };
        let of_clients = batch.commands().filter(|command| command.kind == CommandKind::Apply).count();
        self.instance.ordered(origin, of_clients as u64);
    }

    pub(crate) fn leader_changed(&mut self, now: Time, view: LeaderView, actions: &mut Vec<Action>) {
        let routed = self.with_route(view);
        if routed.leader.is_some() || self.leads() {
            self.expect_leader(now);
        }
        // A view that repeats itself must not make reads start over, or a lagging replica would never answer one.
        if routed.leader.is_some() && routed != self.view {
            self.reads.ask_again_after(self.decided.last());
            self.requests.forget_given_up();
        } else {
            self.reads.ask_again();
        }
        if let Some(pacing) = self.pacing.as_mut().filter(|_| routed != self.view) {
            pacing.restart();
        }
        self.view = routed;
        self.requests.led(now, routed.leader.is_some());
        if !self.leads() {
            self.forwarded.clear();
            self.changing.abandoned();
        }
        self.clock.leader_changed(now);
        // A leader has a ballot of its own. Another replica that is named only takes commands.
        let leader = view.leader.filter(|&id| id == view.ballot.replica);
        actions.push(Action::Leader(LeaderView { leader, ..view }));
    }

    /// A view that names the replica that takes commands, also where a protocol has no leader.
    fn with_route(&self, view: LeaderView) -> LeaderView {
        // Where every replica disseminates, changes of the group and reads go to the leader all the same.
        let without = || self.instance.taker_without_leader(self.me).filter(|_| !self.group.disseminates());
        LeaderView { leader: view.leader.or_else(without), ..view }
    }

    /// Fails what has waited for longer than the request time-out, or long enough for a leader.
    fn expire(&mut self, now: Time, actions: &mut Vec<Action>) {
        let timeout = self.settings.request_timeout;
        let leaderless = self.leaderless_from().is_some_and(|from| now >= from);
        let silence = if leaderless { self.settings.leaderless_timeout() } else { timeout };
        if now < Time::ZERO + silence {
            return;
        }
        let born_max = now - silence;
        let led = self.view.leader.is_some() && !leaderless;
        let unsent_error = if led { RequestError::Overloaded } else { RequestError::NoLeader };
        let Expired { unsent, sent } = self.requests.expire(now, born_max);
        let fail = |error| move |request| Action::RequestFailed { request, error };
        actions.extend(unsent.into_iter().map(fail(unsent_error)));
        actions.extend(sent.into_iter().map(fail(RequestError::Timeout)));
        for read in self.reads.expire(born_max) {
            actions.push(Action::ReadFailed { read, error: RequestError::NoLeader });
        }
        if !self.has(Bug::LeakRemoteReads) && now >= Time::ZERO + timeout {
            let expired = self.reads.expire_remote(now - timeout);
            self.refuse_reads(expired, actions);
        }
    }

    fn ask_for_timer(&mut self, now: Time, actions: &mut Vec<Action>) {
        let search = self.find_way_at(now).unwrap_or(Time::NEVER);
        let deadline = self.due().min(search);
        if self.deadline != Some(deadline) {
            self.deadline = Some(deadline);
            actions.push(Action::Deadline(deadline));
        }
    }

    /// When this replica next does something by itself, besides looking for a way to a leader that it misses.
    #[must_use]
    pub fn due(&self) -> Time {
        let timeout = self.settings.request_timeout;
        let remote = self.reads.oldest_remote().filter(|_| !self.has(Bug::LeakRemoteReads));
        let own = [self.requests.oldest(), self.reads.oldest()].into_iter().flatten().min();
        let leaderless = own.and_then(|own| Some((own, self.leaderless_from()?)));
        let catches_up = !self.is_backlogged() && !self.reports.is_retired() && self.catch_up.waits();
        let deadlines = [
            own.map(|oldest| oldest + timeout),
            remote.map(|oldest| oldest + timeout),
            leaderless.map(|(own, from)| from.max(own + self.settings.leaderless_timeout())),
            self.reads.retry_at(self.forward_retry()),
            self.confirmed_again_at(),
            catches_up.then(|| self.catch_up.deadline(&self.pace())).flatten(),
            self.progress_at(),
            self.follow_at(),
            self.births_at(),
            self.tick_at(),
            self.proposes_at(),
        ];
        deadlines.into_iter().flatten().fold(self.instance.deadline(), Time::min)
    }

    /// The group as it is after the last delivered slot.
    #[must_use]
    pub fn group(&self) -> &Group {
        &self.group
    }
}

//! Starts, crashes and pauses of replicas, and what they are told.

use std::{collections::VecDeque, time::Duration};

use bytes::Bytes;
use synod_consensus::Bug;
use synod_host::{Host, Input, Progress, SnapshotBook, Started};
use synod_replica::{Event, Executor, Group, Installed, Pace, Recovered, Replica, SnapshotInfo};
use synod_storage::StorageError;
use synod_wire::{GroupId, ReplicaId, Slot, Time};

use super::{
    FIRST, Happening, Served, World,
    actions::LOOK,
    executor, is_question,
    machine::{Executing, Hosted, Life, Pause, State},
    waiting::{Question, Waiter},
};
use crate::{
    chart::Mark,
    check::{Checked, Invariant, Surroundings, Violation, Watch, demand, slots},
    clock::{Clock, PERFECT_PPM},
    guest::Hosting,
    network::{Loss, Wire, between},
    per_group::PerGroup,
    plan::{Ending, Plan},
    situations::{Face, MergeSituation, Sight, is_long},
};

impl World {
    /// Begins a life on a machine from what its disk holds.
    pub(crate) fn start(&mut self, of: usize) -> Checked {
        assert!(self.machines[of].life.is_none(), "one life at a time");
        self.begin_without_the_removed(of);
        let machine = &mut self.machines[of];
        match machine.disk.start()? {
            Ok(kept) => {
                self.coverage.logs_repaired += u64::from(kept.is_some());
                self.coverage.slots_kept += kept.unwrap_or_default();
            }
            Err(error) => {
                self.note(of, Mark::Note, || format!("does not come to start: {error}"));
                self.coverage.starts_failed += 1;
                self.restart_later(of);
                return Ok(());
            }
        }
        machine.begin_life();
        let (number, amnesia) = (machine.lives, machine.disk.amnesia);
        machine.files.begin_log(machine.disk.last());
        let drift = self.plan.clock_drift_ppm;
        let rate = PERFECT_PPM - drift + self.rng.u64(0..=2 * drift);
        let shown = between(&mut self.rng, Duration::ZERO, Duration::from_secs(100_000));
        let clock = Clock::new(self.now, shown, rate);
        self.coverage.joiners += u64::from(number == 1 && of >= self.plan.replicas);
        let others = self.others_at_first(of);
        // Scripts begin when that is over.
        let script = self.network.wire() == Wire::Manual;
        let files = &mut self.machines[of].files;
        let met_all = files.has_met(others) || script;
        let now = clock.read(self.now);
        let Found { states, book, snapshots, service } = self.states(of)?;
        let (mut started, mut hosted) = (Vec::new(), Vec::new());
        for (group, snapshot) in self.checks.groups().zip(snapshots) {
            let (begun, hosts) = self.begin(of, group, snapshot, met_all, now)?;
            started.push(begun);
            hosted.push(hosts);
        }
        // Several groups round their deadlines so that they come together.
        let heartbeat = self.plan.settings_of(of).consensus.heartbeat_interval;
        let merging = self.plan.merging.as_ref();
        let pace = merging.map(|merging| Pace::new(merging.skips, merging.take, started.len(), now));
        let host = Host::new(self.machines[of].id, started, pace, heartbeat);
        let parting = self.parting(of, now, host.replicas());
        let life =
            Life::new(number, (host, parting), hosted.into_iter().collect(), (states, book), clock, service);
        self.machines[of].life = Some(life);
        for group in self.checks.groups() {
            self.check_state(of, group)?;
        }
        self.carry_out(of)?;
        let machine = &mut self.machines[of];
        if let Some(life) = &mut machine.life {
            life.confesses_at = amnesia.then_some(machine.disk.last());
            for group in self.checks.groups() {
                life.hosted[group].watch.started(&life.host.replica(group).status());
            }
        }
        self.make_sessions(of);
        self.guest_looks_later(of);
        for group in self.checks.groups() {
            self.stepped(of, group)?;
        }
        self.sees_at_start(of)
    }

    /// What executes for the groups, with what the disk holds.
    fn states(&mut self, of: usize) -> Result<Found, Violation> {
        if self.order.is_some() {
            return self.merged_state(of);
        }
        let (mut states, mut snapshots, mut service) = (Vec::new(), Vec::new(), None);
        for group in self.checks.groups() {
            let (hosting, serves) = self.hosting();
            let kept = self.machines[of].disk.recover(group).snapshot;
            let (executor, snapshot) = self.restored(group, kept, hosting)?;
            states.push(State::new(Executing::Alone(Box::new(executor)), self.now));
            snapshots.push(snapshot);
            service = service.or(Some(serves));
        }
        let service = service.expect("there is a group");
        let book = SnapshotBook::new(self.plan.groups, None);
        Ok(Found { states: states.into_iter().collect(), book, snapshots, service })
    }

    /// Begins the replica of a group with what the disk holds of it.
    fn begin(
        &mut self,
        of: usize,
        group: GroupId,
        snapshot: Option<Installed>,
        met_all: bool,
        now: Time,
    ) -> Result<(Started, Hosted), Violation> {
        let machine = &mut self.machines[of];
        let (number, amnesia, incarnation) = (machine.lives, machine.disk.amnesia, machine.files.incarnation);
        let found = machine.disk.recover(group);
        let first = snapshot.as_ref().map_or(Slot::ZERO, |snapshot| snapshot.info.slot);
        let entered = self.checks[group].restarted(of, group, machine, first)?;
        let tail = found.records.iter().map(|(_, record)| slots(record).end.saturating_sub(1)).max();
        let tail = Slot(tail.unwrap_or_default());
        let votes_lost = self.machines[of].disk.take_votes_lost(group).filter(|_| amnesia);
        let sight = Sight::Starts { of, tail, snapshot: first, amnesia, votes_lost };
        self.checks[group].situations.see(&sight);
        self.note(of, Mark::Starts, || {
            let lost = if amnesia { ", its log lost" } else { "" };
            format!("starts life {number} with a log to {} and a snapshot to slot {first}{lost}", found.last)
        });
        let recovered = Recovered {
            records: found.records.into_iter().map(|(_, record)| record).collect(),
            last_lsn: found.last,
            snapshot,
            amnesia,
            birth: self.machines[of].files.birth,
            incarnation,
            nonce: number,
            met_all,
        };
        let mut settings = self.plan.settings_of(of).clone();
        settings.consensus.planted = self.plan.settings.consensus.planted;
        settings.consensus.priority = self.plan.priority(of, group);
        if self.order.is_some() && group != FIRST {
            // The groups have one clock, and the first one moves it.
            settings.clock_interval = NEVER_TICKS;
        }
        let (me, mut actions) = (self.machines[of].id, Vec::new());
        let first_group = first_group(&self.plan, group);
        let mut replica = Replica::start(settings, me, first_group, recovered, now, &mut actions);
        if let Some(earlier) = self.machines[of].files.reached[group].clone() {
            replica.remember(earlier, &mut actions);
        }
        let durable = self.machines[of].disk.durable_of(group);
        let hosted = Hosted::new(Watch::new(me, first, entered), durable);
        Ok((Started { replica, actions, durable, executed: first }, hosted))
    }

    /// What executes commands at first.
    pub(super) fn unused_executor(&self, group: GroupId, hosting: Hosting) -> Executor<Hosting> {
        #[cfg_attr(not(feature = "planted-bugs"), expect(unused_mut))]
        let mut executor = executor(&self.plan, group, hosting);
        #[cfg(feature = "planted-bugs")]
        if self.plan.settings.consensus.planted == Some(synod_consensus::Bug::ExecuteRetryTwice) {
            executor.execute_repeats();
        }
        #[cfg(feature = "planted-bugs")]
        if self.plan.settings.consensus.planted == Some(synod_consensus::Bug::ClockCountsTwice) {
            executor.count_twice();
        }
        #[cfg(feature = "planted-bugs")]
        if self.plan.settings.consensus.planted == Some(synod_consensus::Bug::ForgetSessionsInSnapshot) {
            executor.forget_sessions();
        }
        #[cfg(feature = "planted-bugs")]
        if let Some(bug) = self.plan.settings.consensus.planted {
            executor.change_wrongly(bug);
        }
        executor
    }

    /// The same with the snapshot that a life finds.
    fn restored(
        &self,
        group: GroupId,
        kept: Option<(Slot, Bytes)>,
        hosting: Hosting,
    ) -> Result<(Executor<Hosting>, Option<Installed>), Violation> {
        let mut executor = self.unused_executor(group, hosting);
        let mut snapshot = None;
        if let Some((slot, bytes)) = kept {
            restore(&mut executor, slot, &bytes)?;
            let info = SnapshotInfo { slot, bytes: bytes.len() as u64 };
            let (ballots, group) = (executor.ballots(), executor.group().clone());
            let history = executor.history().clone();
            snapshot = Some(Installed { info, ballots, group, history });
        }
        #[cfg(feature = "planted-bugs")]
        if self.plan.settings.consensus.planted == Some(synod_consensus::Bug::KeepEveryReply) {
            executor.keep_every_reply();
        }
        Ok((executor, snapshot))
    }

    /// Starts a replica again, unless something else has.
    pub(super) fn restart(&mut self, of: usize) -> Checked {
        let machine = &self.machines[of];
        let gone = machine.is_alive() || machine.retired || machine.stopped;
        if gone || !self.may_join(of) { Ok(()) } else { self.start(of) }
    }

    /// Ends a life, with its process or its machine.
    pub(crate) fn crash(&mut self, of: usize) {
        let durability = self.plan.durability;
        // Only a minority may forget.
        let spared = durability.writes() && !durability.keeps_votes(Ending::Machine) && !self.may_lose(of);
        let process = self.network.wire() != Wire::Manual && self.rng.bool() || spared;
        let ending = if process { Ending::Process } else { Ending::Machine };
        self.end_life(of, ending);
    }

    /// Ends a life. The disk keeps what is durable, and some prefix of the rest.
    pub(crate) fn end_life(&mut self, of: usize, ending: Ending) {
        self.see_end_of_merge(of);
        let Some(mut life) = self.machines[of].life.take() else { return };
        let held = life.hosted.all().map(|hosted| hosted.gate.waiting().len()).sum();
        self.note(of, Mark::Crashes, || match held {
            0 => "crashes".to_owned(),
            _ => format!("crashes; {held} messages that waited for its disk are never sent"),
        });
        self.coverage.crashes += 1;
        self.see(&Sight::Ends { of });
        let machine = &mut self.machines[of];
        let waiting = machine.paused.take().map(|pause| pause.waiting).unwrap_or_default();
        let durability = self.plan.durability;
        if !durability.writes() {
            let snapshots = self.plan.disk.snapshots_lost.hit(&mut self.rng);
            machine.disk.lose_log(snapshots);
        } else if self.network.wire() == Wire::Manual {
            machine.disk.crash_hard(ending);
        } else {
            machine.disk.crash(ending, &mut self.rng);
        }
        if self.plan.settings.consensus.has(Bug::ForgetLostVotes) && durability.keeps_promises(ending) {
            machine.disk.amnesia = false;
        }
        self.coverage.votes_lost += u64::from(machine.disk.has_lost_votes());
        machine.stopped = !durability.may_restart();
        self.coverage.stopped += u64::from(machine.stopped);
        for happening in waiting {
            if let Happening::Arrive { body: Some(packet), .. } = happening {
                self.note_loss(packet.number, Loss::Down);
            }
        }
        self.break_sessions(of, ending);
        self.hang_up(of, &mut life);
    }

    /// A write or an fsync of a replica's log failed: it ends, and is started again.
    pub(super) fn disk_fails(&mut self, of: usize, error: &StorageError) {
        self.note(of, Mark::Note, || format!("its log failed: {error}"));
        self.coverage.logs_failed += 1;
        self.crash(of);
        self.restart_later(of);
    }

    /// A replica stops doing anything; what is meant for it waits.
    pub(crate) fn pause(&mut self, of: usize) {
        if self.machines[of].is_running() {
            self.note(of, Mark::Pauses, || "stops".to_owned());
            self.coverage.pauses += 1;
            self.see(&Sight::Pauses { of });
            self.machines[of].paused = Some(Pause { since: self.now, waiting: VecDeque::new() });
        }
    }

    /// A paused replica goes on with its old state, and finds that time has jumped.
    pub(crate) fn resume(&mut self, of: usize) -> Checked {
        let Some(Pause { since, waiting }) = self.machines[of].paused.take() else { return Ok(()) };
        self.note(of, Mark::Resumes, || "goes on".to_owned());
        let long = is_long(self.now.since(since), self.plan.settings.consensus.election_timeout);
        self.see(&Sight::Resumes { of, long });
        // Clients and peers have sockets of their own: what came first need not be read first.
        let clients_first = self.rng.bool();
        let (first, then): (Vec<_>, Vec<_>) =
            waiting.into_iter().partition(|happening| clients_first && is_question(happening));
        for happening in first.into_iter().chain(then) {
            self.happen(happening)?;
        }
        self.write_log(of);
        Ok(())
    }

    /// A replica's clock jumps forward: what waits for a time has waited long enough.
    pub(crate) fn jump(&mut self, of: usize, by: Duration) {
        let now = self.now;
        let Some(life) = &mut self.machines[of].life else { return };
        life.clock = life.clock.set_forward(now, life.clock.read(now) + by);
        life.timer_at = None;
        self.jumps += 1;
        self.coverage.jumps += 1;
        let long = is_long(by, self.plan.settings.consensus.election_timeout);
        self.see(&Sight::Jumps { of, long });
        if self.waits_for(of).is_some() {
            self.merges.see(MergeSituation::JumpWhileWaiting);
        }
        self.note(of, Mark::Note, || format!("its clock jumps by {by:?}"));
        self.set_timer(of);
    }

    /// One of a replica's own threads tells it something.
    pub(super) fn notice(&mut self, of: usize, life: u64, group: GroupId, event: Event) -> Checked {
        let Some(life) = self.machines[of].in_life(life) else { return Ok(()) };
        if let Event::SnapshotInstalled(Some(installed)) = &event {
            // What the burst has delivered so far comes before that.
            if !life.host.touched().is_empty() {
                self.end_burst(of)?;
            }
            let slot = installed.info.slot;
            let Some(life) = &mut self.machines[of].life else { return Ok(()) };
            life.hosted[group].watch.installed(slot);
            self.checks[group].terms.covered(of, slot);
            let delivered = &mut self.machines[of].delivered[group];
            *delivered = slot.max(*delivered);
        }
        if matches!(event, Event::SnapshotShared(_)) {
            self.merges.see(MergeSituation::SharedTrims);
        }
        if let (Event::SnapshotShared(info) | Event::SnapshotTaken(Some(info)), Some(life)) =
            (&event, &mut self.machines[of].life)
        {
            life.hosted[group].watch.snapshot(info.slot)?;
        }
        self.step(of, group, event)
    }

    /// The disk is further than before: messages leave that waited for it, and the replicas see it.
    pub(super) fn progress(&mut self, of: usize, life: u64, groups: &[GroupId]) -> Checked {
        if self.machines[of].in_life(life).is_none() {
            return Ok(());
        }
        for &group in groups {
            self.see_progress(of, group)?;
        }
        Ok(())
    }

    /// The replica of a group sees how far its disk and its executor are. What waited for the disk leaves no later: the
    /// disk goes on while a replica is paused, which then may see that in the turn of another event.
    pub(super) fn see_progress(&mut self, of: usize, group: GroupId) -> Checked {
        self.release(of, group)?;
        let machine = &self.machines[of];
        let Some(life) = &machine.life else { return Ok(()) };
        let (durable, executed) = (machine.disk.durable_of(group), life.applied(group));
        let progress = Progress { durable, executed, clock: life.clocked(group) };
        self.take(of, Input::Progress(group, progress))
    }

    /// Gives an event to the replica of a group.
    pub(crate) fn step(&mut self, of: usize, group: GroupId, event: Event) -> Checked {
        if self.machines[of].is_alive() {
            self.checks[group].situations.see(&Sight::Takes { of, event: &event });
        }
        self.take(of, Input::Event(group, event))
    }

    /// Something comes to a node. With the first input a burst begins, which ends at once or after a while.
    pub(super) fn take(&mut self, of: usize, input: Input<Waiter, Question>) -> Checked {
        self.take_in(of, |host, now| host.step(now, input))
    }

    /// The same for something that concerns all groups.
    pub(super) fn take_all(&mut self, of: usize, event: impl Fn() -> Event) -> Checked {
        self.take_in(of, |host, now| host.step_all(now, event))
    }

    fn take_in(&mut self, of: usize, step: impl FnOnce(&mut Host<Waiter, Question>, Time)) -> Checked {
        let Some(life) = &mut self.machines[of].life else { return Ok(()) };
        step(&mut life.host, life.clock.read(self.now));
        if self.plan.burst.is_zero() {
            return self.end_burst(of);
        }
        if !std::mem::replace(&mut life.in_burst, true) {
            let (burst, life) = (self.plan.burst, life.number);
            let wait = between(&mut self.rng, Duration::ZERO, burst);
            self.queue.push(self.now + wait, Happening::BurstEnds { of, life });
        }
        Ok(())
    }

    pub(super) fn burst_ends(&mut self, of: usize, number: u64) -> Checked {
        let Some(life) = self.machines[of].in_life(number) else { return Ok(()) };
        life.in_burst = false;
        // A deadline may have ended it.
        if life.host.touched().is_empty() { Ok(()) } else { self.end_burst(of) }
    }

    pub(super) fn timer(&mut self, of: usize, number: u64) -> Checked {
        let now = self.now;
        let Some(life) = self.machines[of].in_life(number) else { return Ok(()) };
        if life.timer_at.is_none_or(|at| at > now) {
            // An earlier look made this one superfluous.
            return Ok(());
        }
        life.timer_at = None;
        if life.clock.read(now) < life.host.due() {
            self.set_timer(of);
            return Ok(());
        }
        self.end_burst(of)
    }

    /// Ends a burst: the host has its turn, and what it wants is carried out.
    pub(super) fn end_burst(&mut self, of: usize) -> Checked {
        let Some(life) = &mut self.machines[of].life else { return Ok(()) };
        let now = life.clock.read(self.now);
        let rings = self.checks.groups().any(|group| life.host.deadline(group) <= now);
        life.host.turn(now);
        if rings {
            self.chart(|chart| chart.marks(of, Mark::Timer, "a deadline passes".to_owned()));
        }
        let touched = self.carry_out(of)?;
        for &group in &touched {
            self.stepped(of, group)?;
        }
        if let Some(life) = &mut self.machines[of].life {
            life.host.reuse(touched);
        }
        Ok(())
    }

    /// Sees to it that the host has its turn when it is due, or a little later.
    pub(super) fn set_timer(&mut self, of: usize) {
        let Some(life) = &mut self.machines[of].life else { return };
        let due = life.host.due();
        let is_known = std::mem::replace(&mut life.timer_for, due) == due;
        if is_known && life.timer_at.is_some() {
            return;
        }
        let Some(rings) = life.clock.when(due) else { return };
        let late = between(&mut self.rng, Duration::ZERO, self.plan.timer_late);
        let at = rings.max(self.now + LOOK) + late;
        if life.timer_at.is_none_or(|earlier| at < earlier) {
            life.timer_at = Some(at);
            let life = life.number;
            self.queue.push(at, Happening::Timer { of, life });
        }
    }

    /// What has to hold after every burst of the replica of a group.
    fn stepped(&mut self, of: usize, group: GroupId) -> Checked {
        let machine = &mut self.machines[of];
        let Some(life) = &mut machine.life else { return Ok(()) };
        let Life { host, hosted, states, whole_at, .. } = life;
        // A replica is whole once it may vote in every group that counts it, in the present epoch and knowing what it
        // forgot.
        let counts = |group| host.replica(group).group().counts(machine.id);
        let whole = |(group, hosted): (GroupId, &Hosted)| {
            (host.replica(group).may_vote() || !counts(group))
                && hosted.watch.delivered() >= machine.delivered[group]
        };
        let is_whole = || hosted.iter().all(whole) && hosted.iter().any(|(group, _)| counts(group));
        if machine.disk.lost && whole_at.is_none() && !machine.copied && is_whole() {
            *whole_at = Some(machine.disk.last());
        }
        let (replica, hosted) = (host.replica(group), &mut hosted[group]);
        let (status, present) = (replica.status(), replica.group());
        let windows = if present.proposes_anywhere() { present.voters().count() as u64 } else { 1 };
        let ahead_max = || {
            self.plan.largest(|settings| {
                let mut consensus = present.options(&settings.consensus);
                // What a leader adopts may be of an epoch with one more voter.
                consensus.window_max *= if windows > 1 { windows as usize + 1 } else { 1 };
                consensus.accept_ahead_max()
            })
        };
        let known = hosted.ahead_max.filter(|(version, _)| *version == present.version);
        let (_, ahead_max) =
            *hosted.ahead_max.insert(known.unwrap_or_else(|| (present.version, ahead_max())));
        let world = Surroundings {
            windows,
            ahead_max,
            batches_max: self.batches_max,
            decided: self.checks[group].log.last(),
        };
        hosted.watch.stepped(&status, hosted.holds, self.plan.settings_of(of), &world)?;
        let is_new = status.backlogged && !hosted.backlogged;
        self.coverage.backlogs += u64::from(is_new);
        if let Some(merged) = states[FIRST].merged().filter(|_| is_new)
            && merged.executor.waits_for().is_some()
        {
            self.merges.see(MergeSituation::Backlogged);
        }
        hosted.backlogged = status.backlogged;
        self.coverage.sends_given_up += status.sends_given_up - hosted.sends_given_up;
        hosted.sends_given_up = status.sends_given_up;
        let at = if self.order.is_some() { FIRST } else { group };
        let cached = states[at].executor().cached_reply_bytes();
        hosted.watch.caches(cached, &self.plan.settings.limits.sessions)?;
        let face = Face::of(&status, machine.disk.lost, machine.disk.is_stalled());
        self.checks[group].situations.see(&Sight::Stepped { of, face });
        if self.plan.faults.any_step.hit(&mut self.rng) {
            self.queue.push(self.now, Happening::Crash { of, life: life.number });
        }
        let (held, held_max) = (hosted.gate.waiting().len(), HELD_MAX);
        demand(held <= held_max, Invariant::Bounded, || {
            format!("{} holds {held} messages back; at most {held_max} are allowed", machine.id)
        })?;
        self.check_place(of, group)
    }
}

/// What a life finds on its disk.
pub(super) struct Found {
    pub(super) states: PerGroup<State>,
    pub(super) book: SnapshotBook<Vec<u8>>,
    /// The snapshot of each group.
    pub(super) snapshots: Vec<Option<Installed>>,
    pub(super) service: Served,
}

/// How seldom the clock of a group ticks that has none of its own.
const NEVER_TICKS: Duration = Duration::from_secs(3_600);

/// The version with which a group begins.
const FIRST_VERSION: u64 = 1;

/// The birth of a replica that has not lost its data.
pub(super) fn birth_of(id: ReplicaId) -> u64 {
    id.0
}

/// A group of a plan as it begins.
pub(super) fn first_group(plan: &Plan, of: GroupId) -> Group {
    let ids = (1..=plan.replicas as u64).map(ReplicaId);
    let mut group = Group::of(&plan.settings.consensus, ids).limited(plan.settings.limits);
    if !plan.births_later {
        // As if the voters had met, and named their births, before anything else.
        group.members.iter_mut().for_each(|member| member.birth = Some(birth_of(member.id)));
    }
    if plan.begins_with_backup && of == FIRST {
        group = group.after_backup();
    }
    match of {
        FIRST if plan.groups > 1 => group.followed(),
        FIRST if !plan.changes.follows => group,
        _ => group.following(FIRST_VERSION),
    }
}

/// Messages that wait for a disk: a stalled one stops the window, retransmission goes on.
const HELD_MAX: usize = 20_000;

/// Restores an executor from a snapshot file that was written completely.
pub(super) fn restore(executor: &mut Executor<Hosting>, slot: Slot, bytes: &[u8]) -> Checked {
    executor.restore(&mut &bytes[..]).map_err(|error| Violation {
        invariant: Invariant::Sound,
        detail: format!("the snapshot of slot {slot} cannot be restored: {error}"),
    })?;
    demand(executor.applied() == slot, Invariant::SnapshotCovers, || {
        format!("the snapshot of slot {slot} holds the state of slot {}", executor.applied())
    })
}

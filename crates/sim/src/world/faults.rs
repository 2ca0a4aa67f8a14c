//! What goes wrong, and the end of all that.

use std::{collections::BTreeMap, time::Duration};

use fastrand::Rng;
use synod_replica::{Goal, Waiting};
use synod_wire::{GroupId, Lsn, ReplicaId, Slot};

use super::{FIRST, Happening, World, checks::GroupChecks, machine::Machine};
use crate::{
    chart::Mark,
    check::{Checked, Invariant, Violation},
    clock::Moment,
    files::Files,
    network::between,
    odds::Odds,
    plan::{Ending, FilesPlan, JointPlan},
    situations::Sight,
};

/// Once faults have stopped, everything must work within this many election time-outs, and [`RECOVERY_EXTRA`].
const RECOVERY_TIMEOUTS: u32 = 60;
/// What is added to [`RECOVERY_TIMEOUTS`], however short those are.
const RECOVERY_EXTRA: Duration = Duration::from_secs(5);

/// Once nobody asks for anything more, nobody waits after this many request time-outs and election time-outs.
const REST_TIMEOUTS: u32 = 8;
/// An operator looks so often, ten times in an election time-out, whether a replica leads.
const EPOCH_TRIES: u32 = 15;
/// A long pause, and the jump of a clock, are this many times as long as another fault.
const LONG: u32 = 20;

/// Faults under way.
#[derive(Debug)]
pub(super) struct Faults {
    rng: Rng,
    /// What each partition cuts.
    partitions: BTreeMap<u64, Vec<(usize, usize)>>,
    last_partition: u64,
    /// Whether a replica (by index) is dialling another.
    dialing: Vec<bool>,
    replicas: usize,
    over: bool,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Crash,
    CrashAll,
    LoseLog,
    LoseSnapshot,
    Pause,
    Jump,
    Split,
    Partial,
    OneWay,
    Bridge,
    Stall,
    Reset,
    Change,
    Transfer,
    Restore,
    Wipe,
}

impl Faults {
    pub(super) fn new(replicas: usize, rng: Rng) -> Faults {
        Faults {
            rng,
            partitions: BTreeMap::new(),
            last_partition: 0,
            dialing: vec![false; replicas * replicas],
            replicas,
            over: false,
        }
    }

    /// Notes whether a replica is dialling another; says whether it was before.
    pub(super) fn dialing(&mut self, from: usize, to: usize, dials: bool) -> bool {
        std::mem::replace(&mut self.dialing[from * self.replicas + to], dials)
    }
}

impl World {
    /// The first fault is on its way.
    pub(super) fn begin_faults(&mut self) {
        let gap = self.plan.faults.gap;
        let wait = between(&mut self.faults.rng, gap.0, gap.1);
        self.queue.push(self.now + wait, Happening::Fault);
    }

    /// Something goes wrong.
    pub(super) fn fault(&mut self) -> Checked {
        if self.faults.over {
            return Ok(());
        }
        self.begin_faults();
        if self.trials.is_on() {
            return Ok(());
        }
        let weights = self.plan.faults.weights;
        let kinds = [
            (weights.crash, Kind::Crash),
            (weights.crash_all, Kind::CrashAll),
            (weights.lose_log, Kind::LoseLog),
            (weights.lose_snapshot, Kind::LoseSnapshot),
            (weights.pause, Kind::Pause),
            (weights.jump, Kind::Jump),
            (weights.split, Kind::Split),
            (weights.partial, Kind::Partial),
            (weights.one_way, Kind::OneWay),
            (weights.bridge, Kind::Bridge),
            (weights.stall, Kind::Stall),
            (weights.reset, Kind::Reset),
            (weights.change, Kind::Change),
            (weights.transfer, Kind::Transfer),
            (weights.restore, Kind::Restore),
            (weights.wipe, Kind::Wipe),
        ];
        let total: u32 = kinds.iter().map(|(weight, _)| weight).sum();
        if total == 0 {
            return Ok(());
        }
        let mut drawn = self.faults.rng.u32(0..total);
        for (weight, kind) in kinds {
            if drawn < weight {
                return self.go_wrong(kind);
            }
            drawn -= weight;
        }
        Ok(())
    }

    fn lasts(&mut self) -> Duration {
        let (low, high) = self.plan.faults.lasts;
        between(&mut self.faults.rng, low, high)
    }

    /// The machine that a fault hits: the leader's, or any.
    fn victim(&mut self) -> usize {
        let group = self.some_group();
        let leader = self.leader_of(group).map(|id| self.index(id));
        let hits_leader = self.plan.faults.leader.hit(&mut self.faults.rng);
        let anybody = self.faults.rng.usize(0..self.machines.len());
        leader.filter(|_| hits_leader).unwrap_or(anybody)
    }

    fn go_wrong(&mut self, kind: Kind) -> Checked {
        let of = self.victim();
        match kind {
            Kind::Crash => self.crash_for_a_while(of),
            Kind::CrashAll => {
                if self.plan.durability.keeps_votes(Ending::Process) {
                    (0..self.machines.len()).for_each(|of| self.crash_for_a_while(of));
                }
            }
            Kind::LoseLog => self.crash_and_lose_log(of),
            Kind::LoseSnapshot => {
                if self.may_lose(of) {
                    self.crash_for_a_while(of);
                    self.note(of, Mark::Note, || "finds its newest snapshot damaged".to_owned());
                    let group = self.some_group();
                    self.machines[of].disk.damage_snapshot(group);
                    self.coverage.snapshots_damaged += 1;
                }
            }
            Kind::Pause => {
                self.pause(of);
                let mut lasts = self.lasts();
                if self.plan.faults.long_pauses.hit(&mut self.faults.rng) {
                    lasts *= LONG;
                    self.coverage.long_pauses += 1;
                }
                self.queue.push(self.now + lasts, Happening::Resume { of });
            }
            Kind::Jump => {
                let by = self.lasts() * LONG;
                self.jump(of, by);
            }
            Kind::Split => {
                let side: Vec<bool> = self.machines.iter().map(|_| self.faults.rng.bool()).collect();
                self.partition(|_, from, to| side[from] != side[to]);
            }
            Kind::Partial => {
                let symmetric = self.faults.rng.bool();
                let mut cut = std::collections::BTreeSet::new();
                self.partition(|rng, from, to| {
                    let cuts = if symmetric && from > to { cut.contains(&(to, from)) } else { rng.bool() };
                    if cuts {
                        cut.insert((from, to));
                    }
                    cuts
                });
            }
            Kind::OneWay => {
                let (deaf, mute) = [(true, false), (false, true), (true, true)][self.faults.rng.usize(0..3)];
                self.partition(|_, from, to| deaf && to == of || mute && from == of);
            }
            Kind::Bridge => return self.bridge(),
            Kind::Stall => self.stall_for_a_while(of),
            Kind::Reset => {
                for from in 0..self.machines.len() {
                    for to in (0..self.machines.len()).filter(|&to| to != from) {
                        if self.network.wire().has_sessions() && self.faults.rng.bool() {
                            self.end_session(from, to);
                        }
                    }
                }
            }
            Kind::Change => return self.operate(),
            Kind::Transfer => return self.hand_over(of),
            Kind::Restore => self.restore(of),
            Kind::Wipe => {
                // Replicas that joined are few, and lose their data in ways of their own.
                let joined = self.plan.replicas..self.machines.len();
                let joined: Vec<_> = joined.filter(|&at| self.machines[at].is_alive()).collect();
                let joiner = self.faults.rng.choice(joined);
                self.wipe(joiner.unwrap_or(of));
            }
        }
        Ok(())
    }

    fn stall_for_a_while(&mut self, of: usize) {
        self.note(of, Mark::DiskStalls, || "disk stalls".to_owned());
        self.coverage.stalls += 1;
        self.machines[of].disk.stall(true);
        let lasts = self.lasts();
        self.queue.push(self.now + lasts, Happening::Unstall { of });
    }

    /// Whether a process may end, so that those with their memory stay enough.
    pub(super) fn may_crash(&self, of: usize) -> bool {
        let durability = self.plan.durability;
        (durability.keeps_votes(Ending::Process) || self.may_lose(of))
            && (durability.may_restart() || self.may_stop(of))
    }

    pub(super) fn crash_for_a_while(&mut self, of: usize) {
        if self.may_crash(of) {
            self.crash(of);
            self.restart_later(of);
        }
    }

    pub(super) fn restart_later(&mut self, of: usize) {
        let lasts = self.lasts();
        self.queue.push(self.now + lasts, Happening::Restart { of });
    }

    fn crash_and_lose_log(&mut self, of: usize) {
        // One that lost all its data has nothing to lose, and knows it.
        if self.machines[of].wiped || !self.may_lose(of) {
            return;
        }
        if let Some(files) = self.machines[of].disk.files() {
            // Only what a log that was idle lost is always noticed; and one harm at a time.
            if files.idle() {
                self.crash(of);
                self.harm_files(of);
            }
            return;
        }
        self.crash(of);
        let planted = self.plan.settings.consensus.planted;
        let held = self.checks.groups().map(|group| self.held_by_files(of, group)).collect();
        let disk = &mut self.machines[of].disk;
        if self.plan.disk.repairs && self.faults.rng.u8(0..8) > 0 {
            self.coverage.slots_kept += disk.repair_log(&held, &mut self.faults.rng, planted);
            self.coverage.logs_repaired += 1;
        } else if self.faults.rng.bool() {
            let snapshots = self.plan.disk.snapshots_lost.hit(&mut self.faults.rng);
            disk.lose_log(snapshots);
        } else {
            disk.damage_log(&mut self.faults.rng);
        }
        self.note(of, Mark::Note, || "loses (part of) its log".to_owned());
        self.coverage.logs_lost += 1;
        let lasts = self.lasts();
        self.queue.push(self.now + lasts, Happening::Restart { of });
    }

    fn harm_files(&mut self, of: usize) {
        let disk = &mut self.machines[of].disk;
        let lost = std::mem::replace(&mut disk.lost, true);
        let harm = disk.files().map(|files| files.harm(lost)).unwrap_or_default();
        self.note(of, Mark::Note, || format!("has its log harmed: {harm}"));
        self.coverage.logs_lost += 1;
        self.restart_later(of);
    }

    /// The leader and fewer voters than a quorum are cut off from the others, and one replica reaches both: a learner,
    /// if there is one, mostly. Before that the leader is told to let one of the others lead, which may reach that one
    /// or not.
    fn bridge(&mut self) -> Checked {
        let Some(leader) = self.leader().map(|id| self.index(id)) else { return Ok(()) };
        let group = self.checks[FIRST].groups.latest();
        let index = |id: ReplicaId| usize::try_from(id.0).expect("a small number") - 1;
        let timeout = |of: usize| self.plan.settings_of(of).consensus.election_timeout;
        let elects = self.plan.faults.bridge.elects;
        let slowest = group.voters().map(index).max_by_key(|&of| timeout(of));
        if let Some(slowest) = slowest.filter(|&of| elects && timeout(of) > timeout(leader)) {
            return self.hand_over(slowest);
        }
        let mut voters: Vec<usize> = group.voters().map(index).filter(|&of| of != leader).collect();
        let learners: Vec<usize> = group.learners().map(|(id, _)| index(id)).collect();
        let rng = &mut self.faults.rng;
        rng.shuffle(&mut voters);
        if elects {
            // The replicas with the shortest time-outs miss a leader first. One that waits longer votes for none.
            voters.sort_by_key(|&of| timeout(of));
        }
        let voter = if rng.u8(0..4) == 0 { voters.pop() } else { None };
        let Some(bridge) =
            rng.choice(learners).filter(|_| voter.is_none()).or(voter).or_else(|| voters.pop())
        else {
            return Ok(());
        };
        let quorum = group.voters().count() / 2 + 1;
        let others: Vec<usize> = voters.iter().copied().take(quorum).collect();
        let side = |of: usize| others.contains(&of);
        let count = self.machines.len();
        let pairs = (0..count).flat_map(|from| (0..count).map(move |to| (from, to)));
        let links: Vec<(usize, usize)> =
            pairs.filter(|&(from, to)| from != bridge && to != bridge && side(from) != side(to)).collect();
        let Some(&heir) = others.first() else { return Ok(()) };
        let transfers = self.plan.faults.bridge.transfer.hit(&mut self.faults.rng);
        let travels = self.plan.network.delay_max * 3;
        let timeout = self.plan.settings.consensus.election_timeout;
        let wait =
            if transfers { between(&mut self.faults.rng, Duration::ZERO, travels) } else { Duration::ZERO };
        self.coverage.bridges += 1;
        let lasts = self.lasts();
        self.queue.push(self.now + wait, Happening::Part { links, lasts });
        let plan = self.plan.faults.bridge;
        let rng = &mut self.faults.rng;
        if plan.elects && rng.u8(0..5) > 0 {
            let lasts = between(rng, lasts / 2, lasts * 3 / 4);
            let mine = (0..count).filter(|&of| of != bridge && !side(of));
            let links = mine.flat_map(|of| [(of, bridge), (bridge, of)]).collect();
            self.queue.push(self.now + wait, Happening::Part { links, lasts });
        }
        let rival = voters.get(quorum..).and_then(|left| rng.choice(left)).copied();
        let rival = rival.filter(|_| plan.rival.hit(rng));
        if plan.stall.hit(rng) {
            self.stall_for_a_while(leader);
        }
        if self.plan.faults.bridge.epoch.hit(&mut self.faults.rng) {
            let wait = between(&mut self.faults.rng, travels, timeout / 4);
            self.queue.push(self.now + wait, Happening::EpochEnds { of: heir, tries: EPOCH_TRIES });
        }
        if transfers {
            self.hand_over(heir)?;
        }
        rival.map_or(Ok(()), |rival| self.hand_over(rival))
    }

    /// A partition begins.
    pub(super) fn part_for_a_while(&mut self, links: Vec<(usize, usize)>, lasts: Duration) {
        if self.faults.over || self.trials.is_on() {
            return;
        }
        let partition = self.cut(links);
        self.queue.push(self.now + lasts, Happening::Mend { partition });
    }

    /// Cuts the links that are chosen.
    fn partition(&mut self, mut cuts: impl FnMut(&mut Rng, usize, usize) -> bool) {
        let mut links = Vec::new();
        for from in 0..self.machines.len() {
            for to in (0..self.machines.len()).filter(|&to| to != from) {
                if cuts(&mut self.faults.rng, from, to) {
                    links.push((from, to));
                }
            }
        }
        let lasts = self.lasts();
        self.part_for_a_while(links, lasts);
    }

    /// Cuts links; sessions over them may end, at any time until the partition does.
    pub(crate) fn cut(&mut self, links: Vec<(usize, usize)>) -> u64 {
        self.note_for_all(|| {
            let links: Vec<String> =
                links.iter().map(|(from, to)| format!("r{}→r{}", from + 1, to + 1)).collect();
            format!("network   cut: {}", links.join(" "))
        });
        self.coverage.partitions += 1;
        self.see(&Sight::Cuts(&links));
        let longest = self.plan.faults.lasts.1;
        for &(from, to) in &links {
            self.network.cut(from, to);
            if self.network.wire().has_sessions() && self.faults.rng.bool() {
                let session = self.network.session(from, to);
                let wait = between(&mut self.faults.rng, Duration::ZERO, longest);
                self.queue.push(self.now + wait, Happening::Hangup { from, to, session });
            }
        }
        self.faults.last_partition += 1;
        self.faults.partitions.insert(self.faults.last_partition, links);
        self.faults.last_partition
    }

    /// A partition ends.
    pub(super) fn mend(&mut self, partition: u64) {
        let Some(links) = self.faults.partitions.remove(&partition) else { return };
        self.note_for_all(|| "network   mended".to_owned());
        self.see(&Sight::Mends(&links));
        for (from, to) in links {
            self.uncut(from, to);
        }
    }

    /// All partitions end.
    pub(crate) fn mend_all(&mut self) {
        let partitions: Vec<u64> = self.faults.partitions.keys().copied().collect();
        partitions.into_iter().for_each(|partition| self.mend(partition));
    }

    pub(crate) fn unstall(&mut self, of: usize) {
        let machine = &mut self.machines[of];
        if !machine.disk.is_stalled() {
            return;
        }
        machine.disk.stall(false);
        let life = machine.lives;
        if machine.disk.is_syncing() {
            self.queue.push(self.now, Happening::SyncEnds { of, life });
        }
        self.note(of, Mark::DiskGoesOn, || "disk goes on".to_owned());
    }

    /// Everything is mended, everybody is up again, and nothing goes wrong any more.
    pub(super) fn make_peace(&mut self) -> Checked {
        self.note_for_all(|| "all faults are over".to_owned());
        self.faults.over = true;
        self.network.calm();
        self.plan.disk.snapshot_fails = Odds::NEVER;
        self.plan.disk.files = self.plan.disk.files.map(|_| FilesPlan::CALM);
        self.machines.iter_mut().filter_map(|machine| machine.disk.files()).for_each(Files::calm);
        self.plan.faults.any_step = Odds::NEVER;
        self.plan.faults.between_pages = Odds::NEVER;
        self.plan.faults.joint = JointPlan::default();
        self.plan.clients.cancels = Odds::NEVER;
        // Clients wait long from now on: one that gives up early and asks for more keeps a small cluster overloaded.
        self.plan.clients.timeout = self.plan.clients.timeout.max(self.plan.settings.request_timeout * 2);
        self.set_right()?;
        self.end_waits_for_the_removed();
        (0..self.machines.len()).try_for_each(|of| self.sees_at_last(of))
    }

    /// Everything is mended, and everybody up.
    pub(super) fn set_right(&mut self) -> Checked {
        self.mend_all();
        for of in 0..self.machines.len() {
            self.unstall(of);
            self.resume(of)?;
            self.restart(of)?;
        }
        Ok(())
    }

    pub(super) fn faults_are_over(&self) -> bool {
        self.faults.over
    }

    /// Runs until every replica has taken a write and answered a read, and all have the same state.
    pub(super) fn run_to_recovery(&mut self, peace: Moment) -> Checked {
        let timeout = self.plan.settings.consensus.election_timeout;
        let end = peace + timeout * RECOVERY_TIMEOUTS + RECOVERY_EXTRA;
        self.begin_probing();
        // The replicated clock ticks on, so that there is always something new: what counts is what there was when
        // the last probe was answered.
        let mut target: Option<Vec<Slot>> = None;
        while self.now < end {
            self.probe_members();
            self.run_until(self.now + timeout / 4)?;
            if !self.probes_missing().is_empty() {
                continue;
            }
            let last = || self.checks.all().map(|checks| checks.log.last()).collect();
            let targets = target.get_or_insert_with(last);
            if self.checks.groups().zip(targets).all(|(group, target)| self.converged(group, *target)) {
                return self.come_to_rest();
            }
        }
        let missing: Vec<String> = self
            .probes_missing()
            .iter()
            .map(|(group, of)| format!("r{}{}", of + 1, self.name(*group)))
            .collect();
        let detail = format!(
            "{:?} after the last fault, no write and read succeeded at [{}]; {:?}{}; {}",
            end.since(peace),
            missing.join(" "),
            self.checks.all().map(|checks| checks.log.group()).collect::<Vec<_>>(),
            if self.has_followed() { "" } else { ", which has not followed group 0" },
            self.roles()
        );
        Err(Violation { invariant: Invariant::Liveness, detail })
    }

    /// Nobody asks for anything more: soon nobody waits for anything. (The replicated clock ticks on, so there is
    /// always something under way now and then; but at no replica at every moment. A disk that takes longer than a tick
    /// always holds some message back, but none for good: only what waits for a record of before this began counts.)
    fn come_to_rest(&mut self) -> Checked {
        self.plan.clients.operations = 0;
        self.end_guests();
        let settings = &self.plan.settings;
        let timeout = settings.consensus.election_timeout;
        let end = self.now + settings.request_timeout * REST_TIMEOUTS + timeout * REST_TIMEOUTS;
        let groups: Vec<GroupId> = self.checks.groups().collect();
        let written = |(of, machine): (usize, &Machine)| {
            let log = |group| (machine.disk.last_of(group), self.checks[group].log.last());
            groups.iter().map(move |&group| (of, group, log(group))).collect::<Vec<_>>()
        };
        let mut restless: Vec<_> = self.machines.iter().enumerate().flat_map(written).collect();
        loop {
            restless.retain(|&(of, group, log)| self.waiters(of, group, log).is_some());
            let waits = restless.first().and_then(|&(of, group, log)| self.waiters(of, group, log));
            let Some(waits) = waits.or_else(|| self.lingers()) else { break };
            if self.now >= end {
                let detail = format!("long after the last request was made, {waits}");
                return Err(Violation { invariant: Invariant::NothingWaits, detail });
            }
            // The interval is not a multiple of any replica's timer.
            let wait = between(&mut self.faults.rng, Duration::ZERO, timeout / 8);
            self.run_until(self.now + wait)?;
        }
        (0..self.machines.len())
            .try_for_each(|of| self.checks.groups().try_for_each(|group| self.check_state(of, group)))
    }

    /// What somebody waits for at the replica of a group, whose log once ended with `written` when `decided` was the
    /// last slot, for people. Where groups are merged each tick of the clock waits until the others have skipped, so
    /// slots after that may wait at any time.
    fn waiters(&self, of: usize, group: GroupId, (written, decided): (Lsn, Slot)) -> Option<String> {
        let machine = &self.machines[of];
        let life = machine.life.as_ref().filter(|_| self.is_needed(machine.id))?;
        let (mut waiting, hosted) = (life.replica(group).waiting(), &life.hosted[group]);
        let state = &life.states[life.state_at(group)];
        let held = hosted.gate.waiting().filter(|(after, _)| *after <= written).count();
        if held == 0 {
            waiting.held_bytes = 0;
        }
        if self.order.is_some() && life.applied(group) >= decided {
            waiting.unexecuted = 0;
        }
        let (tasks, reads) = (state.execution.len(), state.reads.len());
        let busy = waiting != Waiting::default() || (tasks, held, reads) != (0, 0, 0);
        busy.then(|| {
            format!(
                "{} keeps {waiting:?}, {tasks} tasks of its executor, {held} messages for its disk to release, and \
                 {reads} reads to answer",
                machine.id
            )
        })
    }

    /// Whether a group has a replica, or may come back to it. Of one that every group has removed only its end counts:
    /// merged groups may wait there for what nobody tells it any more.
    fn is_needed(&self, id: ReplicaId) -> bool {
        self.checks
            .all()
            .map(|checks| checks.log.group())
            .any(|group| group.member(id).is_some() || group.is_away(id))
    }

    /// A node that was removed and goes on, for people. One that lost its data, or that nobody listens to, does not
    /// learn that it was removed; nor does one that waits for members that it has not met. One that was away for so
    /// long that members have no session with it any more asks, and ends.
    fn lingers(&self) -> Option<String> {
        if self.first.is_some() {
            // What ends a node there is the list of the first group, which a removed node does not see.
            return None;
        }
        let hears = |&of: &usize| {
            !self.machines[of].copied && !self.is_out(of) && !self.learns_of_its_removal_by_asking(of)
        };
        let mut alive = (0..self.machines.len()).filter(|&of| self.machines[of].is_alive()).filter(hears);
        let of = alive.find(|&of| !self.is_needed(self.machines[of].id))?;
        Some(format!("{}, which was removed, has not ended", self.machines[of].id))
    }

    /// What all replicas do, for people.
    pub(super) fn roles(&self) -> String {
        let role = |(group, machine): (GroupId, &Machine)| {
            let Some(life) = &machine.life else { return format!("{} is down", machine.id) };
            let status = life.replica(group).status();
            let protocol = status.protocol;
            format!(
                "{}{} is {} in epoch {} and {}, has decided {} of {} and executed {}",
                machine.id,
                self.name(group),
                protocol.role.as_str(),
                status.epoch,
                protocol.view.ballot,
                protocol.decided,
                protocol.decided_elsewhere,
                status.executed
            )
        };
        let groups = self.checks.groups();
        let all = groups.flat_map(|group| self.machines.iter().map(move |machine| (group, machine)));
        let roles: Vec<String> = all.map(role).collect();
        roles.join("; ")
    }

    /// The name of a group where there are several, after that of a replica.
    fn name(&self, group: GroupId) -> String {
        if self.plan.groups > 1 { format!(" of group {group}") } else { String::new() }
    }

    /// The members of all groups, by index.
    pub(super) fn members(&self) -> Vec<(GroupId, usize)> {
        let of = |(group, checks): (GroupId, &GroupChecks)| {
            let members = checks.log.group().members.iter();
            members.map(|member| (group, self.index(member.id))).collect::<Vec<_>>()
        };
        self.checks.iter().flat_map(of).collect()
    }

    /// Whether all members of a group have executed the slots through this one, the right ones vote, no learner is left
    /// that is there to vote, no change is half made, and a group that follows has the members that it should have.
    pub(super) fn converged(&self, at: GroupId, target: Slot) -> bool {
        let group = self.checks[at].log.group();
        // One that lost its data gets no vote: it waits for an operator who would remove it.
        let wiped = |id| self.machines[self.index(id)].wiped;
        group.learners().all(|(id, goal)| goal == Goal::Learn || wiped(id))
            && group.outgoing.is_empty()
            && self.has_followed()
            && group.members.iter().filter(|member| !self.is_out(self.index(member.id))).all(|member| {
                let life = self.machines[self.index(member.id)].life.as_ref();
                life.is_some_and(|life| {
                    let replica = life.replica(at);
                    let votes =
                        !group.votes(member.id) || replica.group().votes(member.id) && replica.may_vote();
                    life.applied(at) >= target && votes
                })
            })
    }
}

//! What goes wrong, and the end of all that: then every node executes everything, and an idle system says nothing more.

use std::time::Duration;

use synod_consensus::{Link, Role};
use synod_host::Input;
use synod_replica::{ChangeRequest, Replica, Skips};
use synod_wire::{CommandKind, GroupId, Slot};

use super::{
    Happening, World,
    machine::{Machine, Waiter},
    plan::draw_change,
};
use crate::{
    check::{Checked, Invariant, Violation, demand},
    clock::Moment,
    network::between,
};

const MS: Duration = Duration::from_millis(1);

/// The system stays idle that long, after all is over.
const IDLE: Duration = Duration::from_secs(5);

/// Messages of a group from one node to another come late.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hold {
    from: usize,
    to: usize,
    group: GroupId,
    pub until: Moment,
}

impl Hold {
    pub fn holds(&self, from: usize, to: usize, group: GroupId) -> bool {
        (self.from, self.to, self.group) == (from, to, group)
    }
}

impl World {
    pub(super) fn begin_faults(&mut self) {
        self.fault_later();
    }

    fn fault_later(&mut self) {
        let wait = between(&mut self.rng, self.plan.fault_interval / 2, self.plan.fault_interval * 2);
        self.queue.push(self.now + wait, Happening::Fault);
    }

    /// Something goes wrong.
    pub(super) fn fault(&mut self) -> Checked {
        if self.peace {
            return Ok(());
        }
        self.fault_later();
        let weights = self.plan.faults;
        let kinds = [
            weights.crash,
            weights.crash_all,
            weights.pause,
            weights.isolate,
            weights.cut,
            weights.reset,
            weights.hold,
            weights.stall,
            weights.change,
        ];
        let sum: u32 = kinds.iter().sum();
        if sum == 0 {
            return Ok(());
        }
        let mut drawn = self.rng.u32(0..sum);
        let kind = kinds.iter().position(|&weight| {
            let hit = drawn < weight;
            drawn = drawn.wrapping_sub(if hit { 0 } else { weight });
            hit
        });
        let timeout = self.plan.base().consensus.election_timeout;
        let of = self.victim();
        let nodes = self.machines.len();
        let other = (of + self.rng.usize(1..nodes)) % nodes;
        let longest = timeout * self.rng.u32(1..6);
        let lasts = between(&mut self.rng, 20 * MS, longest);
        match kind {
            Some(0) => self.crash_for(of, lasts)?,
            Some(1) => {
                for of in 0..nodes {
                    self.crash_for(of, lasts / 4)?;
                }
            }
            Some(2) => self.pause(of, lasts),
            Some(3) => {
                let others = (0..nodes).filter(|other| *other != of);
                self.cut_for(others.map(|other| (of, other)).collect(), lasts);
            }
            Some(4) => self.cut_for(vec![(of, other)], lasts),
            Some(5) => self.break_session(of, other, Link::Down)?,
            Some(6) => {
                let group = GroupId(self.rng.u16(0..self.plan.groups.len() as u16));
                self.line(of, || format!("is heard late in {group} for {lasts:?}"));
                let (now, everybody) = (self.now, self.rng.bool());
                self.holds.retain(|hold| hold.until > now);
                let to = (0..nodes).filter(|to| *to != of && (everybody || *to == other));
                self.holds.extend(to.map(|to| Hold { from: of, to, group, until: now + lasts }));
            }
            Some(7) => {
                self.line(of, || format!("its disk does not answer for {lasts:?}"));
                self.machines[of].stalled = true;
                self.queue.push(self.now + lasts, Happening::Unstall { of });
            }
            _ => self.change(of)?,
        }
        Ok(())
    }

    /// A node that something happens to: one that leads a group, more often than others.
    fn victim(&mut self) -> usize {
        let group = self.rng.u16(0..self.plan.groups.len() as u16);
        let leader = self.leader_of(GroupId(group));
        let any = self.rng.usize(0..self.machines.len());
        leader.filter(|_| self.rng.bool()).unwrap_or(any)
    }

    /// A node that leads a group, as far as it knows.
    pub(super) fn leader_of(&self, group: GroupId) -> Option<usize> {
        let leads = |machine: &Machine| {
            let life = machine.life.as_ref();
            life.is_some_and(|life| life.host.replica(group).status().protocol.role == Role::Leader)
        };
        self.machines.iter().position(leads)
    }

    fn crash_for(&mut self, of: usize, lasts: Duration) -> Checked {
        if self.machines[of].life.is_some() {
            self.crash(of)?;
            self.queue.push(self.now + lasts, Happening::Restart { of });
        }
        Ok(())
    }

    fn cut_for(&mut self, links: Vec<(usize, usize)>, lasts: Duration) {
        self.trace.line(self.now, || format!("links are cut for {lasts:?}: {links:?}"));
        links.iter().for_each(|&(one, other)| self.cut(one, other));
        self.queue.push(self.now + lasts, Happening::Mend { links });
    }

    /// An operator wants a group to go on with another protocol, or other voters.
    fn change(&mut self, of: usize) -> Checked {
        let group = GroupId(self.rng.u16(0..self.plan.groups.len() as u16));
        let change = draw_change(&mut self.rng, group, &self.plan, self.order.group(GroupId::FIRST));
        let is_paused = self.machines[of].paused.is_some();
        let Some(life) = self.machines[of].life.as_ref().filter(|_| !is_paused) else { return Ok(()) };
        let expected = life.host.replica(group).group().version;
        let payload = ChangeRequest { expected, change }.encode().to_bytes();
        self.line(of, || format!("is asked for a change of {group}"));
        let (kind, client) = (CommandKind::Reconfigure, Waiter::Operator);
        self.give(of, Input::Command { group, kind, session: None, payload, client });
        self.end_burst(of)
    }

    /// Ends all faults.
    pub(super) fn make_peace(&mut self) -> Checked {
        self.peace = true;
        self.trace.line(self.now, || "peace".to_owned());
        for of in 0..self.machines.len() {
            self.resume(of)?;
            self.unstall(of)?;
            self.restart(of)?;
        }
        for one in 0..self.machines.len() {
            for other in one + 1..self.machines.len() {
                while self.links_cut(one, other) {
                    self.mend(one, other)?;
                }
            }
        }
        self.clients.closing = true;
        self.begin_probing();
        Ok(())
    }

    /// Lets time pass until every node has executed everything, and nobody waits; the last slots of the groups that all
    /// have executed.
    pub(super) fn run_to_recovery(&mut self, peace: Moment) -> Result<Vec<Slot>, Violation> {
        let base = self.plan.base();
        let time_max =
            base.consensus.election_timeout * 20 + base.request_timeout * 4 + Duration::from_secs(20);
        let mut decided = self.decided();
        let mut noted = self.now;
        while let Some(missing) = self.missing(&decided) {
            demand(self.now.since(peace) < time_max, Invariant::Liveness, || {
                format!("{time_max:?} after the end of all faults: {missing}")
            })?;
            self.run_until(self.now + 50 * MS)?;
            // With `lambda` something is decided all the time. A follower hears of it with the next message, so there
            // may be no moment at which all have executed what is decided then: they must have what was decided a
            // moment ago.
            if !matches!(self.plan.skips, Skips::Lambda(_)) || self.now.since(noted) >= Duration::from_secs(1)
            {
                (decided, noted) = (self.decided(), self.now);
            }
        }
        Ok(decided)
    }

    /// Stops the leader of a group in which nobody asks for anything, for a second: how many decided slots of the first
    /// group another node has not executed right before that is over, and so long after.
    ///
    /// # Errors
    /// What was violated.
    pub fn pause_of_the_idle_leader(&mut self, after: Duration) -> Result<(u64, u64), Violation> {
        const IDLE_GROUP: GroupId = GroupId(1);
        (0..self.plan.nodes).try_for_each(|of| self.start(of))?;
        self.begin_asking();
        self.run_until(self.now + Duration::from_secs(7))?;
        let leader = self.leader_of(IDLE_GROUP).filter(|of| self.leader_of(GroupId::FIRST) != Some(*of));
        let leader = leader.expect("the groups have leaders, at different nodes");
        let lasts = Duration::from_secs(1);
        self.pause(leader, lasts);
        self.run_until(self.now + (lasts - MS))?;
        let other = (leader + 1) % self.plan.nodes;
        let before = self.unexecuted(other);
        self.run_until(self.now + MS + after)?;
        Ok((before, self.unexecuted(other)))
    }

    /// How many slots of the first group are decided and not executed at a node.
    fn unexecuted(&self, of: usize) -> u64 {
        let life = self.machines[of].life.as_ref().expect("it runs");
        self.order.last(GroupId::FIRST).0 - life.merged.executor().applied_of(GroupId::FIRST).0
    }

    /// What replicas offer to peers is what they would send.
    fn check_offers(&self) -> Checked {
        for (of, machine) in self.machines.iter().enumerate() {
            let Some(life) = &machine.life else { continue };
            for (group, replica) in self.groups().zip(life.host.replicas()) {
                let Some(offered) = replica.status().snapshot else { continue };
                let files = life.snapshots.book.merged().expect("groups are merged");
                let held = files.holding(group, offered.slot).map(|file| file.bytes);
                demand(held == Some(offered.bytes), Invariant::SnapshotCovers, || {
                    format!("r{} offers {offered:?} of {group}, and has a file of {held:?} bytes", of + 1)
                })?;
            }
        }
        Ok(())
    }

    /// The last slot of each group that is decided.
    fn decided(&self) -> Vec<Slot> {
        self.groups().map(|group| self.order.last(group)).collect()
    }

    /// What is not as it should be at rest, if everybody must have executed these slots.
    fn missing(&self, decided: &[Slot]) -> Option<String> {
        if !self.clients.are_done() {
            return Some(format!("{}; {}", self.clients.missing(), self.positions()));
        }
        if let Some(missing) = self.missing_of_members() {
            return Some(missing);
        }
        for of in 0..self.machines.len() {
            if self.machines[of].gone {
                continue;
            }
            let Some(life) = &self.machines[of].life else {
                return Some(format!("r{} does not run", of + 1));
            };
            let applied = life.merged.executor().cut().slots;
            if let Some((group, _)) =
                self.groups().zip(applied.iter().zip(decided)).find(|(_, (has, last))| has < last)
            {
                return Some(format!("r{} lacks slots of {group}; {}", of + 1, self.positions()));
            }
            if !life.waiting.is_empty() {
                return Some(format!("reads wait at r{}; {}", of + 1, self.positions()));
            }
            let waits = life.host.replicas().map(Replica::waiting);
            if waits.clone().any(|waits| waits.commands + waits.reads + waits.changes > 0) {
                return Some(format!("r{} waits: {:?}", of + 1, waits.collect::<Vec<_>>()));
            }
        }
        None
    }

    /// How far everybody is, for people.
    pub(super) fn positions(&self) -> String {
        let nodes = self.machines.iter().enumerate().map(|(of, machine)| {
            let Some(life) = &machine.life else { return format!("r{} is down", of + 1) };
            let applied = super::slots(&life.merged.executor().cut().slots);
            let groups = life.hosted.iter().zip(life.host.replicas()).map(|(hosted, replica)| {
                let (status, place) = (replica.status(), replica.merged_at().unwrap_or_default());
                let backlogged = if status.backlogged { " backlogged" } else { "" };
                let leader = status.protocol.view.leader.map_or(0, |id| id.0);
                let receiving = status
                    .receiving
                    .map_or(String::new(), |(info, at)| format!(" receives {info:?} at {at}"));
                format!("{}@{} led by {leader}{backlogged}{receiving}", hosted.delivered, place.position)
            });
            let waits = life.merged.waits_for();
            format!("r{} executed {applied} (waits for {waits:?}) {:?}", of + 1, groups.collect::<Vec<_>>())
        });
        nodes.collect::<Vec<_>>().join("; ")
    }

    /// An idle system orders nothing but ticks of the clock, and what these make others skip.
    pub(super) fn stay_idle(&mut self) -> Checked {
        // What the last commands made others skip may still be on its way.
        self.run_until(self.now + Duration::from_secs(1))?;
        self.check_offers()?;
        let before = self.decided();
        let order = self.order.len();
        self.run_until(self.now + IDLE)?;
        let ticks = usize::try_from(self.order.len() - order).expect("few");
        let skips: usize =
            self.groups().zip(before).map(|(group, slot)| self.order.skips_since(group, slot)).sum();
        let groups = self.plan.groups.len();
        let most = match self.plan.skips {
            // One in each period of a group.
            Skips::Lambda(_) => (IDLE.as_millis() / 100 + 2) as usize * groups + ticks * groups,
            _ => ticks * groups * 2,
        };
        demand(skips <= most, Invariant::Idle, || {
            format!("an idle system has skipped {skips} times in {IDLE:?}, with {ticks} ticks of the clock")
        })
    }
}

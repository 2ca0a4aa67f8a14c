//! The bursts in which a node's [`Host`](synod_host::Host) steps its replicas, carried out in the order of the node
//! (`crates/node/src/protocol.rs`). What falls to the thread there falls to the world here.

use std::time::Duration;

use synod_host::{Effect, Input};
use synod_replica::Event;
use synod_wire::{GroupId, Time};

use super::{
    Happening, Situation, World,
    clients::Ask,
    machine::{Life, Waiter},
};
use crate::{
    check::{Checked, Invariant, demand},
    clock::Moment,
    network::between,
};

impl World {
    /// Gives an event to the replica of a group. The end of a burst follows.
    pub(super) fn step(&mut self, of: usize, group: GroupId, event: Event) {
        self.give(of, Input::Event(group, event));
    }

    /// Gives something to a node. The end of a burst follows.
    pub(super) fn give(&mut self, of: usize, input: Input<Waiter, Ask>) {
        if let Some(life) = &mut self.machines[of].life {
            life.host.step(life.clock.read(self.now), input);
        }
    }

    /// A deadline may have passed.
    pub(super) fn timer(&mut self, of: usize, number: u64) -> Checked {
        let now = self.now;
        let Some(life) = self.machines[of].in_life(number) else { return Ok(()) };
        if life.timer_at.is_none_or(|at| at > now) {
            return Ok(()); // An earlier look made this one superfluous.
        }
        life.timer_at = None;
        self.end_burst(of)
    }

    /// The executor may be further than the replicas were told.
    pub(super) fn seen(&mut self, of: usize, number: u64) -> Checked {
        let is_further = self.machines[of].in_life(number).is_some_and(|life| !life.ahead.is_empty());
        if is_further { self.end_burst(of) } else { Ok(()) }
    }

    /// Carries out what the start of the replicas wants done.
    pub(super) fn begin_bursts(&mut self, of: usize) -> Checked {
        let Some(life) = &self.machines[of].life else { return Ok(()) };
        let now = life.clock.read(self.now);
        self.carry_out_all(of, now)?;
        self.leave_burst(of)
    }

    /// Ends a burst of inputs, and does what they cause.
    pub(super) fn end_burst(&mut self, of: usize) -> Checked {
        let Some(life) = &mut self.machines[of].life else { return Ok(()) };
        let now = life.clock.read(self.now);
        for group in std::mem::take(&mut life.ahead) {
            let progress = life.progress(group);
            life.host.step(now, Input::Progress(group, progress));
        }
        life.host.turn(now);
        self.carry_out_all(of, now)?;
        let Some(life) = &mut self.machines[of].life else { return Ok(()) };
        let skips = life.host.skip(now);
        if !skips.is_empty() {
            self.see_skips(of, skips);
            self.carry_out_all(of, now)?;
        }
        self.leave_burst(of)
    }

    fn see_skips(&mut self, of: usize, skips: Vec<(GroupId, u64)>) {
        for (group, target) in skips {
            let earlier = self.skipped.insert((group, target), of);
            if earlier.is_some_and(|earlier| earlier != of) {
                self.counts.see(Situation::TwoCaretakers);
            }
            self.line(of, || format!("has {group} skip to {target}"));
        }
    }

    /// Carries out what the touched groups want done.
    fn carry_out_all(&mut self, of: usize, now: Time) -> Checked {
        let Some(life) = &mut self.machines[of].life else { return Ok(()) };
        let mut effects: Vec<(GroupId, Effect<Waiter, Ask>)> = Vec::new();
        life.host.carry_out(now, |group, _, effect| effects.push((group, effect)));
        effects.into_iter().try_for_each(|(group, effect)| self.carry_out(of, group, effect))
    }

    /// All that the burst wanted is carried out.
    fn leave_burst(&mut self, of: usize) -> Checked {
        let Some(life) = &mut self.machines[of].life else { return Ok(()) };
        let touched = life.host.end();
        life.host.reuse(touched);
        self.check_places(of)?;
        self.write_log(of);
        self.go_on_executing(of);
        self.set_timer(of);
        self.leave_later(of);
        Ok(())
    }

    /// The place of each group that its replica knows is that of its log.
    fn check_places(&mut self, of: usize) -> Checked {
        let Some(life) = &mut self.machines[of].life else { return Ok(()) };
        let Life { host, hosted, merged, .. } = life;
        for ((group, replica), hosted) in (0u16..).map(GroupId).zip(host.replicas()).zip(hosted) {
            let (known, of_log) = (replica.merged_at(), self.order.place(group, hosted.delivered));
            demand(known == Some(of_log), Invariant::PlaceOfLog, || {
                let slot = hosted.delivered;
                format!("r{} has {group} at {known:?} after slot {slot}; its log says {of_log:?}", of + 1)
            })?;
            let backlogged = replica.status().backlogged;
            if backlogged && !hosted.backlogged && merged.waits_for().is_some() {
                self.counts.see(Situation::Backlogged);
            }
            hosted.backlogged = backlogged;
        }
        Ok(())
    }

    /// Sees to it that what is due next has its turn when that has come, or a little later.
    fn set_timer(&mut self, of: usize) {
        let (now, late) = (self.now, between(&mut self.rng, Duration::ZERO, self.plan.timer_late));
        let number = self.machines[of].lives;
        let Some(life) = &mut self.machines[of].life else { return };
        let Some(rings) = life.clock.when(life.host.due()) else { return };
        let at: Moment = rings.max(now + Duration::from_micros(1)) + late;
        if life.timer_at.is_none_or(|earlier| at < earlier) {
            life.timer_at = Some(at);
            self.queue.push(at, Happening::Timer { of, life: number });
        }
    }
}

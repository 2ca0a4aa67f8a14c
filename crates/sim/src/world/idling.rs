//! Merged groups that nobody asks for anything: they skip no more than the ticks of the clock make them, and what an
//! idle group's leader missed to skip while it was stopped is made up for.

use std::time::Duration;

use synod_replica::Skips;
#[cfg(feature = "kv")]
use synod_wire::GroupId;
use synod_wire::Slot;

#[cfg(feature = "kv")]
use super::Happening;
use super::{FIRST, World};
#[cfg(feature = "kv")]
use crate::check::Violation;
use crate::check::{Checked, Invariant, demand};

/// The system stays idle that long, after all is over.
const IDLE: Duration = Duration::from_secs(5);

/// The time in which a group skips once, whatever happens, with [`Skips::Lambda`].
const LAMBDA_PERIOD: Duration = Duration::from_millis(100);

impl World {
    /// Idle groups order nothing but ticks of the clock, and what these make others skip.
    pub(super) fn stay_idle(&mut self) -> Checked {
        let Some(skips) = self.plan.merging.as_ref().map(|merging| merging.skips) else { return Ok(()) };
        // What the last commands made others skip may still be on its way.
        self.run_until(self.now + Duration::from_secs(1))?;
        self.check_offers()?;
        let before: Vec<Slot> = self.checks.all().map(|checks| checks.log.last()).collect();
        let order = self.references[FIRST].last();
        self.run_until(self.now + IDLE)?;
        for (group, slot) in self.checks.groups().zip(&before) {
            demand(self.converged(group, *slot), Invariant::Liveness, || {
                format!("{IDLE:?} after slot {slot} of {group} was decided not everybody has executed it")
            })?;
        }
        let Some(known) = &self.order else { return Ok(()) };
        let ticks = usize::try_from(self.references[FIRST].last() - order).expect("few");
        let skipped: usize =
            self.checks.groups().zip(before).map(|(group, slot)| known.skips_since(group, slot)).sum();
        let groups = self.plan.groups;
        let most = match skips {
            // One in each period of a group.
            Skips::Lambda(_) => {
                (IDLE.as_millis() / LAMBDA_PERIOD.as_millis() + 2) as usize * groups + ticks * groups
            }
            _ => ticks * groups * 2,
        };
        demand(skipped <= most, Invariant::Idle, || {
            format!("idle groups have skipped {skipped} times in {IDLE:?}, with {ticks} ticks of the clock")
        })
    }

    /// What replicas offer to peers is what they would send.
    fn check_offers(&self) -> Checked {
        for (of, machine) in self.machines.iter().enumerate() {
            let Some(life) = &machine.life else { continue };
            for group in self.checks.groups() {
                let Some(offered) = life.replica(group).status().snapshot else { continue };
                let files = life.book.merged().expect("groups are merged");
                let held = files.holding(group, offered.slot).map(|file| file.bytes);
                demand(held == Some(offered.bytes), Invariant::SnapshotCovers, || {
                    format!("r{} offers {offered:?} of {group}, and has a file of {held:?} bytes", of + 1)
                })?;
            }
        }
        Ok(())
    }

    /// Stops the leader of a group in which nobody asks for anything, for a second: how many decided slots of the first
    /// group another replica has not executed right before that is over, and so long after.
    ///
    /// # Errors
    /// What was violated.
    #[cfg(feature = "kv")]
    pub fn pause_of_the_idle_leader(&mut self, after: Duration) -> Result<(u64, u64), Violation> {
        const IDLE_GROUP: GroupId = GroupId(1);
        const MS: Duration = Duration::from_millis(1);
        (0..self.machines.len()).try_for_each(|of| self.start(of))?;
        self.begin_asking();
        self.run_until(self.now + Duration::from_secs(7))?;
        let (leader, other) = (self.leader_of(IDLE_GROUP), self.leader_of(FIRST));
        assert!(leader.is_some() && leader != other, "the groups are led by {leader:?} and {other:?}");
        let leader = self.index(leader.expect("there is one"));
        let lasts = Duration::from_secs(1);
        self.pause(leader);
        self.queue.push(self.now + lasts, Happening::Resume { of: leader });
        self.run_until(self.now + (lasts - MS))?;
        let other = (leader + 1) % self.machines.len();
        let before = self.unexecuted(other);
        self.run_until(self.now + MS + after)?;
        Ok((before, self.unexecuted(other)))
    }

    /// How many slots of the first group are decided and not executed at a replica.
    #[cfg(feature = "kv")]
    fn unexecuted(&self, of: usize) -> u64 {
        let life = self.machines[of].life.as_ref().expect("it runs");
        self.checks[FIRST].log.last().0 - life.applied(FIRST).0
    }
}

//! Those who watch what clients change, and go from node to node; and leases by the true time of the world.
//!
//! Watchers and hubs have their turns between any two events, drawn apart from everything else.

use std::time::Duration;

use super::{Situation, World};
use crate::{
    backup,
    check::{Checked, EndedLease, LeaseAct},
    clock::Moment,
    watching::{Remarks, Site},
};

/// By how many parts per million clocks of nodes run too fast or too slow.
const DRIFT_PPM: u32 = 500;

impl World {
    /// A watcher or a hub may do something now.
    pub(super) fn watch(&mut self) -> Checked {
        self.watchers.next().map_or(Ok(()), |index| self.watcher_turns(index, true))
    }

    fn watcher_turns(&mut self, index: usize, moves: bool) -> Checked {
        let at = self.watchers.turns_to(index, self.machines.len());
        let machine = &mut self.machines[at];
        let (runs, number) = (machine.paused.is_none(), machine.lives);
        let site = machine.life.as_mut().map(|life| Site {
            place: (at, number),
            service: life.service.as_deref_mut().filter(|_| runs),
            store: life.merged.executor().machine().store(),
        });
        let Some(journal) = self.order.journal() else { return Ok(()) };
        let remarks = self.watchers.turn(index, site, moves, &journal.borrow())?;
        let Remarks { began: _, events: _, after_crash, from_history, after_snapshot, compacted } = remarks;
        for (seen, situation) in [
            (after_crash, Situation::WatchAfterCrash),
            (from_history, Situation::WatchFromHistory),
            (after_snapshot, Situation::WatchOverSnapshot),
            (compacted, Situation::WatchCompacted),
        ] {
            if seen {
                self.counts.see(situation);
            }
        }
        Ok(())
    }

    /// When all is over and all nodes have the same state, every watcher gets to know everything, without more time.
    pub(super) fn watch_to_the_end(&mut self) -> Checked {
        let revision = |of: usize| {
            let machine = &self.machines[of];
            let life = machine.life.as_ref().filter(|_| machine.paused.is_none() && !machine.gone);
            life.map_or(0, |life| life.merged.executor().machine().store().revision())
        };
        let revisions: Vec<i64> = (0..self.machines.len()).map(revision).collect();
        // The last batches may be delivered and not executed yet.
        let last = revisions.iter().copied().max().unwrap_or(0);
        for turn in 0.. {
            let Some((index, at)) = self.watchers.behind(turn, last, self.machines.len())? else { break };
            if revisions[at] == last {
                self.watcher_turns(index, false)?;
            } else {
                self.watchers.leaves(index);
            }
        }
        Ok(())
    }

    /// Notes what the common order does to leases, as far as it has grown.
    pub(super) fn leases_end(&mut self) {
        for (lease, revision, place) in self.order.take_ended() {
            let lease = lease.try_into().expect("clients use few");
            let delivered = self.clients.stamp();
            self.clients.ended.push(EndedLease { lease, delivered, place, revision });
            self.counts.see(Situation::LeaseEnds);
        }
        for (order, acts) in self.order.take_acts() {
            self.leases.decided(order, acts);
        }
    }

    /// If the groups begin with a backup, its leases live from now on.
    pub(super) fn begin_with_backup(&mut self) -> Checked {
        if self.backup.is_none() {
            return Ok(());
        }
        self.counts.see(Situation::BeginsWithBackup);
        self.trace.line(self.now, || {
            let slot = backup::SLOT;
            format!("backup    slot {slot} of the first group stands for the state of a backup")
        });
        self.leases_end();
        self.leases.executed("a restore", backup::SLOT.0, Duration::ZERO, Duration::ZERO)?;
        Ok(())
    }

    /// A node has executed this many batches of the order: no lease may end too early with that.
    pub(super) fn check_leases(&mut self, of: usize, order: u64) -> Checked {
        let (now, error) = (self.now.since(Moment::START), self.clock_error());
        for act in self.leases.executed(format_args!("r{}", of + 1), order, now, error)? {
            match act {
                LeaseAct::Ended { had_keys: true, .. } => self.counts.see(Situation::LeaseEndsWithKeys),
                LeaseAct::StartsAgain { .. } => self.counts.see(Situation::LeaseStartsAgain),
                _ => {}
            }
        }
        Ok(())
    }

    /// By so much more, at most, the clocks of nodes may have measured.
    pub(super) fn clock_error(&self) -> Duration {
        self.now.since(Moment::START) * DRIFT_PPM / 1_000_000
    }

    /// Goes on until all leases have ended.
    pub(super) fn outlive_leases(&mut self) -> Checked {
        let deadline = self.leases.deadline(self.order.clock(), self.now);
        while self.order.journal().is_some_and(|journal| journal.borrow().has_leases()) {
            self.leases.still_exist(deadline, self.order.clock(), self.now)?;
            self.run_until(self.now + Duration::from_millis(100))?;
        }
        Ok(())
    }
}

//! Those who watch what clients change, and go from replica to replica; and leases by the true time of the world.
//!
//! Watchers and hubs have their turns between any two events, drawn apart from everything else: a run goes the same way
//! with them as without.

use std::{rc::Rc, time::Duration};

use bytes::Bytes;
use prost::Message as _;
use synod_api::synod::v1::{KvCommand, KvReply, kv_command::Command, kv_reply::Reply};
use synod_consensus::Role;
use synod_kv::KvStore;

use super::{FIRST, World};
use crate::{
    check::{Checked, Invariant, LeaseAct, Violation},
    clock::Moment,
    guest::{AnyGuest, Hosting},
    plan::Plan,
    situations::Sight,
    watches::Remarks,
    watching::{Service, Site},
};

/// What serves those who watch at a replica, if somebody does.
pub(crate) type Served = Option<Box<Service>>;

/// A snapshot from another replica has replaced the state of one.
pub(super) fn replaced(served: &mut Served) {
    served.iter_mut().for_each(|service| service.installed += 1);
}

/// The state machine of the reference, which keeps a journal if somebody watches or there are leases.
pub(super) fn reference(plan: &Plan, guest: Option<&Rc<dyn AnyGuest>>) -> Hosting {
    let hosting = Hosting::of_reference(guest);
    let is_kept = plan.watches.watchers > 0 || plan.clients.leases > 0;
    if is_kept { hosting.with_journal() } else { hosting }
}

impl World {
    /// A state machine in its initial state, and what serves those who watch it.
    pub(super) fn hosting(&self) -> (Hosting, Served) {
        let service = Service::new(&self.plan.watches);
        let store = match &service {
            Some(service) => KvStore::new().feeding(service.feed()),
            None => KvStore::new(),
        };
        let guest = self.guests.as_ref().map(|guests| &guests.guest);
        (Hosting::of(store, guest), service.map(Box::new))
    }

    /// A watcher or a hub may do something now.
    pub(super) fn watch(&mut self) -> Checked {
        self.watchers.next().map_or(Ok(()), |index| self.watcher_turns(index, true))
    }

    fn watcher_turns(&mut self, index: usize, moves: bool) -> Checked {
        let at = self.watchers.turns_to(index, self.machines.len());
        let machine = &mut self.machines[at];
        let runs = machine.is_running();
        let site = machine.life.as_mut().map(|life| Site {
            place: (at, life.number),
            service: life.service.as_deref_mut().filter(|_| runs),
            store: life.states[FIRST].executor().machine().store(),
        });
        let Some(journal) = self.references[FIRST].journal() else { return Ok(()) };
        let remarks = self.watchers.turn(index, site, moves, &journal.borrow())?;
        self.checks[FIRST].situations.see(&Sight::Watches(&remarks));
        let Remarks { began, events, after_crash, from_history, after_snapshot, compacted } = remarks;
        self.coverage.watches += u64::from(began);
        self.coverage.events_told += events;
        self.coverage.watches_after_crash += u64::from(after_crash);
        self.coverage.watches_from_history += u64::from(from_history);
        self.coverage.watches_after_snapshot += u64::from(after_snapshot);
        self.coverage.watches_compacted += u64::from(compacted);
        Ok(())
    }

    /// When all is over and all members have the same state, every watcher gets to know everything, without any more
    /// time.
    pub(super) fn watch_to_the_end(&mut self) -> Checked {
        // The last slots may be delivered and not executed yet.
        let lives = self.machines.iter().filter_map(|machine| machine.life.as_ref());
        let last = lives.map(|life| life.executor(FIRST).machine().store().revision()).max().unwrap_or(0);
        for turn in 0.. {
            let Some((index, at)) = self.watchers.behind(turn, last, self.machines.len())? else { break };
            // A replica that is no member any more may lack something.
            if self.has_revision(at, last) {
                self.watcher_turns(index, false)?;
            } else {
                self.watchers.leaves(index);
            }
        }
        Ok(())
    }

    fn has_revision(&self, of: usize, revision: i64) -> bool {
        let machine = &self.machines[of];
        let life = machine.life.as_ref().filter(|_| machine.is_running());
        life.is_some_and(|life| life.executor(FIRST).machine().store().revision() >= revision)
    }

    /// Records what the last point of the reference does to leases.
    pub(super) fn decide_leases(&mut self, point: u64) -> Checked {
        let Some(journal) = self.references[FIRST].journal() else { return Ok(()) };
        let acts = journal.borrow_mut().take_acts();
        let acts = acts.map_err(|detail| Violation { invariant: Invariant::LeaseTakesItsKeys, detail })?;
        self.checks[FIRST].situations.see(&Sight::Leases(&acts));
        self.leases.decided(point, acts);
        Ok(())
    }

    /// A replica has executed this point: no lease may end too early with that.
    pub(super) fn check_leases(&mut self, of: usize, point: u64) -> Checked {
        let (now, error) = (self.now.since(Moment::START), self.clock_error());
        let acts = self.leases.executed(self.machines[of].id, point, now, error)?;
        for act in acts {
            match act {
                LeaseAct::Ended { had_keys: true, .. } => self.coverage.leases_ended_with_keys += 1,
                LeaseAct::StartsAgain { .. } => self.coverage.leases_restarted += 1,
                _ => {}
            }
        }
        Ok(())
    }

    /// A replica answers a command: records it if it renews a lease, and the replica does not lead.
    pub(super) fn note_renewal(&mut self, of: usize, command: &Bytes, reply: &Bytes) {
        if self.plan.clients.leases == 0 {
            return;
        }
        let asked = KvCommand::decode(command.clone()).ok().and_then(|command| command.command);
        let Some(Command::LeaseRenew(_)) = asked else { return };
        let Some(Reply::LeaseRenew(renewed)) =
            KvReply::decode(reply.clone()).ok().and_then(|reply| reply.reply)
        else {
            return;
        };
        if renewed.ttls.iter().all(|ttl| *ttl <= 0) {
            return;
        }
        self.checks[FIRST].situations.see(&Sight::Renews { of });
        let role = self.machines[of].life.as_ref().map(|life| life.replica(FIRST).status().protocol.role);
        if role != Some(Role::Leader) {
            self.coverage.leases_renewed_by_followers += 1;
        }
    }

    /// Goes on until all leases have ended, if the plan says so.
    pub(super) fn outlive_leases(&mut self) -> Checked {
        if !self.plan.clients.outlives_leases {
            return Ok(());
        }
        let deadline = self.leases.deadline(self.references[FIRST].clock(), self.now);
        while self.references[FIRST].journal().is_some_and(|journal| journal.borrow().has_leases()) {
            self.leases.still_exist(deadline, self.references[FIRST].clock(), self.now)?;
            self.run_until(self.now + Duration::from_millis(100))?;
        }
        Ok(())
    }
}

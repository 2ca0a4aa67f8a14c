//! The one log and the one state that all replicas must show.
//!
//! The first replica that delivers a slot fixes its batch here, and a reference executor executes it: the same code,
//! but run once, without restarts, snapshots or gaps. Every other delivery is compared with it.

use std::{
    cell::RefCell,
    collections::{BTreeMap, HashMap, HashSet, hash_map::Entry},
    rc::Rc,
    time::Duration,
};

use bytes::Bytes;
use synod_consensus::ProtocolKind;
use synod_replica::{Executor, Group, Outcome};
use synod_wire::{Ballots, Batch, Command, CommandKind, Epoch, SessionId, Slot};

#[cfg(feature = "kv")]
use super::journal::Journal;
use super::{
    guest::{Answered, GuestReference},
    invariant::{Checked, Invariant, Violation, demand},
};
use crate::{
    backup::{self, Backup},
    guest::{AnyGuest, Hosting},
};

/// The reference: one log, and one state.
#[derive(Debug)]
pub struct Reference {
    executor: Executor<Hosting>,
    /// What is demanded of a guest's machine, if there is one.
    guest: Option<GuestReference>,
    /// The slot after which the group begins: it stands for a backup, if it is not 0.
    begins: Slot,
    /// The batch of slot 1, 2, and so on, with the epoch and the protocol that decided it.
    log: Vec<(Batch, Epoch, ProtocolKind)>,
    /// The outcomes of the commands of each slot.
    outcomes: Vec<Vec<Outcome>>,
    /// The state's digest after each slot.
    digests: Vec<u64>,
    /// The payloads that clients have submitted.
    submitted: HashSet<Bytes>,
    /// The slot in which each command was first executed, and the reply.
    executed: HashMap<(SessionId, u64), (Slot, Bytes)>,
    /// For each payload, the place of its command among all executed commands, and the reply.
    replies: BTreeMap<Bytes, (u64, Bytes)>,
    commands: u64,
    /// Leases that the clock has ended: each with the revision after that, and how many commands come before it.
    ended: Vec<(i64, i64, u64)>,
}

impl Reference {
    /// The empty log, for a state machine in its initial state, or after a backup.
    #[must_use]
    pub(crate) fn new(
        group: Group,
        machine: Hosting,
        guest: Option<&Rc<dyn AnyGuest>>,
        backup: Option<&Backup>,
    ) -> Reference {
        let guest = guest.map(|guest| GuestReference::new(Rc::clone(guest), &machine));
        let Some(backup) = backup else { return Reference::empty(Executor::new(machine, group), guest) };
        let mut reference = Reference::empty(Executor::new(backup.load(machine), group), guest);
        reference.begin_with_backup();
        reference
    }

    fn empty(executor: Executor<Hosting>, guest: Option<GuestReference>) -> Reference {
        Reference {
            executor,
            guest,
            begins: Slot::ZERO,
            log: Vec::new(),
            outcomes: Vec::new(),
            digests: Vec::new(),
            submitted: HashSet::new(),
            executed: HashMap::new(),
            replies: BTreeMap::new(),
            commands: 0,
            ended: Vec::new(),
        }
    }

    /// The state machine has that of a backup, which is what slot 1 did.
    fn begin_with_backup(&mut self) {
        self.executor.begin_with_backup(backup::LAST_SESSION);
        let (epoch, protocol) = (self.executor.group().epoch, self.executor.group().protocol);
        // The slot has its place, and nobody may deliver what stands there.
        self.log.push((Batch::noop(), epoch, protocol));
        self.outcomes.push(Vec::new());
        self.digests.push(self.executor.digest());
        self.begins = backup::SLOT;
        if let Some(guest) = &mut self.guest {
            guest.begins_with_backup(backup::SLOT.0, self.executor.machine());
        }
    }

    /// The leases that the clock has ended in slots that were delivered since the last call.
    pub(crate) fn take_ended(&mut self) -> Vec<(i64, i64, u64)> {
        std::mem::take(&mut self.ended)
    }

    /// What the store went through, if somebody wants to know.
    #[cfg(feature = "kv")]
    pub(crate) fn journal(&self) -> Option<&RefCell<Journal>> {
        self.executor.machine().journal()
    }

    /// The last slot that some replica has delivered.
    #[must_use]
    pub fn last(&self) -> Slot {
        Slot(self.log.len() as u64)
    }

    /// The state machine, after all that was delivered.
    #[must_use]
    pub(crate) fn machine(&self) -> &Hosting {
        self.executor.machine()
    }

    /// Counts time twice, as replicas with that planted bug do.
    #[cfg(feature = "planted-bugs")]
    pub fn count_twice(&mut self) {
        self.executor.count_twice();
    }

    /// Changes groups as replicas with this planted bug do.
    #[cfg(feature = "planted-bugs")]
    pub fn change_wrongly(&mut self, bug: synod_consensus::Bug) {
        self.executor.change_wrongly(bug);
    }

    /// The time of the replicated clock.
    #[must_use]
    pub fn clock(&self) -> Duration {
        self.executor.clock()
    }

    /// The group after the last slot.
    #[must_use]
    pub fn group(&self) -> &Group {
        self.executor.group()
    }

    /// The epoch that decided a slot, or would decide it now.
    #[must_use]
    pub fn epoch(&self, slot: Slot) -> Epoch {
        self.log.get(index_of(slot)).map_or(self.executor.group().epoch, |(_, epoch, _)| *epoch)
    }

    /// Whether batches are ordered by reference now.
    #[must_use]
    pub fn disseminates(&self) -> bool {
        self.executor.group().disseminates()
    }

    /// The protocol that decided a slot, or would decide it now.
    #[must_use]
    pub fn protocol(&self, slot: Slot) -> ProtocolKind {
        self.log.get(index_of(slot)).map_or(self.executor.group().protocol, |(_, _, protocol)| *protocol)
    }

    /// A client submits a command.
    pub fn submitted(&mut self, payload: &Bytes) {
        self.submitted.insert(payload.clone());
    }

    /// A replica delivers a slot.
    pub fn delivered(&mut self, who: impl std::fmt::Display, slot: Slot, batch: &Batch) -> Checked {
        demand(slot > self.begins, Invariant::BackupUnordered, || {
            format!("{who} delivers slot {slot}, which stands for the backup that the group begins with")
        })?;
        let index = index_of(slot);
        if let Some((known, ..)) = self.log.get(index) {
            return demand(known == batch, Invariant::Agreement, || {
                format!("{who} delivers a batch in slot {slot} that is not the one delivered there before")
            });
        }
        demand(index == self.log.len(), Invariant::DeliveryOrder, || {
            format!("{who} delivers slot {slot}; nobody has delivered {}", self.last().next())
        })?;
        demand(batch.is_intact(), Invariant::Validity, || format!("the batch of slot {slot} is damaged"))?;
        for command in batch.commands() {
            // Replicas propose these commands themselves.
            let known = command.kind == CommandKind::AdvanceClock
                || (command.kind.is_change() || command.kind == CommandKind::Settle)
                || self.submitted.contains(&command.payload);
            demand(known, Invariant::Validity, || {
                format!("{who} delivers a command in slot {slot} that no client submitted")
            })?;
        }
        let (epoch, protocol) = (self.executor.group().epoch, self.executor.group().protocol);
        let outcomes = self.executor.execute(slot, Ballots::ZERO, batch, |_| true);
        #[cfg(feature = "kv")]
        let ended = self.executor.machine().take_ended();
        for (command, outcome) in batch.commands().zip(&outcomes) {
            self.outcome(slot, command, outcome)?;
        }
        // Where in the batch the clock moved does not matter to a hint.
        #[cfg(feature = "kv")]
        self.ended.extend(ended.into_iter().map(|(lease, revision)| (lease, revision, self.commands)));
        self.log.push((batch.clone(), epoch, protocol));
        self.outcomes.push(outcomes);
        self.digests.push(self.executor.digest());
        if let Some(guest) = &mut self.guest {
            guest.executed(self.executor.machine());
        }
        Ok(())
    }

    /// A second reply to a command must be the first one again, from the cache. Every change of the store has a
    /// revision of its own in its reply, so a second execution shows.
    fn outcome(&mut self, slot: Slot, command: Command, outcome: &Outcome) -> Checked {
        let Outcome::Reply(reply) = outcome else { return Ok(()) };
        if command.kind.is_change() || command.kind == CommandKind::Settle {
            // A change that is ordered again is refused, since it was made for an earlier group.
            return Ok(());
        }
        match self.executed.entry((command.session, command.sequence)) {
            Entry::Vacant(vacant) => {
                vacant.insert((slot, reply.clone()));
            }
            Entry::Occupied(occupied) => {
                let (first, known) = occupied.get();
                demand(known == reply, Invariant::Integrity, || {
                    format!(
                        "command {} of session {} was executed in slot {first} and again in slot {slot}",
                        command.sequence, command.session
                    )
                })?;
            }
        }
        self.commands += 1;
        if command.kind == CommandKind::Apply {
            let (_, known) =
                self.replies.entry(command.payload).or_insert_with(|| (self.commands, reply.clone()));
            demand(known == reply, Invariant::Integrity, || {
                format!("a command was executed in two sessions, the second time in slot {slot}")
            })?;
        }
        Ok(())
    }

    /// A replica has executed a slot. Its outcome is known there unless a snapshot brought the slot.
    pub fn executed(&self, who: impl std::fmt::Display, slot: Slot, outcomes: &[Outcome]) -> Checked {
        demand(
            self.outcomes.get(index_of(slot)).is_some_and(|known| {
                let alike = |(one, known): (&Outcome, &Outcome)| *one == Outcome::Unanswered || one == known;
                outcomes.len() == known.len() && outcomes.iter().zip(known).all(alike)
            }),
            Invariant::Integrity,
            || format!("{who} gets other outcomes for the commands of slot {slot} than the reference"),
        )
    }

    /// A replica's state is that of the reference after the same slot: the whole state of a guest's machine, and the
    /// digest of everything.
    pub(crate) fn state(&self, who: impl std::fmt::Display, replica: &Executor<Hosting>) -> Checked {
        let slot = replica.applied();
        if let Some(guest) = &self.guest {
            guest.has_state_of(&who, slot.0, replica.machine())?;
        }
        if slot == Slot::ZERO {
            return Ok(());
        }
        demand(self.digests.get(index_of(slot)) == Some(&replica.digest()), Invariant::SameState, || {
            format!("{who} has another state after slot {slot} than the reference")
        })
    }

    /// The first slot in which a command of a session was executed.
    #[must_use]
    pub fn executed_in(&self, session: SessionId, sequence: u64) -> Option<Slot> {
        self.executed.get(&(session, sequence)).map(|(slot, _)| *slot)
    }

    /// A replica has answered a query of a guest's client. Returns the first slot after which the reference gives the
    /// same answer.
    pub(crate) fn answers(
        &mut self,
        who: impl std::fmt::Display,
        read: &Answered<'_>,
    ) -> Result<Slot, Violation> {
        let guest = self.guest.as_mut().expect("its client asked");
        guest.answers(&who, read).map(Slot)
    }

    /// The last slot with a command for a guest's machine.
    #[must_use]
    pub fn last_for_guest(&self) -> Slot {
        Slot(self.guest.as_ref().map_or(0, GuestReference::last_command))
    }

    /// If a command with this payload was executed: its place among all commands, and its reply.
    #[must_use]
    pub fn reply(&self, payload: &Bytes) -> Option<(u64, &Bytes)> {
        self.replies.get(payload).map(|(place, reply)| (*place, reply))
    }

    /// Commands in the log.
    #[must_use]
    pub fn commands(&self) -> usize {
        self.outcomes.iter().map(Vec::len).sum()
    }
}

fn index_of(slot: Slot) -> usize {
    usize::try_from(slot.0 - 1).expect("a short log")
}

#[cfg(test)]
mod tests {
    use synod_wire::ReplicaId;

    use super::*;
    use crate::plan::Plan;

    #[test]
    fn the_slot_of_a_backup_is_delivered_by_nobody_and_what_it_stands_for_is_the_first_state() {
        let plan = Plan { begins_with_backup: true, ..Plan::draw(3, ProtocolKind::Raft) };
        let group = Group::of(&plan.settings.consensus, (1..=3).map(ReplicaId)).after_backup();
        let backup = Backup::of(&plan, &group, None).expect("it begins with one");
        let mut reference = Reference::new(group.clone(), Hosting::of_reference(None), None, Some(&backup));
        assert_eq!(reference.last(), backup::SLOT);

        let mut replica = Executor::new(Hosting::of_reference(None), group.clone());
        replica.restore(&mut &backup.snapshot()[..]).expect("it is whole");
        reference.state("r1", &replica).expect("it has the backup");
        let mut other = Executor::new(Hosting::of_reference(None), group);
        other.begin_with_backup(0);
        assert_eq!(reference.state("r2", &other).unwrap_err().invariant, Invariant::SameState);

        let delivers =
            |reference: &mut Reference, slot| reference.delivered("r1", Slot(slot), &Batch::noop());
        let ordered = delivers(&mut reference, 1).unwrap_err();
        assert_eq!(ordered.invariant, Invariant::BackupUnordered);
        delivers(&mut reference, 2).expect("it is the first slot");
        assert_eq!(reference.last(), Slot(2));
    }
}

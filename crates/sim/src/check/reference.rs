//! The one state that all replicas must show.
//!
//! What the first replica delivers is executed here by a reference: the same code, but run once, without restarts,
//! snapshots or gaps. It does so at **points**: the slots of a group that is alone, or the batches of the common order
//! of merged groups.

use std::{
    cell::RefCell,
    collections::{BTreeMap, HashMap, hash_map::Entry},
    fmt,
    rc::Rc,
    time::Duration,
};

use bytes::Bytes;
use synod_replica::{Executor, Group, Outcome};
use synod_wire::{Ballots, Batch, Command, CommandKind, GroupId, SessionId, Slot};

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

/// The reference: one state machine, and what it did.
#[derive(Debug)]
pub struct Reference {
    executor: Executor<Hosting>,
    /// What is demanded of a guest's machine, if there is one.
    guest: Option<GuestReference>,
    /// What was executed at point 1, 2, and so on.
    points: Vec<(GroupId, Slot)>,
    /// The outcomes of the commands at each point.
    outcomes: Vec<Vec<Outcome>>,
    /// The state's digest at the beginning, and after each point.
    digests: Vec<u64>,
    /// The point at which each command was first executed, and the reply. Replicas number what they propose in each
    /// group by itself.
    executed: HashMap<(GroupId, SessionId, u64), (u64, Bytes)>,
    /// For each payload, the place of its command among all executed commands, and the reply.
    replies: BTreeMap<Bytes, (u64, Bytes)>,
    commands: u64,
    /// Leases that the clock has ended: each with the revision after that, and how many commands come before it.
    ended: Vec<(i64, i64, u64)>,
}

impl Reference {
    /// A state machine in its initial state, or after a backup, in the executor that is made for it.
    #[must_use]
    pub(crate) fn new(
        machine: impl Fn() -> Hosting,
        executor: impl Fn(Hosting) -> Executor<Hosting>,
        guest: Option<&Rc<dyn AnyGuest>>,
        backup: Option<&Backup>,
    ) -> Reference {
        let empty = executor(machine());
        let guest = guest.map(|guest| GuestReference::new(Rc::clone(guest), empty.machine()));
        let digests = vec![empty.digest()];
        let executor = backup.map_or(empty, |backup| executor(backup.load(machine())));
        let mut reference = Reference {
            executor,
            guest,
            points: Vec::new(),
            outcomes: Vec::new(),
            digests,
            executed: HashMap::new(),
            replies: BTreeMap::new(),
            commands: 0,
            ended: Vec::new(),
        };
        if backup.is_some() {
            reference.begin_with_backup();
        }
        reference
    }

    /// The state machine has that of a backup, which is what slot 1 did.
    fn begin_with_backup(&mut self) {
        self.executor.begin_with_backup(backup::LAST_SESSION);
        self.outcomes.push(Vec::new());
        self.reaches(GroupId::FIRST, backup::SLOT);
        if let Some(guest) = &mut self.guest {
            guest.begins_with_backup(backup::SLOT.0, self.executor.machine());
        }
    }

    fn reaches(&mut self, group: GroupId, slot: Slot) {
        self.points.push((group, slot));
        self.digests.push(self.executor.digest());
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

    /// The last point.
    #[must_use]
    pub fn last(&self) -> u64 {
        self.points.len() as u64
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

    /// The group after all that was executed.
    #[must_use]
    pub fn group(&self) -> &Group {
        self.executor.group()
    }

    /// The time of the replicated clock.
    #[must_use]
    pub fn clock(&self) -> Duration {
        self.executor.clock()
    }

    /// Executes the next slot of a group, which is a point unless it is one of merged groups that has nothing to
    /// execute.
    pub fn execute(&mut self, group: GroupId, slot: Slot, batch: &Batch, is_point: bool) -> Checked {
        let head = if self.executor.take().is_some() { group } else { GroupId::FIRST };
        let outcomes = self.executor.execute_of(head, slot, Ballots::ZERO, batch, |_| true);
        if !is_point {
            return Ok(());
        }
        #[cfg(feature = "kv")]
        let ended = self.executor.machine().take_ended();
        self.reaches(group, slot);
        for (command, outcome) in batch.commands().zip(&outcomes) {
            self.outcome(group, slot, command, outcome)?;
        }
        // Where in the batch the clock moved does not matter to a hint.
        #[cfg(feature = "kv")]
        self.ended.extend(ended.into_iter().map(|(lease, revision)| (lease, revision, self.commands)));
        self.outcomes.push(outcomes);
        if let Some(guest) = &mut self.guest {
            guest.executed(self.executor.machine());
        }
        Ok(())
    }

    /// A second reply to a command must be the first one again, from the cache. Every change of the store has a
    /// revision of its own in its reply, so a second execution shows.
    fn outcome(&mut self, group: GroupId, slot: Slot, command: Command, outcome: &Outcome) -> Checked {
        let Outcome::Reply(reply) = outcome else { return Ok(()) };
        if command.kind.is_change() || command.kind == CommandKind::Settle {
            // A change that is ordered again is refused, since it was made for an earlier group.
            return Ok(());
        }
        let of = if command.session.of_replica().is_some() { group } else { GroupId::FIRST };
        match self.executed.entry((of, command.session, command.sequence)) {
            Entry::Vacant(vacant) => {
                vacant.insert((self.points.len() as u64, reply.clone()));
            }
            Entry::Occupied(occupied) => {
                let (first, known) = occupied.get();
                let (group, first) = self.points[index_of(*first)];
                demand(known == reply, Invariant::Integrity, || {
                    format!(
                        "command {} of session {} was executed in slot {first} of group {group} and again in slot {slot}",
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

    /// A replica has executed a slot of a group, as this point. Its outcome is known there unless a snapshot brought
    /// the slot.
    pub fn executed(
        &self,
        who: impl fmt::Display,
        (group, slot): (GroupId, Slot),
        point: u64,
        outcomes: &[Outcome],
    ) -> Checked {
        let at = index_of(point);
        let wanted = self.points.get(at);
        demand(wanted == Some(&(group, slot)), Invariant::CommonOrder, || {
            let wanted = wanted
                .map_or("nothing yet".to_owned(), |(group, slot)| format!("slot {slot} of group {group}"));
            format!("{who} executes slot {slot} of group {group} as batch {point}; that is {wanted}")
        })?;
        let known = &self.outcomes[at];
        let alike = |(one, known): (&Outcome, &Outcome)| *one == Outcome::Unanswered || one == known;
        let same = outcomes.len() == known.len() && outcomes.iter().zip(known).all(alike);
        demand(same, Invariant::Integrity, || {
            format!("{who} gets other outcomes for the commands of slot {slot} than the reference")
        })
    }

    /// A replica's state is that of the reference after the same point: the whole state of a guest's machine, and the
    /// digest of everything.
    pub(crate) fn state(&self, who: impl fmt::Display, replica: &Executor<Hosting>) -> Checked {
        let point = point_of(replica);
        if let Some(guest) = &self.guest {
            guest.has_state_of(&who, point, replica.machine())?;
        }
        let known = self.digests.get(usize::try_from(point).expect("a short log"));
        demand(known == Some(&replica.digest()), Invariant::SameState, || {
            let what = if replica.take().is_some() { "batch" } else { "slot" };
            format!("{who} has another state after {what} {point} than the reference")
        })
    }

    /// The first point at which a command of a client's session was executed.
    #[must_use]
    pub fn executed_in(&self, session: SessionId, sequence: u64) -> Option<u64> {
        self.executed.get(&(GroupId::FIRST, session, sequence)).map(|(point, _)| *point)
    }

    /// A replica has answered a query of a guest's client. Returns the first point after which the reference gives the
    /// same answer.
    pub(crate) fn answers(&mut self, who: impl fmt::Display, read: &Answered<'_>) -> Result<u64, Violation> {
        let guest = self.guest.as_mut().expect("its client asked");
        guest.answers(&who, read)
    }

    /// The last point with a command for a guest's machine.
    #[must_use]
    pub fn last_for_guest(&self) -> u64 {
        self.guest.as_ref().map_or(0, GuestReference::last_command)
    }

    /// If a command with this payload was executed: its place among all commands, and its reply.
    #[must_use]
    pub fn reply(&self, payload: &Bytes) -> Option<(u64, &Bytes)> {
        self.replies.get(payload).map(|(place, reply)| (*place, reply))
    }

    /// Commands that were executed.
    #[must_use]
    pub fn commands(&self) -> usize {
        self.outcomes.iter().map(Vec::len).sum()
    }
}

/// How many points a replica has executed.
pub(crate) fn point_of(replica: &Executor<Hosting>) -> u64 {
    if replica.take().is_some() { replica.cut().order } else { replica.applied().0 }
}

fn index_of(point: u64) -> usize {
    usize::try_from(point - 1).expect("a short log")
}

#[cfg(test)]
mod tests {
    use synod_consensus::ProtocolKind;
    use synod_wire::ReplicaId;

    use super::*;
    use crate::plan::Plan;

    #[test]
    fn what_a_backup_stands_for_is_the_first_state() {
        let plan = Plan { begins_with_backup: true, ..Plan::draw(3, ProtocolKind::Raft) };
        let group = Group::of(&plan.settings.consensus, (1..=3).map(ReplicaId)).after_backup();
        let unused = |machine| Executor::new(machine, group.clone());
        let backup = Backup::of(&plan, unused, None).expect("it begins with one");
        let executor = |machine| Executor::new(machine, group.clone());
        let mut reference = Reference::new(|| Hosting::of_reference(None), executor, None, Some(&backup));
        assert_eq!(reference.last(), backup::SLOT.0);

        let mut replica = Executor::new(Hosting::of_reference(None), group.clone());
        replica.restore(&mut &backup.snapshot()[..]).expect("it is whole");
        reference.state("r1", &replica).expect("it has the backup");
        let mut other = Executor::new(Hosting::of_reference(None), group.clone());
        other.begin_with_backup(0);
        assert_eq!(reference.state("r2", &other).unwrap_err().invariant, Invariant::SameState);

        reference.execute(GroupId::FIRST, Slot(2), &Batch::noop(), true).expect("it is the first slot");
        assert_eq!(reference.last(), 2);
    }
}

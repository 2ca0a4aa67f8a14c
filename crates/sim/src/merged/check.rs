//! What must hold: one log a group, one common order, one state.
//!
//! The order is found here from the decided logs alone, another way than the merge finds it: each batch with something
//! to execute has a key, and the next of the order is the one with the least key, once no group can decide a lesser
//! one.

use std::{cell::RefCell, collections::BTreeMap, rc::Rc, time::Duration};

use bytes::Bytes;
use synod_replica::{Executor, Group, Outcome, Place, Point, Take};
use synod_wire::{Ballots, Batch, BatchBuilder, CommandKind, GroupId, ReplicaId, SessionId, Slot};

use super::machine::id;
use crate::{
    backup::{self, Backup},
    check::{
        Answered, Checked, GuestReference, Invariant, Journal, LeaseAct, Violation, demand, place_after,
    },
    guest::{AnyGuest, Hosting},
};

/// The logs of all groups, and what follows from them.
#[derive(Debug)]
pub(super) struct Order {
    take: u64,
    logs: Vec<Log>,
    /// The batches of the common order.
    order: Vec<(GroupId, Slot)>,
    /// The slot after which the first group begins: it stands for a backup, if it is not 0.
    begins: Slot,
    /// The same code as at the replicas, but run once, without restarts, snapshots or gaps.
    executor: Executor<Hosting>,
    /// What is demanded of a guest's machine, if there is one.
    guest: Option<GuestReference>,
    /// The digest of the state after each batch of the order, the initial state first.
    digests: Vec<u64>,
    /// For each payload of a command the place of its first execution among all commands, and the reply.
    replies: BTreeMap<Bytes, (u64, Bytes)>,
    commands: u64,
    /// Leases that the clock has ended: each with the revision after that, and how many commands come before it.
    ended: Vec<(i64, i64, u64)>,
    /// What became of leases, each with the number of batches of the order through which that was.
    acts: Vec<(u64, Vec<LeaseAct>)>,
}

/// What one group decided.
#[derive(Debug, Default)]
struct Log {
    batches: Vec<Batch>,
    /// The place of the group before the first slot, and after each.
    places: Vec<Place>,
    /// The slots with something to execute that are not in the order yet are those from this one on.
    next: usize,
    /// Slots through this one are executed by the reference.
    executed: usize,
    outcomes: Vec<Vec<Outcome>>,
}

/// How far a subscriber is in a group.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reached {
    /// Everything through this slot was given to it, or is not to be.
    slot: usize,
    /// Only batches at these positions are.
    from: u64,
    until: u64,
}

impl Reached {
    pub fn of(point: Point) -> Reached {
        let slot = usize::try_from(point.slot.0).expect("a short log");
        Reached { slot, from: point.from, until: point.until.unwrap_or(u64::MAX) }
    }

    /// The group leaves where this point says.
    pub fn leave(&mut self, point: Point) {
        self.until = point.until.unwrap_or(u64::MAX);
    }
}

impl Order {
    /// The logs of groups as they begin; with a journal of the store if somebody wants one.
    pub fn new(
        groups: Vec<Group>,
        take: Take,
        guest: Option<&Rc<dyn AnyGuest>>,
        journal: bool,
        backup: Option<&Backup>,
    ) -> Order {
        let log = || Log { places: vec![Place::default()], ..Log::default() };
        let logs = groups.iter().map(|_| log()).collect();
        let machine = || {
            let machine = Hosting::of_reference(guest);
            if journal { machine.with_journal() } else { machine }
        };
        let mut executor = Executor::merged(machine(), groups.clone(), take);
        let digests = vec![executor.digest()];
        let guest = guest.map(|guest| GuestReference::new(Rc::clone(guest), executor.machine()));
        if let Some(backup) = backup {
            executor = Executor::merged(backup.load(machine()), groups, take);
        }
        let mut order = Order {
            take: take.get().into(),
            logs,
            order: Vec::new(),
            begins: Slot::ZERO,
            executor,
            guest,
            digests,
            replies: BTreeMap::new(),
            commands: 0,
            ended: Vec::new(),
            acts: Vec::new(),
        };
        if backup.is_some() {
            order.begin_with_backup();
        }
        order
    }

    /// The state machine has that of a backup. A slot of the first group stands for it, and has the first place in the
    /// order.
    fn begin_with_backup(&mut self) {
        let mut loading = BatchBuilder::new();
        loading.push(SessionId(1), 1, 1, b"");
        let batch = loading.finish();
        let log = &mut self.logs[usize::from(GroupId::FIRST.0)];
        log.places.push(place_after(Place::default(), &batch));
        log.batches.push(batch);
        log.outcomes.push(Vec::new());
        (log.next, log.executed) = (1, 1);
        self.order.push((GroupId::FIRST, backup::SLOT));
        self.begins = backup::SLOT;
        self.executor.begin_with_backup(backup::LAST_SESSION);
        self.digests.push(self.executor.digest());
        if let Some(guest) = &mut self.guest {
            guest.begins_with_backup(self.order.len() as u64, self.executor.machine());
        }
        if let Some(journal) = self.executor.machine().journal() {
            let acts = journal.borrow_mut().take_acts().expect("the store was made by sound commands");
            self.acts.push((self.order.len() as u64, acts));
        }
    }

    /// The time of the replicated clock.
    pub fn clock(&self) -> Duration {
        self.executor.clock()
    }

    /// The state machine of the reference.
    pub fn machine(&self) -> &Hosting {
        self.executor.machine()
    }

    /// What the store of all groups went through, if somebody wants to know.
    pub fn journal(&self) -> Option<&RefCell<Journal>> {
        self.executor.machine().journal()
    }

    /// The leases that the clock has ended since the last call: each with the revision after that, and how many
    /// commands come before it.
    pub fn take_ended(&mut self) -> Vec<(i64, i64, u64)> {
        std::mem::take(&mut self.ended)
    }

    /// What became of leases since the last call, each with the number of batches of the order through which that was.
    pub fn take_acts(&mut self) -> Vec<(u64, Vec<LeaseAct>)> {
        std::mem::take(&mut self.acts)
    }

    /// The last slot of a group that some replica has delivered.
    pub fn last(&self, group: GroupId) -> Slot {
        Slot(self.logs[usize::from(group.0)].batches.len() as u64)
    }

    /// Where a group is after a slot.
    pub fn place(&self, group: GroupId, slot: Slot) -> Place {
        self.logs[usize::from(group.0)].places[usize::try_from(slot.0).expect("a short log")]
    }

    /// What a group decided in a slot.
    pub fn batch(&self, group: GroupId, slot: Slot) -> &Batch {
        &self.logs[usize::from(group.0)].batches[usize::try_from(slot.0 - 1).expect("a short log")]
    }

    /// A replica delivers a slot.
    pub fn delivered(&mut self, who: usize, group: GroupId, slot: Slot, batch: &Batch) -> Checked {
        demand(group != GroupId::FIRST || slot > self.begins, Invariant::BackupUnordered, || {
            format!("r{} delivers slot {slot} of {group}, which stands for a backup", who + 1)
        })?;
        let log = &mut self.logs[usize::from(group.0)];
        let at = usize::try_from(slot.0 - 1).expect("a short log");
        if let Some(known) = log.batches.get(at) {
            return demand(known == batch, Invariant::Agreement, || {
                format!(
                    "r{} delivers another batch in slot {slot} of {group} than was delivered before",
                    who + 1
                )
            });
        }
        demand(at == log.batches.len(), Invariant::DeliveryOrder, || {
            format!("r{} delivers slot {slot} of {group}; nobody has delivered the one before", who + 1)
        })?;
        log.places.push(place_after(log.places[at], batch));
        log.batches.push(batch.clone());
        log.outcomes.push(Vec::new());
        self.grow()
    }

    /// Adds to the order what no later decision can come before.
    fn grow(&mut self) -> Checked {
        loop {
            let mut least: Option<((u64, GroupId, u64), GroupId, usize)> = None;
            for (group, log) in (0u16..).map(GroupId).zip(&mut self.logs) {
                while log.next < log.batches.len()
                    && log.places[log.next].batches == log.places[log.next + 1].batches
                {
                    log.next += 1;
                }
                // The position of the next batch with something to execute, or of the next one to be decided.
                let position = log.places[log.next].position;
                let key = (position / self.take, group, position);
                if least.is_none_or(|(least, ..)| key < least) {
                    least = Some((key, group, log.next));
                }
            }
            let Some((_, group, at)) = least else { return Ok(()) };
            if at == self.logs[usize::from(group.0)].batches.len() {
                return Ok(());
            }
            self.logs[usize::from(group.0)].next += 1;
            self.order.push((group, Slot(at as u64 + 1)));
            self.execute(group, at)?;
        }
    }

    /// The next batch for a subscriber of these groups that is so far: the one with the least key, unless a group can
    /// still decide a lesser one. It counts as given.
    pub fn next_of(&self, groups: &mut BTreeMap<GroupId, Reached>) -> Option<(GroupId, Slot)> {
        let mut least: Option<((u64, GroupId, u64), GroupId)> = None;
        for (&group, reached) in groups.iter_mut() {
            let log = &self.logs[usize::from(group.0)];
            let executes = |at: usize| log.places[at].batches < log.places[at + 1].batches;
            while reached.slot < log.batches.len()
                && (!executes(reached.slot) || log.places[reached.slot].position < reached.from)
            {
                reached.slot += 1;
            }
            let position = log.places[reached.slot.min(log.batches.len())].position.max(reached.from);
            let key = (position / self.take, group, position);
            if position < reached.until && least.is_none_or(|(least, _)| key < least) {
                least = Some((key, group));
            }
        }
        let (_, group) = least?;
        let reached = groups.get_mut(&group)?;
        let at = reached.slot;
        (at < self.logs[usize::from(group.0)].batches.len()).then(|| {
            reached.slot += 1;
            (group, Slot(at as u64 + 1))
        })
    }

    /// Executes a batch of the order, and what is before it in its group.
    fn execute(&mut self, group: GroupId, through: usize) -> Checked {
        let log = &mut self.logs[usize::from(group.0)];
        for at in log.executed..=through {
            let batch = log.batches[at].clone();
            let outcomes =
                self.executor.execute_of(group, Slot(at as u64 + 1), Ballots::ZERO, &batch, |_| true);
            for (command, outcome) in batch.commands().zip(&outcomes) {
                self.commands += 1;
                if let (CommandKind::Apply, Outcome::Reply(reply)) = (command.kind, outcome) {
                    self.replies.entry(command.payload).or_insert((self.commands, reply.clone()));
                }
            }
            // Where in the batch the clock moved does not matter to a hint.
            let ended = self.executor.machine().take_ended();
            self.ended.extend(ended.into_iter().map(|(lease, revision)| (lease, revision, self.commands)));
            log.outcomes[at] = outcomes;
        }
        log.executed = through + 1;
        self.digests.push(self.executor.digest());
        if let Some(guest) = &mut self.guest {
            guest.executed(self.executor.machine());
        }
        if let Some(journal) = self.executor.machine().journal() {
            let acts = journal.borrow_mut().take_acts();
            let acts =
                acts.map_err(|detail| Violation { invariant: Invariant::LeaseTakesItsKeys, detail })?;
            self.acts.push((self.order.len() as u64, acts));
        }
        Ok(())
    }

    /// A replica has executed a batch; its state is that after `order` batches.
    pub fn executed(
        &self,
        who: usize,
        (group, slot): (GroupId, Slot),
        order: u64,
        outcomes: &[Outcome],
    ) -> Checked {
        let at = usize::try_from(slot.0).expect("a short log");
        let log = &self.logs[usize::from(group.0)];
        if log.places[at].batches == log.places[at - 1].batches {
            return Ok(()); // It has nothing to execute, and is not in the order.
        }
        let index = usize::try_from(order - 1).expect("a short log");
        let wanted = self.order.get(index);
        demand(wanted == Some(&(group, slot)), Invariant::CommonOrder, || {
            let wanted =
                wanted.map_or("nothing yet".to_owned(), |(group, slot)| format!("slot {slot} of {group}"));
            format!("r{} executes slot {slot} of {group} as batch {order}; that is {wanted}", who + 1)
        })?;
        let known = &log.outcomes[at - 1];
        let alike = |(one, known): (&Outcome, &Outcome)| *one == Outcome::Unanswered || one == known;
        let same = outcomes.len() == known.len() && outcomes.iter().zip(known).all(alike);
        demand(same, Invariant::Integrity, || {
            format!("r{} gets other outcomes in slot {slot} of {group} than the reference", who + 1)
        })
    }

    /// A node's state is that of the reference after as many batches: the whole state of a guest's machine, and the
    /// digest of everything.
    pub fn state(&self, who: usize, node: &Executor<Hosting>) -> Checked {
        let order = node.cut().order;
        if let Some(guest) = &self.guest {
            guest.has_state_of(&id(who), order, node.machine())?;
        }
        let known = self.digests.get(usize::try_from(order).expect("a short log"));
        demand(known == Some(&node.digest()), Invariant::SameState, || {
            format!("r{} has another state after batch {order} than the reference", who + 1)
        })
    }

    /// A node has answered a query of a guest's client. Returns the first batch after which the reference gives the
    /// same answer.
    pub fn answers(&mut self, who: usize, read: &Answered<'_>) -> Result<u64, Violation> {
        self.guest.as_mut().expect("its client asked").answers(&id(who), read)
    }

    /// The last batch with a command for a guest's machine.
    pub fn last_for_guest(&self) -> u64 {
        self.guest.as_ref().map_or(0, GuestReference::last_command)
    }

    /// If a command with this payload was executed: its place among all commands, and its reply.
    pub fn reply(&self, payload: &Bytes) -> Option<(u64, &Bytes)> {
        self.replies.get(payload).map(|(place, reply)| (*place, reply))
    }

    /// A group after what the reference has executed.
    pub fn group(&self, group: GroupId) -> &Group {
        self.executor.group_of(group)
    }

    /// Whether a group has this member, as far as the reference has executed.
    pub fn has_member(&self, group: GroupId, id: ReplicaId) -> bool {
        self.executor.group_of(group).member(id).is_some()
    }

    /// Batches of the common order.
    pub fn len(&self) -> u64 {
        self.order.len() as u64
    }

    /// How many slots of a group after this one say nothing but skips.
    pub fn skips_since(&self, group: GroupId, slot: Slot) -> usize {
        let log = &self.logs[usize::from(group.0)];
        let only_skips = |batch: &&Batch| batch.places().skips_to.is_some() && !batch.places().executes;
        log.batches.iter().skip(slot.0 as usize).filter(only_skips).count()
    }
}

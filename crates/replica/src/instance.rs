//! The instance of the ordering protocol that runs here, and what it asked for.
//!
//! A replica runs at most one: the present epoch's, while this replica takes part in ordering.

use std::time::Duration;

use synod_consensus::{
    Control, Effect, Effects, Input, LeaderView, Members, Message, Options, Protocol, Restart, Role, Route,
    Status, election,
};
use synod_wire::{Lsn, ReplicaId, Time};

use crate::{Action, LogRecord, Replica};

/// The protocol, if one runs, and the effects that were not carried out yet.
pub(crate) struct Instance {
    protocol: Option<Box<dyn Protocol>>,
    /// Records of all instances, and the replica's own, are numbered here.
    effects: Effects,
    /// The buffer in which effects are drained, while nobody has it.
    drained: Vec<Effect>,
    /// When the protocol wants to hear of the time.
    deadline: Time,
    /// Whether the protocol was sent batches while it could not take any in, or references to batches that are not
    /// here.
    missed: bool,
    /// What the election knew when an instance last stopped.
    memory: election::Memory,
}

impl Instance {
    /// No instance, in a replica whose log ends with `last`.
    pub fn none(last: Lsn) -> Instance {
        let (effects, drained) = (Effects::new(last), Vec::new());
        Instance {
            protocol: None,
            effects,
            drained,
            deadline: Time::NEVER,
            missed: false,
            memory: election::Memory::default(),
        }
    }

    /// Starts the protocol of an epoch. Its election begins with what the one before knew. `backlogged` says that it
    /// should take nothing in yet.
    pub fn start(
        &mut self,
        options: &Options,
        members: Members,
        restart: Restart,
        backlogged: bool,
        now: Time,
    ) {
        let restart = Restart { memory: self.memory.clone(), ..restart };
        let protocol = options.start(members, restart, now, &mut self.effects);
        self.protocol = Some(protocol);
        if backlogged {
            self.step(now, Input::Control(Control::Backlogged(true)));
        }
    }

    /// Stops the protocol, whose last effects were carried out.
    pub fn stop(&mut self) {
        if let Some(protocol) = self.protocol.take() {
            self.memory = protocol.election_memory();
        }
        self.deadline = Time::NEVER;
    }

    /// Whether a protocol runs.
    pub fn runs(&self) -> bool {
        self.protocol.is_some()
    }

    /// Gives the protocol an input; returns whether one runs.
    pub fn step(&mut self, now: Time, input: Input) -> bool {
        if let Some(protocol) = &mut self.protocol {
            protocol.step(now, input, &mut self.effects);
        }
        self.runs()
    }

    /// Lets everything leave that the protocol holds back for a burst of inputs.
    pub fn flush(&mut self, now: Time) {
        if let Some(protocol) = &mut self.protocol {
            protocol.flush(now, &mut self.effects);
        }
    }

    /// Whether there are effects that were not carried out.
    pub fn has_effects(&self) -> bool {
        !self.effects.is_empty()
    }

    /// The effects since the last call, in a buffer that may be given back.
    pub fn drain(&mut self) -> Vec<Effect> {
        let mut drained = std::mem::take(&mut self.drained);
        self.effects.swap(&mut drained);
        drained
    }

    /// Takes a buffer back whose effects are carried out.
    pub fn give_back(&mut self, drained: Vec<Effect>) {
        debug_assert!(drained.is_empty(), "they are carried out");
        self.drained = drained;
    }

    /// The action that writes a record of the replica layer, which gets the next number.
    pub fn append(&mut self, record: LogRecord) -> (Lsn, Action) {
        let lsn = self.effects.number();
        (lsn, Action::Append { lsn, record })
    }

    /// Says that no leader is known, before the protocol begins.
    pub fn forget_leader(&mut self) {
        self.effects.push(Effect::Leader(LeaderView::default()));
    }

    /// How many batches may be proposed now.
    pub fn room(&self) -> usize {
        self.protocol.as_ref().map_or(0, |protocol| protocol.room())
    }

    /// Whether batches are proposed here, whichever replica leads.
    pub fn routes_here(&self) -> bool {
        self.protocol.as_ref().is_some_and(|protocol| protocol.route() == Route::Here)
    }

    /// The replica that takes commands where the protocol has no leader: another one, or `me`.
    pub fn taker_without_leader(&self, me: ReplicaId) -> Option<ReplicaId> {
        let protocol = self.protocol.as_ref().filter(|protocol| protocol.status().view.leader.is_none())?;
        match protocol.route() {
            Route::Here => Some(me),
            Route::To(id) => Some(id),
            Route::Nowhere => None,
        }
    }

    /// The replica that does what one replica has to do for all; see [`Protocol::caretaker`].
    pub fn caretaker(&self) -> Option<ReplicaId> {
        self.protocol.as_ref().and_then(|protocol| protocol.caretaker())
    }

    /// Whether a protocol runs to which this voter answers.
    pub fn answers(&self, now: Time, id: ReplicaId) -> bool {
        self.protocol.as_ref().is_some_and(|protocol| protocol.answers(now, id))
    }

    /// The times in which voters answered the protocol lately, where its election measures them.
    pub fn round_trips(&self) -> Vec<(ReplicaId, Duration)> {
        self.protocol.as_ref().map_or_else(Vec::new, |protocol| protocol.round_trips())
    }

    /// Commands that came from this replica were ordered.
    pub fn ordered(&mut self, origin: ReplicaId, commands: u64) {
        if let Some(protocol) = &mut self.protocol {
            protocol.ordered(origin, commands);
        }
    }

    /// Thousandths of the commands that came from each voter lately, where the election weighs that.
    pub fn origins(&self) -> Vec<(ReplicaId, u64)> {
        self.protocol.as_ref().map_or_else(Vec::new, |protocol| protocol.origins())
    }

    /// What the protocol says of itself.
    pub fn status(&self) -> Option<Status> {
        self.protocol.as_ref().map(|protocol| protocol.status())
    }

    /// Whether the protocol has still to learn what an earlier life knew; `None` if no protocol runs.
    pub fn recovers(&self) -> Option<bool> {
        self.status().map(|status| status.role == Role::Recovering)
    }

    // Time.

    /// Records when the protocol wants to hear of the time.
    pub fn wakes_at(&mut self, deadline: Time) {
        self.deadline = deadline;
    }

    /// When the protocol wants to hear of the time.
    pub fn deadline(&self) -> Time {
        self.deadline
    }

    /// Whether it is time; if it is, the protocol says again when it next wants to hear.
    pub fn take_timer(&mut self, now: Time) -> bool {
        let due = now >= self.deadline;
        if due {
            self.deadline = Time::NEVER;
        }
        due
    }

    // What could not be taken in.

    /// Records that a message comes for the protocol: its batches are lost if the protocol takes none in.
    pub fn receives(&mut self, message: &Message) {
        let congested = self.protocol.as_ref().is_some_and(|protocol| protocol.is_congested());
        self.missed |= congested && message.batch_bytes() > 0;
    }

    /// Records that a message was dropped, since a batch that it refers to is not here.
    pub fn dropped(&mut self) {
        self.missed = true;
    }

    /// Whether something was missed that was not asked for again.
    pub fn missed(&self) -> bool {
        self.missed
    }

    /// Whether something was missed, and can be taken in now.
    fn may_ask_for_missed(&self) -> bool {
        self.missed && self.protocol.as_ref().is_some_and(|protocol| !protocol.is_congested())
    }
}

impl Replica {
    /// Gives the protocol an input, if one runs, and carries out what it says.
    pub(crate) fn input(&mut self, now: Time, input: Input, actions: &mut Vec<Action>) {
        if self.instance.step(now, input) {
            self.carry_out(now, actions);
        }
    }

    /// Appends a record of the replica layer; returns its number.
    pub(crate) fn append(&mut self, record: LogRecord, actions: &mut Vec<Action>) -> Lsn {
        let (lsn, action) = self.instance.append(record);
        actions.push(action);
        lsn
    }

    /// Once the protocol takes batches in again, its leader hears of it at once. It would send again what was dropped
    /// by itself, but only when an answer is overdue; and by then the bounds may be reached again, so that a small
    /// bound would leave a group one window of commands a time-out.
    pub(crate) fn ask_for_missed(&mut self, actions: &mut Vec<Action>) {
        if !self.instance.may_ask_for_missed() {
            return;
        }
        if self.proposes_without_leading() {
            let others: Vec<_> = self.group.voters().filter(|&id| id != self.me).collect();
            actions.extend(others.into_iter().map(|to| self.tell_missed(to)));
        } else {
            // Without a leader there is nobody to tell yet.
            let Some(leader) = self.view.leader else { return };
            actions.extend(Some(leader).filter(|&to| to != self.me).map(|to| self.tell_missed(to)));
        }
        self.instance.missed = false;
    }
}

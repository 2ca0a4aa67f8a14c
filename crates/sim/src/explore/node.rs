//! One replica: its protocol, its clock and its log, and the effects of one event on them.

use std::fmt;

use synod_consensus::{
    Control, Effect, Effects, Input, Link, Members, Message, Options, Protocol, Record, Restart, Role,
    election,
};
use synod_host::Gate;
use synod_replica::{LogRecord, PeerMessage};
use synod_wire::{Ballot, Ballots, Batch, Epoch, Incarnation, Lsn, ReplicaId, Slot, Time};

use super::{
    fingerprint,
    on_disk::{OnDisk, Values},
    past::{Owed, Past, Speaker},
};
use crate::{
    check::{Checked, Invariant, Violation, demand},
    describe,
    run::catch,
};

/// The setting that all replicas share at all times.
#[derive(Debug)]
pub(super) struct Setting {
    pub(super) options: Options,
    pub(super) ids: Vec<ReplicaId>,
    pub(super) values: Values,
    /// See [`super::Bounds::head_start`].
    pub(super) head_start: bool,
}

/// A replica at a moment. It does not change: an event makes another one.
pub(super) struct Node {
    id: ReplicaId,
    protocol: Box<dyn Protocol>,
    /// The replica's own clock, which moves only when its timer fires, to the deadline.
    now: Time,
    deadline: Time,
    /// The records; record n has index n - 1.
    log: Vec<Record>,
    /// How far they are durable, and the messages that leave once a record is.
    gate: Gate<(ReplicaId, Message)>,
    /// How many lives have begun.
    life: u64,
    /// Slots that this life has delivered.
    delivered: u64,
    past: Past,
}

/// An event at a replica.
#[derive(Clone, Debug)]
pub(super) enum Happening {
    Receive(ReplicaId, Message),
    /// The session to a peer has ended, and another one has begun.
    Session(ReplicaId),
    /// This many records of the log are durable.
    Durable(usize),
    /// The deadline has come.
    Timer,
    /// An election time-out passes, and the timer, if it was due, is late.
    Wait,
    Propose(Batch),
    /// A peer has delivered this batch, and hands it out.
    Learn(Slot, Ballots, Batch),
    /// The replica crashes, this many records of its log are left, and it starts again.
    Restart(usize),
}

/// The effects of an event.
pub(super) struct Step {
    pub(super) node: Node,
    pub(super) sent: Vec<(ReplicaId, Message)>,
    /// What must hold of the other replicas.
    pub(super) owed: Vec<Owed>,
}

/// Lines for people, if they are wanted.
pub(super) type Notes<'a> = Option<&'a mut Vec<String>>;

impl Node {
    /// A replica at the beginning: started for the first time, and what it wrote then is durable.
    pub(super) fn first(id: ReplicaId, setting: &Setting) -> Result<Step, Violation> {
        // The start is far from the origin of the clock, so that subtracting from an instant never reaches it.
        let now = Time::from_nanos(1 << 50);
        let mut work = Work::live(id, setting, now, Vec::new(), 1, Past::default(), None)?;
        work.durable(work.node.log.len())?;
        work.finish()
    }

    /// Applies an event, which makes another replica. Fails if an invariant is violated.
    pub(super) fn step(
        &self,
        setting: &Setting,
        happening: &Happening,
        notes: Notes<'_>,
    ) -> Result<Step, Violation> {
        catch(|| self.step_inner(setting, happening, notes))
            .unwrap_or_else(|detail| Err(Violation { invariant: Invariant::Sound, detail }))
    }

    fn step_inner(
        &self,
        setting: &Setting,
        happening: &Happening,
        notes: Notes<'_>,
    ) -> Result<Step, Violation> {
        let mut work = match happening {
            &Happening::Restart(kept) => {
                let (log, past) = (self.log[..kept].to_vec(), self.past.clone());
                Work::live(self.id, setting, self.now, log, self.life + 1, past, notes)?
            }
            _ => Work::on(self.fork(), setting, notes),
        };
        match happening.clone() {
            Happening::Receive(from, message) => work.input(Input::Receive { from, message })?,
            Happening::Session(peer) => {
                work.input(Input::Link { peer, link: Link::Down })?;
                work.input(Input::Link { peer, link: Link::Up })?;
            }
            Happening::Durable(records) => work.durable(records)?,
            Happening::Timer => {
                work.node.now = work.node.now.max(work.node.deadline);
                work.node.deadline = Time::NEVER;
                work.input(Input::Timer)?;
            }
            Happening::Wait => work.node.now += setting.options.election_timeout,
            Happening::Propose(batch) => work.input(Input::Propose { batch, awaited: true })?,
            Happening::Learn(slot, ballots, batch) => {
                work.input(Input::Control(Control::Learn { slot, ballots, batch, voters: None }))?;
            }
            // The new life begins with the restart.
            Happening::Restart(_) => {}
        }
        work.finish()
    }

    fn fork(&self) -> Node {
        Node {
            protocol: self.protocol.clone(),
            log: self.log.clone(),
            gate: self.gate.clone(),
            past: self.past.clone(),
            ..*self
        }
    }

    pub(super) fn fingerprint(&self) -> u128 {
        fingerprint::of_debug(self, self.now)
    }

    /// How many records are durable.
    fn durable(&self) -> usize {
        usize::try_from(self.gate.through().0).expect("a short log")
    }

    pub(super) fn disk(&self, values: &Values) -> OnDisk {
        OnDisk::of(&self.log[..self.durable()], values)
    }

    pub(super) fn past(&self) -> &Past {
        &self.past
    }

    /// How many records are durable, and how many there are.
    pub(super) fn log(&self) -> (usize, usize) {
        (self.durable(), self.log.len())
    }

    /// How many slots this life has delivered.
    pub(super) fn delivered(&self) -> u64 {
        self.delivered
    }

    /// How many lives have begun.
    pub(super) fn life(&self) -> u64 {
        self.life
    }

    pub(super) fn has_timer(&self) -> bool {
        self.deadline != Time::NEVER
    }

    pub(super) fn has_room(&self) -> bool {
        self.protocol.room() > 0
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The clock itself does not distinguish states: instants are shown relative to it.
        let Node { id, protocol, now: _, deadline, log, gate, life, delivered, past } = self;
        write!(f, "{id:?} {protocol:?} {deadline:?} {log:?} {} ", gate.through())?;
        f.debug_list().entries(gate.waiting()).finish()?;
        write!(f, " {life} {delivered} {past:?}")
    }
}

/// A step in progress.
struct Work<'a> {
    node: Node,
    setting: &'a Setting,
    disk: OnDisk,
    sent: Vec<(ReplicaId, Message)>,
    owed: Vec<Owed>,
    /// The replicas that are asked for consent to a candidacy, with its ballot.
    rehearsed: Vec<(ReplicaId, Ballot)>,
    notes: Notes<'a>,
}

impl<'a> Work<'a> {
    fn on(node: Node, setting: &'a Setting, notes: Notes<'a>) -> Work<'a> {
        let disk = node.disk(&setting.values);
        Work { node, setting, disk, sent: Vec::new(), owed: Vec::new(), rehearsed: Vec::new(), notes }
    }

    /// A life begins with the records of the log.
    fn live(
        id: ReplicaId,
        setting: &'a Setting,
        now: Time,
        log: Vec<Record>,
        life: u64,
        past: Past,
        notes: Notes<'a>,
    ) -> Result<Work<'a>, Violation> {
        let mut effects = Effects::new(Lsn(log.len() as u64));
        let head_start = setting.head_start && life == 1 && setting.ids.first() == Some(&id);
        let restart = Restart { records: log.clone(), head_start, ..Restart::first(Incarnation(life)) };
        let members = Members::new(setting.ids.iter().copied(), id);
        let protocol = setting.options.start(members, restart, now, &mut effects);
        let node = Node {
            id,
            protocol,
            now,
            deadline: Time::NEVER,
            gate: Gate::new(Lsn(log.len() as u64)),
            log,
            life,
            delivered: 0,
            past,
        };
        let mut work = Work::on(node, setting, notes);
        work.carry_out(effects)?;
        Ok(work)
    }

    fn note(&mut self, text: impl FnOnce() -> String) {
        if let Some(notes) = &mut self.notes {
            notes.push(text());
        }
    }

    fn input(&mut self, input: Input) -> Checked {
        let mut effects = Effects::new(Lsn(self.node.log.len() as u64));
        self.node.protocol.step(self.node.now, input, &mut effects);
        self.node.protocol.flush(self.node.now, &mut effects);
        self.carry_out(effects)?;
        // A replica that is asked for consent to a candidacy gives it at once: an election only suggests, so
        // a replica may stand at any time, and a refusal is like a timer that does not fire.
        for (from, ballot) in std::mem::take(&mut self.rehearsed) {
            let highest = Ballot::ZERO;
            let willing = election::Message::RehearseReply { ballot, willing: true, highest };
            self.input(Input::Receive { from, message: willing.into() })?;
        }
        Ok(())
    }

    /// This many records are durable: the messages that waited for them leave.
    fn durable(&mut self, records: usize) -> Checked {
        let through = Lsn(records as u64);
        self.node.gate.durable(through);
        self.disk = self.node.disk(&self.setting.values);
        while let Some((_, (to, message))) = self.node.gate.leave() {
            self.leaves(to, message)?;
        }
        self.input(Input::Durable(through))
    }

    fn carry_out(&mut self, mut effects: Effects) -> Checked {
        let id = self.node.id;
        for effect in effects.drain().collect::<Vec<_>>() {
            match effect {
                Effect::Append { lsn, record } => {
                    let next = Lsn(self.node.log.len() as u64).next();
                    demand(lsn == next, Invariant::Sound, || format!("{id} numbers record {next} as {lsn}"))?;
                    self.note(|| format!("log {lsn}: {}", describe::record(&in_log(&record))));
                    self.node.log.push(record);
                }
                Effect::Send { message, .. } if is_lost(&message) => {}
                Effect::Send { to, message, after } => {
                    for &to in to.ids() {
                        self.send(to, &message, after)?;
                    }
                }
                Effect::Deliver { slot, ballots, batch } => {
                    self.note(|| format!("delivers slot {slot}: {}", describe::batch(&batch)));
                    let before = self.node.delivered;
                    demand(slot.0 == before + 1, Invariant::DeliveryOrder, || {
                        format!("{id} delivers slot {slot} after slot {before}")
                    })?;
                    self.node.delivered = slot.0;
                    self.node.past.delivers((id, slot), ballots, &batch, &self.setting.values)?;
                }
                Effect::Leader(view) => {
                    self.note(|| describe::view(view));
                    let owner = view.leader.is_none_or(|leader| leader == view.ballot.replica);
                    demand(owner, Invariant::OneLeader, || {
                        format!("{id} takes somebody for the leader of ballot {}", view.ballot)
                    })?;
                }
                Effect::Deadline(deadline) => self.node.deadline = deadline,
                Effect::TwoProposals { ballot, slot } => demand(false, Invariant::OneProposal, || {
                    format!("{id} is given two batches for slot {slot} in ballot {ballot}")
                })?,
                // There are no reads here, no changes of voters, and nothing that keeps what was delivered.
                Effect::ReadIndex { .. } | Effect::ChangeRefused(_) | Effect::Lacks { .. } => {}
            }
        }
        Ok(())
    }

    fn send(&mut self, to: ReplicaId, message: &Message, after: Lsn) -> Checked {
        if let Message::Election(election::Message::Rehearse { ballot }) = message {
            self.rehearsed.push((to, *ballot));
        } else if let Some((to, message)) = self.node.gate.send(after, (to, message.clone())) {
            self.leaves(to, message)?;
        } else {
            self.note(|| format!("(→ {to}  {}, once log {after} is durable)", text(message)));
        }
        Ok(())
    }

    fn leaves(&mut self, to: ReplicaId, message: Message) -> Checked {
        self.note(|| format!("→ {to}  {}", text(&message)));
        let Node { id, life, log, past, .. } = &mut self.node;
        let speaker = Speaker { id: *id, life: *life, disk: &self.disk, log, values: &self.setting.values };
        past.says(speaker, to, &message, &mut self.owed)?;
        self.sent.push((to, message));
        Ok(())
    }

    fn finish(self) -> Result<Step, Violation> {
        let status = self.node.protocol.status();
        let id = self.node.id;
        demand(status.decided.0 == self.node.delivered, Invariant::Sound, || {
            format!(
                "{id} says that it delivered {} slots, and has delivered {}",
                status.decided, self.node.delivered
            )
        })?;
        demand(
            status.role != Role::Leader || status.view.ballot.replica == id,
            Invariant::OneLeader,
            || format!("{id} leads in ballot {}, which is not its own", status.view.ballot),
        )?;
        Ok(Step { node: self.node, sent: self.sent, owed: self.owed })
    }
}

/// Answers to heartbeats never arrive; docs/exploring.md says why.
fn is_lost(message: &Message) -> bool {
    describe::class(&between_peers(message)) == "heartbeat-answer"
}

/// A message, for people.
pub(super) fn text(message: &Message) -> String {
    describe::message(&between_peers(message))
}

fn between_peers(message: &Message) -> PeerMessage {
    PeerMessage::Protocol { epoch: Epoch(1), message: message.clone() }
}

fn in_log(record: &Record) -> LogRecord {
    LogRecord::Protocol { epoch: Epoch(1), record: record.clone() }
}

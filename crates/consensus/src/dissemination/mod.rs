//! S-Paxos (Santos 2012, chapter 10): every replica disseminates batches, and a leader-based protocol orders their ids.
//!
//! [`Balanced`] wraps any ordering protocol. It gives the inner protocol references in the place of batches, and what
//! the inner protocol decides it delivers as the batches that the references stand for. Nothing outside of it, and
//! nothing inside, knows a difference.
//!
//! - A replica that is given a batch writes it down, sends it to all ([`Message::Forward`]), and acknowledges to all
//!   what it holds durably, as they do ([`Message::Held`]). The leader proposes a reference once a quorum holds the
//!   batch.
//! - **An inner protocol never sees a reference whose batch is not here**, written down before anything that the inner
//!   protocol writes about it. A message that carries such a reference is parked until the batch has come. So a vote
//!   for a reference is a vote for its batch, and all that the inner protocol proves of values holds for batches:
//!   through crashes, damaged logs and recoveries. Safety does not rest on acknowledgements.
//! - A batch is dropped once it is delivered: from then on the replica around the protocol has it, by slot. A replica
//!   that lacks it by then learns what was decided.
//! - **A reference that is decided twice counts once**, at all replicas in the same slot ([`synod_wire::Delivered`]).
//!   The second time it is delivered as it is, and executes nothing.
//!
//! docs/dissemination.md has the argument, and where this differs from the document.

mod holdings;
mod messages;
mod order;
mod planted;
mod rules;
mod spread;
mod store;

pub use holdings::{Holdings, Run};
pub use messages::{Message, Record};
pub use planted::Bug;

use std::{collections::VecDeque, sync::Arc, time::Duration};

use rules::Rules;
use store::Store;
use synod_wire::{Ballot, Batch, BatchId, Delivered, Lsn, ReplicaId, Slot, Time};

use crate::{
    Control, Effect, Effects, Input, Members, Options, Protocol, Restart, Role, Route, Status,
    options::choice,
};

choice! {
    /// How batches reach all replicas.
    #[derive(Default)]
    Dissemination, "dissemination" {
        #[default]
        /// The leader's proposals carry them.
        Leader = "leader",
        /// The leader's proposals carry them, and name those that their receiver has sent to the leader.
        References = "references",
        /// Each replica sends those of its own clients to all, and the leader orders their ids.
        Balanced = "balanced",
    }
}

impl Dissemination {
    /// All of them.
    pub(crate) const EVERY: &'static [Dissemination] =
        &[Dissemination::Leader, Dissemination::References, Dissemination::Balanced];
}

/// What a replica that disseminates batches keeps at most. The bounds are a replica's own: others may have different
/// ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Messages of the inner protocol that wait for batches; more are lost, as messages may be.
    pub parked_max: usize,
    /// Bytes of one replica's batches that are not delivered, from which on no more of them are taken in; one may
    /// always be. A replica has no more than its window of batches under way, but each time that it starts again it
    /// begins a new one. The bound is each origin's own, so that stores that are full of different batches do not
    /// refuse each other's for good.
    pub held_bytes_max: usize,
    /// Batches that are known of, here or not, from which on no others are noted that peers speak of. The default is
    /// more than the windows of all replicas hold.
    pub known_max: usize,
    /// Bytes of batches in one answer to a replica that lacks them; one batch may always leave. The replica asks again
    /// for those that did not come.
    pub answer_bytes_max: usize,
    /// Delivered batches that are kept for replicas that lag a little.
    pub recent_max: usize,
    /// Bytes of these. The decided log of the replica around the protocol mostly holds the same buffers.
    pub recent_bytes_max: usize,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds {
            parked_max: 256,
            held_bytes_max: 64 << 20,
            known_max: 1 << 16,
            answer_bytes_max: 16 << 20,
            recent_max: 256,
            recent_bytes_max: 4 << 20,
        }
    }
}

/// A replica that disseminates batches, around one that orders references.
#[derive(Clone, Debug)]
pub struct Balanced {
    inner: Box<dyn Protocol>,
    members: Members,
    /// Those of the replica; the inner protocol has a larger window.
    options: Options,
    store: Store,
    /// What was delivered.
    table: Arc<Delivered>,
    /// Batches were delivered since the store was last rid of what is void.
    stale: bool,
    /// Batches of this burst that leave with its end.
    outgoing: Vec<Batch>,
    /// What became durable here and was not acknowledged yet.
    unacknowledged: Vec<BatchId>,
    /// When the next acknowledgement of all that is held is due.
    advertise_at: Time,
    /// When that acknowledgement is due at the latest, whatever else was acknowledged meanwhile.
    advertise_by: Time,
    /// Messages of the inner protocol that wait for batches, in the order in which they came.
    parked: VecDeque<Parked>,
    /// What a parked message waits for may have come since they were last looked through.
    arrived: bool,
    /// What has no reference, and waits for room in the inner protocol's window; in which ballot it was proposed, and
    /// whether another replica waits for its decision.
    unnamed: VecDeque<(Ballot, Batch, bool)>,
    /// In which ballot the inner protocol leads.
    leads: Option<Leads>,
    /// In an epoch that is over: the batch of a slot is not there any more, so nothing is delivered from it on. That
    /// slot was not decided before the epoch's end.
    lacks: bool,
    /// The epoch is over.
    is_over: bool,
    /// Slots through this one are decided somewhere.
    elsewhere: Slot,
    /// What the inner protocol asked for.
    inner_deadline: Time,
    deadline: Option<Time>,
}

/// What a replica that leads knows of its beginning.
#[derive(Clone, Copy, Debug)]
struct Leads {
    ballot: Ballot,
    /// Slots through this one may have been decided before its time: it delivers them before it proposes anything.
    settled: Slot,
    /// It has delivered them, and has found what of its log it proposes again by itself.
    began: bool,
}

/// A message of the inner protocol that carries references to batches that are not here.
#[derive(Clone, Debug)]
struct Parked {
    from: ReplicaId,
    message: crate::Message,
    since: Time,
}

/// Whether a batch is ordered by its reference. A change of the group is ordered as it is: the replicas that
/// order it must know what it says.
fn by_reference(batch: &Batch) -> bool {
    batch.id().is_some() && batch.reconfiguration().is_none()
}

/// Starts a replica with these options, which say that its batches are disseminated by all.
pub(crate) fn start(
    options: &Options,
    members: Members,
    restart: Restart,
    now: Time,
    effects: &mut Effects,
) -> Box<dyn Protocol> {
    let mut store = Store::new(options.bounds);
    let table = Arc::clone(&restart.delivered);
    let (mut records, mut held) = (Vec::new(), Vec::new());
    for record in restart.records {
        match record {
            crate::Record::Dissemination(record) => held.push(record),
            record => records.push(record),
        }
    }
    for Record::Held { keep, batch } in held {
        let id = batch.id().expect("what is held has a name");
        store.hear(&batch);
        if let Some(known) = store.get_mut(id) {
            known.keep = known.keep.max(keep);
        } else if !table.voids(id) {
            store.hold(batch, keep, Lsn::ZERO, (now, options.retransmit_after));
            let rules = planted::rules(options);
            store.held_by(id, members.only(members.me()), |holders| rules.is_stable(&members, holders));
        }
    }
    // A protocol in which every replica proposes has windows for all by itself.
    let windows = if options.protocol.every_replica_proposes() { 1 } else { members.count() };
    let window_max = options.window_max * windows;
    let inner_options = Options { window_max, dissemination: Dissemination::Leader, ..options.clone() };
    let (mark, is_over, base) = (effects.mark(), restart.is_over, restart.base);
    let inner = inner_options.start(members.clone(), Restart { records, ..restart }, now, effects);
    let mut balanced = Balanced {
        inner,
        members,
        options: options.clone(),
        store,
        table,
        stale: true,
        outgoing: Vec::new(),
        unacknowledged: Vec::new(),
        advertise_at: now,
        advertise_by: now,
        parked: VecDeque::new(),
        arrived: false,
        unnamed: VecDeque::new(),
        leads: None,
        lacks: false,
        is_over,
        elsewhere: Slot::ZERO,
        inner_deadline: Time::NEVER,
        deadline: None,
    };
    balanced.edit(mark, effects);
    if !is_over {
        // The log was trimmed through here, perhaps by a life that ended before it wrote again what has to stay.
        balanced.keep_longer(base, effects);
    }
    Box::new(balanced)
}

impl Protocol for Balanced {
    fn handle(&mut self, now: Time, input: Input, effects: &mut Effects) {
        match input {
            Input::Receive { from, message: crate::Message::Dissemination(message) } => {
                if self.members.index(from).is_some() && from != self.members.me() {
                    self.receive(now, from, message, effects);
                }
            }
            Input::Receive { from, message } => self.receive_inner(now, from, message, effects),
            Input::Propose { batch, awaited } => self.propose(now, batch, awaited, effects),
            Input::Durable(lsn) => {
                self.became_durable(lsn);
                self.step_inner(now, input, effects);
            }
            Input::Link { peer, link } => {
                if link.begins_again() {
                    self.tell_again(now, peer, effects);
                }
                self.step_inner(now, input, effects);
            }
            Input::Timer => {
                self.deadline = None;
                if now >= self.inner_deadline {
                    self.inner_deadline = Time::NEVER;
                    self.step_inner(now, input, effects);
                }
            }
            Input::Control(control) => self.control(now, control, effects),
        }
        self.take_parked(now, effects);
    }

    fn promised(&self) -> Ballot {
        self.inner.promised()
    }

    fn promise(&mut self, now: Time, ballot: Ballot, effects: &mut Effects) {
        let mark = effects.mark();
        self.inner.promise(now, ballot, effects);
        self.edit(mark, effects);
    }

    fn options(&self) -> &Options {
        &self.options
    }

    fn flush(&mut self, now: Time, effects: &mut Effects) {
        if std::mem::take(&mut self.stale) {
            self.drop_void(effects);
        }
        self.order(now, effects);
        self.repeat(now, effects);
        self.spread(now, effects);
        let mark = effects.mark();
        self.inner.flush(now, effects);
        self.edit(mark, effects);
        self.ask_for_timer(effects);
    }

    /// Each replica has a window of its own: batches of its clients that are not delivered.
    fn room(&self) -> usize {
        let full = self.is_congested() || self.store.is_full_of(self.members.me());
        if full { 0 } else { self.options.window_max.saturating_sub(self.store.own()) }
    }

    fn is_congested(&self) -> bool {
        self.inner.is_congested()
    }

    fn route(&self) -> Route {
        Route::Here
    }

    fn caretaker(&self) -> Option<ReplicaId> {
        self.inner.caretaker()
    }

    fn status(&self) -> Status {
        let status = self.inner.status();
        Status {
            decided_elsewhere: status.decided_elsewhere.max(self.elsewhere),
            waits_for_disk: status.waits_for_disk || self.store.waits_for_disk(),
            ..status
        }
    }

    fn answers(&self, now: Time, voter: ReplicaId) -> bool {
        self.inner.answers(now, voter)
    }

    fn election_memory(&self) -> crate::election::Memory {
        self.inner.election_memory()
    }

    fn round_trips(&self) -> Vec<(ReplicaId, Duration)> {
        self.inner.round_trips()
    }

    fn ordered(&mut self, origin: ReplicaId, commands: u64) {
        self.inner.ordered(origin, commands);
    }

    fn origins(&self) -> Vec<(ReplicaId, u64)> {
        self.inner.origins()
    }

    fn for_each_proposal(&self, see: &mut dyn FnMut(&Batch)) {
        self.inner.for_each_proposal(see);
    }
}

impl Balanced {
    /// Gives the inner protocol an input, and makes its effects those of this replica.
    fn step_inner(&mut self, now: Time, input: Input, effects: &mut Effects) {
        let mark = effects.mark();
        self.inner.step(now, input, effects);
        self.edit(mark, effects);
    }

    #[inline]
    fn rules(&self) -> Rules {
        planted::rules(&self.options)
    }

    /// Slots through this one are delivered.
    fn decided(&self) -> Slot {
        self.inner.status().decided
    }

    /// How long the log keeps a batch that is written now. One that is delivered later is written again.
    fn keep(&self) -> Slot {
        self.kept_from(self.decided())
    }

    /// So long that what is under way now can be delivered before, twice over. Too short a time costs that the batch is
    /// written again, too long a time that the log is.
    fn kept_from(&self, decided: Slot) -> Slot {
        let under_way = 2 * (self.store.len() + self.inner.status().in_flight) + 2;
        let most = self.options.window_max * self.members.count();
        Slot(decided.0.saturating_add(under_way.min(most) as u64))
    }

    fn control(&mut self, now: Time, control: Control, effects: &mut Effects) {
        match control {
            Control::Learn { slot, ballots, batch, voters } => {
                let batch = self.learn(now, slot, batch, effects);
                let learn = Control::Learn { slot, ballots, batch, voters };
                self.step_inner(now, Input::Control(learn), effects);
            }
            Control::Installed { slot, ref delivered, .. } => {
                if slot > self.decided() {
                    self.table = Arc::clone(delivered);
                    (self.stale, self.arrived) = (true, true);
                }
                self.step_inner(now, Input::Control(control), effects);
            }
            Control::Trim(slot) => {
                self.step_inner(now, Input::Control(control), effects);
                self.keep_longer(slot, effects);
            }
            control => self.step_inner(now, Input::Control(control), effects),
        }
    }

    fn ask_for_timer(&mut self, effects: &mut Effects) {
        let deadline = self.inner_deadline.min(self.due());
        if self.deadline != Some(deadline) {
            self.deadline = Some(deadline);
            effects.push(Effect::Deadline(deadline));
        }
    }

    /// Whether the inner protocol leads, and in which ballot.
    fn leading(&self) -> Option<Ballot> {
        let status = self.inner.status();
        (status.role == Role::Leader).then_some(status.view.ballot)
    }
}

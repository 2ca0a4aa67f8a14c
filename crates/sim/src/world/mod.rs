//! A cluster in its simulated world: virtual time, one queue of what is going to happen, one seed.
//!
//! | file | story |
//! | --- | --- |
//! | `mod.rs` | what happens, one thing after the other |
//! | `machine.rs` | a replica's disk, and the life that runs on it |
//! | `lives.rs` | starts, crashes, pauses; events in |
//! | `actions.rs` | actions out |
//! | `checks.rs` | what is checked of one group |
//! | `execution.rs` | the executor's work: batches, reads, snapshots |
//! | `merging.rs` | the same where groups are merged into one order |
//! | `links.rs` | sessions between replicas |
//! | `peers.rs` | with whom a node has sessions |
//! | `identity.rs` | who replicas are to each other; copies of disks |
//! | `clients.rs` | who asks for what, and what they make of the answers |
//! | `requests.rs` | what becomes of their questions at replicas |
//! | `waiting.rs` | those who wait at a replica, as its host keeps them |
//! | `coverage.rs` | how much of what can happen did happen |
//! | `watchers.rs` | those who watch what clients change; leases by the time of the world |
//! | `guests.rs` | clients of a state machine that somebody brings |
//! | `alone.rs` | what is left of the store's clients where there is no store |
//! | `faults.rs` | what goes wrong, and the end of all that |
//! | `idling.rs` | merged groups that nobody asks for anything |
//! | `subscribers.rs` | those who follow some merged groups |
//! | `operator.rs` | changes of the group, and the machines that come and go with them |
//! | `first_group.rs` | the group whose members this one follows |
//! | `backup.rs` | a group that begins with the state of a backup |
//! | `sealed.rs` | files of merged groups |
//! | `possible.rs` | the groups that may come next, and who may lose its memory |
//! | `outage.rs` | one fault that lasts, and for how long nobody serves |
//! | `choice.rs` | links of different lengths, and the leader that is chosen for them |
//! | `trials.rs` | networks that keep only some links for long |
//! | `manual.rs` | a world that a script moves, step by step |

mod actions;
#[cfg(not(feature = "kv"))]
mod alone;
mod backup;
mod checks;
#[cfg(feature = "kv")]
mod choice;
#[cfg(feature = "kv")]
mod clients;
mod coverage;
mod execution;
mod faults;
mod first_group;
mod guests;
mod identity;
mod idling;
mod links;
mod lives;
mod machine;
mod manual;
mod merging;
mod operator;
#[cfg(feature = "kv")]
mod outage;
mod peers;
mod possible;
#[cfg(feature = "kv")]
mod requests;
mod sealed;
mod subscribers;
mod trials;
mod waiting;
#[cfg(feature = "kv")]
mod watchers;

use std::{collections::BTreeMap, rc::Rc, time::Duration};

use bytes::Bytes;
use fastrand::Rng;
use synod_host::Effect;
use synod_replica::{Event, Executor};
use synod_wire::{GroupId, ReplicaId};

use crate::{
    backup::Backup,
    chart::{Key, Mark, Recorder},
    check::{Checked, DecidedLog, Goodput, Invariant, Order, Reference, Violation},
    clock::Moment,
    guest::{AnyGuest, Hosting},
    network::{Arrival, Loss, Network, Packet},
    per_group::PerGroup,
    plan::{Family, Plan},
    queue::EventQueue,
    situations::{MergeCounts, Reached, Sight},
    trace::Trace,
};
#[cfg(feature = "kv")]
use crate::{check::Leases, watching::Watchers};
#[cfg(not(feature = "kv"))]
use alone::{Clients, Served, is_question, reference, replaced};
use checks::GroupChecks;
#[cfg(feature = "kv")]
use clients::{Ask, Clients, Heard, is_question};
pub use coverage::Coverage;
use faults::Faults;
use first_group::FirstGroup;
use guests::Guests;
use links::News;
use machine::Machine;
pub(crate) use manual::UnderWay;
use operator::Operator;
pub(crate) use operator::info as member_info;
#[cfg(feature = "kv")]
pub(crate) use outage::REPLICAS as OUTAGE_REPLICAS;
pub(crate) use possible::promotion;
use subscribers::Subscribers;
use trials::Trials;
pub(crate) use trials::duration as trial_duration;
use waiting::{Question, Waiter};
#[cfg(feature = "kv")]
use watchers::{Served, reference, replaced};

/// The group that clients, operators and scripts use.
const FIRST: GroupId = GroupId::FIRST;

/// More events than any run needs: a replica that asks for the same instant again and again is found out.
const EVENTS_MAX: u64 = 3_000_000;

/// Something that is going to happen. Replicas are named by index.
#[derive(Debug)]
pub(crate) enum Happening {
    /// A message arrives: the front of the stream of that session, or `body`.
    Arrive { from: usize, birth: u64, to: usize, session: u64, body: Option<Packet> },
    /// A replica tries to begin a session to a peer.
    Dial { from: usize, to: usize },
    /// What a replica tells of its history arrives.
    Tell { from: usize, birth: u64, to: usize, session: u64, group: GroupId, body: Bytes },
    /// A session that is cut ends, if it still is.
    Hangup { from: usize, to: usize, session: u64 },
    /// A replica is told something by its own threads.
    Notice { of: usize, life: u64, group: GroupId, event: Box<Event> },
    /// A node is told something of another one, which concerns all groups.
    News { of: usize, life: u64, news: News },
    /// The log of these groups is durable further than before.
    Progress { of: usize, life: u64, groups: Vec<GroupId> },
    /// A deadline may have passed.
    Timer { of: usize, life: u64 },
    /// A burst ends.
    BurstEnds { of: usize, life: u64 },
    /// A sync of the disk ends.
    SyncEnds { of: usize, life: u64 },
    /// The executor of a group, or of merged groups, goes on.
    Execute { of: usize, life: u64, group: GroupId },
    /// A snapshot file is complete.
    SnapshotWritten { of: usize, life: u64, group: GroupId },
    /// A client's question reaches a replica.
    #[cfg(feature = "kv")]
    Asked { of: usize, ask: Ask },
    /// An answer reaches a client.
    #[cfg(feature = "kv")]
    Heard(Heard),
    /// A client's worker thinks of what to do next.
    #[cfg(feature = "kv")]
    Think { client: usize, worker: usize },
    /// A client of a guest thinks of what to do next.
    GuestThinks { client: usize },
    /// A replica looks at the machine of a guest that it hosts.
    GuestLooks { of: usize, life: u64 },
    /// A client gives up an attempt.
    #[cfg(feature = "kv")]
    GivesUp { client: usize, worker: usize, attempt: u64 },
    /// Somebody looks at a replica's state as it is.
    #[cfg(feature = "kv")]
    Peek { of: usize },
    /// A replica's node sees what the first group of the cluster has decided.
    Sees { of: usize },
    /// Something goes wrong.
    Fault,
    /// A replica crashes.
    Crash { of: usize, life: u64 },
    /// A crashed replica starts again.
    Restart { of: usize },
    /// A replica is told that a later life of it was seen.
    Outlived { of: usize, life: u64 },
    /// A paused replica goes on.
    Resume { of: usize },
    /// A stalled disk goes on.
    Unstall { of: usize },
    /// A replica that nobody needs any more stops for good.
    Stop { of: usize },
    /// An operator wants the epoch to end, and another like it to begin; so often it tries until the replica leads.
    EpochEnds { of: usize, tries: u32 },
    /// A partition begins.
    Part { links: Vec<(usize, usize)>, lasts: Duration },
    /// A partition ends.
    Mend { partition: u64 },
    /// A trial begins or goes on.
    Trial,
}

/// A cluster and everything around it.
#[derive(Debug)]
pub struct World {
    plan: Plan,
    now: Moment,
    queue: EventQueue<Happening>,
    machines: Vec<Machine>,
    /// The birth with which each replica was heard first.
    births: BTreeMap<ReplicaId, u64>,
    network: Network,
    clients: Clients,
    /// A state machine that somebody brought, and its clients.
    guests: Option<Guests>,
    #[cfg(feature = "kv")]
    watchers: Watchers,
    #[cfg(feature = "kv")]
    leases: Leases,
    faults: Faults,
    operator: Operator,
    /// The first group of the cluster, if the simulated group follows it.
    first: Option<FirstGroup>,
    /// The backup with whose state the group begins, if it does.
    backup: Option<Backup>,
    trials: Trials,
    checks: PerGroup<GroupChecks>,
    /// The state of each group, or of all that are merged, in the order in which it has executed.
    references: PerGroup<Reference>,
    /// The common order, if groups are merged.
    order: Option<Order>,
    subscribers: Subscribers,
    /// The situations of merged groups that were seen.
    merges: MergeCounts,
    /// The machine that proposed to skip to a position of a group.
    skipped: BTreeMap<(GroupId, u64), usize>,
    goodput: Goodput,
    trace: Trace,
    /// Hears of everything that a chart shows, if one is wanted.
    chart: Option<Box<Recorder>>,
    /// Messages that replicas have sent.
    sent: u64,
    rng: Rng,
    /// How long what replicas tell of their histories takes.
    telling: Rng,
    events: u64,
    /// Folds what happened when; equal for equal runs.
    fingerprint: u64,
    coverage: Coverage,
    /// A batch, or the batches of an answer to a replica that catches up, have at most this many bytes.
    batches_max: u64,
    /// The largest message that fits a frame.
    frame_bytes_max: usize,
    /// Clocks of replicas have jumped forward so often.
    jumps: u32,
    /// A script lets a replica time out.
    times_out: bool,
    /// Time passes in a script; signs of life are not shown meanwhile.
    idles: bool,
    /// The group that the commands of a script are of.
    focus: GroupId,
    /// Scratch space.
    arrivals: Vec<Arrival>,
    /// The same.
    effects: Vec<(GroupId, Effect<Waiter, Question>)>,
    /// When processes die within a burst, apart from the world's own draws.
    deaths: Rng,
    /// When turns of execution end, apart from the world's own draws.
    turns: Rng,
}

/// What came of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Simulated time.
    pub simulated: std::time::Duration,
    /// What happened, counted.
    pub events: u64,
    /// Commands in the log at the end.
    pub commands: usize,
    /// Operations in the clients' history, and how many of them have no answer.
    pub operations: usize,
    /// See `operations`.
    pub unanswered: usize,
    /// Reads of a guest's clients that were answered.
    pub reads: usize,
    /// Equal for equal runs.
    pub fingerprint: u64,
    /// The search for a linearization was given up.
    pub undecided: bool,
    /// How long after the end of all faults every replica served again and had the same state.
    pub recovery: std::time::Duration,
    /// What happened.
    pub coverage: Coverage,
    /// The dangerous situations among that.
    pub reached: Reached,
    /// The situations of merged groups.
    pub merges: MergeCounts,
}

impl World {
    /// A world as it is before anything happens.
    #[must_use]
    pub fn new(plan: Plan, trace: Trace) -> World {
        World::hosting_guest(plan, trace, None)
    }

    /// The same with a state machine beside the store.
    pub(crate) fn hosting_guest(plan: Plan, trace: Trace, guest: Option<Rc<dyn AnyGuest>>) -> World {
        let mut rng = Rng::with_seed(plan.seed);
        let replicas = plan.replicas;
        let capacity = replicas + plan.changes.spares;
        let first = lives::first_group(&plan, FIRST);
        let backup = Backup::of(&plan, |machine| executor(&plan, FIRST, machine), guest.as_ref());
        let mut machines: Vec<_> =
            (1..=replicas as u64).map(|id| Machine::new(ReplicaId(id), &plan)).collect();
        if let Some(backup) = &backup {
            machines.iter_mut().for_each(|machine| machine.begin_with(merging::file_of(backup, &plan)));
        }
        let groups = |count| (0..count as u16).map(GroupId);
        let checks = groups(plan.groups).map(|group| checks(&plan, group, capacity)).collect();
        let references = groups(plan.states());
        let references =
            references.map(|at| reference_of(&plan, at, guest.as_ref(), backup.as_ref())).collect();
        let mut order = plan.merging.as_ref().map(|merging| Order::new(plan.groups, merging.take));
        if backup.is_some() {
            order.iter_mut().for_each(Order::begin_with_backup);
        }
        World {
            now: Moment::START,
            queue: EventQueue::default(),
            machines,
            births: BTreeMap::new(),
            network: Network::new(plan.network, capacity, rng.fork()),
            clients: Clients::new(&plan, rng.fork()),
            guests: guest.map(|guest| Guests::new(guest, plan.seed)),
            #[cfg(feature = "kv")]
            watchers: Watchers::new(&plan.watches, plan.seed, plan.clients.keys),
            #[cfg(feature = "kv")]
            leases: Leases::default(),
            faults: Faults::new(capacity, rng.fork()),
            operator: Operator::new(&plan),
            first: FirstGroup::new(&plan, &first, capacity),
            backup,
            // Not from the same source: without trials everything is as it was.
            trials: Trials::new(plan.trials, Rng::with_seed(!plan.seed)),
            checks,
            references,
            order,
            subscribers: Subscribers::new(&plan),
            merges: MergeCounts::default(),
            skipped: BTreeMap::new(),
            goodput: Goodput::default(),
            trace,
            chart: None,
            sent: 0,
            rng,
            telling: Rng::with_seed(plan.seed ^ 0x7e11),
            events: 0,
            fingerprint: 0,
            coverage: Coverage::default(),
            batches_max: plan
                .largest(|settings| settings.limits.batch_bytes_max().max(settings.fetch_bytes_max) as u64),
            frame_bytes_max: plan.largest(|settings| settings.message_bytes_max(&plan.settings.limits)),
            jumps: 0,
            times_out: false,
            idles: false,
            focus: FIRST,
            arrivals: Vec::new(),
            effects: Vec::new(),
            deaths: Rng::with_seed(plan.seed ^ 0xdead),
            turns: Rng::with_seed(plan.seed ^ 0x0_70_25),
            plan,
        }
    }

    /// Runs from the start to the end of the plan: faults, then peace, then the history's check.
    pub fn run(&mut self) -> Result<Outcome, Violation> {
        self.begin_with_backup()?;
        for of in 0..self.machines.len() {
            self.start(of)?;
        }
        #[cfg(feature = "kv")]
        self.begin_asking();
        self.begin_guests();
        self.begin_faults();
        self.begin_trials();
        self.run_until(Moment::after(self.plan.duration))?;
        let peace = self.now;
        self.make_peace()?;
        self.goodput.peace(peace);
        self.run_until(peace + self.plan.clients.presses_on)?;
        self.run_to_recovery(self.now)?;
        // Elsewhere an outage may outlast the last fault, and what was asked for in it comes too late.
        if self.plan.family == Family::Load {
            self.goodput.check()?;
        }
        let recovery = self.now.since(peace + self.plan.clients.presses_on);
        self.followed_to_the_end()?;
        #[cfg(feature = "kv")]
        self.watch_to_the_end()?;
        #[cfg(feature = "kv")]
        self.outlive_leases()?;
        self.stay_idle()?;
        self.check_guest_history()?;
        let undecided = self.check_clients()?;
        let (operations, unanswered) = self.clients.counts();
        Ok(Outcome {
            simulated: self.now.since(Moment::START),
            events: self.events,
            commands: self.references.all().map(Reference::commands).sum(),
            operations,
            unanswered,
            reads: self.guests.as_ref().map_or(0, |guests| guests.read),
            fingerprint: self.fingerprint,
            undecided,
            recovery,
            coverage: self.coverage,
            reached: self.reached(),
            merges: self.merges,
        })
    }

    /// Lets everything happen that is due through an instant.
    pub(crate) fn run_until(&mut self, end: Moment) -> Checked {
        while self.queue.next_at().is_some_and(|at| at <= end) {
            self.next()?;
        }
        self.now = end;
        Ok(())
    }

    /// Lets one thing happen.
    fn next(&mut self) -> Checked {
        let Some((at, happening)) = self.queue.pop() else { return Ok(()) };
        debug_assert!(at >= self.now, "time goes on");
        self.now = at;
        self.events += 1;
        if self.events > EVENTS_MAX {
            let detail = format!("{EVENTS_MAX} events, and no end: {happening:?} is next");
            return Err(Violation { invariant: Invariant::Liveness, detail });
        }
        self.happen(happening)?;
        self.follow()?;
        #[cfg(feature = "kv")]
        self.watch()?;
        let reached = self.reached();
        self.chart(|chart| chart.reaches(reached));
        Ok(())
    }

    /// The dangerous situations that this world has come to so far.
    #[must_use]
    pub fn reached(&self) -> Reached {
        self.checks.all().map(|checks| checks.situations.reached()).fold(Reached::default(), Reached::or)
    }

    /// Something happens that concerns all groups.
    fn see(&mut self, sight: &Sight<'_>) {
        self.checks.all_mut().for_each(|checks| checks.situations.see(sight));
    }

    /// The lines of the trace, if they were kept.
    pub fn take_trace(&mut self) -> Vec<String> {
        self.trace.take()
    }

    /// From now on a recorder hears of everything that a chart shows.
    pub(crate) fn record(&mut self, recorder: Recorder) {
        self.chart = Some(Box::new(recorder));
    }

    /// The numbers of the messages that would still arrive.
    #[cfg(test)]
    pub(crate) fn into_under_way(mut self) -> std::collections::BTreeSet<u64> {
        let mut numbers = std::collections::BTreeSet::new();
        for from in 0..self.machines.len() {
            for to in 0..self.machines.len() {
                numbers.extend(self.network.in_transit(from, to).map(|packet| packet.number));
            }
        }
        while let Some((_, happening)) = self.queue.pop() {
            if let Happening::Arrive { body: Some(packet), .. } = happening {
                numbers.insert(packet.number);
            }
        }
        numbers
    }

    /// Tells the recorder something, if there is one.
    pub(crate) fn chart(&mut self, tell: impl FnOnce(&mut Recorder)) {
        if let Some(chart) = &mut self.chart {
            chart.now = self.now;
            tell(chart);
        }
    }

    /// Takes the recorder away.
    pub(crate) fn take_recorder(&mut self) -> Option<Recorder> {
        self.chart.take().map(|recorder| *recorder)
    }

    /// Adds a line about a replica to the trace.
    fn line(&mut self, of: usize, text: impl FnOnce() -> String) {
        self.trace.line(self.now, || format!("r{:<9}{}", of + 1, text()));
    }

    /// What a line says first of something that is of a group, if there are several.
    fn of_group(&self, group: GroupId) -> String {
        if self.plan.groups > 1 { format!("{group} ") } else { String::new() }
    }

    /// Something happens at a replica: a line of the trace, and a mark on its lifeline in a chart.
    fn note(&mut self, of: usize, mark: Mark, text: impl Fn() -> String) {
        self.chart(|chart| chart.marks(of, mark, text()));
        self.line(of, text);
    }

    fn note_if(&mut self, shown: bool, of: usize, mark: Mark, text: impl Fn() -> String) {
        if shown {
            self.note(of, mark, text);
        }
    }

    /// Something happens to the whole cluster: a line of the trace, and one across a chart.
    fn note_for_all(&mut self, text: impl Fn() -> String) {
        self.chart(|chart| chart.marks_all(text()));
        self.trace.line(self.now, text);
    }

    /// Messages were lost: a chart shows them so.
    fn note_losses(&mut self) {
        for (number, loss) in self.network.take_lost() {
            self.note_loss(number, loss);
        }
    }

    fn note_loss(&mut self, number: u64, loss: Loss) {
        self.chart(|chart| chart.loses(Key::Message(number), loss));
    }

    /// A process that something is addressed to.
    fn addressee(happening: &Happening) -> Option<usize> {
        match happening {
            Happening::Arrive { to, .. } | Happening::Tell { to, .. } => Some(*to),
            Happening::Notice { of, .. }
            | Happening::News { of, .. }
            | Happening::Progress { of, .. }
            | Happening::Timer { of, .. }
            | Happening::BurstEnds { of, .. }
            | Happening::Execute { of, .. }
            | Happening::GuestLooks { of, .. }
            | Happening::Sees { of } => Some(*of),
            #[cfg(feature = "kv")]
            Happening::Peek { of } | Happening::Asked { of, .. } => Some(*of),
            _ => None,
        }
    }

    fn happen(&mut self, happening: Happening) -> Checked {
        if let Some(of) = World::addressee(&happening)
            && let Some(pause) = &mut self.machines[of].paused
        {
            pause.waiting.push_back(happening);
            return Ok(());
        }
        match happening {
            Happening::Arrive { from, birth, to, session, body } => {
                self.arrive((from, birth), to, session, body)
            }
            Happening::Tell { from, birth, to, session, group, body } => {
                self.hear_history((from, birth), to, session, group, body)
            }
            Happening::Dial { from, to } => self.dial(from, to),
            Happening::Notice { of, life, group, event } => self.notice(of, life, group, *event),
            Happening::News { of, life, news } => self.hear_news(of, life, news),
            Happening::Progress { of, life, groups } => self.progress(of, life, &groups),
            Happening::Timer { of, life } => self.timer(of, life),
            Happening::BurstEnds { of, life } => self.burst_ends(of, life),
            Happening::SyncEnds { of, life } => self.sync_ends(of, life),
            Happening::Execute { of, life, group } => self.execute(of, life, group),
            Happening::SnapshotWritten { of, life, group } => self.snapshot_written(of, life, group),
            #[cfg(feature = "kv")]
            Happening::Asked { of, ask } => self.asked(of, ask),
            #[cfg(feature = "kv")]
            Happening::Heard(heard) => self.heard(heard),
            #[cfg(feature = "kv")]
            Happening::Think { client, worker } => self.think(client, worker),
            #[cfg(feature = "kv")]
            Happening::GivesUp { client, worker, attempt } => self.gives_up(client, worker, attempt),
            Happening::GuestThinks { client } => self.guest_thinks(client),
            Happening::GuestLooks { of, life } => self.guest_looks(of, life),
            #[cfg(feature = "kv")]
            Happening::Peek { of } => self.peek(of),
            Happening::Sees { of } => self.sees(of),
            Happening::Fault => self.fault(),
            Happening::Restart { of } => self.restart(of),
            Happening::Resume { of } => self.resume(of),
            Happening::EpochEnds { of, tries } => self.end_epoch(of, tries),
            Happening::Trial => self.trial(),
            Happening::Hangup { .. }
            | Happening::Crash { .. }
            | Happening::Outlived { .. }
            | Happening::Stop { .. }
            | Happening::Unstall { .. }
            | Happening::Part { .. }
            | Happening::Mend { .. } => {
                self.befall(happening);
                Ok(())
            }
        }
    }

    /// Lets one thing happen that violates nothing by itself.
    fn befall(&mut self, happening: Happening) {
        match happening {
            Happening::Hangup { from, to, session }
                if self.network.is_cut(from, to) && self.network.session(from, to) == session =>
            {
                self.end_session(from, to);
            }
            Happening::Crash { of, life } if self.machines[of].in_life(life).is_some() => {
                self.crash_for_a_while(of);
            }
            Happening::Outlived { of, life } => self.outlived(of, life),
            Happening::Stop { of } => self.stop_for_good(of),
            Happening::Unstall { of } => self.unstall(of),
            Happening::Part { links, lasts } => self.part_for_a_while(links, lasts),
            Happening::Mend { partition } => self.mend(partition),
            _ => {}
        }
    }

    /// The bug that is planted in the merge.
    #[cfg(feature = "planted-bugs")]
    pub(crate) fn planted_in_merge(&self) -> Option<synod_replica::MergeBug> {
        self.plan.merging.as_ref().and_then(|merging| merging.planted)
    }

    /// What the state of a group has to be.
    fn reference(&self, group: GroupId) -> &Reference {
        &self.references[self.plan.state_of(group)]
    }

    /// Makes equal runs recognisable: folds a number into the fingerprint.
    fn fold(&mut self, number: u64) {
        self.fingerprint = (self.fingerprint.rotate_left(7) ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

/// What is checked of a group of a plan with at most this many machines.
fn checks(plan: &Plan, group: GroupId, capacity: usize) -> GroupChecks {
    let first = lives::first_group(plan, group);
    let mut log = DecidedLog::new(first.clone(), plan.merging.is_some());
    if plan.begins_with_backup && group == FIRST {
        log.begin_with_backup();
    }
    #[cfg(feature = "planted-bugs")]
    if let Some(bug) = plan.settings.consensus.planted {
        log.change_wrongly(bug);
    }
    GroupChecks::new(&first, capacity, log)
}

/// What the state of a group of a plan, or of all that are merged, is compared with.
fn reference_of(
    plan: &Plan,
    at: GroupId,
    guest: Option<&Rc<dyn AnyGuest>>,
    backup: Option<&Backup>,
) -> Reference {
    let (machine, executor) = (|| reference(plan, guest), |machine| executor(plan, at, machine));
    #[cfg_attr(not(feature = "planted-bugs"), expect(unused_mut))]
    let mut reference = Reference::new(machine, executor, guest, backup);
    #[cfg(feature = "planted-bugs")]
    if plan.settings.consensus.planted == Some(synod_consensus::Bug::ClockCountsTwice) {
        reference.count_twice();
    }
    #[cfg(feature = "planted-bugs")]
    if let Some(bug) = plan.settings.consensus.planted {
        reference.change_wrongly(bug);
    }
    reference
}

/// What executes for a group of a plan, or for all that are merged, before anything is decided.
fn executor(plan: &Plan, of: GroupId, machine: Hosting) -> Executor<Hosting> {
    match &plan.merging {
        None => Executor::new(machine, lives::first_group(plan, of)),
        Some(merging) => {
            let groups = (0..plan.groups as u16).map(|group| lives::first_group(plan, GroupId(group)));
            Executor::merged(machine, groups, merging.take)
        }
    }
}

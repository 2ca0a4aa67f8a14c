//! Several groups that are merged into one order (Multi-Ring Paxos), in a simulated world of their own.
//!
//! Each node hosts all groups: one real [`synod_host::Host`], one log, one real [`synod_replica::MergedExecutor`]. The
//! world is smaller than that of one group (`world/`): it is for what merging adds. A seed draws groups, protocols,
//! skips, network, disks, clients and faults (`plan.rs`).
//!
//! | file | story |
//! | --- | --- |
//! | `mod.rs` | what happens, one thing after the other |
//! | `machine.rs`, `disk.rs` | a node's life, and what outlives it |
//! | `lives.rs` | starts, crashes, pauses |
//! | `bursts.rs` | the bursts of a node's [`Host`](synod_host::Host) |
//! | `actions.rs` | actions out |
//! | `execution.rs` | batches, reads and snapshots |
//! | `links.rs` | sessions between nodes |
//! | `members.rs` | nodes that join and leave |
//! | `clients.rs` | who asks for what, and what they see |
//! | `faults.rs` | what goes wrong, and the end of all that |
//! | `check.rs` | one log a group, one common order, one state |
//! | `guests.rs` | commands for a state machine of your own |
//! | `upkeep.rs` | compactions and comparisons that nodes make by themselves |
//! | `subscribers.rs` | those who follow some of the groups |
//! | `watchers.rs` | those who watch the store; leases by the time of the world |
//! | `situations.rs` | what a run came to |
//! | `cli.rs` | `synod sim merged` |

mod actions;
mod bursts;
mod check;
#[cfg(feature = "cli")]
mod cli;
mod clients;
mod disk;
mod execution;
mod faults;
mod guests;
mod links;
mod lives;
mod machine;
mod members;
mod plan;
mod situations;
mod subscribers;
mod upkeep;
mod watchers;

use std::{collections::BTreeMap, rc::Rc, time::Duration};

use bytes::Bytes;
use fastrand::Rng;
use synod_consensus::Link;
use synod_replica::{Event, Executor};
use synod_wire::{GroupId, Slot};

#[cfg(feature = "cli")]
pub use self::cli::{MergedArgs, run_merged};
use self::{
    check::Order,
    clients::{Ask, Clients, Heard},
    faults::Hold,
    guests::Guests,
    links::Links,
    machine::Machine,
    subscribers::Subscribers,
};
pub use self::{
    plan::MergedPlan,
    situations::{Counts, Situation},
};
use crate::{
    backup::{self, Backup},
    check::{Checked, Compactions, Invariant, Leases, Model, Violation, check_history, demand},
    clock::Moment,
    describe::GuestSpeaks,
    guest::{AnyGuest, Guest},
    queue::EventQueue,
    replay::Run,
    run::catch,
    trace::Trace,
    watching::Watchers,
};

/// More events than any run needs.
const EVENTS_MAX: u64 = 2_000_000;

/// Lines of the trace that a failure shows.
const TRACE_LINES: usize = 60;

/// Something that is going to happen. Nodes are named by index.
#[derive(Debug)]
enum Happening {
    /// A message of a group arrives.
    Arrive { from: usize, to: usize, session: u64, group: GroupId, body: Bytes },
    /// Two nodes try to begin a session.
    Dial { one: usize, other: usize },
    /// A session whose link is cut ends, if it still is.
    Hangup { one: usize, other: usize, session: u64 },
    /// Replicas are told something by their own node.
    Notice { of: usize, life: u64, events: Vec<(GroupId, Event)> },
    /// All replicas of a node are told of the session to another one.
    Linked { of: usize, life: u64, peer: usize, link: Link },
    /// A deadline may have passed.
    Timer { of: usize, life: u64 },
    /// A sync of the disk ends.
    SyncEnds { of: usize, life: u64 },
    /// The executor goes on.
    Execute { of: usize, life: u64 },
    /// The replicas are told how far they are executed.
    Seen { of: usize, life: u64 },
    /// A snapshot file is complete.
    Written { of: usize, life: u64 },
    /// A client's question reaches a node.
    Asked { of: usize, ask: Ask },
    /// An answer reaches a client.
    Heard(Heard),
    /// A client thinks of what to do next.
    Think { client: usize },
    /// A client of the guest sends a command.
    GuestThinks,
    /// A client gives up an attempt.
    GivesUp { client: usize, attempt: u64 },
    /// Something goes wrong.
    Fault,
    /// Somebody wants a node to join or to leave.
    Operate,
    /// The keeper of a node's store looks.
    Look { of: usize, life: u64 },
    /// A node ends for good that every group has let go.
    Leave { of: usize, life: u64 },
    /// A crashed node starts again.
    Restart { of: usize },
    /// A paused node goes on.
    Resume { of: usize },
    /// A stalled disk goes on.
    Unstall { of: usize },
    /// Links work again.
    Mend { links: Vec<(usize, usize)> },
}

impl Happening {
    /// The node at which it happens, if that may be paused.
    fn at(&self) -> Option<usize> {
        match *self {
            Happening::Arrive { to, .. } => Some(to),
            Happening::Notice { of, .. }
            | Happening::Linked { of, .. }
            | Happening::Timer { of, .. }
            | Happening::SyncEnds { of, .. }
            | Happening::Execute { of, .. }
            | Happening::Seen { of, .. }
            | Happening::Look { of, .. }
            | Happening::Written { of, .. }
            | Happening::Asked { of, .. } => Some(of),
            _ => None,
        }
    }
}

/// The nodes of a cluster, and everything around them.
#[derive(Debug)]
pub struct MergedWorld {
    plan: MergedPlan,
    now: Moment,
    queue: EventQueue<Happening>,
    machines: Vec<Machine>,
    links: Links,
    holds: Vec<Hold>,
    clients: Clients,
    guests: Option<Guests>,
    order: Order,
    /// The backup with whose state the groups begin, if they do.
    backup: Option<Backup>,
    subscribers: Subscribers,
    watchers: Watchers,
    leases: Leases,
    counts: Counts,
    trace: Trace,
    /// The node that proposed to skip to a position of a group.
    skipped: BTreeMap<(GroupId, u64), usize>,
    rng: Rng,
    events: u64,
    /// Folds what happened when; equal for equal runs.
    fingerprint: u64,
    peace: bool,
    /// What keepers have compacted.
    compactions: Compactions,
    /// What somebody wants of the members, and when keepers look. It is apart from what else is drawn.
    operator: Rng,
}

use MergedWorld as World;

/// What came of a run.
#[derive(Clone, Debug)]
pub struct MergedOutcome {
    /// Simulated time.
    pub simulated: Duration,
    /// What happened, counted.
    pub events: u64,
    /// Batches of the common order.
    pub order: u64,
    /// Operations in the clients' history, and how many of them have no answer.
    pub operations: usize,
    /// See `operations`.
    pub unanswered: usize,
    /// How long after the end of all faults every node had executed everything.
    pub recovery: Duration,
    /// Reads of a guest's clients that were answered.
    pub reads: usize,
    /// Equal for equal runs.
    pub fingerprint: u64,
    /// The search for a linearization was given up.
    pub undecided: bool,
    /// The situations that it came to.
    pub counts: Counts,
}

/// A run with a violation.
#[derive(Clone, Debug)]
pub struct MergedFailure {
    /// The seed.
    pub seed: u64,
    /// The violation.
    pub violation: Violation,
    /// The last events before it was noticed.
    pub trace: Vec<String>,
    /// The command that replays it, if it has a state machine that only the program has which ran it.
    pub replay: Option<String>,
}

impl MergedFailure {
    /// The report, with the command that replays the run.
    #[must_use]
    pub fn report(&self) -> String {
        let MergedFailure { seed, violation, trace, replay } = self;
        let lines: String = trace.iter().map(|line| format!("{line}\n")).collect();
        let end = seed.saturating_add(1);
        let of_program = || format!("synod sim merged --seeds {seed}..{end} --trace");
        let replay = replay.clone().unwrap_or_else(of_program);
        format!("{lines}seed {seed} violates {violation}\nreplay: {replay}")
    }
}

/// Runs a plan. After a violation the run is repeated with a trace, since runs are repeatable.
///
/// # Errors
/// What was violated.
pub fn run(plan: &MergedPlan) -> Result<MergedOutcome, Box<MergedFailure>> {
    run_with(plan, None)
}

/// Runs a plan with a state machine of your own beside the store: see [`guest`](crate::guest). Its clients send each
/// command once, in no session, and replicas do not [look](Guest::look) at it. Reads are answered by
/// [`StateMachine::query`](synod_replica::StateMachine::query).
///
/// # Errors
/// What was violated.
pub fn run_guest(plan: &MergedPlan, guest: impl Guest) -> Result<MergedOutcome, Box<MergedFailure>> {
    let guest: Rc<dyn AnyGuest> = Rc::new(guest);
    let _speaks = GuestSpeaks::begin(&guest);
    let run = Run { protocol: None, seed: plan.seed };
    let result = if run.is_named() { print(plan, Some(&guest)) } else { run_with(plan, Some(&guest)) };
    result.map_err(|mut failure| {
        failure.replay = Some(run.command());
        failure
    })
}

fn run_with(
    plan: &MergedPlan,
    guest: Option<&Rc<dyn AnyGuest>>,
) -> Result<MergedOutcome, Box<MergedFailure>> {
    let (first, _) = attempt(plan, guest, Trace::Off);
    first.map_err(|first| {
        let (again, trace) = attempt(plan, guest, Trace::last(TRACE_LINES));
        let violation = again.err().unwrap_or_else(|| Violation {
            invariant: Invariant::Sound,
            detail: format!("a run with the same seed went another way; the first one: {first}"),
        });
        Box::new(MergedFailure { seed: plan.seed, violation, trace, replay: None })
    })
}

/// Runs a plan and prints every event.
///
/// # Errors
/// What was violated.
pub fn run_with_trace(plan: &MergedPlan) -> Result<MergedOutcome, Box<MergedFailure>> {
    print(plan, None)
}

fn print(plan: &MergedPlan, guest: Option<&Rc<dyn AnyGuest>>) -> Result<MergedOutcome, Box<MergedFailure>> {
    let (result, trace) = attempt(plan, guest, Trace::Print);
    let failure = |violation| MergedFailure { seed: plan.seed, violation, trace, replay: None };
    result.map_err(|violation| Box::new(failure(violation)))
}

fn attempt(
    plan: &MergedPlan,
    guest: Option<&Rc<dyn AnyGuest>>,
    trace: Trace,
) -> (Result<MergedOutcome, Violation>, Vec<String>) {
    let mut world = World::hosting_guest(plan.clone(), guest, trace);
    #[cfg(feature = "planted-bugs")]
    synod_replica::plant(plan.planted);
    let result =
        catch(|| world.run()).unwrap_or_else(|detail| Err(Violation { invariant: Invariant::Sound, detail }));
    #[cfg(feature = "planted-bugs")]
    synod_replica::plant(None);
    (result, world.trace.take())
}

impl World {
    /// A world as it is before anything happens.
    #[must_use]
    pub fn new(plan: MergedPlan, trace: Trace) -> World {
        World::hosting_guest(plan, None, trace)
    }

    fn hosting_guest(plan: MergedPlan, guest: Option<&Rc<dyn AnyGuest>>, trace: Trace) -> World {
        let (groups, mut rng) = (plan.groups.len(), Rng::with_seed(plan.seed));
        let backup = plan.begins_with_backup.then(|| {
            let drawn = Backup::drawn(plan.seed, plan.keys, plan.leases > 0, guest);
            drawn.written_by(|machine| Executor::merged(machine, plan.first_groups(), plan.take))
        });
        let mut machines: Vec<_> = (0..plan.nodes).map(|_| Machine::new(groups)).collect();
        if let Some(backup) = &backup {
            let file = crate::sealed::sealed(backup.snapshot().to_vec());
            let first = (GroupId::FIRST, backup::SLOT);
            machines.iter_mut().for_each(|machine| machine.disk.write_file(first, file.clone()));
        }
        World {
            now: Moment::START,
            queue: EventQueue::default(),
            machines,
            links: Links::new(plan.nodes + plan.joiners, groups),
            holds: Vec::new(),
            clients: Clients::new(&plan, rng.fork()),
            guests: guest.map(|guest| Guests::new(Rc::clone(guest), plan.seed)),
            order: Order::new(
                plan.first_groups(),
                plan.take,
                guest,
                plan.watches.watchers > 0 || plan.leases > 0,
                backup.as_ref(),
            ),
            backup,
            subscribers: Subscribers::new(plan.seed, plan.nodes, groups),
            watchers: Watchers::new(&plan.watches, plan.seed, plan.keys),
            leases: Leases::default(),
            counts: Counts::default(),
            trace,
            skipped: BTreeMap::new(),
            rng,
            events: 0,
            fingerprint: 0,
            peace: false,
            compactions: Compactions::default(),
            operator: Rng::with_seed(plan.seed ^ 0x6d_65_6d),
            plan,
        }
    }

    /// Runs from the start to the end of the plan: faults, then peace, then the history's check.
    ///
    /// # Errors
    /// What was violated.
    pub fn run(&mut self) -> Result<MergedOutcome, Violation> {
        self.begin_with_backup()?;
        for of in 0..self.plan.nodes {
            self.start(of)?;
        }
        self.begin_asking();
        self.guest_thinks_later();
        self.begin_faults();
        self.operate_later();
        self.run_until(Moment::after(self.plan.duration))?;
        let peace = self.now;
        self.make_peace()?;
        let executed = self.run_to_recovery(peace)?;
        self.followed_to_the_end(&executed)?;
        let recovery = self.now.since(peace);
        self.watch_to_the_end()?;
        self.outlive_leases()?;
        self.stay_idle()?;
        let begins = self.backup.as_ref().map_or_else(Model::default, Backup::model);
        let undecided = check_history(begins, &self.clients.history, &self.clients.ended, |payload| {
            self.order.reply(payload)
        })?;
        self.check_guest_history()?;
        let (operations, unanswered) = self.clients.counts();
        Ok(MergedOutcome {
            simulated: self.now.since(Moment::START),
            events: self.events,
            order: self.order.len(),
            operations,
            unanswered,
            recovery,
            reads: self.guests.as_ref().map_or(0, |guests| guests.read),
            fingerprint: self.fingerprint,
            undecided,
            counts: self.counts,
        })
    }

    /// Lets everything happen that is due through an instant.
    fn run_until(&mut self, end: Moment) -> Checked {
        while self.queue.next_at().is_some_and(|at| at <= end) {
            let Some((at, happening)) = self.queue.pop() else { break };
            self.now = at;
            self.events += 1;
            self.fingerprint = (self.fingerprint.rotate_left(5) ^ at.since(Moment::START).as_nanos() as u64)
                .wrapping_mul(0x9e37_79b9);
            demand(self.events <= EVENTS_MAX, Invariant::Liveness, || {
                format!("{EVENTS_MAX} events, and no end: {happening:?} is next")
            })?;
            self.happen(happening)?;
            self.follow()?;
            self.watch()?;
        }
        self.now = end;
        Ok(())
    }

    fn happen(&mut self, happening: Happening) -> Checked {
        if let Some(at) = happening.at()
            && let Some(waiting) = &mut self.machines[at].paused
        {
            waiting.push_back(happening);
            return Ok(());
        }
        match happening {
            Happening::Arrive { from, to, session, group, body } => {
                self.arrive(from, to, session, group, body)
            }
            Happening::Dial { one, other } => self.dial(one, other),
            Happening::Hangup { one, other, session } => self.hang_up(one, other, session),
            Happening::Notice { of, life, events } => self.notice(of, life, events),
            Happening::Linked { of, life, peer, link } => self.linked(of, life, peer, link),
            Happening::Timer { of, life } => self.timer(of, life),
            Happening::SyncEnds { of, life } => self.sync_ends(of, life),
            Happening::Execute { of, life } => self.execute(of, life),
            Happening::Seen { of, life } => self.seen(of, life),
            Happening::Written { of, life } => self.written(of, life),
            Happening::Asked { of, ask } => self.asked(of, ask),
            Happening::Heard(heard) => self.heard(heard),
            Happening::Think { client } => {
                self.think(client);
                Ok(())
            }
            Happening::GuestThinks => self.guest_thinks(),
            Happening::GivesUp { client, attempt } => {
                self.gives_up(client, attempt);
                Ok(())
            }
            Happening::Fault => self.fault(),
            Happening::Operate => self.operate(),
            Happening::Look { of, life } => self.look(of, life),
            Happening::Leave { of, life } => self.leave(of, life),
            Happening::Restart { of } => self.restart(of),
            Happening::Resume { of } => self.resume(of),
            Happening::Unstall { of } => self.unstall(of),
            Happening::Mend { links } => links.into_iter().try_for_each(|(one, other)| self.mend(one, other)),
        }
    }

    fn groups(&self) -> impl Iterator<Item = GroupId> + use<> {
        (0..self.plan.groups.len() as u16).map(GroupId)
    }

    /// Adds a line about a node to the trace.
    fn line(&mut self, of: usize, text: impl FnOnce() -> String) {
        self.trace.line(self.now, || format!("r{:<4}{}", of + 1, text()));
    }
}

/// Text for people: how far groups are.
fn slots(of: &[Slot]) -> String {
    of.iter().map(|slot| slot.to_string()).collect::<Vec<_>>().join(" ")
}

//! Runs a plan, and reports violations.

use std::{
    cell::RefCell,
    fmt::{self, Write as _},
    panic::{self, AssertUnwindSafe},
    rc::Rc,
    sync::Once,
};

use synod_consensus::{Dissemination, ElectionKind, ProtocolKind};

use crate::{
    chart::{Recorder, Window},
    check::{Invariant, Violation},
    describe::GuestSpeaks,
    guest::{AnyGuest, Guest},
    network::Wire,
    plan::{Family, Plan},
    replay::Run,
    situations::{Reached, Situation},
    trace::Trace,
    world::{Outcome, World},
};

/// Lines of the trace that a failure shows.
const TRACE_LINES: usize = 60;

/// A run with a violation.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// The protocol at first.
    pub protocol: ProtocolKind,
    /// Its election.
    pub election: ElectionKind,
    /// The family of its plan.
    pub family: Family,
    /// How its batches reached all replicas.
    pub dissemination: Dissemination,
    /// The violation.
    pub violation: Violation,
    /// The dangerous situations that the run had reached by then.
    pub reached: Reached,
    /// The last events before it was noticed.
    pub trace: Vec<String>,
    /// How many groups each node had.
    pub groups: Groups,
    /// Whether sessions had datagrams ([`Plan::with_datagrams_in_sessions`]).
    pub datagrams: bool,
    /// The command that replays it, if it has a state machine that only the program has which ran it.
    pub replay: Option<String>,
}

impl Failure {
    fn of(plan: &Plan, violation: Violation, reached: Reached, trace: Vec<String>) -> Box<Failure> {
        let consensus = &plan.settings.consensus;
        Box::new(Failure {
            seed: plan.seed,
            protocol: consensus.protocol,
            election: consensus.election,
            family: plan.family,
            dissemination: consensus.dissemination,
            groups: Groups::of(plan),
            datagrams: matches!(plan.network.wire, Wire::Mixed(_)),
            violation,
            reached,
            trace,
            replay: None,
        })
    }

    /// The report, with the command that replays the run. An election, or a dissemination, is given if the seed did not
    /// draw it.
    #[must_use]
    pub fn report(&self, protocol: ProtocolKind, election: Option<ElectionKind>) -> String {
        let mut text = String::new();
        for line in &self.trace {
            let _ = writeln!(text, "{line}");
        }
        let Failure { seed, violation, .. } = self;
        let _ = writeln!(text, "seed {seed} violates {violation}");
        if let Some(replay) = &self.replay {
            let _ = write!(text, "replay: {replay}");
            return text;
        }
        let end = seed.saturating_add(1);
        let election = election.map_or(String::new(), |election| format!(" --election {election}"));
        let drawn = Plan::draw_dissemination(*seed);
        let dissemination = Some(self.dissemination).filter(|how| *how != drawn);
        let dissemination = dissemination.map_or(String::new(), |how| format!(" --dissemination {how}"));
        let family = Some(self.family).filter(|family| *family != Family::of(*seed));
        let family = family.map_or(String::new(), |family| format!(" --family {family}"));
        let groups = self.groups.option();
        let datagrams = if self.datagrams { " --datagrams" } else { "" };
        let again = format!(
            "synod sim run --protocol {protocol}{election}{dissemination}{family}{groups}{datagrams} --seeds {seed}..{end}"
        );
        let _ = writeln!(text, "chart:  {again} --html seed-{seed}.html");
        let _ = write!(text, "replay: {again} --trace");
        text
    }
}

/// How many groups a node has, and whether they are merged into one order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Groups {
    /// How many.
    pub count: usize,
    /// They have one order.
    pub merged: bool,
}

impl Groups {
    /// Those of a plan.
    #[must_use]
    pub fn of(plan: &Plan) -> Groups {
        Groups { count: plan.groups, merged: plan.merging.is_some() }
    }

    /// The option of `synod sim run`, if it is needed.
    pub(crate) fn option(self) -> String {
        match self {
            Groups { count: 1, .. } => String::new(),
            Groups { count, merged: false } => format!(" --groups shard:{count}"),
            Groups { count, merged: true } => format!(" --groups merge:{count}"),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let drawn = Plan::draw_election(self.seed, self.protocol);
        let election = Some(self.election).filter(|election| *election != drawn);
        f.write_str(&self.report(self.protocol, election))
    }
}

impl std::error::Error for Failure {}

/// Runs a plan. After a violation the run is repeated with a trace, since runs are repeatable.
pub fn run(plan: &Plan) -> Result<Outcome, Box<Failure>> {
    let (result, ..) = attempt(plan, Trace::Off);
    result.map_err(|first| {
        let (again, reached, trace) = attempt(plan, Trace::last(TRACE_LINES));
        Failure::of(plan, repeated(first, again), reached, trace)
    })
}

/// Runs a plan with a state machine of your own: see [`guest`](crate::guest). A failure, as it is
/// displayed, shows the last events and the command that replays the run in the same test or program
/// ([`REPLAY`](crate::REPLAY)), which prints every event.
///
/// # Panics
/// If the environment names a run to replay that cannot be.
pub fn run_guest(plan: &Plan, guest: impl Guest) -> Result<Outcome, Box<Failure>> {
    let guest: Rc<dyn AnyGuest> = Rc::new(guest);
    let _speaks = GuestSpeaks::begin(&guest);
    let run = Run::of(plan);
    let failure = |violation, reached, trace| {
        let mut failure = Failure::of(plan, violation, reached, trace);
        failure.replay = Some(run.command());
        failure
    };
    let attempt = |trace| {
        let mut world = World::hosting_guest(plan.clone(), trace, Some(Rc::clone(&guest)));
        let result = play(&mut world);
        (result, world.reached(), world.take_trace())
    };
    if run.is_named() {
        let (result, reached, trace) = attempt(Trace::Print);
        return result.map_err(|violation| failure(violation, reached, trace));
    }
    let (result, ..) = attempt(Trace::Off);
    result.map_err(|first| {
        let (again, reached, trace) = attempt(Trace::last(TRACE_LINES));
        failure(repeated(first, again), reached, trace)
    })
}

/// The violation of a run that was repeated.
fn repeated(first: Violation, again: Result<Outcome, Violation>) -> Violation {
    again.err().unwrap_or_else(|| Violation {
        invariant: Invariant::Sound,
        detail: format!("a run with the same seed went another way; the first one: {first}"),
    })
}

/// Runs a plan and prints every event.
pub fn run_with_trace(plan: &Plan) -> Result<Outcome, Box<Failure>> {
    let (result, reached, trace) = attempt(plan, Trace::Print);
    result.map_err(|violation| Failure::of(plan, violation, reached, trace))
}

/// The dangerous situations that a run of a plan reaches, each with the number of the event as charts count.
pub(crate) fn turns(plan: &Plan) -> Vec<(u64, Situation)> {
    record(plan, Window::NOTHING).1.turns().to_vec()
}

/// Runs a plan, and records it for a chart. The run is the same as without.
pub fn record(plan: &Plan, window: Window) -> (Result<Outcome, Violation>, Recorder) {
    let mut world = World::new(plan.clone(), Trace::Off);
    world.record(Recorder::naming_situations(window));
    let result = play(&mut world);
    if let Err(violation) = &result {
        world.chart(|chart| chart.violates(violation));
    }
    (result, world.take_recorder().unwrap_or_else(|| Recorder::new(window)))
}

fn attempt(plan: &Plan, trace: Trace) -> (Result<Outcome, Violation>, Reached, Vec<String>) {
    let mut world = World::new(plan.clone(), trace);
    let result = play(&mut world);
    (result, world.reached(), world.take_trace())
}

/// Runs a world; a panic is a violation.
fn play(world: &mut World) -> Result<Outcome, Violation> {
    #[cfg(feature = "planted-bugs")]
    synod_replica::plant(world.planted_in_merge());
    let result =
        catch(|| world.run()).unwrap_or_else(|detail| Err(Violation { invariant: Invariant::Sound, detail }));
    #[cfg(feature = "planted-bugs")]
    synod_replica::plant(None);
    result
}

thread_local! {
    /// While a run is watched, the message of a panic goes here instead of to the terminal.
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

pub(crate) fn catch<T>(run: impl FnOnce() -> T) -> Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            let watched = PANIC.with_borrow_mut(|message| {
                message.as_mut().map(|message| *message = info.to_string().replace('\n', " ")).is_some()
            });
            if !watched {
                usual(info);
            }
        }));
    });
    PANIC.set(Some(String::new()));
    let result = panic::catch_unwind(AssertUnwindSafe(run));
    let message = PANIC.take().unwrap_or_default();
    result.map_err(|_| message)
}

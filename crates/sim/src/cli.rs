//! `synod sim run` and `synod sim scenario`.

use std::{
    fmt, fs,
    io::{IsTerminal, Write},
    ops::Range,
    path::{Path, PathBuf},
    process::ExitCode,
    str::FromStr,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use clap::Args;
use synod_consensus::{Dissemination, ElectionKind, ProtocolKind};

use crate::{
    chart::{self, Chart, Window, WindowArgs},
    plan::{Family, Plan},
    run::{self, Failure, Groups},
    scenario,
    situations::{MARK, MergeCounts, Situation, Table},
    world::{Coverage, Outcome},
};

/// Failures that are listed in the summary.
const FAILURES_LISTED: usize = 30;
/// Failures that are described in full; further ones are only counted.
pub(crate) const FAILURES_TOLD: usize = 3;

/// Attacks clusters of real replicas in a simulated world, one seed after another.
///
/// Each seed draws a cluster of 1 to 7 replicas, its settings, its clients, and the faults: lost, late and
/// doubled messages, partitions, crashes, stalled disks, lost logs, clocks that differ. After every event the
/// invariants are checked; at the end the clients' history must be linearizable, those who watch must have been told
/// all of it, and the cluster must recover.
#[derive(Args, Clone, Debug)]
pub struct RunArgs {
    /// The protocol.
    #[arg(long, default_value_t = ProtocolKind::MultiPaxos)]
    pub protocol: ProtocolKind,
    /// The election; by default each seed draws one of the protocol's.
    #[arg(long)]
    pub election: Option<ElectionKind>,
    /// How batches reach all replicas: leader, references or balanced; by default each seed draws it.
    #[arg(long)]
    pub dissemination: Option<Dissemination>,
    /// The family of all seeds: general, bridge, sleep, recovery, change, follow, load, disk or files; by default each
    /// seed draws one of the first six
    #[arg(long)]
    pub family: Option<Family>,
    /// The groups of each node: 1, shard:N, or merge:N.
    #[arg(long, value_name = "GROUPS", default_value = "1", value_parser = groups)]
    pub groups: Groups,
    /// The seeds to run, from A up to and without B; a single number is one seed.
    #[arg(long, value_name = "A..B", default_value = "0..2000")]
    pub seeds: Seeds,
    /// How they are run.
    #[command(flatten)]
    pub attack: AttackArgs,
    /// Links as of `synod serve --transport udp`, in place of those that a seed draws: sessions, in which small
    /// messages travel as datagrams, which may be lost, come twice and overtake others.
    #[arg(long)]
    pub datagrams: bool,
    /// Write a message-sequence chart of the first seed that fails, or of the seed if only one is run: a page
    /// that needs no other file (FILE.html), or the bare picture (FILE.svg). It shows 400 events: the last before the
    /// violation, or those around the first dangerous situation in which leaders are involved, unless --html-from or
    /// --html-to choose others.
    #[arg(long, value_name = "FILE", value_parser = chart::file)]
    pub html: Option<PathBuf>,
    /// The part of the run or story that the chart shows.
    #[command(flatten)]
    pub window: WindowArgs,
    /// Fail unless every dangerous situation that applies to the protocol, and to a merge, was reached by 20 runs.
    #[arg(long)]
    pub require_coverage: bool,
}

/// Plays scenario scripts with each of their protocols, and shows where the output differs from the golden
/// file (golden/PROTOCOL/NAME.txt beside the script).
#[derive(Args, Clone, Debug)]
pub struct ScenarioArgs {
    /// Scripts to play.
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Write the golden files.
    #[arg(long)]
    pub bless: bool,
    /// Write a message-sequence chart of the story of one script, and compare nothing: a page that needs no
    /// other file (FILE.html), or the bare picture (FILE.svg).
    #[arg(long, value_name = "FILE", value_parser = chart::file, conflicts_with = "bless")]
    pub html: Option<PathBuf>,
    /// The protocol whose story the chart shows, named like the folders of the golden files; by default the
    /// first protocol of the script.
    #[arg(long, value_name = "NAME", requires = "html")]
    pub protocol: Option<String>,
    /// The part of the run or story that the chart shows.
    #[command(flatten)]
    pub window: WindowArgs,
}

/// What `--html` of `synod sim scenario` does.
fn chart_scenario(args: &ScenarioArgs, path: &Path) -> Result<ExitCode, String> {
    let [file] = &args.files[..] else {
        return Err(format!("--html: a chart is of one script, not of {}", args.files.len()));
    };
    let unreadable = |error: &dyn fmt::Display| format!("{}: {error}", file.display());
    let text = fs::read_to_string(file).map_err(|error| unreadable(&error))?;
    let casts = scenario::casts_of(&text).map_err(|error| unreadable(&error))?;
    let names: Vec<&str> = casts.iter().map(|cast| cast.name).collect();
    let wanted = args.protocol.as_deref();
    let Some(cast) = casts.iter().find(|cast| wanted.is_none_or(|wanted| cast.name == wanted)) else {
        let wanted = wanted.unwrap_or_default();
        return Err(format!("--protocol {wanted}: {} is for: {}", file.display(), names.join(", ")));
    };
    let (story, recorded) = scenario::record(&text, cast, args.window.of_story());
    let name = file.file_stem().unwrap_or_default().to_string_lossy();
    let opening = scenario::opening(&text);
    let chart = Chart {
        title: format!("{name}, {}", cast.name),
        about: if opening.is_empty() { Vec::new() } else { vec![opening] },
        command: Some(format!(
            "synod sim scenario {} --protocol {} --html {}",
            file.display(),
            cast.name,
            path.display()
        )),
        violation: None,
        of_run: false,
    };
    chart.write(path, &recorded).map_err(|error| unwritable(path, &error))?;
    let story = story.map(|_| ()).map_err(|error| unreadable(&error));
    print!("{}", charted(path, &format!("{} ({} of {})", cast.name, name, names.join(", ")), &story));
    Ok(if story.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What was drawn, for people; an error comes first, since the chart ends there.
fn charted(path: &Path, with: &str, story: &Result<(), String>) -> String {
    match story {
        Ok(()) => format!("{}: the story with {with}\n", path.display()),
        Err(error) => format!("{error}\n{}: the story until then, with {with}\n", path.display()),
    }
}

fn unwritable(path: &Path, error: &std::io::Error) -> String {
    format!("--html {}: cannot be written: {error}", path.display())
}

/// Plays the scripts. The exit code is 1 if the output of one of them differs from its golden file.
#[must_use]
pub fn play_scenarios(args: &ScenarioArgs) -> ExitCode {
    if let Some(path) = &args.html {
        return chart_scenario(args, path).unwrap_or_else(|error| {
            eprintln!("{error}");
            ExitCode::from(2)
        });
    }
    let mut wrong = 0;
    for file in &args.files {
        let mut played = scenario::Played::default();
        if let Err(error) = scenario::play_file(file, args.bless, &mut played) {
            played.wrong.push(format!("{}: {error}", file.display()));
        }
        played.wrong.iter().for_each(|problem| println!("{problem}"));
        if played.wrong.is_empty() {
            let done = if args.bless { "played" } else { "as it is written" };
            println!("{}: {done}, for {} protocols and elections", file.display(), played.stories);
        }
        wrong += played.wrong.len();
    }
    if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// A range of seeds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seeds(pub Range<u64>);

impl FromStr for Seeds {
    type Err = String;

    fn from_str(text: &str) -> Result<Seeds, String> {
        let number = |text: &str| text.trim().parse::<u64>().map_err(|error| format!("'{text}': {error}"));
        let range = match text.split_once("..") {
            Some((first, end)) => number(first)?..number(end)?,
            None => number(text)?..number(text)?.saturating_add(1),
        };
        if range.is_empty() {
            return Err(format!("'{text}' holds no seed; write A..B with A below B, or one number"));
        }
        Ok(Seeds(range))
    }
}

/// The results of all runs.
#[derive(Debug)]
struct Totals {
    runs: u64,
    events: u64,
    commands: u64,
    operations: u64,
    unanswered: u64,
    undecided: Vec<u64>,
    simulated: Duration,
    slowest_recovery: (Duration, u64),
    coverage: Coverage,
    /// The situations of one protocol, if all runs have the same at first.
    situations: Option<Table>,
    /// Those of merged groups, if groups are merged.
    merges: Option<MergeCounts>,
    failures: Vec<Failure>,
}

impl Totals {
    fn new(protocol: Option<ProtocolKind>, merged: bool) -> Totals {
        Totals {
            runs: 0,
            events: 0,
            commands: 0,
            operations: 0,
            unanswered: 0,
            undecided: Vec::new(),
            simulated: Duration::ZERO,
            slowest_recovery: (Duration::ZERO, 0),
            coverage: Coverage::default(),
            situations: protocol.map(Table::new),
            merges: merged.then(MergeCounts::default),
            failures: Vec::new(),
        }
    }

    fn add(&mut self, seed: u64, outcome: &Outcome) {
        self.events += outcome.events;
        self.commands += outcome.commands as u64;
        self.operations += outcome.operations as u64;
        self.unanswered += outcome.unanswered as u64;
        self.undecided.extend(outcome.undecided.then_some(seed));
        self.simulated += outcome.simulated;
        self.coverage.add(&outcome.coverage);
        self.situations.iter_mut().for_each(|table| table.add(outcome.reached));
        self.merges.iter_mut().for_each(|counts| counts.add_run(&outcome.merges));
        self.slowest_recovery = self.slowest_recovery.max((outcome.recovery, seed));
    }

    /// How many situations too few runs reached.
    fn uncovered(&self) -> usize {
        let of_protocol = self.situations.as_ref().map_or(0, |table| table.uncovered().count());
        of_protocol + self.merges.as_ref().map_or(0, |counts| counts.uncovered().count())
    }

    fn code(&self) -> ExitCode {
        let held = self.failures.is_empty() && !too_many_undecided(self);
        if held { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

/// On how many threads seeds run; traces would mix.
pub(crate) fn jobs(asked_for: Option<usize>, trace: bool) -> usize {
    let jobs = asked_for.unwrap_or_else(|| thread::available_parallelism().map_or(1, usize::from));
    if trace { 1 } else { jobs.max(1) }
}

/// Runs one seed after another, on this many threads, until `run` says not to go on or the time is over.
pub(crate) fn on_threads(
    seeds: &Seeds,
    jobs: usize,
    limit: Option<Duration>,
    run: impl Fn(u64) -> bool + Sync,
) {
    let begun = Instant::now();
    let (next, stop) = (AtomicU64::new(seeds.0.start), AtomicBool::new(false));
    let work = || {
        while !stop.load(Ordering::Relaxed) && limit.is_none_or(|limit| begun.elapsed() < limit) {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.0.end {
                break;
            }
            stop.fetch_or(!run(seed), Ordering::Relaxed);
        }
    };
    thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(work);
        }
    });
}

/// Tells somebody who looks how far the runs are.
pub(crate) fn show_progress(runs: u64, failures: usize) {
    if std::io::stderr().is_terminal() {
        eprint!("\r{runs} seeds, {failures} failures ");
        let _ = std::io::stderr().flush();
    }
}

/// How seeds are run, one after another.
#[derive(Args, Clone, Debug)]
pub struct AttackArgs {
    /// Threads; a seed runs on one. By default one for each processor.
    #[arg(long = "threads", alias = "jobs", value_name = "COUNT")]
    pub jobs: Option<usize>,
    /// Begin no new seed after this many seconds.
    #[arg(long, value_name = "SECONDS")]
    pub time_limit: Option<u64>,
    /// Print every event, of one seed after another.
    #[arg(long)]
    pub trace: bool,
    /// Go on after the first failure, and count failures.
    #[arg(long)]
    pub keep_going: bool,
}

impl AttackArgs {
    /// Runs the plan of each seed, adds up what comes of it, and prints that. The first failures are told as `report`
    /// says.
    fn run(
        &self,
        seeds: &Seeds,
        totals: Totals,
        plan: impl Fn(u64) -> Plan + Sync,
        report: impl Fn(&Failure) -> String + Sync,
    ) -> Totals {
        let (begun, jobs) = (Instant::now(), jobs(self.jobs, self.trace));
        let totals = Mutex::new(totals);
        on_threads(seeds, jobs, self.time_limit.map(Duration::from_secs), |seed| {
            let plan = plan(seed);
            let result = if self.trace { run::run_with_trace(&plan) } else { run::run(&plan) };
            let mut totals = totals.lock().expect("no thread panics while it adds");
            totals.runs += 1;
            let held = result.is_ok();
            match result {
                Ok(outcome) => totals.add(seed, &outcome),
                Err(failure) => {
                    if totals.failures.len() < FAILURES_TOLD {
                        println!("{}\n", report(&failure));
                    }
                    totals.failures.push(*failure);
                }
            }
            show_progress(totals.runs, totals.failures.len());
            held || self.keep_going
        });
        let totals = totals.into_inner().expect("no thread panicked while it added");
        print!("{}", summary(&totals, begun.elapsed(), jobs));
        totals
    }
}

/// Attacks clusters whose groups are merged into one order, one seed after another.
///
/// Each seed draws a protocol, 2 to 4 groups that each node hosts, how they skip, and all that `synod sim run` draws.
/// It is the same as `synod sim run --protocol PROTOCOL --groups merge:N` with that seed.
#[derive(Args, Clone, Debug)]
pub struct MergedArgs {
    /// The seeds to run, from A up to and without B; a single number is one seed.
    #[arg(long, value_name = "A..B", default_value = "0..500")]
    pub seeds: Seeds,
    /// How they are run.
    #[command(flatten)]
    pub attack: AttackArgs,
}

/// Runs seeds of merged groups and reports. The exit code is 1 if an invariant was violated.
#[must_use]
pub fn run_merged(args: &MergedArgs) -> ExitCode {
    let totals = Totals::new(None, true);
    args.attack.run(&args.seeds, totals, Plan::draw_merging, ToString::to_string).code()
}

/// Runs the seeds and reports. The exit code is 1 if an invariant was violated.
#[must_use]
pub fn run(args: &RunArgs) -> ExitCode {
    let accepted = args.protocol.elections();
    if let Some(election) = args.election.filter(|election| !accepted.contains(election)) {
        let accepted: Vec<String> = accepted.iter().map(ToString::to_string).collect();
        let protocol = args.protocol;
        eprintln!(
            "--election {election}: {protocol} does not work with it; accepted: {}",
            accepted.join(", ")
        );
        return ExitCode::from(2);
    }
    if let Some(path) = &args.html
        && let Err(error) = chart::check_writable(path)
    {
        eprintln!("{}", unwritable(path, &error));
        return ExitCode::from(2);
    }
    let totals = Totals::new(Some(args.protocol), args.groups.merged);
    let report = |failure: &Failure| failure.report(args.protocol, args.election);
    let totals = args.attack.run(&args.seeds, totals, |seed| plan(args, seed), report);
    if let Some(path) = &args.html {
        let failed = totals.failures.iter().map(|failure| failure.seed).min();
        if let Err(error) = chart_one(args, failed, path) {
            eprintln!("{error}");
            return ExitCode::from(2);
        }
    }
    let uncovered = totals.uncovered();
    if args.require_coverage && uncovered > 0 {
        println!("{uncovered} situations were reached by fewer than {MARK} runs");
        return ExitCode::FAILURE;
    }
    totals.code()
}

/// Most groups of a simulated node.
const GROUPS_MAX: usize = 8;

/// Reads how many groups each node has.
fn groups(text: &str) -> Result<Groups, String> {
    let (kind, count) = text.split_once(':').unwrap_or(("shard", text));
    let merged = kind == "merge";
    let least = if merged { 2 } else { 1 };
    let count = count.parse().ok().filter(|count| (least..=GROUPS_MAX).contains(count));
    let known = count.filter(|count| merged || kind == "shard" && (text.contains(':') || *count == 1));
    let groups = known.map(|count| Groups { count, merged });
    groups.ok_or(format!("accepted: 1, shard:2 to shard:{GROUPS_MAX}, and merge:2 to merge:{GROUPS_MAX}"))
}

fn plan(args: &RunArgs, seed: u64) -> Plan {
    let election = args.election.unwrap_or_else(|| Plan::draw_election(seed, args.protocol));
    let family = args.family.unwrap_or_else(|| Family::of(seed));
    let plan = Plan::draw_general(seed, args.protocol, election).of_family(family);
    let Groups { count, merged } = args.groups;
    let plan = if merged { plan.merging(count) } else { plan.of_groups(count) };
    let plan = match args.dissemination {
        Some(dissemination) => plan.disseminated(dissemination),
        None => plan,
    };
    if args.datagrams { plan.with_datagrams_in_sessions() } else { plan }
}

/// The part of a run that a chart shows, and the event that it is about: the first situation in which leaders are
/// involved, or else the first one. Where a run fails, that is told in its last events.
fn window(args: &RunArgs, plan: &Plan, failed: bool) -> (Window, Option<(u64, Situation)>) {
    if failed || args.window.is_bounded() {
        return (args.window.of_run(), None);
    }
    let turns = run::turns(plan);
    let of_leaders = turns.iter().find(|(_, situation)| situation.is_of_leaders());
    match of_leaders.or(turns.first()) {
        Some(&(event, situation)) => (Window::around(event), Some((event, situation))),
        None => (Window::of_beginning(), None),
    }
}

/// Writes a chart of the seed that failed, or else of the only one.
fn chart_one(args: &RunArgs, failed: Option<u64>, path: &Path) -> Result<(), String> {
    let range = &args.seeds.0;
    let only = Some(range.start).filter(|_| range.end - range.start == 1);
    match failed.or(only) {
        Some(seed) => chart_seed(args, seed, failed.is_some(), path),
        None => {
            println!("no chart is written: no seed failed; name one seed for a chart of it");
            Ok(())
        }
    }
}

/// Writes a chart of a seed, which is run once more for it.
fn chart_seed(args: &RunArgs, seed: u64, failed: bool, path: &Path) -> Result<(), String> {
    let plan = plan(args, seed);
    let (window, turn) = window(args, &plan, failed);
    let (result, recorded) = run::record(&plan, window);
    let around =
        turn.map(|(event, situation)| format!("Around event {event} of {}: {situation}.", recorded.events()));
    let (protocol, family) = (args.protocol, plan.family);
    let (election, dissemination) = (plan.settings.consensus.election, plan.settings.consensus.dissemination);
    let end = seed.saturating_add(1);
    let chart = Chart {
        title: format!("seed {seed}, {protocol}"),
        about: [
            Some(format!(
                "Election {election}, dissemination {dissemination}, family {family}, {} replicas at first.",
                plan.replicas
            )),
            plan.begins_with_backup.then(|| "The group begins with the state of a backup.".to_owned()),
            around.clone(),
        ]
        .into_iter()
        .flatten()
        .collect(),
        command: Some(format!(
            "synod sim run --protocol {protocol} --election {election} --dissemination {dissemination} --family {family}{}{} --seeds {seed}..{end} --html {}",
            args.groups.option(),
            if args.datagrams { " --datagrams" } else { "" },
            path.display()
        )),
        violation: result.err().map(|violation| violation.to_string()),
        of_run: true,
    };
    chart.write(path, &[recorded]).map_err(|error| unwritable(path, &error))?;
    println!("{}: the chart of seed {seed}", path.display());
    if let Some(around) = around {
        println!("{around} --html-from and --html-to show other parts.");
    }
    Ok(())
}

/// Histories that are too hard to check may hide violations: one is allowed, or one in this many runs.
const RUNS_PER_UNDECIDED_MIN: u64 = 500;

fn too_many_undecided(totals: &Totals) -> bool {
    totals.undecided.len() as u64 > (totals.runs / RUNS_PER_UNDECIDED_MIN).max(1)
}

fn summary(totals: &Totals, elapsed: Duration, jobs: usize) -> String {
    let seconds = elapsed.as_secs_f64().max(1e-9);
    let mut text = format!(
        "{} seeds in {seconds:.1} s on {jobs} threads: {:.0} seeds/min, {:.0} simulated seconds a second, \
         {:.0} events/s\n{} operations, {} without an answer; {} commands in the logs; slowest recovery {:?} \
         (seed {})\n",
        totals.runs,
        totals.runs as f64 / seconds * 60.0,
        totals.simulated.as_secs_f64() / seconds,
        totals.events as f64 / seconds,
        totals.operations,
        totals.unanswered,
        totals.commands,
        totals.slowest_recovery.0,
        totals.slowest_recovery.1,
    );
    text += &format!("{}\n", totals.coverage);
    text += &totals.situations.as_ref().map_or(String::new(), ToString::to_string);
    text += &totals.merges.as_ref().map_or(String::new(), ToString::to_string);
    if !totals.undecided.is_empty() {
        text += &format!("too hard to check for linearizability: seeds {:?}\n", totals.undecided);
    }
    if too_many_undecided(totals) {
        text += &format!(
            "FAILED: {} of {} histories were not decided; at most one in {RUNS_PER_UNDECIDED_MIN} may be\n",
            totals.undecided.len(),
            totals.runs
        );
    }
    if totals.failures.is_empty() {
        text += "every invariant held\n";
    } else {
        let mut failures: Vec<_> = totals.failures.iter().collect();
        failures.sort_by_key(|failure| failure.seed);
        text += &format!("{} seeds FAILED:\n", failures.len());
        for failure in failures.iter().take(FAILURES_LISTED) {
            text += &format!("  seed {}: {}\n", failure.seed, failure.violation);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histories_that_were_not_decided_fail_a_run_above_a_rate() {
        let totals = |runs, undecided| Totals {
            runs,
            undecided: (0..undecided).collect(),
            ..Totals::new(Some(ProtocolKind::Raft), false)
        };
        assert!(!too_many_undecided(&totals(1, 1)));
        assert!(too_many_undecided(&totals(400, 2)));
        assert!(!too_many_undecided(&totals(2000, 4)));
        assert!(too_many_undecided(&totals(2000, 5)));
        let text = summary(&totals(2000, 5), Duration::from_secs(1), 1);
        assert!(text.contains("FAILED: 5 of 2000 histories"), "{text}");
    }

    #[derive(clap::Parser)]
    struct Command<A: Args> {
        #[command(flatten)]
        args: A,
    }

    fn parsed<A: Args>(words: &[&str]) -> Result<A, clap::Error> {
        let words = [&["sim"], words].concat();
        <Command<A> as clap::Parser>::try_parse_from(words).map(|command| command.args)
    }

    #[test]
    fn a_chart_is_written_or_refused_with_a_code_of_its_own() {
        let folder = std::env::temp_dir().join(format!("synod-sim-cli-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let at = |name: &str| folder.join(name).to_string_lossy().into_owned();
        let (page, nowhere) = (at("chart.html"), at("no/chart.html"));
        let code = |code: ExitCode| format!("{code:?}");
        let (refused, done) = (code(ExitCode::from(2)), code(ExitCode::SUCCESS));
        let run_seeds = |words: &[&str]| code(run(&parsed(words).expect("they are options")));
        assert_eq!(run_seeds(&["--seeds", "5", "--html", &nowhere]), refused);
        assert_eq!(run_seeds(&["--seeds", "5..7", "--html", &page]), done);
        assert!(!Path::new(&page).exists(), "no seed fails, and which one is meant is not said");
        assert_eq!(run_seeds(&["--seeds", "5", "--html", &page]), done);
        let written = fs::read_to_string(&page).expect("it is written");
        assert!(written.contains("seed 5, multipaxos") && written.contains("<p>Around event "));
        assert!(written.contains("reached: "), "the situation that the chart is about stands in it");
        for name in ["chart.png", "chart"] {
            let refused = parsed::<RunArgs>(&["--html", name]).expect_err("it is no name of a chart");
            assert!(refused.to_string().contains(".svg"), "{refused}");
            assert!(parsed::<ScenarioArgs>(&["story.txt", "--html", name]).is_err());
        }

        let script = at("story.txt");
        fs::write(&script, "for: all\n\nNot much.\n\n> cluster 3\n> elect 1\n").expect("written");
        let tell = |words: &[&str]| code(play_scenarios(&parsed(words).expect("they are options")));
        assert_eq!(tell(&[&script, "--html", &nowhere]), refused);
        assert_eq!(tell(&[&script, &script, "--html", &page]), refused);
        assert_eq!(tell(&[&script, "--html", &page, "--protocol", "paxos"]), refused);
        assert_eq!(tell(&[&script, "--html", &page, "--protocol", "raft"]), done);
        let written = fs::read_to_string(&page).expect("it is written");
        assert!(written.contains("<h1>story, raft</h1>\n<p>Not much.</p>"));
        fs::write(&script, "for: all\n\n> cluster 3\n> elect 9\n").expect("written");
        assert_eq!(tell(&[&script, "--html", &page]), code(ExitCode::FAILURE));
        assert!(fs::read_to_string(&page).expect("it is written").contains("across violation"));
        let failed = charted(Path::new("c.svg"), "raft", &Err("story.txt: line 3: no".to_owned()));
        assert_eq!(failed, "story.txt: line 3: no\nc.svg: the story until then, with raft\n");
        assert_eq!(charted(Path::new("c.svg"), "raft", &Ok(())), "c.svg: the story with raft\n");
        assert!(parsed::<RunArgs>(&["--html-from", "5"]).is_err(), "a bound without a chart");
        fs::remove_dir_all(&folder).expect("removed");
    }

    #[test]
    fn seeds_are_a_range_or_one_number() {
        assert_eq!("3..7".parse(), Ok(Seeds(3..7)));
        assert_eq!("42".parse(), Ok(Seeds(42..43)));
        assert!("7..3".parse::<Seeds>().unwrap_err().contains("no seed"));
        assert!("a..3".parse::<Seeds>().unwrap_err().contains("'a'"));
    }
}

//! `synod sim explore`.

use std::{
    io::{self, IsTerminal, Write},
    process::ExitCode,
    time::{Duration, Instant},
};

use clap::Args;
use synod_consensus::{Dissemination, Options, Overrides, ProtocolKind};

use super::{Bounds, Count, Incomplete, Report, Walks, explore_with, options, walk_with};

/// How often the line of progress is written again on a terminal.
const REWRITE_INTERVAL: Duration = Duration::from_millis(500);
/// How often a line of progress is written where there is no terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(5);
/// The steps of a random walk.
const STEPS: usize = 200;

/// Explores all states of a small configuration of a protocol: model checking of the code that ships.
///
/// Messages arrive in any order or never; records become durable at any time; timers fire, replicas crash and
/// start again, sessions break, messages come twice, as often as these bounds allow. The invariants are
/// checked in every state that can be reached; a violation is shown with a shortest way to it.
#[derive(Args, Clone, Debug)]
pub struct ExploreArgs {
    /// The protocol, with the rotating election where it does not bring its own.
    #[arg(long, default_value_t = ProtocolKind::MultiPaxos)]
    protocol: ProtocolKind,
    /// How batches reach all replicas. With `balanced` every replica may be given a command.
    #[arg(long, default_value_t = Dissemination::default())]
    dissemination: Dissemination,
    /// Options of the protocol, as KEY=VALUE,KEY=VALUE or one at a time: those of `synod serve --options`.
    #[arg(long, value_name = "KEY=VALUE,...")]
    options: Vec<Overrides>,
    /// Replicas, all of which vote.
    #[arg(long, value_name = "N", default_value_t = Bounds::default().replicas as u64,
        value_parser = clap::value_parser!(u64).range(1..=Bounds::REPLICAS_MAX as u64))]
    replicas: u64,
    /// Commands that are proposed.
    #[arg(long, value_name = "N", default_value_t = Bounds::default().commands,
        value_parser = clap::value_parser!(u8).range(0..=i64::from(Bounds::COMMANDS_MAX)))]
    commands: u8,
    /// Timers that fire, on all replicas together: elections, and what leaders do from time to time.
    #[arg(long, value_name = "N", default_value_t = Bounds::default().timeouts)]
    timeouts: u8,
    /// Times that an election time-out passes on a replica's clock while its timer is late.
    #[arg(long, value_name = "N", default_value_t = Bounds::default().waits)]
    waits: u8,
    /// Replicas that crash and start again with the records on their disks.
    #[arg(long, value_name = "N", default_value_t = Bounds::default().crashes)]
    crashes: u8,
    /// Sessions that break, so that a replica sends again. (Any message may be lost besides.)
    #[arg(long, value_name = "N", default_value_t = Bounds::default().losses)]
    losses: u8,
    /// Messages that arrive twice.
    #[arg(long, value_name = "N", default_value_t = Bounds::default().duplicates)]
    duplicates: u8,
    /// Decided slots that a replica learns from another, as by catch-up.
    #[arg(long, value_name = "N", default_value_t = Bounds::default().catch_ups)]
    catch_ups: u8,
    /// The first replica tries to lead at once, as one that led an epoch before: the first election takes no time-out.
    #[arg(long)]
    head_start: bool,
    /// Promises, and what leaders send to lagging followers, come in pages of one batch.
    #[arg(long)]
    pages: bool,
    /// Take this many random walks instead, for configurations that are too large to explore.
    #[arg(long, value_name = "WALKS")]
    random: Option<u64>,
    /// The seed of random walks.
    #[arg(long, value_name = "N", default_value_t = 0, requires = "random")]
    seed: u64,
    /// Go no further than this many steps from the beginning; random walks: 200.
    #[arg(long, value_name = "N")]
    depth: Option<usize>,
    /// Stop at this many different states; they take about 120 bytes each.
    #[arg(long, value_name = "N", default_value_t = Bounds::default().states_max as u64,
        value_parser = clap::value_parser!(u64).range(1..=u64::from(u32::MAX)))]
    states_max: u64,
}

impl ExploreArgs {
    /// The options with which the protocol is explored, and those of them that were given.
    ///
    /// # Errors
    /// They do not go together, for people.
    fn options(&self) -> Result<(Options, Overrides), String> {
        let given: Vec<String> = self.options.iter().map(ToString::to_string).collect();
        // One key may be given once, also by different flags.
        let given: Overrides = given.join(",").parse().map_err(|error| format!("{error}"))?;
        given.check(self.protocol).map_err(|error| error.to_string())?;
        let mut options = options(self.protocol);
        options.dissemination = self.dissemination;
        given.apply(&mut options);
        if options.dissemination == Dissemination::References {
            // A replica fills references in before its protocol sees the message.
            let why = "a protocol does not notice that its messages travel with references; explore `leader` instead";
            return Err(why.to_owned());
        }
        Ok((options, given))
    }

    fn bounds(&self) -> Bounds {
        let number = |number: u64| usize::try_from(number).expect("checked when the arguments were read");
        Bounds {
            replicas: number(self.replicas),
            commands: self.commands,
            timeouts: self.timeouts,
            waits: self.waits,
            crashes: self.crashes,
            losses: self.losses,
            duplicates: self.duplicates,
            catch_ups: self.catch_ups,
            head_start: self.head_start,
            pages: self.pages,
            depth: self.depth,
            states_max: number(self.states_max),
        }
    }
}

/// Shows the progress of an exploration: one line that is written again and again on a terminal, elsewhere a line now
/// and then.
struct Progress {
    begun: Instant,
    shown: Instant,
    terminal: bool,
}

impl Progress {
    fn new(begun: Instant, terminal: bool) -> Progress {
        Progress { begun, shown: begun, terminal }
    }

    /// Writes a line if it is time for one.
    ///
    /// # Errors
    /// It cannot be written.
    fn show(&mut self, count: Count, now: Instant, out: &mut impl Write) -> io::Result<()> {
        let interval = if self.terminal { REWRITE_INTERVAL } else { LINE_INTERVAL };
        if now.duration_since(self.shown) < interval {
            return Ok(());
        }
        self.shown = now;
        let Count { states, depth, .. } = count;
        let rate = states as f64 / now.duration_since(self.begun).as_secs_f64();
        let line = format!("{states} states, {depth} steps deep, {rate:.0} states/s");
        if self.terminal {
            write!(out, "\r{line} ")?
        } else {
            writeln!(out, "{line}")?
        }
        out.flush()
    }
}

/// Explores and reports. The exit code is 1 if an invariant is violated, and only then.
#[must_use]
pub fn run(args: &ExploreArgs) -> ExitCode {
    let begun = Instant::now();
    let terminal = io::stderr().is_terminal();
    let mut progress = Progress::new(begun, terminal);
    let mut watch = |count: Count| {
        // Nobody can be told that stderr is closed.
        let _ = progress.show(count, Instant::now(), &mut io::stderr());
    };
    let (options, given) = match args.options() {
        Ok(options) => options,
        Err(why) => {
            eprintln!("error: {why}");
            return ExitCode::from(2);
        }
    };
    let report = match args.random {
        Some(walks) => {
            let walks = Walks { walks, steps: args.depth.unwrap_or(STEPS), seed: args.seed };
            walk_with(options, args.bounds(), walks, &mut watch)
        }
        None => explore_with(options, args.bounds(), &mut watch),
    };
    if terminal {
        eprintln!();
    }
    print!("{}", summary(args, &given, &report, begun.elapsed()));
    if report.found.is_none() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn summary(args: &ExploreArgs, given: &Overrides, report: &Report, elapsed: Duration) -> String {
    let Count { states, transitions, depth, replicas, messages, commands: delivered } = report.count;
    let seconds = elapsed.as_secs_f64().max(1e-9);
    let mut text = String::new();
    if let Some(found) = &report.found {
        found.story.iter().for_each(|line| text += &format!("{line}\n"));
        text += &format!("after these steps {} does not keep to {}\n", args.protocol, found.violation);
    }
    text += &format!(
        "{states} states, {transitions} transitions, {depth} steps deep; {replicas} different replicas, \
         {messages} different messages; {delivered} of {} commands delivered; {seconds:.1} s, {:.0} states/s\n",
        args.commands,
        states as f64 / seconds
    );
    let ExploreArgs { replicas, commands, timeouts, waits, crashes, losses, duplicates, catch_ups, .. } =
        args;
    let bounds = format!(
        "{replicas} replicas, {commands} commands, {timeouts} time-outs, {waits} waits, {crashes} crashes, {losses} losses, \
         {duplicates} duplicates, {catch_ups} catch-ups{}{}",
        if args.head_start { ", a head start" } else { "" },
        if args.pages { ", pages of one batch" } else { "" }
    );
    let bounds = match args.dissemination {
        Dissemination::Leader => bounds,
        dissemination => format!("{bounds}, {dissemination} dissemination"),
    };
    let bounds = if given.is_empty() { bounds } else { format!("{bounds}, {given}") };
    text += &match (&report.found, report.incomplete) {
        (Some(_), _) => "an invariant does NOT hold\n".to_owned(),
        (None, None) => format!("complete: every state within {bounds}; every invariant held\n"),
        (None, Some(Incomplete::Random)) => {
            format!("random walks through {bounds}; every invariant held in all states on the way\n")
        }
        (None, Some(Incomplete::Depth)) => format!(
            "INCOMPLETE: every state at most {depth} steps from the beginning, of {bounds}; every invariant held there\n"
        ),
        (None, Some(Incomplete::States)) => format!(
            "INCOMPLETE: stopped at --states-max {}, in the midst of states {} steps from the beginning, of \
             {bounds}; every invariant held so far\n\
             Bounds that are explored completely: `synod docs exploring 'Which configurations complete'`\n",
            args.states_max,
            depth + 1
        ),
    };
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(clap::Parser)]
    struct Command {
        #[command(flatten)]
        args: ExploreArgs,
    }

    fn parsed(words: &[&str]) -> ExploreArgs {
        let words = [&["explore"], words].concat();
        <Command as clap::Parser>::try_parse_from(words).expect("they are options").args
    }

    #[test]
    fn progress_is_one_line_on_a_terminal_and_lines_elsewhere() {
        let begun = Instant::now();
        let shown = |terminal| {
            let (mut progress, mut out) = (Progress::new(begun, terminal), Vec::new());
            for second in 0..=11 {
                let count = Count { states: 100 * second, depth: 7, ..Count::default() };
                let now = begun + Duration::from_secs(second as u64);
                progress.show(count, now, &mut out).expect("it is memory");
            }
            String::from_utf8(out).expect("it is text")
        };
        assert_eq!(
            shown(false),
            "500 states, 7 steps deep, 100 states/s\n1000 states, 7 steps deep, 100 states/s\n"
        );
        let terminal = shown(true);
        assert_eq!(terminal.matches('\r').count(), 11, "{terminal:?}");
        assert!(!terminal.contains('\n'), "{terminal:?}");
    }

    #[test]
    fn a_report_says_whether_that_was_everything() {
        let told = |words: &[&str]| {
            let args = parsed(words);
            let (options, given) = args.options().expect("they go together");
            let report = explore_with(options, args.bounds(), &mut |_| ());
            summary(&args, &given, &report, Duration::from_secs(1))
        };
        let small = ["--replicas", "1", "--crashes", "0"];
        assert!(told(&small).contains("\ncomplete: every state within 1 replicas"), "{}", told(&small));
        let stopped = told(&[&small[..], &["--states-max", "2"]].concat());
        assert!(stopped.contains("\nINCOMPLETE: stopped at --states-max 2, "), "{stopped}");
    }
}

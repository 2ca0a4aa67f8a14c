//! `synod sim merged`.

use std::{
    process::ExitCode,
    sync::Mutex,
    time::{Duration, Instant},
};

use clap::Args;

use super::{Counts, MergedFailure, MergedPlan, run, run_with_trace};
use crate::cli::{FAILURES_TOLD, Seeds, jobs, on_threads, show_progress};

/// Attacks clusters whose groups are merged into one order, one seed after another.
///
/// Each seed draws 3 or 5 nodes that each host 2 to 4 groups, a protocol of each group, how groups skip, clients, and
/// the faults: crashes, pauses, cut links, sessions that break, stalled disks, groups that are heard late, changes of
/// protocols and of voters. In some seeds nodes join and leave, the store is compacted and compared, and clients use
/// leases and watch. All nodes must execute the same common order, which is found from the decided logs; the clients'
/// history must be linearizable; those who watch must be told it; no lease may end early; and when all faults are over,
/// every node must execute everything, and say nothing more once it is idle.
#[derive(Args, Clone, Debug)]
pub struct MergedArgs {
    /// The seeds to run, from A up to and without B; a single number is one seed.
    #[arg(long, value_name = "A..B", default_value = "0..500")]
    pub seeds: Seeds,
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

#[derive(Debug, Default)]
struct Totals {
    runs: u64,
    events: u64,
    order: u64,
    operations: usize,
    unanswered: usize,
    undecided: Vec<u64>,
    simulated: Duration,
    slowest_recovery: (Duration, u64),
    counts: Counts,
    failures: Vec<MergedFailure>,
}

/// Runs the seeds and reports. The exit code is 1 if an invariant was violated.
#[must_use]
pub fn run_merged(args: &MergedArgs) -> ExitCode {
    let begun = Instant::now();
    let totals = Mutex::new(Totals::default());
    let limit = args.time_limit.map(Duration::from_secs);
    on_threads(&args.seeds, jobs(args.jobs, args.trace), limit, |seed| {
        let plan = MergedPlan::draw(seed);
        let result = if args.trace { run_with_trace(&plan) } else { run(&plan) };
        let mut totals = totals.lock().expect("no thread panics while it adds");
        totals.runs += 1;
        let held = result.is_ok();
        match result {
            Ok(outcome) => {
                totals.events += outcome.events;
                totals.order += outcome.order;
                totals.operations += outcome.operations;
                totals.unanswered += outcome.unanswered;
                totals.undecided.extend(outcome.undecided.then_some(seed));
                totals.simulated += outcome.simulated;
                totals.slowest_recovery = totals.slowest_recovery.max((outcome.recovery, seed));
                totals.counts.add_run(&outcome.counts);
            }
            Err(failure) => {
                if totals.failures.len() < FAILURES_TOLD {
                    println!("{}\n", failure.report());
                }
                totals.failures.push(*failure);
            }
        }
        show_progress(totals.runs, totals.failures.len());
        held || args.keep_going
    });
    let totals = totals.into_inner().expect("no thread panicked while it added");
    print!("{}", summary(&totals, begun.elapsed()));
    if totals.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn summary(totals: &Totals, took: Duration) -> String {
    let Totals { runs, events, order, operations, unanswered, simulated, counts, .. } = totals;
    let (slowest, seed) = totals.slowest_recovery;
    let mut text = format!(
        "{runs} runs of merged groups in {:.1} s: {} of simulated time, {events} events, {order} batches in common \
         orders\n{operations} operations of clients, {unanswered} of them without an answer; {} histories too hard to \
         check\nthe slowest recovery took {slowest:.1?} (seed {seed})\n{counts}",
        took.as_secs_f64(),
        format_args!("{:.0} s", simulated.as_secs_f64()),
        totals.undecided.len(),
    );
    let failures = totals.failures.iter();
    for failure in failures.clone().take(30) {
        text += &format!("seed {} violates {}\n", failure.seed, failure.violation.invariant);
    }
    text + &match failures.count() {
        0 => "every invariant held\n".to_owned(),
        count => format!("{count} failures\n"),
    }
}

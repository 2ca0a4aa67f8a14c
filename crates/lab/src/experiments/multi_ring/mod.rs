//! Multi-Ring Paxos (Benz 2013, section 4.3.2): rings whose batches are executed in one order.
//!
//! The document's rings ran on machines of their own, each proposer beside a ring's replica, and one machine more
//! learned all rings and merged them. So do these, in virtual time: the replicas' own code with the real merge
//! (`synod_replica::MergedExecutor`) and its skips, and the costs that were measured on the real program. A machine has
//! one processor, which all its groups share, as all groups of a node share one thread; one network card; and one disk
//! with one log. Each command is a batch of its own, as each value is an instance in the document.

pub mod global;
pub mod merged;
pub mod per_node;
pub mod skips;

use std::{collections::BTreeMap, time::Duration};

use hdrhistogram::Histogram;
use synod_consensus::ProtocolKind;
use synod_replica::{Skips, Take};

use super::{
    charts::lines,
    points::{Field, of_round},
};
use crate::{
    ground::{
        Asked, Load, Ordering, Setup,
        hardware::Costs,
        virtual_time::{self, Groups, Merging, Ran, Seats},
    },
    study::{Chart, Conduct, LabError, Parameter, Parameters, Point, Sample},
};

/// Megabits a second of a card where the figures of the document are compared with those of its machines.
const FAST_CARD: f64 = 1000.0;
/// Megabits a second of a card that is the bottleneck whatever the processor costs.
const SLOW_CARD: f64 = 100.0;

/// The document's size of values.
const DOCUMENT_BYTES: usize = 32 << 10;
/// The document's size with the best throughput for its latency.
const SMALL_BYTES: usize = 8 << 10;
/// Commands that the three proposers of a ring have under way together, each the same number.
const UNDER_WAY: usize = 12;

/// The document has 600 positions in each 100 ms: half more than a link of 1 Gbit/s carries values of 32 KiB.
const SKIPS: Parameter = Parameter {
    key: "skips",
    help: "When a group skips, as `synod serve --skips` has it.",
    default: "lambda:6000",
    full: "lambda:6000",
};

const RINGS: Parameter = Parameter {
    key: "rings",
    help: "How many rings there are, separated by commas.",
    default: "1,2,3,4,5",
    full: "1,2,3,4,5",
};

/// A curve over the number of rings.
const fn by_rings(title: &'static str, metric: &'static str, y_label: &'static str) -> Chart {
    lines(title, metric, y_label, "rings")
}

const ORDERED: Chart = by_rings("Bytes of commands that the rings order", "goodput", "Mbit/s");
const EXECUTED: Chart =
    by_rings("Bytes of commands that are executed in one order", "merged_goodput", "Mbit/s");
const AT_THE_PROPOSER: Chart = by_rings("Median latency at the proposer", "decided_ms", "ms");
const BUSY_MERGER: Chart = by_rings("Processor of the merging machine", "merger_busy", "%");

/// The setup of machines with these cards.
fn setup(
    field: &Field<'_>,
    parameters: &Parameters,
    machines: usize,
    megabits: Option<f64>,
) -> Result<Setup, LabError> {
    let costs = Costs::named(parameters.text("costs"))?;
    let ordering = Ordering::of(ProtocolKind::Ring);
    let mut setup = field.machines(machines, ordering, costs, megabits, "single-dc")?;
    setup.settings.batch_bytes_max = 1;
    Ok(setup)
}

/// Proposers beside the replicas that they ask, which have this many commands under way together.
fn load(asked: Asked, concurrent: usize, value_bytes: usize, window: Duration) -> Load {
    Load { asked, beside: true, value_bytes, ..Load::new(concurrent, window) }
}

/// A group of these voters, the first of which is to lead.
fn ring(voters: impl IntoIterator<Item = usize>, learners: Vec<usize>, load: Load) -> Seats {
    let voters: Vec<_> = voters.into_iter().collect();
    Seats { leader: voters.first().copied(), voters, learners, load }
}

/// A merge at these machines, a batch of each group in turn.
fn merging(skips: Skips, at: Vec<usize>) -> Option<Merging> {
    Some(Merging { take: Take::MIN, skips, at })
}

/// A point that runs groups, and sums up what came of it.
fn point(
    series: impl Into<String>,
    x: f64,
    setup: Setup,
    groups: Groups,
    sum_up: impl Fn(&Ran) -> Sample + 'static,
) -> Point {
    let measure = move |conduct: &Conduct| {
        Ok(sum_up(&virtual_time::run_groups(&of_round(&setup, conduct), &groups, conduct)?))
    };
    Point { series: series.into(), x, measure: Box::new(measure) }
}

/// All these latencies.
fn together<'a>(latencies: impl IntoIterator<Item = &'a Histogram<u64>>) -> Histogram<u64> {
    let mut all = Histogram::new_with_bounds(1, 600_000_000_000, 3).expect("constant bounds");
    for one in latencies {
        all.add(one).expect("they have the same bounds or narrower ones");
    }
    all
}

/// The figures that all experiments have: of the commands of all groups, and of the machine that merges all of them.
fn figures(ran: &Ran, value_bytes: usize) -> BTreeMap<&'static str, f64> {
    let seconds = ran.groups[0].seconds;
    let megabits = |commands: u64| commands as f64 * value_bytes as f64 * 8e-6 / seconds;
    let answered = ran.groups.iter().map(|group| group.answered).sum::<u64>();
    let decided = together(ran.groups.iter().map(|group| &group.latency));
    let latencies = together(ran.merged.iter().map(|merged| &merged.latency));
    let quantile = |of: &Histogram<u64>, share| of.value_at_quantile(share) as f64 / 1e6;
    let merger = ran.merged.last().map(|merged| ran.usage[merged.place]).unwrap_or_default();
    let others = &ran.usage[..ran.usage.len() - 1];
    let busiest = others.iter().map(|usage| usage.busy).fold(0.0, f64::max);
    BTreeMap::from([
        ("throughput", answered as f64 / seconds),
        ("goodput", megabits(answered)),
        ("merged_goodput", megabits(latencies.len())),
        ("decided_ms", quantile(&decided, 0.5)),
        ("merged_ms", quantile(&latencies, 0.5)),
        ("merged_p99_ms", quantile(&latencies, 0.99)),
        ("merger_received", merger.received * 8e-6 / seconds),
        ("merger_busy", 100.0 * merger.busy / seconds),
        ("ring_busy", 100.0 * busiest / seconds),
        ("waiting_max", waiting(ran).into_iter().max().unwrap_or(0) as f64),
    ])
}

/// The most batches of a group that waited for other groups, in tenths of a second.
fn waiting(ran: &Ran) -> Vec<u64> {
    let mut all: Vec<u64> = Vec::new();
    for merged in &ran.merged {
        all.resize(all.len().max(merged.waiting.len()), 0);
        all.iter_mut().zip(&merged.waiting).for_each(|(most, one)| *most = (*most).max(*one));
    }
    all
}

/// How many groups there are at each point.
fn numbers(parameters: &Parameters, key: &str, most: usize) -> Result<Vec<usize>, LabError> {
    let all: Vec<usize> = parameters.list(key)?;
    if all.iter().all(|number| (1..=most).contains(number)) {
        return Ok(all);
    }
    Err(parameters.wrong(key, format!("accepted: 1 to {most}, separated by commas")))
}

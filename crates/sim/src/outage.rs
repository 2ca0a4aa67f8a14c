//! How long an election leaves a group without a leader while a fault lasts: the rows of a table, and `synod
//! sim outages`, which prints it. `world/outage.rs` plays one fault; a test checks the bounds.

#[cfg(feature = "cli")]
use std::{fmt::Write as _, process::ExitCode};
use std::{ops::Range, time::Duration};

#[cfg(feature = "cli")]
use clap::Args;
use synod_consensus::{ElectionKind, ProtocolKind};

use crate::{
    check::Violation,
    network::Wire,
    plan::Plan,
    scenario::{CASTS, Cast, calm_plan},
    trace::Trace,
    world::{OUTAGE_REPLICAS, World},
};

/// A fault. All but `Sleep` last to the end. Replicas are given by their distance from the leader in the ring of their
/// numbers; 0 is the leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lasting {
    /// No fault.
    Nothing,
    /// Every message takes half of the round trip longer; then the leader's process ends, and its machine
    /// refuses the others at once.
    Process {
        /// The round trip, in percent of the election time-out.
        percent: u32,
    },
    /// A disk hangs: no record becomes durable there any more, and the replica keeps sending messages.
    HungDisk {
        /// The replica with the disk.
        place: usize,
    },
    /// Each commit of a disk takes longer.
    SlowDisk {
        /// The replica with the disk.
        place: usize,
        /// How much longer, in percent of the election time-out.
        percent: u32,
    },
    /// Only one replica reaches all others, and these reach nobody but it. No leader crashes: without that replica
    /// there is no quorum.
    Star {
        /// That replica.
        hub: usize,
    },
    /// Every message takes half of the round trip longer, and a disk hangs from the crash of the leader on.
    HangsAtCrash {
        /// The replica with the disk.
        place: usize,
        /// The round trip, in percent of the election time-out.
        percent: u32,
    },
    /// Every message takes half of the round trip longer.
    SlowLinks {
        /// The round trip, in percent of the election time-out.
        percent: u32,
    },
    /// Messages from and to one replica take half of the round trip longer.
    SlowReplica {
        /// The replica.
        place: usize,
        /// The round trip, in percent of the election time-out.
        percent: u32,
    },
    /// One direction of one link is cut.
    OneWay {
        /// The replica that is not heard.
        from: usize,
        /// The replica that does not hear it.
        to: usize,
    },
    /// One link is cut.
    Link {
        /// One end of the link.
        a: usize,
        /// The other end of the link.
        b: usize,
    },
    /// The link between the leader and another replica is cut, in one direction or both. The waiting time of
    /// that replica's clients is measured.
    Unlinked {
        /// The other replica.
        place: usize,
        /// Whether the other replica does not hear the leader.
        deaf: bool,
        /// Whether the leader does not hear the other replica.
        mute: bool,
    },
    /// A replica hears all others, and none hears it.
    Mute {
        /// The replica.
        place: usize,
    },
    /// All others hear a replica, and it hears none.
    Deaf {
        /// The replica.
        place: usize,
    },
    /// A replica is cut off.
    CutOff {
        /// The replica.
        place: usize,
    },
    /// A replica is stopped, and continues after a while.
    Sleep {
        /// The replica.
        place: usize,
        /// How long it sleeps, in percent of the election time-out; a multiple of 100.
        percent: u32,
    },
}

impl Lasting {
    /// Whether what the clients of all replicas get done is measured, before the fault and while it lasts.
    pub(crate) fn has_goodput(self) -> bool {
        matches!(self, Lasting::SlowDisk { .. } | Lasting::Star { .. })
    }
}

/// Where goodput is measured, it is at least this many percent of what it was before the fault.
pub const GOODPUT_MIN_PERCENT: u64 = 50;

/// How long service was missing or, if one replica's clients are measured, how long one of these waited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outage {
    /// The time that the fault caused.
    pub from_fault: Duration,
    /// The time that the crash of the leader caused while the fault lasted.
    pub from_crash: Duration,
    /// How many times a replica began to lead between the fault and the crash.
    pub elections: u64,
    /// Where it is measured: how many percent of the commands that clients got answered in the same time before the
    /// fault they got answered while it lasted.
    pub goodput_percent: Option<u64>,
}

/// A row of the table: a fault, at every place where it may strike.
#[derive(Clone, Debug)]
pub struct Row {
    /// The row's name in the table.
    pub name: &'static str,
    /// Each place where it may strike.
    pub cases: Vec<Lasting>,
    /// Within how many election time-outs some replica must serve again: after the fault, and after the crash of
    /// the leader while the fault lasts. The elements are for the elections `rotating`, `ballot` and `randomized`, and
    /// for `latency` above the first or, with Raft, the last.
    pub bounds: [(u32, u32); 3],
}

impl Row {
    /// The bounds for a cast: those for its election, and one time-out more with the ring, whose round is several
    /// trips, and with Kernel Paxos, whose new leader asks twice.
    #[must_use]
    pub fn bounds_of(&self, cast: Cast) -> (u32, u32) {
        let (after_fault, after_crash) = match cast.election {
            ElectionKind::Latency if cast.protocol == ProtocolKind::Raft => self.bounds[2],
            ElectionKind::Rotating | ElectionKind::Latency => self.bounds[0],
            ElectionKind::Ballot => self.bounds[1],
            _ => self.bounds[2],
        };
        let more = u32::from(matches!(cast.protocol, ProtocolKind::Ring | ProtocolKind::KernelPaxos));
        (after_fault + more, after_crash + more)
    }
}

/// All rows.
#[must_use]
pub fn rows() -> Vec<Row> {
    [rows_of_processes_and_disks(), rows_of_delays(), rows_of_cuts()].into_iter().flatten().collect()
}

fn row(name: &'static str, bounds: [(u32, u32); 3], cases: Vec<Lasting>) -> Row {
    Row { name, cases, bounds }
}

fn places() -> Range<usize> {
    0..OUTAGE_REPLICAS
}

fn rows_of_processes_and_disks() -> Vec<Row> {
    vec![
        row("nothing", [(1, 2), (1, 2), (1, 3)], vec![Lasting::Nothing]),
        row(
            "nothing; the leader's process ends",
            [(1, 1), (1, 1), (1, 1)],
            vec![Lasting::Process { percent: 0 }],
        ),
        row(
            "the leader's process ends, round trip 0.25 T",
            [(1, 3), (1, 3), (1, 4)],
            vec![Lasting::Process { percent: 25 }],
        ),
        row(
            "the leader's process ends, round trip 0.5 T",
            [(1, 4), (1, 5), (1, 8)],
            vec![Lasting::Process { percent: 50 }],
        ),
        row(
            "a hung disk",
            [(2, 3), (2, 3), (3, 4)],
            places().map(|place| Lasting::HungDisk { place }).collect(),
        ),
        row(
            "a slow disk, commits 0.1 T longer",
            [(1, 3), (1, 3), (1, 4)],
            places().map(|place| Lasting::SlowDisk { place, percent: 10 }).collect(),
        ),
        row(
            "a slow disk, commits 0.6 T longer",
            [(1, 3), (1, 3), (1, 4)],
            places().map(|place| Lasting::SlowDisk { place, percent: 60 }).collect(),
        ),
    ]
}

/// Delays of links and replicas, and before them what makes an election take long.
fn rows_of_delays() -> Vec<Row> {
    vec![
        row(
            "only one replica reaches all others",
            [(4, 3), (3, 3), (4, 4)],
            places().map(|hub| Lasting::Star { hub }).collect(),
        ),
        row(
            "a disk hangs as the leader crashes, round trip 0.25 T",
            [(1, 4), (1, 6), (1, 8)],
            (1..OUTAGE_REPLICAS).map(|place| Lasting::HangsAtCrash { place, percent: 25 }).collect(),
        ),
        row(
            "slow links, round trip 0.25 T",
            [(1, 3), (1, 3), (1, 4)],
            vec![Lasting::SlowLinks { percent: 25 }],
        ),
        row(
            "slow links, round trip 0.5 T",
            [(1, 4), (1, 5), (1, 8)],
            vec![Lasting::SlowLinks { percent: 50 }],
        ),
        row(
            "slow links, round trip 0.95 T",
            [(6, 8), (6, 8), (8, 16)],
            vec![Lasting::SlowLinks { percent: 95 }],
        ),
        row(
            "a slow replica, round trip 0.95 T",
            [(4, 3), (4, 4), (4, 4)],
            places().map(|place| Lasting::SlowReplica { place, percent: 95 }).collect(),
        ),
    ]
}

/// Cuts of links, and replicas that are not heard.
fn rows_of_cuts() -> Vec<Row> {
    let pairs = || places().flat_map(move |a| places().map(move |b| (a, b))).filter(|(a, b)| a != b);
    vec![
        row(
            "one direction of a link cut",
            [(1, 2), (1, 2), (1, 4)],
            pairs().map(|(from, to)| Lasting::OneWay { from, to }).collect(),
        ),
        row(
            "a link cut",
            [(1, 2), (1, 2), (1, 4)],
            pairs().filter(|(a, b)| a < b).map(|(a, b)| Lasting::Link { a, b }).collect(),
        ),
        row(
            "a follower's link to the leader cut: its own clients wait",
            [(3, 5), (3, 5), (3, 5)],
            (1..OUTAGE_REPLICAS)
                .flat_map(|place| [(true, true), (true, false), (false, true)].map(|cut| (place, cut)))
                .map(|(place, (deaf, mute))| Lasting::Unlinked { place, deaf, mute })
                .collect(),
        ),
        row(
            "a mute replica",
            [(2, 3), (2, 3), (3, 4)],
            places().map(|place| Lasting::Mute { place }).collect(),
        ),
        row(
            "a deaf replica",
            [(3, 3), (2, 3), (3, 4)],
            places().map(|place| Lasting::Deaf { place }).collect(),
        ),
        row(
            "a replica cut off",
            [(2, 3), (2, 3), (3, 4)],
            places().map(|place| Lasting::CutOff { place }).collect(),
        ),
        row(
            "a replica sleeps for 5 T",
            [(2, 3), (2, 3), (3, 4)],
            places().map(|place| Lasting::Sleep { place, percent: 500 }).collect(),
        ),
    ]
}

/// A group whose messages, disks and clocks take some time, drawn by a seed, and in which nothing goes wrong.
pub(crate) fn unhurried_plan(replicas: usize, cast: Cast, seed: u64) -> Plan {
    let mut plan = calm_plan(replicas, cast);
    let timeout = plan.settings.consensus.election_timeout;
    plan.seed = seed;
    plan.network.wire = Wire::Stream;
    (plan.network.delay_min, plan.network.delay_max) = (timeout / 2000, timeout / 100);
    plan.network.keep_max = 1000;
    plan.disk.sync = (timeout / 1000, timeout / 200);
    plan.clock_drift_ppm = 10_000;
    plan.timer_late = timeout / 500;
    plan.settings.clock_interval = timeout / 10;
    plan.changes.spares = 0;
    plan
}

/// A group without other faults.
fn plan(cast: Cast, seed: u64) -> Plan {
    let mut plan = unhurried_plan(OUTAGE_REPLICAS, cast, seed);
    let timeout = plan.settings.consensus.election_timeout;
    plan.faults.lasts = (timeout, timeout);
    plan
}

/// Plays one case once.
///
/// # Errors
/// An invariant is violated.
pub fn play(
    cast: Cast,
    lasting: Lasting,
    seed: u64,
    planted: Option<synod_consensus::Bug>,
) -> Result<Outage, Violation> {
    let mut plan = plan(cast, seed);
    plan.settings.consensus.planted = planted;
    World::new(plan, Trace::Off).outage(lasting)
}

/// The results of a row.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// The longest time after the fault and after the crash, each with its case and seed.
    pub longest: [(Duration, Option<(Lasting, u64)>); 2],
    /// The least goodput, with its case and seed, where it is measured.
    pub goodput_min: Option<(u64, Lasting, u64)>,
    /// All times.
    all: [Vec<Duration>; 2],
}

impl Measured {
    fn add(&mut self, outage: Outage, lasting: Lasting, seed: u64) {
        if let Some(percent) = outage.goodput_percent
            && self.goodput_min.is_none_or(|(least, ..)| percent < least)
        {
            self.goodput_min = Some((percent, lasting, seed));
        }
        for (kind, took) in [outage.from_fault, outage.from_crash].into_iter().enumerate() {
            self.all[kind].push(took);
            if took > self.longest[kind].0 {
                self.longest[kind] = (took, Some((lasting, seed)));
            }
        }
    }

    fn median(&self, kind: usize) -> Duration {
        let mut all = self.all[kind].clone();
        all.sort_unstable();
        all.get(all.len() / 2).copied().unwrap_or_default()
    }
}

/// Plays all cases of a row.
///
/// # Errors
/// An invariant is violated.
pub fn measure(
    cast: Cast,
    row: &Row,
    seeds: u64,
    planted: Option<synod_consensus::Bug>,
) -> Result<Measured, Violation> {
    let mut measured = Measured::default();
    for &lasting in &row.cases {
        for seed in 0..seeds {
            measured.add(play(cast, lasting, seed, planted)?, lasting, seed);
        }
    }
    Ok(measured)
}

/// The election time-out of all plays.
#[must_use]
pub fn election_timeout() -> Duration {
    calm_plan(OUTAGE_REPLICAS, CASTS[0]).settings.consensus.election_timeout
}

/// Plays faults that last, in groups of five without other faults, for each protocol and election, and prints
/// how long service was missing: the longest time and the median over all places and seeds, in election
/// time-outs; first because of the fault, then because the leader crashed while it lasted. Where a fault may make
/// service slow, it comes first how many percent of the commands before the fault were answered while it lasted.
#[cfg(feature = "cli")]
#[derive(Args, Clone, Debug)]
pub struct OutagesArgs {
    /// How many times each case is played, each time with other small delays and clocks.
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub seeds: u64,
    /// Plays and prints these elections alone.
    #[arg(long, value_name = "ELECTION", value_delimiter = ',')]
    pub election: Vec<ElectionKind>,
}

/// Prints the table. The exit code is 1 if a bound is exceeded or an invariant is violated.
#[cfg(feature = "cli")]
#[must_use]
pub fn print(args: &OutagesArgs) -> ExitCode {
    let timeout = election_timeout();
    let in_timeouts = |time: Duration| time.as_secs_f64() / timeout.as_secs_f64();
    let asked = |cast: &&Cast| args.election.is_empty() || args.election.contains(&cast.election);
    let casts: Vec<Cast> = crate::scenario::led().filter(asked).copied().collect();
    let mut header = "| fault |".to_owned();
    casts.iter().for_each(|cast| header += &format!(" {}, {} |", cast.protocol, cast.election));
    println!("{header}\n|{}", " --- |".repeat(casts.len() + 1));
    let mut wrong = Vec::new();
    for row in rows() {
        let mut line = format!("| {} |", row.name);
        for &cast in &casts {
            match measure(cast, &row, args.seeds, None) {
                Ok(measured) => {
                    let bounds = row.bounds_of(cast);
                    if let Some((percent, lasting, seed)) = measured.goodput_min {
                        let _ = write!(line, " {percent} % of {GOODPUT_MIN_PERCENT};");
                        if percent < GOODPUT_MIN_PERCENT {
                            wrong.push(format!(
                                "{}, {}: {percent} % answered in {lasting:?}, seed {seed}",
                                row.name, cast.name
                            ));
                        }
                    }
                    for (kind, bound) in [bounds.0, bounds.1].into_iter().enumerate() {
                        let (longest, case) = measured.longest[kind];
                        let (longest, median) = (in_timeouts(longest), in_timeouts(measured.median(kind)));
                        let _ = write!(line, " {longest:.1} ({median:.1}) of {bound}{}", [";", " |"][kind]);
                        if longest > f64::from(bound) {
                            wrong.push(format!(
                                "{}, {}: {longest:.1} of {bound} in {case:?}",
                                row.name, cast.name
                            ));
                        }
                    }
                }
                Err(violation) => wrong.push(format!("{}, {}: violates {violation}", row.name, cast.name)),
            }
        }
        println!("{line}");
    }
    wrong.iter().for_each(|problem| println!("{problem}"));
    if wrong.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

//! The grounds on which experiments run: replicas as processes, as threads, or in virtual time, with the same
//! setup and load.

mod client;
pub mod hardware;
pub mod processes;
mod registry;
pub mod threads;
pub mod virtual_time;
mod waiter;

use std::{collections::BTreeMap, time::Duration};

use hdrhistogram::Histogram;
use synod_consensus::{ElectionKind, ProtocolKind};
use synod_replica::Settings;
use synod_storage::Durability;
use synod_wire::ReplicaId;

use self::hardware::Hardware;
use crate::{
    net::Topology,
    study::{Conduct, Event, LabError, Parameters, Sample},
};

/// A ground.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ground {
    /// Each replica is a process `synod serve`, and clients use gRPC.
    Processes,
    /// The same, where each has a network of its own and a card with a limit.
    Namespaces,
    /// Replicas are threads of this process, without gRPC.
    Threads,
    /// The replicas' code runs in virtual time.
    Virtual,
}

impl Ground {
    const ALL: [(&str, Ground); 4] = [
        ("processes", Ground::Processes),
        ("namespaces", Ground::Namespaces),
        ("threads", Ground::Threads),
        ("virtual", Ground::Virtual),
    ];

    /// Runs the load against the setup once, and sums up the outcome.
    ///
    /// # Errors
    /// Those of [`processes::run`], [`threads::run`] or [`virtual_time::run`].
    pub fn run(self, setup: &Setup, load: &Load, conduct: &Conduct) -> Result<Sample, LabError> {
        match self {
            Ground::Processes => processes::run(setup, load, conduct),
            Ground::Namespaces => processes::run_with_cards(setup, load, conduct),
            Ground::Threads => threads::run(setup, load, conduct).map(|outcome| outcome.sample(&load.acts)),
            Ground::Virtual => {
                let (outcome, traffic) = virtual_time::run(setup, load, conduct)?;
                let mut sample = outcome.sample(&load.acts);
                sample.figures.extend(traffic.figures(outcome.answered, outcome.seconds));
                Ok(sample)
            }
        }
    }

    /// A description that says what the ground leaves out.
    #[must_use]
    pub fn describe(self) -> &'static str {
        match self {
            Ground::Processes => {
                "a process `synod serve` each, TCP over loopback, clients over gRPC in the lab's process; all of them \
                 share the cores"
            }
            Ground::Namespaces => {
                "a process `synod serve` each, in a network namespace of its own whose card sends and receives at the \
                 given rate (tc tbf, headers included) and adds no delay; clients over gRPC in the lab's process, \
                 behind the cards; all of them share the cores"
            }
            Ground::Threads => {
                "replicas and client in one process, TCP over loopback between replicas, no gRPC; all of them share \
                 the cores"
            }
            Ground::Virtual => {
                "the replicas' own code in virtual time: links as the topology says, a processor a replica with a price \
                 for each message and command, disks and network cards as described"
            }
        }
    }
}

impl std::str::FromStr for Ground {
    type Err = ();

    fn from_str(text: &str) -> Result<Ground, ()> {
        Ground::ALL.iter().find(|(name, _)| *name == text).map(|&(_, ground)| ground).ok_or(())
    }
}

impl std::fmt::Display for Ground {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (name, _) = Ground::ALL.iter().find(|(_, ground)| ground == self).expect("all are listed");
        f.write_str(name)
    }
}

/// The group of replicas that runs.
#[derive(Clone, Debug)]
pub struct Setup {
    /// How many replicas the group begins with; their ids go from 1.
    pub replicas: usize,
    /// Their settings.
    pub settings: Settings,
    /// The election priority of each replica. Replicas beyond its end have that of the settings.
    pub priorities: Vec<u8>,
    /// The durability. In virtual time a commit that waits for the disk takes what the costs say.
    pub durability: Durability,
    /// The network between the replicas and to the client; `None` for the loopback interface as it is.
    pub topology: Option<Topology>,
    /// The machines, in virtual time.
    pub hardware: Hardware,
    /// Pairs of replicas that do not reach each other in virtual time, by their places in the list.
    pub cuts: Vec<(usize, usize)>,
    /// The seed of everything random.
    pub seed: u64,
}

impl Setup {
    /// Replicas of a protocol with the settings of Ng 2020, chapter 4: nothing is synced, and no snapshot disturbs.
    #[must_use]
    pub fn new(replicas: usize, protocol: ProtocolKind, election: ElectionKind) -> Setup {
        let mut settings = Settings::default();
        settings.consensus.protocol = protocol;
        settings.consensus.election = election;
        settings.consensus.window_max = 256;
        settings.queue_bytes_max = 512 << 20;
        settings.request_timeout = Duration::from_secs(60);
        settings.snapshot_slots = 1 << 20;
        settings.snapshot_log_bytes = 1 << 30;
        Setup {
            replicas,
            settings,
            priorities: Vec::new(),
            durability: Durability::Memory,
            topology: None,
            hardware: Hardware::default(),
            cuts: Vec::new(),
            seed: 1,
        }
    }

    pub(crate) fn settings_of(&self, replica: usize) -> Settings {
        let mut settings = self.settings.clone();
        if let Some(&priority) = self.priorities.get(replica) {
            settings.consensus.priority = priority;
        }
        settings
    }
}

/// Clients: a constant number of distinct outstanding proposals (the closed loop of Ng 2020, section 4.1), or proposals
/// at a constant rate.
///
/// Measuring begins once a leader is known and the warm-up is over, so the first election does not count.
#[derive(Clone, Debug)]
pub struct Load {
    /// Proposals outstanding at a time, in a closed loop.
    pub concurrent: usize,
    /// Proposals a second, in an open loop: they come at random (a Poisson process), whether or not earlier ones are
    /// answered. `None` for a closed loop. Not on threads.
    pub rate: Option<f64>,
    /// Which replicas are asked. On threads it is the leader.
    pub asked: Asked,
    /// Whether clients run on the machine of the replica that they ask, so that neither proposals nor answers pass a
    /// network. Only in virtual time.
    pub beside: bool,
    /// Bytes of a proposal, 8 or more. On threads there are 8.
    pub value_bytes: usize,
    /// The warm-up, in which answers do not count.
    pub warm_up: Duration,
    /// The window, in which answers count.
    pub window: Duration,
    /// A proposal without an answer for this long counts as answered, and as timed out; it is not repeated.
    pub answer_timeout: Duration,
    /// Actions that are carried out under load.
    pub acts: Vec<Act>,
    /// Whether each outstanding proposal has an operating-system thread that waits for its answer, as in a
    /// server with a thread for every request. Only on threads.
    pub thread_each: bool,
}

impl Load {
    /// A load without actions, with the document's time-out of 20 s. The warm-up is long enough to answer the
    /// first proposals.
    #[must_use]
    pub fn new(concurrent: usize, window: Duration) -> Load {
        let first_round = Duration::from_micros(10) * u32::try_from(concurrent).unwrap_or(u32::MAX);
        Load {
            concurrent,
            rate: None,
            asked: Asked::Leader,
            beside: false,
            value_bytes: 8,
            warm_up: (window / 4).max(Duration::from_millis(200)) + first_round,
            window,
            answer_timeout: Duration::from_secs(20),
            acts: Vec::new(),
            thread_each: false,
        }
    }
}

/// The replicas that clients ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// The leader alone.
    Leader,
    /// All replicas: each client keeps to one of them while it runs.
    All,
}

/// An action that is carried out under load.
#[derive(Clone, Debug)]
pub struct Act {
    /// When it begins, from the beginning of the window.
    pub at: Duration,
    /// The action.
    pub what: What,
}

/// A kind of action.
#[derive(Clone, Debug)]
pub enum What {
    /// The group changes to this protocol and election.
    Order(ProtocolKind, ElectionKind),
    /// A new replica takes the place of a member.
    Replace(Victim),
    /// The leader hands the leadership to the replica before it in the list, or to the last.
    HandOver,
    /// The machine of a member fails, and is silent from then on. Its clients lose their connections at once.
    Crash(Victim),
    /// The leader's machine does nothing for so long; what comes meanwhile waits. Only in virtual time.
    Pause(Duration),
}

impl std::fmt::Display for What {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            What::Order(protocol, election) => {
                write!(f, "to {}", Ordering { protocol: *protocol, election: *election })
            }
            What::Replace(Victim::Leader) => f.write_str("replace leader"),
            What::Replace(Victim::Follower) => f.write_str("replace follower"),
            What::HandOver => f.write_str("hand over"),
            What::Pause(time) => write!(f, "leader stops for {time:?}"),
            What::Crash(Victim::Leader) => f.write_str("leader crashes"),
            What::Crash(Victim::Follower) => f.write_str("follower crashes"),
        }
    }
}

/// The member that is replaced, or crashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Victim {
    /// The replica that leads at that moment.
    Leader,
    /// A replica that does not lead at that moment.
    Follower,
}

/// Answers in the timeline are counted in intervals of this length.
const BIN: Duration = Duration::from_millis(100);

/// The outcome of a run.
#[derive(Debug)]
pub struct Outcome {
    /// Answers in the window, including those that timed out.
    pub answered: u64,
    /// How many of these each replica gave; in virtual time only.
    pub answered_by: BTreeMap<ReplicaId, u64>,
    /// The latencies of these together, in nanoseconds.
    pub waited_by: BTreeMap<ReplicaId, u64>,
    /// The actual length of the window, in seconds.
    pub seconds: f64,
    /// Proposals that timed out.
    pub timed_out: u64,
    /// Proposals that were sent again, because a replica refused them or stopped.
    pub resent: u64,
    /// Latency of the answers in the window, in nanoseconds.
    pub latency: Histogram<u64>,
    /// The longest time in the window without an answer.
    pub longest_gap: Duration,
    /// Answers in consecutive tenths of a second of the window.
    pub timeline: Vec<f64>,
    /// The leaders, in order.
    pub leaders: Vec<ReplicaId>,
    /// When each action began, and how long it took to be confirmed.
    pub acts: Vec<(Duration, Duration)>,
}

impl Outcome {
    fn new() -> Outcome {
        // The bounds are a nanosecond and a minute.
        let latency = Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("constant bounds");
        Outcome {
            answered: 0,
            answered_by: BTreeMap::new(),
            waited_by: BTreeMap::new(),
            seconds: 0.0,
            timed_out: 0,
            resent: 0,
            latency,
            longest_gap: Duration::ZERO,
            timeline: Vec::new(),
            leaders: Vec::new(),
            acts: Vec::new(),
        }
    }

    /// The figures that every experiment may use. `acts` are the actions of the load.
    #[must_use]
    pub fn sample(&self, acts: &[Act]) -> Sample {
        let milliseconds = |nanoseconds: f64| nanoseconds / 1e6;
        let quantile = |share| milliseconds(self.latency.value_at_quantile(share) as f64);
        let figures = [
            ("throughput", self.answered as f64 / self.seconds),
            ("mean_ms", milliseconds(self.latency.mean())),
            ("median_ms", quantile(0.5)),
            ("p99_ms", quantile(0.99)),
            ("max_ms", milliseconds(self.latency.max() as f64)),
            ("timed_out", self.timed_out as f64),
            ("resent", self.resent as f64),
            ("gap_ms", self.longest_gap.as_secs_f64() * 1e3),
            ("leader_changes", self.leaders.len().saturating_sub(1) as f64),
            ("leader", self.leaders.last().map_or(0.0, |leader| leader.0 as f64)),
            ("change_ms", self.acts.iter().map(|act| act.1.as_secs_f64() * 1e3).fold(0.0, f64::max)),
        ];
        let event = |(act, (began, _)): (&Act, &(Duration, Duration))| Event {
            at: began.as_secs_f64(),
            what: act.what.to_string(),
        };
        let events = acts.iter().zip(&self.acts).map(event).collect();
        let figures = figures.into_iter().chain(self.shares()).collect();
        Sample { figures, timeline: self.timeline.clone(), events }
    }

    /// The answers of the leader, and of the replicas that gave the fewest and the most, over those of a replica on
    /// average; and the mean latency at the replicas that answer the soonest and the latest. Nothing if fewer than two
    /// gave any.
    fn shares(&self) -> Vec<(&'static str, f64)> {
        if self.answered_by.len() < 2 {
            return Vec::new();
        }
        let all: Vec<f64> = self.answered_by.values().map(|&answers| answers as f64).collect();
        let mean = all.iter().sum::<f64>() / all.len() as f64;
        let leader = self.leaders.last().and_then(|leader| self.answered_by.get(leader));
        let least = all.iter().copied().fold(f64::INFINITY, f64::min);
        let most = all.iter().copied().fold(0.0, f64::max);
        let latency = |(of, &nanos): (&ReplicaId, &u64)| nanos as f64 / self.answered_by[of] as f64 / 1e6;
        let latencies: Vec<f64> = self.waited_by.iter().map(latency).collect();
        vec![
            ("leader_share", leader.map_or(0.0, |&answers| answers as f64) / mean),
            ("least_share", least / mean),
            ("most_share", most / mean),
            ("soonest_mean_ms", latencies.iter().copied().fold(f64::INFINITY, f64::min)),
            ("latest_mean_ms", latencies.iter().copied().fold(0.0, f64::max)),
        ]
    }
}

/// A protocol and its election, as `--set protocols=` names them: `raft`, or `multipaxos/ballot`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ordering {
    /// The protocol.
    pub protocol: ProtocolKind,
    /// The election.
    pub election: ElectionKind,
}

impl Ordering {
    /// A protocol with its own election.
    #[must_use]
    pub fn of(protocol: ProtocolKind) -> Ordering {
        Ordering { protocol, election: protocol.elections()[0] }
    }

    /// The orderings that a parameter names; `all` stands for every protocol with its own election.
    ///
    /// # Errors
    /// A name is not known.
    pub fn list(parameters: &Parameters, key: &str) -> Result<Vec<Ordering>, LabError> {
        if parameters.text(key) == "all" {
            return Ok(ProtocolKind::ALL.iter().map(|&(_, protocol)| Ordering::of(protocol)).collect());
        }
        parameters.list(key)
    }
}

impl std::str::FromStr for Ordering {
    type Err = String;

    fn from_str(text: &str) -> Result<Ordering, String> {
        let (protocol, election) = text.split_once('/').unwrap_or((text, ""));
        let protocol: ProtocolKind = protocol.parse().map_err(|error| format!("{error}, or all"))?;
        if election.is_empty() {
            return Ok(Ordering::of(protocol));
        }
        let election = election.parse().map_err(|error| format!("{error}"))?;
        if !protocol.elections().contains(&election) {
            let known: Vec<_> = protocol.elections().iter().map(ToString::to_string).collect();
            return Err(format!("{protocol} knows the elections {}", known.join(", ")));
        }
        Ok(Ordering { protocol, election })
    }
}

impl std::fmt::Display for Ordering {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.protocol)?;
        if self.election != self.protocol.elections()[0] {
            write!(f, "/{}", self.election)?;
        }
        Ok(())
    }
}

//! What a seed draws: a cluster, its settings, its clients and what goes wrong.

use std::{fmt, time::Duration};

use fastrand::Rng;
use synod_consensus::{Decision, ElectionKind, Options, ProtocolKind, SequencePaxosOptions};
use synod_replica::{Limits, REQUEST_BYTES_MIN, SessionLimits, Settings, StateTransfer};

use crate::{
    network::{NetworkPlan, Wire, between},
    odds::Odds,
};

/// A span from which durations are drawn, both ends included.
pub type Span = (Duration, Duration);

/// Whether logs survive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// Records are durable once a sync has ended.
    Sync,
    /// Logs live in memory: what is appended counts as durable, and a restart finds nothing.
    Memory,
}

/// Everything about a run but its random numbers.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The seed of all random numbers.
    pub seed: u64,
    /// How many replicas there are.
    pub replicas: usize,
    /// The settings with which the group begins, and of all replicas that have no others.
    pub settings: Settings,
    /// Settings of their own, by replica; see [`Plan::settings_of`]. What belongs to the group counts for nothing here.
    pub own: Vec<Settings>,
    /// The priority of each replica; 0 for those that the list does not reach.
    pub priorities: Vec<u8>,
    /// Whether logs survive.
    pub durability: Durability,
    /// The network between replicas.
    pub network: NetworkPlan,
    /// Their disks.
    pub disk: DiskPlan,
    /// A clock runs at most so many parts per million too fast or too slow.
    pub clock_drift_ppm: u64,
    /// How late a timer may fire.
    pub timer_late: Duration,
    /// How long it takes to execute a few batches.
    pub execute: Span,
    /// After an event, a replica's burst ends so much later; zero: every event is a burst.
    pub burst: Duration,
    /// What goes wrong.
    pub faults: FaultPlan,
    /// What an operator does.
    pub changes: ChangePlan,
    /// What it is about.
    pub family: Family,
    /// How often only some links work for a long while; see [`Topology`].
    pub trials: u32,
    /// Who asks for what.
    pub clients: ClientPlan,
    /// For how long faults happen and clients ask.
    pub duration: Duration,
}

/// How disks behave.
#[derive(Clone, Copy, Debug)]
pub struct DiskPlan {
    /// How long a sync takes.
    pub sync: Span,
    /// How long it takes to write, read or install a snapshot or a piece of one.
    pub snapshot: Span,
    /// How often a snapshot or a piece of it can not be written.
    pub snapshot_fails: Odds,
    /// How often the log is not trimmed although it could be: whole segments are removed in practice.
    pub trim_waits: Odds,
    /// After the loss of a log in memory, snapshot files are lost as well.
    pub snapshots_lost: Odds,
    /// What the rest of a damaged log proves is kept, as a server does; otherwise the rest is what it is.
    pub repairs: bool,
    /// Replicas have real files, on disks that fail like this; otherwise a model of them.
    pub files: Option<FilesPlan>,
}

/// How the disks fail that hold real files: numbers are thousandths of the operations of a kind.
#[derive(Clone, Copy, Debug)]
pub struct FilesPlan {
    /// An fsync of a file fails.
    pub sync_fails: u32,
    /// An fsync of a directory fails.
    pub dir_sync_fails: u32,
    /// A write, or the creation of a file, finds no room.
    pub full: u32,
    /// Power fails soon after a process began to start, mostly before it has started.
    pub starts_fail: Odds,
}

impl FilesPlan {
    /// Nothing fails.
    pub const CALM: FilesPlan =
        FilesPlan { sync_fails: 0, dir_sync_fails: 0, full: 0, starts_fail: Odds::NEVER };
}

/// What goes wrong, and how often.
#[derive(Clone, Copy, Debug)]
pub struct FaultPlan {
    /// Time from one fault to the next.
    pub gap: Span,
    /// How long a fault lasts.
    pub lasts: Span,
    /// How often a pause lasts far beyond every time-out.
    pub long_pauses: Odds,
    /// How often the leader is hit by what hits one replica.
    pub leader: Odds,
    /// How often a replica crashes right after it has done something: between any two of its steps.
    pub any_step: Odds,
    /// The weight of each kind; zero: it does not happen.
    pub weights: FaultWeights,
    /// How often a replica crashes right after it has sent a page of a promise that is not the last.
    pub between_pages: Odds,
    /// What else happens with a bridge.
    pub bridge: BridgePlan,
    /// What happens as soon as two groups of voters have to agree.
    pub joint: JointPlan,
}

/// What happens together with [`FaultWeights::bridge`].
#[derive(Clone, Copy, Debug, Default)]
pub struct BridgePlan {
    /// The leader is asked just before to hand over to the other side.
    pub transfer: Odds,
    /// The disk of the leader stalls.
    pub stall: Odds,
    /// One on the leader's side is asked to lead as well: it becomes a candidate that reaches no quorum.
    pub rival: Odds,
    /// An operator on the other side wants the epoch to end.
    pub epoch: Odds,
    /// Only a leader that is patient is cut off, and the others elect another by themselves while it leads on. Mostly the
    /// bridge reaches its side only after that, and brings much at once.
    pub elects: bool,
}

/// Who crashes within some time after a change of voters has begun that takes two steps.
#[derive(Clone, Copy, Debug, Default)]
pub struct JointPlan {
    /// The leader.
    pub leader: Odds,
    /// All replicas.
    pub all: Odds,
    /// How long after.
    pub wait_max: Duration,
}

/// Weights of faults; see [`FaultPlan`].
#[derive(Clone, Copy, Debug, Default)]
pub struct FaultWeights {
    /// A replica crashes and is restarted.
    pub crash: u32,
    /// All replicas crash at once.
    pub crash_all: u32,
    /// A replica crashes and finds its log lost or damaged.
    pub lose_log: u32,
    /// A replica crashes and finds its newest snapshot damaged.
    pub lose_snapshot: u32,
    /// A replica stops, and goes on with its old state.
    pub pause: u32,
    /// A replica's clock jumps forward, by up to many time-outs.
    pub jump: u32,
    /// Two groups of replicas do not reach each other.
    pub split: u32,
    /// Some pairs of replicas do not reach each other, in both directions or in one.
    pub partial: u32,
    /// A replica reaches nobody, or nobody reaches it.
    pub one_way: u32,
    /// The leader and some others are cut off from a quorum, and one replica reaches both sides; mostly the leader is asked
    /// to hand over to the other side just before.
    pub bridge: u32,
    /// A disk does not answer.
    pub stall: u32,
    /// Sessions end.
    pub reset: u32,
    /// An operator asks for changes of the group.
    pub change: u32,
    /// An operator wants another replica to lead.
    pub transfer: u32,
    /// A replica's disk is copied, or an older copy takes its place.
    pub restore: u32,
    /// A replica loses all its data, and is started as if it never was.
    pub wipe: u32,
}

/// What an operator does besides the faults, when [`FaultWeights::change`] has its turn.
#[derive(Clone, Copy, Debug)]
pub struct ChangePlan {
    /// Machines beyond those of the first group: as many replicas may be added.
    pub spares: usize,
    /// Before anything else, so many learners are added that are to stay learners.
    pub learners: usize,
    /// Most changes that are asked for at once, each at another replica perhaps.
    pub burst_max: usize,
    /// How often a change is made for a group that is no more, or not yet.
    pub stale: Odds,
    /// How often a change whose outcome is not known is asked for again.
    pub again: Odds,
    /// Whether what orders may change as well; otherwise more members are replaced.
    pub orders: bool,
    /// How often the change is that a voter is readmitted, most of all one that lost its memory.
    pub readmit: Odds,
    /// How long after it was added a replica is started.
    pub joins: Span,
}

impl ChangePlan {
    /// Nobody changes anything.
    pub const NONE: ChangePlan = ChangePlan {
        spares: 0,
        learners: 0,
        burst_max: 0,
        stale: Odds::NEVER,
        again: Odds::NEVER,
        orders: false,
        readmit: Odds::NEVER,
        joins: (Duration::ZERO, Duration::ZERO),
    };
}

/// What the runs of a seed are about. Most seeds draw everything by itself; what takes several things at once hardly ever
/// happens then, and has a family of seeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Anything.
    General,
    /// Five or seven voters, learners, and cuts across which only one replica carries what is decided, while leaders change.
    Bridge,
    /// Leaders that sleep, or whose disks do, for much longer than anybody waits for them.
    Sleep,
    /// Candidates that need long to hear everybody out, while those crash and lose their logs.
    Recovery,
    /// Groups that change all the time, while everything else goes wrong.
    Change,
    /// Logs that rot: what is left of them is kept, and only what is lost comes from others. No seed draws it by itself.
    Disk,
    /// Real files on disks that fail: what a crash leaves of them, and what a start makes of it. No seed draws it by itself.
    Files,
}

impl Family {
    /// All of them, with their names.
    pub const ALL: &'static [(&'static str, Family)] = &[
        ("general", Family::General),
        ("bridge", Family::Bridge),
        ("sleep", Family::Sleep),
        ("recovery", Family::Recovery),
        ("change", Family::Change),
        ("disk", Family::Disk),
        ("files", Family::Files),
    ];

    /// That of a seed.
    #[must_use]
    pub fn of(seed: u64) -> Family {
        match Rng::with_seed(seed ^ 0xfa_41_17).u8(0..16) {
            0..8 => Family::General,
            8..11 => Family::Bridge,
            11 => Family::Sleep,
            12..14 => Family::Recovery,
            _ => Family::Change,
        }
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Family::ALL.iter().find(|(_, family)| family == self).map_or("?", |(name, _)| name);
        f.write_str(name)
    }
}

impl std::str::FromStr for Family {
    type Err = String;

    fn from_str(text: &str) -> Result<Family, String> {
        let names: Vec<&str> = Family::ALL.iter().map(|(name, _)| *name).collect();
        let found = Family::ALL.iter().find(|(name, _)| *name == text).map(|(_, family)| *family);
        found.ok_or_else(|| format!("'{text}' is no family of seeds; there are: {}", names.join(", ")))
    }
}

/// Which links work in a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topology {
    /// Those of one replica, which did not lead: with five replicas the leader loses its quorum, though the hub still
    /// hears it.
    Hub,
    /// Those of one replica, which lags; with more than three, one other is cut off.
    LaggingHub,
    /// From one replica to the next.
    Chain,
    /// From one replica to the next, and from the last to the first.
    Ring,
    /// All but those of the leader.
    LeaderCutOff,
    /// All but those between the leader and the third and the fourth replica, and between the second and the fifth
    /// (Driftwood 2023, section 2.3.5).
    Driftwood,
    /// Every second one.
    Some,
    /// Some, and some in one direction only.
    OneWay,
}

impl Topology {
    /// All of them.
    pub const ALL: &'static [Topology] = &[
        Topology::Hub,
        Topology::LaggingHub,
        Topology::Chain,
        Topology::Ring,
        Topology::LeaderCutOff,
        Topology::Driftwood,
        Topology::Some,
        Topology::OneWay,
    ];
}

impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Topology::Hub => "hub",
            Topology::LaggingHub => "a hub that lags",
            Topology::Chain => "chain",
            Topology::Ring => "ring",
            Topology::LeaderCutOff => "the leader cut off",
            Topology::Driftwood => "the case of Driftwood",
            Topology::Some => "some links",
            Topology::OneWay => "some links in one direction",
        })
    }
}

/// Who asks for what.
#[derive(Clone, Copy, Debug)]
pub struct ClientPlan {
    /// Clients that have no session of their own.
    pub direct: usize,
    /// Clients that have one, and ask again elsewhere.
    pub sessions: usize,
    /// How many commands a client of the second kind has outstanding.
    pub pipeline: usize,
    /// The number of keys.
    pub keys: u8,
    /// How many operations there are in all.
    pub operations: usize,
    /// Time between an answer and the next operation.
    pub think: Span,
    /// When a client gives an attempt up.
    pub timeout: Duration,
    /// How often a client gives a request up at once, while it is on its way or being worked on.
    pub cancels: Odds,
    /// Values are longer than they need be by at most so many bytes.
    pub padding_max: usize,
    /// How many reads are served from whatever state a replica has.
    pub stale_reads: Odds,
}

/// Most replicas that are added in a run.
pub const SPARES_MAX: usize = 4;

/// The most by which values are longer than they need be where they are large.
const LARGE_PADDING: usize = 6_000;

/// About the largest snapshot that a run has whose values are small.
const SNAPSHOT_BYTES: usize = 100_000;

const MS: Duration = Duration::from_millis(1);
const US: Duration = Duration::from_micros(1);

fn pick<T: Copy>(rng: &mut Rng, choices: &[T]) -> T {
    choices[rng.usize(0..choices.len())]
}

impl Plan {
    /// The settings of a replica, by index.
    #[must_use]
    pub fn settings_of(&self, of: usize) -> &Settings {
        self.own.get(of).unwrap_or(&self.settings)
    }

    /// The largest value of a setting that any replica has.
    pub fn largest<T: Ord>(&self, setting: impl Fn(&Settings) -> T) -> T {
        let own = self.own.iter().map(&setting).max();
        own.map_or_else(|| setting(&self.settings), |own| own.max(setting(&self.settings)))
    }

    /// What a seed draws for a protocol, with one of its elections.
    #[must_use]
    pub fn draw(seed: u64, protocol: ProtocolKind) -> Plan {
        Plan::draw_with(seed, protocol, Plan::draw_election(seed, protocol))
    }

    /// The election that a seed draws, of a protocol's. Drawn apart, so that the rest of a seed's plan is the same with every
    /// election.
    #[must_use]
    pub fn draw_election(seed: u64, protocol: ProtocolKind) -> ElectionKind {
        pick(&mut Rng::with_seed(seed ^ 0xe_1e_c7), protocol.elections())
    }

    /// What a seed draws for a protocol with an election.
    #[must_use]
    pub fn draw_with(seed: u64, protocol: ProtocolKind, election: ElectionKind) -> Plan {
        Plan::draw_general(seed, protocol, election).of_family(Family::of(seed))
    }

    /// Changes what is drawn such that what the family is about happens often.
    #[must_use]
    pub fn of_family(mut self, family: Family) -> Plan {
        let rng = &mut Rng::with_seed(self.seed ^ 0xb_1a_5e);
        let timeout = self.settings.consensus.election_timeout;
        let weights = self.faults.weights;
        let none = FaultWeights::default();
        // There is always something that is not decided yet.
        let mut busy = None;
        self.family = family;
        match family {
            Family::General => return self,
            Family::Bridge => {
                self.replicas = pick(rng, &[5, 5, 7]);
                self.durability = Durability::Sync;
                self.changes = ChangePlan {
                    spares: 2,
                    learners: pick(rng, &[1, 1, 2]),
                    burst_max: 1,
                    ..ChangePlan::NONE
                };
                self.faults.weights =
                    FaultWeights { bridge: 6, change: 2, pause: rng.u32(0..2), crash: rng.u32(0..2), ..none };
                self.faults.gap = (timeout / 2, timeout * 2);
                self.faults.lasts = (timeout / 2, timeout * 3);
                self.faults.any_step = Odds::NEVER;
                self.faults.bridge = BridgePlan {
                    transfer: Odds::percent(pick(rng, &[30, 80])),
                    stall: Odds::percent(pick(rng, &[0, 40])),
                    rival: Odds::percent(pick(rng, &[0, 60])),
                    epoch: Odds::percent(pick(rng, &[0, 0, 30])),
                    elects: false,
                };
                self.network.delay_max = self.network.delay_max.min(timeout / 40);
                self.network.delay_min = self.network.delay_min.min(self.network.delay_max);
                // A laggard learns slot by slot, many at once, or by a snapshot.
                self.settings.fetch_bytes_max = pick(rng, &[1, 1 << 20]);
                if rng.bool() {
                    self.settings.snapshot_slots = pick(rng, &[2, 5]);
                    (self.settings.keep_slots, self.settings.keep_bytes) = (0, 1_000);
                    self.settings.chunk_bytes_max = 1 << 20;
                    self.disk.snapshot = (Duration::ZERO, 50 * US);
                }
                if rng.u8(0..4) > 0 {
                    self.some_are_patient();
                    if self.settings.consensus.protocol == ProtocolKind::Raft && rng.u8(0..4) > 0 {
                        self.raft_elects_across_a_bridge();
                    }
                }
                busy = Some(timeout / if self.faults.bridge.elects { 4 } else { 8 });
            }
            Family::Sleep => {
                self.replicas = self.replicas.max(3);
                self.faults.weights = FaultWeights {
                    pause: 4,
                    stall: 3,
                    crash: weights.crash.min(1),
                    partial: weights.partial.min(1),
                    change: weights.change.min(2),
                    ..none
                };
                self.faults.leader = Odds::percent(80);
                self.faults.gap = (timeout, timeout * 6);
                self.faults.lasts = (timeout, timeout * pick(rng, &[4, 20]));
            }
            Family::Recovery => {
                self.replicas = pick(rng, &[3, 5, 5, 7]);
                self.durability = Durability::Sync;
                self.settings.consensus.promise_bytes_max = 1;
                self.settings.consensus.window_max = 16;
                self.network.delay_min = self.network.delay_min.max(timeout / 100);
                self.network.delay_max = self.network.delay_max.max(timeout / 40);
                self.faults.weights = FaultWeights {
                    crash: 4,
                    lose_log: 4,
                    partial: 2,
                    one_way: 1,
                    change: weights.change.min(2),
                    transfer: weights.transfer.min(1),
                    ..none
                };
                self.faults.gap = (timeout / 8, timeout);
                self.faults.lasts = (timeout / 20, timeout);
                self.faults.any_step = Odds::per_million(1_000);
                if rng.bool() {
                    // Who tries to lead lacks much that others hold: that takes several pages, while those crash.
                    self.faults.weights =
                        FaultWeights { crash: 6, partial: 4, one_way: 3, transfer: 2, lose_log: 1, ..none };
                    self.faults.between_pages = Odds::percent(10);
                    self.settings.consensus.window_max = pick(rng, &[4, 16]);
                    self.settings.snapshot_slots = pick(rng, &[2, 5, 50]);
                    self.disk.snapshot = (Duration::ZERO, 50 * US);
                    self.faults.leader = Odds::percent(80);
                    self.faults.any_step = Odds::per_million(4_000);
                    self.faults.lasts = (timeout / 50, timeout / 4);
                    if self.settings.consensus.protocol == ProtocolKind::SequencePaxos {
                        self.tellers_drop_what_they_held();
                        busy = Some(timeout / 8);
                    }
                }
            }
            Family::Change => {
                self.replicas = pick(rng, &[3, 5, 5]);
                let mut weights = FaultWeights::default();
                let changes = draw_changes(1 | self.seed, timeout, &mut weights);
                self.changes = ChangePlan { spares: SPARES_MAX, learners: rng.usize(0..2), ..changes };
                if self.settings.consensus.protocol.changes_voters_itself() && rng.bool() {
                    // A stop-sign would hide what voters do that change within an epoch.
                    (self.changes.orders, self.changes.readmit) = (false, Odds::NEVER);
                }
                self.faults.bridge = BridgePlan {
                    transfer: Odds::percent(75),
                    stall: Odds::percent(20),
                    rival: Odds::percent(60),
                    epoch: Odds::percent(60),
                    elects: false,
                };
                self.faults.joint =
                    JointPlan { leader: Odds::percent(40), all: Odds::NEVER, wait_max: timeout / 50 };
                self.faults.weights = FaultWeights {
                    change: 10,
                    transfer: 2,
                    partial: 3,
                    bridge: 3,
                    crash: 2,
                    pause: 1,
                    lose_log: rng.u32(0..2),
                    ..none
                };
                self.faults.gap = (timeout / 8, timeout);
                self.faults.lasts = (timeout / 4, timeout * 2);
                self.settings.snapshot_slots = pick(rng, &[5, 20]);
                self.settings.keep_slots = pick(rng, &[0, 20]);
                if rng.bool() {
                    self.some_are_patient();
                }
            }
            Family::Files => {
                self.replicas = pick(rng, &[3, 3, 5]);
                self.durability = Durability::Sync;
                self.disk.files = Some(FilesPlan {
                    sync_fails: pick(rng, &[0, 0, 2, 10]),
                    dir_sync_fails: pick(rng, &[0, 0, 5]),
                    full: pick(rng, &[0, 0, 2, 10]),
                    starts_fail: Odds::percent(pick(rng, &[0, 20, 50])),
                });
                self.changes = ChangePlan::NONE;
                self.faults.weights = FaultWeights {
                    crash: 6,
                    crash_all: 1,
                    lose_log: pick(rng, &[0, 3, 6]),
                    lose_snapshot: rng.u32(0..2),
                    partial: 2,
                    restore: pick(rng, &[0, 2]),
                    wipe: rng.u32(0..2),
                    ..none
                };
                self.faults.gap = (timeout / 8, timeout);
                self.faults.lasts = (timeout / 8, timeout);
                self.faults.any_step = Odds::per_million(pick(rng, &[0, 1_000]));
                // Segments fill, and go.
                self.clients.padding_max = pick(rng, &[50, 400]);
                self.settings.snapshot_slots = pick(rng, &[10, 100, 1_000]);
                self.settings.snapshot_log_bytes = 1 << 20;
                self.settings.keep_slots = pick(rng, &[0, 100, 1_000]);
                self.settings.fetch_bytes_max = pick(rng, &[1, 1 << 20]);
            }
            Family::Disk => {
                self.replicas = pick(rng, &[3, 3, 5, 7]);
                self.durability = Durability::Sync;
                self.disk.repairs = true;
                if rng.bool() {
                    let mut weights = FaultWeights::default();
                    let changes = draw_changes(1 | self.seed, timeout, &mut weights);
                    self.changes = ChangePlan { spares: SPARES_MAX, ..changes };
                } else {
                    self.changes = ChangePlan::NONE;
                }
                self.faults.weights = FaultWeights {
                    lose_log: 6,
                    lose_snapshot: rng.u32(0..2),
                    crash: 2,
                    partial: 2,
                    pause: 1,
                    change: if self.changes.spares > 0 { 4 } else { 0 },
                    transfer: 1,
                    ..none
                };
                self.faults.gap = (timeout / 8, timeout);
                self.faults.lasts = (timeout / 8, timeout * 2);
                // Mostly the log is all that there is.
                self.settings.snapshot_slots = pick(rng, &[10, 100, 1_000]);
                self.settings.keep_slots = pick(rng, &[0, 100, 1_000]);
                self.settings.fetch_bytes_max = pick(rng, &[1, 1 << 20]);
            }
        }
        for settings in std::iter::once(&mut self.settings).chain(&mut self.own) {
            let consensus = &mut settings.consensus;
            consensus.retransmit_after = consensus.retransmit_after.max(self.network.delay_max * 2);
            keep_up(settings, &self.network, &self.disk, &self.clients);
        }
        // Each family brings its own trouble.
        self.trials = 0;
        self.duration = self.duration.max(timeout * 12);
        self.clients.operations = self.clients.operations.max(150);
        self.clients.think = (Duration::ZERO, self.duration / 50);
        if let Some(think_max) = busy {
            self.clients.operations = self.clients.operations.max(250);
            self.clients.think.1 = self.clients.think.1.min(think_max);
        }
        self
    }

    /// Some miss nobody for longer than the others do: as leaders they do not know for long that they are replaced.
    fn some_are_patient(&mut self) {
        let some = self.replicas / 2;
        let mut patient = self.settings.clone();
        patient.consensus.election_timeout *= 3;
        self.own = vec![patient; some];
        self.priorities = vec![1; some];
    }

    /// A leader of Raft that hands over proposes nothing until it gives up leading, so the next one proposes behind all that it
    /// did. For both to propose in one slot, the leader must be patient, and be cut off for so long that the others elect
    /// another by themselves.
    fn raft_elects_across_a_bridge(&mut self) {
        let timeout = self.settings.consensus.election_timeout;
        let epoch = self.faults.bridge.epoch;
        self.faults.bridge = BridgePlan { elects: true, epoch, ..BridgePlan::default() };
        (self.faults.weights.crash, self.faults.weights.pause) = (0, 0);
        self.faults.gap = (timeout, timeout * 3);
        self.faults.lasts = (timeout * 7 / 2, timeout * 4);
        self.settings.consensus.window_max = 16;
        // It learns by snapshots, which are many, and slots of which some are gone.
        (self.settings.snapshot_slots, self.settings.keep_slots, self.settings.keep_bytes) = (2, 0, 1_000);
        (self.settings.chunk_bytes_max, self.settings.fetch_bytes_max) = (1 << 20, 1 << 20);
        self.disk.snapshot = (Duration::ZERO, 50 * US);
        self.some_are_patient();
        // There are commands for as long as there are cuts.
        self.duration = self.duration.max(timeout * 18);
        self.clients.operations = self.clients.operations.max(400);
    }

    /// Candidates that lag are told sequences by replicas that hold more than their snapshots will leave them when they start
    /// again, and crash between two pages.
    fn tellers_drop_what_they_held(&mut self) {
        let timeout = self.settings.consensus.election_timeout;
        self.settings.snapshot_slots = 2;
        (self.settings.keep_slots, self.settings.keep_bytes) = (1_000, 1 << 20);
        self.settings.fetch_bytes_max = 1 << 20;
        self.settings.consensus.window_max = 16;
        (self.network.delay_min, self.network.delay_max) = (timeout / 50, timeout / 12);
        self.disk.snapshot = (Duration::ZERO, timeout / 1_000);
        self.disk.trim_waits = Odds::NEVER;
        // Anybody is asked to lead, also one that lags.
        self.faults.leader = Odds::percent(10);
        self.faults.weights = FaultWeights {
            crash: 3,
            partial: 4,
            split: 2,
            pause: 2,
            one_way: 2,
            transfer: 10,
            lose_log: 1,
            ..FaultWeights::default()
        };
        self.faults.between_pages = Odds::percent(60);
        self.faults.any_step = Odds::per_million(1_000);
        self.faults.lasts = (timeout / 50, timeout * 3 / 4);
        self.own.clear();
    }

    /// Adds trials, and makes the rest such that a cluster without faults answers at once: in a trial there are
    /// bounds on time.
    #[must_use]
    pub fn with_trials(mut self, trials: u32) -> Plan {
        let consensus = &mut self.settings.consensus;
        let timeout = consensus.election_timeout;
        self.trials = trials;
        self.own.clear();
        // Time that a change takes would count as the election's.
        self.changes = ChangePlan::NONE;
        (self.faults.weights.change, self.faults.weights.transfer) = (0, 0);
        // One that lost all its data would be missing in every trial that follows.
        self.faults.weights.wipe = 0;
        self.duration = self.duration.max(crate::world::trial_duration(trials, timeout));
        self.network.delay_max = self.network.delay_max.min(timeout / 24);
        self.network.delay_min = self.network.delay_min.min(self.network.delay_max);
        self.disk.sync.1 = self.disk.sync.1.min(timeout / 24).max(self.disk.sync.0);
        self.execute = (Duration::ZERO, 20 * US);
        consensus.retransmit_after = consensus.retransmit_after.min(timeout / 4);
        consensus.promise_bytes_max = 1 << 20;
        consensus.window_max = consensus.window_max.max(4);
        self.settings.batch_bytes_max = self.settings.batch_bytes_max.max(2_000);
        self.settings.batch_delay_max = self.settings.batch_delay_max.min(MS);
        self.settings.queue_bytes_max = 1 << 20;
        self.settings.forward_window_max = 8;
        self.settings.fetch_bytes_max = 1 << 20;
        self.settings.chunk_bytes_max = 1 << 20;
        self.settings.keep_slots = self.settings.keep_slots.max(100);
        self.settings.keep_bytes = self.settings.keep_bytes.max(1 << 20);
        self.settings.backlog_slots_max = 1_000;
        self.settings.backlog_bytes_max = 1 << 20;
        self.settings.undurable_bytes_max = 1 << 20;
        self.settings.held_bytes_max = 1 << 20;
        self.clients.cancels = Odds::NEVER;
        // The clients may have asked for everything that they wanted: then its ticks show that a leader serves.
        self.settings.clock_interval = self.settings.clock_interval.min(timeout / 3);
        self
    }

    /// Makes it a family of its own: five or seven replicas, with logs in memory or lost, of which several are started
    /// again within one time-out, while leaders change.
    #[must_use]
    pub fn with_overlapping_recoveries(mut self, seed: u64) -> Plan {
        let rng = &mut Rng::with_seed(seed ^ 0x0_7e_1a);
        let timeout = self.settings.consensus.election_timeout;
        self.replicas = pick(rng, &[5, 5, 7]);
        self.durability = pick(rng, &[Durability::Memory, Durability::Memory, Durability::Sync]);
        let (lose_log, crash) = if self.durability == Durability::Memory { (0, 8) } else { (8, 1) };
        self.faults.weights =
            FaultWeights { crash, lose_log, partial: 2, one_way: 1, ..FaultWeights::default() };
        // Some answers are lost, and asked for again late, so that a replica recovers while those who answered it crash.
        self.faults.gap = (timeout / 20, timeout / 4);
        self.faults.lasts = (timeout / 100, timeout / 10);
        self.faults.leader = Odds::percent(10);
        self.network.wire = Wire::Datagram;
        self.network.loss = Odds::percent(pick(rng, &[20, 40]));
        self.network.delay_min = timeout / 100;
        self.network.delay_max = timeout / 12;
        self.settings.consensus.retransmit_after = timeout / 2;
        // What else a recovery takes is over soon.
        (self.settings.fetch_bytes_max, self.settings.chunk_bytes_max) = (1 << 20, 1 << 20);
        self.clients.operations = self.clients.operations.max(100);
        self
    }

    /// Makes it a family of its own: a replica without memory comes to a later epoch by a snapshot, and crashes within
    /// the first sync behind that, or loses the snapshot.
    #[must_use]
    pub fn with_forgotten_epochs(mut self) -> Plan {
        let timeout = self.settings.consensus.election_timeout;
        self.replicas = self.replicas.max(3);
        self.durability = Durability::Sync;
        (self.settings.snapshot_slots, self.settings.snapshot_log_bytes) = (5, 2_000);
        (self.settings.keep_slots, self.settings.keep_bytes) = (0, 1_000);
        self.settings.chunk_bytes_max = 1 << 20;
        (self.disk.trim_waits, self.disk.snapshot_fails) = (Odds::NEVER, Odds::NEVER);
        self.disk.snapshots_lost = Odds::ALWAYS;
        self.disk.sync = (timeout / 40, timeout / 8);
        self.changes.readmit = Odds::NEVER;
        self.faults.any_step = Odds::per_million(5_000);
        self.faults.gap = (timeout / 8, timeout);
        self.faults.lasts = (timeout / 20, timeout);
        self.faults.weights =
            FaultWeights { crash: 2, lose_log: 5, lose_snapshot: 5, change: 6, ..FaultWeights::default() };
        self
    }

    /// What a seed draws for a protocol with an election, whatever its family is.
    #[must_use]
    pub fn draw_general(seed: u64, protocol: ProtocolKind, election: ElectionKind) -> Plan {
        let mut rng = Rng::with_seed(seed ^ 0x5_e7_0d);
        let rng = &mut rng;
        let replicas = pick(rng, &[1, 2, 3, 3, 3, 3, 4, 5, 5, 5, 5, 6, 7, 7, 7, 7]);
        let network = draw_network(rng);
        let disk = draw_disk(rng);
        let mut settings = draw_settings(rng, protocol, network.delay_max);
        settings.consensus.election = election;
        // Drawn apart, so that the rest of a seed's plan does not depend on it.
        settings.state_transfer =
            pick(&mut Rng::with_seed(seed ^ 0xea_9e_12), &[StateTransfer::Pull, StateTransfer::Eager]);

        let durability = if rng.u8(0..8) == 0 { Durability::Memory } else { Durability::Sync };
        let duration = between(rng, 2_000 * MS, 8_000 * MS).max(settings.consensus.election_timeout * 8);
        let mut clients = draw_clients(rng, duration, settings.consensus.election_timeout);
        draw_bytes(seed, &mut settings, &mut clients);
        keep_up(&mut settings, &network, &disk, &clients);
        let some_first = seed.is_multiple_of(3);
        let priorities = if some_first { (0..replicas).map(|_| rng.u8(0..3)).collect() } else { Vec::new() };
        let clock_drift_ppm = pick(rng, &[0, 100, 10_000, 50_000]);
        let timer_late = pick(rng, &[Duration::ZERO, 100 * US, 2 * MS]);
        let execute = pick(rng, &[(Duration::ZERO, 20 * US), (20 * US, 500 * US), (MS, 20 * MS)]);
        let burst = pick(rng, &[Duration::ZERO, Duration::ZERO, 50 * US]);
        let mut faults = draw_faults(rng, settings.consensus.election_timeout);
        // Drawn apart, so that the rest of a seed's plan does not depend on it.
        let mut strange = Rng::with_seed(seed ^ 0x1d_e7_71);
        faults.weights.restore = pick(&mut strange, &[0, 0, 3, 12]);
        faults.weights.wipe = pick(&mut strange, &[0, 0, 2, 4]);
        draw_time(seed, &mut faults);
        // Drawn last, and for every second seed: the others show what a group that never changes does.
        let mut changes = draw_changes(seed, settings.consensus.election_timeout, &mut faults.weights);
        let mut durability = durability;
        if protocol == ProtocolKind::Raft && draw_raft(seed, &mut settings) {
            // Stop-signs would hide what voters do that change within an epoch.
            (changes.orders, changes.readmit, changes.spares) = (false, Odds::NEVER, SPARES_MAX);
            faults.weights.change *= 2;
            faults.weights.lose_log = 0;
            durability = Durability::Sync;
        }
        let own = draw_own(seed, replicas + changes.spares, &settings, network.delay_max);
        let trials = if replicas >= 3 && seed.is_multiple_of(4) { 1 + (seed / 4 % 2) as u32 } else { 0 };
        let plan = Plan {
            seed,
            replicas,
            changes,
            family: Family::General,
            trials: 0,
            priorities,
            durability,
            network,
            disk,
            clock_drift_ppm,
            timer_late,
            execute,
            burst,
            faults,
            clients,
            settings,
            own,
            duration,
        };
        // Families of their own, for what the others hardly ever reach.
        match seed % 32 {
            _ if trials > 0 => plan.with_trials(trials),
            6 if protocol.recovers_itself() => plan.with_overlapping_recoveries(seed),
            7 => plan.with_forgotten_epochs(),
            _ => plan,
        }
    }
}

/// A laggard is never helped if a newer snapshot always replaces the one that it is being sent, or if slots come faster
/// than it fetches them; a server that is configured sensibly keeps more slots than that takes.
fn keep_up(settings: &mut Settings, network: &NetworkPlan, disk: &DiskPlan, clients: &ClientPlan) {
    settings.clock_interval = settings.clock_interval.max(network.delay_max * 6);
    let piece = network.delay_max * 2 + disk.snapshot.1 * 2;
    let batch_bytes = 100 + clients.padding_max as u64 * 2;
    let slots = settings.snapshot_slots.min(settings.snapshot_log_bytes / batch_bytes).max(1);
    let slot_interval = settings.clock_interval.min(settings.consensus.election_timeout / 4);
    let interval = slot_interval * u32::try_from(slots).expect("small");
    let pieces = (interval.as_nanos() / 2 / piece.as_nanos().max(1)).clamp(1, 1 << 20);
    let large = if clients.padding_max < LARGE_PADDING { SNAPSHOT_BYTES } else { SNAPSHOT_BYTES * 8 };
    let chunk_min = large / usize::try_from(pieces).expect("clamped");
    settings.chunk_bytes_max = settings.chunk_bytes_max.max(chunk_min);
}

fn draw_network(rng: &mut Rng) -> NetworkPlan {
    let delay_min = pick(rng, &[5 * US, 50 * US, 500 * US, 5 * MS]);
    let rough = rng.u8(0..3) > 0;
    let few = |rng: &mut Rng, max: u32| if rough { Odds::per_million(rng.u32(0..max)) } else { Odds::NEVER };
    NetworkPlan {
        wire: if rng.u8(0..3) == 0 { Wire::Datagram } else { Wire::Stream },
        delay_min,
        delay_max: delay_min * pick(rng, &[1, 2, 5, 20]),
        slow: few(rng, 20_000),
        late_max: pick(rng, &[100 * MS, 3_000 * MS]),
        loss: few(rng, 200_000),
        duplicate: few(rng, 100_000),
        reset: few(rng, 2_000),
        // From a generator of its own, so that the rest does not depend on it.
        damage: pick(&mut Rng::with_seed(rng.clone().u64(..)), &[Odds::NEVER, Odds::per_million(300)]),
        keep_max: pick(rng, &[0, 3, 1_000]),
    }
}

fn draw_settings(rng: &mut Rng, protocol: ProtocolKind, delay_max: Duration) -> Settings {
    // What a server would be configured with: well above a few round trips.
    let election_timeout = pick(rng, &[150 * MS, 300 * MS, 1_000 * MS]).max(delay_max * 12);
    let window_max = pick(rng, &[1, 2, 4, 16, 32]);
    let snapshot_slots = pick(rng, &[5, 20, 50, 1_000]);
    let snapshot_log_bytes = pick(rng, &[2_000, 1 << 20]);
    // Drawn apart, so that the rest of a seed's plan does not depend on it.
    let reply_bytes_max = pick(&mut rng.clone(), &[150, 400, 1 << 20]);
    Settings {
        consensus: Options {
            protocol,
            decision: pick(rng, &[Decision::Leader, Decision::Leader, Decision::All]),
            heartbeat_interval: election_timeout / pick(rng, &[3, 5, 10]),
            election_timeout,
            window_max,
            retransmit_after: (election_timeout / pick(rng, &[2, 5, 10])).max(delay_max * 2),
            announce_delay_max: pick(rng, &[Duration::ZERO, MS, election_timeout / 20]),
            promise_bytes_max: pick(rng, &[1, 300, 1 << 20]),
            sequence_paxos: draw_optimisations(Rng::with_seed(rng.clone().u64(..))),
            ..Options::default()
        },
        limits: Limits {
            sessions: SessionLimits {
                clients_max: pick(rng, &[2, 5, 100]),
                outstanding_max: 64,
                session_reply_bytes_max: reply_bytes_max,
                reply_bytes_max: reply_bytes_max * 2,
                replica_outstanding_max: 1 << 12,
                idle_max: pick(rng, &[200 * MS, 5_000 * MS, 600_000 * MS]),
            },
            request_bytes_max: REQUEST_BYTES_MIN,
            ..Limits::default()
        },
        batch_bytes_max: pick(rng, &[1, 300, 2_000, 64 << 10]),
        batch_delay_max: pick(rng, &[Duration::ZERO, MS, 20 * MS]),
        queue_bytes_max: pick(rng, &[2_000, 1 << 20]),
        forward_window_max: pick(rng, &[1, 2, 8]),
        request_timeout: election_timeout * pick(rng, &[2, 5]),
        snapshot_slots,
        snapshot_log_bytes,
        keep_slots: pick(rng, &[0, 3, 20, 1_000]),
        keep_bytes: pick(rng, &[1_000, 1 << 20]),
        kept_bytes_max: snapshot_log_bytes * pick(rng, &[4, 1_000]),
        fetch_bytes_max: pick(rng, &[1, 500, 1 << 20]),
        state_transfer: StateTransfer::default(),
        chunk_bytes_max: pick(rng, &[100, 1_000, 1 << 20]),
        backlog_slots_max: pick(rng, &[5, 50, 1_000]),
        backlog_bytes_max: 1 << 20,
        undurable_bytes_max: 1 << 20,
        held_bytes_max: 1 << 20,
        caught_up_slots: pick(rng, &[0, 3, 100]),
        // A laggard that fetches slot by slot must be faster than the ticks of the clock.
        clock_interval: pick(rng, &[100 * MS, 1_000 * MS]).max(delay_max * 6),
    }
}

/// From a generator of their own, so that the rest of a seed's plan does not depend on them.
fn draw_optimisations(mut rng: Rng) -> SequencePaxosOptions {
    let mut on = || rng.u8(0..4) > 0;
    SequencePaxosOptions {
        batched_accepts: on(),
        latest_decide: on(),
        latest_accepted: on(),
        max_accept_sync: on(),
        head_start: on(),
        decide_on_accept: on(),
    }
}

fn draw_disk(rng: &mut Rng) -> DiskPlan {
    let sync_min = pick(rng, &[20 * US, 100 * US, 2 * MS]);
    DiskPlan {
        sync: (sync_min, sync_min * pick(rng, &[1, 3, 20])),
        snapshot: pick(rng, &[(Duration::ZERO, 50 * US), (MS, 10 * MS)]),
        snapshot_fails: pick(rng, &[Odds::NEVER, Odds::percent(10)]),
        trim_waits: pick(rng, &[Odds::NEVER, Odds::percent(50)]),
        snapshots_lost: pick(rng, &[Odds::NEVER, Odds::percent(50), Odds::ALWAYS]),
        repairs: false,
        files: None,
    }
}

fn draw_faults(rng: &mut Rng, election_timeout: Duration) -> FaultPlan {
    let mut weight = |most: u32| if rng.u8(0..3) > 0 { rng.u32(1..=most) } else { 0 };
    let weights = FaultWeights {
        crash: weight(10),
        crash_all: weight(2),
        lose_log: weight(3),
        lose_snapshot: weight(2),
        pause: weight(5),
        jump: 0,
        split: weight(5),
        partial: weight(5),
        one_way: weight(5),
        bridge: 0,
        stall: weight(4),
        reset: weight(4),
        change: 0,
        transfer: 0,
        restore: 0,
        wipe: 0,
    };
    // From a fault now and then to one before the last has been got over.
    let gap = election_timeout * pick(rng, &[1, 3, 6]);
    FaultPlan {
        gap: (gap / 4, gap * 2),
        lasts: (election_timeout / 20, election_timeout * pick(rng, &[1, 3])),
        long_pauses: Odds::NEVER,
        leader: Odds::percent(50),
        any_step: Odds::per_million(pick(rng, &[0, 0, 200, 1_000])),
        weights,
        between_pages: Odds::NEVER,
        bridge: BridgePlan::default(),
        joint: JointPlan::default(),
    }
}

/// Bounds in bytes, values that are large beside them, and clients that give up at once; drawn apart.
fn draw_bytes(seed: u64, settings: &mut Settings, clients: &mut ClientPlan) {
    let rng = &mut Rng::with_seed(seed ^ 0xb0_07_d5);
    settings.backlog_bytes_max = pick(rng, &[300, 5_000, 1 << 20]);
    settings.undurable_bytes_max = pick(rng, &[2_000, 20_000, 1 << 20]);
    settings.held_bytes_max = pick(rng, &[6_000, 20_000, 1 << 20]);
    clients.cancels = pick(rng, &[Odds::NEVER, Odds::NEVER, Odds::NEVER, Odds::percent(10)]);
    if rng.u8(0..6) == 0 {
        clients.padding_max = LARGE_PADDING;
    }
}

/// What becomes of time itself, drawn apart.
fn draw_time(seed: u64, faults: &mut FaultPlan) {
    let mut rng = Rng::with_seed(seed ^ 0xc1_0c_45);
    faults.long_pauses = pick(&mut rng, &[Odds::NEVER, Odds::percent(20), Odds::percent(60)]);
    faults.weights.jump = pick(&mut rng, &[0, 1, 4]);
}

/// For every second pair of seeds, settings that every replica draws for itself: what docs/operating.md calls the
/// replica's. Time-outs stay near each other, as an operator is told to keep them.
fn draw_own(seed: u64, replicas: usize, settings: &Settings, delay_max: Duration) -> Vec<Settings> {
    if (seed / 2).is_multiple_of(2) {
        return Vec::new();
    }
    let mut rng = Rng::with_seed(seed ^ 0x0_3b_e5);
    let mut draw = || {
        let other = draw_settings(&mut rng, settings.consensus.protocol, delay_max);
        let consensus = Options {
            decision: other.consensus.decision,
            heartbeat_interval: settings.consensus.heartbeat_interval / pick(&mut rng, &[1, 2]),
            election_timeout: settings.consensus.election_timeout * pick(&mut rng, &[2, 3, 4]) / 2,
            window_max: other.consensus.window_max,
            retransmit_after: other.consensus.retransmit_after,
            announce_delay_max: other.consensus.announce_delay_max,
            promise_bytes_max: other.consensus.promise_bytes_max,
            sequence_paxos: other.consensus.sequence_paxos,
            inflight_max: pick(&mut rng, &[1, 2, 64]),
            inflight_bytes_max: pick(&mut rng, &[1, 1_000, 1 << 20]),
            append_bytes_max: pick(&mut rng, &[1, 1_000, 1 << 20]),
            ..settings.consensus.clone()
        };
        Settings {
            consensus,
            batch_bytes_max: other.batch_bytes_max,
            batch_delay_max: other.batch_delay_max,
            queue_bytes_max: other.queue_bytes_max,
            forward_window_max: other.forward_window_max,
            // As slow as the group's, or slower: see there.
            clock_interval: settings.clock_interval * pick(&mut rng, &[1, 2]),
            fetch_bytes_max: other.fetch_bytes_max,
            state_transfer: pick(&mut rng, &[StateTransfer::Pull, StateTransfer::Eager]),
            backlog_slots_max: other.backlog_slots_max,
            caught_up_slots: other.caught_up_slots,
            ..settings.clone()
        }
    };
    (0..replicas).map(|_| draw()).collect()
}

/// What only Raft has, drawn apart; and whether its epoch should last.
fn draw_raft(seed: u64, settings: &mut Settings) -> bool {
    let mut rng = Rng::with_seed(seed ^ 0xc_4a_96);
    settings.consensus.inflight_max = pick(&mut rng, &[1, 2, 64]);
    settings.consensus.inflight_bytes_max = pick(&mut rng, &[1, 1_000, 1 << 20]);
    settings.consensus.append_bytes_max = pick(&mut rng, &[1, 1_000, 1 << 20]);
    rng.u8(0..3) == 0
}

/// An operator for seeds that are odd.
fn draw_changes(seed: u64, election_timeout: Duration, weights: &mut FaultWeights) -> ChangePlan {
    if seed.is_multiple_of(2) {
        return ChangePlan::NONE;
    }
    let rng = &mut Rng::with_seed(seed ^ 0xc4_a9_6e);
    weights.change = pick(rng, &[2, 10, 40]);
    weights.transfer = pick(rng, &[0, 2, 5]);
    ChangePlan {
        spares: rng.usize(0..=SPARES_MAX),
        learners: 0,
        burst_max: pick(rng, &[1, 1, 3]),
        stale: Odds::percent(pick(rng, &[0, 5, 20])),
        again: Odds::percent(pick(rng, &[0, 50])),
        orders: true,
        readmit: Odds::percent(pick(rng, &[5, 20, 60])),
        joins: (Duration::ZERO, election_timeout * pick(rng, &[0, 1, 4])),
    }
}

fn draw_clients(rng: &mut Rng, duration: Duration, election_timeout: Duration) -> ClientPlan {
    let direct = rng.usize(1..=4);
    let sessions = rng.usize(0..=3);
    let pipeline = pick(rng, &[1, 1, 3]);
    let operations = rng.usize(40..=160);
    let workers = u32::try_from(direct + sessions * pipeline).expect("a few");
    // Spread over about the first three quarters of the run.
    let pause = duration * 3 / 2 * workers / u32::try_from(operations).expect("a few hundred");
    ClientPlan {
        direct,
        sessions,
        pipeline,
        keys: pick(rng, &[1, 2, 4]),
        operations,
        think: pick(rng, &[(Duration::ZERO, pause), (Duration::ZERO, 2 * MS)]),
        timeout: election_timeout * pick(rng, &[1, 2, 6]),
        cancels: Odds::NEVER,
        padding_max: pick(rng, &[0, 50, 400]),
        stale_reads: Odds::percent(5),
    }
}

//! What a seed draws: a cluster, its settings, its clients and its faults.

mod elections;
mod families;
mod faults;
mod groups;
mod raft_options;

use std::{fmt, time::Duration};

use fastrand::Rng;
use synod_consensus::{
    Decision, Dissemination, ElectionKind, Options, ProtocolKind, dissemination,
    kernel_paxos::{self, Preparation},
    ring::{self, RingDecision, RingLearners, RingOrder, RingVoters},
    rounds::{self, RoundsAlgorithm, RoundsKind},
    sequence_paxos,
};
use synod_replica::{REQUEST_BYTES_MIN, Settings, StateTransfer};

use crate::{
    network::{NetworkPlan, Wire, between},
    odds::Odds,
};

pub use crate::watches::WatchPlan;
pub(crate) use elections::{latency_aware, suspecting};
pub use families::Family;
pub use faults::{BridgePlan, FaultPlan, FaultWeights, JointPlan};
use faults::{draw_faults, draw_time};
pub use groups::Merging;
use raft_options::{draw_appends, draw_raft, draw_rounds};
pub use synod_storage::{Durability, Ending};

/// A span from which durations are drawn, both ends included.
pub type Span = (Duration, Duration);

/// Everything about a run except its random numbers.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The seed of all random numbers.
    pub seed: u64,
    /// How many replicas there are.
    pub replicas: usize,
    /// How many groups each node hosts. With several, the first is followed by the others.
    pub groups: usize,
    /// How the groups are merged into one order, as with `merge:N`; `None` if each has a state machine of its own.
    pub merging: Option<Merging>,
    /// The settings with which the group begins, and of all replicas that have no settings of their own.
    pub settings: Settings,
    /// Settings of single replicas, by index; see [`Plan::settings_of`]. Settings that belong to the group
    /// have no effect here.
    pub own: Vec<Settings>,
    /// The priority of each replica; 0 for replicas beyond the end of the list.
    pub priorities: Vec<u8>,
    /// The durability of their logs.
    pub durability: Durability,
    /// The network between replicas.
    pub network: NetworkPlan,
    /// Their disks.
    pub disk: DiskPlan,
    /// By how many parts per million a clock may run too fast or too slow.
    pub clock_drift_ppm: u64,
    /// How late a timer may fire.
    pub timer_late: Duration,
    /// How long it takes to execute a few batches.
    pub execute: Span,
    /// How often a turn of execution is over after a command, or after a batch of merged groups.
    pub turn_ends: Odds,
    /// How long after an event a replica's burst ends; with zero every event is a burst.
    pub burst: Duration,
    /// The faults.
    pub faults: FaultPlan,
    /// The changes that an operator makes.
    pub changes: ChangePlan,
    /// Whether the group begins with the state of a backup, which all first members have and which is slot 1, as
    /// `synod snapshot restore` makes them.
    pub begins_with_backup: bool,
    /// Whether the births of the first voters are still to be named; otherwise the group begins with them.
    pub births_later: bool,
    /// The family of the seed.
    pub family: Family,
    /// How many times only some links work for a long while; see [`Topology`].
    pub trials: u32,
    /// The clients.
    pub clients: ClientPlan,
    /// Those who watch.
    pub watches: WatchPlan,
    /// How long faults happen and clients send requests.
    pub duration: Duration,
}

/// How disks behave.
#[derive(Clone, Copy, Debug)]
pub struct DiskPlan {
    /// How long a sync takes.
    pub sync: Span,
    /// How long it takes to write, read or install a snapshot or a piece of one.
    pub snapshot: Span,
    /// How often a snapshot or a piece of it cannot be written.
    pub snapshot_fails: Odds,
    /// How often the log is not trimmed although it could be: whole segments are removed in practice.
    pub trim_waits: Odds,
    /// How often snapshot files are lost as well, after the loss of a log in memory.
    pub snapshots_lost: Odds,
    /// Whether a damaged log is repaired as a server does it: what the rest proves is kept. Otherwise the
    /// rest stays as it is.
    pub repairs: bool,
    /// How the disks of real files fail; `None` if replicas have a model of files.
    pub files: Option<FilesPlan>,
}

/// The faults of disks with real files. Numbers are thousandths of the operations of a kind.
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

/// The changes that an operator makes when [`FaultWeights::change`] has its turn.
#[derive(Clone, Copy, Debug)]
pub struct ChangePlan {
    /// Machines beyond those of the first group, which bounds how many replicas may be added.
    pub spares: usize,
    /// Whether the members are those of another group, in which the operator changes them; see
    /// [`synod_replica::Membership`].
    pub follows: bool,
    /// How many learners are added at the very beginning, to stay learners.
    pub learners: usize,
    /// Most changes that are asked for at once, perhaps at different replicas.
    pub burst_max: usize,
    /// How often a change is made for a version of the group that is over, or has not come yet.
    pub stale: Odds,
    /// How often a change whose outcome is not known is asked for again.
    pub again: Odds,
    /// Whether the protocol and election may change as well; otherwise more members are replaced.
    pub orders: bool,
    /// How often the change readmits a voter, preferably one that lost its memory.
    pub readmit: Odds,
    /// The time from the addition of a replica to its start.
    pub joins: Span,
}

impl ChangePlan {
    /// A plan without changes.
    pub const NONE: ChangePlan = ChangePlan {
        spares: 0,
        follows: false,
        learners: 0,
        burst_max: 0,
        stale: Odds::NEVER,
        again: Odds::NEVER,
        orders: false,
        readmit: Odds::NEVER,
        joins: (Duration::ZERO, Duration::ZERO),
    };
}

/// Which links work in a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topology {
    /// The links of one replica, which did not lead: with five replicas the leader loses its quorum, though
    /// the hub still hears it.
    Hub,
    /// The links of one replica, which lags; with more than three replicas, one other is cut off.
    LaggingHub,
    /// A link from each replica to the next.
    Chain,
    /// A link from each replica to the next, and one from the last to the first.
    Ring,
    /// All links but those of the leader.
    LeaderCutOff,
    /// All links but those between the leader and the third and the fourth replica, and between the second
    /// and the fifth (Driftwood 2023, section 2.3.5).
    Driftwood,
    /// Every second link.
    Some,
    /// Some links, and some in one direction only.
    OneWay,
}

impl Topology {
    /// All topologies.
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

/// The clients of a run.
#[derive(Clone, Copy, Debug)]
pub struct ClientPlan {
    /// How many clients have no session of their own.
    pub direct: usize,
    /// How many clients have a session, and send a command again to another replica.
    pub sessions: usize,
    /// How many outstanding commands a client with a session has.
    pub pipeline: usize,
    /// The number of keys.
    pub keys: u8,
    /// How many operations there are in all.
    pub operations: usize,
    /// Time between an answer and the next operation.
    pub think: Span,
    /// When a client gives an attempt up.
    pub timeout: Duration,
    /// How often a client gives a request up at once, while it is in flight or being executed.
    pub cancels: Odds,
    /// The most additional bytes of a value.
    pub padding_max: usize,
    /// How many reads accept whatever state a replica has.
    pub stale_reads: Odds,
    /// For how long after the last fault they go on before anybody looks whether all is well again.
    pub presses_on: Duration,
    /// How many of a hundred operations are about leases.
    pub leases: u8,
    /// Whether the run goes on, once all faults are over, until all leases have ended.
    pub outlives_leases: bool,
}

/// Most replicas that are added in a run.
pub const SPARES_MAX: usize = 4;

/// The most additional bytes of a value, where values are large.
const LARGE_PADDING: usize = 6_000;

/// About the largest snapshot of a run with small values.
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

    /// The election that a seed draws from those of a protocol. It is drawn separately, so that the rest of a
    /// seed's plan is the same with every election.
    #[must_use]
    pub fn draw_election(seed: u64, protocol: ProtocolKind) -> ElectionKind {
        let drawn = pick(&mut Rng::with_seed(seed ^ 0xe_1e_c7), &suspecting(protocol));
        latency_aware(protocol, drawn, Rng::with_seed(seed ^ 0x1a_7e).u8(0..3) == 0)
    }

    /// How batches are disseminated with a seed: in a quarter of all seeds by every replica, in a quarter by the leader
    /// with references to their origins.
    #[must_use]
    pub fn draw_dissemination(seed: u64) -> Dissemination {
        pick(
            &mut Rng::with_seed(seed ^ 0xd1_55_e0),
            &[
                Dissemination::Balanced,
                Dissemination::Leader,
                Dissemination::Leader,
                Dissemination::References,
            ],
        )
    }

    /// Whether the group of a seed begins with the state of a backup, if its family allows it: one of eight does.
    #[must_use]
    pub fn draw_backup(seed: u64) -> bool {
        Rng::with_seed(seed ^ 0xba_c4_0b).u8(0..8) == 0
    }

    /// The same plan with another dissemination.
    #[must_use]
    pub fn disseminated(mut self, dissemination: Dissemination) -> Plan {
        self.settings.consensus.dissemination = dissemination;
        self.own.iter_mut().for_each(|settings| settings.consensus.dissemination = dissemination);
        self
    }

    /// What a seed draws for a protocol with an election.
    #[must_use]
    pub fn draw_with(seed: u64, protocol: ProtocolKind, election: ElectionKind) -> Plan {
        Plan::draw_general(seed, protocol, election).of_family(Family::of(seed))
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
        draw_transfer(seed, protocol, &mut settings);
        let durability = if rng.u8(0..8) == 0 { Durability::Memory } else { Durability::Sync };
        let duration = between(rng, 2_000 * MS, 8_000 * MS).max(settings.consensus.election_timeout * 8);
        let mut clients = draw_clients(rng, duration, settings.consensus.election_timeout);
        draw_bytes(seed, &mut settings, &mut clients);
        // It is drawn separately, so that the rest of a seed's plan does not depend on it.
        let rng_of_leases = &mut Rng::with_seed(seed ^ 0x1e_a5_e5);
        clients.leases = pick(rng_of_leases, &[0, 0, 0, 30]);
        clients.outlives_leases = clients.leases > 0 && rng_of_leases.bool();
        keep_up(&mut settings, &network, &disk, &clients);
        let some_first = seed.is_multiple_of(3);
        let priorities = if some_first { (0..replicas).map(|_| rng.u8(0..3)).collect() } else { Vec::new() };
        let clock_drift_ppm = pick(rng, &[0, 100, 10_000, 50_000]);
        let timer_late = pick(rng, &[Duration::ZERO, 100 * US, 2 * MS]);
        let execute = pick(rng, &[(Duration::ZERO, 20 * US), (20 * US, 500 * US), (MS, 20 * MS)]);
        // It is drawn separately, so that the rest of a seed's plan does not depend on it.
        let turn_ends = pick(&mut Rng::with_seed(seed ^ 0x0_70_25), &[0, 0, 5, 50]);
        let burst = pick(rng, &[Duration::ZERO, Duration::ZERO, 50 * US]);
        let mut faults = draw_faults(rng, settings.consensus.election_timeout);
        // It is drawn separately, so that the rest of a seed's plan does not depend on it.
        let mut strange = Rng::with_seed(seed ^ 0x1d_e7_71);
        faults.weights.restore = pick(&mut strange, &[0, 0, 3, 12]);
        faults.weights.wipe = pick(&mut strange, &[0, 0, 2, 4]);
        draw_time(seed, &mut faults);
        // Changes are drawn last, and for every second seed: the others show a group that never changes.
        let mut changes = draw_changes(seed, settings.consensus.election_timeout, &mut faults.weights);
        let mut durability = draw_durability(seed, durability);
        let balanced = settings.consensus.dissemination == Dissemination::Balanced;
        if protocol.changes_voters_itself() && draw_raft(seed, &mut settings) && !balanced {
            let lasts = changes_within_epoch(seed, &mut changes, &mut faults.weights);
            durability = if lasts { Durability::Sync } else { durability };
        }
        let own = draw_own(seed, replicas + changes.spares, &settings, network.delay_max);
        let trials = if replicas >= 3 && seed.is_multiple_of(4) { 1 + (seed / 4 % 2) as u32 } else { 0 };
        let plan = Plan {
            seed,
            replicas,
            groups: 1,
            merging: None,
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
            turn_ends: Odds::percent(turn_ends),
            burst,
            faults,
            begins_with_backup: Plan::draw_backup(seed),
            births_later: Rng::with_seed(seed ^ 0xb1_47_45).u8(0..4) == 0,
            clients,
            watches: WatchPlan::draw(seed),
            settings,
            own,
            duration,
        };
        // Families make situations frequent that the other seeds hardly ever reach.
        let plan = match seed % 32 {
            _ if trials > 0 => plan.with_trials(trials),
            6 if protocol.recovers_itself() => plan.with_overlapping_recoveries(seed),
            7 => plan.with_forgotten_epochs(),
            _ => plan,
        };
        plan.fit_for_its_backup().fit_for_its_durability()
    }

    /// If the group begins with a backup, members lose snapshots. In half of these runs hardly anybody takes another,
    /// so that who lacks the backup's gets that one from another member, and not a later one.
    fn fit_for_its_backup(mut self) -> Plan {
        if !self.begins_with_backup || self.family == Family::Load {
            return self;
        }
        self.faults.weights.lose_snapshot = self.faults.weights.lose_snapshot.max(1);
        if Rng::with_seed(self.seed ^ 0x51_07_01).bool() {
            let all = std::iter::once(&mut self.settings).chain(&mut self.own);
            all.for_each(|settings| settings.snapshot_slots = 1_000);
        }
        self
    }

    /// Without what its protocol does not survive, and what cannot happen to replicas that never start again, which an
    /// operator replaces.
    fn fit_for_its_durability(mut self) -> Plan {
        let survives = self.settings.consensus.protocol.survives();
        if !survives.lost_logs {
            let weights = &mut self.faults.weights;
            // What a snapshot covers may be trimmed from the log, so a lost snapshot is a lost part of it.
            (weights.lose_log, weights.lose_snapshot) = (0, 0);
            (weights.restore, weights.wipe) = (0, 0);
            self.durability = Durability::Sync;
        }
        if !survives.lost_replicas && !self.durability.may_restart() {
            self.durability = Durability::Memory;
        }
        if self.durability.may_restart() {
            return self;
        }
        if self.trials > 0 {
            // A replica that stopped would be missing in every later trial.
            self.durability = Durability::Memory;
            return self;
        }
        let timeout = self.settings.consensus.election_timeout;
        if self.changes.burst_max == 0 {
            let operated = 1 | self.seed;
            self.changes = draw_changes(operated, timeout, &mut FaultWeights::default());
        }
        (self.changes.spares, self.changes.joins) = (SPARES_MAX, (Duration::ZERO, timeout / 4));
        self.replicas = self.replicas.max(3);
        self.faults.gap = (timeout / 8, timeout);
        self.duration = self.duration.max(timeout * 40);
        let weights = &mut self.faults.weights;
        (weights.lose_log, weights.lose_snapshot, weights.restore, weights.wipe) = (0, 0, 0, 0);
        (weights.crash, weights.change) = (weights.crash.max(6), weights.change.max(12));
        self
    }
}

/// Draws other durabilities than the two of which one was drawn with the rest. It is drawn separately, so
/// that the rest of a seed's plan does not depend on it.
fn draw_durability(seed: u64, drawn: Durability) -> Durability {
    let rng = &mut Rng::with_seed(seed ^ 0xd0_7a_b1);
    if drawn.writes() {
        match rng.u8(0..16) {
            0 => Durability::Async,
            1..4 => Durability::View,
            _ => drawn,
        }
    } else {
        pick(rng, &[drawn, Durability::CrashStop, Durability::CrashStop])
    }
}

/// Keeps enough slots for lagging replicas. A lagging replica never catches up if a newer snapshot always
/// replaces the one that it is receiving, or if slots come faster than it fetches them; a sensibly configured
/// server keeps more slots than that takes.
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
        // It has a generator of its own, so that the rest does not depend on it.
        damage: pick(&mut Rng::with_seed(rng.clone().u64(..)), &[Odds::NEVER, Odds::per_million(300)]),
        keep_max: pick(rng, &[0, 3, 1_000]),
    }
}

pub(crate) fn draw_settings(rng: &mut Rng, protocol: ProtocolKind, delay_max: Duration) -> Settings {
    // As on a sensibly configured server: well above a few round trips.
    let election_timeout = pick(rng, &[150 * MS, 300 * MS, 1_000 * MS]).max(delay_max * 12);
    let window_max = pick(rng, &[1, 2, 4, 16, 32]);
    let snapshot_slots = pick(rng, &[5, 20, 50, 1_000]);
    let snapshot_log_bytes = pick(rng, &[2_000, 1 << 20]);
    // It is drawn separately, so that the rest of a seed's plan does not depend on it.
    let reply_bytes_max = pick(&mut rng.clone(), &[150, 400, 1 << 20]);
    // A seed draws in this order.
    let mut consensus = Options::default();
    consensus.protocol = protocol;
    consensus.multipaxos.decision = pick(rng, &[Decision::Leader, Decision::Leader, Decision::All]);
    consensus.heartbeat_interval = election_timeout / pick(rng, &[3, 5, 10]);
    consensus.election_timeout = election_timeout;
    consensus.window_max = window_max;
    consensus.retransmit_after = (election_timeout / pick(rng, &[2, 5, 10])).max(delay_max * 2);
    consensus.announce_delay_max = pick(rng, &[Duration::ZERO, MS, election_timeout / 20]);
    consensus.page_bytes_max = pick(rng, &[1, 300, 1 << 20]);
    consensus.sequence_paxos = draw_optimisations(Rng::with_seed(rng.clone().u64(..)));
    consensus.kernel_paxos = draw_preparation(Rng::with_seed(rng.clone().u64(..) ^ 0xca_fa));
    consensus.rounds = draw_log_in_rounds(Rng::with_seed(rng.clone().u64(..) ^ 0x40_d5));
    consensus.ring = draw_ring(Rng::with_seed(rng.clone().u64(..) ^ 0x41_96));

    let mut settings = Settings::default();
    settings.consensus = consensus;
    let sessions = &mut settings.limits.sessions;
    sessions.clients_max = pick(rng, &[2, 5, 100]);
    sessions.outstanding_max = 64;
    sessions.session_reply_bytes_max = reply_bytes_max;
    sessions.reply_bytes_max = reply_bytes_max * 2;
    sessions.replica_outstanding_max = 1 << 12;
    sessions.idle_max = pick(rng, &[200 * MS, 5_000 * MS, 600_000 * MS]);
    settings.limits.request_bytes_max = REQUEST_BYTES_MIN;
    settings.batch_bytes_max = pick(rng, &[1, 300, 2_000, 64 << 10]);
    settings.batch_delay_max = pick(rng, &[Duration::ZERO, MS, 20 * MS]);
    settings.queue_bytes_max = pick(rng, &[2_000, 1 << 20]);
    settings.forward_window_max = pick(rng, &[1, 2, 8]);
    // Drawn beside the others, so that these are what they were without it.
    settings.paced = rng.clone().u8(..4) == 0;
    settings.request_timeout = election_timeout * pick(rng, &[2, 5]);
    settings.snapshot_slots = snapshot_slots;
    settings.snapshot_log_bytes = snapshot_log_bytes;
    settings.keep_slots = pick(rng, &[0, 3, 20, 1_000]);
    settings.keep_bytes = pick(rng, &[1_000, 1 << 20]);
    settings.kept_bytes_max = snapshot_log_bytes * pick(rng, &[4, 1_000]);
    settings.fetch_bytes_max = pick(rng, &[1, 500, 1 << 20]);
    settings.chunk_bytes_max = pick(rng, &[100, 1_000, 1 << 20]);
    settings.backlog_slots_max = pick(rng, &[5, 50, 1_000]);
    settings.backlog_bytes_max = 1 << 20;
    settings.undurable_bytes_max = 1 << 20;
    settings.held_bytes_max = 1 << 20;
    settings.caught_up_slots = pick(rng, &[0, 3, 100]);
    // A lagging replica that fetches slot by slot must be faster than the ticks of the clock.
    settings.clock_interval = pick(rng, &[100 * MS, 1_000 * MS]).max(delay_max * 6);
    settings
}

/// They have a generator of their own, so that the rest of a seed's plan does not depend on them.
fn draw_optimisations(mut rng: Rng) -> sequence_paxos::Tuning {
    let mut on = || rng.u8(0..4) > 0;
    let mut tuning = sequence_paxos::Tuning::default();
    tuning.batched_accepts = on();
    tuning.latest_decide = on();
    tuning.latest_accepted = on();
    tuning.max_accept_sync = on();
    tuning.head_start = on();
    tuning.decide_on_accept = on();
    tuning
}

/// They have a generator of their own, too.
fn draw_ring(mut rng: Rng) -> ring::Tuning {
    let mut tuning = ring::Tuning::default();
    tuning.decision = pick(&mut rng, &[RingDecision::Quorum, RingDecision::Quorum, RingDecision::Last]);
    tuning.order = pick(&mut rng, &[RingOrder::Role, RingOrder::Measured]);
    tuning.voters = pick(&mut rng, &[RingVoters::Propose, RingVoters::Propose, RingVoters::Accept]);
    tuning.learners = pick(&mut rng, &[RingLearners::CatchUp, RingLearners::Learn, RingLearners::Propose]);
    tuning.reserve = pick(&mut rng, &[None, None, Some(1), Some(16)]);
    tuning
}

/// It has a generator of its own, too.
fn draw_preparation(mut rng: Rng) -> kernel_paxos::Tuning {
    let mut tuning = kernel_paxos::Tuning::default();
    tuning.prepare =
        pick(&mut rng, &[Preparation::All, Preparation::All, Preparation::Ahead, Preparation::Each]);
    tuning
}

/// It has a generator of its own, too.
fn draw_log_in_rounds(mut rng: Rng) -> rounds::Tuning {
    use RoundsAlgorithm::{LastVoting3, LastVoting4, OneThirdRule};
    let mut tuning = rounds::Tuning::default();
    tuning.algorithm = pick(&mut rng, &[LastVoting3, LastVoting3, LastVoting4, OneThirdRule, OneThirdRule]);
    tuning.rounds =
        pick(&mut rng, &[RoundsKind::Swift, RoundsKind::Swift, RoundsKind::Swift, RoundsKind::Timed]);
    tuning
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

/// How batches and snapshots travel. It is drawn separately, so that the rest of a seed's plan does not depend on it.
fn draw_transfer(seed: u64, protocol: ProtocolKind, settings: &mut Settings) {
    let drawn = Plan::draw_dissemination(seed);
    let legal = protocol.disseminations();
    settings.consensus.dissemination = if legal.contains(&drawn) { drawn } else { legal[0] };
    if settings.consensus.dissemination == Dissemination::Balanced && seed.is_multiple_of(3) {
        // Replicas then wait longer for bodies that come by themselves than for a leader.
        settings.consensus.retransmit_after = settings.consensus.election_timeout * 2;
    }
    draw_bounds(seed, &mut settings.consensus.bounds);
    settings.state_transfer =
        pick(&mut Rng::with_seed(seed ^ 0xea_9e_12), &[StateTransfer::Pull, StateTransfer::Eager]);
}

/// For half of all seeds, draws how little a replica keeps that disseminates; separately.
fn draw_bounds(seed: u64, bounds: &mut dissemination::Bounds) {
    let rng = &mut Rng::with_seed(seed ^ 0xb0_0d_15);
    if rng.bool() {
        return;
    }
    bounds.parked_max = pick(rng, &[1, 4, bounds.parked_max]);
    bounds.held_bytes_max = pick(rng, &[20_000, 100_000, bounds.held_bytes_max]);
    bounds.answer_bytes_max = pick(rng, &[1, 1_000, bounds.answer_bytes_max]);
    bounds.recent_max = pick(rng, &[0, 4, bounds.recent_max]);
    bounds.recent_bytes_max = pick(rng, &[500, bounds.recent_bytes_max]);
}

/// Draws bounds in bytes and numbers, values that are large compared with them, and clients that give up at once;
/// separately.
fn draw_bytes(seed: u64, settings: &mut Settings, clients: &mut ClientPlan) {
    let rng = &mut Rng::with_seed(seed ^ 0xb0_07_d5);
    settings.backlog_bytes_max = pick(rng, &[300, 5_000, 1 << 20]);
    settings.undurable_bytes_max = pick(rng, &[2_000, 20_000, 1 << 20]);
    settings.held_bytes_max = pick(rng, &[6_000, 20_000, 1 << 20]);
    clients.cancels = pick(rng, &[Odds::NEVER, Odds::NEVER, Odds::NEVER, Odds::percent(10)]);
    settings.limits.sessions.outstanding_max = pick(&mut Rng::with_seed(seed ^ 0xfa_2a_4e), &[64, 64, 64, 3]);
    if rng.u8(0..6) == 0 {
        clients.padding_max = LARGE_PADDING;
    }
}

/// For every second pair of seeds, draws settings for each replica: those that docs/operating.md calls the
/// replica's. Time-outs stay near each other, as that page demands.
fn draw_own(seed: u64, replicas: usize, settings: &Settings, delay_max: Duration) -> Vec<Settings> {
    if (seed / 2).is_multiple_of(2) {
        return Vec::new();
    }
    let mut rng = Rng::with_seed(seed ^ 0x0_3b_e5);
    let mut draw = || {
        let other = draw_settings(&mut rng, settings.consensus.protocol, delay_max);
        // A seed draws in this order.
        let mut own = settings.clone();
        let consensus = &mut own.consensus;
        consensus.multipaxos = other.consensus.multipaxos;
        consensus.heartbeat_interval /= pick(&mut rng, &[1, 2]);
        consensus.election_timeout = consensus.election_timeout * pick(&mut rng, &[2, 3, 4]) / 2;
        consensus.window_max = other.consensus.window_max;
        consensus.retransmit_after = other.consensus.retransmit_after;
        consensus.announce_delay_max = other.consensus.announce_delay_max;
        consensus.page_bytes_max = other.consensus.page_bytes_max;
        consensus.sequence_paxos = other.consensus.sequence_paxos;
        // How entries reach the voters is the group's; each replica has its own bounds, and its own time.
        let rounds = draw_rounds(&mut rng.clone(), settings.consensus.election_timeout);
        let lazy = pick(&mut rng.clone(), &[consensus.raft.lazy_push, None, Some(0)]);
        let groups = consensus.raft;
        consensus.raft = draw_appends(&mut rng);
        (consensus.raft.round_interval, consensus.raft.round_fan_out) = rounds;
        consensus.raft.status_echoes = groups.status_echoes;
        consensus.raft.vote_gossip = groups.vote_gossip;
        consensus.raft.peer_repair = groups.peer_repair;
        consensus.raft.check_quorum = groups.check_quorum;
        consensus.raft.lazy_push = lazy;
        own.batch_bytes_max = other.batch_bytes_max;
        own.batch_delay_max = other.batch_delay_max;
        own.queue_bytes_max = other.queue_bytes_max;
        own.forward_window_max = other.forward_window_max;
        own.paced = other.paced;
        // It is as slow as the group's, or slower; `Settings::clock_interval` says why.
        own.clock_interval *= pick(&mut rng, &[1, 2]);
        own.fetch_bytes_max = other.fetch_bytes_max;
        own.state_transfer = pick(&mut rng, &[StateTransfer::Pull, StateTransfer::Eager]);
        own.backlog_slots_max = other.backlog_slots_max;
        own.caught_up_slots = other.caught_up_slots;
        own
    };
    (0..replicas).map(|_| draw()).collect()
}

/// Has voters change within an epoch, which stop-signs would prevent. Returns whether no log is lost: then nobody has
/// to be readmitted, so the epoch lasts. It is drawn separately.
fn changes_within_epoch(seed: u64, changes: &mut ChangePlan, weights: &mut FaultWeights) -> bool {
    (changes.orders, changes.spares) = (false, SPARES_MAX);
    weights.change *= 2;
    let lasts = Rng::with_seed(seed ^ 0x1a_57_e0).bool();
    if lasts {
        (changes.readmit, weights.lose_log) = (Odds::NEVER, 0);
    }
    lasts
}

/// Draws an operator for odd seeds.
fn draw_changes(seed: u64, election_timeout: Duration, weights: &mut FaultWeights) -> ChangePlan {
    if seed.is_multiple_of(2) {
        return ChangePlan::NONE;
    }
    let rng = &mut Rng::with_seed(seed ^ 0xc4_a9_6e);
    weights.change = pick(rng, &[2, 10, 40]);
    weights.transfer = pick(rng, &[0, 2, 5]);
    ChangePlan {
        spares: rng.usize(0..=SPARES_MAX),
        follows: false,
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
    // Operations are spread over about the first three quarters of the run.
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
        presses_on: Duration::ZERO,
        padding_max: pick(rng, &[0, 50, 400]),
        stale_reads: Odds::percent(5),
        leases: 0,
        outlives_leases: false,
    }
}

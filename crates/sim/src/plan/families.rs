//! Families of seeds: a situation that takes several things at once hardly ever occurs in a plan that draws
//! everything independently. A family changes the plan such that it occurs often. `docs/simulating.md` tells
//! how many seeds each has.

use std::{fmt, time::Duration};

use fastrand::Rng;

use super::{
    BridgePlan, ChangePlan, Durability, Ending, FaultWeights, FilesPlan, JointPlan, MS, Plan, SPARES_MAX, US,
    draw_changes, keep_up, pick,
};
use crate::{network::Wire, odds::Odds};

/// The subject of a seed's run. Most seeds draw everything independently. Situations that take several things
/// at once then hardly ever occur, and have a family of seeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// No particular subject.
    General,
    /// Five or seven voters, learners, and cuts across which only one replica carries decisions, while leaders change.
    Bridge,
    /// Leaders that sleep, or whose disks stall, for much longer than the others wait.
    Sleep,
    /// Candidates that take long to collect promises, while the promising replicas crash and lose their logs.
    Recovery,
    /// Groups that change all the time, among all other faults.
    Change,
    /// Groups that take their members from another one, at nodes that see late, or never, what that one decides.
    Follow,
    /// Clients that ask for more than can be ordered, while replicas crash and sleep, and long after.
    Load,
    /// Logs that rot: what is left of them is kept, and only what is lost comes from others. It runs only by name.
    Disk,
    /// Real files on disks that fail: what a crash leaves of them, and what a start makes of it. It runs only by name.
    Files,
}

impl Family {
    /// All families, with their names.
    pub const ALL: &'static [(&'static str, Family)] = &[
        ("general", Family::General),
        ("bridge", Family::Bridge),
        ("sleep", Family::Sleep),
        ("recovery", Family::Recovery),
        ("change", Family::Change),
        ("follow", Family::Follow),
        ("load", Family::Load),
        ("disk", Family::Disk),
        ("files", Family::Files),
    ];

    /// The family of a seed.
    #[must_use]
    pub fn of(seed: u64) -> Family {
        match Rng::with_seed(seed ^ 0xfa_41_17).u8(0..16) {
            0 => Family::Follow,
            1..8 => Family::General,
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

impl Plan {
    /// Changes the plan such that the family's subject occurs often.
    #[must_use]
    pub fn of_family(mut self, family: Family) -> Plan {
        let rng = &mut Rng::with_seed(self.seed ^ 0xb_1a_5e);
        let timeout = self.settings.consensus.election_timeout;
        // For how long clients think at most, where some slot is to be undecided always.
        let mut think_max = None;
        self.family = family;
        match family {
            Family::General => return self,
            Family::Bridge => think_max = Some(self.draw_bridges(rng)),
            Family::Sleep => self.draw_sleep(rng),
            Family::Recovery => think_max = self.draw_recoveries(rng),
            Family::Change => self.draw_changing_groups(rng),
            Family::Follow => self.draw_following_groups(rng),
            Family::Load => think_max = Some(self.draw_load(rng)),
            Family::Files => self.draw_failing_files(rng),
            Family::Disk => self.draw_rotting_logs(rng),
        }
        for settings in std::iter::once(&mut self.settings).chain(&mut self.own) {
            let consensus = &mut settings.consensus;
            consensus.retransmit_after = consensus.retransmit_after.max(self.network.delay_max * 2);
            keep_up(settings, &self.network, &self.disk, &self.clients);
        }
        // Each family brings its own faults.
        self.trials = 0;
        self.duration = self.duration.max(timeout * 12);
        self.clients.operations = self.clients.operations.max(150);
        self.clients.think = (Duration::ZERO, self.duration / 50);
        if let Some(think_max) = think_max {
            self.clients.operations = self.clients.operations.max(250);
            self.clients.think.1 = self.clients.think.1.min(think_max);
        }
        self.fit_for_its_backup().fit_for_its_durability()
    }

    /// The plan of [`Family::Bridge`]. Returns for how long clients think at most, so that some slot is always
    /// undecided.
    fn draw_bridges(&mut self, rng: &mut Rng) -> Duration {
        let timeout = self.settings.consensus.election_timeout;
        self.replicas = pick(rng, &[5, 5, 7]);
        self.durability = Durability::Sync;
        self.changes =
            ChangePlan { spares: 2, learners: pick(rng, &[1, 1, 2]), burst_max: 1, ..ChangePlan::NONE };
        self.faults.weights = FaultWeights {
            bridge: 6,
            change: 2,
            pause: rng.u32(0..2),
            crash: rng.u32(0..2),
            ..FaultWeights::default()
        };
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
        // A lagging replica learns slot by slot, many slots at once, or by a snapshot.
        self.settings.fetch_bytes_max = pick(rng, &[1, 1 << 20]);
        if rng.bool() {
            self.settings.snapshot_slots = pick(rng, &[2, 5]);
            (self.settings.keep_slots, self.settings.keep_bytes) = (0, 1_000);
            self.settings.chunk_bytes_max = 1 << 20;
            self.disk.snapshot = (Duration::ZERO, 50 * US);
        }
        if rng.u8(0..4) > 0 {
            self.some_are_patient();
            if self.settings.consensus.protocol.has_terms() && rng.u8(0..4) > 0 {
                self.elects_across_a_bridge();
            }
        }
        timeout / if self.faults.bridge.elects { 4 } else { 8 }
    }

    /// The plan of [`Family::Sleep`].
    fn draw_sleep(&mut self, rng: &mut Rng) {
        let timeout = self.settings.consensus.election_timeout;
        let weights = self.faults.weights;
        self.replicas = self.replicas.max(3);
        self.faults.weights = FaultWeights {
            pause: 4,
            stall: 3,
            crash: weights.crash.min(1),
            partial: weights.partial.min(1),
            change: weights.change.min(2),
            ..FaultWeights::default()
        };
        self.faults.leader = Odds::percent(80);
        self.faults.gap = (timeout, timeout * 6);
        self.faults.lasts = (timeout, timeout * pick(rng, &[4, 20]));
        if rng.u8(0..3) == 0 {
            self.outsleep_leases(timeout);
        }
    }

    /// Leaders sleep one after the other, each for longer than an election and the whole time of a lease take.
    fn outsleep_leases(&mut self, timeout: Duration) {
        self.faults.weights = FaultWeights { pause: 1, ..FaultWeights::default() };
        self.faults.leader = Odds::ALWAYS;
        self.faults.long_pauses = Odds::NEVER;
        self.faults.lasts = (timeout * 4 + Duration::from_secs(4), timeout * 4 + Duration::from_secs(6));
        self.faults.gap = (self.faults.lasts.1, self.faults.lasts.1 + timeout * 6);
        self.duration = self.faults.gap.1 * 2;
        self.clients.leases = 60;
    }

    /// The plan of [`Family::Load`]. Returns for how long clients think at most.
    fn draw_load(&mut self, rng: &mut Rng) -> Duration {
        let timeout = self.settings.consensus.election_timeout;
        self.replicas = self.replicas.max(3);
        self.own.clear();
        // Each commit takes long, and little is ordered with it.
        self.disk.sync = (5 * MS, pick(rng, &[20, 40]) * MS);
        self.settings.batch_bytes_max = pick(rng, &[1, 1, 300]);
        self.settings.consensus.window_max = pick(rng, &[1, 2, 5]);
        self.settings.forward_window_max = pick(rng, &[1, 2, 8]);
        self.settings.request_timeout = timeout * 2;
        self.settings.queue_bytes_max = 1 << 20;
        let weights = FaultWeights { crash: 2, pause: 1, stall: 1, split: 1, ..FaultWeights::default() };
        (self.faults.weights, self.faults.gap) = (weights, (timeout * 2, timeout * 10));
        self.changes = ChangePlan::NONE;
        self.clients.direct = rng.usize(16..=40);
        self.clients.operations = 1_500;
        self.clients.timeout = self.settings.request_timeout;
        self.clients.padding_max = self.clients.padding_max.min(50);
        self.clients.presses_on = Duration::from_secs(10);
        2 * MS
    }

    /// The plan of [`Family::Recovery`]. Returns for how long clients think at most, where some slot is to be undecided
    /// always.
    fn draw_recoveries(&mut self, rng: &mut Rng) -> Option<Duration> {
        let timeout = self.settings.consensus.election_timeout;
        let weights = self.faults.weights;
        let mut think_max = None;
        self.replicas = pick(rng, &[3, 5, 5, 7]);
        self.durability = Durability::Sync;
        self.settings.consensus.page_bytes_max = 1;
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
            ..FaultWeights::default()
        };
        self.faults.gap = (timeout / 8, timeout);
        self.faults.lasts = (timeout / 20, timeout);
        self.faults.any_step = Odds::per_million(1_000);
        if rng.bool() {
            // A candidate lacks much that others hold, so that promises take several pages while
            // their senders crash.
            self.faults.weights = FaultWeights {
                crash: 6,
                partial: 4,
                one_way: 3,
                transfer: 2,
                lose_log: 1,
                ..FaultWeights::default()
            };
            self.faults.between_pages = Odds::percent(10);
            self.settings.consensus.window_max = pick(rng, &[4, 16]);
            self.settings.snapshot_slots = pick(rng, &[2, 5, 50]);
            self.disk.snapshot = (Duration::ZERO, 50 * US);
            self.faults.leader = Odds::percent(80);
            self.faults.any_step = Odds::per_million(4_000);
            self.faults.lasts = (timeout / 50, timeout / 4);
            if self.settings.consensus.protocol.promises_sequence() {
                self.tellers_drop_what_they_held();
                think_max = Some(timeout / 8);
            }
        }
        think_max
    }

    /// The plan of [`Family::Change`].
    fn draw_changing_groups(&mut self, rng: &mut Rng) {
        let timeout = self.settings.consensus.election_timeout;
        self.replicas = pick(rng, &[3, 5, 5]);
        let mut weights = FaultWeights::default();
        let changes = draw_changes(1 | self.seed, timeout, &mut weights);
        self.changes = ChangePlan { spares: SPARES_MAX, learners: rng.usize(0..2), ..changes };
        if self.settings.consensus.protocol.changes_voters_itself() && rng.bool() {
            // A stop-sign would prevent changes of voters within an epoch.
            (self.changes.orders, self.changes.readmit) = (false, Odds::NEVER);
        }
        self.faults.bridge = BridgePlan {
            transfer: Odds::percent(75),
            stall: Odds::percent(20),
            rival: Odds::percent(60),
            epoch: Odds::percent(60),
            elects: false,
        };
        self.faults.joint = JointPlan { leader: Odds::percent(40), all: Odds::NEVER, wait_max: timeout / 50 };
        self.faults.weights = FaultWeights {
            change: 10,
            transfer: 2,
            partial: 3,
            bridge: 3,
            crash: 2,
            pause: 1,
            lose_log: rng.u32(0..2),
            ..FaultWeights::default()
        };
        self.faults.gap = (timeout / 8, timeout);
        self.faults.lasts = (timeout / 4, timeout * 2);
        self.settings.snapshot_slots = pick(rng, &[5, 20]);
        self.settings.keep_slots = pick(rng, &[0, 20]);
        if rng.bool() {
            self.some_are_patient();
        }
    }

    /// The plan of [`Family::Follow`].
    fn draw_following_groups(&mut self, rng: &mut Rng) {
        let timeout = self.settings.consensus.election_timeout;
        self.replicas = pick(rng, &[1, 2, 3, 3, 3, 4, 5, 5]);
        if !self.durability.may_restart() {
            self.durability = Durability::Sync;
        }
        // Only the first group of a cluster begins with a backup.
        self.begins_with_backup = false;
        let mut weights = FaultWeights::default();
        let changes = draw_changes(1 | self.seed, timeout, &mut weights);
        self.changes = ChangePlan { spares: SPARES_MAX, follows: true, ..changes };
        if self.settings.consensus.protocol.changes_voters_itself() && rng.bool() {
            // A stop-sign would prevent changes of voters within an epoch.
            (self.changes.orders, self.changes.readmit) = (false, Odds::NEVER);
        }
        self.faults.joint = JointPlan { leader: Odds::percent(40), all: Odds::NEVER, wait_max: timeout / 50 };
        self.faults.weights = FaultWeights {
            change: 16,
            transfer: 2,
            partial: 3,
            split: 1,
            crash: 3,
            pause: 1,
            stall: 1,
            lose_log: rng.u32(0..2),
            restore: pick(rng, &[0, 0, 1]),
            ..FaultWeights::default()
        };
        self.faults.gap = (timeout / 8, timeout);
        self.faults.lasts = (timeout / 4, timeout * 2);
        self.settings.snapshot_slots = pick(rng, &[5, 20]);
        self.settings.keep_slots = pick(rng, &[0, 20]);
        self.duration = self.duration.max(timeout * 30);
    }

    /// The plan of [`Family::Files`].
    fn draw_failing_files(&mut self, rng: &mut Rng) {
        let timeout = self.settings.consensus.election_timeout;
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
            ..FaultWeights::default()
        };
        self.faults.gap = (timeout / 8, timeout);
        self.faults.lasts = (timeout / 8, timeout);
        self.faults.any_step = Odds::per_million(pick(rng, &[0, 1_000]));
        // Segments fill up and are removed.
        self.clients.padding_max = pick(rng, &[50, 400]);
        self.settings.snapshot_slots = pick(rng, &[10, 100, 1_000]);
        self.settings.snapshot_log_bytes = 1 << 20;
        self.settings.keep_slots = pick(rng, &[0, 100, 1_000]);
        self.settings.fetch_bytes_max = pick(rng, &[1, 1 << 20]);
    }

    /// The plan of [`Family::Disk`].
    fn draw_rotting_logs(&mut self, rng: &mut Rng) {
        let timeout = self.settings.consensus.election_timeout;
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
            ..FaultWeights::default()
        };
        self.faults.gap = (timeout / 8, timeout);
        self.faults.lasts = (timeout / 8, timeout * 2);
        // Mostly there is a log and no snapshot.
        self.settings.snapshot_slots = pick(rng, &[10, 100, 1_000]);
        self.settings.keep_slots = pick(rng, &[0, 100, 1_000]);
        self.settings.fetch_bytes_max = pick(rng, &[1, 1 << 20]);
    }

    /// Gives some replicas longer time-outs than the others: as leaders they do not know for long that they
    /// are replaced.
    fn some_are_patient(&mut self) {
        let some = self.replicas / 2;
        let mut patient = self.settings.clone();
        patient.consensus.election_timeout *= 3;
        self.own = vec![patient; some];
        self.priorities = vec![1; some];
    }

    /// A leader that hands over proposes nothing until it gives up leading, where ballots are terms, so the next one
    /// proposes after everything that it proposed. For both to propose in one slot, the leader must have a long
    /// time-out, and be cut off for so long that the others elect another by themselves.
    fn elects_across_a_bridge(&mut self) {
        let timeout = self.settings.consensus.election_timeout;
        let epoch = self.faults.bridge.epoch;
        self.faults.bridge = BridgePlan { elects: true, epoch, ..BridgePlan::default() };
        (self.faults.weights.crash, self.faults.weights.pause) = (0, 0);
        self.faults.gap = (timeout, timeout * 3);
        self.faults.lasts = (timeout * 7 / 2, timeout * 4);
        self.settings.consensus.window_max = 16;
        // It learns by snapshots, which are frequent, and from slots of which some are gone.
        (self.settings.snapshot_slots, self.settings.keep_slots, self.settings.keep_bytes) = (2, 0, 1_000);
        (self.settings.chunk_bytes_max, self.settings.fetch_bytes_max) = (1 << 20, 1 << 20);
        self.disk.snapshot = (Duration::ZERO, 50 * US);
        self.some_are_patient();
        // Clients send commands for as long as there are cuts.
        self.duration = self.duration.max(timeout * 18);
        self.clients.operations = self.clients.operations.max(400);
    }

    /// Lagging candidates receive sequences in pages from replicas that hold more than their snapshots leave
    /// them when they start again, and that crash between two pages.
    fn tellers_drop_what_they_held(&mut self) {
        let timeout = self.settings.consensus.election_timeout;
        self.settings.snapshot_slots = 2;
        (self.settings.keep_slots, self.settings.keep_bytes) = (1_000, 1 << 20);
        self.settings.fetch_bytes_max = 1 << 20;
        self.settings.consensus.window_max = 16;
        (self.network.delay_min, self.network.delay_max) = (timeout / 50, timeout / 12);
        self.disk.snapshot = (Duration::ZERO, timeout / 1_000);
        self.disk.trim_waits = Odds::NEVER;
        // Any replica may be asked to lead, also a lagging one.
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

    /// Adds trials, and adapts the plan such that a cluster without faults answers at once, since a trial has
    /// bounds on time.
    #[must_use]
    pub fn with_trials(mut self, trials: u32) -> Plan {
        let consensus = &mut self.settings.consensus;
        let timeout = consensus.election_timeout;
        self.trials = trials;
        self.own.clear();
        // The time of a change would count as the election's.
        self.changes = ChangePlan::NONE;
        (self.faults.weights.change, self.faults.weights.transfer) = (0, 0);
        // A replica that lost all its data would be missing in every later trial.
        self.faults.weights.wipe = 0;
        self.duration = self.duration.max(crate::world::trial_duration(trials, timeout));
        self.network.delay_max = self.network.delay_max.min(timeout / 24);
        self.network.delay_min = self.network.delay_min.min(self.network.delay_max);
        self.disk.sync.1 = self.disk.sync.1.min(timeout / 24).max(self.disk.sync.0);
        self.execute = (Duration::ZERO, 20 * US);
        self.turn_ends = Odds::NEVER;
        consensus.retransmit_after = consensus.retransmit_after.min(timeout / 4);
        consensus.page_bytes_max = 1 << 20;
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
        // The clients may have finished; then ticks of the replicated clock show that a leader serves.
        self.settings.clock_interval = self.settings.clock_interval.min(timeout / 3);
        self
    }

    /// Makes it a family of its own: five or seven replicas, with logs in memory or lost, of which several
    /// are restarted within one time-out, while leaders change.
    #[must_use]
    pub fn with_overlapping_recoveries(mut self, seed: u64) -> Plan {
        let rng = &mut Rng::with_seed(seed ^ 0x0_7e_1a);
        let timeout = self.settings.consensus.election_timeout;
        self.replicas = pick(rng, &[5, 5, 7]);
        let drawn = pick(rng, &[Durability::Memory, Durability::Memory, Durability::Sync]);
        if self.durability.keeps_votes(Ending::Machine) || !self.durability.writes() {
            self.durability = drawn;
        }
        let (lose_log, crash) = if self.durability.keeps_votes(Ending::Machine) { (8, 1) } else { (0, 8) };
        self.faults.weights =
            FaultWeights { crash, lose_log, partial: 2, one_way: 1, ..FaultWeights::default() };
        // Some answers are lost, and asked for again late, so that a replica recovers while those that
        // answered it crash.
        self.faults.gap = (timeout / 20, timeout / 4);
        self.faults.lasts = (timeout / 100, timeout / 10);
        self.faults.leader = Odds::percent(10);
        self.network.wire = Wire::Datagram;
        self.network.loss = Odds::percent(pick(rng, &[20, 40]));
        self.network.delay_min = timeout / 100;
        self.network.delay_max = timeout / 12;
        self.settings.consensus.retransmit_after = timeout / 2;
        // The other parts of a recovery take little time.
        (self.settings.fetch_bytes_max, self.settings.chunk_bytes_max) = (1 << 20, 1 << 20);
        self.clients.operations = self.clients.operations.max(100);
        self
    }

    /// The same over links as of the transport `udp`: sessions, in which small messages travel as datagrams. How small
    /// is drawn, down to what only signs of life fit.
    #[must_use]
    pub fn with_datagrams_in_sessions(mut self) -> Plan {
        let rng = &mut Rng::with_seed(self.seed ^ 0x0d_97);
        self.network.wire = Wire::Mixed(pick(rng, &[60, 200, 1436, 1436]));
        self
    }

    /// Makes it a family of its own: a replica without memory comes to a later epoch by a snapshot, and
    /// crashes within the first sync after that, or loses the snapshot.
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
}

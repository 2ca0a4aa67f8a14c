//! What a seed draws: groups and their protocols, settings, network, disks, clients and faults.

use std::time::Duration;

use fastrand::Rng;
use synod_consensus::{Dissemination, ElectionKind, Overrides, ProtocolKind};
use synod_kv::upkeep::{Compaction, UpkeepConfig};
use synod_replica::{Change, Choice, Group, Others, Settings, Skips, Take};
use synod_wire::{GroupId, ReplicaId};

use super::upkeep::FASTER;
use crate::plan::{Plan, WatchPlan, draw_settings, suspecting};

const US: Duration = Duration::from_micros(1);
const MS: Duration = Duration::from_millis(1);
const NEVER: Duration = Duration::from_secs(3_600);

/// The plan of a run.
#[derive(Clone, Debug)]
pub struct MergedPlan {
    pub(super) seed: u64,
    pub(super) nodes: usize,
    /// The settings of each group; they differ in how a group orders.
    pub(super) groups: Vec<Settings>,
    pub(super) take: Take,
    pub(super) skips: Skips,
    pub(super) delay: (Duration, Duration),
    pub(super) sync: (Duration, Duration),
    pub(super) execute: (Duration, Duration),
    pub(super) snapshot: (Duration, Duration),
    pub(super) timer_late: Duration,
    /// Clients without and with a session.
    pub(super) direct: usize,
    pub(super) sessions: usize,
    pub(super) think: (Duration, Duration),
    pub(super) timeout: Duration,
    pub(super) operations: usize,
    pub(super) keys: u8,
    pub(super) padding_max: usize,
    /// The groups that clients ask; the others are idle.
    pub(super) busy: Vec<u16>,
    pub(super) fault_interval: Duration,
    pub(super) faults: Weights,
    pub(super) duration: Duration,
    /// Whether groups change their voters, too, where they would change their protocols.
    pub(super) places: bool,
    /// This many nodes may join; nodes leave only where some may join.
    pub(super) joiners: usize,
    /// What keepers of the store do, in times that are [faster](super::upkeep::FASTER) than those of the world.
    pub(super) upkeep: Option<UpkeepConfig>,
    /// How often somebody wants a node to join or to leave.
    pub(super) member_interval: Duration,
    /// How many of a hundred operations are about leases.
    pub(super) leases: u8,
    pub(super) watches: WatchPlan,
    /// Whether the groups begin with the state of a backup, which is slot 1 of the first one.
    pub(super) begins_with_backup: bool,
    #[cfg(feature = "planted-bugs")]
    pub(super) planted: Option<synod_replica::MergeBug>,
}

/// How often each kind of fault is drawn, relative to the others.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Weights {
    pub crash: u32,
    pub crash_all: u32,
    pub pause: u32,
    /// A node is cut off from all others.
    pub isolate: u32,
    /// The link of two nodes is cut.
    pub cut: u32,
    /// A session breaks, and begins again.
    pub reset: u32,
    /// The messages of one group on a link come late.
    pub hold: u32,
    pub stall: u32,
    /// A group changes its protocol or its voters.
    pub change: u32,
}

fn pick<T: Copy>(rng: &mut Rng, from: &[T]) -> T {
    from[rng.usize(0..from.len())]
}

impl MergedPlan {
    /// What a seed draws.
    #[must_use]
    pub fn draw(seed: u64) -> MergedPlan {
        let mut rng = Rng::with_seed(seed ^ 0x3e_26_ed);
        let rng = &mut rng;
        let nodes = pick(rng, &[3, 3, 3, 5]);
        let count = rng.usize(2..=4);
        let delay_min = pick(rng, &[20 * US, 100 * US, MS]);
        let delay = (delay_min, delay_min * pick(rng, &[2, 5]));
        let same = rng.bool();
        let (protocol, _) = draw_order(rng);
        let mut base = draw_settings(rng, protocol, delay.1);
        base.merged = true;
        base.snapshot_slots = pick(rng, &[3, 5, 20, 1_000]);
        base.keep_slots = pick(rng, &[0, 0, 3, 20]);
        base.chunk_bytes_max = pick(rng, &[1_500, 1 << 20]);
        base.fetch_bytes_max = pick(rng, &[500, 1 << 20]);
        base.batch_bytes_max = pick(rng, &[1, 300, 64 << 10]);
        base.queue_bytes_max = 1 << 20;
        let clock_interval = pick(rng, &[500 * MS, 5_000 * MS, NEVER]);
        base.clock_interval = NEVER;
        base.limits.sessions.idle_max = pick(rng, &[5_000 * MS, 600_000 * MS]);
        let groups = (0..count).map(|_| {
            let mut settings = base.clone();
            let (other, election) = draw_order(rng);
            let consensus = &mut settings.consensus;
            consensus.protocol = if same { protocol } else { other };
            let accepted = consensus.protocol.elections();
            consensus.election = if accepted.contains(&election) { election } else { accepted[0] };
            consensus.dissemination = pick(
                rng,
                &[
                    Dissemination::Leader,
                    Dissemination::Leader,
                    Dissemination::References,
                    Dissemination::Balanced,
                ],
            );
            settings
        });
        let mut groups: Vec<Settings> = groups.collect();
        // The groups have one clock, and the first one moves it.
        groups[0].clock_interval = clock_interval;
        let take = Take::new(rng.u32(1..=4)).expect("at least 1");
        let skips =
            pick(rng, &[Skips::Follow, Skips::Follow, Skips::Demand, Skips::Lambda(20), Skips::Lambda(200)]);
        let sync_min = pick(rng, &[20 * US, 200 * US, 2 * MS]);
        let mut weight = |most: u32| if rng.u8(0..3) > 0 { rng.u32(1..=most) } else { 0 };
        let faults = Weights {
            crash: weight(10),
            crash_all: weight(2),
            pause: weight(5),
            isolate: weight(6),
            cut: weight(5),
            reset: weight(4),
            hold: weight(5),
            stall: weight(4),
            change: weight(4),
        };
        let everybody = rng.u8(0..3) > 0;
        let busy = (0..count as u16).filter(|group| *group == 0 || everybody || rng.bool()).collect();
        let election_timeout = base.consensus.election_timeout;
        let duration = (election_timeout * rng.u32(8..20)).min(8_000 * MS);
        let operations = rng.usize(30..130);
        let busyness = duration / operations as u32 * 3;
        MergedPlan {
            seed,
            nodes,
            groups,
            take,
            skips,
            delay,
            sync: (sync_min, sync_min * pick(rng, &[1, 5, 20])),
            execute: pick(rng, &[(Duration::ZERO, 20 * US), (20 * US, 500 * US), (MS, 20 * MS)]),
            snapshot: pick(rng, &[(Duration::ZERO, 50 * US), (MS, 20 * MS), (20 * MS, 200 * MS)]),
            timer_late: pick(rng, &[Duration::ZERO, 2 * MS]),
            direct: rng.usize(1..4),
            sessions: rng.usize(0..3),
            think: (Duration::ZERO, busyness),
            timeout: base.request_timeout + 50 * MS,
            operations,
            keys: rng.u8(2..6),
            padding_max: pick(rng, &[0, 0, 300]),
            busy,
            fault_interval: duration / rng.u32(4..20),
            faults,
            duration,
            places: seed % 4 >= 2,
            // Every other seed. It is drawn from the seed itself, so that the other ones are as they were.
            joiners: if seed % 2 == 1 { 1 + usize::try_from(seed / 2 % 3).expect("few") } else { 0 },
            upkeep: draw_upkeep(seed),
            member_interval: duration / (6 + u32::try_from(seed / 6 % 8).expect("few")),
            // It is drawn apart, as that of watchers, so that other seeds are as they were.
            leases: pick(&mut Rng::with_seed(seed ^ 0x1e_a5_e5), &[0, 0, 30]),
            watches: WatchPlan::draw(seed),
            // A keeper would be told of revisions that are older than the world.
            begins_with_backup: Plan::draw_backup(seed) && draw_upkeep(seed).is_none(),
            #[cfg(feature = "planted-bugs")]
            planted: None,
        }
    }

    /// Two groups in which nothing goes wrong, one of them idle, and many clients of the other; nobody suspects a
    /// leader that is silent for a second.
    #[must_use]
    pub fn with_an_idle_group(skips: Skips) -> MergedPlan {
        let mut settings = Settings::default();
        settings.merged = true;
        settings.consensus.election_timeout = 4_000 * MS;
        settings.clock_interval = NEVER;
        MergedPlan {
            nodes: 3,
            groups: vec![settings.clone(), settings],
            take: Take::MIN,
            skips,
            delay: (100 * US, 200 * US),
            sync: (200 * US, 300 * US),
            execute: (Duration::ZERO, 20 * US),
            timer_late: Duration::ZERO,
            direct: 60,
            sessions: 0,
            think: (Duration::ZERO, 600 * MS),
            timeout: 60_000 * MS,
            operations: usize::MAX,
            busy: vec![0],
            faults: Weights::default(),
            joiners: 0,
            upkeep: None,
            leases: 0,
            watches: WatchPlan::NONE,
            begins_with_backup: false,
            ..MergedPlan::draw(0)
        }
    }

    /// The same with a planted bug.
    #[cfg(feature = "planted-bugs")]
    #[must_use]
    pub fn with(self, bug: synod_replica::MergeBug) -> MergedPlan {
        MergedPlan { planted: Some(bug), ..self }
    }

    pub(super) fn base(&self) -> &Settings {
        &self.groups[0]
    }

    /// The groups as they begin.
    pub(super) fn first_groups(&self) -> Vec<Group> {
        let ids = || (1..=self.nodes as u64).map(ReplicaId);
        let group = |(number, of): (usize, &Settings)| {
            let group = Group::of(&of.consensus, ids()).limited(of.limits);
            match number {
                0 if self.begins_with_backup => group.after_backup().followed(),
                0 => group.followed(),
                _ => group.following(1),
            }
        };
        self.groups.iter().enumerate().map(group).collect()
    }
}

/// Every third seed has keepers. What they do is drawn from the seed itself, so that the other seeds are as they were.
fn draw_upkeep(seed: u64) -> Option<UpkeepConfig> {
    let rng = &mut Rng::with_seed(seed ^ 0x6b_65_70);
    let drawn = |rng: &mut Rng, low, high| MS * rng.u32(low..high) * FASTER;
    let compaction = match rng.u8(0..4) {
        0 => Compaction::Revision(rng.i64(0..10)),
        _ => Compaction::Periodic(drawn(rng, 50, 500)),
    };
    let (check, compact_check) = (drawn(rng, 20, 200), drawn(rng, 20, 200));
    (seed % 3 == 2).then_some(UpkeepConfig {
        compaction: Some(compaction),
        check_interval: Some(check),
        compact_check_interval: Some(compact_check),
    })
}

fn draw_order(rng: &mut Rng) -> (ProtocolKind, ElectionKind) {
    let (_, protocol) = pick(rng, ProtocolKind::ALL);
    (protocol, pick(rng, &suspecting(protocol)))
}

/// Another protocol for a group, or other voters if it is not the first group.
pub(super) fn draw_change(rng: &mut Rng, group: GroupId, plan: &MergedPlan, first: &Group) -> Change {
    if plan.places && group != GroupId::FIRST && rng.bool() {
        let mut voters: Vec<_> = first.voters().collect();
        rng.shuffle(&mut voters);
        voters.truncate(rng.usize(1..=voters.len()));
        return Change::Place((rng.u8(0..4) > 0).then(|| Choice::of(voters, Others::Learn)));
    }
    let (protocol, election) = draw_order(rng);
    Change::Order { protocol, election, overrides: Overrides::default() }
}

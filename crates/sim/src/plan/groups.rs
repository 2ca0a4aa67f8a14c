//! Several groups on each node: which take part in a run, and how they are merged into one order.

use std::time::Duration;

use fastrand::Rng;
use synod_consensus::{ElectionKind, ProtocolKind};
use synod_replica::{Skips, Take};
use synod_wire::GroupId;

#[cfg(feature = "kv")]
use super::{ChangePlan, ClientPlan, DiskPlan, FaultPlan, MS, NetworkPlan, Odds, Settings, US, Wire};
use super::{Durability, Plan, WatchPlan, pick};

/// How groups are merged into one order.
#[derive(Clone, Debug)]
pub struct Merging {
    /// How many batches of a group come in a row.
    pub take: Take,
    /// How groups skip.
    pub skips: Skips,
    /// The groups that clients ask; the others are idle.
    pub busy: Vec<GroupId>,
    /// A bug of the merge.
    #[cfg(feature = "planted-bugs")]
    pub planted: Option<synod_replica::MergeBug>,
}

impl Merging {
    /// What a seed draws for this many groups.
    fn draw(seed: u64, groups: usize) -> Merging {
        let rng = &mut Rng::with_seed(seed ^ 0x3e_26_ed);
        let take = Take::new(rng.u32(1..=4)).expect("at least 1");
        let skips =
            pick(rng, &[Skips::Follow, Skips::Follow, Skips::Demand, Skips::Lambda(20), Skips::Lambda(200)]);
        let everybody = rng.u8(0..3) > 0;
        let busy = (0..groups as u16).filter(|group| *group == 0 || everybody || rng.bool());
        Merging {
            take,
            skips,
            busy: busy.map(GroupId).collect(),
            #[cfg(feature = "planted-bugs")]
            planted: None,
        }
    }
}

impl Plan {
    /// The same with this many groups on each node, of which the others follow the first one. What rests on one group
    /// is left out: leases, those who watch, trials, backups, and real files.
    ///
    /// # Panics
    /// There is no group.
    #[must_use]
    pub fn of_groups(mut self, groups: usize) -> Plan {
        assert!(groups > 0, "a node hosts a group");
        self.groups = groups;
        if groups > 1 {
            (self.begins_with_backup, self.disk.files, self.trials) = (false, None, 0);
            (self.clients.leases, self.clients.outlives_leases) = (0, false);
            self.watches = WatchPlan::NONE;
            self.changes.follows = false;
        }
        self
    }

    /// The same with this many groups on each node, which are merged into one order. They have one state machine, so
    /// clients use leases, and are watched, as with one group.
    ///
    /// # Panics
    /// There are not several groups.
    #[must_use]
    pub fn merging(self, groups: usize) -> Plan {
        assert!(groups > 1, "what is merged is several groups");
        let (clients, watches, backup) = (self.clients, self.watches, self.begins_with_backup);
        let mut plan = self.of_groups(groups);
        (plan.clients, plan.watches, plan.begins_with_backup) = (clients, watches, backup);
        plan.merging = Some(Merging::draw(plan.seed, groups));
        std::iter::once(&mut plan.settings).chain(&mut plan.own).for_each(|settings| settings.merged = true);
        plan
    }

    /// What a seed draws where groups are merged: any protocol, and how many groups there are.
    #[must_use]
    pub fn draw_merging(seed: u64) -> Plan {
        let rng = &mut Rng::with_seed(seed ^ 0x3e_26_e5);
        let (_, protocol) = pick(rng, ProtocolKind::ALL);
        Plan::draw(seed, protocol).merging(rng.usize(2..=4))
    }

    /// The same with a bug in the merge.
    ///
    /// # Panics
    /// Nothing is merged.
    #[cfg(feature = "planted-bugs")]
    #[must_use]
    pub fn with_merge_bug(mut self, bug: synod_replica::MergeBug) -> Plan {
        self.merging.as_mut().expect("groups are merged").planted = Some(bug);
        self
    }

    /// Two merged groups in which nothing goes wrong, one of them idle, and many clients of the other; nobody suspects
    /// a leader that is silent for a second.
    #[cfg(feature = "kv")]
    #[must_use]
    pub fn with_an_idle_group(skips: Skips) -> Plan {
        let drawn = Plan::draw(0, ProtocolKind::MultiPaxos);
        let mut settings = Settings::default();
        settings.consensus.election_timeout = 4_000 * MS;
        settings.clock_interval = Duration::from_secs(3_600);
        let network = NetworkPlan {
            wire: Wire::Stream,
            delay_min: 100 * US,
            delay_max: 200 * US,
            slow: Odds::NEVER,
            reset: Odds::NEVER,
            damage: Odds::NEVER,
            ..drawn.network
        };
        let disk = DiskPlan { sync: (200 * US, 300 * US), snapshot_fails: Odds::NEVER, ..drawn.disk };
        let clients = ClientPlan {
            direct: 60,
            sessions: 0,
            think: (Duration::ZERO, 600 * MS),
            timeout: Duration::from_secs(60),
            operations: usize::MAX,
            leases: 0,
            cancels: Odds::NEVER,
            ..drawn.clients
        };
        let plan = Plan {
            replicas: 3,
            settings,
            own: Vec::new(),
            // Each group has a leader of its own.
            priorities: vec![1, 0, 0],
            durability: Durability::Sync,
            network,
            disk,
            timer_late: Duration::ZERO,
            execute: (Duration::ZERO, 20 * US),
            burst: Duration::ZERO,
            faults: FaultPlan { any_step: Odds::NEVER, ..drawn.faults },
            changes: ChangePlan::NONE,
            begins_with_backup: false,
            births_later: false,
            clients,
            watches: WatchPlan::NONE,
            ..drawn
        };
        let mut plan = plan.merging(2);
        if let Some(merging) = &mut plan.merging {
            (merging.skips, merging.take, merging.busy) = (skips, Take::MIN, vec![GroupId::FIRST]);
        }
        plan
    }

    /// The priority of a replica, by index, in a group. With several groups each node prefers to lead another one, as
    /// nodes do that were told nothing.
    pub(crate) fn priority(&self, of: usize, group: GroupId) -> u8 {
        if self.groups > 1 && self.priorities.is_empty() {
            let is_its_turn = of < self.replicas && usize::from(group.0) % self.replicas == of;
            return u8::from(is_its_turn && self.settings.consensus.election == ElectionKind::Ballot);
        }
        let count = self.priorities.len().max(1);
        let at = if of < count { (of + usize::from(group.0)) % count } else { of };
        self.priorities.get(at).copied().unwrap_or(0)
    }

    /// How many state machines each node has.
    pub(crate) fn states(&self) -> usize {
        if self.merging.is_some() { 1 } else { self.groups }
    }

    /// The group by which the state machine of a group is named.
    pub(crate) fn state_of(&self, group: GroupId) -> GroupId {
        if self.merging.is_some() { GroupId::FIRST } else { group }
    }
}

//! Several groups on each node: which take part in a run, and how they are merged into one order.

use std::time::Duration;

use fastrand::Rng;
use synod_consensus::{ElectionKind, ProtocolKind};
use synod_replica::{Skips, Take};
use synod_wire::GroupId;

#[cfg(feature = "kv")]
use super::{ChangePlan, MS, US, Wire};
use super::{Plan, WatchPlan, pick};
#[cfg(feature = "kv")]
use crate::scenario::{CASTS, calm_plan};

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
        let mut plan = calm_plan(3, CASTS[0]);
        plan.settings.consensus.election_timeout = 4_000 * MS;
        // Each group has a leader of its own.
        plan.priorities = vec![1, 0, 0];
        plan.network.wire = Wire::Stream;
        (plan.network.delay_min, plan.network.delay_max) = (100 * US, 200 * US);
        (plan.disk.sync, plan.execute) = ((200 * US, 300 * US), (Duration::ZERO, 20 * US));
        plan.turn_ends = crate::odds::Odds::NEVER;
        plan.changes = ChangePlan::NONE;
        (plan.clients.direct, plan.clients.operations) = (60, usize::MAX);
        (plan.clients.think, plan.clients.timeout) = ((Duration::ZERO, 600 * MS), Duration::from_secs(60));
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

//! Several groups on each node: which take part in a run, and how they are merged into one order.

use fastrand::Rng;
use synod_replica::{Skips, Take};
use synod_wire::GroupId;

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
    /// is left out: leases, those who watch, trials, backups, real files, and the loss of what disks hold.
    ///
    /// # Panics
    /// There is no group.
    #[must_use]
    pub fn of_groups(mut self, groups: usize) -> Plan {
        assert!(groups > 0, "a node hosts a group");
        self.groups = groups;
        if groups > 1 {
            let weights = &mut self.faults.weights;
            (weights.lose_log, weights.lose_snapshot, weights.restore, weights.wipe) = (0, 0, 0, 0);
            (self.begins_with_backup, self.disk.files, self.trials) = (false, None, 0);
            (self.clients.leases, self.clients.outlives_leases) = (0, false);
            (self.watches, self.durability) = (WatchPlan::NONE, Durability::Sync);
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
        let (clients, watches) = (self.clients, self.watches);
        let mut plan = self.of_groups(groups);
        (plan.clients, plan.watches) = (clients, watches);
        plan.merging = Some(Merging::draw(plan.seed, groups));
        std::iter::once(&mut plan.settings).chain(&mut plan.own).for_each(|settings| settings.merged = true);
        plan
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

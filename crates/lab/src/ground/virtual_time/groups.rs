//! Several groups on the machines of a run (Benz 2013, sections 3.1 and 4.3.2).

use hdrhistogram::Histogram;
use synod_replica::{Group, MemberInfo, Settings, Skips, Standing, Take};
use synod_wire::{GroupId, ReplicaId, Time};

use super::Usage;
use crate::ground::{BIN, Load, Outcome, Setup};

/// The groups of a run.
#[derive(Clone, Debug)]
pub struct Groups {
    /// The groups, by their numbers. All loads are measured in the same window, that of the first group.
    pub groups: Vec<Seats>,
    /// How the groups are merged into one order; `None` if each is executed by itself everywhere.
    pub merge: Option<Merging>,
}

/// The machines that take part in a group, by their places, and what its clients do.
#[derive(Clone, Debug)]
pub struct Seats {
    /// The machines whose replicas vote.
    pub voters: Vec<usize>,
    /// The machines whose replicas only learn.
    pub learners: Vec<usize>,
    /// The voter that is preferred as leader; `None` for the priorities of the setup.
    pub leader: Option<usize>,
    /// The load.
    pub load: Load,
}

/// How groups are merged.
#[derive(Clone, Debug)]
pub struct Merging {
    /// How many batches of a group come in a row.
    pub take: Take,
    /// When a group skips. A replica knows the positions of the groups that its machine hosts, and of no others.
    pub skips: Skips,
    /// The machines that execute all groups which they host in one order. The others execute each group by itself.
    pub at: Vec<usize>,
}

impl Groups {
    /// One group of all machines.
    pub(super) fn single(setup: &Setup, load: &Load) -> Groups {
        let voters = (0..setup.replicas).collect();
        let seats = Seats { voters, learners: Vec::new(), leader: None, load: load.clone() };
        Groups { groups: vec![seats], merge: None }
    }

    /// The groups that the machine at a place hosts.
    pub(super) fn hosted_at(&self, place: usize) -> impl Iterator<Item = GroupId> + '_ {
        let groups = (0u16..).map(GroupId).zip(&self.groups);
        groups.filter(move |(_, seats)| seats.has(place)).map(|(group, _)| group)
    }

    /// Whether the machine at a place executes the groups that it hosts in one order.
    pub(super) fn merges_at(&self, place: usize) -> bool {
        self.merge.as_ref().is_some_and(|merge| merge.at.contains(&place))
    }
}

impl Seats {
    fn has(&self, place: usize) -> bool {
        self.voters.contains(&place) || self.learners.contains(&place)
    }

    /// The group as it begins. The machine at a place is the replica with the next number.
    pub(super) fn group(&self, settings: &Settings) -> Group {
        let members = self.voters.iter().chain(&self.learners).map(|&place| {
            let id = ReplicaId(place as u64 + 1);
            (id, MemberInfo::new(format!("r{}", id.0), Vec::new()))
        });
        let mut group = Group::first(&settings.consensus, members).limited(settings.limits);
        for member in &mut group.members {
            if self.learners.contains(&(member.id.0 as usize - 1)) {
                member.standing = Standing::Learner(synod_replica::Goal::Learn);
            }
        }
        group
    }
}

/// The outcome of a run of several groups.
#[derive(Debug)]
pub struct Ran {
    /// What came of the load of each group.
    pub groups: Vec<Outcome>,
    /// What the replicas of each group sent each other in the window.
    pub sent: Vec<Sent>,
    /// What was executed in one order in the window: for each machine that does so, and each group that it hosts.
    pub merged: Vec<Merged>,
    /// What each machine did in the window, by its place.
    pub usage: Vec<Usage>,
}

/// What the replicas of a group sent each other in the window.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sent {
    /// Their messages.
    pub messages: u64,
    /// The bytes of these.
    pub bytes: u64,
    /// Skips that they proposed.
    pub skips: u64,
}

/// What a machine executed of a group in one order with other groups.
#[derive(Debug)]
pub struct Merged {
    /// The place of the machine.
    pub place: usize,
    /// The group.
    pub group: usize,
    /// Nanoseconds from when a client proposed a command until it was executed here.
    pub latency: Histogram<u64>,
    /// Batches that were learned and not executed, in consecutive tenths of a second of the window: the most that
    /// were seen, every ten milliseconds.
    pub waiting: Vec<u64>,
}

impl Merged {
    pub(super) fn new(place: usize, group: usize) -> Merged {
        let latency = Histogram::new_with_bounds(1, 600_000_000_000, 3).expect("constant bounds");
        Merged { place, group, latency, waiting: Vec::new() }
    }

    /// A client proposed a command at one time, and it was executed here at another.
    pub(super) fn executed(&mut self, proposed: Time, executed: Time) {
        let nanos = executed.since(proposed).as_nanos();
        self.latency.saturating_record(u64::try_from(nanos).unwrap_or(u64::MAX));
    }

    /// This many batches wait, this long after the window opened.
    pub(super) fn sample(&mut self, opened: Time, now: Time, waiting: u64) {
        let bin = (now.since(opened).as_nanos() / BIN.as_nanos()) as usize;
        self.waiting.resize(self.waiting.len().max(bin + 1), 0);
        self.waiting[bin] = self.waiting[bin].max(waiting);
    }
}

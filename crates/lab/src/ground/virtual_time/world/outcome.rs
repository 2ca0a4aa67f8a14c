//! The end of a run: whether the replicas kept their promises, and what was measured.

use std::collections::BTreeMap;

use synod_replica::Group;
use synod_wire::{GroupId, ReplicaId};

use super::{
    super::{Links, Traffic, Usage, client::Client, groups::Ran, machine::Machine},
    World,
};
use crate::{ground::Outcome, study::LabError};

impl World<'_> {
    /// Whether all have come as far as they have to before they are compared.
    pub(super) fn agree(&self) -> bool {
        if self.groups.merge.is_some() {
            // Groups may go on forever by skips, so values are what counts.
            return self.missing().is_none();
        }
        self.numbers().all(|group| {
            // A batch may be executed in part.
            if self.members(group).any(|machine| machine.execution.has_jobs()) {
                return false;
            }
            let mut slots = self.members(group).map(|machine| machine.standing(group).0);
            let first = slots.next();
            slots.all(|slot| Some(slot) == first)
        })
    }

    /// Machines that run and whose replicas vote in the newest state of a group.
    fn members(&self, group: GroupId) -> impl Iterator<Item = &Machine> {
        let hosts = move |machine: &&Machine| machine.hosts(group);
        let groups = self.machines.values().filter(hosts).map(move |machine| machine.replica(group).group());
        let newest = groups.max_by_key(|group| group.version);
        let ids: Vec<_> = newest.into_iter().flat_map(Group::voters).collect();
        self.machines.values().filter(move |machine| ids.contains(&machine.id) && !machine.retired)
    }

    /// A value that was acknowledged and that a machine lacks which it concerns.
    fn missing(&self) -> Option<(u64, ReplicaId)> {
        let groups = self.numbers().zip(&self.clients);
        groups.into_iter().find_map(|(group, client)| {
            // Where groups are merged, those who only learn are waited for too.
            let concerned: Vec<&Machine> = if self.groups.merge.is_some() {
                self.machines.values().filter(|machine| machine.hosts(group)).collect()
            } else {
                self.members(group).collect()
            };
            concerned.into_iter().find_map(|machine| {
                let values = &machine.registry(group).values;
                client.acknowledged.first_missing_in(values).map(|value| (value, machine.id))
            })
        })
    }

    /// Checks that members hold the same in the same order, and everything that was acknowledged.
    pub(crate) fn verify(&self) -> Result<(), LabError> {
        let mut digests = BTreeMap::new();
        for group in self.numbers() {
            for machine in self.members(group) {
                // Machines hold the same if they execute the same groups in one order.
                let of: Vec<GroupId> = if machine.merges() {
                    machine.hosted.iter().map(|hosted| hosted.group).collect()
                } else {
                    vec![group]
                };
                let digest = machine.digest(group);
                let (other, first) = *digests.entry(of).or_insert((machine.id, digest));
                if first != digest {
                    let what = format!("{other} and {} hold different states in the same slot", machine.id);
                    return Err(LabError::Broken(what));
                }
            }
        }
        if let Some((value, id)) = self.missing() {
            return Err(LabError::Broken(format!("value {value} was acknowledged and is not in {id}")));
        }
        Ok(())
    }

    pub(crate) fn finish(mut self) -> (Outcome, Traffic) {
        let client = &mut self.clients[0];
        client.close();
        let leader = client.leader();
        let used = |leads: bool| {
            let own = self.machines.values().filter(|machine| (Some(machine.id) == leader) == leads);
            Usage::mean(&own.map(|machine| machine.usage).collect::<Vec<_>>())
        };
        let (leader, follower) = (used(true), used(false));
        let links = Links::of(&self.carried);
        let client = self.clients.swap_remove(0);
        let outcome = Outcome { acts: self.done, ..client.outcome };
        let discovery = self.discovery.delays();
        (
            outcome,
            Traffic { prepare: self.stopwatch.took, leader, follower, links, discovery, ..self.traffic },
        )
    }

    /// What came of several groups.
    pub(crate) fn finish_all(mut self) -> Ran {
        self.clients.iter_mut().for_each(Client::close);
        let usage = self.machines.values().map(|machine| machine.usage).collect();
        let mut groups: Vec<_> = self.clients.into_iter().map(|client| client.outcome).collect();
        groups[usize::from(self.operated.0)].acts = self.done;
        Ran { groups, sent: self.sent, merged: self.merged.into_values().collect(), usage }
    }
}

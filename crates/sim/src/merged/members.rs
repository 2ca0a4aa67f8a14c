//! Nodes that join the cluster and leave it. Somebody asks the first group for that.

use std::time::Duration;

use fastrand::Rng;
use synod_consensus::Role;
use synod_host::Input;
use synod_replica::{Change, ChangeRequest, Goal, Group, MemberInfo, Replica, Standing};
use synod_wire::{CommandKind, GroupId, ReplicaId};

use super::{
    Happening, Situation, World,
    machine::{Machine, Waiter, id},
};
use crate::{check::Checked, network::between};

impl World {
    /// Somebody wants a node to join or leave, if that is so in this run.
    pub(super) fn operate_later(&mut self) {
        if self.plan.joiners > 0 {
            let interval = self.plan.member_interval;
            let wait = between(&mut self.operator, interval / 2, interval * 2);
            self.queue.push(self.now + wait, Happening::Operate);
        }
    }

    /// Some node is asked for a change of the members, as far as it knows these.
    pub(super) fn operate(&mut self) -> Checked {
        if self.peace {
            return Ok(());
        }
        self.operate_later();
        let of = self.operator.usize(0..self.machines.len());
        let is_paused = self.machines[of].paused.is_some();
        let Some(life) = self.machines[of].life.as_mut().filter(|_| !is_paused) else { return Ok(()) };
        let first = life.host.replica(GroupId::FIRST).group();
        let nodes = (self.plan.nodes + self.plan.joiners) as u64;
        let Some(change) = draw_members(&mut self.operator, first, nodes) else { return Ok(()) };
        if let Change::Remove(leaving) | Change::Add { goal: Goal::Replace(leaving), .. } = change {
            let others = life.host.replicas().skip(1).map(|replica| replica.group().follower());
            if others.clone().any(|follower| first.is_needed_by(&follower, leaving)) {
                self.counts.see(Situation::RemovalRefused);
                return Ok(());
            }
        }
        let payload = ChangeRequest { expected: first.version, change: change.clone() }.encode().to_bytes();
        self.line(of, || format!("is asked for {change:?}"));
        let (group, kind, client) = (GroupId::FIRST, CommandKind::Reconfigure, Waiter::Operator);
        self.give(of, Input::Command { group, kind, session: None, payload, client });
        self.end_burst(of)
    }

    /// A node has seen this of the first group: nodes that join are set up.
    pub(super) fn members_change(&mut self, first: &Group) {
        while (self.machines.len() as u64) < first.next_id.0 - 1 {
            let of = self.machines.len();
            self.machines.push(Machine::new(self.plan.groups.len()));
            let longest = self.plan.base().consensus.election_timeout * 2;
            let wait = between(&mut self.operator, Duration::ZERO, longest);
            self.line(of, || "is set up".to_owned());
            self.queue.push(self.now + wait, Happening::Restart { of });
            (0..of).for_each(|other| self.dial_later(other, of));
        }
        for of in 0..self.machines.len() {
            let Some(life) = self.machines[of].life.as_ref().filter(|_| first.member(id(of)).is_none())
            else {
                continue;
            };
            if life.host.replica(GroupId::FIRST).group().member(id(of)).is_none() {
                continue; // It knows.
            }
            let leads = |replica: &Replica| replica.status().protocol.role == Role::Leader;
            if life.host.replicas().skip(1).any(leads) {
                self.counts.see(Situation::LeaderRemoved);
            }
            if life.host.replicas().skip(1).any(|replica| replica.group().votes(id(of))) {
                self.counts.see(Situation::StillVotes);
            }
            if life.merged.waits_for().is_some() {
                self.counts.see(Situation::RemovedWhileWaiting);
            }
        }
    }

    /// A node ends soon if every group has let it go, or if it was removed and learns from others that no group has it
    /// any more: it asks them, as `synod serve` does.
    pub(super) fn leave_later(&mut self, of: usize) {
        if !self.is_let_go(of) {
            return;
        }
        let Some(life) = &mut self.machines[of].life else { return };
        if !std::mem::replace(&mut life.leaves, true) {
            let longest = self.plan.base().consensus.election_timeout;
            let wait = between(&mut self.operator, Duration::ZERO, longest);
            let life = self.machines[of].lives;
            self.queue.push(self.now + wait, Happening::Leave { of, life });
        }
    }

    fn is_let_go(&self, of: usize) -> bool {
        let Some(life) = &self.machines[of].life else { return false };
        if life.hosted.iter().all(|hosted| hosted.retired) {
            return true;
        }
        let first = life.host.replica(GroupId::FIRST);
        let asks = first.group().member(id(of)).is_none() || first.status().protocol.view.leader.is_none();
        // What the others know, and not what only this node has decided: it may be the last one that votes in a group,
        // and then the others need its word of who votes next.
        let has = |known: &Group| {
            known.next_id <= id(of) || known.member(id(of)).is_some() || known.outgoing.contains(&id(of))
        };
        let others =
            self.machines.iter().enumerate().filter(|(other, machine)| *other != of && !machine.gone);
        let mut told = others.filter_map(|(_, machine)| machine.life.as_ref()).peekable();
        asks && told.peek().is_some()
            && !told.any(|life| life.host.replicas().any(|replica| has(replica.group())))
    }

    /// A node ends for good.
    pub(super) fn leave(&mut self, of: usize, life: u64) -> Checked {
        let is_let_go = self.is_let_go(of);
        let Some(life) = self.machines[of].in_life(life) else { return Ok(()) };
        if !is_let_go {
            // A group has it again.
            life.leaves = false;
            return Ok(());
        }
        self.counts.see(Situation::Leaves);
        self.line(of, || "is taken away".to_owned());
        self.machines[of].gone = true;
        self.crash(of)
    }

    /// What is not as it should be at rest: all groups have the members of the first one, learners that are to vote do,
    /// and nodes that were removed have ended.
    pub(super) fn missing_of_members(&self) -> Option<String> {
        let first = self.order.group(GroupId::FIRST);
        for group in self.groups() {
            let known = self.order.group(group);
            let follows = group == GroupId::FIRST || known.agrees_with(first);
            let waits = known.learners().any(|(_, goal)| goal != Goal::Learn);
            if !follows || waits || !known.outgoing.is_empty() {
                let [first, known] = [first, known].map(crate::describe::group);
                return Some(format!("{group} is {known}, and the first one {first}; {}", self.positions()));
            }
        }
        let is_member = |of: usize| first.member(id(of)).is_some();
        let stays = (0..self.machines.len()).find(|of| !is_member(*of) && !self.machines[*of].gone);
        stays.map(|of| format!("r{} was removed, and goes on; {}", of + 1, self.positions()))
    }
}

/// A change of the members, if there is one to be made.
fn draw_members(rng: &mut Rng, first: &Group, nodes: u64) -> Option<Change> {
    let member = |rng: &mut Rng| first.members[rng.usize(0..first.members.len())].id;
    let learners: Vec<ReplicaId> = first.learners().map(|(id, _)| id).collect();
    match rng.u8(0..10) {
        0..5 if first.next_id.0 <= nodes => {
            let goal = match rng.u8(0..5) {
                0 => Goal::Learn,
                1 | 2 => Goal::Vote,
                _ => Goal::Replace(member(rng)),
            };
            let name = first.next_id.to_string();
            let url = format!("http://{name}:2380");
            Some(Change::Add { info: MemberInfo::new(name, vec![url]), goal })
        }
        5 => Some(Change::promote(rng.choice(learners)?)),
        _ => {
            let voters = first.members.iter().filter(|member| member.standing == Standing::Voter).count();
            (voters > 2).then(|| Change::Remove(member(rng)))
        }
    }
}

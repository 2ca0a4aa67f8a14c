//! An operator: asks for changes of the group, and sets up and removes the machines that come and go with them.

use std::time::Duration;

use fastrand::Rng;
use synod_consensus::{Dissemination, ElectionKind, Overrides, ProtocolKind, Role};
use synod_replica::{
    Change, ChangeRequest, Choice, Event, Goal, Group, MemberInfo, Others, Outcome, RequestError,
    decode_reply,
};
use synod_wire::{CommandKind, GroupId, Incarnation, ReplicaId, Slot};

use super::{FIRST, Happening, World, machine::Machine, waiting::Waiter};
use crate::{
    chart::Mark,
    check::{Checked, Invariant, Violation, demand, settled},
    describe,
    network::between,
    plan::{Plan, latency_aware, suspecting},
    situations::{MergeSituation, Sight},
};

/// The operator of a world.
#[derive(Debug)]
pub(super) struct Operator {
    pub(super) rng: Rng,
    /// Changes of groups whose outcome is not known, to be asked for again later.
    unknown: Vec<(GroupId, ChangeRequest)>,
    /// What each change makes of a group that was asked for and may be decided.
    pub(super) possible: Vec<(GroupId, Group)>,
}

impl Operator {
    pub(super) fn new(plan: &Plan) -> Operator {
        let rng = Rng::with_seed(plan.seed ^ 0x0_9e_7a);
        Operator { rng, unknown: Vec::new(), possible: Vec::new() }
    }

    /// A replica crashed: a change that it was asked for may have been made or not.
    pub(super) fn hangs_up(&mut self, group: GroupId, request: ChangeRequest) {
        self.unknown.push((group, request));
    }
}

impl World {
    /// Asks for a change or several.
    pub(super) fn operate(&mut self) -> Checked {
        let plan = self.plan.changes;
        let count = self.operator.rng.usize(1..=plan.burst_max);
        for _ in 0..count {
            if self.first.is_some() && self.operator.rng.u8(0..4) > 0 {
                self.operate_members()?;
                continue;
            }
            let of = self.operator.rng.usize(0..self.machines.len());
            let at = self.some_group();
            let Some(life) = self.machines[of].life.as_ref().filter(|_| self.machines[of].is_running())
            else {
                continue;
            };
            // A change that is asked for while another is not complete waits for that.
            let group = settled(life.replica(at).group().clone());
            let again = plan.again.hit(&mut self.operator.rng).then(|| self.operator.unknown.pop()).flatten();
            let drawn = again.or_else(|| Some((at, self.draw_request(of, at, &group)?)));
            let Some((at, request)) = drawn else { continue };
            self.ask_for_change(of, at, request)?;
        }
        Ok(())
    }

    /// One of the groups. With one group nothing is drawn.
    pub(super) fn some_group(&mut self) -> GroupId {
        match self.plan.groups {
            1 => FIRST,
            groups => GroupId(self.operator.rng.u16(0..groups as u16)),
        }
    }

    /// Whether a server refuses a change of the first group, since a replica leaves that a lagging group needs: as far
    /// as this server knows, which need not be the latest.
    fn is_refused_at(&self, of: usize, first: &Group, change: &Change) -> bool {
        let (Change::Remove(leaving) | Change::Add { goal: Goal::Replace(leaving), .. }) = *change else {
            return false;
        };
        let Some(life) = &self.machines[of].life else { return true };
        let others = life.host.replicas().skip(1);
        others.into_iter().any(|replica| first.is_needed_by(&replica.group().follower(), leaving))
    }

    fn draw_request(&mut self, of: usize, at: GroupId, group: &Group) -> Option<ChangeRequest> {
        let change = self.draw_change(at, group)?;
        if at == FIRST && self.is_refused_at(of, group, &change) {
            if self.order.is_some() {
                self.merges.see(MergeSituation::RemovalRefused);
            }
            return None;
        }
        let mut request = ChangeRequest { expected: group.version, change };
        // Enough replicas with their memory must remain, and a group must not grow without end.
        let next = group.apply(Slot(1), &request).ok();
        if next.as_ref().is_some_and(|next| !self.is_sensible(at, next)) {
            return None;
        }
        if self.plan.changes.stale.hit(&mut self.operator.rng) {
            if self.operator.rng.bool() {
                request.expected -= 1;
            } else {
                // The group may reach that version, and the change was not examined for it.
                request = ChangeRequest {
                    expected: group.version + 1,
                    change: Change::Remove(ReplicaId(u64::MAX)),
                };
            }
        } else if let Some(next) = next {
            self.operator.possible.push((at, next));
        }
        Some(request)
    }

    pub(super) fn machine_of(&self, id: ReplicaId) -> Option<&Machine> {
        self.machines.get(usize::try_from(id.0).ok()?.checked_sub(1)?)
    }

    fn draw_change(&mut self, at: GroupId, group: &Group) -> Option<Change> {
        let stays = |(_, goal): &(ReplicaId, Goal)| *goal == Goal::Learn;
        if at == FIRST && group.learners().filter(stays).count() < self.plan.changes.learners {
            return Some(Change::Add { info: info(group.next_id, 0), goal: Goal::Learn });
        }
        let leader = self.leader_of(at);
        let lost = |id: &ReplicaId| self.machine_of(*id).is_some_and(|machine| machine.disk.lost);
        let forgetful: Vec<ReplicaId> = group.voters().filter(lost).collect();
        let machines = &self.machines;
        let life = |id: ReplicaId| {
            let machine = machines.iter().find(|machine| machine.id == id);
            machine.map_or(Incarnation(0), |machine| machine.files.incarnation)
        };
        let birth = |id: ReplicaId| {
            let machine = machines.iter().find(|machine| machine.id == id);
            machine.map(|machine| machine.files.birth).filter(|_| group.names_births())
        };
        let stopped = |id: &ReplicaId| self.machine_of(*id).is_some_and(|machine| machine.stopped);
        let is_followed = |id: &ReplicaId| group.learners().any(|(_, goal)| goal == Goal::Replace(*id));
        let stopped = group.voters().find(|id| at == FIRST && stopped(id) && !is_followed(id));
        let begun_with = self.plan.settings.consensus.protocol;
        let rng = &mut self.operator.rng;
        if let Some(stopped) = stopped.filter(|_| rng.u8(0..4) > 0) {
            return Some(Change::Add { info: info(group.next_id, 0), goal: Goal::Replace(stopped) });
        }
        let member = |rng: &mut Rng| group.members[rng.usize(0..group.members.len())].id;
        if self.plan.changes.readmit.hit(rng) {
            let id =
                if forgetful.is_empty() { member(rng) } else { forgetful[rng.usize(0..forgetful.len())] };
            return Some(Change::Readmit { id, life: life(id), birth: birth(id) });
        }
        if self.order.is_some() && at != FIRST && rng.u8(0..4) == 0 {
            let voters = self.checks[FIRST].groups.latest().voters().collect();
            return Some(draw_voters(rng, voters, |_| Others::Learn));
        }
        if self.first.is_some() || at != FIRST {
            // Members change in the first group; a server refuses it here.
            let orders = self.plan.changes.orders && rng.u8(0..4) > 0;
            return if orders { draw_order(rng, group, begun_with) } else { Some(draw_limits(rng, group)) };
        }
        Some(match rng.u8(0..100) {
            0..40 => {
                let goal = match rng.u8(0..4) {
                    0 => Goal::Learn,
                    1 | 2 => Goal::Vote,
                    _ => Goal::Replace(member(rng)),
                };
                Change::Add { info: info(group.next_id, 0), goal }
            }
            40..60 => Change::Remove(leader.filter(|_| rng.bool()).unwrap_or_else(|| member(rng))),
            60..75 => {
                let learners: Vec<ReplicaId> = group.learners().map(|(id, _)| id).collect();
                let id = rng.choice(learners).unwrap_or_else(|| member(rng));
                Change::Promote { id, birth: birth(id) }
            }
            75..88 if !self.plan.changes.orders => {
                let goal = Goal::Replace(member(rng));
                Change::Add { info: info(group.next_id, 0), goal }
            }
            75..88 => return draw_order(rng, group, begun_with),
            88..93 => draw_limits(rng, group),
            _ => {
                let id = member(rng);
                Change::Update { id, info: info(id, rng.u64(0..3)) }
            }
        })
    }

    /// The leader of the first group, as the world sees it.
    pub(super) fn leader(&self) -> Option<ReplicaId> {
        self.leader_of(FIRST)
    }

    /// The leader of a group, as the world sees it.
    pub(super) fn leader_of(&self, group: GroupId) -> Option<ReplicaId> {
        let leads = |machine: &&Machine| {
            let life = machine.life.as_ref();
            life.is_some_and(|life| life.replica(group).status().protocol.role == Role::Leader)
        };
        self.machines.iter().find(leads).map(|machine| machine.id)
    }

    /// A script asks for a change, made for the group as the replica knows it.
    pub(crate) fn change_in_script(&mut self, of: usize, change: impl FnOnce(&Group) -> Change) -> Checked {
        if let Some(life) = &self.machines[of].life {
            let group = life.replica(FIRST).group();
            let request = ChangeRequest { expected: group.version, change: change(group) };
            self.ask_for_change(of, FIRST, request)?;
        }
        self.settle()
    }

    pub(super) fn ask_for_change(&mut self, of: usize, group: GroupId, request: ChangeRequest) -> Checked {
        self.coverage.changes_asked += 1;
        self.note(of, Mark::Note, || format!("is asked to {}", describe::change(&request)));
        let payload = request.encode().to_bytes();
        let client = Waiter::Operator(group, request);
        self.command(of, group, (CommandKind::Reconfigure, None, payload), client)
    }

    /// A change that a replica was asked for has an outcome.
    pub(super) fn change_answered(
        &mut self,
        of: usize,
        (group, request): (GroupId, ChangeRequest),
        outcome: Outcome,
    ) -> Checked {
        let reply = match outcome {
            Outcome::Reply(reply) => reply,
            Outcome::Unanswered => unreachable!("it was asked for"),
            Outcome::Error(error) => {
                let void = matches!(
                    error,
                    RequestError::NotCaughtUp | RequestError::Overloaded | RequestError::TakesNoPart
                );
                self.operator.unknown.extend((!void).then_some((group, request)));
                self.note(of, Mark::Note, || format!("has no outcome of the change: {error}"));
                return Ok(());
            }
        };
        let result = decode_reply(reply).map_err(|error| Violation {
            invariant: Invariant::Sound,
            detail: format!("the reply to {request:?} cannot be read: {error}"),
        })?;
        match result {
            Ok(made) => {
                self.note(of, Mark::Note, || format!("has made version {} of the group", made.version));
                demand(made.version == request.expected + 1, Invariant::OneGroup, || {
                    format!("{request:?} made version {}", made.version)
                })
            }
            Err(refusal) => {
                self.coverage.changes_refused += 1;
                self.note(of, Mark::Note, || format!("refuses the change: {refusal}"));
                Ok(())
            }
        }
    }

    /// An operator asks for another protocol and election, for the group as this replica knows it.
    pub(crate) fn reorder(&mut self, of: usize, protocol: ProtocolKind, election: ElectionKind) -> Checked {
        let Some(life) = &self.machines[of].life else { return Ok(()) };
        let change = Change::Order { protocol, election, overrides: Overrides::default() };
        let request = ChangeRequest { expected: life.replica(FIRST).group().version, change };
        self.ask_for_change(of, FIRST, request)?;
        self.settle()
    }

    /// An operator asks a replica for another epoch with the same protocol, once it leads.
    pub(super) fn end_epoch(&mut self, of: usize, tries: u32) -> Checked {
        let running = self.machines[of].life.as_ref().filter(|_| self.machines[of].is_running());
        let Some(group) = running.map(|life| life.replica(FIRST).group()) else { return Ok(()) };
        if self.leads_in(of).is_none() && tries > 0 {
            let wait = self.plan.settings.consensus.election_timeout / 10;
            self.queue.push(self.now + wait, Happening::EpochEnds { of, tries: tries - 1 });
            return Ok(());
        }
        // A change that changes nothing would be refused, so each version asks for a different window.
        let overrides = format!("window-max={}", 4 + group.version).parse().expect("it is accepted");
        let change = Change::Order { protocol: group.protocol, election: group.election, overrides };
        let request = ChangeRequest { expected: group.version, change };
        self.ask_for_change(of, FIRST, request)
    }

    /// An operator wants another replica to lead.
    pub(super) fn hand_over(&mut self, to: usize) -> Checked {
        let group = self.some_group();
        let of = self.leader_of(group).map_or(to, |leader| self.index(leader));
        let to = self.machines[to].id;
        if !self.machines[of].is_running() {
            return Ok(());
        }
        self.note(of, Mark::Note, || format!("is asked to let {to} lead"));
        self.step(of, group, Event::Transfer(to))
    }

    /// A slot was delivered for the first time. If it made a new group, machines are started for the joining replicas.
    pub(super) fn group_moves(&mut self, of: GroupId, slot: Slot) -> Checked {
        let checks = &self.checks[of];
        let (before, group) = (checks.groups.latest(), checks.log.group());
        if group == before {
            return Ok(());
        }
        let (before, group) = (before.clone(), group.clone());
        self.count_change(&before, &group);
        let checks = &mut self.checks[of];
        checks.situations.see(&Sight::Regroups { slot, before: &before, group: &group });
        checks.groups.begins(slot, group.clone())?;
        checks.epoch_begins(&group);
        self.check_following(of, slot, &before, &group)?;
        self.operator.possible.retain(|(at, next)| *at != of || next.version > group.version);
        if of != FIRST {
            // The first group is what machines come and go with.
            return Ok(());
        }
        if before.outgoing.is_empty() && !group.outgoing.is_empty() {
            self.crash_while_joint();
        }
        self.take_away_those_that_were_away(&before, &group);
        while (self.machines.len() as u64) < group.next_id.0 - 1 {
            let of = self.machines.len();
            let id = ReplicaId(of as u64 + 1);
            demand(of < self.plan.replicas + self.plan.changes.spares, Invariant::Sound, || {
                format!("{id} was added, and nobody asked for this many")
            })?;
            self.machines.push(Machine::new(id, &self.plan));
            if group.member(id).is_none() && !group.is_away(id) {
                // It joined and left the first group before this one heard of it.
                self.machines[of].retired = true;
                continue;
            }
            self.note(of, Mark::Note, || "is set up".to_owned());
            let (low, high) = self.plan.changes.joins;
            let wait = between(&mut self.operator.rng, low, high);
            self.queue.push(self.now + wait, Happening::Restart { of });
            self.dial_newcomer(of);
        }
        Ok(())
    }

    /// The first group had removed members that take no part here. Nobody tells them here, and their nodes end.
    fn take_away_those_that_were_away(&mut self, before: &Group, group: &Group) {
        for of in 0..self.machines.len() {
            let id = self.machines[of].id;
            if before.is_away(id) && !group.is_away(id) && group.member(id).is_none() {
                let timeout = self.plan.settings.consensus.election_timeout;
                let wait = between(&mut self.operator.rng, Duration::ZERO, timeout * 2);
                self.queue.push(self.now + wait, Happening::Stop { of });
            }
        }
    }

    /// Two groups of voters must agree from now on: some replicas crash before that is over.
    fn crash_while_joint(&mut self) {
        let plan = self.plan.faults.joint;
        let all = plan.all.hit(&mut self.operator.rng);
        let leader = plan.leader.hit(&mut self.operator.rng).then(|| self.leader()).flatten();
        let wait = between(&mut self.operator.rng, Duration::ZERO, plan.wait_max);
        for of in 0..self.machines.len() {
            let machine = &self.machines[of];
            if machine.is_alive() && (all || leader == Some(machine.id)) {
                self.queue.push(self.now + wait, Happening::Crash { of, life: machine.lives });
            }
        }
    }

    fn count_change(&mut self, before: &Group, group: &Group) {
        let coverage = &mut self.coverage;
        // The second half of a change is not a change of its own.
        let settles = group.version == before.version;
        coverage.changes_made += u64::from(!settles);
        coverage.unsettled += u64::from(!group.outgoing.is_empty());
        let voters = |group: &Group| group.voters().collect::<Vec<_>>();
        let revoted = group.epoch == before.epoch && voters(group) != voters(before);
        coverage.revotes += u64::from(revoted);
        let has_lost = self.machines.iter().any(|machine| machine.disk.lost);
        coverage.revotes_after_loss += u64::from(revoted && has_lost);
        coverage.epochs += u64::from(group.epoch > before.epoch);
        let order = (group.protocol, group.election);
        coverage.reorderings += u64::from(order != (before.protocol, before.election));
        coverage.sets_followed += u64::from(group.membership != before.membership);
        coverage.promotions += group.voters().filter(|&id| !before.votes(id)).count() as u64;
        let stopped = |id: &ReplicaId| self.machines[id.0 as usize - 1].stopped;
        let replaced = before.voters().filter(|id| group.member(*id).is_none() && stopped(id));
        coverage.stopped_replaced += replaced.count() as u64;
        coverage.removals += before.voters().filter(|&id| group.member(id).is_none()).count() as u64;
        let readmitted = |member: &&synod_replica::Member| {
            before.member(member.id).is_some_and(|known| known.readmitted != member.readmitted)
        };
        coverage.readmissions += group.members.iter().filter(readmitted).count() as u64;
        self.note_for_all(|| format!("group     {}", describe::group(group)));
    }

    /// A replica finds that it is no longer needed.
    pub(super) fn retires(&mut self, of: usize, group: GroupId, delivered: Slot) -> Checked {
        self.note(of, Mark::Note, || "is not needed any more".to_owned());
        let groups = &self.checks[group].groups;
        let (id, group) = (self.machines[of].id, groups.after(delivered));
        let removed = groups.latest().member(id).is_none() && group.member(id).is_none();
        let away = group.is_away(id);
        demand((removed || away) && groups.is_established(group), Invariant::RetiredLast, || {
            format!(
                "{id} retires, and no quorum of version {} of the group has durably entered it",
                group.version
            )
        })?;
        if away {
            // Its node stays, and may be chosen again.
            self.coverage.away += 1;
            return Ok(());
        }
        let Some(life) = &self.machines[of].life else { return Ok(()) };
        if !life.hosted.all().all(|hosted| hosted.retired) {
            return Ok(());
        }
        self.coverage.retirements += 1;
        let (low, high) = (Duration::ZERO, self.plan.settings.consensus.election_timeout * 2);
        let wait = between(&mut self.operator.rng, low, high);
        self.queue.push(self.now + wait, Happening::Stop { of });
        Ok(())
    }

    /// A replica that is no longer needed stops for good.
    pub(super) fn stop_for_good(&mut self, of: usize) {
        self.crash(of);
        if self.order.is_some() {
            self.merges.see(MergeSituation::Leaves);
        }
        self.machines[of].retired = true;
        self.note(of, Mark::Note, || "is taken away".to_owned());
    }
}

/// Another protocol or election, with some options. A group that began with a protocol of the laboratory may go back to
/// it.
fn draw_order(rng: &mut Rng, group: &Group, begun_with: ProtocolKind) -> Option<Change> {
    let laboratory = ProtocolKind::LABORATORY.iter().filter(|(_, kind)| *kind == begun_with);
    let orders = ProtocolKind::ALL.iter().chain(laboratory).flat_map(|(_, protocol)| {
        suspecting(*protocol).into_iter().map(move |election| (*protocol, election))
    });
    // Mostly another protocol or election than the present one, if there is another.
    let others = orders.clone().filter(|order| *order != (group.protocol, group.election));
    let order = if rng.u8(0..8) > 0 { rng.choice(others.collect::<Vec<_>>()) } else { None };
    let (protocol, election) = order.or_else(|| rng.choice(orders.collect::<Vec<_>>()))?;
    let election = latency_aware(protocol, election, group.version.is_multiple_of(3));
    Some(Change::Order { protocol, election, overrides: overrides(group.version, protocol) })
}

/// Some of these voters of the first group for one that follows it, or all of them again.
pub(super) fn draw_voters(
    rng: &mut Rng,
    mut voters: Vec<ReplicaId>,
    others: impl FnOnce(&mut Rng) -> Others,
) -> Change {
    rng.shuffle(&mut voters);
    voters.truncate(rng.usize(1..=voters.len()));
    let others = others(rng);
    Change::Place((rng.u8(0..4) > 0).then(|| Choice::of(voters, others)))
}

/// Another limit.
pub(super) fn draw_limits(rng: &mut Rng, group: &Group) -> Change {
    let mut limits = group.limits;
    limits.sessions.clients_max = rng.usize(1..8);
    Change::Limits(limits)
}

/// The description of a member; no two have the same address.
pub(crate) fn info(id: ReplicaId, edition: u64) -> MemberInfo {
    let url = format!("http://{id}.{edition}:2380");
    MemberInfo::new(id.to_string(), vec![url])
}

/// Options of a protocol, now and then.
fn overrides(version: u64, protocol: ProtocolKind) -> Overrides {
    let balances = protocol.disseminations().contains(&Dissemination::Balanced);
    let balanced: &[&str] = if balances { &["dissemination=balanced"] } else { &[] };
    let choices = protocol.options_to_try().iter().chain(balanced);
    let chosen =
        choices.cycle().nth(usize::try_from(version % 8).unwrap_or_default()).filter(|_| version % 4 < 3);
    chosen.map_or_else(Overrides::default, |text| text.parse().expect("these are accepted"))
}

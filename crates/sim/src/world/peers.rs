//! With whom a node has sessions: the members of its groups, and for a while those that were.

use synod_host::Parting;
use synod_replica::{Group, Replica};
use synod_wire::{GroupId, ReplicaId, Time};

use super::{FIRST, World, identity::Files, machine::Life};
use crate::network::Wire;

/// Replicas, as [`Parting`] takes them. Where a replica is needs no address here.
type Peers = Vec<(ReplicaId, ())>;

impl World {
    /// The peers with which a life begins: what its files and its logs say.
    pub(super) fn parting<'a>(
        &mut self,
        of: usize,
        now: Time,
        replicas: impl Iterator<Item = &'a Replica>,
    ) -> Parting<()> {
        let all = self.reaches_all();
        let machine = &mut self.machines[of];
        let timeout = self.plan.settings.consensus.election_timeout;
        let mut parting = Parting::new(timeout, self.plan.groups);
        for (of, replica) in self.checks.groups().zip(replicas) {
            let (members, former) = peers_of(&machine.files, of, replica.group(), machine.id);
            parting.group(now, of, replica.group(), members, former);
        }
        if !all {
            machine.files.forget_all_but(|id| parting.remembers(id));
        }
        parting
    }

    /// A group of a node is another one now: there are others with whom it has sessions.
    pub(super) fn regroup_peers(&mut self, of: usize, group: GroupId, becomes: &Group) {
        if self.reaches_all() {
            return;
        }
        let machine = &mut self.machines[of];
        let Some(life) = &mut machine.life else { return };
        let (members, former) = peers_of(&machine.files, group, becomes, machine.id);
        let now = life.clock.read(self.now);
        let Life { parting, .. } = life;
        parting.group(now, group, becomes, members, former);
        machine.files.forget_all_but(|id| parting.remembers(id));
        self.meet_peers(of);
    }

    /// Lets go of those whose time is over.
    pub(super) fn let_go(&mut self, of: usize) {
        let all = self.reaches_all();
        let Some(life) = &mut self.machines[of].life else { return };
        if !all && life.parting.look(life.clock.read(self.now)) {
            self.coverage.peers_dropped += 1;
            self.meet_peers(of);
        }
    }

    /// Whether a node has sessions with another one, as far as it is concerned.
    pub(super) fn is_peer(&self, of: usize, peer: usize) -> bool {
        self.reaches_all()
            || self.machines[of].life.as_ref().is_some_and(|life| life.parting.has(self.machines[peer].id))
    }

    /// Whether a removed node learns by asking that it was removed. It asks those that it knows once it has had no
    /// sessions with a leader for a while; then too few of the others have sessions with it to tell it.
    pub(super) fn learns_of_its_removal_by_asking(&self, of: usize) -> bool {
        let id = self.machines[of].id;
        let Some(life) = &self.machines[of].life else { return false };
        let known = life.replica(FIRST).group();
        let decided = self.checks[FIRST].log.group();
        let voters = || decided.voters().map(|voter| self.index(voter));
        let tell = voters().filter(|&voter| self.is_peer(voter, of) && self.is_peer(of, voter)).count();
        if tell >= decided.threshold().least(voters().count()) {
            return false;
        }
        let removed = |group: &Group| {
            let is_gone = group.member(id).is_none() && !group.is_away(id) && !group.counts(id);
            group.version >= known.version && group.next_id > id && is_gone
        };
        let others = known.known().filter(|member| member.id != id).map(|member| self.index(member.id));
        others
            .filter_map(|other| self.machines[other].life.as_ref())
            .any(|life| removed(life.replica(FIRST).group()))
    }

    /// Whether all have sessions with all: where a script says who has, or where the first group is not here, whose
    /// members are peers as well.
    fn reaches_all(&self) -> bool {
        self.first.is_some() || self.network.wire() == Wire::Manual
    }

    /// Dials those that are peers, and ends sessions with all others.
    fn meet_peers(&mut self, of: usize) {
        for peer in (0..self.machines.len()).filter(|&peer| peer != of) {
            if self.is_peer(of, peer) {
                self.dial_soon(of, peer);
            } else if self.network.wire().has_sessions() {
                self.end_session(of, peer);
                self.end_session(peer, of);
            }
        }
    }
}

/// The other members of a group, also those that a replica was told which lags, and those that its last change removed.
fn peers_of(files: &Files, of: GroupId, group: &Group, me: ReplicaId) -> (Peers, Peers) {
    if group.is_away(me) {
        return Default::default();
    }
    let told = files.present(of).filter(|told| told.version > group.version);
    let members = told.into_iter().flat_map(|told| &told.members).chain(&group.members);
    let others = |id: &ReplicaId| *id != me;
    let members = members.map(|member| member.id).filter(others).map(|id| (id, ())).collect();
    (members, group.former.iter().map(|member| member.id).filter(others).map(|id| (id, ())).collect())
}

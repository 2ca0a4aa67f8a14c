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
        let machine = &mut self.machines[of];
        let timeout = self.plan.settings.consensus.election_timeout;
        let mut parting = Parting::new(timeout, self.plan.groups);
        for (of, replica) in self.checks.groups().zip(replicas) {
            let (members, former) = peers_of(&machine.files, of, replica.group(), machine.id);
            parting.group(now, of, replica.group(), members, former);
        }
        machine.files.forget_all_but(|id| parting.remembers(id));
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

    /// Whether a node that hears no leader, or is no member as far as it knows, learns that it was removed when it asks
    /// the others, as it does after a while.
    pub(super) fn learns_of_its_removal_by_asking(&self, of: usize) -> bool {
        let id = self.machines[of].id;
        let Some(life) = &self.machines[of].life else { return false };
        let (group, view) = (life.replica(FIRST).group(), life.replica(FIRST).status().protocol.view);
        // A leader of Raft that looks for no quorum (a laboratory's option) leads the removed for good, who ask nobody.
        let leads_for_good = !group.options(&self.plan.settings.consensus).raft.check_quorum;
        let hears = |leader| leader == id || self.is_peer(self.index(leader), of);
        if !leads_for_good && view.leader.is_some_and(hears) && group.member(id).is_some() {
            return false;
        }
        let known = group.version;
        let removed = |group: &Group| {
            group.version >= known && group.next_id > id && group.member(id).is_none() && !group.is_away(id)
        };
        let mut others = self.machines.iter().filter(|machine| machine.id != id && machine.is_running());
        others.any(|other| other.files.present(FIRST).is_some_and(removed))
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
            } else {
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

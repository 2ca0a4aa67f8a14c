//! What can be seen of a world: events, and the present state of replicas and links.

use std::{collections::BTreeMap, time::Duration};

use synod_consensus::{ProtocolKind, Role};
use synod_replica::{Event, Group, LogRecord, PeerMessage, ReplicaStatus, RequestError};
use synod_wire::{Ballot, Batch, Epoch, ReplicaId, Slot};

use crate::{
    check::{LeaseAct, is_learned, values},
    watches::Remarks,
};

/// What a replica shows of itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Face {
    pub(super) role: Role,
    pub(super) ballot: Ballot,
    /// The replica that it takes for the leader.
    pub(super) leader: Option<ReplicaId>,
    pub(super) decided: Slot,
    pub(super) epoch: Epoch,
    /// Whether it is receiving a snapshot.
    pub(super) receiving: bool,
    /// Whether it lost records, and has not made that good.
    pub(super) lost: bool,
    /// Whether its disk does not answer.
    pub(super) stalled: bool,
}

impl Face {
    /// A replica of which nothing has been seen.
    pub(super) const NEW: Face = Face {
        role: Role::Follower,
        ballot: Ballot::ZERO,
        leader: None,
        decided: Slot::ZERO,
        epoch: Epoch(0),
        receiving: false,
        lost: false,
        stalled: false,
    };

    /// A replica with this status, and a disk that lost records, or is stalled.
    pub(crate) fn of(status: &ReplicaStatus, lost: bool, stalled: bool) -> Face {
        Face {
            role: status.protocol.role,
            ballot: status.protocol.view.ballot,
            leader: status.protocol.view.leader,
            decided: status.protocol.decided,
            epoch: status.epoch,
            receiving: status.receiving.is_some(),
            lost,
            stalled,
        }
    }
}

/// An event. Replicas are named by index.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Sight<'a> {
    /// A life begins. `tail` is the last slot for which the log has a record, `snapshot` the last slot that a
    /// snapshot covers. `amnesia` means that the log is lost. If only records are lost for which the disk was
    /// not waited for, `votes_lost` is the slot of the last of them.
    Starts { of: usize, tail: Slot, snapshot: Slot, amnesia: bool, votes_lost: Option<Slot> },
    /// A life ends.
    Ends { of: usize },
    /// A process stops for a while.
    Pauses { of: usize },
    /// The process continues. `long` means after more than the election time-out.
    Resumes { of: usize, long: bool },
    /// Its clock jumps forward. `long` means by more than the election time-out.
    Jumps { of: usize, long: bool },
    /// A request fails.
    Fails(RequestError),
    /// A replica is about to take an event.
    Takes { of: usize, event: &'a Event },
    /// It writes a record because of it.
    Appends { of: usize, record: &'a LogRecord },
    /// It delivers a slot because of it. `first` means that no replica delivered it before.
    Delivers { of: usize, first: bool, batch: &'a Batch },
    /// A message leaves at once, although others to that peer wait for records.
    Overtakes { message: &'a PeerMessage },
    /// A message leaves a replica.
    Sends { from: usize, to: usize, message: &'a PeerMessage },
    /// It has handled the event, and shows this now.
    Stepped { of: usize, face: Face },
    /// Links are cut, each of them perhaps more than once.
    Cuts(&'a [(usize, usize)]),
    /// One cut of each of these links is taken back.
    Mends(&'a [(usize, usize)]),
    /// A slot that was delivered for the first time made another group.
    Regroups { slot: Slot, before: &'a Group, group: &'a Group },
    /// A slot that was delivered for the first time did this to leases.
    Leases(&'a [LeaseAct]),
    /// A replica answers that a lease is renewed.
    Renews { of: usize },
    /// A watcher was told something.
    Watches(&'a Remarks),
}

/// One replica.
#[derive(Debug)]
pub(super) struct Actor {
    pub(super) id: ReplicaId,
    /// Whether it runs, paused or not.
    pub(super) up: bool,
    pub(super) paused: bool,
    /// How many lives have begun.
    pub(super) lives: u64,
    /// Whether it led in its present life.
    pub(super) led: bool,
    /// What it showed after the last event; while it handles an event, what it showed before.
    pub(super) face: Face,
    /// What it showed before the last event.
    pub(super) before: Face,
    /// What it proposed in the ballot in which it leads, and has not delivered.
    pub(super) proposed: BTreeMap<Slot, Batch>,
    /// What it wrote because of the present event, except what it learned.
    writes: Vec<(Slot, Batch)>,
    /// Whether it wrote something that it learned because of the present event.
    pub(super) learns: bool,
}

/// The present state of a world.
#[derive(Debug)]
pub(super) struct Scene {
    pub(super) actors: Vec<Actor>,
    /// The present protocol.
    pub(super) orders: ProtocolKind,
    /// The voters of the newest group, by index.
    pub(super) voters: Vec<usize>,
    /// The slot that stands for the backup with which the group began; 0 if it began with nothing.
    pub(super) backup: Slot,
    /// Whether there are two groups of voters at the moment.
    pub(super) joint: bool,
    /// How many partitions cut a link.
    cuts: Vec<u32>,
    /// How many links are cut.
    cut_links: usize,
}

impl Scene {
    /// The state before any event.
    pub(super) fn new(group: &Group, capacity: usize) -> Scene {
        let actor = |index: usize| Actor {
            id: ReplicaId(index as u64 + 1),
            up: false,
            paused: false,
            lives: 0,
            led: false,
            face: Face::NEW,
            before: Face::NEW,
            proposed: BTreeMap::new(),
            writes: Vec::new(),
            learns: false,
        };
        let mut scene = Scene {
            actors: (0..capacity).map(actor).collect(),
            orders: group.protocol,
            voters: Vec::new(),
            backup: group.first.prev(),
            joint: false,
            cuts: vec![0; capacity * capacity],
            cut_links: 0,
        };
        scene.regroup(group);
        scene
    }

    /// A group begins.
    fn regroup(&mut self, group: &Group) {
        self.orders = group.protocol;
        self.joint = !group.outgoing.is_empty();
        self.voters = group.voters().map(index_of).collect();
    }

    /// Applies an event, before the watchers see it.
    pub(super) fn take_in(&mut self, sight: &Sight<'_>) {
        match *sight {
            Sight::Starts { of, .. } => {
                let actor = &mut self.actors[of];
                (actor.up, actor.paused) = (true, false);
                actor.lives += 1;
                actor.led = false;
                (actor.face, actor.before) = (Face::NEW, Face::NEW);
            }
            Sight::Ends { of } => {
                let actor = &mut self.actors[of];
                (actor.up, actor.paused, actor.learns) = (false, false, false);
                actor.proposed.clear();
                actor.writes.clear();
            }
            Sight::Pauses { of } => self.actors[of].paused = true,
            Sight::Resumes { of, .. } => self.actors[of].paused = false,
            Sight::Appends { of, record } => self.actors[of].writes(record),
            Sight::Stepped { of, face } => self.actors[of].stepped(face),
            Sight::Cuts(links) => links.iter().for_each(|link| self.cut(*link, true)),
            Sight::Mends(links) => links.iter().for_each(|link| self.cut(*link, false)),
            Sight::Regroups { group, .. } => self.regroup(group),
            Sight::Takes { .. }
            | Sight::Delivers { .. }
            | Sight::Overtakes { .. }
            | Sight::Sends { .. }
            | Sight::Jumps { .. }
            | Sight::Fails(_)
            | Sight::Leases(_)
            | Sight::Renews { .. }
            | Sight::Watches(_) => {}
        }
    }

    /// Removes what is over once all watchers have seen an event.
    pub(super) fn done(&mut self, sight: &Sight<'_>) {
        if let Sight::Stepped { of, .. } = sight {
            self.actors[*of].learns = false;
        }
    }

    fn cut(&mut self, (from, to): (usize, usize), cut: bool) {
        let cuts = &mut self.cuts[from * self.actors.len() + to];
        if cut {
            self.cut_links += usize::from(*cuts == 0);
            *cuts += 1;
        } else {
            *cuts -= 1;
            self.cut_links -= usize::from(*cuts == 0);
        }
    }

    /// Whether any link is cut.
    pub(super) fn is_cut(&self) -> bool {
        self.cut_links > 0
    }

    /// Whether messages of one replica reach another running one.
    pub(super) fn reaches(&self, from: usize, to: usize) -> bool {
        self.actors[from].runs() && self.actors[to].runs() && self.cuts[from * self.actors.len() + to] == 0
    }

    /// Whether they reach each other.
    pub(super) fn linked(&self, a: usize, b: usize) -> bool {
        self.reaches(a, b) && self.reaches(b, a)
    }

    /// Whether two replicas are connected, over any number of links, without this one.
    pub(super) fn connected_without(&self, without: Option<usize>, from: usize, to: usize) -> bool {
        let mut seen = vec![false; self.actors.len()];
        let mut next = vec![from];
        while let Some(at) = next.pop() {
            if at == to {
                return true;
            }
            for (peer, seen) in seen.iter_mut().enumerate() {
                if !*seen && Some(peer) != without && self.linked(at, peer) {
                    *seen = true;
                    next.push(peer);
                }
            }
        }
        false
    }

    /// The running replicas that take themselves for the leader.
    pub(super) fn leaders(&self) -> impl Iterator<Item = (usize, &Actor)> {
        self.running().filter(|(_, actor)| actor.face.role == Role::Leader)
    }

    /// The replicas that take themselves for the leader, also while they are paused.
    pub(super) fn claim_to_lead(&self) -> impl Iterator<Item = &Actor> {
        self.actors.iter().filter(|actor| actor.up && actor.face.role == Role::Leader)
    }

    /// The running replicas.
    pub(super) fn running(&self) -> impl Iterator<Item = (usize, &Actor)> {
        self.actors.iter().enumerate().filter(|(_, actor)| actor.runs())
    }

    /// Whether a ballot is above another. Of terms only the rounds are compared, since a term has one leader.
    pub(super) fn above(&self, higher: Ballot, lower: Ballot) -> bool {
        if self.orders.has_terms() { higher.round > lower.round } else { higher > lower }
    }

    /// Whether one leads in a ballot above another's, of the same epoch or a later one.
    pub(super) fn outranks(&self, one: &Actor, other: &Actor) -> bool {
        one.face.epoch > other.face.epoch
            || one.face.epoch == other.face.epoch && self.above(one.face.ballot, other.face.ballot)
    }
}

impl Actor {
    /// Whether it runs and is not paused.
    pub(super) fn runs(&self) -> bool {
        self.up && !self.paused
    }

    /// Whether it has taken this role with the last event.
    pub(super) fn becomes(&self, role: Role) -> bool {
        self.face.role == role && self.before.role != role
    }

    fn writes(&mut self, record: &LogRecord) {
        if is_learned(record) {
            self.learns = true;
        } else if matches!(self.face.role, Role::Leader | Role::Candidate) {
            self.writes.extend(values(record));
        }
    }

    fn stepped(&mut self, face: Face) {
        self.before = std::mem::replace(&mut self.face, face);
        if face.role != Role::Leader || face.ballot != self.before.ballot {
            self.proposed.clear();
        }
        self.led |= face.role == Role::Leader;
        if face.role == Role::Leader {
            self.proposed.extend(self.writes.drain(..));
            while self.proposed.first_key_value().is_some_and(|(slot, _)| *slot <= face.decided) {
                self.proposed.pop_first();
            }
        }
        self.writes.clear();
    }
}

/// The index of a replica.
pub(super) fn index_of(id: ReplicaId) -> usize {
    usize::try_from(id.0).expect("a small number") - 1
}

/// Whether a pause is longer than it takes to miss a leader.
pub(crate) fn is_long(pause: Duration, election_timeout: Duration) -> bool {
    pause > election_timeout
}

//! How replicas know each other: what a transport does when a session begins, with the rules that it uses.
//!
//! Besides its log and its snapshots a machine has the files of `synod-storage` that say which lives it had
//! and which replicas it met. A fault may put a copy of all of it, taken earlier, in the place of what is
//! there ([`World::restore`]), or take everything away ([`World::wipe`]). Two processes with copies of one
//! directory are played one after the other: what a copy replaces is itself a copy from then on.

use std::collections::{BTreeMap, BTreeSet};

use synod_consensus::Bug;
use synod_replica::{Group, History, Met};
use synod_wire::{
    Acquaintance, EARLIER_LIVES_MAX, EarlierLife, GroupId, Incarnation, Introduction, Lsn, MESSAGES_VERSION,
    Mismatch, ReplicaId,
};

use super::{
    FIRST, Happening, World,
    links::News,
    machine::{Life, Machine},
    merging::file_of,
};
use crate::{
    chart,
    check::{Checked, Invariant, demand},
    disk::Disk,
    network::Wire,
    per_group::PerGroup,
};

/// The files that say which replica this is, and which replicas it knows.
#[derive(Clone, Debug)]
pub(crate) struct Files {
    pub(super) birth: u64,
    pub(crate) incarnation: Incarnation,
    nonces: BTreeMap<Incarnation, u64>,
    began: BTreeMap<Incarnation, Lsn>,
    since: Incarnation,
    outlived: Incarnation,
    book: BTreeMap<ReplicaId, Acquaintance>,
    /// The replicas that have welcomed this one.
    welcomed: BTreeSet<ReplicaId>,
    met_all: bool,
    /// The latest group of each log that the replica has known. It tells a replica that asks to join the first one's.
    present: PerGroup<Option<Group>>,
    /// What the replica of each group knew to be decided when this was last written.
    pub(super) reached: PerGroup<Option<History>>,
}

impl Files {
    /// The files of a directory that is made now.
    pub(crate) fn new(birth: u64, groups: usize) -> Files {
        Files {
            birth,
            incarnation: Incarnation(0),
            nonces: BTreeMap::new(),
            began: BTreeMap::new(),
            since: Incarnation(0),
            outlived: Incarnation(0),
            book: BTreeMap::new(),
            welcomed: BTreeSet::new(),
            met_all: false,
            present: (0..groups).map(|_| None).collect(),
            reached: (0..groups).map(|_| None).collect(),
        }
    }

    /// Begins a life, which draws a nonce; returns whether it must begin without memory.
    pub(crate) fn begin(&mut self, nonce: u64) -> bool {
        let outlived = std::mem::take(&mut self.outlived);
        self.incarnation = Incarnation(self.incarnation.max(outlived).0 + 1);
        while self.nonces.len() > EARLIER_LIVES_MAX - 1 {
            self.nonces.pop_first();
        }
        self.nonces.insert(self.incarnation, nonce);
        outlived > Incarnation(0)
    }

    /// Records that the life that began last remembers nothing.
    pub(crate) fn begin_without_memory(&mut self) {
        self.since = self.incarnation;
    }

    /// Records that the log with which the last life began ends with this record.
    pub(crate) fn begin_log(&mut self, last: Lsn) {
        self.began.insert(self.incarnation, last);
    }

    fn introduction(&self, durable: Lsn) -> Introduction {
        let earlier = self.nonces.range(..self.incarnation).map(|(&incarnation, &nonce)| EarlierLife {
            incarnation,
            nonce,
            began: self.began.get(&incarnation).copied().unwrap_or(Lsn::MAX),
        });
        Introduction {
            birth: self.birth,
            incarnation: self.incarnation,
            nonce: self.nonces.get(&self.incarnation).copied().unwrap_or_default(),
            since: self.since,
            earlier: earlier.collect(),
            began: self.began.get(&self.incarnation).copied().unwrap_or(durable),
            durable,
        }
    }

    /// Whether each of these replicas has ever welcomed this one.
    pub(crate) fn has_met(&mut self, all: impl Iterator<Item = ReplicaId>) -> bool {
        self.met_all |= { all }.all(|id| self.welcomed.contains(&id));
        self.met_all
    }

    /// Records that this replica waits for nobody, as its operator says (`--begin-without-all`).
    fn wait_for_nobody(&mut self) {
        self.met_all = true;
    }

    /// Records a group as it is now.
    pub(super) fn knows(&mut self, of: GroupId, group: &Group) {
        let present = &mut self.present[of];
        if present.as_ref().is_none_or(|present| present.version < group.version) {
            *present = Some(group.clone());
        }
    }

    /// The latest group that was recorded.
    pub(super) fn present(&self, of: GroupId) -> Option<&Group> {
        self.present[of].as_ref()
    }

    /// Whether this version of a group was recorded, or a later one.
    pub(super) fn knows_of(&self, of: GroupId, version: u64) -> bool {
        self.present(of).is_some_and(|present| present.version >= version)
    }

    /// Forgets all other replicas that it met.
    pub(super) fn forget_all_but(&mut self, remembers: impl Fn(ReplicaId) -> bool) {
        self.book.retain(|&id, _| remembers(id));
        self.welcomed.retain(|&id| remembers(id));
    }

    /// Whether the replica `id` has welcomed this one.
    pub(super) fn is_welcomed_by(&self, id: ReplicaId) -> bool {
        self.welcomed.contains(&id)
    }
}

impl World {
    /// The replicas with which the group began, except this one; none if this one joined later.
    pub(super) fn others_at_first(&self, of: usize) -> impl Iterator<Item = ReplicaId> + use<> {
        let replicas = if of < self.plan.replicas { self.plan.replicas as u64 } else { 0 };
        (1..=replicas).map(ReplicaId).filter(move |id| id.0 != of as u64 + 1)
    }

    /// Has a replica reach another; returns whether each of them takes the other for the one that it knows.
    pub(super) fn shake_hands(&mut self, from: usize, to: usize) -> bool {
        // The caller may take the one that is called for another replica, and the called one does not hear of it.
        let welcome = self.recognises(to, from) && self.recognises(from, to);
        if welcome {
            self.is_welcomed(from, to);
        }
        welcome
    }

    fn is_welcomed(&mut self, of: usize, by: usize) {
        let (all, by) = (self.others_at_first(of), self.machines[by].id);
        let files = &mut self.machines[of].files;
        let had = files.met_all;
        files.welcomed.insert(by);
        if files.has_met(all) && !had {
            let life = self.machines[of].lives;
            self.queue.push(self.now, Happening::News { of, life, news: News::MetAll });
        }
    }

    /// Whether messages of a replica are heard by another one, which recognised its present life or the one
    /// that it had before it ended.
    pub(super) fn is_heard(&self, of: usize, from: usize) -> bool {
        let life = self.machines[of].life.as_ref();
        life.is_some_and(|life| life.recognised.get(&from) == Some(&self.machines[from].lives))
    }

    /// Whether this is the birth under which a replica knows another. A session is one of two births, so what
    /// was sent in an earlier one is not heard in it, however late it comes.
    pub(super) fn knows_birth(&self, of: usize, peer: usize, birth: u64) -> bool {
        let known = self.machines[of].files.book.get(&self.machines[peer].id);
        known.is_some_and(|known| known.birth == birth)
    }

    fn recognises(&mut self, of: usize, peer: usize) -> bool {
        let (id, number) = (self.machines[peer].id, self.machines[peer].lives);
        let who = self.machines[peer].files.introduction(self.machines[peer].disk.durable());
        let believes = self.plants(Bug::BelieveCopies);
        let machine = &mut self.machines[of];
        // A replica that does not run introduces itself to nobody.
        let named = machine.life.as_ref().and_then(|life| life.replica(FIRST).group().birth_of(id));
        match Acquaintance::judge(machine.files.book.get(&id), named, &who) {
            Err(stranger) if stranger.mismatch == Mismatch::OtherBirth => return false,
            Err(stranger) if !believes => {
                self.coverage.copies_found += u64::from(self.machines[peer].copied);
                self.note(of, chart::Mark::Note, || format!("does not recognise r{}: {stranger}", peer + 1));
                let noted = self.machines[peer].disk.files().is_none_or(|files| files.outlived());
                let files = &mut self.machines[peer].files;
                if noted {
                    files.outlived = files.outlived.max(stranger.known.incarnation).max(files.incarnation);
                }
                self.queue.push(self.now, Happening::Outlived { of: peer, life: number });
                return false;
            }
            Err(_) => _ = machine.files.book.insert(id, Acquaintance::first(&who)),
            Ok(met) => _ = machine.files.book.insert(id, met),
        }
        if let Some(life) = &mut self.machines[of].life {
            life.recognised.insert(peer, number);
        }
        if self.network.wire() == Wire::Datagram {
            self.tell_met(of, peer);
        }
        true
    }

    /// A replica is told whose messages come from a peer from now on.
    pub(super) fn tell_met(&mut self, of: usize, peer: usize) {
        let (life, Machine { id, files, .. }) = (self.machines[of].lives, &self.machines[peer]);
        let (birth, incarnation, since) = (files.birth, files.incarnation, files.since);
        let met = Met { birth, incarnation, since, version: MESSAGES_VERSION };
        let news = News::Met { peer: *id, met };
        self.queue.push(self.now, Happening::News { of, life, news });
    }

    pub(super) fn plants(&self, bug: Bug) -> bool {
        cfg!(feature = "planted-bugs") && self.plan.settings.consensus.planted == Some(bug)
    }

    /// Lets replicas that hear each other know how far the other's log is durable, as frames and silence tell.
    pub(super) fn spread_marks(&mut self) {
        for from in 0..self.machines.len() {
            for to in (0..self.machines.len()).filter(|&to| to != from) {
                let linked = self.network.wire() == Wire::Datagram || self.network.is_up(from, to);
                let reach = !self.network.is_cut(from, to) && !self.network.is_cut(to, from);
                let run = self.machines[from].is_running() && self.machines[to].is_running();
                if linked && reach && run && self.is_heard(to, from) {
                    let (id, durable) = (self.machines[from].id, self.machines[from].disk.durable());
                    let nonce = self.machines[from].files.introduction(durable).nonce;
                    if let Some(known) = self.machines[to].files.book.get_mut(&id)
                        && known.nonce == nonce
                    {
                        *known = known.heard(durable);
                    }
                }
            }
        }
    }

    /// Checks, when a replica hears a message of a protocol from one that votes as far as it knows, that all such
    /// messages under an id are of one birth.
    pub(super) fn counts(&mut self, from: usize, birth: u64, to: usize, group: GroupId) -> Checked {
        let id = self.machines[from].id;
        let hears = |life: &Life| {
            let replica = life.replica(group);
            replica.group().counts(id) && !replica.is_stranger(id)
        };
        if !self.machines[to].life.as_ref().is_some_and(hears) {
            return Ok(());
        }
        let first = *self.births.entry(id).or_insert(birth);
        demand(first == birth, Invariant::OneBirth, || {
            format!("{id} is heard with birth {birth:x}, and was with birth {first:x}")
        })
    }

    /// Ends a life because a peer has seen a later one; the next life begins without memory.
    pub(super) fn outlived(&mut self, of: usize, life: u64) {
        if self.machines[of].in_life(life).is_none() {
            return;
        }
        self.note(of, chart::Mark::Note, || "is told that it was outlived".to_owned());
        self.crash(of);
        let wait = self.plan.settings.consensus.election_timeout / 4;
        self.queue.push(self.now + wait, Happening::Restart { of });
    }

    /// Copies a replica's disk the first time. Later it puts the copy in the place of what is there, if all
    /// others would notice: if no replica of a quorum heard the later life, none can.
    pub(super) fn restore(&mut self, of: usize) {
        let machine = &mut self.machines[of];
        if machine.wiped {
            return;
        }
        let Some(copy) = machine.copy.take() else {
            // A replica that decides alone meets nobody who would notice before it goes on from the copy.
            let alone =
                |life: &Life| life.replica(FIRST).group().voter_sets().is_quorum(|id| id == machine.id);
            if machine.is_alive() && !machine.life.as_ref().is_some_and(alone) {
                let disk = machine.disk.copy();
                let files = machine.files.clone();
                self.note(of, chart::Mark::Note, || {
                    format!("has its disk copied, with a log to {}", disk.durable())
                });
                self.machines[of].copy = Some(Box::new((disk, files)));
            }
            return;
        };
        self.spread_marks();
        if !self.may_lose(of) || !self.all_would_notice(of, &copy.0, &copy.1) {
            self.machines[of].copy = Some(copy);
            return;
        }
        let (disk, files) = *copy;
        self.crash(of);
        self.note(of, chart::Mark::Note, || {
            format!("has an older copy of its disk restored, with a log to {}", disk.durable())
        });
        self.coverage.copies_restored += 1;
        let believed = self.plants(Bug::BelieveCopies);
        let machine = &mut self.machines[of];
        let replaced =
            (std::mem::replace(&mut machine.disk, disk), std::mem::replace(&mut machine.files, files));
        machine.copy = Some(Box::new(replaced));
        machine.disk.lost = true;
        machine.copied = !believed;
        self.restart_later(of);
    }

    fn all_would_notice(&self, of: usize, disk: &Disk, files: &Files) -> bool {
        let mut next = files.clone();
        next.begin(u64::MAX);
        let who = next.introduction(disk.durable());
        let notices = |(at, machine): (usize, &super::machine::Machine)| {
            let known = machine.files.book.get(&self.machines[of].id);
            at == of || machine.retired || known.is_some_and(|known| known.meet(&who).is_err())
        };
        self.machines.iter().enumerate().all(notices)
    }

    /// Whether a replica without any data starts. One that joins asks the members first, at its first start and when it
    /// lost all that it had: those that run and that it reaches. The newest group that one of them knows says whether
    /// it is a member, and whether it votes. They may know too little.
    pub(crate) fn may_join(&mut self, of: usize) -> bool {
        let machine = &self.machines[of];
        let scripted = self.network.wire() == Wire::Manual && !machine.wiped;
        if of < self.plan.replicas || machine.files.incarnation > Incarnation(0) || scripted {
            return true;
        }
        let reaches = |at: usize| !self.network.is_cut(of, at) && !self.network.is_cut(at, of);
        let others = (0..self.machines.len()).filter(|&at| at != of && reaches(at));
        let answers = others.filter(|&at| self.machines[at].is_running());
        let groups = answers.filter_map(|at| self.machines[at].files.present(FIRST));
        let newest = groups.max_by_key(|group| group.version).filter(|group| group.next_id > machine.id);
        let Some(newest) = newest.cloned() else {
            self.restart_later(of);
            return false;
        };
        if !machine.wiped {
            let is_one = newest.member(machine.id).is_some() || newest.is_away(machine.id);
            let machine = &mut self.machines[of];
            machine.files.knows(FIRST, &newest);
            machine.retired = !is_one;
            return is_one;
        }
        let learns = newest.learners().any(|(id, _)| id == machine.id);
        let votes = self.checks[FIRST].log.group().counts(machine.id);
        self.coverage.joined_unknown += u64::from(learns && votes);
        if !learns {
            self.note(of, chart::Mark::Note, || "is told that it is no learner, and ends".to_owned());
            self.machines[of].stopped = true;
        }
        self.machines[of].files.knows(FIRST, &newest);
        learns
    }

    /// Whether most of the replicas with which the group began would vote if this one of them were wiped: it would not
    /// vote, and neither would a replica that has still to meet it for the first time. Nobody waits for one that joined
    /// later. But with several groups, a member of the first one may be wiped only if it votes in all: it ends for
    /// good, and a group may wait for it.
    fn may_be_wiped(&self, of: usize) -> bool {
        let first = 0..self.plan.replicas;
        let out = |at: &usize| self.would_be_out(*at, Some(of));
        if first.contains(&of) {
            return first.filter(out).count() <= self.spared_of_the_first();
        }
        self.plan.groups == 1 || self.votes_wherever_it_may(of)
    }

    /// Whether a replica that must not start again may end: not if others wait for it, for the first time or to vote.
    pub(super) fn may_stop(&self, of: usize) -> bool {
        let met = |at: usize| self.machines[at].stopped || self.machines[at].files.met_all;
        (0..self.plan.replicas).all(met) && self.votes_wherever_it_may(of)
    }

    /// Whether every group has a member of the first one as a voter: if not, a group may wait for it, or may come to.
    fn votes_wherever_it_may(&self, of: usize) -> bool {
        let id = self.machines[of].id;
        self.checks[FIRST].log.group().member(id).is_none()
            || self.checks.all().all(|checks| checks.log.group().votes(id))
    }

    /// Whether a replica is out until an operator acts, because it was wiped or has still to meet one that was.
    pub(super) fn is_out(&self, of: usize) -> bool {
        self.would_be_out(of, None)
    }

    /// Whether it is out, or would be if the replica `were` were wiped.
    fn would_be_out(&self, at: usize, were: Option<usize>) -> bool {
        let gone = |other: &usize| {
            let machine = &self.machines[*other];
            Some(*other) == were || machine.wiped || machine.stopped
        };
        let files = &self.machines[at].files;
        let met = |other: usize| files.is_welcomed_by(self.machines[other].id);
        let first = 0..self.plan.replicas;
        gone(&at) || first.contains(&at) && !files.met_all && !first.filter(gone).all(met)
    }

    /// Whether a replica waits for members alone that were removed and are gone. Its operator, who knows that it has
    /// kept its data, ends that (`docs/identity.md`).
    fn waits_for_the_removed(&self, of: usize) -> bool {
        let machine = &self.machines[of];
        let kept = !machine.wiped && !machine.stopped && !machine.retired;
        let missing: Vec<_> =
            self.others_at_first(of).filter(|id| !machine.files.is_welcomed_by(*id)).collect();
        let removed = |id: &ReplicaId| self.machines[self.index(*id)].retired;
        kept && !machine.files.met_all && !missing.is_empty() && missing.iter().all(removed)
    }

    /// An operator starts a replica that would wait for removed members alone.
    pub(super) fn begin_without_the_removed(&mut self, of: usize) {
        if self.waits_for_the_removed(of) {
            self.note(of, chart::Mark::Note, || "is told not to wait for removed members".to_owned());
            self.coverage.begun_without_all += 1;
            self.machines[of].files.wait_for_nobody();
        }
    }

    /// An operator restarts the replicas that wait for removed members alone.
    pub(super) fn end_waits_for_the_removed(&mut self) {
        let may_restart = self.plan.durability.may_restart();
        for of in (0..self.machines.len()).filter(|_| may_restart) {
            if self.machines[of].is_alive() && self.waits_for_the_removed(of) {
                self.crash_for_a_while(of);
            }
        }
    }

    /// Takes everything that a replica had, and starts it as if it had never existed.
    pub(super) fn wipe(&mut self, of: usize) {
        if !self.may_lose(of) || self.machines[of].wiped || !self.may_be_wiped(of) {
            return;
        }
        self.crash(of);
        self.take_everything(of);
        self.machines[of].copy = None;
        self.restart_later(of);
    }

    /// Takes everything that a replica had that does not run.
    pub(crate) fn take_everything(&mut self, of: usize) {
        self.note(of, chart::Mark::Note, || {
            "loses all its data, and is started as if it never was".to_owned()
        });
        self.coverage.wiped += 1;
        self.coverage.joiners_wiped += u64::from(of >= self.plan.replicas);
        let machine = &mut self.machines[of];
        machine.disk = machine.disk.wiped();
        machine.disk.lost = true;
        let groups = machine.delivered.groups().len();
        machine.files = Files::new(machine.files.birth + 1000, groups);
        (machine.wiped, machine.copied) = (true, false);
        // A first member that begins as if it never was is made of the backup once more.
        if let Some(backup) = self.backup.as_ref().filter(|_| of < self.plan.replicas) {
            machine.begin_with(file_of(backup, &self.plan));
        }
    }

    /// Keeps a copy of all that a replica has.
    pub(crate) fn copy_disk(&mut self, of: usize) {
        let machine = &mut self.machines[of];
        machine.copy = Some(Box::new((machine.disk.copy(), machine.files.clone())));
    }

    /// Puts the copy in the place of what a replica has that does not run, and keeps that as the copy; returns whether
    /// there is one. A copy that was made before it lost everything gives back what it lost.
    pub(crate) fn put_copy_back(&mut self, of: usize) -> bool {
        let machine = &mut self.machines[of];
        let Some(copy) = machine.copy.take() else { return false };
        let (disk, files) = *copy;
        (machine.copied, machine.wiped) = (!machine.wiped, false);
        let replaced =
            (std::mem::replace(&mut machine.disk, disk), std::mem::replace(&mut machine.files, files));
        machine.copy = Some(Box::new(replaced));
        // What is checked of its log begins again with what the copy holds.
        machine.disk.lost = true;
        true
    }
}

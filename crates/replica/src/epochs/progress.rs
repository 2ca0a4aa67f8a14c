//! Replicas tell each other how far they are. From that follows which replica is answered, or promoted, which leader is
//! followed, and when a removed replica ends its service.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use synod_consensus::{Bug, Input, LeaderView, Link};
use synod_wire::{Epoch, ReplicaId, Slot, Time};

use crate::{
    Action, Change, ChangeRequest, GROUP_MEMBERS_MAX, Group, Membership, PeerMessage, Replica, StateTransfer,
};

/// Which replicas are told how far this one is, and what others told of themselves.
#[derive(Debug, Default)]
pub(crate) struct ProgressReports {
    /// When others were last told, and how far this replica was then.
    told_at: Time,
    told: Slot,
    /// The replicas that were answered a short time ago how far this one is, each with the time.
    answered: BTreeMap<ReplicaId, Time>,
    /// How far learners are.
    learners: BTreeMap<ReplicaId, Learner>,
    /// The learner that got no vote when this replica last asked for one.
    refused: Option<ReplicaId>,
    /// The voters that entered the epoch in which this replica is not a member any more.
    successors: BTreeSet<ReplicaId>,
    /// A quorum of these goes on without this replica, which asks and tells nothing until it is called back.
    retired: bool,
    /// The slot after which another replica said that this one is a member.
    called: Slot,
    /// When this replica last asked for a change by itself.
    asked_at: Time,
}

/// How far a learner is.
#[derive(Clone, Copy, Debug)]
struct Learner {
    /// The slot of the change that made it a learner, or a later one.
    added: Slot,
    /// How far it last said it is, and when.
    decided: Slot,
    heard: Time,
}

impl Learner {
    /// A learner that was added with this slot, or before it, and has said nothing yet.
    fn new(added: Slot) -> Learner {
        Learner { added, decided: Slot::ZERO, heard: Time::ZERO }
    }
}

impl ProgressReports {
    /// Records the members of a group, of which slots through `decided` tell. A replica that finds in them that
    /// it came back says how far it is, also if nobody called it.
    pub(crate) fn group_changed(&mut self, me: ReplicaId, group: &Group, decided: Slot) {
        self.retired &= group.member(me).is_none();
        self.learners.retain(|&id, _| group.member(id).is_some());
        for (id, _) in group.learners() {
            self.learners.entry(id).or_insert(Learner::new(decided));
        }
        self.successors.clear();
    }

    /// Whether others go on without this replica.
    pub(crate) fn is_retired(&self) -> bool {
        self.retired
    }

    /// Records how far a learner says it is. It is a member after slot `added`, if nothing else is known.
    fn heard_learner(&mut self, id: ReplicaId, decided: Slot, added: Slot, now: Time) {
        let learner = self.learners.entry(id).or_insert(Learner::new(added));
        (learner.decided, learner.heard) = (decided, now);
    }

    /// Another life of a learner begins, which has said nothing yet.
    pub(crate) fn begins_again(&mut self, id: ReplicaId) {
        if let Some(learner) = self.learners.get_mut(&id) {
            *learner = Learner::new(learner.added);
        }
    }

    /// How far learners are, as they last said.
    pub(crate) fn progress(&self) -> impl Iterator<Item = (ReplicaId, Slot)> + '_ {
        self.learners.iter().map(|(&id, learner)| (id, learner.decided))
    }

    /// Whether the learner reported within `timeout` that it holds all slots through `decided` and the change that
    /// added it.
    pub(crate) fn has_learned(&self, id: ReplicaId, decided: Slot, now: Time, timeout: Duration) -> bool {
        self.learners.get(&id).is_some_and(|learner| {
            learner.decided >= learner.added.max(decided) && now.since(learner.heard) <= timeout
        })
    }

    /// Whether a learner said less than `timeout` ago how far it is.
    fn has_spoken(&self, id: ReplicaId, now: Time, timeout: Duration) -> bool {
        self.learners
            .get(&id)
            .is_some_and(|learner| learner.heard > Time::ZERO && now.since(learner.heard) <= timeout)
    }

    /// Of the learners that can be promoted, the one to promote next: one that can get no vote does not keep the others
    /// waiting.
    pub(crate) fn next_to_promote(&self, ready: &[ReplicaId]) -> Option<ReplicaId> {
        let next = ready.iter().find(|&&id| self.refused.is_some_and(|refused| id > refused));
        next.or(ready.first()).copied()
    }

    /// Records that a learner got no vote when this replica asked for one.
    pub(crate) fn refuse(&mut self, learner: ReplicaId) {
        self.refused = Some(learner);
    }

    /// When this replica may ask for a change by itself again, if that takes `interval` each time.
    pub(crate) fn may_ask_at(&self, interval: Duration) -> Time {
        self.asked_at + interval
    }

    /// Lets this replica ask again, since it asked for a change too early.
    pub(crate) fn may_ask_again(&mut self) {
        self.asked_at = Time::ZERO;
    }
}

/// What a peer says of itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    pub id: ReplicaId,
    /// The epoch that it entered last.
    pub epoch: Epoch,
    /// How far it is.
    pub decided: Slot,
    /// The leader that it knows.
    pub view: LeaderView,
}

/// What this replica goes by when a peer says how far it is.
#[derive(Clone, Copy, Debug)]
struct OwnProgress<'a> {
    me: ReplicaId,
    /// The group after slot `decided`.
    group: &'a Group,
    decided: Slot,
    /// The epoch that it entered last.
    running: Epoch,
    /// Whether its protocol runs.
    orders: bool,
    view: LeaderView,
}

/// What a peer is to this replica, given how far it says it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Concerns {
    /// The peer is a member that does not take part in ordering yet: it may be sent what it lacks.
    joins: bool,
    /// The peer is a learner, which may be promoted.
    learns: bool,
    /// The peer waits for an answer of how far this replica is.
    wants_answer: bool,
    /// The peer goes on without this replica, which was removed.
    succeeds: bool,
    /// The peer takes part in the epoch whose protocol runs here.
    orders: bool,
}

impl OwnProgress<'_> {
    /// What a peer is to this replica.
    fn concerns(&self, peer: &Peer) -> Concerns {
        let &Peer { id, epoch, decided, .. } = peer;
        let (group, me) = (self.group, self.me);
        // The sender was removed, and wants to know whether it is still needed; or it does not know that it
        // votes. A replica that is ahead knows more of the group than this one. (So a replica that is answered
        // does not answer in turn: it lags then, or is at the same place, where both say the same of the group.)
        let removed = decided <= self.decided && group.member(id).is_none() && group.votes(me);
        let lost = decided < self.decided && group.votes(id) && self.orders;
        // The sender takes this replica for a voter, which has left as well, and knows where the group went.
        let followed = decided < self.decided && group.member(id).is_none() && group.is_away(me);
        // A replica that is still to join is not a member yet, as far as it knows.
        let left = group.member(me).is_none() && me < group.next_id;
        Concerns {
            joins: group.awaits(id, decided),
            learns: group.learners().any(|(learner, _)| learner == id),
            wants_answer: (removed || lost || followed) && epoch <= self.running,
            succeeds: left && epoch >= group.epoch && group.votes(id),
            orders: epoch == self.running && self.orders && group.votes(id),
        }
    }

    /// Whether this replica, whose own protocol does not run and tells it of no leader, takes the leader that a peer
    /// knows for its own.
    fn takes_leader_from(&self, peer: &Peer) -> bool {
        let view = peer.view;
        let news = view.leader.is_some() && view.leader != Some(self.me) && view != self.view;
        // Nothing of an epoch before the one that was entered is taken, though what led to that one may still
        // have to be learned again: it would be taken, and told, for something of this epoch, and ballots of
        // different epochs do not compare.
        let may_lead = peer.epoch >= self.running && view.ballot >= self.view.ballot;
        !self.orders && may_lead && news
    }
}

impl Replica {
    /// Handles a message of an epoch whose protocol does not run here.
    pub(crate) fn heard_other_epoch(&mut self, from: ReplicaId, epoch: Epoch, actions: &mut Vec<Action>) {
        if epoch < self.known.running {
            actions.push(self.progress_to(from, false));
            return;
        }
        // What a protocol says is meant for members of its epoch.
        let decided = if epoch == self.known.running { self.needed() } else { self.decided.last().next() };
        self.called(from, decided);
        if self.known.early.len() < GROUP_MEMBERS_MAX || self.known.early.contains_key(&from) {
            self.known.early.insert(from, epoch);
        }
    }

    /// Whether a replica is heard in the epoch that runs here for the first time.
    pub(crate) fn meets(&mut self, from: ReplicaId) -> bool {
        !self.known.met.contains(&from)
            && self.known.met.len() < GROUP_MEMBERS_MAX
            && self.known.met.insert(from)
    }

    /// Records that a replica, which keeps slots from `kept` on, calls this one a member after slot `decided`.
    pub(crate) fn called_back(&mut self, now: Time, from: ReplicaId, kept: Slot, decided: Slot) {
        self.called(from, decided);
        self.catch_up.told(from, kept, decided, now);
    }

    /// Records that a replica has this one for a member after slot `decided`. This replica may have left the group
    /// before, and finds in what it lacks that it came back.
    fn called(&mut self, from: ReplicaId, decided: Slot) {
        if decided > self.decided.last() {
            self.reports.called = self.reports.called.max(decided);
            self.reports.retired = false;
        }
        self.known.hears_of(decided);
        self.heard_ahead(from, decided);
    }

    fn heard_ahead(&mut self, from: ReplicaId, decided: Slot) {
        if decided > self.decided.last() {
            self.catch_up.heard(from);
        }
    }

    /// The message of how far this replica is. `sought` says that the receiver asked which replicas hear the leader.
    pub(crate) fn progress_to(&self, to: ReplicaId, sought: bool) -> Action {
        let message = PeerMessage::Progress {
            epoch: self.known.running,
            kept: self.decided.first(),
            decided: self.decided.last(),
            view: self.view,
            sought,
        };
        Action::Send { to: to.into(), message, after: self.known.entered }
    }

    /// The message that what was sent here in this epoch could not be taken in.
    pub(crate) fn tell_missed(&self, to: ReplicaId) -> Action {
        let message = PeerMessage::Missed { epoch: self.known.running };
        Action::Send { to: to.into(), message, after: self.known.entered }
    }

    /// What this replica goes by when a peer says how far it is.
    fn own_progress(&self) -> OwnProgress<'_> {
        OwnProgress {
            me: self.me,
            group: &self.group,
            running: self.known.running,
            orders: self.instance.runs(),
            decided: self.decided.last(),
            view: self.view,
        }
    }

    pub(crate) fn heard_progress(&mut self, now: Time, peer: Peer, kept: Slot, actions: &mut Vec<Action>) {
        let Peer { id, decided, view, .. } = peer;
        let concerns = self.own_progress().concerns(&peer);
        self.known.hears_of(decided);
        self.heard_ahead(id, decided);
        self.catch_up.told(id, kept, decided, now);
        if self.is_pushed_to() && view.leader != Some(id) {
            // A replica that says only how far it is does not send what it has, so it has to be asked.
            self.catch_up.sends_nothing(now, &self.pace());
        }
        if concerns.joins {
            self.heard_joining(now, id, decided, actions);
        }
        if concerns.learns {
            self.reports.heard_learner(id, decided, self.decided.last(), now);
            // This has to happen now, while the learner is up to date: on a busy log it will not be when this
            // replica tells it of more.
            self.promote_learners(now);
        }
        if concerns.wants_answer {
            self.answer_progress(now, id, actions);
        }
        if concerns.succeeds {
            self.reports.successors.insert(id);
            self.retire(actions);
        }
        if concerns.orders && self.meets(id) {
            // What the sender was sent in this epoch before is lost, as if a session had ended.
            self.input(now, Input::Link { peer: id, link: Link::Renewed }, actions);
        }
        // The protocol may have gone on meanwhile.
        if self.own_progress().takes_leader_from(&peer) {
            self.leader_changed(now, view, actions);
        }
    }

    /// Tells a lagging replica how far this one is, at most twice a heartbeat. (While slots are decided, a
    /// replica that answers is ahead of the one that it hears, and would be answered in turn.)
    pub(crate) fn answer_progress(&mut self, now: Time, to: ReplicaId, actions: &mut Vec<Action>) {
        let interval = self.settings.consensus.heartbeat_interval / 2;
        self.reports.answered.retain(|_, at| now < *at + interval);
        if self.reports.answered.contains_key(&to) {
            return;
        }
        self.reports.answered.insert(to, now);
        actions.push(self.progress_to(to, false));
    }

    /// Ends the service of a replica that is not a member any more, once a quorum went on without it.
    fn retire(&mut self, actions: &mut Vec<Action>) {
        let voters = if self.has(Bug::RetireEarly) { 1 } else { self.group.voters().count() };
        // The replicas that voted before may still be needed; see `docs/epochs.md`.
        let settled = self.group.outgoing.is_empty() || self.has(Bug::RetireUnsettled);
        let knows = self.decided.last() >= self.reports.called;
        if settled
            && knows
            && self.reports.successors.len() >= self.group.threshold().least(voters)
            && !self.reports.retired
        {
            self.reports.retired = true;
            actions.push(Action::Retired);
        }
    }

    /// Whether this replica tells the voters how far it is: a learner or a removed replica, of which the leader asks
    /// nothing.
    fn tells_voters(&self) -> bool {
        let orders = self.instance.runs() && self.group.counts(self.me);
        !self.takes_care() && !orders && !self.reports.retired
    }

    /// The replicas to tell how far this one is.
    fn listeners(&self) -> impl Iterator<Item = ReplicaId> + '_ {
        let (takes_care, tells_voters) = (self.takes_care(), self.tells_voters());
        let learners = self.group.learners().map(|(id, _)| id).filter(move |_| takes_care);
        let voters = self.group.voters().filter(move |_| tells_voters);
        learners.chain(voters).filter(|id| *id != self.me)
    }

    /// Whether others send this replica what it lacks without being asked.
    pub(crate) fn is_pushed_to(&self) -> bool {
        self.settings.state_transfer == StateTransfer::Eager && !self.instance.runs() && !self.reports.retired
    }

    /// Tells a peer how far this replica is, if the peer has to be told, when a session to it begins.
    pub(crate) fn greet(&self, peer: ReplicaId, actions: &mut Vec<Action>) {
        if self.listeners().any(|id| id == peer) {
            actions.push(self.progress_to(peer, false));
        }
    }

    /// When [`Replica::tell_progress`] has something to do.
    pub(crate) fn progress_at(&self) -> Option<Time> {
        if self.wants_readmission() {
            return Some(self.reports.may_ask_at(self.ask_interval()));
        }
        self.listeners().next()?;
        Some(self.reports.told_at + self.tell_interval())
    }

    fn tell_interval(&self) -> Duration {
        let options = &self.settings.consensus;
        // A replica that is sent slots without asking says what it got: then it is sent more, or promoted.
        // (What it said a while ago is never all that there is, even if the log grows slowly.)
        let soon = self.takes_care() || self.is_pushed_to() || self.is_to_vote();
        if soon && self.decided.last() > self.reports.told {
            options.announce_delay_max
        } else {
            options.heartbeat_interval
        }
    }

    pub(crate) fn ask_interval(&self) -> Duration {
        self.settings.consensus.election_timeout * 2
    }

    /// Tells the replicas that wait for it how far this one is, and asks for the changes that it wants.
    pub(crate) fn tell_progress(&mut self, now: Time, actions: &mut Vec<Action>) {
        if self.wants_readmission() && now >= self.reports.may_ask_at(self.ask_interval()) {
            let change = Change::Readmit { id: self.me, life: self.incarnation, birth: self.own_birth() };
            self.ask_for(now, change);
        }
        if self.instance.runs() {
            // The protocol runs now: replicas that spoke to it before need not wait until it is time to say it again.
            let running = self.known.running;
            let early = self.known.early.extract_if(.., |_, epoch| *epoch <= running);
            let early: Vec<_> = early.map(|(id, _)| id).collect();
            actions.extend(early.into_iter().map(|to| self.progress_to(to, false)));
        }
        if self.listeners().next().is_none() || now < self.reports.told_at + self.tell_interval() {
            return;
        }
        self.reports.told_at = now;
        self.reports.told = self.decided.last();
        actions.extend(self.listeners().map(|to| self.progress_to(to, false)));
        self.call_back(now, actions);
        self.promote_learners(now);
    }

    /// Calls replicas that may have left the group before, and then ask nobody whether they are members again. The
    /// caretaker calls learners that say nothing. A voter hears the protocol of its epoch; but too few voters may know
    /// that they vote for it to run anywhere, so where nobody leads, those that tell the voters how far they are call
    /// them.
    fn call_back(&self, now: Time, actions: &mut Vec<Action>) {
        if !matches!(self.group.membership, Membership::Follows(_)) {
            return;
        }
        let silent =
            |id: &ReplicaId| !self.reports.has_spoken(*id, now, self.settings.consensus.election_timeout);
        let leaderless = self.leaderless_from().is_some_and(|from| now >= from);
        let learners = self.group.learners().map(|(id, _)| id).filter(|id| self.takes_care() && silent(id));
        let voters = self.group.voters().filter(|_| leaderless && self.tells_voters());
        let (kept, decided) = (self.decided.first(), self.decided.last());
        for to in learners.chain(voters).filter(|id| *id != self.me) {
            let message = PeerMessage::Rejoin { kept, decided };
            actions.push(Action::Send { to: to.into(), message, after: self.known.entered });
        }
    }

    /// Whether this replica should ask for an epoch in which it may take part again.
    fn wants_readmission(&self) -> bool {
        let learns = !self.group.votes(self.me) && self.group.runs_at(self.me);
        (self.instance.runs() || learns)
            && !self.is_disowned()
            && !self.group.protocol.recovers_itself()
            && self.view.leader.is_some()
            && self.forgets()
    }

    pub(crate) fn ask_for(&mut self, now: Time, change: Change) {
        self.reports.asked_at = now;
        let request = ChangeRequest { expected: self.group.version, change };
        self.requests.add_own(now, None, request.kind(), &request.encode().to_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Choice, Event, Goal, Others, Recovered, Settings, decided::Decided};
    use synod_consensus::{Options, raft};
    use synod_wire::{Ballot, Ballots, Batch, BatchBuilder, CommandKind, Incarnation, Lsn, SessionId};

    const R1: ReplicaId = ReplicaId(1);
    const R3: ReplicaId = ReplicaId(3);
    const R4: ReplicaId = ReplicaId(4);
    const NOTHING: Concerns =
        Concerns { joins: false, learns: false, wants_answer: false, succeeds: false, orders: false };

    fn group() -> Group {
        Group::of(&Options::default(), (1..=3).map(ReplicaId))
    }

    fn changed(group: &Group, change: Change) -> Group {
        let request = ChangeRequest { expected: group.version, change };
        group.apply(Slot(10), &request).expect("a change that can be made")
    }

    /// Replica 1 in the group's epoch, with slots through 20.
    fn own_progress(group: &Group, orders: bool) -> OwnProgress<'_> {
        let (running, decided, view) = (group.epoch, Slot(20), LeaderView::default());
        OwnProgress { me: R1, group, decided, running, orders, view }
    }

    fn peer(id: u64, epoch: Epoch, decided: u64) -> Peer {
        Peer { id: ReplicaId(id), epoch, decided: Slot(decided), view: LeaderView::default() }
    }

    #[test]
    fn a_voter_that_lags_is_answered_where_the_protocol_runs_and_one_that_is_ahead_is_not() {
        let group = group();
        let epoch = group.epoch;
        let orders = Concerns { orders: true, ..NOTHING };
        let at = |place: OwnProgress<'_>, decided| place.concerns(&peer(2, epoch, decided));
        assert_eq!(at(own_progress(&group, true), 20), orders);
        assert_eq!(at(own_progress(&group, true), 19), Concerns { wants_answer: true, ..orders });
        assert_eq!(at(own_progress(&group, false), 19), NOTHING);
        let later = peer(2, Epoch(epoch.0 + 1), 19);
        assert_eq!(own_progress(&group, true).concerns(&later), NOTHING, "it knows more than this replica");
    }

    #[test]
    fn a_removed_replica_is_answered_until_it_knows_and_retires_by_what_its_successors_say() {
        let without = |removed| changed(&group(), Change::Remove(ReplicaId(removed)));
        let others = without(3);
        let answered = Concerns { wants_answer: true, ..NOTHING };
        assert_eq!(own_progress(&others, true).concerns(&peer(3, Epoch(1), 20)), answered);
        assert_eq!(own_progress(&others, true).concerns(&peer(3, Epoch(1), 21)), NOTHING);
        let mine = without(1);
        let succeeds = Concerns { succeeds: true, ..NOTHING };
        assert_eq!(own_progress(&mine, false).concerns(&peer(2, mine.epoch, 21)), succeeds);
        assert_eq!(
            own_progress(&mine, false).concerns(&peer(2, Epoch(1), 21)),
            NOTHING,
            "it may still need this one"
        );
        let to_join = OwnProgress { me: R4, ..own_progress(&mine, false) };
        assert_eq!(to_join.concerns(&peer(2, mine.epoch, 21)), NOTHING, "it was never a member");
    }

    #[test]
    fn a_learner_and_a_voter_without_the_beginning_of_the_epoch_join() {
        let with_learner =
            changed(&group(), Change::Add { info: crate::MemberInfo::default(), goal: Goal::Vote });
        let learns = Concerns { joins: true, learns: true, ..NOTHING };
        assert_eq!(own_progress(&with_learner, true).concerns(&peer(4, Epoch(1), 15)), learns);
        let promoted = changed(&with_learner, Change::promote(R4));
        let joins = |decided| own_progress(&promoted, true).concerns(&peer(4, Epoch(1), decided)).joins;
        assert!(joins(9) && !joins(10), "the epoch begins with slot 11");
    }

    #[test]
    fn a_leader_is_taken_from_others_only_where_no_protocol_runs_and_never_an_older_one() {
        let group = group();
        let view = |leader, round| LeaderView {
            leader: Some(ReplicaId(leader)),
            ballot: Ballot { round, ..Ballot::ZERO },
        };
        let says = |leader, round, epoch| Peer { view: view(leader, round), ..peer(2, epoch, 20) };
        let knows = OwnProgress { view: view(3, 5), ..own_progress(&group, false) };
        let epoch = group.epoch;
        assert!(knows.takes_leader_from(&says(2, 6, epoch)));
        assert!(!knows.takes_leader_from(&says(2, 4, epoch)) && !knows.takes_leader_from(&says(3, 5, epoch)));
        assert!(!knows.takes_leader_from(&says(1, 6, epoch)), "that is this replica");
        assert!(!knows.takes_leader_from(&says(2, 6, Epoch(epoch.0 - 1))));
        let orders = OwnProgress { orders: true, ..knows };
        assert!(!orders.takes_leader_from(&says(2, 6, epoch)));
    }

    /// A replica that steps through what it hears.
    struct Node {
        replica: Replica,
        now: Time,
        actions: Vec<Action>,
    }

    impl Node {
        fn new(me: ReplicaId, group: Group) -> Node {
            let now = Time::ZERO + Duration::from_secs(3600);
            let recovered = Recovered {
                records: Vec::new(),
                last_lsn: Lsn::ZERO,
                snapshot: None,
                amnesia: false,
                birth: me.0,
                incarnation: Incarnation(1),
                nonce: 1,
                met_all: true,
            };
            let mut actions = Vec::new();
            let replica = Replica::start(Settings::default(), me, group, recovered, now, &mut actions);
            Node { replica, now, actions }
        }

        fn hears(&mut self, from: u64, message: PeerMessage) {
            let event = Event::Receive { from: ReplicaId(from), message };
            self.replica.step(self.now, event, &mut self.actions);
        }

        /// What it sends after a while in which it hears nothing.
        fn sends(&mut self) -> Vec<(ReplicaId, PeerMessage)> {
            self.now += Duration::from_secs(60);
            self.actions.clear();
            self.replica.flush(self.now, &mut self.actions);
            let sent = self.actions.drain(..).flat_map(|action| match action {
                Action::Send { to, message, .. } => {
                    to.ids().iter().map(|&to| (to, message.clone())).collect::<Vec<_>>()
                }
                _ => Vec::new(),
            });
            sent.collect()
        }
    }

    /// A group after a choice of its voters, and the batch with the choice.
    fn placed(group: &Group, voters: &[u64]) -> (Group, Batch) {
        let choice = Choice::of(voters.iter().copied().map(ReplicaId), Others::StayAway);
        let request = ChangeRequest { expected: group.version, change: Change::Place(Some(choice)) };
        let mut builder = BatchBuilder::new();
        builder.push_as(CommandKind::Reconfigure, SessionId(1), 1, 1, &request.encode().to_bytes());
        (group.apply(Slot(group.version), &request).expect("it can be made"), builder.finish())
    }

    fn fetched(from: u64, batch: Batch) -> PeerMessage {
        let batches = vec![Decided { ballots: Ballots::ZERO, batch }];
        PeerMessage::Fetched { from: Slot(from), kept: Slot(1), decided: Slot(2), batches }
    }

    fn progress(epoch: Epoch, decided: u64) -> PeerMessage {
        let (kept, decided, view) = (Slot(1), Slot(decided), LeaderView::default());
        PeerMessage::Progress { epoch, kept, decided, view, sought: false }
    }

    /// Replica 3, which was sent away with slot 1 and retired, and the choice that brings it back.
    fn away() -> (Node, Group, Batch) {
        let begins = group().following(1);
        let (left, leaves) = placed(&begins, &[1, 2]);
        let (_, returns) = placed(&left, &[1, 2, 3]);
        let mut node = Node::new(R3, begins);
        node.hears(1, fetched(1, leaves));
        assert!(node.replica.group().is_away(R3));
        [1, 2].into_iter().for_each(|from| node.hears(from, progress(left.epoch, 2)));
        assert!(node.replica.reports.is_retired());
        (node, left, returns)
    }

    fn asks(sent: &[(ReplicaId, PeerMessage)]) -> bool {
        sent.iter().any(|(_, message)| matches!(message, PeerMessage::Fetch { from: Slot(2), .. }))
    }

    /// A replica that is away has asked for what it lacks when a quorum says that it goes on without it. It finds in
    /// the answer, which comes after that, that it was chosen again, and tells the voters how far it is: the group may
    /// decide nothing more until it votes, so that no later call could reach it.
    #[test]
    fn a_replica_that_finds_late_that_it_came_back_says_how_far_it_is() {
        let (mut node, _, returns) = away();
        node.hears(1, fetched(2, returns));
        let group = node.replica.group();
        assert!(!group.votes(R3) && group.member(R3).is_some());
        let tells = |sent: &(_, _)| matches!(sent.1, PeerMessage::Progress { decided: Slot(2), .. });
        assert!(node.sends().iter().any(tells));
    }

    /// A voter may lose the slots that brought it back, once it has got its vote, and hear then that others go on
    /// without it, as far as it knows. No caretaker calls a voter.
    #[test]
    fn a_voter_that_takes_itself_for_away_asks_what_it_lacks_once_it_hears_the_protocol_of_a_later_epoch() {
        let (mut node, left, _) = away();
        assert!(!asks(&node.sends()), "it is quiet");
        let message = raft::Message::Commit { ballot: Ballot { round: 1, replica: R1 }, through: Slot(100) };
        let of = |epoch| PeerMessage::Protocol { epoch, message: message.clone().into() };
        node.hears(1, of(Epoch(left.epoch.0 - 1)));
        assert!(!asks(&node.sends()), "it has left that epoch");
        node.hears(1, of(Epoch(left.epoch.0 + 1)));
        assert!(asks(&node.sends()));
        [1, 2].into_iter().for_each(|from| node.hears(from, progress(Epoch(left.epoch.0 + 1), 2)));
        assert!(!node.replica.reports.is_retired(), "it has not come to where it was called");
    }

    /// The only voter of an epoch may not know that it is one. Then no protocol runs, and nobody takes care.
    #[test]
    fn where_nobody_leads_a_replica_that_takes_no_part_calls_the_voters() {
        let calls = |sent: &[(ReplicaId, PeerMessage)]| {
            let called = sent.iter().filter(|(_, message)| matches!(message, PeerMessage::Rejoin { .. }));
            called.map(|(to, _)| to.0).collect::<Vec<_>>()
        };
        let begins = group().following(1);
        let (_, leaves) = placed(&begins, &[1, 2]);
        let mut node = Node::new(R3, begins.clone());
        assert_eq!(calls(&node.sends()), [], "it orders");
        node.hears(1, fetched(1, leaves));
        assert_eq!(calls(&node.sends()), [1, 2]);
        let (mut voter, ..) = away();
        voter.hears(1, PeerMessage::Rejoin { kept: Slot(1), decided: Slot(2) });
        assert!(asks(&voter.sends()));
    }
}

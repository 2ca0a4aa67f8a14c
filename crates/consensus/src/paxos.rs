//! What the protocols of the Paxos family share whatever they order: ballots that one replica owns, the promise
//! not to act in a lower one, an [`Election`] that says when to try to lead, and what follows for leaders and
//! followers. `leadership.rs` has what is true of every leader, `acceptor.rs` the slots.

use synod_wire::{Ballot, Lsn, ReplicaId, Slot, Time};

use crate::{
    Effects, LeaderView, Link, Members, Options, Record, Role, Status,
    acceptor::{Accepted, AcceptedValue, Acceptor},
    disk_watch::DiskWatch,
    election::{self, Advice, Election},
    leadership::{Leads, Reported},
    planted,
    progress_watch::ProgressWatch,
    replay::Replayed,
    rules::Rules,
};

/// A follower that has heard nothing for this many election time-outs, and reaches no quorum, reports that no leader is
/// known. A follower that reaches a quorum keeps its leader: only its own link may be down, or the others are about to
/// elect another.
const SILENT_TIMEOUTS: u32 = 2;

/// What a replica keeps in every protocol of the family.
#[derive(Clone, Debug)]
pub(crate) struct Common {
    pub(crate) members: Members,
    pub(crate) options: Options,
    pub(crate) election: Box<dyn Election>,
    /// The highest promised ballot: lower ones are not answered any more.
    pub(crate) promised: Ballot,
    /// The record that holds `promised`.
    pub(crate) promised_lsn: Lsn,
    /// The first slot of the last page of that promise that this replica was asked for.
    page: Slot,
    pub(crate) reported: Reported,
    /// Slots through this one are known to be decided by some replica.
    pub(crate) decided_elsewhere: Slot,
    /// Records through this one are on stable storage.
    pub(crate) durable: Lsn,
    /// When this replica last heard of the leader that it knows.
    heard_leader_at: Time,
    pub(crate) disk: DiskWatch,
    /// The progress of this replica as a leader, or else that of its leader.
    pub(crate) progress: ProgressWatch,
    /// Whether the executor lags, so that nothing is accepted.
    pub(crate) backlogged: bool,
    /// The time of the present step.
    pub(crate) now: Time,
}

impl Common {
    /// What a replica keeps when it starts, everything through slot `base` being decided and nothing promised.
    pub(crate) fn new(
        options: Options,
        members: Members,
        election: Box<dyn Election>,
        base: Slot,
        effects: &Effects,
    ) -> Common {
        Common {
            members,
            options,
            election,
            promised: Ballot::ZERO,
            promised_lsn: Lsn::ZERO,
            page: Slot::ZERO,
            reported: Reported::default(),
            decided_elsewhere: base,
            durable: effects.last_lsn(),
            heard_leader_at: Time::ZERO,
            disk: DiskWatch::default(),
            progress: ProgressWatch::default(),
            backlogged: false,
            now: Time::ZERO,
        }
    }

    /// The answers to questions about a replica ([`crate::Protocol::status`]).
    pub(crate) fn status(&self, role: Role, decided: Slot, in_flight: usize, waits_for_disk: bool) -> Status {
        let decided_elsewhere = self.decided_elsewhere.max(decided);
        Status { role, view: self.reported.view, decided, decided_elsewhere, in_flight, waits_for_disk }
    }

    /// [`Paxos::progress`] where each slot is decided by itself.
    pub(crate) fn progress_by_slot(&self, decided: Slot, in_flight: usize) -> (Slot, bool) {
        let has_work = in_flight > 0 || decided < self.decided_elsewhere;
        (decided, has_work && !self.is_congested())
    }

    /// A peer says what was decided in a slot. The record makes the log hold that, whatever was accepted here before.
    pub(crate) fn learn(
        &mut self,
        acceptor: &mut Acceptor,
        value: AcceptedValue,
        record: impl FnOnce(AcceptedValue) -> crate::Record,
        effects: &mut Effects,
    ) {
        self.decided_elsewhere = self.decided_elsewhere.max(value.slot);
        let through = self.rules().takes_through(acceptor.decided(), self.options.accept_ahead_max());
        if self.is_congested() || value.slot > through || acceptor.is_decided(value.slot) {
            return;
        }
        let AcceptedValue { slot, ballot, batch } = value.clone();
        let lsn = effects.append(record(value));
        acceptor.learn(slot, Accepted { ballot, batch, lsn });
        self.disk.given(lsn, 1);
    }

    /// The rules that the family shares.
    #[inline]
    pub(crate) fn rules(&self) -> Rules {
        planted::rules(&self.options)
    }

    /// The highest ballot that this replica knows of.
    pub(crate) fn highest_ballot(&self) -> Ballot {
        self.promised.max(self.reported.view.ballot)
    }

    /// Whether the executor or the disk lags so far that nothing more should be taken in. Where others decide without
    /// this replica, its decided prefix grows, so the window alone would not bound what it has to write.
    pub(crate) fn is_congested(&self) -> bool {
        self.backlogged || self.disk.slots() > 2 * self.options.accept_ahead_max()
    }

    /// Takes what the records of an earlier life say. Returns whether this replica may have forgotten something.
    pub(crate) fn replayed(&mut self, Replayed { promised, decided, lost }: Replayed) -> bool {
        self.promised = promised;
        self.decided_elsewhere = self.decided_elsewhere.max(decided);
        lost
    }

    /// Records through this one are on stable storage.
    pub(crate) fn became_durable(&mut self, now: Time, lsn: Lsn) {
        self.durable = self.durable.max(lsn);
        self.disk.durable(lsn, now);
        self.election.durable(lsn);
    }

    /// Sends a message to all other members, once record `after` is durable.
    pub(crate) fn broadcast(&self, message: impl Into<crate::Message>, after: Lsn, effects: &mut Effects) {
        effects.send(self.members.to_peers(), message, after);
    }

    /// Tells which replica leads, as far as this replica's own `role` and promise say it.
    #[inline]
    pub(crate) fn report_leader(&mut self, role: Role, effects: &mut Effects) {
        self.reported.role(role, self.members.me(), self.promised, effects);
    }

    /// This replica has just heard of the leader of this ballot.
    pub(crate) fn heard_of_leader(&mut self, now: Time, ballot: Ballot, effects: &mut Effects) {
        self.heard_leader_at = now;
        self.reported.leader(LeaderView { ballot, leader: Some(ballot.replica) }, effects);
    }

    /// What a replica without its memory takes from a message of this ballot: how far decisions go, and which replica
    /// leads, if that one sent it.
    pub(crate) fn heard_without_memory(
        &mut self,
        now: Time,
        from: ReplicaId,
        (ballot, decided): (Ballot, Slot),
        effects: &mut Effects,
    ) {
        self.decided_elsewhere = self.decided_elsewhere.max(decided);
        if ballot.replica == from && ballot >= self.reported.view.ballot {
            self.heard_of_leader(now, ballot, effects);
        }
    }

    /// Whether this follower has heard nothing of its leader for long, and reaches no quorum.
    fn has_lost_leader(&self, now: Time) -> bool {
        let silence = self.options.election_timeout * SILENT_TIMEOUTS;
        self.reported.view.leader.is_some()
            && now.since(self.heard_leader_at) >= silence
            && !self.election.reaches_quorum(now)
    }
}

/// Whether a replica takes part in elections: not if it must not vote, or has no vote.
fn takes_part_in_elections(role: Role) -> bool {
    !matches!(role, Role::Recovering | Role::Learner)
}

/// A message that every protocol of the family has, each in an encoding of its own.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FamilyMessage {
    /// The leader of `ballot` lives; slots through `decided` are decided.
    Heartbeat { ballot: Ballot, decided: Slot, round: u64 },
    /// A message came in a ballot below this one.
    Reject { promised: Ballot },
    /// The leader of `ballot` wants the receiver to lead.
    TakeOver { ballot: Ballot },
}

/// A protocol of the family: what differs comes first, the rest follows from it.
pub(crate) trait Paxos: Leads {
    /// What replicas say to each other.
    type Message: From<FamilyMessage> + Into<crate::Message>;

    /// What it keeps like every protocol of the family.
    fn common(&self) -> &Common;

    /// The same, to change it.
    fn common_mut(&mut self) -> &mut Common;

    /// What the replica does at the moment.
    fn role(&self) -> Role;

    /// The record of a promise of this ballot.
    fn promise_record(ballot: Ballot) -> Record;

    /// Asks all members for their promises of this ballot, which is this replica's own.
    fn become_candidate(&mut self, now: Time, ballot: Ballot, effects: &mut Effects);

    /// Whether this replica accepted something in this ballot after slot `known`.
    fn accepted_after(&self, known: Slot, ballot: Ballot) -> bool;

    /// A number of slots that grows whenever this leader makes progress, and whether it has something to decide.
    fn progress(&self) -> (Slot, bool);

    /// Sends again what was not answered in time. Called whenever the timer has fired.
    fn resend(&mut self, now: Time, effects: &mut Effects);

    /// When this replica has something to do, whatever the election says.
    fn own_deadline(&self) -> Time;

    /// The last slot that this leader proposed, where other members count votes too ([`Leads::reads_wait_for`]).
    fn proposed_if_all_count(&self) -> Option<Slot> {
        None
    }

    /// Whether a decision waits for this replica's disk ([`Status::waits_for_disk`]).
    fn waits_for_disk(&self) -> bool {
        matches!(self.role(), Role::Candidate | Role::Leader)
    }

    /// Goes on with what may have waited for what this replica has just been told, such as the decision of a slot.
    fn knows_more(&mut self, _now: Time, _effects: &mut Effects) {}

    /// A snapshot through this slot is durable.
    fn trim(&mut self, _slot: Slot, _effects: &mut Effects) {}

    /// Checks what is true of a replica between two steps.
    fn assert_invariants(&self) {}

    // Followers.

    /// Handles the ballot of a message that only its owner sends; returns false if it is too low to be obeyed.
    fn obeys(&mut self, now: Time, from: ReplicaId, ballot: Ballot, effects: &mut Effects) -> bool {
        let (promised, promised_lsn) = (self.common().promised, self.common().promised_lsn);
        if ballot.replica != from || !ballot.is_in_reach() {
            return false;
        }
        if !self.common().rules().may_obey(promised, ballot) {
            let reject = Self::Message::from(FamilyMessage::Reject { promised });
            effects.send(from, reject, promised_lsn);
            return false;
        }
        if ballot > promised {
            self.promise(now, ballot, effects);
        }
        true
    }

    /// Handles the ballot of a candidate that asks what was accepted from slot `first` on; returns false if it is too
    /// low to be obeyed. A candidate that asks for a later page has the one before it: it makes progress.
    fn obeys_prepare(
        &mut self,
        now: Time,
        from: ReplicaId,
        ballot: Ballot,
        first: Slot,
        effects: &mut Effects,
    ) -> bool {
        let known = ballot == self.common().promised;
        if !self.obeys(now, from, ballot, effects) {
            return false;
        }
        let common = self.common_mut();
        if known && first > common.page {
            common.election.promised(ballot, now);
        }
        common.page = if known { first.max(common.page) } else { first };
        true
    }

    /// Handles the ballot of a leader's message; returns false if it is too low to be obeyed.
    fn follow(&mut self, now: Time, from: ReplicaId, ballot: Ballot, effects: &mut Effects) -> bool {
        if !self.obeys(now, from, ballot, effects) {
            return false;
        }
        let stalls = self.leader_stalls(now, ballot);
        let common = self.common_mut();
        if !stalls {
            common.election.heard_leader(now);
        }
        common.heard_of_leader(now, ballot, effects);
        true
    }

    /// Whether this replica accepted something in this ballot that is not known to be decided, and nothing
    /// was decided for long.
    fn leader_stalls(&mut self, now: Time, ballot: Ballot) -> bool {
        let known = self.common().decided_elsewhere.max(self.decided());
        let waits = self.accepted_after(known, ballot);
        let Common { progress, options, .. } = self.common_mut();
        progress.stalls(now, known, waits, options.election_timeout)
    }

    /// A peer obeys no ballot below this one.
    fn handle_reject(&mut self, now: Time, promised: Ballot, effects: &mut Effects) {
        if promised > self.common().promised && promised.is_in_reach() {
            self.promise(now, promised, effects);
        }
    }

    /// The leader wants this replica to lead. A replica that lags would lead, and serve no client until it has caught
    /// up.
    fn handle_take_over(&mut self, now: Time, from: ReplicaId, ballot: Ballot, effects: &mut Effects) {
        let asked = ballot.replica == from && ballot == self.common().promised;
        if !asked || self.role() != Role::Follower {
            return;
        }
        let (promise, decided) = (Self::promise_record(ballot), self.decided());
        let common = self.common_mut();
        let known = common.decided_elsewhere.max(decided);
        if common.election.asked_to_lead(now, promise, known, effects) && known <= decided {
            let ballot = common.election.next_ballot(ballot);
            self.become_candidate(now, ballot, effects);
        }
    }

    // Elections.

    /// A message of the election came. A replica that must not vote follows no leader, and must not lead.
    fn handle_election(
        &mut self,
        now: Time,
        from: ReplicaId,
        message: &election::Message,
        effects: &mut Effects,
    ) {
        if takes_part_in_elections(self.role()) {
            self.common_mut().election.receive(now, from, message, effects);
            self.stand(now, effects);
        }
    }

    /// Begins to take part after a start. Returns whether no leader is expected, because nothing was ever promised
    /// here or because this replica is the only voter. Then it tries to lead at once if it has a head start or is
    /// alone.
    fn take_part(&mut self, head_start: bool, now: Time, effects: &mut Effects) -> bool {
        let common = self.common_mut();
        common.heard_leader_at = now;
        common.election.restarted(common.promised);
        let alone = common.members.count() == 1;
        let is_first = alone || common.promised == Ballot::ZERO;
        if is_first {
            common.election.expect_no_leader();
            if alone || head_start {
                let ballot = common.election.next_ballot(common.promised);
                self.become_candidate(now, ballot, effects);
            }
        }
        is_first
    }

    /// Begins to take part after a start, with what the log told of its promise.
    fn resume(&mut self, head_start: bool, now: Time, effects: &mut Effects) {
        let first = self.take_part(head_start, now, effects);
        if !first {
            planted::reuse_ballot(self, now, effects);
        }
    }

    /// Tells the election what happened to the session to a peer.
    fn link(&mut self, now: Time, peer: ReplicaId, link: Link, effects: &mut Effects) {
        if takes_part_in_elections(self.role()) {
            self.common_mut().election.link(now, peer, link, effects);
        }
    }

    /// Tries to lead if the election says so; returns whether it does.
    fn stand(&mut self, now: Time, effects: &mut Effects) -> bool {
        if !matches!(self.role(), Role::Follower | Role::Candidate) {
            return false;
        }
        let common = self.common_mut();
        let ballot = common.election.candidacy(now, common.highest_ballot(), effects);
        ballot.is_some_and(|ballot| {
            self.become_candidate(now, ballot, effects);
            true
        })
    }

    /// Runs Phase 1 again, as a leader that cannot go on otherwise. Its progress is watched on.
    fn ask_all_again(&mut self, now: Time, effects: &mut Effects) {
        let common = self.common_mut();
        let ballot = common.election.next_ballot(common.highest_ballot());
        let progress = common.progress;
        self.become_candidate(now, ballot, effects);
        self.common_mut().progress = progress;
    }

    fn on_timer(&mut self, now: Time, effects: &mut Effects) {
        let role = self.role();
        let common = self.common_mut();
        common.reported.woken();
        if role == Role::Follower && common.has_lost_leader(now) {
            let LeaderView { ballot, .. } = common.reported.view;
            common.reported.leader(LeaderView { ballot, leader: None }, effects);
        }
        if takes_part_in_elections(role) {
            let fit = common.disk.answers(now, common.options.election_timeout);
            common.election.on_timer(now, fit, effects);
        }
        if role == Role::Leader {
            self.lead_on(now, effects);
        } else if !self.stand(now, effects) {
            self.resend(now, effects);
        }
    }

    /// Asks for a timer at the next time at which this replica, or its election, has something to do.
    fn ask_for_timer(&mut self, effects: &mut Effects) {
        let (role, own) = (self.role(), self.own_deadline());
        let common = self.common_mut();
        let election = match role {
            Role::Leader => common.election.tick_at(),
            _ if !takes_part_in_elections(role) => Time::NEVER,
            _ => common.election.deadline(common.highest_ballot()),
        };
        common.reported.deadline(own.min(election), effects);
    }

    /// Looks at what a start did; `before` is the last record that was appended before it.
    fn started(&mut self, now: Time, before: Lsn, effects: &mut Effects) {
        self.common_mut().disk.appended(before, effects.last_lsn(), now);
        self.report_leader(effects);
        self.ask_for_timer(effects);
    }

    /// Looks at what a step or a flush changed; `before` is the last record that was appended before it.
    fn end_of_step(&mut self, now: Time, before: Lsn, effects: &mut Effects) {
        let decided = self.decided();
        let common = self.common_mut();
        common.disk.appended(before, effects.last_lsn(), now);
        let known = common.decided_elsewhere.max(decided);
        let lags = known.0 > decided.0 + common.options.accept_ahead_max();
        common.election.decided(known, decided, lags);
        self.report_leader(effects);
        self.assert_invariants();
    }

    // Leaders.

    /// What a leader does whenever its timer fires: it steps down if it cannot lead, sends again what was not
    /// answered, and says that it lives.
    fn lead_on(&mut self, now: Time, effects: &mut Effects) {
        let (gained, waits) = self.progress();
        let Common { options, progress, election, disk, .. } = self.common_mut();
        let timeout = options.election_timeout;
        let stalls = progress.stalls(now, gained, waits, timeout);
        election.stalls(stalls);
        let advice = election.advice(now);
        let works = disk.answers(now, timeout) && advice != Advice::Yield;
        if !self.is_useful(works, stalls) {
            return self.give_up(now, effects);
        }
        self.resend(now, effects);
        if let Advice::HandTo(heir) = advice {
            self.ask_to_lead(heir, effects);
        }
        self.heartbeat_if_due(now, effects);
    }

    /// Sends the last heartbeat, which tells what is decided, to all members.
    fn broadcast_heartbeat(&mut self, effects: &mut Effects) {
        let (ballot, decided) = (self.common().promised, self.decided());
        let Some((duties, _)) = self.duties() else { return };
        let heartbeat = FamilyMessage::Heartbeat { ballot, decided, round: duties.rounds.last() };
        self.common().broadcast(Self::Message::from(heartbeat), Lsn::ZERO, effects);
    }

    /// An operator wants a member to lead in place of this replica.
    fn transfer(&mut self, now: Time, to: ReplicaId, effects: &mut Effects) {
        if self.ask_to_lead(to, effects) {
            self.common_mut().election.wishes(to, now);
        }
    }

    /// Asks a member to try to lead, which ends this replica's leadership. If that member does not, this replica
    /// goes on leading. Returns whether it was asked: only a leader asks, and only another member.
    fn ask_to_lead(&mut self, to: ReplicaId, effects: &mut Effects) -> bool {
        let Common { members, promised, .. } = self.common();
        let asks = self.role() == Role::Leader && to != members.me() && members.index(to).is_some();
        if asks {
            let take_over = FamilyMessage::TakeOver { ballot: *promised };
            effects.send(to, Self::Message::from(take_over), Lsn::ZERO);
        }
        asks
    }

    fn handle_heartbeat_ack(
        &mut self,
        now: Time,
        from: ReplicaId,
        ballot: Ballot,
        round: u64,
        effects: &mut Effects,
    ) {
        let is_current = ballot == self.common().promised;
        if self.duties().is_some_and(|(duties, _)| is_current && duties.answered(from, round)) {
            self.common_mut().election.answered(from, now);
            self.confirm_reads(effects);
        }
    }
}

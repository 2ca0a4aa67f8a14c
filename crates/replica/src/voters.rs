//! Voters, where a protocol changes them within its epoch; and learners, which are to become voters.
//!
//! Raft needs no new epoch for new voters: its log says from which entry on whose majority counts, and it
//! goes on ordering meanwhile. The replica layer says which replicas those voters are, and every replica
//! finds the same when it delivers the entry: a promotion or a removal is a decided [`Change`], as with every
//! protocol. The epoch and its first slot stay, and the group's version grows. `docs/epochs.md` has the
//! argument. Its rules are:
//!
//! - The voters after a batch are a function of the batch and of the group before it
//!   ([`Group::voters_after`]). The protocol takes a
//!   batch that speaks of the group only while no other such batch is in the log and not delivered.
//! - One voter more or less goes in one step. Where more changes at once, the former and the future voters
//!   decide together until the
//!   leader completes the change ([`Batch::settling`]); until then no other change is made.
//! - Learners run the protocol without a vote; so do those that are on a ring (`docs/ring.md`).
//! - A replica that is removed votes while the group is unsettled.
//! - A replica without memory takes no part in the epoch any more, and asks for one that is begun for its present life.

use std::time::Duration;

use synod_consensus::{Bug, Dissemination, LeaderView, Members, VoterSets};
use synod_wire::{Batch, ReplicaId, Slot, Time};

use crate::{Action, Change, ChangeRequest, Goal, Group, Refusal, Replica};

impl Group {
    /// What a batch that is decided in `slot` makes of the group; `None` if it does not speak of the group.
    #[must_use]
    pub fn after(&self, slot: Slot, batch: &Batch) -> Option<Result<Group, Refusal>> {
        if batch.is_settling() {
            return Some(match self.outgoing.is_empty() {
                true => Err(Refusal::NothingToDo),
                false => Ok(Group { outgoing: Vec::new(), ..self.clone() }),
            });
        }
        let payload = batch.reconfiguration()?;
        Some(match ChangeRequest::decode(payload) {
            Ok(request) => self.apply(slot, &request),
            Err(_) => Err(Refusal::Malformed),
        })
    }

    /// The voters after a batch that is decided in `slot`, if the log of the current epoch says which they
    /// are: the protocol changes voters itself, and the batch speaks of the group. A batch that ends the
    /// epoch is the last one that counts in it.
    #[must_use]
    pub fn voters_after(&self, slot: Slot, batch: &Batch) -> Option<VoterSets> {
        if !self.changes_voters_itself() {
            return None;
        }
        let next = self.after(slot, batch)?.ok().filter(|next| next.epoch == self.epoch);
        Some(next.as_ref().unwrap_or(self).voter_sets())
    }

    /// Whether voters change within an epoch. They do not where every replica disseminates batches: a quorum
    /// that holds one is a quorum of the voters with which the epoch began.
    #[must_use]
    pub fn changes_voters_itself(&self) -> bool {
        self.protocol.changes_voters_itself() && !self.disseminates()
    }

    /// Whether every replica disseminates the batches of its own clients, and a leader orders their names.
    #[must_use]
    pub fn disseminates(&self) -> bool {
        self.overrides.dissemination() == Dissemination::Balanced
    }

    /// Whether every replica proposes the commands of its own clients, whichever replica leads.
    #[must_use]
    pub fn proposes_anywhere(&self) -> bool {
        self.disseminates() || self.protocol.every_replica_proposes()
    }

    /// Whether dissemination is `references`: a proposal carries only the name of a batch that its receiver itself sent
    /// to the leader.
    #[must_use]
    pub fn spares_origins(&self) -> bool {
        self.overrides.dissemination() == Dissemination::References
    }

    /// The voters, a majority of which decides, or a majority of each of two sets.
    #[must_use]
    pub fn voter_sets(&self) -> VoterSets {
        VoterSets::joint(self.voters().collect(), self.outgoing.clone())
    }

    /// Whether a member that has come this far does not take part in ordering yet.
    #[must_use]
    pub(crate) fn awaits(&self, id: ReplicaId, decided: Slot) -> bool {
        let lacks_beginning = self.votes(id) && decided < self.first.prev();
        lacks_beginning || self.learners().any(|(learner, _)| learner == id)
    }

    /// Whether a decision may need this replica.
    #[must_use]
    pub fn counts(&self, id: ReplicaId) -> bool {
        self.votes(id) || self.outgoing.contains(&id)
    }

    /// The voters as a replica sees them that runs the epoch's protocol: a replica that counts, or a learner, where
    /// learners run it.
    #[must_use]
    pub fn voting(&self, me: ReplicaId) -> Option<Members> {
        self.runs_at(me).then(|| Members::seen_by(me, self.voter_sets()))
    }

    /// Whether a replica runs the epoch's protocol.
    pub(crate) fn runs_at(&self, id: ReplicaId) -> bool {
        self.counts(id) || self.learners_run() && self.member(id).is_some()
    }

    /// Whether learners run the epoch's protocol: where it changes voters itself, and on a ring that has them.
    pub(crate) fn learners_run(&self) -> bool {
        self.changes_voters_itself() || self.overrides.put_learners_on_ring() && !self.disseminates()
    }

    /// The replicas that have to decide together with the voters of `next` for a while. There are none if there is
    /// only one voter more or one less, since any majority of the one set then meets any majority of the other.
    pub(crate) fn voters_before(&self, next: &Group) -> Vec<ReplicaId> {
        let added = next.voters().filter(|&id| !self.votes(id)).count();
        let removed = self.voters().filter(|&id| !next.votes(id)).count();
        if added + removed > 1 { self.voters().collect() } else { Vec::new() }
    }
}

impl Replica {
    /// Records that a replica speaks in this epoch. It may have joined the group later than this replica
    /// knows; if this replica lags, all members that it knows may be gone.
    pub(crate) fn heard_in_epoch(&mut self, from: ReplicaId) {
        if self.group.member(from).is_none() && self.protocol_status().decided_elsewhere > self.decided.last()
        {
            self.catch_up.heard(from);
        }
    }

    /// Stops the protocol of a replica that has no part in it any more; returns whether there was one.
    pub(crate) fn leave(&mut self, now: Time, actions: &mut Vec<Action>) -> bool {
        if !self.instance.runs() {
            return false;
        }
        let runs_here = self.group.runs_at(self.me) && !self.is_disowned();
        let in_it = self.group.epoch != self.known.running() || runs_here;
        let runs_on = self.has(Bug::RunWhileAway) && self.group.is_away(self.me);
        if in_it || runs_on {
            return false;
        }
        self.stop_taking_part(now, actions);
        true
    }

    /// Stops the protocol. What it held back leaves: it was true when it was said.
    pub(crate) fn stop_taking_part(&mut self, now: Time, actions: &mut Vec<Action>) {
        self.say_what_ended_it(now, actions);
        self.instance.stop();
        self.fail_remote_reads(actions);
        if self.leads() {
            self.leader_changed(now, LeaderView::default(), actions);
        }
    }

    // Learners.

    /// Promotes, as the leader, the learners that are to vote and have caught up.
    pub(crate) fn promote_learners(&mut self, now: Time) {
        let busy = self.changing.ends_epoch() || !self.group.outgoing.is_empty();
        if !self.takes_care() || busy || now < self.reports.may_ask_at(self.ask_interval()) {
            return;
        }
        let learners = self.group.learners().filter(|&(_, goal)| goal != Goal::Learn);
        let ready = |&(id, goal): &(ReplicaId, Goal)| self.has_caught_up(id, now) && !self.is_held_back(goal);
        let ready: Vec<_> = learners.filter(ready).map(|(id, _)| id).collect();
        if let Some(id) = self.reports.next_to_promote(&ready)
            && let Some(birth) = self.birth_to_name(id)
        {
            let change = self.readmission_before_vote(id).unwrap_or(Change::Promote { id, birth });
            self.ask_for(now, change);
        }
    }

    /// Whether this replica learns until it can vote.
    pub(crate) fn is_to_vote(&self) -> bool {
        self.group.learners().any(|(id, goal)| id == self.me && goal != Goal::Learn)
    }

    /// How far learners are, as they last said.
    pub fn progress(&self) -> impl Iterator<Item = (ReplicaId, Slot)> + '_ {
        self.reports.progress()
    }

    /// The shortest time in which each other voter answered this replica lately, where the election measures that.
    #[must_use]
    pub fn round_trips(&self) -> Vec<(ReplicaId, Duration)> {
        self.instance.round_trips()
    }

    /// Thousandths of the commands that came from each voter lately, where the election weighs that.
    #[must_use]
    pub fn origins(&self) -> Vec<(ReplicaId, u64)> {
        self.instance.origins()
    }

    /// Whether a learner has (nearly) everything that is decided, including its own addition, and said so a
    /// short time ago: a learner that is gone would count for a quorum and not help any.
    #[must_use]
    pub fn has_caught_up(&self, learner: ReplicaId, now: Time) -> bool {
        let timeout = self.settings.consensus.election_timeout * 2;
        let nearly = Slot(self.decided.last().0.saturating_sub(self.settings.caught_up_slots));
        self.reports.has_learned(learner, nearly, now, timeout)
    }

    /// Whether a change promotes a learner that has not caught up, which would not help to form a quorum.
    pub(crate) fn is_premature(&self, request: &ChangeRequest, now: Time) -> bool {
        let Change::Promote { id: promoted, .. } = request.change else { return false };
        let learns = self.group.learners().any(|(id, _)| id == promoted);
        learns && !self.has_caught_up(promoted, now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemberInfo;
    use synod_consensus::{ElectionKind, Options, ProtocolKind};
    use synod_wire::{BatchBuilder, CommandKind, Epoch, Incarnation, SessionId};

    fn raft(n: u64) -> Group {
        Group::of(&Options::of(ProtocolKind::Raft), (1..=n).map(ReplicaId))
    }

    fn batch(group: &Group, change: Change) -> Batch {
        let request = ChangeRequest { expected: group.version, change };
        let mut builder = BatchBuilder::new();
        let payload = request.encode().to_bytes();
        builder.push_as(CommandKind::Reconfigure, SessionId(1), 1, 1, &payload);
        builder.finish()
    }

    fn changed(group: &Group, change: Change) -> Group {
        group.after(Slot(9), &batch(group, change)).expect("a change").expect("that can be made")
    }

    fn with_learner(group: &Group, goal: Goal) -> Group {
        changed(group, Change::Add { info: MemberInfo::default(), goal })
    }

    fn ids(ids: &[u64]) -> Vec<ReplicaId> {
        ids.iter().copied().map(ReplicaId).collect()
    }

    #[test]
    fn one_voter_more_or_less_is_settled_at_once_and_begins_no_epoch() {
        let group = with_learner(&raft(3), Goal::Vote);
        let four = changed(&group, Change::promote(ReplicaId(4)));
        assert_eq!((four.epoch, four.first, four.version), (Epoch(1), Slot(1), 3));
        assert_eq!(four.voter_sets(), VoterSets::simple(ids(&[1, 2, 3, 4])));
        let three = changed(&four, Change::Remove(ReplicaId(1)));
        assert_eq!(three.voter_sets(), VoterSets::simple(ids(&[2, 3, 4])));
        assert!(three.voting(ReplicaId(1)).is_none());
    }

    #[test]
    fn a_replacement_needs_both_majorities_until_it_is_settled() {
        let group = with_learner(&raft(3), Goal::Replace(ReplicaId(1)));
        let promotion = batch(&group, Change::promote(ReplicaId(4)));
        let joint = VoterSets::joint(ids(&[2, 3, 4]), ids(&[1, 2, 3]));
        assert_eq!(group.voters_after(Slot(9), &promotion), Some(joint.clone()));
        let unsettled = group.after(Slot(9), &promotion).unwrap().unwrap();
        assert_eq!((unsettled.epoch, unsettled.voter_sets()), (Epoch(1), joint.clone()));
        assert!(unsettled.member(ReplicaId(1)).is_none() && unsettled.counts(ReplicaId(1)));
        assert!(unsettled.known().any(|member| member.id == ReplicaId(1)), "it must be reached");
        assert_eq!(Group::decode(unsettled.encode().to_bytes()).as_ref(), Ok(&unsettled));

        let other = batch(&unsettled, Change::Remove(ReplicaId(2)));
        assert_eq!(unsettled.after(Slot(10), &other), Some(Err(Refusal::Unsettled)));
        assert_eq!(unsettled.voters_after(Slot(10), &other), Some(joint));
        let settled = unsettled.after(Slot(10), &Batch::settling()).unwrap().unwrap();
        assert_eq!(settled.voter_sets(), VoterSets::simple(ids(&[2, 3, 4])));
        assert_eq!((settled.version, settled.former.len()), (unsettled.version, 1));
        assert_eq!(settled.after(Slot(11), &Batch::settling()), Some(Err(Refusal::NothingToDo)));
    }

    #[test]
    fn a_stop_sign_leaves_the_voters_of_its_epoch_as_they_are() {
        let group = raft(3);
        let order = Change::Order {
            protocol: ProtocolKind::MultiPaxos,
            election: ElectionKind::Rotating,
            overrides: synod_consensus::Overrides::default(),
        };
        let sets = VoterSets::simple(ids(&[1, 2, 3]));
        assert_eq!(group.voters_after(Slot(9), &batch(&group, order.clone())), Some(sets));
        assert_eq!(changed(&group, order).epoch, Epoch(2));
        assert_eq!(group.voters_after(Slot(9), &Batch::noop()), None);
    }

    #[test]
    fn a_learner_takes_part_where_voters_change_within_the_epoch_only() {
        let learner = ReplicaId(4);
        let group = with_learner(&raft(3), Goal::Learn);
        let seen = group.voting(learner).expect("it runs the protocol");
        assert_eq!((seen.ids(), seen.index(learner)), (&ids(&[1, 2, 3])[..], None));
        let readmitted = changed(&group, Change::Readmit { id: learner, life: Incarnation(2), birth: None });
        assert_eq!(readmitted.epoch, Epoch(2));
        let paxos = with_learner(&Group::of(&Options::default(), ids(&[1, 2, 3])), Goal::Learn);
        assert!(paxos.voting(learner).is_none());
        let readmit = batch(&paxos, Change::Readmit { id: learner, life: Incarnation(2), birth: None });
        assert_eq!(paxos.after(Slot(9), &readmit), Some(Err(Refusal::NothingToDo)));
    }
}

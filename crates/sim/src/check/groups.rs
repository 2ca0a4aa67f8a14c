//! The history of the group: one group for each version, the epochs that replicas have entered, and the
//! epochs that are still needed.
//!
//! # Which logs may be lost
//!
//! A quorum of an epoch's voters holds what the epoch decided, so a minority of them may lose their logs at a
//! time. This restriction ends with a later epoch. An epoch is **established** once a quorum of its voters
//! has durably entered it: each of them then holds everything that was decided before (its
//! [`LogRecord::Entered`] comes after that in its log). From then on the voters of older epochs are not
//! needed any more. A minority of the new voters may lose their logs, and at least one keeps what was decided
//! before, from which the others fetch it. Until then the restriction holds for both the old epoch's voters
//! and the new one's.
//!
//! Where voters change within an epoch, a majority of the new voters holds the entry that settles the change,
//! and everything before it, when that entry is decided. So such a version of the group is established at
//! once. An unsettled version never is, and the restriction holds for the voters before it as well. So at any
//! time at most a minority may be lost of the voters of **each version of the group from the newest
//! established one on** ([`Groups::needed`]), and of each group that may come next.

use std::collections::VecDeque;

use synod_consensus::Claim;
use synod_replica::{Group, LogRecord, MemberSet};
use synod_wire::{Epoch, Lsn, ReplicaId, Slot};

use super::invariant::{Checked, Invariant, demand};

/// The first epoch is entered without a record.
const FIRST: Epoch = Epoch(1);

/// What one replica's log says about epochs.
#[derive(Debug)]
struct Entries {
    /// Records that are not durable yet.
    pending: VecDeque<(Lsn, Epoch)>,
    /// The newest epoch that its durable log says it entered.
    durable: Epoch,
    /// The newest epoch that its durable log ever said it entered.
    ever: Epoch,
}

/// The versions of the group, and the epochs that replicas have entered. Replicas are named by index, which
/// is their id less one.
#[derive(Debug)]
pub struct Groups {
    /// Version 1, 2, and so on, each with the slot that made it. Some versions have an unsettled edition first.
    versions: Vec<(Slot, Group)>,
    replicas: Vec<Entries>,
}

fn without_births(group: &Group) -> Group {
    let mut group = group.clone();
    group.members.iter_mut().for_each(|member| member.birth = None);
    // Those that the change before removed are told of it until the next one.
    group.former.clear();
    group
}

impl Groups {
    /// The history of a group with at most this many replicas.
    #[must_use]
    pub fn new(first: Group, replicas: usize) -> Groups {
        let entries = || Entries { pending: VecDeque::new(), durable: FIRST, ever: FIRST };
        Groups { versions: vec![(Slot::ZERO, first)], replicas: (0..replicas).map(|_| entries()).collect() }
    }

    /// The group after everything that was delivered.
    #[must_use]
    pub fn latest(&self) -> &Group {
        &self.versions.last().expect("there is a first").1
    }

    /// The members with this version, if others follow the group.
    #[must_use]
    pub fn member_set(&self, version: u64) -> Option<MemberSet> {
        // A version that was not complete at first has an edition that is.
        let sets = self.versions.iter().rev().filter_map(|(_, group)| group.member_set());
        sets.into_iter().find(|set| set.version == version)
    }

    /// The members of each version, if others follow the group.
    #[must_use]
    pub fn member_sets(&self) -> Vec<MemberSet> {
        self.versions.iter().filter_map(|(_, group)| group.member_set()).collect()
    }

    /// The group as it is after a slot.
    #[must_use]
    pub fn after(&self, slot: Slot) -> &Group {
        let later = self.versions.partition_point(|(made, _)| *made <= slot);
        &self.versions[later - 1].1
    }

    /// A slot made a new group.
    pub fn begins(&mut self, slot: Slot, group: Group) -> Checked {
        let before = self.latest();
        let settles = !before.outgoing.is_empty() && group == settled(before.clone());
        let counts = before.outgoing.is_empty() && group.version == before.version + 1;
        // As with a change of voters that is complete, a change that was made for the group stays good for it.
        let bare = without_births(before);
        let names = !before.names_births() && group.names_births() && without_births(&group) == bare;
        demand(settles || counts || names, Invariant::OneGroup, || {
            format!(
                "slot {slot} makes version {} of the group, after version {}",
                group.version, before.version
            )
        })?;
        let first = if group.epoch == before.epoch { before.first } else { slot.next() };
        let follows = group.epoch.0 - before.epoch.0 <= 1 && group.first == first;
        demand(follows, Invariant::OneGroup, || {
            format!("slot {slot} makes epoch {} from slot {}", group.epoch, group.first)
        })?;
        // A member of the cluster that took no part in the group may come (back) to it.
        let known = |id| before.member(id).is_some() || before.is_away(id);
        let reused = group.members.iter().find(|member| !known(member.id) && member.id < before.next_id);
        demand(reused.is_none() && group.next_id >= before.next_id, Invariant::IdsOnce, || {
            format!(
                "slot {slot} gives {} to a second member",
                reused.map_or(group.next_id, |member| member.id)
            )
        })?;
        self.versions.push((slot, group));
        Ok(())
    }

    /// A replica that has delivered everything through a slot is in a group.
    pub fn agrees(&self, who: ReplicaId, slot: Slot, group: &Group) -> Checked {
        let known = self.after(slot);
        demand(known == group, Invariant::OneGroup, || {
            format!(
                "{who} is in version {} (epoch {}) after slot {slot}; the log makes it version {} (epoch {}) {}",
                group.version,
                group.epoch,
                known.version,
                known.epoch,
                if known.version == group.version { "of another content" } else { "" }
            )
        })
    }

    /// A replica appends a record.
    pub fn appended(&mut self, replica: usize, lsn: Lsn, record: &LogRecord) {
        if let LogRecord::Entered { group, .. } = record {
            self.replicas[replica].pending.push_back((lsn, group.epoch));
        }
    }

    /// A replica's records through `lsn` are durable. Returns the epoch that they newly say it entered.
    pub fn durable(&mut self, replica: usize, lsn: Lsn) -> Option<Epoch> {
        let before = self.replicas[replica].durable;
        let entries = &mut self.replicas[replica];
        while let Some(&(at, epoch)) = entries.pending.front()
            && at <= lsn
        {
            entries.pending.pop_front();
            entries.durable = entries.durable.max(epoch);
        }
        entries.ever = entries.ever.max(entries.durable);
        Some(entries.durable).filter(|durable| *durable > before)
    }

    /// The slot with which an epoch began.
    #[must_use]
    pub fn first_of(&self, epoch: Epoch) -> Slot {
        let group = self.versions.iter().find(|(_, group)| group.epoch == epoch);
        group.map_or(Slot::ZERO, |(_, group)| group.first)
    }

    /// A replica starts with these durable records. Returns the newest epoch that they say it entered.
    pub fn restarted(&mut self, replica: usize, records: impl Iterator<Item = (Lsn, LogRecord)>) -> Epoch {
        let entered = records.filter_map(|(_, record)| match record {
            LogRecord::Entered { group, .. } => Some(group.epoch),
            _ => None,
        });
        let entries = &mut self.replicas[replica];
        entries.pending.clear();
        entries.durable = entered.max().unwrap_or(FIRST);
        entries.ever = entries.ever.max(entries.durable);
        entries.durable
    }

    /// A message of an epoch's protocol leaves a replica that has delivered everything through a slot.
    pub fn said(&self, replica: usize, epoch: Epoch, claim: &Claim<'_>, delivered: Slot) -> Checked {
        let entries = &self.replicas[replica];
        let id = replica + 1;
        let Some((_, group)) = self.versions.iter().find(|(_, group)| group.epoch == epoch) else {
            return demand(false, Invariant::OneGroup, || {
                format!("r{id} speaks in the unknown epoch {epoch}")
            });
        };
        demand(delivered.next() >= group.first, Invariant::WholePrefix, || {
            format!(
                "r{id} speaks in epoch {epoch}, which began with slot {}, and has slots through {delivered} only",
                group.first
            )
        })?;
        let binds = match claim {
            Claim::Promise { .. }
            | Claim::PromiseSequence { .. }
            | Claim::Vote { .. }
            | Claim::Told { .. }
            | Claim::Estimate { .. }
            | Claim::VoteThrough { .. }
            | Claim::Leads { .. }
            | Claim::Propose { .. } => true,
            // What others have decided binds nobody who passes it on.
            Claim::Candidate(_) | Claim::Decided { .. } => false,
        };
        demand(!binds || entries.durable >= epoch, Invariant::EnteredFirst, || {
            format!("r{id} speaks in epoch {epoch}; its log says only that it entered {}", entries.durable)
        })
    }

    /// Whether the group is settled, and a quorum of its voters has durably entered its epoch, or a later one.
    #[must_use]
    pub fn is_established(&self, group: &Group) -> bool {
        let entered = |id: &ReplicaId| self.replicas[index(*id)].ever >= group.epoch;
        let quorum =
            group.voters().filter(entered).count() >= group.threshold().least(group.voters().count());
        group.outgoing.is_empty() && (group.epoch == FIRST || quorum)
    }

    /// The groups of whose voters no more may lose their logs than are not needed to decide; the file's head explains
    /// which.
    pub fn needed(&self) -> impl Iterator<Item = &Group> {
        let established = self.versions.iter().rposition(|(_, group)| self.is_established(group));
        self.versions[established.unwrap_or(0)..].iter().map(|(_, group)| group)
    }
}

fn index(id: ReplicaId) -> usize {
    usize::try_from(id.0 - 1).expect("a small number")
}

/// A group once the change of its voters, if one is under way, is complete.
pub(crate) fn settled(mut group: Group) -> Group {
    group.outgoing.clear();
    group
}

#[cfg(test)]
mod tests {
    use super::*;
    use synod_consensus::Options;
    use synod_replica::{Change, ChangeRequest};

    fn changed(group: &Group, slot: u64, change: Change) -> Group {
        group.apply(Slot(slot), &ChangeRequest { expected: group.version, change }).unwrap()
    }

    #[test]
    fn an_epoch_is_needed_until_a_quorum_has_entered_the_next_one() {
        let first = Group::of(&Options::default(), (1..=3).map(ReplicaId));
        let second = changed(&first, 4, Change::Remove(ReplicaId(3)));
        let mut groups = Groups::new(first.clone(), 3);
        groups.begins(Slot(4), second.clone()).unwrap();
        assert_eq!(groups.after(Slot(3)), &first);
        assert_eq!(groups.after(Slot(4)), &second);
        let epochs = |groups: &Groups| groups.needed().map(|group| group.epoch.0).collect::<Vec<_>>();
        let record = LogRecord::Entered { group: second, amnesia: false };
        for replica in 0..2 {
            assert_eq!(epochs(&groups), [1, 2]);
            groups.appended(replica, Lsn(7), &record);
            groups.durable(replica, Lsn(6));
            assert_eq!(epochs(&groups), [1, 2], "not durable yet");
            groups.durable(replica, Lsn(7));
        }
        assert_eq!(epochs(&groups), [2]);
    }

    #[test]
    fn an_id_that_is_used_again_shows() {
        let first = Group::of(&Options::default(), (1..=3).map(ReplicaId));
        let mut reusing = changed(&first, 4, Change::Remove(ReplicaId(2)));
        let mut groups = Groups::new(first.clone(), 3);
        groups.begins(Slot(4), reusing.clone()).unwrap();
        reusing.members.push(first.members[1].clone());
        reusing.version += 1;
        assert_eq!(groups.begins(Slot(5), reusing).unwrap_err().invariant, Invariant::IdsOnce);
    }
}

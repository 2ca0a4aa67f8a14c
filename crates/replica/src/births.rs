//! Which data directory has a vote, and whose word counts.
//!
//! A replica that lost its data comes back under its id with another birth, and has forgotten what it said. So the
//! change that gives a vote names the birth of the data directory that gets it, as replicated state of the group
//! ([`Member::birth`]). `docs/identity.md` has the argument. Its rules are:
//!
//! - **The word of another birth counts for nothing.** A replica that counts a vote knows the change that gave it,
//!   since that change is delivered here, or stands in this replica's own log; it listens to the birth which that
//!   change names, and to no other ([`Replica::is_stranger`]).
//! - **That holds for the replica itself.** One whose own birth is not the one that is named takes no part
//!   ([`Replica::is_disowned`]), not even in the step that shows it the change.
//! - **A vote is given to a birth that was met.** The replica that proposes a promotion fills in the birth with which
//!   it has a session, and so does the leader compare ([`Replica::names_a_stranger`]).
//! - **The voters with which a group begins, or came from a program without births, are named by one change.** Its
//!   caretaker proposes it once all voters have met and say the same of each other ([`Replica::name_births`]).

use std::collections::BTreeMap;

use bytes::Bytes;
use synod_consensus::{Message, Record};
use synod_wire::{BIRTHS_SINCE, Batch, DecodeError, Incarnation, Lsn, Reader, ReplicaId, Slot, Time, Writer};

use crate::{
    Action, Change, ChangeRequest, Group, Member, MemberSet, Membership, Named, PeerMessage, Refusal,
    Replica, RequestError, Standing, group::GROUP_MEMBERS_MAX,
};

/// The most births that changes in the own log name which are not delivered. A protocol has one change under way at a
/// time, but for those of earlier leaders; one may name all members.
const PENDING_MAX: usize = 16 * GROUP_MEMBERS_MAX;

/// A life of another replica, as it introduced itself when it last began to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Met {
    /// The birth of its data directory.
    pub birth: u64,
    /// Which of its lives it is.
    pub incarnation: Incarnation,
    /// The life with which its memory begins; 0 if it never lost its log.
    pub since: Incarnation,
    /// The version in which it sends.
    pub version: u16,
}

/// What a replica knows of births.
#[derive(Debug)]
pub(crate) struct Births {
    /// That of its own data directory.
    mine: u64,
    /// The replicas that send to this one, as they introduced themselves in this life.
    met: BTreeMap<ReplicaId, Met>,
    /// The births of voters, as other voters last said that they know them.
    told: BTreeMap<ReplicaId, Vec<Named>>,
    /// What changes in the own log name that are not delivered, by slot.
    pending: Vec<(Slot, Named)>,
    /// When this replica last told the caretaker which births it knows.
    told_at: Option<Time>,
    /// Whether a change that gives this replica's vote to another birth was seen, though not delivered.
    disowned: bool,
}

impl Births {
    pub fn new(mine: u64) -> Births {
        Births {
            mine,
            met: BTreeMap::new(),
            told: BTreeMap::new(),
            pending: Vec::new(),
            told_at: None,
            disowned: false,
        }
    }

    /// Records that a life of another replica begins to send.
    /// Returns whether another life of it began to send before.
    pub fn meet(&mut self, id: ReplicaId, met: Met) -> bool {
        let before = self.met.insert(id, met);
        if before != Some(met) {
            // The caretaker, which may wait for this one, is told at once.
            self.told_at = None;
        }
        before.is_some_and(|before| before.incarnation != met.incarnation)
    }

    fn delivered(&mut self, slot: Slot) {
        self.pending.retain(|(pending, _)| *pending > slot);
        // The change that was seen may have been refused, or lost. If it comes again, it is seen before it is written.
        self.disowned = false;
    }

    /// Whether the present life of a member never lost its log, or was readmitted. A life after the one that was
    /// readmitted may not have entered that epoch before it began, and a replica that was not met is trusted.
    pub fn remembers(&self, member: &Member) -> bool {
        let met = self.met.get(&member.id);
        met.is_none_or(|met| met.since == Incarnation(0) || met.incarnation == member.readmitted)
    }

    fn is_another(&self, (id, birth): Named) -> bool {
        self.met.get(&id).is_none_or(|met| met.birth != birth)
    }
}

impl Change {
    /// The births that the change names, in the order of their replicas.
    #[must_use]
    pub fn names(&self) -> Vec<Named> {
        match self {
            Change::Promote { id, birth } | Change::Readmit { id, birth, .. } => {
                birth.iter().map(|&birth| (*id, birth)).collect()
            }
            Change::NameBirths(named) => named.clone(),
            Change::Follow(set) => named_in(&set.members),
            _ => Vec::new(),
        }
    }

    /// The change with these births.
    pub(crate) fn naming(self, named: Vec<Named>) -> Result<Change, DecodeError> {
        let only = |id: ReplicaId| match named[..] {
            [] => Ok(None),
            [(of, birth)] if of == id => Ok(Some(birth)),
            _ => Err(DecodeError::Undefined { field: "births", value: id.0 }),
        };
        Ok(match self {
            Change::Promote { id, .. } => Change::Promote { id, birth: only(id)? },
            Change::Readmit { id, life, .. } => Change::Readmit { id, life, birth: only(id)? },
            Change::NameBirths(_) => Change::NameBirths(named),
            Change::Follow(set) if !named.is_empty() => {
                let mut set = MemberSet::clone(&set);
                give_births(&mut set.members, &named);
                Change::Follow(set.into())
            }
            change if named.is_empty() => change,
            _ => return Err(DecodeError::Undefined { field: "births", value: named.len() as u64 }),
        })
    }
}

impl Group {
    /// The birth of the data directory that has a replica's vote, if a change has named it.
    #[must_use]
    pub fn birth_of(&self, id: ReplicaId) -> Option<u64> {
        // A former voter decides with the others until the change that removed it is complete.
        self.known().find(|member| member.id == id).and_then(|member| member.birth)
    }

    /// The births that the group names, of members and of those that its last change removed.
    #[must_use]
    pub fn births(&self) -> Vec<Named> {
        named_in(self.known())
    }

    /// Whether the group names births: then no vote is given without one, and no replica takes part that does not know
    /// them.
    #[must_use]
    pub fn names_births(&self) -> bool {
        self.members.iter().any(|member| member.birth.is_some())
    }

    /// Whether the births of some voters are still to be named here. A group that follows another is told by that one.
    fn lacks_births(&self) -> bool {
        let unnamed = |member: &Member| member.standing == Standing::Voter && member.birth.is_none();
        !matches!(self.membership, Membership::Follows(_)) && self.members.iter().any(unnamed)
    }

    /// Refuses a change that would give a vote to no birth, or to another one than the group knows.
    pub(crate) fn check_births(&self, change: &Change) -> Result<(), Refusal> {
        let (id, birth) = match change {
            Change::Promote { id, birth } if self.learners().any(|(learner, _)| learner == *id) => {
                (id, birth)
            }
            Change::Readmit { id, birth, .. } if self.member(*id).is_some() => (id, birth),
            // It is refused for another reason, or gives no vote.
            _ => return Ok(()),
        };
        match (birth, self.birth_of(*id)) {
            (None, _) if self.names_births() => Err(Refusal::Unnamed(*id)),
            // Births are named for all voters at once.
            (Some(_), _) if !self.names_births() => Err(Refusal::Malformed),
            (Some(birth), Some(known)) if *birth != known => Err(Refusal::OtherBirth(*id)),
            _ => Ok(()),
        }
    }

    /// Names the births of all voters.
    pub(crate) fn name(&mut self, named: &[Named]) -> Result<(), Refusal> {
        if !named.iter().map(|&(id, _)| id).eq(self.voters()) {
            return Err(Refusal::Malformed);
        }
        let differs = |&&(id, birth): &&Named| self.birth_of(id).is_some_and(|known| known != birth);
        if let Some(&(id, _)) = named.iter().find(differs) {
            return Err(Refusal::OtherBirth(id));
        }
        if !self.lacks_births() {
            return Err(Refusal::NothingToDo);
        }
        self.give(named);
        Ok(())
    }

    /// Gives a member the birth that a change names for it, if it does.
    pub(crate) fn give_birth(&mut self, id: ReplicaId, birth: Option<u64>) {
        birth.iter().for_each(|&birth| self.give(&[(id, birth)]));
    }

    fn give(&mut self, named: &[Named]) {
        let cluster = self.placement.iter_mut().flat_map(|placement| &mut placement.cluster);
        give_births(self.members.iter_mut().chain(cluster), named);
    }
}

/// The births of those of these members that have one, in the order of their ids.
pub(crate) fn named_in<'a>(members: impl IntoIterator<Item = &'a Member>) -> Vec<Named> {
    members.into_iter().filter_map(|member| Some((member.id, member.birth?))).collect()
}

/// Gives members the births that are named.
pub(crate) fn give_births<'a>(members: impl IntoIterator<Item = &'a mut Member>, named: &[Named]) {
    for member in members {
        let birth = named.iter().find(|(id, _)| *id == member.id).map(|&(_, birth)| birth);
        member.birth = member.birth.or(birth);
    }
}

pub(crate) fn encode_births(named: &[Named], writer: &mut Writer) {
    writer.u32(u32::try_from(named.len()).expect("few members"));
    for &(id, birth) in named {
        writer.replica(id);
        writer.u64(birth);
    }
}

pub(crate) fn decode_births(reader: &mut Reader) -> Result<Vec<Named>, DecodeError> {
    let count = reader.u32("births")?;
    // Members and former members.
    if count as usize > 2 * GROUP_MEMBERS_MAX {
        return Err(DecodeError::Undefined { field: "births", value: count.into() });
    }
    (0..count).map(|_| Ok((reader.replica("replica")?, reader.u64("birth")?))).collect()
}

/// What a batch names, if it is a change of the group that names births.
fn named_by(batch: &Batch) -> Vec<Named> {
    let request = batch.reconfiguration().and_then(|payload| ChangeRequest::decode(payload).ok());
    request.map_or(Vec::new(), |request| request.change.names())
}

impl Replica {
    // Whose word counts.

    /// Whether what this replica is told under an id comes from another birth than the one that has the vote of that
    /// id, as far as this replica knows: from what is delivered, or from what stands in its own log.
    #[must_use]
    pub fn is_stranger(&self, from: ReplicaId) -> bool {
        if let Some(birth) = self.group.birth_of(from) {
            return self.births.is_another((from, birth));
        }
        // The last one in the log is the one that the protocol would go by.
        let pending = self.births.pending.iter().filter(|(_, (id, _))| *id == from);
        let last = pending.max_by_key(|(slot, _)| *slot);
        last.is_some_and(|(_, named)| self.births.is_another(*named))
    }

    /// Whether the vote of this replica belongs to another birth: then it has no memory in this group, never votes, and
    /// has to be replaced.
    #[must_use]
    pub fn is_disowned(&self) -> bool {
        let named = self.group.birth_of(self.me);
        named.map_or(self.births.disowned, |birth| birth != self.births.mine)
    }

    fn disowns(&self, named: &[Named]) -> bool {
        named.iter().any(|&(id, birth)| id == self.me && birth != self.births.mine)
    }

    /// Looks at the changes in a message before the protocol takes them in; returns whether one of them gives this
    /// replica's vote to another birth. Then the protocol, to which this replica would count as a voter from that entry
    /// on, stops.
    pub(crate) fn is_disowned_by(&mut self, message: &Message) -> bool {
        let mut disowned = false;
        message.body().for_each_batch(&mut |batch| disowned |= self.disowns(&named_by(batch)));
        self.births.disowned |= disowned;
        disowned && self.is_disowned()
    }

    /// The same for a batch that others say is decided.
    pub(crate) fn is_disowned_by_batch(&mut self, batch: &Batch) -> bool {
        let disowned = self.disowns(&named_by(batch));
        self.births.disowned |= disowned;
        disowned && self.is_disowned()
    }

    /// Records what the changes in a record of the own log name. Until they are delivered, or something else is in
    /// their slots, other births are not listened to.
    pub(crate) fn log_names(&mut self, record: &Record) {
        let (decided, pending) = (self.decided.last(), &mut self.births.pending);
        record.body().for_each_batch(&mut |slot, batch| {
            let is_change = batch.reconfiguration().is_some();
            if slot > decided && (is_change || !pending.is_empty()) {
                // Something else may have been in this slot before.
                pending.retain(|(other, _)| *other != slot);
                pending.extend(named_by(batch).into_iter().map(|named| (slot, named)));
            }
        });
        let surplus = self.births.pending.len().saturating_sub(PENDING_MAX);
        self.births.pending.drain(..surplus);
    }

    /// Forgets what was to be delivered through a slot: the group knows it now.
    pub(crate) fn names_delivered(&mut self, slot: Slot) {
        self.births.delivered(slot);
    }

    // What a change names.

    /// A change that a client asks for, with the births that it has to name; or why it cannot be made.
    pub(crate) fn with_births(&self, payload: &Bytes) -> Result<ChangeRequest, RequestError> {
        let ChangeRequest { expected, change } =
            ChangeRequest::decode(payload.clone()).map_err(|_| RequestError::NotAChange)?;
        let change = match change {
            Change::Promote { id, .. } => {
                let birth = self.birth_to_name(id).ok_or(RequestError::NotCaughtUp)?;
                Change::Promote { id, birth }
            }
            // Replicas ask for these themselves.
            Change::Readmit { id, life, .. } => {
                let birth = self.group.birth_of(id).or(self.birth_to_name(id).flatten());
                Change::Readmit { id, life, birth: birth.filter(|_| self.group.names_births()) }
            }
            Change::NameBirths(_) => return Err(RequestError::NotAChange),
            change => change,
        };
        Ok(ChangeRequest { expected, change })
    }

    /// The birth to name in a change that gives a replica a vote: none if the group names none, or if that is of a
    /// replica that is no learner, so that the change is refused anyway. `None` if the replica was not met.
    pub(crate) fn birth_to_name(&self, id: ReplicaId) -> Option<Option<u64>> {
        if id == self.me {
            return Some(Some(self.births.mine).filter(|_| self.group.names_births()));
        }
        let met = self.births.met.get(&id).map(|met| met.birth);
        let learns = self.group.learners().any(|(learner, _)| learner == id);
        match (self.group.names_births(), met) {
            (true, Some(birth)) => Some(Some(birth)),
            (true, None) if learns => None,
            _ => Some(None),
        }
    }

    /// Whether a change gives a vote to another birth than the one that this replica, the leader, has a session with.
    pub(crate) fn names_a_stranger(&self, change: Option<&Change>) -> bool {
        match change {
            Some(Change::Promote { id, birth: Some(birth) }) => {
                *id != self.me && self.births.is_another((*id, *birth))
            }
            // The voters of the first group agreed on these, and one that voted here may not be among them.
            Some(Change::Follow(set)) => named_in(&set.members).into_iter().any(|(id, birth)| {
                let unnamed = self.group.votes(id) && self.group.birth_of(id).is_none();
                unnamed && self.births.met.get(&id).is_some_and(|met| met.birth != birth)
            }),
            _ => false,
        }
    }

    /// The epoch that a learner needs before it may be promoted, if it lost its log: it would not vote in the one that
    /// its promotion begins. A group that names no births cannot readmit a learner.
    pub(crate) fn readmission_before_vote(&self, id: ReplicaId) -> Option<Change> {
        let met = self.births.met.get(&id).filter(|_| self.group.names_births())?;
        let forgot = !self.births.remembers(self.group.member(id)?);
        forgot.then_some(Change::Readmit { id, life: met.incarnation, birth: Some(met.birth) })
    }

    /// This replica's own birth, for a change that names it.
    pub(crate) fn own_birth(&self) -> Option<u64> {
        Some(self.births.mine).filter(|_| self.group.names_births())
    }

    // The voters with which a group begins.

    /// The births of all voters, as far as this replica knows them from its sessions; `None` if one is missing.
    fn births_of_voters(&self) -> Option<Vec<Named>> {
        let birth = |id: ReplicaId| match id == self.me {
            true => Some(self.births.mine),
            false => self.births.met.get(&id).map(|met| met.birth),
        };
        self.group.voters().map(|id| Some((id, birth(id)?))).collect()
    }

    /// Whether births are to be named, and this replica takes part in that.
    fn awaits_births(&self) -> bool {
        self.group.lacks_births()
            && self.instance.runs()
            && self.group.votes(self.me)
            && !self.forgets()
            && !self.known.waits()
    }

    /// When this replica next says which births it knows, or proposes to name them.
    pub(crate) fn births_at(&self) -> Option<Time> {
        if !self.awaits_births() || self.births_of_voters().is_none() {
            return None;
        }
        if self.takes_care() {
            let busy = self.changing.ends_epoch() || !self.group.outgoing.is_empty();
            let agreed = self.agreed_births().filter(|_| !busy);
            return agreed.map(|_| self.reports.may_ask_at(self.ask_interval()));
        }
        self.instance.caretaker()?;
        Some(self.births.told_at.map_or(Time::ZERO, |at| at + self.ask_interval()))
    }

    /// The births of all voters, if all voters say the same and every member was met, and runs a program that knows
    /// births. One voter that has met another birth of some voter would not have a session with this one, so it says
    /// something else, or nothing.
    fn agreed_births(&self) -> Option<Vec<Named>> {
        let births = self.births_of_voters()?;
        let agrees = |id: ReplicaId| id == self.me || self.births.told.get(&id) == Some(&births);
        let knows = |member: &Member| {
            let met = self.births.met.get(&member.id);
            member.id == self.me || met.is_some_and(|met| met.version >= BIRTHS_SINCE)
        };
        (self.group.voters().all(agrees) && self.group.members.iter().all(knows)).then_some(births)
    }

    /// Records which births another voter knows.
    pub(crate) fn births_told(&mut self, from: ReplicaId, births: Vec<Named>) {
        if self.group.votes(from) && births.len() <= GROUP_MEMBERS_MAX {
            self.births.told.insert(from, births);
        }
        let votes = |id: &ReplicaId| self.group.votes(*id);
        self.births.told.retain(|id, _| votes(id));
    }

    /// Proposes, as the caretaker, to name the births of all voters, once all say the same; another voter says to the
    /// caretaker what it knows.
    pub(crate) fn name_births(&mut self, now: Time, actions: &mut Vec<Action>) {
        if self.births_at().is_none_or(|at| now < at) {
            return;
        }
        if self.takes_care() {
            if let Some(births) = self.agreed_births() {
                self.ask_for(now, Change::NameBirths(births));
            }
        } else if let (Some(to), Some(births)) = (self.instance.caretaker(), self.births_of_voters()) {
            self.births.told_at = Some(now);
            actions.push(Action::Send {
                to: to.into(),
                message: PeerMessage::Births(births),
                after: Lsn::ZERO,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{Choice, Event, Goal, MemberInfo, Others, Recovered, Settings};
    use synod_consensus::{Options, ProtocolKind};
    use synod_wire::{BatchBuilder, CommandKind, Epoch, SessionId};

    const R1: ReplicaId = ReplicaId(1);
    const R4: ReplicaId = ReplicaId(4);

    fn group(protocol: ProtocolKind) -> Group {
        Group::of(&Options::of(protocol), (1..=3).map(ReplicaId))
    }

    /// The births of three replicas: ten times their ids.
    fn births() -> Vec<Named> {
        (1..=3).map(|id| (ReplicaId(id), id * 10)).collect()
    }

    fn changed(group: &Group, change: Change) -> Result<Group, Refusal> {
        group.apply(Slot(9), &ChangeRequest { expected: group.version, change })
    }

    fn named(protocol: ProtocolKind) -> Group {
        changed(&group(protocol), Change::NameBirths(births())).expect("they have no names")
    }

    fn with_learner(group: &Group) -> Group {
        changed(group, Change::Add { info: MemberInfo::default(), goal: Goal::Vote }).expect("there is room")
    }

    fn promotion(birth: Option<u64>) -> Change {
        Change::Promote { id: R4, birth }
    }

    fn batch(group: &Group, change: Change) -> Batch {
        let request = ChangeRequest { expected: group.version, change };
        let mut builder = BatchBuilder::new();
        builder.push_as(request.kind(), SessionId(1), 1, 1, &request.encode().to_bytes());
        builder.finish()
    }

    #[test]
    fn births_are_named_once_and_for_all_voters_and_begin_no_epoch() {
        for &(_, protocol) in ProtocolKind::ALL {
            let group = group(protocol);
            let some = births()[..2].to_vec();
            assert_eq!(changed(&group, Change::NameBirths(some)), Err(Refusal::Malformed));
            let named = named(protocol);
            assert_eq!((named.epoch, named.version), (Epoch(1), 1), "a change for it is not too late");
            assert_eq!(named.births(), births());
            assert_eq!(changed(&named, Change::NameBirths(births())), Err(Refusal::NothingToDo));
            let other = births().into_iter().map(|(id, birth)| (id, birth + 1)).collect();
            assert_eq!(changed(&named, Change::NameBirths(other)), Err(Refusal::OtherBirth(R1)));
        }
    }

    #[test]
    fn a_group_that_names_births_gives_no_vote_without_one_nor_a_vote_to_two() {
        let before = with_learner(&group(ProtocolKind::MultiPaxos));
        assert!(changed(&before, promotion(None)).is_ok(), "as before there were births");
        let group = with_learner(&named(ProtocolKind::MultiPaxos));
        assert_eq!(changed(&group, promotion(None)), Err(Refusal::Unnamed(R4)));
        let four = changed(&group, promotion(Some(40))).unwrap();
        assert_eq!(four.birth_of(R4), Some(40));
        let readmit = |birth| Change::Readmit { id: R4, life: Incarnation(2), birth };
        assert_eq!(changed(&four, readmit(None)), Err(Refusal::Unnamed(R4)));
        assert_eq!(changed(&four, readmit(Some(41))), Err(Refusal::OtherBirth(R4)));
        assert!(changed(&four, readmit(Some(40))).is_ok());
        // A replica that is removed may still be counted, and is known by its birth.
        let removed = changed(&four, Change::Remove(R1)).unwrap();
        assert_eq!((removed.birth_of(R1), removed.member(R1)), (Some(10), None));
    }

    #[test]
    fn groups_that_follow_are_told_the_births_and_keep_them() {
        let first = named(ProtocolKind::Raft).followed();
        let follows = group(ProtocolKind::Raft).following(1);
        let joined = with_learner(&first);
        let promoted = changed(&joined, promotion(Some(40))).unwrap();
        let set = promoted.member_set().expect("others follow it");
        let group = changed(&follows, Change::Follow(set.into())).unwrap();
        let mut all = births();
        all.push((R4, 40));
        assert_eq!(group.births(), all);
        assert!(!group.lacks_births());
        assert_eq!(changed(&group, promotion(Some(41))), Err(Refusal::OtherBirth(R4)));
        let group = changed(&group, promotion(Some(40))).unwrap();
        let choice = Choice::of([R1, R4], Others::Learn);
        let placed = changed(&group, Change::Place(Some(choice))).unwrap();
        assert_eq!(placed.births(), all);
        assert_eq!(Group::decode(placed.encode().to_bytes()), Ok(placed));
    }

    #[test]
    fn groups_and_changes_come_back_with_births_and_are_as_they_were_without() {
        let bare = group(ProtocolKind::MultiPaxos);
        let group = named(ProtocolKind::MultiPaxos);
        let bytes = group.encode().to_bytes();
        assert_eq!(Group::decode(bytes.clone()).as_ref(), Ok(&group));
        assert!(bytes.starts_with(&bare.encode().to_bytes()));
        for len in bare.encode().to_bytes().len() + 1..bytes.len() {
            assert!(Group::decode(bytes.slice(..len)).is_err());
        }
        // A program without births takes what follows for where the members are decided, which is 1 or 2.
        assert_eq!(bytes[bare.encode().to_bytes().len()], 3);
        let kind = |change| ChangeRequest { expected: 1, change }.kind();
        assert_eq!(kind(promotion(None)), CommandKind::Reconfigure);
        assert_eq!(kind(promotion(Some(7))), CommandKind::ReconfigureNamed);
        assert_eq!(kind(Change::NameBirths(births())), CommandKind::ReconfigureNamed);
        let of_two = [promotion(Some(1)), Change::NameBirths(births())].map(|change| {
            let request = ChangeRequest { expected: 1, change };
            request.encode().to_bytes()
        });
        // The births of one change do not make another one.
        let mixed = [&of_two[0][..17], &of_two[1][9..]].concat();
        assert!(ChangeRequest::decode(mixed.into()).is_err());
    }

    /// Replica `me` of a group of which nothing is decided.
    fn replica(me: ReplicaId, group: &Group, birth: u64) -> (Replica, Vec<Action>) {
        let recovered = Recovered {
            records: Vec::new(),
            last_lsn: Lsn::ZERO,
            snapshot: None,
            amnesia: false,
            birth,
            incarnation: Incarnation(1),
            nonce: 1,
            met_all: true,
        };
        let mut actions = Vec::new();
        let replica = Replica::start(Settings::default(), me, group.clone(), recovered, now(), &mut actions);
        (replica, actions)
    }

    fn now() -> Time {
        Time::ZERO + Duration::from_secs(3600)
    }

    fn meet(replica: &mut Replica, id: ReplicaId, birth: u64, version: u16) {
        let met = Met { birth, incarnation: Incarnation(1), since: Incarnation(0), version };
        replica.step(now(), Event::Met { peer: id, met }, &mut Vec::new());
    }

    /// What a protocol has forgotten is sent by the replica around it, as long as that keeps it.
    #[test]
    fn a_slot_that_a_peer_lacks_is_sent_if_it_is_kept() {
        let group = named(ProtocolKind::KernelPaxos);
        let (mut replica, _) = replica(R1, &group, 10);
        replica.deliver(now(), Slot(1), synod_wire::Ballots::ZERO, Batch::noop(), &mut Vec::new());
        let sent = |replica: &mut Replica, slot| {
            let mut actions = Vec::new();
            let lacks = synod_consensus::Effect::Lacks { peer: R4, slot };
            replica.carry_out_one(now(), group.epoch, lacks, &mut actions);
            actions
        };
        let pushed = sent(&mut replica, Slot(1));
        let [Action::Send { message: PeerMessage::Pushed { from, decided, batches }, .. }] = &pushed[..]
        else {
            panic!("{pushed:?}")
        };
        assert_eq!((*from, *decided, batches.len()), (Slot(1), Slot(1), 1));
        assert!(sent(&mut replica, Slot(2)).is_empty(), "it is not decided");
    }

    #[test]
    fn what_another_birth_says_is_not_heard_from_the_moment_that_one_is_named() {
        let group = with_learner(&named(ProtocolKind::MultiPaxos));
        let (mut replica, _) = replica(R1, &group, 10);
        assert!(!replica.is_stranger(R4), "no birth is named for it");
        meet(&mut replica, ReplicaId(2), 20, BIRTHS_SINCE);
        meet(&mut replica, R4, 41, BIRTHS_SINCE);
        assert!(!replica.is_stranger(ReplicaId(2)) && !replica.is_stranger(R4));
        assert!(replica.is_stranger(ReplicaId(3)), "nobody said whose messages come");
        let decided = batch(&group, promotion(Some(40)));
        let mut actions = Vec::new();
        replica.deliver(now(), Slot(1), synod_wire::Ballots::ZERO, decided, &mut actions);
        assert!(replica.is_stranger(R4));
        meet(&mut replica, R4, 40, BIRTHS_SINCE);
        assert!(!replica.is_stranger(R4), "the right one is heard, although another came first");
    }

    #[test]
    fn a_replica_whose_vote_is_anothers_takes_no_part_and_asks_for_nothing() {
        let group = named(ProtocolKind::MultiPaxos);
        for (birth, takes_part) in [(10, true), (11, false)] {
            let (replica, _) = replica(R1, &group, birth);
            assert_eq!((replica.instance.runs(), replica.may_vote()), (takes_part, takes_part));
            assert_eq!((replica.is_disowned(), replica.status().without_memory), (!takes_part, !takes_part));
        }
    }

    #[test]
    fn a_promotion_names_the_birth_that_was_met_and_is_refused_where_none_was() {
        let group = with_learner(&named(ProtocolKind::MultiPaxos));
        let (mut replica, _) = replica(R1, &group, 10);
        let asked = ChangeRequest { expected: 1, change: Change::promote(R4) }.encode().to_bytes();
        assert_eq!(replica.with_births(&asked), Err(RequestError::NotCaughtUp));
        meet(&mut replica, R4, 40, BIRTHS_SINCE);
        assert_eq!(replica.with_births(&asked).map(|request| request.change), Ok(promotion(Some(40))));
        assert!(!replica.names_a_stranger(Some(&promotion(Some(40)))));
        assert!(replica.names_a_stranger(Some(&promotion(Some(41)))));
        let births = ChangeRequest { expected: 1, change: Change::NameBirths(births()) };
        assert_eq!(replica.with_births(&births.encode().to_bytes()), Err(RequestError::NotAChange));
        assert_eq!(replica.with_births(&Bytes::from_static(b"\0")), Err(RequestError::NotAChange));
    }

    /// The only voter could decide nothing more, not even that the other one is readmitted.
    #[test]
    fn a_learner_that_lost_its_log_gets_no_vote_where_the_others_would_be_no_quorum() {
        let stuck = |voters: u64, since: u64, readmitted: u64| {
            let protocol = Options::of(ProtocolKind::SequencePaxos);
            let mut group = with_learner(&Group::of(&protocol, (1..=voters).map(ReplicaId)));
            let learner = group.members.last_mut().expect("it was added");
            learner.readmitted = Incarnation(readmitted);
            let id = learner.id;
            let (mut replica, _) = replica(R1, &group, 10);
            let met = Met { birth: 40, incarnation: Incarnation(3), since: Incarnation(since), version: 0 };
            replica.births.meet(id, met);
            let (epoch, slot, view) = (group.epoch, Slot::ZERO, synod_consensus::LeaderView::default());
            let says = PeerMessage::Progress { epoch, kept: slot, decided: slot, view, sought: false };
            replica.step(now(), Event::Receive { from: id, message: says }, &mut Vec::new());
            let request = ChangeRequest { expected: group.version, change: Change::promote(id) };
            let mut batch = BatchBuilder::new();
            let payload = request.encode().to_bytes();
            batch.push_as(CommandKind::Reconfigure, SessionId(1), 1, 1, &payload);
            replica.would_be_stuck(now(), &batch.finish())
        };
        assert!(!stuck(1, 0, 0), "it lost nothing");
        assert!(stuck(1, 2, 0));
        assert!(stuck(1, 2, 2), "it may not have entered the epoch that began for an earlier life");
        assert!(!stuck(1, 2, 3), "an epoch began for this life");
    }

    #[test]
    fn a_learner_that_lost_its_log_is_readmitted_before_it_is_promoted() {
        let group = with_learner(&named(ProtocolKind::SequencePaxos));
        let readmit =
            |group: &Group, birth| changed(group, Change::Readmit { id: R4, life: Incarnation(3), birth });
        let unnamed = with_learner(&self::group(ProtocolKind::SequencePaxos));
        assert_eq!(readmit(&unnamed, None), Err(Refusal::NothingToDo), "others might run 0.2.0");
        let readmitted = readmit(&group, Some(40)).expect("it is to vote");
        assert_eq!(readmitted.epoch, Epoch(group.epoch.0 + 1));
        let wanted = |group: &Group, since: u64| {
            let (mut replica, _) = replica(R1, group, 10);
            let met = Met { birth: 40, incarnation: Incarnation(3), since: Incarnation(since), version: 0 };
            replica.births.meet(R4, met);
            replica.readmission_before_vote(R4)
        };
        let change = Change::Readmit { id: R4, life: Incarnation(3), birth: Some(40) };
        assert_eq!(wanted(&group, 2), Some(change));
        assert_eq!(wanted(&group, 0), None, "it lost nothing");
        assert_eq!(wanted(&readmitted, 2), None);
        assert_eq!(wanted(&unnamed, 2), None);
    }

    #[test]
    fn first_voters_are_named_once_all_say_the_same_and_nobody_runs_an_old_program() {
        let (mut replica, _) = replica(R1, &group(ProtocolKind::MultiPaxos), 10);
        let told = |replica: &mut Replica, from, births| replica.births_told(ReplicaId(from), births);
        assert_eq!(replica.births_of_voters(), None, "r2 and r3 were not met");
        meet(&mut replica, ReplicaId(2), 20, BIRTHS_SINCE);
        meet(&mut replica, ReplicaId(3), 30, BIRTHS_SINCE - 1);
        assert_eq!(replica.births_of_voters(), Some(births()));
        assert_eq!(replica.agreed_births(), None);
        told(&mut replica, 2, births());
        told(&mut replica, 3, births());
        assert_eq!(replica.agreed_births(), None, "r3 does not know births");
        meet(&mut replica, ReplicaId(3), 30, BIRTHS_SINCE);
        assert_eq!(replica.agreed_births(), Some(births()));
        // r2 has a session with another r3 than this replica.
        told(&mut replica, 2, vec![(R1, 10), (ReplicaId(2), 20), (ReplicaId(3), 31)]);
        assert_eq!(replica.agreed_births(), None);
        told(&mut replica, 2, births());
        let learner = replica.group.next_id;
        replica.group = with_learner(&replica.group);
        assert_eq!(replica.agreed_births(), None, "the learner may run an old program");
        meet(&mut replica, learner, 40, BIRTHS_SINCE);
        assert_eq!(replica.agreed_births(), Some(births()));
        // What a replica says that does not vote is not asked for.
        told(&mut replica, 9, births());
        assert_eq!(replica.births.told.len(), 2);
    }

    #[test]
    fn names_in_the_own_log_count_until_something_else_is_in_their_slot() {
        let group = with_learner(&named(ProtocolKind::Raft));
        let (mut replica, _) = replica(R1, &group, 10);
        meet(&mut replica, R4, 41, BIRTHS_SINCE);
        let promotes = |birth| batch(&group, promotion(Some(birth)));
        replica.births.pending.push((Slot(7), (R4, 41)));
        assert!(!replica.is_stranger(R4));
        // A later leader's promotion stands behind it, and counts.
        replica.births.pending.push((Slot(9), (R4, 40)));
        assert!(replica.is_stranger(R4));
        replica.names_delivered(Slot(9));
        assert!(!replica.is_stranger(R4), "it was refused, or lost");
        assert_eq!(named_by(&promotes(40)), [(R4, 40)]);
    }

    #[test]
    fn a_promotion_of_another_birth_that_came_to_nothing_is_forgotten() {
        let group = with_learner(&named(ProtocolKind::MultiPaxos));
        let (mut replica, _) = replica(R4, &group, 41);
        let decided = |change| batch(&group, change);
        assert!(replica.is_disowned_by_batch(&decided(promotion(Some(40)))) && replica.is_disowned());
        replica.deliver(now(), Slot(1), synod_wire::Ballots::ZERO, Batch::noop(), &mut Vec::new());
        assert!(!replica.is_disowned());
        assert!(replica.is_disowned_by_batch(&decided(promotion(Some(40)))));
        let own = decided(promotion(Some(41)));
        replica.deliver(now(), Slot(2), synod_wire::Ballots::ZERO, own, &mut Vec::new());
        assert!(!replica.is_disowned() && replica.group.birth_of(R4) == Some(41));
    }

    #[test]
    fn a_replica_stops_before_a_change_that_it_does_not_know() {
        let (mut replica, mut actions) = replica(R1, &group(ProtocolKind::MultiPaxos), 10);
        let unknown = |kind| {
            let mut builder = BatchBuilder::new();
            builder.push_as(kind, SessionId(1), 1, 1, b"\0\0\0\0\0\0\0\0\xff of a later release");
            builder.finish()
        };
        for kind in [CommandKind::Reconfigure, CommandKind::ReconfigureNamed] {
            replica.deliver(now(), Slot(1), synod_wire::Ballots::ZERO, unknown(kind), &mut actions);
            replica.deliver(now(), Slot(2), synod_wire::Ballots::ZERO, Batch::noop(), &mut actions);
        }
        let halts: Vec<_> =
            actions.iter().filter(|action| matches!(action, Action::UnknownChange { .. })).collect();
        assert!(matches!(halts[..], [Action::UnknownChange { slot: Slot(1) }]), "{halts:?}");
        assert!(!actions.iter().any(|action| matches!(action, Action::Execute { .. })));
        assert_eq!(replica.status().delivered, Slot::ZERO);
    }
}

//! Changes of a group: which there are, when one is refused, and what its outcome is.
//!
//! A change travels as the only command of a batch ([`ChangeRequest::kind`]).
//! Every replica applies it to its copy of the [`Group`] when the slot is delivered, with the same result.

use std::sync::Arc;

use bytes::Bytes;
use synod_consensus::{ElectionKind, Overrides, ProtocolKind};
use synod_wire::{
    Batch, CommandKind, DecodeError, Encoded, Epoch, Incarnation, Reader, ReplicaId, Slot, Writer,
};

use crate::{
    Choice, Limits, MemberSet, Membership,
    births::{decode_births, encode_births},
    group::{GROUP_MEMBERS_MAX, Goal, Group, Member, MemberInfo, Standing, read_limits, read_name},
};

/// A change, and the group for which it was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangeRequest {
    /// The change is refused unless this is the group's version.
    pub expected: u64,
    /// The change.
    pub change: Change,
}

/// What can change about a group.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    /// A learner joins, with the next id.
    Add {
        /// Its name and addresses.
        info: MemberInfo,
        /// What it is meant to become.
        goal: Goal,
    },
    /// A learner votes from now on; one that replaces a member takes its place.
    Promote {
        /// The learner.
        id: ReplicaId,
        /// The birth of the data directory that gets the vote; `None` if the group names no births yet. The replica
        /// that proposes the change fills it in.
        birth: Option<u64>,
    },
    /// A member leaves.
    Remove(ReplicaId),
    /// A member has another name or other addresses.
    Update {
        /// The member.
        id: ReplicaId,
        /// Its new name and addresses.
        info: MemberInfo,
    },
    /// Another protocol orders, or the same one with another election or other options.
    Order {
        /// The protocol.
        protocol: ProtocolKind,
        /// How it finds its leader.
        election: ElectionKind,
        /// The options that all voters must have alike, besides each replica's own.
        overrides: Overrides,
    },
    /// Other limits hold from now on.
    Limits(Limits),
    /// A group that follows another takes on the members of that one; see [`Membership`]. Its caretaker proposes that
    /// by itself.
    Follow(Arc<MemberSet>),
    /// A group that follows another chooses who of the members of the cluster votes in it, or has the voters of the
    /// other one again. Those that are to vote learn first.
    Place(Option<Choice>),
    /// A replica that lost its memory may take part again: in a new epoch, in which it has not said anything yet.
    Readmit {
        /// The replica: a voter, or a learner that is to vote within the epoch.
        id: ReplicaId,
        /// Its life that remembers nothing.
        life: Incarnation,
        /// The birth of its data directory; `None` if the group names no births yet.
        birth: Option<u64>,
    },
    /// From now on the group knows the birth of each of its voters. The caretaker proposes that once, when all voters
    /// have met and agree; see `docs/identity.md`.
    NameBirths(Vec<Named>),
}

/// A replica and the birth of its data directory.
pub type Named = (ReplicaId, u64);

/// Why a change was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The group has changed since the change was made for it.
    #[error(
        "the change was made for version {expected} of the group; it is at version {current}: look at it again"
    )]
    Stale {
        /// The version that the change names.
        expected: u64,
        /// The group's version.
        current: u64,
    },
    /// There is no member with this id.
    #[error("{0} is not a member")]
    NotAMember(ReplicaId),
    /// The member votes already.
    #[error("{0} is not a learner")]
    NotALearner(ReplicaId),
    /// No voter would be left.
    #[error("{0} is the last one that votes")]
    LastVoter(ReplicaId),
    /// The group has the most members that it can have.
    #[error("the group has {GROUP_MEMBERS_MAX} members, and cannot have more")]
    Full,
    /// Another member has this address.
    #[error("{0} already has the peer URL {1}")]
    AddressTaken(ReplicaId, String),
    /// The group is already as the change would make it.
    #[error("nothing would change")]
    NothingToDo,
    /// The command is not a change.
    #[error("this is not a change")]
    Malformed,
    /// Decisions still need a majority of the replicas that voted before the last change.
    #[error("the last change of voters is not complete; ask again in a moment")]
    Unsettled,
    /// The group follows another, in which its members are decided.
    #[error("the members of this group are those of group 0; they change there")]
    MembersFollow,
    /// The group has followed a later member set of the other group.
    #[error("the members of version {offered} of group 0 are not followed after those of version {followed}")]
    OlderMembers {
        /// The version of the set that the change names.
        offered: u64,
        /// The version of the set that was followed last.
        followed: u64,
    },
    /// The group follows no other.
    #[error("only a group that follows group 0 may choose its voters")]
    FollowsNone,
    /// The group names the births of its voters, and the change gives a vote without one.
    #[error("the group knows the data directory of each voter, and the change does not name that of {0}")]
    Unnamed(ReplicaId),
    /// The vote of the replica belongs to another data directory.
    #[error("the group knows another data directory of {0} than the one that the change names; replace {0}")]
    OtherBirth(ReplicaId),
    /// The replica cannot be chosen to vote.
    #[error("{0} does not vote in group 0, as far as this group knows: choose members that vote there")]
    NotAVoterOfFirst(ReplicaId),
}

/// The part of a group that a change alters.
pub(crate) enum Concerns {
    /// The members, their names and addresses, or the limits.
    Members,
    /// The voters.
    Voters,
    /// The protocol and its options, or which voter without memory is admitted again.
    Ordering,
}

impl Change {
    /// A promotion as a client asks for it: the replica that proposes it names the birth.
    #[must_use]
    pub fn promote(id: ReplicaId) -> Change {
        Change::Promote { id, birth: None }
    }
}

impl Group {
    /// The group after a change that was decided in `slot`.
    ///
    /// # Errors
    /// The change is refused; the error gives the reason, and the group stays as it is.
    pub fn apply(&self, slot: Slot, request: &ChangeRequest) -> Result<Group, Refusal> {
        let (expected, current) = (request.expected, self.version);
        if expected != current {
            return Err(Refusal::Stale { expected, current });
        }
        if !self.outgoing.is_empty() {
            return Err(Refusal::Unsettled);
        }
        // A change that is made for the group without names is as good for the group with them, so that nobody has to
        // look again because of what replicas do by themselves. Groups that follow know a later set by its version.
        let named_alone =
            matches!(request.change, Change::NameBirths(_)) && self.membership == Membership::Alone;
        let version = current + u64::from(!named_alone);
        let mut next = Group { version, former: Vec::new(), ..self.clone() };
        let concerns = next.alter(&request.change)?;
        let within_epoch = self.changes_voters_itself() && !self.takes_back(&next);
        match concerns {
            Concerns::Members if within_epoch || !self.changes_voters_itself() => {}
            Concerns::Voters if within_epoch => {
                next.outgoing = self.voters_before(&next);
            }
            Concerns::Members | Concerns::Voters | Concerns::Ordering => {
                next.epoch = Epoch(self.epoch.0 + 1);
                next.first = slot.next();
            }
        }
        next.former =
            self.members.iter().filter(|member| next.member(member.id).is_none()).cloned().collect();
        if matches!(self.membership, Membership::Followed(_)) && self.has_other_members(&next) {
            next.membership = Membership::Followed(next.version);
        }
        Ok(next)
    }

    /// Makes a change, and returns which part of the group it altered.
    fn alter(&mut self, change: &Change) -> Result<Concerns, Refusal> {
        self.check_births(change)?;
        let follows = matches!(self.membership, Membership::Follows(_));
        match change {
            Change::Add { .. } | Change::Remove(_) | Change::Update { .. } if follows => {
                Err(Refusal::MembersFollow)
            }
            // The other group has not decided that it votes.
            Change::Promote { id, .. }
                if follows && self.learners().any(|learner| learner == (*id, Goal::Learn)) =>
            {
                Err(Refusal::MembersFollow)
            }
            Change::Follow(set) => self.follow(set),
            Change::Place(choice) => self.place(choice.as_ref()),
            Change::Add { info, goal } => self.add(info, *goal).map(|()| Concerns::Members),
            Change::Promote { id, birth } => self.promote(*id, *birth).map(|()| Concerns::Voters),
            Change::NameBirths(named) => self.name(named).map(|()| Concerns::Members),
            Change::Remove(id) => self.remove(*id),
            Change::Update { id, info } => {
                self.check_addresses(Some(*id), info)?;
                let member = self.member_mut(*id)?;
                if member.info == *info {
                    return Err(Refusal::NothingToDo);
                }
                member.info = info.clone();
                Ok(Concerns::Members)
            }
            Change::Order { protocol, election, overrides } => {
                if (self.protocol, self.election, &self.overrides) == (*protocol, *election, overrides) {
                    return Err(Refusal::NothingToDo);
                }
                // If it were decided all the same, it would stop every replica, at each restart again.
                if !protocol.elections().contains(election) || overrides.check(*protocol).is_err() {
                    return Err(Refusal::Malformed);
                }
                (self.protocol, self.election) = (*protocol, *election);
                self.overrides.clone_from(overrides);
                Ok(Concerns::Ordering)
            }
            Change::Limits(limits) => {
                if self.limits == *limits {
                    return Err(Refusal::NothingToDo);
                }
                // Every replica would refuse to read such a group.
                if limits.check().is_err() {
                    return Err(Refusal::Malformed);
                }
                self.limits = *limits;
                Ok(Concerns::Members)
            }
            Change::Readmit { id, life, birth } => {
                let (learners_run, named) = (self.learners_run(), self.names_births());
                let member = self.member_mut(*id)?;
                let takes_part = match member.standing {
                    Standing::Voter => true,
                    // Programs from before births refuse this, and are in no group that names them.
                    Standing::Learner(goal) => learners_run || named && goal != Goal::Learn,
                };
                if member.readmitted >= *life || !takes_part {
                    return Err(Refusal::NothingToDo);
                }
                member.readmitted = *life;
                self.give_birth(*id, *birth);
                Ok(Concerns::Ordering)
            }
        }
    }

    fn member_mut(&mut self, id: ReplicaId) -> Result<&mut Member, Refusal> {
        self.members.iter_mut().find(|member| member.id == id).ok_or(Refusal::NotAMember(id))
    }

    fn check_addresses(&self, own: Option<ReplicaId>, info: &MemberInfo) -> Result<(), Refusal> {
        for member in self.members.iter().filter(|member| Some(member.id) != own) {
            if let Some(url) = info.peer_urls.iter().find(|url| member.info.peer_urls.contains(url)) {
                return Err(Refusal::AddressTaken(member.id, url.clone()));
            }
        }
        Ok(())
    }

    fn add(&mut self, info: &MemberInfo, goal: Goal) -> Result<(), Refusal> {
        if self.members.len() >= GROUP_MEMBERS_MAX {
            return Err(Refusal::Full);
        }
        let replaced = if let Goal::Replace(id) = goal { Some(id) } else { None };
        if let Some(id) = replaced
            && self.member(id).is_none()
        {
            return Err(Refusal::NotAMember(id));
        }
        // A replica that takes a member's place may have its address.
        self.check_addresses(replaced, info)?;
        let standing = Standing::Learner(goal);
        let id = self.next_id;
        self.members.push(Member {
            id,
            info: info.clone(),
            standing,
            readmitted: Incarnation(0),
            birth: None,
        });
        self.next_id = ReplicaId(id.0 + 1);
        Ok(())
    }

    fn promote(&mut self, id: ReplicaId, birth: Option<u64>) -> Result<(), Refusal> {
        let member = self.member_mut(id)?;
        let Standing::Learner(goal) = member.standing else { return Err(Refusal::NotALearner(id)) };
        member.standing = Standing::Voter;
        let old = if let Goal::Replace(old) = goal { Some(old) } else { None };
        self.give_birth(id, birth);
        self.hand_over_place(old);
        Ok(())
    }

    fn remove(&mut self, id: ReplicaId) -> Result<Concerns, Refusal> {
        let voted = self.member_mut(id)?.standing == Standing::Voter;
        if voted && self.voters().count() == 1 {
            return Err(Refusal::LastVoter(id));
        }
        self.members.retain(|member| member.id != id);
        for member in &mut self.members {
            if member.standing == Standing::Learner(Goal::Replace(id)) {
                member.standing = Standing::Learner(Goal::Vote);
            }
        }
        Ok(if voted { Concerns::Voters } else { Concerns::Members })
    }
}

const ADD: u8 = 1;
const PROMOTE: u8 = 2;
const REMOVE: u8 = 3;
const UPDATE: u8 = 4;
const ORDER: u8 = 5;
const READMIT: u8 = 6;
const LIMITS: u8 = 7;
const FOLLOW: u8 = 8;
const PLACE: u8 = 9;
const NAME_BIRTHS: u8 = 10;

impl ChangeRequest {
    /// Whether a batch is a change of the group that this program does not know.
    #[must_use]
    pub fn is_unknown(batch: &Batch) -> bool {
        batch.reconfiguration().is_some_and(|payload| ChangeRequest::decode(payload).is_err())
    }

    /// The kind of the command that carries it.
    #[must_use]
    pub fn kind(&self) -> CommandKind {
        let names = !self.change.names().is_empty();
        if names { CommandKind::ReconfigureNamed } else { CommandKind::Reconfigure }
    }

    /// The payload of a command: the change as it was before there were births, and the births that it names at the
    /// end.
    #[must_use]
    pub fn encode(&self) -> Encoded {
        let mut writer = Writer::new();
        writer.u64(self.expected);
        match &self.change {
            Change::Add { info, goal } => {
                writer.u8(ADD);
                info.encode(&mut writer);
                Standing::Learner(*goal).encode(&mut writer);
            }
            Change::Promote { id, .. } => {
                writer.u8(PROMOTE);
                writer.replica(*id);
            }
            Change::Remove(id) => {
                writer.u8(REMOVE);
                writer.replica(*id);
            }
            Change::Update { id, info } => {
                writer.u8(UPDATE);
                writer.replica(*id);
                info.encode(&mut writer);
            }
            Change::Order { protocol, election, overrides } => {
                writer.u8(ORDER);
                writer.bytes(protocol.to_string().as_bytes());
                writer.bytes(election.to_string().as_bytes());
                writer.bytes(overrides.to_string().as_bytes());
            }
            Change::Limits(limits) => {
                writer.u8(LIMITS);
                writer.bytes(limits.to_string().as_bytes());
            }
            Change::Follow(set) => {
                writer.u8(FOLLOW);
                set.encode(&mut writer);
            }
            Change::Place(choice) => {
                writer.u8(PLACE);
                writer.bool(choice.is_some());
                choice.iter().for_each(|choice| choice.encode(&mut writer));
            }
            Change::Readmit { id, life, .. } => {
                writer.u8(READMIT);
                writer.replica(*id);
                writer.u64(life.0);
            }
            Change::NameBirths(_) => writer.u8(NAME_BIRTHS),
        }
        let named = self.change.names();
        if !named.is_empty() {
            encode_births(&named, &mut writer);
        }
        writer.finish()
    }

    /// Reads what [`ChangeRequest::encode`] wrote.
    pub fn decode(payload: Bytes) -> Result<ChangeRequest, DecodeError> {
        let mut reader = Reader::new(payload);
        let expected = reader.u64("expected version")?;
        let change = match reader.u8("change")? {
            ADD => {
                let info = MemberInfo::decode(&mut reader)?;
                match Standing::decode(&mut reader)? {
                    Standing::Learner(goal) => Change::Add { info, goal },
                    Standing::Voter => return Err(DecodeError::Undefined { field: "goal", value: 0 }),
                }
            }
            PROMOTE => Change::Promote { id: reader.replica("member")?, birth: None },
            REMOVE => Change::Remove(reader.replica("member")?),
            UPDATE => {
                Change::Update { id: reader.replica("member")?, info: MemberInfo::decode(&mut reader)? }
            }
            ORDER => Change::Order {
                protocol: read_name(&mut reader, "protocol")?,
                election: read_name(&mut reader, "election")?,
                overrides: read_name(&mut reader, "options")?,
            },
            LIMITS => Change::Limits(read_limits(&mut reader)?),
            FOLLOW => Change::Follow(Arc::new(MemberSet::decode(&mut reader)?)),
            PLACE => {
                let is_made = reader.bool("a choice of voters")?;
                Change::Place(is_made.then(|| Choice::decode(&mut reader)).transpose()?)
            }
            READMIT => {
                let id = reader.replica("member")?;
                Change::Readmit { id, life: Incarnation(reader.u64("life")?), birth: None }
            }
            NAME_BIRTHS => Change::NameBirths(Vec::new()),
            value => return Err(DecodeError::Undefined { field: "change", value: value.into() }),
        };
        let named = if reader.remaining() > 0 { decode_births(&mut reader)? } else { Vec::new() };
        reader.finish()?;
        Ok(ChangeRequest { expected, change: change.naming(named)? })
    }
}

/// The outcome of a change, as the reply to its command.
#[must_use]
pub fn encode_reply(result: &Result<Group, Refusal>) -> Bytes {
    let mut writer = Writer::new();
    match result {
        Ok(group) => {
            writer.u8(0);
            writer.shared(&group.encode().to_bytes());
        }
        Err(refusal) => {
            let (tag, a, b, text) = match refusal {
                Refusal::Stale { expected, current } => (1, *expected, *current, ""),
                Refusal::NotAMember(id) => (2, id.0, 0, ""),
                Refusal::NotALearner(id) => (3, id.0, 0, ""),
                Refusal::LastVoter(id) => (4, id.0, 0, ""),
                Refusal::Full => (5, 0, 0, ""),
                Refusal::AddressTaken(id, url) => (6, id.0, 0, url.as_str()),
                Refusal::NothingToDo => (7, 0, 0, ""),
                Refusal::Malformed => (8, 0, 0, ""),
                Refusal::Unsettled => (9, 0, 0, ""),
                Refusal::MembersFollow => (10, 0, 0, ""),
                Refusal::OlderMembers { offered, followed } => (11, *offered, *followed, ""),
                Refusal::FollowsNone => (12, 0, 0, ""),
                Refusal::NotAVoterOfFirst(id) => (13, id.0, 0, ""),
                Refusal::Unnamed(id) => (14, id.0, 0, ""),
                Refusal::OtherBirth(id) => (15, id.0, 0, ""),
            };
            writer.u8(tag);
            writer.u64(a);
            writer.u64(b);
            writer.bytes(text.as_bytes());
        }
    }
    writer.finish().to_bytes()
}

/// Reads what [`encode_reply`] wrote.
///
/// # Errors
/// The reply is to something else.
pub fn decode_reply(reply: Bytes) -> Result<Result<Group, Refusal>, DecodeError> {
    let mut reader = Reader::new(reply);
    let tag = reader.u8("outcome of a change")?;
    if tag == 0 {
        let group = Group::decode(reader.bytes("group")?)?;
        reader.finish()?;
        return Ok(Ok(group));
    }
    let (a, b) = (reader.u64("refusal")?, reader.u64("refusal")?);
    let text = crate::group::read_text(&mut reader, "refusal")?;
    reader.finish()?;
    let id = ReplicaId(a);
    Ok(Err(match tag {
        1 => Refusal::Stale { expected: a, current: b },
        2 => Refusal::NotAMember(id),
        3 => Refusal::NotALearner(id),
        4 => Refusal::LastVoter(id),
        5 => Refusal::Full,
        6 => Refusal::AddressTaken(id, text),
        7 => Refusal::NothingToDo,
        8 => Refusal::Malformed,
        9 => Refusal::Unsettled,
        10 => Refusal::MembersFollow,
        11 => Refusal::OlderMembers { offered: a, followed: b },
        12 => Refusal::FollowsNone,
        13 => Refusal::NotAVoterOfFirst(id),
        14 => Refusal::Unnamed(id),
        15 => Refusal::OtherBirth(id),
        value => return Err(DecodeError::Undefined { field: "refusal", value: value.into() }),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Others;
    use synod_consensus::{Decision, Options};

    fn group(n: u64) -> Group {
        Group::of(&Options::default(), (1..=n).map(ReplicaId))
    }

    fn info(name: &str) -> MemberInfo {
        MemberInfo { name: name.to_owned(), peer_urls: vec![format!("http://{name}:1")], client_urls: vec![] }
    }

    fn change(group: &Group, slot: u64, change: Change) -> Result<Group, Refusal> {
        group.apply(Slot(slot), &ChangeRequest { expected: group.version, change })
    }

    #[test]
    fn a_learner_joins_without_a_new_epoch_and_votes_in_one() {
        let group = group(3);
        let joined = change(&group, 7, Change::Add { info: info("d"), goal: Goal::Learn }).unwrap();
        assert_eq!((joined.epoch, joined.version), (Epoch(1), 2));
        assert_eq!(joined.learners().collect::<Vec<_>>(), [(ReplicaId(4), Goal::Learn)]);
        let promoted = change(&joined, 9, Change::promote(ReplicaId(4))).unwrap();
        assert_eq!((promoted.epoch, promoted.first), (Epoch(2), Slot(10)));
        assert_eq!(promoted.voters().count(), 4);
        assert_eq!(
            change(&promoted, 11, Change::promote(ReplicaId(4))),
            Err(Refusal::NotALearner(ReplicaId(4)))
        );
    }

    #[test]
    fn a_replacement_takes_the_place_in_one_step() {
        let goal = Goal::Replace(ReplicaId(2));
        let joined = change(&group(3), 7, Change::Add { info: info("d"), goal }).unwrap();
        let replaced = change(&joined, 9, Change::promote(ReplicaId(4))).unwrap();
        assert_eq!(replaced.voters().collect::<Vec<_>>(), [1, 3, 4].map(ReplicaId));
        assert_eq!(replaced.former.iter().map(|member| member.id).collect::<Vec<_>>(), [ReplicaId(2)]);
    }

    #[test]
    fn what_is_not_expected_or_makes_no_sense_is_refused() {
        let group = group(1);
        let remove = Change::Remove(ReplicaId(1));
        assert_eq!(change(&group, 3, remove.clone()), Err(Refusal::LastVoter(ReplicaId(1))));
        let stale = ChangeRequest { expected: 9, change: remove };
        assert_eq!(group.apply(Slot(3), &stale), Err(Refusal::Stale { expected: 9, current: 1 }));
        assert_eq!(change(&group, 3, Change::Remove(ReplicaId(8))), Err(Refusal::NotAMember(ReplicaId(8))));
        let joined = change(&group, 3, Change::Add { info: info("d"), goal: Goal::Learn }).unwrap();
        let again = change(&joined, 4, Change::Add { info: info("d"), goal: Goal::Learn });
        assert_eq!(again, Err(Refusal::AddressTaken(ReplicaId(2), "http://d:1".to_owned())));
    }

    #[test]
    fn a_protocol_is_not_changed_to_without_an_election_that_it_knows() {
        let overrides = Overrides::default();
        let order = |protocol, election| {
            change(&group(3), 3, Change::Order { protocol, election, overrides: overrides.clone() })
        };
        let (raft, multipaxos) = (ProtocolKind::Raft, ProtocolKind::MultiPaxos);
        assert_eq!(order(raft, ElectionKind::Rotating), Err(Refusal::Malformed));
        assert_eq!(order(multipaxos, ElectionKind::Randomized), Err(Refusal::Malformed));
        let next = order(raft, ElectionKind::Randomized).unwrap();
        assert_eq!((next.protocol, next.epoch), (raft, Epoch(group(3).epoch.0 + 1)));
    }

    #[test]
    fn options_alone_begin_an_epoch_if_the_protocol_heeds_them() {
        let group = group(3);
        let with = |text: &str| {
            let overrides = text.parse().unwrap();
            let order = Change::Order { protocol: group.protocol, election: group.election, overrides };
            change(&group, 3, order)
        };
        assert_eq!(with(""), Err(Refusal::NothingToDo));
        assert_eq!(with("head-start=off"), Err(Refusal::Malformed));
        let next = with("window-max=9").unwrap();
        assert_eq!((next.epoch, next.first), (Epoch(group.epoch.0 + 1), Slot(4)));
        assert_eq!(next.options(&Options::default()).window_max, 9);
    }

    #[test]
    fn another_protocol_drops_what_it_is_not_given() {
        let options = |text: &str| text.parse::<Overrides>().unwrap();
        let order = |group: &Group, protocol, election, overrides: &str| {
            change(group, 3, Change::Order { protocol, election, overrides: options(overrides) }).unwrap()
        };
        let (multipaxos, raft) = (ProtocolKind::MultiPaxos, ProtocolKind::Raft);
        let given = "decision=all,dissemination=balanced,window-max=9";
        let before = order(&group(3), multipaxos, ElectionKind::Rotating, given);
        let after = order(&before, raft, ElectionKind::Randomized, "dissemination=balanced");
        assert_eq!(before.dropped_by(&after), ["election=rotating", "decision=all", "window-max=9"]);
        let sequence = order(&before, ProtocolKind::SequencePaxos, ElectionKind::Rotating, "window-max=8");
        assert_eq!(before.dropped_by(&sequence), ["decision=all", "dissemination=balanced"]);
        let same = order(&before, multipaxos, ElectionKind::Ballot, "");
        assert_eq!(before.dropped_by(&same), [""; 0], "the operator asked for that");
    }

    #[test]
    fn limits_change_within_an_epoch_and_only_to_what_every_replica_can_read() {
        let group = group(3);
        let limits = Limits { txn_ops_max: 9, ..group.limits };
        let next = change(&group, 5, Change::Limits(limits)).unwrap();
        assert_eq!((next.limits, next.epoch, next.version), (limits, group.epoch, group.version + 1));
        assert_eq!(change(&next, 6, Change::Limits(limits)), Err(Refusal::NothingToDo));
        let none = Limits { request_bytes_max: 0, ..limits };
        assert_eq!(change(&next, 6, Change::Limits(none)), Err(Refusal::Malformed));
    }

    /// Two replicas of an epoch never find decisions in different ways, whatever options each was started with.
    #[test]
    fn how_decisions_are_found_is_the_groups() {
        let with = |decision| {
            let mut options = Options::default();
            options.multipaxos.decision = decision;
            options
        };
        let of = |group: &Group, flag| group.options(&with(flag)).multipaxos.decision;
        let order = |protocol: ProtocolKind| {
            let overrides = Overrides::default();
            Change::Order { protocol, election: protocol.elections()[0], overrides }
        };
        for decision in [Decision::Leader, Decision::All] {
            let group = Group::of(&with(decision), [ReplicaId(1), ReplicaId(2)]);
            assert_eq!([Decision::Leader, Decision::All].map(|flag| of(&group, flag)), [decision; 2]);
            let raft = change(&group, 3, order(ProtocolKind::Raft)).unwrap();
            let back = change(&raft, 4, order(ProtocolKind::MultiPaxos)).unwrap();
            assert_eq!(of(&back, Decision::All), Decision::Leader, "nobody said anything else");
        }
    }

    #[test]
    fn ids_are_never_used_again() {
        let joined = change(&group(3), 3, Change::Add { info: info("d"), goal: Goal::Learn }).unwrap();
        let left = change(&joined, 4, Change::Remove(ReplicaId(4))).unwrap();
        let joined = change(&left, 5, Change::Add { info: info("e"), goal: Goal::Learn }).unwrap();
        assert!(joined.member(ReplicaId(4)).is_none() && joined.member(ReplicaId(5)).is_some());
    }

    #[test]
    fn groups_changes_and_replies_survive_the_wire() {
        let goal = Goal::Replace(ReplicaId(2));
        let group = change(&group(3), 7, Change::Add { info: info("d"), goal }).unwrap();
        assert_eq!(Group::decode(group.encode().to_bytes()), Ok(group.clone()));
        let changes = [
            Change::Add { info: info("x"), goal },
            Change::promote(ReplicaId(4)),
            Change::Remove(ReplicaId(1)),
            Change::Update { id: ReplicaId(1), info: info("y") },
            Change::Order {
                protocol: group.protocol,
                election: group.election,
                overrides: "decision=all,window-max=9".parse().unwrap(),
            },
            Change::Readmit { id: ReplicaId(1), life: Incarnation(7), birth: None },
            Change::Readmit { id: ReplicaId(1), life: Incarnation(7), birth: Some(4) },
            Change::Promote { id: ReplicaId(2), birth: Some(0xfeed) },
            Change::NameBirths(vec![(ReplicaId(1), 7), (ReplicaId(2), u64::MAX)]),
            Change::Limits(Limits { txn_ops_max: 9, ..Limits::default() }),
            Change::Follow(Arc::new(group.clone().followed().member_set().expect("others follow it"))),
            Change::Place(None),
            Change::Place(Some(Choice::of([ReplicaId(3), ReplicaId(1)], Others::StayAway))),
        ];
        for change in changes {
            let request = ChangeRequest { expected: 3, change };
            let bytes = request.encode().to_bytes();
            assert_eq!(ChangeRequest::decode(bytes.clone()).as_ref(), Ok(&request));
            for len in 0..bytes.len() {
                if let Ok(shorter) = ChangeRequest::decode(bytes.slice(..len)) {
                    assert!(!request.change.names().is_empty() && shorter.change.names().is_empty());
                }
            }
        }
        let refusal = Refusal::AddressTaken(ReplicaId(4), "http://d:1".to_owned());
        let refusals = [
            refusal,
            Refusal::Stale { expected: 1, current: 2 },
            Refusal::Unsettled,
            Refusal::MembersFollow,
            Refusal::OlderMembers { offered: 3, followed: 4 },
            Refusal::FollowsNone,
            Refusal::NotAVoterOfFirst(ReplicaId(7)),
        ];
        for reply in refusals.into_iter().map(Err).chain([Ok(group)]) {
            assert_eq!(decode_reply(encode_reply(&reply)), Ok(reply));
        }
    }
}

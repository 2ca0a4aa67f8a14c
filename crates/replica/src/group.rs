//! Who belongs to a group and how it orders: replicated state, which [changes](crate::Change) in the log replace.
//!
//! A group's life is a sequence of **epochs**. An epoch fixes which protocol orders, and who votes. A decided change
//! that alters either ends the epoch: it is the **stop-sign** of Ng 2020 (section 2.4.3), the next epoch begins with
//! the slot behind it, and whatever the old epoch decides after it is void. A protocol that changes voters itself does
//! so within its epoch; see `voters.rs`.

use bytes::Bytes;
use synod_consensus::{Bug, ElectionKind, MEMBERS_MAX, Options, Overrides, ProtocolKind};
use synod_wire::{DecodeError, Encoded, Epoch, Incarnation, Reader, ReplicaId, Slot, Writer};

use crate::Limits;

/// What the members of a group are known by.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemberInfo {
    /// The name, for people; empty until the member has told it.
    pub name: String,
    /// Where other replicas reach it, such as `http://10.0.0.1:2380`.
    pub peer_urls: Vec<String>,
    /// Where clients reach it; empty until the member has told it.
    pub client_urls: Vec<String>,
}

/// Whether a member votes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It does.
    Voter,
    /// It follows the log and does not vote.
    Learner(Goal),
}

/// What a learner is there for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// To stay one until it is promoted.
    Learn,
    /// To vote as soon as it has caught up.
    Vote,
    /// To take the place of this member as soon as it has caught up.
    Replace(ReplicaId),
}

/// A member of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Its id, which no other member had or will have.
    pub id: ReplicaId,
    /// What it is known by.
    pub info: MemberInfo,
    /// Whether it votes.
    pub standing: Standing,
    /// The life of the replica that this epoch was begun for, after it had lost its memory; 0 if none was.
    pub readmitted: Incarnation,
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Grows by one with every change. A change names the version that it was made for.
    pub version: u64,
    /// The present epoch.
    pub epoch: Epoch,
    /// The slot with which it began.
    pub first: Slot,
    /// What orders in this epoch.
    pub protocol: ProtocolKind,
    /// How it finds its leader.
    pub election: ElectionKind,
    /// What else is the same for all that order.
    pub overrides: Overrides,
    /// What all replicas bound alike.
    pub limits: Limits,
    /// The members, by id.
    pub members: Vec<Member>,
    /// Those whom the last change removed: they are told of it, and may still be asked for what they know.
    pub former: Vec<Member>,
    /// While voters change within the epoch: who voted before. A majority of these is needed as well, and nothing
    /// else can change. Empty otherwise.
    pub outgoing: Vec<ReplicaId>,
    /// The id of the next member.
    pub next_id: ReplicaId,
}

impl Group {
    /// A group as it begins: all vote. Of the options it keeps what all that order must have alike; its limits are the
    /// defaults.
    ///
    /// # Panics
    /// If two have the same id: whoever reads a configuration checks that first.
    #[must_use]
    pub fn first(options: &Options, members: impl IntoIterator<Item = (ReplicaId, MemberInfo)>) -> Group {
        let voter = |(id, info)| Member { id, info, standing: Standing::Voter, readmitted: Incarnation(0) };
        let mut members: Vec<Member> = members.into_iter().map(voter).collect();
        members.sort_by_key(|member| member.id);
        assert!(members.windows(2).all(|pair| pair[0].id < pair[1].id), "members are distinct");
        let last = members.last().map_or(0, |member| member.id.0);
        Group {
            version: 1,
            epoch: Epoch(1),
            first: Slot(1),
            protocol: options.protocol,
            election: options.election,
            overrides: Overrides::shared(options),
            limits: Limits::default(),
            members,
            former: Vec::new(),
            outgoing: Vec::new(),
            next_id: ReplicaId(last + 1),
        }
    }

    /// A group of replicas without addresses, for programs that bring their own network.
    #[must_use]
    pub fn of(options: &Options, ids: impl IntoIterator<Item = ReplicaId>) -> Group {
        Group::first(options, ids.into_iter().map(|id| (id, MemberInfo::default())))
    }

    /// The group with other limits, before it begins.
    #[must_use]
    pub fn limited(self, limits: Limits) -> Group {
        Group { limits, ..self }
    }

    /// A member, if there is one of this id.
    #[must_use]
    pub fn member(&self, id: ReplicaId) -> Option<&Member> {
        self.members.iter().find(|member| member.id == id)
    }

    /// Whether this replica votes.
    #[must_use]
    pub fn votes(&self, id: ReplicaId) -> bool {
        self.member(id).is_some_and(|member| member.standing == Standing::Voter)
    }

    /// Those who vote.
    pub fn voters(&self) -> impl Iterator<Item = ReplicaId> + '_ {
        self.members.iter().filter(|member| member.standing == Standing::Voter).map(|member| member.id)
    }

    /// Those who learn.
    pub fn learners(&self) -> impl Iterator<Item = (ReplicaId, Goal)> + '_ {
        self.members.iter().filter_map(|member| match member.standing {
            Standing::Learner(goal) => Some((member.id, goal)),
            Standing::Voter => None,
        })
    }

    /// All whom a replica may talk to: members and those who were members until the last change.
    pub fn known(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().chain(&self.former)
    }

    /// The options of the present epoch. What two sides of a message must agree on is the group's, whatever this replica
    /// was started with: while two modes of decision are mixed, say, a follower that counts votes by itself acknowledges
    /// a write before a leader that takes itself for the first to know would answer a read with it.
    #[must_use]
    pub fn options(&self, local: &Options) -> Options {
        let mut options = Options { protocol: self.protocol, election: self.election, ..local.clone() };
        if !(cfg!(feature = "planted-bugs") && local.planted == Some(Bug::DecisionOfEachReplica)) {
            Overrides::unset_shared(&mut options);
        }
        self.overrides.apply(&mut options);
        options
    }

    /// The bytes for a log, a snapshot or a message.
    #[must_use]
    pub fn encode(&self) -> Encoded {
        let mut writer = Writer::new();
        writer.u64(self.version);
        writer.u64(self.epoch.0);
        writer.slot(self.first);
        writer.bytes(self.protocol.to_string().as_bytes());
        writer.bytes(self.election.to_string().as_bytes());
        writer.bytes(self.overrides.to_string().as_bytes());
        writer.bytes(self.limits.to_string().as_bytes());
        writer.replica(self.next_id);
        for members in [&self.members, &self.former] {
            writer.u32(u32::try_from(members.len()).expect("few members"));
            members.iter().for_each(|member| member.encode(&mut writer));
        }
        writer.u32(u32::try_from(self.outgoing.len()).expect("few members"));
        self.outgoing.iter().for_each(|&id| writer.replica(id));
        writer.finish()
    }

    /// Reads what [`Group::encode`] wrote.
    pub fn decode(bytes: Bytes) -> Result<Group, DecodeError> {
        let mut reader = Reader::new(bytes);
        let version = reader.u64("group version")?;
        let epoch = Epoch(reader.u64("epoch")?);
        let first = reader.slot("first slot of the epoch")?;
        let protocol = read_name(&mut reader, "protocol")?;
        let election = read_name(&mut reader, "election")?;
        let overrides = read_name(&mut reader, "options")?;
        let limits = read_limits(&mut reader)?;
        let next_id = reader.replica("next id")?;
        let members = read_members(&mut reader)?;
        let former = read_members(&mut reader)?;
        let count = reader.u32("outgoing voters")?;
        let outgoing = (0..count).map(|_| reader.replica("outgoing voter")).collect::<Result<_, _>>()?;
        reader.finish()?;
        Ok(Group {
            version,
            epoch,
            first,
            protocol,
            election,
            overrides,
            limits,
            members,
            former,
            outgoing,
            next_id,
        })
    }
}

fn read_members(reader: &mut Reader) -> Result<Vec<Member>, DecodeError> {
    let count = reader.u32("members")?;
    (0..count).map(|_| Member::decode(reader)).collect()
}

/// Reads limits, all of which are in their range.
pub(crate) fn read_limits(reader: &mut Reader) -> Result<Limits, DecodeError> {
    let text = read_text(reader, "limits")?;
    Limits::default().with(&text).map_err(|_| DecodeError::Undefined { field: "limits", value: 0 })
}

/// Reads one of a few names.
pub(crate) fn read_name<T: std::str::FromStr>(
    reader: &mut Reader,
    field: &'static str,
) -> Result<T, DecodeError> {
    let name = read_text(reader, field)?;
    name.parse().map_err(|_| DecodeError::Undefined { field, value: 0 })
}

pub(crate) fn read_text(reader: &mut Reader, field: &'static str) -> Result<String, DecodeError> {
    let bytes = reader.bytes(field)?;
    String::from_utf8(bytes.to_vec()).map_err(|_| DecodeError::Undefined { field, value: 0 })
}

impl MemberInfo {
    pub(crate) fn encode(&self, writer: &mut Writer) {
        writer.bytes(self.name.as_bytes());
        for urls in [&self.peer_urls, &self.client_urls] {
            writer.u32(u32::try_from(urls.len()).expect("few addresses"));
            urls.iter().for_each(|url| writer.bytes(url.as_bytes()));
        }
    }

    pub(crate) fn decode(reader: &mut Reader) -> Result<MemberInfo, DecodeError> {
        let name = read_text(reader, "name")?;
        let mut urls = || {
            let count = reader.u32("urls")?;
            (0..count).map(|_| read_text(reader, "url")).collect::<Result<Vec<_>, _>>()
        };
        let (peer_urls, client_urls) = (urls()?, urls()?);
        Ok(MemberInfo { name, peer_urls, client_urls })
    }
}

const VOTER: u8 = 0;
const LEARN: u8 = 1;
const VOTE: u8 = 2;
const REPLACE: u8 = 3;

impl Standing {
    pub(crate) fn encode(self, writer: &mut Writer) {
        let (tag, whom) = match self {
            Standing::Voter => (VOTER, ReplicaId(0)),
            Standing::Learner(Goal::Learn) => (LEARN, ReplicaId(0)),
            Standing::Learner(Goal::Vote) => (VOTE, ReplicaId(0)),
            Standing::Learner(Goal::Replace(whom)) => (REPLACE, whom),
        };
        writer.u8(tag);
        writer.replica(whom);
    }

    pub(crate) fn decode(reader: &mut Reader) -> Result<Standing, DecodeError> {
        let tag = reader.u8("standing")?;
        let whom = reader.replica("replaced member")?;
        Ok(match tag {
            VOTER => Standing::Voter,
            LEARN => Standing::Learner(Goal::Learn),
            VOTE => Standing::Learner(Goal::Vote),
            REPLACE => Standing::Learner(Goal::Replace(whom)),
            value => return Err(DecodeError::Undefined { field: "standing", value: value.into() }),
        })
    }
}

impl Member {
    fn encode(&self, writer: &mut Writer) {
        writer.replica(self.id);
        self.info.encode(writer);
        self.standing.encode(writer);
        writer.u64(self.readmitted.0);
    }

    fn decode(reader: &mut Reader) -> Result<Member, DecodeError> {
        Ok(Member {
            id: reader.replica("member")?,
            info: MemberInfo::decode(reader)?,
            standing: Standing::decode(reader)?,
            readmitted: Incarnation(reader.u64("readmitted life")?),
        })
    }
}

/// The most members a group may have, learners included.
pub const GROUP_MEMBERS_MAX: usize = MEMBERS_MAX;

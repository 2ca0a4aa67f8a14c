//! Which replicas belong to a group, and how it orders: replicated state, which [changes](crate::Change) in
//! the log replace.
//!
//! A group's life is a sequence of **epochs**. An epoch fixes which protocol orders, and which replicas vote.
//! A decided change that alters either ends the epoch: it is the **stop-sign** of Ng 2020 (section 2.4.3),
//! the next epoch begins with the slot after it, and whatever the old epoch decides after it is void. A
//! protocol that changes voters itself does so within its epoch; see `voters.rs`.

use bytes::Bytes;
use synod_consensus::{Bug, ElectionKind, MEMBERS_MAX, Options, Overrides, ProtocolKind, Threshold};
use synod_wire::{DecodeError, Encoded, Epoch, Incarnation, Reader, ReplicaId, Slot, Writer};

use crate::{
    Limits, Membership, Placement,
    births::{decode_births, encode_births, give_births, named_in},
};

/// How people and other programs know a member.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemberInfo {
    /// The name, for people; empty until the member has told it.
    pub name: String,
    /// URLs at which other replicas reach it, such as `http://10.0.0.1:2380`.
    pub peer_urls: Vec<String>,
    /// URLs at which clients reach it; empty until the member has told them.
    pub client_urls: Vec<String>,
}

impl MemberInfo {
    /// A member with these URLs for other replicas, which has not told its URLs for clients yet.
    #[must_use]
    pub fn new(name: impl Into<String>, peer_urls: Vec<String>) -> MemberInfo {
        MemberInfo { name: name.into(), peer_urls, client_urls: Vec::new() }
    }
}

/// Whether a member votes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Standing {
    /// It votes.
    Voter,
    /// It follows the log and does not vote.
    Learner(Goal),
}

/// What a learner is meant to become.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Goal {
    /// It stays a learner until it is promoted.
    Learn,
    /// It votes as soon as it has caught up.
    Vote,
    /// It takes the place of this member as soon as it has caught up.
    Replace(ReplicaId),
}

/// A member of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Member {
    /// Its id, which no other member ever had or will have.
    pub id: ReplicaId,
    /// Its name and addresses.
    pub info: MemberInfo,
    /// Whether it votes.
    pub standing: Standing,
    /// If this epoch began to admit a replica again that had lost its memory: the life of that replica. Otherwise 0.
    pub readmitted: Incarnation,
    /// The birth of the data directory that has its vote, once a change has named it
    /// ([`Change::names`](crate::Change)). A replica of this id with another birth has nothing to say in this group.
    pub birth: Option<u64>,
}

impl Member {
    /// A member that votes, that no epoch readmitted, and whose birth no change has named.
    #[must_use]
    pub fn voter(id: ReplicaId, info: MemberInfo) -> Member {
        Member { id, info, standing: Standing::Voter, readmitted: Incarnation(0), birth: None }
    }

    /// Its name for people: the id if it has told none.
    #[must_use]
    pub fn name(&self) -> String {
        if self.info.name.is_empty() { self.id.to_string() } else { self.info.name.clone() }
    }
}

/// The members of a group, its protocol, and what else all its replicas must have alike.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Group {
    /// Grows by one with every change. A change names the version for which it was made.
    pub version: u64,
    /// The current epoch.
    pub epoch: Epoch,
    /// The slot with which the current epoch began.
    pub first: Slot,
    /// The protocol that orders in this epoch.
    pub protocol: ProtocolKind,
    /// How the protocol finds its leader.
    pub election: ElectionKind,
    /// Options of the protocol that all voters must have alike.
    pub overrides: Overrides,
    /// Limits that all replicas must have alike.
    pub limits: Limits,
    /// The members, by id.
    pub members: Vec<Member>,
    /// The members that the last change removed: they are told of it, and may still be asked for what they know.
    pub former: Vec<Member>,
    /// While the voters change within the epoch, the replicas that voted before. A majority of these is
    /// needed as well, and nothing else can change. Empty otherwise.
    pub outgoing: Vec<ReplicaId>,
    /// The id that the next member gets.
    pub next_id: ReplicaId,
    /// Where the members are decided.
    pub membership: Membership,
    /// Which members of the cluster vote, in a group that follows another and for which that was chosen.
    pub placement: Option<Placement>,
}

impl Group {
    /// A group as it begins: all members vote. It takes from the options what all voters must have alike; its
    /// limits are the defaults.
    ///
    /// # Panics
    /// If two members have the same id. The code that reads a configuration checks that first.
    #[must_use]
    pub fn first(options: &Options, members: impl IntoIterator<Item = (ReplicaId, MemberInfo)>) -> Group {
        let mut members: Vec<Member> =
            members.into_iter().map(|(id, info)| Member::voter(id, info)).collect();
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
            membership: Membership::Alone,
            placement: None,
        }
    }

    /// A group of replicas without addresses, for programs that bring their own network.
    #[must_use]
    pub fn of(options: &Options, ids: impl IntoIterator<Item = ReplicaId>) -> Group {
        Group::first(options, ids.into_iter().map(|id| (id, MemberInfo::default())))
    }

    /// The group as one that begins with a backup, which is slot 1 ([`Executor::begin_with_backup`](
    /// crate::Executor::begin_with_backup)): it orders the slots from 2 on.
    #[must_use]
    pub fn after_backup(self) -> Group {
        Group { first: Slot(2), ..self }
    }

    /// The group with other limits, which is possible only before it begins.
    #[must_use]
    pub fn limited(self, limits: Limits) -> Group {
        Group { limits, ..self }
    }

    /// The member with this id, if there is one.
    #[must_use]
    pub fn member(&self, id: ReplicaId) -> Option<&Member> {
        self.members.iter().find(|member| member.id == id)
    }

    /// The name for people of a member with this id: the id if there is none.
    #[must_use]
    pub fn name_of(&self, id: ReplicaId) -> String {
        self.member(id).map_or_else(|| id.to_string(), Member::name)
    }

    /// Whether the replica `id` votes.
    #[must_use]
    pub fn votes(&self, id: ReplicaId) -> bool {
        self.member(id).is_some_and(|member| member.standing == Standing::Voter)
    }

    /// The members that vote.
    pub fn voters(&self) -> impl Iterator<Item = ReplicaId> + '_ {
        self.members.iter().filter(|member| member.standing == Standing::Voter).map(|member| member.id)
    }

    /// Whether the replica `id` is a member without a vote.
    #[must_use]
    pub fn learns(&self, id: ReplicaId) -> bool {
        self.member(id).is_some_and(|member| member.standing != Standing::Voter)
    }

    /// The members that learn.
    pub fn learners(&self) -> impl Iterator<Item = (ReplicaId, Goal)> + '_ {
        self.members.iter().filter_map(|member| match member.standing {
            Standing::Learner(goal) => Some((member.id, goal)),
            Standing::Voter => None,
        })
    }

    /// The replicas that a replica may talk to: the members, and the members that the last change removed.
    pub fn known(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().chain(&self.former)
    }

    /// The options of the current epoch. What both ends of a message must agree on is taken from the group,
    /// whatever this replica was started with. Mixed modes of decision would be wrong, for example: a
    /// follower that counts votes itself would acknowledge a write before a leader that believes that it
    /// decides first would answer a read with that write.
    #[must_use]
    pub fn options(&self, local: &Options) -> Options {
        let mut options = local.clone();
        (options.protocol, options.election) = (self.protocol, self.election);
        if !(cfg!(feature = "planted-bugs") && local.planted == Some(Bug::DecisionOfEachReplica)) {
            Overrides::unset_shared(&mut options);
        }
        self.overrides.apply(&mut options);
        options
    }

    /// How many of its voters decide.
    #[must_use]
    pub fn threshold(&self) -> Threshold {
        self.options(&Options::default()).threshold()
    }

    /// What this group has and the next one has not, since another protocol orders there: `election=NAME` and options
    /// as `KEY=VALUE`. It is empty under the same protocol.
    #[must_use]
    pub fn dropped_by(&self, next: &Group) -> Vec<String> {
        if self.protocol == next.protocol {
            return Vec::new();
        }
        let election = (self.election != next.election).then(|| format!("election={}", self.election));
        let options = self.overrides.pairs().filter(|(key, _)| next.overrides.get(key).is_none());
        election.into_iter().chain(options.map(|(key, value)| format!("{key}={value}"))).collect()
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
        let cluster = self.placement.iter().flat_map(|placement| &placement.cluster);
        let mut named = named_in(self.members.iter().chain(&self.former).chain(cluster));
        named.sort_unstable();
        named.dedup();
        if !named.is_empty() {
            writer.u8(BIRTHS);
            encode_births(&named, &mut writer);
        }
        self.membership.encode(&mut writer);
        // A group without a placement writes nothing, as it did before there were any.
        self.placement.iter().for_each(|placement| placement.encode(&mut writer));
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
        let mut members = read_members(&mut reader)?;
        let mut former = read_members(&mut reader)?;
        let count = reader.u32("outgoing voters")?;
        let outgoing = (0..count).map(|_| reader.replica("outgoing voter")).collect::<Result<_, _>>()?;
        let has_births = reader.peek() == Some(BIRTHS);
        let mut named = Vec::new();
        if has_births {
            reader.u8("births")?;
            named = decode_births(&mut reader)?;
            give_births(members.iter_mut().chain(&mut former), &named);
        }
        let membership = Membership::decode(&mut reader)?;
        let placed = reader.remaining() > 0;
        let mut placement = placed.then(|| Placement::decode(&mut reader)).transpose()?;
        give_births(placement.iter_mut().flat_map(|placement| &mut placement.cluster), &named);
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
            membership,
            placement,
        })
    }
}

pub(crate) fn read_members(reader: &mut Reader) -> Result<Vec<Member>, DecodeError> {
    let count = reader.u32("members")?;
    (0..count).map(|_| Member::decode(reader)).collect()
}

/// Reads limits, all of which are in their range.
pub(crate) fn read_limits(reader: &mut Reader) -> Result<Limits, DecodeError> {
    let text = read_text(reader, "limits")?;
    Limits::default().with(&text).map_err(|_| DecodeError::Undefined { field: "limits", value: 0 })
}

/// Reads one name out of a few.
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

/// Says that births follow, where a program that does not know them expects what [`Membership`] writes: it refuses the
/// group.
const BIRTHS: u8 = 3;

impl Member {
    /// Writes the member without its birth, which is added after all members ([`encode_births`]).
    pub(crate) fn encode(&self, writer: &mut Writer) {
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
            birth: None,
        })
    }
}

/// The most members a group may have, learners included.
pub const GROUP_MEMBERS_MAX: usize = MEMBERS_MAX;

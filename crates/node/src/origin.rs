//! Where a replica's log begins, and what one member tells another replica that wants to join.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use bytes::Bytes;
use synod_replica::{Group, Member, Take};
use synod_transport::{InquireError, Peer, Tls};
use synod_wire::{
    ClusterId, DecodeError, Format, GROUPS_MAX, GroupId, Groups, Reader, ReplicaId, Writer, Written,
};

use crate::blocking::blocking;

/// What a replica must know to begin or to join, and which members there are. It is kept in the data
/// directory from the first start on, for each group, written again with each change of the group, and given to
/// programs that ask for it ([`Origin::ask`]).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Origin {
    /// The cluster.
    pub cluster: ClusterId,
    /// The group with which the log begins, which is the same at all replicas of the cluster.
    pub first: Group,
    /// The latest known group: its members know the log, and may hold more of it.
    pub present: Group,
    /// In an answer to [`Origin::ask`] from a cluster of several groups: the groups with which the logs of the others
    /// begin, in the order of their numbers.
    pub others: Vec<Group>,
    /// In such an answer: the replicas that are not among the members of `present`, and that other groups still have,
    /// or may have without the knowledge of the replica that answers.
    pub staying: Vec<ReplicaId>,
    /// In such an answer: where the groups are merged into one order, how many batches of each come in a row.
    pub merged: Option<Take>,
}

/// The format of an [`Origin`], with which its encoding begins. Version 2 and earlier ones did not say which versions
/// can read them.
pub const ORIGIN_FORMAT: Format = Format::first(3);

/// What follows the first group: the other groups, replicas that stay, and how merged groups take turns.
type Others = (Vec<Group>, Vec<ReplicaId>, Option<Take>);

impl Origin {
    /// The origin of a new cluster.
    #[must_use]
    pub fn new(cluster: ClusterId, first: Group) -> Origin {
        let (others, staying, merged) = Default::default();
        Origin { cluster, present: first.clone(), first, others, staying, merged }
    }

    /// The groups of the cluster, as an answer says.
    #[must_use]
    pub fn groups(&self) -> Groups {
        let count = u16::try_from(1 + self.others.len()).expect("at most GROUPS_MAX");
        Groups { count, merged: self.merged }
    }

    /// What a replica that joins and got this answer begins with in one of the groups, which the cluster has.
    pub(crate) fn of(&self, group: GroupId) -> Origin {
        match usize::from(group.0).checked_sub(1) {
            None => Origin { others: Vec::new(), staying: Vec::new(), merged: None, ..self.clone() },
            Some(other) => Origin::new(self.cluster, self.others[other].clone()),
        }
    }

    /// The bytes for a file or an answer.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut writer = Writer::new();
        writer.u32(ORIGIN_FORMAT.written.packed());
        writer.u64(self.cluster.0);
        writer.shared(&self.first.encode().to_bytes());
        writer.shared(&self.present.encode().to_bytes());
        if !self.others.is_empty() {
            self.encode_others(&mut writer);
        }
        writer.finish().to_bytes()
    }

    /// Most groups begin as the first one does, and take one byte. A cluster of one group writes nothing.
    fn encode_others(&self, writer: &mut Writer) {
        writer.u32(u32::try_from(self.others.len()).expect("at most GROUPS_MAX"));
        let usual = beside(&self.first);
        for other in &self.others {
            writer.bool(*other == usual);
            if *other != usual {
                writer.shared(&other.encode().to_bytes());
            }
        }
        writer.u32(u32::try_from(self.staying.len()).expect("few replicas"));
        self.staying.iter().for_each(|&id| writer.replica(id));
        if let Some(take) = self.merged {
            writer.u32(take.get());
        }
    }

    fn decode_others(reader: &mut Reader, first: &Group) -> Result<Others, DecodeError> {
        if reader.remaining() == 0 {
            return Ok(Default::default());
        }
        let count = reader.u32("other groups")?;
        // A group that begins as the first one takes a byte here, and much more in memory.
        if count as usize >= GROUPS_MAX {
            return Err(DecodeError::Undefined { field: "other groups", value: count.into() });
        }
        let other = |reader: &mut Reader| match reader.bool("a group that begins as the first one")? {
            true => Ok(beside(first)),
            false => Group::decode(reader.bytes("first group of another log")?),
        };
        let others = (0..count).map(|_| other(reader)).collect::<Result<_, _>>()?;
        let count = reader.u32("staying replicas")?;
        let staying = (0..count).map(|_| reader.replica("staying replica")).collect::<Result<_, _>>()?;
        let merged = if reader.remaining() == 0 { None } else { Take::new(reader.u32("merged groups")?) };
        Ok((others, staying, merged))
    }

    /// Reads what [`Origin::encode`] wrote.
    ///
    /// # Errors
    /// The bytes are something else, or come from another version of this program.
    pub fn decode(bytes: Bytes) -> Result<Origin, DecodeError> {
        let mut reader = Reader::new(bytes);
        let written = Written::unpacked(reader.u32("version of the group")?);
        if ORIGIN_FORMAT.check(written).is_err() {
            return Err(DecodeError::Undefined {
                field: "version of the group",
                value: written.version.into(),
            });
        }
        let cluster = ClusterId(reader.u64("cluster")?);
        let first = Group::decode(reader.bytes("first group")?)?;
        let present = Group::decode(reader.bytes("present group")?)?;
        let (others, staying, merged) = Origin::decode_others(&mut reader, &first)?;
        reader.finish()?;
        Ok(Origin { cluster, first, present, others, staying, merged })
    }

    /// Asks replicas, each at its `host:port` or `https://host:port`, which cluster they belong to and which members it
    /// has. All are asked one after the other, within `timeout` in all; the answer that knows the latest group counts,
    /// with the replicas that stay as any answer says.
    ///
    /// # Errors
    /// See [`AskError`].
    pub async fn ask(
        addresses: impl IntoIterator<Item = impl Into<String>>,
        tls: Option<Tls>,
        timeout: Duration,
    ) -> Result<Origin, AskError> {
        let addresses: Vec<String> = addresses.into_iter().map(Into::into).collect();
        let ask = move || Origin::ask_blocking(addresses.iter().map(String::as_str), tls.as_ref(), timeout);
        blocking("ask", ask)
            .await
            .map_err(|error| AskError::Silent(vec![format!("no thread to ask: {error}")]))?
    }

    /// Does what [`Origin::ask`] does for callers that are not asynchronous: it blocks for at most `timeout`.
    ///
    /// # Errors
    /// See [`AskError`].
    pub fn ask_blocking<'a>(
        addresses: impl IntoIterator<Item = &'a str>,
        tls: Option<&Tls>,
        timeout: Duration,
    ) -> Result<Origin, AskError> {
        let deadline = Instant::now() + timeout;
        let mut latest: Option<(Origin, &str)> = None;
        let mut staying = Vec::new();
        let mut silent = Vec::new();
        for address in addresses {
            let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
            let asked = synod_transport::inquire(address, tls, left.min(ASK_ONE_MAX));
            let origin = match asked.map(Origin::decode) {
                Ok(Ok(origin)) => origin,
                Ok(Err(error)) => {
                    silent.push(format!("{address} answers something else ({error})"));
                    continue;
                }
                Err(error) => {
                    silent.push(described(address, &error));
                    continue;
                }
            };
            match &latest {
                Some((known, other)) if known.cluster != origin.cluster => {
                    return Err(AskError::Divided {
                        one: ((*other).to_owned(), known.cluster),
                        other: (address.to_owned(), origin.cluster),
                    });
                }
                Some((known, _)) if known.present.version >= origin.present.version => {
                    staying.extend(origin.staying);
                }
                _ => {
                    staying.extend_from_slice(&origin.staying);
                    latest = Some((origin, address));
                }
            }
        }
        let (mut origin, _) = latest.ok_or(AskError::Silent(silent))?;
        staying.retain(|&id| origin.present.member(id).is_none());
        staying.sort_unstable();
        staying.dedup();
        origin.staying = staying;
        Ok(origin)
    }

    /// The later of the present group and `group`, which the log knows.
    pub(crate) fn latest<'a>(&'a self, group: &'a Group) -> &'a Group {
        if self.present.version > group.version { &self.present } else { group }
    }

    /// The addresses of the other members of `group`, and, as long as `group` is older than the group that
    /// was told, of the members of that one.
    pub(crate) fn members(&self, group: &Group, me: ReplicaId) -> Vec<Peer> {
        let told = self.present.members.iter().filter(|_| self.present.version > group.version);
        // Newer addresses come first: of several addresses of one replica the first counts.
        addresses(told.chain(&group.members), me)
    }
}

/// The group with which another log of the cluster begins, where all groups begin with the same members.
pub(crate) fn beside(first: &Group) -> Group {
    first.clone().following(first.version)
}

/// The addresses of the other members of a group, and of those that its last change removed. A replica that takes no
/// part in the group any more does not know who is left of the members that it knew.
pub(crate) fn peers_of(group: &Group, origin: &Origin, me: ReplicaId) -> (Vec<Peer>, Vec<Peer>) {
    if group.is_away(me) {
        return Default::default();
    }
    (origin.members(group, me), addresses(&group.former, me))
}

fn addresses<'a>(members: impl IntoIterator<Item = &'a Member>, me: ReplicaId) -> Vec<Peer> {
    let mut peers: Vec<Peer> = Vec::new();
    for member in members {
        if member.id == me || peers.iter().any(|peer| peer.id == member.id) {
            continue;
        }
        match address(member) {
            Some(address) => peers.push(Peer { id: member.id, address: address.to_owned() }),
            None => tracing::warn!(
                member = %member.id, urls = ?member.info.peer_urls,
                "a member without an address of the form http://host:port or https://host:port; it cannot be reached"
            ),
        }
    }
    peers
}

/// How long one replica may take to answer.
const ASK_ONE_MAX: Duration = Duration::from_secs(2);

fn described(address: &str, error: &InquireError) -> String {
    let text = error.to_string();
    if text.contains(address) { text } else { format!("{address}: {text}") }
}

/// The `host:port` of a member's first peer URL, or `https://host:port`.
fn address(member: &Member) -> Option<&str> {
    let url = member.info.peer_urls.first()?;
    let url = url.strip_suffix('/').unwrap_or(url);
    let address = url.strip_prefix("http://").or_else(|| url.starts_with("https://").then_some(url))?;
    let (host, port) = address.trim_start_matches("https://").rsplit_once(':')?;
    (!host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0)).then_some(address)
}

/// Why no replica told what a replica must know to join.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AskError {
    /// No replica gave an answer that makes sense; the texts say what came instead.
    #[error("no replica answers: {}", .0.join("; "))]
    Silent(Vec<String>),
    /// Two replicas belong to different clusters: the address and the cluster of each.
    #[error("{} belongs to cluster {}, {} to cluster {}", one.0, one.1, other.0, other.1)]
    Divided {
        /// The address and cluster of one replica.
        one: (String, ClusterId),
        /// The address and cluster of the other.
        other: (String, ClusterId),
    },
}

/// Whether a data directory holds what its replica began with, so that it can start without being told that.
#[must_use]
pub fn is_begun(data_dir: &Path) -> bool {
    data_dir.join("group").exists()
}

#[cfg(test)]
mod tests {
    use synod_consensus::Options;
    use synod_replica::{Change, ChangeRequest, Goal, MemberInfo};
    use synod_wire::Slot;

    use super::*;

    fn info(name: &str) -> MemberInfo {
        MemberInfo::new(name, vec![format!("http://{name}:1")])
    }

    fn origin() -> Origin {
        let first = Group::first(&Options::default(), [(ReplicaId(1), info("a")), (ReplicaId(2), info("b"))]);
        let change = Change::Add { info: info("c"), goal: Goal::Vote };
        let present = first.apply(Slot(3), &ChangeRequest { expected: 1, change }).unwrap();
        Origin { present, ..Origin::new(ClusterId(7), first) }
    }

    #[test]
    fn it_survives_the_disk_and_nonsense_is_refused() {
        let origin = origin();
        let bytes = origin.encode();
        assert_eq!(Origin::decode(bytes.clone()), Ok(origin));
        for len in 0..bytes.len() {
            assert!(Origin::decode(bytes.slice(..len)).is_err());
        }
    }

    #[test]
    fn an_answer_tells_how_each_group_begins_and_which_removed_replicas_are_still_needed() {
        let one = origin();
        let alone = one.encode();
        let mut later = beside(&one.first);
        later.version = 5;
        let others = vec![beside(&one.first), later.clone()];
        let told = Origin { others, staying: vec![ReplicaId(9)], ..one.clone() };
        let bytes = told.encode();
        assert_eq!(Origin::decode(bytes.clone()), Ok(told.clone()));
        for len in (0..bytes.len()).filter(|len| *len != alone.len()) {
            assert!(Origin::decode(bytes.slice(..len)).is_err());
        }
        let too_many = Origin { others: vec![beside(&one.first); GROUPS_MAX], ..one.clone() };
        let field = "other groups";
        let value = GROUPS_MAX as u64;
        assert_eq!(Origin::decode(too_many.encode()), Err(DecodeError::Undefined { field, value }));
        assert_eq!((told.groups(), told.of(GroupId(0))), (Groups::shards(3), one));
        assert_eq!(told.of(GroupId(2)), Origin::new(told.cluster, later));
    }

    #[test]
    fn a_joining_replica_talks_to_the_members_it_was_told_and_later_to_those_in_its_log() {
        let mut origin = origin();
        // The group that was told contains a member that has left since.
        origin.first.members[1].info.peer_urls = vec!["http://old:1/".into()];
        let peers = |group: &Group| {
            let peers = origin.members(group, ReplicaId(3));
            peers.into_iter().map(|peer| (peer.id.0, peer.address)).collect::<Vec<_>>()
        };
        assert_eq!(peers(&origin.first), [(1, "a:1".into()), (2, "b:1".into())]);
        let leave = ChangeRequest { expected: 2, change: Change::Remove(ReplicaId(1)) };
        let later = origin.present.apply(Slot(9), &leave).unwrap();
        assert_eq!(peers(&later), [(2, "b:1".into())]);
        // The member that left stays a peer for a while.
        assert_eq!(
            super::peers_of(&later, &origin, ReplicaId(3)).1,
            [Peer { id: ReplicaId(1), address: "a:1".into() }]
        );
    }

    #[test]
    fn a_missing_listener_is_reported_with_its_address() {
        let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let error = Origin::ask_blocking([nobody.as_str()], None, Duration::from_secs(2)).unwrap_err();
        assert!(error.to_string().contains(&nobody), "{error}");
    }
}

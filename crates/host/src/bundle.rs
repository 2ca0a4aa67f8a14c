//! How messages become frames: each is encoded once for every version that its receivers speak, and small messages of
//! many groups to one peer leave in one frame. Most of them are heartbeats, of which a node that hosts many groups
//! would otherwise send as many frames as it has groups.
//!
//! ```text
//! body of a frame of the group BUNDLE := (group u32 | length u32 | message)*
//! ```

use std::{collections::BTreeMap, mem};

use bytes::Bytes;
use synod_replica::PeerMessage;
use synod_wire::{DecodeError, Encoded, GROUPS_SINCE, GroupId, Reader, ReplicaId, Writer};

/// The group in the header of a frame whose messages are of several groups.
pub const BUNDLE: GroupId = GroupId(u16::MAX);

/// A message of at most so many bytes goes with others: copying it costs less than a frame of its own.
const SMALL_BYTES_MAX: usize = 512;

/// About the most bytes of messages that go together.
const BUNDLE_BYTES_MAX: usize = 64 << 10;

/// Messages that are about to leave. To each peer they leave in the order in which they were put in.
#[derive(Debug)]
pub struct Bundles {
    /// There are several groups. A lone one has nothing to gain.
    gather: bool,
    waiting: BTreeMap<ReplicaId, Waiting>,
}

/// What waits for one peer.
#[derive(Debug, Default)]
struct Waiting {
    version: u16,
    messages: Vec<(GroupId, Encoded)>,
    bytes: usize,
}

impl Bundles {
    /// The bundles of a node that hosts this many groups.
    pub fn new(groups: usize) -> Bundles {
        Bundles { gather: groups > 1, waiting: BTreeMap::new() }
    }

    /// Sends a message to peers that speak this version, at the latest at [`Bundles::leave`]. `send` is given a frame:
    /// the version, the group in its header, the receivers, the body.
    pub fn put(
        &mut self,
        version: u16,
        group: GroupId,
        to: &[ReplicaId],
        body: Encoded,
        mut send: impl FnMut(u16, GroupId, &[ReplicaId], Encoded),
    ) {
        if !self.gather || version < GROUPS_SINCE {
            return send(version, group, to, body);
        }
        if body.len() > SMALL_BYTES_MAX {
            for &peer in to {
                let waiting = self.waiting.get_mut(&peer);
                waiting.into_iter().for_each(|waiting| leave(peer, waiting, &mut send));
            }
            return send(version, group, to, body);
        }
        for &peer in to {
            let waiting = self.waiting.entry(peer).or_default();
            if waiting.version != version || waiting.bytes > BUNDLE_BYTES_MAX {
                leave(peer, waiting, &mut send);
                waiting.version = version;
            }
            waiting.bytes += body.len();
            waiting.messages.push((group, body.clone()));
        }
    }

    /// Sends everything that waits.
    pub fn leave(&mut self, mut send: impl FnMut(u16, GroupId, &[ReplicaId], Encoded)) {
        for (&peer, waiting) in &mut self.waiting {
            leave(peer, waiting, &mut send);
        }
    }
}

fn leave(peer: ReplicaId, waiting: &mut Waiting, mut send: impl FnMut(u16, GroupId, &[ReplicaId], Encoded)) {
    waiting.bytes = 0;
    let mut messages = mem::take(&mut waiting.messages);
    match messages.pop() {
        None => {}
        Some((group, body)) if messages.is_empty() => {
            send(waiting.version, group, &[peer], body);
        }
        Some(last) => {
            messages.push(last);
            let mut bundle = Writer::new();
            for (group, body) in &messages {
                bundle.u32(group.0.into());
                bundle.bytes(&body.to_bytes());
            }
            send(waiting.version, BUNDLE, &[peer], bundle.finish());
            messages.clear();
            // Its memory is used again.
            waiting.messages = messages;
        }
    }
}

/// Encodes a message of a group once for each version that `peers` speak, beginning with the lowest one. Those whose
/// version does not know the group or the message get nothing. `each` is given a version, the peers that speak it and
/// the body.
pub fn encode(
    group: GroupId,
    message: &PeerMessage,
    mut peers: Vec<(u16, ReplicaId)>,
    mut each: impl FnMut(u16, Vec<ReplicaId>, Encoded),
) {
    peers.sort_by_key(|&(version, _)| version);
    for peers in peers.chunk_by(|one, other| one.0 == other.0) {
        let version = peers[0].0;
        let knows_group = group == GroupId::FIRST || version >= GROUPS_SINCE;
        if knows_group && message.is_spoken_in(version) {
            each(version, peers.iter().map(|&(_, id)| id).collect(), message.encode_in(version));
        }
    }
}

/// The messages in a frame of the group [`BUNDLE`].
///
/// # Errors
/// It is no such frame.
pub fn open(body: Bytes) -> Result<Vec<(GroupId, Bytes)>, DecodeError> {
    let mut reader = Reader::new(body);
    let mut messages = Vec::new();
    while reader.remaining() > 0 {
        let number = reader.u32("group")?;
        let group = u16::try_from(number)
            .map_err(|_| DecodeError::Undefined { field: "group", value: number.into() })?;
        // The message is copied, so that keeping a part of it does not keep the others in memory.
        let message = Bytes::copy_from_slice(&reader.bytes("message of a group")?);
        messages.push((GroupId(group), message));
    }
    Ok(messages)
}

#[cfg(test)]
mod tests {
    use synod_wire::{MESSAGES_VERSION, Slot};

    use super::*;

    type Sent = (u16, GroupId, Vec<ReplicaId>, Bytes);

    /// Remembers what left.
    #[derive(Debug, Default)]
    struct Wire(Vec<Sent>);

    impl Wire {
        fn send(&mut self) -> impl FnMut(u16, GroupId, &[ReplicaId], Encoded) {
            |version, group, to, body| self.0.push((version, group, to.to_vec(), body.to_bytes()))
        }
    }

    fn body(bytes: &[u8]) -> Encoded {
        let mut writer = Writer::new();
        bytes.iter().for_each(|&byte| writer.u8(byte));
        writer.finish()
    }

    const R2: ReplicaId = ReplicaId(2);
    const R3: ReplicaId = ReplicaId(3);
    const R4: ReplicaId = ReplicaId(4);

    /// What a peer is sent, in order.
    fn told(wire: &Wire, peer: ReplicaId) -> Vec<(u16, Vec<u8>)> {
        let to_peer = wire.0.iter().filter(|(_, _, to, _)| to.contains(&peer));
        let messages = to_peer.flat_map(|(_, group, _, body)| {
            if *group == BUNDLE { open(body.clone()).unwrap() } else { vec![(*group, body.clone())] }
        });
        messages.map(|(group, body)| (group.0, body.to_vec())).collect()
    }

    #[test]
    fn small_messages_go_together_and_each_peer_is_told_all_in_order() {
        let (mut wire, mut bundles) = (Wire::default(), Bundles::new(3));
        let mut put = |group, to: &[ReplicaId], bytes: &[u8]| {
            bundles.put(MESSAGES_VERSION, GroupId(group), to, body(bytes), wire.send());
        };
        let large = vec![7; SMALL_BYTES_MAX + 1];
        put(0, &[R2, R3], b"a");
        put(1, &[R2], b"b");
        put(2, &[R2], &large);
        put(2, &[R2, R3], b"c");
        bundles.leave(wire.send());
        bundles.leave(wire.send());
        assert_eq!(told(&wire, R2), [(0, b"a".to_vec()), (1, b"b".to_vec()), (2, large), (2, b"c".to_vec())]);
        assert_eq!(told(&wire, R3), [(0, b"a".to_vec()), (2, b"c".to_vec())]);
        // r2 gets a bundle, the large message and the last one; r3 gets a bundle.
        assert_eq!(wire.0.len(), 4);
    }

    #[test]
    fn a_lone_group_and_a_peer_of_an_older_version_get_every_message_at_once() {
        for (groups, version) in [(1, MESSAGES_VERSION), (3, GROUPS_SINCE - 1)] {
            let (mut wire, mut bundles) = (Wire::default(), Bundles::new(groups));
            bundles.put(version, GroupId::FIRST, &[R2], body(b"a"), wire.send());
            assert_eq!(told(&wire, R2), [(0, b"a".to_vec())]);
        }
    }

    #[test]
    fn a_message_is_encoded_once_for_each_version_that_knows_it() {
        let peers = vec![(MESSAGES_VERSION, R3), (GROUPS_SINCE - 1, R4), (MESSAGES_VERSION, R2)];
        let encoded = |group, message: &PeerMessage| {
            let mut encoded = Vec::new();
            encode(group, message, peers.clone(), |version, to, body| {
                assert_eq!(body.to_bytes(), message.encode_in(version).to_bytes());
                encoded.push((version, to));
            });
            encoded
        };
        let (new, old) = ((MESSAGES_VERSION, vec![R3, R2]), (GROUPS_SINCE - 1, vec![R4]));
        let fetch = PeerMessage::Fetch { from: Slot(1), through: Slot(2) };
        assert_eq!(encoded(GroupId::FIRST, &fetch), [old, new.clone()]);
        assert_eq!(encoded(GroupId(1), &fetch), std::slice::from_ref(&new));
        assert_eq!(encoded(GroupId::FIRST, &PeerMessage::Births(Vec::new())), [new]);
    }

    #[test]
    fn a_bundle_that_is_cut_is_no_bundle() {
        let (mut wire, mut bundles) = (Wire::default(), Bundles::new(2));
        for group in [0, 1] {
            bundles.put(MESSAGES_VERSION, GroupId(group), &[R2], body(b"heartbeat"), wire.send());
        }
        bundles.leave(wire.send());
        let (_, group, _, bytes) = wire.0.pop().unwrap();
        assert_eq!(group, BUNDLE);
        let whole = bytes.len();
        // Between two messages it may be cut, since a shorter bundle is whole.
        for len in (1..whole).filter(|len| *len != whole / 2) {
            assert!(open(bytes.slice(..len)).is_err(), "{len} bytes");
        }
    }
}

//! Small messages of many groups to one peer leave in one frame. Most of them are heartbeats, of which a node
//! that hosts many groups would otherwise send as many frames as it has groups.
//!
//! ```text
//! body of a frame of the group BUNDLE := (group u32 | length u32 | message)*
//! ```

use std::{collections::BTreeMap, mem};

use bytes::Bytes;
use synod_transport::Sender;
use synod_wire::{DecodeError, Encoded, GROUPS_SINCE, GroupId, Reader, ReplicaId, Writer};

/// The group in the header of a frame whose messages are of several groups.
pub(crate) const BUNDLE: GroupId = GroupId(u16::MAX);

/// A message of at most so many bytes goes with others: copying it costs less than a frame of its own.
const SMALL_BYTES_MAX: usize = 512;

/// About the most bytes of messages that go together.
const BUNDLE_BYTES_MAX: usize = 64 << 10;

/// Messages that are about to leave. To each peer they leave in the order in which they were put in.
#[derive(Debug)]
pub(crate) struct Bundles {
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
    pub(crate) fn new(groups: usize) -> Bundles {
        Bundles { gather: groups > 1, waiting: BTreeMap::new() }
    }

    /// Sends a message to peers that speak this version, at the latest at [`Bundles::leave`].
    pub(crate) fn put(
        &mut self,
        sender: &dyn Sender,
        version: u16,
        group: GroupId,
        to: &[ReplicaId],
        body: Encoded,
    ) {
        if !self.gather || version < GROUPS_SINCE {
            return sender.send_in(version, group, to, body);
        }
        if body.len() > SMALL_BYTES_MAX {
            to.iter().for_each(|&peer| self.leave_to(sender, peer));
            return sender.send_in(version, group, to, body);
        }
        for &peer in to {
            let waiting = self.waiting.entry(peer).or_default();
            if waiting.version != version || waiting.bytes > BUNDLE_BYTES_MAX {
                leave(sender, peer, waiting);
                waiting.version = version;
            }
            waiting.bytes += body.len();
            waiting.messages.push((group, body.clone()));
        }
    }

    /// Sends everything that waits.
    pub(crate) fn leave(&mut self, sender: &dyn Sender) {
        for (&peer, waiting) in &mut self.waiting {
            leave(sender, peer, waiting);
        }
        sender.flush();
    }

    fn leave_to(&mut self, sender: &dyn Sender, peer: ReplicaId) {
        if let Some(waiting) = self.waiting.get_mut(&peer) {
            leave(sender, peer, waiting);
        }
    }
}

fn leave(sender: &dyn Sender, peer: ReplicaId, waiting: &mut Waiting) {
    waiting.bytes = 0;
    let mut messages = mem::take(&mut waiting.messages);
    match messages.pop() {
        None => {}
        Some((group, body)) if messages.is_empty() => {
            sender.send_in(waiting.version, group, &[peer], body);
        }
        Some(last) => {
            messages.push(last);
            let mut bundle = Writer::new();
            for (group, body) in &messages {
                bundle.u32(group.0.into());
                bundle.bytes(&body.to_bytes());
            }
            sender.send_in(waiting.version, BUNDLE, &[peer], bundle.finish());
            messages.clear();
            // Its memory is used again.
            waiting.messages = messages;
        }
    }
}

/// The messages in a frame of the group [`BUNDLE`].
pub(crate) fn open(body: Bytes) -> Result<Vec<(GroupId, Bytes)>, DecodeError> {
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
    use std::sync::Mutex;

    use synod_transport::{Metrics, Peer, TransportError};
    use synod_wire::{Lsn, MESSAGES_VERSION};

    use super::*;

    type Sent = (u16, GroupId, Vec<ReplicaId>, Bytes);

    /// Remembers what left.
    #[derive(Debug, Default)]
    struct Wire(Mutex<Vec<Sent>>);

    impl Sender for Wire {
        fn send_in(&self, version: u16, group: GroupId, to: &[ReplicaId], body: Encoded) {
            self.0.lock().unwrap().push((version, group, to.to_vec(), body.to_bytes()));
        }

        fn flush(&self) {}

        fn version(&self, _: ReplicaId) -> u16 {
            MESSAGES_VERSION
        }

        fn heard(&self) -> Vec<(ReplicaId, u64, Lsn)> {
            Vec::new()
        }

        fn set_peers(&self, _: Vec<Peer>) -> Result<(), TransportError> {
            Ok(())
        }

        fn metrics(&self) -> Metrics {
            Metrics::default()
        }
    }

    fn body(bytes: &[u8]) -> Encoded {
        let mut writer = Writer::new();
        bytes.iter().for_each(|&byte| writer.u8(byte));
        writer.finish()
    }

    const R2: ReplicaId = ReplicaId(2);
    const R3: ReplicaId = ReplicaId(3);

    /// What a peer is sent, in order.
    fn told(wire: &Wire, peer: ReplicaId) -> Vec<(u16, Vec<u8>)> {
        let sent = wire.0.lock().unwrap();
        let to_peer = sent.iter().filter(|(_, _, to, _)| to.contains(&peer));
        let messages = to_peer.flat_map(|(_, group, _, body)| {
            if *group == BUNDLE { open(body.clone()).unwrap() } else { vec![(*group, body.clone())] }
        });
        messages.map(|(group, body)| (group.0, body.to_vec())).collect()
    }

    #[test]
    fn small_messages_go_together_and_each_peer_is_told_all_in_order() {
        let (wire, mut bundles) = (Wire::default(), Bundles::new(3));
        let mut put = |group, to: &[ReplicaId], bytes: &[u8]| {
            bundles.put(&wire, MESSAGES_VERSION, GroupId(group), to, body(bytes));
        };
        let large = vec![7; SMALL_BYTES_MAX + 1];
        put(0, &[R2, R3], b"a");
        put(1, &[R2], b"b");
        put(2, &[R2], &large);
        put(2, &[R2, R3], b"c");
        bundles.leave(&wire);
        bundles.leave(&wire);
        assert_eq!(told(&wire, R2), [(0, b"a".to_vec()), (1, b"b".to_vec()), (2, large), (2, b"c".to_vec())]);
        assert_eq!(told(&wire, R3), [(0, b"a".to_vec()), (2, b"c".to_vec())]);
        // r2 gets a bundle, the large message and the last one; r3 gets a bundle.
        assert_eq!(wire.0.lock().unwrap().len(), 4);
    }

    #[test]
    fn a_lone_group_and_a_peer_of_an_older_version_get_every_message_at_once() {
        for (groups, version) in [(1, MESSAGES_VERSION), (3, GROUPS_SINCE - 1)] {
            let (wire, mut bundles) = (Wire::default(), Bundles::new(groups));
            bundles.put(&wire, version, GroupId::FIRST, &[R2], body(b"a"));
            assert_eq!(told(&wire, R2), [(0, b"a".to_vec())]);
        }
    }

    #[test]
    fn a_bundle_that_is_cut_is_no_bundle() {
        let (wire, mut bundles) = (Wire::default(), Bundles::new(2));
        for group in [0, 1] {
            bundles.put(&wire, MESSAGES_VERSION, GroupId(group), &[R2], body(b"heartbeat"));
        }
        bundles.leave(&wire);
        let (_, group, _, bytes) = wire.0.lock().unwrap().pop().unwrap();
        assert_eq!(group, BUNDLE);
        let whole = bytes.len();
        // Between two messages it may be cut, since a shorter bundle is whole.
        for len in (1..whole).filter(|len| *len != whole / 2) {
            assert!(open(bytes.slice(..len)).is_err(), "{len} bytes");
        }
    }
}

//! Datagrams: messages that need no order and may be lost, several to a packet, as bytes. Nothing here has a socket.
//!
//! ```text
//! datagram := magic "SYND" | version u8 | 0 u8 | message version u16 | binding u64 | durable u64
//!           | length u16 | 0 u16 | crc u32 | messages of `length` bytes
//! message  := group u16 | length u16 | body
//! ```
//!
//! Integers are little-endian. `binding` stands for the cluster, and for the life of the sender and that of the
//! receiver, which both know from the handshake of their session over TCP ([`Ends`]): a datagram from an earlier life,
//! or to one, names another number. `durable` is the same as in a frame: the messages rest on no later record. The
//! checksum covers the header before it and the messages.
//!
//! The length is the header's, bounded by the packet, since a link may pad short packets. Nothing is fragmented: a
//! packet has the bytes that [`bytes_max`] derives from an MTU, and a message that does not fit one is for TCP.
//!
//! **What this is not.** A checksum authenticates nothing: a host that can send to the port can make any packet. So
//! datagrams are for a trusted segment, or need a seal around them.

use bytes::Bytes;
use synod_wire::{ClusterId, GroupId, Incarnation, Lsn, ReplicaId};

/// Bytes before the messages.
pub const HEADER_BYTES: usize = 32;
/// Bytes before the body of a message.
pub const MESSAGE_HEADER_BYTES: usize = 4;
/// Bytes of headers below a datagram: UDP, and IP of this version.
const UDP_BYTES: usize = 8;
const IPV4_BYTES: usize = 20;
const IPV6_BYTES: usize = 40;
/// Every link carries this much with IPv6 (RFC 8200, section 5), and every link that is in use with IPv4.
pub const MTU_MIN: usize = 1280;
/// The most that a UDP packet has over IPv4, headers included.
pub const MTU_MAX: usize = 65_535;

const MAGIC: [u8; 4] = *b"SYND";
const VERSION: u8 = 1;
/// Where the checksum is, which covers what is before it and what is after it.
const CRC_AT: usize = 28;

/// The most bytes of a datagram on a link with this MTU, in bytes; `None` if no link has such an MTU.
#[must_use]
pub fn bytes_max(mtu: usize, is_ipv6: bool) -> Option<usize> {
    let below = UDP_BYTES + if is_ipv6 { IPV6_BYTES } else { IPV4_BYTES };
    (MTU_MIN..=MTU_MAX).contains(&mtu).then(|| mtu - below)
}

/// The most bytes of a body that fits a datagram of this many bytes.
#[must_use]
pub fn body_bytes_max(bytes_max: usize) -> usize {
    bytes_max.saturating_sub(HEADER_BYTES + MESSAGE_HEADER_BYTES)
}

/// One life of a replica, as it introduces itself ([`synod_wire::Introduction`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// The replica.
    pub id: ReplicaId,
    /// The birth of its data directory.
    pub birth: u64,
    /// Which of its lives it is.
    pub incarnation: Incarnation,
    /// The number that this life drew.
    pub nonce: u64,
}

/// The two ends of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    /// The cluster of both.
    pub cluster: ClusterId,
    /// The sender.
    pub from: End,
    /// The receiver.
    pub to: End,
}

impl Ends {
    /// The number that stands for these ends in each datagram. Others have another number, but for one pair in 2^64.
    #[must_use]
    pub fn binding(&self) -> u64 {
        let of = |end: &End| [end.id.0, end.birth, end.incarnation.0, end.nonce];
        let words = [self.cluster.0].into_iter().chain(of(&self.from)).chain(of(&self.to));
        words.fold(0, |mixed, word| mix(mixed ^ word))
    }
}

/// Mixes the bits of a word, each into all others (the finalizer of splitmix64).
fn mix(word: u64) -> u64 {
    let word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

// Sending.

/// Puts messages together until a datagram is full.
#[derive(Debug)]
pub struct Packer {
    bytes_max: usize,
    datagram: Vec<u8>,
}

/// Why a message is not in the datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unpacked {
    /// The datagram has no room left: it is to be sent first.
    Full,
    /// No datagram has room for it.
    TooLarge,
}

impl Packer {
    /// An empty datagram of at most this many bytes ([`bytes_max`]), of messages of this version.
    #[must_use]
    pub fn new(bytes_max: usize, ends: &Ends, message_version: u16) -> Packer {
        let mut datagram = Vec::with_capacity(bytes_max);
        datagram.extend_from_slice(&MAGIC);
        datagram.extend_from_slice(&[VERSION, 0]);
        datagram.extend_from_slice(&message_version.to_le_bytes());
        datagram.extend_from_slice(&ends.binding().to_le_bytes());
        datagram.resize(HEADER_BYTES, 0);
        Packer { bytes_max: bytes_max.min(HEADER_BYTES + usize::from(u16::MAX)), datagram }
    }

    /// Adds a message of a group. Nothing is ever cut.
    ///
    /// # Errors
    /// If it does not fit.
    pub fn push(&mut self, group: GroupId, body: &[u8]) -> Result<(), Unpacked> {
        let length = u16::try_from(body.len()).map_err(|_| Unpacked::TooLarge)?;
        if body.len() > body_bytes_max(self.bytes_max) {
            return Err(Unpacked::TooLarge);
        }
        if self.datagram.len() + MESSAGE_HEADER_BYTES + body.len() > self.bytes_max {
            return Err(Unpacked::Full);
        }
        self.datagram.extend_from_slice(&group.0.to_le_bytes());
        self.datagram.extend_from_slice(&length.to_le_bytes());
        self.datagram.extend_from_slice(body);
        Ok(())
    }

    /// Whether nothing is in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.datagram.len() == HEADER_BYTES
    }

    /// The datagram, which is empty again; the sender's log is durable through `durable`. `None` if nothing is in it.
    pub fn take(&mut self, durable: Lsn) -> Option<Vec<u8>> {
        if self.is_empty() {
            return None;
        }
        let head = self.datagram[..HEADER_BYTES].to_vec();
        let mut datagram = std::mem::replace(&mut self.datagram, head);
        let length = u16::try_from(datagram.len() - HEADER_BYTES).expect("bounded by `bytes_max`");
        datagram[16..24].copy_from_slice(&durable.0.to_le_bytes());
        datagram[24..26].copy_from_slice(&length.to_le_bytes());
        let crc = crc(&datagram);
        datagram[CRC_AT..HEADER_BYTES].copy_from_slice(&crc.to_le_bytes());
        Some(datagram)
    }
}

/// The checksum of a whole datagram.
fn crc(datagram: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&datagram[..CRC_AT]);
    crc.update(&datagram[HEADER_BYTES..]);
    crc.finalize()
}

// Receiving.

macro_rules! reasons {
    ($($(#[$doc:meta])* $reason:ident = $name:literal,)+) => {
        /// Why a datagram is dropped.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Reason {
            $($(#[$doc])* $reason,)+
        }

        impl Reason {
            /// All of them.
            pub const ALL: &'static [Reason] = &[$(Reason::$reason,)+];

            /// The name in metrics.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self { $(Reason::$reason => $name,)+ }
            }
        }
    };
}

reasons! {
    /// It is shorter than a header.
    Short = "short",
    /// It is no datagram of Synod.
    Magic = "magic",
    /// It is of another version.
    Version = "version",
    /// Its header names more bytes than there are.
    Length = "length",
    /// It was changed on its way.
    Checksum = "checksum",
    /// A place that is not used has something in it.
    Unused = "unused",
    /// It is of another cluster, of an earlier life of one of the two, or of a replica without a session.
    Binding = "binding",
    /// Its messages are of a version above the one that the session agreed on.
    MessageVersion = "message-version",
    /// Its messages do not fill it, or there are none.
    Messages = "messages",
}

/// How many datagrams were dropped, by reason.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Drops([u64; Reason::ALL.len()]);

impl Drops {
    /// Counts one.
    pub fn count(&mut self, reason: Reason) {
        self.0[reason as usize] += 1;
    }

    /// Each reason with its count.
    pub fn counts(&self) -> impl Iterator<Item = (Reason, u64)> {
        Reason::ALL.iter().copied().zip(self.0)
    }
}

/// What arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrived {
    /// The sender.
    pub from: ReplicaId,
    /// How far the sender's log was durable.
    pub durable: Lsn,
    /// The version of the messages.
    pub version: u16,
    /// The messages, at least one, each an own allocation: batches stay in the log for long.
    pub messages: Vec<(GroupId, Bytes)>,
}

/// The sessions whose datagrams are taken.
#[derive(Clone, Debug, Default)]
pub struct Sessions(Vec<Session>);

#[derive(Clone, Copy, Debug)]
struct Session {
    from: ReplicaId,
    binding: u64,
    agreed: u16,
}

impl Sessions {
    /// A session from a peer began, in which messages have versions through `agreed`. It takes the place of an earlier
    /// one of that peer.
    pub fn begin(&mut self, ends: &Ends, agreed: u16) {
        self.end(ends.from.id);
        self.0.push(Session { from: ends.from.id, binding: ends.binding(), agreed });
    }

    /// The session from a peer ended.
    pub fn end(&mut self, from: ReplicaId) {
        self.0.retain(|session| session.from != from);
    }

    /// Reads a packet, which may be padded. Nothing of it counts unless all of it is sound.
    ///
    /// # Errors
    /// If it is to be dropped, and why.
    pub fn read(&self, packet: &[u8]) -> Result<Arrived, Reason> {
        let datagram = whole(packet)?;
        let number = |at: usize| u64::from_le_bytes(datagram[at..at + 8].try_into().expect("8 bytes"));
        let binding = number(8);
        let session = self.0.iter().find(|session| session.binding == binding).ok_or(Reason::Binding)?;
        let version = short(datagram, 6);
        if version > session.agreed {
            return Err(Reason::MessageVersion);
        }
        let messages = messages(&datagram[HEADER_BYTES..])?;
        Ok(Arrived { from: session.from, durable: Lsn(number(16)), version, messages })
    }
}

/// The datagram in a packet without what pads it, if its header and its checksum are right.
fn whole(packet: &[u8]) -> Result<&[u8], Reason> {
    if packet.len() < HEADER_BYTES {
        return Err(Reason::Short);
    }
    if packet[..4] != MAGIC {
        return Err(Reason::Magic);
    }
    if packet[4] != VERSION {
        return Err(Reason::Version);
    }
    let end = HEADER_BYTES + usize::from(short(packet, 24));
    let datagram = packet.get(..end).ok_or(Reason::Length)?;
    if datagram[CRC_AT..HEADER_BYTES] != crc(datagram).to_le_bytes() {
        return Err(Reason::Checksum);
    }
    if packet[5] != 0 || short(packet, 26) != 0 {
        return Err(Reason::Unused);
    }
    Ok(datagram)
}

/// The messages in these bytes, all of which they take.
fn messages(mut bytes: &[u8]) -> Result<Vec<(GroupId, Bytes)>, Reason> {
    let mut messages = Vec::new();
    while !bytes.is_empty() {
        let (head, rest) = bytes.split_at_checked(MESSAGE_HEADER_BYTES).ok_or(Reason::Messages)?;
        let (body, rest) = rest.split_at_checked(short(head, 2).into()).ok_or(Reason::Messages)?;
        messages.push((GroupId(short(head, 0)), Bytes::copy_from_slice(body)));
        bytes = rest;
    }
    if messages.is_empty() { Err(Reason::Messages) } else { Ok(messages) }
}

fn short(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

#[cfg(test)]
#[path = "datagram/tests.rs"]
mod tests;

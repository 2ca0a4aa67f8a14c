//! Datagrams: messages that need no order and may be lost, several to a packet, as bytes. Nothing here has a socket;
//! `outgoing` sends them, and `incoming` takes them.
//!
//! ```text
//! datagram := magic "SYND" | version u8 | kind u8 | message version u16 | binding u64 | durable u64
//!           | length u16 | 0 u16 | crc u32 | content of `length` bytes
//! kinds    := 0: the content is messages, at least one; 1: a probe, whose content is its number, a u64
//! message  := group u16 | length u16 | body
//! ```
//!
//! Integers are little-endian. `binding` stands for the cluster, and for the life of the sender and that of the
//! receiver, which both know from the handshake of their session over TCP ([`Ends`]): a datagram from an earlier life,
//! or to one, names another number. `durable` is the same as in a frame: the messages rest on no later record. The
//! checksum covers the header before it and the messages.
//!
//! The length is the header's, bounded by the packet, since a link may pad short packets. Nothing is fragmented: a
//! packet has the bytes that [`bytes_max`] derives from an MTU, and a message that does not fit one is for TCP. A probe
//! is padded to the largest packet, so that its answer shows that such packets arrive.
//!
//! **What this is not.** A checksum authenticates nothing: a host that sees packets, or asks at the port of the
//! sessions which lives run, can make any packet. So datagrams are for a trusted segment, or need a seal around them.

pub(crate) mod incoming;
pub(crate) mod outgoing;

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use bytes::Bytes;
use synod_wire::{ClusterId, GroupId, Lsn, ReplicaId};

use crate::handshake::Life;

/// Bytes before the messages.
pub(crate) const HEADER_BYTES: usize = 32;
/// Bytes before the body of a message.
pub(crate) const MESSAGE_HEADER_BYTES: usize = 4;
/// Bytes of headers below a datagram: UDP, and IP of this version.
const UDP_BYTES: usize = 8;
const IPV4_BYTES: usize = 20;
const IPV6_BYTES: usize = 40;
/// Every link carries this much with IPv6 (RFC 8200, section 5), and every link that is in use with IPv4.
pub(crate) const MTU_MIN: usize = 1280;
/// The most that a UDP packet has over IPv4, headers included.
pub(crate) const MTU_MAX: usize = 65_535;

const MAGIC: [u8; 4] = *b"SYND";
const VERSION: u8 = 1;
const MESSAGES: u8 = 0;
const PROBE: u8 = 1;
/// Where the checksum is, which covers what is before it and what is after it.
const CRC_AT: usize = 28;

/// The most bytes of a datagram on a link with this MTU, in bytes; `None` if no link has such an MTU.
#[must_use]
pub(crate) fn bytes_max(mtu: usize, is_ipv6: bool) -> Option<usize> {
    let below = UDP_BYTES + if is_ipv6 { IPV6_BYTES } else { IPV4_BYTES };
    (MTU_MIN..=MTU_MAX).contains(&mtu).then(|| mtu - below)
}

/// The most bytes of a body that fits a datagram of this many bytes.
#[must_use]
pub(crate) fn body_bytes_max(bytes_max: usize) -> usize {
    bytes_max.saturating_sub(HEADER_BYTES + MESSAGE_HEADER_BYTES)
}

/// One life of a replica, as it introduces itself ([`synod_wire::Introduction`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct End {
    pub(crate) id: ReplicaId,
    pub(crate) life: Life,
}

/// The two ends of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ends {
    /// The cluster of both.
    pub(crate) cluster: ClusterId,
    /// The sender.
    pub(crate) from: End,
    /// The receiver.
    pub(crate) to: End,
}

impl Ends {
    /// The number that stands for these ends in each datagram. Others have another number, but for one pair in 2^64.
    #[must_use]
    pub(crate) fn binding(&self) -> u64 {
        let of = |&End { id, life }: &End| [id.0, life.birth, life.incarnation.0, life.nonce];
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
pub(crate) struct Packer {
    bytes_max: usize,
    datagram: Vec<u8>,
}

/// Why a message is not in the datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unpacked {
    /// The datagram has no room left: it is to be sent first.
    Full,
    /// No datagram has room for it.
    TooLarge,
}

impl Packer {
    /// An empty datagram of at most this many bytes ([`bytes_max`]), of messages of this version.
    pub(crate) fn new(bytes_max: usize, ends: &Ends, message_version: u16) -> Packer {
        let mut datagram = Vec::with_capacity(bytes_max);
        begin(&mut datagram, MESSAGES, ends, message_version);
        Packer { bytes_max, datagram }
    }

    /// Adds a message of a group, whose body is these parts. Nothing is ever cut.
    ///
    /// # Errors
    /// If it does not fit.
    pub(crate) fn push(&mut self, group: GroupId, parts: &[Bytes]) -> Result<(), Unpacked> {
        let bytes: usize = parts.iter().map(Bytes::len).sum();
        let length = u16::try_from(bytes).map_err(|_| Unpacked::TooLarge)?;
        if bytes > body_bytes_max(self.bytes_max) {
            return Err(Unpacked::TooLarge);
        }
        if self.datagram.len() + MESSAGE_HEADER_BYTES + bytes > self.bytes_max {
            return Err(Unpacked::Full);
        }
        self.datagram.extend_from_slice(&group.0.to_le_bytes());
        self.datagram.extend_from_slice(&length.to_le_bytes());
        parts.iter().for_each(|part| self.datagram.extend_from_slice(part));
        Ok(())
    }

    /// Whether nothing is in it.
    pub(crate) fn is_empty(&self) -> bool {
        self.datagram.len() == HEADER_BYTES
    }

    /// Gives the datagram to `send`, and is empty again; the sender's log is durable through `durable`. `None` if
    /// nothing is in it.
    pub(crate) fn leave<R>(&mut self, durable: Lsn, send: impl FnOnce(&[u8]) -> R) -> Option<R> {
        if self.is_empty() {
            return None;
        }
        seal(&mut self.datagram, durable);
        let sent = send(&self.datagram);
        self.datagram.truncate(HEADER_BYTES);
        Some(sent)
    }
}

/// A probe with this number, padded to this many bytes ([`bytes_max`]).
pub(crate) fn probe(bytes_max: usize, ends: &Ends, message_version: u16, number: u64) -> Vec<u8> {
    let mut datagram = Vec::with_capacity(bytes_max);
    begin(&mut datagram, PROBE, ends, message_version);
    datagram.extend_from_slice(&number.to_le_bytes());
    seal(&mut datagram, Lsn::ZERO);
    datagram.resize(bytes_max, 0);
    datagram
}

/// Writes what the header of a datagram has in any case.
fn begin(datagram: &mut Vec<u8>, kind: u8, ends: &Ends, message_version: u16) {
    datagram.extend_from_slice(&MAGIC);
    datagram.extend_from_slice(&[VERSION, kind]);
    datagram.extend_from_slice(&message_version.to_le_bytes());
    datagram.extend_from_slice(&ends.binding().to_le_bytes());
    datagram.resize(HEADER_BYTES, 0);
}

/// Completes the header of a datagram whose content is there.
fn seal(datagram: &mut [u8], durable: Lsn) {
    let length = u16::try_from(datagram.len() - HEADER_BYTES).expect("bounded by `bytes_max`");
    datagram[16..24].copy_from_slice(&durable.0.to_le_bytes());
    datagram[24..26].copy_from_slice(&length.to_le_bytes());
    let crc = crc(datagram);
    datagram[CRC_AT..HEADER_BYTES].copy_from_slice(&crc.to_le_bytes());
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
        pub(crate) enum Reason {
            $($(#[$doc])* $reason,)+
        }

        impl Reason {
            /// All of them.
            pub(crate) const ALL: &'static [Reason] = &[$(Reason::$reason,)+];

            /// The name in metrics.
            #[must_use]
            pub(crate) fn as_str(self) -> &'static str {
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
    /// It is larger than this replica takes.
    Large = "large",
    /// Its header names more bytes than there are.
    Length = "length",
    /// It was changed on its way.
    Checksum = "checksum",
    /// A place that is not used has something in it.
    Unused = "unused",
    /// It is of a kind that this replica does not know.
    Kind = "kind",
    /// It is of another cluster, of an earlier life of one of the two, or of a replica without a session.
    Binding = "binding",
    /// Its messages are of a version above the one that the session agreed on.
    MessageVersion = "message-version",
    /// Its messages do not fill it, or there are none; or the number of a probe does not.
    Content = "content",
}

/// How many datagrams were dropped, by reason.
#[derive(Debug, Default)]
pub(crate) struct Drops([AtomicU64; Reason::ALL.len()]);

impl Drops {
    /// Counts one.
    pub(crate) fn count(&self, reason: Reason) {
        self.0[reason as usize].fetch_add(1, Relaxed);
    }

    /// The name of each reason with its count.
    pub(crate) fn counts(&self) -> Vec<(&'static str, u64)> {
        let count = |(reason, count): (&Reason, &AtomicU64)| (reason.as_str(), count.load(Relaxed));
        Reason::ALL.iter().zip(&self.0).map(count).collect()
    }
}

/// What arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Arrived {
    /// How far the sender's log was durable.
    pub(crate) durable: Lsn,
    /// The version of the messages.
    pub(crate) version: u16,
    /// What it says.
    pub(crate) content: Content,
}

/// What a datagram says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// The messages, at least one, each an own allocation: batches stay in the log for long.
    Messages(Vec<(GroupId, Bytes)>),
    /// The sender asks whether datagrams arrive.
    Probe(u64),
}

/// The sessions whose datagrams are taken, each with what its owner knows of it.
#[derive(Clone, Debug)]
pub(crate) struct Sessions<T>(Vec<Session<T>>);

#[derive(Clone, Debug)]
struct Session<T> {
    binding: u64,
    agreed: u16,
    of: T,
}

impl<T> Default for Sessions<T> {
    fn default() -> Sessions<T> {
        Sessions(Vec::new())
    }
}

impl<T> Sessions<T> {
    /// A session began, in which messages have versions through `agreed`.
    pub(crate) fn begin(&mut self, ends: &Ends, agreed: u16, of: T) {
        self.0.push(Session { binding: ends.binding(), agreed, of });
    }

    /// The sessions for which this is true have ended.
    pub(crate) fn end(&mut self, has_ended: impl Fn(&T) -> bool) {
        self.0.retain(|session| !has_ended(&session.of));
    }

    /// Reads a packet, which may be padded, and says of which session it is. Nothing of it counts unless all of it is
    /// sound.
    ///
    /// # Errors
    /// If it is to be dropped, and why.
    pub(crate) fn read(&self, packet: &[u8]) -> Result<(&T, Arrived), Reason> {
        let datagram = whole(packet)?;
        let (binding, content) = (number(datagram, 8), &datagram[HEADER_BYTES..]);
        // Of two connections of the same lives the later one counts.
        let session = self.0.iter().rfind(|session| session.binding == binding).ok_or(Reason::Binding)?;
        let version = short(datagram, 6);
        if version > session.agreed {
            return Err(Reason::MessageVersion);
        }
        let content = match datagram[5] {
            MESSAGES => Content::Messages(messages(content)?),
            PROBE if content.len() == size_of::<u64>() => Content::Probe(number(content, 0)),
            PROBE => return Err(Reason::Content),
            _ => return Err(Reason::Kind),
        };
        Ok((&session.of, Arrived { durable: Lsn(number(datagram, 16)), version, content }))
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
    if short(packet, 26) != 0 {
        return Err(Reason::Unused);
    }
    Ok(datagram)
}

/// The messages in these bytes, all of which they take.
fn messages(mut bytes: &[u8]) -> Result<Vec<(GroupId, Bytes)>, Reason> {
    let mut messages = Vec::new();
    while !bytes.is_empty() {
        let (head, rest) = bytes.split_at_checked(MESSAGE_HEADER_BYTES).ok_or(Reason::Content)?;
        let (body, rest) = rest.split_at_checked(short(head, 2).into()).ok_or(Reason::Content)?;
        messages.push((GroupId(short(head, 0)), Bytes::copy_from_slice(body)));
        bytes = rest;
    }
    if messages.is_empty() { Err(Reason::Content) } else { Ok(messages) }
}

fn number(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

fn short(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

#[cfg(test)]
mod tests;

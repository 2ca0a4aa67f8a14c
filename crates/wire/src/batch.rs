//! Batches of commands: what the log orders.
//!
//! ```text
//! batch     := identity? command* | reference
//! command   := session u64 | sequence u64 | lowest_outstanding u64 | kind u8 | length u32 | payload
//! identity  := a command of kind Identity without a payload
//! reference := a command of kind Reference, whose payload is checksum u32 | length u32 of the batch that it names
//! ```
//!
//! The identity of a batch has the form of a command, so code that walks over a batch walks over it, too: its session
//! is the origin's, its sequence the number of the batch, and its lowest outstanding number is the [`Batch::floor`].

use std::fmt;

use bytes::{BufMut, Bytes, BytesMut};

use crate::{DecodeError, SessionId};

/// Bytes that a command takes in a batch besides its payload.
pub const COMMAND_HEADER_BYTES: usize = 29;

/// Bytes that the identity of a batch takes in it.
pub const IDENTITY_BYTES: usize = COMMAND_HEADER_BYTES;

/// Bytes of a batch that is a reference.
const REFERENCE_BYTES: usize = COMMAND_HEADER_BYTES + 8;

/// The size of the largest batch, in bytes. A frame between replicas (64 MiB) has room for one and for what
/// goes with it.
pub const BATCH_BYTES_MAX: usize = 32 << 20;

/// What executes a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CommandKind {
    /// The state machine executes it.
    Apply,
    /// The session table executes it: it opens a session for a client.
    OpenSession,
    /// The session table executes it: the replicated clock advances.
    AdvanceClock,
    /// The group executes it: a change of members or of the ordering protocol. It is alone in its batch.
    Reconfigure,
    /// The group executes it: a change of voters that was under way within an epoch is complete. It is alone
    /// in its batch.
    Settle,
    /// It is not executed: it says which batch this is, and comes first in it.
    Identity,
    /// It is not executed: it stands for another batch, and is alone in its own.
    Reference,
    /// The merge of several groups executes it: the group's position in the common order goes on to the number in the
    /// payload, unless it is there already.
    Skip,
    /// As [`CommandKind::Reconfigure`], for a change that names births of replicas ([`crate::BIRTHS_SINCE`]). A program
    /// that does not know such changes must not skip one, so it cannot read the batch either.
    ReconfigureNamed,
}

/// What a batch means for the common order of several groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Places {
    /// It holds something that is executed, and takes a place.
    pub executes: bool,
    /// The group's position goes on to this one at least.
    pub skips_to: Option<u64>,
}

impl CommandKind {
    /// Whether it is a change of the group, which is alone in its batch.
    #[must_use]
    pub fn is_change(self) -> bool {
        matches!(self, CommandKind::Reconfigure | CommandKind::ReconfigureNamed)
    }

    fn from_byte(byte: u8) -> Result<CommandKind, DecodeError> {
        Ok(match byte {
            0 => CommandKind::Apply,
            1 => CommandKind::OpenSession,
            2 => CommandKind::AdvanceClock,
            3 => CommandKind::Reconfigure,
            4 => CommandKind::Settle,
            5 => CommandKind::Identity,
            6 => CommandKind::Reference,
            7 => CommandKind::Skip,
            8 => CommandKind::ReconfigureNamed,
            value => return Err(DecodeError::Undefined { field: "command kind", value: value.into() }),
        })
    }
}

/// The name of a batch. No two batches of a cluster have the same name: each life of a replica has a session
/// of its own, and numbers its batches in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BatchId {
    /// The session of the life of the replica that made the batch ([`crate::replica_session`]).
    pub origin: SessionId,
    /// Its place among the batches of that life; the first is 1.
    pub number: u64,
}

impl fmt::Display for BatchId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.origin.of_replica() {
            Some((replica, life)) => write!(f, "{replica}/{}#{}", life.incarnation(), self.number),
            None => write!(f, "{}#{}", self.origin, self.number),
        }
    }
}

/// Commands encoded once into one buffer with one checksum; shared, never copied.
///
/// A batch without commands and without an identity is the **no-op** that a new leader puts into slots that must hold
/// something.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    bytes: Bytes,
    crc: u32,
}

/// A command inside a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// The session of the client or replica that asked.
    pub session: SessionId,
    /// The command's number in that session; the first is 1.
    pub sequence: u64,
    /// Every lower sequence number of the session is answered or given up: replies to them can be forgotten.
    pub lowest_outstanding: u64,
    /// What executes it.
    pub kind: CommandKind,
    /// The content, which only its executor understands. It is a slice of the batch.
    pub payload: Bytes,
}

impl Batch {
    /// The batch without commands.
    #[must_use]
    pub fn noop() -> Batch {
        Batch::default()
    }

    /// The batch with which a leader completes a change of voters; no client asked for it, and none is answered.
    #[must_use]
    pub fn settling() -> Batch {
        let mut builder = BatchBuilder::new();
        builder.push_as(CommandKind::Settle, SessionId(0), 0, 0, &[]);
        builder.finish()
    }

    /// Whether this is [`Batch::settling`].
    #[must_use]
    pub fn is_settling(&self) -> bool {
        self.bytes.len() == COMMAND_HEADER_BYTES && self.bytes[24] == CommandKind::Settle as u8
    }

    /// Whether this is the batch without commands.
    #[must_use]
    pub fn is_noop(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The encoded commands.
    #[must_use]
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// The payload of the batch's command, if it is the only one and a change of the group
    /// ([`CommandKind::is_change`]).
    #[must_use]
    pub fn reconfiguration(&self) -> Option<Bytes> {
        let at = self.commands_at();
        let header = self.bytes.get(at..at + COMMAND_HEADER_BYTES)?;
        let len = u32::from_le_bytes(header[25..29].try_into().expect("4 bytes")) as usize;
        let alone = at + COMMAND_HEADER_BYTES + len == self.bytes.len();
        let is_change = CommandKind::from_byte(header[24]).is_ok_and(CommandKind::is_change);
        (is_change && alone).then(|| self.bytes.slice(at + COMMAND_HEADER_BYTES..))
    }

    /// The name of the batch, or of the batch that this reference stands for; `None` for a no-op, and for
    /// what a leader adds by itself.
    #[must_use]
    pub fn id(&self) -> Option<BatchId> {
        let named = matches!(self.first_kind()?, CommandKind::Identity | CommandKind::Reference);
        named.then(|| BatchId { origin: SessionId(self.word(0)), number: self.word(8) })
    }

    /// The lowest number of a batch that the origin of this one still waited for when it made it: every batch
    /// with a lower number is delivered or given up.
    #[must_use]
    pub fn floor(&self) -> u64 {
        if self.id().is_some() { self.word(16) } else { 0 }
    }

    /// Whether it stands for another batch, and has no commands itself.
    #[must_use]
    pub fn is_reference(&self) -> bool {
        self.first_kind() == Some(CommandKind::Reference)
    }

    /// The reference that stands for this batch in the log where batches travel apart from their order; it is the same
    /// wherever it is made. `None` for a batch without a name, which has to be ordered as it is, and for a reference.
    #[must_use]
    pub fn reference(&self) -> Option<Batch> {
        let id = self.id().filter(|_| !self.is_reference())?;
        let mut bytes = BytesMut::with_capacity(REFERENCE_BYTES);
        put_header(&mut bytes, CommandKind::Reference, (id.origin, id.number, self.floor()), 8);
        bytes.put_u32_le(self.crc);
        bytes.put_u32_le(u32::try_from(self.bytes.len()).expect("a batch is smaller than 4 GiB"));
        Some(Batch { crc: crc32fast::hash(&bytes), bytes: bytes.freeze() })
    }

    /// Whether this reference stands for that batch.
    #[must_use]
    pub fn stands_for(&self, batch: &Batch) -> bool {
        self.is_reference() && batch.reference().is_some_and(|reference| reference.bytes == self.bytes)
    }

    fn first_kind(&self) -> Option<CommandKind> {
        CommandKind::from_byte(*self.bytes.get(24)?).ok()
    }

    /// A number in the first header, which must exist.
    fn word(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.bytes[at..at + 8].try_into().expect("8 bytes"))
    }

    /// Where the commands begin that are executed.
    fn commands_at(&self) -> usize {
        match self.first_kind() {
            Some(CommandKind::Identity) => IDENTITY_BYTES,
            Some(CommandKind::Reference) => self.bytes.len(),
            _ => 0,
        }
    }

    /// What it means for the common order of several groups: found in the headers of all commands.
    #[must_use]
    pub fn places(&self) -> Places {
        let (mut at, mut places) = (self.commands_at(), Places::default());
        while let Some(header) = self.bytes.get(at..at + COMMAND_HEADER_BYTES) {
            let len = u32::from_le_bytes(header[25..29].try_into().expect("4 bytes")) as usize;
            let payload = at + COMMAND_HEADER_BYTES;
            at = payload + len;
            if header[24] != CommandKind::Skip as u8 {
                places.executes = true;
            } else if let Ok(target) = self.bytes[payload..at].try_into() {
                places.skips_to = places.skips_to.max(Some(u64::from_le_bytes(target)));
            }
        }
        places
    }

    /// CRC-32 of the encoded commands.
    #[must_use]
    pub fn crc(&self) -> u32 {
        self.crc
    }

    /// A batch out of bytes whose checksum was verified, after a check that the commands in it are well formed. It
    /// checks neither the checksum nor [`BATCH_BYTES_MAX`].
    ///
    /// # Errors
    /// The bytes end within a command, a kind is unknown, or an identity or a reference is out of place.
    pub fn from_parts(bytes: Bytes, crc: u32) -> Result<Batch, DecodeError> {
        let mut rest = bytes.len();
        let mut at = 0;
        while rest > 0 {
            let header = bytes.get(at..at + COMMAND_HEADER_BYTES).ok_or(DecodeError::Truncated("command"))?;
            let len = u32::from_le_bytes(header[25..29].try_into().expect("4 bytes")) as usize;
            let whole = COMMAND_HEADER_BYTES + len;
            let in_place = match CommandKind::from_byte(header[24])? {
                CommandKind::Identity => at == 0 && len == 0,
                CommandKind::Reference => at == 0 && len == 8 && whole == bytes.len(),
                _ => true,
            };
            if !in_place {
                return Err(DecodeError::Undefined { field: "identity of a batch", value: at as u64 });
            }
            rest = rest.checked_sub(whole).ok_or(DecodeError::Truncated("command payload"))?;
            at += whole;
        }
        Ok(Batch { bytes, crc })
    }

    /// Whether the bytes still have the checksum that they were given.
    #[must_use]
    pub fn is_intact(&self) -> bool {
        crc32fast::hash(&self.bytes) == self.crc
    }

    /// The commands, in order. Neither the identity nor a reference is one.
    #[inline]
    pub fn commands(&self) -> impl Iterator<Item = Command> + '_ {
        let mut at = self.commands_at();
        std::iter::from_fn(move || {
            let header = self.bytes.get(at..at + COMMAND_HEADER_BYTES)?;
            let word = |i: usize| u64::from_le_bytes(header[i..i + 8].try_into().expect("8 bytes"));
            let len = u32::from_le_bytes(header[25..29].try_into().expect("4 bytes")) as usize;
            let payload = self.bytes.slice(at + COMMAND_HEADER_BYTES..at + COMMAND_HEADER_BYTES + len);
            let command = Command {
                session: SessionId(word(0)),
                sequence: word(8),
                lowest_outstanding: word(16),
                kind: CommandKind::from_byte(header[24]).expect("checked when the batch was made"),
                payload,
            };
            at += COMMAND_HEADER_BYTES + len;
            Some(command)
        })
    }
}

/// Writes a header; `numbers` are session, sequence and lowest outstanding.
fn put_header(bytes: &mut BytesMut, kind: CommandKind, numbers: (SessionId, u64, u64), len: u32) {
    let (session, sequence, lowest_outstanding) = numbers;
    bytes.put_u64_le(session.0);
    bytes.put_u64_le(sequence);
    bytes.put_u64_le(lowest_outstanding);
    bytes.put_u8(kind as u8);
    bytes.put_u32_le(len);
}

/// Collects commands into a [`Batch`].
#[derive(Debug, Default)]
pub struct BatchBuilder {
    bytes: BytesMut,
    commands: usize,
    /// Whether the batches will have a name, for which space is left at the front.
    identified: bool,
}

impl BatchBuilder {
    /// An empty builder.
    #[must_use]
    pub fn new() -> BatchBuilder {
        BatchBuilder::default()
    }

    /// An empty builder of batches that have a name ([`BatchBuilder::finish_as`]).
    #[must_use]
    pub fn identified() -> BatchBuilder {
        BatchBuilder { identified: true, ..BatchBuilder::default() }
    }

    /// Adds a command for the state machine; see [`Command`] for the fields.
    pub fn push(&mut self, session: SessionId, sequence: u64, lowest_outstanding: u64, payload: &[u8]) {
        self.push_as(CommandKind::Apply, session, sequence, lowest_outstanding, payload);
    }

    /// Adds a command; see [`Command`] for the fields.
    ///
    /// # Panics
    /// If the payload has 4 GiB or more; request limits are far below that.
    pub fn push_as(
        &mut self,
        kind: CommandKind,
        session: SessionId,
        sequence: u64,
        lowest_outstanding: u64,
        payload: &[u8],
    ) {
        assert!(lowest_outstanding <= sequence, "a command that is sent is outstanding");
        let len = u32::try_from(payload.len()).expect("a payload is smaller than 4 GiB");
        self.bytes.reserve(IDENTITY_BYTES + COMMAND_HEADER_BYTES + payload.len());
        if self.identified && self.bytes.is_empty() {
            self.bytes.put_bytes(0, IDENTITY_BYTES);
        }
        put_header(&mut self.bytes, kind, (session, sequence, lowest_outstanding), len);
        self.bytes.put_slice(payload);
        self.commands += 1;
    }

    /// How many bytes are encoded so far, including those of the identity.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether no command was added.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.commands == 0
    }

    /// How many commands were added so far.
    #[must_use]
    pub fn commands(&self) -> usize {
        self.commands
    }

    /// The batch, with this name; `floor` is its [`Batch::floor`]. The builder is empty again.
    ///
    /// # Panics
    /// If the builder is not one of [`BatchBuilder::identified`], or nothing was added.
    pub fn finish_as(&mut self, id: BatchId, floor: u64) -> Batch {
        assert!(
            self.identified && self.commands > 0,
            "room was left for the identity of a batch that is one"
        );
        assert!(floor <= id.number, "the origin waits for the batch that it makes");
        let mut identity = BytesMut::with_capacity(IDENTITY_BYTES);
        put_header(&mut identity, CommandKind::Identity, (id.origin, id.number, floor), 0);
        self.bytes[..IDENTITY_BYTES].copy_from_slice(&identity);
        self.finish()
    }

    /// What was added so far, to be finished later; this builder is empty again.
    #[must_use]
    pub fn split(&mut self) -> BatchBuilder {
        let commands = std::mem::take(&mut self.commands);
        BatchBuilder { bytes: self.bytes.split(), commands, identified: self.identified }
    }

    /// The batch, without a name; the builder is empty again.
    pub fn finish(&mut self) -> Batch {
        self.commands = 0;
        let bytes = self.bytes.split().freeze();
        let crc = crc32fast::hash(&bytes);
        Batch { bytes, crc }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_come_back_in_order() {
        let mut builder = BatchBuilder::new();
        builder.push(SessionId(1), 10, 9, b"a");
        builder.push(SessionId(2), 20, 20, b"");
        assert_eq!(builder.commands(), 2);
        let batch = builder.finish();
        assert!(builder.is_empty());
        let commands: Vec<_> = batch.commands().collect();
        assert_eq!(commands.len(), 2);
        assert_eq!(
            (commands[0].session, commands[0].sequence, commands[0].lowest_outstanding),
            (SessionId(1), 10, 9)
        );
        assert_eq!(commands[0].payload, "a");
        assert_eq!((commands[1].session, commands[1].sequence), (SessionId(2), 20));
        assert!(commands[1].payload.is_empty());
        assert!(batch.is_intact());
    }

    #[test]
    fn a_length_beyond_the_end_is_refused() {
        let mut builder = BatchBuilder::new();
        builder.push(SessionId(1), 1, 1, b"abc");
        let mut bytes = builder.finish().bytes().to_vec();
        bytes[25] = 200;
        assert!(Batch::from_parts(bytes.into(), 0).is_err());
    }

    #[test]
    fn what_changes_a_group_is_told_from_the_rest() {
        let settling = Batch::settling();
        assert!(settling.is_settling() && settling.is_intact() && settling.reconfiguration().is_none());
        let mut builder = BatchBuilder::new();
        builder.push_as(CommandKind::Reconfigure, SessionId(1), 1, 1, b"change");
        let change = builder.finish();
        assert_eq!(change.reconfiguration().unwrap(), "change");
        assert!(!change.is_settling() && !Batch::noop().is_settling());
        let again = Batch::from_parts(settling.bytes().clone(), settling.crc()).unwrap();
        assert!(again.is_settling());
    }

    fn named(number: u64, floor: u64, payloads: &[&[u8]]) -> Batch {
        let mut builder = BatchBuilder::identified();
        for (payload, sequence) in payloads.iter().zip(1..) {
            builder.push(SessionId(1), sequence, 1, payload);
        }
        builder.finish_as(BatchId { origin: SessionId(9), number }, floor)
    }

    #[test]
    fn a_name_stands_in_front_of_the_commands_and_is_none() {
        let batch = named(7, 5, &[b"a", b"b"]);
        assert_eq!((batch.id().unwrap().number, batch.floor()), (7, 5));
        assert_eq!(batch.commands().map(|command| command.payload).collect::<Vec<_>>(), ["a", "b"]);
        assert!(batch.is_intact() && !batch.is_reference() && !batch.is_noop());
        assert_eq!(Batch::from_parts(batch.bytes().clone(), batch.crc()), Ok(batch));
        let mut builder = BatchBuilder::identified();
        builder.push_as(CommandKind::Reconfigure, SessionId(1), 1, 1, b"change");
        let change = builder.finish_as(BatchId { origin: SessionId(9), number: 1 }, 1);
        assert_eq!(change.reconfiguration().unwrap(), "change");
        assert!(Batch::noop().id().is_none() && Batch::settling().id().is_none());
    }

    #[test]
    fn a_reference_stands_for_one_batch() {
        let (batch, other) = (named(7, 5, &[b"a"]), named(7, 5, &[b"b"]));
        let reference = batch.reference().unwrap();
        assert_eq!((reference.id(), reference.floor()), (batch.id(), 5));
        assert!(reference.is_reference() && reference.is_intact() && reference.reference().is_none());
        assert!(reference.stands_for(&batch) && !reference.stands_for(&other) && !batch.stands_for(&batch));
        assert_eq!(reference.commands().count(), 0);
        assert_eq!(Batch::from_parts(reference.bytes().clone(), reference.crc()), Ok(reference));
        assert!(Batch::noop().reference().is_none());
    }

    #[test]
    fn an_identity_stands_in_front_or_nowhere() {
        let named = named(1, 1, &[b"a"]);
        for extra in [named.clone(), named.reference().unwrap()] {
            let bytes = [named.bytes().as_ref(), extra.bytes()].concat();
            assert!(Batch::from_parts(bytes.into(), 0).is_err());
        }
        let bytes = [named.reference().unwrap().bytes().as_ref(), named.bytes()].concat();
        assert!(Batch::from_parts(bytes.into(), 0).is_err());
    }

    #[test]
    fn the_noop_has_no_commands() {
        assert_eq!(Batch::noop().commands().count(), 0);
        assert!(Batch::from_parts(Bytes::new(), 0).unwrap().is_noop());
        assert!(Batch::noop().is_intact());
    }
}

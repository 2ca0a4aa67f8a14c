//! Batches of commands: what the log orders.
//!
//! ```text
//! batch    := command*
//! command  := session u64 | sequence u64 | lowest_outstanding u64 | kind u8 | length u32 | payload
//! ```

use bytes::{BufMut, Bytes, BytesMut};

use crate::{DecodeError, SessionId};

/// Bytes that a command takes in a batch beside its payload.
pub const COMMAND_HEADER_BYTES: usize = 29;

/// No batch is larger, in bytes. A frame between replicas (64 MiB) has room for one and for what goes with it.
pub const BATCH_BYTES_MAX: usize = 32 << 20;

/// Who executes a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandKind {
    /// The state machine.
    Apply,
    /// The session table: open a session for a client.
    OpenSession,
    /// The session table: the replicated clock goes on.
    AdvanceClock,
    /// The group: a change of members or of the ordering protocol. It is alone in its batch.
    Reconfigure,
    /// The group: a change of voters that was under way within an epoch is complete. It is alone in its batch.
    Settle,
}

impl CommandKind {
    fn from_byte(byte: u8) -> Result<CommandKind, DecodeError> {
        Ok(match byte {
            0 => CommandKind::Apply,
            1 => CommandKind::OpenSession,
            2 => CommandKind::AdvanceClock,
            3 => CommandKind::Reconfigure,
            4 => CommandKind::Settle,
            value => return Err(DecodeError::Undefined { field: "command kind", value: value.into() }),
        })
    }
}

/// Commands encoded once into one buffer with one checksum; shared, never copied.
///
/// A batch without commands is the **no-op** that a new leader puts into slots that must hold something.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    bytes: Bytes,
    crc: u32,
}

/// A command inside a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// Who asked.
    pub session: SessionId,
    /// Which of that session's commands; the first is 1.
    pub sequence: u64,
    /// Every lower sequence number of the session is answered or given up: replies to them can be forgotten.
    pub lowest_outstanding: u64,
    /// Who executes it.
    pub kind: CommandKind,
    /// What to do; only whoever executes it knows what it means. A slice of the batch.
    pub payload: Bytes,
}

impl Batch {
    /// The batch without commands.
    #[must_use]
    pub fn noop() -> Batch {
        Batch::default()
    }

    /// The batch with which a leader completes a change of voters; nobody asked for it, and nobody is answered.
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

    /// The payload of the batch's command, if it is the only one and of kind [`CommandKind::Reconfigure`].
    #[must_use]
    pub fn reconfiguration(&self) -> Option<Bytes> {
        let header = self.bytes.get(..COMMAND_HEADER_BYTES)?;
        let len = u32::from_le_bytes(header[25..29].try_into().expect("4 bytes")) as usize;
        let alone = COMMAND_HEADER_BYTES + len == self.bytes.len();
        (header[24] == CommandKind::Reconfigure as u8 && alone)
            .then(|| self.bytes.slice(COMMAND_HEADER_BYTES..))
    }

    /// CRC-32 of the encoded commands.
    #[must_use]
    pub fn crc(&self) -> u32 {
        self.crc
    }

    /// A batch out of bytes whose checksum was verified, once the commands in it are seen to be well formed.
    pub fn from_parts(bytes: Bytes, crc: u32) -> Result<Batch, DecodeError> {
        let mut rest = bytes.len();
        let mut at = 0;
        while rest > 0 {
            let header = bytes.get(at..at + COMMAND_HEADER_BYTES).ok_or(DecodeError::Truncated("command"))?;
            let len = u32::from_le_bytes(header[25..29].try_into().expect("4 bytes")) as usize;
            CommandKind::from_byte(header[24])?;
            let whole = COMMAND_HEADER_BYTES + len;
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

    /// The commands, in order.
    pub fn commands(&self) -> impl Iterator<Item = Command> + '_ {
        let mut at = 0;
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

/// Collects commands into a [`Batch`].
#[derive(Debug, Default)]
pub struct BatchBuilder {
    bytes: BytesMut,
    commands: usize,
}

impl BatchBuilder {
    /// An empty builder.
    #[must_use]
    pub fn new() -> BatchBuilder {
        BatchBuilder::default()
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
        self.bytes.reserve(COMMAND_HEADER_BYTES + payload.len());
        self.bytes.put_u64_le(session.0);
        self.bytes.put_u64_le(sequence);
        self.bytes.put_u64_le(lowest_outstanding);
        self.bytes.put_u8(kind as u8);
        self.bytes.put_u32_le(u32::try_from(payload.len()).expect("a payload is smaller than 4 GiB"));
        self.bytes.put_slice(payload);
        self.commands += 1;
    }

    /// Encoded bytes so far.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether no command was added.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.commands == 0
    }

    /// Commands so far.
    #[must_use]
    pub fn commands(&self) -> usize {
        self.commands
    }

    /// The batch; the builder is empty again.
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

    #[test]
    fn the_noop_has_no_commands() {
        assert_eq!(Batch::noop().commands().count(), 0);
        assert!(Batch::from_parts(Bytes::new(), 0).unwrap().is_noop());
        assert!(Batch::noop().is_intact());
    }
}

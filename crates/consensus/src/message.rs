//! What code that carries and keeps messages and records needs to know of them, whichever protocol they are of.

use synod_wire::{Batch, DecodeError, Keep, Reader, Slot, Writer};

use crate::{Claims, Class, Describe, Facts, Message, Prove, Record};

/// A message of a protocol, or of an election.
pub trait Body: Describe + Claims {
    /// Writes the message.
    fn encode(&self, writer: &mut Writer);

    /// Reads what [`Body::encode`] wrote.
    ///
    /// # Errors
    /// If the bytes are not a message.
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError>
    where
        Self: Sized;

    /// Shows every batch that the message carries.
    fn for_each_batch(&self, _see: &mut dyn FnMut(&Batch)) {}

    /// The message with other batches in the place of those for which `other` returns one; `None` if there are none, or
    /// if messages of this kind carry no proposals.
    fn with_batches(&self, _other: &mut dyn FnMut(&Batch) -> Option<Batch>) -> Option<Message> {
        None
    }

    /// Bytes of what the message carries in the place of batches, and of its lists of members; 0 if it has neither.
    fn other_bytes(&self) -> u64 {
        0
    }

    /// The purpose of the message.
    fn class(&self) -> Class;
}

/// A record of a protocol's write-ahead log.
pub trait Logged: Describe + Facts + Prove {
    /// Writes the record.
    fn encode(&self, writer: &mut Writer);

    /// Reads what [`Logged::encode`] wrote.
    ///
    /// # Errors
    /// If the bytes are not a record.
    fn decode(reader: &mut Reader) -> Result<Self, DecodeError>
    where
        Self: Sized;

    /// How long the log must keep the record.
    fn keep(&self) -> Keep;

    /// Shows every batch that the record holds, with its slot.
    fn for_each_batch(&self, _see: &mut dyn FnMut(Slot, &Batch)) {}

    /// Whether the record says by itself that its slots were decided so; what was only accepted may have been
    /// replaced later.
    fn is_decision(&self) -> bool;

    /// `Some(true)` if the record says that its replica must not vote since it lost a log; `Some(false)` if
    /// it says that the replica knows, again or from the start, all that it may have said in this epoch. The
    /// last such record of an epoch counts.
    fn amnesia(&self) -> Option<bool>;

    /// The record as it would be if voters had never changed, for a protocol whose log itself says that they did.
    fn without_voters(&self) -> Option<Record> {
        None
    }
}

/// Bytes that a batch takes in any message or record besides its own, including its slot and ballots.
const BATCH_OVERHEAD_BYTES: u64 = 64;

fn weight(batch: &Batch) -> u64 {
    batch.bytes().len() as u64 + BATCH_OVERHEAD_BYTES
}

impl Message {
    /// The message as that of any protocol.
    #[must_use]
    pub fn body(&self) -> &dyn Body {
        self.tagged().1
    }

    /// Writes the message.
    pub fn encode(&self, writer: &mut Writer) {
        let (tag, body) = self.tagged();
        writer.u8(tag);
        if let Message::Outside(message) = self {
            message.encode_name(writer);
        }
        body.encode(writer);
    }

    /// The contents, if this is a message of that type of a protocol from outside.
    #[must_use]
    pub fn outside<M: 'static>(&self) -> Option<&M> {
        if let Message::Outside(message) = self { message.get() } else { None }
    }

    /// Reads what [`Message::encode`] wrote.
    ///
    /// # Errors
    /// If the bytes are not a message.
    pub fn decode(reader: &mut Reader) -> Result<Message, DecodeError> {
        let tag = reader.u8("protocol")?;
        Message::decode_tagged(tag, reader)
    }

    /// Bytes of the batches that the message carries, each with what belongs to it; the rest of a message is small.
    #[must_use]
    pub fn batch_bytes(&self) -> u64 {
        let mut bytes = 0;
        self.body().for_each_batch(&mut |batch| bytes += weight(batch));
        bytes
    }
}

impl Record {
    /// The record as that of any protocol.
    #[must_use]
    pub fn body(&self) -> &dyn Logged {
        self.tagged().1
    }

    /// Bytes of the batches that the record holds, each with what belongs to it; the rest of a record is small.
    #[must_use]
    pub fn batch_bytes(&self) -> u64 {
        let mut bytes = 0;
        self.body().for_each_batch(&mut |_, batch| bytes += weight(batch));
        bytes
    }

    /// How long the log must keep the record ([`Logged::keep`]).
    #[must_use]
    pub fn keep(&self) -> Keep {
        self.body().keep()
    }

    /// Whether the record says by itself that its slots were decided so ([`Logged::is_decision`]).
    #[must_use]
    pub fn is_decision(&self) -> bool {
        self.body().is_decision()
    }

    /// What the record says about a lost log ([`Logged::amnesia`]).
    #[must_use]
    pub fn amnesia(&self) -> Option<bool> {
        self.body().amnesia()
    }

    /// The record as it would be if voters had never changed, for a replica that begins again after the
    /// others are gone permanently.
    #[must_use]
    pub fn without_voters(self) -> Record {
        self.body().without_voters().unwrap_or(self)
    }

    /// Writes the record.
    pub fn encode(&self, writer: &mut Writer) {
        let (tag, body) = self.tagged();
        writer.u8(tag);
        if let Record::Outside(record) = self {
            record.encode_name(writer);
        }
        body.encode(writer);
    }

    /// The contents, if this is a record of that type of a protocol from outside.
    #[must_use]
    pub fn outside<R: 'static>(&self) -> Option<&R> {
        if let Record::Outside(record) = self { record.get() } else { None }
    }

    /// Reads what [`Record::encode`] wrote.
    ///
    /// # Errors
    /// If the bytes are not a record.
    pub fn decode(reader: &mut Reader) -> Result<Record, DecodeError> {
        let tag = reader.u8("protocol")?;
        Record::decode_tagged(tag, reader)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Batches, multipaxos,
        raft::{self, Entry},
        sequence_paxos::{self, Message as Sequence},
    };
    use synod_wire::{Ballot, Ballots, BatchBuilder, Incarnation, ReplicaId, SessionId, Slot};

    const BALLOT: Ballot = Ballot { round: 5, replica: ReplicaId(2) };

    fn batches() -> Batches {
        let batch = |len| {
            let mut builder = BatchBuilder::new();
            builder.push(SessionId(1), 1, 1, &vec![7; len]);
            builder.finish()
        };
        [batch(1_000), batch(20_000)].into()
    }

    fn entries() -> raft::Entries {
        batches().iter().map(|batch| Entry { ballot: BALLOT, batch: batch.clone(), voters: None }).collect()
    }

    /// Records that hold what was accepted, and records that hold what was decided.
    fn records() -> (Vec<Record>, Vec<Record>) {
        let (ballot, batches, decided) = (BALLOT, batches(), Slot(2));
        let (first, from, covers) = (Slot(3), Slot(4), Slot(9));
        let (slot, batch) = (first, batches[1].clone());
        let value = multipaxos::AcceptedValue { slot, ballot, batch: batch.clone() };
        let entries =
            |decided| raft::Record::Entries { first, entries: entries(), decided, decided_in: ballot };
        let accepted = vec![
            multipaxos::Record::Accepted { ballot, first, decided, batches: batches.clone() }.into(),
            sequence_paxos::Record::Accepted { ballot, first, decided, batches: batches.clone() }.into(),
            sequence_paxos::Record::Staged { ballot, first, from, batches: batches.clone() }.into(),
            sequence_paxos::Record::Adopted { ballot, first, from, decided, covers, batches }.into(),
            entries(decided).into(),
        ];
        let decided = vec![
            multipaxos::Record::Learned(value).into(),
            sequence_paxos::Record::Learned { slot, ballots: Ballots::both(ballot), batch }.into(),
            entries(from).into(),
        ];
        (accepted, decided)
    }

    fn messages() -> Vec<Message> {
        let (ballot, batches, decided) = (BALLOT, batches(), Slot(7));
        let (first, from, page, more) = (Slot(8), Slot(9), Slot(8), true);
        let accepted = batches.iter().zip(8..).map(|(batch, slot)| multipaxos::AcceptedValue {
            slot: Slot(slot),
            ballot,
            batch: batch.clone(),
        });
        let promise = multipaxos::Promise {
            ballot,
            from,
            decided,
            accepted: accepted.collect(),
            next: None,
            incarnation: Incarnation(1),
            lives: Vec::new(),
        };
        let has = sequence_paxos::Extent { accepted_in: ballot, last: Slot(9), decided };
        let batches = || batches.clone();
        vec![
            multipaxos::Message::Promise(promise).into(),
            multipaxos::Message::Accept { ballot, first, decided, batches: batches() }.into(),
            Sequence::Promise(sequence_paxos::Promise { ballot, has, page, first, batches: batches(), more })
                .into(),
            Sequence::AcceptSync(sequence_paxos::AcceptSync {
                ballot,
                first,
                from,
                batches: batches(),
                more,
                decided,
            })
            .into(),
            Sequence::Accept { ballot, first, decided, batches: batches() }.into(),
            raft::Message::Append {
                ballot,
                session: 3,
                prev: first,
                prev_ballot: ballot,
                entries: entries(),
                commit: decided,
            }
            .into(),
        ]
    }

    /// How many bytes the encoding takes beyond what was counted, or the other way round.
    fn miscounted(counted: u64, write: impl FnOnce(&mut Writer)) -> u64 {
        let mut writer = Writer::new();
        write(&mut writer);
        (writer.finish().len() as u64).abs_diff(counted)
    }

    #[test]
    fn what_is_counted_for_batches_is_nearly_all_that_a_message_or_record_takes() {
        let (accepted, decided) = records();
        for record in accepted.into_iter().chain(decided) {
            let off = miscounted(record.batch_bytes(), |writer| record.encode(writer));
            assert!(off < 200, "{off} bytes: {record:?}");
        }
        for message in messages() {
            let off = miscounted(message.batch_bytes(), |writer| message.encode(writer));
            assert!(off < 200, "{off} bytes: {message:?}");
        }
        assert_eq!(Record::from(multipaxos::Record::Promised(BALLOT)).batch_bytes(), 0);
    }

    #[test]
    fn only_what_was_learned_says_by_itself_that_it_was_decided() {
        let (accepted, decided) = records();
        accepted.iter().for_each(|record| assert!(!record.is_decision(), "{record:?}"));
        decided.iter().for_each(|record| assert!(record.is_decision(), "{record:?}"));
    }
}

/// The encodings on the wire and on disk, byte by byte.
#[cfg(test)]
pub(crate) mod fixed {
    use std::fmt::{Debug, Write};

    use super::*;

    /// Compares the encodings of a protocol's messages and records with a text, which has a line for each.
    pub(crate) fn check<M, R>(expected: &str, messages: &[M], records: &[R])
    where
        M: Clone + Debug + Into<Message>,
        R: Clone + Debug + Into<Record>,
    {
        let messages = messages
            .iter()
            .map(|message| line("message", message, |writer| message.clone().into().encode(writer)));
        let records = records
            .iter()
            .map(|record| line("record", record, |writer| record.clone().into().encode(writer)));
        let found: String = messages.chain(records).collect();
        assert_eq!(found, expected, "what is written changed: other versions would not read it");
    }

    /// Checks that each message comes back from its encoding, and from no part of it.
    pub(crate) fn survive_the_wire_and_no_truncation_decodes<M: Body + Debug + PartialEq>(messages: &[M]) {
        for message in messages {
            let mut writer = Writer::new();
            message.encode(&mut writer);
            let bytes = writer.finish().to_bytes();
            let mut reader = Reader::new(bytes.clone());
            assert_eq!(M::decode(&mut reader).as_ref(), Ok(message));
            reader.finish().unwrap();
            for len in 0..bytes.len() {
                let cut = M::decode(&mut Reader::new(bytes.slice(..len)));
                assert!(cut.is_err(), "{message:?} cut at {len}");
            }
        }
    }

    /// Checks that each record comes back from its encoding.
    pub(crate) fn survive_the_disk<R: Into<Record>>(records: Vec<R>) {
        for record in records.into_iter().map(Into::into) {
            let mut writer = Writer::new();
            record.encode(&mut writer);
            assert_eq!(Record::decode(&mut Reader::new(writer.finish().to_bytes())), Ok(record));
        }
    }

    fn line(what: &str, value: &impl Debug, write: impl FnOnce(&mut Writer)) -> String {
        let name = format!("{value:?}");
        let name = name.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
        let mut writer = Writer::new();
        write(&mut writer);
        let mut line = format!("{what} {name} ");
        for byte in &*writer.finish().to_bytes() {
            write!(line, "{byte:02x}").expect("a string takes everything");
        }
        line + "\n"
    }
}

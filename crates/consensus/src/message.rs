//! The messages and log records of all protocols, and their encoding.
//!
//! Every protocol has its own types in its folder; here they are joined, so that one transport and one log
//! carry any of them. The first byte tells which protocol wrote what follows.

use synod_wire::{Batch, DecodeError, Keep, Reader, Writer};

use crate::{election, multipaxos, raft, sequence_paxos};

const MULTIPAXOS: u8 = 1;
const SEQUENCE_PAXOS: u8 = 2;
const RAFT: u8 = 3;
const ELECTION: u8 = 4;

/// A message of some protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// See [`multipaxos::Message`].
    MultiPaxos(multipaxos::Message),
    /// See [`sequence_paxos::Message`].
    SequencePaxos(sequence_paxos::Message),
    /// See [`raft::Message`].
    Raft(raft::Message),
    /// See [`election::Message`]; whichever protocol it elects for.
    Election(election::Message),
}

impl Message {
    /// Writes the message.
    pub fn encode(&self, writer: &mut Writer) {
        match self {
            Message::MultiPaxos(message) => {
                writer.u8(MULTIPAXOS);
                message.encode(writer);
            }
            Message::SequencePaxos(message) => {
                writer.u8(SEQUENCE_PAXOS);
                message.encode(writer);
            }
            Message::Raft(message) => {
                writer.u8(RAFT);
                message.encode(writer);
            }
            Message::Election(message) => {
                writer.u8(ELECTION);
                message.encode(writer);
            }
        }
    }

    /// Reads what [`Message::encode`] wrote.
    pub fn decode(reader: &mut Reader) -> Result<Message, DecodeError> {
        match reader.u8("protocol")? {
            MULTIPAXOS => multipaxos::Message::decode(reader).map(Message::MultiPaxos),
            SEQUENCE_PAXOS => sequence_paxos::Message::decode(reader).map(Message::SequencePaxos),
            RAFT => raft::Message::decode(reader).map(Message::Raft),
            ELECTION => election::Message::decode(reader).map(Message::Election),
            value => Err(DecodeError::Undefined { field: "protocol", value: value.into() }),
        }
    }
}

/// Bytes that a batch takes beside its own, with its slot and ballots, in any message or record.
const BATCH_OVERHEAD_BYTES: u64 = 64;

fn weigh<'a>(batches: impl IntoIterator<Item = &'a Batch>) -> u64 {
    batches.into_iter().map(|batch| batch.bytes().len() as u64 + BATCH_OVERHEAD_BYTES).sum()
}

fn weigh_entries(entries: &[raft::Entry]) -> u64 {
    weigh(entries.iter().map(|entry| &entry.batch))
}

impl Message {
    /// Bytes of the batches that it carries, each with what goes with it; the rest of a message is small.
    #[must_use]
    pub fn batch_bytes(&self) -> u64 {
        use {multipaxos::Message as Paxos, sequence_paxos::Message as Sequence};
        match self {
            Message::MultiPaxos(Paxos::Promise(promise)) => {
                weigh(promise.accepted.iter().map(|value| &value.batch))
            }
            Message::MultiPaxos(Paxos::Accept { batches, .. }) => weigh(&**batches),
            Message::SequencePaxos(Sequence::Promise(promise)) => weigh(&*promise.batches),
            Message::SequencePaxos(Sequence::AcceptSync(sync)) => weigh(&*sync.batches),
            Message::SequencePaxos(Sequence::Accept { batches, .. }) => weigh(&**batches),
            Message::Raft(raft::Message::Append { entries, .. }) => weigh_entries(entries),
            _ => 0,
        }
    }
}

/// A record of some protocol's write-ahead log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// See [`multipaxos::Record`].
    MultiPaxos(multipaxos::Record),
    /// See [`sequence_paxos::Record`].
    SequencePaxos(sequence_paxos::Record),
    /// See [`raft::Record`].
    Raft(raft::Record),
}

impl Record {
    /// Bytes of the batches that it holds, each with what goes with it; the rest of a record is small.
    #[must_use]
    pub fn batch_bytes(&self) -> u64 {
        use {multipaxos::Record as Paxos, sequence_paxos::Record as Sequence};
        match self {
            Record::MultiPaxos(Paxos::Accepted { batches, .. }) => weigh(&**batches),
            Record::MultiPaxos(Paxos::Learned(value)) => weigh([&value.batch]),
            Record::SequencePaxos(
                Sequence::Accepted { batches, .. }
                | Sequence::Staged { batches, .. }
                | Sequence::Adopted { batches, .. },
            ) => weigh(&**batches),
            Record::SequencePaxos(Sequence::Learned { batch, .. }) => weigh([batch]),
            Record::Raft(raft::Record::Entries { entries, .. }) => weigh_entries(entries),
            _ => 0,
        }
    }

    /// How long the log must keep it.
    #[must_use]
    pub fn keep(&self) -> Keep {
        match self {
            Record::MultiPaxos(record) => record.keep(),
            Record::SequencePaxos(record) => record.keep(),
            Record::Raft(record) => record.keep(),
        }
    }

    /// Whether it says by itself that its slots were decided so; what was only accepted may have been replaced later.
    #[must_use]
    pub fn is_decision(&self) -> bool {
        match self {
            Record::MultiPaxos(record) => matches!(record, multipaxos::Record::Learned(_)),
            Record::SequencePaxos(record) => matches!(record, sequence_paxos::Record::Learned { .. }),
            Record::Raft(record) => record.is_decision(),
        }
    }

    /// Whether it says that its replica must not vote since it lost a log (`Some(true)`), or that it knows, again or from the
    /// start, all that it may have said in this epoch (`Some(false)`). The last such record of an epoch counts.
    #[must_use]
    pub fn amnesia(&self) -> Option<bool> {
        match self {
            Record::MultiPaxos(multipaxos::Record::Amnesia(lost))
            | Record::SequencePaxos(sequence_paxos::Record::Amnesia(lost))
            | Record::Raft(raft::Record::Amnesia(lost)) => Some(*lost),
            Record::MultiPaxos(_) | Record::SequencePaxos(_) | Record::Raft(_) => None,
        }
    }

    /// The record as it would be if voters had never changed, where a log itself says so. For those who begin anew
    /// after the others are gone for good.
    #[must_use]
    pub fn without_voters(self) -> Record {
        match self {
            Record::Raft(record) => Record::Raft(record.without_voters()),
            // Their logs do not say it.
            other @ (Record::MultiPaxos(_) | Record::SequencePaxos(_)) => other,
        }
    }

    /// Writes the record.
    pub fn encode(&self, writer: &mut Writer) {
        match self {
            Record::MultiPaxos(record) => {
                writer.u8(MULTIPAXOS);
                record.encode(writer);
            }
            Record::SequencePaxos(record) => {
                writer.u8(SEQUENCE_PAXOS);
                record.encode(writer);
            }
            Record::Raft(record) => {
                writer.u8(RAFT);
                record.encode(writer);
            }
        }
    }

    /// Reads what [`Record::encode`] wrote.
    pub fn decode(reader: &mut Reader) -> Result<Record, DecodeError> {
        match reader.u8("protocol")? {
            MULTIPAXOS => multipaxos::Record::decode(reader).map(Record::MultiPaxos),
            SEQUENCE_PAXOS => sequence_paxos::Record::decode(reader).map(Record::SequencePaxos),
            RAFT => raft::Record::decode(reader).map(Record::Raft),
            value => Err(DecodeError::Undefined { field: "protocol", value: value.into() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Batches, raft::Entry, sequence_paxos::Message as Sequence};
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

    /// Records that hold what was accepted, and such that hold what was decided.
    fn records() -> (Vec<Record>, Vec<Record>) {
        let (ballot, batches, decided) = (BALLOT, batches(), Slot(2));
        let (start, from, covers) = (Slot(3), Slot(4), Slot(9));
        let (slot, batch) = (start, batches[1].clone());
        let value = multipaxos::AcceptedValue { slot, ballot, batch: batch.clone() };
        let entries =
            |decided| raft::Record::Entries { start, entries: entries(), decided, decided_in: ballot };
        let accepted = vec![
            multipaxos::Record::Accepted { ballot, first: start, decided, batches: batches.clone() }.into(),
            sequence_paxos::Record::Accepted { ballot, start, decided, batches: batches.clone() }.into(),
            sequence_paxos::Record::Staged { ballot, start, from, batches: batches.clone() }.into(),
            sequence_paxos::Record::Adopted { ballot, start, from, decided, covers, batches }.into(),
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
        let (start, from, page, more) = (Slot(8), Slot(9), Slot(8), true);
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
            multipaxos::Message::Accept { ballot, first: start, decided, batches: batches() }.into(),
            Sequence::Promise(sequence_paxos::Promise { ballot, has, page, start, batches: batches(), more })
                .into(),
            Sequence::AcceptSync(sequence_paxos::AcceptSync {
                ballot,
                start,
                from,
                batches: batches(),
                more,
                decided,
            })
            .into(),
            Sequence::Accept { ballot, start, decided, batches: batches() }.into(),
            raft::Message::Append {
                ballot,
                session: 3,
                prev: start,
                prev_ballot: ballot,
                entries: entries(),
                commit: decided,
            }
            .into(),
        ]
    }

    /// How many bytes what is written takes beyond what was counted, or the other way round.
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

/// What is written to the wire and to disk, byte by byte.
#[cfg(test)]
pub(crate) mod fixed {
    use std::fmt::{Debug, Write};

    use super::*;

    /// Compares what messages and records of a protocol are encoded as with a text, which has a line for each.
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

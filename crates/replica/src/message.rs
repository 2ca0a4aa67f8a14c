//! What replicas say to each other: the protocol's messages, and the messages of what surrounds it.
//!
//! A message that does not fit a frame would be lost in one session after the other, and what it is about
//! would never happen. So every message has an upper bound,
//! [`Settings::message_bytes_max`](crate::Settings::message_bytes_max), which is compared with what a frame
//! holds when a replica starts, and with what a peer takes when it connects:
//!
//! | message | holds at most |
//! | --- | --- |
//! | `Protocol`: promises, proposals, appends, pages | `page_bytes_max` or `append_bytes_max` of batches, or a batch |
//! | `Forward`, directly or relayed | one batch |
//! | `Fetched`, `Pushed` | `fetch_bytes_max` of batches, or one batch |
//! | `Chunk` | `chunk_bytes_max` of a snapshot |
//! | all others | a few numbers |
//!
//! and no batch exceeds the group's largest request ([`Limits`](crate::Limits)).

use bytes::Bytes;
use synod_consensus::{LeaderView, Message};
use synod_wire::{
    BIRTHS_SINCE, Ballots, Batch, DecodeError, Encoded, Epoch, MESSAGES_VERSION, Reader, ReplicaId,
    SessionId, Slot, Writer,
};

use crate::{
    Mark, Named,
    births::{decode_births, encode_births},
    decided::Decided,
};

/// A message from one replica to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerMessage {
    /// A message of the ordering protocol.
    Protocol {
        /// The epoch of the instance that sent it, and for which it is meant.
        epoch: Epoch,
        /// The protocol's message.
        message: Message,
    },
    /// How far the sender is. Leaders send it to replicas that do not vote, and those send it to all peers. A replica
    /// that can be asked for what the receiver lacks answers with it, and a message from an epoch that is over is
    /// answered with it. A voter that enters an epoch in which peers had already spoken to it sends it to them.
    Progress {
        /// Its epoch.
        epoch: Epoch,
        /// The first slot that it can hand out as it was decided.
        kept: Slot,
        /// Slots through this one are decided.
        decided: Slot,
        /// The leader, as far as the sender knows.
        view: LeaderView,
        /// Whether this answers `SeekLeader`: if so, the sender hears that leader, or leads.
        sought: bool,
    },
    /// What the sender has decided, as fingerprints; see [`crate::History`]. Versions before 5 do not have
    /// this message.
    History {
        /// The fingerprints do not contain what was decided through this slot.
        since: Slot,
        /// The fingerprints: the newest one, and some before it.
        marks: Vec<Mark>,
    },
    /// To the caretaker: the births of all voters, as the sender has sessions with them. Versions before
    /// [`BIRTHS_SINCE`] do not have this message.
    Births(Vec<Named>),
    /// To the leader: the sender's protocol could not take in what came, and dropped some of it; now it can.
    /// What was sent to it before may be lost, as when a session begins.
    Missed {
        /// The epoch of the instance that dropped it.
        epoch: Epoch,
    },
    /// To a learner that has not said anything for long: it is a member of the group after slot `decided`, although it
    /// may have found before that the others go on without it. Only replicas of a group that follows another are told.
    Rejoin {
        /// The first slot that the sender keeps.
        kept: Slot,
        /// The last slot that the sender keeps.
        decided: Slot,
    },
    /// To voters: the sender misses its leader, and asks which replicas hear it. A voter that does answers
    /// with `Progress`; the others do not answer.
    SeekLeader,
    /// A message for the leader, or an answer of the leader.
    Direct(Routed),
    /// The same by way of a voter that reaches both replicas. The voter passes it on, unless it was passed on before.
    Relayed {
        /// The replica that it comes from.
        origin: ReplicaId,
        /// The replica that it is for.
        to: ReplicaId,
        /// The message itself.
        message: Routed,
    },
    /// Asks for what was decided in these slots.
    Fetch {
        /// The first slot wanted.
        from: Slot,
        /// The last slot wanted.
        through: Slot,
    },
    /// Answers `Fetch` with decided batches of consecutive slots, as many as fit a message.
    Fetched {
        /// The slot of the first batch.
        from: Slot,
        /// The first slot that the sender keeps.
        kept: Slot,
        /// The last slot that the sender keeps.
        decided: Slot,
        /// The batches; empty if the sender has none from that slot on.
        batches: Vec<Decided>,
    },
    /// Decided batches of consecutive slots, for a joining replica that did not ask for them.
    Pushed {
        /// The slot of the first batch.
        from: Slot,
        /// The sender has decided slots through this one.
        decided: Slot,
        /// The batches.
        batches: Vec<Decided>,
    },
    /// Offers a snapshot. Answers `Fetch` when the sender does not keep the slots any more, or goes to a
    /// joining replica that lacks them and did not ask.
    SnapshotOffer {
        /// The snapshot holds everything through this slot.
        slot: Slot,
        /// Its size in bytes.
        total: u64,
    },
    /// Asks for a piece of the snapshot.
    FetchChunk {
        /// The snapshot's slot.
        slot: Slot,
        /// Where the piece begins, in bytes.
        offset: u64,
    },
    /// Answers `FetchChunk`.
    Chunk {
        /// The snapshot's slot.
        slot: Slot,
        /// Where the piece begins, in bytes.
        offset: u64,
        /// The snapshot's size in bytes; 0 if the sender does not have the snapshot any more.
        total: u64,
        /// The piece.
        bytes: Bytes,
    },
}

/// What a replica sends the leader, or what the leader answers; it may come by way of another voter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Routed {
    /// To the leader: asks it to order this batch.
    Forward(Batch),
    /// Answers a `Forward` of a change of voters: the leader does not propose the change, because too few of
    /// the replicas that would vote answer it.
    TurnedDown {
        /// The session of the command.
        session: SessionId,
        /// Its number in the session.
        sequence: u64,
    },
    /// To the leader: asks from which slot on a read that starts now is linearizable.
    ReadIndex {
        /// A number that comes back with the answer.
        token: u64,
    },
    /// Answers `ReadIndex`; `None` if the sender does not lead.
    ReadIndexAnswer {
        /// The token of the question.
        token: u64,
        /// The slot.
        slot: Option<Slot>,
    },
}

/// Bytes that go before a message of the protocol: the kind and the epoch.
pub(crate) const PROTOCOL_HEAD_BYTES: usize = 9;

const PROTOCOL: u8 = 1;
const FORWARD: u8 = 2;
const READ_INDEX: u8 = 3;
const READ_INDEX_ANSWER: u8 = 4;
const FETCH: u8 = 5;
const FETCHED: u8 = 6;
const SNAPSHOT_OFFER: u8 = 7;
const FETCH_CHUNK: u8 = 8;
const CHUNK: u8 = 9;
const STANDING: u8 = 10;
const PUSHED: u8 = 11;
const SEEK_LEADER: u8 = 12;
const RELAYED: u8 = 13;
const TURNED_DOWN: u8 = 14;
const MISSED: u8 = 15;
const HISTORY: u8 = 16;
const REJOIN: u8 = 17;
const BIRTHS: u8 = 18;

/// The first version with `History`.
const HISTORY_VERSION: u16 = 5;
/// Bytes of a fingerprint with its slot.
const MARK_BYTES: usize = 16;
/// Bytes of a birth with its replica.
const NAMED_BYTES: usize = 16;

/// About the most bytes that everything except batches and pieces of snapshots takes in a message.
const OTHER_BYTES: u64 = 256;

impl PeerMessage {
    /// About how many bytes the message takes in memory while it waits to be sent; not less than in a frame.
    pub(crate) fn weight(&self) -> u64 {
        let contents = match self {
            PeerMessage::Protocol { message, .. } => message.batch_bytes() + message.body().other_bytes(),
            PeerMessage::Direct(Routed::Forward(batch))
            | PeerMessage::Relayed { message: Routed::Forward(batch), .. } => batch.bytes().len() as u64,
            PeerMessage::Fetched { batches, .. } | PeerMessage::Pushed { batches, .. } => {
                batches.iter().map(|decided| decided.size() as u64).sum()
            }
            PeerMessage::Chunk { bytes, .. } => bytes.len() as u64,
            PeerMessage::History { marks, .. } => (marks.len() * MARK_BYTES) as u64,
            PeerMessage::Births(births) => (births.len() * NAMED_BYTES) as u64,
            _ => 0,
        };
        contents + OTHER_BYTES
    }

    /// Whether a replica that speaks this version knows this message; otherwise it is not sent to that replica.
    #[must_use]
    pub fn is_spoken_in(&self, version: u16) -> bool {
        match self {
            PeerMessage::History { .. } => version >= HISTORY_VERSION,
            PeerMessage::Births(_) => version >= BIRTHS_SINCE,
            _ => true,
        }
    }

    /// The bytes for a frame, in the newest version.
    #[must_use]
    pub fn encode(&self) -> Encoded {
        self.encode_in(MESSAGES_VERSION)
    }

    /// The bytes for a frame to a replica that speaks this version. What a later version adds stands at the end;
    /// a version that this build does not know is spoken only where a test says so, and then adds one number.
    #[must_use]
    pub fn encode_in(&self, version: u16) -> Encoded {
        let mut writer = Writer::new();
        match self {
            PeerMessage::Protocol { epoch, message } => {
                writer.u8(PROTOCOL);
                writer.u64(epoch.0);
                message.encode(&mut writer);
            }
            PeerMessage::Progress { epoch, kept, decided, view, sought } => {
                writer.u8(STANDING);
                writer.u64(epoch.0);
                writer.slot(*kept);
                writer.slot(*decided);
                writer.ballot(view.ballot);
                writer.replica(view.leader.unwrap_or_default());
                writer.bool(*sought);
            }
            PeerMessage::History { since, marks } => {
                writer.u8(HISTORY);
                writer.slot(*since);
                write_marks(&mut writer, marks);
            }
            PeerMessage::Births(births) => {
                writer.u8(BIRTHS);
                encode_births(births, &mut writer);
            }
            PeerMessage::Missed { epoch } => {
                writer.u8(MISSED);
                writer.u64(epoch.0);
            }
            PeerMessage::Rejoin { kept, decided } => write_slots(&mut writer, REJOIN, &[*kept, *decided]),
            PeerMessage::SeekLeader => writer.u8(SEEK_LEADER),
            PeerMessage::Direct(message) => message.encode(&mut writer),
            PeerMessage::Relayed { origin, to, message } => {
                writer.u8(RELAYED);
                writer.replica(*origin);
                writer.replica(*to);
                message.encode(&mut writer);
            }
            PeerMessage::Fetch { from, through } => write_slots(&mut writer, FETCH, &[*from, *through]),
            PeerMessage::Fetched { from, kept, decided, batches } => {
                write_slots(&mut writer, FETCHED, &[*from, *kept, *decided]);
                write_batches(&mut writer, batches);
            }
            PeerMessage::Pushed { from, decided, batches } => {
                write_slots(&mut writer, PUSHED, &[*from, *decided]);
                write_batches(&mut writer, batches);
            }
            PeerMessage::SnapshotOffer { slot, total } => {
                write_slots(&mut writer, SNAPSHOT_OFFER, &[*slot]);
                writer.u64(*total);
            }
            PeerMessage::FetchChunk { slot, offset } => {
                write_slots(&mut writer, FETCH_CHUNK, &[*slot]);
                writer.u64(*offset);
            }
            PeerMessage::Chunk { slot, offset, total, bytes } => {
                write_slots(&mut writer, CHUNK, &[*slot]);
                writer.u64(*offset);
                writer.u64(*total);
                writer.shared(bytes);
            }
        }
        if version > MESSAGES_VERSION {
            writer.u64(version.into());
        }
        writer.finish()
    }

    /// Reads what [`PeerMessage::encode`] wrote.
    ///
    /// # Errors
    /// As those of [`PeerMessage::decode_in`].
    pub fn decode(bytes: Bytes) -> Result<PeerMessage, DecodeError> {
        PeerMessage::decode_in(MESSAGES_VERSION, bytes)
    }

    /// Reads what [`PeerMessage::encode_in`] wrote in this version.
    ///
    /// # Errors
    /// The bytes are not a message of that version.
    pub fn decode_in(version: u16, bytes: Bytes) -> Result<PeerMessage, DecodeError> {
        let mut reader = Reader::new(bytes);
        let message = match reader.u8("message")? {
            PROTOCOL => {
                let epoch = Epoch(reader.u64("epoch")?);
                PeerMessage::Protocol { epoch, message: Message::decode(&mut reader)? }
            }
            STANDING => {
                let epoch = Epoch(reader.u64("epoch")?);
                let kept = reader.slot("kept")?;
                let decided = reader.slot("decided")?;
                let ballot = reader.ballot_in_reach("ballot")?;
                // Ids begin with 1.
                let leader = Some(reader.replica("leader")?).filter(|leader| leader.0 != 0);
                let sought = reader.bool("sought")?;
                PeerMessage::Progress { epoch, kept, decided, view: LeaderView { ballot, leader }, sought }
            }
            HISTORY if version >= HISTORY_VERSION => {
                let since = reader.slot("since")?;
                let count = reader.u32("fingerprints")?;
                let mark =
                    |_| Ok(Mark { slot: reader.slot("slot")?, fingerprint: reader.u64("fingerprint")? });
                let marks = (0..count).map(mark).collect::<Result<_, DecodeError>>()?;
                PeerMessage::History { since, marks }
            }
            BIRTHS if version >= BIRTHS_SINCE => PeerMessage::Births(decode_births(&mut reader)?),
            REJOIN => PeerMessage::Rejoin { kept: reader.slot("kept")?, decided: reader.slot("decided")? },
            MISSED => PeerMessage::Missed { epoch: Epoch(reader.u64("epoch")?) },
            SEEK_LEADER => PeerMessage::SeekLeader,
            kind @ (FORWARD | TURNED_DOWN | READ_INDEX | READ_INDEX_ANSWER) => {
                PeerMessage::Direct(Routed::decode(kind, &mut reader)?)
            }
            RELAYED => {
                let origin = reader.replica("origin")?;
                let to = reader.replica("to")?;
                let kind = reader.u8("message")?;
                PeerMessage::Relayed { origin, to, message: Routed::decode(kind, &mut reader)? }
            }
            FETCH => PeerMessage::Fetch { from: reader.slot("from")?, through: reader.slot("through")? },
            FETCHED => PeerMessage::Fetched {
                from: reader.slot("from")?,
                kept: reader.slot("kept")?,
                decided: reader.slot("decided")?,
                batches: read_batches(&mut reader)?,
            },
            PUSHED => PeerMessage::Pushed {
                from: reader.slot("from")?,
                decided: reader.slot("decided")?,
                batches: read_batches(&mut reader)?,
            },
            SNAPSHOT_OFFER => {
                PeerMessage::SnapshotOffer { slot: reader.slot("slot")?, total: reader.u64("total")? }
            }
            FETCH_CHUNK => {
                PeerMessage::FetchChunk { slot: reader.slot("slot")?, offset: reader.u64("offset")? }
            }
            CHUNK => PeerMessage::Chunk {
                slot: reader.slot("slot")?,
                offset: reader.u64("offset")?,
                total: reader.u64("total")?,
                bytes: reader.bytes("chunk")?,
            },
            value => return Err(DecodeError::Undefined { field: "message", value: value.into() }),
        };
        if version > MESSAGES_VERSION {
            reader.u64("what a later version adds")?;
        }
        reader.finish()?;
        Ok(message)
    }
}

impl Routed {
    fn encode(&self, writer: &mut Writer) {
        match self {
            Routed::Forward(batch) => {
                writer.u8(FORWARD);
                writer.batch(batch);
            }
            Routed::TurnedDown { session, sequence } => {
                writer.u8(TURNED_DOWN);
                writer.u64(session.0);
                writer.u64(*sequence);
            }
            Routed::ReadIndex { token } => {
                writer.u8(READ_INDEX);
                writer.u64(*token);
            }
            Routed::ReadIndexAnswer { token, slot } => {
                writer.u8(READ_INDEX_ANSWER);
                writer.u64(*token);
                writer.bool(slot.is_some());
                writer.slot(slot.unwrap_or_default());
            }
        }
    }

    fn decode(kind: u8, reader: &mut Reader) -> Result<Routed, DecodeError> {
        match kind {
            FORWARD => Ok(Routed::Forward(reader.batch("batch")?)),
            TURNED_DOWN => Ok(Routed::TurnedDown {
                session: SessionId(reader.u64("session")?),
                sequence: reader.u64("sequence")?,
            }),
            READ_INDEX => Ok(Routed::ReadIndex { token: reader.u64("token")? }),
            READ_INDEX_ANSWER => {
                let token = reader.u64("token")?;
                let known = reader.bool("known")?;
                let slot = reader.slot("slot")?;
                Ok(Routed::ReadIndexAnswer { token, slot: known.then_some(slot) })
            }
            // A message of a protocol speaks for the replica at the other end of a session, so it is not relayed.
            value => Err(DecodeError::Undefined { field: "message", value: value.into() }),
        }
    }
}

/// Writes the number of a kind of messages, and slots.
fn write_slots(writer: &mut Writer, kind: u8, slots: &[Slot]) {
    writer.u8(kind);
    slots.iter().for_each(|slot| writer.slot(*slot));
}

fn write_marks(writer: &mut Writer, marks: &[Mark]) {
    writer.u32(u32::try_from(marks.len()).expect("a few"));
    for mark in marks {
        writer.slot(mark.slot);
        writer.u64(mark.fingerprint);
    }
}

fn write_batches(writer: &mut Writer, batches: &[Decided]) {
    writer.u32(u32::try_from(batches.len()).expect("bounded by the size of a message"));
    for Decided { ballots, batch } in batches {
        writer.ballots(*ballots);
        writer.batch(batch);
    }
}

fn read_batches(reader: &mut Reader) -> Result<Vec<Decided>, DecodeError> {
    let count = reader.u32("batches")?;
    let read = |_| {
        let (proposed, decided) = (reader.ballot_in_reach("proposed")?, reader.ballot_in_reach("decided")?);
        Ok(Decided { ballots: Ballots { proposed, decided }, batch: reader.batch("batch")? })
    };
    (0..count).map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Limits, Settings, decided::DecidedLog};
    use synod_consensus::Options;
    use synod_wire::{Ballot, BatchBuilder};

    /// The largest message of each kind other than the protocol's.
    #[test]
    fn no_message_is_larger_than_settings_and_limits_say() {
        let batch = |len: usize| {
            let mut builder = BatchBuilder::new();
            builder.push(SessionId(1), 1, 1, &vec![0; len]);
            builder.finish()
        };
        let limits = Limits::default().with("max-request-bytes=5000").unwrap();
        let ballots = Ballots::both(Ballot { round: 2, replica: ReplicaId(3) });
        for page in [1, 300, 20_000] {
            let mut consensus = Options::default();
            (consensus.page_bytes_max, consensus.raft.append_bytes_max) = (1, 1);
            let settings =
                Settings { consensus, fetch_bytes_max: page, chunk_bytes_max: page, ..Settings::default() };
            let mut kept = DecidedLog::new(Slot(1), Ballots::ZERO);
            for slot in 1..2_000 {
                let decided = match slot % 7 {
                    0 => batch(limits.request_bytes_max),
                    1..4 => batch(slot),
                    _ => Batch::noop(),
                };
                kept.push(Slot(slot as u64), 0, ballots, decided);
            }
            let pages = (1..2_000).map(|from| kept.range(Slot(from), Slot(u64::MAX), page).unwrap());
            let mut messages = vec![
                PeerMessage::Direct(Routed::Forward(batch(limits.request_bytes_max))),
                PeerMessage::Relayed {
                    origin: ReplicaId(2),
                    to: ReplicaId(1),
                    message: Routed::Forward(batch(limits.request_bytes_max)),
                },
                PeerMessage::Chunk { slot: Slot(1), offset: 1, total: 1, bytes: vec![0; page].into() },
            ];
            for batches in pages {
                messages.push(PeerMessage::Pushed {
                    from: Slot(1),
                    decided: Slot(1),
                    batches: batches.clone(),
                });
                let (from, kept, decided) = (Slot(1), Slot(1), Slot(1));
                messages.push(PeerMessage::Fetched { from, kept, decided, batches });
            }
            let max = settings.message_bytes_max(&limits);
            for message in messages {
                let len = message.encode().len();
                assert!(len <= max, "{len} bytes, {max} allowed, pages of {page}");
            }
        }
    }

    /// One of each kind.
    fn messages() -> Vec<PeerMessage> {
        let ballot = Ballot { round: 2, replica: ReplicaId(3) };
        let decided = Decided { ballots: Ballots::both(ballot), batch: Batch::noop() };
        vec![
            PeerMessage::Direct(Routed::Forward(Batch::noop())),
            PeerMessage::Relayed {
                origin: ReplicaId(2),
                to: ReplicaId(1),
                message: Routed::Forward(Batch::noop()),
            },
            PeerMessage::SeekLeader,
            PeerMessage::Progress {
                epoch: Epoch(2),
                kept: Slot(4),
                decided: Slot(9),
                view: LeaderView { ballot, leader: Some(ReplicaId(3)) },
                sought: true,
            },
            PeerMessage::Direct(Routed::ReadIndex { token: 3 }),
            PeerMessage::Direct(Routed::TurnedDown { session: SessionId(7), sequence: 5 }),
            PeerMessage::Direct(Routed::ReadIndexAnswer { token: 3, slot: Some(Slot(0)) }),
            PeerMessage::Relayed {
                origin: ReplicaId(2),
                to: ReplicaId(1),
                message: Routed::ReadIndexAnswer { token: 3, slot: None },
            },
            PeerMessage::Missed { epoch: Epoch(2) },
            PeerMessage::History {
                since: Slot(2),
                marks: vec![Mark { slot: Slot(9), fingerprint: u64::MAX }],
            },
            PeerMessage::Rejoin { kept: Slot(4), decided: Slot(9) },
            PeerMessage::Fetch { from: Slot(9), through: Slot(12) },
            PeerMessage::Fetched {
                from: Slot(9),
                kept: Slot(4),
                decided: Slot(30),
                batches: vec![decided.clone(), decided.clone()],
            },
            PeerMessage::Pushed { from: Slot(9), decided: Slot(30), batches: vec![decided] },
            PeerMessage::SnapshotOffer { slot: Slot(9), total: 100 },
            PeerMessage::FetchChunk { slot: Slot(9), offset: 10 },
            PeerMessage::Chunk { slot: Slot(9), offset: 10, total: 100, bytes: Bytes::from_static(b"piece") },
        ]
    }

    #[test]
    fn every_byte_is_where_earlier_versions_look_for_it() {
        let lines =
            messages().into_iter().map(|message| (format!("{message:?}"), message.encode().to_bytes()));
        crate::fixed::check("messages", include_str!("fixed/messages.txt"), lines);
    }

    #[test]
    fn messages_survive_the_wire_and_no_truncation_decodes() {
        for message in messages() {
            let bytes = message.encode().to_bytes();
            assert_eq!(PeerMessage::decode(bytes.clone()).as_ref(), Ok(&message));
            for len in 0..bytes.len() {
                assert!(PeerMessage::decode(bytes.slice(..len)).is_err(), "{message:?} cut at {len}");
            }
        }
    }

    /// A message of a protocol speaks for the replica at the other end of the session.
    #[test]
    fn messages_of_a_protocol_and_relayed_messages_are_not_relayed() {
        for inner in [PROTOCOL, STANDING, RELAYED, FETCH] {
            let mut writer = Writer::new();
            writer.u8(RELAYED);
            writer.replica(ReplicaId(2));
            writer.replica(ReplicaId(1));
            writer.u8(inner);
            let refused = PeerMessage::decode(writer.finish().to_bytes());
            assert_eq!(refused, Err(DecodeError::Undefined { field: "message", value: inner.into() }));
        }
    }
}

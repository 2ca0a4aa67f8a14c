//! The table of protocols: a line for each. Protocols from outside this crate are registered, see
//! [`crate::Outside`].
//!
//! Everything else of a protocol is in its folder: its messages and records with their encoding ([`Body`],
//! [`Logged`]), how people read them ([`crate::Describe`]), what they claim to the checks ([`crate::Claims`],
//! [`crate::Facts`]), what they prove ([`crate::Prove`]), its options (`Tuning`), which bugs can be planted
//! (`Bug`), and its [`Profile`]. ARCHITECTURE.md says how to add one.

use std::{fmt, str::FromStr};

use synod_wire::{DecodeError, Reader, Time};

use crate::{
    Body, Bug, Dissemination, Effects, Logged, Members, Options, OutsideMessage, OutsideRecord, Protocol,
    Registered, Restart, Threshold, UnknownName, dissemination, election, options::choice, outside,
    overrides::Key,
};

/// The table. Each line has the name in configurations, the first byte of messages and records (4 is that of
/// elections, 5 that of dissemination), and the folder.
macro_rules! protocols {
    ($make:ident) => {
        $make! {
            /// MultiPaxos as JPaxos runs it (Santos 2012, chapter 7).
            MultiPaxos = "multipaxos", 1, multipaxos;
            /// Leader-based Sequence Paxos (Ng 2020, section 2.4.2), for crash-recovery and lossy sessions.
            SequencePaxos = "sequence-paxos", 2, sequence_paxos;
            /// Raft with PreVote, CheckQuorum and joint consensus (Ng 2020, section 2.5). Its election is a part of it,
            /// and only its leader decides, so `election` and `decision` change nothing.
            Raft = "raft", 3, raft;
            /// Unicast Ring Paxos (Benz 2013): batches, votes and decisions go round a ring, and every byte of a batch
            /// crosses each of its links once. Any replica takes commands.
            Ring = "ring", 6, ring;
            /// Kernel Paxos (Esposito, Coelho, Pedone 2019): the acceptor is the C that also runs below the socket
            /// layer. Each replica counts all votes. Those that only a laboratory runs, as this one, stand last.
            KernelPaxos = "kernel-paxos", 7, kernel_paxos;
            /// A log in swift rounds (Santos 2012, chapters 3 to 5): no replica leads, and every replica proposes.
            Rounds = "rounds", 8, rounds;
        }
    };
}
pub(crate) use protocols;

macro_rules! registry {
    ($($(#[$doc:meta])* $kind:ident = $name:literal, $tag:literal, $folder:ident;)+) => {
        /// How slots are ordered.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum ProtocolKind {
            $($(#[$doc])* $kind,)+
            /// A protocol from outside this crate.
            Outside(Registered),
        }

        impl ProtocolKind {
            /// Every protocol of this crate: those that serve, then those of the laboratory.
            pub(crate) const EVERY: &'static [(&'static str, ProtocolKind)] =
                &[$(($name, ProtocolKind::$kind),)+];

            /// How many of them serve.
            const SERVING: usize = 0 $(+ $crate::$folder::PROFILE.laboratory.is_none() as usize)+;

            pub(crate) fn profile(self) -> &'static Profile {
                match self {
                    $(ProtocolKind::$kind => &$crate::$folder::PROFILE,)+
                    ProtocolKind::Outside(outside) => outside.profile(),
                }
            }

            /// The protocol's name in configurations.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $(ProtocolKind::$kind => $name,)+
                    ProtocolKind::Outside(outside) => outside.name(),
                }
            }
        }

        /// A message of any protocol. Its first byte on the wire says which protocol it is of.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum Message {
            $(#[doc = concat!("Of ", $name, ".")] $kind($crate::$folder::Message),)+
            /// A message of an election, whichever protocol it elects for.
            Election(election::Message),
            /// A message of dissemination, whichever protocol orders what is disseminated.
            Dissemination(dissemination::Message),
            /// A message of a protocol from outside.
            Outside(OutsideMessage),
        }

        impl Message {
            /// The byte that says which protocol the message is of, and the message.
            pub(crate) fn tagged(&self) -> (u8, &dyn Body) {
                match self {
                    $(Message::$kind(message) => ($tag, message),)+
                    Message::Election(message) => (ELECTION, message),
                    Message::Dissemination(message) => (DISSEMINATION, message),
                    Message::Outside(message) => (OUTSIDE, message.body()),
                }
            }

            pub(crate) fn decode_tagged(tag: u8, reader: &mut Reader) -> Result<Message, DecodeError> {
                match tag {
                    $($tag => $crate::$folder::Message::decode(reader).map(Message::$kind),)+
                    ELECTION => election::Message::decode(reader).map(Message::Election),
                    DISSEMINATION => dissemination::Message::decode(reader).map(Message::Dissemination),
                    OUTSIDE => OutsideMessage::decode(reader).map(Message::Outside),
                    value => Err(DecodeError::Undefined { field: "protocol", value: value.into() }),
                }
            }
        }

        /// A record of any protocol's write-ahead log. Its first byte on disk says which protocol it is of.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum Record {
            $(#[doc = concat!("Of ", $name, ".")] $kind($crate::$folder::Record),)+
            /// A record of dissemination, whichever protocol orders what is disseminated.
            Dissemination(dissemination::Record),
            /// A record of a protocol from outside.
            Outside(OutsideRecord),
        }

        impl Record {
            /// The byte that says which protocol the record is of, and the record.
            pub(crate) fn tagged(&self) -> (u8, &dyn Logged) {
                match self {
                    $(Record::$kind(record) => ($tag, record),)+
                    Record::Dissemination(record) => (DISSEMINATION, record),
                    Record::Outside(record) => (OUTSIDE, record.body()),
                }
            }

            pub(crate) fn decode_tagged(tag: u8, reader: &mut Reader) -> Result<Record, DecodeError> {
                match tag {
                    $($tag => $crate::$folder::Record::decode(reader).map(Record::$kind),)+
                    DISSEMINATION => dissemination::Record::decode(reader).map(Record::Dissemination),
                    OUTSIDE => OutsideRecord::decode(reader).map(Record::Outside),
                    value => Err(DecodeError::Undefined { field: "protocol", value: value.into() }),
                }
            }
        }

        $(
            impl From<$crate::$folder::Message> for Message {
                fn from(message: $crate::$folder::Message) -> Message {
                    Message::$kind(message)
                }
            }

            impl From<$crate::$folder::Record> for Record {
                fn from(record: $crate::$folder::Record) -> Record {
                    Record::$kind(record)
                }
            }
        )+
    };
}

protocols!(registry);

const ELECTION: u8 = 4;
const DISSEMINATION: u8 = 5;
/// After this byte comes the protocol's name.
const OUTSIDE: u8 = 255;

impl fmt::Display for ProtocolKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for ProtocolKind {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<ProtocolKind, UnknownName> {
        let found = ProtocolKind::known().find(|(name, _)| *name == text);
        found.map(|(_, kind)| kind).ok_or_else(|| {
            UnknownName::new("protocol", text, ProtocolKind::known().map(|(name, _)| name).collect())
        })
    }
}

impl From<dissemination::Message> for Message {
    fn from(message: dissemination::Message) -> Message {
        Message::Dissemination(message)
    }
}

impl From<dissemination::Record> for Record {
    fn from(record: dissemination::Record) -> Record {
        Record::Dissemination(record)
    }
}

impl From<election::Message> for Message {
    fn from(message: election::Message) -> Message {
        Message::Election(message)
    }
}

choice! {
    /// How a leader is chosen.
    ElectionKind, "election" {
        /// View v is led by replica v mod n; the next in line takes over from a leader that falls silent,
        /// once a quorum would let it.
        Rotating = "rotating",
        /// Rounds of heartbeats elect a replica that is connected to a quorum, even where only some links
        /// work (Ng 2020, section 2.4.1).
        Ballot = "ballot",
        /// As `rotating`, and the leader hands over to the replica that exchanges messages with a majority soonest
        /// (Santos 2012, chapter 6).
        Latency = "latency",
        /// Raft's own: a replica that misses the leader for a time drawn at random asks for votes, after a rehearsal.
        Randomized = "randomized",
        /// There is no election: a protocol from outside needs no leader, or always has the same.
        None = "none",
    }
}

/// What is known of a protocol before it runs. Every folder has one, `PROFILE`.
pub(crate) struct Profile {
    /// The elections that it works with; it prefers the first.
    pub(crate) elections: &'static [ElectionKind],
    /// The disseminations that it works with.
    pub(crate) disseminations: &'static [Dissemination],
    /// The value of [`ProtocolKind::changes_voters_itself`].
    pub(crate) changes_voters_itself: bool,
    /// The value of [`ProtocolKind::has_leader`].
    pub(crate) has_leader: bool,
    /// The value of [`ProtocolKind::every_replica_proposes`].
    pub(crate) every_replica_proposes: bool,
    /// The value of [`ProtocolKind::recovers_itself`].
    pub(crate) recovers_itself: bool,
    /// The value of [`ProtocolKind::has_terms`].
    pub(crate) has_terms: bool,
    /// The value of [`ProtocolKind::fills_slots_alone`].
    pub(crate) fills_slots_alone: bool,
    /// The value of [`ProtocolKind::promises_sequence`].
    pub(crate) promises_sequence: bool,
    /// Whether the election times the answers of members, since the protocol places them by it.
    pub(crate) times_answers: fn(&Options) -> bool,
    /// The value of [`ProtocolKind::survives`].
    pub(crate) survives: Survives,
    /// The largest page of batches in one of its messages, in bytes, if no batch is larger.
    pub(crate) page_bytes_max: fn(&Options) -> usize,
    /// The value of [`Options::threshold`].
    pub(crate) threshold: fn(&Options) -> Threshold,
    /// The options that it heeds and that a group can fix, see [`crate::Overrides`].
    pub(crate) keys: &'static [Key],
    /// The value of [`ProtocolKind::options_to_try`].
    pub(crate) options_to_try: &'static [&'static str],
    /// The value of [`ProtocolKind::laboratory`].
    pub(crate) laboratory: Option<&'static str>,
    /// The bugs that the simulator finds in it by running seeds.
    pub(crate) bugs: &'static [Bug],
    /// Makes a replica, as it is after a start.
    pub(crate) start: fn(Options, Members, Restart, Time, &mut Effects) -> Box<dyn Protocol>,
}

/// What a protocol survives beside lost messages, cuts, and crashes of replicas that start again: it never decides two
/// things, and serves again once nothing goes wrong any more. Tests ask no more of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Survives {
    /// Replicas that lose their logs or a part of them, be it with a disk or since they do not wait for it.
    pub lost_logs: bool,
    /// Replicas that never start again, as long as a quorum is left.
    pub lost_replicas: bool,
}

impl Survives {
    /// All of it.
    pub const ALL: Survives = Survives { lost_logs: true, lost_replicas: true };
    /// Nothing of it.
    pub const NOTHING_ELSE: Survives = Survives { lost_logs: false, lost_replicas: false };
}

impl ProtocolKind {
    /// The protocols of this crate that serve, by their names in configurations.
    pub const ALL: &'static [(&'static str, ProtocolKind)] =
        ProtocolKind::EVERY.split_at(ProtocolKind::SERVING).0;

    /// The protocols of this crate that do not serve yet: a server takes them only in a laboratory, and the simulator
    /// as it takes any other.
    pub const LABORATORY: &'static [(&'static str, ProtocolKind)] =
        ProtocolKind::EVERY.split_at(ProtocolKind::SERVING).1;

    /// All that this program knows, by their names: those of this crate, and those that were registered.
    pub fn known() -> impl Iterator<Item = (&'static str, ProtocolKind)> {
        ProtocolKind::EVERY.iter().copied().chain(outside::kinds())
    }

    /// What keeps it from serving outside of a laboratory, if anything does.
    #[must_use]
    pub fn laboratory(self) -> Option<&'static str> {
        self.profile().laboratory
    }

    /// What it survives.
    #[must_use]
    pub fn survives(self) -> Survives {
        self.profile().survives
    }

    /// Whether the protocol changes who votes within an epoch ([`crate::Control::ChangeVoters`]).
    #[must_use]
    pub fn changes_voters_itself(self) -> bool {
        self.profile().changes_voters_itself
    }

    /// Whether one replica at a time orders for all.
    #[must_use]
    pub fn has_leader(self) -> bool {
        self.profile().has_leader
    }

    /// Whether every replica that takes part proposes the commands of its own clients, whichever replica leads.
    #[must_use]
    pub fn every_replica_proposes(self) -> bool {
        self.profile().every_replica_proposes
    }

    /// Whether a replica that lost its log learns from its peers what it must know to vote again in the same epoch.
    /// Otherwise it only learns until an epoch begins for it.
    #[must_use]
    pub fn recovers_itself(self) -> bool {
        self.profile().recovers_itself
    }

    /// Whether the rounds of its ballots are terms: each has one leader at most, and an entry of a later term
    /// commits those before it. Then what its messages and records mean is told by [`crate::TermClaim`] and
    /// [`crate::TermFact`], otherwise by [`crate::Claim`] and [`crate::Fact`].
    #[must_use]
    pub fn has_terms(self) -> bool {
        self.profile().has_terms
    }

    /// Whether a new leader fills each slot by itself, of what a quorum tells of that slot. It may then propose a batch
    /// that another slot holds already, so that the batch is decided twice.
    #[must_use]
    pub fn fills_slots_alone(self) -> bool {
        self.profile().fills_slots_alone
    }

    /// Whether a promise tells of one sequence, which is the longer the less its sender has trimmed.
    #[must_use]
    pub fn promises_sequence(self) -> bool {
        self.profile().promises_sequence
    }

    /// The elections that it works with; the first is its own choice.
    #[must_use]
    pub fn elections(self) -> &'static [ElectionKind] {
        self.profile().elections
    }

    /// Options that it heeds and that change much: what tests try.
    #[must_use]
    pub fn options_to_try(self) -> &'static [&'static str] {
        self.profile().options_to_try
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protocols_of_the_laboratory_are_known_and_apart_from_those_that_serve() {
        assert!(ProtocolKind::ALL.iter().all(|(_, it)| it.laboratory().is_none()));
        assert!(ProtocolKind::LABORATORY.iter().all(|(_, it)| it.laboratory().is_some()));
        for (name, kind) in ProtocolKind::ALL.iter().chain(ProtocolKind::LABORATORY) {
            assert_eq!(name.parse(), Ok(*kind));
        }
        assert!(
            "no-such"
                .parse::<ProtocolKind>()
                .unwrap_err()
                .to_string()
                .contains(", ring, kernel-paxos, rounds")
        );
    }
}

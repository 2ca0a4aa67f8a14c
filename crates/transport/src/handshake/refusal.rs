//! Why a caller is turned away, as it is said and written.

use std::{fmt, ops::RangeInclusive};

use synod_wire::{Acquaintance, Incarnation, Lsn, Mismatch, Stranger};

use super::{FieldReader, Fields, HandshakeError};

/// What an operator has to do who starts a replica without its data.
pub(crate) const OTHER_BIRTH: &str = "a replica of this id with other data was seen before; a replica that lost its \
     data cannot come back under its old id, since it forgot what it promised: replace it (`synod member replace`)";

/// What an operator has to do where a copy of a data directory is used.
const OUTLIVED: &str = "its data directory was restored from a copy, or another process uses a copy of it";

/// Why a caller is turned away.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The acceptor speaks none of the caller's versions; the range is what it speaks, if it said so.
    Version(Option<RangeInclusive<u16>>),
    OtherCluster,
    UnknownReplica,
    WrongDestination,
    OldIncarnation,
    OtherBirth,
    Busy,
    NoAnswer,
    /// The caller is the replica that was seen, and has forgotten some of what it told.
    Outlived(Stranger),
    Unwritten,
    /// The caller's certificate is not for the host of the address of that replica, which the log tells.
    OtherHost,
    /// The reason has a number that this version does not know.
    Other(u16),
}

/// The numbers of mismatches in a refusal.
const MISMATCHES: [Mismatch; 4] =
    [Mismatch::Superseded, Mismatch::Copied, Mismatch::Forked, Mismatch::Shorter];

impl Refusal {
    /// The refusal of a caller that is not the replica that was seen.
    pub(crate) fn of(stranger: Stranger) -> Refusal {
        if stranger.mismatch == Mismatch::OtherBirth {
            Refusal::OtherBirth
        } else {
            Refusal::Outlived(stranger)
        }
    }

    pub(super) fn code(&self) -> u16 {
        match self {
            Refusal::Version(_) => 1,
            Refusal::OtherCluster => 2,
            Refusal::UnknownReplica => 3,
            Refusal::WrongDestination => 4,
            Refusal::OldIncarnation => 5,
            Refusal::OtherBirth => 6,
            Refusal::Busy => 7,
            Refusal::NoAnswer => 8,
            Refusal::Outlived(_) => 9,
            Refusal::Unwritten => 10,
            Refusal::OtherHost => 11,
            Refusal::Other(code) => *code,
        }
    }

    /// What the refusal says besides its number.
    pub(super) fn fields(&self) -> Fields {
        let mut fields = Fields::default();
        match self {
            Refusal::Version(Some(versions)) => fields.half_word(*versions.start()),
            Refusal::Outlived(Stranger { mismatch, known }) => {
                let number = MISMATCHES.iter().position(|known| known == mismatch).expect("all are listed");
                fields.half_word(number as u16);
                for word in [known.birth, known.incarnation.0, known.nonce, known.told.0] {
                    fields.word(word);
                }
            }
            _ => {}
        }
        fields
    }

    /// Reads the refusal of an acceptor whose newest version is `newest`.
    pub(super) fn read(code: u16, newest: u16, fields: &mut FieldReader<'_>) -> Refusal {
        match code {
            1 => Refusal::Version(fields.half_word().ok().map(|oldest| oldest..=newest)),
            2 => Refusal::OtherCluster,
            3 => Refusal::UnknownReplica,
            4 => Refusal::WrongDestination,
            5 => Refusal::OldIncarnation,
            6 => Refusal::OtherBirth,
            7 => Refusal::Busy,
            8 => Refusal::NoAnswer,
            9 => stranger(fields).map_or(Refusal::Other(code), Refusal::Outlived),
            10 => Refusal::Unwritten,
            11 => Refusal::OtherHost,
            _ => Refusal::Other(code),
        }
    }
}

/// Reads which replica was seen, and how the caller differs from it.
fn stranger(fields: &mut FieldReader<'_>) -> Result<Stranger, HandshakeError> {
    let mismatch = *MISMATCHES.get(usize::from(fields.half_word()?)).ok_or(HandshakeError::Short)?;
    let (birth, incarnation, nonce) = (fields.word()?, Incarnation(fields.word()?), fields.word()?);
    let known = Acquaintance { birth, incarnation, nonce, told: Lsn(fields.word()?) };
    Ok(Stranger { mismatch, known })
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Refusal::Version(Some(versions)) => {
                let (oldest, newest) = (versions.start(), versions.end());
                return write!(
                    f,
                    "it speaks versions {oldest} to {newest} of the transport, and none of this replica's"
                );
            }
            Refusal::Version(None) => "it speaks another version of the transport",
            Refusal::OtherCluster => {
                "the two replicas belong to different clusters: --initial-cluster-token, --initial-cluster, --groups or flags \
                 of the group differed when they were started first, or they were not restored from one backup, or one has the \
                 data directory of another cluster"
            }
            Refusal::UnknownReplica => {
                "the caller is not among the peers of the replica called: it was removed, or is not known there yet"
            }
            Refusal::WrongDestination => "another replica than the one called listens there",
            Refusal::OldIncarnation => "a later incarnation of the caller was seen already",
            Refusal::OtherBirth => OTHER_BIRTH,
            Refusal::Busy => "it answers as many inquiries as it can at a time; ask again",
            Refusal::NoAnswer => "its answer is too large to be sent, which its log tells more about",
            Refusal::Outlived(stranger) => return write!(f, "{stranger}: {OUTLIVED}"),
            Refusal::Unwritten => "it cannot write down whom it has met, which its log tells more about",
            Refusal::OtherHost => {
                "the caller's certificate is not valid for the host of its peer URL as the replica called knows it"
            }
            Refusal::Other(code) => return write!(f, "of reason {code}, which this version does not know"),
        })
    }
}

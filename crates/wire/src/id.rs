//! Identifiers and the total orders on them.

use std::fmt;

use crate::DecodeError;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident, $display:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, $display, self.0)
            }
        }
    };
}

number! {
    /// A member of a group. Numbers are small, start at 1 and are never used again within a cluster.
    ReplicaId, "r{}"
}
number! {
    /// A cluster; frames and files of another cluster are refused.
    ClusterId, "{:016x}"
}
number! {
    /// How many times a replica identity was started: a later life of the same replica has a larger number.
    Incarnation, "{}"
}
number! {
    /// A client session; see `synod-replica`'s session table.
    SessionId, "{:x}"
}
number! {
    /// A period of a group's life with fixed voters and one ordering protocol. The first is 1.
    Epoch, "e{}"
}
number! {
    /// A position in the replicated log. The first is 1; `Slot(0)` means "nothing yet".
    Slot, "{}"
}
number! {
    /// The sequence number of a record in a replica's own write-ahead log. The first is 1; `Lsn(0)` is durable
    /// from the beginning.
    Lsn, "{}"
}

/// One of the groups of replicas that a node hosts, each with slots of its own. The first is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(pub u16);

impl GroupId {
    /// The group that every node hosts.
    pub const FIRST: GroupId = GroupId(0);
}

impl fmt::Display for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "g{}", self.0)
    }
}

impl Slot {
    /// The slot before the first.
    pub const ZERO: Slot = Slot(0);

    /// The slot after this one.
    #[must_use]
    pub fn next(self) -> Slot {
        Slot(self.0 + 1)
    }

    /// The slot before this one, or [`Slot::ZERO`].
    #[must_use]
    pub fn prev(self) -> Slot {
        Slot(self.0.saturating_sub(1))
    }
}

impl Lsn {
    /// Durable from the beginning: a message gated on it leaves at once.
    pub const ZERO: Lsn = Lsn(0);
    /// The number after every record.
    pub const MAX: Lsn = Lsn(u64::MAX);

    /// The record after this one.
    #[must_use]
    pub fn next(self) -> Lsn {
        Lsn(self.0 + 1)
    }
}

/// A leadership claim: a proposal number of Paxos, a term of Raft, a view of JPaxos.
///
/// Ballots are ordered by `round`, then by the replica that owns them, so that two replicas never own the
/// same ballot. No replica owns `Ballot::ZERO`, which is lower than every ballot that has an owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ballot {
    /// Grows with every claim.
    pub round: u64,
    /// The only replica that may propose in this ballot.
    pub replica: ReplicaId,
}

impl Ballot {
    /// The ballot without an owner.
    pub const ZERO: Ballot = Ballot { round: 0, replica: ReplicaId(0) };
    /// The highest round of a ballot in reach. The eight bits that are left of 64 are the owner's in the acceptor of
    /// Kernel Paxos.
    pub const ROUND_MAX: u64 = (1 << 56) - 1;

    /// Whether a group can get to this ballot. Rounds count up by 511 at most, so a replica that names a higher one is
    /// out of its mind, and an election that counted on from there would run out of numbers.
    #[must_use]
    pub fn is_in_reach(self) -> bool {
        self.round <= Ballot::ROUND_MAX
    }

    /// The ballot, if a group can get to it.
    ///
    /// # Errors
    /// It cannot; `field` names what holds it.
    pub fn reachable(self, field: &'static str) -> Result<Ballot, DecodeError> {
        if self.is_in_reach() { Ok(self) } else { Err(DecodeError::Undefined { field, value: self.round }) }
    }
}

impl fmt::Display for Ballot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.round, self.replica)
    }
}

/// The ballots of a decided slot.
///
/// They travel with the slot to replicas that missed it. Paxos proposes a value again in every ballot that
/// might decide it, so there both are the same. Raft commits an entry of an older term by one of its own
/// after it, so there `decided` can be the higher one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ballots {
    /// A ballot in which the batch was proposed in this slot.
    pub proposed: Ballot,
    /// The slot was decided in this ballot or in a lower one. A replica that learns the slot promises this ballot
    /// first.
    pub decided: Ballot,
}

impl Ballots {
    /// The ballots of a slot before any decision.
    pub const ZERO: Ballots = Ballots { proposed: Ballot::ZERO, decided: Ballot::ZERO };

    /// The ballots of a slot that was proposed and decided in the same ballot.
    #[must_use]
    pub fn both(ballot: Ballot) -> Ballots {
        Ballots { proposed: ballot, decided: ballot }
    }

    /// The ballots of a prefix that the next slot makes longer. A slot before may have been decided in a
    /// higher ballot than the last one was, and a replica that is told of the prefix is told of that slot.
    #[must_use]
    pub fn followed_by(self, next: Ballots) -> Ballots {
        Ballots { proposed: next.proposed, decided: self.decided.max(next.decided) }
    }
}

/// How long a write-ahead log must keep a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Keep {
    /// Only the latest record with this key matters. It outlives the segment it was written to.
    State(u8),
    /// The record matters until the log is trimmed through this slot.
    Slot(Slot),
}

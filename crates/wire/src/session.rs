//! The sessions of replicas, whose numbers say which replica each belongs to.

use crate::{Incarnation, ReplicaId, SessionId};

const REPLICA_FLAG: u64 = 1 << 63;
const INCARNATION_BITS: u32 = 28;
const NONCE_BITS: u32 = 20;
const LIFE_BITS: u32 = INCARNATION_BITS + NONCE_BITS;

/// The largest replica id whose session can be named.
pub const REPLICA_ID_MAX: u64 = (1 << (63 - LIFE_BITS)) - 1;

/// The last life of a replica whose session can be named: ten restarts per second for most of a year.
pub const INCARNATION_MAX: Incarnation = Incarnation((1 << INCARNATION_BITS) - 1);

/// A life of a replica: its number, followed by some bits of the nonce that it drew. Later lives are greater.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Life(pub u64);

impl Life {
    /// The number of the life.
    #[must_use]
    pub fn incarnation(self) -> Incarnation {
        Incarnation(self.0 >> NONCE_BITS)
    }
}

/// The session of one life of a replica, made of the life's number and some bits of the nonce that it drew.
/// So two lives with the same number, one of which began on a copy of the other's disk, have two sessions,
/// and the command of one is not taken for a command of the other that was executed. The table serves the
/// life that it holds for the later one, and refuses the other.
///
/// # Panics
/// If the id exceeds [`REPLICA_ID_MAX`], which is checked where it is configured, or the life exceeds
/// [`INCARNATION_MAX`], which is checked where a data directory is opened.
#[must_use]
pub fn replica_session(replica: ReplicaId, incarnation: Incarnation, nonce: u64) -> SessionId {
    assert!(replica.0 <= REPLICA_ID_MAX && incarnation <= INCARNATION_MAX, "{replica} {incarnation}");
    let life = incarnation.0 << NONCE_BITS | nonce & ((1 << NONCE_BITS) - 1);
    SessionId(REPLICA_FLAG | replica.0 << LIFE_BITS | life)
}

impl SessionId {
    /// The replica whose session this is, and which of its lives; `None` for the session of a client.
    #[must_use]
    pub fn of_replica(self) -> Option<(ReplicaId, Life)> {
        let id = self.0 & !REPLICA_FLAG;
        let parts = (ReplicaId(id >> LIFE_BITS), Life(id & ((1 << LIFE_BITS) - 1)));
        (self.0 & REPLICA_FLAG != 0).then_some(parts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_says_whose_it_is() {
        let session = replica_session(ReplicaId(3), Incarnation(5), 7);
        let (replica, life) = session.of_replica().unwrap();
        assert_eq!((replica, life.incarnation()), (ReplicaId(3), Incarnation(5)));
        let (_, later) = replica_session(ReplicaId(3), Incarnation(6), 0).of_replica().unwrap();
        assert!(later > life, "whatever it drew");
        assert_eq!(SessionId(5).of_replica(), None);
    }
}

//! What must hold of every message that leaves, checked where interleavings are explored.

use std::{
    collections::VecDeque,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard},
};

use bytes::Bytes;
use synod_wire::{Encoded, Lsn, ReplicaId};

/// Sees every message of a replica twice: when it is said, and when it leaves.
#[derive(Debug, Default)]
pub(crate) struct Watch(Mutex<Seen>);

#[derive(Debug, Default)]
struct Seen {
    dir: PathBuf,
    /// The log has been found to survive a power failure through this record.
    durable: Lsn,
    /// The last record that the log's thread was given.
    given: Lsn,
    /// The messages that rest on records and have not left, in the order in which the replica said them.
    said: VecDeque<(ReplicaId, Lsn, Bytes)>,
}

impl Watch {
    pub(crate) fn begin(&self, dir: &Path) {
        self.seen().dir = dir.to_owned();
    }

    /// Records that the replica says something that rests on a record.
    pub(crate) fn said(&self, to: ReplicaId, body: &Encoded, after: Lsn) {
        if after > Lsn::ZERO {
            self.seen().said.push_back((to, after, body.to_bytes()));
        }
    }

    /// Records that the log's thread is given a record.
    pub(crate) fn given(&self, lsn: Lsn) {
        self.seen().given = lsn;
    }

    /// Checks, when the replica has ended and its log has not failed, that everything that was given to the
    /// log survives a power failure, and that every message that waited for the log has left.
    pub(crate) fn ended(&self) {
        let dir = self.seen().dir.clone();
        let durable = synod_storage::explored::durable_in(&dir);
        let seen = self.seen();
        assert!(durable >= seen.given, "the log has {durable} of {}", seen.given);
        assert!(seen.said.is_empty(), "something that waited for the log has not left");
    }

    /// Checks, when a message leaves, that its record survives a power failure.
    pub(crate) fn leaves(&self, to: ReplicaId, body: &Encoded, after: Lsn) {
        if after == Lsn::ZERO {
            return;
        }
        {
            let said = &mut self.seen().said;
            let own = (to, after, body.to_bytes());
            let at = said.iter().position(|one| *one == own).expect("it was said");
            said.remove(at);
        }
        let (dir, mut durable) = {
            let seen = self.seen();
            (seen.dir.clone(), seen.durable)
        };
        if after > durable {
            // The lock is not held here, since other threads run meanwhile.
            durable = synod_storage::explored::durable_in(&dir);
            self.seen().durable = durable;
        }
        assert!(after <= durable, "a message leaves for {to} that rests on {after}; durable: {durable}");
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().expect("it has not failed")
    }
}

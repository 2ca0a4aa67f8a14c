//! Which batches were delivered: replicated state.
//!
//! Where ids are ordered in the place of batches, an id may be decided twice, and by then the batch may be
//! gone. So all replicas must find, from what is decided alone, that the second decision is void. They do so
//! by this table, which is a function of the delivered batches, in order, and is a part of each snapshot.
//!
//! The table is small. Of each replica it knows the latest life that had a batch delivered, the number below
//! which that life does not wait for any batch ([`Batch::floor`]), and which batches above are delivered. A
//! batch of an earlier life, or below that number, is void: no replica waits for it.

use std::collections::{BTreeMap, BTreeSet};

use crate::{Batch, BatchId, DecodeError, Life, Reader, ReplicaId, Writer};

/// The batches that were delivered so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Delivered {
    origins: BTreeMap<ReplicaId, Origin>,
}

/// What is known of the latest life of a replica that had a batch delivered.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Origin {
    life: Life,
    /// Every batch with a lower number is delivered, or given up by its origin.
    floor: u64,
    /// The delivered batches at or above the floor. The origin has no more under way than its window, so there are few.
    above: BTreeSet<u64>,
}

impl Origin {
    /// Records that a batch is delivered whose origin waits for none below `floor`.
    fn deliver(&mut self, number: u64, floor: u64) {
        self.floor = self.floor.max(floor);
        if number > self.floor {
            self.above.insert(number);
        } else if number == self.floor {
            self.floor = self.floor.saturating_add(1);
        }
        while let Some(first) = self.above.first().copied().filter(|&first| first <= self.floor) {
            self.above.pop_first();
            if first == self.floor {
                self.floor = self.floor.saturating_add(1);
            }
        }
    }
}

impl Delivered {
    /// Whether a reference to this batch that is decided next is void.
    #[must_use]
    pub fn voids(&self, id: BatchId) -> bool {
        let Some((replica, life)) = id.origin.of_replica() else { return false };
        self.origins.get(&replica).is_some_and(|origin| {
            life < origin.life
                || life == origin.life && (id.number < origin.floor || origin.above.contains(&id.number))
        })
    }

    /// Records that this batch is delivered, or a reference to one.
    pub fn deliver(&mut self, batch: &Batch) {
        let Some(id) = batch.id().filter(|&id| !self.voids(id)) else { return };
        let Some((replica, life)) = id.origin.of_replica() else { return };
        let origin = self.origins.entry(replica).or_insert_with(|| Origin::of(life));
        if life > origin.life {
            *origin = Origin::of(life);
        }
        origin.deliver(id.number, batch.floor());
    }

    /// Writes the table.
    pub fn encode(&self, writer: &mut Writer) {
        writer.u32(u32::try_from(self.origins.len()).expect("a group has few members"));
        for (&replica, origin) in &self.origins {
            writer.replica(replica);
            writer.u64(origin.life.0);
            writer.u64(origin.floor);
            writer.u32(u32::try_from(origin.above.len()).expect("a window is small"));
            origin.above.iter().for_each(|&number| writer.u64(number));
        }
    }

    /// Reads what [`Delivered::encode`] wrote.
    ///
    /// # Errors
    /// The bytes are not such a table.
    pub fn decode(reader: &mut Reader) -> Result<Delivered, DecodeError> {
        let mut delivered = Delivered::default();
        for _ in 0..reader.u32("origins")? {
            let replica = reader.replica("origin")?;
            let (life, floor) = (Life(reader.u64("life of an origin")?), reader.u64("floor of an origin")?);
            let mut above = BTreeSet::new();
            for _ in 0..reader.u32("delivered above the floor")? {
                above.insert(reader.u64("number of a batch")?);
            }
            delivered.origins.insert(replica, Origin { life, floor, above });
        }
        Ok(delivered)
    }
}

impl Origin {
    fn of(life: Life) -> Origin {
        Origin { life, floor: 1, above: BTreeSet::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{BatchBuilder, Incarnation, SessionId, replica_session};

    fn id(replica: u64, life: u64, number: u64) -> BatchId {
        BatchId { origin: replica_session(ReplicaId(replica), Incarnation(life), 3), number }
    }

    fn batch(id: BatchId, floor: u64) -> Batch {
        let mut builder = BatchBuilder::identified();
        builder.push(SessionId(1), 1, 1, b"x");
        builder.finish_as(id, floor)
    }

    #[test]
    fn the_last_number_that_there_is_ends_nothing() {
        let mut delivered = Delivered::default();
        delivered.deliver(&batch(id(1, 1, u64::MAX), u64::MAX));
        assert!(delivered.voids(id(1, 1, 7)) && !delivered.voids(id(1, 2, 7)));
    }

    #[test]
    fn what_is_delivered_is_void_afterwards_by_reference_too() {
        let mut delivered = Delivered::default();
        assert!(!delivered.voids(id(1, 1, 2)));
        delivered.deliver(&batch(id(1, 1, 2), 1).reference().unwrap());
        assert!(delivered.voids(id(1, 1, 2)));
        assert!(
            !delivered.voids(id(1, 1, 1)) && !delivered.voids(id(1, 1, 3)) && !delivered.voids(id(2, 1, 2))
        );
        delivered.deliver(&batch(id(1, 1, 1), 1));
        assert!((1..=2).all(|number| delivered.voids(id(1, 1, number))) && !delivered.voids(id(1, 1, 3)));
    }

    #[test]
    fn what_the_origin_gave_up_is_void_and_so_is_an_earlier_life() {
        let mut delivered = Delivered::default();
        delivered.deliver(&batch(id(1, 1, 9), 5));
        assert!(delivered.voids(id(1, 1, 4)) && !delivered.voids(id(1, 1, 5)));
        delivered.deliver(&batch(id(1, 2, 1), 1));
        assert!(
            delivered.voids(id(1, 1, 5)) && delivered.voids(id(1, 2, 1)) && !delivered.voids(id(1, 2, 2))
        );
        // A void batch changes nothing.
        let before = delivered.clone();
        delivered.deliver(&batch(id(1, 1, 7), 7));
        assert_eq!(delivered, before);
    }

    #[test]
    fn it_survives_a_snapshot_and_no_part_of_it_passes_for_it() {
        let mut delivered = Delivered::default();
        [(1, 3), (1, 5), (2, 1)].into_iter().for_each(|(replica, number)| {
            delivered.deliver(&batch(id(replica, 1, number), 2.min(number)));
        });
        let mut writer = Writer::new();
        delivered.encode(&mut writer);
        let bytes = writer.finish().to_bytes();
        assert_eq!(Delivered::decode(&mut Reader::new(bytes.clone())), Ok(delivered));
        (0..bytes.len()).for_each(|len| {
            assert!(Delivered::decode(&mut Reader::new(bytes.slice(..len))).is_err(), "{len} bytes");
        });
    }
}

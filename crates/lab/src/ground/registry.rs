//! The state machine of experiments: it remembers the proposed values and their order.

use std::io::{self, Read, Write};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use synod_replica::{Context, Frozen, StateMachine};

/// Values lie below this; it bounds the memory of a replica to 32 MiB.
pub(crate) const VALUES_MAX: u64 = 1 << 28;

/// A set of numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Values {
    words: Vec<u64>,
    count: u64,
}

impl Values {
    /// Adds a value below [`VALUES_MAX`]. Returns false if it was already in the set.
    pub(crate) fn insert(&mut self, value: u64) -> bool {
        let (word, bit) = ((value / 64) as usize, 1 << (value % 64));
        if word >= self.words.len() {
            self.words.resize((word + 1).next_power_of_two(), 0);
        }
        let new = self.words[word] & bit == 0;
        self.words[word] |= bit;
        self.count += u64::from(new);
        new
    }

    pub(crate) fn len(&self) -> u64 {
        self.count
    }

    /// A value that is in this set and not in `other`.
    pub(crate) fn first_missing_in(&self, other: &Values) -> Option<u64> {
        let theirs = other.words.iter().copied().chain(std::iter::repeat(0));
        let mut missing = self.words.iter().zip(theirs).map(|(own, theirs)| own & !theirs).zip(0..);
        missing
            .find(|(word, _)| *word != 0)
            .map(|(word, index)| index * 64 + u64::from(word.trailing_zeros()))
    }
}

/// The values that a replica executed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Registry {
    pub(crate) values: Values,
    /// Values that were executed more than once: the client sent them again without knowing their outcome.
    pub(crate) repeated: u64,
    /// Depends on the order of the values.
    digest: u64,
}

impl Registry {
    pub(crate) fn record(&mut self, value: u64) -> bool {
        if value >= VALUES_MAX {
            return false;
        }
        if !self.values.insert(value) {
            self.repeated += 1;
        }
        self.digest = (self.digest.rotate_left(5) ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        true
    }

    /// The answer to every query: all of its state.
    fn encode(&self) -> Bytes {
        let mut bytes = BytesMut::with_capacity(24 + self.values.words.len() * 8);
        [self.repeated, self.digest, self.values.count].iter().for_each(|&word| bytes.put_u64_le(word));
        self.values.words.iter().for_each(|&word| bytes.put_u64_le(word));
        bytes.freeze()
    }

    /// Reads what `encode` wrote.
    pub(crate) fn decode(mut bytes: &[u8]) -> io::Result<Registry> {
        if bytes.len() < 24 || !bytes.len().is_multiple_of(8) || bytes.len() as u64 > 24 + VALUES_MAX / 8 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "not a registry of values"));
        }
        let (repeated, digest, count) = (bytes.get_u64_le(), bytes.get_u64_le(), bytes.get_u64_le());
        let mut words = Vec::with_capacity(bytes.len() / 8);
        while bytes.has_remaining() {
            words.push(bytes.get_u64_le());
        }
        Ok(Registry { values: Values { words, count }, repeated, digest })
    }
}

impl StateMachine for Registry {
    fn apply(&mut self, command: &Bytes, _: &Context) -> Bytes {
        // What follows the value only makes the command longer.
        let value = command.first_chunk().map(|value| u64::from_le_bytes(*value));
        let taken = value.is_some_and(|value| self.record(value));
        Bytes::from_static(if taken { b"" } else { b"no value" })
    }

    fn query(&self, _: &Bytes) -> Bytes {
        self.encode()
    }

    fn freeze(&self) -> Box<dyn Frozen> {
        Box::new(self.clone())
    }

    fn restore(&mut self, snapshot: &mut dyn Read) -> io::Result<()> {
        let mut bytes = Vec::new();
        snapshot.take(32 + VALUES_MAX / 8).read_to_end(&mut bytes)?;
        *self = Registry::decode(&bytes)?;
        Ok(())
    }

    fn digest(&self) -> u64 {
        self.digest
    }
}

impl Frozen for Registry {
    fn write_to(&self, out: &mut dyn Write) -> io::Result<()> {
        out.write_all(&self.encode())
    }
}

#[cfg(test)]
mod tests {
    use synod_wire::Slot;

    use super::*;

    #[test]
    fn what_is_missing_is_found_and_a_snapshot_holds_everything() {
        let mut registry = Registry::default();
        let context = Context::new(Slot(1));
        for value in [5, 700, 64, 5] {
            assert!(registry.apply(&Bytes::copy_from_slice(&u64::to_le_bytes(value)), &context).is_empty());
        }
        assert_eq!((registry.values.len(), registry.repeated), (3, 1));
        assert!(!registry.apply(&Bytes::from_static(b"three"), &context).is_empty());
        assert!(!registry.apply(&Bytes::copy_from_slice(&VALUES_MAX.to_le_bytes()), &context).is_empty());

        let mut copy = Registry::default();
        copy.restore(&mut &registry.encode()[..]).unwrap();
        assert_eq!((copy.digest(), &copy.values), (registry.digest(), &registry.values));
        assert!(copy.restore(&mut &[1, 2, 3][..]).is_err());

        let mut acknowledged = Values::default();
        acknowledged.insert(64);
        assert_eq!(acknowledged.first_missing_in(&registry.values), None);
        acknowledged.insert(9999);
        assert_eq!(acknowledged.first_missing_in(&registry.values), Some(9999));
    }

    #[test]
    fn the_digest_depends_on_the_order() {
        let digest = |values: [u64; 2]| {
            let mut registry = Registry::default();
            values.iter().for_each(|&value| assert!(registry.record(value)));
            registry.digest()
        };
        assert_ne!(digest([1, 2]), digest([2, 1]));
    }
}

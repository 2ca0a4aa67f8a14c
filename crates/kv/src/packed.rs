//! Older versions of a key, packed one after another: a version then takes little more memory than its value.
//!
//! Nearly all of the history that is kept consists of such versions, and most of them are the same key
//! written again. So a version is encoded relative to the one before it, in about ten bytes, and followed by
//! its value. Large values are kept apart, since copying them is not worth it.

use bytes::{BufMut, Bytes};
use prost::encoding::{decode_varint, encode_varint};

use crate::history::{Seen, Value, Version};

/// A chunk with this many bytes, or with [`VERSIONS`] versions, takes no further one. The limits bound what a write
/// copies if a snapshot shares the chunk.
const BYTES: usize = 32 << 10;
pub(crate) const VERSIONS: usize = 256;

/// Values of more bytes are kept apart.
const INLINE_BYTES_MAX: usize = 1 << 10;

/// The version is a tombstone: it has no number but its revision, and no value.
const TOMBSTONE: u8 = 1;
/// The version followed the one before it directly: same creation, the next version number, no lease.
const NEXT: u8 = 2;
/// The value is kept apart.
const APART: u8 = 4;

/// Versions of one key, oldest first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Packed {
    /// Revision of the first version, and its place in that revision.
    first: (i64, u32),
    last: Base,
    count: u32,
    bytes: Vec<u8>,
    /// The values that are kept apart, in the order of their versions.
    apart: Vec<Bytes>,
}

/// The numbers that the next version is encoded relative to.
#[derive(Clone, Copy, Debug, Default)]
struct Base {
    modified: i64,
    created: i64,
    version: i64,
}

impl Packed {
    pub(crate) fn is_full(&self) -> bool {
        self.bytes.len() >= BYTES || self.len() >= VERSIONS
    }

    pub(crate) fn len(&self) -> usize {
        self.count as usize
    }

    /// Revision and place of the first version.
    pub(crate) fn first(&self) -> (i64, u32) {
        self.first
    }

    /// Adds a version, newer than all others.
    pub(crate) fn push(&mut self, version: Seen<'_>) {
        let Seen { modified, sub, created, version: number, lease, value } = version;
        if self.count == 0 {
            self.first = (modified, sub);
        }
        let tombstone = number == 0;
        let next =
            created == self.last.created && Some(number) == self.last.version.checked_add(1) && lease == 0;
        let apart = value.len() > INLINE_BYTES_MAX;
        let flag = |holds: bool, flag: u8| if holds { flag } else { 0 };
        self.bytes.put_u8(flag(tombstone, TOMBSTONE) | flag(next, NEXT) | flag(apart, APART));
        let mut number_of = |number: i64| encode_varint(number as u64, &mut self.bytes);
        number_of(modified - self.last.modified);
        number_of(i64::from(sub));
        if !tombstone && !next {
            [created, number, lease].into_iter().for_each(&mut number_of);
        }
        if apart {
            self.apart.push(value.to_bytes());
        } else if !tombstone {
            number_of(value.len() as i64);
            self.bytes.put_slice(&value);
        }
        self.last = Base { modified, created, version: number };
        self.count += 1;
    }

    /// Gives back unused capacity.
    pub(crate) fn shrink(&mut self) {
        self.bytes.shrink_to_fit();
        self.apart.shrink_to_fit();
    }

    /// A copy without the first `count` versions.
    pub(crate) fn without_first(&self, count: usize) -> Packed {
        let mut rest = Packed::default();
        self.iter().skip(count).for_each(|version| rest.push(version));
        rest.shrink();
        rest
    }

    pub(crate) fn iter(&self) -> Unpacked<'_> {
        Unpacked { bytes: &self.bytes, apart: &self.apart, last: Base::default() }
    }
}

/// Iterates over packed versions.
#[derive(Clone, Debug)]
pub(crate) struct Unpacked<'a> {
    bytes: &'a [u8],
    apart: &'a [Bytes],
    last: Base,
}

impl<'a> Iterator for Unpacked<'a> {
    type Item = Seen<'a>;

    fn next(&mut self) -> Option<Seen<'a>> {
        let (&flags, rest) = self.bytes.split_first()?;
        self.bytes = rest;
        let mut number = || decode_varint(&mut self.bytes).expect("it was packed here") as i64;
        let modified = self.last.modified + number();
        let sub = number() as u32;
        if flags & TOMBSTONE != 0 {
            self.last = Base { modified, ..Base::default() };
            return Some(Seen { modified, sub, created: 0, version: 0, lease: 0, value: Value::Packed(&[]) });
        }
        let (created, version, lease) = match flags & NEXT {
            0 => (number(), number(), number()),
            _ => (self.last.created, self.last.version + 1, 0),
        };
        let value = if flags & APART == 0 {
            let len = number() as usize;
            let (value, rest) = self.bytes.split_at(len);
            self.bytes = rest;
            Value::Packed(value)
        } else {
            let (value, rest) = self.apart.split_first().expect("it was put there");
            self.apart = rest;
            Value::Shared(value)
        };
        self.last = Base { modified, created, version };
        Some(Seen { modified, sub, created, version, lease, value })
    }
}

impl<'a> Extend<&'a Version> for Packed {
    fn extend<I: IntoIterator<Item = &'a Version>>(&mut self, versions: I) {
        versions.into_iter().for_each(|version| self.push(version.into()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_is_what_comes_out() {
        let mut random = fastrand::Rng::with_seed(3);
        for _ in 0..300 {
            let mut versions = Vec::new();
            let (mut modified, mut created, mut number) = (random.i64(0..1 << 40), 0, 0);
            for _ in 0..random.usize(1..60) {
                let later = random.i64(0..3);
                modified += later;
                let sub = if later > 0 { random.u32(..) } else { versions.len() as u32 };
                versions.push(if number > 0 && random.u8(0..5) == 0 {
                    (created, number) = (0, 0);
                    Version::tombstone(modified, sub)
                } else {
                    if number == 0 {
                        created = modified;
                    }
                    number += 1;
                    let lease = if random.u8(0..5) == 0 { random.i64(..) } else { 0 };
                    let value = vec![random.u8(..); random.usize(0..2 * INLINE_BYTES_MAX)].into();
                    Version { modified, sub, created, version: number, lease, value }
                });
            }
            let mut packed = Packed::default();
            packed.extend(&versions);
            let expected: Vec<Seen<'_>> = versions.iter().map(Seen::from).collect();
            assert_eq!(packed.iter().collect::<Vec<_>>(), expected);
            assert_eq!(
                (packed.len(), packed.first()),
                (versions.len(), (versions[0].modified, versions[0].sub))
            );
            let cut = random.usize(0..versions.len());
            assert_eq!(packed.without_first(cut).iter().collect::<Vec<_>>(), expected[cut..]);
        }
    }

    #[test]
    fn a_version_that_follows_another_takes_little_more_than_its_value() {
        let value = Bytes::from(vec![7; 256]);
        let versions: Vec<Version> = (0..100)
            .map(|n| {
                let value = value.clone();
                Version {
                    modified: 1_000_000 + 1000 * n,
                    sub: 0,
                    created: 7,
                    version: 500 + n,
                    lease: 0,
                    value,
                }
            })
            .collect();
        let mut packed = Packed::default();
        packed.extend(&versions);
        packed.shrink();
        assert!(packed.bytes.len() < 100 * (256 + 8), "{}", packed.bytes.len());
    }
}

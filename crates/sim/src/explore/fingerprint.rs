//! Fingerprints of states, which are the same in every run.

use std::{
    collections::{HashMap, HashSet},
    hash::{BuildHasherDefault, Hasher},
};

use synod_wire::Time;

/// A table that hashes in the same way in every run. Nothing iterates over it.
pub(super) type Table<K, V> = HashMap<K, V, BuildHasherDefault<Mixer>>;
/// A set that hashes in the same way in every run. Nothing iterates over it.
pub(super) type Set<K> = HashSet<K, BuildHasherDefault<Mixer>>;

/// 128-bit FNV-1a of a value's `Debug` output, with its instants relative to `now`.
pub(super) fn of_debug(value: &impl std::fmt::Debug, now: Time) -> u128 {
    of_text(&format!("{value:?}"), now)
}

/// Instants are replaced by their distance from `now`: two states that differ only in when they came about
/// have the same future, since pure code compares instants only with `now` and with each other.
fn of_text(text: &str, now: Time) -> u128 {
    const INSTANT: &str = "Time(";
    let mut hash = Fnv::default();
    let mut rest = text;
    while let Some(at) = rest.find(INSTANT) {
        let (before, instant) = rest.split_at(at + INSTANT.len());
        hash.write(before.as_bytes());
        let digits = instant.find(|c: char| !c.is_ascii_digit()).unwrap_or(instant.len());
        rest = &instant[digits..];
        match instant[..digits].parse::<u64>() {
            Ok(nanos) if Time::from_nanos(nanos) != Time::NEVER => {
                let relative = i128::from(nanos) - i128::from(now.as_nanos());
                hash.write(&relative.to_le_bytes());
            }
            _ => hash.write(&instant.as_bytes()[..digits]),
        }
    }
    hash.write(rest.as_bytes());
    hash.0
}

/// A 128-bit fingerprint of a state, which is a few numbers. It has two lanes of 64 bits with different constants.
pub(super) fn of_words(words: &[u32]) -> u128 {
    let (mut low, mut high) = (0x243f_6a88_85a3_08d3_u64, 0x1319_8a2e_0370_7344_u64);
    for &word in words {
        low = finished(low ^ u64::from(word));
        high = finished(high.rotate_left(23).wrapping_add(u64::from(word)) ^ 0xa409_3822_299f_31d0);
    }
    u128::from(low) << 64 | u128::from(high ^ low.rotate_left(32))
}

/// The finalizer of splitmix64: each bit of the input changes about half of the output's.
fn finished(word: u64) -> u64 {
    let mut z = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// FNV-1a with 128 bits.
struct Fnv(u128);

impl Default for Fnv {
    fn default() -> Fnv {
        Fnv(0x6c62_272e_07bb_0142_62b8_2175_6295_c58d)
    }
}

impl Fnv {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u128::from(byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b);
        }
    }
}

/// Hashes the keys of a [`Table`].
#[derive(Debug, Default)]
pub(super) struct Mixer(u64);

impl Hasher for Mixer {
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u32(&mut self, word: u32) {
        self.write_u64(word.into());
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = finished(self.0 ^ word);
    }

    fn write_isize(&mut self, word: isize) {
        self.write_u64(word as u64);
    }

    fn write_u128(&mut self, word: u128) {
        // Such keys are fingerprints already.
        self.0 ^= (word >> 64) as u64;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn only_the_distance_of_instants_counts() {
        let at =
            |nanos| (Time::from_nanos(nanos), Time::from_nanos(nanos) + Duration::from_secs(1), Time::NEVER);
        let now = Time::from_nanos;
        assert_eq!(of_debug(&at(5), now(7)), of_debug(&at(105), now(107)));
        assert_ne!(of_debug(&at(5), now(7)), of_debug(&at(5), now(8)));
        assert_ne!(of_debug(&("x", at(5)), now(7)), of_debug(&("y", at(5)), now(7)));
    }

    #[test]
    fn the_order_and_the_number_of_words_count() {
        let words: [&[u32]; 6] = [&[], &[0], &[0, 0], &[1, 2], &[2, 1], &[1, 2, 0]];
        let distinct: std::collections::BTreeSet<u128> = words.iter().map(|words| of_words(words)).collect();
        assert_eq!(distinct.len(), words.len());
    }
}

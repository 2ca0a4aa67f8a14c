//! Keys as the store holds them.

use std::{borrow::Borrow, cmp::Ordering, fmt, ops::Deref, sync::Arc};

use imbl::OrdMap;

/// Longest key that is stored in place. With its length and the tag of the variant such a key takes 32 bytes.
const SHORT_BYTES_MAX: usize = 30;

/// A key. Finding a key in a map means comparing it with about twenty others, and the cost of that is the
/// memory that must be fetched. So a short key is stored in the map itself; a long one is shared.
#[derive(Clone)]
pub(crate) enum Key {
    Short(Short),
    /// A key longer than [`SHORT_BYTES_MAX`].
    Long(Arc<[u8]>),
}

/// The bytes of a short key, filled up with zeros, so that short keys compare as numbers. Where one key is
/// another with zeros appended, the lengths decide.
#[derive(Clone, Copy)]
pub(crate) struct Short {
    length: u8,
    bytes: [u8; SHORT_BYTES_MAX],
}

impl Key {
    /// The key in place, if it is short.
    pub(crate) fn short(key: &[u8]) -> Option<Key> {
        let mut bytes = [0; SHORT_BYTES_MAX];
        bytes.get_mut(..key.len())?.copy_from_slice(key);
        Some(Key::Short(Short { length: u8::try_from(key.len()).ok()?, bytes }))
    }
}

impl From<&[u8]> for Key {
    fn from(key: &[u8]) -> Key {
        Key::short(key).unwrap_or_else(|| Key::Long(key.into()))
    }
}

impl Deref for Key {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Key::Short(Short { length, bytes }) => &bytes[..usize::from(*length)],
            Key::Long(bytes) => bytes,
        }
    }
}

/// Keys are ordered as their bytes are.
impl Borrow<[u8]> for Key {
    fn borrow(&self) -> &[u8] {
        self
    }
}

impl Short {
    /// Eight bytes from `at` on, as a number whose order is that of the bytes.
    fn word(&self, at: usize) -> u64 {
        u64::from_be_bytes(self.bytes[at..at + 8].try_into().expect("eight bytes"))
    }

    fn compare(&self, other: &Short) -> Ordering {
        // The last two words overlap, which does no harm.
        for at in [0, 8, 16, SHORT_BYTES_MAX - 8] {
            let (own, its) = (self.word(at), other.word(at));
            if own != its {
                return own.cmp(&its);
            }
        }
        self.length.cmp(&other.length)
    }
}

impl Ord for Key {
    fn cmp(&self, other: &Key) -> Ordering {
        match (self, other) {
            (Key::Short(own), Key::Short(its)) => own.compare(its),
            _ => self[..].cmp(&other[..]),
        }
    }
}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Key) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Key) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Key {}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.escape_ascii())
    }
}

/// Finds one key.
pub(crate) fn find<'a, V>(map: &'a OrdMap<Key, V>, key: &[u8]) -> Option<(&'a Key, &'a V)> {
    match Key::short(key) {
        Some(short) => map.get_key_value(&short),
        None => map.get_key_value(key),
    }
}

/// Finds one key whose value is to be changed.
pub(crate) fn find_mut<'a, V: Clone>(
    map: &'a mut OrdMap<Key, V>,
    key: &[u8],
) -> Option<(&'a Key, &'a mut V)> {
    match Key::short(key) {
        Some(short) => map.get_key_value_mut(&short),
        None => map.get_key_value_mut(key),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_takes_four_words() {
        assert_eq!(size_of::<Key>(), 32);
    }

    #[test]
    fn keys_are_ordered_as_their_bytes() {
        let mut random = fastrand::Rng::with_seed(3);
        // Keys of few different bytes with long common parts, so that they differ anywhere, and with zeros at the end.
        let keys: Vec<Vec<u8>> = (0..400)
            .map(|_| {
                let mut key = vec![random.choice([0, 1, 255]).unwrap(); random.usize(0..36)];
                if !key.is_empty() {
                    let at = random.usize(..key.len());
                    key[at] = random.choice([0, 1, 127, 128, 255]).unwrap();
                }
                key
            })
            .collect();
        for one in &keys {
            let key = Key::from(&one[..]);
            assert_eq!(key[..], one[..]);
            assert_eq!(matches!(key, Key::Short(_)), one.len() <= SHORT_BYTES_MAX);
            for other in &keys {
                assert_eq!(key.cmp(&Key::from(&other[..])), one.cmp(other), "{one:?} and {other:?}");
            }
        }
    }
}

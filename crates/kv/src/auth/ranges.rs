//! Sets of keys that permissions allow, as ranges.

use bytes::Bytes;

use crate::range::{End, end_of};

/// The end of a range. Every key comes before [`Until::Forever`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Until {
    /// The first key that is no longer in the range.
    Before(Bytes),
    /// All keys from the first one on are in the range.
    Forever,
}

/// Ranges in ascending order, none of which overlaps or touches the next.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ranges(Vec<(Bytes, Until)>);

impl Ranges {
    /// The union of ranges as requests name them.
    pub(crate) fn union<'a>(ranges: impl Iterator<Item = (&'a [u8], &'a [u8])>) -> Ranges {
        let mut all: Vec<_> =
            ranges.map(|(key, end)| (Bytes::copy_from_slice(key), until(key, end))).collect();
        all.sort_unstable();
        let mut union: Vec<(Bytes, Until)> = Vec::new();
        for (from, until) in all {
            match union.last_mut() {
                Some((_, last)) if reaches(last, &from) => {
                    if until > *last {
                        *last = until;
                    }
                }
                _ => union.push((from, until)),
            }
        }
        Ranges(union)
    }

    /// Whether every key of a range is in the set. An empty range counts as its first key.
    pub(crate) fn cover(&self, key: &[u8], range_end: &[u8]) -> bool {
        let after = self.0.partition_point(|(from, _)| &from[..] <= key);
        let Some((_, last)) = after.checked_sub(1).map(|at| &self.0[at]) else { return false };
        match (last, end_of(range_end)) {
            (Until::Forever, _) => true,
            (Until::Before(_), End::Unbounded) => false,
            (Until::Before(last), End::Single) => key < &last[..],
            (Until::Before(last), End::Before(end)) => key < &last[..] && end <= &last[..],
        }
    }
}

/// Whether the range that ends here holds or touches one that begins at `from`.
fn reaches(until: &Until, from: &[u8]) -> bool {
    match until {
        Until::Before(end) => from <= &end[..],
        Until::Forever => true,
    }
}

fn until(key: &[u8], range_end: &[u8]) -> Until {
    match end_of(range_end) {
        // No key lies between this one and the same with a zero byte after it.
        End::Single => Until::Before([key, &[0]].concat().into()),
        End::Before(end) => Until::Before(Bytes::copy_from_slice(end)),
        End::Unbounded => Until::Forever,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(all: &[(&str, &str)]) -> Ranges {
        Ranges::union(all.iter().map(|(key, end)| (key.as_bytes(), end.as_bytes())))
    }

    #[test]
    fn ranges_that_touch_are_one() {
        let set = ranges(&[("c", "e"), ("a", "c"), ("x", ""), ("x\0", "y"), ("k", "")]);
        for (key, end) in [("a", "e"), ("b", "d"), ("d", ""), ("x", "y"), ("k", ""), ("x\0\0", "")] {
            assert!(set.cover(key.as_bytes(), end.as_bytes()), "{key:?} {end:?}");
        }
        for (key, end) in
            [("a", "e\0"), ("e", ""), ("a", "\0"), ("k", "l"), ("", ""), ("j", "k\0"), ("y", ""), ("x", "\0")]
        {
            assert!(!set.cover(key.as_bytes(), end.as_bytes()), "{key:?} {end:?}");
        }
    }

    #[test]
    fn an_open_end_covers_all_that_follows() {
        let set = ranges(&[("m", "\0"), ("n", "o")]);
        assert!(set.cover(b"m", b"\0") && set.cover(b"zz", b"") && set.cover(b"n", b"z"));
        assert!(!set.cover(b"l", b"\0") && !set.cover(b"l", b"m"));
        let all = ranges(&[("\0", "\0")]);
        assert!(all.cover(b"\0", b"\0") && all.cover(b"a", b"b"));
    }

    /// Against a twin that tries every key of two letters.
    #[test]
    fn a_range_is_covered_if_each_of_its_keys_is() {
        let letters = [b'a', b'b', b'c', b'd'];
        let mut keys: Vec<Vec<u8>> = letters.iter().map(|&one| vec![one]).collect();
        keys.extend(letters.iter().flat_map(|&one| letters.iter().map(move |&two| vec![one, two])));
        keys.sort();
        let in_range = |key: &[u8], from: &[u8], end: &[u8]| match end_of(end) {
            End::Single => key == from,
            End::Before(end) => from <= key && key < end,
            End::Unbounded => from <= key,
        };
        let mut random = fastrand::Rng::with_seed(5);
        let mut covered = 0;
        for _ in 0..2_000 {
            let draw = |random: &mut fastrand::Rng| {
                let from = random.choice(&keys).unwrap().clone();
                let end = match random.u8(..6) {
                    0 => vec![0],
                    1 => Vec::new(),
                    _ => random.choice(&keys).unwrap().clone(),
                };
                (from, end)
            };
            let permitted: Vec<_> = (0..random.usize(1..5)).map(|_| draw(&mut random)).collect();
            let valid = permitted.iter().filter(|(from, end)| super::super::is_range(from, end));
            let set = Ranges::union(valid.map(|(from, end)| (&from[..], &end[..])));
            let (from, end) = draw(&mut random);
            if set.cover(&from, &end) {
                covered += 1;
                let holds = |key: &&Vec<u8>| permitted.iter().any(|(from, end)| in_range(key, from, end));
                let wanted = keys.iter().filter(|key| in_range(key, &from, &end));
                assert!(wanted.clone().all(|key| holds(&key)), "{permitted:?} {from:?} {end:?}");
            }
            // A single key is covered exactly if a permission holds it.
            let one = permitted.iter().any(|(low, high)| in_range(&from, low, high));
            assert_eq!(set.cover(&from, b""), one, "{permitted:?} {from:?}");
        }
        assert!(covered > 100, "{covered}");
    }
}

//! Key ranges as etcd encodes them.

use std::ops::Bound;

/// The end of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End<'a> {
    /// The range is its first key alone.
    Single,
    /// The first key that is no longer in the range.
    Before(&'a [u8]),
    /// The range is the first key and all after it.
    Unbounded,
}

/// Reads a `range_end` field.
pub(crate) fn end_of(range_end: &[u8]) -> End<'_> {
    match range_end {
        [] => End::Single,
        [0] => End::Unbounded,
        end => End::Before(end),
    }
}

/// Lower and upper bound.
pub(crate) type Bounds<'a> = (Bound<&'a [u8]>, Bound<&'a [u8]>);

/// The bounds of a range, or `None` if no key can be in it.
pub(crate) fn bounds<'a>(key: &'a [u8], range_end: &'a [u8]) -> Option<Bounds<'a>> {
    let upper = match end_of(range_end) {
        End::Single => Bound::Included(key),
        End::Before(end) if end <= key => return None,
        End::Before(end) => Bound::Excluded(end),
        End::Unbounded => Bound::Unbounded,
    };
    Some((Bound::Included(key), upper))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn range_ends() {
        assert_eq!(bounds(b"a", b""), Some((Bound::Included(&b"a"[..]), Bound::Included(&b"a"[..]))));
        assert_eq!(bounds(b"a", b"b"), Some((Bound::Included(&b"a"[..]), Bound::Excluded(&b"b"[..]))));
        assert_eq!(bounds(b"a", b"\0"), Some((Bound::Included(&b"a"[..]), Bound::Unbounded)));
        assert_eq!(bounds(b"b", b"a"), None);
        assert_eq!(bounds(b"b", b"b"), None);
        assert_eq!(bounds(b"a", b"\0\0"), None);
    }
}

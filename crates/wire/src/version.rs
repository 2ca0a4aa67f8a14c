//! Versions of formats, which say which programs can read what was written.
//!
//! Every file and message format says two numbers: its version, and the oldest version whose readers
//! understand it. A reader accepts what is not older than the oldest version that it knows and what names the
//! reader's version among its readers, even if a later program wrote it: an addition that does not need to be
//! understood does not keep the operator from going back to an earlier program. Anything else is refused
//! before it is looked at, so that it never passes for damage.
//!
//! # From release 0.2.0 on
//!
//! **Files stay readable.** Every later release reads what 0.2.0 wrote, or a release in between reads it and writes
//! what the later one reads; [`Format::past`] then names that release. **Messages are negotiated**: replicas of two
//! successive minor versions speak the newest version that both know ([`crate::MESSAGES_VERSION`]). CONTRIBUTING.md has
//! the rule, and names the tests that hold it.
//!
//! A change of what is written therefore takes a higher [`Written::version`]; [`Written::readers`] as low as the
//! programs are old that still understand it; code that reads every version from [`Format::oldest`] on; and files of
//! fixed bytes that change with it.

use std::fmt;

/// The two numbers that stand in everything that is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// The version of its format.
    pub version: u32,
    /// The oldest version whose readers understand it, which is not above `version`.
    pub readers: u32,
}

/// A format as this program knows it.
#[derive(Clone, Copy, Debug)]
pub struct Format {
    /// What this program writes.
    pub written: Written,
    /// The oldest version that this program reads.
    pub oldest: u32,
    /// The releases that read the versions which this program does not read any more: each entry has the last
    /// version of a range and the last release that reads it; in order.
    pub past: &'static [(u32, &'static str)],
}

/// The name for a version that no release reads: formats were not negotiated before the first release.
const UNRELEASED: &str = "no release, only builds from before 0.2.0";

/// Why something with another version cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VersionError {
    /// It is older than what this program reads.
    TooOld {
        /// Its version.
        found: u32,
        /// The oldest version that this program reads.
        oldest: u32,
        /// The last release that reads it.
        release: &'static str,
    },
    /// A later program wrote it, for later programs alone.
    TooNew {
        /// Its version, and the oldest version whose readers understand it.
        found: Written,
        /// The latest version that this program knows.
        known: u32,
    },
}

impl fmt::Display for VersionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            VersionError::TooOld { found, oldest, release } => write!(
                f,
                "it has format version {found}; this program reads version {oldest} and later. It is read by: {release}"
            ),
            VersionError::TooNew { found, known } => write!(
                f,
                "it has format version {}, which takes a program that knows version {} or later; this one knows \
                 version {known}. Start the release that wrote it, or a later one",
                found.version, found.readers
            ),
        }
    }
}

impl std::error::Error for VersionError {}

impl Format {
    /// A format whose version `version` is the first that says who reads it.
    #[must_use]
    pub const fn first(version: u32) -> Format {
        Format {
            written: Written { version, readers: version },
            oldest: version,
            past: &[(u32::MAX, UNRELEASED)],
        }
    }

    /// Checks that this program can read `found`.
    ///
    /// # Errors
    /// This program cannot read it; the error gives the reason.
    pub fn check(&self, found: Written) -> Result<(), VersionError> {
        let known = self.written.version;
        if found.readers.min(found.version) > known {
            return Err(VersionError::TooNew { found, known });
        }
        if found.version < self.oldest {
            let read_by = self.past.iter().find(|(through, _)| found.version <= *through);
            let release = read_by.map_or(UNRELEASED, |(_, release)| release);
            return Err(VersionError::TooOld { found: found.version, oldest: self.oldest, release });
        }
        Ok(())
    }
}

/// Bytes of the head of a binary file: 8 bytes of magic, both numbers, and a checksum, the same in every version.
pub const FILE_HEAD_BYTES: usize = 20;

impl Written {
    /// Both versions in one number, half of the bits each: for what is not a file.
    ///
    /// # Panics
    /// If a version is 65536 or more.
    #[must_use]
    pub fn packed(&self) -> u32 {
        assert!(self.version <= 0xffff && self.readers <= self.version, "{self:?}");
        self.version | self.readers << 16
    }

    /// Reads [`Written::packed`]. Before versions were negotiated the upper half was 0: such a number is read
    /// by no program.
    #[must_use]
    pub fn unpacked(number: u32) -> Written {
        Written { version: number & 0xffff, readers: number >> 16 }
    }

    /// The head of a binary file that begins with `magic`.
    #[must_use]
    pub fn head(&self, magic: [u8; 8]) -> [u8; FILE_HEAD_BYTES] {
        let mut head = [0; FILE_HEAD_BYTES];
        head[..8].copy_from_slice(&magic);
        head[8..12].copy_from_slice(&self.version.to_le_bytes());
        head[12..16].copy_from_slice(&self.readers.to_le_bytes());
        let crc = crc32fast::hash(&head[..16]);
        head[16..].copy_from_slice(&crc.to_le_bytes());
        head
    }

    /// Reads such a head; `None` if the bytes are not one, or are damaged.
    #[must_use]
    pub fn of_head(bytes: &[u8], magic: [u8; 8]) -> Option<Written> {
        let head = bytes.get(..FILE_HEAD_BYTES)?;
        let word = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().expect("4 bytes"));
        let written = Written { version: word(8), readers: word(12) };
        (head == written.head(magic)).then_some(written)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: Format = Format { written: Written { version: 7, readers: 6 }, oldest: 5, past: PAST };
    const PAST: &[(u32, &str)] = &[(2, "0.3"), (4, "0.8")];

    #[test]
    fn a_reader_takes_what_it_knows_and_what_was_written_for_it() {
        for (version, readers) in [(5, 5), (6, 5), (7, 7), (8, 7), (20, 3)] {
            assert_eq!(OURS.check(Written { version, readers }), Ok(()));
        }
    }

    #[test]
    fn what_is_too_old_names_the_last_release_that_reads_it() {
        for (version, release) in [(1, "0.3"), (2, "0.3"), (3, "0.8"), (4, "0.8")] {
            let error = OURS.check(Written { version, readers: version }).unwrap_err();
            assert_eq!(error, VersionError::TooOld { found: version, oldest: 5, release });
            assert!(error.to_string().contains(release));
        }
    }

    #[test]
    fn what_is_too_new_names_the_version_that_it_takes() {
        let found = Written { version: 10, readers: 9 };
        let error = OURS.check(found).unwrap_err();
        assert_eq!(error, VersionError::TooNew { found, known: 7 });
        assert!(error.to_string().contains("takes a program that knows version 9"));
    }

    /// Both directions are tested: what the next version writes, and what it makes of what this one wrote.
    #[test]
    fn a_program_of_the_next_version_and_this_one_read_each_other_as_far_as_they_say() {
        let next = |readers, oldest| Format { written: Written { version: 8, readers }, oldest, ..OURS };
        assert_eq!(OURS.check(next(7, 5).written), Ok(()), "it goes back");
        assert!(matches!(OURS.check(next(8, 5).written), Err(VersionError::TooNew { .. })));
        assert_eq!(next(8, 7).check(OURS.written), Ok(()), "it goes on");
        assert!(matches!(next(8, 8).check(OURS.written), Err(VersionError::TooOld { .. })));
    }

    #[test]
    fn packed_versions_come_back() {
        assert_eq!(Written::unpacked(OURS.written.packed()), OURS.written);
        assert!(matches!(OURS.check(Written::unpacked(4)), Err(VersionError::TooOld { found: 4, .. })));
    }

    #[test]
    fn a_head_comes_back_and_no_flipped_bit_passes() {
        let magic = *b"SYNODXYZ";
        let head = OURS.written.head(magic);
        assert_eq!(Written::of_head(&head, magic), Some(OURS.written));
        assert_eq!(Written::of_head(&head[..19], magic), None);
        for bit in 0..head.len() * 8 {
            let mut head = head;
            head[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Written::of_head(&head, magic), None, "bit {bit}");
        }
    }
}

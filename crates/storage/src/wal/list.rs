//! `log.segments`: which segments the log has, how long each file was when it was made ready, and the mark of its
//! records.
//!
//! ```text
//! # synod log segments
//! cluster = 00000000000000a1
//! birth = 5f0c...
//! replica = 1
//! segment.00000000000000000007 = 67108864 8a6f...
//! readers = 3
//! version = 3
//! checksum = 7d1c9f02
//! ```
//!
//! The segments themselves cannot say that the last of them is gone. So each is in this list, durably, from
//! before it is begun until just before it is taken out of the log: a log lost something if a segment of the
//! list is missing or too short.
//!
//! Nor can a segment say what to look for in it when its header is lost. A reader that searched it without a
//! mark would take what a client once put into a record's body for a record. So the mark is drawn and listed
//! before the segment is begun, and no client ever sees it.

use std::{collections::BTreeMap, ops::Range, path::PathBuf, sync::Arc};

use synod_wire::Format;

use crate::{Identity, StorageError, disk::Disk, fields::Fields};

pub(crate) const FILE_NAME: &str = "log.segments";
const TITLE: &str = "synod log segments";
pub(crate) const FORMAT: Format = Format::first(3);
const PREFIX: &str = "segment.";

/// What the list says of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// The size of the file, in bytes, when it was made ready.
    pub bytes: u64,
    /// The mark of the segment's records, including those that are still to come.
    pub life: u64,
}

/// The list, with the place where it is kept.
#[derive(Clone, Debug)]
pub(crate) struct SegmentList {
    disk: Arc<dyn Disk>,
    path: PathBuf,
    identity: Identity,
    segments: BTreeMap<u64, Entry>,
    /// Whether a change failed, so that the file may or may not contain it.
    unsure: bool,
}

/// What the file says when the log is opened.
#[derive(Debug)]
pub(crate) enum Listed {
    /// There is no such file.
    None,
    Read(BTreeMap<u64, Entry>),
    Unreadable(String),
}

impl Listed {
    /// Reads the list of the log in `dir`. If it is the list of another replica, `log.state` beside it shows that.
    pub(crate) fn read(disk: &dyn Disk, dir: &std::path::Path) -> Result<Listed, StorageError> {
        let path = dir.join(FILE_NAME);
        Ok(match Fields::read(disk, &path)? {
            None => Listed::None,
            Some(Err(reason)) => Listed::Unreadable(format!("{} is damaged: {reason}", path.display())),
            Some(Ok(fields)) => {
                let malformed = |reason: String| StorageError::Malformed { path: path.clone(), reason };
                fields.check_version(&path, &FORMAT)?;
                Listed::Read(segments(&fields).map_err(malformed)?)
            }
        })
    }

    /// The segments whose numbers are in `range`; none if the list could not be read.
    pub(crate) fn within(&self, range: Range<u64>) -> BTreeMap<u64, Entry> {
        match self {
            Listed::Read(segments) => {
                segments.range(range).map(|(&segment, &entry)| (segment, entry)).collect()
            }
            Listed::None | Listed::Unreadable(_) => BTreeMap::new(),
        }
    }
}

fn segments(fields: &Fields) -> Result<BTreeMap<u64, Entry>, String> {
    let entry = |segment: &str, text: &str| {
        let (bytes, life) = text.split_once(' ')?;
        let entry = Entry { bytes: bytes.parse().ok()?, life: u64::from_str_radix(life, 16).ok()? };
        Some((segment.parse().ok()?, entry))
    };
    let parsed = fields.with_prefix(PREFIX).map(|(segment, text)| {
        entry(segment, text).ok_or_else(|| format!("\"{PREFIX}{segment} = {text}\" makes no sense"))
    });
    parsed.collect()
}

impl SegmentList {
    /// A list of these segments that is not written yet.
    pub(crate) fn new(
        disk: Arc<dyn Disk>,
        dir: &std::path::Path,
        identity: Identity,
        segments: BTreeMap<u64, Entry>,
    ) -> SegmentList {
        SegmentList { disk, path: dir.join(FILE_NAME), identity, segments, unsure: false }
    }

    /// Writes the list; it is durable on return.
    pub(crate) fn write(&self) -> Result<(), StorageError> {
        self.write_as(&self.segments)
    }

    /// Undoes what a change that failed may have left in the file.
    pub(crate) fn settle(&mut self) -> Result<(), StorageError> {
        if self.unsure { self.change(|_| {}) } else { Ok(()) }
    }

    /// Adds a segment, durably.
    pub(crate) fn add(&mut self, segment: u64, entry: Entry) -> Result<(), StorageError> {
        self.change(|segments| {
            segments.insert(segment, entry);
        })
    }

    /// Takes a segment off the list, durably.
    pub(crate) fn remove(&mut self, segment: u64) -> Result<(), StorageError> {
        self.change(|segments| {
            segments.remove(&segment);
        })
    }

    fn change(&mut self, change: impl FnOnce(&mut BTreeMap<u64, Entry>)) -> Result<(), StorageError> {
        let mut segments = self.segments.clone();
        change(&mut segments);
        self.unsure = true;
        self.write_as(&segments)?;
        (self.segments, self.unsure) = (segments, false);
        Ok(())
    }

    fn write_as(&self, segments: &BTreeMap<u64, Entry>) -> Result<(), StorageError> {
        let mut fields = Fields::default();
        fields.set_version(&FORMAT);
        fields.set("cluster", self.identity.cluster);
        fields.set("replica", self.identity.replica.0);
        fields.set("birth", format_args!("{:016x}", self.identity.birth));
        for (segment, Entry { bytes, life }) in segments {
            fields.set(&format!("{PREFIX}{segment:020}"), format_args!("{bytes} {life:016x}"));
        }
        fields.write(&*self.disk, &self.path, TITLE)
    }
}

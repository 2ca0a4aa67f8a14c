//! How many groups a cluster has, and whether they have one order.

use std::{fmt, num::NonZeroU32, str::FromStr};

use crate::ClusterId;

/// The most groups of a cluster.
pub const GROUPS_MAX: usize = 1024;

/// The most groups that are merged into one order: a batch of one of them is executed once all others have gone on.
pub const MERGED_MAX: u16 = 64;

/// The most batches of a group that come in a row where groups are merged.
pub const TAKE_MAX: u32 = 0xffff;

/// The groups of a cluster, which are a part of its identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Groups {
    /// How many there are.
    pub count: u16,
    /// Where they are merged into one order: how many batches of each come in a row.
    pub merged: Option<NonZeroU32>,
}

/// Bits of the number of groups in the id of a cluster.
const COUNT_BITS: u32 = 10;

impl Groups {
    /// One group, which is what most clusters have.
    pub const ONE: Groups = Groups { count: 1, merged: None };

    /// This many groups, each by itself.
    #[must_use]
    pub const fn shards(count: u16) -> Groups {
        Groups { count, merged: None }
    }

    /// The id of a cluster with these groups, if that of a cluster of one group that is otherwise the same is `id`. The
    /// ids of two such clusters differ in the lowest bits alone, by which [`Groups::of`] knows them.
    #[must_use]
    pub fn named_in(self, id: ClusterId) -> ClusterId {
        ClusterId(id.0 ^ self.code())
    }

    fn code(self) -> u64 {
        u64::from(self.count - 1) | u64::from(self.merged.map_or(0, NonZeroU32::get)) << COUNT_BITS
    }

    /// The groups of the cluster `other`, if it is the same as `own`, which has these groups, in all but them.
    #[must_use]
    pub fn of(self, own: ClusterId, other: ClusterId) -> Option<Groups> {
        let code = own.0 ^ other.0 ^ self.code();
        let count = u16::try_from(code & ((1 << COUNT_BITS) - 1)).expect("ten bits") + 1;
        let take = u32::try_from(code >> COUNT_BITS).ok().filter(|take| *take <= TAKE_MAX)?;
        let groups = Groups { count, merged: NonZeroU32::new(take) };
        (groups != self).then_some(groups)
    }
}

impl fmt::Display for Groups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.merged.map(NonZeroU32::get) {
            None => write!(f, "shard:{}", self.count),
            Some(1) => write!(f, "merge:{}", self.count),
            Some(take) => write!(f, "merge:{}:{take}", self.count),
        }
    }
}

/// A text that names no groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "accepted: shard:N with a number N from 1 to {GROUPS_MAX}; merge:N with N from 2 to {MERGED_MAX}, or merge:N:M with M \
     batches of each group in a row, from 1 to {TAKE_MAX}"
)]
pub struct UnknownGroups;

impl FromStr for Groups {
    type Err = UnknownGroups;

    fn from_str(text: &str) -> Result<Groups, UnknownGroups> {
        if let Some(count) = text.strip_prefix("shard:").and_then(|count| count.parse().ok()) {
            let counts = (1..=GROUPS_MAX).contains(&usize::from(count));
            return if counts { Ok(Groups::shards(count)) } else { Err(UnknownGroups) };
        }
        let numbers = text.strip_prefix("merge:").ok_or(UnknownGroups)?;
        let (count, take) = numbers.split_once(':').unwrap_or((numbers, "1"));
        let count = count.parse().ok().filter(|count| (2..=MERGED_MAX).contains(count));
        let take: Option<NonZeroU32> = take.parse().ok().filter(|take: &NonZeroU32| take.get() <= TAKE_MAX);
        let merged = Some(take.ok_or(UnknownGroups)?);
        Ok(Groups { count: count.ok_or(UnknownGroups)?, merged })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_groups_are_read_and_bounded() {
        for text in ["shard:1", "shard:4", "shard:1024", "merge:2", "merge:16", "merge:64:65535"] {
            assert_eq!(text.parse::<Groups>().unwrap().to_string(), text);
        }
        assert_eq!("merge:16:1".parse::<Groups>().unwrap().to_string(), "merge:16");
        for wrong in [
            "",
            "4",
            "shard",
            "shard:",
            "shard:0",
            "shard:1025",
            "shard:-1",
            "shard:70000",
            "merge:1",
            "merge:65",
            "merge:4:0",
            "merge:4:65536",
            "merge:4:",
            "merge",
        ] {
            let error = wrong.parse::<Groups>().unwrap_err().to_string();
            assert!(error.contains("shard:N") && error.contains("1 to 1024"), "{error}");
        }
    }

    #[test]
    fn the_ids_of_clusters_that_differ_in_groups_alone_tell_both() {
        let base = ClusterId(0x1234_5678_9abc_def0);
        assert_eq!(Groups::ONE.named_in(base), base);
        let all = ["shard:1", "shard:4", "shard:7", "merge:4", "merge:4:2", "merge:64:65535"];
        let all: Vec<Groups> = all.iter().map(|text| text.parse().unwrap()).collect();
        for &one in &all {
            for &other in &all {
                let told = one.of(one.named_in(base), other.named_in(base));
                assert_eq!(told, Some(other).filter(|_| one != other), "{one} and {other}");
            }
        }
        assert_eq!(Groups::ONE.of(base, ClusterId(!base.0)), None);
    }
}

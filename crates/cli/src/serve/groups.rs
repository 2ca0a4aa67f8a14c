//! How many groups a cluster has: `--groups shard:N`.

use std::{fmt, str::FromStr};

use synod_node::GROUPS_MAX;
use synod_wire::ClusterId;

/// The number of a cluster's groups, which is part of the cluster's identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Groups(u16);

impl Groups {
    /// One group, which is what most clusters have.
    pub const ONE: Groups = Groups(1);

    /// So many groups, as a data directory says.
    pub fn new(count: u16) -> Groups {
        Groups(count)
    }

    pub fn count(self) -> u16 {
        self.0
    }

    /// The id of a cluster of this many groups, if that of a cluster of one group that is otherwise the same is `id`. The
    /// ids of two such clusters differ in the lowest bits alone, by which [`Groups::of`] knows the number.
    pub fn named_in(self, id: ClusterId) -> ClusterId {
        ClusterId(id.0 ^ u64::from(self.0 - 1))
    }

    /// The number of groups of the cluster `other`, if it is the same as `own`, which has this many groups, in all but
    /// that number.
    pub fn of(self, own: ClusterId, other: ClusterId) -> Option<Groups> {
        let count = (own.0 ^ other.0 ^ u64::from(self.0 - 1)).checked_add(1)?;
        let count = u16::try_from(count).ok().filter(|count| usize::from(*count) <= GROUPS_MAX)?;
        (count != self.0).then_some(Groups(count))
    }
}

impl fmt::Display for Groups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "shard:{}", self.0)
    }
}

/// A text that names no number of groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("accepted: shard:N with a number N from 1 to {GROUPS_MAX}")]
pub struct UnknownGroups;

impl FromStr for Groups {
    type Err = UnknownGroups;

    fn from_str(text: &str) -> Result<Groups, UnknownGroups> {
        let count = text.strip_prefix("shard:").and_then(|count| count.parse().ok());
        let count = count.filter(|count| (1..=GROUPS_MAX).contains(&usize::from(*count)));
        count.map(Groups).ok_or(UnknownGroups)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_is_read_and_bounded() {
        assert_eq!("shard:4".parse(), Ok(Groups(4)));
        assert_eq!("shard:1".parse(), Ok(Groups::ONE));
        assert_eq!(Groups(1024).to_string().parse(), Ok(Groups(1024)));
        for wrong in
            ["", "4", "shard", "shard:", "shard:0", "shard:1025", "shard:-1", "merge:4", "shard:70000"]
        {
            let error = wrong.parse::<Groups>().unwrap_err().to_string();
            assert!(error.contains("shard:N") && error.contains("1 to 1024"), "{error}");
        }
    }

    #[test]
    fn the_ids_of_clusters_that_differ_in_groups_alone_tell_both_numbers() {
        let base = ClusterId(0x1234_5678_9abc_def0);
        assert_eq!(Groups::ONE.named_in(base), base);
        let (four, seven) = (Groups(4).named_in(base), Groups(7).named_in(base));
        assert_ne!(four, seven);
        assert_eq!(Groups(4).of(four, seven), Some(Groups(7)));
        assert_eq!(Groups(7).of(seven, base), Some(Groups::ONE));
        assert_eq!(Groups(4).of(four, four), None, "it is the same cluster");
        assert_eq!(Groups::ONE.of(base, ClusterId(!base.0)), None);
    }
}

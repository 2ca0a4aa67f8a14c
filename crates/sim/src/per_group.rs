//! Things of which each group has one.

use std::ops::{Index, IndexMut};

use synod_wire::GroupId;

/// One thing of each group, by the group's number.
#[derive(Clone, Debug)]
pub(crate) struct PerGroup<T>(Vec<T>);

impl<T> PerGroup<T> {
    /// Each group with its own.
    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = (GroupId, &T)> {
        self.0.iter().enumerate().map(|(at, of)| (GroupId(at as u16), of))
    }

    /// Those of all groups.
    pub(crate) fn all(&self) -> impl ExactSizeIterator<Item = &T> {
        self.0.iter()
    }

    /// Those of all groups.
    pub(crate) fn all_mut(&mut self) -> impl ExactSizeIterator<Item = &mut T> {
        self.0.iter_mut()
    }

    /// The groups.
    pub(crate) fn groups(&self) -> impl ExactSizeIterator<Item = GroupId> + use<T> {
        (0..self.0.len() as u16).map(GroupId)
    }
}

impl<T> Default for PerGroup<T> {
    fn default() -> PerGroup<T> {
        PerGroup(Vec::new())
    }
}

impl<T> FromIterator<T> for PerGroup<T> {
    fn from_iter<I: IntoIterator<Item = T>>(of: I) -> PerGroup<T> {
        PerGroup(of.into_iter().collect())
    }
}

impl<T> Index<GroupId> for PerGroup<T> {
    type Output = T;

    fn index(&self, group: GroupId) -> &T {
        &self.0[usize::from(group.0)]
    }
}

impl<T> IndexMut<GroupId> for PerGroup<T> {
    fn index_mut(&mut self, group: GroupId) -> &mut T {
        &mut self.0[usize::from(group.0)]
    }
}

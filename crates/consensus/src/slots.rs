//! A section of the log in memory, addressed by slot.

use std::collections::VecDeque;

use synod_wire::Slot;

/// Values for consecutive slots from [`Slots::first`] on. Slots after the last one read as the default.
#[derive(Clone, Debug)]
pub struct Slots<T> {
    first: Slot,
    values: VecDeque<T>,
}

impl<T: Default> Slots<T> {
    /// A section without values, whose first slot will be `first`.
    pub fn new(first: Slot) -> Slots<T> {
        Slots { first, values: VecDeque::new() }
    }

    /// The first slot that is held, or that would be.
    pub fn first(&self) -> Slot {
        self.first
    }

    /// The last slot that is held; the one before [`Slots::first`] if none is.
    pub fn last(&self) -> Slot {
        Slot(self.first.0 + self.values.len() as u64 - 1)
    }

    fn index(&self, slot: Slot) -> Option<usize> {
        slot.0.checked_sub(self.first.0).and_then(|index| usize::try_from(index).ok())
    }

    /// The value at a slot, if it is held.
    pub fn get(&self, slot: Slot) -> Option<&T> {
        self.values.get(self.index(slot)?)
    }

    /// The value at a slot, which is created if it is not held yet.
    ///
    /// # Panics
    /// If the slot is before the first one.
    pub fn entry(&mut self, slot: Slot) -> &mut T {
        let index = self.index(slot).expect("the slot was not dropped yet");
        while index >= self.values.len() {
            self.values.push_back(T::default());
        }
        &mut self.values[index]
    }

    /// The values of the slots from `first` through `last` that are held.
    pub fn range_mut(&mut self, first: Slot, last: Slot) -> impl Iterator<Item = &mut T> {
        let first = self.index(first.max(self.first)).unwrap_or(0).min(self.values.len());
        let end = self.index(last.min(self.last()).next()).unwrap_or(0).clamp(first, self.values.len());
        self.values.range_mut(first..end)
    }

    /// Adds the value of the slot after the last one.
    pub fn push(&mut self, value: T) {
        self.values.push_back(value);
    }

    /// The first value, if one is held.
    pub fn front(&self) -> Option<&T> {
        self.values.front()
    }

    /// Takes the first value out.
    pub fn pop_front(&mut self) -> Option<T> {
        let value = self.values.pop_front()?;
        self.first = self.first.next();
        Some(value)
    }

    /// Drops everything before `first`, which becomes the first slot.
    pub fn advance_to(&mut self, first: Slot) {
        while self.first < first && self.pop_front().is_some() {}
        self.first = self.first.max(first);
    }

    /// The held slots and their values, in order.
    pub fn iter(&self) -> impl Iterator<Item = (Slot, &T)> {
        (self.first.0..).map(Slot).zip(&self.values)
    }

    /// The held slots and their values, in order.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (Slot, &mut T)> {
        (self.first.0..).map(Slot).zip(&mut self.values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_keep_their_numbers_when_the_front_goes() {
        let mut slots = Slots::new(Slot(5));
        *slots.entry(Slot(7)) = 'c';
        *slots.entry(Slot(5)) = 'a';
        assert_eq!((slots.first(), slots.last()), (Slot(5), Slot(7)));
        assert_eq!(slots.get(Slot(6)), Some(&'\0'));
        let mut range =
            |first, last| slots.range_mut(Slot(first), Slot(last)).map(|value| *value).collect::<String>();
        assert_eq!([range(1, 5), range(6, 9), range(8, 9), range(7, u64::MAX)], ["a", "\0c", "", "c"]);
        assert_eq!(slots.pop_front(), Some('a'));
        assert_eq!(slots.get(Slot(5)), None);
        assert_eq!(slots.get(Slot(7)), Some(&'c'));
        slots.advance_to(Slot(20));
        assert_eq!((slots.first(), slots.last()), (Slot(20), Slot(19)));
        assert_eq!(slots.get(Slot(7)), None);
        slots.push('d');
        assert_eq!((slots.get(Slot(20)), slots.last()), (Some(&'d'), Slot(20)));
    }
}

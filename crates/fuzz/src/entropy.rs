//! Reads choices out of bytes, for targets whose input is a sequence of steps and no encoding.

/// Choices out of the bytes of an input. When the bytes end, every choice is the first one.
#[derive(Debug)]
pub(crate) struct Entropy<'a>(&'a [u8]);

impl<'a> Entropy<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Entropy<'a> {
        Entropy(bytes)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    /// A number below `end`, which is at most 256.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        usize::from(self.byte()) % end
    }

    pub(crate) fn flag(&mut self) -> bool {
        self.byte() & 1 == 1
    }

    /// One of these.
    pub(crate) fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len())]
    }

    /// At most `most` of the next bytes.
    pub(crate) fn slice(&mut self, most: usize) -> &'a [u8] {
        let len = usize::from(self.byte()) % (most + 1);
        self.take(len)
    }

    /// This many of the next bytes, or as many as there are.
    pub(crate) fn take(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// What is left.
    pub(crate) fn rest(&mut self) -> &'a [u8] {
        self.take(usize::MAX)
    }

    /// A small number, one of those at the ends of the range, or any.
    pub(crate) fn number(&mut self) -> i64 {
        match self.byte() {
            kind @ 0..200 => i64::from(kind) % 20,
            200..210 => -1,
            210..220 => i64::MAX,
            220..230 => i64::MIN,
            _ => {
                let mut bytes = [0; 8];
                let taken = self.take(8);
                bytes[..taken.len()].copy_from_slice(taken);
                i64::from_le_bytes(bytes)
            }
        }
    }
}

//! Batches of consecutive slots: what leaves together.

use std::sync::Arc;

use synod_wire::{Batch, DecodeError, Reader, Slot, Writer};

/// Batches of consecutive slots. Shared: the log and all followers are given the same ones.
pub type Batches = Arc<[Batch]>;

/// Bytes that a batch takes in a message beside its own.
const BATCH_HEADER_BYTES: usize = 8;

/// The last of the slots that these fill from `first` on; the one before `first` if there are none.
pub(crate) fn last_of<T>(first: Slot, values: &[T]) -> Slot {
    Slot(first.0.saturating_add(values.len() as u64).saturating_sub(1))
}

/// How many of these, from the first on, fit a message of so many bytes; at least one, if there is one.
pub(crate) fn fitting<'a>(batches: impl Iterator<Item = &'a Batch>, bytes_max: usize) -> usize {
    let mut bytes = 0;
    let fits = |batch: &&Batch| {
        let fits = bytes == 0 || bytes + batch.bytes().len() <= bytes_max;
        bytes += batch.bytes().len() + BATCH_HEADER_BYTES;
        fits
    };
    batches.take_while(fits).count()
}

pub(crate) fn write_batches(writer: &mut Writer, batches: &[Batch]) {
    writer.u32(u32::try_from(batches.len()).expect("a message is small"));
    batches.iter().for_each(|batch| writer.batch(batch));
}

pub(crate) fn read_batches(reader: &mut Reader) -> Result<Batches, DecodeError> {
    let count = reader.u32("batch count")?;
    // Not reserved up front: the count is not to be believed before the batches are there.
    let mut batches = Vec::new();
    for _ in 0..count {
        batches.push(reader.batch("batch")?);
    }
    Ok(batches.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use synod_wire::{BatchBuilder, SessionId};

    #[test]
    fn what_leaves_together_is_bounded_and_something_always_leaves() {
        let mut builder = BatchBuilder::new();
        builder.push(SessionId(1), 1, 1, &[0; 71]);
        let batches = vec![builder.finish(); 5];
        assert_eq!(batches[0].bytes().len(), 100);
        let fitting = |bytes_max| fitting(batches.iter(), bytes_max);
        assert_eq!([1, 207, 208, 1 << 20].map(fitting), [1, 1, 2, 5]);
        assert_eq!(super::fitting([].iter(), 1), 0);
        assert_eq!((last_of(Slot(3), &batches), last_of(Slot(3), &batches[..0])), (Slot(7), Slot(2)));
    }
}

//! Batches of consecutive slots, which are sent together.

use std::sync::Arc;

use synod_wire::{Batch, DecodeError, Reader, Slot, Writer};

/// Batches of consecutive slots. They are shared: the log and the messages to all followers hold the same ones.
pub type Batches = Arc<[Batch]>;

/// Bytes that a batch takes in a message besides its own.
const BATCH_HEADER_BYTES: usize = 8;

/// The last of the slots that these values fill from `first` on; the slot before `first` if there are none.
pub(crate) fn last_of<T>(first: Slot, values: &[T]) -> Slot {
    Slot(first.0.saturating_add(values.len() as u64).saturating_sub(1))
}

/// Shows batches with their slots, the first of which is `first`.
pub(crate) fn see_run(first: Slot, batches: &[Batch], see: &mut dyn FnMut(Slot, &Batch)) {
    (first.0..).map(Slot).zip(batches).for_each(|(slot, batch)| see(slot, batch));
}

/// These values with others in the place of those for which `other` returns one; `None` if there are none.
pub(crate) fn with_others<T: Clone>(
    values: &[T],
    mut other: impl FnMut(&T) -> Option<T>,
) -> Option<Arc<[T]>> {
    let (at, first) = values.iter().enumerate().find_map(|(at, value)| Some((at, other(value)?)))?;
    let after = values[at + 1..].iter().map(|value| other(value).unwrap_or_else(|| value.clone()));
    Some(values[..at].iter().cloned().chain([first]).chain(after).collect())
}

/// How many of these batches, from the first on, fit a message of this many bytes; at least one, if there is one.
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
    // No space is reserved for the count, which is not to be believed before the batches are there.
    let mut batches = Vec::new();
    for _ in 0..count {
        batches.push(reader.batch("batch")?);
    }
    Ok(batches.into())
}

/// Batches of consecutive slots from `first` on, as a record holds them: at least one, and none after the last slot
/// that there can be.
pub(crate) fn check_run(first: Slot, batches: &[Batch]) -> Result<(), DecodeError> {
    let count = batches.len() as u64;
    if count == 0 {
        return Err(DecodeError::Undefined { field: "batch count", value: 0 });
    }
    if first.0.checked_add(count).is_none() {
        return Err(DecodeError::Undefined { field: "first", value: first.0 });
    }
    Ok(())
}

/// There is no slot 0, and the slot after one that is named can be named as well.
pub(crate) fn is_slot(slot: Slot) -> Result<(), DecodeError> {
    if slot > Slot::ZERO { is_prefix(slot) } else { Err(DecodeError::Undefined { field: "slot", value: 0 }) }
}

/// The end of a prefix, which may be empty.
pub(crate) fn is_prefix(through: Slot) -> Result<(), DecodeError> {
    if through < Slot(u64::MAX) {
        Ok(())
    } else {
        Err(DecodeError::Undefined { field: "slot", value: through.0 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use synod_wire::{BatchBuilder, SessionId};

    #[test]
    fn runs_that_no_encoder_writes_are_refused() {
        let read = |first: u64, count: usize| {
            let mut writer = Writer::new();
            write_batches(&mut writer, &vec![Batch::noop(); count]);
            let run = read_batches(&mut Reader::new(writer.finish().to_bytes()))?;
            check_run(Slot(first), &run).map(|()| run.len())
        };
        assert_eq!(read(u64::MAX - 2, 2), Ok(2));
        assert!(read(u64::MAX - 1, 2).is_err(), "the slot after it could not be named");
        assert!(read(1, 0).is_err());
    }

    /// The bound of the messages of MultiPaxos and Sequence Paxos that hold batches.
    #[test]
    fn a_page_in_a_message_has_the_bytes_that_it_may_have() {
        let batch = |len: usize| {
            let mut builder = BatchBuilder::new();
            builder.push(SessionId(1), 1, 1, &vec![0; len]);
            builder.finish()
        };
        let mixed = [5_000, 0, 900, 30, 0, 70, 1_000, 2];
        let lists = [vec![Batch::noop(); 3_000], mixed.map(batch).to_vec(), vec![batch(1); 500]];
        for (list, page_max) in lists.iter().flat_map(|list| [1, 300, 1_000, 70_000].map(|max| (list, max))) {
            let largest = list.iter().map(|batch| batch.bytes().len()).max().unwrap_or(0);
            for from in 0..list.len() {
                let page = &list[from..from + fitting(list[from..].iter(), page_max)];
                let mut writer = Writer::new();
                write_batches(&mut writer, page);
                let (len, max) = (writer.finish().len(), page_max.max(largest) + 4 + BATCH_HEADER_BYTES);
                assert!(len <= max, "{len} bytes of {} batches, {max} allowed", page.len());
            }
        }
    }

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

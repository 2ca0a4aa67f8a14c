//! Which batches a replica holds, as it tells others.

use synod_wire::{BatchId, DecodeError, Reader, Writer};

/// The most batches that a message speaks of: more than the windows of all replicas of a group hold.
pub(super) const IDS_MAX: u64 = 1 << 16;

/// Batches of one origin with consecutive numbers (Santos 2012, section 10.3.3: only the bounds are sent).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The first batch.
    pub first: BatchId,
    /// The number of the last batch, which is not below that of the first.
    pub last: u64,
}

/// The batches of which a message speaks, as the fewest possible runs in ascending order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holdings(Vec<Run>);

impl Holdings {
    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The runs.
    #[must_use]
    pub fn runs(&self) -> &[Run] {
        &self.0
    }

    /// The batches, in ascending order.
    pub fn ids(&self) -> impl Iterator<Item = BatchId> + '_ {
        self.0.iter().flat_map(|run| {
            (run.first.number..=run.last).map(|number| BatchId { number, origin: run.first.origin })
        })
    }

    /// Writes them.
    pub fn encode(&self, writer: &mut Writer) {
        writer.u32(u32::try_from(self.0.len()).expect("a window is small"));
        for run in &self.0 {
            writer.session(run.first.origin);
            writer.u64(run.first.number);
            writer.u64(run.last);
        }
    }

    /// Reads what [`Holdings::encode`] wrote.
    ///
    /// # Errors
    /// If the bytes say nothing of that kind, or speak of more batches than any replica holds.
    pub fn decode(reader: &mut Reader) -> Result<Holdings, DecodeError> {
        let (mut runs, mut ids) = (Vec::new(), 0_u64);
        for _ in 0..reader.u32("runs of batches")? {
            let origin = reader.session("origin of batches")?;
            let (number, last) = (reader.u64("first batch")?, reader.u64("last batch")?);
            let more = last.checked_sub(number).and_then(|more| more.checked_add(1));
            ids = more
                .and_then(|more| ids.checked_add(more))
                .filter(|&ids| ids <= IDS_MAX)
                .ok_or(DecodeError::Undefined { field: "last batch", value: last })?;
            runs.push(Run { first: BatchId { origin, number }, last });
        }
        Ok(Holdings(runs))
    }
}

impl FromIterator<BatchId> for Holdings {
    /// Of batches in ascending order.
    fn from_iter<T: IntoIterator<Item = BatchId>>(ids: T) -> Holdings {
        let mut runs: Vec<Run> = Vec::new();
        for id in ids {
            match runs.last_mut() {
                Some(run) if run.first.origin == id.origin && run.last.checked_add(1) == Some(id.number) => {
                    run.last = id.number;
                }
                _ => runs.push(Run { first: id, last: id.number }),
            }
        }
        Holdings(runs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use synod_wire::SessionId;

    fn id(origin: u64, number: u64) -> BatchId {
        BatchId { origin: SessionId(origin), number }
    }

    fn decode(runs: &[(u64, u64, u64)]) -> Result<Holdings, DecodeError> {
        let run = |&(origin, number, last)| Run { first: id(origin, number), last };
        let mut writer = Writer::new();
        Holdings(runs.iter().map(run).collect()).encode(&mut writer);
        Holdings::decode(&mut Reader::new(writer.finish().to_bytes()))
    }

    #[test]
    fn consecutive_numbers_take_one_run() {
        let ids = [id(1, 1), id(1, 2), id(1, 3), id(1, 7), id(2, 8)];
        let holdings: Holdings = ids.into_iter().collect();
        assert_eq!(holdings.runs().len(), 3);
        assert!(holdings.ids().eq(ids));
        assert_eq!(decode(&[(1, 1, 3), (1, 7, 7), (2, 8, 8)]), Ok(holdings));
    }

    #[test]
    fn more_than_anybody_holds_is_refused() {
        assert!(decode(&[(1, 1, IDS_MAX)]).is_ok());
        assert!(decode(&[(1, 1, IDS_MAX), (2, 1, 1)]).is_err());
        assert!(decode(&[(1, 0, u64::MAX)]).is_err());
        assert!(decode(&[(1, 5, 4)]).is_err());
    }
}

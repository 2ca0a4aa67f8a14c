//! Random histories against a model that is a list.

use std::collections::BTreeMap;

use proptest::{collection::vec, prelude::*};

use super::*;
use crate::wal::format::{PAGE, SegmentHeader};

#[derive(Clone, Debug)]
enum Step {
    State {
        group: u16,
        key: u8,
        len: usize,
    },
    Slot {
        group: u16,
        ahead: u64,
        len: usize,
    },
    Commit,
    /// The log is trimmed through the slot this many slots below the highest.
    Trim {
        group: u16,
        behind: u64,
    },
    /// The process ends; what was appended is lost.
    Kill,
    Close,
    /// The power fails during the commit of everything appended: a section of what it wrote last, and to one
    /// segment, stays as it was before.
    PowerFailure {
        from: f64,
        share: f64,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let len = prop_oneof![4 => 0..300usize, 2 => 300..4000usize, 1 => 4000..40_000usize];
    prop_oneof![
        3 => (0..3u16, 0..3u8, prop_oneof![3 => 0..60usize, 1 => 60..1024usize])
            .prop_map(|(group, key, len)| Step::State { group, key, len }),
        12 => (0..3u16, 0..3u64, len).prop_map(|(group, ahead, len)| Step::Slot { group, ahead, len }),
        8 => Just(Step::Commit),
        4 => (0..3u16, 0..20u64).prop_map(|(group, behind)| Step::Trim { group, behind }),
        1 => Just(Step::Kill),
        1 => Just(Step::Close),
        2 => (0.0..1.0, 0.0..1.0).prop_map(|(from, share)| Step::PowerFailure { from, share }),
    ]
}

/// The records that should be there.
#[derive(Default)]
struct Model {
    committed: BTreeMap<Lsn, RecoveredRecord>,
    pending: Vec<RecoveredRecord>,
    slot: [u64; 3],
    trimmed: [Slot; 3],
    /// Makes the contents of every record different.
    salt: u64,
}

impl Model {
    fn append(&mut self, wal: &mut Wal, group: u16, keep: Keep, len: usize) {
        self.salt += 1;
        let mut bytes = vec![self.salt as u8; len];
        bytes.extend_from_slice(&self.salt.to_le_bytes());
        self.pending.push(append_to(wal, GroupId(group), keep, &bytes));
    }

    fn commit(&mut self) {
        self.committed.extend(self.pending.drain(..).map(|record| (record.lsn, record)));
    }

    /// Compares with what was recovered after a restart that may have kept a prefix of `unsure`.
    fn check(&mut self, recovered: &Recovered, unsure: &[RecoveredRecord]) -> Result<(), TestCaseError> {
        prop_assert_eq!(&recovered.damage, &None);
        prop_assert_eq!(&recovered.loss, &None);
        let acknowledged = self.committed.keys().next_back().copied().unwrap_or(Lsn::ZERO);
        prop_assert!(recovered.last >= acknowledged);
        let kept = (recovered.last.0 - acknowledged.0) as usize;
        prop_assert!(kept <= unsure.len());
        self.committed.extend(unsure[..kept].iter().map(|record| (record.lsn, record.clone())));

        let mut previous = Lsn::ZERO;
        for record in &recovered.records {
            prop_assert!(record.lsn > previous, "each once and in order");
            previous = record.lsn;
            prop_assert_eq!(Some(record), self.committed.get(&record.lsn));
        }
        let there: BTreeMap<Lsn, _> = recovered.records.iter().map(|record| (record.lsn, record)).collect();
        for record in self.committed.values() {
            let needed = match record.keep {
                Keep::Slot(slot) => slot > self.trimmed[usize::from(record.group.0)],
                Keep::State(key) => {
                    let same = |r: &RecoveredRecord| r.group == record.group && r.keep == Keep::State(key);
                    !self.committed.range(record.lsn.next()..).any(|(_, later)| same(later))
                }
            };
            prop_assert!(!needed || there.contains_key(&record.lsn), "record {} is missing", record.lsn);
        }
        Ok(())
    }
}

fn run(steps: Vec<Step>, recycled_segments_max: usize) -> Result<(), TestCaseError> {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { recycled_segments_max, ..options() };
    let open = || Wal::open_on(Arc::new(TestDisk::default()), dir.path(), IDENTITY, options.clone()).unwrap();
    let mut model = Model::default();
    let mut wal = open().0;
    for step in steps {
        match step {
            Step::State { group, key, len } => model.append(&mut wal, group, Keep::State(key), len),
            Step::Slot { group, ahead, len } => {
                let last = &mut model.slot[usize::from(group)];
                *last += ahead;
                let keep = slot(*last);
                model.append(&mut wal, group, keep, len);
            }
            Step::Commit => {
                wal.commit().unwrap();
                model.commit();
            }
            Step::Trim { group, behind } => {
                // A correct replica only trims what was committed.
                wal.commit().unwrap();
                model.commit();
                let of = usize::from(group);
                model.trimmed[of] = model.trimmed[of].max(Slot(model.slot[of].saturating_sub(behind)));
                wal.trim_of(GroupId(group), model.trimmed[of]).unwrap();
                // New records must not be of slots that are trimmed.
                model.slot[of] = model.slot[of].max(model.trimmed[of].0) + 1;
            }
            Step::Kill => {
                model.pending.clear();
                drop(wal);
                let recovered;
                (wal, recovered) = open();
                model.check(&recovered, &[])?;
                prop_assert_eq!(recovered.torn_bytes_cut, 0);
            }
            Step::Close => {
                model.commit();
                wal.close().unwrap();
                let recovered;
                (wal, recovered) = open();
                model.check(&recovered, &[])?;
            }
            Step::PowerFailure { from, share } => {
                let before = tail(&wal);
                let old = std::fs::read(&before.0).unwrap();
                wal.commit().unwrap();
                let after = tail(&wal);
                drop(wal);
                let (written_from, old, first) = if after.0 == before.0 {
                    (before.1, old, Lsn::ZERO)
                } else {
                    // What was written to earlier segments was durable when this one began.
                    let bytes = std::fs::read(&after.0).unwrap();
                    (0, Vec::new(), SegmentHeader::decode(&bytes[..PAGE]).unwrap().first_lsn)
                };
                let start = written_from + ((after.1 - written_from) as f64 * from) as usize;
                let end = start + ((after.1 - start) as f64 * share).ceil() as usize;
                change(&after.0, |bytes| {
                    // A file that grew has no old contents there.
                    let old = old.iter().copied().chain(std::iter::repeat(0)).skip(start);
                    bytes[start..end].iter_mut().zip(old).for_each(|(byte, old)| *byte = old);
                });
                let mut durable = std::mem::take(&mut model.pending);
                let unsure = durable.split_off(durable.partition_point(|record| record.lsn < first));
                model.pending = durable;
                model.commit();
                let recovered;
                (wal, recovered) = open();
                model.check(&recovered, &unsure)?;
            }
        }
    }
    Ok(())
}

/// The active segment's file, and where it ends.
fn tail(wal: &Wal) -> (PathBuf, usize) {
    let active = &wal.files.as_ref().unwrap().active;
    (active.path.clone(), active.end as usize)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 120, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_log_is_a_list(steps in vec(step(), 1..120), recycled in 0..3usize) {
        run(steps, recycled)?;
    }
}

//! What a machine keeps: one log for all groups, and the snapshot files of each.
//!
//! A sync makes durable what was written before it began, of whichever group. A crash keeps that and any prefix of the
//! rest, in the order in which all groups wrote.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use fastrand::Rng;
use synod_replica::LogRecord;
use synod_wire::{GroupId, Keep, Lsn, Slot};

/// A record of a group in the common log.
#[derive(Clone, Debug)]
struct Stored {
    /// Its number in the common log.
    number: u64,
    group: GroupId,
    lsn: Lsn,
    keep: Keep,
    bytes: Bytes,
}

/// The disk of a machine; it outlives its lives.
#[derive(Debug)]
pub(super) struct Disk {
    log: VecDeque<Stored>,
    written: u64,
    durable: u64,
    syncing: Option<u64>,
    /// For each group the number of its last record, and of the last that is durable.
    last: Vec<Lsn>,
    last_durable: Vec<Lsn>,
    /// The log may forget slots of a group once this record of the common log is durable.
    trims: VecDeque<(u64, GroupId, Slot)>,
    /// For each group the slot through which the log has forgotten slots.
    trimmed: Vec<Slot>,
    /// Complete files, by the group and the slot that name them.
    files: BTreeMap<(GroupId, Slot), Bytes>,
}

impl Disk {
    pub fn new(groups: usize) -> Disk {
        Disk {
            log: VecDeque::new(),
            written: 0,
            durable: 0,
            syncing: None,
            last: vec![Lsn::ZERO; groups],
            last_durable: vec![Lsn::ZERO; groups],
            trims: VecDeque::new(),
            trimmed: vec![Slot::ZERO; groups],
            files: BTreeMap::new(),
        }
    }

    pub fn append(&mut self, group: GroupId, lsn: Lsn, record: &LogRecord) {
        let last = &mut self.last[usize::from(group.0)];
        assert_eq!(lsn, last.next(), "a group numbers its records without gaps");
        *last = lsn;
        self.written += 1;
        let (number, keep, bytes) = (self.written, record.keep(), record.encode().to_bytes());
        self.log.push_back(Stored { number, group, lsn, keep, bytes });
    }

    /// Begins a sync of everything written so far, unless one is under way or there is nothing to do.
    pub fn begin_sync(&mut self) -> bool {
        let begins = self.syncing.is_none() && self.durable < self.written;
        if begins {
            self.syncing = Some(self.written);
        }
        begins
    }

    /// Ends the sync in progress; the groups of which something became durable, and how far they are now.
    pub fn end_sync(&mut self) -> Vec<(GroupId, Lsn)> {
        let Some(through) = self.syncing.take() else { return Vec::new() };
        let before = self.last_durable.clone();
        for stored in
            self.log.iter().filter(|stored| self.durable < stored.number && stored.number <= through)
        {
            self.last_durable[usize::from(stored.group.0)] = stored.lsn;
        }
        self.durable = through;
        while let Some(&(number, group, slot)) = self.trims.front()
            && number <= through
        {
            self.trims.pop_front();
            self.forget(group, slot);
        }
        let groups = (0u16..).map(GroupId).zip(before).zip(&self.last_durable);
        groups.filter(|((_, before), now)| before < now).map(|((group, _), now)| (group, *now)).collect()
    }

    /// The log may forget slots of a group through this one, once what was written so far is durable.
    pub fn trim(&mut self, group: GroupId, through: Slot) {
        if self.durable < self.written {
            self.trims.push_back((self.written, group, through));
        } else {
            self.forget(group, through);
        }
    }

    fn forget(&mut self, group: GroupId, through: Slot) {
        let trimmed = &mut self.trimmed[usize::from(group.0)];
        *trimmed = through.max(*trimmed);
        let (durable, mut seen) = (self.durable, [false; 256]);
        let mut kept = VecDeque::new();
        // From the end, so that the newest record of a state comes first.
        for stored in std::mem::take(&mut self.log).into_iter().rev() {
            let needed = stored.group != group
                || match stored.keep {
                    Keep::Slot(slot) => slot > through,
                    Keep::State(key) => {
                        !std::mem::replace(&mut seen[usize::from(key)], stored.number <= durable)
                    }
                };
            if needed || stored.number > durable {
                kept.push_front(stored);
            }
        }
        self.log = kept;
    }

    /// The log of a group has forgotten slots through this one.
    pub fn trimmed(&self, group: GroupId) -> Slot {
        self.trimmed[usize::from(group.0)]
    }

    /// The process ends. What is durable stays, and some prefix of the rest.
    pub fn crash(&mut self, rng: &mut Rng) {
        let end = rng.u64(self.durable..=self.written);
        self.log.retain(|stored| stored.number <= end);
        self.last.clone_from(&self.last_durable);
        for stored in self.log.iter().filter(|stored| stored.number > self.durable) {
            self.last[usize::from(stored.group.0)] = stored.lsn;
        }
        self.last_durable.clone_from(&self.last);
        (self.written, self.durable, self.syncing) = (end, end, None);
        self.trims.clear();
    }

    /// What a group finds in the log, and the number of its last record.
    pub fn records(&self, group: GroupId) -> (Vec<LogRecord>, Lsn) {
        let of = self.log.iter().filter(|stored| stored.group == group);
        let records = of.map(|stored| LogRecord::decode(stored.bytes.clone()).expect("it was encoded here"));
        (records.collect(), self.last[usize::from(group.0)])
    }

    pub fn write_file(&mut self, name: (GroupId, Slot), bytes: Bytes) {
        self.files.insert(name, bytes);
    }

    pub fn file(&self, group: GroupId, slot: Slot) -> Option<&Bytes> {
        self.files.get(&(group, slot))
    }

    /// The names of all files.
    pub fn names(&self) -> impl Iterator<Item = (GroupId, Slot)> + '_ {
        self.files.keys().copied()
    }

    /// Deletes all files but those of these names.
    pub fn retain(&mut self, kept: impl Fn(GroupId, Slot) -> bool) {
        self.files.retain(|&(group, slot), _| kept(group, slot));
    }
}

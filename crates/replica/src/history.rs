//! Whether replicas have decided the same: a fingerprint of the decided prefix, compared between every two of them.
//!
//! Replicas that follow the protocol decide the same, and need nothing of this. It is for what no protocol
//! survives: promises that were forgotten without notice, such as those of a data directory that was restored
//! from a copy while no replica was there that could notice. `docs/identity.md` says what is compared, what a
//! replica does about a difference, and what cannot be noticed.
//!
//! The fingerprint of a prefix is a sum over its slots, each with its number and what was decided in it, so
//! all replicas have the same one at the same slot, whatever messages, snapshots and restarts brought them
//! there. Fingerprints are kept for all of the last [`DENSE`] slots, for the even ones among twice as many,
//! for those that 4 divides among four times as many, and so on; so of two replicas the one that is ahead
//! finds a slot that both know. Nothing that a replica with another fingerprint says counts here any more;
//! and a replica that no quorum of voters may still agree with must stop ([`Fork::alone`]).
//!
//! A log does not say how far it was decided, so a replica keeps a note of that beside it, with some
//! fingerprints ([`Replica::reached`]). The next life tells them to its peers as if it had come that far, and
//! stops if it comes there another way ([`Replica::remember`]).

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use synod_consensus::Bug;
use synod_wire::{Batch, DecodeError, Delivered, Lsn, Reader, ReplicaId, Slot, Time, Writer};

use crate::{Action, PeerMessage, Place, Replica};

/// How many of the newest slots keep all their fingerprints; a power of two.
const DENSE: u64 = 4096;
/// The same in a snapshot, which is sent from replica to replica.
const DENSE_IN_SNAPSHOT: u64 = 128;
/// The same in the note for the next life, which is written every few seconds.
const DENSE_IN_NOTE: u64 = 32;
/// The most fingerprints that are told at a time.
const TOLD_MAX: usize = 24;

/// The fingerprint of everything that was decided through a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The slot.
    pub slot: Slot,
    /// The sum over all slots through it.
    pub fingerprint: u64,
}

/// What was decided through a slot, as fingerprints, and the names of the batches that were decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct History {
    /// The sums do not contain what was decided through this slot: [`Slot::ZERO`], unless the replica began
    /// with a snapshot of a version without fingerprints.
    since: Slot,
    end: Mark,
    marks: Marks,
    /// The names of these batches. A note of an earlier life does not contain them.
    delivered: Arc<Delivered>,
    /// Where the group is in the order that it has in common with others, if there is one.
    place: Option<Place>,
}

/// The fingerprints that are kept, as [`History::push`] says: one queue for the odd slots, one for those that 2 divides
/// but not 4, and so on. A queue holds its slots in order, so a new one is put at its end and an old one taken from its
/// beginning, whatever there is besides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Marks(Vec<VecDeque<Mark>>);

/// Two replicas that decided different things.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fork {
    /// The replica from which this one differs: itself, if an earlier life of it knew something else.
    pub with: ReplicaId,
    /// They agree through this slot at least.
    pub agreed: Slot,
    /// They differ in this slot, or in one after `agreed` and before it.
    pub slot: Slot,
    /// The fingerprint of this replica there.
    pub ours: u64,
    /// The fingerprint of the other replica there.
    pub theirs: u64,
    /// Whether the voters that may agree with this replica, including itself, are no quorum: then it must stop.
    pub alone: bool,
}

/// The replicas from which this one differs, and what is needed to find them.
#[derive(Debug)]
pub(crate) struct Forks {
    told_at: Time,
    found: BTreeMap<ReplicaId, Fork>,
    /// What an earlier life knew to be decided, until this one has come as far.
    earlier: Option<History>,
}

impl Forks {
    pub(crate) fn new(now: Time) -> Forks {
        Forks { told_at: now, found: BTreeMap::new(), earlier: None }
    }
}

/// How many slots there must be after this one before its fingerprint is dropped, if the newest `dense` slots
/// keep all theirs.
fn span(slot: Slot, dense: u64) -> u64 {
    // Every power of two divides slot 0, with which a note may begin.
    dense.saturating_mul(1_u64.checked_shl(slot.0.trailing_zeros()).unwrap_or(u64::MAX))
}

/// What a slot adds to the sum: its number and the checksum and length of the batch, mixed so that each bit of them
/// changes half of the bits of the result (the finaliser of SplitMix64).
fn fingerprint(slot: Slot, batch: &Batch) -> u64 {
    let content = u64::from(batch.crc()) << 32 | batch.bytes().len() as u64 & 0xffff_ffff;
    let mix = |mut word: u64| {
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ word >> 31
    };
    mix(mix(slot.0.wrapping_mul(0x9e37_79b9_7f4a_7c15)) ^ content)
}

impl Marks {
    /// Adds the fingerprint of a slot after all others.
    fn push(&mut self, mark: Mark) {
        let power = mark.slot.0.trailing_zeros() as usize;
        if self.0.len() <= power {
            self.0.resize_with(power + 1, VecDeque::new);
        }
        let queue = &mut self.0[power];
        if queue.front().is_some_and(|first| mark.slot.0 - first.slot.0 >= span(mark.slot, DENSE)) {
            queue.pop_front();
        }
        queue.push_back(mark);
    }

    /// Those of a snapshot or a note, in any order.
    fn read(mut marks: Vec<Mark>) -> Marks {
        marks.sort_unstable_by_key(|mark| mark.slot);
        marks.dedup_by_key(|mark| mark.slot);
        let mut kept = Marks::default();
        marks.into_iter().for_each(|mark| kept.push(mark));
        kept
    }

    fn at(&self, slot: Slot) -> Option<u64> {
        let queue = self.0.get(slot.0.trailing_zeros() as usize)?;
        let index = queue.binary_search_by_key(&slot, |mark| mark.slot).ok()?;
        Some(queue[index].fingerprint)
    }

    /// The newest one of a slot not after this one.
    fn last_through(&self, slot: Slot) -> Option<Mark> {
        let last = |queue: &VecDeque<Mark>| {
            let after = queue.partition_point(|mark| mark.slot <= slot);
            after.checked_sub(1).map(|last| queue[last])
        };
        self.0.iter().filter_map(last).max_by_key(|mark| mark.slot)
    }

    fn iter(&self) -> impl Iterator<Item = &Mark> {
        self.0.iter().flatten()
    }
}

impl History {
    /// The history of a log in which nothing was decided yet.
    #[must_use]
    pub fn beginning() -> History {
        History::unknown(Slot::ZERO)
    }

    /// The same for a group that is merged with others.
    #[must_use]
    pub fn merged() -> History {
        History { place: Some(Place::default()), ..History::beginning() }
    }

    /// A history that knows nothing of what was decided through `slot`.
    #[must_use]
    pub fn unknown(slot: Slot) -> History {
        let end = Mark { slot, fingerprint: 0 };
        History { since: slot, end, marks: Marks::default(), delivered: Arc::default(), place: None }
    }

    /// The contents of a note: its sums begin after `since`, and these are some of them, including the
    /// newest. `None` if there are none.
    #[must_use]
    pub fn noted(since: Slot, marks: impl IntoIterator<Item = Mark>) -> Option<History> {
        let marks = Marks::read(marks.into_iter().collect());
        let end = marks.last_through(Slot(u64::MAX))?;
        Some(History { since, end, marks, delivered: Arc::default(), place: None })
    }

    /// The fingerprints do not contain what was decided through this slot.
    #[must_use]
    pub fn since(&self) -> Slot {
        self.since
    }

    /// The names of the decided batches.
    #[must_use]
    pub fn delivered(&self) -> &Arc<Delivered> {
        &self.delivered
    }

    /// Where the group is in the order that it has in common with others, if there is one.
    #[must_use]
    pub fn place(&self) -> Option<Place> {
        self.place
    }

    /// Plants [`crate::MergeBug::ForgetPlace`].
    pub(crate) fn forget_place(&mut self) {
        self.place = self.place.map(|_| Place::default());
    }

    /// The newest fingerprint.
    #[must_use]
    pub fn end(&self) -> Mark {
        self.end
    }

    /// The fingerprints that a note holds, of the oldest slot first: some hundred at most.
    pub fn to_note(&self) -> impl Iterator<Item = Mark> {
        let before = self.thinned(DENSE_IN_NOTE).into_iter().filter(|mark| mark.slot < self.end.slot);
        before.chain(std::iter::once(self.end))
    }

    /// The fingerprints that would be kept, as [`History::push`] says, if the newest `dense` slots kept all theirs, of
    /// the oldest slot first.
    fn thinned(&self, dense: u64) -> Vec<Mark> {
        let end = self.end.slot.0;
        let kept = self.marks.iter().filter(|mark| end - mark.slot.0 < span(mark.slot, dense));
        let mut kept: Vec<Mark> = kept.copied().collect();
        kept.sort_unstable_by_key(|mark| mark.slot);
        kept
    }

    /// Records that the next slot is decided. The fingerprint of a slot that 2^k divides, but not 2^(k+1),
    /// is dropped when there are `DENSE` * 2^k slots after it. Among these is one slot of the same kind per
    /// slot that is dropped.
    ///
    /// # Panics
    /// If a slot was left out.
    pub fn push(&mut self, slot: Slot, batch: &Batch) {
        assert_eq!(slot, self.end.slot.next(), "slots are decided in order");
        let sum = self.end.fingerprint.wrapping_add(fingerprint(slot, batch));
        self.end = Mark { slot, fingerprint: sum };
        self.marks.push(self.end);
        Arc::make_mut(&mut self.delivered).deliver(batch);
        self.place = self.place.map(|place| place.after(batch));
    }

    fn at(&self, slot: Slot) -> Option<u64> {
        if slot == self.end.slot { Some(self.end.fingerprint) } else { self.marks.at(slot) }
    }

    /// The newest fingerprint, and those at ever rounder slots before it: some of them are kept by a replica that is
    /// ahead, however far.
    fn told(&self) -> Vec<Mark> {
        let rounder = |slot: &Slot| Some(Slot(slot.0 & (slot.0 - 1))).filter(|slot| slot.0 > 0);
        let slots = std::iter::successors(Some(self.end.slot).filter(|slot| slot.0 > 0), rounder);
        let marks = slots.map_while(|slot| Some(Mark { slot, fingerprint: self.at(slot)? }));
        marks.take(TOLD_MAX).collect()
    }

    /// Takes over from a peer what is unknown here: of two replicas whose sums begin at different slots, the
    /// one that begins later believes the other, at the first slot that both know.
    fn take_over(&mut self, since: Slot, marks: &[Mark]) {
        if since >= self.since {
            return;
        }
        let known = marks.iter().find_map(|mark| Some((mark.fingerprint, self.at(mark.slot)?)));
        let Some((theirs, ours)) = known else { return };
        let lacks = theirs.wrapping_sub(ours);
        self.since = since;
        self.end.fingerprint = self.end.fingerprint.wrapping_add(lacks);
        let marks = self.marks.0.iter_mut().flatten();
        marks.for_each(|mark| mark.fingerprint = mark.fingerprint.wrapping_add(lacks));
    }

    pub(crate) fn encode(&self, writer: &mut Writer) {
        writer.slot(self.since);
        writer.slot(self.end.slot);
        writer.u64(self.end.fingerprint);
        let marks = self.thinned(DENSE_IN_SNAPSHOT);
        writer.u32(u32::try_from(marks.len()).expect("a few for each power of two"));
        for mark in marks {
            writer.slot(mark.slot);
            writer.u64(mark.fingerprint);
        }
        self.delivered.encode(writer);
        if let Some(Place { position, batches, last }) = self.place {
            [position, batches].into_iter().for_each(|number| writer.u64(number));
            writer.u64(last.map_or(0, |last| last + 1));
        }
    }

    /// Reads a history. `named` says that the names of batches are there as well; before there were names, no
    /// batch was named. `merged` says that a place in a common order is there.
    pub(crate) fn decode(reader: &mut Reader, named: bool, merged: bool) -> Result<History, DecodeError> {
        let since = reader.slot("since")?;
        let end = Mark { slot: reader.slot("slot")?, fingerprint: reader.u64("fingerprint")? };
        let count = reader.u32("fingerprints")?;
        let mark = |_| match (reader.slot("slot of a fingerprint")?, reader.u64("fingerprint")?) {
            (slot, fingerprint) if slot <= end.slot => Ok(Mark { slot, fingerprint }),
            (slot, _) => Err(DecodeError::Undefined { field: "slot of a fingerprint", value: slot.0 }),
        };
        let marks = Marks::read((0..count).map(mark).collect::<Result<_, DecodeError>>()?);
        let delivered = if named { Delivered::decode(reader)? } else { Delivered::default() };
        let mut place = None;
        if merged {
            let (position, batches) = (reader.u64("position")?, reader.u64("batches")?);
            place = Some(Place { position, batches, last: reader.u64("last position")?.checked_sub(1) });
        }
        Ok(History { since, end, marks, delivered: Arc::new(delivered), place })
    }
}

impl Replica {
    /// What was decided here, as fingerprints.
    #[must_use]
    pub fn history(&self) -> &History {
        &self.history
    }

    /// What this replica knows to be decided, for its next life; `None` as long as it knows less than an
    /// earlier life did, or something else.
    #[must_use]
    pub fn reached(&self) -> Option<&History> {
        self.forks.earlier.is_none().then_some(&self.history)
    }

    /// Records that an earlier life knew this to be decided. It has to be called once, right after the start.
    pub fn remember(&mut self, earlier: History, actions: &mut Vec<Action>) {
        self.forks.earlier = Some(earlier);
        self.meet_earlier_life(actions);
    }

    /// What an earlier life knew, as sums that can be compared with those of this one.
    fn earlier(&self) -> Option<&History> {
        self.forks.earlier.as_ref().filter(|earlier| earlier.since == self.history.since)
    }

    /// Compares with what an earlier life knew, as far as this one has come. A difference is never forgotten:
    /// what the next life is told must stay as it is.
    pub(crate) fn meet_earlier_life(&mut self, actions: &mut Vec<Action>) {
        let Some(earlier) = self.earlier() else {
            self.forks.earlier = None;
            return;
        };
        if self.forks.found.contains_key(&self.me) {
            return;
        }
        let reached = self.history.end.slot;
        let last = earlier.marks.last_through(reached);
        let differs = last.and_then(|Mark { slot, fingerprint: theirs }| {
            let ours = self.history.at(slot).filter(|&ours| ours != theirs)?;
            Some(Fork { with: self.me, agreed: Slot::ZERO, slot, ours, theirs, alone: true })
        });
        match differs {
            Some(fork) => {
                self.forks.found.insert(self.me, fork);
                actions.push(Action::Forked(fork));
            }
            None if reached >= earlier.end.slot => self.forks.earlier = None,
            None => {}
        }
    }

    /// The fingerprint of a slot, as this life or an earlier one knows it.
    fn fingerprint_at(&self, at: Slot) -> Option<u64> {
        self.earlier().and_then(|earlier| earlier.at(at)).or_else(|| self.history.at(at))
    }

    /// The differences from other replicas, of which nothing counts here that they say.
    pub fn forks(&self) -> impl Iterator<Item = &Fork> {
        self.forks.found.values()
    }

    /// What a snapshot says of the slots that it covers.
    pub(crate) fn of_snapshot(&self, history: History) -> History {
        if self.has(Bug::ForgetHistoryInSnapshot) {
            let History { end, delivered, place, .. } = history;
            return History { since: Slot::ZERO, delivered, place, ..History::unknown(end.slot) };
        }
        history
    }

    /// Tells every other replica the newest fingerprints, once per election time-out.
    pub(crate) fn tell_history(&mut self, now: Time, actions: &mut Vec<Action>) {
        if self.reports.is_retired() || now < self.forks.told_at + self.settings.consensus.election_timeout {
            return;
        }
        self.forks.told_at = now;
        if self.history.end.slot == Slot::ZERO {
            // A replica that has decided nothing has said so at the beginning of the session.
            return;
        }
        let others = self.group.known().map(|member| member.id).filter(|&id| id != self.me);
        actions.extend(others.map(|to| self.history_for(to)));
    }

    /// What is decided is decided, even where it is not durable here yet.
    pub(crate) fn history_for(&self, to: ReplicaId) -> Action {
        let mut marks = self.earlier().map(History::told).unwrap_or_default();
        marks.extend(self.history.told());
        if let Some(fork) = self.forks.found.get(&to)
            && let Some(fingerprint) = self.fingerprint_at(fork.slot)
        {
            // The other replica may lag, and know no other slot that is told.
            marks.push(Mark { slot: fork.slot, fingerprint });
        }
        let message = PeerMessage::History { since: self.history.since, marks };
        Action::Send { to: to.into(), message, after: Lsn::ZERO }
    }

    pub(crate) fn heard_history(
        &mut self,
        from: ReplicaId,
        since: Slot,
        marks: &[Mark],
        actions: &mut Vec<Action>,
    ) {
        self.history.take_over(since, marks);
        if since != self.history.since {
            return;
        }
        let (mut agreed, mut differs) = (Slot::ZERO, None::<(Mark, u64)>);
        for mark in marks {
            match self.fingerprint_at(mark.slot) {
                Some(ours) if ours == mark.fingerprint => agreed = agreed.max(mark.slot),
                Some(ours) if differs.is_none_or(|(first, _)| mark.slot < first.slot) => {
                    differs = Some((*mark, ours));
                }
                _ => {}
            }
        }
        let found = self.forks.found.get(&from).copied();
        let Some((Mark { slot, fingerprint: theirs }, ours)) = differs else {
            let end = marks.iter().map(|mark| mark.slot).max().unwrap_or_default();
            if found.is_some_and(|fork| end < fork.slot || agreed >= fork.slot) {
                self.forks.found.remove(&from);
                actions.push(Action::Agreed(from));
            }
            return;
        };
        let fork = found.unwrap_or(Fork { with: from, agreed, slot, ours, theirs, alone: false });
        self.forks.found.insert(from, fork);
        let voters = self.group.voters().count();
        let differing = self.group.voters().filter(|&id| self.differs(id)).count();
        let alone = voters - differing < self.group.threshold().least(voters);
        if found.is_none() {
            actions.push(self.history_for(from));
        }
        if found.is_none_or(|fork| fork.alone != alone) {
            let fork = Fork { alone, ..fork };
            self.forks.found.insert(from, fork);
            actions.push(Action::Forked(fork));
        }
    }

    /// Whether a peer has decided something else, so that nothing it says counts.
    pub(crate) fn differs(&self, from: ReplicaId) -> bool {
        self.forks.found.contains_key(&from)
    }
}

#[cfg(test)]
mod tests {
    use synod_wire::{BatchBuilder, SessionId};

    use super::*;

    fn batch(text: &str) -> Batch {
        let mut builder = BatchBuilder::new();
        builder.push(SessionId(1), 1, 1, text.as_bytes());
        builder.finish()
    }

    fn of(texts: &[&str]) -> History {
        let mut history = History::beginning();
        (1..).zip(texts).for_each(|(slot, text)| history.push(Slot(slot), &batch(text)));
        history
    }

    fn long(slots: u64) -> History {
        let mut history = History::beginning();
        (1..=slots).for_each(|slot| history.push(Slot(slot), &Batch::noop()));
        history
    }

    #[test]
    fn one_difference_stays_a_difference() {
        assert_eq!(of(&["a", "b", "c"]), of(&["a", "b", "c"]));
        assert_ne!(of(&["a", "b", "c"]).end(), of(&["a", "x", "c"]).end());
        assert_ne!(of(&["a", "b"]).end(), of(&["b", "a"]).end());
        let skewed = |slot| fingerprint(Slot(slot), &Batch::noop());
        assert_ne!(skewed(1), skewed(2));
    }

    fn written(history: &History) -> History {
        let mut writer = Writer::new();
        history.encode(&mut writer);
        let mut reader = Reader::new(writer.finish().to_bytes());
        let restored = History::decode(&mut reader, true, false).unwrap();
        reader.finish().unwrap();
        restored
    }

    /// However far one replica lags, the other knows a slot near its end, even after a restart; and what is
    /// kept stays small.
    #[test]
    fn of_two_replicas_the_one_ahead_knows_a_slot_near_the_end_of_the_other() {
        let running = long(200_000);
        for (ahead, dense) in [(&running, DENSE), (&written(&running), DENSE_IN_SNAPSHOT)] {
            let kept = ahead.marks.iter().count();
            assert!(kept < 8 * dense as usize, "{kept}");
            for behind in [1, 2, 1000, 1023, 77_777, 131_071, 150_001, 198_977, 199_999, 200_000] {
                let told = long(behind).told();
                assert!(told.len() <= TOLD_MAX && told[0].slot == Slot(behind));
                let common = told.iter().find(|mark| ahead.at(mark.slot).is_some());
                let missed = behind - common.map_or(0, |common| common.slot.0);
                let lag = 200_000 - behind;
                assert!(missed <= lag / (dense / 4), "{missed} slots before {behind} cannot be compared");
                assert!(missed == 0 || lag >= dense);
                assert!(common.is_none_or(|common| ahead.at(common.slot) == Some(common.fingerprint)));
            }
        }
    }

    /// Of two replicas that start with nothing but their notes, each knows all slots near the end of its own
    /// note, and some from long before.
    #[test]
    fn a_note_holds_the_last_slots_and_stays_small() {
        for slots in [0, 1, 5, 31, 200, 200_000] {
            let history = long(slots);
            let noted = History::noted(history.since(), history.to_note()).unwrap();
            assert_eq!(noted.end(), history.end());
            assert_eq!(noted.to_note().last(), Some(history.end()));
            let kept = noted.marks.iter().count();
            assert!(kept <= 8 * DENSE_IN_NOTE as usize, "{kept} of {slots}");
            for slot in (slots.saturating_sub(DENSE_IN_NOTE - 1).max(1)..=slots).map(Slot) {
                assert_eq!(noted.at(slot), history.at(slot), "{slot} of {slots}");
            }
            assert!(noted.told().iter().all(|mark| history.at(mark.slot) == Some(mark.fingerprint)));
        }
        assert_eq!(History::noted(Slot::ZERO, []), None);
    }

    #[test]
    fn a_history_comes_back_and_goes_on() {
        let mut history = long(5000);
        let mut restored = written(&history);
        assert_eq!(written(&restored), restored);
        history.push(Slot(5001), &batch("more"));
        restored.push(Slot(5001), &batch("more"));
        assert_eq!(restored.end(), history.end());
        let few = long(100);
        assert_eq!(written(&few), few);
    }

    #[test]
    fn one_that_does_not_know_the_beginning_takes_it_over() {
        let whole = of(&["a", "b", "c", "d"]);
        let mut rest = History::unknown(Slot(2));
        [(3, "c"), (4, "d")].into_iter().for_each(|(slot, text)| rest.push(Slot(slot), &batch(text)));
        rest.take_over(Slot(2), &[Mark { slot: Slot(4), fingerprint: 1 }]);
        assert_ne!(rest.end(), whole.end(), "that one knows no more");
        rest.take_over(Slot(0), &whole.told());
        assert_eq!((rest.since, rest.end()), (Slot(0), whole.end()));
        assert_eq!(rest.at(Slot(3)), whole.at(Slot(3)));
    }
}

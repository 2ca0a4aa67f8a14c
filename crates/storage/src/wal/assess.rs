//! What the scanned segments mean together: which records count, where the log ends, what is damaged.
//!
//! The rule that tells a torn tail from corruption: a record that cannot be read is **torn** if nothing proves
//! that it was ever durable, and **damaged** if something does. Proof is
//!
//! - the `durable` field of any record whose header is intact,
//! - the beginning of a later segment, since a segment is begun only when the one before it is durable,
//! - a clean close, which notes the last record, and the mark that is written when the log is idle.
//!
//! What is missing after everything that is proven is damage too if a file is not as the list of segments
//! says, or cannot be read: no crash does that. Only a file that was prepared and not begun may be missing.
//!
//! The repeated `State` records at the head of a segment are written together with the segment's first
//! record. So where they are torn, that record counts as torn too, though it may be whole; and where it was
//! durable, they are damaged. Otherwise the promises would be lost as soon as the segment before is trimmed.
//!
//! Everything after a torn record was written in the same commit (had an earlier commit ended in between, a
//! later record would prove it), so nothing of it was ever acknowledged, and it is dropped with the torn record.
//!
//! All of this is for a log that waits for the disk. A log that does not wait is whole as long as the machine
//! runs; once the machine has gone down, only the mark is proof ([`Known::unsynced`]).
//!
//! Nothing in this module touches a file.

use std::collections::BTreeSet;

use synod_wire::Lsn;

use super::{
    format::PAGE,
    scan::{ScannedRecord, SegmentScan},
};
use crate::{Damage, DamageSpot, Keep};

/// What the segments mean together.
#[derive(Debug)]
pub(crate) struct Assessment {
    /// The number of the last record that counts; records after it are dropped.
    pub last: Lsn,
    /// The highest record that is proven to have been durable; the records after it, up to `last`, are there,
    /// but perhaps only in the kernel's memory.
    pub proven: Lsn,
    /// Where the log ends; `None` if no segment was begun, or if none that was begun is left.
    pub end: Option<End>,
    /// Recognisable bytes after the end.
    pub torn_bytes: u64,
    pub damage: Option<Damage>,
}

/// The place where the next record goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct End {
    /// The segment's index among the segments that were given.
    pub segment: usize,
    pub offset: u64,
}

/// A segment that is not as it was left, which shows without its records: it is missing, too short, or unreadable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Suspect {
    pub segment: u64,
    /// The byte from which on the segment is not as it was left.
    pub offset: u64,
    pub reason: String,
    /// Whether the segment has all its bytes and no trace of a header: then it was prepared, and not begun.
    pub prepared: bool,
}

/// What is known of a log besides its segments.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Known<'a> {
    /// The last record that was noted to be durable when the log was idle, or opened.
    pub marked: Option<Lsn>,
    /// The last record, if the last life closed the log.
    pub closed_at: Option<Lsn>,
    /// Whether the last life did not wait for the disk, and the machine went down under it. What records and
    /// headers say was durable was then perhaps only in the kernel's memory, and is no proof; nothing is
    /// damaged by that, and the log ends where the first record is missing.
    pub unsynced: bool,
    pub suspects: &'a [Suspect],
}

/// Judges the begun segments of a log, in order.
pub(crate) fn assess(segments: &[SegmentScan], known: &Known<'_>) -> Assessment {
    let proven = proven(segments, known);
    if known.unsynced && known.suspects.is_empty() && beginning_is_lost(segments, proven) {
        let torn_bytes = segments.iter().map(|segment| traces(segment).saturating_sub(PAGE as u64)).sum();
        return Assessment { last: proven, proven, end: None, torn_bytes, damage: None };
    }
    let walk = Walk::over(segments, proven);
    let state = state_survived(segments, walk.last);
    let whole = walk.spots.is_empty() && state.is_ok() && known.closed_at == Some(walk.last);
    let mut spots = walk.spots;
    if let (Err(spot), true) = (&state, spots.is_empty()) {
        spots.push(spot.clone());
    }
    let mut state_intact = state.is_ok();
    let begun = |suspect: &Suspect| segments.last().is_some_and(|last| suspect.segment <= last.segment);
    // A segment that was not begun holds nothing.
    let matters = |suspect: &&Suspect| begun(suspect) || !(whole || suspect.prepared);
    for suspect in known.suspects.iter().filter(matters) {
        let Some((first_lost, last_lost)) = lost_in(segments, walk.last, suspect.segment) else { continue };
        state_intact &= last_lost <= walk.last;
        if spots.iter().all(|spot| spot.segment != suspect.segment) {
            let Suspect { segment, offset, reason, prepared: _ } = suspect.clone();
            spots.push(DamageSpot { segment, offset, first_lost, last_lost, reason });
        }
    }
    let damage = (!spots.is_empty()).then_some(Damage { spots, state_intact });

    let end = end_after(segments, walk.last);
    let torn_bytes = end.map_or(0, |end| torn_bytes(segments, end));
    Assessment { last: walk.last, proven: proven.min(walk.last), end, torn_bytes, damage }
}

/// The records that may be lost in a segment that is only known to be suspect, besides those that the walk has missed.
fn lost_in(segments: &[SegmentScan], last: Lsn, segment: u64) -> Option<(Lsn, Lsn)> {
    let end = segments.last().map_or(0, |segment| segment.segment);
    if segment >= end {
        // How many records it held is not known.
        return Some((last.next(), last.next()));
    }
    // If a segment between others had held anything, the walk would have missed it.
    let first = segments.first().filter(|first| segment < first.segment)?;
    let first_lsn = first.header.as_ref().map_or(Lsn(2), |header| header.first_lsn);
    Some((Lsn(1), before(first_lsn)))
}

/// Whether the log has no beginning left, and nothing proves that its beginning was durable: the segments
/// before the first one were trimmed, and the promises repeated at its head are torn.
fn beginning_is_lost(segments: &[SegmentScan], proven: Lsn) -> bool {
    let is_proven = |segment: &SegmentScan| segment.first_lsn().is_some_and(|first| first <= proven);
    segments.first().is_none_or(|first| !first.head_is_complete()) && !segments.iter().any(is_proven)
}

fn proven(segments: &[SegmentScan], known: &Known<'_>) -> Lsn {
    let noted = known.marked.max(known.closed_at);
    if known.unsynced {
        return noted.unwrap_or(Lsn::ZERO);
    }
    let by_records = segments.iter().flat_map(|s| &s.records).map(|record| record.header.durable);
    let by_headers = segments.iter().filter_map(|s| s.header.as_ref().ok()).map(|h| before(h.first_lsn));
    by_records.chain(by_headers).chain(noted).max().unwrap_or(Lsn::ZERO)
}

/// The record number before this one.
fn before(lsn: Lsn) -> Lsn {
    Lsn(lsn.0.saturating_sub(1))
}

/// Goes through the log in order and notes what is missing, up to the first record that is torn.
struct Walk {
    /// The record that comes next.
    expected: Lsn,
    /// The place where it should begin.
    at: End,
    last: Lsn,
    spots: Vec<DamageSpot>,
}

impl Walk {
    fn over(segments: &[SegmentScan], proven: Lsn) -> Walk {
        let mut walk = Walk {
            expected: Lsn(1),
            at: End { segment: 0, offset: PAGE as u64 },
            last: Lsn::ZERO,
            spots: Vec::new(),
        };
        if let Some(Ok(first)) = segments.first().map(|segment| &segment.header) {
            // The records before the first segment were trimmed.
            walk.expected = first.first_lsn;
            walk.last = before(first.first_lsn);
        }
        for (index, segment) in segments.iter().enumerate() {
            if let Ok(header) = &segment.header {
                // What is before a segment is proven to be durable, so it is never the torn tail.
                walk.miss(
                    segments,
                    header.first_lsn,
                    proven,
                    End { segment: index, offset: segment.head_end() },
                );
                walk.at = End { segment: index, offset: segment.head_end() };
            }
            // The promises of the first segment are nowhere else; `state_survived` reports their loss.
            if index > 0
                && !segment.head_is_complete()
                && let Some(first) = segment.first_lsn()
            {
                if first > proven {
                    break;
                }
                let offset = segment.flaws.first().map_or(0, |flaw| flaw.offset);
                walk.spots.push(promises_unreadable(segment.segment, offset));
            }
            for record in segment.records.iter().filter(|record| !record.header.restated && record.body_ok) {
                if record.header.lsn < walk.expected {
                    continue;
                }
                let place = End { segment: index, offset: record.offset };
                if !walk.miss(segments, record.header.lsn, proven, place) {
                    return walk;
                }
                walk.last = record.header.lsn;
                walk.expected = record.header.lsn.next();
                walk.at = End { segment: index, offset: record.end() };
            }
        }
        walk.miss(segments, proven.next(), proven, End { segment: segments.len(), offset: 0 });
        walk
    }

    /// Notes that the records from the expected one to the one before `next`, which is at `place`, are missing.
    /// Returns whether `next` still counts: it does not if one of them is torn.
    fn miss(&mut self, segments: &[SegmentScan], next: Lsn, proven: Lsn, place: End) -> bool {
        if self.expected >= next {
            return true;
        }
        let damaged_to = proven.min(before(next));
        if self.expected <= damaged_to {
            let (place, reason) = self.reason(segments, place);
            self.spots.push(DamageSpot {
                segment: place.0,
                offset: place.1,
                first_lost: self.expected,
                last_lost: damaged_to,
                reason,
            });
            self.expected = damaged_to.next();
            self.last = damaged_to;
        }
        self.expected == next
    }

    /// What is found where the expected record should be: the segment, the offset, and a text.
    fn reason(&self, segments: &[SegmentScan], until: End) -> ((u64, u64), String) {
        for (index, segment) in
            segments.iter().enumerate().skip(self.at.segment).take_while(|s| s.0 <= until.segment)
        {
            let from = if index == self.at.segment { self.at.offset } else { 0 };
            let to = if index == until.segment { until.offset } else { u64::MAX };
            if let Some(flaw) = segment.flaws.iter().find(|flaw| (from..to).contains(&flaw.offset)) {
                return ((segment.segment, flaw.offset), flaw.reason.clone());
            }
            let missing_from = segment.segment + 1;
            let next =
                segments.get(index + 1).filter(|next| index < until.segment && next.segment > missing_from);
            if let Some(next) = next {
                let missing_to = next.segment - 1;
                let reason = if missing_from == missing_to {
                    format!("segment {missing_from} is missing")
                } else {
                    format!("segments {missing_from} to {missing_to} are missing")
                };
                return ((missing_from, 0), reason);
            }
        }
        let segment = segments.get(self.at.segment).map_or(0, |segment| segment.segment);
        ((segment, self.at.offset), "the records end here, but later ones were durable".to_owned())
    }
}

fn promises_unreadable(segment: u64, offset: u64) -> DamageSpot {
    let reason = "the promises repeated here cannot be read".to_owned();
    DamageSpot { segment, offset, first_lost: Lsn::ZERO, last_lost: Lsn::ZERO, reason }
}

/// Whether the latest `State` record of every key can be read; if not, where the doubt is.
fn state_survived(segments: &[SegmentScan], last: Lsn) -> Result<(), DamageSpot> {
    let doubt = |segment: u64, offset: u64, reason: String| {
        Err(DamageSpot { segment, offset, first_lost: Lsn::ZERO, last_lost: Lsn::ZERO, reason })
    };
    let counts = |s: &SegmentScan| s.header.as_ref().is_ok_and(|h| before(h.first_lsn) <= last);
    let Some(base) = segments.iter().rposition(|s| counts(s) && s.head_is_complete()) else {
        return match segments.first() {
            Some(first) => Err(promises_unreadable(first.segment, PAGE as u64)),
            None if last > Lsn::ZERO => doubt(0, 0, "no segment is left".into()),
            None => Ok(()),
        };
    };
    // At the beginning of the base everything was known. From there on, every record names the latest `State`
    // record before it, and all of these must be readable. (After a run of lost records, the next intact
    // header names the last `State` record in it, so that none goes unnoticed.)
    let base_lsn = segments[base].header.as_ref().expect("the base has a header").first_lsn;
    let readable: BTreeSet<Lsn> = segments
        .iter()
        .flat_map(|segment| &segment.records)
        .filter(|record| record.body_ok && matches!(record.header.keep, Keep::State(_)))
        .map(|record| record.header.lsn)
        .collect();
    let mut reached = before(base_lsn);
    for segment in &segments[base..] {
        for record in segment.records.iter().filter(|r| !r.header.restated && r.header.lsn <= last) {
            let ScannedRecord { header, offset, .. } = *record;
            reached = header.lsn;
            let is_state = matches!(header.keep, Keep::State(_));
            for state in [Some(header.last_state), is_state.then_some(header.lsn)].into_iter().flatten() {
                if state >= base_lsn && !readable.contains(&state) {
                    return doubt(segment.segment, offset, format!("the promise in record {state} is lost"));
                }
            }
        }
    }
    if reached < last {
        // The last records are gone, and with them everything that could say what they were.
        let end = &segments[segments.len() - 1];
        return doubt(end.segment, end.end, "the records end here, but later ones were durable".into());
    }
    Ok(())
}

/// Where the log goes on after record `last`.
fn end_after(segments: &[SegmentScan], last: Lsn) -> Option<End> {
    // The log goes on in a segment that was properly begun even if it has no record yet: its head may hold
    // the only copy of the promises.
    let begun =
        |s: &SegmentScan| s.head_is_complete() && s.header.as_ref().is_ok_and(|h| h.first_lsn == last.next());
    let holds = |s: &SegmentScan| s.records.iter().any(|r| !r.header.restated && r.header.lsn <= last);
    let index = segments.iter().rposition(|s| begun(s) || holds(s))?;
    let segment = &segments[index];
    let kept = segment.records.iter().filter(|r| r.header.restated || r.header.lsn <= last);
    let offset = kept.map(ScannedRecord::end).max().unwrap_or(PAGE as u64);
    Some(End { segment: index, offset })
}

/// Where the last recognisable byte of a segment is.
fn traces(segment: &SegmentScan) -> u64 {
    segment.trace_end.unwrap_or(0).max(segment.end)
}

fn torn_bytes(segments: &[SegmentScan], end: End) -> u64 {
    let here = traces(&segments[end.segment]).saturating_sub(end.offset);
    let later = segments[end.segment + 1..].iter().map(|s| traces(s).saturating_sub(PAGE as u64));
    here + later.sum::<u64>()
}

//! Log lines about repeated failures, at a rate that a person can read.

use std::time::{Duration, Instant};

use synod_sync::Mutex;

use crate::sync::lock;

/// Strangers can cause lines as often as they like, so at most this many are written in a [`WINDOW`].
const LINES_MAX: u32 = 20;
const WINDOW: Duration = Duration::from_secs(10);
/// A complaint that stays the same is written again after this time.
const REPEAT: Duration = Duration::from_secs(30);

/// Limits the lines of one kind, whatever causes them.
#[derive(Debug)]
pub(crate) struct LogLimit {
    state: Mutex<Window>,
}

#[derive(Debug)]
struct Window {
    since: Instant,
    lines: u32,
    suppressed: u64,
}

impl LogLimit {
    pub(crate) fn new() -> LogLimit {
        LogLimit { state: Mutex::new(Window { since: Instant::now(), lines: 0, suppressed: 0 }) }
    }

    /// Whether a line may be written now; if so, how many lines were suppressed since the last one.
    pub(crate) fn admit(&self) -> Option<u64> {
        self.admit_at(Instant::now())
    }

    fn admit_at(&self, now: Instant) -> Option<u64> {
        let mut state = lock(&self.state);
        if now.saturating_duration_since(state.since) >= WINDOW {
            state.since = now;
            state.lines = 0;
        }
        if state.lines == LINES_MAX {
            state.suppressed += 1;
            return None;
        }
        state.lines += 1;
        Some(std::mem::take(&mut state.suppressed))
    }
}

/// The complaint about one peer, written when it changes, and at intervals while it stays the same.
#[derive(Debug, Default)]
pub(crate) struct Complaint {
    last: Option<(String, Instant)>,
}

impl Complaint {
    /// Whether to write `text` now.
    pub(crate) fn is_due(&mut self, text: &str) -> bool {
        self.is_due_at(text, Instant::now())
    }

    fn is_due_at(&mut self, text: &str, now: Instant) -> bool {
        let due = self
            .last
            .as_ref()
            .is_none_or(|(last, at)| last != text || now.saturating_duration_since(*at) >= REPEAT);
        if due {
            self.last = Some((text.to_owned(), now));
        }
        due
    }

    /// Takes note that the cause is gone, so that the next complaint is written.
    pub(crate) fn clear(&mut self) {
        self.last = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_cut_and_counted() {
        let limit = LogLimit::new();
        let start = Instant::now();
        let written = (0..100).filter(|_| limit.admit_at(start).is_some()).count();
        assert_eq!(written, LINES_MAX as usize);
        assert_eq!(limit.admit_at(start + WINDOW * 2), Some(100 - u64::from(LINES_MAX)));
        assert_eq!(limit.admit_at(start + WINDOW * 2), Some(0));
    }

    #[test]
    fn only_news_are_told() {
        let mut complaint = Complaint::default();
        let start = Instant::now();
        assert!(complaint.is_due_at("refused", start));
        assert!(!complaint.is_due_at("refused", start + REPEAT / 2));
        assert!(complaint.is_due_at("timeout", start + REPEAT / 2));
        assert!(!complaint.is_due_at("timeout", start + REPEAT));
        assert!(complaint.is_due_at("timeout", start + REPEAT * 2));
        complaint.clear();
        assert!(complaint.is_due_at("timeout", start + REPEAT * 2));
    }
}

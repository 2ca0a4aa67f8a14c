//! Warnings about failures that repeat, at a rate that a person can read.

use std::{
    fmt, mem,
    time::{Duration, Instant},
};

/// A warning of the same kind is written again after this time.
const REPEAT: Duration = Duration::from_secs(60);
/// Strangers can cause warnings of as many kinds as they like, so at most this many are written in a [`REPEAT`].
const KINDS_MAX: usize = 32;

/// Which warnings are written: the first of each kind at once, and then one a minute, with the number of those that
/// were left out. Of all kinds together there are at most 32 a minute.
#[derive(Debug, Default)]
pub struct Repeats {
    kinds: Vec<Kind>,
    /// Warnings of kinds that are not among these, and were left out.
    others: u64,
}

#[derive(Debug)]
struct Kind {
    /// What is the same in all warnings of the kind.
    text: String,
    written: Instant,
    /// Warnings of this kind since then.
    left_out: u64,
}

/// How many warnings were left out before the one that is written; the end of its line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeftOut(pub u64);

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => Ok(()),
            1 => f.write_str(" (an earlier line was left out)"),
            count => write!(f, " ({count} earlier lines were left out)"),
        }
    }
}

impl Repeats {
    /// Whether to write a warning of this kind now; if so, how many were left out since the last one.
    pub fn admit(&mut self, kind: &str) -> Option<LeftOut> {
        self.admit_at(kind, Instant::now())
    }

    fn admit_at(&mut self, kind: &str, now: Instant) -> Option<LeftOut> {
        let is_over = |kind: &Kind| now.saturating_duration_since(kind.written) >= REPEAT;
        let left_out = match self.kinds.iter_mut().find(|known| known.text == kind) {
            Some(known) => {
                if !is_over(known) {
                    known.left_out += 1;
                    return None;
                }
                known.written = now;
                mem::take(&mut known.left_out)
            }
            None => {
                if self.kinds.len() == KINDS_MAX {
                    let Some(old) = self.kinds.iter().position(is_over) else {
                        self.others += 1;
                        return None;
                    };
                    self.others += self.kinds.swap_remove(old).left_out;
                }
                self.kinds.push(Kind { text: kind.to_owned(), written: now, left_out: 0 });
                0
            }
        };
        Some(LeftOut(left_out + mem::take(&mut self.others)))
    }

    /// Forgets what was written, since its causes are gone: the next warning of each kind is written.
    pub fn clear(&mut self) {
        *self = Repeats::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_written_once_a_minute_and_what_is_left_out_is_counted() {
        let (mut repeats, start) = (Repeats::default(), Instant::now());
        let mut admit = |kind, after| repeats.admit_at(kind, start + after).map(|LeftOut(count)| count);
        assert_eq!(admit("refused", Duration::ZERO), Some(0));
        assert_eq!(admit("refused", REPEAT / 2), None);
        // That kinds alternate makes none of them news.
        assert_eq!(admit("timeout", REPEAT / 2), Some(0));
        assert_eq!(admit("refused", REPEAT / 2), None);
        assert_eq!(admit("refused", REPEAT), Some(2));
        assert_eq!(admit("timeout", REPEAT), None);
        repeats.clear();
        assert_eq!(repeats.admit_at("timeout", start + REPEAT), Some(LeftOut(0)));
    }

    #[test]
    fn a_flood_of_kinds_is_cut_and_counted() {
        let (mut repeats, start) = (Repeats::default(), Instant::now());
        let kinds: Vec<String> = (0..100).map(|number: u32| number.to_string()).collect();
        let written = |repeats: &mut Repeats, now| {
            kinds.iter().filter_map(|kind| repeats.admit_at(kind, now)).collect::<Vec<_>>()
        };
        assert_eq!(written(&mut repeats, start).len(), KINDS_MAX);
        let later = written(&mut repeats, start + REPEAT);
        assert_eq!((later.len(), later[0]), (KINDS_MAX, LeftOut(100 - KINDS_MAX as u64)));
    }

    #[test]
    fn a_line_ends_with_what_was_left_out() {
        assert_eq!(
            [0, 1, 229].map(|count| LeftOut(count).to_string()),
            ["", " (an earlier line was left out)", " (229 earlier lines were left out)"]
        );
    }
}

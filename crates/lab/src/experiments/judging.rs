//! Judgements that several experiments make.

use crate::{
    figure::numbers::number,
    study::{Judgement, Measured},
};

/// Milliseconds, in words for a reason.
pub(super) fn ms(value: f64) -> String {
    format!("{value:.2} ms")
}

/// The lowest and the highest.
pub(super) fn range(values: &[f64]) -> (f64, f64) {
    let low = values.iter().copied().fold(f64::INFINITY, f64::min);
    (low, values.iter().copied().fold(f64::NEG_INFINITY, f64::max))
}

/// Whether `value` differs from `expected` by at most this share of it.
pub(super) fn is_near(value: f64, expected: f64, share: f64) -> bool {
    (value / expected - 1.0).abs() <= share
}

/// The mean of one series divided by that of another, at a place where both were measured.
#[derive(Debug)]
pub(super) struct Ratio {
    /// What both series have in common, such as the group's size.
    pub(super) group: String,
    pub(super) x: f64,
    pub(super) value: f64,
}

/// Ratios of pairs of series: each is `(group, a, b)`.
pub(super) fn ratios(measured: &Measured, metric: &str, pairs: &[(&str, String, String)]) -> Vec<Ratio> {
    let mut all = Vec::new();
    for (group, a, b) in pairs {
        for x in measured.places(a) {
            // A divisor of 0 gives no ratio.
            let b = measured.mean(b, x, metric).filter(|mean| *mean != 0.0);
            if let (Some(a), Some(b)) = (measured.mean(a, x, metric), b) {
                all.push(Ratio { group: (*group).to_owned(), x, value: a / b });
            }
        }
    }
    all
}

/// Figures that agree with a claim or do not, row by row; the claim holds if all of them agree.
pub(super) struct Rows {
    columns: Vec<&'static str>,
    rows: Vec<Vec<String>>,
    agree: usize,
}

impl Rows {
    pub(super) fn new(columns: &[&'static str]) -> Rows {
        Rows { columns: [columns, &["as claimed"]].concat(), rows: Vec::new(), agree: 0 }
    }

    pub(super) fn add(&mut self, cells: impl Into<Vec<String>>, agrees: bool) {
        let mut row = cells.into();
        row.push(if agrees { "yes" } else { "no" }.to_owned());
        self.rows.push(row);
        self.agree += usize::from(agrees);
    }

    /// The verdict with the table; `reason` sums it up in a few words.
    pub(super) fn judge(self, reason: impl std::fmt::Display) -> Judgement {
        let (agree, all) = (self.agree, self.rows.len());
        if all == 0 {
            return Judgement::open("nothing was measured");
        }
        let reason = format!("{reason}; {agree} of {all} as claimed");
        Judgement::of(agree == all, reason).with(&self.columns, self.rows)
    }
}

/// Ratios as a table, each with whether it meets the condition.
pub(super) fn table(ratios: &[Ratio], what: &'static str, must: impl Fn(&Ratio) -> bool) -> Rows {
    let mut rows = Rows::new(&["of", "c", what]);
    for ratio in ratios {
        let group = if ratio.group.is_empty() { "all" } else { &ratio.group };
        rows.add([group.to_owned(), number(ratio.x), format!("{:.2}", ratio.value)], must(ratio));
    }
    rows
}

/// Judges whether all ratios meet the condition; `what` names dividend and divisor.
pub(super) fn all_ratios(ratios: &[Ratio], what: &'static str, must: impl Fn(&Ratio) -> bool) -> Judgement {
    if ratios.is_empty() {
        return Judgement::open(format!("{what}: the two were not measured together"));
    }
    let (low, high) = range(&ratios.iter().map(|ratio| ratio.value).collect::<Vec<_>>());
    table(ratios, what, must).judge(format!("{what}: {low:.2} to {high:.2}"))
}

/// Ratios in words.
pub(super) fn words(ratios: &[Ratio]) -> String {
    let text = ratios.iter().map(|Ratio { group, x, value }| {
        let group = if group.is_empty() { String::new() } else { format!("{group} ") };
        format!("{group}c={x}: {value:.2}")
    });
    text.collect::<Vec<_>>().join(", ")
}

/// Whether `a` exceeds `b` by at most this share of it, or not significantly.
pub(super) fn not_above(
    measured: &Measured,
    a: &str,
    b: &str,
    x: f64,
    metric: &str,
    share: f64,
) -> Judgement {
    let mean = |series| measured.mean(series, x, metric);
    let (Some(mean_a), Some(mean_b)) = (mean(a), mean(b).filter(|mean| *mean != 0.0)) else {
        return Judgement::open(format!("{a} and {b} were not measured together, or nothing was answered"));
    };
    let gain = mean_a / mean_b - 1.0;
    let significant = measured.difference(a, b, x, metric).is_some_and(|it| it.is_significant());
    let word = if significant { "significantly" } else { "not significantly" };
    let reason = format!("{a} is {:+.1} % against {b} at c={x}, {word}", gain * 100.0);
    Judgement::of(gain <= share || !significant, reason)
}

/// The highest value of any single run over the series that `of` selects, and its place.
pub(super) fn highest(measured: &Measured, metric: &str, of: impl Fn(&str) -> bool) -> Option<(f64, String)> {
    let own = measured.iter().filter(|(series, _, name, _)| *name == metric && of(series));
    let values = own.flat_map(|(series, x, _, values)| {
        values.iter().map(move |&value| (value, format!("{series}, {x}")))
    });
    values.max_by(|a, b| a.0.total_cmp(&b.0))
}

/// Whether every single run stayed at or below `most`; `unit` follows the number.
pub(super) fn at_most(
    measured: &Measured,
    metric: &str,
    of: impl Fn(&str) -> bool,
    most: f64,
    unit: &str,
) -> Judgement {
    match highest(measured, metric, of) {
        None => Judgement::open("nothing was measured"),
        Some((value, place)) => Judgement::of(value <= most, format!("at most {value:.0}{unit} ({place})")),
    }
}

/// Judges that no proposal timed out in any run.
pub(super) fn no_timeouts(measured: &Measured) -> Judgement {
    at_most(measured, "timed_out", |_| true, 0.0, " in a run")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::Verdict;

    #[test]
    fn a_difference_that_is_mostly_noise_decides_nothing_against_a_claim() {
        let judge = |a: [f64; 3], b: [f64; 3]| {
            let mut measured = Measured::default();
            a.iter().for_each(|&value| measured.add("a", 1.0, "m", value));
            b.iter().for_each(|&value| measured.add("b", 1.0, "m", value));
            not_above(&measured, "a", "b", 1.0, "m", 0.08).verdict
        };
        assert_eq!(judge([100.0, 102.0, 98.0], [99.0, 101.0, 100.0]), Verdict::Holds);
        assert_eq!(judge([150.0, 151.0, 149.0], [100.0, 101.0, 99.0]), Verdict::DoesNotHold);
        assert_eq!(judge([50.0, 250.0, 150.0], [100.0, 101.0, 99.0]), Verdict::Holds);
        assert_eq!(not_above(&Measured::default(), "a", "b", 1.0, "m", 0.0).verdict, Verdict::NotDecided);
    }

    #[test]
    fn one_bad_run_is_found_among_good_ones() {
        let mut measured = Measured::default();
        [0.0, 0.0, 7.0].into_iter().for_each(|value| measured.add("a", 10.0, "timed_out", value));
        measured.add("b", 10.0, "timed_out", 0.0);
        let judgement = no_timeouts(&measured);
        assert_eq!(
            (judgement.verdict, judgement.reason.as_str()),
            (Verdict::DoesNotHold, "at most 7 in a run (a, 10)")
        );
        assert_eq!(at_most(&measured, "timed_out", |series| series == "b", 0.0, "").verdict, Verdict::Holds);
        assert_eq!(at_most(&measured, "gap_ms", |_| true, 0.0, "").verdict, Verdict::NotDecided);
    }

    #[test]
    fn ratios_are_taken_where_both_were_measured() {
        let mut measured = Measured::default();
        measured.add("a", 1.0, "m", 30.0);
        measured.add("a", 2.0, "m", 30.0);
        measured.add("b", 1.0, "m", 10.0);
        measured.add("a", 3.0, "m", 30.0);
        measured.add("b", 3.0, "m", 0.0);
        let all = ratios(&measured, "m", &[("n=3", "a".to_owned(), "b".to_owned())]);
        assert_eq!(words(&all), "n=3 c=1: 3.00");
        let judged = all_ratios(&all, "a over b", |ratio| ratio.value > 2.0);
        assert_eq!(
            (judged.verdict, judged.reason.as_str()),
            (Verdict::Holds, "a over b: 3.00 to 3.00; 1 of 1 as claimed")
        );
        assert_eq!(judged.evidence.columns, ["of", "c", "a over b", "as claimed"]);
        assert_eq!(judged.evidence.rows, [["n=3", "1", "3.00", "yes"]]);
        let judged = all_ratios(&all, "a over b", |ratio| ratio.value > 4.0);
        assert_eq!((judged.verdict, judged.evidence.rows[0][3].as_str()), (Verdict::DoesNotHold, "no"));
        assert_eq!(all_ratios(&[], "a over b", |_| true).verdict, Verdict::NotDecided);
    }
}

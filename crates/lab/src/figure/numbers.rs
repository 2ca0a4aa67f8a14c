//! Formats numbers for people, and places the marks of an axis.

/// A number with its significant digits.
pub(crate) fn number(value: f64) -> String {
    let size = value.abs();
    if size == 0.0 {
        return "0".to_owned();
    }
    if size >= 100.0 {
        return thousands(value.round());
    }
    let digits = if size >= 10.0 {
        1
    } else if size >= 1.0 {
        2
    } else {
        4
    };
    let text = format!("{value:.digits$}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn thousands(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut text = if value < 0.0 { "-".to_owned() } else { String::new() };
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// The day of a time in seconds since 1970, in UTC (Hinnant's `civil_from_days`).
pub(crate) fn date(seconds: u64) -> String {
    let days = seconds / 86_400 + 719_468;
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year + year / 4 - year / 100);
    // Months count from March, so that the leap day is the last of a year.
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let (month, later) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    format!("{:04}-{month:02}-{day:02}", era * 400 + year + later)
}

/// A part of an axis, linear or logarithmic, with its marks.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Range {
    pub(super) low: f64,
    pub(super) high: f64,
    pub(super) log: bool,
    /// Places of the marks.
    pub(super) marks: Vec<f64>,
}

impl Range {
    /// A range around values. It is logarithmic if they are positive and the highest is more than 100 times
    /// the lowest, which would be invisible otherwise. A linear range begins at 0.
    pub(super) fn around(values: impl Iterator<Item = f64> + Clone) -> Range {
        let low = values.clone().fold(f64::INFINITY, f64::min);
        let high = values.fold(f64::NEG_INFINITY, f64::max);
        if low > 0.0 && high > 100.0 * low {
            return Range::log(low / 1.2, high * 1.2);
        }
        let step = step(high.max(0.0) - low.min(0.0));
        let from = (low.min(0.0) / step).floor();
        // The highest value is not drawn on the edge.
        let to = (high.max(0.0) * 1.02 / step - 1e-9).ceil().max(from + 1.0);
        let marks = (from as i64..=to as i64).map(|mark| mark as f64 * step).collect();
        Range { low: from * step, high: to * step, log: false, marks }
    }

    /// A range of places. If `wanted`, it is logarithmic if they are positive and the last is at least 10
    /// times the first, and has a mark at each place if they are few.
    pub(super) fn of_places(places: &[f64], wanted: bool) -> Range {
        let low = places.iter().copied().fold(f64::INFINITY, f64::min);
        let high = places.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let mut range = if wanted && low > 0.0 && high >= 10.0 * low {
            Range::log(low, high)
        } else {
            // If the lowest place is near 0, the axis begins at 0.
            let low = if (0.0..0.2 * high).contains(&low) { 0.0 } else { low };
            Range { low, high, log: false, marks: Range::around([0.0, high].into_iter()).marks }
        };
        let mut distinct = places.to_vec();
        distinct.sort_by(f64::total_cmp);
        distinct.dedup();
        if wanted && distinct.len() <= 8 {
            range.marks = distinct;
        }
        range.marks.retain(|mark| (range.low..=range.high).contains(mark));
        range
    }

    fn log(low: f64, high: f64) -> Range {
        let decades = low.log10().floor() as i32..=high.log10().ceil() as i32;
        let few = decades.clone().count() <= 3;
        let digits: &[f64] = if few { &[1.0, 2.0, 5.0] } else { &[1.0] };
        let marks = decades.flat_map(|decade| digits.iter().map(move |digit| digit * 10_f64.powi(decade)));
        Range { low, high, log: true, marks: marks.filter(|mark| (low..=high).contains(mark)).collect() }
    }

    /// Where a value lies, from 0 to 1.
    pub(super) fn share(&self, value: f64) -> f64 {
        let place = |value: f64| if self.log { value.max(self.low).log10() } else { value };
        let (low, high) = (place(self.low), place(self.high));
        if high > low { ((place(value) - low) / (high - low)).clamp(0.0, 1.0) } else { 0.5 }
    }
}

/// A round step that takes four to eight marks.
fn step(length: f64) -> f64 {
    if length <= 0.0 || !length.is_finite() {
        return 1.0;
    }
    let unit = 10_f64.powf((length / 4.0).log10().floor());
    let steps = [5.0, 2.0, 1.0].map(|step| step * unit);
    steps.into_iter().find(|step| length / step >= 3.5).unwrap_or(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_the_digits_that_mean_something() {
        let cases = [
            (0.0, "0"),
            (177_310.4, "177,310"),
            (1000.0, "1,000"),
            (-2_500_000.0, "-2,500,000"),
            (99.94, "99.9"),
            (2.0, "2"),
            (2.346, "2.35"),
            (0.1234, "0.1234"),
        ];
        for (value, expected) in cases {
            assert_eq!(number(value), expected);
        }
    }

    #[test]
    fn days_are_those_of_the_calendar() {
        let cases = [
            (0, "1970-01-01"),
            (951_782_399, "2000-02-28"),
            (951_782_400, "2000-02-29"),
            (951_868_800, "2000-03-01"),
            (1_735_689_599, "2024-12-31"),
            (1_795_305_600, "2026-11-22"),
        ];
        for (seconds, expected) in cases {
            assert_eq!(date(seconds), expected);
        }
    }

    #[test]
    fn marks_are_round_and_around_the_values() {
        for high in [0.003, 1.0, 4.8, 9.99, 187_500.0, 1e9] {
            let range = Range::around([high / 3.0, high].into_iter());
            assert!(
                !range.log && range.low == 0.0 && range.high >= high && range.high < high * 1.5,
                "{range:?}"
            );
            assert!((4..=9).contains(&range.marks.len()), "{range:?}");
        }
        let marks = Range::around([0.0, 12.0].into_iter()).marks;
        assert_eq!(marks, [0.0, 2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 14.0]);
        assert_eq!(Range::around([0.0, 0.0].into_iter()).high, 1.0);
    }

    #[test]
    fn an_axis_is_logarithmic_where_values_differ_by_more_than_two_decades() {
        let log = Range::around([1.0, 101.0].into_iter());
        assert!(log.log && log.low < 1.0 && log.high > 101.0);
        assert!(log.share(10.0) > 0.4 && log.share(10.0) < 0.6);
        assert!(!Range::around([1.0, 100.0].into_iter()).log);
        assert!(!Range::around([0.0, 1000.0].into_iter()).log, "0 has no logarithm");
    }

    #[test]
    fn measured_places_are_marked() {
        let range = Range::of_places(&[1.0, 1000.0, 100.0, 1000.0], true);
        assert_eq!((range.log, range.marks.as_slice()), (true, &[1.0, 100.0, 1000.0][..]));
        assert!(!Range::of_places(&[3.0, 5.0], true).log);
        assert!((Range::of_places(&[7.0], true).share(7.0) - 0.5).abs() < 1e-9);
    }
}

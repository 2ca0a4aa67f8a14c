//! The statistics of a report: means with confidence intervals, and whether two means differ.
//!
//! As in Ng 2020 (chapter 6), these are Student's t for one mean and Welch's test for the difference of two
//! means whose variances may differ. The quantiles are computed rather than looked up, so that Welch's
//! fractional degrees of freedom are exact.

/// A mean with its confidence interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// How many values there are.
    pub count: usize,
    /// Their mean.
    pub mean: f64,
    /// Half of the width of the 95 % confidence interval; `None` for a single value.
    pub half_width: Option<f64>,
}

/// Estimates the mean of the distribution of these values; `None` without a value.
#[must_use]
pub fn estimate(values: &[f64]) -> Option<Estimate> {
    let (mean, variance) = moments(values)?;
    let count = values.len();
    let half_width = variance.map(|variance| {
        let error = (variance / count as f64).sqrt();
        quantile_975((count - 1) as f64) * error
    });
    Some(Estimate { count, mean, half_width })
}

/// The middle value, or the mean of the two middle values; `None` without a value.
#[must_use]
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(sorted[middle]),
        _ => Some(f64::midpoint(sorted[middle - 1], sorted[middle])),
    }
}

/// The relative standard error of the mean; `None` with fewer than two values or a mean of 0.
#[must_use]
pub fn relative_standard_error(values: &[f64]) -> Option<f64> {
    let (mean, variance) = moments(values)?;
    let error = (variance? / values.len() as f64).sqrt();
    (mean != 0.0).then(|| error / mean.abs())
}

/// How much larger the mean of one sample is than that of another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Difference {
    /// The difference of the means.
    pub mean: f64,
    /// The 95 % confidence interval of that difference (Welch).
    pub interval: (f64, f64),
}

impl Difference {
    /// Whether the interval leaves out 0.
    #[must_use]
    pub fn is_significant(&self) -> bool {
        self.interval.0 > 0.0 || self.interval.1 < 0.0
    }
}

/// Compares the means of `a` and `b`; `None` unless both have at least two values.
#[must_use]
pub fn difference(a: &[f64], b: &[f64]) -> Option<Difference> {
    let ((mean_a, variance_a), (mean_b, variance_b)) = (moments(a)?, moments(b)?);
    let (share_a, share_b) = (variance_a? / a.len() as f64, variance_b? / b.len() as f64);
    let mean = mean_a - mean_b;
    let squared_error = share_a + share_b;
    if squared_error == 0.0 {
        return Some(Difference { mean, interval: (mean, mean) });
    }
    let freedom = squared_error * squared_error
        / (share_a * share_a / (a.len() - 1) as f64 + share_b * share_b / (b.len() - 1) as f64);
    let half = quantile_975(freedom) * squared_error.sqrt();
    Some(Difference { mean, interval: (mean - half, mean + half) })
}

/// Mean and, with at least two values, sample variance.
fn moments(values: &[f64]) -> Option<(f64, Option<f64>)> {
    let count = values.len() as f64;
    let mean = (!values.is_empty()).then(|| values.iter().sum::<f64>() / count)?;
    let squares = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>();
    Some((mean, (values.len() > 1).then(|| squares / (count - 1.0))))
}

/// The 97.5 % quantile of Student's t distribution with this many degrees of freedom (above 0).
#[must_use]
pub fn quantile_975(freedom: f64) -> f64 {
    // P(|T| > t) = I_x(freedom / 2, 1 / 2) with x = freedom / (freedom + t²) falls as t grows: halve the bracket.
    let (mut low, mut high) = (0.0, 1.0);
    let tail = |t: f64| beta_share(freedom / (freedom + t * t), freedom / 2.0, 0.5);
    while tail(high) > 0.05 {
        low = high;
        high *= 2.0;
    }
    for _ in 0..100 {
        let middle = f64::midpoint(low, high);
        if tail(middle) > 0.05 {
            low = middle;
        } else {
            high = middle;
        }
    }
    f64::midpoint(low, high)
}

/// The regularised incomplete beta function, by its continued fraction (Lentz's method).
fn beta_share(x: f64, a: f64, b: f64) -> f64 {
    if x <= 0.0 || x >= 1.0 {
        return x.clamp(0.0, 1.0);
    }
    // The fraction converges quickly on this side only; the other is its mirror image.
    if x > (a + 1.0) / (a + b + 2.0) {
        return 1.0 - beta_share(1.0 - x, b, a);
    }
    let front = (ln_gamma(a + b) - ln_gamma(a) - ln_gamma(b) + a * x.ln() + b * (1.0 - x).ln()).exp() / a;
    let tiny = 1e-300;
    let nonzero = |value: f64| if value.abs() < tiny { tiny } else { value };
    let (mut numerator, mut denominator) = (1.0, 1.0 / nonzero(1.0 - (a + b) * x / (a + 1.0)));
    let mut fraction = denominator;
    for step in 1..300 {
        let m = f64::from(step);
        let even = m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m));
        let odd = -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0));
        for term in [even, odd] {
            denominator = 1.0 / nonzero(1.0 + term * denominator);
            numerator = nonzero(1.0 + term / numerator);
            fraction *= denominator * numerator;
        }
        if (denominator * numerator - 1.0).abs() < 1e-15 {
            break;
        }
    }
    front * fraction
}

/// The logarithm of the gamma function for positive arguments, by Stirling's series.
fn ln_gamma(mut x: f64) -> f64 {
    // The series is good for large arguments; gamma(x) = gamma(x + 1) / x gets there.
    let mut shift = 0.0;
    while x < 12.0 {
        shift -= x.ln();
        x += 1.0;
    }
    let inverse = 1.0 / x;
    let square = inverse * inverse;
    let series = inverse * (1.0 / 12.0 - square * (1.0 / 360.0 - square * (1.0 / 1260.0 - square / 1680.0)));
    shift + (x - 0.5) * x.ln() - x + 0.5 * (2.0 * std::f64::consts::PI).ln() + series
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(a: f64, b: f64, tolerance: f64) {
        assert!((a - b).abs() <= tolerance, "{a} is not {b}");
    }

    #[test]
    fn quantiles_are_those_of_printed_tables() {
        let table = [
            (1.0, 12.706),
            (2.0, 4.303),
            (3.0, 3.182),
            (4.0, 2.776),
            (5.0, 2.571),
            (9.0, 2.262),
            (29.0, 2.045),
            (120.0, 1.980),
            (1e6, 1.960),
        ];
        for (freedom, expected) in table {
            close(quantile_975(freedom), expected, 5e-4);
        }
        // Between whole numbers it lies between their quantiles.
        let between = quantile_975(4.5);
        assert!(between < 2.776 && between > 2.571, "{between}");
    }

    #[test]
    fn an_interval_is_as_worked_out_by_hand() {
        // Mean 3, standard deviation sqrt(2.5), error sqrt(0.5), t(4) = 2.776.
        let estimate = estimate(&[1.0, 2.0, 3.0, 4.0, 5.0]).unwrap();
        close(estimate.mean, 3.0, 1e-12);
        close(estimate.half_width.unwrap(), 2.776_445 * 0.5_f64.sqrt(), 1e-5);
        assert_eq!(super::estimate(&[7.0]).unwrap().half_width, None);
        assert_eq!(super::estimate(&[]), None);
        close(relative_standard_error(&[1.0, 2.0, 3.0, 4.0, 5.0]).unwrap(), 0.5_f64.sqrt() / 3.0, 1e-12);
    }

    #[test]
    fn welch_agrees_with_a_known_example() {
        // Worked out step by step: error 0.98535, 27.83 degrees of freedom, t(27.83) = 2.0490.
        let a = [27.5, 21.0, 19.0, 23.6, 17.0, 17.9, 16.9, 20.1, 21.9, 22.6, 23.1, 19.6, 19.0, 21.7, 21.4];
        let b = [27.1, 22.0, 20.8, 23.4, 23.4, 23.5, 25.8, 22.0, 24.8, 20.2, 21.9, 22.1, 22.9, 30.3, 23.9];
        let difference = difference(&a, &b).unwrap();
        close(difference.mean, -2.786_667, 1e-5);
        assert!(difference.is_significant());
        close(difference.interval.1, -2.786_667 + 2.0490 * 0.985_353, 2e-3);
        close(difference.interval.0, -2.786_667 - 2.0490 * 0.985_353, 2e-3);
    }

    #[test]
    fn samples_that_do_not_vary_differ_or_not() {
        assert!(!difference(&[2.0, 2.0], &[2.0, 2.0]).unwrap().is_significant());
        assert!(difference(&[3.0, 3.0], &[2.0, 2.0]).unwrap().is_significant());
        assert_eq!(difference(&[3.0], &[2.0, 2.0]), None);
    }

    #[test]
    fn medians() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }
}

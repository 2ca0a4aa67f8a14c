//! Charts that several experiments share.

use std::borrow::Cow::Borrowed;

use crate::study::{Chart, Form};

/// A chart of one metric.
pub(super) const fn chart(
    form: Form,
    title: &'static str,
    metric: &'static str,
    y_label: &'static str,
    x_label: &'static str,
) -> Chart {
    let (title, metric) = (Borrowed(title), Borrowed(metric));
    Chart { title, metric, x_label: Borrowed(x_label), y_label: Borrowed(y_label), form }
}

/// A chart of lines.
pub(super) const fn lines(
    title: &'static str,
    metric: &'static str,
    y_label: &'static str,
    x_label: &'static str,
) -> Chart {
    chart(Form::Lines, title, metric, y_label, x_label)
}

/// The same where places differ by decades.
pub(super) const fn log_lines(
    title: &'static str,
    metric: &'static str,
    y_label: &'static str,
    x_label: &'static str,
) -> Chart {
    chart(Form::LogLines, title, metric, y_label, x_label)
}

const OUTSTANDING: &str = "proposals outstanding";

/// Multiples of what the first series, by name, has.
pub(super) const fn ratios(
    title: &'static str,
    metric: &'static str,
    y_label: &'static str,
    x_label: &'static str,
) -> Chart {
    chart(Form::Ratios, title, metric, y_label, x_label)
}

/// Decided proposals a second.
pub(super) const THROUGHPUT: Chart = Chart {
    title: Borrowed("Throughput"),
    metric: Borrowed("throughput"),
    x_label: Borrowed(OUTSTANDING),
    y_label: Borrowed("proposals decided a second"),
    form: Form::LogLines,
};

/// Mean latency over proposals outstanding.
pub(super) const MEAN_LATENCY: Chart = Chart {
    title: Borrowed("Mean latency"),
    metric: Borrowed("mean_ms"),
    x_label: Borrowed(OUTSTANDING),
    y_label: Borrowed("ms"),
    form: Form::LogLines,
};

/// Median latency over proposals outstanding.
pub(super) const MEDIAN_LATENCY: Chart =
    Chart { title: Borrowed("Median latency"), metric: Borrowed("median_ms"), ..MEAN_LATENCY };

/// The longest interruption.
pub(super) const GAP: Chart = Chart {
    title: Borrowed("Longest time without an answer"),
    metric: Borrowed("gap_ms"),
    x_label: Borrowed(OUTSTANDING),
    y_label: Borrowed("ms"),
    form: Form::Dots,
};

/// Answers over time.
pub(super) const ANSWERS: Chart = Chart {
    title: Borrowed("Answers over time"),
    metric: Borrowed("throughput"),
    x_label: Borrowed("seconds"),
    y_label: Borrowed("answers a second"),
    form: Form::Timeline,
};

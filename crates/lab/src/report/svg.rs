//! Pictures: curves, bars and answers over time, as SVG inside a page.

use std::{
    collections::BTreeSet,
    fmt::{self, Write as _},
};

use super::{html::escape, text::number};
use crate::study::{Chart, Fact, Form, PointSummary, Summary};

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 360.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 220.0;
const TOP: f64 = 16.0;
const BOTTOM: f64 = 52.0;
/// Colours that people with any kind of sight tell apart (Okabe and Ito).
const COLOURS: [&str; 8] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999933"];

/// A line of a drawing.
macro_rules! draw {
    ($out:expr, $($arg:tt)*) => { $out.line(format_args!($($arg)*)) };
}

struct Drawing(String);

impl Drawing {
    fn line(&mut self, line: fmt::Arguments<'_>) {
        // Writing to a string does not fail.
        let _ = writeln!(self.0, "{line}");
    }
}

/// From values to places on the page.
struct Axes {
    x: (f64, f64),
    y_max: f64,
    log: bool,
}

impl Axes {
    fn x(&self, value: f64) -> f64 {
        let place = |value: f64| if self.log { value.max(1e-9).log10() } else { value };
        let (from, to) = (place(self.x.0), place(self.x.1));
        let share = if to > from { (place(value) - from) / (to - from) } else { 0.5 };
        LEFT + share * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, value: f64) -> f64 {
        let share = (value / self.y_max).clamp(0.0, 1.0);
        HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)
    }
}

/// The picture of a chart; nothing, if nothing of it was measured.
pub(super) fn chart(summary: &Summary, chart: &Chart) -> Option<String> {
    match chart.form {
        Form::Timeline => timeline(summary, chart),
        Form::Bars => bars(summary, chart),
        Form::Lines | Form::LogLines => lines(summary, chart),
    }
}

fn points_of<'a>(summary: &'a Summary, chart: &Chart) -> (Vec<&'a PointSummary>, Vec<&'a Fact>) {
    let points = summary.points.iter().filter(|point| point.metric == chart.metric).collect();
    let facts = summary.facts.iter().filter(|fact| fact.metric == chart.metric).collect();
    (points, facts)
}

/// The series in a fixed order, so that a colour stands for the same in all pictures of a run.
fn series(summary: &Summary) -> Vec<&str> {
    let measured = summary.points.iter().map(|point| point.series.as_str());
    let printed = summary.facts.iter().map(|fact| fact.series.as_ref());
    measured.chain(printed).collect::<BTreeSet<_>>().into_iter().collect()
}

fn colour(all: &[&str], series: &str) -> &'static str {
    let index = all.iter().position(|&one| one == series).unwrap_or(0);
    COLOURS[index % COLOURS.len()]
}

fn lines(summary: &Summary, chart: &Chart) -> Option<String> {
    let (points, facts) = points_of(summary, chart);
    let places: Vec<f64> =
        points.iter().map(|point| point.x).chain(facts.iter().map(|fact| fact.x)).collect();
    let x_min = places.iter().copied().fold(f64::INFINITY, f64::min);
    let x_max = places.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if points.is_empty() {
        return None;
    }
    let tops = points.iter().map(|point| point.mean + point.half_width.unwrap_or(0.0).min(point.mean));
    let y_max = tops.chain(facts.iter().map(|fact| fact.value)).fold(0.0, f64::max);
    let axes = Axes { x: (x_min, x_max), y_max: round_up(y_max), log: chart.form == Form::LogLines };
    let mut ticks: Vec<f64> = places;
    ticks.sort_by(f64::total_cmp);
    ticks.dedup();
    let labels: Vec<_> = ticks.iter().map(|&x| (axes.x(x), number(x))).collect();
    let mut drawing = frame(chart, &axes, &labels);
    let all = series(summary);
    for (row, name) in all.iter().enumerate() {
        let colour = colour(&all, name);
        let own: Vec<_> = points.iter().filter(|point| point.series == *name).collect();
        let path: Vec<_> =
            own.iter().map(|point| format!("{:.1},{:.1}", axes.x(point.x), axes.y(point.mean))).collect();
        if path.len() > 1 {
            draw!(
                drawing,
                r#"<polyline points="{}" fill="none" stroke="{colour}" stroke-width="2"/>"#,
                path.join(" ")
            );
        }
        for point in own {
            mark(&mut drawing, &axes, axes.x(point.x), point, colour);
        }
        for fact in facts.iter().filter(|fact| fact.series == *name) {
            let (x, y) = (axes.x(fact.x), axes.y(fact.value));
            draw!(
                drawing,
                r#"<rect x="{:.1}" y="{:.1}" width="8" height="8" fill="none" stroke="{colour}"><title>{}: {}, {}</title></rect>"#,
                x - 4.0,
                y - 4.0,
                escape(name),
                number(fact.value),
                escape(&fact.place)
            );
        }
        legend(&mut drawing, row, name, colour);
    }
    finish(drawing, all.len(), !facts.is_empty())
}

/// A mean with its confidence interval.
fn mark(drawing: &mut Drawing, axes: &Axes, x: f64, point: &PointSummary, colour: &str) {
    let title = format!("{} at {}: {}", point.series, number(point.x), super::text::estimate(point));
    let title = escape(&title);
    if let Some(half) = point.half_width {
        let (low, high) = (axes.y((point.mean - half).max(0.0)), axes.y(point.mean + half));
        draw!(
            drawing,
            r#"<line x1="{x:.1}" x2="{x:.1}" y1="{low:.1}" y2="{high:.1}" stroke="{colour}" stroke-opacity="0.6"/>"#
        );
    }
    let y = axes.y(point.mean);
    draw!(
        drawing,
        r#"<circle cx="{x:.1}" cy="{y:.1}" r="3.5" fill="{colour}"><title>{title}</title></circle>"#
    );
}

fn bars(summary: &Summary, chart: &Chart) -> Option<String> {
    let (points, facts) = points_of(summary, chart);
    if points.is_empty() {
        return None;
    }
    let tops = points.iter().map(|point| point.mean + point.half_width.unwrap_or(0.0).min(point.mean));
    let y_max = round_up(tops.chain(facts.iter().map(|fact| fact.value)).fold(0.0, f64::max));
    let axes = Axes { x: (0.0, points.len() as f64), y_max, log: false };
    let all = series(summary);
    let step = (WIDTH - LEFT - RIGHT) / points.len() as f64;
    let centre = |index: usize| LEFT + (index as f64 + 0.5) * step;
    let labels: Vec<_> =
        points.iter().enumerate().map(|(index, point)| (centre(index), number(point.x))).collect();
    let mut drawing = frame(chart, &axes, &labels);
    for (index, point) in points.iter().enumerate() {
        let colour = colour(&all, &point.series);
        let (x, y) = (centre(index) - step * 0.35, axes.y(point.mean));
        let height = HEIGHT - BOTTOM - y;
        let width = step * 0.7;
        draw!(
            drawing,
            r#"<rect x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}" fill="{colour}" fill-opacity="0.55"/>"#
        );
        mark(&mut drawing, &axes, centre(index), point, colour);
    }
    all.iter().enumerate().for_each(|(row, name)| legend(&mut drawing, row, name, colour(&all, name)));
    finish(drawing, all.len(), false)
}

fn timeline(summary: &Summary, chart: &Chart) -> Option<String> {
    let longest = summary.timelines.iter().map(|timeline| timeline.answers.len()).max()?;
    let all: Vec<_> = summary
        .timelines
        .iter()
        .map(|timeline| format!("{} at {}", timeline.series, number(timeline.x)))
        .collect();
    // Answers are counted in tenths of a second.
    let highest =
        summary.timelines.iter().flat_map(|timeline| &timeline.answers).copied().fold(0.0, f64::max);
    let axes = Axes { x: (0.0, longest as f64 / 10.0), y_max: round_up(highest * 10.0), log: false };
    let labels: Vec<_> = (0..=5)
        .map(|tick| axes.x.1 * f64::from(tick) / 5.0)
        .map(|seconds| (axes.x(seconds), number((seconds * 10.0).round() / 10.0)))
        .collect();
    let mut drawing = frame(chart, &axes, &labels);
    for (row, (timeline, name)) in summary.timelines.iter().zip(&all).enumerate() {
        let colour = COLOURS[row % COLOURS.len()];
        let place = |(index, answers): (usize, &f64)| {
            format!("{:.1},{:.1}", axes.x((index as f64 + 0.5) / 10.0), axes.y(answers * 10.0))
        };
        let path: Vec<_> = timeline.answers.iter().enumerate().map(place).collect();
        draw!(
            drawing,
            r#"<polyline points="{}" fill="none" stroke="{colour}" stroke-width="1.5"/>"#,
            path.join(" ")
        );
        legend(&mut drawing, row, name, colour);
    }
    finish(drawing, all.len(), false)
}

/// The axes with their labels.
fn frame(chart: &Chart, axes: &Axes, labels: &[(f64, String)]) -> Drawing {
    let mut drawing = Drawing(String::new());
    let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
    for tick in 0..=4 {
        let value = axes.y_max * f64::from(tick) / 4.0;
        let y = axes.y(value);
        draw!(drawing, "<line x1=\"{LEFT}\" x2=\"{right}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"#ddd\"/>");
        let (x, y, value) = (LEFT - 6.0, y + 4.0, number(value));
        draw!(drawing, r#"<text x="{x}" y="{y:.1}" text-anchor="end">{value}</text>"#);
    }
    draw!(drawing, r#"<path d="M{LEFT} {TOP}V{bottom}H{right}" fill="none" stroke="currentColor"/>"#);
    let y = bottom + 16.0;
    for (x, label) in labels {
        draw!(drawing, r#"<text x="{x:.1}" y="{y}" text-anchor="middle">{}</text>"#, escape(label));
    }
    let (x, y) = (f64::midpoint(LEFT, right), HEIGHT - 12.0);
    draw!(drawing, r#"<text x="{x}" y="{y}" text-anchor="middle">{}</text>"#, escape(&chart.x_label));
    let y = f64::midpoint(TOP, bottom);
    draw!(
        drawing,
        r#"<text transform="translate(14 {y}) rotate(-90)" text-anchor="middle">{}</text>"#,
        escape(&chart.y_label)
    );
    drawing
}

fn legend(drawing: &mut Drawing, row: usize, name: &str, colour: &str) {
    let (x, y) = (WIDTH - RIGHT + 14.0, TOP + 10.0 + row as f64 * 17.0);
    let box_y = y - 9.0;
    draw!(drawing, "<rect x=\"{x}\" y=\"{box_y}\" width=\"10\" height=\"10\" fill=\"{colour}\"/>");
    draw!(drawing, r#"<text x="{}" y="{y}">{}</text>"#, x + 15.0, escape(name));
}

fn finish(mut drawing: Drawing, rows: usize, with_facts: bool) -> Option<String> {
    let mut height = HEIGHT.max(TOP + 30.0 + rows as f64 * 17.0);
    if with_facts {
        let (x, y) = (WIDTH - RIGHT + 14.0, TOP + 16.0 + rows as f64 * 17.0);
        let box_y = y - 9.0;
        draw!(
            drawing,
            "<rect x=\"{x}\" y=\"{box_y}\" width=\"8\" height=\"8\" fill=\"none\" stroke=\"currentColor\"/>"
        );
        draw!(drawing, r#"<text x="{}" y="{y}">printed in the document</text>"#, x + 15.0);
        height = height.max(y + 10.0);
    }
    let body = drawing.0;
    Some(format!(
        "<svg viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" font-size=\"12\" fill=\"currentColor\" role=\"img\">\n{body}</svg>\n"
    ))
}

/// The next number of one digit and zeros, or one and a half of it.
fn round_up(value: f64) -> f64 {
    if value <= 0.0 {
        return 1.0;
    }
    let unit = 10_f64.powf(value.log10().floor());
    let steps = [1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0];
    steps.iter().map(|step| step * unit).find(|&top| top >= value * 1.02).unwrap_or(unit * 12.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_axis_ends_above_the_highest_value() {
        for value in [0.003, 1.0, 9.99, 177_310.0, 1e9] {
            let top = round_up(value);
            assert!(top > value && top < value * 1.6, "{value} under {top}");
        }
        assert!(round_up(0.0) > 0.0);
    }
}

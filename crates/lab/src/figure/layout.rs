//! Lays out a figure.

use super::{
    Figure, Kind, Panel, Point, Series, labels,
    numbers::{Range, number},
    scene::{Anchor, Scene},
    style::{FAINT, GREY, INK, PALE, PAPER, Style},
    typeface::{ASCENT, clip, width, wrap},
};

/// The width of every figure.
pub(super) const WIDTH: f64 = 760.0;
const MARGIN: f64 = 10.0;
/// Sizes of text.
const HEADING: f64 = 14.0;
const LABEL: f64 = 11.0;
const SMALL: f64 = 10.0;
/// A line of labels, of events, and of the caption.
const LINE: f64 = 13.0;
/// Between a line's end and its label, with a marker in between.
const LEAD: f64 = 20.0;
/// The widest label of a line, and the widest name of a row of dots.
const LABEL_MAX: f64 = 170.0;
/// About how many markers a line has. An axis has a number at each place if there are no more places than this.
const MARKS: usize = 10;
/// Panels have axes of their own if the last place of one is this many times as far as that of another.
const OWN_AXIS: f64 = 5.0;
/// Between two panels.
const GAP: f64 = 22.0;
const EVENT_DASH: &[f64] = &[3.0, 3.0];

/// The plot of a panel, without the text around it.
#[derive(Clone, Copy, Debug)]
struct Frame {
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
}

/// Draws a figure.
pub(super) fn lay_out(figure: &Figure) -> Scene {
    let mut scene = Scene { width: WIDTH, ..Scene::default() };
    let mut y = MARGIN;
    for line in wrap(&figure.title, HEADING, WIDTH - 2.0 * MARGIN) {
        y += HEADING + 3.0;
        scene.text((MARGIN, y - 3.0), HEADING, Anchor::Start, INK, line);
    }
    for line in wrap(&figure.y_label, LABEL, WIDTH - 2.0 * MARGIN) {
        y += if line.is_empty() { 0.0 } else { LINE };
        scene.text((MARGIN, y), LABEL, Anchor::Start, GREY, line);
    }
    y += 6.0;
    y = match figure.kind {
        Kind::Lines => lines(&mut scene, figure, y),
        Kind::Dots => dots(&mut scene, figure, y),
    };
    y += 6.0;
    for line in wrap(&figure.caption.join(" "), SMALL, WIDTH - 2.0 * MARGIN) {
        y += LINE;
        scene.text((MARGIN, y), SMALL, Anchor::Start, GREY, line);
    }
    scene.height = (y + MARGIN).ceil();
    scene
}

/// The ends of a value's interval that can be drawn on this kind of axis, with the value.
fn extent(point: &Point) -> impl Iterator<Item = f64> + Clone {
    let (low, high) = point.interval.unwrap_or((point.y, point.y));
    // The interval of a value that cannot be negative may be; it is drawn down to the axis.
    let low = if low <= 0.0 { point.y } else { low };
    [point.y, low, high].into_iter()
}

fn values<'a>(panels: &'a [Panel]) -> impl Iterator<Item = f64> + Clone + 'a {
    let series = panels.iter().flat_map(|panel| &panel.series);
    series.flat_map(|series| series.points.iter().chain(&series.printed)).flat_map(extent)
}

/// The width that the labels of these lines need, with what leads to them.
fn label_room(names: &[&str]) -> f64 {
    let lines = names.iter().flat_map(|name| wrap(name, LABEL, LABEL_MAX));
    let widest = lines.map(|line| width(&line, LABEL)).fold(0.0, f64::max);
    if widest > 0.0 { LEAD + widest + 4.0 } else { 0.0 }
}

/// The horizontal axis of each column: the same for all, but in a row of panels of which one has all its places at the
/// left end of another's axis, and that is not logarithmic. There each has its own.
fn places(figure: &Figure, columns: usize) -> Vec<Range> {
    let of = |panels: &[Panel]| -> Vec<f64> {
        let series = panels.iter().flat_map(|panel| &panel.series);
        series.flat_map(|series| series.points.iter().chain(&series.printed)).map(|point| point.x).collect()
    };
    let last = |panel: &Panel| of(std::slice::from_ref(panel)).into_iter().fold(0.0, f64::max);
    let lasts: Vec<f64> = figure.panels.iter().map(last).collect();
    let least = lasts.iter().copied().fold(f64::INFINITY, f64::min);
    let most = lasts.iter().copied().fold(0.0, f64::max);
    if !figure.x_log && lasts.len() <= columns && least * OWN_AXIS < most {
        return figure.panels.chunks(1).map(|panel| Range::of_places(&of(panel), figure.x_log)).collect();
    }
    vec![Range::of_places(&of(&figure.panels), figure.x_log); columns]
}

/// Whether the last panel of a row has every line of it, so that its labels serve the whole row.
fn last_has_every_line(row: &[Panel]) -> bool {
    let last = row.last().map_or(&[][..], |panel| &panel.series);
    let mut all = row.iter().flat_map(|panel| &panel.series);
    all.all(|series| last.iter().any(|its| its.name == series.name))
}

/// Draws panels of lines from `y` on, and returns where they end.
fn lines(scene: &mut Scene, figure: &Figure, mut y: f64) -> f64 {
    let columns = figure.columns.clamp(1, figure.panels.len().max(1));
    let names = figure.names();
    let all = Range::around(values(&figure.panels));
    let range_of = |row: &[Panel]| if figure.free_rows { Range::around(values(row)) } else { all.clone() };
    let ranges = places(figure, columns);
    let rows: Vec<&[Panel]> = figure.panels.chunks(columns).collect();
    let mark_width = rows
        .iter()
        .flat_map(|row| range_of(row).marks)
        .map(|mark| width(&number(mark), SMALL))
        .fold(0.0, f64::max);
    let label_room = label_room(&names);
    let once = rows.iter().all(|row| last_has_every_line(row));
    let room = if once { 0.0 } else { label_room };
    let left = MARGIN + mark_width + 8.0;
    // A number at the end of an axis is centred on its mark.
    let half = |mark: Option<&f64>| mark.map_or(0.0, |&mark| width(&number(mark), SMALL) / 2.0);
    let first_half = ranges.iter().map(|x| half(x.marks.first())).fold(0.0, f64::max);
    let last_half = ranges.iter().map(|x| half(x.marks.last())).fold(0.0, f64::max);
    let right = WIDTH - MARGIN - if once { label_room.max(last_half - MARGIN + 4.0) } else { 0.0 };
    let gap = GAP.max(first_half + last_half + 8.0 - room);
    let slot = (right - left - gap * (columns - 1) as f64) / columns as f64;
    let plot = slot - room;
    let plain = match (columns, rows.len()) {
        (1, 1) => 270.0,
        (1, _) => 130.0,
        (2, _) => 190.0,
        _ => 150.0,
    };
    let frame_of = |column: usize, top: f64, height: f64| {
        let left = left + column as f64 * (slot + gap);
        Frame { left, right: left + plot, top, bottom: top + height }
    };
    for (index, row) in rows.iter().enumerate() {
        let range = range_of(row);
        let strip: Vec<_> = row.iter().zip(&ranges).map(|(panel, x)| events(panel, x, plot)).collect();
        let strip_rows = strip.iter().flatten().map(|event| event.row + 1).max().unwrap_or(0);
        let titles: Vec<_> = row.iter().map(|panel| wrap(&panel.title, LABEL, slot)).collect();
        let title_rows = titles.iter().filter(|lines| !lines[0].is_empty()).map(Vec::len).max().unwrap_or(0);
        y += 6.0 + LINE * (title_rows + strip_rows) as f64;
        let needed = row.iter().map(labels_height).fold(0.0, f64::max);
        let height = f64::max(needed, plain);
        for (column, panel) in row.iter().enumerate() {
            let frame = frame_of(column, y, height);
            let lowest = y - LINE * strip_rows as f64 - 5.0;
            for (line, above) in titles[column].iter().rev().zip(0..) {
                let base = lowest - LINE * f64::from(above);
                scene.text((frame.left, base), LABEL, Anchor::Start, INK, line.clone());
            }
            let below = index * columns + column + columns >= figure.panels.len();
            let x = &ranges[column];
            axes(scene, &frame, x, &range, column == 0, below);
            mark_events(scene, &frame, &strip[column]);
            let labelled = !once || column + 1 == row.len();
            curves(scene, &frame, x, &range, panel, &names, labelled);
        }
        y += height + 8.0;
    }
    y += LINE + 4.0;
    let middle = f64::midpoint(left, left + columns as f64 * (slot + gap) - gap - room);
    scene.text(
        (middle, y + LINE - 2.0),
        LABEL,
        Anchor::Middle,
        GREY,
        clip(&figure.x_label, LABEL, right - left),
    );
    y + LINE
}

/// The height that the labels of a panel need.
fn labels_height(panel: &Panel) -> f64 {
    panel.series.iter().map(|series| label_height(&series.name)).sum()
}

fn label_height(name: &str) -> f64 {
    wrap(name, LABEL, LABEL_MAX).len() as f64 * LINE + 1.0
}

/// A label of an event, with its places relative to the plot's left side.
struct Marked {
    at: f64,
    left: f64,
    row: usize,
    label: String,
}

fn events(panel: &Panel, x: &Range, plot: f64) -> Vec<Marked> {
    let place = |event: &super::Event| {
        let label = clip(&event.label, SMALL, plot);
        let (at, width) = (x.share(event.x) * plot, width(&label, SMALL));
        let left = (at - width / 2.0).clamp(0.0, (plot - width).max(0.0));
        (Marked { at, left, row: 0, label }, (left, left + width + 6.0))
    };
    let (mut marked, ends): (Vec<_>, Vec<_>) = panel.events.iter().map(place).unzip();
    for (event, row) in marked.iter_mut().zip(labels::rows(&ends)) {
        event.row = row;
    }
    marked
}

fn mark_events(scene: &mut Scene, frame: &Frame, events: &[Marked]) {
    for event in events {
        let (x, y) = (frame.left + event.at, frame.top - 4.0 - LINE * event.row as f64);
        scene.line(vec![(x, y + 2.0), (x, frame.bottom)], GREY, 1.0, EVENT_DASH);
    }
    for event in events {
        let y = frame.top - 4.0 - LINE * event.row as f64;
        // The leader lines of labels in higher rows pass through here.
        let (left, right) =
            (frame.left + event.left - 1.0, frame.left + event.left + width(&event.label, SMALL) + 1.0);
        let (top, bottom) = (y - ASCENT * SMALL, y + 2.0);
        let points = vec![(left, top), (right, top), (right, bottom), (left, bottom)];
        scene.shapes.push(super::scene::Shape::Polygon { points, fill: Some(PAPER), stroke: None });
        scene.text((frame.left + event.left, y), SMALL, Anchor::Start, INK, event.label.clone());
    }
}

/// The grid and the marks of a panel.
fn axes(scene: &mut Scene, frame: &Frame, x: &Range, y: &Range, left: bool, below: bool) {
    let mut free = f64::INFINITY;
    for &mark in &y.marks {
        let place = frame.bottom - y.share(mark) * (frame.bottom - frame.top);
        scene.line(vec![(frame.left, place), (frame.right, place)], PALE, 0.8, &[]);
        // A mark too near to the one below it has no number.
        if left && place + SMALL < free {
            scene.text((frame.left - 6.0, place + 3.5), SMALL, Anchor::End, INK, number(mark));
            free = place;
        }
    }
    horizontal(scene, frame, x, below);
    scene.line(vec![(frame.left, frame.top), (frame.left, frame.bottom)], INK, 0.8, &[]);
}

/// The horizontal axis, with numbers where they do not touch.
fn horizontal(scene: &mut Scene, frame: &Frame, x: &Range, numbered: bool) {
    scene.line(vec![(frame.left, frame.bottom), (frame.right, frame.bottom)], INK, 0.8, &[]);
    let place = |mark: f64| frame.left + x.share(mark) * (frame.right - frame.left);
    let mut free = f64::NEG_INFINITY;
    // The last mark always has its number, since it shows how far the axis goes.
    let last = x.marks.last().map(|&mark| place(mark) - width(&number(mark), SMALL) / 2.0 - 6.0);
    for (index, &mark) in x.marks.iter().enumerate() {
        let at = place(mark);
        scene.line(vec![(at, frame.bottom), (at, frame.bottom + 4.0)], INK, 0.8, &[]);
        let (text, is_last) = (number(mark), index + 1 == x.marks.len());
        let half = width(&text, SMALL) / 2.0;
        if numbered && at - half > free && (is_last || last.is_none_or(|last| at + half < last)) {
            scene.text((at, frame.bottom + 15.0), SMALL, Anchor::Middle, INK, text);
            free = at + half + 6.0;
        }
    }
}

/// The lines of a panel, with their labels.
fn curves(
    scene: &mut Scene,
    frame: &Frame,
    x: &Range,
    y: &Range,
    panel: &Panel,
    names: &[&str],
    labelled: bool,
) {
    let place = |point: &Point| {
        let (width, height) = (frame.right - frame.left, frame.bottom - frame.top);
        (frame.left + x.share(point.x) * width, frame.bottom - y.share(point.y) * height)
    };
    let style = |series: &Series| Style::of(names.iter().position(|name| *name == series.name).unwrap_or(0));
    for series in &panel.series {
        let style = style(series);
        let points: Vec<_> = series.points.iter().map(place).collect();
        for (point, &(at, _)) in series.points.iter().zip(&points) {
            let Some((low, high)) = point.interval else { continue };
            let [(_, bottom), (_, top)] = [low, high].map(|y| place(&Point { y, ..*point }));
            scene.line(vec![(at, bottom), (at, top)], style.colour, 0.9, &[]);
            for end in [bottom, top].into_iter().filter(|&end| end < frame.bottom) {
                scene.line(vec![(at - 3.0, end), (at + 3.0, end)], style.colour, 0.9, &[]);
            }
        }
        if points.len() > 1 && !series.apart {
            scene.line(points.clone(), style.colour, 1.5, style.dash);
        }
        // The markers of different lines begin at different points, so that they do not hide each other.
        let every = if series.apart { 1 } else { points.len().div_ceil(MARKS) };
        let first = names.iter().position(|name| *name == series.name).unwrap_or(0) * every.div_ceil(4)
            % every.max(1);
        // A line without a name is the only one.
        let count = if series.name.is_empty() && every > 1 { 0 } else { points.len() };
        scene
            .shapes
            .extend(points[..count].iter().skip(first).step_by(every.max(1)).map(|&(x, y)| style.mark(x, y)));
        scene.shapes.extend(series.printed.iter().map(place).map(|(x, y)| style.printed(x, y)));
    }
    if !labelled {
        return;
    }
    let named: Vec<_> = panel.series.iter().filter(|series| !series.name.is_empty()).collect();
    let heights: Vec<_> = named.iter().map(|series| label_height(&series.name)).collect();
    let end = |series: &Series| series.points.last().or(series.printed.last()).map(place);
    let ends: Vec<_> =
        named.iter().map(|series| end(series).unwrap_or((frame.right, frame.bottom))).collect();
    let wanted: Vec<_> = ends.iter().zip(&heights).map(|((_, y), height)| y - height / 2.0).collect();
    let tops = labels::spread(&wanted, &heights, frame.top - LINE / 2.0, frame.bottom + LINE / 2.0);
    for (((series, top), height), (end_x, end_y)) in named.iter().zip(tops).zip(heights).zip(ends) {
        let (style, middle) = (style(series), top + height / 2.0);
        let mark = frame.right + LEAD - 7.0;
        scene.line(vec![(end_x, end_y), (frame.right + 4.0, end_y), (mark, middle)], FAINT, 0.8, &[]);
        scene.shapes.push(style.mark(mark, middle));
        for (row, line) in (0..).zip(wrap(&series.name, LABEL, LABEL_MAX)) {
            let y = top + 10.0 + f64::from(row) * LINE;
            scene.text((frame.right + LEAD, y), LABEL, Anchor::Start, INK, line);
        }
    }
}

/// Draws panels of dots from `y` on, and returns where they end.
fn dots(scene: &mut Scene, figure: &Figure, mut y: f64) -> f64 {
    let columns = figure.columns.clamp(1, figure.panels.len().max(1));
    let names = figure.names();
    let range = Range::around(values(&figure.panels));
    let wrapped: Vec<_> = names.iter().map(|name| wrap(name, LABEL, LABEL_MAX)).collect();
    let name_width = wrapped.iter().flatten().map(|line| width(line, LABEL)).fold(0.0, f64::max);
    let figures =
        figure.panels.iter().flat_map(|panel| &panel.series).filter_map(|series| series.points.first());
    let value_width = figures.map(|point| width(&number(point.y), SMALL)).fold(0.0, f64::max);
    let left = MARGIN + name_width + 10.0;
    let slot = (WIDTH - MARGIN - left - 16.0 * (columns - 1) as f64) / columns as f64;
    let plot = slot - value_width - 8.0;
    let heights: Vec<_> = wrapped.iter().map(|lines| lines.len() as f64 * LINE + 4.0).collect();
    let height: f64 = heights.iter().sum();
    for row in figure.panels.chunks(columns) {
        y += if row.iter().any(|panel| !panel.title.is_empty()) { LINE + 8.0 } else { 6.0 };
        let mut top = y;
        for (lines, height) in wrapped.iter().zip(&heights) {
            for (index, line) in (0..).zip(lines) {
                let base = top + 11.5 + f64::from(index) * LINE;
                scene.text((left - 10.0, base), LABEL, Anchor::End, INK, line.clone());
            }
            top += height;
        }
        for (column, panel) in row.iter().enumerate() {
            let start = left + column as f64 * (slot + 16.0);
            let frame = Frame { left: start, right: start + plot, top: y, bottom: y + height };
            scene.text((start, y - 6.0), LABEL, Anchor::Start, INK, clip(&panel.title, LABEL, slot));
            for &mark in &range.marks {
                let at = frame.left + range.share(mark) * plot;
                scene.line(vec![(at, frame.top), (at, frame.bottom)], PALE, 0.8, &[]);
            }
            horizontal(scene, &frame, &range, true);
            let mut top = y;
            for (number, height) in heights.iter().enumerate() {
                let series = panel.series.iter().find(|series| series.name == names[number]);
                if let Some(series) = series {
                    dot(scene, &frame, &range, series, Style::of(number), top + height / 2.0);
                }
                top += height;
            }
        }
        y += height + 20.0;
    }
    y
}

/// Draws the value of a row, in the plot and as a number beside it.
fn dot(scene: &mut Scene, frame: &Frame, range: &Range, series: &Series, style: Style, y: f64) {
    let place = |value: f64| frame.left + range.share(value) * (frame.right - frame.left);
    scene.line(vec![(frame.left, y), (frame.right, y)], PALE, 0.8, &[1.0, 2.0]);
    if let Some(point) = series.points.first() {
        if let Some((low, high)) = point.interval {
            let (low, high) = (place(low), place(high));
            scene.line(vec![(low, y), (high, y)], style.colour, 1.0, &[]);
            for end in [low, high].into_iter().filter(|&end| end > frame.left) {
                scene.line(vec![(end, y - 3.0), (end, y + 3.0)], style.colour, 1.0, &[]);
            }
        }
        scene.shapes.push(style.mark(place(point.y), y));
        scene.text((frame.right + 8.0, y + 3.5), SMALL, Anchor::Start, INK, number(point.y));
    }
    scene.shapes.extend(series.printed.iter().map(|point| style.printed(place(point.y), y)));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figure::{Event, scene::Shape};

    fn series(name: &str, values: &[f64]) -> Series {
        let point = |(x, &y): (usize, &f64)| Point {
            x: 10_f64.powi(x as i32),
            y,
            interval: Some((y * 0.5, y * 1.5)),
        };
        Series {
            name: name.to_owned(),
            points: values.iter().enumerate().map(point).collect(),
            ..Series::default()
        }
    }

    fn figure(kind: Kind, columns: usize, panels: Vec<Panel>) -> Figure {
        Figure {
            title: "Throughput of a group that changes its protocol under load, on one machine and then on three: ".repeat(2),
            y_label: "proposals decided a second".to_owned(),
            x_label: "proposals outstanding".to_owned(),
            x_log: true,
            kind,
            panels,
            columns,
            free_rows: false,
            caption: vec!["A sentence about what was measured.".to_owned(); 6],
        }
    }

    /// Texts and where they are.
    fn texts(scene: &Scene) -> Vec<(&str, [f64; 4])> {
        let mut texts = Vec::new();
        for shape in &scene.shapes {
            if let Shape::Text { text, .. } = shape {
                texts.push((text.as_str(), shape.bounds()));
            }
        }
        texts
    }

    fn check(figure: &Figure) -> Scene {
        let scene = lay_out(figure);
        for shape in &scene.shapes {
            let [left, top, right, bottom] = shape.bounds();
            let inside = left >= 0.0 && top >= 0.0 && right <= scene.width && bottom <= scene.height;
            let finite = [left, top, right, bottom].iter().all(|place| place.is_finite());
            assert!(inside && finite, "{shape:?} leaves {} x {}", scene.width, scene.height);
        }
        let texts = texts(&scene);
        for (index, (a, [left, top, right, bottom])) in texts.iter().enumerate() {
            for (b, other) in &texts[..index] {
                let apart =
                    *right <= other[0] || other[2] <= *left || *bottom <= other[1] || other[3] <= *top;
                assert!(apart, "'{a}' and '{b}' overlap");
            }
        }
        scene
    }

    /// The hardest case for labels: many series with long names that all end at one place.
    fn crowd(count: usize, values: &[f64]) -> Vec<Series> {
        let name = |number: usize| match number % 3 {
            0 => format!("sequence-paxos/ballot, leader in california, without sydney, pull, line {number}"),
            1 => format!("raft {number}"),
            _ => format!("multipaxos>sequence-paxos>raft>multipaxos>sequence-paxos-{number}"),
        };
        (0..count).map(|number| series(&name(number), values)).collect()
    }

    #[test]
    fn nothing_that_is_written_overlaps_or_leaves_the_page() {
        for kind in [Kind::Lines, Kind::Dots] {
            for (count, panels, columns) in
                [(1, 1, 1), (6, 1, 1), (25, 1, 1), (4, 9, 3), (3, 4, 2), (2, 5, 1), (4, 7, 3)]
            {
                for values in
                    [&[5.0, 5.0, 5.0, 5.0][..], &[1.0, 30.0, 900.0, 1_000_000.0], &[0.0, 0.0], &[1e-4]]
                {
                    let panel = |number| Panel {
                        title: format!(
                            "a protocol with a long name, {number} replicas, and whatever else distinguishes it"
                        ),
                        series: crowd(count, values),
                        events: Vec::new(),
                    };
                    check(&figure(kind, columns, (0..panels).map(panel).collect()));
                }
            }
        }
    }

    #[test]
    fn labels_stand_in_every_panel_if_the_last_one_lacks_a_line() {
        let panel = |count| Panel { series: crowd(count, &[1.0, 2.0]), ..Panel::default() };
        let count = |panels: Vec<Panel>| {
            let scene = check(&figure(Kind::Lines, 2, panels));
            texts(&scene).iter().filter(|(text, _)| *text == "raft 1").count()
        };
        assert_eq!(count(vec![panel(3), panel(3)]), 1);
        assert_eq!(count(vec![panel(3), panel(1)]), 1);
        assert_eq!(count(vec![panel(3), panel(2), panel(3), panel(1)]), 3);
    }

    #[test]
    fn panels_have_axes_of_their_own_if_the_places_of_one_would_lie_at_the_end_of_anothers() {
        let panel = |scale: f64| {
            let point = |x: f64| Point { x: x * scale, y: 1.0, interval: None };
            let points = [1.0, 2.0, 6.0].map(point).to_vec();
            Panel { series: vec![Series { points, ..Series::default() }], ..Panel::default() }
        };
        let highs = |scales: &[f64], columns: usize| -> Vec<f64> {
            let panels = scales.iter().map(|&scale| panel(scale)).collect();
            let ranges = places(&Figure { x_log: false, ..figure(Kind::Lines, columns, panels) }, columns);
            ranges.iter().map(|range| range.high).collect()
        };
        assert_eq!(highs(&[1.0, 100.0], 2), [6.0, 600.0]);
        assert_eq!(highs(&[1.0, 2.0], 2), [12.0; 2], "near each other");
        assert_eq!(highs(&[1.0, 100.0, 1.0], 2), [600.0; 2], "several rows");
        let two = Figure { x_log: false, ..figure(Kind::Lines, 2, vec![panel(1.0), panel(1000.0)]) };
        assert!(texts(&check(&two)).iter().any(|(text, _)| *text == "6,000"));
    }

    #[test]
    fn events_are_marked_by_a_line_and_a_label() {
        let events =
            ["to sequence-paxos/rotating", "to raft", "to multipaxos", "to sequence-paxos", "to raft again"];
        let event = |(place, label): (usize, &&str)| Event {
            x: 30.0 + 3.0 * place as f64,
            label: (*label).to_owned(),
        };
        let panel = Panel {
            series: vec![series("a", &[1.0, 4.0, 2.0])],
            events: events.iter().enumerate().map(event).collect(),
            ..Panel::default()
        };
        for columns in [1, 3] {
            let scene = check(&figure(Kind::Lines, columns, vec![panel.clone(); columns]));
            let dashed = |shape: &&Shape| matches!(shape, Shape::Line { dash: EVENT_DASH, .. });
            assert_eq!(scene.shapes.iter().filter(dashed).count(), events.len() * columns);
            for label in events {
                assert_eq!(
                    texts(&scene).iter().filter(|(text, _)| *text == label).count(),
                    columns,
                    "{label}"
                );
            }
        }
    }

    #[test]
    fn lines_lie_between_the_marks_of_their_values() {
        let panel = Panel { series: vec![series("a", &[1.0, 50.0, 1000.0])], ..Panel::default() };
        let scene = check(&figure(Kind::Lines, 1, vec![panel]));
        let at = |wanted: &str| {
            let found = texts(&scene).into_iter().find(|(text, _)| *text == wanted);
            found
                .map(|(_, [_, top, _, bottom])| f64::midpoint(top, bottom))
                .unwrap_or_else(|| panic!("no {wanted}"))
        };
        let line = scene.shapes.iter().find_map(|shape| match shape {
            Shape::Line { points, .. }
                if points.len() == 3 && points[0].0 < points[1].0 - 1.0 && points[2].1 < points[1].1 =>
            {
                Some(points)
            }
            _ => None,
        });
        let middle = line.expect("the line is drawn")[1].1;
        assert!(at("100") < middle && middle < at("10"), "50 is between 10 and 100 on a logarithmic axis");
    }
}

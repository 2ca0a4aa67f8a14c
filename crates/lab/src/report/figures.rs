//! Makes figures of a run: decides which lines share a panel, and writes the caption.

use std::collections::BTreeSet;

use super::{Run, text};
use crate::{
    figure::{
        Event, Figure, Kind, Panel, Point, Series,
        numbers::{date, number},
    },
    study::{Chart, Environment, Form, PointSummary, Summary},
};

/// More lines than this are spread over several panels.
const TOGETHER_MAX: usize = 5;
/// The most lines of a panel that is one of several.
const PANEL_MAX: usize = 4;
/// The most columns of panels.
const COLUMNS_MAX: usize = 3;

/// A line that has no panel yet, with the parts of its name that distinguish it.
struct Line {
    parts: Vec<String>,
    series: Series,
    events: Vec<Event>,
}

/// The figure of a chart; `None` if none of it was measured.
pub(super) fn figure(run: &Run, chart: &Chart) -> Option<Figure> {
    let summary = &run.summary;
    let mut lines = match chart.form {
        Form::Timeline | Form::Levels => timelines(summary, chart.form),
        Form::Lines | Form::LogLines | Form::Points | Form::Ratios => curves(summary, chart),
        Form::Dots => dots(summary, chart),
    };
    if lines.is_empty() {
        return None;
    }
    let compared_with = (chart.form == Form::Ratios).then(|| divide_by_first(&mut lines));
    let places_vary = varies(&lines, 0);
    let common = factor(&mut lines);
    let parts = lines[0].parts.len();
    let (kind, facets) = match chart.form {
        // The place is the first part.
        Form::Dots if parts > 1 && places_vary => (Kind::Dots, vec![0]),
        Form::Dots => (Kind::Dots, Vec::new()),
        // Groups under different loads answer at rates that differ by orders of magnitude, so each load has a
        // row of its own.
        Form::Timeline if places_vary => {
            let others = facets(&lines, 1, PANEL_MAX);
            (Kind::Lines, [vec![0], others].concat())
        }
        // They are there to be compared.
        Form::Ratios => (Kind::Lines, Vec::new()),
        _ if lines.len() <= TOGETHER_MAX => (Kind::Lines, Vec::new()),
        _ => (Kind::Lines, facets(&lines, 0, PANEL_MAX)),
    };
    let panels = into_panels(lines, &facets);
    let first = |panel: &Panel| panel.title.split(", ").next().map(str::to_owned);
    let in_first_row = panels.iter().take_while(|panel| first(panel) == first(&panels[0])).count();
    let columns = match panels.len() {
        _ if facets.len() > 1 || chart.form == Form::Timeline => in_first_row.min(COLUMNS_MAX),
        4 => 2,
        count => count.min(COLUMNS_MAX),
    };
    Some(Figure {
        title: format!("{}: {}", summary.title, chart.title),
        y_label: match &compared_with {
            Some(first) => {
                let better = if chart.y_label.starts_with("ms") { "lower" } else { "higher" };
                format!("as a multiple of {first}, the default: {better} is better")
            }
            None => chart.y_label.to_string(),
        },
        x_label: chart.x_label.to_string(),
        x_log: matches!(chart.form, Form::LogLines | Form::Ratios),
        kind,
        panels,
        columns,
        free_rows: chart.form.is_over_time(),
        caption: caption(run, chart, &common),
    })
}

fn parts(series: &str) -> Vec<String> {
    series.split(", ").map(str::to_owned).collect()
}

fn curves(summary: &Summary, chart: &Chart) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    let mut names: Vec<&str> = Vec::new();
    for point in summary.points.iter().filter(|point| point.metric == chart.metric) {
        if names.last() != Some(&point.series.as_str()) {
            names.push(&point.series);
            let facts = summary.facts.iter();
            let own = facts.filter(|fact| fact.metric == chart.metric && fact.series == point.series);
            let printed = own.map(|fact| Point { x: fact.x, y: fact.value, interval: None }).collect();
            let series = Series { printed, apart: chart.form == Form::Points, ..Series::default() };
            lines.push(Line { parts: parts(&point.series), series, events: Vec::new() });
        }
        let line = lines.last_mut().expect("it was added");
        line.series.points.push(match chart.form {
            Form::Points => Point { x: point.x, y: point.median, interval: None },
            _ => measured(point),
        });
    }
    lines
}

/// Divides all values, with their intervals, by the first line's value at the same place. Where that line has none, the
/// others have none either. The name of each line becomes one part, with the last multiple behind it. Returns the name
/// of the first line.
fn divide_by_first(lines: &mut [Line]) -> String {
    let name = lines[0].parts.join(", ");
    let first: Vec<(f64, f64)> = lines[0].series.points.iter().map(|point| (point.x, point.y)).collect();
    let share = |point: &Point| {
        let &(_, by) = first.iter().find(|(x, y)| (x - point.x).abs() < 1e-9 && *y > 0.0)?;
        let interval = point.interval.map(|(low, high)| (low / by, high / by));
        Some(Point { y: point.y / by, interval, ..*point })
    };
    for Line { parts, series, .. } in lines {
        for points in [&mut series.points, &mut series.printed] {
            *points = points.iter().filter_map(share).collect();
        }
        let multiple = series.points.last().map_or(String::new(), |point| format!(": {:.2}", point.y));
        *parts = vec![parts.join(", ") + &multiple];
    }
    name
}

fn measured(point: &PointSummary) -> Point {
    let ends = |half: f64| ((point.mean - half).max(0.0), point.mean + half);
    Point { x: point.x, y: point.mean, interval: point.half_width.filter(|half| *half > 0.0).map(ends) }
}

/// A line for each value, with its place first.
fn dots(summary: &Summary, chart: &Chart) -> Vec<Line> {
    let mut points: Vec<_> = summary.points.iter().filter(|point| point.metric == chart.metric).collect();
    points.sort_by(|a, b| a.x.total_cmp(&b.x));
    let line = |point: &&PointSummary| {
        let facts =
            summary.facts.iter().filter(|fact| fact.metric == chart.metric && fact.series == point.series);
        let printed = facts.filter(|fact| (fact.x - point.x).abs() < 1e-9);
        let series = Series {
            points: vec![measured(point)],
            printed: printed.map(|fact| Point { x: fact.x, y: fact.value, interval: None }).collect(),
            ..Series::default()
        };
        let place = format!("{} {}", number(point.x), chart.x_label);
        Line { parts: [vec![place], parts(&point.series)].concat(), series, events: Vec::new() }
    };
    points.iter().map(line).collect()
}

/// A line for each timeline, with its load first. Answers are counted in tenths of a second, and shown for a second.
fn timelines(summary: &Summary, form: Form) -> Vec<Line> {
    let scale = if form == Form::Timeline { 10.0 } else { 1.0 };
    let mut timelines: Vec<_> = summary.timelines.iter().collect();
    // The lines are in the order of the points, so that a style means the same in all figures of a run.
    timelines.sort_by(|a, b| a.x.total_cmp(&b.x).then_with(|| a.series.cmp(&b.series)));
    let line = |timeline: &&crate::study::Timeline| {
        let point = |(index, answers): (usize, &f64)| Point {
            x: (index as f64 + 0.5) / 10.0,
            y: answers * scale,
            interval: None,
        };
        let points = timeline.answers.iter().enumerate().map(point).collect();
        let load = (form == Form::Timeline).then(|| format!("c = {}", number(timeline.x)));
        Line {
            parts: load.into_iter().chain(parts(&timeline.series)).collect(),
            series: Series { points, ..Series::default() },
            events: timeline
                .events
                .iter()
                .map(|event| Event { x: event.at, label: event.what.clone() })
                .collect(),
        }
    };
    timelines.iter().map(line).collect()
}

/// Whether the lines differ in a part of their names.
fn varies(lines: &[Line], part: usize) -> bool {
    lines.iter().any(|line| line.parts.get(part) != lines[0].parts.get(part))
}

/// Removes the parts that all lines have in common. Of names with different numbers of parts, only the last part is one
/// of its own, and only if several lines share one: `version 2, one echo` with a fan-out. Otherwise they stay whole.
fn factor(lines: &mut [Line]) -> Vec<String> {
    if lines.iter().any(|line| line.parts.len() != lines[0].parts.len()) {
        let lasts: BTreeSet<_> = lines.iter().filter_map(|line| line.parts.last().cloned()).collect();
        let shared = lasts.len() < lines.len() && lines.iter().all(|line| line.parts.len() > 1);
        for Line { parts, .. } in &mut *lines {
            let last = if shared { parts.pop() } else { None };
            *parts = [parts.join(", ")].into_iter().chain(last).collect();
        }
    }
    let count = lines[0].parts.len();
    let kept: Vec<usize> = (0..count).filter(|&part| varies(lines, part)).collect();
    let common =
        (0..count).filter(|part| !kept.contains(part)).map(|part| lines[0].parts[part].clone()).collect();
    for line in lines {
        line.parts = kept.iter().map(|&part| line.parts[part].clone()).collect();
    }
    common
}

/// The fewest parts, from `from` on, by which lines can be split into panels of at most `most` lines. Of
/// several such choices it is the one with the fewest panels.
fn facets(lines: &[Line], from: usize, most: usize) -> Vec<usize> {
    let count = lines[0].parts.len();
    let mut choices: Vec<Vec<usize>> = (0..1_usize << (count - from.min(count)))
        .map(|set| (from..count).filter(|part| set >> (part - from) & 1 == 1).collect())
        .collect();
    choices.sort_by_key(Vec::len);
    let panels = |choice: &Vec<usize>| {
        // Lines that differ in an earlier part are in different panels anyway.
        let by: Vec<usize> = (0..from).chain(choice.iter().copied()).collect();
        let mut sizes: Vec<(Vec<&str>, usize)> = Vec::new();
        for line in lines {
            let key: Vec<_> = by.iter().map(|&part| line.parts[part].as_str()).collect();
            match sizes.iter_mut().find(|(other, _)| *other == key) {
                Some((_, size)) => *size += 1,
                None => sizes.push((key, 1)),
            }
        }
        (sizes.len(), sizes.iter().map(|(_, size)| *size).max().unwrap_or(0))
    };
    let fits = choices.into_iter().filter(|choice| panels(choice).1 <= most);
    fits.min_by_key(|choice| (choice.len(), panels(choice).0)).unwrap_or_else(|| (from..count).collect())
}

/// Puts lines with the same facets into a panel.
fn into_panels(lines: Vec<Line>, facets: &[usize]) -> Vec<Panel> {
    let mut panels: Vec<Panel> = Vec::new();
    for line in lines {
        let (facet, rest): (Vec<_>, Vec<_>) =
            line.parts.into_iter().enumerate().partition(|(part, _)| facets.contains(part));
        let join = |parts: Vec<(usize, String)>| {
            parts.into_iter().map(|(_, text)| text).collect::<Vec<_>>().join(", ")
        };
        let (title, name) = (join(facet), join(rest));
        let index = panels.iter().position(|panel| panel.title == title).unwrap_or(panels.len());
        if index == panels.len() {
            panels.push(Panel { title, ..Panel::default() });
        }
        let panel = &mut panels[index];
        panel.series.push(Series { name, ..line.series });
        line.events.into_iter().for_each(|event| add_event(&mut panel.events, event));
    }
    // Panels with the same value of the first facet form a row.
    let first = |panel: &Panel| panel.title.split(", ").next().unwrap_or_default().to_owned();
    let mut order: Vec<String> = panels.iter().map(first).collect();
    let mut numbers = order.iter().filter_map(|title| numbered(title));
    let before = numbers.next().map(|(before, _)| before);
    if numbers.all(|(other, _)| Some(other) == before) {
        // A title without a number stands behind those with one.
        order.sort_by_key(|title| numbered(title).map_or(u64::MAX, |(_, number)| number));
    }
    panels.sort_by_key(|panel| order.iter().position(|title| *title == first(panel)));
    panels
}

/// A title that has a number, such as `n=5` or `c = 1,000`: what is before the number, and the number.
fn numbered(title: &str) -> Option<(&str, u64)> {
    let begins = title.find(|character: char| character.is_ascii_digit())?;
    let is_part = |character: &char| character.is_ascii_digit() || *character == ',';
    let digits: String = title[begins..].chars().take_while(is_part).filter(char::is_ascii_digit).collect();
    Some((&title[..begins], digits.parse().ok()?))
}

/// Adds an event to those of a panel. Events of several lines at the same time become one.
fn add_event(events: &mut Vec<Event>, event: Event) {
    let Some(same) = events.iter_mut().find(|other| (other.x - event.x).abs() < 0.05) else {
        events.push(event);
        return;
    };
    if !same.label.split(" / ").any(|label| label == event.label) {
        same.label = format!("{} / {}", same.label, event.label);
    }
}

fn caption(run: &Run, chart: &Chart, common: &[String]) -> Vec<String> {
    let (summary, environment) = (&run.summary, &run.environment);
    let mut caption = Vec::new();
    if chart.form.is_over_time() {
        if chart.form == Form::Timeline {
            caption.push("Answers in each tenth of a second, of the first run at each point.".to_owned());
            caption.push("c: proposals outstanding.".to_owned());
        } else {
            caption.push("The most in each tenth of a second, of the first run at each point.".to_owned());
        }
        if summary.timelines.iter().any(|timeline| !timeline.events.is_empty()) {
            caption.push("Dashed vertical lines: what was done under load.".to_owned());
        }
    } else {
        // Of one run a note below says it.
        match (chart.form, run.runs.as_str()) {
            (_, "1") => {}
            (Form::Points, runs) => caption.push(format!("Medians of {runs} runs.")),
            (_, runs) => caption.push(format!("Means of {runs} runs with 95 % confidence intervals.")),
        }
        if chart.form == Form::Ratios {
            caption.push("Behind each name: its multiple at the right end.".to_owned());
        }
        let facts = summary.facts.iter().filter(|fact| fact.metric == chart.metric);
        let mut places: Vec<_> = facts.map(|fact| fact.place.as_ref()).collect();
        places.dedup();
        if !places.is_empty() {
            caption.push(format!("Hollow squares: printed in the document ({}).", places.join("; ")));
        }
    }
    if !common.is_empty() {
        caption.push(format!("In common: {}.", common.join(", ")));
    }
    caption.extend(text::notes(run));
    caption.push(signature(summary, environment));
    caption
}

/// The caption's last line: what ran, when, on which machine, and of which program.
fn signature(summary: &Summary, environment: &Environment) -> String {
    let on = match summary.parameters.get("on").map(String::as_str) {
        Some("virtual") => "in virtual time".to_owned(),
        Some(on) => format!("on {on} of one machine with {} cores", environment.cores),
        None => format!("on a machine with {} cores", environment.cores),
    };
    format!("{}, {on}, {}, {}.", summary.name, date(environment.began), environment.program())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::study::Timeline;
    use std::collections::BTreeMap;

    const PROTOCOLS: [&str; 3] = ["multipaxos", "raft", "sequence-paxos"];

    fn run(series: &[String], places: &[f64]) -> Run {
        let point = |series: &String, x: f64| PointSummary {
            series: series.clone(),
            x,
            metric: "m".to_owned(),
            runs: 2,
            mean: 100.0 * x,
            half_width: Some(1000.0),
            median: 100.0 * x,
            min: 99.0,
            max: 1000.0,
        };
        let timeline = |series: &String, x: f64| Timeline {
            series: series.clone(),
            x,
            answers: vec![x; 3],
            events: vec![crate::study::Event {
                at: 0.1,
                what: series.split(", ").nth(1).unwrap_or("it").to_owned(),
            }],
        };
        let everywhere = || series.iter().flat_map(|series| places.iter().map(move |&x| (series, x)));
        let summary = Summary {
            name: "test".to_owned(),
            title: "A test".to_owned(),
            source: String::new(),
            about: String::new(),
            parameters: BTreeMap::from([("on".to_owned(), "virtual".to_owned())]),
            charts: Vec::new(),
            facts: Vec::new(),
            points: everywhere().map(|(series, x)| point(series, x)).collect(),
            timelines: everywhere().map(|(series, x)| timeline(series, x)).collect(),
            verdicts: Vec::new(),
            took_seconds: 1.0,
            cut_short: None,
            shorter: vec!["seconds=1 (usually 3)".to_owned()],
        };
        let mut environment = Environment::now(Some("c0ffee".to_owned()), "virtual".to_owned());
        environment.began = 1_795_305_600;
        Run::new(summary, environment)
    }

    fn drawn(series: &[String], places: &[f64], form: Form) -> Figure {
        let [title, metric, x_label, y_label] = ["T", "m", "outstanding", "1/s"].map(Into::into);
        figure(&run(series, places), &Chart { title, metric, x_label, y_label, form }).unwrap()
    }

    fn titles(figure: &Figure) -> Vec<&str> {
        figure.panels.iter().map(|panel| panel.title.as_str()).collect()
    }

    /// Series of every protocol, victim and way to learn, all with three replicas.
    fn crowd() -> Vec<String> {
        let of = |protocol: &'static str| {
            [
                "replace follower, pull",
                "replace follower, eager",
                "replace leader, pull",
                "replace leader, eager",
            ]
            .map(|how| format!("{protocol}, {how}, 3 replicas"))
        };
        PROTOCOLS.into_iter().flat_map(of).collect()
    }

    #[test]
    fn many_lines_become_small_multiples_of_few() {
        let figure = drawn(&crowd(), &[1.0, 10.0], Form::LogLines);
        assert_eq!(titles(&figure), PROTOCOLS);
        assert_eq!(figure.columns, 3);
        let names: Vec<_> = figure.panels[0].series.iter().map(|series| series.name.as_str()).collect();
        assert_eq!(
            names,
            [
                "replace follower, pull",
                "replace follower, eager",
                "replace leader, pull",
                "replace leader, eager"
            ]
        );
        assert!(figure.caption.contains(&"In common: 3 replicas.".to_owned()), "{:?}", figure.caption);
        let few = drawn(&crowd()[..4], &[1.0, 10.0], Form::LogLines);
        assert_eq!(titles(&few), [""]);
    }

    #[test]
    fn ratios_stand_in_one_panel_and_the_first_line_is_one() {
        let names = ["a", "b, fast", "c", "d", "e", "f", "g"].map(str::to_owned);
        let mut run = run(&names, &[1.0, 10.0]);
        for point in run.summary.points.iter_mut().filter(|point| point.series == "b, fast") {
            point.mean *= 3.0;
        }
        let [title, metric, x_label, y_label] = ["T", "m", "outstanding", "1/s"].map(Into::into);
        let figure = figure(&run, &Chart { title, metric, x_label, y_label, form: Form::Ratios }).unwrap();
        assert_eq!((titles(&figure), figure.x_log), (vec![""], true));
        assert_eq!(figure.y_label, "as a multiple of a, the default: higher is better");
        let values = |name: &str| -> Vec<f64> {
            let line = figure.panels[0].series.iter().find(|series| series.name == name).unwrap();
            line.points.iter().map(|point| point.y).collect()
        };
        let (one, three) = (vec![1.0; 2], vec![3.0; 2]);
        assert_eq!(
            (values("a: 1.00"), values("b, fast: 3.00"), values("g: 1.00")),
            (one.clone(), three, one)
        );
        // The means are 100 and 1000, and half of each interval is 1000.
        let fast = &figure.panels[0].series[1].points;
        assert_eq!(fast[0].interval, Some((0.0, 13.0)));
        assert_eq!(fast[1].interval, Some((2.0, 4.0)));
    }

    #[test]
    fn each_load_of_a_timeline_has_a_row_and_its_events_are_marked() {
        let figure = drawn(&crowd(), &[10.0, 100.0, 1000.0], Form::Timeline);
        assert_eq!((figure.panels.len(), figure.columns, figure.free_rows), (9, 3, true));
        assert_eq!(
            titles(&figure)[..4],
            ["c = 10, multipaxos", "c = 10, raft", "c = 10, sequence-paxos", "c = 100, multipaxos"]
        );
        let events = [Event { x: 0.1, label: "replace follower / replace leader".to_owned() }];
        assert!(
            figure.panels.iter().all(|panel| panel.series.len() == 4 && panel.events == events),
            "{figure:?}"
        );
    }

    #[test]
    fn a_dot_plot_has_a_row_a_series_and_a_panel_a_place() {
        let figure = drawn(&crowd(), &[10.0, 100.0], Form::Dots);
        assert_eq!(titles(&figure), ["10 outstanding", "100 outstanding"]);
        assert_eq!(figure.panels[1].series.len(), 12);
        let alone = drawn(&crowd()[..1], &[10.0, 100.0], Form::Dots);
        assert_eq!(titles(&alone), [""]);
        assert_eq!(alone.panels[0].series[1].name, "100 outstanding");
    }

    #[test]
    fn panels_are_in_the_order_of_their_numbers() {
        let line = |title: &&str| Line {
            parts: vec![(*title).to_owned()],
            series: Series::default(),
            events: Vec::new(),
        };
        let sorted = |series: &[&str]| -> Vec<String> {
            let panels = into_panels(series.iter().map(line).collect(), &[0]);
            panels.into_iter().map(|panel| panel.title).collect()
        };
        assert_eq!(sorted(&["1600 µs", "200 µs", "auto"]), ["200 µs", "1600 µs", "auto"]);
        assert_eq!(sorted(&["b 2", "a 1", "c"]), ["b 2", "a 1", "c"], "numbers of different things");
        let of = |size: &str| ["a", "b", "c"].map(|last| format!("n={size}, {last}"));
        let series = ["125", "5", "53"].map(of).concat();
        assert_eq!(titles(&drawn(&series, &[1.0, 10.0], Form::Lines)), ["n=5", "n=53", "n=125"]);
    }

    #[test]
    fn names_of_another_form_stay_whole() {
        let series: Vec<_> =
            (0..8).map(|number| format!("{number}{}", ", more".repeat(number % 2))).collect();
        let figure = drawn(&series, &[1.0, 10.0], Form::Lines);
        assert_eq!(figure.panels.len(), 8);
        assert_eq!(figure.panels[1].title, "1, more");
    }

    #[test]
    fn names_of_another_form_share_panels_by_their_last_part() {
        let of = |way: &str| ["fan-out 2", "fan-out 3", "fan-out 5"].map(|last| format!("{way}, {last}"));
        let series = ["version 1", "version 2", "version 2, one echo"].map(of).concat();
        let figure = drawn(&series, &[1.0, 10.0], Form::Lines);
        assert_eq!(titles(&figure), ["version 1", "version 2", "version 2, one echo"]);
        let names: Vec<_> = figure.panels[2].series.iter().map(|series| series.name.as_str()).collect();
        assert_eq!(names, ["fan-out 2", "fan-out 3", "fan-out 5"]);
    }

    #[test]
    fn the_caption_says_when_and_what_and_that_it_decides_little() {
        let caption = drawn(&crowd(), &[1.0], Form::Lines).caption.join(" ");
        for part in [
            "2026-11-22",
            "commit c0ffee",
            "in virtual time",
            "Means of 2 runs",
            "A short run",
            "seconds=1 (usually 3)",
            "Two runs",
        ] {
            assert!(caption.contains(part), "{part} is missing in {caption}");
        }
    }
}

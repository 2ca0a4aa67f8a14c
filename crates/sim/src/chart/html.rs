//! The page around the pictures: filters, and the fields of the message under the pointer. It needs no other file.

use std::{collections::BTreeMap, fmt::Write as _};

use super::{
    Chart,
    layout::Layout,
    record::Lane,
    style::{Family, answers, mark_kind},
    svg::{self, escaped},
};

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("chart.js");

pub(super) fn page(chart: &Chart, layouts: &[Layout]) -> String {
    let title = escaped(&chart.title);
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<title>{title}</title>\n\
         <style>\n{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n"
    );
    for line in &chart.about {
        let _ = writeln!(page, "<p>{}</p>", escaped(line));
    }
    if let Some(command) = &chart.command {
        let _ = writeln!(page, "<p><code>{}</code></p>", escaped(command));
    }
    if let Some(violation) = &chart.violation {
        let _ = writeln!(page, "<p class=\"violated\">violates {}</p>", escaped(violation));
    }
    page += "<p>Time goes down, a row a step and not to scale; virtual time stands at the left. Point at anything to see all \
             of it, click to keep it in sight.</p>\n";
    page += &filters(chart.hidden(), layouts);
    for (number, layout) in layouts.iter().enumerate() {
        page += &svg::draw(layout, &chart.title, Some(number));
    }
    let _ = write!(
        page,
        "<div id=\"pieces\"></div>\n<pre id=\"fields\" hidden></pre>\n<script>\n{SCRIPT}</script>\n</body>\n</html>\n"
    );
    page
}

fn filters(hidden: &[&str], layouts: &[Layout]) -> String {
    let mut kinds: BTreeMap<(Family, &str), usize> = BTreeMap::new();
    let mut marks: BTreeMap<&str, usize> = BTreeMap::new();
    let mut lanes: BTreeMap<Lane, ()> = BTreeMap::new();
    for layout in layouts {
        for arrow in &layout.arrows {
            let kind = arrow.sent.what.kind();
            *kinds.entry((Family::of(kind), kind)).or_default() += 1;
        }
        for mark in &layout.marks {
            *marks.entry(mark_kind(mark.mark)).or_default() += 1;
        }
        lanes.extend(layout.lanes.iter().map(|lane| (*lane, ())));
    }
    let choice = |class: &str, kind: &str, sample: &str, text: &str| {
        let checked = if class == "k" && hidden.contains(&kind) { "" } else { " checked" };
        format!(
            "<label><input type=\"checkbox\" data-hides=\"{class}-{kind}\"{checked}>{sample}{text}</label>\n"
        )
    };
    let mut text = "<div id=\"filters\">\n<div><b>messages</b>".to_owned();
    for ((family, kind), count) in kinds {
        let dash = if answers(kind) { " stroke-dasharray=\"6 3\"" } else { "" };
        let colour = family.colour();
        let sample = format!(
            "<svg><line x1=\"0\" x2=\"28\" y1=\"4\" y2=\"4\" stroke=\"{colour}\" stroke-width=\"2\"{dash}/></svg>"
        );
        text += &choice("k", kind, &sample, &format!("{kind} ({count})"));
    }
    text += "</div>\n<div><b>marks</b>";
    for (kind, count) in marks {
        text += &choice("k", kind, "", &format!("{kind} ({count})"));
    }
    text += "</div>\n<div><b>lifelines</b>";
    for lane in lanes.into_keys() {
        let name = svg::name(lane);
        text += &choice("of", &name, "", &name);
    }
    text + "</div>\n</div>\n"
}

//! The picture: an SVG that needs no other file.

use std::{collections::BTreeSet, fmt::Write as _, time::Duration};

use synod_wire::{Ballot, Epoch};

use super::{
    layout::{Across, Arrow, Fate, Layout, Placed, Side, Span},
    record::{Lane, Mark, What},
    style::{DEJAVU_SANS, Family, answers, mark_kind},
};
use crate::clock::Moment;

/// The style of pages and pictures.
const STYLE: &str = include_str!("chart.css");

/// All lengths are in pixels.
const ROW: f64 = 20.0;
const HEAD: f64 = 46.0;
const FOOT: f64 = 38.0;
const LEFT: f64 = 110.0;
const RIGHT: f64 = 230.0;
/// A pause of this length or more makes the most room between two rows.
const LONG: Duration = Duration::from_millis(1000);
/// The sizes of labels, of what a script commands, and of a violation, as `chart.css` has them.
const LABEL: f64 = 11.0;
const VIOLATION: f64 = 12.0;
/// How much wider bold letters are.
const BOLD: f64 = 1.12;
/// The width of a letter of a command, whose letters are all equally wide, as a share of its size.
const MONOSPACED: f64 = 0.61;
/// The fields of a message are cut after this many characters.
const FIELDS_MAX: usize = 2_000;

/// Where things are, in pixels.
struct Picture<'a> {
    layout: &'a Layout,
    rows: Vec<f64>,
    spacing: f64,
    /// The picture's number on a page, whose script shows the fields of a message. Without a page they are a
    /// title, which viewers show.
    on_page: Option<usize>,
    text: String,
    /// Labels are drawn after all lines, so that no line crosses them.
    labels: String,
    /// Arrows and marks have numbers, so that labels can name them.
    last: usize,
}

/// Draws a chart. Returns the picture, for a page with its script or for itself.
pub(super) fn draw(layout: &Layout, title: &str, on_page: Option<usize>) -> String {
    let mut y = HEAD;
    let rows = layout.rows.iter().map(|row| {
        let long = (row.gap.as_secs_f64() * 1e6 + 1.0).ln() / (LONG.as_secs_f64() * 1e6).ln();
        y += ROW + 14.0 * (long.min(1.0) - 0.4).max(0.0);
        y
    });
    let rows: Vec<f64> = rows.collect();
    let spacing = match layout.lanes.len() {
        0..=3 => 300.0,
        4 => 262.0,
        5 => 240.0,
        _ => 205.0,
    };
    let mut picture =
        Picture { layout, rows, spacing, on_page, text: String::new(), labels: String::new(), last: 0 };
    picture.draw(title);
    picture.text
}

/// Text as it may stand in a page, also within quotation marks.
pub(super) fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            // XML cannot represent these characters.
            control if control < ' ' && control != '\n' && control != '\t' => safe.push('\u{fffd}'),
            other => safe.push(other),
        }
    }
    safe
}

/// The name of a lifeline, and its name in the page's script.
pub(super) fn name(lane: Lane) -> String {
    match lane {
        Lane::Clients => "clients".to_owned(),
        Lane::Replica(of) => format!("r{}", of + 1),
    }
}

/// Fields as `Debug` shows them, but with `Slot(3)` on one line instead of three.
fn compacted(fields: &str) -> String {
    let lines: Vec<&str> = fields.lines().collect();
    let mut text = String::new();
    let mut next = 0;
    while let Some(&line) = lines.get(next) {
        let closes = lines.get(next + 2).map(|line| line.trim_start()).filter(|_| line.ends_with('('));
        if let Some(end @ (")" | "),")) = closes {
            let _ = writeln!(text, "{line}{}{end}", lines[next + 1].trim().trim_end_matches(','));
            next += 3;
        } else {
            let _ = writeln!(text, "{line}");
            next += 1;
        }
    }
    text
}

/// How wide a text is in the widest of the typefaces that `chart.css` names, which is the only one on many machines.
fn width(text: &str, size: f64) -> f64 {
    let of = |character: char| match character {
        ' '..='~' => DEJAVU_SANS[character as usize - 32],
        // No letter is wider.
        _ => 1000,
    };
    text.chars().map(|character| f64::from(of(character))).sum::<f64>() * size / 1000.0
}

/// The beginning of a text for which there is so much room, with an ellipsis if something is left out.
fn cut(text: &str, room: f64, width: impl Fn(&str) -> f64) -> String {
    if width(text) <= room {
        return text.to_owned();
    }
    let mut left = room - width("…");
    let fits = |character: &char| {
        left -= width(character.encode_utf8(&mut [0; 4]));
        left >= 0.0
    };
    let kept: String = text.chars().take_while(fits).collect();
    format!("{}…", kept.trim_end())
}

impl Picture<'_> {
    fn x(&self, lane: Lane) -> f64 {
        let place = self.layout.lanes.iter().position(|other| *other == lane).unwrap_or_default();
        LEFT + self.spacing * place as f64
    }

    /// A place between two lifelines that is not on a third.
    fn half_way(&self, from: Lane, to: Lane) -> f64 {
        let (from, to) = (self.x(from), self.x(to));
        let lanes = ((to - from).abs() / self.spacing).round();
        from + (to - from).signum() * ((lanes / 2.0).floor() + 0.5) * self.spacing
    }

    fn y(&self, row: usize) -> f64 {
        self.rows.get(row).copied().unwrap_or_else(|| self.bottom())
    }

    fn bottom(&self) -> f64 {
        self.rows.last().copied().unwrap_or(HEAD) + ROW
    }

    fn width(&self) -> f64 {
        LEFT + self.spacing * (self.layout.lanes.len().max(1) - 1) as f64 + RIGHT
    }

    fn add(&mut self, text: &str) {
        self.text.push_str(text);
        self.text.push('\n');
    }

    fn next_id(&mut self) -> String {
        self.last += 1;
        format!("p{}-{}", self.on_page.unwrap_or_default(), self.last)
    }

    fn draw(&mut self, title: &str) {
        let layout = self.layout;
        let (width, height) = (self.width(), self.bottom() + FOOT);
        let rows: Vec<String> = self.rows.iter().map(|y| format!("{y:.0}")).collect();
        self.add(&format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"chart\" width=\"{width}\" height=\"{height:.0}\" \
             viewBox=\"0 0 {width} {height:.0}\" role=\"img\" data-rows=\"{}\" data-head=\"{HEAD}\" data-foot=\"{FOOT}\">",
            rows.join(" ")
        ));
        self.add(&format!("<title>{}</title>", escaped(title)));
        self.add(&format!("<style>\n{STYLE}</style>"));
        self.add("<defs>");
        for family in Family::ALL {
            let (name, colour) = (family.name(), family.colour());
            self.add(&format!(
                "<marker id=\"to-{name}\" viewBox=\"0 0 10 10\" refX=\"10\" refY=\"5\" markerWidth=\"9\" markerHeight=\"9\" \
                 markerUnits=\"userSpaceOnUse\" orient=\"auto\"><path d=\"M0 1 L10 5 L0 9 z\" fill=\"{colour}\"/></marker>\n\
                 <marker id=\"lost-{name}\" viewBox=\"-6 -6 12 12\" markerWidth=\"12\" markerHeight=\"12\" \
                 markerUnits=\"userSpaceOnUse\"><path d=\"M-5 -5 L5 5 M-5 5 L5 -5\" stroke=\"{colour}\" stroke-width=\"2\" \
                 fill=\"none\"/></marker>\n\
                 <marker id=\"open-{name}\" viewBox=\"-5 -5 10 10\" markerWidth=\"10\" markerHeight=\"10\" \
                 markerUnits=\"userSpaceOnUse\"><circle r=\"3.5\" stroke=\"{colour}\" stroke-width=\"1.3\" \
                 fill=\"#fff\"/></marker>"
            ));
        }
        self.add("</defs>\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>");
        for span in &layout.spans {
            self.span(span);
        }
        for (index, row) in layout.rows.iter().enumerate().filter(|(_, row)| row.shows_time) {
            let (y, at) = (self.y(index) + 3.5, row.at);
            self.add(&format!(
                "<text class=\"time\" data-a=\"{index}\" x=\"{}\" y=\"{y:.1}\">{at}</text>",
                78
            ));
        }
        for (row, number, across) in &layout.across {
            self.across(*row, *number, across);
        }
        for arrow in &layout.arrows {
            self.arrow(arrow);
        }
        for mark in &layout.marks {
            self.mark(mark);
        }
        let labels = std::mem::take(&mut self.labels);
        self.add(&labels);
        self.legend(height);
        self.names();
        self.add("</svg>");
    }

    /// The names of the lifelines. A page's script keeps them in sight.
    fn names(&mut self) {
        self.add(&format!(
            "<g class=\"names\"><rect width=\"{}\" height=\"{}\"/>",
            self.width(),
            HEAD - 14.0
        ));
        for &lane in &self.layout.lanes {
            let (x, y, name) = (self.x(lane), HEAD - 24.0, name(lane));
            self.add(&format!("<text class=\"name of-{name}\" x=\"{x}\" y=\"{y}\">{name}</text>"));
        }
        self.add("</g>");
    }

    fn span(&mut self, span: &Span) {
        let (x, name) = (self.x(span.lane), name(span.lane));
        let (first, last) = span.rows;
        let begin = if first == 0 { HEAD - 12.0 } else { self.y(first) };
        let end = self.y(last);
        let condition = span.condition;
        let life = match (condition.up, condition.paused) {
            (false, _) => " down",
            (true, true) => " paused",
            (true, false) => "",
        };
        let a = if first == 0 { "top".to_owned() } else { first.to_string() };
        let mut line = |class: &str| {
            let _ = writeln!(
                self.text,
                "<line class=\"span{class} of-{name}\" data-a=\"{a}\" data-b=\"{last}\" x1=\"{x}\" y1=\"{begin:.1}\" \
                 x2=\"{x}\" y2=\"{end:.1}\"/>"
            );
        };
        if condition.stalled {
            line(" stalled");
        }
        if condition.leads {
            line(" leads");
        }
        line(life);
    }

    fn across(&mut self, row: usize, number: Option<u64>, across: &Across) {
        let y = self.y(row);
        let (class, text, lane) = match across {
            Across::Said(text) => ("said", text.clone(), None),
            Across::Command(text) => ("command", format!("> {text}"), None),
            Across::LeftOut(text) => ("said", format!("… {text}"), None),
            Across::Violation(lane, text) => ("violation", format!("✗ {text}"), *lane),
        };
        let number = number.map_or(String::new(), |number| format!(", event:{number}"));
        let details = format!("{}{number}\n{text}", self.layout.rows[row].at);
        let (end, room) = (self.width() - 10.0, self.width() - 40.0);
        let mut drawn = format!("<g class=\"across {class}\" data-rows=\"{row}\"{}", self.shown(&details));
        let _ = write!(
            drawn,
            "<line class=\"rule\" data-a=\"{row}\" data-b=\"{row}\" x1=\"10\" y1=\"{y:.1}\" x2=\"{end}\" y2=\"{y:.1}\"/>"
        );
        if let Some(lane) = lane {
            let x = self.x(lane);
            let above = y - ROW;
            let _ = write!(drawn, "<circle data-a=\"{row}\" cx=\"{x}\" cy=\"{above:.1}\" r=\"9\"/>");
        }
        let shown = match class {
            "command" => cut(&text, room, |text| text.chars().count() as f64 * MONOSPACED * LABEL),
            "violation" => cut(&text, room, |text| width(text, VIOLATION * BOLD)),
            _ => cut(&text, room, |text| width(text, LABEL)),
        };
        let shown = escaped(&shown);
        let left = if class == "command" || class == "violation" { 10.0 } else { LEFT + 10.0 };
        let y = if class == "violation" { y + 16.0 } else { y + 4.0 };
        let _ = write!(drawn, "<text data-a=\"{row}\" x=\"{left}\" y=\"{y:.1}\">{shown}</text></g>");
        self.add(&drawn);
    }

    fn arrow(&mut self, arrow: &Arrow) {
        let sent = &arrow.sent;
        let (from, to) = (self.x(sent.from), self.x(sent.to));
        let half = self.half_way(sent.from, sent.to);
        let kind = sent.what.kind();
        let family = Family::of(kind).name();
        // The end of the arrow: its style, its row, its place, and its distance below the row in pixels.
        let (fate, head, end, x2, below) = match arrow.fate {
            Fate::Arrived(row, _) => ("arrived", "to", row, to, 0.0),
            Fate::Again(row, _) => ("again", "to", row, to, 0.0),
            Fate::Lost(row, ..) => {
                ("lost", "lost", row, half, if arrow.leaves == Some(row) { 9.0 } else { 0.0 })
            }
            Fate::UnderWay => ("open", "open", self.rows.len(), half, 0.0),
        };
        // An arrow that left before the chart begins starts half-way.
        let (begin, x1, above) = match arrow.leaves {
            Some(row) => (row, from, 0.0),
            None => (end, half, ROW * 0.7),
        };
        // An arrow in flight at the end of the chart goes a little way down.
        let (end, below) = match arrow.fate {
            Fate::UnderWay => (begin, ROW * 0.8),
            _ => (end, below),
        };
        let (y1, y2) = (self.y(begin) - above, self.y(end) + below);
        // Heads end where the bar of a leader begins.
        let x2 = if head == "to" { x2 - 2.0 * (to - from).signum() } else { x2 };
        let dash = if answers(kind) { " stroke-dasharray=\"6 3\"" } else { "" };
        let details = self.details(arrow);
        let id = self.next_id();
        let mut drawn = format!(
            "<g id=\"{id}\" class=\"message k-{kind} {fate} of-{} of-{}\" data-rows=\"{begin} {end}\"{}",
            name(sent.from),
            name(sent.to),
            self.shown(&details)
        );
        let ends = format!(
            "data-a=\"{begin}\" data-b=\"{end}\" data-o=\"{:.1}\" data-p=\"{below:.1}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" \
             x2=\"{x2:.1}\" y2=\"{y2:.1}\"",
            -above
        );
        let colour = Family::of(kind).colour();
        let _ = write!(
            drawn,
            "<line class=\"hit\" {ends}/><line class=\"shaft\" stroke=\"{colour}\"{dash} {ends} \
             marker-end=\"url(#{head}-{family})\"/>"
        );
        if let Some(side) = arrow.label {
            let room = self.room(if x1 == half { sent.to } else { sent.from }, side);
            let text = escaped(&cut(&sent.what.text(), room, |text| width(text, LABEL)));
            let (class, x) = match side {
                Side::Left => ("l", x1 - 9.0),
                Side::Right => ("", x1 + 9.0),
            };
            let y = y1 - 3.0;
            let of = [sent.from, sent.to].map(|lane| format!("of-{}", name(lane))).join(" ");
            let _ = writeln!(
                self.labels,
                "<text class=\"label k-{kind} {of} {class}\" data-of=\"{id}\" data-a=\"{begin}\" x=\"{x:.1}\" \
                 y=\"{y:.1}\">{text}</text>"
            );
        }
        drawn.push_str("</g>");
        self.add(&drawn);
    }

    /// How wide a label may be.
    fn room(&self, lane: Lane, side: Side) -> f64 {
        let last = self.layout.lanes.last() == Some(&lane);
        if side == Side::Right && last { RIGHT - 16.0 } else { self.spacing - 18.0 }
    }

    /// The end of a group's first tag, with the details that the page's script, or a viewer, shows for the group.
    fn shown(&self, details: &str) -> String {
        let details = escaped(details);
        if self.on_page.is_some() {
            format!(" data-t=\"{details}\">")
        } else {
            format!("><title>{details}</title>")
        }
    }

    fn details(&self, arrow: &Arrow) -> String {
        let sent = &arrow.sent;
        let (from, to) = (name(sent.from), name(sent.to));
        let mut text = format!("{from} → {to}   {}\n{}\n\n", sent.what.kind(), sent.what.text());
        let _ = writeln!(text, "left     {}, event:{}", sent.at, sent.event);
        let after = |at: Moment| format!("{:.3} ms later", at.since(sent.at).as_secs_f64() * 1e3);
        let _ = match arrow.fate {
            Fate::Arrived(_, at) => writeln!(text, "arrived  {at}, {}", after(at)),
            Fate::Again(_, at) => writeln!(text, "arrived  {at}, {}: once more", after(at)),
            Fate::Lost(_, at, loss) => writeln!(text, "LOST     {at}, {}: {loss}", after(at)),
            Fate::UnderWay => writeln!(text, "on its way when the chart ends"),
        };
        if let What::Message(message, bytes) = &sent.what {
            let _ = writeln!(text, "size     {bytes} bytes\n");
            let fields = compacted(&format!("{message:#?}"));
            let kept: String = fields.chars().take(FIELDS_MAX).collect();
            text += &kept;
            if kept.len() < fields.len() {
                text += "…";
            }
        }
        text
    }

    fn mark(&mut self, placed: &Placed) {
        let (x, y, row) = (self.x(placed.lane), self.y(placed.row), placed.row);
        let kind = mark_kind(placed.mark);
        let id = self.next_id();
        let more = match placed.mark {
            Mark::Delivers { first: true } => " first",
            Mark::Leads(..) => " leads",
            _ => "",
        };
        let details =
            format!("{}   {}, event:{}\n{}", name(placed.lane), placed.at, placed.event, placed.text);
        let label = match placed.mark {
            Mark::Leads(epoch, ballot) => format!("leads in ballot {}", of_epoch(epoch, ballot)),
            Mark::Follows(epoch, view) => match view.leader {
                Some(leader) => format!("follows {leader}, {}", of_epoch(epoch, view.ballot)),
                None => format!("without a leader, {}", of_epoch(epoch, view.ballot)),
            },
            _ => placed.text.clone(),
        };
        let mut drawn = format!(
            "<g id=\"{id}\" class=\"mark k-{kind} {kind}{more} of-{}\" data-rows=\"{row}\"{}",
            name(placed.lane),
            self.shown(&details)
        );
        let _ = write!(
            drawn,
            "<g data-a=\"{row}\" data-at=\"{x} {y:.1}\" transform=\"translate({x} {y:.1})\">{}</g>",
            glyph(placed.mark)
        );
        if let Some(side) = placed.label {
            let size = if more.is_empty() { LABEL } else { LABEL * BOLD };
            let text = escaped(&cut(&label, self.room(placed.lane, side), |text| width(text, size)));
            let (class, x) = match side {
                Side::Left => ("l", x - 10.0),
                Side::Right => ("", x + 10.0),
            };
            let y = y + 3.0;
            let of = name(placed.lane);
            let _ = writeln!(
                self.labels,
                "<text class=\"label k-{kind}{more} of-{of} {class}\" data-of=\"{id}\" data-a=\"{row}\" x=\"{x}\" \
                 y=\"{y:.1}\">{text}</text>"
            );
        }
        drawn.push_str("</g>");
        self.add(&drawn);
    }

    /// The legend of the lines that occur, at the foot.
    fn legend(&mut self, height: f64) {
        let arrows = &self.layout.arrows;
        let families: BTreeSet<Family> =
            arrows.iter().map(|arrow| Family::of(arrow.sent.what.kind())).collect();
        let lost = arrows.iter().any(|arrow| matches!(arrow.fate, Fate::Lost(..)));
        let open = arrows.iter().any(|arrow| arrow.fate == Fate::UnderWay);
        let leads = self.layout.spans.iter().any(|span| span.condition.leads);
        let mut items: Vec<(String, &str)> = Vec::new();
        let line = |colour: &str, head: &str, more: &str| {
            format!(
                "<line x1=\"0\" x2=\"26\" y1=\"0\" y2=\"0\" stroke=\"{colour}\"{more} marker-end=\"url(#{head})\"/>"
            )
        };
        for family in families {
            let text = match family {
                Family::Lead => "who leads (answers dashed)",
                Family::Propose => "proposals (votes dashed)",
                Family::Decide => "decided",
                Family::CatchUp => "catch-up",
                Family::Client => "clients",
                Family::Life => "signs of life",
            };
            items.push((line(family.colour(), &format!("to-{}", family.name()), ""), text));
        }
        if lost {
            items.push((line("#333333", "lost-client", " stroke-dasharray=\"2 3\""), "lost"));
        }
        if open {
            items.push((line("#333333", "open-client", ""), "still on its way"));
        }
        if leads {
            items.push((
                "<line class=\"span leads\" x1=\"8\" x2=\"18\" y1=\"0\" y2=\"0\"/>".to_owned(),
                "takes itself for the leader",
            ));
        }
        let (mut x, y) = (12.0, height - 14.0);
        let mut drawn =
            format!("<g class=\"legend\" data-foot=\"{y:.0}\" transform=\"translate(0 {y:.0})\">");
        for (sample, text) in items {
            let _ = write!(
                drawn,
                "<g transform=\"translate({x} 0)\">{sample}<text x=\"38\" y=\"4\">{text}</text></g>"
            );
            x += 58.0 + width(text, LABEL);
        }
        drawn.push_str("</g>");
        self.add(&drawn);
    }
}

/// A ballot, with its epoch if that is not the first: each epoch begins with the lowest ballots again.
fn of_epoch(epoch: Epoch, ballot: Ballot) -> String {
    if epoch.0 <= 1 { ballot.to_string() } else { format!("{ballot} of {epoch}") }
}

/// The symbol of a mark on a lifeline.
fn glyph(mark: Mark) -> &'static str {
    match mark {
        Mark::Starts => "<circle r=\"6\"/><path class=\"solid\" d=\"M-2 -3 L3.5 0 L-2 3 z\"/>",
        Mark::Crashes => "<path d=\"M-6 -6 L6 6 M-6 6 L6 -6\" style=\"stroke-width:3\"/>",
        Mark::Pauses => "<circle r=\"6\"/><path d=\"M-2 -3 V3 M2 -3 V3\"/>",
        Mark::Resumes => "<circle r=\"6\"/><path d=\"M-2 -3 L3.5 0 L-2 3 z\"/>",
        Mark::DiskStalls => {
            "<rect x=\"-5\" y=\"-5\" width=\"10\" height=\"10\"/><path d=\"M-2 -3 V3 M2 -3 V3\"/>"
        }
        Mark::DiskGoesOn => "<rect x=\"-5\" y=\"-5\" width=\"10\" height=\"10\"/>",
        Mark::Durable => "<rect class=\"solid\" x=\"-3.5\" y=\"-3.5\" width=\"7\" height=\"7\"/>",
        Mark::Write => "<rect x=\"-3\" y=\"-1.5\" width=\"6\" height=\"3\"/>",
        Mark::Timer => "<circle r=\"5\"/><path d=\"M0 -3 V0 L2.5 1.5\"/>",
        Mark::Delivers { first: true } => "<path class=\"solid\" d=\"M0 -6 L6 0 L0 6 L-6 0 z\"/>",
        Mark::Delivers { first: false } => "<path d=\"M0 -5 L5 0 L0 5 L-5 0 z\"/>",
        Mark::Leads(..) => "<path class=\"solid\" d=\"M-7 5 L-7 -5 L-3 0 L0 -6 L3 0 L7 -5 L7 5 z\"/>",
        Mark::Follows(..) => "<circle r=\"4.5\"/>",
        Mark::Note => "<circle class=\"solid\" r=\"3\"/>",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_is_cut_where_its_room_ends_in_the_widest_typeface() {
        let width = |text: &str| width(text, LABEL);
        let wide = "mmmmmmmm mmmmmmmm";
        assert_eq!(cut("Accept slot 3", 90.0, width), "Accept slot 3");
        let shown = cut(wide, 90.0, width);
        assert!(shown.ends_with('…') && width(&shown) <= 90.0, "{shown}");
        assert!(shown.len() > "mmmm…".len(), "{shown}: there is more room");
        assert!((width("iW→") - LABEL * 2.267).abs() < 1e-9, "{}", width("iW→"));
    }

    #[test]
    fn a_ballot_of_a_later_epoch_is_named_with_it() {
        let ballot = Ballot { round: 256, replica: synod_wire::ReplicaId(2) };
        assert_eq!(of_epoch(Epoch(1), ballot), "256@r2");
        assert_eq!(of_epoch(Epoch(3), ballot), "256@r2 of e3");
    }
}

//! The places of everything in a chart: rows from top to bottom, lifelines from left to right.
//!
//! A row belongs to one step of one replica. It begins with the cause of the step (a message that arrives, a
//! deadline, an fsync that ends) and holds the effects, as long as no two labels share a place. Rows are in
//! the order of events; their distance does not show time, which is written beside them.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::{
    record::{Condition, Event, Key, Lane, Mark, Recorder, Sent},
    style::mark_kind,
};
use crate::{clock::Moment, network::Loss};

/// A label's place beside its lifeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Left,
    Right,
}

/// What happened to a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It arrived in this row.
    Arrived(usize, Moment),
    /// It arrived again.
    Again(usize, Moment),
    /// It was lost, which was certain in this row.
    Lost(usize, Moment, Loss),
    /// It was still in flight at the end of the chart.
    UnderWay,
}

#[derive(Clone, Debug)]
pub(super) struct Arrow {
    pub(super) sent: Sent,
    /// The row that it leaves in; `None` if that was before the chart begins.
    pub(super) leaves: Option<usize>,
    pub(super) fate: Fate,
    /// Several arrows of one row with the same text share one label.
    pub(super) label: Option<Side>,
}

#[derive(Clone, Debug)]
pub(super) struct Placed {
    pub(super) row: usize,
    pub(super) lane: Lane,
    pub(super) mark: Mark,
    pub(super) text: String,
    pub(super) label: Option<Side>,
    pub(super) event: u64,
    pub(super) at: Moment,
}

/// A text across all lifelines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Across {
    Said(String),
    Command(String),
    Violation(Option<Lane>, String),
    LeftOut(String),
}

/// A piece of a lifeline, from one row to another.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    pub(super) lane: Lane,
    pub(super) rows: (usize, usize),
    pub(super) condition: Condition,
}

#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) at: Moment,
    /// How much time passed since the row before.
    pub(super) gap: Duration,
    /// Whether the time is written beside it.
    pub(super) shows_time: bool,
    lane: Option<Lane>,
    left: Option<String>,
    right: Option<String>,
    glyph: bool,
}

/// The rows, lifelines and arrows of a chart.
#[derive(Debug, Default)]
pub(super) struct Layout {
    pub(super) lanes: Vec<Lane>,
    pub(super) rows: Vec<Row>,
    pub(super) arrows: Vec<Arrow>,
    pub(super) marks: Vec<Placed>,
    /// Texts across all lifelines, each with its row, and with the number of its event if it is one.
    pub(super) across: Vec<(usize, Option<u64>, Across)>,
    pub(super) spans: Vec<Span>,
    conditions: BTreeMap<Lane, (usize, Condition)>,
    /// Arrows of the chart that have left and not arrived, by key.
    open: BTreeMap<Key, usize>,
    early: BTreeMap<Key, Sent>,
}

impl Layout {
    /// Lays out what was recorded, without the kinds of messages and marks that are hidden.
    pub(super) fn new(recorder: &Recorder, hidden: &[&str]) -> Layout {
        let mut layout =
            Layout { lanes: lanes(recorder), early: recorder.early.clone(), ..Layout::default() };
        for &lane in &layout.lanes {
            let condition = match lane {
                Lane::Clients => Condition { up: true, ..Condition::default() },
                Lane::Replica(of) => recorder.before.get(&of).copied().unwrap_or_default(),
            };
            layout.conditions.insert(lane, (0, condition));
        }
        let first = recorder.entries.front().map_or(Moment::START, |entry| entry.at);
        let (before, after) = recorder.left_out;
        if before > 0 {
            let text = format!("{before} events before this are left out");
            layout.add_across(first, None, Across::LeftOut(text));
        }
        layout.early.retain(|_, sent| !hidden.contains(&sent.what.kind()));
        for entry in &recorder.entries {
            let kind = match &entry.event {
                Event::Leaves { sent, .. } => sent.what.kind(),
                Event::Marks { mark, .. } => mark_kind(*mark),
                _ => "",
            };
            let hides = hidden.contains(&kind);
            if hides && matches!(entry.event, Event::Leaves { .. }) {
                continue;
            }
            layout.add(entry.number, entry.at, entry.quiet || hides, &entry.event);
        }
        if after > 0 {
            let last = recorder.entries.back().map_or(first, |entry| entry.at);
            let text = format!("{after} events after this are left out");
            layout.add_across(last, None, Across::LeftOut(text));
        }
        let end = layout.rows.len();
        for (lane, (begin, condition)) in std::mem::take(&mut layout.conditions) {
            layout.spans.push(Span { lane, rows: (begin, end), condition });
        }
        layout
    }

    fn add(&mut self, number: u64, at: Moment, quiet: bool, event: &Event) {
        match event {
            Event::Leaves { key, sent } if quiet => {
                self.early.insert(*key, sent.clone());
            }
            Event::Leaves { key, sent } => {
                let side = if sent.to < sent.from { Side::Left } else { Side::Right };
                let text = sent.what.text();
                let same = |row: &Row| row.label(side) == Some(&text);
                let shares = self.rows.last().is_some_and(|row| row.is(sent.from, at) && same(row));
                let row = if shares { self.rows.len() - 1 } else { self.room_for(sent.from, at, side) };
                *self.rows[row].label_mut(side) = Some(text);
                let label = Some(side).filter(|_| !shares);
                self.open.insert(*key, self.arrows.len());
                let sent = sent.clone();
                self.arrows.push(Arrow { sent, leaves: Some(row), fate: Fate::UnderWay, label });
            }
            Event::Arrives { key, .. } | Event::Lost { key, .. } if !self.knows(*key) => {}
            Event::Arrives { key, at: lane } => {
                let row =
                    if quiet { self.rows.len().saturating_sub(1) } else { self.new_row(at, Some(*lane)) };
                self.end(*key, quiet, row, Fate::Arrived(row, at));
            }
            Event::Lost { key, loss } => {
                let row = self.rows.len().saturating_sub(1);
                self.end(*key, quiet, row, Fate::Lost(row, at, *loss));
            }
            Event::Marks { lane, mark, text } => self.add_mark(number, (at, quiet), *lane, *mark, text),
            Event::Across { .. } | Event::Command { .. } if quiet => {}
            Event::Across { text } => self.add_across(at, Some(number), Across::Said(text.clone())),
            Event::Command { text } => self.add_across(at, Some(number), Across::Command(text.clone())),
            Event::Violates { lane, text } => {
                self.add_across(at, Some(number), Across::Violation(*lane, text.clone()))
            }
        }
    }

    fn knows(&self, key: Key) -> bool {
        self.open.contains_key(&key) || self.early.contains_key(&key)
    }

    /// Ends the arrow of a message that is no longer in flight.
    fn end(&mut self, key: Key, quiet: bool, row: usize, fate: Fate) {
        let incoming = |sent: &Sent| if sent.to < sent.from { Side::Right } else { Side::Left };
        let sent = match self.open.get(&key) {
            Some(&arrow) => {
                let arrow = &mut self.arrows[arrow];
                let sent = arrow.sent.clone();
                match (arrow.fate, fate) {
                    (Fate::UnderWay, _) => arrow.fate = fate,
                    (_, Fate::Arrived(row, at)) if !quiet => {
                        let (leaves, fate) = (arrow.leaves, Fate::Again(row, at));
                        self.arrows.push(Arrow { sent: sent.clone(), leaves, fate, label: None });
                    }
                    _ => {}
                }
                sent
            }
            None => {
                let Some(sent) = self.early.get(&key).filter(|_| !quiet) else { return };
                let sent = sent.clone();
                let label = matches!(fate, Fate::Arrived(..)).then(|| incoming(&sent));
                self.arrows.push(Arrow { sent: sent.clone(), leaves: None, fate, label });
                sent
            }
        };
        if let (Fate::Arrived(..), false) = (fate, quiet) {
            // An arrow that comes in leaves no room for a label.
            *self.rows[row].label_mut(incoming(&sent)) = Some(String::new());
        }
    }

    fn add_mark(&mut self, event: u64, (at, quiet): (Moment, bool), lane: Lane, mark: Mark, text: &str) {
        let condition = self.conditions.get(&lane).map_or(Condition::default(), |known| known.1);
        let row = if quiet {
            self.rows.len().saturating_sub(1)
        } else {
            let begins = matches!(mark, Mark::Timer | Mark::Durable | Mark::Starts);
            let labelled = !matches!(mark, Mark::Timer | Mark::Write);
            let last = self.rows.last();
            let fits = last.filter(|row| row.is(lane, at) && !row.glyph && !begins);
            let sides: &[Side] =
                if self.lanes.first() == Some(&lane) { &[Side::Right] } else { &[Side::Right, Side::Left] };
            let free = |row: &Row| sides.iter().copied().find(|side| row.label(*side).is_none());
            let side = fits.map_or(Some(Side::Right), free);
            let row = if fits.is_some() && side.is_some() {
                self.rows.len() - 1
            } else {
                self.new_row(at, Some(lane))
            };
            let label = Some(side.unwrap_or(Side::Right)).filter(|_| labelled);
            self.rows[row].glyph = true;
            if let Some(side) = label {
                *self.rows[row].label_mut(side) = Some(text.to_owned());
            }
            self.marks.push(Placed { row, lane, mark, text: text.to_owned(), label, event, at });
            row
        };
        let after = condition.after(mark);
        if let Some(known) = self.conditions.insert(lane, (row, after)) {
            self.spans.push(Span { lane, rows: (known.0, row), condition: known.1 });
        }
    }

    fn add_across(&mut self, at: Moment, number: Option<u64>, across: Across) {
        let row = self.new_row(at, None);
        self.across.push((row, number, across));
    }

    /// A row in which a label has room on this side.
    fn room_for(&mut self, lane: Lane, at: Moment, side: Side) -> usize {
        let fits = |row: &Row| row.is(lane, at) && row.label(side).is_none();
        if self.rows.last().is_some_and(fits) { self.rows.len() - 1 } else { self.new_row(at, Some(lane)) }
    }

    fn new_row(&mut self, at: Moment, lane: Option<Lane>) -> usize {
        let before = self.rows.last().map(|row| row.at);
        let gap = before.map_or(Duration::ZERO, |before| at.since(before));
        let timed = self.rows.iter().rev().find(|row| row.lane.is_some());
        let shows_time = lane.is_some() && timed.is_none_or(|row| row.at != at);
        self.rows.push(Row { at, gap, shows_time, lane, left: None, right: None, glyph: false });
        self.rows.len() - 1
    }
}

impl Row {
    /// Whether the row is of this replica at this instant.
    fn is(&self, lane: Lane, at: Moment) -> bool {
        self.lane == Some(lane) && self.at == at
    }

    fn label(&self, side: Side) -> Option<&String> {
        match side {
            Side::Left => self.left.as_ref(),
            Side::Right => self.right.as_ref(),
        }
    }

    fn label_mut(&mut self, side: Side) -> &mut Option<String> {
        match side {
            Side::Left => &mut self.left,
            Side::Right => &mut self.right,
        }
    }
}

/// The lifelines of all that are present or act.
fn lanes(recorder: &Recorder) -> Vec<Lane> {
    let mut lanes: BTreeSet<Lane> = recorder.before.keys().map(|of| Lane::Replica(*of)).collect();
    for entry in recorder.entries.iter().filter(|entry| !entry.quiet) {
        match &entry.event {
            Event::Leaves { sent, .. } => lanes.extend([sent.from, sent.to]),
            Event::Arrives { at: lane, .. } | Event::Marks { lane, .. } => {
                lanes.insert(*lane);
            }
            _ => {}
        }
    }
    lanes.into_iter().collect()
}

//! Records a world for a chart. Nothing here draws a random number or changes the run.

use std::collections::{BTreeMap, VecDeque};

use synod_consensus::LeaderView;
use synod_replica::PeerMessage;
use synod_wire::{Ballot, Epoch};

use super::window::{Place, Window};
use crate::{
    check::Violation,
    clock::Moment,
    describe,
    network::Loss,
    situations::{Reached, Situation},
};

/// A lifeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Lane {
    /// All clients share one.
    Clients,
    /// A replica, by index.
    Replica(usize),
}

/// Something that travels from one lifeline to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Key {
    /// A message between replicas, by its number.
    Message(u64),
    /// A client's request in an attempt.
    Question(u64),
    /// The answer to it.
    Answer(u64),
}

/// An event at a replica that is not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    /// A life begins.
    Starts,
    /// A life ends.
    Crashes,
    /// The process is stopped for a while.
    Pauses,
    /// It goes on.
    Resumes,
    /// Nothing becomes durable from now on.
    DiskStalls,
    /// The disk goes on.
    DiskGoesOn,
    /// A record is written.
    Write,
    /// An fsync ends.
    Durable,
    /// A deadline passes.
    Timer,
    /// A slot is delivered.
    Delivers {
        /// Whether no replica has delivered it before.
        first: bool,
    },
    /// The replica takes itself for the leader of a ballot, in this epoch.
    Leads(Epoch, Ballot),
    /// The replica takes another one for the leader, or knows none, in this epoch.
    Follows(Epoch, LeaderView),
    /// Anything else.
    Note,
}

/// The contents of something that travels.
#[derive(Clone, Debug)]
pub(super) enum What {
    /// A message between replicas, and its bytes.
    Message(Box<PeerMessage>, usize),
    /// A question or an answer.
    Text(String),
}

impl What {
    /// The kind, as filters and colours know it.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            What::Message(message, _) => describe::class(message),
            What::Text(_) => "client",
        }
    }

    pub(super) fn text(&self) -> String {
        match self {
            What::Message(message, _) => describe::message(message),
            What::Text(text) => text.clone(),
        }
    }
}

/// Something that left.
#[derive(Clone, Debug)]
pub(super) struct Sent {
    pub(super) at: Moment,
    /// The number of the event.
    pub(super) event: u64,
    pub(super) from: Lane,
    pub(super) to: Lane,
    pub(super) what: What,
}

#[derive(Clone, Debug)]
pub(super) enum Event {
    Leaves {
        key: Key,
        sent: Sent,
    },
    Arrives {
        key: Key,
        at: Lane,
    },
    Lost {
        key: Key,
        loss: Loss,
    },
    Marks {
        lane: Lane,
        mark: Mark,
        text: String,
    },
    /// A text across all lifelines.
    Across {
        text: String,
    },
    /// A command of a script.
    Command {
        text: String,
    },
    /// A violation, with where it was seen.
    Violates {
        lane: Option<Lane>,
        text: String,
    },
}

#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) number: u64,
    pub(super) at: Moment,
    /// Whether a story hides it.
    pub(super) quiet: bool,
    pub(super) event: Event,
}

/// The state of a replica, as far as its lifeline shows it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Condition {
    pub(super) up: bool,
    pub(super) paused: bool,
    pub(super) stalled: bool,
    pub(super) leads: bool,
}

impl Condition {
    /// The state after a mark.
    pub(super) fn after(self, mark: Mark) -> Condition {
        match mark {
            Mark::Starts => Condition { up: true, paused: false, leads: false, ..self },
            Mark::Crashes => Condition { up: false, paused: false, leads: false, ..self },
            Mark::Pauses => Condition { paused: true, ..self },
            Mark::Resumes => Condition { paused: false, ..self },
            Mark::DiskStalls => Condition { stalled: true, ..self },
            Mark::DiskGoesOn => Condition { stalled: false, ..self },
            Mark::Leads(..) => Condition { leads: true, ..self },
            Mark::Follows(..) => Condition { leads: false, ..self },
            Mark::Write | Mark::Durable | Mark::Timer | Mark::Delivers { .. } | Mark::Note => self,
        }
    }
}

/// How many messages that left before the window are remembered, since they may arrive within it.
const EARLY_MAX: usize = 20_000;

/// Collects the events within a window, and what a chart needs from before it.
#[derive(Clone, Debug)]
pub struct Recorder {
    pub(crate) now: Moment,
    pub(crate) quiet: bool,
    window: Window,
    last: u64,
    pub(super) entries: VecDeque<Entry>,
    /// The states of replicas when the window began.
    pub(super) before: BTreeMap<usize, Condition>,
    /// Messages that had left by then.
    pub(super) early: BTreeMap<Key, Sent>,
    /// How many events were before the window, and how many after it.
    pub(super) left_out: (u64, u64),
    /// The replica of each attempt that is not answered.
    asked: BTreeMap<u64, usize>,
    /// The dangerous situations that the run has reached so far; `None` if the chart does not name them.
    reached: Option<Reached>,
    /// When it reached each, by the number of the event that names it.
    turns: Vec<(u64, Situation)>,
}

impl Recorder {
    /// A recorder for the events within a window.
    #[must_use]
    pub fn new(window: Window) -> Recorder {
        Recorder {
            now: Moment::START,
            quiet: false,
            window,
            last: 0,
            entries: VecDeque::new(),
            before: BTreeMap::new(),
            early: BTreeMap::new(),
            left_out: (0, 0),
            asked: BTreeMap::new(),
            reached: None,
            turns: Vec::new(),
        }
    }

    /// A recorder that also names the dangerous situations that the run reaches, in a line across the chart each.
    pub(crate) fn naming_situations(window: Window) -> Recorder {
        Recorder { reached: Some(Reached::default()), ..Recorder::new(window) }
    }

    /// The run has reached these situations so far.
    pub(crate) fn reaches(&mut self, reached: Reached) {
        let Some(known) = self.reached.filter(|known| *known != reached) else { return };
        for situation in reached.iter().filter(|situation| !known.has(*situation)) {
            self.marks_all(format!("reached: {situation}"));
            self.turns.push((self.last, situation));
        }
        self.reached = Some(reached);
    }

    /// The situations that it named, each with the number of the event.
    pub(crate) fn turns(&self) -> &[(u64, Situation)] {
        &self.turns
    }

    /// How many events it has seen.
    pub(crate) fn events(&self) -> u64 {
        self.last
    }

    /// A message leaves a replica.
    pub(crate) fn sends(
        &mut self,
        number: u64,
        (from, to): (usize, usize),
        message: &PeerMessage,
        bytes: usize,
    ) {
        let what = What::Message(Box::new(message.clone()), bytes);
        self.leaves(Key::Message(number), Lane::Replica(from), Lane::Replica(to), what);
    }

    /// A client asks a replica.
    pub(crate) fn asks(&mut self, attempt: u64, of: usize, text: String) {
        self.asked.insert(attempt, of);
        self.leaves(Key::Question(attempt), Lane::Clients, Lane::Replica(of), What::Text(text));
    }

    /// A replica answers an attempt.
    pub(crate) fn answers(&mut self, attempt: u64, text: String) {
        if let Some(of) = self.asked.remove(&attempt) {
            self.leaves(Key::Answer(attempt), Lane::Replica(of), Lane::Clients, What::Text(text));
        }
    }

    fn leaves(&mut self, key: Key, from: Lane, to: Lane, what: What) {
        let sent = Sent { at: self.now, event: self.last + 1, from, to, what };
        self.add(Event::Leaves { key, sent });
    }

    /// Something arrives.
    pub(crate) fn arrives(&mut self, key: Key, at: Lane) {
        self.add(Event::Arrives { key, at });
    }

    /// Something will never arrive.
    pub(crate) fn loses(&mut self, key: Key, loss: Loss) {
        self.add(Event::Lost { key, loss });
    }

    /// Something happens at a replica.
    pub(crate) fn marks(&mut self, of: usize, mark: Mark, text: String) {
        self.add(Event::Marks { lane: Lane::Replica(of), mark, text });
    }

    /// Clients notice something by themselves.
    pub(crate) fn marks_clients(&mut self, text: String) {
        self.add(Event::Marks { lane: Lane::Clients, mark: Mark::Note, text });
    }

    /// An event concerns all replicas.
    pub(crate) fn marks_all(&mut self, text: String) {
        self.add(Event::Across { text });
    }

    /// A command of a script begins.
    pub(crate) fn begins(&mut self, command: &str) {
        self.add(Event::Command { text: command.to_owned() });
    }

    /// An invariant is violated. The chart shows that at the last event, unless only the whole run shows the violation.
    pub(crate) fn violates(&mut self, violation: &Violation) {
        let seen = |entry: &&Entry| violation.invariant.is_seen_at_once() && entry.at == self.now;
        let lane = self.entries.back().filter(seen);
        let lane = lane.and_then(|entry| match &entry.event {
            Event::Leaves { sent, .. } => Some(sent.from),
            Event::Arrives { at: lane, .. } | Event::Marks { lane, .. } => Some(*lane),
            _ => None,
        });
        self.add(Event::Violates { lane, text: violation.to_string() });
    }

    /// A story ends before its end.
    pub(crate) fn fails(&mut self, error: &str) {
        self.add(Event::Violates { lane: None, text: error.to_owned() });
    }

    /// Makes everything so far the beginning of the chart, under the command of the script that caused it.
    pub(crate) fn begin_with(&mut self, command: &str) {
        while let Some(entry) = self.entries.pop_front() {
            self.forget(entry);
        }
        self.left_out = (0, 0);
        self.last = 0;
        self.begins(command);
    }

    fn add(&mut self, event: Event) {
        self.last += 1;
        let entry = Entry { number: self.last, at: self.now, quiet: self.quiet, event };
        match self.window.place(entry.number, entry.at) {
            Place::Before => self.leave_out(entry),
            Place::After => self.left_out.1 += 1,
            Place::Within => self.entries.push_back(entry),
        }
        if self.entries.len() > self.window.events_max
            && let Some(oldest) = self.entries.pop_front()
        {
            self.leave_out(oldest);
        }
    }

    fn leave_out(&mut self, entry: Entry) {
        self.left_out.0 += 1;
        self.forget(entry);
    }

    /// Keeps what a chart that begins after this event needs of it.
    fn forget(&mut self, entry: Entry) {
        match entry.event {
            Event::Leaves { key, sent } => {
                self.early.insert(key, sent);
                if self.early.len() > EARLY_MAX {
                    self.early.pop_first();
                }
            }
            Event::Marks { lane: Lane::Replica(of), mark, .. } => {
                let condition = self.before.entry(of).or_default();
                *condition = condition.after(mark);
            }
            _ => {}
        }
    }
}

//! What happened in a run, for people.

use std::collections::VecDeque;

use crate::clock::Moment;

/// Where the lines of a run go.
#[derive(Debug, Default)]
pub enum Trace {
    /// They go nowhere, and are not even made.
    #[default]
    Off,
    /// The last lines are kept.
    Last {
        /// The lines, oldest first.
        lines: VecDeque<String>,
        /// How many lines are kept.
        max: usize,
    },
    /// All lines are kept, without their instants.
    Script(Vec<String>),
    /// All lines go to standard output.
    Print,
}

impl Trace {
    /// Keeps the last lines.
    #[must_use]
    pub fn last(max: usize) -> Trace {
        Trace::Last { lines: VecDeque::new(), max }
    }

    /// Adds a line.
    pub fn line(&mut self, now: Moment, text: impl FnOnce() -> String) {
        match self {
            Trace::Off => {}
            Trace::Last { lines, max } => {
                if lines.len() >= *max {
                    lines.pop_front();
                }
                lines.push_back(format!("{:>12}  {}", now.to_string(), text()));
            }
            Trace::Script(lines) => lines.push(text()),
            Trace::Print => println!("{:>12}  {}", now.to_string(), text()),
        }
    }

    /// Takes the lines out that were kept.
    pub fn take(&mut self) -> Vec<String> {
        match self {
            Trace::Last { lines, .. } => std::mem::take(lines).into(),
            Trace::Script(lines) => std::mem::take(lines),
            Trace::Off | Trace::Print => Vec::new(),
        }
    }
}

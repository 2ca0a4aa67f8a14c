//! Whether what is ordered is still of use to somebody.
//!
//! Where clients ask for more than can be ordered, each command waits. If it waits until its client has given up, it
//! takes its slot all the same, and the next one waits for it: everything is ordered, and nothing is answered. So of
//! the commands that are ordered a good part has to be answered in time.
//!
//! The rule: time after the last fault is cut into stretches of [`STRETCH`]. Of a stretch those commands of clients
//! count that were executed in it, for the first time, and of which it is known whether they were in time. One is in
//! time if its client heard the reply. It is late if the client had given up before it was executed, or gave up before
//! it heard the reply: because it had waited for long enough, or because a replica said so ([`RequestError::Timeout`]).
//! Others do not count: those that were asked for before the last fault was over, which may have taken their time;
//! those whose replica stopped, those whose replies are not kept any more, and those that a snapshot brought to the
//! replica that was asked. In a stretch with at least [`LEAST`] commands that count, at least half are in time.
//!
//! [`RequestError::Timeout`]: synod_replica::RequestError::Timeout

use std::{collections::HashMap, time::Duration};

use bytes::Bytes;

use super::invariant::{Checked, Invariant, demand};
use crate::clock::Moment;

/// How long a stretch is.
const STRETCH: Duration = Duration::from_secs(5);

/// This many commands of a stretch have to count before it is judged: by one or two nothing is shown.
const LEAST: u32 = 16;

/// What is known of a command that counts.
#[derive(Clone, Copy, Debug, Default)]
struct Command {
    /// When it was executed first.
    executed: Option<Moment>,
    /// Nobody waits for it any more.
    given_up: bool,
}

/// The commands of a stretch.
#[derive(Clone, Copy, Debug, Default)]
struct Stretch {
    in_time: u32,
    late: u32,
}

/// Counts commands.
#[derive(Debug, Default)]
pub(crate) struct Goodput {
    /// When the last fault was over.
    peace: Option<Moment>,
    /// The commands that are not counted yet.
    open: HashMap<Bytes, Command>,
    stretches: Vec<Stretch>,
}

impl Goodput {
    /// The last fault is over.
    pub(crate) fn peace(&mut self, now: Moment) {
        self.peace = Some(now);
    }

    /// A client has a new command.
    pub(crate) fn asked(&mut self, payload: &Bytes) {
        if self.peace.is_some() {
            self.open.insert(payload.clone(), Command::default());
        }
    }

    /// Some replica has this command to execute.
    pub(crate) fn executed(&mut self, now: Moment, payload: &Bytes) {
        let Some(command) = self.open.get_mut(payload).filter(|command| command.executed.is_none()) else {
            return;
        };
        command.executed = Some(now);
        if command.given_up {
            self.count(payload, |stretch| stretch.late += 1);
        }
    }

    /// Its client hears the reply.
    pub(crate) fn answered(&mut self, payload: &Bytes) {
        self.count(payload, |stretch| stretch.in_time += 1);
    }

    /// Its client has waited for too long. It `asks_again`, or does something else.
    pub(crate) fn given_up(&mut self, payload: &Bytes, asks_again: bool) {
        match self.open.get_mut(payload) {
            Some(command) if command.executed.is_none() && !asks_again => {
                command.given_up = true;
            }
            Some(command) if command.executed.is_none() => {}
            _ => self.count(payload, |stretch| stretch.late += 1),
        }
    }

    /// Its client hears no more of it for another reason.
    pub(crate) fn does_not_count(&mut self, payload: &Bytes) {
        self.open.remove(payload);
    }

    fn count(&mut self, payload: &Bytes, add: impl FnOnce(&mut Stretch)) {
        let executed = self.open.remove(payload).and_then(|command| command.executed);
        if let (Some(executed), Some(peace)) = (executed, self.peace) {
            let place = (executed.since(peace).as_nanos() / STRETCH.as_nanos()) as usize;
            self.stretches.resize(self.stretches.len().max(place + 1), Stretch::default());
            add(&mut self.stretches[place]);
        }
    }

    /// Judges the stretches.
    pub(crate) fn check(&self) -> Checked {
        for (place, &Stretch { in_time, late }) in self.stretches.iter().enumerate() {
            demand(in_time + late < LEAST || in_time >= late, Invariant::Goodput, || {
                let begin = STRETCH * u32::try_from(place).expect("a short run");
                format!(
                    "of {} commands that were executed between {begin:?} and {:?} after the last fault, {in_time} \
                     were answered in time",
                    in_time + late,
                    begin + STRETCH
                )
            })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        Moment::after(Duration::from_secs(seconds))
    }

    fn payload(id: u32) -> Bytes {
        Bytes::copy_from_slice(&id.to_le_bytes())
    }

    /// The outcome of a run with this many commands of each kind, executed at an instant.
    fn judged(second: u64, in_time: u32, before: u32, after: u32, others: u32) -> Checked {
        let mut goodput = Goodput::default();
        goodput.peace(at(100));
        let mut ids = (0..).map(payload);
        let mut run = |count: u32, what: &dyn Fn(&mut Goodput, &Bytes)| {
            for id in ids.by_ref().take(count as usize) {
                goodput.asked(&id);
                what(&mut goodput, &id);
            }
        };
        run(in_time, &|goodput, id| {
            goodput.given_up(id, true);
            goodput.executed(at(second), id);
            goodput.executed(at(second + 9), id);
            goodput.answered(id);
        });
        run(before, &|goodput, id| {
            goodput.given_up(id, false);
            goodput.executed(at(second), id);
        });
        run(after, &|goodput, id| {
            goodput.executed(at(second), id);
            goodput.given_up(id, true);
            goodput.answered(id);
        });
        run(others, &|goodput, id| {
            goodput.executed(at(second), id);
            goodput.does_not_count(id);
            goodput.given_up(id, false);
        });
        goodput.check()
    }

    #[test]
    fn half_of_what_is_executed_in_a_stretch_is_answered_in_time() {
        assert!(judged(107, 10, 5, 5, 100).is_ok());
        let violation = judged(107, 10, 6, 5, 0).expect_err("more are late");
        assert_eq!(violation.invariant, Invariant::Goodput);
        assert!(
            violation.detail.contains("of 21 commands that were executed between 5s and 10s"),
            "{violation}"
        );
        assert!(judged(100, 0, 9, 6, 0).is_ok(), "they are too few");
        assert!(judged(100, 0, 9, 7, 0).is_err());
    }

    #[test]
    fn what_was_asked_for_before_the_last_fault_was_over_does_not_count() {
        let mut goodput = Goodput::default();
        let ids: Vec<Bytes> = (0..LEAST).map(payload).collect();
        ids.iter().for_each(|id| goodput.asked(id));
        goodput.peace(at(100));
        ids.iter().for_each(|id| goodput.executed(at(100), id));
        ids.iter().for_each(|id| goodput.given_up(id, false));
        assert!(goodput.check().is_ok());
    }
}

//! The result of a run.

use std::{collections::BTreeMap, fmt, time::Duration};

use super::{
    events::{EVENTS_MIN, Watcher},
    history::Findings,
    holders::Record,
    holds::CHANGES_MIN,
    run::Tally,
    schedule::Fault,
};

/// Operations that must be completed during a kind of fault. With fewer it is not covered.
const COVERED: u64 = 10;
/// The largest share of keys, in percent, whose check may end undecided.
pub const UNDECIDED_PERCENT_MAX: u64 = 1;

/// What a run did and found. It is printed as Markdown.
#[derive(Debug)]
pub struct Report {
    /// The arguments, and the machine.
    pub setup: Vec<(&'static str, String)>,
    /// How long clients worked.
    pub took: Duration,
    /// Faults that were asked for, with their effects.
    pub tallies: BTreeMap<Fault, Tally>,
    /// The longest time without a completed operation, when it was noticed, and which fault preceded it.
    pub longest_gap: (Duration, f64, String),
    /// The result of the checks of what clients saw.
    pub findings: Findings,
    /// What watchers were told.
    pub watched: Watched,
    /// What happened to locks.
    pub locks: Locks,
    /// Other promises that were broken: of service, of equality, of stopping in order.
    pub broken: Vec<String>,
}

/// What watchers were told.
#[derive(Clone, Debug, Default)]
pub struct Watched {
    /// The watchers.
    pub watchers: Vec<Watcher>,
    /// Writes of which clients know, each of which was looked for among the events.
    pub known: usize,
    /// Events that were lost, came twice or out of order, or differ from what others saw.
    pub violations: Vec<String>,
}

/// What happened to locks.
#[derive(Clone, Debug, Default)]
pub struct Locks {
    /// What contenders saw.
    pub record: Record,
    /// How often each lock went from one contender to another.
    pub changes: BTreeMap<u32, usize>,
    /// Locks that two held at once, leases that ended early, and writes that passed a fence.
    pub violations: Vec<String>,
}

impl Report {
    /// What was seen and cannot be explained.
    pub fn violations(&self) -> impl Iterator<Item = &str> {
        let all = [&self.findings.violations, &self.watched.violations, &self.locks.violations];
        all.into_iter().flatten().map(String::as_str)
    }

    /// Why the run failed; empty if it did not.
    pub fn failures(&self) -> Vec<String> {
        let mut failures = self.broken.clone();
        let found = &self.findings;
        if !found.violations.is_empty() {
            failures.push(format!("the history is not linearizable: {} violations", found.violations.len()));
        }
        if found.undecided * 100 > found.keys * UNDECIDED_PERCENT_MAX {
            failures.push(format!(
                "the check was given up for {} of {} keys; at most {UNDECIDED_PERCENT_MAX} % may be",
                found.undecided, found.keys
            ));
        }
        if let Some(first) = self.watched.violations.first() {
            failures
                .push(format!("watches: {} violations, the first: {first}", self.watched.violations.len()));
        }
        if let Some(first) = self.locks.violations.first() {
            failures.push(format!("locks: {} violations, the first: {first}", self.locks.violations.len()));
        }
        for Watcher { name, events, .. } in &self.watched.watchers {
            if *events < EVENTS_MIN {
                failures.push(format!("{name} is not covered: it was told {events} events of {EVENTS_MIN}"));
            }
        }
        if self.locks.changes.is_empty() {
            failures.push("the locks are not covered: none was held".to_owned());
        }
        for (lock, changes) in &self.locks.changes {
            if *changes < CHANGES_MIN {
                failures.push(format!(
                    "lock {lock} is not covered: it changed hands {changes} times of {CHANGES_MIN}"
                ));
            }
        }
        for (fault, tally) in &self.tallies {
            if tally.completed < COVERED {
                let (name, completed) = (fault.name(), tally.completed);
                failures.push(format!("{name} is not covered: {completed} operations completed during it"));
            }
        }
        failures
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (what, value) in &self.setup {
            writeln!(f, "{what}: {value}  ")?;
        }
        writeln!(
            f,
            "\n| fault | applied | could not be | completed during it | longest gap | all serve again after |"
        )?;
        writeln!(f, "| --- | ---: | ---: | ---: | ---: | ---: |")?;
        for (fault, tally) in &self.tallies {
            let Tally { applied, failed, completed, longest_gap, recovery } = tally;
            let [gap, recovery] = [longest_gap, recovery].map(Duration::as_secs_f64);
            let name = fault.name();
            writeln!(f, "| {name} | {applied} | {failed} | {completed} | {gap:.2} s | {recovery:.2} s |")?;
        }
        let found = &self.findings;
        let answered = found.reads + found.writes;
        let rate = answered as f64 / self.took.as_secs_f64().max(1e-9);
        let (gap, at, after) = (self.longest_gap.0.as_secs_f64(), self.longest_gap.1, &self.longest_gap.2);
        writeln!(
            f,
            "\nOperations: {answered} answered ({} reads, {} writes; {rate:.0} a second), {} writes without an answer  ",
            found.reads, found.writes, found.unanswered
        )?;
        writeln!(
            f,
            "Longest gap without a completed operation: {gap:.2} s, noticed at {at:.1} s, after {after}  "
        )?;
        writeln!(
            f,
            "Checked: {} keys, {} of them undecided; revisions of all of them; what all replicas hold",
            found.keys, found.undecided
        )?;
        let Watched { watchers, known, .. } = &self.watched;
        let events: u64 = watchers.iter().map(|watcher| watcher.events).sum();
        let resumed: u64 = watchers.iter().map(|watcher| watcher.resumed).sum();
        writeln!(
            f,
            "\nWatches: {} watchers, {events} events told, {resumed} resumptions, {known} writes that clients know of  ",
            watchers.len()
        )?;
        let Locks { record, changes, .. } = &self.locks;
        let changes: Vec<_> = changes.values().map(ToString::to_string).collect();
        writeln!(
            f,
            "Locks: held {} times, changed hands {} times; {} holders vanished and {} lost their lock, {} contenders \
             left the queue  ",
            record.holds.len(),
            changes.join(" and "),
            record.vanished,
            record.lost,
            record.left
        )?;
        writeln!(
            f,
            "Writes under a lock: {}, and {} that a fence refused",
            record.written.len(),
            record.refused
        )?;
        let failures = self.failures();
        match failures.is_empty() {
            true => writeln!(f, "\nVerdict: linearizable, every fault covered, every promise kept"),
            false => {
                writeln!(f, "\nVerdict: FAILED")?;
                failures.iter().try_for_each(|failure| writeln!(f, "- {failure}"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::events::Ledger, *};

    fn watcher() -> Watcher {
        let mut ledger = Ledger::default();
        ledger.add("the watcher at n1".to_owned(), 2);
        let mut watcher = ledger.watchers()[0].clone();
        watcher.events = EVENTS_MIN;
        watcher
    }

    fn report() -> Report {
        let tally = Tally { applied: 2, completed: COVERED, ..Tally::default() };
        Report {
            setup: vec![("seed", "7".to_owned())],
            took: Duration::from_secs(10),
            tallies: [(Fault::Kill, tally)].into(),
            longest_gap: (Duration::from_millis(900), 3.0, "kill n1".to_owned()),
            findings: Findings { reads: 50, writes: 50, keys: 100, undecided: 1, ..Findings::default() },
            watched: Watched { watchers: vec![watcher()], ..Watched::default() },
            locks: Locks { changes: [(0, CHANGES_MIN)].into(), ..Locks::default() },
            broken: Vec::new(),
        }
    }

    #[test]
    fn what_was_not_covered_or_not_decided_fails() {
        assert!(report().failures().is_empty());
        let said = report().to_string();
        assert!(
            said.contains("| kill | 2 | 0 | 10 | 0.00 s |") && said.contains("every promise kept"),
            "{said}"
        );

        let fails = |change: &dyn Fn(&mut Report), why: &str| {
            let mut changed = report();
            change(&mut changed);
            let said = changed.to_string();
            assert!(said.contains("FAILED") && said.contains(why), "{said}");
        };
        fails(&|report| report.findings.undecided = 2, "2 of 100 keys");
        fails(&|report| report.findings.violations = vec!["x".to_owned()], "not linearizable");
        let few = |report: &mut Report| report.watched.watchers[0].events -= 1;
        fails(&few, "the watcher at n1 is not covered: it was told 99 events");
        fails(&|report| report.watched.violations = vec!["twice".to_owned()], "the first: twice");
        fails(&|report| report.locks.violations = vec!["held by two".to_owned()], "the first: held by two");
        fails(
            &|report| report.locks.changes = [(0, 9)].into(),
            "lock 0 is not covered: it changed hands 9 times",
        );
        fails(&|report| report.locks.changes.clear(), "none was held");
        fails(&|report| report.broken = vec!["n1 ended by itself".to_owned()], "n1 ended by itself");
        fails(&|report| _ = report.tallies.insert(Fault::Pause, Tally::default()), "pause is not covered");
    }
}

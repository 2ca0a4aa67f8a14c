//! What a replica does for its store without being asked: it compacts old revisions away, and compares its contents
//! with those of the other members.
//!
//! A [`Keeper`] decides, without a clock: it is told the time and what its replica knows, and says what to do next.
//! `synod-server` does it with a thread, `synod-sim` with a seed. What it changes goes through the log, as commands of
//! clients do.

mod compactor;
mod comparisons;

use std::{
    collections::{BTreeSet, VecDeque},
    time::Duration,
};

use synod_api::{
    etcdserverpb::{AlarmRequest, AlarmType, CompactionRequest, alarm_request::AlarmAction},
    synod::v1::{KvCommand, KvHashCheck, kv_command::Command},
};

pub use self::{
    compactor::{Compaction, Compactor},
    comparisons::{Comparisons, NO_HASH, Question, Verdict, judge},
};

/// How long members have to tell their hashes.
const ROUND_TIMEOUT: Duration = Duration::from_secs(10);

/// Stands for the revision that members have when they execute the question.
const PRESENT: i64 = 0;

/// What is done, and how often.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UpkeepConfig {
    /// Which revisions are compacted by the caretaker; none without it.
    pub compaction: Option<Compaction>,
    /// How often the caretaker has the contents of all members compared, as they are then.
    pub check_interval: Option<Duration>,
    /// How often it has them compared as they were at the last compaction, if they have not been.
    pub compact_check_interval: Option<Duration>,
}

/// What a replica knows when its keeper looks. The keeper is told the time after that: no later revision had been
/// executed then.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Known {
    /// The store's revision; 0 if it is not known.
    pub revision: i64,
    /// The revision of its last compaction.
    pub compact_revision: i64,
    /// Whether the alarm CORRUPT is raised.
    pub corrupt: bool,
    /// Whether this replica does what one replica has to do for all.
    pub takes_care: bool,
    /// How many members the group has.
    pub members: usize,
    /// Members that have decided something else than this replica.
    pub forked_with: BTreeSet<u64>,
}

/// What is to be done next. [`Keeper::done`] is told what became of it before the keeper says anything else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Task {
    /// Have the store hash itself, and order [the answer](Question::answer).
    Answer(Question),
    /// Order a compaction at this revision.
    Compact(i64),
    /// Order a question to all members, by its round and the revision of which they tell their hashes.
    Ask(u64, i64),
    /// Order the alarm CORRUPT for a member; 0 stands for the cluster as a whole.
    Raise(u64),
    /// Record what came of a comparison.
    Heed(Judged),
}

impl Task {
    /// The command that is to be ordered, if that is known without the store.
    #[must_use]
    pub fn command(&self) -> Option<Command> {
        match *self {
            Task::Compact(revision) => {
                Some(Command::Compact(CompactionRequest { revision, physical: false }))
            }
            Task::Ask(round, revision) => {
                Some(Command::HashCheck(KvHashCheck { round, revision, hash: None }))
            }
            Task::Raise(member_id) => {
                let (action, alarm) = (AlarmAction::Activate.into(), AlarmType::Corrupt.into());
                Some(Command::Alarm(AlarmRequest { action, member_id, alarm }))
            }
            Task::Answer(_) | Task::Heed(_) => None,
        }
    }
}

/// A command that a member orders for itself.
#[must_use]
pub fn of_member(member_id: u64, command: Command) -> KvCommand {
    KvCommand { command: Some(command), member_id, of_member: true, ..KvCommand::default() }
}

/// What became of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Done {
    /// It was executed.
    Executed,
    /// It was executed, and refused since another had compacted as far.
    Compacted,
    /// It was refused, or nobody knows whether it was or will be executed.
    Failed,
}

/// What came of a comparison.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judged {
    /// The revision whose contents were compared.
    pub revision: i64,
    /// What it shows; `None` if the question was not ordered.
    pub verdict: Option<Verdict>,
    /// Whether somebody waits for it before this replica serves clients. No alarm follows then.
    pub at_start: bool,
}

/// Decides what is done for a store, one thing after the other. Times are since any moment that stays the same.
#[derive(Debug)]
pub struct Keeper {
    config: UpkeepConfig,
    member: u64,
    compactor: Option<Compactor>,
    /// When the compaction that is under way was begun.
    compacting: Duration,
    /// When contents are compared next.
    check: Option<Duration>,
    compact_check: Option<Duration>,
    /// The last compaction at which all members were found to be the same.
    checked: i64,
    /// Members whose histories were told to differ, so that an alarm that an operator clears is not raised again.
    forked: BTreeSet<u64>,
    /// The round of the last comparison.
    round: u64,
    /// Comparisons that are to be begun.
    wanted: VecDeque<Comparison>,
    /// The one that is under way.
    comparing: Option<Comparison>,
    /// Members for which the alarm is to be raised.
    alarms: VecDeque<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Comparison {
    /// The revision whose contents are compared; [`PRESENT`] or that of a compaction.
    revision: i64,
    at_start: bool,
    /// Once the question was executed: when it ends although members have not answered.
    until: Option<Duration>,
}

impl Keeper {
    /// A replica that knows nothing of the past. No other life of any member uses rounds near `round`.
    #[must_use]
    pub fn new(config: UpkeepConfig, member: u64, round: u64, now: Duration) -> Keeper {
        Keeper {
            config,
            member,
            compactor: config.compaction.map(|mode| Compactor::new(mode, now)),
            compacting: now,
            check: config.check_interval.map(|interval| now + interval),
            compact_check: config.compact_check_interval.map(|interval| now + interval),
            checked: 0,
            forked: BTreeSet::new(),
            round,
            wanted: VecDeque::new(),
            comparing: None,
            alarms: VecDeque::new(),
        }
    }

    /// When [`Keeper::next`] may have something to do although nothing has happened.
    #[must_use]
    pub fn due(&self) -> Option<Duration> {
        if let Some(comparison) = &self.comparing {
            return comparison.until;
        }
        let compaction = self.compactor.as_ref().map(Compactor::due);
        [compaction, self.check, self.compact_check].into_iter().flatten().min()
    }

    /// Compares contents as they are, before this replica serves clients.
    pub fn compare_at_start(&mut self) {
        self.wanted.push_back(Comparison { revision: PRESENT, at_start: true, until: None });
    }

    /// What is to be done now; `None` if nothing is until something happens or is [due](Keeper::due).
    pub fn next(&mut self, now: Duration, known: &Known, comparisons: &mut Comparisons) -> Option<Task> {
        // Others wait for it.
        if let Some(question) = comparisons.take_question() {
            return Some(Task::Answer(question));
        }
        if let Some(comparison) = self.comparing {
            let is_over = comparison.until.is_some_and(|until| now >= until);
            if !is_over && (comparison.until.is_none() || comparisons.answers().len() < known.members) {
                return None;
            }
            self.comparing = None;
            let verdict = judge(known.members, self.member, comparisons.answers());
            let revision = comparisons.answers().get(&self.member).map_or(0, |own| own.revision);
            return Some(Task::Heed(self.judged(comparison, revision, verdict, known.members)));
        }
        // Only now: members whose stores were compacted at different revisions cannot be compared.
        if let Some(compactor) = self.compactor.as_mut().filter(|compactor| now >= compactor.due())
            && let Some(revision) = compactor.look(now, known.revision, known.takes_care)
        {
            self.compacting = now;
            return Some(Task::Compact(revision));
        }
        if let Some(member) = self.alarms.pop_front() {
            return Some(Task::Raise(member));
        }
        self.check(now, known);
        if let Some(member) = self.alarms.pop_front() {
            return Some(Task::Raise(member));
        }
        let comparison = self.wanted.pop_front()?;
        self.comparing = Some(comparison);
        self.round = self.round.wrapping_add(1);
        comparisons.begin(self.round);
        Some(Task::Ask(self.round, comparison.revision))
    }

    /// What became of what was to be done. The result is what is to be heeded of it.
    pub fn done(&mut self, now: Duration, task: &Task, done: Done) -> Option<Judged> {
        match (task, done) {
            (Task::Compact(revision), Done::Executed | Done::Compacted) => {
                if let Some(compactor) = &mut self.compactor {
                    compactor.compacted(self.compacting, *revision);
                }
            }
            (Task::Ask(..), Done::Executed) => {
                if let Some(comparison) = &mut self.comparing {
                    comparison.until = Some(now + ROUND_TIMEOUT);
                }
            }
            (Task::Ask(..), _) => {
                let Comparison { revision, at_start, .. } = self.comparing.take()?;
                return Some(Judged { revision, verdict: None, at_start });
            }
            _ => {}
        }
        None
    }

    /// Does what a comparison calls for.
    fn judged(
        &mut self,
        comparison: Comparison,
        executed_at: i64,
        verdict: Verdict,
        members: usize,
    ) -> Judged {
        let Comparison { revision: of, at_start, .. } = comparison;
        let revision = if of == PRESENT { executed_at } else { of };
        if !at_start {
            match &verdict {
                Verdict::Same(same) if *same == members && of != PRESENT => self.checked = of,
                Verdict::Same(_) => {}
                Verdict::Differ { differ, .. } => self.alarms.extend(differ),
                // As with etcd, 0 stands for the cluster as a whole.
                Verdict::Unclear => self.alarms.push_back(0),
            }
        }
        Judged { revision, verdict: Some(verdict), at_start }
    }

    /// Has contents compared if that is due.
    fn check(&mut self, now: Duration, known: &Known) {
        let is_due = |at: Option<Duration>| at.is_some_and(|at| now >= at);
        let (present, compacted) = (is_due(self.check), is_due(self.compact_check));
        if present {
            self.check = self.config.check_interval.map(|interval| now + interval);
        }
        if compacted {
            self.compact_check = self.config.compact_check_interval.map(|interval| now + interval);
        }
        if !(present || compacted) || !known.takes_care {
            return;
        }
        self.alarms.extend(known.forked_with.difference(&self.forked));
        self.forked.clone_from(&known.forked_with);
        // Without a revision it is not known either whether the alarm is raised.
        if known.corrupt || known.revision == 0 {
            return;
        }
        let comparison = |revision| Comparison { revision, at_start: false, until: None };
        if present {
            self.wanted.push_back(comparison(PRESENT));
        }
        if compacted && known.compact_revision > self.checked {
            self.wanted.push_back(comparison(known.compact_revision));
        }
    }
}

#[cfg(test)]
mod tests {
    use synod_api::{etcdserverpb::HashKvResponse, synod::v1::KvHash};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const ME: u64 = 1;

    fn config() -> UpkeepConfig {
        UpkeepConfig {
            compaction: Some(Compaction::Periodic(100 * SECOND)),
            check_interval: Some(5 * SECOND),
            compact_check_interval: None,
        }
    }

    fn known() -> Known {
        Known { revision: 9, compact_revision: -1, takes_care: true, members: 3, ..Known::default() }
    }

    /// Members tell their hashes in the round under way.
    fn tell(comparisons: &mut Comparisons, round: u64, hashes: &[(u64, u32)]) {
        for &(member, hash) in hashes {
            let hash = Some(KvHash { hash, compact_revision: -1, revision: 9 });
            comparisons.seen(member, &KvHashCheck { round, revision: 9, hash }, 9);
        }
    }

    /// Has contents compared, with these hashes, and returns what is done then.
    fn compared(at_start: bool, hashes: &[(u64, u32)]) -> Vec<Task> {
        let (mut keeper, mut comparisons) = (Keeper::new(config(), ME, 40, SECOND), Comparisons::default());
        if at_start {
            keeper.compare_at_start();
        }
        let now = if at_start { SECOND } else { 6 * SECOND };
        let ask = keeper.next(now, &known(), &mut comparisons);
        assert_eq!(ask, Some(Task::Ask(41, PRESENT)));
        keeper.done(now, &Task::Ask(41, PRESENT), Done::Executed);
        tell(&mut comparisons, 41, hashes);
        let later = now + if hashes.len() < 3 { ROUND_TIMEOUT } else { Duration::ZERO };
        let mut tasks = Vec::new();
        while let Some(task) = keeper.next(later, &known(), &mut comparisons) {
            keeper.done(later, &task, Done::Executed);
            let is_next = matches!(task, Task::Ask(..));
            tasks.push(task);
            if is_next {
                break;
            }
        }
        tasks
    }

    fn judged(verdict: Verdict, at_start: bool) -> Task {
        Task::Heed(Judged { revision: 9, verdict: Some(verdict), at_start })
    }

    #[test]
    fn a_member_that_differs_gets_the_alarm_unless_a_replica_only_compares_itself() {
        let differs = || Verdict::Differ { differ: [3].into(), same: 2 };
        let found = compared(false, &[(1, 7), (2, 7), (3, 8)]);
        assert_eq!(found, [judged(differs(), false), Task::Raise(3)]);
        assert_eq!(compared(true, &[(1, 7), (2, 7), (3, 8)]), [judged(differs(), true)]);
        assert_eq!(compared(false, &[(1, 7), (2, 7), (3, 7)]), [judged(Verdict::Same(3), false)]);
        // The third is down.
        let late = compared(false, &[(1, 7), (2, 8)]);
        assert_eq!(late[..2], [judged(Verdict::Unclear, false), Task::Raise(0)]);
    }

    #[test]
    fn nothing_is_compared_by_who_takes_no_care_or_knows_of_corrupt_members() {
        let mut comparisons = Comparisons::default();
        let mut next =
            |known| Keeper::new(config(), ME, 1, SECOND).next(6 * SECOND, &known, &mut comparisons);
        assert_eq!(next(Known { takes_care: false, ..known() }), None);
        assert_eq!(next(Known { corrupt: true, ..known() }), None);
        assert_eq!(next(Known { forked_with: [2].into(), ..known() }), Some(Task::Raise(2)));
        assert!(matches!(next(known()), Some(Task::Ask(..))));
    }

    #[test]
    fn a_fork_is_told_once_although_the_alarm_is_cleared() {
        let (mut keeper, mut comparisons) = (Keeper::new(config(), ME, 1, SECOND), Comparisons::default());
        let forked = Known { forked_with: [2].into(), corrupt: true, ..known() };
        assert_eq!(keeper.next(6 * SECOND, &forked, &mut comparisons), Some(Task::Raise(2)));
        assert_eq!(keeper.next(12 * SECOND, &forked, &mut comparisons), None);
    }

    #[test]
    fn others_are_answered_while_this_replica_waits_for_answers_and_it_does_not_compact() {
        let config = UpkeepConfig { compaction: Some(Compaction::Revision(1)), ..config() };
        let (mut keeper, mut comparisons) = (Keeper::new(config, ME, 1, SECOND), Comparisons::default());
        let ask = keeper.next(6 * SECOND, &known(), &mut comparisons).unwrap();
        keeper.done(6 * SECOND, &ask, Done::Executed);
        comparisons.seen(2, &KvHashCheck { round: 77, revision: 0, hash: None }, 9);
        let question = Question { round: 77, revision: 9, executed_at: 9 };
        assert_eq!(keeper.next(7 * SECOND, &known(), &mut comparisons), Some(Task::Answer(question)));
        assert_eq!(keeper.due(), Some(6 * SECOND + ROUND_TIMEOUT));
        assert_eq!(keeper.next(7 * SECOND, &known(), &mut comparisons), None);
        let own =
            question.answer(Some(&HashKvResponse { hash: 7, compact_revision: -1, ..Default::default() }));
        comparisons.seen(ME, &KvHashCheck { round: 2, ..own }, 9);
        let heed = keeper.next(600 * SECOND, &known(), &mut comparisons);
        assert_eq!(heed, Some(judged(Verdict::Same(1), false)));
        assert_eq!(keeper.next(600 * SECOND, &known(), &mut comparisons), Some(Task::Compact(8)));
    }

    #[test]
    fn a_question_that_is_not_ordered_is_given_up() {
        let (mut keeper, mut comparisons) = (Keeper::new(config(), ME, 1, SECOND), Comparisons::default());
        keeper.compare_at_start();
        let ask = keeper.next(SECOND, &known(), &mut comparisons).unwrap();
        let given_up = Judged { revision: PRESENT, verdict: None, at_start: true };
        assert_eq!(keeper.done(SECOND, &ask, Done::Failed), Some(given_up));
        assert_eq!(keeper.next(SECOND, &known(), &mut comparisons), None);
    }
}

//! Execution in turns, where one thread steps the replicas of a node and executes for them: for a bounded time it does
//! jobs, a group after the other, and then it looks at what has come.

use std::{collections::VecDeque, ops::ControlFlow, time::Duration};

use synod_replica::{Begun, Executor, Outcome, StateMachine};
use synod_wire::{Ballots, Batch, GroupId, Slot, Time};

use crate::Execution;

/// How long a turn of execution lasts. Longer turns would delay heartbeats, and shorter ones would make more of the
/// wake-ups that are saved if the thread executes that also steps the replicas.
pub const EXECUTION_TURN: Duration = Duration::from_millis(2);

/// Batches of merged groups that a job executes at most: a batch that comes last may give many others their turn.
pub const MERGED_BATCHES_MAX: usize = 64;

/// The jobs of all groups of a node, by the numbers of the groups.
#[derive(Debug)]
pub struct Turns<J> {
    groups: Vec<Execution<J>>,
    /// The groups that have jobs to be done here, in the order of their turns.
    ready: VecDeque<GroupId>,
}

impl<J> Turns<J> {
    /// No jobs of these groups.
    #[must_use]
    pub fn new(groups: usize) -> Turns<J> {
        Turns { groups: (0..groups).map(|_| Execution::default()).collect(), ready: VecDeque::new() }
    }

    /// A job of a group comes, behind all others of the group. [`Turns::find`] lets the group have its turn.
    #[inline]
    pub fn push(&mut self, group: GroupId, job: J) {
        self.groups[usize::from(group.0)].push(job);
    }

    /// These groups have their turns if they have jobs. It comes after all that the step wants that pushed them is
    /// carried out.
    pub fn find(&mut self, groups: &[GroupId]) {
        for &group in groups {
            if self.groups[usize::from(group.0)].wake() {
                self.ready.push_back(group);
            }
        }
    }

    /// Whether no group has a turn.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.ready.is_empty()
    }

    /// Does jobs for a turn, or until none is left. `run` does a job of a group, or a part of it if that takes longer
    /// than the time that it is given; it returns the rest, if there is one, and what time it is then.
    pub fn turn(&mut self, now: Time, mut run: impl FnMut(GroupId, J, Time) -> (Option<J>, Time)) {
        let until = now + EXECUTION_TURN;
        while let Some(group) = self.ready.pop_front() {
            let execution = &mut self.groups[usize::from(group.0)];
            let mut is_over = false;
            if let Some(job) = execution.begin() {
                let (rest, now) = run(group, job, until);
                match rest {
                    Some(rest) => execution.goes_on(rest),
                    None => execution.done(),
                }
                is_over = now >= until;
            }
            execution.sleep();
            if execution.wake() {
                self.ready.push_back(group);
            }
            if is_over {
                break;
            }
        }
    }

    /// Hands all jobs of a group to somebody else, who keeps their order and does them one at a time.
    pub fn hand_over(&mut self, group: GroupId) -> impl Iterator<Item = J> {
        self.groups[usize::from(group.0)].hand_over()
    }
}

/// A batch that is being executed, and the clients who wait for the outcomes of its commands, with their places. Its
/// rest is executed before any other job of the group.
#[derive(Debug)]
#[must_use]
pub struct Part<C> {
    begun: Begun,
    batch: Batch,
    clients: Vec<(usize, C)>,
}

/// The clients of a batch, with their places, and the outcomes of all its commands.
pub type Executed<C> = (Vec<(usize, C)>, Vec<Outcome>);

impl<C> Part<C> {
    /// Begins the batch of a slot.
    ///
    /// # Panics
    /// If a slot was left out, or another batch is begun and not done.
    pub fn begin<S: StateMachine>(
        executor: &mut Executor<S>,
        slot: Slot,
        ballots: Ballots,
        batch: Batch,
        clients: Vec<(usize, C)>,
    ) -> Part<C> {
        Part { begun: executor.begin_of(GroupId::FIRST, slot, ballots, &batch), batch, clients }
    }

    /// Executes further commands, at least one, until `is_over` says that it is time for something else. `awaited` says
    /// which outcomes clients wait for.
    pub fn go_on<S: StateMachine>(
        mut self,
        executor: &mut Executor<S>,
        awaited: impl Fn(&[(usize, C)], usize) -> bool,
        is_over: impl FnMut() -> bool,
    ) -> ControlFlow<Executed<C>, Part<C>> {
        let Part { begun, batch, clients } = &mut self;
        if executor.go_on(begun, batch, |place| awaited(clients, place), is_over) {
            ControlFlow::Break((self.clients, self.begun.into_outcomes()))
        } else {
            ControlFlow::Continue(self)
        }
    }

    /// The clients, of whom none was answered, where nobody goes on.
    pub fn into_clients(self) -> Vec<(usize, C)> {
        self.clients
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GROUPS: [GroupId; 2] = [GroupId(0), GroupId(1)];

    /// Jobs that take this many milliseconds, in parts of at most one: what was done in one turn.
    fn turn(turns: &mut Turns<u64>, now: &mut Time) -> Vec<GroupId> {
        let mut done = Vec::new();
        let mut at = *now;
        turns.turn(*now, |group, millis, _| {
            done.push(group);
            at += Duration::from_millis(1);
            ((millis > 1).then(|| millis - 1), at)
        });
        *now = at;
        done
    }

    #[test]
    fn a_turn_ends_in_time_and_groups_take_turns() {
        let (mut turns, mut now) = (Turns::new(2), Time::ZERO);
        turns.push(GROUPS[0], 3);
        turns.push(GROUPS[1], 1);
        assert!(turns.is_idle(), "nobody has looked for jobs yet");
        turns.find(&GROUPS);
        assert_eq!(turn(&mut turns, &mut now), GROUPS, "two milliseconds");
        assert!(!turns.is_idle());
        assert_eq!(turn(&mut turns, &mut now), [GROUPS[0]; 2], "the rest");
        assert!(turns.is_idle());
        turns.push(GROUPS[1], 1);
        assert_eq!(turns.hand_over(GROUPS[1]).collect::<Vec<_>>(), [1]);
        turns.find(&GROUPS);
        assert!(turns.is_idle());
    }
}

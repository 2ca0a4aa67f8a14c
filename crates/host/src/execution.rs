//! The work of a state machine: its jobs, one at a time and in their order, and the reads that wait until it is far
//! enough.
//!
//! A change of the group is a job like any other: it is executed, and its client is answered, once the queue is looked
//! at. A caller that looks at the queue only after it has carried out all that a step of the replica wants, the new
//! group included, cannot answer a client that asks for a change before the change shows.

use std::collections::VecDeque;

use crate::planted::{HostBug, has};

/// The jobs of a state machine, each of which sees what all before it did: batches to execute, reads, snapshots to
/// freeze or to go on from.
#[derive(Clone, Debug)]
pub struct Execution<J> {
    jobs: VecDeque<J>,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Nobody looks at the queue.
    Asleep,
    /// Somebody is to look at the queue.
    Awake,
    /// A job is under way.
    AtWork,
}

impl<J> Default for Execution<J> {
    fn default() -> Execution<J> {
        Execution { jobs: VecDeque::new(), state: State::Asleep }
    }
}

impl<J> Execution<J> {
    /// A job comes, behind all others.
    #[inline]
    pub fn push(&mut self, job: J) {
        self.jobs.push_back(job);
    }

    /// Whether somebody has to be woken, since there is a job and nobody is to look at the queue yet.
    pub fn wake(&mut self) -> bool {
        let wakes = self.state == State::Asleep && !self.jobs.is_empty();
        if wakes {
            self.state = State::Awake;
        }
        wakes
    }

    /// Begins the next job. The caller then says what became of it: [`Execution::done`] or [`Execution::goes_on`].
    ///
    /// # Panics
    /// A job is under way, or nobody was woken.
    pub fn begin(&mut self) -> Option<J> {
        assert_eq!(self.state, State::Awake, "jobs are done one at a time, by the one that was woken");
        let job = self.jobs.pop_front()?;
        self.state = State::AtWork;
        Some(job)
    }

    /// The job that was begun is done.
    ///
    /// # Panics
    /// None was begun.
    pub fn done(&mut self) {
        assert_eq!(self.state, State::AtWork, "only what was begun can be done");
        self.state = State::Awake;
    }

    /// The job that was begun has done a part of its work. The rest comes before all other jobs.
    ///
    /// # Panics
    /// No job was begun.
    pub fn goes_on(&mut self, rest: J) {
        self.done();
        if has(HostBug::RestLast) {
            self.jobs.push_back(rest);
        } else {
            self.jobs.push_front(rest);
        }
    }

    /// The turn of the one that was woken is over. Jobs that are left wake again.
    ///
    /// # Panics
    /// A job is under way.
    pub fn sleep(&mut self) {
        assert_ne!(self.state, State::AtWork, "a job that was begun has an end");
        self.state = State::Asleep;
    }

    /// Hands all jobs to somebody who keeps their order and does them one at a time.
    pub fn hand_over(&mut self) -> impl Iterator<Item = J> {
        self.jobs.drain(..)
    }

    /// How many jobs wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.jobs.len()
    }

    /// Whether no job waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.jobs.is_empty()
    }
}

/// Reads that wait until a state is far enough: until it has what `A` names, a slot or one of each group.
#[derive(Clone, Debug)]
pub struct Reads<A, Q> {
    waiting: Vec<(A, Q)>,
}

impl<A, Q> Default for Reads<A, Q> {
    fn default() -> Reads<A, Q> {
        Reads { waiting: Vec::new() }
    }
}

impl<A, Q> Reads<A, Q> {
    /// A read comes that must see this.
    pub fn push(&mut self, at: A, read: Q) {
        self.waiting.push((at, read));
    }

    /// The reads that the state is far enough for now, in the order in which they came. They wait no more.
    pub fn reached(&mut self, is_reached: impl Fn(&A) -> bool) -> impl Iterator<Item = Q> {
        self.waiting.extract_if(.., move |(at, _)| is_reached(at)).map(|(_, read)| read)
    }

    /// How many reads wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Whether no read waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_are_done_in_their_order_and_the_rest_of_one_before_the_next() {
        let mut execution = Execution::default();
        assert!(!execution.wake(), "there is nothing to do");
        execution.push("batch 1");
        assert!(execution.wake() && !execution.wake(), "once");
        execution.push("freeze");
        assert_eq!(execution.begin(), Some("batch 1"));
        execution.push("batch 2");
        execution.goes_on("rest of batch 1");
        execution.sleep();
        assert!(execution.wake(), "a turn ends, and the work goes on in the next");
        let mut order = Vec::new();
        while let Some(job) = execution.begin() {
            order.push(job);
            execution.done();
        }
        assert_eq!(order, ["rest of batch 1", "freeze", "batch 2"]);
        execution.sleep();
        assert!(!execution.wake());
    }

    #[test]
    #[should_panic(expected = "one at a time")]
    fn no_job_begins_while_another_is_under_way() {
        let mut execution = Execution::default();
        [1, 2].into_iter().for_each(|job| execution.push(job));
        assert!(execution.wake());
        execution.begin();
        execution.begin();
    }

    #[test]
    #[should_panic(expected = "has an end")]
    fn no_turn_ends_within_a_job() {
        let mut execution = Execution::default();
        execution.push(1);
        assert!(execution.wake());
        execution.begin();
        execution.sleep();
    }

    #[test]
    fn a_read_waits_for_what_it_must_see() {
        let mut reads = Reads::default();
        [(7, "a"), (9, "b"), (8, "c"), (7, "d")].into_iter().for_each(|(at, read)| reads.push(at, read));
        assert_eq!(reads.reached(|at| *at <= 6).count(), 0);
        assert_eq!(reads.reached(|at| *at <= 8).collect::<Vec<_>>(), ["a", "c", "d"]);
        assert_eq!(reads.len(), 1);
        assert_eq!(reads.reached(|at| *at <= 9).collect::<Vec<_>>(), ["b"]);
        assert!(reads.is_empty());
    }
}

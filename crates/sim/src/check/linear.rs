//! Checks whether a history of operations is linearizable.
//!
//! The search is that of Wing and Gong (1993), with the memory of Lowe (2017): operations are put into an
//! order one after another, such that each comes after all operations that had returned before it was
//! invoked, and that a sequential object gives the answers that were seen. A pair of "operations that are
//! placed" and "the object's state" needs no second visit. An operation without an answer may have happened
//! at any time since it was invoked, or not at all.
//!
//! Every operation may carry a **hint** of its place. Hints only decide what to try first, so wrong ones cost
//! time and nothing else. The simulator takes them from the decided log, so that histories of a correct
//! system need no search at all.

use std::{collections::HashSet, hash::Hash};

/// A sequential object: the specification that a history is checked against.
pub trait Sequential: Clone + Eq + Hash {
    /// An operation.
    type Op;
    /// The answer to an operation.
    type Answer: PartialEq;

    /// Executes one operation.
    fn apply(&mut self, op: &Self::Op) -> Self::Answer;

    /// Whether an operation with this answer changes nothing, whatever the state is.
    fn is_inert(op: &Self::Op, answer: &Self::Answer) -> bool;
}

/// One operation of a history.
#[derive(Clone, Debug)]
pub struct Operation<O, A> {
    /// The operation.
    pub op: O,
    /// When it was invoked, counted in events of the history.
    pub invoked: u64,
    /// When it was answered, and the answer; `None` if it may or may not have happened.
    pub returned: Option<(u64, A)>,
    /// Operations with lower hints are tried first.
    pub hint: u64,
}

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// There is an order.
    Linearizable,
    /// There is no order. At the end of the longest order found, an operation had to come next that could not.
    NotLinearizable {
        /// How many operations the longest order has.
        longest: usize,
        /// The index of an operation that could not follow.
        stuck_at: usize,
    },
    /// The search was given up after too many steps.
    Undecided,
}

/// A set of operations, by index.
type Placed = Box<[u64]>;

struct Search<'a, S: Sequential> {
    history: &'a [Operation<S::Op, S::Answer>],
    /// Indices in the order of invocation.
    by_invocation: Vec<usize>,
    placed: Placed,
    /// How many answered operations are not placed.
    missing: usize,
    visited: HashSet<(Placed, S)>,
}

/// An operation that is placed, with the other operations that could have come there.
struct Frame<S> {
    before: S,
    candidates: Vec<usize>,
    next: usize,
    placed: Option<usize>,
}

/// Looks for an order of `history` that `initial` explains, in at most `steps_max` steps.
pub fn check<S: Sequential>(
    initial: S,
    history: &[Operation<S::Op, S::Answer>],
    steps_max: usize,
) -> Verdict {
    let mut by_invocation: Vec<usize> = (0..history.len()).collect();
    by_invocation.sort_by_key(|&index| history[index].invoked);
    let mut search = Search {
        history,
        by_invocation,
        placed: vec![0; history.len().div_ceil(64)].into(),
        missing: history.iter().filter(|operation| operation.returned.is_some()).count(),
        visited: HashSet::new(),
    };
    search.run(initial, steps_max)
}

impl<S: Sequential> Search<'_, S> {
    fn run(&mut self, initial: S, steps_max: usize) -> Verdict {
        let (mut longest, mut stuck_at) = (0, 0);
        let mut stack = vec![self.frame(initial)];
        for _ in 0..steps_max {
            if self.missing == 0 {
                return Verdict::Linearizable;
            }
            let Some(frame) = stack.last_mut() else {
                return Verdict::NotLinearizable { longest, stuck_at };
            };
            if let Some(index) = frame.placed.take() {
                self.set_placed(index, false);
            }
            let Some(&index) = frame.candidates.get(frame.next) else {
                stack.pop();
                continue;
            };
            frame.next += 1;
            let mut state = frame.before.clone();
            let operation = &self.history[index];
            let answer = state.apply(&operation.op);
            if operation.returned.as_ref().is_some_and(|(_, seen)| *seen != answer) {
                let placed = stack.len() - 1;
                if placed >= longest {
                    (longest, stuck_at) = (placed, index);
                }
                continue;
            }
            if operation.returned.as_ref().is_some_and(|(_, answer)| S::is_inert(&operation.op, answer)) {
                // An operation that changes nothing and can come now is placed now: delaying it helps no other choice.
                frame.next = frame.candidates.len();
            }
            frame.placed = Some(index);
            self.set_placed(index, true);
            if self.visited.insert((self.placed.clone(), state.clone())) {
                let next = self.frame(state);
                stack.push(next);
            }
        }
        Verdict::Undecided
    }

    fn is_placed(&self, index: usize) -> bool {
        self.placed[index / 64] & (1 << (index % 64)) != 0
    }

    fn set_placed(&mut self, index: usize, placed: bool) {
        self.placed[index / 64] ^= 1 << (index % 64);
        debug_assert_eq!(self.is_placed(index), placed);
        if self.history[index].returned.is_some() {
            if placed { self.missing -= 1 } else { self.missing += 1 }
        }
    }

    /// The operations that can come next: those that were invoked before the first unplaced one returned.
    fn frame(&self, before: S) -> Frame<S> {
        let mut first_return = u64::MAX;
        let mut candidates = Vec::new();
        for &index in &self.by_invocation {
            let operation = &self.history[index];
            if operation.invoked > first_return {
                break;
            }
            if self.is_placed(index) {
                continue;
            }
            if let Some((returned, _)) = operation.returned {
                first_return = first_return.min(returned);
            }
            candidates.push(index);
        }
        candidates.retain(|&index| self.history[index].invoked < first_return);
        candidates.sort_by_key(|&index| self.history[index].hint);
        Frame { before, candidates, next: 0, placed: None }
    }
}

#[cfg(test)]
mod tests {
    use fastrand::Rng;

    use super::*;

    /// A register that is written, read and compared-and-set: small, and able to show every kind of mistake.
    #[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
    struct Register(u8);

    #[derive(Clone, Debug)]
    enum Op {
        Read,
        Write(u8),
        Cas(u8, u8),
    }

    impl Sequential for Register {
        type Op = Op;
        type Answer = u8;

        fn apply(&mut self, op: &Op) -> u8 {
            match *op {
                Op::Read => self.0,
                Op::Write(value) => {
                    self.0 = value;
                    0
                }
                Op::Cas(expected, value) => {
                    let hit = self.0 == expected;
                    if hit {
                        self.0 = value;
                    }
                    hit.into()
                }
            }
        }

        fn is_inert(op: &Op, answer: &u8) -> bool {
            match op {
                Op::Read => true,
                // Writing what is there already changes nothing now, but may do so later.
                Op::Write(_) => false,
                Op::Cas(..) => *answer == 0,
            }
        }
    }

    type History = Vec<Operation<Op, u8>>;

    /// The definition itself, slow: every order of every choice of unanswered operations.
    fn brute_force(history: &History) -> bool {
        fn extend(history: &History, order: &mut Vec<usize>) -> bool {
            let complete = (0..history.len()).all(|i| history[i].returned.is_none() || order.contains(&i));
            if complete && explains(history, order) {
                return true;
            }
            for index in 0..history.len() {
                if !order.contains(&index) {
                    order.push(index);
                    if extend(history, order) {
                        return true;
                    }
                    order.pop();
                }
            }
            false
        }
        fn explains(history: &History, order: &[usize]) -> bool {
            let mut register = Register::default();
            for (place, &index) in order.iter().enumerate() {
                let operation = &history[index];
                let answer = register.apply(&operation.op);
                if operation.returned.as_ref().is_some_and(|(_, seen)| *seen != answer) {
                    return false;
                }
                let too_late = |&earlier: &usize| {
                    operation.returned.as_ref().is_some_and(|(at, _)| *at < history[earlier].invoked)
                };
                if order[..place].iter().any(too_late) {
                    return false;
                }
            }
            true
        }
        extend(history, &mut Vec::new())
    }

    /// A random history: some are made by a real register, some have invented answers.
    fn random_history(rng: &mut Rng) -> History {
        let count = rng.usize(1..=6);
        let mut stamps: Vec<u64> = (0..2 * count as u64).collect();
        rng.shuffle(&mut stamps);
        let mut register = Register::default();
        let made_up = rng.bool();
        let spans = stamps.chunks(2).map(|pair| (pair[0].min(pair[1]), pair[0].max(pair[1])));
        spans
            .map(|(invoked, returned)| {
                let op = match rng.u8(0..3) {
                    0 => Op::Read,
                    1 => Op::Write(rng.u8(0..3)),
                    _ => Op::Cas(rng.u8(0..3), rng.u8(0..3)),
                };
                let answer = register.apply(&op);
                let answer = if made_up && rng.u8(0..3) == 0 { rng.u8(0..3) } else { answer };
                let returned = Some((returned, answer)).filter(|_| rng.u8(0..4) > 0);
                Operation { op, invoked, returned, hint: rng.u64(0..4) }
            })
            .collect()
    }

    #[test]
    fn agrees_with_brute_force_on_small_random_histories() {
        let mut rng = Rng::with_seed(20_261_121);
        let (mut yes, mut no) = (0, 0);
        for _ in 0..4_000 {
            let history = random_history(&mut rng);
            let verdict = check(Register::default(), &history, usize::MAX);
            let linearizable = brute_force(&history);
            assert_eq!(verdict == Verdict::Linearizable, linearizable, "{history:#?} {verdict:?}");
            if linearizable { yes += 1 } else { no += 1 }
        }
        assert!(yes > 500 && no > 500, "{yes} linearizable, {no} not");
    }

    fn op(op: Op, invoked: u64, returned: Option<(u64, u8)>) -> Operation<Op, u8> {
        Operation { op, invoked, returned, hint: 0 }
    }

    #[test]
    fn a_stale_read_is_found_and_named() {
        let history = vec![
            op(Op::Write(1), 0, Some((1, 0))),
            op(Op::Write(2), 2, Some((3, 0))),
            op(Op::Read, 4, Some((5, 1))),
        ];
        let verdict = check(Register::default(), &history, usize::MAX);
        assert_eq!(verdict, Verdict::NotLinearizable { longest: 2, stuck_at: 2 });
    }

    #[test]
    fn an_unanswered_write_may_have_happened_late() {
        let history =
            vec![op(Op::Write(1), 0, None), op(Op::Read, 1, Some((2, 0))), op(Op::Read, 3, Some((4, 1)))];
        assert_eq!(check(Register::default(), &history, usize::MAX), Verdict::Linearizable);
    }

    #[test]
    fn a_search_that_takes_too_long_is_not_called_a_failure() {
        let history: History =
            (0..20).map(|n| op(Op::Write(n), 0, None)).chain([op(Op::Read, 1, Some((2, 99)))]).collect();
        assert_eq!(check(Register::default(), &history, 1_000), Verdict::Undecided);
    }
}

//! Whose password is looked at next.
//!
//! Looking at a password takes long on purpose, and few threads do it, so a client that sends many wrong ones makes
//! others wait. Therefore **each address has a queue of its own, and they have turns**: who floods one of them waits
//! behind itself. And who logged in lately, from the same address, waits with its like only, and every other turn is
//! theirs. When too many wait, the longest queue loses its last.

use std::{
    collections::{BTreeMap, VecDeque},
    ops::Bound::{Excluded, Unbounded},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use tokio::sync::oneshot;

use crate::listen::Origin;

/// Passwords that wait to be looked at, of users who logged in lately and of all others. More are refused.
pub(super) const WAITING_MAX: usize = 128;
const WAITING_LATELY_MAX: usize = 32;
/// For how long it is known that somebody has logged in, and of how many that is known.
const LATELY: Duration = Duration::from_secs(60 * 60);
const LATELY_MAX: usize = 1024;

/// A user, as it says, and where it is.
pub(super) type Person = (Origin, Box<str>);

#[derive(Debug)]
pub(super) struct Turns(Mutex<State>);

#[derive(Debug)]
struct State {
    /// Threads that do nothing.
    free: usize,
    lately: Queues<Person>,
    others: Queues<Origin>,
    /// The next turn is of somebody who logged in lately.
    is_latelys: bool,
    /// When they logged in.
    known: BTreeMap<Person, Instant>,
    /// The number of the last that waited.
    last: u64,
}

/// Queues that have turns.
#[derive(Debug)]
struct Queues<K> {
    of: BTreeMap<K, VecDeque<(u64, oneshot::Sender<()>)>>,
    /// The one that had its turn last.
    before: Option<K>,
    waiting: usize,
    waiting_max: usize,
}

impl<K: Ord + Clone> Queues<K> {
    fn new(waiting_max: usize) -> Queues<K> {
        Queues { of: BTreeMap::new(), before: None, waiting: 0, waiting_max }
    }

    /// Adds one. If these are too many, the last of the longest queue is dropped: of this one, if none is longer.
    fn push(&mut self, key: K, number: u64, tell: oneshot::Sender<()>) {
        self.of.entry(key.clone()).or_default().push_back((number, tell));
        self.waiting += 1;
        if self.waiting > self.waiting_max {
            let len = |key: &K| self.of.get(key).map_or(0, VecDeque::len);
            let longest = self.of.keys().max_by_key(|one| (len(one), **one == key)).cloned();
            longest.into_iter().for_each(|longest| _ = self.take(&longest, VecDeque::pop_back));
        }
    }

    /// The first of the queue whose turn it is.
    fn next(&mut self) -> Option<oneshot::Sender<()>> {
        let after = |before: &K| self.of.range::<K, _>((Excluded(before), Unbounded)).next();
        let next = self.before.as_ref().and_then(after).or(self.of.first_key_value());
        let key = next?.0.clone();
        let next = self.take(&key, VecDeque::pop_front);
        self.before = Some(key);
        next
    }

    fn take(
        &mut self,
        key: &K,
        of: impl Fn(&mut VecDeque<(u64, oneshot::Sender<()>)>) -> Option<(u64, oneshot::Sender<()>)>,
    ) -> Option<oneshot::Sender<()>> {
        let queue = self.of.get_mut(key)?;
        let (_, taken) = of(queue)?;
        self.waiting -= 1;
        if queue.is_empty() {
            self.of.remove(key);
        }
        Some(taken)
    }

    /// Removes one that waits no more.
    fn remove(&mut self, key: &K, number: u64) {
        self.take(key, |queue| {
            let place = queue.iter().position(|(other, _)| *other == number)?;
            queue.remove(place)
        });
    }
}

impl State {
    /// Gives free threads to those whose turns it is.
    fn go_on(&mut self) {
        while self.free > 0 {
            let of_lately = |state: &mut State| state.lately.next();
            let of_others = |state: &mut State| state.others.next();
            let next = if self.is_latelys {
                of_lately(self).or_else(|| of_others(self))
            } else {
                of_others(self).or_else(|| of_lately(self))
            };
            let Some(next) = next else { return };
            self.is_latelys = !self.is_latelys;
            // One that waits no more has taken itself out of its queue.
            self.free -= usize::from(next.send(()).is_ok());
        }
    }
}

impl Turns {
    pub(super) fn new(threads: usize) -> Turns {
        let (lately, others) = (Queues::new(WAITING_LATELY_MAX), Queues::new(WAITING_MAX));
        let (known, last) = Default::default();
        Turns(Mutex::new(State { free: threads, lately, others, is_latelys: true, known, last }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a turn. `None`: too many wait.
    pub(super) async fn turn(self: &Arc<Turns>, person: Person) -> Option<Turn> {
        let (tell, told) = oneshot::channel();
        let mut waits = {
            let mut state = self.state();
            state.last += 1;
            let number = state.last;
            let is_known = state.known.get(&person).is_some_and(|since| since.elapsed() < LATELY);
            if is_known {
                state.lately.push(person.clone(), number, tell);
            } else {
                state.others.push(person.0, number, tell);
            }
            state.go_on();
            Waits { turns: self, person, is_known, number, told }
        };
        (&mut waits.told).await.ok()?;
        Some(Turn(Arc::clone(self)))
    }

    /// A user has logged in, or has failed to.
    pub(super) fn tried(&self, person: Person, is_right: bool) {
        let mut state = self.state();
        if !is_right {
            state.known.remove(&person);
            return;
        }
        state.known.insert(person, Instant::now());
        if state.known.len() > LATELY_MAX {
            let oldest =
                state.known.iter().min_by_key(|(_, since)| **since).map(|(person, _)| person.clone());
            oldest.into_iter().for_each(|oldest| _ = state.known.remove(&oldest));
        }
    }

    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        let state = self.state();
        state.lately.waiting + state.others.waiting
    }
}

/// A thread that may be used until this is dropped.
#[derive(Debug)]
pub(super) struct Turn(Arc<Turns>);

impl Drop for Turn {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.free += 1;
        state.go_on();
    }
}

/// Somebody in a queue, until it is dropped.
struct Waits<'a> {
    turns: &'a Turns,
    person: Person,
    is_known: bool,
    number: u64,
    told: oneshot::Receiver<()>,
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        let mut state = self.turns.state();
        if self.is_known {
            state.lately.remove(&self.person, self.number);
        } else {
            state.others.remove(&self.person.0, self.number);
        }
        // It was told that it has a turn, and does not know it: it has given up.
        if self.told.try_recv().is_ok() {
            state.free += 1;
            state.go_on();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{net::IpAddr, pin::Pin};

    use futures_util::FutureExt as _;

    use super::*;

    fn from(host: u8, name: &str) -> Person {
        (Some(IpAddr::from([10, 0, 0, host])), name.into())
    }

    type Waiting<'a> = Pin<Box<dyn Future<Output = Option<Turn>> + 'a>>;

    /// Somebody who waits.
    fn waits(turns: &Arc<Turns>, person: Person) -> Waiting<'_> {
        let mut waiting: Waiting<'_> = Box::pin(turns.turn(person));
        assert!(waiting.as_mut().now_or_never().is_none(), "there is no turn yet");
        waiting
    }

    fn has_a_turn(waiting: &mut Waiting<'_>) -> Option<Turn> {
        waiting.as_mut().now_or_never().map(|turn| turn.expect("it is not refused"))
    }

    #[test]
    fn addresses_have_turns_however_many_wait_at_one_of_them() {
        let turns = Arc::new(Turns::new(1));
        let first = turns.turn(from(1, "u")).now_or_never().unwrap().unwrap();
        let mut flood: Vec<_> = (0..100).map(|_| waits(&turns, from(1, "u"))).collect();
        let mut other = waits(&turns, from(2, "u"));
        drop(first);
        // The second address has the turn after the first one's.
        let second = has_a_turn(&mut other).expect("it is its turn");
        assert!(flood.iter_mut().all(|waits| has_a_turn(waits).is_none()));
        drop(second);
        assert!(has_a_turn(&mut flood[0]).is_some());
    }

    #[test]
    fn who_logged_in_lately_has_every_other_turn() {
        let turns = Arc::new(Turns::new(1));
        turns.tried(from(1, "u"), true);
        let busy = turns.turn(from(9, "x")).now_or_never().unwrap().unwrap();
        // All of them come from the same address.
        let mut flood: Vec<_> = (0..WAITING_MAX).map(|n| waits(&turns, from(1, &format!("x{n}")))).collect();
        let mut known: Vec<_> = (0..3).map(|_| waits(&turns, from(1, "u"))).collect();
        drop(busy);
        let mut order = Vec::new();
        for _ in 0..6 {
            let of_known = known.iter_mut().find_map(has_a_turn);
            let of_flood = flood.iter_mut().find_map(has_a_turn);
            assert!(of_known.is_some() != of_flood.is_some());
            order.push(of_known.is_some());
            // The one that had its turn is gone, and its thread is free.
            if of_known.is_some() {
                drop(known.remove(0));
            } else {
                drop(flood.remove(0));
            }
        }
        assert_eq!(order.iter().filter(|of_known| **of_known).count(), 3, "{order:?}");
        // A wrong password is as good as none.
        turns.tried(from(1, "u"), false);
        assert!(!turns.state().known.contains_key(&from(1, "u")));
    }

    #[test]
    fn when_too_many_wait_the_longest_queue_loses_its_last() {
        let turns = Arc::new(Turns::new(1));
        let busy = turns.turn(from(9, "x")).now_or_never().unwrap().unwrap();
        let mut flood: Vec<_> = (0..WAITING_MAX).map(|_| waits(&turns, from(1, "u"))).collect();
        // A further one of the flood is refused at once.
        assert!(turns.turn(from(1, "u")).now_or_never().unwrap().is_none());
        let mut other = waits(&turns, from(2, "u"));
        assert_eq!(turns.waiting(), WAITING_MAX);
        assert!(matches!(flood.pop().unwrap().now_or_never(), Some(None)), "its place is another's");
        // Those that give up have no turn.
        flood.clear();
        assert_eq!(turns.waiting(), 1);
        drop(busy);
        drop(has_a_turn(&mut other).unwrap());
        // One that has a turn and does not know it gives it back.
        let busy = turns.turn(from(9, "x")).now_or_never().unwrap().unwrap();
        let gives_up = waits(&turns, from(1, "u"));
        drop(busy);
        drop(gives_up);
        assert!(turns.turn(from(3, "u")).now_or_never().unwrap().is_some());
    }

    #[test]
    fn what_is_known_is_bounded() {
        let turns = Turns::new(1);
        (0..2 * LATELY_MAX).for_each(|n| turns.tried(from(1, &format!("u{n}")), true));
        assert_eq!(turns.state().known.len(), LATELY_MAX);
        assert!(turns.state().known.contains_key(&from(1, &format!("u{}", 2 * LATELY_MAX - 1))));
    }
}

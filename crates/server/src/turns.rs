//! Whose work is done next, where a few threads do what clients cause and what takes long.
//!
//! A client that causes much of it makes others wait. Therefore **each address has a queue of its own, and they have
//! turns**: who floods one of them waits behind itself. Those who are preferred wait with their like only, each with a
//! queue of its own, and every other turn is theirs. When too many wait, the longest queue loses its last.

use std::{
    collections::{BTreeMap, VecDeque},
    ops::Bound::{Excluded, Unbounded},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use synod_grpc::Origin;
use tokio::sync::oneshot;

/// Whose work it is: where it comes from, and for those who are preferred a name.
pub(crate) type Whose = (Origin, Box<str>);

/// The threads, and those who wait for one.
#[derive(Debug)]
pub(crate) struct Turns(Mutex<State>);

#[derive(Debug)]
struct State {
    /// Threads that do nothing.
    free: usize,
    preferred: Queues<Whose>,
    others: Queues<Origin>,
    /// The next turn is of somebody who is preferred.
    is_preferreds: bool,
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
            let of_preferred = |state: &mut State| state.preferred.next();
            let of_others = |state: &mut State| state.others.next();
            let next = if self.is_preferreds {
                of_preferred(self).or_else(|| of_others(self))
            } else {
                of_others(self).or_else(|| of_preferred(self))
            };
            let Some(next) = next else { return };
            self.is_preferreds = !self.is_preferreds;
            // One that waits no more has taken itself out of its queue.
            self.free -= usize::from(next.send(()).is_ok());
        }
    }
}

impl Turns {
    /// Turns of `threads` threads, for which at most `preferred_max` wait who are preferred, and `others_max` others.
    pub(crate) fn new(threads: usize, preferred_max: usize, others_max: usize) -> Turns {
        let (preferred, others) = (Queues::new(preferred_max), Queues::new(others_max));
        Turns(Mutex::new(State { free: threads, preferred, others, is_preferreds: true, last: 0 }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a turn. `None`: too many wait.
    pub(crate) async fn turn(self: &Arc<Turns>, whose: Whose, is_preferred: bool) -> Option<Turn> {
        let (tell, told) = oneshot::channel();
        let mut waits = {
            let mut state = self.state();
            state.last += 1;
            let number = state.last;
            if is_preferred {
                state.preferred.push(whose.clone(), number, tell);
            } else {
                state.others.push(whose.0, number, tell);
            }
            state.go_on();
            Waits { turns: self, whose, is_preferred, number, told }
        };
        (&mut waits.told).await.ok()?;
        Some(Turn(Arc::clone(self)))
    }

    #[cfg(test)]
    pub(crate) fn waiting(&self) -> usize {
        let state = self.state();
        state.preferred.waiting + state.others.waiting
    }
}

/// A thread that may be used until this is dropped.
#[derive(Debug)]
pub(crate) struct Turn(Arc<Turns>);

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
    whose: Whose,
    is_preferred: bool,
    number: u64,
    told: oneshot::Receiver<()>,
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        let mut state = self.turns.state();
        if self.is_preferred {
            state.preferred.remove(&self.whose, self.number);
        } else {
            state.others.remove(&self.whose.0, self.number);
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

    const WAITING_MAX: usize = 128;

    fn turns() -> Arc<Turns> {
        Arc::new(Turns::new(1, 32, WAITING_MAX))
    }

    fn from(host: u8) -> Whose {
        (Some(IpAddr::from([10, 0, 0, host])), "u".into())
    }

    type Waiting<'a> = Pin<Box<dyn Future<Output = Option<Turn>> + 'a>>;

    /// Somebody who waits.
    fn waits(turns: &Arc<Turns>, whose: Whose, is_preferred: bool) -> Waiting<'_> {
        let mut waiting: Waiting<'_> = Box::pin(turns.turn(whose, is_preferred));
        assert!(waiting.as_mut().now_or_never().is_none(), "there is no turn yet");
        waiting
    }

    fn has_a_turn(waiting: &mut Waiting<'_>) -> Option<Turn> {
        waiting.as_mut().now_or_never().map(|turn| turn.expect("it is not refused"))
    }

    fn only(turns: &Arc<Turns>) -> Turn {
        turns.turn(from(9), false).now_or_never().expect("at once").expect("it is not refused")
    }

    #[test]
    fn addresses_have_turns_however_many_wait_at_one_of_them() {
        let turns = turns();
        let first = turns.turn(from(1), false).now_or_never().unwrap().unwrap();
        let mut flood: Vec<_> = (0..100).map(|_| waits(&turns, from(1), false)).collect();
        let mut other = waits(&turns, from(2), false);
        drop(first);
        // The second address has the turn after the first one's.
        let second = has_a_turn(&mut other).expect("it is its turn");
        assert!(flood.iter_mut().all(|waits| has_a_turn(waits).is_none()));
        drop(second);
        assert!(has_a_turn(&mut flood[0]).is_some());
    }

    #[test]
    fn who_is_preferred_has_every_other_turn() {
        let turns = turns();
        let busy = only(&turns);
        // All of them come from the same address.
        let mut flood: Vec<_> = (0..WAITING_MAX).map(|_| waits(&turns, from(1), false)).collect();
        let mut preferred: Vec<_> = (0..3).map(|_| waits(&turns, from(1), true)).collect();
        drop(busy);
        let mut order = Vec::new();
        for _ in 0..6 {
            let of_preferred = preferred.iter_mut().find_map(has_a_turn);
            let of_flood = flood.iter_mut().find_map(has_a_turn);
            assert!(of_preferred.is_some() != of_flood.is_some());
            order.push(of_preferred.is_some());
            // The one that had its turn is gone, and its thread is free.
            if of_preferred.is_some() {
                drop(preferred.remove(0));
            } else {
                drop(flood.remove(0));
            }
        }
        assert_eq!(order.iter().filter(|of_preferred| **of_preferred).count(), 3, "{order:?}");
    }

    #[test]
    fn when_too_many_wait_the_longest_queue_loses_its_last() {
        let turns = turns();
        let busy = only(&turns);
        let mut flood: Vec<_> = (0..WAITING_MAX).map(|_| waits(&turns, from(1), false)).collect();
        // A further one of the flood is refused at once.
        assert!(turns.turn(from(1), false).now_or_never().unwrap().is_none());
        let mut other = waits(&turns, from(2), false);
        assert_eq!(turns.waiting(), WAITING_MAX);
        assert!(matches!(flood.pop().unwrap().now_or_never(), Some(None)), "its place is another's");
        // Those that give up have no turn.
        flood.clear();
        assert_eq!(turns.waiting(), 1);
        drop(busy);
        drop(has_a_turn(&mut other).unwrap());
        // One that has a turn and does not know it gives it back.
        let busy = only(&turns);
        let gives_up = waits(&turns, from(1), false);
        drop(busy);
        drop(gives_up);
        assert!(turns.turn(from(3), false).now_or_never().unwrap().is_some());
    }
}

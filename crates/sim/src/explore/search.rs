//! Breadth-first: every state that can be reached within the bounds is seen once, on a shortest path.

use super::{
    Bounds,
    fingerprint::{self, Set},
    space::{Move, Space},
};
use crate::check::Violation;

/// What has been looked at so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Count {
    /// Different states.
    pub states: usize,
    /// Steps from one state to another, or to one seen before.
    pub transitions: u64,
    /// The most steps that a state is away from the beginning.
    pub depth: usize,
    /// Different replicas, with their logs and pasts.
    pub replicas: usize,
    /// Different messages.
    pub messages: usize,
}

/// Why a search ended.
#[derive(Debug)]
pub(super) enum End {
    /// There is no other state within the bounds.
    Complete,
    /// There are states deeper than the bound.
    Depth,
    /// There are more states than the bound.
    States,
    /// These steps end in a violation.
    Violated(Vec<Taken>, Violation),
}

/// What can still happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Left {
    /// So many commands were proposed.
    proposed: u8,
    timeouts: u8,
    crashes: u8,
    losses: u8,
    duplicates: u8,
}

impl Left {
    const WORDS: usize = 2;

    fn words(self) -> [u32; Left::WORDS] {
        [
            u32::from_le_bytes([self.proposed, self.timeouts, self.crashes, self.losses]),
            u32::from(self.duplicates),
        ]
    }

    fn of_words(words: &[u32]) -> Left {
        let [proposed, timeouts, crashes, losses] = words[0].to_le_bytes();
        Left { proposed, timeouts, crashes, losses, duplicates: words[1].to_le_bytes()[0] }
    }
}

/// A step that was taken.
#[derive(Clone, Copy, Debug)]
pub(super) struct Taken {
    /// The index of the replica to which it happened.
    pub(super) at: u8,
    /// The parcel stays on its way, too.
    pub(super) doubled: bool,
    pub(super) made: Move,
}

/// States of one depth: for each its replicas, what is left, and the parcels in ascending order.
#[derive(Debug, Default)]
struct Level {
    words: Vec<u32>,
    /// Where each state ends, and its number.
    states: Vec<(usize, u32)>,
}

impl Level {
    fn push(&mut self, words: &[u32], number: u32) {
        self.words.extend_from_slice(words);
        self.states.push((self.words.len(), number));
    }
}

/// See the module.
pub(super) struct Search<'a> {
    space: &'a mut Space,
    bounds: Bounds,
    seen: Set<u128>,
    /// For each state, the one before it, and the step from there.
    parents: Vec<(u32, Taken)>,
    next: Level,
    transitions: u64,
    /// Where the state that is made next is put together, and what can happen in the present one.
    scratch: Vec<u32>,
    steps: Vec<(Taken, Left)>,
}

/// A state did not hold, or there are too many.
enum Stop {
    Violation(Violation),
    States,
}

impl From<Violation> for Stop {
    fn from(violation: Violation) -> Stop {
        Stop::Violation(violation)
    }
}

impl<'a> Search<'a> {
    pub(super) fn new(space: &'a mut Space, bounds: Bounds) -> Search<'a> {
        Search {
            space,
            bounds,
            seen: Set::default(),
            parents: Vec::new(),
            next: Level::default(),
            transitions: 0,
            scratch: Vec::new(),
            steps: Vec::new(),
        }
    }

    /// Looks at every state within the bounds; `watch` is told now and then how far that is.
    pub(super) fn run(mut self, watch: &mut dyn FnMut(Count)) -> (Count, End) {
        let mut depth = 0;
        let end = match self.begin() {
            Err(violation) => End::Violated(Vec::new(), violation),
            Ok(()) => loop {
                let level = std::mem::take(&mut self.next);
                if level.states.is_empty() {
                    break End::Complete;
                }
                if self.bounds.depth.is_some_and(|max| depth >= max) {
                    break End::Depth;
                }
                match self.expand(&level, depth, watch) {
                    Ok(()) => depth += usize::from(!self.next.states.is_empty()),
                    Err((_, _, Stop::States)) => break End::States,
                    Err((parent, last, Stop::Violation(violation))) => {
                        depth += 1;
                        break End::Violated(self.path(parent, last), violation);
                    }
                }
            },
        };
        (self.count(depth), end)
    }

    fn count(&self, depth: usize) -> Count {
        Count {
            states: self.parents.len(),
            transitions: self.transitions,
            depth,
            replicas: self.space.node_count(),
            messages: self.space.parcel_count(),
        }
    }

    fn begin(&mut self) -> Result<(), Violation> {
        let (nodes, parcels) = self.space.begin()?;
        self.space.judge(&nodes, &[])?;
        let Bounds { timeouts, crashes, losses, duplicates, .. } = self.bounds;
        let left = Left { proposed: 0, timeouts, crashes, losses, duplicates };
        let words: Vec<u32> = nodes.into_iter().chain(left.words()).chain(parcels).collect();
        self.seen.insert(fingerprint::of_words(&words));
        // Nobody asks for the parent of the first.
        self.parents.push((0, Taken { at: 0, doubled: false, made: Move::Timer }));
        self.next.push(&words, 0);
        Ok(())
    }

    fn expand(
        &mut self,
        level: &Level,
        depth: usize,
        watch: &mut dyn FnMut(Count),
    ) -> Result<(), (u32, Taken, Stop)> {
        let mut begin = 0;
        for (place, &(end, number)) in level.states.iter().enumerate() {
            if place % 4096 == 0 {
                watch(self.count(depth));
            }
            self.expand_state(&level.words[begin..end], number)
                .map_err(|(taken, stop)| (number, taken, stop))?;
            begin = end;
        }
        Ok(())
    }

    /// Takes every step from a state.
    fn expand_state(&mut self, state: &[u32], number: u32) -> Result<(), (Taken, Stop)> {
        let mut steps = std::mem::take(&mut self.steps);
        self.steps_from(state, &mut steps);
        let taken = steps
            .drain(..)
            .try_for_each(|(taken, left)| self.take(state, number, left, taken).map_err(|stop| (taken, stop)));
        self.steps = steps;
        taken
    }

    /// What can happen in a state, and what can still happen after that.
    fn steps_from(&self, state: &[u32], steps: &mut Vec<(Taken, Left)>) {
        let replicas = self.bounds.replicas;
        let left = Left::of_words(&state[replicas..]);
        for at in 0..replicas {
            let mut step = |made, left| steps.push((Taken { at: at as u8, doubled: false, made }, left));
            let known = self.space.node(state[at]);
            for through in known.durable + 1..=known.records {
                step(Move::Durable(through), left);
            }
            if known.has_room && left.proposed < self.bounds.commands {
                let proposed = u32::from(left.proposed);
                step(Move::Propose(proposed), Left { proposed: left.proposed + 1, ..left });
            }
            if let Some(timeouts) = left.timeouts.checked_sub(1).filter(|_| known.has_timer) {
                step(Move::Timer, Left { timeouts, ..left });
            }
            if let Some(losses) = left.losses.checked_sub(1) {
                for peer in (0..replicas).filter(|&peer| peer != at) {
                    step(Move::Session(peer as u32), Left { losses, ..left });
                }
            }
            if let Some(crashes) = left.crashes.checked_sub(1) {
                for kept in known.durable..=known.records {
                    step(Move::Restart(kept), Left { crashes, ..left });
                }
            }
        }
        let parcels = &state[replicas + Left::WORDS..];
        for (place, &parcel) in parcels.iter().enumerate() {
            if place > 0 && parcels[place - 1] == parcel {
                continue;
            }
            let to = self.space.parcel(parcel).to;
            let at = self.space.setting.ids.iter().position(|&id| id == to);
            let at = at.expect("replicas send to members") as u8;
            steps.push((Taken { at, doubled: false, made: Move::Receive(parcel) }, left));
            if let Some(duplicates) = left.duplicates.checked_sub(1) {
                let left = Left { duplicates, ..left };
                steps.push((Taken { at, doubled: true, made: Move::Receive(parcel) }, left));
            }
        }
    }

    fn take(&mut self, state: &[u32], number: u32, left: Left, taken: Taken) -> Result<(), Stop> {
        let replicas = self.bounds.replicas;
        let at = usize::from(taken.at);
        let before = state[at];
        let outcome = self.space.outcome(at, before, taken.made)?;
        let after = outcome.node;
        if after == before && outcome.sent.is_empty() {
            // Nothing can happen afterwards that can not happen before: a message less is on its way, or less is
            // left to go wrong.
            return Ok(());
        }
        self.transitions += 1;
        let next = &mut self.scratch;
        next.clear();
        next.extend_from_slice(&state[..replicas]);
        next[at] = after;
        next.extend(left.words());
        let arrived = match taken.made {
            Move::Receive(parcel) if !taken.doubled => Some(parcel),
            _ => None,
        };
        let parcels = &state[replicas + Left::WORDS..];
        let gone = arrived.and_then(|arrived| parcels.iter().position(|&parcel| parcel == arrived));
        let kept = parcels.iter().enumerate().filter(|(place, _)| Some(*place) != gone);
        next.extend(kept.map(|(_, &parcel)| parcel).chain(outcome.sent.iter().copied()));
        next[replicas + Left::WORDS..].sort_unstable();
        let owed = outcome.owed.clone();
        if !owed.is_empty() || self.space.node(after).deeds != self.space.node(before).deeds {
            self.space.judge(&next[..replicas], &owed)?;
        }
        if !self.seen.insert(fingerprint::of_words(next)) {
            return Ok(());
        }
        if self.parents.len() >= self.bounds.states_max {
            return Err(Stop::States);
        }
        let state = u32::try_from(self.parents.len()).expect("bounded by states_max");
        self.parents.push((number, taken));
        self.next.push(next, state);
        Ok(())
    }

    /// The steps to a state, and one more.
    fn path(&self, mut state: u32, last: Taken) -> Vec<Taken> {
        let mut path = vec![last];
        while state != 0 {
            let (parent, taken) = self.parents[state as usize];
            path.push(taken);
            state = parent;
        }
        path.reverse();
        path
    }
}

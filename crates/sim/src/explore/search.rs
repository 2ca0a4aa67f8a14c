//! Breadth-first search: every state that can be reached within the bounds is visited once, on a shortest path.

use super::{
    Bounds,
    space::{Move, Space},
    states::{Left, States},
};
use crate::check::Violation;

/// The progress is reported after this many states.
const WATCH_INTERVAL: usize = 4096;

/// The progress of an exploration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Different states.
    pub states: usize,
    /// Steps from one state to another one, new or visited before.
    pub transitions: u64,
    /// The largest distance of a state from the beginning, in steps.
    pub depth: usize,
    /// Different replicas, with their logs and pasts.
    pub replicas: usize,
    /// Different messages.
    pub messages: usize,
    /// The commands that a replica delivered in some state.
    pub commands: usize,
}

/// Why a search ended.
#[derive(Debug)]
pub(super) enum End {
    /// There is no other state within the bounds.
    Complete,
    /// There may be states deeper than the bound.
    Depth,
    /// There are more states than the bound.
    States,
    /// All walks were taken.
    Walked,
    /// These steps end in a violation.
    Violated(Vec<Taken>, Violation),
}

/// A step that was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Taken {
    /// The index of the replica at which it happened.
    pub(super) at: u8,
    /// Whether the parcel also stays in flight.
    pub(super) doubled: bool,
    pub(super) made: Move,
}

/// A breadth-first search.
pub(super) struct Search<'a> {
    space: &'a mut Space,
    bounds: Bounds,
    states: States,
    transitions: u64,
    /// The buffer in which the next state is put together.
    scratch: Vec<u32>,
}

/// Why the search stops: a violation, or too many states.
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
        let states = States::new(bounds.replicas);
        Search { space, bounds, states, transitions: 0, scratch: Vec::new() }
    }

    /// Visits every state within the bounds; `watch` is called from time to time with the progress.
    pub(super) fn run(mut self, watch: &mut dyn FnMut(Count)) -> (Count, End) {
        if let Err(violation) = self.begin() {
            return (self.count(0), End::Violated(Vec::new(), violation));
        }
        // States of the same depth are consecutive.
        let (mut depth, mut state, mut deeper) = (0, 0, 1);
        while state < self.states.len() {
            if state == deeper {
                (depth, deeper) = (depth + 1, self.states.len());
                self.states.next_level();
            }
            if self.bounds.depth == Some(depth) {
                return (self.count(depth), End::Depth);
            }
            if state % WATCH_INTERVAL == 0 {
                watch(self.count(depth));
            }
            match self.expand(state) {
                Ok(()) => state += 1,
                Err((_, Stop::States)) => return (self.count(depth), End::States),
                Err((last, Stop::Violation(violation))) => {
                    return (self.count(depth), End::Violated(self.path(state, last), violation));
                }
            }
        }
        (self.count(depth), End::Complete)
    }

    fn count(&self, depth: usize) -> Count {
        Count {
            states: self.states.len(),
            transitions: self.transitions,
            depth,
            replicas: self.space.node_count(),
            messages: self.space.parcel_count(),
            commands: self.space.command_count(),
        }
    }

    fn begin(&mut self) -> Result<(), Violation> {
        let (nodes, parcels) = self.space.begin()?;
        self.space.judge(&nodes, &[])?;
        let left = everything(&self.bounds);
        let words: Vec<u32> = nodes.into_iter().chain(parcels).collect();
        // The step to the first state is never read.
        self.states.add(&words, left, 0, Taken { at: 0, doubled: false, made: Move::Timer });
        self.states.next_level();
        Ok(())
    }

    /// Takes every step from a state, unless another covers it.
    fn expand(&mut self, state: usize) -> Result<(), (Taken, Stop)> {
        if self.states.is_covered(state) {
            return Ok(());
        }
        let (nodes, parcels, left) = self.states.get(state);
        let steps = steps(self.space, &self.bounds, nodes, parcels, left);
        steps
            .into_iter()
            .try_for_each(|(taken, left)| self.take(state, left, taken).map_err(|stop| (taken, stop)))
    }

    fn take(&mut self, state: usize, left: Left, taken: Taken) -> Result<(), Stop> {
        let (nodes, parcels, _) = self.states.get(state);
        if !advance(self.space, nodes, parcels, taken, &mut self.scratch)? {
            return Ok(());
        }
        self.transitions += 1;
        self.states.add(&self.scratch, left, state, taken);
        if self.states.len() > self.bounds.states_max { Err(Stop::States) } else { Ok(()) }
    }

    /// The steps to a state, and one more.
    fn path(&self, mut state: usize, last: Taken) -> Vec<Taken> {
        let mut path = vec![last];
        while state != 0 {
            let (parent, taken) = self.states.parent(state);
            path.push(taken);
            state = parent;
        }
        path.reverse();
        path
    }
}

/// What may still happen at the beginning.
pub(super) fn everything(bounds: &Bounds) -> Left {
    let Bounds { timeouts, waits, crashes, losses, duplicates, catch_ups, .. } = *bounds;
    Left { proposed: 0, timeouts, waits, crashes, losses, duplicates, catch_ups }
}

/// The steps from a state, each with what may still happen after it.
pub(super) fn steps(
    space: &Space,
    bounds: &Bounds,
    nodes: &[u32],
    parcels: &[u32],
    left: Left,
) -> Vec<(Taken, Left)> {
    let mut steps = Vec::new();
    for (at, &node) in nodes.iter().enumerate() {
        let mut step = |made, left| steps.push((Taken { at: at as u8, doubled: false, made }, left));
        let known = space.node(node);
        for through in known.durable + 1..=known.records {
            step(Move::Durable(through), left);
        }
        if known.has_room && left.proposed < bounds.commands {
            let proposed = u32::from(left.proposed);
            step(Move::Propose(proposed), Left { proposed: left.proposed + 1, ..left });
        }
        if let Some(timeouts) = left.timeouts.checked_sub(1).filter(|_| known.has_timer) {
            step(Move::Timer, Left { timeouts, ..left });
        }
        if let Some(waits) = left.waits.checked_sub(1).filter(|_| known.has_timer) {
            step(Move::Wait, Left { waits, ..left });
        }
        if let Some(losses) = left.losses.checked_sub(1) {
            for peer in (0..nodes.len()).filter(|&peer| peer != at) {
                step(Move::Session(peer as u32), Left { losses, ..left });
            }
        }
        if let Some(catch_ups) = left.catch_ups.checked_sub(1) {
            let peers = nodes.iter().enumerate().filter(|(peer, _)| *peer != at);
            let peers = peers.map(|(_, &peer)| space.node(peer));
            let mut next: Vec<u32> =
                peers.filter_map(|peer| peer.decisions.get(known.delivered).copied()).collect();
            next.sort_unstable();
            next.dedup();
            next.into_iter().for_each(|next| step(Move::Learn(next), Left { catch_ups, ..left }));
        }
        if let Some(crashes) = left.crashes.checked_sub(1) {
            for kept in known.durable..=known.records {
                step(Move::Restart(kept), Left { crashes, ..left });
            }
        }
    }
    for (place, &parcel) in parcels.iter().enumerate() {
        if place > 0 && parcels[place - 1] == parcel {
            continue;
        }
        let to = space.parcel(parcel).to;
        let at = space.setting.ids.iter().position(|&id| id == to);
        let at = at.expect("replicas send to members") as u8;
        steps.push((Taken { at, doubled: false, made: Move::Receive(parcel) }, left));
        if let Some(duplicates) = left.duplicates.checked_sub(1) {
            let left = Left { duplicates, ..left };
            steps.push((Taken { at, doubled: true, made: Move::Receive(parcel) }, left));
        }
    }
    steps
}

/// Puts together the state to which a step leads. Returns false if the state before covers it, so that it
/// need not be visited.
pub(super) fn advance(
    space: &mut Space,
    nodes: &[u32],
    parcels: &[u32],
    taken: Taken,
    next: &mut Vec<u32>,
) -> Result<bool, Violation> {
    let at = usize::from(taken.at);
    let before = nodes[at];
    let outcome = space.outcome(at, before, taken.made)?;
    let after = outcome.node;
    if after == before && outcome.sent.is_empty() {
        return Ok(false);
    }
    next.clear();
    next.extend_from_slice(nodes);
    next[at] = after;
    let arrived = match taken.made {
        Move::Receive(parcel) if !taken.doubled => Some(parcel),
        _ => None,
    };
    let gone = arrived.and_then(|arrived| parcels.iter().position(|&parcel| parcel == arrived));
    let kept = parcels.iter().enumerate().filter(|(place, _)| Some(*place) != gone);
    next.extend(kept.map(|(_, &parcel)| parcel).chain(outcome.sent.iter().copied()));
    next[nodes.len()..].sort_unstable();
    let owed = outcome.owed.clone();
    if !owed.is_empty() || space.node(after).deeds != space.node(before).deeds {
        space.judge(&next[..nodes.len()], &owed)?;
    }
    Ok(true)
}

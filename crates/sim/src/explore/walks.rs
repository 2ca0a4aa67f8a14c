//! Random walks, for configurations that are too large to explore, such as five replicas.
//!
//! A walk takes random steps from the beginning. Independent steps would hardly ever lead anywhere:
//! everything would happen everywhere at once, and nothing far enough. So for a while only some links work
//! (all; those inside of two groups; these and those of one replica that reaches both; half of them), and
//! then others. Messages on the other links stay in flight.

use fastrand::Rng;

use super::{
    Bounds,
    fingerprint::Set,
    node::Setting,
    search::{Count, End, Taken, advance, everything, steps},
    space::{Move, Space},
    states::Left,
};
use crate::check::Violation;

/// How many different replicas are kept before all are dropped; each takes about ten kilobytes.
const REPLICAS_MAX: usize = 100_000;
/// Links change after about this many steps.
const LINKS_LAST: u32 = 24;

/// The extent of random walks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Walks {
    /// How many walks.
    pub walks: u64,
    /// The steps of each, at most.
    pub steps: usize,
    /// The seed of all random choices.
    pub seed: u64,
}

/// Takes random walks through a space. Returns the space in which a path is to be read.
pub(super) fn walk(
    setting: impl Fn() -> Setting,
    bounds: Bounds,
    walks: Walks,
    watch: &mut dyn FnMut(Count),
) -> (Space, Count, End) {
    let mut rng = Rng::with_seed(walks.seed);
    let mut space = Space::new(setting());
    let mut seen = Set::default();
    let (mut count, mut forgotten) = (Count::default(), Count::default());
    for _ in 0..walks.walks {
        if space.node_count() > REPLICAS_MAX {
            forgotten.replicas += space.node_count();
            forgotten.messages += space.parcel_count();
            space = Space::new(setting());
        }
        let mut path = Vec::new();
        let result = one(&mut space, &bounds, walks.steps, &mut rng, &mut path, &mut seen);
        count.transitions += path.len() as u64;
        count.depth = count.depth.max(path.len());
        count.states = seen.len();
        count.replicas = forgotten.replicas + space.node_count();
        count.messages = forgotten.messages + space.parcel_count();
        count.commands = count.commands.max(space.command_count());
        watch(count);
        if let Err(violation) = result {
            let (path, violation) = shorten(&mut space, &bounds, path, violation);
            return (space, count, End::Violated(path, violation));
        }
        if seen.len() >= bounds.states_max {
            return (space, count, End::States);
        }
    }
    (space, count, End::Walked)
}

/// Takes one walk; its steps are added to the path, including one that fails.
fn one(
    space: &mut Space,
    bounds: &Bounds,
    steps_max: usize,
    rng: &mut Rng,
    path: &mut Vec<Taken>,
    seen: &mut Set<u128>,
) -> Result<(), Violation> {
    let (nodes, parcels) = space.begin()?;
    space.judge(&nodes, &[])?;
    let replicas = nodes.len();
    let mut words: Vec<u32> = nodes.into_iter().chain(parcels).collect();
    let mut next = Vec::new();
    let mut left = everything(bounds);
    let mut links = Links::all(replicas);
    while path.len() < steps_max {
        if rng.u32(0..LINKS_LAST) == 0 {
            links = Links::draw(replicas, rng);
        }
        let (nodes, parcels) = words.split_at(replicas);
        let all = steps(space, bounds, nodes, parcels, left);
        let works = |(taken, _): &&(Taken, Left)| links.work_for(space, taken);
        let some: Vec<(Taken, Left)> = all.iter().filter(works).copied().collect();
        let Some((taken, then)) = choose(&some, rng).or_else(|| choose(&all, rng)) else { break };
        path.push(taken);
        if advance(space, nodes, parcels, taken, &mut next)? {
            std::mem::swap(&mut words, &mut next);
            seen.insert(space.fingerprint(&words));
        } else {
            // A step without effect is dropped from the path.
            path.pop();
            if let Move::Receive(parcel) = taken.made {
                let place = parcels.iter().position(|&other| other == parcel);
                words.remove(replicas + place.expect("it was on its way"));
            }
        }
        left = then;
    }
    Ok(())
}

/// Chooses a step, first by its kind, so that frequent kinds do not crowd out the others.
fn choose(steps: &[(Taken, Left)], rng: &mut Rng) -> Option<(Taken, Left)> {
    let weight = |made: Move| match made {
        Move::Receive(_) => (0, 16),
        Move::Durable(_) => (1, 8),
        Move::Propose(_) => (2, 3),
        Move::Learn(_) => (3, 2),
        Move::Timer => (4, 1),
        Move::Session(_) => (5, 1),
        Move::Restart(_) => (6, 1),
        Move::Wait => (7, 1),
    };
    let mut counts = [0_usize; 8];
    steps.iter().for_each(|(taken, _)| counts[weight(taken.made).0] += 1);
    let mut weights = [0; 8];
    steps.iter().for_each(|(taken, _)| weights[weight(taken.made).0] = weight(taken.made).1);
    let total: u32 = weights.iter().sum();
    if total == 0 {
        return None;
    }
    let mut drawn = rng.u32(0..total);
    let mut kind = 0;
    while drawn >= weights[kind] {
        drawn -= weights[kind];
        kind += 1;
    }
    let nth = rng.usize(0..counts[kind]);
    steps.iter().filter(|(taken, _)| weight(taken.made).0 == kind).nth(nth).copied()
}

/// The links that work for a while.
struct Links {
    replicas: usize,
    cut: Vec<bool>,
}

impl Links {
    fn all(replicas: usize) -> Links {
        Links { replicas, cut: vec![false; replicas * replicas] }
    }

    fn draw(replicas: usize, rng: &mut Rng) -> Links {
        let kind = rng.u8(0..4);
        let side: Vec<bool> = (0..replicas).map(|_| rng.bool()).collect();
        let bridge = (kind == 2).then(|| rng.usize(0..replicas));
        let mut links = Links::all(replicas);
        for from in 0..replicas {
            for to in 0..replicas {
                links.cut[from * replicas + to] = match kind {
                    0 => false,
                    1 | 2 => side[from] != side[to] && bridge != Some(from) && bridge != Some(to),
                    _ => rng.bool(),
                };
            }
        }
        links
    }

    fn work_for(&self, space: &Space, taken: &Taken) -> bool {
        let Move::Receive(parcel) = taken.made else { return true };
        let from = space.parcel(parcel).from;
        let from = space.setting.ids.iter().position(|&id| id == from).expect("members send");
        !self.cut[from * self.replicas + usize::from(taken.at)]
    }
}

/// Removes steps without which the same violation occurs, from the last to the first.
fn shorten(
    space: &mut Space,
    bounds: &Bounds,
    mut path: Vec<Taken>,
    mut violation: Violation,
) -> (Vec<Taken>, Violation) {
    let mut place = path.len();
    while place > 0 {
        place -= 1;
        let mut shorter = path.clone();
        shorter.remove(place);
        if let Some((steps, found)) = fails(space, bounds, &shorter)
            && found.invariant == violation.invariant
        {
            shorter.truncate(steps);
            (path, violation) = (shorter, found);
            place = place.min(path.len());
        }
    }
    (path, violation)
}

/// Takes steps one after another until a violation occurs. Returns the violation and how many steps led to
/// it; `None` if a step cannot be taken or there is no violation.
fn fails(space: &mut Space, bounds: &Bounds, path: &[Taken]) -> Option<(usize, Violation)> {
    let (nodes, parcels) = space.begin().ok()?;
    let replicas = nodes.len();
    let mut words: Vec<u32> = nodes.into_iter().chain(parcels).collect();
    let mut next = Vec::new();
    let mut left = everything(bounds);
    for (place, &taken) in path.iter().enumerate() {
        let (nodes, parcels) = words.split_at(replicas);
        let possible = steps(space, bounds, nodes, parcels, left);
        let (_, then) = possible.into_iter().find(|(step, _)| *step == taken)?;
        match advance(space, nodes, parcels, taken, &mut next) {
            Ok(true) => std::mem::swap(&mut words, &mut next),
            Ok(false) => {}
            Err(violation) => return Some((place + 1, violation)),
        }
        left = then;
    }
    None
}

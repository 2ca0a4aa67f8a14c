//! A leader that is chosen by latency ends near the best member, and stays (Santos 2012, Proposition 6.2 and Corollary
//! 6.1), over links with drawn delays, after losses and crashes.

use synod_consensus::{Bug, ElectionKind, election::latency};
use synod_sim::{
    check::Invariant,
    choice::{Chosen, play},
    scenario::{CASTS, Cast},
};

const SEEDS: u64 = 60;

/// What must happen in some seeds, and in how many of them at least.
type Row = (&'static str, fn(&Chosen) -> bool, usize);

const ROWS: &[Row] = &[
    ("three members", |chosen| chosen.replicas == 3, 5),
    ("five members", |chosen| chosen.replicas == 5, 15),
    ("seven members", |chosen| chosen.replicas == 7, 5),
    ("messages are lost", |chosen| chosen.lost > 0, 40),
    ("a member crashes and comes back", |chosen| chosen.crashes > 0, 30),
    ("a member crashes for good", |chosen| chosen.gone > 0, 20),
    ("two members crash for good", |chosen| chosen.gone > 1, 5),
    ("leadership moves after the faults", |chosen| chosen.changes > 0, 20),
    ("leadership moves twice or more", |chosen| chosen.changes > 1, 2),
    ("the first leader is farther than it may be", too_far_before, 5),
    ("a leader within four tolerances of the best stays", |chosen| chosen.after > chosen.best, 2),
];

fn too_far_before(chosen: &Chosen) -> bool {
    chosen.before > chosen.best + chosen.tolerance * 12
}

fn casts() -> impl Iterator<Item = Cast> {
    CASTS.iter().copied().filter(|cast| cast.election == ElectionKind::Latency)
}

#[test]
fn the_leader_ends_within_twelve_tolerances_of_the_best_and_stays() {
    for cast in casts() {
        let played = |seed| {
            play(cast, seed, None)
                .unwrap_or_else(|violation| panic!("{}, seed {seed}: {violation}", cast.name))
        };
        let all: Vec<Chosen> = (0..SEEDS).map(played).collect();
        for &(name, happens, least) in ROWS {
            let seeds = all.iter().filter(|chosen| happens(chosen)).count();
            println!("{}: {name}: {seeds} of {SEEDS} seeds", cast.name);
            assert!(seeds >= least, "{}: {name}: {seeds} of {SEEDS} seeds, fewer than {least}", cast.name);
        }
    }
}

/// The group works with each of these bugs, so no other invariant is violated.
#[test]
fn a_leader_that_chooses_badly_is_found() {
    for bug in [latency::Bug::HandsToItself, latency::Bug::AbstainsForever, latency::Bug::KeepsMatrix] {
        for cast in casts() {
            let play = |seed| play(cast, seed, Some(Bug::LatencyElection(bug))).err();
            let (seed, violation) = (0..SEEDS)
                .find_map(|seed| Some((seed, play(seed)?)))
                .unwrap_or_else(|| panic!("{}: {bug:?} is not found in {SEEDS} seeds", cast.name));
            println!("{}, {bug:?}: found by seed {seed}", cast.name);
            assert_eq!(violation.invariant, Invariant::LeadsNearby, "{}, {bug:?}: {violation}", cast.name);
        }
    }
}

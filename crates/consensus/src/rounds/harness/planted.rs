//! Each rule of `rules.rs` replaced by a known way to get it wrong, and found by the attacks of this folder: on
//! algorithms alone, where safety breaks, or on layers, where a theorem, a lemma or Table 4.3 does.

use std::time::Duration;

use synod_model::rounds::Line;
use synod_wire::{ReplicaId, Slot, Time};

use super::{
    bounds, heard_of,
    swift::{self, Way},
};
use crate::{
    Members,
    rounds::{Bounds, LastVoting, Layer, Letter, OneThirdRule, Round, Synchronisation, rules::Rules},
};

/// Rules of which one is wrong.
type Wrong = fn() -> Rules;

/// A bug, and what finds it.
struct Bug {
    name: &'static str,
    rules: Wrong,
    attack: fn(Wrong) -> Result<(), String>,
    /// What the finding says.
    finds: &'static str,
}

fn one_third(rules: Wrong) -> Result<(), String> {
    heard_of::attack(OneThirdRule::new, rules, 20_000)
}

fn three(rules: Wrong) -> Result<(), String> {
    heard_of::attack(LastVoting::three, rules, 20_000)
}

fn four(rules: Wrong) -> Result<(), String> {
    heard_of::attack(LastVoting::four, rules, 20_000)
}

fn full(rules: Wrong) -> Result<(), String> {
    bounds::attack(Line::LastVoting3, rules, 400).map(drop)
}

fn coordinator(rules: Wrong) -> Result<(), String> {
    bounds::attack(Line::Coordinator, rules, 2_000).map(drop)
}

fn timed(rules: Wrong) -> Result<(), String> {
    swift::attack(Way::Timed, rules, 400).map(drop)
}

fn swift(rules: Wrong) -> Result<(), String> {
    swift::attack(Way::Swift, rules, 400).map(drop)
}

fn suspecting(rules: Wrong) -> Result<(), String> {
    swift::attack(Way::Suspecting, rules, 400).map(drop)
}

macro_rules! bug {
    ($name:literal, $attack:ident, $finds:literal, $rule:ident = $wrong:expr) => {
        Bug { name: $name, rules: || Rules { $rule: $wrong, ..Rules::SOUND }, attack: $attack, finds: $finds }
    };
}

const SAFETY: &[Bug] = &[
    bug!(
        "a majority is enough to adopt",
        one_third,
        "agreement",
        hears_enough = |all, set| all.is_quorum(set)
    ),
    bug!(
        "a majority is enough to decide",
        one_third,
        "agreement",
        is_decided = |all, set| all.is_quorum(set)
    ),
    bug!("the smallest value is adopted, however rare", one_third, "agreement", is_preferred = |_, _| false),
    bug!("an estimate goes to all", three, "agreement", is_addressed = |_, _| true),
    bug!("an estimate goes to all, four rounds", four, "agreement", is_addressed = |_, _| true),
    bug!("a vote without a majority", three, "agreement", may_commit = |_, set| !set.is_empty()),
    bug!("the earliest estimate wins", three, "agreement", outranks = |told, held| told < held),
    bug!("any estimate wins", four, "agreement", outranks = |_, _| false),
    bug!("a coordinator always votes", four, "agreement", proposes = |it, _| it),
    bug!("an old vote is acknowledged", four, "agreement", acknowledges = |voted_in, _| voted_in > 0),
    bug!("a minority chooses", three, "agreement", is_accepted = |all, set| set.len() >= all.count() / 2),
    bug!("a decision without acknowledgements", four, "agreement", announces = |it, _| it),
    bug!(
        "Santos E1: commit outlives its phase, three rounds",
        three,
        "agreement",
        forgets = |last, decided| last && decided
    ),
    bug!(
        "Santos E1: commit outlives its phase, four rounds",
        four,
        "agreement",
        forgets = |last, decided| last && decided
    ),
];

const PROGRESS: &[Bug] = &[
    bug!("nobody follows into higher rounds", full, "uniform", is_overtaken = |_, _| false),
    bug!("time-outs at half their bound", full, "uniform", is_over = |is, of| 2 * is >= of),
    bug!("time-outs at half their bound, by a coordinator", coordinator, "", is_over = |is, of| 2 * is >= of),
    bug!("time-outs at half their bound, many instances", timed, "decided", is_over = |is, of| 2 * is >= of),
    bug!("the first coordinator stays", full, "good", elected = |_, all, _, _| all.ids().first().copied()),
    bug!("each believes in itself", full, "good", elected = |_, all, _, _| Some(all.me())),
    bug!(
        "Santos E3: a coordinator without a majority goes on",
        coordinator,
        "",
        has_no_vote = |_, _, _| false
    ),
    bug!("all compete in every phase", coordinator, "messages", competes = |_| true),
    bug!("the dead are alive", swift, "more than", is_alive = |_, _| true),
    bug!(
        "a quorum ends a round",
        swift,
        "more than",
        may_end_early = |all, of, _, set| all.is_quorum_of(of, set)
    ),
    bug!("no round ends early", swift, "more than", may_end_early = |_, _, _, _| false),
    bug!("a round over a detector ends at once", suspecting, "", hears_unsuspected = |_, _| true),
];

/// All bugs of a list are found, and say so in the right words.
fn find(bugs: &[Bug]) {
    let missed = bugs.iter().filter_map(|bug| match (bug.attack)(bug.rules) {
        Ok(()) => Some(format!("{}: not found", bug.name)),
        Err(why) if !why.contains(bug.finds) => Some(format!("{}: {why}", bug.name)),
        Err(_) => None,
    });
    let missed: Vec<_> = missed.collect();
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

#[test]
fn bugs_of_algorithms_are_found() {
    find(SAFETY);
}

#[test]
fn bugs_of_layers_are_found() {
    find(PROGRESS);
}

/// Four replicas with swift rounds, whose delay is 20 ticks.
fn swift_layer(rules: Rules) -> Layer<OneThirdRule<u64>> {
    let bounds = Bounds::exact(4, Duration::from_nanos(20), Duration::from_nanos(1));
    let members = Members::new((1..=4).map(ReplicaId), ReplicaId(1));
    let mut layer = Layer::with_rules(OneThirdRule::new(), members, bounds.swift(), rules);
    layer.propose(Slot(1), 7);
    layer
}

/// Sends all letters of a round to nobody.
fn send_all(layer: &mut Layer<OneThirdRule<u64>>, now: Time) {
    layer.begin(now);
    while layer.next_letter(now).is_some() {}
}

/// How many rounds a replica that hears nobody goes through in a thousand ticks.
fn rounds_alone(rules: Rules) -> u64 {
    let mut layer = swift_layer(rules);
    send_all(&mut layer, Time::ZERO);
    for tick in (1..=1_000).map(Time::from_nanos) {
        if layer.receive(tick, []) {
            send_all(&mut layer, tick);
        }
    }
    layer.round().0
}

/// The guard of n-f: a replica that is cut off takes only itself for alive. Without the guard it runs through rounds
/// at the speed of its steps, and all others have to follow when it comes back.
#[test]
fn a_replica_that_is_cut_off_goes_on_no_faster_than_its_time_out() {
    let Synchronisation::Swift { round, .. } =
        Bounds::exact(4, Duration::from_nanos(20), Duration::from_nanos(1)).swift()
    else {
        panic!()
    };
    assert_eq!(rounds_alone(Rules::SOUND), 1_000 / round.as_nanos() as u64 + 1);
    let without =
        Rules { may_end_early: |_, _, alive, heard| heard.intersection(alive) == alive, ..Rules::SOUND };
    assert!(rounds_alone(without) > 900);
}

/// The race of Figure 5.3: the letter of the next round comes before the last one of this. Returns how many members are
/// heard in round 1.
fn race(rules: Rules) -> usize {
    let mut layer = swift_layer(rules);
    send_all(&mut layer, Time::ZERO);
    let letter = |round| Letter { round: Round(round), said: vec![(Slot(1), 7)] };
    let (now, later) = (Time::from_nanos(5), Time::from_nanos(9));
    // All are alive, and the third member's letter is under way.
    let first = [2, 4].map(|id| (ReplicaId(id), letter(1)));
    let early = layer.receive(now, first.into_iter().chain([(ReplicaId(3), letter(0))]));
    assert!(!early, "the third member is alive and not heard");
    if !layer.receive(now, [(ReplicaId(2), letter(2))]) {
        assert!(layer.receive(later, [(ReplicaId(3), letter(1))]), "all are heard");
    }
    layer.take_ended()[0].heard.len()
}

#[test]
fn the_race_of_figure_5_3_does_not_break_a_round() {
    assert_eq!(race(Rules::SOUND), 4);
    assert_eq!(race(Rules { must_follow: |heard, round| heard > round, ..Rules::SOUND }), 3);
    assert_eq!(race(Rules { patience: |seen, _, round| seen.unwrap_or(round), ..Rules::SOUND }), 3);
}

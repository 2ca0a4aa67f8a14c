//! The runs of `good_period.rs` against Theorems 4.1 and 4.2, Corollary 4.1, Lemmas 4.2 and 4.5, and Table 4.3.

use synod_model::rounds::{Length, Line, good_phases, uniform_rounds};

use super::{
    Worst,
    good_period::{Plan, Record, World},
    seeds,
};
use crate::rounds::{Algorithm, Bounds, LastVoting, OneThirdRule, Round, Synchronisation, rules::Rules};

/// How many rounds or phases in a row are asked for at most.
const ROW: u64 = 3;

/// What the runs of a line of Table 4.3 came to.
#[derive(Debug, Default)]
pub(super) struct Came {
    pub(super) runs: u64,
    /// Until the first good phase begins.
    pub(super) start: Worst,
    /// Until the first decision is everywhere.
    pub(super) first: Worst,
    /// A good phase after a good one.
    pub(super) each: Worst,
    /// Good phases that sent as many messages as Table 4.3 says, and none sent more.
    pub(super) whole: u64,
    /// Messages until the first good phase begins, of the rounds that are new.
    pub(super) messages: Worst,
}

impl std::fmt::Display for Came {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Came { runs, start, first, each, whole, messages } = self;
        write!(
            f,
            "{runs} runs; start {start}; first decision {first}; each {each}; messages {messages}; {whole} phases with all"
        )
    }
}

/// The good phases of a run: the predicate of the line holds for all that are up.
fn is_good(record: &Record, line: Line, phase: u64) -> bool {
    let rounds = u64::from(line.rounds());
    let first = (phase - 1) * rounds + 1;
    let of = |me: usize, place: u64| record.ended[me].get(&Round(first + place - 1)).map(|(_, ended)| ended);
    let hears = |me: usize, place: u64, from: usize| {
        let id = record.members.ids()[from];
        of(me, place).is_some_and(|ended| record.members.contains(ended.heard, id))
    };
    let Some(&one) = record.up.first() else { return false };
    let Some(coordinator) = of(one, 1).and_then(|ended| ended.coordinator) else { return false };
    let c = coordinator.0 as usize - 1;
    let agree = || record.up.iter().all(|&p| of(p, 1).is_some_and(|it| it.coordinator == Some(coordinator)));
    let majority = |place| of(c, place).is_some_and(|it| record.members.is_quorum(it.heard));
    let all = |place: u64| record.up.iter().all(|&p| hears(p, place, c));
    let from_all = |me: usize, place: u64| record.up.iter().all(|&q| hears(me, place, q));
    match line {
        Line::OneThirdRule => (1..=2).all(|place| record.up.iter().all(|&p| from_all(p, place))),
        Line::LastVoting4 => agree() && majority(1) && all(2) && from_all(c, 3) && all(4),
        // A majority ends the third round, and the decision can come to the others before the vote does: the
        // predicate's Π0 is that majority, and not all that are up. All hear the decision.
        Line::Coordinator => {
            let acknowledged = |q: usize| hears(c, 3, q);
            let voted = || (0..record.ended.len()).filter(|&q| acknowledged(q)).all(|q| hears(q, 2, c));
            agree() && majority(1) && majority(3) && voted() && all(4)
        }
        _ => agree() && majority(1) && all(2) && record.up.iter().all(|&p| from_all(p, 3)),
    }
}

/// When the last replica that is up had ended this round.
fn ended_by(record: &Record, round: Round) -> Option<u64> {
    let times = record.up.iter().map(|&me| record.ended[me].get(&round).map(|(at, _)| *at));
    times.collect::<Option<Vec<u64>>>()?.into_iter().max()
}

/// The synchronisation of a line with its least time-outs.
fn synchronisation(line: Line, bounds: &Bounds) -> Synchronisation {
    match line {
        Line::Phase => bounds.phase(),
        Line::Coordinator => bounds.coordinator(),
        _ => bounds.full(),
    }
}

/// Plays one run of a line, and checks it.
fn play<A: Algorithm<Value = u64>>(
    line: Line,
    plan: &Plan,
    algorithm: impl Fn() -> A,
    rules: impl Fn() -> Rules,
    came: &mut Came,
) -> Result<(), String> {
    let (n, rho) = (plan.n as f64, plan.rho());
    let length = |length: Length| length.of(plan.delay as f64, plan.step as f64);
    let cost = line.cost(plan.n as u32, rho).expect("a line with an algorithm");
    let bound = |phases: u64| length(cost.initialization + cost.consensus * phases as f64);
    let good_for = bound(ROW + 1) as u64 + 1;
    let synchronisation = synchronisation(line, &plan.bounds());
    let record = World::new(plan.clone(), algorithm, synchronisation, rules).run(good_for)?;
    came.runs += 1;
    let since = |at: u64| (at - record.good_from) as f64;
    if synchronisation == plan.bounds().full() {
        uniform(&record, |rounds| length(uniform_rounds(n, rho, rounds)))?;
    }
    if line == Line::OneThirdRule {
        // Any two uniform rounds do.
        let begins = ended_by(&record, record.highest).map_or(0.0, since);
        came.start.note(begins, bound(0), plan.seed);
        let new = record.letters.get(&record.highest).copied().unwrap_or(0);
        came.messages.note(new as f64, cost.initialization_messages, plan.seed);
    } else {
        good_phases_in(line, &record, plan, came, bound)?;
    }
    for &me in &record.up {
        let at = record.decided.get(&me).ok_or_else(|| format!("member {me} has not decided"))?;
        let decided = since((*at).max(record.good_from));
        came.first.note(decided, bound(1), plan.seed);
        if decided > bound(1) + 1.0 {
            return Err(format!("decided after {decided}, and the bound is {}", bound(1)));
        }
    }
    Ok(())
}

/// Lemma 4.2 and Theorem 4.1: every new round is uniform, and this many are over in time.
fn uniform(record: &Record, bound: impl Fn(f64) -> f64) -> Result<(), String> {
    let up = record.members.those(|id| record.up.contains(&(id.0 as usize - 1)));
    for rounds in 1..=2 * ROW {
        let round = Round(record.highest.0 + rounds);
        for &me in &record.up {
            let (_, ended) =
                record.ended[me].get(&round).ok_or_else(|| format!("{round:?} has not ended"))?;
            if ended.heard != up {
                return Err(format!("{round:?} is not uniform at member {me}"));
            }
        }
        let ended = ended_by(record, round).expect("checked") - record.good_from;
        if ended as f64 > bound(rounds as f64) + 1.0 {
            return Err(format!("{rounds} uniform rounds took {ended}, more than {}", bound(rounds as f64)));
        }
    }
    Ok(())
}

/// Lemma 4.5: in every new fourth round all that are up hear the same, and somebody.
fn elections(record: &Record) -> Result<(), String> {
    for phase in record.highest.phase(4)..record.highest.phase(4) + ROW {
        let round = Round(4 * phase);
        let heard = |me: &usize| record.ended[*me].get(&round).map(|(_, ended)| ended.heard);
        let all: Vec<_> = record.up.iter().map(heard).collect();
        if round > record.highest
            && (all[0].is_none_or(|it| it.is_empty()) || all.iter().any(|it| *it != all[0]))
        {
            return Err(format!("{round:?} is not uniform: {all:?}"));
        }
    }
    Ok(())
}

/// Corollary 4.1 and Theorem 4.2: good phases begin and end in time, and send what Table 4.3 says.
fn good_phases_in(
    line: Line,
    record: &Record,
    plan: &Plan,
    came: &mut Came,
    bound: impl Fn(u64) -> f64,
) -> Result<(), String> {
    let rounds = u64::from(line.rounds());
    let last = |phase: u64| Round(phase * rounds);
    let from = record.highest.phase(rounds);
    // A phase that began before the good period may be good too, and is not counted on.
    let first = (from..from + 4)
        .find(|&phase| Round((phase - 1) * rounds + 1) > record.highest && is_good(record, line, phase))
        .ok_or("no phase was good")?;
    if line == Line::Coordinator {
        elections(record)?;
    }
    let since = |at: u64| (at - record.good_from) as f64;
    let begins = ended_by(record, last(first - 1)).map_or(0.0, since);
    came.start.note(begins, bound(0), plan.seed);
    let each = bound(1) - bound(0);
    let mut before = begins;
    for y in 1..=ROW {
        let phase = first + y - 1;
        if !is_good(record, line, phase) {
            return Err(format!("phase {phase} is not good, after {} that were", y - 1));
        }
        let ended = since(ended_by(record, last(phase)).expect("a good phase has ended"));
        if ended > bound(y) + 1.0 {
            return Err(format!("{y} good phases took {ended}, more than {}", bound(y)));
        }
        came.each.note(ended - before, each, plan.seed);
        if ended - before > each + 1.0 {
            return Err(format!("phase {phase} took {}, more than {each}", ended - before));
        }
        before = ended;
        let sent: u64 = (1..=rounds).map(|place| record.letters[&Round((phase - 1) * rounds + place)]).sum();
        let whole = line.cost(plan.n as u32, 1.0).expect("a line").consensus_messages;
        // A replica that is late may skip the estimate, and one that is down sends nothing. In the first phase
        // several may still compete for the next.
        if sent as f64 > whole && (line != Line::Coordinator || y > 1) {
            return Err(format!("a good phase sent {sent} messages, and Table 4.3 says {whole}"));
        }
        came.whole += u64::from(sent as f64 == whole);
    }
    let new = record.letters.range(record.highest..Round((first - 1) * rounds + 1)).map(|(_, sent)| sent);
    let printed = line.cost(plan.n as u32, 1.0).expect("a line").initialization_messages;
    came.messages.note(new.sum::<u64>() as f64, printed, plan.seed);
    Ok(())
}

/// Plays this many seeds of a line.
pub(super) fn attack(line: Line, rules: impl Fn() -> Rules, count: u64) -> Result<Came, String> {
    let mut came = Came::default();
    for seed in 0..count {
        let rounds = if line == Line::OneThirdRule { 1 } else { u64::from(line.rounds()) };
        let least = |n: usize| if line == Line::OneThirdRule { 2 * n / 3 + 1 } else { n / 2 + 1 };
        let plan = Plan::draw(seed, rounds, least);
        let played = match line {
            Line::OneThirdRule => play(line, &plan, OneThirdRule::new, &rules, &mut came),
            Line::LastVoting4 | Line::Coordinator => play(line, &plan, LastVoting::four, &rules, &mut came),
            _ => play(line, &plan, LastVoting::three, &rules, &mut came),
        };
        played.map_err(|why| format!("{line:?}, {plan:?}: {why}"))?;
    }
    Ok(came)
}

/// How near to its bounds the worst of these runs must come, in percent: the first round or phase, and each.
fn near(line: Line, start: f64, each: f64) {
    let came = attack(line, || Rules::SOUND, seeds(SEEDS)).unwrap();
    println!("{line:?}: {came}");
    assert!(came.start.part > start / 100.0, "start {}", came.start);
    assert!(line == Line::OneThirdRule || came.each.part > each / 100.0, "each {}", came.each);
}

/// Enough to come near each bound.
const SEEDS: u64 = 400;

#[test]
fn a9_one_third_rule_with_full_synchronisation_keeps_theorem_4_1() {
    near(Line::OneThirdRule, 80.0, 0.0);
}

#[test]
fn a9_last_voting_of_three_rounds_with_full_synchronisation_keeps_corollary_4_1() {
    near(Line::LastVoting3, 80.0, 80.0);
}

#[test]
fn a9_last_voting_of_four_rounds_with_full_synchronisation_keeps_corollary_4_1() {
    near(Line::LastVoting4, 80.0, 80.0);
}

#[test]
fn a10_phase_synchronisation_keeps_its_derived_bounds() {
    near(Line::Phase, 80.0, 80.0);
}

#[test]
fn a12_synchronisation_by_a_coordinator_keeps_theorem_4_2() {
    near(Line::Coordinator, 80.0, 80.0);
}

/// Santos E2: what Table 4.3 prints for LastVoting of four rounds, 11Δ + (12n-5)Φ, is less than what runs take.
#[test]
fn santos_e2_runs_take_longer_than_what_is_printed() {
    let mut longer = 0;
    for seed in 0..200 {
        let plan = Plan::draw(seed, 4, |n| n / 2 + 1);
        let mut came = Came::default();
        play(Line::LastVoting4, &plan, LastVoting::four, || Rules::SOUND, &mut came).unwrap();
        let printed = Length::new(11.0, 12.0 * plan.n as f64 - 5.0);
        let is_longer = came.start.value > printed.of(plan.delay as f64, plan.step as f64);
        longer += u32::from(plan.rho() == 1.0 && is_longer);
    }
    assert!(longer > 0);
}

/// A14: the theorems' other forms say the same as Table 4.3.
#[test]
fn a14_theorems_and_table_agree() {
    for n in 3..=9 {
        let cost = Line::Coordinator.cost(n, 1.5).unwrap();
        assert_eq!(cost.initialization + cost.consensus * 2.0, good_phases(f64::from(n), 1.5, 2.0));
    }
}

//! The runs of `steps.rs` against Theorems 5.1, 5.3 to 5.5, Lemmas 5.1, 5.3 and 5.4; and the document's experiments 5a
//! to 5c in ticks.

use std::time::Duration;

use fastrand::Rng;
use synod_model::rounds::Steps;

use super::{
    Worst, seeds,
    steps::{Detecting, Record, Setting, World},
};
use crate::rounds::{Algorithm, Bounds, LastVoting, OneThirdRule, Round, Synchronisation, rules::Rules};

/// A way to make rounds of many instances.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Algorithm 5.1.
    Timed,
    /// Algorithm 5.4.
    Swift,
    /// Algorithm 5.3.
    Suspecting,
}

impl Way {
    fn synchronisation(self, n: usize, delay_max: u64) -> Synchronisation {
        let bounds = Bounds::exact(n as u32, Duration::from_nanos(delay_max), Duration::from_nanos(1));
        match self {
            Way::Timed => bounds.repeated(),
            Way::Swift => bounds.swift(),
            Way::Suspecting => Synchronisation::Suspecting,
        }
    }
}

fn ticks(duration: Duration) -> f64 {
    duration.as_nanos() as f64
}

/// The theorems' numbers for a run.
fn steps(setting: &Setting) -> Steps {
    let (round, next, alive) = match setting.synchronisation {
        Synchronisation::Full { round } => (ticks(round), 0.0, 0.0),
        Synchronisation::Swift { round, next, alive } => (ticks(round), ticks(next), ticks(alive)),
        _ => (0.0, 0.0, 0.0),
    };
    Steps {
        replicas: setting.n as f64,
        delay_max: setting.delay_max as f64,
        delay: setting.delays.1 as f64,
        round,
        next,
        alive,
    }
}

/// A run of these replicas that is drawn, with a bad and a good period. `f` may be down in the good one.
pub(super) fn draw(seed: u64, way: Way, resilience: usize) -> Setting {
    let mut random = Rng::with_seed(seed);
    let n = random.usize(3..=7);
    let delay_max = [8, 30, 120][random.usize(..3)];
    let most = random.u64(1..=delay_max);
    let most = if random.bool() { delay_max } else { most };
    let delays = (if random.bool() { 1 } else { most }, most);
    let synchronisation = way.synchronisation(n, delay_max);
    let good_from = random.u64(1..20) * delay_max + random.u64(..50);
    let round = 3 * delay_max + 4 * n as u64;
    let slow = random.u64(1..=100);
    let mut given = Vec::new();
    for _ in 0..14 {
        let at = random.u64(..good_from + 22 * round);
        let apart = [1, 1, round, 4 * round][random.usize(..4)];
        given.push((0..n).map(|_| at + random.u64(..apart)).collect());
    }
    Setting {
        seed,
        n,
        down: random.usize(..=(n - 1) / resilience),
        delays,
        good_from,
        delay_max,
        loss: ([0.0, 0.3, 0.8, 1.0][random.usize(..4)], 0.0),
        pace: (random.u64(1..=slow), slow),
        given,
        goes_on: false,
        values: 3,
        until: good_from + 60 * round + 400,
        synchronisation,
        detector: (way == Way::Suspecting).then(|| Detecting {
            every: 4 * n as u64,
            after: 2 * delay_max + 20 * n as u64,
            again_after: None,
        }),
    }
}

/// What the runs of a way came to.
#[derive(Debug, Default)]
pub(super) struct Came {
    pub(super) runs: u64,
    /// From the start of an instance, or of the good period, to the last decision.
    pub(super) decided: Worst,
    /// The time of an instance in the good period.
    pub(super) instance: Worst,
    /// The least time of an instance, as a multiple of Δ.
    pub(super) least: Option<f64>,
    /// Instances that were judged by the tighter bound.
    pub(super) judged: u64,
}

impl std::fmt::Display for Came {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Came { runs, decided, instance, judged, .. } = self;
        write!(f, "{runs} runs; decided {decided}; instance {instance}; {judged} judged")?;
        self.least.map_or(Ok(()), |least| write!(f, "; the least {least:.2} Δ"))
    }
}

/// The bounds of a way: of a decision from the start of an instance or of the good period; of an instance.
struct Limits {
    decided: Option<f64>,
    instance: f64,
    /// Instances that start later than so long after the start of the good period are held to `instance`; in rounds
    /// that end by time-outs, those that start in a new round are.
    from: Option<f64>,
}

fn limits(way: Way, setting: &Setting) -> Limits {
    let steps = steps(setting);
    match way {
        Way::Timed => {
            Limits { decided: Some(steps.decided_after()), instance: steps.instance_at_most(), from: None }
        }
        Way::Swift => Limits {
            decided: Some(steps.swift_decided_after()),
            instance: steps.swift_at_most(),
            from: Some(steps.swift_from()),
        },
        // The detector is right after its time-out, and replicas that are behind have caught up some rounds later.
        Way::Suspecting => Limits {
            decided: None,
            instance: steps.suspecting_at_most(),
            from: Some(10.0 * (3.0 * steps.delay_max + 4.0 * steps.replicas)),
        },
    }
}

/// Checks a run of OneThirdRule.
fn judge(way: Way, setting: &Setting, record: &Record, came: &mut Came) -> Result<(), String> {
    let Limits { decided, instance: most, from } = limits(way, setting);
    let good_from = setting.good_from as f64;
    came.runs += 1;
    for (slot, instance) in &record.instances {
        if instance.outputs < setting.n - setting.down {
            return Err(format!("{slot}: {} have decided", instance.outputs));
        }
        let (taken, out) = (instance.taken as f64, instance.out as f64);
        if let Some(decided) = decided {
            let took = out - taken.max(good_from);
            came.decided.note(took, decided, setting.seed);
            if took > decided {
                return Err(format!("{slot}: decided after {took}, more than {decided}"));
            }
        }
        let is_judged = from.map_or(instance.taken_in > record.highest, |from| taken > good_from + from);
        if is_judged {
            came.judged += 1;
            came.instance.note(out - taken, most, setting.seed);
            if out - taken > most {
                return Err(format!("{slot}: took {}, more than {most}", out - taken));
            }
            let least = (out - taken) / setting.delay_max as f64;
            came.least = Some(came.least.map_or(least, |held: f64| held.min(least)));
        }
    }
    if way == Way::Timed {
        uniform(record, setting)?;
        let least = came.least.unwrap_or(f64::INFINITY);
        if least <= 1.0 {
            return Err(format!("an instance took {least} Δ, which Lemma 5.4 excludes"));
        }
    }
    Ok(())
}

/// Lemma 5.1: every new round is uniform.
fn uniform(record: &Record, setting: &Setting) -> Result<(), String> {
    let new = record.ended.range(Round(record.highest.0 + 1)..);
    for (round, ended) in new.filter(|(_, ended)| ended.len() == setting.n - setting.down) {
        if ended.iter().any(|(_, heard)| *heard != record.up) {
            return Err(format!("{round:?} is not uniform: {ended:?}, up {:?}", record.up));
        }
    }
    Ok(())
}

/// Plays so many seeds of OneThirdRule.
pub(super) fn attack(way: Way, rules: impl Fn() -> Rules, count: u64) -> Result<Came, String> {
    let mut came = Came::default();
    for seed in 0..count {
        let setting = draw(seed, way, 3);
        let played = World::new(setting.clone(), OneThirdRule::new, &rules).run();
        let judged = played.and_then(|record| judge(way, &setting, &record, &mut came));
        judged.map_err(|why| format!("{way:?}, {setting:?}: {why}"))?;
    }
    Ok(came)
}

const SEEDS: u64 = 400;

#[test]
fn b2_b8_timed_rounds_keep_theorem_5_1_and_lemmas_5_1_5_3_and_5_4() {
    let came = attack(Way::Timed, || Rules::SOUND, seeds(SEEDS)).unwrap();
    println!("timed: {came}");
    assert!(came.decided.part > 0.7 && came.instance.part > 0.7, "{came}");
}

#[test]
fn b5_b8_swift_rounds_keep_theorems_5_4_and_5_5() {
    let came = attack(Way::Swift, || Rules::SOUND, seeds(SEEDS)).unwrap();
    println!("swift: {came}");
    assert!(came.decided.part > 0.4 && came.instance.part > 0.7, "{came}");
}

#[test]
fn b3_b4_b8_rounds_over_a_failure_detector_keep_theorem_5_3() {
    let came = attack(Way::Suspecting, || Rules::SOUND, seeds(SEEDS)).unwrap();
    println!("suspecting: {came}");
    assert!(came.instance.part > 0.7, "{came}");
}

/// B7: LastVoting in swift rounds, of three and of four rounds a phase, with fewer than half down. An instance that
/// begins in the middle of a phase waits for the next one; a round takes a delay, its letters, and three steps.
#[test]
fn b7_last_voting_is_swift_too() {
    fn play<A: Algorithm<Value = u64>>(algorithm: impl Fn() -> A, rounds: f64) -> Worst {
        let mut worst = Worst::default();
        for seed in 0..seeds(SEEDS) {
            let setting = draw(seed, Way::Swift, 2);
            let record = World::new(setting.clone(), &algorithm, || Rules::SOUND).run().unwrap();
            let steps = steps(&setting);
            for (slot, instance) in &record.instances {
                assert_eq!(instance.outputs, setting.n - setting.down, "{slot} of {setting:?}");
                if instance.taken as f64 > setting.good_from as f64 + steps.swift_from() {
                    let most = 2.0 * rounds * (steps.delay + steps.replicas + 3.0);
                    let took = (instance.out - instance.taken) as f64;
                    worst.note(took, most, seed);
                    assert!(took <= most, "{took} of {most}: {setting:?}");
                }
            }
        }
        worst
    }
    println!("LastVoting, three rounds: {}", play(LastVoting::three, 3.0));
    println!("LastVoting, four rounds: {}", play(LastVoting::four, 4.0));
}

/// Ticks of a millisecond in experiments with short delays, and with long ones.
const SHORT: u64 = 50;
const LONG: u64 = 10;

/// An experiment of section 5.6: four replicas that start apart, one instance after the other, in which all propose the
/// same. Returns how long an instance takes on average until it is decided everywhere, which may be forever.
fn mean(way: Way, delay: u64, timeout: u64, beats: (u64, u64, u64), loss: f64, until: u64) -> f64 {
    let to = Duration::from_nanos;
    let synchronisation = match way {
        Way::Timed => Synchronisation::Full { round: to(timeout) },
        // The second time-out is at its bound, and never above the first.
        Way::Swift => {
            let next = to((delay + 3).min(timeout));
            Synchronisation::Swift { round: to(timeout), next, alive: to(2 * timeout) }
        }
        Way::Suspecting => Synchronisation::Suspecting,
    };
    let (every, after, again) = beats;
    let is_lossy = way != Way::Suspecting;
    let setting = Setting {
        seed: 1,
        n: 4,
        down: 0,
        delays: (delay, delay),
        good_from: 20 * timeout,
        delay_max: delay,
        loss: (if is_lossy { 1.0 } else { loss }, loss),
        pace: (20, 100),
        given: vec![vec![1, timeout, 2 * timeout, 3 * timeout]],
        goes_on: true,
        values: 1,
        until,
        synchronisation,
        detector: (way == Way::Suspecting).then_some(Detecting { every, after, again_after: Some(again) }),
    };
    let good_for = (setting.until - setting.good_from) as f64;
    let record = World::new(setting, OneThirdRule::new, || Rules::SOUND).run().unwrap();
    good_for / record.instances.values().filter(|it| it.outputs == 4).count() as f64
}

/// B9, experiments 5a and 5d: δ of 0.3 ms, the time-out from 2 to 20 ms. Swift rounds do not notice it, timed ones grow
/// with it, and are worse at their best.
#[test]
fn b9_5a_swift_rounds_are_flat_in_the_time_out() {
    let run = |way, timeout: u64| {
        let ticks = timeout * SHORT;
        mean(way, 15, ticks, (ticks, 2 * ticks, ticks), 0.0, 80 * ticks + 20_000) / SHORT as f64
    };
    println!("5a, ms: TO, timed, swift, suspecting");
    let rows: Vec<[f64; 3]> = [2, 5, 10, 20]
        .map(|timeout| {
            let row = [Way::Timed, Way::Swift, Way::Suspecting].map(|way| run(way, timeout));
            println!("{timeout}, {:.2}, {:.2}, {:.2}", row[0], row[1], row[2]);
            row
        })
        .to_vec();
    let spread = |way: usize| {
        let of = |it: &[f64; 3]| it[way];
        rows.iter().map(of).fold(0.0, f64::max) / rows.iter().map(of).fold(f64::INFINITY, f64::min)
    };
    assert!(spread(1) < 1.1, "swift is flat");
    assert!(spread(0) > 5.0, "timed grows with the time-out");
    assert!(rows.iter().all(|row| row[0] > row[1] && row[2] > row[1]), "swift is the best");
}

/// B9, experiment 5b: δ of 40.3 ms. Timed rounds need twice the delay. Swift ones need little more than one, and are
/// flat.
#[test]
fn b9_5b_swift_rounds_synchronise_with_little_more_than_one_delay() {
    let run = |way, timeout: u64| {
        let ticks = timeout * LONG;
        mean(way, 403, ticks, (ticks / 2, ticks, ticks), 0.0, 200_000) / LONG as f64
    };
    println!("5b, ms: TO, timed, swift, suspecting");
    let mut swift = Vec::new();
    for timeout in [45, 60, 90, 120, 200] {
        let row = [Way::Timed, Way::Swift, Way::Suspecting].map(|way| run(way, timeout));
        println!("{timeout}, {:.1}, {:.1}, {:.1}", row[0], row[1], row[2]);
        swift.push(row[1]);
        // Below two delays timed rounds hardly ever decide, from there on they take their time-out.
        let bound = if timeout < 80 { 5.0 * row[1] } else { timeout as f64 };
        assert!(row[0] > 0.95 * bound, "timed: {row:?}");
    }
    let (least, most) =
        (swift.iter().copied().fold(f64::INFINITY, f64::min), swift.iter().copied().fold(0.0, f64::max));
    assert!(most < 1.1 * least && most < 3.0 * 40.3 + 5.0, "{swift:?}");
}

/// B9, experiment 5c: loss up to 40 %. Rounds lose a few milliseconds, and the failure detector's algorithm, which
/// waits for every retransmission, many.
#[test]
fn b9_5c_rounds_bear_loss_that_a_failure_detector_does_not() {
    let run = |way, loss| {
        let ms = |ms: u64| ms * SHORT;
        mean(way, 15, ms(10), (ms(10), ms(25), ms(25)), loss, 400_000) / SHORT as f64
    };
    println!("5c, ms: loss, timed, swift, suspecting");
    let mut rows = Vec::new();
    for percent in [0, 10, 20, 30, 40] {
        let row = [Way::Timed, Way::Swift, Way::Suspecting].map(|way| run(way, f64::from(percent) / 100.0));
        println!("{percent} %, {:.1}, {:.1}, {:.1}", row[0], row[1], row[2]);
        rows.push(row);
    }
    let grows = |way: usize| rows[4][way] - rows[0][way];
    assert!(rows.iter().all(|row| row[1] < row[0] && row[1] <= row[2]), "swift is the best: {rows:?}");
    assert!(grows(1) < 10.0 && grows(0) < 10.0, "less than a time-out: {rows:?}");
    assert!(grows(2) > 3.0 * grows(1), "the detector degrades: {rows:?}");
}

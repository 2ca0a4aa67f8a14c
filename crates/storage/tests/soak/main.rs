//! Runs the files of a replica through many lives on a disk that fails, as a seed decides, and compares them
//! with a model of what must survive. The code under test is the real one, from the data directory down.
//!
//! `SYNOD_STORAGE_SEEDS=0..20000 cargo test --release -p synod-storage --test soak` runs more seeds.
//!
//! | file | what |
//! | --- | --- |
//! | `model.rs` | what must survive |
//! | `lives.rs` | lives of a replica, and the comparison |
//! | `harm.rs` | a life at whose end files are harmed |

mod harm;
mod lives;
mod model;

use std::collections::BTreeSet;

use harm::Harm;
use lives::Run;

fn run(seed: u64, harm: Harm, covered: &mut BTreeSet<&'static str>) {
    let mut run = Run::new(seed);
    // The parents of the data directory do not exist either.
    let lives = run.rng.u32(1..6);
    run.lives(lives);
    run.harm(harm);
    covered.append(&mut run.covered);
}

fn seeds(harm: Harm, default: u64, situations: &[&'static str]) {
    seeds_of(&format!("{harm:?}"), |seed, covered| run(seed, harm, covered), default, situations);
}

/// Runs the seeds; a failure names its seed. Together the runs must reach all of these situations.
fn seeds_of(
    what: &str,
    run: impl Fn(u64, &mut BTreeSet<&'static str>),
    default: u64,
    situations: &[&'static str],
) {
    let asked_for = std::env::var("SYNOD_STORAGE_SEEDS").ok();
    let range = match &asked_for {
        Some(text) => {
            let (from, to) = text.split_once("..").expect("SYNOD_STORAGE_SEEDS=A..B");
            from.parse().unwrap()..to.parse().unwrap()
        }
        None => 0..default,
    };
    let mut covered = BTreeSet::new();
    for seed in range {
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(seed, &mut covered)));
        if let Err(panic) = result {
            eprintln!("{what}, SYNOD_STORAGE_SEEDS={seed}..{}", seed + 1);
            std::panic::resume_unwind(panic);
        }
    }
    let missing: Vec<_> = situations.iter().filter(|situation| !covered.contains(*situation)).collect();
    assert!(asked_for.is_some() || missing.is_empty(), "never met: {missing:?}");
}

#[test]
fn nothing_promised_is_lost_on_a_disk_that_fails_and_says_so() {
    seeds(
        Harm::None,
        300,
        &[
            "a disk was full",
            "a second process was refused",
            "a log was closed",
            "a log was trimmed",
            "a snapshot was written",
            "a start failed",
            "a torn tail was cut",
            "an idle log was marked",
            "an operation failed",
            "power failed",
        ],
    );
}

#[test]
fn a_log_that_waits_for_no_fsync_may_lose_its_end_and_is_never_damaged() {
    let lives = |seed, covered: &mut BTreeSet<&'static str>| {
        let mut run = Run::new(seed);
        let lives = run.rng.u32(2..10);
        run.lives_without_fsync(lives);
        covered.append(&mut run.covered);
    };
    seeds_of(
        "async",
        lives,
        300,
        &[
            "a life was in memory",
            "a log was closed",
            "a log was trimmed",
            "a loss was found",
            "a power failure left what was waited for alone",
            "power failed",
        ],
    );
}

#[test]
fn a_changed_bit_is_never_taken_for_what_was_written() {
    seeds(
        Harm::Flip,
        300,
        &[
            "damage was found",
            "a start was refused",
            "a last commit that rotted was cut",
            "a repair was interrupted",
        ],
    );
}

#[test]
fn a_sector_that_cannot_be_read_is_damage() {
    seeds(Harm::Spoil, 200, &["damage was found", "a start was refused"]);
}

#[test]
fn a_write_that_got_lost_is_found() {
    seeds(Harm::LostWrite, 300, &["damage was found"]);
}

#[test]
fn a_write_that_went_elsewhere_is_found() {
    seeds(Harm::MisdirectedWrite, 300, &["damage was found"]);
}

#[test]
fn a_log_that_lost_a_segment_is_damaged() {
    seeds(Harm::Segment, 200, &["damage was found"]);
}

#[test]
fn a_data_directory_of_an_earlier_day_is_whole() {
    seeds(Harm::OldDir, 100, &["a copy was found out"]);
}

#[test]
fn a_log_that_was_emptied_is_missed() {
    seeds(Harm::EmptyLog, 100, &["a loss was found"]);
}

#[test]
fn a_directory_that_was_emptied_is_another_replica_s() {
    seeds(Harm::Wipe, 100, &["another one's log was refused"]);
}

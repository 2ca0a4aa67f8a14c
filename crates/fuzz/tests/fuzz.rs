//! The corpus of each target, and a fixed time of mutated inputs for each; and that the driver finds what is planted.

use std::{collections::HashSet, env, time::Duration};

use synod_fuzz::{Budget, Corpus, Counting, Memory, Target, Verdict, run, targets};

#[global_allocator]
static COUNTING: Counting = Counting;

/// A number in the environment.
fn number(name: &str, default: u64) -> u64 {
    env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}

/// Runs the targets whose names begin so: their corpus, and then a second of inputs that are made of it.
/// `SYNOD_FUZZ_MILLIS` and `SYNOD_FUZZ_SEED` change the time for each target and the seed.
fn fuzz(prefix: &str) {
    let time = Duration::from_millis(number("SYNOD_FUZZ_MILLIS", 1000));
    let seed = number("SYNOD_FUZZ_SEED", 1);
    let chosen: Vec<Target> =
        targets::all().into_iter().filter(|target| target.name.starts_with(prefix)).collect();
    assert!(!chosen.is_empty());
    for target in chosen {
        let corpus = Corpus::read(&target).unwrap();
        match run(&target, &corpus, seed, Budget { runs: u64::MAX, time }) {
            Ok(report) => println!("{:15} {report}", target.name),
            Err(failure) => panic!("{}, seed {seed}: {failure}", target.name),
        }
    }
}

#[test]
fn what_comes_from_peers() {
    fuzz("peer-");
}

#[test]
fn what_comes_from_clients() {
    fuzz("client-");
}

#[test]
fn what_comes_out_of_the_log() {
    fuzz("log-");
}

#[test]
fn what_reaches_the_store() {
    fuzz("kv-");
}

#[test]
fn what_lies_in_a_data_directory() {
    fuzz("file-");
}

#[test]
fn every_input_of_an_encoder_is_in_the_tree_and_names_are_unique() {
    let mut names = HashSet::new();
    for target in targets::all() {
        assert!(names.insert(target.name), "{}", target.name);
        let corpus = Corpus::read(&target).unwrap();
        for (name, bytes) in (target.seeds)() {
            let found = corpus.inputs.iter().find(|(found, _)| *found == name);
            let found =
                found.unwrap_or_else(|| panic!("{} {name} is missing: run `fuzz corpus`", target.name));
            assert!(found.1 == bytes, "{} {name} is of another version: run `fuzz corpus`", target.name);
        }
    }
}

/// A parser of `length | text` that does not compare the length with what is there, if the text begins in one way.
fn planted(input: &[u8]) -> Verdict {
    let Some((&length, text)) = input.split_first() else { return Verdict::Refused("empty".into()) };
    if !text.starts_with(b"SY") {
        return Verdict::Refused("no magic number".into());
    }
    Verdict::Accepted(format!("{}", text[..usize::from(length)].len() > 4))
}

fn hoarding(input: &[u8]) -> Verdict {
    let announced = input.first().copied().unwrap_or_default();
    let kept: Vec<u8> = Vec::with_capacity(usize::from(announced) << 12);
    Verdict::Accepted(format!("{}", kept.is_empty()))
}

fn deaf(input: &[u8]) -> Verdict {
    Verdict::Refused(format!("{} bytes", input.len()))
}

fn target(run: fn(&[u8]) -> Verdict) -> Target {
    let seeds = || vec![("seed".to_owned(), b"\x04SYNO".to_vec())];
    Target {
        name: "planted",
        about: "",
        run,
        seeds,
        memory: Memory { base: 64 << 10, times: 16 },
        words: &[],
    }
}

fn found(run_it: fn(&[u8]) -> Verdict, runs: u64) -> Result<(), synod_fuzz::Failure> {
    let target = target(run_it);
    let corpus = Corpus { inputs: (target.seeds)() };
    run(&target, &corpus, 1, Budget { runs, time: Duration::MAX }).map(|report| println!("{report}"))
}

#[test]
fn a_planted_panic_is_found_and_made_small() {
    let failure = found(planted, 100_000).unwrap_err();
    assert!(failure.why.contains("out of range"), "{failure}");
    assert!(failure.input.len() <= 4 && failure.input[1..].starts_with(b"SY"), "{failure}");
    let again = found(planted, 100_000).unwrap_err();
    assert_eq!(failure.input, again.input, "the same seed gives the same inputs");
}

#[test]
fn memory_beyond_the_limit_is_found() {
    let failure = found(hoarding, 100_000).unwrap_err();
    assert!(failure.why.contains("bytes of memory"), "{failure}");
}

#[test]
fn a_target_that_accepts_nothing_fails() {
    let failure = found(deaf, 1000).unwrap_err();
    assert!(failure.why.contains("tests nothing"), "{failure}");
}

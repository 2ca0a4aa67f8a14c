//! `synod lab run likeness`: sends the same random requests to Synod and to etcd, whose answers must be the same.
//!
//! A sequence is drawn from a seed (`draw`) and played on new servers, three of Synod and one of etcd. Every
//! answer is compared as a whole, with its code and message; known differences are asserted (`differences`).
//! At the end of a sequence both get a request that ends etcd and that Synod must answer (`lethal`).

mod differences;
mod draw;
mod lethal;
mod pair;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use clap::Args as ClapArgs;
use tokio::time::sleep;

use self::{
    differences::{Answer, Difference, KNOWN, Verdict, judge},
    draw::{Draw, Request},
    pair::{Pair, Trouble},
};
use crate::attacks::cluster::System;

/// The arguments of `synod lab run likeness`.
#[derive(Clone, Debug, ClapArgs)]
pub struct Args {
    /// The program `etcd` to compare with.
    #[arg(long, value_name = "FILE")]
    etcd: PathBuf,
    /// How long new sequences are begun. At least one is played.
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    seconds: u64,
    /// The seed of the first sequence; the others follow it.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Requests in a sequence.
    #[arg(long, default_value_t = 2000)]
    requests: usize,
    /// Print every request, with its answer.
    #[arg(long)]
    trace: bool,
    /// Write the report to this file, too, as Markdown.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// The program `synod` [default: this one, or the one built beside it].
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
}

/// How many earlier requests are printed with a difference.
const BEFORE: usize = 12;
/// A run that compared fewer requests has shown nothing.
const LEAST: u64 = 200;
/// The most characters of a request or answer that are printed.
const PRINTED_MAX: usize = 4000;

/// Counts of what was compared.
#[derive(Debug, Default)]
struct Tally {
    version: String,
    sequences: u64,
    /// Sequences that ended early because a system did not answer, each with the reason.
    broken_off: Vec<String>,
    /// For each kind of request: how many were sent, and how many of them were refused.
    kinds: BTreeMap<&'static str, [u64; 2]>,
    /// How often Synod refused with each message.
    words: BTreeMap<String, u64>,
    /// How often answers differed in a known way.
    known: BTreeMap<Difference, u64>,
    /// How often each of these requests ended etcd while Synod answered it.
    lethal: BTreeMap<&'static str, u64>,
}

impl Tally {
    fn compared(&self) -> u64 {
        self.kinds.values().map(|[all, _]| all).sum()
    }

    fn count(&mut self, request: &Request, answer: &Answer) {
        let [all, refused] = self.kinds.entry(request.kind()).or_default();
        *all += 1;
        if let Answer::Refused(code, words) = answer {
            *refused += 1;
            // Messages that differ only in their numbers are counted together.
            let words: String = words.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
            *self.words.entry(format!("{code:?}: {words}")).or_default() += 1;
        }
    }
}

/// Compares and prints the report. The exit code is 0 if no answer differed in an unknown way and enough were
/// compared, 1 otherwise.
pub(crate) fn main(args: &Args, interrupted: &AtomicBool, own_program: &Path) -> ExitCode {
    let program = args.program.clone().unwrap_or_else(|| own_program.to_owned());
    match run(args, interrupted, program) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Plays sequences. Returns whether all answers were alike and enough were compared.
fn run(args: &Args, interrupted: &AtomicBool, program: PathBuf) -> Result<bool, String> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.map_err(|error| format!("threads: {error}"))?;
    let systems = [System::Synod(program), System::Etcd(args.etcd.clone())];
    let mut tally = Tally::default();
    let began = Instant::now();
    let mut differs = None;
    for seed in args.seed.. {
        let stopped = async {
            while !interrupted.load(Ordering::Relaxed) {
                sleep(Duration::from_millis(50)).await;
            }
        };
        let played = runtime.block_on(async {
            tokio::select! {
                played = play(args, seed, &systems, &mut tally) => Ok(played),
                () = stopped => Err("interrupted"),
            }
        })?;
        tally.sequences += 1;
        match played {
            Ok(()) => {}
            Err(Trouble::Silence(why)) => {
                eprintln!("seed {seed} was broken off: {why}");
                tally.broken_off.push(format!("seed {seed}: {why}"));
            }
            Err(Trouble::Differs(what)) => {
                differs = Some(what);
                break;
            }
        }
        if began.elapsed() >= Duration::from_secs(args.seconds) {
            break;
        }
    }
    let report = report(args, &tally, began.elapsed());
    println!("{report}");
    if let Some(path) = &args.out {
        fs::write(path, &report).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    if let Some(what) = differs {
        println!("{what}");
        return Ok(false);
    }
    match tally.compared() {
        LEAST.. => println!("no answer differed in a way that is not known"),
        few => println!("only {few} answers were compared, which shows nothing"),
    }
    Ok(tally.compared() >= LEAST)
}

/// Plays one sequence.
async fn play(args: &Args, seed: u64, systems: &[System; 2], tally: &mut Tally) -> Result<(), Trouble> {
    let mut pair = Pair::start(systems).await?;
    tally.version.clone_from(&pair.version);
    let mut draw = Draw::new(seed, pair.revision, pair.is_new);
    let mut said: Vec<String> = Vec::new();
    let mut number = 0;
    let mut next = draw.beginning();
    while number < args.requests {
        // Reads are outstanding together and do not affect each other; a request that changes something is sent alone.
        let reads = next.iter().take_while(|request| request.is_read()).count();
        let now: Vec<Request> = next.drain(..reads.max(1).min(next.len())).collect();
        if now.is_empty() {
            next = draw.burst();
            continue;
        }
        let answers = pair.ask(&now).await?;
        for (request, [synod, etcd]) in now.into_iter().zip(answers) {
            number += 1;
            let line = format!("{number}. {}", shortened(&format!("{request:?}")));
            if args.trace {
                println!("{line}\n   {}", shortened(&format!("{synod:?}")));
            }
            said.push(line);
            match judge(&request, synod.clone(), etcd.clone(), pair.is_new) {
                Verdict::Same => {}
                Verdict::Known(met) => {
                    met.into_iter().for_each(|it| *tally.known.entry(it).or_default() += 1)
                }
                Verdict::Differ => {
                    let what = differing(args, seed, number, &said, &request, &[synod, etcd]);
                    return Err(Trouble::Differs(what));
                }
            }
            tally.count(&request, &synod);
            pair.note(&request, &synod);
        }
        (draw.revision, draw.compacted) = (pair.revision, pair.compacted);
    }
    for request in draw.ending() {
        lethal::alike(&mut pair, &request).await?;
    }
    let ended = lethal::play(&mut pair, seed).await?;
    *tally.lethal.entry(ended).or_default() += 1;
    Ok(())
}

/// Describes a difference, the requests before it, and how to reproduce it.
fn differing(
    args: &Args,
    seed: u64,
    number: usize,
    said: &[String],
    request: &Request,
    answers: &[Answer; 2],
) -> String {
    let [synod, etcd] = answers.each_ref().map(|answer| shortened(&format!("{answer:#?}")));
    let before = said[said.len().saturating_sub(BEFORE + 1)..said.len() - 1].join("\n");
    format!(
        "seed {seed}: the answers to request {number} differ.\n\nthe requests before it:\n{before}\n\nthe request:\n{}\n\n\
         synod: {synod}\n\netcd: {etcd}\n\n{}",
        shortened(&format!("{request:#?}")),
        again(args, seed, number)
    )
}

/// The command that plays a sequence again, through this request.
fn again(args: &Args, seed: u64, number: usize) -> String {
    format!(
        "again: synod lab run likeness --etcd {} --seconds 0 --seed {seed} --requests {number} --trace",
        args.etcd.display()
    )
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(PRINTED_MAX) {
        Some((end, _)) => format!("{} ... ({} characters)", &text[..end], text.len()),
        None => text.to_owned(),
    }
}

fn report(args: &Args, tally: &Tally, took: Duration) -> String {
    let Tally { version, sequences, broken_off, kinds, words, known, lethal } = tally;
    let last = (args.seed + sequences).saturating_sub(1);
    let mut text = format!(
        "# Synod beside etcd {version}\n\nSeeds {} to {last}, {:.0} s, {} requests compared.\n\n\
         | request | compared | refused |\n| --- | --- | --- |\n",
        args.seed,
        took.as_secs_f64(),
        tally.compared()
    );
    for (kind, [all, refused]) in kinds {
        text += &format!("| {kind} | {all} | {refused} |\n");
    }
    text += "\n| refused by Synod with | times |\n| --- | --- |\n";
    for (words, times) in words {
        text += &format!("| {words} | {times} |\n");
    }
    text += "\n| known difference | times |\n| --- | --- |\n";
    for (difference, about) in KNOWN {
        text += &format!("| {about} | {} |\n", known.get(&difference).unwrap_or(&0));
    }
    for (what, times) in lethal {
        text += &format!("| {what}: Synod answers, etcd ends | {times} |\n");
    }
    for why in broken_off {
        text += &format!("\nBroken off: {why}\n");
    }
    text
}

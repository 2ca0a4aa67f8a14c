//! A run: inputs are made and tried until the budget is used up or one of them fails.

use std::{
    any::Any,
    backtrace::Backtrace,
    cell::{Cell, RefCell},
    collections::HashSet,
    fmt,
    panic::{self, AssertUnwindSafe},
    sync::{Mutex, MutexGuard, Once, PoisonError},
    thread,
    time::{Duration, Instant},
};

use fastrand::Rng;
use rustix::time::{ClockId, clock_gettime};

use crate::{
    Corpus, Target, Verdict,
    memory::{self, Used},
    mutate::mutate,
};

/// How much a run may do.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// The most inputs.
    pub runs: u64,
    /// The most time.
    pub time: Duration,
}

/// What a run did.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// The inputs that the target accepted.
    pub accepted: u64,
    /// The inputs that the target refused.
    pub refused: u64,
    /// The different answers to accepted inputs.
    pub kinds: usize,
    /// The different reasons of refusals.
    pub reasons: usize,
    /// The inputs in the corpus at the end, with those that joined it.
    pub corpus: usize,
    /// The longest time that an input took, of this thread alone.
    pub slowest: Duration,
    /// The most memory that an input took, in bytes.
    pub memory: usize,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { accepted, refused, kinds, reasons, corpus, slowest, memory } = self;
        write!(
            f,
            "{accepted} accepted ({kinds} kinds), {refused} refused ({reasons} reasons), {corpus} in the corpus, slowest \
             {slowest:.1?}, most memory {memory} bytes"
        )
    }
}

/// An input that did what no input may do.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The input, made as small as the driver could make it.
    pub input: Vec<u8>,
    /// What it did.
    pub why: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} bytes: {}\n{:?}",
            self.input.len(),
            self.why,
            bytes::Bytes::copy_from_slice(&self.input)
        )
    }
}

/// The most time that an input may take. It is far more than any takes, and what is quadratic takes more.
const TIME_MAX: Duration = Duration::from_secs(1);

/// How many smaller inputs are tried when an input has failed, and for how long: an input may have failed since it
/// takes long.
const SHRINKING_RUNS: usize = 5_000;
const SHRINKING_TIME: Duration = Duration::from_secs(20);

thread_local! {
    /// Whether a target runs on this thread, whose panics are caught.
    static IS_CAUGHT: Cell<bool> = const { Cell::new(false) };
    /// The panic of that target, or of something in it that caught the panic itself.
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// The panic of a thread that a target started: one of a runtime, which catches the panic and goes on.
static PANIC_ELSEWHERE: Mutex<Option<String>> = Mutex::new(None);

/// The beginnings of the names of such threads.
const THREADS_OF_TARGETS: [&str; 2] = ["tokio", "executor"];

/// Runs a target on its corpus, and then on inputs that are made of it. The same seed and budget of runs give the same
/// inputs.
///
/// # Errors
/// An input failed. A target that accepts nothing fails too: it would test nothing.
pub fn run(target: &Target, corpus: &Corpus, seed: u64, budget: Budget) -> Result<Report, Failure> {
    let mut rng = Rng::with_seed(seed);
    let mut seen = HashSet::new();
    let mut report = Report::default();
    let mut inputs: Vec<Vec<u8>> = Vec::new();
    let began = Instant::now();
    let of_corpus = corpus.inputs.iter().map(|(_, input)| input.clone()).map(Some);
    for made in of_corpus.chain(std::iter::repeat(None)) {
        let is_of_corpus = made.is_some();
        let runs = report.accepted + report.refused;
        if !is_of_corpus && (runs >= budget.runs || began.elapsed() >= budget.time) {
            break;
        }
        let input = made.unwrap_or_else(|| {
            let mut input = match inputs.len() {
                0 => Vec::new(),
                // The newest are taken more often.
                many => inputs[rng.usize(..many).max(rng.usize(..many))].clone(),
            };
            mutate(&mut input, &inputs, target.words, &mut rng);
            input
        });
        let (verdict, used, time) = tried(target, &input).map_err(|why| shrunk(target, &input, why))?;
        report.slowest = report.slowest.max(time);
        report.memory = report.memory.max(usize::try_from(used.most).unwrap_or(0));
        let (is_accepted, answer) = match verdict {
            Verdict::Accepted(kind) => (true, kind),
            Verdict::Refused(reason) => (false, without_details(&reason)),
        };
        let is_new = seen.insert((is_accepted, answer));
        let (count, answers) = match is_accepted {
            true => (&mut report.accepted, &mut report.kinds),
            false => (&mut report.refused, &mut report.reasons),
        };
        *count += 1;
        *answers += usize::from(is_new);
        if is_of_corpus || is_new {
            inputs.push(input);
        }
    }
    report.corpus = inputs.len();
    if report.accepted == 0 {
        let why = format!("no input is accepted, so the target tests nothing: {report}");
        return Err(Failure { input: Vec::new(), why });
    }
    Ok(report)
}

/// Runs a target on one input.
///
/// # Errors
/// It fails.
pub fn once(target: &Target, input: &[u8]) -> Result<Verdict, Failure> {
    let failure = |why| Failure { input: input.to_vec(), why };
    tried(target, input).map(|(verdict, ..)| verdict).map_err(failure)
}

fn tried(target: &Target, input: &[u8]) -> Result<(Verdict, Used, Duration), String> {
    catch_panics_of_targets();
    let began = cpu_time();
    IS_CAUGHT.set(true);
    memory::reset();
    let outcome = panic::catch_unwind(AssertUnwindSafe(|| (target.run)(input)));
    let used = memory::used();
    IS_CAUGHT.set(false);
    let time = cpu_time().saturating_sub(began);
    let panicked = PANIC.take().or_else(|| elsewhere().take());
    let verdict = outcome.map_err(|panic| {
        let text = panicked.clone().unwrap_or_else(|| text_of(&*panic).to_owned());
        format!("panicked: {text}")
    })?;
    if let Some(text) = panicked {
        return Err(format!("panicked, which was caught before it came here: {text}"));
    }
    let limit = target.memory.base.saturating_add(target.memory.times * input.len());
    if usize::try_from(used.most).is_ok_and(|most| most > limit) {
        return Err(format!("took {} bytes of memory; its limit is {limit}", used.most));
    }
    if used.allocations > limit {
        return Err(format!("made {} allocations; its limit is {limit}", used.allocations));
    }
    if time > TIME_MAX {
        return Err(format!("took {time:?}; the limit is {TIME_MAX:?}"));
    }
    Ok((verdict, used, time))
}

/// The time for which this thread has had a processor.
fn cpu_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec.cast_unsigned(), u32::try_from(now.tv_nsec).expect("it is below a second"))
}

/// Panics of targets are kept, and not printed.
fn catch_panics_of_targets() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            let text = || [info.to_string(), Backtrace::capture().to_string()].join("\n");
            let current = thread::current();
            let name = current.name().unwrap_or_default();
            if IS_CAUGHT.get() {
                PANIC.set(Some(text()));
            } else if THREADS_OF_TARGETS.iter().any(|of_targets| name.starts_with(of_targets)) {
                *elsewhere() = Some(text());
            } else {
                usual(info);
            }
        }));
    });
}

fn elsewhere() -> MutexGuard<'static, Option<String>> {
    PANIC_ELSEWHERE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn text_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a text")
}

/// A smaller input that fails as well: pieces are left out as long as it still fails.
fn shrunk(target: &Target, input: &[u8], why: String) -> Failure {
    let mut smallest = Failure { input: input.to_vec(), why };
    let (mut runs, began) = (0, Instant::now());
    let mut piece = input.len() / 2;
    while piece > 0 {
        let mut at = 0;
        while at < smallest.input.len() && runs < SHRINKING_RUNS && began.elapsed() < SHRINKING_TIME {
            runs += 1;
            let mut smaller = smallest.input.clone();
            smaller.drain(at..(at + piece).min(smaller.len()));
            match tried(target, &smaller) {
                Err(why) => smallest = Failure { input: smaller, why },
                Ok(_) => at += piece,
            }
        }
        piece /= 2;
    }
    smallest
}

/// A reason without what it tells of the input, which is different in each: words with digits, what stands in quotation
/// marks, and a list with what follows it.
fn without_details(reason: &str) -> String {
    let words = reason.split('"').step_by(2).flat_map(str::split_whitespace);
    let words = words
        .take_while(|word| !word.starts_with('['))
        .filter(|word| !word.contains(|letter: char| letter.is_ascii_digit()))
        .take(20);
    words.collect::<Vec<_>>().join(" ")
}

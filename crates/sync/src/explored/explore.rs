//! Running a test in many orders.

use std::{cell::Cell, sync::atomic::Ordering, time::Duration};

use shuttle::{
    Config, FailurePersistence, MaxSteps, Runner,
    scheduler::{Schedule, Scheduler, Task, TaskId},
};

use crate::{
    Planted,
    explored::{net, time},
};

thread_local! {
    static PLANTED: Cell<Option<Planted>> = const { Cell::new(None) };
}

/// Whether the running test has planted this error.
#[must_use]
pub fn planted(error: Planted) -> bool {
    PLANTED.get() == Some(error)
}

/// Runs `test` once for each seed, on this thread, with all threads that it starts. The test's assertions
/// must hold in every order. An order in which all threads wait and none can go on fails the test.
///
/// # Panics
/// If the test fails for a seed; the seed is printed before.
pub fn run(seeds: std::ops::Range<u64>, error: Option<Planted>, test: impl Fn(u64) + Send + Sync + 'static) {
    PLANTED.set(error);
    let mut config = Config::new();
    config.stack_size = 512 << 10;
    config.failure_persistence = FailurePersistence::None;
    config.max_steps = MaxSteps::FailAfter(20_000_000);
    config.silence_warnings = true;
    let order = Order::new(seeds);
    Runner::new(order, config).run(move || {
        time::reset();
        net::reset();
        test(SEED.get());
    });
    PLANTED.set(None);
}

thread_local! {
    static SEED: Cell<u64> = const { Cell::new(0) };
}

/// Whether, with this seed, time passes only while all threads wait, so that a time-out never overtakes work
/// that could be done. With other seeds timers may run out at any moment.
#[must_use]
pub const fn is_strict(seed: u64) -> bool {
    seed.is_multiple_of(2)
}

/// Draws a number below `bound` from the seed.
#[must_use]
pub fn draw(bound: u64) -> u64 {
    shuttle::rand::RngCore::next_u64(&mut shuttle::rand::thread_rng()) % bound
}

/// May let another thread run. Call it before an action that other threads can see and that is not an
/// operation of this crate.
pub fn switch() {
    shuttle::sync::atomic::AtomicBool::new(false).load(Ordering::SeqCst);
}

/// Decides which thread runs next.
///
/// The first thread (the test's own) yields when it wants time to pass. It runs again when all others wait,
/// or, rarely, earlier. The seed picks one of two ways to choose among the others: each equally likely at
/// each step, or by priorities that change now and then, so that one thread gets far ahead of another (PCT,
/// Burckhardt et al. 2010).
#[derive(Debug)]
struct Order {
    seeds: std::ops::Range<u64>,
    seed: u64,
    random: Random,
    by_priority: bool,
    priorities: Vec<u64>,
    /// Whether the first thread has yielded, which means that it wants time to pass.
    first_waits: bool,
    over: bool,
}

/// With a seed that is not strict, time passes in one of this many steps although other threads could run.
const EARLY: u64 = 1024;
/// How often the first thread may look while no thread waits for time. After that nothing will ever happen
/// again.
const IDLE_MAX: u32 = 100;
/// How many steps a thread keeps its priority, on average.
const PRIORITY_LASTS: u64 = 48;

impl Order {
    fn new(seeds: std::ops::Range<u64>) -> Order {
        Order {
            seeds,
            seed: 0,
            random: Random(0),
            by_priority: false,
            priorities: Vec::new(),
            first_waits: false,
            over: true,
        }
    }

    fn priority(&mut self, task: usize) -> u64 {
        while self.priorities.len() <= task {
            let drawn = self.random.next();
            self.priorities.push(drawn);
        }
        self.priorities[task]
    }
}

impl Drop for Order {
    fn drop(&mut self) {
        if !self.over && std::thread::panicking() {
            eprintln!("failed with seed {}", self.seed);
        }
    }
}

impl Scheduler for Order {
    fn new_execution(&mut self) -> Option<Schedule> {
        let seed = self.seeds.next();
        self.over = seed.is_none();
        self.seed = seed?;
        SEED.set(self.seed);
        self.random = Random(self.seed);
        self.by_priority = self.random.below(2) == 0;
        self.priorities.clear();
        self.first_waits = false;
        Some(Schedule::new(self.seed))
    }

    fn next_task(
        &mut self,
        runnable: &[&Task],
        current: Option<TaskId>,
        is_yielding: bool,
    ) -> Option<TaskId> {
        let first = TaskId::from(0);
        self.first_waits |= is_yielding && current == Some(first);
        let early = !self.first_waits || (!is_strict(self.seed) && self.random.below(EARLY) == 0);
        let mut ready: Vec<TaskId> = runnable.iter().map(|task| task.id()).collect();
        if ready.len() > 1 && !early {
            ready.retain(|id| *id != first);
        }
        if let Some(current) = current
            && self.random.below(PRIORITY_LASTS) == 0
        {
            self.priority(current.into());
            self.priorities[usize::from(current)] = self.random.next();
        }
        let next = if self.by_priority {
            ready.into_iter().max_by_key(|id| self.priority((*id).into()))
        } else {
            Some(ready[self.random.below(ready.len() as u64) as usize])
        };
        self.first_waits &= next != Some(first);
        next
    }

    fn next_u64(&mut self) -> u64 {
        self.random.next()
    }
}

/// SplitMix64 (Steele et al. 2014).
#[derive(Debug)]
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

/// Repeats two steps until `reached`: all threads run until they wait, then time passes until the first of
/// them is due. Call it from the test's own thread.
///
/// # Panics
/// If `reached` is still false after `at_most`.
pub fn pass_until(what: &str, at_most: Duration, reached: impl Fn() -> bool) {
    let end = time::now() + at_most;
    let mut idle = 0;
    while !reached() {
        assert!(time::now() <= end, "{what} has not come true within {at_most:?}");
        shuttle::thread::yield_now();
        if !reached() {
            idle = if time::pass() { 0 } else { idle + 1 };
            assert!(idle < IDLE_MAX, "{what} has not come true, and nobody waits for anything");
        }
    }
}

/// Runs a future on this thread until it is ready.
pub fn block_on<F: Future>(future: F) -> F::Output {
    shuttle::future::block_on(future)
}

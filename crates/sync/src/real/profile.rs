//! What the threads of this process do with their time: the four states of Santos 2012, section 9.6.

use std::{
    collections::BTreeMap,
    fs,
    sync::{
        Arc, Mutex, OnceLock, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use crate::ThreadTimes;

/// What a thread waits for.
#[derive(Clone, Copy)]
enum Wait {
    /// For a lock.
    Blocked,
    /// For something to do, or for room.
    Idle,
}

/// How long a thread has waited.
#[derive(Debug, Default)]
struct Waits {
    /// For a lock, in nanoseconds.
    blocked: AtomicU64,
    /// For something to do or for room, in nanoseconds.
    waiting: AtomicU64,
    /// When the present wait began, in nanoseconds after [`beginning`] and never 0; 0 if there is none.
    since: AtomicU64,
    /// Whether the present wait is for a lock.
    is_blocked: AtomicBool,
}

impl Waits {
    fn begin(&self, wait: Wait) {
        self.is_blocked.store(matches!(wait, Wait::Blocked), Relaxed);
        self.since.store(nanos_now(), Relaxed);
    }

    fn end(&self) {
        let since = self.since.swap(0, Relaxed);
        if since == 0 {
            return;
        }
        let of = if self.is_blocked.load(Relaxed) { &self.blocked } else { &self.waiting };
        of.fetch_add(nanos_now().saturating_sub(since), Relaxed);
    }

    /// For how long the thread has been blocked and has waited, with what has not ended yet.
    fn so_far(&self) -> (Duration, Duration) {
        let (mut blocked, mut waiting) = (self.blocked.load(Relaxed), self.waiting.load(Relaxed));
        let since = self.since.load(Relaxed);
        if since != 0 {
            let of = if self.is_blocked.load(Relaxed) { &mut blocked } else { &mut waiting };
            *of += nanos_now().saturating_sub(since);
        }
        (Duration::from_nanos(blocked), Duration::from_nanos(waiting))
    }
}

/// Where the times of waits are counted from.
fn beginning() -> Instant {
    static BEGINNING: OnceLock<Instant> = OnceLock::new();
    *BEGINNING.get_or_init(Instant::now)
}

fn nanos_now() -> u64 {
    u64::try_from(beginning().elapsed().as_nanos()).unwrap_or(u64::MAX).max(1)
}

/// The threads that have waited, each by the system's number.
static ALL: Mutex<Vec<(i32, Weak<Waits>)>> = Mutex::new(Vec::new());

thread_local! {
    static MINE: Arc<Waits> = {
        let waits = Arc::new(Waits::default());
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|(_, waits)| waits.strong_count() > 0);
        all.push((rustix::thread::gettid().as_raw_nonzero().get(), Arc::downgrade(&waits)));
        waits
    };
}

/// Does `work`, which waits for a lock.
pub(super) fn blocked<T>(work: impl FnOnce() -> T) -> T {
    around(Wait::Blocked, work)
}

/// Does `work`, which waits for something to do, or for room.
pub(super) fn waiting<T>(work: impl FnOnce() -> T) -> T {
    around(Wait::Idle, work)
}

fn around<T>(wait: Wait, work: impl FnOnce() -> T) -> T {
    // A thread that ends may wait for a lock when its own figures are gone.
    _ = MINE.try_with(|waits| waits.begin(wait));
    let done = work();
    _ = MINE.try_with(|waits| waits.end());
    done
}

/// This thread of a runtime for tasks begins to wait for something to do.
pub fn park() {
    _ = MINE.try_with(|waits| waits.begin(Wait::Idle));
}

/// It goes on.
pub fn unpark() {
    _ = MINE.try_with(|waits| waits.end());
}

/// What threads were seen to have done when they were looked at last, and the sums of those that have ended since, so
/// that what is told of a name never falls. What a thread did after it was seen last is not told.
#[derive(Debug, Default)]
struct Seen {
    alive: BTreeMap<i32, ThreadTimes>,
    ended: BTreeMap<String, ThreadTimes>,
}

static SEEN: Mutex<Seen> = Mutex::new(Seen { alive: BTreeMap::new(), ended: BTreeMap::new() });

/// What each thread of this process has done with its time, by name; threads of one name together, those that have
/// ended among them. Empty where the system does not tell (it is Linux that does, in `/proc/self/task`).
#[must_use]
pub fn threads() -> Vec<ThreadTimes> {
    let alive = alive();
    let mut seen = SEEN.lock().unwrap_or_else(PoisonError::into_inner);
    seen.look(alive);
    let mut by_name = seen.ended.clone();
    for times in seen.alive.values() {
        add(&mut by_name, times);
    }
    by_name.into_values().collect()
}

impl Seen {
    /// Takes in what is alive now.
    fn look(&mut self, alive: BTreeMap<i32, ThreadTimes>) {
        for (id, before) in std::mem::replace(&mut self.alive, alive) {
            // The number may have come to another thread meanwhile.
            let is_same = |now: &ThreadTimes| now.name == before.name && now.busy >= before.busy;
            if !self.alive.get(&id).is_some_and(is_same) {
                add(&mut self.ended, &ThreadTimes { threads: 0, ..before });
            }
        }
    }
}

fn add(by_name: &mut BTreeMap<String, ThreadTimes>, times: &ThreadTimes) {
    let empty = || ThreadTimes { name: times.name.clone(), ..ThreadTimes::default() };
    let of = by_name.entry(times.name.clone()).or_insert_with(empty);
    of.threads += times.threads;
    of.busy += times.busy;
    of.ready += times.ready;
    of.blocked += times.blocked;
    of.waiting += times.waiting;
}

/// The threads that there are, by the system's numbers.
fn alive() -> BTreeMap<i32, ThreadTimes> {
    let Ok(tasks) = fs::read_dir("/proc/self/task") else { return BTreeMap::new() };
    let waits: BTreeMap<i32, Arc<Waits>> = {
        let all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().filter_map(|(id, waits)| Some((*id, waits.upgrade()?))).collect()
    };
    let times = |task: fs::DirEntry| {
        // A thread may have ended meanwhile.
        let read = |file: &str| fs::read_to_string(task.path().join(file)).ok();
        let id = task.file_name().to_str()?.parse().ok()?;
        let name = read("comm")?.trim_end().to_owned();
        let scheduled = read("schedstat")?;
        let mut nanos = scheduled.split_whitespace().map_while(|figure| figure.parse().ok());
        let (busy, ready) = (Duration::from_nanos(nanos.next()?), Duration::from_nanos(nanos.next()?));
        let (blocked, waiting) = waits.get(&id).map(|waits| waits.so_far()).unwrap_or_default();
        Some((id, ThreadTimes { name, threads: 1, busy, ready, blocked, waiting }))
    };
    tasks.flatten().filter_map(times).collect()
}

#[cfg(test)]
mod tests {
    use std::{sync::Barrier, thread};

    use super::*;
    use crate::{Condvar, Mutex};

    const WAIT: Duration = Duration::from_millis(60);

    /// The figures of the threads of this name.
    fn of(name: &str) -> ThreadTimes {
        threads().into_iter().find(|one| one.name == name).unwrap_or_else(|| panic!("{name} is not there"))
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn waiting_for_a_lock_and_for_something_to_do_are_told_apart() {
        let lock = Mutex::new(());
        let held = lock.lock().unwrap();
        let (asked, done) = (Barrier::new(2), Barrier::new(2));
        thread::scope(|scope| {
            let both = || {
                asked.wait();
                drop(lock.lock());
                let idle = Mutex::new(());
                drop(Condvar::new().wait_timeout(idle.lock().unwrap(), WAIT * 2));
                done.wait();
                done.wait();
            };
            thread::Builder::new().name("waits-twice".to_owned()).spawn_scoped(scope, both).unwrap();
            asked.wait();
            thread::sleep(WAIT);
            assert!(of("waits-twice").blocked >= WAIT / 2, "a wait counts before it ends");
            drop(held);
            done.wait();
            let times = of("waits-twice");
            done.wait();
            assert_eq!(times.threads, 1);
            assert!(times.blocked >= WAIT / 2 && times.blocked < WAIT * 20, "{times:?}");
            assert!(times.waiting >= WAIT * 2, "{times:?}");
        });
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_thread_that_works_is_busy() {
        let done = Barrier::new(2);
        thread::scope(|scope| {
            let work = || {
                let began = crate::processor_time();
                while crate::processor_time() - began < WAIT {}
                done.wait();
                done.wait();
            };
            thread::Builder::new().name("works".to_owned()).spawn_scoped(scope, work).unwrap();
            done.wait();
            let times = of("works");
            done.wait();
            assert!(times.busy >= WAIT / 2, "{times:?}");
        });
    }

    #[test]
    fn what_is_told_of_a_name_never_falls() {
        let times = |name: &str, seconds: u64| ThreadTimes {
            name: name.to_owned(),
            threads: 1,
            busy: Duration::from_secs(seconds),
            ..ThreadTimes::default()
        };
        let mut seen = Seen::default();
        let mut sum = |alive: &[(i32, ThreadTimes)]| {
            seen.look(alive.iter().cloned().collect());
            let mut by_name = seen.ended.clone();
            seen.alive.values().for_each(|times| add(&mut by_name, times));
            by_name.get("a").map(|times| (times.threads, times.busy.as_secs()))
        };
        assert_eq!(sum(&[(1, times("a", 3)), (2, times("a", 4))]), Some((2, 7)));
        assert_eq!(sum(&[(2, times("a", 5))]), Some((1, 8)), "one has ended");
        assert_eq!(sum(&[(2, times("b", 9))]), Some((0, 8)), "its number came to another");
        assert_eq!(sum(&[(2, times("a", 1))]), Some((1, 9)));
    }
}

//! What the threads of this process do with their time: the four states of Santos 2012, section 9.6.

use std::{
    cell::Cell,
    collections::BTreeMap,
    fs,
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use crate::ThreadTimes;

/// How long a thread has waited.
#[derive(Debug, Default)]
struct Waits {
    /// For a lock, in nanoseconds.
    blocked: AtomicU64,
    /// For something to do or for room, in nanoseconds.
    waiting: AtomicU64,
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
    static PARKED: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Does `work`, which waits for a lock.
pub(super) fn blocked<T>(work: impl FnOnce() -> T) -> T {
    let began = Instant::now();
    let done = work();
    count(began, |waits| &waits.blocked);
    done
}

/// Does `work`, which waits for something to do, or for room.
pub(super) fn waiting<T>(work: impl FnOnce() -> T) -> T {
    let began = Instant::now();
    let done = work();
    count(began, |waits| &waits.waiting);
    done
}

/// This thread of a runtime for tasks begins to wait for something to do.
pub fn park() {
    PARKED.set(Some(Instant::now()));
}

/// It goes on.
pub fn unpark() {
    if let Some(began) = PARKED.take() {
        count(began, |waits| &waits.waiting);
    }
}

fn count(began: Instant, of: fn(&Waits) -> &AtomicU64) {
    let nanos = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
    // A thread that ends may wait for a lock when its own figures are gone.
    _ = MINE.try_with(|waits| of(waits).fetch_add(nanos, Relaxed));
}

/// What each thread of this process has done with its time, by name; threads of one name together. Empty where the
/// system does not tell (it is Linux that does, in `/proc/self/task`).
#[must_use]
pub fn threads() -> Vec<ThreadTimes> {
    let Ok(tasks) = fs::read_dir("/proc/self/task") else { return Vec::new() };
    let waits: BTreeMap<i32, Arc<Waits>> = {
        let all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().filter_map(|(id, waits)| Some((*id, waits.upgrade()?))).collect()
    };
    let mut by_name: BTreeMap<String, ThreadTimes> = BTreeMap::new();
    for task in tasks.flatten() {
        // A thread may have ended meanwhile.
        let read = |file: &str| fs::read_to_string(task.path().join(file)).ok();
        let (Some(name), Some(scheduled)) = (read("comm"), read("schedstat")) else { continue };
        let mut nanos = scheduled.split_whitespace().map_while(|figure| figure.parse().ok());
        let (Some(busy), Some(ready)) = (nanos.next(), nanos.next()) else { continue };
        let name = name.trim_end().to_owned();
        let of =
            by_name.entry(name.clone()).or_insert_with(|| ThreadTimes { name, ..ThreadTimes::default() });
        of.threads += 1;
        of.busy += Duration::from_nanos(busy);
        of.ready += Duration::from_nanos(ready);
        let id = task.file_name().to_str().and_then(|id| id.parse().ok());
        if let Some(waits) = id.and_then(|id: i32| waits.get(&id)) {
            of.blocked += Duration::from_nanos(waits.blocked.load(Relaxed));
            of.waiting += Duration::from_nanos(waits.waiting.load(Relaxed));
        }
    }
    by_name.into_values().collect()
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
}

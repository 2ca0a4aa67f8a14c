//! Memory that is free goes back to the system on a thread of its own.
//!
//! Whatever thread allocates gives back what all threads have freed, in one go, once the time for that has come. The
//! thread that executes commands allocates most, so it gave back the hundreds of MB that a written snapshot frees, and
//! took up to 40 ms of processor time for it. `docs/laboratory.md` has the figures.

use std::{ffi::c_long, io, thread, time::Duration};

use libmimalloc_sys::{mi_collect, mi_option_set, mi_option_t};

/// How often memory is given back. A shorter time makes the system clear more pages that are soon used again.
const INTERVAL: Duration = Duration::from_secs(1);

/// After this time without this thread, others give memory back: it may have no processor for a while.
const DELAY: Duration = Duration::from_secs(60);

/// `mi_option_purge_delay` of mimalloc's enumeration, in milliseconds. The bindings have no name for it.
const PURGE_DELAY: mi_option_t = 15;

/// Starts the thread, which ends with the process. To be called while no other thread runs.
pub fn give_back() -> io::Result<()> {
    let delay = c_long::try_from(DELAY.as_millis()).unwrap_or(c_long::MAX);
    #[allow(unsafe_code, reason = "a function of C that takes two numbers")]
    // SAFETY: the option exists. The allocator keeps it as a plain number, which nobody reads meanwhile: `serve` calls
    // this before it starts a thread.
    unsafe {
        mi_option_set(PURGE_DELAY, delay);
    }
    let run = || {
        loop {
            thread::sleep(INTERVAL);
            #[allow(unsafe_code, reason = "a function of C that takes no memory of ours")]
            // SAFETY: any thread may call it at any time.
            unsafe {
                mi_collect(true);
            }
        }
    };
    thread::Builder::new().name("freed-memory".into()).spawn(run).map(drop)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::{fs, time::Instant};

    use libmimalloc_sys::mi_option_get;

    use super::*;

    /// Pages of 4 KiB that are resident, or the number of larger ones.
    fn resident_pages() -> usize {
        let pages = fs::read_to_string("/proc/self/statm").unwrap();
        pages.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    #[test]
    fn memory_goes_back_although_no_other_thread_allocates() {
        #[allow(unsafe_code, reason = "a function of C that takes a number")]
        // SAFETY: a number that nobody else changes meanwhile.
        let delay = || unsafe { mi_option_get(PURGE_DELAY) };
        assert_eq!(delay(), 1000, "the option is another one in this version of mimalloc");
        give_back().unwrap();
        assert_eq!(delay(), 60_000);
        let blocks: Vec<_> = (0..4096).map(|_| vec![1u8; 64 << 10]).collect();
        let most = resident_pages();
        drop(blocks);
        let until = Instant::now() + Duration::from_secs(30);
        while resident_pages() > most / 2 {
            assert!(Instant::now() < until, "{} of {most} pages are still here", resident_pages());
            thread::sleep(Duration::from_millis(100));
        }
    }
}

//! Waiting for what other threads and processes do.

use std::{
    thread,
    time::{Duration, Instant},
};

/// How long anything may take that depends on elections and on how busy the machine is.
pub const WAIT_MAX: Duration = Duration::from_secs(60);

/// Repeats a question until the answer is yes. The pauses grow with the wait, since an answer may take a process of its own.
///
/// # Panics
/// The answer is still no after [`WAIT_MAX`].
#[track_caller]
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        let waited = began.elapsed();
        assert!(waited < WAIT_MAX, "{what}: not after {WAIT_MAX:?}");
        thread::sleep((waited / 20).clamp(Duration::from_millis(2), Duration::from_millis(100)));
    }
}

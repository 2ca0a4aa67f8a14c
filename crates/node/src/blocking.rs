//! Blocking work for asynchronous callers: a thread of its own does it, so that no thread of a runtime waits.

use std::{
    io,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
};

use synod_sync::thread;
use tokio::sync::oneshot;

/// Returns what `work` returns. If the future is dropped, the work is still done to its end, and its result is dropped.
///
/// # Errors
/// The system gives no thread. The work was not begun, and what it holds was dropped.
///
/// # Panics
/// If the work panics.
pub(crate) async fn blocking<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    let (done, result) = oneshot::channel();
    let run = move || {
        // The future may have been dropped, and then the result is too.
        let _ = done.send(catch_unwind(AssertUnwindSafe(work)));
    };
    thread::Builder::new().name(name.to_owned()).spawn(run)?;
    match result.await.expect("the thread sends before it ends") {
        Ok(done) => Ok(done),
        Err(panic) => resume_unwind(panic),
    }
}

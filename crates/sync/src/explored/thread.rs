//! Threads.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use shuttle::sync::Mutex;
pub use shuttle::thread::{Scope, Thread, scope};

/// As in the standard library.
#[derive(Debug, Default)]
pub struct Builder(Option<String>);

/// As in the standard library.
#[derive(Debug)]
pub struct JoinHandle<T> {
    inner: shuttle::thread::JoinHandle<T>,
    finished: Arc<AtomicBool>,
}

struct Finish(Arc<AtomicBool>);

impl Drop for Finish {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

impl Builder {
    /// As in the standard library.
    #[must_use]
    pub fn new() -> Builder {
        Builder::default()
    }

    /// As in the standard library.
    #[must_use]
    pub fn name(self, name: String) -> Builder {
        Builder(Some(name))
    }

    /// As in the standard library.
    ///
    /// # Errors
    /// It never fails.
    pub fn spawn<F, T>(self, body: F) -> io::Result<JoinHandle<T>>
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        let finished = Arc::new(AtomicBool::new(false));
        let finish = Finish(Arc::clone(&finished));
        let mut builder = shuttle::thread::Builder::new();
        if let Some(name) = self.0 {
            builder = builder.name(name);
        }
        let inner = builder.spawn(move || {
            let _finish = finish;
            body()
        })?;
        Ok(JoinHandle { inner, finished })
    }

    /// As in the standard library.
    ///
    /// # Errors
    /// It never fails.
    pub fn spawn_scoped<'scope, F, T>(
        self,
        scope: &'scope Scope<'scope, '_>,
        body: F,
    ) -> io::Result<shuttle::thread::ScopedJoinHandle<'scope, T>>
    where
        F: FnOnce() -> T + Send + 'scope,
        T: Send + 'scope,
    {
        Ok(scope.spawn(body))
    }
}

/// As in the standard library.
pub fn spawn<F, T>(body: F) -> JoinHandle<T>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    Builder::new().spawn(body).expect("threads can be had")
}

impl<T> JoinHandle<T> {
    /// As in the standard library.
    ///
    /// # Errors
    /// As in the standard library.
    pub fn join(self) -> std::thread::Result<T> {
        self.inner.join()
    }

    /// As in the standard library.
    #[must_use]
    pub fn is_finished(&self) -> bool {
        self.finished.load(Relaxed)
    }

    /// As in the standard library.
    #[must_use]
    pub fn thread(&self) -> &Thread {
        self.inner.thread()
    }
}

/// Sleeps until the test's clock has moved by `time`.
pub fn sleep(time: Duration) {
    let (nobody, never) = (Mutex::new(()), super::Condvar::new());
    _ = never.wait_timeout_while(nobody.lock().expect("nobody else has it"), time, |()| true);
}

//! A configuration that follows its files.

use std::{
    fmt,
    path::PathBuf,
    sync::{Arc, Weak},
    thread,
    time::Duration,
};

use arc_swap::ArcSwap;
use tracing::{info, warn};

use crate::{
    TlsError,
    files::{Stamp, stamps},
};

/// How often a file is looked at.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// What was made from files, and is made again when one of them changes.
pub(crate) struct Reloaded<T> {
    current: ArcSwap<T>,
    files: Vec<PathBuf>,
    make: Box<dyn Fn() -> Result<T, TlsError> + Send + Sync>,
}

impl<T> fmt::Debug for Reloaded<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Reloaded").field(&self.files).finish()
    }
}

impl<T: Send + Sync + 'static> Reloaded<T> {
    /// Makes the first one, and has a thread look at the files for as long as this lives.
    pub(crate) fn start(
        files: Vec<PathBuf>,
        make: impl Fn() -> Result<T, TlsError> + Send + Sync + 'static,
    ) -> Result<Arc<Reloaded<T>>, TlsError> {
        // Stamps are taken before the files are read, so that no change is missed.
        let mut look = Look { used: stamps(&files), failed: None };
        let current = ArcSwap::from_pointee(make()?);
        let reloaded = Arc::new(Reloaded { current, files, make: Box::new(make) });
        let followed = Arc::downgrade(&reloaded);
        let follow = move || {
            while let Some(reloaded) = Weak::upgrade(&followed) {
                look.again(&reloaded);
                drop(reloaded);
                thread::sleep(LOOK_INTERVAL);
            }
        };
        let thread = thread::Builder::new().name("tls-files".into()).spawn(follow);
        thread.map_err(|error| TlsError::Settings(format!("no thread to follow files: {error}")))?;
        Ok(reloaded)
    }

    pub(crate) fn current(&self) -> Arc<T> {
        self.current.load_full()
    }
}

/// What is known of the files.
struct Look {
    /// Those that the configuration in use was made from.
    used: Vec<Stamp>,
    /// Those that made no configuration, why, and whether that was said.
    failed: Option<(Vec<Stamp>, TlsError, bool)>,
}

impl Look {
    fn again<T: Send + Sync + 'static>(&mut self, reloaded: &Reloaded<T>) {
        let now = stamps(&reloaded.files);
        if now == self.used {
            self.failed = None;
            return;
        }
        if let Some((stamps, error, said)) = &mut self.failed
            && *stamps == now
        {
            // A certificate and its key change one after the other, so this is said only when nothing changes any more.
            if !std::mem::replace(said, true) {
                warn!("what was read before of these files stays in use: {error}");
            }
            return;
        }
        match (reloaded.make)() {
            Ok(made) => {
                reloaded.current.store(Arc::new(made));
                let files: Vec<_> = reloaded.files.iter().map(|file| file.display().to_string()).collect();
                info!(files = files.join(", "), "read again, since a file has changed");
                (self.used, self.failed) = (now, None);
            }
            Err(error) => self.failed = Some((now, error, false)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_last_good_one_stays_until_there_is_another() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("number");
        let make = {
            let file = file.clone();
            move || {
                let text = fs::read_to_string(&file)
                    .map_err(|source| TlsError::Unreadable { path: file.clone(), source })?;
                text.parse::<u64>().map_err(|error| TlsError::content(&file, error.to_string()))
            }
        };
        assert!(Reloaded::start(vec![file.clone()], make.clone()).is_err());
        fs::write(&file, "1").unwrap();
        let mut look = Look { used: stamps(std::slice::from_ref(&file)), failed: None };
        let reloaded = Reloaded {
            current: ArcSwap::from_pointee(make().unwrap()),
            files: vec![file.clone()],
            make: Box::new(make),
        };
        let mut after = |text: &str| {
            fs::write(&file, text).unwrap();
            look.again(&reloaded);
            *reloaded.current()
        };
        assert_eq!(after("22"), 22);
        assert_eq!(after("nonsense"), 22);
        assert_eq!(after("nonsense"), 22);
        assert_eq!(after("333"), 333);
        fs::remove_file(&file).unwrap();
        look.again(&reloaded);
        assert_eq!(*reloaded.current(), 333);
        assert!(look.failed.is_some());
    }
}

//! The log of a run: a line for each event, in a file and on standard error, and a progress bar.

use std::{fs::File, io::Write as _, path::Path, time::Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Writes the events of a run to a file, and shows them.
#[derive(Debug)]
pub struct Log {
    began: Instant,
    file: File,
    bar: ProgressBar,
    shown: bool,
}

impl Log {
    /// Begins the log of a run of this many seconds.
    pub fn new(path: &Path, seconds: u64, shown: bool) -> Result<Log, String> {
        let file = File::create(path).map_err(|error| format!("{}: {error}", path.display()))?;
        let bar = ProgressBar::new(seconds);
        let style = ProgressStyle::with_template("chaos {bar:30} {pos}/{len} s  {wide_msg}");
        bar.set_style(style.expect("a constant template"));
        if !shown {
            bar.set_draw_target(ProgressDrawTarget::hidden());
        }
        Ok(Log { began: Instant::now(), file, bar, shown })
    }

    /// The bar, which a task of its own keeps up to date.
    pub fn bar(&self) -> ProgressBar {
        self.bar.clone()
    }

    /// Seconds since the beginning.
    pub fn seconds(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }

    /// Logs an event.
    pub fn say(&mut self, event: &str) {
        let line = format!("{:7.1} {event}", self.seconds());
        // A log that cannot be written is no reason to end a run; what counts is in the report.
        let _ = writeln!(self.file, "{line}");
        match self.bar.is_hidden() {
            true if self.shown => eprintln!("{line}"),
            true => {}
            false => self.bar.println(line),
        }
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

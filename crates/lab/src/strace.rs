//! A slow disk, made with `strace`: it holds back what a process asks of its disk.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

/// How long `strace` may take to attach itself to a process, or to leave it.
const ATTACHING_MAX: Duration = Duration::from_secs(5);
const INTERVAL: Duration = Duration::from_millis(10);

/// Arguments with which `strace` holds each of these calls back, and records them in a file.
pub(crate) fn holding_back(calls: &str, by: Duration, record: &str) -> Vec<String> {
    let delay = format!("inject={calls}:delay_enter={}", by.as_micros());
    ["-f", "-qq", "-o", record, "-e", &format!("trace={calls}"), "-e", &delay].map(str::to_owned).to_vec()
}

/// A running process whose commits to the disk take longer, until this is dropped.
#[derive(Debug)]
pub(crate) struct SlowDisk {
    /// `strace`, until it has ended.
    tracer: Option<Child>,
    record: PathBuf,
}

impl SlowDisk {
    /// Makes the disk of a process slow: each `fdatasync` and `fsync` takes so much longer. The record is a file that
    /// does not exist.
    ///
    /// # Errors
    /// There is no `strace`, or the system does not let it trace the process.
    pub(crate) fn begin(process: Pid, by: Duration, record: &Path) -> Result<SlowDisk, String> {
        let failed = |why: &dyn std::fmt::Display| format!("strace: {why}");
        let said = record.with_extension("err");
        let mut command = Command::new("strace");
        command.args(holding_back("fdatasync,fsync", by, &record.to_string_lossy()));
        command.args(["-p", &process.as_raw_nonzero().to_string()]);
        let stderr = File::create(&said).map_err(|error| failed(&error))?;
        let tracer = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr).spawn();
        let tracer = tracer.map_err(|error| failed(&error))?;
        let mut slow = SlowDisk { tracer: Some(tracer), record: record.to_owned() };
        let deadline = Instant::now() + ATTACHING_MAX;
        while !is_traced(process) {
            let runs = slow.tracer.as_mut().is_some_and(|tracer| matches!(tracer.try_wait(), Ok(None)));
            if !runs || Instant::now() > deadline {
                let said = fs::read_to_string(&said).unwrap_or_default();
                let why = said.lines().last().unwrap_or("it does not attach itself");
                return Err(failed(&why.trim_start_matches("strace: ")));
            }
            thread::sleep(INTERVAL);
        }
        let _ = fs::remove_file(said);
        Ok(slow)
    }

    /// Ends it, and returns how many commits were held back.
    pub(crate) fn end(mut self) -> Result<usize, String> {
        self.leave();
        let record = fs::read_to_string(&self.record);
        let record = record.map_err(|error| format!("{}: {error}", self.record.display()))?;
        let _ = fs::remove_file(&self.record);
        Ok(held_back(&record))
    }

    /// Has `strace` let go of the process, which goes on.
    fn leave(&mut self) {
        let Some(mut tracer) = self.tracer.take() else { return };
        // The calls fail only if it has ended.
        let _ = kill_process(Pid::from_child(&tracer), Signal::TERM);
        let deadline = Instant::now() + ATTACHING_MAX;
        while matches!(tracer.try_wait(), Ok(None)) && Instant::now() < deadline {
            thread::sleep(INTERVAL);
        }
        // The kernel continues what a tracer leaves behind.
        let _ = tracer.kill();
        let _ = tracer.wait();
    }
}

impl Drop for SlowDisk {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Tries whether `strace` can be had, and may trace processes that this one has started.
///
/// # Errors
/// It cannot, for this reason.
pub(crate) fn rehearse(folder: &Path) -> Result<(), String> {
    let mut sleeper = Command::new("sleep").arg("60").spawn().map_err(|error| format!("sleep: {error}"))?;
    let slow = SlowDisk::begin(
        Pid::from_child(&sleeper),
        Duration::from_millis(1),
        &folder.join("rehearsal.strace"),
    );
    let ended = slow.and_then(SlowDisk::end);
    let _ = sleeper.kill();
    let _ = sleeper.wait();
    ended.map(drop)
}

/// Whether all threads of a process are traced.
fn is_traced(process: Pid) -> bool {
    let traced = |thread: fs::DirEntry| {
        let status = fs::read_to_string(thread.path().join("status")).unwrap_or_default();
        status.lines().find_map(|line| line.strip_prefix("TracerPid:")).is_some_and(|by| by.trim() != "0")
    };
    let threads = fs::read_dir(format!("/proc/{}/task", process.as_raw_nonzero()));
    threads.is_ok_and(|threads| threads.flatten().all(traced))
}

/// How many calls of a record were held back.
fn held_back(record: &str) -> usize {
    record.lines().filter(|line| line.contains("(DELAYED)")).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_that_were_held_back_are_counted() {
        let record = "7 fdatasync(9 <unfinished ...>\n8 fsync(4) = 0 (DELAYED)\n7 <... fdatasync resumed>) = 0 (DELAYED)\n";
        assert_eq!(held_back(record), 2);
        assert_eq!(held_back("7 +++ exited with 0 +++\n"), 0);
    }

    #[test]
    fn a_process_that_is_not_there_cannot_be_slow() {
        let folder = tempfile::tempdir().unwrap();
        let mut gone = Command::new("true").spawn().unwrap();
        let process = Pid::from_child(&gone);
        gone.wait().unwrap();
        let refused = SlowDisk::begin(process, Duration::from_millis(1), &folder.path().join("record"));
        assert!(refused.unwrap_err().starts_with("strace: "));
    }
}
